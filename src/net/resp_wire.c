/* SPDX-License-Identifier: MIT
 *
 * resp_wire.c - one connection to a server that speaks RESP; see resp_wire.h.
 *
 * INVARIANTS
 *  (1) The calls of a link stand in the order in which their bytes were
 *      appended, so the next reply belongs to the first call.
 *  (2) While no call is under way nothing is in the parser: what begins then
 *      was not asked for, and would be taken for the next answer.
 */
#include "resp_wire.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* ---- beginning and end ------------------------------------------------- */

struct mux_link *mux_link_new(struct hfi_mux *mux)
{
    struct mux_link *link = hfi_alloc(sizeof(*link));

    if (!link)
        return NULL;
    hfi_shared_link_init(&link->base, &mux->shared);
    link->mux = mux;
    link->reader = hfi_resp_reader();
    if (link->reader)
        return link;
    mux_link_free(link);
    return NULL;
}

void mux_link_free(struct mux_link *link)
{
    struct hfi_mux_call *call;
    struct hfi_link *calls;

    if (!link)
        return;
    calls = &link->base.calls;
    while (!hfi_link_alone(calls)) { /* only abandoned calls by now */
        call = hfi_container(calls->next, struct hfi_mux_call, base.in_calls);
        hfi_link_remove(&call->base.in_calls);
        hfi_free(call);
    }
    if (link->reader)
        redisReaderFree(link->reader);
    hfi_shared_link_fini(&link->base);
    hfi_free(link);
}

/* ---- reading ----------------------------------------------------------- */

/* A server that never said a word and hangs up may not have understood ours. */
const char *mux_link_end(const struct hfi_shared_link *base, int sys_errno,
                         const char *what)
{
    const struct mux_link *link = (const struct mux_link *)base;
    bool plain = !link->to.tls && link->to.port;

    return plain && !base->heard_at && (!sys_errno || sys_errno == ECONNRESET)
               ? "the server hung up at the first words (does it want TLS?)"
               : what;
}

/* The next reply belongs to the first call.  resp_wire.c (1) */
static bool link_deliver(struct mux_link *link, redisReply *reply)
{
    struct hfi_link *calls = &link->base.calls;
    struct hfi_mux_call *call;
    int64_t took;

    if (hfi_link_alone(calls)) {
        freeReplyObject(reply);
        return false;
    }
    call = hfi_container(calls->next, struct hfi_mux_call, base.in_calls);
    if (call->base.abandoned)
        freeReplyObject(reply);
    else
        call->replies[call->got] = reply;
    if (++call->got < call->want)
        return true;
    took = link->base.heard_at - call->begun_at;
    link->slow_ms -= link->slow_ms / 8;
    link->slow_ms = took > link->slow_ms ? took : link->slow_ms;
    if (call->base.abandoned) {
        hfi_link_remove(&call->base.in_calls);
        hfi_free(call);
    } else {
        hfi_shared_answer(&link->base, &call->base, HF_OK);
    }
    return true;
}

void mux_link_feed(struct hfi_shared_link *base, const char *bytes, size_t len)
{
    struct mux_link *link = (struct mux_link *)base;
    redisReply *reply = NULL;

    if (!hfi_resp_feed(link->reader, bytes, len)) {
        hfi_shared_break(base, "the reply is too large", 0);
        return;
    }
    do {
        if (!hfi_resp_next(link->reader, &reply)) {
            hfi_shared_break(base, "the reply makes no sense", 0);
            return;
        }
    } while (reply && link_deliver(link, reply));
    if (reply || /* resp_wire.c (2) */
        (hfi_link_alone(&base->calls) && hfi_resp_has_part(link->reader)))
        hfi_shared_break(base, "a reply that nobody asked for", 0);
}

/* ---- on a link of one's own -------------------------------------------- */

hf_status hfi_mux_send(struct mux_link *link, const char *bytes, size_t len,
                       int64_t deadline, struct hf_error *err)
{
    if (!hfi_stream_write(&link->base.stream, bytes, len, deadline))
        return hfi_fail_errno(err, HF_UNAVAILABLE, errno, "cannot send");
    return HF_OK;
}

hf_status hfi_mux_receive(struct mux_link *link, redisReply **reply,
                          int64_t deadline, struct hf_error *err)
{
    char buf[4096];
    ssize_t got;

    for (;;) {
        if (!hfi_resp_next(link->reader, reply))
            return hfi_fail(err, HF_PROTOCOL, "the reply makes no sense");
        if (*reply)
            return HF_OK;
        got = hfi_stream_read(&link->base.stream, buf, sizeof(buf), deadline);
        if (got == 0)
            return hfi_fail(err, HF_UNAVAILABLE, "%s",
                            mux_link_end(&link->base, 0,
                                         "the server closed the connection"));
        if (got < 0)
            return hfi_fail_errno(
                err, HF_UNAVAILABLE, errno, "%s",
                mux_link_end(&link->base, errno, "no answer"));
        link->base.heard_at = hfi_now();
        if (!hfi_resp_feed(link->reader, buf, (size_t)got))
            return hfi_fail(err, HF_PROTOCOL, "the reply is too large");
    }
}

hf_status hfi_mux_exchange(struct mux_link *link, const char *bytes, size_t len,
                           redisReply **reply, int64_t deadline,
                           struct hf_error *err)
{
    hf_status st = hfi_mux_send(link, bytes, len, deadline, err);

    return st ? st : hfi_mux_receive(link, reply, deadline, err);
}

int hfi_mux_fd(const struct mux_link *link)
{
    return link->base.stream.fd;
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
        got = hfi_stream_read(&link->base.stream, buf, sizeof(buf), 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return HF_OK;
        if (got <= 0 || !hfi_resp_feed(link->reader, buf, (size_t)got))
            return HF_UNAVAILABLE;
    }
}

bool hfi_mux_say(struct mux_link *link, const char *bytes, size_t len,
                 int64_t deadline)
{
    return hfi_stream_write(&link->base.stream, bytes, len, deadline);
}

void hfi_mux_close(struct mux_link *link)
{
    mux_link_free(link);
}
