/* SPDX-License-Identifier: MIT
 *
 * stats.h - counting for hf_stats(); see stats.c.
 */
#ifndef HFI_STATS_H
#define HFI_STATS_H

#include "core.h"

/* One more time that something took. */
static inline void hfi_histogram_add(struct hf_histogram *h, int64_t us)
{
    unsigned i = us > 0 ? 64 - (unsigned)__builtin_clzll((uint64_t)us) : 0;

    h->count++;
    h->sum_us += us > 0 ? (uint64_t)us : 0;
    h->buckets[i < 32 ? i : 31]++;
}

/* An acquisition is over.  One that this client could serve has not waited. */
void hfi_count_end(struct hf_request *, hf_status);
static inline void hfi_count_acquisition(struct hf_request *rq, hf_status st)
{
    struct hf_stats *stats = &rq->client->stats;

    if (st || rq->waited) {
        hfi_count_end(rq, st);
        return;
    }
    stats->granted++;
    stats->wait.count++;
    stats->wait.buckets[0]++;
}

void hfi_count_granted(struct hf_request *, struct hf_lock *);

/* The last handle of a grant ends at `now`, which has whole milliseconds: so the
 * beginning is taken in these as well, or the difference would be short by half of
 * one. */
static inline void hfi_count_held(struct hf_client *c, const struct hf_lock *lk,
                                  int64_t now)
{
    if (lk->since_us)
        hfi_histogram_add(&c->stats.hold, (now - lk->since_us / 1000) * 1000);
}

#endif
