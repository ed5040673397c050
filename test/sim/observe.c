/* SPDX-License-Identifier: MIT
 *
 * observe.c - observers: what the service tells them, and what they are told.
 *
 * The slots of the backend are here: a look at a key or at all of them, whose
 * answer may be that of a follower that lags behind; and the word that
 * something has changed, which may be late, lost or doubled like any other.
 *
 * An application observes a key, or all, from time to time and holds what it is
 * told against S9: a fence never goes back, nothing is told that never was, and
 * when all is over everyone has been told that nobody holds.
 */
#include "sim.h"

#include <string.h>

/* ---- the backend ------------------------------------------------------- */

struct observing {
    struct hfi_link link;
    struct hfi_conn *conn;
    struct hfi_observation *observation;
};

static struct hfi_link observations;

void sim_observe_begin(void)
{
    hfi_link_init(&observations);
}

static void describe(const struct sim_answer *answer, struct hf_info *ret)
{
    ret->held = answer->holders > 0;
    ret->holders = answer->holders;
    ret->shared = answer->shared;
    ret->fence = answer->fence;
    ret->left_ms = answer->left_ms;
    ret->permits = answer->permits;
    memcpy(ret->owner, answer->token, sizeof(answer->token));
}

/* Ask for the state of n keys, from `key` on. */
static hf_status ask(struct hfi_conn *conn, int key, int n, int64_t deadline,
                     struct sim_answer **ret, struct hf_error *err)
{
    struct sim_call *call = sim_call_new(conn, (size_t)n);
    hf_status st;
    int i;

    for (i = 0; i < n; i++) {
        sim_call_fill(call, (size_t)i, SIM_INSPECT, NULL);
        call->requests[i].key = key + i;
    }
    st = sim_call_send(call, deadline);
    *ret = call->answers;
    return st ? hfi_fail(err, st, "sim: %s", hf_status_name(st)) : HF_OK;
}

hf_status sim_net_inspect(struct hfi_conn *conn, const char *key,
                          struct hf_info *ret, int64_t deadline,
                          struct hf_error *err)
{
    struct sim_answer *answers;
    hf_status st = ask(conn, sim_key_of(key), 1, deadline, &answers, err);

    if (!st)
        describe(&answers[0], ret);
    return st;
}

hf_status sim_net_list(struct hfi_conn *conn, const char *prefix,
                       hf_list_fn *fn, void *arg, int64_t deadline,
                       struct hf_error *err)
{
    struct sim_answer *answers;
    hf_status st = ask(conn, 0, sim.nkeys, deadline, &answers, err);
    int i;

    for (i = 0; !st && i < sim.nkeys; i++) {
        struct hf_info info = HF_INFO_INIT;

        describe(&answers[i], &info);
        if (info.held && !strncmp(sim_key_name(i), prefix, strlen(prefix)) &&
            !fn(arg, sim_key_name(i), &info))
            break;
    }
    return st;
}

/* It is known here before it is known there, or the first word is missed. */
hf_status sim_net_observe(struct hfi_conn *conn, struct hfi_observation *obs,
                          int64_t deadline, struct hf_error *err)
{
    struct sim_call *call = sim_call_new(conn, 1);
    struct observing *mine = obs->own;
    hf_status st;

    *mine = (struct observing){.conn = conn, .observation = obs};
    hfi_link_init(&mine->link);
    hfi_link_append(&observations, &mine->link);
    sim_call_fill(call, 0, SIM_OBSERVE, NULL);
    st = sim_call_send(call, deadline);
    if (!st)
        return HF_OK;
    hfi_link_remove(&mine->link);
    return hfi_fail(err, st, "sim: %s", hf_status_name(st));
}

void sim_net_unobserve(struct hfi_conn *conn, struct hfi_observation *obs)
{
    (void)conn;
    hfi_link_remove(&((struct observing *)obs->own)->link);
    if (sim_chance(300))
        sim_sleep(sim_below(500));
}

/* A word of the service has arrived.  key -1: some may have been missed. */
void sim_observe_news(struct hfi_conn *conn, int key)
{
    const char *name = key < 0 ? NULL : sim_key_name(key);
    struct observing *one;
    struct hfi_link *at;

    for (at = observations.next; at != &observations; at = at->next) {
        one = hfi_container(at, struct observing, link);
        if (one->conn == conn && (!name || one->observation->prefix ||
                                  !strcmp(one->observation->key, name)))
            hfi_changed(conn, one->observation, name);
    }
}

const size_t sim_observation_size = sizeof(struct observing);

/* ---- an application ---------------------------------------------------- */

struct seen {
    bool told, held;
    uint64_t fence;
};

/* S9 */
static void take(hf_observer *observer, struct seen *seen)
{
    struct hf_change change = HF_CHANGE_INIT;

    while (!sim.failed && hf_observer_next(observer, &change)) {
        struct seen *one = &seen[sim_key_of(change.key)];

        sim_trace("is told: %s %s %.6s fence %llu", change.key,
                  change.info.held ? "held by" : "free", change.info.owner,
                  (unsigned long long)(change.info.fence % 10000000000));
        if (change.info.fence < one->fence)
            sim_fail("S9: p%d was told of fence %llu of %s after %llu",
                     sim.proc->id, (unsigned long long)change.info.fence,
                     change.key, (unsigned long long)one->fence);
        if (change.info.fence > sim_service_newest(sim_key_of(change.key)))
            sim_fail("S9: p%d was told of a fence of %s that never was",
                     sim.proc->id, change.key);
        *one = (struct seen){true, change.info.held, change.info.fence};
    }
}

/* All is over: whoever was told of a holder was told of its end; and of a key
 * in any case. */
static void last(const struct seen *seen, int key)
{
    int i;

    for (i = 0; i < sim.nkeys; i++)
        if (seen[i].held || (i == key && !seen[i].told))
            sim_fail("S9: p%d was not told that nobody has %s", sim.proc->id,
                     sim_key_name(i));
}

static bool observe_once(bool to_the_end)
{
    struct seen *seen = sim_alloc(SIM_KEYS * sizeof(*seen));
    int key = sim_chance(300) ? -1 : (int)sim_below(sim.nkeys);
    int64_t until = sim.now + sim_below(sim.hold_ms * 4000);
    hf_observer *observer;
    hf_status st;

    st = hf_observe_start(sim.proc->client, key < 0 ? "" : sim_key_name(key),
                          key < 0 ? HF_PREFIX : 0, NULL, &observer, NULL);
    sim_trace("observes %s: %s", key < 0 ? "all" : sim_key_name(key),
              hf_status_name(st));
    if (st)
        return false;
    while (!sim.failed && !sim.proc->closing && !sim.night &&
           (to_the_end || sim.now < until)) {
        take(observer, seen);
        sim_sleep(200 + sim_below(sim.stop ? 50000 : 5000));
    }
    take(observer, seen);
    if (sim.night && !sim.proc->closing && !sim.failed)
        last(seen, key);
    hf_observe_stop(observer);
    return true;
}

/* It observes for a while, again and again, and then until the night. */
void *sim_observe_run(void *arg)
{
    (void)arg;
    while (!sim.proc->closing && !sim.failed && !sim.night &&
           !(observe_once(sim.stop || sim_chance(200)) && sim.night))
        sim_sleep(1000 + sim_below(sim.hold_ms * 1000));
    return NULL;
}
