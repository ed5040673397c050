/* SPDX-License-Identifier: MIT
 *
 * quarantine.c - when a node that was restarted may vote again.
 *
 * A node that restarts without its data has forgotten for whom it voted.  So it
 * must not vote before the longest lease is over that any client may have had,
 * and which one that is cannot be seen from here.  It is therefore agreed on:
 *
 *  (1) quarantine= is the longest lease that any client of these nodes asks
 *      for, a minute unless it is given.  This client asks for no longer one:
 *      that is refused before anything is sent.
 *  (2) Each client writes its own quarantine= down on each node when it
 *      connects, if that is more than what stands there, and obeys the largest
 *      that it has read from any node.  So clients that were not given the same
 *      value obey the largest of them, as long as one node is left that
 *      remembers it.
 *  (3) A node that says that it has everything on disk (appendonly with fsync
 *      always) waits like any other.  That it has some data from before its
 *      restart does not prove that it has the newest: its disk may be that of
 *      an hour ago, from a backup or from before appendonly was turned off.
 *  (4) How long a node has run is told by its wall clock, which may have been
 *      set since it was started, so its uptime proves nothing.  Each client
 *      counts by its own clock, which is never set, from when it first saw the
 *      node in this run.
 *  (5) A client that lives for a shorter time would never finish that.  So the
 *      first client that sees a node in a new run writes down there when
 *      that was, and others count from then, if the clocks allow it: those of a
 *      minority may be wrong by any amount and may be set at any time.  With f
 *      nodes in the largest minority, of any f + 1 clocks one is right.  So
 *      what is written is no earlier than the (f + 1)-th lowest of the clocks
 *      at hand, and what is read is compared with the (f + 1)-th highest, which
 *      is no later than a right one.  With all clocks at hand both are the
 *      middle one.  With fewer, a wrong clock makes the quarantine longer, and
 *      (4) ends it.  What a clock said a while ago is known less exactly now:
 *      clocks run apart by as much as leases allow for (base/lease.h).
 *  (6) A client reads the largest value when it connects, and a larger one may
 *      be written later.  So no node votes before every node that is there has
 *      been asked after the end of that one's quarantine, be it when we
 *      connected or again: also if we did not look at the node meanwhile, or
 *      others count for us.  Whoever holds a lock that the node has forgotten
 *      has written its value on a majority before the restart.
 *
 * The note of a node is the hash that a lock with an empty key would have,
 * which no lock is: q is the longest lease in milliseconds, r the run id, s
 * when that was first seen, in milliseconds, or empty.
 */
#include "redlock.h"

#include <inttypes.h>

#include "base/lease.h"
#include "base/mutant.h"

#include "base/banned.h"

#define QUARANTINE_MS INT64_C(60000)

/* How long a node that was restarted is kept waiting until the others have told
 * the time. */
#define CLOCKS_MS 500

/* How long a node is waited for that is asked for the longest lease again.  That
 * does not depend on our own lease, which may be short: it is done once. */
#define SETTLE_MS 3000

hf_status redlock_quarantine_open(struct redlock_conn *rl,
                                  const struct hfi_url *url,
                                  struct hf_error *err)
{
    const char *text = hfi_url_param(url, "quarantine", "on");
    int64_t ttl_ms = 0;
    hf_status st = hfi_url_duration(url, "ttl", &ttl_ms, err);

    rl->lease_max = QUARANTINE_MS;
    rl->quarantine = strcmp(text, "off") != 0;
    if (!st && rl->quarantine && strcmp(text, "on") != 0)
        st = hfi_url_duration(url, "quarantine", &rl->lease_max, err);
    rl->longest_ttl = rl->lease_max;
    return st ? st : redlock_check_ttl(rl, ttl_ms, err);
}

/* quarantine.c (1) */
hf_status redlock_check_ttl(const struct redlock_conn *rl, int64_t ttl_ms,
                            struct hf_error *err)
{
    if (!rl->quarantine || ttl_ms <= rl->lease_max)
        return HF_OK;
    return hfi_fail(err, HF_INVALID,
                    "redlock: a lease of %" PRId64
                    " ms is longer than quarantine=, which is %" PRId64
                    " ms: give the longest lease of all clients there, in the "
                    "URL of each of them",
                    ttl_ms, rl->lease_max);
}

/* ---- what time it is --------------------------------------------------- */

/* By how much the clock of the node is ahead of ours by now, at most or at
 * least. */
static int64_t clock_ahead(const struct redlock_node *node, bool most,
                           int64_t now)
{
    int64_t apart = hfi_lease_margin(now - node->asked);

    return node->ahead[most] + (most ? apart : -apart);
}

/* With the mutex held: the time that it is now, by the clocks of the nodes; no
 * later than a right one has it, or no earlier.  False if so few have told it
 * that all of them may be wrong.  quarantine.c (5) */
static bool clocks_agree(const struct redlock_conn *rl, bool later,
                         int64_t *ret)
{
    int64_t ahead[REDLOCK_MAX], one, now = hfi_now();
    int i, j, n = 0, wrong = rl->n - rl->majority;

    for (i = 0; i < rl->n; i++) {
        if (!rl->nodes[i].asked)
            continue;
        one = clock_ahead(&rl->nodes[i], later, now);
        for (j = n++; j > 0 && ahead[j - 1] > one; j--)
            ahead[j] = ahead[j - 1];
        ahead[j] = one;
    }
    if (n <= wrong)
        return false;
    *ret = now + ahead[later ? wrong : n - 1 - wrong];
    return true;
}

/* With the mutex held: wait a little until all have told the time who will. */
static void clocks_wait(struct redlock_conn *rl, int64_t deadline)
{
    int64_t until = hfi_now() + CLOCKS_MS;
    int i, missing;

    until = until < deadline ? until : deadline;
    for (;;) {
        for (i = missing = 0; i < rl->n; i++)
            missing +=
                !rl->nodes[i].asked && rl->nodes[i].state == REDLOCK_TRYING;
        if (!missing || rl->closing || !hfi_left_ms(until))
            return;
        hfi_cond_wait(&rl->changed, &rl->mu, until);
    }
}

/* ---- the note of a node ------------------------------------------------ */

/* With the mutex held: what the node has said just now, to what was asked at
 * `sent`: what time it is, and that it knows a client that asks for such
 * leases.  quarantine.c (2) */
static void quarantine_hear(struct redlock_node *node, const redisReply *reply,
                            int64_t sent)
{
    int64_t longest = redlock_item(reply, 0), clock = redlock_item(reply, 2);

    if (longest > node->rl->longest_ttl && longest <= HFI_TTL_MAX)
        node->rl->longest_ttl = longest;
    node->ahead[0] = clock - hfi_now();
    node->ahead[1] = clock - sent;
    node->asked = sent;
}

/* With the mutex held: the same, as its connection begins.  True if it is to be
 * told since when it was seen: *seen.  quarantine.c (5) */
static bool quarantine_read(struct redlock_node *node, const redisReply *reply,
                            int64_t sent, int64_t *seen, int64_t deadline)
{
    struct redlock_conn *rl = node->rl;
    int64_t noted = redlock_item(reply, 1), clock = redlock_item(reply, 2);
    int64_t latest;

    quarantine_hear(node, reply, sent);
    hfi_cond_wake(&rl->changed);
    if (!node->run_id[0])
        return false; /* The note may be of any run. */
    node->noted = noted;
    if (noted > 0 && noted <= clock)
        return false;
    clocks_wait(rl, deadline);
    if (!clocks_agree(rl, true, &latest) || (noted > 0 && noted <= latest))
        return false;
    *seen = latest - (hfi_now() - node->born);
    return true;
}

/* Write it down, and read what is there; `seen` is 0 to ask. */
static void quarantine_note(struct redlock_node *node, int64_t seen,
                            struct redis_batch *batch)
{
    struct redlock_conn *rl = node->rl;
    struct redis_names names;
    char longest[24], since[24] = "";
    const char *argv[] = {"EVALSHA",
                          rl->script_id,
                          "2",
                          names.text[REDIS_MAIN],
                          names.text[REDIS_META],
                          "Q",
                          "",
                          longest,
                          node->run_id,
                          since};

    redis_name(&node->rc, "", &names);
    snprintf(longest, sizeof(longest), "%" PRId64, rl->lease_max);
    if (seen)
        snprintf(since, sizeof(since), "%" PRId64, seen);
    redis_batch_add(batch, 10, argv);
}

void redlock_quarantine_ask(struct redlock_node *node,
                            struct redis_batch *batch)
{
    if (node->rl->quarantine)
        quarantine_note(node, 0, batch);
}

hf_status redlock_quarantine_handshake(struct redlock_node *node,
                                       struct mux_link *link, int64_t sent,
                                       int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = node->rl;
    struct redis_batch batch = {0};
    redisReply *reply;
    int64_t seen = 0;
    bool tell;
    hf_status st;

    if (!rl->quarantine)
        return HF_OK;
    st = redlock_handshake_may(node, link, &reply, deadline, err);
    if (!reply)
        return st;
    pthread_mutex_lock(&rl->mu);
    tell = quarantine_read(node, reply, sent, &seen, deadline);
    pthread_mutex_unlock(&rl->mu);
    freeReplyObject(reply);
    if (tell) {
        quarantine_note(node, seen, &batch);
        st = redis_handshake_batch(link, &batch, deadline, err);
        if (!st)
            st = redlock_handshake_may(node, link, &reply, deadline, err);
        if (!st && reply)
            freeReplyObject(reply);
    }
    return st;
}

/* With the mutex held. */
static int64_t quarantine_count(struct redlock_node *node)
{
    struct redlock_conn *rl = node->rl;
    int64_t now = hfi_now(), clock;

    if (node->born + rl->longest_ttl > now && node->noted > 0 &&
        clocks_agree(rl, false, &clock) &&
        now - node->born < clock - node->noted)
        node->born = now - (clock - node->noted);
    return node->born + rl->longest_ttl - now;
}

/* With the mutex held: has each node been asked since the quarantine of this one
 * is over?  quarantine.c (6) */
static bool quarantine_is_agreed(const struct redlock_node *node)
{
    const struct redlock_conn *rl = node->rl;
    int64_t end = node->born + rl->longest_ttl;
    int i;

    for (i = 0; i < rl->n && rl->settled < end; i++)
        if (rl->nodes[i].asked && rl->nodes[i].asked < end)
            return false;
    return true;
}

int64_t redlock_quarantine_left(struct redlock_node *node)
{
    struct redlock_conn *rl = node->rl;
    int64_t left;

    if (!rl->quarantine || HFI_MUTANT(empty_node_votes))
        return 0;
    pthread_mutex_lock(&rl->mu);
    left = quarantine_count(node);
    if (left <= 0)
        left = quarantine_is_agreed(node) ? 0 : 1;
    pthread_mutex_unlock(&rl->mu);
    return left;
}

/* Is the quarantine of a node over by what is known, and that is not enough? */
static bool quarantine_is_due(struct redlock_conn *rl)
{
    bool due = false;
    int i;

    pthread_mutex_lock(&rl->mu);
    for (i = 0; i < rl->n && !due; i++)
        due = quarantine_count(&rl->nodes[i]) <= 0 &&
              !quarantine_is_agreed(&rl->nodes[i]);
    pthread_mutex_unlock(&rl->mu);
    return due;
}

/* quarantine.c (6).  Those who do not answer are not there. */
void redlock_quarantine_settle(struct redlock_conn *rl, int64_t deadline)
{
    char longest[24];
    const char *argv[] = {"", longest, "", ""};
    struct redis_batch batch = {0};
    struct redlock_round round;
    const redisReply *reply;
    int64_t sent, end;
    int i;

    if (!rl->quarantine || !quarantine_is_due(rl))
        return;
    redlock_round_init(&round, rl);
    snprintf(longest, sizeof(longest), "%" PRId64, rl->lease_max);
    redlock_step(rl, &batch, 'Q', "", 4, argv);
    sent = hfi_now();
    end = sent + SETTLE_MS < deadline ? sent + SETTLE_MS : deadline;
    for (i = 0; i < rl->n; i++)
        if (redlock_node_is_ready(&rl->nodes[i], SETTLE_MS))
            redlock_ask(&round, i, &batch, end);
    while ((i = redlock_hear(&round, end)) >= 0) {
        reply = redlock_reply(&round.calls[i], 0);
        pthread_mutex_lock(&rl->mu);
        if (reply && redlock_item(reply, 2) > 0)
            quarantine_hear(&rl->nodes[i], reply, sent);
        pthread_mutex_unlock(&rl->mu);
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    pthread_mutex_lock(&rl->mu);
    if (rl->settled < sent)
        rl->settled = sent;
    pthread_mutex_unlock(&rl->mu);
}
