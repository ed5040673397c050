/* SPDX-License-Identifier: MIT
 *
 * acquire.c - taking a lock of mem: or a place in its queue; the rules are in
 * mem.c.
 */
#include "mem.h"

#include "base/env.h"

#include "base/banned.h"

static _Atomic uint64_t mem_fence; /* mem.c (3) */

/* Busy: queue up if that was asked for, and ask lingering holders to go. */
static hf_status mem_busy(struct hfi_conn *conn, struct mem_key *key,
                          struct mem_entry *mine, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, struct hfi_answer *busy)
{
    struct mem_entry *holder = mem_first(&key->holders);

    if (!mine && claim->queue) {
        mine = mem_entry_new(conn, claim);
        if (!mine)
            return HF_NOMEM;
        hfi_link_append(&key->queue, &mine->link);
        receipt->registered = true;
    }
    if (mine)
        busy->position = mem_position_of(key, mine);
    if (holder) {
        busy->left_ms = hfi_left_ms(holder->expires);
        if (holder->watched && holder->conn)
            hfi_wanted(holder->conn, key->name);
    }
    return HF_BUSY;
}

static void mem_grant(struct mem_key *key, struct mem_entry *entry,
                      int64_t ttl_ms)
{
    struct mem_entry *holder = mem_first(&key->holders);

    entry->since = hfi_now();
    entry->expires = entry->since + ttl_ms;
    entry->watched = false;
    entry->fence = holder && !holder->shared ? holder->fence : ++mem_fence;
    hfi_link_remove(&entry->link);
    hfi_link_append(&key->holders, &entry->link);
}

/* With the table's mutex held. */
static hf_status mem_try(struct mem_conn *mc, struct mem_key *key,
                         const struct hfi_claim *claim,
                         struct hfi_receipt *receipt, struct hfi_answer *busy)
{
    struct mem_entry *mine =
        mem_by_token(&key->holders, claim->token, claim->shared);
    struct mem_entry *first;
    bool join;

    if (mine && !mine->broken) {
        mine->expires = hfi_now() + claim->ttl_ms;
        receipt->fence = mine->fence;
        return HF_OK;
    }
    if (mine)
        return mem_busy(&mc->base, key, mine, claim, receipt, busy);
    mine = mem_by_token(&key->queue, claim->token, claim->shared);
    first = mem_first(&key->holders);
    /* Reentrancy does not queue: it would wait for itself. */
    join = first && !first->shared && mem_may_join(first, claim);
    if (!mem_may_join(first, claim) ||
        (!join && !mem_is_turn(key, mine, claim)))
        return mem_busy(&mc->base, key, mine, claim, receipt, busy);
    if (!mine)
        mine = mem_entry_new(&mc->base, claim);
    if (!mine)
        return HF_NOMEM;
    mem_grant(key, mine, claim->ttl_ms);
    receipt->fence = mine->fence;
    receipt->registered = true;
    return HF_OK;
}

hf_status mem_try_acquire(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, struct hfi_answer *busy,
                          int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_key *key;
    hf_status st;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_get(mc->table, claim->key);
    if (key) {
        mem_expire(key, hfi_now());
        st = mem_try(mc, key, claim, receipt, busy);
        mem_forget_if_unused(mc->table, key);
    } else {
        st = HF_NOMEM;
    }
    pthread_mutex_unlock(&mc->table->mu);
    return st == HF_NOMEM ? hfi_nomem(err) : st;
}
