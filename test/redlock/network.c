/* SPDX-License-Identifier: MIT
 *
 * network.c - nodes behind a network that is slow, cut one way or holds things
 * back, and nodes that are no servers.
 *
 * Leases are long, so that what is gone at the end was given back.
 */
#include "rl.h"

#include "../redis/proxy.h"

#include <sys/resource.h>

#define TTL 60000

struct net {
    struct rl rl;
    struct proxy proxies[RL_N];
    char url[512];
};

static void net_start(struct net *net)
{
    size_t len = 0;

    rl_start(&net->rl, "", false);
    for (int i = 0; i < RL_N; i++) {
        proxy_start(&net->proxies[i], &net->rl.nodes[i]);
        len += (size_t)snprintf(net->url + len, sizeof(net->url) - len,
                                "%s127.0.0.1:%d", i ? "," : "redlock://",
                                net->proxies[i].port);
    }
    snprintf(net->url + len, sizeof(net->url) - len, "?quarantine=off");
}

static void net_end(struct net *net)
{
    for (int i = 0; i < RL_N; i++)
        proxy_stop(&net->proxies[i]);
    rl_end(&net->rl);
}

static hf_client *net_open(const struct net *net)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(net->url, NULL, &client, &t_err));
    return client;
}

/* HF_SHARED, or 0: nobody else has it, so that makes no difference. */
static hf_status net_try(hf_client *client, unsigned flags, hf_lock **ret)
{
    struct hf_lock_opts opts = rt_opts(TTL, HF_MANUAL | flags);

    return hf_acquire(client, "k", 0, &opts, ret, &t_err);
}

/* On how many nodes the claim has the key, in either mode. */
static int net_count(struct net *net, const char *token)
{
    int n = rl_count(&net->rl, "k", token);

    for (int i = 0; i < RL_N; i++)
        n += rt_int(&net->rl.nodes[i], "HEXISTS {holdfast:k}:readers: %s",
                    token) == 1;
    return n;
}

/* Ask for other locks for a while. */
static void net_pass_time(hf_client *client, int64_t ms)
{
    int64_t end = t_now_ms() + ms;
    hf_lock *lk = NULL;

    while (t_now_ms() < end) {
        if (rl_try(client, "other", TTL, &lk) == HF_OK)
            hf_release(lk, NULL);
        t_sleep_ms(20);
    }
}

TEST(a_slow_minority_is_not_waited_for)
{
    static struct net net;
    hf_client *client;
    hf_lock *lk = NULL;
    int64_t best = INT64_MAX, began, took;

    net_start(&net);
    client = net_open(&net);
    proxy_delay(&net.proxies[0], 300);
    proxy_delay(&net.proxies[3], 300);
    for (int i = 0; i < 10; i++) {
        began = t_now_ms();
        CHECK_OK(rl_try(client, "k", TTL, &lk));
        took = t_now_ms() - began;
        best = took < best ? took : best;
        CHECK_OK(hf_release(lk, &t_err));
    }
    CHECK_LT(best, 250);
    rl_check_clean(&net.rl);
    hf_close(client);
    net_end(&net);
}

#define CALLERS      24
#define CALLER_PAIRS 8

struct callers {
    hf_client *client;
    atomic_int next;
    atomic_long sleeps; /* how often one of them gave the processor away */
};

static void *callers_run(void *arg)
{
    struct callers *callers = arg;
    struct rusage before, after;
    hf_lock *lk = NULL;
    char key[24];

    snprintf(key, sizeof(key), "k%d", atomic_fetch_add(&callers->next, 1));
    getrusage(RUSAGE_THREAD, &before);
    for (int i = 0; i < CALLER_PAIRS; i++) {
        CHECK_OK(rl_try(callers->client, key, TTL, &lk));
        CHECK_OK(hf_release(lk, &t_err));
    }
    getrusage(RUSAGE_THREAD, &after);
    atomic_fetch_add(&callers->sleeps, after.ru_nvcsw - before.ru_nvcsw);
    return NULL;
}

/* A pair is three questions, for each of which a thread sleeps a few times, and
 * not every other millisecond until it is answered. */
TEST(threads_that_wait_for_slow_nodes_sleep)
{
    static struct net net;
    struct callers callers = {0};
    pthread_t threads[CALLERS];
    hf_lock *lk = NULL;
    int i;

    net_start(&net);
    callers.client = net_open(&net);
    for (i = 0; i < RL_N; i++)
        proxy_delay(&net.proxies[i], 30);
    for (i = 0; i < 5; i++) { /* It learns how long answers take. */
        CHECK_OK(rl_try(callers.client, "k", TTL, &lk));
        CHECK_OK(hf_release(lk, &t_err));
    }
    for (i = 0; i < CALLERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, callers_run, &callers), 0);
    for (i = 0; i < CALLERS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_LT(callers.sleeps, 20 * CALLERS * CALLER_PAIRS);
    hf_close(callers.client);
    net_end(&net);
}

TEST(nodes_that_are_slow_to_greet_are_waited_for)
{
    static struct net net;
    hf_client *client;
    hf_lock *lk = NULL;

    net_start(&net);
    /* The first is there while the others still owe their last answer. */
    for (int i = 0; i < RL_N; i++)
        proxy_delay(&net.proxies[i], i ? 400 : 350);
    client = net_open(&net);
    for (int i = 0; i < RL_N; i++)
        proxy_delay(&net.proxies[i], 0);
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&net.rl);
    hf_close(client);
    net_end(&net);
}

/* Its limit is shorter than a beginning would take one command at a time. */
TEST(far_nodes_are_connected_again_within_a_short_limit)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    static struct net net;
    hf_client *client = NULL;
    hf_lock *lk = NULL;

    net_start(&net);
    opts.timeout_ms = 400;
    CHECK_OK(hf_open(net.url, &opts, &client, &t_err));
    for (int i = 0; i < RL_N; i++) {
        proxy_delay(&net.proxies[i], 100);
        proxy_break(&net.proxies[i], PROXY_PASS);
    }
    t_poll_until(rl_try(client, "k", TTL, &lk) == HF_OK, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < RL_N; i++)
        proxy_delay(&net.proxies[i], 0);
    rl_check_clean(&net.rl);
    hf_close(client);
    net_end(&net);
}

static bool list_count(void *arg, const char *key, const struct hf_info *info)
{
    (void)key;
    CHECK(info->held);
    ++*(int *)arg;
    return true;
}

TEST(many_locks_are_listed_from_far_away)
{
    enum { N = 60 };
    static struct net net;
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;
    hf_lock *lk[N];
    char key[16];
    int n = 0;

    net_start(&net);
    opts.timeout_ms = 2000; /* of one request */
    CHECK_OK(hf_open(net.url, &opts, &client, &t_err));
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "m%d", i);
        CHECK_OK(rl_try(client, key, TTL, &lk[i]));
    }
    for (int i = 0; i < RL_N; i++)
        proxy_delay(&net.proxies[i], 100);
    CHECK_OK(hf_list(client, "m", list_count, &n, &t_err));
    CHECK_EQ(n, N);
    for (int i = 0; i < RL_N; i++)
        proxy_delay(&net.proxies[i], 0);
    for (int i = 0; i < N; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    net_end(&net);
}

/* The limit of a request is longer than this test may take. */
TEST_TIMEOUT(a_listing_does_not_wait_for_a_silent_minority, 60)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    struct rl rl;
    int n = 0;

    rl_start(&rl, "?quarantine=off", false);
    opts.timeout_ms = 600000;
    CHECK_OK(hf_open(rl.url, &opts, &client, &t_err));
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    rl_signal(&rl, 3, SIGSTOP);
    CHECK_OK(hf_list(client, "k", list_count, &n, &t_err));
    CHECK_EQ(n, 1);
    rl_signal(&rl, 3, SIGCONT);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rl_end(&rl);
}

/* Take and give back until told to stop; only what fails is told. */
static void keep_trying(struct t_peer *up, void *arg)
{
    hf_client *client = rl_open(arg);
    hf_lock *lk = NULL;
    int64_t word;

    t_tell(up, 0);
    while (!t_try_hear(up, 0, &word)) {
        CHECK_OK(rl_try(client, "k", 4000, &lk));
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
}

TEST(answers_that_came_while_the_client_was_stopped_count)
{
    struct t_peer peer;
    struct rl rl;

    rl_start(&rl, "?quarantine=off", false);
    peer = t_fork(keep_trying, &rl);
    t_hear(&peer);
    for (int i = 0; i < 4; i++) {
        t_sleep_ms(20 + i);
        kill(peer.pid, SIGSTOP);
        t_sleep_ms(1100); /* longer than a quarter of the lease */
        kill(peer.pid, SIGCONT);
    }
    t_tell(&peer, 0);
    t_join(&peer);
    rl_check_clean(&rl);
    rl_end(&rl);
}

/* Who lets a lock linger learns late who waits for it. */
static void linger_slowly(int64_t ttl_ms, int delay_ms)
{
    static struct net net;
    struct hf_lock_opts opts = rt_opts(ttl_ms, 0);
    hf_client *holder, *other;
    struct rt_waiter w;
    hf_lock *lk = NULL;

    net_start(&net);
    holder = net_open(&net);
    other = net_open(&net);
    opts.linger_ms = 600000;
    CHECK_OK(hf_acquire(holder, "k", 0, &opts, &lk, &t_err));
    w = rt_waiter(other, "k", 20000, TTL, 0);
    rt_wait_start(&w);
    for (int i = 0; i < RL_N; i++)
        t_poll_until(rt_int(&net.rl.nodes[i], "PUBLISH wake:holdfast:k x") == 1,
                     20000);
    t_sleep_ms(100); /* It has said that it waits. */
    for (int i = 0; i < RL_N; i++)
        proxy_delay(&net.proxies[i], delay_ms);
    hf_release(lk, NULL);
    rt_wait_join(&w);
    hf_close(holder);
    hf_close(other);
    net_end(&net);
}

TEST(a_slow_network_keeps_a_lingering_lock_from_nobody)
{
    linger_slowly(TTL, 150);
}

/* Until it hears the nodes a quarter of the lease is over. */
TEST(who_cannot_learn_in_time_who_waits_does_not_linger)
{
    linger_slowly(2000, 300);
}

/* Nodes of the set lose replies, or everything, during an acquisition. */
static void check_mode(enum proxy_mode mode, unsigned set, int64_t for_ms,
                       unsigned flags)
{
    static struct net net;
    hf_client *client;
    hf_lock *lk = NULL;
    hf_status st;

    net_start(&net);
    client = net_open(&net);
    for (int i = 0; i < RL_N; i++)
        if (set & 1U << i)
            proxy_set(&net.proxies[i], mode, 0);
    st = net_try(client, flags, &lk);
    if (__builtin_popcount(set) <= 2) {
        t_check_status(__FILE__, __LINE__, "a minority is cut", st, HF_OK);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    } else {
        CHECK(st == HF_UNAVAILABLE || st == HF_UNCERTAIN);
    }
    net_pass_time(client, for_ms);
    for (int i = 0; i < RL_N; i++)
        if (set & 1U << i)
            proxy_set(&net.proxies[i], PROXY_PASS, 0);
    rl_check_clean(&net.rl);
    t_poll_until(net_try(client, flags, &lk) == HF_OK, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rl_check_clean(&net.rl);
    net_end(&net);
}

TEST(a_minority_whose_answers_are_lost_is_left_clean)
{
    check_mode(PROXY_DROP, 5, 0, 0);
    check_mode(PROXY_DROP, 5, 0, HF_SHARED);
}

TEST(a_majority_whose_answers_are_lost_is_left_clean)
{
    check_mode(PROXY_DROP, 7, 0, 0);
    check_mode(PROXY_DROP, 7, 0, HF_SHARED);
}

TEST(answers_that_are_lost_until_the_connection_is_given_up)
{
    check_mode(PROXY_DROP, 7, 2500, 0);
    check_mode(PROXY_DROP, 7, 2500, HF_SHARED);
}

TEST(what_the_network_holds_back_does_not_arrive_after_its_release)
{
    check_mode(PROXY_FREEZE, 9, 0, 0);
    check_mode(PROXY_FREEZE, 9, 0, HF_SHARED);
}

TEST(nor_when_the_connection_was_given_up_meanwhile)
{
    check_mode(PROXY_FREEZE, 9, 2500, 0);
    check_mode(PROXY_FREEZE, 9, 2500, HF_SHARED);
}

TEST(a_majority_that_is_held_back_is_left_clean)
{
    check_mode(PROXY_FREEZE, 28, 2500, 0);
    check_mode(PROXY_FREEZE, 28, 2500, HF_SHARED);
}

/* What is said over the first connection to each node. */
static void net_first(struct net *net, const char *what)
{
    char answer[128], command[64];

    snprintf(command, sizeof(command), "conn 1 %s", what);
    for (int i = 0; i < RL_N; i++)
        CHECK(net_tell(net->proxies[i].net, command, answer, sizeof(answer)));
}

/* A try and what takes it back are held up by the network; the same claim is
 * granted over other connections, and then they arrive.  `served`: the client
 * cannot prevent that. */
static void check_late_take_back(const char *forbidden, const char *more,
                                 bool served, unsigned flags)
{
    static struct net net;
    struct hf_lock_opts opts = rt_opts(TTL, flags);
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char token[64], url[600];
    long long calls[RL_N];

    net_start(&net);
    for (int i = 0; i < RL_N; i++)
        rt_do(&net.rl.nodes[i], "ACL SETUSER default -%s", forbidden);
    snprintf(url, sizeof(url), "%s%s", net.url, more);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_OK(rl_try(client, "w", TTL, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    net_first(&net, "up hold");
    CHECK_OK(hf_acquire(client, "k", 30000, &opts, &lk, &t_err));
    snprintf(token, sizeof(token), "%s", hf_token(lk));
    CHECK_GE(net_count(&net, token), 3);
    for (int i = 0; i < RL_N; i++)
        rt_do(&net.rl.nodes[i], "ACL SETUSER default +%s", forbidden);
    for (int i = 0; i < RL_N; i++)
        calls[i] = rt_calls(&net.rl.nodes[i], "evalsha");
    net_first(&net, "pass");
    for (int i = 0; served && i < RL_N; i++)
        t_poll_until(rt_calls(&net.rl.nodes[i], "evalsha") > calls[i], 10000);
    CHECK_GE(net_count(&net, token), 3);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    net_end(&net);
}

TEST(what_takes_a_try_back_late_ends_no_later_grant)
{
    check_late_take_back("client|kill", "", true, 0);
    check_late_take_back("client|kill", "", true, HF_SHARED);
}

TEST(nor_without_a_fence)
{
    check_late_take_back("client|kill", "&fence=off", true, 0);
    check_late_take_back("client|kill", "&fence=off", true, HF_SHARED);
}

TEST(nor_where_nodes_do_not_say_which_they_are)
{
    check_late_take_back("info", "", false, 0);
    check_late_take_back("info", "", false, HF_SHARED);
}

/* ---- shorter leases that arrive late ----------------------------------- */

#define BRIEF 5000

/* What is said over the first connection to each node of the set. */
static void net_first_of(struct net *net, unsigned nodes, const char *what)
{
    char answer[128], command[64];

    snprintf(command, sizeof(command), "conn 1 %s", what);
    for (int i = 0; i < RL_N; i++)
        if (nodes & 1U << i)
            CHECK(
                net_tell(net->proxies[i].net, command, answer, sizeof(answer)));
}

/* How often the nodes of the set were asked to run the script. */
static void net_calls(struct net *net, long long calls[RL_N])
{
    for (int i = 0; i < RL_N; i++)
        calls[i] = rt_calls(&net->rl.nodes[i], "evalsha");
}

static bool net_asked(struct net *net, unsigned nodes, const long long *calls)
{
    for (int i = 0; i < RL_N; i++)
        if (nodes & 1U << i &&
            rt_calls(&net->rl.nodes[i], "evalsha") <= calls[i])
            return false;
    return true;
}

/* Ask for a shorter lease that does not arrive on these nodes, and then for the
 * long one again, which does, over other connections. */
static void extend_held_back(struct net *net, hf_lock *lk, unsigned nodes)
{
    long long calls[RL_N];
    hf_status st;

    net_first_of(net, nodes, "up hold");
    st = hf_extend(lk, BRIEF, &t_err);
    CHECK(!st || st == HF_UNCERTAIN);
    net_calls(net, calls);
    t_sleep_ms(
        300); /* The next is not sent after it, on the same connection. */
    t_poll_until(hf_extend(lk, TTL, &t_err) == HF_OK &&
                     net_asked(net, nodes, calls),
                 20000);
}

/* A majority has the lock for as long as its holder believes. */
static void check_belief(struct net *net, const hf_lock *lk)
{
    int64_t left = hf_remaining_ms(lk);
    int n = 0;

    CHECK(hf_held(lk));
    CHECK_GT(left, 0);
    for (int i = 0; i < RL_N; i++)
        n += rt_int(&net->rl.nodes[i], "PTTL holdfast:k") + 1000 >= left;
    CHECK_GE(n, 3);
}

/* Each set is held back in turn; then everything arrives. */
static void check_late_shorter(const char *more, const unsigned *sets, int n,
                               unsigned flags)
{
    static struct net net;
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    long long calls[RL_N];
    unsigned all = 0;
    char url[600];

    net_start(&net);
    for (int i = 0; i < RL_N; i++)
        rt_do(&net.rl.nodes[i], "ACL SETUSER default -client|kill");
    snprintf(url, sizeof(url), "%s%s", net.url, more);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_OK(net_try(client, flags, &lk));
    for (int i = 0; i < n; i++) {
        extend_held_back(&net, lk, sets[i]);
        all |= sets[i];
    }
    net_calls(&net, calls);
    net_first_of(&net, all, "pass");
    t_poll_until(net_asked(&net, all, calls), 10000);
    check_belief(&net, lk);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    net_end(&net);
}

TEST(a_shorter_lease_that_arrives_late_ends_no_longer_one)
{
    check_late_shorter("", (unsigned[]){0x1f}, 1, 0);
    check_late_shorter("", (unsigned[]){0x1f}, 1, HF_SHARED);
}

TEST(nor_if_a_majority_had_confirmed_it_in_time)
{
    check_late_shorter("", (unsigned[]){0x18, 0x06}, 2, 0);
    check_late_shorter("", (unsigned[]){0x18, 0x06}, 2, HF_SHARED);
}

TEST(nor_where_there_is_no_fence)
{
    check_late_shorter("&fence=off", (unsigned[]){0x18, 0x06}, 2, 0);
    check_late_shorter("&fence=off", (unsigned[]){0x18, 0x06}, 2, HF_SHARED);
}

/* A downgrade is held up on a minority until the lock has another holder. */
TEST(a_downgrade_that_arrives_late_shares_nobodys_lock)
{
    static struct net net;
    hf_client *client;
    hf_lock *lk = NULL;
    long long calls[RL_N];

    net_start(&net);
    for (int i = 0; i < RL_N; i++)
        rt_do(&net.rl.nodes[i], "ACL SETUSER default -client|kill");
    client = net_open(&net);
    CHECK_OK(net_try(client, 0, &lk));
    net_first_of(&net, 0x18, "up hold");
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK_EQ(rl_count(&net.rl, "k", "holdfast:shared"), 3);
    hf_release(lk, NULL);
    net_pass_time(client, 2500); /* The connections are given up. */
    rl_check_clean(&net.rl);
    CHECK_OK(net_try(client, 0, &lk));
    t_poll_until(net_count(&net, hf_token(lk)) == RL_N, 20000);
    net_calls(&net, calls);
    net_first_of(&net, 0x18, "pass");
    t_poll_until(net_asked(&net, 0x18, calls), 10000);
    CHECK_EQ(rl_count(&net.rl, "k", hf_token(lk)), RL_N);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    net_end(&net);
}

/* The bearer of a handle renews; then what the lock was asked before arrives. */
TEST(nor_where_the_bearer_of_a_handle_asked_for_the_longer_one)
{
    static struct net net;
    struct hf_lock_opts opts = rt_opts(TTL, HF_MANUAL);
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *lk = NULL;
    long long calls[RL_N];

    net_start(&net);
    for (int i = 0; i < RL_N; i++)
        rt_do(&net.rl.nodes[i], "ACL SETUSER default -client|kill");
    a = net_open(&net);
    CHECK_OK(rl_try(a, "k", TTL, &lk));
    net_first_of(&net, 0x18, "up hold");
    CHECK_OK(hf_extend(lk, BRIEF, &t_err));
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    b = net_open(&net);
    CHECK_OK(hf_handle_extend(b, "k", &handle, &opts, &t_err));
    net_calls(&net, calls);
    net_first_of(&net, 0x18, "pass");
    t_poll_until(net_asked(&net, 0x18, calls), 10000);
    for (int i = 0; i < RL_N; i++)
        CHECK_GT(rt_int(&net.rl.nodes[i], "PTTL holdfast:k"), 2 * BRIEF);
    CHECK_OK(hf_handle_release(b, "k", &handle, &opts, &t_err));
    hf_close(a);
    hf_close(b);
    net_end(&net);
}

TEST_TIMEOUT(a_minority_that_speaks_bad_reply_does_no_harm, 120)
{
    struct rl rl;
    char url[256];

    rl_start(&rl, "", false);
    for (int i = 0; i < 2 * HOSTILE_KINDS; i++) {
        struct hostile bad[2];
        hf_client *client = NULL;
        hf_lock *lk = NULL;

        hostile_start(&bad[0], (enum hostile_kind)(i / 2), i % 2 * 6);
        hostile_start(&bad[1], (enum hostile_kind)(i / 2), i % 2 * 8);
        snprintf(url, sizeof(url),
                 "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,"
                 "127.0.0.1:%d,127.0.0.1:%d?quarantine=off",
                 bad[0].port, rl.nodes[0].port, rl.nodes[1].port, bad[1].port,
                 rl.nodes[2].port);
        CHECK_OK(hf_open(url, NULL, &client, &t_err));
        CHECK_OK(rl_try(client, "k", TTL, &lk));
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(client);
        hostile_stop(&bad[0]);
        hostile_stop(&bad[1]);
        rl_check_clean(&rl);
    }
    rl_end(&rl);
}

T_MAIN
