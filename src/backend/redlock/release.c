/* SPDX-License-Identifier: MIT
 *
 * release.c - giving back a grant, or what a failed try may have taken.
 *
 * A release goes to every node that may have the key, and is written down for
 * each before it is sent, until the node has answered (pending_release.c).  It
 * succeeds when a majority had the lock, and not as one that was broken; it is
 * lost when so many had not that there was no majority; anything else is
 * uncertain, and goes on by itself.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/banned.h"

#define GIVE_WAYS (2 * REDLOCK_DOOR)

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
                       unsigned how, uint64_t limit)
{
    leave->argv[0] = token;
    leave->argv[1] = leave->how;
    leave->argv[2] = leave->number;
    leave->argc = limit == REDLOCK_RELEASE ? 2 : 3;
    snprintf(leave->how, sizeof(leave->how), "%s%s%s",
             how & REDLOCK_TELL ? "t" : "", how & REDLOCK_LINE ? "q" : "",
             how & REDLOCK_DOOR ? "d" : "");
    snprintf(leave->number, sizeof(leave->number), "%" PRIu64, limit);
}

/* How to say it to one of the nodes: only the one with the line tells, where it
 * is known which that is. */
static unsigned give_how(const struct redlock_give *give, int node, int line)
{
    unsigned how = 0;

    if (give->limit == REDLOCK_RELEASE &&
        (line < 0 || line == node || give->aloud))
        how |= REDLOCK_TELL;
    if (give->lines & 1U << node)
        how |= REDLOCK_LINE;
    return give->door ? how | REDLOCK_DOOR : how;
}

/* Whether a release was one is told by a majority that had the lock, or by so
 * many that had it not that there was none. */
static bool give_is_decided(const struct redlock_conn *rl, int asked, int had,
                            int had_not)
{
    return had >= rl->majority || asked - had_not < rl->majority;
}

/* Say it to each of the nodes, in as few batches as there are ways to. */
static void give_ask(struct redlock_round *round, const struct hfi_claim *claim,
                     const struct redlock_give *give, int line,
                     struct redis_batch batches[GIVE_WAYS], int64_t deadline)
{
    struct redlock_conn *rl = round->rl;
    struct redlock_leave leave;
    int i;

    for (i = 0; i < rl->n; i++) {
        unsigned how = give_how(give, i, line);

        if (!(give->nodes & 1U << i))
            continue;
        redlock_leave_say(&leave, claim->token, how, give->limit);
        if (!batches[how].count)
            redlock_step(rl, &batches[how], 'L', claim->key, leave.argc,
                         leave.argv);
        redlock_pending_add(&rl->nodes[i], claim, give->limit, how,
                            claim->doubt || give->doubt & 1U << i);
        redlock_ask(round, i, &batches[how], deadline);
    }
}

/* The node that was to tell of the release had nobody in line, or has not
 * answered: those who wait may hear other nodes only. */
static void give_tell(struct redlock_conn *rl, const struct hfi_claim *claim,
                      const struct redlock_give *give, int line)
{
    char word[HFI_TOKEN_LEN + 2];

    redlock_line_is_over(rl, claim->key);
    snprintf(word, sizeof(word), "-%s", claim->token);
    redlock_tell(rl, claim, give->nodes & ~(1U << line), word, HFI_NEVER);
}

int redlock_give_back(struct redlock_conn *rl, const struct hfi_claim *claim,
                      struct redlock_give *give, int64_t deadline)
{
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, deadline);
    bool release = give->limit == REDLOCK_RELEASE;
    struct redis_batch batches[GIVE_WAYS] = {0};
    int i, asked = __builtin_popcount(give->nodes), silent = asked;
    int line = redlock_line(rl, claim->key, hfi_now());
    bool told = line < 0 || !release || give->aloud;
    struct redlock_round round;
    const redisReply *reply;
    bool had;

    redlock_round_init(&round, rl);
    give_ask(&round, claim, give, line, batches, span.end);
    span = redlock_span(rl, claim->ttl_ms, deadline);
    while ((i = redlock_hear(
                &round,
                release && !give_is_decided(rl, asked, give->had, give->had_not)
                    ? span.late
                    : span.end)) >= 0) {
        reply = redlock_reply(&round.calls[i], 0);
        if (!reply || reply->type != REDIS_REPLY_INTEGER)
            continue;
        redlock_pending_drop(&rl->nodes[i], claim);
        silent--;
        had = reply->integer == 1 || reply->integer == 2;
        give->had += had;
        give->had_not += !had;
        if (reply->integer && reply->integer % 2 == 0) { /* One is in line. */
            redlock_line_is(rl, claim->key, i, hfi_now());
            told = true;
        }
    }
    redlock_round_fini(&round);
    for (i = 0; i < GIVE_WAYS; i++)
        redis_batch_free(&batches[i]);
    if (!told)
        give_tell(rl, claim, give, line);
    return silent;
}

hf_status redlock_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, int64_t deadline,
                          struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    const struct redlock_grant *own = receipt->own;
    struct redlock_give give = {.nodes = redlock_note_nodes(rl, receipt),
                                .doubt = redlock_note_doubt(receipt, 0),
                                .lines = own->lines,
                                .door = own->door,
                                .aloud = own->door ||
                                         (own->lines && !receipt->fence),
                                .limit = REDLOCK_RELEASE};

    redlock_await_majority(rl, deadline);
    redlock_give_back(rl, claim, &give, deadline);
    receipt->registered = false;
    if (give.had >= rl->majority)
        return HF_OK;
    if (__builtin_popcount(give.nodes) - give.had_not < rl->majority)
        return hfi_fail(err, HF_LOST,
                        "%s: only %d of %d nodes still had the lock",
                        conn->endpoint, give.had, rl->n);
    return hfi_fail(err, HF_UNCERTAIN,
                    "%s: %d of %d nodes have given the lock up, the others "
                    "will when they can be reached",
                    conn->endpoint, give.had, rl->n);
}
