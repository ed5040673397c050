/* SPDX-License-Identifier: MIT
 *
 * conf.h - what the conformance tests have in common.
 *
 * The suite is given a URL and knows no service: what does not apply to one is
 * decided by the traits that the service declares, and by nothing else.  In
 * the URL, %T stands for a directory that each test gets fresh.  Keys are
 * unique to the run and the test, so that a living server can be tested again
 * and again.
 */
#ifndef CONF_H
#define CONF_H

#include "../t.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What hf_describe() said at the start. */
extern unsigned conf_traits;

/* Skip the test unless the service has all these traits. */
void conf_needs(unsigned traits);

/* What a call takes at least, or 0 where the service is near: what it takes
 * there is no time to reckon with. */
extern int64_t conf_trip_ms;

/* How many tests run at a time.  They wait for clocks most of the time, and each
 * has keys of its own; a program whose tests mind each other defines it as 1. */
extern int conf_jobs;

/* A length of time in which calls are made: `ms` where the service is near,
 * and the time of some calls more where it is not. */
int64_t conf_ms(int64_t ms);

/* How often something that takes calls is done: t_scaled(n, least) times where
 * the service is near, and a few times where it is not. */
int conf_times(int n, int least);

const char *conf_url(void);

/* A key of this test.  The string stays as it is for the next 63 calls. */
const char *conf_key(const char *suffix);

/* What every key of this test begins with. */
const char *conf_prefix(void);

hf_client *conf_open(void);

/* Options with their size set.  The lease is made longer by conf_ms(). */
struct hf_lock_opts conf_opts(int64_t ttl_ms, unsigned flags);

/* The same with this very lease, however far the service is. */
struct hf_lock_opts conf_exact_opts(int64_t ttl_ms, unsigned flags);

/* Acquire, or fail the test.  conf_lock() waits for up to half a minute. */
hf_lock *conf_lock(hf_client *client, const char *key,
                   const struct hf_lock_opts *opts);
hf_lock *conf_try(hf_client *client, const char *key,
                  const struct hf_lock_opts *opts);

/* Release a lock that must still be ours. */
void conf_unlock(hf_lock *lk);

struct hf_info conf_look(hf_client *client, const char *key);

/* Nobody holds the key or waits for it, as seen by inspect and list, and a
 * stranger gets it with one try. */
void conf_check_free(const char *key);

/* This very grant stands, as seen by `client`: by its fence, or where there is
 * none by its token. */
void conf_check_stands(hf_client *client, const hf_lock *lk);

/* A stranger does not get the key. */
void conf_check_busy(const char *key);

/* How many keys that begin with `prefix` are listed. */
int conf_count_listed(hf_client *client, const char *prefix);

/* Wait until `n` wait for the key, where the service can tell; else a moment
 * in which they surely have begun. */
void conf_await_waiters(hf_client *client, const char *key, int n);

bool conf_readable(int fd, int64_t ms);

/* The next event of the client, waiting for it on its descriptor. */
struct hf_event conf_event(hf_client *client);
void conf_no_event(hf_client *client);

/* The event HF_GONE, before which there may be one HF_AT_RISK. */
struct hf_event conf_gone(hf_client *client);

/* A thread that acquires and reports; see conf_waiter_start(). */
struct conf_waiter {
    hf_client *client;
    const char *key;
    int64_t wait_ms;
    const struct hf_lock_opts *opts;
    pthread_t thread;
    hf_status status;
    struct hf_error err;
    hf_lock *lk;
    int64_t began, ended;
    atomic_bool begun, done;
};

/* Start hf_acquire() in a thread; join it, check its status. */
void conf_waiter_start(struct conf_waiter *w, hf_client *client,
                       const char *key, int64_t wait_ms,
                       const struct hf_lock_opts *opts);
void conf_waiter_join(struct conf_waiter *w, hf_status want);

pthread_t conf_thread(void *(*fn)(void *), void *arg);

#endif
