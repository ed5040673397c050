/* SPDX-License-Identifier: MIT
 *
 * row.c - strategy row: the lock is a row lock, held by a transaction.
 *
 * Here is what a lock and its session are; the files row_*.c take it, keep it,
 * let it go and hear of its end.
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
 *  (7) The token and the fence are written only while the session that they
 *      are written for has the row (mysql: is there), on the same server: what
 *      is written late, in another session, would be written over those of
 *      the next holder, and end its grant.  So a session is closed if that had
 *      no answer.
 *
 * SESSION  The server is told to end a transaction that it has heard nothing
 *   from for the ttl; each heartbeat starts that time anew.  So the row is
 *   kept for at least the ttl from the last answered heartbeat, unless the
 *   server or an operator ends the session, of which we hear at once if the
 *   network lets us.
 *
 * NO SHARING  A reader would be SELECT ... FOR SHARE, but
 *   - PostgreSQL keeps the number of a group in a row that several share, and no
 *     SQL tells who is in it.  So (7) could not be checked for a reader, nor
 *     could one be listed, or ended by force, alone.  And a reader joins others
 *     although a writer waits: readers that overlap would keep it out for ever.
 *   - InnoDB keeps all row locks until the transaction ends, also those behind a
 *     savepoint that is rolled back to: hf_downgrade() would have to end it, and
 *     another writer could come in between.
 *   test/sql/grants.c shows both.
 *
 * LIMITS  A connection for each lock held and each key waited for.  A waiter
 *   stands in the server's queue, where a holder that lingers cannot see him.
 *   Unlike a lease, a row lock is free as soon as its session is: between the
 *   cut and our hearing of it there may be another holder, and the fence is
 *   what protects.
 */
#include "row.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

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
    conn->base.traits &=
        ~(unsigned)(HF_TRAIT_DETACH | HF_TRAIT_NOTIFY | SQL_SHARING);
    if (conn->texts[SQL_STANDS])
        conn->base.traits |= HF_TRAIT_QUEUED; /* row.c (6) */
    return HF_OK;
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

/* ---- one lock ---------------------------------------------------------- */

struct row_lock *sql_row_of(const struct hfi_receipt *receipt)
{
    const struct sql_grant *own = receipt->own;

    return receipt->registered ? own->row : NULL;
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
    receipt->registered = false;
}

/* With the mutex held: have the keeper listen to the session again, once. */
void sql_row_arm(struct sql_conn *conn, struct row_lock *lock)
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
    sql_row_arm(conn, lock);
    pthread_mutex_unlock(&conn->row->mu);
}

void sql_row_busy(struct sql_conn *conn, struct row_lock *lock)
{
    pthread_mutex_lock(&conn->row->mu);
    lock->busy = true;
    pthread_mutex_unlock(&conn->row->mu);
}
