/* SPDX-License-Identifier: MIT
 *
 * acquire.c - taking: a try, from the lease that it needs to its verdict.
 *
 * A try is one transaction (try.c), or several where the first shows that
 * another is due at once: the lease is gone, there is a new watch, the holder is
 * the same owner, it is our turn to have a slot, or those who are there let us
 * in although they seemed not to.
 *
 * INVARIANTS
 *  (1) A grant is read from a transaction in which our own key exists, so its
 *      lease was alive then; and the lease was proven for the whole ttl by a
 *      message that was sent no earlier than this try, or is sure that long.
 *  (2) A try that is not queued writes nothing unless it holds.
 *  (3) A place whose lease is gone is gone; the claim queues again at the end,
 *      under another name.
 *  (4) While a joined key is there, only its owner id holds.
 *  (5) The fence is the revision in which our key was made, or the fence of
 *      those whom it joined: all who hold at once have one fence.
 *  (6) A key is ours if it has our name and bears our token: a key of ours that
 *      was detached may have been taken up by another client, and keeps its
 *      name.
 *  (7) A claim whose key may be removed by a request that had no answer takes
 *      another name before it asks again (key.c (3)).
 *  (8) That the key is used in no other way (backend.h (13)) is a condition of
 *      the transaction that puts our key.
 *  (9) A place is granted when those before it go, whether its claim looks or
 *      not, and may be broken before it does.  So a transaction that may find
 *      an earlier key of ours granted reads it, too; one that was broken is
 *      never told as held.  The claim is over then: its token stands in the
 *      notice of the break (wait.c), which may come late.
 */
#include "try.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* How soon a waiter asks again that could not have its watch. */
#define UNWATCHED_MS 500

/* Begin anew under another name: this one may yet be removed, or is another's.
 * What is left under it is released by the core.  (6), (7) */
static hf_status acquire_rename(struct etcd_try *t, struct hf_error *err)
{
    if (etcd_key_is_known(t->ec, t->claim->token) &&
        !hfi_left(&t->ec->base, t->claim, t->receipt))
        return hfi_nomem(err);
    etcd_key_forget(t->ec, t->claim->token);
    etcd_own(t->receipt)->last[0] = '\0';
    t->receipt->fence = 0;
    return HF_LOST;
}

/* Name our key, after the lease that it hangs on.  (3) */
static hf_status acquire_name(struct etcd_try *t, struct hf_error *err)
{
    struct etcd_grant *own = etcd_own(t->receipt);
    const char *had = strchr(own->last, '-');
    char lease[18];

    snprintf(lease, sizeof(lease), "%" PRIx64 "-", (uint64_t)t->lease->id);
    if (!had ||
        strncmp(lease, etcd_last_lease(own->last), strlen(lease)) != 0) {
        if (etcd_key_is_known(t->ec, t->claim->token))
            return acquire_rename(t, err);
        t->receipt->fence = 0;
    }
    if (!t->receipt->fence)
        etcd_last(own->last, t->claim, t->holder_revision != 0, t->lease->id,
                  had ? (uint32_t)strtoul(had + 1, NULL, 16)
                      : etcd_number(t->ec));
    etcd_name(t->ec, t->claim, t->receipt, t->name, sizeof(t->name));
    return HF_OK;
}

hf_status etcd_try_exchange(struct etcd_try *t, const Pb__TxnRequest *txn,
                            struct etcd_batch *batch, size_t proof,
                            Pb__TxnResponse **ret, struct hf_error *err)
{
    size_t at = etcd_add(batch, ETCD_TXN, &txn->base);
    ProtobufCMessage *answer = NULL;
    hf_status st = etcd_send(t->ec, batch, t->limit, err);

    if (!st)
        st = etcd_answer(t->ec, batch, at, &pb__txn_response__descriptor,
                         &answer, err);
    *ret = (Pb__TxnResponse *)answer;
    if (!st) {
        t->alive = etcd_lease_proven(t->ec, t->lease, batch, proof,
                                     (*ret)->header, t->sent, err);
        if (t->alive == HF_UNAVAILABLE || t->alive == HF_DENIED)
            t->alive = hfi_restate(err, HF_UNCERTAIN); /* The rest was done. */
    }
    return st;
}

/* One transaction.  HF_LOST: the lease is gone. */
static hf_status acquire_send(struct etcd_try *t, struct hf_error *err)
{
    struct etcd_batch batch = {.n = 0};
    Pb__TxnResponse *answer = NULL;
    struct etcd_try_txn x;
    size_t proof;
    hf_status st;

    memset(&x, 0, offsetof(struct etcd_try_txn, value));
    etcd_try_make(t, &x);
    proof =
        etcd_lease_prove(t->ec, t->lease, t->sent, t->claim->ttl_ms, &batch);
    t->alive = HF_OK;
    if (batch.n || batch.failed || t->receipt->fence)
        st = etcd_try_exchange(t, &x.txn, &batch, proof, &answer, err);
    else
        st = etcd_txn(t->ec, &x.txn, t->dir, &answer, t->limit, err);
    if (st == HF_LOST)
        etcd_lease_gone(t->ec, t->lease);
    if (!st)
        st = etcd_try_read(t, &x, answer, err);
    if (!st)
        st = t->alive;
    etcd_free(answer);
    etcd_batch_free(&batch);
    return st;
}

/* What came of it, for those who ask later. */
static void acquire_note(struct etcd_try *t)
{
    struct hfi_receipt *receipt = t->receipt;

    receipt->fence = t->revision ? t->fence : 0;
    receipt->registered = t->revision != 0;
    if (t->revision) {
        etcd_key_note(t->ec, t->lease, t->claim->token, t->name, t->revision);
        etcd_key_set_predecessor(t->ec, t->claim->token, &t->predecessor);
    } else if (etcd_key_done(t->ec, t->claim->token, etcd_own(receipt)->last,
                             true)) {
        etcd_own(receipt)->last[0] = '\0';
    }
}

/* Is one of ours so far behind that we need not look who is before us?  Its
 * place has been told, so ours comes after it. */
static void acquire_behind(struct etcd_try *t)
{
    t->at_queue_tail = false;
    if (t->receipt->fence || !t->claim->queue || etcd_try_full(t))
        return;
    etcd_key_queue_tail(t->ec, t->dir, &t->predecessor);
    t->at_queue_tail = t->predecessor.name[0] != '\0';
}

/* One transaction, on the lease that was got for it. */
static hf_status acquire_leased(struct etcd_try *t, struct hf_error *err)
{
    struct hfi_receipt *receipt = t->receipt;
    hf_status st = acquire_name(t, err);

    if (st)
        return st;
    st = etcd_key_note(t->ec, t->lease, t->claim->token, t->name,
                       etcd_revision(receipt));
    if (st == HF_NOMEM)
        return hfi_nomem(err);
    if (st == HF_LOST)
        return acquire_rename(t, err);
    acquire_behind(t);
    st = acquire_send(t, err);
    if (st) {
        /* A final failure may come after the deed. */
        if (st != HF_LOST && st != HF_UNAVAILABLE && st != HF_UNCERTAIN)
            receipt->registered = true;
        if (st != HF_LOST && st != HF_UNAVAILABLE)
            etcd_key_doubt(t->ec, t->claim->token);
        if (st == HF_UNAVAILABLE && !receipt->fence &&
            etcd_key_done(t->ec, t->claim->token, etcd_own(receipt)->last,
                          true))
            etcd_own(receipt)->last[0] = '\0'; /* Nothing was sent. */
        return st;
    }
    if (t->foreign)
        return acquire_rename(t, err);
    if (!t->revision && receipt->fence) {
        receipt->fence = 0;
        return HF_LOST;
    }
    acquire_note(t);
    return HF_OK;
}

/* One transaction.  HF_LOST: what we had is gone, so begin anew. */
static hf_status acquire_once(struct etcd_try *t, struct hf_error *err)
{
    hf_status st;

    t->sent = hfi_now();
    t->limit = t->deadline;
    if (t->claim->queue && t->ec->nends > 1) /* It will be asked again. */
        t->limit = t->sent + hfi_left_ms(t->deadline) / 2;
    st = etcd_lease_get(t->ec, t->claim->ttl_ms, &t->lease, t->limit, err);
    if (st)
        return st;
    st = acquire_leased(t, err);
    etcd_lease_put(t->ec, t->lease);
    return st;
}

/* Remove the key that the claim has, and take another name.  A removal that had
 * no answer leaves the claim as it was: see acquire_leased(). */
static hf_status acquire_leave(struct etcd_try *t, struct hf_error *err)
{
    hf_status st =
        etcd_release(&t->ec->base, t->claim, t->receipt, t->deadline, err);

    if (st && st != HF_LOST)
        return st;
    st = acquire_rename(t, err);
    return st == HF_LOST ? HF_OK : st;
}

/* Join the holders of our owner id, leaving the place that we had. */
static bool acquire_joins(struct etcd_try *t, hf_status *st,
                          struct hf_error *err)
{
    if (t->receipt->fence)
        *st = acquire_leave(t, err);
    return !*st;
}

/* Is there another transaction to be sent at once? */
static bool acquire_goes_on(struct etcd_try *t, hf_status *st,
                            struct hf_error *err)
{
    bool fresh = false;

    if (*st == HF_LOST) {
        t->holder_revision = t->slotting = 0;
        t->nhelps = 0;
        t->admitted = false;
        return true;
    }
    if (*st == HF_UNAVAILABLE && t->spare && hfi_left_ms(t->deadline)) {
        t->spare--; /* Another member may take it. */
        return true;
    }
    if (*st || t->mine || t->broken || t->refused)
        return false;
    if (t->holder_revision)
        return acquire_joins(t, st, err);
    if (t->slotting || t->admitted)
        return true;
    if (t->claim->queue && !t->revision)
        return true; /* There was nobody left to join. */
    if (t->revision && !t->inspected && !t->predecessor.name[0])
        return true; /* An earlier try had put it: where does it stand? */
    if (t->revision && etcd_own(t->receipt)->watched)
        *st =
            etcd_watch_predecessor(t->ec, t->claim, t->receipt, &t->predecessor,
                                   t->sent, t->seen, &fresh, t->deadline, err);
    /* A waiter without a watch asks again soon: that is no failure. */
    if (*st)
        hfi_expect(&t->ec->base, t->claim->key, t->claim->token, UNWATCHED_MS);
    *st = HF_OK;
    return fresh;
}

/* The key is in use in another way, or has been put to none that makes sense.
 * (8) */
static hf_status acquire_refused(const struct etcd_try *t, struct hf_error *err)
{
    if (t->refused == TRY_OTHER_USE)
        return hfi_fail_use(err, t->claim, t->in_use);
    if (t->refused == TRY_OTHER_MODE)
        return hfi_fail_other_mode(err, t->claim);
    return hfi_fail(err, HF_INVALID,
                    "%s: below \"%s\" is a key that looks like a permit and is "
                    "none",
                    t->ec->base.endpoint, t->dir);
}

hf_status etcd_try_acquire(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, struct hfi_answer *busy,
                           int64_t deadline, struct hf_error *err)
{
    struct etcd_try t = {.ec = (struct etcd_conn *)conn,
                         .claim = claim,
                         .receipt = receipt,
                         .deadline = deadline};
    hf_status st;

    t.spare = t.ec->nends - 1;
    if (!receipt->fence && etcd_joined(receipt)) {
        /* Joining had no answer: it will not be asked for under that name. */
        st = acquire_leave(&t, err);
        if (st)
            return st;
    }
    etcd_key_get_predecessor(t.ec, claim->token, &t.predecessor);
    etcd_dir(t.ec, claim->key, t.dir, sizeof(t.dir));
    memcpy(t.end, t.dir, sizeof(t.end));
    etcd_end(t.end);
    do {
        if (hfi_left_ms(deadline))
            st = acquire_once(&t, err);
        else
            st = hfi_fail(err, HF_UNCERTAIN,
                          "%s: the answers took all of the time, and none said "
                          "who has it: give it more with timeout=",
                          conn->endpoint);
    } while (acquire_goes_on(&t, &st, err));
    hfi_free(t.helps);
    if (!st && t.broken) /* The core gives it back.  (9) */
        return hfi_fail(err, HF_LOST,
                        "%s: this claim was broken before it was told that it "
                        "is granted",
                        conn->endpoint);
    if (!st && t.refused)
        st = acquire_refused(&t, err);
    if (st)
        return st;
    busy->position = t.predecessor.position;
    receipt->slot = t.slot;
    etcd_own(receipt)->held = t.mine;
    return t.mine ? HF_OK : HF_BUSY;
}
