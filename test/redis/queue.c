/* SPDX-License-Identifier: MIT
 *
 * queue.c - waiting for a lock in Redis.
 *
 * First come, first served; one is woken for each release; who waits asks
 * almost nothing; who dies while waiting costs the others little.
 */
#include "proxy.h"

#include <unistd.h>

struct dying {
    int port;
    const char *more;
};

/* A process that waits for "k" until it is killed. */
static void wait_to_die(struct t_peer *up, void *arg)
{
    struct dying *dying = arg;
    struct hf_lock_opts opts = rt_opts(30000, 0);
    hf_client *client = NULL;
    hf_lock *lk = NULL;

    CHECK_EQ(t_hear(up), 1);
    CHECK_OK(hf_open(rt_url(dying->port, dying->more), NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, "k", 60000, &opts, &lk, &t_err));
    t_fail(__FILE__, __LINE__, "it got the lock");
}

/* Behind a holder a live waiter, `dead` ones, another live one: how long the
 * last one waits after the first had it. */
static int64_t dead_waiters_cost(const char *more, int dead, int sig)
{
    struct rt_server s = {0};
    struct t_peer peer[3];
    struct dying dying = {0, more};
    hf_client *client[2];
    struct rt_waiter w[2];
    hf_lock *lk;
    int64_t cost;
    int i;

    rt_start(&s, NULL);
    dying.port = s.port;
    for (i = 0; i < dead; i++) /* before we have threads */
        peer[i] = t_fork(wait_to_die, &dying);
    for (i = 0; i < 2; i++)
        client[i] = rt_open(&s, more);
    lk = rt_lock(client[0], "k", 0, 30000, HF_FAIR);
    w[0] = rt_waiter(client[0], "k", 30000, 30000, HF_FAIR);
    rt_wait_start(&w[0]);
    t_poll_until(rt_waiters(&s, "k") == 1, 5000);
    for (i = 0; i < dead; i++) {
        t_tell(&peer[i], 1);
        t_poll_until(rt_waiters(&s, "k") == 2 + i, 5000);
    }
    w[1] = rt_waiter(client[1], "k", 30000, 30000, HF_FAIR);
    rt_wait_start(&w[1]);
    t_poll_until(rt_waiters(&s, "k") == 2 + dead, 5000);
    t_sleep_ms(100); /* they have subscribed */
    for (i = 0; i < dead; i++)
        kill(peer[i].pid, sig);
    t_sleep_ms(100); /* the server has noticed, if it can */
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w[0]);
    rt_wait_join(&w[1]);
    cost = w[1].got_at - w[0].got_at;
    printf("%lld ms\n", (long long)cost);
    for (i = 0; i < dead; i++)
        t_kill(&peer[i]);
    hf_close(client[0]);
    hf_close(client[1]);
    rt_do(&s, "DEL {holdfast:k}:queue: {holdfast:k}:meta: holdfast:k");
    rt_end(&s);
    return cost;
}

TEST(a_waiter_that_was_killed_delays_the_next_by_two_seconds_at_most)
{
    CHECK_LE(dead_waiters_cost("", 1, SIGKILL), 2000 + 500);
}

TEST(two_waiters_that_were_killed_cost_no_more_than_two_windows)
{
    CHECK_LE(dead_waiters_cost("", 2, SIGKILL), 4000 + 500);
}

TEST(a_waiter_that_is_frozen_delays_the_next_by_two_seconds_at_most)
{
    CHECK_LE(dead_waiters_cost("", 1, SIGSTOP), 2000 + 500);
}

TEST(with_barging_a_dead_waiter_keeps_nobody_from_being_woken)
{
    CHECK_LE(dead_waiters_cost("?queue=barge", 1, SIGKILL), 2000 + 500);
}

TEST(any_number_of_dead_waiters_is_passed_over_at_once)
{
    struct rt_server s = {0};
    hf_client *holder, *client;
    struct rt_waiter w;
    hf_lock *lk;

    rt_start(&s, NULL);
    holder = rt_open(&s, "");
    client = rt_open(&s, "");
    lk = rt_lock(holder, "k", 0, 60000, 0);
    rt_plant(&s, 1000, 60000, "holdfast:wake:dead");
    w = rt_waiter(client, "k", 20000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 1001 && rt_channels(&s) == 1, 5000);
    t_poll_until(rt_int(&s, "ZCOUNT {holdfast:k}:queue: 1e9 inf") == 1, 5000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w); /* long before half its lease is over */
    CHECK_OK(hf_release(rt_lock(holder, "k", 0, 60000, 0), &t_err));
    rt_do(&s, "DEL {holdfast:k}:queue: {holdfast:k}:meta:");
    hf_close(client);
    hf_close(holder);
    rt_end(&s);
}

/* A call that is made by a thread, from far away. */
struct far {
    hf_client *client;
    hf_lock *lk;
    bool force;
    hf_status st;
};

static void *far_run(void *arg)
{
    struct far *far = arg;

    far->st = far->force
                  ? hf_break_force(far->client, "k", hf_fence(far->lk), NULL)
                  : hf_release(far->lk, NULL);
    return NULL;
}

/* Each of the calls that pass over some of the dead is slow; meanwhile the key,
 * which was cut to two seconds, may end, or be `gone`. */
static void far_holder_forgets_nobody(bool force, bool gone)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct far far = {.force = force};
    struct rt_server s = {0};
    hf_client *near;
    struct proxy p;
    struct rt_waiter w;
    pthread_t thread;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    opts.timeout_ms = 20000;
    CHECK_OK(hf_open(rt_url(p.port, ""), &opts, &far.client, &t_err));
    near = rt_open(&s, "");
    far.lk = rt_lock(far.client, "k", 0, 60000, 0);
    rt_plant(&s, 1280, 60000, "holdfast:wake:dead");
    w = rt_waiter(near, "k", 20000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_int(&s, "ZCOUNT {holdfast:k}:queue: 1e9 inf") == 1, 5000);
    t_poll_until(rt_channels(&s) == 1, 5000);
    proxy_delay(&p, 300);
    CHECK_EQ(pthread_create(&thread, NULL, far_run, &far), 0);
    t_poll_until(rt_int(&s, "ZCOUNT {holdfast:k}:queue: 4e15 inf") > 0, 10000);
    if (gone)
        rt_do(&s, "DEL holdfast:k");
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_OK(far.st);
    rt_wait_join(&w); /* long before half its lease is over */
    proxy_delay(&p, 0);
    if (force)
        CHECK_STATUS(hf_release(far.lk, &t_err), HF_LOST);
    rt_do(&s, "DEL {holdfast:k}:queue: {holdfast:k}:meta:");
    hf_close(near);
    hf_close(far.client);
    proxy_stop(&p);
    rt_end(&s);
}

TEST(a_far_holder_that_releases_passes_over_any_number_of_dead)
{
    far_holder_forgets_nobody(false, false);
}

TEST(a_key_that_ends_while_it_is_passed_on_is_passed_on_all_the_same)
{
    far_holder_forgets_nobody(false, true);
    far_holder_forgets_nobody(true, true);
}

TEST(a_far_break_by_force_passes_over_any_number_of_dead)
{
    far_holder_forgets_nobody(true, false);
}

/* The first is frozen and the second dead: the third is told when to look. */
TEST(who_comes_after_a_frozen_waiter_is_told_though_one_between_is_dead)
{
    struct rt_server s = {0};
    struct dying dying = {0, ""};
    struct t_peer peer[2];
    hf_client *client;
    struct rt_waiter w;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    dying.port = s.port;
    for (i = 0; i < 2; i++) /* before we have threads */
        peer[i] = t_fork(wait_to_die, &dying);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 60000, 0);
    for (i = 0; i < 2; i++) {
        t_tell(&peer[i], 1);
        t_poll_until(rt_waiters(&s, "k") == 1 + i && rt_hears(&s, "k"), 5000);
    }
    w = rt_waiter(client, "k", 15000, 60000, HF_FAIR);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 3 && rt_hears(&s, "k"), 5000);
    kill(peer[0].pid, SIGSTOP);
    kill(peer[1].pid, SIGKILL);
    t_poll_until(rt_channels(&s) == 2, 5000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w); /* long before half its lease is over */
    for (i = 0; i < 2; i++)
        t_kill(&peer[i]);
    hf_close(client);
    rt_do(&s, "DEL {holdfast:k}:queue: {holdfast:k}:meta: holdfast:k");
    rt_end(&s);
}

/* One step looks at some of them, and the next goes on. */
TEST(many_dead_places_are_removed_little_by_little)
{
    enum { DEAD = 5000 };
    struct rt_server s = {0};
    long long calls;
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 60000, 0);
    rt_plant(&s, DEAD, -1000, "holdfast:wake:dead");
    calls = rt_calls(&s, "evalsha");
    CHECK_OK(hf_release(lk, &t_err));
    calls = rt_calls(&s, "evalsha") - calls;
    CHECK_GE(calls, DEAD / 250);
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    CHECK_EQ(rt_int(&s, "EXISTS {holdfast:k}:queue:"), 0);
    CHECK_EQ(rt_int(&s, "HLEN {holdfast:k}:meta:"), 1);
    /* The same where nobody released it. */
    rt_plant(&s, DEAD, -1000, "holdfast:wake:dead");
    CHECK_OK(hf_release(rt_lock(client, "k", 0, 60000, 0), &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS {holdfast:k}:queue:"), 0);
    hf_close(client);
    rt_end(&s);
}

/* Whoever cannot be told keeps its place for when it asks again. */
TEST(a_waiter_that_was_passed_over_has_its_place_again)
{
    struct rt_server s = {0};
    hf_client *client;
    struct rt_waiter w[2];
    double score;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "?wait=poll&retry=200ms");
    lk = rt_lock(client, "k", 0, 60000, 0);
    for (i = 0; i < 2; i++) {
        w[i] = rt_waiter(client, "k", 20000, 60000, HF_FAIR);
        rt_wait_start(&w[i]);
        t_poll_until(rt_waiters(&s, "k") == i + 1, 5000);
    }
    rt_do(&s, "ZINCRBY {holdfast:k}:queue: 4e15 %s",
          rt_text(&s, "EVAL %s 1 {holdfast:k}:queue:",
                  "return redis.call('ZRANGE',KEYS[1],0,0)[1]"));
    do {
        t_sleep_ms(20);
        score = strtod(rt_text(&s, "EVAL %s 1 {holdfast:k}:queue:",
                               "return redis.call('ZRANGE',KEYS[1],-1,-1,"
                               "'WITHSCORES')[2]"),
                       NULL);
    } while (score > 4e15);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w[0]);
    rt_wait_join(&w[1]);
    CHECK_GT(w[1].fence, w[0].fence);
    hf_close(client);
    rt_end(&s);
}

/* A lock that is passed to somebody who asks only when its time is over goes to
 * and fro between such, and nobody has it. */
TEST(those_who_ask_seldom_do_not_keep_a_free_lock_from_the_next)
{
    struct rt_server s = {0};
    hf_client *holder, *client;
    struct rt_waiter w;
    hf_lock *lk;

    rt_start(&s, NULL);
    holder = rt_open(&s, "");
    client = rt_open(&s, "?wait=poll&retry=200ms");
    lk = rt_lock(holder, "k", 0, 60000, 0);
    rt_plant(&s, 20, 60000, "");
    w = rt_waiter(client, "k", 15000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 21, 5000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    rt_do(&s, "DEL {holdfast:k}:queue: {holdfast:k}:meta:");
    hf_close(client);
    hf_close(holder);
    rt_end(&s);
}

/* A waiter that asks seldom among those who are told keeps its place, and is
 * passed the lock once it is about to ask; so the others never wait in vain. */
TEST(who_asks_seldom_gets_the_lock_and_keeps_nobody_waiting_in_vain)
{
    enum { N = 2 };
    struct rt_server s = {0};
    hf_client *client[N], *poller;
    struct rt_waiter w[N], slow;
    int64_t end;
    int i;

    rt_start(&s, NULL);
    poller = rt_open(&s, "");
    for (i = 0; i < N; i++) {
        client[i] = rt_open(&s, "");
        w[i] = rt_waiter(client[i], "k", 20000, 60000, HF_FAIR);
        w[i].hold_ms = 20;
        rt_wait_start(&w[i]);
    }
    slow = rt_waiter(poller, "k", 30000, 60000, HF_POLL);
    slow.retry_ms = 3000;
    rt_wait_start(&slow);
    for (end = t_now_ms() + 20000; t_now_ms() < end;) {
        if (__atomic_load_n(&slow.got_at, __ATOMIC_ACQUIRE))
            break;
        for (i = 0; i < N; i++) { /* The other one waits meanwhile. */
            rt_wait_join(&w[i]);
            w[i].got_at = 0;
            rt_wait_start(&w[i]);
        }
    }
    for (i = 0; i < N; i++)
        rt_wait_join(&w[i]);
    CHECK(__atomic_load_n(&slow.got_at, __ATOMIC_ACQUIRE));
    rt_wait_join(&slow);
    for (i = 0; i < N; i++)
        hf_close(client[i]);
    hf_close(poller);
    rt_end(&s);
}

/* ---- what waiting costs ------------------------------------------------ */

#define CROWD 8

/* Waiters behind a holder, each with a client of its own; how many commands it
 * takes until all have had it. */
static int wake_ups(const char *more, bool in_order)
{
    struct rt_server s = {0};
    hf_client *holder, *client[CROWD];
    struct rt_waiter w[CROWD];
    long long calls;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    holder = rt_open(&s, more);
    lk = rt_lock(holder, "k", 0, 60000, 0);
    for (i = 0; i < CROWD; i++) {
        client[i] = rt_open(&s, more);
        w[i] = rt_waiter(client[i], "k", 30000, 60000, 0);
        w[i].hold_ms = 30;
        rt_wait_start(&w[i]);
        t_poll_until(rt_waiters(&s, "k") == i + 1, 5000);
    }
    t_sleep_ms(100);
    calls = rt_calls(&s, "evalsha");
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < CROWD; i++)
        rt_wait_join(&w[i]);
    calls = rt_calls(&s, "evalsha") - calls;
    for (i = 1; i < CROWD && in_order; i++) {
        CHECK_GE(w[i].got_at, w[i - 1].got_at);
        CHECK_GT(w[i].fence, w[i - 1].fence);
    }
    for (i = 0; i < CROWD; i++)
        hf_close(client[i]);
    hf_close(holder);
    rt_end(&s);
    return (int)calls;
}

/* As many releases as holders, and no try more: who is passed the lock is told
 * all there is to know.  One who last asked long ago asks once more. */
TEST(a_release_wakes_exactly_one_and_in_order)
{
    int calls = wake_ups("", true);

    printf("%d steps for %d holders\n", calls, CROWD + 1);
    CHECK_GE(calls, CROWD + 1);
    CHECK_LE(calls, CROWD + 1 + CROWD);
}

TEST(with_barging_a_release_wakes_one_as_well)
{
    CHECK_LE(wake_ups("?queue=barge", false), CROWD + 1 + 2 * CROWD);
}

/* Three in line, so that the first, the second and another are all there. */
TEST(who_waits_asks_at_most_twice_in_a_lease)
{
    enum { N = 3, TTL = 2000, LEASES = 3 };
    struct rt_server s = {0};
    hf_client *holder, *client[N];
    struct rt_waiter w[N];
    long long calls, others;
    int64_t begin, halves;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    holder = rt_open(&s, "");
    lk = rt_lock(holder, "k", 0, 60000, HF_MANUAL); /* so it asks nothing */
    for (i = 0; i < N; i++) {
        client[i] = rt_open(&s, "");
        w[i] = rt_waiter(client[i], "k", 30000, TTL, 0);
        rt_wait_start(&w[i]);
        t_poll_until(rt_waiters(&s, "k") == i + 1, 5000);
    }
    t_sleep_ms(100);
    begin = t_now_ms();
    calls = rt_calls(&s, "evalsha");
    others = rt_calls(&s, "ping") + rt_calls(&s, "subscribe");
    t_sleep_ms(TTL * LEASES);
    calls = rt_calls(&s, "evalsha") - calls;
    halves =
        (t_now_ms() - begin) / (TTL / 2); /* A busy machine sleeps longer. */
    printf("%lld commands\n", calls);
    CHECK_LE(calls, N * (halves + 1));
    CHECK_EQ(rt_calls(&s, "ping") + rt_calls(&s, "subscribe"), others);
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < N; i++) {
        rt_wait_join(&w[i]);
        hf_close(client[i]);
    }
    hf_close(holder);
    rt_end(&s);
}

TEST(polling_works_without_any_subscription)
{
    struct rt_server s = {0};
    hf_client *holder, *client;
    struct rt_waiter w;
    hf_lock *lk;

    rt_start(&s, NULL);
    holder = rt_open(&s, "?wait=poll&retry=20ms");
    client = rt_open(&s, "?wait=poll&retry=20ms");
    lk = rt_lock(holder, "k", 0, 60000, 0);
    w = rt_waiter(client, "k", 30000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_calls(&s, "evalsha") > 10, 5000);
    CHECK_EQ(rt_calls(&s, "subscribe"), 0);
    CHECK_EQ(rt_calls(&s, "ssubscribe"), 0);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    hf_close(client);
    hf_close(holder);
    rt_end(&s);
}

TEST(no_subscription_stays_after_its_client)
{
    struct rt_server s = {0};
    hf_client *holder, *client;
    struct rt_waiter w[16];
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    holder = rt_open(&s, "");
    client = rt_open(&s, "");
    lk = rt_lock(holder, "k", 0, 60000, 0);
    for (i = 0; i < 16; i++) {
        w[i] = rt_waiter(client, "k", 30000, 60000, HF_FAIR);
        rt_wait_start(&w[i]);
    }
    t_poll_until(rt_waiters(&s, "k") == 16, 5000);
    /* However many wait: two for commands, one for wake-ups, and us. */
    t_poll_until(strstr(rt_text(&s, "INFO clients"), "connected_clients:4"),
                 5000);
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < 16; i++)
        rt_wait_join(&w[i]);
    hf_close(client);
    hf_close(holder);
    t_poll_until(strstr(rt_text(&s, "INFO clients"), "connected_clients:1"),
                 5000);
    rt_end(&s);
}

/* A server that was a master lives on as a replica, and its subscribers with
 * it: they hear what is published on the new master, which does not count
 * them. */
TEST(who_hears_through_a_replica_is_not_granted_beside_another)
{
    struct rt_server old = {0}, s = {0};
    struct hf_lock_opts opts = rt_opts(20000, 0);
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *client[2];
    struct rt_waiter w[2];
    hf_lock *lk = NULL;
    char port[2][16];
    int i;

    rt_start(&old, "--repl-diskless-sync-delay", "0", NULL);
    snprintf(port[0], sizeof(port[0]), "%d", old.port);
    rt_start(&s, "--replicaof", "127.0.0.1", port[0],
             "--repl-diskless-sync-delay", "0", NULL);
    t_poll_until(strstr(rt_text(&old, "INFO replication"), "state=online"),
                 20000);
    client[0] = rt_open(&old, "");
    lk = rt_lock(client[0], "k", 0, 20000, 0);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    w[0] = rt_waiter(client[0], "k", 15000, 20000, HF_FAIR);
    rt_wait_start(&w[0]);
    t_poll_until(rt_hears(&s, "k"), 5000);
    rt_do(&s, "REPLICAOF NO ONE");
    snprintf(port[1], sizeof(port[1]), "%d", s.port);
    rt_do(&old, "REPLICAOF 127.0.0.1 %s", port[1]);
    t_poll_until(strstr(rt_text(&s, "INFO replication"), "state=online"),
                 20000);
    client[1] = rt_open(&s, "");
    w[1] = rt_waiter(client[1], "k", 15000, 20000, HF_FAIR);
    w[1].hold_ms = 3000;
    w[0].hold_ms = 3000;
    rt_wait_start(&w[1]);
    t_poll_until(rt_waiters(&s, "k") == 2 && rt_hears(&s, "k"), 5000);
    CHECK_OK(hf_attach(client[1], "k", &handle, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < 2; i++)
        pthread_join(w[i].thread, NULL);
    CHECK_OK(w[1].st);
    CHECK_EQ(w[0].got_at, 0);
    hf_close(client[0]);
    hf_close(client[1]);
    rt_stop(&old);
    rt_stop(&s);
}

T_MAIN
