/* SPDX-License-Identifier: MIT
 *
 * descriptors.c - looking at locks while the process has few descriptors left.
 *
 * What is said is either complete or an error: with any number of descriptors
 * to spare, and the few that one look needs are enough for any number of keys
 * of any length.
 */
#include "fixture.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

/* Descriptors that a look needs: a directory, a file in it, a file of /proc; and
 * to find those who wait a directory of /proc more. */
#define ENOUGH         3
#define ENOUGH_WAITERS 4

enum { KEYS = 12 };

/* Each key is longer than the one before: the last is seven directories deep. */
static const char *key_at(int i)
{
    static char key[KEYS * 140 + 1];
    int len = 1 + i * 140;

    if (len > 1000)
        len = 1000 - i;
    memset(key, 'a' + i, (size_t)len);
    key[len] = '\0';
    for (int at = 0; at < len && i > 6; at++)
        key[at] = '/'; /* Each becomes three bytes of a file name. */
    return key;
}

static void take_keys(hf_client *client, hf_lock **locks)
{
    for (int i = 0; i < KEYS; i++)
        CHECK_OK(hf_acquire(client, key_at(i), 0, NULL, &locks[i], &t_err));
}

static bool count_key(void *arg, const char *key, const struct hf_info *info)
{
    (void)key;
    *(int *)arg += info->held;
    return true;
}

static hf_status list(hf_client *client, int *found)
{
    return hf_list(client, NULL, count_key, found, &t_err);
}

static bool count_holder(void *arg, const struct hf_info *info)
{
    *(int *)arg += info->held;
    return true;
}

static hf_status holders(hf_client *client, int *found)
{
    return hf_holders(client, "job", count_holder, found, &t_err);
}

static bool count_waiter(void *arg, const struct hf_waiter *waiter)
{
    (void)waiter;
    ++*(int *)arg;
    return true;
}

static hf_status waiters(hf_client *client, int *found)
{
    return hf_waiters(client, "job", count_waiter, found, &t_err);
}

static hf_status collect(hf_client *client, int *found)
{
    struct hf_collected ret = HF_COLLECTED_INIT;
    hf_status st = hf_collect(client, 3600000, true, &ret, &t_err);

    *found = (int)ret.looked_at;
    return st;
}

/* With so many descriptors left, it finds `want` or says why it cannot. */
static void check_complete(hf_client *client,
                           hf_status (*look)(hf_client *, int *), int want,
                           int enough)
{
    int more, found;
    struct rlimit old;
    hf_status st;

    for (more = 0; more <= enough; more++) {
        found = 0;
        old = fixture_limit_descriptors(more);
        st = look(client, &found);
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
        if (more == enough)
            CHECK_STATUS(st, HF_OK);
        if (st == HF_OK) {
            CHECK_EQ(found, want);
            continue;
        }
        CHECK_EQ(t_err.sys_errno, EMFILE);
        CHECK_STATUS(st, HF_SYSTEM);
    }
}

TEST(a_listing_without_descriptors_is_complete_or_fails)
{
    hf_client *client = fixture_open();
    hf_lock *locks[KEYS];

    take_keys(client, locks);
    check_complete(client, list, KEYS, ENOUGH);
    check_complete(client, collect, KEYS, ENOUGH);
    for (int i = 0; i < KEYS; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    hf_close(client);
}

/* Strangers are known from /proc only. */
TEST(a_stranger_is_found_without_descriptors_or_the_look_fails)
{
    hf_client *client = fixture_open();
    struct t_peer stranger;

    CHECK_OK(fixture_try(client, fixture_opts(0, 0)));
    stranger = t_fork(fixture_flock, NULL);
    t_hear(&stranger);
    check_complete(client, holders, 1, ENOUGH);
    check_complete(client, list, 1, ENOUGH);
    t_tell(&stranger, 0);
    t_join(&stranger);
    hf_close(client);
}

/* When told: a process with threads is not forked under a sanitizer. */
static void wait_when_told(struct t_peer *up, void *arg)
{
    t_hear(up);
    fixture_wait_for_it(up, arg);
}

/* The waiter is another process: its own descriptors are not counted here. */
TEST(a_waiter_is_found_without_descriptors_or_the_look_fails)
{
    struct hf_lock_opts opts = fixture_opts(0, 0);
    struct t_peer waiter = t_fork(wait_when_told, &opts);
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, opts);

    t_tell(&waiter, 0);
    t_poll_until(fixture_inspect(client).waiters == 1, 20000);
    check_complete(client, waiters, 1, ENOUGH_WAITERS);
    CHECK_OK(hf_release(lk, &t_err));
    t_hear(&waiter);
    t_tell(&waiter, 0);
    t_join(&waiter);
    hf_close(client);
}

T_MAIN
