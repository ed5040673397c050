/* SPDX-License-Identifier: MIT
 *
 * peer.h - Curator and kazoo, each in a process of its own (curator-peer,
 * kazoo-peer, in $HF_ZK_PEERS), and told what to do through a pipe.
 */
#ifndef ZKT_PEER_H
#define ZKT_PEER_H

#include "zkt.h"

struct peer {
    FILE *in, *out;
    pid_t pid;
};

/* A layout that the peer and we have in common. */
struct peer_kind {
    const char *program, *options;
};

extern const struct peer_kind peer_curator, peer_kazoo;
/* The same with read-write locks. */
extern const struct peer_kind peer_curator_rw, peer_kazoo_rw;

/* What each test begins and ends with. */
struct peer_scene {
    struct peer peer;
    hf_client *a, *b;
    const char *key;
};

struct peer_scene peer_begin(const struct peer_kind *kind);
void peer_finish(struct peer_scene *s);

void peer_tell(struct peer *peer, const char *text);
bool peer_says(struct peer *peer, int ms); /* something, by then */
void peer_hear(struct peer *peer, const char *want);
void peer_do(struct peer *peer, const char *text, const char *want);

#endif
