/* SPDX-License-Identifier: MIT
 *
 * redlock.c - bare hiredis on the nodes of a redlock as a candidate.
 *
 * A pair is SET NX PX to all nodes at once and the release script to all at
 * once; each step is over when a majority has answered, and what comes later
 * is read before the next command is sent.  No fence, no clean-up, no renewal.
 */
#include "cand.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_MAX 9

static const char release_script[] =
    "if redis.call('GET',KEYS[1])==ARGV[1] then "
    "return redis.call('DEL',KEYS[1]) else return 0 end";

struct conn {
    redisContext *nodes[NODES_MAX];
    bool owes[NODES_MAX]; /* a reply that nobody waited for */
    int n;
    char digest[41];
};

static void *conn_open(void)
{
    struct conn *conn = bench_alloc(sizeof(*conn));
    const char *at = getenv("HF_TEST_URL");
    redisReply *reply;

    at = at ? strstr(at, "//") : NULL;
    if (!at)
        bench_die("no HF_TEST_URL");
    for (at += 2; (at = strchr(at, ':')) && conn->n < NODES_MAX; conn->n++) {
        redisContext *c = redisConnect("127.0.0.1", atoi(++at));

        if (!c || c->err)
            bench_die("cannot connect to a node");
        reply = redisCommand(c, "SCRIPT LOAD %s", release_script);
        snprintf(conn->digest, sizeof(conn->digest), "%s", reply->str);
        freeReplyObject(reply);
        conn->nodes[conn->n] = c;
    }
    return conn;
}

static void conn_close(void *arg)
{
    struct conn *conn = arg;

    while (conn->n > 0)
        redisFree(conn->nodes[--conn->n]);
    free(conn);
}

static void read_one(struct conn *conn, int i)
{
    void *reply;

    if (redisGetReply(conn->nodes[i], &reply) != REDIS_OK)
        bench_die("a node does not answer");
    freeReplyObject(reply);
    conn->owes[i] = false;
}

static void send_one(struct conn *conn, int i)
{
    int done = 0;

    while (!done)
        if (redisBufferWrite(conn->nodes[i], &done) != REDIS_OK)
            bench_die("a node does not listen");
    conn->owes[i] = true;
}

/* Until more than half have answered. */
static void majority(struct conn *conn)
{
    struct pollfd fds[NODES_MAX];
    int i, answered = 0;

    for (i = 0; i < conn->n; i++)
        fds[i] = (struct pollfd){.fd = conn->nodes[i]->fd, .events = POLLIN};
    while (answered <= conn->n / 2) {
        poll(fds, (nfds_t)conn->n, -1);
        for (i = 0; i < conn->n; i++) {
            if (!fds[i].revents)
                continue;
            read_one(conn, i);
            fds[i].fd = -1;
            answered++;
        }
    }
}

static void take(void *arg, const char *key)
{
    struct conn *conn = arg;
    int i;

    for (i = 0; i < conn->n; i++) {
        if (conn->owes[i])
            read_one(conn, i);
        redisAppendCommand(conn->nodes[i], "SET %s token NX PX 30000", key);
        send_one(conn, i);
    }
    majority(conn);
}

static void give(void *arg, const char *key)
{
    struct conn *conn = arg;
    int i;

    for (i = 0; i < conn->n; i++) {
        if (conn->owes[i])
            read_one(conn, i);
        redisAppendCommand(conn->nodes[i], "EVALSHA %s 1 %s token",
                           conn->digest, key);
        send_one(conn, i);
    }
    majority(conn);
}

int main(void)
{
    static const struct cand_kind kind = {
        .name = "redlock",
        .open = conn_open,
        .close = conn_close,
        .take = take,
        .give = give,
    };

    return cand_main(&kind);
}
