/* SPDX-License-Identifier: MIT
 *
 * replicas.c - grants that replicas must have (replicas=K).
 *
 * WAIT tells how many replicas have what was last written over its own
 * connection.  Over one that nothing was written to it tells how many there
 * are, and that is no proof: the connection may have been made anew since the
 * grant.  So a grant is taken like any other, and then written once more, by a
 * renewal that is sent together with the WAIT.
 *
 * INVARIANTS
 *  (1) A grant is confirmed by a WAIT that follows, in the same send, a write
 *      which found that grant in place.  A replica has what its master wrote in
 *      the order in which that was written, so one that has the renewal has the
 *      grant, too.
 *  (2) What is sent after a WAIT is served after it.  So these connections are
 *      used for nothing else: one for each server, made when it is first
 *      needed.  A replica that is silent keeps nobody from renewing, releasing
 *      or being told that a lock is busy, and nobody on another node at all.
 *  (3) The renewal changes nothing unless the grant is in place, and never
 *      shortens its lease.  So one that is late does no harm.
 *  (4) A grant that is not confirmed is given back by its fence.  If that had
 *      no answer, it may arrive after the same token was granted the lock
 *      again. So that grant must have a greater fence, and is raised if it has
 *      not.  A lock without a fence is given back only by who tries once, and
 *      is not tried again if that had no answer.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

/* How long replicas are waited for when they were not there before. */
#define PROBE_MS 20

struct redis_replica_link *redis_replicas_of(struct redis_conn *rc,
                                             const struct hfi_mux *mux)
{
    struct redis_node *node = redis_node_of(rc, mux);

    return node ? &node->replica_link : &rc->replica_link;
}

void redis_replicas_add(struct redis_conn *rc, struct redis_batch *batch,
                        int64_t ms)
{
    char want[16], limit[24];
    const char *argv[] = {"WAIT", want, limit};

    snprintf(want, sizeof(want), "%d", rc->replicas);
    snprintf(limit, sizeof(limit), "%" PRId64, ms > 0 ? ms : 1); /* 0: ever */
    redis_batch_add(batch, 3, argv);
}

/* What WAIT said. */
static hf_status replicas_read(struct redis_conn *rc,
                               struct redis_replica_link *replica_link,
                               const redisReply *reply, struct hf_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR)
        return redis_error(rc, reply, err);
    if (reply->type != REDIS_REPLY_INTEGER)
        return redis_bad_reply(rc, err);
    if (reply->integer < rc->replicas)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: only %lld of %d replicas confirmed the lock",
                        rc->base.endpoint, reply->integer, rc->replicas);
    atomic_store(&replica_link->too_few, false);
    return HF_OK;
}

/* After a grant that was not confirmed, and until one is: are the replicas
 * there at all?  To find that out by another grant would hold up everybody who
 * wants one, for as long as a grant may take to be confirmed. */
hf_status redis_replicas_may(struct redis_conn *rc, const char *key,
                             int64_t deadline, struct hf_error *err)
{
    struct redis_batch batch = {0};
    struct redis_replica_link *replica_link;
    struct hfi_mux *mux;
    redisReply *reply;
    hf_status st;

    if (!rc->replicas)
        return HF_OK;
    mux = redis_route(rc, key);
    replica_link = redis_replicas_of(rc, mux);
    if (!atomic_load(&replica_link->too_few))
        return HF_OK;
    redis_replicas_add(rc, &batch, PROBE_MS);
    st =
        redis_batch_send(rc, &replica_link->mux, &batch, &reply, deadline, err);
    redis_batch_free(&batch);
    if (!st) {
        st = replicas_read(rc, replica_link, reply, err);
        freeReplyObject(reply);
    }
    if (st)
        redis_stir(rc, mux); /* WAIT has no key, and is not sent elsewhere. */
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

/* Write the grant again; *said is 1 if it was in place. */
static hf_status replicas_write(struct redis_conn *rc, struct redis_wait *wait,
                                const struct hfi_claim *claim,
                                const struct hfi_receipt *receipt, int *said,
                                int64_t deadline, struct hf_error *err)
{
    char ttl[24], fence[24];
    const char *argv[] = {ttl, fence};
    redisReply *reply;
    hf_status st;

    if (rc->acquire != REDIS_FENCED)
        return redis_unfenced_write(rc, wait, claim, said, deadline, err);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    snprintf(fence, sizeof(fence), "%" PRIu64, receipt->fence);
    /* Not S: if it is late, the lease may have been extended meanwhile. */
    st = redis_eval(rc, wait, 'C', claim, 2, argv, &reply, deadline, err);
    if (st)
        return st;
    *said = (int)redis_number(reply);
    freeReplyObject(reply);
    return HF_OK;
}

hf_status redis_replicas_confirm(struct redis_conn *rc,
                                 const struct hfi_claim *claim,
                                 const struct hfi_receipt *receipt,
                                 int64_t deadline, struct hf_error *err)
{
    struct redis_wait wait = {.ms = hfi_left_ms(deadline) / 3 * 2};
    struct redis_replica_link *replica_link =
        redis_replicas_of(rc, redis_route(rc, claim->key));
    int said = 0;
    hf_status st =
        replicas_write(rc, &wait, claim, receipt, &said, deadline, err);

    if (!st && said != 1)
        st = hfi_fail(err, HF_UNAVAILABLE,
                      "%s: the lock was gone before replicas had it",
                      rc->base.endpoint);
    if (!st)
        st = replicas_read(rc, replica_link, wait.reply, err);
    if (st)
        atomic_store(&replica_link->too_few, true);
    freeReplyObject(wait.reply);
    return st;
}
