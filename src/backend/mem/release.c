/* SPDX-License-Identifier: MIT
 *
 * release.c - giving back a lock of mem:, or a place in its queue.  What belongs to
 * another stays as it is, since tokens are unique.
 */
#include "mem.h"

#include "base/env.h"
#include "base/mutant.h"

#include "base/banned.h"

hf_status mem_release(struct hfi_conn *conn, const struct hfi_claim *claim,
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
    receipt->registered = false;
    if (mine)
        return HF_OK;
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    conn->endpoint);
}
