/* SPDX-License-Identifier: MIT
 *
 * create.c - making the node with which a claim queues up, in the queue of a
 * plain lock (sequential.c) or of permits (permits.c).
 *
 * Who asks for something else along with it puts that into the same batch
 * between the two calls: it is read after the create, in the same round trip.
 *
 * INVARIANT  A create that had no answer is noted in the node (`sent`) before it
 * is sent, and until an answer says that nothing was made: then the node is
 * looked for by its token (node.c).
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

struct zk_batch *zk_queue_up(struct zk_session *ses, struct zk_node *node,
                             const struct hfi_claim *claim, const char *prefix,
                             size_t room, int64_t *before)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, room);
    char data[ZK_DATA_MAX], *path = reqs ? zk_join(node->parent, prefix) : NULL;

    if (!path) {
        zk_batch_end(reqs);
        return NULL;
    }
    zk_data_write(data, claim, ses->got_ms, 0, 0);
    pthread_mutex_lock(&zc->mu);
    node->sent = true;
    node->epoch = zc->epoch;
    *before = zc->zxid;
    pthread_mutex_unlock(&zc->mu);
    zk_create(reqs, path, data, ZOO_EPHEMERAL_SEQUENTIAL);
    hfi_free(path);
    return reqs;
}

/* Does this answer say that nothing was created? */
bool zk_create_refused(int rc)
{
    switch (rc) {
    case ZNONODE:
    case ZNOAUTH:
    case ZINVALIDACL:
    case ZAUTHFAILED:
    case ZBADARGUMENTS:
    case ZINVALIDSTATE:
    case ZNOCHILDRENFOREPHEMERALS:
    case ZSESSIONEXPIRED:
    case ZTHROTTLEDOP:
        return true;
    default:
        return false;
    }
}

/* The answer to the create, with the mutex held. */
static void queued_up(struct zk_conn *zc, struct zk_node *node,
                      struct zk_op *op, int64_t before)
{
    if (op->rc == ZOK) {
        node->path = op->text;
        op->text = NULL;
        node->fence = (uint64_t)op->stat.czxid;
        zk_last_created(zc, op->stat.czxid, before);
    } else if (zk_create_refused(op->rc)) {
        node->sent = false;
    }
}

hf_status zk_queued_up(struct zk_session *ses, struct zk_node *node,
                       struct zk_batch *reqs, int64_t before, int64_t deadline,
                       bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;

    if (zk_batch_wait(reqs, deadline))
        return zk_no_answer(zc, err);
    pthread_mutex_lock(&zc->mu);
    queued_up(zc, node, &reqs->ops[0], before);
    pthread_mutex_unlock(&zc->mu);
    *again = reqs->ops[0].rc == ZNONODE;
    return *again ? zk_make_parents(ses, node->parent, deadline, err)
                  : zk_status(zc, reqs->ops[0].rc, "create", err);
}
