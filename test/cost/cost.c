/* SPDX-License-Identifier: MIT
 *
 * cost.c - a fixed amount of work, to be counted and not timed.
 *
 *     cost WHAT run [waste]     do it; callgrind counts inside cost_work()
 *     cost WHAT calls [waste]   print how many system calls one operation made
 *
 * One operation is always the pair: take a lock and give it back.  test/cost/
 * check holds the figures against test/cost/budgets.  What is counted depends
 * on the program and not on how busy the machine is; for this the work is the
 * same each time, leases are long, and nobody else wants the locks.
 *
 * `waste` does some more for each operation, so that the check can show that it
 * would notice.
 */
#include "../../bench/bench.h"
#include "../../bench/trace.h"
#include "holdfast.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEY   "nightly-backup"
#define OPS   2000
#define WARM  300
#define WASTE 1000 /* steps of a loop */

struct job {
    char url[400];
    bool started; /* by hf_acquire_start() */
    struct hf_lock_opts opts;
    hf_client *client;
    hf_lock *outer;
};

static bool wasteful;

static void must(hf_status st, const struct hf_error *err)
{
    if (st)
        bench_die("%s", err->text);
}

static void waste(void)
{
    volatile int i;

    for (i = 0; i < WASTE; i++)
        ;
    syscall(SYS_getppid);
}

static void pair(struct job *job)
{
    struct hf_error err;
    hf_lock *lock;

    must(hf_acquire(job->client, KEY, 0, &job->opts, &lock, &err), &err);
    must(hf_release(lock, &err), &err);
}

static void pair_started(struct job *job)
{
    struct pollfd pfd = {.fd = hf_events_fd(job->client), .events = POLLIN};
    hf_request *request;
    struct hf_event event = HF_EVENT_INIT;
    struct hf_error err;

    must(hf_acquire_start(job->client, KEY, -1, &job->opts, NULL, &request,
                          &err),
         &err);
    while (!hf_next_event(job->client, &event))
        poll(&pfd, 1, -1);
    if (event.type != HF_GRANTED)
        bench_die("%s", event.error.text);
    must(hf_release(event.lock, &err), &err);
}

/* Not inlined: callgrind finds it by its name. */
__attribute__((noinline)) void cost_work(void *arg, long n);

void cost_work(void *arg, long n)
{
    struct job *job = arg;

    while (n-- > 0) {
        if (job->started)
            pair_started(job);
        else
            pair(job);
        if (wasteful)
            waste();
    }
}

static void job_open(void *arg)
{
    struct job *job = arg;
    struct hf_error err;

    must(hf_open(job->url, NULL, &job->client, &err), &err);
    if (job->opts.owner) /* The pairs are inside of this one. */
        must(hf_acquire(job->client, KEY, 0, &job->opts, &job->outer, &err),
             &err);
}

/* A directory is made here and not in job_open(), which a child may call that
 * leaves it behind. */
static void job_place(struct job *job, const char *what)
{
    const char *url = getenv("HF_TEST_URL");

    if (!strncmp(what, "mem", 3))
        snprintf(job->url, sizeof(job->url), "mem:");
    else if (!strncmp(what, "file", 4))
        snprintf(job->url, sizeof(job->url), "file:%s", bench_scratch(NULL));
    else if (!strncmp(what, "sqlite", 6))
        snprintf(job->url, sizeof(job->url), "sqlite:%s/locks.db?keep=off",
                 bench_scratch(NULL));
    else if (url) /* How often one looks while awake is up to the clock. */
        snprintf(job->url, sizeof(job->url), "%s?spin_us=0", url);
    else
        bench_die("no HF_TEST_URL");
}

/* NAME, NAME-linger, NAME-owner (inside another one of the same owner) or
 * NAME-started. */
static void job_parse(struct job *job, const char *what)
{
    job_place(job, what);
    job->opts = (struct hf_lock_opts)HF_LOCK_OPTS_INIT;
    job->opts.ttl_ms = 600000;
    if (strstr(what, "-linger"))
        job->opts.linger_ms = 300000;
    if (strstr(what, "-owner"))
        job->opts.owner = "request-4711";
    job->started = strstr(what, "-started");
}

int main(int argc, char **argv)
{
    struct job job = {0};
    struct trace_work work = {job_open, cost_work, &job, OPS};
    double calls;

    if (argc < 3)
        return fprintf(stderr, "usage: cost WHAT run|calls [waste]\n"), 64;
    job_parse(&job, argv[1]);
    wasteful = argc > 3;
    if (!strcmp(argv[2], "calls")) {
        calls = trace_calls(argv[1], &work);
        if (calls < 0)
            return 77;
        printf("calls %.3f\n", calls);
        return 0;
    }
    job_open(&job);
    cost_work(&job, WARM);
    cost_work(&job, OPS);
    return 0;
}
