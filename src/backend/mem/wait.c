/* SPDX-License-Identifier: MIT
 *
 * wait.c - who is told of what: those in the queue of mem: are always woken
 * (table.c), and a holder can ask to be told that others wait.
 */
#include "mem.h"

#include "base/banned.h"

/* Places are always woken; a holder wants to hear of others from now on. */
hf_status mem_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
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
        mine = mem_by_token(&key->holders, claim->token);
    if (mine) {
        mine->watched = true;
        if (!hfi_link_alone(&key->queue))
            hfi_wanted(conn, key->name);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return HF_OK;
}

void mem_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                 struct hfi_receipt *receipt)
{
    (void)conn;
    (void)claim;
    (void)receipt;
}
