/* SPDX-License-Identifier: MIT
 *
 * acquire.c - one acquisition: local queue, try, arm a wake-up, sleep, undo.
 *
 *   begin --> has it already (reentrant, lingering) ----------------> GRANTED
 *     |-----> WAITING in the local queue --- handed over -----------> GRANTED
 *     |           `-- promoted --.
 *     `-----> CONTENDING <-------'-- try --- yes -------------------> GRANTED
 *                 ^                   |--- busy: arm, try again, sleep --.
 *                 |-------------------'<----- woken or next_try ---------|
 *                 `-------- given it while asleep, and took it ---------> GRANTED
 *             (any) -- wait over, cancelled, tries used up, final error: FAILED
 *
 * A request is moved on by hfi_request_step(), which sends at most one try and
 * says when it wants to be called again.  A blocking call is a loop around it
 * in the caller's own thread; an event loop's request is stepped by the worker.
 *
 * INVARIANTS
 *  (1) Tries repeat one token, so a try whose answer was lost is confirmed by
 *      the next one and never becomes a second claim.
 *  (2) After the wake-up is armed there is always another try before sleep:
 *      what happened in between cannot be missed.
 *  (3) A grant counts from before its try was sent, and one whose lease is over
 *      when the answer comes is asked for again, not returned.
 *  (4) What the service gave by itself, as it passed the lock on, counts from
 *      before the last try was sent: the service gave it after it had served
 *      that try, so the end comes no later for us than for it.  One that would
 *      not last long is asked for by a try instead.
 *  (5) A request that fails leaves nothing: its place is withdrawn, or passed
 *      to the next in the local queue, or given to the reaper.
 */
#include "core.h"

#include "mem.h"
#include "mutant.h"

#include "banned.h"

/* After a wake-up that found the lock still busy, where they come early. */
#define ECHO_MS 2

/* A try that is on the wire when the wait is over may still be answered: a
 * little late and certain is better than in time and not. */
#define ANSWER_MS 1000

/* Between tries of a service that does not answer. */
#define BACKOFF_MS 100

/* ---- state ------------------------------------------------------------- */

/* Let its driver look at it again. */
void hfi_request_rouse(struct hf_request *rq)
{
    struct hf_client *c = rq->client;

    if (!rq->async) {
        if (rq->spot)
            hfi_cond_wake(&rq->spot->cond);
        return;
    }
    if (!rq->stepping && hfi_link_alone(&rq->ready)) {
        hfi_heap_remove(&c->timers, &rq->timer);
        hfi_link_append(&c->ready, &rq->ready);
        hfi_cond_wake(&c->work);
    }
}

/* Out of the lane's lists; an event loop is told. */
static void request_end(struct hf_request *rq, enum hfi_request_state state)
{
    struct hf_client *c = rq->client;
    struct hfi_lane *lane = rq->lane;

    rq->state = state;
    hfi_link_remove(&rq->link);
    if (lane->head == rq)
        lane->head = NULL;
    if (rq->async) {
        hfi_heap_remove(&c->timers, &rq->timer);
        hfi_link_remove(&rq->ready);
        rq->lane = NULL;
        hfi_lane_put(c, lane);
        hfi_notify(c, &rq->notice,
                   state == HFI_GRANTED ? HF_GRANTED : HF_FAILED);
    }
}

/* The request has `hold`, its own or one that was handed to it.  Where its
 * thread sleeps, to be woken by the caller: best after the mutex is let go, or
 * it would wake up only to wait for that. */
struct hfi_spot *hfi_request_grant(struct hf_request *rq, struct hfi_hold *hold)
{
    struct hf_client *c = rq->client;
    struct hfi_spot *spot = rq->spot;

    if (rq->hold && rq->hold != hold)
        hfi_hold_free(c, rq->hold); /* It was never sent. */
    rq->hold = NULL;
    rq->lock->user = rq->user;
    hfi_hold_give(c, hold, rq->lock);
    request_end(rq, HFI_GRANTED);
    return spot;
}

/* What this client has already that serves the wish as it is. */
static struct hfi_hold *request_have(struct hf_client *c, struct hfi_lane *lane,
                                     const struct hfi_wish *wish)
{
    struct hfi_hold *hold = lane->seat;
    struct hfi_link *at;

    if (hold && hold->state == HFI_LINGERING && hfi_held(hold) &&
        hfi_hold_fits(hold, wish)) {
        hfi_hold_take_up(c, hold, wish);
        return hold;
    }
    if (!wish->owner)
        return NULL;
    for (at = lane->holds.next; at != &lane->holds; at = at->next) {
        hold = hfi_container(at, struct hfi_hold, link);
        if (hold->state == HFI_HELD && hold->claim.owner &&
            !strcmp(hold->claim.owner, wish->owner) &&
            hold->claim.shared == !!(wish->flags & HF_SHARED) && hfi_held(hold))
            return hold;
    }
    return NULL;
}

/* ---- giving up --------------------------------------------------------- */

/* Pass the place in the service's queue to the next who wants the same. */
static bool request_pass_place(struct hf_request *rq)
{
    struct hfi_lane *lane = rq->lane;
    struct hf_request *next;
    struct hfi_hold *hold = rq->hold;

    if (lane->head != rq || hfi_link_alone(&lane->waiting))
        return false;
    next = hfi_container(lane->waiting.next, struct hf_request, link);
    if (!hfi_hold_fits(hold, &next->wish))
        return false;
    hfi_hold_free(rq->client, next->hold);
    next->hold = hold;
    hold->claim.queue = !next->once;
    next->wish.owner = hold->claim.owner;
    next->wish.note = hold->claim.note;
    rq->hold = NULL;
    lane->head = NULL;
    hfi_lane_promote(rq->client, lane);
    return true;
}

/* Undo what the request may have left in the service.  hold.c (5) */
static void request_withdraw(struct hf_request *rq)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;

    if (!hold || request_pass_place(rq))
        return;
    rq->hold = NULL;
    if (HFI_MUTANT(lost_reply_is_failure) && hold->uncertain)
        hfi_hold_free(c, hold);
    else if (hold->uncertain)
        hfi_hold_reap(c, hold);
    else if ((hold->grant.placed || hold->watched) &&
             !HFI_MUTANT(place_left_behind))
        hfi_hold_drop(c, hold, NULL);
    else
        hfi_hold_free(c, hold);
}

static void request_fail(struct hf_request *rq, hf_status st)
{
    struct hf_client *c = rq->client;
    struct hfi_lane *lane = rq->lane;

    lane->users++; /* An event may be all that is left of the request. */
    rq->result = st;
    rq->err.status = st;
    hfi_link_remove(&rq->link);
    request_withdraw(rq);
    if (lane->head == rq)
        lane->head = NULL;
    hfi_lane_promote(c, lane);
    request_end(rq, HFI_FAILED);
    hfi_lane_put(c, lane);
}

/* The wait is over: what to call that. */
static hf_status request_timeout(struct hf_request *rq)
{
    char key[HFI_QUOTE_MAX];
    hf_status last = rq->err.status;

    hfi_quote(key, sizeof(key), rq->lane->key);
    if (rq->state == HFI_CONTENDING &&
        (last == HF_UNAVAILABLE || last == HF_UNCERTAIN))
        return rq->hold->uncertain
                   ? hfi_wrap(&rq->err, HF_UNCERTAIN, "acquire '%s'", key)
                   : hfi_wrap(&rq->err, last, "acquire '%s'", key);
    if (last != HF_BUSY) /* The service has nothing to add. */
        return rq->once ? hfi_fail(&rq->err, HF_BUSY,
                                   "'%s' is held by somebody else", key)
                        : hfi_fail(&rq->err, HF_TIMEOUT,
                                   "'%s' was held by others all the time", key);
    return rq->once ? hfi_wrap(&rq->err, HF_BUSY,
                               "'%s' is held by somebody else", key)
                    : hfi_wrap(&rq->err, HF_TIMEOUT,
                               "'%s' was held by others all the time", key);
}

static bool request_is_canceled(const struct hf_request *rq)
{
    return rq->canceled || rq->client->closing ||
           atomic_load(&rq->client->cancels) != rq->cancel_seen;
}

/* Must it end without the lock?  HF_OK if not. */
static hf_status request_over(struct hf_request *rq, int64_t now)
{
    bool asked = rq->state == HFI_WAITING || rq->tries || !rq->woken;

    if (request_is_canceled(rq))
        return hfi_fail(&rq->err, HF_CANCELED, "canceled");
    if (asked && now >= rq->wait_end)
        return request_timeout(rq);
    if (rq->tries >= rq->wish.max_tries)
        return hfi_fail(&rq->err, HF_TIMEOUT,
                        "held by others at each of %d tries", rq->tries);
    return HF_OK;
}

/* ---- asking the service ------------------------------------------------ */

static int64_t request_jitter(struct hf_client *c, int64_t ms)
{
    c->jitter ^= c->jitter << 13;
    c->jitter ^= c->jitter >> 17;
    c->jitter ^= c->jitter << 5;
    return ms - ms / 4 + (int64_t)(c->jitter % (uint64_t)(ms / 2 + 1));
}

/* When to try again although nothing has woken us. */
static int64_t request_next_try(struct hf_request *rq,
                                const struct hfi_busy *busy, int64_t now)
{
    struct hf_client *c = rq->client;
    int64_t ms;

    if (!rq->hold->watched)
        return now + request_jitter(c, rq->wish.retry_ms);
    if (rq->echo && c->conn->traits & HFI_TRAIT_EARLY) {
        rq->echo = false;
        return now + ECHO_MS;
    }
    ms = c->be->net_ms ? c->be->net_ms : rq->wish.ttl_ms / 2 + 1;
    ms = request_jitter(c, ms);
    if (busy->left_ms && busy->left_ms + 1 < ms)
        ms = busy->left_ms + 1;
    return now + ms;
}

/* Arrange to be woken, once, after the first busy.  The mutex is let go. */
static void request_arm(struct hf_request *rq, int64_t deadline)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;
    hf_status st;

    if (hold->watched || rq->once || !c->be->watch ||
        rq->wish.flags & HF_POLL || !(c->conn->traits & HF_TRAIT_NOTIFY))
        return;
    pthread_mutex_unlock(&c->mu);
    st = c->be->watch(c->conn, &hold->claim, &hold->grant, deadline, NULL);
    pthread_mutex_lock(&c->mu);
    hold->watched = st == HF_OK;
    if (hold->watched && !HFI_MUTANT(no_recheck_after_arming))
        rq->woken = true; /* acquire.c (2) */
}

static void request_granted(struct hf_request *rq, int64_t sent, int64_t ttl_ms)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;

    if (hfi_now() >= hfi_lease_deadline(sent, ttl_ms)) {
        hold->uncertain = true; /* acquire.c (3) */
        rq->woken = true;
        return;
    }
    if (hold->watched) {
        pthread_mutex_unlock(&c->mu);
        c->be->unwatch(c->conn, &hold->claim, &hold->grant);
        pthread_mutex_lock(&c->mu);
        hold->watched = false;
    }
    hfi_hold_granted(c, hold, &rq->wish, sent, ttl_ms);
    hfi_request_grant(rq, hold);
}

/* Take what was given while we slept.  The keeper makes a whole lease of it, if
 * it is needed for long; without a keeper, a try must.  acquire.c (4) */
static bool request_take_gift(struct hf_request *rq, int64_t now)
{
    struct hfi_hold *hold = rq->hold;
    struct hfi_gift gift = rq->gift;

    rq->gift.fence = 0;
    if (gift.ms > hold->claim.ttl_ms)
        gift.ms = hold->claim.ttl_ms;
    if (!gift.fence || hold->manual ||
        now >= hfi_lease_at_risk_at(hfi_lease_deadline(hold->next_at, gift.ms),
                                    gift.ms))
        return false;
    hold->grant.fence = gift.fence;
    hold->grant.placed = true;
    request_granted(rq, hold->next_at, gift.ms);
    return rq->state == HFI_GRANTED;
}

/* One try.  The mutex is let go while it is on the wire. */
static void request_try(struct hf_request *rq, int64_t now)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;
    struct hfi_busy busy = {0};
    int64_t deadline = now + c->timeout_ms;
    hf_status st;

    if (!rq->once && rq->wait_end < deadline - ANSWER_MS)
        deadline = rq->wait_end + ANSWER_MS;
    if (atomic_load(&c->conn->listening))
        request_arm(rq, deadline); /* so this try is the one after it */
    rq->echo = rq->woken && rq->tries > 1;
    rq->woken = false;
    rq->expected = 0;
    rq->gift.fence = 0;
    rq->err.status = HF_OK;
    hold->next_at = now;
    hold->claim.nth++;
    pthread_mutex_unlock(&c->mu);
    st = c->be->try_acquire(c->conn, &hold->claim, &hold->grant, &busy,
                            deadline, &rq->err);
    pthread_mutex_lock(&c->mu);
    switch (st) {
    case HF_OK:
        request_granted(rq, now, hold->claim.ttl_ms);
        break;
    case HF_BUSY:
        rq->tries++; /* An earlier try without an answer may still arrive. */
        atomic_store(&rq->place, busy.place);
        request_arm(rq, deadline);
        rq->next_try = request_next_try(rq, &busy, hfi_now());
        if (rq->expected && rq->expected < rq->next_try)
            rq->next_try = rq->expected;
        break;
    case HF_UNCERTAIN:
        hold->uncertain = true;
        /* fall through */
    case HF_UNAVAILABLE:
        rq->err.status = st;
        rq->next_try = hfi_now() + request_jitter(c, BACKOFF_MS);
        break;
    default:
        request_fail(rq, st);
    }
}

/* Move the request on by at most one try, for which the mutex, held by the
 * caller, is let go.  True when it is over, and then it may be gone; else
 * *until is when it wants to be stepped again, unless it is roused before. */
bool hfi_request_step(struct hf_request *rq, int64_t *until)
{
    int64_t now = hfi_now();
    hf_status st;

    if (rq->state == HFI_GRANTED || rq->state == HFI_FAILED)
        return true;
    st = request_over(rq, now);
    if (st)
        request_fail(rq, st);
    else if (rq->state == HFI_CONTENDING &&
             (rq->woken || now >= rq->next_try) && !request_take_gift(rq, now))
        request_try(rq, now);
    if (rq->state == HFI_GRANTED || rq->state == HFI_FAILED)
        return true;
    *until = rq->wait_end;
    if (rq->state == HFI_CONTENDING && rq->next_try < rq->wait_end)
        *until = rq->next_try;
    if ((rq->state == HFI_CONTENDING && (rq->woken || rq->once)) ||
        request_is_canceled(rq))
        *until = 0;
    return false;
}

/* ---- beginning --------------------------------------------------------- */

/* Find a place for the request: granted at once, contending, or waiting. */
static hf_status request_place(struct hf_request *rq, const char *key,
                               const struct hfi_wish *wish)
{
    struct hf_client *c = rq->client;
    struct hfi_lane *lane = rq->lane = hfi_lane_get(c, key);
    struct hfi_hold *have;

    if (!lane)
        return hfi_nomem(&rq->err);
    have = request_have(c, lane, wish);
    if (have) {
        hfi_request_grant(rq, have);
        return HF_OK;
    }
    if (lane->seat && lane->seat->state == HFI_LINGERING)
        hfi_hold_drop(c, lane->seat, NULL); /* It does not fit. */
    rq->hold = hfi_hold_new(c, lane, wish);
    if (!rq->hold)
        return hfi_nomem(&rq->err);
    rq->wish.owner = rq->hold->claim.owner;
    rq->wish.note = rq->hold->claim.note;
    rq->hold->claim.queue = !rq->once;
    if (rq->hold->seat && (lane->seat || lane->head)) {
        rq->state = HFI_WAITING;
        hfi_link_append(&lane->waiting, &rq->link);
        return HF_OK;
    }
    rq->state = HFI_CONTENDING;
    rq->woken = true;
    hfi_link_append(&lane->contending, &rq->link);
    if (rq->hold->seat)
        lane->head = rq;
    return HF_OK;
}

static void request_init(struct hf_request *rq, struct hf_client *c,
                         int64_t wait_ms, const struct hfi_wish *wish)
{
    rq->client = c;
    rq->wish = *wish;
    rq->once = wait_ms == 0;
    rq->wait_end = wait_ms < 0 ? HFI_NEVER : hfi_after(hfi_now(), wait_ms);
    rq->cancel_seen = atomic_load(&c->cancels);
    rq->timer.kind = HFI_TIMER_REQUEST;
    hfi_link_init(&rq->link);
    hfi_link_init(&rq->ready);
    hfi_notice_init(&rq->notice);
}

/* Undo request_init() and request_place(), with the mutex held. */
static void request_fini(struct hf_request *rq)
{
    if (rq->hold)
        hfi_hold_free(rq->client, rq->hold);
    if (rq->lane)
        hfi_lane_put(rq->client, rq->lane);
    if (rq->spot) {
        rq->spot->next = rq->client->spots;
        rq->client->spots = rq->spot;
    }
    rq->hold = NULL;
    rq->lane = NULL;
    rq->spot = NULL;
}

static hf_status request_closed(struct hf_request *rq)
{
    return hfi_fail(&rq->err, HF_INVALID, "the client is being closed");
}

/* Have a place to sleep: one that was used before, or a new one. */
static bool request_find_spot(struct hf_request *rq)
{
    struct hf_client *c = rq->client;

    if (rq->spot)
        return true;
    rq->spot = c->spots;
    if (rq->spot) {
        c->spots = rq->spot->next;
        return true;
    }
    rq->spot = hfi_alloc(sizeof(*rq->spot));
    if (rq->spot)
        hfi_cond_init(&rq->spot->cond);
    return rq->spot != NULL;
}

/* Step, sleep, step again, in the caller's thread, until it is over. */
static hf_status request_drive(struct hf_request *rq)
{
    struct hf_client *c = rq->client;
    int64_t until;

    while (!hfi_request_step(rq, &until)) {
        if (rq->woken || until <= hfi_now())
            continue;
        if (request_find_spot(rq))
            hfi_cond_wait(&rq->spot->cond, &c->mu, until);
        else
            request_fail(rq, hfi_nomem(&rq->err));
    }
    return rq->state == HFI_GRANTED ? HF_OK : rq->result;
}

hf_status hfi_acquire(struct hf_client *c, const char *key, int64_t wait_ms,
                      const struct hfi_wish *wish, struct hf_lock **ret,
                      struct hf_error *err)
{
    struct hf_request rq = {0};
    hf_status st;

    rq.lock = hfi_lock_new(c);
    if (!rq.lock)
        return hfi_nomem(err);
    request_init(&rq, c, wait_ms, wish);
    pthread_mutex_lock(&c->mu);
    c->calls++;
    st = c->closing ? request_closed(&rq) : request_place(&rq, key, wish);
    if (!st)
        st = request_drive(&rq);
    request_fini(&rq);
    c->calls--;
    if (c->closing)
        hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
    if (st) {
        hfi_lock_free(rq.lock);
        if (err)
            *err = rq.err;
        return st;
    }
    *ret = rq.lock;
    return HF_OK;
}

/* ---- for event loops --------------------------------------------------- */

void hfi_request_free(struct hf_request *rq)
{
    struct hf_client *c = rq->client;

    hfi_heap_remove(&c->timers, &rq->timer);
    hfi_heap_unreserve(&c->timers);
    hfi_link_remove(&rq->link);
    hfi_link_remove(&rq->ready);
    hfi_notice_drop(c, &rq->notice);
    request_fini(rq);
    hfi_free(rq);
}

/* With the mutex held: make room for the timer, have a worker, find a place. */
static hf_status request_admit(struct hf_request *rq, const char *key,
                               const struct hfi_wish *wish)
{
    struct hf_client *c = rq->client;
    hf_status st;

    if (c->closing)
        return request_closed(rq);
    if (!hfi_worker_start(c))
        return hfi_fail(&rq->err, HF_SYSTEM, "no thread could be started");
    if (!hfi_heap_reserve(&c->timers))
        return hfi_nomem(&rq->err);
    st = request_place(rq, key, wish);
    if (st)
        hfi_heap_unreserve(&c->timers);
    else if (rq->state == HFI_CONTENDING)
        hfi_request_rouse(rq);
    else if (rq->state == HFI_WAITING)
        hfi_keeper_set(c, &rq->timer, rq->wait_end);
    return st;
}

hf_status hfi_acquire_start(struct hf_client *c, const char *key,
                            int64_t wait_ms, const struct hfi_wish *wish,
                            void *user, struct hf_request **ret,
                            struct hf_error *err)
{
    struct hf_request *rq = hfi_alloc(sizeof(*rq));
    struct hf_lock *lk = rq ? hfi_lock_new(c) : NULL;
    hf_status st;

    if (!lk) {
        hfi_free(rq);
        return hfi_nomem(err);
    }
    request_init(rq, c, wait_ms, wish);
    rq->async = true;
    rq->user = user;
    rq->lock = lk;
    pthread_mutex_lock(&c->mu);
    c->calls++; /* The mutex may be let go; see request_place(). */
    st = request_admit(rq, key, wish);
    if (!st) {
        *ret = rq;
    } else {
        if (err)
            *err = rq->err;
        request_fini(rq);
        hfi_free(rq);
    }
    c->calls--;
    if (c->closing)
        hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
    if (st)
        hfi_lock_free(lk);
    return st;
}
