/* SPDX-License-Identifier: MIT
 *
 * redis_lock.c - taking, keeping and giving back; the rules are in redis.c, and
 * what happens on the server is in redis_script.c.
 */
#include "redis.h"

#include <inttypes.h>

#include "../env.h"
#include "../mem.h"

#include "../banned.h"

/* A place lasts this long after its waiter's last try, at least. */
#define PATIENCE_MIN INT64_C(5000)

/* A waiter that cannot be told asks this often. */
#define DEAF_MS 100

/* ---- taking ------------------------------------------------------------ */

/* The fence, as text; or {ms left, place}. */
static hf_status take_read(struct redis_conn *rc, const redisReply *reply,
                           struct hfi_grant *grant, struct hfi_answer *busy,
                           struct hf_error *err)
{
    if (reply->type == REDIS_REPLY_STRING) {
        grant->fence = redis_number(reply);
        return grant->fence ? HF_OK : redis_nonsense(rc, err);
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
        return redis_nonsense(rc, err);
    busy->left_ms = (int64_t)redis_number(reply->element[0]);
    busy->place = (int32_t)redis_number(reply->element[1]);
    return HF_BUSY;
}

static hf_status take_fenced(struct redis_conn *rc,
                             const struct hfi_claim *claim,
                             struct hfi_grant *grant, struct hfi_answer *busy,
                             int64_t deadline, struct hf_error *err)
{
    int64_t wait = claim->ttl_ms > PATIENCE_MIN ? claim->ttl_ms : PATIENCE_MIN;
    char ttl[24], patience[24], nth[16], channel[REDIS_CHANNEL_MAX] = "";
    char about[REDIS_CHANNEL_MAX + HF_NOTE_MAX + 16];
    const char *argv[] = {ttl, about, patience, nth, channel};
    redisReply *reply;
    hf_status st;

    if (grant->ref.ints[0])
        redis_channel(rc, claim->key, channel);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    snprintf(about, sizeof(about), "%zu %s%s", strlen(channel), channel,
             claim->note ? claim->note : "");
    if (claim->queue) {
        snprintf(patience, sizeof(patience), "%" PRId64, wait);
        snprintf(nth, sizeof(nth), "%" PRIu32, claim->nth);
    }
    st = redis_step(rc, NULL, 'A', claim, claim->queue ? 5 : 2, argv, &reply,
                    deadline, err);
    if (st)
        return st;
    st = take_read(rc, reply, grant, busy, err);
    freeReplyObject(reply);
    return st;
}

/* The grant counts only once enough replicas have it; else it is given back.
 * Once that was answered nothing is left there, and the failure is certain. */
static hf_status take_confirm(struct redis_conn *rc,
                              const struct hfi_claim *claim,
                              struct hfi_grant *grant, int64_t deadline,
                              struct hf_error *err)
{
    int64_t now = hfi_now();
    hf_status undone,
        st = redis_acks_confirm(rc, claim, grant,
                                now + (deadline - now) / 4 * 3, err);

    if (!st)
        return HF_OK;
    undone = redis_release(&rc->base, claim, grant, deadline, NULL);
    if (undone && undone != HF_LOST)
        return hfi_restate(err, HF_UNCERTAIN);
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

/* Be listening before the try, or nobody will wake us.  A server that is away is
 * looked for by the try, which backs off; only then is it listened to. */
static bool take_listen(struct redis_conn *rc, const struct hfi_claim *claim,
                        int64_t deadline)
{
    int64_t now = hfi_now();

    return hfi_mux_is_up(redis_route(rc, claim->key)) &&
           !redis_sub_ensure(rc, claim->key, now + (deadline - now) / 2, NULL);
}

hf_status redis_try_acquire(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            struct hfi_grant *grant, struct hfi_answer *busy,
                            int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    bool deaf = false;
    hf_status st = redis_acks_may(rc, claim->key, deadline, err);

    if (st)
        return st;
    if (grant->ref.ints[0]) /* watched */
        deaf = !take_listen(rc, claim, deadline);
    if (rc->acquire == REDIS_FENCED)
        st = take_fenced(rc, claim, grant, busy, deadline, err);
    else
        st = redis_bare_take(rc, claim, deadline, err);
    if (st == HF_OK && rc->replicas)
        st = take_confirm(rc, claim, grant, deadline, err);
    if (st == HF_OK)
        grant->placed = true;
    else if (st == HF_BUSY)
        grant->placed = claim->queue && rc->acquire == REDIS_FENCED;
    if (st == HF_BUSY && (deaf || redis_is_moving(rc)) &&
        (!busy->left_ms || busy->left_ms > DEAF_MS))
        busy->left_ms = DEAF_MS; /* Nobody will wake us. */
    return st;
}

/* ---- keeping and giving back ------------------------------------------- */

hf_status redis_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_grant *grant, int64_t deadline,
                        struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    redisReply *reply;
    bool done;
    hf_status st;

    if (rc->acquire != REDIS_FENCED) {
        st = redis_bare_release(rc, claim, deadline, err);
        grant->placed = grant->placed && st && st != HF_LOST;
        return st;
    }
    st = redis_step(rc, NULL, 'L', claim, 0, NULL, &reply, deadline, err);
    if (st)
        return st;
    done = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1;
    freeReplyObject(reply);
    grant->placed = false;
    return done ? HF_OK
                : hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                           conn->endpoint);
}

/* ---- waking ------------------------------------------------------------ */

/* A holder that lets its lock linger says where it can be asked for it. */
static hf_status watch_holder(struct redis_conn *rc,
                              const struct hfi_claim *claim, int64_t deadline,
                              struct hf_error *err)
{
    char channel[REDIS_CHANNEL_MAX];
    const char *argv[] = {channel};
    redisReply *reply;
    hf_status st;

    redis_channel(rc, claim->key, channel);
    st = redis_step(rc, NULL, 'H', claim, 1, argv, &reply, deadline, err);
    if (st)
        return st;
    if (redis_number(reply) > 0)
        hfi_wanted(&rc->base, claim->key);
    freeReplyObject(reply);
    return HF_OK;
}

hf_status redis_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                      struct hfi_grant *grant, int64_t deadline,
                      struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    hf_status st;

    if (rc->acquire != REDIS_FENCED)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: nobody is told of bare locks",
                        conn->endpoint);
    redis_sub_want(rc, claim->key, 1);
    st = redis_sub_ensure(rc, claim->key, deadline, err);
    if (!st && grant->fence)
        st = watch_holder(rc, claim, deadline, err);
    if (st)
        redis_sub_want(rc, claim->key, -1);
    grant->ref.ints[0] = !st;
    return st;
}

void redis_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                   struct hfi_grant *grant)
{
    redis_sub_want((struct redis_conn *)conn, claim->key, -1);
    grant->ref.ints[0] = 0;
}

hf_status redis_attach(struct hfi_conn *conn, const struct hfi_claim *claim,
                       const struct hf_handle *handle, struct hfi_grant *grant,
                       struct hf_error *err)
{
    (void)conn;
    (void)claim;
    (void)err;
    grant->fence = handle->fence;
    return HF_OK; /* The renewal that follows tells whether it is there. */
}
