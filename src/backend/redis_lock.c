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

/* SET NX PX GET tells a lost answer from another holder; servers before 7.0
 * have no GET there. */
static hf_status take_set(struct redis_conn *rc, struct hfi_mux *mux,
                          const struct hfi_claim *claim, int64_t deadline,
                          struct hf_error *err)
{
    struct redis_names names;
    char ttl[24];
    const char *argv[] = {
        "SET", names.text[REDIS_MAIN], claim->token, "NX", "PX", ttl, "GET"};
    redisReply *reply;
    hf_status st;

    redis_name(rc, claim->key, &names);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    st = redis_command(rc, mux, 7, argv, &reply, deadline, err);
    if (st)
        return st;
    if (reply->type == REDIS_REPLY_NIL)
        st = HF_OK;
    else if (reply->type == REDIS_REPLY_STRING && !strcmp(reply->str, argv[2]))
        st = HF_OK;
    else
        st = HF_BUSY;
    freeReplyObject(reply);
    return st;
}

static hf_status take_setnx(struct redis_conn *rc, struct hfi_mux *mux,
                            const struct hfi_claim *claim, int64_t deadline,
                            struct hf_error *err)
{
    struct redis_names names;
    char ttl[24];
    const char *argv[] = {"EVAL",       redis_script_setnx,
                          "1",          names.text[REDIS_MAIN],
                          claim->token, ttl};
    redisReply *reply;
    hf_status st;

    redis_name(rc, claim->key, &names);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    st = redis_command(rc, mux, 6, argv, &reply, deadline, err);
    if (st)
        return st;
    st = reply->type == REDIS_REPLY_INTEGER && reply->integer == 1 ? HF_OK
                                                                   : HF_BUSY;
    freeReplyObject(reply);
    return st;
}

/* The fence, as text; or {ms left, place}. */
static hf_status take_read(struct redis_conn *rc, const redisReply *reply,
                           struct hfi_grant *grant, struct hfi_busy *busy,
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

static hf_status take_fenced(struct redis_conn *rc, struct hfi_mux *mux,
                             const struct hfi_claim *claim,
                             struct hfi_grant *grant, struct hfi_busy *busy,
                             int64_t deadline, struct hf_error *err)
{
    int64_t wait = claim->ttl_ms > PATIENCE_MIN ? claim->ttl_ms : PATIENCE_MIN;
    char ttl[24], patience[24], nth[16];
    const char *argv[] = {ttl,
                          claim->note ? claim->note : "",
                          grant->ref.ints[0] ? rc->channel : "",
                          claim->queue ? "1" : "0",
                          patience,
                          nth};
    redisReply *reply;
    hf_status st;

    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    snprintf(patience, sizeof(patience), "%" PRId64, wait);
    snprintf(nth, sizeof(nth), "%" PRIu32, claim->nth);
    st = redis_step(rc, mux, 'A', claim, 6, argv, &reply, deadline, err);
    if (st)
        return st;
    st = take_read(rc, reply, grant, busy, err);
    freeReplyObject(reply);
    return st;
}

/* The grant counts only once enough replicas have it. */
static hf_status take_wait(struct redis_conn *rc, struct hfi_mux *mux,
                           int64_t deadline, struct hf_error *err)
{
    int64_t left = hfi_left_ms(deadline) / 2;
    char want[16], limit[24];
    const char *argv[] = {"WAIT", want, limit};
    redisReply *reply;
    long long got;
    hf_status st;

    snprintf(want, sizeof(want), "%d", rc->replicas);
    snprintf(limit, sizeof(limit), "%" PRId64, left > 0 ? left : 1);
    st = redis_command(rc, mux, 3, argv, &reply, deadline, err);
    if (st)
        return st;
    got = reply->type == REDIS_REPLY_INTEGER ? reply->integer : 0;
    freeReplyObject(reply);
    if (got >= rc->replicas)
        return HF_OK;
    return hfi_fail(err, HF_UNAVAILABLE,
                    "%s: only %lld of %d replicas confirmed the lock",
                    rc->base.endpoint, got, rc->replicas);
}

hf_status redis_try_acquire(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            struct hfi_grant *grant, struct hfi_busy *busy,
                            int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct hfi_mux *mux =
        rc->replicas ? &rc->wait_mux : redis_route(rc, claim->key);
    hf_status st, undone, deaf = HF_OK;

    if (grant->ref.ints[0]) { /* watched: be connected before the try */
        int64_t now = hfi_now();

        deaf = redis_sub_ensure(rc, now + (deadline - now) / 2, NULL);
    }
    if (rc->acquire == REDIS_SET)
        st = take_set(rc, mux, claim, deadline, err);
    else if (rc->acquire == REDIS_SETNX)
        st = take_setnx(rc, mux, claim, deadline, err);
    else
        st = take_fenced(rc, mux, claim, grant, busy, deadline, err);
    if (st == HF_OK && rc->replicas) {
        st = take_wait(rc, mux, deadline, err);
        undone = st ? redis_release(conn, claim, grant, deadline, NULL) : HF_OK;
        if (undone && undone != HF_LOST)
            st = hfi_restate(err, HF_UNCERTAIN);
    }
    if (st == HF_OK)
        grant->placed = true;
    else if (st == HF_BUSY)
        grant->placed = claim->queue && rc->acquire == REDIS_FENCED;
    if (st == HF_BUSY && deaf && (!busy->left_ms || busy->left_ms > DEAF_MS))
        busy->left_ms = DEAF_MS; /* Nobody will wake us. */
    return st;
}

/* ---- keeping and giving back ------------------------------------------- */

static void renew_read(struct redis_conn *rc, struct hfi_renewal *item,
                       const redisReply *reply, struct hf_error *err)
{
    if (reply->type == REDIS_REPLY_ERROR) {
        item->st = redis_error(rc, reply, err);
    } else if (reply->type != REDIS_REPLY_INTEGER) {
        item->st = redis_nonsense(rc, err);
    } else {
        item->st = reply->integer == 1 ? HF_OK : HF_LOST;
        item->reason = reply->integer == 2   ? HF_LOSS_STOLEN
                       : reply->integer == 3 ? HF_LOSS_BROKEN
                                             : HF_LOSS_DELETED;
    }
}

/* What goes to one server. */
struct renew_part {
    struct hfi_mux *mux;
    struct redis_batch batch;
    struct hfi_mux_call call;
    redisReply **replies;
    hf_status st;
};

/* What a renewal says beside the claim: ttl, whether it may be less, fence. */
struct renew_args {
    char ttl[24], fence[24];
    const char *argv[3];
};

static void renew_say(struct renew_args *args, const struct hfi_renewal *item)
{
    snprintf(args->ttl, sizeof(args->ttl), "%" PRId64, item->ttl_ms);
    snprintf(args->fence, sizeof(args->fence), "%" PRIu64, item->grant->fence);
    args->argv[0] = args->ttl;
    args->argv[1] = item->ttl_ms < item->claim->ttl_ms ? "1" : "0";
    args->argv[2] = args->fence;
}

/* Send all parts, then wait for each: one server that hangs does not keep the
 * others' locks from being renewed. */
static void renew_send(struct renew_part *parts, size_t n, int64_t deadline,
                       struct hf_error *err)
{
    size_t i;

    for (i = 0; i < n; i++) {
        struct renew_part *part = &parts[i];

        part->replies =
            hfi_alloc((size_t)part->batch.count * sizeof(redisReply *));
        part->st =
            part->batch.failed || !part->replies
                ? hfi_nomem(err)
                : hfi_mux_begin(part->mux, &part->call, part->batch.bytes,
                                part->batch.len, part->batch.count,
                                part->replies, deadline, err);
    }
    for (i = 0; i < n; i++)
        if (!parts[i].st)
            parts[i].st = hfi_mux_finish(&parts[i].call, deadline, err);
}

/* A script that is not there, or a key that is elsewhere: one by one. */
static void renew_alone(struct redis_conn *rc, struct hfi_renewal *item,
                        int64_t deadline, struct hf_error *err)
{
    struct renew_args args;
    redisReply *reply;

    renew_say(&args, item);
    item->st = redis_step(rc, NULL, 'R', item->claim, 3, args.argv, &reply,
                          deadline, err);
    if (item->st)
        return;
    renew_read(rc, item, reply, err);
    freeReplyObject(reply);
}

/* Put the answers of a part where they belong, in the order of its items. */
static void renew_apply(struct redis_conn *rc, struct renew_part *part,
                        struct hfi_renewal *items, size_t n,
                        const unsigned char *of, unsigned char self,
                        int64_t deadline, struct hf_error *err)
{
    size_t i, at = 0;

    for (i = 0; i < n; i++) {
        redisReply *reply;

        if (of[i] != self)
            continue;
        items[i].st = part->st;
        if (part->st)
            continue;
        reply = part->replies[at++];
        if (reply->type == REDIS_REPLY_ERROR &&
            (redis_is_noscript(reply) || rc->cluster))
            renew_alone(rc, &items[i], deadline, err);
        else
            renew_read(rc, &items[i], reply, err);
        freeReplyObject(reply);
    }
    redis_batch_free(&part->batch);
    hfi_free(part->replies);
}

/* At most so many servers at once; the rest of the items wait for the next. */
#define RENEW_PARTS 32

void redis_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
                 int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct renew_part parts[RENEW_PARTS] = {0};
    struct renew_args args;
    unsigned char of[256];
    size_t i, p, nparts = 0;

    n = n < sizeof(of) ? n : sizeof(of); /* the core sends no more at once */
    for (i = 0; i < n; i++) {
        struct hfi_mux *mux = redis_route(rc, items[i].claim->key);

        for (p = 0; p < nparts && parts[p].mux != mux; p++)
            continue;
        of[i] = RENEW_PARTS;
        if (p == RENEW_PARTS)
            continue;
        if (p == nparts)
            parts[nparts++].mux = mux;
        of[i] = (unsigned char)p;
        renew_say(&args, &items[i]);
        redis_step_add(rc, &parts[p].batch, 'R', items[i].claim, 3, args.argv,
                       false);
    }
    renew_send(parts, nparts, deadline, err);
    for (p = 0; p < nparts; p++) {
        renew_apply(rc, &parts[p], items, n, of, (unsigned char)p, deadline,
                    err);
        if (parts[p].st && rc->cluster)
            redis_map(rc, deadline, NULL);
    }
}

hf_status redis_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_grant *grant, int64_t deadline,
                        struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    redisReply *reply;
    bool done;
    hf_status st =
        redis_step(rc, NULL, 'L', claim, 0, NULL, &reply, deadline, err);

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

hf_status redis_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                      struct hfi_grant *grant, int64_t deadline,
                      struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    const char *argv[] = {rc->channel};
    redisReply *reply;
    hf_status st = redis_sub_ensure(rc, deadline, err);

    if (st)
        return st;
    grant->ref.ints[0] = 1;
    if (!grant->fence)
        return HF_OK;
    st = redis_step(rc, NULL, 'H', claim, 1, argv, &reply, deadline, err);
    if (st)
        return st;
    if (redis_number(reply) > 0)
        hfi_wanted(conn, claim->key);
    freeReplyObject(reply);
    return HF_OK;
}

void redis_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                   struct hfi_grant *grant)
{
    (void)conn;
    (void)claim;
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
