/* SPDX-License-Identifier: MIT
 *
 * redis_hello.c - how a connection to Redis begins: who we are, which database,
 * and whether it is the server that it should be.
 */
#include "redis.h"

#include "../banned.h"

hf_status redis_hello_send(struct redis_conn *rc, struct mux_link *link,
                           int argc, const char **argv, redisReply **reply,
                           int64_t deadline, struct hf_error *err)
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
    if (!st && (*reply)->type == REDIS_REPLY_ERROR) {
        st = redis_error(rc, *reply, err);
        freeReplyObject(*reply);
        *reply = NULL;
    }
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
    const char *argv[3] = {"AUTH"};
    redisReply *reply = NULL;
    char db[16];
    int n = 1;
    hf_status st = HF_OK;

    if (rc->password) {
        if (rc->user)
            argv[n++] = rc->user;
        argv[n++] = rc->password;
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
