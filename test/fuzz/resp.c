/* SPDX-License-Identifier: MIT
 *
 * resp.c - whatever a Redis server, sentinel or cluster answers, the backend
 * neither crashes nor leaks nor takes nonsense for a grant.
 *
 * Stands in for net/resp_link.c: the input is the stream of bytes that the server sends,
 * to whichever question, and is parsed as it would be there, a few bytes at a
 * time.
 */
#include "backend/redis/redis.h"
#include "drive.h"

#include <stdlib.h>
#include <string.h>

extern const struct hfi_backend hfi_backend_redis;

/* One is enough: nobody looks into it. */
struct mux_link {
    struct hfi_shared_link base;
};

static struct mux_link the_link;
static redisReader *reader;

/* The next reply, or NULL. */
static redisReply *next(void)
{
    redisReply *reply = NULL;
    char part[7];
    size_t n;

    for (;;) {
        if (!hfi_resp_next(reader, &reply))
            return NULL;
        if (reply || !fuzz_input.left)
            return reply;
        for (n = 0; n < sizeof(part) && fuzz_input.left; n++)
            part[n] = (char)fuzz_byte();
        if (!hfi_resp_feed(reader, part, n))
            return NULL;
    }
}

static hf_status answer(redisReply **replies, int n, struct hf_error *err)
{
    int i;

    for (i = 0; i < n; i++) {
        replies[i] = next();
        if (replies[i])
            continue;
        while (i-- > 0)
            freeReplyObject(replies[i]);
        return hfi_fail(err, HF_UNCERTAIN, "no answer");
    }
    return HF_OK;
}

void hfi_mux_init(struct hfi_mux *mux, hfi_mux_find *find,
                  hfi_mux_handshake *handshake, void *arg)
{
    *mux = (struct hfi_mux){.find = find, .handshake = handshake, .arg = arg};
}

void hfi_mux_set_aside(struct hfi_mux *mux, hfi_mux_handshake *handshake)
{
    mux->aside_handshake = handshake;
}

void hfi_mux_fini(struct hfi_mux *mux)
{
    mux->shared.link = NULL;
}

void hfi_mux_after_fork_child(struct hfi_mux *mux)
{
    mux->shared.link = NULL;
}

void hfi_mux_retire(struct hfi_mux *mux)
{
    mux->shared.link = NULL;
}

bool hfi_mux_move(struct hfi_mux *mux, const struct hfi_endpoint *to)
{
    if (!*to->host || to->port < 1 || to->port > UINT16_MAX)
        fuzz_wrong("followed a master to nowhere");
    hfi_mux_retire(mux);
    return true;
}

bool hfi_mux_is_at(struct hfi_mux *mux, const struct hfi_endpoint *to)
{
    (void)to;
    return mux->shared.link;
}

bool hfi_mux_is_to(const struct mux_link *link, const struct hfi_endpoint *to)
{
    (void)link;
    (void)to;
    return false;
}

hf_status hfi_mux_open(struct hfi_mux *mux, int64_t deadline,
                       struct mux_link **ret, struct hf_error *err)
{
    struct hfi_endpoint where = {.port = 0};
    hf_status st = mux->find(mux->arg, &where, deadline, err);

    if (!st)
        st = mux->handshake(mux->arg, &the_link, deadline, err);
    if (!st)
        *ret = &the_link;
    return st;
}

hf_status hfi_mux_call(struct hfi_mux *mux, const char *bytes, size_t len,
                       int n, struct redisReply **replies, int64_t deadline,
                       struct hf_error *err)
{
    struct mux_link *link;
    hf_status st = HF_OK;

    (void)bytes;
    (void)len;
    if (!mux->shared.link)
        st = hfi_mux_open(mux, deadline, &link, err);
    if (!st)
        mux->shared.link = &the_link.base;
    return st ? st : answer(replies, n, err);
}

hf_status hfi_mux_begin(struct hfi_mux *mux, struct hfi_mux_call *call,
                        const char *bytes, size_t len, int n,
                        struct redisReply **replies, int64_t deadline,
                        struct hf_error *err)
{
    call->replies = replies;
    call->base.st = hfi_mux_call(mux, bytes, len, n, replies, deadline, err);
    return HF_OK;
}

hf_status hfi_mux_begin_first(struct hfi_mux *mux, struct hfi_mux_call *call,
                              const char *bytes, size_t len, int n,
                              redisReply **replies, int64_t deadline,
                              struct hf_error *err)
{
    return hfi_mux_begin(mux, call, bytes, len, n, replies, deadline, err);
}

size_t hfi_mux_begin_several(struct hfi_mux *mux, const char *bytes,
                             const struct hfi_mux_start *starts, size_t n,
                             int64_t deadline)
{
    for (size_t i = 0; i < n; i++) {
        hfi_mux_begin(mux, starts[i].call, bytes, starts[i].len, 1,
                      starts[i].reply, deadline, NULL);
        bytes += starts[i].len;
    }
    return n;
}

hf_status hfi_mux_finish(struct hfi_mux_call *call, int64_t deadline,
                         struct hf_error *err)
{
    (void)deadline;
    (void)err;
    return call->base.st;
}

/* Every call is over when it has begun. */
bool hfi_mux_advance(struct hfi_mux_call *call, bool readable)
{
    (void)call;
    (void)readable;
    return true;
}

int hfi_mux_call_fd(const struct hfi_mux_call *call)
{
    (void)call;
    return -1;
}

bool hfi_mux_is_up(struct hfi_mux *mux)
{
    return mux->shared.link;
}

bool hfi_mux_say(struct mux_link *link, const char *bytes, size_t len,
                 int64_t deadline)
{
    (void)link;
    (void)bytes;
    (void)len;
    (void)deadline;
    return true;
}

hf_status hfi_mux_send(struct mux_link *link, const char *bytes, size_t len,
                       int64_t deadline, struct hf_error *err)
{
    (void)err;
    hfi_mux_say(link, bytes, len, deadline);
    return HF_OK;
}

hf_status hfi_mux_receive(struct mux_link *link, struct redisReply **reply,
                          int64_t deadline, struct hf_error *err)
{
    (void)link;
    (void)deadline;
    return answer(reply, 1, err);
}

hf_status hfi_mux_exchange(struct mux_link *link, const char *bytes, size_t len,
                           struct redisReply **reply, int64_t deadline,
                           struct hf_error *err)
{
    hf_status st = hfi_mux_send(link, bytes, len, deadline, err);

    return st ? st : hfi_mux_receive(link, reply, deadline, err);
}

hf_status hfi_mux_hear(struct mux_link *link, struct redisReply **reply)
{
    (void)link;
    *reply = NULL;
    if (!fuzz_input.left || *fuzz_input.at % 2) /* which is still to be read */
        return HF_OK;                           /* nothing yet */
    *reply = next();
    return *reply ? HF_OK : HF_UNAVAILABLE;
}

int hfi_mux_fd(const struct mux_link *link)
{
    (void)link;
    return -1;
}

void hfi_mux_close(struct mux_link *link)
{
    (void)link;
}

/* All of it as what a sentinel says unasked. */
static void hear_switch(const uint8_t *bytes, size_t len)
{
    struct redis_conn *rc = calloc(1, sizeof(*rc));
    redisReply payload = {.type = REDIS_REPLY_STRING, .len = len};

    payload.str = calloc(1, len + 1);
    if (!rc || !payload.str)
        abort();
    memcpy(payload.str, bytes, len);
    snprintf(rc->master, sizeof(rc->master), "main");
    rc->epoll = -1;
    redis_follow_heard(rc, &payload);
    free(payload.str);
    free(rc);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static const char *const urls[] = {"redis://a",
                                       "redis://u:p@a/1?replicas=1",
                                       "redis+sentinel://a,b/main",
                                       "redis+cluster://a",
                                       "redis://a?acquire=set",
                                       "redis://a?queue=fair",
                                       NULL};

    reader = hfi_resp_reader();
    if (!reader)
        abort();
    fuzz_drive(&hfi_backend_redis, urls, bytes, len);
    redisReaderFree(reader);
    hear_switch(bytes, len);
    return 0;
}
