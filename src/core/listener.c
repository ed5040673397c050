/* SPDX-License-Identifier: MIT
 *
 * listener.c - who reads the wake-ups of the service.
 *
 * The keeper does, since it is always there.  But while a single thread waits,
 * the keeper would be woken only to wake that thread; so a lone waiter listens
 * for itself while it sleeps, and reads for everybody who comes after it.  When
 * it wakes up the keeper has the listener again: at once if somebody else
 * waits, and otherwise a little later, because who passes a lock to and fro is
 * back by then.
 *
 * INVARIANTS
 *  (1) At most one thread is in dispatch(): who has the listener or, while
 *      nobody has, the keeper.
 *  (2) While a request sleeps, somebody listens.  While none does, the keeper
 *      listens again after SUBSCRIBER_MS at most: a lock that lingers may be
 *      asked for, and a backend may wait for what only dispatch() reads.
 *  (3) Who waits here is woken by a notifier, since it sleeps on descriptors;
 *      hfi_sleeper_wake() knows.
 */
#include "core.h"

#include "base/banned.h"

/* For so long the listener is kept for the next lone waiter. */
#define SUBSCRIBER_MS 20

void hfi_sleeper_wake(struct hf_client *c, struct hfi_sleeper *sleeper)
{
    if (atomic_load(&sleeper->listens))
        hfi_notifier_notify(&c->listener.notifier);
    else
        hfi_cond_wake(&sleeper->cond);
}

/* Have the keeper listen from `when` on, unless somebody else does. */
static void listener_leave_to_keeper(struct hf_client *c, int64_t when)
{
    c->listener.kept_until = when;
    hfi_keeper_by(c, when);
}

/* One more request is under way.  One that cannot listen wants the keeper
 * to. */
void hfi_listener_enter(struct hf_request *rq)
{
    struct hf_client *c = rq->client;

    c->listener.asking++;
    if (rq->async && c->listener.kept_until)
        listener_leave_to_keeper(c, 0);
}

static bool listener_has_notifier(struct hfi_listener *listener)
{
    if (listener->notifier.event_fd >= 0 ||
        hfi_notifier_init(&listener->notifier))
        return true;
    hfi_notifier_fini(&listener->notifier);
    return false;
}

/* May this request listen?  If not, and nobody does, the keeper must. */
static bool listener_is_free(struct hf_request *rq)
{
    struct hf_client *c = rq->client;
    struct hfi_listener *listener = &c->listener;

    if (listener->by || !rq->grant || !rq->grant->watched || !c->be->poll_fd)
        return false;
    if (!listener->dispatching && listener->asking == 1 &&
        listener_has_notifier(listener))
        return true;
    if (listener->kept_until)
        listener_leave_to_keeper(c, 0); /* listener.c (2) */
    return false;
}

/* Sleep on the listener, and read what comes; false if it is somebody
 * else's. */
bool hfi_listener_wait(struct hf_request *rq, int64_t until)
{
    struct hf_client *c = rq->client;
    struct hfi_listener *listener = &c->listener;
    bool heard;

    if (!listener_is_free(rq))
        return false;
    listener->by = rq;
    if (listener->of_keeper)
        hfi_notifier_notify(
            &c->notifier); /* It sleeps on the same descriptor. */
    atomic_store(&rq->sleeper->listens, true);
    pthread_mutex_unlock(&c->mu);
    heard =
        hfi_notifier_wait(&listener->notifier, c->be->poll_fd(c->conn), until);
    atomic_store(&rq->sleeper->listens, false);
    if (heard)
        c->be->dispatch(c->conn);
    pthread_mutex_lock(&c->mu);
    listener->by = NULL;
    listener_leave_to_keeper(c, listener->asking > 1 || c->observed.len
                                    ? 0
                                    : hfi_now() + SUBSCRIBER_MS);
    return true;
}

/* Is it the keeper's to listen now?  If not, *until is no later than when it
 * should ask again. */
bool hfi_listener_of_keeper(struct hf_client *c, int64_t now, int64_t *until)
{
    struct hfi_listener *listener = &c->listener;

    listener->of_keeper = !listener->by && now >= listener->kept_until;
    if (listener->of_keeper)
        listener->kept_until = 0;
    else if (!listener->by && listener->kept_until < *until)
        *until = listener->kept_until;
    return listener->of_keeper;
}

/* The keeper has heard something.  listener.c (1) */
void hfi_listener_dispatch(struct hf_client *c)
{
    pthread_mutex_lock(&c->mu);
    if (!c->listener.by) { /* That one hears it, too. */
        c->listener.dispatching = true;
        pthread_mutex_unlock(&c->mu);
        c->be->dispatch(c->conn);
        pthread_mutex_lock(&c->mu);
        c->listener.dispatching = false;
    }
    pthread_mutex_unlock(&c->mu);
}
