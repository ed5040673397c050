/* SPDX-License-Identifier: MIT
 *
 * shared.c - one connection, many threads; see shared.h.
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
 *  (1) There is one current link at most, and one thread that connects it.  One
 *      that connects to where the server was before is not waited for.
 *  (2) At most one thread reads and at most one writes, each without the mutex.
 *      The writer has seen that nothing was left to be written.
 *  (3) While a call waits and nobody reads, one of the waiting is awake: who
 *      stops reading wakes the first in line.
 *  (4) A link is freed when it is not the current one and nobody is on it.
 *  (5) A call that waits sleeps with its wake group, and is woken there when
 *      its answer has come, when the link breaks, and when it is to read for
 *      all.
 *  (6) Those whose answers have come are woken together, and after the mutex
 *      was let go: they want it next, and would otherwise wake up only to wait
 *      for it.
 *  (7) What has ended without an answer when the link was broken stays so,
 *      whatever had been read by then.
 */
#include "shared.h"

#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "base/banned.h"

/* While so many calls are under way, the others are given their turn so often
 * before one sleeps. */
#define BUSY_CALLERS 8
#define YIELDS       3

/* Busy callers send in so many batches: the server is at one of them while the
 * callers of another are served. */
#define PIPELINES 4

/* Nobody spins while so many calls are under way; and after a spin in vain the
 * next calls do not, up to 2 to the power of so many. */
#define SPIN_CALLERS_MAX 32
#define SPIN_MISSES_MAX  10

/* ---- beginning and end ------------------------------------------------- */

void hfi_shared_init(struct hfi_shared *shared,
                     const struct hfi_protocol *protocol)
{
    *shared = (struct hfi_shared){.protocol = protocol};
    hfi_link_init(&shared->links);
    atomic_init(&shared->fd, -1);
    hfi_mutex_init(&shared->mu);
    hfi_cond_init(&shared->connected);
}

void hfi_shared_fini(struct hfi_shared *shared)
{
    if (shared->link)
        shared->protocol->free(shared->link);
    hfi_cond_fini(&shared->connected);
    pthread_mutex_destroy(&shared->mu);
}

void hfi_shared_after_fork_child(struct hfi_shared *shared)
{
    int fd = atomic_exchange(&shared->fd, -1);

    if (fd >= 0)
        close(fd);
}

void hfi_shared_link_init(struct hfi_shared_link *link,
                          struct hfi_shared *shared)
{
    int i;

    link->shared = shared;
    link->stream.fd = -1;
    hfi_link_init(&link->in_links);
    hfi_link_init(&link->calls);
    for (i = 0; i < HFI_WAKE_GROUPS; i++)
        hfi_cond_init(&link->wake_groups[i].cond);
}

void hfi_shared_link_fini(struct hfi_shared_link *link)
{
    int i;

    hfi_link_remove(&link->in_links);
    for (i = 0; i < HFI_WAKE_GROUPS; i++)
        hfi_cond_fini(&link->wake_groups[i].cond);
    hfi_stream_close(&link->stream);
    hfi_sendbuf_fini(&link->out);
}

void hfi_shared_put(struct hfi_shared_link *link)
{
    link->users--;
    if (!link->users && link->shared->link != link) /* shared.c (4) */
        link->shared->protocol->free(link);
}

void hfi_shared_retire(struct hfi_shared_link *link)
{
    link->retired = true;
    if (link->shared->link == link) {
        atomic_store(&link->shared->fd, -1);
        link->shared->link = NULL;
    }
}

void hfi_shared_retire_current(struct hfi_shared *shared)
{
    struct hfi_shared_link *link = shared->link;

    if (!link)
        return;
    link->users++;
    hfi_shared_retire(link);
    hfi_shared_put(link);
}

void hfi_shared_break(struct hfi_shared_link *link, const char *what,
                      int sys_errno)
{
    struct hfi_shared_call *call;
    struct hfi_link *at;

    if (link->broken)
        return;
    link->broken = true;
    if (sys_errno)
        hfi_fail_errno(&link->why, HF_UNCERTAIN, sys_errno, "%s", what);
    else
        hfi_fail(&link->why, HF_UNCERTAIN, "%s", what);
    hfi_shared_retire(link);
    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_shared_call, in_calls);
        if (call->abandoned)
            continue;
        call->done = true;
        call->st = link->shared->protocol->was_sent(link, call)
                       ? HF_UNCERTAIN
                       : HF_UNAVAILABLE;
        if (call->wake_group)
            hfi_cond_wake(&call->wake_group->cond);
    }
}

/* ---- connecting -------------------------------------------------------- */

void hfi_shared_move(struct hfi_shared *shared)
{
    shared->moves++;
    shared->connecting = false;
    shared->backoff = (struct hfi_backoff){0};
    hfi_cond_wake(&shared->connected);
}

/* What this process lacks says nothing about the server. */
static bool shared_is_our_fault(int sys_errno)
{
    return sys_errno == EMFILE || sys_errno == ENFILE || sys_errno == ENOBUFS ||
           sys_errno == ENOMEM;
}

static hf_status shared_is_down(const struct hfi_shared *shared,
                                struct hf_error *err)
{
    if (err)
        *err = shared->down;
    return shared->down.status;
}

/* Connect for all who wait for it; the mutex is let go meanwhile.  If the server
 * has moved since there is no link yet, and another may be at it: what happened
 * here says nothing of where the server is now. */
static hf_status shared_connect(struct hfi_shared *shared, int64_t deadline,
                                struct hf_error *err)
{
    struct hfi_shared_link *link = NULL;
    struct hf_error why = {0};
    unsigned moves = shared->moves;
    int64_t began = hfi_now();
    hf_status st;

    shared->connecting = true;
    pthread_mutex_unlock(&shared->mu);
    st = shared->protocol->open(shared, deadline, &link, &why);
    pthread_mutex_lock(&shared->mu);
    if (moves != shared->moves) {
        if (!st)
            shared->protocol->free(link);
        return HF_OK;
    }
    shared->connecting = false;
    hfi_cond_wake(&shared->connected);
    if (!st) {
        shared->link = link;
        hfi_link_append(&shared->links, &link->in_links);
        link->number = ++shared->numbers;
        hfi_backoff_done(&shared->backoff);
        atomic_store(&shared->fd, link->stream.fd);
        return HF_OK;
    }
    shared->down = why;
    shared->down.status = st;
    if (!shared_is_our_fault(why.sys_errno) &&
        (deadline - began >= shared->protocol->hurry_ms ||
         hfi_now() < deadline))
        hfi_backoff_failed(&shared->backoff);
    return shared_is_down(shared, err);
}

/* Have a link. */
static hf_status shared_ensure(struct hfi_shared *shared, int64_t deadline,
                               struct hf_error *err)
{
    unsigned moves = shared->moves;
    hf_status st = HF_OK;

    while (!shared->link && !st) {
        if (moves != shared->moves && !hfi_left_ms(deadline))
            return hfi_fail(err, HF_UNAVAILABLE,
                            "the server was replaced by another");
        if (shared->connecting
                ? shared->protocol->fail_fast && shared->backoff.ms
                : hfi_backoff_waits(&shared->backoff))
            return shared_is_down(shared, err);
        if (!shared->connecting)
            st = shared_connect(shared, deadline, err);
        else if (hfi_left_ms(deadline))
            hfi_cond_wait(&shared->connected, &shared->mu, deadline);
        else
            st = hfi_fail(err, HF_UNAVAILABLE,
                          "still connecting at the deadline");
    }
    return st;
}

hf_status hfi_shared_get(struct hfi_shared *shared, int64_t deadline,
                         struct hfi_shared_link **ret, struct hf_error *err)
{
    struct hfi_shared_link *link;
    hf_status st;

    for (;;) {
        st = shared_ensure(shared, deadline, err);
        if (st)
            return st;
        link = shared->link;
        link->users++;
        if (link->users == 1 && hfi_link_alone(&link->calls))
            shared->protocol->check_idle(link);
        if (!link->retired)
            break;
        hfi_shared_pass_reading(link);
        hfi_shared_put(link);
    }
    *ret = link;
    return HF_OK;
}

/* ---- writing ----------------------------------------------------------- */

/* Write all that there is, unless somebody is at it: that one will. */
void hfi_shared_flush(struct hfi_shared_link *link, int64_t deadline)
{
    const struct hfi_protocol *protocol = link->shared->protocol;

    if (link->writing)
        return;
    link->writing = true;
    for (;;) { /* shared.c (2) */
        if (protocol->collect && !link->broken)
            protocol->collect(link);
        if (!link->out.len || link->broken)
            break;
        link->written += link->out.len;
        link->unsent = 0;
        link->wake_group_size =
            HFI_WAKE_GROUP_MAX; /* The next begins another. */
        if (!hfi_sendbuf_write(&link->out, &link->stream, &link->shared->mu,
                               deadline))
            hfi_shared_break(link, "cannot send", errno);
    }
    link->writing = false;
}

/* Those who were answered together are about to send; so are those who wait,
 * but not an abandoned call. */
bool hfi_shared_is_busy(const struct hfi_shared_link *link)
{
    return link->answered > 1 ||
           (!hfi_link_alone(&link->calls) &&
            !hfi_container(link->calls.prev, struct hfi_shared_call, in_calls)
                 ->abandoned);
}

void hfi_shared_join(struct hfi_shared_link *link, struct hfi_shared_call *call)
{
    if (link->wake_group_size == HFI_WAKE_GROUP_MAX) {
        link->wake_group = (link->wake_group + 1) % HFI_WAKE_GROUPS;
        link->wake_group_size = 0;
    }
    link->wake_group_size++;
    link->unsent++;
    if (link->answered)
        link->answered--;
    call->wake_group = &link->wake_groups[link->wake_group];
}

/* Where others are busy, let them add what they are about to send, until a
 * batch is full. */
void hfi_shared_send(struct hfi_shared_link *link, bool busy, int64_t deadline)
{
    if (busy && link->unsent * PIPELINES < link->users) {
        if (link->batching || link->writing)
            return; /* That one will send ours with its own. */
        link->batching = true;
        pthread_mutex_unlock(&link->shared->mu);
        sched_yield();
        pthread_mutex_lock(&link->shared->mu);
        link->batching = false;
    }
    hfi_shared_flush(link, deadline);
}

/* ---- reading ----------------------------------------------------------- */

void hfi_shared_answer(struct hfi_shared_link *link,
                       struct hfi_shared_call *call, hf_status st)
{
    call->st = st;
    call->done = true;
    hfi_link_remove(&call->in_calls);
    link->answered++;
    if (call->wake_group && call->wake_group->asleep)
        link->to_wake |= 1u << (call->wake_group - link->wake_groups);
}

/* shared.c (6) */
static void link_wake(struct hfi_shared_link *link)
{
    unsigned bits = link->to_wake;
    int i;

    if (!bits)
        return;
    link->to_wake = 0;
    pthread_mutex_unlock(&link->shared->mu);
    for (i = 0; i < HFI_WAKE_GROUPS; i++)
        if (bits & 1u << i)
            hfi_cond_wake(&link->wake_groups[i].cond);
    pthread_mutex_lock(&link->shared->mu);
}

/* Poll for the answer of a server that is near, but not beyond the deadline: -1
 * and EAGAIN if that was in vain.  Whoever else wants the processor has it
 * meanwhile. */
static ssize_t link_spin(struct hfi_shared_link *link, char *buf, size_t size,
                         int64_t deadline)
{
    int64_t left = hfi_left_ms(deadline), us = link->spin_us;
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

/* Only the one who reads is here. */
static ssize_t link_receive(struct hfi_shared_link *link, bool busy, char *buf,
                            size_t size, int64_t deadline)
{
    ssize_t got;

    if (!deadline || busy || !link->spin_us)
        return hfi_stream_read(&link->stream, buf, size, deadline);
    if (!link->sleeps) {
        got = link_spin(link, buf, size, deadline);
        if (got >= 0 || errno != EAGAIN) {
            link->spin_misses = 0;
            return got;
        }
        if (link->spin_misses < SPIN_MISSES_MAX)
            link->spin_misses++;
        link->sleeps = 1U << link->spin_misses;
    }
    link->sleeps--;
    return hfi_stream_read(&link->stream, buf, size, deadline);
}

static void link_ended(struct hfi_shared_link *link, const char *what,
                       int sys_errno)
{
    const struct hfi_protocol *protocol = link->shared->protocol;

    if (protocol->end)
        what = protocol->end(link, sys_errno, what);
    hfi_shared_break(link, what, sys_errno);
}

/* The mutex is let go meanwhile. */
bool hfi_shared_read(struct hfi_shared_link *link, int64_t deadline)
{
    struct hfi_shared *shared = link->shared;
    bool busy = link->users >= SPIN_CALLERS_MAX;
    char buf[16384];
    ssize_t got;
    int why;

    link->reading = true;
    pthread_mutex_unlock(&shared->mu);
    got = link_receive(link, busy, buf, sizeof(buf), deadline);
    why = errno;
    pthread_mutex_lock(&shared->mu);
    link->reading = false;
    link->answered = 0;
    if (got > 0 && link->broken) {
        ; /* shared.c (7) */
    } else if (got > 0) {
        link->heard_at = hfi_now();
        shared->protocol->feed(link, buf, (size_t)got);
        if (shared->protocol->collect && deadline)
            hfi_shared_flush(link, deadline);
    } else if (got == 0) {
        link_ended(link, "the server closed the connection", 0);
    } else if (why != ETIMEDOUT && (deadline || why != EAGAIN)) {
        link_ended(link, "no answer", why);
    }
    if (link->retired)
        hfi_shared_retire(link); /* which feed() may have asked for */
    link_wake(link);
    return got > 0;
}

/* shared.c (3) */
void hfi_shared_pass_reading(struct hfi_shared_link *link)
{
    struct hfi_shared_call *call;
    struct hfi_link *at;

    if (link->reading)
        return;
    for (at = link->calls.next; at != &link->calls; at = at->next) {
        call = hfi_container(at, struct hfi_shared_call, in_calls);
        if (call->abandoned || !call->wake_group || !call->wake_group->asleep)
            continue; /* Its caller has not come for it yet. */
        hfi_cond_wake_one(&call->wake_group->cond);
        return;
    }
}

/* ---- waiting ----------------------------------------------------------- */

/* Sleep until there is something to do for this call, or for its wake group. */
static void call_sleep(struct hfi_shared_link *link,
                       struct hfi_shared_call *call, int64_t deadline)
{
    call->wake_group->asleep++;
    hfi_cond_wait(&call->wake_group->cond, &link->shared->mu, deadline);
    call->wake_group->asleep--;
}

/* Among busy callers the answer is often there once the others had their turn:
 * that costs less than to sleep and to be woken. */
static bool call_yield(struct hfi_shared_link *link,
                       const struct hfi_shared_call *call)
{
    int i;

    for (i = 0; i < YIELDS && link->users >= BUSY_CALLERS; i++) {
        pthread_mutex_unlock(&link->shared->mu);
        sched_yield();
        pthread_mutex_lock(&link->shared->mu);
        if (call->done || !link->reading)
            return true;
    }
    return false;
}

/* What lies in the socket by the deadline has come in time: it may be that this
 * thread had no processor. */
bool hfi_shared_wait(struct hfi_shared_link *link, struct hfi_shared_call *call,
                     int64_t deadline)
{
    while (!call->done && hfi_left_ms(deadline)) {
        if (!link->reading)
            hfi_shared_read(link, deadline);
        else if (!call_yield(link, call))
            call_sleep(link, call, deadline);
    }
    while (!call->done && !link->reading && hfi_shared_read(link, 0))
        continue;
    return call->done;
}
