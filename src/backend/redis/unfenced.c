/* SPDX-License-Identifier: MIT
 *
 * unfenced.c - locks that are a key and nothing else: acquire=set and
 * acquire=script.  No fence, no queue, no owner ids.
 *
 * What the server has a command for is done by that command: SET NX PX GET,
 * which tells a lost answer from another holder (7.0), and DELIFEQ (Valkey 9)
 * or DELEX (Redis 8.4).  Whether it has one is found out by using it: a
 * command that is not known was not executed, and from then on the script is
 * used, which does the same everywhere.
 *
 * A renewal is always the script.  SET IFEQ would set the expiry to what an old
 * request says that arrives late, after a longer one was granted; the script
 * never shortens a lease (backend/backend.h, renew).  For the same reason a key
 * that turns out to be ours already is renewed and not merely found: the grant
 * counts from this try, so its expiry must, too.
 */
#include "redis.h"

#include <inttypes.h>

#include "base/banned.h"

/* The texts that an order for a step points to. */
struct unfenced_texts {
    struct redis_names names;
    char ttl[24];
};

static struct redis_key_command unfenced_command(struct redis_conn *rc,
                                                 struct unfenced_texts *texts,
                                                 const char *op,
                                                 const struct hfi_claim *claim,
                                                 int64_t ttl_ms)
{
    redis_name(rc, claim->key, &texts->names);
    snprintf(texts->ttl, sizeof(texts->ttl), "%" PRId64, ttl_ms);
    return (struct redis_key_command){
        .script = redis_unfenced_script,
        .argc = 8,
        .argv = {"EVALSHA", rc->unfenced_id, "1", texts->names.text[REDIS_MAIN],
                 op, claim->token, texts->ttl,
                 ttl_ms < claim->ttl_ms ? "1" : "0"}};
}

/* The script's answer. */
static hf_status unfenced_eval(struct redis_conn *rc, struct redis_wait *wait,
                               const char *op, const struct hfi_claim *claim,
                               int64_t ttl_ms, int *ret, int64_t deadline,
                               struct hf_error *err)
{
    struct unfenced_texts texts;
    struct redis_key_command order =
        unfenced_command(rc, &texts, op, claim, ttl_ms);
    redisReply *reply;
    hf_status st;

    order.wait = wait;
    st = redis_key_command(rc, claim->key, &order, &reply, deadline, err);
    if (st)
        return st;
    *ret = reply->type == REDIS_REPLY_INTEGER ? (int)reply->integer : -1;
    freeReplyObject(reply);
    return *ret < 0 ? redis_bad_reply(rc, err) : HF_OK;
}

/* A command that the server may not know; *known is false if so. */
static hf_status unfenced_native(struct redis_conn *rc, const char *key,
                                 const struct redis_key_command *order,
                                 enum redis_native what, bool *known,
                                 redisReply **ret, int64_t deadline,
                                 struct hf_error *err)
{
    struct hf_error why = {0};
    hf_status st;

    *known = !(atomic_load(&rc->lacks) & what);
    if (!*known)
        return HF_OK;
    st = redis_key_command(rc, key, order, ret, deadline, &why);
    if (st == HF_UNSUPPORTED) {
        atomic_fetch_or(&rc->lacks, what);
        *known = false;
        return HF_OK;
    }
    if (st && err)
        *err = why;
    return st;
}

/* ---- taking ------------------------------------------------------------ */

static hf_status take_script(struct redis_conn *rc,
                             const struct hfi_claim *claim, int64_t deadline,
                             struct hf_error *err)
{
    int said;
    hf_status st = unfenced_eval(rc, NULL, "A", claim, claim->ttl_ms, &said,
                                 deadline, err);

    return st ? st : said == 1 ? HF_OK : HF_BUSY;
}

hf_status redis_unfenced_take(struct redis_conn *rc,
                              const struct hfi_claim *claim, int64_t deadline,
                              struct hf_error *err)
{
    struct redis_names names;
    char ttl[24];
    struct redis_key_command order = {.argc = 7,
                                      .argv = {"SET", names.text[REDIS_MAIN],
                                               claim->token, "NX", "PX", ttl,
                                               "GET"}};
    redisReply *reply;
    bool known = false;
    hf_status st = HF_OK;

    redis_name(rc, claim->key, &names);
    snprintf(ttl, sizeof(ttl), "%" PRId64, claim->ttl_ms);
    if (rc->acquire == REDIS_SET)
        st = unfenced_native(rc, claim->key, &order, REDIS_NX_GET, &known,
                             &reply, deadline, err);
    if (st)
        return st;
    if (!known)
        return take_script(rc, claim, deadline, err);
    if (reply->type == REDIS_REPLY_STRING)
        st = strcmp(reply->str, claim->token) != 0
                 ? HF_BUSY
                 : take_script(rc, claim, deadline, err);
    else if (reply->type != REDIS_REPLY_NIL)
        st = redis_bad_reply(rc, err);
    freeReplyObject(reply);
    return st;
}

/* ---- keeping and giving back ------------------------------------------- */

void redis_unfenced_renew_add(struct redis_conn *rc, struct redis_batch *batch,
                              const struct hfi_renewal *item, bool whole)
{
    struct unfenced_texts texts;
    struct redis_key_command order =
        unfenced_command(rc, &texts, "R", item->claim, item->ttl_ms);

    redis_key_command_add(batch, &order, whole);
}

hf_status redis_unfenced_take_over(struct redis_conn *rc,
                                   const struct hfi_claim *claim,
                                   const char *token, int *said,
                                   int64_t deadline, struct hf_error *err)
{
    struct unfenced_texts texts;
    struct redis_key_command order =
        unfenced_command(rc, &texts, "T", claim, claim->ttl_ms);
    redisReply *reply;
    hf_status st;

    order.argv[5] = token;
    order.argv[order.argc++] = claim->token;
    st = redis_key_command(rc, claim->key, &order, &reply, deadline, err);
    if (st)
        return st;
    *said = (int)redis_number(reply);
    freeReplyObject(reply);
    return HF_OK;
}

hf_status redis_unfenced_write(struct redis_conn *rc, struct redis_wait *wait,
                               const struct hfi_claim *claim, int *said,
                               int64_t deadline, struct hf_error *err)
{
    return unfenced_eval(rc, wait, "W", claim, claim->ttl_ms, said, deadline,
                         err);
}

hf_status redis_unfenced_release(struct redis_conn *rc,
                                 const struct hfi_claim *claim,
                                 int64_t deadline, struct hf_error *err)
{
    struct redis_names names;
    const char *key = names.text[REDIS_MAIN], *token = claim->token;
    const struct redis_key_command ways[] = {
        {.argc = 3, .argv = {"DELIFEQ", key, token}},
        {.argc = 4, .argv = {"DELEX", key, "IFEQ", token}},
    };
    const enum redis_native names_of[] = {REDIS_DELIFEQ, REDIS_DELEX};
    redisReply *reply;
    bool known = false;
    int i, said = 0;
    hf_status st = HF_OK;

    redis_name(rc, claim->key, &names);
    for (i = 0; i < 2 && !st && !known && rc->acquire == REDIS_SET; i++)
        st = unfenced_native(rc, claim->key, &ways[i], names_of[i], &known,
                             &reply, deadline, err);
    if (!st && known) {
        said = (int)redis_number(reply);
        freeReplyObject(reply);
    } else if (!st) {
        st = unfenced_eval(rc, NULL, "L", claim, claim->ttl_ms, &said, deadline,
                           err);
    }
    if (st)
        return st;
    return said == 1
               ? HF_OK
               : hfi_fail(err, HF_LOST, "%s: the lock was not ours any more",
                          rc->base.endpoint);
}
