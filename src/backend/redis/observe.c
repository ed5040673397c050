/* SPDX-License-Identifier: MIT
 *
 * observe.c - what is told of keys that are observed; tracker.c does the work.
 */
#include "redis.h"
#include "tracker.h"

#include "base/banned.h"

static unsigned observe_count(void *arg)
{
    const struct redis_conn *rc = arg;

    return rc->cluster ? atomic_load(&rc->cluster->nnodes) : 1;
}

/* One that nobody else's connections are counted on. */
static struct hfi_mux *observe_mux(void *arg, unsigned server)
{
    struct redis_conn *rc = arg;

    return rc->cluster ? &rc->cluster->nodes[server]->replica_link.mux
                       : &rc->replica_link.mux;
}

static bool observe_has(void *arg, unsigned server, const char *key)
{
    const struct redis_conn *rc = arg;

    if (!rc->cluster)
        return true;
    if (!key)
        return redis_has_slots(rc->cluster, server);
    return atomic_load(&rc->cluster->slots[redis_key_slot(rc, key)]) == server;
}

static unsigned observe_enough(void *arg)
{
    (void)arg;
    return 1;
}

static void observe_name(void *arg, const char *key, struct tracker_names *ret)
{
    struct redis_names names;

    redis_name(arg, key, &names);
    memcpy(ret->lock, names.text[REDIS_MAIN], REDIS_NAME_MAX);
    memcpy(ret->beside, names.text[REDIS_OWNERS], REDIS_NAME_MAX);
    ret->meta[0] = '\0';
}

/* Another connection for commands was made, or the master is another. */
static unsigned observe_epoch(void *arg)
{
    struct redis_conn *rc = arg;

    return atomic_load(&rc->epoch) + atomic_load(&rc->moves);
}

static void observe_refused(void *arg, unsigned server, const redisReply *reply)
{
    bool ask;

    (void)server;
    redis_redirect(arg, reply, &ask); /* Where it has gone is known now. */
}

static const struct tracker_servers observe_servers = {
    false,          observe_count, observe_mux,   observe_has,
    observe_enough, observe_name,  observe_epoch, observe_refused};

hf_status redis_observe(struct hfi_conn *conn, struct hfi_observation *of,
                        int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct redis_tracker *none = NULL, *made;

    if (!atomic_load(&rc->tracker)) {
        made = tracker_new(conn, &observe_servers, rc, rc->prefix);
        if (!made)
            return hfi_nomem(err);
        if (!atomic_compare_exchange_strong(&rc->tracker, &none, made))
            tracker_free(made);
    }
    return tracker_observe(atomic_load(&rc->tracker), of, deadline, err);
}

void redis_unobserve(struct hfi_conn *conn, struct hfi_observation *of)
{
    struct redis_conn *rc = (struct redis_conn *)conn;

    tracker_unobserve(atomic_load(&rc->tracker), of);
}
