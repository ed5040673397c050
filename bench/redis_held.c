/* SPDX-License-Identifier: MIT
 *
 * redis_held.c - what it costs Redis and this process to hold 100,000 locks,
 * and to wait for one.
 *
 * QUESTION  One client holds 100,000 locks with a ttl of 30 s on a real server:
 *   all are renewed in time; how much of one core do this process and the
 *   server take, and how many bytes does a lock cost in each?  Somebody who
 *   waits for a lock sends at most two commands in a lease.
 */
#include "peer.h"
#include "redis.h"

#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOCKS   100000
#define THREADS 32

static double cpu_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static double server_cpu(redisContext *c)
{
    return redis_info(c, "cpu", "used_cpu_user:") +
           redis_info(c, "cpu", "used_cpu_sys:");
}

static double allocated(void)
{
    struct mallinfo2 info = mallinfo2();

    return (double)info.uordblks + (double)info.hblkhd;
}

/* ---- holding ----------------------------------------------------------- */

struct taker {
    pthread_t id;
    hf_client *client;
    hf_lock **locks;
    int64_t ttl_ms;
    int first, last;
};

static void *taker_run(void *arg)
{
    struct taker *taker = arg;
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_error err;
    char key[64];
    int i;

    opts.ttl_ms = taker->ttl_ms;
    for (i = taker->first; i < taker->last; i++) {
        snprintf(key, sizeof(key), "tenant-4711/order/%06d", i);
        if (hf_acquire(taker->client, key, 0, &opts, &taker->locks[i], &err))
            bench_die("%s", err.text);
    }
    return NULL;
}

static void take_all(hf_client *client, hf_lock **locks, int64_t ttl_ms)
{
    struct taker takers[THREADS];
    int i;

    for (i = 0; i < THREADS; i++) {
        takers[i] = (struct taker){.client = client,
                                   .locks = locks,
                                   .ttl_ms = ttl_ms,
                                   .first = LOCKS / THREADS * i,
                                   .last = LOCKS / THREADS * (i + 1)};
        if (pthread_create(&takers[i].id, NULL, taker_run, &takers[i]))
            bench_die("no thread");
    }
    for (i = 0; i < THREADS; i++)
        pthread_join(takers[i].id, NULL);
}

/* Let the keeper work for two and a half renewals of each lock. */
static void watch_keeper(redisContext *c, int64_t ttl_ms)
{
    static const struct bench_goal goal = {BENCH_AT_MOST, 10};
    double server = server_cpu(c), cpu = cpu_now(), calls;
    int64_t wall = bench_now();
    double seconds;

    calls = redis_info(c, "commandstats", "cmdstat_evalsha:calls=");
    usleep((useconds_t)(ttl_ms * 1000 / 6 * 5));
    cpu = cpu_now() - cpu;
    server = server_cpu(c) - server;
    seconds = (double)(bench_now() - wall) / 1e9;
    calls = redis_info(c, "commandstats", "cmdstat_evalsha:calls=") - calls;
    bench_value("renewals of each lock", calls / LOCKS, "times", NULL);
    bench_value("this process, each renewal", cpu * 1e9 / calls, "ns", NULL);
    bench_value("the server, each renewal", server * 1e9 / calls, "ns", NULL);
    bench_value("the server", server * 100 / seconds, "% of one core", NULL);
    bench_value("this process", cpu * 100 / seconds, "% of one core", &goal);
}

static void hold_many(redisContext *c, int64_t ttl_ms)
{
    static const struct bench_goal none = {BENCH_AT_MOST, 0};
    static const struct bench_goal small = {BENCH_AT_MOST, 512};
    hf_lock **locks = bench_alloc(LOCKS * sizeof(*locks));
    double bytes, there;
    hf_client *client;
    struct hf_error err;
    int i, lost = 0;

    if (hf_open(redis_url(), NULL, &client, &err))
        bench_die("%s", err.text);
    bytes = allocated();
    there = redis_info(c, "memory", "used_memory:");
    take_all(client, locks, ttl_ms);
    bytes = (allocated() - bytes) / LOCKS;
    there = (redis_info(c, "memory", "used_memory:") - there) / LOCKS;
    bench_value("memory here", bytes, "bytes a lock", &small);
    bench_value("memory of the server", there, "bytes a lock", NULL);
    watch_keeper(c, ttl_ms);
    for (i = 0; i < LOCKS; i++)
        lost += !hf_held(locks[i]);
    bench_value("locks lost", lost, "of 100000", &none);
    hf_close(client);
    for (i = 0; i < LOCKS; i++)
        hf_release(locks[i], NULL);
    free(locks);
}

/* ---- waiting ----------------------------------------------------------- */

static void *waiter_run(void *arg)
{
    struct peer *peer = arg;

    peer_release(peer_acquire(peer));
    return NULL;
}

static void wait_idly(redisContext *c, int64_t ttl_ms)
{
    static const struct bench_goal goal = {BENCH_AT_MOST, 2};
    struct peer *holder = peer_new(redis_url(), "idle");
    struct peer *waiter = peer_new(redis_url(), "idle");
    double calls, cpu;
    int leases = 5;
    pthread_t id;
    hf_lock *lock;

    holder->opts.ttl_ms = 600000; /* it renews nothing meanwhile */
    waiter->opts.ttl_ms = ttl_ms;
    peer_open(holder);
    peer_open(waiter);
    lock = peer_acquire(holder);
    if (pthread_create(&id, NULL, waiter_run, waiter))
        bench_die("no thread");
    usleep(300000);
    calls = redis_info(c, "commandstats", "cmdstat_evalsha:calls=");
    cpu = cpu_now();
    usleep((useconds_t)(ttl_ms * 1000 * leases));
    cpu = cpu_now() - cpu;
    calls = redis_info(c, "commandstats", "cmdstat_evalsha:calls=") - calls;
    bench_value("commands of an idle waiter", calls / leases, "in a lease",
                &goal);
    bench_value("an idle waiter", cpu * 1e5 / ((double)ttl_ms * leases),
                "% of one core", NULL);
    peer_release(lock);
    pthread_join(id, NULL);
    peer_close(holder);
    peer_close(waiter);
}

int main(void)
{
    redisContext *c = redis_connect();

    bench_begin("redis-held", "100,000 held locks on Redis");
    hold_many(c, bench_quick() ? 9000 : 30000);
    bench_begin("redis-idle", "Waiting for a lock on Redis");
    wait_idly(c, bench_quick() ? 1000 : 4000);
    redisFree(c);
    return 0;
}
