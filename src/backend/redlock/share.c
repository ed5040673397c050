/* SPDX-License-Identifier: MIT
 *
 * share.c - from exclusive to shared.
 *
 * Each node takes the step at once, and lets readers in from then on; they need
 * a majority of such nodes.  The lock is shared when a majority says so.  What
 * is heard of fewer is in doubt: the grant is to be taken for shared, and is
 * asked for again.  A node that has not heard of it keeps readers out, and
 * learns it from the next renewal (renew.c), which says that the grant is
 * shared.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/banned.h"

static void downgrade_count(const redisReply *reply, int node,
                            struct redlock_tally *tally)
{
    if (!reply || reply->type != REDIS_REPLY_INTEGER)
        return;
    if (reply->integer == 1)
        tally->confirmed++;
    else if (reply->integer == 0)
        tally->gone |= 1U << node;
    else if (reply->integer == 3)
        tally->broken++;
    else /* 2, 5 */
        tally->stolen++;
}

/* Ask all that are there; how many were asked. */
static int downgrade_ask(struct redlock_round *round,
                         const struct redis_batch *batch,
                         const struct hfi_claim *claim, int64_t deadline,
                         struct redlock_tally *tally)
{
    struct redlock_conn *rl = round->rl;
    int64_t limit = redlock_limit(rl, claim->ttl_ms);
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, deadline);
    int i, asked = 0;

    for (i = 0; i < rl->n; i++)
        if (redlock_node_is_ready(&rl->nodes[i], limit)) {
            redlock_ask(round, i, batch, span.end);
            asked += round->calls[i].asked;
        }
    span = redlock_span(rl, claim->ttl_ms, deadline);
    while ((i = redlock_hear(round,
                             redlock_standing(rl->n, tally) == REDLOCK_UNKNOWN
                                 ? span.late
                                 : span.end)) >= 0)
        downgrade_count(redlock_reply(&round->calls[i], 0), i, tally);
    return asked;
}

hf_status redlock_downgrade(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            struct hfi_receipt *receipt, int64_t deadline,
                            struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    char fence[24];
    const char *argv[] = {claim->token, fence};
    struct redlock_tally tally = {0};
    struct redis_batch batch = {0};
    struct redlock_round round;
    hf_status st = HF_OK;
    int asked;

    snprintf(fence, sizeof(fence), "%" PRIu64, rl->fenced ? receipt->fence : 0);
    redlock_round_init(&round, rl);
    redlock_step(rl, &batch, 'G', claim->key, 2, argv);
    redlock_await_majority(rl, deadline);
    asked = downgrade_ask(&round, &batch, claim, deadline, &tally);
    switch (redlock_standing(rl->n, &tally)) {
    case REDLOCK_STANDS:
        break;
    case REDLOCK_FALLEN:
        st =
            hfi_fail(err, HF_LOST, "%s: only %d of %d nodes still had the lock",
                     conn->endpoint, tally.confirmed, rl->n);
        break;
    default:
        redlock_too_few(&round, tally.confirmed, 0, err);
        st = hfi_restate(err, asked ? HF_UNCERTAIN : HF_UNAVAILABLE);
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return st;
}
