/* SPDX-License-Identifier: MIT
 *
 * observe.c - telling the core that the holder of a key has changed.
 *
 * An observation is a watch on everything below "KEY/", or on all names that
 * begin with a prefix, in the stream of all watches (wait.c).  An event is a
 * reason to inspect and says nothing by itself.  A watch begins now and never at
 * a revision of the past, so no compaction ends it for good; what etcd ends all
 * the same (a member without a leader, a token that is too old) ends the
 * connection, and a new one is made.
 *
 * INVARIANTS
 *  (1) When etcd has said that the watch has begun the core is told to inspect:
 *      what happened before that is seen then, what happens later is an event.
 *  (2) As long as there is an observation there is a connection or a thread that
 *      tries to have one (connect.c), and each connection has a watch for each
 *      observation.  When one breaks the core is told to look, which says
 *      whether the service is there.
 *  (3) The core is called with watch_mu held, and unobserve() takes it: after
 *      that nothing is told of the observation.
 *  (4) A connection that is silent because its server hangs is found out by the
 *      next inspect(), which the core asks for now and then in any case.
 */
#include "etcd.h"

#include "base/banned.h"

static struct etcd_observation *observe_own(struct hfi_observation *observation)
{
    return observation->own;
}

/* Ask for its watch, with watch_mu held; 0: that failed. */
static int64_t observe_ask(struct etcd_conn *ec,
                           struct hfi_observation *observation)
{
    char target[ETCD_NAME_MAX];

    etcd_dir(ec, observation->key, target, sizeof(target));
    if (observation->prefix)
        target[strlen(target) - 1] = '\0'; /* A prefix ends anywhere. */
    return observe_own(observation)->watch =
               etcd_watch_observed(ec, target, observation);
}

hf_status etcd_observe(struct hfi_conn *conn,
                       struct hfi_observation *observation, int64_t deadline,
                       struct hf_error *err)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    struct etcd_observation *own = observe_own(observation);
    hf_status st;

    own->observation = observation;
    hfi_link_init(&own->link);
    pthread_mutex_lock(&ec->watch_mu);
    st = etcd_watch_ensure(ec, deadline, err);
    if (!st && !observe_ask(ec, observation))
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: the watch broke",
                      conn->endpoint);
    if (!st)
        st = etcd_watch_await(ec, own->watch, deadline, err);
    if (st)
        etcd_watch_end(ec, own->watch);
    else
        hfi_link_append(&ec->observed, &own->link);
    pthread_mutex_unlock(&ec->watch_mu);
    return st;
}

void etcd_unobserve(struct hfi_conn *conn, struct hfi_observation *observation)
{
    struct etcd_conn *ec = (struct etcd_conn *)conn;
    struct etcd_observation *own = observe_own(observation);

    pthread_mutex_lock(&ec->watch_mu);
    hfi_link_remove(&own->link);
    etcd_watch_end(ec, own->watch);
    hfi_cond_wake(&ec->watch_cond); /* The thread may have nothing to do now. */
    pthread_mutex_unlock(&ec->watch_mu);
}

/* observe.c (2) */
void etcd_observe_again(struct etcd_conn *ec)
{
    struct hfi_link *at;

    for (at = ec->observed.next; at != &ec->observed && ec->watch;
         at = at->next)
        observe_ask(
            ec, hfi_container(at, struct etcd_observation, link)->observation);
}

/* observe.c (2) */
void etcd_observe_broken(struct etcd_conn *ec)
{
    struct hfi_link *at;

    for (at = ec->observed.next; at != &ec->observed; at = at->next)
        hfi_changed(
            &ec->base,
            hfi_container(at, struct etcd_observation, link)->observation,
            NULL);
}

/* observe.c (1): the caller of observe() inspects by itself. */
void etcd_observe_begun(struct etcd_conn *ec,
                        struct hfi_observation *observation)
{
    if (!hfi_link_alone(&observe_own(observation)->link))
        hfi_changed(&ec->base, observation, NULL);
}

void etcd_observed(struct etcd_conn *ec, struct hfi_observation *observation,
                   ProtobufCBinaryData name)
{
    char key[ETCD_NAME_MAX];

    if (etcd_key_of(ec, name, key))
        hfi_changed(&ec->base, observation, key);
}
