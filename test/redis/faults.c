/* SPDX-License-Identifier: MIT
 *
 * faults.c - what a Redis server can do to those who hold a lock: die, come
 * back empty, come back with its data, freeze, forget its scripts, lose its
 * data to an operator, cut connections.
 *
 * Whatever happens, a holder that can no longer prove its lock knows before
 * another may be granted; who waits gets the lock; fences rise; and nothing is
 * left in the database but the fences.
 */
#include "rt.h"

#include <poll.h>
#include <unistd.h>

/* What the scheduler of a busy host may add to a deadline. */
#define SLACK 250

static bool is_told(hf_lock *lk, int64_t ms)
{
    struct pollfd one = {.fd = hf_lost_fd(lk), .events = POLLIN};

    return poll(&one, 1, (int)ms) == 1;
}

/* The lock is lost within `ms`, for this reason; end the handle. */
static void check_lost(hf_lock *lk, int64_t ms, hf_loss reason)
{
    CHECK(is_told(lk, ms));
    CHECK(!hf_held(lk));
    CHECK_STR(hf_loss_name(hf_lost_reason(lk)), hf_loss_name(reason));
    CHECK_EQ(hf_remaining_ms(lk), 0);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
}

/* ---- the server -------------------------------------------------------- */

TEST(the_holder_on_a_killed_server_is_told_before_its_lease_is_over)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;
    int64_t killed;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 1500, 0);
    CHECK(!is_told(lk, 1600)); /* it is renewed */
    killed = t_now_ms();
    rt_crash(&s);
    CHECK(is_told(lk, 1500 + SLACK));
    CHECK_LE(t_now_ms() - killed, 1500 + SLACK);
    CHECK(!hf_held(lk));
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_EXPIRED);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
    rt_stop(&s);
}

TEST(the_holder_on_a_frozen_server_is_told_before_its_lease_is_over)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;
    int64_t frozen;

    rt_start(&s, NULL);
    client = rt_open(&s, "?timeout=300ms");
    lk = rt_lock(client, "k", 0, 1200, 0);
    frozen = t_now_ms();
    rt_signal(&s, SIGSTOP);
    CHECK(is_told(lk, 1200 + SLACK));
    CHECK_LE(t_now_ms() - frozen, 1200 + SLACK);
    CHECK(!hf_held(lk));
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_EXPIRED);
    rt_signal(&s, SIGCONT);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    /* A late renewal may have reached the server: it ends with its ttl. */
    lk = rt_lock(client, "k", 5000, 1200, 0);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

TEST(a_server_frozen_for_less_than_the_lease_costs_nothing)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 3000, 0);
    t_sleep_ms(900);
    rt_signal(&s, SIGSTOP);
    t_sleep_ms(1000);
    rt_signal(&s, SIGCONT);
    CHECK(!is_told(lk, 3000));
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

TEST(a_server_that_comes_back_empty_has_lost_the_lock)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;
    uint64_t fence;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 3000, 0);
    fence = hf_fence(lk);
    rt_crash(&s);
    rt_again(&s);
    check_lost(lk, 3000 + SLACK, HF_LOSS_DELETED);
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0); /* never made again */
    lk = rt_lock(client, "k", 1000, 3000, 0);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

TEST(a_server_that_comes_back_with_its_data_still_has_the_lock)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk, *other = NULL;
    uint64_t fence;

    rt_start(&s, "--appendonly", "yes", "--appendfsync", "always", NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 4000, HF_FAIR);
    fence = hf_fence(lk);
    rt_crash(&s);
    rt_again(&s);
    CHECK(!is_told(lk, 4000 + SLACK)); /* so it was renewed since */
    CHECK(hf_held(lk));
    CHECK_STATUS(
        hf_acquire(client, "k", 0,
                   &(struct hf_lock_opts){.size = sizeof(struct hf_lock_opts),
                                          .flags = HF_FAIR},
                   &other, &t_err),
        HF_BUSY);
    CHECK_OK(hf_release(lk, &t_err));
    lk = rt_lock(client, "k", 0, 4000, 0);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

/* ---- scripts and data -------------------------------------------------- */

TEST(a_script_flush_between_any_two_commands_is_never_noticed)
{
    struct rt_server s = {0};
    struct hf_info info = HF_INFO_INIT;
    hf_client *client;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < 20; i++) {
        rt_do(&s, "SCRIPT FLUSH");
        lk = rt_lock(client, "k", 0, 600, 0);
        rt_do(&s, "SCRIPT FLUSH");
        CHECK_OK(hf_extend(lk, 0, &t_err));
        rt_do(&s, "SCRIPT FLUSH");
        CHECK_OK(hf_inspect(client, "k", &info, &t_err));
        CHECK(info.held);
        rt_do(&s, "SCRIPT FLUSH");
        if (i == 0)
            CHECK(!is_told(lk, 700)); /* the keeper meets it, too */
        rt_do(&s, "SCRIPT FLUSH");
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    rt_end(&s);
}

TEST(many_locks_are_renewed_though_the_scripts_are_flushed)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk[100];
    char key[16];
    int64_t end;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        lk[i] = rt_lock(client, key, 0, 900, 0);
    }
    for (end = t_now_ms() + 2500; t_now_ms() < end; t_sleep_ms(3))
        rt_do(&s, "SCRIPT FLUSH");
    for (i = 0; i < 100; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    rt_end(&s);
}

TEST(what_an_operator_deletes_is_lost_and_says_so)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;
    uint64_t fence = 0;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < 4; i++) {
        lk = rt_lock(client, "k", 0, 900, 0);
        CHECK_GT(hf_fence(lk), fence);
        fence = hf_fence(lk);
        rt_do(&s, i % 2 ? "FLUSHALL" : "DEL holdfast:k");
        check_lost(lk, 900 + SLACK, HF_LOSS_DELETED);
        CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    }
    hf_close(client);
    rt_end(&s);
}

TEST(what_somebody_else_takes_is_lost_and_stays_theirs)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 900, 0);
    rt_do(&s, "SET holdfast:k thief PX 60000");
    check_lost(lk, 900 + SLACK, HF_LOSS_STOLEN);
    CHECK_STR(rt_text(&s, "GET holdfast:k"), "thief");
    CHECK_GT(rt_int(&s, "PTTL holdfast:k"), 30000);
    rt_do(&s, "DEL holdfast:k");
    hf_close(client);
    rt_end(&s);
}

/* One key is of another type, one is gone, one is another's: the renewals of
 * the rest, in the same batch, are not spoilt; and who was lost is kept again
 * once it is taken again. */
TEST(locks_that_cannot_be_renewed_leave_the_others_alone)
{
    enum { LOCKS = 12, BAD = 3 };
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk[LOCKS];
    char key[16];
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        lk[i] = rt_lock(client, key, 0, 1500, 0);
    }
    rt_do(&s, "DEL holdfast:k0 holdfast:k1");
    rt_do(&s, "RPUSH holdfast:k1 precious");
    rt_do(&s, "SET holdfast:k2 thief PX 60000");
    for (i = 0; i < BAD; i++)
        t_poll_until(!hf_held(lk[i]), 1500 + SLACK);
    CHECK_STR(rt_text(&s, "LINDEX holdfast:k1 0"), "precious");
    rt_do(&s, "DEL holdfast:k1 holdfast:k2");
    for (i = 0; i < BAD; i++) {
        CHECK_STATUS(hf_release(lk[i], &t_err), HF_LOST);
        snprintf(key, sizeof(key), "k%d", i);
        lk[i] = rt_lock(client, key, 2000, 1500, 0);
    }
    t_sleep_ms(3200);
    for (i = 0; i < LOCKS; i++) {
        CHECK(hf_held(lk[i]));
        CHECK_OK(hf_release(lk[i], &t_err));
    }
    hf_close(client);
    rt_end(&s);
}

/* While a loop takes and gives back, its lock is never without an expiry. */
TEST(no_key_is_ever_without_an_expiry)
{
    struct rt_server s = {0};
    struct rt_waiter w[4];
    hf_client *client;
    long long left;
    int i, round;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (round = 0; round < t_scaled(20, 5); round++) {
        for (i = 0; i < 4; i++) {
            w[i] = rt_waiter(client, "k", 20000, 500, HF_FAIR);
            rt_wait_start(&w[i]);
        }
        for (i = 0; i < 10; i++) {
            left = rt_int(&s, "PTTL holdfast:k");
            CHECK(left == -2 || (left >= 0 && left <= 2000));
        }
        for (i = 0; i < 4; i++)
            rt_wait_join(&w[i]);
    }
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:meta:"), 0);
    hf_close(client);
    rt_end(&s);
}

/* What is known of a grant must not lapse before the grant does. */
TEST(a_lock_that_is_held_for_weeks_keeps_its_companions)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 1500, 0);
    rt_do(&s, "PEXPIRE {holdfast:k}:meta: 100000"); /* as if in a week */
    t_poll_until(rt_int(&s, "PTTL {holdfast:k}:meta:") > 500000000, 10000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

/* ---- connections ------------------------------------------------------- */

TEST(a_waiter_whose_connections_are_cut_acquires_all_the_same)
{
    struct rt_server s = {0};
    hf_client *holder, *client;
    struct rt_waiter w;
    hf_lock *lk;
    int64_t freed;
    hf_status st;
    int i;

    rt_start(&s, NULL);
    holder = rt_open(&s, "");
    client = rt_open(&s, "");
    for (i = 0; i < 6; i++) {
        lk = rt_lock(holder, "k", 5000, 60000, 0);
        w = rt_waiter(client, "k", 30000, 60000, 0);
        w.cut = true;
        rt_wait_start(&w);
        t_poll_until(rt_waiters(&s, "k") == 1, 5000);
        if (i % 3 != 1)
            rt_do(&s, "CLIENT KILL TYPE pubsub");
        if (i % 3 != 0)
            rt_do(&s, "CLIENT KILL TYPE normal");
        if (i > 2)
            t_sleep_ms(50);
        freed = t_now_ms();
        st = hf_release(lk, &t_err); /* its connection may be cut, too */
        CHECK(st == HF_OK || st == HF_UNCERTAIN);
        rt_wait_join(&w);
        CHECK_LE(w.got_at - freed, 2500);
    }
    hf_close(client);
    hf_close(holder);
    rt_end(&s);
}

TEST(a_connection_that_the_server_closed_while_idle_is_not_noticed)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < 3; i++) {
        lk = rt_lock(client, "k", 0, 60000, 0);
        rt_do(&s, "CLIENT KILL TYPE normal");
        t_sleep_ms(100);
        CHECK_OK(hf_release(lk, &t_err));
        rt_do(&s, "CLIENT KILL TYPE normal");
        t_sleep_ms(100);
    }
    hf_close(client);
    rt_end(&s);
}

/* At every moment of a hand-over: the cut comes a little later each time. */
TEST_TIMEOUT(a_cut_in_the_middle_of_a_hand_over_keeps_nobody_waiting, 120)
{
    static const char *const cuts[] = {"CLIENT KILL TYPE pubsub",
                                       "CLIENT KILL TYPE normal"};
    struct rt_server s = {0};
    hf_client *client[2];
    struct rt_waiter w[2];
    int i, j, n = t_scaled(60, 20);

    rt_start(&s, NULL);
    for (j = 0; j < 2; j++)
        client[j] = rt_open(&s, "");
    for (i = 0; i < n; i++) {
        for (j = 0; j < 2; j++) {
            w[j] = rt_waiter(client[j], "k", 20000, 60000, 0);
            w[j].hold_ms = 2;
            rt_wait_start(&w[j]);
        }
        t_poll_until(__atomic_load_n(&w[0].got_at, __ATOMIC_ACQUIRE) ||
                         __atomic_load_n(&w[1].got_at, __ATOMIC_ACQUIRE),
                     10000);
        usleep((useconds_t)(i * 4000 / n));
        rt_do(&s, cuts[i % 2]);
        for (j = 0; j < 2; j++) {
            pthread_join(w[j].thread, NULL);
            CHECK(w[j].got_at != 0);
            CHECK(w[j].st == HF_OK || w[j].st == HF_UNCERTAIN);
        }
        CHECK_LE(w[0].got_at - w[1].got_at, 5000);
        CHECK_LE(w[1].got_at - w[0].got_at, 5000);
    }
    for (j = 0; j < 2; j++)
        hf_close(client[j]);
    rt_end(&s);
}

/* ---- all at once ------------------------------------------------------- */

struct contenders {
    hf_client *clients[4];
    atomic_int opened;
    atomic_int inside, grants;
    atomic_bool stop;
    _Atomic uint64_t fence;
};

/* A critical section that notices if it is not alone. */
static void *contenders_member(void *arg)
{
    struct contenders *contenders = arg;
    hf_client *client =
        contenders->clients[atomic_fetch_add(&contenders->opened, 1)];
    struct hf_lock_opts opts = rt_opts(2000, HF_FAIR);
    struct hf_error err;
    hf_lock *lk;

    while (!atomic_load(&contenders->stop)) {
        if (hf_acquire(client, "k", 10000, &opts, &lk, &err))
            continue;
        if (hf_held(lk)) {
            CHECK_EQ(atomic_fetch_add(&contenders->inside, 1), 0);
            CHECK_GT(hf_fence(lk),
                     atomic_exchange(&contenders->fence, hf_fence(lk)));
            t_sleep_ms(1);
            atomic_fetch_add(&contenders->grants, 1);
            CHECK_EQ(atomic_fetch_sub(&contenders->inside, 1), 1);
        }
        hf_release(lk, &err);
    }
    return NULL;
}

TEST_TIMEOUT(nobody_is_ever_in_it_together_whatever_is_cut_or_flushed, 120)
{
    static const char *const faults[] = {
        "CLIENT KILL TYPE pubsub", "SCRIPT FLUSH", "CLIENT KILL TYPE normal",
        "PUBLISH holdfast:wake:0 nonsense"};
    struct rt_server s = {0};
    struct contenders contenders = {.opened = 0};
    pthread_t thread[4];
    int i, before;

    rt_start(&s, NULL);
    for (i = 0; i < 4; i++)
        contenders.clients[i] = rt_open(&s, "?timeout=500ms");
    for (i = 0; i < 4; i++)
        CHECK_EQ(
            pthread_create(&thread[i], NULL, contenders_member, &contenders),
            0);
    for (i = 0; i < t_scaled(80, 20); i++) {
        rt_do(&s, faults[i % 4]);
        t_sleep_ms(i % 7 * 10);
    }
    before = atomic_load(&contenders.grants);
    t_poll_until(atomic_load(&contenders.grants) > before + 20, 20000);
    atomic_store(&contenders.stop, true);
    for (i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    for (i = 0; i < 4; i++)
        hf_close(contenders.clients[i]);
    rt_end(&s);
}

T_MAIN
