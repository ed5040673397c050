/* SPDX-License-Identifier: MIT
 *
 * job.c - calls that may wait for the service, in a thread of their own: the
 * screen never waits.  One at a time.
 */
#include "top.h"

#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>

static struct {
    pthread_mutex_t mu;
    hf_client *client;
    int fd;
    bool busy, ready;
    struct top_job job;
} job_state = {.mu = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

bool job_open(hf_client *client)
{
    job_state.client = client;
    job_state.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return job_state.fd >= 0;
}

int job_fd(void)
{
    return job_state.fd;
}

/* Those that are not kept are counted. */
static bool job_holder(void *arg, const struct hf_info *info)
{
    struct top_job *job = arg;

    if (job->count < JOB_HOLDERS)
        job->holders[job->count] = *info;
    job->count++;
    return true;
}

/* The same. */
static bool job_waiter(void *arg, const struct hf_waiter *waiter)
{
    struct top_job *job = arg;

    if (job->nwaiters < JOB_WAITERS)
        job->waiters[job->nwaiters] = *waiter;
    job->nwaiters++;
    return true;
}

static void *job_thread(void *arg)
{
    struct top_job *job = &job_state.job;

    (void)arg;
    if (job->kind == JOB_BREAK)
        job->st = hf_break(job_state.client, job->key, job->fence, &job->err);
    else
        job->st =
            hf_holders(job_state.client, job->key, job_holder, job, &job->err);
    if (job->kind == JOB_LOOK)
        job->queue_st = hf_waiters(job_state.client, job->key, job_waiter, job,
                                   &job->queue_err);
    job->at = cli_now();
    pthread_mutex_lock(&job_state.mu);
    job_state.ready = true;
    pthread_mutex_unlock(&job_state.mu);
    eventfd_write(job_state.fd, 1);
    return NULL;
}

bool job_start(enum top_job_kind kind, const char *key, uint64_t fence)
{
    pthread_t thread;

    if (job_state.busy)
        return false;
    memset(&job_state.job, 0, sizeof(job_state.job));
    job_state.job.kind = kind;
    job_state.job.fence = fence;
    snprintf(job_state.job.key, sizeof(job_state.job.key), "%s", key);
    job_state.busy = pthread_create(&thread, NULL, job_thread, NULL) == 0 &&
                     pthread_detach(thread) == 0;
    return job_state.busy;
}

bool job_take(struct top_job *ret)
{
    eventfd_t count;
    bool ready;

    pthread_mutex_lock(&job_state.mu);
    ready = job_state.ready;
    job_state.ready = false;
    pthread_mutex_unlock(&job_state.mu);
    if (!ready)
        return false;
    eventfd_read(job_state.fd, &count);
    *ret = job_state.job;
    job_state.busy = false;
    return true;
}
