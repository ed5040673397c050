/* SPDX-License-Identifier: MIT
 *
 * renew.c - keeping a lock of mem:; the rules are in mem.c.
 */
#include "mem.h"

#include "base/env.h"
#include "base/mutant.h"

#include "base/banned.h"

/* The mutant: one ttl for all who share. */
static void mem_renew_others(struct mem_key *key, int64_t end)
{
    struct hfi_link *at;

    for (at = key->holders.next; at != &key->holders; at = at->next)
        hfi_container(at, struct mem_entry, link)->expires = end;
}

static void mem_renew_one(struct mem_table *table, struct hfi_renewal *item)
{
    struct mem_key *key = mem_find(table, item->claim->key);
    int64_t now = hfi_now(), end = now + item->ttl_ms;
    struct mem_entry *mine = NULL;

    if (key) {
        mem_expire(key, now);
        mine = mem_by_token(&key->holders, item->claim->token);
    }
    item->st = mine && !mine->broken && !mine->kept ? HF_OK : HF_LOST;
    if (item->st == HF_OK) {
        if (end > mine->expires || item->ttl_ms < item->claim->ttl_ms)
            mine->expires = end;
        if (mine->shared && HFI_MUTANT(readers_share_a_lease))
            mem_renew_others(key, end);
    } else if (mine && mine->broken)
        item->reason = HF_LOSS_BROKEN;
    else if (key && mem_first(&key->holders))
        item->reason = HF_LOSS_STOLEN;
    else
        item->reason = HF_LOSS_DELETED;
}

void mem_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
               int64_t deadline, struct hf_error *err)
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
