/* SPDX-License-Identifier: MIT
 *
 * redlock.c - a majority of five while two of them are frozen.
 *
 * QUESTION  With two nodes of five frozen, 99 of 100 acquisitions take at most
 *   the limit of a node and one round trip.  Only the acquisition is timed.
 *
 * `make bench BACKEND=redlock` runs it, and asks all else; alone it is
 * test/servers/redlock build/bench/bench-redlock.
 */
#include "bench.h"

#include "holdfast.h"

#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES    5
#define ROUNDS   400
#define FROZEN   400
#define LIMIT_US 50000 /* what a node is given for an answer */

static pid_t pids[NODES];

static void nodes_find(const char *url)
{
    const char *at = strstr(url, "//") + 2;

    for (int i = 0; i < NODES; i++) {
        redisContext *node;
        redisReply *reply;

        at = strchr(at, ':') + 1;
        node = redisConnect("127.0.0.1", atoi(at));
        if (!node || node->err)
            bench_die("cannot connect to a node");
        reply = redisCommand(node, "INFO server");
        pids[i] = atoi(strstr(reply->str, "process_id:") + 11);
        freeReplyObject(reply);
        redisFree(node);
    }
}

static double ours_once(hf_client *client)
{
    struct hf_error err;
    hf_lock *lk;
    int64_t began = bench_now(), ended;

    if (hf_acquire(client, "bench", 0, NULL, &lk, &err))
        bench_die("%s", err.text);
    ended = bench_now();
    hf_release(lk, NULL);
    return (double)(ended - began) / 1e3;
}

/* The 99th of 100 with two nodes frozen. */
static double frozen_run(hf_client *client)
{
    double us[FROZEN], p99;

    kill(pids[1], SIGSTOP);
    kill(pids[3], SIGSTOP);
    for (int i = 0; i < FROZEN; i++)
        us[i] = ours_once(client);
    kill(pids[1], SIGCONT);
    kill(pids[3], SIGCONT);
    p99 = bench_quantile(us, FROZEN, 0.99);
    bench_value("two of five frozen, p50", bench_quantile(us, FROZEN, 0.5),
                "us", NULL);
    return p99;
}

int main(void)
{
    struct bench_goal limit = {BENCH_AT_MOST, 0};
    const char *url = getenv("HF_TEST_URL");
    double us[ROUNDS];
    struct hf_error err;
    hf_client *client;

    if (!url || strncmp(url, "redlock:", 8) != 0)
        bench_die("run it as test/servers/redlock bench-redlock");
    bench_begin("frozen", "Five Redis servers, two of which are frozen");
    nodes_find(url);
    if (hf_open(url, NULL, &client, &err))
        bench_die("%s", err.text);
    for (int i = 0; i < ROUNDS; i++)
        us[i] = ours_once(client);
    bench_value("all five, p50", bench_quantile(us, ROUNDS, 0.5), "us", NULL);
    limit.target = LIMIT_US + bench_quantile(us, ROUNDS, 0.5);
    bench_value("two of five frozen, p99", frozen_run(client), "us", &limit);
    hf_close(client);
    return 0;
}
