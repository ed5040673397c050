/* SPDX-License-Identifier: MIT
 *
 * net_lie.c - answers of a proxy that gave up although the server did not.
 *
 * Load balancers say 503, gRPC proxies UNAVAILABLE, and both after the request
 * was carried out, because the answer came too late for them or the connection
 * behind them ended.  A client that takes such an answer for "not done" leaves a
 * lock behind, or holds one of which it does not know.
 *
 * For gRPC the frames of both directions are followed, heads only, to know which
 * requests wait.  What the server has said cannot be left out of an HTTP/2
 * connection that goes on, since both sides keep a table of headers: it ends.
 */
#include "net_link.h"

#include <string.h>

/* What a client of HTTP/2 says before its first frame. */
static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum { F_DATA = 0, F_HEADERS = 1, F_RST = 3, END_STREAM = 1 };

void net_lie_start(struct net_link *link)
{
    link->frames[NET_UP].skip = (int64_t)strlen(preface);
}

/* What the head of a frame says about the requests that wait. */
static void streams_note(struct net_link *link, int dir,
                         const unsigned char *head)
{
    unsigned id = (head[5] & 0x7fu) << 24 | (unsigned)head[6] << 16 |
                  (unsigned)head[7] << 8 | head[8];
    bool opens = dir == NET_UP && head[3] == F_HEADERS;
    bool ends = head[3] == F_RST || (dir == NET_DOWN && head[3] <= F_HEADERS &&
                                     head[4] & END_STREAM);
    int spare = -1;

    if (!id || (!opens && !ends))
        return;
    for (int i = 0; i < NET_STREAMS; i++) {
        if (link->streams[i] == id) {
            if (ends)
                link->streams[i] = 0;
            return;
        }
        if (!link->streams[i])
            spare = i;
    }
    if (opens && spare >= 0)
        link->streams[spare] = id;
}

/* Follow the frames of one direction, wherever the pieces end.  What it notes of
 * other protocols has no meaning, and is not asked for. */
void net_lie_follow(struct net_link *link, int dir, const char *data,
                    size_t len)
{
    struct net_frames *f = &link->frames[dir];

    while (len) {
        if (f->skip) {
            size_t part = (int64_t)len < f->skip ? len : (size_t)f->skip;

            f->skip -= (int64_t)part;
            data += part;
            len -= part;
            continue;
        }
        f->head[f->have++] = (unsigned char)*data++;
        len--;
        if (f->have < 9)
            continue;
        f->have = 0;
        f->skip = f->head[0] << 16 | f->head[1] << 8 | f->head[2];
        streams_note(link, dir, f->head);
    }
}

/* :status 200, content-type application/grpc, grpc-status 14; nothing of it
 * enters the table of headers. */
static const char unavailable[] = "\x88"
                                  "\x0f\x10\x10"
                                  "application/grpc"
                                  "\x00\x0b"
                                  "grpc-status\x02"
                                  "14";

static size_t lie_grpc(const struct net_link *link, char *ret, size_t size)
{
    const size_t body = sizeof(unavailable) - 1;
    size_t used = 0;

    for (int i = 0; i < NET_STREAMS && used + 9 + body <= size; i++) {
        unsigned id = link->streams[i];

        if (!id)
            continue;
        memset(ret + used, 0, 9);
        ret[used + 2] = (char)body;
        ret[used + 3] = F_HEADERS;
        ret[used + 4] = END_STREAM | 4; /* and of the headers */
        for (int byte = 0; byte < 4; byte++)
            ret[used + 5 + (size_t)byte] = (char)(id >> (24 - 8 * byte));
        memcpy(ret + used + 9, unavailable, body);
        used += 9 + body;
    }
    return used;
}

/* What is said in place of the answer; 0: nothing, and the connection ends. */
size_t net_lie_text(struct net_link *link, int lie, char *ret, size_t size)
{
    static const char http[] = "HTTP/1.1 503 Service Unavailable\r\n"
                               "Connection: close\r\n"
                               "Content-Length: 0\r\n\r\n";

    if (lie == LIE_HTTP && sizeof(http) <= size) {
        memcpy(ret, http, sizeof(http) - 1);
        return sizeof(http) - 1;
    }
    return lie == LIE_GRPC ? lie_grpc(link, ret, size) : 0;
}
