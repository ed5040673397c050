/* SPDX-License-Identifier: MIT
 *
 * promote.c - strategies lease and version: hf_transfer(), where there is a queue.
 *
 * One transaction, which has locked the row of the key, sees that the claim holds,
 * finds the first ticket of that token, owner id or note, and gives it the number
 * before all others.  Who releases the lock later passes it to that one, as to
 * everybody who is first (queue.c).  To do it twice changes nothing.  One who shares
 * may be able to join now those who share the lock: whoever can is let in.
 */
#include "sql.h"

#include "base/banned.h"

hf_status sql_promote(struct hfi_conn *base, const struct hfi_claim *claim,
                      struct hfi_receipt *receipt, const char *heir,
                      int64_t deadline, struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .note = heir,
                            .number = (int64_t)receipt->fence};
    int64_t said = 0;
    struct sql_answer answer = {.row = sql_said_row, .arg = &said};
    bool shared;
    hf_status st;

    if (!conn->fair)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "%s: there is no queue that could be put in order",
                        base->endpoint);
    st = sql_run(conn, SQL_PROMOTE, &call, &answer, deadline, err);
    shared = !st && !said;
    if (shared) /* share_hold.c (1) */
        st = sql_run(conn, SQL_PROMOTE_HOLDER, &call, &answer, deadline, err);
    if (st)
        return st;
    if (said == 2)
        return hfi_fail_heir(err, claim, heir);
    if (said && shared) /* They would ask by themselves. */
        sql_queue_admit(conn, claim->key, deadline, NULL);
    return said ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                           base->endpoint);
}
