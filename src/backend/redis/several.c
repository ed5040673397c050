/* SPDX-License-Identifier: MIT
 *
 * several.c - taking several locks in one step (several.lua).
 *
 * It is for some plain locks whose keys are all at one server, in a cluster in
 * one slot, and that nobody has or waits for.  All else is asked for one by one.
 *
 * The step happens whole or not at all, as every script does.  Each lock that it
 * grants is what fenced.lua would have granted to a first try, with a token and
 * a fence of its own, and is renewed, released and inspected like that.  If no
 * answer comes each of them may be held: the core gives each back with
 * claim.doubt, so that the step, if it arrives later still, finds the claims
 * over: D leaves a mark in the queue of each key, and several.lua refuses a key
 * with a queue.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/alloc.h"

#include "base/banned.h"

#define SEVERAL_HEAD 5 /* EVALSHA, digest, keys; ttl, about */

/* Lua hands at most 8000 values to a command, which here are two for each key;
 * and the step keeps all other clients of the server waiting. */
#define SEVERAL_MAX 2000

/* The texts that the order points to. */
struct several_texts {
    char keys[24], ttl[24], about[REDIS_ABOUT_MAX];
    char *names;
    const char **argv;
};

static bool several_fit(struct redis_conn *rc, const struct hfi_attempt *items,
                        size_t n)
{
    unsigned slot = rc->cluster ? redis_key_slot(rc, items[0].claim->key) : 0;
    size_t i;

    if (n > SEVERAL_MAX || rc->acquire != REDIS_FENCED || rc->replicas ||
        redis_is_moving(rc))
        return false;
    for (i = 0; i < n; i++)
        if (!redis_is_plain(items[i].claim) ||
            (rc->cluster && redis_key_slot(rc, items[i].claim->key) != slot))
            return false;
    return true;
}

/* Room for three names of each key, which are far shorter than they may be. */
static size_t several_size(const struct redis_conn *rc,
                           const struct hfi_attempt *items, size_t n)
{
    size_t i, size = 0, prefix = strlen(rc->prefix);

    for (i = 0; i < n; i++)
        size += 3 * (2 * (prefix + strlen(items[i].claim->key)) + 32);
    return size;
}

static bool several_say(struct redis_conn *rc, const struct hfi_attempt *items,
                        size_t n, struct several_texts *texts)
{
    static const int parts[] = {REDIS_MAIN, REDIS_QUEUE, REDIS_META};
    const char **argv;
    struct redis_names names;
    size_t i, p, len;
    char *at;

    texts->names = at = hfi_alloc(several_size(rc, items, n));
    texts->argv = argv =
        hfi_alloc((SEVERAL_HEAD + 4 * n) * sizeof(*texts->argv));
    if (!at || !argv)
        return false;
    snprintf(texts->keys, sizeof(texts->keys), "%zu", 3 * n);
    snprintf(texts->ttl, sizeof(texts->ttl), "%" PRId64,
             items[0].claim->ttl_ms);
    redis_about(rc, items[0].claim, "", texts->about);
    argv[0] = "EVALSHA";
    argv[1] = rc->several_id;
    argv[2] = texts->keys;
    argv[3 + 3 * n] = texts->ttl;
    argv[4 + 3 * n] = texts->about;
    for (i = 0; i < n; i++) {
        redis_name(rc, items[i].claim->key, &names);
        for (p = 0; p < 3; p++) {
            len = strlen(names.text[parts[p]]) + 1;
            memcpy(at, names.text[parts[p]], len);
            argv[3 + p * n + i] = at;
            at += len;
        }
        argv[5 + 3 * n + i] = items[i].claim->token;
    }
    return true;
}

/* One fence for all, or one for each. */
static hf_status several_read(struct redis_conn *rc, const redisReply *reply,
                              struct hfi_attempt *items, size_t n,
                              struct hf_error *err)
{
    uint64_t fence =
        reply->type == REDIS_REPLY_STRING ? redis_number(reply) : 0;
    bool each = reply->type == REDIS_REPLY_ARRAY && reply->elements == n;
    size_t i;

    if (reply->type == REDIS_REPLY_INTEGER)
        return reply->integer < 0 ? HF_UNSUPPORTED : HF_BUSY;
    for (i = 0; i < n; i++) {
        if (each)
            fence = redis_number(reply->element[i]);
        if (!fence)
            break;
        items[i].receipt->fence = fence;
        items[i].receipt->registered = true;
    }
    if (i == n)
        return HF_OK;
    redis_bad_reply(rc, err);
    return hfi_restate(err, HF_UNCERTAIN); /* Whatever it has done. */
}

hf_status redis_try_acquire_all(struct hfi_conn *conn,
                                struct hfi_attempt *items, size_t n,
                                int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct redis_asked asked = redis_ask(rc, items[0].claim->key);
    struct several_texts texts = {.names = NULL};
    struct redis_key_command order = {.script = rc->several,
                                      .argc = (int)(SEVERAL_HEAD + 4 * n)};
    redisReply *reply;
    hf_status st = HF_UNSUPPORTED;
    size_t i;

    if (!several_fit(rc, items, n))
        return st;
    if (!several_say(rc, items, n, &texts))
        st = hfi_nomem(err);
    else {
        order.longer = texts.argv;
        st = redis_key_command(rc, items[0].claim->key, &order, &reply,
                               deadline, err);
    }
    hfi_free(texts.names);
    hfi_free(texts.argv);
    if (st)
        return st == HF_UNAVAILABLE && redis_is_moving(rc) ? HF_UNSUPPORTED
                                                           : st;
    st = several_read(rc, reply, items, n, err);
    freeReplyObject(reply);
    for (i = 0; i < n && !st; i++)
        st = redis_settle(rc, items[i].claim, items[i].receipt, &asked,
                          deadline, err);
    return st;
}
