/* SPDX-License-Identifier: MIT
 *
 * redis.h - what the benchmarks on Redis share: the server that bench/redis
 * started for them, asked through bare hiredis.
 */
#ifndef BENCH_REDIS_H
#define BENCH_REDIS_H

#include "bench.h"

#include <hiredis/hiredis.h>

/* The URL of the server, from $HF_TEST_URL. */
const char *redis_url(void);

/* A connection of one's own, or the end. */
redisContext *redis_connect(void);

/* One command whose reply does not matter, or the end if it is an error. */
void redis_do(redisContext *, const char *fmt, ...);

/* The number after `name` in a section of INFO; 0 if it is not there. */
double redis_info(redisContext *, const char *section, const char *name);

/* The digest of the script that others release with: loaded. */
void redis_load_release(redisContext *, char digest[41]);

#endif
