/* SPDX-License-Identifier: MIT
 *
 * grpc_stream.c - a connection of one's own with one stream; see grpc_link.h.
 *
 * Its reader has others to wake and must not be kept: nothing here waits for
 * the server once it is connected, and a server that does not take what is sent
 * at once is left.
 */
#include <errno.h>

#include "base/alloc.h"
#include "base/env.h"
#include "grpc_wire.h"

#include "base/banned.h"

/* Write what there is, at once or never: its reader must not be kept. */
static hf_status own_flush(struct h2_link *link)
{
    if (!h2_link_collect(link))
        return HF_UNAVAILABLE;
    if (link->base.out.len &&
        !hfi_stream_write(&link->base.stream, link->base.out.bytes,
                          link->base.out.len, hfi_now() + H2_OWN_WRITE_MS)) {
        hfi_shared_break(&link->base, "cannot send", errno);
        return HF_UNAVAILABLE;
    }
    link->base.out.len = 0;
    return HF_OK;
}

hf_status hfi_h2_open(struct hfi_h2 *h2, const char *path, const char *token,
                      void (*heard)(void *, const void *, size_t), void *arg,
                      int64_t deadline, struct h2_link **ret,
                      struct hf_error *err)
{
    struct h2_link *link;
    size_t first;
    hf_status st;

    pthread_mutex_lock(&h2->shared.mu);
    link = (struct h2_link *)h2->shared.link;
    first = link ? link->end : h2->next;
    pthread_mutex_unlock(&h2->shared.mu);
    st = h2_find(h2, first, deadline, &link, err);
    if (st)
        return st;
    link->own.path = path;
    link->own.heard = heard;
    link->own.arg = arg;
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

    if (link->base.broken || own->base.done)
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
        got = hfi_stream_read(&link->base.stream, buf, sizeof(buf), 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return link->own.base.done ? HF_UNAVAILABLE : own_flush(link);
        if (got <= 0 || !h2_link_feed(link, buf, (size_t)got) ||
            link->own.base.done || link->base.retired)
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
    return link->base.stream.fd;
}

void hfi_h2_close(struct h2_link *link)
{
    h2_link_free(link);
}
