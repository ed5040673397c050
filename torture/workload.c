/* SPDX-License-Identifier: MIT
 *
 * workload.c - the ways to get a lock, one line each; a turn picks one of those
 * that were asked for.
 *
 *   lock     hf_acquire(), some of it fair, the keeper renews
 *   manual   without a keeper
 *   linger   the lease stays for a while after the release
 *   lengths  leases of any length in one client, and renewals to any other
 *   cancel   a request that is given up, or granted just before that
 *   handle   a lock that one process leaves and another takes up; its copies too
 *   owner    an owner id that several processes use at once
 *   shared   readers among the others, some of them writers before that
 *   permits  a key with PERMITS holders at once
 *   several  two keys at once
 *   run      a command under `holdfast run'
 *   elect    the same under `holdfast elect', some with a child that stays
 */
#include "client.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { OWNERS = 3 };

struct asking {
    struct worker *w;
    int key;
    char name[128];
    char owner[32];
    struct hf_lock_opts opts;
    unsigned asked;
    int64_t wait;
};

static void turn_failed(struct asking *a, hf_status st)
{
    worker_log(a->w, W_no, a->key, 0, 0, hf_status_name(st));
    usleep((unsigned)(1000 + worker_chance(a->w, 5000)));
}

static void turn_lock(struct asking *a)
{
    struct worker *w = a->w;
    hf_lock *lock = NULL;
    hf_status st;

    worker_log(w, W_ask, a->key, 0, a->asked, NULL);
    st = hf_acquire(w->client, a->name, a->wait, &a->opts, &lock, NULL);
    if (st)
        turn_failed(a, st);
    else
        work_hold(w, a->key, a->asked, lock);
}

static void turn_manual(struct asking *a)
{
    a->opts.flags |= HF_MANUAL;
    a->asked |= ASK_MANUAL;
    turn_lock(a);
}

static void turn_linger(struct asking *a)
{
    if (!(a->asked & ASK_FAIR)) {
        a->opts.linger_ms = (int64_t)worker_chance(a->w, 50);
        a->asked |= ASK_LINGER;
    }
    turn_lock(a);
}

static void turn_lengths(struct asking *a)
{
    a->opts.ttl_ms = work_lease(a->w);
    a->asked |= ASK_LENGTHS;
    turn_lock(a);
}

static void turn_owner(struct asking *a)
{
    unsigned owner = atomic_load(&a->w->shared->cells[a->key].owner);

    if (!owner)
        owner = 1 + (unsigned)worker_chance(a->w, OWNERS);
    snprintf(a->owner, sizeof(a->owner), "owner-%u", owner);
    a->opts.owner = a->owner;
    a->asked |= ASK_OWNER(owner);
    turn_lock(a);
}

/* Readers; at times one that was a writer until now. */
static void turn_shared(struct asking *a)
{
    struct worker *w = a->w;
    bool writes = worker_chance(w, 4) == 0;
    hf_lock *lock = NULL;
    hf_status st;

    if (!writes) {
        a->opts.flags |= HF_SHARED;
        a->asked |= ASK_SHARED;
        turn_lock(a);
        return;
    }
    worker_log(w, W_ask, a->key, 0, a->asked | ASK_SHARED, NULL);
    st = hf_acquire(w->client, a->name, a->wait, &a->opts, &lock, NULL);
    if (st) {
        turn_failed(a, st);
        return;
    }
    st = hf_downgrade(lock, NULL);
    if (!st || st == HF_UNCERTAIN || st == HF_UNAVAILABLE) {
        work_hold(w, a->key, a->asked | ASK_SHARED, lock);
        return;
    }
    turn_failed(a, st);
    hf_release(lock, NULL);
}

static void turn_permits(struct asking *a)
{
    struct worker *w = a->w;
    const struct plan *plan = &w->shared->plan;
    hf_lock *lock = NULL;
    hf_status st;

    a->key = plan->keys + 1;
    client_key(plan, a->key, a->name, sizeof(a->name));
    a->opts.permits = PERMITS;
    worker_log(w, W_ask, a->key, 0, a->asked, NULL);
    st = hf_acquire(w->client, a->name, a->wait, &a->opts, &lock, NULL);
    if (st)
        turn_failed(a, st);
    else
        work_hold(w, a->key + hf_slot(lock), a->asked, lock);
}

/* The lock of the second key is noted as that of another thread: it does one
 * thing at a time. */
static void turn_several(struct asking *a)
{
    struct worker *w = a->w, second = *w;
    const struct plan *plan = &w->shared->plan;
    int other = a->key % plan->keys + 1;
    char name[sizeof(a->name)];
    const char *keys[] = {a->name, name};
    hf_lock *locks[2];
    hf_status st;

    if (other == a->key) {
        turn_lock(a);
        return;
    }
    client_key(plan, other, name, sizeof(name));
    second.who.thread += MAX_THREADS;
    worker_log(w, W_ask, a->key, 0, a->asked, NULL);
    worker_log(&second, W_ask, other, 0, a->asked, NULL);
    st = hf_acquire_all(w->client, keys, 2, a->wait, &a->opts, locks, NULL);
    if (st) {
        worker_log(&second, W_no, other, 0, 0, hf_status_name(st));
        turn_failed(a, st);
        return;
    }
    work_hold(&second, other, a->asked, locks[1]);
    work_hold(w, a->key, a->asked, locks[0]);
    w->chance = second.chance;
}

/* ---- a lock that passes from process to process ------------------------ */

/* Somebody who only has the handle: nobody holds the lock meanwhile. */
static void turn_bear(struct asking *a, const struct hf_handle *handle)
{
    struct worker *w = a->w;
    hf_status st =
        worker_chance(w, 2)
            ? hf_handle_extend(w->client, a->name, handle, &a->opts, NULL)
            : hf_handle_release(w->client, a->name, handle, &a->opts, NULL);

    (void)st; /* whatever it says, it must not hurt a holder */
}

static void turn_handle(struct asking *a)
{
    struct worker *w = a->w;
    struct cell *cell = &w->shared->cells[a->key];
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *lock = NULL;
    hf_status st;

    if (!(a->asked & ASK_FAIR) && worker_chance(w, 2))
        a->opts.ttl_ms = work_lease(w); /* may differ from what it was */
    a->asked |= ASK_HANDLE;
    /* Half of them leave the handle to others, who must not get the same. */
    if (!register_unbox(cell, &handle, worker_chance(w, 2))) {
        turn_lock(a);
        return;
    }
    if (worker_chance(w, 6) == 0)
        turn_bear(a, &handle);
    a->asked |= ASK_ATTACH;
    worker_log(w, W_ask, a->key, handle.fence, a->asked, NULL);
    st = hf_attach(w->client, a->name, &handle, &a->opts, &lock, NULL);
    if (st)
        turn_failed(a, st);
    else
        work_hold(w, a->key, a->asked, lock);
}

/* ---- a request that is given up ---------------------------------------- */

/* What became of the request; other events are about locks that were lost. */
static bool turn_outcome(struct worker *w, int64_t limit_ms,
                         struct hf_event *ret)
{
    struct pollfd fd = {.fd = hf_events_fd(w->own), .events = POLLIN};
    int64_t end = history_now() + limit_ms * 1000;

    for (;;) {
        while (hf_next_event(w->own, ret))
            if (ret->type == HF_GRANTED || ret->type == HF_FAILED)
                return true;
        if (history_now() >= end)
            return false;
        poll(&fd, 1, (int)((end - history_now()) / 1000 + 1));
    }
}

static void turn_cancel(struct asking *a)
{
    struct worker *w = a->w;
    struct hf_event event = HF_EVENT_INIT;
    hf_request *request;
    hf_status st;

    if (!w->own)
        w->own = client_open(w->shared, w->url);
    if (!w->own)
        return;
    worker_log(w, W_ask, a->key, 0, a->asked, NULL);
    st = hf_acquire_start(w->own, a->name, a->wait, &a->opts, NULL, &request,
                          NULL);
    if (st) {
        turn_failed(a, st);
        return;
    }
    if (!turn_outcome(w, (int64_t)worker_chance(w, 20), &event)) {
        hf_request_cancel(request);
        while (!turn_outcome(w, 1000, &event))
            continue;
    }
    if (event.type == HF_GRANTED)
        work_hold(w, a->key, a->asked, event.lock);
    else
        turn_failed(a, event.error.status);
}

static void turn_run(struct asking *a)
{
    run_turn(a->w, a->key, false);
}

static void turn_elect(struct asking *a)
{
    run_turn(a->w, a->key, true);
}

/* ---- the table ---------------------------------------------------------- */

static const struct {
    const char *name;
    void (*turn)(struct asking *a);
    unsigned weight; /* how often, among the others */
    unsigned trait;  /* that the service must have; 0: none */
} workloads[] = {
    {"lock", turn_lock, 160, 0},
    {"manual", turn_manual, 24, 0},
    {"linger", turn_linger, 24, 0},
    {"lengths", turn_lengths, 48, 0},
    {"cancel", turn_cancel, 16, 0},
    {"handle", turn_handle, 40, HF_TRAIT_DETACH},
    {"owner", turn_owner, 32, HF_TRAIT_REENTRANT},
    {"shared", turn_shared, 64, HF_TRAIT_SHARED},
    {"permits", turn_permits, 48, HF_TRAIT_PERMITS},
    {"several", turn_several, 24, 0},
    {"run", turn_run, 1, HF_TRAIT_PROCESSES},
    {"elect", turn_elect, 1, HF_TRAIT_PROCESSES},
};

enum { WORKLOADS = sizeof(workloads) / sizeof(workloads[0]) };

const char *workload_name(int at)
{
    return at < WORKLOADS ? workloads[at].name : NULL;
}

/* A list of names, "lock,handle". */
bool workload_parse(const char *list, unsigned *ret)
{
    *ret = 0;
    for (const char *at = list; *at;) {
        size_t len = strcspn(at, ",");
        unsigned before = *ret;

        for (int i = 0; i < WORKLOADS; i++)
            if (strlen(workloads[i].name) == len &&
                !strncmp(at, workloads[i].name, len))
                *ret |= 1u << i;
        if (*ret == before)
            return false;
        at += len + (at[len] == ',');
    }
    return *ret != 0;
}

unsigned workload_possible(unsigned asked, unsigned traits)
{
    unsigned ret = 0;

    for (int i = 0; i < WORKLOADS; i++)
        if ((!asked || asked & 1u << i) &&
            (traits & workloads[i].trait) == workloads[i].trait)
            ret |= 1u << i;
    return ret;
}

static int workload_choose(struct worker *w)
{
    unsigned all = w->shared->plan.workloads, sum = 0, at;

    for (int i = 0; i < WORKLOADS; i++)
        sum += all & 1u << i ? workloads[i].weight : 0;
    at = (unsigned)worker_chance(w, sum);
    for (int i = 0; i < WORKLOADS; i++) {
        if (!(all & 1u << i))
            continue;
        if (at < workloads[i].weight)
            return i;
        at -= workloads[i].weight;
    }
    return 0;
}

/* Not at all, for a moment, or longer than a dead holder's lease. */
static int64_t worker_wait(struct worker *w)
{
    switch (worker_chance(w, 8)) {
    case 0:
        return 0;
    case 1:
    case 2:
        return 1 + (int64_t)worker_chance(w, 100);
    default:
        return 4 * w->shared->plan.ttl_ms;
    }
}

/* A key whose lock somebody has left, or holds with an owner id; 0: none. */
static int worker_boxed(struct worker *w)
{
    for (int i = 1; i <= w->shared->plan.keys; i++)
        if (atomic_load(&w->shared->cells[i].boxed))
            return i;
    return 0;
}

static int worker_joins(struct worker *w)
{
    for (int i = 1; i <= w->shared->plan.keys; i++)
        if (atomic_load(&w->shared->cells[i].owner))
            return i;
    return 0;
}

void workload_turn(struct worker *w)
{
    const struct plan *plan = &w->shared->plan;
    struct asking a = {.w = w,
                       .key = 1 + (int)worker_chance(w, (uint64_t)plan->keys),
                       .opts = HF_LOCK_OPTS_INIT,
                       .wait = worker_wait(w)};
    bool calm = atomic_load(&w->shared->calm);
    int boxed = calm || worker_chance(w, 4) == 0 ? 0 : worker_boxed(w);
    int joins = calm || worker_chance(w, 8) ? 0 : worker_joins(w);

    a.opts.ttl_ms = plan->ttl_ms;
    if (w->who.thread % 2 == 1) {
        a.opts.flags |= HF_FAIR;
        a.asked |= ASK_FAIR;
    }
    if (boxed || joins)
        a.key = boxed ? boxed : joins;
    client_key(plan, a.key, a.name, sizeof(a.name));
    if (boxed) {
        turn_handle(&a);
    } else if (joins) {
        turn_owner(&a);
    } else if (calm) { /* everybody has to get one now */
        a.wait = -1;
        turn_lock(&a);
    } else {
        workloads[workload_choose(w)].turn(&a);
    }
    usleep((unsigned)worker_chance(w, worker_chance(w, 8) ? 200 : 3000));
}
