/* SPDX-License-Identifier: MIT
 *
 * work.c - a lock is held: look at it, renew it, work on the register, give it
 * back or on.
 *
 * What is noted about the end of a belief is what the library says, and it may
 * fall: after a renewal for a shorter time the checker counts with the shorter
 * one from the moment at which the call began.
 */
#include "client.h"

#include <stdio.h>
#include <unistd.h>

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
    if (until > job->until + 1000 || until < job->until - 2000) {
        worker_log(job->w, W_kept, job->key, job->fence, until, NULL);
        job->until = until;
        atomic_fetch_add(&job->w->shared->cells[job->key].renewed, 1);
    }
    return true;
}

int64_t work_lease(struct worker *w)
{
    int64_t ttl = w->shared->plan.ttl_ms;

    return ttl / 3 + (int64_t)worker_chance(w, (uint64_t)ttl * 2 / 3 + 1);
}

/* Renew by hand, at times for another length. */
static void work_extend(struct work *job)
{
    int64_t ttl = job->asked & ASK_LENGTHS ? work_lease(job->w) : 0;
    hf_status st;

    worker_log(job->w, W_extend, job->key, job->fence, ttl, NULL);
    st = hf_extend(job->lock, ttl, NULL);
    if (st == HF_OK) {
        job->until = work_until(job);
        if (job->until == 0)
            st = HF_LOST;
    }
    worker_log(job->w, W_extended, job->key, job->fence, job->until,
               hf_status_name(st));
}

/* Stay for a while and look at the lease; false once it is lost. */
static bool work_stay(struct work *job, int64_t us, int extends)
{
    int64_t end = history_now() + us, gap = us / (extends + 1);
    int64_t next = history_now() + gap;
    struct worker *w = job->w;
    _Atomic int *staying = &w->shared->cells[job->key].staying;
    bool kept, stays = us > w->shared->plan.ttl_ms * 500;

    if (stays)
        atomic_store(staying, w->who.process);
    while ((kept = work_look(job))) {
        int64_t left = end - history_now();

        if (left <= 0 && (!stays || atomic_load(&w->shared->prey) != job->key))
            break;
        if (extends && history_now() >= next) {
            work_extend(job);
            next += gap;
            extends--;
        }
        usleep((unsigned)(left > 0 && left < 2000 ? left : 2000));
    }
    atomic_store(staying, 0);
    return kept;
}

/* How long to hold it, in us: mostly a moment, at times longer than a lease, also
 * of a lock that nobody renews; often longer than one when a fault is near. */
static int64_t work_length(struct work *job)
{
    struct worker *w = job->w;
    int64_t ttl = w->shared->plan.ttl_ms;
    bool manual = job->asked & ASK_MANUAL, passed = job->asked & ASK_ATTACH;

    if (!atomic_load(&w->shared->calm)) {
        if (atomic_load(&w->shared->tense) && worker_chance(w, 3) == 0)
            return 1000 *
                   (ttl / 4 + (int64_t)worker_chance(w, (uint64_t)ttl * 5 / 2));
        if (worker_chance(w, manual || passed ? 800 : 4000) == 0)
            return 1000 *
                   (ttl / 4 + (int64_t)worker_chance(w, (uint64_t)ttl * 5 / 4));
    }
    if (ASK_OWNER_OF(job->asked)) /* until another comes in, too */
        return (int64_t)worker_chance(w, worker_chance(w, 8) ? 2000 : 30000);
    return (int64_t)worker_chance(w, worker_chance(w, 8) ? 200 : 6000);
}

/* How often it is renewed by hand meanwhile: a lock without a keeper often enough,
 * or not at all. */
static int work_extends(struct work *job, int64_t us)
{
    struct worker *w = job->w;

    if (job->asked & ASK_MANUAL && worker_chance(w, 2))
        return 1 + (int)(us / (w->shared->plan.ttl_ms * 300));
    if (job->asked & ASK_LENGTHS && us > 10000)
        return 1 + (int)worker_chance(w, 4);
    return worker_chance(w, 24) == 0;
}

/* The step that the lock protects: read, stay, write what was read plus one.
 * Whoever has the same owner id is in there, too, and would spoil it. */
static bool work_step(struct work *job)
{
    struct worker *w = job->w;
    struct cell *cell = &w->shared->cells[job->key];
    int64_t value = 0, plain = atomic_load(&cell->plain), us = work_length(job);
    bool alone = !ASK_OWNER_OF(job->asked);
    uint64_t seen;

    if ((job->asked & ASK_SHARED) == ASK_SHARED)
        return work_stay(job, us, work_extends(job, us));
    if (!alone) {
        atomic_store(&cell->owner, ASK_OWNER_OF(job->asked));
        alone = work_stay(job, us, work_extends(job, us));
        atomic_store(&cell->owner, 0);
        return alone;
    }
    if (!register_read(cell, job->fence, &value, &seen)) {
        worker_log(w, W_refuse, job->key, job->fence, (int64_t)seen, NULL);
        return false;
    }
    worker_log(w, W_read, job->key, job->fence, value, NULL);
    if (!work_stay(job, us, work_extends(job, us)))
        return false;
    if (register_write(cell, job->fence, value + 1, &seen))
        worker_log(w, W_write, job->key, job->fence, value + 1, NULL);
    else
        worker_log(w, W_refuse, job->key, job->fence, (int64_t)seen, NULL);
    atomic_store(&cell->plain, plain + 1);
    worker_log(w, W_plain, job->key, job->fence, plain + 1, NULL);
    return true;
}

/* Leave it in the service, and the handle for whoever comes. */
static void work_detach(struct work *job)
{
    struct worker *w = job->w;
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_status st;

    worker_log(w, W_detach, job->key, job->fence, 0, NULL);
    st = hf_detach(job->lock, &handle, NULL);
    worker_log(w, W_detached, job->key, job->fence, 0, hf_status_name(st));
    if (st == HF_OK)
        register_box(&w->shared->cells[job->key], &handle);
}

static void work_release(struct work *job)
{
    hf_status st;

    worker_log(job->w, W_free, job->key, job->fence, 0, NULL);
    st = hf_release(job->lock, NULL);
    worker_log(job->w, W_freed, job->key, job->fence, 0, hf_status_name(st));
}

void work_hold(struct worker *w, int key, unsigned asked, hf_lock *lock)
{
    struct work job = {.w = w,
                       .lock = lock,
                       .key = key,
                       .asked = asked,
                       .fence = hf_fence(lock)};
    bool kept = false;

    job.until = work_until(&job);
    worker_log(w, W_got, key, job.fence, job.until, NULL);
    atomic_fetch_add(&w->shared->grants[w->who.process][w->who.thread], 1);
    if (job.until)
        kept = work_step(&job);
    if (!kept) /* clean up, then release */
        usleep((unsigned)worker_chance(w, 60000));
    if (kept && asked & ASK_HANDLE && !atomic_load(&w->shared->calm))
        work_detach(&job);
    else
        work_release(&job);
}
