/* SPDX-License-Identifier: MIT
 *
 * redis.c - what holdfast adds to the round trips to a Redis server.
 *
 * QUESTION  Acquire and release by one thread: at most 1.15 times two bare
 *   round trips of hiredis.  64 threads on 64 keys: at least 0.8 times as many
 *   as one thread that sends 64 commands at once by hand and then reads 64
 *   replies.
 *
 * The bare way is SET NX PX with a fixed token, and the release script that the
 * other libraries use: no fence, no queue, no renewal, no random token.  How
 * long the server itself takes for each is told beside it, since a script that
 * does more takes it longer, whoever sends it.
 */
#include "redis.h"
#include "peer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 64
#define ROUNDS  41

struct bare {
    redisContext *c;
    char digest[41];
};

/* ---- one thread -------------------------------------------------------- */

static double bare_run(struct bench_case *one)
{
    struct bare *bare = one->arg;
    int64_t begin = bench_now();
    long i;

    for (i = 0; i < one->ops; i++) {
        redis_do(bare->c, "SET bare token NX PX 30000");
        redis_do(bare->c, "EVALSHA %s 1 bare token", bare->digest);
    }
    return (double)(bench_now() - begin) / (double)one->ops;
}

/* How long the server took for each call of a command, in microseconds. */
static void tell_server(struct bare *bare, const char *command,
                        const char *what)
{
    char name[64];
    double calls, usec;

    snprintf(name, sizeof(name), "cmdstat_%s:calls=", command);
    calls = redis_info(bare->c, "commandstats", name);
    snprintf(name, sizeof(name), "cmdstat_%s:calls=%.0f,usec=", command, calls);
    usec = redis_info(bare->c, "commandstats", name);
    bench_value(what, calls ? usec / calls : 0, "us", NULL);
}

static void one_thread(struct bare *bare)
{
    static const struct bench_goal goal = {BENCH_AT_MOST, 1.15};
    struct peer *full = peer_new(redis_url(), "full");
    char url[256];
    struct peer *set;
    struct bench_case cases[] = {
        {.name = "two bare round trips", .run = bare_run, .arg = bare},
        {.name = "holdfast", .run = peer_run},
        {.name = "holdfast acquire=set", .run = peer_run},
    };
    size_t i;

    snprintf(url, sizeof(url), "%s?acquire=set", redis_url());
    set = peer_new(url, "set");
    peer_open(full);
    peer_open(set);
    cases[1].arg = full;
    cases[2].arg = set;
    for (i = 0; i < 3; i++)
        cases[i].ops = 200;
    bench_run(cases, 3, bench_rounds(ROUNDS), "ns");
    bench_ratio(&cases[1], &cases[0], &goal);
    bench_ratio(&cases[2], &cases[0], &goal);
    redis_do(bare->c, "CONFIG RESETSTAT");
    bare_run(&cases[0]);
    tell_server(bare, "set", "server, SET");
    tell_server(bare, "evalsha", "server, bare release");
    redis_do(bare->c, "CONFIG RESETSTAT");
    peer_run(&cases[1]);
    tell_server(bare, "evalsha", "server, holdfast, mean of both");
    peer_close(full);
    peer_close(set);
}

/* ---- many threads ------------------------------------------------------ */

static void gather(redisContext *c)
{
    void *reply;
    int i;

    for (i = 0; i < THREADS; i++) {
        if (redisGetReply(c, &reply) != REDIS_OK)
            bench_die("redis: %s", c->errstr);
        freeReplyObject(reply);
    }
}

static double piped_run(struct bench_case *one)
{
    struct bare *bare = one->arg;
    int64_t begin = bench_now();
    long round;
    int i;

    for (round = 0; round < one->ops; round++) {
        for (i = 0; i < THREADS; i++)
            redisAppendCommand(bare->c, "SET bare%d token NX PX 30000", i);
        gather(bare->c);
        for (i = 0; i < THREADS; i++)
            redisAppendCommand(bare->c, "EVALSHA %s 1 bare%d token",
                               bare->digest, i);
        gather(bare->c);
    }
    return (double)one->ops * THREADS * 1e9 / (double)(bench_now() - begin);
}

struct thread {
    pthread_t id;
    struct peer peer;
    char key[16];
    long ops;
};

static void *thread_run(void *arg)
{
    struct thread *thread = arg;

    peer_cycle(&thread->peer, thread->ops);
    return NULL;
}

static double threads_run(struct bench_case *one)
{
    struct thread *threads = one->arg;
    int64_t begin = bench_now();
    int i;

    for (i = 0; i < THREADS; i++) {
        threads[i].ops = one->ops;
        if (pthread_create(&threads[i].id, NULL, thread_run, &threads[i]))
            bench_die("no thread");
    }
    for (i = 0; i < THREADS; i++)
        pthread_join(threads[i].id, NULL);
    return (double)one->ops * THREADS * 1e9 / (double)(bench_now() - begin);
}

/* One client, THREADS keys. */
static struct thread *threads_new(struct peer *shared)
{
    struct thread *threads = bench_alloc(THREADS * sizeof(*threads));
    int i;

    for (i = 0; i < THREADS; i++) {
        threads[i].peer = *shared;
        snprintf(threads[i].key, sizeof(threads[i].key), "full%d", i);
        threads[i].peer.key = threads[i].key;
    }
    return threads;
}

static void many_threads(struct bare *bare)
{
    static const struct bench_goal goal = {BENCH_AT_LEAST, 0.8};
    struct peer *shared = peer_new(redis_url(), "full");
    struct thread *threads;
    struct bench_case cases[] = {
        {.name = "piped by hand, one thread", .run = piped_run, .arg = bare},
        {.name = "holdfast, 64 threads", .run = threads_run},
    };

    peer_open(shared);
    threads = threads_new(shared);
    cases[0].ops = cases[1].ops = 40;
    cases[1].arg = threads;
    bench_run(cases, 2, bench_rounds(ROUNDS), "a second");
    bench_ratio(&cases[1], &cases[0], &goal);
    free(threads);
    peer_close(shared);
}

int main(void)
{
    struct bare bare = {.c = redis_connect()};

    redis_load_release(bare.c, bare.digest);
    bench_begin("redis", "Acquire and release on Redis, loopback, one thread");
    one_thread(&bare);
    bench_begin("redis-threads", "64 threads on 64 keys of Redis");
    many_threads(&bare);
    redisFree(bare.c);
    return 0;
}
