/* SPDX-License-Identifier: MIT
 *
 * eventloop.c - many locks, one thread, one poll(2).
 *
 *     eventloop URL KEY...
 *
 * For programs that must not block: the requests are started, and everything
 * that happens to them and to the locks they get arrives as events behind one
 * descriptor, which fits into poll, epoll, libuv, libev, GLib or whatever
 * drives the program.  Here each lock is held for 50 ms and given back; the
 * program ends when every key has had its turn.  Name a key twice and the two
 * requests take turns.
 */
#include <holdfast.h>

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { HOLD_MS = 50, WAIT_MS = 10000 };

struct job {
    const char *key;
    hf_lock *lock;     /* NULL while waiting and when done */
    int64_t finish_at; /* when to give it back */
};

static int open_jobs; /* not done yet */
static int failures;

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Count the job as done. */
static void job_end(struct job *job, bool failed)
{
    job->lock = NULL;
    failures += failed;
    open_jobs--;
}

/* Begin to give the lock back.  An event tells the outcome; a loop that does not
 * care passes NULL instead of `request`. */
static void job_release(struct job *job)
{
    hf_request *request;

    hf_release_start(job->lock, job, &request);
    job->lock = NULL;
    if (!request) /* no memory for the event */
        job_end(job, true);
}

/* `user` is what hf_acquire_start() was given: our job. */
static void on_event(const struct hf_event *event)
{
    struct job *job = event->user;

    switch (event->type) {
    case HF_GRANTED:
        job->lock = event->lock;
        job->finish_at = now_ms() + HOLD_MS;
        printf("%s: granted, fence %" PRIu64 "\n", job->key,
               hf_fence(job->lock));
        break;
    case HF_FAILED:
        printf("%s: %s\n", job->key, event->error.text);
        job_end(job, true);
        break;
    case HF_AT_RISK:
        printf("%s: renewals fail, get ready to stop\n", job->key);
        break;
    case HF_GONE:
        printf("%s: lost, %s\n", job->key, hf_loss_name(event->reason));
        hf_release(job->lock, NULL); /* does not wait: the lock is lost */
        job_end(job, true);
        break;
    case HF_ANSWERED:
        job_end(job, event->error.status != HF_OK);
        break;
    case HF_CHANGED:
        break; /* nothing here asks for it */
    }
}

/* End the jobs whose time has come.  Returns the time until the next one, or
 * -1, which is what poll(2) wants to be told. */
static int run_timers(struct job *jobs, int count)
{
    int64_t left, next = -1;
    int i;

    for (i = 0; i < count; i++) {
        if (!jobs[i].lock)
            continue;
        left = jobs[i].finish_at - now_ms();
        if (left <= 0)
            job_release(&jobs[i]);
        else if (next < 0 || left < next)
            next = left;
    }
    return (int)next;
}

static hf_status start(hf_client *client, struct job *job)
{
    hf_request *request; /* only needed to cancel it */
    struct hf_error err;
    hf_status st;

    st = hf_acquire_start(client, job->key, WAIT_MS, NULL, job, &request, &err);
    if (st)
        fprintf(stderr, "eventloop: %s\n", err.text);
    return st;
}

int main(int argc, char **argv)
{
    int i, timeout, count = argc - 2;
    struct pollfd wait = {.events = POLLIN};
    struct hf_event event = HF_EVENT_INIT;
    hf_client *client;
    struct hf_error err;
    struct job *jobs;

    if (count < 1) {
        fprintf(stderr, "usage: eventloop URL KEY...\n");
        return 64;
    }
    jobs = calloc((size_t)count, sizeof(*jobs));
    if (!jobs || hf_open(argv[1], NULL, &client, &err)) {
        fprintf(stderr, "eventloop: %s\n", jobs ? err.text : "no memory");
        free(jobs);
        return EXIT_FAILURE;
    }

    for (i = 0; i < count; i++) {
        jobs[i].key = argv[i + 2];
        open_jobs++;
        if (start(client, &jobs[i]))
            job_end(&jobs[i], true);
    }

    /* The loop.  Take all events there are: the descriptor stays readable
     * until the last one has been taken. */
    wait.fd = hf_events_fd(client);
    while (open_jobs > 0) {
        timeout = run_timers(jobs, count);
        if (open_jobs > 0 && poll(&wait, 1, timeout) > 0)
            while (hf_next_event(client, &event))
                on_event(&event);
    }

    hf_close(client);
    free(jobs);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
