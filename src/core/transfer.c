/* SPDX-License-Identifier: MIT
 *
 * transfer.c - hf_transfer(): who is to have the lock next.
 *
 * The queue is the service's, so the service puts the heir first.  One that
 * waits in the local queue of this client has no place there yet: it leaves the
 * local queue and asks for itself, as HF_FAIR would have made it, and is put
 * first once it stands in the service's queue.
 *
 * INVARIANT  A grant that was transferred is neither handed on inside this
 * client nor kept to linger: its release goes to the service, which knows whose
 * turn it is.
 */
#include "core.h"

#include "base/banned.h"

/* A place that was just asked for is there by then, or is looked for again. */
#define PLACE_MS 5

static bool transfer_is_named(const struct hfi_claim *claim, const char *heir)
{
    return !strcmp(claim->token, heir) ||
           (claim->owner && !strcmp(claim->owner, heir)) ||
           (claim->note && !strcmp(claim->note, heir));
}

/* The first of these requests that has that name and goes on waiting, or
 * NULL. */
static struct hf_request *transfer_find(const struct hfi_link *requests,
                                        const char *heir)
{
    struct hf_request *rq;
    struct hfi_link *at;

    for (at = requests->next; at != requests; at = at->next) {
        rq = hfi_container(at, struct hf_request, link);
        if (rq->grant && !rq->canceled && rq->wait_end > hfi_now() &&
            transfer_is_named(&rq->grant->claim, heir))
            return rq;
    }
    return NULL;
}

/* Let a local heir ask for itself; its token is what it is called from now
 * on. */
static bool transfer_send_local(struct hfi_key_queue *queue, const char *heir,
                                char token[HFI_TOKEN_LEN + 1])
{
    struct hf_request *rq = transfer_find(&queue->waiting, heir);

    if (!rq)
        return false;
    memcpy(token, rq->grant->claim.token, HFI_TOKEN_LEN + 1);
    rq->grant->local_grant = false;
    hfi_link_remove(&rq->link);
    hfi_link_append(&queue->contending, &rq->link);
    rq->state = HFI_CONTENDING;
    rq->woken = true;
    hfi_request_schedule(rq);
    return true;
}

/* Ask once.  `busy` keeps renewals off, so it lasts no longer than one of
 * those. */
static hf_status transfer_ask(struct hf_client *c, struct hfi_grant *grant,
                              const char *heir, int64_t end,
                              struct hf_error *err)
{
    int64_t sent = hfi_now();
    hf_status st;

    grant->busy = true;
    pthread_mutex_unlock(&c->mu);
    st = c->be->promote(
        c->conn, &grant->claim, &grant->receipt, heir,
        hfi_lease_attempt_end(sent, grant->lease_ms, end, c->timeout_ms, 0),
        err);
    pthread_mutex_lock(&c->mu);
    grant->busy = false;
    hfi_cond_wake(&c->settle);
    if (grant->state == HFI_HELD)
        hfi_keeper_add(c, grant);
    return st;
}

/* Ask until there is an answer or `end` has come; and, for a local heir, until
 * it has its place or waits no longer. */
static hf_status transfer_until(struct hf_client *c, struct hfi_grant *grant,
                                const char *heir, bool local, int64_t end,
                                unsigned cancels, struct hf_error *err)
{
    bool unanswered = false;
    int64_t at;
    hf_status st;

    for (;;) {
        st = transfer_ask(c, grant, heir, end, err);
        unanswered = unanswered || st == HF_UNCERTAIN;
        at = hfi_now() + PLACE_MS;
        if (st == HF_UNCERTAIN || st == HF_UNAVAILABLE)
            at = hfi_lease_retry_at(hfi_now(), grant->lease_ms);
        else if (st != HF_INVALID || !local ||
                 !transfer_find(&grant->queue->contending, heir))
            break;
        if (at >= end || !hfi_handle_pause(c, at, cancels))
            break;
        hfi_grant_quiet(c, grant);
        if (!hfi_handle_still_held(c, grant))
            return hfi_handle_lost(grant, err);
    }
    if (unanswered && st == HF_UNAVAILABLE)
        st = hfi_restate(err, HF_UNCERTAIN);
    return st;
}

static hf_status transfer_held(struct hf_client *c, struct hfi_grant *grant,
                               const char *heir, struct hf_error *err)
{
    int64_t end = hfi_now() + c->timeout_ms;
    unsigned cancels = atomic_load(&c->cancels);
    char token[HFI_TOKEN_LEN + 1];
    bool local;
    hf_status st;

    if (end > atomic_load(&grant->deadline))
        end = atomic_load(&grant->deadline);
    do { /* If a local one gives up meanwhile, another may have that name. */
        local = transfer_send_local(grant->queue, heir, token);
        st = transfer_until(c, grant, local ? token : heir, local, end, cancels,
                            err);
    } while (st == HF_INVALID && local && !c->closing && hfi_now() < end &&
             atomic_load(&c->cancels) == cancels);
    if (st == HF_LOST)
        hfi_handle_lose(c, grant);
    if (!hfi_handle_still_held(c, grant))
        return hfi_handle_lost(grant, err);
    if (!st || st == HF_UNCERTAIN) {
        grant->turns = 0;
        grant->linger_ms = 0;
        if (err && !st)
            *err = (struct hf_error){.status = HF_OK}; /* of an earlier one */
    }
    return st;
}

hf_status hfi_transfer(struct hf_lock *lk, const char *heir,
                       struct hf_error *err)
{
    struct hf_client *c = lk->client;
    struct hfi_grant *grant = lk->grant;
    hf_status st;

    hfi_handle_enter(c);
    hfi_grant_quiet(c, grant);
    st = hfi_handle_still_held(c, grant) ? transfer_held(c, grant, heir, err)
                                         : hfi_handle_lost(grant, err);
    hfi_handle_leave(c);
    return st;
}
