/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock, and which locks there are.
 */
#include "redis.h"

#include <inttypes.h>

#include "backend/waiters.h"

#include "base/banned.h"

/* So many waiters are asked for together (inspect.lua), and so many at most:
 * more tell nobody anything. */
#define WAITERS_AT_ONCE 128
#define WAITERS_MAX     16384

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

/* {token, owner id, note, -1 alone or permits, waits for, place lasts} */
static bool waiters_add(struct hfi_waiters *found, const redisReply *reply)
{
    redisReply **item = reply->element;
    struct hf_waiter *waiter;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 6 ||
        item[0]->type != REDIS_REPLY_STRING ||
        item[1]->type != REDIS_REPLY_STRING ||
        item[2]->type != REDIS_REPLY_STRING ||
        item[3]->type != REDIS_REPLY_INTEGER ||
        item[4]->type != REDIS_REPLY_INTEGER ||
        item[5]->type != REDIS_REPLY_INTEGER)
        return false;
    if (item[5]->integer <= 0)
        return true; /* Its waiter is dead; the next who passes on removes it. */
    waiter = hfi_waiters_add(found, 0);
    if (!waiter)
        return true;
    waiter->shared = !item[3]->integer;
    waiter->permits = item[3]->integer > 0 ? (int32_t)item[3]->integer : 0;
    waiter->since_ms = item[4]->integer > 0 ? item[4]->integer : 0;
    waiter->left_ms = item[5]->integer;
    hfi_waiter_names(waiter, item[1]->str, item[0]->str, item[2]->str);
    return true;
}

/* A long queue is read in parts: it may change between them. */
hf_status redis_waiters(struct hfi_conn *conn, const char *key,
                        hf_waiters_fn *fn, void *arg, int64_t deadline,
                        struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct hfi_claim claim = {.key = key};
    struct hfi_waiters found = {.n = 0};
    hf_status st = HF_OK;
    redisReply *reply;
    char from[24];
    const char *argv[] = {from};
    size_t i, n = 0, got = WAITERS_AT_ONCE;

    if (rc->acquire != REDIS_FENCED)
        return hfi_fail(err, HF_UNSUPPORTED,
                        "%s: no queue is kept with acquire=set or script",
                        conn->endpoint);
    while (!st && got == WAITERS_AT_ONCE && n < WAITERS_MAX) {
        snprintf(from, sizeof(from), "%zu", n);
        st = redis_eval(rc, NULL, 'Q', &claim, 1, argv, &reply, deadline, err);
        if (st)
            break;
        got = reply->type == REDIS_REPLY_ARRAY ? reply->elements : 0;
        if (reply->type != REDIS_REPLY_ARRAY)
            st = redis_bad_reply(rc, err);
        for (i = 0; !st && i < got; i++)
            if (!waiters_add(&found, reply->element[i]))
                st = redis_bad_reply(rc, err);
        freeReplyObject(reply);
        n += got;
    }
    return hfi_waiters_tell(&found, st, fn, arg, err);
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

/* A listing, or a look at several keys, as it goes on. */
struct list {
    struct redis_conn *rc;
    hf_list_fn *fn;
    void *arg;
    struct hf_error *err;
    bool all;  /* tell of keys that nobody holds as well */
    bool more; /* the caller wants more */
};

/* What a server said of one key, which may have gone elsewhere since, or the
 * script with it. */
static hf_status list_one(struct list *list, const char *key,
                          const redisReply *reply, int64_t deadline)
{
    struct hf_info info = {
        .size = sizeof(info), .left_ms = -1, .since_ms = -1, .slot = -1};
    hf_status st =
        reply->type == REDIS_REPLY_ERROR
            ? redis_inspect(&list->rc->base, key, &info, deadline, list->err)
            : inspect_read(list->rc, reply, &info, list->err);

    if (!st && (info.held || list->all))
        list->more = list->fn(list->arg, key, &info);
    return st;
}

/* So many are looked at together: one by one, a long list would take longer
 * than a call may. */
#define LIST_AT_ONCE 128

static hf_status list_some(struct list *list, struct hfi_mux *mux,
                           const char *const *keys, int n, int64_t deadline)
{
    struct redis_batch batch = {0};
    redisReply *replies[LIST_AT_ONCE];
    struct hfi_claim claim = {0};
    hf_status st;
    int i;

    for (i = 0; i < n; i++) {
        claim.key = keys[i];
        redis_eval_add(list->rc, &batch, 'I', &claim, 0, NULL, false);
    }
    st = redis_batch_send(list->rc, mux, &batch, replies, deadline, list->err);
    redis_batch_free(&batch);
    if (st)
        return st;
    for (i = 0; i < n; i++) {
        if (!st && list->more)
            st = list_one(list, keys[i], replies[i], deadline);
        freeReplyObject(replies[i]);
    }
    return st;
}

/* Those of the keys that the server has. */
static hf_status list_node(struct list *list, unsigned server,
                           const char *const *keys, int n, int64_t deadline)
{
    struct redis_cluster *cl = list->rc->cluster;
    const char *some[LIST_AT_ONCE];
    int i, found = 0;

    for (i = 0; i < n; i++)
        if (atomic_load(&cl->slots[redis_key_slot(list->rc, keys[i])]) ==
            server)
            some[found++] = keys[i];
    return found
               ? list_some(list, &cl->nodes[server]->mux, some, found, deadline)
               : HF_OK;
}

hf_status redis_inspect_several(struct hfi_conn *conn, const char *const *keys,
                                int n, hf_list_fn *fn, void *arg,
                                int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct list list = {rc, fn, arg, err, .all = true, .more = true};
    hf_status st = HF_OK;
    unsigned i;
    int at, some;

    for (at = 0; !st && at < n && list.more; at += some) {
        some = n - at < LIST_AT_ONCE ? n - at : LIST_AT_ONCE;
        if (!rc->cluster)
            st = list_some(&list, &rc->mux, keys + at, some, deadline);
        for (i = 0; rc->cluster && !st && list.more &&
                    i < atomic_load(&rc->cluster->nnodes);
             i++)
            st = list_node(&list, i, keys + at, some, deadline);
    }
    return st;
}

/* One page of SCAN. */
static hf_status list_page(struct list *list, struct hfi_mux *mux,
                           const redisReply *keys, int64_t limit_ms)
{
    size_t i, skip = strlen(list->rc->prefix);
    const char *some[LIST_AT_ONCE];
    hf_status st = HF_OK;
    int n = 0;

    for (i = 0; i < keys->elements && list->more && !st; i++) {
        const redisReply *key = keys->element[i];

        if (key->type != REDIS_REPLY_STRING || (size_t)key->len <= skip ||
            key->len > skip + HF_KEY_MAX || strlen(key->str) != key->len)
            continue;
        some[n++] = key->str + skip;
        if (n < LIST_AT_ONCE)
            continue;
        st = list_some(list, mux, some, n, hfi_now() + limit_ms);
        n = 0;
    }
    if (n && list->more && !st)
        st = list_some(list, mux, some, n, hfi_now() + limit_ms);
    return st;
}

/* All keys of one server. */
static hf_status list_server(struct list *list, struct hfi_mux *mux,
                             const char *pattern, int64_t limit_ms)
{
    struct redis_scan scan = {.pattern = pattern, .type = "string"};
    redisReply *reply = NULL;
    hf_status st = HF_OK;

    while (!st && list->more && !scan.over) {
        st = redis_scan(list->rc, mux, &scan, &reply, hfi_now() + limit_ms,
                        list->err);
        if (st)
            break;
        st = list_page(list, mux, reply->element[1], limit_ms);
        freeReplyObject(reply);
    }
    return st;
}

/* `deadline` says how long one request may take: a server with many keys is
 * listed page by page, for as long as it answers. */
hf_status redis_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                     void *arg, int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct list list = {rc, fn, arg, err, .more = true};
    int64_t limit_ms = hfi_left_ms(deadline);
    char pattern[2 * REDIS_NAME_MAX];
    hf_status st = HF_OK;
    unsigned i;

    list_pattern(rc, prefix, pattern, sizeof(pattern));
    if (!rc->cluster)
        return list_server(&list, &rc->mux, pattern, limit_ms);
    for (i = 0; !st && list.more && i < atomic_load(&rc->cluster->nnodes); i++)
        if (redis_has_slots(rc->cluster, i))
            st = list_server(&list, &rc->cluster->nodes[i]->mux, pattern,
                             limit_ms);
    return st;
}
