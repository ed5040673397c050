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

static hf_status release_holder(struct sql_conn *conn,
                                const struct hfi_claim *claim, bool *ours,
                                int64_t deadline, struct hf_error *err)
{
    hf_status st = sql_share_release(conn, claim, deadline, err);

    *ours = *ours || !st;
    return st == HF_LOST ? HF_OK : st;
}

static hf_status release_row(struct sql_conn *conn,
                             const struct hfi_claim *claim, const char *token,
                             bool *ours, int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {.key = claim->key, .token = token};
    struct sql_answer answer = {0};
    hf_status st;

    if (conn->fair)
        return sql_queue_release(conn, claim->key, token, 0, ours, deadline,
                                 err);
    st = sql_run(conn, SQL_RELEASE, &call, &answer, deadline, err);
    *ours = *ours || answer.affected || answer.rows;
    return st;
}

/* Where the claim says that it is.  share_hold.c (1) */
static hf_status release_once(struct sql_conn *conn,
                              const struct hfi_claim *claim, bool *ours,
                              int64_t deadline, struct hf_error *err)
{
    hf_status st = sql_share_is(claim)
                       ? release_holder(conn, claim, ours, deadline, err)
                       : HF_OK;

    if (st || *ours)
        return st;
    return release_row(conn, claim, claim->token, ours, deadline, err);
}

hf_status sql_release(struct hfi_conn *base, const struct hfi_claim *claim,
                      struct hfi_receipt *receipt, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    char spoiled[HFI_TOKEN_LEN + 2];
    bool ours = false, broken = false;
    hf_status st;

    if (conn->strategy == SQL_ROW)
        return sql_row_release(conn, claim, receipt, deadline, err);
    st = release_once(conn, claim, &ours, deadline, err);
    if (!st && sql_doubt_is(conn, claim->token)) {
        st = sql_doubt_end(conn, claim->token, deadline, err);
        if (!st) /* doubt.c (1) */
            st = release_once(conn, claim, &ours, deadline, err);
    }
    if (!st && !ours) { /* sql.c (6) */
        sql_spoil(spoiled, claim->token);
        st = release_row(conn, claim, spoiled, &broken, deadline, err);
    }
    if (!st && !ours && !broken && !sql_share_is(claim))
        st = release_holder(conn, claim, &ours, deadline, err);
    if (st)
        return st;
    receipt->registered = false;
    if (ours) {
        sql_collect_some(conn, claim, deadline);
        return HF_OK;
    }
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    base->endpoint);
}
