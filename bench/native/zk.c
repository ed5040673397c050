/* SPDX-License-Identifier: MIT
 *
 * zk.c - a watch of ZooKeeper on the children of the key, with its C library.
 *
 * A watch is used up by one event, so each reads the children again, with a
 * watch in the same request.  Their names tell who comes first.
 */
#include "native.h"

#include "../bench.h"
#include "../zkraw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIGITS 10 /* at the end of a name: its number */

struct zk_watch {
    struct zk_native *of;
    char first[DIGITS + 1];
};

struct zk_native {
    struct native_client base;
    zhandle_t *zh;
    char path[300];
    struct zk_watch *watches;
    int begun;
};

static const char *number_of(const char *name)
{
    size_t len = strlen(name);

    return len > DIGITS ? name + len - DIGITS : name;
}

static void on_children(int rc, const struct String_vector *children,
                        const void *data)
{
    struct zk_watch *one = (struct zk_watch *)(uintptr_t)data;
    const char *first = "~", *each;
    int i;

    if (rc)
        bench_die("zk: %s", zerror(rc));
    for (i = 0; i < children->count; i++) {
        each = number_of(children->data[i]);
        if (strcmp(each, first) < 0)
            first = each;
    }
    one->of->begun++;
    if (!strcmp(first, one->first))
        return;
    snprintf(one->first, sizeof(one->first), "%s", first);
    native_told(&one->of->base);
}

static void ask(struct zk_watch *one);

static void on_event(zhandle_t *handle, int type, int state, const char *path,
                     void *ctx)
{
    (void)handle, (void)state, (void)path;
    if (type == ZOO_CHILD_EVENT)
        ask(ctx);
}

static void ask(struct zk_watch *one)
{
    int rc = zoo_awget_children(one->of->zh, one->of->path, on_event, one,
                                on_children, one);

    if (rc)
        bench_die("zk: %s", zerror(rc));
}

static void hear(struct native_client *client)
{
    struct zk_native *me = (struct zk_native *)client;
    struct timeval tv;
    int fd, interest;

    zookeeper_interest(me->zh, &fd, &interest, &tv);
    zookeeper_process(me->zh, ZOOKEEPER_READ | (interest & ZOOKEEPER_WRITE));
}

static void open_watches(struct native_client *client, const char *key)
{
    struct zk_native *me = (struct zk_native *)client;
    int i, n = client->watches;

    snprintf(me->path, sizeof(me->path), "/hf-test/%s", key);
    me->zh = zkraw_open();
    me->watches = bench_alloc((size_t)n * sizeof(*me->watches));
    for (i = 0; i < n; i++) {
        me->watches[i].of = me;
        ask(&me->watches[i]);
    }
    while (me->begun < n)
        client->fds[0] = zkraw_turn(me->zh);
}

static void close_watches(struct native_client *client)
{
    struct zk_native *me = (struct zk_native *)client;

    zookeeper_close(me->zh);
    free(me->watches);
}

const struct native_kind native_zk = {
    "zk:", "ZooKeeper's watch", true, sizeof(struct zk_native), open_watches,
    hear,  close_watches};
