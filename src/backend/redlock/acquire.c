/* SPDX-License-Identifier: MIT
 *
 * acquire.c - taking: votes, the fence, and taking back what failed.  The rules
 * and why they hold are in redlock.c.
 *
 * GATE  Where others wait, who waits and who has just released asks one node
 *   first, the same as the others do, and goes on to the rest if it says yes.  So
 *   mostly one of them does, and the others take nothing that it needs.  It is
 *   the node where they stand in line: a release there gives the key to the first
 *   of them, for 50 ms, so that the one that has just released does not get it
 *   again.  Whoever is refused there goes on only if the same holder is still
 *   there after a while: it may have the lock, or have been forgotten on that
 *   node alone.
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

/* For how long the node that is asked first may have another holder than before;
 * and for how long a key counts as one that others wait for. */
#define GATE_MS      100
#define GATE_ASK_MS  2000
#define CONTENDED_MS 1000

/* A place in line lasts as long as the lease that is asked for, and not less
 * than this.  Whoever waits tries more often than that (core/acquire.c), and a
 * place that has lapsed is given again as it was. */
#define PLACE_MS 1000

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
    if (claim->queue && take->watched) { /* If not, it asks again at once. */
        redis_batch_add(&take->plain, 4, meta);
        redis_batch_add(&take->plain, 1, clock);
        redis_batch_add(&take->plain, 2, left);
    }
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

/* One request for each node: the script where a fence is to be proposed, and
 * where it says what plain commands would be four for; else SET alone. */
static const struct redis_batch *take_batch(struct redlock_take *take,
                                            struct redlock_node *node)
{
    if (take->fenced || take->watched == REDLOCK_WATCHED_TOLD ||
        take->claim->shared || take->door || !atomic_load(&node->native))
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
                                REDLOCK_TELL, true);
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
    char number[24], ttl[24];
    const char *argv[] = {claim->token, number, claim->note ? claim->note : "",
                          claim->owner ? claim->owner : "", ttl};
    struct redis_batch batch = {0};
    struct redlock_round round;
    const redisReply *reply;
    int i, yes = 0;

    take->tried = fence;
    snprintf(number, sizeof(number), "%" PRIu64, fence);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    redlock_round_init(&round, rl);
    redlock_step(rl, &batch, 'W', claim->key, 5, argv);
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

static _Atomic int64_t *line_of(struct redlock_conn *rl, const char *key)
{
    unsigned hash = 0;

    while (*key)
        hash = hash * 31 + (unsigned char)*key++;
    return &rl->contended[hash % REDLOCK_CONTENDED];
}

void redlock_line_is(struct redlock_conn *rl, const char *key, int node,
                     int64_t now)
{
    atomic_store(line_of(rl, key), now * REDLOCK_MAX + node);
}

void redlock_line_is_over(struct redlock_conn *rl, const char *key)
{
    atomic_store(line_of(rl, key), 0);
}

int redlock_line(struct redlock_conn *rl, const char *key, int64_t now)
{
    int64_t told = atomic_load(line_of(rl, key));

    return told && now - told / REDLOCK_MAX < CONTENDED_MS
               ? (int)(told % REDLOCK_MAX)
               : -1;
}

/* Ask one node before the others.  False if it has a holder that it has not had
 * for long. */
static bool take_gate(struct redlock_take *take, struct hfi_receipt *receipt,
                      int64_t deadline)
{
    char *note = &redlock_own(receipt)->gate;
    bool in_line = !take->claim->shared &&
                   (take->watched ||
                    redlock_line(take->rl, take->claim->key, take->began) >= 0);
    struct redlock_span span =
        redlock_span(take->rl, take->claim->ttl_ms, deadline);
    const char *at;
    char mark = 0, last = *note;
    int node;

    if ((!last && !in_line) || !take_ask(take, 1, deadline))
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
    if (*note != last)
        redlock_own(receipt)->gate_at = take->began;
    return take->began - redlock_own(receipt)->gate_at >= GATE_MS;
}

/* When to ask again after that: soon if the holder there has it for a moment
 * only, as the first in line has. */
static int64_t take_gate_left(const struct redlock_take *take)
{
    int i;

    for (i = 0; i < take->rl->n; i++)
        if (take->left[i] > GATE_MS)
            return GATE_ASK_MS;
    return GATE_MS;
}

/* The nodes that were not asked: whoever lets the key linger may hear these
 * only. */
static void take_call_others(const struct redlock_take *take, int64_t deadline)
{
    char word[24];

    snprintf(word, sizeof(word), "?%s", take->rl->id);
    if (take->watched == REDLOCK_WATCHED_NEW)
        redlock_tell(take->rl, take->claim,
                     ((1U << take->rl->n) - 1) & ~take->reached, word,
                     deadline);
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
        take_call_others(take, deadline);
        busy->left_ms = !take->watched ? 1 : take_gate_left(take);
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

/* Others have it, and we shall wait: stand in line at the node that all who hear
 * it listen to, the first that told us that we are subscribed.  A place that was given before is kept, also after a
 * turn that came to nothing.  It is an advice; redlock.c. */
static void take_line_up(struct redlock_take *take, struct hfi_receipt *receipt,
                         int64_t deadline)
{
    struct redlock_grant *own = receipt->own;
    const struct hfi_claim *claim = take->claim;
    unsigned heard = (take->votes.yes | take->votes.no) &
                     redlock_subscribers(take->rl, claim->key);
    struct redlock_span span = redlock_span(take->rl, claim->ttl_ms, deadline);
    char lasts[24];
    const char *argv[] = {claim->token, own->place, lasts};
    struct redis_batch batch = {0};
    struct redlock_round round;
    const redisReply *reply;
    int node;

    if (!heard || !own->watched || !claim->queue || claim->shared)
        return;
    redlock_round_init(&round, take->rl);
    snprintf(lasts, sizeof(lasts), "%" PRId64,
             claim->ttl_ms > PLACE_MS ? claim->ttl_ms : PLACE_MS);
    redlock_step(take->rl, &batch, 'N', claim->key, 3, argv);
    own->lines |= heard & -heard;
    redlock_note_add(receipt, own->lines);
    receipt->registered = true;
    redlock_ask(&round, __builtin_ctz(heard), &batch, span.end);
    node = redlock_hear(&round, span.end);
    reply = node >= 0 ? redlock_reply(&round.calls[node], 0) : NULL;
    if (reply && reply->type == REDIS_REPLY_STRING &&
        reply->len < sizeof(own->place))
        memcpy(own->place, reply->str, reply->len + 1);
    redlock_round_fini(&round);
    redis_batch_free(&batch);
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
    struct redlock_give give = {
        .nodes = take->asked,
        .doubt = redlock_note_doubt(receipt, redlock_silent(&take->round)),
        .limit = tried};

    own->tried = tried;
    if (!redlock_give_back(take->rl, take->claim, &give, HFI_NEVER))
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
    receipt->registered = st == HF_OK || take.door || own->lines;
    redlock_note_add(receipt,
                     (take.door ? take.reached : take.asked) | own->lines);
    if (st) {
        bool busy_now = st == HF_BUSY;

        st = take_back(&take, receipt, st, err);
        if (busy_now)
            take_line_up(&take, receipt, deadline);
    } else
        redlock_note_doubt(receipt, redlock_silent(&take.round));
    redlock_round_fini(&take.round);
    redis_batch_free(&take.plain);
    redis_batch_free(&take.script);
    return st;
}
