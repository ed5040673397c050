/* SPDX-License-Identifier: MIT
 *
 * combine.c - transactions of many threads, together.
 *
 * For etcd the price of a transaction that writes is the call, the entry in its
 * log and the copy of all recent writes that each of them begins with, not the
 * deed.  So while some are under way those who come next wait for the first to
 * come back, and then one of them takes all of theirs along: one transaction of
 * many, each with its own comparison and its own answer.  Who is alone, or
 * among a few, waits for nobody.
 *
 * Keys that are made in one transaction have one revision, and who of two was
 * first could not be told.  So two that take the same lock never go together.
 *
 * INVARIANTS
 *  (1) A job is in the list, or taken by who sends it, or done.
 *  (2) While jobs are in the list, GROUP_FREE calls are under way, or one of
 *      those who wait is awake to begin another.
 *  (3) A call ends by the first deadline of its jobs, so nobody needs to leave
 *      one that was taken.
 *  (4) Of the jobs of one call no two have the same `apart`.
 */
#include "etcd.h"

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* So many calls may be under way before others are gathered. */
#define GROUP_FREE 4

/* How many go together: etcd takes 128 operations, those of the longest of them
 * counted with it. */
#define GROUP_MAX 48

/* How many are looked at for that. */
#define GROUP_LOOK 96

/* Who has less time than this goes alone. */
#define GROUP_LEFT_MS 1000

struct etcd_job {
    struct hfi_link link; /* in conn->jobs */
    struct etcd_job *next;
    pthread_cond_t cond;
    Pb__TxnRequest *txn; /* the caller's */
    Pb__RequestOp outer; /* around it, when it is one of many */
    const char *apart;   /* or NULL */
    int64_t deadline;
    hf_status st;
    Pb__TxnResponse *answer;
    bool taken, done;
    bool alone; /* its group was refused, for one of them */
    struct hf_error err;
};

/* ---- one call ---------------------------------------------------------- */

static hf_status job_send(struct etcd_conn *ec, struct etcd_job *job,
                          struct hf_error *err)
{
    ProtobufCMessage *answer = NULL;
    hf_status st =
        etcd_call(ec, ETCD_TXN, &job->txn->base, &pb__txn_response__descriptor,
                  &answer, job->deadline, err);

    job->answer = (Pb__TxnResponse *)answer;
    return st;
}

/* Give each its answer.  Only the outer one says at which revision it was. */
static void group_judge(struct etcd_conn *ec, struct etcd_job **jobs, size_t n,
                        Pb__GroupResponse *answer)
{
    size_t i;

    for (i = 0; i < n; i++) {
        Pb__GroupOp *op = i < answer->n_responses ? answer->responses[i] : NULL;

        if (!op || op->response_case != PB__GROUP_OP__RESPONSE_TXN ||
            !op->txn->header || !answer->header) {
            jobs[i]->st = etcd_nonsense(ec, &jobs[i]->err);
            continue;
        }
        jobs[i]->st = HF_OK;
        jobs[i]->answer = op->txn;
        jobs[i]->answer->header->revision = answer->header->revision;
        op->response_case = PB__GROUP_OP__RESPONSE__NOT_SET;
    }
}

static void group_send(struct etcd_conn *ec, struct etcd_job **jobs, size_t n,
                       int64_t deadline)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    Pb__RequestOp *ops[GROUP_MAX];
    ProtobufCMessage *answer = NULL;
    struct hf_error err = {0};
    hf_status st;
    size_t i;

    for (i = 0; i < n; i++) {
        pb__request_op__init(&jobs[i]->outer);
        jobs[i]->outer.request_case = PB__REQUEST_OP__REQUEST_TXN;
        jobs[i]->outer.txn = jobs[i]->txn;
        ops[i] = &jobs[i]->outer;
    }
    txn.n_success = n;
    txn.success = ops;
    st = etcd_call(ec, ETCD_TXN, &txn.base, &pb__group_response__descriptor,
                   &answer, deadline, &err);
    if (!st)
        group_judge(ec, jobs, n, (Pb__GroupResponse *)answer);
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
    job->answer = NULL;
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

/* (4) */
static bool job_fits(const struct etcd_job *job, struct etcd_job **jobs,
                     size_t n)
{
    while (job->apart && n--)
        if (jobs[n]->apart && !strcmp(jobs[n]->apart, job->apart))
            return false;
    return true;
}

/* Take what others have to send along with the first; how many it is then, and
 * by when. */
static size_t group_gather(struct etcd_conn *ec, struct etcd_job **jobs,
                           int64_t *deadline)
{
    int64_t soon = hfi_now() + GROUP_LEFT_MS;
    struct hfi_link *at, *next;
    size_t n = 1, looked = 0;

    for (at = ec->jobs.next; at != &ec->jobs && n < GROUP_MAX &&
                             looked<GROUP_LOOK && * deadline> soon;
         at = next, looked++) {
        struct etcd_job *job = hfi_container(at, struct etcd_job, link);

        next = at->next;
        if (job->deadline <= soon || !job_fits(job, jobs, n))
            continue;
        if (job->deadline < *deadline)
            *deadline = job->deadline; /* (3) */
        hfi_link_remove(&job->link);
        job->taken = true;
        jobs[n++] = job;
    }
    return n;
}

/* Send ours and with it what others have to send.  Jobs are never freed while
 * the client lives, so they can be told after the mutex was let go. */
static void group_lead(struct etcd_conn *ec, struct etcd_job *own)
{
    struct etcd_job *jobs[GROUP_MAX] = {own};
    int64_t deadline = own->deadline;
    size_t i, n;

    ec->flights++;
    hfi_link_remove(&own->link);
    n = group_gather(ec, jobs, &deadline);
    pthread_mutex_unlock(&ec->group_mu);
    if (n > 1)
        group_send(ec, jobs, n, deadline);
    else
        own->st = job_send(ec, own, &own->err);
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

hf_status etcd_txn(struct etcd_conn *ec, Pb__TxnRequest *txn, const char *apart,
                   Pb__TxnResponse **ret, int64_t deadline,
                   struct hf_error *err)
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
    job->txn = txn;
    job->apart = apart;
    job->deadline = deadline;
    st = HF_UNAVAILABLE;
    if (!job_run(ec, job)) {
        hfi_fail(err, st, "%s: not sent in time", ec->base.endpoint);
    } else {
        st = job->st;
        alone = job->alone;
        if (st && err)
            *err = job->err;
    }
    if (alone) {
        pthread_mutex_unlock(&ec->group_mu);
        st = job_send(ec, job, err);
        pthread_mutex_lock(&ec->group_mu);
    }
    *ret = job->answer;
    job_put(ec, job);
    pthread_mutex_unlock(&ec->group_mu);
    return st || *ret ? st : etcd_nonsense(ec, err);
}

/* Does the answer say that there is no key of that name? */
static bool remove_is_absent(const Pb__TxnResponse *answer)
{
    const Pb__ResponseOp *op =
        answer->n_responses == 1 ? answer->responses[0] : NULL;

    return op && op->response_case == PB__RESPONSE_OP__RESPONSE_RANGE &&
           !op->range->n_kvs;
}

hf_status etcd_remove(struct etcd_conn *ec, const char *name, const char *token,
                      int64_t revision, bool *absent, int64_t deadline,
                      struct hf_error *err)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    struct etcd_bears bears;
    Pb__Compare made = PB__COMPARE__INIT;
    Pb__Compare *compares[] = {&bears.above, &bears.below, &made};
    Pb__DeleteRangeRequest gone = PB__DELETE_RANGE_REQUEST__INIT;
    Pb__RangeRequest look = PB__RANGE_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};
    Pb__RequestOp look_op = PB__REQUEST_OP__INIT, *look_ops[] = {&look_op};
    Pb__TxnResponse *answer = NULL;
    hf_status st;

    gone.key = look.key = etcd_text(name);
    etcd_bears(&bears, gone.key, token);
    etcd_compare(&made, gone.key, revision);
    op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    op.delete_range = &gone;
    look.keys_only = 1;
    look_op.request_case = PB__REQUEST_OP__REQUEST_RANGE;
    look_op.range = &look;
    txn.n_compare = revision ? 3 : 2;
    txn.n_success = txn.n_failure = 1;
    txn.compare = compares;
    txn.success = ops;
    txn.failure = look_ops;
    st = etcd_txn(ec, &txn, NULL, &answer, deadline, err);
    if (!st && !answer->succeeded)
        st = HF_LOST;
    *absent = !st || (st == HF_LOST && answer && remove_is_absent(answer));
    etcd_free(answer);
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
