/* SPDX-License-Identifier: MIT
 *
 * redis.c - bare hiredis as a candidate: `cand-redis [piped | same]`.
 *
 * A pair is SET NX PX with a fixed token, and the release script that other
 * libraries use: two round trips without fence, queue or renewal.  `piped` does
 * `many` as one thread that writes T commands at once and then reads T replies:
 * what a connection can do at best, written by hand.  `same` does it with the
 * commands that holdfast sends, which replay.c learns from it.
 *
 * Contended, the least that passes something on in order is a list with one
 * element: BLPOP waits for it, first come, first served, and RPUSH gives it
 * back.  It is no lock, because an element that somebody takes and dies with is
 * gone; it is the limit.
 */
#include "cand.h"
#include "replay.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char release_script[] =
    "if redis.call('GET',KEYS[1])==ARGV[1] then "
    "return redis.call('DEL',KEYS[1]) else return 0 end";

struct conn {
    redisContext *c;
    char digest[41];
};

static redisReply *checked(redisContext *c, redisReply *reply)
{
    if (!reply)
        bench_die("redis: %s", c->errstr);
    if (reply->type == REDIS_REPLY_ERROR)
        bench_die("redis: %s", reply->str);
    return reply;
}

static void *conn_open(void)
{
    struct conn *conn = bench_alloc(sizeof(*conn));
    const char *url = getenv("HF_TEST_URL");
    redisReply *reply;

    if (!url || !strrchr(url, ':'))
        bench_die("no HF_TEST_URL");
    conn->c = redisConnect("127.0.0.1", atoi(strrchr(url, ':') + 1));
    if (!conn->c || conn->c->err)
        bench_die("cannot connect");
    reply = checked(conn->c,
                    redisCommand(conn->c, "SCRIPT LOAD %s", release_script));
    snprintf(conn->digest, sizeof(conn->digest), "%s", reply->str);
    freeReplyObject(reply);
    return conn;
}

static void conn_close(void *arg)
{
    struct conn *conn = arg;

    redisFree(conn->c);
    free(conn);
}

static void take(void *arg, const char *key)
{
    struct conn *conn = arg;
    redisReply *reply = checked(
        conn->c, redisCommand(conn->c, "SET %s token NX PX 30000", key));

    if (reply->type == REDIS_REPLY_NIL)
        bench_die("%s is not free", key);
    freeReplyObject(reply);
}

static void give(void *arg, const char *key)
{
    struct conn *conn = arg;

    freeReplyObject(
        checked(conn->c, redisCommand(conn->c, "EVALSHA %s 1 %s token",
                                      conn->digest, key)));
}

static void await(void *arg, const char *key)
{
    struct conn *conn = arg;

    freeReplyObject(
        checked(conn->c, redisCommand(conn->c, "BLPOP list:%s 0", key)));
}

static void pass(void *arg, const char *key)
{
    struct conn *conn = arg;

    freeReplyObject(
        checked(conn->c, redisCommand(conn->c, "RPUSH list:%s t", key)));
}

static void read_replies(redisContext *c, int n)
{
    void *reply;

    while (n-- > 0) {
        if (redisGetReply(c, &reply) != REDIS_OK)
            bench_die("redis: %s", c->errstr);
        freeReplyObject(reply);
    }
}

static long piped(int threads, int64_t until)
{
    static struct conn *conn;
    long sum = 0;
    int i;

    if (!conn)
        conn = conn_open();
    while (bench_now() < until) {
        for (i = 0; i < threads; i++)
            redisAppendCommand(conn->c, "SET piped%d token NX PX 30000", i);
        read_replies(conn->c, threads);
        for (i = 0; i < threads; i++)
            redisAppendCommand(conn->c, "EVALSHA %s 1 piped%d token",
                               conn->digest, i);
        read_replies(conn->c, threads);
        sum += threads;
    }
    return sum;
}

static void read_same_replies(redisContext *c, int n)
{
    void *reply;

    while (n-- > 0) {
        if (redisGetReply(c, &reply) != REDIS_OK)
            bench_die("redis: %s", c->errstr);
        replay_check(reply);
        freeReplyObject(reply);
    }
}

static long piped_same(int threads, int64_t until)
{
    static struct conn *conn;
    char key[32];
    long sum = 0;
    int phase, i, n;

    if (!conn) {
        conn = conn_open();
        replay_learn(conn->c, getenv("HF_TEST_URL"));
    }
    while (bench_now() < until) {
        for (phase = 0; phase < 2; phase++) {
            for (i = n = 0; i < threads; i++) {
                snprintf(key, sizeof(key), "same%d", i);
                n += replay_append(conn->c, phase, key);
            }
            read_same_replies(conn->c, n);
        }
        sum += threads;
    }
    return sum;
}

int main(int argc, char **argv)
{
    struct cand_kind kind = {
        .name = "redis",
        .open = conn_open,
        .close = conn_close,
        .take = take,
        .give = give,
        .found = pass,
        .await = await,
        .pass = pass,
    };

    if (argc > 1 && !strcmp(argv[1], "piped"))
        kind.many = piped;
    if (argc > 1 && !strcmp(argv[1], "same"))
        kind.many = piped_same;
    return cand_main(&kind);
}
