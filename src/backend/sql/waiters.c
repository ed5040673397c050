/* SPDX-License-Identifier: MIT
 *
 * waiters.c - who waits for a key: the tickets that last, in their order
 * (queue.c).  The rows are kept until the session is free: the caller's function
 * may use the client.
 */
#include "sql.h"

#include "backend/waiters.h"

#include "base/banned.h"

/* A text of at most HF_NOTE_MAX bytes. */
static const char *waiters_text(const struct sql_cell *cell,
                                char ret[HF_NOTE_MAX + 1])
{
    snprintf(ret, HF_NOTE_MAX + 1, "%.*s",
             cell->len < HF_NOTE_MAX ? (int)cell->len : HF_NOTE_MAX,
             cell->data ? cell->data : "");
    return ret;
}

static void waiters_row(struct sql_answer *answer, const struct sql_cell *cells,
                        int n)
{
    const struct sql_cell *since = &cells[SQL_WAITER_SINCE];
    int64_t kind = cells[SQL_WAITER_KIND].num;
    char token[HF_NOTE_MAX + 1], owner[HF_NOTE_MAX + 1], note[HF_NOTE_MAX + 1];
    struct hf_waiter *waiter;

    if (n != SQL_WAITER_COLUMNS)
        return;
    waiter = hfi_waiters_add(answer->arg, 0);
    if (!waiter)
        return;
    waiter->shared = !kind;
    waiter->permits = kind > 0 ? (int32_t)kind : 0;
    if (since->data)
        waiter->since_ms = since->num > 0 ? since->num : 0;
    waiter->left_ms = cells[SQL_WAITER_LEFT].num;
    hfi_waiter_names(waiter, waiters_text(&cells[SQL_WAITER_OWNER], owner),
                     waiters_text(&cells[SQL_WAITER_TOKEN], token),
                     waiters_text(&cells[SQL_WAITER_NOTE], note));
}

hf_status sql_waiters(struct hfi_conn *base, const char *key, hf_waiters_fn *fn,
                      void *arg, int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct hfi_waiters found = {.n = 0};
    struct sql_answer answer = {.row = waiters_row, .arg = &found};
    struct sql_call call = {.key = key};

    if (!conn->texts[SQL_WAITERS])
        return hfi_fail(err, HF_UNSUPPORTED,
                        "%s: who waits is known with queue=fair and strategy "
                        "lease or version",
                        base->endpoint);
    return hfi_waiters_tell(
        &found, sql_run(conn, SQL_WAITERS, &call, &answer, deadline, err), fn,
        arg, err);
}
