/* SPDX-License-Identifier: MIT
 *
 * worker.c - the threads that block on the service so that the keeper need not.
 *
 * The renewer sends renewals, as many in one call as are due; the worker steps
 * the requests of event loops and takes back what must not stay in the
 * service.  They are two, because a claim that cannot be taken back must not
 * keep a lock from being renewed.  Each is started when there is first
 * something for it to do.
 *
 * INVARIANTS
 *  (1) A renewal is sent only while the hold is HELD or LINGERING and `busy` is
 *      set, which release waits for (hold.c (4)).
 *  (2) One failed renewal never ends a hold; only the clock or the service's
 *      own word does.
 */
#include "core.h"

#include "banned.h"

#define BATCH_MAX 256

/* Between the first attempts to take back one claim. */
#define REAP_EVERY_MS 100

/* Move what is due into `items`, and bound the attempt by the shortest. */
static size_t renewer_collect(struct hf_client *c, struct hfi_renewal *items,
                              int64_t now, int64_t *limit)
{
    struct hfi_hold *hold;
    int64_t end, shortest = c->shortest_ttl;
    size_t n;

    *limit = HFI_NEVER;
    for (n = 0; n < BATCH_MAX && !hfi_link_alone(&c->due); n++) {
        hold = hfi_container(c->due.next, struct hfi_hold, due);
        hfi_link_remove(&hold->due);
        hold->busy = true;
        items[n] = (struct hfi_renewal){
            &hold->claim,       &hold->grant,
            hold->claim.ttl_ms, HF_UNCERTAIN,
            HF_LOSS_STOLEN,     hfi_proof_plain(now, hold->claim.ttl_ms)};
        if (hold->lease_ms < shortest)
            shortest = hold->lease_ms;
        end = hfi_lease_attempt_end(now, shortest, hold->lease_end,
                                    c->timeout_ms);
        if (end < *limit)
            *limit = end;
    }
    return n;
}

static void renewer_apply(struct hf_client *c, const struct hfi_renewal *item,
                          int64_t sent)
{
    struct hfi_hold *hold = hfi_container(item->claim, struct hfi_hold, claim);

    hf_status st = item->st;
    hf_loss reason = item->reason;

    hold->busy = false;
    if (hold->state != HFI_HELD && hold->state != HFI_LINGERING)
        return;
    if (st == HF_OK) {
        st = hfi_hold_renewed(c, hold, &item->proof, sent, item->ttl_ms);
        reason = HF_LOSS_EXPIRED;
    }
    if (st == HF_LOST) {
        hfi_hold_lose(c, hold, reason);
        return;
    }
    if (st) /* worker.c (2) */
        hold->next_at = hfi_lease_retry_at(sent, hold->lease_ms);
    hfi_keeper_hold(c, hold);
}

/* Renew what is due, once. */
static void renewer_step(struct hf_client *c)
{
    struct hfi_renewal items[BATCH_MAX];
    int64_t sent = hfi_now(), limit;
    size_t i, n = renewer_collect(c, items, sent, &limit);

    pthread_mutex_unlock(&c->mu);
    c->be->renew(c->conn, items, n, limit, NULL);
    pthread_mutex_lock(&c->mu);
    for (i = 0; i < n; i++)
        renewer_apply(c, &items[i], sent);
    hfi_cond_wake(&c->settle);
}

static void *renewer_run(void *client)
{
    struct hf_client *c = client;

    pthread_mutex_lock(&c->mu);
    while (!c->stopping) {
        if (hfi_link_alone(&c->due))
            hfi_cond_wait(&c->renew, &c->mu, HFI_NEVER);
        else
            renewer_step(c);
    }
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* Step one request of an event loop, and set its next time. */
static void worker_step_request(struct hf_client *c, struct hf_request *rq)
{
    int64_t until;

    hfi_link_remove(&rq->ready);
    rq->stepping = true;
    if (hfi_request_step(rq, &until))
        return; /* Whoever takes its event frees it. */
    rq->stepping = false;
    if (rq->woken || until <= hfi_now())
        hfi_link_append(&c->ready, &rq->ready);
    else
        hfi_keeper_set(c, &rq->timer, until);
}

/* The reaper is done with a hold: handles may still point to it. */
static void worker_reaped(struct hf_client *c, struct hfi_hold *hold)
{
    if (hfi_link_alone(&hold->handles)) {
        hfi_hold_free(c, hold);
        return;
    }
    hold->state = HFI_LOST;
    hfi_link_append(&c->lost, &hold->link);
}

/* No answer is none.  And "not there" does not end it for a try that had no
 * answer: that may arrive after this release. */
static bool worker_must_go_on(const struct hf_client *c,
                              const struct hfi_hold *hold, hf_status st,
                              int64_t now)
{
    if (st == HF_UNCERTAIN || st == HF_UNAVAILABLE)
        return now < hold->next_at || hfi_stays(c);
    return st == HF_LOST && hold->uncertain && now < hold->next_at;
}

/* Twice as long each time, and once in a ttl at least. */
static int64_t worker_reap_pause(const struct hfi_hold *hold, int64_t now)
{
    int64_t since = now - (hold->next_at - hold->claim.ttl_ms);

    if (since > hold->claim.ttl_ms)
        since = hold->claim.ttl_ms;
    return since > REAP_EVERY_MS ? since : REAP_EVERY_MS;
}

static void worker_reap(struct hf_client *c, struct hfi_hold *hold)
{
    int64_t now = hfi_now();
    hf_status st;

    hfi_link_remove(&hold->link);
    if (hold->state == HFI_RELEASING) { /* It lingered. */
        hfi_hold_drop(c, hold, NULL);
        return;
    }
    hfi_hold_quiet(c, hold);
    st = hfi_hold_send_release(c, hold, now + c->timeout_ms, NULL);
    now = hfi_now();
    if (worker_must_go_on(c, hold, st, now))
        hfi_keeper_set(c, &hold->timer, now + worker_reap_pause(hold, now));
    else
        worker_reaped(c, hold);
}

static void *worker_run(void *client)
{
    struct hf_client *c = client;

    pthread_mutex_lock(&c->mu);
    while (!c->stopping) {
        if (hfi_link_alone(&c->ready) && hfi_link_alone(&c->reap))
            hfi_cond_wait(&c->work, &c->mu, HFI_NEVER);
        if (!hfi_link_alone(&c->ready) && !c->stopping)
            worker_step_request(
                c, hfi_container(c->ready.next, struct hf_request, ready));
        if (!hfi_link_alone(&c->reap) && !c->stopping)
            worker_reap(c, hfi_container(c->reap.next, struct hfi_hold, link));
    }
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* With the mutex held.  False if the system has no thread for us now. */
bool hfi_renewer_start(struct hf_client *c)
{
    return c->renewer.running || hfi_thread_start(&c->renewer, renewer_run, c);
}

bool hfi_worker_start(struct hf_client *c)
{
    return c->worker.running || hfi_thread_start(&c->worker, worker_run, c);
}
