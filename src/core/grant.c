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
 *  (3) A loss is latched once, before the lane goes to anybody else: the
 *      holder's descriptor and event are raised under the same mutex.
 *  (4) A renewal and a release of one hold are never on the wire together:
 *      hfi_hold_quiet() is the barrier.
 *  (5) What may be in the service is either held, on its way out, or in the
 *      hands of the reaper: until its ttl is over, or where a grant does not
 *      end with its ttl, until the service has answered.
 *  (6) A broken hold is not given back while a handle of it is in use.  The
 *      holder has been told; releasing the handle says that its work is over.
 *  (7) A shorter lease that was asked for and had no answer may arrive after any
 *      later renewal.  From then on no renewal is believed for longer than that
 *      lease: wherever it arrives, it leaves that much.
 */
#include "core.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

/* Tokens come out of a buffer, because asking the kernel each time would cost
 * more than the rest of a local acquisition. */
static void hold_new_token(struct hf_client *c, char *ret)
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

static const char *hold_text(struct hf_client *c, const char *text, bool *ok)
{
    char *copy;

    if (!text || text == c->note)
        return text;
    copy = hfi_strdup(text);
    if (!copy)
        *ok = false;
    return copy;
}

static void hold_free_text(struct hf_client *c, const char *text)
{
    if (text != c->note)
        hfi_free((char *)(uintptr_t)text);
}

/* A claim that nobody has been told of yet; NULL: no memory. */
struct hfi_hold *hfi_hold_new(struct hf_client *c, struct hfi_lane *lane,
                              const struct hfi_wish *wish)
{
    struct hfi_hold *hold = hfi_alloc(sizeof(*hold));
    bool ok = true;

    if (!hold || !hfi_heap_reserve(&c->timers)) {
        hfi_free(hold);
        return NULL;
    }
    hfi_link_init(&hold->link);
    hfi_link_init(&hold->handles);
    hfi_link_init(&hold->due);
    hold->timer.kind = HFI_TIMER_HOLD;
    hold->lane = lane;
    lane->users++;
    hold->claim.key = lane->key;
    hold->claim.owner = hold_text(c, wish->owner, &ok);
    hold->claim.note = hold_text(c, wish->note, &ok);
    hold->claim.ttl_ms = wish->ttl_ms;
    hold->claim.shared = wish->flags & HF_SHARED;
    hold->manual = wish->flags & HF_MANUAL;
    /* Others may not stand for those who have a turn of their own, or who may
     * enter where the next in line must wait. */
    hold->seat = !(wish->flags & (HF_FAIR | HF_SHARED)) && !wish->owner;
    hold_new_token(c, hold->claim.token);
    if (!ok) {
        hfi_hold_free(c, hold);
        return NULL;
    }
    return hold;
}

void hfi_hold_free(struct hf_client *c, struct hfi_hold *hold)
{
    hfi_heap_remove(&c->timers, &hold->timer);
    hfi_heap_unreserve(&c->timers);
    hfi_link_remove(&hold->due);
    hfi_link_remove(&hold->link);
    hold_free_text(c, hold->claim.owner);
    hold_free_text(c, hold->claim.note);
    hfi_lane_put(c, hold->lane);
    hfi_free(hold);
}

static int64_t hold_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Where the service never takes a lock from a living process there is nothing
 * to lapse, except for a caller who wants to do the renewals himself. */
int64_t hfi_hold_proven(const struct hf_client *c, const struct hfi_hold *hold,
                        const struct hfi_proof *proof, int64_t sent,
                        int64_t ttl_ms)
{
    if (HFI_MUTANT(validity_from_reply))
        return hfi_lease_deadline(hfi_now(), ttl_ms);
    if (hold->manual || c->conn->traits & HF_TRAIT_LEASED)
        return hfi_lease_proven(proof, sent, ttl_ms);
    return HFI_NEVER;
}

/* The service said yes to what was sent at `sent`. */
void hfi_hold_granted(struct hf_client *c, struct hfi_hold *hold,
                      const struct hfi_wish *wish,
                      const struct hfi_proof *proof, int64_t sent,
                      int64_t ttl_ms)
{
    hold->state = HFI_HELD;
    hold->uncertain = false;
    hold->lease_end = hfi_hold_proven(c, hold, proof, sent, ttl_ms);
    hold->lease_ms = ttl_ms;
    hold->next_at = hfi_lease_renew_at(sent, ttl_ms);
    hold->turns = hold->seat ? wish->local_turns : 0;
    hfi_link_append(&hold->lane->holds, &hold->link);
    if (hold->seat)
        hold->lane->seat = hold;
    hfi_hold_take_up(c, hold, wish);
}

/* A new holder begins: what belongs to its acquisition and not to the lease. */
void hfi_hold_take_up(struct hf_client *c, struct hfi_hold *hold,
                      const struct hfi_wish *wish)
{
    hold->state = HFI_HELD;
    hold->linger_ms = (int32_t)wish->linger_ms;
    hold->hold_end = HFI_NEVER;
    if (wish->max_hold_ms)
        hold->hold_end = hfi_after(hfi_now(), wish->max_hold_ms);
    atomic_store(&hold->deadline, hold_min(hold->lease_end, hold->hold_end));
    hfi_keeper_hold(c, hold);
}

/* The service confirmed the hold.  HF_LOST if that came too late: the holder may
 * have been told already, so the lease is not taken up again.  HF_UNCERTAIN if
 * the answer proves no more than was known: what was proven before stands. */
hf_status hfi_hold_renewed(struct hf_client *c, struct hfi_hold *hold,
                           const struct hfi_proof *proof, int64_t sent,
                           int64_t ttl_ms)
{
    int64_t old = atomic_load(&hold->deadline), end;

    if (hold->short_ms && hold->short_ms < ttl_ms)
        ttl_ms = hold->short_ms; /* grant.c (7) */
    end = hfi_hold_proven(c, hold, proof, sent, ttl_ms);
    if (HFI_MUTANT(late_renewal_revives))
        atomic_store(&hold->deadline, old = end);
    if (hfi_now() >= old) /* grant.c (1) */
        return HF_LOST;
    if (end < hold->lease_end)
        return HF_UNCERTAIN;
    if (!atomic_compare_exchange_strong(&hold->deadline, &old,
                                        hold_min(end, hold->hold_end)))
        return HF_LOST;
    hold->lease_end = end;
    hold->lease_ms = ttl_ms;
    hold->next_at = hfi_lease_renew_at(sent, ttl_ms);
    hold->warned = false;
    hold->failed = 0;
    return HF_OK;
}

/* See grant.c (1).  Async-signal-safe. */
bool hfi_held(const struct hfi_hold *hold)
{
    _Atomic int64_t *at = (_Atomic int64_t *)(uintptr_t)&hold->deadline;
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

/* May this hold, without a word to the service, serve that wish?  Only what the
 * service was told of must agree. */
bool hfi_hold_fits(const struct hfi_hold *hold, const struct hfi_wish *wish)
{
    const struct hfi_claim *claim = &hold->claim;

    return hold->seat && !hold->manual && !wish->owner &&
           !(wish->flags & (HF_FAIR | HF_SHARED | HF_MANUAL)) &&
           claim->ttl_ms == wish->ttl_ms &&
           (claim->note == wish->note || !strcmp(claim->note, wish->note));
}

void hfi_hold_give(struct hf_client *c, struct hfi_hold *hold,
                   struct hf_lock *lk)
{
    (void)c;
    lk->hold = hold;
    hfi_link_append(&hold->handles, &lk->link);
}

/* Raise descriptor and event of every handle. */
static void hold_tell(struct hf_client *c, struct hfi_hold *hold)
{
    const uint64_t one = 1;
    struct hfi_link *at;
    struct hf_lock *lk;

    if (HFI_MUTANT(loss_not_told))
        return;
    for (at = hold->handles.next; at != &hold->handles; at = at->next) {
        lk = hfi_container(at, struct hf_lock, link);
        if (lk->lost_fd >= 0 && write(lk->lost_fd, &one, sizeof(one)) < 0)
            continue; /* Only a full counter fails: it is readable. */
        hfi_notify(c, &lk->notice, HF_GONE);
    }
}

/* Does the service keep a grant that nobody renews for as long as we live? */
bool hfi_stays(const struct hf_client *c)
{
    return c->conn->traits & HFI_TRAIT_BOUND ||
           !(c->conn->traits & HF_TRAIT_LEASED);
}

/* Must a hold that is lost for this reason be given back now?  Yes if it was ours
 * to end, and where the service may go on keeping it.  One that was broken is
 * kept until its last handle is released: its holder has just been told, and
 * may be at work.  grant.c (6) */
static bool hold_may_remain(const struct hf_client *c,
                            const struct hfi_hold *hold, hf_loss reason)
{
    if (reason == HF_LOSS_BROKEN && !hfi_link_alone(&hold->handles))
        return false;
    return reason == HF_LOSS_MAX_HOLD || !(c->conn->traits & HF_TRAIT_LEASED) ||
           (reason == HF_LOSS_EXPIRED && hfi_stays(c));
}

/* The hold cannot be proven any longer.  Latched: the first reason stays. */
void hfi_hold_lose(struct hf_client *c, struct hfi_hold *hold, hf_loss reason)
{
    struct hfi_lane *lane = hold->lane;
    bool lingering = hold->state == HFI_LINGERING;

    if (hold->state != HFI_HELD && !lingering)
        return;
    atomic_store(&hold->loss, (unsigned char)reason);
    atomic_store(&hold->deadline, 0);
    hfi_heap_remove(&c->timers, &hold->timer);
    hfi_link_remove(&hold->due);
    hfi_link_remove(&hold->link);
    hfi_link_append(&c->lost, &hold->link);
    hold->state = HFI_LOST;
    if (lane->seat == hold)
        lane->seat = NULL;
    hold_tell(c, hold);
    if (lingering || hold_may_remain(c, hold, reason))
        hfi_hold_reap(c, hold);
    hfi_lane_promote(c, lane);
}

/* Let no renewal of the hold be on the wire, or about to be, and let no other
 * begin meanwhile.  grant.c (4) */
void hfi_hold_quiet(struct hf_client *c, struct hfi_hold *hold)
{
    hold->quiet++;
    hfi_link_remove(&hold->due);
    while (hold->busy && !HFI_MUTANT(renewal_after_release))
        hfi_cond_wait(&c->settle, &c->mu, HFI_NEVER);
    hold->quiet--;
    if (hold->state == HFI_HELD || hold->state == HFI_LINGERING)
        hfi_keeper_hold(c, hold);
}

/* Take it back in the background until there is an answer or, where it ends by
 * itself, the ttl is over.  grant.c (5) */
void hfi_hold_reap(struct hf_client *c, struct hfi_hold *hold)
{
    int64_t now = hfi_now();

    hold->state = HFI_REAPING;
    hfi_link_remove(&hold->due);
    hfi_link_remove(&hold->link);
    hold->next_at = now + hold->claim.ttl_ms;
    hfi_keeper_set(c, &hold->timer, now);
}

/* Tell the service, which may be asked to stop watching too; the mutex is let
 * go meanwhile. */
hf_status hfi_hold_send_release(struct hf_client *c, struct hfi_hold *hold,
                                int64_t deadline, struct hf_error *err)
{
    bool watched = hold->watched;
    hf_status st;

    hold->watched = false;
    pthread_mutex_unlock(&c->mu);
    if (watched)
        c->be->unwatch(c->conn, &hold->claim, &hold->grant);
    st = c->be->release(c->conn, &hold->claim, &hold->grant, deadline, err);
    pthread_mutex_lock(&c->mu);
    return st;
}

/* Send the release of a hold that has no handles, by `deadline`, and be done
 * with it or leave it to the reaper; the mutex is let go meanwhile.  A lane is
 * not passed on before the answer, so that the next one does not find it busy
 * with ourselves. */
hf_status hfi_hold_drop(struct hf_client *c, struct hfi_hold *hold,
                        int64_t deadline, struct hf_error *err)
{
    struct hfi_lane *lane = hold->lane;
    hf_status st;

    hold->state = HFI_RELEASING;
    atomic_store(&hold->deadline, 0);
    hfi_heap_remove(&c->timers, &hold->timer);
    hfi_hold_quiet(c, hold);
    hold->next_at = hfi_now() + hold->claim.ttl_ms;
    st = hfi_hold_send_release(c, hold, deadline, err);
    c->silent = st == HF_UNCERTAIN || st == HF_UNAVAILABLE;
    if (lane->seat == hold)
        lane->seat = NULL;
    lane->users++;
    if (hfi_reap_goes_on(c, hold, st))
        hfi_hold_reap(c, hold);
    else
        hfi_hold_free(c, hold);
    if (st == HF_UNAVAILABLE)
        st = HF_UNCERTAIN;
    hfi_lane_promote(c, lane);
    hfi_lane_put(c, lane);
    return st;
}

/* Nobody took it up in time, or somebody wants it otherwise.  It keeps its seat
 * until it is released, so that nobody here asks for what we still have. */
void hfi_hold_stop_lingering(struct hf_client *c, struct hfi_hold *hold)
{
    hold->state = HFI_RELEASING;
    hfi_link_remove(&hold->due);
    hfi_keeper_set(c, &hold->timer, hfi_now());
}
