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
                          struct hfi_receipt *receipt, struct hfi_answer *busy,
                          struct hf_error *err)
{
    struct mem_entry *holder = mem_first(&key->holders);
    const struct hfi_link *at;
    int64_t end = HFI_NEVER;

    if (!mine && claim->queue) {
        mine = mem_entry_new(conn, claim);
        if (!mine)
            return hfi_nomem(err);
        mine->since = hfi_now();
        hfi_link_append(&key->queue, &mine->link);
        receipt->registered = true;
    }
    if (mine)
        busy->position = mem_position_of(key, mine);
    for (at = key->holders.next; at != &key->holders; at = at->next)
        if (hfi_container(at, struct mem_entry, link)->expires < end)
            end = hfi_container(at, struct mem_entry, link)->expires;
    if (holder) {
        busy->left_ms = hfi_left_ms(end);
        if (holder->watched && holder->conn)
            hfi_wanted(holder->conn, key->name);
    }
    return HF_BUSY;
}

/* `equal` is the holder whose owner id it has, or NULL. */
static void mem_grant(struct mem_key *key, struct mem_entry *entry,
                      const struct mem_entry *equal, int64_t ttl_ms)
{
    entry->since = hfi_now();
    entry->expires = entry->since + ttl_ms;
    entry->watched = false;
    entry->fence = equal ? equal->fence : ++mem_fence;
    entry->slot = equal ? equal->slot : mem_free_slot(key, entry->permits);
    hfi_link_remove(&entry->link);
    hfi_link_append(&key->holders, &entry->link);
}

/* Is the key in use in another way?  mem.c (1) */
static hf_status mem_check_use(struct mem_key *key,
                               const struct hfi_claim *claim,
                               struct hf_error *err)
{
    const struct mem_entry *user = mem_first(&key->holders);

    if (!user)
        user = mem_first(&key->queue);
    if (user && user->permits != claim->permits)
        return hfi_fail_use(err, claim, user->permits);
    if (mem_other_mode(key, claim))
        return hfi_fail_other_mode(err, claim);
    return HF_OK;
}

/* With the table's mutex held. */
static hf_status mem_try(struct mem_conn *mc, struct mem_key *key,
                         const struct hfi_claim *claim,
                         struct hfi_receipt *receipt, struct hfi_answer *busy,
                         struct hf_error *err)
{
    struct mem_entry *mine = mem_by_token(&key->holders, claim->token);
    const struct mem_entry *equal;
    hf_status st;

    if (mine && !mine->broken) {
        mine->expires = hfi_now() + claim->ttl_ms;
        receipt->fence = mine->fence;
        receipt->slot = mine->slot;
        return HF_OK;
    }
    if (mine)
        return mem_busy(&mc->base, key, mine, claim, receipt, busy, err);
    st = mem_check_use(key, claim, err);
    if (st)
        return st;
    mine = mem_by_token(&key->queue, claim->token);
    /* Reentrancy does not queue: it would wait for itself. */
    equal = mem_equal(key, claim);
    if (!equal && !mem_is_turn(key, mine, claim))
        return mem_busy(&mc->base, key, mine, claim, receipt, busy, err);
    if (!mine)
        mine = mem_entry_new(&mc->base, claim);
    if (!mine)
        return hfi_nomem(err);
    mem_grant(key, mine, equal, claim->ttl_ms);
    receipt->fence = mine->fence;
    receipt->slot = mine->slot;
    receipt->registered = true;
    return HF_OK;
}

/* The same, of the key that the claim names. */
static hf_status mem_try_key(struct mem_conn *mc, const struct hfi_claim *claim,
                             struct hfi_receipt *receipt,
                             struct hfi_answer *busy, struct hf_error *err)
{
    struct mem_key *key = mem_get(mc->table, claim->key);
    hf_status st;

    if (!key)
        return hfi_nomem(err);
    mem_expire(key, hfi_now());
    st = mem_try(mc, key, claim, receipt, busy, err);
    if (!st)
        mem_changed(mc->table, claim->key);
    mem_forget_if_unused(mc->table, key);
    return st;
}

hf_status mem_try_acquire(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, struct hfi_answer *busy,
                          int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    hf_status st;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    st = mem_try_key(mc, claim, receipt, busy, err);
    pthread_mutex_unlock(&mc->table->mu);
    return st;
}

/* What was taken is given back before anybody else can see it. */
static void mem_untake(struct mem_conn *mc, const struct hfi_claim *claim,
                       struct hfi_receipt *receipt)
{
    struct mem_key *key = mem_find(mc->table, claim->key);

    if (key) {
        mem_entry_free(mem_by_token(&key->holders, claim->token));
        mem_changed(mc->table, claim->key);
        mem_forget_if_unused(mc->table, key);
    }
    receipt->registered = false;
}

hf_status mem_try_acquire_all(struct hfi_conn *conn, struct hfi_attempt *items,
                              size_t n, int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    hf_status st = HF_OK;
    size_t i, taken = 0;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    for (i = 0; i < n && !st; i++) {
        st = mem_try_key(mc, items[i].claim, items[i].receipt, &items[i].answer,
                         err);
        taken += !st;
    }
    for (i = 0; i < taken && st; i++)
        mem_untake(mc, items[i].claim, items[i].receipt);
    pthread_mutex_unlock(&mc->table->mu);
    return st;
}
