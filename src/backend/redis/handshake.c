/* SPDX-License-Identifier: MIT
 *
 * handshake.c - how a connection to Redis begins: who we are, which database,
 * and whether it is the server that it should be.
 */
#include "redis.h"

#include "base/banned.h"

hf_status redis_handshake_batch(struct mux_link *link,
                                struct redis_batch *batch, int64_t deadline,
                                struct hf_error *err)
{
    hf_status st = batch->failed ? hfi_nomem(err)
                                 : hfi_mux_send(link, batch->bytes, batch->len,
                                                deadline, err);

    if (batch->bytes) /* It may contain a secret. */
        explicit_bzero(batch->bytes, batch->len);
    redis_batch_free(batch);
    return st;
}

hf_status redis_handshake_reply(struct redis_conn *rc, struct mux_link *link,
                                redisReply **reply, int64_t deadline,
                                struct hf_error *err)
{
    hf_status st = hfi_mux_receive(link, reply, deadline, err);

    if (!st && (*reply)->type == REDIS_REPLY_ERROR) {
        st = redis_error_bare(rc, *reply, err);
        freeReplyObject(*reply);
        *reply = NULL;
    }
    return st;
}

hf_status redis_handshake_send(struct redis_conn *rc, struct mux_link *link,
                               int argc, const char **argv, redisReply **reply,
                               int64_t deadline, struct hf_error *err)
{
    struct redis_batch batch = {0};
    hf_status st;

    redis_batch_add(&batch, argc, argv);
    st = redis_handshake_batch(link, &batch, deadline, err);
    return st ? st : redis_handshake_reply(rc, link, reply, deadline, err);
}

hf_status redis_secret(const char *file, const char *option,
                       char ret[REDIS_SECRET_MAX], struct hf_error *err)
{
    char what[64];
    hf_status st;

    snprintf(what, sizeof(what), "url: the file of %s", option);
    st = hfi_url_secret(file, what, ret, REDIS_SECRET_MAX, err);
    if (!st && !*ret)
        st = hfi_fail(err, HF_INVALID, "%s is empty", what);
    return st;
}

/* AUTH, with a user if there is one: the number of words. */
static int handshake_auth(const char **argv, const char *user,
                          const char *password)
{
    int n = 0;

    argv[n++] = "AUTH";
    if (user)
        argv[n++] = user;
    argv[n++] = password;
    return n;
}

/* The file is read for each connection: a password may change. */
hf_status redis_handshake_sentinel(void *arg, struct mux_link *link,
                                   int64_t deadline, struct hf_error *err)
{
    struct redis_conn *rc = arg;
    char secret[REDIS_SECRET_MAX];
    struct redis_batch batch = {0};
    const char *argv[3];
    redisReply *reply;
    hf_status st;
    int n;

    if (!rc->sentinel_password_file)
        return HF_OK;
    st = redis_secret(rc->sentinel_password_file,
                      "sentinel_password_file=", secret, err);
    if (!st) {
        n = handshake_auth(argv, rc->sentinel_user, secret);
        redis_batch_add(&batch, n, argv);
        st = redis_handshake_batch(link, &batch, deadline, err);
    }
    if (!st)
        st = hfi_mux_receive(link, &reply, deadline, err);
    explicit_bzero(secret, sizeof(secret));
    if (st)
        return st;
    if (reply->type == REDIS_REPLY_ERROR)
        st = redis_error_from_reply(
            rc->sentinel_user ? "sentinel_user=, sentinel_password_file="
                              : "sentinel_password_file=",
            reply, err);
    freeReplyObject(reply);
    return st;
}

/* Say who we are, if anybody.  A user without a password is one that needs
 * none.  The file is read for each connection: a password may change. */
static hf_status handshake_user(struct redis_conn *rc, struct mux_link *link,
                                int64_t deadline, struct hf_error *err)
{
    const char *password = rc->password ? rc->password : "";
    char secret[REDIS_SECRET_MAX];
    const char *argv[3];
    redisReply *reply;
    hf_status st = HF_OK;

    if (!rc->user && !rc->password && !rc->password_file)
        return HF_OK;
    if (rc->password_file) {
        st = redis_secret(rc->password_file, "password_file=", secret, err);
        password = secret;
    }
    if (!st)
        st = redis_handshake_send(rc, link,
                                  handshake_auth(argv, rc->user, password),
                                  argv, &reply, deadline, err);
    if (!st)
        freeReplyObject(reply);
    else if (!*password && st == HF_DENIED)
        st = hfi_wrap(err, st, "the url has a user and no password");
    if (rc->password_file)
        explicit_bzero(secret, sizeof(secret));
    return st;
}

/* A master that Sentinel named may have become a replica meanwhile; or the
 * sentinel has not heard yet, and another is asked first the next time. */
static hf_status handshake_role(struct redis_conn *rc, struct mux_link *link,
                                int64_t deadline, struct hf_error *err)
{
    const char *argv[] = {"ROLE"};
    redisReply *reply = NULL;
    hf_status st =
        redis_handshake_send(rc, link, 1, argv, &reply, deadline, err);

    if (!st && (reply->type != REDIS_REPLY_ARRAY || !reply->elements ||
                !reply->element[0]->str ||
                strcmp(reply->element[0]->str, "master") != 0)) {
        atomic_fetch_add(&rc->follow.first, 1);
        st = hfi_fail(err, HF_UNAVAILABLE, "it is not the master (yet)");
    }
    if (reply)
        freeReplyObject(reply);
    return st;
}

hf_status redis_handshake(void *arg, struct mux_link *link, int64_t deadline,
                          struct hf_error *err)
{
    struct redis_conn *rc = arg;
    const char *argv[2];
    redisReply *reply = NULL;
    char db[16];
    hf_status st = handshake_user(rc, link, deadline, err);

    if (!st && rc->db) {
        snprintf(db, sizeof(db), "%d", rc->db);
        argv[0] = "SELECT";
        argv[1] = db;
        st = redis_handshake_send(rc, link, 2, argv, &reply, deadline, err);
        if (!st)
            freeReplyObject(reply);
    }
    if (!st && rc->master[0])
        st = handshake_role(rc, link, deadline, err);
    return st;
}
