/* SPDX-License-Identifier: MIT
 *
 * inspect.c - inspect and list.
 *
 * Looking reads and nothing else, from whichever server we are connected to.
 * What is observed is read with a watch (observe.c).
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* How many keys of a list are asked for at once. */
#define INSPECT_GROUP 64

/* How often one is read that changes hands. */
#define INSPECT_TURNS 8

hf_status zk_inspect_none(const struct zk_conn *zc, struct hf_error *err)
{
    return hfi_fail(err, HF_UNAVAILABLE, "%s: no answer", zc->base.endpoint);
}

/* Nothing is uncertain about a read that was not answered. */
hf_status zk_inspect_status(const struct zk_conn *zc, int rc,
                            struct hf_error *err)
{
    hf_status st = zk_status(zc, rc, "inspect", err);

    return st == HF_UNCERTAIN ? hfi_fail(err, HF_UNAVAILABLE, "%s: inspect: %s",
                                         zc->base.endpoint, zerror(rc))
                              : st;
}

/* Does this answer show the node of a holder?  One among the contenders that is
 * not ephemeral is nobody's, but everybody waits for it. */
bool zk_inspect_holds(const struct zk_conn *zc, const struct zk_op *op)
{
    return op->rc == ZOK && (op->stat.ephemeralOwner || !zc->single);
}

/* Fill `ret` from the node of a holder. */
void zk_inspect_describe(struct hf_info *ret, const struct zk_op *op)
{
    char token[HFI_TOKEN_LEN + 1];

    ret->held = true;
    ret->fence = (uint64_t)op->stat.czxid;
    zk_data_read(op->text, ret, &ret->fence, token);
    if (!op->stat.ephemeralOwner)
        snprintf(ret->note, sizeof(ret->note),
                 "a node that is not ephemeral (it stays until it is freed by "
                 "force)");
}

/* Read one node; *there is whether it exists. */
static hf_status inspect_node(struct zk_session *ses, const char *path,
                              struct hf_info *ret, int64_t deadline,
                              bool *there, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 2);
    hf_status st = HF_OK;
    size_t at;

    if (!reqs)
        return hfi_nomem(err);
    if (ses->conn->single && zk_is_observed(ses->conn, path, true))
        zk_exists(reqs, path, true); /* A watch also if it is not there. */
    zk_get(reqs, path, zk_is_observed(ses->conn, path, false));
    at = reqs->n - 1;
    *there = false;
    if (zk_batch_wait(reqs, deadline)) {
        st = zk_inspect_none(ses->conn, err);
    } else if (reqs->ops[at].rc == ZOK) {
        *there = zk_inspect_holds(ses->conn, &reqs->ops[at]);
        if (*there)
            zk_inspect_describe(ret, &reqs->ops[at]);
    } else if (reqs->ops[at].rc != ZNONODE) {
        st = zk_inspect_status(ses->conn, reqs->ops[at].rc, err);
    }
    zk_batch_end(reqs);
    return st;
}

/* The children of a key, after a sync.  *ret is to be ended by the caller. */
static hf_status inspect_children(struct zk_session *ses, const char *path,
                                  int64_t deadline, struct zk_batch **ret,
                                  struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 2);
    hf_status st = HF_OK;

    if (!reqs)
        return hfi_nomem(err);
    zk_sync(reqs, path);
    zk_children(reqs, path, zk_is_observed(ses->conn, path, false));
    if (zk_batch_wait(reqs, deadline))
        st = zk_inspect_none(ses->conn, err);
    else if (reqs->ops[1].rc != ZNONODE)
        st = zk_inspect_status(ses->conn, reqs->ops[1].rc, err);
    if (st)
        zk_batch_end(reqs);
    else
        *ret = reqs;
    return st;
}

/* Hear of it when the node is made, if it is not there; *made: it was just
 * now. */
static hf_status inspect_await(struct zk_session *ses, const char *path,
                               int64_t deadline, bool *made,
                               struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    hf_status st = HF_OK;

    if (!reqs)
        return hfi_nomem(err);
    zk_exists(reqs, path, true);
    if (zk_batch_wait(reqs, deadline))
        st = zk_inspect_none(ses->conn, err);
    else if (reqs->ops[0].rc != ZNONODE)
        st = zk_inspect_status(ses->conn, reqs->ops[0].rc, err);
    *made = !st && reqs->ops[0].rc == ZOK;
    zk_batch_end(reqs);
    return st;
}

hf_status zk_inspect_children(struct zk_session *ses, const char *path,
                              int64_t deadline, struct zk_batch **ret,
                              struct hf_error *err)
{
    bool made = true;
    hf_status st = HF_OK;

    while (made && !st) {
        st = inspect_children(ses, path, deadline, ret, err);
        if (st || (*ret)->ops[1].rc != ZNONODE ||
            !zk_is_observed(ses->conn, path, true))
            return st;
        st = inspect_await(ses, path, deadline, &made, err);
        if (st || made)
            zk_batch_end(*ret);
    }
    return st;
}

/* Read once; *gone if the first holder has gone meanwhile, or with `any` if all
 * have. */
static hf_status inspect_once(struct zk_session *ses, const char *path,
                              bool any, struct hf_info *ret, int64_t deadline,
                              bool *gone, struct hf_error *err)
{
    struct zk_view view;
    hf_status st = zk_view_read(ses, path, deadline, &view, err);
    bool there = false;
    size_t i = 0;

    while (!st && !there && i < (any || !view.n ? view.n : 1))
        st = inspect_node(ses, view.paths[i++], ret, deadline, &there, err);
    if (!st)
        *gone = view.n && !there;
    if (!st && !*gone)
        zk_view_describe(ses->conn, &view, i ? view.paths[i - 1] : "", ret);
    zk_view_fini(&view);
    return st;
}

static hf_status inspect_key(struct zk_session *ses, const char *path,
                             struct hf_info *ret, int64_t deadline,
                             struct hf_error *err)
{
    bool gone = true, there;
    hf_status st = HF_OK;
    int turns;

    ret->left_ms = ret->since_ms = -1;
    ret->waiters = 0;
    if (ses->conn->single) {
        st = inspect_node(ses, path, ret, deadline, &there, err);
        ret->holders = ret->held;
        ret->waiters = -1;
        return st;
    }
    /* The first may go between the two reads: then read again, and at last be
     * content with another, so that one who holds all the time is not missed. */
    for (turns = 0; gone && !st && turns < INSPECT_TURNS; turns++)
        st = inspect_once(ses, path, turns == INSPECT_TURNS - 1, ret, deadline,
                          &gone, err);
    return st;
}

hf_status zk_inspect(struct hfi_conn *conn, const char *key,
                     struct hf_info *ret, int64_t deadline,
                     struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    char *path = zk_key_path(zc, key);
    struct zk_session *ses;
    hf_status st;

    if (!path)
        return hfi_nomem(err);
    st = zk_session_any(zc, deadline, &ses, err);
    if (!st) {
        st = inspect_key(ses, path, ret, deadline, err);
        zk_session_put(ses);
    }
    hfi_free(path);
    return st;
}

/* ---- list -------------------------------------------------------------- */

/* What the caller of a list wants. */
struct list_call {
    const char *prefix;
    hf_list_fn *fn;
    void *arg;
    bool more;
};

/* A few keys that are asked for together: first for the children of all, then
 * for the first child of each.  With recipe=ephemeral the first is all. */
struct list_group {
    char *paths[INSPECT_GROUP]; /* of keys */
    char *heads[INSPECT_GROUP]; /* of the nodes that hold them, or NULL */
    struct hf_info infos[INSPECT_GROUP];
    bool permits
        [INSPECT_GROUP]; /* used with permits, perhaps: ask for it alone */
    size_t n;
};

static void group_clear(struct list_group *group)
{
    for (; group->n; group->n--) {
        hfi_free(group->paths[group->n - 1]);
        hfi_free(group->heads[group->n - 1]);
    }
    memset(group, 0, sizeof(*group));
}

/* Send one question for each, and wait for all answers. */
static hf_status group_ask(struct zk_session *ses, char *const *paths, size_t n,
                           bool children, int64_t deadline,
                           struct zk_batch **ret, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, n);
    size_t i;

    if (!reqs)
        return hfi_nomem(err);
    for (i = 0; i < n; i++)
        if (children)
            zk_children(reqs, paths[i],
                        zk_is_observed(ses->conn, paths[i], false));
        else
            zk_get(reqs, paths[i] ? paths[i] : "/",
                   paths[i] && zk_is_observed(ses->conn, paths[i], false));
    if (zk_batch_wait(reqs, deadline)) {
        zk_batch_end(reqs);
        return zk_inspect_none(ses->conn, err);
    }
    *ret = reqs;
    return HF_OK;
}

/* Who is the first of each? */
static hf_status group_heads(struct zk_session *ses, struct list_group *group,
                             int64_t deadline, struct hf_error *err)
{
    struct zk_batch *reqs = NULL;
    struct zk_rank rank;
    hf_status st;
    size_t i;

    st = group_ask(ses, group->paths, group->n, true, deadline, &reqs, err);
    for (i = 0; !st && i < group->n; i++) {
        zk_rank(&rank, &reqs->ops[i].names, NULL);
        group->infos[i] = (struct hf_info)HF_INFO_INIT;
        group->infos[i].left_ms = group->infos[i].since_ms = -1;
        group->infos[i].shared = rank.shared;
        group->infos[i].holders = rank.holders;
        group->infos[i].waiters = rank.waiters;
        group->permits[i] = zk_view_permits(ses->conn, &reqs->ops[i].names);
        if (group->permits[i] || reqs->ops[i].rc || !rank.head ||
            zk_waiter_permits(rank.head))
            continue; /* Gone, free, not ours to read, or a queue of permits. */
        group->heads[i] = zk_join(group->paths[i], rank.head);
        if (!group->heads[i])
            st = hfi_nomem(err);
    }
    zk_batch_end(reqs);
    return st;
}

static hf_status group_heads_single(struct list_group *group,
                                    struct hf_error *err)
{
    size_t i;

    for (i = 0; i < group->n; i++) {
        group->infos[i] = (struct hf_info)HF_INFO_INIT;
        group->infos[i].left_ms = group->infos[i].since_ms = -1;
        group->infos[i].holders = 1;
        group->infos[i].waiters = -1;
        group->heads[i] = hfi_strdup(group->paths[i]);
        if (!group->heads[i])
            return hfi_nomem(err);
    }
    return HF_OK;
}

/* Tell `fn` of one that is held.  Its first node may have gone since, or was
 * not asked for (NULL). */
static hf_status group_tell(struct zk_session *ses, const char *path,
                            const struct zk_op *op, struct hf_info *info,
                            struct list_call *call, int64_t deadline,
                            struct hf_error *err)
{
    hf_status st = HF_OK;
    char *key;

    if (op && zk_inspect_holds(ses->conn, op))
        zk_inspect_describe(info, op);
    else if (!op || (op->rc == ZNONODE && !ses->conn->single))
        st = inspect_key(ses, path, info, deadline, err);
    else if (op->rc)
        st = op->rc == ZNONODE ? HF_OK
                               : zk_inspect_status(ses->conn, op->rc, err);
    if (st == HF_DENIED || (!st && !info->held))
        return HF_OK;
    if (st)
        return st;
    key = hfi_strdup(zk_name_of(path));
    if (!key)
        return hfi_nomem(err);
    if (zk_key_of_name(key))
        call->more = call->fn(call->arg, key, info);
    hfi_free(key);
    return HF_OK;
}

static hf_status group_run(struct zk_session *ses, struct list_group *group,
                           struct list_call *call, int64_t deadline,
                           struct hf_error *err)
{
    struct zk_batch *reqs = NULL;
    hf_status st = ses->conn->single ? group_heads_single(group, err)
                                     : group_heads(ses, group, deadline, err);
    size_t i;

    if (!st)
        st =
            group_ask(ses, group->heads, group->n, false, deadline, &reqs, err);
    for (i = 0; !st && i < group->n && call->more; i++)
        if (group->heads[i] || group->permits[i])
            st = group_tell(ses, group->paths[i],
                            group->heads[i] ? &reqs->ops[i] : NULL,
                            &group->infos[i], call, deadline, err);
    zk_batch_end(reqs);
    return st;
}

static bool list_wants(const char *name, const char *prefix)
{
    char *key = hfi_strdup(name);
    bool wants =
        !key || (zk_key_of_name(key) && !strncmp(key, prefix, strlen(prefix)));

    hfi_free(key);
    return wants;
}

static hf_status list_groups(struct zk_session *ses,
                             const struct String_vector *names,
                             struct list_call *call, int64_t deadline,
                             struct hf_error *err)
{
    struct list_group *group = hfi_alloc(sizeof(*group));
    hf_status st = group ? HF_OK : hfi_nomem(err);
    int at = 0;

    while (at < names->count && !st && call->more) {
        for (; at < names->count && group->n < INSPECT_GROUP && !st; at++) {
            if (!list_wants(names->data[at], call->prefix))
                continue;
            group->paths[group->n] = zk_join(ses->conn->root, names->data[at]);
            if (group->paths[group->n])
                group->n++;
            else
                st = hfi_nomem(err);
        }
        if (group->n && !st)
            st = group_run(ses, group, call, deadline, err);
        group_clear(group);
    }
    hfi_free(group);
    return st;
}

hf_status zk_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                  void *arg, int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_session *ses;
    struct list_call call = {prefix, fn, arg, true};
    struct zk_batch *reqs;
    hf_status st = zk_session_any(zc, deadline, &ses, err);

    if (st)
        return st;
    st = zk_inspect_children(ses, *zc->root ? zc->root : "/", deadline, &reqs,
                             err);
    if (!st) {
        st = list_groups(ses, &reqs->ops[1].names, &call, deadline, err);
        zk_batch_end(reqs);
    }
    zk_session_put(ses);
    return st;
}
