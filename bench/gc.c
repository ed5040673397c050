/* SPDX-License-Identifier: MIT
 *
 * gc.c - what keys that are taken once leave behind, and how fast it is removed.
 *
 *     bench/gc SERVICE [KEYS]
 *     test/servers/SERVICE build/bench/bench-gc [KEYS]
 *
 * Threads take and release so many keys (1,000,000), each once.  Then the service
 * is asked what it has kept (bench/kept), hf_collect() runs with an age of 0 until
 * it removes nothing more, and the service is asked again.  At last some of the
 * keys are taken once more: each fence must be greater than the first one.  The
 * exit status is 1 if a fence is not, or if anything of the keys is left.
 *
 * Redis keeps the fence of a key for a day and a database for 61 minutes, whatever
 * age is asked for.  So the clock of the server is put ahead by more than that
 * before the collection, and back after it, which is the harder case for fences.
 * bench/gc arranges that; without it such services keep all, and the status is 1.
 */
#include "bench.h"
#include "holdfast.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define THREADS 32
#define SAMPLE  1000
#define AHEAD_S (25 * 3600)

static hf_client *client;
static long nkeys = 1000000;
static uint64_t *fences; /* of each key */
static atomic_long next;

static void must(hf_status st, const struct hf_error *err)
{
    if (st)
        bench_die("%s", err->text);
}

static double since_s(int64_t from)
{
    return (double)(bench_now() - from) / 1e9;
}

/* ---- locks -------------------------------------------------------------- */

static uint64_t pair(long i)
{
    struct hf_error err;
    uint64_t fence;
    hf_lock *lk;
    char key[32];

    snprintf(key, sizeof(key), "order-%ld", i);
    must(hf_acquire(client, key, -1, NULL, &lk, &err), &err);
    fence = hf_fence(lk);
    must(hf_release(lk, &err), &err);
    return fence;
}

static void *take_run(void *arg)
{
    long i;

    (void)arg;
    while ((i = atomic_fetch_add(&next, 1)) < nkeys)
        fences[i] = pair(i);
    return NULL;
}

static void take_all(void)
{
    pthread_t threads[THREADS];
    int64_t begin = bench_now();
    double s;

    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, take_run, NULL))
            bench_die("no thread");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    s = since_s(begin);
    bench_note("%ld keys taken and released once by %d threads: %.1f s, %.0f "
               "pairs a second",
               nkeys, THREADS, s, (double)nkeys / s);
}

/* Take some keys again, evenly spread; false if a fence has gone back. */
static bool take_again(void)
{
    long n = nkeys < SAMPLE ? nkeys : SAMPLE, risen = 0;

    for (long i = 0; i < n; i++) {
        long which = i * (nkeys / n);

        risen += pair(which) > fences[which];
    }
    bench_note(
        "%ld of the keys taken again: %ld fences are greater than before", n,
        risen);
    return risen == n;
}

/* ---- the service -------------------------------------------------------- */

/* What it says of itself: the number of entries. */
static long tell_kept(const char *url, const char *when)
{
    const char *kept = getenv("BENCH_KEPT");
    char command[1200], what[300] = "";
    double bytes;
    long entries;
    FILE *pipe;
    int n;

    snprintf(command, sizeof(command), "%s '%s'", kept ? kept : "bench/kept",
             url);
    pipe = popen(command, "re");
    if (!pipe)
        bench_die_errno("popen");
    n = fscanf(pipe, "%ld %lf %299[^\n]", &entries, &bytes, what);
    if (pclose(pipe) || n < 2)
        bench_die("'%s' did not answer", command);
    bench_note("%s: %ld entries, %.1f MB%s%s", when, entries, bytes / 1e6,
               *what ? ", " : "", what);
    bench_json("\"what\":\"%s\",\"entries\":%ld,\"bytes\":%.0f", when, entries,
               bytes);
    return entries;
}

static void set_clock(const char *path, int64_t seconds)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0 || pwrite(fd, &seconds, sizeof(seconds), 0) != sizeof(seconds))
        bench_die_errno(path);
    close(fd);
}

/* Of every server whose clock has a file: see test/clock.c. */
static void set_clocks(int64_t seconds)
{
    const char *file = getenv("HF_CLOCK_FILE");
    const char *members = getenv("HF_TEST_MEMBERS");
    char path[300];

    if (file)
        set_clock(file, seconds);
    for (int i = 1; members; i++) {
        snprintf(path, sizeof(path), "%s/%d/clock", members, i);
        if (access(path, W_OK))
            break;
        set_clock(path, seconds);
    }
}

static long peak_kb(void)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void collect_all(void)
{
    struct hf_collected did = HF_COLLECTED_INIT;
    int64_t begin = bench_now();
    double cpu = bench_cpu_us();
    uint64_t removed = 0;
    struct hf_error err;
    long peak = peak_kb();
    int calls = 0;
    double s;

    do {
        must(hf_collect(client, 0, false, &did, &err), &err);
        removed += did.removed;
        calls++;
    } while (did.removed && did.kept);
    s = since_s(begin);
    bench_note("hf_collect(), %d calls: %" PRIu64 " removed, %" PRIu64
               " kept; %.1f s, %.0f a second",
               calls, removed, did.kept, s, (double)removed / s);
    bench_note("  here %.1f s of processor time, and %ld KB more memory",
               (bench_cpu_us() - cpu) / 1e6, peak_kb() - peak);
}

int main(int argc, char **argv)
{
    const char *url = getenv("HF_TEST_URL");
    struct hf_error err;
    bool risen;
    long left;

    if (argc > 1)
        nkeys = atol(argv[1]);
    if (argc > 2)
        url = argv[2];
    if (!url || nkeys < 1)
        bench_die("usage: bench-gc [KEYS [URL]], or with HF_TEST_URL");
    bench_begin("gc", "What keys that are taken once leave behind");
    fences = bench_alloc(sizeof(*fences) * (size_t)nkeys);
    must(hf_open(url, NULL, &client, &err), &err);
    pair(0); /* So that the tables are there. */
    tell_kept(url, "before");
    take_all();
    tell_kept(url, "kept");
    set_clocks(AHEAD_S);
    collect_all();
    left = tell_kept(url, "left");
    set_clocks(0);
    risen = take_again();
    hf_close(client);
    free(fences);
    return left || !risen;
}
