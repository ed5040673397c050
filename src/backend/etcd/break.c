/* SPDX-License-Identifier: MIT
 *
 * break.c - taking a lock away, and taking one over.
 *
 * A lock that was broken keeps its place: its value says so, its holder is told
 * by a key beside it (wait.c) and at its next renewal, and nobody joins it.
 * It goes when the holder releases it, when its own client finds that it has
 * lapsed (key.c) or with its lease.  Freeing one removes it at once.
 *
 * A handle is taken up by putting another token in place of its own.
 *
 * INVARIANTS
 *  (1) A key is changed only if it was not written since it was read.
 *  (2) All who hold have one fence, so all of them are broken or freed.  Nobody
 *      joins one that is broken: so when all have been seen to be, they stay.
 */
#include "etcd.h"

#include "base/env.h"

#include "base/banned.h"

/* One key, changed or removed, and word of it for its holder. */
struct change {
    Pb__TxnRequest txn;
    Pb__Compare made, same, *compares[2];
    Pb__PutRequest put, word;
    Pb__DeleteRangeRequest gone;
    Pb__RequestOp op, word_op, *ops[2];
};

static void change_begin(struct change *ch, const Pb__KeyValue *kv)
{
    pb__txn_request__init(&ch->txn);
    pb__compare__init(&ch->made);
    pb__compare__init(&ch->same);
    pb__put_request__init(&ch->put);
    pb__put_request__init(&ch->word);
    pb__delete_range_request__init(&ch->gone);
    pb__request_op__init(&ch->op);
    pb__request_op__init(&ch->word_op);
    etcd_compare(&ch->made, kv->key, kv->create_revision);
    ch->same.key = ch->put.key = ch->gone.key = kv->key;
    ch->same.target = 2; /* when it was last written; equal */
    ch->same.with_case = PB__COMPARE__WITH_MOD_REVISION;
    ch->same.mod_revision = kv->mod_revision;
    ch->compares[0] = &ch->made;
    ch->compares[1] = &ch->same;
    ch->op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    ch->op.delete_range = &ch->gone;
    ch->ops[0] = &ch->op;
    ch->ops[1] = &ch->word_op;
    ch->txn.n_compare = 2;
    ch->txn.compare = ch->compares;
    ch->txn.n_success = 1;
    ch->txn.success = ch->ops;
}

/* Put a value there instead of removing it. */
static void change_put(struct change *ch, const char *value)
{
    ch->put.value = etcd_text(value);
    ch->op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    ch->op.put = &ch->put;
}

/* Leave word for the holder, with its lease. */
static void change_tell(struct change *ch, const char *notice, const char *key,
                        int64_t lease)
{
    ch->word.key = etcd_text(notice);
    ch->word.value = etcd_text(key);
    ch->word.lease = lease;
    ch->word_op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    ch->word_op.put = &ch->word;
    ch->txn.n_success = 2;
}

/* HF_BUSY: it is not as it was read. */
static hf_status change_send(struct etcd_conn *ec, const struct change *ch,
                             int64_t deadline, struct hf_error *err)
{
    ProtobufCMessage *answer = NULL;
    hf_status st =
        etcd_call(ec, ETCD_TXN, &ch->txn.base, &pb__txn_response__descriptor,
                  &answer, deadline, err);

    if (!st && !((Pb__TxnResponse *)answer)->succeeded)
        st = HF_BUSY;
    etcd_free(answer);
    return st;
}

/* ---- break ------------------------------------------------------------- */

/* Break or free one holder. */
static hf_status break_one(struct etcd_conn *ec, const char *key,
                           const Pb__KeyValue *kv, struct etcd_words *words,
                           bool force, int64_t deadline, struct hf_error *err)
{
    char notice[ETCD_NOTICE_MAX], value[ETCD_VALUE_MAX];
    struct change ch;
    hf_status st;

    if (!words->token[0] && !force)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "%s: the holder is another program and cannot be told: "
                        "free the lock by force",
                        ec->base.endpoint);
    change_begin(&ch, kv);
    words->broken = true;
    etcd_write_value(words, value, sizeof(value));
    etcd_break_notice(ec, kv->lease, words->token, notice, sizeof(notice));
    ch.put.ignore_lease = 1;
    if (!force)
        change_put(&ch, value);
    if (kv->lease && words->token[0])
        change_tell(&ch, notice, key, kv->lease);
    st = change_send(ec, &ch, deadline, err);
    if (force && (st == HF_UNAVAILABLE || st == HF_UNCERTAIN)) {
        ch.txn.n_success = 1; /* There may be no room for a word. */
        st = change_send(ec, &ch, deadline, err);
        if (st == HF_BUSY)
            st = HF_OK; /* It has gone since, perhaps by the first. */
    }
    return st;
}

/* Break or free all that hold with this fence and are not broken yet; *done:
 * some were.  HF_LOST: nobody holds with it; HF_BUSY: look again. */
static hf_status break_all(struct etcd_conn *ec, const char *key,
                           uint64_t fence, bool force, bool *done,
                           int64_t deadline, struct hf_error *err)
{
    struct etcd_places queue = {.n = 0};
    struct etcd_words words;
    bool any = false, changed = false;
    hf_status st = etcd_queue(ec, key, &queue, deadline, err);
    size_t i;

    if (!st && etcd_holders_fence(queue.kvs, queue.n) != fence)
        st = HF_LOST;
    for (i = 0; i < queue.n && !st; i++) {
        etcd_read_value(queue.kvs[i]->value, &words);
        if (etcd_fence(queue.kvs[i], &words) != fence)
            continue;
        any = true;
        if (words.broken && !force)
            continue;
        st = break_one(ec, key, queue.kvs[i], &words, force, deadline, err);
        changed = changed || !st;
    }
    etcd_places_free(&queue);
    *done = *done || changed;
    if (!st && !any)
        return HF_LOST;
    return !st && changed ? HF_BUSY : st; /* break.c (2) */
}

static hf_status break_until(struct etcd_conn *ec, const char *key,
                             uint64_t fence, bool force, int64_t deadline,
                             struct hf_error *err)
{
    bool done = false;
    hf_status st;

    do {
        if (!hfi_left_ms(deadline))
            return hfi_fail(err, HF_UNCERTAIN, "%s: not in time",
                            ec->base.endpoint);
        st = break_all(ec, key, fence, force, &done, deadline, err);
    } while (st == HF_BUSY);
    if (st == HF_LOST && done)
        return HF_OK; /* It has gone since. */
    return st == HF_LOST ? hfi_fail(err, HF_LOST, "%s: that grant is over",
                                    ec->base.endpoint)
                         : st;
}

hf_status etcd_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *err)
{
    return break_until((struct etcd_conn *)conn, key, fence, false, deadline,
                       err);
}

hf_status etcd_free_grant(struct hfi_conn *conn, const char *key,
                          uint64_t fence, int64_t deadline,
                          struct hf_error *err)
{
    return break_until((struct etcd_conn *)conn, key, fence, true, deadline,
                       err);
}

/* ---- handles ----------------------------------------------------------- */

hf_status etcd_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
                      const struct hf_handle *handle,
                      struct hfi_receipt *receipt, struct hf_error *err)
{
    size_t len = strspn(handle->ref, "~0123456789abcdef-");

    (void)claim;
    if (!len || len >= ETCD_LAST_MAX || handle->ref[len])
        return hfi_fail(err, HF_LOST, "%s: there is no such lock",
                        conn->endpoint);
    memcpy(etcd_ref(receipt)->last, handle->ref, len + 1);
    etcd_ref(receipt)->held = 1;
    receipt->fence = handle->fence;
    return HF_OK; /* The renewal that follows tells whether it is there. */
}

/* What stands in a place that the claim takes over.  It remains with its owner
 * id, which others may have joined. */
static void over_value(const struct hfi_claim *claim, struct etcd_words *words,
                       char *ret, size_t size)
{
    snprintf(words->token, sizeof(words->token), "%s", claim->token);
    if (claim->owner && !words->owner[0])
        snprintf(words->owner, sizeof(words->owner), "%s", claim->owner);
    if (claim->note)
        snprintf(words->note, sizeof(words->note), "%s", claim->note);
    etcd_write_value(words, ret, size);
}

/* Put the claim's token, and its lease, into the place that was read. */
static hf_status over_put(struct etcd_conn *ec, const struct hfi_claim *claim,
                          const Pb__KeyValue *kv, struct etcd_words *words,
                          const char *name, int64_t deadline,
                          struct hf_error *err)
{
    int64_t end = hfi_now() + claim->ttl_ms;
    char value[ETCD_VALUE_MAX];
    struct etcd_lease *lease = NULL;
    struct change ch;
    hf_status st = etcd_lease_get(ec, claim->ttl_ms, &lease, deadline, err);

    if (st)
        return st;
    st = etcd_key_note(ec, lease, claim->token, name, kv->create_revision, end);
    over_value(claim, words, value, sizeof(value));
    change_begin(&ch, kv);
    change_put(&ch, value);
    ch.put.lease = lease->id;
    if (st == HF_NOMEM)
        st = hfi_nomem(err);
    else if (st) /* key.c (3) */
        st = hfi_fail(err, HF_UNCERTAIN, "%s: the handle was taken up too late",
                      ec->base.endpoint);
    else
        st = change_send(ec, &ch, deadline, err);
    if (st == HF_LOST) {
        etcd_lease_gone(ec, lease);
        st = HF_BUSY;
    } else if (st && st != HF_BUSY && st != HF_UNAVAILABLE) {
        etcd_key_doubt(ec, claim->token); /* It may yet be put. */
    }
    etcd_lease_put(ec, lease);
    return st;
}

/* One look, and one step if it is there.  HF_BUSY: look again. */
static hf_status over_once(struct etcd_conn *ec, const struct hfi_claim *claim,
                           const char *token, struct hfi_receipt *receipt,
                           int64_t deadline, struct hf_error *err)
{
    Pb__RangeRequest ask = PB__RANGE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    const Pb__RangeResponse *answer;
    struct etcd_words words;
    char name[ETCD_NAME_MAX];
    hf_status st;

    etcd_name(ec, claim, receipt, name, sizeof(name));
    ask.key = etcd_text(name);
    st = etcd_call(ec, ETCD_RANGE, &ask.base, &pb__range_response__descriptor,
                   &message, deadline, err);
    answer = (const Pb__RangeResponse *)message;
    if (st)
        return st;
    st = HF_LOST;
    if (answer->n_kvs == 1) {
        etcd_read_value(answer->kvs[0]->value, &words);
        if (etcd_fence(answer->kvs[0], &words) != receipt->fence ||
            words.broken)
            st = HF_LOST;
        else if (!strcmp(words.token, claim->token))
            st = HF_OK;
        else if (!strcmp(words.token, token))
            st = over_put(ec, claim, answer->kvs[0], &words, name, deadline,
                          err);
    }
    etcd_free(message);
    return st;
}

hf_status etcd_take_over(struct hfi_conn *conn, const struct hfi_claim *claim,
                         const char *token, struct hfi_receipt *receipt,
                         int64_t deadline, struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    hf_status st = HF_BUSY;

    while (st == HF_BUSY && hfi_left_ms(deadline))
        st = over_once(ec, claim, token, receipt, deadline, err);
    if (st == HF_BUSY)
        return hfi_fail(err, HF_UNCERTAIN, "%s: not in time", conn->endpoint);
    if (st == HF_LOST) {
        etcd_key_forget(ec, claim->token);
        return hfi_fail(err, HF_LOST, "%s: there is no such lock any more",
                        conn->endpoint);
    }
    if (!st)
        etcd_key_forget(ec, token);
    return st;
}
