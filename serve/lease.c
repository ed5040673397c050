/* SPDX-License-Identifier: MIT
 *
 * lease.c - what is known of one lock's times: how long it has been held, what is
 * left of its lease, and how long the whole lease is, which no service tells.
 */
#include "serve.h"

/* Of a service that does not say how long its leases are, in ms. */
#define SERVE_LEASE 30000

/* Another lease: how long it may be.  The first sight says no more than that it is
 * not longer than what is left and what has passed since the grant; if that was
 * long ago, it is the usual one. */
void serve_lease_begin(struct serve_lock *lock, const struct hf_info *info,
                       int64_t now)
{
    int64_t usual = serve_table.services[lock->service].lease_ms;
    int64_t since = info->since_ms;

    if (since < 0 && lock->witnessed)
        since = now - lock->begun;
    if (usual <= 0)
        usual = SERVE_LEASE;
    if (since >= 0 && info->left_ms + since < usual)
        usual = info->left_ms + since;
    lock->full = 0;
    lock->whole = info->left_ms > usual ? info->left_ms : usual;
    lock->first = now + info->left_ms;
    lock->renewed = false;
}

/* Does it show that a lease is much shorter than was thought? */
bool serve_lease_is_short(const struct serve_lock *lock,
                          const struct hf_info *info, int64_t now)
{
    int64_t full = info->left_ms > lock->full ? info->left_ms : lock->full;

    return info->held && lock->info.held && !lock->renewed &&
           lock->info.fence == info->fence && 2 * full <= lock->whole &&
           now + info->left_ms - lock->first > SERVE_JITTER;
}

int64_t serve_left(const struct serve_lock *lock, int64_t now)
{
    int64_t left = lock->info.left_ms;

    if (left < 0)
        return -1;
    return left > now - lock->seen ? left - (now - lock->seen) : 0;
}

int64_t serve_since(const struct serve_lock *lock, int64_t now)
{
    return lock->info.since_ms < 0 ? -1
                                   : lock->info.since_ms + now - lock->seen;
}

/* How long it has been held, as the service says or else since it was seen. */
int64_t serve_age(const struct serve_lock *lock, int64_t now)
{
    return lock->info.since_ms < 0 ? now - lock->begun : serve_since(lock, now);
}

/* How long the whole lease is, as far as that is known.  Holders renew in thirds
 * of it, so of the usual one two thirds are left at least. */
int64_t serve_lease(const struct serve_lock *lock)
{
    int64_t usual = serve_table.services[lock->service].lease_ms;

    if (!lock->renewed)
        return lock->whole;
    return lock->full < usual && 3 * lock->full >= 2 * usual ? usual
                                                             : lock->full;
}
