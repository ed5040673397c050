/* SPDX-License-Identifier: MIT
 *
 * peer.h - what the tests of consul: have in common: a shell, and Consul's own
 * tools as the other side.
 */
#ifndef PEER_H
#define PEER_H

#include <pthread.h>
#include <stdatomic.h>

#include "t.h"

/* Run a command of the shell; its exit status.  $C in it is the address of the
 * first server's HTTP interface. */
int sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* What a command prints, without blanks and line ends.  The string stays as it
 * is for the next seven calls. */
const char *out(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The URL of the private server, with `options` ("" or "?...") behind it. */
const char *url(const char *options);

hf_client *open_url(const char *address);
hf_lock *lock(hf_client *client, const char *key, int64_t ttl_ms,
              int64_t wait_ms);

/* How many sessions of ours there are that carry locks or places, how many that
 * have keys locked for several holders, and how many locked entries. */
int count_sessions(void);
int count_common(void);
int count_locked(void);

/* No session, lock or place of ours is left. */
void check_clean(void);

/* Wait until the lock is lost; it must be for this reason, and told by the
 * descriptor too. */
void check_lost(hf_lock *lk, hf_loss reason);

/* How many entries of holders are below the key, whether they hold or not. */
int count_holders(const char *key);

/* How many of these hold, and how many entries whose names begin so are
 * locked. */
int count_live_holders(const char *key);
int count_locked_below(const char *name);

/* The Flags of an entry, its ModifyIndex, and the end of the session that has
 * locked the first entry whose name begins so. */
const char *flags_of(const char *key);
unsigned long long index_of(const char *key);
void end_session_of(const char *name);

/* Another program locks the entry, which no session has after the shell command
 * `first`. */
void steal(const char *name, const char *first);

/* A thread that waits for a lock. */
struct peer_waiter {
    hf_client *client;
    const char *key;
    struct hf_lock_opts opts;
    atomic_bool done;
    pthread_t thread;
    hf_lock *lk;
};

void waiter_start(struct peer_waiter *w, hf_client *client, const char *key,
                  unsigned flags);
void waiter_start_as(struct peer_waiter *w, hf_client *client, const char *key,
                     unsigned flags, const char *owner);
void waiter_release(struct peer_waiter *w);

#endif
