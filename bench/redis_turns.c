/* SPDX-License-Identifier: MIT
 *
 * redis_turns.c - how fast processes hand a lock in Redis to each other, and
 * how evenly.
 *
 * QUESTION  8 processes take and release one key as often as they can.  A
 *   hand-over takes at most three one-way trips, of which a bare PING is two,
 *   and the process with the most grants has at most 1.1 times as many as the
 *   one with the fewest; 20 times as many as the best of the libraries that
 *   poll.
 *
 * A grant counts as a hand-over if the one before it went to another process.
 * The peers run with their default delays and print when each grant was.
 */
#include "peer.h"
#include "redis.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 8

static struct {
    atomic_int ready, last;
    atomic_bool go, stop;
    atomic_long hand_overs;
    atomic_long grants[PROCESSES];
} * shared;

static void contend(int me, const char *url)
{
    struct peer *peer = peer_new(url, "contended");
    hf_lock *lock;

    peer_open(peer);
    atomic_fetch_add(&shared->ready, 1);
    while (!atomic_load(&shared->go))
        usleep(100);
    while (!atomic_load(&shared->stop)) {
        lock = peer_acquire(peer);
        atomic_fetch_add(&shared->grants[me], 1);
        if (atomic_exchange(&shared->last, me) != me)
            atomic_fetch_add(&shared->hand_overs, 1);
        peer_release(lock);
    }
    peer_close(peer);
}

static double share_of(const long *grants)
{
    long most = 0, fewest = -1;
    int i;

    for (i = 0; i < PROCESSES; i++) {
        if (grants[i] > most)
            most = grants[i];
        if (fewest < 0 || grants[i] < fewest)
            fewest = grants[i];
    }
    return fewest > 0 ? (double)most / (double)fewest : (double)most;
}

static double children_cpu(void)
{
    struct rusage usage;

    if (getrusage(RUSAGE_CHILDREN, &usage))
        return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static double server_cpu(void)
{
    redisContext *c = redis_connect();
    double cpu = redis_info(c, "cpu", "used_cpu_user:") +
                 redis_info(c, "cpu", "used_cpu_sys:");

    redisFree(c);
    return cpu * 1e6;
}

/* Hand-overs a second. */
static double holdfast_turns(const char *url, double seconds, double *share)
{
    double here = children_cpu(), there = server_cpu(), turns;
    long grants[PROCESSES];
    pid_t pids[PROCESSES];
    int64_t begin;
    double rate;
    int i;

    memset(shared, 0, sizeof(*shared));
    shared->last = -1;
    fflush(stdout);
    for (i = 0; i < PROCESSES; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            bench_die_errno("fork");
        if (pids[i] == 0) {
            contend(i, url);
            _exit(0);
        }
    }
    while (atomic_load(&shared->ready) < PROCESSES)
        usleep(1000);
    begin = bench_now();
    atomic_store(&shared->go, true);
    usleep((useconds_t)(seconds * 1e6));
    rate = (double)atomic_load(&shared->hand_overs) * 1e9 /
           (double)(bench_now() - begin);
    for (i = 0; i < PROCESSES; i++)
        grants[i] = atomic_load(&shared->grants[i]);
    atomic_store(&shared->stop, true);
    for (i = 0; i < PROCESSES; i++)
        waitpid(pids[i], NULL, 0);
    turns = (double)atomic_load(&shared->hand_overs);
    bench_value("processor time here, each", (children_cpu() - here) / turns,
                "us", NULL);
    bench_value("processor time of the server", (server_cpu() - there) / turns,
                "us", NULL);
    *share = share_of(grants);
    return rate;
}

/* ---- the peers --------------------------------------------------------- */

#define GRANTS_MAX 400000

struct grant {
    long long at;
    int who;
};

static int by_time(const void *a, const void *b)
{
    long long x = ((const struct grant *)a)->at;
    long long y = ((const struct grant *)b)->at;

    return (x > y) - (x < y);
}

static double count_turns(struct grant *all, size_t n)
{
    double turns = 0;
    size_t i;

    qsort(all, n, sizeof(*all), by_time);
    for (i = 1; i < n; i++)
        turns += all[i].who != all[i - 1].who;
    return turns;
}

/* Hand-overs a second of PROCESSES times `command`, each of which prints when
 * it had the lock; 0 if it cannot be run. */
static double peer_turns(const char *command, double seconds, double *share)
{
    struct grant *all = bench_alloc(GRANTS_MAX * sizeof(*all));
    FILE *pipes[PROCESSES];
    long grants[PROCESSES] = {0};
    size_t n = 0;
    double turns;
    int i;

    for (i = 0; i < PROCESSES; i++) {
        pipes[i] = popen(command, "re");
        if (!pipes[i])
            bench_die_errno("popen");
    }
    for (i = 0; i < PROCESSES; i++) {
        for (; n < GRANTS_MAX && fscanf(pipes[i], "%lld", &all[n].at) == 1; n++)
            all[n].who = i, grants[i]++;
        pclose(pipes[i]);
    }
    *share = share_of(grants);
    turns = count_turns(all, n);
    free(all);
    return turns / seconds;
}

static double ping_us(void)
{
    redisContext *c = redis_connect();
    int64_t begin;
    int i;

    for (i = 0; i < 200; i++)
        redis_do(c, "PING");
    begin = bench_now();
    for (i = 0; i < 2000; i++)
        redis_do(c, "PING");
    redisFree(c);
    return (double)(bench_now() - begin) / 2000 / 1000;
}

static void tell_holdfast(const char *name, const char *more, double seconds,
                          double ping, double *rate)
{
    static const struct bench_goal trips = {BENCH_AT_MOST, 3};
    static const struct bench_goal even = {BENCH_AT_MOST, 1.1};
    char url[256], what[128];
    double share;
    bool fair = !strstr(more, "barge");

    snprintf(url, sizeof(url), "%s%s", redis_url(), more);
    *rate = holdfast_turns(url, seconds, &share);
    bench_value(name, *rate, "a second", NULL);
    snprintf(what, sizeof(what), "%s, most over fewest", name);
    bench_value(what, share, "times", fair ? &even : NULL);
    snprintf(what, sizeof(what), "%s, one-way trips each", name);
    bench_value(what, 1e6 / *rate / (ping / 2), "trips", fair ? &trips : NULL);
}

static void tell_peer(const char *name, const char *command, double seconds,
                      double *best)
{
    char what[128];
    double share, rate = peer_turns(command, seconds, &share);

    if (rate <= 0) {
        bench_note("%s: not here", name);
        return;
    }
    bench_value(name, rate, "a second", NULL);
    snprintf(what, sizeof(what), "%s, most over fewest", name);
    bench_value(what, share, "times", NULL);
    if (rate > *best)
        *best = rate;
}

int main(void)
{
    static const struct bench_goal goal = {BENCH_AT_LEAST, 20};
    double seconds = bench_quick() ? 2 : 8, fair, barge, best = 0, ping;
    const char *dir = getenv("HF_PEERS"), *port = strrchr(redis_url(), ':') + 1;
    char command[1024];
    const char *const names[] = {"redlock", "redis-semaphore"};
    int i;

    bench_begin("redis-turns", "8 processes on one key of Redis");
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        bench_die_errno("mmap");
    ping = ping_us();
    bench_value("a bare PING", ping, "us", NULL);
    tell_holdfast("holdfast", "", seconds, ping, &fair);
    tell_holdfast("holdfast queue=barge", "?queue=barge", seconds, ping,
                  &barge);
    snprintf(command, sizeof(command),
             "/usr/bin/python3 bench/redis-peer.py %s %g 2>/dev/null", port,
             seconds);
    tell_peer("redis-py", command, seconds, &best);
    for (i = 0; i < 2; i++) {
        snprintf(command, sizeof(command),
                 "node bench/redis-peer.mjs %s %s %s %g 2>/dev/null",
                 dir ? dir : ".", names[i], port, seconds);
        tell_peer(i ? "redis-semaphore" : "node-redlock", command, seconds,
                  &best);
    }
    if (best > 0)
        bench_value("holdfast over the best of them", fair / best, "times",
                    &goal);
    return 0;
}
