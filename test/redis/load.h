/* SPDX-License-Identifier: MIT
 *
 * load.h - a few clients that take one lock in turn, while a test does things
 * to the servers.
 */
#ifndef LOAD_H
#define LOAD_H

#include "rt.h"

#define LOAD_MEMBERS 3

struct load {
    const char *url, *key;
    int64_t ttl_ms; /* 0: 2 s */
    atomic_bool stop;
    atomic_bool may_forget; /* the service may forget a grant now */
    atomic_int inside;      /* members that are in it and believe in it */
    atomic_int grants[LOAD_MEMBERS];
    _Atomic uint64_t newest; /* fence of all grants so far */
    struct load_member {
        struct load *load;
        int id;
        pthread_t thread;
    } member[LOAD_MEMBERS];
};

void load_start(struct load *load);
void load_stop(struct load *load);

/* Everybody is granted the lock ten times more, within 20 s each. */
void load_check_goes_on(struct load *load);

#endif
