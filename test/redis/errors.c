/* SPDX-License-Identifier: MIT
 *
 * errors.c - each way in which a Redis server says no has its own status and
 * its own words: refused (credentials, rights, certificates), not now (loading,
 * busy, out of memory, read-only), and somebody else's data.
 *
 * No message shows a password.
 */
#include "proxy.h"
#include "tls.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char secret[] = "s3cret%2Fw%40rd"; /* as a URL has it */
static const char plain[] = "s3cret/w@rd";

/* ---- credentials ------------------------------------------------------- */

TEST(a_wrong_or_missing_password_is_denied_without_showing_it)
{
    struct rt_server s = {.password = plain};
    char url[256];

    rt_start(&s, "--requirepass", plain, NULL);
    rt_check_refused(rt_url(s.port, ""), HF_DENIED, "NOAUTH");
    snprintf(url, sizeof(url), "redis://:s3cretwrong@127.0.0.1:%d", s.port);
    rt_check_refused(url, HF_DENIED, "WRONGPASS");
    snprintf(url, sizeof(url), "redis://nobody:%s@127.0.0.1:%d", secret,
             s.port);
    rt_check_refused(url, HF_DENIED, "WRONGPASS");
    snprintf(url, sizeof(url), "redis://:%s@127.0.0.1:%d", secret, s.port);
    rt_check_works(url);
    snprintf(url, sizeof(url), "redis://default:%s@127.0.0.1:%d/3", secret,
             s.port);
    rt_check_works(url);
    CHECK_EQ(setenv("REDISCLI_AUTH", plain, 1), 0);
    rt_check_works(rt_url(s.port, ""));
    CHECK_EQ(unsetenv("REDISCLI_AUTH"), 0);
    rt_end(&s);
}

TEST(a_password_for_a_server_that_wants_none_is_told)
{
    struct rt_server s = {0};
    char url[256];

    rt_start(&s, NULL);
    snprintf(url, sizeof(url), "redis://:%s@127.0.0.1:%d", secret, s.port);
    rt_check_refused(url, HF_DENIED, "password");
    rt_check_refused(rt_url(s.port, "/99"), HF_INVALID, "database");
    rt_check_refused(rt_url(s.port, "/x"), HF_INVALID, "database");
    rt_end(&s);
}

TEST(a_user_without_the_rights_is_denied)
{
    struct rt_server s = {0};
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char url[256];

    rt_start(&s, NULL);
    rt_do(&s, "ACL SETUSER reader on >%s ~* &* +@read +ping", plain);
    rt_do(&s, "ACL SETUSER locker on >%s ~* &* +@all -@admin", plain);
    rt_do(&s, /* what holdfast-url(7) says */
          "ACL SETUSER minimal on >%s ~holdfast:* ~{holdfast:* "
          "&holdfast:wake:* +@read +@write +@scripting +@pubsub +@connection "
          "+time +wait +role",
          plain);
    rt_do(&s, "ACL SETUSER elsewhere on >%s ~other:* &* +@all", plain);
    snprintf(url, sizeof(url), "redis://reader:%s@127.0.0.1:%d", secret,
             s.port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_STATUS(hf_acquire(client, "k", 5000, NULL, &lk, &t_err), HF_DENIED);
    CHECK(strstr(t_err.text, "NOPERM") != NULL);
    CHECK(!strstr(t_err.text, "s3cret"));
    hf_close(client);
    snprintf(url, sizeof(url), "redis://elsewhere:%s@127.0.0.1:%d", secret,
             s.port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_STATUS(hf_acquire(client, "k", 5000, NULL, &lk, &t_err), HF_DENIED);
    hf_close(client);
    snprintf(url, sizeof(url), "redis://locker:%s@127.0.0.1:%d", secret,
             s.port);
    rt_check_works(url);
    snprintf(url, sizeof(url), "redis://minimal:%s@127.0.0.1:%d", secret,
             s.port);
    rt_check_works(url);
    rt_end(&s);
}

/* Some services have no channels, or forbid them. */
TEST(where_listening_is_forbidden_a_waiter_asks)
{
    struct rt_server s = {0};
    struct rt_waiter w;
    hf_client *client[2] = {NULL, NULL};
    hf_lock *lk;
    char url[256];
    int i;

    rt_start(&s, NULL);
    rt_do(&s, "ACL SETUSER silent on >%s ~* &* +@all -@pubsub", plain);
    snprintf(url, sizeof(url), "redis://silent:%s@127.0.0.1:%d", secret,
             s.port);
    for (i = 0; i < 2; i++)
        CHECK_OK(hf_open(url, NULL, &client[i], &t_err));
    lk = rt_lock(client[0], "k", 0, 60000, 0);
    w = rt_waiter(client[1], "k", 20000, 60000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 1, 5000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w); /* long before half a lease is over */
    for (i = 0; i < 2; i++)
        hf_close(client[i]);
    rt_end(&s);
}

/* Nor WAIT.  Then no grant can be confirmed, and none is left. */
TEST(a_server_without_wait_is_told_and_keeps_nothing)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk = NULL;
    char url[256];

    rt_start(&s, "--rename-command", "WAIT", "", NULL);
    client = rt_open(&s, "?replicas=1");
    CHECK_STATUS(hf_acquire(client, "k", 5000, NULL, &lk, &t_err),
                 HF_UNSUPPORTED);
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    hf_close(client);
    rt_end(&s);
    rt_start(&s, NULL);
    rt_do(&s, "ACL SETUSER hasty on >%s ~* &* +@all -wait", plain);
    snprintf(url, sizeof(url), "redis://hasty:%s@127.0.0.1:%d?replicas=1",
             secret, s.port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_STATUS(hf_acquire(client, "k", 5000, NULL, &lk, &t_err), HF_DENIED);
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    hf_close(client);
    rt_end(&s);
}

/* A user may lose its rights while it holds; the lease then ends. */
TEST(rights_that_are_taken_away_end_the_lease_and_say_so)
{
    struct rt_server s = {0};
    hf_client *client = NULL;
    hf_lock *lk;
    char url[256];

    rt_start(&s, NULL);
    rt_do(&s, "ACL SETUSER locker on >%s ~* &* +@all", plain);
    snprintf(url, sizeof(url), "redis://locker:%s@127.0.0.1:%d", secret,
             s.port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    lk = rt_lock(client, "k", 0, 1000, 0);
    rt_do(&s, "ACL SETUSER locker -@all");
    t_poll_until(!hf_held(lk), 2000);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_EXPIRED);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
    rt_do(&s, "DEL holdfast:k");
    rt_end(&s);
}

/* ---- not now ----------------------------------------------------------- */

static void check_not_now(hf_client *client, const char *word)
{
    struct hf_lock_opts opts = rt_opts(5000, 0);
    hf_lock *lk = NULL;

    CHECK_STATUS(hf_acquire(client, "new", 0, &opts, &lk, &t_err),
                 HF_UNAVAILABLE);
    if (!strstr(t_err.text, word))
        t_fail(__FILE__, __LINE__, "'%s' is not in: %s", word, t_err.text);
}

TEST(a_full_server_refuses_new_locks_and_keeps_those_there_are)
{
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(1500, 0);
    struct rt_waiter w;
    hf_client *client, *other;
    hf_lock *lk, *owned = NULL;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    other = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 1500, 0);
    opts.owner = "order-7";
    CHECK_OK(hf_acquire(client, "owned", 0, &opts, &owned, &t_err));
    w = rt_waiter(other, "k", 20000, 5000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 1, 5000);
    rt_do(&s, "CONFIG SET maxmemory 1");
    check_not_now(client, "OOM");
    t_sleep_ms(2000);
    CHECK(hf_held(lk));
    CHECK(hf_held(owned));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(owned, &t_err));
    rt_wait_join(&w);
    rt_do(&s, "CONFIG SET maxmemory 0");
    CHECK_OK(hf_release(rt_lock(client, "new", 0, 5000, 0), &t_err));
    hf_close(client);
    hf_close(other);
    rt_end(&s);
}

/* None of it needs more memory than there was before. */
TEST(a_full_server_lets_locks_be_kept_handed_over_broken_and_released)
{
    static const char *const modes[] = {"", "?acquire=set"};
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL);
    struct rt_server s = {0};
    struct hf_handle handle[2] = {HF_HANDLE_INIT, HF_HANDLE_INIT};
    struct proxy p;
    hf_client *client[2], *far;
    hf_lock *lk, *owned[2], *doubt;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    CHECK_OK(hf_open(rt_url(p.port, ""), NULL, &far, &t_err));
    for (i = 0; i < 2; i++) {
        client[i] = rt_open(&s, modes[i]);
        lk = rt_lock(client[i], modes[i][0] ? "bare" : "det", 0, 60000, 0);
        CHECK_OK(hf_detach(lk, &handle[i], &t_err));
    }
    opts.owner = "order-7";
    CHECK_OK(hf_acquire(client[0], "owned", 0, &opts, &owned[0], &t_err));
    opts.ttl_ms = 20000;
    CHECK_OK(hf_acquire(client[0], "owned", 0, &opts, &owned[1], &t_err));
    opts.owner = NULL;
    proxy_set(&p, PROXY_CUT, 0); /* the answer to its first try is lost */
    doubt = rt_lock(far, "doubt", 10000, 60000, HF_MANUAL);
    proxy_set(&p, PROXY_PASS, 0);
    rt_do(&s, "CONFIG SET maxmemory 1");
    check_not_now(client[0], "OOM");
    CHECK_OK(hf_extend(owned[1], 0, &t_err));
    CHECK_OK(hf_extend(owned[1], 5000, &t_err));
    CHECK_OK(hf_release(doubt, &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:doubt"), 0);
    CHECK_OK(hf_attach(client[1], "bare", &handle[1], &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_attach(client[0], "det", &handle[0], &opts, &lk, &t_err));
    CHECK_OK(hf_break(client[0], "det", hf_fence(lk), &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    for (i = 0; i < 2; i++)
        CHECK_OK(hf_release(owned[i], &t_err));
    rt_do(&s, "CONFIG SET maxmemory 0");
    for (i = 0; i < 2; i++)
        hf_close(client[i]);
    hf_close(far);
    proxy_stop(&p);
    rt_end(&s);
}

/* In a child without stdin, stdout and stderr: connect, and say something that
 * the server would take for a command. */
static int open_and_speak(const char *url)
{
    static const char words[] = "SET spoilt 1\r\n";
    pid_t pid = fork();
    hf_client *client;
    int status, fd;

    if (!pid) {
        for (fd = 0; fd < 3; fd++)
            close(fd);
        status = (int)hf_open(url, NULL, &client, NULL);
        for (fd = 0; fd < 3; fd++)
            if (write(fd, words, sizeof(words) - 1) == sizeof(words) - 1)
                status = 100;
        _exit(status);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 101;
}

TEST(what_a_program_says_on_closed_descriptors_is_no_command)
{
    struct rt_server s = {0};

    rt_start(&s, NULL);
    CHECK_EQ(open_and_speak(rt_url(s.port, "")), HF_OK);
    CHECK_EQ(rt_int(&s, "EXISTS spoilt"), 0);
    rt_end(&s);
}

TEST(a_server_that_would_throw_locks_away_is_warned_of)
{
    static const char *const policies[] = {"allkeys-lru", "volatile-ttl",
                                           "noeviction"};
    struct hf_service svc = {.size = sizeof(svc)};
    struct rt_server s = {0};
    hf_client *client;
    char url[256];
    int i;

    rt_start(&s, NULL);
    for (i = 0; i < 3; i++) {
        rt_do(&s, "CONFIG SET maxmemory 100mb maxmemory-policy %s",
              policies[i]);
        client = rt_open(&s, "");
        CHECK_OK(hf_describe(client, &svc, &t_err));
        CHECK((strstr(svc.warning, "evicts") != NULL) == (i < 2));
        hf_close(client);
    }
    /* Nor is it kept from a user who has no more rights than it needs; one who
     * may not even ask is told that. */
    rt_do(&s, "CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru");
    rt_do(&s, "ACL SETUSER locker on >%s ~* &* +@all -@admin", plain);
    snprintf(url, sizeof(url), "redis://locker:%s@127.0.0.1:%d", secret,
             s.port);
    for (i = 0; i < 2; i++) {
        CHECK_OK(hf_open(url, NULL, &client, &t_err));
        CHECK_OK(hf_describe(client, &svc, &t_err));
        CHECK(strstr(svc.warning, i ? "whether" : "evicts") != NULL);
        hf_close(client);
        rt_do(&s, "ACL SETUSER locker -info");
    }
    /* Without a limit nothing is thrown away. */
    rt_do(&s, "CONFIG SET maxmemory 0 maxmemory-policy allkeys-lru");
    client = rt_open(&s, "");
    CHECK_OK(hf_describe(client, &svc, &t_err));
    CHECK_STR(svc.warning, "");
    hf_close(client);
    rt_end(&s);
}

TEST(a_server_that_cannot_serve_now_is_unavailable_by_name)
{
    struct rt_server s = {0}, replica = {0};
    char port[16];
    hf_client *client;

    rt_start(&s, NULL);
    client = rt_open(&s, "?timeout=1s");
    rt_do(&s, "CONFIG SET min-replicas-to-write 1");
    check_not_now(client, "NOREPLICAS");
    rt_do(&s, "CONFIG SET min-replicas-to-write 0");
    snprintf(port, sizeof(port), "%d", s.port);
    rt_start(&replica, "--replicaof", "127.0.0.1", port, NULL);
    hf_close(client);
    client = rt_open(&replica, "");
    check_not_now(client, "READONLY");
    /* It is the right one as soon as it is promoted. */
    rt_do(&replica, "REPLICAOF NO ONE");
    CHECK_OK(hf_release(rt_lock(client, "new", 1000, 5000, 0), &t_err));
    hf_close(client);
    rt_end(&replica);
    rt_end(&s);
}

static void *spin_run(void *arg)
{
    redisReply *reply = rt_try(arg, "EVAL %s 0", "while true do end");

    if (reply)
        freeReplyObject(reply);
    return NULL;
}

TEST(a_server_busy_with_a_script_is_unavailable_and_then_serves)
{
    struct rt_server s = {0};
    hf_client *client;
    pthread_t thread;

    rt_start(&s, "--lua-time-limit", "50", NULL);
    client = rt_open(&s, "?timeout=3s");
    CHECK_EQ(pthread_create(&thread, NULL, spin_run, &s), 0);
    t_sleep_ms(300);
    check_not_now(client, "BUSY");
    rt_do(&s, "SCRIPT KILL");
    pthread_join(thread, NULL);
    CHECK_OK(hf_release(rt_lock(client, "new", 1000, 5000, 0), &t_err));
    hf_close(client);
    rt_end(&s);
}

TEST(a_server_that_cannot_save_is_unavailable_and_then_serves)
{
    struct rt_server s = {0};
    hf_client *client;
    char path[200];

    rt_start(&s, "--save", "3600", "1000000", NULL);
    client = rt_open(&s, "");
    snprintf(path, sizeof(path), "%s/dump.rdb", s.dir);
    CHECK_EQ(mkdir(path, 0700), 0); /* so that it cannot be renamed to */
    rt_do(&s, "BGSAVE");
    t_poll_until(strstr(rt_text(&s, "INFO persistence"),
                        "rdb_last_bgsave_status:err") != NULL,
                 5000);
    check_not_now(client, "MISCONF");
    rt_do(&s, "CONFIG SET stop-writes-on-bgsave-error no");
    CHECK_OK(hf_release(rt_lock(client, "new", 1000, 5000, 0), &t_err));
    hf_close(client);
    rt_end(&s);
}

TEST(a_server_that_is_not_there_is_unavailable)
{
    char url[64];

    snprintf(url, sizeof(url), "redis://127.0.0.1:%d?timeout=1s",
             rt_free_port());
    rt_check_refused(url, HF_UNAVAILABLE, "127.0.0.1");
    rt_check_refused("redis+unix:///nowhere/sock?timeout=1s", HF_UNAVAILABLE,
                     "/nowhere/sock");
    rt_check_refused("redis://no-such-host.invalid?timeout=2s", HF_UNAVAILABLE,
                     "no-such-host.invalid");
}

/* ---- somebody else's data ---------------------------------------------- */

TEST(other_peoples_data_at_the_key_is_told_and_left_alone)
{
    struct rt_server s = {0};
    struct hf_info info = HF_INFO_INIT;
    static const char *const modes[] = {"", "?acquire=set", "?acquire=script"};
    hf_client *client;
    hf_lock *lk = NULL;
    int i;

    rt_start(&s, NULL);
    rt_do(&s, "RPUSH holdfast:list a b c");
    rt_do(&s, "SET {holdfast:meta}:meta: text");
    for (i = 0; i < 3; i++) {
        client = rt_open(&s, modes[i]);
        CHECK_STATUS(hf_acquire(client, "list", 5000, NULL, &lk, &t_err),
                     HF_PROTOCOL);
        CHECK(strstr(t_err.text, "WRONGTYPE") != NULL);
        CHECK_STATUS(hf_inspect(client, "list", &info, &t_err), HF_PROTOCOL);
        hf_close(client);
    }
    client = rt_open(&s, "");
    CHECK_STATUS(hf_acquire(client, "meta", 0, NULL, &lk, &t_err), HF_PROTOCOL);
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:meta"), 0); /* nothing half done */
    CHECK_EQ(rt_int(&s, "LLEN holdfast:list"), 3);
    CHECK_EQ(rt_int(&s, "PTTL holdfast:list"), -1);
    rt_do(&s, "DEL holdfast:list {holdfast:meta}:meta:");
    hf_close(client);
    rt_end(&s);
}

/* What somebody has written there is no grant of ours: it is written over. */
TEST(a_last_grant_that_makes_no_sense_keeps_nobody_out)
{
    static const char *const texts[] = {"",           "x",
                                        "12",         "9999999999999999 1",
                                        "1 2 3 ?9 4", "12345678901234567 x"};
    struct rt_server s = {0};
    hf_client *a, *b;
    struct hf_info info = {.size = sizeof(info)};
    struct rt_waiter w;
    hf_lock *lk;
    size_t i;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    for (i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        rt_do(&s, "HSET {holdfast:k}:meta: g %s", texts[i]);
        lk = rt_lock(a, "k", 0, 5000, 0);
        CHECK_GT(hf_fence(lk), 0);
        rt_do(&s, "HSET {holdfast:k}:meta: g %s", texts[i]);
        CHECK_OK(hf_inspect(b, "k", &info, &t_err));
        CHECK(info.held);
        w = rt_waiter(b, "k", 20000, 5000, 0);
        rt_wait_start(&w);
        t_poll_until(rt_waiters(&s, "k") == 1, 10000);
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
    }
    hf_close(a);
    hf_close(b);
    rt_do(&s, "DEL {holdfast:k}:meta:");
    rt_end(&s);
}

/* ---- ways to connect --------------------------------------------------- */

TEST(a_unix_socket_works_with_a_password_and_a_database)
{
    struct rt_server s = {.password = plain};
    char url[400];

    rt_start(&s, "--requirepass", plain, NULL);
    snprintf(url, sizeof(url), "redis+unix://:%s@%s/sock?db=2", secret, s.dir);
    rt_check_works(url);
    snprintf(url, sizeof(url), "redis+unix:%s/sock", s.dir);
    rt_check_refused(url, HF_DENIED, "NOAUTH");
    snprintf(url, sizeof(url), "redis+unix:%s/sock?db=99", s.dir);
    rt_check_refused(url, HF_DENIED, "NOAUTH");
    CHECK_STR(rt_text(&s, "CONFIG GET none"), "");
    rt_end(&s);
}

static const char *tls_url(const char *host, int port, const char *dir,
                           const char *more)
{
    static char url[1024];

    snprintf(url, sizeof(url), "rediss://%s:%d?timeout=2s&ca=%s/%s", host, port,
             dir, more);
    return url;
}

TEST(tls_works_only_with_a_known_ca_and_the_right_name)
{
    struct rt_server s = {0}, wrong = {0};
    const char *dir = t_tmpdir();
    int port, wrong_port;

    tls_make(dir);
    tls_start(&s, dir, "localhost", "no", &port);
    tls_start(&wrong, dir, "elsewhere.test", "no", &wrong_port);
    rt_check_works(tls_url("localhost", port, dir, "ca.pem"));
    rt_check_works(tls_url("127.0.0.1", port, dir, "ca.pem"));
    rt_check_refused(tls_url("localhost", wrong_port, dir, "ca.pem"), HF_DENIED,
                     "certificate");
    rt_check_refused(tls_url("127.0.0.1", wrong_port, dir, "ca.pem"), HF_DENIED,
                     "certificate");
    rt_check_refused(tls_url("localhost", port, dir, "no.pem"), HF_DENIED,
                     "certificate");
    rt_check_works(tls_url("localhost", wrong_port, dir, "ca.pem&verify=no"));
    rt_check_works(tls_url("localhost", port, dir, "no.pem&verify=no"));
    rt_check_refused(tls_url("localhost", port, dir, "none.pem"), HF_INVALID,
                     "ca=");
    /* Both ways round: a plain client at a TLS port, TLS at a plain port. */
    rt_check_refused(rt_url(port, "?timeout=1s"), HF_UNAVAILABLE, "");
    rt_check_refused(tls_url("localhost", s.port, dir, "ca.pem"),
                     HF_UNAVAILABLE, "tls");
    rt_end(&s);
    rt_end(&wrong);
}

TEST(tls_with_a_client_certificate_holds_waits_and_renews)
{
    struct rt_server s = {0};
    const char *dir = t_tmpdir();
    struct rt_waiter w[8];
    hf_client *client[2] = {NULL, NULL};
    hf_lock *lk;
    char more[600];
    int i, port;

    tls_make(dir);
    tls_start(&s, dir, "localhost", "yes", &port);
    CHECK_NE(hf_open(tls_url("localhost", port, dir, "ca.pem"), NULL,
                     &client[0], &t_err),
             HF_OK);
    snprintf(more, sizeof(more),
             "ca.pem&cert=%s/localhost.pem"
             "&key=%s/localhost.key",
             dir, dir);
    for (i = 0; i < 2; i++)
        CHECK_OK(hf_open(tls_url("localhost", port, dir, more), NULL,
                         &client[i], &t_err));
    lk = rt_lock(client[0], "k", 0, 900, 0);
    for (i = 0; i < 8; i++) {
        w[i] = rt_waiter(client[i % 2], "k", 20000, 900, HF_FAIR);
        rt_wait_start(&w[i]);
    }
    t_poll_until(rt_waiters(&s, "k") == 8, 5000);
    t_sleep_ms(1200);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < 8; i++)
        rt_wait_join(&w[i]);
    hf_close(client[0]);
    hf_close(client[1]);
    rt_end(&s);
}

T_MAIN
