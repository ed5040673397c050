/* SPDX-License-Identifier: MIT
 *
 * heap.h - things to do, ordered by time.
 *
 * A binary heap of nodes that live inside the things themselves, so that
 * adding, moving and removing never fails and allocates nothing: room is
 * reserved beforehand, where failure can still be reported.
 */
#ifndef HFI_HEAP_H
#define HFI_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hfi_timer {
    int64_t due;
    uint32_t slot; /* place in the heap, counted from 1; 0: not in it */
    uint32_t kind; /* for its owner */
};

struct hfi_heap {
    struct hfi_timer **timers;
    uint32_t len;
    uint32_t room;     /* allocated */
    uint32_t reserved; /* promised to timers, in the heap or not */
};

/* Promise room for one more timer; pair each with hfi_heap_unreserve(). */
bool hfi_heap_reserve(struct hfi_heap *);
void hfi_heap_unreserve(struct hfi_heap *);

/* Add the timer, or move it if it is there already. */
void hfi_heap_set(struct hfi_heap *, struct hfi_timer *, int64_t due);
void hfi_heap_remove(struct hfi_heap *, struct hfi_timer *);

/* The timer that is due first, or NULL. */
struct hfi_timer *hfi_heap_first(const struct hfi_heap *);

void hfi_heap_fini(struct hfi_heap *);

#endif
