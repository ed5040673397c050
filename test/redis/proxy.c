/* SPDX-License-Identifier: MIT
 *
 * proxy.c - the net of torture/net.h in front of one Redis, in the few modes
 * that these tests need; and the hostile server.
 */
#include "proxy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- the proxy --------------------------------------------------------- */

static void proxy_tell(struct proxy *p, const char *command)
{
    char answer[128];

    if (!net_tell(p->net, command, answer, sizeof(answer)))
        t_fail(__FILE__, __LINE__, "%s: %s", command, answer);
}

/* The figure of this name in what the net tells of itself. */
static int64_t proxy_figure(struct proxy *p, const char *name)
{
    char answer[256];

    CHECK(net_tell(p->net, "stat", answer, sizeof(answer)));
    return strtoll(strstr(answer, name) + strlen(name), NULL, 10);
}

void proxy_start(struct proxy *p, struct rt_server *s)
{
    char to[16];

    *p = (struct proxy){.net = net_new()};
    CHECK(p->net != NULL);
    snprintf(to, sizeof(to), "%d", s->port);
    p->port = net_port(p->net, "127.0.0.1", to);
    CHECK_GT(p->port, 0);
}

void proxy_set(struct proxy *p, enum proxy_mode mode, int64_t limit)
{
    char command[64];

    proxy_tell(p, "all pass");
    if (p->delay_ms)
        proxy_delay(p, p->delay_ms);
    switch (mode) {
    case PROXY_CUT:
        snprintf(command, sizeof(command), "all down cut %lld",
                 (long long)limit);
        proxy_tell(p, command);
        break;
    case PROXY_DROP:
        proxy_tell(p, "all down drop");
        break;
    case PROXY_FREEZE:
        proxy_tell(p, "all drop");
        break;
    default:
        break;
    }
}

void proxy_break(struct proxy *p, enum proxy_mode mode)
{
    proxy_tell(p, "port 1 refuse"); /* Nobody comes before it is over. */
    proxy_tell(p, "all reset");
    proxy_set(p, mode, 0);
    proxy_tell(p, "port 1 accept");
}

int proxy_cuts(struct proxy *p)
{
    return (int)proxy_figure(p, "cuts ");
}

void proxy_delay(struct proxy *p, int ms)
{
    char command[64];

    p->delay_ms = ms;
    snprintf(command, sizeof(command), "all down delay %d", ms);
    proxy_tell(p, command);
}

int64_t proxy_bytes(struct proxy *p)
{
    return proxy_figure(p, "up ") + proxy_figure(p, "down ");
}

void proxy_stop(struct proxy *p)
{
    net_free(p->net);
}

/* ---- the hostile server ------------------------------------------------ */

static int hostile_listen(int *port)
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
    static _Thread_local char piece[70000];
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
    ssize_t n;
    int good = h->good;
    struct pollfd one = {.fd = fd, .events = POLLIN};

    if (h->kind == HOSTILE_CLOSES && !good)
        return;
    while (!atomic_load(&h->stop)) {
        if (poll(&one, 1, 20) <= 0)
            continue;
        n = recv(fd, buf, sizeof(buf) - 1, 0);
        if (n <= 0)
            return;
        buf[n] = '\0';
        if (good-- > 0) {
            send(fd, "+PONG\r\n*0\r\n:0\r\n", strstr(buf, "SPUBLISH") ? 15 : 11,
                 MSG_NOSIGNAL);
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
    h->listener = hostile_listen(&h->port);
    CHECK_EQ(pthread_create(&h->thread, NULL, hostile_run, h), 0);
}

void hostile_stop(struct hostile *h)
{
    atomic_store(&h->stop, true);
    pthread_join(h->thread, NULL);
    close(h->listener);
}
