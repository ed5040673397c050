/* SPDX-License-Identifier: MIT
 *
 * sentinel.c - the master that Sentinel names, and fail-overs under load.
 *
 * A fail-over may forget a grant, as doc/guarantees.md says; the fence rises
 * all the same, and whoever goes on asking gets the lock again.
 */
#include "load.h"

#include <sys/stat.h>
#include <unistd.h>

/* A master, its replica and three sentinels that know one another. */
struct ensemble {
    struct rt_server node[2];
    struct rt_server sentinel[3];
    char url[256];
};

static void start_sentinel(struct rt_server *s, int number, int master)
{
    char path[200];
    FILE *conf;

    *s = (struct rt_server){.port = rt_free_port()};
    snprintf(s->dir, sizeof(s->dir), "%s/s%d", t_tmpdir(), number);
    CHECK_EQ(mkdir(s->dir, 0700), 0);
    snprintf(path, sizeof(path), "%s/conf", s->dir);
    conf = fopen(path, "we");
    CHECK(conf != NULL);
    fprintf(conf,
            "port %d\nbind 127.0.0.1\ndir %s\nunixsocket %s/sock\n"
            "sentinel monitor main 127.0.0.1 %d 2\n"
            "sentinel down-after-milliseconds main 600\n"
            "sentinel failover-timeout main 4000\n",
            s->port, s->dir, s->dir, master);
    fclose(conf);
    s->args[0] = strdup("redis-server");
    s->args[1] = strdup(path);
    s->args[2] = strdup("--sentinel");
    rt_again(s);
}

/* What a sentinel says about the master, by the name of the field. */
static long sentinel_says(struct rt_server *s, const char *field)
{
    redisReply *reply = rt_try(s, "SENTINEL MASTER main");
    long value = -1;
    size_t i;

    for (i = 0; reply && i + 1 < reply->elements; i += 2)
        if (!strcmp(reply->element[i]->str, field))
            value = strtol(reply->element[i + 1]->str, NULL, 10);
    if (reply)
        freeReplyObject(reply);
    return value;
}

static void ensemble_ready(struct ensemble *e)
{
    int i;

    for (i = 0; i < 3; i++) {
        t_poll_until(sentinel_says(&e->sentinel[i], "num-slaves") >= 1, 20000);
        t_poll_until(sentinel_says(&e->sentinel[i], "num-other-sentinels") == 2,
                     20000);
    }
}

/* Does the node say this of its replication?  It may be silent for a while. */
static bool node_says(struct rt_server *s, const char *what)
{
    redisReply *reply = rt_try(s, "INFO replication");
    bool said = reply && reply->str && strstr(reply->str, what);

    if (reply)
        freeReplyObject(reply);
    return said;
}

static void ensemble_start(struct ensemble *e)
{
    char port[16];
    int i;

    rt_start(&e->node[0], "--repl-diskless-sync-delay", "0", NULL);
    snprintf(port, sizeof(port), "%d", e->node[0].port);
    rt_start(&e->node[1], "--replicaof", "127.0.0.1", port,
             "--repl-diskless-sync-delay", "0", NULL);
    t_poll_until(node_says(&e->node[0], "state=online"), 20000);
    for (i = 0; i < 3; i++)
        start_sentinel(&e->sentinel[i], i, e->node[0].port);
    ensemble_ready(e);
    snprintf(e->url, sizeof(e->url),
             "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d/main"
             "?timeout=1s",
             e->sentinel[0].port, e->sentinel[1].port, e->sentinel[2].port);
}

static void ensemble_stop(struct ensemble *e)
{
    int i;

    for (i = 0; i < 3; i++)
        rt_stop(&e->sentinel[i]);
    for (i = 0; i < 2; i++)
        rt_stop(&e->node[i]);
}

static bool is_master(struct rt_server *s)
{
    return node_says(s, "role:master");
}

/* ---- tests ------------------------------------------------------------- */

TEST_TIMEOUT(all_go_on_after_a_fail_over_and_fences_rise, 120)
{
    struct ensemble e = {0};
    struct load load = {.url = e.url, .key = "k", .may_forget = true};

    ensemble_start(&e);
    load_start(&load);
    load_check_goes_on(&load);
    /* An operator's: the old master lives on as a replica. */
    rt_do(&e.sentinel[0], "SENTINEL FAILOVER main");
    t_poll_until(is_master(&e.node[1]), 20000);
    t_poll_until(!is_master(&e.node[0]), 20000);
    load_check_goes_on(&load);
    /* A crash.  The sentinels must know the other as a good replica again. */
    t_poll_until(node_says(&e.node[1], "state=online"), 20000);
    ensemble_ready(&e);
    rt_crash(&e.node[1]);
    t_poll_until(is_master(&e.node[0]), 40000);
    load_check_goes_on(&load);
    load_stop(&load);
    rt_check_clean(&e.node[0]);
    ensemble_stop(&e);
}

/* A master that hangs keeps its connections, and comes back as a replica. */
TEST_TIMEOUT(all_go_on_after_a_master_hung_and_came_back, 120)
{
    struct ensemble e = {0};
    struct load load = {.url = e.url, .key = "k", .may_forget = true};

    ensemble_start(&e);
    load_start(&load);
    load_check_goes_on(&load);
    rt_signal(&e.node[0], SIGSTOP);
    t_poll_until(is_master(&e.node[1]), 40000);
    load_check_goes_on(&load);
    rt_signal(&e.node[0], SIGCONT);
    t_poll_until(node_says(&e.node[0], "role:slave"), 40000);
    load_check_goes_on(&load);
    load_stop(&load);
    rt_check_clean(&e.node[1]);
    ensemble_stop(&e);
}

TEST(one_live_sentinel_is_enough_and_a_wrong_name_is_told)
{
    struct ensemble e = {0};
    hf_client *client = NULL;
    struct hf_lock_opts opts = rt_opts(3000, 0);
    hf_lock *lk = NULL;
    char url[256];

    ensemble_start(&e);
    rt_signal(&e.sentinel[0], SIGSTOP);
    rt_crash(&e.sentinel[1]);
    CHECK_OK(hf_open(e.url, NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    CHECK_STR(rt_text(&e.node[0], "GET holdfast:k"), hf_token(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    snprintf(url, sizeof(url), "redis+sentinel://127.0.0.1:%d/other?timeout=1s",
             e.sentinel[2].port);
    CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "other") != NULL);
    rt_check_clean(&e.node[0]);
    ensemble_stop(&e);
}

T_MAIN
