/* SPDX-License-Identifier: MIT
 *
 * worker.c - the threads that block on the service for event loops, and that
 * take back what must not stay in it.
 *
 * A worker steps one request, ends one handle (release.c), asks one question
 * (job.c) or takes back one claim at a time; or several requests or handles,
 * where the service takes what is sent ahead (backend/backend.h, send_ahead): 64
 * tries cost a thread one write and about one read then, and the event loop one
 * wake-up.  All may last as long as a service is silent.  So there are several: another is started when work has waited for
 * WORKER_MS and none is idle, up to HFI_WORKERS; and up to HFI_WORKERS_MAX if
 * one of them has finished something since the last was started.  For a
 * service that is slow but answers gets more done the more is asked of it at a
 * time (etcd/combine.c), and one that is silent would only collect threads.
 * Half of them at most end handles and take claims back, so that a service that
 * is silent about those does not keep requests waiting; and HFI_INSPECTORS at
 * most look for observers (observed.c), when there is nothing else to do.  A
 * request that the service has called goes before those that merely want to ask
 * again.
 *
 * A thread of the caller may do what a worker would do (hfi_work()): it is awake
 * already, and takes the event of what it has ended without the descriptor.
 * That saves a call the wake-ups of two threads.
 *
 * INVARIANTS
 *  (1) A request is in `ready` or with one worker, never both.
 *  (2) The first tries of one key are sent one after the other, in the order in
 *      which they were asked for: that is their order in the service's queue.
 *  (3) A worker does not touch a request that was abandoned while its try was
 *      on the wire: an event has ended it, and it may be gone (request_end.c
 *      (2)).
 *  (4) A request that waits for a worker has a timer: however long the workers
 *      are at others, its own wait ends in time (acquire.c).
 *  (5) `lent_work` <= `lent`: work is left only to threads that are still to
 *      come, and each of them does a piece of it if there is one.
 *  (6) Requests that a worker sends together must be answered by the same time,
 *      and none of them asks for more before all answers are there.  So none
 *      waits for another longer than it would for itself.
 *  (7) While `coming`, a worker that was called has yet to look for work, and
 *      nobody else is called for what it may take along.  Before it blocks it
 *      calls another if it leaves some of that.
 */
#include "core.h"

#include "base/banned.h"

/* A near service is done by then, and one worker is enough. */
#define WORKER_MS 2

/* The first one could not be started: it is tried again after this. */
#define WORKER_AGAIN_MS 100

/* A request whose wait is over is ended by the keeper if no worker has come by
 * then. */
#define LATE_WORKER_MS 50

/* Requests that go together must be answered by times that are no farther apart.
 * worker.c (6) */
#define APART_MS 50

/* A thread that was lent goes on with a request for so long at most. */
#define LENT_STEPS 2

/* Let the request wait for a worker at this place.  worker.c (4) */
static void worker_queue(struct hf_client *c, struct hf_request *rq,
                         struct hfi_link *place)
{
    int64_t now, end = rq->wait_end;

    hfi_link_append(place, &rq->ready);
    if (end == HFI_NEVER) {
        hfi_heap_remove(&c->timers, &rq->timer);
        return;
    }
    now = hfi_now();
    if (rq->once)
        end = hfi_after(hfi_request_is_single(rq) ? end : now, c->timeout_ms);
    else if (end < now + LATE_WORKER_MS)
        end = now + LATE_WORKER_MS;
    hfi_keeper_set(c, &rq->timer, end);
}

/* A request that a worker is at. */
struct worker_piece {
    struct hf_request *rq;
    struct hfi_key_queue *queue;
    bool first; /* it is its first try */
};

/* The request was stepped, and is to be stepped again at `until`.  True: it
 * waits for a thread again. */
static bool worker_goes_on(struct hf_client *c, struct hf_request *rq,
                           int64_t until)
{
    rq->stepping = rq->notice.quiet = false;
    if (rq->woken || until <= hfi_now()) {
        worker_queue(c, rq, &c->ready);
        return true;
    }
    hfi_keeper_set(c, &rq->timer, until);
    return false;
}

/* The first try of a request is over: the next of its key may begin. */
static void worker_next_first(struct hf_client *c, struct hfi_key_queue *queue)
{
    struct hf_request *rq;

    queue->trying = false;
    if (hfi_link_alone(&queue->held_back))
        return;
    rq = hfi_container(queue->held_back.next, struct hf_request, ready);
    hfi_link_remove(&rq->ready);
    worker_queue(c, rq, c->ready.next); /* before those that came later */
    hfi_worker_hire(c);
}

/* Take the first that waits for a thread; `lent`: this one takes its event.
 * False if it is held back.  worker.c (2) */
static bool worker_take(struct hf_client *c, bool lent,
                        struct worker_piece *ret)
{
    struct hf_request *rq =
        hfi_container(c->ready.next, struct hf_request, ready);
    struct hfi_key_queue *queue = rq->queue;

    *ret = (struct worker_piece){rq, queue, !rq->tries};
    hfi_link_remove(&rq->ready);
    if (ret->first && queue->trying) {
        hfi_link_append(&queue->held_back, &rq->ready); /* Its timer stays. */
        return false;
    }
    hfi_heap_remove(&c->timers, &rq->timer);
    queue->users++; /* The request may be gone before this is over. */
    queue->trying = queue->trying || ret->first;
    rq->notice.quiet = lent;
    rq->stepping = true;
    return true;
}

/* It was stepped.  Whoever takes its event frees it.  True: it waits for a
 * thread again. */
static bool worker_put(struct hf_client *c, const struct worker_piece *piece,
                       bool over, int64_t until)
{
    bool again = !over && worker_goes_on(c, piece->rq, until);

    if (piece->first)
        worker_next_first(c, piece->queue);
    hfi_key_queue_put(c, piece->queue);
    return again;
}

/* Step the first that waits.  True: it waits again. */
static bool worker_step_request(struct hf_client *c, bool lent)
{
    struct worker_piece piece;
    int64_t until = 0;
    bool over;

    if (!worker_take(c, lent, &piece))
        return false;
    over = hfi_request_step(piece.rq, &until);
    return worker_put(c, &piece, over, until);
}

/* Is there a claim to be given back, and may one more worker be at that? */
static bool worker_may_reap(const struct hf_client *c,
                            const struct hfi_link *which)
{
    int n = c->n_workers > HFI_WORKERS ? c->n_workers : HFI_WORKERS;

    return !hfi_link_alone(which) && c->reaping < n / 2;
}

/* A worker has taken what it can and is about to block: is there more, which
 * nobody was called for?  Then let another come.  worker.c (7) */
void hfi_worker_pass_call(struct hf_client *c)
{
    if (!c->coming)
        return;
    c->coming = false;
    if (!hfi_link_alone(&c->ready) || worker_may_reap(c, &c->releases))
        hfi_worker_call(c);
}

/* Requests whose tries are sent together. */
struct worker_batch {
    struct worker_piece pieces[HFI_AHEAD_MAX];
    struct hfi_try tries[HFI_AHEAD_MAX];
    int n;
};

/* May the first that waits go with those of the batch?  Its step must ask the
 * service for nothing but the lock.  worker.c (6) */
static bool worker_may_join(const struct hf_client *c,
                            const struct worker_batch *batch)
{
    const struct hf_request *rq;
    int64_t apart;

    if (batch->n == HFI_AHEAD_MAX || hfi_link_alone(&c->ready))
        return false;
    if (!batch->n)
        return true;
    rq = hfi_container(c->ready.next, const struct hf_request, ready);
    apart =
        hfi_request_limit(rq, batch->tries[0].sent) - batch->tries[0].deadline;
    return batch->pieces[0].first && !rq->tries && !rq->return_first &&
           apart <= APART_MS && apart >= -APART_MS;
}

/* Step those that wait up to where they ask the service. */
static void worker_collect(struct hf_client *c, struct worker_batch *batch)
{
    int64_t until = 0;
    struct worker_piece *piece;
    enum hfi_step step;

    batch->n = 0;
    while (worker_may_join(c, batch)) {
        piece = &batch->pieces[batch->n];
        if (!worker_take(c, false, piece))
            continue;
        if (!piece->first || piece->rq->return_first)
            hfi_worker_pass_call(c); /* It may have more to ask. */
        step =
            hfi_request_step_begin(piece->rq, &batch->tries[batch->n], &until);
        if (step == HFI_STEP_TRY)
            batch->n++;
        else
            worker_put(c, piece, step == HFI_STEP_OVER, until);
    }
}

/* Send the tries of the batch, and end the steps of those whose answers have
 * come.  Those that must ask again stay. */
static void worker_round(struct hf_client *c, struct worker_batch *batch)
{
    struct hfi_ahead items[HFI_AHEAD_MAX];
    int64_t until = 0;
    enum hfi_step step;
    int i, n = batch->n;

    for (i = 0; i < n; i++) {
        batch->tries[i].with_others = n > 1;
        items[i] =
            (struct hfi_ahead){.claim = &batch->tries[i].grant->claim,
                               .receipt = &batch->tries[i].grant->receipt};
    }
    if (n > 1) {
        pthread_mutex_unlock(&c->mu);
        c->be->send_ahead(c->conn, items, (size_t)n, batch->tries[0].deadline);
        pthread_mutex_lock(&c->mu);
    }
    batch->n = 0;
    for (i = 0; i < n; i++) {
        step = hfi_request_step_end(c, &batch->tries[i], &until);
        if (step != HFI_STEP_TRY) {
            worker_put(c, &batch->pieces[i], step == HFI_STEP_OVER, until);
            continue;
        }
        batch->pieces[batch->n] = batch->pieces[i];
        batch->tries[batch->n++] = batch->tries[i];
    }
}

/* Step all that wait and can go together: they are answered together, too. */
static void worker_step_requests(struct hf_client *c)
{
    struct worker_batch batch;

    worker_collect(c, &batch);
    hfi_worker_pass_call(c);
    while (batch.n)
        worker_round(c, &batch);
}

/* Does an observation want a look, and may one more worker take it? */
static bool worker_may_inspect(const struct hf_client *c)
{
    return !hfi_link_alone(&c->observing) && c->inspecting < HFI_INSPECTORS &&
           !atomic_load(&c->offline);
}

/* Do one thing, if there is one to do.  What has a limit of its own goes before
 * what has none. */
static bool worker_step(struct hf_client *c)
{
    if (worker_may_reap(c, &c->releases)) {
        c->reaping++;
        if (hfi_goes_ahead(c))
            hfi_release_steps(c);
        else
            hfi_release_step(c, false);
        c->reaping--;
        return true;
    }
    if (hfi_jobs_wait(c)) {
        hfi_worker_pass_call(c);
        hfi_job_step(c);
        return true;
    }
    if (!hfi_link_alone(&c->ready)) {
        if (hfi_goes_ahead(c))
            worker_step_requests(c);
        else
            worker_step_request(c, false);
        return true;
    }
    c->coming = false;
    if (worker_may_reap(c, &c->reap)) {
        c->reaping++;
        hfi_reap(c, hfi_container(c->reap.next, struct hfi_grant, link));
        c->reaping--;
        return true;
    }
    if (worker_may_inspect(c)) {
        c->inspecting++;
        hfi_observed_step(
            c, hfi_container(c->observing.next, struct hfi_observed, ready));
        c->inspecting--;
        return true;
    }
    return false;
}

static bool worker_has_work(const struct hf_client *c)
{
    return !hfi_link_alone(&c->ready) || hfi_jobs_wait(c) ||
           worker_may_reap(c, &c->releases) || worker_may_reap(c, &c->reap) ||
           worker_may_inspect(c);
}

static bool worker_may_start(const struct hf_client *c)
{
    return c->n_workers < (c->stepped ? HFI_WORKERS_MAX : HFI_WORKERS);
}

/* Work that no worker is idle for must not wait for long: have the keeper start
 * one then. */
static void worker_is_short(struct hf_client *c)
{
    if (!c->short_at && worker_may_start(c))
        hfi_keeper_by(c, c->short_at = hfi_now() + WORKER_MS);
}

/* One thing is done: the service answers. */
static void worker_stepped(struct hf_client *c)
{
    c->stepped = true;
    if (c->n_workers >= HFI_WORKERS && worker_has_work(c))
        worker_is_short(c);
}

static void *worker_run(void *worker)
{
    struct hfi_worker *w = worker;
    struct hf_client *c = w->client;

    pthread_mutex_lock(&c->mu);
    while (!c->stopping) {
        if (worker_step(c)) {
            worker_stepped(c);
            continue;
        }
        hfi_link_append(&c->idle, &w->idle);
        while (!hfi_link_alone(&w->idle) && !c->stopping)
            hfi_cond_wait(&w->cond, &c->mu, HFI_NEVER);
    }
    hfi_link_remove(&w->idle);
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* Start one more worker, if there may be one. */
static bool worker_start(struct hf_client *c)
{
    struct hfi_worker *w = &c->workers[c->n_workers];

    if (c->stopping || !worker_may_start(c) ||
        !hfi_thread_start(&w->thread, worker_run, w))
        return false;
    c->n_workers++;
    c->stepped = false;
    return true;
}

/* With the mutex held.  False if the system has no thread for us now. */
bool hfi_worker_start(struct hf_client *c)
{
    return c->n_workers || worker_start(c);
}

/* Is every worker that there may be at work? */
bool hfi_workers_busy(const struct hf_client *c)
{
    return hfi_link_alone(&c->idle) && !worker_may_start(c);
}

/* For the keeper: start one more worker if work has waited too long, and say
 * when to ask again. */
int64_t hfi_worker_check(struct hf_client *c, int64_t now)
{
    if (!c->short_at)
        return HFI_NEVER;
    if (!worker_has_work(c) || !hfi_link_alone(&c->idle)) {
        c->short_at = 0;
        return HFI_NEVER;
    }
    if (now < c->short_at)
        return c->short_at;
    if (worker_start(c))
        c->short_at = now + WORKER_MS;
    else
        c->short_at = c->n_workers ? 0 : now + WORKER_AGAIN_MS;
    return c->short_at ? c->short_at : HFI_NEVER;
}

/* There is work: let an idle worker come; if there is none, have the keeper see
 * to it that the work does not wait for long. */
void hfi_worker_call(struct hf_client *c)
{
    struct hfi_worker *w;

    if (hfi_link_alone(&c->idle)) {
        worker_is_short(c);
        return;
    }
    w = hfi_container(c->idle.prev, struct hfi_worker, idle);
    hfi_link_remove(&w->idle);
    hfi_cond_wake(&w->cond);
}

/* Let a worker step the request: before others if the service has called it. */
void hfi_worker_add(struct hf_client *c, struct hf_request *rq)
{
    if (rq->stepping || !hfi_link_alone(&rq->ready))
        return;
    worker_queue(c, rq, rq->called ? c->ready.next : &c->ready);
    hfi_worker_hire(c);
}

/* ---- threads of the caller --------------------------------------------- */

/* There is work that a thread of the caller may do: leave it to one that is to
 * come, or let a worker come, unless one does and takes it along.  worker.c
 * (5), (7) */
void hfi_worker_hire(struct hf_client *c)
{
    if (c->lent_work < c->lent) {
        c->lent_work++;
    } else if (!c->coming) {
        c->coming = hfi_goes_ahead(c) && !hfi_link_alone(&c->idle);
        hfi_worker_call(c);
    }
}

void hfi_lend(struct hf_client *c)
{
    pthread_mutex_lock(&c->mu);
    c->lent++;
    pthread_mutex_unlock(&c->mu);
}

/* End a handle or step a request, if one waits.  A request that others hold
 * asks once more after it has armed its wake-up. */
static bool worker_step_lent(struct hf_client *c)
{
    int steps = 1;

    if (!hfi_link_alone(&c->releases))
        hfi_release_step(c, true);
    else if (hfi_link_alone(&c->ready))
        return false;
    else
        while (worker_step_request(c, true) && steps++ < LENT_STEPS)
            ;
    if (steps > LENT_STEPS)
        hfi_worker_hire(c);
    return true;
}

bool hfi_work(struct hf_client *c)
{
    bool done;

    pthread_mutex_lock(&c->mu);
    if (c->lent)
        c->lent--;
    if (c->lent_work > c->lent)
        c->lent_work = c->lent;
    c->calls++;
    done = !c->closing && worker_step_lent(c);
    c->calls--;
    if (c->closing)
        hfi_cond_wake(&c->settle);
    pthread_mutex_unlock(&c->mu);
    return done;
}

void hfi_workers_init(struct hf_client *c)
{
    int i;

    hfi_link_init(&c->ready);
    hfi_link_init(&c->reap);
    hfi_link_init(&c->releases);
    hfi_link_init(&c->jobs);
    hfi_link_init(&c->at_jobs);
    hfi_link_init(&c->listings);
    hfi_link_init(&c->idle);
    for (i = 0; i < HFI_WORKERS_MAX; i++) {
        c->workers[i].client = c;
        hfi_link_init(&c->workers[i].idle);
        hfi_cond_init(&c->workers[i].cond);
    }
}

/* With the mutex held, once the client is stopping. */
void hfi_workers_wake(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_WORKERS_MAX; i++)
        hfi_cond_wake(&c->workers[i].cond);
}

void hfi_workers_join(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_WORKERS_MAX; i++)
        hfi_thread_join(&c->workers[i].thread);
}

void hfi_workers_fini(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_WORKERS_MAX; i++)
        hfi_cond_fini(&c->workers[i].cond);
}
