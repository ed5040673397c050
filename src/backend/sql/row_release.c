/* SPDX-License-Identifier: MIT
 *
 * row_release.c - strategy row: ending the transaction, or leaving the server's
 * queue; see row.c for what that promises.
 */
#include "row.h"

#include <poll.h>

#include "base/banned.h"

/* How long an ended statement may take to say so before it is ended again. */
#define ROW_END_MS 20

/* Leave the server's queue: a statement that waits must be ended from outside,
 * more than once if the first attempt came before it did.  It may have been
 * granted just then, so what it got is given back. */
static void row_withdraw(struct sql_conn *conn, struct row_lock *lock,
                         struct hfi_receipt *receipt, int64_t deadline)
{
    struct sql_call call = {.number = conn->driver->id(lock->session)};
    struct pollfd pfd = {.fd = conn->driver->fd(lock->session),
                         .events = POLLIN};
    struct sql_answer answer = {0};
    bool found = false;
    hf_status st;

    do {
        sql_run(conn, SQL_END, &call, &answer, deadline, NULL);
        poll(&pfd, 1, ROW_END_MS);
        st = conn->driver->row_done(lock->session, &found, 0, NULL);
    } while (st == HF_BUSY && hfi_left_ms(deadline));
    if (st == HF_BUSY)
        lock->session->broken = true;
    if (!lock->session->broken)
        conn->driver->row_end(lock->session, deadline, NULL);
    sql_row_drop(conn, lock, receipt, true);
}

hf_status sql_row_release(struct sql_conn *conn, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, int64_t deadline,
                          struct hf_error *err)
{
    struct row_lock *lock = sql_row_of(receipt);
    struct sql_call call = {.key = claim->key, .token = claim->token};
    struct sql_answer answer = {0};
    char spoiled[HFI_TOKEN_LEN + 2];
    bool ours = false;
    hf_status st = HF_LOST;

    if (!lock)
        return hfi_fail(err, HF_LOST, "%s: the session that held it is gone",
                        conn->base.endpoint);
    sql_row_busy(conn, lock);
    if (lock->waiting) {
        row_withdraw(conn, lock, receipt, deadline);
        return HF_OK;
    }
    st = lock->beating ? sql_row_hear(conn, lock, deadline, err) : HF_OK;
    if (!st)
        st = conn->driver->run(lock->session, SQL_UNSIGN, &call, &answer,
                               deadline, err);
    ours = answer.affected;
    if (!st && !ours) {
        sql_spoil(spoiled, claim->token);
        call.token = spoiled;
        st = conn->driver->run(lock->session, SQL_UNSIGN, &call, &answer,
                               deadline, err);
    }
    if (!st)
        st = conn->driver->row_end(lock->session, deadline, err);
    /* Without an answer the session is closed, and that frees the row. */
    sql_row_drop(conn, lock, receipt, !st);
    if (!st && ours)
        return HF_OK;
    return hfi_fail(err, HF_LOST, "%s: %s", conn->base.endpoint,
                    st ? "the session that held it was cut" : "it was broken");
}
