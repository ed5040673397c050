/* SPDX-License-Identifier: MIT
 *
 * break.c - what operators do with a grant: revoke it, sql.c (6), or end it at
 * once.  Both name it by its fence, so a later one is never hit.
 */
#include "sql.h"

#include "base/banned.h"

static hf_status grant_over(const struct hfi_conn *base, struct hf_error *err)
{
    return hfi_fail(err, HF_LOST, "%s: that grant is over", base->endpoint);
}

hf_status sql_break(struct hfi_conn *base, const char *key, uint64_t fence,
                    int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = key, .number = (int64_t)fence};
    struct sql_answer answer = {0};
    struct sql_seen seen;
    hf_status st = sql_run(conn, SQL_BREAK, &call, &answer, deadline, err);

    if (st || answer.affected || answer.rows)
        return st;
    /* To break it twice is no more than once. */
    st = sql_inspect_row(conn, key, &seen, deadline, err);
    if (st || (seen.info.broken && seen.info.fence == fence))
        return st;
    if (seen.use >= 0 && conn->strategy != SQL_ROW)
        st = sql_share_break(conn, key, fence, deadline, err);
    else
        st = HF_LOST;
    return st == HF_LOST ? grant_over(base, err) : st;
}

/* End the session of strategy row that has the fence, where one statement
 * cannot do both. */
static hf_status free_session(struct sql_conn *conn, const char *key,
                              uint64_t fence, int64_t deadline,
                              struct hf_error *err)
{
    struct sql_answer answer = {0};
    struct sql_call call = {.key = key};
    struct sql_seen seen;
    hf_status st = sql_inspect_row(conn, key, &seen, deadline, err);

    if (!st && !(seen.held && seen.info.fence == fence))
        st = grant_over(&conn->base, err);
    call.number = seen.version;
    return st ? st : sql_run(conn, SQL_KILL, &call, &answer, deadline, err);
}

hf_status sql_free(struct hfi_conn *base, const char *key, uint64_t fence,
                   int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = key, .number = (int64_t)fence};
    struct sql_answer answer = {0};
    bool ours = false;
    hf_status st;

    if (!conn->texts[SQL_FREE])
        return free_session(conn, key, fence, deadline, err);
    if (conn->fair)
        st = sql_queue_release(conn, key, "", fence, &ours, deadline, err);
    else
        st = sql_run(conn, SQL_FREE, &call, &answer, deadline, err);
    if (st || ours || answer.affected || answer.rows)
        return st;
    st = conn->strategy == SQL_ROW
             ? HF_LOST
             : sql_share_free(conn, key, fence, deadline, err);
    return st == HF_LOST ? grant_over(base, err) : st;
}
