/* SPDX-License-Identifier: MIT
 *
 * upcall.c - what a backend tells the core.
 *
 * Any thread calls these at any time, also with a mutex of the backend held
 * (backend.h (5)).  None of them calls the backend or waits for it.  What a
 * backend tells is a reason to look again and no proof, except in three cases:
 * hfi_granted() brings the fence of a grant that the service has made,
 * hfi_lower() lets its holder rely on it for less, and hfi_gone() ends it.
 *
 * The claim that is meant may be gone, or busy with another try, by the time
 * the word arrives: it is found by its key and its token, under the client's
 * mutex.
 */
#include "log.h"

#include "base/mutant.h"
#include "base/probe.h"

#include "base/banned.h"

/* The request whose claim has this token, or NULL. */
static struct hf_request *upcall_request(struct hfi_key_queue *queue,
                                         const char *token)
{
    struct hfi_link *at;
    struct hf_request *rq;

    for (at = queue->contending.next; at != &queue->contending; at = at->next) {
        rq = hfi_container(at, struct hf_request, link);
        if (!strcmp(token, rq->grant->claim.token))
            return rq;
    }
    return NULL;
}

/* A try of the request with this token (NULL: of any) may succeed now. */
static void upcall_wake(struct hfi_key_queue *queue, const char *token)
{
    struct hfi_link *at;
    struct hf_request *rq;

    for (at = queue->contending.next; at != &queue->contending; at = at->next) {
        rq = hfi_container(at, struct hf_request, link);
        if (token && strcmp(token, rq->grant->claim.token) != 0)
            continue;
        rq->woken = rq->called = true;
        hfi_request_schedule(rq);
    }
}

void hfi_wake(struct hfi_conn *conn, const char *key, const char *token)
{
    struct hf_client *c = conn->client;
    struct hfi_key_queue *queue;

    pthread_mutex_lock(&c->mu);
    queue = hfi_key_queue_find(c, key);
    if (queue && !HFI_MUTANT(wakeup_lost))
        upcall_wake(queue, token);
    pthread_mutex_unlock(&c->mu);
}

/* The request may have been busy with another try, or may be gone: then what
 * was given to it is found by that try, or taken back by its release. */
void hfi_granted(struct hfi_conn *conn, const char *key, const char *token,
                 uint32_t nth, uint64_t fence, int32_t slot, int64_t ms)
{
    struct hf_client *c = conn->client;
    struct hf_request *rq;
    struct hfi_key_queue *queue;

    pthread_mutex_lock(&c->mu);
    queue = hfi_key_queue_find(c, key);
    rq = queue ? upcall_request(queue, token) : NULL;
    if (rq) {
        if (rq->grant->claim.nth == nth)
            rq->handoff = (struct hfi_handoff){fence, slot, ms};
        rq->woken = rq->called = true;
        hfi_request_schedule(rq);
    }
    pthread_mutex_unlock(&c->mu);
}

/* Let the request try again by then. */
static void upcall_expect(struct hf_request *rq, int64_t at)
{
    if (rq->expected && at >= rq->expected)
        return;
    rq->expected = at;
    if (at >= rq->next_try)
        return;
    rq->next_try = at;
    hfi_request_schedule(rq);
}

/* Its turn may come by then without a word: let it try again. */
void hfi_expect(struct hfi_conn *conn, const char *key, const char *token,
                int64_t ms)
{
    struct hf_client *c = conn->client;
    int64_t at = hfi_now() + ms;
    struct hf_request *rq;
    struct hfi_key_queue *queue;

    pthread_mutex_lock(&c->mu);
    queue = hfi_key_queue_find(c, key);
    rq = queue ? upcall_request(queue, token) : NULL;
    if (rq)
        upcall_expect(rq, at);
    pthread_mutex_unlock(&c->mu);
}

/* A service that has just come back is not asked by all who wait at once: so
 * many keys at a time, so many milliseconds apart. */
#define UPCALL_WAKE_KEYS 32
#define UPCALL_WAKE_MS   10

static void upcall_wake_later(struct hfi_key_queue *queue, int64_t at)
{
    struct hfi_link *link;

    for (link = queue->contending.next; link != &queue->contending;
         link = link->next)
        upcall_expect(hfi_container(link, struct hf_request, link), at);
}

/* The word that somebody asks for what we have may have been missed: do not let
 * it linger, and listen anew before it lingers again. */
static void upcall_stop_lingering(struct hf_client *c,
                                  struct hfi_key_queue *queue)
{
    struct hfi_grant *grant = queue->local_grant;

    if (!grant || (!grant->watched && !grant->busy))
        return;
    grant->unsubscribed = true;
    grant->linger_end = 0;
    if (grant->state == HFI_LINGERING)
        hfi_keeper_add(c, grant);
}

void hfi_wake_all(struct hfi_conn *conn)
{
    struct hf_client *c = conn->client;
    struct hfi_key_queue *queue = NULL;
    int64_t now = hfi_now(), n = 0;

    HFI_PROBE1(reconnect, &conn->endpoint[0]);
    hfi_log(c, HF_LOG_INFO,
            "%s: connected again, or events were missed: all who wait ask "
            "again",
            conn->endpoint);
    pthread_mutex_lock(&c->mu);
    c->stats.reconnects++;
    while ((queue = hfi_key_queue_next(c, queue))) {
        upcall_stop_lingering(c, queue);
        if (hfi_link_alone(&queue->contending))
            continue;
        if (n++ < UPCALL_WAKE_KEYS)
            upcall_wake(queue, NULL);
        else
            upcall_wake_later(queue,
                              now + n / UPCALL_WAKE_KEYS * UPCALL_WAKE_MS);
    }
    pthread_mutex_unlock(&c->mu);
}

/* Somebody elsewhere asks for the key: do not let it linger. */
void hfi_wanted(struct hfi_conn *conn, const char *key)
{
    struct hf_client *c = conn->client;
    struct hfi_key_queue *queue;

    pthread_mutex_lock(&c->mu);
    queue = hfi_key_queue_find(c, key);
    if (queue && !queue->local_grant && queue->leader && queue->leader->grant)
        queue->leader->grant->wanted = true; /* It overtook our own answer. */
    if (queue && queue->local_grant) {
        queue->local_grant->wanted = true;
        queue->local_grant->linger_end = 0;
        if (queue->local_grant->state == HFI_LINGERING)
            hfi_keeper_add(c, queue->local_grant);
    }
    pthread_mutex_unlock(&c->mu);
}

/* The grant that has this token, or NULL. */
static struct hfi_grant *upcall_grant(struct hfi_key_queue *queue,
                                      const char *token)
{
    struct hfi_link *at;
    struct hfi_grant *grant;

    for (at = queue->grants.next; at != &queue->grants; at = at->next) {
        grant = hfi_container(at, struct hfi_grant, link);
        if (!strcmp(token, grant->claim.token))
            return grant;
    }
    return NULL;
}

void hfi_gone(struct hfi_conn *conn, const char *key, const char *token,
              hf_loss reason)
{
    struct hf_client *c = conn->client;
    struct hfi_key_queue *queue;
    struct hfi_grant *grant;
    struct hf_request *rq;

    pthread_mutex_lock(&c->mu);
    queue = hfi_key_queue_find(c, key);
    grant = queue ? upcall_grant(queue, token) : NULL;
    rq = queue && !grant ? upcall_request(queue, token) : NULL;
    if (grant)
        hfi_grant_lose(c, grant, reason);
    else if (rq && reason == HF_LOSS_BROKEN)
        rq->broken = true; /* acquire.c (5) */
    pthread_mutex_unlock(&c->mu);
}

/* grant.c (2)  A renewal that goes out meanwhile proves more again, by itself. */
void hfi_lower(struct hfi_conn *conn, const char *key, const char *token,
               int64_t end)
{
    struct hf_client *c = conn->client;
    struct hfi_key_queue *queue;
    struct hfi_grant *grant;
    struct hfi_link *at;

    pthread_mutex_lock(&c->mu);
    queue = hfi_key_queue_find(c, key);
    for (at = queue ? queue->grants.next : NULL; at && at != &queue->grants;
         at = at->next) {
        grant = hfi_container(at, struct hfi_grant, link);
        if (strcmp(token, grant->claim.token) != 0 ||
            (grant->state != HFI_HELD && grant->state != HFI_LINGERING))
            continue;
        hfi_grant_believe_less(grant, end);
        hfi_keeper_add(c, grant);
    }
    pthread_mutex_unlock(&c->mu);
}

/* What a claim has left under a name that it does not use any more.  It is
 * released like every doubtful claim, as one of its own with the same token. */
bool hfi_left(struct hfi_conn *conn, const struct hfi_claim *claim,
              const struct hfi_receipt *receipt)
{
    struct hfi_lock_params params = hfi_grant_params(claim);
    struct hf_client *c = conn->client;
    struct hfi_key_queue *queue;
    struct hfi_grant *grant;

    params.owner = params.note = NULL;
    pthread_mutex_lock(&c->mu);
    queue = hfi_key_queue_get(c, claim->key);
    grant = queue ? hfi_grant_new(c, queue, &params) : NULL;
    if (grant) {
        memcpy(grant->claim.token, claim->token, sizeof(claim->token));
        hfi_grant_keep(c, grant, receipt);
        grant->receipt.registered = true;
        grant->claim.doubt = true;
        grant->local_grant = false;
        hfi_grant_reap(c, grant);
    }
    if (queue)
        hfi_key_queue_put(c, queue);
    pthread_mutex_unlock(&c->mu);
    return grant != NULL;
}

/* Something that is observed may have changed: a worker looks at it. */
void hfi_changed(struct hfi_conn *conn, struct hfi_observation *observation,
                 const char *key)
{
    struct hfi_observed *o =
        hfi_container(observation, struct hfi_observed, base);
    const char *prefix = observation->key;
    struct hf_client *c = conn->client;
    struct hfi_seen *seen = NULL;

    if (key && observation->prefix && strncmp(key, prefix, strlen(prefix)) != 0)
        return;
    pthread_mutex_lock(&c->mu);
    if (key && observation->prefix)
        seen = hfi_seen_get(o, key);
    if (!seen)
        o->all = true;
    else if (hfi_link_alone(&seen->dirty))
        hfi_link_append(&o->dirty, &seen->dirty);
    o->early = c->conn->traits & HFI_TRAIT_EARLY;
    hfi_observed_wake(c, o);
    pthread_mutex_unlock(&c->mu);
}

void hfi_poll_fd_changed(struct hfi_conn *conn)
{
    struct hf_client *c = conn->client;

    hfi_notifier_notify(&c->notifier);
    pthread_mutex_lock(&c->mu);
    if (c->listener.by)
        hfi_notifier_notify(&c->listener.notifier);
    pthread_mutex_unlock(&c->mu);
}

void hfi_warn(struct hfi_conn *conn, const char *text)
{
    hfi_log(conn->client, HF_LOG_WARNING, "%s", text);
    pthread_mutex_lock(&conn->client->mu);
    snprintf(conn->warning, sizeof(conn->warning), "%s", text);
    pthread_mutex_unlock(&conn->client->mu);
}
