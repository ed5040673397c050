/* SPDX-License-Identifier: MIT
 *
 * part.c - giving back a part: the right to be alone, or only the use of it.
 *
 * Both change the value of the holder's key, which keeps its name and its
 * revision, and so its rank and its fence.
 *
 * INVARIANTS
 *  (1) The key is changed only if it was not written since it was read
 *      (change.c); a change without an answer that arrives late finds another
 *      key than the one that it is meant for, or does what is asked for again.
 *  (2) A lock is downgraded only if nobody has joined it since it was read, and
 *      nobody joins what has changed since it was seen (try.c).
 *  (3) What is kept hangs on a lease of its own, which nobody renews and no
 *      client revokes once the key is on it.
 */
#include "change.h"

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

static hf_status part_not_ours(struct etcd_conn *ec, struct hf_error *err)
{
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    ec->base.endpoint);
}

/* Is this key the grant of the claim? */
static bool part_is_ours(const struct hfi_claim *claim,
                         const struct hfi_receipt *receipt,
                         const Pb__KeyValue *kv, struct etcd_words *words)
{
    etcd_read_value(kv->value, words);
    return !strcmp(words->token, claim->token) && !words->broken &&
           etcd_fence(kv, words) == receipt->fence;
}

/* Do it until the key is as it was read, or there is no more time. */
typedef hf_status part_fn(struct etcd_conn *, const struct hfi_claim *,
                          struct hfi_receipt *, int64_t ms, int64_t deadline,
                          struct hf_error *);

static hf_status part_until(part_fn *once, struct etcd_conn *ec,
                            const struct hfi_claim *claim,
                            struct hfi_receipt *receipt, int64_t ms,
                            int64_t deadline, struct hf_error *err)
{
    hf_status st = HF_BUSY;

    while (st == HF_BUSY && hfi_left_ms(deadline))
        st = once(ec, claim, receipt, ms, deadline, err);
    if (st == HF_BUSY)
        return hfi_fail(err, HF_UNAVAILABLE, "%s: not in time",
                        ec->base.endpoint);
    return st;
}

/* ---- downgrade --------------------------------------------------------- */

/* The place of the claim among all; HF_LOST: it has none.  Alone: nobody else
 * has its fence. */
static hf_status downgrade_find(const struct etcd_places *queue,
                                const char *name, size_t *at)
{
    for (*at = 0; *at < queue->n; ++*at)
        if (etcd_is(queue->kvs[*at]->key, name))
            return HF_OK;
    return HF_LOST;
}

/* Has somebody joined us, or have we joined? */
static bool downgrade_is_joined(const struct etcd_place *places, size_t n,
                                size_t at)
{
    size_t i;

    for (i = 0; i < n; i++)
        if (i != at && places[i].fence == places[at].fence)
            return true;
    return false;
}

/* part.c (2) */
static hf_status downgrade_put(struct etcd_conn *ec, const Pb__KeyValue *kv,
                               const char *dir, int64_t seen,
                               struct etcd_words *words, int64_t deadline,
                               struct hf_error *err)
{
    char from[ETCD_NAME_MAX + 1], to[ETCD_NAME_MAX + 1];
    char value[ETCD_VALUE_MAX];
    Pb__Compare joined = PB__COMPARE__INIT, *compares[3];
    struct etcd_change ch;

    words->shared = true;
    etcd_write_value(words, value, sizeof(value));
    etcd_change_begin(&ch, kv);
    etcd_change_put(&ch, value);
    ch.put.ignore_lease = 1;
    snprintf(from, sizeof(from), "%s~", dir);
    snprintf(to, sizeof(to), "%s~", dir);
    joined.key = etcd_text(from);
    joined.range_end = etcd_end(to);
    joined.result = 2; /* less */
    joined.target = 2; /* when it was last written */
    joined.with_case = PB__COMPARE__WITH_MOD_REVISION;
    joined.mod_revision = seen + 1;
    memcpy(compares, ch.compares, sizeof(ch.compares));
    compares[2] = &joined;
    ch.txn.compare = compares;
    ch.txn.n_compare = 3;
    return etcd_change_send(ec, &ch, deadline, err);
}

/* One look, and one step.  HF_BUSY: look again. */
static hf_status downgrade_once(struct etcd_conn *ec,
                                const struct hfi_claim *claim,
                                struct hfi_receipt *receipt, int64_t ms,
                                int64_t deadline, struct hf_error *err)
{
    char dir[ETCD_NAME_MAX], name[ETCD_NAME_MAX];
    struct etcd_places queue = {.n = 0};
    struct etcd_place *places = NULL;
    struct etcd_words words;
    size_t at = 0;
    hf_status st;

    (void)ms;
    etcd_dir(ec, claim->key, dir, sizeof(dir));
    etcd_name(ec, claim, receipt, name, sizeof(name));
    st = etcd_queue(ec, claim->key, &queue, deadline, err);
    if (st == HF_UNCERTAIN)
        st = hfi_restate(err, HF_UNAVAILABLE); /* Nothing was changed. */
    if (!st && !(places = etcd_order(queue.kvs, queue.n, queue.dir, NULL)))
        st = hfi_nomem(err);
    if (!st &&
        (downgrade_find(&queue, name, &at) ||
         !part_is_ours(claim, receipt, queue.kvs[at], &words) || words.kept))
        st = part_not_ours(ec, err);
    if (!st && !words.shared) {
        if (downgrade_is_joined(places, queue.n, at))
            st = hfi_fail_joined(err, claim);
        else
            st = downgrade_put(ec, queue.kvs[at], dir, queue.revision, &words,
                               deadline, err);
    }
    hfi_free(places);
    etcd_places_free(&queue);
    return st;
}

hf_status etcd_downgrade(struct hfi_conn *conn, const struct hfi_claim *claim,
                         struct hfi_receipt *receipt, int64_t deadline,
                         struct hf_error *err)
{
    return part_until(downgrade_once, (struct etcd_conn *)conn, claim, receipt,
                      0, deadline, err);
}

/* ---- keep -------------------------------------------------------------- */

/* A lease of so long, which nobody renews. */
static hf_status keep_lease(struct etcd_conn *ec, int64_t ms, int64_t *ret,
                            int64_t deadline, struct hf_error *err)
{
    Pb__LeaseGrantRequest ask = PB__LEASE_GRANT_REQUEST__INIT;
    ProtobufCMessage *message = NULL;
    hf_status st;

    ask.ttl = ms / 1000 + (ms % 1000 != 0);
    st = etcd_call(ec, ETCD_GRANT, &ask.base,
                   &pb__lease_grant_response__descriptor, &message, deadline,
                   err);
    if (!st) {
        *ret = ((Pb__LeaseGrantResponse *)message)->id;
        if (!*ret || ((Pb__LeaseGrantResponse *)message)->ttl < ask.ttl)
            st = etcd_bad_reply(ec, err);
    }
    etcd_free(message);
    /* A lease that nobody knows lapses by itself. */
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

/* It was not needed. */
static void keep_revoke(struct etcd_conn *ec, int64_t id, int64_t deadline)
{
    Pb__LeaseRevokeRequest ask = PB__LEASE_REVOKE_REQUEST__INIT;
    ProtobufCMessage *message = NULL;

    ask.id = id;
    etcd_call(ec, ETCD_REVOKE, &ask.base,
              &pb__lease_revoke_response__descriptor, &message, deadline, NULL);
    etcd_free(message);
}

static hf_status keep_put(struct etcd_conn *ec, const Pb__KeyValue *kv,
                          struct etcd_words *words, int64_t ms,
                          int64_t deadline, struct hf_error *err)
{
    char value[ETCD_VALUE_MAX];
    struct etcd_change ch;
    int64_t lease = 0;
    hf_status st = keep_lease(ec, ms, &lease, deadline, err);

    if (st)
        return st;
    words->kept = true;
    etcd_write_value(words, value, sizeof(value));
    etcd_change_begin(&ch, kv);
    etcd_change_put(&ch, value);
    ch.put.lease = lease;
    st = etcd_change_send(ec, &ch, deadline, err);
    if (st == HF_LOST) /* of the lease */
        st = HF_BUSY;
    else if (st == HF_BUSY || st == HF_UNAVAILABLE)
        keep_revoke(ec, lease, deadline); /* part.c (3) */
    return st;
}

/* One look, and one step.  HF_BUSY: look again. */
static hf_status keep_once(struct etcd_conn *ec, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, int64_t ms,
                           int64_t deadline, struct hf_error *err)
{
    ProtobufCMessage *message = NULL;
    const Pb__KeyValue *kv;
    struct etcd_words words;
    char name[ETCD_NAME_MAX];
    hf_status st;

    etcd_name(ec, claim, receipt, name, sizeof(name));
    st = etcd_change_read(ec, name, &message, &kv, deadline, err);
    if (st == HF_UNCERTAIN)
        st = hfi_restate(err, HF_UNAVAILABLE);
    if (!st && (!kv || !part_is_ours(claim, receipt, kv, &words)))
        st = part_not_ours(ec, err);
    if (!st && !words.kept)
        st = keep_put(ec, kv, &words, ms, deadline, err);
    etcd_free(message);
    return st;
}

hf_status etcd_keep(struct hfi_conn *conn, const struct hfi_claim *claim,
                    struct hfi_receipt *receipt, int64_t ms, int64_t deadline,
                    struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    hf_status st = part_until(keep_once, ec, claim, receipt, ms, deadline, err);

    if (st)
        return st;
    receipt->registered =
        claim->doubt && etcd_may_come(ec, claim, receipt, deadline);
    if (!receipt->registered)
        etcd_key_forget(ec, claim->token); /* and its name, which is in use */
    return HF_OK;
}
