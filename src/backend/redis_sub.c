/* SPDX-License-Identifier: MIT
 *
 * redis_sub.c - wake-ups, over a connection of their own.
 *
 * Each client listens on one channel, which it names in every place that it
 * takes in a queue.  So a wait costs no subscription, and a release wakes
 * exactly the client whose turn it is.  A message is one character, a token
 * and a key:
 *
 *   +TOKENn f KEY   this claim's turn has come: it was granted with fence f
 *                   after its n-th try, or may try to be if f is 0
 *   ~TOKENKEY   this claim is next after one that may be dead
 *   ?TOKENKEY   somebody asks for what we let linger
 *   !TOKENKEY   an operator broke this grant
 *
 * Messages are lost with the connection.  So when it breaks everybody who waits
 * is woken, and the first to try connects again before its try.
 */
#include "redis.h"

#include "../env.h"

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

/* Connect and subscribe.  The mutex is let go meanwhile: the keeper wants it. */
static hf_status sub_connect(struct redis_conn *rc, int64_t deadline,
                             struct hf_error *err)
{
    struct mux_link *link = NULL;
    hf_status st;

    rc->sub_connecting = true;
    pthread_mutex_unlock(&rc->sub_mu);
    st = hfi_mux_open(&rc->mux, deadline, &link, err);
    if (!st)
        st = sub_begin(rc, link, deadline, err);
    if (st)
        hfi_mux_close(link);
    pthread_mutex_lock(&rc->sub_mu);
    rc->sub_connecting = false;
    pthread_cond_broadcast(&rc->sub_connected);
    if (!st) {
        rc->sub = link;
        atomic_store(&rc->base.listening, true);
        atomic_store(&rc->sub_fd, hfi_mux_fd(link));
    }
    return st;
}

/* Be subscribed.  With several callers one connects; the others wait for it. */
hf_status redis_sub_ensure(struct redis_conn *rc, int64_t deadline,
                           struct hf_error *err)
{
    struct timespec ts;
    bool fresh = false;
    hf_status st = HF_OK;

    hfi_monotonic(deadline, &ts);
    pthread_mutex_lock(&rc->sub_mu);
    while (rc->sub_connecting && !st)
        if (pthread_cond_clockwait(&rc->sub_connected, &rc->sub_mu,
                                   CLOCK_MONOTONIC, &ts))
            st = hfi_fail(err, HF_UNAVAILABLE,
                          "still subscribing at the deadline");
    if (!st && !rc->sub) {
        st = sub_connect(rc, deadline, err);
        fresh = !st;
    }
    pthread_mutex_unlock(&rc->sub_mu);
    if (fresh)
        hfi_pump_changed(&rc->base);
    return st;
}

int redis_sub_fd(struct hfi_conn *conn)
{
    return atomic_load(&((struct redis_conn *)conn)->sub_fd);
}

/* "n f KEY".  A grant that replicas must have is one only after a try of its
 * own, which waits for them. */
static void sub_turn(struct redis_conn *rc, const char *text, const char *token)
{
    unsigned long long nth, fence;
    char *end;

    nth = strtoull(text, &end, 10);
    if (end == text || *end != ' ')
        return;
    text = end + 1;
    fence = strtoull(text, &end, 10);
    if (end == text || *end != ' ')
        return;
    if (fence && !rc->replicas)
        hfi_granted(&rc->base, end + 1, token, (uint32_t)nth, fence,
                    REDIS_WINDOW_MS);
    else
        hfi_wake(&rc->base, end + 1, token);
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
        sub_turn(rc, text + 1 + HFI_TOKEN_LEN, token);
    else if (text[0] == '~')
        hfi_expect(&rc->base, text + 1 + HFI_TOKEN_LEN, token,
                   REDIS_WINDOW_MS + 1);
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
        atomic_store(&rc->base.listening, false);
        atomic_store(&rc->sub_fd, -1);
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
