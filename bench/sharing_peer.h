/* SPDX-License-Identifier: MIT
 *
 * sharing_peer.h - other libraries at the end of a pipe, asked by sharing.c.
 *
 * They are the candidates of bench/compare (cand/cand.h), which also know
 *
 *   readers T MS      T threads share one key, for MS milliseconds  ok COUNT NS
 *   among C MS N      C clients want N permits of one key, or the   ok COUNT NS
 *                     plain lock with N = 0
 */
#ifndef SHARING_PEER_H
#define SHARING_PEER_H

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

struct sharing_peer {
    const char *name;
    FILE *to, *from;
    pid_t pid;
};

/* Start those that there are for this service, at most `room`; how many. */
size_t sharing_peers_start(const char *url, struct sharing_peer *, size_t room);

/* How many turns a second its answer says. */
double sharing_peer_ask(struct sharing_peer *, const char *question);
void sharing_peers_end(struct sharing_peer *, size_t n);

#endif
