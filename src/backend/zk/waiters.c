/* SPDX-License-Identifier: MIT
 *
 * waiters.c - everybody who waits for a key, in order.
 *
 * The children say who waits and in which order; the node of each says who it
 * is.  One that has gone by the time it is read is left out: it waits no more.
 */
#include "zk.h"

#include "backend/waiters.h"
#include "base/alloc.h"

#include "base/banned.h"

/* How many nodes are asked for at once. */
#define WAITERS_GROUP 64

/* Those who wait, by their numbers: a node of each is below `dir`. */
struct waiting {
    const char *dir;
    const struct String_vector *names;
    struct zk_rank rank;
};

static bool waiting_has(const struct waiting *w, const char *name)
{
    int32_t number;

    return zk_number(name, &number) && !zk_rank_holds(&w->rank, name);
}

/* What the name and the node of one say. */
static void waiters_note(const struct waiting *w, const char *name,
                         const struct zk_op *op, struct hfi_waiters *found)
{
    char token[HFI_TOKEN_LEN + 1];
    struct hf_info info = HF_INFO_INIT;
    struct hf_waiter *waiter;
    int32_t number = 0;
    uint64_t fence;
    bool shared = false;

    if (op->rc)
        return;
    zk_contender(name, &number, &shared);
    /* names.c (2) */
    waiter = hfi_waiters_add(
        found, (int32_t)((uint32_t)number - (uint32_t)w->rank.base));
    if (!waiter)
        return;
    waiter->permits = zk_waiter_permits(name);
    waiter->shared = shared && !waiter->permits;
    zk_data_read(op->text, &info, &fence, token);
    hfi_waiter_names(waiter, info.owner, NULL, info.note);
}

/* The next few of them, from *at on. */
static hf_status waiters_group(struct zk_session *ses, const struct waiting *w,
                               int *at, struct hfi_waiters *found,
                               int64_t deadline, struct hf_error *err)
{
    struct zk_batch *reqs = zk_batch_new(ses, WAITERS_GROUP);
    const char *names[WAITERS_GROUP];
    hf_status st = reqs ? HF_OK : hfi_nomem(err);
    size_t i, n = 0;
    char *path;

    for (; !st && *at < w->names->count && n < WAITERS_GROUP; ++*at) {
        if (!waiting_has(w, w->names->data[*at]))
            continue;
        path = zk_join(w->dir, w->names->data[*at]);
        if (!path) {
            st = hfi_nomem(err);
            break;
        }
        zk_get(reqs, path, false);
        hfi_free(path);
        names[n++] = w->names->data[*at];
    }
    if (!st && n && zk_batch_wait(reqs, deadline))
        st = zk_inspect_none(ses->conn, err);
    for (i = 0; !st && i < n; i++) {
        if (reqs->ops[i].rc != ZNONODE)
            st = zk_inspect_status(ses->conn, reqs->ops[i].rc, err);
        if (!st)
            waiters_note(w, names[i], &reqs->ops[i], found);
    }
    zk_batch_end(reqs);
    return st;
}

static hf_status waiters_below(struct zk_session *ses, struct waiting *w,
                               struct hfi_waiters *found, int64_t deadline,
                               struct hf_error *err)
{
    hf_status st = HF_OK;
    int at = 0;

    while (!st && at < w->names->count)
        st = waiters_group(ses, w, &at, found, deadline, err);
    return st;
}

/* With permits all who wait are in a place of their own, where nobody holds. */
static hf_status waiters_permits(struct zk_session *ses, const char *key_path,
                                 struct hfi_waiters *found, int64_t deadline,
                                 struct hf_error *err)
{
    char *queue = zk_queue_path(ses->conn, key_path);
    struct zk_batch *reqs = NULL;
    struct waiting w = {.dir = queue};
    hf_status st = queue ? HF_OK : hfi_nomem(err);

    if (!st)
        st = zk_inspect_children(ses, queue, deadline, &reqs, err);
    if (!st) {
        w.names = &reqs->ops[1].names;
        zk_rank(&w.rank, w.names, NULL);
        w.rank.head = NULL; /* nobody */
        st = waiters_below(ses, &w, found, deadline, err);
        zk_batch_end(reqs);
    }
    hfi_free(queue);
    return st;
}

static hf_status waiters_key(struct zk_session *ses, const char *key_path,
                             struct hfi_waiters *found, int64_t deadline,
                             struct hf_error *err)
{
    struct waiting w = {.dir = key_path};
    struct zk_batch *reqs;
    bool permits = true;
    hf_status st = zk_inspect_children(ses, key_path, deadline, &reqs, err);

    if (st)
        return st;
    w.names = &reqs->ops[1].names;
    zk_rank(&w.rank, w.names, NULL);
    if (w.rank.head)
        st = zk_use_is_permits(ses, key_path, w.names, deadline, &permits, err);
    if (!st && !permits)
        st = waiters_below(ses, &w, found, deadline, err);
    else if (!st)
        st = waiters_permits(ses, key_path, found, deadline, err);
    zk_batch_end(reqs);
    return st;
}

hf_status zk_waiters(struct hfi_conn *conn, const char *key, hf_waiters_fn *fn,
                     void *arg, int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct hfi_waiters found = {.n = 0};
    struct zk_session *ses;
    hf_status st;
    char *path;

    if (zc->single)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "%s: recipe=ephemeral keeps no queue", conn->endpoint);
    path = zk_key_path(zc, key);
    if (!path)
        return hfi_nomem(err);
    st = zk_session_any(zc, deadline, &ses, err);
    if (!st) {
        st = waiters_key(ses, path, &found, deadline, err);
        zk_session_put(ses);
    }
    hfi_free(path);
    return hfi_waiters_tell(&found, st, fn, arg, err);
}
