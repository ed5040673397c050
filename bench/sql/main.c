/* SPDX-License-Identifier: MIT
 *
 * main.c - bench-sql URL WHERE: holdfast beside the bare client library.
 *
 * Run by bench/sql/run.  One thread: acquire and release beside the same two
 * statements, in alternating blocks, so that whatever else the machine does
 * hits both.  64 threads on 64 keys, each bare thread with a connection of
 * its own.  Hand-over: from the call of release to the grant of a waiter in
 * another client.  Renewals: ten thousand locks, for one round of them.  The
 * letters of the third argument choose: p, m, h, r, and s for a script for
 * pgbench.
 */
#include "sql.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "holdfast.h"

static const char *bench_url, *bench_where;
static const struct raw_kind *bench_raw;

double raw_now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

_Noreturn void raw_die(const char *what, const char *why)
{
    fprintf(stderr, "bench-sql: %s: %s\n", what, why);
    exit(1);
}

char *raw_text(const char *text, const char *table, const char *string)
{
    char *ret = malloc(strlen(text) + 1024);
    size_t len = 0;

    for (; *text; text++) {
        if (text[0] == '@' && text[1] == 'T')
            len += (size_t)snprintf(ret + len, 64, "%s", table);
        else if (text[0] == '@' && text[1] == 'C')
            len += (size_t)snprintf(ret + len, 64, "'%s'", string);
        else
            ret[len++] = *text;
        if (text[0] == '@')
            text++;
    }
    ret[len] = '\0';
    return ret;
}

static hf_client *bench_open(void)
{
    struct hf_error err;
    hf_client *client = NULL;

    if (hf_open(bench_url, NULL, &client, &err))
        raw_die("open", err.text);
    return client;
}

static void bench_once(hf_client *client, const char *key)
{
    struct hf_error err;
    hf_lock *lk;

    if (hf_acquire(client, key, 0, NULL, &lk, &err) || hf_release(lk, &err))
        raw_die("lock", err.text);
}

static void raw_once(struct raw *raw, const char *key, long i)
{
    char token[40];

    snprintf(token, sizeof(token), "%032ld", i);
    if (!bench_raw->take(raw, key, token) || !bench_raw->give(raw, key, token))
        raw_die("raw", "not granted");
}

/* ---- one thread --------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void bench_pair(void)
{
    enum { BLOCKS = 40, EACH = 100 };
    hf_client *client = bench_open();
    struct raw *raw = bench_raw->open(bench_where);
    double ours[BLOCKS], theirs[BLOCKS], began;

    for (int i = -5; i < BLOCKS; i++) {
        began = raw_now_us();
        for (int j = 0; j < EACH; j++)
            raw_once(raw, "pair", i * EACH + j + 1000);
        if (i >= 0)
            theirs[i] = (raw_now_us() - began) / EACH;
        began = raw_now_us();
        for (int j = 0; j < EACH; j++)
            bench_once(client, "pair");
        if (i >= 0)
            ours[i] = (raw_now_us() - began) / EACH;
    }
    qsort(ours, BLOCKS, sizeof(double), compare);
    qsort(theirs, BLOCKS, sizeof(double), compare);
    printf(
        "%-9s acquire+release, one thread    %8.1f us, raw %8.1f us: %.2f x\n",
        bench_raw->scheme, ours[BLOCKS / 2], theirs[BLOCKS / 2],
        ours[BLOCKS / 2] / theirs[BLOCKS / 2]);
    bench_raw->close(raw);
    hf_close(client);
}

/* ---- many threads ------------------------------------------------------- */

static hf_client *many_client;
static atomic_bool many_stop;
static atomic_long many_done;

static void *many_ours(void *arg)
{
    char key[32];

    snprintf(key, sizeof(key), "many %ld", (long)(intptr_t)arg);
    while (!atomic_load(&many_stop)) {
        bench_once(many_client, key);
        atomic_fetch_add(&many_done, 1);
    }
    return NULL;
}

static void *many_raw(void *arg)
{
    struct raw *raw = bench_raw->open(bench_where);
    char key[32];

    snprintf(key, sizeof(key), "many %ld", (long)(intptr_t)arg);
    for (long i = 1; !atomic_load(&many_stop); i++) {
        raw_once(raw, key, i);
        atomic_fetch_add(&many_done, 1);
    }
    bench_raw->close(raw);
    return NULL;
}

static double many(void *(*run)(void *))
{
    enum { THREADS = 64 };
    struct timespec nap = {.tv_sec = 1}, work = {.tv_sec = 3};
    pthread_t threads[THREADS];
    double began, rate;
    long before;

    atomic_store(&many_stop, false);
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)i);
    nanosleep(&nap, NULL);
    before = atomic_load(&many_done);
    began = raw_now_us();
    nanosleep(&work, NULL);
    rate = (double)(atomic_load(&many_done) - before) / (raw_now_us() - began) *
           1e6;
    atomic_store(&many_stop, true);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return rate;
}

static void bench_many(void)
{
    double ours, theirs;

    many_client = bench_open();
    ours = many(many_ours);
    hf_close(many_client);
    theirs = many(many_raw);
    printf(
        "%-9s 64 threads on 64 keys          %8.0f /s, raw %8.0f /s: %.2f x\n",
        bench_raw->scheme, ours, theirs, ours / theirs);
}

/* ---- hand-over ---------------------------------------------------------- */

struct taker {
    hf_client *client;
    double taken;
};

static void *take_over(void *arg)
{
    struct taker *taker = arg;
    struct hf_error err;
    hf_lock *lk;

    if (hf_acquire(taker->client, "hand", 10000, NULL, &lk, &err))
        raw_die("hand-over", err.text);
    taker->taken = raw_now_us();
    hf_release(lk, NULL);
    return NULL;
}

static void bench_hand_over(void)
{
    enum { ROUNDS = 100 };
    struct timespec nap = {.tv_nsec = 20000000};
    hf_client *client = bench_open();
    struct taker taker = {.client = bench_open()};
    double each[ROUNDS], began, notify, advisory;
    struct hf_error err;
    pthread_t thread;
    hf_lock *lk;

    for (int i = 0; i < ROUNDS; i++) {
        if (hf_acquire(client, "hand", 10000, NULL, &lk, &err))
            raw_die("hand-over", err.text);
        pthread_create(&thread, NULL, take_over, &taker);
        nanosleep(&nap, NULL);
        began = raw_now_us();
        hf_release(lk, NULL);
        pthread_join(thread, NULL);
        each[i] = taker.taken - began;
    }
    qsort(each, ROUNDS, sizeof(double), compare);
    printf("%-9s hand-over to another client    %8.0f us, p90 %8.0f us\n",
           bench_raw->scheme, each[ROUNDS / 2], each[ROUNDS * 9 / 10]);
    hf_close(client);
    hf_close(taker.client);
    if (bench_raw != &raw_postgres)
        return;
    raw_bells(bench_where, ROUNDS, &notify, &advisory);
    printf("%-9s bare hand-over                 %8.0f us by NOTIFY, %.0f us by "
           "advisory lock\n",
           bench_raw->scheme, notify, advisory);
}

/* ---- renewals ----------------------------------------------------------- */

static double renew_cpu_us(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

/* Held with a ttl of 15 s, so each is renewed every 5 s.  Not before the second
 * round are they in step. */
static void bench_renew(void)
{
    enum { HELD = 10000 };
    static hf_lock *locks[HELD];
    struct timespec round = {.tv_sec = 5};
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct raw *raw = bench_raw->open(bench_where);
    hf_client *client = bench_open();
    struct hf_error err;
    double cpu;
    long before, lost = 0;
    char key[32];

    opts.ttl_ms = 15000;
    for (int i = 0; i < HELD; i++) {
        snprintf(key, sizeof(key), "held %d", i);
        if (hf_acquire(client, key, 0, &opts, &locks[i], &err))
            raw_die("hold", err.text);
    }
    nanosleep(&round, NULL);
    before = bench_raw->writes(raw);
    cpu = renew_cpu_us();
    nanosleep(&round, NULL);
    cpu = renew_cpu_us() - cpu;
    before = bench_raw->writes(raw) - before;
    for (int i = 0; i < HELD; i++)
        lost += hf_release(locks[i], NULL) != HF_OK;
    printf("%-9s %d held, one round of renewals  %6ld statements, %.1f %% of a "
           "core, %ld lost\n",
           bench_raw->scheme, HELD, before, cpu / 5e4, lost);
    bench_raw->close(raw);
    hf_close(client);
}

int main(int argc, char **argv)
{
    static const struct raw_kind *const kinds[] = {&raw_postgres, &raw_mysql,
                                                   &raw_sqlite};

    for (int i = 0; argc == 4 && i < 3; i++)
        if (!strncmp(argv[1], kinds[i]->scheme, strlen(kinds[i]->scheme)))
            bench_raw = kinds[i];
    if (!bench_raw)
        raw_die("usage", "bench-sql URL WHERE [p][m][h][r][s]");
    bench_url = argv[1];
    bench_where = argv[2];
    if (strchr(argv[3], 's'))
        raw_script();
    if (strchr(argv[3], 'p'))
        bench_pair();
    if (strchr(argv[3], 'm') && bench_raw != &raw_sqlite)
        bench_many();
    if (strchr(argv[3], 'h'))
        bench_hand_over();
    if (strchr(argv[3], 'r') && bench_raw->writes)
        bench_renew();
    return 0;
}
