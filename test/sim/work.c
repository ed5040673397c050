/* SPDX-License-Identifier: MIT
 *
 * work.c - what a process does with its locks.
 *
 * An application is a thread that goes round: think, acquire something in some
 * way, use it for a while, give it back.  Which way is drawn from the habits of
 * the family, so that every option of the API meets every other sooner or
 * later.  Each answer is held against what the API says can be answered.
 */
#include "sim.h"

#include <poll.h>
#include <string.h>

static const char *const owners[] = {"ann", "bob"};

bool sim_done(void)
{
    return sim.stop || sim.proc->closing || sim.failed;
}

static bool likes(unsigned habit, int per_mille)
{
    return sim.family->habits & habit && sim_chance(per_mille);
}

/* ---- wishes ------------------------------------------------------------ */

static unsigned draw_flags(void)
{
    unsigned flags = 0;

    if (likes(SIM_MANUAL, 150))
        flags |= HF_MANUAL;
    if (likes(SIM_FAIR, 200))
        flags |= HF_FAIR;
    if (likes(SIM_POLL, 200))
        flags |= HF_POLL;
    if (likes(SIM_SHARED, 500))
        flags |= HF_SHARED;
    return flags;
}

void sim_params_draw(struct sim_params *ret)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    int64_t kind = sim_below(4);

    opts.ttl_ms = sim.ttl_ms;
    if (!sim.family->prompt && sim_chance(100))
        opts.ttl_ms = sim.ttl_ms / 2 + sim_below(sim.ttl_ms);
    opts.flags = draw_flags();
    if (sim.family->habits & SIM_PERMITS) {
        opts.permits = SIM_PERMITS_N;
        opts.flags &= ~(unsigned)HF_SHARED;
    }
    if (likes(SIM_OWNER, 400))
        opts.owner = owners[sim_below(2)];
    if (likes(SIM_LINGER, 400))
        opts.linger_ms = 1 + sim_below(sim.ttl_ms);
    if (likes(SIM_MAX_HOLD, 150))
        opts.max_hold_ms = 1 + sim_below(sim.hold_ms);
    else if (likes(SIM_MIN_HOLD, 500))
        opts.min_hold_ms = 1 + sim_below(sim.ttl_ms);
    if (likes(SIM_TURNS, 300))
        opts.local_turns = sim_chance(500) ? -1 : 1;
    if (sim_chance(50))
        opts.max_tries = 1 + (int32_t)sim_below(5);
    if (sim_chance(100))
        opts.retry_ms = 1 + sim_below(100);
    if (likes(SIM_CANCEL, 300))
        opts.canceler = sim.proc->canceler;
    ret->opts = opts;
    ret->key = (int)sim_below(sim.nkeys);
    ret->wait_ms = kind == 0   ? 0
                   : kind == 1 ? 1 + sim_below(sim.hold_ms * 2)
                               : -1;
}

/* Can that be the answer to this? */
void sim_params_check(const struct sim_params *params, hf_status st)
{
    bool ok = false;

    switch (st) {
    case HF_OK:
        return;
    case HF_BUSY:
        ok = params->wait_ms == 0;
        break;
    case HF_TIMEOUT:
        ok = params->wait_ms > 0 || params->opts.max_tries;
        break;
    case HF_UNCERTAIN:
    case HF_UNAVAILABLE:
        ok = params->wait_ms >= 0 || params->opts.max_tries;
        break;
    case HF_CANCELED:
        ok = sim.family->habits & (SIM_CANCEL | SIM_CLOSE | SIM_EVENTS);
        break;
    case HF_DENIED:
        ok = sim.family->weather.denied > 0;
        break;
    case HF_SYSTEM:
        ok = sim.family->weather.no_thread > 0;
        break;
    case HF_INVALID: /* Its owner holds the key in the other mode. */
        ok = params->opts.owner && sim.family->habits & SIM_SHARED;
        break;
    default:
        break;
    }
    if (!ok)
        sim_fail("S8: a wait of %lld ms ended with %s",
                 (long long)params->wait_ms, hf_status_name(st));
}

/* ---- use --------------------------------------------------------------- */

/* Also one of several attempts that a call made may still be under way.  A
 * service that can move a grant to another token gets rid of it before a handle
 * is given away; this one cannot. */
static bool is_shortened(const hf_lock *lk)
{
    int i;

    if (lk->grant->short_ms)
        return true;
    for (i = 0; i < sim.nshortened; i++)
        if (!strcmp(sim.shortened[i], lk->grant->claim.token))
            return true;
    return sim.nshortened == SIM_SHORT;
}

static void use_extend(hf_lock *lk, const struct sim_params *params)
{
    bool spoilt = is_shortened(lk);
    int64_t ttl_ms = 0;
    struct sim_attempt attempt;
    hf_status st;

    if (!params->opts.owner && !spoilt && sim_chance(600))
        ttl_ms = sim.ttl_ms / 6 + sim_below(sim.ttl_ms);
    sim_attempt_begin(&attempt, 0, "extend");
    st = hf_extend(lk, ttl_ms, NULL);
    sim_attempt_end(&attempt);
    sim_trace("extend %s %.6s by %lld: %s", hf_key(lk), lk->grant->claim.token,
              (long long)ttl_ms, hf_status_name(st));
    if (st == HF_LOST && hf_held(lk))
        sim_fail("S4: extend says lost, held says held");
    if (st == HF_UNCERTAIN && ttl_ms && !spoilt)
        memcpy(sim.shortened[sim.nshortened++], lk->grant->claim.token,
               HFI_TOKEN_LEN + 1);
}

/* The descriptor says the same as hf_lost_reason() once the keeper has come. */
static void use_look(hf_lock *lk)
{
    bool lost = atomic_load(&lk->grant->loss);
    struct pollfd poller = {.fd = hf_lost_fd(lk), .events = POLLIN};

    if (poller.fd < 0 || poll(&poller, 1, 0) < 0)
        return;
    if (lost != (poller.revents != 0))
        sim_fail("S5: the descriptor of a lock is wrong: lost %d", lost);
    if (hf_held(lk) && hf_lost_reason(lk))
        sim_fail("S4: held, but with a reason for its loss");
}

/* End the handle by releasing it. */
hf_status sim_let_go(hf_lock *lk, struct sim_belief *belief)
{
    bool held = hf_held(lk);
    hf_status st;

    if (lk->lost_fd >= 0 || sim_chance(50))
        use_look(lk);
    sim_trace("lets go of %s %.6s%s", hf_key(lk), lk->grant->claim.token,
              held ? "" : ", lost");
    sim_disbelieve(belief);
    if (sim_chance(250)) {
        hf_release_start(lk, NULL, NULL);
        return held ? HF_OK : HF_LOST;
    }
    st = hf_release(lk, NULL);
    if (st == HF_OK && !held)
        sim_fail("S4: released what was not held any more");
    if (st != HF_OK && st != HF_LOST && st != HF_UNCERTAIN &&
        !(st == HF_DENIED && sim.family->weather.denied))
        sim_fail("S8: release says %s", hf_status_name(st));
    if (st == HF_OK && held)
        sim_check_kept(belief);
    return st;
}

/* Share it from now on.  Others may as soon as the request is sent. */
static void use_downgrade(hf_lock *lk, struct sim_belief *belief)
{
    struct sim_attempt attempt;
    hf_status st;

    if (belief->shared || belief->slot >= 0 || belief->owner)
        return;
    belief->shared = true;
    sim_attempt_begin(&attempt, 0, "downgrade");
    st = hf_downgrade(lk, NULL);
    sim_attempt_end(&attempt);
    sim_trace("downgrade %s %.6s: %s", hf_key(lk), lk->grant->claim.token,
              hf_status_name(st));
    if (st == HF_LOST && hf_held(lk))
        sim_fail("S4: downgrade says lost, held says held");
}

/* Leave the lock in the service for another process. */
static void use_detach(hf_lock *lk, struct sim_belief *belief, int key)
{
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_status st;

    sim_disbelieve(belief);
    st = hf_detach(lk, &handle, NULL);
    sim_trace("detach %s: %s", sim_key_name(key), hf_status_name(st));
    if (st == HF_OK && !sim.parcel.full)
        sim.parcel = (struct sim_parcel){true, key, handle};
}

static void use_nested(const struct sim_params *params);

/* Hold it for a while, and end it somehow. */
static void use(hf_lock *lk, const struct sim_params *params, bool nested)
{
    struct sim_belief belief;
    int64_t i, n = sim_below(4);

    sim_believe(&belief, lk, params);
    if (sim_chance(100) && hf_lost_fd(lk) < 0)
        sim_fail("S5: no descriptor is left");
    for (i = 0; i < n && !sim.failed; i++) {
        sim_sleep(sim_below(sim.hold_ms * 1000 / n));
        if (likes(SIM_EXTEND, 400))
            use_extend(lk, params);
        if (likes(SIM_DOWNGRADE, 200))
            use_downgrade(lk, &belief);
        if (params->opts.owner && !nested && sim_chance(300))
            use_nested(params);
        if (sim_chance(300) && !hf_held(lk))
            break;
    }
    if (!params->opts.owner && !belief.shared && !is_shortened(lk) &&
        likes(SIM_DETACH, 300))
        use_detach(lk, &belief, params->key);
    else
        sim_let_go(lk, &belief);
}

/* The same owner once more. */
static void use_nested(const struct sim_params *params)
{
    struct sim_params again = *params;
    hf_lock *lk;
    hf_status st;

    if (sim.proc->closing)
        return;
    again.wait_ms = sim_below(20);
    st = hf_acquire(sim.proc->client, sim_key_name(params->key), again.wait_ms,
                    &again.opts, &lk, NULL);
    sim_params_check(&again, st);
    if (!st)
        use(lk, &again, true);
}

/* Renew what another process left, and leave it again, or not.  What is
 * promised is checked while we sleep.  A process that crashes meanwhile leaves
 * the promise behind: the service keeps it all the same. */
static void use_bearer(struct sim_parcel *parcel)
{
    struct sim_bearer *b = sim_alloc(sizeof(*b));
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    int64_t sent, least;
    hf_status st;

    opts.ttl_ms = sim.ttl_ms;
    sent = sim.now;
    st = hf_handle_extend(sim.proc->client, sim_key_name(parcel->key),
                          &parcel->handle, &opts, NULL);
    sim_trace("handle extend %s: %s", sim_key_name(parcel->key),
              hf_status_name(st));
    if (st != HF_OK)
        return;
    least = (sim.ttl_ms - hfi_lease_margin(sim.ttl_ms)) * 1000;
    sim_bearer_begin(b, parcel->key, &parcel->handle, sent + least);
    sim_sleep(sim_below(sim.ttl_ms * 1000));
    sim_bearer_end(b);
}

/* Take up what another process left. */
static void use_parcel(void)
{
    struct sim_parcel parcel = sim.parcel;
    struct sim_params params;
    hf_lock *lk;
    hf_status st;

    sim.parcel.full = false;
    while (likes(SIM_BEARER, 400) && !sim_done())
        use_bearer(&parcel);
    if (likes(SIM_BEARER, 200) || sim.proc->closing)
        return; /* Nobody takes it up. */
    sim_params_draw(&params);
    params.key = parcel.key;
    params.opts.flags &= HF_MANUAL;
    params.opts.owner = NULL;
    params.opts.ttl_ms = sim.ttl_ms;
    st = hf_attach(sim.proc->client, sim_key_name(parcel.key), &parcel.handle,
                   &params.opts, &lk, NULL);
    sim_trace("attach %s: %s", sim_key_name(parcel.key), hf_status_name(st));
    if (!st)
        use(lk, &params, true);
}

/* Two keys at once: both are held at the same moment, or none. */
static void work_several(struct sim_params *params)
{
    int other = (params->key + 1) % sim.nkeys;
    const char *keys[] = {sim_key_name(params->key), sim_key_name(other)};
    struct sim_params second = *params;
    struct sim_belief beliefs[2];
    struct sim_attempt attempt;
    hf_lock *locks[2];
    hf_status st;

    second.key = other;
    /* Each key may have a lingering lock to give back, a try and a release. */
    sim_attempt_begin(
        &attempt,
        params->wait_ms < 0 ? -1 : params->wait_ms + 6 * sim.timeout_ms,
        "acquire_all");
    st = hf_acquire_all(sim.proc->client, keys, 2, params->wait_ms,
                        &params->opts, locks, NULL);
    sim_attempt_end(&attempt);
    sim_trace("%s and %s: %s", keys[0], keys[1], hf_status_name(st));
    sim_params_check(params, st);
    if (st)
        return;
    sim_believe(&beliefs[0], locks[0], params);
    sim_believe(&beliefs[1], locks[1], &second);
    sim_sleep(sim_below(sim.hold_ms * 1000));
    sim_let_go(locks[0], &beliefs[0]);
    if (!sim.failed)
        sim_let_go(locks[1], &beliefs[1]);
}

static void work_round(void)
{
    struct sim_attempt attempt;
    struct sim_params params;
    hf_lock *lk;
    hf_status st;

    if (sim.parcel.full && sim_chance(500)) {
        use_parcel();
        return;
    }
    sim_params_draw(&params);
    sim_trace("wants %s, waits %lld, flags %x, owner %s",
              sim_key_name(params.key), (long long)params.wait_ms,
              params.opts.flags, params.opts.owner ? params.opts.owner : "-");
    if (sim.nkeys > 1 && likes(SIM_SEVERAL, 500)) {
        work_several(&params);
        return;
    }
    sim_attempt_begin(&attempt, params.wait_ms, "acquire");
    attempt.cancelable = params.opts.canceler;
    st = hf_acquire(sim.proc->client, sim_key_name(params.key), params.wait_ms,
                    &params.opts, &lk, NULL);
    sim_attempt_end(&attempt);
    sim_params_check(&params, st);
    if (st)
        sim_trace("has not got %s: %s", sim_key_name(params.key),
                  hf_status_name(st));
    else
        use(lk, &params, false);
}

/* An application: an argument is not needed, it knows its process. */
void *sim_work_run(void *arg)
{
    (void)arg;
    while (!sim_done()) {
        sim_sleep(sim_below(sim_chance(500) ? 1000 : sim.hold_ms * 1000));
        if (!sim_done())
            work_round();
    }
    return NULL;
}
