/* SPDX-License-Identifier: MIT
 *
 * node.c - what we have in the service, and that nothing stays there.
 *
 * An ephemeral node lives as long as its session, and our sessions live as long
 * as the client.  So unlike a key with a time to live, a node that nobody takes
 * away stays.  Everything that may be there is therefore recorded in our
 * books, from before its create is sent until its end is confirmed.
 *
 * INVARIANTS
 *  (1) A record is dropped only when its node is known to be gone, or its
 *      session is.
 *  (2) A held node that is not renewed in time lapses: it is removed by
 *      the keeper's clock, later than the holder has stopped to believe.  The
 *      core has no part in it (core/sweep.c): nothing can be detached here, so
 *      each node is that of a claim of this process, and what is still to be
 *      removed must be known here anyway, to be removed in the moment in which
 *      its session is connected again.
 *  (3) A node whose release had no answer, or was refused, is `deleting`: it is
 *      removed as soon as its session is connected again, or by the keeper's
 *      clock while it is, whether anybody asks or not.
 *  (4) What a callback may free or clear is not `busy`.
 */
#include "zk.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

/* So long must a lock be held to be worth a watch on its node.  The keeper is
 * woken once in this time, not for each lock that is held for less. */
#define NODE_WATCH_AFTER_MS 20

struct zk_node *zk_node_find(struct zk_conn *zc, const char *token)
{
    struct hfi_node *entry = hfi_map_find(&zc->nodes, token);

    return entry ? hfi_container(entry, struct zk_node, entry) : NULL;
}

/* Where it is going to be; false: no memory. */
static bool node_paths(const struct zk_conn *zc, struct zk_node *node,
                       const struct hfi_claim *claim)
{
    char *path = zk_key_path(zc, claim->key);

    if (!claim->permits) {
        node->parent = path;
        return path != NULL;
    }
    node->keydir = path;
    node->parent = path ? zk_queue_path(zc, path) : NULL;
    node->leases = path ? zk_leases_path(zc, path) : NULL;
    return node->parent && node->leases;
}

static void node_free(struct zk_node *node)
{
    hfi_free(node->key);
    hfi_free(node->parent);
    hfi_free(node->keydir);
    hfi_free(node->leases);
    hfi_free(node);
}

/* With the mutex held; NULL: no memory. */
struct zk_node *zk_node_new(struct zk_conn *zc, const struct hfi_claim *claim)
{
    struct zk_node *node =
        hfi_map_reserve(&zc->nodes) ? hfi_alloc(sizeof(*node)) : NULL;

    if (!node)
        return NULL;
    node->key = hfi_strdup(claim->key);
    if (!node->key || !node_paths(zc, node, claim)) {
        node_free(node);
        return NULL;
    }
    memcpy(node->token, claim->token, sizeof(node->token));
    hfi_link_init(&node->link);
    hfi_link_init(&node->subscribed);
    hfi_link_init(&node->fresh);
    node->entry.key = node->token;
    hfi_map_add(&zc->nodes, &node->entry);
    return node;
}

void zk_node_clear(struct zk_node *node)
{
    zk_node_unmark(node);
    hfi_free(node->path);
    hfi_free(node->ahead);
    hfi_free(node->tail);
    node->path = node->ahead = node->tail = NULL;
    node->alt = 0;
    node->fence = node->used = 0;
    node->version = 0;
    node->czxid = 0;
    node->marked = false;
    node->broken = false;
    node->told = node->counted = false;
    node->yield_at = 0;
    node->node_watch = 0;
    hfi_link_remove(&node->subscribed);
    hfi_link_remove(&node->fresh);
    node->sent = node->held = node->moving = node->listening = false;
    node->renaming = false;
    node->looks = 0;
}

void zk_node_drop(struct zk_conn *zc, struct zk_node *node)
{
    zk_node_unpair(node);
    zk_node_clear(node);
    hfi_link_remove(&node->link);
    hfi_map_remove(&zc->nodes, &node->entry);
    node_free(node);
}

void zk_node_bind(struct zk_node *node, struct zk_session *ses)
{
    hfi_link_remove(&node->link);
    hfi_link_append(&ses->nodes, &node->link);
    node->ses = ses;
    node->node_watch = 0;
    ses->used = true;
    zk_node_subscribe(node);
}

/* Its node was moved to that session, or is gone. */
void zk_node_follow(struct zk_node *node, struct zk_session *ses)
{
    node->alt = 0;
    node->moving = false;
    zk_node_bind(node, ses);
}

/* It is in the list while it may want to hear something.  A thread that finds
 * one there that does not takes it out. */
void zk_node_subscribe(struct zk_node *node)
{
    hfi_link_remove(&node->subscribed);
    if (node->ses && (node->ahead || node->listening))
        hfi_link_append(&node->ses->subscribers, &node->subscribed);
}

hf_status zk_node_session(struct zk_conn *zc, struct zk_node *node,
                          int64_t ttl_ms, int64_t deadline,
                          struct zk_session **ret, struct hf_error *err)
{
    struct zk_session *ses;
    hf_status st;

    pthread_mutex_lock(&zc->mu);
    ses = node->ses;
    if (ses) {
        ses->users++;
        zk_session_beside(ses, ttl_ms);
        st = zk_session_up(ses, deadline, err);
        if (st)
            zk_session_leave(ses);
        else
            *ret = ses;
        pthread_mutex_unlock(&zc->mu);
        return st;
    }
    zk_node_clear(node);
    pthread_mutex_unlock(&zc->mu);
    st = zk_session_for(zc, ttl_ms, deadline, &ses, err);
    if (st)
        return st;
    pthread_mutex_lock(&zc->mu);
    if (ses->state != ZK_DEAD)
        zk_node_bind(node, ses);
    pthread_mutex_unlock(&zc->mu);
    *ret = ses;
    return HF_OK;
}

/* ---- lapsing ----------------------------------------------------------- */

static void nodes_set_timer(struct zk_conn *zc, int64_t due)
{
    struct itimerspec at = {.it_value = {due / 1000, due % 1000 * 1000000}};

    zc->timer_due = due;
    timerfd_settime(zc->timer_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Have zk_nodes_lapse() check all nodes then. */
void zk_nodes_check_by(struct zk_conn *zc, int64_t due)
{
    if (due < zc->lapse_at)
        zc->lapse_at = due;
    if (due < zc->timer_due)
        nodes_set_timer(zc, due);
}

/* It holds, from now on for `ttl_ms` at least; with the mutex held. */
void zk_node_hold(struct zk_conn *zc, struct zk_node *node, int64_t ttl_ms)
{
    int64_t now = hfi_now();

    if (!node->held) {
        node->node_watch_at = now + NODE_WATCH_AFTER_MS;
        hfi_link_append(&zc->fresh, &node->fresh);
        if (node->node_watch_at < zc->timer_due)
            nodes_set_timer(zc, node->node_watch_at);
    }
    node->held = true;
    node->expires = hfi_after(now, ttl_ms);
    zk_nodes_check_by(zc, node->expires);
}

/* What is held for a while is watched, and listens if it may linger; what is
 * given back at once is not worth the requests. */
static int64_t nodes_watch(struct zk_conn *zc, int64_t now)
{
    struct zk_node *node;

    while (!hfi_link_alone(&zc->fresh)) {
        node = hfi_container(zc->fresh.next, struct zk_node, fresh);
        if (node->node_watch_at > now)
            return node->node_watch_at;
        hfi_link_remove(&node->fresh);
        zk_node_watch(node);
        if (node->watched)
            zk_node_listen(node);
    }
    return HFI_NEVER;
}

/* node.c (3): its removal was refused, and is tried again when it is time. */
static void nodes_remove(struct zk_conn *zc, struct zk_node *node, int64_t now)
{
    int64_t due = node->busy ? now + 100 : node->remove_at;

    if (!node->remove_at)
        return;
    if (due <= now)
        zk_node_delete_async(node);
    else if (due < zc->lapse_at)
        zc->lapse_at = due;
}

/* node.c (2): what was not renewed goes; with the mutex held. */
void zk_nodes_lapse(struct zk_conn *zc)
{
    int64_t now = hfi_now(), next = nodes_watch(zc, now);
    struct hfi_node *entry, *after;
    struct zk_node *node;

    if (now < zc->lapse_at) {
        nodes_set_timer(zc, next < zc->lapse_at ? next : zc->lapse_at);
        return;
    }
    zc->lapse_at = HFI_NEVER;
    for (entry = hfi_map_next(&zc->nodes, NULL); entry; entry = after) {
        after = hfi_map_next(&zc->nodes, entry);
        node = hfi_container(entry, struct zk_node, entry);
        if (node->deleting)
            nodes_remove(zc, node, now);
        if (!node->held || node->deleting)
            continue;
        if (node->yield_at && now >= node->yield_at) {
            node->yield_at = 0;
            hfi_wanted(&zc->base, node->key);
        }
        if (node->expires > now || node->busy) {
            int64_t due = node->busy ? now + 100 : node->expires;

            if (node->yield_at && node->yield_at < due)
                due = node->yield_at;

            zc->lapse_at = due < zc->lapse_at ? due : zc->lapse_at;
            continue;
        }
        node->deleting = true;
        zk_node_delete_async(node);
    }
    if (zc->lapse_at < next)
        next = zc->lapse_at;
    zc->timer_due = HFI_NEVER;
    if (next != HFI_NEVER)
        nodes_set_timer(zc, next);
}

/* ---- finding out ------------------------------------------------------- */

/* Those of the children that bear the token of the claim: read them.  False: no
 * memory. */
static bool resolve_read(struct zk_batch *reqs, const char *dir,
                         const struct hfi_claim *claim,
                         const struct String_vector *names)
{
    char prefix[ZK_NAME_MAX], *path;
    int i;

    zk_name_start(reqs->ses->conn, prefix, claim->token);
    for (i = 0; i < names->count; i++) {
        if (!zk_name_is(names->data[i], prefix))
            continue;
        path = zk_join(dir, names->data[i]);
        if (!path)
            return false;
        zk_get(reqs, path, false);
        reqs->ops[reqs->n - 1].path = path;
    }
    return true;
}

/* The same in all places where it may be.  NULL: no memory. */
static struct zk_batch *resolve_read_all(struct zk_session *ses,
                                         const struct zk_node *node,
                                         const struct hfi_claim *claim,
                                         struct zk_batch *seen)
{
    size_t room = (size_t)seen->ops[1].names.count +
                  (node->leases ? (size_t)seen->ops[2].names.count : 0);
    struct zk_batch *reqs = zk_batch_new(ses, room);

    if (!reqs)
        return NULL;
    if (resolve_read(reqs, node->parent, claim, &seen->ops[1].names) &&
        (!node->leases ||
         resolve_read(reqs, node->leases, claim, &seen->ops[2].names)))
        return reqs;
    zk_batch_end(reqs);
    return NULL;
}

/* names.c (4): ours is the one that belongs to our session. */
static hf_status resolve_own(struct zk_session *ses, struct zk_node *node,
                             struct zk_batch *reqs, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct hf_info info = HF_INFO_INIT;
    char token[HFI_TOKEN_LEN + 1];
    struct zk_lease lease;
    struct zk_op *own = NULL;
    hf_status st = HF_OK;
    size_t i;

    for (i = 0; i < reqs->n && !st; i++) {
        if (reqs->ops[i].rc != ZNONODE)
            st = zk_status(zc, reqs->ops[i].rc, "get", err);
        if (!reqs->ops[i].rc && reqs->ops[i].stat.ephemeralOwner == ses->id)
            own = &reqs->ops[i];
    }
    if (st)
        return st;
    pthread_mutex_lock(&zc->mu);
    node->sent = own != NULL;
    if (own) {
        hfi_free(node->path);
        node->path = own->path;
        own->path = NULL;
        node->fence = (uint64_t)own->stat.czxid;
        node->version = own->stat.version;
        node->czxid = own->stat.czxid;
        zk_data_read(own->text, &info, &node->fence, token);
        node->used = zk_data_age(own->text, node->fence);
        if (node->used == node->fence)
            node->used = 0;
        if (zk_lease_parse(zc, zk_name_of(node->path), &lease))
            node->slot = lease.slot;
    }
    pthread_mutex_unlock(&zc->mu);
    return HF_OK;
}

hf_status zk_node_resolve(struct zk_session *ses, struct zk_node *node,
                          const struct hfi_claim *claim, int64_t deadline,
                          struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 3), *nodes = NULL;
    hf_status st;
    size_t i;

    if (!reqs)
        return hfi_nomem(err);
    zk_sync(reqs, node->parent);
    zk_children(reqs, node->parent, false);
    if (node->leases)
        zk_children(reqs, node->leases, false);
    st = zk_batch_wait(reqs, deadline)
             ? zk_no_answer(zc, err)
             : zk_status(zc, reqs->ops[0].rc, "sync", err);
    for (i = 1; i < reqs->n && !st; i++)
        if (reqs->ops[i].rc != ZNONODE)
            st = zk_status(zc, reqs->ops[i].rc, "children", err);
    if (!st) {
        nodes = resolve_read_all(ses, node, claim, reqs);
        if (!nodes)
            st = hfi_nomem(err);
        else if (zk_batch_wait(nodes, deadline))
            st = zk_no_answer(zc, err);
        else
            st = resolve_own(ses, node, nodes, err);
    }
    zk_batch_end(nodes);
    zk_batch_end(reqs);
    return st;
}

static int parent_create(struct zk_session *ses, const char *path,
                         int64_t deadline)
{
    struct zk_conn *zc = ses->conn;
    struct zk_batch *reqs = zk_batch_new(ses, 1);
    int rc;

    if (!reqs)
        return ZMARSHALLINGERROR;
    zk_create(reqs, path, "", zc->plain ? ZOO_PERSISTENT : ZOO_CONTAINER);
    zk_batch_wait(reqs, deadline);
    pthread_mutex_lock(&zc->mu);
    rc = reqs->pending ? ZOPERATIONTIMEOUT : reqs->ops[0].rc;
    pthread_mutex_unlock(&zc->mu);
    zk_batch_end(reqs);
    return rc;
}

/* From the bottom up until something is there, and down again.  A parent whose
 * outcome is not known does no harm: containers vanish when they are empty. */
hf_status zk_make_parents(struct zk_session *ses, const char *path,
                          int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;
    size_t len = strlen(path), at = len;
    char *part = hfi_strdup(path);
    int rc = ZOK, turns;

    if (!part)
        return hfi_nomem(err);
    for (turns = 0; turns < 1000; turns++) {
        rc = parent_create(ses, part, deadline);
        if (rc == ZUNIMPLEMENTED && !zc->plain) {
            zc->plain = true;
        } else if (rc == ZNONODE && strrchr(part, '/') > part) {
            at = (size_t)(strrchr(part, '/') - part);
            part[at] = '\0';
        } else if (rc == ZOK || rc == ZNODEEXISTS) {
            rc = ZOK;
            if (at == len)
                break;
            part[at] = '/';
            at = strlen(part);
        } else {
            break;
        }
    }
    hfi_free(part);
    /* Nothing that matters was sent. */
    if (rc == ZOPERATIONTIMEOUT || rc == ZCONNECTIONLOSS)
        return hfi_fail(err, HF_UNAVAILABLE, "%s: no answer",
                        zc->base.endpoint);
    return zk_status(zc, rc, "create parent", err);
}
