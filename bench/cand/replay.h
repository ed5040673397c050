/* SPDX-License-Identifier: MIT
 *
 * replay.h - the commands that holdfast itself sends for a pair.
 */
#ifndef REPLAY_H
#define REPLAY_H

#include "cand.h"

#include <hiredis/hiredis.h>

/* Watch one pair of holdfast on the server at `url`, and keep its commands. */
void replay_learn(redisContext *, const char *url);

/* Append the commands that take (phase 0) or give (phase 1) a key; returns how
 * many replies there will be.  Each must pass replay_check(). */
int replay_append(redisContext *, int phase, const char *key);

/* End the program unless the server did what it did for holdfast. */
void replay_check(const redisReply *);

#endif
