/* SPDX-License-Identifier: MIT
 *
 * resp_link.c - many threads, one connection; see resp_link.h.  What happens on
 * the connection itself is in resp_wire.c.
 *
 * INVARIANTS
 *  (1) There is one current link at most, and one thread that connects it.
 *  (2) A call leaves its place only when its replies are there or the link is
 *      broken; one that gives up leaves a abandoned call that swallows them.
 *  (3) A call that waits sleeps with its wake group, and is woken there when
 *      its replies have come, when the link breaks, and when it is to read for
 *      all.
 *  (4) A call that gives up retires its link for the link's silence and for
 *      nothing else: answers are owed and nothing has arrived for a second, and
 *      for twice as long as the slowest answer took of late; or what was sent
 *      has not even reached the server's machine.  Where calls keep the server
 *      waiting (WAIT) each that gives up does.
 */

#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/mutant.h"
#include "resp_wire.h"

#include "base/banned.h"

/* A connection that was not used for so long is looked at first. */
#define MUX_IDLE_MS 10

/* While so many calls are under way, the others are given their turn so often
 * before one sleeps. */
#define MUX_BUSY_CALLERS 8
#define MUX_YIELDS       3

/* resp_link.c (4) */
#define MUX_SILENT_MS 1000

/* ---- connecting -------------------------------------------------------- */

hf_status hfi_mux_open(struct hfi_mux *mux, int64_t deadline,
                       struct mux_link **ret, struct hf_error *err)
{
    struct mux_link *link = mux_link_new(mux);
    hf_status st;

    if (!link)
        return hfi_nomem(err);
    st = mux->find(mux->arg, &link->to, deadline, err);
    if (!st)
        st = hfi_stream_open(&link->stream, &link->to, deadline, err);
    if (!st)
        st = mux->handshake(mux->arg, link, deadline, err);
    if (st)
        mux_link_free(link);
    else
        *ret = link;
    /* Whatever happened, nothing of the caller's was sent. */
    return st == HF_UNCERTAIN ? HF_UNAVAILABLE : st;
}

/* What this process lacks says nothing about the server. */
static bool mux_is_our_fault(int sys_errno)
{
    return sys_errno == EMFILE || sys_errno == ENFILE || sys_errno == ENOBUFS ||
           sys_errno == ENOMEM;
}

/* Connect for all who wait for it.  With the mutex held, let go meanwhile.
 * There is still no link if the server has moved since. */
static hf_status mux_connect(struct hfi_mux *mux, int64_t deadline,
                             struct hf_error *err)
{
    struct mux_link *link = NULL;
    struct hf_error why = {0};
    unsigned moves = mux->moves;
    hf_status st;

    mux->connecting = true;
    pthread_mutex_unlock(&mux->mu);
    st = hfi_mux_open(mux, deadline, &link, &why);
    pthread_mutex_lock(&mux->mu);
    mux->connecting = false;
    hfi_cond_wake(&mux->connected);
    if (!st && moves != mux->moves) {
        mux_link_free(link);
        return HF_OK;
    }
    if (!st) {
        mux->link = link;
        hfi_backoff_done(&mux->backoff);
        atomic_store(&mux->fd, link->stream.fd);
        return HF_OK;
    }
    mux->down = why;
    mux->down.status = st;
    if (!mux_is_our_fault(why.sys_errno))
        hfi_backoff_failed(&mux->backoff);
    if (err)
        *err = mux->down;
    return st;
}

/* A server may have closed the connection while nobody used it.  To find that
 * out by a call would leave the call in doubt. */
static void mux_drop_stale(struct hfi_mux *mux)
{
    struct mux_link *link = mux->link;

    if (!link || link->users || hfi_now() - link->used_at < MUX_IDLE_MS ||
        !hfi_link_alone(&link->calls) || !hfi_stream_is_stale(&link->stream))
        return;
    mux_link_retire(link);
    mux_link_free(link);
}

/* The current link, with one more user. */
static hf_status mux_get(struct hfi_mux *mux, int64_t deadline,
                         struct mux_link **ret, struct hf_error *err)
{
    hf_status st;

    mux_drop_stale(mux);
    while (!mux->link) {
        /* While a server is known to be down, one looks for it, and the others
         * need not wait. */
        if (mux->connecting && mux->backoff.ms) {
            if (err)
                *err = mux->down;
            return mux->down.status;
        }
        if (mux->connecting) {
            if (!hfi_left_ms(deadline))
                return hfi_fail(err, HF_UNAVAILABLE,
                                "still connecting at the deadline");
            hfi_cond_wait(&mux->connected, &mux->mu, deadline);
            continue;
        }
        if (hfi_backoff_waits(&mux->backoff)) {
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

/* Leave a abandoned call in the place of a call.  resp_link.c (2) */
static bool call_abandon(struct mux_link *link, struct hfi_mux_call *call)
{
    struct hfi_mux_call *abandoned = hfi_alloc(sizeof(*abandoned));

    if (!abandoned) {
        mux_link_break(link, "out of memory", 0);
        return false;
    }
    *abandoned = *call;
    abandoned->abandoned = true;
    abandoned->replies = NULL;
    abandoned->left_at = hfi_now();
    abandoned->place.prev->next = &abandoned->place;
    abandoned->place.next->prev = &abandoned->place;
    hfi_link_init(&call->place);
    return true;
}

/* resp_link.c (4) */
static bool link_is_silent(const struct mux_link *link)
{
    const struct hfi_mux_call *first =
        hfi_container(link->calls.next, struct hfi_mux_call, place);
    int64_t since =
        first->begun_at > link->heard_at ? first->begun_at : link->heard_at;
    int64_t silent = hfi_now() - since;

    return (silent >= MUX_SILENT_MS && silent >= 2 * link->slow_ms) ||
           hfi_stream_is_unheard(&link->stream);
}

/* The deadline passed. */
static hf_status call_give_up(struct mux_link *link, struct hfi_mux_call *call)
{
    if (HFI_MUTANT(timed_out_connection_reused))
        return HF_UNCERTAIN;
    if (link->mux->blocks || link_is_silent(link))
        mux_link_retire(link);
    return call_abandon(link, call) ? HF_UNCERTAIN : call->st;
}

/* Sleep until there is something to do for this call, or for its wake group. */
static void call_sleep(struct mux_link *link, struct hfi_mux_call *call,
                       int64_t deadline)
{
    call->wake_group->asleep++;
    hfi_cond_wait(&call->wake_group->cond, &link->mux->mu, deadline);
    call->wake_group->asleep--;
}

/* In a crowd the replies are often there once the others had their turn: that
 * costs less than to sleep and to be woken. */
static bool call_yield(struct mux_link *link, const struct hfi_mux_call *call)
{
    int i;

    for (i = 0; i < MUX_YIELDS && link->users >= MUX_BUSY_CALLERS; i++) {
        pthread_mutex_unlock(&link->mux->mu);
        sched_yield();
        pthread_mutex_lock(&link->mux->mu);
        if (call->done || !link->reading)
            return true;
    }
    return false;
}

/* Wait for the replies, reading for all when nobody does; false at the
 * deadline.  What lies in the socket by then has come in time: it may be that
 * this thread had no processor. */
static bool call_wait(struct mux_link *link, struct hfi_mux_call *call,
                      int64_t deadline)
{
    while (!call->done && hfi_left_ms(deadline)) {
        if (!link->reading)
            mux_link_read(link, deadline);
        else if (!call_yield(link, call))
            call_sleep(link, call, deadline);
    }
    while (!call->done && !link->reading && mux_link_read(link, 0))
        continue;
    return call->done;
}

hf_status hfi_mux_begin(struct hfi_mux *mux, struct hfi_mux_call *call,
                        const char *bytes, size_t len, int n,
                        redisReply **replies, int64_t deadline,
                        struct hf_error *err)
{
    struct mux_link *link = NULL;
    hf_status st;
    bool busy;

    *call = (struct hfi_mux_call){.want = n, .replies = replies};
    hfi_link_init(&call->place);
    pthread_mutex_lock(&mux->mu);
    st = mux_get(mux, deadline, &link, err);
    if (!st) {
        call->begin = link->appended;
        if (!mux_link_say(link, bytes, len)) {
            mux_link_put(link);
            st = hfi_nomem(err);
        }
    }
    if (!st) {
        busy = mux_link_is_busy(link);
        call->begun_at = hfi_now();
        call->link = link;
        call->wake_group = mux_link_join(link);
        hfi_link_append(&link->calls, &call->place);
        if (busy)
            mux_link_batch(link, deadline);
        else
            mux_link_flush(link, deadline);
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
    st = call_wait(link, call, deadline) ? call->st : call_give_up(link, call);
    hfi_link_remove(&call->place);
    mux_link_pass_reading(link);
    link->used_at = hfi_now();
    if (st) {
        if (link->broken && err)
            *err = link->why;
        else
            hfi_fail(err, st, "no answer in time");
        while (call->got > 0)
            freeReplyObject(call->replies[--call->got]);
    }
    mux_link_put(link);
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

/* ---- several servers --------------------------------------------------- */

bool hfi_mux_advance(struct hfi_mux_call *call, bool readable)
{
    struct mux_link *link = call->link;
    bool done;

    pthread_mutex_lock(&link->mux->mu);
    while (readable && !call->done && !link->reading && mux_link_read(link, 0))
        continue;
    done = call->done;
    pthread_mutex_unlock(&link->mux->mu);
    return done;
}

bool hfi_mux_is_shared(const struct hfi_mux_call *call)
{
    struct mux_link *link = call->link;
    bool shared;

    pthread_mutex_lock(&link->mux->mu);
    shared = link->users > 1;
    pthread_mutex_unlock(&link->mux->mu);
    return shared;
}

bool hfi_mux_await(struct hfi_mux_call *call, int64_t deadline)
{
    struct mux_link *link = call->link;
    bool done;

    pthread_mutex_lock(&link->mux->mu);
    done = call_wait(link, call, deadline);
    mux_link_pass_reading(link);
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
        call_abandon(link, call);
    hfi_link_remove(&call->place);
    while (call->got > 0)
        freeReplyObject(call->replies[--call->got]);
    link->used_at = hfi_now();
    mux_link_put(link);
    pthread_mutex_unlock(&mux->mu);
}

/* Since when the link owes the answer of an abandoned call; 0 if it does
 * not. */
static int64_t link_owes_since(struct mux_link *link)
{
    struct hfi_mux_call *call;
    struct hfi_link *at;

    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_mux_call, place);
        if (call->abandoned)
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
               mux_link_read(link, 0))
            continue;
        since = link_owes_since(link);
        if (!link->broken)
            ms = since ? hfi_now() - since + 1 : 0;
        mux_link_put(link);
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

/* With the mutex held. */
static void mux_retire(struct hfi_mux *mux)
{
    struct mux_link *link = mux->link;

    if (!link)
        return;
    link->users++;
    mux_link_retire(link);
    mux_link_put(link);
}

void hfi_mux_retire(struct hfi_mux *mux)
{
    struct hfi_mux *aside = atomic_load(&mux->aside);

    pthread_mutex_lock(&mux->mu);
    mux_retire(mux);
    pthread_mutex_unlock(&mux->mu);
    if (aside)
        hfi_mux_retire(aside);
}

bool hfi_mux_is_to(const struct mux_link *link, const struct hfi_endpoint *to)
{
    return link->to.port == to->port && !strcmp(link->to.host, to->host);
}

bool hfi_mux_is_at(struct hfi_mux *mux, const struct hfi_endpoint *to)
{
    bool at;

    pthread_mutex_lock(&mux->mu);
    at = mux->link && hfi_mux_is_to(mux->link, to);
    pthread_mutex_unlock(&mux->mu);
    return at;
}

bool hfi_mux_move(struct hfi_mux *mux, const struct hfi_endpoint *to)
{
    struct hfi_mux *aside = atomic_load(&mux->aside);
    bool away;

    if (aside)
        hfi_mux_move(aside, to);
    pthread_mutex_lock(&mux->mu);
    mux->moves++;
    away = mux->link && !hfi_mux_is_to(mux->link, to);
    if (away)
        mux_retire(mux);
    pthread_mutex_unlock(&mux->mu);
    return away;
}

void hfi_mux_init(struct hfi_mux *mux, hfi_mux_find *find,
                  hfi_mux_handshake *handshake, void *arg)
{
    *mux = (struct hfi_mux){.find = find, .handshake = handshake, .arg = arg};
    atomic_init(&mux->fd, -1);
    atomic_init(&mux->aside, NULL);
    hfi_mutex_init(&mux->mu);
    hfi_cond_init(&mux->connected);
}

void hfi_mux_after_fork_child(struct hfi_mux *mux)
{
    struct hfi_mux *aside = atomic_load(&mux->aside);
    int fd = atomic_exchange(&mux->fd, -1);

    if (fd >= 0)
        close(fd);
    if (aside)
        hfi_mux_after_fork_child(aside);
}

void hfi_mux_fini(struct hfi_mux *mux)
{
    struct hfi_mux *aside = atomic_exchange(&mux->aside, NULL);

    if (aside)
        hfi_mux_fini(aside);
    hfi_free(aside);
    mux_link_free(mux->link);
    hfi_cond_fini(&mux->connected);
    pthread_mutex_destroy(&mux->mu);
}
