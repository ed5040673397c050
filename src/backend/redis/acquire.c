/* SPDX-License-Identifier: MIT
 *
 * acquire.c - taking a lock; the rules are in redis.c, and what happens on the
 * server is in fenced.lua.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* A place lasts this long after its waiter's last try, at least. */
#define PATIENCE_MIN INT64_C(5000)

/* A waiter that cannot be told asks this often. */
#define DEAF_MS 100

const char redis_silent_warning[] =
    "this user may not publish to those who wait, who must ask every 100 ms "
    "instead: see \"Rights\" in holdfast-redis(7)";

/* ---- fences ------------------------------------------------------------ */

/* The clock of a server that was promoted may be behind, and it may lack the
 * last grants.  What this client has seen is not forgotten: for each server, or
 * slot, the greatest fence of all keys.  A grant is given by a clock that has
 * passed that, or its fence is raised.  What is apart by more than a day was
 * not written by clocks that are a little apart. */
#define DAY_US (UINT64_C(86400) * 1000 * 1000)

/* What a clock that is kept by NTP may be moved by at once. */
#define CLOCK_STEP_US UINT64_C(2000)

static bool fence_falls(uint64_t fence, uint64_t floor)
{
    return fence <= floor && floor - fence < DAY_US;
}

static _Atomic uint64_t *fence_seen(struct redis_conn *rc, const char *key)
{
    return rc->cluster ? &rc->cluster->seen[redis_key_slot(rc, key)]
                       : &rc->seen;
}

bool redis_saw(struct redis_conn *rc, const char *key, uint64_t fence)
{
    _Atomic uint64_t *seen = fence_seen(rc, key);
    uint64_t old = atomic_load(seen);

    while (old < fence)
        if (atomic_compare_exchange_weak(seen, &old, fence))
            return true;
    return !fence_falls(fence, old);
}

/* The grant was given back without an answer. */
static void fence_return(struct hfi_receipt *receipt)
{
    struct redis_grant *own = receipt->own;

    own->returned = receipt->fence ? receipt->fence : UINT64_MAX;
}

/* The grant is ours, and its fence is not: let it be greater than `floor`. */
static hf_status fence_raise(struct redis_conn *rc,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt, uint64_t floor,
                             int64_t deadline, struct hf_error *err)
{
    char fence[24], least[24];
    const char *argv[] = {fence, least};
    redisReply *reply;
    hf_status st;

    snprintf(fence, sizeof(fence), "%" PRIu64, receipt->fence);
    snprintf(least, sizeof(least), "%" PRIu64, floor);
    st = redis_eval(rc, NULL, 'U', claim, 2, argv, &reply, deadline, err);
    if (st)
        return hfi_restate(err, HF_UNCERTAIN);
    receipt->fence = redis_number(reply);
    freeReplyObject(reply);
    return receipt->fence > floor
               ? HF_OK
               : hfi_fail(err, HF_UNCERTAIN,
                          "%s: the lock was gone before its fence was raised",
                          rc->base.endpoint);
}

/* ---- taking ------------------------------------------------------------ */

/* "FENCE", "FENCE/SLOT"; behind the fence may stand what *mark gets. */
static void take_read_grant(const redisReply *reply,
                            struct hfi_receipt *receipt, char *mark)
{
    const char *at = reply->str + strspn(reply->str, "0123456789");

    receipt->fence = redis_number(reply);
    if (*at == '=' || *at == '+')
        *mark = *at++;
    receipt->slot = *at == '/' ? (int32_t)strtol(at + 1, NULL, 10) : 0;
}

/* {permits, "use"}: it is in use like this; {0, "mode"}: by the same owner id,
 * in the other mode. */
static hf_status take_read_refusal(struct redis_conn *rc,
                                   const struct hfi_claim *claim,
                                   const redisReply *reply,
                                   struct hf_error *err)
{
    if (!strcmp(reply->element[1]->str, "use"))
        return hfi_fail_use(err, claim,
                            (int32_t)redis_number(reply->element[0]));
    if (!strcmp(reply->element[1]->str, "mode"))
        return hfi_fail_other_mode(err, claim);
    return redis_bad_reply(rc, err);
}

/* The fence, as text, with a = if it was granted before, or a + if others with
 * the same owner id have it, too; {ms left, place}; -1 if the try is to be
 * repeated; 0 if the claim is over; or a refusal. */
static hf_status take_read(struct redis_conn *rc, const struct hfi_claim *claim,
                           const redisReply *reply, struct hfi_receipt *receipt,
                           struct hfi_answer *busy, char *mark,
                           struct hf_error *err)
{
    *mark = '\0';
    if (reply->type == REDIS_REPLY_STRING) {
        take_read_grant(reply, receipt, mark);
        return receipt->fence ? HF_OK : redis_bad_reply(rc, err);
    }
    if (reply->type == REDIS_REPLY_INTEGER && reply->integer == 0)
        return hfi_fail(err, HF_LOST, "%s: this claim was given back before",
                        rc->base.endpoint);
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2)
        return redis_bad_reply(rc, err);
    if (reply->element[1]->type == REDIS_REPLY_STRING)
        return take_read_refusal(rc, claim, reply, err);
    busy->left_ms = (int64_t)redis_number(reply->element[0]);
    busy->position = (int32_t)redis_number(reply->element[1]);
    return HF_BUSY;
}

/* What a try says beside the claim. */
struct take_args {
    char ttl[24], patience[24], nth[16], poll[24], channel[REDIS_CHANNEL_MAX];
    char about[REDIS_ABOUT_MAX];
    const char *argv[6];
    int argc;
};

void redis_about(struct redis_conn *rc, const struct hfi_claim *claim,
                 const char *channel, char ret[REDIS_ABOUT_MAX])
{
    snprintf(ret, REDIS_ABOUT_MAX, "%s%zu %s%s",
             atomic_load(&rc->silent) ? "!" : "", strlen(channel), channel,
             claim->note ? claim->note : "");
}

static void take_say(struct redis_conn *rc, const struct hfi_claim *claim,
                     const struct hfi_receipt *receipt, struct take_args *ret)
{
    int64_t wait = claim->ttl_ms > PATIENCE_MIN ? claim->ttl_ms : PATIENCE_MIN;
    const struct redis_grant *own = receipt->own;

    ret->channel[0] = '\0';
    if (own->watched)
        redis_channel(rc, claim->key, ret->channel);
    else if (wait < 2 * claim->poll_ms)
        wait = 2 * claim->poll_ms;
    snprintf(ret->ttl, sizeof(ret->ttl), "%" PRId64, claim->ttl_ms);
    redis_about(rc, claim, ret->channel, ret->about);
    if (claim->queue) {
        snprintf(ret->patience, sizeof(ret->patience), "%" PRId64, wait);
        snprintf(ret->nth, sizeof(ret->nth), "%" PRIu32, claim->nth);
        snprintf(ret->poll, sizeof(ret->poll), "%" PRId64, claim->poll_ms);
    }
    ret->argc = !claim->queue ? 2 : ret->channel[0] ? 5 : 6;
    ret->argv[0] = ret->ttl;
    ret->argv[1] = ret->about;
    ret->argv[2] = ret->patience;
    ret->argv[3] = ret->nth;
    ret->argv[4] = ret->channel;
    ret->argv[5] = ret->poll;
}

/* One step, or several while there are dead waiters to be passed over.  *mark
 * is what stands behind the fence, or 0. */
static hf_status take_step(struct redis_conn *rc, const struct hfi_claim *claim,
                           struct take_args *args, struct hfi_receipt *receipt,
                           struct hfi_answer *busy, char *mark,
                           int64_t deadline, struct hf_error *err)
{
    redisReply *reply;
    hf_status st;
    bool again;

    do {
        st = redis_eval_ahead(rc, &redis_own(receipt)->ahead, 'A', claim,
                              args->argc, args->argv, &reply, deadline, err);
        if (st)
            return st;
        again = reply->type == REDIS_REPLY_INTEGER && reply->integer == -1;
        if (!again)
            st = take_read(rc, claim, reply, receipt, busy, mark, err);
        freeReplyObject(reply);
    } while (again);
    return st;
}

/* Is the fence great enough?  Else raise it. */
static hf_status take_raise(struct redis_conn *rc,
                            const struct hfi_claim *claim,
                            struct hfi_receipt *receipt, uint64_t floor,
                            bool joined, int64_t deadline, struct hf_error *err)
{
    uint64_t returned = redis_own(receipt)->returned;

    /* A claim that joins its equals has their fence, which may be old. */
    if (fence_falls(receipt->fence, floor) && !joined)
        hfi_warn(&rc->base,
                 "the server's clock is behind fences that were granted "
                 "before: set the clocks of servers and replicas by NTP");
    else if (receipt->fence > returned)
        return HF_OK;
    return fence_raise(rc, claim, receipt, floor > returned ? floor : returned,
                       deadline, err);
}

/* What other threads have seen since `began`, if that is too great a fence to be
 * given while this grant was asked for: fences are times of the server.  Then
 * the server has gone back since, and the grant came after that one. */
static uint64_t fence_meanwhile(struct redis_conn *rc, const char *key,
                                uint64_t fence, int64_t began_us)
{
    uint64_t seen = atomic_load(fence_seen(rc, key)), took;

    if (seen <= fence)
        return 0;
    took = (uint64_t)(hfi_now_us() - began_us);
    return seen - fence > took + took / 50 + CLOCK_STEP_US ? seen : 0;
}

struct redis_asked redis_ask(struct redis_conn *rc, const char *key)
{
    return (struct redis_asked){hfi_now_us(), atomic_load(fence_seen(rc, key))};
}

hf_status redis_settle(struct redis_conn *rc, const struct hfi_claim *claim,
                       struct hfi_receipt *receipt,
                       const struct redis_asked *asked, int64_t deadline,
                       struct hf_error *err)
{
    uint64_t late =
        fence_meanwhile(rc, claim->key, receipt->fence, asked->began_us);
    hf_status st =
        take_raise(rc, claim, receipt, late > asked->seen ? late : asked->seen,
                   false, deadline, err);

    if (!st)
        redis_saw(rc, claim->key, receipt->fence);
    return st;
}

/* A grant was given after all that had been seen when its try was sent, unless
 * an earlier try had no answer, or the lock was passed on: then after all that
 * had been seen before the last try that was refused, or before the first.  The
 * sending may be long after this call began, if a connection had to be made or
 * the thread did not run. */
static hf_status take_fenced(struct redis_conn *rc,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt,
                             struct hfi_answer *busy, int64_t deadline,
                             struct hf_error *err)
{
    struct redis_grant *own = receipt->own;
    struct redis_asked asked =
        own->ahead.under_way ? own->ahead.asked : redis_ask(rc, claim->key);
    uint64_t seen = asked.seen, late;
    struct take_args args;
    char mark = '\0';
    hf_status st;

    if (claim->nth <= 1)
        own->seen = seen;
    take_say(rc, claim, receipt, &args);
    st = take_step(rc, claim, &args, receipt, busy, &mark, deadline, err);
    if (st == HF_UNAVAILABLE && redis_is_plain(claim) && redis_is_moving(rc))
        st = redis_move_take(rc, claim, args.about, receipt, deadline, err);
    if (st == HF_BUSY)
        own->seen = seen;
    if (!st) {
        late = mark ? own->seen
                    : fence_meanwhile(rc, claim->key, receipt->fence,
                                      asked.began_us);
        st = take_raise(rc, claim, receipt, late > seen || mark ? late : seen,
                        mark == '+', deadline, err);
    }
    if (!st)
        redis_saw(rc, claim->key, receipt->fence);
    return st;
}

/* The grant counts only once enough replicas have it; else it is given back.
 * Once that was answered nothing is left there, and the failure is certain.
 * See replicas.c (4). */
static hf_status take_confirm(struct redis_conn *rc,
                              const struct hfi_claim *claim,
                              struct hfi_receipt *receipt, int64_t deadline,
                              struct hf_error *err)
{
    int64_t now = hfi_now();
    hf_status undone,
        st = redis_replicas_confirm(rc, claim, receipt,
                                    now + (deadline - now) / 4 * 3, err);

    if (!st)
        return HF_OK;
    if (rc->acquire != REDIS_FENCED && claim->queue)
        return hfi_restate(err, HF_UNCERTAIN);
    undone = redis_give_back(rc, claim, receipt, false, deadline, NULL);
    if (undone && undone != HF_LOST) {
        fence_return(receipt);
        return hfi_restate(err, HF_UNCERTAIN);
    }
    return st == HF_UNCERTAIN ? hfi_restate(err, HF_UNAVAILABLE) : st;
}

void redis_take_add(struct redis_conn *rc, struct redis_batch *batch,
                    const struct hfi_claim *claim,
                    const struct hfi_receipt *receipt)
{
    struct take_args args;

    take_say(rc, claim, receipt, &args);
    redis_eval_add(rc, batch, 'A', claim, args.argc, args.argv, false);
}

/* A server that is away is looked for by the try, which backs off; only then is
 * it listened to. */
bool redis_listen(struct redis_conn *rc, const struct hfi_claim *claim,
                  int64_t deadline)
{
    int64_t now = hfi_now();

    return hfi_mux_is_up(redis_route(rc, claim->key)) &&
           !redis_sub_ensure(rc, claim->key, now + (deadline - now) / 2, NULL);
}

hf_status redis_try_acquire(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            struct hfi_receipt *receipt,
                            struct hfi_answer *busy, int64_t deadline,
                            struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    const struct redis_grant *own = receipt->own;
    bool unsubscribed = false;
    hf_status st = redis_replicas_may(rc, claim->key, deadline, err);

    if (st)
        return st;
    if (own->ahead.under_way)
        unsubscribed = own->ahead.unsubscribed;
    else if (own->watched)
        unsubscribed = !redis_listen(rc, claim, deadline);
    if (rc->acquire == REDIS_FENCED)
        st = take_fenced(rc, claim, receipt, busy, deadline, err);
    else if (own->returned) /* replicas.c (4) */
        st = hfi_fail(err, HF_LOST, "%s: this claim was given back before",
                      rc->base.endpoint);
    else
        st = redis_unfenced_take(rc, claim, deadline, err);
    if (st == HF_OK && rc->replicas)
        st = take_confirm(rc, claim, receipt, deadline, err);
    if (st == HF_OK)
        receipt->registered = true;
    else if (st == HF_BUSY)
        receipt->registered = claim->queue && rc->acquire == REDIS_FENCED;
    if (st == HF_BUSY && (unsubscribed || redis_is_moving(rc)) &&
        (!busy->left_ms || busy->left_ms > DEAF_MS))
        busy->left_ms = DEAF_MS; /* Nobody will wake us. */
    return st;
}
