/* SPDX-License-Identifier: MIT
 *
 * queue.c - mem: puts a waiter first, and forgets keys that nobody uses.
 */
#include "mem.h"

#include "base/env.h"

#include "base/banned.h"

/* The first in the queue that has this token, owner id or note. */
static struct mem_entry *mem_named_waiter(const struct mem_key *key,
                                          const char *name)
{
    const struct hfi_link *at;
    struct mem_entry *place;

    for (at = key->queue.next; at != &key->queue; at = at->next) {
        place = hfi_container(at, struct mem_entry, link);
        if (!strcmp(place->token, name) ||
            (place->owner && !strcmp(place->owner, name)) ||
            (place->note && !strcmp(place->note, name)))
            return place;
    }
    return NULL;
}

hf_status mem_promote(struct hfi_conn *conn, const struct hfi_claim *claim,
                      struct hfi_receipt *receipt, const char *heir,
                      int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine, *place = NULL;
    struct mem_key *key;

    (void)receipt;
    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_held(mc, claim, &mine);
    if (key)
        place = mem_named_waiter(key, heir);
    if (place) {
        hfi_link_remove(&place->link);
        hfi_link_append(key->queue.next, &place->link); /* before the first */
        mem_wake_next(key); /* One who shares may join those who do now. */
    }
    pthread_mutex_unlock(&mc->table->mu);
    if (!key)
        return mem_not_ours(conn, err);
    return place ? HF_OK : hfi_fail_heir(err, claim, heir);
}

/* Has the key been free for so long? */
static bool mem_is_left(const struct mem_key *key, int64_t before)
{
    const struct hfi_link *at;

    for (at = key->holders.next; at != &key->holders; at = at->next)
        if (hfi_container(at, struct mem_entry, link)->expires > before)
            return false;
    return hfi_link_alone(&key->queue);
}

/* Keys go by themselves, except that a lease may have lapsed and nobody has
 * looked at the key since. */
hf_status mem_collect_keys(struct hfi_conn *conn, int64_t older_ms,
                           bool dry_run, struct hf_collected *ret,
                           int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    int64_t now = hfi_now();
    struct hfi_node *node, *next;
    struct mem_key *key;

    (void)deadline;
    (void)err;
    pthread_mutex_lock(&mc->table->mu);
    for (node = hfi_map_next(&mc->table->keys, NULL); node; node = next) {
        next = hfi_map_next(&mc->table->keys, node);
        key = hfi_container(node, struct mem_key, node);
        ret->looked_at++;
        if (!mem_is_left(key, now - older_ms)) {
            ret->kept++;
            continue;
        }
        ret->removed++;
        if (dry_run)
            continue;
        mem_expire(key, now);
        mem_forget_if_unused(mc->table, key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return HF_OK;
}
