/* SPDX-License-Identifier: MIT
 *
 * zkraw.h - ZooKeeper's C library without its threads, as the bare clients of
 * this directory use it: each handle belongs to one thread at a time.
 */
#ifndef BENCH_ZKRAW_H
#define BENCH_ZKRAW_H

#include <zookeeper/zookeeper.h>

/* A session with $HF_ZK_HOSTS, connected.  It lasts for ten minutes without a
 * ping, because nobody pings while a client is idle. */
zhandle_t *zkraw_open(void);

/* Wait for something and take it in; returns the descriptor. */
int zkraw_turn(zhandle_t *);

#endif
