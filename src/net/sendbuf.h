/* SPDX-License-Identifier: MIT
 *
 * sendbuf.h - what callers have to send over one connection, in order.
 *
 * Whoever adds something has the mutex; who writes lets it go, so that others
 * can add meanwhile.  At most one writes, and goes on until nothing is left.
 */
#ifndef HFI_OUTBOX_H
#define HFI_OUTBOX_H

#include <pthread.h>

#include "stream.h"

struct hfi_outbox {
    char *bytes;
    size_t len, room;
};

/* False: no memory. */
bool hfi_outbox_add(struct hfi_outbox *, const void *bytes, size_t len);

/* Write all that stands in it now; false, and errno, if that failed.  With the
 * mutex held, which is let go meanwhile. */
bool hfi_outbox_write(struct hfi_outbox *, struct hfi_stream *,
                      pthread_mutex_t *, int64_t deadline);
void hfi_outbox_fini(struct hfi_outbox *);

#endif
