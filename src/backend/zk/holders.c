/* SPDX-License-Identifier: MIT
 *
 * holders.c - everybody who holds a key.
 *
 * The children are read, and then the nodes of those who hold.  One of them may
 * go in between, and then others may hold: it is read again, so what is told was
 * true at one moment, unless the queue changes all the time.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

/* How often it is read again. */
#define HOLDERS_TURNS 8

/* Read them once.  *ret is to be ended by the caller; *gone if one has gone
 * meanwhile. */
static hf_status holders_read(struct zk_session *ses,
                              const struct zk_view *view, int64_t deadline,
                              struct zk_batch **ret, bool *gone,
                              struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, view->n);
    hf_status st = HF_OK;
    size_t i;

    if (!reqs)
        return hfi_nomem(err);
    for (i = 0; i < view->n; i++)
        zk_get(reqs, view->paths[i], false);
    if (zk_batch_wait(reqs, deadline))
        st = zk_inspect_none(ses->conn, err);
    for (i = 0; !st && i < reqs->n; i++) {
        *gone = *gone || reqs->ops[i].rc == ZNONODE;
        if (reqs->ops[i].rc != ZNONODE)
            st = zk_inspect_status(ses->conn, reqs->ops[i].rc, err);
    }
    if (st)
        zk_batch_end(reqs);
    else
        *ret = reqs;
    return st;
}

/* Call `fn` for each that was found. */
static void holders_tell(const struct zk_conn *zc, const struct zk_view *view,
                         const struct zk_batch *nodes, hf_holders_fn *fn,
                         void *arg)
{
    int32_t n = 0;
    bool more = true;
    size_t i;

    for (i = 0; i < nodes->n; i++)
        n += nodes->ops[i].rc == ZOK;
    for (i = 0; i < nodes->n && more; i++) {
        struct hf_info info = HF_INFO_INIT;

        if (nodes->ops[i].rc)
            continue;
        zk_view_describe(zc, view, view->paths[i], &info);
        info.holders = n;
        zk_inspect_describe(&info, &nodes->ops[i]);
        more = fn(arg, &info);
    }
}

static hf_status holders_run(struct zk_session *ses, const char *parent,
                             hf_holders_fn *fn, void *arg, int64_t deadline,
                             struct hf_error *err)
{
    struct zk_batch *nodes = NULL;
    struct zk_view view = {0};
    hf_status st = HF_OK;
    bool gone = true;
    int turn;

    for (turn = 0; gone && !st && turn < HOLDERS_TURNS; turn++) {
        zk_batch_end(nodes);
        nodes = NULL;
        gone = false;
        zk_view_fini(&view);
        st = zk_view_read(ses, parent, deadline, &view, err);
        if (!st)
            st = holders_read(ses, &view, deadline, &nodes, &gone, err);
    }
    if (!st)
        holders_tell(ses->conn, &view, nodes, fn, arg);
    zk_batch_end(nodes);
    zk_view_fini(&view);
    return st;
}

/* recipe=ephemeral: there is one node. */
static hf_status holders_single(struct hfi_conn *conn, const char *key,
                                hf_holders_fn *fn, void *arg, int64_t deadline,
                                struct hf_error *err)
{
    struct hf_info info = HF_INFO_INIT;
    hf_status st = zk_inspect(conn, key, &info, deadline, err);

    if (!st && info.held)
        fn(arg, &info);
    return st;
}

hf_status zk_holders(struct hfi_conn *conn, const char *key, hf_holders_fn *fn,
                     void *arg, int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_session *ses;
    hf_status st;
    char *path;

    if (zc->single)
        return holders_single(conn, key, fn, arg, deadline, err);
    path = zk_key_path(zc, key);
    if (!path)
        return hfi_nomem(err);
    st = zk_session_any(zc, deadline, &ses, err);
    if (!st) {
        st = holders_run(ses, path, fn, arg, deadline, err);
        zk_session_put(ses);
    }
    hfi_free(path);
    return st;
}
