/* SPDX-License-Identifier: MIT
 *
 * restart.c - nodes that forget: repair, quarantine and fences; and servers that
 * are listed twice.
 */
#include "rl.h"

TEST(a_node_that_lost_the_key_is_given_it_again)
{
    struct hf_lock_opts opts = rt_opts(1500, 0);
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;
    uint64_t fence;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    for (int i = 0; i < RL_N; i++) { /* one after the other, so all of them */
        rt_crash(&rl.nodes[i]);
        rt_again(&rl.nodes[i]);
        t_poll_until(rl_count(&rl, "k", hf_token(lk)) == RL_N, 10000);
        CHECK(hf_held(lk));
    }
    CHECK_EQ(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

/* A lock whose majority forgets it: does a stranger get it? */
static bool is_given_away(const char *options)
{
    struct rl rl;
    hf_client *a, *b;
    hf_lock *lk = NULL, *other = NULL;
    struct hf_lock_opts opts = rt_opts(4000, HF_MANUAL);
    bool given = false;
    int64_t end;

    rl_start(&rl, options, false);
    a = rl_open(&rl);
    b = rl_open(&rl);
    t_poll_until(hf_acquire(a, "k", 0, &opts, &lk, &t_err) == HF_OK, 20000);
    for (int i = 0; i < 3; i++) {
        rt_crash(&rl.nodes[i]);
        rt_again(&rl.nodes[i]);
    }
    for (end = t_now_ms() + 2000; !given && t_now_ms() < end;) {
        given = rl_try(b, "k", 4000, &other) == HF_OK;
        t_sleep_ms(20);
    }
    if (!given) /* It is only for a while. */
        t_poll_until(rl_try(b, "k", 4000, &other) == HF_OK, 20000);
    hf_release(other, NULL);
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
    return given;
}

TEST(a_node_that_has_just_started_may_not_vote)
{
    CHECK(!is_given_away("?quarantine=4s"));
}

TEST(without_quarantine_a_majority_that_forgets_gives_the_lock_away)
{
    CHECK(is_given_away("?quarantine=off"));
}

TEST(a_short_lease_does_not_shorten_the_quarantine)
{
    struct hf_lock_opts opts = rt_opts(20000, HF_MANUAL);
    struct rl rl;
    char url[600];
    hf_client *a = NULL, *b;
    hf_lock *lk = NULL, *other = NULL;
    int64_t end;

    rl_start(&rl, "", false);
    snprintf(url, sizeof(url), "%s?quarantine=off", rl.url);
    CHECK_OK(hf_open(url, NULL, &a, &t_err)); /* need not wait for the nodes */
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
    for (int i = 0; i < 3; i++) {
        rt_crash(&rl.nodes[i]);
        rt_again(&rl.nodes[i]);
    }
    b = rl_open(&rl);
    for (end = t_now_ms() + 4000; t_now_ms() < end; t_sleep_ms(20))
        CHECK(rl_try(b, "k", 200, &other) != HF_OK);
    CHECK(strstr(t_err.text, "restarted"));
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

TEST(clients_that_were_told_different_quarantines_obey_the_longest)
{
    struct rl rl;
    char url[600];
    hf_client *brief, *slow = NULL, *late;
    hf_lock *lk = NULL;
    int64_t end;

    rl_start(&rl, "?quarantine=200ms", false);
    brief = rl_open(&rl);
    t_poll_until(rl_try(brief, "k", 200, &lk) == HF_OK, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    snprintf(url, sizeof(url), "%.*s?quarantine=1h", (int)strcspn(rl.url, "?"),
             rl.url);
    CHECK_OK(hf_open(url, NULL, &slow, &t_err));
    late = rl_open(&rl);
    for (end = t_now_ms() + 3000; t_now_ms() < end; t_sleep_ms(20))
        CHECK_STATUS(rl_try(late, "k", 200, &lk), HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "restarted"));
    hf_close(brief);
    hf_close(slow);
    hf_close(late);
    rl_end(&rl);
}

/* The nodes that were restarted do not know the longer one; the others do. */
TEST(a_longer_quarantine_counts_for_clients_that_came_before_it)
{
    struct hf_lock_opts opts = rt_opts(20000, HF_MANUAL);
    struct rl rl;
    char url[600];
    hf_client *brief, *slow = NULL, *off = NULL;
    hf_lock *lk = NULL, *other = NULL;
    int64_t end;

    rl_start(&rl, "?quarantine=500ms", false);
    brief = rl_open(&rl);
    t_poll_until(rl_try(brief, "k", 500, &lk) == HF_OK, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    snprintf(url, sizeof(url), "%.*s?quarantine=20s", (int)strcspn(rl.url, "?"),
             rl.url);
    CHECK_OK(hf_open(url, NULL, &slow, &t_err));
    snprintf(url, sizeof(url), "%.*s?quarantine=off", (int)strcspn(rl.url, "?"),
             rl.url);
    CHECK_OK(hf_open(url, NULL, &off, &t_err)); /* what slow may hold later */
    CHECK_OK(hf_acquire(off, "k", 0, &opts, &lk, &t_err));
    hf_close(slow);
    for (int i = 0; i < 3; i++) {
        rt_crash(&rl.nodes[i]);
        rt_again(&rl.nodes[i]);
    }
    for (end = t_now_ms() + 2000; t_now_ms() < end; t_sleep_ms(20))
        CHECK(rl_try(brief, "k", 500, &other) != HF_OK);
    CHECK(hf_held(lk));
    hf_release(lk, NULL);
    hf_close(brief);
    hf_close(off);
    rl_end(&rl);
}

TEST(a_lease_that_is_longer_than_the_quarantine_is_refused)
{
    struct rl rl;
    char url[600];
    hf_client *client, *none = NULL;
    hf_lock *lk = NULL;

    rl_start(&rl, "?quarantine=1s", false);
    client = rl_open(&rl);
    CHECK_STATUS(rl_try(client, "k", 1001, &lk), HF_INVALID);
    CHECK(strstr(t_err.text, "quarantine="));
    t_poll_until(rl_try(client, "k", 1000, &lk) == HF_OK, 10000);
    CHECK_STATUS(hf_extend(lk, 2000, &t_err), HF_INVALID);
    hf_release(lk, NULL);
    snprintf(url, sizeof(url), "%s&ttl=2s", rl.url);
    CHECK_STATUS(hf_open(url, NULL, &none, &t_err), HF_INVALID);
    hf_close(client);
    rl_end(&rl);
}

TEST(a_client_without_info_does_not_begin_the_quarantine_of_others_anew)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;
    char seen[RL_N][32];

    rl_start(&rl, "?quarantine=1s", false);
    client = rl_open(&rl);
    t_poll_until(rl_try(client, "k", 1000, &lk) == HF_OK, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    for (int i = 0; i < RL_N; i++) {
        snprintf(seen[i], sizeof(seen[i]), "%s",
                 rt_text(&rl.nodes[i], "HGET {holdfast:}:meta: s"));
        rt_do(&rl.nodes[i], "ACL SETUSER default -info");
    }
    client = rl_open(&rl);
    CHECK_STATUS(rl_try(client, "k", 1000, &lk), HF_UNAVAILABLE);
    hf_close(client);
    for (int i = 0; i < RL_N; i++) {
        rt_do(&rl.nodes[i], "ACL SETUSER default +info");
        CHECK_STR(rt_text(&rl.nodes[i], "HGET {holdfast:}:meta: s"), seen[i]);
    }
    rl_end(&rl);
}

TEST(young_nodes_are_named_as_the_reason)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, "", false);
    client = rl_open(&rl);
    CHECK_STATUS(rl_try(client, "k", 60000, &lk), HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "restarted"));
    hf_close(client);
    rl_end(&rl);
}

static void restart_all(struct rl *rl)
{
    for (int i = 0; i < RL_N; i++) {
        rt_crash(&rl->nodes[i]);
        rt_again(&rl->nodes[i]);
    }
}

/* They have data from before the restart, but not the newest. */
TEST(nodes_that_come_back_with_an_older_disk_may_not_vote)
{
    struct hf_lock_opts opts = rt_opts(4000, HF_MANUAL);
    struct rl rl;
    hf_client *a, *b;
    hf_lock *lk = NULL, *other = NULL;

    rl_start(&rl, "?quarantine=4s", true);
    hf_close(rl_open(&rl));
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "CONFIG SET appendonly no");
    a = rl_open(&rl);
    t_poll_until(hf_acquire(a, "k", 0, &opts, &lk, &t_err) == HF_OK, 20000);
    restart_all(&rl);
    b = rl_open(&rl);
    CHECK_STATUS(rl_try(b, "k", 4000, &other), HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "restarted"));
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

/* Their disks have the lock as it was before somebody took it up. */
TEST(nodes_that_come_back_with_an_older_disk_give_no_handle_out_again)
{
    struct hf_lock_opts opts = rt_opts(30000, HF_MANUAL);
    struct hf_client_opts brief = HF_CLIENT_OPTS_INIT;
    struct rl rl;
    struct hf_handle handle = HF_HANDLE_INIT;
    char url[600];
    hf_client *a = NULL, *b = NULL;
    hf_lock *lk = NULL, *other = NULL;

    rl_start(&rl, "", true);
    snprintf(url, sizeof(url), "%s?quarantine=off", rl.url);
    CHECK_OK(hf_open(url, NULL, &a, &t_err)); /* need not wait for the nodes */
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    for (int i = 0; i < 3; i++)
        rt_do(&rl.nodes[i], "CONFIG SET appendonly no");
    CHECK_OK(hf_attach(a, "k", &handle, &opts, &lk, &t_err));
    for (int i = 0; i < 3; i++) {
        rt_crash(&rl.nodes[i]);
        rt_again(&rl.nodes[i]);
        CHECK_STR(rt_text(&rl.nodes[i], "GET holdfast:k"), handle.token);
    }
    brief.timeout_ms = 1000;
    CHECK_OK(hf_open(rl.url, &brief, &b, &t_err));
    CHECK_STATUS(hf_attach(b, "k", &handle, &opts, &other, &t_err),
                 HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "restarted"));
    CHECK(hf_held(lk));
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
    for (int i = 0; i < 3; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    rl_end(&rl);
}

TEST(a_lock_outlives_servers_that_keep_everything_on_disk)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, "?quarantine=off", true);
    client = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", 60000, &lk));
    restart_all(&rl);
    t_poll_until(hf_extend(lk, 0, &t_err) == HF_OK, 10000);
    CHECK_EQ(rl_count(&rl, "k", hf_token(lk)), RL_N);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rl_end(&rl);
}

TEST(the_same_server_twice_is_refused)
{
    struct rl rl;
    char url[256];
    hf_client *client = NULL;

    rl_start(&rl, "", false);
    snprintf(url, sizeof(url),
             "redlock://127.0.0.1:%d,127.0.0.1:%d,localhost:%d",
             rl.nodes[0].port, rl.nodes[1].port, rl.nodes[0].port);
    CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "the same server as"));
    rl_end(&rl);
}

TEST(how_many_nodes_there_may_be)
{
    struct rl rl;
    struct hf_service about = {.size = sizeof(about)};
    char url[256];
    hf_client *client = NULL;
    hf_lock *lk = NULL;

    CHECK_STATUS(hf_open("redlock://a,b", NULL, &client, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "3 to 15 hosts"));
    rl_start(&rl, "", false);
    snprintf(url, sizeof(url),
             "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d"
             "?quarantine=off",
             rl.nodes[0].port, rl.nodes[1].port, rl.nodes[2].port,
             rl.nodes[3].port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(about.warning[0] != '\0');
    /* Two against two is no majority of four, and nobody waits for ever. */
    rt_do(&rl.nodes[0], "SET holdfast:k foreign PX 100000");
    rt_do(&rl.nodes[1], "SET holdfast:k foreign PX 100000");
    CHECK_STATUS(rl_try(client, "k", 60000, &lk), HF_BUSY);
    CHECK_EQ(rl_count(&rl, "k", NULL), 2);
    rt_do(&rl.nodes[0], "DEL holdfast:k");
    rt_do(&rl.nodes[1], "DEL holdfast:k");
    CHECK_OK(rl_try(client, "k", 60000, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rl_end(&rl);
}

TEST_TIMEOUT(fences_rise_while_minorities_forget, 120)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;
    uint64_t last = 0;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    /* A clock that is far ahead gave the first numbers. */
    CHECK_OK(rl_try(client, "k", 60000, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < 3; i++)
        rt_do(&rl.nodes[i],
              "HSET {holdfast:k}:meta: f 4000000000000000 c 4000000000000000");
    for (int i = 0; i < 12; i++) {
        int a = i % RL_N;

        t_poll_until(rl_try(client, "k", 60000, &lk) == HF_OK, 10000);
        CHECK_GT(hf_fence(lk), last);
        CHECK_GT(hf_fence(lk), 4000000000000000);
        last = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
        rt_crash(&rl.nodes[a]);
        rt_again(&rl.nodes[a]);
    }
    hf_close(client);
    rl_end(&rl);
}

/* A node that comes back as another run of the server, and at first lets nobody
 * load a script: connecting it fails after it has said who it is. */
static void again_without_scripts(struct rt_server *s)
{
    static const char *const rights[] = {"--user", "default",     "on",
                                         "nopass", "~*",          "&*",
                                         "+@all",  "-script|load"};
    size_t i, n = 0;

    rt_crash(s);
    while (s->args[n])
        n++;
    CHECK_LT(n + 8, RT_ARGS);
    for (i = 0; i < 8; i++)
        s->args[n + i] = strdup(rights[i]);
    rt_again(s);
}

static bool was_refused(struct rt_server *s)
{
    redisReply *log = rt_ask(s, "ACL LOG");
    bool refused = log->elements > 0;

    freeReplyObject(log);
    return refused;
}

/* The number of a connection is good for one run of the server: in the next it is
 * that of somebody else. */
TEST(a_node_that_restarts_is_not_told_to_end_the_connection_of_a_stranger)
{
    enum { FIRST = 40, STRANGERS = 200 };
    struct hf_lock_opts opts = rt_opts(3000, 0);
    redisContext *strangers[STRANGERS];
    redisReply *reply;
    struct rl rl;
    char path[200];
    hf_client *client;
    hf_lock *lk = NULL;
    long long last;
    int n = 0;

    signal(SIGPIPE, SIG_IGN); /* It is to be said who was cut off. */
    rl_start(&rl, "?quarantine=off", false);
    snprintf(path, sizeof(path), "%s/sock", rl.nodes[0].dir);
    while (rt_int(&rl.nodes[0], "CLIENT ID") < FIRST)
        ;
    client = rl_open(&rl);
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    t_poll_until(rl_count(&rl, "k", hf_token(lk)) == RL_N, 10000);
    last = rt_int(&rl.nodes[0], "CLIENT ID");
    again_without_scripts(&rl.nodes[0]);
    for (long long id = 0; id < last; n++) { /* also that which ours had */
        CHECK_LT(n, STRANGERS);
        strangers[n] = redisConnectUnix(path);
        reply = redisCommand(strangers[n], "CLIENT ID");
        CHECK(reply);
        id = reply->integer;
        freeReplyObject(reply);
    }
    t_poll_until(was_refused(&rl.nodes[0]), 20000);
    rt_do(&rl.nodes[0], "ACL SETUSER default +script|load");
    t_poll_until(rl_count(&rl, "k", hf_token(lk)) == RL_N, 20000);
    while (n--) {
        reply = redisCommand(strangers[n], "PING");
        CHECK(reply);
        freeReplyObject(reply);
        redisFree(strangers[n]);
    }
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rl_end(&rl);
}

T_MAIN
