/* SPDX-License-Identifier: MIT
 *
 * ensemble.c - sentinels for tests; see ensemble.h.
 */
#include "ensemble.h"
#include "tls.h"

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

static void give_tls(FILE *conf, const struct ensemble *e, int port)
{
    fprintf(conf,
            "port 0\ntls-port %d\nbind 127.0.0.1 127.0.0.2\n"
            "tls-replication yes\n"
            "tls-cert-file %s/localhost.pem\ntls-key-file %s/localhost.key\n"
            "tls-ca-cert-file %s/ca.pem\n",
            port, e->tls, e->tls, e->tls);
}

static void start_sentinel(struct ensemble *e, int number)
{
    struct rt_server *s = &e->sentinel[number];
    char path[200];
    FILE *conf;

    *s = (struct rt_server){.port = rt_free_port(), .password = e->password};
    snprintf(s->dir, sizeof(s->dir), "%s/s%d", t_tmpdir(), number);
    CHECK_EQ(mkdir(s->dir, 0700), 0);
    snprintf(path, sizeof(path), "%s/conf", s->dir);
    conf = fopen(path, "we");
    CHECK(conf != NULL);
    fprintf(conf, "dir %s\nunixsocket %s/sock\n", s->dir, s->dir);
    if (e->tls)
        give_tls(conf, e, s->port);
    else
        fprintf(conf, "port %d\nbind 127.0.0.1\n", s->port);
    if (e->password)
        fprintf(conf, "requirepass %s\n", e->password);
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

    e->node[0].tls = e->node[1].tls = e->tls;
    start_pair(e->node, e->stubborn);
    for (i = 0; i < 2 && e->loner; i++)
        forbid_loner(&e->node[i]);
    if (e->both)
        start_pair(e->other, false);
    for (i = 0; i < SENTINELS; i++)
        start_sentinel(e, i);
    ensemble_ready(e);
    snprintf(e->url, sizeof(e->url),
             "%s://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/main?timeout=1s%s",
             e->tls ? "rediss+sentinel" : "redis+sentinel", e->sentinel[0].port,
             e->sentinel[1].port, e->sentinel[2].port,
             e->tls ? tls_params(e->tls) : "");
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

/* ---- who is connected -------------------------------------------------- */

int count_clients(struct rt_server *s, const char *what, const char *more)
{
    redisReply *reply = s->pid ? rt_try(s, "CLIENT LIST") : NULL;
    char *line, *rest = NULL;
    int n = reply && reply->str ? 0 : -1;

    for (line = n ? NULL : strtok_r(reply->str, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        n += strstr(line, what) && strstr(line, more);
    if (reply)
        freeReplyObject(reply);
    return n;
}

/* Sentinels have names, and this test comes through the socket. */
int count_ours(struct rt_server *s)
{
    int replicas = count_clients(s, " flags=S ", "");

    CHECK_GE(replicas, 0);
    return count_clients(s, "addr=127.0.0.1:", " name= ") - replicas;
}

int listened_to(struct ensemble *e)
{
    int i, found = -1;

    for (i = 0; i < SENTINELS; i++)
        if (count_clients(&e->sentinel[i], " sub=1 ", "") > 0)
            found = i;
    return found;
}

void check_lands_on(hf_client *client, struct rt_server *s, const char *key)
{
    hf_lock *lk = rt_lock(client, key, 10000, 3000, 0);

    CHECK_STR(rt_text(s, "GET holdfast:%s", key), hf_token(lk));
    CHECK_OK(hf_release(lk, &t_err));
}

hf_client *open_listening(struct ensemble *e, const char *more)
{
    char url[1100];
    hf_client *client = NULL;

    snprintf(url, sizeof(url), "%s%s", e->url, more);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    check_lands_on(client, &e->node[0], "before");
    t_poll_until(listened_to(e) >= 0, 20000);
    return client;
}

void depose(struct ensemble *e, int sentinel)
{
    rt_do(&e->sentinel[sentinel], "SENTINEL FAILOVER main");
    t_poll_until(is_master(&e->node[1]), 20000);
}
