/* SPDX-License-Identifier: MIT
 *
 * request_end.c - how an acquisition ends, above all without the lock.
 *
 * INVARIANTS
 *  (1) A request that fails leaves nothing: its place is withdrawn, or passed
 *      to the next in the local queue, or given to the reaper.
 *  (2) An event loop's request that is cancelled ends at once, also while its
 *      try is on the wire: the claim is then abandoned, and the worker that
 *      sent the try hands it to the reaper when the call returns.  Only the
 *      claim is touched then; the request may be gone.
 *  (3) A failure says what is known: held by others only if the service has
 *      said so.
 */
#include "stats.h"

#include "base/mutant.h"

#include "base/banned.h"

/* Out of the key queue's lists; an event loop is told. */
void hfi_request_end(struct hf_request *rq, enum hfi_request_state state)
{
    struct hf_client *c = rq->client;
    struct hfi_key_queue *queue = rq->queue;

    rq->state = state;
    hfi_link_remove(&rq->link);
    if (queue->leader == rq)
        queue->leader = NULL;
    if (rq->several && state == HFI_FAILED && rq->async)
        hfi_several_drop(c, rq->several);
    if (rq->async) {
        hfi_count_acquisition(rq, state == HFI_GRANTED ? HF_OK : rq->result);
        hfi_listener_leave(rq);
        hfi_heap_remove(&c->timers, &rq->timer);
        hfi_link_remove(&rq->ready);
        rq->queue = NULL;
        hfi_key_queue_put(c, queue);
        hfi_notify(c, &rq->notice,
                   state == HFI_GRANTED ? HF_GRANTED : HF_FAILED);
    }
}

/* By when something that is given back in passing must be answered. */
int64_t hfi_request_soon(const struct hf_client *c)
{
    return hfi_now() +
           (c->timeout_ms < HFI_ANSWER_MS ? c->timeout_ms : HFI_ANSWER_MS);
}

/* Pass the place in the service's queue to the next who wants the same. */
static bool request_pass_entry(struct hf_request *rq)
{
    struct hfi_key_queue *queue = rq->queue;
    struct hf_request *next;
    struct hfi_grant *grant = rq->grant;

    if (queue->leader != rq || hfi_link_alone(&queue->waiting))
        return false;
    next = hfi_container(queue->waiting.next, struct hf_request, link);
    if (!hfi_grant_fits(grant, &next->params))
        return false;
    hfi_grant_free(rq->client, next->grant);
    next->grant = grant;
    grant->claim.queue = !next->once;
    next->params.owner = grant->claim.owner;
    next->params.note = grant->claim.note;
    rq->grant = NULL;
    queue->leader = NULL;
    hfi_key_queue_promote(rq->client, queue);
    return true;
}

/* May the service have something of this claim? */
static bool request_left_something(const struct hfi_grant *grant)
{
    return grant->uncertain || grant->claim.doubt ||
           ((grant->receipt.registered || grant->watched) &&
            !HFI_MUTANT(entry_left_behind));
}

/* Undo what the request may have left in the service, in the background unless
 * the caller waits.  grant.c (5) */
void hfi_request_withdraw(struct hf_request *rq, bool wait)
{
    struct hf_client *c = rq->client;
    struct hfi_grant *grant = rq->grant;

    if (!grant || request_pass_entry(rq))
        return;
    rq->grant = NULL;
    if (HFI_MUTANT(lost_reply_is_failure) && grant->claim.doubt)
        hfi_grant_free(c, grant);
    else if (grant->uncertain || (!wait && request_left_something(grant)))
        hfi_grant_reap(c, grant);
    else if (request_left_something(grant))
        hfi_grant_drop(c, grant, hfi_request_soon(c), NULL);
    else
        hfi_grant_free(c, grant);
}

static void request_give_up(struct hf_request *rq, hf_status st, bool wait)
{
    struct hf_client *c = rq->client;
    struct hfi_key_queue *queue = rq->queue;

    queue->users++; /* An event may be all that is left of the request. */
    rq->result = st;
    rq->err.status = st;
    hfi_link_remove(&rq->link);
    hfi_request_withdraw(rq, wait);
    if (queue->leader == rq)
        queue->leader = NULL;
    hfi_key_queue_promote(c, queue);
    hfi_request_end(rq, HFI_FAILED);
    hfi_key_queue_put(c, queue);
}

/* An event loop does not wait for a service that is known to be silent. */
void hfi_request_fail(struct hf_request *rq, hf_status st)
{
    request_give_up(rq, st, !(rq->async && rq->client->silent));
}

/* Cancelled while a try is on the wire: end the request, and leave its claim to
 * the worker that waits for the answer.  request_end.c (2) */
static void request_abandon(struct hf_request *rq)
{
    struct hf_client *c = rq->client;
    struct hfi_key_queue *queue = rq->queue;

    queue->users++;
    rq->grant->abandoned = true;
    rq->grant = NULL;
    rq->stepping = rq->notice.quiet = false;
    rq->result = hfi_fail(&rq->err, HF_CANCELED, "canceled");
    hfi_link_remove(&rq->link);
    if (queue->leader == rq)
        queue->leader = NULL;
    hfi_key_queue_promote(c, queue);
    hfi_request_end(rq, HFI_FAILED);
    hfi_key_queue_put(c, queue);
}

/* The call of an abandoned claim has returned. */
void hfi_request_abandoned(struct hf_client *c, struct hfi_grant *grant,
                           hf_status st)
{
    grant->abandoned = false;
    if (st == HF_OK || st == HF_UNCERTAIN || request_left_something(grant))
        hfi_grant_reap(c, grant);
    else
        hfi_grant_free(c, grant);
}

/* The wait is over for one in the local queue.  What is known is what the
 * leader has heard: held by others only if the service has said so. */
static hf_status request_timeout_local(struct hf_request *rq, const char *key)
{
    const struct hf_request *leader = rq->queue->leader;

    if (leader && leader->failures)
        return hfi_fail(&rq->err, HF_UNAVAILABLE,
                        "acquire '%s': the service does not answer the request "
                        "of this client that is first in line",
                        key);
    if (leader && !leader->tries)
        return hfi_fail(&rq->err, rq->once ? HF_BUSY : HF_TIMEOUT,
                        "'%s' is being acquired by another request of this "
                        "client, which has no answer yet",
                        key);
    return HF_OK;
}

/* The wait is over: what to call that. */
hf_status hfi_request_timeout(struct hf_request *rq)
{
    char key[HFI_QUOTE_MAX];
    hf_status st = HF_OK, last = rq->err.status;
    const char *held;

    hfi_quote(key, sizeof(key), rq->queue->key);
    if (rq->state == HFI_WAITING)
        st = request_timeout_local(rq, key);
    else if (!rq->tries && atomic_load(&rq->client->offline))
        st = hfi_connect_error(rq->client, &rq->err);
    else if (!rq->tries)
        st = hfi_fail(&rq->err, HF_UNAVAILABLE,
                      "'%s' was not asked for in time: earlier requests of "
                      "this client still wait for the service",
                      key);
    else if (last == HF_UNAVAILABLE || last == HF_UNCERTAIN)
        st = hfi_wrap(&rq->err, rq->grant->uncertain ? HF_UNCERTAIN : last,
                      "acquire '%s'", key);
    if (st)
        return st;
    st = rq->once ? HF_BUSY : HF_TIMEOUT;
    held = rq->once ? "is held by somebody else"
                    : "was held by others all the time";
    return last == HF_BUSY ? hfi_wrap(&rq->err, st, "'%s' %s", key, held)
                           : hfi_fail(&rq->err, st, "'%s' %s", key, held);
}

/* Can a request that no worker is at be ended without one?  Yes if the service
 * has nothing of it, or does not answer, or if no worker can come now. */
static bool request_ends_here(const struct hf_request *rq)
{
    return !rq->stepping &&
           (rq->client->silent || hfi_workers_busy(rq->client) ||
            (!rq->return_first && !request_left_something(rq->grant)));
}

/* End a request that no worker is at, without one. */
static void request_end_here(struct hf_request *rq, hf_status st)
{
    if (rq->return_first)
        hfi_grant_reap(rq->client, rq->return_first);
    rq->return_first = NULL;
    hfi_link_remove(&rq->ready);
    request_give_up(rq, st, false);
}

/* Let it see whether it was cancelled, without waiting for the service. */
void hfi_request_inspect(struct hf_request *rq)
{
    if (!rq->async || !hfi_request_is_canceled(rq))
        hfi_request_schedule(rq);
    else if (rq->on_wire)
        request_abandon(rq);
    else if (request_ends_here(rq))
        request_end_here(rq, hfi_fail(&rq->err, HF_CANCELED, "canceled"));
    else
        hfi_request_schedule(rq);
}

/* Its wait is over, and every worker is at others.  worker.c (4) */
void hfi_request_expire(struct hf_request *rq)
{
    request_end_here(rq, hfi_request_timeout(rq));
}
