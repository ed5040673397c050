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
 *  (4) All holders of a key use one name, versions begin at 0 for each of them,
 *      and no transaction can be made conditional on a czxid.  So each node of
 *      ours has a companion, an ephemeral node beside it whose name has the
 *      token of the claim.  One transaction creates both, one moves both to
 *      another session, one removes both, and the end of a session does.  So
 *      while the companion is there the node is that of the claim; whatever
 *      changes or removes the node checks or removes the companion in the same
 *      transaction: a release, what lapses, a break and a move.
 *  (5) A node without its companion is another program's, or somebody has
 *      removed the companion by hand.  Either is known when a transaction finds
 *      no companion and the node is still there after that.  Such a node is
 *      removed alone.
 *  (6) Who waits leaves no trace that a holder could see, so a lease lingers
 *      for a second at most, whatever linger_ms says.
 *
 * LIMITS  A program that removes the node by hand leaves the companion.  The
 * token in the node is compared just before, so only if that program and the
 * next holder come in between, a release hits the next holder's node.
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
        node->sent = node->paired = true;
        pthread_mutex_unlock(&zc->mu);
        return node->path ? HF_OK : hfi_nomem(err);
    }
    pthread_mutex_lock(&zc->mu);
    zk_node_clear(node);
    node->paired = false;
    pthread_mutex_unlock(&zc->mu);
    if (!claim->queue || !node->watched)
        return HF_BUSY;
    st = zk_arm(ses, node, node->parent, deadline, again, err);
    return st || *again ? st : HF_BUSY;
}

/* ephemeral.c (4); false: no memory. */
static bool ephemeral_create(struct zk_batch *reqs, const struct zk_node *node,
                             const struct hfi_claim *claim)
{
    const struct zk_session *ses = reqs->ses;
    char data[ZK_DATA_MAX], *companion;
    zoo_op_t ops[2];

    companion = zk_companion_path(ses->conn, claim->token);
    if (!companion)
        return false;
    zk_data_write(data, claim, ses->got_ms, 0, 0);
    zoo_create_op_init(&ops[0], node->parent, data, (int)strlen(data),
                       zk_acl(ses->conn), ZOO_EPHEMERAL, reqs->made,
                       sizeof(reqs->made));
    zoo_create_op_init(&ops[1], companion, "", 0, zk_acl(ses->conn),
                       ZOO_EPHEMERAL, reqs->made, sizeof(reqs->made));
    zk_multi(reqs, 2, ops);
    hfi_free(companion);
    return true;
}

hf_status zk_ephemeral_step(struct zk_session *ses, struct zk_node *node,
                            const struct hfi_claim *claim,
                            struct hfi_answer *busy, int64_t deadline,
                            bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 2);
    int64_t before;
    hf_status st;
    int rc;

    (void)busy;
    if (!reqs)
        return hfi_nomem(err);
    pthread_mutex_lock(&zc->mu);
    before = zc->zxid;
    node->sent = node->paired = true;
    pthread_mutex_unlock(&zc->mu);
    if (!ephemeral_create(reqs, node, claim)) {
        zk_batch_end(reqs);
        return hfi_nomem(err);
    }
    zk_get(reqs, node->parent, false);
    if (zk_batch_wait(reqs, deadline)) {
        zk_batch_end(reqs);
        return zk_no_answer(zc, err);
    }
    rc = reqs->ops[0].rc;
    if (!rc && !reqs->ops[1].rc) {
        pthread_mutex_lock(&zc->mu);
        zk_last_created(zc, reqs->ops[1].stat.czxid, before);
        pthread_mutex_unlock(&zc->mu);
    }
    if (rc == ZNONODE) {
        pthread_mutex_lock(&zc->mu);
        node->sent = node->paired = false;
        pthread_mutex_unlock(&zc->mu);
        *again = true;
        st = zk_make_parents(ses, zc->root, deadline, err);
    } else if (rc == ZNODEEXISTS && reqs->results[1].err == ZNODEEXISTS) {
        /* Somebody has removed the node of an earlier try, and that alone. */
        pthread_mutex_lock(&zc->mu);
        zk_node_unpair(node);
        pthread_mutex_unlock(&zc->mu);
        *again = true;
        st = HF_OK;
    } else if (rc && rc != ZNODEEXISTS) {
        st = zk_status(zc, rc, "create", err);
    } else {
        st = ephemeral_judge(ses, node, claim, &reqs->ops[1], deadline, again,
                             err);
    }
    zk_batch_end(reqs);
    return st;
}
