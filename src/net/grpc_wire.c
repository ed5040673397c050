/* SPDX-License-Identifier: MIT
 *
 * grpc_wire.c - one HTTP/2 connection that speaks gRPC; see grpc_wire.h.
 *
 * nghttp2 knows the frames, the header compression and both directions of flow
 * control; here is what gRPC makes of them: a request is a stream with one
 * POST, a message is five bytes and a body, and the verdict is in the trailers.
 *
 * INVARIANTS
 *  (1) A call is in `calls` from its submission until it is done or the link
 *      breaks, and only so long does its stream point to it.
 *  (2) A call is `sent` before its last byte can be, never after: what is not
 *      sent has certainly not been taken.
 *  (3) Nothing that a peer sends is believed: lengths are bounded, a verdict
 *      that is missing is no verdict.
 */
#include "grpc_wire.h"

#include <errno.h>
#include <nghttp2/nghttp2.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* How much a server may send before it hears from us. */
#define H2_WINDOW (1 << 20)

/* ---- ends -------------------------------------------------------------- */

void h2_link_abandon(struct h2_link *link, struct hfi_h2_call *call)
{
    hfi_link_remove(&call->base.in_calls);
    if (call->stream_id <= 0 || link->base.broken)
        return;
    nghttp2_session_set_stream_user_data(link->session, call->stream_id, NULL);
    nghttp2_submit_rst_stream(link->session, NGHTTP2_FLAG_NONE, call->stream_id,
                              NGHTTP2_CANCEL);
}

/* ---- what nghttp2 tells ------------------------------------------------ */

static bool header_is(const uint8_t *name, size_t len, const char *want)
{
    return len == strlen(want) && !memcmp(name, want, len);
}

/* A small number; -1 if it is none. */
static int header_number(const uint8_t *value, size_t len)
{
    int n = 0;
    size_t i;

    for (i = 0; i < len && i < 5; i++) {
        if (value[i] < '0' || value[i] > '9')
            return -1;
        n = n * 10 + (value[i] - '0');
    }
    return i && i == len ? n : -1;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame,
                     const uint8_t *name, size_t name_len, const uint8_t *value,
                     size_t len, uint8_t flags, void *arg)
{
    struct hfi_h2_call *call =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);

    (void)flags;
    (void)arg;
    if (!call)
        return 0;
    if (header_is(name, name_len, ":status"))
        call->http_status = header_number(value, len);
    else if (header_is(name, name_len, "grpc-status"))
        call->grpc_status = header_number(value, len);
    else if (header_is(name, name_len, "grpc-message"))
        snprintf(call->message, sizeof(call->message), "%.*s",
                 len > 150 ? 150 : (int)len, (const char *)value);
    return 0;
}

static uint32_t message_len(const unsigned char *prefix)
{
    return (uint32_t)prefix[1] << 24 | (uint32_t)prefix[2] << 16 |
           (uint32_t)prefix[3] << 8 | prefix[4];
}

void h2_prefix(unsigned char *body, size_t len)
{
    size_t n = len - HFI_GRPC_PREFIX;

    body[0] = 0; /* not compressed */
    body[1] = (unsigned char)(n >> 24);
    body[2] = (unsigned char)(n >> 16);
    body[3] = (unsigned char)(n >> 8);
    body[4] = (unsigned char)n;
}

/* Tell the messages of a stream that have come whole; false: a bad reply. */
static bool stream_tell(struct hfi_h2_call *call)
{
    size_t at = 0, size;

    while (call->answer_len - at >= HFI_GRPC_PREFIX) {
        size = message_len(call->answer + at);
        if (call->answer[at] || size > HFI_GRPC_MAX)
            return false;
        if (call->answer_len - at - HFI_GRPC_PREFIX < size)
            break;
        call->heard(call->arg, call->answer + at + HFI_GRPC_PREFIX, size);
        at += HFI_GRPC_PREFIX + size;
    }
    if (at)
        memmove(call->answer, call->answer + at, call->answer_len - at);
    call->answer_len -= at;
    return true;
}

static bool answer_append(struct hfi_h2_call *call, const void *bytes,
                          size_t len)
{
    size_t room = call->room ? call->room : 512;
    unsigned char *grown;

    if (len > HFI_GRPC_MAX || call->answer_len + len > HFI_GRPC_MAX)
        return false;
    while (room < call->answer_len + len)
        room *= 2;
    if (room != call->room) {
        grown = hfi_realloc(call->answer, room);
        if (!grown)
            return false;
        call->answer = grown;
        call->room = room;
    }
    memcpy(call->answer + call->answer_len, bytes, len);
    call->answer_len += len;
    return true;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id,
                   const uint8_t *bytes, size_t len, void *arg)
{
    struct hfi_h2_call *call =
        nghttp2_session_get_stream_user_data(session, id);
    struct h2_link *link = arg;

    (void)flags;
    if (!call)
        return 0;
    if (answer_append(call, bytes, len) && (!call->heard || stream_tell(call)))
        return 0;
    snprintf(call->message, sizeof(call->message),
             "the answer makes no sense or is too large");
    h2_link_abandon(link, call);
    hfi_shared_answer(&link->base, &call->base, HF_UNCERTAIN);
    return 0;
}

/* What the end of a stream means to who asked.  grpc_wire.c (3) */
static hf_status call_verdict(const struct hfi_h2_call *call, uint32_t error)
{
    if (error == NGHTTP2_REFUSED_STREAM || !call->sent)
        return HF_UNAVAILABLE;
    if (call->grpc_status > 0)
        return HF_OK;
    if (error || call->grpc_status < 0 || call->http_status != 200)
        return HF_UNCERTAIN;
    if (call->heard)
        return HF_UNAVAILABLE;
    return call->answer_len >= HFI_GRPC_PREFIX && !call->answer[0] &&
                   message_len(call->answer) ==
                       call->answer_len - HFI_GRPC_PREFIX
               ? HF_OK
               : HF_UNCERTAIN;
}

static int on_close(nghttp2_session *session, int32_t id, uint32_t error,
                    void *arg)
{
    struct hfi_h2_call *call =
        nghttp2_session_get_stream_user_data(session, id);

    if (call)
        hfi_shared_answer(arg, &call->base, call_verdict(call, error));
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame,
                    void *arg)
{
    struct h2_link *link = arg;

    (void)session;
    if (frame->hd.type == NGHTTP2_SETTINGS &&
        !(frame->hd.flags & NGHTTP2_FLAG_ACK))
        link->greeted = true;
    else if (frame->hd.type == NGHTTP2_GOAWAY)
        link->base.retired = true;
    else if (frame->hd.type == NGHTTP2_PING &&
             frame->hd.flags & NGHTTP2_FLAG_ACK)
        link->pinged = false;
    return 0;
}

/* ---- sending ----------------------------------------------------------- */

static ssize_t body_read(nghttp2_session *session, int32_t id, uint8_t *to,
                         size_t size, uint32_t *flags,
                         nghttp2_data_source *source, void *arg)
{
    struct hfi_h2_call *call =
        nghttp2_session_get_stream_user_data(session, id);
    size_t left;

    (void)source;
    (void)arg;
    if (!call) /* It was given up. */
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    left = call->len - call->at;
    if (call->heard && !left)
        return NGHTTP2_ERR_DEFERRED;
    if (left > size)
        left = size;
    memcpy(to, call->body + call->at, left);
    call->at += left;
    if (!call->heard && call->at == call->len)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    call->sent = true; /* grpc_wire.c (2) */
    return (ssize_t)left;
}

#define HEADER(name, value)                                                    \
    {                                                                          \
        (uint8_t *)(uintptr_t)(name), (uint8_t *)(uintptr_t)(value),           \
            strlen(name), strlen(value), NGHTTP2_NV_FLAG_NO_COPY_NAME          \
    }

hf_status h2_link_submit(struct h2_link *link, struct hfi_h2_call *call,
                         const char *token, struct hf_error *err)
{
    nghttp2_nv headers[] = {
        HEADER(":method", "POST"),
        HEADER(":scheme", link->tls ? "https" : "http"),
        HEADER(":path", call->path),
        HEADER(":authority", link->authority),
        HEADER("content-type", "application/grpc"),
        HEADER("te", "trailers"),
        HEADER("", ""),
        HEADER("", ""),
    };
    size_t n = sizeof(headers) / sizeof(headers[0]) - 2;
    nghttp2_data_provider body = {.read_callback = body_read};

    if (!call->patient)
        headers[n++] = (nghttp2_nv)HEADER("hasleader", "true");
    if (token)
        headers[n++] = (nghttp2_nv)HEADER("token", token);
    call->at = 0;
    call->sent = call->base.done = false;
    call->grpc_status = call->http_status = -1;
    call->stream_id =
        nghttp2_submit_request(link->session, NULL, headers, n, &body, call);
    if (call->stream_id < 0)
        return hfi_fail(err, HF_UNAVAILABLE, "http/2: %s",
                        nghttp2_strerror(call->stream_id));
    hfi_link_append(&link->base.calls,
                    &call->base.in_calls); /* grpc_wire.c (1) */
    if (link->base.stream.traffic)
        hfi_traffic_add(&link->base.stream.traffic->requests, 1);
    return HF_OK;
}

void h2_link_resume(struct h2_link *link, struct hfi_h2_call *call)
{
    nghttp2_session_resume_data(link->session, call->stream_id);
}

void h2_link_ping(struct h2_link *link)
{
    link->pinged = true;
    nghttp2_submit_ping(link->session, NGHTTP2_FLAG_NONE, NULL);
}

/* After a frame that breaks the rules nghttp2 says goodbye and takes no more
 * requests: nothing will ever come of this connection. */
static void link_check_end(struct h2_link *link)
{
    if (!nghttp2_session_want_read(link->session) &&
        !nghttp2_session_want_write(link->session))
        hfi_shared_break(&link->base, "the connection has ended", 0);
}

bool h2_link_collect(struct h2_link *link)
{
    const uint8_t *bytes;
    ssize_t len = 0;

    while (!link->base.broken &&
           (len = nghttp2_session_mem_send(link->session, &bytes)) > 0)
        if (!hfi_sendbuf_add(&link->base.out, bytes, (size_t)len)) {
            hfi_shared_break(&link->base, "out of memory", 0);
            return false;
        }
    if (len < 0)
        hfi_shared_break(&link->base, nghttp2_strerror((int)len), 0);
    else
        link_check_end(link);
    return !link->base.broken;
}

bool h2_link_feed(struct h2_link *link, const void *bytes, size_t len)
{
    ssize_t got;

    if (link->base.broken)
        return false;
    got = nghttp2_session_mem_recv(link->session, bytes, len);
    if (got < 0)
        hfi_shared_break(&link->base, nghttp2_strerror((int)got), 0);
    else
        link_check_end(link);
    return !link->base.broken;
}

/* ---- connecting -------------------------------------------------------- */

static bool session_begin(struct h2_link *link)
{
    static const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_WINDOW},
    };
    nghttp2_session_callbacks *calls;
    bool ok;

    if (nghttp2_session_callbacks_new(&calls))
        return false;
    nghttp2_session_callbacks_set_on_header_callback(calls, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(calls, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(calls, on_close);
    nghttp2_session_callbacks_set_on_frame_recv_callback(calls, on_frame);
    ok = !nghttp2_session_client_new(&link->session, calls, link) &&
         !nghttp2_submit_settings(link->session, NGHTTP2_FLAG_NONE, settings,
                                  2) &&
         !nghttp2_session_set_local_window_size(
             link->session, NGHTTP2_FLAG_NONE, 0, H2_WINDOW);
    nghttp2_session_callbacks_del(calls);
    return ok && h2_link_collect(link);
}

/* Exchange settings. */
static hf_status link_greet(struct h2_link *link, int64_t deadline,
                            struct hf_error *err)
{
    char buf[1024];
    ssize_t got;

    while (!link->greeted) {
        if (link->base.out.len &&
            !hfi_stream_write(&link->base.stream, link->base.out.bytes,
                              link->base.out.len, deadline))
            return hfi_fail_errno(err, HF_UNAVAILABLE, errno, "cannot send");
        link->base.out.len = 0;
        got = hfi_stream_read(&link->base.stream, buf, sizeof(buf), deadline);
        if (got < 0)
            return hfi_fail_errno(err, HF_UNAVAILABLE, errno, "no greeting");
        if (got == 0)
            return hfi_fail(err, HF_UNAVAILABLE,
                            "the server closed the connection");
        if (!h2_link_feed(link, buf, (size_t)got) || !h2_link_collect(link))
            return hfi_fail(err, HF_UNAVAILABLE, "it does not speak HTTP/2: %s",
                            link->base.why.text);
    }
    return HF_OK;
}

struct h2_link *h2_link_new(struct hfi_h2 *h2, size_t end)
{
    const struct hfi_endpoint *to = &h2->ends[end];
    struct h2_link *link = hfi_alloc(sizeof(*link));

    if (!link)
        return NULL;
    hfi_shared_link_init(&link->base, &h2->shared);
    link->end = end;
    link->tls = to->tls != NULL;
    hfi_link_init(&link->own.base.in_calls);
    hfi_endpoint_name(to, link->authority, sizeof(link->authority));
    if (session_begin(link))
        return link;
    h2_link_free(link);
    return NULL;
}

hf_status h2_link_open(struct hfi_h2 *h2, size_t end, int64_t deadline,
                       struct h2_link **ret, struct hf_error *err)
{
    struct h2_link *link = h2_link_new(h2, end);
    hf_status st;

    if (!link)
        return hfi_nomem(err);
    st = hfi_stream_open(&link->base.stream, &h2->ends[end], deadline, err);
    if (!st)
        st = link_greet(link, deadline, err);
    if (st)
        h2_link_free(link);
    else
        *ret = link;
    return st;
}

void h2_link_free(struct h2_link *link)
{
    if (!link)
        return;
    if (link->session)
        nghttp2_session_del(link->session);
    hfi_shared_link_fini(&link->base);
    hfi_free(link->own.body);
    hfi_free(link->own.answer);
    hfi_free(link);
}
