/* SPDX-License-Identifier: MIT
 *
 * listener.c - who reads the wake-ups of the service.
 *
 * The keeper does, since it is always there.  But while a single thread waits,
 * the keeper would be woken only to wake that thread; so a lone waiter listens
 * for itself while it sleeps, and reads for everybody who comes after it.  When
 * it wakes up the keeper has the ear again: at once if somebody else waits, and
 * otherwise a little later, because who passes a lock to and fro is back by
 * then.
 *
 * INVARIANTS
 *  (1) At most one thread is in pump(): who has the ear or, while nobody has,
 *      the keeper.
 *  (2) While a request sleeps, somebody listens.  While none does, the keeper
 *      listens again after EAR_MS at most: a lock that lingers may be asked for,
 *      and a backend may wait for what only pump() reads.
 *  (3) Who waits here is woken by a bell, since it sleeps on descriptors;
 *      hfi_spot_wake() knows.
 */
#include "core.h"

#include "base/banned.h"

/* For so long the ear is kept for the next lone waiter. */
#define EAR_MS 20

void hfi_spot_wake(struct hf_client *c, struct hfi_spot *spot)
{
    if (atomic_load(&spot->listens))
        hfi_bell_ring(&c->ear.bell);
    else
        hfi_cond_wake(&spot->cond);
}

/* Have the keeper listen from `when` on, unless somebody else does. */
static void ear_leave_to_keeper(struct hf_client *c, int64_t when)
{
    c->ear.kept_until = when;
    hfi_keeper_by(c, when);
}

/* One more request is under way.  One that cannot listen wants the keeper to. */
void hfi_ear_enter(struct hf_request *rq)
{
    struct hf_client *c = rq->client;

    c->ear.asking++;
    if (rq->async && c->ear.kept_until)
        ear_leave_to_keeper(c, 0);
}

static bool ear_has_bell(struct hfi_ear *ear)
{
    if (ear->bell.event_fd >= 0 || hfi_bell_init(&ear->bell))
        return true;
    hfi_bell_fini(&ear->bell);
    return false;
}

/* May this request listen?  If not, and nobody does, the keeper must. */
static bool ear_is_free(struct hf_request *rq)
{
    struct hf_client *c = rq->client;
    struct hfi_ear *ear = &c->ear;

    if (ear->by || !rq->hold || !rq->hold->watched || !c->be->pump_fd)
        return false;
    if (!ear->pumping && ear->asking == 1 && ear_has_bell(ear))
        return true;
    if (ear->kept_until)
        ear_leave_to_keeper(c, 0); /* listener.c (2) */
    return false;
}

/* Sleep on the ear, and read what comes; false if it is somebody else's. */
bool hfi_ear_wait(struct hf_request *rq, int64_t until)
{
    struct hf_client *c = rq->client;
    struct hfi_ear *ear = &c->ear;
    bool heard;

    if (!ear_is_free(rq))
        return false;
    ear->by = rq;
    if (ear->of_keeper)
        hfi_bell_ring(&c->bell); /* It sleeps on the same descriptor. */
    atomic_store(&rq->spot->listens, true);
    pthread_mutex_unlock(&c->mu);
    heard = hfi_bell_wait(&ear->bell, c->be->pump_fd(c->conn), until);
    atomic_store(&rq->spot->listens, false);
    if (heard)
        c->be->pump(c->conn);
    pthread_mutex_lock(&c->mu);
    ear->by = NULL;
    ear_leave_to_keeper(c, ear->asking > 1 ? 0 : hfi_now() + EAR_MS);
    return true;
}

/* The request is over. */
void hfi_ear_leave(struct hf_request *rq)
{
    rq->client->ear.asking--;
}

/* Is it the keeper's to listen now?  If not, *until is no later than when it
 * should ask again. */
bool hfi_ear_of_keeper(struct hf_client *c, int64_t now, int64_t *until)
{
    struct hfi_ear *ear = &c->ear;

    ear->of_keeper = !ear->by && now >= ear->kept_until;
    if (ear->of_keeper)
        ear->kept_until = 0;
    else if (!ear->by && ear->kept_until < *until)
        *until = ear->kept_until;
    return ear->of_keeper;
}

/* The keeper has heard something.  listener.c (1) */
void hfi_ear_pump(struct hf_client *c)
{
    pthread_mutex_lock(&c->mu);
    if (!c->ear.by) { /* That one hears it, too. */
        c->ear.pumping = true;
        pthread_mutex_unlock(&c->mu);
        c->be->pump(c->conn);
        pthread_mutex_lock(&c->mu);
        c->ear.pumping = false;
    }
    pthread_mutex_unlock(&c->mu);
}

void hfi_pump_changed(struct hfi_conn *conn)
{
    struct hf_client *c = conn->client;

    hfi_bell_ring(&c->bell);
    pthread_mutex_lock(&c->mu);
    if (c->ear.by)
        hfi_bell_ring(&c->ear.bell);
    pthread_mutex_unlock(&c->mu);
}
