/* SPDX-License-Identifier: MIT
 *
 * connect.c - how connections to Redis come about, and how they end.
 *
 * Finding the host and connecting take no longer than the call may; a server
 * that is away is not run down by those who look for it; and a peer that
 * vanished without a word is noticed within the lease.
 *
 * getaddrinfo(3) and connect(2) of this program are the test's own: a resolver
 * that hangs, and a count of who connects when.
 */
#include "rt.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/env.h"
#include "net/backoff.h"

/* What the scheduler of a busy host may add to a deadline. */
#define SLACK 2000

/* ---- the system -------------------------------------------------------- */

#define SLOW_MS 4000

typedef int resolve_fn(const char *, const char *, const struct addrinfo *,
                       struct addrinfo **);
typedef int connect_fn(int, const struct sockaddr *, socklen_t);

int getaddrinfo(const char *restrict host, const char *restrict service,
                const struct addrinfo *restrict hints,
                struct addrinfo **restrict ret)
{
    resolve_fn *real;

    *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (!host || strcmp(host, "slow.test") != 0)
        return real(host, service, hints, ret);
    if (hints->ai_flags & AI_NUMERICHOST)
        return EAI_NONAME;
    t_sleep_ms(SLOW_MS);
    return real("127.0.0.1", service, hints, ret);
}

#define CONNECTS_MAX 4096

static atomic_int watched_port;
static atomic_int nconnects;
static int64_t connected_at[CONNECTS_MAX];

/* Its type in the header is one that cannot be written down in C. */
connect_fn counted_connect __asm__("connect");

int counted_connect(int fd, const struct sockaddr *to, socklen_t len)
{
    connect_fn *real;
    const struct sockaddr_in *in = (const void *)to;
    int n;

    *(void **)&real = dlsym(RTLD_NEXT, "connect");
    if (to->sa_family == AF_INET &&
        ntohs(in->sin_port) == atomic_load(&watched_port)) {
        n = atomic_fetch_add(&nconnects, 1);
        if (n < CONNECTS_MAX)
            connected_at[n] = t_now_ms();
    }
    return real(fd, to, len);
}

/* ---- deadlines --------------------------------------------------------- */

static void check_unavailable(const char *url, const char *word)
{
    hf_client *client = NULL;
    int64_t begun = t_now_ms();

    CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_UNAVAILABLE);
    CHECK_LE(t_now_ms() - begun, 500 + SLACK);
    if (!strstr(t_err.text, word))
        t_fail(__FILE__, __LINE__, "'%s' is not in: %s", word, t_err.text);
}

TEST(a_resolver_that_hangs_does_not_outlast_the_deadline)
{
    struct rt_server s = {0};
    hf_client *client = NULL;
    char url[64];

    rt_start(&s, NULL);
    snprintf(url, sizeof(url), "redis://slow.test:%d?timeout=500ms", s.port);
    check_unavailable(url, "slow.test");
    /* Who has the time gets there. */
    snprintf(url, sizeof(url), "redis://slow.test:%d?timeout=20s", s.port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_OK(hf_release(rt_lock(client, "k", 0, 5000, 0), &t_err));
    hf_close(client);
    rt_end(&s);
}

/* A listener whose queue is full drops those who knock. */
TEST(a_connect_that_hangs_does_not_outlast_the_deadline)
{
    enum { KNOCKS = 8 };
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int port = rt_free_port(), knock[KNOCKS], i;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char url[64];

    at.sin_port = htons((uint16_t)port);
    CHECK_EQ(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(listener, 0), 0);
    for (i = 0; i < KNOCKS; i++) {
        knock[i] =
            socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        connect(knock[i], (struct sockaddr *)&at, sizeof(at));
    }
    t_sleep_ms(100);
    snprintf(url, sizeof(url), "redis://127.0.0.1:%d?timeout=500ms", port);
    check_unavailable(url, "cannot connect");
    for (i = 0; i < KNOCKS; i++)
        close(knock[i]);
    close(listener);
}

/* ---- coming back ------------------------------------------------------- */

#define THREADS 8

static void *knock_run(void *arg)
{
    struct hf_lock_opts opts = rt_opts(5000, HF_FAIR);
    struct hf_error err;
    hf_lock *lk = NULL;

    CHECK_NE(hf_acquire(arg, "k", 3000, &opts, &lk, &err), HF_OK);
    return NULL;
}

/* Pauses double up to a second, and each is shorter than that by chance, up to
 * half: so those who lost a server together do not come back together. */
TEST(pauses_grow_and_differ_by_chance)
{
    int64_t least = INT64_MAX, most = 0, left, limit = 50;
    struct hfi_backoff backoff = {0};

    for (int i = 0; i < 200; i++) {
        hfi_backoff_failed(&backoff);
        left = backoff.until - hfi_now();
        CHECK_LE(left, limit);
        if (limit == 1000) {
            least = left < least ? left : least;
            most = left > most ? left : most;
        }
        limit = limit < 500 ? limit * 2 : 1000;
    }
    CHECK_LT(least, 700);
    CHECK_GT(most, 800);
}

/* Many want something of a server that is not there: one knocks for all. */
TEST(those_who_look_for_a_server_back_off)
{
    struct rt_server s = {0};
    pthread_t thread[THREADS];
    hf_client *client;
    int64_t pause = 50, gap;
    int i, n;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    rt_crash(&s);
    atomic_store(&watched_port, s.port);
    for (i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, knock_run, client), 0);
    for (i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    n = atomic_load(&nconnects);
    CHECK_GE(n, 3);
    CHECK_LE(n, 12);
    for (i = 1; i < n; i++) {
        gap = connected_at[i] - connected_at[i - 1];
        printf("%lld of %lld ms\n", (long long)gap, (long long)pause);
        CHECK_GE(gap, pause / 2);
        pause = pause < 500 ? pause * 2 : 1000;
    }
    atomic_store(&watched_port, 0);
    rt_again(&s); /* and it is found again */
    CHECK_OK(hf_release(rt_lock(client, "k", 10000, 5000, 0), &t_err));
    hf_close(client);
    rt_end(&s);
}

/* They listen, too, and look for where to do that as little. */
TEST(those_who_wait_when_the_server_goes_back_off_as_well)
{
    struct rt_server s = {0};
    struct rt_waiter w[THREADS];
    hf_client *holder, *client;
    hf_lock *lk[THREADS];
    char key[THREADS][8];
    int i;

    rt_start(&s, NULL);
    holder = rt_open(&s, "");
    client = rt_open(&s, "");
    for (i = 0; i < THREADS; i++) {
        snprintf(key[i], sizeof(key[i]), "k%d", i);
        lk[i] = rt_lock(holder, key[i], 0, 60000, HF_MANUAL);
        w[i] = rt_waiter(client, key[i], 30000, 60000, 0);
        rt_wait_start(&w[i]);
        t_poll_until(rt_hears(&s, key[i]), 5000);
    }
    atomic_store(&watched_port, s.port);
    rt_crash(&s);
    t_sleep_ms(3000);
    printf("%d connects\n", atomic_load(&nconnects));
    CHECK_LE(atomic_load(&nconnects), 24);
    atomic_store(&watched_port, 0);
    rt_again(&s); /* empty, so all of them get what they want */
    for (i = 0; i < THREADS; i++)
        rt_wait_join(&w[i]);
    for (i = 0; i < THREADS; i++)
        CHECK_STATUS(hf_release(lk[i], &t_err), HF_LOST);
    hf_close(client);
    hf_close(holder);
    rt_end(&s);
}

/* ---- a peer that vanished ---------------------------------------------- */

static int option(int fd, int level, int name)
{
    socklen_t size = sizeof(int);
    int value = -1;

    CHECK_EQ(getsockopt(fd, level, name, &value, &size), 0);
    return value;
}

/* Look at all our connections to the port; how many there are. */
static int check_tuned(int port, int ttl_ms)
{
    struct sockaddr_in at;
    socklen_t len;
    int fd, n = 0;

    for (fd = 0; fd < 256; fd++) {
        len = sizeof(at);
        if (getpeername(fd, (struct sockaddr *)&at, &len) ||
            at.sin_family != AF_INET || ntohs(at.sin_port) != port)
            continue;
        n++;
        CHECK_EQ(option(fd, IPPROTO_TCP, TCP_NODELAY), 1);
        CHECK_EQ(option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
        CHECK_GT(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
        CHECK_LT(option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), ttl_ms);
        CHECK_LT(1000 * (option(fd, IPPROTO_TCP, TCP_KEEPIDLE) +
                         option(fd, IPPROTO_TCP, TCP_KEEPCNT) *
                             option(fd, IPPROTO_TCP, TCP_KEEPINTVL)),
                 ttl_ms + 1000);
    }
    return n;
}

TEST(a_peer_that_vanishes_is_noticed_within_the_lease)
{
    static const int ttl[] = {30, 8, 4};
    struct rt_server s = {0};
    hf_client *holder, *client;
    struct rt_waiter w;
    hf_lock *lk;
    char more[32];
    int i;

    rt_start(&s, NULL);
    for (i = 0; i < 3; i++) {
        snprintf(more, sizeof(more), "?ttl=%ds", ttl[i]);
        holder = rt_open(&s, more);
        client = rt_open(&s, more);
        lk = rt_lock(holder, "k", 0, 0, 0);
        w = rt_waiter(client, "k", 20000, 0, 0);
        rt_wait_start(&w);
        t_poll_until(rt_hears(&s, "k"), 5000);
        CHECK_GE(check_tuned(s.port, ttl[i] * 1000), 3); /* one listens */
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
        hf_close(holder);
        hf_close(client);
    }
    rt_end(&s);
}

/* ---- a cluster that moves house ---------------------------------------- */

/* So many addresses more than a client can know at once. */
#define HOUSES 330

/* A cluster of one, which says of every lock that it has moved, to an address
 * where it has never been; until it stays. */
struct nomad {
    int listener, port, fd[2 * HOUSES];
    pthread_t thread;
    atomic_int houses;
    atomic_bool stop;
};

static void nomad_say(struct nomad *nomad, int fd, const char *asked)
{
    char text[256] = "+PONG\r\n";
    int n = atomic_load(&nomad->houses);

    if (strstr(asked, "INFO"))
        snprintf(text, sizeof(text), "*0\r\n");
    else if (strstr(asked, "CLUSTER"))
        snprintf(text, sizeof(text),
                 "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n",
                 nomad->port);
    else if (strstr(asked, "EVAL") && n < HOUSES)
        snprintf(text, sizeof(text), "-MOVED 1 127.1.%d.%d:%d\r\n", 1 + n / 200,
                 1 + atomic_fetch_add(&nomad->houses, 1) % 200, nomad->port);
    else if (strstr(asked, "EVAL"))
        snprintf(text, sizeof(text), "%s",
                 strstr(asked, "\r\nL19 \r\n") ? ":1\r\n" : "$1\r\n7\r\n");
    send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* Commands come together, but whole: they are short. */
static void nomad_hear(struct nomad *nomad, int fd, char *asked)
{
    char *next;

    for (; asked; asked = next) {
        next = strstr(asked, "\r\n*");
        if (next) {
            *next = '\0';
            next += 2;
        }
        nomad_say(nomad, fd, asked);
    }
}

static void *nomad_run(void *arg)
{
    struct nomad *nomad = arg;
    struct pollfd all[2 * HOUSES];
    char asked[8192];
    ssize_t len;
    int i, n = 1;

    nomad->fd[0] = nomad->listener;
    while (!atomic_load(&nomad->stop)) {
        for (i = 0; i < n; i++)
            all[i] = (struct pollfd){.fd = nomad->fd[i], .events = POLLIN};
        poll(all, (nfds_t)n, 20);
        for (i = n - 1; i > 0; i--) {
            if (!all[i].revents)
                continue;
            len = recv(nomad->fd[i], asked, sizeof(asked) - 1, 0);
            if (len > 0) {
                asked[len] = '\0';
                nomad_hear(nomad, nomad->fd[i], asked);
                continue;
            }
            close(nomad->fd[i]);
            nomad->fd[i] = nomad->fd[--n];
            all[i] = all[n];
        }
        if (all[0].revents && n < 2 * HOUSES)
            nomad->fd[n++] = accept4(nomad->listener, NULL, NULL, SOCK_CLOEXEC);
    }
    while (n > 0)
        close(nomad->fd[--n]);
    return NULL;
}

TEST(a_cluster_may_have_had_any_number_of_addresses)
{
    static struct nomad nomad;
    struct sockaddr_in at = {.sin_family = AF_INET}; /* every address of ours */
    socklen_t len = sizeof(at);
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char url[64];
    hf_status st;

    nomad.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(nomad.listener, (struct sockaddr *)&at, len), 0);
    CHECK_EQ(listen(nomad.listener, 64), 0);
    CHECK_EQ(getsockname(nomad.listener, (struct sockaddr *)&at, &len), 0);
    nomad.port = ntohs(at.sin_port);
    CHECK_EQ(pthread_create(&nomad.thread, NULL, nomad_run, &nomad), 0);
    snprintf(url, sizeof(url), "redis+cluster://127.0.0.1:%d", nomad.port);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    while (!lk) {
        st = hf_acquire(client, "k", 0, NULL, &lk, &t_err);
        CHECK(st == HF_OK || st == HF_UNAVAILABLE);
    }
    CHECK_EQ(atomic_load(&nomad.houses), HOUSES);
    CHECK_EQ(hf_fence(lk), 7);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    atomic_store(&nomad.stop, true);
    pthread_join(nomad.thread, NULL);
}

T_MAIN
