/* SPDX-License-Identifier: MIT
 *
 * redis_common.c - a server and bare hiredis; see redis.h.
 */
#include "redis.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char release_script[] =
    "if redis.call('GET',KEYS[1])==ARGV[1] then "
    "return redis.call('DEL',KEYS[1]) else return 0 end";

const char *redis_url(void)
{
    const char *url = getenv("HF_TEST_URL");

    if (!url || !strrchr(url, ':'))
        bench_die("no server: use bench/redis");
    return url;
}

redisContext *redis_connect(void)
{
    int port = (int)strtol(strrchr(redis_url(), ':') + 1, NULL, 10);
    redisContext *c = redisConnect("127.0.0.1", port);

    if (!c || c->err)
        bench_die("cannot connect: %s", c ? c->errstr : "out of memory");
    return c;
}

static redisReply *checked(redisContext *c, redisReply *reply)
{
    if (!reply)
        bench_die("redis: %s", c->errstr);
    if (reply->type == REDIS_REPLY_ERROR)
        bench_die("redis: %s", reply->str);
    return reply;
}

void redis_do(redisContext *c, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    freeReplyObject(checked(c, redisvCommand(c, fmt, args)));
    va_end(args);
}

double redis_info(redisContext *c, const char *section, const char *name)
{
    redisReply *reply = checked(c, redisCommand(c, "INFO %s", section));
    const char *at = strstr(reply->str, name);
    double value = at ? strtod(at + strlen(name), NULL) : 0;

    freeReplyObject(reply);
    return value;
}

void redis_load_release(redisContext *c, char digest[41])
{
    redisReply *reply =
        checked(c, redisCommand(c, "SCRIPT LOAD %s", release_script));

    snprintf(digest, 41, "%s", reply->str);
    freeReplyObject(reply);
}
