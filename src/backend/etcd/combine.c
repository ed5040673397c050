/* SPDX-License-Identifier: MIT
 *
 * combine.c - transactions of many threads, together.
 *
 * For etcd the price of a transaction that writes is the call, the entry in its
 * log and the copy of all recent writes that each of them begins with, not the
 * deed.  So while some are under way those who come next wait for the first to
 * come back, and then one of them takes all of theirs along: one transaction of
 * many, each with its own comparison and its own answer.  A request that is
 * alone, or among a few, waits for nobody.
 *
 * Keys that are made in one transaction have one revision, and who of two was
 * first could not be told.  So two that take the same lock never go together.
 *
 * INVARIANTS
 *  (1) A request is in the list, or taken by who sends it, or done.
 *  (2) While requests are in the list, COMBINE_FREE calls are under way, or the
 *      first of those who wait is awake, or wakes when another may begin.
 *  (3) A call ends by the first deadline of its requests, so nobody needs to
 *      leave one that was taken.  The others end little later: none has much less
 *      time because of another.
 *  (4) Of the requests of one call no two have the same `conflict_key`.
 */
#include "etcd.h"

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* So many calls may be under way before others are gathered. */
#define COMBINE_FREE 4

/* While so many requests are under way, the next call begins when one is
 * answered, or so long after the last one: a near etcd has answered by then, and
 * gets more done in fewer transactions; a far one, or one that is silent for one
 * call, is not waited for. */
#define COMBINE_MANY    8
#define COMBINE_NEAR_MS 10

/* How many go together: etcd takes 128 operations, those of the longest of them
 * counted with it. */
#define COMBINE_MAX 48

/* How many are considered for that. */
#define COMBINE_SCAN 96

/* A request with less time than this goes alone; and those that go together must
 * be answered by times that are no farther apart than this. */
#define COMBINE_LEFT_MS  1000
#define COMBINE_APART_MS 100

struct etcd_request {
    struct hfi_link link; /* in conn->requests */
    struct etcd_request *next;
    struct hfi_cond cond;
    Pb__TxnRequest *txn;      /* the caller's */
    Pb__RequestOp outer;      /* around it, when it is one of many */
    const char *conflict_key; /* or NULL */
    int64_t deadline;
    hf_status st;
    Pb__TxnResponse *answer;
    bool taken, done;
    bool alone; /* its call was refused, for one of them */
    struct hf_error err;
};

/* ---- one call ---------------------------------------------------------- */

static hf_status request_send(struct etcd_conn *ec,
                              struct etcd_request *request,
                              struct hf_error *err)
{
    ProtobufCMessage *answer = NULL;
    hf_status st = etcd_call(ec, ETCD_TXN, &request->txn->base,
                             &pb__txn_response__descriptor, &answer,
                             request->deadline, err);

    request->answer = (Pb__TxnResponse *)answer;
    return st;
}

/* Give each its answer.  Only the outer one says at which revision it was. */
static void combine_judge(struct etcd_conn *ec, struct etcd_request **requests,
                          size_t n, Pb__CombinedResponse *answer)
{
    size_t i;

    for (i = 0; i < n; i++) {
        Pb__CombinedOp *op =
            i < answer->n_responses ? answer->responses[i] : NULL;

        if (!op || op->response_case != PB__COMBINED_OP__RESPONSE_TXN ||
            !op->txn->header || !answer->header) {
            requests[i]->st = etcd_bad_reply(ec, &requests[i]->err);
            continue;
        }
        requests[i]->st = HF_OK;
        requests[i]->answer = op->txn;
        requests[i]->answer->header->revision = answer->header->revision;
        op->response_case = PB__COMBINED_OP__RESPONSE__NOT_SET;
    }
}

static void combine_send(struct etcd_conn *ec, struct etcd_request **requests,
                         size_t n, int64_t deadline)
{
    Pb__TxnRequest txn = PB__TXN_REQUEST__INIT;
    Pb__RequestOp *ops[COMBINE_MAX];
    ProtobufCMessage *answer = NULL;
    struct hf_error err = {0};
    hf_status st;
    size_t i;

    for (i = 0; i < n; i++) {
        pb__request_op__init(&requests[i]->outer);
        requests[i]->outer.request_case = PB__REQUEST_OP__REQUEST_TXN;
        requests[i]->outer.txn = requests[i]->txn;
        ops[i] = &requests[i]->outer;
    }
    txn.n_success = n;
    txn.success = ops;
    st = etcd_call(ec, ETCD_TXN, &txn.base, &pb__combined_response__descriptor,
                   &answer, deadline, &err);
    if (!st)
        combine_judge(ec, requests, n, (Pb__CombinedResponse *)answer);
    for (i = 0; i < n && st; i++) {
        requests[i]->st = st;
        requests[i]->err = err;
        /* It was refused for all: perhaps only one is not allowed. */
        requests[i]->alone = st != HF_UNAVAILABLE && st != HF_UNCERTAIN;
    }
    etcd_free(answer);
}

/* ---- who sends --------------------------------------------------------- */

/* With the mutex held, as all of these. */
static struct etcd_request *request_new(struct etcd_conn *ec)
{
    struct etcd_request *request = ec->spare;

    if (request) {
        ec->spare = request->next;
    } else {
        request = hfi_alloc(sizeof(*request));
        if (!request)
            return NULL;
        hfi_cond_init(&request->cond);
        hfi_link_init(&request->link);
    }
    request->taken = request->done = request->alone = false;
    request->answer = NULL;
    return request;
}

static void request_put(struct etcd_conn *ec, struct etcd_request *request)
{
    request->next = ec->spare;
    ec->spare = request;
}

/* (2) */
static void combine_next(struct etcd_conn *ec)
{
    if (!hfi_link_alone(&ec->requests) && ec->in_flight < COMBINE_FREE)
        hfi_cond_wake_one(
            &hfi_container(ec->requests.next, struct etcd_request, link)->cond);
}

/* When another call may begin: 0, now. */
static int64_t combine_free_at(const struct etcd_conn *ec)
{
    if (ec->in_flight >= COMBINE_FREE)
        return HFI_NEVER;
    return ec->in_flight && ec->carried >= COMBINE_MANY
               ? ec->begun_at + COMBINE_NEAR_MS
               : 0;
}

/* (4) */
static bool request_fits(const struct etcd_request *request,
                         struct etcd_request **requests, size_t n)
{
    while (request->conflict_key && n--)
        if (requests[n]->conflict_key &&
            !strcmp(requests[n]->conflict_key, request->conflict_key))
            return false;
    return true;
}

/* Take what others have to send along with the first; how many it is then, and
 * by when. */
static size_t combine_batch(struct etcd_conn *ec,
                            struct etcd_request **requests, int64_t *deadline)
{
    int64_t soon = hfi_now() + COMBINE_LEFT_MS, first = *deadline;
    struct hfi_link *at, *next;
    size_t n = 1, scanned = 0;

    for (at = ec->requests.next; at != &ec->requests && n < COMBINE_MAX &&
                                 scanned<COMBINE_SCAN && * deadline> soon;
         at = next, scanned++) {
        struct etcd_request *request =
            hfi_container(at, struct etcd_request, link);

        next = at->next;
        if (request->deadline <= soon ||
            request->deadline > first + COMBINE_APART_MS ||
            request->deadline < first - COMBINE_APART_MS ||
            !request_fits(request, requests, n))
            continue;
        if (request->deadline < *deadline)
            *deadline = request->deadline; /* (3) */
        hfi_link_remove(&request->link);
        request->taken = true;
        requests[n++] = request;
    }
    return n;
}

/* Send ours and with it what others have to send.  Jobs are never freed while
 * the client lives, so they can be told after the mutex was let go. */
static void combine_lead(struct etcd_conn *ec, struct etcd_request *own)
{
    struct etcd_request *requests[COMBINE_MAX] = {own};
    int64_t deadline = own->deadline;
    size_t i, n;

    ec->in_flight++;
    ec->begun_at = hfi_now();
    hfi_link_remove(&own->link);
    n = combine_batch(ec, requests, &deadline);
    ec->carried += n;
    combine_next(ec);
    pthread_mutex_unlock(&ec->combine_mu);
    if (n > 1)
        combine_send(ec, requests, n, deadline);
    else
        own->st = request_send(ec, own, &own->err);
    pthread_mutex_lock(&ec->combine_mu);
    for (i = 0; i < n; i++)
        requests[i]->done = true;
    ec->in_flight--;
    ec->carried -= n;
    combine_next(ec);
    pthread_mutex_unlock(&ec->combine_mu);
    for (i = 1; i < n; i++)
        hfi_cond_wake_one(&requests[i]->cond);
    pthread_mutex_lock(&ec->combine_mu);
}

/* Until another call may begin, if it is the first; or the deadline.  (2) */
static void request_wait(struct etcd_conn *ec, struct etcd_request *request,
                         int64_t free_at)
{
    int64_t until = request->deadline;

    if (ec->requests.next == &request->link && free_at < until)
        until = free_at;
    hfi_cond_wait(&request->cond, &ec->combine_mu, until);
}

/* Until it is done, by us or by another.  False: not sent in time. */
static bool request_run(struct etcd_conn *ec, struct etcd_request *request)
{
    int64_t free_at;

    hfi_link_append(&ec->requests, &request->link);
    while (!request->done) {
        free_at = combine_free_at(ec);
        if (request->taken)
            hfi_cond_wait(&request->cond, &ec->combine_mu, HFI_NEVER);
        else if (!free_at || hfi_now() >= free_at)
            combine_lead(ec, request);
        else if (hfi_left_ms(request->deadline))
            request_wait(ec, request, free_at);
        else {
            hfi_link_remove(&request->link);
            combine_next(ec); /* It may have been our turn. */
            return false;
        }
    }
    return true;
}

hf_status etcd_txn(struct etcd_conn *ec, Pb__TxnRequest *txn,
                   const char *conflict_key, Pb__TxnResponse **ret,
                   int64_t deadline, struct hf_error *err)
{
    struct etcd_request *request;
    bool alone = false;
    hf_status st;

    pthread_mutex_lock(&ec->combine_mu);
    request = request_new(ec);
    if (!request) {
        pthread_mutex_unlock(&ec->combine_mu);
        return hfi_nomem(err);
    }
    request->txn = txn;
    request->conflict_key = conflict_key;
    request->deadline = deadline;
    st = HF_UNAVAILABLE;
    if (!request_run(ec, request)) {
        hfi_fail(err, st, "%s: not sent in time", ec->base.endpoint);
    } else {
        st = request->st;
        alone = request->alone;
        if (st && err)
            *err = request->err;
    }
    if (alone) {
        pthread_mutex_unlock(&ec->combine_mu);
        st = request_send(ec, request, err);
        pthread_mutex_lock(&ec->combine_mu);
    }
    *ret = request->answer;
    request_put(ec, request);
    pthread_mutex_unlock(&ec->combine_mu);
    return st || *ret ? st : etcd_bad_reply(ec, err);
}

/* Does the answer say that there is no key of that name? */
static bool remove_is_absent(const Pb__TxnResponse *answer)
{
    const Pb__ResponseOp *op =
        answer->n_responses == 1 ? answer->responses[0] : NULL;

    return op && op->response_case == PB__RESPONSE_OP__RESPONSE_RANGE &&
           !op->range->n_kvs;
}

/* Had an operator broken what was removed? */
static bool remove_was_broken(const Pb__TxnResponse *answer)
{
    const Pb__ResponseOp *op =
        answer->n_responses == 1 ? answer->responses[0] : NULL;
    struct etcd_words words;

    if (!op || op->response_case != PB__RESPONSE_OP__RESPONSE_DELETE_RANGE ||
        op->delete_range->n_prev_kvs != 1)
        return false;
    etcd_read_value(op->delete_range->prev_kvs[0]->value, &words);
    return words.broken;
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
    Pb__RangeRequest read = PB__RANGE_REQUEST__INIT;
    Pb__RequestOp op = PB__REQUEST_OP__INIT, *ops[] = {&op};
    Pb__RequestOp read_op = PB__REQUEST_OP__INIT, *read_ops[] = {&read_op};
    Pb__TxnResponse *answer = NULL;
    hf_status st;

    gone.key = read.key = etcd_text(name);
    etcd_bears(&bears, gone.key, token);
    etcd_compare(&made, gone.key, revision);
    op.request_case = PB__REQUEST_OP__REQUEST_DELETE_RANGE;
    op.delete_range = &gone;
    gone.prev_kv = 1;
    read.keys_only = 1;
    read_op.request_case = PB__REQUEST_OP__REQUEST_RANGE;
    read_op.range = &read;
    txn.n_compare = revision ? 3 : 2;
    txn.n_success = txn.n_failure = 1;
    txn.compare = compares;
    txn.success = ops;
    txn.failure = read_ops;
    st = etcd_txn(ec, &txn, NULL, &answer, deadline, err);
    if (!st && !answer->succeeded)
        st = HF_LOST;
    *absent = !st || (st == HF_LOST && answer && remove_is_absent(answer));
    if (!st && remove_was_broken(answer))
        st = HF_LOST;
    etcd_free(answer);
    return st;
}

void etcd_combine_close(struct etcd_conn *ec)
{
    struct etcd_request *request;

    while ((request = ec->spare)) {
        ec->spare = request->next;
        hfi_cond_fini(&request->cond);
        hfi_free(request);
    }
}
