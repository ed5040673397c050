/* SPDX-License-Identifier: MIT
 *
 * key_queue.c - who in this client wants or has which key.
 *
 * A lane is the part of a lock that is inside this process: the queue of those
 * who wait for it here.  At most one of them, the head, stands in the
 * service's queue for all; when it has the grant, that becomes the seat of the
 * lane, and releases hand the seat on (grant.c) or give it back.  So many
 * threads that want one key cost the service no more than one.
 *
 * INVARIANTS
 *  (1) A lane is in the table while something points to it, and no longer.
 *  (2) Never both a seat and a head: who would ask for what we have?
 *  (3) With neither, nobody is left waiting: hfi_lane_promote() is called
 *      whenever a seat or a head goes.
 */
#include "core.h"

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

static struct hfi_lane *lane_of(struct hfi_node *node)
{
    return node ? hfi_container(node, struct hfi_lane, node) : NULL;
}

struct hfi_lane *hfi_lane_find(struct hf_client *c, const char *key)
{
    return lane_of(hfi_map_find(&c->lanes, key));
}

/* The lane after this one, or the first after NULL. */
struct hfi_lane *hfi_lane_next(struct hf_client *c, struct hfi_lane *lane)
{
    return lane_of(hfi_map_next(&c->lanes, lane ? &lane->node : NULL));
}

/* The lane of a key, made if need be, with one more user; NULL: no memory. */
struct hfi_lane *hfi_lane_get(struct hf_client *c, const char *key)
{
    struct hfi_lane *lane = hfi_lane_find(c, key);
    size_t size = strlen(key) + 1;

    if (lane) {
        lane->users++;
        return lane;
    }
    lane = hfi_map_reserve(&c->lanes)
               ? hfi_alloc(offsetof(struct hfi_lane, key) + size)
               : NULL;
    if (!lane)
        return NULL;
    lane->node.key = memcpy(lane->key, key, size);
    hfi_map_add(&c->lanes, &lane->node);
    hfi_link_init(&lane->waiting);
    hfi_link_init(&lane->contending);
    hfi_link_init(&lane->holds);
    hfi_link_init(&lane->behind);
    lane->users = 1;
    return lane;
}

void hfi_lane_put(struct hf_client *c, struct hfi_lane *lane)
{
    if (--lane->users)
        return;
    hfi_map_remove(&c->lanes, &lane->node);
    hfi_free(lane);
}

/* If nobody of this client has or asks for the key, let the first in the local
 * queue ask. */
void hfi_lane_promote(struct hf_client *c, struct hfi_lane *lane)
{
    struct hf_request *rq;

    (void)c;
    if (lane->seat || lane->head || hfi_link_alone(&lane->waiting))
        return;
    rq = hfi_container(lane->waiting.next, struct hf_request, link);
    hfi_link_remove(&rq->link);
    hfi_link_append(&lane->contending, &rq->link);
    lane->head = rq;
    rq->state = HFI_CONTENDING;
    rq->woken = true;
    hfi_request_rouse(rq);
}

/* A request that is cancelled may leave the list. */
static void lane_look(struct hfi_link *requests)
{
    struct hfi_link *at, *next;

    for (at = requests->next; at != requests; at = next) {
        next = at->next;
        hfi_request_look(hfi_container(at, struct hf_request, link));
    }
}

/* Let every request look at the clock and at whether it is cancelled. */
void hfi_lane_rouse_all(struct hf_client *c)
{
    struct hfi_lane *lane = hfi_lane_next(c, NULL), *next;

    for (; lane; lane = next) {
        lane->users++;
        lane_look(&lane->waiting); /* first: no other takes their turn */
        lane_look(&lane->contending);
        next = hfi_lane_next(c, lane);
        hfi_lane_put(c, lane);
    }
}

/* The request whose claim has this token, or NULL. */
static struct hf_request *lane_contender(struct hfi_lane *lane,
                                         const char *token)
{
    struct hfi_link *at;
    struct hf_request *rq;

    for (at = lane->contending.next; at != &lane->contending; at = at->next) {
        rq = hfi_container(at, struct hf_request, link);
        if (!strcmp(token, rq->hold->claim.token))
            return rq;
    }
    return NULL;
}

/* A try of the request with this token (NULL: of any) may succeed now. */
static void lane_wake(struct hfi_lane *lane, const char *token)
{
    struct hfi_link *at;
    struct hf_request *rq;

    for (at = lane->contending.next; at != &lane->contending; at = at->next) {
        rq = hfi_container(at, struct hf_request, link);
        if (token && strcmp(token, rq->hold->claim.token) != 0)
            continue;
        rq->woken = rq->called = true;
        hfi_request_rouse(rq);
    }
}

void hfi_wake(struct hfi_conn *conn, const char *key, const char *token)
{
    struct hf_client *c = conn->client;
    struct hfi_lane *lane;

    pthread_mutex_lock(&c->mu);
    lane = hfi_lane_find(c, key);
    if (lane && !HFI_MUTANT(wakeup_lost))
        lane_wake(lane, token);
    pthread_mutex_unlock(&c->mu);
}

/* The request may have been busy with another try, or may be gone: then what
 * was given to it is found by that try, or taken back by its release. */
void hfi_granted(struct hfi_conn *conn, const char *key, const char *token,
                 uint32_t nth, uint64_t fence, int64_t ms)
{
    struct hf_client *c = conn->client;
    struct hf_request *rq;
    struct hfi_lane *lane;

    pthread_mutex_lock(&c->mu);
    lane = hfi_lane_find(c, key);
    rq = lane ? lane_contender(lane, token) : NULL;
    if (rq) {
        if (rq->hold->claim.nth == nth)
            rq->gift = (struct hfi_gift){fence, ms};
        rq->woken = rq->called = true;
        hfi_request_rouse(rq);
    }
    pthread_mutex_unlock(&c->mu);
}

/* Let the request try again by then. */
static void lane_expect(struct hf_request *rq, int64_t at)
{
    if (rq->expected && at >= rq->expected)
        return;
    rq->expected = at;
    if (at >= rq->next_try)
        return;
    rq->next_try = at;
    hfi_request_rouse(rq);
}

/* Its turn may come by then without a word: let it try again. */
void hfi_expect(struct hfi_conn *conn, const char *key, const char *token,
                int64_t ms)
{
    struct hf_client *c = conn->client;
    int64_t at = hfi_now() + ms;
    struct hf_request *rq;
    struct hfi_lane *lane;

    pthread_mutex_lock(&c->mu);
    lane = hfi_lane_find(c, key);
    rq = lane ? lane_contender(lane, token) : NULL;
    if (rq)
        lane_expect(rq, at);
    pthread_mutex_unlock(&c->mu);
}

/* A service that has just come back is not asked by all who wait at once: so many
 * keys at a time, so many milliseconds apart. */
#define LANE_WAKE_KEYS 32
#define LANE_WAKE_MS   10

void hfi_wake_all(struct hfi_conn *conn)
{
    struct hf_client *c = conn->client;
    struct hfi_lane *lane = NULL;
    struct hfi_link *at;
    int64_t now = hfi_now(), n = 0;

    pthread_mutex_lock(&c->mu);
    while ((lane = hfi_lane_next(c, lane))) {
        if (hfi_link_alone(&lane->contending))
            continue;
        if (n++ < LANE_WAKE_KEYS) {
            lane_wake(lane, NULL);
            continue;
        }
        for (at = lane->contending.next; at != &lane->contending; at = at->next)
            lane_expect(hfi_container(at, struct hf_request, link),
                        now + n / LANE_WAKE_KEYS * LANE_WAKE_MS);
    }
    pthread_mutex_unlock(&c->mu);
}

/* Somebody elsewhere asks for the key: do not let it linger. */
void hfi_wanted(struct hfi_conn *conn, const char *key)
{
    struct hf_client *c = conn->client;
    struct hfi_lane *lane;

    pthread_mutex_lock(&c->mu);
    lane = hfi_lane_find(c, key);
    if (lane && !lane->seat && lane->head && lane->head->hold)
        lane->head->hold->wanted = true; /* It overtook our own answer. */
    if (lane && lane->seat) {
        lane->seat->wanted = true;
        lane->seat->linger_end = 0;
        if (lane->seat->state == HFI_LINGERING)
            hfi_keeper_hold(c, lane->seat);
    }
    pthread_mutex_unlock(&c->mu);
}

void hfi_gone(struct hfi_conn *conn, const char *key, const char *token,
              hf_loss reason)
{
    struct hf_client *c = conn->client;
    struct hfi_lane *lane;
    struct hfi_hold *hold;
    struct hfi_link *at, *next;

    pthread_mutex_lock(&c->mu);
    lane = hfi_lane_find(c, key);
    for (at = lane ? lane->holds.next : NULL; at && at != &lane->holds;
         at = next) {
        next = at->next;
        hold = hfi_container(at, struct hfi_hold, link);
        if (strcmp(token, hold->claim.token) != 0)
            continue;
        hfi_hold_lose(c, hold, reason);
        break; /* The lane may be gone with its last hold. */
    }
    pthread_mutex_unlock(&c->mu);
}
