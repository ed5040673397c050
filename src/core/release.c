/* SPDX-License-Identifier: MIT
 *
 * release.c - the end of a handle, as a call and for an event loop.
 *
 * When the last handle of a grant ends, the grant goes, in this order, to the
 * first in the local queue (as long as turns are left and nobody could tell the
 * difference), to nobody for a while (linger_ms), or back to the service.
 *
 * hf_release() does that in the caller's thread.  hf_release_start() does what
 * needs no service at once and leaves the rest to a worker, which sends several
 * releases together where the service can (backend/backend.h, send_ahead).
 *
 * INVARIANTS
 *  (1) The release of a lock that is lost never waits for the service: the
 *      grant is the reaper's.
 *  (2) A handle that waits for a worker still belongs to its grant, so nobody
 *      frees the grant; nobody is told of a loss through it.  The grant is
 *      renewed until the worker comes: it is ours, and may yet be passed on.
 *  (3) Nothing that hf_release_start() does can fail.  What waits for a worker
 *      is queued by links that are parts of the handle.
 */
#include "job.h"
#include "stats.h"

#include <unistd.h>

#include "base/mutant.h"

#include "base/banned.h"

/* Does the first in the local queue want just this grant? */
static bool release_could_pass_on(const struct hfi_grant *grant)
{
    const struct hfi_key_queue *queue = grant->queue;
    const struct hf_request *rq;
    int64_t now;

    if ((grant->turns <= 0 && !HFI_MUTANT(handover_without_limit)) ||
        hfi_link_alone(&queue->waiting))
        return false;
    rq = hfi_container(queue->waiting.next, struct hf_request, link);
    now = hfi_now();
    return hfi_grant_fits(grant, &rq->params) && !hfi_request_is_canceled(rq) &&
           rq->wait_end > now &&
           grant->lease_end - now >= grant->claim.ttl_ms / 4;
}

/* Hand it over; *wake is where that one sleeps. */
static bool release_pass_on(struct hf_client *c, struct hfi_grant *grant,
                            struct hfi_sleeper **wake)
{
    struct hf_request *rq;

    if (!release_could_pass_on(grant))
        return false;
    rq = hfi_container(grant->queue->waiting.next, struct hf_request, link);
    if (grant->turns != INT32_MAX)
        grant->turns--;
    hfi_grant_take_up(c, grant, &rq->params);
    *wake = hfi_request_grant(rq, grant);
    return true;
}

static bool release_could_linger(const struct hfi_grant *grant)
{
    return grant->linger_ms && !grant->manual && grant->local_grant &&
           !grant->wanted;
}

/* Ask once to be told when somebody else wants the key.  The mutex is let go
 * meanwhile; `busy` keeps renewals off, so this lasts no longer than one of
 * those.  False if nobody will tell although the service could. */
static bool release_watch(struct hf_client *c, struct hfi_grant *grant)
{
    bool again = grant->watched;
    int64_t limit;
    hf_status st;

    hfi_grant_quiet(c, grant);
    if (grant->state != HFI_HELD)
        return false; /* lost meanwhile, and perhaps the reaper's already */
    grant->busy = true;
    grant->watched = grant->unsubscribed = false;
    limit = hfi_lease_attempt_end(hfi_now(), grant->lease_ms, grant->lease_end,
                                  c->timeout_ms, 0);
    pthread_mutex_unlock(&c->mu);
    if (again)
        c->be->unwatch(c->conn, &grant->claim, &grant->receipt);
    st = c->be->watch(c->conn, &grant->claim, &grant->receipt, limit, NULL);
    pthread_mutex_lock(&c->mu);
    grant->watched = st == HF_OK;
    grant->busy = false;
    hfi_cond_wake(&c->settle);
    return st == HF_OK || st == HF_UNSUPPORTED;
}

/* Keep the lease although nobody has it, and listen for others who ask. */
static bool release_linger(struct hf_client *c, struct hfi_grant *grant,
                           int64_t now)
{
    bool asked = false;

    if (!release_could_linger(grant))
        return false;
    if (c->be->watch && (!grant->watched || grant->unsubscribed)) {
        if (c->silent || /* It would only be waited for twice. */
            !(release_watch(c, grant) && hfi_handle_still_held(c, grant)))
            return false;
        asked = true;
    }
    if (c->closing || grant->wanted || grant->unsubscribed ||
        !hfi_link_alone(&grant->queue->waiting))
        return false;
    grant->state = HFI_LINGERING;
    grant->linger_end = (asked ? hfi_now() : now) + grant->linger_ms;
    if (grant->hold_end != HFI_NEVER)
        hfi_grant_unhold(grant);
    hfi_keeper_add(c, grant);
    return true;
}

/* It was lost before its last handle ended.  release.c (1) */
static hf_status release_lost(struct hf_client *c, struct hfi_grant *grant,
                              struct hf_error *err)
{
    hf_status st = hfi_handle_lost(grant, err);

    if (c->closed)
        hfi_grant_free(c, grant);
    else if (grant->state == HFI_LOST && HFI_MUTANT(lost_release_waits))
        hfi_grant_drop(c, grant, hfi_now() + c->timeout_ms, NULL);
    else if (grant->state == HFI_LOST)
        hfi_grant_reap(c, grant);
    return st;
}

/* The last handle of a grant is gone.  True if the service must be told. */
static inline bool release_last(struct hf_client *c, struct hfi_grant *grant,
                                int64_t now, struct hfi_sleeper **wake,
                                hf_status *st, struct hf_error *err)
{
    if (hfi_handle_still_held(c, grant)) {
        if (grant->min_end <= now && /* grant.c (8) */
            (release_pass_on(c, grant, wake) || release_linger(c, grant, now)))
            return false;
        if (grant->state == HFI_HELD)
            return true;
    }
    *st = release_lost(c, grant, err);
    return false;
}

/* End the handle.  True if that was the last one of its grant, which the service
 * must be told of, and *began is now; else *st is what became of it. */
static inline bool release_handle(struct hf_client *c, struct hf_lock *lk,
                                  struct hfi_sleeper **wake, hf_status *st,
                                  int64_t *began, struct hf_error *err)
{
    struct hfi_grant *grant = lk->grant;
    int64_t now;

    *st = HF_OK;
    hfi_notice_drop(c, &lk->notice);
    hfi_link_remove(&lk->link);
    if (hfi_link_alone(&grant->handles)) {
        *began = now = hfi_now();
        hfi_count_held(c, lk, now);
        return release_last(c, grant, now, wake, st, err);
    }
    if (!hfi_handle_still_held(c, grant))
        *st = hfi_handle_lost(grant, err);
    return false;
}

/* The same, and tell it. */
static inline hf_status release_whole(struct hf_client *c, struct hf_lock *lk,
                                      struct hfi_sleeper **wake,
                                      struct hf_error *err)
{
    int64_t now;
    hf_status st;

    if (release_handle(c, lk, wake, &st, &now, err)) {
        if (lk->grant->linger_ms)
            now = hfi_now(); /* It may have been asked for. */
        st = hfi_grant_drop(c, lk->grant, now + c->timeout_ms, err);
    }
    return st;
}

/* While hf_close() is at work: the handle goes, and the grant is given back, or
 * has been, by hf_close(). */
static hf_status release_at_close(struct hf_client *c, struct hf_lock *lk,
                                  struct hf_error *err)
{
    struct hfi_grant *grant = lk->grant;
    hf_status st = hfi_handle_lost(grant, err);

    hfi_notice_drop(c, &lk->notice);
    hfi_link_remove(&lk->link);
    if (hfi_link_alone(&grant->handles) && grant->state == HFI_LOST &&
        hfi_link_alone(&grant->link))
        hfi_grant_free(c, grant); /* It was kept for this handle only. */
    return st;
}

hf_status hfi_release(struct hf_lock *lk, struct hf_error *err)
{
    struct hf_client *c = lk->client;
    struct hfi_sleeper *wake = NULL;
    hf_status st;

    pthread_mutex_lock(&c->mu);
    if (c->closing && !c->closed && lk->grant->state != HFI_HELD) {
        st = release_at_close(c, lk, err);
        pthread_mutex_unlock(&c->mu);
    } else {
        hfi_handle_begin(c);
        st = release_whole(c, lk, &wake, err);
        hfi_handle_leave(c);
    }
    if (wake)
        hfi_sleeper_wake(c, wake);
    hfi_lock_free(lk);
    return st;
}

/* ---- for event loops --------------------------------------------------- */

/* Does the end of this handle need the service?  What does not is done without
 * a word to it: the lock is lost, others have it too, the next here takes it, or
 * it lingers and we would be told. */
static bool release_needs_service(struct hf_client *c, struct hf_lock *lk)
{
    struct hfi_grant *grant = lk->grant;

    if (grant->handles.next != grant->handles.prev ||
        !hfi_handle_still_held(c, grant))
        return false;
    if (grant->min_end > hfi_now())
        return true;
    return !release_could_pass_on(grant) &&
           !(release_could_linger(grant) &&
             (!c->be->watch || (grant->watched && !grant->unsubscribed)) &&
             !c->closing && hfi_link_alone(&grant->queue->waiting));
}

/* Let a worker do it.  release.c (2), (3) */
static void release_later(struct hf_client *c, struct hf_lock *lk,
                          struct hfi_job *job)
{
    hfi_notice_drop(c, &lk->notice);
    lk->leaving = true;
    lk->job = job;
    if (lk->lost_fd >= 0)
        close(lk->lost_fd);
    lk->lost_fd = -1;
    hfi_link_append(&c->releases, &lk->queued);
    hfi_worker_start(c);
    hfi_worker_hire(c);
}

/* End the handle; `job`, if there is one, tells the outcome.  False if nobody
 * can take an event any more, and the job is the caller's again. */
bool hfi_release_start(struct hf_lock *lk, struct hfi_job *job)
{
    struct hf_client *c = lk->client;
    struct hfi_sleeper *wake = NULL;
    struct hf_error err = {0};
    bool closing, later = false;
    hf_status st;

    pthread_mutex_lock(&c->mu);
    closing = c->closing;
    if (closing) {
        release_at_close(c, lk, NULL);
    } else if (release_needs_service(c, lk)) {
        release_later(c, lk, job);
        later = true;
    } else {
        st = release_whole(c, lk, &wake, &err);
        if (job)
            hfi_job_over(job, st, &err);
    }
    pthread_mutex_unlock(&c->mu);
    if (wake)
        hfi_sleeper_wake(c, wake);
    if (!later)
        hfi_lock_free(lk);
    return !closing;
}

/* What became of it, and of whom it was passed on to. */
static void release_done(struct hf_client *c, struct hf_lock *lk, hf_status st,
                         const struct hf_error *err, struct hfi_sleeper *wake)
{
    if (lk->job)
        hfi_job_over(lk->job, st, err);
    if (wake)
        hfi_sleeper_wake(c, wake);
    hfi_lock_free(lk); /* never the last to use the client: hf_close() is */
}

/* For a worker, with the mutex held: end the first handle that waits; `quiet`:
 * this thread takes the event.  events.c */
void hfi_release_step(struct hf_client *c, bool quiet)
{
    struct hf_lock *lk =
        hfi_container(c->releases.next, struct hf_lock, queued);
    struct hfi_sleeper *wake = NULL;
    struct hf_error err = {0};
    hf_status st;

    hfi_link_remove(&lk->queued);
    st = release_whole(c, lk, &wake, &err);
    if (lk->job)
        lk->job->face.notice.quiet = quiet;
    release_done(c, lk, st, &err, wake);
}

/* A handle whose release is on its way. */
struct release_ahead {
    struct hf_lock *lock;
    int64_t sent;
};

/* May the release of this handle go out together with others?  Not if something
 * must be asked or waited for first, or if more is said than that the lock is
 * given back. */
static bool release_may_go_ahead(const struct hf_client *c,
                                 const struct hfi_grant *grant)
{
    return !grant->busy && !grant->watched && !grant->min_end &&
           (!grant->linger_ms || c->silent) && !grant->claim.doubt;
}

/* The next handle that waits and may go with others, or NULL. */
static struct hf_lock *release_next_ahead(const struct hf_client *c)
{
    struct hf_lock *lk =
        hfi_container(c->releases.next, struct hf_lock, queued);

    return !hfi_link_alone(&c->releases) && release_may_go_ahead(c, lk->grant)
               ? lk
               : NULL;
}

/* End handles, and return those that the service must be told of. */
static int release_collect(struct hf_client *c, struct release_ahead *ret)
{
    struct hfi_sleeper *wake = NULL;
    struct hf_error err;
    struct hf_lock *lk;
    int64_t now;
    hf_status st;
    int n = 0;

    err.status = HF_OK;
    while (n < HFI_AHEAD_MAX && (lk = release_next_ahead(c))) {
        hfi_link_remove(&lk->queued);
        if (release_handle(c, lk, &wake, &st, &now, &err)) {
            ret[n].lock = lk;
            ret[n++].sent = hfi_grant_drop_begin(c, lk->grant);
        } else {
            release_done(c, lk, st, &err, wake);
            wake = NULL;
        }
    }
    return n;
}

/* Send the releases of these, and end each whose answer has come.  How many are
 * left, which are to be made again: the first ones. */
static int release_round(struct hf_client *c, struct release_ahead *ahead,
                         int n, int64_t end)
{
    struct hfi_ahead items[HFI_AHEAD_MAX];
    struct hf_error err = {0};
    int i, left = 0;
    hf_status st;

    for (i = 0; i < n; i++)
        items[i] = (struct hfi_ahead){.claim = &ahead[i].lock->grant->claim,
                                      .receipt = &ahead[i].lock->grant->receipt,
                                      .release = true};
    if (n > 1) {
        pthread_mutex_unlock(&c->mu);
        c->be->send_ahead(c->conn, items, (size_t)n, end);
        pthread_mutex_lock(&c->mu);
    }
    for (i = 0; i < n; i++) {
        st = hfi_grant_drop_end(c, ahead[i].lock->grant, ahead[i].sent, end,
                                &err);
        if (st == HFI_AGAIN)
            ahead[left++] = ahead[i];
        else
            release_done(c, ahead[i].lock, st, &err, NULL);
    }
    return left;
}

/* For a worker, with the mutex held: end those that wait and may go together, or
 * the first. */
void hfi_release_steps(struct hf_client *c)
{
    struct release_ahead ahead[HFI_AHEAD_MAX];
    int n = release_collect(c, ahead);
    int64_t end = hfi_now() + c->timeout_ms;

    hfi_worker_pass_call(c);
    if (!n && !hfi_link_alone(&c->releases))
        hfi_release_step(c, false);
    while (n)
        n = release_round(c, ahead, n, end);
}

/* For hf_close(), which gives the grants back: no worker came for these. */
void hfi_release_close(struct hf_client *c)
{
    struct hf_lock *lk;

    while (!hfi_link_alone(&c->releases)) {
        lk = hfi_container(c->releases.next, struct hf_lock, queued);
        hfi_link_remove(&lk->queued);
        hfi_link_remove(&lk->link);
        if (lk->job)
            hfi_job_free(lk->job);
        hfi_lock_free(lk);
    }
}
