/* SPDX-License-Identifier: MIT
 *
 * late.c - what comes late or never: a try that is served after the release, a
 * wake-up while the listener is cut, a renewal while other statements have all
 * the sessions; and what a forked child keeps.
 *
 * Run by test/servers/postgres or mysql.
 */
#include "scene.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hf_lock_opts brief(int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    return opts;
}

/* ---- statements that come late ------------------------------------------ */

/* Stop the process of the server that serves a session, or let it go on. */
static void session_signal(int64_t pid, const char *signal)
{
    char text[64];

    snprintf(text, sizeof(text), "kill -%s %lld", signal, (long long)pid);
    CHECK_EQ(system(text), 0);
}

TEST_TIMEOUT(a_try_that_arrives_after_the_release_takes_nothing, 60)
{
    struct hf_lock_opts opts = brief(60000);
    const char *key = scene_key("late");
    hf_client *a, *b;
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = NULL;
    uint64_t fence;
    int64_t pid;

    if (!scene_is_postgres() || scene_is("row"))
        T_SKIP_TRAIT("a process for each session, and a lock that outlives it");
    a = scene_open(0, "&timeout=1s&application_name=late");
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err)); /* It is prepared. */
    CHECK_OK(hf_release(lk, &t_err));
    pid = scene_sql("SELECT pid FROM pg_stat_activity WHERE "
                    "application_name='late'");
    session_signal(pid, "STOP");
    /* The first try is in the socket of a process that does not read; the
     * second, in another session, is granted. */
    CHECK_OK(hf_acquire(a, key, 30000, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    hf_release(lk, NULL);
    session_signal(pid, "CONT");
    t_poll_until(!scene_sql("SELECT count(*) FROM pg_stat_activity WHERE "
                            "pid=%lld AND application_name='late'",
                            (long long)pid),
                 20000);
    b = scene_open(0, "");
    CHECK_OK(hf_inspect(b, key, &info, &t_err));
    CHECK(!info.held);
    CHECK_EQ(info.fence, fence); /* Not even for a moment. */
    hf_close(a);
    hf_close(b);
}

/* With strategy row the token and the fence are written in another session than
 * the one that has the row. */
TEST_TIMEOUT(a_token_that_arrives_late_is_not_written_over_another, 60)
{
    struct hf_lock_opts opts = brief(60000);
    const char *key = scene_key("late");
    hf_client *a, *b;
    hf_lock *lk = NULL;
    int64_t pid;

    if (!scene_is_postgres() || !scene_is("row"))
        T_SKIP_TRAIT("a process for each session, and a fence beside the row");
    b = scene_open(0, "");
    a = scene_open(0, "&timeout=1s&application_name=late");
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    pid = scene_sql("SELECT pid FROM pg_stat_activity WHERE "
                    "application_name='late' AND query LIKE 'INSERT INTO%%'");
    session_signal(pid, "STOP");
    CHECK_STATUS(hf_acquire(a, key, 0, &opts, &lk, &t_err), HF_UNAVAILABLE);
    CHECK_OK(hf_acquire(b, key, 30000, &opts, &lk, &t_err));
    session_signal(pid, "CONT");
    t_poll_until(!scene_sql("SELECT count(*) FROM pg_stat_activity WHERE "
                            "pid=%lld AND application_name='late'",
                            (long long)pid),
                 20000);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(scene_sql("SELECT fence FROM holdfast_lock_fence WHERE "
                       "name='\\x%s'",
                       scene_hex(key)),
             (int64_t)hf_fence(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* ---- a host that never answers ------------------------------------------ */

/* A server that is stopped: the kernel takes connections for it. */
static int silent_server(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK_EQ(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(fd, 64), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

TEST_TIMEOUT(a_host_that_is_silent_is_passed_over, 60)
{
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char url[256];
    int port, fd;

    if (!scene_is_postgres())
        T_SKIP_TRAIT("URLs of several hosts");
    fd = silent_server(&port);
    for (int i = 0; i < 2; i++) {
        if (i)
            snprintf(url, sizeof(url),
                     "postgres:///postgres?user=holdfast&host=127.0.0.1,"
                     "127.0.0.1&target_session_attrs=read-write&port=%d,%s&"
                     "strategy=%s",
                     port, getenv("HF_TEST_PORT"), getenv("HF_SQL_STRATEGY"));
        else
            snprintf(url, sizeof(url),
                     "postgres://holdfast@127.0.0.1:%d,127.0.0.1:%s/postgres?"
                     "strategy=%s",
                     port, getenv("HF_TEST_PORT"), getenv("HF_SQL_STRATEGY"));
        CHECK_OK(hf_open(url, NULL, &client, &t_err));
        CHECK_OK(
            hf_acquire(client, scene_key("silent"), 10000, NULL, &lk, &t_err));
        scene_end_sessions();
        if (!scene_is("row"))
            t_poll_until(hf_extend(lk, 0, &t_err) == HF_OK, 20000);
        hf_release(lk, NULL);
        hf_close(client);
    }
    close(fd);
}

/* ---- the listener is cut ------------------------------------------------ */

enum { EARS = 24 };

struct waiting {
    hf_client *client;
    char key[96];
    atomic_bool granted;
    pthread_t thread;
};

static void *wait_for(void *arg)
{
    struct hf_lock_opts opts = brief(60000);
    struct waiting *w = arg;
    hf_lock *lk;

    CHECK_OK(hf_acquire(w->client, w->key, 55000, &opts, &lk, &t_err));
    atomic_store(&w->granted, true);
    CHECK_OK(hf_release(lk, &t_err));
    return NULL;
}

TEST_TIMEOUT(waiters_whose_listener_is_cut_miss_no_release, 120)
{
    struct hf_lock_opts opts = brief(60000);
    static struct waiting waiters[EARS];
    hf_client *a, *b;
    hf_lock *locks[EARS];

    if (!scene_is_postgres() || scene_is("row"))
        T_SKIP_TRAIT("a connection that listens");
    a = scene_open(0, "");
    b = scene_open(0, "");
    for (int i = 0; i < EARS; i++) {
        waiters[i].client = b;
        snprintf(waiters[i].key, sizeof(waiters[i].key), "%s %d",
                 scene_key("listener"), i);
        CHECK_OK(hf_acquire(a, waiters[i].key, 0, &opts, &locks[i], &t_err));
        CHECK_EQ(
            pthread_create(&waiters[i].thread, NULL, wait_for, &waiters[i]), 0);
    }
    t_poll_until(scene_sql("SELECT count(*) FROM holdfast_lock WHERE wanted") >=
                     EARS,
                 20000);
    t_poll_until(scene_sql("SELECT count(*) FROM pg_stat_activity WHERE query "
                           "LIKE 'LISTEN%%'") > 0,
                 20000);
    t_sleep_ms(500); /* Each has looked again and sleeps. */
    scene_sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
              "query LIKE 'LISTEN%%'");
    for (int i = 0; i < EARS; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    for (int i = 0; i < EARS; i++) /* ttl/2 would be 30 s */
        t_poll_until(atomic_load(&waiters[i].granted), 10000);
    for (int i = 0; i < EARS; i++)
        pthread_join(waiters[i].thread, NULL);
    hf_close(a);
    hf_close(b);
}

/* ---- the pool is empty -------------------------------------------------- */

static void *block_on(void *arg)
{
    struct waiting *w = arg;
    hf_lock *lk = NULL;

    if (!hf_acquire(w->client, w->key, 6000, NULL, &lk, NULL))
        hf_release(lk, NULL);
    return NULL;
}

TEST_TIMEOUT(keys_that_block_keep_no_other_from_being_renewed, 60)
{
    struct hf_lock_opts opts = brief(3000);
    static struct waiting blocked[8];
    char text[256];
    hf_client *client;
    hf_lock *lk, *mine;
    FILE *other;

    if (scene_is("row"))
        T_SKIP_TRAIT("statements that wait for rows");
    client = scene_open(0, "&pool=4&timeout=3s");
    for (int i = 0; i < 8; i++) {
        blocked[i].client = client;
        snprintf(blocked[i].key, sizeof(blocked[i].key), "blocked %d", i);
        CHECK_OK(hf_acquire(client, blocked[i].key, 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    CHECK_OK(hf_acquire(client, scene_key("mine"), 0, &opts, &mine, &t_err));
    snprintf(text, sizeof(text),
             "BEGIN; SELECT 1 FROM holdfast_lock WHERE name LIKE 'blocked%%' "
             "FOR UPDATE;");
    other = scene_operator(text);
    for (int i = 0; i < 8; i++)
        CHECK_EQ(
            pthread_create(&blocked[i].thread, NULL, block_on, &blocked[i]), 0);
    t_sleep_ms(4500); /* longer than the lease */
    CHECK(hf_held(mine));
    pclose(other);
    for (int i = 0; i < 8; i++)
        pthread_join(blocked[i].thread, NULL);
    CHECK_OK(hf_release(mine, &t_err));
    hf_close(client);
}

/* ---- forks -------------------------------------------------------------- */

/* How many sockets does this process have? */
static int sockets(void)
{
    FILE *pipe = NULL;
    char text[128];
    int n = 0;

    snprintf(text, sizeof(text),
             "ls -l /proc/%d/fd 2>/dev/null | grep -c socket:", (int)getpid());
    pipe = popen(text, "r");
    CHECK(pipe != NULL);
    CHECK_EQ(fscanf(pipe, "%d", &n), 1);
    pclose(pipe);
    return n;
}

TEST(a_forked_child_keeps_no_connection)
{
    int before = sockets(), status = 0;
    hf_client *client = scene_open(0, "");
    hf_lock *lk;
    pid_t pid;

    CHECK_OK(hf_acquire(client, scene_key("fork"), 0, NULL, &lk, &t_err));
    CHECK_GT(sockets(), before);
    pid = fork();
    if (!pid) {
        hf_close(client);
        _exit(sockets() > before);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

T_MAIN
