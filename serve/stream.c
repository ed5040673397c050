/* SPDX-License-Identifier: MIT
 *
 * stream.c - Server-Sent Events: the table, then each change of it.
 *
 * A stream remembers the version of the table that it has told.  Whenever there
 * is something newer it sends one message with what changed, at most
 * STREAM_BATCH locks of it, and goes to sleep otherwise; serve_stream_tick() wakes
 * it ten times a second at most.  So a change costs each stream the changed locks
 * only, and a browser that reads slowly gets fewer, larger steps: what changed
 * twice meanwhile is sent once.  Of locks that were renewed and are as they were
 * otherwise it sends their numbers and what is left of the leases.  One that fell
 * so far behind that locks were forgotten meanwhile begins again with "reset".
 *
 * INVARIANT  A stream that nobody reads keeps nobody out.  Those that were closed make
 * room for others at the next tick, or at once for one more than STREAM_MAX.  If
 * there is none, the one goes that has had something to send for longest while its
 * reader took nothing, if that is STREAM_STALLED or more.  One whose reader takes all
 * that it is sent never goes for another: then the other is refused.
 */
#include "serve.h"

#include <inttypes.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define STREAM_BATCH   2000
#define STREAM_MAX     64
#define STREAM_QUIET   15000 /* a comment goes out after so long without news */
#define STREAM_SLOW    60u   /* seconds in which a reader must read something */
#define STREAM_STALLED 2000  /* in ms: so long and it may have to go */

struct stream {
    struct stream *next;
    struct MHD_Connection *connection;
    uint64_t version; /* told so far */
    uint64_t lease;   /* the same of renewals */
    uint64_t start;   /* of the table when it began: what was free by then and
                       * still is was never told */
    int64_t spoke;
    int64_t moved; /* when the library last asked for more: all was sent */
    bool begun, asleep;
    bool allow_break; /* as the first message says */
    bool gone;        /* nobody reads it, and it does not count */
    int fd;
    char *text;
    size_t len, off;
};

static pthread_mutex_t stream_mu = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;
static int stream_count;
static bool stream_ends;

static void stream_locks(FILE *out, struct stream *s, uint64_t *upto)
{
    const struct serve_lock *lock = serve_table.last, *at = NULL;
    int64_t now = serve_now();
    int count = 0;

    for (; lock && lock->version > s->version; lock = lock->prev)
        at = lock;
    fputs("\"locks\":[", out);
    for (; at && count < STREAM_BATCH; at = at->next) {
        if (at->version <= s->start && !at->info.held)
            continue;
        fputs(count++ ? "," : "", out);
        serve_json_lock(out, at, now);
        *upto = at->version;
    }
    if (!at)
        *upto = serve_table.version;
    fputc(']', out);
}

/* [number, what is left in ms] of those that were renewed. */
static void stream_leases(FILE *out, struct stream *s)
{
    const struct serve_lock *lock = serve_table.first;
    int64_t now = serve_now();
    bool more = false;

    if (s->lease == serve_table.lease)
        return;
    fputs(",\"leases\":[", out);
    for (; lock; lock = lock->next) {
        if (lock->lease <= s->lease || !lock->info.held)
            continue;
        fprintf(out, "%s[%" PRIu64 ",%" PRId64 "]", more ? "," : "", lock->id,
                serve_left(lock, now));
        more = true;
    }
    fputc(']', out);
    s->lease = serve_table.lease;
}

static void stream_events(FILE *out, const struct stream *s, uint64_t upto)
{
    uint64_t i = serve_table.nevents > SERVE_EVENTS
                     ? serve_table.nevents - SERVE_EVENTS
                     : 0;
    bool more = false;

    fputs(",\"events\":[", out);
    for (; i < serve_table.nevents; i++) {
        const struct serve_event *event = &serve_table.events[i % SERVE_EVENTS];

        if (event->version <= s->version || event->version > upto)
            continue;
        fputs(more ? "," : "", out);
        serve_json_event(out, event);
        more = true;
    }
    fputc(']', out);
}

/* Put the next message into s->text; false if there is nothing to say. */
static bool stream_fill(struct stream *s)
{
    uint64_t upto = s->version;
    FILE *out;

    free(s->text);
    s->text = NULL;
    s->len = s->off = 0;
    out = open_memstream(&s->text, &s->len);
    if (!out)
        return false;
    pthread_mutex_lock(&serve_table.mu);
    if (!s->version)
        s->start = serve_table.version;
    if (s->version < serve_table.oldest && s->start < serve_table.oldest) {
        s->begun = false;
        s->version = 0;
        s->start = serve_table.version;
    }
    if (!s->begun && !s->version)
        s->lease = serve_table.lease; /* The locks are told with it. */
    if (serve_table.version > s->version || serve_table.lease > s->lease ||
        !s->begun) {
        fputs("data: {", out);
        if (!s->begun && !s->version)
            fprintf(out, "\"reset\":true,%s",
                    s->allow_break ? "\"allow_break\":true," : "");
        stream_locks(out, s, &upto);
        stream_leases(out, s);
        stream_events(out, s, upto);
        fputs(",\"services\":", out);
        serve_json_services(out);
        fprintf(out, ",\"run\":\"%s\"}\n\n", serve_run);
        s->version = upto;
        s->begun = s->begun || upto == serve_table.version;
    } else if (serve_now() - s->spoke >= STREAM_QUIET) {
        fputs(": nothing new\n\n", out);
    }
    pthread_mutex_unlock(&serve_table.mu);
    if (fclose(out))
        s->len = 0;
    if (s->len)
        s->spoke = serve_now();
    return s->len > 0;
}

static ssize_t stream_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct stream *s = cls;
    size_t part;

    (void)pos;
    if (s->gone)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    s->moved = serve_now();
    if (s->off == s->len && !stream_fill(s)) {
        pthread_mutex_lock(&stream_mu);
        if (!stream_ends) {
            s->asleep = true;
            MHD_suspend_connection(s->connection);
        }
        pthread_mutex_unlock(&stream_mu);
        return stream_ends ? MHD_CONTENT_READER_END_OF_STREAM : 0;
    }
    part = s->len - s->off < max ? s->len - s->off : max;
    memcpy(buf, s->text + s->off, part);
    s->off += part;
    return (ssize_t)part;
}

/* The library does not look at a connection that sleeps: find those that were
 * closed, and let it see that.  The mutex is held. */
static void stream_forget(void)
{
    struct pollfd fds[STREAM_MAX];
    struct stream *of[STREAM_MAX], *s;
    nfds_t n = 0;

    for (s = streams; s && n < STREAM_MAX; s = s->next)
        if (s->asleep) {
            of[n] = s;
            fds[n++] = (struct pollfd){.fd = s->fd, .events = POLLRDHUP};
        }
    if (poll(fds, n, 0) <= 0)
        return;
    while (n-- > 0) {
        if (!fds[n].revents)
            continue;
        of[n]->gone = true;
        of[n]->asleep = false;
        stream_count--;
        MHD_resume_connection(of[n]->connection);
    }
}

/* There is no room: the one that is stalled for longest goes.  The mutex is held,
 * and the thread is that of the library, so nobody closes it meanwhile. */
static void stream_make_room(void)
{
    struct stream *s, *worst = NULL;

    for (s = streams; s; s = s->next)
        if (!s->asleep && !s->gone && (!worst || s->moved < worst->moved))
            worst = s;
    if (!worst || serve_now() - worst->moved < STREAM_STALLED)
        return;
    worst->gone = true;
    stream_count--;
    shutdown(worst->fd, SHUT_RDWR); /* The library sees that and closes it. */
}

static void stream_free(void *cls)
{
    struct stream *s = cls, **at;

    pthread_mutex_lock(&stream_mu);
    for (at = &streams; *at != s; at = &(*at)->next)
        ;
    *at = s->next;
    stream_count -= !s->gone;
    pthread_mutex_unlock(&stream_mu);
    free(s->text);
    free(s);
}

struct MHD_Response *serve_stream(struct MHD_Connection *connection,
                                  bool allow_break)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct stream *s = calloc(1, sizeof(*s));
    struct MHD_Response *ret = NULL;

    if (!s)
        return NULL;
    s->connection = connection;
    s->allow_break = allow_break;
    s->fd = info->connect_fd;
    pthread_mutex_lock(&stream_mu);
    s->moved = serve_now();
    if (stream_count >= STREAM_MAX)
        stream_forget();
    if (stream_count >= STREAM_MAX)
        stream_make_room();
    if (stream_count < STREAM_MAX && !stream_ends) {
        s->next = streams;
        streams = s;
        stream_count++;
        pthread_mutex_unlock(&stream_mu);
        ret = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32768,
                                                stream_read, s, stream_free);
        if (!ret)
            stream_free(s);
        else
            MHD_add_response_header(ret, "Content-Type", "text/event-stream");
        MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT,
                                  STREAM_SLOW);
        return ret;
    }
    pthread_mutex_unlock(&stream_mu);
    free(s);
    return NULL;
}

void serve_stream_tick(void)
{
    struct stream *s;
    uint64_t version, lease;
    int64_t now = serve_now();

    pthread_mutex_lock(&serve_table.mu);
    version = serve_table.version;
    lease = serve_table.lease;
    pthread_mutex_unlock(&serve_table.mu);
    pthread_mutex_lock(&stream_mu);
    stream_forget();
    for (s = streams; s; s = s->next) {
        if (!s->asleep || (s->version >= version && s->lease >= lease &&
                           now - s->spoke < STREAM_QUIET && !stream_ends))
            continue;
        s->asleep = false;
        s->moved = now; /* It has something to send from now on. */
        MHD_resume_connection(s->connection);
    }
    pthread_mutex_unlock(&stream_mu);
}

void serve_stream_stop(void)
{
    pthread_mutex_lock(&stream_mu);
    stream_ends = true;
    pthread_mutex_unlock(&stream_mu);
    serve_stream_tick();
}
