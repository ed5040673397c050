/* SPDX-License-Identifier: MIT
 *
 * zk.c - the plain ZooKeeper library as a candidate.
 *
 * A pair creates an ephemeral sequential node and deletes it, without looking
 * whether it is the first: two writes, asynchronous calls that are waited for by
 * whoever made them.  Each thread has a session, since the library without
 * threads is for one at a time.  It has no way to wait for a lock.
 */
#include "cand.h"

#include "../zkraw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct conn {
    zhandle_t *zh;
    bool done, made;
    int rc;
    char path[256];
};

static void on_created(int rc, const char *path, const void *data)
{
    struct conn *conn = (struct conn *)(uintptr_t)data;

    if (!rc)
        snprintf(conn->path, sizeof(conn->path), "%s", path);
    conn->rc = rc;
    conn->done = true;
}

static void on_deleted(int rc, const void *data)
{
    struct conn *conn = (struct conn *)(uintptr_t)data;

    conn->rc = rc;
    conn->done = true;
}

static void finish(struct conn *conn)
{
    while (!conn->done)
        zkraw_turn(conn->zh);
    conn->done = false;
    if (conn->rc && conn->rc != ZNODEEXISTS)
        bench_die("%s", zerror(conn->rc));
}

static void make(struct conn *conn, const char *path, const char *data, int len,
                 int mode)
{
    zoo_acreate(conn->zh, path, data, len, &ZOO_OPEN_ACL_UNSAFE, mode,
                on_created, conn);
    finish(conn);
}

static void *conn_open(void)
{
    struct conn *conn = bench_alloc(sizeof(*conn));

    conn->zh = zkraw_open();
    make(conn, "/raw", "", 0, 0);
    return conn;
}

static void conn_close(void *arg)
{
    struct conn *conn = arg;

    zookeeper_close(conn->zh);
    free(conn);
}

static void take(void *arg, const char *key)
{
    struct conn *conn = arg;
    char path[300], data[128];

    memset(data, 'x', sizeof(data)); /* about what holdfast writes there */
    snprintf(path, sizeof(path), "/raw/%s", key);
    if (!conn->made)
        make(conn, path, "", 0, 0);
    conn->made = true;
    snprintf(path, sizeof(path), "/raw/%s/lock-", key);
    make(conn, path, data, sizeof(data), ZOO_EPHEMERAL_SEQUENTIAL);
}

static void give(void *arg, const char *key)
{
    struct conn *conn = arg;

    (void)key;
    zoo_adelete(conn->zh, conn->path, -1, on_deleted, conn);
    finish(conn);
}

int main(void)
{
    static const struct cand_kind kind = {
        .name = "zk",
        .open = conn_open,
        .close = conn_close,
        .take = take,
        .give = give,
    };

    return cand_main(&kind);
}
