/* SPDX-License-Identifier: MIT
 *
 * redis_hello.c - how a connection to Redis begins: who we are, which database,
 * and whether it is the server that it should be.
 */
#include "redis.h"

#include "../banned.h"

/* One command, which may contain a secret, and its reply. */
static hf_status hello_ask(struct mux_link *link, int argc, const char **argv,
                           redisReply **reply, int64_t deadline,
                           struct hf_error *err)
{
    struct redis_batch batch = {0};
    hf_status st;

    redis_batch_add(&batch, argc, argv);
    if (batch.failed)
        return hfi_nomem(err);
    st = hfi_mux_exchange(link, batch.bytes, batch.len, reply, deadline, err);
    if (batch.bytes)
        explicit_bzero(batch.bytes, batch.len);
    redis_batch_free(&batch);
    return st;
}

hf_status redis_hello_send(struct redis_conn *rc, struct mux_link *link,
                           int argc, const char **argv, redisReply **reply,
                           int64_t deadline, struct hf_error *err)
{
    hf_status st = hello_ask(link, argc, argv, reply, deadline, err);

    if (!st && (*reply)->type == REDIS_REPLY_ERROR) {
        st = redis_error(rc, *reply, err);
        freeReplyObject(*reply);
        *reply = NULL;
    }
    return st;
}

/* AUTH, with a user if there is one: the number of words. */
static int hello_auth(const char **argv, const char *user, const char *password)
{
    int n = 0;

    argv[n++] = "AUTH";
    if (user)
        argv[n++] = user;
    argv[n++] = password;
    return n;
}

hf_status redis_hello_sentinel(void *arg, struct mux_link *link,
                               int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = arg;
    const char *argv[3];
    redisReply *reply;
    hf_status st;
    int n;

    if (!rc->sentinel_password)
        return HF_OK;
    n = hello_auth(argv, rc->sentinel_user, rc->sentinel_password);
    st = hello_ask(link, n, argv, &reply, deadline, err);
    if (st)
        return st;
    if (reply->type == REDIS_REPLY_ERROR)
        st = redis_complain(rc->sentinel_user
                                ? "sentinel_user=, sentinel_password_file="
                                : "sentinel_password_file=",
                            reply, err);
    freeReplyObject(reply);
    return st;
}

/* A master that Sentinel named may have become a replica meanwhile; or the
 * sentinel has not heard yet, and another is asked first the next time. */
static hf_status hello_role(struct redis_conn *rc, struct mux_link *link,
                            int64_t deadline, struct hf_error *err)
{
    const char *argv[] = {"ROLE"};
    redisReply *reply = NULL;
    hf_status st = redis_hello_send(rc, link, 1, argv, &reply, deadline, err);

    if (!st && (reply->type != REDIS_REPLY_ARRAY || !reply->elements ||
                !reply->element[0]->str ||
                strcmp(reply->element[0]->str, "master") != 0)) {
        atomic_fetch_add(&rc->follow.first, 1);
        st = hfi_fail(err, HF_UNAVAILABLE, "%s: it is not the master (yet)",
                      rc->base.endpoint);
    }
    if (reply)
        freeReplyObject(reply);
    return st;
}

hf_status redis_hello(void *arg, struct mux_link *link, int64_t deadline,
                      struct hf_error *err)
{
    struct redis_conn *rc = arg;
    const char *argv[3];
    redisReply *reply = NULL;
    char db[16];
    hf_status st = HF_OK;
    int n;

    if (rc->password) {
        n = hello_auth(argv, rc->user, rc->password);
        st = redis_hello_send(rc, link, n, argv, &reply, deadline, err);
        if (!st)
            freeReplyObject(reply);
    }
    if (!st && rc->db) {
        snprintf(db, sizeof(db), "%d", rc->db);
        argv[0] = "SELECT";
        argv[1] = db;
        st = redis_hello_send(rc, link, 2, argv, &reply, deadline, err);
        if (!st)
            freeReplyObject(reply);
    }
    if (!st && rc->master[0])
        st = hello_role(rc, link, deadline, err);
    return st;
}
