/* SPDX-License-Identifier: MIT
 *
 * handle.c - what a caller does with a lock: extend, downgrade.
 *
 * A handle is one acquisition.  Several share a grant when one owner id was
 * acquired more than once in this client; the grant ends with the last
 * (release.c).
 *
 * Every function here counts as a call under way, which hf_close() waits for;
 * one that begins later waits for hf_close() and finds the lock lost.
 */
#include "core.h"

#include <unistd.h>

#include "base/banned.h"

struct hf_lock *hfi_lock_new(struct hf_client *c)
{
    struct hf_lock *lk = hfi_alloc(sizeof(*lk));

    if (!lk)
        return NULL;
    lk->client = c;
    lk->lost_fd = -1;
    hfi_link_init(&lk->link);
    hfi_link_init(&lk->queued);
    hfi_notice_init(&lk->notice);
    atomic_fetch_add(&c->refs, 1);
    return lk;
}

void hfi_handle_enter(struct hf_client *c)
{
    pthread_mutex_lock(&c->mu);
    hfi_handle_begin(c);
}

hf_status hfi_handle_lost(const struct hfi_grant *grant, struct hf_error *err)
{
    char key[HFI_QUOTE_MAX];

    return hfi_fail(err, HF_LOST, "'%s' was lost: %s",
                    hfi_quote(key, sizeof(key), grant->claim.key),
                    hf_loss_name((hf_loss)atomic_load(&grant->loss)));
}

/* A request for a lease that is shorter than the one before had no answer. */
static void handle_doubt_short(struct hfi_grant *grant, int64_t ttl_ms)
{
    if (ttl_ms < grant->claim.ttl_ms &&
        (!grant->short_ms || ttl_ms < grant->short_ms))
        grant->short_ms = ttl_ms; /* grant.c (7) */
}

/* No answer at all: what is known of the lease now, and when the keeper tries
 * again. */
static void handle_unanswered(struct hfi_grant *grant, int64_t sent,
                              int64_t ttl_ms)
{
    if (ttl_ms < grant->claim.ttl_ms)
        grant->claim.ttl_ms = grant->lease_ms = ttl_ms;
    grant->failed++;
    grant->next_at = hfi_lease_retry_at(sent, grant->lease_ms);
}

/* Sleep between two attempts.  False if the caller must not try again: the wait
 * was cancelled, or the client is being closed, since `cancels` was read. */
bool hfi_handle_pause(struct hf_client *c, int64_t until, unsigned cancels)
{
    bool on = true;

    while ((on = !c->closing && atomic_load(&c->cancels) == cancels) &&
           hfi_now() < until)
        hfi_cond_wait(&c->settle, &c->mu, until);
    return on;
}

/* When an attempt that is sent now must be answered.  Attempts are as long as
 * the lease that is left allows, not the one that is asked for.  One that asks
 * for a shorter lease has half of all the time: without an answer it limits
 * what can be believed from then on, so it is not given up early.  grant.c
 * (7) */
static int64_t handle_limit(const struct hf_client *c,
                            const struct hfi_grant *grant, int64_t ttl_ms,
                            int64_t sent, int64_t end, int failed)
{
    bool held = grant->state == HFI_HELD;

    if (held && ttl_ms < grant->claim.ttl_ms)
        return failed ? end : sent + (end - sent) / 2;
    if (held && grant->lease_ms < ttl_ms)
        ttl_ms = grant->lease_ms;
    return hfi_lease_attempt_end(sent, ttl_ms, end, c->timeout_ms, failed);
}

/* When to ask again, after an attempt that failed at once. */
static int64_t handle_retry_at(const struct hfi_grant *grant, int64_t ttl_ms,
                               int64_t sent, int64_t end)
{
    int64_t at;

    if (grant->state == HFI_HELD && grant->lease_ms < ttl_ms)
        ttl_ms = grant->lease_ms;
    at = hfi_lease_retry_at(sent, ttl_ms);
    return at < end ? at : end;
}

/* Ask for a renewal until there is an answer or `end` has come.  The mutex is
 * let go meanwhile.  An attempt has a limit of its own, so that one connection
 * that hangs does not take all the time.  *sent is when the last one was
 * sent. */
void hfi_handle_ask(struct hf_client *c, struct hfi_grant *grant,
                    struct hfi_renewal *item, int64_t end, int64_t *sent,
                    struct hf_error *err)
{
    unsigned cancels = atomic_load(&c->cancels);
    int64_t limit, ttl_ms = item->ttl_ms;
    bool unanswered = false;
    int failed = 0;

    if (ttl_ms > grant->most_ms)
        grant->most_ms = ttl_ms; /* reaper.c (1) */
    do {
        *sent = hfi_now();
        limit = handle_limit(c, grant, ttl_ms, *sent, end, failed++);
        *item = (struct hfi_renewal){.claim = &grant->claim,
                                     .receipt = &grant->receipt,
                                     .ttl_ms = ttl_ms,
                                     .st = HF_UNCERTAIN,
                                     .reason = HF_LOSS_STOLEN,
                                     .proof = hfi_proof_plain(*sent, ttl_ms)};
        pthread_mutex_unlock(&c->mu);
        c->be->renew(c->conn, item, 1, limit, err);
        pthread_mutex_lock(&c->mu);
        if (item->st != HF_UNCERTAIN && item->st != HF_UNAVAILABLE)
            break;
        if (item->st == HF_UNCERTAIN) {
            unanswered = true;
            handle_doubt_short(grant, ttl_ms);
        }
    } while (hfi_handle_pause(c, handle_retry_at(grant, ttl_ms, *sent, end),
                              cancels) &&
             hfi_now() < end);
    if (unanswered && item->st && item->st != HF_LOST)
        item->st = hfi_restate(err, HF_UNCERTAIN); /* backend.h (2) */
    if (item->st == HF_OK && err)
        *err = (struct hf_error){.status = HF_OK}; /* of an earlier attempt */
}

/* Renew on behalf of the caller; the renewer keeps off meanwhile. */
hf_status hfi_handle_renew(struct hf_client *c, struct hfi_grant *grant,
                           int64_t ttl_ms, struct hf_error *err)
{
    struct hfi_renewal item = {.ttl_ms = ttl_ms};
    int64_t sent = hfi_now(), end;

    hfi_grant_believe_less(grant, hfi_lease_deadline(sent, ttl_ms));
    end = atomic_load(&grant->deadline);
    if (end > sent + c->timeout_ms)
        end = sent + c->timeout_ms;
    grant->busy = true;
    hfi_keeper_add(c, grant);
    hfi_handle_ask(c, grant, &item, end, &sent, err);
    grant->busy = false;
    hfi_cond_wake(&c->settle);
    if (item.st == HF_OK) {
        grant->claim.ttl_ms = ttl_ms;
        item.st = hfi_grant_renewed(c, grant, &item.proof, sent, ttl_ms);
        if (item.st == HF_LOST)
            hfi_grant_lose(c, grant, HF_LOSS_EXPIRED);
        else if (item.st)
            hfi_fail(err, item.st, "the answer proves nothing");
    } else if (item.st == HF_LOST) {
        hfi_grant_lose(c, grant, item.reason);
    } else {
        c->stats.renewals_failed++;
        handle_unanswered(grant, sent, ttl_ms);
    }
    if (!hfi_handle_still_held(c, grant))
        return hfi_handle_lost(grant, err);
    hfi_keeper_add(c, grant);
    return item.st;
}

hf_status hfi_extend(struct hf_lock *lk, int64_t ttl_ms, struct hf_error *err)
{
    struct hf_client *c = lk->client;
    struct hfi_grant *grant = lk->grant;
    hf_status st;

    hfi_handle_enter(c);
    hfi_grant_quiet(c, grant);
    if (!hfi_handle_still_held(c, grant)) {
        st = hfi_handle_lost(grant, err);
    } else {
        hfi_grant_want(grant);
        st = hfi_handle_renew(c, grant, ttl_ms ? ttl_ms : grant->claim.ttl_ms,
                              err);
    }
    hfi_handle_leave(c);
    return st;
}

/* The service has refused to change a grant that is not ours any more: its
 * renewal tells why.  One question only; the holder is to hear of the loss. */
void hfi_handle_lose(struct hf_client *c, struct hfi_grant *grant)
{
    int64_t sent = hfi_now(), ttl_ms = grant->claim.ttl_ms;
    struct hfi_renewal item = {.claim = &grant->claim,
                               .receipt = &grant->receipt,
                               .ttl_ms = ttl_ms,
                               .st = HF_UNCERTAIN,
                               .reason = HF_LOSS_STOLEN,
                               .proof = hfi_proof_plain(sent, ttl_ms)};

    if (grant->state != HFI_HELD)
        return;
    grant->busy = true;
    pthread_mutex_unlock(&c->mu);
    c->be->renew(c->conn, &item, 1,
                 hfi_lease_attempt_end(sent, grant->lease_ms,
                                       sent + c->timeout_ms, c->timeout_ms, 0),
                 NULL);
    pthread_mutex_lock(&c->mu);
    grant->busy = false;
    hfi_cond_wake(&c->settle);
    hfi_grant_lose(c, grant, item.st == HF_LOST ? item.reason : HF_LOSS_STOLEN);
}

/* The local queue waits for an exclusive grant.  This one is shared from now
 * on, whatever the service answers, so the next there asks for itself. */
static void handle_share(struct hf_client *c, struct hfi_grant *grant)
{
    struct hfi_key_queue *queue = grant->queue;

    grant->claim.shared = true;
    grant->local_grant = false;
    if (queue->local_grant == grant) {
        queue->local_grant = NULL;
        hfi_key_queue_promote(c, queue);
    }
}

/* Ask for it until there is an answer or `end` has come; `busy` keeps renewals
 * off meanwhile. */
static hf_status handle_ask_downgrade(struct hf_client *c,
                                      struct hfi_grant *grant, int64_t end,
                                      struct hf_error *err)
{
    unsigned cancels = atomic_load(&c->cancels);
    hf_status st;
    int64_t sent;

    grant->busy = true;
    do {
        sent = hfi_now();
        pthread_mutex_unlock(&c->mu);
        st = c->be->downgrade(
            c->conn, &grant->claim, &grant->receipt,
            hfi_lease_attempt_end(sent, grant->lease_ms, end, c->timeout_ms, 0),
            err);
        pthread_mutex_lock(&c->mu);
        if (st == HF_UNCERTAIN || st == HF_PROTOCOL)
            grant->downgrading = true; /* no answer, or one without sense */
    } while ((st == HF_UNCERTAIN || st == HF_UNAVAILABLE) &&
             hfi_handle_pause(c, hfi_lease_retry_at(sent, grant->lease_ms),
                              cancels) &&
             hfi_now() < end);
    grant->busy = false;
    hfi_cond_wake(&c->settle);
    return st;
}

static hf_status handle_downgrade_refused(const struct hfi_grant *grant,
                                          struct hf_error *err)
{
    char key[HFI_QUOTE_MAX];

    hfi_quote(key, sizeof(key), grant->claim.key);
    if (grant->claim.permits)
        return hfi_fail(err, HF_INVALID, "'%s' has permits and no modes", key);
    if (grant->claim.shared && !grant->downgrading)
        return hfi_fail(err, HF_INVALID, "'%s' is shared already", key);
    if (grant->handles.next != grant->handles.prev)
        return hfi_fail_joined(err, &grant->claim);
    return HF_OK;
}

/* What became of it.  After a refusal, and while no request was sent, the grant
 * is what it was. */
static hf_status handle_judge_downgrade(struct hf_client *c,
                                        struct hfi_grant *grant, hf_status st,
                                        struct hf_error *err)
{
    if (st && st != HF_LOST && grant->downgrading)
        st = hfi_restate(err, HF_UNCERTAIN);
    else if (st == HF_LOST)
        hfi_handle_lose(c, grant);
    else if (st && st != HF_UNCERTAIN && !grant->downgrading)
        grant->claim.shared = false;
    if (!st)
        grant->downgrading = false;
    return st;
}

/* Share a grant that is held and quiet. */
hf_status hfi_handle_share(struct hf_client *c, struct hfi_grant *grant,
                           struct hf_error *err)
{
    int64_t end = hfi_now() + c->timeout_ms;
    hf_status st;

    if (end > atomic_load(&grant->deadline))
        end = atomic_load(&grant->deadline);
    handle_share(c, grant);
    st = handle_ask_downgrade(c, grant, end, err);
    st = handle_judge_downgrade(c, grant, st, err);
    if (!hfi_handle_still_held(c, grant))
        return hfi_handle_lost(grant, err);
    hfi_keeper_add(c, grant);
    return st;
}

hf_status hfi_downgrade(struct hf_lock *lk, struct hf_error *err)
{
    struct hf_client *c = lk->client;
    struct hfi_grant *grant = lk->grant;
    hf_status st;

    hfi_handle_enter(c);
    hfi_grant_quiet(c, grant);
    st = hfi_handle_still_held(c, grant) ? handle_downgrade_refused(grant, err)
                                         : hfi_handle_lost(grant, err);
    if (!st)
        st = hfi_handle_share(c, grant, err);
    hfi_handle_leave(c);
    return st;
}
