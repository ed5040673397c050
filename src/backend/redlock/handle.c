/* SPDX-License-Identifier: MIT
 *
 * handle.c - locks that were detached, and how one is taken up: attach and
 * take_over.
 *
 * A handle is taken up by the claim that replaces its token by its own on a
 * majority.  Two that try at once share the nodes between them, and two
 * majorities share a node, so at most one succeeds.
 *
 * RESTART  A node that was restarted may have the token of the handle again
 *   although it was replaced: its disk may be older than that.  So it may not
 *   vote here either while it is in quarantine.
 *
 * LOST  is said only if it is known: another token has a majority, or so many
 *   nodes have no such grant that no majority can have it.  Then nothing of the
 *   claim is left: it is released where it may have arrived.
 *
 * SPLIT  Where nodes do not answer, or have the token of somebody who died,
 *   none of those that try at once may have a majority, and nobody has lost.  A
 *   claim that sees a larger token gives the nodes that it has back to the
 *   token of the handle and asks again later; the one with the largest token
 *   keeps what it has and asks again.
 *
 * LATE  What gives a node back may arrive after a later question, and would
 *   take the node from a claim that holds.  So a claim of which a node has not
 *   answered everything before it yielded never asks for the lock again.  It
 *   only looks whether somebody else has it.
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

/* `token` is that of the handle. */
static void handle_say(struct redlock_conn *rl, struct redis_batch *batch,
                       const struct hfi_claim *claim, const char *to,
                       const char *from, const char *token, uint64_t fence)
{
    char number[24];
    const char *argv[] = {to, from, number, "1", token};

    snprintf(number, sizeof(number), "%" PRIu64, rl->fenced ? fence : 0);
    redlock_step(rl, batch, 'T', claim->key, claim->shared ? 5 : 3, argv);
}

/* `token` is that of the handle: a node that has it has nobody else's. */
static void handle_count(const redisReply *reply, const char *token,
                         struct handle_tally *tally)
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
        if (!rival || strcmp(rival, token) != 0)
            tally->rivals[tally->others++] = rival ? rival : "";
    }
}

enum handle_verdict {
    HANDLE_OURS,
    HANDLE_LOST,
    HANDLE_YIELD, /* not known, and others come first */
    HANDLE_AGAIN  /* not known */
};

static enum handle_verdict handle_judge(const struct redlock_conn *rl,
                                        const struct hfi_claim *claim,
                                        const struct handle_tally *tally)
{
    enum handle_verdict verdict = HANDLE_AGAIN;
    int i, j, same;

    if (tally->ours >= rl->majority)
        return HANDLE_OURS;
    if (rl->n - tally->over < rl->majority)
        return HANDLE_LOST;
    for (i = 0; i < tally->others; i++) {
        for (j = same = 0; j < tally->others; j++)
            same += !strcmp(tally->rivals[i], tally->rivals[j]);
        if (same >= rl->majority)
            return HANDLE_LOST;
        if (strcmp(tally->rivals[i], claim->token) > 0)
            verdict = HANDLE_YIELD;
    }
    return verdict;
}

/* Ask all who may vote to replace one token by another.  `all`: also those who
 * may not, or have not answered for long, since they are to be served that
 * next. */
static void handle_ask(struct redlock_round *round,
                       const struct redis_batch *batch, const char *token,
                       bool all, int64_t ttl_ms, int64_t deadline,
                       struct handle_tally *tally)
{
    struct redlock_conn *rl = round->rl;
    int64_t limit = redlock_limit(rl, ttl_ms);
    struct redlock_span span = redlock_span(rl, ttl_ms, deadline);
    int i;

    for (i = 0; i < rl->n; i++)
        if (all || (redlock_node_is_ready(&rl->nodes[i], limit) &&
                    !redlock_quarantine_left(&rl->nodes[i])))
            redlock_ask(round, i, batch, span.end);
    span = redlock_span(rl, ttl_ms, deadline);
    while ((i = redlock_hear(round, tally->answered < rl->majority
                                        ? span.late
                                        : span.end)) >= 0)
        handle_count(redlock_reply(&round->calls[i], 0), token, tally);
}

/* Give what we have to the token of the handle again.  True if nothing that was
 * ever said to a node of the claim can still arrive there. */
static bool handle_yield(struct redlock_conn *rl, const struct hfi_claim *claim,
                         const char *token, struct hfi_receipt *receipt,
                         unsigned asked, int64_t deadline)
{
    struct handle_tally tally = {0};
    struct redis_batch batch = {0};
    struct redlock_round round;
    unsigned heard = 0;
    int i;

    redlock_round_init(&round, rl);
    handle_say(rl, &batch, claim, token, claim->token, token, receipt->fence);
    handle_ask(&round, &batch, token, true, claim->ttl_ms, deadline, &tally);
    for (i = 0; i < rl->n; i++)
        if (redlock_reply(&round.calls[i], 0))
            heard |= 1U << i;
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return !(asked & ~heard) && !redlock_note_doubt(receipt, 0);
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
        if (!round->calls[i].landed)
            redlock_pending_add(&round->rl->nodes[i], &old, REDLOCK_RELEASE,
                                REDLOCK_TELL, true);
}

/* It is lost: nothing of the claim may be left on the nodes. */
static void handle_undo(struct redlock_conn *rl, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt, int64_t deadline)
{
    struct redlock_give give = {.nodes = (1U << rl->n) - 1,
                                .doubt = redlock_note_doubt(receipt, 0),
                                .limit = REDLOCK_RELEASE};

    redlock_give_back(rl, claim, &give, deadline);
}

/* Neither ours nor lost.  HF_UNAVAILABLE if nothing was done by it, and nothing
 * will be. */
static hf_status handle_unknown(struct redlock_round *round,
                                const struct hfi_claim *claim,
                                const char *token, struct hfi_receipt *receipt,
                                const struct handle_tally *tally, bool yields,
                                int64_t deadline, struct hf_error *err)
{
    bool *yielded = &redlock_own(receipt)->yielded;
    unsigned asked = 0;
    bool done = false;
    int i;

    redlock_too_few(round, tally->answered, claim->ttl_ms, err);
    for (i = 0; i < round->rl->n; i++)
        asked |= (unsigned)round->calls[i].asked << i;
    if (yields && !*yielded) {
        hfi_fail(err, HF_UNAVAILABLE,
                 "%s: others take the lock up, or did not finish that",
                 round->rl->base.endpoint);
        done = handle_yield(round->rl, claim, token, receipt, asked, deadline);
        *yielded = !done;
    }
    done = done || !(asked | redlock_note_doubt(receipt, 0));
    return hfi_restate(err, done ? HF_UNAVAILABLE : HF_UNCERTAIN);
}

hf_status redlock_take_over(struct hfi_conn *conn,
                            const struct hfi_claim *claim, const char *token,
                            struct hfi_receipt *receipt, int64_t deadline,
                            struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    bool looks = redlock_own(receipt)->yielded;
    struct handle_tally tally = {0};
    struct redis_batch batch = {0};
    struct redlock_round round;
    enum handle_verdict verdict;
    hf_status st = redlock_check_ttl(rl, claim->ttl_ms, err);

    if (st)
        return st;
    redlock_round_init(&round, rl);
    handle_say(rl, &batch, claim, claim->token, looks ? "" : token, token,
               receipt->fence);
    redlock_await_majority(rl, deadline);
    redlock_quarantine_settle(rl, deadline);
    handle_ask(&round, &batch, token, false, claim->ttl_ms, deadline, &tally);
    redlock_note_doubt(receipt, redlock_silent(&round));
    verdict = handle_judge(rl, claim, &tally);
    if (verdict == HANDLE_OURS && !looks) {
        handle_pending_add(&round, claim, token);
    } else if (verdict == HANDLE_LOST) {
        st = hfi_fail(err, HF_LOST,
                      "%s: the lock is gone, or somebody else took it up",
                      conn->endpoint);
        if (tally.ours || redlock_note_doubt(receipt, 0))
            handle_undo(rl, claim, receipt, deadline);
    } else {
        st = handle_unknown(&round, claim, token, receipt, &tally,
                            verdict == HANDLE_YIELD, deadline, err);
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return st;
}
