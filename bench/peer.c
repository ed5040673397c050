/* SPDX-License-Identifier: MIT
 *
 * peer.c - a holdfast client on one key; see peer.h.
 *
 * Every status is checked: a benchmark of calls that fail is worth nothing.
 */
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>

struct peer *peer_new(const char *url, const char *key)
{
    struct peer *peer = bench_alloc(sizeof(*peer));

    snprintf(peer->url, sizeof(peer->url), "%s", url);
    peer->key = key;
    peer->opts = (struct hf_lock_opts)HF_LOCK_OPTS_INIT;
    return peer;
}

void peer_open(void *arg)
{
    struct peer *peer = arg;
    struct hf_error err;

    if (hf_open(peer->url, NULL, &peer->client, &err))
        bench_die("%s", err.text);
}

hf_lock *peer_acquire(struct peer *peer)
{
    struct hf_error err;
    hf_lock *lock;

    if (hf_acquire(peer->client, peer->key, -1, &peer->opts, &lock, &err))
        bench_die("%s", err.text);
    return lock;
}

void peer_release(hf_lock *lock)
{
    struct hf_error err;

    if (hf_release(lock, &err))
        bench_die("%s", err.text);
}

void peer_cycle(void *arg, long n)
{
    struct peer *peer = arg;

    while (n-- > 0)
        peer_release(peer_acquire(peer));
}

double peer_run(struct bench_case *one)
{
    int64_t begin = bench_now();

    peer_cycle(one->arg, one->ops);
    return (double)(bench_now() - begin) / (double)one->ops;
}

void peer_close(struct peer *peer)
{
    hf_close(peer->client);
    free(peer);
}
