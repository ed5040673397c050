/* SPDX-License-Identifier: MIT
 *
 * nemesis.c - one or two faults at a time, for a moment or for longer than a
 * lease, then a breath; until the time is over and everything is whole again.
 */
#include "torture.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

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

/* ---- servers, by the hook ---------------------------------------------- */

/* `HOOK count` prints how many servers there are. */
bool hook_count(struct run *run)
{
    char command[1024], line[64] = "";
    FILE *pipe;

    snprintf(command, sizeof(command), "%s count", run->hook);
    pipe = popen(command, "re");
    if (!pipe)
        return false;
    if (!fgets(line, sizeof(line), pipe))
        line[0] = '\0';
    run->members = (int)strtol(line, NULL, 10);
    return pclose(pipe) == 0 && run->members > 0 && run->members <= MAX_MEMBERS;
}

/* `HOOK VERB MEMBER NUMBER`, by the shell; it returns when that is done. */
void hook_call(struct run *run, const char *verb, int member, int64_t number)
{
    char command[1024];
    char *argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", command,
                    NULL};
    int status = -1;
    pid_t pid;

    snprintf(command, sizeof(command), "%s %s %d %lld", run->hook, verb, member,
             (long long)number);
    if (posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ) == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
    if (status)
        fprintf(stderr, "holdfast-torture: failed: %s\n", command);
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

        if (!(run->faults & 1u << at))
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

void nemesis_run(struct run *run, int64_t end_us)
{
    struct blow blows[2];

    while (run->faults && history_now() < end_us && !run_interrupted) {
        int n = 1 + (int)run_chance(run, 2);

        if (!nemesis_choose(run, &blows[0]) || !nemesis_choose(run, &blows[1]))
            return;
        if (blows[0].target == blows[1].target)
            n = 1; /* they would heal each other */
        for (int i = 0; i < n; i++)
            nemesis_begin(run, &blows[i]);
        run_sleep_ms(nemesis_length(run));
        for (int i = 0; i < n; i++)
            nemesis_heal(run, &blows[i]);
        run_sleep_ms((int64_t)run_chance(run, (uint64_t)run->plan.ttl_ms / 3));
    }
    while (history_now() < end_us && !run_interrupted)
        run_sleep_ms(10);
}
