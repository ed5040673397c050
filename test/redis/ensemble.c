/* SPDX-License-Identifier: MIT
 *
 * ensemble.c - sentinels for tests; see ensemble.h.
 */
#include "ensemble.h"

#include <sys/stat.h>

static void watch_master(FILE *conf, const char *name, int port)
{
    fprintf(conf,
            "sentinel monitor %s 127.0.0.1 %d 2\n"
            "sentinel down-after-milliseconds %s 600\n"
            "sentinel failover-timeout %s 4000\n",
            name, port, name, name);
}

static bool is_loner(const struct ensemble *e, int number)
{
    return e->loner && number == SENTINELS - 1;
}

static void start_sentinel(struct ensemble *e, int number)
{
    struct rt_server *s = &e->sentinel[number];
    char path[200];
    FILE *conf;

    *s = (struct rt_server){.port = rt_free_port()};
    snprintf(s->dir, sizeof(s->dir), "%s/s%d", t_tmpdir(), number);
    CHECK_EQ(mkdir(s->dir, 0700), 0);
    snprintf(path, sizeof(path), "%s/conf", s->dir);
    conf = fopen(path, "we");
    CHECK(conf != NULL);
    fprintf(conf, "port %d\nbind 127.0.0.1\ndir %s\nunixsocket %s/sock\n",
            s->port, s->dir, s->dir);
    watch_master(conf, "main", e->node[0].port);
    if (is_loner(e, number))
        fprintf(conf, "sentinel auth-user main loner\n"
                      "sentinel auth-pass main secret\n");
    if (e->both)
        watch_master(conf, "other", e->other[0].port);
    fclose(conf);
    s->args[0] = strdup("redis-server");
    s->args[1] = strdup(path);
    s->args[2] = strdup("--sentinel");
    rt_again(s);
}

long sentinel_says(struct rt_server *s, const char *master, const char *field)
{
    redisReply *reply = rt_try(s, "SENTINEL MASTER %s", master);
    long value = -1;
    size_t i;

    for (i = 0; reply && i + 1 < reply->elements; i += 2)
        if (!strcmp(reply->element[i]->str, field))
            value = strtol(reply->element[i + 1]->str, NULL, 10);
    if (reply)
        freeReplyObject(reply);
    return value;
}

static void master_ready(struct ensemble *e, const char *name)
{
    struct rt_server *s = e->sentinel;
    int i, others;

    for (i = 0; i < SENTINELS; i++) {
        others = is_loner(e, i) ? 0 : SENTINELS - 1 - e->loner;
        t_poll_until(sentinel_says(&s[i], name, "num-slaves") >= 1, 20000);
        t_poll_until(
            sentinel_says(&s[i], name, "num-other-sentinels") == others, 20000);
    }
}

void ensemble_ready(struct ensemble *e)
{
    master_ready(e, "main");
    if (e->both)
        master_ready(e, "other");
}

bool node_says(struct rt_server *s, const char *what)
{
    redisReply *reply = rt_try(s, "INFO replication");
    bool said = reply && reply->str && strstr(reply->str, what);

    if (reply)
        freeReplyObject(reply);
    return said;
}

static void start_pair(struct rt_server node[2], bool stubborn)
{
    char port[16];

    rt_start(&node[0], "--repl-diskless-sync-delay", "0",
             stubborn ? "--rename-command" : NULL, "SLAVEOF", "", NULL);
    snprintf(port, sizeof(port), "%d", node[0].port);
    rt_start(&node[1], "--replicaof", "127.0.0.1", port,
             "--repl-diskless-sync-delay", "0", NULL);
    t_poll_until(node_says(&node[0], "state=online"), 20000);
}

/* Sentinels meet on a channel of the servers that they watch. */
static void forbid_loner(struct rt_server *s)
{
    rt_do(s, "ACL SETUSER loner on >secret ~* resetchannels +@all -slaveof");
}

void ensemble_start(struct ensemble *e)
{
    int i;

    start_pair(e->node, e->stubborn);
    for (i = 0; i < 2 && e->loner; i++)
        forbid_loner(&e->node[i]);
    if (e->both)
        start_pair(e->other, false);
    for (i = 0; i < SENTINELS; i++)
        start_sentinel(e, i);
    ensemble_ready(e);
    snprintf(e->url, sizeof(e->url),
             "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/main"
             "?timeout=1s",
             e->sentinel[0].port, e->sentinel[1].port, e->sentinel[2].port);
}

void ensemble_stop(struct ensemble *e)
{
    int i;

    for (i = 0; i < SENTINELS; i++)
        rt_stop(&e->sentinel[i]);
    for (i = 0; i < 2; i++) {
        rt_stop(&e->node[i]);
        if (e->both)
            rt_stop(&e->other[i]);
    }
}

bool is_master(struct rt_server *s)
{
    return node_says(s, "role:master");
}
