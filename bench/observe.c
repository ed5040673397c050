/* SPDX-License-Identifier: MIT
 *
 * observe.c - what observers cost, and how soon they know.
 *
 *     test/servers/etcd build/bench/bench-observe
 *
 * QUESTION  A leadership passes from one client to another that waits for it.
 *   How long after the release is an observer told of the new leader, beside
 *   the waiter itself, which has its lock?  What does a change cost, here and in
 *   the server, with 1,000 observers in one client and in 1,000 clients?  And
 *   how does the service's own watch do (native/)?
 *
 * Two clients of $HF_TEST_URL pass the lock to and fro, and others observe.  The
 * clock starts before the release, and stops when the waiter has the lock, or
 * when every observer has been told of it.  Processor time here is that of this
 * process, so that of the two is in it: "nobody observes" says how much.  All
 * ways take turns in one run.
 */
#include "bench.h"

#include "native/native.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "holdfast.h"

#define KEY    "bench-leader"
#define MANY   1000
#define OPS    10
#define ROUNDS 5
#define WAYS   7

/* One of the two that lead. */
struct leader {
    hf_client *client;
    hf_lock *lock;
    int64_t granted_at;
    pthread_t thread;
};

/* Who observes: so many in so many clients, ours or native ones. */
struct way {
    const char *name;
    bool native;
    int clients, each;
    double client_us, server_us; /* of the last round, for each change */
};

/* Those of one round. */
struct watching {
    const struct way *way;
    hf_client **clients;
    hf_observer **observers;
    struct native *native;
    int epoll;
};

static struct leader leaders[2];
static const char *url;
static const struct native_kind *native;

static hf_client *client_open(void)
{
    struct hf_error err;
    hf_client *client;

    if (hf_open(url, NULL, &client, &err))
        bench_die("%s", err.text);
    return client;
}

static void *lead(void *arg)
{
    struct leader *me = arg;
    struct hf_error err;

    if (hf_acquire(me->client, KEY, -1, NULL, &me->lock, &err))
        bench_die("%s", err.text);
    me->granted_at = bench_now();
    return NULL;
}

/* Until the next in line waits in the service. */
static void await_waiter(hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;
    struct timespec pause = {0, 3000000};

    do
        nanosleep(&pause, NULL);
    while (!hf_inspect(client, KEY, &info, NULL) && info.waiters == 0);
}

/* ---- our own observers ------------------------------------------------- */

static void observe_in(struct watching *all, int i)
{
    int each = all->way->each;
    hf_client *client = client_open();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
    struct hf_error err;

    all->clients[i] = client;
    if (epoll_ctl(all->epoll, EPOLL_CTL_ADD, hf_events_fd(client), &event))
        bench_die_errno("epoll_ctl");
    for (int j = 0; j < each; j++)
        if (hf_observe_start(client, KEY, 0, NULL,
                             &all->observers[i * each + j], &err))
            bench_die("%s", err.text);
}

/* Until all of ours have been told of this fence. */
static void await_told(struct watching *all, uint64_t fence)
{
    struct epoll_event events[64];
    struct hf_event event = HF_EVENT_INIT;
    struct hf_change change = HF_CHANGE_INIT;
    int told = 0;

    while (told < all->way->clients * all->way->each)
        for (int n = epoll_wait(all->epoll, events, 64, -1); n > 0; n--)
            while (hf_next_event(events[n - 1].data.ptr, &event))
                while (hf_observer_next(event.observer, &change))
                    told += change.info.held && change.info.fence == fence;
}

static void watching_begin(struct watching *all, const struct way *way,
                           uint64_t fence)
{
    size_t n = (size_t)way->clients;

    *all = (struct watching){.way = way};
    if (!n)
        return;
    if (way->native) {
        all->native = native_open(native, KEY, way->clients, way->each);
        return;
    }
    all->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (all->epoll < 0)
        bench_die_errno("epoll");
    all->clients = bench_alloc(n * sizeof(*all->clients));
    all->observers =
        bench_alloc(n * (size_t)way->each * sizeof(*all->observers));
    for (int i = 0; i < way->clients; i++)
        observe_in(all, i);
    await_told(all, fence);
}

static void watching_end(struct watching *all)
{
    if (all->native)
        native_close(all->native);
    if (!all->clients)
        return;
    for (int i = 0; i < all->way->clients * all->way->each; i++)
        hf_observe_stop(all->observers[i]);
    for (int i = 0; i < all->way->clients; i++)
        hf_close(all->clients[i]);
    close(all->epoll);
    free(all->clients);
    free(all->observers);
}

/* ---- changes ----------------------------------------------------------- */

/* One passing on: us from the release until all know, the waiter included. */
static double pass_on(struct watching *all, int turn)
{
    struct leader *old = &leaders[turn % 2], *next = &leaders[(turn + 1) % 2];
    int64_t began, told;

    if (pthread_create(&next->thread, NULL, lead, next))
        bench_die("no thread");
    await_waiter(old->client);
    began = bench_now();
    hf_release(old->lock, NULL);
    pthread_join(next->thread, NULL);
    told = next->granted_at;
    if (all->native) {
        told = native_await(all->native);
    } else if (all->clients) {
        await_told(all, hf_fence(next->lock));
        told = bench_now();
    }
    return (double)(told - began) / 1000;
}

static double round_of(struct bench_case *one)
{
    struct way *way = one->arg;
    struct watching all;
    double us[OPS], cpu, server;

    lead(&leaders[0]);
    watching_begin(&all, way, hf_fence(leaders[0].lock));
    cpu = bench_cpu_us();
    server = bench_server_us();
    for (int i = 0; i < OPS; i++)
        us[i] = pass_on(&all, i);
    way->client_us = (bench_cpu_us() - cpu) / OPS;
    way->server_us = (bench_server_us() - server) / OPS;
    watching_end(&all);
    hf_release(leaders[0].lock, NULL);
    return bench_quantile(us, OPS, 0.5);
}

static struct bench_case cpus[2][WAYS]; /* of the clients, of the server */

/* A round whose processor time is kept beside it; the first is a warm-up. */
static double measure(struct bench_case *one)
{
    struct way *way = one->arg;
    double us = round_of(one);
    struct bench_case *twin[2] = {&cpus[0][one->ops], &cpus[1][one->ops]};

    twin[0]->name = twin[1]->name = one->name;
    for (int i = 0; i < 2; i++) {
        double figure = i ? way->server_us : way->client_us;

        if (twin[i]->ops++)
            twin[i]->samples[twin[i]->ops - 2] = figure;
        else
            twin[i]->samples =
                bench_alloc((size_t)bench_rounds(ROUNDS) * sizeof(double));
    }
    return us;
}

/* Ours beside the native one of the same size, where there is one. */
static void tell_ratios(const struct bench_case *cases,
                        const struct way *const *ways, int n)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (!ways[i]->native && ways[j]->native &&
                ways[i]->clients == ways[j]->clients &&
                ways[i]->each == ways[j]->each)
                bench_ratio(&cases[i], &cases[j], NULL);
}

static void compare(void)
{
    static struct way every[WAYS] = {
        {"nobody observes", false, 0, 0, 0, 0},
        {"one observer", false, 1, 1, 0, 0},
        {"one native watch", true, 1, 1, 0, 0},
        {"1,000 observers, one client", false, 1, MANY, 0, 0},
        {"1,000 native watches, one client", true, 1, MANY, 0, 0},
        {"1,000 clients", false, MANY, 1, 0, 0},
        {"1,000 native clients", true, MANY, 1, 0, 0}};
    struct bench_case times[WAYS] = {{0}};
    const struct way *ways[WAYS];
    int i, n = 0, rounds = bench_rounds(ROUNDS);

    for (i = 0; i < WAYS; i++) {
        if (every[i].native &&
            (!native || (every[i].each > 1 && !native->together)))
            continue;
        times[n] = (struct bench_case){
            .name = every[i].name, .run = measure, .arg = &every[i], .ops = n};
        ways[n++] = &every[i];
    }
    bench_begin("observe", "From a release to the news of the new leader");
    if (native)
        bench_note("native: %s", native->name);
    bench_run(times, (size_t)n, rounds, "us");
    tell_ratios(times, ways, n);
    bench_begin("observe-client", "Processor time here for a change");
    bench_tell(cpus[0], (size_t)n, rounds, "us");
    tell_ratios(cpus[0], ways, n);
    bench_begin("observe-server", "Processor time of the server for a change");
    bench_tell(cpus[1], (size_t)n, rounds, "us");
    tell_ratios(cpus[1], ways, n);
}

/* A thousand clients have a few descriptors each. */
static void raise_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit))
        bench_die_errno("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        bench_die_errno("setrlimit");
}

int main(void)
{
    url = getenv("HF_TEST_URL");
    if (!url)
        bench_die("no service: run me through test/servers");
    native = native_find(url);
    raise_limit();
    leaders[0].client = client_open();
    leaders[1].client = client_open();
    compare();
    hf_close(leaders[0].client);
    hf_close(leaders[1].client);
    return 0;
}
