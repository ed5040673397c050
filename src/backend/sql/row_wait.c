/* SPDX-License-Identifier: MIT
 *
 * row_wait.c - strategy row: hearing from the sessions that wait, and from those
 * that hold and are cut.
 */
#include "row.h"

#include <sys/epoll.h>

#include "base/banned.h"

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
            sql_row_arm(conn, lock);
    }
    pthread_mutex_unlock(&row->mu);
}
