/* SPDX-License-Identifier: MIT
 *
 * sim.h - a simulation of Redlock and its fence: clients, nodes and a network,
 * in which anything can happen between any two steps.
 *
 * The clients decide with the backend's own functions (redlock_rule.c, lease.c).
 * A node is a model of node.lua, and fence.c lets both answer the same
 * questions.  Everything follows from one seed.
 */
#ifndef REDLOCK_SIM_H
#define REDLOCK_SIM_H

#include <stdbool.h>
#include <stdint.h>

/* What may happen. */
struct sim_rules {
    int n;                 /* nodes */
    bool leaps;            /* clocks are set, so keys expire at any time */
    bool apart;            /* clocks are up to an hour apart */
    bool after_fork_child; /* nodes lose their data */
    bool strays; /* what a broken connection carried arrives at any time */

    /* Deliberate mistakes, which must be found. */
    bool no_write_back;    /* the largest proposal is returned at once */
    bool confirm_anything; /* nodes compare nothing */
    int confirm_quorum;    /* so many confirmations are enough; 0: as it is */
};

/* A node's part of the state: what node.lua keeps. */
struct sim_node {
    char token[33]; /* "": free */
    int64_t expires;
    uint64_t c, b;
    char k[33];
    char marks[4][33]; /* tokens that were broken and have not let go */
    int64_t skew_us;
    bool down;
};

/* A question to a node, and its answer. */
struct sim_ask {
    char op; /* A W R L B */
    char token[33];
    uint64_t fence;
    int64_t ttl_ms;
    bool restore;
};
struct sim_answer {
    int value;      /* A: 0 taken, 1 ours already, 2 another's; else as it is */
    uint64_t c;     /* A: what it has confirmed, */
    bool k_is_ours; /* for whom, */
    uint64_t clock; /* and when */
};

struct sim_answer sim_node_serve(struct sim_node *, const struct sim_ask *,
                                 int64_t now_us, bool confirm_anything);

/* Run `steps` of one seed; "" if all went well, else what went wrong.  `grants`
 * is increased by what was granted. */
const char *sim_run(const struct sim_rules *, uint64_t seed, int steps,
                    long *grants);

#endif
