/* SPDX-License-Identifier: MIT
 *
 * check.c - what must be true after every step.
 *
 *   S0  No mutex is held across a switch or a request, no claim is in two
 *       requests at once, and time goes on.             (sched.c, net.c)
 *   S1  At most one application holds a key exclusively; others only beside it
 *       as shared holders, with its owner id, or in other slots.  Who holds is what hf_held()
 *       would say: local arithmetic, also in a process that stands still.
 *   S2  Fences rise with every grant (service.c), and what a holder has for a
 *       fence is the fence of the grant that stands.
 *   S3  As long as an application holds, its grant stands in the service:
 *       nobody's release, renewal or lapse has touched it.  Excused are grants
 *       that an operator broke or a restart forgot.
 *   S4  hf_held() once false stays false.
 *   S5  A loss is told when the deadline comes, not later.
 *   S6  In the end nothing is left: not in the service, not in a client.
 *   S7  When the weather is fine, everyone who waits gets the lock. (world.c)
 *   S8  A call comes back by its limit, and one that is cancelled at once.
 *   S9  Observers are told no older fence after a newer one, nothing that never
 *       was, and in the end that nobody holds.          (observe.c)
 *
 *   S10 After a release that said OK nobody gets the key before min_hold_ms are
 *       over, counted from the grant.
 *
 * Between steps nothing changes but the time, which only ends beliefs; so to
 * look after each step is to look always.
 */
#include "sim.h"

#include <string.h>

#define TOLD_US 3000 /* deadlines are whole milliseconds */

static struct hfi_link beliefs, attempts, bearers;
static int64_t kept_until[SIM_KEYS]; /* us */

int64_t sim_ran(const struct sim_proc *proc)
{
    int64_t paused = proc->paused_sum;

    if (proc->paused)
        paused += sim.now - proc->paused_at;
    return sim.now - paused;
}

static int64_t local_ms(const struct sim_proc *proc)
{
    return sim.now / 1000 + proc->offset;
}

/* What hf_held() would say, without its latching. */
static bool is_held(const struct sim_belief *b)
{
    return atomic_load(&b->lk->grant->deadline) > local_ms(b->proc);
}

static enum sim_standing standing(const struct sim_belief *b)
{
    return sim_service_stands(b->key, b->lk->grant->claim.token,
                              b->lk->grant->receipt.fence);
}

/* S2: who holds alone has the newest grant, and with HF_FAIR one of its own. */
static void check_fence(const struct sim_belief *b,
                        const struct sim_params *params)
{
    uint64_t fence = hf_fence(b->lk), *newest = &sim.fences[b->key];

    if (b->shared || b->slot >= 0 || b->owner || !is_held(b) ||
        standing(b) == SIM_EXCUSED)
        return;
    if (fence < *newest || (fence == *newest && params->opts.flags & HF_FAIR))
        sim_fail("S2: p%d got %s with fence %llu after %llu", b->proc->id,
                 sim_key_name(b->key), (unsigned long long)fence,
                 (unsigned long long)*newest);
    *newest = fence;
}

/* S10.  The service may count a little faster than the world.  Of handles of one
 * owner id only the last one's release is more than a word. */
static void check_min_hold(struct sim_belief *b,
                           const struct sim_params *params)
{
    int64_t granted, us = params->opts.min_hold_ms * 1000;

    if (is_held(b) && sim.now < kept_until[b->key])
        sim_fail("S10: p%d got %s %lld us before min_hold_ms were over",
                 b->proc->id, sim_key_name(b->key),
                 (long long)(kept_until[b->key] - sim.now));
    granted = sim_service_granted(b->key, b->lk->grant->claim.token);
    if (us && granted >= 0 && !b->owner)
        b->min_end = granted + us - us / 90 - 2000;
}

void sim_check_kept(const struct sim_belief *b)
{
    if (b->min_end > kept_until[b->key])
        kept_until[b->key] = b->min_end;
}

void sim_believe(struct sim_belief *b, hf_lock *lk,
                 const struct sim_params *params)
{
    int key = params->key;
    bool shared = params->opts.flags & HF_SHARED;

    *b = (struct sim_belief){.lk = lk, .proc = sim.proc, .key = key};
    b->shared = shared;
    b->slot = hf_slot(lk);
    if (params->opts.permits &&
        (b->slot < 0 || b->slot >= params->opts.permits))
        sim_fail("S1: p%d got slot %d of %d", sim.proc->id, b->slot,
                 (int)params->opts.permits);
    b->owner = params->opts.owner;
    b->max_end = SIM_NEVER;
    if (params->opts.max_hold_ms && !b->owner)
        b->max_end = local_ms(sim.proc) + params->opts.max_hold_ms;
    sim_trace("has %s %.6s fence %llu%s until %+lld ms", sim_key_name(key),
              lk->grant->claim.token,
              (unsigned long long)(hf_fence(lk) % 10000000000),
              shared ? " shared" : "", (long long)hf_remaining_ms(lk));
    if (strcmp(hf_key(lk), sim_key_name(key)) != 0)
        sim_fail("S1: asked for %s, got %s", sim_key_name(key), hf_key(lk));
    check_fence(b, params);
    check_min_hold(b, params);
    hfi_link_append(&beliefs, &b->link);
}

void sim_disbelieve(struct sim_belief *b)
{
    hfi_link_remove(&b->link);
}

/* S1 */
static bool may_both_hold(const struct sim_belief *a,
                          const struct sim_belief *b)
{
    if (a->shared && b->shared)
        return true;
    if (a->slot >= 0 && b->slot >= 0 && a->slot != b->slot)
        return true;
    if (!a->owner || !b->owner || strcmp(a->owner, b->owner) != 0 ||
        a->shared != b->shared)
        return false;
    return a->proc == b->proc || sim.family->traits & HF_TRAIT_REENTRANT;
}

static void check_pair(const struct sim_belief *a, const struct sim_belief *b)
{
    if (a->key != b->key || !is_held(b) || may_both_hold(a, b) ||
        standing(a) == SIM_EXCUSED || standing(b) == SIM_EXCUSED)
        return;
    sim_fail("S1: p%d (%.6s) and p%d (%.6s) both hold %s", a->proc->id,
             a->lk->grant->claim.token, b->proc->id, b->lk->grant->claim.token,
             sim_key_name(a->key));
}

/* S4, S5 */
static void check_end(struct sim_belief *b)
{
    if (!b->ended) {
        b->ended = true;
        b->ended_at = sim_ran(b->proc);
        sim.lost++;
    }
    if (b->proc->closing || sim_ran(b->proc) - b->ended_at < TOLD_US)
        return;
    if (!atomic_load(&b->lk->grant->loss))
        sim_fail("S5: p%d lost %s %lld ms ago and was not told", b->proc->id,
                 sim_key_name(b->key),
                 (long long)(sim_ran(b->proc) - b->ended_at) / 1000);
}

static void check_belief(struct sim_belief *b)
{
    struct hfi_link *at;

    if (!is_held(b)) {
        check_end(b);
        return;
    }
    if (b->ended)
        sim_fail("S4: p%d holds %s again", b->proc->id, sim_key_name(b->key));
    if (atomic_load(&b->lk->grant->loss))
        sim_fail("S4: p%d holds %s, but was told of its loss", b->proc->id,
                 sim_key_name(b->key));
    if (local_ms(b->proc) >= b->max_end)
        sim_fail("S5: p%d holds %s beyond max_hold_ms", b->proc->id,
                 sim_key_name(b->key));
    if (standing(b) == SIM_GONE)
        sim_fail("S3: p%d holds %s (%.6s), but the service has no such grant",
                 b->proc->id, sim_key_name(b->key), b->lk->grant->claim.token);
    for (at = b->link.next; at != &beliefs; at = at->next)
        check_pair(b, hfi_container(at, struct sim_belief, link));
}

/* ---- handles ----------------------------------------------------------- */

void sim_bearer_begin(struct sim_bearer *b, int key,
                      const struct hf_handle *handle, int64_t until)
{
    *b =
        (struct sim_bearer){.key = key, .fence = handle->fence, .until = until};
    memcpy(b->token, handle->token, sizeof(b->token));
    hfi_link_append(&bearers, &b->link);
}

void sim_bearer_end(struct sim_bearer *b)
{
    hfi_link_remove(&b->link);
}

/* S3 */
static void check_bearer(const struct sim_bearer *b)
{
    if (sim.now < b->until &&
        sim_service_stands(b->key, b->token, b->fence) == SIM_GONE)
        sim_fail("S3: %s (%.6s) was renewed for its bearer, but the service "
                 "has no such grant",
                 sim_key_name(b->key), b->token);
}

/* ---- calls ------------------------------------------------------------- */

/* Besides its own waiting time a call may need to give back a lingering lock
 * first, to try, and to withdraw; each is one request. */
void sim_attempt_begin(struct sim_attempt *attempt, int64_t wait_ms,
                       const char *what)
{
    *attempt = (struct sim_attempt){.proc = sim.proc, .what = what};
    attempt->limit = SIM_NEVER;
    if (wait_ms >= 0)
        attempt->limit =
            sim_ran(sim.proc) + (wait_ms + 3 * sim.timeout_ms + 20) * 1000;
    hfi_link_append(&attempts, &attempt->link);
}

void sim_attempt_end(struct sim_attempt *attempt)
{
    hfi_link_remove(&attempt->link);
}

/* S8: hf_cancel() was called in this process just now, or, unless it is for all
 * calls, hf_canceler_cancel(). */
void sim_check_cancel(struct sim_proc *proc, bool all)
{
    int64_t limit = sim_ran(proc) + (3 * sim.timeout_ms + 20) * 1000;
    struct sim_attempt *attempt;
    struct hfi_link *at;

    for (at = attempts.next; at != &attempts; at = at->next) {
        attempt = hfi_container(at, struct sim_attempt, link);
        if (attempt->proc == proc && (all || attempt->cancelable) &&
            attempt->limit > limit)
            attempt->limit = limit;
    }
}

/* A call that meets hf_close() waits until that is over: it lets calls return,
 * gives locks back and ends its sessions, each within a timeout. */
static void check_attempt(const struct sim_attempt *attempt)
{
    int64_t more = attempt->proc->closing ? 3 * sim.timeout_ms * 1000 : 0;

    if (attempt->limit != SIM_NEVER &&
        sim_ran(attempt->proc) > attempt->limit + more)
        sim_fail("S8: %s of p%d is overdue", attempt->what, attempt->proc->id);
}

void sim_check_step(void)
{
    struct hfi_link *at;

    for (at = beliefs.next; at != &beliefs; at = at->next)
        check_belief(hfi_container(at, struct sim_belief, link));
    for (at = attempts.next; at != &attempts; at = at->next)
        check_attempt(hfi_container(at, struct sim_attempt, link));
    for (at = bearers.next; at != &bearers; at = at->next)
        check_bearer(hfi_container(at, struct sim_bearer, link));
}

/* S6 */
void sim_check_idle(struct sim_proc *proc)
{
    const struct hf_client *c = proc->client;
    int i;

    if (c->queues.len || c->timers.len || c->timers.reserved || c->calls)
        sim_fail("S6: p%d has %zu key queues, %u of %u timers, %u calls left",
                 proc->id, c->queues.len, c->timers.len, c->timers.reserved,
                 c->calls);
    if (!hfi_link_alone(&c->lost))
        sim_fail("S6: p%d has lost locks left", proc->id);
    for (i = 0; i < HFI_RENEWERS; i++)
        if (!hfi_link_alone(&c->renewers[i].due))
            sim_fail("S6: p%d has renewals left", proc->id);
    if (c->observed.len || !hfi_link_alone(&c->observing))
        sim_fail("S6: p%d has %zu observations left", proc->id,
                 c->observed.len);
    if (!hfi_link_alone(&c->ready) || !hfi_link_alone(&c->reap) ||
        !hfi_link_alone(&c->releases))
        sim_fail("S6: p%d has work left", proc->id);
    if (!hfi_link_alone(&c->notices))
        sim_fail("S6: p%d has notices left", proc->id);
    if (atomic_load(&c->refs) != 2) /* ours, and that of the canceler */
        sim_fail("S6: p%d has %u references to its client", proc->id,
                 atomic_load(&c->refs));
}

static void forget(struct hfi_link *list, const struct sim_proc *proc)
{
    struct hfi_link *at, *next;

    for (at = list->next; at != list; at = next) {
        next = at->next;
        if (list == &beliefs
                ? hfi_container(at, struct sim_belief, link)->proc == proc
                : hfi_container(at, struct sim_attempt, link)->proc == proc)
            hfi_link_remove(at);
    }
}

/* It crashed: it believes nothing and waits for nothing any more. */
void sim_check_forget(struct sim_proc *proc)
{
    forget(&beliefs, proc);
    forget(&attempts, proc);
}

void sim_check_begin(void)
{
    hfi_link_init(&beliefs);
    hfi_link_init(&attempts);
    hfi_link_init(&bearers);
    memset(kept_until, 0, sizeof(kept_until));
}
