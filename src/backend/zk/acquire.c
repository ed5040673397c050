/* SPDX-License-Identifier: MIT
 *
 * acquire.c - one try to take a lock: the steps of a recipe, until one is an answer.
 */
#include "zk.h"

#include "base/banned.h"

/* How many steps one try takes at most. */
#define TURNS 16

static hf_status acquire_step(struct zk_session *ses, struct zk_node *node,
                              const struct hfi_claim *claim,
                              struct hfi_answer *busy, int64_t deadline,
                              bool *again, struct hf_error *err)
{
    if (ses->conn->single)
        return zk_ephemeral_step(ses, node, claim, busy, deadline, again, err);
    if (claim->permits)
        return zk_permits_step(ses, node, claim, busy, deadline, again, err);
    return zk_sequential_step(ses, node, claim, busy, deadline, again, err);
}

/* Repeat the recipe's steps until one is an answer. */
static hf_status acquire_steps(struct zk_conn *zc, struct zk_node *node,
                               const struct hfi_claim *claim,
                               struct hfi_answer *busy, int64_t deadline,
                               struct hf_error *err)
{
    struct zk_session *ses;
    bool again = true;
    hf_status st = HF_OK;
    int turn;

    for (turn = 0; again && turn < TURNS; turn++) {
        again = false;
        st = zk_node_session(zc, node, claim->ttl_ms, deadline, &ses, err);
        if (st)
            break;
        st = acquire_step(ses, node, claim, busy, deadline, &again, err);
        pthread_mutex_lock(&zc->mu);
        if (st == HF_OK && node->ses != ses)
            again = true; /* zk.c (1): it ended meanwhile. */
        if (st == HF_UNAVAILABLE)
            again = ses->state == ZK_DEAD && !ses->denied;
        pthread_mutex_unlock(&zc->mu);
        zk_session_put(ses);
        if (st && st != HF_UNAVAILABLE)
            break;
    }
    if (!st && again)
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: the queue changes too fast",
                      zc->base.endpoint);
    return st;
}

hf_status zk_try_acquire(struct hfi_conn *conn, const struct hfi_claim *claim,
                         struct hfi_receipt *receipt, struct hfi_answer *busy,
                         int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_node *node;
    hf_status st;

    pthread_mutex_lock(&zc->mu);
    node = zk_node_find(zc, claim->token);
    if (!node)
        node = zk_node_new(zc, claim);
    if (node)
        node->busy = true;
    pthread_mutex_unlock(&zc->mu);
    if (!node)
        return hfi_nomem(err);
    st = acquire_steps(zc, node, claim, busy, deadline, err);
    pthread_mutex_lock(&zc->mu);
    node->busy = false;
    if (st == HF_OK) {
        zk_node_hold(zc, node, claim->ttl_ms);
        if (node->ses)
            zk_proof(node->ses, &busy->proof);
        else
            busy->proof.ms = 0; /* zk.c (1): it ended just now. */
        receipt->fence = node->fence;
        receipt->slot = node->slot;
    }
    receipt->registered = node->sent || node->path || claim->queue;
    if (!receipt->registered)
        zk_node_drop(zc, node);
    pthread_mutex_unlock(&zc->mu);
    return st;
}
