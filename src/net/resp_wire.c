/* SPDX-License-Identifier: MIT
 *
 * resp_wire.c - one connection and the calls that are under way on it; see
 * resp_wire.h.
 *
 * Spin before blocking: a nearby server answers faster than a thread can sleep
 * and wake.  The thread that reads polls for up to 100 us and yields the
 * processor between polls.  After a spin without an answer the next calls block
 * at once, twice as many after each, so that a far server costs one spin in a
 * thousand calls.  With 32 callers or more nobody spins.
 *
 * Batches: a quarter of the callers that are there is enough to send.  If all
 * were sent in one write, their answers would come together and they would ask
 * again together, and server and clients would be idle in turns.
 *
 * INVARIANTS
 *  (1) The calls of a link stand in the order in which their bytes were
 *      appended, so the next reply belongs to the first call.
 *  (2) At most one thread reads and at most one writes, each without the mutex.
 *  (3) While a call waits and nobody reads, one of the waiting is awake: who
 *      stops reading wakes the first in line.
 *  (4) A link is freed when it is not the current one and nobody is on it.
 *  (5) Those whose replies have come are woken together, and after the mutex
 *      was let go: they want it next, and would otherwise wake up only to wait
 *      for it.
 */
#include "resp_wire.h"

#include <errno.h>
#include <sched.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* ---- beginning and end ------------------------------------------------- */

struct mux_link *mux_link_new(struct hfi_mux *mux)
{
    struct mux_link *link = hfi_alloc(sizeof(*link));
    int i;

    if (!link)
        return NULL;
    for (i = 0; i < MUX_WAKE_GROUPS; i++)
        hfi_cond_init(&link->wake_groups[i].cond);
    link->mux = mux;
    link->stream.fd = -1;
    hfi_link_init(&link->calls);
    link->reader = hfi_resp_reader();
    if (link->reader)
        return link;
    hfi_free(link);
    return NULL;
}

void mux_link_free(struct mux_link *link)
{
    struct hfi_mux_call *call;
    int i;

    if (!link)
        return;
    for (i = 0; i < MUX_WAKE_GROUPS; i++)
        hfi_cond_fini(&link->wake_groups[i].cond);
    while (!hfi_link_alone(&link->calls)) { /* only abandoned calls by now */
        call = hfi_container(link->calls.next, struct hfi_mux_call, place);
        hfi_link_remove(&call->place);
        hfi_free(call);
    }
    hfi_stream_close(&link->stream);
    redisReaderFree(link->reader);
    hfi_sendbuf_fini(&link->out);
    hfi_free(link);
}

void mux_link_put(struct mux_link *link)
{
    link->users--;
    if (!link->users && link->mux->link != link) /* resp_wire.c (4) */
        mux_link_free(link);
}

void mux_link_retire(struct mux_link *link)
{
    link->retired = true;
    if (link->mux->link == link) {
        atomic_store(&link->mux->fd, -1);
        link->mux->link = NULL;
    }
}

void mux_link_break(struct mux_link *link, const char *what, int why)
{
    struct hfi_mux_call *call;
    struct hfi_link *at;

    if (link->broken)
        return;
    link->broken = true;
    if (why)
        hfi_fail_errno(&link->why, HF_UNCERTAIN, why, "%s", what);
    else
        hfi_fail(&link->why, HF_UNCERTAIN, "%s", what);
    mux_link_retire(link);
    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_mux_call, place);
        if (call->abandoned)
            continue;
        call->done = true;
        call->st = call->begin < link->written ? HF_UNCERTAIN : HF_UNAVAILABLE;
        hfi_cond_wake(&call->wake_group->cond);
    }
}

/* ---- reading ----------------------------------------------------------- */

/* What to say of a connection that has ended: a server that never said a word
 * and hangs up may not have understood ours. */
static const char *link_end(const struct mux_link *link, int why,
                            const char *what)
{
    bool plain = !link->to.tls && link->to.port;

    return plain && !link->heard && (!why || why == ECONNRESET)
               ? "the server hung up at the first words (does it want TLS?)"
               : what;
}

/* A call has all of its replies: its caller is to be told, soon. */
static void link_answer(struct mux_link *link, struct hfi_mux_call *call)
{
    call->done = true;
    call->st = HF_OK;
    link->answered++;
    if (call->wake_group->asleep)
        link->to_wake |= 1u << (call->wake_group - link->wake_groups);
}

/* The next reply belongs to the first call.  resp_wire.c (1) */
static bool link_deliver(struct mux_link *link, redisReply *reply)
{
    struct hfi_mux_call *call;
    int64_t took;

    if (hfi_link_alone(&link->calls)) {
        freeReplyObject(reply);
        return false;
    }
    call = hfi_container(link->calls.next, struct hfi_mux_call, place);
    if (call->abandoned)
        freeReplyObject(reply);
    else
        call->replies[call->got] = reply;
    if (++call->got < call->want)
        return true;
    hfi_link_remove(&call->place);
    took = link->heard_at - call->begun_at;
    link->slow_ms -= link->slow_ms / 8;
    link->slow_ms = took > link->slow_ms ? took : link->slow_ms;
    if (call->abandoned)
        hfi_free(call);
    else
        link_answer(link, call);
    return true;
}

static void link_parse(struct mux_link *link, const char *buf, size_t len)
{
    redisReply *reply;

    if (!hfi_resp_feed(link->reader, buf, len)) {
        mux_link_break(link, "the reply is too large", 0);
        return;
    }
    for (;;) {
        if (!hfi_resp_next(link->reader, &reply)) {
            mux_link_break(link, "the reply makes no sense", 0);
            return;
        }
        if (!reply)
            return;
        if (!link_deliver(link, reply)) {
            mux_link_break(link, "a reply that nobody asked for", 0);
            return;
        }
    }
}

/* resp_wire.c (5) */
static void link_wake(struct mux_link *link)
{
    unsigned bits = link->to_wake;
    int i;

    if (!bits)
        return;
    link->to_wake = 0;
    pthread_mutex_unlock(&link->mux->mu);
    for (i = 0; i < MUX_WAKE_GROUPS; i++)
        if (bits & 1u << i)
            hfi_cond_wake(&link->wake_groups[i].cond);
    pthread_mutex_lock(&link->mux->mu);
}

/* Stay awake for the answer of a server that is near, but not beyond the
 * deadline: -1 and EAGAIN if that was in vain.  Whoever else wants the
 * processor has it meanwhile. */
static ssize_t link_watch(struct mux_link *link, char *buf, size_t size,
                          int64_t deadline)
{
    int64_t left = hfi_left_ms(deadline), us = link->to.spin_us;
    int64_t end = hfi_now_us() + (us / 1000 < left ? us : left * 1000);
    ssize_t got;

    for (;;) {
        got = hfi_stream_read(&link->stream, buf, size, 0);
        if (got < 0 && errno == EINTR)
            errno = EAGAIN; /* A signal says nothing of the server. */
        if (got >= 0 || errno != EAGAIN || hfi_now_us() >= end)
            return got;
        sched_yield();
    }
}

/* What was in vain is tried the less often, the more often it was; and not in a
 * crowd, which has other things to do.  Only the one who reads is here. */
static ssize_t link_receive(struct mux_link *link, bool busy, char *buf,
                            size_t size, int64_t deadline)
{
    ssize_t got;

    if (!deadline || busy || !link->to.spin_us)
        return hfi_stream_read(&link->stream, buf, size, deadline);
    if (!link->sleeps) {
        got = link_watch(link, buf, size, deadline);
        if (got >= 0 || errno != EAGAIN) {
            link->spin_misses = 0;
            return got;
        }
        if (link->spin_misses < MUX_SPIN_MISSES_MAX)
            link->spin_misses++;
        link->sleeps = 1U << link->spin_misses;
    }
    link->sleeps--;
    return hfi_stream_read(&link->stream, buf, size, deadline);
}

/* The mutex is let go meanwhile. */
bool mux_link_read(struct mux_link *link, int64_t deadline)
{
    struct hfi_mux *mux = link->mux;
    bool busy = link->users >= MUX_SPIN_MAX;
    char buf[16384];
    ssize_t got;
    int why;

    link->reading = true;
    pthread_mutex_unlock(&mux->mu);
    got = link_receive(link, busy, buf, sizeof(buf), deadline);
    why = errno;
    pthread_mutex_lock(&mux->mu);
    link->reading = false;
    link->answered = 0;
    if (got > 0) {
        link->heard = true;
        link->heard_at = hfi_now();
        link_parse(link, buf, (size_t)got);
    }
    if (got == 0)
        mux_link_break(
            link, link_end(link, 0, "the server closed the connection"), 0);
    else if (got < 0 && why != ETIMEDOUT && (deadline || why != EAGAIN))
        mux_link_break(link, link_end(link, why, "no answer"), why);
    link_wake(link);
    return got > 0;
}

/* resp_wire.c (3) */
void mux_link_pass_reading(struct mux_link *link)
{
    struct hfi_link *at;
    struct hfi_mux_call *call;

    if (link->reading)
        return;
    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_mux_call, place);
        if (call->abandoned || !call->wake_group->asleep)
            continue; /* Its caller has not come for it yet. */
        hfi_cond_wake_one(&call->wake_group->cond);
        return;
    }
}

/* ---- writing ----------------------------------------------------------- */

/* Write all that has been appended, unless somebody is at it: that one will. */
void mux_link_flush(struct mux_link *link, int64_t deadline)
{
    if (link->writing)
        return;
    link->writing = true;
    while (link->out.len && !link->broken) {
        link->written += link->out.len;
        link->unsent = 0;
        link->wake_group_size =
            MUX_WAKE_GROUP_MAX; /* The next begins another. */
        if (!hfi_sendbuf_write(&link->out, &link->stream, &link->mux->mu,
                               deadline))
            mux_link_break(link, "cannot send", errno);
    }
    link->writing = false;
}

/* Is it likely that others are about to send?  Those who were answered
 * together will be; so will those who wait, but not a abandoned call. */
bool mux_link_is_busy(const struct mux_link *link)
{
    return link->answered > 1 ||
           (!hfi_link_alone(&link->calls) &&
            !hfi_container(link->calls.prev, struct hfi_mux_call, place)
                 ->abandoned);
}

/* Let others add what they are about to send, until a flight is full. */
void mux_link_batch(struct mux_link *link, int64_t deadline)
{
    struct hfi_mux *mux = link->mux;

    if (link->unsent * MUX_PIPELINES >= link->users) {
        mux_link_flush(link, deadline);
        return;
    }
    if (link->batching || link->writing)
        return; /* That one will send ours with its own. */
    link->batching = true;
    pthread_mutex_unlock(&mux->mu);
    sched_yield();
    pthread_mutex_lock(&mux->mu);
    link->batching = false;
    mux_link_flush(link, deadline);
}

struct mux_wake_group *mux_link_join(struct mux_link *link)
{
    if (link->wake_group_size == MUX_WAKE_GROUP_MAX) {
        link->wake_group = (link->wake_group + 1) % MUX_WAKE_GROUPS;
        link->wake_group_size = 0;
    }
    link->wake_group_size++;
    link->unsent++;
    if (link->answered)
        link->answered--;
    return &link->wake_groups[link->wake_group];
}

bool mux_link_say(struct mux_link *link, const char *bytes, size_t len)
{
    if (!hfi_sendbuf_add(&link->out, bytes, len))
        return false;
    link->appended += len;
    return true;
}

/* ---- on a link of one's own -------------------------------------------- */

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
            return hfi_fail(
                err, HF_UNAVAILABLE, "%s",
                link_end(link, 0, "the server closed the connection"));
        if (got < 0)
            return hfi_fail_errno(err, HF_UNAVAILABLE, errno, "%s",
                                  link_end(link, errno, "no answer"));
        link->heard = true;
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

bool hfi_mux_say(struct mux_link *link, const char *bytes, size_t len,
                 int64_t deadline)
{
    return hfi_stream_write(&link->stream, bytes, len, deadline);
}

void hfi_mux_close(struct mux_link *link)
{
    mux_link_free(link);
}
