/* SPDX-License-Identifier: MIT
 *
 * sharing.c - shared locks on ZooKeeper, where the conformance suite cannot see:
 * lost requests and answers, the nodes themselves, and who joins whom.
 */
#include "zkt.h"

static struct hf_lock_opts shared_opts(int64_t ttl_ms)
{
    struct hf_lock_opts opts = zkt_opts(ttl_ms);

    opts.flags = HF_SHARED;
    return opts;
}

/* ---- lost requests and answers ------------------------------------------- */

static void reading_together(hf_client *client, hf_client *other,
                             const char *key)
{
    struct hf_lock_opts read = shared_opts(5000);
    hf_lock *one, *two, *none = NULL;

    CHECK_OK(hf_acquire(other, key, 20000, &read, &one, &t_err));
    CHECK_OK(hf_acquire(client, key, 20000, &read, &two, &t_err));
    CHECK(hf_held(one) && hf_held(two));
    CHECK_OK(hf_check(other, key, hf_fence(two), &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_STATUS(hf_acquire(other, key, 0, NULL, &none, &t_err), HF_BUSY);
    zkt_let_go(two);
}

static void reading_behind(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts read = shared_opts(5000), opts = zkt_opts(5000);
    struct hf_info info = HF_INFO_INIT;
    struct zkt_waiter w;
    hf_lock *lk, *two;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    zkt_wait_start_with(&w, client, key, 30000, &read);
    t_poll_until(hf_inspect(other, key, &info, NULL) == HF_OK && info.waiters,
                 20000);
    CHECK_OK(hf_downgrade(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the reader", zkt_wait_end(&w), HF_OK);
    CHECK_OK(hf_acquire(other, key, 20000, &read, &two, &t_err));
    CHECK(hf_held(lk) && hf_held(two) && hf_held(w.lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    zkt_let_go(w.lk);
}

/* Whichever answer is lost, the lock is held throughout, and shared at last. */
static void downgrading(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts read = shared_opts(5000), opts = zkt_opts(5000);
    hf_lock *lk, *two = NULL, *none = NULL;
    uint64_t fence;
    hf_status st;

    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    do {
        st = hf_downgrade(lk, &t_err);
        CHECK(!st || st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
        if (st) {
            hf_status known = hf_extend(lk, 0, &t_err);

            CHECK(known != HF_LOST && known != HF_INVALID);
        }
    } while (st);
    CHECK_EQ(hf_fence(lk), fence);
    CHECK_OK(hf_check(other, key, fence, &t_err));
    CHECK_EQ(zkt_children(zkt_path(key)), 1);
    CHECK_OK(hf_acquire(other, key, 0, &read, &two, &t_err));
    CHECK_STATUS(hf_acquire(other, key, 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(two, &t_err));
    CHECK(hf_held(lk));
    zkt_let_go(lk);
}

/* It is given back while nobody knows which name it has. */
static void downgrading_and_leaving(hf_client *client, hf_client *other,
                                    const char *key)
{
    struct hf_lock_opts opts = zkt_opts(5000);
    hf_lock *lk;
    hf_status st;

    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    st = hf_downgrade(lk, &t_err);
    CHECK(!st || st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
    zkt_let_go(lk);
    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
}

static void joining_a_reader(hf_client *client, hf_client *other,
                             const char *key)
{
    struct hf_lock_opts read = shared_opts(5000);
    hf_lock *lk, *inner;
    struct zkt_waiter w;

    read.owner = "order 7";
    CHECK_OK(hf_acquire(other, key, 20000, &read, &lk, &t_err));
    zkt_wait_start(&w, zkt_open(zkt_url("")), key, 30000, 5000);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 20000);
    /* Behind the writer it would wait for itself. */
    CHECK_OK(hf_acquire(client, key, 20000, &read, &inner, &t_err));
    CHECK_EQ(hf_fence(inner), hf_fence(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(!atomic_load(&w.done));
    CHECK(hf_held(inner));
    zkt_let_go(inner);
    t_check_status(__FILE__, __LINE__, "the writer", zkt_wait_end(&w), HF_OK);
    CHECK_OK(hf_release(w.lk, &t_err));
    hf_close(w.client);
}

TEST_TIMEOUT(a_lost_request_leaves_nothing_of_who_shares, 120)
{
    zkt_tell(reading_together, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_shares, 120)
{
    zkt_tell(reading_together, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_waits_to_share, 120)
{
    zkt_tell(reading_behind, "?recipe=readwrite", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_request_of_a_downgrade_loses_nothing, 120)
{
    zkt_tell(downgrading, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_to_a_downgrade_loses_nothing, 120)
{
    zkt_tell(downgrading, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_to_a_downgrade_loses_nothing_of_kazoos_layout, 120)
{
    zkt_tell(downgrading, "?layout=kazoo&recipe=readwrite", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_to_a_downgrade_leaves_nothing, 120)
{
    zkt_tell(downgrading_and_leaving, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_joins_a_reader, 120)
{
    zkt_tell(joining_a_reader, "", ZKT_AFTER);
}

/* ---- owner ids ------------------------------------------------------------ */

TEST(an_owner_that_another_client_holds_for_is_refused_the_other_mode)
{
    struct hf_lock_opts read = shared_opts(8000), write = zkt_opts(8000);
    const char *key = zkt_key("k");
    hf_client *a, *b;
    hf_lock *lk, *none = NULL;

    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    read.owner = write.owner = "job";
    CHECK_OK(hf_acquire(a, key, 0, &read, &lk, &t_err));
    CHECK_STATUS(hf_acquire(b, key, 20000, &write, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "release the shared lock first"));
    t_poll_until(zkt_children(zkt_path(key)) == 1, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(a, key, 0, &write, &lk, &t_err));
    CHECK_STATUS(hf_acquire(b, key, 20000, &read, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "hf_downgrade()"));
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(zkt_children(zkt_path(key)) == 0, 10000);
    CHECK(none == NULL);
    hf_close(a);
    hf_close(b);
    zkt_end();
}

TEST(readers_with_one_owner_id_are_one_holder_in_all_clients)
{
    struct hf_lock_opts read = shared_opts(8000);
    const char *key = zkt_key("k");
    hf_client *a, *b;
    hf_lock *one, *two, *other;
    uint64_t fence;

    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 0, &read, &other, &t_err));
    read.owner = "job";
    CHECK_OK(hf_acquire(a, key, 0, &read, &one, &t_err));
    CHECK_OK(hf_acquire(b, key, 0, &read, &two, &t_err));
    fence = hf_fence(two);
    CHECK_EQ(hf_fence(one), fence);
    CHECK_GT(fence, hf_fence(other));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_OK(hf_check(a, key, fence, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_STATUS(hf_check(a, key, fence, &t_err), HF_LOST);
    CHECK_OK(hf_release(other, &t_err));
    hf_close(a);
    hf_close(b);
    zkt_end();
}

/* Release the writer that they wait behind, and see them all granted, as one
 * holder, before the writer behind them. */
static void job_goes_first(hf_client *a, hf_client *b, const char *key,
                           struct zkt_waiter *readers, size_t n)
{
    struct zkt_waiter writer;
    struct hf_lock_opts read = shared_opts(20000);
    hf_lock *lk;
    size_t i;

    read.owner = "job";
    CHECK_OK(hf_acquire(a, key, 20000, NULL, &lk, &t_err));
    for (i = 0; i < n; i++)
        zkt_wait_start_with(&readers[i], readers[i].client, key, 10000, &read);
    t_poll_until(zkt_children(zkt_path(key)) == (int)n + 1, 10000);
    zkt_wait_start(&writer, b, key, 30000, 20000);
    t_poll_until(zkt_children(zkt_path(key)) == (int)n + 2, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < n; i++)
        t_check_status(__FILE__, __LINE__, "a reader",
                       zkt_wait_end(&readers[i]), HF_OK);
    CHECK(!atomic_load(&writer.done));
    for (i = 0; i < n; i++)
        CHECK_EQ(hf_fence(readers[i].lk), hf_fence(readers[0].lk));
    for (i = 0; i < n; i++)
        CHECK_OK(hf_release(readers[i].lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the writer", zkt_wait_end(&writer),
                   HF_OK);
    CHECK_OK(hf_release(writer.lk, &t_err));
}

/* join.c (4): they come to hold at the same moment, each with a number of its
 * own, and agree on one of these. */
TEST_TIMEOUT(readers_with_one_owner_id_do_not_chase_each_other, 120)
{
    struct zkt_waiter readers[12];
    const char *key = zkt_key("k");
    size_t n = sizeof(readers) / sizeof(readers[0]), i;
    hf_client *a, *b;

    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    for (i = 0; i < n; i++)
        readers[i].client = zkt_open(zkt_url(""));
    for (int round = 0; round < 3; round++)
        job_goes_first(a, b, key, readers, n);
    for (i = 0; i < n; i++)
        hf_close(readers[i].client);
    hf_close(a);
    hf_close(b);
    zkt_end();
}

TEST(who_was_joined_by_another_client_is_not_downgraded)
{
    struct hf_lock_opts opts = zkt_opts(8000);
    const char *key = zkt_key("k");
    hf_client *a, *b;
    hf_lock *one, *two;

    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    opts.owner = "job";
    CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
    CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
    CHECK_STATUS(hf_downgrade(one, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "more than once"));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(hf_downgrade(one, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    hf_close(a);
    hf_close(b);
    zkt_end();
}

struct joiner {
    hf_client *client;
    const char *key;
    atomic_bool stop;
    pthread_t thread;
};

static void *join_again_and_again(void *arg)
{
    struct hf_lock_opts opts = zkt_opts(8000);
    struct joiner *joiner = arg;
    hf_lock *lk;

    opts.owner = "job";
    while (!atomic_load(&joiner->stop))
        if (!hf_acquire(joiner->client, joiner->key, 0, &opts, &lk, NULL))
            CHECK_OK(hf_release(lk, &t_err));
    return NULL;
}

/* downgrade.c (2): who joins and who downgrades never both succeed. */
TEST_TIMEOUT(nobody_joins_what_is_downgraded_at_that_moment, 60)
{
    struct hf_lock_opts opts = zkt_opts(8000), read = shared_opts(8000);
    struct joiner joiner = {.key = zkt_key("k")};
    struct hf_info info = HF_INFO_INIT;
    hf_client *a, *b;
    hf_lock *lk, *two;

    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    joiner.client = zkt_open(zkt_url(""));
    CHECK_EQ(
        pthread_create(&joiner.thread, NULL, join_again_and_again, &joiner), 0);
    opts.owner = "job";
    for (int i = 0; i < 60; i++) {
        CHECK_OK(hf_acquire(a, joiner.key, 20000, &opts, &lk, &t_err));
        if (hf_downgrade(lk, &t_err) == HF_OK) {
            /* No exclusive holder is left beside it. */
            CHECK_OK(hf_inspect(b, joiner.key, &info, &t_err));
            CHECK(info.held && info.shared);
            CHECK_OK(hf_acquire(b, joiner.key, 20000, &read, &two, &t_err));
            CHECK_OK(hf_release(two, &t_err));
        }
        CHECK_OK(hf_release(lk, &t_err));
    }
    atomic_store(&joiner.stop, true);
    pthread_join(joiner.thread, NULL);
    t_poll_until(zkt_children(zkt_path(joiner.key)) == 0, 10000);
    hf_close(a);
    hf_close(b);
    hf_close(joiner.client);
    zkt_end();
}

/* ---- leases and breaks ---------------------------------------------------- */

TEST_TIMEOUT(a_downgraded_lock_moves_to_another_session_and_stays_shared, 60)
{
    struct hf_lock_opts opts = zkt_opts(5000), read = shared_opts(5000);
    const char *key = zkt_key("k");
    struct hf_info info = HF_INFO_INIT;
    uint64_t fence;
    hf_client *a, *b;
    hf_lock *lk, *two;

    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK_OK(hf_extend(lk, 20000, &t_err));
    CHECK_OK(hf_inspect(b, key, &info, &t_err));
    CHECK(info.shared);
    CHECK_EQ(info.fence, fence);
    CHECK_OK(hf_acquire(b, key, 0, &read, &two, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    hf_close(a);
    hf_close(b);
    zkt_end();
}

static void *downgrade(void *lk)
{
    CHECK_OK(hf_downgrade(lk, &t_err));
    return NULL;
}

/* The client looks at a node by itself when it has had it for 20 ms; that goes
 * out with the old name, behind the transaction that takes it away. */
TEST_TIMEOUT(a_look_at_the_old_name_is_no_loss, 60)
{
    struct hf_lock_opts opts = zkt_opts(20000);
    const char *key = zkt_key("k");
    struct zkt_proxy proxy;
    pthread_t thread;
    hf_client *client;
    hf_lock *lk;

    zkt_begin();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, ""));
    for (int i = 0; i < 5; i++) {
        int held = atomic_load(&proxy.held);

        atomic_store(&proxy.hold, ZKT_MULTI);
        CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
        CHECK_EQ(pthread_create(&thread, NULL, downgrade, lk), 0);
        t_poll_until(atomic_load(&proxy.held) > held, 10000);
        t_sleep_ms(60); /* until that look is on its way */
        atomic_store(&proxy.hold, ZKT_GET_DATA); /* It arrives later still. */
        pthread_join(thread, NULL);
        atomic_store(&proxy.hold, 0);
        /* This is answered after what was asked before. */
        CHECK_OK(hf_check(client, key, hf_fence(lk), &t_err));
        CHECK(hf_held(lk));
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

/* The watch on the node goes along with the name: a break is told at once. */
TEST_TIMEOUT(a_downgraded_lock_hears_of_a_break, 60)
{
    struct hf_lock_opts opts = zkt_opts(30000);
    const char *key = zkt_key("k");
    hf_client *a, *b;
    hf_lock *lk;

    opts.flags = HF_MANUAL;
    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK_OK(hf_break(b, key, hf_fence(lk), &t_err));
    t_poll_until(!hf_held(lk), 10000);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    zkt_end();
}

T_MAIN
