/* SPDX-License-Identifier: MIT
 *
 * grant.c - a grant, from its claim to its end.
 *
 * INVARIANTS
 *  (1) Held is a pure function of `deadline` and the clock.  `deadline` is
 *      raised only by compare-and-swap from a value that has not passed, and
 *      whoever finds it passed swaps it to 0: once hf_held() has said false, no
 *      late answer can make it true again.
 *  (2) `deadline` is never later than what was proven by an answer, counted
 *      from before its request was sent (base/lease.h (1)).
 *  (3) A loss is latched once, before the key queue goes to anybody else: the
 *      holder's descriptor and event are raised under the same mutex.
 *  (4) A renewal and a release of one grant are never on the wire together:
 *      hfi_grant_quiet() is the barrier.
 *  (5) What may be in the service is either held, on its way out, or in the
 *      hands of the reaper: until the longest lease that it may have there is
 *      over, or where that has no end or is not known, until the service has
 *      answered.
 *  (6) A broken grant is not given back while a handle of it is in use.  The
 *      holder has been told; releasing the handle says that its work is over.
 *  (7) A shorter lease that was asked for and had no answer may arrive after
 *      any later renewal.  From then on no renewal is believed for longer than
 *      that lease: wherever it arrives, it leaves that much.
 *  (8) Until min_hold_ms are over nothing here passes a grant on, lets it linger
 *      or gives it back: whoever ends it tells the service to keep it, in the
 *      one function that ends grants.
 */
#include "log.h"
#include "stats.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/mutant.h"
#include "base/probe.h"

#include "base/banned.h"

/* Tokens come out of a buffer, because asking the kernel each time would cost
 * more than the rest of a local acquisition. */
static void grant_new_token(struct hf_client *c, char *ret)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *from;
    int i;

    if (c->random_left < HFI_TOKEN_LEN / 2) {
        hfi_random(c->random, sizeof(c->random));
        c->random_left = sizeof(c->random);
    }
    c->random_left -= HFI_TOKEN_LEN / 2;
    from = c->random + c->random_left;
    for (i = 0; i < HFI_TOKEN_LEN; i += 2) {
        ret[i] = digits[from[i / 2] >> 4];
        ret[i + 1] = digits[from[i / 2] & 15];
    }
    ret[HFI_TOKEN_LEN] = '\0';
    if (HFI_MUTANT(owner_is_the_process))
        memset(ret, '0', HFI_TOKEN_LEN);
}

static const char *grant_text(struct hf_client *c, const char *text, bool *ok)
{
    char *copy;

    if (!text || text == c->note)
        return text;
    copy = hfi_strdup(text);
    if (!copy)
        *ok = false;
    return copy;
}

static void grant_free_text(struct hf_client *c, const char *text)
{
    if (text != c->note)
        hfi_free((char *)(uintptr_t)text);
}

/* A claim that nobody has been told of yet; NULL: no memory. */
struct hfi_grant *hfi_grant_new(struct hf_client *c,
                                struct hfi_key_queue *queue,
                                const struct hfi_lock_params *params)
{
    struct hfi_grant *grant = hfi_alloc(sizeof(*grant) + c->be->grant_size);
    bool ok = true;

    if (!grant || !hfi_heap_reserve(&c->timers)) {
        hfi_free(grant);
        return NULL;
    }
    hfi_link_init(&grant->link);
    hfi_link_init(&grant->handles);
    hfi_link_init(&grant->due);
    grant->timer.kind = HFI_TIMER_GRANT;
    grant->queue = queue;
    grant->receipt.own = grant->own;
    queue->users++;
    grant->claim.key = queue->key;
    grant->claim.owner = grant_text(c, params->owner, &ok);
    grant->claim.note = grant_text(c, params->note, &ok);
    grant->claim.ttl_ms = grant->most_ms = params->ttl_ms;
    grant->claim.shared = params->flags & HF_SHARED;
    grant->claim.permits = params->permits;
    grant->manual = params->flags & HF_MANUAL;
    /* Others may not stand for those who have a turn of their own, or who may
     * enter where the next in line must wait. */
    grant->local_grant = !(params->flags & (HF_FAIR | HF_SHARED)) &&
                         !params->owner && !params->permits;
    grant_new_token(c, grant->claim.token);
    if (!ok) {
        hfi_grant_free(c, grant);
        return NULL;
    }
    return grant;
}

/* What another claim must ask for that takes the place of this one. */
struct hfi_lock_params hfi_grant_params(const struct hfi_claim *claim)
{
    return (struct hfi_lock_params){.owner = claim->owner,
                                    .note = claim->note,
                                    .ttl_ms = claim->ttl_ms,
                                    .permits = claim->permits,
                                    .flags = claim->shared ? HF_SHARED : 0};
}

/* Remember what a backend has written for another grant of this client. */
void hfi_grant_keep(const struct hf_client *c, struct hfi_grant *grant,
                    const struct hfi_receipt *receipt)
{
    memcpy(grant->own, receipt->own, c->be->grant_size);
    grant->receipt = *receipt;
    grant->receipt.own = grant->own;
}

void hfi_grant_free(struct hf_client *c, struct hfi_grant *grant)
{
    hfi_heap_remove(&c->timers, &grant->timer);
    hfi_heap_unreserve(&c->timers);
    hfi_link_remove(&grant->due);
    hfi_link_remove(&grant->link);
    grant_free_text(c, grant->claim.owner);
    grant_free_text(c, grant->claim.note);
    hfi_key_queue_put(c, grant->queue);
    hfi_free(grant);
}

static int64_t grant_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Where the service never takes a lock from a living process there is nothing
 * to lapse, except for a caller who wants to do the renewals himself. */
int64_t hfi_grant_proven(const struct hf_client *c,
                         const struct hfi_grant *grant,
                         const struct hfi_proof *proof, int64_t sent,
                         int64_t ttl_ms)
{
    if (HFI_MUTANT(validity_from_reply))
        return hfi_lease_deadline(hfi_now(), ttl_ms);
    if (grant->manual || c->conn->traits & HF_TRAIT_LEASED)
        return hfi_lease_proven(proof, sent, ttl_ms);
    return HFI_NEVER;
}

/* The service said yes to what was sent at `sent`. */
void hfi_grant_begin(struct hf_client *c, struct hfi_grant *grant,
                     const struct hfi_lock_params *params,
                     const struct hfi_proof *proof, int64_t sent,
                     int64_t ttl_ms)
{
    grant->state = HFI_HELD;
    grant->uncertain = false;
    grant->lease_end = hfi_grant_proven(c, grant, proof, sent, ttl_ms);
    grant->lease_ms = ttl_ms;
    grant->next_at = hfi_lease_renew_at(sent, ttl_ms);
    grant->turns = grant->local_grant ? params->local_turns : 0;
    hfi_link_append(&grant->queue->grants, &grant->link);
    if (grant->local_grant)
        grant->queue->local_grant = grant;
    hfi_grant_take_up(c, grant, params);
}

/* A new holder begins: what belongs to its acquisition and not to the lease. */
void hfi_grant_take_up(struct hf_client *c, struct hfi_grant *grant,
                       const struct hfi_lock_params *params)
{
    grant->state = HFI_HELD;
    grant->linger_ms = (int32_t)params->linger_ms;
    grant->warned = false; /* The new holder was not. */
    grant->hold_end = HFI_NEVER;
    if (params->max_hold_ms)
        grant->hold_end = hfi_after(hfi_now(), params->max_hold_ms);
    grant->min_end = 0;
    if (params->min_hold_ms)
        grant->min_end = hfi_after(hfi_now(), params->min_hold_ms);
    atomic_store(&grant->deadline,
                 grant_min(grant->lease_end, grant->hold_end));
    hfi_keeper_add(c, grant);
}

/* Let nobody believe in it beyond `end`. */
void hfi_grant_lower(struct hfi_grant *grant, int64_t end)
{
    int64_t old = atomic_load(&grant->deadline);

    while (old && end < old)
        if (atomic_compare_exchange_weak(&grant->deadline, &old, end))
            break;
}

/* A shorter lease is about to be asked for, or another session to carry the
 * grant that is proven for less: the service may have done it long before we
 * hear of it, so believe no more than that from now on. */
void hfi_grant_believe_less(struct hfi_grant *grant, int64_t end)
{
    if (grant->lease_end == HFI_NEVER || end >= grant->lease_end)
        return;
    grant->lease_end = end;
    hfi_grant_lower(grant, end);
}

/* One more acquisition has the grant from now on, for no longer than the one and
 * to be kept for no less than the other; 0: it did not ask for that. */
void hfi_grant_limit(struct hfi_grant *grant, int64_t max_hold_ms,
                     int64_t min_hold_ms)
{
    int64_t now, end = HFI_NEVER, least = 0;

    if (!max_hold_ms && !min_hold_ms)
        return;
    now = hfi_now();
    if (max_hold_ms)
        end = hfi_after(now, max_hold_ms);
    if (min_hold_ms)
        least = hfi_after(now, min_hold_ms);
    if (least > grant->min_end)
        grant->min_end = least;
    if (end < grant->hold_end) {
        grant->hold_end = end;
        hfi_grant_lower(grant, end);
    }
}

/* One more acquisition shares the grant, and has what it asked for: renewals by
 * the keeper, no shorter lease, no longer hold.  The claim may be on the wire,
 * so its lease waits for the next renewal. */
void hfi_grant_join(struct hf_client *c, struct hfi_grant *grant,
                    const struct hfi_lock_params *params)
{
    int64_t end = grant->hold_end;

    hfi_grant_limit(grant, params->max_hold_ms, params->min_hold_ms);
    if (!(grant->manual && !(params->flags & HF_MANUAL)) &&
        params->ttl_ms <= grant->claim.ttl_ms && end == grant->hold_end)
        return; /* It has that already. */
    if (!(params->flags & HF_MANUAL))
        grant->manual = false;
    if (params->ttl_ms > grant->claim.ttl_ms &&
        params->ttl_ms > grant->want_ms) {
        grant->want_ms = params->ttl_ms;
        grant->next_at = hfi_now();
    }
    hfi_keeper_add(c, grant);
}

/* Before a renewal: ask for what the keenest acquisition wants. */
void hfi_grant_want(struct hfi_grant *grant)
{
    if (grant->want_ms > grant->claim.ttl_ms)
        grant->claim.ttl_ms = grant->want_ms;
    if (grant->claim.ttl_ms > grant->most_ms)
        grant->most_ms = grant->claim.ttl_ms;
    grant->want_ms = 0;
}

/* Nobody has it, so max_hold_ms of the last holder is over: only the lease
 * counts. grant.c (1) */
void hfi_grant_unhold(struct hfi_grant *grant)
{
    int64_t old = atomic_load(&grant->deadline);

    grant->hold_end = HFI_NEVER;
    if (old && hfi_now() < old)
        atomic_compare_exchange_strong(&grant->deadline, &old,
                                       grant->lease_end);
}

/* The service confirmed the grant.  HF_LOST if that came too late: the holder
 * may have been told already, so the lease is not taken up again.  An answer
 * that proves less than was known counts: the grant may have moved to where no
 * more is proven of it.  HF_UNCERTAIN if it proves nothing. */
hf_status hfi_grant_renewed(struct hf_client *c, struct hfi_grant *grant,
                            const struct hfi_proof *proof, int64_t sent,
                            int64_t ttl_ms)
{
    int64_t old = atomic_load(&grant->deadline), end, now, was;

    if (grant->short_ms && grant->short_ms < ttl_ms)
        ttl_ms = grant->short_ms; /* grant.c (7) */
    end = hfi_grant_proven(c, grant, proof, sent, ttl_ms);
    if (HFI_MUTANT(late_renewal_revives))
        atomic_store(&grant->deadline, old = end);
    now = hfi_now();
    if (now >= old) { /* grant.c (1) */
        c->stats.renewals_late++;
        return HF_LOST;
    }
    if (!end)
        return HF_UNCERTAIN;
    was = old;
    if (!atomic_compare_exchange_strong(&grant->deadline, &old,
                                        grant_min(end, grant->hold_end)))
        return HF_LOST;
    c->stats.renewed++;
    if (was != HFI_NEVER)
        hfi_histogram_add(&c->stats.margin, (was - now) * 1000);
    grant->next_at =
        hfi_lease_renew_at(sent, end < grant->lease_end ? end - sent : ttl_ms);
    grant->lease_end = end;
    grant->lease_ms = ttl_ms;
    grant->warned = false;
    grant->failed = 0;
    return HF_OK;
}

/* See grant.c (1).  Async-signal-safe. */
bool hfi_held(const struct hfi_grant *grant)
{
    _Atomic int64_t *at = (_Atomic int64_t *)(uintptr_t)&grant->deadline;
    int64_t deadline = atomic_load(at);
    int64_t now;

    if (!deadline)
        return false;
    if (deadline == HFI_NEVER)
        return true;
    now = hfi_now();
    while (deadline && now >= deadline)
        if (atomic_compare_exchange_weak(at, &deadline, 0))
            return false;
    return deadline != 0;
}

/* May this grant, without a word to the service, serve these parameters?  Only
 * what the service was told of must agree. */
bool hfi_grant_fits(const struct hfi_grant *grant,
                    const struct hfi_lock_params *params)
{
    const struct hfi_claim *claim = &grant->claim;

    return grant->local_grant && !grant->manual && !params->owner &&
           !(params->flags & (HF_FAIR | HF_SHARED | HF_MANUAL)) &&
           !params->permits && claim->ttl_ms == params->ttl_ms &&
           (claim->note == params->note || !strcmp(claim->note, params->note));
}

void hfi_grant_give(struct hf_client *c, struct hfi_grant *grant,
                    struct hf_lock *lk)
{
    lk->grant = grant;
    hfi_link_append(&grant->handles, &lk->link);
    if (lk->aside && !grant->aside++)
        hfi_keeper_add(c, grant); /* renewed now, whoever does that later */
}

/* Raise descriptor and event of every handle. */
static void grant_tell(struct hf_client *c, struct hfi_grant *grant)
{
    const uint64_t one = 1;
    struct hfi_link *at;
    struct hf_lock *lk;

    if (HFI_MUTANT(loss_not_told))
        return;
    for (at = grant->handles.next; at != &grant->handles; at = at->next) {
        lk = hfi_container(at, struct hf_lock, link);
        if (lk->lost_fd >= 0 && write(lk->lost_fd, &one, sizeof(one)) < 0)
            continue; /* Only a full counter fails: it is readable. */
        if (!lk->aside && !lk->leaving)
            hfi_notify(c, &lk->notice, HF_GONE);
    }
}

/* Does the service keep a grant that nobody renews for as long as we live? */
bool hfi_stays(const struct hf_client *c)
{
    return c->conn->traits & HFI_TRAIT_BOUND ||
           !(c->conn->traits & HF_TRAIT_LEASED);
}

/* Must a grant that is lost for this reason be given back now?  Yes if it was
 * ours to end, and where the service may go on keeping it.  One that was broken
 * is kept until its last handle is released: its holder has just been told, and
 * may be at work.  grant.c (6) */
static bool grant_may_remain(const struct hf_client *c,
                             const struct hfi_grant *grant, hf_loss reason)
{
    if (reason == HF_LOSS_BROKEN && HFI_MUTANT(broken_is_given_back_at_once))
        return true;
    if (reason == HF_LOSS_BROKEN && !hfi_link_alone(&grant->handles))
        return false;
    return reason == HF_LOSS_MAX_HOLD || !(c->conn->traits & HF_TRAIT_LEASED) ||
           (reason == HF_LOSS_EXPIRED && hfi_stays(c));
}

/* The grant cannot be proven any longer.  Latched: the first reason stays. */
void hfi_grant_lose(struct hf_client *c, struct hfi_grant *grant,
                    hf_loss reason)
{
    struct hfi_key_queue *queue = grant->queue;
    bool lingering = grant->state == HFI_LINGERING;

    if (grant->state != HFI_HELD && !lingering)
        return;
    atomic_store(&grant->loss, (unsigned char)reason);
    atomic_store(&grant->deadline, 0);
    if (!lingering)
        c->stats.lost[reason]++;
    hfi_heap_remove(&c->timers, &grant->timer);
    hfi_link_remove(&grant->due);
    hfi_link_remove(&grant->link);
    hfi_link_append(&c->lost, &grant->link);
    grant->state = HFI_LOST;
    if (reason == HF_LOSS_BROKEN)
        grant->min_end = 0; /* An operator wants it free. */
    HFI_PROBE2(lost, grant->claim.key, reason);
    hfi_log_key(
        c, lingering || reason == HF_LOSS_CLOSED ? HF_LOG_DEBUG : HF_LOG_ERROR,
        grant->claim.key, "lost: %s", hf_loss_name(reason));
    if (queue->local_grant == grant)
        queue->local_grant = NULL;
    grant_tell(c, grant);
    if (lingering || grant_may_remain(c, grant, reason))
        hfi_grant_reap(c, grant);
    else if (reason == HF_LOSS_BROKEN && hfi_sweeps(c)) /* at the latest */
        hfi_keeper_set(c, &grant->timer, hfi_sweep_due(grant));
    hfi_key_queue_promote(c, queue);
}

/* Let no renewal of the grant be on the wire, or about to be, and let no other
 * begin meanwhile.  grant.c (4) */
void hfi_grant_quiet(struct hf_client *c, struct hfi_grant *grant)
{
    grant->quiet++;
    hfi_link_remove(&grant->due);
    while (grant->busy && !HFI_MUTANT(renewal_after_release))
        hfi_cond_wait(&c->settle, &c->mu, HFI_NEVER);
    grant->quiet--;
    if (grant->state == HFI_HELD || grant->state == HFI_LINGERING)
        hfi_keeper_add(c, grant);
}

/* Take it back in the background until there is an answer or, where it ends by
 * itself, the longest lease that it may have is over.  grant.c (5) */
void hfi_grant_reap(struct hf_client *c, struct hfi_grant *grant)
{
    int64_t now = hfi_now();

    if (grant->state != HFI_REAPING)
        hfi_log_key(c, HF_LOG_INFO, grant->claim.key,
                    "being taken back in the background");
    grant->state = HFI_REAPING;
    hfi_link_remove(&grant->due);
    hfi_link_remove(&grant->link);
    grant->next_at = hfi_after(now, grant->most_ms);
    hfi_keeper_set(c, &grant->timer, now);
}

/* Tell the service, which may be asked to stop watching too, or to keep the lock
 * until min_hold_ms are over; the mutex is let go meanwhile.  What cannot be kept
 * is released.  grant.c (8) */
hf_status hfi_grant_send_release(struct hf_client *c, struct hfi_grant *grant,
                                 int64_t deadline, struct hf_error *err)
{
    int64_t keep_ms = grant->min_end ? hfi_left_ms(grant->min_end) : 0;
    bool watched = grant->watched;
    hf_status st = HF_LOST;

    if (keep_ms > grant->most_ms)
        grant->most_ms = keep_ms;
    grant->watched = false;
    pthread_mutex_unlock(&c->mu);
    if (watched)
        c->be->unwatch(c->conn, &grant->claim, &grant->receipt);
    if (keep_ms > 0)
        st = c->be->keep(c->conn, &grant->claim, &grant->receipt, keep_ms,
                         deadline, err);
    if (st == HF_LOST) /* One that was broken is still there. */
        st = c->be->release(c->conn, &grant->claim, &grant->receipt, deadline,
                            err);
    pthread_mutex_lock(&c->mu);
    return st;
}

/* A grant that has no handles is about to be given back: nobody has it any
 * more, and no renewal is on the wire.  When that is. */
static inline int64_t grant_drop_begin(struct hf_client *c,
                                       struct hfi_grant *grant)
{
    int64_t now;

    grant->state = HFI_RELEASING;
    atomic_store(&grant->deadline, 0);
    hfi_heap_remove(&c->timers, &grant->timer);
    hfi_grant_quiet(c, grant);
    now = hfi_now();
    grant->next_at = hfi_after(now, grant->most_ms);
    return now;
}

/* Send its release, by `deadline`, unless that was done ahead, after `sent`; and
 * be done with it or leave it to the reaper.  The mutex is let go meanwhile.  A
 * key queue is not passed on before the answer, so that the next one does not
 * find it busy with ourselves.  HFI_AGAIN: to be called again. */
static inline hf_status grant_drop_end(struct hf_client *c,
                                       struct hfi_grant *grant, int64_t sent,
                                       int64_t deadline, struct hf_error *err)
{
    struct hfi_key_queue *queue = grant->queue;
    hf_status st = hfi_grant_send_release(c, grant, deadline, err);

    if (st == HFI_AGAIN)
        return st;
    c->silent = st == HF_UNCERTAIN || st == HF_UNAVAILABLE;
    HFI_PROBE2(release, grant->claim.key, st);
    if (hfi_logs(c, HF_LOG_DEBUG))
        hfi_log_key(c, HF_LOG_DEBUG, queue->key, "released: %s",
                    hf_status_name(st));
    if (queue->local_grant == grant)
        queue->local_grant = NULL;
    queue->users++;
    if (hfi_reap_goes_on(c, grant, st, sent))
        hfi_grant_reap(c, grant);
    else
        hfi_grant_free(c, grant);
    if (st == HF_UNAVAILABLE)
        st = hfi_restate(err, HF_UNCERTAIN);
    hfi_key_queue_promote(c, queue);
    hfi_key_queue_put(c, queue);
    return st;
}

hf_status hfi_grant_drop(struct hf_client *c, struct hfi_grant *grant,
                         int64_t deadline, struct hf_error *err)
{
    int64_t sent = grant_drop_begin(c, grant);

    return grant_drop_end(c, grant, sent, deadline, err);
}

/* The same in two steps, with others sent in between. */
int64_t hfi_grant_drop_begin(struct hf_client *c, struct hfi_grant *grant)
{
    return grant_drop_begin(c, grant);
}

hf_status hfi_grant_drop_end(struct hf_client *c, struct hfi_grant *grant,
                             int64_t sent, int64_t deadline,
                             struct hf_error *err)
{
    return grant_drop_end(c, grant, sent, deadline, err);
}

/* Nobody took it up in time, or somebody wants it otherwise.  It keeps its
 * place as the local grant until it is released, so that nobody here asks for
 * what we still have. */
void hfi_grant_stop_lingering(struct hf_client *c, struct hfi_grant *grant)
{
    grant->state = HFI_RELEASING;
    hfi_link_remove(&grant->due);
    hfi_keeper_set(c, &grant->timer, hfi_now());
}
