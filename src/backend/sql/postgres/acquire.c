/* SPDX-License-Identifier: MIT
 *
 * acquire.c - a try of a waiter, which must be told of a release from then on.
 *
 * The connection that listens is there before the try, so that nothing is missed
 * between the two; backend/sql/acquire.c does the rest.
 */
#include "postgres.h"

#include "base/banned.h"

hf_status pg_try_acquire(struct hfi_conn *base, const struct hfi_claim *claim,
                         struct hfi_receipt *receipt, struct hfi_answer *busy,
                         int64_t deadline, struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    hf_status st;

    atomic_store(&pc->sql.hears, !atomic_load(&pc->pooled));
    if (claim->queue)
        pg_listen_again(pc, deadline);
    st = sql_try_acquire(base, claim, receipt, busy, deadline, err);
    if (st == HF_BUSY && claim->queue)
        pg_unsubscribed(pc, claim);
    return st;
}
