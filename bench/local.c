/* SPDX-License-Identifier: MIT
 *
 * local.c - what a lock costs that need not leave the process.
 *
 * QUESTIONS
 *   mem:       acquire+release by one thread whom nobody disturbs: below 1 us.
 *   lingering  taking a lock again that this client still has (linger_ms): at
 *              most 300 ns, and not one system call, on mem: and on file:.
 * An uncontended pthread mutex stands beside them for scale.  One operation is
 * always the pair: take it and give it back.
 */
#include "peer.h"
#include "trace.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define ROUNDS  401
#define LINGERS 1000

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static double mutex_run(struct bench_case *one)
{
    int64_t begin = bench_now();
    long i;

    for (i = 0; i < one->ops; i++) {
        pthread_mutex_lock(&mutex);
        pthread_mutex_unlock(&mutex);
    }
    return (double)(bench_now() - begin) / (double)one->ops;
}

static struct peer *lingering(const char *url)
{
    struct peer *peer = peer_new(url, "nightly-backup");

    peer->opts.linger_ms = LINGERS;
    return peer;
}

static void count(const char *name, struct peer *peer,
                  const struct bench_goal *goal)
{
    struct trace_work work = {peer_open, peer_cycle, peer, 2000};
    double calls = trace_calls(name, &work);

    if (goal && calls >= 0)
        bench_value(name, calls, "system calls", goal);
}

static void count_all(const char *file_url)
{
    /* The keeper's own wake-ups, one a second or so, must not count as one. */
    static const struct bench_goal none = {BENCH_AT_MOST, 0.01};

    bench_begin("syscalls", "System calls of one acquire+release");
    count("mem:", peer_new("mem:", "nightly-backup"), NULL);
    count("mem: lingering", lingering("mem:"), &none);
    count("file: lingering", lingering(file_url), &none);
}

int main(void)
{
    static const struct bench_goal us = {BENCH_AT_MOST, 1000};
    static const struct bench_goal ns300 = {BENCH_AT_MOST, 300};
    struct bench_case cases[4] = {
        {.name = "pthread_mutex",
         .run = mutex_run,
         .alone = true,
         .ops = 200000},
        {.name = "mem:", .run = peer_run, .alone = true, .ops = 2000},
        {.name = "mem: lingering", .run = peer_run, .alone = true, .ops = 5000},
        {.name = "file: lingering",
         .run = peer_run,
         .alone = true,
         .ops = 5000},
    };
    char url[300];
    int i;

    snprintf(url, sizeof(url), "file:%s", bench_scratch(NULL));
    count_all(url);
    bench_begin("local", "One acquire+release that stays in the process");
    cases[1].arg = peer_new("mem:", "nightly-backup");
    cases[2].arg = lingering("mem:");
    cases[3].arg = lingering(url);
    for (i = 1; i < 4; i++)
        peer_open(cases[i].arg);
    bench_run(cases, 4, bench_rounds(ROUNDS), "ns");
    bench_judge(&cases[1], "ns", &us);
    bench_judge(&cases[2], "ns", &ns300);
    bench_judge(&cases[3], "ns", &ns300);
    bench_ratio(&cases[1], &cases[0], NULL);
    bench_ratio(&cases[2], &cases[0], NULL);
    for (i = 1; i < 4; i++)
        peer_close(cases[i].arg);
    return 0;
}
