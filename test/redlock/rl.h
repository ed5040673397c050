/* SPDX-License-Identifier: MIT
 *
 * rl.h - several real Redis servers for tests of their majority.
 */
#ifndef RL_H
#define RL_H

#include "../redis/rt.h"

#define RL_N 5

struct rl {
    struct rt_server nodes[RL_N];
    char url[512];
};

/* Start five servers; `more` are options of the URL ("&node=200ms"), `disk` is
 * whether they have on disk what they said. */
void rl_start(struct rl *rl, const char *more, bool disk);

/* The same, with something to be done before each. */
void rl_start_with(struct rl *rl, const char *more, void (*before)(int node));

/* Every node has no lock any more, soon; then stop them all. */
void rl_end(struct rl *rl);
void rl_check_clean(struct rl *rl);

hf_client *rl_open(const struct rl *rl);

/* Send a signal to the nodes of a set. */
void rl_signal(struct rl *rl, unsigned nodes, int sig);

/* On how many nodes the key "holdfast:KEY" has this value; NULL: any. */
int rl_count(struct rl *rl, const char *key, const char *value);

/* How many stand in line for `k` at this node. */
long long rl_in_line(struct rl *rl, int node);

hf_status rl_try(hf_client *client, const char *key, int64_t ttl_ms,
                 hf_lock **ret);

/* The next number that follows from a seed. */
uint64_t rl_random(uint64_t *state);

#endif
