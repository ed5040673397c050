/* SPDX-License-Identifier: MIT
 *
 * canceler.c - cancellation that cannot be lost.
 *
 * hf_cancel() ends the calls that are under way.  A program that calls it from a
 * signal handler cannot know whether its call has begun: a signal that comes a
 * moment earlier cancels nothing, and the call waits for ever.  A canceler stays
 * cancelled, so it does not matter which comes first.
 *
 * INVARIANTS
 *  (1) A request looks at its canceler before it is put anywhere, and at each
 *      step, with the mutex held, before it sleeps.  After the canceler is set
 *      the keeper is rung, and wakes, with the mutex held, every request that
 *      has it.  So either the request sees it before it sleeps, or it is asleep
 *      or queued when the keeper comes.
 *  (2) hf_canceler_cancel() stores, adds and writes to a descriptor: nothing
 *      that a signal handler may not do.  It touches memory that the canceler
 *      keeps alive: itself and, by a reference, its client.  The descriptor is
 *      open as long as client->cancelers counts anybody: each canceler, and the
 *      client until it is closed.  Requests have gone by then, so the last of
 *      them all is counted down by hf_close() or hf_canceler_free().
 *  (3) A reset is for calls that begin later.  One that was under way counts how
 *      often the canceler was used, and ends although its try was on the wire
 *      from before that until after the reset.  It is marked before it is
 *      counted: a call that begins in between sees the mark or the count.
 */
#include "core.h"

#include "base/alloc.h"

#include "base/banned.h"

struct hf_canceler {
    struct hf_client *client;
    atomic_uint refs;  /* the caller's, and one of each request that has it */
    atomic_uint times; /* it was cancelled */
    atomic_bool canceled; /* and not reset since */
};

struct hf_canceler *hfi_canceler_new(struct hf_client *c)
{
    struct hf_canceler *canceler = hfi_alloc(sizeof(*canceler));

    if (!canceler)
        return NULL;
    canceler->client = c;
    atomic_init(&canceler->refs, 1);
    atomic_init(&canceler->times, 0);
    atomic_init(&canceler->canceled, false);
    atomic_fetch_add(&c->refs, 1);
    atomic_fetch_add(&c->cancelers, 1);
    return canceler;
}

void hfi_canceler_get(struct hf_canceler *canceler)
{
    if (canceler)
        atomic_fetch_add(&canceler->refs, 1);
}

void hfi_canceler_put(struct hf_canceler *canceler)
{
    struct hf_client *c;

    if (!canceler || atomic_fetch_sub(&canceler->refs, 1) != 1)
        return;
    c = canceler->client;
    hfi_free(canceler);
    if (atomic_fetch_sub(&c->cancelers, 1) == 1) { /* canceler.c (2) */
        pthread_mutex_lock(&c->mu);
        hfi_notifier_fini(&c->notifier);
        pthread_mutex_unlock(&c->mu);
    }
    hfi_client_put(c);
}

struct hf_client *hfi_canceler_client(const struct hf_canceler *canceler)
{
    return canceler->client;
}

unsigned hfi_canceler_times(const struct hf_canceler *canceler)
{
    return atomic_load(&canceler->times);
}

/* Is a request cancelled that began when it had been cancelled so often? */
bool hfi_canceler_is_set(const struct hf_canceler *canceler, unsigned times)
{
    return atomic_load(&canceler->canceled) ||
           atomic_load(&canceler->times) != times; /* canceler.c (3) */
}

/* canceler.c (2) */
void hfi_canceler_set(struct hf_canceler *canceler, bool canceled)
{
    struct hf_client *c = canceler->client;

    atomic_store(&canceler->canceled, canceled);
    if (!canceled)
        return;
    atomic_fetch_add(&canceler->times, 1); /* after it; canceler.c (3) */
    atomic_fetch_add(&c->cancelers_set, 1);
    hfi_notifier_notify(&c->notifier);
}

/* A request that is cancelled may leave the list. */
static void canceler_wake(struct hfi_link *requests)
{
    struct hfi_link *at, *next;
    struct hf_request *rq;

    for (at = requests->next; at != requests; at = next) {
        next = at->next;
        rq = hfi_container(at, struct hf_request, link);
        if (hfi_request_is_canceled(rq))
            hfi_request_inspect(rq);
    }
}

/* For the keeper, with the mutex held: let those see it whose canceler was set
 * since it last looked.  canceler.c (1) */
void hfi_cancelers_tell(struct hf_client *c)
{
    unsigned set = atomic_load(&c->cancelers_set);
    struct hfi_key_queue *queue, *next;

    if (set == c->cancelers_told)
        return;
    c->cancelers_told = set;
    for (queue = hfi_key_queue_next(c, NULL); queue; queue = next) {
        queue->users++;
        canceler_wake(&queue->waiting); /* first: no other takes their turn */
        canceler_wake(&queue->contending);
        next = hfi_key_queue_next(c, queue);
        hfi_key_queue_put(c, queue);
    }
}
