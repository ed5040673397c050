/* SPDX-License-Identifier: MIT
 *
 * share_hold.c - what is done with a grant in the table of holders: renewing it,
 * giving it back, taking it up, breaking it; and how a plain grant gets there.
 *
 * INVARIANTS
 *  (1) A grant is found by its token and fence in either table: a downgrade may
 *      have had no answer, and the bearer of a handle need not know the mode.
 *      Where the claim says that it is plain, the table of locks is asked first
 *      and usually last.
 */
#include "sql.h"

#include "base/banned.h"

void sql_said_row(struct sql_answer *answer, const struct sql_cell *cells,
                  int n)
{
    int64_t *said = answer->arg;

    if (n)
        *said = cells[0].num;
}

/* A script about one grant: is it there? */
static hf_status hold_run(struct sql_conn *conn, enum sql_stmt stmt,
                          const struct sql_call *call, bool *there,
                          int64_t deadline, struct hf_error *err)
{
    struct sql_answer answer = {0};
    hf_status st = sql_run(conn, stmt, call, &answer, deadline, err);

    *there = !st && answer.rows > 0;
    return st;
}

hf_status sql_share_renew(struct sql_conn *conn, struct hfi_renewal *item,
                          int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {.key = item->claim->key,
                            .token = item->claim->token,
                            .ttl_ms = item->ttl_ms,
                            .queue = item->ttl_ms < item->claim->ttl_ms,
                            .number = (int64_t)item->receipt->fence};
    bool there;
    hf_status st = hold_run(conn, SQL_STAY, &call, &there, deadline, err);

    return st || there ? st : HF_LOST;
}

/* Also the mark of a claim that has waited.  A grant that was broken is given
 * back as such, and was not ours. */
hf_status sql_share_release(struct sql_conn *conn,
                            const struct hfi_claim *claim, int64_t deadline,
                            struct hf_error *err)
{
    struct sql_call call = {.key = claim->key, .token = claim->token};
    char spoiled[HFI_TOKEN_LEN + 2];
    bool there, broken;
    hf_status st = hold_run(conn, SQL_LEAVE, &call, &there, deadline, err);

    if (st || there)
        return st;
    sql_spoil(spoiled, claim->token);
    call.token = spoiled;
    st = hold_run(conn, SQL_LEAVE, &call, &broken, deadline, err);
    return st ? st : HF_LOST;
}

hf_status sql_share_break(struct sql_conn *conn, const char *key,
                          uint64_t fence, int64_t deadline,
                          struct hf_error *err)
{
    struct sql_call call = {.key = key, .number = (int64_t)fence};
    bool there;
    hf_status st = hold_run(conn, SQL_SPOIL, &call, &there, deadline, err);

    return st || there ? st : HF_LOST;
}

hf_status sql_share_free(struct sql_conn *conn, const char *key, uint64_t fence,
                         int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {.key = key, .token = "", .number = (int64_t)fence};
    bool there;
    hf_status st = hold_run(conn, SQL_LEAVE, &call, &there, deadline, err);

    return st || there ? st : HF_LOST;
}

static void hold_slot(struct sql_answer *answer, const struct sql_cell *cells,
                      int n)
{
    struct hfi_receipt *receipt = answer->arg;

    if (n > 1)
        receipt->slot = (int32_t)cells[1].num;
}

hf_status sql_share_take_over(struct sql_conn *conn,
                              const struct hfi_claim *claim, const char *token,
                              struct hfi_receipt *receipt, int64_t deadline,
                              struct hf_error *err)
{
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .note = token,
                            .permits =
                                sql_share_is(claim) ? claim->permits : -1,
                            .number = (int64_t)receipt->fence};
    struct sql_answer answer = {.row = hold_slot, .arg = receipt};
    hf_status st = sql_run(conn, SQL_TAKE_UP, &call, &answer, deadline, err);

    return st || answer.rows ? st : HF_LOST;
}

/* ---- from one table to the other --------------------------------------- */

hf_status sql_downgrade(struct hfi_conn *base, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt, int64_t deadline,
                        struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .number = (int64_t)receipt->fence};
    int64_t said = 0;
    struct sql_answer answer = {.row = sql_said_row, .arg = &said};
    hf_status st;

    if (conn->strategy == SQL_ROW)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: has no shared locks: %s",
                        base->endpoint, base->be->no_shared);
    st = sql_run(conn, SQL_DOWNGRADE, &call, &answer, deadline, err);
    if (!st && said == 2) /* reenter.c */
        return hfi_fail_joined(err, claim);
    if (!st && said && conn->fair) /* They would ask by themselves. */
        sql_queue_admit(conn, claim->key, deadline, NULL);
    if (st || said)
        return st;
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    base->endpoint);
}

hf_status sql_keep(struct hfi_conn *base, const struct hfi_claim *claim,
                   struct hfi_receipt *receipt, int64_t ms, int64_t deadline,
                   struct hf_error *err)
{
    struct sql_conn *conn = (struct sql_conn *)base;
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .ttl_ms = ms,
                            .number = (int64_t)receipt->fence};
    bool there;
    hf_status st = hold_run(conn, SQL_KEEP, &call, &there, deadline, err);

    if (st)
        return st;
    if (!there)
        return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                        base->endpoint);
    receipt->registered = false;
    return HF_OK;
}
