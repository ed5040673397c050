/* SPDX-License-Identifier: MIT
 *
 * observe.c - what the nodes tell of keys that are observed; redis/tracker.c
 * does the work.
 *
 * A key is watched on every node.  No lock changes hands without a majority, so
 * it is enough if a majority tells of its keys; and the last node of it that
 * changes has the core look once more, when it is decided.  A grant counts once
 * its fence is confirmed, which is written to the hash of the key, so that is
 * watched, too.
 */
#include "redlock.h"

#include "base/banned.h"

static unsigned observe_count(void *arg)
{
    const struct redlock_conn *rl = arg;

    return (unsigned)rl->n;
}

static struct hfi_mux *observe_mux(void *arg, unsigned server)
{
    struct redlock_conn *rl = arg;

    return &rl->nodes[server].observer_mux;
}

static bool observe_has(void *arg, unsigned server, const char *key)
{
    (void)arg;
    (void)server;
    (void)key;
    return true;
}

static unsigned observe_enough(void *arg)
{
    const struct redlock_conn *rl = arg;

    return (unsigned)rl->majority;
}

/* "{TAG}:meta:REST": there is no brace in the tag. */
static void observe_name(void *arg, const char *key, struct tracker_names *ret)
{
    static const char meta[] = "}:meta:";
    struct redis_names names;
    const char *text, *at;

    redlock_name(arg, key, &names);
    text = names.text[REDIS_META];
    at = strstr(text, meta);
    memcpy(ret->lock, names.text[REDIS_MAIN], REDIS_NAME_MAX);
    memcpy(ret->meta, text, REDIS_NAME_MAX);
    snprintf(ret->beside, sizeof(ret->beside), "%.*s}:readers:%s",
             (int)(at - text), text, at + strlen(meta));
}

static unsigned observe_epoch(void *arg)
{
    (void)arg;
    return 0;
}

static void observe_refused(void *arg, unsigned server, const redisReply *reply)
{
    (void)arg;
    (void)server;
    (void)reply;
}

static const struct tracker_servers observe_servers = {
    true,           observe_count, observe_mux,   observe_has,
    observe_enough, observe_name,  observe_epoch, observe_refused};

hf_status redlock_observe(struct hfi_conn *conn, struct hfi_observation *of,
                          int64_t deadline, struct hf_error *err)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;
    struct redis_tracker *none = NULL, *made;

    if (!atomic_load(&rl->tracker)) {
        made = tracker_new(conn, &observe_servers, rl, rl->nodes[0].rc.prefix);
        if (!made)
            return hfi_nomem(err);
        if (!atomic_compare_exchange_strong(&rl->tracker, &none, made))
            tracker_free(made);
    }
    return tracker_observe(atomic_load(&rl->tracker), of, deadline, err);
}

void redlock_unobserve(struct hfi_conn *conn, struct hfi_observation *of)
{
    struct redlock_conn *rl = (struct redlock_conn *)conn;

    tracker_unobserve(atomic_load(&rl->tracker), of);
}
