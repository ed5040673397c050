/* SPDX-License-Identifier: MIT
 *
 * observe.c - telling the core that the holder of a key has changed, by NOTIFY.
 *
 * ON THE WIRE  An observation is a row among the tickets (observe.sql), which
 *   names the key or the prefix and the channel of this client.  Each statement
 *   that changes who holds a key looks for such rows, by the key and among the
 *   prefixes, and notifies their channels when it commits.  Where nobody observes
 *   that is two look-ups in the index of the tickets, and no NOTIFY, which takes a
 *   lock of the whole cluster.  The connection that listens is the one of wait.c.
 *
 * INVARIANTS
 *  (1) The connection listens before the row is written, and the row is there
 *      before the core inspects.
 *  (2) When the connection is lost the core is told that events may have been
 *      missed.  Before the look that it takes then, reobserve() makes another
 *      connection and writes the row again.  While that cannot be done the core
 *      looks all the same, and tries again soon.  hf_inspect() and hf_list()
 *      need no such connection.
 *  (3) A row lasts for a day, and is written again before a look after an hour.
 *      So what a client that died has left costs little, and not for ever.
 *  (4) The core is called with wake_mu held, and unobserve() takes it: after that
 *      nothing is told of the observation.
 *  (5) While the server is silent one unobserve() waits for it, and those that
 *      follow soon do not: many observers may end at once, and hf_close() has
 *      one deadline.  Their rows are left to (3).
 *
 * LIMITS  A statement that began before the row was there and ends after the look
 *   tells nobody: the row's own message brings a second look, and the core's slow
 *   poll finds the rest.  The same poll finds what clients with queue=barge do, and
 *   leases that lapse are looked for when they must be over.  Without tickets
 *   (queue=barge, strategy=row) and behind a pooler the core polls.
 */
#include "postgres.h"

#include "base/banned.h"

/* observe.c (3) */
#define OBSERVE_FRESH_MS (3600 * 1000)

/* What unobserve() may take; a row that stays is passed over after a day. */
#define OBSERVE_END_MS 1000

static struct pg_observation *observe_own(struct hfi_observation *observation)
{
    return observation->own;
}

static hf_status observe_run(struct pg_conn *pc, enum sql_stmt stmt,
                             const char *key, bool prefix, const char *token,
                             int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {
        .key = key, .token = token, .note = pc->sql.channel, .queue = prefix};
    struct sql_answer answer = {0};

    return sql_run(&pc->sql, stmt, &call, &answer, deadline, err);
}

/* observe.c (1) */
static hf_status observe_begin(struct pg_conn *pc,
                               struct hfi_observation *observation,
                               int64_t deadline, struct hf_error *err)
{
    struct pg_observation *own = observe_own(observation);
    hf_status st = pg_listen(pc, deadline, err);
    unsigned epoch = atomic_load(&pc->listeners);

    if (!st)
        st = observe_run(pc, SQL_OBSERVE, observation->key, observation->prefix,
                         own->token, deadline, err);
    if (st)
        return st;
    own->epoch = epoch;
    own->at = hfi_now();
    return HF_OK;
}

hf_status pg_observe(struct hfi_conn *base, struct hfi_observation *observation,
                     int64_t deadline, struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    struct pg_observation *own = observe_own(observation);
    uint64_t id[2];
    hf_status st;

    if (!pc->sql.texts[SQL_OBSERVE] || atomic_load(&pc->pooled))
        return HF_UNSUPPORTED;
    hfi_random(id, sizeof(id));
    snprintf(own->token, sizeof(own->token), "%016llx%016llx",
             (unsigned long long)id[0], (unsigned long long)id[1]);
    st = observe_begin(pc, observation, deadline, err);
    if (st)
        return st;
    own->observation = observation;
    pthread_mutex_lock(&pc->wake_mu);
    hfi_link_append(&pc->observed, &own->link);
    pthread_mutex_unlock(&pc->wake_mu);
    return HF_OK;
}

void pg_unobserve(struct hfi_conn *base, struct hfi_observation *observation)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    struct pg_observation *own = observe_own(observation);
    int64_t now = hfi_now(), deadline = now + OBSERVE_END_MS;
    bool silent;

    if (deadline > observation->end)
        deadline = observation->end;
    pthread_mutex_lock(&pc->wake_mu);
    hfi_link_remove(&own->link);
    silent = now < pc->unobserve_at;
    pthread_mutex_unlock(&pc->wake_mu);
    if (silent || !observe_run(pc, SQL_UNOBSERVE, observation->key,
                               observation->prefix, own->token, deadline, NULL))
        return;
    if (hfi_left_ms(deadline)) /* It was refused, which took no time. */
        return;
    pthread_mutex_lock(&pc->wake_mu);
    pc->unobserve_at = hfi_now() + OBSERVE_END_MS; /* observe.c (5) */
    pthread_mutex_unlock(&pc->wake_mu);
}

/* The key has changed; NULL: events may have been missed.  With the mutex
 * held. */
void pg_observed(struct pg_conn *pc, const char *key)
{
    struct hfi_observation *seen;
    struct hfi_link *at;

    for (at = pc->observed.next; at != &pc->observed; at = at->next) {
        seen = hfi_container(at, struct pg_observation, link)->observation;
        if (!key || (seen->prefix ? !strncmp(key, seen->key, strlen(seen->key))
                                  : !strcmp(key, seen->key)))
            hfi_changed(&pc->sql.base, seen, key);
    }
}

/* observe.c (2), (3) */
hf_status pg_reobserve(struct hfi_conn *base,
                       struct hfi_observation *observation, int64_t deadline,
                       struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    struct pg_observation *own = observe_own(observation);
    bool fresh;

    pthread_mutex_lock(&pc->wake_mu);
    fresh = pc->listener && own->epoch == atomic_load(&pc->listeners) &&
            hfi_now() - own->at <= OBSERVE_FRESH_MS;
    pthread_mutex_unlock(&pc->wake_mu);
    return fresh ? HF_OK : observe_begin(pc, observation, deadline, err);
}
