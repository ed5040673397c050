/* SPDX-License-Identifier: MIT
 *
 * holdfast.c - holdfast as a candidate: `cand-holdfast [URL]`, or $HF_TEST_URL.
 *
 * All threads share one client, as a program would.  What only a library with a
 * keeper can be asked is here, too: to hold many locks, to know when one is
 * lost, and to carry many that wait (`queue N`: N requests for one key, which
 * another client of this process has).
 */
#include "holdfast.h"
#include "cand.h"

#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define TAKERS 32

static const char *url;
static hf_client *client, *second;

struct conn {
    struct hf_lock_opts opts;
    hf_lock *lock;
};

static void must(hf_status st, const struct hf_error *err)
{
    if (st)
        bench_die("%s", err->text);
}

static const char *version(void)
{
    return hf_version();
}

static void *conn_open(void)
{
    struct conn *conn = bench_alloc(sizeof(*conn));
    struct hf_error err;

    if (!client)
        must(hf_open(url, NULL, &client, &err), &err);
    conn->opts = (struct hf_lock_opts)HF_LOCK_OPTS_INIT;
    return conn;
}

static void conn_close(void *conn)
{
    free(conn);
}

static void take(void *arg, const char *key)
{
    struct conn *conn = arg;
    struct hf_error err;

    must(hf_acquire(client, key, -1, &conn->opts, &conn->lock, &err), &err);
}

static void give(void *arg, const char *key)
{
    struct conn *conn = arg;
    struct hf_error err;

    (void)key;
    must(hf_release(conn->lock, &err), &err);
}

/* ---- many held --------------------------------------------------------- */

static struct {
    hf_lock **locks;
    long wanted, got;
    int64_t ttl_ms, end;
    atomic_long next, failed;
    struct hf_error err; /* of the last that failed */
} held;

static double allocated(void)
{
    struct mallinfo2 info = mallinfo2();

    return (double)info.uordblks + (double)info.hblkhd;
}

static void *taker_run(void *arg)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_error err;
    hf_status st;
    char key[64];
    long i;

    (void)arg;
    opts.ttl_ms = held.ttl_ms;
    while (bench_now() < held.end && !atomic_load(&held.failed) &&
           (i = atomic_fetch_add(&held.next, 1)) < held.wanted) {
        snprintf(key, sizeof(key), "p%07d/order/%08ld", (int)getpid(), i);
        do /* a busy server may be late with an answer; that is no end */
            st = hf_acquire(client, key, 0, &opts, &held.locks[i], &err);
        while ((st == HF_UNAVAILABLE || st == HF_UNCERTAIN || st == HF_BUSY) &&
               bench_now() < held.end);
        if (st && !atomic_fetch_add(&held.failed, 1))
            held.err = err;
    }
    return NULL;
}

/* file: keeps a descriptor for each.  Only root may raise the hard limit; who
 * may not is told by the lock that fails. */
static void allow_files(long n)
{
    struct rlimit limit;
    rlim_t want = (rlim_t)n + 1000;

    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= want)
        return;
    limit.rlim_cur = want;
    if (limit.rlim_max < want)
        limit.rlim_max = want;
    if (setrlimit(RLIMIT_NOFILE, &limit) && !getrlimit(RLIMIT_NOFILE, &limit)) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void hold(long n, int64_t ttl_ms, int64_t ms)
{
    pthread_t takers[TAKERS];
    int64_t begin = bench_now();
    double bytes;
    long k;
    int i;

    allow_files(n);
    held.locks = bench_alloc((size_t)n * sizeof(*held.locks));
    bytes = allocated();
    held.wanted = n;
    held.ttl_ms = ttl_ms;
    held.end = begin + ms * 1000000;
    held.got = 0;
    atomic_store(&held.next, 0);
    atomic_store(&held.failed, 0);
    for (i = 0; i < TAKERS; i++)
        if (pthread_create(&takers[i], NULL, taker_run, NULL))
            bench_die("no thread");
    for (i = 0; i < TAKERS; i++)
        pthread_join(takers[i], NULL);
    for (k = 0; k < n; k++)
        held.got += held.locks[k] != NULL;
    if (atomic_load(&held.failed))
        fprintf(stderr, "hold: %s\n", held.err.text);
    cand_answer("ok %ld %lld %.0f", held.got, (long long)(bench_now() - begin),
                held.got ? (allocated() - bytes) / (double)held.got : 0);
}

/* How many were lost, and how many were given back, by several threads. */
struct dropped {
    atomic_long lost, given;
};

static void *dropper_run(void *arg)
{
    struct dropped *sum = arg;
    long i;

    while (bench_now() < held.end &&
           (i = atomic_fetch_add(&held.next, 1)) < held.wanted) {
        if (!held.locks[i])
            continue;
        if (hf_release(held.locks[i], NULL))
            atomic_fetch_add(&sum->lost, 1);
        atomic_fetch_add(&sum->given, 1);
        held.locks[i] = NULL;
    }
    return NULL;
}

/* Those for which there is no time end with this process; whether they are
 * lost is asked all the same. */
static void drop(int64_t ms)
{
    pthread_t droppers[TAKERS];
    struct dropped sum = {0, 0};
    long k;
    int i;

    held.end = bench_now() + ms * 1000000;
    atomic_store(&held.next, 0);
    for (i = 0; i < TAKERS; i++)
        if (pthread_create(&droppers[i], NULL, dropper_run, &sum))
            bench_die("no thread");
    for (i = 0; i < TAKERS; i++)
        pthread_join(droppers[i], NULL);
    for (k = 0; k < held.wanted; k++)
        if (held.locks[k] && !hf_held(held.locks[k]))
            atomic_fetch_add(&sum.lost, 1);
    free(held.locks);
    held.locks = NULL;
    cand_answer("ok %ld %ld", (long)sum.lost, (long)sum.given);
}

/* ---- many that wait ---------------------------------------------------- */

static struct {
    struct conn holder;
    long n;
} line;

/* N requests behind one holder, who is another client of this process. */
static void queue_up(long n)
{
    hf_request *request;
    double bytes;
    int64_t begin;
    struct hf_error err;
    long i;

    if (!second)
        must(hf_open(url, NULL, &second, &err), &err);
    line.holder.opts = (struct hf_lock_opts)HF_LOCK_OPTS_INIT;
    must(hf_acquire(second, "line", -1, &line.holder.opts, &line.holder.lock,
                    &err),
         &err);
    bytes = allocated();
    begin = bench_now();
    for (i = 0; i < n; i++)
        must(hf_acquire_start(client, "line", -1, NULL, NULL, &request, &err),
             &err);
    line.n = n;
    cand_answer("ok %ld %lld %.0f", n, (long long)(bench_now() - begin),
                (allocated() - bytes) / (double)n);
}

/* Let them have it, one after the other; how long it took for all. */
static void queue_down(void)
{
    struct pollfd pfd = {.fd = hf_events_fd(client), .events = POLLIN};
    int64_t begin = bench_now();
    struct hf_event event = HF_EVENT_INIT;
    struct hf_error err;
    long got = 0;

    give(&line.holder, "line");
    while (got < line.n) {
        if (!hf_next_event(client, &event)) {
            poll(&pfd, 1, -1);
            continue;
        }
        if (event.type != HF_GRANTED)
            bench_die("a request failed: %s", event.error.text);
        must(hf_release(event.lock, &err), &err);
        got++;
    }
    cand_answer("ok %lld", (long long)(bench_now() - begin));
}

/* ---- loss -------------------------------------------------------------- */

static void *watch_run(void *arg)
{
    hf_lock *lock = arg;
    struct pollfd pfd = {.fd = hf_lost_fd(lock), .events = POLLIN};

    while (hf_held(lock))
        poll(&pfd, 1, -1);
    cand_answer("lost %lld", (long long)bench_now());
    return NULL;
}

static void watch(const char *key, int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_error err;
    pthread_t id;
    hf_lock *lock;

    opts.ttl_ms = ttl_ms;
    must(hf_acquire(client, key, -1, &opts, &lock, &err), &err);
    cand_answer("ok");
    if (pthread_create(&id, NULL, watch_run, lock))
        bench_die("no thread");
    pthread_detach(id);
}

static bool other(void *arg, char **words, int n)
{
    struct conn *conn = arg;

    if (!strcmp(words[0], "hold") && n == 4)
        hold(strtol(words[1], NULL, 10), strtoll(words[2], NULL, 10),
             strtoll(words[3], NULL, 10));
    else if (!strcmp(words[0], "drop"))
        drop(n == 2 ? strtoll(words[1], NULL, 10) : 600000);
    else if (!strcmp(words[0], "queue") && n == 2)
        queue_up(strtol(words[1], NULL, 10));
    else if (!strcmp(words[0], "unqueue"))
        queue_down();
    else if (!strcmp(words[0], "watch") && n == 3)
        watch(words[1], strtoll(words[2], NULL, 10));
    else if (!strcmp(words[0], "linger") && n == 2)
        conn->opts.linger_ms = strtoll(words[1], NULL, 10), cand_answer("ok");
    else if (!strcmp(words[0], "ttl") && n == 2)
        conn->opts.ttl_ms = strtoll(words[1], NULL, 10), cand_answer("ok");
    else
        return false;
    return true;
}

static const struct cand_kind kind = {
    .name = "holdfast",
    .version = version,
    .open = conn_open,
    .close = conn_close,
    .take = take,
    .give = give,
    .await = take,
    .pass = give,
    .other = other,
};

int main(int argc, char **argv)
{
    url = argc > 1 ? argv[1] : getenv("HF_TEST_URL");
    return cand_main(&kind);
}
