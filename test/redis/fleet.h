/* SPDX-License-Identifier: MIT
 *
 * fleet.h - a real cluster for tests: test/servers/redis-cluster, started and
 * ended by the test.
 */
#ifndef FLEET_H
#define FLEET_H

#include "rt.h"

#define FLEET_MASTERS 3
#define FLEET_NODES   6

struct fleet {
    struct rt_server node[FLEET_NODES]; /* the masters first */
    char url[1024];
    pid_t pid;
    int in; /* closing it ends the cluster */
};

/* Start it with this program, or with redis-server (NULL). */
void fleet_start(struct fleet *f, const char *server);

/* The same with TLS and nothing else, with what tls_make() has made there. */
void fleet_start_tls(struct fleet *f, const char *dir);
void fleet_stop(struct fleet *f);

/* Kill a node, which stays dead. */
void fleet_crash(struct fleet *f, int node);

/* Is it a master with slots, by its own word? */
bool fleet_is_master(struct fleet *f, int node);

/* The node that has a key "holdfast:KEY" in a fresh fleet; and a key that this
 * node has. */
int fleet_home(const char *key);
const char *fleet_key(int node, int n);

/* Nothing but fences is left anywhere, and nobody is subscribed. */
void fleet_check_clean(struct fleet *f);

hf_client *fleet_open(struct fleet *f, const char *more);

/* Move the slot of a key to another node: begin, move one key, which may have
 * gone meanwhile, and move what is left and be done. */
long long fleet_slot(struct fleet *f, const char *key);
void fleet_move_begin(struct fleet *f, long long slot, int from, int to);
void fleet_move_key(struct fleet *f, int from, int to, const char *name);
void fleet_move_rest(struct fleet *f, long long slot, int from, int to);

#endif
