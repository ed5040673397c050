/* SPDX-License-Identifier: MIT
 *
 * mem.c - locks between the threads of one process.
 *
 * ON THE WIRE  Nothing: the service is a table in this process.  `mem:` is a
 *   table of the client's own; `mem:NAME` is shared by all clients of the
 *   process that say the same name.
 *
 * INVARIANTS
 *  (1) A key has one holder, or several that are all shared, or all have the
 *      same owner id, or have a slot each of its permits.  A handle is taken up
 *      in the mode of its grant only, and nobody joins a grant that is broken
 *      or was released.
 *  (2) The queue is served in order: a key that is free, or has room, belongs to
 *      the first places in it, and nobody else is granted meanwhile.
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
#include "mem.h"

#include "base/alloc.h"

#include "base/banned.h"

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

static const char *const mem_schemes[] = {"mem", NULL};

const struct hfi_backend hfi_backend_mem = {
    .schemes = mem_schemes,
    .conn_size = sizeof(struct mem_conn),
    .observation_size = sizeof(struct mem_observation),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_QUEUED |
              HF_TRAIT_NOTIFY | HF_TRAIT_SHARED | HF_TRAIT_REENTRANT |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK | HF_TRAIT_NOTED |
              HF_TRAIT_PERMITS | HF_TRAIT_MIN_HOLD,
    .page = "file",
    .open = mem_open,
    .close = mem_close,
    .try_acquire = mem_try_acquire,
    .try_acquire_all = mem_try_acquire_all,
    .renew = mem_renew,
    .release = mem_release,
    .keep = mem_keep,
    .downgrade = mem_downgrade,
    .watch = mem_watch,
    .unwatch = mem_unwatch,
    .attach = mem_attach,
    .take_over = mem_take_over,
    .inspect = mem_inspect,
    .list = mem_list,
    .holders = mem_holders,
    .waiters = mem_waiters,
    .break_grant = mem_break,
    .free_grant = mem_free_grant,
    .observe = mem_observe,
    .unobserve = mem_unobserve,
    .promote = mem_promote,
    .collect = mem_collect_keys,
};
