/* SPDX-License-Identifier: MIT
 *
 * move.c - a node changes sessions, since its lease has another length.
 *
 * One transaction removes the node and makes it again, in a session that fits,
 * with the same name and thus the same place in the queue.
 *
 * INVARIANTS
 *  (1) A node that moved bears the fence it had.  Nobody can come in between.
 *  (2) What was marked as broken after we last read it is not moved, nor
 *      joined: the version of its data is another.
 *  (3) A move that had no answer may still be executed, until it is barred:
 *      the node's data is written anew, as it is, so the move finds another
 *      version than it expects.  Until then `alt` says where the node may be.
 *  (4) With recipe=ephemeral the next holder's node has the name of ours, and
 *      it may have the same version.  So nothing is written to it there, and a
 *      move depends on a second node, the mark: an ephemeral node beside that
 *      of the key, named after the czxid of the node that moves.  It is made,
 *      and the node is read after that; the move removes both.  The mark ends
 *      with the session of the node, and break.c removes it along with the
 *      node, so as long as it is there the node is the one that was read.
 *      Writing to the mark is what bars an earlier move.  The companion of the
 *      node (ephemeral.c (4)) cannot serve for this: it has the same name after
 *      a move.  It moves along.
 *  (5) In an ensemble a session is proven from an earlier time on than that of
 *      the last answer (touch.c), and each from another.  So the one that the
 *      node goes to may end before the holder thinks: the core is told before
 *      the move is sent (backend.h (12)).
 *
 * LIMITS  With recipe=ephemeral a program that removes the node by hand knows
 * nothing of mark and companion.  If another holder takes the key while a move
 * is on its way, then that one's node is moved.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* move.c (3): a write of what was just read. */
static hf_status move_bar_node(struct zk_session *ses, struct zk_node *node,
                               const char *text, int64_t deadline,
                               struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    hf_status st;

    if (!reqs)
        return hfi_nomem(err);
    zk_set(reqs, node->path, text, node->version);
    if (zk_batch_wait(reqs, deadline))
        st = zk_no_answer(zc, err);
    else if (reqs->ops[0].rc == ZNONODE || reqs->ops[0].rc == ZBADVERSION)
        st = zk_node_touched(zc, node, err);
    else
        st = zk_status(zc, reqs->ops[0].rc, "set", err);
    if (!st) {
        pthread_mutex_lock(&zc->mu);
        node->version = reqs->ops[0].stat.version;
        node->moving = false;
        node->alt = 0;
        pthread_mutex_unlock(&zc->mu);
    }
    zk_batch_end(reqs);
    return st;
}

/* Is the node the one that was judged, now that the mark is there? */
static hf_status move_marked(struct zk_session *ses, struct zk_node *node,
                             const struct zk_batch *reqs, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    const struct zk_op *seen = &reqs->ops[2];
    hf_status st = HF_OK;

    if (reqs->ops[0].rc != ZNODEEXISTS)
        st = zk_status(zc, reqs->ops[0].rc, "create", err);
    if (!st)
        st = zk_status(zc, reqs->ops[1].rc, "set", err);
    if (!st && seen->rc != ZNONODE)
        st = zk_status(zc, seen->rc, "get", err);
    pthread_mutex_lock(&zc->mu);
    if (!st && (seen->rc || seen->stat.czxid != node->czxid ||
                seen->stat.version != node->version || node->ses != ses)) {
        st = zk_node_touched(zc, node, err);
    } else if (!st) {
        node->moving = false;
        node->alt = 0;
    }
    pthread_mutex_unlock(&zc->mu);
    return st;
}

/* move.c (4): make the mark, or write to it, and read the node.  *version is
 * what the mark has now. */
static hf_status move_mark(struct zk_session *ses, struct zk_node *node,
                           int64_t deadline, int *version, struct hf_error *err)
{
    char *mark = zk_mark_path(ses->conn, node->czxid);
    struct zk_batch *reqs = mark ? zk_batch_new(ses, 3) : NULL;
    hf_status st;

    if (!reqs) {
        hfi_free(mark);
        return hfi_nomem(err);
    }
    pthread_mutex_lock(&ses->conn->mu);
    node->marked = true;
    pthread_mutex_unlock(&ses->conn->mu);
    zk_create(reqs, mark, "", ZOO_EPHEMERAL);
    zk_set(reqs, mark, "", -1);
    zk_get(reqs, node->path, false);
    st = zk_batch_wait(reqs, deadline) ? zk_no_answer(ses->conn, err)
                                       : move_marked(ses, node, reqs, err);
    if (!st)
        *version = reqs->ops[1].stat.version;
    zk_batch_end(reqs);
    hfi_free(mark);
    return st;
}

hf_status zk_move_bar(struct zk_session *ses, struct zk_node *node,
                      const char *text, int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    hf_status st;
    int version;

    if (!zc->single)
        return move_bar_node(ses, node, text, deadline, err);
    st = move_mark(ses, node, deadline, &version, err);
    pthread_mutex_lock(&zc->mu);
    if (!st)
        zk_node_unmark(node);
    pthread_mutex_unlock(&zc->mu);
    return st;
}

/* What the answer to a move means; with the mutex held. */
static hf_status move_answered(struct zk_conn *zc, struct zk_node *node,
                               struct zk_session *to, int rc,
                               struct hf_error *err)
{
    if (rc != ZOK && rc != ZNONODE && rc != ZBADVERSION)
        return zk_status(zc, rc, "multi", err); /* move.c (3) */
    node->moving = false;
    node->alt = 0;
    if (rc)
        zk_node_unmark(node);
    if (rc == ZBADVERSION)
        return zk_node_touched(zc, node, err);
    if (rc == ZNONODE)
        return hfi_fail(err, HF_LOST, "%s: the lock is gone",
                        zc->base.endpoint);
    node->version = 0;
    node->marked = false;
    if (to->state == ZK_DEAD)
        return HF_LOST;
    zk_node_bind(node, to);
    return HF_OK;
}

/* What stands beside the node with recipe=ephemeral; all NULL if nothing
 * does. */
struct move_beside {
    char *mark, *companion;
    int version; /* of the mark */
};

/* Send it.  move.c (1) */
static hf_status move_send(struct zk_session *to, struct zk_node *node,
                           const struct hfi_renewal *item,
                           const struct move_beside *beside, int64_t deadline,
                           struct hf_error *err)
{
    struct zk_conn *zc = to->conn;
    struct zk_batch *reqs = zk_batch_new(to, 1);
    char data[ZK_DATA_MAX];
    zoo_op_t ops[ZK_MULTI_MAX];
    hf_status st;
    int n = 0;

    if (!reqs)
        return hfi_nomem(err);
    zk_data_write(data, item->claim, to->got_ms, node->fence, node->used);
    if (beside->mark)
        zoo_delete_op_init(&ops[n++], beside->mark, beside->version);
    zoo_delete_op_init(&ops[n++], node->path, node->version);
    zoo_create_op_init(&ops[n++], node->path, data, (int)strlen(data),
                       zk_acl(zc), ZOO_EPHEMERAL, reqs->made,
                       sizeof(reqs->made));
    if (beside->companion) {
        zoo_delete_op_init(&ops[n++], beside->companion, -1);
        zoo_create_op_init(&ops[n++], beside->companion, "", 0, zk_acl(zc),
                           ZOO_EPHEMERAL, reqs->made, sizeof(reqs->made));
    }
    pthread_mutex_lock(&zc->mu);
    node->moving = true;
    node->alt = to->id;
    to->used = true; /* Its end would be that of the node. */
    pthread_mutex_unlock(&zc->mu);
    zk_multi(reqs, n, ops);
    if (zk_batch_wait(reqs, deadline)) {
        st = zk_no_answer(zc, err);
    } else {
        pthread_mutex_lock(&zc->mu);
        st = move_answered(zc, node, to, reqs->ops[0].rc, err);
        pthread_mutex_unlock(&zc->mu);
    }
    zk_batch_end(reqs);
    return st;
}

/* move.c (5)  The move itself is what a majority has to agree to (touch.c), if it
 * is carried out at all; a server that stands alone hears of the session by it.
 * What is proven for a small part of the lease only has yet to be heard of by
 * the leader: the lock would hardly outlast the move. */
static hf_status move_lower(struct zk_session *to,
                            const struct hfi_renewal *item,
                            struct hf_error *err)
{
    struct zk_conn *zc = to->conn;
    int64_t end = HFI_NEVER;

    pthread_mutex_lock(&zc->mu);
    if (!to->standalone)
        end = hfi_lease_deadline(to->known_at, to->got_ms);
    pthread_mutex_unlock(&zc->mu);
    if (hfi_left_ms(end) < item->ttl_ms / 3)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: the leader has yet to hear of the session",
                        zc->base.endpoint);
    hfi_lower(&zc->base, item->claim->key, item->claim->token, end);
    return HF_OK;
}

hf_status zk_move(struct zk_session *ses, struct zk_node *node,
                  const struct hfi_renewal *item, int64_t deadline,
                  struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_session *to;
    struct move_beside beside = {NULL, NULL, 0};
    hf_status st = zk_session_for(zc, item->ttl_ms, deadline, &to, err);

    if (st)
        return st;
    st = move_lower(to, item, err);
    if (!st && zc->single) {
        beside.mark = zk_mark_path(zc, node->czxid);
        beside.companion = zk_companion_path(zc, node->token);
        st = beside.mark && beside.companion
                 ? move_mark(ses, node, deadline, &beside.version, err)
                 : hfi_nomem(err);
    }
    if (!st)
        st = move_send(to, node, item, &beside, deadline, err);
    zk_session_put(to);
    hfi_free(beside.mark);
    hfi_free(beside.companion);
    return st;
}
