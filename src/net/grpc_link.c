/* SPDX-License-Identifier: MIT
 *
 * grpc_link.c - gRPC calls by many threads on one connection; see grpc_link.h.
 * How threads share it is in shared.c, and what happens on the connection
 * itself in grpc_wire.c.
 */
#include "grpc_link.h"

#include "base/alloc.h"
#include "base/env.h"
#include "grpc_wire.h"

#include "base/banned.h"

/* How long one endpoint may take to greet while there are others to be
 * asked. */
#define H2_PROMPT_MS 400

/* So long a server has to answer before its silence means something. */
#define H2_SILENT_MS 250

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

static hf_status h2_open(struct hfi_shared *shared, int64_t deadline,
                         struct hfi_shared_link **ret, struct hf_error *err)
{
    struct hfi_h2 *h2 = hfi_container(shared, struct hfi_h2, shared);
    struct h2_link *link = NULL;
    hf_status st = h2_find(h2, h2->next, deadline, &link, err);

    if (st)
        return st;
    pthread_mutex_lock(&shared->mu);
    h2->next = (link->end + 1) % h2->nends; /* once this one is left */
    pthread_mutex_unlock(&shared->mu);
    *ret = &link->base;
    return HF_OK;
}

static void h2_free(struct hfi_shared_link *base)
{
    h2_link_free((struct h2_link *)base);
}

static void h2_check_idle(struct hfi_shared_link *base)
{
    while (!base->reading && !base->writing && hfi_link_alone(&base->calls) &&
           hfi_shared_read(base, 0))
        continue;
}

static void h2_feed(struct hfi_shared_link *base, const char *bytes, size_t len)
{
    h2_link_feed((struct h2_link *)base, bytes, len);
}

static void h2_collect(struct hfi_shared_link *base)
{
    h2_link_collect((struct h2_link *)base);
}

static bool h2_was_sent(const struct hfi_shared_link *base,
                        const struct hfi_shared_call *call)
{
    (void)base;
    return ((const struct hfi_h2_call *)call)->sent;
}

static const struct hfi_protocol h2_protocol = {
    .open = h2_open,
    .free = h2_free,
    .check_idle = h2_check_idle,
    .feed = h2_feed,
    .collect = h2_collect,
    .was_sent = h2_was_sent,
    .hurry_ms = H2_PROMPT_MS,
};

/* ---- calls ------------------------------------------------------------- */

/* A call that was sent at `sent_at` has no answer: is that the server's
 * fault? */
static bool link_is_silent(const struct h2_link *link, size_t nends,
                           int64_t sent_at)
{
    int64_t now = hfi_now();

    if (nends > 1 && now >= sent_at + H2_SILENT_MS)
        return true;
    return link->base.heard_at < link->asked &&
           now >= link->asked + H2_SILENT_MS;
}

/* Wait for the answer, or give it up. */
static void call_wait(struct hfi_h2 *h2, struct h2_link *link,
                      struct hfi_h2_call *call, int64_t sent_at,
                      int64_t deadline)
{
    if (hfi_shared_wait(&link->base, &call->base, deadline))
        return;
    call->base.st = call->sent ? HF_UNCERTAIN : HF_UNAVAILABLE;
    h2_link_abandon(link, call);
    if (link_is_silent(link, h2->nends, sent_at))
        hfi_shared_retire(&link->base);
    else
        hfi_shared_flush(&link->base, deadline + H2_OWN_WRITE_MS);
}

/* Why a call has no answer. */
static hf_status call_fail(const struct h2_link *link,
                           const struct hfi_h2_call *call, struct hf_error *err)
{
    const char *why = link->base.broken  ? link->base.why.text
                      : call->message[0] ? call->message
                      : call->base.done  ? "the request was refused"
                                         : "no answer in time";

    return hfi_fail(err, call->st, "%s: %s", link->authority, why);
}

/* Begin as many as the link takes, and send them.  If one is refused it is done
 * with that. */
static hf_status calls_begin(struct h2_link *link, struct hfi_h2_call *calls,
                             size_t n, const char *token, int64_t deadline,
                             struct hf_error *err)
{
    bool busy = hfi_shared_is_busy(&link->base);
    hf_status st = HF_OK;
    size_t i;

    for (i = 0; i < n && !st; i++) {
        calls[i].via = link->base.number;
        calls[i].end = link->end;
        st = h2_link_submit(link, &calls[i], token, err);
        if (!st)
            hfi_shared_join(&link->base, &calls[i].base);
    }
    if (st) { /* It has used up its streams. */
        calls[i - 1].base.done = true;
        hfi_shared_retire(&link->base);
    }
    hfi_shared_send(&link->base, busy, deadline);
    return st;
}

hf_status hfi_h2_call(struct hfi_h2 *h2, struct hfi_h2_call *calls, size_t n,
                      const char *token, int64_t deadline, struct hf_error *err)
{
    struct hfi_shared_link *base = NULL;
    struct h2_link *link;
    hf_status st, one;
    bool taken = false;
    int64_t sent_at;
    size_t i;

    for (i = 0; i < n; i++) {
        calls[i].base = (struct hfi_shared_call){.st = HF_UNAVAILABLE};
        hfi_link_init(&calls[i].base.in_calls);
        h2_prefix(calls[i].body, calls[i].len);
        calls[i].st = HF_UNAVAILABLE;
    }
    pthread_mutex_lock(&h2->shared.mu);
    st = hfi_shared_get(&h2->shared, deadline, &base, err);
    if (st)
        goto out;
    link = (struct h2_link *)base;
    sent_at = hfi_now();
    if (link->asked <= base->heard_at)
        link->asked = sent_at;
    one = calls_begin(link, calls, n, token, deadline, err);
    for (i = 0; i < n; i++) {
        if (!hfi_link_alone(&calls[i].base.in_calls))
            call_wait(h2, link, &calls[i], sent_at, deadline);
        hfi_link_remove(&calls[i].base.in_calls);
        calls[i].st = calls[i].base.st;
        taken = taken || calls[i].st != HF_UNAVAILABLE;
        if (calls[i].st && !st)
            st = one ? calls[i].st : call_fail(link, &calls[i], err);
    }
    if (st && taken)
        st = hfi_restate(err, HF_UNCERTAIN);
    hfi_shared_pass_reading(base);
    hfi_shared_put(base);
out:
    pthread_mutex_unlock(&h2->shared.mu);
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

    pthread_mutex_lock(&h2->shared.mu);
    yes = h2->shared.link && h2->shared.link->number == via;
    pthread_mutex_unlock(&h2->shared.mu);
    return yes;
}

bool hfi_h2_is_up(struct hfi_h2 *h2)
{
    const struct h2_link *link;
    bool yes;

    pthread_mutex_lock(&h2->shared.mu);
    link = (struct h2_link *)h2->shared.link;
    yes = link && link->base.heard_at >= link->asked;
    pthread_mutex_unlock(&h2->shared.mu);
    return yes;
}

void hfi_h2_retire(struct hfi_h2 *h2, unsigned via)
{
    pthread_mutex_lock(&h2->shared.mu);
    if (h2->shared.link && h2->shared.link->number == via)
        hfi_shared_retire_current(&h2->shared);
    pthread_mutex_unlock(&h2->shared.mu);
}

void hfi_h2_init(struct hfi_h2 *h2, const struct hfi_endpoint *ends, size_t n)
{
    *h2 = (struct hfi_h2){.ends = ends, .nends = n};
    hfi_shared_init(&h2->shared, &h2_protocol);
}

void hfi_h2_after_fork_child(struct hfi_h2 *h2)
{
    hfi_shared_after_fork_child(&h2->shared);
}

void hfi_h2_fini(struct hfi_h2 *h2)
{
    hfi_shared_fini(&h2->shared);
}
