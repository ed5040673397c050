/* SPDX-License-Identifier: MIT
 *
 * ephemeral.c - recipe=ephemeral: one node, whoever creates it holds.
 *
 * Everybody who waits watches the same node and tries when it goes: simple, and
 * what some programs do, but without any order, and a herd of as many requests
 * as there are waiters at every release.
 *
 * INVARIANTS
 *  (1) The node is KEY itself, ephemeral, and says whose claim it is.
 *  (2) A create that finds the node there is ours if the node bears our token
 *      and belongs to our session: so a create without an answer is confirmed.
 *  (3) Fence is the czxid, also of a node that changed sessions (in its data).
 *  (4) A node changes sessions only while nobody can have removed it since it
 *      was read: versions alone do not tell two holders apart (move.c (4)).
 *  (5) Who waits leaves no trace that a holder could see, so a lease lingers
 *      for a second at most, whatever linger_ms says.
 *
 * LIMITS  Removing is not conditional on the czxid, which ZooKeeper cannot do:
 * it is compared just before.  An operator who removes the node by hand in
 * that moment may make a release hit the next holder's.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* The node is there: ours, another's, or no lock at all? */
static hf_status ephemeral_judge(struct zk_session *ses, struct zk_node *node,
                                 const struct hfi_claim *claim,
                                 const struct zk_op *op, int64_t deadline,
                                 bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct hf_info info = HF_INFO_INIT;
    char token[HFI_TOKEN_LEN + 1];
    uint64_t fence = (uint64_t)op->stat.czxid;
    hf_status st;

    if (op->rc == ZNONODE) {
        *again = true;
        return HF_OK;
    }
    if (op->rc)
        return zk_status(zc, op->rc, "get", err);
    if (!op->stat.ephemeralOwner)
        return hfi_fail(err, HF_PROTOCOL,
                        "%s: the node of this key is not an ephemeral one",
                        zc->base.endpoint);
    zk_data_read(op->text, &info, &fence, token);
    if (op->stat.ephemeralOwner == ses->id && !strcmp(token, claim->token)) {
        pthread_mutex_lock(&zc->mu);
        hfi_free(node->path);
        node->path = hfi_strdup(node->parent);
        node->fence = fence;
        node->sent = true;
        pthread_mutex_unlock(&zc->mu);
        return node->path ? HF_OK : hfi_nomem(err);
    }
    pthread_mutex_lock(&zc->mu);
    zk_node_clear(node);
    pthread_mutex_unlock(&zc->mu);
    if (!claim->queue || !node->watched)
        return HF_BUSY;
    st = zk_arm(ses, node, node->parent, deadline, again, err);
    return st || *again ? st : HF_BUSY;
}

hf_status zk_ephemeral_step(struct zk_session *ses, struct zk_node *node,
                            const struct hfi_claim *claim,
                            struct hfi_answer *busy, int64_t deadline,
                            bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 2);
    char data[ZK_DATA_MAX];
    hf_status st;
    int rc;

    (void)busy;
    if (!reqs)
        return hfi_nomem(err);
    zk_data_write(data, claim, ses->got_ms, 0);
    pthread_mutex_lock(&zc->mu);
    node->sent = true;
    pthread_mutex_unlock(&zc->mu);
    zk_create(reqs, node->parent, data, ZOO_EPHEMERAL);
    zk_get(reqs, node->parent, false);
    if (zk_batch_wait(reqs, deadline)) {
        zk_batch_end(reqs);
        return zk_no_answer(zc, err);
    }
    rc = reqs->ops[0].rc;
    if (rc == ZNONODE) {
        pthread_mutex_lock(&zc->mu);
        node->sent = false;
        pthread_mutex_unlock(&zc->mu);
        *again = true;
        st = zk_make_parents(ses, zc->root, deadline, err);
    } else if (rc && rc != ZNODEEXISTS) {
        st = zk_status(zc, rc, "create", err);
    } else {
        st = ephemeral_judge(ses, node, claim, &reqs->ops[1], deadline, again,
                             err);
    }
    zk_batch_end(reqs);
    return st;
}
