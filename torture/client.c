/* SPDX-License-Identifier: MIT
 *
 * client.c - a process of clients: acquire, work on the register, release.
 *
 * A line is written before a call begins and after it has ended, so what really
 * happened lies between the two; a belief is noted never longer than it was.
 * The process has one client of the library, which its threads share: so local
 * queues and hand-overs are part of the game.
 */
#include "torture.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* After the faults. */
#define LAST_TURNS 4

struct worker {
    struct shared *shared;
    hf_client *client;
    int log;
    struct who who;
    uint64_t chance;
    pthread_t thread;
};

/* One acquisition and what became of it. */
struct work {
    struct worker *w;
    hf_lock *lock;
    int key;
    uint64_t fence;
    int64_t until; /* as told last; -1: for ever */
    bool manual;
};

static uint64_t worker_chance(struct worker *w, uint64_t below)
{
    w->chance ^= w->chance << 13;
    w->chance ^= w->chance >> 7;
    w->chance ^= w->chance << 17;
    return below ? w->chance % below : 0;
}

static void worker_log(struct worker *w, enum what what, int key,
                       uint64_t fence, int64_t number, const char *text)
{
    history_log(w->log, w->who, what, key, fence, number, text);
}

void client_key(const struct plan *plan, int key, char *ret, size_t size)
{
    snprintf(ret, size, "%s%d", plan->prefix, key);
}

/* Until when the lock is believed in, never later than that: the clock is read
 * first, and both are whole milliseconds.  0 once it is lost. */
static int64_t work_until(struct work *job)
{
    int64_t now = history_now(), left = hf_remaining_ms(job->lock);

    if (left == INT64_MAX)
        return -1;
    return left ? (now / 1000 + left) * 1000 : 0;
}

/* Note what has become of the lease; false once it is lost. */
static bool work_look(struct work *job)
{
    int64_t until = work_until(job);

    if (until == 0 || !hf_held(job->lock)) {
        worker_log(job->w, W_lost, job->key, job->fence, 0,
                   hf_loss_name(hf_lost_reason(job->lock)));
        return false;
    }
    if (until > job->until + 1000) {
        worker_log(job->w, W_kept, job->key, job->fence, until, NULL);
        job->until = until;
    }
    return true;
}

static void work_extend(struct work *job)
{
    hf_status st;

    worker_log(job->w, W_extend, job->key, job->fence, 0, NULL);
    st = hf_extend(job->lock, 0, NULL);
    if (st == HF_OK) {
        job->until = work_until(job);
        if (job->until == 0)
            st = HF_LOST;
    }
    worker_log(job->w, W_extended, job->key, job->fence, job->until,
               hf_status_name(st));
}

/* Stay for a while and look at the lease; false once it is lost. */
static bool work_stay(struct work *job, int64_t ms, bool extend)
{
    int64_t end = history_now() + ms * 1000;

    while (work_look(job)) {
        int64_t left = end - history_now();

        if (left <= 0)
            return true;
        if (extend) {
            work_extend(job);
            extend = false;
        }
        usleep((unsigned)(left < 2000 ? left : 2000));
    }
    return false;
}

/* How long to hold it: mostly a moment, at times longer than a lease, also of a
 * lock that nobody renews. */
static int64_t work_length(struct work *job)
{
    struct worker *w = job->w;
    int64_t ttl = w->shared->plan.ttl_ms;

    if (!atomic_load(&w->shared->calm) &&
        worker_chance(w, job->manual ? 20 : 150) == 0)
        return ttl / 4 + (int64_t)worker_chance(w, (uint64_t)ttl);
    return (int64_t)worker_chance(w, 6);
}

/* The step that the lock protects: read, stay, write what was read plus one. */
static void work_step(struct work *job)
{
    struct worker *w = job->w;
    struct cell *cell = &w->shared->cells[job->key];
    int64_t value = 0, plain = atomic_load(&cell->plain);
    bool extend = worker_chance(w, 12) == 0;
    uint64_t seen;

    if (!register_read(cell, job->fence, &value, &seen)) {
        worker_log(w, W_refuse, job->key, job->fence, (int64_t)seen, NULL);
        return;
    }
    worker_log(w, W_read, job->key, job->fence, value, NULL);
    if (!work_stay(job, work_length(job), extend)) {
        usleep((unsigned)worker_chance(w, 60000)); /* clean up, then release */
        return;
    }
    if (register_write(cell, job->fence, value + 1, &seen))
        worker_log(w, W_write, job->key, job->fence, value + 1, NULL);
    else
        worker_log(w, W_refuse, job->key, job->fence, (int64_t)seen, NULL);
    atomic_store(&cell->plain, plain + 1);
    worker_log(w, W_plain, job->key, job->fence, plain + 1, NULL);
}

static void worker_hold(struct worker *w, int key, hf_lock *lock, bool manual)
{
    struct work job = {.w = w,
                       .lock = lock,
                       .key = key,
                       .fence = hf_fence(lock),
                       .manual = manual};
    hf_status st;

    job.until = work_until(&job);
    worker_log(w, W_got, key, job.fence, job.until, NULL);
    atomic_fetch_add(&w->shared->grants[w->who.process][w->who.thread], 1);
    if (job.until)
        work_step(&job);
    worker_log(w, W_free, key, job.fence, 0, NULL);
    st = hf_release(lock, NULL);
    worker_log(w, W_freed, key, job.fence, 0, hf_status_name(st));
}

/* What to ask for, this time. */
static unsigned worker_options(struct worker *w, struct hf_lock_opts *ret)
{
    unsigned asked = 0;

    *ret = (struct hf_lock_opts)HF_LOCK_OPTS_INIT;
    ret->ttl_ms = w->shared->plan.ttl_ms;
    if (w->who.thread % 2 == 1) {
        ret->flags |= HF_FAIR;
        asked |= ASK_FAIR;
    } else if (worker_chance(w, 16) == 0) {
        ret->linger_ms = (int64_t)worker_chance(w, 50);
        asked |= ASK_LINGER;
    }
    if (worker_chance(w, 16) == 0) {
        ret->flags |= HF_MANUAL;
        asked |= ASK_MANUAL;
    }
    return asked;
}

static void worker_turn(struct worker *w)
{
    const struct plan *plan = &w->shared->plan;
    int key = 1 + (int)worker_chance(w, (uint64_t)plan->keys);
    int64_t wait = worker_chance(w, 8) ? 4 * plan->ttl_ms : 0;
    struct hf_lock_opts opts;
    char name[128];
    unsigned asked = worker_options(w, &opts);
    hf_lock *lock = NULL;
    hf_status st;

    if (atomic_load(&w->shared->calm))
        wait = -1;
    client_key(plan, key, name, sizeof(name));
    worker_log(w, W_ask, key, 0, asked, NULL);
    st = hf_acquire(w->client, name, wait, &opts, &lock, NULL);
    if (st) {
        worker_log(w, W_no, key, 0, 0, hf_status_name(st));
        usleep((unsigned)(2000 + worker_chance(w, 10000)));
        return;
    }
    worker_hold(w, key, lock, asked & ASK_MANUAL);
    usleep((unsigned)worker_chance(w, 3000));
}

/* When the faults are over, everybody takes a few turns and then makes room:
 * a service without a queue promises nobody to be before all the others. */
static void *worker_run(void *arg)
{
    struct worker *w = arg;
    _Atomic int64_t *grants = &w->shared->grants[w->who.process][w->who.thread];
    int64_t before = -1;

    while (!atomic_load(&w->shared->stop)) {
        if (before < 0 && atomic_load(&w->shared->calm))
            before = atomic_load(grants);
        if (before >= 0 && atomic_load(grants) >= before + LAST_TURNS)
            usleep(5000);
        else
            worker_turn(w);
    }
    return NULL;
}

/* The service may be down when we are started. */
static hf_client *client_open(struct shared *shared, const char *url)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client;

    /* Short, so that answers come too late at times. */
    opts.timeout_ms = shared->plan.ttl_ms / 4;
    while (hf_open(url, &opts, &client, NULL)) {
        if (atomic_load(&shared->stop))
            return NULL;
        usleep(50000);
    }
    return client;
}

int client_main(const char *dir, const char *name, const char *url)
{
    struct shared *shared = shared_open(dir);
    struct worker workers[MAX_THREADS];
    struct who who = {0, 0, 0};
    hf_client *client;
    int log, i, n;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left of a run */
    if (!shared || sscanf(name, "%d.%d", &who.process, &who.life) != 2)
        return 64;
    log = history_open(dir, who.process, who.life);
    client = log < 0 ? NULL : client_open(shared, url);
    if (!client)
        return 69;
    n = shared->plan.threads;
    for (i = 0; i < n; i++) {
        workers[i] = (struct worker){shared, client, log, who, 0, 0};
        workers[i].who.thread = i;
        workers[i].chance = shared->plan.seed * 2654435761u +
                            (uint64_t)(who.process * 1000 + who.life) * 977 +
                            (uint64_t)i + 1;
        if (pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]))
            abort();
    }
    /* Whoever waits for a lock when it is over need not get it any more. */
    while (!atomic_load(&shared->stop))
        usleep(5000);
    hf_cancel(client);
    for (i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    hf_close(client);
    return 0;
}
