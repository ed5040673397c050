/* SPDX-License-Identifier: MIT
 *
 * main.c - which worlds to live through, and what came of it.
 *
 *     sim [-f WORDS] [-n SEEDS] [-s FIRST] [-t SECONDS] [-v]
 *     SEED=n sim
 *
 * Without options, a fixed set of seeds: as many of each family.  With -f, only
 * of those families that have these words in their name.  With -t,
 * seeds from the clock until the time is over, for `make soak`.  With SEED in
 * the environment, that one alone.  A seed that fails prints the last 200 lines
 * of its trace, or with -v all of it.
 *
 * Seeds are lived through in a child process, some at a time: what a simulated
 * crash leaves behind goes with it, and when the core itself crashes or hangs,
 * the parent still knows in which seed.
 */
#include "sim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if SIM_ASAN
#include <sanitizer/lsan_interface.h>
#define LEAKS_OFF() __lsan_disable()
#define LEAKS_ON()  __lsan_enable()
#else
#define LEAKS_OFF() (void)0
#define LEAKS_ON()  (void)0
#endif

#define BATCH     50
#define HANG_S    120
#define SEEDS_DEF 60

/* What the child tells the parent. */
struct report {
    uint64_t seed, steps, granted, lost;
    bool failed;
};

static struct report *report;
static bool verbose;

/* One seed.  Crashes leak on purpose; other worlds must not. */
static bool live(uint64_t seed)
{
    const struct sim_family *family = &sim_families[seed % sim_nfamilies];
    bool leaks = family->weather.crash > 0;

    report->seed = seed;
    if (leaks)
        LEAKS_OFF();
    sim_world(seed, family);
    if (leaks)
        LEAKS_ON();
    report->steps += sim.steps;
    report->granted += sim.granted;
    report->lost += sim.lost;
    return !sim.failed;
}

/* The same again, to see how it came to that. */
static void tell(uint64_t seed)
{
    printf("# %s\n# family: %s\n", sim.why, sim.family->name);
    sim.tracing = true;
    sim_world(seed, sim.family);
    sim_trace_print(verbose ? 100000 : 200);
    printf("# replay with SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    report->failed = true;
    _exit(1);
}

/* A seed must decide everything, or replaying would be in vain. */
static void live_twice(uint64_t seed)
{
    uint64_t hash;

    if (!live(seed))
        tell(seed);
    hash = sim.hash;
    if (!live(seed) || sim.hash != hash) {
        printf("# seed %llu is not the same when it is repeated\n",
               (unsigned long long)seed);
        fflush(stdout);
        _exit(1);
    }
}

static void batch_run(uint64_t first, uint64_t n)
{
    uint64_t i;

    alarm(HANG_S);
    for (i = 0; i < n; i++) {
        if (i == 0)
            live_twice(first);
        else if (!live(first + i * (uint64_t)sim_nfamilies))
            tell(first + i * (uint64_t)sim_nfamilies);
    }
    exit(0); /* Through the leak checker. */
}

static bool batch(uint64_t first, uint64_t n)
{
    int status;
    pid_t child;

    fflush(stdout);
    child = fork();
    if (child == 0)
        batch_run(first, n);
    if (child < 0 || waitpid(child, &status, 0) != child)
        return false;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    if (WIFSIGNALED(status))
        printf("# the core %s in seed %llu: replay with SEED=%llu\n",
               WTERMSIG(status) == SIGALRM ? "hangs" : "crashes",
               (unsigned long long)report->seed,
               (unsigned long long)report->seed);
    else if (!report->failed)
        printf("# the child ended with %d at seed %llu\n", WEXITSTATUS(status),
               (unsigned long long)report->seed);
    return false;
}

/* `n` seeds of one family, as one point. */
static bool point(int family, uint64_t base, uint64_t n)
{
    uint64_t done, first, part;
    bool ok = true;

    memset(report, 0, sizeof(*report));
    for (done = 0; ok && done < n; done += part) {
        part = n - done < BATCH ? n - done : BATCH;
        first = (base + done) * (uint64_t)sim_nfamilies + (uint64_t)family;
        ok = batch(first, part);
    }
    printf("%s %d - %s: %llu seeds, %llu steps, %llu grants, %llu losses\n",
           ok ? "ok" : "not ok", family + 1, sim_families[family].name,
           (unsigned long long)n, (unsigned long long)report->steps,
           (unsigned long long)report->granted,
           (unsigned long long)report->lost);
    fflush(stdout);
    return ok;
}

static int run_fixed(uint64_t first, uint64_t n, const char *words)
{
    int i, failed = 0, chosen = 0;

    for (i = 0; i < sim_nfamilies; i++)
        chosen += strstr(sim_families[i].name, words) != NULL;
    printf("1..%d\n", chosen);
    for (i = 0; i < sim_nfamilies; i++)
        if (strstr(sim_families[i].name, words))
            failed += !point(i, first, n);
    return failed > 0;
}

static int64_t now_s(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec;
}

/* Until the time is over; the first failure ends it. */
static int run_soak(int64_t seconds)
{
    int64_t end = now_s() + seconds;
    uint64_t first, total = 0;
    struct timespec ts;
    bool ok = true;
    int i;

    clock_gettime(CLOCK_REALTIME, &ts);
    first = (uint64_t)ts.tv_sec * 1000;
    printf("1..1\n# seeds from %llu\n",
           (unsigned long long)(first * (uint64_t)sim_nfamilies));
    while (ok && now_s() < end) {
        for (i = 0; ok && i < sim_nfamilies; i++) {
            ok = batch(first * (uint64_t)sim_nfamilies + (uint64_t)i, BATCH);
            total += BATCH;
        }
        first += BATCH;
        if (verbose)
            printf("# %llu seeds\n", (unsigned long long)total);
    }
    printf("%s 1 - soak: %llu seeds, %llu steps\n", ok ? "ok" : "not ok",
           (unsigned long long)total, (unsigned long long)report->steps);
    return !ok;
}

static int run_one(uint64_t seed)
{
    bool ok;

    printf("1..1\n");
    ok = batch(seed, 1);
    printf("%s 1 - seed %llu\n", ok ? "ok" : "not ok",
           (unsigned long long)seed);
    return !ok;
}

int main(int argc, char **argv)
{
    const char *seed = getenv("SEED"), *words = "";
    uint64_t n = SEEDS_DEF, first = 0;
    int64_t seconds = 0;
    int opt;

    while ((opt = getopt(argc, argv, "f:n:s:t:v")) != -1) {
        if (opt == 'n')
            n = strtoull(optarg, NULL, 10);
        else if (opt == 'f')
            words = optarg;
        else if (opt == 's')
            first = strtoull(optarg, NULL, 10);
        else if (opt == 't')
            seconds = strtoll(optarg, NULL, 10);
        else if (opt == 'v')
            verbose = true;
        else
            return 64;
    }
    if (SIM_TSAN) {
        printf("1..0 # SKIP it has but one thread, which changes stacks\n");
        return 0;
    }
    report = mmap(NULL, sizeof(*report), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (report == MAP_FAILED)
        return 1;
    if (seed)
        return run_one(strtoull(seed, NULL, 10));
    return seconds ? run_soak(seconds) : run_fixed(first, n, words);
}
