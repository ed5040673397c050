/* SPDX-License-Identifier: MIT
 *
 * view.c - who holds a key, in whichever way it is used.
 *
 * The children of the key say whether it is a plain lock, which it is if one of
 * them contends and nobody has an older permit (use.c (3)); else what belongs to
 * its permits is read, too.  Nothing is said of the nodes themselves: one may have
 * gone by the time it is read.
 */
#include "zk.h"

#include <stdlib.h>

#include "base/alloc.h"

#include "base/banned.h"

static bool view_has(const struct String_vector *names, const char *name)
{
    int i;

    for (i = 0; i < names->count; i++)
        if (!strcmp(names->data[i], name))
            return true;
    return false;
}

bool zk_view_permits(const struct zk_conn *zc,
                     const struct String_vector *names)
{
    struct zk_lease lease;
    int i;

    if (!zc->kazoo)
        return view_has(names, "leases");
    for (i = 0; i < names->count; i++)
        if (zk_lease_parse(zc, names->data[i], &lease))
            return true;
    return false;
}

void zk_view_fini(struct zk_view *view)
{
    while (view->n)
        hfi_free(view->paths[--view->n]);
    hfi_free(view->paths);
    view->paths = NULL;
}

/* One more; `first` puts it before the others.  There is room. */
static hf_status view_add(struct zk_view *view, const char *dir,
                          const char *name, bool first, struct hf_error *err)
{
    char *path = zk_join(dir, name);

    if (!path)
        return hfi_nomem(err);
    view->paths[view->n] = path;
    if (first) {
        view->paths[view->n] = view->paths[0];
        view->paths[0] = path;
    }
    view->n++;
    return HF_OK;
}

static hf_status view_room(struct zk_view *view, int n, struct hf_error *err)
{
    view->paths = hfi_alloc((size_t)(n > 0 ? n : 1) * sizeof(*view->paths));
    return view->paths ? HF_OK : hfi_nomem(err);
}

static hf_status view_plain(const char *dir, const struct String_vector *names,
                            const struct zk_rank *rank, struct zk_view *ret,
                            struct hf_error *err)
{
    hf_status st = view_room(ret, names->count, err);
    int i;

    ret->shared = rank->shared;
    ret->waiters = rank->waiters;
    for (i = 0; i < names->count && !st; i++)
        if (zk_rank_holds(rank, names->data[i]))
            st = view_add(ret, dir, names->data[i],
                          names->data[i] == rank->head, err);
    return st;
}

/* The one with the lowest slot is the first. */
static hf_status view_leases(const struct zk_conn *zc, const char *dir,
                             const struct String_vector *names,
                             struct zk_view *ret, struct hf_error *err)
{
    hf_status st = view_room(ret, names->count, err);
    int32_t lowest = INT32_MAX;
    struct zk_lease lease;
    int i;

    for (i = 0; i < names->count && !st; i++) {
        if (!zk_lease_parse(zc, names->data[i], &lease))
            continue;
        st = view_add(ret, dir, names->data[i],
                      lease.slot >= 0 && lease.slot < lowest, err);
        if (lease.slot >= 0 && lease.slot < lowest)
            lowest = lease.slot;
        if (lease.permits)
            ret->permits = lease.permits;
    }
    return st;
}

/* Those in the queue.  A key of another URL may have its name: if nobody holds,
 * only those count that ask for permits. */
static int32_t view_waiters(const struct String_vector *names, bool held)
{
    int32_t number, n = 0;
    int i;

    for (i = 0; i < names->count; i++)
        if (zk_number(names->data[i], &number) &&
            (held || zk_waiter_permits(names->data[i])))
            n++;
    return n;
}

/* How many permits there are, if none of ours says so: what kazoo has written
 * into the node of the key, or as many as hold. */
static int32_t view_permits(const struct zk_op *key, int32_t holders)
{
    long permits =
        key && !key->rc && key->text ? strtol(key->text, NULL, 10) : 0;

    return permits > 0 && permits <= INT32_MAX ? (int32_t)permits : holders;
}

/* The key is no plain lock: `names` are its children. */
static hf_status view_read_permits(struct zk_session *ses, const char *key_path,
                                   const struct String_vector *names,
                                   int64_t deadline, struct zk_view *ret,
                                   struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    char *queue = zk_queue_path(zc, key_path);
    char *dir = zk_leases_path(zc, key_path);
    struct zk_batch *reqs = queue && dir ? zk_batch_new(ses, 2) : NULL;
    bool watch = zk_is_observed(zc, key_path, false);
    hf_status st = reqs ? HF_OK : hfi_nomem(err);
    size_t i;

    if (reqs) {
        zk_children(reqs, queue, watch);
        if (zc->kazoo)
            zk_get(reqs, key_path, watch);
        else
            zk_children(reqs, dir, watch);
        if (zk_batch_wait(reqs, deadline))
            st = zk_inspect_none(zc, err);
        for (i = 0; i < 2 && !st; i++)
            if (reqs->ops[i].rc != ZNONODE)
                st = zk_inspect_status(zc, reqs->ops[i].rc, err);
    }
    if (!st)
        st = view_leases(zc, dir, zc->kazoo ? names : &reqs->ops[1].names, ret,
                         err);
    if (!st) {
        ret->waiters = view_waiters(&reqs->ops[0].names, ret->n > 0);
        if (ret->n && !ret->permits)
            ret->permits =
                view_permits(zc->kazoo ? &reqs->ops[1] : NULL, (int32_t)ret->n);
    }
    zk_batch_end(reqs);
    hfi_free(queue);
    hfi_free(dir);
    return st;
}

hf_status zk_view_read(struct zk_session *ses, const char *key_path,
                       int64_t deadline, struct zk_view *ret,
                       struct hf_error *err)
{
    const struct String_vector *names;
    struct zk_batch *reqs;
    struct zk_rank rank;
    bool permits = true;
    hf_status st;

    *ret = (struct zk_view){0};
    st = zk_inspect_children(ses, key_path, deadline, &reqs, err);
    if (st)
        return st;
    names = &reqs->ops[1].names;
    zk_rank(&rank, names, NULL);
    if (rank.head)
        st = zk_use_is_permits(ses, key_path, names, deadline, &permits, err);
    if (st)
        *ret = (struct zk_view){0};
    else if (!permits)
        st = view_plain(key_path, names, &rank, ret, err);
    else if (zk_view_permits(ses->conn, names) || view_has(names, "locks"))
        st = view_read_permits(ses, key_path, names, deadline, ret, err);
    zk_batch_end(reqs);
    return st;
}

void zk_view_describe(const struct zk_conn *zc, const struct zk_view *view,
                      const char *path, struct hf_info *ret)
{
    struct zk_lease lease;

    ret->left_ms = ret->since_ms = -1;
    ret->shared = view->shared;
    ret->holders = (int32_t)view->n;
    ret->waiters = view->waiters;
    ret->permits = view->permits;
    ret->slot = -1;
    if (view->permits && zk_lease_parse(zc, zk_name_of(path), &lease))
        ret->slot = lease.slot;
}
