/* SPDX-License-Identifier: MIT
 *
 * fault.c - what the nemesis can do, one line each, and which of it can be done
 * here.  What needs a network is in fault_net.c, what needs servers in
 * fault_members.c.
 */
#include "torture.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void kill_heal(struct run *run, int target)
{
    process_start(run, target);
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

/* ---- a chosen point of one process -------------------------------------- */

void point_set(struct run *run, int target, int64_t calls, int64_t signo)
{
    int64_t numbers[] = {calls, signo};
    char path[512];
    int fd;

    snprintf(path, sizeof(path), "%s/point.%d", run->dir, target);
    fd = open(path, O_WRONLY | O_CLOEXEC | O_CREAT, 0600);
    if (fd < 0 || write(fd, numbers, sizeof(numbers)) < 0)
        perror(path);
    if (fd >= 0)
        close(fd);
}

/* After so many calls, before or behind one. */
static void point_arm(struct run *run, int target, int signo)
{
    point_set(run, target, 1 + (int64_t)run_chance(run, 300),
              run_chance(run, 2) ? signo : -signo);
}

static void point_kill(struct run *run, int target)
{
    run_log(run, W_kill, 0, target, NULL);
    point_arm(run, target, SIGKILL);
}

static void point_killed(struct run *run, int target)
{
    process_killed(run, target);
    point_set(run, target, 0, 0);
    process_start(run, target);
}

static void point_stop(struct run *run, int target)
{
    run->processes[target].stopped = true;
    point_arm(run, target, SIGSTOP);
}

static void point_cont(struct run *run, int target)
{
    point_set(run, target, 0, 0);
    process_cont(run, target);
}

static void wall_begin(struct run *run, int target)
{
    wall_set(run, target, run_chance(run, 2) ? 3600 : -3600);
}

static void wall_heal(struct run *run, int target)
{
    wall_set(run, target, 0);
}

/* ---- an operator -------------------------------------------------------- */

/* Break what is held, again and again, as somebody does who does not know better.
 * The holder has to be out before the next is in. */
static void break_begin(struct run *run, int target)
{
    struct hf_info info;
    char key[128];
    int at;

    (void)target;
    for (int i = 2 + (int)run_chance(run, 12); i && !run_interrupted; i--) {
        at = 1 + (int)run_chance(run, (uint64_t)run->plan.keys);
        client_key(&run->plan, at, key, sizeof(key));
        info = (struct hf_info)HF_INFO_INIT;
        if (hf_inspect(run->client, key, &info, NULL) == HF_OK && info.held &&
            hf_break(run->client, key, info.fence, NULL) == HF_OK)
            run_log(run, W_broke, at, (int64_t)info.fence, NULL);
        run_sleep_ms((int64_t)run_chance(run, (uint64_t)run->plan.ttl_ms / 4));
    }
}

static const struct fault fault_table[] = {
    {"kill", "client", process_kill, kill_heal, false, NULL,
     "a process is killed"},
    {"stop", "client", process_stop, process_cont, false, NULL,
     "a process is stopped, mostly with its commands"},
    {"wall", "wall", wall_begin, wall_heal, false, NULL,
     "the wall clock of a process jumps (--clock-shim)"},
    {"point-kill", "point", point_kill, point_killed, false, NULL,
     "a process is killed at a point of its code (--point-shim)"},
    {"point-stop", "point", point_stop, point_cont, false, NULL,
     "a process is stopped at a point of its code (--point-shim)"},
    {"break", "operator", break_begin, NULL, false, NULL,
     "an operator breaks locks that are held"},
    {"part", "net", net_part, net_pass, false, NULL,
     "nothing moves, then it does"},
    {"lone", "net", net_lone, net_pass, false, NULL,
     "the same, with one server"},
    {"lose-answers", "net", net_lose_answers, net_pass, false, NULL,
     "answers vanish"},
    {"lose-requests", "net", net_lose_requests, net_pass, false, NULL,
     "requests vanish"},
    {"reset", "net", net_reset, net_pass, false, NULL, "connections are reset"},
    {"half", "net", net_half, net_after_half, false, NULL, "answers end"},
    {"refuse", "net", net_refuse, net_accept, false, NULL,
     "no connection is made"},
    {"slow", "net", net_slow, net_pass, false, NULL, "answers come late"},
    {"slice", "net", net_slice, net_pass, false, NULL, "bytes come one by one"},
    {"trickle", "net", net_trickle, net_pass, false, NULL,
     "2000 bytes a second"},
    {"trunc", "net", net_trunc, net_pass, false, NULL,
     "an answer is cut short"},
    {"lie", "lie", net_lie, net_pass, false, NULL,
     "what is done is said to have failed"},
    {"split", "split", split_begin, split_heal, false, "cut",
     "a process and a server are cut off together"},
    {"depose", "depose", depose_begin, depose_heal, false, "leader",
     "a leader is stopped until another leads, and goes on"},
    {"crash", "server", crash_begin, crash_heal, true, "kill",
     "a server is killed and started"},
    {"freeze", "server", freeze_begin, freeze_heal, true, "freeze",
     "a server is stopped"},
    {"roll", "server", roll_begin, NULL, true, "kill",
     "all servers are restarted, one by one"},
    {"clock", "clock", clock_begin, clock_heal, true, "clock",
     "the clock of a server jumps"},
    {"drift", "drift", drift_begin, drift_heal, false, "drift",
     "the clocks of servers run too fast, by 0.9 percent"},
    {"older", "older", older_begin, NULL, true, "older",
     "a server is restarted with older data"},
    {"full", "full", full_begin, full_heal, true, "full",
     "a server has no room"},
    {"sessions", "sessions", sessions_begin, NULL, true, "sessions",
     "all sessions of a server are ended"},
    {"failover", "failover", failover_begin, NULL, true, "failover",
     "a master is replaced by its replica"},
    {"reshard", "reshard", reshard_begin, NULL, true, "reshard",
     "slots move to another server"},
    {"replace", "replace", replace_begin, NULL, true, "replace",
     "the database is replaced by an older copy"},
    {"rotate", "rotate", rotate_begin, rotate_heal, true, "rotate",
     "the credentials change"},
};

enum { FAULTS = sizeof(fault_table) / sizeof(fault_table[0]) };

const struct fault *fault_list(int *count)
{
    *count = FAULTS;
    return fault_table;
}

/* A list of names and groups, "kill,net". */
bool fault_parse(const char *list, uint64_t *ret, char *why, size_t size)
{
    *ret = 0;
    for (const char *at = list; *at;) {
        size_t len = strcspn(at, ",");
        uint64_t before = *ret;

        for (int i = 0; i < FAULTS; i++)
            if ((strlen(fault_table[i].name) == len &&
                 !strncmp(at, fault_table[i].name, len)) ||
                (strlen(fault_table[i].group) == len &&
                 !strncmp(at, fault_table[i].group, len)))
                *ret |= UINT64_C(1) << i;
        if (*ret == before && !(len == 4 && !strncmp(at, "none", 4))) {
            snprintf(why, size, "no fault is called '%.*s'", (int)len, at);
            return false;
        }
        at += len + (at[len] == ',');
    }
    return true;
}

uint64_t fault_default(void)
{
    char why[64];
    uint64_t faults;

    fault_parse("client,net", &faults, why, sizeof(why));
    return faults;
}

/* Of those that were asked for, what is worth a word if it cannot be had: one
 * server cannot be cut off alone. */
uint64_t fault_missing(uint64_t asked, uint64_t possible)
{
    char why[64];
    uint64_t lone, net, end, point;

    fault_parse("lone", &lone, why, sizeof(why));
    fault_parse("net", &net, why, sizeof(why));
    if (asked != lone && possible & net)
        asked &= ~lone;
    fault_parse("point-kill", &end, why, sizeof(why));
    fault_parse("point", &point, why, sizeof(why));
    if (asked != end && possible & point)
        asked &= ~end; /* the service is the process */
    return asked & ~possible;
}

static bool fault_is_possible(const struct run *run, const struct fault *f)
{
    unsigned traits = run->plan.traits;

    if (!strcmp(f->group, "point") && !run->points)
        return false;
    if (!strcmp(f->name, "kill") || !strcmp(f->name, "point-kill"))
        return traits &
               HF_TRAIT_PROCESSES; /* else the service would die, too */
    if (!strcmp(f->group, "net") || !strcmp(f->group, "lie"))
        return run->net && (strcmp(f->name, "lone") != 0 || run->hosts > 1);
    if (!strcmp(f->group, "wall"))
        return run->shim != NULL;
    if (!strcmp(f->group, "operator"))
        return traits & HF_TRAIT_BREAK;
    if (!strcmp(f->group, "split"))
        return run->net && run->hosts > 1 && hook_can(run, f->verb);
    return !f->verb || hook_can(run, f->verb);
}

uint64_t fault_possible(const struct run *run)
{
    uint64_t faults = 0;

    for (int i = 0; i < FAULTS; i++)
        if (fault_is_possible(run, &fault_table[i]))
            faults |= UINT64_C(1) << i;
    return faults;
}

void fault_names(uint64_t faults, char *ret, size_t size)
{
    size_t used = 0;

    snprintf(ret, size, "none");
    for (int i = 0; i < FAULTS; i++)
        if (faults & UINT64_C(1) << i && used < size)
            used += (size_t)snprintf(ret + used, size - used, "%s%s",
                                     used ? "," : "", fault_table[i].name);
}
