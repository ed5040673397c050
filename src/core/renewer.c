/* SPDX-License-Identifier: MIT
 *
 * renewer.c - the threads that send renewals.
 *
 * A renewal is a round trip that may last as long as its limit, and the limit
 * follows the lease: a sixth of it.  Leases of very different lengths must not
 * wait for each other.  One renewer for all would either let a short lease wait
 * behind the attempt of a long one, or give the long one only the time of the
 * short one.  So there is a renewer for each class of lease, started when a
 * lock of that class is first due: a class spans a factor of two, and most
 * programs have one.  Where more are due than go into one batch, the class gets
 * more threads: a batch takes a round trip, and thousands of locks are more
 * than one batch at a time can renew over a long way.
 *
 * Renewals share no thread with anything else: an acquisition, a release or a
 * claim that is being taken back never stands in front of one.
 *
 * INVARIANTS
 *  (1) A renewal is sent only while the grant is HELD or LINGERING and `busy`
 *      is set, which release waits for (grant.c (4)).
 *  (2) One failed renewal never ends a grant; only the clock or the service's
 *      own word does.
 *  (3) A first attempt lasts at most a third of the shortest lease of its
 *      class. A grant that is due meanwhile still has a third of its lease,
 *      which is two attempts of its own.  Attempts after a failure last longer
 *      and go apart from others.
 */
#include "log.h"

#include "base/probe.h"

#include "base/banned.h"

#define BATCH_MAX 256

/* A near service has renewed a batch by then, and one thread is enough. */
#define RENEWER_SLOW_MS 5

/* The class of a lease: its leases are at least HFI_TTL_MIN << class long, and
 * less than twice that, but for the last. */
static int renewer_class(int64_t lease_ms)
{
    int i = 0;

    while (i < HFI_RENEWERS - 1 && lease_ms >= HFI_TTL_MIN << (i + 1))
        i++;
    return i;
}

/* Move what is due, and has failed as often as the first, into `items`; bound
 * the attempt by the shortest. */
static size_t renewer_collect(struct hfi_renewer *r, struct hfi_renewal *items,
                              int64_t now, int64_t *limit)
{
    int64_t floor = HFI_TTL_MIN << (r - r->client->renewers);
    struct hfi_grant *grant = hfi_container(r->due.next, struct hfi_grant, due);
    int failed = grant->failed;
    struct hfi_link *at, *next;
    int64_t end;
    size_t n = 0;

    *limit = failed < 2 ? now + floor / 3 : HFI_NEVER;
    for (at = r->due.next; at != &r->due && n < BATCH_MAX; at = next) {
        next = at->next;
        grant = hfi_container(at, struct hfi_grant, due);
        if (grant->failed != failed)
            continue; /* renewer.c (3) */
        hfi_link_remove(&grant->due);
        grant->busy = true;
        hfi_grant_want(grant);
        items[n++] = (struct hfi_renewal){
            .claim = &grant->claim,
            .receipt = &grant->receipt,
            .ttl_ms = grant->claim.ttl_ms,
            .st = HF_UNCERTAIN,
            .reason = HF_LOSS_STOLEN,
            .proof = hfi_proof_plain(now, grant->claim.ttl_ms)};
        end = hfi_lease_attempt_end(now, grant->lease_ms, grant->lease_end,
                                    r->client->timeout_ms, failed);
        if (end < *limit)
            *limit = end;
    }
    return n;
}

static void renewer_apply(struct hf_client *c, const struct hfi_renewal *item,
                          int64_t sent, const struct hf_error *err)
{
    struct hfi_grant *grant =
        hfi_container(item->claim, struct hfi_grant, claim);
    hf_status st = item->st;
    hf_loss reason = item->reason;

    grant->busy = false;
    if (grant->state != HFI_HELD && grant->state != HFI_LINGERING)
        return;
    if (st == HF_OK) {
        st = hfi_grant_renewed(c, grant, &item->proof, sent, item->ttl_ms);
        reason = HF_LOSS_EXPIRED;
    }
    HFI_PROBE2(renew, grant->claim.key, st);
    if (st == HF_LOST) {
        hfi_grant_lose(c, grant, reason);
        return;
    }
    if (st) { /* renewer.c (2) */
        grant->next_at = hfi_lease_retry_at(sent, grant->lease_ms);
        grant->failed++;
        c->stats.renewals_failed++;
        hfi_log_key(c, HF_LOG_WARNING, grant->claim.key,
                    "not renewed, %lld ms are left: %s%s%s",
                    (long long)hfi_left_ms(grant->lease_end),
                    hf_status_name(st), err->text[0] ? ": " : "", err->text);
    }
    hfi_keeper_add(c, grant);
}

static void *renewer_run(void *renewer);

/* Have one more thread for the class, if there may be one. */
static bool renewer_start(struct hfi_renewer *r)
{
    int i;

    for (i = 0; i < HFI_RENEWER_THREADS && !r->client->stopping; i++)
        if (!r->threads[i].running)
            return hfi_thread_start(&r->threads[i], renewer_run, r);
    return false;
}

/* Renew what is due, once. */
static void renewer_step(struct hfi_renewer *r)
{
    struct hf_client *c = r->client;
    struct hfi_renewal items[BATCH_MAX];
    int64_t sent = hfi_now(), limit;
    size_t i, n = renewer_collect(r, items, sent, &limit);
    struct hf_error err; /* not zeroed: a failure fills it */

    err.text[0] = '\0';
    pthread_mutex_unlock(&c->mu);
    c->be->renew(c->conn, items, n, limit, &err);
    pthread_mutex_lock(&c->mu);
    for (i = 0; i < n; i++)
        renewer_apply(c, &items[i], sent, &err);
    hfi_cond_wake(&c->settle);
    if (!hfi_link_alone(&r->due) && hfi_now() - sent >= RENEWER_SLOW_MS)
        while (renewer_start(r))
            continue; /* One batch after the other takes too long. */
}

static void *renewer_run(void *renewer)
{
    struct hfi_renewer *r = renewer;
    struct hf_client *c = r->client;

    pthread_mutex_lock(&c->mu);
    while (!c->stopping) {
        if (hfi_link_alone(&r->due))
            hfi_cond_wait(&r->cond, &c->mu, HFI_NEVER);
        else
            renewer_step(r);
    }
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* Have the grant renewed soon.  False if the system has no thread for it
 * now. */
bool hfi_renewer_add(struct hf_client *c, struct hfi_grant *grant)
{
    struct hfi_renewer *r = &c->renewers[renewer_class(grant->lease_ms)];

    if (!r->threads[0].running && !renewer_start(r))
        return false;
    hfi_link_append(&r->due, &grant->due);
    hfi_cond_wake(&r->cond);
    return true;
}

void hfi_renewers_init(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_RENEWERS; i++) {
        c->renewers[i].client = c;
        hfi_link_init(&c->renewers[i].due);
        hfi_cond_init(&c->renewers[i].cond);
    }
}

/* With the mutex held, once the client is stopping. */
void hfi_renewers_wake(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_RENEWERS; i++)
        hfi_cond_wake(&c->renewers[i].cond);
}

void hfi_renewers_join(struct hf_client *c)
{
    int i, j;

    for (i = 0; i < HFI_RENEWERS; i++)
        for (j = 0; j < HFI_RENEWER_THREADS; j++)
            hfi_thread_join(&c->renewers[i].threads[j]);
}

void hfi_renewers_fini(struct hf_client *c)
{
    int i;

    for (i = 0; i < HFI_RENEWERS; i++)
        hfi_cond_fini(&c->renewers[i].cond);
}
