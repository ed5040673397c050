/* SPDX-License-Identifier: MIT
 *
 * redlock.c - how long a majority of five takes.
 *
 * QUESTION  An acquisition takes at most 1.3 times what the slowest node of the
 *   majority takes for one round trip; and with two nodes of five frozen, 99 of
 *   100 take at most the limit of a node and one round trip.
 *
 * For scale: hiredis, which sends SET NX PX to all five and stops at the third
 * answer.  A fence must be written to a majority before it is told, so with one
 * there are two round trips at least, and the other scale is hiredis with a SET
 * and an HSET, each to all five and until the third answer.  Only the
 * acquisition is timed, not the release.
 *
 * Run it as `test/servers/redlock build/bench/bench-redlock`; node-redlock is
 * beside it in `make bench BACKEND=redlock`.
 */
#include "bench.h"

#include "holdfast.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES    5
#define MAJORITY 3
#define OPS      40
#define ROUNDS   60
#define FROZEN   400

static redisContext *nodes[NODES];
static int owed[NODES]; /* answers */
static pid_t pids[NODES];

static void nodes_open(const char *url)
{
    const char *at = strstr(url, "//") + 2;

    for (int i = 0; i < NODES; i++) {
        redisReply *reply;

        at = strchr(at, ':') + 1;
        nodes[i] = redisConnect("127.0.0.1", atoi(at));
        if (!nodes[i] || nodes[i]->err)
            bench_die("cannot connect to a node");
        reply = redisCommand(nodes[i], "INFO server");
        pids[i] = atoi(strstr(reply->str, "process_id:") + 11);
        freeReplyObject(reply);
    }
}

static void bare_send(const char *command)
{
    int sent;

    for (int i = 0; i < NODES; i++) {
        redisAppendCommand(nodes[i], command);
        do
            redisBufferWrite(nodes[i], &sent);
        while (!sent);
        owed[i]++;
    }
}

/* Read until so many nodes owe no answer. */
static void bare_hear(int enough)
{
    struct pollfd fds[NODES];
    void *reply;
    int done;

    for (;;) {
        for (int i = done = 0; i < NODES; i++) {
            fds[i] = (struct pollfd){.fd = owed[i] ? nodes[i]->fd : -1,
                                     .events = POLLIN};
            done += !owed[i];
        }
        if (done >= enough)
            return;
        poll(fds, NODES, -1);
        for (int i = 0; i < NODES; i++) {
            if (!(fds[i].revents & POLLIN))
                continue;
            if (redisBufferRead(nodes[i]) != REDIS_OK)
                bench_die("no answer");
            while (owed[i] &&
                   redisReaderGetReply(nodes[i]->reader, &reply) == REDIS_OK &&
                   reply) {
                freeReplyObject(reply);
                owed[i]--;
            }
        }
    }
}

/* The time until the third of five has answered one question, or two, in us. */
static double bare_once(int questions)
{
    int64_t began = bench_now(), ended;

    bare_send("SET bare token NX PX 30000");
    bare_hear(MAJORITY);
    if (questions > 1) {
        bare_send("HSET barer c 1700000000000000 k token");
        bare_hear(MAJORITY);
    }
    ended = bench_now();
    bare_hear(NODES);
    bare_send("DEL bare");
    bare_hear(NODES);
    return (double)(ended - began) / 1e3;
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

/* The median of a round. */
static double round_run(struct bench_case *one)
{
    double us[OPS];

    for (int i = 0; i < OPS; i++)
        us[i] = one->arg ? ours_once(one->arg) : bare_once((int)one->ops);
    return bench_quantile(us, OPS, 0.5);
}

static hf_client *ours_open(const char *url, const char *more)
{
    struct hf_error err;
    hf_client *client;
    char text[1024];

    snprintf(text, sizeof(text), "%s%s", url, more);
    if (hf_open(text, NULL, &client, &err))
        bench_die("%s", err.text);
    return client;
}

/* The 99th of 100 with two nodes frozen; the limit is 50 ms. */
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
    const struct bench_goal ratio = {BENCH_AT_MOST, 1.3};
    struct bench_goal limit = {BENCH_AT_MOST, 0};
    const char *url = getenv("HF_TEST_URL");
    struct bench_case cases[] = {
        {.name = "hiredis to 5, third answer", .run = round_run, .ops = 1},
        {.name = "hiredis, twice", .run = round_run, .ops = 2},
        {.name = "redlock: fence=off", .run = round_run},
        {.name = "redlock: with a fence", .run = round_run},
    };

    if (!url || strncmp(url, "redlock:", 8) != 0)
        bench_die("run it as test/servers/redlock bench-redlock");
    bench_begin("redlock", "A majority of five Redis servers");
    nodes_open(url);
    cases[2].arg = ours_open(url, "&fence=off");
    cases[3].arg = ours_open(url, "");
    bench_run(cases, 4, bench_rounds(ROUNDS), "us");
    bench_judge(&cases[0], "us", NULL);
    bench_ratio(&cases[2], &cases[0], &ratio);
    bench_ratio(&cases[3], &cases[0], NULL);
    bench_ratio(&cases[3], &cases[1], &ratio);
    limit.target = 50000 + cases[0].stat.median;
    bench_value("two of five frozen, p99", frozen_run(cases[3].arg), "us",
                &limit);
    hf_close(cases[2].arg);
    hf_close(cases[3].arg);
    for (int i = 0; i < NODES; i++)
        redisFree(nodes[i]);
    return 0;
}
