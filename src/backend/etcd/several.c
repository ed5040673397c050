/* SPDX-License-Identifier: MIT
 *
 * several.c - taking several keys in one transaction.
 *
 * If nothing is below "KEY/" of each that keeps its claim out, all keys of ours
 * are put; else none is.  The condition is that of a claim that tries once
 * (try.c).  What that cannot decide, a reader beside a downgraded lock, permits
 * of which some are taken, another use of the key, is left to a try for each.
 *
 * INVARIANTS
 *  (1) As acquire.c (1): the lease that carries them was proven for the whole
 *      ttl by a message that went with the transaction, or is sure that long.
 *  (2) All are put in one revision, which is the fence of each.  The keys
 *      differ, so it tells apart the grants of each.  The transaction never goes
 *      together with those of others (combine.c).
 *  (3) A transaction that failed has put nothing, and every answer but that of
 *      the deed itself, or none, leaves each claim in doubt: then the core takes
 *      them back (backend.h, try_acquire_all()).
 */
#include "try.h"

#include "base/alloc.h"

#include "base/banned.h"

/* etcd takes 128 conditions, and a shared claim has two. */
#define SEVERAL_MAX 64

/* One of the keys, and what is asked about it. */
struct several_part {
    Pb__Compare none[2];
    Pb__PutRequest put;
    Pb__RangeRequest first;
    Pb__RequestOp put_op, first_op;
    char name[ETCD_NAME_MAX];
    char dir[ETCD_NAME_MAX], end[ETCD_NAME_MAX];
    char kinds[2][ETCD_NAME_MAX + 1]; /* where those of readers begin and end */
    char value[ETCD_VALUE_MAX];
};

struct several {
    struct etcd_try t; /* what is the same for all */
    struct hfi_attempt *items;
    size_t n;
    struct several_part *parts;
    Pb__TxnRequest txn;
    Pb__Compare *compares[2 * SEVERAL_MAX];
    Pb__RequestOp *puts[SEVERAL_MAX], *firsts[SEVERAL_MAX];
};

/* ---- the transaction --------------------------------------------------- */

static void several_if_none(struct several *all, Pb__Compare *compare,
                            const char *from, ProtobufCBinaryData to)
{
    pb__compare__init(compare);
    etcd_compare(compare, etcd_text(from), 0);
    compare->range_end = to;
    all->compares[all->txn.n_compare++] = compare;
}

/* What must not be there, up to `end`. */
static void several_conditions(struct several *all, struct several_part *part,
                               bool shared, ProtobufCBinaryData end)
{
    size_t i;

    if (!shared) {
        several_if_none(all, &part->none[0], part->dir, end);
        return;
    }
    for (i = 0; i < 2; i++)
        snprintf(part->kinds[i], sizeof(part->kinds[i]), "%s%c", part->dir,
                 i ? 'S' : 'R');
    several_if_none(all, &part->none[0], part->dir, etcd_text(part->kinds[0]));
    several_if_none(all, &part->none[1], part->kinds[1], end);
}

static void several_part(struct several *all, size_t i)
{
    struct several_part *part = &all->parts[i];
    const struct hfi_claim *claim = all->items[i].claim;
    ProtobufCBinaryData end;

    memcpy(part->end, part->dir, sizeof(part->end));
    end = etcd_end(part->end);
    all->t.claim = claim;
    etcd_try_value(&all->t, 0, part->value, sizeof(part->value));
    several_conditions(all, part, claim->shared, end);
    pb__put_request__init(&part->put);
    pb__range_request__init(&part->first);
    pb__request_op__init(&part->put_op);
    pb__request_op__init(&part->first_op);
    part->put.key = etcd_text(part->name);
    part->put.value = etcd_text(part->value);
    part->put.lease = all->t.lease->id;
    part->put_op.request_case = PB__REQUEST_OP__REQUEST_PUT;
    part->put_op.put = &part->put;
    part->first.key = etcd_text(part->dir);
    part->first.range_end = end;
    part->first.keys_only = 1;
    part->first.limit = 1;
    part->first_op.request_case = PB__REQUEST_OP__REQUEST_RANGE;
    part->first_op.range = &part->first;
    all->puts[i] = &part->put_op;
    all->firsts[i] = &part->first_op;
}

static void several_make(struct several *all)
{
    size_t i;

    pb__txn_request__init(&all->txn);
    for (i = 0; i < all->n; i++)
        several_part(all, i);
    all->txn.compare = all->compares;
    all->txn.n_success = all->txn.n_failure = all->n;
    all->txn.success = all->puts;
    all->txn.failure = all->firsts;
}

/* ---- the keys of this client ------------------------------------------- */

/* Each has a name on the lease.  False: no memory. */
static bool several_name(struct several *all)
{
    struct etcd_conn *ec = all->t.ec;
    size_t i;

    for (i = 0; i < all->n; i++) {
        const struct hfi_claim *claim = all->items[i].claim;
        struct hfi_receipt *receipt = all->items[i].receipt;
        struct several_part *part = &all->parts[i];

        etcd_last(etcd_own(receipt)->last, claim, false, all->t.lease->id,
                  etcd_number(ec));
        etcd_dir(ec, claim->key, part->dir, sizeof(part->dir));
        etcd_name(ec, claim, receipt, part->name, sizeof(part->name));
        if (etcd_key_note(ec, all->t.lease, claim->token, part->name, 0))
            return false;
    }
    return true;
}

/* Nothing was put under these names, and nothing that is under way may.
 * key.c (1) */
static void several_unname(struct several *all)
{
    size_t i;

    for (i = 0; i < all->n; i++) {
        struct etcd_grant *own = etcd_own(all->items[i].receipt);

        if (own->last[0])
            etcd_key_done(all->t.ec, all->items[i].claim->token, own->last,
                          true);
        own->last[0] = '\0';
    }
}

/* several.c (3) */
static hf_status several_maybe(struct several *all, struct hf_error *err)
{
    size_t i;

    for (i = 0; i < all->n; i++) {
        etcd_key_doubt(all->t.ec, all->items[i].claim->token);
        all->items[i].receipt->registered = true;
    }
    return hfi_restate(err, HF_UNCERTAIN);
}

static hf_status several_granted(struct several *all, int64_t revision)
{
    size_t i;

    for (i = 0; i < all->n; i++) {
        struct hfi_receipt *receipt = all->items[i].receipt;

        etcd_key_note(all->t.ec, all->t.lease, all->items[i].claim->token,
                      all->parts[i].name, revision);
        receipt->fence = (uint64_t)revision;
        receipt->slot = 0;
        receipt->registered = true;
        etcd_own(receipt)->held = true;
    }
    return HF_OK;
}

/* ---- what came of it --------------------------------------------------- */

/* One of them is taken.  Is that all that there is to say?  Others are asked
 * for one by one: see the top of this file. */
static hf_status several_busy(const struct several *all,
                              const Pb__TxnResponse *answer)
{
    const Pb__ResponseOp *op;
    int32_t permits;
    size_t i;

    for (i = 0; i < all->n; i++) {
        op = answer->responses[i];
        if (all->items[i].claim->shared || all->items[i].claim->permits ||
            op->response_case != PB__RESPONSE_OP__RESPONSE_RANGE)
            return HF_UNSUPPORTED;
        if (op->range->n_kvs) {
            etcd_kind(op->range->kvs[0]->key, strlen(all->parts[i].dir),
                      &permits);
            if (permits)
                return HF_UNSUPPORTED;
        }
    }
    return HF_BUSY;
}

static hf_status several_judge(struct several *all,
                               const Pb__TxnResponse *answer,
                               struct hf_error *err)
{
    hf_status st;

    if (!answer->header || answer->header->revision <= 0 ||
        answer->n_responses != all->n) {
        etcd_bad_reply(all->t.ec, err);
        return several_maybe(all, err);
    }
    if (answer->succeeded && all->t.alive)
        return several_maybe(all, err);
    if (answer->succeeded)
        return several_granted(all, answer->header->revision);
    st = several_busy(all, answer);
    several_unname(all);
    return st;
}

/* On the lease that was got for them. */
static hf_status several_leased(struct several *all, struct hf_error *err)
{
    struct etcd_batch batch = {.n = 0};
    Pb__TxnResponse *answer = NULL;
    size_t proof;
    hf_status st;

    if (!several_name(all)) {
        several_unname(all);
        return hfi_nomem(err);
    }
    several_make(all);
    proof = etcd_lease_prove(all->t.ec, all->t.lease, all->t.sent,
                             all->items[0].claim->ttl_ms, &batch);
    all->t.alive = HF_OK;
    st = etcd_try_exchange(&all->t, &all->txn, &batch, proof, &answer, err);
    if (st == HF_LOST)
        etcd_lease_gone(all->t.ec, all->t.lease);
    if (!st)
        st = several_judge(all, answer, err);
    else if (st == HF_LOST || st == HF_UNAVAILABLE || st == HF_DENIED ||
             st == HF_UNSUPPORTED)
        several_unname(all); /* It was not taken. */
    else
        st = several_maybe(all, err);
    etcd_free(answer);
    etcd_batch_free(&batch);
    return st;
}

hf_status etcd_try_acquire_all(struct hfi_conn *conn, struct hfi_attempt *items,
                               size_t n, int64_t deadline, struct hf_error *err)
{
    struct several *all;
    hf_status st;

    if (!n || n > SEVERAL_MAX)
        return HF_UNSUPPORTED;
    all = hfi_alloc(sizeof(*all) + n * sizeof(all->parts[0]));
    if (!all)
        return hfi_nomem(err);
    all->parts = (struct several_part *)(all + 1);
    all->items = items;
    all->n = n;
    all->t.ec = (struct etcd_conn *)conn;
    all->t.sent = hfi_now();
    all->t.limit = all->t.deadline = deadline;
    st = etcd_lease_get(all->t.ec, items[0].claim->ttl_ms, &all->t.lease,
                        deadline, err);
    if (!st) {
        st = several_leased(all, err);
        etcd_lease_put(all->t.ec, all->t.lease);
    }
    hfi_free(all);
    return st;
}
