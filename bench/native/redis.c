/* SPDX-License-Identifier: MIT
 *
 * redis.c - client-side caching of Redis, with plain hiredis.
 *
 * A client has two connections, as RESP2 wants it: one reads the key, and the
 * other is told when what was read is not valid any more.  Then the key is read
 * again, which is also what makes the server tell of the next change.  A server
 * tells a connection once, however many in the client want to know.
 */
#include "native.h"

#include "../bench.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <string.h>

struct redis_native {
    struct native_client base;
    redisContext *reader, *told;
    char name[300], value[128];
};

static redisContext *connect_to(void)
{
    char host[256];
    redisContext *ctx;
    int port;

    native_where(host, &port);
    ctx = redisConnect(host, port);
    if (!ctx || ctx->err)
        bench_die("redis: %s", ctx ? ctx->errstr : "out of memory");
    return ctx;
}

/* From now on nothing waits. */
static int without_waiting(redisContext *ctx)
{
    ctx->flags &= ~REDIS_BLOCK;
    if (fcntl(ctx->fd, F_SETFL, fcntl(ctx->fd, F_GETFL) | O_NONBLOCK))
        bench_die_errno("fcntl");
    return ctx->fd;
}

static void ask(struct redis_native *me)
{
    int done = 0;

    redisAppendCommand(me->reader, "GET %s", me->name);
    while (!done)
        if (redisBufferWrite(me->reader, &done))
            bench_die("redis: %s", me->reader->errstr);
}

/* What stands in the key is the token of its holder. */
static void take(struct redis_native *me, const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR)
        bench_die("redis: %s", reply->str);
    if (reply->type != REDIS_REPLY_STRING || !strcmp(reply->str, me->value))
        return;
    snprintf(me->value, sizeof(me->value), "%s", reply->str);
    native_told(&me->base);
}

static redisReply *next_reply(redisContext *ctx)
{
    void *reply = NULL;

    if (redisGetReplyFromReader(ctx, &reply))
        bench_die("redis: %s", ctx->errstr);
    return reply;
}

static void hear(struct native_client *client)
{
    struct redis_native *me = (struct redis_native *)client;
    redisReply *reply;

    if (redisBufferRead(me->told) || redisBufferRead(me->reader))
        bench_die("redis: the connection broke");
    while ((reply = next_reply(me->told))) {
        freeReplyObject(reply);
        ask(me);
    }
    while ((reply = next_reply(me->reader))) {
        take(me, reply);
        freeReplyObject(reply);
    }
}

static redisReply *must(redisReply *reply)
{
    if (!reply || reply->type == REDIS_REPLY_ERROR)
        bench_die("redis: %s", reply ? reply->str : "no answer");
    return reply;
}

static void open_watches(struct native_client *client, const char *key)
{
    struct redis_native *me = (struct redis_native *)client;
    redisReply *id;

    snprintf(me->name, sizeof(me->name), "holdfast:%s", key);
    me->reader = connect_to();
    me->told = connect_to();
    id = must(redisCommand(me->told, "CLIENT ID"));
    freeReplyObject(must(redisCommand(
        me->reader, "CLIENT TRACKING ON REDIRECT %lld", id->integer)));
    freeReplyObject(id);
    freeReplyObject(
        must(redisCommand(me->told, "SUBSCRIBE __redis__:invalidate")));
    id = must(redisCommand(me->reader, "GET %s", me->name));
    take(me, id);
    freeReplyObject(id);
    client->fds[0] = without_waiting(me->reader);
    client->fds[1] = without_waiting(me->told);
}

static void close_watches(struct native_client *client)
{
    struct redis_native *me = (struct redis_native *)client;

    redisFree(me->reader);
    redisFree(me->told);
}

const struct native_kind native_redis = {
    "redis:",     "client-side caching",
    false,        sizeof(struct redis_native),
    open_watches, hear,
    close_watches};
