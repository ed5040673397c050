/* SPDX-License-Identifier: MIT
 *
 * permits.c - lock files of `file:` with permits, across processes and next to
 * flock(1); and one of several holders that is freed by force.
 */
#include "fixture.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where the records of holders begin (src/backend/file/holders.c). */
#define TABLE_AT 4096

/* ---- permits ----------------------------------------------------------- */

TEST(the_slot_of_a_dead_process_is_free_at_once)
{
    struct hf_lock_opts three = fixture_opts(0, 3);
    hf_client *client = fixture_open();
    struct t_peer peers[3], next;

    for (int i = 0; i < 3; i++) {
        peers[i] = t_fork(fixture_wait_for_it, &three);
        CHECK_EQ(t_hear(&peers[i]), i);
    }
    CHECK_STATUS(fixture_try(client, three), HF_BUSY);
    CHECK_EQ(fixture_inspect(client).holders, 3);
    next = t_fork(fixture_wait_for_it, &three);
    t_poll_until(fixture_inspect(client).waiters == 1, 20000);
    t_kill(&peers[1]);
    CHECK_EQ(t_hear(&next), 1);
    CHECK_STATUS(fixture_try(client, three), HF_BUSY);
    t_kill(&peers[0]);
    t_kill(&peers[2]);
    t_kill(&next);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    hf_close(client);
}

TEST(an_owner_has_one_permit_in_all_its_processes)
{
    struct hf_lock_opts opts = fixture_opts(0, 2);
    hf_client *client = fixture_open();
    struct t_peer peer;
    hf_lock *lk, *other;

    opts.owner = "worker";
    lk = fixture_acquire(client, opts);
    peer = t_fork(fixture_wait_for_it, &opts);
    CHECK_EQ(t_hear(&peer), hf_slot(lk));
    other = fixture_acquire(client, fixture_opts(0, 2));
    CHECK_NE(hf_slot(other), hf_slot(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_BUSY);
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_OK);
    CHECK_OK(hf_release(other, &t_err));
    hf_close(client);
}

TEST(permits_and_flock_exclude_each_other)
{
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(0, 2));
    int fd;

    CHECK_STATUS(fixture_try_flock(LOCK_EX), HF_BUSY);
    CHECK_STATUS(fixture_try_flock(LOCK_SH), HF_OK);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    fd = open(fixture_file(), O_RDWR | O_CLOEXEC);
    CHECK_EQ(flock(fd, LOCK_SH), 0);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_OK);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    /* A stranger has it, which is no use as a plain lock of ours; here it is
     * the process of the last holder. */
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_BUSY);
    close(fd);
    hf_close(client);
}

TEST(permits_are_busy_and_not_refused_while_flock_holds)
{
    hf_client *client = fixture_open();
    struct t_peer peer;

    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    peer = t_fork(fixture_flock, NULL);
    t_hear(&peer);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_BUSY);
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 2)), HF_OK);
    hf_close(client);
}

/* ---- breaking by force ------------------------------------------------- */

TEST(of_several_permits_only_the_one_that_is_meant_is_freed_by_force)
{
    struct hf_lock_opts manual = fixture_opts(HF_MANUAL, 2);
    hf_client *client = fixture_open(), *other = fixture_open();
    hf_lock *stuck, *lk, *next;
    int slot;

    manual.ttl_ms = 600000; /* It does not look before it asks. */
    stuck = fixture_acquire(client, manual);
    lk = fixture_acquire(other, fixture_opts(0, 2));
    slot = hf_slot(stuck);
    CHECK_OK(hf_break_force(other, "job", hf_fence(stuck), &t_err));
    CHECK_STATUS(hf_check(other, "job", hf_fence(stuck), &t_err), HF_LOST);
    next = fixture_acquire(other, fixture_opts(0, 2));
    CHECK_EQ(hf_slot(next), slot);
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_STATUS(hf_extend(stuck, 0, &t_err), HF_LOST);
    CHECK_EQ(hf_lost_reason(stuck), HF_LOSS_BROKEN);
    hf_release(stuck, NULL);
    CHECK_OK(hf_extend(next, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(client);
    hf_close(other);
}

TEST(a_writer_passes_a_reader_that_was_freed_by_force_and_no_other)
{
    struct hf_lock_opts manual = fixture_opts(HF_SHARED | HF_MANUAL, 0);
    hf_client *client = fixture_open(), *other = fixture_open();
    hf_lock *stuck, *lk, *writer;

    manual.ttl_ms = 600000;
    stuck = fixture_acquire(client, manual);
    lk = fixture_acquire(other, fixture_opts(HF_SHARED, 0));
    CHECK_OK(hf_break_force(other, "job", hf_fence(stuck), &t_err));
    CHECK_EQ(fixture_holders(other).n, 1);
    CHECK_STATUS(fixture_try(other, fixture_opts(0, 0)), HF_BUSY);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    writer = fixture_acquire(other, fixture_opts(0, 0));
    CHECK_STATUS(hf_extend(stuck, 0, &t_err), HF_LOST);
    hf_release(stuck, NULL);
    CHECK_OK(hf_extend(writer, 0, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_BUSY);
    CHECK_OK(hf_release(writer, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_OK);
    hf_close(client);
    hf_close(other);
}

/* What happens just before a file is made in place of the old one, and just
 * before that has the key's name. */
static hf_client *second;
static hf_status second_status;

/* Called between two steps of a break by force. */
static void (*before_making)(void), (*before_naming)(void);

int openat64(int dir, const char *path, int flags, ...)
{
    void (*then)(void) = before_making;
    unsigned mode;
    va_list args;

    va_start(args, flags);
    mode = va_arg(args, unsigned);
    va_end(args);
    if (then && !strncmp(path, ".new-", 5)) {
        before_making = NULL;
        then();
    }
    return (int)syscall(SYS_openat, dir, path, flags, mode);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
    void (*then)(void) = before_naming;

    before_naming = NULL;
    if (then)
        then();
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

static hf_lock *joined, *stuck_lock;

static void join_readers(void)
{
    joined = fixture_acquire(second, fixture_opts(HF_SHARED, 0));
}

static void join_permits(void)
{
    joined = fixture_acquire(second, fixture_opts(0, 2));
}

/* Who comes in after the operator has looked and before the file would be
 * replaced has a grant that nobody has broken. */
static void check_newcomer(struct hf_lock_opts opts, void (*join)(void),
                           hf_status others)
{
    hf_client *client = fixture_open();
    hf_lock *stuck;

    opts.flags |= HF_MANUAL;
    opts.ttl_ms = 600000; /* It does not look before it asks. */
    stuck = fixture_acquire(client, opts);
    second = fixture_open();
    before_making = join;
    CHECK_OK(hf_break_force(client, "job", hf_fence(stuck), &t_err));
    CHECK(before_making == NULL);
    CHECK_STATUS(hf_extend(stuck, 0, &t_err), HF_LOST);
    CHECK_OK(hf_extend(joined, 0, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), others);
    CHECK_EQ(fixture_holders(client).n, 1);
    hf_release(stuck, NULL);
    CHECK_OK(hf_release(joined, &t_err));
    /* What was lost is given back in the background. */
    t_poll_until(fixture_try(client, fixture_opts(0, 0)) == HF_OK, 30000);
    hf_close(client);
    hf_close(second);
}

TEST(a_reader_that_comes_to_one_that_is_freed_by_force_keeps_writers_out)
{
    check_newcomer(fixture_opts(HF_SHARED, 0), join_readers, HF_BUSY);
}

TEST(a_permit_that_comes_to_one_that_is_freed_by_force_is_counted)
{
    check_newcomer(fixture_opts(0, 2), join_permits, HF_INVALID);
}

static void change_holder(void)
{
    struct hf_lock_opts opts = fixture_opts(0, 0);

    CHECK_OK(hf_release(stuck_lock, &t_err));
    second_status = hf_acquire(second, "job", 0, &opts, &joined, &t_err);
}

/* The holder lets go while its file is being replaced: nobody gets that one. */
TEST(who_comes_in_the_moment_of_a_break_by_force_is_not_hit)
{
    hf_client *client = fixture_open(), *other = fixture_open();
    hf_lock *next;

    second = fixture_open();
    joined = NULL;
    stuck_lock = fixture_acquire(client, fixture_opts(0, 0));
    before_naming = change_holder;
    CHECK_OK(hf_break_force(other, "job", hf_fence(stuck_lock), &t_err));
    CHECK(before_naming == NULL);
    next = fixture_acquire(other, fixture_opts(0, 0));
    CHECK(!joined || !hf_held(joined));
    CHECK_STATUS(second_status, HF_BUSY);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(client);
    hf_close(other);
    hf_close(second);
}

/* flock(1) has done nothing: a writer waits for it. */
static void check_stranger(struct hf_lock_opts opts)
{
    hf_client *client = fixture_open(), *other = fixture_open();
    hf_lock *stuck;
    struct t_peer stranger;

    opts.flags |= HF_MANUAL;
    opts.ttl_ms = 600000;
    stuck = fixture_acquire(client, opts);
    stranger = t_fork(fixture_flock_shared, NULL);
    t_hear(&stranger);
    CHECK_OK(hf_break_force(other, "job", hf_fence(stuck), &t_err));
    CHECK_STATUS(hf_check(other, "job", hf_fence(stuck), &t_err), HF_LOST);
    CHECK_STATUS(fixture_try(other, fixture_opts(0, 0)), HF_BUSY);
    CHECK_STATUS(fixture_try(other, fixture_opts(HF_SHARED, 0)), HF_OK);
    t_tell(&stranger, 0);
    t_join(&stranger);
    CHECK_STATUS(fixture_try(other, fixture_opts(0, 0)), HF_OK);
    CHECK_STATUS(hf_extend(stuck, 0, &t_err), HF_LOST);
    hf_release(stuck, NULL);
    hf_close(client);
    hf_close(other);
}

TEST(flock_beside_a_reader_that_is_freed_by_force_keeps_writers_out)
{
    check_stranger(fixture_opts(HF_SHARED, 0));
}

TEST(flock_beside_an_owner_that_is_freed_by_force_keeps_writers_out)
{
    struct hf_lock_opts opts = fixture_opts(0, 0);

    opts.owner = "me";
    check_stranger(opts);
}

T_MAIN
