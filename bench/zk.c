/* SPDX-License-Identifier: MIT
 *
 * zk.c - how often a lock can be taken on ZooKeeper, by the plain library and
 * by holdfast: `bench-zk raw|pairs|keys|contend MS [N]`.
 *
 *   raw      create an ephemeral sequential node, delete it, in one thread that
 *            sends, polls and reads, and does nothing else
 *   pairs    hf_acquire(), hf_release(), one thread
 *   keys     N threads on N keys, one client
 *   contend  N clients on one key
 *
 * Prints how many pairs there were.  bench/zk puts it beside the peers.
 */
#include "holdfast.h"

#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zookeeper/zookeeper.h>

static int64_t now_us(void)
{
    struct timespec at;

    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec * INT64_C(1000000) + at.tv_nsec / 1000;
}

static void die(const char *what)
{
    fprintf(stderr, "bench-zk: %s\n", what);
    exit(1);
}

/* ---- the plain library ------------------------------------------------- */

struct answer {
    int done, rc;
    char path[256];
};

static void nothing(zhandle_t *zh, int type, int state, const char *path,
                    void *ctx)
{
    (void)zh, (void)type, (void)state, (void)path, (void)ctx;
}

static void on_created(int rc, const char *path, const void *data)
{
    struct answer *a = (struct answer *)(uintptr_t)data;

    if (!rc)
        snprintf(a->path, sizeof(a->path), "%s", path);
    a->rc = rc;
    a->done = 1;
}

static void on_deleted(int rc, const void *data)
{
    struct answer *a = (struct answer *)(uintptr_t)data;

    a->rc = rc;
    a->done = 1;
}

/* Wait for something and take it in. */
static void turn(zhandle_t *zh)
{
    struct timeval tv = {0, 0};
    struct pollfd pfd = {.fd = -1};
    int interest = 0;

    zookeeper_interest(zh, &pfd.fd, &interest, &tv);
    pfd.events = (short)((interest & ZOOKEEPER_READ ? POLLIN : 0) |
                         (interest & ZOOKEEPER_WRITE ? POLLOUT : 0));
    poll(&pfd, 1, (int)(tv.tv_sec * 1000 + tv.tv_usec / 1000 + 1));
    zookeeper_process(zh, (pfd.revents & ~POLLOUT ? ZOOKEEPER_READ : 0) |
                              (pfd.revents & POLLOUT ? ZOOKEEPER_WRITE : 0));
}

static void await(zhandle_t *zh, struct answer *a)
{
    while (!a->done)
        turn(zh);
    a->done = 0;
    if (a->rc && a->rc != ZNODEEXISTS)
        die(zerror(a->rc));
}

static zhandle_t *connect_raw(struct answer *a)
{
    zhandle_t *zh;

    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    zh = zookeeper_init(getenv("HF_ZK_HOSTS"), nothing, 20000, NULL, NULL, 0);
    if (!zh)
        die("no connection");
    zoo_set_servers_resolution_delay(zh, -1);
    while (zoo_state(zh) != ZOO_CONNECTED_STATE)
        turn(zh);
    zoo_acreate(zh, "/raw", "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, on_created, a);
    await(zh, a);
    return zh;
}

static long raw(int64_t end)
{
    struct answer a = {0};
    zhandle_t *zh = connect_raw(&a);
    char data[128];
    long n;

    memset(data, 'x', sizeof(data));
    end += now_us();
    for (n = 0; now_us() < end; n++) {
        zoo_acreate(zh, "/raw/lock-", data, sizeof(data), &ZOO_OPEN_ACL_UNSAFE,
                    ZOO_EPHEMERAL_SEQUENTIAL, on_created, &a);
        await(zh, &a);
        zoo_adelete(zh, a.path, -1, on_deleted, &a);
        await(zh, &a);
    }
    zookeeper_close(zh);
    return n;
}

/* ---- holdfast ---------------------------------------------------------- */

struct runner {
    pthread_t thread;
    hf_client *client;
    char key[32];
    int64_t end;
    long n;
};

static hf_client *open_client(void)
{
    hf_client *client;
    struct hf_error err;

    if (hf_open(getenv("HF_TEST_URL"), NULL, &client, &err))
        die(err.text);
    return client;
}

static void *run(void *arg)
{
    struct runner *r = arg;
    struct hf_error err;
    hf_lock *lk;

    for (r->n = 0; now_us() < r->end; r->n++)
        if (hf_acquire(r->client, r->key, -1, NULL, &lk, &err) ||
            hf_release(lk, &err))
            die(err.text);
    return NULL;
}

/* n threads; each with a client and one key, or one client and a key each. */
static long crowd(int64_t us, int n, int contend)
{
    struct runner *runners = calloc((size_t)n, sizeof(*runners));
    hf_client *shared = contend ? NULL : open_client();
    long sum = 0;

    for (int i = 0; i < n; i++) {
        runners[i].client = contend ? open_client() : shared;
        snprintf(runners[i].key, sizeof(runners[i].key), "bench-%d",
                 contend ? 0 : i);
    }
    for (int i = 0; i < n; i++) {
        runners[i].end = now_us() + us;
        pthread_create(&runners[i].thread, NULL, run, &runners[i]);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(runners[i].thread, NULL);
        sum += runners[i].n;
        if (contend)
            hf_close(runners[i].client);
    }
    if (shared)
        hf_close(shared);
    free(runners);
    return sum;
}

int main(int argc, char **argv)
{
    int64_t us = argc > 2 ? strtol(argv[2], NULL, 10) * 1000 : 0;
    int n = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 1;
    long pairs = -1;

    if (argc > 2 && !strcmp(argv[1], "raw"))
        pairs = raw(us);
    else if (argc > 2 && !strcmp(argv[1], "pairs"))
        pairs = crowd(us, 1, 0);
    else if (argc > 2 && !strcmp(argv[1], "keys"))
        pairs = crowd(us, n, 0);
    else if (argc > 2 && !strcmp(argv[1], "contend"))
        pairs = crowd(us, n, 1);
    if (pairs < 0)
        die("usage: bench-zk raw|pairs|keys|contend MS [N]");
    printf("%ld\n", pairs);
    return 0;
}
