/* SPDX-License-Identifier: MIT
 *
 * worker.c - the threads that block on the service for event loops, and that
 * take back what must not stay in it.
 *
 * A worker steps one request, or takes back one claim, at a time; both may last
 * as long as a service is silent.  So there are several: another is started
 * when work has waited for WORKER_MS and none is idle, up to HFI_WORKERS.  Half
 * of them at most take claims back, so that a service that is silent about
 * those does not keep requests waiting.  A request that the service has called
 * goes before those that merely want to ask again.
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
 */
#include "core.h"

#include "base/banned.h"

/* A near service is done by then, and one worker is enough. */
#define WORKER_MS 2

/* A request whose wait is over is ended by the keeper if no worker has come by
 * then. */
#define LATE_WORKER_MS 50

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
        end = hfi_after(now, c->timeout_ms);
    else if (end < now + LATE_WORKER_MS)
        end = now + LATE_WORKER_MS;
    hfi_keeper_set(c, &rq->timer, end);
}

/* Step one request of an event loop, and set its next time.  Whoever takes its
 * event frees it. */
static void worker_move_on(struct hf_client *c, struct hf_request *rq)
{
    int64_t until;

    rq->stepping = true;
    if (hfi_request_step(rq, &until))
        return;
    rq->stepping = false;
    if (rq->woken || until <= hfi_now())
        worker_queue(c, rq, &c->ready);
    else
        hfi_keeper_set(c, &rq->timer, until);
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
    hfi_worker_add(c, rq);
}

/* worker.c (2) */
static void worker_step_request(struct hf_client *c, struct hf_request *rq)
{
    struct hfi_key_queue *queue = rq->queue;
    bool first = !rq->tries;

    hfi_link_remove(&rq->ready);
    if (first && queue->trying) {
        hfi_link_append(&queue->held_back, &rq->ready); /* Its timer stays. */
        return;
    }
    hfi_heap_remove(&c->timers, &rq->timer);
    queue->users++; /* The request may be gone before this is over. */
    queue->trying = queue->trying || first;
    worker_move_on(c, rq);
    if (first)
        worker_next_first(c, queue);
    hfi_key_queue_put(c, queue);
}

/* Do one thing, if there is one to do. */
static bool worker_step(struct hf_client *c)
{
    if (!hfi_link_alone(&c->ready)) {
        worker_step_request(
            c, hfi_container(c->ready.next, struct hf_request, ready));
        return true;
    }
    if (!hfi_link_alone(&c->reap) && c->reaping < HFI_WORKERS / 2) {
        c->reaping++;
        hfi_reap(c, hfi_container(c->reap.next, struct hfi_grant, link));
        c->reaping--;
        return true;
    }
    return false;
}

static void *worker_run(void *worker)
{
    struct hfi_worker *w = worker;
    struct hf_client *c = w->client;

    pthread_mutex_lock(&c->mu);
    while (!c->stopping) {
        if (worker_step(c))
            continue;
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
    struct hfi_worker *w;
    int i;

    for (i = 0; i < HFI_WORKERS && !c->stopping; i++) {
        w = &c->workers[i];
        if (!w->thread.running)
            return hfi_thread_start(&w->thread, worker_run, w);
    }
    return false;
}

/* With the mutex held.  False if the system has no thread for us now. */
bool hfi_worker_start(struct hf_client *c)
{
    return c->workers[0].thread.running || worker_start(c);
}

/* Is every worker that there may be at work? */
bool hfi_workers_busy(const struct hf_client *c)
{
    return hfi_link_alone(&c->idle) &&
           c->workers[HFI_WORKERS - 1].thread.running;
}

static bool worker_has_work(const struct hf_client *c)
{
    return !hfi_link_alone(&c->ready) ||
           (!hfi_link_alone(&c->reap) && c->reaping < HFI_WORKERS / 2);
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
    c->short_at = worker_start(c) ? now + WORKER_MS : 0;
    return c->short_at ? c->short_at : HFI_NEVER;
}

/* There is work: let an idle worker come; if there is none, have the keeper see
 * to it that the work does not wait for long. */
void hfi_worker_call(struct hf_client *c)
{
    struct hfi_worker *w;

    if (hfi_link_alone(&c->idle)) {
        if (!c->short_at)
            hfi_keeper_by(c, c->short_at = hfi_now() + WORKER_MS);
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
    hfi_worker_call(c);
}

void hfi_workers_init(struct hf_client *c)
{
    int i;

    hfi_link_init(&c->ready);
    hfi_link_init(&c->reap);
    hfi_link_init(&c->idle);
    for (i = 0; i < HFI_WORKERS; i++) {
        c->workers[i].client = c;
        hfi_link_init(&c->workers[i].idle);
        hfi_cond_init(&c->workers[i].cond);
    }
}

/* With the mutex held, once the client is stopping. */
void hfi_workers_wake(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_WORKERS; i++)
        hfi_cond_wake(&c->workers[i].cond);
}

void hfi_workers_join(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_WORKERS; i++)
        hfi_thread_join(&c->workers[i].thread);
}

void hfi_workers_fini(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_WORKERS; i++)
        hfi_cond_fini(&c->workers[i].cond);
}
