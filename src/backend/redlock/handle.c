/* SPDX-License-Identifier: MIT
 *
 * handle.c - locks that were detached, and who takes them up.
 *
 * A handle is taken up by whoever replaces its token by its own on a majority.
 * Two who try at once share the nodes between them, and two majorities share a
 * node, so at most one succeeds.  Who fails gives the nodes that it has back to
 * the token of the handle.
 *
 * SPLIT  With nodes that do not answer, none of those who try at once may have
 *   a majority.  Each of them sees the tokens of others: all but the one with
 *   the largest give back and say that they have lost, and that one asks again.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/banned.h"

/* What a handle says beside its token: "s" and a number in hex digits. */
#define SHORTER_MARK 's'

void redlock_detach(const struct hfi_receipt *receipt, struct hf_handle *ret)
{
    const struct redlock_grant *own = receipt->own;

    if (own->shorter)
        snprintf(ret->ref, sizeof(ret->ref), "%c%x", SHORTER_MARK,
                 own->shorter);
}

hf_status redlock_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
                         const struct hf_handle *handle,
                         struct hfi_receipt *receipt, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    char digits[9] = "";

    (void)claim;
    (void)err;
    receipt->fence = handle->fence;
    if (handle->ref[0] == SHORTER_MARK) {
        memcpy(digits, handle->ref + 1, sizeof(digits) - 1);
        redlock_own(receipt)->shorter = (unsigned)strtoul(digits, NULL, 16);
    }
    /* The lock may have been mended since the handle was written. */
    redlock_note_add(receipt, (1U << rl->n) - 1);
    return HF_OK; /* The question that follows tells whether it is there. */
}

/* What the nodes said. */
struct handle_tally {
    int answered, ours, over;
    int others;                      /* nodes that somebody else has: */
    const char *rivals[REDLOCK_MAX]; /* their tokens */
};

static void handle_say(struct redlock_conn *rl, struct redis_batch *batch,
                       const char *key, const char *to, const char *from,
                       uint64_t fence)
{
    char number[24];
    const char *argv[] = {to, from, number};

    snprintf(number, sizeof(number), "%" PRIu64, rl->fenced ? fence : 0);
    redlock_step(rl, batch, 'T', key, 3, argv);
}

static void handle_count(const redisReply *reply, struct handle_tally *tally)
{
    const char *rival;
    int64_t said = reply ? redlock_item(reply, 0) : -1;

    if (said < 0)
        return;
    tally->answered++;
    tally->ours += said == 1;
    tally->over += said != 1 && said != 2;
    if (said == 2) {
        rival = reply->elements == 2 ? reply->element[1]->str : NULL;
        tally->rivals[tally->others++] = rival ? rival : "";
    }
}

/* Does one of the others have a majority, or a larger token? */
static bool handle_yields(const struct redlock_conn *rl,
                          const struct hfi_claim *claim,
                          const struct handle_tally *tally)
{
    int i, j, same;

    for (i = 0; i < tally->others; i++) {
        for (j = same = 0; j < tally->others; j++)
            same += !strcmp(tally->rivals[i], tally->rivals[j]);
        if (same >= rl->majority || strcmp(tally->rivals[i], claim->token) > 0)
            return true;
    }
    return false;
}

/* Ask all who are there to replace one token by another. */
static void handle_ask(struct redlock_round *round,
                       const struct redis_batch *batch, int64_t ttl_ms,
                       int64_t deadline, struct handle_tally *tally)
{
    struct redlock_conn *rl = round->rl;
    int64_t limit = redlock_limit(rl, ttl_ms);
    struct redlock_span span = redlock_span(rl, ttl_ms, deadline);
    int i;

    for (i = 0; i < rl->n; i++)
        if (redlock_node_is_ready(&rl->nodes[i], limit))
            redlock_ask(round, i, batch, span.end);
    span = redlock_span(rl, ttl_ms, deadline);
    while ((i = redlock_hear(round, tally->answered < rl->majority
                                        ? span.late
                                        : span.end)) >= 0)
        handle_count(redlock_reply(&round->flights[i], 0), tally);
}

static void handle_give_back(struct redlock_conn *rl,
                             const struct hfi_claim *claim, const char *token,
                             uint64_t fence, int64_t deadline)
{
    struct handle_tally tally = {0};
    struct redis_batch batch = {0};
    struct redlock_round round;

    redlock_round_init(&round, rl);
    handle_say(rl, &batch, claim->key, token, claim->token, fence);
    handle_ask(&round, &batch, claim->ttl_ms, deadline, &tally);
    redlock_round_fini(&round);
    redis_batch_free(&batch);
}

/* HF_OK: it is ours.  HF_LOST: it is not, and what we have is to be given back.
 * HF_UNCERTAIN: ask again. */
static hf_status handle_judge(const struct redlock_conn *rl,
                              const struct hfi_claim *claim,
                              const struct handle_tally *tally)
{
    if (tally->ours >= rl->majority)
        return HF_OK;
    if (rl->n - tally->over < rl->majority)
        return HF_LOST;
    return handle_yields(rl, claim, tally) ? HF_LOST : HF_UNCERTAIN;
}

/* A try of the old token may lie with nodes that have not said that they have
 * replaced it: what they grant then is to be given back. */
static void handle_pending_add(const struct redlock_round *round,
                               const struct hfi_claim *claim, const char *token)
{
    struct hfi_claim old = *claim;
    int i;

    snprintf(old.token, sizeof(old.token), "%s", token);
    for (i = 0; claim->doubt && i < round->rl->n; i++)
        if (!round->flights[i].landed)
            redlock_pending_add(&round->rl->nodes[i], &old, REDLOCK_RELEASE,
                                true);
}

hf_status redlock_take_over(struct hfi_conn *conn,
                            const struct hfi_claim *claim, const char *token,
                            struct hfi_receipt *receipt, int64_t deadline,
                            struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct handle_tally tally = {0};
    struct redis_batch batch = {0};
    struct redlock_round round;
    hf_status st = redlock_check_ttl(rl, claim->ttl_ms, err);

    if (st)
        return st;
    redlock_round_init(&round, rl);
    handle_say(rl, &batch, claim->key, claim->token, token, receipt->fence);
    redlock_gather(rl, deadline);
    handle_ask(&round, &batch, claim->ttl_ms, deadline, &tally);
    st = handle_judge(rl, claim, &tally);
    if (!st) {
        handle_pending_add(&round, claim, token);
    } else if (st == HF_LOST) {
        hfi_fail(err, st, "%s: the lock is gone, or somebody else took it up",
                 conn->endpoint);
    } else {
        st = redlock_too_few(&round, tally.answered, 0, err);
        if (tally.answered)
            st = hfi_restate(err, HF_UNCERTAIN);
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    if (st == HF_LOST && tally.ours)
        handle_give_back(rl, claim, token, receipt->fence, deadline);
    return st;
}
