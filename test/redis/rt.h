/* SPDX-License-Identifier: MIT
 *
 * rt.h - real Redis servers for tests, and a way to look at them from outside.
 *
 * Each server has a directory below the test's own, a free port of the loopback
 * interface, and a unix socket on which the test asks it questions, so that
 * what the test does to the port does not get in its own way.  The runner kills
 * what a failed test leaves running.
 */
#ifndef RT_H
#define RT_H

#include "../t.h"

#include <hiredis/hiredis.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RT_ARGS 40

struct rt_server {
    pid_t pid; /* 0: not running */
    int port;
    char dir[160];
    const char *run;      /* the program to start; NULL: redis-server */
    char *args[RT_ARGS];  /* ends with NULL */
    const char *password; /* for the test's own questions */
    const char *tls;      /* its port has TLS, with what tls_make() has made in
                           * this directory; NULL: it has not */
};

/* Start a server with these options ("--appendonly", "yes", ..., NULL) and wait
 * until it answers. */
void rt_start(struct rt_server *s, ...);

/* Kill it, as a crash would; and start it again as it was, on the same port. */
void rt_crash(struct rt_server *s);
void rt_again(struct rt_server *s);
void rt_signal(struct rt_server *s, int sig);

/* The end of a test: nothing but fences is left in the database, and nobody is
 * subscribed or connected.  Then stop the server. */
void rt_end(struct rt_server *s);
void rt_stop(struct rt_server *s);
void rt_check_clean(struct rt_server *s);

/* A question to the server; the reply is to be freed.  rt_try() gives NULL
 * where rt_ask() fails the test. */
redisReply *rt_ask(struct rt_server *s, const char *fmt, ...);
redisReply *rt_try(struct rt_server *s, const char *fmt, ...);
void rt_do(struct rt_server *s, const char *fmt, ...);
long long rt_int(struct rt_server *s, const char *fmt, ...);

/* The text of a reply, good until the sixteenth next; "" for nil. */
const char *rt_text(struct rt_server *s, const char *fmt, ...);

/* How often a command ("evalsha") was called, from INFO commandstats. */
long long rt_calls(struct rt_server *s, const char *command);

/* How many channels of clients somebody listens on, sharded or plain. */
size_t rt_channels(struct rt_server *s);

/* How many clients wait for the key "holdfast:KEY". */
long long rt_waiters(struct rt_server *s, const char *key);

/* Put the entries of `n` waiters into the queue of the key `k`, on a channel that
 * nobody hears, as killed processes leave them, or without one, as of those who
 * poll; they last for `ms`. */
void rt_plant(struct rt_server *s, int n, int ms, const char *channel);

/* Somebody waits for it, and all who do have said where they can be told. */
bool rt_hears(struct rt_server *s, const char *key);

int rt_free_port(void);

/* "redis://127.0.0.1:PORT" and `more`; good until the eighth next. */
const char *rt_url(int port, const char *more);

hf_client *rt_open(struct rt_server *s, const char *more);
struct hf_lock_opts rt_opts(int64_t ttl_ms, unsigned flags);
hf_lock *rt_lock(hf_client *client, const char *key, int64_t wait_ms,
                 int64_t ttl_ms, unsigned flags);

/* Opening `url` fails like this, in words that contain `word` and nothing of a
 * password, which has "s3cret" in it; or a lock can be taken there. */
void rt_check_refused(const char *url, hf_status want, const char *word);
void rt_check_works(const char *url);

/* A thread that acquires, and what came of it. */
struct rt_waiter {
    hf_client *client;
    const char *key;
    int64_t wait_ms, ttl_ms, retry_ms;
    unsigned flags;
    const char *owner;
    int64_t hold_ms; /* before it releases */
    bool cut;        /* connections are cut: its release may be in doubt */
    pthread_t thread;
    hf_status st;
    uint64_t fence;
    int64_t got_at; /* 0: not yet */
    struct hf_error err;
};

struct rt_waiter rt_waiter(hf_client *client, const char *key, int64_t wait_ms,
                           int64_t ttl_ms, unsigned flags);
void rt_wait_start(struct rt_waiter *w);
void rt_wait_join(struct rt_waiter *w); /* it must have got the lock */

#endif
