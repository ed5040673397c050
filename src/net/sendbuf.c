/* SPDX-License-Identifier: MIT
 *
 * sendbuf.c - what callers have to send over one connection; see sendbuf.h.
 *
 * What is being written belongs to the writer: others find an empty box.  The
 * larger of the two rooms is kept for what comes next.
 */
#include "sendbuf.h"

#include <errno.h>

#include "base/alloc.h"

#include "base/banned.h"

#define SENDBUF_ROOM 4096

bool hfi_sendbuf_add(struct hfi_sendbuf *box, const void *bytes, size_t len)
{
    size_t room = box->room ? box->room : SENDBUF_ROOM;
    char *grown;

    while (room < box->len + len)
        room *= 2;
    if (room != box->room) {
        grown = hfi_realloc(box->bytes, room);
        if (!grown)
            return false;
        box->bytes = grown;
        box->room = room;
    }
    memcpy(box->bytes + box->len, bytes, len);
    box->len += len;
    return true;
}

bool hfi_sendbuf_write(struct hfi_sendbuf *box, struct hfi_stream *stream,
                       pthread_mutex_t *mu, int64_t deadline)
{
    struct hfi_sendbuf out = *box;
    bool ok;
    int why;

    *box = (struct hfi_sendbuf){0};
    pthread_mutex_unlock(mu);
    ok = hfi_stream_write(stream, out.bytes, out.len, deadline);
    why = errno;
    pthread_mutex_lock(mu);
    if (box->bytes) {
        hfi_free(out.bytes);
    } else {
        *box = out;
        box->len = 0;
    }
    errno = why;
    return ok;
}

void hfi_sendbuf_fini(struct hfi_sendbuf *box)
{
    hfi_free(box->bytes);
    *box = (struct hfi_sendbuf){0};
}
