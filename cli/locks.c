/* SPDX-License-Identifier: MIT
 *
 * locks.c - the locks of a run as one.
 *
 * `run KEY --and KEY2` holds several locks or none.  They are held as long as
 * all of them are, and can be relied on for as long as the first of them that
 * ends: the command is ended when any of them is lost.
 */
#include "run.h"

#include <inttypes.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

hf_status locks_acquire(struct run *run, const struct hf_lock_opts *opts,
                        struct hf_error *err)
{
    struct run_locks *locks = &run->locks;

    return hf_acquire_all(run->client, locks->keys, locks->n, 0, opts,
                          locks->lock, err);
}

hf_status locks_acquire_start(struct run *run, int64_t wait_ms,
                              const struct hf_lock_opts *opts, hf_request **ret,
                              struct hf_error *err)
{
    struct run_locks *locks = &run->locks;

    return hf_acquire_all_start(run->client, locks->keys, locks->n, wait_ms,
                                opts, locks->lock, NULL, ret, err);
}

/* The first that is lost, or NULL. */
static hf_lock *locks_find_lost(const struct run *run)
{
    for (size_t i = 0; i < run->locks.n; i++)
        if (!hf_held(run->locks.lock[i]))
            return run->locks.lock[i];
    return NULL;
}

bool locks_held(const struct run *run)
{
    return !locks_find_lost(run);
}

hf_loss locks_loss(const struct run *run)
{
    return hf_lost_reason(locks_find_lost(run));
}

const char *locks_lost_key(const struct run *run)
{
    const hf_lock *lost = run->locks.lock[0] ? locks_find_lost(run) : NULL;

    for (size_t i = 0; lost && i < run->locks.n; i++)
        if (run->locks.lock[i] == lost)
            return run->locks.keys[i];
    return run->key;
}

int64_t locks_remaining(const struct run *run)
{
    int64_t least = INT64_MAX;

    for (size_t i = 0; i < run->locks.n; i++) {
        int64_t left = hf_remaining_ms(run->locks.lock[i]);

        least = left < least ? left : least;
    }
    return least;
}

bool locks_extend(const struct run *run)
{
    bool ok = true;

    for (size_t i = 0; i < run->locks.n; i++)
        ok = hf_extend(run->locks.lock[i], 0, NULL) == HF_OK && ok;
    return ok;
}

/* One descriptor for all; -1 if there is none left. */
int locks_lost_fd(const struct run *run)
{
    int all;

    if (run->locks.n == 1)
        return hf_lost_fd(run->locks.lock[0]);
    all = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; all >= 0 && i < run->locks.n; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        int fd = hf_lost_fd(run->locks.lock[i]);

        if (fd < 0 || epoll_ctl(all, EPOLL_CTL_ADD, fd, &event)) {
            close(all);
            return -1;
        }
    }
    return all;
}

/* The fences in the order of the keys, with a blank between. */
void locks_fences(const struct run *run, char ret[LOCKS_FENCES])
{
    size_t used = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < run->locks.n; i++)
        used += (size_t)snprintf(ret + used, LOCKS_FENCES - used, "%s%" PRIu64,
                                 i ? " " : "", run->locks.fence[i]);
}

/* Give back a lock that nothing was done under: --min-hold does not count for one
 * that was detached. */
static hf_status locks_undo(hf_client *client, const char *key, hf_lock *lock,
                            const struct hf_lock_opts *opts,
                            struct hf_error *err)
{
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_status st = hf_detach(lock, &handle, err);

    return st ? st : hf_handle_release(client, key, &handle, opts, err);
}

/* `unused` is what they were taken with, if no command has run and --min-hold
 * must not count; else NULL. */
hf_status locks_release(hf_client *client, struct run_locks *locks,
                        const struct hf_lock_opts *unused, struct hf_error *err)
{
    hf_status ret = HF_OK;

    for (size_t i = 0; i < locks->n; i++) {
        struct hf_error one = {.status = HF_OK};
        hf_status st = unused ? locks_undo(client, locks->keys[i],
                                           locks->lock[i], unused, &one)
                              : hf_release(locks->lock[i], &one);

        if (st && (!ret || st == HF_LOST)) {
            ret = st;
            *err = one;
        }
        locks->lock[i] = NULL;
    }
    return ret;
}
