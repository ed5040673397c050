/* SPDX-License-Identifier: MIT
 *
 * handle.c - giving a grant to the claim of another client, in one statement, so
 * that a handle is taken up once.
 */
#include "sql.h"

#include "base/banned.h"

/* The handle says everything: the first statement finds out whether it is
 * true. */
hf_status sql_attach(struct hfi_conn *base, const struct hfi_claim *claim,
                     const struct hf_handle *handle,
                     struct hfi_receipt *receipt, struct hf_error *err)
{
    (void)base;
    (void)claim;
    (void)err;
    receipt->fence = handle->fence;
    return HF_OK;
}

hf_status sql_take_over(struct hfi_conn *base, const struct hfi_claim *claim,
                        const char *token, struct hfi_receipt *receipt,
                        int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .note = token,
                            .number = (int64_t)receipt->fence};
    struct sql_answer answer = {0};
    hf_status st;

    /* In the mode of the claim only: backend.h (16). */
    if (!sql_share_is(claim)) {
        st = sql_run(conn, SQL_TAKE, &call, &answer, deadline, err);
        if (st || answer.affected || answer.rows)
            return st;
    }
    /* Also a plain one, if its owner id was joined: reenter.c. */
    st = sql_share_take_over(conn, claim, token, receipt, deadline, err);
    if (st != HF_LOST)
        return st;
    return hfi_fail(err, HF_LOST, "%s: there is no such grant", base->endpoint);
}
