/* SPDX-License-Identifier: MIT
 *
 * fault_members.c - what the nemesis does to servers, and to those who see only
 * some of them.
 *
 * The last kind has found the most: it takes a client, a server and the rest of
 * the servers, and decides who of them can speak to whom and in which order that
 * ends.  It needs no luck with the moment of a renewal, because clients stay in
 * their locks while a fault is near (see nemesis.c).
 */
#include "torture.h"

#include <stdio.h>

/* ---- one server -------------------------------------------------------- */

void crash_begin(struct run *run, int target)
{
    hook_call(run, "kill", target, 0);
}

void crash_heal(struct run *run, int target)
{
    hook_call(run, "start", target, 0);
}

void freeze_begin(struct run *run, int target)
{
    hook_call(run, "freeze", target, 0);
}

void freeze_heal(struct run *run, int target)
{
    hook_call(run, "thaw", target, 0);
}

void roll_begin(struct run *run, int target)
{
    for (int i = 0; i < run->members; i++) {
        int member = 1 + (target - 1 + i) % run->members;

        hook_call(run, "kill", member, 0);
        run_sleep_ms(100);
        hook_call(run, "start", member, 0);
        run_sleep_ms((int64_t)run_chance(run, (uint64_t)run->plan.ttl_ms / 2));
    }
}

/* Farther than any lease, and back again. */
void clock_begin(struct run *run, int target)
{
    int64_t jump = 3 * run->plan.ttl_ms / 1000 + 1;

    hook_call(run, "clock", target, run_chance(run, 3) ? jump : -jump);
}

void clock_heal(struct run *run, int target)
{
    hook_call(run, "clock", target, 0);
}

/* All clocks run as fast as the margin of a lease allows, and a holder hears
 * nothing until its lease is over: else it would be renewed in time. */
void drift_begin(struct run *run, int target)
{
    for (int i = 1; i <= run->members; i++)
        hook_call(run, "drift", i, 9000);
    run_until_renewed(run);
    if (run->net)
        route_tell(run, target, 0, "hold");
    run_sleep_ms(run->plan.ttl_ms * 5 / 4);
}

void drift_heal(struct run *run, int target)
{
    if (run->net)
        route_heal(run, target);
    for (int i = 1; i <= run->members; i++)
        hook_call(run, "drift", i, 0);
}

/* It forgets what it has heard since a moment ago. */
void older_begin(struct run *run, int target)
{
    hook_call(run, "save", target, 0);
    run_sleep_ms((int64_t)run_chance(run, (uint64_t)run->plan.ttl_ms));
    hook_call(run, "older", target, 0);
}

void full_begin(struct run *run, int target)
{
    hook_call(run, "full", target, 0);
}

void full_heal(struct run *run, int target)
{
    hook_call(run, "spare", target, 0);
}

void sessions_begin(struct run *run, int target)
{
    for (int i = 1 + (int)run_chance(run, 4); i; i--) {
        hook_call(run, "sessions", target, 0);
        run_sleep_ms((int64_t)run_chance(run, (uint64_t)run->plan.ttl_ms / 4));
    }
}

void failover_begin(struct run *run, int target)
{
    hook_call(run, "failover", target, 0);
}

void reshard_begin(struct run *run, int target)
{
    hook_call(run, "reshard", target, run->plan.ttl_ms);
}

/* Those who have it open may stay in the old one; somebody has to open the new. */
void replace_begin(struct run *run, int target)
{
    int process = 1 + (int)run_chance(run, (uint64_t)run->plan.processes);

    hook_call(run, "replace", target, 0);
    process_kill(run, process);
    process_start(run, process);
}

void rotate_begin(struct run *run, int target)
{
    hook_call(run, "rotate", target, 0);
}

void rotate_heal(struct run *run, int target)
{
    hook_call(run, "rotate", target, 1);
}

/* ---- who speaks to whom ------------------------------------------------ */

/* This process sees one server and no other: nothing arrives there, or it is told
 * that nobody is there, and looks for another at once. */
static void see_only(struct run *run, int process, int member)
{
    bool silent = run_chance(run, 2);

    for (int i = 1; run->net && i <= run->hosts; i++) {
        if (i == member)
            continue;
        route_tell(run, process, i, silent ? "hold" : "refuse");
        if (!silent)
            route_tell(run, process, i, "reset");
    }
}

static void see_all(struct run *run, int process)
{
    if (!run->net)
        return;
    route_tell(run, process, 0, "accept");
    route_heal(run, process);
}

/* Who leads, as the servers say that are not `but'; 0: nobody yet. */
static int leader_of(struct run *run, int but, int64_t limit_ms)
{
    int64_t end = history_now() + limit_ms * 1000;
    int leader = hook_ask(run, "leader", but);

    while ((!leader || leader == but) && history_now() < end &&
           !run_interrupted) {
        run_sleep_ms(20);
        leader = hook_ask(run, "leader", but);
    }
    return leader == but ? 0 : leader;
}

static int deposed;

/* A leader is stopped until another leads, goes on without knowing it, and one
 * client speaks to nobody else.  Mostly that client then hears nothing more, so
 * that it has to rely on what the old leader told it. */
void depose_begin(struct run *run, int target)
{
    uint64_t ttl = (uint64_t)run->plan.ttl_ms;
    bool alone = run_chance(run, 8) != 0, timed = run_chance(run, 4) != 0;
    int64_t from;

    deposed = leader_of(run, 0, 10000);
    if (!deposed)
        return;
    if (alone)
        see_only(run, target, deposed);
    if (timed)
        run_until_renewed(run);
    from = history_now();
    hook_call(run, "freeze", deposed, 0);
    if (hook_can(run, "cut"))
        hook_call(run, "cut", deposed, 0);
    leader_of(run, deposed, 10000);
    if (timed) /* the next renewal comes after a third of the lease */
        from += (int64_t)(ttl / 3 + run_chance(run, ttl / 24)) * 1000;
    else
        from += (int64_t)run_chance(run, ttl) * 1000;
    while (history_now() < from && !run_interrupted)
        run_sleep_ms(2);
    hook_call(run, "thaw", deposed, 0);
    if (!run->net || !alone || !run_chance(run, 4))
        return;
    run_sleep_ms(20 + (int64_t)run_chance(run, 600));
    route_tell(run, target, 0, "hold");
    run_sleep_ms(run->plan.ttl_ms);
}

void depose_heal(struct run *run, int target)
{
    if (hook_can(run, "cut"))
        hook_call(run, "join", deposed ? deposed : 1, 0);
    see_all(run, target);
}

static int stopped;

/* One client and one server on this side, all others on that; the server may be
 * any, and may still hear them or still be heard.  It comes to the same if that
 * server is stopped, and is quicker. */
void split_begin(struct run *run, int target)
{
    uint64_t ttl = (uint64_t)run->plan.ttl_ms;
    int member = 1 + (int)run_chance(run, (uint64_t)run->members);

    see_only(run, target, member);
    /* It takes a client a while to see that it must go to another. */
    run_sleep_ms((int64_t)(ttl / 8 + run_chance(run, ttl / 2)));
    if (run_chance(run, 8))
        run_until_renewed(run);
    stopped = run_chance(run, 3) ? member : 0;
    if (stopped)
        hook_call(run, "freeze", stopped, 0);
    else
        hook_call(run, "cut", member, (int64_t)run_chance(run, 3));
    run_sleep_ms((int64_t)(ttl / 2 + run_chance(run, ttl * 3 / 2)));
}

void split_heal(struct run *run, int target)
{
    if (stopped)
        hook_call(run, "thaw", stopped, 0);
    else
        hook_call(run, "join", 1, 0);
    stopped = 0;
    see_all(run, target);
}
