/* SPDX-License-Identifier: MIT
 *
 * observe.c - telling the core that the holder of a key has changed.
 *
 * A watch of ZooKeeper is used up by one event, and the core inspects after each
 * event anyway.  So nothing is sent here: as long as a key is observed, whatever
 * inspect() and list() read of it they read with a watch, in the same request
 * (inspect.c, view.c).  What is seen and what is heard of next fit together.
 *
 *   the children of the key    who comes and who goes
 *   the node of the holder     what stands in it, as when it was broken
 *   queue and leases           the same, with permits
 *   a key without a node       that it is made; with a prefix, the children of
 *                              the root tell
 *
 * INVARIANTS
 *  (1) After an inspect() of an observed key, what it has read is watched on
 *      the session that it was read from, unless an event has been told since.
 *  (2) The library sets its watches again when a session is connected again,
 *      and the server tells what was missed.  When a session ends, the core is
 *      told that events may have been missed, and inspects on another one; when
 *      its connection breaks it is told as well, and finds out whether the
 *      service is there.
 *  (3) The core is called with the mutex held, and unobserve() takes it.
 *
 * LIMITS  A prefix costs a watch for each key below it, here and in the server.
 */
#include "zk.h"

#include "base/alloc.h"

#include "base/banned.h"

#define QUEUE_SUFFIX "-__lock__" /* of kazoo's semaphores: leases.c */

static struct zk_observation *observe_own(struct hfi_observation *observation)
{
    return observation->own;
}

/* The key that a path belongs to, to be freed; NULL: none. */
static char *observe_key(const struct zk_conn *zc, const char *path)
{
    size_t root = strlen(zc->root), len, suffix = sizeof(QUEUE_SUFFIX) - 1;
    char *key;

    if (strncmp(path, zc->root, root) != 0 || path[root] != '/')
        return NULL;
    key = hfi_strdup(path + root + 1);
    if (!key)
        return NULL;
    len = strcspn(key, "/");
    if (zc->kazoo && len > suffix &&
        !strncmp(key + len - suffix, QUEUE_SUFFIX, suffix))
        len -= suffix;
    key[len] = '\0';
    if (len && zk_key_of_name(key))
        return key;
    hfi_free(key);
    return NULL;
}

static bool observe_fits(const struct hfi_observation *observation,
                         const char *key)
{
    return observation->prefix
               ? !strncmp(key, observation->key, strlen(observation->key))
               : !strcmp(key, observation->key);
}

static bool observe_is_root(const struct zk_conn *zc, const char *path)
{
    return !strcmp(path, *zc->root ? zc->root : "/");
}

bool zk_is_observed(struct zk_conn *zc, const char *path, bool alone)
{
    char *key = NULL;
    struct hfi_link *at;
    bool yes = false;

    pthread_mutex_lock(&zc->mu);
    if (!hfi_link_alone(&zc->observed))
        key = observe_key(zc, path);
    for (at = zc->observed.next; at != &zc->observed && !yes; at = at->next) {
        const struct hfi_observation *observation =
            hfi_container(at, struct zk_observation, link)->observation;

        if (observe_is_root(zc, path))
            yes = observation->prefix;
        else
            yes = key && observe_fits(observation, key) &&
                  !(alone && observation->prefix);
    }
    pthread_mutex_unlock(&zc->mu);
    hfi_free(key);
    return yes;
}

void zk_observed(struct zk_conn *zc, const char *path)
{
    char *key = NULL;
    struct hfi_link *at;
    bool root = observe_is_root(zc, path);

    if (hfi_link_alone(&zc->observed))
        return;
    if (!root)
        key = observe_key(zc, path);
    for (at = zc->observed.next; at != &zc->observed; at = at->next) {
        struct hfi_observation *observation =
            hfi_container(at, struct zk_observation, link)->observation;

        if (root && observation->prefix)
            hfi_changed(&zc->base, observation, NULL);
        else if (key && observe_fits(observation, key))
            hfi_changed(&zc->base, observation, key);
    }
    hfi_free(key);
}

void zk_observed_anything(struct zk_conn *zc)
{
    struct hfi_link *at;

    for (at = zc->observed.next; at != &zc->observed; at = at->next)
        hfi_changed(&zc->base,
                    hfi_container(at, struct zk_observation, link)->observation,
                    NULL);
}

hf_status zk_observe(struct hfi_conn *conn, struct hfi_observation *observation,
                     int64_t deadline, struct hf_error *err)
{
    struct zk_conn *zc = (struct zk_conn *)conn;
    struct zk_observation *own = observe_own(observation);

    (void)deadline;
    (void)err;
    own->observation = observation;
    hfi_link_init(&own->link);
    pthread_mutex_lock(&zc->mu);
    hfi_link_append(&zc->observed, &own->link);
    pthread_mutex_unlock(&zc->mu);
    return HF_OK;
}

/* Watches that are left tell of something once, and nobody listens. */
void zk_unobserve(struct hfi_conn *conn, struct hfi_observation *observation)
{
    struct zk_conn *zc = (struct zk_conn *)conn;

    pthread_mutex_lock(&zc->mu);
    hfi_link_remove(&observe_own(observation)->link);
    pthread_mutex_unlock(&zc->mu);
}
