/* SPDX-License-Identifier: MIT
 *
 * wait.c - wake-ups, over connections of their own.
 *
 * Each client listens on a channel of its own, which it names in every place
 * that it takes in a queue.  So a release wakes exactly the client whose turn
 * it is.  One channel serves all keys of a server, and in a cluster all keys
 * of a slot: a channel has a slot as a key has, the server that has the slot
 * has the listener, and the script that runs there knows whether anybody
 * hears.  A message is one character, a token and a key:
 *
 *   +TOKENn f KEY   this claim's turn has come: it was granted with fence f
 *                   after its n-th try, or may try to be if f is 0; with
 *                   permits f is FENCE/SLOT
 *   ~TOKENKEY   this claim is next after one that may be dead
 *   @TOKENms KEY    this claim is next, and may have it after so long
 *   ?TOKENKEY   somebody asks for what we let linger
 *   !TOKENKEY   an operator broke this grant
 *
 * The channels are sharded ones, whose messages stay within the shard, and end
 * in an `s` to tell the script so.  A server before 7.0 does not know them, and
 * has plain ones.
 *
 * What becomes of messages that are lost is in subscriber.c.
 */
#include "redis.h"

#include <sys/epoll.h>

#include "base/banned.h"

/* ---- messages ---------------------------------------------------------- */

/* "n f KEY".  A grant that replicas must have is one only after a try of its
 * own, which waits for them. */
static void heard_turn(struct redis_conn *rc, const char *text,
                       const char *token)
{
    unsigned long long nth, fence;
    long slot = -1;
    char *end;

    nth = strtoull(text, &end, 10);
    if (end == text || *end != ' ')
        return;
    text = end + 1;
    fence = strtoull(text, &end, 10);
    if (end != text && *end == '/')
        slot = strtol(end + 1, &end, 10);
    if (end == text || *end != ' ')
        return;
    if (fence && !rc->replicas && redis_saw(rc, end + 1, fence))
        hfi_granted(&rc->base, end + 1, token, (uint32_t)nth, fence,
                    (int32_t)slot, REDIS_WINDOW_MS);
    else
        hfi_wake(&rc->base, end + 1, token);
}

/* "ms KEY" */
static void heard_end(struct redis_conn *rc, const char *text,
                      const char *token)
{
    char *end;
    long long ms = strtoll(text, &end, 10);

    if (end != text && *end == ' ' && ms >= 0 && ms < INT32_MAX)
        hfi_expect(&rc->base, end + 1, token, ms + 1);
}

void redis_heard(struct redis_conn *rc, const redisReply *payload)
{
    char token[HFI_TOKEN_LEN + 1];
    const char *text = payload->str, *key;

    if (payload->type != REDIS_REPLY_STRING ||
        payload->len <= 1 + HFI_TOKEN_LEN)
        return;
    memcpy(token, text + 1, HFI_TOKEN_LEN);
    token[HFI_TOKEN_LEN] = '\0';
    key = text + 1 + HFI_TOKEN_LEN;
    if (text[0] == '+')
        heard_turn(rc, key, token);
    else if (text[0] == '~')
        hfi_expect(&rc->base, key, token, REDIS_WINDOW_MS + 1);
    else if (text[0] == '@')
        heard_end(rc, key, token);
    else if (text[0] == '?')
        hfi_wanted(&rc->base, key);
    else if (text[0] == '!')
        hfi_gone(&rc->base, key, token, HF_LOSS_BROKEN);
}

/* ---- watching --------------------------------------------------------- */

/* A holder that lets its lock linger says where it can be asked for it. */
static hf_status watch_holder(struct redis_conn *rc,
                              const struct hfi_claim *claim, int64_t deadline,
                              struct hf_error *err)
{
    char channel[REDIS_CHANNEL_MAX];
    const char *argv[] = {channel};
    redisReply *reply;
    hf_status st;

    redis_channel(rc, claim->key, channel);
    st = redis_eval(rc, NULL, 'H', claim, 1, argv, &reply, deadline, err);
    if (st)
        return st;
    if (redis_number(reply) > 0)
        hfi_wanted(&rc->base, claim->key);
    freeReplyObject(reply);
    return HF_OK;
}

hf_status redis_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                      struct hfi_receipt *receipt, int64_t deadline,
                      struct hf_error *err)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    hf_status st;

    if (rc->acquire != REDIS_FENCED)
        return hfi_fail(err, HF_UNSUPPORTED, "%s: nobody is told of bare locks",
                        conn->endpoint);
    redis_sub_want(rc, claim->key, 1);
    st = redis_sub_ensure(rc, claim->key, deadline, err);
    if (!st && receipt->fence)
        st = watch_holder(rc, claim, deadline, err);
    if (st)
        redis_sub_want(rc, claim->key, -1);
    redis_own(receipt)->watched = !st;
    return st;
}

void redis_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                   struct hfi_receipt *receipt)
{
    redis_sub_want((struct redis_conn *)conn, claim->key, -1);
    redis_own(receipt)->watched = false;
}

/* ---- listening -------------------------------------------------------- */

int redis_poll_fd(struct hfi_conn *conn)
{
    struct redis_conn *rc = (struct redis_conn *)conn;

    return rc->epoll >= 0 ? rc->epoll : atomic_load(&rc->sub.fd);
}

void redis_dispatch(struct hfi_conn *conn)
{
    struct redis_conn *rc = (struct redis_conn *)conn;
    struct epoll_event events[16];
    int i, n;

    if (rc->epoll < 0) {
        redis_sub_dispatch(&rc->sub);
        return;
    }
    n = epoll_wait(rc->epoll, events, 16, 0);
    for (i = 0; i < n; i++) {
        if (events[i].data.ptr)
            redis_sub_dispatch(events[i].data.ptr);
        else
            redis_follow_tick(rc);
    }
}
