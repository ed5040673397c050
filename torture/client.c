/* SPDX-License-Identifier: MIT
 *
 * client.c - a process of clients: acquire, work on the register, release.
 *
 * A line is written before a call begins and after it has ended, so what really
 * happened lies between the two; a belief is noted never longer than it was.
 * The process has one client of the library, which its threads share: so local
 * queues and hand-overs are part of the game.
 */
#include "client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

/* After the faults. */
#define LAST_TURNS 4

uint64_t worker_chance(struct worker *w, uint64_t below)
{
    w->chance ^= w->chance << 13;
    w->chance ^= w->chance >> 7;
    w->chance ^= w->chance << 17;
    return below ? w->chance % below : 0;
}

void worker_log(struct worker *w, enum what what, int key, uint64_t fence,
                int64_t number, const char *text)
{
    history_log(w->log, w->who, what, key, fence, number, text);
}

void client_key(const struct plan *plan, int key, char *ret, size_t size)
{
    snprintf(ret, size, "%s%d", plan->prefix, key);
}

/* When the faults are over, everybody takes a few turns and then makes room:
 * a service without a queue promises nobody to be before all the others. */
static void *worker_run(void *arg)
{
    struct worker *w = arg;
    _Atomic int64_t *grants = &w->shared->grants[w->who.process][w->who.thread];
    int64_t before = -1;

    while (!atomic_load(&w->shared->stop)) {
        if (before < 0 && atomic_load(&w->shared->calm))
            before = atomic_load(grants);
        if (before >= 0 && atomic_load(grants) >= before + LAST_TURNS)
            usleep(5000);
        else
            workload_turn(w);
    }
    hf_close(w->own);
    return NULL;
}

/* The service may be down when we are started. */
hf_client *client_open(struct shared *shared, const char *url)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client;

    /* Short, so that answers come too late at times. */
    opts.timeout_ms = shared->plan.ttl_ms / 4;
    while (hf_open(url, &opts, &client, NULL)) {
        if (atomic_load(&shared->stop))
            return NULL;
        usleep(50000);
    }
    return client;
}

int client_main(const char *dir, const char *name, const char *url)
{
    struct shared *shared = shared_open(dir);
    static struct worker workers[MAX_THREADS];
    struct who who = {0, 0, 0};
    hf_client *client;
    int log, i, n;

    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left of a run */
    if (!shared || sscanf(name, "%d.%d", &who.process, &who.life) != 2)
        return 64;
    log = history_open(dir, who.process, who.life);
    client = log < 0 ? NULL : client_open(shared, url);
    if (!client)
        return 69;
    n = shared->plan.threads;
    for (i = 0; i < n; i++) {
        workers[i] = (struct worker){.shared = shared,
                                     .dir = dir,
                                     .url = url,
                                     .client = client,
                                     .log = log,
                                     .who = who};
        workers[i].who.thread = i;
        workers[i].chance = shared->plan.seed * 2654435761u +
                            (uint64_t)(who.process * 1000 + who.life) * 977 +
                            (uint64_t)i + 1;
        if (pthread_create(&workers[i].thread, NULL, worker_run, &workers[i]))
            abort();
    }
    /* Whoever waits for a lock when it is over need not get it any more. */
    while (!atomic_load(&shared->stop))
        usleep(5000);
    hf_cancel(client);
    for (i = 0; i < n; i++)
        pthread_join(workers[i].thread, NULL);
    hf_close(client);
    return 0;
}
