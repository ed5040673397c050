/* SPDX-License-Identifier: MIT
 *
 * zk_look.c - inspect, list and break.
 *
 * Looking reads and nothing else, from whichever server we are connected to.
 * Breaking writes a mark into the node of the holder, who hears of that by a
 * watch; the node stays until he lets go or his session ends, so nobody is let in
 * meanwhile.  By force it is removed.  Either is done only to nodes that bear the
 * fence that was looked at: names of contenders are never used twice, so what is
 * changed is what was read.  With recipe=ephemeral the name is used again, and
 * the two steps are not one (zk_one.c, LIMITS).
 */
#include "zk.h"

#include "../mem.h"

#include "../banned.h"

/* How many keys of a list are asked for at once. */
#define LOOK_BATCH 64

static hf_status look_none(const struct zk_conn *zc, struct hf_error *err)
{
    return hfi_fail(err, HF_UNAVAILABLE, "%s: no answer", zc->base.endpoint);
}

/* Nothing is uncertain about a look that was not answered. */
static hf_status look_status(const struct zk_conn *zc, int rc,
                             struct hf_error *err)
{
    hf_status st = zk_status(zc, rc, "look", err);

    return st == HF_UNCERTAIN ? hfi_fail(err, HF_UNAVAILABLE, "%s: look: %s",
                                         zc->base.endpoint, zerror(rc))
                              : st;
}

/* Fill `ret` from the node of a holder. */
static void look_describe(struct hf_info *ret, const struct zk_op *op)
{
    char token[HFI_TOKEN_LEN + 1];

    ret->held = true;
    ret->fence = (uint64_t)op->stat.czxid;
    zk_data_read(op->text, ret, &ret->fence, token);
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
        st = look_none(ses->conn, err);
    } else if (fl->ops[0].rc == ZOK) {
        *there = fl->ops[0].stat.ephemeralOwner != 0;
        if (*there)
            look_describe(ret, &fl->ops[0]);
    } else if (fl->ops[0].rc != ZNONODE) {
        st = look_status(ses->conn, fl->ops[0].rc, err);
    }
    zk_flight_end(fl);
    return st;
}

/* The children of a key, after a sync.  *ret is to be ended by the caller. */
static hf_status look_children(struct zk_session *ses, const char *path,
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
        st = look_none(ses->conn, err);
    else if (fl->ops[1].rc != ZNONODE)
        st = look_status(ses->conn, fl->ops[1].rc, err);
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
        st = look_children(ses, path, deadline, &fl, err);
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

/* Ask for the children of several keys in one row; an operation each. */
static hf_status list_ask(struct zk_session *ses, char *const *paths, size_t n,
                          int64_t deadline, struct zk_flight **ret,
                          struct hf_error *err)
{
    struct zk_flight *fl = zk_flight_new(ses, n);
    size_t i;

    if (!fl)
        return hfi_nomem(err);
    for (i = 0; i < n; i++)
        if (ses->conn->single)
            zk_exists(fl, paths[i], false);
        else
            zk_children(fl, paths[i], false);
    if (zk_flight_wait(fl, deadline)) {
        zk_flight_end(fl);
        return look_none(ses->conn, err);
    }
    *ret = fl;
    return HF_OK;
}

/* Tell `fn` of those of the batch that are held. */
static hf_status list_tell(struct zk_session *ses, char *const *paths,
                           const struct zk_flight *fl, size_t n, hf_list_fn *fn,
                           void *arg, int64_t deadline, bool *more,
                           struct hf_error *err)
{
    struct zk_rank rank;
    char *key;
    hf_status st;
    size_t i;

    for (i = 0; i < n && *more; i++) {
        struct hf_info info = HF_INFO_INIT;

        zk_rank(&rank, &fl->ops[i].names, NULL);
        if (fl->ops[i].rc || (!ses->conn->single && !rank.head))
            continue; /* Gone, free, or not ours to read. */
        st = look_key(ses, paths[i], &info, deadline, err);
        if (st == HF_DENIED || (!st && !info.held))
            continue;
        if (st)
            return st;
        key = hfi_strdup(zk_name_of(paths[i]));
        if (!key)
            return hfi_nomem(err);
        if (zk_key_of_name(key))
            *more = fn(arg, key, &info);
        hfi_free(key);
    }
    return HF_OK;
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
                              const char *prefix, hf_list_fn *fn, void *arg,
                              int64_t deadline, struct hf_error *err)
{
    char *paths[LOOK_BATCH];
    struct zk_flight *fl = NULL;
    hf_status st = HF_OK;
    bool more = true;
    size_t n;
    int at = 0;

    while (at < names->count && !st && more) {
        for (n = 0; at < names->count && n < LOOK_BATCH; at++) {
            if (!list_wants(names->data[at], prefix))
                continue;
            paths[n] = zk_join(ses->conn->root, names->data[at]);
            if (!paths[n])
                st = hfi_nomem(err);
            else
                n++;
        }
        if (n && !st)
            st = list_ask(ses, paths, n, deadline, &fl, err);
        if (n && !st) {
            st = list_tell(ses, paths, fl, n, fn, arg, deadline, &more, err);
            zk_flight_end(fl);
        }
        while (n)
            hfi_free(paths[--n]);
    }
    return st;
}

hf_status zk_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                  void *arg, int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_session *ses;
    struct zk_flight *fl;
    hf_status st = zk_session_any(zc, deadline, &ses, err);

    if (st)
        return st;
    st = look_children(ses, *zc->root ? zc->root : "/", deadline, &fl, err);
    if (!st) {
        st = list_batches(ses, &fl->ops[1].names, prefix, fn, arg, deadline,
                          err);
        zk_flight_end(fl);
    }
    zk_session_put(ses);
    return st;
}

/* ---- break ------------------------------------------------------------- */

/* How often a node is read that is written to meanwhile. */
#define BREAK_TURNS 4

/* What is to be done to the holder with this fence. */
struct break_wish {
    uint64_t fence;
    bool free; /* remove it; else it is marked, and the holder lets go */
    bool hit;  /* out: there was one */
};

/* A place of our own need not wait to hear of it. */
static void break_tell(struct zk_conn *zc, const char *path, bool freed)
{
    struct hfi_node *node = NULL;
    struct zk_place *place;

    pthread_mutex_lock(&zc->mu);
    while ((node = hfi_map_next(&zc->places, node))) {
        place = hfi_container(node, struct zk_place, node);
        if (!place->ses || !place->path || strcmp(place->path, path) != 0)
            continue;
        if (freed)
            zk_place_gone(place, HF_LOSS_BROKEN);
        else
            zk_place_broken(place);
    }
    pthread_mutex_unlock(&zc->mu);
}

/* Change the node that was read, unless it has been written to since. */
static hf_status break_change(struct zk_session *ses, const char *path,
                              const struct zk_op *seen,
                              const struct break_wish *wish, int64_t deadline,
                              int *rc, struct hf_error *err)
{
    struct zk_flight *fl = zk_flight_new(ses, 1);
    char data[ZK_DATA_MAX + 32];
    hf_status st = HF_OK;

    if (!fl)
        return hfi_nomem(err);
    zk_data_mark(data, seen->text, wish->fence);
    if (wish->free)
        zk_delete(fl, path, seen->stat.version);
    else
        zk_set(fl, path, data, seen->stat.version);
    if (zk_flight_wait(fl, deadline))
        st = zk_no_answer(ses->conn, err);
    else if (fl->ops[0].rc != ZNONODE && fl->ops[0].rc != ZBADVERSION)
        st = zk_status(ses->conn, fl->ops[0].rc, "break", err);
    *rc = st ? ZOK : fl->ops[0].rc;
    zk_flight_end(fl);
    return st;
}

/* Read a node, and break it if it has the fence.  *again if it has changed. */
static hf_status break_node(struct zk_session *ses, const char *path,
                            struct break_wish *wish, int64_t deadline,
                            bool *again, struct hf_error *err)
{
    struct zk_flight *fl = zk_flight_new(ses, 1);
    struct hf_info info = HF_INFO_INIT;
    hf_status st = HF_OK;
    int rc = ZNONODE;

    if (!fl)
        return hfi_nomem(err);
    zk_get(fl, path, false);
    if (zk_flight_wait(fl, deadline))
        st = look_none(ses->conn, err);
    else if (fl->ops[0].rc == ZOK && fl->ops[0].stat.ephemeralOwner)
        look_describe(&info, &fl->ops[0]);
    else if (fl->ops[0].rc != ZNONODE)
        st = look_status(ses->conn, fl->ops[0].rc, err);
    if (!st && info.held && info.fence == wish->fence) {
        if (info.broken && !wish->free)
            rc = ZOK;
        else
            st = break_change(ses, path, &fl->ops[0], wish, deadline, &rc, err);
    }
    zk_flight_end(fl);
    *again = rc == ZBADVERSION;
    if (!st && rc == ZOK) {
        wish->hit = true;
        break_tell(ses->conn, path, wish->free);
    }
    return st;
}

static hf_status break_path(struct zk_session *ses, const char *path,
                            struct break_wish *wish, int64_t deadline,
                            struct hf_error *err)
{
    hf_status st = HF_OK;
    bool again = true;
    int turns;

    for (turns = 0; again && !st && turns < BREAK_TURNS; turns++)
        st = break_node(ses, path, wish, deadline, &again, err);
    if (!st && again)
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: the node changes too fast",
                      ses->conn->base.endpoint);
    return st;
}

/* All that have the lowest number hold together. */
static hf_status break_holders(struct zk_session *ses, const char *parent,
                               struct break_wish *wish, int64_t deadline,
                               struct hf_error *err)
{
    struct zk_flight *fl;
    struct zk_rank rank;
    int32_t head = 0, number;
    hf_status st = look_children(ses, parent, deadline, &fl, err);
    int i;

    if (st)
        return st;
    zk_rank(&rank, &fl->ops[1].names, NULL);
    if (rank.head)
        zk_number(rank.head, &head);
    for (i = 0; rank.head && !st && i < fl->ops[1].names.count; i++) {
        char *path;

        if (!zk_number(fl->ops[1].names.data[i], &number) || number != head)
            continue;
        path = zk_join(parent, fl->ops[1].names.data[i]);
        st = path ? break_path(ses, path, wish, deadline, err) : hfi_nomem(err);
        hfi_free(path);
    }
    zk_flight_end(fl);
    return st;
}

static hf_status break_key(struct zk_conn *zc, const char *key,
                           struct break_wish *wish, int64_t deadline,
                           struct hf_error *err)
{
    char *path = zk_key_path(zc, key);
    struct zk_session *ses;
    hf_status st;

    if (!path)
        return hfi_nomem(err);
    st = zk_session_any(zc, deadline, &ses, err);
    if (!st) {
        st = zc->single ? break_path(ses, path, wish, deadline, err)
                        : break_holders(ses, path, wish, deadline, err);
        zk_session_put(ses);
    }
    hfi_free(path);
    if (!st && !wish->hit)
        st =
            hfi_fail(err, HF_LOST, "%s: that grant is over", zc->base.endpoint);
    return st;
}

hf_status zk_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                   int64_t deadline, struct hf_error *err)
{
    struct break_wish wish = {fence, false, false};

    return break_key((struct zk_conn *)conn, key, &wish, deadline, err);
}

hf_status zk_free(struct hfi_conn *conn, const char *key, uint64_t fence,
                  int64_t deadline, struct hf_error *err)
{
    struct break_wish wish = {fence, true, false};

    return break_key((struct zk_conn *)conn, key, &wish, deadline, err);
}
