/* SPDX-License-Identifier: MIT
 *
 * zk.c - the plain ZooKeeper library as a candidate.
 *
 * A pair creates an ephemeral sequential node and deletes it, without looking
 * whether it is the first: two writes, asynchronous calls that are waited for.
 * All threads share a session.  The library has no way to wait for a lock.
 */
#include "cand.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zookeeper/zookeeper.h>

static zhandle_t *zh;

struct conn {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    bool done, made;
    int rc;
    char path[256];
};

static void nothing(zhandle_t *handle, int type, int state, const char *path,
                    void *ctx)
{
    (void)handle, (void)type, (void)state, (void)path, (void)ctx;
}

static void *conn_open(void)
{
    struct conn *conn = bench_alloc(sizeof(*conn));

    pthread_mutex_init(&conn->mu, NULL);
    pthread_cond_init(&conn->cond, NULL);
    if (zh)
        return conn;
    zoo_set_debug_level(ZOO_LOG_LEVEL_ERROR);
    zh = zookeeper_init(getenv("HF_ZK_HOSTS"), nothing, 20000, NULL, NULL, 0);
    while (zh && zoo_state(zh) != ZOO_CONNECTED_STATE)
        usleep(1000);
    if (!zh)
        bench_die("no connection");
    zoo_create(zh, "/raw", "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
    return conn;
}

static void answered(struct conn *conn, int rc)
{
    pthread_mutex_lock(&conn->mu);
    conn->rc = rc;
    conn->done = true;
    pthread_cond_signal(&conn->cond);
    pthread_mutex_unlock(&conn->mu);
}

static void on_created(int rc, const char *path, const void *data)
{
    struct conn *conn = (struct conn *)(uintptr_t)data;

    if (!rc)
        snprintf(conn->path, sizeof(conn->path), "%s", path);
    answered(conn, rc);
}

static void on_deleted(int rc, const void *data)
{
    answered((struct conn *)(uintptr_t)data, rc);
}

static void finish(struct conn *conn)
{
    pthread_mutex_lock(&conn->mu);
    while (!conn->done)
        pthread_cond_wait(&conn->cond, &conn->mu);
    conn->done = false;
    pthread_mutex_unlock(&conn->mu);
    if (conn->rc)
        bench_die("%s", zerror(conn->rc));
}

static void take(void *arg, const char *key)
{
    struct conn *conn = arg;
    char path[300], data[128];

    memset(data, 'x', sizeof(data)); /* about what holdfast writes there */
    snprintf(path, sizeof(path), "/raw/%s", key);
    if (!conn->made)
        zoo_create(zh, path, "", 0, &ZOO_OPEN_ACL_UNSAFE, 0, NULL, 0);
    conn->made = true;
    snprintf(path, sizeof(path), "/raw/%s/lock-", key);
    zoo_acreate(zh, path, data, sizeof(data), &ZOO_OPEN_ACL_UNSAFE,
                ZOO_EPHEMERAL_SEQUENTIAL, on_created, conn);
    finish(conn);
}

static void give(void *arg, const char *key)
{
    struct conn *conn = arg;

    (void)key;
    zoo_adelete(zh, conn->path, -1, on_deleted, conn);
    finish(conn);
}

int main(void)
{
    static const struct cand_kind kind = {
        .name = "zk",
        .open = conn_open,
        .close = free,
        .take = take,
        .give = give,
    };

    return cand_main(&kind);
}
