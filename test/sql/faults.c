/* SPDX-License-Identifier: MIT
 *
 * faults.c - what a server does that it should not: it is killed, its sessions
 * are ended, its connections are cut at any piece of data, its clock is moved,
 * its rows are locked by others.
 *
 * Run by test/servers/postgres or mysql.  Whatever happens, there is never a
 * second holder, no fence comes twice, and nothing stays locked.
 */
#include "scene.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct hf_lock_opts brief(int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    return opts;
}

static bool is_held(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.held;
}

static bool readable(int fd, int ms)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};

    return poll(&pfd, 1, ms) == 1;
}

/* ---- the server dies ---------------------------------------------------- */

TEST_TIMEOUT(a_killed_server_that_comes_back_knows_who_holds_what, 120)
{
    struct hf_lock_opts opts = brief(20000);
    const char *key = scene_key("killed");
    hf_client *a = scene_open(0, ""), *b;
    hf_lock *lk, *none = NULL;
    uint64_t fence;

    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    scene_server("kill");
    CHECK(hf_acquire(a, "another", 0, NULL, &none, NULL) != HF_OK);
    scene_server("start");
    b = scene_open(0, "");
    if (scene_is("row")) {
        CHECK(readable(hf_lost_fd(lk), 20000));
        CHECK_EQ(hf_lost_reason(lk), HF_LOSS_SESSION);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    } else {
        CHECK(hf_held(lk));
        CHECK_STATUS(hf_acquire(b, key, 0, NULL, &none, &t_err), HF_BUSY);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    CHECK_OK(hf_acquire(b, key, 10000, NULL, &lk, &t_err));
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(a_holder_without_its_server_knows_in_time, 120)
{
    struct hf_lock_opts opts = brief(1500);
    hf_client *a = scene_open(0, "&timeout=500ms");
    int64_t began = t_now_ms();
    hf_lock *lk;

    CHECK_OK(hf_acquire(a, scene_key("alone"), 0, &opts, &lk, &t_err));
    scene_server("kill");
    CHECK(readable(hf_lost_fd(lk), 20000));
    CHECK(!hf_held(lk));
    CHECK_GE(t_now_ms() - began, scene_is("row") ? 0 : 500);
    hf_release(lk, NULL);
    scene_server("start");
    hf_close(a);
}

TEST_TIMEOUT(a_server_that_says_nothing_is_given_up_in_time, 120)
{
    struct hf_lock_opts opts = brief(2000);
    const char *key = scene_key("frozen");
    hf_client *a = scene_open(0, "&timeout=400ms");
    hf_client *b = scene_open(0, "&timeout=400ms");
    hf_lock *lk, *none = NULL;
    int64_t began = t_now_ms();
    uint64_t fence;
    hf_status st;

    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    scene_server("freeze");
    st = hf_acquire(b, scene_key("none"), 0, &opts, &none, &t_err);
    CHECK(st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
    CHECK(readable(hf_lost_fd(lk), 20000));
    CHECK(!hf_held(lk));
    hf_release(lk, NULL);
    CHECK_GE(t_now_ms() - began, 100);
    scene_server("thaw");
    CHECK_OK(hf_acquire(b, key, 20000, &opts, &lk, &t_err));
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(!is_held(b, scene_key("none")), 20000);
    hf_close(a);
    hf_close(b);
}

TEST(a_waiter_never_takes_over_what_is_renewed)
{
    struct hf_lock_opts opts = brief(1500);
    const char *key = scene_key("renewed");
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    hf_lock *lk, *none = NULL;

    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    CHECK_STATUS(hf_acquire(b, key, 5000, &opts, &none, &t_err), HF_TIMEOUT);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(b, key, 10000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* ---- sessions are ended ------------------------------------------------- */

struct field {
    hf_client *clients[4];
    const char *key;
    atomic_int inside, turns;
    atomic_bool stop;
    uint64_t fence;
};

/* Take turns; errors are allowed, two at once are not. */
static void *contend(void *arg)
{
    struct field *field = arg;
    struct hf_lock_opts opts = brief(3000);
    static atomic_uint next;
    hf_client *client = field->clients[atomic_fetch_add(&next, 1) % 4];

    opts.flags = HF_FAIR;
    while (!atomic_load(&field->stop)) {
        hf_lock *lk = NULL;

        if (hf_acquire(client, field->key, 500, &opts, &lk, NULL))
            continue;
        /* A row lock is free when its session is; only then may two meet, and
         * the fence tells them apart. */
        if (!scene_is("row"))
            CHECK_EQ(atomic_fetch_add(&field->inside, 1), 0);
        if (hf_held(lk) && !scene_is("row")) {
            CHECK_GT(hf_fence(lk), field->fence);
            field->fence = hf_fence(lk);
        }
        atomic_fetch_add(&field->turns, 1);
        if (!scene_is("row"))
            CHECK_EQ(atomic_fetch_sub(&field->inside, 1), 1);
        hf_release(lk, NULL);
    }
    return NULL;
}

TEST_TIMEOUT(an_operator_who_ends_sessions_never_makes_two_holders, 120)
{
    struct field field = {.key = scene_key("ended")};
    hf_client *looker;
    pthread_t threads[8];

    for (int i = 0; i < 4; i++)
        field.clients[i] = scene_open(0, "&pool=2");
    for (int i = 0; i < 8; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, contend, &field), 0);
    for (int i = 0; i < t_scaled(20, 5); i++) {
        int turns = atomic_load(&field.turns);

        scene_end_sessions();
        t_poll_until(atomic_load(&field.turns) > turns + 5, 30000);
    }
    atomic_store(&field.stop, true);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 4; i++)
        hf_close(field.clients[i]);
    looker = scene_open(0, "");
    t_poll_until(!is_held(looker, field.key), 20000);
    hf_close(looker);
}

TEST_TIMEOUT(a_session_that_held_a_row_is_missed_at_once, 60)
{
    hf_client *client;
    hf_lock *lk;

    if (!scene_is("row"))
        T_SKIP_TRAIT("a lock that is a session");
    client = scene_open(0, "");
    CHECK_OK(hf_acquire(client, scene_key("row"), 0, NULL, &lk, &t_err));
    scene_end_sessions();
    CHECK(readable(hf_lost_fd(lk), 5000)); /* ttl/3 would be 10 s */
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_SESSION);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
}

/* ---- connections are cut ------------------------------------------------ */

/* Lock and unlock while the n-th piece of data is swallowed. */
static void cut_at(struct scene_proxy *proxy, hf_client *direct, int n,
                   uint64_t *fence)
{
    struct hf_lock_opts opts = brief(4000);
    hf_client *client = scene_open(proxy->port, "&timeout=2s&pool=2");
    char key[64];
    hf_lock *lk = NULL;
    hf_status st;

    snprintf(key, sizeof(key), "%s", scene_key("cut"));
    scene_cut(proxy, n);
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    CHECK_GT(hf_fence(lk), *fence);
    *fence = hf_fence(lk);
    st = hf_release(lk, &t_err);
    if (st != HF_OK && st != HF_UNCERTAIN &&
        !(st == HF_LOST && scene_is("row")))
        t_fail(__FILE__, __LINE__, "cut %d: release: %s", n, t_err.text);
    scene_cut(proxy, 0);
    t_poll_until(!is_held(direct, key), 10000);
    hf_close(client);
    CHECK(!is_held(direct, key));
}

TEST_TIMEOUT(a_connection_cut_at_any_piece_leaves_neither_doubt_nor_lock, 120)
{
    struct scene_proxy proxy = scene_proxy();
    hf_client *direct = scene_open(0, "");
    uint64_t fence = 0;

    for (int n = 1; n <= t_scaled(24, 12); n++)
        cut_at(&proxy, direct, n, &fence);
    hf_close(direct);
    scene_proxy_end(&proxy);
}

TEST_TIMEOUT(a_waiter_whose_wake_ups_are_cut_still_gets_the_lock, 60)
{
    struct scene_proxy proxy = scene_proxy();
    hf_client *a = scene_open(0, ""), *b = scene_open(proxy.port, "");
    struct hf_lock_opts opts = brief(3000);
    hf_lock *lk, *next;

    for (int n = 1; n <= 12; n++) {
        const char *key = scene_key("waiter");
        hf_request *req;
        struct hf_event event = HF_EVENT_INIT;

        CHECK_OK(hf_acquire(a, key, 5000, &opts, &lk, &t_err));
        CHECK_OK(hf_acquire_start(b, key, 30000, &opts, NULL, &req, &t_err));
        t_sleep_ms(20);
        scene_cut(&proxy, n);
        CHECK_OK(hf_release(lk, &t_err));
        CHECK(readable(hf_events_fd(b), 20000));
        CHECK(hf_next_event(b, &event));
        CHECK_EQ(event.type, HF_GRANTED);
        next = event.lock;
        hf_release(next, NULL);
        while (hf_next_event(b, &event))
            ;
        scene_cut(&proxy, 0);
    }
    hf_close(a);
    hf_close(b);
    scene_proxy_end(&proxy);
}

/* ---- others on the table ------------------------------------------------ */

TEST_TIMEOUT(an_old_transaction_that_has_read_the_table_disturbs_nobody, 60)
{
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    const char *key = scene_key("old");
    hf_lock *lk, *none = NULL;
    FILE *old;

    CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    old = scene_operator(scene_is_postgres()
                             ? "BEGIN ISOLATION LEVEL REPEATABLE READ; "
                               "SELECT * FROM holdfast_lock;"
                             : "START TRANSACTION WITH CONSISTENT SNAPSHOT; "
                               "SELECT * FROM holdfast_lock;");
    for (int i = 0; i < 20; i++) {
        CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
        CHECK_STATUS(hf_acquire(b, key, 0, NULL, &none, &t_err), HF_BUSY);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    pclose(old);
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(a_row_that_an_operator_has_locked_is_waited_for, 60)
{
    hf_client *client = scene_open(0, "&timeout=1s");
    const char *key = scene_key("locked");
    hf_lock *lk = NULL;
    char text[512];
    hf_status st;
    FILE *old;

    CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    snprintf(text, sizeof(text),
             "BEGIN; SELECT * FROM holdfast_lock WHERE name=%s%s' FOR UPDATE;",
             scene_is_postgres() ? "'\\x" : "X'", scene_hex(key));
    old = scene_operator(text);
    st = hf_acquire(client, key, 0, NULL, &lk, &t_err);
    if (scene_is("row"))
        CHECK_EQ(st, HF_BUSY);
    else
        CHECK(st == HF_UNAVAILABLE || st == HF_UNCERTAIN);
    pclose(old);
    CHECK_OK(hf_acquire(client, key, 10000, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

struct racer {
    pthread_barrier_t *barrier;
    atomic_int *granted;
    const char *key;
    hf_client *client;
};

static void *race(void *arg)
{
    struct racer *racer = arg;
    hf_lock *lk = NULL;
    hf_status st;

    pthread_barrier_wait(racer->barrier);
    CHECK_OK(hf_open(scene_url(0, "&pool=1&table=first_row"), NULL,
                     &racer->client, &t_err));
    st = hf_acquire(racer->client, racer->key, 0, NULL, &lk, &t_err);
    if (st != HF_OK)
        t_check_status(__FILE__, __LINE__, "the race", st, HF_BUSY);
    else
        atomic_fetch_add(racer->granted, 1);
    pthread_barrier_wait(racer->barrier);
    if (lk)
        CHECK_OK(hf_release(lk, &t_err));
    hf_close(racer->client);
    return NULL;
}

TEST_TIMEOUT(of_64_who_race_to_make_table_and_row_one_is_granted, 120)
{
    pthread_barrier_t barrier;
    atomic_int granted = 0;
    struct racer racers[64];
    pthread_t threads[64];
    char key[64];

    snprintf(key, sizeof(key), "%s", scene_key("race"));
    scene_sql("DROP TABLE IF EXISTS first_row; DROP TABLE IF EXISTS "
              "first_row_fence");
    pthread_barrier_init(&barrier, NULL, 64);
    for (int i = 0; i < 64; i++) {
        racers[i] = (struct racer){&barrier, &granted, key, NULL};
        CHECK_EQ(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (int i = 0; i < 64; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    CHECK_EQ(atomic_load(&granted), 1);
}

TEST(a_table_that_is_dropped_is_made_again)
{
    hf_client *client = scene_open(0, "&table=dropped");
    hf_lock *lk;

    for (int i = 0; i < 3; i++) {
        CHECK_OK(hf_acquire(client, "k", 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        scene_sql("DROP TABLE dropped; DROP TABLE IF EXISTS dropped_fence");
    }
    hf_close(client);
}

/* ---- the clock is moved ------------------------------------------------- */

TEST(an_hour_forward_ends_leases_but_no_fence_comes_twice)
{
    struct hf_lock_opts opts = brief(30000);
    const char *key = scene_key("forward");
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    hf_lock *lk, *next = NULL;
    hf_status st;

    scene_set_clock(0);
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    scene_set_clock(3600);
    st = hf_acquire(b, key, 0, &opts, &next, &t_err);
    if (scene_is("lease")) {
        CHECK_EQ(st, HF_OK); /* guarantees.md says so: the fence protects */
        CHECK_GT(hf_fence(next), hf_fence(lk));
        CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
        CHECK_EQ(hf_lost_reason(lk), HF_LOSS_STOLEN);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        CHECK_OK(hf_release(next, &t_err));
    } else { /* No time is stored, so nothing has happened. */
        CHECK_EQ(st, HF_BUSY);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    scene_set_clock(0);
    hf_close(a);
    hf_close(b);
}

TEST(an_hour_back_keeps_locks_and_fences_rise)
{
    struct hf_lock_opts opts = brief(2000);
    const char *key = scene_key("back");
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    hf_lock *lk, *none = NULL;
    uint64_t fence;

    scene_set_clock(0);
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    scene_set_clock(-3600);
    CHECK_STATUS(hf_acquire(b, key, 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hf_acquire(b, key, 0, &opts, &lk, &t_err));
        CHECK_GT(hf_fence(lk), fence);
        fence = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
    }
    /* Once renewed, a lease is as long as it says by the new clock too. */
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    scene_set_clock(-7200);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    if (scene_is("lease")) {
        struct hf_info info = HF_INFO_INIT;

        CHECK_OK(hf_inspect(b, key, &info, &t_err));
        CHECK_LE(info.left_ms, 2000);
    }
    CHECK_OK(hf_release(lk, &t_err));
    scene_set_clock(0);
    hf_close(a);
    hf_close(b);
}

/* A clock that runs fast by less than one percent, until it is told to stop. */
static void *run_fast(void *arg)
{
    int64_t since = t_now_ms();

    while (!atomic_load((atomic_bool *)arg)) {
        scene_set_clock_ns(0, (t_now_ms() - since) * 9000);
        t_sleep_ms(1);
    }
    return NULL;
}

TEST(a_clock_that_runs_a_little_fast_makes_no_two_holders)
{
    struct hf_lock_opts opts = brief(4000);
    const char *key = scene_key("fast");
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    hf_lock *lk, *next = NULL;
    atomic_bool stop = false;
    pthread_t thread;

    if (!scene_is("lease"))
        T_SKIP_TRAIT("a lease by the clock of the server");
    scene_set_clock(0);
    opts.flags = HF_MANUAL;
    CHECK_EQ(pthread_create(&thread, NULL, run_fast, &stop), 0);
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_acquire(b, key, 20000, &opts, &next, &t_err));
    CHECK(!hf_held(lk));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    stop = true;
    pthread_join(thread, NULL);
    hf_release(lk, NULL);
    CHECK_OK(hf_release(next, &t_err));
    scene_set_clock(0);
    hf_close(a);
    hf_close(b);
}

/* Who has it now, and the last fence, while the clock goes back again and
 * again. */
struct back {
    hf_client *client;
    const char *key;
    atomic_int *inside;
    atomic_ullong *fence;
    atomic_bool *stop;
    int taken;
};

static void *take_turns(void *arg)
{
    struct back *back = arg;
    struct hf_lock_opts opts = brief(3000);
    struct hf_error err;

    while (!*back->stop) {
        hf_lock *lk = NULL;

        if (hf_acquire(back->client, back->key, 500, &opts, &lk, &err))
            continue;
        CHECK_EQ(atomic_fetch_add(back->inside, 1), 0);
        CHECK_GT(hf_fence(lk), atomic_load(back->fence));
        *back->fence = hf_fence(lk);
        t_sleep_ms(20);
        atomic_fetch_sub(back->inside, 1);
        CHECK_OK(hf_release(lk, &err));
        back->taken++;
    }
    return NULL;
}

TEST_TIMEOUT(a_clock_that_goes_back_all_the_time_makes_no_two_holders, 60)
{
    atomic_int inside = 0;
    atomic_ullong fence = 0;
    atomic_bool stop = false;
    struct back backs[3];
    pthread_t threads[3];
    char key[128];

    snprintf(key, sizeof(key), "%s", scene_key("backwards"));
    scene_set_clock(0);
    for (int i = 0; i < 3; i++) {
        backs[i] =
            (struct back){scene_open(0, ""), key, &inside, &fence, &stop, 0};
        CHECK_EQ(pthread_create(&threads[i], NULL, take_turns, &backs[i]), 0);
    }
    for (int i = 1; i <= 20; i++) {
        scene_set_clock(-7 * i);
        t_sleep_ms(100);
    }
    stop = true;
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        hf_close(backs[i].client);
    }
    CHECK_GT(backs[0].taken + backs[1].taken + backs[2].taken, 0);
    scene_set_clock(0);
}

T_MAIN
