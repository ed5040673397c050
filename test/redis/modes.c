/* SPDX-License-Identifier: MIT
 *
 * modes.c - the ways to ask Redis for a lock: the simple ones exclude the full
 * one on the same key, replicas are waited for, any key has its companions in
 * its own slot, and many threads share one connection.
 */
#include "proxy.h"

#include <time.h>
#include <unistd.h>

TEST(what_another_library_holds_has_nothing_of_our_last_grant)
{
    struct hf_info info = HF_INFO_INIT;
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;
    uint64_t fence;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 60000, 0);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    rt_do(&s, "SET holdfast:k foreign PX 60000");
    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK_EQ(info.held, 1);
    CHECK_EQ(info.fence, 0);
    CHECK_STR(info.owner, "foreign");
    CHECK_STR(info.note, "");
    CHECK_STATUS(hf_check(client, "k", fence, &t_err), HF_LOST);
    rt_do(&s, "DEL holdfast:k");
    hf_close(client);
    rt_end(&s);
}

/* Only what this library wrote for the owner id is joined: not a value that
 * looks like it, with nothing known of the key, nor the very value of the last
 * grant, put back by somebody else. */
TEST(an_owner_id_does_not_join_what_another_library_wrote)
{
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(60000, 0);
    hf_client *client;
    hf_lock *lk = NULL;
    char last[64];
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    opts.owner = "order-7";
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    snprintf(last, sizeof(last), "%s", rt_text(&s, "GET holdfast:k"));
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < 4; i++) {
        if (i % 2)
            rt_do(&s, "SET holdfast:k %s PX 60000", i < 2 ? last : "order-7 9");
        else
            rt_do(&s, "SET holdfast:k %s", i < 2 ? last : "order-7 9");
        CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &lk, &t_err), HF_BUSY);
        CHECK_STR(rt_text(&s, "GET holdfast:k"), i < 2 ? last : "order-7 9");
        CHECK_EQ(rt_int(&s, "PTTL holdfast:k") > 0, i % 2);
        if (i == 1)
            rt_do(&s, "DEL {holdfast:k}:meta:");
    }
    rt_do(&s, "DEL holdfast:k");
    hf_close(client);
    rt_end(&s);
}

TEST(every_way_to_acquire_excludes_every_other)
{
    static const char *const modes[] = {"", "?acquire=set", "?acquire=script",
                                        "?queue=barge", "?wait=poll"};
    enum { N = 5 };
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(600, 0);
    hf_client *client[N];
    struct rt_waiter w;
    hf_lock *lk, *other = NULL;
    int i, j;

    rt_start(&s, NULL);
    for (i = 0; i < N; i++)
        client[i] = rt_open(&s, modes[i]);
    for (i = 0; i < N; i++) {
        lk = rt_lock(client[i], "k", 0, 600, 0);
        CHECK_GT(rt_int(&s, "PTTL holdfast:k"), 0);
        for (j = 0; j < N; j++)
            if (j != i)
                CHECK_STATUS(
                    hf_acquire(client[j], "k", 0, &opts, &other, &t_err),
                    HF_BUSY);
        t_sleep_ms(700);
        CHECK(hf_held(lk)); /* renewed in every mode */
        CHECK_OK(hf_extend(lk, 5000, &t_err));
        w = rt_waiter(client[(i + 1) % N], "k", 10000, 600, 0);
        rt_wait_start(&w);
        t_sleep_ms(50);
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
    }
    for (i = 0; i < N; i++)
        hf_close(client[i]);
    rt_end(&s);
}

TEST(the_simple_modes_hold_what_others_find)
{
    static const char *const modes[] = {"?acquire=set", "?acquire=script"};
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    for (i = 0; i < 2; i++) {
        client = rt_open(&s, modes[i]);
        lk = rt_lock(client, "k", 0, 5000, 0);
        CHECK_STR(rt_text(&s, "GET holdfast:k"), hf_token(lk));
        CHECK_EQ(rt_int(&s, "DBSIZE"), 1);
        CHECK_OK(hf_release(lk, &t_err));
        CHECK_EQ(rt_int(&s, "DBSIZE"), 0);
        hf_close(client);
    }
    CHECK_GE(rt_calls(&s, "set"), 1);
    CHECK_GE(rt_calls(&s, "setnx"), 1);
    rt_end(&s);
}

/* Nobody could tell: who waits asks, and who lingers is not asked. */
TEST(the_simple_modes_listen_to_nobody)
{
    static const char *const modes[] = {"?acquire=set", "?acquire=script"};
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(5000, 0);
    hf_client *client, *other;
    struct rt_waiter w;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    opts.linger_ms = 60000;
    for (i = 0; i < 2; i++) {
        client = rt_open(&s, modes[i]);
        other = rt_open(&s, modes[i]);
        CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
        w = rt_waiter(other, "k", 10000, 5000, 0);
        rt_wait_start(&w);
        CHECK_OK(hf_release(lk, &t_err));
        CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 1);
        hf_close(client);
        rt_wait_join(&w);
        hf_close(other);
    }
    CHECK_EQ(rt_calls(&s, "subscribe"), 0);
    CHECK_EQ(rt_calls(&s, "ssubscribe"), 0);
    rt_end(&s);
}

TEST(an_owner_id_works_in_every_mode)
{
    static const char *const modes[] = {"", "?acquire=set", "?acquire=script"};
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(900, 0);
    const char *value;
    hf_client *client;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    opts.owner = "order-7";
    for (i = 0; i < 3; i++) {
        client = rt_open(&s, modes[i]);
        CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
        /* The name of the holder is what stands there, in every mode; that of
         * an owner id has the fence behind it. */
        value = rt_text(&s, "GET holdfast:k");
        CHECK_EQ(strncmp(value, hf_token(lk), strlen(hf_token(lk))), 0);
        CHECK_EQ(strlen(value) > strlen(hf_token(lk)), i == 0);
        CHECK_EQ(!strcmp(hf_token(lk), "order-7"), i == 0);
        t_sleep_ms(1000);
        CHECK(hf_held(lk));
        /* Who counts, and what is counted, end together. */
        if (i == 0)
            CHECK_LE(llabs(rt_int(&s, "PTTL {holdfast:k}:owners:") -
                           rt_int(&s, "PTTL holdfast:k")),
                     250);
        CHECK_OK(hf_release(lk, &t_err));
        CHECK_EQ(rt_int(&s, "EXISTS {holdfast:k}:owners:"), 0);
        CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
        hf_close(client);
    }
    rt_end(&s);
}

TEST(a_lock_that_was_broken_does_not_spoil_the_next_one)
{
    struct rt_server s = {0};
    hf_client *client, *simple;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    simple = rt_open(&s, "?acquire=set");
    lk = rt_lock(client, "k", 0, 600, 0);
    CHECK_OK(hf_break(client, "k", hf_fence(lk), &t_err));
    t_poll_until(!hf_held(lk), 2000);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    lk = rt_lock(simple, "k", 5000, 600, 0);
    t_sleep_ms(900);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    lk = rt_lock(client, "k", 5000, 600, 0);
    t_sleep_ms(900);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(simple);
    rt_end(&s);
}

/* ---- replicas ---------------------------------------------------------- */

static void start_replica(struct rt_server *replica, struct rt_server *s)
{
    char port[16];

    snprintf(port, sizeof(port), "%d", s->port);
    rt_start(replica, "--replicaof", "127.0.0.1", port, NULL);
    t_poll_until(strstr(rt_text(s, "INFO replication"), "state=online"), 20000);
}

TEST(replicas_are_waited_for_or_the_attempt_is_undone)
{
    struct rt_server s = {0}, replica = {0};
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_waiter w[8];
    hf_client *client;
    hf_lock *lk = NULL;
    char key[8][8];
    int i;

    rt_start(&s, "--repl-diskless-sync-delay", "0", NULL);
    client = rt_open(&s, "?replicas=1&timeout=3s");
    /* Many at once, who wait behind each other, are as certain as one alone. */
    for (i = 0; i < 8; i++) {
        snprintf(key[i], sizeof(key[i]), "k%d", i);
        w[i] = rt_waiter(client, key[i], 0, 60000, 0);
        rt_wait_start(&w[i]);
    }
    for (i = 0; i < 8; i++) {
        pthread_join(w[i].thread, NULL);
        CHECK_STATUS(w[i].st, HF_UNAVAILABLE);
    }
    for (i = 0; i < 8; i++)
        CHECK_EQ(rt_int(&s, "EXISTS holdfast:%s", key[i]), 0);
    CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &lk, &t_err),
                 HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "0 of 1") != NULL);
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    start_replica(&replica, &s);
    lk = rt_lock(client, "k", 10000, 60000, 0);
    CHECK_STR(rt_text(&replica, "GET holdfast:k"), hf_token(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    client = rt_open(&s, "?replicas=2&timeout=3s");
    CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &lk, &t_err),
                 HF_UNAVAILABLE);
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    hf_close(client);
    rt_end(&replica);
    rt_end(&s);
}

/* A grant that no replica has is given back; that is held up on its way, and
 * arrives after the next try of the same claim was granted. */
TEST(a_grant_that_is_given_back_late_takes_no_later_one_with_it)
{
    static const char *const owners[] = {NULL, "order-7"};
    struct rt_server s = {0}, replica = {0};
    hf_client *client = NULL;
    char answer[128];
    struct proxy p;
    struct rt_waiter w;
    long long calls;
    int i;

    rt_start(&s, "--repl-diskless-sync-delay", "0", NULL);
    start_replica(&replica, &s);
    for (i = 0; i < 2; i++) {
        proxy_start(&p, &s);
        CHECK_OK(hf_open(rt_url(p.port, "?replicas=1&timeout=1s"), NULL,
                         &client, &t_err));
        CHECK_OK(hf_release(rt_lock(client, "w", 9000, 30000, 0), &t_err));
        rt_signal(&replica, SIGSTOP);
        calls = rt_calls(&s, "wait");
        w = rt_waiter(client, "k", 30000, 60000, 0);
        w.owner = owners[i];
        w.hold_ms = 3000;
        rt_wait_start(&w);
        t_poll_until(rt_int(&s, "EXISTS holdfast:k"), 5000);
        CHECK(net_tell(p.net, "conn 1 up hold", answer, sizeof(answer)));
        t_poll_until(rt_calls(&s, "wait") >= calls + 2, 20000);
        rt_signal(&replica, SIGCONT);
        t_poll_until(w.got_at, 20000);
        calls = rt_calls(&s, "evalsha");
        CHECK(net_tell(p.net, "conn 1 pass", answer, sizeof(answer)));
        t_poll_until(rt_calls(&s, "evalsha") > calls, 10000);
        CHECK_EQ(strtoull(rt_text(&s, "HGET {holdfast:k}:meta: g"), NULL, 10),
                 w.fence);
        CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 1);
        rt_wait_join(&w);
        hf_close(client);
        proxy_stop(&p);
        rt_do(&s, "DEL {holdfast:k}:queue:");
    }
    rt_end(&replica);
    rt_end(&s);
}

/* Somebody waits for a replica that does not answer: others are not kept. */
TEST(a_frozen_replica_endangers_no_lock_that_is_held)
{
    struct rt_server s = {0}, replica = {0};
    struct hf_lock_opts opts = rt_opts(1500, 0);
    hf_client *client;
    hf_lock *lk, *other = NULL;
    int64_t end;

    rt_start(&s, "--repl-diskless-sync-delay", "0", NULL);
    start_replica(&replica, &s);
    client = rt_open(&s, "?replicas=1");
    lk = rt_lock(client, "k", 10000, 1500, 0);
    rt_signal(&replica, SIGSTOP);
    for (end = t_now_ms() + 5000; t_now_ms() < end;) {
        CHECK(hf_acquire(client, "other", 0, &opts, &other, &t_err) != HF_OK);
        CHECK(hf_held(lk));
    }
    rt_signal(&replica, SIGCONT);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&replica);
    rt_end(&s);
}

/* ---- what others have put there ----------------------------------------- */

TEST(a_long_value_at_the_key_is_somebody_elses_lock_and_no_more)
{
    static const char *const modes[] = {"", "?acquire=set", "?acquire=script"};
    struct hf_lock_opts opts = rt_opts(5000, 0);
    struct hf_info info = HF_INFO_INIT;
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk, *none = NULL;
    int i, j;

    rt_start(&s, NULL);
    rt_do(&s, "EVAL %s 0",
          "redis.call('SET','holdfast:big',string.rep('x',3000000))");
    for (i = 0; i < 3; i++) {
        client = rt_open(&s, modes[i]);
        lk = rt_lock(client, "k", 0, 5000, 0);
        for (j = 0; j < 3; j++)
            CHECK_STATUS(hf_acquire(client, "big", 0, &opts, &none, &t_err),
                         HF_BUSY);
        if (i == 0) {
            CHECK_OK(hf_inspect(client, "big", &info, &t_err));
            CHECK(info.held);
        }
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(client);
    }
    rt_do(&s, "DEL holdfast:big");
    rt_end(&s);
}

/* ---- names ------------------------------------------------------------- */

static const char *const odd_keys[] = {
    "{a}",   "a}b",    "{}x", "}{",     "{", "}",    "{{a}}", "a{b}c{d}", "{}",
    "{}{b}", ":meta:", "a b", "a\r\nb", "*", "[x]?", "\\",    "\xff\xfe", "{a",
};

/* A server in cluster mode refuses a script whose keys differ in slot. */
TEST(keys_with_braces_and_worse_work_and_stay_in_their_slot)
{
    static const char *const prefixes[] = {"", "?prefix=", "?prefix=a}b{c:"};
    struct rt_server s = {0};
    struct hf_info info = HF_INFO_INIT;
    hf_client *client, *other;
    struct rt_waiter w;
    char bus[16];
    size_t i, j;
    hf_lock *lk;

    snprintf(bus, sizeof(bus), "%d", rt_free_port());
    rt_start(&s, "--cluster-enabled", "yes", "--cluster-port", bus, NULL);
    rt_do(&s, "CLUSTER ADDSLOTSRANGE 0 16383");
    t_poll_until(strstr(rt_text(&s, "CLUSTER INFO"), "cluster_state:ok"),
                 20000);
    for (j = 0; j < 3; j++) {
        client = rt_open(&s, prefixes[j]);
        other = rt_open(&s, prefixes[j]);
        for (i = 0; i < sizeof(odd_keys) / sizeof(odd_keys[0]); i++) {
            lk = rt_lock(client, odd_keys[i], 0, 5000, 0);
            w = rt_waiter(other, odd_keys[i], 10000, 5000, 0);
            rt_wait_start(&w);
            do {
                CHECK_OK(hf_inspect(client, odd_keys[i], &info, &t_err));
                CHECK(info.held);
            } while (info.waiters < 1);
            CHECK_OK(hf_release(lk, &t_err));
            rt_wait_join(&w);
        }
        hf_close(client);
        hf_close(other);
    }
    rt_end(&s);
}

static bool count_one(void *arg, const char *key, const struct hf_info *info)
{
    CHECK(info->held);
    CHECK_STR(key, "only");
    (*(int *)arg)++;
    return true;
}

/* The name of a companion is not searched for each time. */
TEST(a_lone_brace_in_a_key_costs_little)
{
    struct rt_server s = {0};
    struct timespec from, to;
    hf_client *client;
    char key[32];
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "?prefix=%7D");
    CHECK_OK(hf_release(rt_lock(client, "}", 0, 5000, 0), &t_err));
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (i = 0; i < 300; i++) {
        snprintf(key, sizeof(key), "%d}", i);
        CHECK_OK(hf_release(rt_lock(client, key, 0, 5000, 0), &t_err));
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    CHECK_LE((to.tv_sec - from.tv_sec) * 1000 +
                 (to.tv_nsec - from.tv_nsec) / 1000000,
             750);
    hf_close(client);
    rt_do(&s, "FLUSHALL");
    rt_end(&s);
}

TEST(an_empty_prefix_puts_the_key_where_others_look)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;
    int n = 0;

    rt_start(&s, NULL);
    client = rt_open(&s, "?prefix=");
    lk = rt_lock(client, "only", 0, 5000, 0);
    CHECK_STR(rt_text(&s, "GET only"), hf_token(lk));
    CHECK_OK(hf_list(client, NULL, count_one, &n, &t_err));
    CHECK_EQ(n, 1);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

/* ---- many threads ------------------------------------------------------ */

struct team {
    hf_client *client;
    int id, rounds;
    pthread_t thread;
};

static void *team_run(void *arg)
{
    struct team *team = arg;
    uint64_t fence = 0;
    char key[16];
    hf_lock *lk;
    int i;

    snprintf(key, sizeof(key), "key%d", team->id);
    for (i = 0; i < team->rounds; i++) {
        lk = rt_lock(team->client, key, 0, 30000, 0);
        CHECK_GT(hf_fence(lk), fence);
        fence = hf_fence(lk);
        CHECK_STR(hf_key(lk), key);
        CHECK_OK(hf_release(lk, &t_err));
    }
    return NULL;
}

TEST(sixty_four_threads_share_one_connection)
{
    struct rt_server s = {0};
    struct team team[64];
    hf_client *client;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < 64; i++) {
        team[i] = (struct team){client, i, t_scaled(200, 20), 0};
        CHECK_EQ(pthread_create(&team[i].thread, NULL, team_run, &team[i]), 0);
    }
    t_sleep_ms(50);
    CHECK(strstr(rt_text(&s, "INFO clients"), "connected_clients:2"));
    for (i = 0; i < 64; i++)
        pthread_join(team[i].thread, NULL);
    hf_close(client);
    rt_end(&s);
}

TEST(an_answer_is_waited_for_awake_as_long_as_was_said)
{
    static const char *const good[] = {"?spin_us=0", "?spin_us=10000"};
    static const char *const bad[] = {"?spin_us=-1", "?spin_us=x",
                                      "?spin_us=10001", "?spin_us="};
    struct rt_server s = {0};
    hf_client *client;
    size_t i, n;

    rt_start(&s, NULL);
    for (i = 0; i < 2; i++) {
        client = rt_open(&s, good[i]);
        for (n = 0; n < 100; n++)
            CHECK_OK(hf_release(rt_lock(client, "k", 0, 5000, 0), &t_err));
        hf_close(client);
    }
    for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        client = NULL;
        CHECK_STATUS(hf_open(rt_url(s.port, bad[i]), NULL, &client, &t_err),
                     HF_INVALID);
        CHECK(strstr(t_err.text, "spin_us=") != NULL);
    }
    rt_end(&s);
}

T_MAIN
