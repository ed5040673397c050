/* SPDX-License-Identifier: MIT
 *
 * h2grpc.c - gRPC calls by many threads on one connection; see h2grpc.h.
 *
 * INVARIANTS
 *  (1) At most one thread reads and at most one writes, each without the mutex;
 *      everything else that touches a link is done with it.
 *  (2) While a call waits and nobody reads, one of the waiting is awake: who
 *      stops reading wakes another.
 *  (3) Who stops writing has seen that nothing was left to be written.
 *  (4) A link is freed when it is not the current one and nobody is on it.
 */
#include "h2grpc.h"

#include <errno.h>
#include <unistd.h>

#include "../env.h"
#include "../mem.h"
#include "h2link.h"

#include "../banned.h"

/* How long after a failed connect the next may be tried: at first, and at most
 * after failing again and again. */
#define H2_DOWN_MS     50
#define H2_DOWN_MS_MAX 1000

/* How long one endpoint may take to greet while there are others to be asked. */
#define H2_PROMPT_MS 400

/* How long the keeper may be kept by a connection that takes nothing. */
#define H2_OWN_WRITE_MS 50

/* ---- links ------------------------------------------------------------- */

/* With the mutex held, as all of these. */
static void link_put(struct h2_link *link)
{
    link->users--;
    if (!link->users && link->h2->link != link) /* h2grpc.c (4) */
        h2_link_free(link);
}

/* New calls go elsewhere. */
static void link_leave(struct h2_link *link)
{
    struct hfi_h2 *h2 = link->h2;

    link->retired = true;
    if (h2->link != link)
        return;
    atomic_store(&h2->fd, -1);
    h2->link = NULL;
    h2->next = (link->end + 1) % h2->nends;
}

static void link_flush(struct h2_link *link, int64_t deadline)
{
    struct hfi_h2 *h2 = link->h2;
    size_t len, room;
    char *out;
    bool ok;
    int why;

    if (link->writing)
        return;
    link->writing = true;
    while (h2_link_collect(link) && link->out_len) { /* h2grpc.c (3) */
        out = link->out;
        len = link->out_len;
        room = link->out_room;
        link->out = NULL;
        link->out_len = link->out_room = 0;
        pthread_mutex_unlock(&h2->mu);
        ok = hfi_stream_write(&link->stream, out, len, deadline);
        why = errno;
        pthread_mutex_lock(&h2->mu);
        if (!ok)
            h2_link_break(link, "cannot send", why);
        if (link->out) {
            hfi_free(out);
        } else { /* Keep the room for the next. */
            link->out = out;
            link->out_room = room;
        }
    }
    link->writing = false;
    if (link->broken)
        link_leave(link);
}

/* Read for all, once. */
static void link_read(struct h2_link *link, int64_t deadline)
{
    struct hfi_h2 *h2 = link->h2;
    char buf[16384];
    ssize_t got;
    int why;

    link->reading = true;
    pthread_mutex_unlock(&h2->mu);
    got = hfi_stream_read(&link->stream, buf, sizeof(buf), deadline);
    why = errno;
    pthread_mutex_lock(&h2->mu);
    link->reading = false;
    if (got > 0) {
        if (h2_link_feed(link, buf, (size_t)got))
            link_flush(link, deadline);
    } else if (got == 0) {
        h2_link_break(link, "the server closed the connection", 0);
    } else if (why != ETIMEDOUT) {
        h2_link_break(link, "no answer", why);
    }
    if (link->broken || link->retired)
        link_leave(link);
}

/* h2grpc.c (2) */
static void link_pass_reading(struct h2_link *link)
{
    struct hfi_h2_call *call;

    if (link->reading || hfi_link_alone(&link->calls))
        return;
    call = hfi_container(link->calls.next, struct hfi_h2_call, link);
    pthread_cond_signal(&call->cond);
}

/* ---- connecting -------------------------------------------------------- */

/* Each endpoint in turn, from the next one on: first those that answer at once,
 * since one that is stopped must not use up the time of the others; then all of
 * them again, sharing what time is left. */
static hf_status h2_find(struct hfi_h2 *h2, size_t first, int64_t deadline,
                         struct h2_link **ret, struct hf_error *err)
{
    hf_status st = HF_UNAVAILABLE;
    size_t i, end, rounds = h2->nends > 1 ? 2 : 1;
    char name[300];
    int64_t now, limit;

    for (i = 0; i < rounds * h2->nends; i++) {
        end = (first + i) % h2->nends;
        now = hfi_now();
        limit = now + (deadline - now) / (int64_t)(rounds * h2->nends - i);
        if (i < (rounds - 1) * h2->nends && limit > now + H2_PROMPT_MS)
            limit = now + H2_PROMPT_MS;
        st = h2_link_open(h2, end, limit, ret, err);
        if (!st)
            return HF_OK;
        hfi_endpoint_name(&h2->ends[end], name, sizeof(name));
        hfi_wrap(err, st, "%s", name);
    }
    return st;
}

/* Twice as long each time, and not all clients at once. */
static int64_t h2_down_ms(struct hfi_h2 *h2)
{
    uint32_t chance;

    h2->down_ms = h2->down_ms ? h2->down_ms * 2 : H2_DOWN_MS;
    if (h2->down_ms > H2_DOWN_MS_MAX)
        h2->down_ms = H2_DOWN_MS_MAX;
    hfi_random(&chance, sizeof(chance));
    return h2->down_ms / 2 + chance % (uint32_t)(h2->down_ms / 2 + 1);
}

/* Connect for all who wait for it. */
static hf_status h2_connect(struct hfi_h2 *h2, int64_t deadline,
                            struct hf_error *err)
{
    struct h2_link *link = NULL;
    struct hf_error why = {0};
    size_t first = h2->next;
    hf_status st;

    h2->connecting = true;
    pthread_mutex_unlock(&h2->mu);
    st = h2_find(h2, first, deadline, &link, &why);
    pthread_mutex_lock(&h2->mu);
    h2->connecting = false;
    pthread_cond_broadcast(&h2->connected);
    if (!st) {
        h2->link = link;
        h2->down_ms = 0;
        atomic_store(&h2->fd, link->stream.fd);
        return HF_OK;
    }
    h2->down = why;
    h2->down.status = st;
    h2->down_until = hfi_now() + h2_down_ms(h2);
    if (err)
        *err = h2->down;
    return st;
}

/* The current link, with one more user. */
static hf_status h2_get(struct hfi_h2 *h2, int64_t deadline,
                        struct h2_link **ret, struct hf_error *err)
{
    struct timespec ts;
    hf_status st;

    while (!h2->link) {
        if (h2->connecting) {
            hfi_monotonic(deadline, &ts);
            if (pthread_cond_clockwait(&h2->connected, &h2->mu, CLOCK_MONOTONIC,
                                       &ts))
                return hfi_fail(err, HF_UNAVAILABLE,
                                "still connecting at the deadline");
            continue;
        }
        if (hfi_now() < h2->down_until) {
            if (err)
                *err = h2->down;
            return h2->down.status;
        }
        st = h2_connect(h2, deadline, err);
        if (st)
            return st;
    }
    h2->link->users++;
    *ret = h2->link;
    return HF_OK;
}

/* ---- calls ------------------------------------------------------------- */

/* Wait for the answer, reading for all when nobody does. */
static void call_wait(struct h2_link *link, struct hfi_h2_call *call,
                      int64_t sent_at, int64_t deadline)
{
    struct timespec ts;
    bool set = false;

    while (!call->done) {
        if (!hfi_left_ms(deadline)) {
            call->st = call->sent ? HF_UNCERTAIN : HF_UNAVAILABLE;
            h2_link_abandon(link, call);
            if (link->heard < sent_at || link->h2->nends > 1)
                link_leave(link);
            else
                link_flush(link, deadline + H2_OWN_WRITE_MS);
            return;
        }
        if (!link->reading) {
            link_read(link, deadline);
            continue;
        }
        if (!set)
            hfi_monotonic(deadline, &ts);
        set = true;
        pthread_cond_clockwait(&call->cond, &link->h2->mu, CLOCK_MONOTONIC,
                               &ts);
    }
}

/* An idle connection may have been closed long ago: see before it is used, when
 * a failure still means that nothing was sent. */
static void link_look(struct h2_link *link)
{
    char buf[4096];
    ssize_t got;

    while (!link->broken && !link->reading && !link->writing &&
           hfi_link_alone(&link->calls)) {
        got = hfi_stream_read(&link->stream, buf, sizeof(buf), 0);
        if (got > 0)
            h2_link_feed(link, buf, (size_t)got);
        else if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        else
            h2_link_break(link, "the server closed the connection", 0);
        if (link->broken || link->retired) {
            link_leave(link);
            return;
        }
    }
}

/* A link that can be used now. */
static hf_status h2_get_live(struct hfi_h2 *h2, int64_t deadline,
                             struct h2_link **ret, struct hf_error *err)
{
    struct h2_link *link = NULL;
    hf_status st;

    for (;;) {
        st = h2_get(h2, deadline, &link, err);
        if (st)
            return st;
        link_look(link);
        if (!link->retired)
            break;
        link_put(link);
    }
    *ret = link;
    return HF_OK;
}

/* Why a call has no answer. */
static hf_status call_fail(const struct h2_link *link,
                           const struct hfi_h2_call *call, struct hf_error *err)
{
    if (link->broken)
        return hfi_fail(err, call->st, "%s: %s", link->authority,
                        link->why.text);
    if (call->message[0])
        return hfi_fail(err, call->st, "%s: %s", link->authority,
                        call->message);
    return hfi_fail(err, call->st,
                    call->done ? "%s: the request was refused"
                               : "%s: no answer in time",
                    link->authority);
}

hf_status hfi_h2_call(struct hfi_h2 *h2, struct hfi_h2_call *calls, size_t n,
                      const char *token, int64_t deadline, struct hf_error *err)
{
    struct h2_link *link = NULL;
    hf_status st, one = HF_OK;
    bool taken = false;
    int64_t sent_at;
    size_t i;

    for (i = 0; i < n; i++) {
        hfi_link_init(&calls[i].link);
        pthread_cond_init(&calls[i].cond, NULL);
        h2_prefix(calls[i].body, calls[i].len);
        calls[i].st = HF_UNAVAILABLE;
    }
    pthread_mutex_lock(&h2->mu);
    st = h2_get_live(h2, deadline, &link, err);
    if (st)
        goto out;
    sent_at = hfi_now();
    for (i = 0; i < n && !one; i++)
        one = h2_link_submit(link, &calls[i], token, err);
    if (one) { /* It has used up its streams. */
        calls[i - 1].done = true;
        link_leave(link);
    }
    link_flush(link, deadline);
    for (i = 0; i < n; i++) {
        if (!hfi_link_alone(&calls[i].link) || calls[i].done)
            call_wait(link, &calls[i], sent_at, deadline);
        taken = taken || calls[i].st != HF_UNAVAILABLE;
        if (calls[i].st && !st)
            st = one ? calls[i].st : call_fail(link, &calls[i], err);
    }
    if (st && taken)
        st = hfi_restate(err, HF_UNCERTAIN);
    link_pass_reading(link);
    link_put(link);
out:
    pthread_mutex_unlock(&h2->mu);
    for (i = 0; i < n; i++)
        pthread_cond_destroy(&calls[i].cond);
    return st;
}

void hfi_h2_done(struct hfi_h2_call *call)
{
    hfi_free(call->body);
    hfi_free(call->answer);
    call->body = call->answer = NULL;
}

void hfi_h2_retire(struct hfi_h2 *h2)
{
    struct h2_link *link;

    pthread_mutex_lock(&h2->mu);
    link = h2->link;
    if (link) {
        link->users++;
        link_leave(link);
        link_put(link);
    }
    pthread_mutex_unlock(&h2->mu);
}

void hfi_h2_init(struct hfi_h2 *h2, const struct hfi_endpoint *ends, size_t n)
{
    *h2 = (struct hfi_h2){.ends = ends, .nends = n};
    atomic_init(&h2->fd, -1);
    pthread_mutex_init(&h2->mu, NULL);
    pthread_cond_init(&h2->connected, NULL);
}

void hfi_h2_forget(struct hfi_h2 *h2)
{
    int fd = atomic_exchange(&h2->fd, -1);

    if (fd >= 0)
        close(fd);
}

void hfi_h2_fini(struct hfi_h2 *h2)
{
    h2_link_free(h2->link);
    pthread_cond_destroy(&h2->connected);
    pthread_mutex_destroy(&h2->mu);
}

/* ---- a stream of one's own --------------------------------------------- */

/* Write what there is, at once or never: its reader must not be kept. */
static hf_status own_flush(struct h2_link *link)
{
    if (!h2_link_collect(link))
        return HF_UNAVAILABLE;
    if (link->out_len &&
        !hfi_stream_write(&link->stream, link->out, link->out_len,
                          hfi_now() + H2_OWN_WRITE_MS)) {
        h2_link_break(link, "cannot send", errno);
        return HF_UNAVAILABLE;
    }
    link->out_len = 0;
    return HF_OK;
}

hf_status hfi_h2_open(struct hfi_h2 *h2, const char *path, const char *token,
                      void (*heard)(void *, const void *, size_t), void *arg,
                      int64_t deadline, struct h2_link **ret,
                      struct hf_error *err)
{
    struct h2_link *link = NULL;
    size_t first;
    hf_status st;

    pthread_mutex_lock(&h2->mu);
    first = h2->link ? h2->link->end : h2->next;
    pthread_mutex_unlock(&h2->mu);
    st = h2_find(h2, first, deadline, &link, err);
    if (st)
        return st;
    link->own.path = path;
    link->own.heard = heard;
    link->own.arg = arg;
    pthread_cond_init(&link->own.cond, NULL);
    st = h2_link_submit(link, &link->own, token, err);
    if (!st)
        st = own_flush(link);
    if (st)
        hfi_h2_close(link);
    else
        *ret = link;
    return st;
}

hf_status hfi_h2_send(struct h2_link *link, const void *message, size_t len)
{
    struct hfi_h2_call *own = &link->own;
    size_t left = own->len - own->at;
    unsigned char *body;

    if (link->broken || own->done)
        return HF_UNAVAILABLE;
    body = hfi_alloc(left + HFI_GRPC_PREFIX + len);
    if (!body)
        return HF_NOMEM;
    if (left)
        memcpy(body, own->body + own->at, left);
    memcpy(body + left + HFI_GRPC_PREFIX, message, len);
    h2_prefix(body + left, HFI_GRPC_PREFIX + len);
    hfi_free(own->body);
    own->body = body;
    own->at = 0;
    own->len = left + HFI_GRPC_PREFIX + len;
    h2_link_resume(link, own);
    return own_flush(link);
}

hf_status hfi_h2_hear(struct h2_link *link)
{
    char buf[16384];
    ssize_t got;

    for (;;) {
        got = hfi_stream_read(&link->stream, buf, sizeof(buf), 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return link->own.done ? HF_UNAVAILABLE : own_flush(link);
        if (got <= 0 || !h2_link_feed(link, buf, (size_t)got) ||
            link->own.done || link->retired)
            return HF_UNAVAILABLE;
    }
}

bool hfi_h2_ping(struct h2_link *link)
{
    if (link->pinged)
        return false;
    h2_link_ping(link);
    return own_flush(link) == HF_OK;
}

int hfi_h2_fd(const struct h2_link *link)
{
    return link->stream.fd;
}

void hfi_h2_close(struct h2_link *link)
{
    if (!link)
        return;
    if (link->own.path)
        pthread_cond_destroy(&link->own.cond);
    h2_link_free(link);
}
