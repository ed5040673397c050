/* SPDX-License-Identifier: MIT
 *
 * share.c - what the calls of one client do to each other: they share a
 * connection, and one that gets no answer is no reason for others to fail.
 *
 * connect(2) and recv(2) of this program are the test's own: a count of
 * connections to a port, and one of them on which nothing is received.
 */
#include "rt.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <sys/socket.h>

#include "proxy.h"

/* ---- the system -------------------------------------------------------- */

typedef int connect_fn(int, const struct sockaddr *, socklen_t);

static atomic_int watched_port; /* connections to there are counted, */
static atomic_int nconnects;
static atomic_int first_fd = -1; /* the first is this, */
static atomic_bool stuck;        /* and receives nothing meanwhile */
static atomic_bool hangs;        /* none comes about */

/* Its type in the header is one that cannot be written down in C. */
connect_fn counted_connect __asm__("connect");

int counted_connect(int fd, const struct sockaddr *to, socklen_t len)
{
    const struct sockaddr_in *in = (const void *)to;
    connect_fn *real;

    *(void **)&real = dlsym(RTLD_NEXT, "connect");
    if (to->sa_family != AF_INET ||
        ntohs(in->sin_port) != atomic_load(&watched_port))
        return real(fd, to, len);
    if (!atomic_fetch_add(&nconnects, 1))
        atomic_store(&first_fd, fd);
    while (atomic_load(&hangs))
        t_sleep_ms(5);
    return real(fd, to, len);
}

ssize_t recv(int fd, void *buf, size_t size, int flags)
{
    ssize_t (*real)(int, void *, size_t, int);

    *(void **)&real = dlsym(RTLD_NEXT, "recv");
    if (fd == atomic_load(&first_fd) && atomic_load(&stuck)) {
        t_sleep_ms(1);
        errno = EAGAIN;
        return -1;
    }
    return real(fd, buf, size, flags);
}

static hf_client *open_watched(int port)
{
    hf_client *client = NULL;

    atomic_store(&watched_port, port);
    atomic_store(&nconnects, 0);
    CHECK_OK(hf_open(rt_url(port, ""), NULL, &client, &t_err));
    CHECK_EQ(atomic_load(&nconnects), 1);
    return client;
}

/* ---- renewals ---------------------------------------------------------- */

TEST(a_renewal_does_not_wait_behind_a_call_that_gets_no_answer)
{
    struct rt_server s = {0};
    hf_client *client;
    struct rt_waiter w;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = open_watched(s.port);
    lk = rt_lock(client, "k", 0, 20000, HF_MANUAL);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(atomic_load(&nconnects), 1); /* Who is alone needs one. */
    w = rt_waiter(client, "other", 0, 20000, 0);
    atomic_store(&stuck, true);
    rt_wait_start(&w);
    t_poll_until(rt_int(&s, "EXISTS holdfast:other") == 1, 5000);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK(atomic_load(&nconnects) == 2);
    atomic_store(&stuck, false);
    rt_wait_join(&w);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

/* ---- calls that get no answer ------------------------------------------ */

TEST(a_call_that_is_given_up_costs_the_others_nothing)
{
    struct hf_lock_opts opts = rt_opts(600, 0);
    struct rt_server s = {0};
    struct proxy p;
    hf_client *client;
    hf_lock *lk, *brief = NULL;
    char key[16];

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    client = open_watched(p.port);
    lk = rt_lock(client, "k", 0, 30000, HF_MANUAL);
    proxy_delay(&p, 250);
    for (int i = 0; i < 4; i++) {
        /* Its lease is too short for this way: renewals give up in turn. */
        snprintf(key, sizeof(key), "brief%d", i);
        CHECK_OK(hf_acquire(client, key, 0, &opts, &brief, &t_err));
        while (hf_held(brief))
            CHECK_OK(hf_extend(lk, 0, &t_err));
        hf_release(brief, NULL);
    }
    CHECK_LE(atomic_load(&nconnects), 2);
    proxy_delay(&p, 0);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    proxy_stop(&p);
    rt_end(&s);
}

static void *try_once(void *arg)
{
    struct rt_waiter *w = arg;

    w->st = hf_acquire(w->client, w->key, 0, NULL, &(hf_lock *){NULL}, &w->err);
    return NULL;
}

TEST(while_one_looks_for_a_dead_server_the_others_are_told_at_once)
{
    struct rt_server s = {0};
    struct rt_waiter w = {.key = "a"};
    hf_client *client;
    hf_lock *lk = NULL;
    int before;

    rt_start(&s, NULL);
    client = open_watched(s.port);
    rt_crash(&s);
    CHECK_NE(hf_acquire(client, "k", 0, NULL, &lk, &t_err), HF_OK);
    t_poll_until(
        hf_acquire(client, "k", 0, NULL, &lk, &t_err) == HF_UNAVAILABLE, 5000);
    w.client = client;
    before = atomic_load(&nconnects);
    atomic_store(&hangs, true);
    t_sleep_ms(1200); /* The pause after the last attempt is over. */
    CHECK_EQ(pthread_create(&w.thread, NULL, try_once, &w), 0);
    t_poll_until(atomic_load(&nconnects) > before, 5000);
    CHECK_STATUS(hf_acquire(client, "k", 0, NULL, &lk, &t_err), HF_UNAVAILABLE);
    CHECK(!strstr(t_err.text, "still connecting"));
    CHECK_EQ(atomic_load(&nconnects), before + 1);
    atomic_store(&hangs, false);
    pthread_join(w.thread, NULL);
    rt_again(&s);
    CHECK_OK(hf_release(rt_lock(client, "k", 10000, 5000, 0), &t_err));
    hf_close(client);
    rt_end(&s);
}

/* ---- those who wait ---------------------------------------------------- */

/* Their connections are cut, and they look again for what they may have missed:
 * all of them, but not all at once. */
TEST(those_who_wait_come_back_a_few_at_a_time)
{
    enum { WAITERS = 320 };
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL);
    struct rt_server s = {0};
    hf_client *holder, *client;
    hf_request *rq[WAITERS];
    hf_lock *lk[WAITERS];
    char key[16];
    long long calls;
    int64_t began;

    rt_start(&s, NULL);
    holder = rt_open(&s, "");
    client = rt_open(&s, "");
    for (int i = 0; i < WAITERS; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        lk[i] = rt_lock(holder, key, 0, 60000, HF_MANUAL);
        CHECK_OK(
            hf_acquire_start(client, key, -1, &opts, NULL, &rq[i], &t_err));
    }
    for (int i = 0; i < WAITERS; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        t_poll_until(rt_hears(&s, key), 20000);
    }
    calls = rt_calls(&s, "evalsha");
    rt_do(&s, "CLIENT KILL TYPE pubsub");
    began = t_now_ms();
    t_poll_until(rt_calls(&s, "evalsha") >= calls + WAITERS, 20000);
    CHECK_GE(t_now_ms() - began, 60);
    hf_close(client);
    for (int i = 0; i < WAITERS; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(holder);
    rt_end(&s);
}

/* Every request and every byte goes through one place. */
TEST(requests_and_bytes_are_counted)
{
    struct hf_stats before = HF_STATS_INIT, after = HF_STATS_INIT;
    struct rt_server server = {0};
    hf_client *client;

    rt_start(&server, NULL);
    client = rt_open(&server, "");
    CHECK_OK(hf_stats(client, &before, &t_err));
    CHECK_GT(before.requests, 0); /* to open it */
    CHECK_OK(hf_release(rt_lock(client, "k", 0, 30000, 0), &t_err));
    CHECK_OK(hf_stats(client, &after, &t_err));
    CHECK_GE(after.requests, before.requests + 2);
    CHECK_GT(after.bytes_sent, before.bytes_sent + 32);
    CHECK_GT(after.bytes_received, before.bytes_received);
    hf_close(client);
    rt_end(&server);
}

T_MAIN
