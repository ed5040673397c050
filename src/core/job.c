/* SPDX-License-Identifier: MIT
 *
 * job.c - requests of event loops that get no lock: to inspect, to check, to
 * list; and the outcome of a release.
 *
 * A job is a question that one worker asks once; HF_ANSWERED tells the end of
 * it.  JOBS_AT_ONCE workers at most are at jobs, so that however many are asked
 * of a silent service, acquisitions and take-backs have the others.
 *
 * INVARIANTS
 *  (1) A job has one event.  A job that is cancelled has it at once, and what
 *      the worker brings later is thrown away: nothing of the caller's is
 *      written after the event.
 *  (2) A job that a worker is at is freed by that worker, if its event was
 *      taken before the call returned.
 *  (3) A job that waits for a worker longer than a request may last is not asked
 *      any more.  So however many are begun on a silent service, each ends within
 *      the time of two requests.
 */
#include "job.h"

#include "base/alloc.h"

#include "base/banned.h"

#define JOBS_AT_ONCE 4

struct hfi_job *hfi_job_new(struct hf_client *c, enum hfi_job_kind kind,
                            const char *key, void *user)
{
    size_t len = strlen(key) + 1;
    struct hfi_job *job = hfi_alloc(sizeof(*job) + len);

    if (!job)
        return NULL;
    job->kind = kind;
    job->face.client = c;
    job->face.job = job;
    job->face.user = user;
    hfi_notice_init(&job->face.notice);
    hfi_link_init(&job->link);
    hfi_link_init(&job->found);
    memcpy(job->key, key, len);
    return job;
}

void hfi_job_free(struct hfi_job *job)
{
    struct hfi_found *found;

    while (!hfi_link_alone(&job->found)) {
        found = hfi_container(job->found.next, struct hfi_found, link);
        hfi_link_remove(&found->link);
        hfi_free(found);
    }
    hfi_link_remove(&job->link);
    hfi_free(job);
}

/* With the mutex held: tell the end, once.  job.c (1) */
void hfi_job_over(struct hfi_job *job, hf_status st, const struct hf_error *err)
{
    if (atomic_load(&job->over))
        return;
    atomic_store(&job->over, true);
    job->face.err.status = HF_OK;
    if (st)
        job->face.err = *err;
    hfi_notify(job->face.client, &job->face.notice, HF_ANSWERED);
}

hf_status hfi_job_start(struct hfi_job *job, struct hf_error *err)
{
    struct hf_client *c = job->face.client;
    hf_status st = HF_OK;

    pthread_mutex_lock(&c->mu);
    if (c->closing)
        st = hfi_fail(err, HF_INVALID, "the client is being closed");
    else if (!hfi_worker_start(c))
        st = hfi_fail(err, HF_SYSTEM, "no thread could be started");
    if (!st) {
        job->end = hfi_now() + c->timeout_ms;
        hfi_link_append(&c->jobs, &job->link);
        hfi_worker_call(c);
        if (atomic_load(&c->offline) == HFI_CONNECTING)
            hfi_keeper_by(c, job->end);
    }
    pthread_mutex_unlock(&c->mu);
    if (st)
        hfi_job_free(job);
    return st;
}

/* With the mutex held.  A release goes on, and so its event waits for it. */
void hfi_job_cancel(struct hf_request *face)
{
    struct hfi_job *job = face->job;
    struct hf_error err;

    if (atomic_load(&job->over) || job->kind == HFI_JOB_RELEASE)
        return;
    if (!job->running)
        hfi_link_remove(&job->link);
    hfi_job_over(job, hfi_fail(&err, HF_CANCELED, "canceled"), &err);
}

/* What hf_cancel() does to jobs. */
void hfi_jobs_cancel(struct hf_client *c)
{
    struct hfi_link *at, *next;

    for (at = c->jobs.next; at != &c->jobs; at = next) {
        next = at->next;
        hfi_job_cancel(&hfi_container(at, struct hfi_job, link)->face);
    }
    for (at = c->at_jobs.next; at != &c->at_jobs; at = at->next)
        hfi_job_cancel(&hfi_container(at, struct hfi_job, link)->face);
}

static bool job_found(void *arg, const char *key, const struct hf_info *info)
{
    struct hfi_job *job = arg;
    size_t len = strlen(key) + 1;
    struct hfi_found *found;

    if (atomic_load(&job->over))
        return false; /* cancelled */
    found = hfi_alloc(sizeof(*found) + len);
    if (!found) {
        job->info.size = 0; /* what tells job_ask() */
        return false;
    }
    found->info = *info;
    memcpy(found->key, key, len);
    hfi_link_append(&job->found, &found->link);
    return true;
}

/* In the worker's thread, without the mutex. */
static hf_status job_ask(struct hfi_job *job, struct hf_error *err)
{
    struct hf_client *c = job->face.client;
    hf_status st;

    switch (job->kind) {
    case HFI_JOB_INSPECT:
        return hfi_inspect(c, job->key, &job->info, err);
    case HFI_JOB_CHECK:
        return hfi_check(c, job->key, job->fence, err);
    case HFI_JOB_LIST:
        job->info.size = sizeof(job->info);
        st = hfi_list(c, job->key, job_found, job, err);
        return !st && !job->info.size ? hfi_nomem(err) : st;
    case HFI_JOB_RELEASE:
        break;
    }
    return HF_OK;
}

bool hfi_jobs_wait(const struct hf_client *c)
{
    return !hfi_link_alone(&c->jobs) && c->asking < JOBS_AT_ONCE &&
           atomic_load(&c->offline) != HFI_CONNECTING;
}

/* For the keeper, while the client is connecting: end the jobs that have waited
 * long enough for that, and say when the next has. */
int64_t hfi_jobs_expire(struct hf_client *c, int64_t now)
{
    struct hfi_job *job;
    struct hf_error err;

    while (!hfi_link_alone(&c->jobs)) {
        job = hfi_container(c->jobs.next, struct hfi_job, link);
        if (now < job->end)
            return job->end; /* They are in order. */
        hfi_link_remove(&job->link);
        hfi_job_over(job, hfi_connect_error(c, &err), &err);
    }
    return HFI_NEVER;
}

/* For a worker, with the mutex held, which is let go meanwhile: the first job
 * that waits. */
void hfi_job_step(struct hf_client *c)
{
    struct hfi_job *job = hfi_container(c->jobs.next, struct hfi_job, link);
    struct hf_error err = {0};
    hf_status st;

    hfi_link_remove(&job->link);
    hfi_link_append(&c->at_jobs, &job->link);
    job->running = true;
    c->asking++;
    pthread_mutex_unlock(&c->mu);
    if (hfi_now() < job->end)
        st = job_ask(job, &err);
    else
        st = hfi_fail(&err, HF_UNAVAILABLE,
                      "not asked in time: earlier requests of this client "
                      "still wait for the service"); /* job.c (3) */
    pthread_mutex_lock(&c->mu);
    c->asking--;
    job->running = false;
    hfi_link_remove(&job->link);
    if (job->gone)
        hfi_job_free(job); /* job.c (2) */
    else
        hfi_job_over(job, st, &err);
}

/* The event is taken, with the mutex held; the job is gone, but for a listing
 * that has something to say. */
void hfi_job_take(struct hf_request *face, struct hf_event *ret)
{
    struct hfi_job *job = face->job;
    struct hf_client *c = face->client;
    size_t known;

    hfi_notice_drop(c, &face->notice);
    ret->type = HF_ANSWERED;
    ret->request = face;
    ret->user = face->user;
    ret->error = face->err;
    if (job->kind == HFI_JOB_INSPECT && !face->err.status) {
        known = job->ret->size < sizeof(job->info) ? job->ret->size
                                                   : sizeof(job->info);
        job->info.size = job->ret->size;
        memcpy(job->ret, &job->info, known);
    }
    if (job->running)
        job->gone = true;
    else if (job->kind == HFI_JOB_LIST && !face->err.status)
        hfi_link_append(&c->listings, &job->link);
    else
        hfi_job_free(job);
}

/* Several threads may read one listing, until one of them is told its end. */
struct hfi_found *hfi_job_next(struct hfi_job *job)
{
    struct hf_client *c = job->face.client;
    struct hfi_found *found = NULL;

    pthread_mutex_lock(&c->mu);
    if (hfi_link_alone(&job->found)) {
        hfi_job_free(job);
    } else {
        found = hfi_container(job->found.next, struct hfi_found, link);
        hfi_link_remove(&found->link);
    }
    pthread_mutex_unlock(&c->mu);
    return found;
}

void hfi_job_end(struct hfi_job *job)
{
    struct hf_client *c = job->face.client;

    pthread_mutex_lock(&c->mu);
    hfi_job_free(job);
    pthread_mutex_unlock(&c->mu);
}

static void jobs_free(struct hfi_link *jobs)
{
    while (!hfi_link_alone(jobs))
        hfi_job_free(hfi_container(jobs->next, struct hfi_job, link));
}

/* For hf_close(), when no worker is left: what nobody has taken. */
void hfi_jobs_close(struct hf_client *c)
{
    struct hfi_notice *notice;
    struct hfi_link *at, *next;

    for (at = c->notices.next; at != &c->notices; at = next) {
        next = at->next;
        notice = hfi_container(at, struct hfi_notice, link);
        if (!(notice->pending & 1u << HF_ANSWERED))
            continue;
        hfi_notice_drop(c, notice);
        hfi_job_free(hfi_container(notice, struct hf_request, notice)->job);
    }
    jobs_free(&c->jobs);
    jobs_free(&c->listings);
}
