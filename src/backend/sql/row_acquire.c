/* SPDX-License-Identifier: MIT
 *
 * row_acquire.c - strategy row: taking the lock, at once or in the server's queue;
 * see row.c for what that promises.
 */
#include "row.h"

#include <poll.h>

#include "base/alloc.h"

#include "base/banned.h"

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
    receipt->registered = true;
    *ret = lock;
    return HF_OK;
}

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

    if (st == HF_UNCERTAIN) /* row.c (7) */
        lock->session->broken = true;
    if (!st && !answer.id)
        st = hfi_fail(err, HF_UNAVAILABLE,
                      "%s: the server that keeps the fence does not know the "
                      "session that has the row",
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
