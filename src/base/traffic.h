/* SPDX-License-Identifier: MIT
 *
 * traffic.h - what goes to a service and comes back, counted where it does.
 *
 * Only for hf_stats(): the counts order nothing, so they are relaxed.
 */
#ifndef HFI_TRAFFIC_H
#define HFI_TRAFFIC_H

#include <stdatomic.h>
#include <stdint.h>

struct hfi_traffic {
    _Atomic uint64_t requests, sent, received; /* the last two in bytes */
};

static inline void hfi_traffic_add(_Atomic uint64_t *count, uint64_t n)
{
    atomic_fetch_add_explicit(count, n, memory_order_relaxed);
}

#endif
