/* SPDX-License-Identifier: MIT
 *
 * release.c - strategies lease and version: taking the token out of a row.
 *
 * What was sent without an answer is ended first (doubt.c), and a token that was
 * broken is released as such: sql.c (6).
 */
#include "sql.h"

#include "row.h"

#include "base/banned.h"

void sql_spoil(char ret[HFI_TOKEN_LEN + 2], const char *token)
{
    snprintf(ret, HFI_TOKEN_LEN + 2, "!%s", token);
}

hf_status sql_release(struct hfi_conn *base, const struct hfi_claim *claim,
                      struct hfi_receipt *receipt, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = claim->key, .token = claim->token};
    struct sql_answer answer = {0};
    char spoiled[HFI_TOKEN_LEN + 2];
    bool ours;
    hf_status st;

    if (conn->strategy == SQL_ROW)
        return sql_row_release(conn, claim, receipt, deadline, err);
    st = sql_run(conn, SQL_RELEASE, &call, &answer, deadline, err);
    ours = answer.affected || answer.rows;
    if (!st && sql_doubt_is(conn, claim->token)) {
        st = sql_doubt_end(conn, claim->token, deadline, err);
        if (!st) /* doubt.c (1) */
            st = sql_run(conn, SQL_RELEASE, &call, &answer, deadline, err);
        ours = ours || answer.affected || answer.rows;
    }
    if (!st && !ours) { /* sql.c (6) */
        sql_spoil(spoiled, claim->token);
        call.token = spoiled;
        st = sql_run(conn, SQL_RELEASE, &call, &answer, deadline, err);
    }
    if (st)
        return st;
    receipt->registered = false;
    if (ours)
        return HF_OK;
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    base->endpoint);
}
