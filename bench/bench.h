/* SPDX-License-Identifier: MIT
 *
 * bench.h - how a figure is measured and told.
 *
 * A program of this directory answers one question.  It names its candidates,
 * one of which is often a bare system call or lock for scale, and
 * bench_run() takes them through rounds: in each round every candidate runs
 * once, in an order that is drawn anew, so that a slow moment of the machine
 * falls on all of them alike.  A ratio is formed within each round before the
 * median is taken.  Rounds are short, a millisecond where that will do; where
 * one thread does all the work, a round in which the kernel gave its processor
 * to somebody else is repeated.
 *
 * What is told is the median of the rounds with both quartiles, and a verdict
 * that admits it when the quartiles lie on both sides of the target or so far
 * apart that the figure ranks nothing.  No verdict changes the exit status: a
 * figure is news, not a test.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bench_stat {
    double q1, median, q3;
    int rounds;
};

struct bench_case {
    const char *name;
    double (*run)(struct bench_case *); /* one round: its figure */
    void *arg;
    long ops;        /* operations in one round, for run() */
    bool alone;      /* this thread does all the work of a round */
    double *samples; /* one for each round; made by bench_run() */
    struct bench_stat stat;
};

enum bench_sense { BENCH_AT_MOST, BENCH_AT_LEAST };

/* Where a figure is meant to be, in the unit of the figure. */
struct bench_goal {
    enum bench_sense sense;
    double target;
};

/* Begin one question: its short name for the file, and a heading. */
void bench_begin(const char *question, const char *heading);

/* `full` rounds, or about a quarter of them under QUICK=1. */
int bench_rounds(int full);
bool bench_quick(void);

/* Warm up, then measure every case once a round, in random order. */
void bench_run(struct bench_case *cases, size_t n, int rounds,
               const char *unit);

/* Tell figures that a program has put in `samples` of its cases by itself. */
void bench_tell(struct bench_case *cases, size_t n, int rounds,
                const char *unit);

/* Tell how a case, the ratio of two, or a single value does.  `goal` may be
 * NULL: then it is only for scale. */
void bench_judge(const struct bench_case *, const char *unit,
                 const struct bench_goal *goal);
void bench_ratio(const struct bench_case *over, const struct bench_case *under,
                 const struct bench_goal *goal);
void bench_value(const char *name, double value, const char *unit,
                 const struct bench_goal *goal);
void bench_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The value that the part `q` of all (0.5: the median) does not pass; `values`
 * are put in order. */
double bench_quantile(double *values, size_t n, double q);

/* Microseconds that this process has run, and that the threads of the server
 * which test/servers has started have. */
double bench_cpu_us(void);
double bench_server_us(void);

int64_t bench_now(void); /* ns on CLOCK_MONOTONIC, the same in every process */
uint32_t bench_random(void);
void bench_die(const char *fmt, ...)
    __attribute__((format(printf, 1, 2), noreturn));
void bench_die_errno(const char *what) __attribute__((noreturn));
void *bench_alloc(size_t size); /* zeroed, or the end */

/* A new directory below `base` (NULL: $BENCH_DIR, else the place where file:
 * keeps its locks by default), removed with all in it at exit. */
const char *bench_scratch(const char *base);
const char *bench_fs_name(const char *path);

/* Add a line to the file of results: {"question":...,<members>}. */
void bench_json(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
