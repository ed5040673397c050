/* SPDX-License-Identifier: MIT
 *
 * client.h - what the files of a client process share: client.c (the process and
 * its threads), work.c (a lock is held), workload.c (the ways to get one).
 */
#ifndef TORTURE_CLIENT_H
#define TORTURE_CLIENT_H

#include "torture.h"

struct worker {
    struct shared *shared;
    const char *dir, *url;
    hf_client *client;
    hf_client *own; /* with events of its own; opened when it is needed */
    int log;
    struct who who;
    uint64_t chance;
    int runs; /* how many commands it has run */
    pthread_t thread;
};

/* One acquisition and what became of it. */
struct work {
    struct worker *w;
    hf_lock *lock;
    int key;
    unsigned asked; /* enum ask */
    uint64_t fence;
    int64_t until; /* as told last; -1: for ever */
};

uint64_t worker_chance(struct worker *w, uint64_t below);
void worker_log(struct worker *w, enum what what, int key, uint64_t fence,
                int64_t number, const char *text);

/* work.c: the lock was granted; returns when it has been given back. */
void work_hold(struct worker *w, int key, unsigned asked, hf_lock *lock);
int64_t work_lease(struct worker *w); /* any length up to the ttl */

/* workload.c: one turn. */
void workload_turn(struct worker *w);

/* run.c: a command under `holdfast run' or `holdfast elect'. */
void run_turn(struct worker *w, int key, bool elect);

#endif
