/* SPDX-License-Identifier: MIT
 *
 * call.c - commands and replies over the shared connection.
 */
#include "redis.h"

#include "base/alloc.h"

#include "base/banned.h"

/* ---- commands ---------------------------------------------------------- */

void redis_batch_add(struct redis_batch *batch, int argc, const char **argv)
{
    size_t need = batch->len + hfi_resp_room(argc, argv);
    size_t room = batch->room ? batch->room : 512;
    char *grown;

    while (room < need)
        room *= 2;
    if (room != batch->room) {
        grown = hfi_realloc(batch->bytes, room);
        if (!grown) {
            batch->failed = true;
            return;
        }
        batch->bytes = grown;
        batch->room = room;
    }
    batch->len += hfi_resp_write(batch->bytes + batch->len, argc, argv);
    batch->count++;
}

void redis_batch_free(struct redis_batch *batch)
{
    hfi_free(batch->bytes);
    *batch = (struct redis_batch){0};
}

hf_status redis_batch_send(struct redis_conn *rc, struct hfi_mux *mux,
                           struct redis_batch *batch, redisReply **replies,
                           int64_t deadline, struct hf_error *err)
{
    hf_status st;

    if (batch->failed)
        return hfi_nomem(err);
    st = hfi_mux_call(mux, batch->bytes, batch->len, batch->count, replies,
                      deadline, err);
    return st ? hfi_wrap(err, st, "%s", rc->base.endpoint) : HF_OK;
}

/* ---- errors ------------------------------------------------------------ */

static const char error_replica[] = "it is a replica";
static const char error_rights[] = "the user lacks rights; see holdfast-url(7)";
static const char error_moving[] = "its slot is moving";

/* How an error begins, what it means to us, and what to do about it. */
static const struct {
    const char *word;
    hf_status st;
    const char *hint;
} redis_errors[] = {
    {"NOAUTH", HF_DENIED, "give a password in the URL"},
    {"WRONGPASS", HF_DENIED, "user or password is wrong"},
    {"NOPERM", HF_DENIED, error_rights},
    {"ERR ACL failure in script", HF_DENIED, error_rights},
    {"ERR The user executing the script", HF_DENIED, error_rights},
    {"ERR invalid password", HF_DENIED, "the password is wrong"},
    {"ERR AUTH", HF_DENIED, "the server wants no password"},
    {"ERR Client sent AUTH", HF_DENIED, "the server wants no password"},
    {"ERR DB index", HF_INVALID, "there is no such database"},
    {"WRONGTYPE", HF_PROTOCOL, "somebody else's data is at this key"},
    {"LOADING", HF_UNAVAILABLE, "it is still loading its data"},
    {"BUSY ", HF_UNAVAILABLE, "a script runs for too long there"},
    {"NOSCRIPT", HF_UNAVAILABLE, "its scripts were flushed again"},
    {"MISCONF", HF_UNAVAILABLE, "it cannot write its data to disk"},
    {"OOM", HF_UNAVAILABLE, "it is out of memory"},
    {"READONLY", HF_UNAVAILABLE, error_replica},
    {"ERR WAIT cannot be used with replica", HF_UNAVAILABLE, error_replica},
    {"MASTERDOWN", HF_UNAVAILABLE, "its master is down"},
    {"CLUSTERDOWN", HF_UNAVAILABLE,
     "the cluster is down, or this node is not in it"},
    {"TRYAGAIN", HF_UNAVAILABLE, error_moving},
    {"ERR This instance has cluster support disabled", HF_INVALID,
     "it is no cluster: use redis:"},
    {"NOREPLICAS", HF_UNAVAILABLE, "too few replicas are connected"},
    {"MOVED", HF_UNSUPPORTED,
     "it is a cluster: use redis+cluster: or rediss+cluster:"},
    {"ERR unknown command", HF_UNSUPPORTED, "it has no such command"},
    {"ERR syntax error", HF_UNSUPPORTED, "it has no such command"},
    {"ERR max number of clients", HF_UNAVAILABLE, "it has no free connection"},
};

bool redis_is_noscript(const redisReply *reply)
{
    return reply->type == REDIS_REPLY_ERROR &&
           !strncmp(reply->str, "NOSCRIPT", 8);
}

/* Before 7.0 an error within a script is told within another:
 * "ERR Error running script (call to f_...): @user_script:5: WRONGTYPE ...", or
 * "... @user_script:5: @user_script: 5: -OOM ...". */
static const char *error_word(const char *text)
{
    static const char where[] = "@user_script:";
    const char *at, *word = text;

    if (strncmp(text, "ERR Error running script", 24) != 0)
        return text;
    while ((at = strstr(word, where))) {
        word = at + strlen(where);
        word += strspn(word, " 0123456789:-");
    }
    return word;
}

/* What is known of an error: its number in the table, or -1. */
static int error_known(const char *word)
{
    int i, n = (int)(sizeof(redis_errors) / sizeof(redis_errors[0]));

    for (i = 0; i < n; i++)
        if (!strncmp(word, redis_errors[i].word, strlen(redis_errors[i].word)))
            return i;
    return -1;
}

/* Is it likely that another server has what was asked for? */
static bool error_is_elsewhere(const char *word)
{
    static const char *const words[] = {"CLUSTERDOWN", "LOADING", "MASTERDOWN",
                                        "READONLY"};
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (!strncmp(word, words[i], strlen(words[i])))
            return true;
    return false;
}

hf_status redis_error_from_reply(const char *who, const redisReply *reply,
                                 struct hf_error *err)
{
    const char *word = error_word(reply->str);
    int i = error_known(word);
    char text[128];
    hf_status st;

    hfi_quote(text, sizeof(text), word);
    if (i < 0)
        st = hfi_fail(err, HF_PROTOCOL, "%s", text);
    else
        st = hfi_fail(err, redis_errors[i].st, "%s: %s", redis_errors[i].hint,
                      text);
    return who ? hfi_wrap(err, st, "%s", who) : st;
}

hf_status redis_error_bare(struct redis_conn *rc, const redisReply *reply,
                           struct hf_error *err)
{
    const char *word = error_word(reply->str);
    int i = error_known(word);

    /* The master is elsewhere now: find it for the next call. */
    if (i >= 0 && redis_errors[i].hint == error_replica) {
        hfi_mux_retire(&rc->mux);
        hfi_mux_retire(&rc->replica_link.mux);
    }
    if (i >= 0 && redis_errors[i].hint == error_moving && rc->cluster)
        atomic_store(&rc->cluster->asked_at, hfi_now());
    if (rc->cluster && error_is_elsewhere(word))
        rc->cluster->stale(rc);
    return redis_error_from_reply(NULL, reply, err);
}

hf_status redis_error(struct redis_conn *rc, const redisReply *reply,
                      struct hf_error *err)
{
    hf_status st = redis_error_bare(rc, reply, err);

    return hfi_wrap(err, st, "%s", rc->base.endpoint);
}

hf_status redis_command(struct redis_conn *rc, struct hfi_mux *mux, int argc,
                        const char **argv, redisReply **ret, int64_t deadline,
                        struct hf_error *err)
{
    struct redis_batch batch = {0};
    redisReply *reply;
    hf_status st;

    redis_batch_add(&batch, argc, argv);
    st = redis_batch_send(rc, mux, &batch, &reply, deadline, err);
    redis_batch_free(&batch);
    if (st)
        return st;
    if (reply->type == REDIS_REPLY_ERROR) {
        st = redis_error(rc, reply, err);
        freeReplyObject(reply);
        return st;
    }
    *ret = reply;
    return HF_OK;
}

/* ---- replies ----------------------------------------------------------- */

uint64_t redis_number(const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_INTEGER)
        return reply->integer > 0 ? (uint64_t)reply->integer : 0;
    return reply->type == REDIS_REPLY_STRING ? strtoull(reply->str, NULL, 10)
                                             : 0;
}

hf_status redis_bad_reply(struct redis_conn *rc, struct hf_error *err)
{
    return hfi_fail(err, HF_PROTOCOL, "%s: an answer that makes no sense",
                    rc->base.endpoint);
}
