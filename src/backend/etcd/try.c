/* SPDX-License-Identifier: MIT
 *
 * try.c - what a try asks.
 *
 * Each try is one transaction, and which one depends on what we know:
 *
 *   try once     if nothing is below "KEY/" that keeps us out: put our key
 *   queue        if our key is not there, and the key is used in no other way:
 *                put it and look; or put it only, if we have another that waits
 *                far behind: nobody but that one need be watched
 *   have a place if our key is still the one of that revision: look
 *   wait         the same, and who was before us still is: nothing; else look
 *   same owner   if nothing changed below "KEY/" since we looked, and the holder
 *                that we saw is still there: put our key, marked as joined and
 *                with the holder's fence and slot
 *   slot         if our key is as we saw it: put the slot into it
 *
 * Where a slot is put, by a waiter or by a claim that tries once, it is also put
 * into places before ours that have none yet (order.c (2)), if they are as we
 * saw them.  So a waiter that is slow, or dead, keeps its own permit and no
 * other.
 *
 * "Look" is all claims with their values, in the order of creation, or for an
 * exclusive claim without an owner id the names of the last ones before us, the
 * nearest first.  For both etcd reads and sorts the whole queue; a waiter that
 * only wants to know whether it still waits must not cost that.  Nor must a
 * reader that comes to many others: it reads only what is exclusive, or was,
 * since no other reader keeps it out.
 *
 * What keeps a claim out that tries once are other names (names.c): any for an
 * exclusive one and for one with permits, all but those of shared claims for a
 * shared one.  Where a look has shown that these do not keep it out, since what
 * was exclusive was downgraded or not all permits are taken, it is tried once
 * more on the condition that nobody has written there since.
 *
 * Who holds is in order.c.  One that joined the holders of its owner id passes
 * by those who wait.  Programs that do not know of this, whose values are empty,
 * are not passed by.
 *
 * The invariants are those of acquire.c.
 */
#include "try.h"

#include "base/mutant.h"

#include "base/banned.h"

/* ---- what a transaction is made of ------------------------------------- */

static void txn_range(Pb__RangeRequest *range, Pb__RequestOp *op)
{
    pb__range_request__init(range);
    pb__request_op__init(op);
    op->request_case = PB__REQUEST_OP__REQUEST_RANGE;
    op->range = range;
}

static int32_t try_slot(const struct etcd_try *t)
{
    if (t->holder_revision)
        return t->holder_slot;
    if (t->slotting || t->admitted)
        return t->slot;
    return t->claim->queue ? -1 : 0;
}

void etcd_try_value(const struct etcd_try *t, int32_t slot, char *ret,
                    size_t size)
{
    const struct hfi_claim *claim = t->claim;
    struct etcd_words words = {.broken = false};

    snprintf(words.token, sizeof(words.token), "%s", claim->token);
    if (claim->owner)
        snprintf(words.owner, sizeof(words.owner), "%s", claim->owner);
    if (claim->note)
        snprintf(words.note, sizeof(words.note), "%s", claim->note);
    words.fence =
        t->holder_revision && !HFI_MUTANT(joined_fence_is_the_revision)
            ? t->holder_fence
            : 0;
    words.shared = claim->shared;
    words.permit = claim->permits > 0;
    words.slot = slot;
    etcd_write_value(&words, ret, size);
}

/* "KEY/" and what follows there. */
static ProtobufCBinaryData txn_text(const struct etcd_try *t,
                                    struct etcd_try_txn *x, const char *more)
{
    char *text = x->texts[x->ntexts++];

    snprintf(text, sizeof(x->texts[0]), "%.*s%.15s", ETCD_NAME_MAX - 1, t->dir,
             more);
    return etcd_text(text);
}

/* One more condition, on what was made when. */
static Pb__Compare *txn_if(struct etcd_try_txn *x, ProtobufCBinaryData key,
                           int64_t made)
{
    Pb__Compare *compare = &x->all[x->txn.n_compare];

    pb__compare__init(compare);
    etcd_compare(compare, key, made);
    x->compares[x->txn.n_compare++] = compare;
    return compare;
}

/* There is nothing from a name to another; or `since` then nothing was written
 * there, if that is not 0. */
static void txn_if_none(struct etcd_try_txn *x, ProtobufCBinaryData from,
                        ProtobufCBinaryData to, int64_t since)
{
    Pb__Compare *compare = txn_if(x, from, 0);

    compare->range_end = to;
    if (!since)
        return;
    compare->result = 2; /* less */
    compare->target = 2; /* when it was last written */
    compare->with_case = PB__COMPARE__WITH_MOD_REVISION;
    compare->mod_revision = since + 1;
}

/* The parts, not yet put together. */
static void txn_parts(struct etcd_try *t, struct etcd_try_txn *x)
{
    bool full = etcd_try_full(t);

    pb__txn_request__init(&x->txn);
    pb__put_request__init(&x->put);
    pb__request_op__init(&x->put_op);
    txn_range(&x->inspect, &x->inspect_op);
    txn_range(&x->own, &x->own_op);
    txn_range(&x->joined, &x->joined_op);
    txn_range(&x->used, &x->used_op);
    x->slot = try_slot(t);
    etcd_try_value(t, x->slot, x->value, sizeof(x->value));
    x->ntexts = 0;
    x->grants = false;
    x->put.key = x->own.key = etcd_text(t->name);
    x->put.value = etcd_text(x->value);
    x->put.lease = t->lease->id;
    x->put_op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    x->put_op.put = &x->put;
    x->inspect.key = etcd_text(t->dir);
    x->inspect.range_end = etcd_text(t->end);
    x->inspect.sort_order = full ? 1 : 2;
    x->inspect.sort_target = 2;
    x->inspect.keys_only = !full;
    x->inspect.limit = full ? 0 : ETCD_QUEUE_LIMIT;
    x->txn.compare = x->compares;
    x->txn.success = x->yes;
    x->txn.failure = x->no;
}

/* Read the queue. */
static void txn_inspect(struct etcd_try *t, struct etcd_try_txn *x,
                        Pb__RequestOp **ops, size_t *n)
{
    ops[(*n)++] = &x->inspect_op;
    if (etcd_try_full(t))
        return;
    x->joined.key = txn_text(t, x, "~");
    x->joined.range_end = txn_text(t, x, "\x7f");
    ops[(*n)++] = &x->joined_op;
}

/* Read all but those who share, of whom there may be many. */
static void txn_inspect_writers(struct etcd_try *t, struct etcd_try_txn *x)
{
    x->joined.key = etcd_text(t->dir);
    x->joined.range_end = txn_text(t, x, "R");
    x->used.key = txn_text(t, x, "S");
    x->used.range_end = etcd_text(t->end);
    x->yes[x->txn.n_success++] = &x->joined_op;
    x->yes[x->txn.n_success++] = &x->used_op;
}

/* Why was our key not put?  Is it there, or what else? */
static void txn_why_not(struct etcd_try *t, struct etcd_try_txn *x)
{
    x->no[x->txn.n_failure++] = &x->own_op;
    if (etcd_try_full(t)) {
        txn_inspect(t, x, x->no, &x->txn.n_failure);
        return;
    }
    x->used.key = txn_text(t, x, "S");
    x->used.range_end = txn_text(t, x, "T");
    x->used.keys_only = 1;
    x->used.limit = 1;
    x->no[x->txn.n_failure++] = &x->used_op;
}

/* ---- the transactions -------------------------------------------------- */

/* For a claim that has a place. */
static void txn_registered(struct etcd_try *t, struct etcd_try_txn *x)
{
    Pb__TxnRequest *txn = &x->txn;
    Pb__Compare *made =
        txn_if(x, etcd_text(t->name), (int64_t)t->receipt->fence);

    if (etcd_joined(t->receipt)) { /* Its fence is another's revision. */
        made->result = 1;          /* greater */
        made->create_revision = 0;
    }
    if (!etcd_try_full(t))
        x->inspect.max_create_revision = (int64_t)t->receipt->fence;
    etcd_bears(&x->bears, etcd_text(t->name), t->claim->token);
    x->compares[txn->n_compare++] = &x->bears.above; /* acquire.c (6) */
    x->compares[txn->n_compare++] = &x->bears.below;
    if (etcd_try_full(t) || !t->predecessor.name[0]) {
        x->yes[txn->n_success++] = &x->own_op; /* acquire.c (9) */
        txn_inspect(t, x, x->yes, &txn->n_success);
        return;
    }
    txn_if(x, etcd_text(t->predecessor.name), t->predecessor.revision);
    x->no[txn->n_failure++] = &x->own_op;
    txn_inspect(t, x, x->no, &txn->n_failure);
}

/* Our key is put, and with it slots into places before it. */
static void txn_grant(struct etcd_try *t, struct etcd_try_txn *x)
{
    Pb__Compare *same;
    size_t i;

    x->grants = true;
    x->yes[x->txn.n_success++] = &x->put_op;
    for (i = 0; i < t->nhelps; i++) {
        same = txn_if(x, etcd_text(t->helps[i].name), 0);
        same->target = 2; /* when it was last written; equal */
        same->with_case = PB__COMPARE__WITH_MOD_REVISION;
        same->mod_revision = t->helps[i].written;
        pb__put_request__init(&x->helps[i]);
        pb__request_op__init(&x->help_ops[i]);
        x->helps[i].key = etcd_text(t->helps[i].name);
        x->helps[i].value = etcd_text(t->helps[i].value);
        x->helps[i].ignore_lease = 1;
        x->help_ops[i].request_case = PB__REQUEST_OP__REQUEST_PUT;
        x->help_ops[i].put = &x->helps[i];
        x->yes[x->txn.n_success++] = &x->help_ops[i];
    }
    txn_why_not(t, x);
}

/* Its turn has come: write the slot into its place. */
static void txn_slot(struct etcd_try *t, struct etcd_try_txn *x)
{
    txn_if(x, etcd_text(t->name), (int64_t)t->receipt->fence);
    txn_if_none(x, etcd_text(t->name), (ProtobufCBinaryData){0, NULL},
                t->slotting);
    txn_grant(t, x);
}

static void txn_join(struct etcd_try *t, struct etcd_try_txn *x)
{
    txn_if_none(x, etcd_text(t->dir), etcd_text(t->end), t->seen);
    txn_if(x, etcd_text(t->holder), t->holder_revision);
    txn_if(x, etcd_text(t->name), 0);
    txn_grant(t, x);
}

/* backend.h (13) */
static void txn_queue(struct etcd_try *t, struct etcd_try_txn *x)
{
    char kind[16];

    txn_if(x, etcd_text(t->name), 0);
    if (t->claim->permits) {
        snprintf(kind, sizeof(kind), "S%d.", (int)t->claim->permits);
        txn_if_none(x, etcd_text(t->dir), txn_text(t, x, kind), 0);
        kind[strlen(kind) - 1]++;
        txn_if_none(x, txn_text(t, x, kind), etcd_text(t->end), 0);
    } else {
        txn_if_none(x, txn_text(t, x, "S"), txn_text(t, x, "T"), 0);
    }
    x->yes[x->txn.n_success++] = &x->put_op;
    if (etcd_try_is_reader(t))
        txn_inspect_writers(t, x);
    else if (!t->at_queue_tail)
        txn_inspect(t, x, x->yes, &x->txn.n_success);
    txn_why_not(t, x);
}

static void txn_once(struct etcd_try *t, struct etcd_try_txn *x)
{
    int64_t since = t->admitted ? t->seen : 0;

    if (t->claim->shared) {
        txn_if_none(x, etcd_text(t->dir), txn_text(t, x, "R"), since);
        txn_if_none(x, txn_text(t, x, "S"), etcd_text(t->end), since);
    } else {
        txn_if_none(x, etcd_text(t->dir), etcd_text(t->end), since);
    }
    if (etcd_try_full(t))
        txn_if(x, etcd_text(t->name), 0);
    txn_grant(t, x);
}

/* Put them together; see the top of this file. */
void etcd_try_make(struct etcd_try *t, struct etcd_try_txn *x)
{
    txn_parts(t, x);
    if (t->slotting)
        txn_slot(t, x);
    else if (t->receipt->fence)
        txn_registered(t, x);
    else if (t->holder_revision)
        txn_join(t, x);
    else if (t->claim->queue)
        txn_queue(t, x);
    else
        txn_once(t, x);
}
