/* SPDX-License-Identifier: MIT
 *
 * downgrade.c - an exclusive lock becomes a shared one.
 *
 * The mode of a contender is in its name, so its node gets another one: a
 * transaction removes it and makes it again, with the word of those who share
 * and the same number.  Who waited for it hears that it has gone and looks
 * again: those who share go in, and the others wait for the new node.
 *
 * INVARIANTS
 *  (1) There is no moment in which neither node is there.
 *  (2) Nobody has joined it: its data is read before the children are, and the
 *      transaction fails if the data was written to since, as who joins does
 *      (join.c (2)), and who breaks.
 *  (3) A transaction that had no answer leaves the node with either name.  It
 *      is then looked for by its token (zk_node.renaming) before anything else
 *      is done to it; the session that asks is the one that sent it, so what is
 *      seen then is what stays.
 *  (4) Number and fence stay.
 *  (5) What was asked about the old name says nothing of the new one, however
 *      late it is answered (zk_node.names).
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* How often a node is read that is written to meanwhile. */
#define DOWNGRADE_TURNS 4

static hf_status downgrade_lost(const struct zk_conn *zc, struct hf_error *err)
{
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    zc->base.endpoint);
}

/* downgrade.c (3) */
hf_status zk_node_settle(struct zk_session *ses, struct zk_node *node,
                         const struct hfi_claim *claim, int64_t deadline,
                         struct hf_error *err)
{
    hf_status st = zk_node_resolve(ses, node, claim, deadline, err);

    if (st)
        return st;
    pthread_mutex_lock(&ses->conn->mu);
    node->renaming = false;
    node->names++;
    node->node_watch = 0;
    pthread_mutex_unlock(&ses->conn->mu);
    return HF_OK;
}

/* Has another contender the number of this one? */
static bool downgrade_joined(const struct String_vector *names, const char *own)
{
    int32_t mine = 0, number;
    int i;

    zk_number(own, &mine);
    for (i = 0; i < names->count; i++)
        if (zk_number(names->data[i], &number) && number == mine &&
            strcmp(names->data[i], own) != 0)
            return true;
    return false;
}

/* What was read of our node, with the mutex held: is it ours to change? */
static hf_status downgrade_judge(struct zk_session *ses, struct zk_node *node,
                                 const struct zk_op *op, bool *again,
                                 struct hf_error *err)
{
    struct hf_info info = HF_INFO_INIT;
    char token[HFI_TOKEN_LEN + 1];
    struct zk_session *alt;
    uint64_t fence;

    if (op->rc == ZNONODE)
        return downgrade_lost(ses->conn, err);
    if (op->rc)
        return zk_status(ses->conn, op->rc, "get", err);
    zk_data_read(op->text, &info, &fence, token);
    if (info.broken) {
        node->broken = true;
        return downgrade_lost(ses->conn, err);
    }
    node->version = op->stat.version;
    node->czxid = op->stat.czxid;
    if (op->stat.ephemeralOwner == ses->id)
        return HF_OK;
    alt = node->alt && op->stat.ephemeralOwner == node->alt
              ? zk_session_by_id(ses->conn, node->alt)
              : NULL;
    if (!alt)
        return downgrade_lost(ses->conn, err);
    zk_node_follow(node, alt);
    *again = true;
    return HF_OK;
}

/* Read the node, then who else is there. */
static hf_status downgrade_look(struct zk_session *ses, struct zk_node *node,
                                const struct hfi_claim *claim, int64_t deadline,
                                bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 3);
    hf_status st;

    if (!reqs)
        return hfi_nomem(err);
    zk_sync(reqs, node->parent);
    zk_get(reqs, node->path, false);
    zk_children(reqs, node->parent, false);
    if (zk_batch_wait(reqs, deadline)) {
        zk_batch_end(reqs);
        return hfi_fail(err, HF_UNAVAILABLE, "%s: no answer",
                        zc->base.endpoint);
    }
    st = zk_inspect_status(zc, reqs->ops[0].rc, err);
    if (!st) {
        pthread_mutex_lock(&zc->mu);
        st = downgrade_judge(ses, node, &reqs->ops[1], again, err);
        pthread_mutex_unlock(&zc->mu);
    }
    if (!st)
        st = zk_inspect_status(zc, reqs->ops[2].rc, err);
    if (!st && downgrade_joined(&reqs->ops[2].names, zk_name_of(node->path)))
        st = hfi_fail_joined(err, claim);
    if (!st && !*again && node->alt)
        st = zk_move_bar(ses, node, reqs->ops[1].text, deadline, err);
    zk_batch_end(reqs);
    return st;
}

/* The answer to the transaction, with the mutex held. */
static hf_status downgrade_answered(struct zk_conn *zc, struct zk_node *node,
                                    char **path, int rc, bool *again,
                                    struct hf_error *err)
{
    if (rc == ZBADVERSION || rc == ZNONODE) {
        *again = true;
        return HF_OK;
    }
    if (rc) {
        node->renaming = true; /* It may have been carried out. */
        return zk_status(zc, rc, "multi", err);
    }
    hfi_free(node->path);
    node->path = *path;
    *path = NULL;
    node->names++;
    node->version = 0;
    node->node_watch = 0;
    if (node->ses)
        zk_node_watch(node);
    return HF_OK;
}

/* downgrade.c (1), (2), (4) */
static hf_status downgrade_send(struct zk_session *ses, struct zk_node *node,
                                const struct hfi_claim *claim, int64_t deadline,
                                bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    char data[ZK_DATA_MAX], prefix[ZK_NAME_MAX], name[ZK_NAME_MAX + 16], *path;
    struct zk_batch *reqs;
    int32_t number = 0;
    zoo_op_t ops[2];
    hf_status st;
    bool late;

    zk_number(zk_name_of(node->path), &number);
    zk_node_prefix(zc, prefix, claim);
    snprintf(name, sizeof(name), "%s%010d", prefix, number);
    zk_data_write(data, claim, ses->got_ms, node->fence, node->used);
    path = zk_join(node->parent, name);
    reqs = path ? zk_batch_new(ses, 1) : NULL;
    if (!reqs) {
        hfi_free(path);
        return hfi_nomem(err);
    }
    zoo_delete_op_init(&ops[0], node->path, node->version);
    zoo_create_op_init(&ops[1], path, data, (int)strlen(data), zk_acl(zc),
                       ZOO_EPHEMERAL, reqs->made, sizeof(reqs->made));
    zk_multi(reqs, 2, ops);
    late = zk_batch_wait(reqs, deadline) != HF_OK;
    pthread_mutex_lock(&zc->mu);
    st = downgrade_answered(zc, node, &path,
                            late ? ZOPERATIONTIMEOUT : reqs->ops[0].rc, again,
                            err);
    if (node->renaming) { /* downgrade.c (3) */
        hfi_free(node->path);
        node->path = NULL;
        node->sent = true;
    }
    pthread_mutex_unlock(&zc->mu);
    zk_batch_end(reqs);
    hfi_free(path);
    return st;
}

static hf_status downgrade_step(struct zk_session *ses, struct zk_node *node,
                                const struct hfi_claim *claim, int64_t deadline,
                                bool *again, struct hf_error *err)
{
    bool shared = false;
    hf_status st = HF_OK;
    int32_t number;

    if (node->renaming)
        st = zk_node_settle(ses, node, claim, deadline, err);
    if (!st && !node->path)
        st = downgrade_lost(ses->conn, err);
    if (st)
        return st;
    zk_contender(zk_name_of(node->path), &number, &shared);
    if (shared)
        return HF_OK;
    st = downgrade_look(ses, node, claim, deadline, again, err);
    if (st || *again)
        return st;
    return downgrade_send(ses, node, claim, deadline, again, err);
}

static hf_status downgrade_run(struct zk_conn *zc, struct zk_node *node,
                               const struct hfi_claim *claim, int64_t deadline,
                               struct hf_error *err)
{
    struct zk_session *ses;
    bool again = true;
    hf_status st = HF_OK;
    int turn;

    for (turn = 0; again && !st && turn < DOWNGRADE_TURNS; turn++) {
        again = false;
        st = zk_node_session(zc, node, claim->ttl_ms, deadline, &ses, err);
        if (st)
            break;
        st = downgrade_step(ses, node, claim, deadline, &again, err);
        zk_session_put(ses);
    }
    if (!st && again)
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: the node changes too fast",
                      zc->base.endpoint);
    return st;
}

hf_status zk_downgrade(struct hfi_conn *conn, const struct hfi_claim *claim,
                       struct hfi_receipt *receipt, int64_t deadline,
                       struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_node *node;
    hf_status st;
    bool ours;

    (void)receipt;
    pthread_mutex_lock(&zc->mu);
    node = zk_node_find(zc, claim->token);
    ours = node && node->held && !node->deleting && !node->broken && node->ses;
    if (ours)
        node->busy = true;
    pthread_mutex_unlock(&zc->mu);
    if (!ours)
        return downgrade_lost(zc, err);
    st = downgrade_run(zc, node, claim, deadline, err);
    pthread_mutex_lock(&zc->mu);
    node->busy = false;
    if (!node->ses && (!st || st == HF_UNCERTAIN || st == HF_UNAVAILABLE))
        st = downgrade_lost(zc, err); /* It ended meanwhile. */
    pthread_mutex_unlock(&zc->mu);
    return st;
}
