/* SPDX-License-Identifier: MIT
 *
 * release.c - giving back a grant, or a place in the queue.
 *
 * A release says which claim it is for, and a grant that is given back before
 * its claim is over also by which fence: what arrives late ends nothing else.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

/* What the script says of a grant that was broken; the second is to be repeated. */
#define WAS_BROKEN       6
#define WAS_BROKEN_AGAIN 7

/* L, or D if the claim is over and a try of it may still arrive, or G if it is
 * not over; repeated while there are dead waiters to be passed over.  *said is
 * what it said, or 0 if the grant was broken. */
static hf_status give_step(struct redis_conn *rc, const struct hfi_claim *claim,
                           const struct hfi_receipt *receipt, bool over,
                           uint64_t *said, int64_t deadline,
                           struct hf_error *err)
{
    char op = !over ? 'G' : claim->doubt ? 'D' : 'L';
    char number[24];
    const char *argv[] = {number};
    bool ours = false, broken = false;
    redisReply *reply;
    hf_status st;

    if (op == 'D')
        snprintf(number, sizeof(number), "%" PRId64,
                 claim->ttl_ms + REDIS_LATE_MS);
    else
        snprintf(number, sizeof(number), "%" PRIu64, receipt->fence);
    do {
        st = redis_eval_ahead(rc, &redis_own(receipt)->ahead, op, claim,
                              op != 'L', argv, &reply, deadline, err);
        if (st)
            return st;
        *said = redis_number(reply);
        freeReplyObject(reply);
        ours = ours || *said == 2;
        broken = broken || *said == WAS_BROKEN || *said == WAS_BROKEN_AGAIN;
    } while (*said == 2 || *said == 4 || *said == WAS_BROKEN_AGAIN);
    if (!*said && ours)
        *said = 1; /* It ended before all were passed over. */
    if (broken)
        *said = 0;
    return HF_OK;
}

hf_status redis_give_back(struct redis_conn *rc, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, bool over,
                          int64_t deadline, struct hf_error *err)
{
    bool unfenced = rc->acquire != REDIS_FENCED;
    uint64_t said = 0;
    hf_status st = HF_UNAVAILABLE;

    if (!unfenced)
        st = give_step(rc, claim, receipt, over, &said, deadline, err);
    if (unfenced || (st == HF_UNAVAILABLE && over && redis_is_plain(claim) &&
                     redis_is_moving(rc)))
        st = redis_unfenced_release(rc, claim, deadline, err);
    else if (!st && !said)
        st = hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                      rc->base.endpoint);
    if (said == 5 && !atomic_exchange(&rc->silent, true))
        hfi_warn(&rc->base, redis_silent_warning);
    if (!st || st == HF_LOST)
        receipt->registered = false;
    return st;
}

hf_status redis_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt, int64_t deadline,
                        struct hf_error *err)
{
    return redis_give_back((struct redis_conn *)conn, claim, receipt, true,
                           deadline, err);
}
