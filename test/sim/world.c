/* SPDX-License-Identifier: MIT
 *
 * world.c - one life: the processes, their mishaps, and their end.
 *
 *   storm    applications work; messages are lost, processes stand still, crash
 *            and are replaced, are cut off, close; locks are broken
 *   calm     the weather is fine, and they still work
 *   evening  nobody begins anything new: all who wait must get what they wait
 *            for and come home within a bound (S7)
 *   night    leases lapse, clients and service must be found empty (S6)
 */
#include "sim.h"

#include <string.h>

/* What an observer may take to notice the last change by itself. */
#define OBSERVE_US 25000000

/* ---- processes --------------------------------------------------------- */

struct job {
    struct sim_proc *proc;
    void *(*run)(void *);
};

static void *job_run(void *arg)
{
    struct job *job = arg;

    job->run(NULL);
    job->proc->busy--;
    sim.busy--;
    return NULL;
}

void sim_employ(struct sim_proc *proc, void *(*run)(void *))
{
    struct job *job = sim_alloc(sizeof(*job));

    *job = (struct job){proc, run};
    proc->busy++;
    sim.busy++;
    sim_spawn(proc, job_run, job);
}

static void *proc_begin(void *arg)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct hfi_url url = {.scheme = "sim", .path = ""};
    struct sim_proc *proc = sim.proc;
    hf_client *client;
    int64_t i, threads = 1 + sim_below(3);
    hf_status st;

    (void)arg;
    opts.timeout_ms = sim.timeout_ms;
    if (sim_chance(300))
        opts.connect_ms = -1;
    st = hfi_open_with(sim.family->traits & HFI_TRAIT_BOUND
                           ? &sim_session_backend
                           : &sim_backend,
                       &url, &opts, &client, NULL);
    if (st) {
        sim_fail("S8: cannot open: %s", hf_status_name(st));
        return NULL;
    }
    if (hf_canceler_new(client, &proc->canceler, NULL))
        sim_fail("S8: no canceler");
    proc->client = client;
    for (i = 0; i < threads; i++)
        sim_employ(proc, sim_work_run);
    if (sim.family->habits & SIM_EVENTS && sim_chance(600))
        sim_employ(proc, sim_events_run);
    for (i = 0; sim.family->habits & SIM_OBSERVES && i < threads; i++)
        sim_spawn(proc, sim_observe_run, NULL); /* It stays until the night. */
    return NULL;
}

static void proc_new(void)
{
    struct sim_proc *proc = &sim.procs[sim.nprocs];

    if (sim.nprocs == SIM_PROCS)
        return;
    proc->id = sim.nprocs++;
    proc->offset = 1 + sim_below(1000000);
    sim_employ(proc, proc_begin);
}

static void *proc_close(void *arg)
{
    struct sim_proc *proc = sim.proc;
    hf_client *client = proc->client;

    (void)arg;
    sim_trace("closes");
    hf_close(client);
    hf_canceler_free(proc->canceler);
    proc->client = NULL;
    sim_trace("is closed");
    return NULL;
}

static void proc_end(struct sim_proc *proc)
{
    proc->closing = true;
    sim_employ(proc, proc_close);
}

static bool proc_is_up(const struct sim_proc *proc)
{
    return proc->client && !proc->crashed && !proc->closing;
}

/* ---- mishaps ----------------------------------------------------------- */

static void proc_resume(void *arg)
{
    struct sim_proc *proc = arg;

    if (!proc->paused)
        return;
    proc->paused = false;
    proc->paused_sum += sim.now - proc->paused_at;
    sim_trace("p%d goes on", proc->id);
}

static void proc_pause(struct sim_proc *proc)
{
    int64_t us = sim_chance(500) ? 20000 : 3 * sim.ttl_ms * 1000;

    if (proc->paused)
        return;
    us = 1 + sim_below(us);
    proc->paused = true;
    proc->paused_at = sim.now;
    sim_trace("p%d stands still for %lld ms", proc->id, (long long)us / 1000);
    sim_at(sim.now + us, proc_resume, proc);
}

static void proc_crash(struct sim_proc *proc)
{
    sim_trace("p%d crashes", proc->id);
    proc->crashed = true;
    sim.busy -= proc->busy;
    proc->busy = 0;
    sim_forget_tasks(proc);
    sim_check_forget(proc);
    sim_service_death(proc->id);
    if (sim_chance(700))
        proc_new();
}

/* It stays cancelled for a while: calls that begin meanwhile are cancelled,
 * too. */
static void proc_uncancel(void *arg)
{
    struct sim_proc *proc = arg;

    if (proc_is_up(proc))
        hf_canceler_reset(proc->canceler);
}

static void proc_cancel(struct sim_proc *proc)
{
    if (proc->paused)
        return;
    if (sim_chance(500)) {
        sim_trace("p%d uses its canceler", proc->id);
        sim.proc = proc;
        hf_canceler_cancel(proc->canceler);
        sim.proc = NULL;
        sim_check_cancel(proc, false);
        sim_at(sim.now + sim_below(20000), proc_uncancel, proc);
        return;
    }
    sim_trace("p%d cancels", proc->id);
    sim.proc = proc;
    hf_cancel(proc->client);
    sim.proc = NULL;
    sim_check_cancel(proc, true);
}

static void mishap_of(struct sim_proc *proc)
{
    const struct sim_weather *weather = &sim.weather;

    if (sim_chance(weather->pause))
        proc_pause(proc);
    if (sim_chance(weather->cut)) {
        proc->cut_until = sim.now + sim_below(2 * sim.ttl_ms * 1000);
        sim_trace("p%d is cut off", proc->id);
    }
    if (sim.family->habits & SIM_CANCEL && sim_chance(50))
        proc_cancel(proc);
    if (sim.family->habits & SIM_CLOSE && sim_chance(20)) {
        proc_end(proc);
        proc_new();
    } else if (sim_chance(weather->crash)) {
        proc_crash(proc);
    }
}

static void mishap(void *arg)
{
    struct sim_proc *proc = &sim.procs[sim_below(sim.nprocs)];

    (void)arg;
    if (sim.fine)
        return;
    if (proc_is_up(proc))
        mishap_of(proc);
    if (sim_chance(sim.weather.broken))
        sim_service_break((int)sim_below(sim.nkeys));
    if (sim_chance(sim.weather.restart))
        sim_service_restart();
    sim_at(sim.now + sim_below(sim.hold_ms * 1000), mishap, NULL);
}

/* ---- a day ------------------------------------------------------------- */

static void world_begin(uint64_t seed, const struct sim_family *family)
{
    bool tracing = sim.tracing;

    memset(&sim, 0, sizeof(sim));
    sim.seed = seed;
    sim.rng = seed * 1000003u + (uint64_t)(family - sim_families);
    sim.tracing = tracing;
    sim.family = family;
    sim.weather = family->weather;
    sim.now = 1000000;
    sim.nkeys = 1 + (int)sim_below(2);
    sim.ttl_ms = family->prompt ? 30000 : 60 + sim_below(600);
    sim.timeout_ms = family->prompt ? 5000 : 10 + sim_below(sim.ttl_ms);
    sim.hold_ms = family->prompt ? 20 : 5 + sim_below(2 * sim.ttl_ms);
    sim.life_us = 2 * sim.ttl_ms * 1000;
    sim_trace_begin();
    sim_sched_begin();
    sim_check_begin();
    sim_service_begin();
    sim_net_begin();
}

static void weather_fine(void)
{
    int i;

    sim.fine = true;
    sim.weather = (struct sim_weather){.delay_us = 1000};
    sim_trace("the weather is fine");
    for (i = 0; i < sim.nprocs; i++) {
        sim.procs[i].cut_until = 0;
        proc_resume(&sim.procs[i]);
    }
}

/* S7: how long the evening may last. */
static int64_t evening_us(void)
{
    int64_t each = sim.hold_ms + (sim.family->prompt ? 40 : 2 * sim.ttl_ms);
    int64_t once = sim.family->prompt ? 400 : 12 * sim.ttl_ms;

    return ((sim.busy + 8) * each + once +
            4 * sim.timeout_ms * !sim.family->prompt) *
               1000 +
           sim.life_us * !sim.family->prompt;
}

static void world_day(void)
{
    int64_t i, n = 2 + sim_below(3), day = sim.hold_ms * 1000 * 20;

    for (i = 0; i < n; i++)
        proc_new();
    sim_at(sim.now, mishap, NULL);
    if (!sim_run(sim.now + day))
        return;
    weather_fine();
    if (!sim_run(sim.now + day / 4))
        return;
    sim.stop = true;
    sim_trace("evening: %d have not come home", sim.busy);
    if (!sim_run_while_busy(sim.now + evening_us()) || !sim.busy)
        return;
    sim_service_show();
    sim_fail("S7: %d of those who wait do not get the lock", sim.busy);
}

/* S9: nothing changes any more.  Give observers the time of the slowest poll,
 * and a second to be gone. */
static bool observers_end(void)
{
    if (!(sim.family->habits & SIM_OBSERVES))
        return true;
    if (!sim_run(sim.now + OBSERVE_US))
        return false;
    sim.night = true;
    return sim_run(sim.now + 1000000);
}

static void world_night(void)
{
    int64_t lapse = sim.life_us + 4 * sim.ttl_ms * 1000;
    char why[100];
    int i;

    if (!sim_run(sim.now + lapse) || !observers_end())
        return;
    for (i = 0; i < sim.nprocs; i++)
        if (proc_is_up(&sim.procs[i])) {
            sim_check_idle(&sim.procs[i]);
            proc_end(&sim.procs[i]);
        }
    if (!sim_run_while_busy(sim.now + lapse))
        return;
    if (sim.busy)
        sim_fail("S8: close does not come back");
    sim_run(sim.now + lapse);
    if (!sim_service_idle(why, sizeof(why)))
        sim_fail("S6: in the service, %s", why);
}

void sim_world(uint64_t seed, const struct sim_family *family)
{
    world_begin(seed, family);
    world_day();
    if (!sim.failed)
        world_night();
    sim_sched_end();
}
