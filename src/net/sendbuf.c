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

#define OUTBOX_ROOM 4096

bool hfi_outbox_add(struct hfi_outbox *box, const void *bytes, size_t len)
{
    size_t room = box->room ? box->room : OUTBOX_ROOM;
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

bool hfi_outbox_write(struct hfi_outbox *box, struct hfi_stream *stream,
                      pthread_mutex_t *mu, int64_t deadline)
{
    struct hfi_outbox out = *box;
    bool ok;
    int why;

    *box = (struct hfi_outbox){0};
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

void hfi_outbox_fini(struct hfi_outbox *box)
{
    hfi_free(box->bytes);
    *box = (struct hfi_outbox){0};
}
