/* SPDX-License-Identifier: MIT
 *
 * row_renew.c - strategy row: heartbeats; see row.c for what they promise.
 */
#include "row.h"

#include <poll.h>

#include "base/banned.h"

/* ---- heartbeats -------------------------------------------------------- */

static hf_status row_beat_send(struct sql_conn *conn, struct row_lock *lock,
                               int64_t ttl_ms, struct hf_error *err)
{
    hf_status st = conn->driver->row_beat(lock->session, ttl_ms, err);

    lock->beating = !st;
    return st;
}

/* Hear the answer of one that was sent; HF_BUSY if it has not come by the
 * deadline.  It may still, and is waited for before anything else is sent. */
hf_status sql_row_hear(struct sql_conn *conn, struct row_lock *lock,
                       int64_t deadline, struct hf_error *err)
{
    struct pollfd pfd = {.fd = conn->driver->fd(lock->session),
                         .events = POLLIN};
    bool found = false;
    int64_t left;
    hf_status st;

    while ((st = conn->driver->row_done(lock->session, &found, 0, err)) ==
           HF_BUSY) {
        left = hfi_left_ms(deadline);
        if (!left)
            break;
        poll(&pfd, 1, left < 1000 ? (int)left : 1000);
    }
    lock->beating = st == HF_BUSY;
    return st;
}

/* Both, for a lock that is being taken: without an answer it is given up. */
hf_status sql_row_beat(struct sql_conn *conn, struct row_lock *lock,
                       int64_t ttl_ms, int64_t deadline, struct hf_error *err)
{
    hf_status st =
        lock->beating ? sql_row_hear(conn, lock, deadline, err) : HF_OK;

    if (!st)
        st = row_beat_send(conn, lock, ttl_ms, err);
    if (!st)
        st = sql_row_hear(conn, lock, deadline, err);
    if (st != HF_BUSY)
        return st;
    lock->session->broken = true;
    return hfi_fail(err, HF_UNAVAILABLE, "%s: no answer in time",
                    conn->base.endpoint);
}

/* ---- renewing ---------------------------------------------------------- */

/* Send the heartbeat of one lock; true if it went out.  The session stays busy
 * until sql_row_renew() is done. */
static bool row_renew_send(struct sql_conn *conn, struct hfi_renewal *item,
                           struct hf_error *err)
{
    struct row_lock *lock = sql_row_of(item->receipt);
    hf_status st = HF_OK;

    item->st = HF_LOST;
    item->reason = HF_LOSS_SESSION;
    if (!lock)
        return false;
    sql_row_busy(conn, lock);
    /* An old answer, if there is one to come, proves nothing for now. */
    if (lock->beating)
        st = sql_row_hear(conn, lock, 0, err);
    if (!st)
        st = row_beat_send(conn, lock, item->ttl_ms, err);
    if (st == HF_BUSY)
        item->st = hfi_fail(err, HF_UNAVAILABLE, "%s: no answer in time",
                            conn->base.endpoint);
    else if (st)
        sql_row_drop(conn, lock, item->receipt, false); /* row.c (3) */
    return !st;
}

/* Hear the answer; `st` is what the question for all has brought.  True if the
 * session can be left alone. */
static bool row_renew_hear(struct sql_conn *conn, struct hfi_renewal *item,
                           int64_t deadline, struct hf_error *err)
{
    struct row_lock *lock = sql_row_of(item->receipt);
    hf_status st = sql_row_hear(conn, lock, deadline, err);

    if (!st)
        return true;
    if (st == HF_BUSY) { /* It may still come: ask again later. */
        if (item->st != HF_LOST)
            item->st = hfi_fail(err, HF_UNAVAILABLE, "%s: no answer in time",
                                conn->base.endpoint);
        return false;
    }
    item->st = HF_LOST;
    item->reason = HF_LOSS_SESSION;
    sql_row_drop(conn, lock, item->receipt, false); /* row.c (3) */
    return false;
}

/* A heartbeat for each session, all at once, and one question for all of them
 * at the same time, so that it takes one round trip.  The heartbeats are heard
 * last, and most have come by then. */
void sql_row_renew(struct sql_conn *conn, struct hfi_renewal **items, size_t n,
                   int64_t deadline, struct hf_error *err)
{
    size_t i, left = 0;

    for (i = 0; i < n; i++)
        if (row_renew_send(conn, items[i], err))
            items[left++] = items[i];
    sql_renew_all(conn, items, left, deadline, err);
    /* One that was broken keeps its row, too: row.c (4). */
    for (i = 0; i < left; i++)
        if (row_renew_hear(conn, items[i], deadline, err))
            sql_row_idle(conn, sql_row_of(items[i]->receipt));
}
