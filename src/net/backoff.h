/* SPDX-License-Identifier: MIT
 *
 * backoff.h - when a connection that failed may be tried again.
 */
#ifndef HFI_BACKOFF_H
#define HFI_BACKOFF_H

#include <stdbool.h>
#include <stdint.h>

struct hfi_backoff {
    int64_t until; /* not before */
    int64_t ms;    /* how long the last pause was, at most; 0: it went well */
};

bool hfi_backoff_waits(const struct hfi_backoff *);
void hfi_backoff_failed(struct hfi_backoff *);
void hfi_backoff_done(struct hfi_backoff *);

#endif
