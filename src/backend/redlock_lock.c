/* SPDX-License-Identifier: MIT
 *
 * redlock_lock.c - keeping, mending and giving back.
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

#include "../mem.h"

#include "../banned.h"

#define BATCH_MAX 256

/* What the nodes said of one grant. */
struct renew_tally {
    int confirmed, stolen, broken;
    unsigned gone; /* the set of nodes that have no such key */
};

static void renew_say(struct redlock_conn *rl, struct redis_batch *batch,
                      const struct hfi_renewal *item, bool mend)
{
    char ttl[24], fence[24];
    const char *argv[] = {item->claim->token,
                          ttl,
                          item->ttl_ms < item->claim->ttl_ms ? "1" : "0",
                          fence,
                          mend ? "1" : "0",
                          item->claim->note ? item->claim->note : "",
                          item->claim->owner ? item->claim->owner : ""};

    snprintf(ttl, sizeof(ttl), "%" PRId64, item->ttl_ms);
    snprintf(fence, sizeof(fence), "%" PRIu64,
             rl->fenced ? item->grant->fence : 0);
    redlock_step(rl, batch, 'R', item->claim->key, 7, argv);
}

static void renew_count(const redisReply *reply, int node,
                        struct renew_tally *tally)
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

/* Ask all that are there. */
static void renew_ask(struct redlock_conn *rl, const struct redis_batch *batch,
                      size_t n, int64_t ttl_ms, int64_t deadline,
                      struct renew_tally *tallies)
{
    struct redlock_span span = redlock_span(rl, ttl_ms, deadline);
    struct redlock_round round;
    size_t item;
    int i, answered = 0;

    redlock_round_init(&round, rl);
    for (i = 0; i < rl->n; i++)
        if (redlock_node_is_ready(&rl->nodes[i], redlock_limit(rl, ttl_ms)))
            redlock_ask(&round, i, batch, span.end);
    while ((i = redlock_hear(
                &round, answered < rl->majority ? span.late : span.end)) >= 0) {
        answered += round.flights[i].landed;
        for (item = 0; item < n && round.flights[i].landed; item++)
            renew_count(redlock_reply(&round.flights[i], (int)item), i,
                        &tallies[item]);
    }
    redlock_round_fini(&round);
}

/* The verdict on one. */
static void renew_judge(const struct redlock_conn *rl, struct hfi_renewal *item,
                        const struct renew_tally *tally, struct hf_error *err)
{
    int gone = __builtin_popcount(tally->gone);
    int against = gone + tally->stolen + tally->broken;

    if (tally->confirmed >= rl->majority) {
        item->st = HF_OK;
    } else if (rl->n - against < rl->majority) {
        item->st = HF_LOST;
        item->reason = tally->broken                   ? HF_LOSS_BROKEN
                       : gone == against               ? HF_LOSS_DELETED
                       : tally->stolen >= rl->majority ? HF_LOSS_STOLEN
                                                       : HF_LOSS_QUORUM;
    } else {
        item->st = hfi_fail(err, HF_UNAVAILABLE,
                            "%d of %d nodes confirmed it, %d are needed",
                            tally->confirmed, rl->n, rl->majority);
    }
}

static bool renew_wants_mending(const struct redlock_conn *rl,
                                const struct hfi_renewal *item,
                                const struct renew_tally *tally)
{
    return tally->gone && tally->confirmed && item->st != HF_LOST &&
           tally->confirmed + __builtin_popcount(tally->gone) >= rl->majority;
}

static void renew_mend(struct redlock_conn *rl, struct hfi_renewal *items,
                       size_t n, const struct renew_tally *tallies,
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
                renew_wants_mending(rl, &items[item], &tallies[item]))
                renew_say(rl, &batches[i], &items[item], true);
        if (batches[i].count)
            redlock_ask(&round, i, &batches[i], span.end);
    }
    while (redlock_hear(&round, span.end) >= 0)
        continue;
    redlock_round_fini(&round);
    for (i = 0; i < rl->n; i++)
        redis_batch_free(&batches[i]);
}

void redlock_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
                   int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct renew_tally tallies[BATCH_MAX] = {{0}};
    struct redis_batch batch = {0};
    int64_t ttl_ms = INT64_MAX;
    bool mend = false;
    size_t i;

    n = n < BATCH_MAX ? n : BATCH_MAX; /* the core sends no more at once */
    for (i = 0; i < n; i++) {
        ttl_ms = items[i].ttl_ms < ttl_ms ? items[i].ttl_ms : ttl_ms;
        renew_say(rl, &batch, &items[i], false);
    }
    redlock_gather(rl, deadline);
    renew_ask(rl, &batch, n, ttl_ms, deadline, tallies);
    for (i = 0; i < n; i++) {
        renew_judge(rl, &items[i], &tallies[i], err);
        mend = mend || renew_wants_mending(rl, &items[i], &tallies[i]);
    }
    redis_batch_free(&batch);
    if (mend && hfi_left_ms(deadline))
        renew_mend(rl, items, n, tallies, ttl_ms, deadline);
}

hf_status redlock_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_grant *grant, int64_t deadline,
                          struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    int had, had_not;

    redlock_gather(rl, deadline);
    redlock_give_back(rl, claim, (1U << rl->n) - 1, &had, &had_not);
    grant->placed = false;
    if (had >= rl->majority)
        return HF_OK;
    if (rl->n - had_not < rl->majority)
        return hfi_fail(err, HF_LOST,
                        "%s: only %d of %d nodes still had the lock",
                        conn->endpoint, had, rl->n);
    return hfi_fail(err, HF_UNCERTAIN,
                    "%s: %d of %d nodes have given the lock up, the others "
                    "will when they can be reached",
                    conn->endpoint, had, rl->n);
}

hf_status redlock_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
                         const struct hf_handle *handle,
                         struct hfi_grant *grant, struct hf_error *err)
{
    (void)conn;
    (void)claim;
    (void)err;
    grant->fence = handle->fence;
    return HF_OK; /* The renewal that follows tells whether it is there. */
}
