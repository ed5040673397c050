/* SPDX-License-Identifier: MIT
 *
 * several.c - several keys at once: all or none.
 *
 * A request for several keys is one request that goes from key to key.  When it
 * has the lock of one, it puts the handle aside and asks for the next, in the
 * caller's thread or in a worker as every other request.  What it has meanwhile
 * is held and renewed as every other lock; nobody is told of it yet.
 *
 * INVARIANTS
 *  (1) Keys are taken in the order of their bytes, by everybody.  So two callers
 *      never wait for each other in a circle, whatever order they named.
 *  (2) One deadline counts for all, and one hf_cancel() ends all.
 *  (3) The caller gets handles only if every lock is held at that moment.  If
 *      one was lost meanwhile, what is left is given back, and the request
 *      starts over as long as its time lasts.
 *  (4) A request that fails gives back what it has at once: nobody has worked
 *      under these locks, so they neither linger nor are kept.
 *  (5) What the caller asks for of a lock, a longest and a least hold and no
 *      renewals, counts from the moment at which it has them all.  Until then
 *      nothing of that touches a grant, which may be another's too.
 *
 * Where the service can take several keys in one request, a blocking call asks
 * that first.  It takes all of them or none, so (1) does not matter there.
 */
#include "core.h"

#include <stdlib.h>

#include "base/alloc.h"
#include "base/mutant.h"

#include "base/banned.h"

static int several_order(const void *a, const void *b)
{
    const struct hfi_part *x = a, *y = b;

    if (HFI_MUTANT(keys_in_given_order))
        return x->place < y->place ? -1 : x->place > y->place;
    return strcmp(x->key, y->key);
}

static hf_status several_named_twice(const struct hfi_several *several,
                                     struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];
    size_t i;

    for (i = 1; i < several->n; i++)
        if (!strcmp(several->parts[i - 1].key, several->parts[i].key))
            return hfi_fail(
                err, HF_INVALID, "the key '%s' is named twice",
                hfi_quote(quoted, sizeof(quoted), several->parts[i].key));
    return HF_OK;
}

static bool several_fill(struct hf_client *c, struct hfi_several *several,
                         const char *const *keys,
                         const struct hfi_lock_params *params)
{
    size_t i;

    several->params.owner = several->owner = hfi_strdup(params->owner);
    if (params->owner && !several->owner)
        return false;
    if (params->note != c->note) {
        several->params.note = several->note = hfi_strdup(params->note);
        if (params->note && !several->note)
            return false;
    }
    for (i = 0; i < several->n; i++) {
        several->parts[i].key = hfi_strdup(keys[i]);
        several->parts[i].place = i;
        several->parts[i].lock = hfi_lock_new(c);
        if (!several->parts[i].key || !several->parts[i].lock)
            return false;
        several->parts[i].lock->aside = true;
    }
    return true;
}

hf_status hfi_several_new(struct hf_client *c, const char *const *keys,
                          size_t n, const struct hfi_lock_params *params,
                          struct hf_lock **locks, struct hfi_several **ret,
                          struct hf_error *err)
{
    struct hfi_several *several =
        hfi_alloc(sizeof(*several) + n * sizeof(several->parts[0]));
    hf_status st = HF_OK;

    if (!several)
        return hfi_nomem(err);
    several->params = *params;
    several->max_hold_ms = params->max_hold_ms;
    several->min_hold_ms = params->min_hold_ms;
    several->params.max_hold_ms = several->params.min_hold_ms = 0;
    several->n = n;
    several->ret = locks;
    if (!several_fill(c, several, keys, params))
        st = hfi_nomem(err);
    if (!st) {
        qsort(several->parts, n, sizeof(several->parts[0]), several_order);
        st = several_named_twice(several, err);
    }
    if (st)
        hfi_several_free(several);
    else
        *ret = several;
    return st;
}

/* With no mutex held.  Handles that the caller has not got end here; nothing
 * hangs on them. */
void hfi_several_free(struct hfi_several *several)
{
    size_t i;

    for (i = 0; i < several->n; i++) {
        hfi_free(several->parts[i].key);
        hfi_lock_free(several->parts[i].lock);
    }
    hfi_free(several->owner);
    hfi_free(several->note);
    hfi_free(several);
}

/* The lock that the request asks for now. */
struct hf_lock *hfi_several_lock(const struct hfi_several *several)
{
    return several->parts[several->at].lock;
}

const char *hfi_several_key(const struct hfi_several *several)
{
    return several->parts[several->at].key;
}

/* ---- with the mutex held ------------------------------------------------ */

/* Give back a lock that was put aside: by `deadline`, or if that is 0 in the
 * background.  several.c (4)  False if the service does not answer. */
static bool several_give_back(struct hf_client *c, struct hf_lock *lk,
                              int64_t deadline)
{
    struct hfi_grant *grant = lk->grant;
    struct hfi_key_queue *queue;

    lk->grant = NULL;
    if (!grant)
        return true;
    hfi_notice_drop(c, &lk->notice);
    hfi_link_remove(&lk->link);
    grant->aside--;
    if (!hfi_link_alone(&grant->handles))
        return true; /* Its owner has others. */
    if (deadline && hfi_handle_still_held(c, grant))
        return hfi_grant_drop(c, grant, deadline, NULL) != HF_UNCERTAIN;
    if (grant->state != HFI_HELD && grant->state != HFI_LOST)
        return true; /* It was lost, and the reaper is at it. */
    queue = grant->queue;
    queue->users++;
    atomic_store(&grant->deadline, 0);
    if (queue->local_grant == grant)
        queue->local_grant = NULL;
    hfi_grant_reap(c, grant);
    hfi_key_queue_promote(c, queue);
    hfi_key_queue_put(c, queue);
    return true;
}

/* Give back all that was put aside, in the background. */
void hfi_several_drop(struct hf_client *c, struct hfi_several *several)
{
    size_t i;

    for (i = 0; i < several->n; i++)
        if (several->parts[i].lock)
            several_give_back(c, several->parts[i].lock, 0);
    several->at = 0;
}

/* The same for a blocking call, before it returns; the mutex is let go.  As soon
 * as one is not answered the others go the other way: the caller does not wait
 * for each. */
void hfi_several_return(struct hf_client *c, struct hfi_several *several)
{
    bool answers = true;
    size_t i;

    for (i = 0; i < several->n; i++)
        if (several->parts[i].lock)
            answers = several_give_back(c, several->parts[i].lock,
                                        answers ? hfi_request_soon(c) : 0) &&
                      answers;
}

static bool several_all_held(const struct hfi_several *several)
{
    size_t i;

    for (i = 0; i < several->n; i++)
        if (!hfi_held(several->parts[i].lock->grant))
            return false;
    return true;
}

/* The caller is about to have them: from now on it is told what happens to
 * them, also of a risk that came before.  several.c (5) */
static void several_show(struct hf_client *c, struct hfi_several *several)
{
    struct hf_lock *lk;
    size_t i;

    for (i = 0; i < several->n; i++) {
        lk = several->parts[i].lock;
        lk->aside = false;
        lk->grant->aside--;
        lk->grant->warned = false;
        hfi_grant_limit(lk->grant, several->max_hold_ms, several->min_hold_ms);
        hfi_keeper_add(c, lk->grant);
    }
}

/* The request has the lock of one key.  Does it go on to another?  If not, it
 * has them all.  several.c (3) */
bool hfi_several_goes_on(struct hf_client *c, struct hfi_several *several)
{
    if (++several->at < several->n)
        return true;
    several->at = 0;
    if (several_all_held(several)) {
        several_show(c, several);
        return false;
    }
    hfi_several_drop(c, several);
    return true;
}

/* The handles, in the order in which the caller named the keys. */
void hfi_several_give(struct hfi_several *several)
{
    size_t i;

    for (i = 0; i < several->n; i++) {
        several->ret[several->parts[i].place] = several->parts[i].lock;
        several->parts[i].lock = NULL;
    }
}

/* ---- in one request ------------------------------------------------------ */

/* Is the key one that nobody of this client has or asks for? */
static bool several_is_idle(const struct hfi_key_queue *queue)
{
    return !queue->local_grant && !queue->leader &&
           hfi_link_alone(&queue->waiting) &&
           hfi_link_alone(&queue->contending) && hfi_link_alone(&queue->grants);
}

/* A claim for each key; false if they cannot be asked for together. */
static bool several_claim(struct hf_client *c, struct hfi_several *several,
                          struct hfi_grant **grants)
{
    struct hfi_key_queue *queue;
    size_t i;

    for (i = 0; i < several->n; i++) {
        queue = hfi_key_queue_get(c, several->parts[i].key);
        if (!queue)
            return false;
        if (several_is_idle(queue))
            grants[i] = hfi_grant_new(c, queue, &several->params);
        hfi_key_queue_put(c, queue);
        if (!grants[i])
            return false;
    }
    return true;
}

/* All were granted by what was sent at `sent`.  False if the answer came too
 * late for one. */
static bool several_begin(struct hf_client *c, struct hfi_several *several,
                          struct hfi_grant **grants,
                          const struct hfi_attempt *items, int64_t sent)
{
    int64_t ttl_ms = several->params.ttl_ms, now = hfi_now();
    size_t i;

    for (i = 0; i < several->n; i++)
        if (now >= hfi_grant_proven(c, grants[i], &items[i].answer.proof, sent,
                                    ttl_ms))
            return false;
    for (i = 0; i < several->n; i++) {
        /* A request of this client may have begun to ask for the same; then the
         * local queue waits for that one.  key_queue.c (2) */
        if (grants[i]->queue->local_grant || grants[i]->queue->leader)
            grants[i]->local_grant = false;
        hfi_grant_begin(c, grants[i], &several->params, &items[i].answer.proof,
                        sent, ttl_ms);
        hfi_grant_give(c, grants[i], several->parts[i].lock);
    }
    several_show(c, several);
    return true;
}

/* The keys were not taken: forget the claims, or take back what may be there. */
static void several_unclaim(struct hf_client *c,
                            const struct hfi_several *several,
                            struct hfi_grant **grants, bool doubt)
{
    size_t i;

    for (i = 0; i < several->n && grants[i]; i++) {
        grants[i]->claim.doubt = doubt;
        if (doubt)
            hfi_grant_reap(c, grants[i]);
        else
            hfi_grant_free(c, grants[i]);
    }
}

/* Ask for all in one request; the mutex, held by the caller, is let go
 * meanwhile.  HF_OK: all are held.  HF_UNSUPPORTED, HF_BUSY, HF_UNCERTAIN: ask
 * for them one by one, if there is time. */
hf_status hfi_several_at_once(struct hf_client *c, struct hfi_several *several,
                              int64_t deadline, struct hf_error *err)
{
    size_t n = several->n, i;
    struct hfi_grant **grants;
    struct hfi_attempt *items;
    int64_t sent = hfi_now();
    hf_status st = HF_UNSUPPORTED;

    if (!c->be->try_acquire_all || several->params.owner)
        return st;
    grants = hfi_alloc(n * sizeof(*grants));
    items = hfi_alloc(n * sizeof(*items));
    if (grants && items && several_claim(c, several, grants)) {
        for (i = 0; i < n; i++) {
            items[i].claim = &grants[i]->claim;
            items[i].receipt = &grants[i]->receipt;
            items[i].answer.proof =
                hfi_proof_plain(sent, several->params.ttl_ms);
            grants[i]->claim.nth = 1;
        }
        pthread_mutex_unlock(&c->mu);
        st = c->be->try_acquire_all(c->conn, items, n, deadline, err);
        pthread_mutex_lock(&c->mu);
    }
    if (!st && !several_begin(c, several, grants, items, sent))
        st = hfi_fail(err, HF_UNCERTAIN, "the answer came too late");
    if (st && grants)
        several_unclaim(c, several, grants, st == HF_UNCERTAIN);
    hfi_free(grants);
    hfi_free(items);
    return st;
}
