/* SPDX-License-Identifier: MIT
 *
 * several.c - taking several keys in one transaction.
 *
 * That is tried where it is likely to succeed: each key is free as far as this
 * client knows, and nobody here works on it.  Everything else, a queue, a key
 * that must be looked at first, one that was taken meanwhile, is left to a try
 * for each.  Keys that are likely to be new are made first, all in one
 * transaction as well: consul.c (2).
 *
 * INVARIANT  As in acquire.c, each lock is conditional on the index of its
 *   entry; so is all that is written without an answer.  All or none are taken,
 *   and all have the same fence.
 */
#include "consul.h"

#include "base/banned.h"

/* Two operations for each, in one transaction. */
#define SEVERAL_MAX (CONSUL_OPS_MAX / 2)

struct several {
    struct consul_conn *cc;
    struct hfi_attempt *items;
    size_t n, entered;
    struct consul_key *keys[SEVERAL_MAX];
    struct consul_session *s;
    int64_t deadline;
    struct hf_error *err;
};

/* Have all keys to ourselves, without waiting for any: another call may have one
 * of them and wait for one that we have. */
static bool several_enter(struct several *all)
{
    struct consul_key *k;
    size_t i;

    for (i = 0; i < all->n; i++) {
        if (consul_is_joint(all->items[i].claim) ||
            hfi_consul_key_enter(all->cc, all->items[i].claim->key, 0,
                                 &all->keys[i], NULL))
            return false;
        all->entered++;
        k = all->keys[i];
        if (k->holder[0] || k->seen != CONSUL_FREE)
            return false;
        if (all->cc->options.fair && k->index && k->line != CONSUL_LINE_EMPTY)
            return false; /* Somebody may stand in line. */
    }
    return true;
}

static void several_leave(struct several *all)
{
    size_t i;

    for (i = 0; i < all->entered; i++)
        hfi_consul_key_leave(all->cc, all->keys[i]);
}

/* What is known of the keys was wrong. */
static hf_status several_unknown(struct several *all)
{
    size_t i;

    for (i = 0; i < all->n; i++)
        all->keys[i]->seen = CONSUL_UNKNOWN;
    return HF_UNSUPPORTED;
}

/* Make those that do not exist, as far as we know. */
static hf_status several_create(struct several *all)
{
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    size_t i, n = 0;
    hf_status st;

    for (i = 0; i < all->n; i++) {
        if (all->keys[i]->index)
            continue;
        hfi_consul_expect_index(&ops, all->keys[i]->name, 0);
        hfi_consul_op(&ops, "set", all->keys[i]->name, NULL, "", 0);
        n++;
    }
    if (!n)
        return HF_OK;
    st = hfi_consul_txn(all->cc, &all->cc->calls, &ops, true, all->deadline,
                        &done, all->err);
    if (st || !done.ok || !done.index) {
        several_unknown(all);
        atomic_store(&all->cc->fresh, false);
        return st == HF_UNCERTAIN || !st ? HF_UNSUPPORTED : st;
    }
    for (i = 0; i < all->n; i++)
        if (!all->keys[i]->index)
            all->keys[i]->index = done.index;
    return HF_OK;
}

/* No answer came, or one that says nothing: each may be taken. */
static hf_status several_maybe(struct several *all)
{
    size_t i;

    for (i = 0; i < all->n; i++) {
        all->keys[i]->expected_index = all->keys[i]->index;
        hfi_consul_key_maybe(all->cc, all->keys[i], all->items[i].claim->token,
                             all->s);
        all->items[i].receipt->registered = true;
    }
    return hfi_fail(all->err, HF_UNCERTAIN,
                    "%s: no answer that says whether they were locked",
                    all->cc->base.endpoint);
}

static hf_status several_granted(struct several *all, uint64_t index)
{
    struct consul_try t = {.cc = all->cc, .s = all->s};
    size_t i;

    for (i = 0; i < all->n; i++) {
        t.k = all->keys[i];
        t.claim = all->items[i].claim;
        t.receipt = all->items[i].receipt;
        t.k->index = index;
        hfi_consul_granted(&t, index);
    }
    return HF_OK;
}

static hf_status several_lock(struct several *all)
{
    uint64_t before = atomic_load(&all->cc->newest);
    char value[CONSUL_VALUE_MAX];
    struct consul_ops ops = {.len = 0};
    struct consul_done done;
    hf_status st;
    size_t i;

    for (i = 0; i < all->n; i++) {
        hfi_consul_value(value, all->items[i].claim, 0, 0);
        hfi_consul_expect_index(&ops, all->keys[i]->name, all->keys[i]->index);
        hfi_consul_op(&ops, "lock", all->keys[i]->name, all->s->id, value, 0);
    }
    st = hfi_consul_txn(all->cc, &all->cc->calls, &ops, true, all->deadline,
                        &done, all->err);
    if (st == HF_UNCERTAIN || st == HF_PROTOCOL ||
        (!st && done.ok && !done.index))
        return several_maybe(all);
    if (st)
        return st;
    if (done.ok) {
        hfi_consul_index_rose(all->cc, done.index, before);
        return several_granted(all, done.index);
    }
    if (done.bad_session)
        hfi_consul_session_dead(all->cc, all->s);
    return several_unknown(all);
}

hf_status hfi_consul_try_acquire_all(struct hfi_conn *conn,
                                     struct hfi_attempt *items, size_t n,
                                     int64_t deadline, struct hf_error *err)
{
    struct several all = {.cc = (struct consul_conn *)conn,
                          .items = items,
                          .n = n,
                          .deadline = deadline,
                          .err = err};
    hf_status st = HF_UNSUPPORTED;

    if (!n || n > SEVERAL_MAX)
        return st;
    if (several_enter(&all))
        st = hfi_consul_session_get(all.cc, items[0].claim->ttl_ms, false,
                                    deadline, &all.s, err);
    if (!st)
        st = several_create(&all);
    if (!st)
        st = several_lock(&all);
    several_leave(&all);
    hfi_consul_session_put(all.cc, all.s);
    return st;
}
