/* SPDX-License-Identifier: MIT
 *
 * try.c - what a try asks, and what it is told.
 *
 * Each try is one transaction, and which one depends on what we know:
 *
 *   try once     if nothing is below "KEY/": put our key
 *   queue        if our key is not there: put it and look; or put it only, if
 *                we have another that waits far behind: nobody but that one
 *                need be watched
 *   have a place if our key is still the one of that revision: look wait
 *   the same, and who was before us still is: nothing; else look same owner
 *   if nothing changed below "KEY/" since we looked, and the holder
 *                that we saw is still there: put our key, marked as joined and
 *                with the holder's fence
 *
 * "Look" is the queue up to us: all of it in the order of creation for a claim
 * with an owner id, else the last ones before us, the nearest first.  For both
 * etcd reads and sorts the whole queue; a waiter that only wants to know
 * whether it still waits must not cost that.
 *
 * The first claim holds.  One that joined the holders of its owner id passes by
 * those who wait: so nobody else holds while a key "KEY/~..." is there.
 * Programs that do not know of this, whose values are empty, are not passed by.
 * All who hold at once have one fence, that of the first of them, which is
 * lower than those of all who wait.
 *
 * The invariants are those of acquire.c.
 */
#include "try.h"

#include "base/mutant.h"

#include "base/banned.h"

/* How far before us the queue is read: a place behind that is not told. */
#define QUEUE_LIMIT 64

/* ---- what a transaction is made of ------------------------------------- */

static void txn_range(Pb__RangeRequest *range, Pb__RequestOp *op)
{
    pb__range_request__init(range);
    pb__request_op__init(op);
    op->request_case = PB__REQUEST_OP__REQUEST_RANGE;
    op->range = range;
}

static void try_value(const struct etcd_try *t, char *ret, size_t size)
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
    etcd_write_value(&words, ret, size);
}

/* The parts, not yet put together. */
static void txn_parts(struct etcd_try *t, struct etcd_try_txn *x)
{
    pb__txn_request__init(&x->txn);
    pb__compare__init(&x->compare);
    pb__put_request__init(&x->put);
    pb__request_op__init(&x->put_op);
    txn_range(&x->inspect, &x->inspect_op);
    txn_range(&x->own, &x->own_op);
    txn_range(&x->joined, &x->joined_op);
    pb__compare__init(&x->holder);
    try_value(t, x->value, sizeof(x->value));
    x->put.key = x->own.key = etcd_text(t->name);
    x->put.value = etcd_text(x->value);
    x->put.lease = t->lease->id;
    x->put_op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    x->put_op.put = &x->put;
    x->inspect.key = etcd_text(t->dir);
    x->inspect.range_end = etcd_text(t->end);
    x->inspect.sort_order = t->claim->owner ? 1 : 2;
    x->inspect.sort_target = 2;
    x->inspect.keys_only = !t->claim->owner;
    x->inspect.limit = t->claim->owner ? 0 : QUEUE_LIMIT;
    snprintf(x->from, sizeof(x->from), "%s~", t->dir);
    snprintf(x->to, sizeof(x->to), "%s~", t->dir);
    x->joined.key = etcd_text(x->from);
    x->joined.range_end = etcd_end(x->to);
    x->compare.target = x->holder.target = 1;
    x->compare.with_case = PB__COMPARE__WITH_CREATE_REVISION;
    x->holder.with_case = PB__COMPARE__WITH_CREATE_REVISION;
    x->compare.key = etcd_text(t->name);
    etcd_bears(&x->bears, etcd_text(t->name), t->claim->token);
    x->compares[0] = &x->compare;
    x->compares[1] = &x->holder;
    x->txn.compare = x->compares;
    x->txn.n_compare = 1;
    x->txn.success = x->yes;
    x->txn.failure = x->no;
}

static void txn_inspect(struct etcd_try_txn *x, Pb__RequestOp **ops, size_t *n)
{
    ops[(*n)++] = &x->inspect_op;
    ops[(*n)++] = &x->joined_op;
}

/* For a claim that has a place. */
static void txn_registered(struct etcd_try *t, struct etcd_try_txn *x)
{
    Pb__TxnRequest *txn = &x->txn;

    x->compare.create_revision = (int64_t)t->receipt->fence;
    if (etcd_joined(t->receipt)) { /* Its fence is another's revision. */
        x->compare.result = 1;     /* greater */
        x->compare.create_revision = 0;
    }
    if (!t->claim->owner)
        x->inspect.max_create_revision = (int64_t)t->receipt->fence;
    x->compares[1] = &x->bears.above; /* acquire.c (6) */
    x->compares[2] = &x->bears.below;
    x->compares[3] = &x->holder;
    txn->n_compare = 3;
    if (t->claim->owner || !t->predecessor.name[0]) {
        txn_inspect(x, x->yes, &txn->n_success);
        return;
    }
    x->holder.key = etcd_text(t->predecessor.name);
    x->holder.create_revision = t->predecessor.revision;
    txn->n_compare = 4;
    x->no[txn->n_failure++] = &x->own_op;
    txn_inspect(x, x->no, &txn->n_failure);
}

/* Put them together; see the top of this file. */
void etcd_try_make(struct etcd_try *t, struct etcd_try_txn *x)
{
    Pb__TxnRequest *txn = &x->txn;

    txn_parts(t, x);
    if (t->receipt->fence) {
        txn_registered(t, x);
        return;
    }
    x->yes[txn->n_success++] = &x->put_op;
    x->no[txn->n_failure++] = &x->own_op;
    if (t->claim->owner)
        txn_inspect(x, x->no, &txn->n_failure);
    if (t->holder_revision) {
        x->compare.result = 2; /* less */
        x->compare.target = 2;
        x->compare.with_case = PB__COMPARE__WITH_MOD_REVISION;
        x->compare.mod_revision = t->seen + 1;
        x->holder.key = etcd_text(t->holder);
        x->holder.create_revision = t->holder_revision;
        pb__compare__init(&x->unused);
        etcd_compare(&x->unused, etcd_text(t->name), 0);
        x->compares[2] = &x->unused;
        txn->n_compare = 3;
    } else if (t->claim->queue) {
        if (!t->at_queue_tail)
            txn_inspect(x, x->yes, &txn->n_success);
        return;
    }
    x->compare.key = etcd_text(t->dir);
    x->compare.range_end = etcd_text(t->end);
}

/* ---- what it says ------------------------------------------------------ */

/* Is it a place of our owner id?  One that was broken is to come to its end: it
 * is not joined. */
static bool try_same_owner(const struct etcd_try *t, const Pb__KeyValue *kv,
                           struct etcd_words *words)
{
    if (!t->claim->owner)
        return false;
    etcd_read_value(kv->value, words);
    return !strcmp(words->owner, t->claim->owner) && !words->broken;
}

/* A name that is none of ours may be too long or have a NUL: "" stands for
 * it. */
static void try_copy(char *ret, size_t size, ProtobufCBinaryData from)
{
    if (from.len >= size || memchr(from.data, '\0', from.len))
        from.len = 0;
    memcpy(ret, from.data, from.len);
    ret[from.len] = '\0';
}

static void try_predecessor(struct etcd_try *t, const Pb__KeyValue *kv)
{
    try_copy(t->predecessor.name, sizeof(t->predecessor.name), kv->key);
    t->predecessor.revision = kv->create_revision;
}

/* Those before us, the nearest first, if we are there. */
static void try_inspect_back(struct etcd_try *t, const Pb__RangeResponse *queue)
{
    if (!queue->n_kvs || !etcd_is(queue->kvs[0]->key, t->name))
        return;
    t->inspected = true;
    t->revision = queue->kvs[0]->create_revision;
    t->fence = (uint64_t)t->revision;
    t->mine = queue->n_kvs == 1;
    if (queue->n_kvs > 1)
        try_predecessor(t, queue->kvs[1]);
    if (queue->n_kvs < QUEUE_LIMIT)
        t->predecessor.position = (int32_t)queue->n_kvs - 1;
}

/* The queue in order, up to us or to its end. */
static void try_inspect(struct etcd_try *t, const Pb__RangeResponse *queue)
{
    struct etcd_words words;
    size_t i = 0;

    while (i < queue->n_kvs && !etcd_is(queue->kvs[i]->key, t->name))
        i++;
    if (i == queue->n_kvs)
        return;
    etcd_read_value(queue->kvs[i]->value, &words);
    t->inspected = true;
    t->revision = queue->kvs[i]->create_revision;
    t->fence = etcd_fence(queue->kvs[i], &words);
    t->mine = i == 0;
    t->predecessor.position = (int32_t)i;
    if (i > 0)
        try_predecessor(t, queue->kvs[i - 1]);
}

/* May we join?  The first, or one that joined, must be of our owner, and all in
 * the queue must know what joining is. */
static void try_holder(struct etcd_try *t, const Pb__RangeResponse *queue,
                       const Pb__RangeResponse *joined)
{
    const Pb__KeyValue *kv = joined->n_kvs ? joined->kvs[0] : NULL;
    struct etcd_words words, holder;
    size_t i;

    t->holder_revision = 0;
    if (!kv && queue->n_kvs)
        kv = queue->kvs[0];
    if (!kv || t->mine || !try_same_owner(t, kv, &holder))
        return;
    for (i = 0; i < queue->n_kvs; i++) {
        etcd_read_value(queue->kvs[i]->value, &words);
        if (!words.token[0])
            return;
    }
    try_copy(t->holder, sizeof(t->holder), kv->key);
    t->holder_revision = t->holder[0] ? kv->create_revision : 0;
    t->holder_fence = etcd_fence(kv, &holder);
}

/* Somebody joined: then it is ours only if we have joined, too.
 * acquire.c (4) */
static void try_joined(struct etcd_try *t, const Pb__RangeResponse *joined)
{
    if (!joined->n_kvs)
        return;
    if (etcd_joined(t->receipt)) {
        t->mine = t->revision != 0;
        return;
    }
    if (t->mine)
        try_predecessor(t, joined->kvs[0]);
    t->mine = false;
}

/* The answer to one of the reads, or NULL. */
static const Pb__RangeResponse *try_range(const struct etcd_try_txn *x,
                                          const Pb__TxnResponse *answer,
                                          const Pb__RequestOp *op)
{
    Pb__RequestOp *const *ops = answer->succeeded ? x->yes : x->no;
    size_t i;

    for (i = 0; i < answer->n_responses; i++)
        if (ops[i] == op && answer->responses[i]->response_case ==
                                PB__RESPONSE_OP__RESPONSE_RANGE)
            return answer->responses[i]->range;
    return NULL;
}

/* What the transaction answered. */
hf_status etcd_try_read(struct etcd_try *t, const struct etcd_try_txn *x,
                        const Pb__TxnResponse *answer, struct hf_error *err)
{
    size_t n = answer->succeeded ? x->txn.n_success : x->txn.n_failure;
    const Pb__RangeResponse *queue, *own, *joined;
    struct etcd_words words;

    if (!answer->header || answer->header->revision <= 0 ||
        answer->n_responses != n)
        return etcd_bad_reply(t->ec, err);
    t->revision = 0;
    t->mine = t->inspected = t->foreign = false;
    if (t->receipt->fence && answer->succeeded && !n) {
        t->revision =
            (int64_t)t->receipt->fence; /* The predecessor is the same. */
        t->fence = t->receipt->fence;
        return HF_OK;
    }
    t->seen = answer->header->revision;
    if (t->at_queue_tail && answer->succeeded) {
        t->revision = t->seen;
        t->fence = (uint64_t)t->revision;
        return HF_OK;
    }
    t->predecessor = (struct etcd_predecessor){.revision = 0};
    queue = try_range(x, answer, &x->inspect_op);
    own = try_range(x, answer, &x->own_op);
    joined = try_range(x, answer, &x->joined_op);
    if (n && answer->succeeded && x->yes[0] == &x->put_op) {
        t->revision = t->seen;
        t->mine = n == 1; /* It was ours to put. */
    }
    if (own && own->n_kvs == 1) {
        etcd_read_value(own->kvs[0]->value, &words);
        t->foreign = strcmp(words.token, t->claim->token) != 0;
        if (t->foreign)
            return HF_OK;
        t->revision = own->kvs[0]->create_revision;
    }
    t->fence =
        etcd_joined(t->receipt) && !HFI_MUTANT(joined_fence_is_the_revision)
            ? t->holder_fence
            : (uint64_t)t->revision;
    if (queue && !t->claim->owner)
        try_inspect_back(t, queue);
    else if (queue)
        try_inspect(t, queue);
    if (joined)
        try_joined(t, joined);
    t->holder_revision = 0;
    if (queue && joined)
        try_holder(t, queue, joined);
    return HF_OK;
}
