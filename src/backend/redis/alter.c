/* SPDX-License-Identifier: MIT
 *
 * alter.c - a grant becomes another: shared instead of exclusive (W), or taken
 * for a while without a holder (K), or a waiter is the next to have it (P).  Each
 * is one step of the script, finds the grant by token and fence, and may be
 * repeated.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

/* The script's answer when others with the same owner id have the lock, too. */
#define JOINED 6

static hf_status alter_step(struct redis_conn *rc, char op,
                            const struct hfi_claim *claim,
                            const struct hfi_receipt *receipt, int64_t ms,
                            int64_t deadline, struct hf_error *err)
{
    char fence[24], life[24];
    const char *argv[] = {fence, life};
    redisReply *reply;
    uint64_t said;
    hf_status st;

    snprintf(fence, sizeof(fence), "%" PRIu64, receipt->fence);
    snprintf(life, sizeof(life), "%" PRId64, ms);
    st = redis_eval(rc, NULL, op, claim, op == 'K' ? 2 : 1, argv, &reply,
                    deadline, err);
    if (st)
        return st;
    said = redis_number(reply);
    freeReplyObject(reply);
    if (said == JOINED)
        return hfi_fail_joined(err, claim);
    return said ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                           rc->base.endpoint);
}

hf_status redis_downgrade(struct hfi_conn *conn, const struct hfi_claim *claim,
                          struct hfi_receipt *receipt, int64_t deadline,
                          struct hf_error *err)
{
    return alter_step((struct redis_conn *)conn, 'W', claim, receipt, 0,
                      deadline, err);
}

hf_status redis_keep(struct hfi_conn *conn, const struct hfi_claim *claim,
                     struct hfi_receipt *receipt, int64_t ms, int64_t deadline,
                     struct hf_error *err)
{
    hf_status st = alter_step((struct redis_conn *)conn, 'K', claim, receipt,
                              ms, deadline, err);

    if (!st)
        receipt->registered = false;
    return st;
}

hf_status redis_promote(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt, const char *heir,
                        int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    char fence[24];
    const char *argv[] = {fence, heir};
    redisReply *reply;
    uint64_t said;
    hf_status st;

    if (!rc->fair || rc->acquire != REDIS_FENCED)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: there is no queue",
                        conn->endpoint);
    snprintf(fence, sizeof(fence), "%" PRIu64, receipt->fence);
    st = redis_eval(rc, NULL, 'P', claim, 2, argv, &reply, deadline, err);
    if (st)
        return st;
    said = redis_number(reply);
    freeReplyObject(reply);
    if (said == 1)
        return HF_OK;
    if (said == 2)
        return hfi_fail(err, HF_INVALID, "%s: nobody of that name waits",
                        conn->endpoint);
    return hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                    conn->endpoint);
}
