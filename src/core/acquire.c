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
 *                 `-------- given it while asleep, and took it --------->
 *                 GRANTED
 *             (any) -- wait over, cancelled, tries used up, final error: FAILED
 *
 * A request is moved on by hfi_request_step(), which sends at most one try and
 * says when it wants to be called again.  Its callers are in request.c.  A
 * worker does it in two steps, so that the tries of several requests are under
 * way at once (worker.c).
 *
 * INVARIANTS
 *  (1) Tries repeat one token, so a try whose answer was lost is confirmed by
 *      the next one and never becomes a second claim.  Only when the service
 *      says that this claim is over does another begin, under a fresh token.
 *  (2) After the wake-up is armed there is always another try before sleep:
 *      what happened in between cannot be missed.
 *  (3) A grant counts from before its try was sent, and one whose lease is over
 *      when the answer comes is asked for again, not returned.
 *  (4) What the service gave by itself, as it passed the lock on, counts from
 *      before the last try was sent: the service gave it after it had served
 *      that try, so the end comes no later for us than for it.  One that would
 *      not last long is asked for by a try instead.
 *  (5) A grant that is known to be broken is never returned.  The service says
 *      so itself to a try that is sent after that; word of it that overtakes
 *      the answer of a try, or comes before what was given is taken, is kept in
 *      rq->broken.  Then this claim is over: (1).
 */
#include "log.h"
#include "stats.h"

#include "base/alloc.h"
#include "base/mutant.h"
#include "base/probe.h"

#include "base/banned.h"

/* After a wake-up that found the lock still busy, where they come early. */
#define ECHO_MS 2

/* A single try whose grant comes when its lease is over is asked for again so
 * often: mostly the next answer is in time. */
#define LATE_MAX 3

/* Between tries of a service that does not answer: twice as long each time. */
#define BACKOFF_MS     100
#define BACKOFF_MAX_MS 1600

/* So many workers at most are at arranging that requests are woken: it may take
 * as long as a service is silent, and those that wait for it poll meanwhile. */
#define ARMING_MAX 4

/* A lock that is held for longer than this is made a whole lease of, if less
 * was given. */
#define GIFT_MS 20

/* ---- state ------------------------------------------------------------- */

/* Let its driver look at it again. */
void hfi_request_schedule(struct hf_request *rq)
{
    struct hf_client *c = rq->client;

    if (!rq->async) {
        if (rq->sleeper)
            hfi_sleeper_wake(c, rq->sleeper);
        return;
    }
    hfi_worker_add(c, rq);
}

/* The request has `grant`, its own or one that was handed to it.  Where its
 * thread sleeps, to be woken by the caller: best after the mutex is let go, or
 * it would wake up only to wait for that. */
struct hfi_sleeper *hfi_request_grant(struct hf_request *rq,
                                      struct hfi_grant *grant)
{
    struct hf_client *c = rq->client;
    struct hfi_sleeper *sleeper = rq->sleeper;

    if (rq->grant && rq->grant != grant)
        hfi_grant_free(c, rq->grant); /* It was never sent. */
    rq->grant = NULL;
    rq->lock->user = rq->user;
    hfi_count_granted(rq, rq->lock);
    hfi_grant_give(c, grant, rq->lock);
    if (rq->several && hfi_several_goes_on(c, rq->several))
        hfi_request_next_key(rq);
    else
        hfi_request_end(rq, HFI_GRANTED);
    return sleeper;
}

/* Must it end without the lock?  HF_OK if not. */
static inline hf_status request_over(struct hf_request *rq, int64_t now)
{
    bool again = rq->once && rq->late && rq->late < LATE_MAX;
    bool asked = rq->state == HFI_WAITING || (rq->tries && !again) ||
                 !rq->woken ||
                 (rq->once ? hfi_request_is_single(rq) &&
                                 now - rq->wait_end >= rq->client->timeout_ms
                           : now - rq->wait_end >= HFI_ANSWER_MS);

    if (hfi_request_is_canceled(rq))
        return hfi_fail(&rq->err, HF_CANCELED, "canceled");
    if (asked && now >= rq->wait_end)
        return hfi_request_timeout(rq);
    if (rq->tries < rq->params.max_tries)
        return HF_OK;
    if (rq->err.status == HF_UNAVAILABLE || rq->err.status == HF_UNCERTAIN)
        return hfi_request_timeout(rq);
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

    if (!rq->grant->watched)
        return now + rq->grant->claim.poll_ms;
    if (rq->retry_early_wake && c->conn->traits & HFI_TRAIT_EARLY) {
        rq->retry_early_wake = false;
        return now + ECHO_MS;
    }
    ms = c->be->fallback_poll_ms ? c->be->fallback_poll_ms
                                 : rq->params.ttl_ms / 2 + 1;
    ms = request_jitter(c, ms);
    if (answer->left_ms && answer->left_ms + 1 < ms)
        ms = answer->left_ms + 1;
    return now + ms;
}

/* Is it yet to arrange to be woken? */
static bool request_arms(const struct hf_request *rq)
{
    const struct hf_client *c = rq->client;

    return !rq->grant->watched && !rq->once && c->be->watch &&
           !(rq->params.flags & HF_POLL) && c->conn->traits & HF_TRAIT_NOTIFY;
}

/* Arrange to be woken, once, after the first busy.  The mutex is let go.  False
 * if the request was abandoned meanwhile. */
static bool request_arm(struct hf_request *rq, int64_t deadline)
{
    struct hf_client *c = rq->client;
    struct hfi_grant *grant = rq->grant;
    bool async = rq->async; /* The request may be gone by then. */
    hf_status st;

    if (!request_arms(rq) || (async && c->arming == ARMING_MAX))
        return true;
    c->arming += async;
    rq->on_wire = true;
    pthread_mutex_unlock(&c->mu);
    st = c->be->watch(c->conn, &grant->claim, &grant->receipt, deadline, NULL);
    pthread_mutex_lock(&c->mu);
    c->arming -= async;
    grant->watched = st == HF_OK;
    if (grant->abandoned) {
        hfi_request_abandoned(c, grant, HF_BUSY);
        return false;
    }
    rq->on_wire = false;
    if (grant->watched && !HFI_MUTANT(no_recheck_after_arming))
        rq->woken = true; /* acquire.c (2) */
    return true;
}

/* The answer came when it was worth nothing any more: ask again. */
static void request_too_late(struct hf_request *rq, int64_t sent)
{
    rq->grant->uncertain = true; /* acquire.c (3) */
    rq->woken = true;
    rq->late++;
    hfi_fail(&rq->err, HF_UNCERTAIN,
             "granted after %lld ms, when the lease of %lld ms was over",
             (long long)(hfi_now() - sent), (long long)rq->grant->claim.ttl_ms);
}

/* The service does not answer, or cannot serve. */
static void request_backs_off(struct hf_request *rq)
{
    int64_t ms = BACKOFF_MS << (rq->failures < 4 ? rq->failures : 4);

    rq->failures++;
    if (ms > BACKOFF_MAX_MS)
        ms = BACKOFF_MAX_MS;
    ms = request_jitter(rq->client, ms);
    rq->next_try = hfi_now() + ms;
    if (hfi_logs(rq->client, HF_LOG_INFO))
        hfi_log_key(rq->client, HF_LOG_INFO, rq->queue->key,
                    "no answer, next try in %lld ms: %s", (long long)ms,
                    rq->err.text);
}

/* This claim is over: what ended it, and had no answer, has arrived (HF_LOST),
 * or what was granted (HF_OK) was broken, and is given back.  Go on with another,
 * under a fresh token.  acquire.c (1) */
static void request_begins_again(struct hf_request *rq, hf_status st)
{
    struct hf_client *c = rq->client;
    struct hfi_grant *old = rq->grant;
    struct hfi_grant *grant = hfi_grant_new(c, rq->queue, &rq->params);

    if (!grant) {
        hfi_request_fail(rq, hfi_nomem(&rq->err));
        return;
    }
    grant->claim.queue = old->claim.queue;
    rq->params.owner = grant->claim.owner;
    rq->params.note = grant->claim.note;
    rq->grant = grant;
    rq->err.status = HF_UNAVAILABLE; /* Nobody is known to hold the lock. */
    hfi_request_abandoned(c, old, st);
    request_backs_off(rq);
}

static void request_granted(struct hf_request *rq,
                            const struct hfi_proof *proof, int64_t sent,
                            int64_t ttl_ms)
{
    struct hf_client *c = rq->client;
    struct hfi_grant *grant = rq->grant;
    struct hfi_proof late;

    if (grant->watched) {
        pthread_mutex_unlock(&c->mu);
        c->be->unwatch(c->conn, &grant->claim, &grant->receipt);
        pthread_mutex_lock(&c->mu);
        grant->watched = false;
    }
    if (rq->broken) { /* acquire.c (5) */
        hfi_fail(&rq->err, HF_LOST, "broken when it had just been granted");
        request_begins_again(rq, HF_OK);
        return;
    }
    rq->ended_us = hfi_now_us();
    if (rq->ended_us / 1000 >=
        hfi_grant_proven(c, grant, proof, sent, ttl_ms)) {
        if (!HFI_MUTANT(granted_after_the_end)) {
            rq->ended_us = 0;
            request_too_late(rq, sent);
            return;
        }
        sent = hfi_now();
        late = hfi_proof_plain(sent, ttl_ms);
        proof = &late;
    }
    hfi_grant_begin(c, grant, &rq->params, proof, sent, ttl_ms);
    HFI_PROBE2(grant, grant->claim.key, grant->receipt.fence);
    if (hfi_logs(c, HF_LOG_DEBUG))
        hfi_log_key(c, HF_LOG_DEBUG, grant->claim.key, "granted, fence %llu",
                    (unsigned long long)grant->receipt.fence);
    hfi_request_grant(rq, grant);
    if (grant->claim.owner)
        hfi_key_queue_wake_owner(grant->queue, grant);
}

/* Share what another request of the same owner id has got meanwhile. */
static bool request_join(struct hf_request *rq)
{
    struct hfi_grant *grant =
        rq->params.owner ? hfi_key_queue_owned(rq->queue, &rq->params) : NULL;

    if (!grant)
        return false;
    hfi_grant_join(rq->client, grant, &rq->params);
    hfi_request_withdraw(rq, false);
    hfi_request_grant(rq, grant);
    return true;
}

/* Take what was given while we slept.  The keeper soon makes a whole lease of
 * it; without a keeper, a try must.  acquire.c (4) */
static bool request_take_handoff(struct hf_request *rq, int64_t now)
{
    struct hfi_grant *grant = rq->grant;
    struct hfi_handoff handoff = rq->handoff;
    struct hfi_proof proof;

    rq->handoff.fence = 0;
    if (handoff.ms > grant->claim.ttl_ms)
        handoff.ms = grant->claim.ttl_ms;
    if (!handoff.fence || grant->manual ||
        now >= hfi_lease_at_risk_at(
                   hfi_lease_deadline(grant->next_at, handoff.ms), handoff.ms))
        return false;
    grant->receipt.fence = handoff.fence;
    grant->receipt.slot = handoff.slot;
    grant->receipt.registered = true;
    proof = hfi_proof_plain(grant->next_at, handoff.ms);
    request_granted(rq, &proof, grant->next_at, handoff.ms);
    if (grant->state == HFI_CLAIMING)
        return false; /* too late */
    if (grant->state == HFI_HELD && now + GIFT_MS < grant->next_at) {
        grant->next_at = now + GIFT_MS;
        hfi_keeper_add(rq->client, grant);
    }
    return true;
}

/* To arrange to be woken, which may take long, is a step of its own where others
 * wait for the thread that asked: a try counts from after it.  False if the
 * request was abandoned.  acquire.c (2) */
static bool request_arm_now(struct hf_request *rq, int64_t now)
{
    rq->arm_first = rq->woken = false;
    if (!request_arm(rq, hfi_request_limit(rq, now)))
        return false;
    if (!rq->woken)
        rq->next_try = hfi_now() + rq->grant->claim.poll_ms;
    return true;
}

/* Somebody else has it. */
static bool request_busy(struct hf_request *rq, const struct hfi_try *try)
{
    atomic_store(&rq->position, try->answer.position);
    if (try->with_others && request_arms(rq)) {
        rq->arm_first = rq->woken = true;
        return true;
    }
    if (!request_arm(rq, try->deadline))
        return false;
    rq->next_try = request_next_try(rq, &try->answer, hfi_now());
    if (rq->expected && rq->expected < rq->next_try)
        rq->next_try = rq->expected;
    return true;
}

/* What became of a try. */
static inline bool request_judge(struct hf_request *rq,
                                 const struct hfi_try *try, hf_status st)
{
    struct hfi_grant *grant = rq->grant;

    rq->on_wire = false;
    rq->tries++;
    rq->client->silent = st == HF_UNCERTAIN || st == HF_UNAVAILABLE;
    if (!rq->client->silent)
        rq->failures = 0;
    switch (st) {
    case HF_OK:
        request_granted(rq, &try->answer.proof, try->sent, grant->claim.ttl_ms);
        return true;
    case HF_BUSY: /* An earlier try without an answer may still arrive. */
        return request_busy(rq, try);
    case HF_UNCERTAIN:
        grant->uncertain = grant->claim.doubt = true;
        /* fall through */
    case HF_UNAVAILABLE:
        rq->err.status = st;
        request_backs_off(rq);
        return true;
    case HF_LOST:
        request_begins_again(rq, HF_LOST);
        return true;
    default:
        hfi_request_fail(rq, st);
        return true;
    }
}

/* All but the sending.  False if the request was abandoned meanwhile: the mutex
 * may be let go. */
static inline bool request_try_begin(struct hf_request *rq, int64_t now,
                                     struct hfi_try *ret)
{
    struct hf_client *c = rq->client;
    struct hfi_grant *grant = rq->grant;

    ret->rq = rq;
    ret->grant = grant;
    ret->answer =
        (struct hfi_answer){.proof = hfi_proof_plain(now, grant->claim.ttl_ms)};
    ret->sent = now;
    ret->deadline = hfi_request_limit(rq, now);
    ret->err.status = HF_OK; /* not zeroed: a failure fills it */
    ret->err.sys_errno = 0;
    ret->err.text[0] = '\0';
    ret->with_others = false;
    if (atomic_load(&c->conn->listening) &&
        !request_arm(rq, ret->deadline)) /* so this try is the one after it */
        return false;
    rq->retry_early_wake = rq->woken && rq->tries > 1;
    rq->woken = rq->called = rq->broken = false;
    rq->expected = 0;
    rq->handoff.fence = 0;
    rq->err.status = HF_OK;
    rq->on_wire = true;
    grant->next_at = now;
    grant->claim.nth++;
    grant->claim.poll_ms = request_jitter(c, rq->params.retry_ms);
    return true;
}

/* Send it and wait for the answer, with the mutex held, which is let go
 * meanwhile.  False if the request was abandoned; or in *again, if the try is to
 * be made again. */
static inline bool request_try_end(struct hf_client *c, struct hfi_try *try,
                                   bool *again)
{
    struct hf_request *rq = try->rq;
    struct hfi_grant *grant = try->grant;
    hf_status st;

    pthread_mutex_unlock(&c->mu);
    st = c->be->try_acquire(c->conn, &grant->claim, &grant->receipt,
                            &try->answer, try->deadline, &try->err);
    pthread_mutex_lock(&c->mu);
    *again = st == HFI_AGAIN && !grant->abandoned;
    if (*again)
        return false;
    if (grant->abandoned) {
        grant->claim.doubt = grant->claim.doubt || st == HF_UNCERTAIN;
        hfi_request_abandoned(c, grant, st);
        return false;
    }
    if (st)
        rq->err = try->err;
    return request_judge(rq, try, st);
}

/* Give back what lingered here and does not fit. */
static void request_clear(struct hf_request *rq)
{
    struct hfi_grant *before = rq->return_first;

    rq->return_first = NULL;
    if (before)
        hfi_grant_drop(rq->client, before, hfi_request_soon(rq->client), NULL);
}

/* There is no connection.  One that is wanted once waits for it as long as its
 * answer may take.  True when the request is over.  connect.c */
static bool request_is_offline(struct hf_request *rq, int64_t now,
                               int64_t *until)
{
    struct hf_client *c = rq->client;
    hf_status st = HF_OK;

    *until = rq->once ? hfi_after(rq->wait_end, c->timeout_ms) : rq->wait_end;
    if (hfi_request_is_canceled(rq))
        st = hfi_fail(&rq->err, HF_CANCELED, "canceled");
    else if (atomic_load(&c->offline) == HFI_OFFLINE || now >= *until)
        st = hfi_connect_error(c, &rq->err);
    if (st) {
        hfi_request_fail(rq, st);
        return true;
    }
    rq->woken = false;
    rq->failures = 1;
    rq->next_try = HFI_NEVER;
    return false;
}

/* Its first try since there is a connection: can the service do that at all? */
static inline hf_status request_is_able(struct hf_request *rq)
{
    if (!rq->params.unchecked)
        return HF_OK;
    rq->params.unchecked = false;
    return hfi_params_able(rq->client, &rq->params, &rq->err);
}

/* Is it over?  If not, *until is when it wants to be stepped again. */
static inline enum hfi_step request_stepped(const struct hf_request *rq,
                                            int64_t *until)
{
    if (rq->state == HFI_GRANTED || rq->state == HFI_FAILED)
        return HFI_STEP_OVER;
    *until = rq->wait_end;
    if (rq->state == HFI_CONTENDING && rq->next_try < rq->wait_end)
        *until = rq->next_try;
    if ((rq->state == HFI_CONTENDING && (rq->woken || rq->once)) ||
        hfi_request_is_canceled(rq))
        *until = 0;
    return HFI_STEP_LATER;
}

/* The step up to where it sends a try.  HFI_STEP_TRY: hfi_request_step_end() is
 * due.  The mutex, held by the caller, may be let go. */
static inline enum hfi_step request_step_begin(struct hf_request *rq,
                                               struct hfi_try *try,
                                               int64_t *until)
{
    int64_t now;
    hf_status st;

    if (rq->return_first)
        request_clear(rq);
    now = hfi_now();
    if (rq->state == HFI_GRANTED || rq->state == HFI_FAILED)
        return HFI_STEP_OVER;
    if ((rq->state == HFI_CONTENDING || rq->once) &&
        atomic_load(&rq->client->offline))
        return request_is_offline(rq, now, until) ? HFI_STEP_OVER
                                                  : HFI_STEP_LATER;
    st = request_over(rq, now);
    if (!st)
        st = request_is_able(rq);
    if (!st && rq->arm_first)
        return request_arm_now(rq, now) ? request_stepped(rq, until)
                                        : HFI_STEP_OVER;
    if (st)
        hfi_request_fail(rq, st);
    else if (rq->state == HFI_CONTENDING &&
             (rq->woken || now >= rq->next_try) && !request_join(rq) &&
             !request_take_handoff(rq, now))
        return request_try_begin(rq, now, try) ? HFI_STEP_TRY : HFI_STEP_OVER;
    return request_stepped(rq, until);
}

/* And from there on. */
static inline enum hfi_step request_step_end(struct hf_client *c,
                                             struct hfi_try *try,
                                             int64_t *until)
{
    bool again;

    if (request_try_end(c, try, &again))
        return request_stepped(try->rq, until);
    return again ? HFI_STEP_TRY : HFI_STEP_OVER;
}

/* Move the request on by at most one try, for which the mutex, held by the
 * caller, is let go.  True when it is over, and then it may be gone; else
 * *until is when it wants to be stepped again, unless it is scheduled before.
 * */
bool hfi_request_step(struct hf_request *rq, int64_t *until)
{
    struct hf_client *c = rq->client;
    struct hfi_try try;
    enum hfi_step step = request_step_begin(rq, &try, until);

    if (step == HFI_STEP_TRY)
        step = request_step_end(c, &try, until);
    return step == HFI_STEP_OVER;
}

/* The same in two steps, with the tries of others sent in between. */
enum hfi_step hfi_request_step_begin(struct hf_request *rq, struct hfi_try *try,
                                     int64_t *until)
{
    return request_step_begin(rq, try, until);
}

enum hfi_step hfi_request_step_end(struct hf_client *c, struct hfi_try *try,
                                   int64_t *until)
{
    return request_step_end(c, try, until);
}
