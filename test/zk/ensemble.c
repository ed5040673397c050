/* SPDX-License-Identifier: MIT
 *
 * ensemble.c - three servers: the leader killed, a follower killed, all
 * restarted, one cut off from the rest, one frozen.
 *
 * Locks are kept through what a quorum survives, and nobody is granted what
 * another still believes in, whatever happens.
 */
#include "zkt.h"

#include <signal.h>

static void kill_leader(void)
{
    int id = zkt_server('l');

    zkt_signal_server(id, SIGKILL);
    zkt_server('l');
    zkt_start_server(id);
}

static void kill_follower(void)
{
    int id = zkt_server('f');

    zkt_signal_server(id, SIGKILL);
    t_sleep_ms(500);
    zkt_start_server(id);
}

/* Whichever server a session is on, it has to move. */
static void restart_one_by_one(void)
{
    for (int id = 1; id <= ZKT_SERVERS; id++) {
        zkt_signal_server(id, SIGKILL);
        t_sleep_ms(100);
        zkt_start_server(id);
        zkt_await_all();
    }
}

static void restart_all(void)
{
    for (int id = 1; id <= ZKT_SERVERS; id++)
        zkt_signal_server(id, SIGKILL);
    t_sleep_ms(100);
    for (int id = 1; id <= ZKT_SERVERS; id++)
        zkt_start_server(id);
    zkt_await_all();
}

static void freeze_leader(void)
{
    int id = zkt_server('l');

    zkt_signal_server(id, SIGSTOP);
    t_sleep_ms(100);
    zkt_server('l');
    zkt_signal_server(id, SIGCONT);
    /* When it notices that it has been deposed it hangs up on everybody. */
    t_poll_until(zkt_mode_of(id) == 'f', 60000);
}

TEST_TIMEOUT(a_killed_leader_costs_no_lock, 120)
{
    zkt_outlast(kill_leader, 30000);
}

TEST_TIMEOUT(a_killed_follower_costs_no_lock, 120)
{
    zkt_outlast(kill_follower, 30000);
}

TEST_TIMEOUT(a_rolling_restart_moves_sessions_and_costs_no_lock, 180)
{
    zkt_outlast(restart_one_by_one, 60000);
}

TEST_TIMEOUT(a_restart_of_all_costs_no_lock, 180)
{
    zkt_outlast(restart_all, 60000);
}

TEST_TIMEOUT(a_frozen_leader_costs_no_lock, 180)
{
    zkt_outlast(freeze_leader, 60000);
}

/* It accepts connections, says nothing, and is one in three of those that are
 * tried first. */
TEST_TIMEOUT(a_frozen_server_keeps_nobody_from_opening, 120)
{
    struct hf_lock_opts opts = zkt_opts(60000);
    const char *key = zkt_key("k");
    hf_client *clients[8];
    int id;
    hf_lock *lk;

    zkt_await_all();
    id = zkt_server('f');
    zkt_signal_server(id, SIGSTOP);
    for (int i = 0; i < 8; i++) {
        clients[i] = zkt_open(zkt_url("?ttl=60s"));
        CHECK_OK(hf_acquire(clients[i], key, 20000, &opts, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    zkt_signal_server(id, SIGCONT);
    for (int i = 0; i < 8; i++)
        hf_close(clients[i]);
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(key)) == 0, 20000);
    zkt_end();
    zkt_await_all();
}

/* An answer proves that the leader has heard of a session some time ago.  The
 * session that the lock moves to has proven less than the one before. */
TEST_TIMEOUT(a_lock_that_moves_to_another_session_is_kept, 120)
{
    struct hf_lock_opts brief = zkt_opts(3000), opts = zkt_opts(60000);
    hf_client *client;
    hf_lock *other, *lk;

    zkt_await_all();
    client = zkt_open(zkt_url("?ttl=60s"));
    CHECK_OK(
        hf_acquire(client, zkt_key("other"), 20000, &brief, &other, &t_err));
    t_sleep_ms(3000); /* Its session is not new any more. */
    CHECK_OK(hf_acquire(client, zkt_key("k"), 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_extend(lk, 3000, &t_err));
    CHECK_GT(hf_remaining_ms(lk), 0);
    t_sleep_ms(4000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_release(other, NULL);
    hf_close(client);
}

/* How many are connected to a server. */
static int sessions_at(int id)
{
    const char *at = zkt_says(id, "cons");
    int n = 0;

    while ((at = strstr(at, "sid="))) {
        at++;
        n++;
    }
    return n;
}

/* The library would wait for 13 s: two thirds of the session's timeout. */
TEST_TIMEOUT(a_server_that_falls_silent_is_left_for_another, 120)
{
    struct hf_lock_opts opts = zkt_opts(16000);
    const char *key = zkt_key("k");
    hf_client *client = NULL;
    int id, before;
    hf_lock *lk;

    zkt_await_all();
    id = zkt_server('f');
    before = sessions_at(id);
    for (int i = 0; i < 50 && sessions_at(id) == before; i++) {
        hf_close(client);
        client = zkt_open(zkt_url("?ttl=16s"));
    }
    CHECK_EQ(sessions_at(id), before + 1);
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    zkt_signal_server(id, SIGSTOP);
    t_poll_until(hf_extend(lk, 0, NULL) == HF_OK, 11000);
    zkt_signal_server(id, SIGCONT);
    CHECK_OK(hf_release(lk, &t_err));
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(key)) == 0, 20000);
    zkt_end();
    hf_close(client);
    zkt_await_all();
}

/* A leader that was deposed and has not noticed answers reads and syncs; only
 * for a transaction it needs the others. */
TEST(a_heartbeat_asks_a_majority)
{
    struct hf_lock_opts opts = zkt_opts(2000);
    const char *key = zkt_key("k");
    hf_client *client;
    long long before;
    hf_lock *lk;

    zkt_await_all();
    client = zkt_open(zkt_url("?ttl=2s"));
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    t_sleep_ms(300);
    before = zkt_zxid_of(1);
    CHECK_GT(before, 0);
    t_poll_until(zkt_zxid_of(1) >= before + 2, 10000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* The only server that answers has lost its quorum: it goes on for a while, and
 * what it says is worth nothing. */
TEST_TIMEOUT(a_server_that_is_cut_off_proves_nothing, 120)
{
    struct hf_lock_opts opts = zkt_opts(2000);
    const char *key = zkt_key("k");
    int alone, leader;
    char url[128];
    hf_client *a, *b;
    hf_lock *lk, *next;

    zkt_await_all();
    leader = zkt_server('l');
    alone = zkt_server('f');
    snprintf(url, sizeof(url), "zk://127.0.0.1:%ld/hf-test",
             zkt_number_of(alone, "port"));
    a = zkt_open(url);
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 20000, &opts, &lk, &t_err));
    for (int id = 1; id <= ZKT_SERVERS; id++)
        if (id != alone)
            zkt_signal_server(id, SIGSTOP);
    t_poll_until(!hf_held(lk), 8000);
    CHECK(zkt_mode_of(leader) == 0);
    for (int id = 1; id <= ZKT_SERVERS; id++)
        if (id != alone)
            zkt_signal_server(id, SIGCONT);
    CHECK_OK(hf_acquire(b, key, 60000, &opts, &next, &t_err));
    CHECK(!hf_held(lk));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_release(next, &t_err));
    zkt_await_all();
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(key)) == 0, 20000);
    zkt_end();
    hf_close(a);
    hf_close(b);
}

/* A follower tells the leader whom it has heard only when the leader pings it.
 * Frozen right after it has passed a renewal on, it has not told of that, and the
 * leader counts from something earlier. */
TEST_TIMEOUT(who_is_cut_off_with_a_follower_right_after_a_renewal_is_told, 120)
{
    struct hf_lock_opts opts = zkt_opts(3000);
    const char *key = zkt_key("k");
    int follower, left, right;
    char here[128], there[256];
    struct zkt_waiter w;
    hf_client *a, *b;
    hf_lock *lk;

    zkt_await_all();
    follower = zkt_server('f');
    left = follower % ZKT_SERVERS + 1;
    right = left % ZKT_SERVERS + 1;
    snprintf(here, sizeof(here), "zk://127.0.0.1:%ld/hf-test",
             zkt_number_of(follower, "port"));
    snprintf(there, sizeof(there), "zk://127.0.0.1:%ld,127.0.0.1:%ld/hf-test",
             zkt_number_of(left, "port"), zkt_number_of(right, "port"));
    a = zkt_open(here);
    b = zkt_open(there);
    opts.flags = HF_MANUAL;
    CHECK_OK(hf_acquire(a, key, 20000, &opts, &lk, &t_err));
    zkt_wait_start(&w, b, key, 60000, 3000);
    t_sleep_ms(1200); /* The library itself keeps quiet for longer. */
    CHECK_OK(hf_extend(lk, 0, &t_err));
    zkt_signal_server(follower, SIGSTOP);
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK(!hf_held(lk));
    zkt_signal_server(follower, SIGCONT);
    CHECK_GT(hf_fence(w.lk), hf_fence(lk));
    CHECK_OK(hf_release(w.lk, &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    zkt_await_all();
    hf_close(a);
    hf_close(b);
}

/* Sessions last longer than leases, so that what is proven of an earlier moment
 * is a whole lease all the same. */
TEST_TIMEOUT(a_lock_that_is_renewed_keeps_most_of_its_lease, 60)
{
    struct hf_lock_opts opts = zkt_opts(6000);
    const char *key = zkt_key("k");
    int64_t least = INT64_MAX, end;
    hf_client *client;
    hf_lock *lk;

    zkt_await_all();
    client = zkt_open(zkt_url("?ttl=6s"));
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    for (end = t_now_ms() + 9000; t_now_ms() < end; t_sleep_ms(20))
        if (hf_remaining_ms(lk) < least)
            least = hf_remaining_ms(lk);
    CHECK_GT(least, 1000); /* 4000, less what a busy machine takes */
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* The leader is asked when a session connects again, however long after the
 * first time: that is as good as a request that it knows of. */
TEST_TIMEOUT(a_connection_that_breaks_costs_nothing_of_the_next_lease, 60)
{
    struct hf_lock_opts opts = zkt_opts(3000);
    struct hf_info info = HF_INFO_INIT;
    const char *key = zkt_key("k");
    struct zkt_proxy proxy;
    hf_client *client;
    int64_t begun;
    hf_lock *lk;

    zkt_await_all();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, "?ttl=3s"));
    begun = t_now_ms();
    /* The session lasts 4500 ms, and speaks about once in 750. */
    t_poll_until(t_now_ms() > begun + 5000, 20000);
    for (int i = 0; i < 3; i++) {
        atomic_store(&proxy.left, 0);
        atomic_store(&proxy.cut, ZKT_BEFORE);
        t_poll_until(atomic_load(&proxy.cuts) == i + 1, 10000);
        t_poll_until(hf_inspect(client, key, &info, NULL) == HF_OK, 10000);
        CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
        CHECK_GT(hf_remaining_ms(lk), 1000);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    zkt_proxy_stop(&proxy);
}

/* Turns that nothing protects but the lock. */
struct field {
    const char *key;
    atomic_int inside, stop;
    atomic_long turns;
    long counter;
    uint64_t fence;
};

static void *contend(void *arg)
{
    struct hf_lock_opts opts = zkt_opts(6000);
    struct field *field = arg;
    hf_client *client = zkt_open(zkt_url(""));

    while (!atomic_load(&field->stop)) {
        hf_lock *lk;
        hf_status st = hf_acquire(client, field->key, 2000, &opts, &lk, &t_err);
        long seen;

        if (st) {
            if (st != HF_TIMEOUT && st != HF_UNCERTAIN)
                t_check_status(__FILE__, __LINE__, "hf_acquire", st,
                               HF_UNAVAILABLE);
            continue;
        }
        CHECK_EQ(atomic_fetch_add(&field->inside, 1), 0);
        CHECK_LT(field->fence, hf_fence(lk));
        field->fence = hf_fence(lk);
        seen = field->counter;
        t_sleep_ms(1);
        field->counter = seen + 1;
        CHECK(hf_held(lk));
        atomic_fetch_add(&field->turns, 1);
        CHECK_EQ(atomic_fetch_sub(&field->inside, 1), 1);
        hf_release(lk, NULL);
    }
    hf_close(client);
    return NULL;
}

TEST_TIMEOUT(one_holder_at_a_time_while_servers_come_and_go, 400)
{
    struct field field = {.key = zkt_key("k")};
    pthread_t threads[4];
    long before;

    zkt_await_all();
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, contend, &field), 0);
    for (int i = 0; i < 4; i++) {
        before = atomic_load(&field.turns);
        t_poll_until(atomic_load(&field.turns) > before + 20, 90000);
        zkt_await_all(); /* Two that are down at once stop everybody. */
        if (i % 2)
            kill_follower();
        else
            kill_leader();
    }
    before = atomic_load(&field.turns);
    t_poll_until(atomic_load(&field.turns) > before + 20, 90000);
    atomic_store(&field.stop, 1);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(field.counter, atomic_load(&field.turns));
    zkt_await_all();
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(field.key)) == 0, 20000);
    zkt_end();
}

T_MAIN
