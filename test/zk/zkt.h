/* SPDX-License-Identifier: MIT
 *
 * zkt.h - what the ZooKeeper tests have in common.
 *
 * An operator who looks at the service with the plain library and sees what is
 * really there, and a proxy between a client and the server that can cut the
 * connection at a chosen request, or freeze it.
 */
#ifndef ZKT_H
#define ZKT_H

#include "../t.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the operator ------------------------------------------------------ */

struct zkt_node {
    char path[512];
    int64_t czxid, owner; /* owner: the session, 0 if it is not ephemeral */
    char data[1024];
};

void zkt_begin(void); /* connect; HF_ZK_HOSTS names the servers */
void zkt_end(void);
int zkt_children(const char *path); /* how many; 0 if there is no such node */
int zkt_children_like(const char *path, const char *prefix);
/* The child with the lowest or highest number; false if there is none. */
bool zkt_first(const char *path, struct zkt_node *ret);
bool zkt_last(const char *path, struct zkt_node *ret);
bool zkt_read(const char *path, struct zkt_node *ret);
void zkt_remove(const char *path);
void zkt_remove_like(const char *path, const char *prefix); /* children */
void zkt_write(const char *path, const char *data);
void zkt_make(const char *path, const char *data);
void zkt_make_ephemeral(const char *path);
/* The nodes of a key with permits stay there, though they are containers. */
void zkt_keep(const char *key, const char *options);
/* May everybody remove children of the node, or nobody? */
void zkt_permit(const char *path, bool may_delete);

/* The path of the node of a key of the test's URL; good for the next three. */
const char *zkt_path(const char *key);
const char *zkt_key(const char *suffix);

/* ---- the proxy --------------------------------------------------------- */

enum zkt_cut {
    ZKT_NEVER,
    ZKT_BEFORE, /* the request is not passed on */
    ZKT_AFTER   /* it is, and its answer is not */
};

/* Types of requests; ZKT_CHANGE is any that changes or removes a node. */
enum {
    ZKT_DELETE = 2,
    ZKT_GET_DATA = 4,
    ZKT_SET_DATA = 5,
    ZKT_MULTI = 14,
    ZKT_CHANGE = -1
};

struct zkt_proxy {
    pthread_t thread;
    int listener, port, target;
    atomic_int stop;
    atomic_int frozen;     /* nothing is passed on, nothing is closed */
    atomic_int no_replies; /* the same for what the server says */
    atomic_int stalled;    /* requests of the youngest connection wait */
    atomic_int youngest;
    atomic_int hold;   /* requests of this type wait, and what is behind them on
                      * the connection */
    atomic_int held;   /* how many wait */
    atomic_int let_by; /* so many of them pass all the same */
    atomic_int requests; /* how many were passed on, without pings */
    atomic_int hold_at;  /* the request with this number, from 1 on, waits in
                          * the same way */
    atomic_int cut;      /* enum zkt_cut, of the request when `left` is 0 */
    atomic_int left;     /* requests before that */
    atomic_int cuts;     /* how often it happened */
    atomic_int lists;    /* how often children were asked for */
    atomic_int looks;    /* how often a node was asked for */
};

/* Between us and the first server; at any port, or at that of the server but of
 * another address, 127.0.0.2. */
void zkt_proxy_start(struct zkt_proxy *proxy);
void zkt_proxy_start_beside(struct zkt_proxy *proxy);
void zkt_proxy_stop(struct zkt_proxy *proxy);
const char *zkt_proxy_url(struct zkt_proxy *proxy, const char *options);

/* What happens to a lock: `client` is connected through a proxy, `other` is
 * not. */
typedef void zkt_story(hf_client *client, hf_client *other, const char *key);
/* Tell it with the cut at its first request, its second, ... until it is told
 * without any; each time nothing is left. */
void zkt_tell(zkt_story *fn, const char *options, enum zkt_cut cut);
/* A release may be uncertain; it is then done in the background. */
void zkt_let_go(hf_lock *lk);

/* ---- an ensemble ------------------------------------------------------- */

enum { ZKT_SERVERS = 3 }; /* called 1, 2 and 3 */

long zkt_number_of(int id, const char *what); /* "port", "pid" */
/* Its answer to a word of four letters, until the next one; "" if none. */
const char *zkt_says(int id, const char *word);
void zkt_signal_server(int id, int sig);
void zkt_start_server(int id);
char zkt_mode_of(int id); /* 'l'eader, 'f'ollower, or 0 if it does not serve */
long long zkt_zxid_of(int id); /* the last transaction that it knows of */
int zkt_server(char mode);     /* one of that mode; waits for it */
void zkt_await_all(void);
void zkt_cut(int id, bool in, bool out);
void zkt_heal(void);

/* A lock that is held and one that is waited for outlast `harm`. */
void zkt_outlast(void (*harm)(void), int64_t ttl_ms);

/* ---- locks ------------------------------------------------------------- */

hf_client *zkt_open(const char *url);
const char *zkt_url(const char *options);
struct hf_lock_opts zkt_opts(int64_t ttl_ms);

/* hf_acquire() in a thread. */
struct zkt_waiter {
    hf_client *client;
    const char *key;
    int64_t wait_ms;
    struct hf_lock_opts opts;
    pthread_t thread;
    hf_status status;
    struct hf_error err;
    hf_lock *lk;
    atomic_bool done;
};
void zkt_wait_start(struct zkt_waiter *w, hf_client *client, const char *key,
                    int64_t wait_ms, int64_t ttl_ms);
void zkt_wait_start_with(struct zkt_waiter *w, hf_client *client,
                         const char *key, int64_t wait_ms,
                         const struct hf_lock_opts *opts);
hf_status zkt_wait_end(struct zkt_waiter *w);

#endif
