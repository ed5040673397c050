/* SPDX-License-Identifier: MIT
 *
 * nodes.c - nodes that are frozen, dead, slow to come back or taken by others.
 *
 * Leases are long here, so that what is gone at the end was given back and did
 * not expire.
 */
#include "rl.h"

#define TTL 60000

/* A limit that a healthy node keeps on a busy machine. */
#define CALM "?quarantine=off&node=300ms"

static bool is_minority(unsigned nodes)
{
    return __builtin_popcount(nodes) <= RL_N / 2;
}

static bool is_unknown(hf_status st)
{
    return st == HF_UNAVAILABLE || st == HF_UNCERTAIN;
}

TEST_TIMEOUT(a_lock_is_taken_exactly_when_a_majority_answers, 120)
{
    struct rl rl;
    hf_client *client;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    for (unsigned set = 0; set < 1U << RL_N; set++) {
        hf_lock *lk = NULL;
        hf_status st;

        rl_signal(&rl, set, SIGSTOP);
        st = rl_try(client, "k", TTL, &lk);
        if (is_minority(set))
            t_check_status(__FILE__, __LINE__, "minority frozen", st, HF_OK);
        else
            CHECK(is_unknown(st));
        CHECK((lk != NULL) == (st == HF_OK));
        if (lk)
            CHECK_OK(hf_release(lk, &t_err));
        rl_signal(&rl, set, SIGCONT);
        rl_check_clean(&rl);
    }
    hf_close(client);
    rl_end(&rl);
}

TEST_TIMEOUT(a_lock_is_renewed_exactly_when_a_majority_answers, 120)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct rl rl;
    hf_client *client = NULL;

    opts.timeout_ms = 1000; /* so long an extension is asked for */
    rl_start(&rl, CALM, false);
    CHECK_OK(hf_open(rl.url, &opts, &client, &t_err));
    for (unsigned set = 0; set < 1U << RL_N; set++) {
        hf_lock *lk = NULL;
        hf_status st;

        CHECK_OK(rl_try(client, "k", TTL, &lk));
        rl_signal(&rl, set, SIGSTOP);
        st = hf_extend(lk, 0, &t_err);
        if (is_minority(set))
            t_check_status(__FILE__, __LINE__, "minority frozen", st, HF_OK);
        else
            CHECK(is_unknown(st));
        rl_signal(&rl, set, SIGCONT);
        CHECK(hf_held(lk)); /* Not even a majority's silence ends it. */
        t_poll_until(hf_extend(lk, 0, NULL) == HF_OK, 5000);
        CHECK_OK(hf_release(lk, &t_err));
        rl_check_clean(&rl);
    }
    hf_close(client);
    rl_end(&rl);
}

TEST_TIMEOUT(a_release_reaches_every_node_in_the_end, 120)
{
    struct rl rl;
    hf_client *client;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    for (unsigned set = 0; set < 1U << RL_N; set++) {
        hf_lock *lk = NULL;
        hf_status st;

        t_poll_until(rl_try(client, "k", TTL, &lk) == HF_OK, 5000);
        rl_signal(&rl, set, SIGSTOP);
        st = hf_release(lk, &t_err);
        t_check_status(__FILE__, __LINE__, "release", st,
                       is_minority(set) ? HF_OK : HF_UNCERTAIN);
        rl_signal(&rl, set, SIGCONT);
        rl_check_clean(&rl);
    }
    hf_close(client);
    rl_end(&rl);
}

TEST(a_release_outlives_the_connection_that_it_was_sent_on)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;
    int64_t end;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    CHECK_EQ(rl_count(&rl, "k", hf_token(lk)), RL_N);
    rl_signal(&rl, 3, SIGSTOP);
    CHECK_OK(hf_release(lk, &t_err));
    /* Long enough for the silent connections to be given up. */
    for (end = t_now_ms() + 2500; t_now_ms() < end; t_sleep_ms(20))
        if (rl_try(client, "other", TTL, &lk) == HF_OK)
            CHECK_OK(hf_release(lk, &t_err));
    rl_signal(&rl, 3, SIGCONT);
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

/* The node hangs with the try in its mailbox for longer than the lease: what it
 * takes when it goes on is given back. */
TEST(a_try_that_a_node_serves_after_the_lease_is_given_back)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;
    long long before;
    int64_t end;

    rl_start(&rl, "?quarantine=off&fence=off", false);
    client = rl_open(&rl);
    before = rt_calls(&rl.nodes[4], "evalsha");
    rl_signal(&rl, 1 << 4, SIGSTOP);
    CHECK_OK(rl_try(client, "k", 600, &lk));
    /* Until the connection to that node has been given up. */
    for (end = t_now_ms() + 1500; t_now_ms() < end;) {
        t_sleep_ms(100);
        CHECK_OK(hf_extend(lk, 0, &t_err));
    }
    CHECK_OK(hf_release(lk, &t_err));
    t_sleep_ms(700); /* Its lease is over, as far as we know. */
    rl_signal(&rl, 1 << 4, SIGCONT);
    t_poll_until(rt_calls(&rl.nodes[4], "evalsha") > before, 10000);
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

TEST(a_minority_that_others_hold_does_not_matter_and_is_left_alone)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    rt_do(&rl.nodes[1], "SET holdfast:k foreign PX 100000");
    rt_do(&rl.nodes[4], "SET holdfast:k foreign PX 100000");
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    CHECK_EQ(rl_count(&rl, "k", hf_token(lk)), 3);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(rl_count(&rl, "k", "foreign"), 2);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(rl_count(&rl, "k", "foreign"), 2);
    CHECK_EQ(rl_count(&rl, "k", NULL), 2);
    rt_do(&rl.nodes[1], "DEL holdfast:k");
    rt_do(&rl.nodes[4], "DEL holdfast:k");
    hf_close(client);
    rl_end(&rl);
}

TEST(a_majority_that_others_hold_is_busy_and_is_left_alone)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    for (int i = 0; i < 3; i++)
        rt_do(&rl.nodes[i], "SET holdfast:k foreign PX 100000");
    CHECK_STATUS(rl_try(client, "k", TTL, &lk), HF_BUSY);
    CHECK_EQ(rl_count(&rl, "k", "foreign"), 3);
    CHECK_EQ(rl_count(&rl, "k", NULL), 3);
    for (int i = 0; i < 3; i++) {
        CHECK_GT(rt_int(&rl.nodes[i], "PTTL holdfast:k"), 80000);
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    }
    hf_close(client);
    rl_end(&rl);
}

TEST(a_long_value_at_the_key_is_somebody_elses_lock_and_no_more)
{
    struct hf_info info = HF_INFO_INIT;
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL, *none = NULL;

    rl_start(&rl, CALM, false);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "EVAL %s 0",
              "redis.call('SET','holdfast:big',string.rep('x',3000000))");
    client = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", 5000, &lk));
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(rl_try(client, "big", 5000, &none), HF_BUSY);
    /* On a busy machine the long answers to the tries come first. */
    t_poll_until(!hf_inspect(client, "big", &info, &t_err), 10000);
    CHECK(info.held);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:big");
    rl_end(&rl);
}

TEST(a_majority_that_was_stolen_ends_the_lock)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    for (int i = 0; i < 2; i++)
        rt_do(&rl.nodes[i], "SET holdfast:k foreign PX 100000");
    CHECK_OK(hf_extend(lk, 0, &t_err));
    rt_do(&rl.nodes[2], "SET holdfast:k foreign PX 100000");
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_STOLEN);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_EQ(rl_count(&rl, "k", "foreign"), 3);
    for (int i = 0; i < 3; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    hf_close(client);
    rl_end(&rl);
}

TEST(dead_nodes_are_named_when_too_few_are_left)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;
    char name[32];

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    rt_crash(&rl.nodes[0]);
    rt_crash(&rl.nodes[1]);
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    rt_crash(&rl.nodes[2]);
    CHECK(is_unknown(rl_try(client, "k", TTL, &lk)));
    snprintf(name, sizeof(name), "127.0.0.1:%d", rl.nodes[0].port);
    CHECK(strstr(t_err.text, name));
    CHECK(strstr(t_err.text, "only 2 of 5"));
    for (int i = 0; i < 3; i++)
        rt_again(&rl.nodes[i]);
    t_poll_until(rl_try(client, "k", TTL, &lk) == HF_OK, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rl_end(&rl);
}

TEST(a_client_opens_while_a_majority_is_there)
{
    struct rl rl;
    hf_client *client = NULL;
    struct hf_service about = {.size = sizeof(about)};
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;

    rl_start(&rl, CALM, false);
    rt_crash(&rl.nodes[0]);
    rl_signal(&rl, 2, SIGSTOP);
    client = rl_open(&rl);
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "only 3 of 5"));
    hf_close(client);
    rl_signal(&rl, 4, SIGSTOP);
    opts.timeout_ms = 1500;
    CHECK_STATUS(hf_open(rl.url, &opts, &client, &t_err), HF_UNAVAILABLE);
    rl_signal(&rl, 6, SIGCONT);
    rt_again(&rl.nodes[0]);
    rl_end(&rl);
}

TEST(idle_connections_that_the_nodes_closed_cost_no_try)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "CLIENT KILL TYPE normal SKIPME yes");
    t_sleep_ms(50);
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

/* maxmemory is reached on all of them. */
TEST(full_nodes_go_on_with_the_locks_that_they_have)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client, *other;
    struct hf_handle handle = HF_HANDLE_INIT;
    struct hf_error err;
    hf_lock *lock, *broken, *none;
    struct rl rl;
    int i;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    other = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", 60000, &lock));
    CHECK_OK(rl_try(client, "broken", 60000, &broken));
    for (i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "CONFIG SET maxmemory 1");
    opts.ttl_ms = 30000;
    CHECK_EQ(hf_acquire(client, "none", 0, &opts, &none, &err), HF_UNAVAILABLE);
    CHECK(strstr(err.text, "out of memory") != NULL);
    CHECK_OK(hf_extend(lock, 30000, NULL));
    CHECK_OK(hf_extend(lock, 60000, NULL));
    CHECK_OK(hf_break(other, "broken", hf_fence(broken), NULL));
    CHECK_EQ(hf_extend(broken, 0, NULL), HF_LOST);
    CHECK_EQ(hf_release(broken, NULL), HF_LOST);
    CHECK_OK(hf_detach(lock, &handle, NULL));
    CHECK_OK(hf_attach(other, "k", &handle, &opts, &lock, NULL));
    CHECK_OK(hf_release(lock, NULL));
    for (i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "CONFIG SET maxmemory 0");
    hf_close(other);
    hf_close(client);
    rl_end(&rl);
}

TEST(nodes_that_lost_the_script_are_given_it_again)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "SCRIPT FLUSH");
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "SCRIPT FLUSH");
    CHECK_OK(hf_extend(lk, 0, &t_err));
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "SCRIPT FLUSH");
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

T_MAIN

#define CLAIMED "0123456789abcdef0123456789abcdef"

struct confirming {
    struct rl *rl;
    long long looks[RL_N]; /* that each node had seen before */
};

/* The nodes confirm the fence of a grant after each was looked at. */
static void *confirm_after_a_look(void *arg)
{
    struct confirming *at = arg;

    for (int i = 0; i < RL_N; i++)
        t_poll_until(rt_calls(&at->rl->nodes[i], "evalsha") > at->looks[i],
                     20000);
    for (int i = 0; i < RL_N; i++)
        rt_do(&at->rl->nodes[i],
              "HSET {holdfast:k}:meta: c 7 k " CLAIMED " n boss t 7");
    return NULL;
}

/* Look at a grant while it is being confirmed: is its fence told, and its
 * note? */
static bool is_told_whole(struct rl *rl, hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;
    struct confirming at = {.rl = rl};
    pthread_t thread;

    for (int i = 0; i < RL_N; i++) {
        rt_do(&rl->nodes[i], "DEL {holdfast:k}:meta:");
        rt_do(&rl->nodes[i], "SET holdfast:k " CLAIMED);
        at.looks[i] = rt_calls(&rl->nodes[i], "evalsha");
    }
    CHECK_EQ(pthread_create(&thread, NULL, confirm_after_a_look, &at), 0);
    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(info.held);
    return info.fence == 7 && !strcmp(info.note, "boss");
}

TEST_TIMEOUT(a_grant_is_told_with_its_fence_and_note, 60)
{
    struct hf_info info = HF_INFO_INIT;
    struct rl rl;
    hf_client *client;

    rl_start(&rl, CALM, false);
    client = rl_open(&rl);
    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK(!info.held);
    /* A machine that is busy may confirm it too late, but not each time. */
    t_poll_until(is_told_whole(&rl, client), 20000);
    /* Who gives no fences is told of without one. */
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "DEL {holdfast:k}:meta:");
    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK(info.held);
    CHECK_EQ(info.fence, 0);
    hf_close(client);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    rl_end(&rl);
}
