/* SPDX-License-Identifier: MIT
 *
 * etcd_lock.c - taking.
 *
 * Each try is one transaction, and which one depends on what we know:
 *
 *   try once     if nothing is below "KEY/": put our key
 *   queue        if our key is not there: put it and look; or put it only, if
 *                we have another that waits far behind: nobody but that one
 *                need be watched
 *   have a place if our key is still the one of that revision: look
 *   wait         the same, and who was before us still is: nothing; else look
 *   same owner   if nothing came below "KEY/" since we looked, and the holder
 *                that we saw is still there: put our key, marked as joined
 *
 * "Look" is the queue up to us: all of it in the order of creation for a claim
 * with an owner id, else the last ones before us, the nearest first.  For both
 * etcd reads and sorts the whole queue; a waiter that only wants to know whether
 * it still waits must not cost that.
 *
 * Who is first holds, and so does one whose predecessors all carry its owner id.
 * One that joined the holders of its owner id passes by those who wait: so nobody
 * else holds while a key "KEY/~..." is there.  Programs that do not know of this,
 * whose values are empty, are not passed by.
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
#include <stdlib.h>

#include "../env.h"

#include "../banned.h"

/* How far before us the queue is read: a place behind that is not told. */
#define QUEUE_LIMIT 64

/* How soon a waiter asks again that could not have its watch. */
#define UNWATCHED_MS 500

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

    bool behind; /* another of ours is `before` us, and far from its turn */

    /* what came of it */
    hf_status alive;           /* the lease */
    int64_t revision;          /* of our key; 0: it is not there */
    bool mine;                 /* we hold, or would if our key were there */
    bool looked;               /* the queue was read */
    struct etcd_before before; /* who is before us; known from earlier, too */
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
    x->look.sort_order = t->claim->owner ? 1 : 2;
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

static void txn_look(struct take_txn *x, Pb__RequestOp **ops, size_t *n)
{
    ops[(*n)++] = &x->look_op;
    ops[(*n)++] = &x->joined_op;
}

/* For a claim that has a place. */
static void txn_placed(struct take *t, struct take_txn *x)
{
    Pb__TxnRequest *txn = &x->txn;

    x->compare.create_revision = (int64_t)t->grant->fence;
    if (!t->claim->owner)
        x->look.max_create_revision = (int64_t)t->grant->fence;
    if (t->claim->owner || !t->before.name[0]) {
        txn_look(x, x->yes, &txn->n_success);
        return;
    }
    x->holder.key = etcd_text(t->before.name);
    x->holder.create_revision = t->before.revision;
    txn->n_compare = 2;
    x->no[txn->n_failure++] = &x->own_op;
    txn_look(x, x->no, &txn->n_failure);
}

/* Put them together; see the top of this file. */
static void txn_make(struct take *t, struct take_txn *x)
{
    Pb__TxnRequest *txn = &x->txn;

    txn_parts(t, x);
    if (t->grant->fence) {
        txn_placed(t, x);
        return;
    }
    x->yes[txn->n_success++] = &x->put_op;
    x->no[txn->n_failure++] = &x->own_op;
    if (t->claim->owner)
        txn_look(x, x->no, &txn->n_failure);
    if (t->holder_revision) {
        x->compare.result = 2; /* made before */
        x->compare.create_revision = t->seen + 1;
        x->holder.key = etcd_text(t->holder);
        x->holder.create_revision = t->holder_revision;
        txn->n_compare = 2;
    } else if (t->claim->queue) {
        if (!t->behind)
            txn_look(x, x->yes, &txn->n_success);
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

static void take_before(struct take *t, const Pb__KeyValue *kv)
{
    take_copy(t->before.name, sizeof(t->before.name), kv->key);
    t->before.revision = kv->create_revision;
}

/* Those before us, the nearest first, if we are there. */
static void take_look_back(struct take *t, const Pb__RangeResponse *queue)
{
    if (!queue->n_kvs || !etcd_is(queue->kvs[0]->key, t->name))
        return;
    t->looked = true;
    t->revision = queue->kvs[0]->create_revision;
    t->mine = queue->n_kvs == 1;
    if (queue->n_kvs > 1)
        take_before(t, queue->kvs[1]);
    if (queue->n_kvs < QUEUE_LIMIT)
        t->before.place = (int32_t)queue->n_kvs - 1;
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
    t->looked = true;
    t->revision = kv->create_revision;
    t->mine = ours;
    t->before.place = (int32_t)i;
    if (i > 0)
        take_before(t, queue->kvs[i - 1]);
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
        t->mine = t->mine || etcd_ref(t->grant)->last[0] == '~';
        return;
    }
    if (t->mine)
        take_before(t, kv);
    t->mine = false;
}

/* The answer to one of the reads, or NULL. */
static const Pb__RangeResponse *take_range(const struct take_txn *x,
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
static hf_status take_read(struct take *t, const struct take_txn *x,
                           const Pb__TxnResponse *answer, struct hf_error *err)
{
    size_t n = answer->succeeded ? x->txn.n_success : x->txn.n_failure;
    const Pb__RangeResponse *look, *own, *joined;

    if (!answer->header || answer->header->revision <= 0 ||
        answer->n_responses != n)
        return etcd_nonsense(t->ec, err);
    t->revision = 0;
    t->mine = t->looked = false;
    if (t->grant->fence && answer->succeeded && !n) {
        t->revision =
            (int64_t)t->grant->fence; /* Who was before us still is. */
        return HF_OK;
    }
    t->seen = answer->header->revision;
    if (t->behind && answer->succeeded) {
        t->revision = t->seen;
        return HF_OK;
    }
    t->before = (struct etcd_before){.revision = 0};
    look = take_range(x, answer, &x->look_op);
    own = take_range(x, answer, &x->own_op);
    joined = take_range(x, answer, &x->joined_op);
    if (n && answer->succeeded && x->yes[0] == &x->put_op) {
        t->revision = t->seen;
        t->mine = n == 1; /* It was ours to put. */
    }
    if (own && own->n_kvs == 1)
        t->revision = own->kvs[0]->create_revision;
    if (look && !t->claim->owner)
        take_look_back(t, look);
    else if (look)
        take_look(t, look);
    if (joined)
        take_joined(t, joined);
    t->holder_revision = 0;
    if (look && joined)
        take_holder(t, look, joined);
    return HF_OK;
}

/* ---- trying ------------------------------------------------------------ */

/* Name our key, after the lease that it hangs on.  (3) */
static void take_name(struct take *t)
{
    struct etcd_ref *ref = etcd_ref(t->grant);
    const char *had = strchr(ref->last, '-');
    char lease[18];

    snprintf(lease, sizeof(lease), "%" PRIx64 "-", (uint64_t)t->lease->id);
    if (!had ||
        strncmp(lease, ref->last + (ref->last[0] == '~'), strlen(lease)) != 0)
        t->grant->fence = 0;
    if (!t->grant->fence)
        snprintf(ref->last, sizeof(ref->last), "%s%.17s%x",
                 t->holder_revision ? "~" : "", lease,
                 had ? (unsigned)strtoul(had + 1, NULL, 16) & 0xfffffff
                     : (unsigned)etcd_number(t->ec) & 0xfffffff);
    etcd_name(t->ec, t->claim, t->grant, t->name, sizeof(t->name));
}

/* Send it together with what the lease needs. */
static hf_status take_exchange(struct take *t, const Pb__TxnRequest *txn,
                               struct etcd_batch *batch, size_t proof,
                               Pb__TxnResponse **ret, struct hf_error *err)
{
    size_t at = etcd_add(batch, ETCD_TXN, &txn->base);
    ProtobufCMessage *answer = NULL;
    hf_status st = etcd_send(t->ec, batch, t->limit, err);

    etcd_key_swept(t->ec, batch);
    if (!st)
        st = etcd_answer(t->ec, batch, at, &pb__txn_response__descriptor,
                         &answer, err);
    *ret = (Pb__TxnResponse *)answer;
    if (!st) {
        t->alive =
            etcd_lease_proven(t->ec, t->lease, batch, proof, t->sent, err);
        if (t->alive == HF_UNAVAILABLE || t->alive == HF_DENIED)
            t->alive = hfi_restate(err, HF_UNCERTAIN); /* The rest was done. */
    }
    return st;
}

/* One transaction.  HF_LOST: the lease is gone. */
static hf_status take_send(struct take *t, struct hf_error *err)
{
    struct etcd_batch batch = {.n = 0};
    Pb__TxnResponse *answer = NULL;
    struct take_txn x;
    size_t proof;
    hf_status st;

    memset(&x, 0, offsetof(struct take_txn, value));
    txn_make(t, &x);
    proof =
        etcd_lease_prove(t->ec, t->lease, t->sent + t->claim->ttl_ms, &batch);
    t->alive = HF_OK;
    if (batch.n || batch.failed || t->grant->fence)
        st = take_exchange(t, &x.txn, &batch, proof, &answer, err);
    else
        st = etcd_txn(t->ec, &x.txn, t->dir, &answer, t->limit, err);
    if (st == HF_LOST)
        etcd_lease_gone(t->ec, t->lease);
    if (!st)
        st = take_read(t, &x, answer, err);
    if (!st)
        st = t->alive;
    etcd_free(answer);
    etcd_batch_free(&batch);
    return st;
}

/* What came of it, for those who ask later. */
static void take_note(struct take *t, int64_t end)
{
    struct hfi_grant *grant = t->grant;

    grant->fence = (uint64_t)t->revision;
    grant->placed = t->revision != 0;
    if (t->revision) {
        etcd_key_note(t->ec, t->lease, t->claim->token, t->name, t->revision,
                      end);
        etcd_key_set_before(t->ec, t->claim->token, &t->before);
    } else if (etcd_key_done(t->ec, t->claim->token, etcd_ref(grant)->last)) {
        etcd_ref(grant)->last[0] = '\0';
    }
}

/* The key has lapsed and is being removed: wait for that, or give it up. */
static hf_status take_lapsed(struct take *t, struct hf_error *err)
{
    hf_status st;

    if (!t->grant->fence)
        return hfi_fail(err, HF_UNAVAILABLE, "%s: the place lapsed",
                        t->ec->base.endpoint);
    st = etcd_release(&t->ec->base, t->claim, t->grant, t->deadline, err);
    if (st && st != HF_LOST)
        return st;
    t->grant->fence = 0;
    return HF_LOST;
}

/* Is one of ours so far behind that we need not look who is before us?  Its
 * place has been told, so ours comes after it. */
static void take_behind(struct take *t)
{
    t->behind = false;
    if (t->grant->fence || !t->claim->queue || t->claim->owner ||
        t->holder_revision)
        return;
    etcd_key_tail(t->ec, t->dir, &t->before);
    t->behind = t->before.name[0] != '\0';
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
    if (st == HF_LOST)
        return take_lapsed(t, err);
    take_behind(t);
    st = take_send(t, err);
    if (st) {
        /* A final failure may come after the deed. */
        if (st != HF_LOST && st != HF_UNAVAILABLE && st != HF_UNCERTAIN)
            grant->placed = true;
        if (st != HF_LOST && st != HF_UNAVAILABLE)
            etcd_key_doubt(t->ec, t->claim->token);
        return st;
    }
    if (!t->revision && grant->fence) {
        grant->fence = 0;
        return HF_LOST;
    }
    take_note(t, end);
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
    if (t->revision && !t->looked && !t->before.name[0])
        return true; /* An earlier try had put it: where does it stand? */
    if (t->revision && etcd_ref(t->grant)->watched)
        *st = etcd_watch_before(t->ec, t->claim, t->grant, t->before.name,
                                t->sent, &fresh, t->deadline, err);
    /* A waiter without a watch asks again soon: that is no failure. */
    if (*st)
        hfi_expect(&t->ec->base, t->claim->key, t->claim->token, UNWATCHED_MS);
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
    if (!grant->fence && etcd_ref(grant)->last[0] == '~') {
        /* Joining had no answer: it will not be asked for under that name. */
        st = etcd_release(conn, claim, grant, deadline, err);
        if (st && st != HF_LOST)
            return st;
        etcd_ref(grant)->last[0] = '\0';
    }
    etcd_key_get_before(t.ec, claim->token, &t.before);
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
    busy->place = t.before.place;
    etcd_ref(grant)->held = t.mine;
    return t.mine ? HF_OK : HF_BUSY;
}
