/* SPDX-License-Identifier: MIT
 *
 * inspect.c - looking at the locks of mem:; the rules are in mem.c.
 */
#include "mem.h"

#include "backend/waiters.h"
#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

static void mem_describe_holder(struct mem_key *key,
                                const struct mem_entry *holder,
                                struct hf_info *ret)
{
    int64_t now = hfi_now();

    ret->holders = mem_count(&key->holders);
    ret->waiters = mem_count(&key->queue);
    ret->held = holder != NULL;
    if (!holder)
        return;
    ret->shared = holder->shared;
    ret->permits = holder->permits;
    ret->slot = holder->permits ? holder->slot : -1;
    ret->fence = holder->fence;
    ret->broken = holder->broken;
    ret->kept = holder->kept;
    ret->left_ms = holder->expires - now;
    ret->since_ms = now - holder->since;
    snprintf(ret->owner, sizeof(ret->owner), "%s",
             holder->owner ? holder->owner : holder->token);
    snprintf(ret->note, sizeof(ret->note), "%s",
             holder->note ? holder->note : "");
}

static void mem_describe(struct mem_key *key, struct hf_info *ret)
{
    mem_describe_holder(key, mem_first(&key->holders), ret);
}

hf_status mem_inspect(struct hfi_conn *conn, const char *name,
                      struct hf_info *ret, int64_t deadline,
                      struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_key *key;

    (void)deadline;
    (void)err;
    ret->waiters = 0;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, name);
    if (key) {
        mem_expire(key, hfi_now());
        mem_describe(key, ret);
        mem_forget_if_unused(mc->table, key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return HF_OK;
}

/* What is copied while the mutex is held, to call out without it. */
struct mem_found {
    struct hfi_link link;
    struct hf_info info;
    char name[];
};

static bool mem_collect(struct mem_key *key, const struct mem_entry *holder,
                        struct hfi_link *found)
{
    size_t size = strlen(key->name) + 1;
    struct mem_found *item = hfi_alloc(sizeof(*item) + size);

    if (!item)
        return false;
    memcpy(item->name, key->name, size);
    item->info = (struct hf_info){.size = sizeof(item->info), .slot = -1};
    mem_describe_holder(key, holder, &item->info);
    hfi_link_append(found, &item->link);
    return true;
}

static struct mem_found *mem_take_found(struct hfi_link *found)
{
    struct mem_found *item;

    if (hfi_link_alone(found))
        return NULL;
    item = hfi_container(found->next, struct mem_found, link);
    hfi_link_remove(&item->link);
    return item;
}

hf_status mem_holders(struct hfi_conn *conn, const char *name,
                      hf_holders_fn *fn, void *arg, int64_t deadline,
                      struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_link found = {&found, &found};
    const struct hfi_link *at;
    bool ok = true, more = true;
    struct mem_found *item;
    struct mem_key *key;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, name);
    if (key) {
        mem_expire(key, hfi_now());
        for (at = key->holders.next; ok && at != &key->holders; at = at->next)
            ok = mem_collect(key, hfi_container(at, struct mem_entry, link),
                             &found);
        mem_forget_if_unused(mc->table, key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    while ((item = mem_take_found(&found))) {
        more = more && ok && fn(arg, &item->info);
        hfi_free(item);
    }
    return ok ? HF_OK : hfi_nomem(err);
}

hf_status mem_waiters(struct hfi_conn *conn, const char *name,
                      hf_waiters_fn *fn, void *arg, int64_t deadline,
                      struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_waiters found = {.n = 0};
    const struct mem_entry *entry;
    const struct hfi_link *at;
    struct hf_waiter *waiter;
    struct mem_key *key;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, name);
    for (at = key ? key->queue.next : NULL; key && at != &key->queue;
         at = at->next) {
        entry = hfi_container(at, struct mem_entry, link);
        waiter = hfi_waiters_add(&found, 0);
        if (!waiter)
            break;
        waiter->shared = entry->shared;
        waiter->permits = entry->permits;
        waiter->since_ms = hfi_now() - entry->since;
        hfi_waiter_names(waiter, entry->owner, entry->token, entry->note);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return hfi_waiters_tell(&found, HF_OK, fn, arg, err);
}

hf_status mem_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                   void *arg, int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_link found = {&found, &found};
    struct hfi_node *node = NULL;
    bool ok = true, more = true;
    struct mem_found *item;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    while (ok && (node = hfi_map_next(&mc->table->keys, node))) {
        struct mem_key *key = hfi_container(node, struct mem_key, node);

        mem_expire(key, hfi_now());
        if (!hfi_link_alone(&key->holders) &&
            !strncmp(key->name, prefix, strlen(prefix)))
            ok = mem_collect(key, mem_first(&key->holders), &found);
    }
    pthread_mutex_unlock(&mc->table->mu);
    while ((item = mem_take_found(&found))) {
        more = more && ok && fn(arg, item->name, &item->info);
        hfi_free(item);
    }
    return ok ? HF_OK : hfi_nomem(err);
}
