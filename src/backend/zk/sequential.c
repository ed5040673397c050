/* SPDX-License-Identifier: MIT
 *
 * sequential.c - recipe=sequential: ephemeral nodes with numbers, the lowest
 * holds.
 *
 *   first try     create2 (ephemeral, sequential) and getChildren, together,
 *                 or create2 alone where its number will tell (predict.c)
 *   again         sync (zk_prove()), getChildren and getData of ours, together
 *   busy          watch the last of those before ours that it waits for, and
 *                 only that one
 *   same owner    multi: the holder still there, ours away, ours beside it
 *
 * INVARIANTS
 *  (1) A claim has at most one node.  A create without an answer is looked for
 *      by its token before another is sent.
 *  (2) A claim is granted only if its node is there, belongs to the session
 *      that we have now, and is among the holders (rank.c), all of it seen by a
 *      server that had asked the leader after this call began.  The first try
 *      needs not ask: a majority agreed to its create.  Whose a node is, is
 *      known from the create's answer in this very session, or else read:
 *      node->path is set by nothing else, and cleared with the session.
 *  (3) The fence is the czxid of the node: those who come later stand behind it
 *      and have a greater one.  Of two that exclude each other the one that is
 *      granted later has come later.
 *  (4) Who joins a holder with the same owner id takes its number, its mode and
 *      its fence in one transaction (join.c).
 *  (5) A node is granted when those before it go, whether its claim looks or
 *      not, and may be broken before it does.  So a look at an earlier node of
 *      ours reads it, too: one that was broken is never told as held.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* Ask for the node so that its end is told.  It is read, because to ask whether
 * it exists would leave a watch also where it does not, for as long as the
 * session lasts.  That is for one that we may not read. */
static hf_status arm_send(struct zk_batch *reqs, const char *path,
                          int64_t deadline)
{
    hf_status st;

    zk_get(reqs, path, true);
    st = zk_batch_wait(reqs, deadline);
    if (st || reqs->ops[0].rc != ZNOAUTH)
        return st;
    zk_exists(reqs, path, true);
    return zk_batch_wait(reqs, deadline);
}

/* Set the watch, unless it is there already.  *again if the node is gone. */
hf_status zk_arm(struct zk_session *ses, struct zk_node *node, const char *path,
                 int64_t deadline, bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    char *copy = hfi_strdup(path);
    struct zk_batch *reqs;
    hf_status st = HF_OK;
    bool armed;

    reqs = copy ? zk_batch_new(ses, 2) : NULL;
    if (!reqs) {
        hfi_free(copy);
        return hfi_nomem(err);
    }
    pthread_mutex_lock(&zc->mu);
    armed = node->ahead && !strcmp(node->ahead, path);
    hfi_free(node->ahead);
    node->ahead = copy;
    zk_node_subscribe(node);
    pthread_mutex_unlock(&zc->mu);
    if (armed)
        goto out;
    if (arm_send(reqs, path, deadline))
        st = HF_BUSY; /* The next try sets it. */
    else if (reqs->ops[reqs->n - 1].rc == ZNONODE)
        *again = true;
    else
        st = zk_status(zc, reqs->ops[reqs->n - 1].rc, "get", err);
    if (st || *again) {
        pthread_mutex_lock(&zc->mu);
        hfi_free(node->ahead);
        node->ahead = NULL;
        pthread_mutex_unlock(&zc->mu);
    }
out:
    zk_batch_end(reqs);
    return st;
}

/* A claim that does not wait leaves nothing behind. */
hf_status zk_withdraw(struct zk_session *ses, struct zk_node *node,
                      int64_t deadline, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    hf_status st = HF_BUSY;

    if (!reqs)
        return hfi_nomem(err);
    zk_delete(reqs, node->path, -1);
    if (zk_batch_wait(reqs, deadline))
        st = zk_no_answer(ses->conn, err);
    else if (reqs->ops[0].rc && reqs->ops[0].rc != ZNONODE)
        st = zk_status(ses->conn, reqs->ops[0].rc, "delete", err);
    zk_batch_end(reqs);
    if (st == HF_BUSY) {
        pthread_mutex_lock(&ses->conn->mu);
        zk_node_clear(node);
        pthread_mutex_unlock(&ses->conn->mu);
    }
    return st;
}

/* Wait for the end of the node at `path`. */
static hf_status sequential_await(struct zk_session *ses, struct zk_node *node,
                                  const char *path, int64_t deadline,
                                  bool *again, struct hf_error *err)
{
    hf_status st = zk_arm(ses, node, path, deadline, again, err);

    node->told = !node->watched && !st && !*again;
    return st || *again ? st : HF_BUSY;
}

hf_status zk_busy(struct zk_session *ses, struct zk_node *node,
                  const struct hfi_claim *claim, const char *name,
                  int64_t deadline, bool *again, struct hf_error *err)
{
    char *ahead;
    hf_status st;

    if (!claim->queue)
        return zk_withdraw(ses, node, deadline, err);
    ahead = zk_join(node->parent, name);
    if (!ahead)
        return hfi_nomem(err);
    st = sequential_await(ses, node, ahead, deadline, again, err);
    hfi_free(ahead);
    return st;
}

/* Somebody removed our node: queue up anew. */
void zk_forget_node(struct zk_conn *zc, struct zk_node *node, bool *again)
{
    pthread_mutex_lock(&zc->mu);
    zk_node_clear(node);
    pthread_mutex_unlock(&zc->mu);
    *again = true;
}

/* It is granted: remember who was there, for the next time (predict.c), unless
 * somebody before us shares it. */
static void sequential_count(struct zk_conn *zc, struct zk_node *node,
                             const struct hfi_claim *claim,
                             const struct zk_rank *rank)
{
    char *tail = claim->owner || rank->last == rank->own
                     ? NULL
                     : zk_join(node->parent, rank->last);

    pthread_mutex_lock(&zc->mu);
    hfi_free(node->tail);
    node->tail = tail;
    node->top = rank->top;
    node->counted =
        !claim->owner && !rank->position && (tail || rank->last == rank->own);
    pthread_mutex_unlock(&zc->mu);
}

/* Our node is there: is it its turn? */
static hf_status sequential_judge(struct zk_session *ses, struct zk_node *node,
                                  const struct hfi_claim *claim,
                                  const struct String_vector *names,
                                  struct hfi_answer *busy, int64_t deadline,
                                  bool *again, struct hf_error *err)
{
    struct zk_rank rank;
    bool seen = false;
    hf_status st;

    zk_rank(&rank, names, zk_name_of(node->path)); /* names.c (4) */
    if (!rank.own) {
        zk_forget_node(ses->conn, node, again);
        return HF_OK;
    }
    st = zk_use_as_plain(ses, node, claim, names, rank.first, deadline, &seen,
                         again, err);
    if (st == HF_INVALID)
        zk_withdraw(ses, node, deadline, NULL);
    if (st || *again)
        return st;
    busy->position = rank.position - rank.holders + 1;
    if (claim->owner && !node->held && rank.holders) {
        st =
            zk_join_owner(ses, node, claim, names, &rank, deadline, again, err);
        if (st == HF_INVALID)
            zk_withdraw(ses, node, deadline, NULL);
        if (st || *again)
            return st;
    }
    if (rank.first) {
        sequential_count(ses->conn, node, claim, &rank);
        node->counted = node->counted && !seen;
        return HF_OK;
    }
    return zk_busy(ses, node, claim, rank.ahead, deadline, again, err);
}

/* Our node is made: who else is there?  Unless the number tells, the children
 * are read, now if that was not done along with the create. */
static hf_status sequential_begun(struct zk_session *ses, struct zk_node *node,
                                  const struct hfi_claim *claim,
                                  struct zk_batch *reqs,
                                  struct hfi_answer *busy, int64_t deadline,
                                  bool *again, struct hf_error *err)
{
    char *tail;
    bool told = zk_last_tells(ses->conn, node, &tail) && reqs->n == 1;
    hf_status st;

    if (told && tail && claim->shared)
        told = false; /* That one may share, too. */
    if (told && !tail) {
        node->counted = zk_number(zk_name_of(node->path), &node->top);
        return HF_OK;
    }
    st = told ? sequential_await(ses, node, tail, deadline, again, err) : HF_OK;
    hfi_free(tail);
    if (told)
        return st;
    if (reqs->n == 1) {
        zk_children(reqs, node->parent, false);
        if (zk_batch_wait(reqs, deadline))
            return zk_no_answer(ses->conn, err);
    }
    if (reqs->ops[1].rc == ZNONODE) {
        zk_forget_node(ses->conn, node,
                       again); /* gone, and the parent with it */
        return HF_OK;
    }
    if (reqs->ops[1].rc)
        return zk_status(ses->conn, reqs->ops[1].rc, "children", err);
    return sequential_judge(ses, node, claim, &reqs->ops[1].names, busy,
                            deadline, again, err);
}

/* The first request of a claim. */
static hf_status sequential_begin(struct zk_session *ses, struct zk_node *node,
                                  const struct hfi_claim *claim,
                                  struct hfi_answer *busy, int64_t deadline,
                                  bool *again, struct hf_error *err)
{
    char prefix[ZK_NAME_MAX];
    struct zk_batch *reqs;
    int64_t before;
    hf_status st;

    zk_node_prefix(ses->conn, prefix, claim);
    reqs = zk_queue_up(ses, node, claim, prefix, 2, &before);
    if (!reqs)
        return hfi_nomem(err);
    if (claim->owner ||
        !zk_last_known(ses->conn, node->parent, claim->queue && !claim->shared))
        zk_children(reqs, node->parent, false);
    st = zk_queued_up(ses, node, reqs, before, deadline, again, err);
    if (!st && !*again)
        st = sequential_begun(ses, node, claim, reqs, busy, deadline, again,
                              err);
    zk_batch_end(reqs);
    return st;
}

/* There was no time to look.  Who stands in the queue of a service that he is
 * connected to still does: that is not uncertain, he has not got it yet. */
hf_status zk_unseen(struct zk_session *ses, const struct zk_node *node,
                    const struct hfi_claim *claim, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    bool waits;

    pthread_mutex_lock(&zc->mu);
    waits = claim->queue && !node->held && ses->state == ZK_UP;
    pthread_mutex_unlock(&zc->mu);
    return waits ? HF_BUSY : zk_no_answer(zc, err);
}

/* Our own node, as it was read.  HF_LOST: it was granted, and broken before we
 * knew; then this claim is over.  (5) */
hf_status zk_check_unbroken(struct zk_conn *zc, const struct zk_op *op,
                            struct hf_error *err)
{
    struct hf_info info = HF_INFO_INIT;

    if (op->rc == ZOK)
        zk_inspect_describe(&info, op);
    return info.broken
               ? hfi_fail(err, HF_LOST, "%s: this claim was granted and broken",
                          zc->base.endpoint)
               : HF_OK;
}

/* We have a node: look again. */
static hf_status sequential_go_on(struct zk_session *ses, struct zk_node *node,
                                  const struct hfi_claim *claim,
                                  struct hfi_answer *busy, int64_t deadline,
                                  bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 3);
    hf_status st = HF_OK;
    size_t i;

    if (!reqs)
        return hfi_nomem(err);
    zk_prove(reqs, node->parent);
    zk_children(reqs, node->parent, false);
    zk_get(reqs, node->path, false);
    if (zk_batch_wait(reqs, deadline)) {
        zk_batch_end(reqs);
        return zk_unseen(ses, node, claim, err);
    }
    for (i = 0; i < 2 && !st; i++)
        if (reqs->ops[i].rc != ZNONODE)
            st = zk_status(zc, reqs->ops[i].rc, "inspect", err);
    if (!st)
        st = zk_check_unbroken(zc, &reqs->ops[2], err);
    if (!st)
        st = sequential_judge(ses, node, claim, &reqs->ops[1].names, busy,
                              deadline, again, err);
    zk_batch_end(reqs);
    return st;
}

/* The core tries once more after watch(), to see what happened before it was
 * called.  Our watch is older than that: as long as it has not told, the one
 * ahead is there.  Only this once: later tries are there to look. */
bool zk_nothing_new(struct zk_session *ses, struct zk_node *node)
{
    bool told;

    pthread_mutex_lock(&ses->conn->mu);
    told = node->told && node->watched && node->ahead && ses->state == ZK_UP;
    node->told = false;
    pthread_mutex_unlock(&ses->conn->mu);
    return told;
}

hf_status zk_sequential_step(struct zk_session *ses, struct zk_node *node,
                             const struct hfi_claim *claim,
                             struct hfi_answer *busy, int64_t deadline,
                             bool *again, struct hf_error *err)
{
    if (zk_nothing_new(ses, node))
        return HF_BUSY;
    if (node->path)
        return sequential_go_on(ses, node, claim, busy, deadline, again, err);
    if (!node->sent)
        return sequential_begin(ses, node, claim, busy, deadline, again, err);
    *again = true;
    return zk_node_resolve(ses, node, claim, deadline, err);
}
