/* SPDX-License-Identifier: MIT
 *
 * inspect.c - inspect and list.
 *
 * Looking reads and nothing else, from whichever server we are connected to.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* How many keys of a list are asked for at once. */
#define LOOK_BATCH 64

hf_status zk_look_none(const struct zk_conn *zc, struct hf_error *err)
{
    return hfi_fail(err, HF_UNAVAILABLE, "%s: no answer", zc->base.endpoint);
}

/* Nothing is uncertain about a look that was not answered. */
hf_status zk_look_status(const struct zk_conn *zc, int rc, struct hf_error *err)
{
    hf_status st = zk_status(zc, rc, "look", err);

    return st == HF_UNCERTAIN ? hfi_fail(err, HF_UNAVAILABLE, "%s: look: %s",
                                         zc->base.endpoint, zerror(rc))
                              : st;
}

/* Does this answer show the node of a holder?  One among the contenders that is
 * not ephemeral is nobody's, but everybody waits for it. */
bool zk_look_holds(const struct zk_conn *zc, const struct zk_op *op)
{
    return op->rc == ZOK && (op->stat.ephemeralOwner || !zc->single);
}

/* Fill `ret` from the node of a holder. */
void zk_look_describe(struct hf_info *ret, const struct zk_op *op)
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
static hf_status look_node(struct zk_session *ses, const char *path,
                           struct hf_info *ret, int64_t deadline, bool *there,
                           struct hf_error *err)
{
    struct zk_flight *fl = zk_flight_new(ses, 1);
    hf_status st = HF_OK;

    if (!fl)
        return hfi_nomem(err);
    zk_get(fl, path, false);
    *there = false;
    if (zk_flight_wait(fl, deadline)) {
        st = zk_look_none(ses->conn, err);
    } else if (fl->ops[0].rc == ZOK) {
        *there = zk_look_holds(ses->conn, &fl->ops[0]);
        if (*there)
            zk_look_describe(ret, &fl->ops[0]);
    } else if (fl->ops[0].rc != ZNONODE) {
        st = zk_look_status(ses->conn, fl->ops[0].rc, err);
    }
    zk_flight_end(fl);
    return st;
}

/* The children of a key, after a sync.  *ret is to be ended by the caller. */
hf_status zk_look_children(struct zk_session *ses, const char *path,
                           int64_t deadline, struct zk_flight **ret,
                           struct hf_error *err)
{
    struct zk_flight *fl = zk_flight_new(ses, 2);
    hf_status st = HF_OK;

    if (!fl)
        return hfi_nomem(err);
    zk_sync(fl, path);
    zk_children(fl, path, false);
    if (zk_flight_wait(fl, deadline))
        st = zk_look_none(ses->conn, err);
    else if (fl->ops[1].rc != ZNONODE)
        st = zk_look_status(ses->conn, fl->ops[1].rc, err);
    if (st)
        zk_flight_end(fl);
    else
        *ret = fl;
    return st;
}

/* Who holds the key at `path`, among these children? */
static hf_status look_contenders(struct zk_session *ses, const char *path,
                                 const struct String_vector *names,
                                 struct hf_info *ret, int64_t deadline,
                                 bool *gone, struct hf_error *err)
{
    struct zk_rank rank;
    char *head;
    hf_status st;
    bool there;

    zk_rank(&rank, names, NULL);
    ret->waiters = 0;
    if (!rank.head)
        return HF_OK;
    head = zk_join(path, rank.head);
    if (!head)
        return hfi_nomem(err);
    st = look_node(ses, head, ret, deadline, &there, err);
    hfi_free(head);
    if (!st && !there)
        *gone = true;
    if (!st && there) {
        ret->holders = rank.holders;
        ret->waiters = rank.waiters;
    }
    return st;
}

static hf_status look_key(struct zk_session *ses, const char *path,
                          struct hf_info *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct zk_flight *fl;
    bool gone = true, there;
    hf_status st = HF_OK;
    int turns;

    ret->left_ms = ret->since_ms = -1;
    if (ses->conn->single) {
        st = look_node(ses, path, ret, deadline, &there, err);
        ret->holders = ret->held;
        ret->waiters = -1;
        return st;
    }
    /* The first may go between the two looks: then look again. */
    for (turns = 0; gone && !st && turns < 8; turns++) {
        gone = false;
        st = zk_look_children(ses, path, deadline, &fl, err);
        if (st)
            break;
        st = look_contenders(ses, path, &fl->ops[1].names, ret, deadline, &gone,
                             err);
        zk_flight_end(fl);
    }
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
        st = look_key(ses, path, ret, deadline, err);
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
struct list_batch {
    char *paths[LOOK_BATCH]; /* of keys */
    char *heads[LOOK_BATCH]; /* of the nodes that hold them, or NULL */
    struct hf_info infos[LOOK_BATCH];
    size_t n;
};

static void batch_clear(struct list_batch *batch)
{
    for (; batch->n; batch->n--) {
        hfi_free(batch->paths[batch->n - 1]);
        hfi_free(batch->heads[batch->n - 1]);
    }
    memset(batch, 0, sizeof(*batch));
}

/* Send one question for each, and wait for all answers. */
static hf_status batch_ask(struct zk_session *ses, char *const *paths, size_t n,
                           bool children, int64_t deadline,
                           struct zk_flight **ret, struct hf_error *err)
{
    struct zk_flight *fl = zk_flight_new(ses, n);
    size_t i;

    if (!fl)
        return hfi_nomem(err);
    for (i = 0; i < n; i++)
        if (children)
            zk_children(fl, paths[i], false);
        else
            zk_get(fl, paths[i] ? paths[i] : "/", false);
    if (zk_flight_wait(fl, deadline)) {
        zk_flight_end(fl);
        return zk_look_none(ses->conn, err);
    }
    *ret = fl;
    return HF_OK;
}

/* Who is the first of each? */
static hf_status batch_heads(struct zk_session *ses, struct list_batch *batch,
                             int64_t deadline, struct hf_error *err)
{
    struct zk_flight *fl = NULL;
    struct zk_rank rank;
    hf_status st;
    size_t i;

    st = batch_ask(ses, batch->paths, batch->n, true, deadline, &fl, err);
    for (i = 0; !st && i < batch->n; i++) {
        zk_rank(&rank, &fl->ops[i].names, NULL);
        batch->infos[i] = (struct hf_info)HF_INFO_INIT;
        batch->infos[i].left_ms = batch->infos[i].since_ms = -1;
        batch->infos[i].holders = rank.holders;
        batch->infos[i].waiters = rank.waiters;
        if (fl->ops[i].rc || !rank.head)
            continue; /* Gone, free, or not ours to read. */
        batch->heads[i] = zk_join(batch->paths[i], rank.head);
        if (!batch->heads[i])
            st = hfi_nomem(err);
    }
    zk_flight_end(fl);
    return st;
}

static hf_status batch_heads_single(struct list_batch *batch,
                                    struct hf_error *err)
{
    size_t i;

    for (i = 0; i < batch->n; i++) {
        batch->infos[i] = (struct hf_info)HF_INFO_INIT;
        batch->infos[i].left_ms = batch->infos[i].since_ms = -1;
        batch->infos[i].holders = 1;
        batch->infos[i].waiters = -1;
        batch->heads[i] = hfi_strdup(batch->paths[i]);
        if (!batch->heads[i])
            return hfi_nomem(err);
    }
    return HF_OK;
}

/* Tell `fn` of one that is held.  Its first node may have gone since. */
static hf_status batch_tell(struct zk_session *ses, const char *path,
                            const struct zk_op *op, struct hf_info *info,
                            struct list_call *call, int64_t deadline,
                            struct hf_error *err)
{
    hf_status st = HF_OK;
    char *key;

    if (zk_look_holds(ses->conn, op))
        zk_look_describe(info, op);
    else if (op->rc == ZNONODE && !ses->conn->single)
        st = look_key(ses, path, info, deadline, err);
    else if (op->rc)
        st = op->rc == ZNONODE ? HF_OK : zk_look_status(ses->conn, op->rc, err);
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

static hf_status batch_run(struct zk_session *ses, struct list_batch *batch,
                           struct list_call *call, int64_t deadline,
                           struct hf_error *err)
{
    struct zk_flight *fl = NULL;
    hf_status st = ses->conn->single ? batch_heads_single(batch, err)
                                     : batch_heads(ses, batch, deadline, err);
    size_t i;

    if (!st)
        st = batch_ask(ses, batch->heads, batch->n, false, deadline, &fl, err);
    for (i = 0; !st && i < batch->n && call->more; i++)
        if (batch->heads[i])
            st = batch_tell(ses, batch->paths[i], &fl->ops[i], &batch->infos[i],
                            call, deadline, err);
    zk_flight_end(fl);
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

static hf_status list_batches(struct zk_session *ses,
                              const struct String_vector *names,
                              struct list_call *call, int64_t deadline,
                              struct hf_error *err)
{
    struct list_batch *batch = hfi_alloc(sizeof(*batch));
    hf_status st = batch ? HF_OK : hfi_nomem(err);
    int at = 0;

    while (at < names->count && !st && call->more) {
        for (; at < names->count && batch->n < LOOK_BATCH && !st; at++) {
            if (!list_wants(names->data[at], call->prefix))
                continue;
            batch->paths[batch->n] = zk_join(ses->conn->root, names->data[at]);
            if (batch->paths[batch->n])
                batch->n++;
            else
                st = hfi_nomem(err);
        }
        if (batch->n && !st)
            st = batch_run(ses, batch, call, deadline, err);
        batch_clear(batch);
    }
    hfi_free(batch);
    return st;
}

hf_status zk_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                  void *arg, int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_session *ses;
    struct list_call call = {prefix, fn, arg, true};
    struct zk_flight *fl;
    hf_status st = zk_session_any(zc, deadline, &ses, err);

    if (st)
        return st;
    st = zk_look_children(ses, *zc->root ? zc->root : "/", deadline, &fl, err);
    if (!st) {
        st = list_batches(ses, &fl->ops[1].names, &call, deadline, err);
        zk_flight_end(fl);
    }
    zk_session_put(ses);
    return st;
}
