/* SPDX-License-Identifier: MIT
 *
 * etcd_lock.c - taking and giving back.
 *
 * Each try is one transaction, and which one depends on what we know:
 *
 *   try once     if nothing is below "KEY/": put our key; else look
 *   queue        if our key is not there: put it and look; else look
 *   have a place if our key is still the one of that revision: look
 *   same owner   if nothing came below "KEY/" since we looked, and the holder
 *                that we saw is still there: put our key, marked as joined
 *
 * "Look" is the queue in the order of creation.  Who is first holds, and so
 * does one whose predecessors all carry its owner id.  One that joined the
 * holders of its owner id passes by those who wait: so nobody else holds while
 * a key "KEY/~..." is there.  Programs that do not know of this, whose values
 * are empty, are not passed by.
 *
 * INVARIANTS
 *  (1) A grant is read from a transaction in which our own key exists, so its
 *      lease was alive then; and the lease was proven for the whole ttl by a
 *      message that was sent no earlier than this try, or is sure that long.
 *  (2) A try that is not queued writes nothing unless it holds.
 *  (3) A place whose lease is gone is gone; the claim queues again at the end,
 *      under another name.
 *  (4) While a joined key is there, only its owner id holds.
 *  (5) The fence is the revision in which our key was made.
 */
#include "etcd.h"

#include <inttypes.h>

#include "../env.h"

#include "../banned.h"

/* How far the queue is read: a place behind is not told. */
#define QUEUE_LIMIT 64

/* One try. */
struct take {
    struct etcd_conn *ec;
    const struct hfi_claim *claim;
    struct hfi_grant *grant;
    struct etcd_lease *lease;
    int64_t sent, deadline;
    int64_t limit;              /* of one exchange */
    size_t spare;               /* members that may yet be asked */
    int64_t seen;               /* the same owner has it: as of this revision */
    char holder[ETCD_NAME_MAX]; /* in this key, ... */
    int64_t holder_revision;    /* ... which was made then; 0: it has not */
    char dir[ETCD_NAME_MAX], end[ETCD_NAME_MAX], name[ETCD_NAME_MAX];

    /* what came of it */
    int64_t revision;           /* of our key; 0: it is not there */
    bool mine;                  /* we hold, or would if our key were there */
    int32_t place;              /* 0: unknown */
    char before[ETCD_NAME_MAX]; /* who is before us; "": unknown */
};

/* ---- what a transaction is made of ------------------------------------- */

struct take_txn {
    Pb__TxnRequest txn;
    Pb__Compare compare, holder, *compares[2];
    Pb__PutRequest put;
    Pb__RangeRequest look, own, joined;
    Pb__RequestOp put_op, look_op, own_op, joined_op, *yes[3], *no[3];
    char value[ETCD_VALUE_MAX], from[ETCD_NAME_MAX + 1];
    char to[ETCD_NAME_MAX + 1];
};

static void txn_range(Pb__RangeRequest *range, Pb__RequestOp *op)
{
    pb__range_request__init(range);
    pb__request_op__init(op);
    op->request_case = PB__REQUEST_OP__REQUEST_RANGE;
    op->range = range;
}

/* The parts, not yet put together. */
static void txn_parts(struct take *t, struct take_txn *x)
{
    pb__txn_request__init(&x->txn);
    pb__compare__init(&x->compare);
    pb__put_request__init(&x->put);
    pb__request_op__init(&x->put_op);
    txn_range(&x->look, &x->look_op);
    txn_range(&x->own, &x->own_op);
    txn_range(&x->joined, &x->joined_op);
    pb__compare__init(&x->holder);
    etcd_value(t->claim, x->value, sizeof(x->value));
    x->put.key = x->own.key = etcd_text(t->name);
    x->put.value = etcd_text(x->value);
    x->put.lease = t->lease->id;
    x->put_op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    x->put_op.put = &x->put;
    x->own.keys_only = 1;
    x->look.key = etcd_text(t->dir);
    x->look.range_end = etcd_text(t->end);
    x->look.sort_order = 1;
    x->look.sort_target = 2;
    x->look.keys_only = !t->claim->owner;
    x->look.limit = t->claim->owner ? 0 : QUEUE_LIMIT;
    snprintf(x->from, sizeof(x->from), "%s~", t->dir);
    snprintf(x->to, sizeof(x->to), "%s~", t->dir);
    x->joined.key = etcd_text(x->from);
    x->joined.range_end = etcd_end(x->to);
    x->compare.target = x->holder.target = 1;
    x->compare.with_case = PB__COMPARE__WITH_CREATE_REVISION;
    x->holder.with_case = PB__COMPARE__WITH_CREATE_REVISION;
    x->compare.key = etcd_text(t->name);
    x->compares[0] = &x->compare;
    x->compares[1] = &x->holder;
    x->txn.compare = x->compares;
    x->txn.n_compare = 1;
    x->txn.success = x->yes;
    x->txn.failure = x->no;
}

/* Put them together; see the top of this file.  What is joined is always the
 * last that is read, and our own key the one before it. */
static void txn_make(struct take *t, struct take_txn *x)
{
    Pb__TxnRequest *txn = &x->txn;

    txn_parts(t, x);
    if (t->grant->fence) {
        x->compare.create_revision = (int64_t)t->grant->fence;
        x->yes[txn->n_success++] = &x->look_op;
        x->yes[txn->n_success++] = &x->joined_op;
        if (!t->claim->owner)
            x->look.max_create_revision = (int64_t)t->grant->fence;
        return;
    }
    x->yes[txn->n_success++] = &x->put_op;
    x->no[txn->n_failure++] = &x->look_op;
    x->no[txn->n_failure++] = &x->own_op;
    x->no[txn->n_failure++] = &x->joined_op;
    if (t->holder_revision) {
        x->compare.result = 2; /* made before */
        x->compare.create_revision = t->seen + 1;
        x->holder.key = etcd_text(t->holder);
        x->holder.create_revision = t->holder_revision;
        txn->n_compare = 2;
    } else if (t->claim->queue) {
        x->yes[txn->n_success++] = &x->look_op;
        x->yes[txn->n_success++] = &x->joined_op;
        return;
    }
    x->compare.key = etcd_text(t->dir);
    x->compare.range_end = etcd_text(t->end);
}

/* ---- what it says ------------------------------------------------------ */

static bool take_same_owner(const struct take *t, const Pb__KeyValue *kv)
{
    struct etcd_words words;

    if (!t->claim->owner)
        return false;
    etcd_read_value(kv->value, &words);
    return !strcmp(words.owner, t->claim->owner);
}

static void take_copy(char *ret, size_t size, ProtobufCBinaryData from)
{
    if (from.len >= size)
        from.len = 0;
    memcpy(ret, from.data, from.len);
    ret[from.len] = '\0';
}

/* The queue in order, up to us or to its end. */
static void take_look(struct take *t, const Pb__RangeResponse *queue)
{
    const Pb__KeyValue *kv = NULL;
    bool ours = true; /* all before us are the same owner's */
    size_t i;

    for (i = 0; i < queue->n_kvs; i++) {
        kv = queue->kvs[i];
        if (etcd_is(kv->key, t->name))
            break;
        ours = ours && take_same_owner(t, kv);
    }
    if (i == queue->n_kvs)
        return;
    t->revision = kv->create_revision;
    t->mine = ours;
    t->place = (int32_t)i;
    if (i > 0)
        take_copy(t->before, sizeof(t->before), queue->kvs[i - 1]->key);
}

/* May we join?  The first, or one that joined, must be of our owner, and all in
 * the queue must know what joining is. */
static void take_holder(struct take *t, const Pb__RangeResponse *queue,
                        const Pb__RangeResponse *joined)
{
    const Pb__KeyValue *kv = joined->n_kvs ? joined->kvs[0] : NULL;
    struct etcd_words words;
    size_t i;

    t->holder_revision = 0;
    if (!kv && queue->n_kvs)
        kv = queue->kvs[0];
    if (!kv || t->mine || !take_same_owner(t, kv))
        return;
    for (i = 0; i < queue->n_kvs; i++) {
        etcd_read_value(queue->kvs[i]->value, &words);
        if (!words.token[0])
            return;
    }
    take_copy(t->holder, sizeof(t->holder), kv->key);
    t->holder_revision = t->holder[0] ? kv->create_revision : 0;
}

/* Somebody joined: then it is not ours, unless by the same owner.  (4) */
static void take_joined(struct take *t, const Pb__RangeResponse *joined)
{
    const Pb__KeyValue *kv;

    if (!joined->n_kvs)
        return;
    kv = joined->kvs[0];
    if (take_same_owner(t, kv)) {
        t->mine = t->mine || etcd_ref(t->grant)->lease[0] == '~';
        return;
    }
    if (t->mine)
        take_copy(t->before, sizeof(t->before), kv->key);
    t->mine = false;
}

/* What the transaction answered. */
static hf_status take_read(struct take *t, const Pb__TxnResponse *answer,
                           struct hf_error *err)
{
    const Pb__RangeResponse *ranges[3] = {NULL};
    size_t i, n = 0;

    t->revision = 0;
    t->mine = false;
    t->place = 0;
    t->before[0] = '\0';
    if (!answer->header || answer->header->revision <= 0)
        return etcd_nonsense(t->ec, err);
    t->seen = answer->header->revision;
    for (i = 0; i < answer->n_responses; i++) {
        const Pb__ResponseOp *op = answer->responses[i];

        if (op->response_case == PB__RESPONSE_OP__RESPONSE_PUT)
            t->revision = answer->header->revision;
        if (op->response_case == PB__RESPONSE_OP__RESPONSE_RANGE && n < 3)
            ranges[n++] = op->range;
    }
    t->mine = t->revision && !n; /* It was ours to put. */
    if (n < 2)
        return HF_OK;
    take_look(t, ranges[0]);
    if (n == 3 && ranges[1]->n_kvs == 1)
        t->revision = ranges[1]->kvs[0]->create_revision;
    take_joined(t, ranges[n - 1]);
    take_holder(t, ranges[0], ranges[n - 1]);
    return HF_OK;
}

/* ---- trying ------------------------------------------------------------ */

/* Name our key, after the lease that it hangs on.  (3) */
static void take_name(struct take *t)
{
    struct etcd_ref *ref = etcd_ref(t->grant);
    bool joined = ref->lease[0] == '~';
    char lease[17];

    snprintf(lease, sizeof(lease), "%" PRIx64, (uint64_t)t->lease->id);
    if (strcmp(lease, ref->lease + joined) != 0)
        t->grant->fence = 0;
    if (!t->grant->fence)
        snprintf(ref->lease, sizeof(ref->lease), "%s%s",
                 t->holder_revision ? "~" : "", lease);
    etcd_name(t->ec, t->claim, t->grant, t->name, sizeof(t->name));
}

/* Send it, with what the lease needs.  HF_LOST: the lease is gone. */
static hf_status take_send(struct take *t, struct hf_error *err)
{
    struct etcd_batch batch = {.n = 0};
    ProtobufCMessage *answer = NULL;
    struct take_txn x;
    size_t proof, txn;
    hf_status st;

    memset(&x, 0, offsetof(struct take_txn, value));
    txn_make(t, &x);
    proof =
        etcd_lease_prove(t->ec, t->lease, t->sent + t->claim->ttl_ms, &batch);
    txn = etcd_add(&batch, ETCD_TXN, &x.txn.base);
    st = etcd_send(t->ec, &batch, t->limit, err);
    etcd_key_swept(t->ec, &batch);
    if (!st && etcd_is_lease_gone(&batch, txn)) {
        etcd_lease_gone(t->ec, t->lease);
        st = HF_LOST;
    }
    if (!st)
        st = etcd_answer(t->ec, &batch, txn, &pb__txn_response__descriptor,
                         &answer, err);
    if (!st)
        st = take_read(t, (Pb__TxnResponse *)answer, err);
    if (!st) {
        st = etcd_lease_proven(t->ec, t->lease, &batch, proof, t->sent, err);
        if (st == HF_UNAVAILABLE || st == HF_DENIED)
            st = hfi_restate(err, HF_UNCERTAIN); /* The rest was done. */
    }
    etcd_free(answer);
    etcd_batch_free(&batch);
    return st;
}

/* One transaction.  HF_LOST: what we had is gone, so begin anew. */
static hf_status take_once(struct take *t, struct hf_error *err)
{
    struct hfi_grant *grant = t->grant;
    int64_t end;
    hf_status st;

    t->sent = hfi_now();
    t->limit = t->deadline;
    if (t->claim->queue && t->ec->nends > 1) /* It will be asked again. */
        t->limit = t->sent + hfi_left_ms(t->deadline) / 2;
    end = t->sent + t->claim->ttl_ms;
    st = etcd_lease_get(t->ec, t->claim->ttl_ms, &t->lease, t->limit, err);
    if (st)
        return st;
    take_name(t);
    st = etcd_key_note(t->ec, t->lease, t->claim->token, t->name,
                       (int64_t)grant->fence, end);
    if (st == HF_NOMEM)
        return hfi_nomem(err);
    if (st == HF_LOST && grant->fence) {
        st = etcd_release(&t->ec->base, t->claim, grant, t->deadline, err);
        if (st && st != HF_LOST)
            return st;
        grant->fence = 0;
    }
    st = take_send(t, err);
    if (st) {
        /* A final failure may come after the deed. */
        if (st != HF_LOST && st != HF_UNAVAILABLE && st != HF_UNCERTAIN)
            grant->placed = true;
        return st;
    }
    if (!t->revision && grant->fence) {
        grant->fence = 0;
        return HF_LOST;
    }
    grant->fence = (uint64_t)t->revision;
    grant->placed = t->revision != 0;
    if (t->revision)
        etcd_key_note(t->ec, t->lease, t->claim->token, t->name, t->revision,
                      end);
    else
        etcd_key_forget(t->ec, t->claim->token);
    return HF_OK;
}

/* Join the holders of our owner id, leaving the place that we had. */
static bool take_joins(struct take *t, hf_status *st, struct hf_error *err)
{
    if (t->grant->fence)
        *st = etcd_release(&t->ec->base, t->claim, t->grant, t->deadline, err);
    if (*st == HF_LOST)
        *st = HF_OK;
    t->grant->fence = 0;
    return !*st;
}

/* Is there another transaction to be sent at once? */
static bool take_goes_on(struct take *t, hf_status *st, struct hf_error *err)
{
    bool fresh = false;

    if (*st == HF_LOST) {
        t->holder_revision = 0;
        return true;
    }
    if (*st == HF_UNAVAILABLE && t->spare) {
        t->spare--; /* Another member may take it. */
        return true;
    }
    if (*st || t->mine)
        return false;
    if (t->holder_revision)
        return take_joins(t, st, err);
    if (t->claim->queue && !t->revision)
        return true; /* There was nobody left to join. */
    if (t->revision && etcd_ref(t->grant)->watched)
        *st = etcd_watch_before(t->ec, t->claim, t->grant, t->before, &fresh,
                                t->deadline, err);
    /* A waiter without a watch asks again later: that is no failure. */
    if (*st)
        *st = HF_OK;
    return fresh;
}

hf_status etcd_try_acquire(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_grant *grant, struct hfi_busy *busy,
                           int64_t deadline, struct hf_error *err)
{
    struct take t = {.ec = (struct etcd_conn *)conn,
                     .claim = claim,
                     .grant = grant,
                     .deadline = deadline};
    hf_status st;

    t.spare = t.ec->nends - 1;
    if (!grant->fence && etcd_ref(grant)->lease[0] == '~') {
        /* Joining had no answer: it will not be asked for under that name. */
        st = etcd_release(conn, claim, grant, deadline, err);
        if (st && st != HF_LOST)
            return st;
        etcd_ref(grant)->lease[0] = '\0';
    }
    etcd_dir(t.ec, claim->key, t.dir, sizeof(t.dir));
    memcpy(t.end, t.dir, sizeof(t.end));
    etcd_end(t.end);
    do {
        if (!hfi_left_ms(deadline))
            return hfi_fail(err, HF_UNCERTAIN, "%s: no verdict in time",
                            conn->endpoint);
        st = take_once(&t, err);
    } while (take_goes_on(&t, &st, err));
    if (st)
        return st;
    busy->place = t.place;
    etcd_ref(grant)->held = t.mine;
    return t.mine ? HF_OK : HF_BUSY;
}

/* ---- giving back ------------------------------------------------------- */

hf_status etcd_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                       struct hfi_grant *grant, int64_t deadline,
                       struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    Pb__Compare compare = PB__COMPARE__INIT, *compares[] = {&compare};
    Pb__DeleteRangeRequest gone = PB__DELETE_RANGE_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};
    ProtobufCMessage *answer = NULL;
    char name[ETCD_NAME_MAX];
    hf_status st = HF_LOST;

    etcd_name(ec, claim, grant, name, sizeof(name));
    compare.key = gone.key = etcd_text(name);
    compare.target = 1;
    compare.result = grant->fence ? 0 : 1;
    compare.with_case = PB__COMPARE__WITH_CREATE_REVISION;
    compare.create_revision = (int64_t)grant->fence;
    op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    op.delete_range = &gone;
    txn.n_compare = txn.n_success = 1;
    txn.compare = compares;
    txn.success = ops;
    if (etcd_ref(grant)->lease[0])
        st = etcd_call(ec, ETCD_TXN, &txn.base, &pb__txn_response__descriptor,
                       &answer, deadline, err);
    if (!st && !((Pb__TxnResponse *)answer)->succeeded)
        st = HF_LOST;
    etcd_free(answer);
    if (st && st != HF_LOST)
        return st;
    etcd_key_forget(ec, claim->token);
    grant->placed = false;
    return st ? hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                         conn->endpoint)
              : HF_OK;
}

hf_status etcd_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
                      const struct hf_handle *handle, struct hfi_grant *grant,
                      struct hf_error *err)
{
    size_t len = strspn(handle->ref, "~0123456789abcdef");

    (void)claim;
    if (!len || len > 17 || handle->ref[len])
        return hfi_fail(err, HF_LOST, "%s: there is no such lock",
                        conn->endpoint);
    memcpy(etcd_ref(grant)->lease, handle->ref, len + 1);
    etcd_ref(grant)->held = 1;
    grant->fence = handle->fence;
    return HF_OK; /* The renewal that follows tells whether it is there. */
}
