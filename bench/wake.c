/* SPDX-License-Identifier: MIT
 *
 * wake.c - how soon a process that waits has the lock that another lets go.
 *
 * QUESTION  On file:, a hand-over to a blocked process has a median under 1 ms.
 *   Blocking flock(2), which is what flock(1) does, stands beside it.
 *
 * Two processes pass one lock to and fro.  The clock starts before the call
 * that releases and stops when the call that acquires has returned in the
 * other process; CLOCK_MONOTONIC is the same for both.  The holder lets go only
 * some milliseconds after the other has said that it is about to ask, so the
 * other sleeps by then; and it asks again only after it was told that the other
 * has the lock, so that it never overtakes.
 */
#include "peer.h"

#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS   25
#define OPS      60 /* hand-overs in a round; even, so that it ends as begun */
#define PAUSE_US 3000

/* One way to lock between processes, opened in each of them. */
struct way {
    double *all; /* every hand-over of every round, for the slow ones */
    size_t len, room;
    void *(*open)(const char *dir);
    void (*lock)(void *);
    void (*unlock)(void *);
};

struct shared {
    sem_t begun, asking, granted;
    int64_t released_at;
    double us[OPS];
};

static struct shared *shared;
static const char *dir;

/* ---- ways -------------------------------------------------------------- */

static void *flock_open(const char *where)
{
    char path[300];
    int *fd = bench_alloc(sizeof(*fd));

    snprintf(path, sizeof(path), "%s/bare.lock", where);
    *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*fd < 0)
        bench_die_errno(path);
    return fd;
}

static void flock_lock(void *fd)
{
    if (flock(*(int *)fd, LOCK_EX))
        bench_die_errno("flock");
}

static void flock_unlock(void *fd)
{
    if (flock(*(int *)fd, LOCK_UN))
        bench_die_errno("flock");
}

struct held_peer {
    struct peer *peer;
    hf_lock *lock;
};

static void *file_open(const char *where)
{
    struct held_peer *held = bench_alloc(sizeof(*held));
    char url[300];

    snprintf(url, sizeof(url), "file:%s", where);
    held->peer = peer_new(url, "nightly-backup");
    peer_open(held->peer);
    return held;
}

static void file_lock(void *arg)
{
    struct held_peer *held = arg;

    held->lock = peer_acquire(held->peer);
}

static void file_unlock(void *arg)
{
    struct held_peer *held = arg;

    peer_release(held->lock);
}

/* ---- passing it to and fro --------------------------------------------- */

static void wait_for(sem_t *sem)
{
    while (sem_wait(sem))
        ;
}

static void give(const struct way *way, void *conn)
{
    wait_for(&shared->asking);
    usleep(PAUSE_US + bench_random() % 1000);
    shared->released_at = bench_now();
    way->unlock(conn);
    wait_for(&shared->granted);
}

static void take(const struct way *way, void *conn, int i)
{
    int64_t now;

    sem_post(&shared->asking);
    way->lock(conn);
    now = bench_now();
    shared->us[i] = (double)(now - shared->released_at) / 1e3;
    sem_post(&shared->granted);
}

/* Number 0 begins as the holder, and so it ends. */
static void pass(const struct way *way, void *conn, int me)
{
    int i;

    for (i = 0; i < OPS; i++) {
        if (i % 2 == me)
            give(way, conn);
        else
            take(way, conn, i);
    }
}

static void be(const struct way *way, int me)
{
    void *conn = way->open(dir);

    if (me == 0) {
        way->lock(conn);
        sem_post(&shared->begun);
    } else {
        wait_for(&shared->begun);
    }
    pass(way, conn, me);
    if (me == 0)
        way->unlock(conn);
    _exit(0);
}

/* One round, in two processes of its own. */
static double pass_run(struct bench_case *one)
{
    struct way *way = one->arg;
    pid_t children[2];
    double us[OPS];
    int i, status;

    sem_init(&shared->begun, 1, 0);
    sem_init(&shared->asking, 1, 0);
    sem_init(&shared->granted, 1, 0);
    for (i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] < 0)
            bench_die_errno("fork");
        if (children[i] == 0)
            be(way, i);
    }
    for (i = 0; i < 2; i++)
        if (waitpid(children[i], &status, 0) < 0 || status)
            bench_die("%s: a process failed", one->name);
    memcpy(us, shared->us, sizeof(us));
    if (way->len + OPS > way->room)
        bench_die("more rounds than there is room for");
    memcpy(way->all + way->len, us, sizeof(us));
    way->len += OPS;
    return bench_quantile(us, OPS, 0.5);
}

/* The median says nothing of the few that wait long. */
static void tell_slow(const struct bench_case *one)
{
    struct way *way = one->arg;
    char name[80];

    snprintf(name, sizeof(name), "%s, 99 of 100 within", one->name);
    bench_value(name, bench_quantile(way->all, way->len, 0.99), "us", NULL);
    snprintf(name, sizeof(name), "%s, slowest of %zu", one->name, way->len);
    bench_value(name, bench_quantile(way->all, way->len, 1), "us", NULL);
}

int main(void)
{
    static const struct bench_goal ms = {BENCH_AT_MOST, 1000};
    struct bench_case cases[2] = {
        {.name = "flock(2), blocking", .run = pass_run},
        {.name = "file:", .run = pass_run},
    };
    struct way ways[2] = {
        {.open = flock_open, .lock = flock_lock, .unlock = flock_unlock},
        {.open = file_open, .lock = file_lock, .unlock = file_unlock},
    };
    int i, rounds = bench_rounds(ROUNDS);

    for (i = 0; i < 2; i++) {
        ways[i].room = (size_t)(rounds + 1) * OPS; /* and the warm-up */
        ways[i].all = bench_alloc(ways[i].room * sizeof(double));
        cases[i].arg = &ways[i];
    }
    dir = bench_scratch(NULL);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        bench_die_errno("mmap");
    bench_begin("wake", "Hand-over to a process that is blocked");
    bench_run(cases, 2, rounds, "us");
    tell_slow(&cases[0]);
    tell_slow(&cases[1]);
    bench_judge(&cases[1], "us", &ms);
    bench_ratio(&cases[1], &cases[0], NULL);
    return 0;
}
