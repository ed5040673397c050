/* SPDX-License-Identifier: MIT
 *
 * etcd_look.c - who holds a lock, which locks there are, and taking one away.
 *
 * The holders are the first of the queue and those behind it, without a gap,
 * that carry its owner id; and whoever joined them (etcd_take.c).
 */
#include "etcd.h"

#include "../escape.h"

#include "../banned.h"

#define LIST_PAGE 500

/* Everything that queues for a key, in order. */
static hf_status look_queue(struct etcd_conn *ec, const char *key,
                            Pb__RangeResponse **ret, int64_t deadline,
                            struct hf_error *err)
{
    Pb__RangeRequest ask = PB__RANGE_REQUEST__INIT;
    char dir[ETCD_NAME_MAX], end[ETCD_NAME_MAX];
    ProtobufCMessage *answer = NULL;
    hf_status st;

    etcd_dir(ec, key, dir, sizeof(dir));
    memcpy(end, dir, sizeof(end));
    ask.key = etcd_text(dir);
    ask.range_end = etcd_end(end);
    ask.sort_order = 1;
    ask.sort_target = 2;
    st = etcd_call(ec, ETCD_RANGE, &ask.base, &pb__range_response__descriptor,
                   &answer, deadline, err);
    if (!st)
        *ret = (Pb__RangeResponse *)answer;
    return st;
}

/* Did it join the holders of its owner id?  Its last part tells. */
static bool look_joined(const Pb__KeyValue *kv)
{
    size_t at = kv->key.len;

    while (at && kv->key.data[at - 1] != '/')
        at--;
    return at < kv->key.len && kv->key.data[at] == '~';
}

/* Who holds: asked of all in the queue, one after the other. */
struct look {
    struct etcd_words lead; /* of the first, or of one that joined */
    bool all;               /* all up to here carry its owner id */
};

static void look_begin(struct look *look, const Pb__RangeResponse *queue)
{
    size_t k, first = 0;

    look->all = true;
    for (k = 0; k < queue->n_kvs; k++)
        if (look_joined(queue->kvs[k]))
            first = k;
    if (queue->n_kvs)
        etcd_read_value(queue->kvs[first]->value, &look->lead);
}

/* Does the next, which is the i-th, hold?  The first does, who follows it with
 * the same owner id without a gap, and who joined; while somebody has joined,
 * only who carries that owner id. */
static bool look_next(struct look *look, const Pb__RangeResponse *queue,
                      size_t i)
{
    struct etcd_words each;

    etcd_read_value(queue->kvs[i]->value, &each);
    if (strcmp(each.owner, look->lead.owner) != 0 ||
        (i && !look->lead.owner[0]))
        look->all = false;
    return look->all || look_joined(queue->kvs[i]);
}

/* What is left of a lease; -1 if that is not known. */
static int64_t look_left(struct etcd_conn *ec, int64_t lease, int64_t deadline)
{
    Pb__LeaseTimeToLiveRequest ask = PB__LEASE_TIME_TO_LIVE_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    int64_t left = -1;

    ask.id = lease;
    if (lease && !etcd_call(ec, ETCD_TTL, &ask.base,
                            &pb__lease_time_to_live_response__descriptor,
                            &answer, deadline, NULL)) {
        left = ((Pb__LeaseTimeToLiveResponse *)answer)->ttl;
        left = left > 0 && left < INT64_MAX / 1000 ? left * 1000 : 0;
    }
    etcd_free(answer);
    return left;
}

hf_status etcd_inspect(struct hfi_conn *conn, const char *key,
                       struct hf_info *ret, int64_t deadline,
                       struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    Pb__RangeResponse *queue = NULL;
    const Pb__KeyValue *first = NULL;
    struct etcd_words words;
    struct look look;
    hf_status st = look_queue(ec, key, &queue, deadline, err);
    size_t i;

    if (st)
        return st;
    ret->waiters = 0;
    look_begin(&look, queue);
    for (i = 0; i < queue->n_kvs; i++) {
        if (!look_next(&look, queue, i)) {
            ret->waiters++;
            continue;
        }
        ret->holders++;
        ret->fence = (uint64_t)queue->kvs[i]->create_revision;
        if (!first)
            first = queue->kvs[i];
    }
    ret->held = first != NULL;
    if (first) {
        ret->left_ms = look_left(ec, first->lease, deadline);
        etcd_read_value(first->value, &words);
        snprintf(ret->owner, sizeof(ret->owner), "%s",
                 words.owner[0] ? words.owner : words.token);
        snprintf(ret->note, sizeof(ret->note), "%s", words.note);
    }
    etcd_free(queue);
    return HF_OK;
}

/* ---- list -------------------------------------------------------------- */

/* A walk over all keys, and the lock that was told last. */
struct walk {
    struct etcd_conn *ec;
    hf_list_fn *fn;
    void *arg;
    bool more;
    char told[ETCD_NAME_MAX];
    int64_t deadline;
};

/* The lock's key in a name, or false if it is none of ours. */
static bool walk_key(const struct walk *w, ProtobufCBinaryData name, char *ret)
{
    size_t skip = strlen(w->ec->prefix), len = name.len;

    while (len > skip && name.data[len - 1] != '/')
        len--;
    if (len <= skip + 1 || len - skip > 3 * HF_KEY_MAX + 1 ||
        memchr(name.data, '\0', len))
        return false;
    len -= skip + 1;
    memcpy(ret, name.data + skip, len);
    ret[len] = '\0';
    return hfi_unescape(ret) && strlen(ret) <= HF_KEY_MAX;
}

static hf_status walk_tell(struct walk *w, ProtobufCBinaryData name,
                           struct hf_error *err)
{
    struct hf_info info = {.size = sizeof(info), .left_ms = -1, .since_ms = -1};
    char key[ETCD_NAME_MAX];
    hf_status st;

    if (!walk_key(w, name, key) || !strcmp(key, w->told))
        return HF_OK;
    memcpy(w->told, key, sizeof(key));
    st = etcd_inspect(&w->ec->base, key, &info, w->deadline, err);
    if (!st && info.held)
        w->more = w->fn(w->arg, key, &info);
    return st;
}

/* A page of names, and where the next one begins. */
static hf_status walk_page(struct walk *w, char *from, ProtobufCBinaryData *at,
                           ProtobufCBinaryData end, struct hf_error *err)
{
    Pb__RangeRequest ask = PB__RANGE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    Pb__RangeResponse *page;
    hf_status st;
    size_t i;

    ask.key = *at;
    ask.range_end = end;
    ask.limit = LIST_PAGE;
    ask.keys_only = 1;
    st = etcd_call(w->ec, ETCD_RANGE, &ask.base,
                   &pb__range_response__descriptor, &message, w->deadline, err);
    if (st)
        return st;
    page = (Pb__RangeResponse *)message;
    for (i = 0; i < page->n_kvs && w->more && !st; i++)
        st = walk_tell(w, page->kvs[i]->key, err);
    w->more = w->more && page->more && page->n_kvs;
    if (w->more && page->kvs[page->n_kvs - 1]->key.len + 1 < ETCD_NAME_MAX) {
        at->len = page->kvs[page->n_kvs - 1]->key.len + 1;
        memcpy(from, page->kvs[page->n_kvs - 1]->key.data, at->len - 1);
        from[at->len - 1] = '\0'; /* the very next name */
        at->data = (uint8_t *)from;
    } else {
        w->more = false;
    }
    etcd_free(message);
    return st;
}

hf_status etcd_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                    void *arg, int64_t deadline, struct hf_error *err)
{
    struct walk w = {.ec = (struct etcd_conn *)conn,
                     .fn = fn,
                     .arg = arg,
                     .more = true,
                     .deadline = deadline};
    char from[ETCD_NAME_MAX], to[ETCD_NAME_MAX];
    ProtobufCBinaryData at, end;
    hf_status st = HF_OK;

    etcd_dir(w.ec, prefix, from, sizeof(from));
    from[strlen(from) - 1] = '\0'; /* A prefix ends anywhere. */
    memcpy(to, from, sizeof(to));
    end = etcd_end(to);
    at = etcd_text(from);
    if (!at.len) /* an empty prefix= and no prefix */
        at = (ProtobufCBinaryData){1, (uint8_t *)from};
    while (!st && w.more)
        st = walk_page(&w, from, &at, end, err);
    return st;
}

/* ---- break ------------------------------------------------------------- */

/* Remove the key, if it is still that grant, and leave word for its holder. */
static hf_status break_key(struct etcd_conn *ec, const char *key,
                           const Pb__KeyValue *kv, int64_t deadline,
                           struct hf_error *err)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    Pb__Compare compare = PB__COMPARE__INIT, *compares[] = {&compare};
    Pb__DeleteRangeRequest gone = PB__DELETE_RANGE_REQUEST__INIT;
    Pb__PutRequest word = PB__PUT_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, word_op = PB__REQUEST_OP__INIT;
    Pb__RequestOp *ops[] = {&op, &word_op};
    ProtobufCMessage *answer = NULL;
    struct etcd_words words;
    char mail[ETCD_MAIL_MAX];
    hf_status st;

    etcd_read_value(kv->value, &words);
    etcd_mail(ec, kv->lease, words.token, mail, sizeof(mail));
    word.key = etcd_text(mail);
    word.value = etcd_text(key);
    word.lease = kv->lease;
    word_op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    word_op.put = &word;
    gone.key = kv->key;
    etcd_compare(&compare, kv->key, kv->create_revision);
    op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    op.delete_range = &gone;
    txn.n_compare = 1;
    txn.n_success = kv->lease && words.token[0] ? 2 : 1;
    txn.compare = compares;
    txn.success = ops;
    st = etcd_call(ec, ETCD_TXN, &txn.base, &pb__txn_response__descriptor,
                   &answer, deadline, err);
    if (!st && !((Pb__TxnResponse *)answer)->succeeded)
        st = HF_LOST;
    etcd_free(answer);
    return st;
}

hf_status etcd_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    Pb__RangeResponse *queue = NULL;
    struct look look;
    hf_status st = look_queue(ec, key, &queue, deadline, err);
    size_t i;

    if (st)
        return st;
    look_begin(&look, queue);
    for (i = 0; i < queue->n_kvs; i++)
        if (look_next(&look, queue, i) &&
            (uint64_t)queue->kvs[i]->create_revision == fence)
            break;
    st = i < queue->n_kvs ? break_key(ec, key, queue->kvs[i], deadline, err)
                          : HF_LOST;
    etcd_free(queue);
    return st == HF_LOST ? hfi_fail(err, HF_LOST, "%s: that grant is over",
                                    conn->endpoint)
                         : st;
}
