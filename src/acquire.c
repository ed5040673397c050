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

void hfi_request_fail(struct hf_request *rq, hf_status st)
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
                                const struct hfi_answer *answer, int64_t now)
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
    if (answer->left_ms && answer->left_ms + 1 < ms)
        ms = answer->left_ms + 1;
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

static void request_granted(struct hf_request *rq,
                            const struct hfi_proof *proof, int64_t sent,
                            int64_t ttl_ms)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;

    if (hfi_now() >= hfi_hold_proven(c, hold, proof, sent, ttl_ms)) {
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

/* One try.  The mutex is let go while it is on the wire. */
static void request_try(struct hf_request *rq, int64_t now)
{
    struct hf_client *c = rq->client;
    struct hfi_hold *hold = rq->hold;
    struct hfi_answer answer = {.proof =
                                    hfi_proof_plain(now, hold->claim.ttl_ms)};
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
    st = c->be->try_acquire(c->conn, &hold->claim, &hold->grant, &answer,
                            deadline, &rq->err);
    pthread_mutex_lock(&c->mu);
    switch (st) {
    case HF_OK:
        request_granted(rq, &answer.proof, now, hold->claim.ttl_ms);
        break;
    case HF_BUSY:
        rq->tries++; /* An earlier try without an answer may still arrive. */
        atomic_store(&rq->place, answer.place);
        request_arm(rq, deadline);
        rq->next_try = request_next_try(rq, &answer, hfi_now());
        if (rq->expected && rq->expected < rq->next_try)
            rq->next_try = rq->expected;
        break;
    case HF_UNCERTAIN:
        hold->uncertain = hold->claim.doubt = true;
        /* fall through */
    case HF_UNAVAILABLE:
        rq->err.status = st;
        rq->next_try = hfi_now() + request_jitter(c, BACKOFF_MS);
        break;
    default:
        hfi_request_fail(rq, st);
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
        hfi_request_fail(rq, st);
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
