/* SPDX-License-Identifier: MIT
 *
 * renew.c - keeping.
 *
 * A grant stands if its key is there with its revision and the lease that it
 * hangs on is alive.  One message per lease proves the second for all locks on
 * it, one transaction of many reads proves the first; they go out together.
 *
 * When that has no answer, it is asked again while there is time, another
 * member if there is one, in a way that is slower but gets through while a
 * leader is being found.  A linearizable read that its member has sent to a
 * leader which is gone, or not yet established, is lost, and etcd 3.4 lets all
 * reads on that member wait seven seconds for it.  A transaction that might
 * write is kept by the member until there is a leader and then goes through the
 * log; when it has come back, a leader is there that can renew the lease.  This
 * matters: the time between two elections may be a tenth of a second.
 *
 * A key that hangs on another lease than its ttl wants, because it was extended
 * to another ttl or taken up from another process, is put on that one.  It
 * keeps its name and its revision, and so its place and its fence.  A move that
 * had no answer may arrive later, when the lease that it names is kept by
 * nobody.  So a move is made only if the key is as it was read, and the renewal
 * after one that had no answer writes the key itself: the late one then finds
 * another key than the one that it was meant for.  A renewal for the bearer of
 * a handle always writes: what another bearer, or the client that detached the
 * lock, has sent without an answer is not known here, and fits no longer then.
 */
#include "etcd.h"

#include "base/alloc.h"
#include "base/env.h"
#include "base/mutant.h"

#include "base/banned.h"

/* etcd takes 128 operations in a transaction unless told otherwise. */
#define RENEW_OPS    100
#define RENEW_LEASES 8

/* A member has this long at least before another is asked. */
#define RENEW_PASS_MS 300

/* Inside this file: the lease that the item should hang on has died. */
#define RENEW_AGAIN HF_BUSY

/* What goes out together. */
struct round {
    struct etcd_conn *ec;
    struct hfi_renewal *items[RENEW_OPS];
    unsigned char of[RENEW_OPS]; /* which lease */
    size_t n;
    struct etcd_lease *leases[RENEW_LEASES];
    size_t proofs[RENEW_LEASES];
    hf_status alive[RENEW_LEASES];
    size_t nleases;
    int64_t sent, ttl_ms; /* the longest */
    int64_t deadline;     /* of this pass, and ... */
    int64_t last_call;    /* ... of all of them: to log in takes its time */
    bool logged;          /* read through the log */
    bool stale;           /* a mutant's: a lease without a witness will do */
};

/* Take an item in; false: there is no more room. */
static bool round_add(struct round *r, struct hfi_renewal *item,
                      struct hf_error *err)
{
    struct etcd_lease *lease;
    size_t i;

    if (r->n == RENEW_OPS)
        return false;
    item->st = etcd_lease_get(r->ec, item->ttl_ms, &lease, r->deadline, err);
    if (item->st)
        return true; /* and so it stays */
    for (i = 0; i < r->nleases && r->leases[i] != lease; i++)
        continue;
    if (i < r->nleases || i == RENEW_LEASES)
        etcd_lease_put(r->ec, lease);
    if (i == RENEW_LEASES)
        return false;
    if (i == r->nleases)
        r->leases[r->nleases++] = lease;
    if (etcd_key_is_leaving(r->ec, item->claim->token)) { /* key.c (2) */
        item->reason = HF_LOSS_EXPIRED;
        item->st = hfi_fail(err, HF_LOST, "%s: the lock was given back",
                            r->ec->base.endpoint);
        return true;
    }
    if (item->ttl_ms > r->ttl_ms)
        r->ttl_ms = item->ttl_ms;
    r->of[r->n] = (unsigned char)i;
    r->items[r->n++] = item;
    return true;
}

/* Make it a transaction that might write, and so goes through the log.  It does
 * not, as no revision is less than nothing.  What it does not do is a delete:
 * a server whose database is full refuses whatever might put. */
static void txn_log(Pb__TxnRequest *txn, Pb__Compare *never,
                    Pb__DeleteRangeRequest *gone, Pb__RequestOp *op)
{
    pb__compare__init(never);
    pb__delete_range_request__init(gone);
    pb__request_op__init(op);
    never->target = 1;
    never->result = 2; /* less */
    never->with_case = PB__COMPARE__WITH_CREATE_REVISION;
    never->key = gone->key = txn->success[0]->range->key;
    op->request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    op->delete_range = gone;
    txn->failure = txn->success;
    txn->n_failure = txn->n_success;
    txn->n_success = txn->n_compare = 1;
}

/* The reads of all keys, as one call. */
static size_t round_reads(struct round *r, struct etcd_batch *batch)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    Pb__RangeRequest ranges[RENEW_OPS];
    Pb__RequestOp ops[RENEW_OPS], *list[RENEW_OPS], log_op, *log_ops[1];
    Pb__Compare never, *nevers[1] = {&never};
    Pb__DeleteRangeRequest gone;
    char *texts[RENEW_OPS], name[ETCD_NAME_MAX];
    size_t i, call;

    for (i = 0; i < r->n; i++) {
        etcd_name(r->ec, r->items[i]->claim, r->items[i]->receipt, name,
                  sizeof(name));
        texts[i] = hfi_strdup(name);
        batch->failed = batch->failed || !texts[i];
        pb__range_request__init(&ranges[i]);
        pb__request_op__init(&ops[i]);
        ranges[i].key = etcd_text(texts[i] ? texts[i] : "");
        ops[i].request_case = PB__REQUEST_OP__REQUEST_RANGE;
        ops[i].range = &ranges[i];
        list[i] = &ops[i];
    }
    txn.n_success = r->n;
    txn.success = list;
    if (r->logged) {
        txn_log(&txn, &never, &gone, &log_op);
        log_ops[0] = &log_op;
        txn.success = log_ops;
        txn.compare = nevers;
    }
    call = etcd_add(batch, ETCD_TXN, &txn.base);
    for (i = 0; i < r->n; i++)
        hfi_free(texts[i]);
    return call;
}

/* Put the key on the lease that its ttl wants. */
static hf_status renew_move(struct etcd_conn *ec, struct hfi_renewal *item,
                            struct etcd_lease *lease, const Pb__KeyValue *kv,
                            int64_t deadline, struct hf_error *err)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    struct etcd_bears bears;
    Pb__Compare same = PB__COMPARE__INIT;
    Pb__Compare *compares[] = {&bears.above, &bears.below, &same};
    Pb__PutRequest put = PB__PUT_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};
    ProtobufCMessage *answer = NULL;
    char name[ETCD_NAME_MAX];
    hf_status st;

    etcd_name(ec, item->claim, item->receipt, name, sizeof(name));
    put.key = kv->key;
    etcd_bears(&bears, kv->key, item->claim->token);
    same.key = kv->key;
    same.target = 2; /* when it was last written; equal */
    same.with_case = PB__COMPARE__WITH_MOD_REVISION;
    same.mod_revision = kv->mod_revision;
    put.lease = lease->id;
    put.ignore_value = 1;
    op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    op.put = &put;
    txn.n_compare = 3;
    txn.n_success = 1;
    txn.compare = compares;
    txn.success = ops;
    st = etcd_call(ec, ETCD_TXN, &txn.base, &pb__txn_response__descriptor,
                   &answer, deadline, err);
    if (st == HF_LOST) { /* that lease; the one that it hangs on may live */
        etcd_lease_gone(ec, lease);
        return RENEW_AGAIN;
    }
    if (!st && !((Pb__TxnResponse *)answer)->succeeded)
        st = RENEW_AGAIN; /* It has changed since: look again. */
    etcd_free(answer);
    if (st && st != RENEW_AGAIN && st != HF_UNAVAILABLE) {
        hfi_session_doubt(&ec->leases, &lease->session);
        if (item->claim->bearer) /* Where it may come to hang. */
            etcd_key_note(ec, lease, item->claim->token, name,
                          kv->create_revision);
    }
    etcd_key_moving(ec, item->claim->token, st != HF_OK && st != RENEW_AGAIN);
    return st;
}

/* Is what was read, or NULL, still the item's grant?  If not, *reason says
 * why. */
static bool renew_is_there(const struct hfi_renewal *item,
                           const Pb__KeyValue *kv, hf_loss *reason)
{
    struct etcd_words words;

    *reason = HF_LOSS_DELETED;
    if (!kv)
        return false;
    etcd_read_value(kv->value, &words);
    if (etcd_fence(kv, &words) != item->receipt->fence || words.kept)
        return false;
    *reason = HF_LOSS_STOLEN;
    if (strcmp(words.token, item->claim->token) != 0)
        return false; /* Its handle was taken up. */
    *reason = HF_LOSS_BROKEN;
    return !words.broken;
}

/* What became of one item, whose read is `kv` or NULL. */
static void renew_judge(struct round *r, size_t i, const Pb__KeyValue *kv,
                        struct hf_error *err)
{
    struct hfi_renewal *item = r->items[i];
    struct etcd_lease *lease = r->leases[r->of[i]];
    hf_status alive = r->alive[r->of[i]];
    char name[ETCD_NAME_MAX];

    if (!renew_is_there(item, kv, &item->reason)) {
        item->st = HF_LOST;
        if (item->reason == HF_LOSS_DELETED && alive == HF_LOST)
            item->reason = HF_LOSS_SESSION;
        if (item->reason != HF_LOSS_BROKEN) /* That one has yet to go. */
            etcd_key_forget(r->ec, item->claim->token);
        return;
    }
    /* A dead lease takes its own keys with it, another's it leaves alone: a
     * living lease is to be had for that one. */
    if (alive == HF_LOST && kv->lease != lease->id)
        alive = RENEW_AGAIN;
    item->reason = HF_LOSS_SESSION;
    item->st = alive;
    if (!alive && (kv->lease != lease->id || item->claim->bearer ||
                   etcd_key_is_moving(r->ec, item->claim->token)))
        item->st = renew_move(r->ec, item, lease, kv, r->deadline, err);
    etcd_name(r->ec, item->claim, item->receipt, name, sizeof(name));
    if (item->st == HF_OK &&
        etcd_key_note(r->ec, lease, item->claim->token, name,
                      kv->create_revision) == HF_LOST) {
        item->reason = HF_LOSS_EXPIRED; /* It was given back meanwhile. */
        item->st = HF_LOST;
    }
}

static void round_judge(struct round *r, const Pb__TxnResponse *answer,
                        struct hf_error *err)
{
    size_t i;

    for (i = 0; i < r->n; i++) {
        const Pb__ResponseOp *op = answer->responses[i];

        if (op->response_case != PB__RESPONSE_OP__RESPONSE_RANGE)
            r->items[i]->st = etcd_bad_reply(r->ec, err);
        else
            renew_judge(r, i, op->range->n_kvs ? op->range->kvs[0] : NULL, err);
    }
}

/* Read the keys and, if asked to, prove the leases: what was read is the
 * witness of that (lease.c (1)). */
static hf_status round_ask(struct round *r, bool proofs, Pb__TxnResponse **ret,
                           struct hf_error *err)
{
    struct etcd_batch batch = {.login_by = r->last_call};
    ProtobufCMessage *message = NULL;
    Pb__TxnResponse *answer = NULL;
    size_t i, at;
    hf_status st;

    for (i = 0; i < r->nleases && proofs; i++)
        r->proofs[i] =
            etcd_lease_prove(r->ec, r->leases[i], r->sent, r->ttl_ms, &batch);
    batch.patient = r->logged;
    at = round_reads(r, &batch);
    st = etcd_send(r->ec, &batch, r->deadline, err);
    if (!batch.failed && batch.calls[at].st == HF_OK)
        st = etcd_answer(r->ec, &batch, at, &pb__txn_response__descriptor,
                         &message, err);
    answer = (Pb__TxnResponse *)message;
    if (!st && answer->n_responses != r->n)
        st = etcd_bad_reply(r->ec, err);
    r->stale = HFI_MUTANT(lease_without_witness) && st && proofs &&
               r->nleases && r->proofs[0] < batch.n &&
               batch.calls[r->proofs[0]].st == HF_OK &&
               !batch.calls[r->proofs[0]].grpc_status;
    for (i = 0; i < r->nleases && proofs && !st; i++)
        r->alive[i] =
            etcd_lease_proven(r->ec, r->leases[i], &batch, r->proofs[i],
                              answer->header, r->sent, err);
    if (st)
        etcd_free(message);
    else
        *ret = answer;
    etcd_batch_free(&batch);
    return st;
}

static void round_send(struct round *r, struct hf_error *err)
{
    Pb__TxnResponse *answer = NULL, *first = NULL;
    hf_status st = HF_OK;
    size_t i;

    if (r->logged) /* When this is back, a leader can renew leases. */
        st = round_ask(r, false, &first, err);
    etcd_free(first);
    if (!st)
        st = round_ask(r, true, &answer, err);
    if (!st)
        round_judge(r, answer, err);
    for (i = 0; i < r->n && st; i++)
        r->items[i]->st = r->stale ? HF_OK : st;
    for (i = 0; i < r->nleases && !st; i++)
        etcd_watch_break_notice(r->ec, r->leases[i]);
    etcd_free(answer);
}

static bool renew_wants_more(const struct hfi_renewal *item)
{
    return item->st == RENEW_AGAIN || item->st == HF_UNAVAILABLE ||
           item->st == HF_UNCERTAIN;
}

/* Renew all items, or again those that want it; false: none does any more. */
static bool renew_pass(struct etcd_conn *ec, struct hfi_renewal *items,
                       size_t n, bool again, int64_t limit, int64_t deadline,
                       struct hf_error *err)
{
    struct round r;
    size_t i, at = 0;

    while (at < n) {
        memset(&r, 0, sizeof(r));
        r.ec = ec;
        r.sent = hfi_now();
        r.deadline = limit < deadline ? limit : deadline;
        r.last_call = deadline;
        r.logged = again || atomic_load(&ec->troubled);
        for (; at < n; at++)
            if ((!again || renew_wants_more(&items[at])) &&
                !round_add(&r, &items[at], err))
                break;
        if (r.n)
            round_send(&r, err);
        while (r.nleases)
            etcd_lease_put(ec, r.leases[--r.nleases]);
    }
    for (i = 0; i < n && !renew_wants_more(&items[i]); i++)
        continue;
    return i < n;
}

void etcd_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
                int64_t deadline, struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    size_t i, passes = ec->nends + 1;
    int64_t limit, now = hfi_now();
    bool more = true;

    for (i = 0; i < passes && more && now < deadline; i++) {
        limit = (deadline - now) / (int64_t)(passes - i);
        limit = now + (limit > RENEW_PASS_MS ? limit : RENEW_PASS_MS);
        if (ec->nends == 1) /* There is nobody else to be asked. */
            limit = deadline;
        more = renew_pass(ec, items, n, i > 0, limit, deadline, err);
        now = hfi_now();
    }
    atomic_store(&ec->troubled, more);
    for (i = 0; i < n; i++)
        if (items[i].st == RENEW_AGAIN)
            items[i].st = HF_UNAVAILABLE;
}
