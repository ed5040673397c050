/* SPDX-License-Identifier: MIT
 *
 * setup.c - how many nodes there may be, how each is reached, and what is said
 * when they are not enough or have another holder.
 */
#include "rl.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "../redis/tls.h"

#define TTL  60000
#define MOST 15

struct many {
    struct rt_server nodes[MOST];
    int n;
};

static void many_start(struct many *many, int n)
{
    memset(many, 0, sizeof(*many));
    many->n = n;
    for (int i = 0; i < n; i++)
        rt_start(&many->nodes[i], NULL);
}

static void many_end(struct many *many)
{
    for (int i = 0; i < many->n; i++)
        rt_end(&many->nodes[i]);
}

/* "redlock://" and the first n, with `before` before each. */
static const char *many_url(struct many *many, int n, const char *more)
{
    static char url[1024];
    size_t len = 0;

    for (int i = 0; i < n; i++)
        len += (size_t)snprintf(url + len, sizeof(url) - len, "%s127.0.0.1:%d",
                                i ? "," : "redlock://", many->nodes[i].port);
    snprintf(url + len, sizeof(url) - len, "%s", more);
    return url;
}

static int many_count(struct many *many, const char *key)
{
    int n = 0;

    for (int i = 0; i < many->n; i++)
        n += (int)rt_int(&many->nodes[i], "EXISTS %s", key);
    return n;
}

static hf_client *open_url(const char *url)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

/* Take it, renew it, have another wait for it, and give it back. */
static void check_works(const char *url)
{
    hf_client *a = open_url(url), *b = open_url(url);
    struct rt_waiter w = rt_waiter(b, "k", 30000, 600000, 0);
    hf_lock *lk = NULL;

    CHECK_OK(rl_try(a, "k", TTL, &lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    rt_wait_start(&w);
    t_sleep_ms(200);
    CHECK_EQ(w.got_at, 0);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(from_three_to_fifteen_nodes_a_majority_is_enough, 120)
{
    struct many many;
    char url[1024];

    many_start(&many, MOST);
    for (int n = 3; n <= MOST; n += n == 5 ? 10 : 1) { /* 3 4 5 15 */
        hf_client *client;
        hf_lock *lk = NULL;
        int spare = n - (n / 2 + 1);

        snprintf(url, sizeof(url), "%s", many_url(&many, n, "?quarantine=off"));
        check_works(url);
        client = open_url(url);
        for (int i = 0; i < spare; i++)
            rt_signal(&many.nodes[i], SIGSTOP);
        CHECK_OK(rl_try(client, "k", TTL, &lk));
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        rt_signal(&many.nodes[spare], SIGSTOP); /* one more */
        CHECK_NE(rl_try(client, "k", TTL, &lk), HF_OK);
        for (int i = 0; i <= spare; i++)
            rt_signal(&many.nodes[i], SIGCONT);
        t_poll_until(many_count(&many, "holdfast:k") == 0, 10000);
        hf_close(client);
    }
    many_end(&many);
}

TEST(other_numbers_are_refused_or_warned_of_with_the_reason)
{
    static const struct {
        int n;
        const char *why;
    } bad[] = {{1, "leaves no majority"},
               {2, "leaves no majority"},
               {16, "more are slower"},
               {17, "more than 16 hosts"}};
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = NULL;
    struct many many;
    char url[512];
    size_t len;

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        len = (size_t)snprintf(url, sizeof(url), "redlock://");
        for (int host = 0; host < bad[i].n; host++)
            len += (size_t)snprintf(url + len, sizeof(url) - len, "%sh%d",
                                    host ? "," : "", host);
        CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_INVALID);
        if (!strstr(t_err.text, bad[i].why))
            t_fail(__FILE__, __LINE__, "%d hosts: %s", bad[i].n, t_err.text);
    }
    many_start(&many, 14);
    for (int n = 3; n <= 14; n++) {
        client = open_url(many_url(&many, n, ""));
        CHECK_OK(hf_describe(client, &about, &t_err));
        CHECK_EQ(about.warning[0] != '\0', n % 2 == 0);
        hf_close(client);
    }
    many_end(&many);
}

TEST(the_same_server_twice_is_found_however_it_is_named)
{
    struct many many;
    hf_client *client = NULL;
    char url[256];

    many_start(&many, 3);
    for (int i = 0; i < 3; i++) {
        snprintf(url, sizeof(url), "redlock://%s:%d,%s:%d,%s:%d,127.0.0.1:%d",
                 i == 0 ? "localhost" : "127.0.0.1", many.nodes[0].port,
                 i == 1 ? "localhost" : "127.0.0.1", many.nodes[i == 1].port,
                 i == 2 ? "localhost" : "127.0.0.1",
                 many.nodes[i == 2 ? 0 : 2].port, many.nodes[1].port);
        CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_INVALID);
        CHECK(strstr(t_err.text, "the same server as"));
    }
    many_end(&many);
}

TEST(each_node_may_have_its_own_user_password_and_database)
{
    struct many many;
    hf_client *client;
    hf_lock *lk = NULL;
    char url[512], more[64];

    many_start(&many, 3);
    rt_do(&many.nodes[0], "ACL SETUSER u on >p ~* &* +@all");
    rt_do(&many.nodes[2], "CONFIG SET requirepass q@,");
    many.nodes[2].password = "q@,";
    snprintf(more, sizeof(more), "?quarantine=off");
    snprintf(url, sizeof(url),
             "redlock://u:p@127.0.0.1:%d,@127.0.0.1:%d,:q%%40%%2C@127.0.0.1:%d"
             "%s&db=1,2,3",
             many.nodes[0].port, many.nodes[1].port, many.nodes[2].port, more);
    check_works(url);
    client = open_url(url);
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    for (int i = 0; i < 3; i++) {
        char db[16];

        snprintf(db, sizeof(db), "db%d:keys=", i + 1);
        CHECK(strstr(rt_text(&many.nodes[i], "INFO keyspace"), db));
        CHECK_EQ(rt_int(&many.nodes[i], "DBSIZE"), 0);
    }
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    /* A wrong password on one node is told, and does no harm. */
    snprintf(url, sizeof(url),
             "redlock://u:p@127.0.0.1:%d,@127.0.0.1:%d,:wrong@127.0.0.1:%d%s",
             many.nodes[0].port, many.nodes[1].port, many.nodes[2].port, more);
    check_works(url);
    many_end(&many);
}

static void write_secret(const char *path, const char *secret)
{
    FILE *f = fopen(path, "w");

    CHECK(f && fprintf(f, "%s\n", secret) > 0 && !fclose(f));
}

TEST(a_password_file_is_read_for_each_connection)
{
    static const char *const secrets[] = {"s3cret-1", "s3cret-2"};
    struct many many;
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char file[256], url[512];

    many_start(&many, 3);
    snprintf(file, sizeof(file), "%s/password", t_tmpdir());
    snprintf(url, sizeof(url),
             "redlock://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d"
             "?quarantine=off&password_file=%s",
             many.nodes[0].port, many.nodes[1].port, many.nodes[2].port, file);
    CHECK(hf_open(url, NULL, &client, &t_err) != HF_OK); /* no such file */
    for (int round = 0; round < 2; round++) {
        write_secret(file, secrets[round]);
        for (int i = 0; i < 3; i++) {
            rt_do(&many.nodes[i], "CONFIG SET requirepass %s", secrets[round]);
            many.nodes[i].password = secrets[round];
            rt_do(&many.nodes[i], "CLIENT KILL TYPE normal");
        }
        if (!client)
            client = open_url(url);
        t_poll_until(rl_try(client, "k", TTL, &lk) == HF_OK, 10000);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    snprintf(url, sizeof(url), "redlock://:s3cret@a,b,c?password_file=%s",
             file);
    rt_check_refused(url, HF_INVALID, "password_file=");
    many_end(&many);
}

TEST(a_password_that_others_can_read_is_warned_of)
{
    struct hf_service about = {.size = sizeof(about)};
    struct many many;
    hf_client *client;
    char url[512];

    many_start(&many, 2);
    for (int i = 0; i < 2; i++)
        rt_do(&many.nodes[i], "ACL SETUSER u on >p ~* &* +@all");
    /* A name that ends in .invalid is nowhere. */
    snprintf(url, sizeof(url),
             "redlock://u:p@127.0.0.1:%d,127.0.0.1:%d,far.invalid"
             "?quarantine=off",
             many.nodes[0].port, many.nodes[1].port);
    client = open_url(url);
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "far.invalid without verified TLS"));
    hf_close(client);
    many_end(&many);
}

TEST(databases_are_one_for_all_or_one_for_each)
{
    static const char *const bad[] = {"db=",      "db=1,2",   "db=1,2,3,4",
                                      "db=1,,3",  "db=1,2,x", "db=-1",
                                      "db=1,2,3,"};
    hf_client *client = NULL;
    char url[64];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(url, sizeof(url), "redlock://a,b,c?%s", bad[i]);
        CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_INVALID);
        CHECK(strstr(t_err.text, "database"));
    }
}

TEST_TIMEOUT(over_tls_with_the_name_verified, 120)
{
    const char *dir = t_tmpdir();
    struct rt_server nodes[3] = {{0}}, wrong[2] = {{0}};
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = NULL;
    int port[3], wrong_port[2];
    char url[1024];

    tls_make(dir);
    for (int i = 0; i < 3; i++)
        tls_start(&nodes[i], dir, "localhost", "no", &port[i]);
    for (int i = 0; i < 2; i++)
        tls_start(&wrong[i], dir, "elsewhere.test", "no", &wrong_port[i]);
    snprintf(url, sizeof(url),
             "redlocks://localhost:%d,127.0.0.1:%d,localhost:%d"
             "?quarantine=off&ca=%s/ca.pem",
             port[0], port[1], port[2], dir);
    check_works(url);
    /* One of three that is not who it should be is left out, */
    snprintf(url, sizeof(url),
             "redlocks://localhost:%d,localhost:%d,localhost:%d"
             "?quarantine=off&ca=%s/ca.pem",
             port[0], wrong_port[0], port[2], dir);
    client = open_url(url);
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "certificate"));
    hf_close(client);
    check_works(url);
    /* two are too many, */
    snprintf(url, sizeof(url),
             "redlocks://localhost:%d,localhost:%d,localhost:%d"
             "?quarantine=off&ca=%s/ca.pem",
             port[0], wrong_port[0], wrong_port[1], dir);
    CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_DENIED);
    CHECK(strstr(t_err.text, "certificate"));
    /* and so is a CA that nobody knows. */
    snprintf(url, sizeof(url),
             "redlocks://localhost:%d,localhost:%d,localhost:%d?ca=%s/no.pem",
             port[0], port[1], port[2], dir);
    CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_DENIED);
    for (int i = 0; i < 3; i++)
        rt_end(&nodes[i]);
    for (int i = 0; i < 2; i++)
        rt_end(&wrong[i]);
}

/* ---- what is said ------------------------------------------------------ */

static void check_named(const struct rl *rl, unsigned nodes)
{
    char name[32];

    for (int i = 0; i < RL_N; i++) {
        bool is = nodes & 1U << i;

        snprintf(name, sizeof(name), ":%d", rl->nodes[i].port);
        if (!strstr(t_err.text, name) == is)
            t_fail(__FILE__, __LINE__, "node %d is %snamed: %s", i,
                   is ? "not " : "", t_err.text);
    }
}

TEST(held_by_another_and_too_few_nodes_are_told_apart_and_name_the_nodes)
{
    struct rl rl;
    struct hf_lock_opts opts = rt_opts(TTL, HF_MANUAL);
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, "?quarantine=off&node=500ms", false);
    client = rl_open(&rl);
    for (int i = 1; i < 4; i++)
        rt_do(&rl.nodes[i], "SET holdfast:k foreign PX 100000");
    CHECK_STATUS(rl_try(client, "k", TTL, &lk), HF_BUSY);
    check_named(&rl, 14);
    CHECK(strstr(t_err.text, "have another holder"));
    CHECK_STATUS(hf_acquire(client, "k", 50, &opts, &lk, &t_err), HF_TIMEOUT);
    check_named(&rl, 14);
    rt_do(&rl.nodes[3], "SET holdfast:k another PX 100000");
    /* On a busy machine one of them may answer too late to be named. */
    t_poll_until(rl_try(client, "k", TTL, &lk) == HF_BUSY &&
                     strstr(t_err.text, "none of which has a majority"),
                 20000);
    for (int i = 1; i < 4; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");

    rl_signal(&rl, 21, SIGSTOP);
    CHECK_NE(rl_try(client, "k", TTL, &lk), HF_BUSY);
    check_named(&rl, 21);
    CHECK(strstr(t_err.text, "only 2 of 5 nodes"));
    CHECK(strstr(t_err.text, "no answer in time"));
    rl_signal(&rl, 21, SIGCONT);
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

/* As with rights that are missing: it takes every server for a new one, and
 * leaves what was sent too late to its expiry. */
TEST(commands_that_a_server_was_told_to_forget_are_done_without)
{
    struct many many = {.n = 3};

    for (int i = 0; i < many.n; i++)
        rt_start(&many.nodes[i], "--rename-command", "INFO", "",
                 "--rename-command", "CLIENT", "", "--rename-command", "CONFIG",
                 "", NULL);
    check_works(many_url(&many, 3, "?quarantine=off"));
    for (int i = 0; i < many.n; i++)
        rt_stop(&many.nodes[i]);
}

TEST(a_server_that_evicts_keys_is_warned_of)
{
    struct hf_service about = {.size = sizeof(about)};
    struct rl rl;
    hf_client *client;

    rl_start(&rl, "?quarantine=off", false);
    rt_do(&rl.nodes[3], "CONFIG SET maxmemory-policy allkeys-lru");
    client = rl_open(&rl);
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK_STR(about.warning, ""); /* It is never full. */
    hf_close(client);
    rt_do(&rl.nodes[3], "CONFIG SET maxmemory 1gb");
    client = rl_open(&rl);
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "noeviction"));
    hf_close(client);
    rl_end(&rl);
}

struct opener {
    const char *url;
    int64_t timeout_ms;
    atomic_int *ended; /* how many have */
    int place;
    hf_status st;
};

static void *opener_run(void *arg)
{
    struct opener *me = arg;
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;

    opts.timeout_ms = me->timeout_ms;
    me->st = hf_open(me->url, &opts, &client, NULL);
    me->place = atomic_fetch_add(me->ended, 1);
    hf_close(client);
    return NULL;
}

/* The other is one server, which is given more time and takes it. */
TEST(silent_nodes_are_not_waited_for_longer_than_the_limit_says)
{
    atomic_int ended = 0;
    struct opener brief = {.timeout_ms = 200, .ended = &ended};
    struct opener patient = {.timeout_ms = 1500, .ended = &ended};
    pthread_t one, two;
    char url[64];
    struct rl rl;

    rl_start(&rl, "?quarantine=off", false);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%d", rl.nodes[0].port);
    brief.url = rl.url;
    patient.url = url;
    rl_signal(&rl, 0x1f, SIGSTOP);
    CHECK_EQ(pthread_create(&one, NULL, opener_run, &patient), 0);
    CHECK_EQ(pthread_create(&two, NULL, opener_run, &brief), 0);
    pthread_join(two, NULL);
    pthread_join(one, NULL);
    rl_signal(&rl, 0x1f, SIGCONT);
    CHECK_EQ(brief.st, HF_UNAVAILABLE);
    CHECK_EQ(patient.st, HF_UNAVAILABLE);
    CHECK_EQ(brief.place, 0);
    rl_end(&rl);
}

T_MAIN
