/* SPDX-License-Identifier: MIT
 *
 * observe.c - observers of postgres: and sqlite: hear from the service: they ask
 * no more than now and then while nothing happens, and go on after the server
 * was restarted.  What they are told is in test/conformance/observe.c.
 *
 * Run by test/servers/postgres, and without a server for SQLite.
 */
#include "scene.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* Less than the core waits before it looks by itself. */
#define TOLD_MS 10000

static uint64_t reconnects(hf_client *client)
{
    struct hf_stats stats = {.size = sizeof(stats)};

    CHECK_OK(hf_stats(client, &stats, &t_err));
    return stats.reconnects;
}

/* The last that it was told of the key. */
static bool sees(hf_observer *observer, const char *key, const hf_lock *lk)
{
    static struct hf_change last;
    struct hf_change change = HF_CHANGE_INIT;

    while (hf_observer_next(observer, &change))
        if (!strcmp(change.key, key))
            last = change;
    if (strcmp(last.key, key) != 0 || last.info.held != (lk != NULL))
        return false;
    return !lk || last.info.fence == hf_fence(lk);
}

static int64_t rows(void)
{
    return scene_sql("SELECT count(*) FROM holdfast_lock_queue WHERE kind<-2");
}

/* A client that polled would ask four times a second. */
static void idle_observer(unsigned flags)
{
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    hf_observer *observer;
    char key[96];
    uint64_t before;
    hf_lock *lk;

    snprintf(key, sizeof(key), "%s", scene_key(flags ? "prefix" : "key"));
    CHECK_OK(hf_observe_start(b, key, flags, NULL, &observer, &t_err));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
        t_poll_until(sees(observer, key, lk), 20000);
        CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(sees(observer, key, NULL), 20000);
    }
    t_sleep_ms(500);
    before = scene_requests(b);
    t_sleep_ms(4000);
    CHECK_LE(scene_requests(b) - before, 3);
    hf_observe_stop(observer);
    hf_close(b);
    hf_close(a);
}

TEST(an_observer_of_a_key_does_not_poll)
{
    idle_observer(0);
}

TEST(an_observer_of_a_prefix_does_not_poll)
{
    idle_observer(HF_PREFIX);
}

/* Every way in which the holder changes is told. */
TEST_TIMEOUT(each_change_is_told, 60)
{
    struct hf_lock_opts read = HF_LOCK_OPTS_INIT, owned = read, keep = read;
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    struct hf_change change = HF_CHANGE_INIT;
    hf_lock *lk, *two;
    hf_observer *observer;
    char key[96];

    read.flags = HF_SHARED;
    owned.owner = "job";
    keep.min_hold_ms = 600000;
    snprintf(key, sizeof(key), "%s", scene_key("each"));
    CHECK_OK(hf_observe_start(b, key, 0, NULL, &observer, &t_err));
    t_poll_until(sees(observer, key, NULL), TOLD_MS);
    t_sleep_ms(300);
    CHECK_OK(hf_acquire(a, key, 0, &owned, &lk, &t_err));
    t_poll_until(sees(observer, key, lk), TOLD_MS);
    CHECK_OK(hf_downgrade(lk, &t_err));
    t_poll_until(hf_observer_next(observer, &change) && change.info.shared,
                 TOLD_MS);
    CHECK_OK(hf_acquire(a, key, 0, &read, &two, &t_err));
    t_poll_until(sees(observer, key, two), TOLD_MS);
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(hf_break(a, key, hf_fence(lk), &t_err));
    t_poll_until(hf_observer_next(observer, &change) && change.info.broken,
                 TOLD_MS);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    t_poll_until(sees(observer, key, NULL), TOLD_MS);
    CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
    t_poll_until(sees(observer, key, lk), TOLD_MS);
    CHECK_OK(hf_break_force(a, key, hf_fence(lk), &t_err));
    t_poll_until(sees(observer, key, NULL), TOLD_MS);
    hf_release(lk, NULL);
    CHECK_OK(hf_acquire(a, key, 0, &keep, &lk, &t_err));
    t_poll_until(sees(observer, key, lk), TOLD_MS);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(hf_observer_next(observer, &change) && change.info.kept,
                 TOLD_MS);
    hf_observe_stop(observer);
    hf_close(b);
    hf_close(a);
}

TEST(who_stops_observing_leaves_nothing)
{
    hf_client *a, *b;
    hf_observer *key, *prefix;

    if (scene_is_sqlite())
        T_SKIP_TRAIT("a row for each observation");
    a = scene_open(0, "");
    b = scene_open(0, "&queue=barge");
    CHECK_OK(hf_observe_start(a, scene_key("one"), 0, NULL, &key, &t_err));
    CHECK_OK(hf_observe_start(a, scene_key("all"), HF_PREFIX, NULL, &prefix,
                              &t_err));
    t_poll_until(rows() == 2, 20000);
    hf_observe_stop(key);
    t_poll_until(rows() == 1, 20000);
    hf_observe_stop(prefix);
    t_poll_until(rows() == 0, 20000);
    /* Without tickets it polls. */
    CHECK_OK(hf_observe_start(b, scene_key("one"), 0, NULL, &key, &t_err));
    t_poll_until(sees(key, scene_key("one"), NULL), 20000);
    CHECK_EQ(rows(), 0);
    hf_observe_stop(key);
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(an_observer_outlives_a_restart_of_the_server, 120)
{
    hf_client *a, *b;
    hf_observer *observer;
    uint64_t before;
    char key[96];
    hf_lock *lk;

    if (scene_is_sqlite())
        T_SKIP_TRAIT("a server");
    a = scene_open(0, "");
    b = scene_open(0, "");
    snprintf(key, sizeof(key), "%s", scene_key("restart"));
    CHECK_OK(hf_observe_start(b, key, 0, NULL, &observer, &t_err));
    t_poll_until(sees(observer, key, NULL), 20000);
    /* Its row is lost, as by a failover. */
    scene_sql("DELETE FROM holdfast_lock_queue; SELECT 0");
    scene_server("stop");
    scene_server("start");
    t_poll_until(rows() == 1, 60000);
    CHECK_OK(hf_acquire(a, key, 20000, NULL, &lk, &t_err));
    t_poll_until(sees(observer, key, lk), 30000);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(sees(observer, key, NULL), 30000);
    t_sleep_ms(500);
    before = scene_requests(b);
    t_sleep_ms(3000);
    CHECK_LE(scene_requests(b) - before, 3); /* It hears again. */
    hf_observe_stop(observer);
    hf_close(a);
    hf_close(b);
}

/* A look needs no connection that listens.  Whoever has none polls meanwhile. */
TEST_TIMEOUT(a_look_goes_on_where_nobody_can_connect, 120)
{
    struct hf_info info = HF_INFO_INIT;
    hf_client *a, *b;
    hf_observer *observer;
    uint64_t before;
    FILE *operator;
    char key[96];
    hf_lock *lk;

    if (scene_is_sqlite())
        T_SKIP_TRAIT("a server");
    a = scene_open(0, "");
    b = scene_open(0, "");
    snprintf(key, sizeof(key), "%s", scene_key("look"));
    CHECK_OK(hf_observe_start(b, key, 0, NULL, &observer, &t_err));
    t_poll_until(sees(observer, key, NULL), 20000);
    CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
    t_poll_until(sees(observer, key, lk), 20000);
    before = reconnects(b);
    operator= scene_operator("ALTER ROLE holdfast NOLOGIN;");
    scene_operator_runs(operator, "SELECT pg_terminate_backend(pid) FROM "
                                  "pg_stat_activity WHERE query LIKE "
                                  "'LISTEN%' AND pid<>pg_backend_pid();");
    t_poll_until(reconnects(b) > before, 20000);
    for (int i = 0; i < 10; i++) {
        CHECK_OK(hf_inspect(b, key, &info, &t_err));
        CHECK_EQ(info.fence, hf_fence(lk));
        t_sleep_ms(50);
    }
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(sees(observer, key, NULL), TOLD_MS);
    scene_operator_runs(operator, "ALTER ROLE holdfast LOGIN;");
    CHECK_EQ(pclose(operator), 0);
    hf_observe_stop(observer);
    hf_close(a);
    hf_close(b);
}

T_MAIN

/* One by one they would take longer than the test may. */
#define SESSIONS_MAX 16

/* Send a signal to the server's processes that serve clients; at first they are
 * looked for. */
static void signal_sessions(int64_t pids[SESSIONS_MAX], int *n, int sig)
{
    for (; sig == SIGSTOP && *n < SESSIONS_MAX; ++*n) {
        pids[*n] =
            scene_sql("SELECT coalesce((SELECT pid FROM pg_stat_activity WHERE "
                      "usename='holdfast' ORDER BY pid LIMIT 1 OFFSET %d),0)",
                      *n);
        if (!pids[*n])
            break;
    }
    for (int i = 0; i < *n; i++)
        if (kill((pid_t)pids[i], sig))
            CHECK_EQ(errno, ESRCH); /* It has gone by itself. */
}

TEST_TIMEOUT(an_observer_outlives_a_connection_that_is_silent, 120)
{
    struct hf_info info = HF_INFO_INIT;
    int64_t pids[SESSIONS_MAX];
    hf_observer *observer;
    hf_client *a, *b;
    char key[96];
    hf_lock *lk;
    int n = 0;

    if (scene_is_sqlite())
        T_SKIP_TRAIT("a server");
    b = scene_open(0, "&timeout=2s");
    snprintf(key, sizeof(key), "%s", scene_key("silent"));
    CHECK_OK(hf_observe_start(b, key, 0, NULL, &observer, &t_err));
    t_poll_until(sees(observer, key, NULL), 20000);
    signal_sessions(pids, &n, SIGSTOP);
    CHECK_GE(n, 2);
    CHECK_NE(hf_inspect(b, key, &info, &t_err), HF_OK);
    a = scene_open(0, "");
    CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
    t_poll_until(sees(observer, key, lk), TOLD_MS);
    signal_sessions(pids, &n, SIGCONT);
    CHECK_OK(hf_release(lk, &t_err));
    hf_observe_stop(observer);
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(closing_waits_once_for_all_observers_of_a_silent_server, 60)
{
    enum { N = 100 };
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_observer *observers[N];
    hf_client *client;
    char name[16];

    if (scene_is_sqlite())
        T_SKIP_TRAIT("a server that is silent");
    opts.timeout_ms = 2000;
    CHECK_OK(hf_open(scene_url(0, ""), &opts, &client, &t_err));
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "o%d", i);
        CHECK_OK(hf_observe_start(client, scene_key(name), 0, NULL,
                                  &observers[i], &t_err));
    }
    t_poll_until(rows() == N, 20000);
    scene_server("freeze");
    hf_close(client);
    scene_server("thaw");
    for (int i = 0; i < N; i++)
        hf_observe_stop(observers[i]);
    scene_sql("DELETE FROM holdfast_lock_queue WHERE kind<-2");
}
