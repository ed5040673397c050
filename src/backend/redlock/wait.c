/* SPDX-License-Identifier: MIT
 *
 * wait.c - wake-ups.
 *
 * Once somebody has had to wait there is a second connection to each node, the
 * subscriber, on which we subscribe to the channels of the keys that are waited
 * for. The thread that connects the node connects it, too, and one thread at a
 * time reads it (core/listener.c).  A message is one character and who says it:
 *
 *   -TOKEN [HEIR]  this claim has been released here; HEIR is the first in line
 *   ?CLIENT   somebody there waits for the key
 *
 * A RELEASE is told by each node on which it happens, so by a majority.  The
 * last of those that we hear wakes who waits here.  Before that a try would
 * mostly find the other nodes taken, and be in the way of those who try later.
 * But which of them complete a majority cannot be said, because not all may
 * have had the lock, and those that we do not hear may be dead.  So after the
 * first word a try follows soon, whatever else is heard.
 *
 * LINE  Who waits for a lock alone stands in line at the first node that it hears
 *   (acquire.c), and a release there names the first in line.  It tries, and lines
 *   up anew, when another node becomes the first that it hears.  That one tries;
 *   the others, who hear it as well, try a little later, if nothing else is
 *   heard before: the one that was named may be dead, or may have given up.  So
 *   one of those who wait asks after each release, in the order of their arrival.
 *   It is an advice and nothing more: whoever has a majority has the lock.  Who
 *   sees another node as the first listens to another name, which costs order;
 *   readers go in together, and do not stand in line.
 *     A place lasts as long as the lease that its waiter asks for, from its last
 *   try, so one that died is not named for longer than that.  A claim says when
 *   it is released that it leaves, wherever it stood: it may have been granted
 *   by other nodes, or may share the lock by then.
 *
 *     Where somebody stands in line, only the node with the line tells of a
 *   release.  So a try that follows can find the other nodes as they were before
 *   it, and no word comes when that changes: it is repeated until they have given
 *   up a claim that we have heard to be released (busy.c).  If the line turns out
 *   to be empty, the other nodes tell as well: who waits may not hear that one.
 *
 * DEAF  As long as we hear enough nodes no release escapes us.  Messages are
 *   lost with an subscriber; if that leaves too few, those who wait are woken
 *   at once, ask again and again (acquire.c), and are woken once more when we
 *   hear enough again: what was released in between is seen by that try.
 *
 * ASKING  A holder that lets its lease linger listens on the same channel.  Who
 *   waits subscribes first and says so after that; who lets linger subscribes
 *   first and counts the subscribers after that.  So one of them hears of the
 *   other.  A holder that does not hear enough nodes, or whose count a majority
 *   does not answer in time, cannot know: it takes it that somebody waits.
 */
#include "redlock.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

#define WAITERS 64

/* A key that somebody here waits for or lets linger. */
struct redlock_want {
    struct hfi_node node;
    unsigned users;
    unsigned subscribers; /* the nodes that told us that we are subscribed */
    unsigned news;        /* those that told of the release of `token` */
    int64_t heard_at;     /* when the first of them did */
    bool named;           /* the first node has told who is next: */
    char heir[HFI_TOKEN_LEN + 1]; /* "": anybody */
    char token[HFI_TOKEN_LEN + 1];
    struct {
        char token[HFI_TOKEN_LEN + 1]; /* "": free */
        bool shared;
    } waiters[WAITERS]; /* the users, as far as there is room */
    char key[];
};

/* The last of the nodes tells of a release so soon after the first. */
#define RELEASE_MS 5

/* Who is not the heir tries after this and some times what a round takes. */
#define HEIR_MS     55
#define HEIR_ROUNDS 4

static struct redlock_want *want_find(const struct redlock_conn *rl,
                                      const char *key)
{
    struct hfi_node *node = hfi_map_find(&rl->wants, key);

    return node ? hfi_container(node, struct redlock_want, node) : NULL;
}

static bool want_subscribed(const struct redlock_conn *rl,
                            const struct redlock_want *want)
{
    return redlock_subscribed_enough(rl->n,
                                     __builtin_popcount(want->subscribers));
}

/* The first node that we hear, or -1. */
static int want_first(const struct redlock_want *want)
{
    return want->subscribers ? __builtin_ctz(want->subscribers) : -1;
}

/* ---- subscribers
 * -------------------------------------------------------------- */

/* What was told there may have been missed. */
static void subscriber_close(struct redlock_node *node)
{
    struct redlock_conn *rl = node->rl;
    struct hfi_node *at;

    if (!node->subscriber)
        return;
    epoll_ctl(atomic_load(&rl->subscriber_poll), EPOLL_CTL_DEL,
              hfi_mux_fd(node->subscriber), NULL);
    atomic_store(&node->subscriber_fd, -1);
    hfi_mux_close(node->subscriber);
    node->subscriber = NULL;
    for (at = hfi_map_next(&rl->wants, NULL); at;
         at = hfi_map_next(&rl->wants, at)) {
        struct redlock_want *want =
            hfi_container(at, struct redlock_want, node);
        bool heard = want_subscribed(rl, want);
        bool first = want_first(want) == node->index;

        want->subscribers &= ~(1U << node->index);
        if (first || (heard && !want_subscribed(rl, want)))
            hfi_wake(&rl->base, want->key, NULL);
    }
}

/* (UN)SUBSCRIBE; what would block is broken. */
static void subscriber_say(struct redlock_node *node, const char *word,
                           const char *key)
{
    char channel[REDIS_NAME_MAX];
    const char *argv[] = {word, channel};
    struct redis_batch batch = {0};

    if (!node->subscriber)
        return;
    redlock_channel(node->rl, key, channel, sizeof(channel));
    redis_batch_add(&batch, 2, argv);
    if (batch.failed ||
        !hfi_mux_say(node->subscriber, batch.bytes, batch.len, hfi_now()))
        subscriber_close(node);
    redis_batch_free(&batch);
}

bool redlock_subscriber_lacks(struct redlock_node *node)
{
    struct redlock_conn *rl = node->rl;
    bool lacks;

    if (!atomic_load(&rl->listening))
        return false;
    pthread_mutex_lock(&rl->subscriber_mu);
    lacks = !node->subscriber && !node->unsubscribed;
    pthread_mutex_unlock(&rl->subscriber_mu);
    return lacks;
}

hf_status redlock_subscriber_connect(struct redlock_node *node,
                                     int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = node->rl;
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u32 = (uint32_t)node->index};
    struct mux_link *link = NULL;
    struct hfi_node *at;
    hf_status st = hfi_mux_open(&node->subscriber_mux, deadline, &link, err);

    if (st)
        return st;
    pthread_mutex_lock(&rl->subscriber_mu);
    if (epoll_ctl(atomic_load(&rl->subscriber_poll), EPOLL_CTL_ADD,
                  hfi_mux_fd(link), &event)) {
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "epoll");
        hfi_mux_close(link);
    } else {
        node->subscriber = link;
        atomic_store(&node->subscriber_fd, hfi_mux_fd(link));
        for (at = hfi_map_next(&rl->wants, NULL); at;
             at = hfi_map_next(&rl->wants, at))
            subscriber_say(node, "SUBSCRIBE", at->key);
    }
    pthread_mutex_unlock(&rl->subscriber_mu);
    return st;
}

void redlock_subscriber_drop(struct redlock_node *node)
{
    pthread_mutex_lock(&node->rl->subscriber_mu);
    subscriber_close(node);
    node->unsubscribed = false;
    pthread_mutex_unlock(&node->rl->subscriber_mu);
}

/* ---- hearing ----------------------------------------------------------- */

/* What was released before it could be told here is seen by a try from now on;
 * and whoever waits stands in line at the first node that it hears. */
static void subscriber_subscribed(struct redlock_node *node,
                                  struct redlock_want *want)
{
    struct redlock_conn *rl = node->rl;
    bool heard = want_subscribed(rl, want);

    want->subscribers |= 1U << node->index;
    if (!want_subscribed(rl, want))
        return;
    hfi_cond_wake(&rl->subscriber_changed);
    if (!heard || want->news || want_first(want) == node->index)
        hfi_wake(&rl->base, want->key, NULL);
}

/* Have those of us try who may: the heir, or all if there is none, at once if
 * all nodes have told of the release and else a little later. */
static void want_turn(struct redlock_conn *rl, struct redlock_want *want)
{
    bool whole = (want->news & want->subscribers) == want->subscribers;
    int64_t later =
        HEIR_MS + HEIR_ROUNDS * atomic_load(&rl->took) / REDLOCK_TOOK_UNIT;
    int i;

    if (want->users > WAITERS || (want->named && !want->heir[0] && whole)) {
        hfi_wake(&rl->base, want->key, NULL);
        return;
    }
    for (i = 0; i < WAITERS; i++) {
        const char *token = want->waiters[i].token;
        bool next =
            want->waiters[i].shared ||
            (want->named && (!want->heir[0] || !strcmp(want->heir, token)));

        if (!*token || (!next && HFI_MUTANT(dead_waiter_blocks_queue)))
            continue;
        if (next && (whole || want->heir[0]))
            hfi_wake(&rl->base, want->key, token);
        else
            hfi_expect(&rl->base, want->key, token, next ? RELEASE_MS : later);
    }
}

static void subscriber_released(struct redlock_node *node,
                                struct redlock_want *want, const char *token,
                                const char *heir)
{
    if (strncmp(want->token, token, HFI_TOKEN_LEN) != 0) {
        snprintf(want->token, sizeof(want->token), "%s", token);
        want->news = 0;
        want->named = false;
        want->heard_at = hfi_now();
    }
    want->news |= 1U << node->index;
    if (node->index == want_first(want)) {
        want->named = true;
        snprintf(want->heir, sizeof(want->heir), "%s", heir);
    }
    want_turn(node->rl, want);
}

/* "message", the channel, the payload; or "subscribe", the channel, a
 * number. */
static void subscriber_heard(struct redlock_node *node, const redisReply *reply)
{
    struct redlock_conn *rl = node->rl;
    struct redlock_want *want;
    const char *key, *kind, *text;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3 ||
        reply->element[0]->type != REDIS_REPLY_STRING ||
        reply->element[1]->type != REDIS_REPLY_STRING)
        return;
    kind = reply->element[0]->str;
    key = redlock_channel_key(rl, reply->element[1]->str);
    want = key ? want_find(rl, key) : NULL;
    if (!want)
        return;
    if (!strcmp(kind, "subscribe"))
        subscriber_subscribed(node, want);
    if (strcmp(kind, "message") != 0 ||
        reply->element[2]->type != REDIS_REPLY_STRING)
        return;
    text = reply->element[2]->str;
    if (*text == '-' && strlen(text + 1) == HFI_TOKEN_LEN)
        subscriber_released(node, want, text + 1, "");
    else if (*text == '-' && strlen(text + 1) == 2 * HFI_TOKEN_LEN + 1)
        subscriber_released(node, want, text + 1, text + 2 + HFI_TOKEN_LEN);
    else if (*text == '?' && strcmp(text + 1, rl->id) != 0)
        hfi_wanted(&rl->base, want->key);
}

/* True if the subscriber is lost. */
static bool subscriber_dispatch(struct redlock_node *node)
{
    redisReply *reply = NULL;
    hf_status st = HF_OK;

    while (node->subscriber && !(st = hfi_mux_hear(node->subscriber, &reply)) &&
           reply) {
        if (reply->type == REDIS_REPLY_ERROR) {
            node->unsubscribed = true; /* It does not let us. */
            st = HF_DENIED;
        }
        subscriber_heard(node, reply);
        freeReplyObject(reply);
        reply = NULL;
        if (st)
            break;
    }
    if (st)
        subscriber_close(node);
    return st != HF_OK;
}

int redlock_poll_fd(struct hfi_conn *conn)
{
    return atomic_load(&((struct redlock_conn *)conn)->subscriber_poll);
}

/* Read all that has come, with the mutex held; the subscribers that were
 * lost. */
static unsigned subscribers_read(struct redlock_conn *rl)
{
    struct epoll_event events[REDLOCK_MAX];
    unsigned lost = 0;
    int i, n = epoll_wait(atomic_load(&rl->subscriber_poll), events,
                          REDLOCK_MAX, 0);

    for (i = 0; i < n; i++)
        if (subscriber_dispatch(&rl->nodes[events[i].data.u32]))
            lost |= 1U << events[i].data.u32;
    return lost;
}

static void subscribers_tend(struct redlock_conn *rl, unsigned lost)
{
    int i;

    for (i = 0; i < rl->n; i++)
        if (lost & 1U << i)
            redlock_node_tend(&rl->nodes[i]);
}

void redlock_dispatch(struct hfi_conn *conn)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    unsigned lost;

    pthread_mutex_lock(&rl->subscriber_mu);
    lost = subscribers_read(rl);
    pthread_mutex_unlock(&rl->subscriber_mu);
    subscribers_tend(rl, lost);
}

int64_t redlock_released_for(struct redlock_conn *rl, const char *key,
                             const char *token)
{
    struct redlock_want *want;
    int64_t ms = -1;

    pthread_mutex_lock(&rl->subscriber_mu);
    want = want_find(rl, key);
    if (want && want->news && !strcmp(want->token, token))
        ms = hfi_now() - want->heard_at;
    pthread_mutex_unlock(&rl->subscriber_mu);
    return ms;
}

/* ---- wanting ----------------------------------------------------------- */

unsigned redlock_subscribers(struct redlock_conn *rl, const char *key)
{
    struct redlock_want *want;
    unsigned subscribers;

    pthread_mutex_lock(&rl->subscriber_mu);
    want = want_find(rl, key);
    subscribers = want ? want->subscribers : 0;
    pthread_mutex_unlock(&rl->subscriber_mu);
    return subscribers;
}

bool redlock_subscriber_hears(struct redlock_conn *rl, const char *key)
{
    return redlock_subscribed_enough(
        rl->n, __builtin_popcount(redlock_subscribers(rl, key)));
}

static void want_add_waiter(struct redlock_want *want,
                            const struct hfi_claim *claim)
{
    int i;

    want->users++;
    for (i = 0; i < WAITERS && want->waiters[i].token[0]; i++)
        continue;
    if (i == WAITERS)
        return;
    memcpy(want->waiters[i].token, claim->token, sizeof(claim->token));
    want->waiters[i].shared = claim->shared;
}

static void want_drop_waiter(struct redlock_want *want,
                             const struct hfi_claim *claim)
{
    int i;

    want->users--;
    for (i = 0; i < WAITERS; i++)
        if (!strcmp(want->waiters[i].token, claim->token))
            want->waiters[i].token[0] = '\0';
}

/* With the mutex held. */
static bool want_add(struct redlock_conn *rl, const struct hfi_claim *claim)
{
    struct redlock_want *want = want_find(rl, claim->key);
    size_t len = strlen(claim->key) + 1;
    int i;

    if (want) {
        want_add_waiter(want, claim);
        return true;
    }
    want = hfi_map_reserve(&rl->wants) ? hfi_alloc(sizeof(*want) + len) : NULL;
    if (!want)
        return false;
    memcpy(want->key, claim->key, len);
    want->node.key = want->key;
    want_add_waiter(want, claim);
    hfi_map_add(&rl->wants, &want->node);
    for (i = 0; i < rl->n; i++)
        subscriber_say(&rl->nodes[i], "SUBSCRIBE", claim->key);
    return true;
}

/* Would enough of the nodes let us listen?  With the mutex held. */
static bool want_may_hear(const struct redlock_conn *rl)
{
    int i, n = 0;

    for (i = 0; i < rl->n; i++)
        n += !rl->nodes[i].unsubscribed;
    return redlock_subscribed_enough(rl->n, n);
}

/* Wait for the nodes to say that we are subscribed, for a little.  Who reads
 * may stand back for us (core/listener.c), so read oneself now and then. */
static void want_wait(struct redlock_conn *rl, const struct hfi_claim *claim,
                      int64_t deadline)
{
    struct redlock_want *want;
    unsigned lost = 0;

    pthread_mutex_lock(&rl->subscriber_mu);
    while ((want = want_find(rl, claim->key)) && !want_subscribed(rl, want) &&
           want_may_hear(rl) && hfi_left_ms(deadline)) {
        hfi_cond_wait(&rl->subscriber_changed, &rl->subscriber_mu,
                      hfi_now() + 1);
        lost |= subscribers_read(rl);
    }
    pthread_mutex_unlock(&rl->subscriber_mu);
    subscribers_tend(rl, lost);
}

/* Does anybody else listen to the channel of a key that we let linger, as far
 * as a majority can tell? */
static bool want_is_asked(struct redlock_conn *rl,
                          const struct hfi_claim *claim, int64_t deadline)
{
    char channel[REDIS_NAME_MAX];
    const char *argv[] = {"PUBSUB", "NUMSUB", channel};
    struct redis_batch batch = {0};
    struct redlock_round round;
    bool asked = false;
    int i, needed = redlock_majority(rl->n);

    redlock_channel(rl, claim->key, channel, sizeof(channel));
    redis_batch_add(&batch, 3, argv);
    redlock_round_init(&round, rl);
    for (i = 0; i < rl->n; i++)
        if (redlock_node_is_ready(&rl->nodes[i],
                                  redlock_limit(rl, claim->ttl_ms)))
            redlock_ask(&round, i, &batch, deadline);
    while (!asked && needed && (i = redlock_hear(&round, deadline)) >= 0) {
        const redisReply *reply = redlock_reply(&round.calls[i], 0);

        needed -= reply && reply->type == REDIS_REPLY_ARRAY;
        asked = reply && redlock_item(reply, 1) > 1;
    }
    redlock_round_fini(&round);
    redis_batch_free(&batch);
    return asked || needed;
}

/* What they answer does not matter: a server may not let us. */
void redlock_tell(struct redlock_conn *rl, const struct hfi_claim *claim,
                  unsigned nodes, const char *word, int64_t deadline)
{
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, deadline);
    char channel[REDIS_NAME_MAX];
    const char *argv[] = {"PUBLISH", channel, word};
    struct redis_batch batch = {0};
    struct redlock_round round;
    int i;

    redlock_channel(rl, claim->key, channel, sizeof(channel));
    redis_batch_add(&batch, 3, argv);
    redlock_round_init(&round, rl);
    for (i = 0; i < rl->n; i++)
        if (nodes & 1U << i)
            redlock_ask(&round, i, &batch, span.end);
    while (redlock_hear(&round, span.end) >= 0)
        continue;
    redlock_round_fini(&round);
    redis_batch_free(&batch);
}

hf_status redlock_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt, int64_t deadline,
                        struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct redlock_span span = redlock_span(rl, claim->ttl_ms, deadline);
    bool added;
    int i;

    atomic_store(&rl->listening, true);
    pthread_mutex_lock(&rl->subscriber_mu);
    added = want_add(rl, claim);
    pthread_mutex_unlock(&rl->subscriber_mu);
    if (!added)
        return hfi_nomem(err);
    for (i = 0; i < rl->n; i++)
        redlock_node_tend(&rl->nodes[i]);
    /* A holder has no other chance: a waiter asks again. */
    want_wait(rl, claim, receipt->registered ? span.late : span.end);
    redlock_own(receipt)->watched = REDLOCK_WATCHED_NEW;
    if (receipt->registered && (!redlock_subscriber_hears(rl, claim->key) ||
                                want_is_asked(rl, claim, span.late)))
        hfi_wanted(conn, claim->key);
    return HF_OK;
}

void redlock_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                     struct hfi_receipt *receipt)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct redlock_want *want;
    int i;

    redlock_own(receipt)->watched = REDLOCK_WATCHED_NOT;
    pthread_mutex_lock(&rl->subscriber_mu);
    want = want_find(rl, claim->key);
    if (want)
        want_drop_waiter(want, claim);
    if (want && !want->users) {
        hfi_map_remove(&rl->wants, &want->node);
        for (i = 0; i < rl->n; i++)
            subscriber_say(&rl->nodes[i], "UNSUBSCRIBE", claim->key);
        hfi_free(want);
    }
    pthread_mutex_unlock(&rl->subscriber_mu);
}

/* ---- beginning and end ------------------------------------------------- */

hf_status redlock_subscriber_init(struct redlock_conn *rl, struct hf_error *err)
{
    unsigned char id[8];
    int i, fd = epoll_create1(EPOLL_CLOEXEC);

    hfi_random(id, sizeof(id));
    for (i = 0; i < (int)sizeof(id); i++)
        snprintf(rl->id + 2 * i, 3, "%02x", id[i]);
    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "epoll");
    atomic_store(&rl->subscriber_poll, fd);
    return HF_OK;
}

void redlock_subscriber_fini(struct redlock_conn *rl)
{
    int fd = atomic_exchange(&rl->subscriber_poll, -1);

    if (fd >= 0)
        close(fd);
    hfi_map_fini(&rl->wants);
}

void redlock_subscriber_after_fork_child(struct redlock_conn *rl)
{
    int i, fd;

    for (i = 0; i < REDLOCK_MAX; i++) {
        fd = atomic_exchange(&rl->nodes[i].subscriber_fd, -1);
        if (fd >= 0)
            close(fd);
    }
    fd = atomic_exchange(&rl->subscriber_poll, -1);
    if (fd >= 0)
        close(fd);
}
