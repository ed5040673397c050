/* SPDX-License-Identifier: MIT
 *
 * fault.c - what the nemesis can do, one line each.
 *
 * Every fault is one that a real machine or network can have.  Bytes that
 * vanish from a TCP stream never come back, so a direction that was dropped ends
 * with a reset: no client could tell the answer to one question from that to
 * another otherwise.
 */
#include "torture.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void kill_heal(struct run *run, int target)
{
    process_start(run, target);
}

/* ---- the network of one process ---------------------------------------- */

static void net_pass(struct run *run, int target)
{
    route_heal(run, target);
}

static void net_part(struct run *run, int target)
{
    route_tell(run, target, 0, "hold");
}

/* Away from one server only, where there are several. */
static void net_lone(struct run *run, int target)
{
    route_tell(run, target, 1 + (int)run_chance(run, (uint64_t)run->hosts),
               "hold");
}

static void net_lose_answers(struct run *run, int target)
{
    route_tell(run, target, 0, "down drop");
}

static void net_lose_requests(struct run *run, int target)
{
    route_tell(run, target, 0, "up drop");
}

static void net_reset(struct run *run, int target)
{
    route_tell(run, target, 0, "reset");
}

static void net_half(struct run *run, int target)
{
    route_tell(run, target, 0, "down half");
}

static void net_after_half(struct run *run, int target)
{
    route_tell(run, target, 0, "reset");
    route_heal(run, target);
}

static void net_refuse(struct run *run, int target)
{
    route_tell(run, target, 0, "refuse");
    route_tell(run, target, 0, "reset");
}

static void net_accept(struct run *run, int target)
{
    route_tell(run, target, 0, "accept");
}

static void net_slow(struct run *run, int target)
{
    char words[64];
    int64_t ttl = run->plan.ttl_ms;

    snprintf(words, sizeof(words), "down delay %lld %lld",
             (long long)ttl / 10 + (long long)run_chance(run, (uint64_t)ttl),
             (long long)ttl / 10);
    route_tell(run, target, 0, words);
}

static void net_slice(struct run *run, int target)
{
    route_tell(run, target, 0, "slice");
}

static void net_trickle(struct run *run, int target)
{
    route_tell(run, target, 0, "throttle 2000");
}

static void net_trunc(struct run *run, int target)
{
    char words[64];

    snprintf(words, sizeof(words), "down cut %lld",
             (long long)run_chance(run, 400));
    route_tell(run, target, 0, words);
}

/* ---- the wall clock of one process ------------------------------------- */

void wall_set(struct run *run, int target, int64_t seconds)
{
    char path[512];
    int fd;

    snprintf(path, sizeof(path), "%s/clock.%d", run->dir, target);
    fd = open(path, O_WRONLY | O_CLOEXEC | O_CREAT, 0600);
    if (fd < 0 || write(fd, &seconds, sizeof(seconds)) < 0)
        perror(path);
    if (fd >= 0)
        close(fd);
}

static void wall_begin(struct run *run, int target)
{
    wall_set(run, target, run_chance(run, 2) ? 3600 : -3600);
}

static void wall_heal(struct run *run, int target)
{
    wall_set(run, target, 0);
}

/* ---- servers ----------------------------------------------------------- */

static void crash_begin(struct run *run, int target)
{
    hook_call(run, "kill", target, 0);
}

static void crash_heal(struct run *run, int target)
{
    hook_call(run, "start", target, 0);
}

static void freeze_begin(struct run *run, int target)
{
    hook_call(run, "freeze", target, 0);
}

static void freeze_heal(struct run *run, int target)
{
    hook_call(run, "thaw", target, 0);
}

static void roll_begin(struct run *run, int target)
{
    for (int i = 0; i < run->members; i++) {
        int member = 1 + (target - 1 + i) % run->members;

        hook_call(run, "kill", member, 0);
        run_sleep_ms(100);
        hook_call(run, "start", member, 0);
        run_sleep_ms(run->plan.ttl_ms / 2);
    }
}

/* Farther than any lease, and back again. */
static void clock_begin(struct run *run, int target)
{
    int64_t jump = 3 * run->plan.ttl_ms / 1000 + 1;

    hook_call(run, "clock", target, run_chance(run, 3) ? jump : -jump);
}

static void clock_heal(struct run *run, int target)
{
    hook_call(run, "clock", target, 0);
}

static const struct fault fault_table[] = {
    {"kill", "client", process_kill, kill_heal, false, "a process is killed"},
    {"stop", "client", process_stop, process_cont, false,
     "a process is stopped"},
    {"wall", "wall", wall_begin, wall_heal, false,
     "the wall clock of a process jumps (--clock-shim)"},
    {"part", "net", net_part, net_pass, false, "nothing moves, then it does"},
    {"lone", "net", net_lone, net_pass, false, "the same, with one server"},
    {"lose-answers", "net", net_lose_answers, net_pass, false,
     "answers vanish"},
    {"lose-requests", "net", net_lose_requests, net_pass, false,
     "requests vanish"},
    {"reset", "net", net_reset, net_pass, false, "connections are reset"},
    {"half", "net", net_half, net_after_half, false, "answers end"},
    {"refuse", "net", net_refuse, net_accept, false, "no connection is made"},
    {"slow", "net", net_slow, net_pass, false, "answers come late"},
    {"slice", "net", net_slice, net_pass, false, "bytes come one by one"},
    {"trickle", "net", net_trickle, net_pass, false, "2000 bytes a second"},
    {"trunc", "net", net_trunc, net_pass, false, "an answer is cut short"},
    {"crash", "server", crash_begin, crash_heal, true,
     "a server is killed and started"},
    {"freeze", "server", freeze_begin, freeze_heal, true,
     "a server is stopped"},
    {"roll", "server", roll_begin, NULL, true,
     "all servers are restarted, one by one"},
    {"clock", "clock", clock_begin, clock_heal, true,
     "the clock of a server jumps"},
};

enum { FAULTS = sizeof(fault_table) / sizeof(fault_table[0]) };

const struct fault *fault_list(int *count)
{
    *count = FAULTS;
    return fault_table;
}

/* A list of names and groups, "kill,net". */
bool fault_parse(const char *list, unsigned *ret, char *why, size_t size)
{
    *ret = 0;
    for (const char *at = list; *at;) {
        size_t len = strcspn(at, ",");
        unsigned before = *ret;

        for (int i = 0; i < FAULTS; i++)
            if ((strlen(fault_table[i].name) == len &&
                 !strncmp(at, fault_table[i].name, len)) ||
                (strlen(fault_table[i].group) == len &&
                 !strncmp(at, fault_table[i].group, len)))
                *ret |= 1u << i;
        if (*ret == before && !(len == 4 && !strncmp(at, "none", 4))) {
            snprintf(why, size, "no fault is called '%.*s'", (int)len, at);
            return false;
        }
        at += len + (at[len] == ',');
    }
    return true;
}

unsigned fault_default(void)
{
    char why[64];
    unsigned faults;

    fault_parse("client,net", &faults, why, sizeof(why));
    return faults;
}

/* Of those that were asked for, what is worth a word if it cannot be had: one
 * server cannot be cut off alone. */
unsigned fault_missing(unsigned asked, unsigned possible)
{
    char why[64];
    unsigned lone, net;

    fault_parse("lone", &lone, why, sizeof(why));
    fault_parse("net", &net, why, sizeof(why));
    if (asked != lone && possible & net)
        asked &= ~lone;
    return asked & ~possible;
}

static bool fault_is_possible(const struct run *run, const struct fault *f,
                              bool processes)
{
    if (!strcmp(f->name, "kill"))
        return processes; /* else the service would die with it */
    if (!strcmp(f->group, "net"))
        return run->net && (strcmp(f->name, "lone") != 0 || run->hosts > 1);
    if (!strcmp(f->group, "wall"))
        return run->shim != NULL;
    return !f->server || run->members > 0;
}

unsigned fault_possible(const struct run *run, bool processes)
{
    unsigned faults = 0;

    for (int i = 0; i < FAULTS; i++)
        if (fault_is_possible(run, &fault_table[i], processes))
            faults |= 1u << i;
    return faults;
}

void fault_names(unsigned faults, char *ret, size_t size)
{
    size_t used = 0;

    snprintf(ret, size, "none");
    for (int i = 0; i < FAULTS; i++)
        if (faults & 1u << i && used < size)
            used += (size_t)snprintf(ret + used, size - used, "%s%s",
                                     used ? "," : "", fault_table[i].name);
}
