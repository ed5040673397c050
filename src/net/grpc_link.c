/* SPDX-License-Identifier: MIT
 *
 * grpc_link.c - gRPC calls by many threads on one connection; see grpc_link.h.
 *
 * INVARIANTS
 *  (1) At most one thread reads and at most one writes, each without the mutex;
 *      everything else that touches a link is done with it.
 *  (2) While a call waits and nobody reads, one of the waiting is awake: who
 *      stops reading wakes another.
 *  (3) Who stops writing has seen that nothing was left to be written.
 *  (4) A link is freed when it is not the current one and nobody is on it.
 *  (5) Those whose answers have come are woken after the mutex was let go, as
 *      in resp_wire.c; whoever has ended calls does it before it goes on.
 */
#include "grpc_link.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "grpc_wire.h"

#include "base/banned.h"

/* How long one endpoint may take to greet while there are others to be
 * asked. */
#define H2_PROMPT_MS 400

/* So long a server has to answer before its silence means something. */
#define H2_SILENT_MS 250

/* ---- links ------------------------------------------------------------- */

/* With the mutex held, as all of these. */
static void link_put(struct h2_link *link)
{
    link->users--;
    if (!link->users && link->h2->link != link) /* grpc_link.c (4) */
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

/* grpc_link.c (5).  With the mutex held, which is let go meanwhile. */
static void link_wake(struct h2_link *link)
{
    struct hfi_h2_sleeper *woken[H2_WAKE_MAX];
    int i, n = link->nwoken;

    if (!n)
        return;
    memcpy(woken, link->woken, (size_t)n * sizeof(*woken));
    link->nwoken = 0;
    pthread_mutex_unlock(&link->h2->mu);
    for (i = 0; i < n; i++)
        hfi_cond_wake_one(&woken[i]->cond);
    pthread_mutex_lock(&link->h2->mu);
}

static void link_flush(struct h2_link *link, int64_t deadline)
{
    if (link->writing)
        return;
    link->writing = true;
    while (h2_link_collect(link) && link->out.len) /* grpc_link.c (3) */
        if (!hfi_sendbuf_write(&link->out, &link->stream, &link->h2->mu,
                               deadline))
            h2_link_break(link, "cannot send", errno);
    link->writing = false;
    if (link->broken) {
        link_leave(link);
        link_wake(link);
    }
}

/* Others have calls under way, so those who were just woken will soon have
 * something to send, too.  Let them, and send all of it at once. */
static void link_batch(struct h2_link *link, int64_t deadline)
{
    if (link->batching || link->writing)
        return; /* That one will send ours with its own. */
    link->batching = true;
    pthread_mutex_unlock(&link->h2->mu);
    sched_yield();
    pthread_mutex_lock(&link->h2->mu);
    link->batching = false;
    link_flush(link, deadline);
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
    link_wake(link);
}

/* grpc_link.c (2) */
static void link_pass_reading(struct h2_link *link)
{
    struct hfi_h2_call *call;
    struct hfi_link *at;

    if (link->reading)
        return;
    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_h2_call, link);
        if (!call->sleeper)
            continue; /* Its caller will see for itself. */
        hfi_cond_wake_one(&call->sleeper->cond);
        return;
    }
}

/* ---- connecting -------------------------------------------------------- */

/* Each endpoint in turn, from the next one on: first those that answer at once,
 * since one that is stopped must not use up the time of the others; then all of
 * them again, sharing what time is left. */
hf_status h2_find(struct hfi_h2 *h2, size_t first, int64_t deadline,
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

/* Connect for all who wait for it. */
static hf_status h2_connect(struct hfi_h2 *h2, int64_t deadline,
                            struct hf_error *err)
{
    struct h2_link *link = NULL;
    struct hf_error why = {0};
    size_t first = h2->next;
    int64_t began = hfi_now();
    hf_status st;

    h2->connecting = true;
    pthread_mutex_unlock(&h2->mu);
    st = h2_find(h2, first, deadline, &link, &why);
    pthread_mutex_lock(&h2->mu);
    h2->connecting = false;
    hfi_cond_wake(&h2->connected);
    if (!st) {
        h2->link = link;
        link->number = ++h2->numbers;
        hfi_backoff_done(&h2->backoff);
        atomic_store(&h2->fd, link->stream.fd);
        return HF_OK;
    }
    h2->down = why;
    h2->down.status = st;
    /* That it took longer than one in a hurry had says nothing of the
     * server. */
    if (deadline - began >= H2_PROMPT_MS || hfi_now() < deadline)
        hfi_backoff_failed(&h2->backoff);
    if (err)
        *err = h2->down;
    return st;
}

/* The current link, with one more user. */
static hf_status h2_get(struct hfi_h2 *h2, int64_t deadline,
                        struct h2_link **ret, struct hf_error *err)
{
    hf_status st;

    while (!h2->link) {
        if (h2->connecting) {
            if (!hfi_left_ms(deadline))
                return hfi_fail(err, HF_UNAVAILABLE,
                                "still connecting at the deadline");
            hfi_cond_wait(&h2->connected, &h2->mu, deadline);
            continue;
        }
        if (hfi_backoff_waits(&h2->backoff)) {
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

/* A place to sleep: one that was used before, or a new one. */
static struct hfi_h2_sleeper *h2_sleeper(struct hfi_h2 *h2)
{
    struct hfi_h2_sleeper *sleeper = h2->sleepers;

    if (sleeper) {
        h2->sleepers = sleeper->next;
        return sleeper;
    }
    sleeper = hfi_alloc(sizeof(*sleeper));
    if (sleeper)
        hfi_cond_init(&sleeper->cond);
    return sleeper;
}

/* Sleep until there is something to do for this call. */
static void call_sleep(struct h2_link *link, struct hfi_h2_call *call,
                       int64_t deadline)
{
    if (!call->sleeper)
        call->sleeper = h2_sleeper(link->h2);
    if (!call->sleeper) {
        h2_link_break(link, "out of memory", 0);
        link_leave(link);
        link_wake(link);
        return;
    }
    hfi_cond_wait(&call->sleeper->cond, &link->h2->mu, deadline);
}

/* A call that was sent at `sent_at` has no answer: is that the server's
 * fault? */
static bool link_is_silent(const struct h2_link *link, int64_t sent_at)
{
    int64_t now = hfi_now();

    if (link->h2->nends > 1 && now >= sent_at + H2_SILENT_MS)
        return true;
    return link->heard < link->asked && now >= link->asked + H2_SILENT_MS;
}

/* Wait for the answer, reading for all when nobody does. */
static void call_wait(struct h2_link *link, struct hfi_h2_call *call,
                      int64_t sent_at, int64_t deadline)
{
    while (!call->done) {
        if (!hfi_left_ms(deadline)) {
            call->st = call->sent ? HF_UNCERTAIN : HF_UNAVAILABLE;
            h2_link_abandon(link, call);
            if (link_is_silent(link, sent_at))
                link_leave(link);
            else
                link_flush(link, deadline + H2_OWN_WRITE_MS);
            return;
        }
        if (link->reading)
            call_sleep(link, call, deadline);
        else
            link_read(link, deadline);
    }
}

static void call_leave_sleeper(struct hfi_h2 *h2, struct hfi_h2_call *call)
{
    if (!call->sleeper)
        return;
    call->sleeper->next = h2->sleepers;
    h2->sleepers = call->sleeper;
    call->sleeper = NULL;
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
    bool taken = false, busy;
    int64_t sent_at;
    size_t i;

    for (i = 0; i < n; i++) {
        hfi_link_init(&calls[i].link);
        calls[i].sleeper = NULL;
        h2_prefix(calls[i].body, calls[i].len);
        calls[i].st = HF_UNAVAILABLE;
    }
    pthread_mutex_lock(&h2->mu);
    st = h2_get_live(h2, deadline, &link, err);
    if (st)
        goto out;
    sent_at = hfi_now();
    if (link->asked <= link->heard)
        link->asked = sent_at;
    busy = !hfi_link_alone(&link->calls);
    for (i = 0; i < n && !one; i++) {
        calls[i].via = link->number;
        calls[i].end = link->end;
        one = h2_link_submit(link, &calls[i], token, err);
    }
    if (one) { /* It has used up its streams. */
        calls[i - 1].done = true;
        link_leave(link);
    }
    if (busy)
        link_batch(link, deadline);
    else
        link_flush(link, deadline);
    for (i = 0; i < n; i++) {
        if (!hfi_link_alone(&calls[i].link) || calls[i].done)
            call_wait(link, &calls[i], sent_at, deadline);
        call_leave_sleeper(h2, &calls[i]);
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
    return st;
}

void hfi_h2_done(struct hfi_h2_call *call)
{
    hfi_free(call->body);
    hfi_free(call->answer);
    call->body = call->answer = NULL;
}

bool hfi_h2_goes_via(struct hfi_h2 *h2, unsigned via)
{
    bool yes;

    pthread_mutex_lock(&h2->mu);
    yes = h2->link && h2->link->number == via;
    pthread_mutex_unlock(&h2->mu);
    return yes;
}

bool hfi_h2_is_up(struct hfi_h2 *h2)
{
    bool yes;

    pthread_mutex_lock(&h2->mu);
    yes = h2->link && h2->link->heard >= h2->link->asked;
    pthread_mutex_unlock(&h2->mu);
    return yes;
}

void hfi_h2_retire(struct hfi_h2 *h2, unsigned via)
{
    struct h2_link *link;

    pthread_mutex_lock(&h2->mu);
    link = h2->link;
    if (link && link->number == via) {
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
    hfi_cond_init(&h2->connected);
}

void hfi_h2_after_fork_child(struct hfi_h2 *h2)
{
    int fd = atomic_exchange(&h2->fd, -1);

    if (fd >= 0)
        close(fd);
}

void hfi_h2_fini(struct hfi_h2 *h2)
{
    struct hfi_h2_sleeper *sleeper;

    while ((sleeper = h2->sleepers)) {
        h2->sleepers = sleeper->next;
        hfi_cond_fini(&sleeper->cond);
        hfi_free(sleeper);
    }
    h2_link_free(h2->link);
    hfi_cond_fini(&h2->connected);
    pthread_mutex_destroy(&h2->mu);
}
