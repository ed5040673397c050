/* SPDX-License-Identifier: MIT
 *
 * proxy.c - a network that misbehaves on demand; see proxy.h.
 *
 * One thread carries everything, under one mutex, so that a change of mode
 * happens between two bytes and never in the middle of a decision.
 */
#include "proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static int proxy_listen(int *port)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    CHECK_EQ(bind(fd, (struct sockaddr *)&at, len), 0);
    CHECK_EQ(listen(fd, 64), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

/* ---- the proxy --------------------------------------------------------- */

static void pair_close(int pair[2])
{
    struct linger hard = {.l_onoff = 1};
    int i;

    for (i = 0; i < 2; i++) {
        if (pair[i] < 0)
            continue;
        setsockopt(pair[i], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
        close(pair[i]);
        pair[i] = -1;
    }
}

static void proxy_accept(struct proxy *p)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)p->to),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC), i;

    if (fd < 0)
        return;
    for (i = 0; i < PROXY_PAIRS && p->pairs[i][0] >= 0; i++)
        ;
    CHECK_LT(i, PROXY_PAIRS);
    p->pairs[i][0] = fd;
    p->pairs[i][1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(p->pairs[i][1], (struct sockaddr *)&to, sizeof(to)))
        pair_close(p->pairs[i]);
}

/* Carry what there is to read on one side of a pair to the other. */
static void proxy_carry(struct proxy *p, int pair[2], int from)
{
    char buf[16384];
    ssize_t got = recv(pair[from], buf, sizeof(buf), MSG_DONTWAIT);

    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        pair_close(pair);
        return;
    }
    if (from == 1 && p->delay_ms) {
        pthread_mutex_unlock(&p->mu);
        t_sleep_ms(p->delay_ms);
        pthread_mutex_lock(&p->mu);
    }
    *(from ? &p->down : &p->up) += got;
    if (p->mode == PROXY_FREEZE || (p->mode == PROXY_DROP && from))
        return;
    if (p->mode == PROXY_CUT && from && got > p->limit) {
        send(pair[0], buf, (size_t)p->limit, MSG_NOSIGNAL);
        shutdown(pair[0], SHUT_WR); /* so that those bytes do arrive */
        close(pair[0]);
        pair[0] = -1;
        pair_close(pair);
        p->mode = PROXY_PASS;
        p->cuts++;
        return;
    }
    if (from)
        p->limit -= got;
    send(pair[!from], buf, (size_t)got, MSG_NOSIGNAL);
}

static void *proxy_run(void *arg)
{
    struct proxy *p = arg;
    struct pollfd fds[1 + 2 * PROXY_PAIRS];
    int i, n = 1 + 2 * PROXY_PAIRS;

    pthread_mutex_lock(&p->mu);
    while (!p->stop) {
        fds[0] = (struct pollfd){.fd = p->listener, .events = POLLIN};
        for (i = 1; i < n; i++)
            fds[i] = (struct pollfd){.fd = p->pairs[(i - 1) / 2][(i - 1) % 2],
                                     .events = POLLIN};
        pthread_mutex_unlock(&p->mu);
        poll(fds, (nfds_t)n, 5);
        pthread_mutex_lock(&p->mu);
        if (fds[0].revents)
            proxy_accept(p);
        for (i = 1; i < n; i++) {
            int *pair = p->pairs[(i - 1) / 2];

            if (fds[i].revents && pair[(i - 1) % 2] == fds[i].fd)
                proxy_carry(p, pair, (i - 1) % 2);
        }
    }
    pthread_mutex_unlock(&p->mu);
    return NULL;
}

void proxy_start(struct proxy *p, struct rt_server *s)
{
    *p = (struct proxy){.to = s->port};
    memset(p->pairs, -1, sizeof(p->pairs));
    pthread_mutex_init(&p->mu, NULL);
    p->listener = proxy_listen(&p->port);
    CHECK_EQ(pthread_create(&p->thread, NULL, proxy_run, p), 0);
}

void proxy_set(struct proxy *p, enum proxy_mode mode, int64_t limit)
{
    pthread_mutex_lock(&p->mu);
    p->mode = mode;
    p->limit = limit;
    pthread_mutex_unlock(&p->mu);
}

void proxy_break(struct proxy *p, enum proxy_mode mode)
{
    int i;

    pthread_mutex_lock(&p->mu);
    p->mode = mode;
    for (i = 0; i < PROXY_PAIRS; i++)
        pair_close(p->pairs[i]);
    pthread_mutex_unlock(&p->mu);
}

int proxy_cuts(struct proxy *p)
{
    int n;

    pthread_mutex_lock(&p->mu);
    n = p->cuts;
    pthread_mutex_unlock(&p->mu);
    return n;
}

void proxy_delay(struct proxy *p, int ms)
{
    pthread_mutex_lock(&p->mu);
    p->delay_ms = ms;
    pthread_mutex_unlock(&p->mu);
}

int64_t proxy_bytes(struct proxy *p)
{
    int64_t n;

    pthread_mutex_lock(&p->mu);
    n = p->up + p->down;
    pthread_mutex_unlock(&p->mu);
    return n;
}

void proxy_stop(struct proxy *p)
{
    pthread_mutex_lock(&p->mu);
    p->stop = true;
    pthread_mutex_unlock(&p->mu);
    pthread_join(p->thread, NULL);
    proxy_break(p, PROXY_PASS);
    close(p->listener);
    pthread_mutex_destroy(&p->mu);
}

/* ---- the hostile server ------------------------------------------------ */

/* What it says first, and then again and again until nobody listens. */
static const struct {
    const char *once, *again;
} hostile_words[HOSTILE_KINDS] = {
    [HOSTILE_GARBAGE] = {"HTTP/1.1 400 Bad Request\r\n\r\n", NULL},
    [HOSTILE_HUGE_BULK] = {"$2000000000\r\n",
                           "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},
    [HOSTILE_HUGE_ARRAY] = {"*2147483647\r\n", ":1\r\n:1\r\n:1\r\n:1\r\n"},
    [HOSTILE_MANY_BULKS] = {"*60000\r\n", "$40000"},
    [HOSTILE_NESTED] = {"*60000\r\n", "*10000"},
    [HOSTILE_ENDLESS_LINE] = {"+", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"},
    [HOSTILE_SILENT] = {"", NULL},
    [HOSTILE_CLOSES] = {"", NULL},
    [HOSTILE_DEEP] = {"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"
                      "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
                      NULL},
    [HOSTILE_NEGATIVE] = {"*-7\r\n$-9\r\n", NULL},
    [HOSTILE_WRONG_TYPE] = {"$5\r\nhello\r\n", NULL},
    [HOSTILE_EMPTY_ARRAY] = {"*0\r\n", NULL},
    [HOSTILE_NIL] = {"*3\r\n$-1\r\n$-1\r\n*-1\r\n", NULL},
    [HOSTILE_TWO_FOR_ONE] = {"$1\r\n1\r\n$1\r\n1\r\n", NULL},
};

/* What is said again and again: a whole string or array, or just the word. */
static size_t hostile_piece(char *piece, const char *word)
{
    size_t i, len = strlen(word), n = 65000 / len * len;
    const char *fill = *word == '*' ? ":1\r\n" : *word == '$' ? "xxxx" : word;

    if (*word != '*' && *word != '$')
        len = 0;
    for (i = 0; i < (len ? 40000 : n); i++)
        piece[len + (len ? 2 : 0) + i] = fill[i % strlen(fill)];
    if (!len)
        return n;
    memcpy(piece, word, len);
    memcpy(piece + len, "\r\n", 2);
    memcpy(piece + len + 2 + i, "\r\n", 2);
    return len + 2 + i + (*word == '$' ? 2 : 0);
}

/* Large pieces, so that memory would fill fast if nobody bounded it. */
static void hostile_flood(struct hostile *h, int fd, const char *word)
{
    static char piece[70000];
    size_t fill, i;
    struct pollfd one = {.fd = fd, .events = POLLOUT};

    fill = hostile_piece(piece, word);
    for (i = 0; !atomic_load(&h->stop);) {
        ssize_t done =
            send(fd, piece + i, fill - i, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (done < 0 && errno != EAGAIN)
            return;
        if (done < 0)
            poll(&one, 1, 20);
        else
            i = (i + (size_t)done) % fill;
    }
}

static void hostile_serve(struct hostile *h, int fd)
{
    char buf[8192];
    int good = h->good;
    struct pollfd one = {.fd = fd, .events = POLLIN};

    if (h->kind == HOSTILE_CLOSES && !good)
        return;
    while (!atomic_load(&h->stop)) {
        if (poll(&one, 1, 20) <= 0)
            continue;
        if (recv(fd, buf, sizeof(buf), 0) <= 0)
            return;
        if (good-- > 0) {
            send(fd, "+PONG\r\n", 7, MSG_NOSIGNAL);
            continue;
        }
        if (h->kind == HOSTILE_CLOSES)
            return;
        send(fd, hostile_words[h->kind].once,
             strlen(hostile_words[h->kind].once), MSG_NOSIGNAL);
        if (hostile_words[h->kind].again)
            hostile_flood(h, fd, hostile_words[h->kind].again);
    }
}

static void *hostile_run(void *arg)
{
    struct hostile *h = arg;
    struct pollfd one = {.fd = h->listener, .events = POLLIN};
    int fd;

    while (!atomic_load(&h->stop)) {
        if (poll(&one, 1, 20) <= 0)
            continue;
        fd = accept4(h->listener, NULL, NULL, SOCK_CLOEXEC);
        hostile_serve(h, fd);
        close(fd);
    }
    return NULL;
}

void hostile_start(struct hostile *h, enum hostile_kind kind, int good)
{
    *h = (struct hostile){.kind = kind, .good = good};
    h->listener = proxy_listen(&h->port);
    CHECK_EQ(pthread_create(&h->thread, NULL, hostile_run, h), 0);
}

void hostile_stop(struct hostile *h)
{
    atomic_store(&h->stop, true);
    pthread_join(h->thread, NULL);
    close(h->listener);
}
