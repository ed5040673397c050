/* SPDX-License-Identifier: MIT
 *
 * eval.c - commands that go where their key is.
 *
 * Scripts are called by digest.  NOSCRIPT, which follows a flush, a restart or
 * a fail-over, is answered by sending the script whole, which loads it again;
 * MOVED and ASK are answered by going where they say.  None of the three was
 * executed, so what is sent again is sent without doubt, and no caller ever
 * sees them.
 */
#include "redis.h"

#include <ctype.h>

#include "base/banned.h"

/* An order may be sent on to where a key has gone, and whole to a new node. */
#define ATTEMPTS 6

void redis_key_command_add(struct redis_batch *batch,
                           const struct redis_key_command *order, bool whole)
{
    struct redis_key_command full = *order;
    const char **argv = full.longer ? full.longer : full.argv;
    const char *name = argv[0], *digest = argv[1];

    if (order->script && whole) {
        argv[0] = "EVAL";
        argv[1] = order->script;
    }
    redis_batch_add(batch, full.argc, argv);
    argv[0] = name;
    argv[1] = digest;
}

/* Where an order goes, and how. */
struct command_way {
    struct hfi_mux *mux;
    bool whole, ask;
};

/* The server lacks the script, or the key has moved: true if another attempt
 * should be made, in the way that it says. */
static bool command_again(struct redis_conn *rc, const redisReply *reply,
                          struct command_way *way)
{
    struct hfi_mux *there;
    bool ask;

    if (reply->type != REDIS_REPLY_ERROR)
        return false;
    if (redis_is_noscript(reply) && !way->whole) {
        way->whole = true;
        return true;
    }
    there = redis_redirect(rc, reply, &ask);
    if (!there)
        return false;
    way->mux = there;
    way->ask = ask;
    way->whole = false;
    return true;
}

/* It was sent ahead: wait for its answer.  Where the server lacks the script the
 * first of those that were sent together brings it, and the others are sent
 * again.  ahead.c (4) */
static hf_status command_await(struct redis_conn *rc, struct redis_ahead *ahead,
                               redisReply **ret, int64_t deadline,
                               struct hf_error *err)
{
    hf_status st = hfi_mux_finish(&ahead->call, deadline, err);

    ahead->under_way = false;
    if (st)
        return hfi_wrap(err, st, "%s", rc->base.endpoint);
    if (redis_is_noscript(ahead->reply) && !ahead->first) {
        freeReplyObject(ahead->reply);
        return HFI_AGAIN;
    }
    *ret = ahead->reply;
    return HF_OK;
}

static hf_status command_once(struct redis_conn *rc,
                              const struct command_way *way,
                              const struct redis_key_command *order,
                              redisReply **ret, int64_t deadline,
                              struct hf_error *err)
{
    const char *asking[] = {"ASKING"};
    struct redis_batch batch = {0};
    struct redis_wait *wait = order->wait;
    redisReply *replies[3] = {NULL, NULL, NULL};
    hf_status st;

    if (order->ahead && order->ahead->under_way)
        return command_await(rc, order->ahead, ret, deadline, err);
    if (way->ask)
        redis_batch_add(&batch, 1, asking);
    redis_key_command_add(&batch, order, way->whole);
    if (wait)
        redis_replicas_add(rc, &batch, wait->ms);
    st = redis_batch_send(
        rc, wait ? &redis_replicas_of(rc, way->mux)->mux : way->mux, &batch,
        replies, deadline, err);
    redis_batch_free(&batch);
    if (st)
        return st;
    *ret = replies[way->ask];
    if (way->ask)
        freeReplyObject(replies[0]);
    if (wait) {
        freeReplyObject(wait->reply); /* of an attempt before */
        wait->reply = replies[way->ask + 1];
    }
    return HF_OK;
}

/* That no answer came on a connection that waits for replicas does not mean
 * that the server is silent; that it has gone elsewhere may be. */
static void command_failed(struct redis_conn *rc, const struct command_way *way,
                           const struct redis_key_command *order)
{
    if (order->wait)
        redis_stir(rc, way->mux);
    else
        redis_doubt(rc, way->mux);
}

hf_status redis_key_command(struct redis_conn *rc, const char *key,
                            const struct redis_key_command *order,
                            redisReply **ret, int64_t deadline,
                            struct hf_error *err)
{
    struct command_way way = {redis_route(rc, key), false, false};
    redisReply *reply = NULL;
    hf_status st;
    int i;

    for (i = 0; i < ATTEMPTS; i++) {
        st = command_once(rc, &way, order, &reply, deadline, err);
        if (st) {
            if (st != HFI_AGAIN)
                command_failed(rc, &way, order);
            return st;
        }
        if (!command_again(rc, reply, &way))
            break;
        freeReplyObject(reply);
        reply = NULL;
    }
    if (!reply)
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: nobody has the key, or keeps scripts",
                        rc->base.endpoint);
    if (reply->type == REDIS_REPLY_ERROR) {
        st = redis_error(rc, reply, err);
        freeReplyObject(reply);
        return st;
    }
    *ret = reply;
    return HF_OK;
}

/* ---- steps ------------------------------------------------------------- */

#define EVAL_WHAT_MAX (16 + REDIS_MANNER_MAX + HF_OWNER_MAX)

/* The texts that an order for a step points to. */
struct eval_texts {
    struct redis_names names;
    char what[EVAL_WHAT_MAX];
};

/* Is it of one who shares, or has permits? */
static bool eval_is_member(const struct redis_conn *rc,
                           const struct hfi_claim *claim)
{
    return (claim->shared || claim->permits) && rc->acquire == REDIS_FENCED;
}

/* The operation, the mode, for one who shares the permits, and the owner id if
 * there is one.  By hand, as it is done for every request. */
static void eval_what(const struct redis_conn *rc, char *ret, char op,
                      const struct hfi_claim *claim)
{
    const char *owner = rc->acquire == REDIS_FENCED ? claim->owner : NULL;
    size_t len = strlen(rc->script_mode);

    if (eval_is_member(rc, claim)) {
        snprintf(ret, EVAL_WHAT_MAX, "X%c%s%d %s", owner ? tolower(op) : op,
                 rc->script_mode, claim->permits, owner ? owner : "");
        return;
    }
    *ret++ = owner ? (char)tolower(op) : op;
    memcpy(ret, rc->script_mode, len + 1);
    if (owner)
        memcpy(ret + len, owner, strlen(owner) + 1);
}

static void eval_command(struct redis_conn *rc, struct redis_key_command *order,
                         struct eval_texts *texts, char op,
                         const struct hfi_claim *claim, int argc,
                         const char **argv)
{
    const char **all = order->argv;
    int i, n = 0;

    eval_what(rc, texts->what, op, claim);
    redis_name(rc, claim->key, &texts->names);
    order->script = rc->script;
    order->wait = NULL;
    order->ahead = NULL;
    order->longer = NULL;
    all[n++] = "EVALSHA";
    all[n++] = rc->script_id;
    all[n++] = "4";
    for (i = 0; i < REDIS_NAMES; i++)
        all[n++] = texts->names.text[i];
    all[n++] = texts->what;
    all[n++] = claim->token;
    for (i = 0; i < argc; i++)
        all[n++] = argv[i];
    order->argc = n;
}

void redis_eval_add(struct redis_conn *rc, struct redis_batch *batch, char op,
                    const struct hfi_claim *claim, int argc, const char **argv,
                    bool whole)
{
    struct redis_key_command order;
    struct eval_texts texts;

    eval_command(rc, &order, &texts, op, claim, argc, argv);
    redis_key_command_add(batch, &order, whole);
}

hf_status redis_eval(struct redis_conn *rc, struct redis_wait *wait, char op,
                     const struct hfi_claim *claim, int argc, const char **argv,
                     redisReply **ret, int64_t deadline, struct hf_error *err)
{
    struct redis_key_command order;
    struct eval_texts texts;

    eval_command(rc, &order, &texts, op, claim, argc, argv);
    order.wait = wait;
    return redis_key_command(rc, claim->key, &order, ret, deadline, err);
}

hf_status redis_eval_ahead(struct redis_conn *rc, struct redis_ahead *ahead,
                           char op, const struct hfi_claim *claim, int argc,
                           const char **argv, redisReply **ret,
                           int64_t deadline, struct hf_error *err)
{
    struct redis_key_command order;
    struct eval_texts texts;

    eval_command(rc, &order, &texts, op, claim, argc, argv);
    order.ahead = ahead;
    return redis_key_command(rc, claim->key, &order, ret, deadline, err);
}
