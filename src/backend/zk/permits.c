/* SPDX-License-Identifier: MIT
 *
 * permits.c - at most N holders at once.
 *
 * Two places belong to a key with permits (leases.c has their names): a queue,
 * and one for those who hold.  A claim has one node at any time:
 *
 *   look          who is there, before anything is made
 *   queue up      create2 (ephemeral, sequential) in the queue, and look again
 *   not first     watch the node before ours, and only that one
 *   first, full   watch the place of those who hold
 *   first         multi: ours away from the queue, ours among those who hold
 *
 * That is how Curator's InterProcessSemaphoreV2 and kazoo's Semaphore do it, but
 * for the transaction: they take the queue for a mutex, make a node among those
 * who hold, wait until there are not too many, and leave the queue.
 *
 * INVARIANTS
 *  (1) Only who is first in the queue makes a node among those who hold, peers
 *      included.  So from a look at the queue that shows us as the first until
 *      our own transaction, nobody is added.  Those who hold are read after the
 *      queue: read before it, they might lack one that was the first then.
 *  (2) Who is first goes over only if fewer than N hold and all of ours say N.
 *      It takes the lowest slot that none of them has.
 *  (3) What is used as a plain lock is refused, and the other way round
 *      (use.c).
 *  (4) Who joins by its owner id gets a node with the slot and the fence of the
 *      holder (join.c (1)).
 *  (5) The fence is the czxid of the node among those who hold.
 *  (6) A create or a transaction without an answer is looked for by its token,
 *      in both places, before anything else is done.
 */
#include "zk.h"

#include <stdlib.h>

#include "base/alloc.h"

#include "base/banned.h"

/* How often who does not wait looks whether those before it have gone on. */
#define PERMITS_LOOKS 4

/* Of a batch that looks at everything. */
enum { SEEN_SYNC, SEEN_QUEUE, SEEN_KEY, SEEN_LEASES, SEEN_OPS };

/* Ask for the children of the queue, of the key and of who holds; with
 * layout=kazoo the last two are one, and the data of the key is asked for.  The
 * queue is the first: permits.c (1). */
static void permits_ask(struct zk_batch *reqs, const struct zk_node *node)
{
    zk_children(reqs, node->parent, false);
    zk_children(reqs, node->keydir, false);
    if (reqs->ses->conn->kazoo)
        zk_get(reqs, node->keydir, false);
    else
        zk_children(reqs, node->leases, false);
}

static const struct String_vector *permits_leases(const struct zk_batch *reqs)
{
    return &reqs->ops[reqs->ses->conn->kazoo ? SEEN_KEY : SEEN_LEASES].names;
}

/* Did all of it succeed?  What is not there is empty. */
static hf_status permits_status(const struct zk_batch *reqs,
                                struct hf_error *err)
{
    hf_status st = HF_OK;
    size_t i;

    for (i = 0; i < SEEN_OPS && !st; i++)
        if (reqs->ops[i].rc != ZNONODE)
            st = zk_inspect_status(reqs->ses->conn, reqs->ops[i].rc, err);
    return st;
}

/* permits.c (2): how many hold, unless they say another number.  What kazoo has
 * written into the node of the key counts if one of its own holds. */
static hf_status permits_count(const struct zk_batch *reqs,
                               const struct hfi_claim *claim,
                               struct zk_leases *ret, struct hf_error *err)
{
    const struct zk_conn *zc = reqs->ses->conn;
    int32_t permits;

    if (!zk_leases_count(zc, permits_leases(reqs), ret))
        return hfi_nomem(err);
    permits = ret->permits;
    if (!permits && zc->kazoo && ret->foreign && !reqs->ops[SEEN_LEASES].rc &&
        reqs->ops[SEEN_LEASES].text)
        permits = (int32_t)strtol(reqs->ops[SEEN_LEASES].text, NULL, 10);
    if (permits > 0 && permits != claim->permits)
        return hfi_fail_use(err, claim, permits);
    return HF_OK;
}

/* ---- going over -------------------------------------------------------- */

/* The transaction, and a look at what it has made. */
static void go_over_send(struct zk_batch *reqs, const struct zk_node *node,
                         const struct hfi_claim *claim, const char *path,
                         const struct zk_op *key)
{
    struct zk_conn *zc = reqs->ses->conn;
    char data[ZK_DATA_MAX], permits[16];
    zoo_op_t ops[ZK_MULTI_MAX];
    int n = 0;

    zk_data_write(data, claim, reqs->ses->got_ms, 0, 0);
    snprintf(permits, sizeof(permits), "%d", claim->permits);
    zoo_delete_op_init(&ops[n++], node->path, -1);
    zoo_create_op_init(&ops[n++], path, data, (int)strlen(data), zk_acl(zc),
                       ZOO_EPHEMERAL, reqs->made, sizeof(reqs->made));
    /* kazoo compares this with what it was told. */
    if (zc->kazoo && !key->rc && (!key->text || strcmp(key->text, permits)))
        zoo_set_op_init(&ops[n++], node->keydir, permits, (int)strlen(permits),
                        key->stat.version, &reqs->changed);
    zk_multi(reqs, n, ops);
    zk_get(reqs, path, false);
    zk_children(reqs, node->keydir, false);
}

/* The answer.  permits.c (5) */
static hf_status go_over_answered(struct zk_session *ses, struct zk_node *node,
                                  const struct hfi_claim *claim,
                                  struct zk_batch *reqs, char **path,
                                  int32_t slot, int64_t deadline, bool *again,
                                  struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    int rc = reqs->ops[0].rc;

    if (rc == ZNONODE || rc == ZBADVERSION || rc == ZNODEEXISTS) {
        *again = true;
        if (rc == ZNONODE && reqs->results[1].err == ZNONODE)
            return zk_make_parents(ses, node->leases, deadline, err);
        return HF_OK;
    }
    if (rc)
        return zk_status(zc, rc, "multi", err);
    if (reqs->ops[1].rc || reqs->ops[2].rc) {
        *again = true; /* It is looked for. */
        return HF_OK;
    }
    pthread_mutex_lock(&zc->mu);
    node->path = *path;
    *path = NULL;
    node->fence = (uint64_t)reqs->ops[1].stat.czxid;
    node->czxid = reqs->ops[1].stat.czxid;
    node->used = 0;
    node->version = 0;
    node->slot = slot;
    pthread_mutex_unlock(&zc->mu);
    return zk_use_as_permits(ses, node, claim, &reqs->ops[2].names, deadline,
                             again, err);
}

/* permits.c (2): we are the first, and there is room. */
static hf_status go_over(struct zk_session *ses, struct zk_node *node,
                         const struct hfi_claim *claim, int32_t slot,
                         const struct zk_op *key, int64_t deadline, bool *again,
                         struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 3);
    char name[ZK_NAME_MAX], *path;
    int32_t number = 0;
    hf_status st;

    zk_number(zk_name_of(node->path), &number);
    zk_lease_name(zc, name, claim, slot, number);
    path = reqs ? zk_join(node->leases, name) : NULL;
    if (!path) {
        zk_batch_end(reqs);
        return hfi_nomem(err);
    }
    go_over_send(reqs, node, claim, path, key);
    pthread_mutex_lock(&zc->mu);
    hfi_free(node->path); /* permits.c (6) */
    node->path = NULL;
    node->fence = 0;
    node->sent = true;
    pthread_mutex_unlock(&zc->mu);
    st = zk_batch_wait(reqs, deadline)
             ? zk_no_answer(zc, err)
             : go_over_answered(ses, node, claim, reqs, &path, slot, deadline,
                                again, err);
    zk_batch_end(reqs);
    hfi_free(path);
    return st;
}

/* ---- waiting ----------------------------------------------------------- */

/* We are the first, and all permits are taken: hear when one is given back. */
static hf_status permits_full(struct zk_session *ses, struct zk_node *node,
                              const struct hfi_claim *claim, int64_t deadline,
                              bool *again, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_leases all = {0};
    struct zk_batch *reqs;
    hf_status st = HF_BUSY;
    char *copy;
    bool armed;

    if (!claim->queue)
        return zk_withdraw(ses, node, deadline, err);
    copy = hfi_strdup(node->leases);
    reqs = copy ? zk_batch_new(ses, 1) : NULL;
    if (!reqs) {
        hfi_free(copy);
        return hfi_nomem(err);
    }
    pthread_mutex_lock(&zc->mu);
    armed = node->ahead && !strcmp(node->ahead, copy);
    hfi_free(node->ahead);
    node->ahead = copy;
    zk_node_subscribe(node);
    pthread_mutex_unlock(&zc->mu);
    if (!armed) {
        zk_children(reqs, node->leases, true);
        /* Without an answer the next try sets it. */
        if (zk_batch_wait(reqs, deadline))
            armed = false;
        else if (reqs->ops[0].rc == ZNONODE)
            *again = true;
        else if (reqs->ops[0].rc)
            st = zk_status(zc, reqs->ops[0].rc, "children", err);
        else if (!zk_leases_count(zc, &reqs->ops[0].names, &all))
            st = hfi_nomem(err);
        else
            armed = true;
        *again = *again || (armed && all.holders < claim->permits);
    }
    pthread_mutex_lock(&zc->mu);
    if (!armed) {
        hfi_free(node->ahead);
        node->ahead = NULL;
    }
    node->told = armed && !node->watched && !*again;
    pthread_mutex_unlock(&zc->mu);
    zk_batch_end(reqs);
    return *again ? HF_OK : st;
}

/* Our node is in the queue: is it its turn? */
static hf_status permits_judge(struct zk_session *ses, struct zk_node *node,
                               const struct hfi_claim *claim,
                               const struct zk_batch *seen,
                               struct hfi_answer *busy, int64_t deadline,
                               bool *again, struct hf_error *err)
{
    struct zk_leases all;
    struct zk_rank rank;
    hf_status st;

    zk_rank(&rank, &seen->ops[SEEN_QUEUE].names, zk_name_of(node->path));
    if (!rank.own) {
        zk_forget_node(ses->conn, node, again);
        return HF_OK;
    }
    st = permits_count(seen, claim, &all, err);
    if (!st && claim->owner)
        st = zk_join_lease(ses, node, claim, permits_leases(seen), deadline,
                           again, err);
    if (st == HF_INVALID)
        zk_withdraw(ses, node, deadline, NULL);
    if (st || *again)
        return st;
    busy->position = rank.position + 1;
    if (!rank.first && !claim->queue && node->looks < PERMITS_LOOKS &&
        all.holders + rank.position < claim->permits) {
        node->looks++;
        *again = true; /* There is one for each before us, and for us. */
        return HF_OK;
    }
    if (!rank.first)
        return zk_busy(ses, node, claim, rank.ahead, deadline, again, err);
    if (all.holders >= claim->permits)
        return permits_full(ses, node, claim, deadline, again, err);
    return go_over(ses, node, claim, all.slot, &seen->ops[SEEN_LEASES],
                   deadline, again, err);
}

static hf_status permits_go_on(struct zk_session *ses, struct zk_node *node,
                               const struct hfi_claim *claim,
                               struct hfi_answer *busy, int64_t deadline,
                               bool *again, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, SEEN_OPS);
    hf_status st;

    if (!reqs)
        return hfi_nomem(err);
    zk_prove(reqs, node->parent);
    permits_ask(reqs, node);
    if (zk_batch_wait(reqs, deadline)) {
        zk_batch_end(reqs);
        return zk_unseen(ses, node, claim, err);
    }
    st = permits_status(reqs, err);
    if (!st)
        st = permits_judge(ses, node, claim, reqs, busy, deadline, again, err);
    zk_batch_end(reqs);
    return st;
}

/* Our node is among those who hold: does it stand, and may it? */
static hf_status permits_confirm(struct zk_session *ses, struct zk_node *node,
                                 const struct hfi_claim *claim,
                                 int64_t deadline, bool *again,
                                 struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 3);
    hf_status st = HF_OK;
    size_t i;

    if (!reqs)
        return hfi_nomem(err);
    zk_prove(reqs, node->parent);
    zk_get(reqs, node->path, false);
    zk_children(reqs, node->keydir, false);
    if (zk_batch_wait(reqs, deadline))
        st = zk_no_answer(ses->conn, err);
    for (i = 0; i < 3 && !st; i++)
        if (reqs->ops[i].rc != ZNONODE)
            st = zk_status(ses->conn, reqs->ops[i].rc, "inspect", err);
    if (!st && (reqs->ops[1].rc || reqs->ops[1].stat.ephemeralOwner != ses->id))
        zk_forget_node(ses->conn, node, again);
    else if (!st)
        st = zk_check_unbroken(ses->conn, &reqs->ops[1], err);
    if (!st && !*again && !node->held)
        st = zk_use_as_permits(ses, node, claim, &reqs->ops[2].names, deadline,
                               again, err);
    zk_batch_end(reqs);
    return st;
}

/* ---- queueing up ------------------------------------------------------- */

/* Create our node, and look who else is there: a majority agreed to the create,
 * so the leader need not be asked before that look. */
static hf_status permits_queue_up(struct zk_session *ses, struct zk_node *node,
                                  const struct hfi_claim *claim,
                                  struct hfi_answer *busy, int64_t deadline,
                                  bool *again, struct hf_error *err)
{
    char prefix[ZK_NAME_MAX];
    struct zk_batch *reqs;
    int64_t before;
    hf_status st;

    zk_waiter_prefix(ses->conn, prefix, claim);
    reqs = zk_queue_up(ses, node, claim, prefix, SEEN_OPS, &before);
    if (!reqs)
        return hfi_nomem(err);
    permits_ask(reqs, node);
    st = zk_queued_up(ses, node, reqs, before, deadline, again, err);
    if (!st && !*again)
        st = permits_status(reqs, err);
    if (!st && !*again)
        st = permits_judge(ses, node, claim, reqs, busy, deadline, again, err);
    zk_batch_end(reqs);
    return st;
}

/* Nothing of ours is there.  Who would be refused, or has not the time to wait,
 * leaves no trace. */
static hf_status permits_begin(struct zk_session *ses, struct zk_node *node,
                               const struct hfi_claim *claim,
                               struct hfi_answer *busy, int64_t deadline,
                               bool *again, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, SEEN_OPS);
    struct zk_rank plain, queue;
    struct zk_leases all;
    hf_status st;

    if (!reqs)
        return hfi_nomem(err);
    zk_sync(reqs, node->parent);
    permits_ask(reqs, node);
    st = zk_batch_wait(reqs, deadline) ? zk_inspect_none(ses->conn, err)
                                       : permits_status(reqs, err);
    if (!st)
        st = permits_count(reqs, claim, &all, err);
    if (!st) {
        zk_rank(&plain, &reqs->ops[SEEN_KEY].names, NULL);
        zk_rank(&queue, &reqs->ops[SEEN_QUEUE].names, NULL);
        if (plain.head && !all.nodes)
            st = hfi_fail_use(err, claim, 0);
        else if (!claim->queue && !claim->owner &&
                 all.holders + queue.holders + queue.waiters >= claim->permits)
            st = HF_BUSY;
    }
    zk_batch_end(reqs);
    return st ? st
              : permits_queue_up(ses, node, claim, busy, deadline, again, err);
}

hf_status zk_permits_step(struct zk_session *ses, struct zk_node *node,
                          const struct hfi_claim *claim,
                          struct hfi_answer *busy, int64_t deadline,
                          bool *again, struct hf_error *err)
{
    struct zk_lease lease;

    if (zk_nothing_new(ses, node))
        return HF_BUSY;
    if (node->path && zk_lease_parse(ses->conn, zk_name_of(node->path), &lease))
        return permits_confirm(ses, node, claim, deadline, again, err);
    if (node->path)
        return permits_go_on(ses, node, claim, busy, deadline, again, err);
    if (!node->sent)
        return permits_begin(ses, node, claim, busy, deadline, again, err);
    *again = true;
    return zk_node_resolve(ses, node, claim, deadline, err);
}
