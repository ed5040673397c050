/* SPDX-License-Identifier: MIT
 *
 * ensemble.c - three servers: the leader killed, a follower killed, all
 * restarted, one cut off from the rest, one frozen.
 *
 * Locks are kept through what a quorum survives, and nobody is granted what
 * another still believes in, whatever happens.
 */
#include "zkt.h"

#include <arpa/inet.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SERVERS = 3 };

static long number_of(int id, const char *what)
{
    char path[512];
    FILE *f;
    long n = -1;

    snprintf(path, sizeof(path), "%s/%d/%s", getenv("HF_ZK_DIR"), id, what);
    f = fopen(path, "r");
    CHECK(f != NULL);
    CHECK_EQ(fscanf(f, "%ld", &n), 1);
    fclose(f);
    return n;
}

static void signal_server(int id, int sig)
{
    CHECK_EQ(kill((pid_t)number_of(id, "pid"), sig), 0);
}

static void start_server(int id)
{
    char command[600];

    snprintf(command, sizeof(command), "%s %d", getenv("HF_ZK_START"), id);
    CHECK_EQ(system(command), 0);
}

/* What a server says of itself behind `label`; NULL if nothing. */
static const char *ask(int id, const char *label)
{
    static char text[2048];
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)number_of(id, "port")),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval limit = {.tv_sec = 1};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    size_t len = 0;
    ssize_t n;
    char *found;

    memset(text, 0, sizeof(text));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 &&
        send(fd, "srvr", 4, MSG_NOSIGNAL) == 4)
        while ((n = recv(fd, text + len, sizeof(text) - 1 - len, 0)) > 0)
            len += (size_t)n;
    close(fd);
    found = strstr(text, label);
    return found ? found + strlen(label) : NULL;
}

/* 'l'eader, 'f'ollower, or 0. */
static char mode_of(int id)
{
    const char *mode = ask(id, "Mode: ");

    return mode ? *mode : 0;
}

/* The last transaction that a server knows of. */
static long long zxid_of(int id)
{
    const char *zxid = ask(id, "Zxid: ");

    return zxid ? strtoll(zxid, NULL, 16) : -1;
}

static int find(char mode)
{
    int64_t end = t_now_ms() + 30000;

    for (int id = 1;; id = id % SERVERS + 1) {
        if (mode_of(id) == mode)
            return id;
        CHECK_LT(t_now_ms(), end);
        t_sleep_ms(20);
    }
}

static void await_all(void)
{
    for (int id = 1; id <= SERVERS; id++)
        t_poll_until(mode_of(id) != 0, 40000);
}

/* A lock that is held and one that is waited for, through `harm`. */
static void outlast(void (*harm)(void), int64_t ttl_ms)
{
    struct hf_lock_opts opts = zkt_opts(ttl_ms);
    const char *key = zkt_key("k");
    hf_client *a, *b;
    struct zkt_waiter w;
    hf_lock *lk;

    await_all();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 20000, &opts, &lk, &t_err));
    zkt_wait_start(&w, b, key, 120000, ttl_ms);
    t_sleep_ms(200);
    harm();
    CHECK(hf_held(lk));
    CHECK(!atomic_load(&w.done));
    t_poll_until(hf_extend(lk, 0, NULL) == HF_OK, ttl_ms);
    t_poll_until(hf_check(b, key, hf_fence(lk), NULL) == HF_OK, 20000);
    CHECK(!atomic_load(&w.done));
    CHECK_OK(hf_release(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_OK(hf_release(w.lk, &t_err));
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(key)) == 0, 20000);
    zkt_end();
    hf_close(a);
    hf_close(b);
}

static void kill_leader(void)
{
    int id = find('l');

    signal_server(id, SIGKILL);
    find('l');
    start_server(id);
}

static void kill_follower(void)
{
    int id = find('f');

    signal_server(id, SIGKILL);
    t_sleep_ms(500);
    start_server(id);
}

/* Whichever server a session is on, it has to move. */
static void restart_one_by_one(void)
{
    for (int id = 1; id <= SERVERS; id++) {
        signal_server(id, SIGKILL);
        t_sleep_ms(100);
        start_server(id);
        await_all();
    }
}

static void restart_all(void)
{
    for (int id = 1; id <= SERVERS; id++)
        signal_server(id, SIGKILL);
    t_sleep_ms(100);
    for (int id = 1; id <= SERVERS; id++)
        start_server(id);
    await_all();
}

static void freeze_leader(void)
{
    int id = find('l');

    signal_server(id, SIGSTOP);
    t_sleep_ms(100);
    find('l');
    signal_server(id, SIGCONT);
}

TEST_TIMEOUT(a_killed_leader_costs_no_lock, 120)
{
    outlast(kill_leader, 30000);
}

TEST_TIMEOUT(a_killed_follower_costs_no_lock, 120)
{
    outlast(kill_follower, 30000);
}

TEST_TIMEOUT(a_rolling_restart_moves_sessions_and_costs_no_lock, 180)
{
    outlast(restart_one_by_one, 60000);
}

TEST_TIMEOUT(a_restart_of_all_costs_no_lock, 180)
{
    outlast(restart_all, 60000);
}

TEST_TIMEOUT(a_frozen_leader_costs_no_lock, 180)
{
    outlast(freeze_leader, 60000);
}

/* A leader that was deposed and has not noticed answers reads and syncs; only
 * for a transaction it needs the others. */
TEST(a_heartbeat_asks_a_majority)
{
    struct hf_lock_opts opts = zkt_opts(2000);
    const char *key = zkt_key("k");
    hf_client *client;
    long long before;
    hf_lock *lk;

    await_all();
    client = zkt_open(zkt_url("?ttl=2s"));
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    t_sleep_ms(300);
    before = zxid_of(1);
    CHECK_GT(before, 0);
    t_poll_until(zxid_of(1) >= before + 2, 10000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* The only server that answers has lost its quorum: it goes on for a while, and
 * what it says is worth nothing. */
TEST_TIMEOUT(a_server_that_is_cut_off_proves_nothing, 120)
{
    struct hf_lock_opts opts = zkt_opts(2000);
    const char *key = zkt_key("k");
    int alone, leader;
    char url[128];
    hf_client *a, *b;
    hf_lock *lk, *next;

    await_all();
    leader = find('l');
    alone = find('f');
    snprintf(url, sizeof(url), "zk://127.0.0.1:%ld/hf-test",
             number_of(alone, "port"));
    a = zkt_open(url);
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 20000, &opts, &lk, &t_err));
    for (int id = 1; id <= SERVERS; id++)
        if (id != alone)
            signal_server(id, SIGSTOP);
    t_poll_until(!hf_held(lk), 8000);
    CHECK(mode_of(leader) == 0);
    for (int id = 1; id <= SERVERS; id++)
        if (id != alone)
            signal_server(id, SIGCONT);
    CHECK_OK(hf_acquire(b, key, 60000, &opts, &next, &t_err));
    CHECK(!hf_held(lk));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
    await_all();
}

/* Turns that nothing protects but the lock. */
struct field {
    const char *key;
    atomic_int inside, stop;
    atomic_long turns;
    long counter;
    uint64_t fence;
};

static void *contend(void *arg)
{
    struct hf_lock_opts opts = zkt_opts(6000);
    struct field *field = arg;
    hf_client *client = zkt_open(zkt_url(""));

    while (!atomic_load(&field->stop)) {
        hf_lock *lk;
        hf_status st = hf_acquire(client, field->key, 2000, &opts, &lk, &t_err);
        long seen;

        if (st) {
            CHECK(st == HF_TIMEOUT || st == HF_UNAVAILABLE ||
                  st == HF_UNCERTAIN);
            continue;
        }
        CHECK_EQ(atomic_fetch_add(&field->inside, 1), 0);
        CHECK_LT(field->fence, hf_fence(lk));
        field->fence = hf_fence(lk);
        seen = field->counter;
        t_sleep_ms(1);
        field->counter = seen + 1;
        CHECK(hf_held(lk));
        atomic_fetch_add(&field->turns, 1);
        CHECK_EQ(atomic_fetch_sub(&field->inside, 1), 1);
        hf_release(lk, NULL);
    }
    hf_close(client);
    return NULL;
}

TEST_TIMEOUT(one_holder_at_a_time_while_servers_come_and_go, 240)
{
    struct field field = {.key = zkt_key("k")};
    pthread_t threads[4];
    long before;

    await_all();
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, contend, &field), 0);
    for (int i = 0; i < 4; i++) {
        before = atomic_load(&field.turns);
        t_poll_until(atomic_load(&field.turns) > before + 20, 40000);
        if (i % 2)
            kill_follower();
        else
            kill_leader();
    }
    before = atomic_load(&field.turns);
    t_poll_until(atomic_load(&field.turns) > before + 20, 40000);
    atomic_store(&field.stop, 1);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(field.counter, atomic_load(&field.turns));
    await_all();
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(field.key)) == 0, 20000);
    zkt_end();
}

T_MAIN
