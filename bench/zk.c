/* SPDX-License-Identifier: MIT
 *
 * zk.c - how often a lock can be taken on ZooKeeper, by the plain library and
 * by holdfast: `bench-zk raw|sync|pairs|keys|contend MS [N]`.
 *
 *   raw      create an ephemeral sequential node, delete it; asynchronous
 *            calls, each waited for
 *   sync     the same with the library's synchronous calls
 *   pairs    hf_acquire(), hf_release(), one thread
 *   keys     N threads on N keys, one client
 *   contend  N clients on one key
 *
 * Prints how many pairs there were.  bench/zk puts it beside the peers.
 */
#include "holdfast.h"

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
    pthread_mutex_t mu;
    pthread_cond_t cond;
    int done, rc;
    char path[256];
};

static void nothing(zhandle_t *zh, int type, int state, const char *path,
                    void *ctx)
{
    (void)zh, (void)type, (void)state, (void)path, (void)ctx;
}

static void answered(struct answer *a, int rc)
{
    pthread_mutex_lock(&a->mu);
    a->rc = rc;
    a->done = 1;
    pthread_cond_signal(&a->cond);
    pthread_mutex_unlock(&a->mu);
}

static void on_created(int rc, const char *path, const void *data)
{
    struct answer *a = (struct answer *)(uintptr_t)data;

    if (!rc)
        snprintf(a->path, sizeof(a->path), "%s", path);
    answered(a, rc);
}

static void on_deleted(int rc, const void *data)
{
    answered((struct answer *)(uintptr_t)data, rc);
}

static void await(struct answer *a)
{
    pthread_mutex_lock(&a->mu);
    while (!a->done)
        pthread_cond_wait(&a->cond, &a->mu);
    a->done = 0;
    pthread_mutex_unlock(&a->mu);
    if (a->rc)
        die(zerror(a->rc));
}

static zhandle_t *connect_raw(void)
{
    zhandle_t *zh;

    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    zh = zookeeper_init(getenv("HF_ZK_HOSTS"), nothing, 20000, NULL, NULL, 0);
    while (zh && zoo_state(zh) != ZOO_CONNECTED_STATE)
        ;
    if (!zh)
        die("no connection");
    zoo_create(zh, "/raw", "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
    return zh;
}

static long raw(int64_t end, int sync)
{
    struct answer a = {.mu = PTHREAD_MUTEX_INITIALIZER,
                       .cond = PTHREAD_COND_INITIALIZER};
    zhandle_t *zh = connect_raw();
    char data[128];
    long n;

    memset(data, 'x', sizeof(data));
    end += now_us();
    for (n = 0; now_us() < end; n++) {
        if (sync) {
            zoo_create(zh, "/raw/lock-", data, sizeof(data),
                       &ZOO_OPEN_ACL_UNSAFE, ZOO_EPHEMERAL_SEQUENTIAL, a.path,
                       sizeof(a.path));
            zoo_delete(zh, a.path, -1);
            continue;
        }
        zoo_acreate(zh, "/raw/lock-", data, sizeof(data), &ZOO_OPEN_ACL_UNSAFE,
                    ZOO_EPHEMERAL_SEQUENTIAL, on_created, &a);
        await(&a);
        zoo_adelete(zh, a.path, -1, on_deleted, &a);
        await(&a);
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
        pairs = raw(us, 0);
    else if (argc > 2 && !strcmp(argv[1], "sync"))
        pairs = raw(us, 1);
    else if (argc > 2 && !strcmp(argv[1], "pairs"))
        pairs = crowd(us, 1, 0);
    else if (argc > 2 && !strcmp(argv[1], "keys"))
        pairs = crowd(us, n, 0);
    else if (argc > 2 && !strcmp(argv[1], "contend"))
        pairs = crowd(us, n, 1);
    if (pairs < 0)
        die("usage: bench-zk raw|sync|pairs|keys|contend MS [N]");
    printf("%ld\n", pairs);
    return 0;
}
