/* SPDX-License-Identifier: MIT
 *
 * request.c - a request from where it is asked for to where it is over.
 *
 * It is first looked for among what this client has, then put where it belongs:
 * in the local queue of its key, or among those that talk to the service.  From
 * there on acquire.c says what happens.  A blocking call is a loop around its
 * step in the caller's own thread; an event loop's request is stepped by the
 * worker, and an event ends it.
 */
#include "stats.h"

#include "base/alloc.h"
#include "base/probe.h"

#include "base/banned.h"

/* ---- beginning --------------------------------------------------------- */

/* What this client has already that serves the request as it is. */
static struct hfi_grant *request_have(struct hf_client *c,
                                      struct hfi_key_queue *queue,
                                      const struct hfi_lock_params *params)
{
    struct hfi_grant *grant = queue->local_grant;

    if (grant && grant->state == HFI_LINGERING && hfi_held(grant) &&
        hfi_grant_fits(grant, params)) {
        hfi_grant_take_up(c, grant, params);
        return grant;
    }
    grant = params->owner ? hfi_key_queue_owned(queue, params) : NULL;
    if (grant)
        hfi_grant_join(c, grant, params);
    return grant;
}

/* Let the request give back what lingers, at its first step: this call may be
 * an event loop's, which waits for no service. */
static void request_end_linger(struct hf_request *rq)
{
    struct hfi_grant *grant = rq->queue->local_grant;

    rq->queue->local_grant = NULL;
    rq->return_first = grant;
    grant->state = HFI_RELEASING;
    hfi_heap_remove(&rq->client->timers, &grant->timer);
    hfi_link_remove(&grant->due);
}

/* Find a place for the request: granted at once, contending, or waiting. */
static hf_status request_enqueue(struct hf_request *rq, const char *key,
                                 const struct hfi_lock_params *params)
{
    struct hf_client *c = rq->client;
    struct hfi_key_queue *queue = rq->queue = hfi_key_queue_get(c, key);
    struct hfi_grant *have;

    HFI_PROBE2(acquire, key, rq->wait_end);
    if (!queue)
        return hfi_nomem(&rq->err);
    have = request_have(c, queue, params);
    if (have) {
        hfi_request_grant(rq, have);
        return HF_OK;
    }
    rq->grant = hfi_grant_new(c, queue, params);
    if (!rq->grant)
        return hfi_nomem(&rq->err);
    if (params->owner && hfi_key_queue_other_mode(queue, params))
        return hfi_fail_other_mode(&rq->err, &rq->grant->claim);
    if (queue->local_grant && queue->local_grant->state == HFI_LINGERING)
        request_end_linger(rq); /* It does not fit. */
    rq->params.owner = rq->grant->claim.owner;
    rq->params.note = rq->grant->claim.note;
    rq->grant->claim.queue = !rq->once;
    if (rq->grant->local_grant && (queue->local_grant || queue->leader)) {
        rq->state = HFI_WAITING;
        hfi_link_append(&queue->waiting, &rq->link);
        hfi_key_queue_spur(queue, &rq->params);
        return HF_OK;
    }
    rq->state = HFI_CONTENDING;
    rq->woken = true;
    hfi_link_append(&queue->contending, &rq->link);
    if (rq->grant->local_grant)
        queue->leader = rq;
    return HF_OK;
}

static void request_init(struct hf_request *rq, struct hf_client *c,
                         int64_t wait_ms, const struct hfi_lock_params *params)
{
    rq->client = c;
    rq->params = *params;
    if (params->canceler) {
        hfi_canceler_get(params->canceler);
        rq->canceler_seen = hfi_canceler_times(params->canceler);
    }
    rq->once = wait_ms == 0;
    rq->began_us = hfi_now_us();
    rq->wait_end =
        wait_ms < 0 ? HFI_NEVER : hfi_after(rq->began_us / 1000, wait_ms);
    rq->cancel_seen = atomic_load(&c->cancels);
    rq->timer.kind = HFI_TIMER_REQUEST;
    hfi_link_init(&rq->link);
    hfi_link_init(&rq->ready);
    hfi_notice_init(&rq->notice);
}

/* Undo request_init() and request_enqueue(), with the mutex held. */
static void request_fini(struct hf_request *rq)
{
    if (rq->grant)
        hfi_grant_free(rq->client, rq->grant);
    if (rq->queue)
        hfi_key_queue_put(rq->client, rq->queue);
    if (rq->sleeper) {
        rq->sleeper->next = rq->client->sleepers;
        rq->client->sleepers = rq->sleeper;
    }
    rq->grant = NULL;
    rq->queue = NULL;
    rq->sleeper = NULL;
    if (rq->params.canceler)
        hfi_canceler_put(rq->params.canceler);
    rq->params.canceler = NULL;
}

/* May it begin at all?  canceler.c (1) */
static inline hf_status request_may_begin(struct hf_request *rq)
{
    if (!hfi_request_is_canceled(rq))
        return HF_OK;
    if (rq->client->closing)
        return hfi_fail(&rq->err, HF_INVALID, "the client is being closed");
    return hfi_fail(&rq->err, HF_CANCELED, "canceled");
}

/* Have a place to sleep: one that was used before, or a new one. */
static bool request_find_sleeper(struct hf_request *rq)
{
    struct hf_client *c = rq->client;

    if (rq->sleeper)
        return true;
    rq->sleeper = c->sleepers;
    if (rq->sleeper) {
        c->sleepers = rq->sleeper->next;
        return true;
    }
    rq->sleeper = hfi_alloc(sizeof(*rq->sleeper));
    if (rq->sleeper)
        hfi_cond_init(&rq->sleeper->cond);
    return rq->sleeper != NULL;
}

/* Step, sleep, step again, in the caller's thread, until it is over. */
static hf_status request_drive(struct hf_request *rq)
{
    struct hf_client *c = rq->client;
    int64_t until;

    rq->waited = true;
    hfi_listener_enter(rq);
    while (!hfi_request_step(rq, &until)) {
        if (rq->woken || until <= hfi_now())
            continue;
        if (!request_find_sleeper(rq))
            hfi_request_fail(rq, hfi_nomem(&rq->err));
        else if (!hfi_listener_wait(rq, until))
            hfi_cond_wait(&rq->sleeper->cond, &c->mu, until);
    }
    hfi_listener_leave(rq);
    return rq->state == HFI_GRANTED ? HF_OK : rq->result;
}

/* By when a request that is sent now must be answered. */
int64_t hfi_request_limit(const struct hf_request *rq, int64_t now)
{
    int64_t limit = now + rq->client->timeout_ms;

    if (hfi_request_is_single(rq))
        return hfi_after(rq->wait_end, rq->client->timeout_ms);
    if (!rq->once && rq->wait_end < limit - HFI_ANSWER_MS)
        limit = rq->wait_end + HFI_ANSWER_MS;
    return limit;
}

/* Try to have several keys in one request.  HF_OK also if they are to be asked
 * for one by one; then the request is not granted. */
static hf_status request_at_once(struct hf_request *rq)
{
    hf_status st = hfi_several_at_once(
        rq->client, rq->several, hfi_request_limit(rq, hfi_now()), &rq->err);
    char key[HFI_QUOTE_MAX];

    if (!st) {
        rq->state = HFI_GRANTED;
    } else if (st == HF_BUSY && rq->once) {
        return hfi_fail(
            &rq->err, st,
            "'%s' or another of these %zu keys is held by somebody "
            "else",
            hfi_quote(key, sizeof(key), hfi_several_key(rq->several)),
            rq->several->n);
    } else if ((st == HF_UNCERTAIN || st == HF_UNAVAILABLE) && rq->once) {
        return st;
    } else if (st != HF_UNSUPPORTED && st != HF_BUSY && st != HF_UNCERTAIN &&
               st != HF_UNAVAILABLE && st != HF_LOST) {
        return st;
    }
    return HF_OK;
}

/* A blocking call, in the caller's thread. */
static hf_status request_call(struct hf_request *rq, struct hf_client *c,
                              const char *key, int64_t wait_ms,
                              const struct hfi_lock_params *params,
                              struct hf_error *err)
{
    hf_status st;

    request_init(rq, c, wait_ms, params);
    pthread_mutex_lock(&c->mu);
    c->calls++;
    st = request_may_begin(rq);
    if (!st && rq->several && !rq->params.unchecked)
        st = request_at_once(rq);
    if (!st && rq->state != HFI_GRANTED) {
        st = request_enqueue(rq, key, params);
        if (!st && rq->state != HFI_GRANTED)
            st = request_drive(rq);
    }
    if (st && rq->several)
        hfi_several_return(c, rq->several);
    hfi_count_acquisition(rq, st);
    request_fini(rq);
    c->calls--;
    if (c->closing)
        hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
    if (st && err)
        *err = rq->err;
    return st;
}

hf_status hfi_acquire(struct hf_client *c, const char *key, int64_t wait_ms,
                      const struct hfi_lock_params *params,
                      struct hf_lock **ret, struct hf_error *err)
{
    struct hf_request rq;
    hf_status st;

    memset(&rq, 0, offsetof(struct hf_request, err));
    rq.err.status = HF_OK;
    rq.err.text[0] = '\0';
    rq.lock = hfi_lock_new(c);
    if (!rq.lock)
        return hfi_nomem(err);
    st = request_call(&rq, c, key, wait_ms, params, err);
    if (st)
        hfi_lock_free(rq.lock);
    else
        *ret = rq.lock;
    return st;
}

hf_status hfi_acquire_all(struct hf_client *c, struct hfi_several *several,
                          int64_t wait_ms, struct hf_error *err)
{
    struct hf_request rq = {.several = several,
                            .lock = hfi_several_lock(several)};
    hf_status st = request_call(&rq, c, hfi_several_key(several), wait_ms,
                                &several->params, err);

    if (!st)
        hfi_several_give(several);
    hfi_several_free(several);
    return st;
}

/* From one of its keys to the next. */
static void request_move(struct hf_request *rq)
{
    struct hfi_several *several = rq->several;
    struct hf_client *c = rq->client;
    struct hfi_key_queue *queue = rq->queue;
    hf_status st;

    hfi_link_remove(&rq->link);
    if (queue->leader == rq)
        queue->leader = NULL;
    hfi_key_queue_promote(c, queue); /* What it got may have been given back. */
    if (!several->at && (rq->once || hfi_now() >= rq->wait_end)) {
        hfi_request_fail(rq, hfi_fail(&rq->err, rq->once ? HF_BUSY : HF_TIMEOUT,
                                      "one of the locks was lost while the "
                                      "others were waited for"));
        return;
    }
    hfi_heap_remove(&c->timers, &rq->timer);
    hfi_link_remove(&rq->ready);
    rq->lock = hfi_several_lock(several);
    rq->tries = rq->failures = rq->late = 0;
    rq->next_try = rq->expected = 0;
    atomic_store(&rq->position, 0);
    rq->handoff.fence = 0;
    rq->err.status = HF_OK;
    rq->woken = rq->called = rq->retry_early_wake = false;
    rq->params = several->params;
    st = request_enqueue(rq, hfi_several_key(several), &several->params);
    if (!rq->queue)
        rq->queue = queue; /* no memory: it ends where it was */
    else
        hfi_key_queue_put(c, queue);
    if (st)
        hfi_request_fail(rq, st);
    else if (rq->moves_on)
        return;
    else if (rq->state == HFI_CONTENDING)
        hfi_request_schedule(rq);
    else if (rq->state == HFI_WAITING && rq->async)
        hfi_keeper_set(c, &rq->timer, rq->wait_end);
}

/* The request has one of its keys and goes on to the next.  A key that this
 * client has already brings it here again from inside the move: however many
 * there are, they take no more of the stack than one.  several.c */
void hfi_request_next_key(struct hf_request *rq)
{
    rq->moves_on = true;
    if (rq->moving)
        return;
    rq->moving = true;
    while (rq->moves_on) {
        rq->moves_on = false;
        request_move(rq);
    }
    rq->moving = false;
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
                               const struct hfi_lock_params *params)
{
    struct hf_client *c = rq->client;
    hf_status st = request_may_begin(rq);

    if (st)
        return st;
    if (!hfi_worker_start(c))
        return hfi_fail(&rq->err, HF_SYSTEM, "no thread could be started");
    if (!hfi_heap_reserve(&c->timers))
        return hfi_nomem(&rq->err);
    hfi_listener_enter(rq);
    rq->waited = true;
    st = request_enqueue(rq, key, params);
    if (st) {
        hfi_heap_unreserve(&c->timers);
        hfi_listener_leave(rq);
    } else if (rq->state == HFI_CONTENDING) {
        hfi_request_schedule(rq);
    } else if (rq->state == HFI_WAITING) {
        hfi_keeper_set(c, &rq->timer, rq->wait_end);
    }
    return st;
}

/* Begin one that a worker drives; `rq` is freed if it cannot be begun. */
static hf_status request_start(struct hf_request *rq, struct hf_client *c,
                               const char *key, int64_t wait_ms,
                               const struct hfi_lock_params *params, void *user,
                               struct hf_error *err)
{
    hf_status st;

    request_init(rq, c, wait_ms, params);
    rq->async = true;
    rq->user = user;
    pthread_mutex_lock(&c->mu);
    rq->cancel_seen = atomic_load(&c->cancels); /* It begins here. */
    c->calls++; /* The mutex may be let go; see request_enqueue(). */
    st = request_admit(rq, key, params);
    if (st) {
        if (err)
            *err = rq->err;
        request_fini(rq);
        hfi_free(rq);
    }
    c->calls--;
    if (c->closing)
        hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
    return st;
}

hf_status hfi_acquire_start(struct hf_client *c, const char *key,
                            int64_t wait_ms,
                            const struct hfi_lock_params *params, void *user,
                            struct hf_request **ret, struct hf_error *err)
{
    struct hf_request *rq = hfi_alloc(sizeof(*rq));
    struct hf_lock *lk = rq ? hfi_lock_new(c) : NULL;
    hf_status st;

    if (!lk) {
        hfi_free(rq);
        return hfi_nomem(err);
    }
    rq->lock = lk;
    st = request_start(rq, c, key, wait_ms, params, user, err);
    if (st)
        hfi_lock_free(lk);
    else
        *ret = rq;
    return st;
}

hf_status hfi_acquire_all_start(struct hf_client *c,
                                struct hfi_several *several, int64_t wait_ms,
                                void *user, struct hf_request **ret,
                                struct hf_error *err)
{
    struct hf_request *rq = hfi_alloc(sizeof(*rq));
    hf_status st;

    if (!rq) {
        hfi_several_free(several);
        return hfi_nomem(err);
    }
    rq->several = several;
    rq->lock = hfi_several_lock(several);
    st = request_start(rq, c, hfi_several_key(several), wait_ms,
                       &several->params, user, err);
    if (st)
        hfi_several_free(several);
    else
        *ret = rq;
    return st;
}
