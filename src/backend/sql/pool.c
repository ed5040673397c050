/* SPDX-License-Identifier: MIT
 *
 * pool.c - sessions of our own, and what is worth another go.
 *
 * INVARIANTS
 *  (1) A session is used by one thread at a time, and never inside a
 *      transaction of the caller: nobody else knows of it.
 *  (2) A session whose statement was not answered, or not wholly, is closed
 *      and never lent again: the late answer would be read as the next one's.
 *      Only a renewal is left to finish: the session is `late`, and is lent
 *      again once the answer has come and was thrown away.
 *  (3) No more than `max_sessions` are lent at once, but for renewals: they
 *      may have more (`spare`), so that statements which wait for rows never
 *      keep a lock from being renewed.  One of those stays open.
 *  (4) A deadlock, a serialization failure or a lock timeout says nothing
 *      about who holds what, so it is never an answer: the statement, which
 *      has changed nothing, is run again until the deadline.
 *  (5) A session takes several round trips to open, and an attempt to renew
 *      may have time for one.  So what an attempt has begun to open stays, and
 *      whoever needs a session next goes on with it, unless the server has
 *      said nothing for POOL_STALL_MS.
 *  (6) A server that takes no changes any more may have been replaced by
 *      another, which has its address or is the next of the URL.  Sessions of
 *      the old one stand for ever, so once one of them was refused none of
 *      those that are idle is lent again.
 */
#include "sql.h"

#include <errno.h>

#include "base/alloc.h"

#include "base/banned.h"

/* A session that came back this long ago or less is taken to stand still. */
#define POOL_FRESH_MS 50

/* A session that is being opened and has been silent for so long is given up:
 * another may fare better. */
#define POOL_STALL_MS 1000

/* What an answer that is late is waited for at most, before another session is
 * opened: its statement may be blocked. */
#define POOL_LATE_MS 250

/* Take up what another attempt has begun, or begin.
 * pool.c (5) */
static struct sql_session *pool_begin(struct sql_conn *conn, bool *fresh)
{
    struct sql_session *session = NULL;

    pthread_mutex_lock(&conn->mu);
    if (!hfi_link_alone(&conn->half)) {
        session = hfi_container(conn->half.next, struct sql_session, link);
        hfi_link_remove(&session->link);
    }
    pthread_mutex_unlock(&conn->mu);
    *fresh = !session;
    if (session) {
        sql_fds_remove(conn, session->fd);
        session->fd = -1;
        return session;
    }
    session = hfi_alloc(conn->driver->session_size);
    if (!session)
        return NULL;
    session->conn = conn;
    session->fd = -1;
    session->heard_at = hfi_now();
    hfi_link_init(&session->link);
    return session;
}

/* Leave it for the next one who needs a session. */
static void pool_park(struct sql_session *session)
{
    struct sql_conn *conn = session->conn;

    session->fd = conn->driver->fd(session);
    sql_fds_add(conn, session->fd);
    pthread_mutex_lock(&conn->mu);
    hfi_link_append(&conn->half, &session->link);
    pthread_mutex_unlock(&conn->mu);
}

hf_status sql_connect(struct sql_conn *conn, bool first,
                      struct sql_session **ret, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_session *session;
    bool fresh, there;
    hf_status st;

    do { /* One that was cut meanwhile says nothing about the next. */
        session = pool_begin(conn, &fresh);
        if (!session)
            return hfi_nomem(err);
        st = conn->driver->connect(session, first, deadline, err);
        if (!st && !first && conn->driver->verify_each) /* verify.c (1) */
            st = sql_verify_session(session, &there, deadline, err);
        if (!st) {
            if (conn->driver->fd)
                session->fd = conn->driver->fd(session);
            sql_fds_add(conn, session->fd);
            *ret = session;
            return HF_OK;
        }
        if (st == HF_BUSY) {
            st = hfi_fail(err, HF_UNAVAILABLE, "connect: no answer in time");
            if (!first && hfi_now() - session->heard_at < POOL_STALL_MS) {
                pool_park(session);
                break;
            }
        }
        session->broken = true;
        sql_disconnect(session);
    } while (!fresh && hfi_left_ms(deadline));
    /* Nothing was asked for yet, so nothing can be in doubt. */
    return hfi_wrap(err, st == HF_UNCERTAIN ? HF_UNAVAILABLE : st, "%s",
                    conn->base.endpoint);
}

void sql_disconnect(struct sql_session *session)
{
    session->broken = session->broken || session->late;
    sql_fds_remove(session->conn, session->fd);
    session->conn->driver->disconnect(session);
    hfi_free(session);
}

/* One is lent no longer.  Not everybody who waits may have it: wake all. */
static void pool_unlend(struct sql_conn *conn)
{
    pthread_mutex_lock(&conn->mu);
    conn->lent--;
    hfi_cond_wake(&conn->freed);
    pthread_mutex_unlock(&conn->mu);
}

/* Sleep until a session comes back; false once the deadline has passed. */
static bool pool_wait(struct sql_conn *conn, int64_t deadline)
{
    if (!hfi_left_ms(deadline))
        return false;
    hfi_cond_wait(&conn->freed, &conn->mu, deadline);
    return true;
}

/* With the mutex held: the newest idle session, since its caches are warm and
 * the others may age, and rather one that is not late; or NULL. */
static struct sql_session *pool_idle(struct sql_conn *conn)
{
    struct sql_session *session = NULL;
    struct hfi_link *at;

    if (hfi_link_alone(&conn->idle))
        return NULL;
    for (at = conn->idle.prev; at != &conn->idle; at = at->prev) {
        session = hfi_container(at, struct sql_session, link);
        if (!session->late)
            break;
    }
    hfi_link_remove(&session->link);
    conn->idles--;
    return session;
}

/* An idle session, or leave for a new one with *ret NULL; false: too late.
 * pool.c (3) */
static bool pool_take(struct sql_conn *conn, bool renewal,
                      struct sql_session **ret, int64_t deadline)
{
    unsigned most = conn->max_sessions + (renewal ? conn->spare : 0);
    bool ok = true;

    *ret = NULL;
    pthread_mutex_lock(&conn->mu);
    while (ok && conn->lent >= most)
        ok = pool_wait(conn, deadline);
    if (ok) {
        *ret = pool_idle(conn);
        conn->lent++;
    }
    pthread_mutex_unlock(&conn->mu);
    return ok;
}

/* One whose renewal is late has up to half of the time to answer; one that has
 * been so for the timeout is `broken`.  pool.c (2) */
static bool pool_usable(struct sql_session *session, int64_t deadline)
{
    struct sql_conn *conn = session->conn;
    int64_t wait = hfi_left_ms(deadline) / 2;
    hf_status st;

    if (!session->late)
        return hfi_now() - session->used_at <= POOL_FRESH_MS ||
               conn->driver->alive(session);
    st = conn->driver->settle(
        session, hfi_now() + (wait < POOL_LATE_MS ? wait : POOL_LATE_MS));
    session->late =
        st == HF_BUSY && hfi_now() - session->used_at < conn->timeout_ms;
    session->broken = st && !session->late;
    return !st;
}

/* It is still late: others are lent before it, and a new one is made. */
static void pool_return(struct sql_session *session)
{
    struct sql_conn *conn = session->conn;

    pthread_mutex_lock(&conn->mu);
    hfi_link_append(&conn->idle, &session->link);
    conn->idles++;
    pthread_mutex_unlock(&conn->mu);
}

static hf_status pool_get(struct sql_conn *conn, bool renewal,
                          struct sql_session **ret, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_session *session;
    hf_status st;

    for (;;) {
        if (!pool_take(conn, renewal, &session, deadline))
            return hfi_fail(err, HF_UNAVAILABLE,
                            "%s: all %u connections are in use",
                            conn->base.endpoint, conn->max_sessions);
        if (!session)
            break;
        if (pool_usable(session, deadline)) {
            *ret = session;
            return HF_OK;
        }
        if (session->late)
            break;
        sql_disconnect(session);
        pool_unlend(conn);
    }
    if (session)
        pool_return(session);
    st = sql_connect(conn, false, ret, deadline, err);
    if (st)
        pool_unlend(conn);
    return st;
}

void sql_put(struct sql_session *session)
{
    struct sql_conn *conn = session->conn;
    bool keep;

    session->used_at = hfi_now();
    pthread_mutex_lock(&conn->mu);
    keep = !session->broken && /* pool.c (2) */
           conn->idles + conn->lent <= conn->max_sessions + 1;
    if (keep) {
        hfi_link_append(&conn->idle, &session->link);
        conn->idles++;
        conn->lent--;
        hfi_cond_wake(&conn->freed);
    }
    pthread_mutex_unlock(&conn->mu);
    if (!keep) {
        sql_disconnect(session);
        pool_unlend(conn);
    }
}

/* The last idle session stays where it is: renewals need one too, and the
 * server may have no room for another. */
hf_status sql_take(struct sql_conn *conn, struct sql_session **ret,
                   int64_t deadline, struct hf_error *err)
{
    struct sql_session *session = NULL;

    pthread_mutex_lock(&conn->mu);
    if (conn->idles > 1)
        session = pool_idle(conn);
    pthread_mutex_unlock(&conn->mu);
    if (session && !session->late && conn->driver->alive(session)) {
        *ret = session;
        return HF_OK;
    }
    if (session)
        sql_disconnect(session);
    return sql_connect(conn, false, ret, deadline, err);
}

void sql_give_back(struct sql_session *session)
{
    struct sql_conn *conn = session->conn;
    bool full;

    pthread_mutex_lock(&conn->mu);
    full = conn->idles + conn->lent >= conn->max_sessions;
    if (!full)
        conn->lent++;
    pthread_mutex_unlock(&conn->mu);
    if (full)
        sql_disconnect(session);
    else
        sql_put(session);
}

void sql_pool_close(struct sql_conn *conn)
{
    struct sql_session *session;

    while ((session = pool_idle(conn)))
        sql_disconnect(session);
    while (!hfi_link_alone(&conn->half)) {
        session = hfi_container(conn->half.next, struct sql_session, link);
        hfi_link_remove(&session->link);
        session->broken = true;
        sql_disconnect(session);
    }
}

/* The first session was made before there were statements. */
void sql_prepare(struct sql_conn *conn, int64_t deadline)
{
    struct sql_session *session;

    if (!conn->driver->prepare ||
        pool_get(conn, true, &session, deadline, NULL))
        return;
    conn->driver->prepare(session, deadline);
    sql_put(session);
}

/* Make the tables.  Others may be at it too: then theirs is as good. */
hf_status sql_create(struct sql_session *session, int64_t deadline,
                     struct hf_error *err)
{
    static const enum sql_stmt all[] = {SQL_CREATE, SQL_CREATE_FENCE,
                                        SQL_CREATE_QUEUE};
    struct sql_conn *conn = session->conn;
    struct sql_answer answer = {0};
    hf_status st = HF_OK;
    bool there = true;
    size_t i;

    for (i = 0; !st && i < sizeof(all) / sizeof(all[0]); i++) {
        if (!conn->texts[all[i]])
            continue;
        do
            st = conn->driver->run(session, all[i], NULL, &answer, deadline,
                                   err);
        while (st && session->why == SQL_WHY_RETRY && !session->broken &&
               hfi_left_ms(deadline));
    }
    if (!st)
        st = sql_verify_session(session, &there, deadline, err);
    if (!st && !there)
        st = sql_verify_unseen(conn, err);
    return st ? hfi_wrap(err, st, "make the lock table") : HF_OK;
}

/* pool.c (6) */
static void pool_leave(struct sql_conn *conn)
{
    struct sql_session *session;

    do {
        pthread_mutex_lock(&conn->mu);
        session = pool_idle(conn);
        pthread_mutex_unlock(&conn->mu);
        if (session)
            sql_disconnect(session);
    } while (session);
}

/* What needs the table of holders, and not only looks whether something is in
 * it. */
static bool pool_makes_holders(enum sql_stmt stmt)
{
    return stmt == SQL_ENTER || stmt == SQL_REENTER || stmt == SQL_DOWNGRADE ||
           stmt == SQL_KEEP || stmt == SQL_ADMIT;
}

static hf_status pool_make_holders(struct sql_session *session, bool *there,
                                   int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = session->conn;
    struct sql_answer answer = {0};
    hf_status st;

    do
        st = conn->driver->run(session, SQL_CREATE_HOLDERS, NULL, &answer,
                               deadline, err);
    while (st && session->why == SQL_WHY_RETRY && !session->broken &&
           hfi_left_ms(deadline));
    if (!st)
        st = sql_verify_holders(session, there, deadline, err);
    if (!st && !*there)
        st = sql_verify_unseen(conn, err);
    return st ? hfi_wrap(err, st, "make the table of holders") : HF_OK;
}

/* Before a statement about holders: is their table there, and is it fit?
 * verify.c (1) */
static hf_status pool_holders(struct sql_session *session, enum sql_stmt stmt,
                              bool *there, int64_t deadline,
                              struct hf_error *err)
{
    hf_status st;

    *there = true;
    if (!sql_is_of_holders(stmt) || session->holders ||
        (session->conn->driver->verify_once &&
         atomic_load(&session->conn->holders)))
        return HF_OK;
    st = sql_verify_holders(session, there, deadline, err);
    if (!st && !*there && pool_makes_holders(stmt)) {
        if (session->conn->create)
            st = pool_make_holders(session, there, deadline, err);
        else if (stmt != SQL_REENTER) /* Nobody can be joined then. */
            st = hfi_fail(err, HF_INVALID,
                          "there is no table of holders, NAME_holders, and the "
                          "URL says create=no");
    }
    session->holders = !st && *there;
    if (session->holders)
        atomic_store(&session->conn->holders, true);
    /* Nothing was asked for yet, so nothing can be in doubt. */
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

/* One go in a session. */
static hf_status pool_go(struct sql_session *session, enum sql_stmt stmt,
                         const struct sql_call *call, struct sql_answer *answer,
                         int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = session->conn;
    bool there;
    hf_status st = pool_holders(session, stmt, &there, deadline, err);

    if (st || !there) /* Where there is no table there are no holders. */
        return st;
    hfi_traffic_add(&conn->base.traffic.requests, 1);
    st = conn->driver->run(session, stmt, call, answer, deadline, err);
    if (st && sql_is_of_holders(stmt) && session->why == SQL_WHY_TABLE) {
        session->holders = false;
        atomic_store(&conn->holders, false);
    }
    if (st == HF_UNCERTAIN)
        sql_doubt_statement(session, stmt, call);
    return st;
}

static hf_status pool_explain(struct sql_conn *conn, enum sql_why why,
                              hf_status st, struct hf_error *err)
{
    if (why == SQL_WHY_TABLE && !conn->create)
        return hfi_wrap(err, HF_INVALID,
                        "%s: the lock table is missing, and the URL says "
                        "create=no",
                        conn->base.endpoint);
    if (why == SQL_WHY_COLUMN)
        return hfi_wrap(err, HF_PROTOCOL,
                        "%s: the lock table is not one of this strategy",
                        conn->base.endpoint);
    return hfi_wrap(err, st, "%s", conn->base.endpoint);
}

hf_status sql_run(struct sql_conn *conn, enum sql_stmt stmt,
                  const struct sql_call *call, struct sql_answer *answer,
                  int64_t deadline, struct hf_error *err)
{
    bool renewal =
             stmt == SQL_RENEW || stmt == SQL_RENEW_MANY || stmt == SQL_STAY,
         again;
    struct sql_session *session;
    enum sql_why why;
    hf_status st;

    do {
        st = pool_get(conn, renewal, &session, deadline, err);
        if (st)
            return st;
        answer->rows = answer->affected = answer->id = 0;
        st = pool_go(session, stmt, call, answer, deadline, err);
        why = session->why;
        /* pool.c (4); none of these statements says NOWAIT. */
        again = st && (why == SQL_WHY_RETRY || why == SQL_WHY_BLOCKED);
        if (st && why == SQL_WHY_TABLE && conn->create && !session->broken) {
            st = sql_create(session, deadline, err);
            why = session->why;
            again = !st;
        }
        sql_put(session);
        if (why == SQL_WHY_DEPOSED)
            pool_leave(conn);
    } while (again && hfi_left_ms(deadline));
    if (again && !st)
        st = hfi_fail(err, HF_UNAVAILABLE, "the lock table is being made");
    return st ? pool_explain(conn, why, st, err) : HF_OK;
}
