/* SPDX-License-Identifier: MIT
 *
 * redis_sub.c - wake-ups, over a connection of their own.
 *
 * Each client listens on one channel, which it names in every place that it
 * takes in a queue.  So a wait costs no subscription, and a release wakes
 * exactly the client whose turn it is.  A message is one character, a token
 * and a key:
 *
 *   +TOKENKEY   this claim's turn has come
 *   ?TOKENKEY   somebody asks for what we let linger
 *   !TOKENKEY   an operator broke this grant
 *
 * Messages are lost with the connection.  So when it breaks everybody who waits
 * is woken, and the first to try connects again before its try.
 */
#include "redis.h"

#include "../banned.h"

/* Subscribe on a fresh connection, and see that it was granted. */
static hf_status sub_begin(struct redis_conn *rc, struct mux_link *link,
                           int64_t deadline, struct hf_error *err)
{
    const char *argv[] = {"SUBSCRIBE", rc->channel};
    struct redis_batch batch = {0};
    redisReply *reply;
    hf_status st;

    redis_batch_add(&batch, 2, argv);
    if (batch.failed)
        return hfi_nomem(err);
    st = hfi_mux_exchange(link, batch.bytes, batch.len, &reply, deadline, err);
    redis_batch_free(&batch);
    if (st)
        return st;
    if (reply->type == REDIS_REPLY_ERROR)
        st = redis_error(rc, reply, err);
    freeReplyObject(reply);
    return st;
}

/* Be subscribed.  With several callers one connects; the others wait for it. */
hf_status redis_sub_ensure(struct redis_conn *rc, int64_t deadline,
                           struct hf_error *err)
{
    struct mux_link *link = NULL;
    hf_status st = HF_OK;

    pthread_mutex_lock(&rc->sub_mu);
    if (!rc->sub) {
        st = hfi_mux_open(&rc->mux, deadline, &link, err);
        if (!st)
            st = sub_begin(rc, link, deadline, err);
        if (!st)
            rc->sub = link;
        else
            hfi_mux_close(link);
    }
    pthread_mutex_unlock(&rc->sub_mu);
    if (link && !st)
        hfi_pump_changed(&rc->base);
    return st;
}

int redis_sub_fd(struct hfi_conn *conn)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    int fd;

    pthread_mutex_lock(&rc->sub_mu);
    fd = rc->sub ? hfi_mux_fd(rc->sub) : -1;
    pthread_mutex_unlock(&rc->sub_mu);
    return fd;
}

/* A message is an array: "message", the channel, the payload. */
static void sub_heard(struct redis_conn *rc, const redisReply *reply)
{
    const redisReply *payload;
    char token[HFI_TOKEN_LEN + 1];
    const char *text;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3)
        return;
    payload = reply->element[2];
    if (payload->type != REDIS_REPLY_STRING ||
        payload->len <= 1 + HFI_TOKEN_LEN)
        return;
    text = payload->str;
    memcpy(token, text + 1, HFI_TOKEN_LEN);
    token[HFI_TOKEN_LEN] = '\0';
    if (text[0] == '+')
        hfi_wake(&rc->base, text + 1 + HFI_TOKEN_LEN, token);
    else if (text[0] == '?')
        hfi_wanted(&rc->base, text + 1 + HFI_TOKEN_LEN);
    else if (text[0] == '!')
        hfi_gone(&rc->base, text + 1 + HFI_TOKEN_LEN, token, HF_LOSS_BROKEN);
}

void redis_sub_pump(struct hfi_conn *conn)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    redisReply *reply;
    bool broken = false;

    pthread_mutex_lock(&rc->sub_mu);
    while (rc->sub && !broken) {
        broken = hfi_mux_hear(rc->sub, &reply) != HF_OK;
        if (broken || !reply)
            break;
        sub_heard(rc, reply);
        freeReplyObject(reply);
    }
    if (broken) {
        hfi_mux_close(rc->sub);
        rc->sub = NULL;
    }
    pthread_mutex_unlock(&rc->sub_mu);
    if (broken)
        hfi_wake_all(conn);
}

void redis_sub_close(struct redis_conn *rc)
{
    hfi_mux_close(rc->sub);
    rc->sub = NULL;
}
