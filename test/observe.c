/* SPDX-License-Identifier: MIT
 *
 * observe.c - observers go on when the service is started again: run beside a
 * server of etcd, ZooKeeper or Consul (test/servers), which is killed.
 *
 * The core would find every change by asking, every 15 seconds.  A test here
 * makes so many changes, each after the one before it was told, that it cannot
 * end in time unless the service tells.
 */
#include "t.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 20 };

/* Start what does not run: what an earlier test has started went with it, and a
 * server whose port is still another's ends at once. */
static void start(void)
{
    if (getenv("HF_TEST_MEMBERS"))
        CHECK_EQ(system("cd $HF_TEST_MEMBERS && for i in */run; do "
                        "grep -q '^State:.[RSD]' "
                        "/proc/$(cat ${i%/run}/pid)/status 2>/dev/null || $i; "
                        "done"),
                 0);
    else if (getenv("HF_ZK_DIR"))
        CHECK_EQ(system("cd $HF_ZK_DIR && grep -q '^State:.[RSD]' "
                        "/proc/$(cat 1/pid)/status 2>/dev/null || "
                        "$HF_ZK_START 1 >/dev/null"),
                 0);
}

/* Kill all servers at once. */
static void kill_all(void)
{
    if (getenv("HF_TEST_MEMBERS"))
        CHECK_EQ(system("cd $HF_TEST_MEMBERS && kill -KILL $(cat */pid)"), 0);
    else if (getenv("HF_ZK_DIR"))
        CHECK_EQ(system("cd $HF_ZK_DIR && kill -KILL $(cat 1/pid)"), 0);
    else
        CHECK_EQ(system("cd $HF_TEST_DIR && for i in *.pid; do "
                        "kill -KILL $(cat $i); done"),
                 0);
}

static void start_again(void)
{
    if (!getenv("HF_TEST_MEMBERS") && !getenv("HF_ZK_DIR"))
        CHECK_EQ(system("cd $HF_TEST_DIR && for i in *.pid; do "
                        "touch ${i%.pid}.again; done"),
                 0);
    start();
}

static void restart(void)
{
    kill_all();
    start_again();
}

static bool is_open(hf_client **ret)
{
    start();
    return hf_open(getenv("HF_TEST_URL"), NULL, ret, &t_err) == HF_OK;
}

static hf_client *client_new(void)
{
    hf_client *client = NULL;

    t_poll_until(is_open(&client), 60000);
    return client;
}

static bool is_taken(hf_client *client, const char *key,
                     const struct hf_lock_opts *opts, hf_lock **ret)
{
    hf_status st = hf_acquire(client, key, 1000, opts, ret, &t_err);

    if (st)
        start();
    return st == HF_OK;
}

/* However long the service needs. */
static hf_lock *take(hf_client *client, const char *key, unsigned flags,
                     int32_t permits)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.ttl_ms = 10000;
    opts.flags = flags;
    opts.permits = permits;
    t_poll_until(is_taken(client, key, &opts, &lk), 60000);
    return lk;
}

static void give(hf_lock *lk)
{
    hf_release(lk, NULL); /* It may have been lost. */
}

struct observed {
    hf_observer *observer;
    struct hf_change last;
    uint64_t fence;
    bool told;
};

static void observe(struct observed *o, hf_client *client, const char *key,
                    unsigned flags)
{
    *o = (struct observed){.last = HF_CHANGE_INIT};
    CHECK_OK(hf_observe_start(client, key, flags, o, &o->observer, &t_err));
}

/* Is this what was told last, of all keys below? */
static bool says(struct observed *o, const char *key, const hf_lock *lk)
{
    while (hf_observer_next(o->observer, &o->last)) {
        CHECK_STR(o->last.key, key);
        CHECK_GE(o->last.info.fence, o->fence);
        o->fence = o->last.info.fence;
        o->told = true;
    }
    return o->told && o->last.info.held == (lk != NULL) &&
           (!lk || o->last.info.fence == hf_fence(lk));
}

/* Changes, each told to both before the next is made. */
static void take_turns(hf_client *client, const char *key, unsigned flags,
                       int32_t permits, struct observed *one,
                       struct observed *all)
{
    for (int i = 0; i < TURNS; i++) {
        hf_lock *lk = take(client, key, flags, permits);

        t_poll_until(says(one, key, lk), 20000);
        t_poll_until(says(all, key, lk), 20000);
        CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(says(one, key, NULL), 20000);
        t_poll_until(says(all, key, NULL), 20000);
    }
}

static void observe_through_a_restart(const char *key, const char *prefix,
                                      unsigned flags, int32_t permits)
{
    hf_client *a = client_new(), *b = client_new();
    struct observed one, all;
    hf_lock *lk;

    observe(&one, a, key, 0);
    observe(&all, a, prefix, HF_PREFIX);
    take_turns(b, key, flags, permits, &one, &all);
    lk = take(b, key, flags, permits);
    t_poll_until(says(&one, key, lk), 20000);
    restart();
    give(lk);
    lk = take(b, key, flags, permits);
    t_poll_until(says(&one, key, lk), 60000);
    t_poll_until(says(&all, key, lk), 60000);
    give(lk);
    t_poll_until(says(&one, key, NULL), 60000);
    take_turns(b, key, flags, permits, &one, &all);
    hf_observe_stop(one.observer);
    hf_observe_stop(all.observer);
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(who_holds_is_told_through_a_restart, 200)
{
    observe_through_a_restart("plain", "pl", 0, 0);
}

TEST_TIMEOUT(who_shares_is_told_through_a_restart, 200)
{
    observe_through_a_restart("shared", "sha", HF_SHARED, 0);
}

TEST_TIMEOUT(who_has_a_permit_is_told_through_a_restart, 200)
{
    observe_through_a_restart("permits", "per", 0, 3);
}

/* Has an event told that the service answers, or that it does not? */
static bool answers(hf_client *client, bool yes)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(client, &event))
        if (event.type == HF_CHANGED && !event.error.status == yes)
            return true;
    return false;
}

/* The end of a service breaks the connection that would tell of changes. */
TEST_TIMEOUT(that_the_service_is_gone_is_told, 200)
{
    hf_client *client = client_new();
    struct observed all;
    hf_lock *lk;

    observe(&all, client, "gone", HF_PREFIX);
    lk = take(client, "gone", 0, 0);
    t_poll_until(says(&all, "gone", lk), 20000);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(says(&all, "gone", NULL), 20000);
    while (answers(client, true))
        continue;
    kill_all();
    t_poll_until(answers(client, false), 20000);
    start_again();
    t_poll_until(answers(client, true), 60000);
    hf_observe_stop(all.observer);
    hf_close(client);
}

/* Whoever is told nothing any more hears of what comes after it again. */
TEST_TIMEOUT(an_observer_that_was_stopped_begins_again, 120)
{
    hf_client *a = client_new(), *b = client_new();
    struct observed one, all;

    for (int i = 0; i < 5; i++) {
        observe(&one, a, "again", 0);
        observe(&all, a, "", HF_PREFIX);
        take_turns(b, "again", 0, 0, &one, &all);
        hf_observe_stop(one.observer);
        hf_observe_stop(all.observer);
    }
    hf_close(a);
    hf_close(b);
}

T_MAIN
