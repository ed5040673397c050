/* SPDX-License-Identifier: MIT
 *
 * etcd_group.c - removals of many threads, together.
 *
 * A key is removed by a transaction that compares its revision.  For etcd the
 * price of that is the call, the entry in its log and the copy of all recent
 * writes that each transaction begins with, not the deed.  So while some are
 * under way those who come next wait for the first to come back, and then one
 * of them takes all of theirs along: one transaction of many, each with its own
 * comparison and its own answer.  Who is alone, or among a few, waits for
 * nobody.
 *
 * Locks are not taken in this way: keys that are made in one transaction have
 * one revision, and who of two was first could not be told.
 *
 * INVARIANTS
 *  (1) A job is in the list, or taken by who sends it, or done.
 *  (2) While jobs are in the list, GROUP_FREE calls are under way, or one of
 *      those who wait is awake to begin another.
 *  (3) A call ends by the first deadline of its jobs, so nobody needs to leave
 *      one that was taken.
 */
#include "etcd.h"

#include "../env.h"
#include "../mem.h"

#include "../banned.h"

/* So many calls may be under way before removals are gathered. */
#define GROUP_FREE 4

/* How many go together: etcd takes 128 operations. */
#define GROUP_MAX 48

/* Who has less time than this goes alone. */
#define GROUP_LEFT_MS 1000

struct etcd_job {
    struct hfi_link link; /* in conn->jobs */
    struct etcd_job *next;
    pthread_cond_t cond;
    const char *name;
    int64_t revision, deadline;
    hf_status st;
    bool taken, done;
    bool alone; /* its group was refused, for one of them */
    struct hf_error err;
};

/* ---- one call ---------------------------------------------------------- */

/* A transaction that removes one key. */
struct removal {
    Pb__TxnRequest txn;
    Pb__Compare compare, *compares[1];
    Pb__DeleteRangeRequest gone;
    Pb__RequestOp op, *ops[1];
    Pb__RequestOp outer; /* around it, when it is one of many */
};

static void removal_make(struct removal *r, const struct etcd_job *job)
{
    pb__txn_request__init(&r->txn);
    pb__compare__init(&r->compare);
    pb__delete_range_request__init(&r->gone);
    pb__request_op__init(&r->op);
    pb__request_op__init(&r->outer);
    r->compare.key = r->gone.key = etcd_text(job->name);
    r->compare.target = 1;
    r->compare.result = job->revision ? 0 : 1;
    r->compare.with_case = PB__COMPARE__WITH_CREATE_REVISION;
    r->compare.create_revision = job->revision;
    r->op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    r->op.delete_range = &r->gone;
    r->compares[0] = &r->compare;
    r->ops[0] = &r->op;
    r->txn.n_compare = r->txn.n_success = 1;
    r->txn.compare = r->compares;
    r->txn.success = r->ops;
    r->outer.request_case = PB__REQUEST_OP__REQUEST_TXN;
    r->outer.txn = &r->txn;
}

static hf_status remove_one(struct etcd_conn *ec, struct etcd_job *job,
                            struct hf_error *err)
{
    ProtobufCMessage *answer = NULL;
    struct removal r;
    hf_status st;

    removal_make(&r, job);
    st = etcd_call(ec, ETCD_TXN, &r.txn.base, &pb__txn_response__descriptor,
                   &answer, job->deadline, err);
    if (!st && !((Pb__TxnResponse *)answer)->succeeded)
        st = HF_LOST;
    etcd_free(answer);
    return st;
}

/* What became of each. */
static void group_judge(struct etcd_conn *ec, struct etcd_job **jobs, size_t n,
                        const Pb__TxnResponse *answer)
{
    size_t i;

    for (i = 0; i < n; i++) {
        const Pb__ResponseOp *op =
            i < answer->n_responses ? answer->responses[i] : NULL;

        if (!op || op->response_case != PB__RESPONSE_OP__RESPONSE_TXN)
            jobs[i]->st = etcd_nonsense(ec, &jobs[i]->err);
        else
            jobs[i]->st = op->txn->succeeded ? HF_OK : HF_LOST;
    }
}

static void group_send(struct etcd_conn *ec, struct etcd_job **jobs, size_t n,
                       int64_t deadline)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    struct removal removals[GROUP_MAX];
    Pb__RequestOp *ops[GROUP_MAX];
    ProtobufCMessage *answer = NULL;
    struct hf_error err = {0};
    hf_status st;
    size_t i;

    for (i = 0; i < n; i++) {
        removal_make(&removals[i], jobs[i]);
        ops[i] = &removals[i].outer;
    }
    txn.n_success = n;
    txn.success = ops;
    st = etcd_call(ec, ETCD_TXN, &txn.base, &pb__txn_response__descriptor,
                   &answer, deadline, &err);
    if (!st)
        group_judge(ec, jobs, n, (Pb__TxnResponse *)answer);
    for (i = 0; i < n && st; i++) {
        jobs[i]->st = st;
        jobs[i]->err = err;
        /* It was refused for all: perhaps only one is not allowed. */
        jobs[i]->alone = st != HF_UNAVAILABLE && st != HF_UNCERTAIN;
    }
    etcd_free(answer);
}

/* ---- who sends --------------------------------------------------------- */

/* With the mutex held, as all of these. */
static struct etcd_job *job_new(struct etcd_conn *ec)
{
    struct etcd_job *job = ec->spare;

    if (job) {
        ec->spare = job->next;
    } else {
        job = hfi_alloc(sizeof(*job));
        if (!job)
            return NULL;
        pthread_cond_init(&job->cond, NULL);
        hfi_link_init(&job->link);
    }
    job->taken = job->done = job->alone = false;
    return job;
}

static void job_put(struct etcd_conn *ec, struct etcd_job *job)
{
    job->next = ec->spare;
    ec->spare = job;
}

/* (2) */
static void group_next(struct etcd_conn *ec)
{
    if (!hfi_link_alone(&ec->jobs) && ec->flights < GROUP_FREE)
        pthread_cond_signal(
            &hfi_container(ec->jobs.next, struct etcd_job, link)->cond);
}

/* Send ours and with it what others have to send.  Jobs are never freed while
 * the client lives, so they can be told after the mutex was let go. */
static void group_lead(struct etcd_conn *ec, struct etcd_job *own)
{
    struct etcd_job *jobs[GROUP_MAX] = {own};
    int64_t deadline = own->deadline, soon = hfi_now() + GROUP_LEFT_MS;
    struct hfi_link *at, *next;
    size_t i, n = 1;

    ec->flights++;
    hfi_link_remove(&own->link);
    for (at = ec->jobs.next;
         at != &ec->jobs && n < GROUP_MAX && deadline > soon; at = next) {
        struct etcd_job *job = hfi_container(at, struct etcd_job, link);

        next = at->next;
        if (job->deadline <= soon)
            continue;
        if (job->deadline < deadline)
            deadline = job->deadline; /* (3) */
        hfi_link_remove(&job->link);
        job->taken = true;
        jobs[n++] = job;
    }
    pthread_mutex_unlock(&ec->group_mu);
    if (n > 1)
        group_send(ec, jobs, n, deadline);
    else
        own->st = remove_one(ec, own, &own->err);
    pthread_mutex_lock(&ec->group_mu);
    for (i = 0; i < n; i++)
        jobs[i]->done = true;
    ec->flights--;
    group_next(ec);
    pthread_mutex_unlock(&ec->group_mu);
    for (i = 1; i < n; i++)
        pthread_cond_signal(&jobs[i]->cond);
    pthread_mutex_lock(&ec->group_mu);
}

/* Until it is done, by us or by another.  False: not sent in time. */
static bool job_run(struct etcd_conn *ec, struct etcd_job *job)
{
    struct timespec ts;

    hfi_monotonic(job->deadline, &ts);
    hfi_link_append(&ec->jobs, &job->link);
    while (!job->done) {
        if (job->taken)
            pthread_cond_wait(&job->cond, &ec->group_mu);
        else if (ec->flights < GROUP_FREE)
            group_lead(ec, job);
        else if (pthread_cond_clockwait(&job->cond, &ec->group_mu,
                                        CLOCK_MONOTONIC, &ts) &&
                 !job->taken) {
            hfi_link_remove(&job->link);
            group_next(ec); /* It may have been our turn. */
            return false;
        }
    }
    return true;
}

hf_status etcd_remove(struct etcd_conn *ec, const char *name, int64_t revision,
                      int64_t deadline, struct hf_error *err)
{
    struct etcd_job *job;
    bool alone = false;
    hf_status st;

    pthread_mutex_lock(&ec->group_mu);
    job = job_new(ec);
    if (!job) {
        pthread_mutex_unlock(&ec->group_mu);
        return hfi_nomem(err);
    }
    job->name = name;
    job->revision = revision;
    job->deadline = deadline;
    st = HF_UNAVAILABLE;
    if (!job_run(ec, job)) {
        hfi_fail(err, st, "%s: not sent in time", ec->base.endpoint);
    } else {
        st = job->st;
        alone = job->alone;
        if (st && st != HF_LOST && err)
            *err = job->err;
    }
    if (alone) {
        pthread_mutex_unlock(&ec->group_mu);
        st = remove_one(ec, job, err);
        pthread_mutex_lock(&ec->group_mu);
    }
    job_put(ec, job);
    pthread_mutex_unlock(&ec->group_mu);
    return st;
}

void etcd_group_close(struct etcd_conn *ec)
{
    struct etcd_job *job;

    while ((job = ec->spare)) {
        ec->spare = job->next;
        pthread_cond_destroy(&job->cond);
        hfi_free(job);
    }
}
