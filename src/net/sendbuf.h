/* SPDX-License-Identifier: MIT
 *
 * sendbuf.h - what callers have to send over one connection, in order.
 *
 * Whoever adds something has the mutex; who writes lets it go, so that others
 * can add meanwhile.  At most one writes, and goes on until nothing is left.
 */
#ifndef HFI_SENDBUF_H
#define HFI_SENDBUF_H

#include <pthread.h>

#include "stream.h"

struct hfi_sendbuf {
    char *bytes;
    size_t len, room;
};

/* False: no memory. */
bool hfi_sendbuf_add(struct hfi_sendbuf *, const void *bytes, size_t len);

/* Write all that stands in it now; false, and errno, if that failed.  With the
 * mutex held, which is let go meanwhile. */
bool hfi_sendbuf_write(struct hfi_sendbuf *, struct hfi_stream *,
                       pthread_mutex_t *, int64_t deadline);
void hfi_sendbuf_fini(struct hfi_sendbuf *);

#endif
