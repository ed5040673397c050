/* SPDX-License-Identifier: MIT
 *
 * row.c - strategy row: the lock is a row lock, held by a transaction.
 *
 * Here it is taken, and its end is heard of; row_keep.c keeps it and lets
 * it go.
 *
 * ON THE WIRE  Each lock has a session of its own, in which a transaction has
 *   done SELECT ... FOR UPDATE on the row of the key.  A try says NOWAIT; who
 *   waits leaves a SELECT without it in the server's own queue, and is woken
 *   when its answer comes.  Beside the table there is another, of fences, which
 *   is written by a second session: if the fence were written by the
 *   transaction that holds the lock, the death of the holder would roll it
 *   back and the next one would get the same.
 *
 * INVARIANTS
 *  (1) A claim owns the lock if and only if its session stands and its
 *      transaction has the row.
 *  (2) The row exists, committed, before it is locked: a missing row excludes
 *      nobody.
 *  (3) A session that was cut is closed, and what it held is lost at that
 *      moment, whatever the lease says.  One that does not answer a heartbeat
 *      in time may do so late; nothing else is sent before, and a late answer
 *      proves nothing for the next.
 *  (4) To break is to revoke, as in sql.c (6): the token beside the fence is
 *      spoiled, the next heartbeat finds that and is the last.  The row stays
 *      locked until the holder releases it or the server ends its silent
 *      transaction.
 *  (5) One thread at a time uses a session: who calls marks it `busy` under
 *      the mutex, and the keeper leaves such a one alone.
 *  (6) Where the server can tell who stands in its queue (SQL_STANDS), a try
 *      that will wait returns only when it stands there: what was sent in two
 *      sessions may be read in any order.  Elsewhere nothing is said about
 *      the order.
 *
 * SESSION  The server is told to end a transaction that it has heard nothing
 *   from for the ttl; each heartbeat starts that time anew.  So the row is
 *   kept for at least the ttl from the last answered heartbeat, unless the
 *   server or an operator ends the session, of which we hear at once if the
 *   network lets us.
 *
 * LIMITS  A connection for each lock held and each key waited for.  Who waits
 *   stands in the server's queue, where a holder that lingers cannot see him.
 *   Unlike a lease, a row lock is free as soon as its session is: between the
 *   cut and our hearing of it there may be another holder, and the fence is
 *   what protects.
 */
#include "row.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

struct sql_row_state {
    pthread_mutex_t mu;
    struct hfi_link locks;
    int epoll_fd;
};

hf_status sql_row_open(struct sql_conn *conn, struct hf_error *err)
{
    struct sql_row_state *row = hfi_alloc(sizeof(*row));

    if (!row)
        return hfi_nomem(err);
    pthread_mutex_init(&row->mu, NULL);
    hfi_link_init(&row->locks);
    conn->row = row;
    row->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (row->epoll_fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "epoll");
    sql_fds_add(conn, row->epoll_fd);
    /* Waiters are woken, but nobody can tell a holder that lingers of them, so
     * this is not the whole of HF_TRAIT_NOTIFY. */
    conn->base.traits &= ~(unsigned)(HF_TRAIT_DETACH | HF_TRAIT_NOTIFY);
    if (conn->texts[SQL_STANDS])
        conn->base.traits |= HF_TRAIT_QUEUED; /* row.c (6) */
    return HF_OK;
}

/* ---- one lock ---------------------------------------------------------- */

struct row_lock *sql_row_of(const struct hfi_receipt *receipt)
{
    const struct sql_grant *own = receipt->own;

    return receipt->placed ? own->row : NULL;
}

static hf_status row_new(struct sql_conn *conn, const struct hfi_claim *claim,
                         struct hfi_receipt *receipt, int64_t deadline,
                         struct row_lock **ret, struct hf_error *err)
{
    size_t size = strlen(claim->key) + 1;
    struct row_lock *lock = hfi_alloc(sizeof(*lock) + size);
    struct sql_grant *own = receipt->own;
    hf_status st;

    if (!lock)
        return hfi_nomem(err);
    memcpy(lock->key, claim->key, size);
    memcpy(lock->token, claim->token, sizeof(lock->token));
    lock->busy = true;
    hfi_link_init(&lock->link);
    st = sql_take(conn, &lock->session, deadline, err);
    if (st) {
        hfi_free(lock);
        return st;
    }
    pthread_mutex_lock(&conn->row->mu);
    hfi_link_append(&conn->row->locks, &lock->link);
    pthread_mutex_unlock(&conn->row->mu);
    own->row = lock;
    receipt->placed = true;
    *ret = lock;
    return HF_OK;
}

/* Forget the lock; its session goes back if it is `clean`, else it is closed.
 * row.c (3) */
void sql_row_drop(struct sql_conn *conn, struct row_lock *lock,
                  struct hfi_receipt *receipt, bool clean)
{
    struct sql_grant *own = receipt->own;

    pthread_mutex_lock(&conn->row->mu);
    epoll_ctl(conn->row->epoll_fd, EPOLL_CTL_DEL,
              conn->driver->fd(lock->session), NULL);
    hfi_link_remove(&lock->link);
    pthread_mutex_unlock(&conn->row->mu);
    if (clean && !lock->session->broken)
        sql_give_back(lock->session);
    else
        sql_disconnect(lock->session);
    hfi_free(lock);
    own->row = NULL;
    receipt->placed = false;
}

/* With the mutex held: have the keeper listen to the session again, once. */
static void row_arm(struct sql_conn *conn, struct row_lock *lock)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT,
                                .data = {.ptr = lock}};
    int fd = conn->driver->fd(lock->session);

    if (epoll_ctl(conn->row->epoll_fd, EPOLL_CTL_MOD, fd, &event))
        epoll_ctl(conn->row->epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

/* We are done with the session: the keeper may have it, and goes by `waiting`
 * and `held`. */
void sql_row_idle(struct sql_conn *conn, struct row_lock *lock)
{
    pthread_mutex_lock(&conn->row->mu);
    lock->busy = false;
    row_arm(conn, lock);
    pthread_mutex_unlock(&conn->row->mu);
}

void sql_row_busy(struct sql_conn *conn, struct row_lock *lock)
{
    pthread_mutex_lock(&conn->row->mu);
    lock->busy = true;
    pthread_mutex_unlock(&conn->row->mu);
}

/* ---- taking ------------------------------------------------------------ */

/* Make the row, outside the transaction that has not found it.  If another has
 * made and locked it meanwhile that is a SQL_WHY_RETRY.  row.c (2) */
static hf_status row_make(struct sql_conn *conn, struct row_lock *lock,
                          int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {.key = lock->key};
    struct sql_answer answer = {0};
    hf_status st = conn->driver->row_end(lock->session, deadline, err);

    return st ? st
              : conn->driver->run(lock->session, SQL_MAKE, &call, &answer,
                                  deadline, err);
}

static hf_status row_missing(struct sql_conn *conn, struct hf_error *err)
{
    return hfi_fail(err, HF_UNAVAILABLE, "%s: the row was deleted",
                    conn->base.endpoint);
}

/* NOWAIT: HF_BUSY if another has it. */
static hf_status row_nowait(struct sql_conn *conn, struct row_lock *lock,
                            int64_t ttl_ms, int64_t deadline,
                            struct hf_error *err)
{
    bool found = false;
    hf_status st;

    do {
        st = conn->driver->row_send(lock->session, lock->key, false, ttl_ms,
                                    deadline, err);
        if (!st)
            st = conn->driver->row_done(lock->session, &found, deadline, err);
        if (st && lock->session->why == SQL_WHY_BLOCKED)
            return HF_BUSY;
        if (st && lock->session->why == SQL_WHY_TABLE && conn->create &&
            !lock->session->broken &&
            !conn->driver->row_end(lock->session, deadline, err))
            st = sql_create(lock->session, deadline, err);
        if (!st && !found)
            st = row_make(conn, lock, deadline, err);
    } while (((!st && !found) || (st && lock->session->why == SQL_WHY_RETRY &&
                                  !lock->session->broken)) &&
             hfi_left_ms(deadline));
    return st || found ? st : row_missing(conn, err);
}

static void row_number(struct sql_answer *answer, const struct sql_cell *cells,
                       int n)
{
    if (n > 0)
        answer->id = cells[0].num;
}

/* We have the row: write who we are beside the next fence. */
static hf_status row_sign(struct sql_conn *conn, const struct hfi_claim *claim,
                          struct row_lock *lock, struct hfi_receipt *receipt,
                          int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .owner = claim->owner,
                            .note = claim->note,
                            .ttl_ms = claim->ttl_ms,
                            .number = conn->driver->id(lock->session)};
    struct sql_answer answer = {.row = row_number};
    hf_status st = sql_run(conn, SQL_SIGN, &call, &answer, deadline, err);

    if (!st && !answer.id)
        st = hfi_fail(err, HF_PROTOCOL, "%s: no row for the fence",
                      conn->base.endpoint);
    if (!st)
        receipt->fence = (uint64_t)answer.id;
    return st;
}

/* Wait until the SELECT that was sent is in the queue, or answered. */
static void row_stand(struct sql_conn *conn, struct row_lock *lock,
                      int64_t deadline)
{
    struct sql_call call = {.number = conn->driver->id(lock->session)};
    struct pollfd pfd = {.fd = conn->driver->fd(lock->session),
                         .events = POLLIN};
    struct sql_answer answer = {.row = row_number};

    if (!conn->texts[SQL_STANDS])
        return;
    do
        if (sql_run(conn, SQL_STANDS, &call, &answer, deadline, NULL))
            return;
    while (!answer.id && poll(&pfd, 1, 1) <= 0 && hfi_left_ms(deadline));
}

/* The first try of a claim. */
static hf_status row_first(struct sql_conn *conn, const struct hfi_claim *claim,
                           struct row_lock *lock, int64_t deadline,
                           struct hf_error *err)
{
    hf_status st = row_nowait(conn, lock, claim->ttl_ms, deadline, err);

    lock->held = !st;
    if (st == HF_BUSY && claim->queue) {
        st = conn->driver->row_send(lock->session, lock->key, true,
                                    claim->ttl_ms, deadline, err);
        lock->waiting = !st;
        if (!st)
            row_stand(conn, lock, deadline); /* row.c (6) */
        return st ? st : HF_BUSY;
    }
    return st;
}

/* A claim that waits in the server's queue: has its turn come? */
static hf_status row_later(struct sql_conn *conn, const struct hfi_claim *claim,
                           struct row_lock *lock, int64_t deadline,
                           struct hf_error *err)
{
    bool found = false;
    hf_status st = conn->driver->row_done(lock->session, &found, 0, err);

    if (st == HF_BUSY)
        return st;
    lock->waiting = false;
    if (!st && found) {
        /* The server has counted since it granted: let it begin anew. */
        st = sql_row_beat(conn, lock, claim->ttl_ms, deadline, err);
        lock->held = !st;
        return st;
    }
    if ((st && lock->session->broken) || !found)
        return st ? st : row_missing(conn, err);
    return row_first(conn, claim, lock, deadline, err);
}

hf_status sql_row_try_acquire(struct sql_conn *conn,
                              const struct hfi_claim *claim,
                              struct hfi_receipt *receipt,
                              struct hfi_answer *busy, int64_t deadline,
                              struct hf_error *err)
{
    struct row_lock *lock = sql_row_of(receipt);
    hf_status st = HF_OK;

    (void)busy;
    if (!lock) {
        st = row_new(conn, claim, receipt, deadline, &lock, err);
        if (st)
            return st;
        st = row_first(conn, claim, lock, deadline, err);
    } else {
        sql_row_busy(conn, lock);
        if (lock->waiting)
            st = row_later(conn, claim, lock, deadline, err);
        else if (!lock->held)
            st = row_first(conn, claim, lock, deadline, err);
        else
            st = sql_row_beat(conn, lock, claim->ttl_ms, deadline, err);
    }
    if (!st)
        st = row_sign(conn, claim, lock, receipt, deadline, err);
    if (!st && !conn->driver->alive(lock->session)) {
        lock->session->broken = true;
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: the session was ended",
                      conn->base.endpoint);
    }
    if (st == HF_BUSY && err)
        err->status = HF_OK; /* "Locked" is how the server says busy. */
    if (!st || (st == HF_BUSY && lock->waiting)) {
        sql_row_idle(conn, lock);
        return st;
    }
    if (!lock->session->broken)
        conn->driver->row_end(lock->session, deadline, NULL);
    sql_row_drop(conn, lock, receipt, true);
    /* The row is free again, or will be when the server sees the end. */
    return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
}

/* ---- hearing ----------------------------------------------------------- */

int sql_row_poll_fd(struct sql_conn *conn)
{
    return conn->row->epoll_fd;
}

static bool row_is_known(struct sql_row_state *row, const struct row_lock *lock)
{
    struct hfi_link *at;

    for (at = row->locks.next; at != &row->locks; at = at->next)
        if (hfi_container(at, struct row_lock, link) == lock)
            return true;
    return false;
}

/* A session that waits has an answer; one that holds has been cut. */
void sql_row_dispatch(struct sql_conn *conn)
{
    struct sql_row_state *row = conn->row;
    struct epoll_event events[16];
    int i, n = epoll_wait(row->epoll_fd, events, 16, 0);

    pthread_mutex_lock(&row->mu);
    for (i = 0; i < n; i++) {
        struct row_lock *lock = events[i].data.ptr;

        if (!row_is_known(row, lock) || lock->busy)
            continue;
        if (lock->waiting)
            hfi_wake(&conn->base, lock->key, lock->token);
        else if (lock->held && !conn->driver->alive(lock->session))
            hfi_gone(&conn->base, lock->key, lock->token, HF_LOSS_SESSION);
        else
            row_arm(conn, lock);
    }
    pthread_mutex_unlock(&row->mu);
}

void sql_row_close(struct sql_conn *conn)
{
    struct sql_row_state *row = conn->row;
    struct row_lock *lock;

    while (!hfi_link_alone(&row->locks)) {
        lock = hfi_container(row->locks.next, struct row_lock, link);
        hfi_link_remove(&lock->link);
        sql_disconnect(lock->session);
        hfi_free(lock);
    }
    if (row->epoll_fd >= 0)
        close(row->epoll_fd);
    pthread_mutex_destroy(&row->mu);
    hfi_free(row);
    conn->row = NULL;
}
