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
 * Where the client counts what it sends (hf_stats()), the requests of one turn
 * follow: they do not depend on how busy the machine is.
 *
 * What the service lacks is left out.  On ZooKeeper Curator and kazoo are asked
 * the same in turns with us, if bench/peers/install has been run: their readers
 * of one key, and their semaphores (sharing_peer.h).
 */
#include "bench.h"
#include "holdfast.h"
#include "sharing_peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define READERS    64
#define CONTENDERS 8
#define PERMITS    4
#define KEYS       8
#define ROUND_MS   400
#define PEERS_MAX  2

static const char *url;
static hf_client *clients[CONTENDERS];
static struct sharing_peer peers[PEERS_MAX];
static size_t npeers;

struct contenders {
    int threads;
    bool own_client; /* else all use the first */
    bool own_key;
    struct hf_lock_opts opts;
    atomic_bool go, stop;
    atomic_long turns;
    atomic_int next;
    double sent, served; /* requests, and turns, in all rounds */
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

/* What all clients have sent until now. */
static double requests(void)
{
    struct hf_stats stats = HF_STATS_INIT;
    struct hf_error err;
    double sum = 0;

    for (int i = 0; i < CONTENDERS; i++) {
        must(hf_stats(clients[i], &stats, &err), &err);
        sum += (double)stats.requests;
    }
    return sum;
}

static void tell_requests(const struct bench_case *c)
{
    const struct contenders *all = c->arg;
    char name[64];

    snprintf(name, sizeof(name), "%s, requests a turn", c->name);
    if (all->sent > 0)
        bench_value(name, all->sent / all->served, "", NULL);
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
    all->sent -= requests();
    begin = bench_now();
    atomic_store(&all->go, true);
    usleep(ROUND_MS * 1000);
    atomic_store(&all->stop, true);
    for (int i = 0; i < all->threads; i++)
        pthread_join(threads[i], NULL);
    all->sent += requests();
    all->served += (double)atomic_load(&all->turns);
    return (double)atomic_load(&all->turns) * 1e9 /
           (double)(bench_now() - begin);
}

/* What a peer is asked instead of us. */
struct peer_question {
    struct sharing_peer *peer;
    char text[64];
};

static double peer_round(struct bench_case *c)
{
    struct peer_question *question = c->arg;

    return sharing_peer_ask(question->peer, question->text);
}

/* Ours with and without sharing, and what the peers do with it. */
static void compare_contenders(const char *question, const char *heading,
                               struct contenders *plain,
                               struct contenders *other, const char *names[2],
                               const char *ask)
{
    const struct bench_goal goal = {BENCH_AT_LEAST, 0.8};
    struct bench_case cases[2 + PEERS_MAX] = {
        {.name = names[0], .run = contend_round, .arg = plain, .ops = 1},
        {.name = names[1], .run = contend_round, .arg = other, .ops = 1}};
    struct peer_question asks[PEERS_MAX];
    size_t n = 2;

    for (size_t i = 0; i < npeers; i++) {
        asks[i].peer = &peers[i];
        snprintf(asks[i].text, sizeof(asks[i].text), "%s", ask);
        cases[n++] = (struct bench_case){
            .name = peers[i].name, .run = peer_round, .arg = &asks[i]};
    }
    bench_begin(question, heading);
    bench_run(cases, n, bench_rounds(20), "1/s");
    bench_judge(&cases[0], "1/s", NULL);
    bench_judge(&cases[1], "1/s", NULL);
    bench_ratio(&cases[1], &cases[0], &goal);
    tell_requests(&cases[0]);
    tell_requests(&cases[1]);
    for (size_t i = 2; i < n; i++)
        bench_ratio(&cases[1], &cases[i], NULL);
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
        begin -= bench_now(); /* The release does not count. */
        for (size_t i = 0; i < n; i++)
            must(hf_release(locks[i], &err), &err);
        begin += bench_now();
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
    permits.permits = PERMITS;
    npeers = sharing_peers_start(url, peers, PEERS_MAX);
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
                           (const char *[]){"64 keys", "64 readers"},
                           "readers 64 400");
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
                           (const char *[]){"plain lock", "4 permits"},
                           "among 8 400 4");
    compare_several();
    for (int i = 0; i < CONTENDERS; i++)
        hf_close(clients[i]);
    sharing_peers_end(peers, npeers);
    return 0;
}
