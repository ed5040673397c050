/* SPDX-License-Identifier: MIT
 *
 * fixture.h - a directory of locks of the test's own, and the lock `job` in it.
 */
#ifndef HF_TEST_FILE_FIXTURE_H
#define HF_TEST_FILE_FIXTURE_H

#include <sys/resource.h>

#include "../t.h"

/* A path in this test's directory; good for the next seven calls of a thread. */
__attribute__((format(printf, 1, 2))) const char *fixture_path(const char *fmt,
                                                               ...);

/* The lock file of `job`. */
const char *fixture_file(void);

/* hf_open() of the locks in `dir`. */
hf_status fixture_open_at(const char *dir, hf_client **ret);

/* A client on the directory `locks`, which is made if it is not there, with
 * `options` behind the URL. */
hf_client *fixture_open_with(const char *options);
hf_client *fixture_open(void);

struct hf_info fixture_inspect(hf_client *client);

/* Options with these flags and permits. */
struct hf_lock_opts fixture_opts(unsigned flags, int32_t permits);

/* Acquire `job` at once; or acquire it if it is free, and release it. */
hf_lock *fixture_acquire(hf_client *client, struct hf_lock_opts opts);
hf_status fixture_try(hf_client *client, struct hf_lock_opts opts);

/* flock(2) of the lock file of `job` by somebody else, without waiting. */
hf_status fixture_try_flock(int mode);

/* For t_fork(): acquire `job` with the struct hf_lock_opts, tell the slot, and
 * release it when told. */
void fixture_wait_for_it(struct t_peer *up, void *arg);

/* All holders of `job`. */
struct fixture_holders {
    struct hf_info holder[8];
    int n;
};
struct fixture_holders fixture_holders(hf_client *client);

/* For t_fork(): hold flock(2) of the lock file until told. */
void fixture_flock(struct t_peer *up, void *arg);
void fixture_flock_shared(struct t_peer *up, void *arg);

void fixture_write(const char *name, const char *text);

/* Run a shell command; its exit status. */
__attribute__((format(printf, 1, 2))) int fixture_shell(const char *fmt, ...);

/* Let the process have `more` descriptors beside those that it has; returns the
 * limit to set again. */
struct rlimit fixture_limit_descriptors(int more);

/* Mount a small tmpfs of our own at `dir`. */
void fixture_mount(const char *dir);

#endif
