/* SPDX-License-Identifier: MIT
 *
 * mux.c - many threads, one connection; see mux.h.
 *
 * INVARIANTS
 *  (1) The calls of a link stand in the order in which their bytes were
 *      appended, so the next reply belongs to the first call.
 *  (2) At most one thread reads and at most one writes, each without the mutex.
 *  (3) While a call waits and nobody reads, one of the waiting is awake: who
 *      stops reading wakes the first in line.
 *  (4) A call leaves its place only when its replies are there or the link is
 *      broken; one that gives up leaves a ghost that swallows them.
 *  (5) A link is freed when it is not the current one and nobody is on it.
 */
#include "mux.h"

#include <errno.h>
#include <unistd.h>

#include "../env.h"
#include "../mem.h"
#include "resp.h"

#include "../banned.h"

/* How long after a failed connect the next may be tried: at first, and at most
 * after failing again and again. */
#define MUX_DOWN_MS     50
#define MUX_DOWN_MS_MAX 1000

/* A connection that was not used for so long is looked at first. */
#define MUX_IDLE_MS 10

struct mux_link {
    struct hfi_mux *mux;
    struct hfi_stream stream;
    redisReader *reader;
    struct hfi_link calls;
    char *out; /* what is not yet written */
    size_t out_len, out_room;
    uint64_t appended, written; /* in bytes since the beginning */
    unsigned users;
    int64_t used_at; /* when its last call ended */
    bool reading, writing, retired, broken;
    struct hf_error why;
};

/* ---- links ------------------------------------------------------------- */

static void link_free(struct mux_link *link)
{
    struct hfi_mux_call *call;

    if (!link)
        return;
    while (!hfi_link_alone(&link->calls)) { /* only ghosts by now */
        call = hfi_container(link->calls.next, struct hfi_mux_call, place);
        hfi_link_remove(&call->place);
        hfi_free(call);
    }
    hfi_stream_close(&link->stream);
    if (link->reader)
        redisReaderFree(link->reader);
    hfi_free(link->out);
    hfi_free(link);
}

/* With the mutex held. */
static void link_put(struct mux_link *link)
{
    link->users--;
    if (!link->users && link->mux->link != link) /* mux.c (5) */
        link_free(link);
}

static void link_retire(struct mux_link *link)
{
    link->retired = true;
    if (link->mux->link == link) {
        atomic_store(&link->mux->fd, -1);
        link->mux->link = NULL;
    }
}

/* Nobody on the link will get an answer any more. */
static void link_break(struct mux_link *link, const struct hf_error *why)
{
    struct hfi_mux_call *call;
    struct hfi_link *at;

    if (link->broken)
        return;
    link->broken = true;
    link->why = *why;
    link_retire(link);
    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_mux_call, place);
        if (call->ghost)
            continue;
        call->done = true;
        call->st = call->begin < link->written ? HF_UNCERTAIN : HF_UNAVAILABLE;
        pthread_cond_signal(&call->cond);
    }
}

static void link_break_errno(struct mux_link *link, const char *what, int why)
{
    struct hf_error err;

    if (why)
        hfi_fail_errno(&err, HF_UNCERTAIN, why, "%s", what);
    else
        hfi_fail(&err, HF_UNCERTAIN, "%s", what);
    link_break(link, &err);
}

/* ---- reading and writing ----------------------------------------------- */

/* The next reply belongs to the first call.  mux.c (1) */
static bool link_deliver(struct mux_link *link, redisReply *reply)
{
    struct hfi_mux_call *call;

    if (hfi_link_alone(&link->calls)) {
        freeReplyObject(reply);
        return false;
    }
    call = hfi_container(link->calls.next, struct hfi_mux_call, place);
    if (call->ghost)
        freeReplyObject(reply);
    else
        call->replies[call->got] = reply;
    if (++call->got < call->want)
        return true;
    hfi_link_remove(&call->place);
    if (call->ghost) {
        hfi_free(call);
        return true;
    }
    call->done = true;
    call->st = HF_OK;
    pthread_cond_signal(&call->cond);
    return true;
}

static void link_parse(struct mux_link *link, const char *buf, size_t len)
{
    redisReply *reply;

    if (!hfi_resp_feed(link->reader, buf, len)) {
        link_break_errno(link, "the reply is too large", 0);
        return;
    }
    for (;;) {
        if (!hfi_resp_next(link->reader, &reply)) {
            link_break_errno(link, "the reply makes no sense", 0);
            return;
        }
        if (!reply)
            return;
        if (!link_deliver(link, reply)) {
            link_break_errno(link, "a reply that nobody asked for", 0);
            return;
        }
    }
}

/* Read for all, once; false if nothing was there.  The mutex is let go
 * meanwhile. */
static bool link_read(struct mux_link *link, int64_t deadline)
{
    struct hfi_mux *mux = link->mux;
    char buf[16384];
    ssize_t got;
    int why;

    link->reading = true;
    pthread_mutex_unlock(&mux->mu);
    got = hfi_stream_read(&link->stream, buf, sizeof(buf), deadline);
    why = errno;
    pthread_mutex_lock(&mux->mu);
    link->reading = false;
    if (got > 0)
        link_parse(link, buf, (size_t)got);
    else if (got == 0)
        link_break_errno(link, "the server closed the connection", 0);
    else if (why != ETIMEDOUT && (deadline || why != EAGAIN))
        link_break_errno(link, "no answer", why);
    return got > 0;
}

/* Write all that has been appended, unless somebody is at it: that one will. */
static void link_flush(struct mux_link *link, int64_t deadline)
{
    struct hfi_mux *mux = link->mux;
    size_t len, room;
    char *out;
    bool ok;
    int why;

    if (link->writing)
        return;
    link->writing = true;
    while (link->out_len && !link->broken) {
        out = link->out;
        len = link->out_len;
        room = link->out_room;
        link->out = NULL;
        link->out_len = link->out_room = 0;
        link->written += len;
        pthread_mutex_unlock(&mux->mu);
        ok = hfi_stream_write(&link->stream, out, len, deadline);
        why = errno;
        pthread_mutex_lock(&mux->mu);
        if (!ok)
            link_break_errno(link, "cannot send", why);
        if (link->out) {
            hfi_free(out);
        } else { /* Keep the room for the next. */
            link->out = out;
            link->out_room = room;
        }
    }
    link->writing = false;
}

static bool link_append(struct mux_link *link, const char *bytes, size_t len)
{
    size_t room = link->out_room ? link->out_room : 1024;
    char *grown;

    while (room < link->out_len + len)
        room *= 2;
    if (room != link->out_room) {
        grown = hfi_realloc(link->out, room);
        if (!grown)
            return false;
        link->out = grown;
        link->out_room = room;
    }
    memcpy(link->out + link->out_len, bytes, len);
    link->out_len += len;
    link->appended += len;
    return true;
}

/* ---- connecting -------------------------------------------------------- */

hf_status hfi_mux_open(struct hfi_mux *mux, int64_t deadline,
                       struct mux_link **ret, struct hf_error *err)
{
    struct mux_link *link = hfi_alloc(sizeof(*link));
    struct hfi_endpoint to = {0};
    hf_status st;

    if (!link)
        return hfi_nomem(err);
    link->mux = mux;
    link->stream.fd = -1;
    hfi_link_init(&link->calls);
    link->reader = hfi_resp_reader();
    if (!link->reader)
        st = hfi_nomem(err);
    else
        st = mux->find(mux->arg, &to, deadline, err);
    if (!st)
        st = hfi_stream_open(&link->stream, &to, deadline, err);
    if (!st)
        st = mux->hello(mux->arg, link, deadline, err);
    if (st)
        link_free(link);
    else
        *ret = link;
    /* Whatever happened, nothing of the caller's was sent. */
    return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
}

hf_status hfi_mux_exchange(struct mux_link *link, const char *bytes, size_t len,
                           redisReply **reply, int64_t deadline,
                           struct hf_error *err)
{
    char buf[4096];
    ssize_t got;

    if (!hfi_stream_write(&link->stream, bytes, len, deadline))
        return hfi_fail_errno(err, HF_UNAVAILABLE, errno, "cannot send");
    for (;;) {
        if (!hfi_resp_next(link->reader, reply))
            return hfi_fail(err, HF_PROTOCOL, "the reply makes no sense");
        if (*reply)
            return HF_OK;
        got = hfi_stream_read(&link->stream, buf, sizeof(buf), deadline);
        if (got == 0)
            return hfi_fail(err, HF_UNAVAILABLE,
                            "the server closed the connection");
        if (got < 0)
            return hfi_fail_errno(err, HF_UNAVAILABLE, errno, "no answer");
        if (!hfi_resp_feed(link->reader, buf, (size_t)got))
            return hfi_fail(err, HF_PROTOCOL, "the reply is too large");
    }
}

int hfi_mux_fd(const struct mux_link *link)
{
    return link->stream.fd;
}

hf_status hfi_mux_hear(struct mux_link *link, redisReply **reply)
{
    char buf[4096];
    ssize_t got;

    for (;;) {
        if (!hfi_resp_next(link->reader, reply))
            return HF_UNAVAILABLE;
        if (*reply)
            return HF_OK;
        got = hfi_stream_read(&link->stream, buf, sizeof(buf), 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return HF_OK;
        if (got <= 0 || !hfi_resp_feed(link->reader, buf, (size_t)got))
            return HF_UNAVAILABLE;
    }
}

void hfi_mux_close(struct mux_link *link)
{
    link_free(link);
}

/* Twice as long each time, and not all clients at once. */
static int64_t mux_down_ms(struct hfi_mux *mux)
{
    uint32_t chance;

    mux->down_ms = mux->down_ms ? mux->down_ms * 2 : MUX_DOWN_MS;
    if (mux->down_ms > MUX_DOWN_MS_MAX)
        mux->down_ms = MUX_DOWN_MS_MAX;
    hfi_random(&chance, sizeof(chance));
    return mux->down_ms / 2 + chance % (uint32_t)(mux->down_ms / 2 + 1);
}

/* What this process lacks says nothing about the server. */
static bool mux_is_our_fault(int sys_errno)
{
    return sys_errno == EMFILE || sys_errno == ENFILE || sys_errno == ENOBUFS ||
           sys_errno == ENOMEM;
}

/* Connect for all who wait for it.  With the mutex held, let go meanwhile. */
static hf_status mux_connect(struct hfi_mux *mux, int64_t deadline,
                             struct hf_error *err)
{
    struct mux_link *link = NULL;
    struct hf_error why = {0};
    hf_status st;

    mux->connecting = true;
    pthread_mutex_unlock(&mux->mu);
    st = hfi_mux_open(mux, deadline, &link, &why);
    pthread_mutex_lock(&mux->mu);
    mux->connecting = false;
    pthread_cond_broadcast(&mux->connected);
    if (!st) {
        mux->link = link;
        mux->down_ms = 0;
        atomic_store(&mux->fd, link->stream.fd);
        return HF_OK;
    }
    mux->down = why;
    mux->down.status = st;
    if (!mux_is_our_fault(why.sys_errno))
        mux->down_until = hfi_now() + mux_down_ms(mux);
    if (err)
        *err = mux->down;
    return st;
}

/* A server may have closed the connection while nobody used it.  To find that out
 * by a call would leave the call in doubt. */
static void mux_drop_stale(struct hfi_mux *mux)
{
    struct mux_link *link = mux->link;

    if (!link || link->users || hfi_now() - link->used_at < MUX_IDLE_MS ||
        !hfi_link_alone(&link->calls) || !hfi_stream_is_stale(&link->stream))
        return;
    link_retire(link);
    link_free(link);
}

/* The current link, with one more user. */
static hf_status mux_get(struct hfi_mux *mux, int64_t deadline,
                         struct mux_link **ret, struct hf_error *err)
{
    struct timespec ts;
    hf_status st;

    mux_drop_stale(mux);
    while (!mux->link) {
        if (mux->connecting) {
            hfi_monotonic(deadline, &ts);
            if (pthread_cond_clockwait(&mux->connected, &mux->mu,
                                       CLOCK_MONOTONIC, &ts))
                return hfi_fail(err, HF_UNAVAILABLE,
                                "still connecting at the deadline");
            continue;
        }
        if (hfi_now() < mux->down_until) {
            if (err)
                *err = mux->down;
            return mux->down.status;
        }
        st = mux_connect(mux, deadline, err);
        if (st)
            return st;
    }
    mux->link->users++;
    *ret = mux->link;
    return HF_OK;
}

/* ---- calls ------------------------------------------------------------- */

/* Leave a ghost in the place of a call.  mux.c (4) */
static bool call_haunt(struct mux_link *link, struct hfi_mux_call *call)
{
    struct hfi_mux_call *ghost = hfi_alloc(sizeof(*ghost));

    if (!ghost) {
        link_break_errno(link, "out of memory", 0);
        return false;
    }
    *ghost = *call;
    ghost->ghost = true;
    ghost->replies = NULL;
    ghost->left_at = hfi_now();
    ghost->place.prev->next = &ghost->place;
    ghost->place.next->prev = &ghost->place;
    hfi_link_init(&call->place);
    return true;
}

/* The deadline passed. */
static hf_status call_give_up(struct mux_link *link, struct hfi_mux_call *call)
{
    link_retire(link);
    return call_haunt(link, call) ? HF_UNCERTAIN : call->st;
}

/* Wait for the replies, reading for all when nobody does. */
static hf_status call_wait(struct mux_link *link, struct hfi_mux_call *call,
                           int64_t deadline)
{
    struct timespec ts;
    bool set = false;

    call->waiting = true;
    while (!call->done) {
        if (!hfi_left_ms(deadline))
            return call_give_up(link, call);
        if (!link->reading) {
            link_read(link, deadline);
            continue;
        }
        if (!set)
            hfi_monotonic(deadline, &ts);
        set = true;
        pthread_cond_clockwait(&call->cond, &link->mux->mu, CLOCK_MONOTONIC,
                               &ts);
    }
    return call->st;
}

/* mux.c (3) */
static void link_pass_reading(struct mux_link *link)
{
    struct hfi_link *at;
    struct hfi_mux_call *call;

    if (link->reading)
        return;
    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_mux_call, place);
        if (call->ghost || !call->waiting)
            continue; /* Its caller has not come for it yet. */
        pthread_cond_signal(&call->cond);
        return;
    }
}

hf_status hfi_mux_begin(struct hfi_mux *mux, struct hfi_mux_call *call,
                        const char *bytes, size_t len, int n,
                        redisReply **replies, int64_t deadline,
                        struct hf_error *err)
{
    struct mux_link *link = NULL;
    hf_status st;

    *call = (struct hfi_mux_call){
        .cond = PTHREAD_COND_INITIALIZER, .want = n, .replies = replies};
    hfi_link_init(&call->place);
    pthread_mutex_lock(&mux->mu);
    st = mux_get(mux, deadline, &link, err);
    if (!st) {
        call->begin = link->appended;
        if (!link_append(link, bytes, len)) {
            link_put(link);
            st = hfi_nomem(err);
        }
    }
    if (!st) {
        call->link = link;
        hfi_link_append(&link->calls, &call->place);
        link_flush(link, deadline);
    }
    pthread_mutex_unlock(&mux->mu);
    return st;
}

hf_status hfi_mux_finish(struct hfi_mux_call *call, int64_t deadline,
                         struct hf_error *err)
{
    struct mux_link *link = call->link;
    struct hfi_mux *mux = link->mux;
    hf_status st;

    pthread_mutex_lock(&mux->mu);
    st = call_wait(link, call, deadline);
    hfi_link_remove(&call->place);
    link_pass_reading(link);
    link->used_at = hfi_now();
    if (st) {
        if (link->broken && err)
            *err = link->why;
        else
            hfi_fail(err, st, "no answer in time");
        while (call->got > 0)
            freeReplyObject(call->replies[--call->got]);
    }
    link_put(link);
    pthread_mutex_unlock(&mux->mu);
    return st;
}

hf_status hfi_mux_call(struct hfi_mux *mux, const char *bytes, size_t len,
                       int n, redisReply **replies, int64_t deadline,
                       struct hf_error *err)
{
    struct hfi_mux_call call;
    hf_status st =
        hfi_mux_begin(mux, &call, bytes, len, n, replies, deadline, err);

    return st ? st : hfi_mux_finish(&call, deadline, err);
}

bool hfi_mux_advance(struct hfi_mux_call *call)
{
    struct mux_link *link = call->link;
    bool done;

    pthread_mutex_lock(&link->mux->mu);
    while (!call->done && !link->reading && link_read(link, 0))
        continue;
    done = call->done;
    pthread_mutex_unlock(&link->mux->mu);
    return done;
}

int hfi_mux_call_fd(const struct hfi_mux_call *call)
{
    return call->link->stream.fd;
}

void hfi_mux_abandon(struct hfi_mux_call *call)
{
    struct mux_link *link = call->link;
    struct hfi_mux *mux = link->mux;

    pthread_mutex_lock(&mux->mu);
    if (!call->done)
        call_haunt(link, call);
    hfi_link_remove(&call->place);
    while (call->got > 0)
        freeReplyObject(call->replies[--call->got]);
    link->used_at = hfi_now();
    link_put(link);
    pthread_mutex_unlock(&mux->mu);
}

/* Since when the link owes the answer of an abandoned call; 0 if it does not. */
static int64_t link_owes_since(struct mux_link *link)
{
    struct hfi_mux_call *call;
    struct hfi_link *at;

    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_mux_call, place);
        if (call->ghost)
            return call->left_at;
    }
    return 0;
}

int64_t hfi_mux_owed_ms(struct hfi_mux *mux)
{
    struct mux_link *link;
    int64_t since = 0, ms = -1;

    pthread_mutex_lock(&mux->mu);
    link = mux->link;
    if (link) {
        link->users++;
        while (link_owes_since(link) && !link->broken && !link->reading &&
               link_read(link, 0))
            continue;
        since = link_owes_since(link);
        if (!link->broken)
            ms = since ? hfi_now() - since + 1 : 0;
        link_put(link);
    }
    pthread_mutex_unlock(&mux->mu);
    return ms;
}

bool hfi_mux_is_up(struct hfi_mux *mux)
{
    bool up;

    pthread_mutex_lock(&mux->mu);
    up = mux->link != NULL;
    pthread_mutex_unlock(&mux->mu);
    return up;
}

void hfi_mux_retire(struct hfi_mux *mux)
{
    struct mux_link *link;

    pthread_mutex_lock(&mux->mu);
    link = mux->link;
    if (link) {
        link->users++;
        link_retire(link);
        link_put(link);
    }
    pthread_mutex_unlock(&mux->mu);
}

void hfi_mux_init(struct hfi_mux *mux, hfi_mux_find *find, hfi_mux_hello *hello,
                  void *arg)
{
    *mux = (struct hfi_mux){.find = find, .hello = hello, .arg = arg};
    atomic_init(&mux->fd, -1);
    pthread_mutex_init(&mux->mu, NULL);
    pthread_cond_init(&mux->connected, NULL);
}

void hfi_mux_forget(struct hfi_mux *mux)
{
    int fd = atomic_exchange(&mux->fd, -1);

    if (fd >= 0)
        close(fd);
}

void hfi_mux_fini(struct hfi_mux *mux)
{
    link_free(mux->link);
    pthread_cond_destroy(&mux->connected);
    pthread_mutex_destroy(&mux->mu);
}
