/* SPDX-License-Identifier: MIT
 *
 * break.c - breaking a lock: its holder is told, and the key ends with the
 * release or the lease (B), or at once (F).
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

/* B, or F, which may have to be repeated: see fenced.lua. */
static hf_status break_step(struct redis_conn *rc, char op, const char *key,
                            uint64_t fence, int64_t deadline,
                            struct hf_error *err)
{
    struct hfi_claim claim = {.key = key};
    char number[24];
    const char *argv[] = {number};
    bool freed = false;
    redisReply *reply;
    uint64_t said;
    hf_status st;

    snprintf(number, sizeof(number), "%" PRIu64, fence);
    do {
        st = redis_eval(rc, NULL, op, &claim, 1, argv, &reply, deadline, err);
        if (st)
            return st;
        said = redis_number(reply);
        freeReplyObject(reply);
        freed = freed || said == 2;
    } while (said == 2 || said == 4);
    return said || freed ? HF_OK
                         : hfi_fail(err, HF_LOST, "%s: that grant is over",
                                    rc->base.endpoint);
}

hf_status redis_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                      int64_t deadline, struct hf_error *err)
{
    return break_step((struct redis_conn *)conn, 'B', key, fence, deadline,
                      err);
}

hf_status redis_free(struct hfi_conn *conn, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *err)
{
    return break_step((struct redis_conn *)conn, 'F', key, fence, deadline,
                      err);
}
