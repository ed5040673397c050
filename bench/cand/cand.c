/* SPDX-License-Identifier: MIT
 *
 * cand.c - the questions of bench/compare, answered in C; see cand.h.
 *
 * Nothing is printed while the clock runs: times are kept and told afterwards.
 */
#include "cand.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORDS_MAX   8
#define THREADS_MAX 256
#define TURNS_MAX   2000000

static const struct cand_kind *kind;
static void *conn; /* of the main thread */

void cand_answer(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

static void sleep_until(int64_t at)
{
    struct timespec ts = {at / 1000000000, at % 1000000000};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL))
        ;
}

/* ---- pairs ------------------------------------------------------------- */

static void pairs(long n, const char *key)
{
    int64_t *ns = bench_alloc((size_t)n * sizeof(*ns)), begin = bench_now();
    long i;

    for (i = 0; i < n; i++) {
        kind->take(conn, key);
        kind->give(conn, key);
        ns[i] = bench_now();
    }
    printf("ok");
    for (i = 0; i < n; i++)
        printf(" %lld", (long long)(ns[i] - (i ? ns[i - 1] : begin)));
    cand_answer("%s", "");
    free(ns);
}

/* ---- many -------------------------------------------------------------- */

struct worker {
    pthread_t id;
    void *conn;
    char key[32];
    long done;
};

static struct worker workers[THREADS_MAX];
static pthread_barrier_t barrier;
static int64_t until;

static void *work(void *arg)
{
    struct worker *me = arg;

    pthread_barrier_wait(&barrier);
    while (bench_now() < until) {
        kind->take(me->conn, me->key);
        kind->give(me->conn, me->key);
        me->done++;
    }
    return NULL;
}

/* The threads are there before the clock starts, and so are their
 * connections, which stay for the next time. */
static long many_threads(int threads, int64_t ms, int64_t *begin)
{
    long sum = 0;
    int i;

    until = INT64_MAX;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (i = 0; i < threads; i++) {
        struct worker *one = &workers[i];

        if (!one->conn)
            one->conn = kind->open();
        snprintf(one->key, sizeof(one->key), "many-%s-%d", kind->name, i);
        one->done = 0;
        if (pthread_create(&one->id, NULL, work, one))
            bench_die("no thread");
    }
    *begin = bench_now();
    until = *begin + ms * 1000000;
    pthread_barrier_wait(&barrier);
    for (i = 0; i < threads; i++) {
        pthread_join(workers[i].id, NULL);
        sum += workers[i].done;
    }
    pthread_barrier_destroy(&barrier);
    return sum;
}

static void many(int threads, int64_t ms)
{
    int64_t begin = bench_now();
    long sum;

    if (threads < 1 || threads > THREADS_MAX) {
        cand_answer("no more than %d threads", THREADS_MAX);
        return;
    }
    if (kind->many)
        sum = kind->many(threads, begin + ms * 1000000);
    else
        sum = many_threads(threads, ms, &begin);
    cand_answer("ok %ld %lld", sum, (long long)(bench_now() - begin));
}

/* ---- contend ----------------------------------------------------------- */

static void contend(int64_t at, int64_t ms, const char *key)
{
    static int64_t(*turns)[3];
    int64_t end = at + ms * 1000000;
    long i, n = 0;

    if (!turns)
        turns = bench_alloc(TURNS_MAX * sizeof(*turns));
    sleep_until(at);
    while (n < TURNS_MAX && bench_now() < end) {
        turns[n][0] = bench_now();
        kind->await(conn, key);
        turns[n][1] = turns[n][2] = bench_now();
        kind->pass(conn, key);
        n++;
    }
    printf("ok");
    for (i = 0; i < n; i++)
        printf(" %lld %lld %lld", (long long)turns[i][0],
               (long long)turns[i][1], (long long)turns[i][2]);
    cand_answer("%s", "");
}

/* ---- the dialogue ------------------------------------------------------ */

static bool simple(char **words, int n)
{
    const char *what = words[0], *key = n > 1 ? words[1] : "";

    if (!strcmp(what, "take"))
        kind->take(conn, key);
    else if (!strcmp(what, "give"))
        kind->give(conn, key);
    else if (!strcmp(what, "wait") && kind->await)
        kind->await(conn, key);
    else if (!strcmp(what, "pass") && kind->await)
        kind->pass(conn, key);
    else if (!strcmp(what, "found") && kind->await)
        kind->found ? kind->found(conn, key) : (void)0;
    else
        return false;
    cand_answer("ok");
    return true;
}

static void obey(char **words, int n)
{
    if (!strcmp(words[0], "pairs") && n == 3)
        pairs(strtol(words[1], NULL, 10), words[2]);
    else if (!strcmp(words[0], "many") && n == 3)
        many(atoi(words[1]), strtoll(words[2], NULL, 10));
    else if (!strcmp(words[0], "contend") && n == 4 && kind->await)
        contend(strtoll(words[1], NULL, 10), strtoll(words[2], NULL, 10),
                words[3]);
    else if (!simple(words, n) && !(kind->other && kind->other(conn, words, n)))
        cand_answer("no %s", words[0]);
}

int cand_main(const struct cand_kind *which)
{
    char line[2048], *words[WORDS_MAX], *rest, *word;
    int i, n;

    kind = which;
    conn = kind->open();
    cand_answer("ready %s", kind->version ? kind->version() : "");
    while (fgets(line, sizeof(line), stdin)) {
        n = 0;
        for (word = strtok_r(line, " \n", &rest); word && n < WORDS_MAX;
             word = strtok_r(NULL, " \n", &rest))
            words[n++] = word;
        if (n)
            obey(words, n);
    }
    for (i = 0; i < THREADS_MAX && workers[i].conn; i++)
        kind->close(workers[i].conn);
    kind->close(conn);
    return 0;
}
