/* SPDX-License-Identifier: MIT
 *
 * h2peer.c - a server that speaks HTTP/2 as badly as it is told to.
 */
#include "h2peer.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "t.h"

enum { DATA = 0, HEADERS = 1, RST = 3, SETTINGS = 4, GOAWAY = 7, WINDOW = 8 };
enum { END_STREAM = 1, END_HEADERS = 4 };

#define FRAME_MAX 16384
#define OPEN_MAX  64

/* One connection. */
struct visit {
    struct h2peer *peer;
    int fd;
    int32_t credit;       /* what may be sent on the connection */
    size_t got[OPEN_MAX]; /* bytes of each request, by stream */
    bool over;
};

static void put32(unsigned char *to, uint32_t n)
{
    to[0] = (unsigned char)(n >> 24);
    to[1] = (unsigned char)(n >> 16);
    to[2] = (unsigned char)(n >> 8);
    to[3] = (unsigned char)n;
}

static uint32_t get32(const unsigned char *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 |
           (uint32_t)from[2] << 8 | from[3];
}

/* ---- saying ------------------------------------------------------------ */

static void say(struct visit *v, const void *bytes, size_t len)
{
    if (!v->over && send(v->fd, bytes, len, MSG_NOSIGNAL) != (ssize_t)len)
        v->over = true;
}

static void say_frame(struct visit *v, int type, int flags, uint32_t stream,
                      const void *payload, size_t len)
{
    unsigned char head[9];

    put32(head, (uint32_t)len << 8);
    head[3] = (unsigned char)type;
    head[4] = (unsigned char)flags;
    put32(head + 5, stream);
    say(v, head, sizeof(head));
    say(v, payload, len);
}

static void say_number(struct visit *v, int type, uint32_t stream, uint32_t n)
{
    unsigned char payload[4];

    put32(payload, n);
    say_frame(v, type, 0, stream, payload, sizeof(payload));
}

/* A header, neither indexed nor compressed. */
static size_t header(unsigned char *to, const char *name, const char *value)
{
    size_t a = strlen(name), b = strlen(value);

    to[0] = 0;
    to[1] = (unsigned char)a;
    memcpy(to + 2, name, a);
    to[2 + a] = (unsigned char)b;
    memcpy(to + 3 + a, value, b);
    return 3 + a + b;
}

static void say_begin(struct visit *v, uint32_t stream)
{
    unsigned char h[128];
    size_t n = header(h, ":status", "200");

    n += header(h + n, "content-type", "application/grpc");
    say_frame(v, HEADERS, END_HEADERS, stream, h, n);
}

static void say_end(struct visit *v, uint32_t stream, const char *status,
                    const char *message, bool all)
{
    unsigned char h[256];
    size_t n = 0;

    if (all)
        n += header(h, ":status", "200");
    if (status)
        n += header(h + n, "grpc-status", status);
    if (message)
        n += header(h + n, "grpc-message", message);
    if (!n)
        n += header(h, "x-nothing", "here");
    say_frame(v, HEADERS, END_HEADERS | END_STREAM, stream, h, n);
}

/* A message: of three bytes, or a response whose header tells of term 1. */
static void say_message(struct visit *v, uint32_t stream, bool term)
{
    static const unsigned char three[] = {0, 0, 0, 0, 3, 'a', 'b', 'c'};
    static const unsigned char header[] = {0, 0,    0, 0,    6, 0x0a,
                                           4, 0x18, 5, 0x20, 1};

    if (term)
        say_frame(v, DATA, 0, stream, header, sizeof(header));
    else
        say_frame(v, DATA, 0, stream, three, sizeof(three));
}

static void say_answer(struct visit *v, uint32_t stream, bool term)
{
    say_begin(v, stream);
    say_message(v, stream, term);
    say_end(v, stream, "0", NULL, false);
}

static bool hear(struct visit *v);

/* More than anybody takes, as fast as the client allows. */
static void say_too_much(struct visit *v, uint32_t stream)
{
    static const unsigned char prefix[] = {0, 0x7f, 0xff, 0xff, 0xff};
    static unsigned char block[FRAME_MAX];
    size_t said = 0;

    say_begin(v, stream);
    say_frame(v, DATA, 0, stream, prefix, sizeof(prefix));
    while (!v->over && said < ((size_t)64 << 20)) {
        if (v->credit < FRAME_MAX && !hear(v))
            return;
        if (v->credit < FRAME_MAX)
            continue;
        say_frame(v, DATA, 0, stream, block, sizeof(block));
        v->credit -= FRAME_MAX;
        said += FRAME_MAX;
    }
}

static void say_goodbye(struct visit *v, uint32_t last)
{
    unsigned char payload[8] = {0};

    put32(payload, last);
    say_frame(v, GOAWAY, 0, 0, payload, sizeof(payload));
}

static void say_reply(struct visit *v, uint32_t stream)
{
    switch ((enum h2peer_mode)atomic_load(&v->peer->mode)) {
    case H2_REFUSES:
        say_number(v, RST, stream, 7);
        return;
    case H2_RESETS:
        say_begin(v, stream);
        say_number(v, RST, stream, 2);
        return;
    case H2_GOES_UNASKED:
        say_goodbye(v, 0);
        return;
    case H2_GOES_ANSWERING:
        say_goodbye(v, stream);
        say_answer(v, stream, false);
        return;
    case H2_CUTS:
        say_begin(v, stream);
        v->over = true;
        return;
    case H2_NO_STATUS:
        say_begin(v, stream);
        say_message(v, stream, false);
        say_end(v, stream, NULL, NULL, false);
        return;
    case H2_NO_LEADER:
        say_end(v, stream, "14", "etcdserver: no leader", true);
        return;
    case H2_TOO_LARGE:
        say_too_much(v, stream);
        return;
    case H2_NONSENSE:
        say(v, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
        return;
    case H2_SILENT:
    case H2_NO_GREETING:
        return;
    case H2_ANSWERS:
    case H2_TINY_WINDOW:
    case H2_ONE_STREAM:
    case H2_BEHIND:
        say_answer(v, stream, atomic_load(&v->peer->mode) == H2_BEHIND);
    }
}

static void say_greeting(struct visit *v)
{
    unsigned char tiny[6] = {0, 4, 0, 0, 0, 7}, one[6] = {0, 3, 0, 0, 0, 1};
    int mode = atomic_load(&v->peer->mode);

    if (mode == H2_TINY_WINDOW)
        say_frame(v, SETTINGS, 0, 0, tiny, sizeof(tiny));
    else if (mode == H2_ONE_STREAM)
        say_frame(v, SETTINGS, 0, 0, one, sizeof(one));
    else if (mode != H2_NO_GREETING)
        say_frame(v, SETTINGS, 0, 0, NULL, 0);
}

/* ---- hearing ----------------------------------------------------------- */

/* All of it, or the visit is over. */
static bool hear_bytes(struct visit *v, void *to, size_t len)
{
    struct pollfd p = {.fd = v->fd, .events = POLLIN};
    char *at = to;
    ssize_t got;

    while (len && !v->over && !atomic_load(&v->peer->stop)) {
        if (poll(&p, 1, 50) <= 0)
            continue;
        got = recv(v->fd, at, len, 0);
        if (got <= 0)
            return false;
        at += got;
        len -= (size_t)got;
    }
    return !len;
}

static void hear_data(struct visit *v, uint32_t stream, size_t len, bool end)
{
    size_t at = stream / 2 % OPEN_MAX;

    v->got[at] += len;
    if (len && atomic_load(&v->peer->mode) == H2_TINY_WINDOW)
        say_number(v, WINDOW, stream, (uint32_t)len);
    if (len)
        say_number(v, WINDOW, 0, (uint32_t)len);
    if (!end)
        return;
    atomic_store(&v->peer->body, v->got[at]);
    v->got[at] = 0;
    atomic_fetch_add(&v->peer->asked, 1);
    say_reply(v, stream);
}

/* One frame. */
static bool hear(struct visit *v)
{
    unsigned char head[9], payload[FRAME_MAX];
    size_t len;
    uint32_t stream;

    if (!hear_bytes(v, head, sizeof(head)))
        return false;
    len = get32(head) >> 8;
    stream = get32(head + 5) & 0x7fffffff;
    if (len > sizeof(payload) || !hear_bytes(v, payload, len))
        return false;
    if (atomic_load(&v->peer->mode) == H2_NO_GREETING)
        return true;
    if (head[3] == SETTINGS && !(head[4] & 1))
        say_frame(v, SETTINGS, 1, 0, NULL, 0);
    else if (head[3] == DATA)
        hear_data(v, stream, len, head[4] & END_STREAM);
    else if (head[3] == WINDOW && !stream)
        v->credit += (int32_t)get32(payload);
    return true;
}

static void *receive(void *arg)
{
    struct h2peer_link *link = arg;
    struct visit v = {.peer = link->peer, .fd = link->fd, .credit = 65535};
    char preface[24];
    int on = 1;

    setsockopt(v.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (hear_bytes(&v, preface, sizeof(preface))) {
        say_greeting(&v);
        while (!v.over && hear(&v))
            continue;
    }
    close(v.fd);
    return NULL;
}

static void *run(void *arg)
{
    struct h2peer *peer = arg;
    struct pollfd p = {.fd = peer->listener, .events = POLLIN};
    struct h2peer_link *link;
    int n = 0;

    while (!atomic_load(&peer->stop)) {
        if (poll(&p, n < H2PEER_LINKS, 50) <= 0)
            continue;
        link = &peer->served[n];
        link->peer = peer;
        link->fd = accept(peer->listener, NULL, NULL);
        if (link->fd < 0)
            continue;
        CHECK_EQ(pthread_create(&link->thread, NULL, receive, link), 0);
        atomic_store(&peer->links, ++n);
    }
    while (n)
        pthread_join(peer->served[--n].thread, NULL);
    return NULL;
}

void h2peer_start(struct h2peer *peer, enum h2peer_mode mode)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof(at);

    memset(peer, 0, sizeof(*peer));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    atomic_init(&peer->mode, (int)mode);
    peer->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(peer->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    CHECK_EQ(listen(peer->listener, 16), 0);
    CHECK_EQ(getsockname(peer->listener, (struct sockaddr *)&at, &len), 0);
    peer->port = ntohs(at.sin_port);
    CHECK_EQ(pthread_create(&peer->thread, NULL, run, peer), 0);
}

void h2peer_stop(struct h2peer *peer)
{
    atomic_store(&peer->stop, true);
    pthread_join(peer->thread, NULL);
    close(peer->listener);
}
