/* SPDX-License-Identifier: MIT
 *
 * keeper.c - the thread that watches the clock.
 *
 * It knows when each grant must be renewed, warned of or given up, and when
 * each request of an event loop, and each observation, wants another look; it
 * reads the wake-ups of
 * the service, unless a lone waiter does (listener.c); it hears hf_cancel().
 * It never blocks on the service: what takes a round trip it hands to the
 * threads of worker.c.  So a loss is told in time however long an answer takes,
 * and a wake-up never waits behind a renewal.
 *
 * INVARIANTS
 *  (1) Every HELD or LINGERING grant with a finite deadline has a timer that is
 *      due no later than it, also while its renewal is on the wire.
 *  (2) A grant is given to the renewer only before its deadline, and is lost at
 *      it: nothing that lapsed is ever renewed.
 *  (3) keeper_until is never later than the first timer.
 *  (4) Nor does it move to a later time before it has come.  Otherwise somebody
 *      who takes and releases a lock again and again would ring the keeper
 *      each time, only for it to find that there is nothing to do.
 *
 * hfi_keeper_step() is the whole of it; the thread is a loop around a step.
 */
#include "log.h"

#include "base/probe.h"

#include "base/banned.h"

/* A reaper or worker that could not be started is tried again after this. */
#define KEEPER_AGAIN_MS 100

static int64_t keeper_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Have the keeper take a step at `due`; ring only if it sleeps longer. */
void hfi_keeper_by(struct hf_client *c, int64_t due)
{
    if (due < c->keeper_until) {
        c->keeper_until = due; /* keeper.c (3) */
        hfi_notifier_notify(&c->notifier);
    }
}

/* The same for a timer. */
void hfi_keeper_set(struct hf_client *c, struct hfi_timer *timer, int64_t due)
{
    hfi_heap_set(&c->timers, timer, due);
    hfi_keeper_by(c, due);
}

/* May it be handed to its renewer? */
static bool keeper_may_renew(const struct hfi_grant *grant)
{
    return !(grant->manual && !grant->aside) && !grant->busy && !grant->quiet &&
           hfi_link_alone(&grant->due);
}

/* When the keeper must next do something for a grant. */
static int64_t keeper_due(const struct hfi_grant *grant)
{
    int64_t due = keeper_min(grant->lease_end, grant->hold_end);

    if (keeper_may_renew(grant))
        due = keeper_min(due, grant->next_at);
    if (!grant->warned)
        due = keeper_min(
            due, hfi_lease_at_risk_at(grant->lease_end, grant->lease_ms));
    if (grant->state == HFI_LINGERING)
        due = keeper_min(due, grant->linger_end);
    return due;
}

void hfi_keeper_add(struct hf_client *c, struct hfi_grant *grant)
{
    hfi_keeper_set(c, &grant->timer, keeper_due(grant));
}

/* Hand a grant to its renewer.  Without one it is tried again later: beyond the
 * slack, or it would be due at once. */
static void keeper_renew(struct hf_client *c, struct hfi_grant *grant,
                         int64_t now)
{
    if (!hfi_renewer_add(c, grant))
        grant->next_at =
            now + KEEPER_AGAIN_MS + hfi_lease_slack(grant->lease_ms);
}

/* Hand a grant to the reaper: it lingered long enough, or is to be taken
 * back. */
static void keeper_reap(struct hf_client *c, struct hfi_grant *grant,
                        int64_t now)
{
    if (!hfi_worker_start(c)) {
        hfi_keeper_set(c, &grant->timer, now + KEEPER_AGAIN_MS);
        return;
    }
    hfi_heap_remove(&c->timers, &grant->timer);
    hfi_link_remove(&grant->link);
    hfi_link_append(&c->reap, &grant->link);
    hfi_worker_call(c);
}

static void keeper_warn(struct hf_client *c, struct hfi_grant *grant)
{
    struct hfi_link *at;
    struct hf_lock *lk;

    grant->warned = true;
    HFI_PROBE2(at_risk, grant->claim.key, hfi_left_ms(grant->lease_end));
    c->stats.at_risk++;
    hfi_log_key(c, HF_LOG_WARNING, grant->claim.key,
                "at risk: renewals fail, %lld ms of the lease are left",
                (long long)hfi_left_ms(grant->lease_end));
    for (at = grant->handles.next; at != &grant->handles; at = at->next) {
        lk = hfi_container(at, struct hf_lock, link);
        if (!lk->aside && !lk->leaving)
            hfi_notify(c, &lk->notice, HF_AT_RISK);
    }
}

static void keeper_tend_grant(struct hf_client *c, struct hfi_grant *grant,
                              int64_t now)
{
    if (grant->state == HFI_REAPING || grant->state == HFI_RELEASING ||
        grant->state == HFI_LEFT) {
        keeper_reap(c, grant, now);
        return;
    }
    if (grant->state == HFI_LOST) { /* broken, and never released: sweep.c */
        hfi_grant_reap(c, grant);
        return;
    }
    if (!hfi_held(grant)) {
        hfi_grant_lose(c, grant,
                       now >= grant->hold_end ? HF_LOSS_MAX_HOLD
                                              : HF_LOSS_EXPIRED);
        return;
    }
    if (grant->state == HFI_LINGERING && now >= grant->linger_end) {
        hfi_grant_stop_lingering(c, grant);
        return;
    }
    if (!grant->warned &&
        now >= hfi_lease_at_risk_at(grant->lease_end, grant->lease_ms))
        keeper_warn(c, grant);
    if (keeper_may_renew(grant) &&
        now + hfi_lease_slack(grant->lease_ms) >= grant->next_at)
        keeper_renew(c, grant, now);
    hfi_heap_set(&c->timers, &grant->timer, keeper_due(grant));
}

/* It wants another look; or it waits for a worker, and its time is over. */
static void keeper_tend_request(struct hf_client *c, struct hf_request *rq)
{
    hfi_heap_remove(&c->timers, &rq->timer);
    if (hfi_link_alone(&rq->ready))
        hfi_worker_add(c, rq);
    else
        hfi_request_expire(rq);
}

/* May this timer be served now?  Renewals a little early, so that they go out
 * together. */
static bool keeper_is_due(const struct hfi_timer *timer, int64_t now)
{
    const struct hfi_grant *grant;

    if (timer->due <= now)
        return true;
    if (timer->kind != HFI_TIMER_GRANT)
        return false;
    grant = hfi_container(timer, struct hfi_grant, timer);
    return grant->state == HFI_HELD && timer->due == grant->next_at &&
           timer->due <= now + hfi_lease_slack(grant->lease_ms) &&
           keeper_may_renew(grant);
}

static void keeper_tend(struct hf_client *c, int64_t now)
{
    struct hfi_timer *timer;

    while ((timer = hfi_heap_first(&c->timers)) && keeper_is_due(timer, now)) {
        if (timer->kind == HFI_TIMER_GRANT)
            keeper_tend_grant(c, hfi_container(timer, struct hfi_grant, timer),
                              now);
        else if (timer->kind == HFI_TIMER_REQUEST)
            keeper_tend_request(c,
                                hfi_container(timer, struct hf_request, timer));
        else
            hfi_observed_due(c,
                             hfi_container(timer, struct hfi_observed, timer));
    }
}

/* Do what is due and say when to come again, and whether to listen till
 * then. */
int64_t hfi_keeper_step(struct hf_client *c, bool *listen)
{
    struct hfi_timer *first;
    int64_t now, until;
    unsigned cancels;

    pthread_mutex_lock(&c->mu);
    cancels = atomic_load(&c->cancels);
    if (cancels != c->cancels_told) {
        c->cancels_told = cancels;
        hfi_key_queue_schedule_all(c);
        hfi_jobs_cancel(c);
        hfi_cond_wake(&c->settle);
    }
    hfi_cancelers_tell(c);
    now = hfi_now();
    keeper_tend(c, now);
    first = hfi_heap_first(&c->timers);
    until =
        keeper_min(first ? first->due : HFI_NEVER, hfi_worker_check(c, now));
    if (atomic_load(&c->offline) == HFI_CONNECTING)
        until = keeper_min(until, hfi_jobs_expire(c, now));
    *listen = hfi_listener_of_keeper(c, now, &until);
    if (c->keeper_until > now && c->keeper_until < until)
        until = c->keeper_until; /* keeper.c (4) */
    if (c->stopping)
        until = 0;
    c->keeper_until = until;
    pthread_mutex_unlock(&c->mu);
    return until;
}

void *hfi_keeper_run(void *client)
{
    struct hf_client *c = client;
    int64_t until;
    bool listen;
    int fd;

    while ((until = hfi_keeper_step(c, &listen)) != 0) {
        fd = -1;
        if (listen && c->be->poll_fd && !atomic_load(&c->offline))
            fd = c->be->poll_fd(c->conn);
        if (hfi_notifier_wait(&c->notifier, fd, until))
            hfi_listener_dispatch(c);
    }
    return NULL;
}
