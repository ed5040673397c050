/* SPDX-License-Identifier: MIT
 *
 * break.c - taking a lock from its holder.
 *
 * Breaking writes a mark into the node of the holder, who hears of that by a
 * watch; the node stays until he lets go or his session ends, so nobody is let
 * in meanwhile.  By force it is removed.  Either is done only to nodes that
 * bear the fence that was looked at: names of contenders are never used twice,
 * so what is changed is what was read.  With recipe=ephemeral the name is used
 * again, and the node's companion tells whether it is still the one that was
 * read: ephemeral.c (4), (5).
 *
 * All who hold with one owner id have one fence, and so all of them are broken.
 * Another may join between the look at the queue and the change of the one whom
 * it joins; so after a change the queue is looked at again, until there is
 * nothing left to change.  Nobody joins one that is broken (sequential.c (4)).
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* How often a node is read that is written to meanwhile. */
#define BREAK_TURNS 4

/* What is to be done to the holder with this fence. */
struct break_request {
    uint64_t fence;
    bool free;    /* remove it; else it is marked, and the holder lets go */
    bool hit;     /* out: there was one */
    bool changed; /* out: one was marked or removed in this look */
    bool alone;   /* recipe=ephemeral: it has no companion */
};

/* A node of our own need not wait to hear of it.  With recipe=ephemeral the next
 * holder may have its name already. */
static void break_tell(struct zk_conn *zc, const char *path,
                       const struct break_request *request)
{
    struct hfi_node *entry = NULL;
    struct zk_node *node;

    pthread_mutex_lock(&zc->mu);
    while ((entry = hfi_map_next(&zc->nodes, entry))) {
        node = hfi_container(entry, struct zk_node, entry);
        if (!node->ses || !node->path || strcmp(node->path, path) != 0 ||
            node->fence != request->fence)
            continue;
        if (request->free)
            zk_node_gone(node, HF_LOSS_BROKEN);
        else
            zk_node_broken(node);
    }
    pthread_mutex_unlock(&zc->mu);
}

/* ---- recipe=ephemeral ---------------------------------------------------- */

/* A node that was read, and what stands beside it. */
struct break_single {
    const char *path;
    char *mark, *companion; /* companion: NULL if it has none */
    const struct zk_op *seen;
};

/* Remove it so that a move of it fails, whichever comes first: its mark goes
 * along, or is not there.  move.c (4) */
static void single_remove(struct zk_batch *reqs, const struct break_single *at,
                          bool marked)
{
    zoo_op_t ops[ZK_MULTI_MAX];
    int n = 0;

    if (at->companion)
        zoo_delete_op_init(&ops[n++], at->companion, -1);
    if (!marked)
        zoo_create_op_init(&ops[n++], at->mark, "", 0, zk_acl(reqs->ses->conn),
                           ZOO_EPHEMERAL, reqs->made, sizeof(reqs->made));
    zoo_delete_op_init(&ops[n++], at->mark, -1);
    zoo_delete_op_init(&ops[n++], at->path, at->seen->stat.version);
    zk_multi(reqs, n, ops);
}

static void single_mark(struct zk_batch *reqs, const struct break_single *at,
                        uint64_t fence)
{
    char data[ZK_DATA_MAX + 32];
    zoo_op_t ops[ZK_MULTI_MAX];
    int n = 0;

    zk_data_mark(data, at->seen->text, fence);
    if (at->companion)
        zoo_check_op_init(&ops[n++], at->companion, -1);
    zoo_set_op_init(&ops[n++], at->path, data, (int)strlen(data),
                    at->seen->stat.version, &reqs->changed);
    zk_multi(reqs, n, ops);
}

/* What the last answer means.  The node or its mark may have gone or changed:
 * it is read again. */
static hf_status single_answer(const struct zk_batch *reqs,
                               const struct break_single *at,
                               struct break_request *request, int *rc,
                               struct hf_error *err)
{
    *rc = reqs->ops[reqs->n - 1].rc;
    if (*rc == ZNONODE) {
        *rc = ZBADVERSION;
        request->alone = at->companion && reqs->results[0].err == ZNONODE;
    }
    return *rc == ZBADVERSION ? HF_OK
                              : zk_status(reqs->ses->conn, *rc, "break", err);
}

static hf_status single_change(struct zk_session *ses,
                               const struct break_single *at,
                               struct break_request *request, int64_t deadline,
                               int *rc, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 2);
    hf_status st = HF_OK;

    if (!reqs)
        return hfi_nomem(err);
    if (request->free)
        single_remove(reqs, at, false);
    else
        single_mark(reqs, at, request->fence);
    if (zk_batch_wait(reqs, deadline))
        st = zk_no_answer(ses->conn, err);
    if (!st && request->free && reqs->ops[0].rc == ZNODEEXISTS) {
        single_remove(reqs, at, true);
        if (zk_batch_wait(reqs, deadline))
            st = zk_no_answer(ses->conn, err);
    }
    if (!st)
        st = single_answer(reqs, at, request, rc, err);
    zk_batch_end(reqs);
    return st;
}

/* Change the node that was read, if it is still there. */
static hf_status break_single(struct zk_session *ses, const char *path,
                              const struct zk_op *seen,
                              struct break_request *request, int64_t deadline,
                              int *rc, struct hf_error *err)
{
    struct break_single at = {.path = path, .seen = seen};
    struct hf_info info = HF_INFO_INIT;
    char token[HFI_TOKEN_LEN + 1];
    uint64_t fence;
    hf_status st;

    zk_data_read(seen->text, &info, &fence, token);
    at.mark = zk_mark_path(ses->conn, seen->stat.czxid);
    if (!request->alone)
        at.companion = zk_companion_path(ses->conn, token);
    request->alone = false;
    st = at.mark ? single_change(ses, &at, request, deadline, rc, err)
                 : hfi_nomem(err);
    hfi_free(at.mark);
    hfi_free(at.companion);
    return st;
}

/* ---- recipe=sequential --------------------------------------------------- */

/* Change the node that was read, unless it has been written to since. */
static hf_status break_change(struct zk_session *ses, const char *path,
                              const struct zk_op *seen,
                              const struct break_request *request,
                              int64_t deadline, int *rc, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    char data[ZK_DATA_MAX + 32];
    hf_status st = HF_OK;

    if (!reqs)
        return hfi_nomem(err);
    zk_data_mark(data, seen->text, request->fence);
    if (request->free)
        zk_delete(reqs, path, seen->stat.version);
    else
        zk_set(reqs, path, data, seen->stat.version);
    if (zk_batch_wait(reqs, deadline))
        st = zk_no_answer(ses->conn, err);
    else if (reqs->ops[0].rc != ZNONODE && reqs->ops[0].rc != ZBADVERSION)
        st = zk_status(ses->conn, reqs->ops[0].rc, "break", err);
    *rc = st ? ZOK : reqs->ops[0].rc;
    zk_batch_end(reqs);
    return st;
}

/* Read a node, and break it if it has the fence.  *again if it has changed. */
static hf_status break_node(struct zk_session *ses, const char *path,
                            struct break_request *request, int64_t deadline,
                            bool *again, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    struct hf_info info = HF_INFO_INIT;
    hf_status st = HF_OK;
    bool marked = false;
    int rc = ZNONODE;

    if (!reqs)
        return hfi_nomem(err);
    zk_get(reqs, path, false);
    if (zk_batch_wait(reqs, deadline))
        st = zk_inspect_none(ses->conn, err);
    else if (zk_inspect_holds(ses->conn, &reqs->ops[0]))
        zk_inspect_describe(&info, &reqs->ops[0]);
    else if (reqs->ops[0].rc != ZNONODE)
        st = zk_inspect_status(ses->conn, reqs->ops[0].rc, err);
    if (!st && info.held && info.fence == request->fence) {
        if (!reqs->ops[0].stat.ephemeralOwner && !request->free)
            st = hfi_fail(err, HF_UNSUPPORTED,
                          "%s: the first node of the queue is not ephemeral, "
                          "so nobody hears of a break: free it by force",
                          ses->conn->base.endpoint);
        else if (info.broken && !request->free)
            marked = true;
        else if (ses->conn->single)
            st = break_single(ses, path, &reqs->ops[0], request, deadline, &rc,
                              err);
        else
            st = break_change(ses, path, &reqs->ops[0], request, deadline, &rc,
                              err);
    }
    zk_batch_end(reqs);
    *again = rc == ZBADVERSION;
    if (!st && (rc == ZOK || marked)) {
        request->changed = request->changed || !marked;
        request->hit = true;
        break_tell(ses->conn, path, request);
    }
    return st;
}

static hf_status break_path(struct zk_session *ses, const char *path,
                            struct break_request *request, int64_t deadline,
                            struct hf_error *err)
{
    hf_status st = HF_OK;
    bool again = true;
    int turns;

    for (turns = 0; again && !st && turns < BREAK_TURNS; turns++)
        st = break_node(ses, path, request, deadline, &again, err);
    if (!st && again)
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: the node changes too fast",
                      ses->conn->base.endpoint);
    return st;
}

/* Those who share, have joined or have permits hold together.  One look. */
static hf_status break_first(struct zk_session *ses, const char *parent,
                             struct break_request *request, int64_t deadline,
                             struct hf_error *err)
{
    struct zk_view view;
    hf_status st = zk_view_read(ses, parent, deadline, &view, err);
    size_t i;

    for (i = 0; !st && i < view.n; i++)
        st = break_path(ses, view.paths[i], request, deadline, err);
    zk_view_fini(&view);
    return st;
}

/* Break or free all who hold, and who join them meanwhile. */
static hf_status break_holders(struct zk_session *ses, const char *parent,
                               struct break_request *request, int64_t deadline,
                               struct hf_error *err)
{
    hf_status st = HF_OK;

    do {
        request->changed = false;
        st = break_first(ses, parent, request, deadline, err);
    } while (!st && request->changed);
    /* Some were, and whether all were is not known. */
    return st == HF_UNAVAILABLE && request->hit ? hfi_restate(err, HF_UNCERTAIN)
                                                : st;
}

static hf_status break_key(struct zk_conn *zc, const char *key,
                           struct break_request *request, int64_t deadline,
                           struct hf_error *err)
{
    char *path = zk_key_path(zc, key);
    struct zk_session *ses;
    hf_status st;

    if (!path)
        return hfi_nomem(err);
    st = zk_session_any(zc, deadline, &ses, err);
    if (!st) {
        st = zc->single ? break_path(ses, path, request, deadline, err)
                        : break_holders(ses, path, request, deadline, err);
        zk_session_put(ses);
    }
    hfi_free(path);
    if (!st && !request->hit)
        st =
            hfi_fail(err, HF_LOST, "%s: that grant is over", zc->base.endpoint);
    return st;
}

hf_status zk_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                   int64_t deadline, struct hf_error *err)
{
    struct break_request request = {.fence = fence};

    return break_key((struct zk_conn *)conn, key, &request, deadline, err);
}

hf_status zk_free(struct hfi_conn *conn, const char *key, uint64_t fence,
                  int64_t deadline, struct hf_error *err)
{
    struct break_request request = {.fence = fence, .free = true};

    return break_key((struct zk_conn *)conn, key, &request, deadline, err);
}
