/* SPDX-License-Identifier: MIT
 *
 * native.h - the service's own watch of a key, without holdfast.
 *
 * A kind is what one service offers: its bare client learns that the key has
 * another holder, and who that is, with the fewest requests.  It does not
 * connect again, knows neither leases nor fences and never takes a look in case
 * a message was lost: that is what holdfast has to do beyond it.
 */
#ifndef BENCH_NATIVE_H
#define BENCH_NATIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct native;

/* One connection to the service, or two; what a kind has begins with this. */
struct native_client {
    struct native *all;
    int fds[2];  /* to be polled, or -1 */
    int watches; /* of the key, by this client */
};

struct native_kind {
    const char *scheme, *name;
    bool together; /* one client can watch a key several times */
    size_t size;   /* of its client */

    /* Connect, and begin to watch.  The state at this moment is known. */
    void (*open)(struct native_client *, const char *key);

    /* Something can be read; it never waits. */
    void (*hear)(struct native_client *);
    void (*close)(struct native_client *);
};

/* The one for a URL, or NULL. */
const struct native_kind *native_find(const char *url);

/* So many clients with so many watches each, served by one thread. */
struct native *native_open(const struct native_kind *, const char *key,
                           int clients, int watches);

/* Until every watch has told of one holder more; returns when the last did. */
int64_t native_await(struct native *);
void native_close(struct native *);

/* For a kind: one of the watches knows the new holder. */
void native_told(struct native_client *);

/* Host and port of $HF_TEST_URL, which names one server. */
void native_where(char host[256], int *port);

extern const struct native_kind native_etcd, native_redis, native_zk;

#endif
