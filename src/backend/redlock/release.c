/* SPDX-License-Identifier: MIT
 *
 * release.c - giving back a grant, or what a failed try may have taken.
 *
 * A release goes to every node that may have the key, and is written down for
 * each before it is sent, until the node has answered (pending_release.c).  It
 * succeeds when a majority had the lock; it is lost when so many had not that
 * there was no majority; anything else is uncertain, and goes on by itself.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/banned.h"

/* ---- on which nodes a grant may be ------------------------------------- */

unsigned redlock_note_nodes(const struct redlock_conn *rl,
                            const struct hfi_receipt *receipt)
{
    const struct redlock_grant *own = receipt->own;
    unsigned all = (1U << rl->n) - 1;

    return own->nodes ? own->nodes & all : all;
}

void redlock_note_add(struct hfi_receipt *receipt, unsigned nodes)
{
    struct redlock_grant *own = receipt->own;

    own->nodes |= nodes;
}

unsigned redlock_note_doubt(struct hfi_receipt *receipt, unsigned more)
{
    struct redlock_grant *own = receipt->own;

    own->doubt |= more;
    return own->doubt;
}

/* ---- giving back ------------------------------------------------------- */

void redlock_leave_say(struct redlock_leave *leave, const char *token,
                       bool tell, uint64_t limit)
{
    leave->argv[0] = token;
    leave->argv[1] = !tell ? "0" : limit == REDLOCK_WITHDRAW ? "2" : "1";
    leave->argv[2] = leave->number;
    leave->argc = limit >= REDLOCK_RELEASE ? 2 : 3;
    snprintf(leave->number, sizeof(leave->number), "%" PRIu64, limit);
}

/* Whether a release was one is told by a majority that had the lock, or by so
 * many that had it not that there was none. */
static bool give_is_decided(const struct redlock_conn *rl, int asked, int had,
                            int had_not)
{
    return had >= rl->majority || asked - had_not < rl->majority;
}

int redlock_give_back(struct redlock_conn *rl, const struct hfi_claim *claim,
                      unsigned nodes, unsigned doubt, uint64_t limit,
                      int64_t deadline, int *had, int *had_not)
{
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, deadline);
    bool release = limit >= REDLOCK_RELEASE;
    struct redlock_leave leave;
    struct redis_batch batch = {0};
    struct redlock_round round;
    const redisReply *reply;
    int i, asked = __builtin_popcount(nodes);

    *had = *had_not = 0;
    redlock_round_init(&round, rl);
    redlock_leave_say(&leave, claim->token, release, limit);
    redlock_step(rl, &batch, 'L', claim->key, leave.argc, leave.argv);
    for (i = 0; i < rl->n; i++)
        if (nodes & 1U << i) {
            redlock_pending_add(&rl->nodes[i], claim, limit,
                                claim->doubt || doubt & 1U << i);
            redlock_ask(&round, i, &batch, span.end);
        }
    span = redlock_span(rl, claim->ttl_ms, deadline);
    while ((i = redlock_hear(
                &round, release && !give_is_decided(rl, asked, *had, *had_not)
                            ? span.late
                            : span.end)) >= 0) {
        reply = redlock_reply(&round.calls[i], 0);
        if (!reply || reply->type != REDIS_REPLY_INTEGER)
            continue;
        redlock_pending_drop(&rl->nodes[i], claim);
        nodes &= ~(1U << i);
        *had += reply->integer == 1;
        *had_not += reply->integer != 1;
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return __builtin_popcount(nodes);
}

hf_status redlock_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, int64_t deadline,
                          struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    unsigned nodes = redlock_note_nodes(rl, receipt);
    int had, had_not;

    redlock_await_majority(rl, deadline);
    redlock_give_back(rl, claim, nodes, redlock_note_doubt(receipt, 0),
                      redlock_own(receipt)->door ? REDLOCK_WITHDRAW
                                                 : REDLOCK_RELEASE,
                      deadline, &had, &had_not);
    receipt->registered = false;
    if (had >= rl->majority)
        return HF_OK;
    if (__builtin_popcount(nodes) - had_not < rl->majority)
        return hfi_fail(err, HF_LOST,
                        "%s: only %d of %d nodes still had the lock",
                        conn->endpoint, had, rl->n);
    return hfi_fail(err, HF_UNCERTAIN,
                    "%s: %d of %d nodes have given the lock up, the others "
                    "will when they can be reached",
                    conn->endpoint, had, rl->n);
}
