/* SPDX-License-Identifier: MIT
 *
 * mem.c - locks between the threads of one process.
 *
 * ON THE WIRE  Nothing: the service is a table in this process.  `mem:` is a
 *   table of the client's own; `mem:NAME` is shared by all clients of the
 *   process that say the same name.
 *
 * INVARIANTS
 *  (1) A key has one holder, or several that are all shared or all have the
 *      same owner id.  What was granted in one mode is found in that mode only,
 *      and nobody joins a grant that is broken.
 *  (2) The queue is served in order: a key that is free belongs to the first
 *      place in it, and nobody else is granted meanwhile.
 *  (3) The fence is one counter for the whole process, so it rises for each key
 *      also after the key, or the table, was forgotten.
 *  (4) The table's mutex is taken before that of a client, never after
 *      (backend/backend.h (5)).
 *
 * LEASE  Grants lapse by the clock, as on a server, although the holder's
 *   process cannot die without the table: tests of everything that leases do
 *   need no server for it.
 *
 * LIMITS  One process.
 */
#include "table.h"

#include "base/alloc.h"
#include "base/env.h"
#include "base/mutant.h"

#include "base/banned.h"

static _Atomic uint64_t mem_fence; /* mem.c (3) */

static hf_status mem_open(struct hfi_conn *conn, const struct hfi_url *url,
                          int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;

    (void)deadline;
    if (url->nhosts || url->user || strlen(url->path) > 128)
        return hfi_fail(err, HF_INVALID,
                        "mem: a short name may follow, as in mem:jobs");
    mc->table = mem_table_get(url->path);
    if (!mc->table)
        return hfi_nomem(err);
    snprintf(conn->endpoint, sizeof(conn->endpoint), "mem:%s", url->path);
    return HF_OK;
}

static void mem_close(struct hfi_conn *conn)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_node *node = NULL;
    struct mem_key *key;
    struct hfi_link *at;

    if (!mc->table)
        return;
    /* What was detached stays for others, but can no longer be told. */
    pthread_mutex_lock(&mc->table->mu);
    while ((node = hfi_map_next(&mc->table->keys, node))) {
        key = hfi_container(node, struct mem_key, node);
        for (at = key->holders.next; at != &key->holders; at = at->next) {
            struct mem_entry *holder =
                hfi_container(at, struct mem_entry, link);

            if (holder->conn == conn)
                holder->conn = NULL;
        }
    }
    pthread_mutex_unlock(&mc->table->mu);
    mem_table_put(mc->table);
    mc->table = NULL;
}

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
        receipt->placed = true;
    }
    if (mine)
        busy->place = mem_place_of(key, mine);
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
    receipt->placed = true;
    return HF_OK;
}

static hf_status mem_try_acquire(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 struct hfi_answer *busy, int64_t deadline,
                                 struct hf_error *err)
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

static void mem_renew_one(struct mem_table *table, struct hfi_renewal *item)
{
    struct mem_key *key = mem_find(table, item->claim->key);
    int64_t now = hfi_now(), end = now + item->ttl_ms;
    struct mem_entry *mine = NULL;

    if (key) {
        mem_expire(key, now);
        mine = mem_by_token(&key->holders, item->claim->token,
                            item->claim->shared);
    }
    item->st = mine && !mine->broken ? HF_OK : HF_LOST;
    if (item->st == HF_OK) {
        if (end > mine->expires || item->ttl_ms < item->claim->ttl_ms)
            mine->expires = end;
    } else if (mine)
        item->reason = HF_LOSS_BROKEN;
    else if (key && mem_first(&key->holders))
        item->reason = HF_LOSS_STOLEN;
    else
        item->reason = HF_LOSS_DELETED;
}

static void mem_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                      size_t n, int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    size_t i;

    (void)deadline;
    (void)err;
    pthread_mutex_lock(&mc->table->mu);
    for (i = 0; i < n; i++)
        mem_renew_one(mc->table, &items[i]);
    pthread_mutex_unlock(&mc->table->mu);
}

static hf_status mem_release(struct hfi_conn *conn,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt, int64_t deadline,
                             struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine = NULL;
    struct mem_key *key;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, claim->key);
    if (key) {
        mem_expire(key, hfi_now());
        mine = mem_by_token(&key->holders, claim->token, claim->shared);
        if (!mine)
            mine = mem_by_token(&key->queue, claim->token, claim->shared);
        if (!mine && HFI_MUTANT(release_without_owner))
            mine = mem_first(&key->holders);
        mem_entry_free(mine);
        if (mine)
            mem_wake_next(key);
        mem_forget_if_unused(mc->table, key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    receipt->placed = false;
    if (mine)
        return HF_OK;
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    conn->endpoint);
}

/* Places are always woken; a holder wants to hear of others from now on. */
static hf_status mem_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, int64_t deadline,
                           struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine = NULL;
    struct mem_key *key;

    (void)receipt;
    (void)deadline;
    (void)err;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, claim->key);
    if (key)
        mine = mem_by_token(&key->holders, claim->token, claim->shared);
    if (mine) {
        mine->watched = true;
        if (!hfi_link_alone(&key->queue))
            hfi_wanted(conn, key->name);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return HF_OK;
}

static void mem_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt)
{
    (void)conn;
    (void)claim;
    (void)receipt;
}

static hf_status mem_attach(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            const struct hf_handle *handle,
                            struct hfi_receipt *receipt, struct hf_error *err)
{
    (void)conn;
    (void)claim;
    (void)handle;
    (void)receipt;
    (void)err;
    return HF_OK; /* What follows tells whether it is there. */
}

static hf_status mem_take_over(struct hfi_conn *conn,
                               const struct hfi_claim *claim, const char *token,
                               struct hfi_receipt *receipt, int64_t deadline,
                               struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine = NULL;
    struct mem_key *key;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, claim->key);
    if (key) {
        mem_expire(key, hfi_now());
        mine = mem_by_token(&key->holders, claim->token, claim->shared);
        if (!mine)
            mine = mem_by_token(&key->holders, token, claim->shared);
    }
    if (mine && (mine->broken || mine->fence != receipt->fence))
        mine = NULL;
    if (mine) {
        mine->conn = conn;
        memcpy(mine->token, claim->token, sizeof(mine->token));
    }
    pthread_mutex_unlock(&mc->table->mu);
    return mine ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: there is no such grant",
                           conn->endpoint);
}

static const char *const mem_schemes[] = {"mem", NULL};

const struct hfi_backend hfi_backend_mem = {
    .schemes = mem_schemes,
    .conn_size = sizeof(struct mem_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_QUEUED |
              HF_TRAIT_NOTIFY | HF_TRAIT_SHARED | HF_TRAIT_REENTRANT |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK | HF_TRAIT_NOTED,
    .open = mem_open,
    .close = mem_close,
    .try_acquire = mem_try_acquire,
    .renew = mem_renew,
    .release = mem_release,
    .watch = mem_watch,
    .unwatch = mem_unwatch,
    .attach = mem_attach,
    .take_over = mem_take_over,
    .inspect = mem_inspect,
    .list = mem_list,
    .break_grant = mem_break,
    .free_grant = mem_free_grant,
};
