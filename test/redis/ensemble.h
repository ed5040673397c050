/* SPDX-License-Identifier: MIT
 *
 * ensemble.h - a master, its replica and three real sentinels that know one
 * another.
 */
#ifndef ENSEMBLE_H
#define ENSEMBLE_H

#include "rt.h"

#define SENTINELS 3

struct ensemble {
    /* To be set before it is started. */
    bool stubborn; /* The master does not obey the sentinels: it stays one when
                    * another has taken over, and keeps its connections. */
    bool both;     /* The sentinels watch another master, too. */
    bool loner;    /* The last sentinel never hears from the others. */
    const char *tls;      /* They all have TLS and nothing else; see rt.h.  The
                           * sentinels are at 127.0.0.2, too. */
    const char *password; /* that the sentinels want, of one another, too */

    struct rt_server node[2], other[2]; /* the master first */
    struct rt_server sentinel[SENTINELS];
    char url[1024];
};

void ensemble_start(struct ensemble *e);
void ensemble_stop(struct ensemble *e);

/* The sentinels know the replica, and one another. */
void ensemble_ready(struct ensemble *e);

/* What a sentinel says about a master, by the name of the field; -1 if it says
 * nothing. */
long sentinel_says(struct rt_server *s, const char *master, const char *field);

/* Does the node say this of its replication?  It may be silent for a while. */
bool node_says(struct rt_server *s, const char *what);
bool is_master(struct rt_server *s);

/* How many lines of CLIENT LIST have all of this; -1 if it does not answer. */
int count_clients(struct rt_server *s, const char *what, const char *more);

/* The clients of a node that are neither sentinels, nor replicas, nor this
 * test. */
int count_ours(struct rt_server *s);

/* The sentinel at which somebody listens, by its number, or -1. */
int listened_to(struct ensemble *e);

/* Take a lock and give it back, on this server. */
void check_lands_on(hf_client *client, struct rt_server *s, const char *key);

/* A client that has used the master and hears what becomes of it. */
hf_client *open_listening(struct ensemble *e, const char *more);

/* Have the replica take over, by the word of this sentinel, while the old
 * master does not know. */
void depose(struct ensemble *e, int sentinel);

#endif
