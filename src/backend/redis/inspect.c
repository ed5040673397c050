/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock, and which locks there are.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

static void inspect_member(redisReply **item, struct hf_info *ret)
{
    ret->permits = (int32_t)redis_number(item[0]);
    ret->slot = ret->permits ? (int32_t)redis_number(item[1]) : -1;
    ret->kept = redis_number(item[2]) != 0;
    ret->shared = !ret->permits && redis_number(item[3]);
}

/* {value, ms left, fence, note, since, now, waiters, owners, broken}; and of a
 * member {..., permits, slot, kept, 1 if it is no exclusive lock that is kept} */
static hf_status inspect_read(struct redis_conn *rc, const redisReply *reply,
                              struct hf_info *ret, struct hf_error *err)
{
    redisReply **item = reply->element;
    bool unfenced = rc->acquire != REDIS_FENCED;

    if (reply->type != REDIS_REPLY_ARRAY ||
        (reply->elements != 9 && reply->elements != 13))
        return redis_bad_reply(rc, err);
    ret->waiters = unfenced ? -1 : (int32_t)redis_number(item[6]);
    ret->fence = unfenced ? 0 : redis_number(item[2]);
    ret->held = item[0]->type == REDIS_REPLY_STRING;
    if (!ret->held)
        return HF_OK;
    ret->left_ms = item[1]->type == REDIS_REPLY_INTEGER ? item[1]->integer : -1;
    ret->holders = 1;
    snprintf(ret->owner, sizeof(ret->owner), "%s", item[0]->str);
    if (unfenced) /* What stands beside the key is of others, and maybe old. */
        return HF_OK;
    if (redis_number(item[7]))
        ret->holders = (int32_t)redis_number(item[7]);
    if (item[4]->type == REDIS_REPLY_STRING)
        ret->since_ms =
            (int64_t)(redis_number(item[5]) - redis_number(item[4]));
    ret->broken = redis_number(item[8]) != 0;
    if (item[3]->type == REDIS_REPLY_STRING)
        snprintf(ret->note, sizeof(ret->note), "%s", item[3]->str);
    if (reply->elements == 13)
        inspect_member(item + 9, ret);
    return HF_OK;
}

hf_status redis_inspect(struct hfi_conn *conn, const char *key,
                        struct hf_info *ret, int64_t deadline,
                        struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct hfi_claim claim = {.key = key};
    redisReply *reply;
    hf_status st =
        redis_eval(rc, NULL, 'I', &claim, 0, NULL, &reply, deadline, err);

    if (st)
        return st;
    st = inspect_read(rc, reply, ret, err);
    freeReplyObject(reply);
    return st;
}

hf_status redis_holders(struct hfi_conn *conn, const char *key,
                        hf_holders_fn *fn, void *arg, int64_t deadline,
                        struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct hfi_claim claim = {.key = key};
    bool more = true;
    redisReply *reply;
    size_t i;
    hf_status st =
        redis_eval(rc, NULL, 'J', &claim, 0, NULL, &reply, deadline, err);

    if (st)
        return st;
    if (reply->type != REDIS_REPLY_ARRAY)
        st = redis_bad_reply(rc, err);
    for (i = 0; !st && more && i < reply->elements; i++) {
        struct hf_info info = {
            .size = sizeof(info), .left_ms = -1, .since_ms = -1, .slot = -1};

        st = inspect_read(rc, reply->element[i], &info, err);
        if (!st && info.held)
            more = fn(arg, &info);
    }
    freeReplyObject(reply);
    return st;
}

/* A pattern that matches the prefix and nothing else. */
static void list_pattern(const struct redis_conn *rc, const char *prefix,
                         char *ret, size_t size)
{
    const char *members[] = {rc->prefix, prefix};
    size_t len = 0;
    int i;

    for (i = 0; i < 2; i++) {
        const char *at;

        for (at = members[i]; *at && len + 4 < size; at++) {
            if (strchr("*?[]\\^-", *at))
                ret[len++] = '\\';
            ret[len++] = *at;
        }
    }
    ret[len++] = '*';
    ret[len] = '\0';
}

/* What a server said of one key, which may have gone elsewhere since, or the
 * script with it.  *more is false when the caller wants no more. */
static hf_status list_one(struct redis_conn *rc, const char *key,
                          const redisReply *reply, hf_list_fn *fn, void *arg,
                          bool *more, int64_t deadline, struct hf_error *err)
{
    struct hf_info info = {
        .size = sizeof(info), .left_ms = -1, .since_ms = -1, .slot = -1};
    hf_status st = reply->type == REDIS_REPLY_ERROR
                       ? redis_inspect(&rc->base, key, &info, deadline, err)
                       : inspect_read(rc, reply, &info, err);

    if (!st && info.held)
        *more = fn(arg, key, &info);
    return st;
}

/* So many are looked at together: one by one, a long list would take longer
 * than a call may. */
#define LIST_AT_ONCE 128

static hf_status list_some(struct redis_conn *rc, struct hfi_mux *mux,
                           const char *const *keys, int n, hf_list_fn *fn,
                           void *arg, bool *more, int64_t deadline,
                           struct hf_error *err)
{
    struct redis_batch batch = {0};
    redisReply *replies[LIST_AT_ONCE];
    struct hfi_claim claim = {0};
    hf_status st;
    int i;

    for (i = 0; i < n; i++) {
        claim.key = keys[i];
        redis_eval_add(rc, &batch, 'I', &claim, 0, NULL, false);
    }
    st = redis_batch_send(rc, mux, &batch, replies, deadline, err);
    redis_batch_free(&batch);
    if (st)
        return st;
    for (i = 0; i < n; i++) {
        if (!st && *more)
            st =
                list_one(rc, keys[i], replies[i], fn, arg, more, deadline, err);
        freeReplyObject(replies[i]);
    }
    return st;
}

/* One page of SCAN. */
static hf_status list_page(struct redis_conn *rc, struct hfi_mux *mux,
                           const redisReply *keys, hf_list_fn *fn, void *arg,
                           bool *more, int64_t limit_ms, struct hf_error *err)
{
    size_t i, skip = strlen(rc->prefix);
    const char *some[LIST_AT_ONCE];
    hf_status st = HF_OK;
    int n = 0;

    for (i = 0; i < keys->elements && *more && !st; i++) {
        const redisReply *key = keys->element[i];

        if (key->type != REDIS_REPLY_STRING || (size_t)key->len <= skip ||
            key->len > skip + HF_KEY_MAX || strlen(key->str) != key->len)
            continue;
        some[n++] = key->str + skip;
        if (n < LIST_AT_ONCE)
            continue;
        st = list_some(rc, mux, some, n, fn, arg, more, hfi_now() + limit_ms,
                       err);
        n = 0;
    }
    if (n && *more && !st)
        st = list_some(rc, mux, some, n, fn, arg, more, hfi_now() + limit_ms,
                       err);
    return st;
}

/* All keys of one server. */
static hf_status list_server(struct redis_conn *rc, struct hfi_mux *mux,
                             const char *pattern, hf_list_fn *fn, void *arg,
                             bool *more, int64_t limit_ms, struct hf_error *err)
{
    char cursor[32] = "0";
    const char *argv[] = {"SCAN",  cursor, "MATCH", pattern,
                          "COUNT", "500",  "TYPE",  "string"};
    redisReply *reply;
    hf_status st;

    do {
        st = redis_command(rc, mux, 8, argv, &reply, hfi_now() + limit_ms, err);
        if (st)
            return st;
        if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
            reply->element[0]->type != REDIS_REPLY_STRING ||
            reply->element[1]->type != REDIS_REPLY_ARRAY) {
            freeReplyObject(reply);
            return redis_bad_reply(rc, err);
        }
        snprintf(cursor, sizeof(cursor), "%s", reply->element[0]->str);
        st =
            list_page(rc, mux, reply->element[1], fn, arg, more, limit_ms, err);
        freeReplyObject(reply);
    } while (!st && *more && strcmp(cursor, "0") != 0);
    return st;
}

/* `deadline` says how long one request may take: a server with many keys is
 * listed page by page, for as long as it answers. */
hf_status redis_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                     void *arg, int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    int64_t limit_ms = hfi_left_ms(deadline);
    char pattern[2 * REDIS_NAME_MAX];
    bool more = true;
    hf_status st = HF_OK;
    unsigned i;

    list_pattern(rc, prefix, pattern, sizeof(pattern));
    if (!rc->cluster)
        return list_server(rc, &rc->mux, pattern, fn, arg, &more, limit_ms,
                           err);
    for (i = 0; !st && more && i < atomic_load(&rc->cluster->nnodes); i++)
        if (redis_has_slots(rc->cluster, i))
            st = list_server(rc, &rc->cluster->nodes[i]->mux, pattern, fn, arg,
                             &more, limit_ms, err);
    return st;
}
