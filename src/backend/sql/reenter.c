/* SPDX-License-Identifier: MIT
 *
 * reenter.c - strategies lease and version: an owner id counts across processes.
 *
 * ON THE WIRE  A claim that finds the key held under its own owner id joins that
 *   grant.  Then both are in the table of holders (share.c), in the mode of an
 *   exclusive lock, and the row of the key has the token `*0`: who knows nothing
 *   of owner ids sees that the key is taken.  Who wants a permit joins in the same
 *   way, within SQL_ENTER, and has the slot of the one whom it joined.
 *
 * INVARIANTS
 *  (1) One transaction, which has locked the row of the key, moves the first to
 *      the table of holders and adds the second.  So at every moment each of them
 *      is in one of the tables, and the key is free when the last has left.
 *  (2) Each has a lease of its own, which it alone renews: whoever dies lapses by
 *      itself, share.c (3) and (4), and the row of the key lasts as long as the
 *      longest of them.  With strategy version each has a version of its own: who
 *      has watched one for its lease removes that one, and nobody else.
 *  (3) All of them have the fence of the first.  Nobody joins a grant that has
 *      lapsed, that was broken, or that is kept for a minimum hold: what comes
 *      after that has a greater fence.
 *  (4) A try that is repeated finds its own row, and makes a whole lease of it; a
 *      ticket that the claim had is removed in the transaction that joins.
 *  (5) A try without an answer may arrive late; release() ends its session first
 *      (doubt.c), and what arrives all the same lapses by itself.
 *  (6) What was broken or freed by fence is so for all who have it.
 *  (7) Who waits for a permit while its owner id has one is not passed another
 *      (`joins` in queue.sql): it joins by its own try, and those behind it are
 *      passed what is free meanwhile.
 *
 * COST  A look at the row, which locks nothing, after a try that has found the key
 *   taken, and only where the claim has an owner id.  So a claim that is granted at
 *   once costs what it does without one, and the table of holders is made when it
 *   is needed.
 *
 * WAITING  Nobody tells a claim that waits in one process that its owner id has got
 *   the lock in another: it asks every REENTER_ASK_MS.
 */
#include "sql.h"

#include "base/banned.h"

/* How long a claim with an owner id waits at most until it asks again. */
#define REENTER_ASK_MS 1500

struct reentered {
    int64_t fence;
    bool other_mode;
};

static void reenter_row(struct sql_answer *answer, const struct sql_cell *cells,
                        int n)
{
    struct reentered *ret = answer->arg;

    if (n != 2)
        return;
    ret->fence = cells[0].num;
    ret->other_mode = cells[1].num != 0;
}

/* May the owner id of the claim hold the key?  Whoever is in the table of holders
 * may be its equal. */
static bool reenter_may(const struct sql_seen *seen,
                        const struct hfi_claim *claim)
{
    if (!seen->held || seen->info.broken || !strcmp(seen->token, claim->token))
        return false;
    return seen->use == 0 ||
           (seen->use < 0 && !strcmp(seen->info.owner, claim->owner));
}

hf_status sql_reenter(struct sql_conn *conn, const struct hfi_claim *claim,
                      struct sql_tried *tried, int64_t deadline,
                      struct hf_error *err)
{
    struct sql_call call = {.key = claim->key,
                            .token = claim->token,
                            .owner = claim->owner,
                            .note = claim->note,
                            .ttl_ms = claim->ttl_ms,
                            .permits = claim->shared ? 0 : -1};
    struct reentered ret = {0};
    struct sql_answer answer = {.row = reenter_row, .arg = &ret};
    struct sql_seen seen;
    hf_status st = sql_inspect_row(conn, claim->key, &seen, deadline, err);

    if (st || !reenter_may(&seen, claim))
        return st;
    st = sql_run(conn, SQL_REENTER, &call, &answer, deadline, err);
    if (!st && ret.other_mode)
        return hfi_fail_other_mode(err, claim);
    if (!st && ret.fence)
        *tried = (struct sql_tried){.fence = ret.fence, .use = -1};
    return st;
}

int64_t sql_reenter_left(int64_t left_ms)
{
    return left_ms > 0 && left_ms < REENTER_ASK_MS ? left_ms : REENTER_ASK_MS;
}
