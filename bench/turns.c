/* SPDX-License-Identifier: MIT
 *
 * turns.c - how fast threads of one process hand a lock to each other.
 *
 * QUESTION  With local_turns unlimited, at least 100,000 hand-overs a second
 *   while the lease stands: for 2, 8 and 64 threads, on mem: and on file:.
 *
 * A grant counts only if the one before it went to another thread, and a holder
 * lets go only when somebody else asks: otherwise, on a processor that two
 * threads share, one would take and release it all by itself for as long as
 * its time slice lasts, and hand over nothing.
 *
 * Beside it stands what the same machine does for the bare job: a lock of a
 * mutex and one condition variable for each waiter, first come, first served,
 * which is the least that can pass a lock in order among threads that sleep.
 */
#include "peer.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ROUNDS   81
#define ROUND_US 25000
#define MANY     64

/* ---- the bare queue ---------------------------------------------------- */

struct queue_entry {
    struct queue_entry *next;
    pthread_cond_t cond;
    bool granted;
};

static struct {
    pthread_mutex_t mu;
    bool taken;
    struct queue_entry *first, **end;
} queue = {.mu = PTHREAD_MUTEX_INITIALIZER, .end = &queue.first};

static void queue_lock(struct queue_entry *mine)
{
    pthread_mutex_lock(&queue.mu);
    if (queue.taken) {
        mine->next = NULL;
        mine->granted = false;
        *queue.end = mine;
        queue.end = &mine->next;
        while (!mine->granted)
            pthread_cond_wait(&mine->cond, &queue.mu);
    }
    queue.taken = true;
    pthread_mutex_unlock(&queue.mu);
}

static void queue_unlock(void)
{
    struct queue_entry *next;

    pthread_mutex_lock(&queue.mu);
    next = queue.first;
    if (next) {
        queue.first = next->next;
        if (!queue.first)
            queue.end = &queue.first;
        next->granted = true;
    } else {
        queue.taken = false;
    }
    pthread_mutex_unlock(&queue.mu);
    if (next)
        pthread_cond_signal(&next->cond);
}

/* ---- a round ----------------------------------------------------------- */

/* `last` and `changes` are guarded by the lock that is measured. */
static struct {
    pthread_barrier_t start;
    atomic_bool stop;
    atomic_int asking; /* threads that are on their way to it */
    struct peer *peer; /* NULL: the bare queue */
    pthread_t last;
    long changes;
} race;

static void race_hold(void)
{
    atomic_fetch_sub(&race.asking, 1);
    if (!pthread_equal(race.last, pthread_self()) &&
        !atomic_load_explicit(&race.stop, memory_order_relaxed))
        race.changes++;
    race.last = pthread_self();
    while (!atomic_load(&race.asking) && !atomic_load(&race.stop))
        sched_yield();
}

static void *race_thread(void *arg)
{
    struct queue_entry mine = {.cond = PTHREAD_COND_INITIALIZER};

    (void)arg;
    pthread_barrier_wait(&race.start);
    while (!atomic_load_explicit(&race.stop, memory_order_relaxed)) {
        atomic_fetch_add(&race.asking, 1);
        if (race.peer) {
            hf_lock *lock = peer_acquire(race.peer);

            race_hold();
            peer_release(lock);
        } else {
            queue_lock(&mine);
            race_hold();
            queue_unlock();
        }
    }
    return NULL;
}

static double race_run(struct bench_case *one)
{
    unsigned i, n = (unsigned)one->ops;
    pthread_t threads[MANY];
    int64_t begin, end;

    atomic_store(&race.stop, false);
    atomic_store(&race.asking, 0);
    race.peer = one->arg;
    race.last = pthread_self();
    race.changes = 0;
    pthread_barrier_init(&race.start, NULL, n + 1);
    for (i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, race_thread, NULL))
            bench_die("no thread could be started");
    pthread_barrier_wait(&race.start);
    begin = bench_now();
    usleep(ROUND_US);
    atomic_store(&race.stop, true);
    end = bench_now();
    for (i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&race.start);
    return (double)race.changes * 1e9 / (double)(end - begin);
}

static void ask(long threads, const char *url)
{
    static const struct bench_goal goal = {BENCH_AT_LEAST, 100000};
    char names[3][64], heading[80];
    struct bench_case cases[3] = {
        {.name = names[0], .run = race_run, .ops = threads},
        {.name = names[1], .run = race_run, .ops = threads},
        {.name = names[2], .run = race_run, .ops = threads},
    };
    struct peer *peers[2] = {peer_new("mem:", "turns"), peer_new(url, "turns")};
    int i;

    snprintf(heading, sizeof(heading),
             "Hand-overs a second between %ld threads of one process", threads);
    snprintf(names[0], sizeof(names[0]), "mutex and condvars, %ld threads",
             threads);
    snprintf(names[1], sizeof(names[1]), "mem:, %ld threads", threads);
    snprintf(names[2], sizeof(names[2]), "file:, %ld threads", threads);
    for (i = 0; i < 2; i++) {
        peers[i]->opts.local_turns = -1;
        peer_open(peers[i]);
        cases[i + 1].arg = peers[i];
    }
    bench_begin("turns", heading);
    bench_run(cases, 3, bench_rounds(ROUNDS), "a second");
    for (i = 1; i < 3; i++) {
        bench_judge(&cases[i], "a second", &goal);
        bench_ratio(&cases[i], &cases[0], NULL);
        peer_close(cases[i].arg);
    }
}

int main(void)
{
    char url[300];

    snprintf(url, sizeof(url), "file:%s", bench_scratch(NULL));
    ask(2, url);
    ask(8, url);
    ask(MANY, url);
    return 0;
}
