/* SPDX-License-Identifier: MIT
 *
 * renew.c - keeping a grant, and mending it on nodes that lost it.
 *
 * A renewal asks every node that is connected.  A majority that confirms is a
 * yes, and so many that deny that no majority is left is a loss; what lies in
 * between is not known yet, and is asked again while the lease lasts.
 *
 * MENDING  A node that says that the key is gone, while others confirm it, has
 *   lost its data or was not there when the lock was taken.  It is given the
 *   key again, once the others have answered, and counts from the next renewal
 *   on.  It refuses if it has seen a later grant confirmed.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/banned.h"

#define BATCH_MAX 256

/* ---- keeping ----------------------------------------------------------- */

static void renew_say(struct redlock_conn *rl, struct redis_batch *batch,
                      const struct hfi_renewal *item, bool restore)
{
    char ttl[24], fence[24], shorter[24];
    const char *argv[] = {item->claim->token,
                          ttl,
                          item->ttl_ms < item->claim->ttl_ms ? "1" : "0",
                          fence,
                          restore ? "1" : "0",
                          item->claim->note ? item->claim->note : "",
                          item->claim->owner ? item->claim->owner : "",
                          shorter,
                          item->claim->bearer ? "2" : "1"};
    int argc = item->claim->shared                   ? 9
               : redlock_own(item->receipt)->shorter ? 8
                                                     : 7;

    snprintf(ttl, sizeof(ttl), "%" PRId64, item->ttl_ms);
    snprintf(fence, sizeof(fence), "%" PRIu64,
             rl->fenced ? item->receipt->fence : 0);
    snprintf(shorter, sizeof(shorter), "%u",
             redlock_own(item->receipt)->shorter);
    redlock_step(rl, batch, 'R', item->claim->key, argc, argv);
}

static void renew_count(const redisReply *reply, int node,
                        struct redlock_tally *tally)
{
    if (reply->type != REDIS_REPLY_INTEGER)
        return;
    switch (reply->integer) {
    case 0:
        tally->gone |= 1U << node;
        break;
    case 1:
        tally->confirmed++;
        break;
    case 3:
        tally->broken++;
        break;
    default: /* 2, 5 */
        tally->stolen++;
    }
}

/* Ask all that are there and have not been asked; a set of them. */
static unsigned renew_send(struct redlock_round *round,
                           const struct redis_batch *batch, unsigned asked,
                           int64_t ttl_ms, int64_t deadline)
{
    struct redlock_conn *rl = round->rl;
    unsigned sent = 0;
    int i;

    for (i = 0; i < rl->n; i++) {
        if (asked & 1U << i ||
            !redlock_node_is_ready(&rl->nodes[i], redlock_limit(rl, ttl_ms)))
            continue;
        redlock_ask(round, i, batch, deadline);
        if (round->calls[i].asked)
            sent |= 1U << i;
    }
    return sent;
}

/* One node's answers, to the items that were not refused; false if they are
 * none. */
static bool renew_read(const struct redlock_node_call *node_call, int node,
                       const struct hfi_renewal *items, size_t n,
                       struct redlock_tally *tallies)
{
    size_t item;
    int at = 0;

    if (!node_call->landed)
        return false;
    for (item = 0; item < n; item++)
        if (!items[item].st)
            renew_count(redlock_reply(node_call, at++), node, &tallies[item]);
    return redlock_reply(node_call, 0)->type == REDIS_REPLY_INTEGER;
}

/* Ask all that are there, and if they are too few, those that come.  Those who
 * were asked and have not answered. */
static unsigned renew_ask(struct redlock_conn *rl,
                          const struct redis_batch *batch,
                          const struct hfi_renewal *items, size_t n,
                          int64_t ttl_ms, int64_t deadline,
                          struct redlock_tally *tallies)
{
    struct redlock_span span;
    struct redlock_round round;
    unsigned asked = 0, more, silent;
    int i, answered = 0;

    redlock_round_init(&round, rl);
    do {
        span = redlock_span(rl, ttl_ms, deadline);
        more = renew_send(&round, batch, asked, ttl_ms, span.end);
        asked |= more;
        span = redlock_span(rl, ttl_ms, deadline);
        while ((i = redlock_hear(&round, answered < rl->majority ? span.late
                                                                 : span.end)) >=
               0)
            answered += renew_read(&round.calls[i], i, items, n, tallies);
    } while (more && answered < rl->majority &&
             redlock_await_more(rl, asked, deadline));
    silent = redlock_silent(&round);
    redlock_round_fini(&round);
    return silent;
}

/* The verdict on one.  What a `silent` node was asked may still arrive. */
static void renew_judge(const struct redlock_conn *rl, struct hfi_renewal *item,
                        const struct redlock_tally *tally, unsigned silent,
                        struct hf_error *err)
{
    int gone = __builtin_popcount(tally->gone);
    int against = gone + tally->stolen + tally->broken;

    switch (redlock_standing(rl->n, tally)) {
    case REDLOCK_STANDS:
        item->st = HF_OK;
        break;
    case REDLOCK_FALLEN:
        item->st = HF_LOST;
        item->reason = tally->broken                   ? HF_LOSS_BROKEN
                       : gone == against               ? HF_LOSS_DELETED
                       : tally->stolen >= rl->majority ? HF_LOSS_STOLEN
                                                       : HF_LOSS_QUORUM;
        break;
    default:
        item->st = hfi_fail(err, silent ? HF_UNCERTAIN : HF_UNAVAILABLE,
                            "%d of %d nodes confirmed it, %d are needed",
                            tally->confirmed, rl->n, rl->majority);
    }
}

static void renew_restore(struct redlock_conn *rl, struct hfi_renewal *items,
                          size_t n, const struct redlock_tally *tallies,
                          int64_t ttl_ms, int64_t deadline)
{
    struct redlock_span span = redlock_span(rl, ttl_ms, deadline);
    struct redis_batch batches[REDLOCK_MAX] = {{0}};
    struct redlock_round round;
    size_t item;
    int i;

    redlock_round_init(&round, rl);
    for (i = 0; i < rl->n; i++) {
        for (item = 0; item < n; item++)
            if (tallies[item].gone & 1U << i &&
                redlock_may_restore(rl->n, &tallies[item])) {
                redlock_pending_drop(&rl->nodes[i], items[item].claim);
                redlock_note_add(items[item].receipt, 1U << i);
                renew_say(rl, &batches[i], &items[item], true);
            }
        if (batches[i].count)
            redlock_ask(&round, i, &batches[i], span.end);
    }
    span = redlock_span(rl, ttl_ms, deadline);
    while (redlock_hear(&round, span.end) >= 0)
        continue;
    for (item = 0; item < n; item++)
        redlock_note_doubt(items[item].receipt,
                           redlock_silent(&round) & tallies[item].gone);
    redlock_round_fini(&round);
    for (i = 0; i < rl->n; i++)
        redis_batch_free(&batches[i]);
}

void redlock_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
                   int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct redlock_tally tallies[BATCH_MAX] = {{0}};
    struct redis_batch batch = {0};
    int64_t ttl_ms = INT64_MAX;
    bool restore = false;
    unsigned silent;
    size_t i;

    n = n < BATCH_MAX ? n : BATCH_MAX; /* the core sends no more at once */
    for (i = 0; i < n; i++) {
        items[i].st = redlock_check_ttl(rl, items[i].ttl_ms, err);
        if (items[i].st)
            continue;
        ttl_ms = items[i].ttl_ms < ttl_ms ? items[i].ttl_ms : ttl_ms;
        if (items[i].ttl_ms < items[i].claim->ttl_ms)
            redlock_own(items[i].receipt)->shorter++;
        renew_say(rl, &batch, &items[i], false);
    }
    if (!batch.count && !batch.failed)
        return;
    redlock_await_majority(rl, deadline);
    silent = renew_ask(rl, &batch, items, n, ttl_ms, deadline, tallies);
    for (i = 0; i < n; i++) {
        if (!items[i].st)
            renew_judge(rl, &items[i], &tallies[i], silent, err);
        restore = restore || redlock_may_restore(rl->n, &tallies[i]);
    }
    redis_batch_free(&batch);
    if (restore && hfi_left_ms(deadline))
        renew_restore(rl, items, n, tallies, ttl_ms, deadline);
}
