/* SPDX-License-Identifier: MIT
 *
 * wait.c - hearing from the server: only sessions of strategy row are listened to.
 * With the other strategies waiters poll; DECISIONS in mysql.c says why.  In a
 * queue each looks when its turn should have come, by the pace at which the line
 * has moved, and the less often the longer it does not move.
 */
#include "mysql.h"

#include "backend/sql/row.h"

#include "base/banned.h"

/* How fast the line moves until it is known, in us for each place; and what is
 * believed of it. */
#define WAIT_PACE_US  2000
#define WAIT_PACE_MIN 500
#define WAIT_PACE_MAX 50000

/* Where the line does not move, this fraction of what was waited is added. */
#define WAIT_FRACTION 8

/* The claim is at this place now: what does that say of the line? */
static int64_t wait_pace(struct my_conn *mc, struct sql_note *note,
                         int32_t place)
{
    int64_t now = hfi_now(), pace = atomic_load(&mc->pace_us);

    if (!pace)
        pace = WAIT_PACE_US;
    if (note->place > place) {
        pace =
            (3 * pace + (now - note->place_at) * 1000 / (note->place - place)) /
            4;
        if (pace < WAIT_PACE_MIN)
            pace = WAIT_PACE_MIN;
        if (pace > WAIT_PACE_MAX)
            pace = WAIT_PACE_MAX;
        atomic_store(&mc->pace_us, pace);
    }
    if (note->place != place) {
        note->place = place;
        note->place_at = now;
    }
    return pace;
}

hf_status my_try_acquire(struct hfi_conn *base, const struct hfi_claim *claim,
                         struct hfi_receipt *receipt, struct hfi_answer *busy,
                         int64_t deadline, struct hf_error *err)
{
    struct my_conn *mc = (struct my_conn *)base;
    struct sql_note *note = &((struct sql_grant *)receipt->own)->note;
    hf_status st = sql_try_acquire(base, claim, receipt, busy, deadline, err);
    int64_t pace, ms;

    if (st != HF_BUSY || !mc->sql.fair || !busy->position)
        return st;
    pace = wait_pace(mc, note, busy->position);
    ms = (pace / 3 + (busy->position - 1) * pace * 3 / 4) / 1000 +
         (hfi_now() - note->place_at) / WAIT_FRACTION;
    if (ms < 1)
        ms = 1;
    if (ms < claim->poll_ms)
        hfi_expect(base, claim->key, claim->token, ms);
    return st;
}

int my_poll_fd(struct hfi_conn *base)
{
    struct sql_conn *conn = (struct sql_conn *)base;

    return conn->strategy == SQL_ROW ? sql_row_poll_fd(conn) : -1;
}

void my_dispatch(struct hfi_conn *base)
{
    sql_row_dispatch((struct sql_conn *)base);
}
