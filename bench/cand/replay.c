/* SPDX-License-Identifier: MIT
 *
 * replay.c - learn what holdfast sends for a pair, to send the same by hand.
 *
 * How much of a ratio is the library's and how much the server's?  A loop that
 * is piped by hand and sends the very commands of holdfast, fence and all, makes
 * the server do the same work.  The commands are not written down here, where
 * they would grow old: one pair is watched with MONITOR, and the key in them is
 * replaced by another.  The token stays the same; nobody compares it with any
 * but its own.
 *
 * An ECHO from our own connection stands between acquire and release, and one
 * after both.  What a script calls is marked "lua" by the server and left out.
 */
#include "replay.h"

#include "holdfast.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEARNT   "learnt-from"
#define ARGS_MAX 24
#define COMMANDS 4
#define TEXT_MAX 512

struct command {
    int argc;
    char *argv[ARGS_MAX];
    size_t len[ARGS_MAX];
};

static struct command learnt[2][COMMANDS];
static int count[2];

/* A word between quotes, as MONITOR writes it; returns what is behind it. */
static const char *unquote(const char *at, char **ret, size_t *len)
{
    char *word = bench_alloc(strlen(at) + 1);
    unsigned byte;
    size_t n = 0;

    for (at++; *at && *at != '"'; at++) {
        if (*at != '\\') {
            word[n++] = *at;
        } else if (at[1] == 'x' && sscanf(at + 2, "%2x", &byte) == 1) {
            word[n++] = (char)byte;
            at += 3;
        } else {
            at++;
            word[n++] = *at == 'n'   ? '\n'
                        : *at == 'r' ? '\r'
                        : *at == 't' ? '\t'
                                     : *at;
        }
    }
    *ret = word;
    *len = n;
    return *at ? at + 1 : at;
}

static struct command parse(const char *line)
{
    struct command ret = {0};

    while ((line = strchr(line, '"')) && ret.argc < ARGS_MAX) {
        line = unquote(line, &ret.argv[ret.argc], &ret.len[ret.argc]);
        ret.argc++;
    }
    return ret;
}

static redisReply *next_line(redisContext *monitor)
{
    void *reply;

    if (redisGetReply(monitor, &reply) != REDIS_OK)
        bench_die("MONITOR: %s", monitor->errstr);
    return reply;
}

static void mark(redisContext *c, const char *word)
{
    freeReplyObject(redisCommand(c, "ECHO %s", word));
}

/* Sort what the monitor saw into the two phases. */
static void collect(redisContext *monitor)
{
    int phase = 0;

    while (phase < 2) {
        redisReply *line = next_line(monitor);
        struct command found = parse(line->str);

        if (found.argc && !strcasecmp(found.argv[0], "ECHO"))
            phase++;
        else if (found.argc && !strstr(line->str, " lua]")) {
            if (count[phase] == COMMANDS)
                bench_die("a pair of holdfast has too many commands");
            learnt[phase][count[phase]++] = found;
        }
        freeReplyObject(line);
    }
}

void replay_learn(redisContext *c, const char *url)
{
    redisContext *monitor = redisConnect("127.0.0.1", c->tcp.port);
    hf_client *client;
    hf_lock *lock;
    struct hf_error err;
    int i;

    if (!monitor || monitor->err || hf_open(url, NULL, &client, &err))
        bench_die("cannot connect");
    for (i = 0; i < 2; i++) { /* at first, scripts are loaded */
        if (i)
            freeReplyObject(redisCommand(monitor, "MONITOR"));
        if (hf_acquire(client, LEARNT, 0, NULL, &lock, &err))
            bench_die("%s", err.text);
        if (i)
            mark(c, "taken");
        if (hf_release(lock, &err))
            bench_die("%s", err.text);
    }
    mark(c, "given");
    collect(monitor);
    if (!count[0] || !count[1])
        bench_die("holdfast sends nothing for a pair");
    redisFree(monitor);
    hf_close(client);
}

/* One word of a command with another key in it. */
static size_t with_key(const char *word, size_t len, const char *key, char *to)
{
    const char *at = memmem(word, len, LEARNT, strlen(LEARNT));
    size_t n;

    if (!at || len + strlen(key) > TEXT_MAX) {
        memcpy(to, word, len < TEXT_MAX ? len : TEXT_MAX);
        return len;
    }
    n = (size_t)(at - word);
    memcpy(to, word, n);
    memcpy(to + n, key, strlen(key));
    memcpy(to + n + strlen(key), at + strlen(LEARNT), len - n - strlen(LEARNT));
    return len - strlen(LEARNT) + strlen(key);
}

int replay_append(redisContext *c, int phase, const char *key)
{
    char text[ARGS_MAX][TEXT_MAX];
    const char *argv[ARGS_MAX];
    size_t len[ARGS_MAX];
    int i, k;

    for (i = 0; i < count[phase]; i++) {
        const struct command *one = &learnt[phase][i];

        for (k = 0; k < one->argc; k++) {
            argv[k] = text[k];
            len[k] = with_key(one->argv[k], one->len[k], key, text[k]);
        }
        redisAppendCommandArgv(c, one->argc, argv, len);
    }
    return count[phase];
}

void replay_check(const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR)
        bench_die("redis: %s", reply->str);
    if (reply->type == REDIS_REPLY_NIL ||
        (reply->type == REDIS_REPLY_INTEGER && reply->integer != 1))
        bench_die("the same commands did not do the same");
}
