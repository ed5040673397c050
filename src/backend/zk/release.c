/* SPDX-License-Identifier: MIT
 *
 * release.c - giving a lock back, or what a claim has left.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* recipe=ephemeral: the name may be another's by now. */
static hf_status release_check_single(struct zk_session *ses,
                                      struct zk_node *node,
                                      const struct hfi_claim *claim,
                                      bool *broken, int64_t deadline,
                                      struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    struct hf_info info = HF_INFO_INIT;
    char token[HFI_TOKEN_LEN + 1] = "";
    uint64_t fence;
    int64_t owner;
    hf_status st;

    if (!reqs)
        return hfi_nomem(err);
    zk_get(reqs, node->parent, false);
    if (zk_batch_wait(reqs, deadline))
        st = zk_no_answer(zc, err);
    else if (reqs->ops[0].rc == ZNONODE)
        st = HF_LOST;
    else
        st = zk_status(zc, reqs->ops[0].rc, "get", err);
    if (!st) {
        zk_data_read(reqs->ops[0].text, &info, &fence, token);
        owner = reqs->ops[0].stat.ephemeralOwner;
        if (!owner || (owner != ses->id && owner != node->alt) ||
            strcmp(token, claim->token) != 0)
            st = HF_LOST;
        *broken = info.broken;
    }
    zk_batch_end(reqs);
    return st;
}

/* What became of the removal that is sent. */
static hf_status release_answer(struct zk_batch *reqs, int64_t deadline,
                                struct hf_error *err)
{
    const struct zk_conn *zc = reqs->ses->conn;
    hf_status st;

    if (zk_batch_wait(reqs, deadline))
        st = zk_no_answer(zc, err);
    else if (reqs->ops[0].rc == ZNONODE)
        st = HF_LOST;
    else
        st = zk_status(zc, reqs->ops[0].rc, "delete", err);
    zk_batch_end(reqs);
    return st;
}

static hf_status release_delete(struct zk_session *ses, const char *path,
                                int64_t deadline, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 1);

    if (!reqs)
        return hfi_nomem(err);
    zk_delete(reqs, path, -1);
    return release_answer(reqs, deadline, err);
}

/* The node has changed since it was last seen: was it broken?  Who joins changes
 * it, too. */
static hf_status release_look(struct zk_session *ses, const char *path,
                              bool *broken, int64_t deadline,
                              struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    struct hf_info info = HF_INFO_INIT;
    char token[HFI_TOKEN_LEN + 1];
    hf_status st = HF_OK;
    uint64_t fence;

    if (!reqs)
        return hfi_nomem(err);
    zk_get(reqs, path, false);
    if (zk_batch_wait(reqs, deadline))
        st = zk_no_answer(ses->conn, err);
    else if (reqs->ops[0].rc == ZNONODE)
        st = HF_LOST;
    else
        st = zk_status(ses->conn, reqs->ops[0].rc, "get", err);
    if (!st) {
        zk_data_read(reqs->ops[0].text, &info, &fence, token);
        *broken = info.broken;
    }
    zk_batch_end(reqs);
    return st;
}

/* A node that is as it was last seen was not broken. */
static hf_status release_delete_held(struct zk_session *ses,
                                     struct zk_node *node, bool *broken,
                                     int64_t deadline, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    hf_status st;

    if (!reqs)
        return hfi_nomem(err);
    zk_delete(reqs, node->path, node->version);
    if (!zk_batch_wait(reqs, deadline) && reqs->ops[0].rc == ZBADVERSION) {
        zk_batch_end(reqs);
        st = release_look(ses, node->path, broken, deadline, err);
        return st ? st : release_delete(ses, node->path, deadline, err);
    }
    return release_answer(reqs, deadline, err);
}

/* ephemeral.c (4) */
static hf_status release_delete_pair(struct zk_session *ses,
                                     struct zk_node *node, int64_t deadline,
                                     struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    char *companion = zk_companion_path(zc, node->token);
    struct zk_batch *reqs = companion ? zk_batch_new(ses, 1) : NULL;
    zoo_op_t ops[2];
    hf_status st = HF_OK;

    if (reqs) {
        zoo_delete_op_init(&ops[0], companion, -1);
        zoo_delete_op_init(&ops[1], node->parent, -1);
        zk_multi(reqs, 2, ops);
        st = release_answer(reqs, deadline, err);
    } else {
        st = hfi_nomem(err);
    }
    hfi_free(companion);
    if (!st) {
        pthread_mutex_lock(&zc->mu);
        node->paired = false;
        pthread_mutex_unlock(&zc->mu);
    }
    return st;
}

/* recipe=ephemeral.  A node that is still there after its companion was not
 * found has none: ephemeral.c (5). */
static hf_status release_single(struct zk_session *ses, struct zk_node *node,
                                const struct hfi_claim *claim, bool *broken,
                                int64_t deadline, struct hf_error *err)
{
    hf_status st =
        release_check_single(ses, node, claim, broken, deadline, err);

    if (st)
        return st;
    st = release_delete_pair(ses, node, deadline, err);
    if (st != HF_LOST)
        return st;
    st = release_check_single(ses, node, claim, broken, deadline, err);
    return st ? st : release_delete(ses, node->parent, deadline, err);
}

/* Remove the node of a claim; HF_LOST if there is none. */
static hf_status release_remove(struct zk_session *ses, struct zk_node *node,
                                const struct hfi_claim *claim, bool *broken,
                                int64_t deadline, struct hf_error *err)
{
    hf_status st = HF_OK;

    if (ses->conn->single)
        return node->sent
                   ? release_single(ses, node, claim, broken, deadline, err)
                   : HF_LOST;
    if (node->sent && !node->path)
        st = zk_node_resolve(ses, node, claim, deadline, err);
    if (st || !node->path)
        return st ? st : HF_LOST;
    return node->held ? release_delete_held(ses, node, broken, deadline, err)
                      : release_delete(ses, node->path, deadline, err);
}

/* Take up a claim's node to remove it: true if it may be there. */
static bool release_begin(struct zk_conn *zc, const struct hfi_claim *claim,
                          struct zk_node **ret, bool *held, bool *again)
{
    struct zk_node *node = zk_node_find(zc, claim->token);

    *ret = node;
    if (!node)
        return false;
    *held = node->held;
    *again = node->deleting;
    node->busy = true;
    node->deleting = true;
    hfi_link_remove(&node->fresh);
    return node->ses && (node->path || node->sent);
}

hf_status zk_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                     struct hfi_receipt *receipt, int64_t deadline,
                     struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_session *ses;
    struct zk_node *node;
    bool held = false, again = false, broken = false, there;
    hf_status st = HF_LOST;

    pthread_mutex_lock(&zc->mu);
    there = release_begin(zc, claim, &node, &held, &again);
    pthread_mutex_unlock(&zc->mu);
    if (there)
        st = zk_node_session(zc, node, claim->ttl_ms, deadline, &ses, err);
    if (there && !st) {
        st = release_remove(ses, node, claim, &broken, deadline, err);
        zk_session_put(ses);
    }
    pthread_mutex_lock(&zc->mu);
    if (node)
        node->busy = false;
    /* A session that has ended took the node along. */
    if (node && st && st != HF_LOST && !node->ses)
        st = HF_LOST;
    if (node && held && st == HF_OK)
        zk_last_note(zc, node);
    if (node)
        zk_node_unmark(node);
    if (node && (st == HF_OK || st == HF_LOST))
        zk_node_drop(zc, node);
    else if (node)
        zk_node_delete_async(node); /* or when there is a connection again */
    pthread_mutex_unlock(&zc->mu);
    if (st == HF_LOST && again)
        st = HF_OK; /* An earlier attempt did it. */
    if (!st && broken)
        st = HF_LOST;
    receipt->registered = st == HF_UNCERTAIN || st == HF_UNAVAILABLE;
    if (st == HF_LOST)
        return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                        conn->endpoint);
    return st;
}
