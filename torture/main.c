/* SPDX-License-Identifier: MIT
 *
 * main.c - holdfast-torture: a run from its beginning to its verdict.
 *
 * It is safe to aim it at a service that is in use: all keys have a prefix of
 * their own, a lock keeps two runs from meeting, servers are touched only by a
 * hook that the user names, and in the end the run looks for what is left.
 */
#include "check.h"
#include "opts.h"
#include "torture.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(int code, const char *what, const char *why)
{
    fprintf(stderr, "holdfast-torture: %s%s%s\n", what, *why ? ": " : "", why);
    return code;
}

/* ---- the directory of a run -------------------------------------------- */

static bool dir_make(struct run *run)
{
    const char *base = getenv("TMPDIR");

    snprintf(run->dir, sizeof(run->dir), "%.200s/holdfast-torture.XXXXXX",
             base && *base ? base : "/tmp");
    return mkdtemp(run->dir) != NULL;
}

static void dir_remove(const char *dir)
{
    DIR *list = opendir(dir);
    struct dirent *entry;

    while (list && (entry = readdir(list)))
        if (entry->d_name[0] != '.')
            unlinkat(dirfd(list), entry->d_name, 0);
    if (list)
        closedir(list);
    rmdir(dir);
}

/* ---- a run -------------------------------------------------------------- */

static void traits_text(unsigned traits, char *ret, size_t size)
{
    snprintf(ret, size, "%s%s%s%s", traits & HF_TRAIT_FENCED ? "fenced," : "",
             traits & HF_TRAIT_QUEUED ? "queued," : "",
             traits & HF_TRAIT_TWICE ? "twice," : "",
             traits & HF_TRAIT_LEASED ? "leased" : "living");
}

static void run_begin(struct run *run, const struct opts *opts,
                      const struct hf_service *svc)
{
    char text[400], traits[100];

    traits_text(svc->traits, traits, sizeof(traits));
    snprintf(text, sizeof(text),
             "ttl=%lld turns=16 slack=%lld processes=%d threads=%d keys=%d "
             "traits=%s promise=%s seed=%llu scheme=%s",
             (long long)run->plan.ttl_ms, (long long)opts->slack_ms,
             run->plan.processes, run->plan.threads, run->plan.keys, traits,
             opts->by_fence ? "fence" : "exclusive",
             (unsigned long long)run->plan.seed, svc->scheme);
    run_log(run, W_begin, 0, 0, text);
}

/* Has every thread got two more locks since `before` was counted? */
static bool run_all_got(struct run *run,
                        int64_t before[MAX_PROCESSES + 1][MAX_THREADS])
{
    for (int p = 1; p <= run->plan.processes; p++)
        for (int t = 0; t < run->plan.threads; t++)
            if (atomic_load(&run->shared->grants[p][t]) < before[p][t] + 2)
                return false;
    return true;
}

/* The faults are over: wait until everyone has been granted, or should.  Returns
 * how many ms of this a busy machine has kept from us: what was slept too long.
 */
static int64_t run_calm(struct run *run, const struct opts *opts,
                        unsigned traits)
{
    static int64_t before[MAX_PROCESSES + 1][MAX_THREADS];
    int64_t limit = (traits & HF_TRAIT_TWICE ? 4 : 2) * run->plan.ttl_ms +
                    opts->slack_ms + 200;
    int64_t end = history_now() + limit * 1000, late = 0, from;

    for (int p = 0; p <= MAX_PROCESSES; p++)
        for (int t = 0; t < MAX_THREADS; t++)
            before[p][t] = atomic_load(&run->shared->grants[p][t]);
    run_log(run, W_calm, 0, 0, NULL);
    atomic_store(&run->shared->calm, true);
    run_sleep_ms(run->plan.ttl_ms / 4);
    while (history_now() < end + late && !run_all_got(run, before)) {
        from = history_now();
        run_sleep_ms(10);
        late += history_now() - from - 10000;
    }
    return late / 1000;
}

/* How many hold a key and how many wait for it; 0 if it cannot be told. */
static void run_look(hf_client *client, const char *key, int64_t *holders,
                     int64_t *places)
{
    struct hf_info info = HF_INFO_INIT;

    *holders = *places = 0;
    if (hf_inspect(client, key, &info, NULL))
        return;
    *holders = info.held ? info.holders : 0;
    *places = info.waiters > 0 ? info.waiters : 0;
}

/* What was lost on the way may be there for as long as its lease. */
static void run_leftovers(struct run *run, hf_client *client, int64_t limit_ms)
{
    int64_t end = history_now() + limit_ms * 1000, holders, places;
    char key[128];

    for (int i = 1; i <= run->plan.keys + 1; i++) { /* and that with permits */
        client_key(&run->plan, i, key, sizeof(key));
        run_look(client, key, &holders, &places);
        while (holders + places && history_now() < end) {
            run_sleep_ms(20);
            run_look(client, key, &holders, &places);
        }
        if (holders)
            run_log(run, W_left, i, holders, "holders");
        if (places)
            run_log(run, W_left, i, places, "places");
    }
}

/* Servers that were hurt need their time; the faults are over when the service
 * serves. */
static void run_until_ready(struct run *run, hf_client *client)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    int64_t end = history_now() + INT64_C(60000000);
    char key[128];
    hf_lock *lock;

    opts.ttl_ms = run->plan.ttl_ms;
    snprintf(key, sizeof(key), "%.60sready", run->plan.prefix);
    while (history_now() < end && !run_interrupted) {
        if (hf_acquire(client, key, 1000, &opts, &lock, NULL) == HF_OK) {
            hf_release(lock, NULL);
            return;
        }
        run_sleep_ms(50);
    }
}

static bool run_everything(struct run *run, const struct opts *opts,
                           hf_client *client, const struct hf_service *svc)
{
    int64_t twice = svc->traits & HF_TRAIT_TWICE ? 4 : 2;

    run_begin(run, opts, svc);
    for (int i = 1; i <= run->plan.processes; i++)
        if (!process_start(run, i))
            return false;
    run_sleep_ms(200);
    nemesis_run(run, history_now() + opts->duration_ms * 1000);
    run_until_ready(run, client);
    run_log(run, W_end, 0, run_calm(run, opts, svc->traits), NULL);
    atomic_store(&run->shared->stop, true);
    process_end(run, twice * run->plan.ttl_ms + 10000);
    run_leftovers(run, client, twice * run->plan.ttl_ms + opts->slack_ms);
    return true;
}

/* ---- beginning ---------------------------------------------------------- */

static void plan_fill(struct run *run, const struct opts *opts, unsigned traits)
{
    run->plan.ttl_ms = opts->ttl_ms;
    run->plan.trip_ms = opts->trip_ms;
    run->plan.keys = opts->keys;
    run->plan.traits = traits;
    run->plan.workloads = workload_possible(opts->workloads, traits);
    run->plan.processes = opts->processes;
    run->plan.threads = opts->threads;
    if (!(traits & HF_TRAIT_PROCESSES)) {
        run->plan.threads = opts->processes * opts->threads;
        run->plan.processes = 1;
        if (run->plan.threads > MAX_THREADS)
            run->plan.threads = MAX_THREADS;
    }
    run->plan.seed = opts->seed;
    run->chance = opts->seed * 2654435761u + 88172645463325252u;
    snprintf(run->plan.prefix, sizeof(run->plan.prefix), "%.60s", opts->prefix);
    snprintf(run->plan.url, sizeof(run->plan.url), "%s", opts->url);
    for (int i = 1; i <= MAX_PROCESSES; i++)
        snprintf(run->processes[i].url, sizeof(run->processes[i].url), "%s",
                 opts->url);
}

/* Find out which faults can be had; false if one was asked for by name that
 * cannot. */
static bool faults_fill(struct run *run, const struct opts *opts)
{
    char why[320] = "", names[512];
    uint64_t possible, missing;

    run->hook = opts->hook;
    run->shim = opts->shim && *opts->shim ? opts->shim : NULL;
    run->points = opts->points && *opts->points ? opts->points : NULL;
    if (run->hook && !hook_count(run)) {
        fail(78, "the hook does not say how many servers there are", run->hook);
        return false;
    }
    if ((opts->faults || opts->trip_ms) && !route_open(run, why, sizeof(why)) &&
        opts->trip_ms) {
        fail(78, "--trip", why);
        return false;
    }
    possible = fault_possible(run);
    run->faults = opts->faults & possible;
    missing = fault_missing(opts->faults, possible);
    if (!missing)
        return true;
    /* A verdict about a fault that never happened would be worth nothing. */
    fault_names(missing, names, sizeof(names));
    fprintf(stderr, "holdfast-torture: not possible here: %s%s%s\n", names,
            *why ? ": " : "", why);
    return !opts->faults_named;
}

/* Merge, keep or remove, judge; the exit status. */
static int run_judge(struct run *run, const struct opts *opts)
{
    char path[512], why[256];
    struct history h;
    struct verdict v;
    int code;

    if (opts->history)
        snprintf(path, sizeof(path), "%s", opts->history);
    else
        snprintf(path, sizeof(path), "%s/history", run->dir);
    if (!history_merge(run->dir, path))
        return fail(74, path, strerror(errno));
    if (!history_load(path, &h, why, sizeof(why)))
        return fail(74, "the history cannot be read", why);
    if (!check_history(&h, &v)) {
        history_free(&h);
        return fail(74, "the history cannot be judged", "");
    }
    check_print(&v, stdout);
    code = check_exit(&v);
    history_free(&h);
    if (code && !opts->history)
        printf("history: %s\n", path);
    else
        dir_remove(run->dir);
    return code;
}

/* With the service open and nobody else at it. */
static int torture_locked(struct run *run, const struct opts *opts,
                          hf_client *client, const struct hf_service *svc)
{
    char names[512];

    run->client = client;
    plan_fill(run, opts, svc->traits);
    if (!faults_fill(run, opts))
        return 78;
    if (!dir_make(run))
        return fail(74, run->dir, strerror(errno));
    run->shared = shared_new(run->dir, &run->plan);
    run->log = history_open(run->dir, 0, 0);
    if (!run->shared || run->log < 0)
        return fail(74, run->dir, strerror(errno));
    for (int i = 1; run->shim && i <= run->plan.processes; i++)
        wall_set(run, i, 0); /* the shim looks for it once */
    for (int i = 1; run->points && i <= run->plan.processes; i++)
        point_set(run, i, 0, 0);
    fault_names(run->faults, names, sizeof(names));
    printf("service     %s, seed %llu\nfaults      %s\n", svc->endpoint,
           (unsigned long long)run->plan.seed, names);
    fflush(stdout);
    if (!run_everything(run, opts, client, svc))
        return fail(71, "no process can be started", "");
    net_free(run->net);
    return run_judge(run, opts);
}

static int torture(const struct opts *opts)
{
    static struct run run;
    struct hf_service svc = {.size = sizeof(svc)};
    struct hf_lock_opts lock_opts = HF_LOCK_OPTS_INIT;
    hf_client *client;
    hf_lock *lock = NULL;
    struct hf_error err;
    char self[512], key[128];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
    int code;

    if (len < 0)
        return fail(71, "/proc/self/exe", strerror(errno));
    self[len] = '\0';
    run.self = self;
    run.verbose = opts->verbose;
    if (hf_open(opts->url, NULL, &client, &err) ||
        hf_describe(client, &svc, &err))
        return fail(69, err.text, "");
    snprintf(key, sizeof(key), "%.60srun", opts->prefix);
    lock_opts.ttl_ms = opts->ttl_ms;
    if (hf_acquire(client, key, 3 * opts->ttl_ms, &lock_opts, &lock, &err))
        code = fail(75, err.text, "is another run at it?");
    else
        code = torture_locked(&run, opts, client, &svc);
    hf_release(lock, NULL);
    hf_close(client);
    return code;
}

static int check_only(const char *path)
{
    struct history h;
    struct verdict v;
    char why[256];
    int code;

    if (!history_load(path, &h, why, sizeof(why)))
        return fail(74, "the history cannot be read", why);
    if (!check_history(&h, &v)) {
        history_free(&h);
        return fail(74, path, "has no line 'begin'");
    }
    check_print(&v, stdout);
    code = check_exit(&v);
    history_free(&h);
    return code;
}

static void interrupt(int signo)
{
    (void)signo;
    run_interrupted = 1;
}

int main(int argc, char **argv)
{
    struct opts opts;
    int code = opts_parse(argc, argv, &opts);

    signal(SIGPIPE, SIG_IGN);
    if (code >= 0)
        return code;
    if (opts.inside)
        return run_inside(opts.dir, opts.client, opts.inside, opts.url);
    if (opts.client)
        return client_main(opts.dir, opts.client, opts.url);
    if (opts.check)
        return check_only(opts.check);
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    return torture(&opts);
}
