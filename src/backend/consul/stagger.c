/* SPDX-License-Identifier: MIT
 *
 * stagger.c - not all who wait try at once when a lock is free.
 *
 * Without queue=fair a release is told to all who wait, in all clients, and
 * every try is a write, also one that finds the key taken: a hundred waiters
 * would make a hundred entries in the log of every release.  A lone waiter
 * tries at once and always will.  A waiter that has tried and found that
 * another was faster waits for a moment the next time, up to 64 ms, and after
 * another such try up to 128.  The query goes on meanwhile, and if it says that
 * another has the key, the try is not made.
 *
 * So that those who come and go do not overtake one that waits for ever, it
 * counts how often the key was passed on and how many had it: when that was
 * more than twice each, it tries at once.
 */
#include "consul.h"

#include "base/banned.h"

#define SPREAD_MS    64
#define SPREAD_TIMES 1 /* it is doubled */

/* A number for the pair; those of different tokens have nothing in common. */
static uint64_t herd_hash(const char *text, uint64_t index)
{
    uint64_t hash = UINT64_C(14695981039346656037) ^ index;

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    return hash ^ hash >> 29;
}

/* The key is free: how long does the waiter `token` let others go first? */
int64_t hfi_consul_herd_delay(struct consul_herd *herd, const char *token,
                              uint64_t index)
{
    unsigned times = herd->misses - 1;
    int holders = __builtin_popcountll(herd->holders);

    if (!herd->misses)
        return 0;
    if (herd->passed > 2 * (unsigned)holders) {
        herd->passed = 0;
        herd->holders = 0;
        return 0;
    }
    if (times > SPREAD_TIMES)
        times = SPREAD_TIMES;
    return (int64_t)(herd_hash(token, index) % (SPREAD_MS << times));
}

/* This session has it; `ours`: we were not too late. */
void hfi_consul_herd_taken(struct consul_herd *herd, const char *session,
                           bool ours)
{
    if (herd->tried)
        herd->misses = ours ? 0 : herd->misses + 1;
    herd->tried = false;
    herd->passed++;
    herd->holders |= UINT64_C(1) << herd_hash(session, 0) % 64;
}
