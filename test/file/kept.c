/* SPDX-License-Identifier: MIT
 *
 * kept.c - a minimum hold on `file:`: a lock that is kept after its release, and
 * after the end of its process.
 */
#include "fixture.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Where the records of holders begin (src/backend/file/holders.c). */
#define TABLE_AT 4096

/* ---- what is kept ------------------------------------------------------ */

static void keep_it(hf_client *client, struct hf_lock_opts opts, int64_t ms)
{
    opts.min_hold_ms = ms;
    CHECK_OK(hf_release(fixture_acquire(client, opts), &t_err));
}

/* Write something else in place of a word in the file. */
static void overwrite(const char *word, const char *text)
{
    char buf[8192];
    int fd = open(fixture_file(), O_RDWR | O_CLOEXEC);
    ssize_t len = pread(fd, buf, sizeof(buf), 0);
    char *at = memmem(buf, (size_t)len, word, strlen(word));

    CHECK(at != NULL);
    CHECK_EQ(pwrite(fd, text, strlen(text), at - buf + (off_t)strlen(word)),
             strlen(text));
    close(fd);
}

TEST(a_lock_that_is_kept_outlives_its_process_but_not_the_boot)
{
    hf_client *client = fixture_open();
    struct hf_lock_opts opts = fixture_opts(0, 0);
    struct t_peer peer;

    opts.min_hold_ms = 3600000;
    peer = t_fork(fixture_wait_for_it, &opts);
    t_hear(&peer);
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK(fixture_inspect(client).kept);
    CHECK_GT(fixture_inspect(client).left_ms, 3000000);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_BUSY);
    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_BUSY);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_INVALID);
    CHECK_STATUS(fixture_try_flock(LOCK_EX),
                 HF_OK);            /* It knows nothing of that. */
    overwrite("kept=", "00000000"); /* It was in another boot. */
    CHECK(!fixture_inspect(client).held);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_OK);
    hf_close(client);
}

TEST(a_time_that_has_not_begun_keeps_nothing)
{
    hf_client *client = fixture_open();

    keep_it(client, fixture_opts(0, 0), 3600000);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_BUSY);
    overwrite(" from=", "99999"); /* The clock has begun anew since. */
    CHECK(!fixture_inspect(client).held);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    hf_close(client);
}

TEST(a_reader_that_is_kept_lets_readers_in_and_writers_not)
{
    hf_client *client = fixture_open();
    struct fixture_holders seen;
    hf_lock *lk;

    keep_it(client, fixture_opts(HF_SHARED, 0), 3600000);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_BUSY);
    lk = fixture_acquire(client, fixture_opts(HF_SHARED, 0));
    seen = fixture_holders(client);
    CHECK_EQ(seen.n, 2);
    CHECK_EQ(seen.holder[0].kept + seen.holder[1].kept, 1);
    /* The one that is kept is freed; the other stays. */
    CHECK_OK(hf_break_force(client, "job",
                            seen.holder[seen.holder[1].kept].fence, &t_err));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(fixture_holders(client).n, 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    hf_close(client);
}

TEST(a_permit_that_is_kept_has_its_slot)
{
    hf_client *client = fixture_open();
    uint64_t fence;
    hf_lock *lk;

    keep_it(client, fixture_opts(0, 2), 3600000);
    fence = fixture_inspect(client).fence;
    CHECK_EQ(fixture_inspect(client).slot, 0);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_INVALID);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 3)), HF_INVALID);
    lk = fixture_acquire(client, fixture_opts(0, 2));
    CHECK_EQ(hf_slot(lk), 1);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_BUSY);
    CHECK_OK(hf_break_force(client, "job", fence, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_OK);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    hf_close(client);
}

/* flock(1) takes what is only kept; that it is freed changes nothing then. */
TEST(flock_keeps_a_kept_lock_that_is_freed_by_force)
{
    hf_client *client = fixture_open();
    struct t_peer stranger;
    uint64_t fence;

    keep_it(client, fixture_opts(0, 0), 3600000);
    fence = fixture_inspect(client).fence;
    stranger = t_fork(fixture_flock, NULL);
    t_hear(&stranger);
    CHECK_OK(hf_break_force(client, "job", fence, &t_err));
    CHECK_STATUS(hf_break_force(client, "job", fence, &t_err), HF_LOST);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_BUSY);
    t_tell(&stranger, 0);
    t_join(&stranger);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    CHECK_GT(fixture_inspect(client).fence, fence);
    hf_close(client);
}

TEST(a_process_without_descriptors_keeps_its_lock_and_honours_others)
{
    struct hf_lock_opts opts = fixture_opts(0, 0);
    hf_client *client = fixture_open();
    struct rlimit old;
    hf_status st;
    hf_lock *lk;

    opts.min_hold_ms = 3600000;
    lk = fixture_acquire(client, opts);
    old = fixture_limit_descriptors(0);
    st = hf_release(lk, &t_err);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    CHECK_STATUS(st, HF_OK);
    CHECK(fixture_inspect(client).kept);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_BUSY);
    old = fixture_limit_descriptors(1); /* that of the lock file */
    st = fixture_try(client, fixture_opts(0, 0));
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    CHECK_STATUS(st, HF_BUSY);
    hf_close(client);
}

/* Its equal has let go; what is kept is kept for it alone. */
TEST(an_owner_whose_equal_is_kept_is_not_downgraded)
{
    struct hf_lock_opts opts = fixture_opts(0, 0);
    hf_client *client = fixture_open();
    struct t_peer peer;
    hf_lock *lk;

    opts.owner = "me";
    lk = fixture_acquire(client, opts);
    opts.min_hold_ms = 3600000;
    peer = t_fork(fixture_wait_for_it, &opts);
    t_hear(&peer);
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_INVALID);
    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_BUSY);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_BUSY);
    hf_close(client);
}

/* The clock goes on by two hours at one of the times that this thread reads it. */
static _Thread_local int reads_left;
static atomic_int hours;

int clock_gettime(clockid_t clock, struct timespec *ret)
{
    if (reads_left && clock == CLOCK_BOOTTIME && !--reads_left)
        hours += 2;
    if (syscall(SYS_clock_gettime, clock, ret))
        return -1;
    if (clock == CLOCK_BOOTTIME)
        ret->tv_sec += hours * 3600;
    return 0;
}

/* What is kept may end while another looks at it: that joins nothing. */
TEST(an_owner_never_joins_its_own_grant_that_was_kept)
{
    struct hf_lock_opts opts = fixture_opts(0, 2);
    hf_client *client = fixture_open();
    uint64_t fence;
    hf_lock *lk;

    opts.owner = "me";
    for (int i = 1; i <= 30; i++) {
        keep_it(client, opts, 3600000);
        fence = fixture_inspect(client).fence;
        reads_left = i;
        lk = fixture_acquire(client, opts);
        reads_left = 0;
        CHECK_GT(hf_fence(lk), fence);
        CHECK_OK(hf_release(lk, &t_err));
        hours += 2;
    }
    hf_close(client);
}

T_MAIN
