/* SPDX-License-Identifier: MIT
 *
 * spawn.c - what `holdfast run` adds to a command, beside flock(1).
 *
 * QUESTION  `holdfast run KEY -- true` takes at most 3 times as long as
 *   `flock FILE true`, lock files in the same directory.  `true` alone shows
 *   what of it is the price of a process.
 *
 * Usage: bench-spawn HOLDFAST, the path of the command.  bench/run-vs-flock
 * asks hyperfine for a second opinion.
 */
#include "bench.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 201
#define OPS    3

extern char **environ;

static double spawn_run(struct bench_case *one)
{
    char **argv = one->arg;
    int64_t begin = bench_now();
    int status;
    pid_t pid;
    long i;

    for (i = 0; i < one->ops; i++) {
        if (posix_spawnp(&pid, argv[0], NULL, NULL, argv, environ))
            bench_die("%s cannot be started", argv[0]);
        if (waitpid(pid, &status, 0) < 0 || status)
            bench_die("%s failed", argv[0]);
    }
    return (double)(bench_now() - begin) / 1e3 / (double)one->ops;
}

int main(int argc, char **argv)
{
    static const struct bench_goal goal = {BENCH_AT_MOST, 3};
    static char file[300], url[300], true_path[] = "/bin/true";
    char *bare[] = {true_path, NULL};
    char flock_name[] = "flock", run[] = "run", key[] = "nightly",
         dash[] = "--";
    char *flock_argv[] = {flock_name, file, true_path, NULL};
    char *run_argv[] = {argv[1], run, key, dash, true_path, NULL};
    struct bench_case cases[3] = {
        {.name = "true", .run = spawn_run, .arg = bare, .ops = OPS},
        {.name = "flock FILE true",
         .run = spawn_run,
         .arg = flock_argv,
         .ops = OPS},
        {.name = "holdfast run KEY -- true",
         .run = spawn_run,
         .arg = run_argv,
         .ops = OPS},
    };
    const char *dir = bench_scratch(NULL);

    if (argc != 2)
        bench_die("usage: bench-spawn HOLDFAST");
    snprintf(file, sizeof(file), "%s/flock", dir);
    snprintf(url, sizeof(url), "file:%s", dir);
    if (setenv("HOLDFAST_URL", url, 1))
        bench_die("out of memory");
    bench_begin("spawn", "A command under a lock");
    bench_run(cases, 3, bench_rounds(ROUNDS), "us");
    bench_ratio(&cases[2], &cases[1], &goal);
    return 0;
}
