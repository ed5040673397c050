/* SPDX-License-Identifier: MIT
 *
 * shared.c - locks that are shared: what each server keeps of them, and what a
 * majority makes of it when a minority knows better or nothing.
 */
#include "rl.h"

#define SHARED  "holdfast:shared"
#define READERS "{holdfast:k}:readers:"
#define DOORS   "{holdfast:k}:doors:"
#define META    "{holdfast:k}:meta:"

static hf_status share(hf_client *client, int64_t ttl_ms, hf_lock **ret)
{
    struct hf_lock_opts opts = rt_opts(ttl_ms, HF_MANUAL | HF_SHARED);

    return hf_acquire(client, "k", 0, &opts, ret, &t_err);
}

/* How many readers the servers know, together. */
static long long readers(struct rl *rl)
{
    long long n = 0;

    for (int i = 0; i < RL_N; i++)
        if (rl->nodes[i].pid)
            n += rt_int(&rl->nodes[i], "HLEN " READERS);
    return n;
}

/* On how many servers new readers are kept out. */
static int doors(struct rl *rl)
{
    int n = 0;

    for (int i = 0; i < RL_N; i++)
        n += rt_int(&rl->nodes[i], "ZCARD " DOORS) > 0;
    return n;
}

/* A client whose calls end soon. */
static hf_client *open_brief(const struct rl *rl)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;

    opts.timeout_ms = 1000;
    CHECK_OK(hf_open(rl->url, &opts, &client, &t_err));
    return client;
}

/* ---- what the servers keep --------------------------------------------- */

TEST(a_shared_lock_is_a_string_and_a_hash_and_both_go_with_the_last_reader)
{
    hf_lock *one = NULL, *two = NULL, *none = NULL;
    struct rl rl;
    hf_client *a, *b;

    rl_start(&rl, "?quarantine=off", false);
    a = rl_open(&rl);
    b = rl_open(&rl);
    CHECK_OK(share(a, 60000, &one));
    CHECK_OK(share(b, 60000, &two));
    t_poll_until(readers(&rl) == 2 * RL_N, 20000);
    CHECK_EQ(rl_count(&rl, "k", SHARED), RL_N);
    /* Other libraries find it taken, and so does a holdfast without readers. */
    CHECK_STR(rt_text(&rl.nodes[0], "SET holdfast:k other NX PX 1000"), "");
    CHECK_STATUS(rl_try(b, "k", 1000, &none), HF_BUSY);
    CHECK_OK(hf_release(one, &t_err));
    t_poll_until(readers(&rl) == RL_N, 20000);
    CHECK_EQ(rl_count(&rl, "k", SHARED), RL_N);
    CHECK_OK(hf_release(two, &t_err));
    rl_check_clean(&rl);
    CHECK_EQ(readers(&rl), 0);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

TEST(the_key_lasts_as_long_as_the_longest_lease_that_is_left)
{
    hf_lock *shorter = NULL, *longer = NULL;
    struct rl rl;
    hf_client *client;
    long long left;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(share(client, 600000, &longer));
    CHECK_OK(share(client, 60000, &shorter));
    t_poll_until(readers(&rl) == 2 * RL_N, 20000);
    CHECK_OK(hf_extend(shorter, 0, &t_err));
    left = rt_int(&rl.nodes[2], "PTTL holdfast:k");
    CHECK(left > 300000 && left <= 600000);
    CHECK_OK(hf_release(longer, &t_err));
    t_poll_until(readers(&rl) == RL_N, 20000);
    left = rt_int(&rl.nodes[2], "PTTL holdfast:k");
    CHECK(left > 0 && left <= 60000);
    CHECK_OK(hf_extend(shorter, 30000, &t_err));
    t_poll_until(rt_int(&rl.nodes[2], "PTTL holdfast:k") <= 30000, 20000);
    CHECK_OK(hf_release(shorter, &t_err));
    hf_close(client);
    rl_end(&rl);
}

/* What was left of readers whose lock is gone counts for nothing. */
TEST(readers_of_a_lock_that_was_deleted_are_forgotten)
{
    hf_lock *one = NULL, *two = NULL;
    struct rl rl;
    hf_client *client;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(share(client, 60000, &one));
    t_poll_until(readers(&rl) == RL_N, 20000);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    CHECK_OK(share(client, 60000, &two));
    t_poll_until(rl_count(&rl, "k", SHARED) == RL_N, 20000);
    CHECK_EQ(readers(&rl), RL_N);
    CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
    CHECK_OK(hf_release(two, &t_err));
    rl_check_clean(&rl);
    hf_release(one, NULL);
    hf_close(client);
    rl_end(&rl);
}

TEST(foreign_data_among_readers_does_no_harm)
{
    hf_lock *one = NULL, *two = NULL, *none = NULL;
    struct rl rl;
    hf_client *client;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(share(client, 60000, &one));
    t_poll_until(readers(&rl) == RL_N, 20000);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "HSET " READERS " x nonsense y %s",
              "99999999999999 1 1 0 0  9999 z");
    CHECK_OK(share(client, 60000, &two));
    CHECK_STATUS(rl_try(client, "k", 1000, &none), HF_BUSY);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "HDEL " READERS " y");
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    rl_check_clean(&rl);
    /* Something else where the readers would be: no server votes. */
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "SET holdfast:k " SHARED " PX 60000");
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "SET " READERS " string PX 60000");
    CHECK(share(client, 60000, &one) != HF_OK);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k " READERS);
    hf_close(client);
    rl_end(&rl);
}

/* ---- majorities -------------------------------------------------------- */

TEST(readers_hold_with_a_majority_and_take_nothing_with_less)
{
    hf_lock *one = NULL, *two = NULL, *none = NULL;
    struct rl rl;
    hf_client *a, *b;

    rl_start(&rl, "?quarantine=off", false);
    a = rl_open(&rl);
    b = rl_open(&rl);
    for (int i = 0; i < 2; i++)
        rt_do(&rl.nodes[i], "SET holdfast:k stranger PX 60000");
    CHECK_OK(share(a, 60000, &one));
    CHECK_OK(share(b, 60000, &two));
    CHECK_EQ(readers(&rl), 6);
    CHECK_STATUS(rl_try(b, "k", 1000, &none), HF_BUSY);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    rt_do(&rl.nodes[2], "SET holdfast:k stranger PX 60000");
    CHECK_STATUS(share(a, 60000, &none), HF_BUSY);
    t_poll_until(readers(&rl) == 0, 20000);
    CHECK_EQ(rl_count(&rl, "k", SHARED), 0);
    for (int i = 0; i < 3; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

TEST(readers_are_put_back_on_servers_that_lost_them)
{
    hf_lock *one = NULL, *two = NULL;
    struct rl rl;
    hf_client *client;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(share(client, 60000, &one));
    CHECK_OK(share(client, 60000, &two));
    for (int i = 0; i < 2; i++)
        rt_do(&rl.nodes[i], "FLUSHALL");
    while (readers(&rl) < 2 * RL_N) {
        CHECK_OK(hf_extend(one, 0, &t_err));
        CHECK_OK(hf_extend(two, 0, &t_err));
    }
    CHECK_EQ(rl_count(&rl, "k", SHARED), RL_N);
    CHECK_GT(rt_int(&rl.nodes[0], "PTTL " READERS), 0);
    CHECK_OK(hf_check(client, "k", hf_fence(one), &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

/* They have forgotten the reader, and may not vote for a writer until its lease
 * would be over. */
TEST_TIMEOUT(restarted_servers_do_not_vote_against_a_reader, 120)
{
    struct hf_lock_opts opts = rt_opts(3000, HF_SHARED);
    hf_lock *lk = NULL, *none = NULL;
    struct rl rl;
    hf_client *a, *b;
    hf_status st;

    rl_start(&rl, "?quarantine=3s", false);
    a = rl_open(&rl);
    b = rl_open(&rl);
    CHECK_OK(hf_acquire(a, "k", 30000, &opts, &lk, &t_err));
    for (int i = 0; i < 3; i++)
        rt_crash(&rl.nodes[i]);
    for (int i = 0; i < 3; i++)
        rt_again(&rl.nodes[i]);
    do { /* unavailable, until they may vote */
        st = rl_try(b, "k", 1000, &none);
        CHECK(st != HF_OK || !hf_held(lk));
    } while (hf_held(lk) && st != HF_BUSY);
    if (st == HF_OK)
        hf_release(none, NULL);
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

struct reader {
    hf_client *client;
    pthread_barrier_t *start;
    pthread_t thread;
    hf_lock *lk;
    hf_status st;
    struct hf_error err;
};

static void *reader_run(void *arg)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL | HF_SHARED);
    struct reader *reader = arg;

    pthread_barrier_wait(reader->start);
    reader->st =
        hf_acquire(reader->client, "k", 0, &opts, &reader->lk, &reader->err);
    return NULL;
}

/* The clocks are behind the last fence, so all have the same one in mind. */
TEST(readers_that_come_together_have_different_fences)
{
    enum { N = 8 };
    uint64_t last = UINT64_C(8000000000000000);
    struct reader all[N];
    pthread_barrier_t start;
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "HSET " META " c %llu k nobody",
              (unsigned long long)last);
    pthread_barrier_init(&start, NULL, N);
    for (int i = 0; i < N; i++) {
        all[i] = (struct reader){.client = rl_open(&rl), .start = &start};
        CHECK_EQ(pthread_create(&all[i].thread, NULL, reader_run, &all[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(all[i].thread, NULL);
        t_err = all[i].err;
        t_check_status(__FILE__, __LINE__, "a reader", all[i].st, HF_OK);
        CHECK_GT(hf_fence(all[i].lk), last);
        for (int j = 0; j < i; j++)
            CHECK(hf_fence(all[i].lk) != hf_fence(all[j].lk));
    }
    pthread_barrier_destroy(&start);
    for (int i = 0; i < N; i++) {
        last = hf_fence(all[i].lk) > last ? hf_fence(all[i].lk) : last;
        CHECK_OK(hf_release(all[i].lk, &t_err));
        hf_close(all[i].client);
    }
    CHECK_OK(rl_try(client, "k", 60000, &lk));
    CHECK_GT(hf_fence(lk), last);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rl_end(&rl);
}

/* A writer of a version that knows no readers writes its fence and no more. */
TEST(a_readers_fence_is_larger_than_that_of_a_writer_who_knows_no_readers)
{
    hf_lock *lk = NULL;
    struct rl rl;
    hf_client *client;
    uint64_t old;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(share(client, 60000, &lk));
    old = hf_fence(lk) + 100000000;
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 2; i < RL_N; i++)
        rt_do(&rl.nodes[i], "HSET " META " c %llu k somebody",
              (unsigned long long)old);
    CHECK_OK(share(client, 60000, &lk));
    CHECK_GT(hf_fence(lk), old);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rl_end(&rl);
}

/* ---- the door ---------------------------------------------------------- */

/* Keep readers out on servers of a set, as a writer does that has died since. */
static void close_doors(struct rl *rl, unsigned nodes, int64_t ms)
{
    long long now = rt_int(&rl->nodes[0], "EVAL %s 0",
                           "local t = redis.call('TIME') "
                           "return t[1] * 1000 + math.floor(t[2] / 1000)");

    for (int i = 0; i < RL_N; i++)
        if (nodes & 1U << i) {
            rt_do(&rl->nodes[i], "ZADD " DOORS " %lld dead", now + ms);
            rt_do(&rl->nodes[i], "PEXPIRE " DOORS " %lld", (long long)ms);
        }
}

TEST(a_door_on_a_majority_keeps_readers_out_until_it_lapses)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL | HF_SHARED);
    hf_lock *lk = NULL, *none = NULL;
    struct rl rl;
    hf_client *client;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    close_doors(&rl, 3, 600000);
    CHECK_OK(share(client, 60000, &lk));
    close_doors(&rl, 7, 600000);
    CHECK_STATUS(share(client, 60000, &none), HF_BUSY);
    CHECK_OK(hf_extend(lk, 0, &t_err)); /* Who is in stays in. */
    close_doors(&rl, 7, 500);
    CHECK_OK(hf_acquire(client, "k", 60000, &opts, &none, &t_err));
    CHECK_OK(hf_release(none, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

TEST(a_writer_that_waits_closes_the_door_and_opens_it_when_it_leaves)
{
    struct hf_lock_opts patient = rt_opts(60000, HF_MANUAL);
    hf_lock *lk = NULL, *none = NULL;
    struct rt_waiter writer;
    struct rl rl;
    hf_client *a, *b;

    rl_start(&rl, "?quarantine=off", false);
    a = rl_open(&rl);
    b = rl_open(&rl);
    CHECK_OK(share(a, 60000, &lk));
    CHECK_STATUS(rl_try(b, "k", 60000, &none), HF_BUSY); /* does not wait */
    CHECK_EQ(doors(&rl), 0);
    CHECK_STATUS(hf_acquire(b, "k", 300, &patient, &none, &t_err), HF_TIMEOUT);
    t_poll_until(doors(&rl) == 0, 2500); /* before it would lapse */
    writer = rt_waiter(b, "k", -1, 60000, HF_MANUAL);
    rt_wait_start(&writer);
    t_poll_until(doors(&rl) == RL_N, 20000);
    CHECK_STATUS(share(a, 60000, &none), HF_BUSY);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&writer);
    t_poll_until(doors(&rl) == 0, 2500);
    rl_check_clean(&rl);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

/* ---- downgrade --------------------------------------------------------- */

TEST(a_downgrade_that_a_minority_did_not_hear_is_told_by_the_next_renewal)
{
    hf_lock *lk = NULL, *reader = NULL;
    struct rl rl;
    hf_client *client;
    struct hf_info info = {.size = sizeof(info)};

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", 60000, &lk));
    CHECK_OK(hf_downgrade(lk, &t_err));
    t_poll_until(readers(&rl) == RL_N, 20000);
    for (int i = 3; i < RL_N; i++) {
        rt_do(&rl.nodes[i], "DEL " READERS);
        rt_do(&rl.nodes[i], "SET holdfast:k %s PX 60000", hf_token(lk));
        rt_do(&rl.nodes[i], "HSET " META " c %llu k %s",
              (unsigned long long)hf_fence(lk), hf_token(lk));
    }
    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK(info.held && info.shared);
    CHECK_EQ(info.holders, 1);
    CHECK_OK(share(client, 60000, &reader));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    t_poll_until(rl_count(&rl, "k", SHARED) == RL_N, 20000);
    CHECK_OK(hf_release(reader, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

TEST(a_downgrade_that_a_minority_heard_is_in_doubt_until_a_majority_has)
{
    hf_lock *lk = NULL, *none = NULL;
    struct rl rl;
    hf_client *a, *b;

    rl_start(&rl, "?quarantine=off", false);
    a = open_brief(&rl);
    b = rl_open(&rl);
    CHECK_OK(rl_try(a, "k", 60000, &lk));
    rl_signal(&rl, 7, SIGSTOP);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_UNCERTAIN);
    CHECK(hf_held(lk));
    rl_signal(&rl, 7, SIGCONT);
    while (hf_downgrade(lk, &t_err) == HF_UNCERTAIN)
        CHECK(hf_held(lk));
    CHECK(hf_held(lk));
    CHECK_STATUS(rl_try(b, "k", 1000, &none), HF_BUSY);
    while (share(b, 60000, &none) != HF_OK) /* The nodes are slow yet. */
        t_sleep_ms(10);
    CHECK_OK(hf_release(none, &t_err));
    hf_release(lk, NULL);
    t_poll_until(readers(&rl) == 0, 20000);
    rl_check_clean(&rl);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

TEST(full_servers_go_on_with_the_readers_that_they_have)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL | HF_SHARED);
    hf_lock *one = NULL, *two = NULL, *lk = NULL, *none = NULL;
    struct hf_lock_opts other = rt_opts(60000, HF_MANUAL);
    struct hf_handle handle = HF_HANDLE_INIT;
    struct rl rl;
    hf_client *client;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(share(client, 60000, &one));
    CHECK_OK(share(client, 60000, &two));
    CHECK_OK(hf_acquire(client, "other", 0, &other, &lk, &t_err));
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "CONFIG SET maxmemory 1");
    CHECK_STATUS(share(client, 60000, &none), HF_UNAVAILABLE);
    CHECK_OK(hf_extend(one, 30000, &t_err));
    CHECK_OK(hf_extend(one, 60000, &t_err));
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_break(client, "k", hf_fence(two), &t_err));
    CHECK_STATUS(hf_extend(two, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    CHECK_OK(hf_detach(one, &handle, &t_err));
    CHECK_OK(hf_attach(client, "k", &handle, &opts, &one, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    rl_check_clean(&rl);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "CONFIG SET maxmemory 0");
    hf_close(client);
    rl_end(&rl);
}

/* ---- what it costs others ---------------------------------------------- */

struct cost {
    const char *command;
    int calls;
};

/* What a pair costs each node, once it knows the key. */
static void check_cost(const char *more, const struct cost *want, size_t n)
{
    hf_client *client;
    hf_lock *lk = NULL;
    struct rl rl;

    rl_start(&rl, more, false);
    client = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", 60000, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "CONFIG RESETSTAT");
    CHECK_OK(rl_try(client, "k", 60000, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < RL_N; i++) {
        t_poll_until(rt_calls(&rl.nodes[i], "evalsha") == want[0].calls, 20000);
        for (size_t j = 0; j < n; j++)
            CHECK_EQ(rt_calls(&rl.nodes[i], want[j].command), want[j].calls);
    }
    hf_close(client);
    rl_end(&rl);
}

/* Three requests: take, confirm, release; all else is done by the scripts. */
TEST(a_plain_lock_costs_as_many_commands_as_without_readers)
{
    static const struct cost want[] = {
        {"evalsha", 3}, {"set", 1},     {"hmget", 2}, {"time", 2},
        {"get", 3},     {"hset", 1},    {"del", 1},   {"publish", 1},
        {"zrem", 0},    {"hget", 0},    {"zadd", 0},  {"zrange", 1},
        {"pttl", 2},    {"pexpire", 0}, {"ping", 0}};

    check_cost("?quarantine=off", want, sizeof(want) / sizeof(*want));
}

/* Two requests: SET, and a script that releases. */
TEST(without_a_fence_a_pair_is_two_requests_to_each_node)
{
    static const struct cost want[] = {
        {"evalsha", 1}, {"set", 1},  {"get", 1},    {"del", 1},
        {"hmget", 0},   {"time", 0}, {"zrange", 1}, {"publish", 1}};

    check_cost("?quarantine=off&fence=off", want, sizeof(want) / sizeof(*want));
}

T_MAIN
