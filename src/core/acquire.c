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
 * says when it wants to be called again.  Who calls it is in request.c.
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
 *  (6) An event loop's request that is cancelled ends at once, also while its
 *      try is on the wire: the claim is then abandoned, and the worker that
 *      sent the try hands it to the reaper when the call returns.  Only the
 *      claim is touched then; the request may be gone.
 */
#include "core.h"

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

/* After a wake-up that found the lock still busy, where they come early. */
#define ECHO_MS 2

/* A try that is on the wire when the wait is over may still be answered: a
 * little late and certain is better than in time and not. */
#define ANSWER_MS 1000

/* A single try whose grant comes when its lease is over is asked for again so
 * often: mostly the next answer is in time. */
#define LATE_MAX 3

/* Between tries of a service that does not answer: twice as long each time. */
#define BACKOFF_MS     100
#define BACKOFF_MAX_MS 1600

/* A lock that is held for longer than this is made a whole lease of, if less
 * was given. */
#define GIFT_MS 20

/* ---- state ------------------------------------------------------------- */

/* Let its driver look at it again. */
void hfi_request_rouse(struct hf_request *rq)
{
    struct hf_client *c = rq->client;

    if (!rq->async) {
        if (rq->spot)
            hfi_spot_wake(c, rq->spot);
        return;
    }
    hfi_worker_add(c, rq);
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
        hfi_ear_leave(rq);
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

/* ---- giving up --------------------------------------------------------- */

/* By when something that is given back in passing must be answered. */
static int64_t request_soon(const struct hf_client *c)
{
    return hfi_now() + (c->timeout_ms < ANSWER_MS ? c->timeout_ms : ANSWER_MS);
}

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

/* May the service have something of this claim? */
static bool request_left_something(const struct hfi_hold *hold)
{
    return hold->uncertain || hold->claim.doubt ||
           ((hold->grant.placed || hold->watched) &&
            !HFI_MUTANT(place_left_behind));
}

/* Undo what the request may have left in the service, in the background unless
 * the caller waits.  grant.c (5) */
static void request_withdraw(struct hf_request *rq, bool wait)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;

    if (!hold || request_pass_place(rq))
        return;
    rq->hold = NULL;
    if (HFI_MUTANT(lost_reply_is_failure) && hold->claim.doubt)
        hfi_hold_free(c, hold);
    else if (hold->uncertain || (!wait && request_left_something(hold)))
        hfi_hold_reap(c, hold);
    else if (request_left_something(hold))
        hfi_hold_drop(c, hold, request_soon(c), NULL);
    else
        hfi_hold_free(c, hold);
}

static void request_give_up(struct hf_request *rq, hf_status st, bool wait)
{
    struct hf_client *c = rq->client;
    struct hfi_lane *lane = rq->lane;

    lane->users++; /* An event may be all that is left of the request. */
    rq->result = st;
    rq->err.status = st;
    hfi_link_remove(&rq->link);
    request_withdraw(rq, wait);
    if (lane->head == rq)
        lane->head = NULL;
    hfi_lane_promote(c, lane);
    request_end(rq, HFI_FAILED);
    hfi_lane_put(c, lane);
}

/* An event loop does not wait for a service that is known to be silent. */
void hfi_request_fail(struct hf_request *rq, hf_status st)
{
    request_give_up(rq, st, !(rq->async && rq->client->silent));
}

/* Cancelled while a try is on the wire: end the request, and leave its claim to
 * the worker that waits for the answer.  acquire.c (6) */
static void request_abandon(struct hf_request *rq)
{
    struct hf_client *c = rq->client;
    struct hfi_lane *lane = rq->lane;

    lane->users++;
    rq->hold->abandoned = true;
    rq->hold = NULL;
    rq->stepping = false;
    rq->result = hfi_fail(&rq->err, HF_CANCELED, "canceled");
    hfi_link_remove(&rq->link);
    if (lane->head == rq)
        lane->head = NULL;
    hfi_lane_promote(c, lane);
    request_end(rq, HFI_FAILED);
    hfi_lane_put(c, lane);
}

/* The call of an abandoned claim has returned. */
static void request_orphan(struct hf_client *c, struct hfi_hold *hold,
                           hf_status st)
{
    hold->abandoned = false;
    if (st == HF_OK || st == HF_UNCERTAIN || request_left_something(hold))
        hfi_hold_reap(c, hold);
    else
        hfi_hold_free(c, hold);
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

/* Can a request that no worker is at be ended without one?  Yes if the service
 * has nothing of it, or does not answer, or if no worker can come now. */
static bool request_ends_here(const struct hf_request *rq)
{
    return !rq->stepping &&
           (rq->client->silent || hfi_workers_busy(rq->client) ||
            (!rq->before && !request_left_something(rq->hold)));
}

/* Let it see whether it was cancelled, without waiting for the service. */
void hfi_request_look(struct hf_request *rq)
{
    if (!rq->async || !request_is_canceled(rq)) {
        hfi_request_rouse(rq);
    } else if (rq->on_wire) {
        request_abandon(rq);
    } else if (request_ends_here(rq)) {
        if (rq->before)
            hfi_hold_reap(rq->client, rq->before);
        rq->before = NULL;
        hfi_link_remove(&rq->ready);
        request_give_up(rq, hfi_fail(&rq->err, HF_CANCELED, "canceled"), false);
    } else {
        hfi_request_rouse(rq);
    }
}

/* Must it end without the lock?  HF_OK if not. */
static hf_status request_over(struct hf_request *rq, int64_t now)
{
    bool again = rq->once && rq->late && rq->late < LATE_MAX;
    bool asked =
        rq->state == HFI_WAITING || (rq->tries && !again) || !rq->woken;

    if (request_is_canceled(rq))
        return hfi_fail(&rq->err, HF_CANCELED, "canceled");
    if (asked && now >= rq->wait_end)
        return request_timeout(rq);
    if (rq->tries < rq->wish.max_tries)
        return HF_OK;
    if (rq->err.status == HF_UNAVAILABLE || rq->err.status == HF_UNCERTAIN)
        return request_timeout(rq);
    return hfi_fail(&rq->err, HF_TIMEOUT, "held by others at each of %d tries",
                    rq->tries);
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
                                const struct hfi_answer *answer, int64_t now)
{
    struct hf_client *c = rq->client;
    int64_t ms;

    if (!rq->hold->watched)
        return now + rq->hold->claim.poll_ms;
    if (rq->echo && c->conn->traits & HFI_TRAIT_EARLY) {
        rq->echo = false;
        return now + ECHO_MS;
    }
    ms = c->be->net_ms ? c->be->net_ms : rq->wish.ttl_ms / 2 + 1;
    ms = request_jitter(c, ms);
    if (answer->left_ms && answer->left_ms + 1 < ms)
        ms = answer->left_ms + 1;
    return now + ms;
}

/* Arrange to be woken, once, after the first busy.  The mutex is let go.  False
 * if the request was abandoned meanwhile. */
static bool request_arm(struct hf_request *rq, int64_t deadline)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;
    hf_status st;

    if (hold->watched || rq->once || !c->be->watch ||
        rq->wish.flags & HF_POLL || !(c->conn->traits & HF_TRAIT_NOTIFY))
        return true;
    rq->on_wire = true;
    pthread_mutex_unlock(&c->mu);
    st = c->be->watch(c->conn, &hold->claim, &hold->grant, deadline, NULL);
    pthread_mutex_lock(&c->mu);
    hold->watched = st == HF_OK;
    if (hold->abandoned) {
        request_orphan(c, hold, HF_BUSY);
        return false;
    }
    rq->on_wire = false;
    if (hold->watched && !HFI_MUTANT(no_recheck_after_arming))
        rq->woken = true; /* acquire.c (2) */
    return true;
}

/* The answer came when it was worth nothing any more: ask again. */
static void request_too_late(struct hf_request *rq, int64_t sent)
{
    rq->hold->uncertain = true; /* acquire.c (3) */
    rq->woken = true;
    rq->late++;
    hfi_fail(&rq->err, HF_UNCERTAIN,
             "granted after %lld ms, when the lease of %lld ms was over",
             (long long)(hfi_now() - sent), (long long)rq->hold->claim.ttl_ms);
}

static void request_granted(struct hf_request *rq,
                            const struct hfi_proof *proof, int64_t sent,
                            int64_t ttl_ms)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;

    if (hold->watched) {
        pthread_mutex_unlock(&c->mu);
        c->be->unwatch(c->conn, &hold->claim, &hold->grant);
        pthread_mutex_lock(&c->mu);
        hold->watched = false;
    }
    if (hfi_now() >= hfi_hold_proven(c, hold, proof, sent, ttl_ms)) {
        request_too_late(rq, sent);
        return;
    }
    hfi_hold_granted(c, hold, &rq->wish, proof, sent, ttl_ms);
    hfi_request_grant(rq, hold);
}

/* Take what was given while we slept.  The keeper soon makes a whole lease of it;
 * without a keeper, a try must.  acquire.c (4) */
static bool request_take_gift(struct hf_request *rq, int64_t now)
{
    struct hfi_hold *hold = rq->hold;
    struct hfi_gift gift = rq->gift;
    struct hfi_proof proof;

    rq->gift.fence = 0;
    if (gift.ms > hold->claim.ttl_ms)
        gift.ms = hold->claim.ttl_ms;
    if (!gift.fence || hold->manual ||
        now >= hfi_lease_at_risk_at(hfi_lease_deadline(hold->next_at, gift.ms),
                                    gift.ms))
        return false;
    hold->grant.fence = gift.fence;
    hold->grant.placed = true;
    proof = hfi_proof_plain(hold->next_at, gift.ms);
    request_granted(rq, &proof, hold->next_at, gift.ms);
    if (rq->state != HFI_GRANTED)
        return false;
    if (now + GIFT_MS < hold->next_at) {
        hold->next_at = now + GIFT_MS;
        hfi_keeper_hold(rq->client, hold);
    }
    return true;
}

/* Somebody else has it. */
static bool request_busy(struct hf_request *rq, const struct hfi_answer *answer,
                         int64_t deadline)
{
    atomic_store(&rq->place, answer->place);
    if (!request_arm(rq, deadline))
        return false;
    rq->next_try = request_next_try(rq, answer, hfi_now());
    if (rq->expected && rq->expected < rq->next_try)
        rq->next_try = rq->expected;
    return true;
}

/* The service does not answer, or cannot serve. */
static void request_backs_off(struct hf_request *rq)
{
    int64_t ms = BACKOFF_MS << (rq->failures < 4 ? rq->failures : 4);

    rq->failures++;
    if (ms > BACKOFF_MAX_MS)
        ms = BACKOFF_MAX_MS;
    rq->next_try = hfi_now() + request_jitter(rq->client, ms);
}

/* What became of a try that was sent at `sent`. */
static bool request_judge(struct hf_request *rq, hf_status st, int64_t sent,
                          const struct hfi_answer *answer, int64_t deadline)
{
    struct hfi_hold *hold = rq->hold;

    rq->on_wire = false;
    rq->tries++;
    rq->client->silent = st == HF_UNCERTAIN || st == HF_UNAVAILABLE;
    if (!rq->client->silent)
        rq->failures = 0;
    switch (st) {
    case HF_OK:
        request_granted(rq, &answer->proof, sent, hold->claim.ttl_ms);
        return true;
    case HF_BUSY: /* An earlier try without an answer may still arrive. */
        return request_busy(rq, answer, deadline);
    case HF_UNCERTAIN:
        hold->uncertain = hold->claim.doubt = true;
        /* fall through */
    case HF_UNAVAILABLE:
        rq->err.status = st;
        request_backs_off(rq);
        return true;
    default:
        hfi_request_fail(rq, st);
        return true;
    }
}

/* One try.  The mutex is let go while it is on the wire.  False if the request
 * was abandoned meanwhile. */
static bool request_try(struct hf_request *rq, int64_t now)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;
    struct hfi_answer answer = {.proof =
                                    hfi_proof_plain(now, hold->claim.ttl_ms)};
    int64_t deadline = now + c->timeout_ms;
    struct hf_error err; /* not zeroed: a failure fills it */
    hf_status st;

    err.status = HF_OK;
    err.sys_errno = 0;
    err.text[0] = '\0';
    if (!rq->once && rq->wait_end < deadline - ANSWER_MS)
        deadline = rq->wait_end + ANSWER_MS;
    if (atomic_load(&c->conn->listening) &&
        !request_arm(rq, deadline)) /* so this try is the one after it */
        return false;
    rq->echo = rq->woken && rq->tries > 1;
    rq->woken = rq->called = false;
    rq->expected = 0;
    rq->gift.fence = 0;
    rq->err.status = HF_OK;
    rq->on_wire = true;
    hold->next_at = now;
    hold->claim.nth++;
    hold->claim.poll_ms = request_jitter(c, rq->wish.retry_ms);
    pthread_mutex_unlock(&c->mu);
    st = c->be->try_acquire(c->conn, &hold->claim, &hold->grant, &answer,
                            deadline, &err);
    pthread_mutex_lock(&c->mu);
    if (hold->abandoned) {
        hold->claim.doubt = hold->claim.doubt || st == HF_UNCERTAIN;
        request_orphan(c, hold, st);
        return false;
    }
    if (st)
        rq->err = err;
    return request_judge(rq, st, now, &answer, deadline);
}

/* Give back what lingered here and does not fit. */
static void request_clear(struct hf_request *rq)
{
    struct hfi_hold *before = rq->before;

    rq->before = NULL;
    if (before)
        hfi_hold_drop(rq->client, before, request_soon(rq->client), NULL);
}

/* Move the request on by at most one try, for which the mutex, held by the
 * caller, is let go.  True when it is over, and then it may be gone; else
 * *until is when it wants to be stepped again, unless it is roused before. */
bool hfi_request_step(struct hf_request *rq, int64_t *until)
{
    int64_t now;
    hf_status st;

    if (rq->before)
        request_clear(rq);
    now = hfi_now();
    if (rq->state == HFI_GRANTED || rq->state == HFI_FAILED)
        return true;
    st = request_over(rq, now);
    if (st)
        hfi_request_fail(rq, st);
    else if (rq->state == HFI_CONTENDING &&
             (rq->woken || now >= rq->next_try) &&
             !request_take_gift(rq, now) && !request_try(rq, now))
        return true;
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
