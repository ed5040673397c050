/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock, and which locks there are.
 *
 * All who hold at once have one fence (try.c): that of those who joined, or
 * else of the first in the queue.
 *
 * A listing reads all places in the order of their names, a page at a time, and
 * each lease once: what it costs does not depend on how many locks there are so
 * much as on how many clients hold them.
 */
#include "etcd.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/escape.h"

#include "base/banned.h"

#define LIST_PAGE 500

hf_status etcd_queue(struct etcd_conn *ec, const char *key,
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

uint64_t etcd_holders_fence(Pb__KeyValue *const *kvs, size_t n)
{
    struct etcd_words words;
    size_t i, lead = 0;

    if (!n)
        return 0;
    for (i = 0; i < n; i++)
        if (look_joined(kvs[i]))
            lead = i;
    etcd_read_value(kvs[lead]->value, &words);
    return etcd_fence(kvs[lead], &words);
}

/* What a queue, in order, says; the lease of the first holder, or 0. */
static int64_t look_fill(struct hf_info *ret, Pb__KeyValue *const *kvs,
                         size_t n)
{
    uint64_t fence = etcd_holders_fence(kvs, n);
    struct etcd_words words;
    int64_t lease = 0;
    size_t i;

    ret->waiters = 0;
    for (i = 0; i < n; i++) {
        etcd_read_value(kvs[i]->value, &words);
        if (etcd_fence(kvs[i], &words) != fence) {
            ret->waiters++;
            continue;
        }
        ret->broken = ret->broken || words.broken;
        if (ret->holders++)
            continue;
        ret->held = true;
        ret->fence = fence;
        lease = kvs[i]->lease;
        snprintf(ret->owner, sizeof(ret->owner), "%s",
                 words.owner[0] ? words.owner : words.token);
        snprintf(ret->note, sizeof(ret->note), "%s", words.note);
    }
    return lease;
}

/* ---- leases ------------------------------------------------------------ */

/* What is left of leases, as far as it was asked for. */
struct lefts {
    struct left {
        int64_t lease, ms; /* -1: not known */
    } * all;
    size_t n, room;
};

static struct left *lefts_find(const struct lefts *lefts, int64_t lease)
{
    size_t i;

    for (i = lefts->n; i-- > 0;)
        if (lefts->all[i].lease == lease)
            return &lefts->all[i];
    return NULL;
}

/* Have a line for the lease; false: no memory. */
static bool lefts_add(struct lefts *lefts, int64_t lease)
{
    size_t room = lefts->room ? 2 * lefts->room : 16;
    struct left *grown;

    if (lefts->n == lefts->room) {
        grown = hfi_realloc(lefts->all, room * sizeof(*grown));
        if (!grown)
            return false;
        lefts->all = grown;
        lefts->room = room;
    }
    lefts->all[lefts->n++] = (struct left){lease, -1};
    return true;
}

/* Ask for those from `from` on, as many as go together.  A lease that is not
 * told of is not known, which is no failure. */
static size_t lefts_ask(struct etcd_conn *ec, struct lefts *lefts, size_t from,
                        int64_t deadline)
{
    Pb__LeaseTimeToLiveRequest ask = PB__LEASE_TIME_TO_LIVE_REQUEST__INIT;
    struct etcd_batch batch = {.n = 0};
    ProtobufCMessage *answer;
    size_t i, n = lefts->n - from;
    int64_t left;

    n = n < ETCD_CALLS_MAX ? n : ETCD_CALLS_MAX;
    for (i = 0; i < n; i++) {
        ask.id = lefts->all[from + i].lease;
        etcd_add(&batch, ETCD_TTL, &ask.base);
    }
    etcd_send(ec, &batch, deadline, NULL);
    for (i = 0; i < n && !batch.failed; i++) {
        answer = NULL;
        if (etcd_answer(ec, &batch, i,
                        &pb__lease_time_to_live_response__descriptor, &answer,
                        NULL))
            continue;
        left = ((Pb__LeaseTimeToLiveResponse *)answer)->ttl;
        lefts->all[from + i].ms =
            left > 0 && left < INT64_MAX / 1000 ? left * 1000 : 0;
        etcd_free(answer);
    }
    etcd_batch_free(&batch);
    return n;
}

/* Know of the leases of all these; false: no memory. */
static bool lefts_know(struct etcd_conn *ec, struct lefts *lefts,
                       Pb__KeyValue *const *kvs, size_t n, int64_t deadline)
{
    size_t i, from = lefts->n;

    for (i = 0; i < n; i++)
        if (kvs[i]->lease && !lefts_find(lefts, kvs[i]->lease) &&
            !lefts_add(lefts, kvs[i]->lease))
            return false;
    while (from < lefts->n)
        from += lefts_ask(ec, lefts, from, deadline);
    return true;
}

static int64_t lefts_ms(const struct lefts *lefts, int64_t lease)
{
    const struct left *left = lease ? lefts_find(lefts, lease) : NULL;

    return left ? left->ms : -1;
}

hf_status etcd_inspect(struct hfi_conn *conn, const char *key,
                       struct hf_info *ret, int64_t deadline,
                       struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    Pb__RangeResponse *queue = NULL;
    struct lefts lefts = {.n = 0};
    hf_status st = etcd_queue(ec, key, &queue, deadline, err);
    int64_t lease;

    if (st)
        return st;
    lease = look_fill(ret, queue->kvs, queue->n_kvs);
    if (lease && lefts_add(&lefts, lease))
        lefts_ask(ec, &lefts, 0, deadline);
    if (ret->held)
        ret->left_ms = lefts_ms(&lefts, lease);
    hfi_free(lefts.all);
    etcd_free(queue);
    return HF_OK;
}

/* ---- list -------------------------------------------------------------- */

/* A walk over all places, and those of the lock at which it is. */
struct walk {
    struct etcd_conn *ec;
    hf_list_fn *fn;
    void *arg;
    bool more;
    int64_t deadline;
    struct lefts lefts;
    Pb__KeyValue **kvs; /* ours to free */
    size_t n, room;
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

/* How much of a name all places of its lock have in common. */
static size_t walk_dir(const Pb__KeyValue *kv)
{
    size_t len = kv->key.len;

    while (len && kv->key.data[len - 1] != '/')
        len--;
    return len;
}

static int walk_order(const void *one, const void *two)
{
    const Pb__KeyValue *const *a = one, *const *b = two;

    return ((*a)->create_revision > (*b)->create_revision) -
           ((*a)->create_revision < (*b)->create_revision);
}

/* All places of a lock are there: tell of it. */
static void walk_tell(struct walk *w)
{
    struct hf_info info = {.size = sizeof(info), .left_ms = -1, .since_ms = -1};
    char key[ETCD_NAME_MAX];

    if (w->n && w->more && walk_key(w, w->kvs[0]->key, key)) {
        qsort(w->kvs, w->n, sizeof(*w->kvs), walk_order);
        info.left_ms = lefts_ms(&w->lefts, look_fill(&info, w->kvs, w->n));
        if (info.held)
            w->more = w->fn(w->arg, key, &info);
    }
    while (w->n)
        etcd_free(w->kvs[--w->n]);
}

/* Take one place over from the page; false: no memory. */
static bool walk_add(struct walk *w, Pb__KeyValue **kv)
{
    size_t len = walk_dir(*kv), room = w->room ? 2 * w->room : 64;
    Pb__KeyValue **grown;

    if (w->n && (walk_dir(w->kvs[0]) != len ||
                 memcmp(w->kvs[0]->key.data, (*kv)->key.data, len) != 0))
        walk_tell(w);
    if (w->n == w->room) {
        grown = hfi_realloc(w->kvs, room * sizeof(Pb__KeyValue *));
        if (!grown)
            return false;
        w->kvs = grown;
        w->room = room;
    }
    w->kvs[w->n++] = *kv;
    *kv = NULL;
    return true;
}

/* A page of places, and where the next one begins. */
static hf_status walk_page(struct walk *w, char *from, ProtobufCBinaryData *at,
                           ProtobufCBinaryData end, struct hf_error *err)
{
    Pb__RangeRequest ask = PB__RANGE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    Pb__RangeResponse *page;
    hf_status st;
    bool last;
    size_t i;

    ask.key = *at;
    ask.range_end = end;
    ask.limit = LIST_PAGE;
    st = etcd_call(w->ec, ETCD_RANGE, &ask.base,
                   &pb__range_response__descriptor, &message, w->deadline, err);
    if (st)
        return st;
    page = (Pb__RangeResponse *)message;
    last = !page->more || !page->n_kvs ||
           page->kvs[page->n_kvs - 1]->key.len + 1 >= ETCD_NAME_MAX;
    if (!last) {
        at->len = page->kvs[page->n_kvs - 1]->key.len + 1;
        memcpy(from, page->kvs[page->n_kvs - 1]->key.data, at->len - 1);
        from[at->len - 1] = '\0'; /* the very next name */
        at->data = (uint8_t *)from;
    }
    if (!lefts_know(w->ec, &w->lefts, page->kvs, page->n_kvs, w->deadline))
        st = hfi_nomem(err);
    for (i = 0; i < page->n_kvs && w->more && !st; i++)
        if (!walk_add(w, &page->kvs[i]))
            st = hfi_nomem(err);
    if (last) {
        walk_tell(w);
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
    while (w.n)
        etcd_free(w.kvs[--w.n]);
    hfi_free(w.kvs);
    hfi_free(w.lefts.all);
    return st;
}
