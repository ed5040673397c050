/* SPDX-License-Identifier: MIT
 *
 * listed.c - listings of a prefix that is observed, by a worker or by a caller.
 *
 * A listing costs the service most of all that an observer costs.  Somebody who
 * observes a prefix and lists it as well, for what an observer is not told (renewals,
 * waiters), asks for the same twice.  So hf_list() of a prefix that is observed is
 * the next look of the observation.
 *
 * INVARIANTS
 *  (1) It is a look like any other: observed.c (1) holds for it.  What is told
 *      meanwhile is looked at after it, so a caller whose function takes long keeps
 *      that waiting.
 *  (2) hf_list() waits for nobody's look: while one is under way, or something is
 *      amiss, it asks by itself.
 *  (3) Keys that nobody holds are shown to the observation only.  The first listing
 *      says what the greatest fence is (`first`), and each of the next shows what
 *      is free and has a newer one than the last listing showed, but for
 *      `fence_slack` (`since`): however old the locks are that are held, and
 *      however many keys are free, that is what was used meanwhile.
 */
#include "core.h"

#include "base/banned.h"

static bool listed_found(void *arg, const char *key, const struct hf_info *info)
{
    struct hfi_listing *l = arg;
    struct hfi_observed *o = l->observed;
    struct hfi_seen *seen = NULL;
    bool ends, matters;

    pthread_mutex_lock(&l->client->mu);
    if (info->fence > l->newest)
        l->newest = info->fence;
    matters =
        info->held || hfi_map_find(&o->keys, key) || hfi_seen_is_new(o, info);
    if (matters)
        seen = hfi_seen_get(o, key);
    if (matters && (!seen || !hfi_seen_read(l->client, o, seen, info)))
        l->whole = false;
    if (seen)
        seen->round = o->round;
    ends = !l->fn && (l->client->stopping || hfi_link_alone(&o->observers));
    pthread_mutex_unlock(&l->client->mu);
    if (l->fn && (info->held || !l->client->be->list_since))
        ends = l->stopped = !l->fn(l->arg, key, info);
    l->whole = l->whole && !ends;
    return !ends;
}

/* A whole listing is over.  listed.c (3) */
static void listed_raise(struct hfi_observed *o, uint64_t newest,
                         uint64_t slack)
{
    if (o->since == UINT64_MAX)
        o->first = o->since = newest;
    else if (newest > slack && newest - slack > o->since)
        o->since = newest - slack;
}

/* List it for the observation.  With the mutex held, which is let go meanwhile. */
hf_status hfi_listed(struct hf_client *c, struct hfi_observed *o,
                     struct hfi_listing *l, struct hf_error *err)
{
    int64_t deadline = l->fn ? l->deadline : hfi_now() + c->timeout_ms;
    uint64_t since = o->since;

    l->newest = 0;
    l->whole = true;
    pthread_mutex_unlock(&c->mu);
    l->st =
        c->be->list_since
            ? c->be->list_since(c->conn, o->base.key, since, listed_found, l,
                                deadline, err)
            : c->be->list(c->conn, o->base.key, listed_found, l, deadline, err);
    pthread_mutex_lock(&c->mu);
    if (!l->st && l->whole)
        hfi_seen_missing(c, o);
    if (!l->st && l->whole && c->be->list_since)
        listed_raise(o, l->newest, c->be->fence_slack);
    if (l->st && l->err)
        *l->err = *err;
    return l->st;
}

hf_status hfi_list(struct hf_client *c, const char *prefix, hf_list_fn *fn,
                   void *arg, struct hf_error *err)
{
    struct hfi_listing l = {.fn = fn, .arg = arg, .err = err};
    hf_status st = hfi_connect_await(c, err);

    if (st)
        return st;
    if (!c->be->list)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: cannot list locks",
                        c->conn->endpoint);
    /* No key is that long, and no backend has room for it. */
    if (strlen(prefix) > HF_KEY_MAX)
        return HF_OK;
    l.deadline = hfi_now() + c->timeout_ms;
    if (hfi_observed_list(c, prefix, &l))
        return l.st;
    return c->be->list(c->conn, prefix, fn, arg, l.deadline, err);
}
