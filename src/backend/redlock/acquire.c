/* SPDX-License-Identifier: MIT
 *
 * acquire.c - taking: votes, the fence, and taking back what failed.  The rules
 * and why they hold are in redlock.c.
 *
 * GATE  Who has been in a split asks one node first, the same as the others do,
 *   and goes on to the rest if it says yes.  So mostly one of them does, and
 *   the others take nothing that it needs.  A client that is refused there asks
 *   again soon, and goes on if the same holder is still there: it may have the
 *   lock, and it may have been forgotten on that node alone.
 */
#include "take.h"

#include <inttypes.h>

#include "base/lease.h"

#include "base/banned.h"

/* How long a writer that waits keeps new readers out: three times as long as it
 * takes to ask again (busy.c). */
#define DOOR_MS (3 * REDLOCK_DOOR_ASK_MS)

/* How many fences a reader tries to have confirmed, one after the other. */
#define FENCE_TRIES 5

/* Numbers are exact in Lua below 2^53. */
#define FENCE_MAX INT64_C(9000000000000000)

/* ---- asking ------------------------------------------------------------ */

/* The parts of an answer, in plain replies or in that of the script.  Who does
 * not need the later ones does not ask for them. */
enum { PART_VALUE, PART_META, PART_TIME, PART_LEFT, PART_OWN };

/* Whoever lets the key linger is told, once, that we wait. */
static void take_call_out(const struct redlock_take *take,
                          struct redis_batch *batch)
{
    char channel[REDIS_NAME_MAX], id[24];
    const char *publish[] = {"PUBLISH", channel, id};

    if (take->watched != REDLOCK_WATCHED_NEW)
        return;
    redlock_channel(take->rl, take->claim->key, channel, sizeof(channel));
    snprintf(id, sizeof(id), "?%s", take->rl->id);
    redis_batch_add(batch, 3, publish);
}

static void take_say(struct redlock_take *take)
{
    const struct hfi_claim *claim = take->claim;
    char ttl[24];
    struct redis_names names;
    const char *set[] = {
        "SET", names.text[REDIS_MAIN], claim->token, "NX", "PX", ttl, "GET"};
    const char *meta[] = {"HMGET", names.text[REDIS_META], "c", "k"};
    const char *clock[] = {"TIME"};
    const char *left[] = {"PTTL", names.text[REDIS_MAIN]};

    redlock_name(take->rl, claim->key, &names);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    redis_batch_add(&take->plain, 7, set);
    if (take->fenced || claim->queue) {
        redis_batch_add(&take->plain, 4, meta);
        redis_batch_add(&take->plain, 1, clock);
    }
    if (claim->queue)
        redis_batch_add(&take->plain, 2, left);
    take_call_out(take, &take->plain);
}

static const struct redis_batch *take_script(struct redlock_take *take)
{
    const struct hfi_claim *claim = take->claim;
    char ttl[24], door[24];
    const char *argv[] = {claim->token, ttl, door};

    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    snprintf(door, sizeof(door), "%" PRId64, DOOR_MS + claim->poll_ms);
    if (!take->script.count) {
        redlock_step(take->rl, &take->script, claim->shared ? 'S' : 'A',
                     claim->key, take->door ? 3 : 2, argv);
        take_call_out(take, &take->script);
    }
    return &take->script;
}

/* Plain commands are cheapest for the server, but they are four; who waits and
 * looks again, most likely for nothing, sends one. */
static const struct redis_batch *take_batch(struct redlock_take *take,
                                            struct redlock_node *node)
{
    if (take->watched == REDLOCK_WATCHED_TOLD || take->claim->shared ||
        take->door || !atomic_load(&node->native))
        return take_script(take);
    return &take->plain;
}

/* Ask the nodes that may vote and have not been asked, so many of them at most;
 * how many were. */
static int take_ask(struct redlock_take *take, int most, int64_t deadline)
{
    const struct hfi_claim *claim = take->claim;
    struct redlock_conn *rl = take->rl;
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, deadline);
    int64_t limit = redlock_limit(rl, claim->ttl_ms);
    int i, n = 0;

    for (i = 0; i < rl->n && n < most; i++) {
        struct redlock_node *node = &rl->nodes[i];
        bool owed;

        if (take->reached & 1U << i || !redlock_node_is_ready(node, limit) ||
            redlock_quarantine_left(node))
            continue;
        owed = redlock_pending_drop(node, claim);
        redlock_ask(&take->round, i, take_batch(take, node), span.end);
        if (take->round.calls[i].asked) {
            take->asked |= 1U << i;
            take->reached |= 1U << i;
            n++;
        } else if (owed) { /* Without a grant, any limit will do. */
            redlock_pending_add(node, claim, take->floor ? take->floor - 1 : 0,
                                true);
        }
    }
    return n;
}

/* ---- counting ---------------------------------------------------------- */

static const redisReply *take_part(struct redlock_take *take, int node,
                                   int part)
{
    const struct redlock_node_call *node_call = &take->round.calls[node];
    const redisReply *reply;

    if (node_call->batch == &take->plain)
        return part < node_call->batch->count ? redlock_reply(node_call, part)
                                              : NULL;
    reply = redlock_reply(node_call, 0);
    if (!reply || reply->type != REDIS_REPLY_ARRAY)
        return part == PART_VALUE ? reply : NULL;
    return (size_t)part < reply->elements ? reply->element[part] : NULL;
}

/* What the node proposes, and what it has confirmed for this claim; false if
 * that cannot be read. */
static bool take_numbers(struct redlock_take *take, int node, bool own,
                         uint64_t *proposal, uint64_t *confirmed)
{
    const redisReply *meta = take_part(take, node, PART_META);
    const redisReply *now = take_part(take, node, PART_TIME);
    const redisReply *mine = take_part(take, node, PART_OWN);
    const redisReply *k;
    int64_t c, s, us, had = 0;

    *proposal = *confirmed = 0;
    if (!take->fenced)
        return true;
    if (!meta || !now || meta->type != REDIS_REPLY_ARRAY || meta->elements != 2)
        return false;
    s = redlock_item(now, 0);
    us = redlock_item(now, 1);
    c = redlock_item(meta, 0);
    k = meta->element[1];
    if (s <= 0 || s >= FENCE_MAX / 1000000 || us < 0 || us > 999999 ||
        c >= FENCE_MAX)
        return false;
    *proposal =
        redlock_proposal(c > 0 ? (uint64_t)c : 0, (uint64_t)(s * 1000000 + us));
    if (*proposal < take->floor)
        *proposal = take->floor;
    if (take->claim->shared)
        had = mine && mine->type == REDIS_REPLY_STRING
                  ? strtoll(mine->str, NULL, 10)
                  : 0;
    else if (k->type == REDIS_REPLY_STRING &&
             !strcmp(k->str, take->claim->token))
        had = c;
    if (own && had > 0 && had < FENCE_MAX && (uint64_t)had >= take->floor)
        *confirmed = (uint64_t)had;
    return true;
}

static void take_no(struct redlock_take *take, int node,
                    const redisReply *value)
{
    const redisReply *meta = take_part(take, node, PART_META);
    const redisReply *left = take_part(take, node, PART_LEFT);
    const redisReply *k = NULL;

    redlock_vote_no(&take->votes, node);
    take->asked &= ~(1U << node);
    take->holder[node] = value->str;
    if (left && left->type == REDIS_REPLY_INTEGER && left->integer >= 0)
        take->left[node] = left->integer ? left->integer : 1;
    if (meta && meta->type == REDIS_REPLY_ARRAY && meta->elements == 2)
        k = meta->element[1];
    if (!k || k->type != REDIS_REPLY_STRING || strcmp(k->str, value->str) != 0)
        take->strange |= 1U << node;
}

/* A node has answered, or failed to. */
static void take_count(struct redlock_take *take, int node, int64_t deadline)
{
    struct redlock_node_call *node_call = &take->round.calls[node];
    const redisReply *value = take_part(take, node, PART_VALUE);
    struct redis_conn *rc = &take->rl->nodes[node].rc;
    uint64_t proposal, confirmed;
    bool own;

    if (!value)
        return;
    if (value->type == REDIS_REPLY_ERROR) {
        node_call->st = redis_error(rc, value, &node_call->err);
        return;
    }
    own = value->type == REDIS_REPLY_STRING &&
          !strcmp(value->str, take->claim->token);
    if (value->type == REDIS_REPLY_STRING && !own) {
        take_no(take, node, value);
    } else if (own && node_call->batch == &take->plain) {
        /* An earlier try's, which SET has not extended. */
        redlock_ask_again(&take->round, node, take_script(take), deadline);
    } else if ((!own && value->type != REDIS_REPLY_NIL) ||
               !take_numbers(take, node, own, &proposal, &confirmed)) {
        node_call->st = redis_bad_reply(rc, &node_call->err);
    } else {
        redlock_vote_yes(&take->votes, node, proposal, confirmed);
    }
}

/* Hear until it is known who has the majority, or that nobody can tell.  Where
 * others have it, hear the rest, too: whether one of them has a majority, and
 * who need not be asked to give back. */
static enum redlock_verdict take_hear(struct redlock_take *take,
                                      int64_t deadline)
{
    struct redlock_span span =
        redlock_span(take->rl, take->claim->ttl_ms, deadline);
    enum redlock_verdict verdict;
    int node;

    while ((verdict = redlock_verdict(&take->votes, take->round.waiting)) ==
               REDLOCK_OPEN ||
           verdict == REDLOCK_BEATEN) {
        node = redlock_hear(&take->round,
                            verdict == REDLOCK_OPEN ? span.late : span.end);
        if (node < 0)
            return redlock_verdict(&take->votes, 0);
        take_count(take, node, span.end);
    }
    while (verdict == REDLOCK_HELD &&
           (node = redlock_hear(&take->round, span.end)) >= 0)
        take_count(take, node, span.end);
    return verdict;
}

/* ---- the fence --------------------------------------------------------- */

/* Have a majority confirm it before anybody learns of it.  redlock.c (4) */
static bool take_confirm(struct redlock_take *take, uint64_t fence,
                         int64_t deadline)
{
    const struct hfi_claim *claim = take->claim;
    struct redlock_conn *rl = take->rl;
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, deadline);
    char number[24];
    const char *argv[] = {claim->token, number, claim->note ? claim->note : "",
                          claim->owner ? claim->owner : ""};
    struct redis_batch batch = {0};
    struct redlock_round round;
    const redisReply *reply;
    int i, yes = 0;

    take->tried = fence;
    snprintf(number, sizeof(number), "%" PRIu64, fence);
    redlock_round_init(&round, rl);
    redlock_step(rl, &batch, 'W', claim->key, 4, argv);
    for (i = 0; i < rl->n; i++)
        if (take->asked & 1U << i)
            redlock_ask(&round, i, &batch, span.end);
    span = redlock_span(rl, claim->ttl_ms, deadline);
    while (!redlock_is_confirmed(rl->n, yes) &&
           redlock_may_be_confirmed(rl->n, yes, round.waiting)) {
        i = redlock_hear(&round, span.late);
        if (i < 0)
            break;
        reply = redlock_reply(&round.calls[i], 0);
        if (reply && reply->type == REDIS_REPLY_INTEGER) {
            yes += reply->integer == 1;
            take->refused = take->refused || reply->integer != 1;
        }
    }
    if (!redlock_is_confirmed(rl->n, yes))
        redlock_too_few(&round, yes, claim->ttl_ms, &take->why);
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return redlock_is_confirmed(rl->n, yes);
}

/* Readers vote at the same time, so two may have the same fence in mind, where
 * the clocks are behind those that were confirmed: a node refuses the second
 * one, which then takes a larger one.  redlock.c (9) */
static bool take_confirm_any(struct redlock_take *take, uint64_t *fence,
                             int64_t deadline)
{
    uint16_t more;
    int tries;

    for (tries = 0; tries < FENCE_TRIES; tries++) {
        take->refused = false;
        if (take_confirm(take, *fence, deadline))
            return true;
        if (!take->claim->shared || !take->refused)
            break;
        hfi_random(&more, sizeof(more));
        *fence += 1 + more;
    }
    return false;
}

/* ---- taking ------------------------------------------------------------ */

/* Ask one node before the others.  False if it has a holder that it did not
 * have before. */
static bool take_gate(struct redlock_take *take, struct hfi_receipt *receipt,
                      int64_t deadline)
{
    char *note = &redlock_own(receipt)->gate;
    struct redlock_span span =
        redlock_span(take->rl, take->claim->ttl_ms, deadline);
    const char *at;
    char mark = 0, last = *note;
    int node;

    if (!last || !take_ask(take, 1, deadline))
        return true;
    node = redlock_hear(&take->round, span.end);
    if (node < 0)
        return true;
    take_count(take, node, span.end);
    if (!take->holder[node])
        return true;
    for (at = take->holder[node]; *at; at++)
        mark = (char)(mark * 31 + *at);
    *note = mark ? mark : 1;
    return *note == last;
}

/* One question, from which a grant may come. */
static hf_status take_run(struct redlock_take *take,
                          struct hfi_receipt *receipt, struct hfi_answer *busy,
                          int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = take->rl;
    enum redlock_verdict verdict;
    uint64_t fence;

    redlock_await_majority(rl, deadline);
    redlock_quarantine_settle(rl, deadline);
    if (!take_gate(take, receipt, deadline)) {
        busy->left_ms = redlock_take_split_ms(take, 0);
        return hfi_fail(err, HF_BUSY, "somebody else is about to take it");
    }
    take_ask(take, rl->n, deadline);
    verdict = take_hear(take, deadline);
    while (verdict == REDLOCK_TOO_FEW && /* Some had closed unnoticed. */
           redlock_await_more(rl, take->reached, deadline)) {
        if (!take_ask(take, rl->n, deadline))
            break;
        verdict = take_hear(take, deadline);
    }
    if (verdict == REDLOCK_HELD)
        return redlock_take_busy(take, receipt, busy, err);
    if (verdict != REDLOCK_WON)
        return redlock_too_few(
            &take->round, __builtin_popcount(take->votes.yes | take->votes.no),
            take->claim->ttl_ms, err);
    if (take->fenced && redlock_fence(&take->votes, &fence) &&
        !take_confirm_any(take, &fence, deadline)) {
        if (err)
            *err = take->why;
        return hfi_wrap(err, HF_UNAVAILABLE, "the fence is not confirmed");
    }
    receipt->fence = rl->fenced ? fence : 0;
    return HF_OK;
}

/* It failed: take it back.  What had no answer may still arrive when the claim
 * has been granted the lock: see to it that nothing is lost by that.
 * redlock.c (7) */
static hf_status take_back(struct redlock_take *take,
                           struct hfi_receipt *receipt, hf_status st,
                           struct hf_error *err)
{
    struct redlock_grant *own = receipt->own;
    uint64_t tried = take->tried > own->tried ? take->tried : own->tried;
    unsigned doubt = redlock_note_doubt(receipt, redlock_silent(&take->round));
    int had, had_not;

    own->tried = tried;
    if (!redlock_give_back(take->rl, take->claim, take->asked, doubt, tried,
                           HFI_NEVER, &had, &had_not))
        return st;
    if (own->floor < tried + 1)
        own->floor = tried + 1;
    return st == HF_UNAVAILABLE ? hfi_restate(err, HF_UNCERTAIN) : st;
}

hf_status redlock_try_acquire(struct hfi_conn *conn,
                              const struct hfi_claim *claim,
                              struct hfi_receipt *receipt,
                              struct hfi_answer *busy, int64_t deadline,
                              struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct redlock_grant *own = receipt->own;
    struct redlock_take take = {.rl = rl,
                                .claim = claim,
                                .watched = own->watched,
                                .door = own->door,
                                .began = hfi_now(),
                                .floor = own->floor,
                                .votes = {.n = rl->n}};
    hf_status st = redlock_check_ttl(rl, claim->ttl_ms, err);

    if (st)
        return st;
    take.fenced = rl->fenced || take.floor;
    redlock_round_init(&take.round, rl);
    take_say(&take);
    st = take_run(&take, receipt, busy, deadline, err);
    if (own->watched)
        own->watched = REDLOCK_WATCHED_TOLD;
    receipt->registered = st == HF_OK || take.door;
    redlock_note_add(receipt, take.door ? take.reached : take.asked);
    if (st)
        st = take_back(&take, receipt, st, err);
    else
        redlock_note_doubt(receipt, redlock_silent(&take.round));
    redlock_round_fini(&take.round);
    redis_batch_free(&take.plain);
    redis_batch_free(&take.script);
    return st;
}
