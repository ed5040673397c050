/* SPDX-License-Identifier: MIT
 *
 * conf.c - the conformance program: `conformance URL [-l] [-v] [-pK/N] [NAME...]`.
 *
 * The traits are asked for once, in a process of its own, before the first
 * test: the tests themselves can then decide what applies before they open a
 * client, and fork while they have but one thread.
 */
#include "conf.h"

#include <poll.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* A call that takes no longer is one to a service that is near. */
enum { CONF_NEAR_MS = 10 };

unsigned conf_traits;
int64_t conf_trip_ms;
/* A sanitizer has enough to do with one. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
__attribute__((weak)) int conf_jobs = 1;
#else
__attribute__((weak)) int conf_jobs = 3;
#endif

static const char *conf_template;
static long conf_run; /* the same for all tests of a run */

static const char *const conf_trait_names[] = {
    "FENCED",    "LEASED", "QUEUED", "NOTIFY",    "SHARED",
    "REENTRANT", "DETACH", "BREAK",  "PROCESSES", "MACHINES",
    "DEATH",     "TWICE",  "NOTED",  "PERMITS",   "MIN_HOLD",
};

void conf_needs(unsigned traits)
{
    unsigned missing = traits & ~conf_traits;

    for (unsigned i = 0; missing; i++, missing >>= 1)
        if (missing & 1)
            T_SKIP_TRAIT(conf_trait_names[i]);
}

/* Whole seconds, since some services count so. */
int64_t conf_ms(int64_t ms)
{
    return ms + (8 * conf_trip_ms + 999) / 1000 * 1000;
}

int conf_times(int n, int least)
{
    if (!conf_trip_ms)
        return t_scaled(n, least);
    return n / 40 > 3 ? n / 40 : 3;
}

const char *conf_url(void)
{
    static _Thread_local char url[1024];
    const char *mark = strstr(conf_template, "%T");

    if (!mark)
        return conf_template;
    snprintf(url, sizeof(url), "%.*s%s%s", (int)(mark - conf_template),
             conf_template, t_tmpdir(), mark + 2);
    return url;
}

const char *conf_prefix(void)
{
    static _Thread_local char prefix[64];

    /* The test's process leads its group, and its children are in it. */
    snprintf(prefix, sizeof(prefix), "hf-test.%lx.%x.", (unsigned long)conf_run,
             (unsigned)getpgrp());
    return prefix;
}

const char *conf_key(const char *suffix)
{
    static char keys[64][128];
    static atomic_uint next;
    char *key = keys[atomic_fetch_add(&next, 1) % 64];

    snprintf(key, sizeof(keys[0]), "%s%s", conf_prefix(), suffix);
    return key;
}

hf_client *conf_open(void)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;

    if (getenv("HF_TEST_BACKGROUND"))
        opts.connect_ms = -1;
    CHECK_OK(hf_open(conf_url(), &opts, &client, &t_err));
    CHECK(client != NULL);
    return client;
}

struct hf_lock_opts conf_exact_opts(int64_t ttl_ms, unsigned flags)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    opts.flags = flags;
    return opts;
}

struct hf_lock_opts conf_opts(int64_t ttl_ms, unsigned flags)
{
    return conf_exact_opts(ttl_ms > 0 ? conf_ms(ttl_ms) : ttl_ms, flags);
}

static hf_lock *conf_acquire(hf_client *client, const char *key, int64_t wait,
                             const struct hf_lock_opts *opts)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, wait, opts, &lk, &t_err));
    CHECK(lk != NULL);
    return lk;
}

hf_lock *conf_lock(hf_client *client, const char *key,
                   const struct hf_lock_opts *opts)
{
    return conf_acquire(client, key, 30000, opts);
}

hf_lock *conf_try(hf_client *client, const char *key,
                  const struct hf_lock_opts *opts)
{
    return conf_acquire(client, key, 0, opts);
}

void conf_unlock(hf_lock *lk)
{
    CHECK_OK(hf_release(lk, &t_err));
}

struct hf_info conf_look(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info;
}

static bool conf_count_one(void *arg, const char *key,
                           const struct hf_info *info)
{
    (void)key;
    CHECK(info->held);
    ++*(int *)arg;
    return true;
}

int conf_count_listed(hf_client *client, const char *prefix)
{
    int n = 0;

    CHECK_OK(hf_list(client, prefix, conf_count_one, &n, &t_err));
    return n;
}

void conf_check_free(const char *key)
{
    hf_client *stranger = conf_open();
    struct hf_info info = conf_look(stranger, key);

    CHECK(!info.held);
    CHECK_EQ(info.holders, 0);
    CHECK_LE(info.waiters, 0);
    CHECK_EQ(conf_count_listed(stranger, key), 0);
    conf_unlock(conf_try(stranger, key, NULL));
    hf_close(stranger);
}

void conf_check_stands(hf_client *client, const hf_lock *lk)
{
    struct hf_info info;

    if (conf_traits & HF_TRAIT_FENCED) {
        CHECK_OK(hf_check(client, hf_key(lk), hf_fence(lk), &t_err));
        return;
    }
    info = conf_look(client, hf_key(lk));
    CHECK(info.held);
    CHECK_STR(info.owner, hf_token(lk));
}

void conf_check_busy(const char *key)
{
    hf_client *stranger = conf_open();
    hf_lock *lk = NULL;

    CHECK_STATUS(hf_acquire(stranger, key, 0, NULL, &lk, &t_err), HF_BUSY);
    CHECK(lk == NULL);
    hf_close(stranger);
}

static bool conf_count_waiter(void *arg, const struct hf_waiter *waiter)
{
    (void)waiter;
    ++*(int *)arg;
    return true;
}

/* Where nobody counts those who wait, some may be listed all the same; but not
 * all, so they are not waited for in vain. */
void conf_await_waiters(hf_client *client, const char *key, int n)
{
    int64_t end = t_now_ms() + conf_ms(2000);
    int found = 0;

    if (conf_look(client, key).waiters >= 0) {
        t_poll_until(conf_look(client, key).waiters >= n, 20000);
        return;
    }
    t_sleep_ms(conf_ms(100));
    for (; found < n && t_now_ms() < end; t_sleep_ms(10)) {
        found = 0;
        if (hf_waiters(client, key, conf_count_waiter, &found, NULL))
            break;
    }
}

bool conf_readable(int fd, int64_t ms)
{
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    int n;

    CHECK_GE(fd, 0);
    do
        n = poll(&pfd, 1, (int)ms);
    while (n < 0);
    return n == 1 && (pfd.revents & POLLIN);
}

struct hf_event conf_event(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    CHECK(conf_readable(hf_events_fd(client), 30000));
    CHECK(hf_next_event(client, &event));
    return event;
}

void conf_no_event(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    CHECK(!hf_next_event(client, &event));
    CHECK(!conf_readable(hf_events_fd(client), 0));
}

struct hf_event conf_gone(hf_client *client)
{
    struct hf_event event = conf_event(client);

    if (event.type == HF_AT_RISK)
        event = conf_event(client);
    CHECK_EQ(event.type, HF_GONE);
    CHECK(!hf_held(event.lock));
    return event;
}

pthread_t conf_thread(void *(*fn)(void *), void *arg)
{
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, fn, arg), 0);
    return thread;
}

static void *conf_waiter_run(void *arg)
{
    struct conf_waiter *w = arg;

    w->began = t_now_ms();
    atomic_store(&w->begun, true);
    w->status =
        hf_acquire(w->client, w->key, w->wait_ms, w->opts, &w->lk, &w->err);
    w->ended = t_now_ms();
    atomic_store(&w->done, true);
    return NULL;
}

void conf_waiter_start(struct conf_waiter *w, hf_client *client,
                       const char *key, int64_t wait_ms,
                       const struct hf_lock_opts *opts)
{
    memset(w, 0, sizeof(*w));
    w->client = client;
    w->key = key;
    w->wait_ms = wait_ms;
    w->opts = opts;
    w->thread = conf_thread(conf_waiter_run, w);
    t_poll_until(atomic_load(&w->begun), 60000);
}

void conf_waiter_join(struct conf_waiter *w, hf_status want)
{
    CHECK_EQ(pthread_join(w->thread, NULL), 0);
    t_err = w->err;
    t_check_status(__FILE__, __LINE__, "a waiter's hf_acquire(..., &t_err)",
                   w->status, want);
    CHECK((want == HF_OK) == (w->lk != NULL));
}

/* What the fastest of some calls takes. */
static int64_t conf_measure_trip(hf_client *client)
{
    int64_t best = INT64_MAX;

    for (int i = 0; i < 9; i++) {
        int64_t began = t_now_ms();

        conf_look(client, "hf-test.trip");
        if (t_now_ms() - began < best)
            best = t_now_ms() - began;
    }
    return best < CONF_NEAR_MS ? 0 : best;
}

/* Ask for the traits in a child, so that this process stays without threads. */
static void conf_ask_traits(struct t_peer *up, void *arg)
{
    struct hf_service about = {.size = sizeof(about)};
    char dir[] = "/tmp/hf-test.XXXXXX";
    const char *mark = strstr(conf_template, "%T");
    hf_client *client;
    int64_t trip_ms;
    char url[1024];

    (void)arg;
    CHECK(mkdtemp(dir) != NULL);
    snprintf(url, sizeof(url), "%s", conf_template);
    if (mark)
        snprintf(url, sizeof(url), "%.*s%s%s", (int)(mark - conf_template),
                 conf_template, dir, mark + 2);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_OK(hf_describe(client, &about, &t_err));
    trip_ms = conf_measure_trip(client);
    hf_close(client);
    snprintf(url, sizeof(url), "rm -rf '%s'", dir);
    CHECK_EQ(system(url), 0);
    printf("# %s, traits 0x%x, a call takes %lld ms, %s\n", about.endpoint,
           about.traits, (long long)trip_ms,
           about.warning[0] ? about.warning : "no warning");
    fflush(stdout);
    t_tell(up, about.traits);
    t_tell(up, trip_ms);
}

int main(int argc, char **argv)
{
    bool list = argc > 1 && strcmp(argv[1], "-l") == 0;
    struct t_peer child;
    char jobs[12];

    conf_template = getenv("HF_TEST_URL");
    if (argc > 1 && !list) {
        conf_template = argv[1];
        argc--;
        argv++;
    }
    if (!list && !conf_template) {
        fprintf(stderr, "usage: conformance URL [-l] [-v] [-pK/N] [NAME...]\n");
        return 64;
    }
    if (!list) {
        conf_run = (long)(t_now_ms() ^ getpid());
        child = t_fork(conf_ask_traits, NULL);
        conf_traits = (unsigned)t_hear(&child);
        conf_trip_ms = t_hear(&child);
        t_join(&child);
    }
    snprintf(jobs, sizeof(jobs), "%d", conf_jobs);
    setenv("HF_TEST_JOBS", jobs, 0);
    return t_main(argc, argv);
}
