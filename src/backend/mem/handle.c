/* SPDX-License-Identifier: MIT
 *
 * handle.c - taking up a lock of mem: that was detached: token and connection
 * change in one step, under the mutex, so a handle is taken up once.
 */
#include "mem.h"

#include "base/env.h"

#include "base/banned.h"

hf_status mem_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
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

hf_status mem_take_over(struct hfi_conn *conn, const struct hfi_claim *claim,
                        const char *token, struct hfi_receipt *receipt,
                        int64_t deadline, struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine = NULL;
    struct mem_key *key;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, claim->key);
    if (key) {
        mem_expire(key, hfi_now());
        mine = mem_by_token(&key->holders, claim->token);
        if (!mine)
            mine = mem_by_token(&key->holders, token);
    }
    /* The bearer of a shared lock's handle may say that it was exclusive, and
     * then has nothing. */
    if (mine &&
        (mine->broken || mine->kept || mine->fence != receipt->fence ||
         mine->shared != claim->shared || mine->permits != claim->permits))
        mine = NULL;
    if (mine) {
        mine->conn = conn;
        receipt->slot = mine->slot;
        memcpy(mine->token, claim->token, sizeof(mine->token));
        mem_changed(mc->table, claim->key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return mine ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: there is no such grant",
                           conn->endpoint);
}
