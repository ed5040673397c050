/* SPDX-License-Identifier: MIT
 *
 * handle.c - locks that are passed on as handles.
 *
 * Nothing is asked when a handle is attached: the step that takes it over gives
 * the grant to a fresh token, once, by the token and the fence of the handle.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

hf_status redis_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
                       const struct hf_handle *handle,
                       struct hfi_receipt *receipt, struct hf_error *err)
{
    (void)conn;
    (void)claim;
    (void)err;
    receipt->fence = handle->fence;
    return HF_OK; /* The renewal that follows tells whether it is there. */
}

/* What T says of a member without a slot; slots are counted from there. */
#define TOOK_MEMBER 15

/* The script's T; 1 if the claim has it, or TOOK_MEMBER and more.  With a try in
 * doubt, the token that is replaced is refused from then on. */
static hf_status take_over_step(struct redis_conn *rc,
                                const struct hfi_claim *claim,
                                const char *token, uint64_t fence, int *said,
                                int64_t deadline, struct hf_error *err)
{
    char number[24], life[24];
    const char *argv[] = {token, number, life};
    redisReply *reply;
    hf_status st;

    snprintf(number, sizeof(number), "%" PRIu64, fence);
    snprintf(life, sizeof(life), "%" PRId64, claim->ttl_ms + REDIS_LATE_MS);
    st = redis_eval(rc, NULL, 'T', claim, claim->doubt ? 3 : 2, argv, &reply,
                    deadline, err);
    if (st)
        return st;
    *said = (int)redis_number(reply);
    freeReplyObject(reply);
    return HF_OK;
}

hf_status redis_take_over(struct hfi_conn *conn, const struct hfi_claim *claim,
                          const char *token, struct hfi_receipt *receipt,
                          int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    int said = 0;
    hf_status st =
        rc->acquire == REDIS_FENCED
            ? take_over_step(rc, claim, token, receipt->fence, &said, deadline,
                             err)
            : redis_unfenced_take_over(rc, claim, token, &said, deadline, err);

    if (!st && said >= TOOK_MEMBER)
        receipt->slot = said - TOOK_MEMBER - 1;
    if (st || said == 1 || said >= TOOK_MEMBER)
        return st;
    return hfi_fail(err, HF_LOST, "%s: the lock is not held by this handle%s",
                    rc->base.endpoint, said == 3 ? ": it was broken" : "");
}
