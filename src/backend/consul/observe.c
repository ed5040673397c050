/* SPDX-License-Identifier: MIT
 *
 * observe.c - telling the core that the holder of a key has changed.
 *
 * An observation is one blocking query (poller.c) for the names that begin with
 * that of the key, or with the prefix: the lock, its queue and its holders if it
 * has several.  Names are all that is asked for, and only up to the next slash:
 * what counts is the index of the answer, which rises when something below is
 * written or deleted.  Then the core inspects.
 *
 * INVARIANTS
 *  (1) The first query has no index and is answered at once.  Every answer whose
 *      index is another than that of the answer before, and the first one after
 *      a failure, tells the core to inspect: what happened between two queries
 *      is seen then.
 *  (2) The query goes on, also through failures, until unobserve().  The first of
 *      several failures tells the core to inspect, which says whether the service
 *      is there.
 *  (3) The core is called with the mutex held, and unobserve() takes it.
 */
#include "consul.h"

#include "base/alloc.h"

#include "base/banned.h"

/* What such queries are called among all: no name in the store begins so. */
#define OBSERVE_MARK '\1'

/* How long to wait after a failure: twice as long each time. */
#define OBSERVE_AGAIN_MS INT64_C(250)
#define OBSERVE_DOUBLED  5

static struct consul_observation *observe_own(
    struct hfi_observation *observation)
{
    return observation->own;
}

/* A query of its own: others may be about the same name. */
static struct consul_watch *observe_new(struct consul_conn *cc,
                                        const char *name)
{
    size_t size = strlen(name) + 1;
    struct consul_watch *watch = NULL;

    if (hfi_map_reserve(&cc->poller.watches))
        watch = hfi_alloc(sizeof(*watch) + size + CONSUL_MARK_MAX);
    if (!watch)
        return NULL;
    hfi_link_init(&watch->link);
    hfi_link_init(&watch->users);
    hfi_link_init(&watch->wake);
    memcpy(watch->name, name, size);
    watch->key = "";
    snprintf(watch->name + size, CONSUL_MARK_MAX, "%c%llu", OBSERVE_MARK,
             (unsigned long long)++cc->poller.observations);
    watch->node.key = watch->name + size;
    hfi_map_add(&cc->poller.watches, &watch->node);
    return watch;
}

hf_status hfi_consul_observe(struct hfi_conn *conn,
                             struct hfi_observation *observation,
                             int64_t deadline, struct hf_error *err)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct consul_observation *own = observe_own(observation);
    char name[CONSUL_NAME_MAX];

    (void)deadline;
    hfi_consul_list_prefix(&cc->options, observation->key, name);
    hfi_link_init(&own->link);
    own->observation = observation;
    pthread_mutex_lock(&cc->mu);
    own->watch = observe_new(cc, name);
    if (own->watch) {
        own->watch->observed = own;
        own->watch->names = true;
        hfi_link_append(&own->watch->users, &own->link);
        hfi_consul_poller_add(cc, own->watch, 0); /* at once */
    }
    pthread_mutex_unlock(&cc->mu);
    return own->watch ? HF_OK : hfi_nomem(err);
}

void hfi_consul_unobserve(struct hfi_conn *conn,
                          struct hfi_observation *observation)
{
    struct consul_conn *cc = (struct consul_conn *)conn;
    struct consul_observation *own = observe_own(observation);
    struct consul_watch *watch = own->watch;

    pthread_mutex_lock(&cc->mu);
    hfi_link_remove(&own->link);
    watch->observed = NULL;
    if (watch->running)
        hfi_consul_poller_unused(cc, watch);
    else
        hfi_consul_watch_free(cc, watch);
    pthread_mutex_unlock(&cc->mu);
}

/* observe.c (1) */
void hfi_consul_observed(struct consul_conn *cc, struct consul_watch *watch,
                         uint64_t index)
{
    struct consul_observation *own = watch->observed;

    if (!own)
        return;
    if (own->failures || index != own->seen)
        hfi_changed(&cc->base, own->observation,
                    own->observation->prefix ? NULL : own->observation->key);
    own->failures = 0;
    own->seen = index;
}

/* observe.c (2) */
int64_t hfi_consul_observe_failed(struct consul_conn *cc,
                                  struct consul_watch *watch)
{
    struct consul_observation *own = watch->observed;
    unsigned n = own ? own->failures++ : 0;

    if (own && !n)
        hfi_changed(&cc->base, own->observation, NULL);
    return OBSERVE_AGAIN_MS << (n < OBSERVE_DOUBLED ? n : OBSERVE_DOUBLED);
}
