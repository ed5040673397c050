/* SPDX-License-Identifier: MIT
 *
 * break.c - an operator takes a lock of mem: away.  Its holder is told at once; a
 * grant that is only marked stays taken until it is released or lapses.
 */
#include "mem.h"

#include "base/env.h"

#include "base/banned.h"

/* Tell the holders of that grant that it is over; mark it, or end it. */
static hf_status mem_end_grant(struct hfi_conn *conn, const char *name,
                               uint64_t fence, bool at_once,
                               struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct hfi_link *at, *next;
    struct mem_key *key;
    bool any = false;

    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, name);
    if (key)
        mem_expire(key, hfi_now());
    for (at = key ? key->holders.next : NULL; at && at != &key->holders;
         at = next) {
        struct mem_entry *holder = hfi_container(at, struct mem_entry, link);

        next = at->next;
        if (holder->fence != fence)
            continue;
        any = holder->broken = true;
        if (holder->conn)
            hfi_gone(holder->conn, name, holder->token, HF_LOSS_BROKEN);
        if (at_once)
            mem_entry_free(holder);
    }
    if (any && at_once)
        mem_wake_next(key);
    if (any)
        mem_changed(mc->table, name);
    if (key)
        mem_forget_if_unused(mc->table, key);
    pthread_mutex_unlock(&mc->table->mu);
    if (any)
        return HF_OK;
    return hfi_fail(err, HF_LOST, "%s: that grant is over", conn->endpoint);
}

hf_status mem_break(struct hfi_conn *conn, const char *name, uint64_t fence,
                    int64_t deadline, struct hf_error *err)
{
    (void)deadline;
    return mem_end_grant(conn, name, fence, false, err);
}

hf_status mem_free_grant(struct hfi_conn *conn, const char *name,
                         uint64_t fence, int64_t deadline, struct hf_error *err)
{
    (void)deadline;
    return mem_end_grant(conn, name, fence, true, err);
}
