/* SPDX-License-Identifier: MIT
 *
 * inspect.c - looking at the locks of mem:; the rules are in mem.c.
 */
#include "mem.h"

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

static int32_t mem_count(const struct hfi_link *list)
{
    const struct hfi_link *at;
    int32_t n = 0;

    for (at = list->next; at != list; at = at->next)
        n++;
    return n;
}

static void mem_describe(struct mem_key *key, struct hf_info *ret)
{
    struct mem_entry *holder = mem_first(&key->holders);
    int64_t now = hfi_now();

    ret->holders = mem_count(&key->holders);
    ret->waiters = mem_count(&key->queue);
    ret->held = holder != NULL;
    if (!holder)
        return;
    ret->shared = holder->shared;
    ret->fence = holder->fence;
    ret->broken = holder->broken;
    ret->left_ms = holder->expires - now;
    ret->since_ms = now - holder->since;
    snprintf(ret->owner, sizeof(ret->owner), "%s",
             holder->owner ? holder->owner : holder->token);
    snprintf(ret->note, sizeof(ret->note), "%s",
             holder->note ? holder->note : "");
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

/* What mem_list() copies while it has the mutex, to call out without it. */
struct mem_found {
    struct hfi_link link;
    struct hf_info info;
    char name[];
};

static bool mem_collect(struct mem_key *key, struct hfi_link *found)
{
    size_t size = strlen(key->name) + 1;
    struct mem_found *item = hfi_alloc(sizeof(*item) + size);

    if (!item)
        return false;
    memcpy(item->name, key->name, size);
    item->info = (struct hf_info){.size = sizeof(item->info)};
    mem_describe(key, &item->info);
    hfi_link_append(found, &item->link);
    return true;
}

hf_status mem_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                   void *arg, int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_link found = {&found, &found};
    struct hfi_node *node = NULL;
    bool ok = true, more = true;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    while (ok && (node = hfi_map_next(&mc->table->keys, node))) {
        struct mem_key *key = hfi_container(node, struct mem_key, node);

        mem_expire(key, hfi_now());
        if (!hfi_link_alone(&key->holders) &&
            !strncmp(key->name, prefix, strlen(prefix)))
            ok = mem_collect(key, &found);
    }
    pthread_mutex_unlock(&mc->table->mu);
    while (!hfi_link_alone(&found)) {
        struct mem_found *item =
            hfi_container(found.next, struct mem_found, link);

        more = more && ok && fn(arg, item->name, &item->info);
        hfi_link_remove(&item->link);
        hfi_free(item);
    }
    return ok ? HF_OK : hfi_nomem(err);
}
