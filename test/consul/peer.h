/* SPDX-License-Identifier: MIT
 *
 * peer.h - what the tests of consul: have in common: a shell, and Consul's own
 * tools as the other side.
 */
#ifndef PEER_H
#define PEER_H

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

/* How many sessions of ours and how many locked entries there are. */
int count_sessions(void);
int count_locked(void);

/* No session, lock or place of ours is left. */
void check_clean(void);

/* Wait until the lock is lost; it must be for this reason, and told by the
 * descriptor too. */
void check_lost(hf_lock *lk, hf_loss reason);

#endif
