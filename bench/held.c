/* SPDX-License-Identifier: MIT
 *
 * held.c - what it costs to hold 100,000 locks.
 *
 * QUESTION  One client holds 100,000 locks of a simulated service with a ttl of
 *   30 s: every renewal comes in time, the keeper takes at most 10 % of one
 *   core, and a lock costs at most 512 bytes.
 *
 * THE SERVICE is a backend in this program.  It believes nothing: it keeps for
 *   each lock when its lease ends, in memory that is mapped and so is not
 *   counted, and answers a late renewal with HF_LOST.  A call takes a
 *   millisecond, as over a network, but its own processor time is measured and
 *   taken off.
 *
 * BYTES are what the allocator has given out more than before, by mallinfo2(),
 *   for everything: handle, hold, key, table and heap.  The keys have 24 bytes.
 *   What the system sees, the resident set, is told beside it.
 */
#include "bench.h"
#include "core.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LOCKS      100000
#define SERVICE_NS 1000000

/* ---- the service ------------------------------------------------------- */

static struct {
    int64_t *lease_end; /* of each lock */
    uint64_t fence;
    _Atomic long renewals, calls, refused;
    _Atomic int64_t cpu_ns;     /* spent in renew() */
    _Atomic int64_t closest_ms; /* the least that was left at a renewal */
} service;

static int64_t cpu_now(clockid_t clock)
{
    struct timespec ts;

    clock_gettime(clock, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static hf_status service_open(struct hfi_conn *conn, const struct hfi_url *url,
                              int64_t deadline, struct hf_error *err)
{
    (void)url;
    (void)deadline;
    (void)err;
    snprintf(conn->endpoint, sizeof(conn->endpoint), "simulated");
    return HF_OK;
}

static void service_close(struct hfi_conn *conn)
{
    (void)conn;
}

/* The number of a lock is in its key. */
static int64_t *service_find(const struct hfi_claim *claim)
{
    return &service.lease_end[strtol(strrchr(claim->key, '/') + 1, NULL, 10)];
}

static hf_status service_try(struct hfi_conn *conn,
                             const struct hfi_claim *claim,
                             struct hfi_grant *grant, struct hfi_busy *busy,
                             int64_t deadline, struct hf_error *err)
{
    (void)conn;
    (void)busy;
    (void)deadline;
    (void)err;
    *service_find(claim) = hfi_now() + claim->ttl_ms;
    grant->fence = ++service.fence;
    grant->placed = true;
    return HF_OK;
}

static void service_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                          size_t n, int64_t deadline, struct hf_error *err)
{
    const struct timespec trip = {0, SERVICE_NS};
    int64_t begin = cpu_now(CLOCK_THREAD_CPUTIME_ID), now, *end;
    size_t i;

    (void)conn;
    (void)deadline;
    (void)err;
    nanosleep(&trip, NULL);
    now = hfi_now();
    for (i = 0; i < n; i++) {
        end = service_find(items[i].claim);
        if (*end - now < service.closest_ms)
            service.closest_ms = *end - now;
        items[i].st = now < *end ? HF_OK : HF_LOST;
        if (items[i].st)
            service.refused++;
        else
            *end = now + items[i].ttl_ms;
    }
    service.renewals += (long)n;
    service.calls++;
    service.cpu_ns += cpu_now(CLOCK_THREAD_CPUTIME_ID) - begin;
}

static hf_status service_release(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_grant *grant, int64_t deadline,
                                 struct hf_error *err)
{
    (void)conn;
    (void)deadline;
    (void)err;
    *service_find(claim) = 0;
    grant->placed = false;
    return HF_OK;
}

static const char *const service_schemes[] = {"simulated", NULL};

static const struct hfi_backend service_backend = {
    .schemes = service_schemes,
    .conn_size = sizeof(struct hfi_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED,
    .open = service_open,
    .close = service_close,
    .try_acquire = service_try,
    .renew = service_renew,
    .release = service_release,
};

/* ---- the measurement --------------------------------------------------- */

static void *mapped(size_t size)
{
    void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (mem == MAP_FAILED)
        bench_die_errno("mmap");
    return mem;
}

static double allocated(void)
{
    struct mallinfo2 info = mallinfo2();

    return (double)info.uordblks + (double)info.hblkhd;
}

static double resident(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    long pages = 0;

    if (!file || fscanf(file, "%*s %ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void take_all(hf_client *client, hf_lock **locks, int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_error err;
    char key[64];
    int i;

    opts.ttl_ms = ttl_ms;
    for (i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof(key), "tenant-4711/order/%06d", i);
        if (hf_acquire(client, key, 0, &opts, &locks[i], &err))
            bench_die("%s", err.text);
    }
}

static hf_client *open_client(void)
{
    struct hfi_url url;
    struct hf_error err;
    hf_client *client;

    if (hfi_url_parse(&url, "simulated:", &err) ||
        hfi_open_with(&service_backend, &url, NULL, &client, &err))
        bench_die("%s", err.text);
    hfi_url_fini(&url);
    return client;
}

/* Two renewals and a half of each lock, while this thread sleeps. */
static void watch_keeper(int64_t ttl_ms)
{
    static const struct bench_goal goal = {BENCH_AT_MOST, 10};
    int64_t cpu, wall = bench_now();
    double share;

    service.renewals = service.calls = 0;
    service.cpu_ns = 0;
    cpu = cpu_now(CLOCK_PROCESS_CPUTIME_ID);
    usleep((useconds_t)(ttl_ms * 1000 / 6 * 5));
    cpu = cpu_now(CLOCK_PROCESS_CPUTIME_ID) - cpu - service.cpu_ns;
    wall = bench_now() - wall;
    share = (double)cpu * 100 / (double)wall;
    bench_value("renewals of each lock", (double)service.renewals / LOCKS,
                "times", NULL);
    bench_value("renewals in one call",
                (double)service.renewals / (double)service.calls, "locks",
                NULL);
    bench_value("keeper and renewer, each renewal",
                (double)cpu / (double)service.renewals, "ns", NULL);
    bench_value("the service itself, each renewal",
                (double)service.cpu_ns / (double)service.renewals, "ns", NULL);
    bench_value("keeper and renewer", share, "% of one core", &goal);
}

static void count_lost(hf_lock **locks, int64_t ttl_ms)
{
    static const struct bench_goal goal = {BENCH_AT_MOST, 0};
    long lost = 0;
    int i;

    for (i = 0; i < LOCKS; i++)
        lost += !hf_held(locks[i]);
    bench_value("least of the lease left at a renewal",
                (double)service.closest_ms * 100 / (double)ttl_ms, "%", NULL);
    bench_value("locks lost or refused", (double)(lost + service.refused),
                "of 100000", &goal);
}

int main(void)
{
    static const struct bench_goal goal = {BENCH_AT_MOST, 512};
    int64_t ttl_ms = bench_quick() ? 6000 : 30000, begin;
    hf_lock **locks = mapped(LOCKS * sizeof(*locks));
    double bytes, rss;
    hf_client *client;
    int i;

    bench_begin("held", "100,000 held locks on a simulated service");
    service.lease_end = mapped(LOCKS * sizeof(*service.lease_end));
    service.closest_ms = ttl_ms;
    client = open_client();
    bytes = allocated();
    rss = resident();
    begin = bench_now();
    take_all(client, locks, ttl_ms);
    bench_value("acquire", (double)(bench_now() - begin) / LOCKS, "ns", NULL);
    bytes = (allocated() - bytes) / LOCKS;
    rss = (resident() - rss) / LOCKS;
    bench_value("resident set", rss, "bytes a lock", NULL);
    if (bytes > 0)
        bench_value("memory", bytes, "bytes a lock", &goal);
    else
        bench_note("memory not counted: another allocator is in place");
    watch_keeper(ttl_ms);
    count_lost(locks, ttl_ms);
    begin = bench_now();
    for (i = 0; i < LOCKS; i++)
        if (hf_release(locks[i], NULL))
            bench_die("a lock was lost");
    bench_value("release", (double)(bench_now() - begin) / LOCKS, "ns", NULL);
    hf_close(client);
    return 0;
}
