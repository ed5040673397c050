/* SPDX-License-Identifier: MIT
 *
 * observer.c - what a caller does with an observer: start, take, stop.
 *
 * None of these waits for the service: a worker looks (observed.c), and an event
 * says that there is something to take.
 *
 * INVARIANT  While an observer has something to take, HF_CHANGED is in the queue
 * of events or was taken since its last change; taking a part of it puts the
 * event there again.
 */
#include "core.h"

#include "base/alloc.h"

#include "base/banned.h"

hf_status hfi_observe_start(struct hf_client *c, const char *key, bool prefix,
                            void *user, struct hf_observer **ret,
                            struct hf_error *err)
{
    struct hf_observer *ob = hfi_alloc(sizeof(*ob));
    struct hfi_observed *o = NULL;
    hf_status st = HF_OK;

    if (!ob)
        return hfi_nomem(err);
    pthread_mutex_lock(&c->mu);
    if (c->closing)
        st = hfi_fail(err, HF_INVALID, "the client is being closed");
    else if (atomic_load(&c->offline) == HFI_OFFLINE)
        st = hfi_connect_error(c, err); /* It never will be connected. */
    else if (!hfi_worker_start(c))
        st = hfi_fail(err, HF_SYSTEM, "no thread could be started");
    else if (!(o = hfi_observed_get(c, key, prefix)))
        st = hfi_nomem(err);
    if (o) {
        *ob = (struct hf_observer){.client = c,
                                   .observed = o,
                                   .place = &o->changes,
                                   .from = o->round + 1,
                                   .since = o->change,
                                   .user = user};
        hfi_notice_init(&ob->notice);
        hfi_link_init(&ob->link);
        hfi_link_append(&o->observers, &ob->link);
        atomic_fetch_add(&c->refs, 1);
        ob->heard = o->why.status != HF_OK;
        if (ob->heard)
            hfi_notify(c, &ob->notice, HF_CHANGED);
        o->all = true;
        hfi_observed_wake(c, o);
        *ret = ob;
    }
    pthread_mutex_unlock(&c->mu);
    if (st)
        hfi_free(ob);
    return st;
}

/* The next change that has not been taken, or NULL.  What was free before the
 * observer of a prefix began is no news to it. */
static struct hfi_seen *observer_take(struct hf_observer *ob)
{
    struct hfi_observed *o = ob->observed;
    struct hfi_seen *seen;

    if (!o || ob->from)
        return NULL;
    while (ob->place->next != &o->changes) {
        ob->place = ob->place->next;
        seen = hfi_container(ob->place, struct hfi_seen, link);
        if (!o->base.prefix || seen->info.held || seen->change > ob->since)
            return seen;
    }
    return NULL;
}

/* As it is now: some time has passed since it was read. */
static void observer_describe(const struct hfi_seen *seen,
                              struct hf_change *ret)
{
    int64_t passed = hfi_now() - seen->at;

    *ret = (struct hf_change)HF_CHANGE_INIT;
    snprintf(ret->key, sizeof(ret->key), "%s", seen->key);
    ret->info = seen->info;
    if (ret->info.left_ms >= 0)
        ret->info.left_ms =
            passed < ret->info.left_ms ? ret->info.left_ms - passed : 0;
    if (ret->info.since_ms >= 0)
        ret->info.since_ms += passed;
}

bool hfi_observer_next(struct hf_observer *ob, struct hf_change *ret)
{
    struct hf_client *c = ob->client;
    struct hfi_seen *seen;

    pthread_mutex_lock(&c->mu);
    seen = observer_take(ob);
    if (seen)
        observer_describe(seen, ret);
    if (seen && ob->place->next != &ob->observed->changes)
        hfi_notify(c, &ob->notice, HF_CHANGED);
    else if (!ob->heard)
        hfi_notice_drop(c, &ob->notice);
    pthread_mutex_unlock(&c->mu);
    return seen != NULL;
}

void hfi_observe_stop(struct hf_observer *ob)
{
    struct hf_client *c = ob->client;

    pthread_mutex_lock(&c->mu);
    hfi_notice_drop(c, &ob->notice);
    hfi_link_remove(&ob->link);
    if (ob->observed && !c->stopping)
        hfi_observed_put(c, ob->observed);
    pthread_mutex_unlock(&c->mu);
    hfi_free(ob);
    hfi_client_put(c);
}

static void observers_leave(struct hf_client *c, struct hfi_observed *o)
{
    struct hf_observer *ob;

    while (!hfi_link_alone(&o->observers)) {
        ob = hfi_container(o->observers.next, struct hf_observer, link);
        hfi_link_remove(&ob->link);
        hfi_notice_drop(c, &ob->notice);
        ob->observed = NULL;
    }
}

/* The client is being closed, and its threads have ended: nothing is observed
 * any more.  Observers stay until they are stopped, and have nothing to tell.
 * With the mutex held, which is let go meanwhile. */
void hfi_observers_close(struct hf_client *c)
{
    struct hfi_node *node;
    struct hfi_observed *o;

    while ((node = hfi_map_next(&c->observed, NULL))) {
        o = hfi_container(node, struct hfi_observed, node);
        observers_leave(c, o);
        hfi_observed_free(c, o);
    }
}
