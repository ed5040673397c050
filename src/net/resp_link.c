/* SPDX-License-Identifier: MIT
 *
 * resp_link.c - calls over a shared connection that speaks RESP; see
 * resp_link.h.  How threads share it is in shared.c, and what happens on the
 * connection itself in resp_wire.c.
 *
 * INVARIANTS
 *  (1) A call leaves its place only when its replies are there or the link is
 *      broken; one that gives up leaves an abandoned call that swallows them.
 *  (2) A call that gives up retires its link for the link's silence and for
 *      nothing else: answers are owed and nothing has arrived for a second, and
 *      for twice as long as the slowest answer took of late; or what was sent
 *      has not even reached the server's machine.  Where calls keep the server
 *      waiting (WAIT) each that gives up does.
 *  (3) Once the server is known to be another, no answer of the one before
 *      counts, also to what was asked in time, on whatever link: calls that
 *      others have given up on may have retired the link long before.
 */
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/mutant.h"
#include "resp_wire.h"

#include "base/banned.h"

/* A connection that was not used for so long is looked at first. */
#define MUX_IDLE_MS 10

/* resp_link.c (2) */
#define MUX_SILENT_MS 1000

/* One that was made and never answered is not used for so long, where there is
 * another. */
#define MUX_UNHEARD_MS 10000

/* ---- connecting -------------------------------------------------------- */

hf_status hfi_mux_open(struct hfi_mux *mux, int64_t deadline,
                       struct mux_link **ret, struct hf_error *err)
{
    struct mux_link *link = mux_link_new(mux);
    hf_status st;

    if (!link)
        return hfi_nomem(err);
    st = mux->find(mux->arg, &link->to, deadline, err);
    link->base.spin_us = link->to.spin_us;
    if (!st)
        st = hfi_stream_open(&link->base.stream, &link->to, deadline, err);
    if (!st)
        st = mux->handshake(mux->arg, link, deadline, err);
    if (!st && hfi_resp_has_part(link->reader)) /* resp_wire.c (2) */
        st = hfi_fail(err, HF_PROTOCOL, "a reply that nobody asked for");
    if (st)
        mux_link_free(link);
    else
        *ret = link;
    /* Whatever happened, nothing of the caller's was sent. */
    return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
}

static hf_status mux_open(struct hfi_shared *shared, int64_t deadline,
                          struct hfi_shared_link **ret, struct hf_error *err)
{
    struct mux_link *link = NULL;
    hf_status st = hfi_mux_open(hfi_container(shared, struct hfi_mux, shared),
                                deadline, &link, err);

    if (!st)
        *ret = &link->base;
    return st;
}

static void mux_free(struct hfi_shared_link *base)
{
    mux_link_free((struct mux_link *)base);
}

static void mux_check_idle(struct hfi_shared_link *base)
{
    struct mux_link *link = (struct mux_link *)base;

    if (hfi_now() - link->used_at >= MUX_IDLE_MS &&
        hfi_stream_is_stale(&base->stream))
        hfi_shared_retire(base);
}

static bool mux_was_sent(const struct hfi_shared_link *base,
                         const struct hfi_shared_call *call)
{
    return ((const struct hfi_mux_call *)call)->begin < base->written;
}

static const struct hfi_protocol mux_protocol = {
    .open = mux_open,
    .free = mux_free,
    .check_idle = mux_check_idle,
    .feed = mux_link_feed,
    .was_sent = mux_was_sent,
    .end = mux_link_end,
    .fail_fast = true,
};

/* ---- calls ------------------------------------------------------------- */

/* Leave an abandoned call in the place of a call.  resp_link.c (1) */
static bool call_abandon(struct mux_link *link, struct hfi_mux_call *call)
{
    struct hfi_mux_call *abandoned = hfi_alloc(sizeof(*abandoned));
    struct hfi_link *place;

    if (!abandoned) {
        hfi_shared_break(&link->base, "out of memory", 0);
        return false;
    }
    *abandoned = *call;
    abandoned->base.abandoned = true;
    abandoned->replies = NULL;
    abandoned->left_at = hfi_now();
    place = &abandoned->base.in_calls;
    place->prev->next = place;
    place->next->prev = place;
    hfi_link_init(&call->base.in_calls);
    return true;
}

/* resp_link.c (2) */
static bool link_is_silent(const struct mux_link *link)
{
    const struct hfi_mux_call *first = hfi_container(
        link->base.calls.next, struct hfi_mux_call, base.in_calls);
    int64_t heard_at = link->base.heard_at;
    int64_t silent =
        hfi_now() - (first->begun_at > heard_at ? first->begun_at : heard_at);

    return (silent >= MUX_SILENT_MS && silent >= 2 * link->slow_ms) ||
           hfi_stream_is_unheard(&link->base.stream);
}

/* The deadline passed. */
static hf_status call_give_up(struct mux_link *link, struct hfi_mux_call *call)
{
    if (HFI_MUTANT(timed_out_connection_reused))
        return HF_UNCERTAIN;
    if (!link->base.heard_at)
        atomic_store(&link->mux->unheard_until, hfi_now() + MUX_UNHEARD_MS);
    if (link->mux->blocks || link_is_silent(link))
        hfi_shared_retire(&link->base);
    return call_abandon(link, call) ? HF_UNCERTAIN : call->base.st;
}

/* The caller has done with it.  Replies that came are freed unless it is given
 * them. */
static void call_leave(struct hfi_mux_call *call, bool given)
{
    struct mux_link *link = call->link;

    hfi_link_remove(&call->base.in_calls);
    while (!given && call->got > 0)
        freeReplyObject(call->replies[--call->got]);
    hfi_shared_pass_reading(&link->base);
    link->used_at = hfi_now();
    hfi_shared_put(&link->base);
}

/* With the mutex held, on a link of which it is a user: append the request, to
 * be sent; false if there is no memory. */
static bool call_append(struct hfi_shared_link *link, struct hfi_mux_call *call,
                        const char *bytes, size_t len, int n,
                        redisReply **replies)
{
    *call = (struct hfi_mux_call){.want = n,
                                  .replies = replies,
                                  .begin = link->written + link->out.len,
                                  .link = (struct mux_link *)link};
    hfi_link_init(&call->base.in_calls);
    if (!hfi_sendbuf_add(&link->out, bytes, len))
        return false;
    call->begun_at = hfi_now();
    hfi_shared_join(link, &call->base);
    hfi_link_append(&link->calls, &call->base.in_calls);
    if (link->stream.traffic)
        hfi_traffic_add(&link->stream.traffic->requests, (uint64_t)n);
    return true;
}

hf_status hfi_mux_begin(struct hfi_mux *mux, struct hfi_mux_call *call,
                        const char *bytes, size_t len, int n,
                        redisReply **replies, int64_t deadline,
                        struct hf_error *err)
{
    struct hfi_shared_link *link = NULL;
    hf_status st;
    bool busy;

    pthread_mutex_lock(&mux->shared.mu);
    st = hfi_shared_get(&mux->shared, deadline, &link, err);
    if (!st) {
        busy = hfi_shared_is_busy(link);
        if (call_append(link, call, bytes, len, n, replies)) {
            hfi_shared_send(link, busy, deadline);
        } else {
            hfi_shared_put(link);
            st = hfi_nomem(err);
        }
    }
    pthread_mutex_unlock(&mux->shared.mu);
    return st;
}

size_t hfi_mux_begin_several(struct hfi_mux *mux, const char *bytes,
                             const struct hfi_mux_start *starts, size_t n,
                             int64_t deadline)
{
    struct hfi_shared_link *link = NULL;
    size_t i = 0;

    pthread_mutex_lock(&mux->shared.mu);
    if (!hfi_shared_get(&mux->shared, deadline, &link, NULL)) {
        for (; i < n && call_append(link, starts[i].call, bytes, starts[i].len,
                                    1, starts[i].reply);
             i++) {
            bytes += starts[i].len;
            link->users++;
        }
        hfi_shared_flush(link, deadline);
        hfi_shared_put(link); /* Each call is a user of its own. */
    }
    pthread_mutex_unlock(&mux->shared.mu);
    return i;
}

hf_status hfi_mux_finish(struct hfi_mux_call *call, int64_t deadline,
                         struct hf_error *err)
{
    struct mux_link *link = call->link;
    struct hfi_shared *shared = link->base.shared;
    hf_status st;

    pthread_mutex_lock(&shared->mu);
    st = hfi_shared_wait(&link->base, &call->base, deadline)
             ? call->base.st
             : call_give_up(link, call);
    if (st && link->base.broken && err)
        *err = link->base.why;
    else if (st)
        hfi_fail(err, st, "no answer in time");
    call_leave(call, !st);
    pthread_mutex_unlock(&shared->mu);
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

/* ---- several servers --------------------------------------------------- */

bool hfi_mux_advance(struct hfi_mux_call *call, bool readable)
{
    struct hfi_shared_link *link = &call->link->base;
    pthread_mutex_t *mu = &link->shared->mu;
    bool done;

    pthread_mutex_lock(mu);
    while (readable && !call->base.done && !link->reading &&
           hfi_shared_read(link, 0))
        continue;
    done = call->base.done;
    if (readable)
        hfi_shared_pass_reading(link); /* Somebody may have seen us read. */
    pthread_mutex_unlock(mu);
    return done;
}

bool hfi_mux_is_shared(const struct hfi_mux_call *call)
{
    struct hfi_shared_link *link = &call->link->base;
    bool shared;

    pthread_mutex_lock(&link->shared->mu);
    shared = link->users > 1;
    pthread_mutex_unlock(&link->shared->mu);
    return shared;
}

bool hfi_mux_await(struct hfi_mux_call *call, int64_t deadline)
{
    struct hfi_shared_link *link = &call->link->base;
    bool done;

    pthread_mutex_lock(&link->shared->mu);
    done = hfi_shared_wait(link, &call->base, deadline);
    hfi_shared_pass_reading(link);
    pthread_mutex_unlock(&link->shared->mu);
    return done;
}

int hfi_mux_call_fd(const struct hfi_mux_call *call)
{
    return call->link->base.stream.fd;
}

void hfi_mux_abandon(struct hfi_mux_call *call)
{
    struct hfi_shared *shared = call->link->base.shared;

    pthread_mutex_lock(&shared->mu);
    if (!call->base.done)
        call_abandon(call->link, call);
    call_leave(call, false);
    pthread_mutex_unlock(&shared->mu);
}

/* Since when the link owes the answer of an abandoned call; 0 if it does
 * not. */
static int64_t link_owes_since(const struct hfi_shared_link *link)
{
    const struct hfi_mux_call *call;
    const struct hfi_link *at;

    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, const struct hfi_mux_call, base.in_calls);
        if (call->base.abandoned)
            return call->left_at;
    }
    return 0;
}

int64_t hfi_mux_owed_ms(struct hfi_mux *mux)
{
    struct hfi_shared_link *link;
    int64_t since = 0, ms = -1;

    pthread_mutex_lock(&mux->shared.mu);
    link = mux->shared.link;
    if (link) {
        link->users++;
        while (link_owes_since(link) && !link->broken && !link->reading &&
               hfi_shared_read(link, 0))
            continue;
        since = link_owes_since(link);
        if (!link->broken)
            ms = since ? hfi_now() - since + 1 : 0;
        hfi_shared_pass_reading(link);
        hfi_shared_put(link);
    }
    pthread_mutex_unlock(&mux->shared.mu);
    return ms;
}

bool hfi_mux_is_up(struct hfi_mux *mux)
{
    bool up;

    pthread_mutex_lock(&mux->shared.mu);
    up = mux->shared.link != NULL;
    pthread_mutex_unlock(&mux->shared.mu);
    return up;
}

void hfi_mux_end_pause(struct hfi_mux *mux)
{
    pthread_mutex_lock(&mux->shared.mu);
    mux->shared.backoff.until = 0;
    pthread_mutex_unlock(&mux->shared.mu);
}

void hfi_mux_retire(struct hfi_mux *mux)
{
    struct hfi_mux *aside = atomic_load(&mux->aside);

    pthread_mutex_lock(&mux->shared.mu);
    hfi_shared_retire_current(&mux->shared);
    pthread_mutex_unlock(&mux->shared.mu);
    if (aside)
        hfi_mux_retire(aside);
}

bool hfi_mux_is_to(const struct mux_link *link, const struct hfi_endpoint *to)
{
    return link->to.port == to->port && !strcmp(link->to.host, to->host);
}

/* With the mutex held. */
static bool mux_is_at(const struct hfi_mux *mux, const struct hfi_endpoint *to)
{
    return mux->shared.link &&
           hfi_mux_is_to((const struct mux_link *)mux->shared.link, to);
}

bool hfi_mux_is_at(struct hfi_mux *mux, const struct hfi_endpoint *to)
{
    bool at;

    pthread_mutex_lock(&mux->shared.mu);
    at = mux_is_at(mux, to);
    pthread_mutex_unlock(&mux->shared.mu);
    return at;
}

/* What is under way there ends without an answer: one that still comes would be
 * that of a server which speaks for nobody any more.  The one who reads is
 * woken.  resp_link.c (3) */
static void mux_leave(struct hfi_shared_link *link)
{
    link->users++;
    hfi_shared_break(link, "the server was replaced by another", 0);
    shutdown(link->stream.fd, SHUT_RDWR);
    hfi_shared_put(link);
}

bool hfi_mux_move(struct hfi_mux *mux, const struct hfi_endpoint *to)
{
    struct hfi_mux *aside = atomic_load(&mux->aside);
    struct hfi_shared_link *link;
    struct hfi_link *at, *next;
    bool away = false;

    if (aside)
        hfi_mux_move(aside, to);
    pthread_mutex_lock(&mux->shared.mu);
    hfi_shared_move(&mux->shared);
    for (at = mux->shared.links.next; at != &mux->shared.links; at = next) {
        next = at->next;
        link = hfi_container(at, struct hfi_shared_link, in_links);
        if (hfi_mux_is_to((const struct mux_link *)link, to))
            continue;
        away = true;
        mux_leave(link);
    }
    pthread_mutex_unlock(&mux->shared.mu);
    return away;
}

void hfi_mux_init(struct hfi_mux *mux, hfi_mux_find *find,
                  hfi_mux_handshake *handshake, void *arg)
{
    *mux = (struct hfi_mux){.find = find, .handshake = handshake, .arg = arg};
    atomic_init(&mux->aside, NULL);
    atomic_init(&mux->unheard_until, 0);
    hfi_shared_init(&mux->shared, &mux_protocol);
}

void hfi_mux_after_fork_child(struct hfi_mux *mux)
{
    struct hfi_mux *aside = atomic_load(&mux->aside);

    hfi_shared_after_fork_child(&mux->shared);
    if (aside)
        hfi_mux_after_fork_child(aside);
}

void hfi_mux_fini(struct hfi_mux *mux)
{
    struct hfi_mux *aside = atomic_exchange(&mux->aside, NULL);

    if (aside)
        hfi_mux_fini(aside);
    hfi_free(aside);
    hfi_shared_fini(&mux->shared);
}
