/* SPDX-License-Identifier: MIT
 *
 * redlock_take.c - taking: votes, the fence, and taking back.  The rules and
 * why they hold are in redlock.c.
 */
#include "redlock.h"

#include <inttypes.h>

#include "../lease.h"

#include "../banned.h"

/* What the nodes said. */
struct take_votes {
    int yes, no, failed; /* failed: with an error of its own */
    unsigned asked;      /* the set of nodes that may have it now */
    uint64_t fence;      /* the largest proposal */
    uint64_t own;        /* a fence of this claim that was confirmed before */
    int own_count;       /* on so many nodes */
    int64_t left[REDLOCK_MAX]; /* of the other holder, on each that said no */
};

static void take_batch(struct redlock_conn *rl, struct redis_batch *batch,
                       const struct hfi_claim *claim)
{
    char ttl[24];
    const char *argv[] = {claim->token, ttl, rl->fenced ? "1" : "0",
                          claim->note ? claim->note : "",
                          claim->owner ? claim->owner : ""};

    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    redlock_step(rl, batch, 'A', claim->key, 5, argv);
}

/* Ask every node that may vote and has not been asked. */
static void take_ask(struct redlock_round *round, const struct hfi_claim *claim,
                     const struct redis_batch *batch, struct take_votes *votes,
                     int64_t deadline)
{
    struct redlock_conn *rl = round->rl;
    int64_t limit = redlock_limit(rl, claim->ttl_ms);
    int i;

    for (i = 0; i < rl->n; i++) {
        struct redlock_node *node = &rl->nodes[i];
        bool owed;

        if (round->flights[i].asked || !redlock_node_is_ready(node, limit) ||
            !redlock_node_may_vote(node, claim->ttl_ms))
            continue;
        owed = redlock_owe_not(node, claim);
        redlock_ask(round, i, batch, deadline);
        if (round->flights[i].asked)
            votes->asked |= 1U << i;
        else if (owed)
            redlock_owe(node, claim);
    }
}

/* {1, proposal, own} or {0, ms left}. */
static void take_count(struct redlock_round *round, int node,
                       struct take_votes *votes)
{
    struct redlock_flight *flight = &round->flights[node];
    const redisReply *reply = redlock_reply(flight, 0);
    int64_t fence, own;

    if (!reply) {
        votes->failed++;
    } else if (reply->type == REDIS_REPLY_ERROR) {
        flight->st =
            redis_error(&round->rl->nodes[node].rc, reply, &flight->err);
        votes->failed++;
    } else if (redlock_item(reply, 0) == 1) {
        fence = redlock_item(reply, 1);
        own = redlock_item(reply, 2);
        votes->yes++;
        if (fence > 0 && (uint64_t)fence > votes->fence)
            votes->fence = (uint64_t)fence;
        if (own > 0 && (uint64_t)own == votes->own)
            votes->own_count++;
        if (own > 0 && (uint64_t)own > votes->own) {
            votes->own = (uint64_t)own;
            votes->own_count = 1;
        }
    } else {
        votes->left[votes->no++] = redlock_item(reply, 1);
        votes->asked &= ~(1U << node);
    }
}

/* Hear until it is known who has the majority, or that nobody can tell. */
static void take_hear(struct redlock_round *round, struct take_votes *votes,
                      const struct redlock_span *span)
{
    int node, majority = round->rl->majority;
    bool open; /* It may still become ours. */

    while (votes->yes < majority) {
        open = votes->yes + round->waiting >= majority;
        if (!open && votes->yes + votes->no >= majority)
            return;
        node = redlock_hear(round, open ? span->late : span->end);
        if (node < 0)
            return;
        take_count(round, node, votes);
    }
}

/* Write the fence to a majority before anybody learns of it.  redlock.c (4) */
static int take_confirm(struct redlock_conn *rl, const struct hfi_claim *claim,
                        const struct take_votes *votes, int64_t deadline)
{
    struct redlock_round round;
    struct redis_batch batch = {0};
    char fence[24];
    const char *argv[] = {claim->token, fence};
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, deadline);
    const redisReply *reply;
    int i, yes = 0;

    snprintf(fence, sizeof(fence), "%" PRIu64, votes->fence);
    redlock_round_init(&round, rl);
    redlock_step(rl, &batch, 'W', claim->key, 2, argv);
    for (i = 0; i < rl->n; i++)
        if (votes->asked & 1U << i)
            redlock_ask(&round, i, &batch, span.end);
    while (yes < rl->majority && yes + round.waiting >= rl->majority) {
        i = redlock_hear(&round, span.late);
        if (i < 0)
            break;
        reply = redlock_reply(&round.flights[i], 0);
        yes +=
            reply && reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return yes;
}

/* When enough of those who said no will be free again. */
static int64_t take_left(const struct redlock_conn *rl,
                         const struct take_votes *votes)
{
    int64_t best = 0;
    int i, j, sooner;

    for (i = 0; i < votes->no; i++) {
        for (j = sooner = 0; j < votes->no; j++)
            sooner += votes->left[j] <= votes->left[i];
        if (votes->yes + sooner >= rl->majority && votes->left[i] > 0 &&
            (!best || votes->left[i] < best))
            best = votes->left[i];
    }
    return best;
}

/* Not enough said yes: why? */
static hf_status take_verdict(struct redlock_round *round,
                              const struct hfi_claim *claim,
                              const struct take_votes *votes,
                              struct hfi_busy *busy, struct hf_error *err)
{
    struct redlock_conn *rl = round->rl;

    if (votes->yes >= rl->majority)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "the fence could not be written to %d of %d nodes",
                        rl->majority, rl->n);
    if (votes->no && votes->yes + votes->no >= rl->majority) {
        busy->left_ms = take_left(rl, votes);
        return hfi_fail(err, HF_BUSY, "%d of %d nodes have another holder",
                        votes->no, rl->n);
    }
    return redlock_too_few(round, votes->yes + votes->no, claim->ttl_ms, err);
}

/* One question, from which a grant may come; the round tells why if not. */
static bool take_vote(struct redlock_round *round,
                      const struct hfi_claim *claim,
                      const struct redis_batch *batch, struct take_votes *votes,
                      int64_t deadline)
{
    struct redlock_conn *rl = round->rl;
    struct redlock_span span;

    redlock_gather(rl, deadline);
    span = redlock_span(rl, claim->ttl_ms, deadline);
    take_ask(round, claim, batch, votes, span.end);
    if (round->waiting < rl->majority) { /* Some had closed unnoticed. */
        redlock_gather(rl, deadline);
        span = redlock_span(rl, claim->ttl_ms, deadline);
        take_ask(round, claim, batch, votes, span.end);
    }
    take_hear(round, votes, &span);
    if (votes->yes < rl->majority)
        return false;
    if (!rl->fenced)
        return true;
    if (votes->own_count >= rl->majority) { /* It was granted before. */
        votes->fence = votes->own;
        return true;
    }
    return take_confirm(rl, claim, votes, deadline) >= rl->majority;
}

hf_status redlock_try_acquire(struct hfi_conn *conn,
                              const struct hfi_claim *claim,
                              struct hfi_grant *grant, struct hfi_busy *busy,
                              int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct take_votes votes = {0};
    struct redis_batch batch = {0};
    struct redlock_round round;
    int had, had_not;
    hf_status st = HF_OK;

    redlock_round_init(&round, rl);
    take_batch(rl, &batch, claim);
    if (take_vote(&round, claim, &batch, &votes, deadline)) {
        grant->fence = votes.fence;
        grant->placed = true;
    } else {
        st = take_verdict(&round, claim, &votes, busy, err);
        grant->placed = false;
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    if (st && redlock_give_back(rl, claim, votes.asked, &had, &had_not) &&
        st == HF_UNAVAILABLE)
        st = hfi_restate(err, HF_UNCERTAIN);
    return st;
}

int redlock_give_back(struct redlock_conn *rl, const struct hfi_claim *claim,
                      unsigned nodes, int *had, int *had_not)
{
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, HFI_NEVER);
    const char *argv[] = {claim->token};
    struct redis_batch batch = {0};
    struct redlock_round round;
    const redisReply *reply;
    unsigned answered = 0;
    int i;

    *had = *had_not = 0;
    redlock_round_init(&round, rl);
    redlock_step(rl, &batch, 'L', claim->key, 1, argv);
    for (i = 0; i < rl->n; i++)
        if (nodes & 1U << i)
            redlock_ask(&round, i, &batch, span.end);
    while ((i = redlock_hear(&round, *had + *had_not < rl->majority
                                         ? span.late
                                         : span.end)) >= 0) {
        reply = redlock_reply(&round.flights[i], 0);
        if (!reply || reply->type != REDIS_REPLY_INTEGER)
            continue;
        answered |= 1U << i;
        *had += reply->integer == 1;
        *had_not += reply->integer != 1;
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    nodes &= ~answered;
    for (i = 0; i < rl->n; i++)
        if (nodes & 1U << i)
            redlock_owe(&rl->nodes[i], claim);
    return __builtin_popcount(nodes);
}
