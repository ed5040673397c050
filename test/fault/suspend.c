/* SPDX-License-Identifier: MIT
 *
 * suspend.c - a machine that was asleep: CLOCK_BOOTTIME has gone on, while
 * CLOCK_MONOTONIC has not.  No test can suspend its machine, so this program
 * has a clock of its own in front of the kernel's.
 */
#include "t.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t slept_s;

int clock_gettime(clockid_t clock, struct timespec *ret);

int clock_gettime(clockid_t clock, struct timespec *ret)
{
    int status = (int)syscall(SYS_clock_gettime, clock, ret);

    if (!status && clock == CLOCK_BOOTTIME)
        ret->tv_sec += atomic_load(&slept_s);
    return status;
}

static void check_after_sleep(const char *url, unsigned flags, bool held)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client;
    hf_lock *lk;

    opts.ttl_ms = 60000;
    opts.flags = flags;
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    CHECK(hf_held(lk));
    atomic_store(&slept_s, 3600);
    CHECK_EQ(hf_held(lk), held);
    CHECK_EQ(hf_remaining_ms(lk) > 0, held);
    CHECK_STATUS(hf_release(lk, &t_err), held ? HF_OK : HF_LOST);
    hf_close(client);
}

TEST(a_lease_is_over_after_a_night_of_sleep)
{
    check_after_sleep("mem:", 0, false);
}

TEST(a_lease_that_nobody_renews_is_over_after_a_night_of_sleep)
{
    check_after_sleep("mem:", HF_MANUAL, false);
}

TEST(a_file_lock_that_never_lapses_outlives_a_night_of_sleep)
{
    char url[512];

    snprintf(url, sizeof(url), "file:%s/locks", t_tmpdir());
    check_after_sleep(url, 0, true);
}

T_MAIN
