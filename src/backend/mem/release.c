/* SPDX-License-Identifier: MIT
 *
 * release.c - giving back a lock of mem:, or a place in its queue; or a part of
 * it: the right to be alone, or only the use of it.  What belongs to another
 * stays as it is, since tokens are unique.
 */
#include "mem.h"

#include "base/env.h"
#include "base/mutant.h"

#include "base/banned.h"

hf_status mem_not_ours(const struct hfi_conn *conn, struct hf_error *err)
{
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    conn->endpoint);
}

hf_status mem_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                      struct hfi_receipt *receipt, int64_t deadline,
                      struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine = NULL;
    struct mem_key *key;
    bool ours = false;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_find(mc->table, claim->key);
    if (key) {
        mem_expire(key, hfi_now());
        mine = mem_by_token(&key->holders, claim->token);
        if (!mine)
            mine = mem_by_token(&key->queue, claim->token);
        if (!mine && HFI_MUTANT(release_without_owner))
            mine = mem_first(&key->holders);
        ours = mine && !mine->broken;
        if (mine && mine->permits && HFI_MUTANT(permit_not_returned))
            mine->broken = true; /* and stays */
        else
            mem_entry_free(mine);
        if (mine) {
            mem_wake_next(key);
            mem_changed(mc->table, claim->key);
        }
        mem_forget_if_unused(mc->table, key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    receipt->registered = false;
    return ours ? HF_OK : mem_not_ours(conn, err);
}

/* The key of a claim that holds it, and its grant, with the table's mutex held;
 * NULL if it does not. */
struct mem_key *mem_held(struct mem_conn *mc, const struct hfi_claim *claim,
                         struct mem_entry **mine)
{
    struct mem_key *key = mem_find(mc->table, claim->key);

    *mine = NULL;
    if (key) {
        mem_expire(key, hfi_now());
        *mine = mem_by_token(&key->holders, claim->token);
        if (!*mine)
            mem_forget_if_unused(mc->table, key);
    }
    return *mine && !(*mine)->broken ? key : NULL;
}

hf_status mem_downgrade(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt, int64_t deadline,
                        struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    int64_t until = hfi_now() + 2; /* of the mutant's gap */
    hf_status st = HF_OK;
    struct mem_entry *mine;
    struct mem_key *key;

    (void)receipt;
    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_held(mc, claim, &mine);
    if (!key) {
        st = mem_not_ours(conn, err);
    } else if (!mine->shared && mem_count(&key->holders) > 1) {
        st = hfi_fail_joined(err, claim);
    } else {
        mine->shared = true;
        if (HFI_MUTANT(downgrade_through_free)) {
            hfi_link_remove(&mine->link);
            mem_wake_next(key);
            pthread_mutex_unlock(&mc->table->mu);
            while (hfi_now() < until)
                continue;
            pthread_mutex_lock(&mc->table->mu);
            hfi_link_append(&key->holders, &mine->link);
        }
        mem_wake_next(key);
        mem_changed(mc->table, claim->key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    return st;
}

hf_status mem_keep(struct hfi_conn *conn, const struct hfi_claim *claim,
                   struct hfi_receipt *receipt, int64_t ms, int64_t deadline,
                   struct hf_error *err)
{
    struct mem_conn *mc = (struct mem_conn *)conn;
    struct mem_entry *mine;
    struct mem_key *key;

    (void)deadline;
    pthread_mutex_lock(&mc->table->mu);
    key = mem_held(mc, claim, &mine);
    if (key) {
        mine->kept = true;
        mine->conn = NULL; /* Nobody is told of it any more. */
        mine->expires = hfi_now() + ms;
        mem_changed(mc->table, claim->key);
    }
    pthread_mutex_unlock(&mc->table->mu);
    receipt->registered = false;
    return key ? HF_OK : mem_not_ours(conn, err);
}
