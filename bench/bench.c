/* SPDX-License-Identifier: MIT
 *
 * bench.c - rounds, quartiles and verdicts; see bench.h.
 *
 * A table goes to the standard output, progress to the standard error, and one
 * JSON object a line is added to the file that $BENCH_JSON names.
 *
 * SPREAD  The distance of the quartiles over the median.  Above SPREAD_MAX the
 * figure is printed but said to rank nothing: on a shared machine that
 * happens, and an average would only hide it.
 */
#include "bench.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SPREAD_MAX 0.25
#define AGAIN_MAX  20

static const char *bench_question = "?";

int64_t bench_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

void bench_die(const char *fmt, ...)
{
    va_list args;

    fflush(stdout);
    fprintf(stderr, "bench %s: ", bench_question);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void bench_die_errno(const char *what)
{
    bench_die("%s: %s", what, strerrordesc_np(errno));
}

void *bench_alloc(size_t size)
{
    void *mem = calloc(1, size);

    if (!mem)
        bench_die("out of memory");
    return mem;
}

uint32_t bench_random(void)
{
    static uint32_t state;

    while (!state)
        if (getrandom(&state, sizeof(state), 0) < 0)
            bench_die_errno("getrandom");
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

bool bench_quick(void)
{
    const char *quick = getenv("QUICK");

    return quick && *quick && strcmp(quick, "0") != 0;
}

int bench_rounds(int full)
{
    return bench_quick() ? full / 4 + 3 : full;
}

void bench_begin(const char *question, const char *heading)
{
    bench_question = question;
    printf("\n%s\n", heading);
    fflush(stdout);
}

void bench_note(const char *fmt, ...)
{
    va_list args;

    printf("    ");
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

void bench_json(const char *fmt, ...)
{
    const char *path = getenv("BENCH_JSON");
    FILE *file;
    va_list args;

    if (!path || !*path)
        return;
    file = fopen(path, "ae");
    if (!file)
        bench_die_errno(path);
    fprintf(file, "{\"question\":\"%s\",", bench_question);
    va_start(args, fmt);
    vfprintf(file, fmt, args);
    va_end(args);
    fprintf(file, "}\n");
    if (fclose(file))
        bench_die_errno(path);
}

/* ---- statistics -------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Between the two values nearest to the place, as the books do it. */
static double quantile(const double *sorted, size_t n, double q)
{
    double at = q * (double)(n - 1);
    size_t low = (size_t)at;

    if (low + 1 >= n)
        return sorted[n - 1];
    return sorted[low] + (at - (double)low) * (sorted[low + 1] - sorted[low]);
}

static struct bench_stat stat_of(double *values, int rounds)
{
    size_t n = (size_t)rounds;

    qsort(values, n, sizeof(*values), by_size);
    return (struct bench_stat){quantile(values, n, 0.25),
                               quantile(values, n, 0.5),
                               quantile(values, n, 0.75), rounds};
}

double bench_quantile(double *values, size_t n, double q)
{
    qsort(values, n, sizeof(*values), by_size);
    return quantile(values, n, q);
}

static double stat_spread(const struct bench_stat *stat)
{
    return stat->median > 0 ? (stat->q3 - stat->q1) / stat->median : 0;
}

/* ---- rounds ------------------------------------------------------------ */

static void progress(int round, int rounds)
{
    if (!isatty(STDERR_FILENO))
        return;
    fprintf(stderr, "\r  bench %s: round %d of %d ", bench_question, round,
            rounds);
    if (round == rounds)
        fprintf(stderr, "\r%60s\r", "");
}

/* How often the kernel has taken the processor from this thread. */
static long preemptions(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nivcsw;
}

/* One round of one case: measured again, within reason, if other work got in
 * between, because then its time is that of two programs.  Where several
 * threads or processes work, what happens to this one says nothing. */
static double measure(struct bench_case *one)
{
    double figure;
    long before;
    int i = 0;

    do {
        before = preemptions();
        figure = one->run(one);
    } while (one->alone && preemptions() != before && ++i < AGAIN_MAX);
    return figure;
}

static void shuffle(size_t *order, size_t n)
{
    size_t i, j, old;

    for (i = n; i > 1; i--) {
        j = bench_random() % i;
        old = order[i - 1];
        order[i - 1] = order[j];
        order[j] = old;
    }
}

void bench_tell(struct bench_case *cases, size_t n, int rounds,
                const char *unit)
{
    double *sorted = bench_alloc((size_t)rounds * sizeof(*sorted));
    size_t i;

    printf("    %-38s %10s %10s %10s\n", "", "q1", "median", "q3");
    for (i = 0; i < n; i++) {
        memcpy(sorted, cases[i].samples, (size_t)rounds * sizeof(*sorted));
        cases[i].stat = stat_of(sorted, rounds);
        printf("    %-38s %10.5g %10.5g %10.5g %s\n", cases[i].name,
               cases[i].stat.q1, cases[i].stat.median, cases[i].stat.q3, unit);
        bench_json("\"what\":\"%s\",\"unit\":\"%s\",\"rounds\":%d,"
                   "\"q1\":%.6g,\"median\":%.6g,\"q3\":%.6g",
                   cases[i].name, unit, rounds, cases[i].stat.q1,
                   cases[i].stat.median, cases[i].stat.q3);
    }
    free(sorted);
    fflush(stdout);
}

void bench_run(struct bench_case *cases, size_t n, int rounds, const char *unit)
{
    size_t *order = bench_alloc(n * sizeof(*order));
    size_t i;
    int round;

    fflush(stdout);
    for (i = 0; i < n; i++) {
        order[i] = i;
        cases[i].samples = bench_alloc((size_t)rounds * sizeof(double));
        cases[i].run(&cases[i]); /* warm-up, not counted */
    }
    for (round = 0; round < rounds; round++) {
        shuffle(order, n);
        for (i = 0; i < n; i++) {
            struct bench_case *one = &cases[order[i]];

            one->samples[round] = measure(one);
        }
        progress(round + 1, rounds);
    }
    bench_tell(cases, n, rounds, unit);
    free(order);
}

/* ---- verdicts ---------------------------------------------------------- */

static bool meets(double value, const struct bench_goal *goal)
{
    return goal->sense == BENCH_AT_MOST ? value <= goal->target
                                        : value >= goal->target;
}

static const char *verdict_of(const struct bench_stat *stat,
                              const struct bench_goal *goal)
{
    bool low = meets(stat->q1, goal), high = meets(stat->q3, goal);

    if (low && high)
        return "met";
    return low || high ? "undecided" : "missed";
}

static void tell_verdict(const char *name, const struct bench_stat *stat,
                         const char *unit, const struct bench_goal *goal)
{
    const char *sense = goal->sense == BENCH_AT_MOST ? "at most" : "at least";
    const char *verdict = verdict_of(stat, goal);
    double spread = stat_spread(stat);

    printf("  > %s  %.4g %s, target %s %g: %s\n", name, stat->median, unit,
           sense, goal->target, verdict);
    if (meets(stat->q1, goal) != meets(stat->q3, goal))
        printf("    the quartiles %.4g and %.4g lie on both sides of the "
               "target\n",
               stat->q1, stat->q3);
    if (spread > SPREAD_MAX)
        printf("    spread %.0f %%: too large to rank\n", spread * 100);
    bench_json("\"what\":\"%s\",\"unit\":\"%s\",\"rounds\":%d,\"q1\":%.6g,"
               "\"median\":%.6g,\"q3\":%.6g,\"sense\":\"%s\",\"target\":%g,"
               "\"verdict\":\"%s\",\"rankable\":%s",
               name, unit, stat->rounds, stat->q1, stat->median, stat->q3,
               sense, goal->target, verdict,
               spread > SPREAD_MAX ? "false" : "true");
    fflush(stdout);
}

void bench_judge(const struct bench_case *one, const char *unit,
                 const struct bench_goal *goal)
{
    if (goal)
        tell_verdict(one->name, &one->stat, unit, goal);
}

/* Without a target, the question is only who is faster. */
static void tell_ratio(const char *name, const struct bench_stat *stat)
{
    bool ranked =
        (stat->q1 > 1 || stat->q3 < 1) && stat_spread(stat) <= SPREAD_MAX;

    printf("  > %s  %.3g x (%.3g to %.3g)%s\n", name, stat->median, stat->q1,
           stat->q3, ranked ? "" : ", spread too large to rank");
    bench_json("\"what\":\"%s\",\"unit\":\"x\",\"rounds\":%d,\"q1\":%.6g,"
               "\"median\":%.6g,\"q3\":%.6g,\"rankable\":%s",
               name, stat->rounds, stat->q1, stat->median, stat->q3,
               ranked ? "true" : "false");
    fflush(stdout);
}

void bench_ratio(const struct bench_case *over, const struct bench_case *under,
                 const struct bench_goal *goal)
{
    int i, rounds = over->stat.rounds;
    double *ratios = bench_alloc((size_t)rounds * sizeof(*ratios));
    struct bench_stat stat;
    char name[160];

    for (i = 0; i < rounds; i++)
        ratios[i] = over->samples[i] / under->samples[i];
    stat = stat_of(ratios, rounds);
    free(ratios);
    snprintf(name, sizeof(name), "%s / %s", over->name, under->name);
    if (goal)
        tell_verdict(name, &stat, "x", goal);
    else
        tell_ratio(name, &stat);
}

void bench_value(const char *name, double value, const char *unit,
                 const struct bench_goal *goal)
{
    struct bench_stat stat = {value, value, value, 1};

    if (goal) {
        tell_verdict(name, &stat, unit, goal);
        return;
    }
    printf("    %-38s %10s %10.5g %10s %s\n", name, "", value, "", unit);
    bench_json("\"what\":\"%s\",\"unit\":\"%s\",\"rounds\":1,\"median\":%.6g",
               name, unit, value);
    fflush(stdout);
}
