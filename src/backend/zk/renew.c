/* SPDX-License-Identifier: MIT
 *
 * renew.c - the heartbeat: does every node stand, and is it ours?
 *
 * The library keeps a session alive by itself, but it tells of its end only
 * when a server says so, and a server that is cut off from the leader goes on
 * answering; so does a leader that has been deposed, until it notices.  So the
 * proof is our own: a question that a majority has to answer (zk_prove()), and
 * behind it a look at each node, all in one row per session.  The core counts
 * from before it was sent.
 *
 * A node that has been looked at bears a watch, and what the server says of a
 * watch comes before its answer to any later question.  So while the connection
 * stands the question alone is enough for all nodes of which nothing was said:
 * one request for hundreds of locks.  A server that stands alone has nobody to
 * ask, so there one of the nodes is looked at: something must be answered.
 *
 * A lease of another length than its session's moves to a session that fits
 * (move.c).
 *
 * INVARIANTS
 *  (1) HF_OK means: the leader answered after the call began, one that cannot
 *      have been deposed for so long that it matters; the node is there, and
 *      its owner is the session that we keep alive.
 *  (2) From the first heartbeat on a watch tells of a removal, or of the mark
 *      of a break, at once.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* One item on its way. */
struct renew_item {
    struct zk_node *node; /* NULL: nothing more to do */
    unsigned life;        /* of its session, before it was sent */
    bool node_watched;    /* its node bears a watch */
    struct zk_session *ses;
    struct zk_batch *reqs;
    size_t op;
    bool sender; /* `reqs` is to be ended with this one */
};

static void renew_lost(struct hfi_renewal *item, struct zk_node *node,
                       hf_loss reason)
{
    item->st = HF_LOST;
    item->reason = reason;
    if (node) {
        zk_node_clear(node);
        node->lost = true;
    }
}

/* Its node stays where it is until it is released, or until it lapses. */
static void renew_broken(struct hfi_renewal *item, struct zk_node *node)
{
    item->st = HF_LOST;
    item->reason = HF_LOSS_BROKEN;
    node->broken = true;
}

/* Take up the item's node, or say at once what has become of it. */
static void renew_take(struct zk_conn *zc, struct hfi_renewal *item,
                       struct renew_item *work, struct zk_session **down)
{
    struct zk_node *node = zk_node_find(zc, item->claim->token);

    if (!node || node->deleting ||
        (node->ses && !node->path && !node->renaming)) {
        renew_lost(item, NULL, HF_LOSS_DELETED);
    } else if (!node->ses) {
        renew_lost(item, node, HF_LOSS_SESSION);
    } else if (node->broken) {
        renew_broken(item, node);
    } else if (node->ses->state == ZK_UP) {
        node->busy = true;
        node->ses->users++;
        work->node = node;
        work->ses = node->ses;
        work->life = node->ses->life;
        work->node_watched =
            node->node_watch == work->life && !zc->single && !node->alt;
    } else {
        item->st = HF_UNAVAILABLE;
        *down = node->ses;
    }
}

/* Take up all items; if none has a connection, wait for one to come back. */
static void renew_take_all(struct zk_conn *zc, struct hfi_renewal *items,
                           struct renew_item *work, size_t n, int64_t deadline,
                           struct hf_error *err)
{
    struct zk_session *down;
    bool any = false;
    size_t i;
    int turn;

    pthread_mutex_lock(&zc->mu);
    for (turn = 0; turn < 2; turn++) {
        down = NULL;
        for (i = 0; i < n; i++) {
            if (items[i].st != HF_LOST)
                renew_take(zc, &items[i], &work[i], &down);
            any = any || work[i].node;
        }
        if (any || !down || turn)
            break;
        down->users++;
        zk_session_up(down, deadline, err);
        zk_session_leave(down);
    }
    pthread_mutex_unlock(&zc->mu);
}

/* A downgrade of this one had no answer: what is its name?  downgrade.c (3) */
static void renew_settle(struct zk_conn *zc, struct hfi_renewal *item,
                         struct renew_item *work, int64_t deadline,
                         struct hf_error *err)
{
    struct zk_node *node = work->node;

    item->st = zk_node_settle(work->ses, node, item->claim, deadline, err);
    work->node_watched = false;
    if (!item->st && node->path)
        return;
    pthread_mutex_lock(&zc->mu);
    node->busy = false;
    if (!item->st)
        renew_lost(item, node, HF_LOSS_DELETED);
    pthread_mutex_unlock(&zc->mu);
    work->node = NULL;
}

/* Send what belongs to the session of item `first`, and all like it. */
static void renew_send(struct zk_conn *zc, struct renew_item *work,
                       size_t first, size_t n)
{
    struct zk_session *ses = work[first].ses;
    struct zk_batch *reqs = zk_batch_new(ses, n - first + 1);
    bool asked;
    size_t i;

    if (!reqs)
        return;
    work[first].sender = true;
    asked = zk_prove(reqs, work[first].node->parent);
    for (i = first; i < n; i++) {
        if (!work[i].node || work[i].reqs || work[i].ses != ses)
            continue;
        work[i].reqs = reqs;
        work[i].op = reqs->n;
        work[i].node_watched = work[i].node_watched && asked; /* renew.c (1) */
        if (work[i].node_watched)
            continue;
        asked = true;
        /* renew.c (2) */
        zk_get(reqs, work[i].node->path, !zc->single);
    }
}

/* recipe=ephemeral: another's node may have our name. */
static bool renew_is_ours(const struct zk_conn *zc, const struct zk_op *op,
                          const struct hfi_claim *claim, bool *broken)
{
    struct hf_info info = HF_INFO_INIT;
    char token[HFI_TOKEN_LEN + 1];
    uint64_t fence;

    zk_data_read(op->text, &info, &fence, token);
    *broken = info.broken;
    return !zc->single || !strcmp(token, claim->token);
}

/* What was seen of the node itself. */
static void renew_judge_node(struct zk_conn *zc, struct hfi_renewal *item,
                             struct renew_item *work, const struct zk_op *op,
                             struct hf_error *err)
{
    struct zk_node *node = work->node;
    struct zk_session *alt;
    bool broken = false;

    if (op->rc == ZNONODE) {
        renew_lost(item, node, HF_LOSS_DELETED);
    } else if (op->rc) {
        item->st = zk_status(zc, op->rc, "get", err);
    } else if (!node->ses) {
        renew_lost(item, node, HF_LOSS_SESSION);
    } else if (!renew_is_ours(zc, op, item->claim, &broken)) {
        renew_lost(item, node, HF_LOSS_STOLEN);
    } else if (broken) {
        renew_broken(item, node);
    } else if (op->stat.ephemeralOwner == node->ses->id) {
        node->node_watch = node->ses == work->ses ? work->life : 0;
        node->version = op->stat.version;
        node->czxid = op->stat.czxid;
    } else {
        alt = node->alt && op->stat.ephemeralOwner == node->alt
                  ? zk_session_by_id(zc, node->alt)
                  : NULL;
        if (alt) {
            zk_node_follow(node, alt);
            zk_node_unmark(node); /* One that was made too late. */
            node->version = op->stat.version;
            node->czxid = op->stat.czxid;
        } else {
            renew_lost(item, node, HF_LOSS_STOLEN);
        }
    }
}

hf_status zk_node_touched(const struct zk_conn *zc, struct zk_node *node,
                          struct hf_error *err)
{
    node->node_watch = 0;
    return hfi_fail(err, HF_UNAVAILABLE, "%s: the node was touched",
                    zc->base.endpoint);
}

/* With the mutex held, and the answer there.  renew.c (1) */
static void renew_judge(struct zk_conn *zc, struct hfi_renewal *item,
                        struct renew_item *work, struct hf_error *err)
{
    struct zk_node *node = work->node;

    item->st = zk_status(zc, work->reqs->ops[0].rc, "sync", err);
    if (item->st)
        return;
    if (!work->node_watched)
        renew_judge_node(zc, item, work, &work->reqs->ops[work->op], err);
    else if (!node->ses)
        renew_lost(item, node, HF_LOSS_SESSION);
    else if (node->node_watch != work->life)
        item->st = zk_node_touched(zc, node, err);
}

/* The answer is there, or will not come. */
static void renew_finish(struct zk_conn *zc, struct hfi_renewal *item,
                         struct renew_item *work, int64_t deadline,
                         struct hf_error *err)
{
    struct zk_node *node = work->node;
    bool fits = false, moving = false;

    if (!work->reqs || zk_batch_wait(work->reqs, deadline)) {
        item->st = work->reqs ? zk_no_answer(zc, err) : hfi_nomem(err);
    } else {
        pthread_mutex_lock(&zc->mu);
        renew_judge(zc, item, work, err);
        fits = node->ses && zk_session_fits(node->ses, item->ttl_ms) &&
               zk_session_serves(node->ses, item->ttl_ms);
        moving = node->alt;
        pthread_mutex_unlock(&zc->mu);
        if (item->st == HF_OK && moving)
            item->st = zk_move_bar(
                work->ses, node, work->reqs->ops[work->op].text, deadline, err);
        if (item->st == HF_OK && !fits) {
            item->st = zk_move(work->ses, node, item, deadline, err);
            item->reason = HF_LOSS_DELETED;
        }
    }
    pthread_mutex_lock(&zc->mu);
    node->busy = false;
    if (item->st == HF_OK && !node->ses)
        renew_lost(item, node, HF_LOSS_SESSION); /* It ended meanwhile. */
    if (item->st == HF_OK) {
        zk_node_hold(zc, node, item->ttl_ms);
        zk_proof(node->ses, &item->proof);
    }
    pthread_mutex_unlock(&zc->mu);
}

void zk_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
              int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct renew_item *work = hfi_alloc(n * sizeof(*work));
    size_t i;

    for (i = 0; i < n; i++)
        items[i].st = HF_UNAVAILABLE;
    if (!work)
        return;
    renew_take_all(zc, items, work, n, deadline, err);
    for (i = 0; i < n; i++)
        if (work[i].node && work[i].node->renaming)
            renew_settle(zc, &items[i], &work[i], deadline, err);
    for (i = 0; i < n; i++)
        if (work[i].node && !work[i].reqs)
            renew_send(zc, work, i, n);
    for (i = 0; i < n; i++)
        if (work[i].node)
            renew_finish(zc, &items[i], &work[i], deadline, err);
    for (i = 0; i < n; i++) {
        if (work[i].sender)
            zk_batch_end(work[i].reqs);
        zk_session_put(work[i].ses);
    }
    hfi_free(work);
}
