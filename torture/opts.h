/* SPDX-License-Identifier: MIT
 *
 * opts.h - the command line of holdfast-torture.
 */
#ifndef OPTS_H
#define OPTS_H

#include <stdbool.h>
#include <stdint.h>

struct opts {
    const char *url;
    const char *check;   /* judge this history, and nothing else */
    const char *history; /* keep it here */
    const char *hook;
    const char *shim, *points;
    const char *prefix;
    const char *client, *dir, *inside; /* hidden: who we are */
    int processes, threads, keys;
    int64_t duration_ms, ttl_ms, slack_ms, trip_ms;
    uint64_t seed;
    unsigned workloads; /* 0: all of them */
    uint64_t faults;
    bool faults_named, by_fence, verbose;
};

/* An exit status, or -1: go on. */
int opts_parse(int argc, char **argv, struct opts *ret);

#endif
