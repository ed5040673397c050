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

    struct rt_server node[2], other[2]; /* the master first */
    struct rt_server sentinel[SENTINELS];
    char url[256];
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

#endif
