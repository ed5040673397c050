/* SPDX-License-Identifier: MIT
 *
 * switch.c - a client learns from the sentinels that the master is another,
 * before it has asked the old one for anything.
 *
 * The old master of these tests is a stubborn one, as if it were cut off from
 * the sentinels: it would go on serving whoever is connected to it.
 */
#include "ensemble.h"
#include "proxy.h"

#include <sys/wait.h>
#include <unistd.h>

/* ---- who is connected -------------------------------------------------- */

/* Has the client, which is in this process, read all that the sentinel said? */
static bool all_is_read(struct rt_server *s)
{
    redisReply *reply = rt_ask(s, "CLIENT LIST TYPE pubsub");
    const char *addr = strstr(reply->str, " addr=127.0.0.1:");
    unsigned port = addr ? (unsigned)strtoul(addr + 16, NULL, 10) : 0;
    unsigned from, to, queue;
    FILE *file = fopen("/proc/net/tcp", "re");
    char line[256];
    bool read = false;

    freeReplyObject(reply);
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, " %*d: %*x:%x %*x:%x %*x %*x:%x", &from, &to,
                   &queue) == 3 &&
            from == port && to == (unsigned)s->port)
            read = queue == 0;
    fclose(file);
    return read;
}

/* ---- tests ------------------------------------------------------------- */

TEST_TIMEOUT(an_idle_client_leaves_a_deposed_master_that_would_still_serve, 120)
{
    struct ensemble e = {.stubborn = true};
    hf_client *client;

    ensemble_start(&e);
    client = open_listening(&e, "");
    CHECK_EQ(count_ours(&e.node[0]), 1);
    depose(&e, 1);
    t_poll_until(count_ours(&e.node[0]) == 0, 20000);
    check_lands_on(client, &e.node[1], "after");
    CHECK(is_master(&e.node[0])); /* It would have granted it. */
    CHECK_STR(rt_text(&e.node[0], "SET holdfast:after x NX PX 100"), "OK");
    hf_close(client);
    ensemble_stop(&e);
}

/* Nobody asks the old master, and nobody is told by it, who waits or holds. */
TEST_TIMEOUT(holder_and_waiter_go_where_the_master_is_and_meet_there, 120)
{
    struct ensemble e = {.stubborn = true};
    hf_client *holder, *waiter;
    struct rt_waiter w;
    hf_lock *lk;

    ensemble_start(&e);
    holder = open_listening(&e, "&replicas=1");
    waiter = open_listening(&e, "");
    lk = rt_lock(holder, "k", 0, 60000, 0); /* The replica has it. */
    w = rt_waiter(waiter, "k", 60000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_hears(&e.node[0], "k"), 20000);
    depose(&e, 2);
    t_poll_until(rt_channels(&e.node[1]) == 1, 20000);
    CHECK_EQ(rt_channels(&e.node[0]), 0);
    t_poll_until(count_ours(&e.node[0]) == 0, 20000);
    t_poll_until(rt_hears(&e.node[1], "k"), 20000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    CHECK_GT(w.fence, 0);
    hf_close(holder);
    hf_close(waiter);
    ensemble_stop(&e);
}

/* Its try is under way to a master that hangs and is deposed.  Were the answer
 * still waited for, that master could grant the lock when it thaws, beside what
 * its successor grants. */
TEST_TIMEOUT(what_a_deposed_master_still_answers_counts_for_nothing, 120)
{
    struct ensemble e = {.stubborn = true};
    struct rt_waiter w;
    hf_client *client;
    char *at;

    ensemble_start(&e);
    at = strstr(e.url, "timeout=1s");
    CHECK(at != NULL);
    memcpy(at, "timeout=1m", 10);
    client = open_listening(&e, "");
    rt_signal(&e.node[0], SIGSTOP);
    w = rt_waiter(client, "k", 60000, 60000, 0);
    rt_wait_start(&w);
    depose(&e, 1);
    t_poll_until(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE), 20000);
    rt_signal(&e.node[0], SIGCONT);
    rt_wait_join(&w);
    CHECK_EQ(
        strtoull(rt_text(&e.node[1], "HGET {holdfast:k}:meta: g"), NULL, 10),
        w.fence);
    hf_close(client);
    ensemble_stop(&e);
}

/* The same for a try whose connection nobody begins on any more, since another
 * call has given up waiting there. */
TEST_TIMEOUT(nor_does_what_it_answers_where_others_gave_up, 120)
{
    struct ensemble e = {.stubborn = true};
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct rt_waiter w;
    hf_client *client;
    hf_lock *lock;
    char *at;
    int i;

    ensemble_start(&e);
    for (i = 0; i < SENTINELS; i++) /* They wait for our word. */
        rt_do(&e.sentinel[i],
              "SENTINEL SET main down-after-milliseconds 60000");
    at = strstr(e.url, "timeout=1s");
    CHECK(at != NULL);
    memcpy(at, "timeout=1m", 10);
    client = open_listening(&e, "");
    rt_signal(&e.node[0], SIGSTOP);
    w = rt_waiter(client, "k", 60000, 60000, 0);
    rt_wait_start(&w);
    opts.ttl_ms = 1500;
    CHECK(hf_acquire(client, "other", 1500, &opts, &lock, NULL) != HF_OK);
    depose(&e, 1);
    t_poll_until(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE), 20000);
    rt_signal(&e.node[0], SIGCONT);
    rt_wait_join(&w);
    CHECK_EQ(
        strtoull(rt_text(&e.node[1], "HGET {holdfast:k}:meta: g"), NULL, 10),
        w.fence);
    hf_close(client);
    ensemble_stop(&e);
}

TEST_TIMEOUT(the_switch_of_another_master_is_nothing_to_us, 120)
{
    struct ensemble e = {.both = true};
    hf_client *client;
    long long made;
    int i, at;

    ensemble_start(&e);
    client = open_listening(&e, "");
    at = listened_to(&e);
    made = rt_calls(&e.node[0], "role"); /* once for each connection */
    rt_do(&e.sentinel[at], "SENTINEL FAILOVER other");
    t_poll_until(sentinel_says(&e.sentinel[at], "other", "port") ==
                     e.other[1].port,
                 20000);
    t_poll_until(all_is_read(&e.sentinel[at]), 20000);
    for (i = 0; i < 20; i++) {
        check_lands_on(client, &e.node[0], "after");
        t_sleep_ms(20);
    }
    CHECK_EQ(rt_calls(&e.node[0], "role"), made);
    CHECK_EQ(listened_to(&e), at);
    hf_close(client);
    ensemble_stop(&e);
}

TEST_TIMEOUT(a_sentinel_that_hangs_or_dies_is_replaced_by_another, 120)
{
    struct ensemble e = {.stubborn = true};
    hf_client *client;
    int at;

    ensemble_start(&e);
    client = open_listening(&e, "&ttl=2s");
    at = listened_to(&e);
    rt_signal(&e.sentinel[at], SIGSTOP);
    t_poll_until(
        count_clients(&e.sentinel[(at + 1) % SENTINELS], " sub=1 ", "") == 1,
        20000);
    rt_signal(&e.sentinel[at], SIGCONT);
    ensemble_ready(&e);
    rt_crash(&e.sentinel[(at + 1) % SENTINELS]);
    t_poll_until(listened_to(&e) >= 0, 20000);
    CHECK_EQ(count_ours(&e.node[0]), 1);
    depose(&e, listened_to(&e));
    t_poll_until(count_ours(&e.node[0]) == 0, 20000);
    check_lands_on(client, &e.node[1], "after");
    hf_close(client);
    ensemble_stop(&e);
}

/* The old master was named, and hangs when it is to say what it is; by the time
 * it says that, it has been replaced. */
TEST_TIMEOUT(a_connection_that_was_being_made_is_made_again, 120)
{
    struct ensemble e = {.stubborn = true};
    struct rt_waiter w;
    hf_client *client;
    int at;

    ensemble_start(&e);
    e.url[strcspn(e.url, "?")] = '\0';
    client = open_listening(&e, "?timeout=30s");
    at = listened_to(&e);
    rt_do(&e.node[0], "CLIENT KILL TYPE normal");
    rt_signal(&e.node[0], SIGSTOP);
    w = rt_waiter(client, "after", 60000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(sentinel_says(&e.sentinel[at], "main", "port") ==
                     e.node[1].port,
                 40000);
    t_poll_until(all_is_read(&e.sentinel[at]), 20000);
    rt_signal(&e.node[0], SIGCONT);
    rt_wait_join(&w);
    CHECK(is_master(&e.node[0]));
    CHECK_EQ(rt_int(&e.node[0], "EXISTS {holdfast:after}:meta:"), 0);
    CHECK_EQ(rt_int(&e.node[1], "EXISTS {holdfast:after}:meta:"), 1);
    hf_close(client);
    ensemble_stop(&e);
}

/* The client sees no sentinel while it happens. */
TEST_TIMEOUT(what_was_not_heard_is_asked_for_when_a_sentinel_is_back, 120)
{
    struct ensemble e = {.stubborn = true};
    struct proxy proxy;
    hf_client *client;

    ensemble_start(&e);
    proxy_start(&proxy, &e.sentinel[0]);
    snprintf(e.url, sizeof(e.url),
             "redis+sentinel://127.0.0.1:%d/main?timeout=1s", proxy.port);
    client = open_listening(&e, "");
    proxy_break(&proxy, PROXY_FREEZE);
    depose(&e, 0);
    t_poll_until(
        sentinel_says(&e.sentinel[0], "main", "port") == e.node[1].port, 20000);
    CHECK_EQ(count_ours(&e.node[0]), 1);
    proxy_set(&proxy, PROXY_PASS, 0);
    t_poll_until(count_ours(&e.node[0]) == 0, 20000);
    check_lands_on(client, &e.node[1], "after");
    hf_close(client);
    proxy_stop(&proxy);
    ensemble_stop(&e);
}

/* What is known to be out of date is no reason to leave a master. */
TEST_TIMEOUT(a_sentinel_that_is_behind_does_not_lead_back, 120)
{
    struct ensemble e = {.stubborn = true, .loner = true};
    hf_client *client;
    int i;

    ensemble_start(&e);
    client = open_listening(&e, "");
    depose(&e, 1);
    t_poll_until(count_ours(&e.node[0]) == 0, 20000);
    check_lands_on(client, &e.node[1], "after");
    rt_crash(&e.sentinel[0]);
    rt_crash(&e.sentinel[1]);
    t_poll_until(listened_to(&e) == 2, 20000);
    CHECK_EQ(sentinel_says(&e.sentinel[2], "main", "port"), e.node[0].port);
    for (i = 0; i < 20; i++) {
        check_lands_on(client, &e.node[1], "after");
        t_sleep_ms(20);
    }
    hf_close(client);
    ensemble_stop(&e);
}

TEST(nobody_listens_before_the_first_use_and_after_the_end)
{
    struct ensemble e = {0};
    hf_client *client = NULL;
    pid_t child;
    int status;

    ensemble_start(&e);
    CHECK_OK(hf_open(e.url, NULL, &client, &t_err));
    t_sleep_ms(200);
    CHECK_EQ(listened_to(&e), -1);
    check_lands_on(client, &e.node[0], "k");
    t_poll_until(listened_to(&e) >= 0, 20000);
    child = fork();
    if (child == 0) {
        hf_close(client);
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    check_lands_on(client, &e.node[0], "k");
    CHECK_GE(listened_to(&e), 0);
    hf_close(client);
    t_poll_until(listened_to(&e) < 0, 20000);
    rt_check_clean(&e.node[0]);
    ensemble_stop(&e);
}

T_MAIN
