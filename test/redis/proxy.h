/* SPDX-License-Identifier: MIT
 *
 * proxy.h - a network that misbehaves on demand, between client and server;
 * and a server that is none.
 */
#ifndef PROXY_H
#define PROXY_H

#include "net.h"
#include "rt.h"

enum proxy_mode {
    PROXY_PASS,
    PROXY_CUT,   /* let `limit` bytes of replies through, then cut, then pass */
    PROXY_DROP,  /* requests arrive, replies do not */
    PROXY_FREEZE /* nothing arrives, and nothing is closed */
};

struct proxy {
    int port;
    struct net *net;
    int delay_ms; /* of every reply */
};

void proxy_start(struct proxy *p, struct rt_server *s);
void proxy_set(struct proxy *p, enum proxy_mode mode, int64_t limit);

/* The same, and every connection there is now is cut in the same moment. */
void proxy_break(struct proxy *p, enum proxy_mode mode);
int proxy_cuts(struct proxy *p);
void proxy_delay(struct proxy *p, int ms);
int64_t proxy_bytes(struct proxy *p);
void proxy_stop(struct proxy *p);

/* A peer that answers `good` greetings, as a server
 * does, and then as `kind` says. */
enum hostile_kind {
    HOSTILE_GARBAGE,
    HOSTILE_HUGE_BULK,
    HOSTILE_HUGE_ARRAY,
    HOSTILE_MANY_BULKS, /* an array of allowed length, of large strings */
    HOSTILE_NESTED,     /* arrays in arrays, without end */
    HOSTILE_ENDLESS_LINE,
    HOSTILE_SILENT,
    HOSTILE_CLOSES,
    HOSTILE_DEEP,
    HOSTILE_NEGATIVE,
    HOSTILE_WRONG_TYPE,
    HOSTILE_EMPTY_ARRAY,
    HOSTILE_NIL,
    HOSTILE_TWO_FOR_ONE,
    HOSTILE_KINDS
};

struct hostile {
    int port, listener;
    enum hostile_kind kind;
    int good;
    pthread_t thread;
    atomic_bool stop;
};

void hostile_start(struct hostile *h, enum hostile_kind kind, int good);
void hostile_stop(struct hostile *h);

#endif
