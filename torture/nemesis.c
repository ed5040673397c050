/* SPDX-License-Identifier: MIT
 *
 * nemesis.c - one or two faults at a time, for a moment or for longer than a
 * lease, then a breath; until the time is over and everything is whole again.
 *
 * A lock that is held for a millisecond is rarely held when a fault comes, and
 * what goes wrong then goes wrong at the end of a lease.  So before every other
 * fault the clients are told that it is near, and many of them stay in their
 * locks for longer than a lease.
 */
#include "torture.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

volatile sig_atomic_t run_interrupted;

uint64_t run_chance(struct run *run, uint64_t below)
{
    run->chance ^= run->chance << 13;
    run->chance ^= run->chance >> 7;
    run->chance ^= run->chance << 17;
    return below ? run->chance % below : 0;
}

void run_sleep_ms(int64_t ms)
{
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

    while (nanosleep(&ts, &ts) < 0 && errno == EINTR && !run_interrupted)
        continue;
}

void run_log(struct run *run, enum what what, int key, int64_t number,
             const char *text)
{
    struct who nemesis = {0, 0, 0};

    history_log(run->log, nemesis, what, key, 0, number, text);
}

/* Wait for the next renewal of the prey, for as long as that should take: what is
 * just proven is believed in for the longest. */
void run_until_renewed(struct run *run)
{
    int prey = atomic_load(&run->shared->prey);
    struct cell *cell = &run->shared->cells[prey];
    int64_t end = history_now() + run->plan.ttl_ms * 500;
    int64_t before = atomic_load(&cell->renewed);

    while (prey && atomic_load(&cell->renewed) == before &&
           history_now() < end && !run_interrupted)
        run_sleep_ms(1);
}

/* ---- the nemesis ------------------------------------------------------- */

struct blow {
    const struct fault *fault;
    int target;
};

/* A fault of those that are wanted, and whom it hits. */
static bool nemesis_choose(struct run *run, struct blow *ret)
{
    int count, tries;
    const struct fault *list = fault_list(&count);

    for (tries = 0; tries < 1000; tries++) {
        int at = (int)run_chance(run, (uint64_t)count);

        if (!(run->faults & UINT64_C(1) << at))
            continue;
        ret->fault = &list[at];
        ret->target =
            1 + (int)run_chance(run, (uint64_t)(list[at].server
                                                    ? run->members
                                                    : run->plan.processes));
        return true;
    }
    return false;
}

static void nemesis_begin(struct run *run, const struct blow *blow)
{
    run_log(run, W_fault, 0, blow->target, blow->fault->name);
    if (run->verbose)
        fprintf(stderr, "%s %d\n", blow->fault->name, blow->target);
    blow->fault->begin(run, blow->target);
}

static void nemesis_heal(struct run *run, const struct blow *blow)
{
    if (blow->fault->heal)
        blow->fault->heal(run, blow->target);
    run_log(run, W_heal, 0, blow->target, blow->fault->name);
}

/* Half of them are short, and the others up to much longer than a lease. */
static int64_t nemesis_length(struct run *run)
{
    int64_t ttl = run->plan.ttl_ms;

    if (run_chance(run, 2))
        return 20 + (int64_t)run_chance(run, (uint64_t)ttl / 8);
    return ttl / 8 + (int64_t)run_chance(run, (uint64_t)ttl * 3 / 2);
}

/* Does it concern more than its target? */
static bool blow_is_wide(const struct blow *blow)
{
    return !strcmp(blow->fault->name, "split") ||
           !strcmp(blow->fault->name, "drift") ||
           !strcmp(blow->fault->name, "depose");
}

/* Find somebody who will be in a lock for longer than a lease, and aim at it. */
static void nemesis_aim(struct run *run, struct blow *blow)
{
    int64_t end = history_now() + run->plan.ttl_ms * 1000;

    while (history_now() < end && !run_interrupted) {
        int at = 1 + (int)run_chance(run, (uint64_t)run->plan.keys);
        int process = atomic_load(&run->shared->cells[at].staying);

        if (process) {
            atomic_store(&run->shared->prey, at);
            blow->target = process;
            return;
        }
        run_sleep_ms(2);
    }
}

void nemesis_run(struct run *run, int64_t end_us)
{
    struct blow blows[2];

    while (run->faults && history_now() < end_us && !run_interrupted) {
        int n = 1 + (int)run_chance(run, 2);

        if (!nemesis_choose(run, &blows[0]) || !nemesis_choose(run, &blows[1]))
            return;
        if (blows[0].target == blows[1].target || blow_is_wide(&blows[0]) ||
            blow_is_wide(&blows[1]))
            n = 1; /* they would heal each other */
        if (blow_is_wide(&blows[0]) || run_chance(run, 2)) {
            atomic_store(&run->shared->tense, true);
            run_sleep_ms((int64_t)run_chance(run, 60));
        }
        if (blow_is_wide(&blows[0]))
            nemesis_aim(run, &blows[0]);
        for (int i = 0; i < n; i++)
            nemesis_begin(run, &blows[i]);
        if (!blow_is_wide(&blows[0])) /* they take their time themselves */
            run_sleep_ms(nemesis_length(run));
        for (int i = 0; i < n; i++)
            nemesis_heal(run, &blows[i]);
        atomic_store(&run->shared->tense, false);
        atomic_store(&run->shared->prey, 0);
        run_sleep_ms((int64_t)run_chance(run, (uint64_t)run->plan.ttl_ms / 3));
    }
    while (history_now() < end_us && !run_interrupted)
        run_sleep_ms(10);
}
