/* SPDX-License-Identifier: MIT
 *
 * sharing.c - what readers, permits and several keys cost beside plain locks.
 *
 *     test/servers/redis build/bench/bench-sharing
 *
 * QUESTIONS, on the service of $HF_TEST_URL (or the first argument):
 *   readers  64 threads that share one key take and release it as often as 64
 *            threads that have a key each, at least 0.8 times
 *   permits  8 clients pass 4 permits around as often as 8 clients pass a plain
 *            lock around, at least 0.8 times; HF_FAIR, so that each has a place
 *            of its own in the service's queue
 *   several  8 keys at once take at most 1.5 times as long as one key
 *
 * What the service lacks is left out.
 */
#include "bench.h"
#include "holdfast.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define READERS    64
#define CONTENDERS 8
#define KEYS       8
#define ROUND_MS   400

static const char *url;
static hf_client *clients[CONTENDERS];

struct contenders {
    int threads;
    bool own_client; /* else all use the first */
    bool own_key;
    struct hf_lock_opts opts;
    atomic_bool go, stop;
    atomic_long turns;
    atomic_int next;
};

static void must(hf_status st, const struct hf_error *err)
{
    if (st)
        bench_die("%s", err->text);
}

static void *contend(void *arg)
{
    struct contenders *all = arg;
    int me = atomic_fetch_add(&all->next, 1);
    hf_client *client = clients[all->own_client ? me % CONTENDERS : 0];
    struct hf_error err;
    hf_lock *lock;
    char key[64];
    long turns = 0;

    snprintf(key, sizeof(key), "sharing/%d/%d/%d", (int)getpid(),
             (int)all->opts.permits, all->own_key ? me : -1);
    while (!atomic_load(&all->go))
        usleep(100);
    while (!atomic_load(&all->stop)) {
        must(hf_acquire(client, key, -1, &all->opts, &lock, &err), &err);
        must(hf_release(lock, &err), &err);
        turns++;
    }
    atomic_fetch_add(&all->turns, turns);
    return NULL;
}

/* Turns a second of all threads together. */
static double contend_round(struct bench_case *c)
{
    struct contenders *all = c->arg;
    pthread_t threads[READERS];
    int64_t begin;

    atomic_store(&all->go, false);
    atomic_store(&all->stop, false);
    atomic_store(&all->turns, 0);
    atomic_store(&all->next, 0);
    for (int i = 0; i < all->threads; i++)
        if (pthread_create(&threads[i], NULL, contend, all))
            bench_die("no thread");
    begin = bench_now();
    atomic_store(&all->go, true);
    usleep(ROUND_MS * 1000);
    atomic_store(&all->stop, true);
    for (int i = 0; i < all->threads; i++)
        pthread_join(threads[i], NULL);
    return (double)atomic_load(&all->turns) * 1e9 /
           (double)(bench_now() - begin);
}

static void compare_contenders(const char *question, const char *heading,
                               struct contenders *plain,
                               struct contenders *other, const char *names[2])
{
    const struct bench_goal goal = {BENCH_AT_LEAST, 0.8};
    struct bench_case cases[2] = {
        {.name = names[0], .run = contend_round, .arg = plain, .ops = 1},
        {.name = names[1], .run = contend_round, .arg = other, .ops = 1}};

    bench_begin(question, heading);
    bench_run(cases, 2, bench_rounds(20), "1/s");
    bench_judge(&cases[0], "1/s", NULL);
    bench_judge(&cases[1], "1/s", NULL);
    bench_ratio(&cases[1], &cases[0], &goal);
}

static double several_round(struct bench_case *c)
{
    size_t n = *(size_t *)c->arg;
    char names[KEYS][64];
    const char *keys[KEYS];
    hf_lock *locks[KEYS];
    struct hf_error err;
    int64_t begin;

    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof(names[i]), "sharing/{%d}/%zu", (int)getpid(),
                 i);
        keys[i] = names[i];
    }
    begin = bench_now();
    for (long turn = 0; turn < c->ops; turn++) {
        must(hf_acquire_all(clients[0], keys, n, 0, NULL, locks, &err), &err);
        begin += bench_now();
        for (size_t i = 0; i < n; i++)
            must(hf_release(locks[i], &err), &err);
        begin -= bench_now();
    }
    return (double)(bench_now() - begin) / 1000 / (double)c->ops;
}

static void compare_several(void)
{
    const struct bench_goal goal = {BENCH_AT_MOST, 1.5};
    size_t one = 1, many = KEYS;
    struct bench_case cases[2] = {
        {.name = "one key", .run = several_round, .arg = &one, .ops = 50},
        {.name = "8 keys", .run = several_round, .arg = &many, .ops = 50}};

    bench_begin("several", "to take several keys at once, without the release");
    bench_run(cases, 2, bench_rounds(40), "us");
    bench_judge(&cases[0], "us", NULL);
    bench_judge(&cases[1], "us", NULL);
    bench_ratio(&cases[1], &cases[0], &goal);
}

int main(int argc, char **argv)
{
    struct hf_service service = {.size = sizeof(service)};
    struct hf_lock_opts plain = HF_LOCK_OPTS_INIT, shared = plain;
    struct hf_lock_opts fair = plain, permits = plain;
    struct hf_error err;

    url = argc > 1 ? argv[1] : getenv("HF_TEST_URL");
    if (!url)
        bench_die("name the service, or set $HF_TEST_URL");
    for (int i = 0; i < CONTENDERS; i++)
        must(hf_open(url, NULL, &clients[i], &err), &err);
    must(hf_describe(clients[0], &service, &err), &err);
    shared.flags = HF_SHARED;
    fair.flags = permits.flags = HF_FAIR;
    permits.permits = 4;
    if (service.traits & HF_TRAIT_SHARED)
        compare_contenders("readers", "64 readers of one key",
                           &(struct contenders){.threads = READERS,
                                                .own_client = false,
                                                .own_key = true,
                                                .opts = plain},
                           &(struct contenders){.threads = READERS,
                                                .own_client = false,
                                                .own_key = false,
                                                .opts = shared},
                           (const char *[]){"64 keys", "64 readers"});
    if (service.traits & HF_TRAIT_PERMITS)
        compare_contenders("permits", "4 permits among 8 clients",
                           &(struct contenders){.threads = CONTENDERS,
                                                .own_client = true,
                                                .own_key = false,
                                                .opts = fair},
                           &(struct contenders){.threads = CONTENDERS,
                                                .own_client = true,
                                                .own_key = false,
                                                .opts = permits},
                           (const char *[]){"plain lock", "4 permits"});
    compare_several();
    for (int i = 0; i < CONTENDERS; i++)
        hf_close(clients[i]);
    return 0;
}
