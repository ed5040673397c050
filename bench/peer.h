/* SPDX-License-Identifier: MIT
 *
 * peer.h - a holdfast client on one key, as the benchmarks use it.
 */
#ifndef PEER_H
#define PEER_H

#include "bench.h"
#include "holdfast.h"

struct peer {
    char url[300];
    const char *key;
    struct hf_lock_opts opts;
    hf_client *client;
};

struct peer *peer_new(const char *url, const char *key);
void peer_open(void *peer);           /* the end if it fails */
void peer_cycle(void *peer, long n);  /* acquire and release, n times */
double peer_run(struct bench_case *); /* ns each; arg is an open peer */
hf_lock *peer_acquire(struct peer *); /* waits for it */
void peer_release(hf_lock *);
void peer_close(struct peer *);

#endif
