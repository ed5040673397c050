/* SPDX-License-Identifier: MIT
 *
 * session.c - sessions: one for each length of lease that is in use.
 *
 * The server ends a session, and with it every ephemeral node, once it has not
 * heard of it for the session's timeout; that timeout cannot be changed.  So a
 * client has a session for each length of lease, opened when it is first asked
 * for and shared by all locks whose leases are about that long.
 *
 *     ttl ............ what the holder believes, from the time of sending
 *     ttl + ttl / 2 .. what the session is asked to last
 *
 * The half is for ensembles.  An answer there proves only that the leader, who
 * ends sessions, has heard of an earlier request (touch.c): of one that was
 * sent about two fifths of the session's time before, or six tenths of a lease.
 * The holder believes for the session's time from that one on, or for the ttl
 * from the last one on, whichever ends first.  So a lock that is renewed every
 * third of its lease has most of a lease left after each renewal.  The price is
 * that the lock of a dead client passes on only after one and a half leases.
 *
 * WHY NOT backend/session.c  There a session is made by one request, proven by
 * answers, declared dead by a call and freed by its last user.  Here it is
 * found and shared while it has no connection yet, or again none, and those who
 * want it wait for that; the library says in a callback, under the mutex, that
 * it has ended; and its I/O thread has to close the handle before anybody may
 * free it.  Each of its nodes is told of the end in another way: a holder
 * loses, a waiter begins anew, a node that may have moved is looked for.
 *
 * INVARIANTS
 *  (1) A session serves a lease only if the server granted it a quarter more.
 *      Where it grants less than the half, what is believed ends earlier; where
 *      it grants less than the quarter, the lease is refused, with the limit in
 *      the message.
 *  (2) A session that has ended is never revived: the holders of its nodes are
 *      told, and those who wait begin anew in another.
 *  (3) A handle is closed only when no call uses it, by its I/O thread
 *      (io.c), never in a callback.
 *  (4) Servers whose data was replaced by an older copy hang up on a session
 *      that has seen more than they know of, without saying that it has ended.
 *      So a session that had no connection for longer than it lasts is not used
 *      for anything new: another one is made beside it.  If that comes up, and
 *      the servers go on to hang up on the old one, each of them twice, the old
 *      one counts as ended.  After a mere outage it is taken up as before.
 */
#include "zk.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

/* How long a session must last for a lease. */
static int64_t session_want(int64_t ttl_ms)
{
    return ttl_ms + ttl_ms / (HFI_MUTANT(answer_of_a_follower) ? 4 : 2);
}

/* session.c (1) */
bool zk_session_serves(const struct zk_session *ses, int64_t ttl_ms)
{
    return ses->got_ms >= ttl_ms + ttl_ms / 4;
}

/* Is it what a lease of this length should have?  One that the server made
 * longer than was asked for is its shortest: it serves all that are shorter. */
bool zk_session_fits(const struct zk_session *ses, int64_t ttl_ms)
{
    int64_t want = session_want(ttl_ms);

    if (!ses->got_ms)
        return ses->asked_ms >= want && ses->asked_ms <= want + want / 4;
    if (ses->got_ms < want)
        return ses->got_ms < ses->asked_ms; /* the longest there is */
    return ses->got_ms <= want + want / 4 || ses->got_ms > ses->asked_ms;
}

/* ---- events, in the library's thread ----------------------------------- */

struct zk_session *zk_session_by_id(struct zk_conn *zc, int64_t id)
{
    struct hfi_link *at;

    for (at = zc->living.next; at != &zc->living; at = at->next)
        if (hfi_container(at, struct zk_session, link)->id == id)
            return hfi_container(at, struct zk_session, link);
    return NULL;
}

/* A move had no answer: the node may be in another session, and
 * must not stay there unknown.  Ask for it; who is not told removes it. */
static bool session_hands_on(struct zk_session *ses, struct zk_node *node)
{
    struct zk_session *alt = node->alt && !ses->closing
                                 ? zk_session_by_id(ses->conn, node->alt)
                                 : NULL;

    if (!alt)
        return false;
    zk_node_follow(node, alt);
    if (node->deleting && !node->busy)
        zk_node_delete_async(node);
    else
        zk_node_watch(node);
    return true;
}

/* session.c (2) */
void zk_session_died(struct zk_session *ses)
{
    struct zk_conn *zc = ses->conn;
    struct zk_node *node;

    if (ses->state == ZK_DEAD)
        return;
    if (ses->state == ZK_UP)
        zk_hear_from(ses, false);
    zc->epoch++;
    ses->state = ZK_DEAD;
    hfi_link_remove(&ses->link);
    hfi_link_append(&zc->dead, &ses->link);
    hfi_cond_wake(&ses->cond);
    hfi_notifier_notify(&ses->notifier);
    zk_observed_anything(zc); /* observe.c (2) */
    while (!hfi_link_alone(&ses->nodes)) {
        node = hfi_container(ses->nodes.next, struct zk_node, link);
        if (session_hands_on(ses, node))
            continue;
        hfi_link_remove(&node->link);
        hfi_link_remove(&node->subscribed);
        node->ses = NULL;
        node->lost = node->held;
        if (!node->busy)
            zk_node_clear(node); /* else its caller will */
        if (ses->closing)
            continue;
        if (node->lost)
            hfi_gone(&zc->base, node->key, node->token, HF_LOSS_SESSION);
        else
            hfi_wake(&zc->base, node->key, node->token);
        if (node->deleting && !node->busy)
            zk_node_drop(zc, node);
    }
}

/* session.c (4) */
static bool session_is_overdue(const struct zk_session *ses)
{
    return ses->state == ZK_CONNECTING && ses->down_at &&
           hfi_now() > ses->down_at + ses->got_ms;
}

/* One has come up: are there others that may be refused for good? */
static void session_replaces(struct zk_conn *zc)
{
    struct zk_session *other;
    struct hfi_link *at;

    for (at = zc->living.next; at != &zc->living; at = at->next) {
        other = hfi_container(at, struct zk_session, link);
        if (!session_is_overdue(other) || other->replaced)
            continue;
        other->replaced = true;
        other->refusals = 0;
    }
}

void zk_session_refused(struct zk_session *ses, int servers)
{
    if (ses->replaced && ++ses->refusals > 2 * servers)
        zk_session_died(ses);
}

/* Say what the server made of the length that we asked for. */
static void session_warn(struct zk_session *ses)
{
    const char *caution = ses->conn->caution;
    char text[256];
    int len = 0;

    if (*caution)
        len = snprintf(text, sizeof(text), "%.120s; ", caution);
    if (ses->got_ms > ses->asked_ms)
        snprintf(text + len, sizeof(text) - (size_t)len,
                 "the server's sessions last at least %lld ms: a dead holder's "
                 "lock passes on no sooner",
                 (long long)ses->got_ms);
    else if (ses->got_ms < ses->asked_ms - ses->asked_ms / 9)
        snprintf(text + len, sizeof(text) - (size_t)len,
                 "the server's sessions last at most %lld ms: no ttl may be "
                 "longer than %lld",
                 (long long)ses->got_ms, (long long)ses->got_ms * 4 / 5);
    else
        return;
    hfi_warn(&ses->conn->base, text);
}

/* Connected, for the first time or again: finish what could not be done, and
 * let everyone look for what they may have missed. */
static void session_came_up(struct zk_session *ses)
{
    struct zk_conn *zc = ses->conn;
    struct hfi_link *at, *next;
    struct zk_node *node;

    ses->id = zoo_client_id(ses->zh)->client_id;
    ses->got_ms = zoo_recv_timeout(ses->zh);
    ses->state = ZK_UP;
    ses->life++;
    zc->epoch++;
    ses->down_at = 0;
    ses->replaced = false;
    session_replaces(zc);
    ses->heard_at = hfi_now();
    zk_touch_begin(ses);
    zk_hear_from(ses, true);
    session_warn(ses);
    zk_ask_standalone(ses);
    hfi_cond_wake(&ses->cond);
    for (at = ses->nodes.next; at != &ses->nodes; at = next) {
        next = at->next;
        node = hfi_container(at, struct zk_node, link);
        if (node->deleting && !node->busy)
            zk_node_delete_async(node);
        else if (!node->held)
            hfi_wake(&zc->base, node->key, node->token);
    }
}

void zk_session_changed(struct zk_session *ses, int state)
{
    if (state == ZOO_CONNECTED_STATE) {
        session_came_up(ses);
    } else if (state == ZOO_EXPIRED_SESSION_STATE) {
        zk_session_died(ses);
    } else if (state == ZOO_AUTH_FAILED_STATE) {
        ses->denied = true;
        zk_session_died(ses);
    } else if (ses->state == ZK_UP) {
        ses->state = ZK_CONNECTING;
        ses->conn->epoch++;
        ses->down_at = hfi_now();
        ses->sock = -1; /* The library has closed it: an attempt begins. */
        snprintf(ses->why, sizeof(ses->why), "it broke");
        zk_hear_from(ses, false);
        ses->standalone = false;
        zk_observed_anything(ses->conn); /* observe.c (2) */
    }
}

/* A node of ours was removed or changed; the watch on it is used up. */
static void session_own_event(struct zk_node *node, int type, const char *path)
{
    if (!node->path || strcmp(node->path, path) != 0)
        return;
    node->node_watch = 0;
    if (type == ZOO_DELETED_EVENT)
        zk_node_gone(node, HF_LOSS_DELETED);
    else if (node->held)
        zk_node_watch(node);
}

/* With recipe=ephemeral all nodes of one key have one name. */
static void session_own_events(struct zk_session *ses, int type,
                               const char *path)
{
    char token[HFI_TOKEN_LEN + 1];
    struct hfi_link *at;
    struct zk_node *node;

    if (!ses->conn->single) {
        node = zk_name_token(zk_name_of(path), token)
                   ? zk_node_find(ses->conn, token)
                   : NULL;
        if (node && node->ses == ses)
            session_own_event(node, type, path);
        return;
    }
    for (at = ses->nodes.next; at != &ses->nodes; at = at->next)
        session_own_event(hfi_container(at, struct zk_node, link), type, path);
}

/* A node has gone, or the children of one have changed. */
static void session_event(struct zk_session *ses, int type, const char *path)
{
    struct hfi_conn *conn = &ses->conn->base;
    struct hfi_link *at, *next;
    struct zk_node *node;

    for (at = ses->subscribers.next; at != &ses->subscribers; at = next) {
        next = at->next;
        node = hfi_container(at, struct zk_node, subscribed);
        if (node->ahead && !strcmp(node->ahead, path)) {
            hfi_free(node->ahead);
            node->ahead = NULL;
            hfi_wake(conn, node->key, node->token);
        }
        if (node->held && node->listening && !strcmp(node->parent, path) &&
            type != ZOO_DELETED_EVENT) {
            node->listening = false;
            hfi_wanted(conn, node->key);
        }
        if (!node->ahead && !node->listening)
            hfi_link_remove(&node->subscribed);
    }
    session_own_events(ses, type, path);
    zk_observed(ses->conn, path);
}

void zk_watcher(zhandle_t *zh, int type, int state, const char *path,
                void *context)
{
    struct zk_session *ses = context;

    (void)zh;
    if (type == ZOO_SESSION_EVENT)
        ses->heard = state; /* io.c (2) */
    else if (ses->state == ZK_UP && path && *path)
        session_event(ses, type, path);
}

/* ---- beginning and end ------------------------------------------------- */

/* Put a session into the list; it has no handle yet. */
static struct zk_session *session_new(struct zk_conn *zc, int64_t ttl_ms)
{
    struct zk_session *ses = hfi_alloc(sizeof(*ses));

    if (!ses)
        return NULL;
    ses->conn = zc;
    ses->sock = ses->epoll_fd = -1;
    ses->notifier = (struct hfi_notifier){.event_fd = -1, .timer_fd = -1};
    snprintf(ses->why, sizeof(ses->why), "no descriptor or no memory is left");
    ses->asked_ms = session_want(ttl_ms);
    if (ses->asked_ms > INT32_MAX / 2)
        ses->asked_ms = INT32_MAX / 2;
    hfi_cond_init(&ses->cond);
    hfi_link_init(&ses->nodes);
    hfi_link_init(&ses->subscribers);
    hfi_link_init(&ses->batches);
    hfi_link_init(&ses->async_reqs);
    hfi_link_init(&ses->link);
    hfi_link_append(&zc->living, &ses->link);
    return ses;
}

/* Have its I/O thread connect it. */
static hf_status session_open(struct zk_session *ses, struct hf_error *err)
{
    bool ready = hfi_notifier_init(&ses->notifier) &&
                 (ses->epoll_fd = epoll_create1(EPOLL_CLOEXEC)) >= 0;

    zk_fd_keep(ses->conn, ses->notifier.event_fd);
    zk_fd_keep(ses->conn, ses->notifier.timer_fd);
    zk_fd_keep(ses->conn, ses->epoll_fd);
    if (ready && hfi_thread_start(&ses->io_thread, zk_io_run, ses))
        return HF_OK;
    ses->done = true;
    zk_session_died(ses);
    return hfi_fail(err, HF_SYSTEM, "%s: no descriptor, or no thread",
                    ses->conn->base.endpoint);
}

/* Its I/O thread has ended: free what is left. */
static void session_free(struct zk_session *ses)
{
    hfi_thread_join(&ses->io_thread);
    zk_fd_drop(ses->conn, ses->notifier.event_fd);
    zk_fd_drop(ses->conn, ses->notifier.timer_fd);
    zk_fd_drop(ses->conn, ses->epoll_fd);
    hfi_notifier_fini(&ses->notifier);
    if (ses->epoll_fd >= 0)
        close(ses->epoll_fd);
    hfi_cond_fini(&ses->cond);
    hfi_free(ses);
}

static struct zk_session *session_first_done(struct zk_conn *zc)
{
    struct hfi_link *at;
    struct zk_session *ses;

    for (at = zc->dead.next; at != &zc->dead; at = at->next) {
        ses = hfi_container(at, struct zk_session, link);
        if (ses->done && !ses->users)
            return ses;
    }
    return NULL;
}

void zk_sessions_reap(struct zk_conn *zc)
{
    struct zk_session *ses;

    while ((ses = session_first_done(zc))) {
        hfi_link_remove(&ses->link);
        pthread_mutex_unlock(&zc->mu);
        session_free(ses);
        pthread_mutex_lock(&zc->mu);
    }
}

static void session_retire(struct zk_session *ses)
{
    ses->closing = true;
    zk_session_died(ses);
}

/* Nobody calls any more. */
void zk_sessions_end(struct zk_conn *zc)
{
    struct zk_session *ses;

    pthread_mutex_lock(&zc->mu);
    while (!hfi_link_alone(&zc->living))
        session_retire(hfi_container(zc->living.next, struct zk_session, link));
    while (!hfi_link_alone(&zc->dead)) {
        ses = hfi_container(zc->dead.next, struct zk_session, link);
        while (!ses->done)
            hfi_cond_wait(&ses->cond, &zc->mu, HFI_NEVER);
        zk_sessions_reap(zc);
    }
    pthread_mutex_unlock(&zc->mu);
}

/* ---- getting one ------------------------------------------------------- */

hf_status zk_session_up(struct zk_session *ses, int64_t deadline,
                        struct hf_error *err)
{
    struct zk_conn *zc = ses->conn;

    while (ses->state == ZK_CONNECTING && hfi_left_ms(deadline))
        hfi_cond_wait(&ses->cond, &zc->mu, deadline);
    if (ses->state == ZK_UP)
        return HF_OK;
    if (ses->denied)
        return hfi_fail(err, HF_DENIED,
                        "%s: the server refused the user or the password of "
                        "the URL",
                        zc->base.endpoint);
    if (ses->state == ZK_CONNECTING || !ses->zh)
        return hfi_fail(err, HF_UNAVAILABLE, "%s: no connection: %s",
                        zc->base.endpoint, ses->why);
    return hfi_fail(err, HF_UNAVAILABLE, "%s: the session has ended",
                    zc->base.endpoint);
}

/* With the mutex held.  A dead one waits for its last user. */
void zk_session_leave(struct zk_session *ses)
{
    if (!--ses->users && ses->state == ZK_DEAD)
        hfi_notifier_notify(&ses->notifier);
}

void zk_session_put(struct zk_session *ses)
{
    pthread_mutex_t *mu;

    if (!ses)
        return;
    mu = &ses->conn->mu;
    pthread_mutex_lock(mu);
    zk_session_leave(ses);
    pthread_mutex_unlock(mu);
}

static struct zk_session *session_find(struct zk_conn *zc, int64_t ttl_ms)
{
    struct hfi_link *at;
    struct zk_session *ses;

    for (at = zc->living.next; at != &zc->living; at = at->next) {
        ses = hfi_container(at, struct zk_session, link);
        if (!session_is_overdue(ses) &&
            (ttl_ms < 0 || zk_session_fits(ses, ttl_ms)))
            return ses;
    }
    return NULL;
}

/* A client that never uses the length of lease it was opened with needs no
 * session for it. */
static void session_drop_unused(struct zk_conn *zc)
{
    struct hfi_link *at;
    struct zk_session *ses;

    for (at = zc->living.next; at != &zc->living; at = at->next) {
        ses = hfi_container(at, struct zk_session, link);
        if (!ses->used && !ses->users && ses->state == ZK_UP) {
            session_retire(ses);
            return;
        }
    }
}

static hf_status session_limit(struct zk_session *ses, int64_t ttl_ms,
                               struct hf_error *err)
{
    if (zk_session_serves(ses, ttl_ms))
        return HF_OK;
    return hfi_fail(err, HF_INVALID,
                    "%s: a ttl of %lld ms is more than the server allows: its "
                    "sessions last %lld ms, so at most %lld",
                    ses->conn->base.endpoint, (long long)ttl_ms,
                    (long long)ses->got_ms, (long long)ses->got_ms * 4 / 5);
}

/* Make one; with a user. */
static struct zk_session *session_make(struct zk_conn *zc, int64_t ttl_ms,
                                       hf_status *st, struct hf_error *err)
{
    struct zk_session *ses = session_new(zc, ttl_ms < 0 ? zc->ttl_ms : ttl_ms);

    if (!ses) {
        *st = hfi_nomem(err);
        return NULL;
    }
    ses->users++;
    *st = session_open(ses, err);
    return ses;
}

/* With the mutex held: a node is on that session, for leases of this length. If
 * it may have been refused, see to it that another one tries.  session.c (4) */
void zk_session_beside(struct zk_session *ses, int64_t ttl_ms)
{
    struct zk_session *other;
    hf_status st;

    if (!session_is_overdue(ses) || session_find(ses->conn, ttl_ms))
        return;
    other = session_make(ses->conn, ttl_ms, &st, NULL);
    if (other)
        zk_session_leave(other);
}

static hf_status session_get(struct zk_conn *zc, int64_t ttl_ms,
                             int64_t deadline, struct zk_session **ret,
                             struct hf_error *err)
{
    struct zk_session *ses = session_find(zc, ttl_ms);
    hf_status st = HF_OK;

    if (!ses) {
        session_drop_unused(zc);
        ses = session_make(zc, ttl_ms, &st, err);
        if (!ses)
            return st;
    } else {
        ses->users++;
    }
    if (!st)
        st = zk_session_up(ses, deadline, err);
    if (!st && ttl_ms >= 0)
        st = session_limit(ses, ttl_ms, err);
    if (st)
        zk_session_leave(ses);
    else
        *ret = ses;
    return st;
}

hf_status zk_session_for(struct zk_conn *zc, int64_t ttl_ms, int64_t deadline,
                         struct zk_session **ret, struct hf_error *err)
{
    hf_status st;

    pthread_mutex_lock(&zc->mu);
    zk_sessions_reap(zc);
    st = session_get(zc, ttl_ms, deadline, ret, err);
    pthread_mutex_unlock(&zc->mu);
    return st;
}

hf_status zk_session_any(struct zk_conn *zc, int64_t deadline,
                         struct zk_session **ret, struct hf_error *err)
{
    return zk_session_for(zc, -1, deadline, ret, err);
}
