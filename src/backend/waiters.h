/* SPDX-License-Identifier: MIT
 *
 * waiters.h - those who wait, collected to be told of in their order.
 */
#ifndef HFI_WAITERS_H
#define HFI_WAITERS_H

#include "holdfast.h"

struct hfi_waiter {
    int64_t rank; /* the lowest is the next; of two with the same, the one that
                   * was added first */
    struct hf_waiter face;
};

struct hfi_waiters {
    struct hfi_waiter *items;
    size_t n, room;
    bool nomem; /* one could not be added */
};

/* One more, of which nothing is known yet; NULL: no memory. */
struct hf_waiter *hfi_waiters_add(struct hfi_waiters *, int64_t rank);

/* Tell of all in order, unless `st` or the want of memory forbids it, and free
 * them.  Returns `st`, or HF_NOMEM. */
hf_status hfi_waiters_tell(struct hfi_waiters *, hf_status st,
                           hf_waiters_fn *fn, void *arg, struct hf_error *err);

/* What a claim says of itself: its owner id, else its token, and its note; each
 * may be NULL. */
void hfi_waiter_names(struct hf_waiter *, const char *owner, const char *token,
                      const char *note);

#endif
