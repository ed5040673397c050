/* SPDX-License-Identifier: MIT
 *
 * together.c - lock files of `file:` that several hold: readers, permits and
 * what is kept, across processes and next to flock(1); and the moment in which
 * an exclusive lock becomes a shared one.
 */
#include "../t.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Where the records of holders begin (src/backend/file/holders.c). */
#define TABLE_AT 4096

static const char *lock_path(void)
{
    static char path[600];

    snprintf(path, sizeof(path), "%s/locks/job.lock", t_tmpdir());
    return path;
}

static hf_client *open_locks(void)
{
    hf_client *client = NULL;
    char url[600];

    snprintf(url, sizeof(url), "%s/locks", t_tmpdir());
    mkdir(url, 0700);
    snprintf(url, sizeof(url), "file:%s/locks", t_tmpdir());
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

static struct hf_info look(hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    return info;
}

static struct hf_lock_opts how(unsigned flags, int32_t permits)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.flags = flags;
    opts.permits = permits;
    return opts;
}

static hf_lock *take(hf_client *client, struct hf_lock_opts opts)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "job", 0, &opts, &lk, &t_err));
    return lk;
}

static hf_status try_it(hf_client *client, struct hf_lock_opts opts)
{
    hf_lock *lk = NULL;
    hf_status st = hf_acquire(client, "job", 0, &opts, &lk, &t_err);

    if (!st)
        CHECK_OK(hf_release(lk, &t_err));
    return st;
}

static hf_status try_flock(int mode)
{
    int fd = open(lock_path(), O_RDWR | O_CLOEXEC), st;

    CHECK_GE(fd, 0);
    st = flock(fd, mode | LOCK_NB);
    close(fd);
    return st ? HF_BUSY : HF_OK;
}

/* Wait for the lock, tell the slot, and release it when told. */
static void wait_for_it(struct t_peer *up, void *arg)
{
    const struct hf_lock_opts *opts = arg;
    hf_client *client = open_locks();
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "job", -1, opts, &lk, &t_err));
    t_tell(up, hf_slot(lk));
    t_hear(up);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* ---- readers and writers ----------------------------------------------- */

TEST(the_door_that_a_waiting_writer_closes_opens_when_it_dies)
{
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(HF_SHARED, 0));
    struct hf_lock_opts plain = how(0, 0);
    struct t_peer writer;

    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_OK);
    writer = t_fork(wait_for_it, &plain);
    t_poll_until(look(client).waiters == 1, 20000);
    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_BUSY);
    t_kill(&writer);
    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_OK);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST_TIMEOUT(a_writer_that_is_stopped_keeps_readers_out_for_a_while_only, 120)
{
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(HF_SHARED, 0));
    struct hf_lock_opts plain = how(0, 0);
    struct t_peer writer = t_fork(wait_for_it, &plain);

    t_poll_until(look(client).waiters == 1, 20000);
    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_BUSY);
    CHECK_EQ(kill(writer.pid, SIGSTOP), 0);
    t_poll_until(try_it(client, how(HF_SHARED, 0)) == HF_OK, 60000);
    CHECK_EQ(look(client).waiters, 1);
    CHECK_EQ(kill(writer.pid, SIGCONT), 0);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(t_hear(&writer), -1);
    t_tell(&writer, 0);
    t_join(&writer);
    hf_close(client);
}

/* Readers get in between writers that never cease. */
static void write_often(struct t_peer *up, void *arg)
{
    hf_client *client = open_locks();
    struct hf_lock_opts fair = how(HF_FAIR, 0);
    int64_t word;
    hf_lock *lk;

    (void)arg;
    do {
        CHECK_OK(hf_acquire(client, "job", -1, &fair, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    } while (!t_try_hear(up, 0, &word));
    hf_close(client);
}

TEST_TIMEOUT(a_reader_is_not_starved_by_writers, 120)
{
    struct hf_lock_opts read = how(HF_SHARED, 0);
    hf_client *client = open_locks();
    struct t_peer writers[3];
    hf_lock *lk;

    for (int i = 0; i < 3; i++)
        writers[i] = t_fork(write_often, NULL);
    for (int i = 0; i < 20; i++) {
        CHECK_OK(hf_acquire(client, "job", -1, &read, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    for (int i = 0; i < 3; i++) {
        t_tell(&writers[i], 0);
        t_join(&writers[i]);
    }
    hf_close(client);
}

struct seen {
    struct hf_info holder[8];
    int n;
};

static bool see(void *arg, const struct hf_info *holder)
{
    struct seen *seen = arg;

    CHECK_LT(seen->n, 8);
    seen->holder[seen->n++] = *holder;
    return true;
}

static struct seen holders(hf_client *client)
{
    struct seen seen = {.n = 0};

    CHECK_OK(hf_holders(client, "job", see, &seen, &t_err));
    return seen;
}

static void flock_shared(struct t_peer *up, void *arg)
{
    int fd = open(lock_path(), O_RDONLY | O_CLOEXEC);

    (void)arg;
    CHECK_EQ(flock(fd, LOCK_SH), 0);
    t_tell(up, 0);
    t_hear(up);
    close(fd);
}

TEST(holders_name_readers_of_other_processes_and_strangers)
{
    struct hf_lock_opts read = how(HF_SHARED, 0);
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(HF_SHARED, 0));
    struct t_peer stranger = t_fork(flock_shared, NULL), reader;
    struct seen seen;
    char pid[32];
    int strangers = 0;

    t_hear(&stranger);
    read.note = "the other";
    reader = t_fork(wait_for_it, &read);
    t_hear(&reader);
    seen = holders(client);
    CHECK_EQ(seen.n, 3);
    snprintf(pid, sizeof(pid), "pid %ld", (long)stranger.pid);
    for (int i = 0; i < seen.n; i++) {
        CHECK_EQ(seen.holder[i].holders, 3);
        CHECK(seen.holder[i].shared);
        if (!strcmp(seen.holder[i].note, pid))
            strangers++;
    }
    CHECK_EQ(strangers, 1);
    CHECK_STR(look(client).note, "the other");
    t_kill(&reader);
    CHECK_EQ(look(client).fence, hf_fence(lk));
    CHECK_EQ(holders(client).n, 2);
    t_tell(&stranger, 0);
    t_join(&stranger);
    CHECK_EQ(holders(client).n, 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(holders(client).n, 0);
    hf_close(client);
}

/* What stands where the records of holders are is theirs only while they have
 * the byte. */
TEST(rubbish_behind_the_record_stops_nobody)
{
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(HF_SHARED, 0)), *two;
    char rubbish[3 * 2048];
    int fd;

    memset(rubbish, 'x', sizeof(rubbish));
    CHECK_OK(hf_release(lk, &t_err));
    fd = open(lock_path(), O_WRONLY | O_CLOEXEC);
    CHECK_EQ(pwrite(fd, rubbish, sizeof(rubbish), TABLE_AT), sizeof(rubbish));
    close(fd);
    CHECK_EQ(holders(client).n, 0);
    lk = take(client, how(HF_SHARED, 0));
    two = take(client, how(HF_SHARED, 0));
    CHECK_EQ(holders(client).n, 2);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    lk = take(client, how(0, 2));
    CHECK_EQ(hf_slot(lk), 0);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* Others do not see its slot any more, so the holder may not count on it. */
TEST(a_holder_whose_record_was_destroyed_is_told)
{
    hf_client *client = open_locks();
    hf_lock *one = take(client, how(0, 2)), *two = take(client, how(0, 2));
    int fd = open(lock_path(), O_WRONLY | O_CLOEXEC);

    CHECK_EQ(pwrite(fd, "rubbish", 7, TABLE_AT), 7);
    CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_EQ(ftruncate(fd, 0), 0);
    CHECK_STATUS(hf_extend(two, 0, &t_err), HF_LOST);
    close(fd);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    t_poll_until(try_it(client, how(0, 0)) == HF_OK, 20000);
    hf_close(client);
}

TEST(a_grant_that_is_over_is_not_that_of_flock)
{
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(0, 0));
    uint64_t fence = hf_fence(lk);
    struct t_peer stranger;

    CHECK_OK(hf_check(client, "job", fence, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    stranger = t_fork(flock_shared, NULL);
    t_hear(&stranger);
    CHECK(look(client).held);
    CHECK_STATUS(hf_check(client, "job", fence, &t_err), HF_LOST);
    CHECK_STATUS(hf_break(client, "job", fence, &t_err), HF_LOST);
    t_tell(&stranger, 0);
    t_join(&stranger);
    hf_close(client);
}

/* ---- downgrade --------------------------------------------------------- */

/* What happens after LOCK_EX was given up and before LOCK_SH is taken, as on a
 * system where that is not one step. */
static void (*between)(void);

int flock(int fd, int operation)
{
    void (*then)(void) = between;

    if (then && (operation & LOCK_SH)) {
        between = NULL;
        CHECK_EQ(syscall(SYS_flock, fd, LOCK_UN), 0);
        then();
    }
    return (int)syscall(SYS_flock, fd, operation);
}

static hf_client *second;
static hf_status second_status;
static int foreign_fd = -1;

static void try_to_write(void)
{
    second_status = try_it(second, how(0, 0));
}

static void try_as_owner(void)
{
    struct hf_lock_opts opts = how(0, 0);

    opts.owner = "somebody";
    second_status = try_it(second, opts);
}

static void take_with_flock(void)
{
    foreign_fd = open(lock_path(), O_RDWR | O_CLOEXEC);
    CHECK_EQ(syscall(SYS_flock, foreign_fd, LOCK_EX | LOCK_NB), 0);
}

static void check_downgrade(void (*then)(void))
{
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(0, 0));
    uint64_t fence = hf_fence(lk);

    second = open_locks();
    second_status = HF_OK;
    between = then;
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK(between == NULL);
    CHECK_STATUS(second_status, HF_BUSY);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(hf_fence(lk), fence);
    CHECK(look(second).shared);
    CHECK_EQ(look(second).fence, fence);
    CHECK_STATUS(try_flock(LOCK_EX), HF_BUSY);
    CHECK_STATUS(try_flock(LOCK_SH), HF_OK);
    CHECK_STATUS(try_it(second, how(0, 0)), HF_BUSY);
    CHECK_STATUS(try_it(second, how(HF_SHARED, 0)), HF_OK);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(try_it(second, how(0, 0)), HF_OK);
    hf_close(client);
    hf_close(second);
}

TEST(no_writer_comes_in_where_the_kernel_lets_go_in_a_downgrade)
{
    check_downgrade(try_to_write);
}

TEST(no_owner_comes_in_where_the_kernel_lets_go_in_a_downgrade)
{
    check_downgrade(try_as_owner);
}

TEST(a_downgrade_that_a_stranger_came_between_is_lost)
{
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(0, 0));

    between = take_with_flock;
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_LOST);
    CHECK(!hf_held(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_BUSY);
    close(foreign_fd);
    t_poll_until(try_it(client, how(0, 0)) == HF_OK, 20000);
    hf_close(client);
}

static void flock_alone(struct t_peer *up, void *arg)
{
    int fd = open(lock_path(), O_RDWR | O_CLOEXEC);

    (void)arg;
    t_tell(up, 0);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    t_tell(up, 1);
    close(fd);
}

TEST(flock_that_waits_gets_in_after_a_downgrade_only_when_it_is_free)
{
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(0, 0));
    struct t_peer peer = t_fork(flock_alone, NULL);
    int64_t word;

    t_hear(&peer);
    CHECK(!t_try_hear(&peer, 100, &word));
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK(!t_try_hear(&peer, 100, &word));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(t_hear(&peer), 1);
    t_join(&peer);
    hf_close(client);
}

/* Wait for it while others wait already. */
static struct t_peer start_waiter(hf_client *client, struct hf_lock_opts *opts)
{
    int32_t waiters = look(client).waiters;
    struct t_peer peer = t_fork(wait_for_it, opts);

    t_poll_until(look(client).waiters == waiters + 1, 20000);
    return peer;
}

TEST(a_downgrade_lets_in_readers_before_a_writer_and_none_behind_it)
{
    struct hf_lock_opts read = how(HF_SHARED, 0), write = how(0, 0);
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(0, 0));
    struct t_peer before, writer, behind;
    int64_t word;

    before = start_waiter(client, &read);
    t_sleep_ms(5); /* Order is by milliseconds. */
    writer = start_waiter(client, &write);
    t_sleep_ms(5);
    behind = start_waiter(client, &read);
    CHECK_OK(hf_downgrade(lk, &t_err));
    t_hear(&before);
    CHECK(!t_try_hear(&behind, 100, &word));
    CHECK(!t_try_hear(&writer, 0, &word));
    t_tell(&before, 0);
    t_join(&before);
    CHECK(!t_try_hear(&behind, 100, &word));
    CHECK_OK(hf_release(lk, &t_err));
    t_hear(&writer);
    CHECK(!t_try_hear(&behind, 0, &word));
    t_tell(&writer, 0);
    t_join(&writer);
    t_hear(&behind);
    t_tell(&behind, 0);
    t_join(&behind);
    hf_close(client);
}

TEST(an_owner_of_two_processes_is_not_downgraded)
{
    struct hf_lock_opts opts = how(0, 0);
    hf_client *client = open_locks();
    struct t_peer peer;
    hf_lock *lk;

    opts.owner = "me";
    lk = take(client, opts);
    peer = t_fork(wait_for_it, &opts);
    t_hear(&peer);
    CHECK_EQ(look(client).holders, 2);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_INVALID);
    CHECK(hf_held(lk));
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_OK);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* ---- permits ----------------------------------------------------------- */

TEST(the_slot_of_a_dead_process_is_free_at_once)
{
    struct hf_lock_opts three = how(0, 3);
    hf_client *client = open_locks();
    struct t_peer peers[3], next;

    for (int i = 0; i < 3; i++) {
        peers[i] = t_fork(wait_for_it, &three);
        CHECK_EQ(t_hear(&peers[i]), i);
    }
    CHECK_STATUS(try_it(client, three), HF_BUSY);
    CHECK_EQ(look(client).holders, 3);
    next = t_fork(wait_for_it, &three);
    t_poll_until(look(client).waiters == 1, 20000);
    t_kill(&peers[1]);
    CHECK_EQ(t_hear(&next), 1);
    CHECK_STATUS(try_it(client, three), HF_BUSY);
    t_kill(&peers[0]);
    t_kill(&peers[2]);
    t_kill(&next);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    hf_close(client);
}

TEST(an_owner_has_one_permit_in_all_its_processes)
{
    struct hf_lock_opts opts = how(0, 2);
    hf_client *client = open_locks();
    struct t_peer peer;
    hf_lock *lk, *other;

    opts.owner = "worker";
    lk = take(client, opts);
    peer = t_fork(wait_for_it, &opts);
    CHECK_EQ(t_hear(&peer), hf_slot(lk));
    other = take(client, how(0, 2));
    CHECK_NE(hf_slot(other), hf_slot(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(try_it(client, how(0, 2)), HF_BUSY);
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_STATUS(try_it(client, how(0, 2)), HF_OK);
    CHECK_OK(hf_release(other, &t_err));
    hf_close(client);
}

TEST(permits_and_flock_exclude_each_other)
{
    hf_client *client = open_locks();
    hf_lock *lk = take(client, how(0, 2));
    int fd;

    CHECK_STATUS(try_flock(LOCK_EX), HF_BUSY);
    CHECK_STATUS(try_flock(LOCK_SH), HF_OK);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    fd = open(lock_path(), O_RDWR | O_CLOEXEC);
    CHECK_EQ(flock(fd, LOCK_SH), 0);
    CHECK_STATUS(try_it(client, how(0, 2)), HF_OK);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    /* A stranger has it, which is no use as a plain lock of ours; here it is
     * the process of the last holder. */
    CHECK_STATUS(try_it(client, how(0, 2)), HF_BUSY);
    close(fd);
    hf_close(client);
}

static void flock_until_told(struct t_peer *up, void *arg)
{
    int fd = open(lock_path(), O_RDWR | O_CLOEXEC);

    (void)arg;
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    t_tell(up, 0);
    t_hear(up);
    close(fd);
}

TEST(permits_are_busy_and_not_refused_while_flock_holds)
{
    hf_client *client = open_locks();
    struct t_peer peer;

    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    peer = t_fork(flock_until_told, NULL);
    t_hear(&peer);
    CHECK_STATUS(try_it(client, how(0, 2)), HF_BUSY);
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_STATUS(try_it(client, how(0, 2)), HF_OK);
    hf_close(client);
}

/* ---- breaking by force ------------------------------------------------- */

TEST(of_several_permits_only_the_one_that_is_meant_is_freed_by_force)
{
    struct hf_lock_opts manual = how(HF_MANUAL, 2);
    hf_client *client = open_locks(), *other = open_locks();
    hf_lock *stuck, *lk, *next;
    int slot;

    manual.ttl_ms = 600000; /* It does not look before it asks. */
    stuck = take(client, manual);
    lk = take(other, how(0, 2));
    slot = hf_slot(stuck);
    CHECK_OK(hf_break_force(other, "job", hf_fence(stuck), &t_err));
    CHECK_STATUS(hf_check(other, "job", hf_fence(stuck), &t_err), HF_LOST);
    next = take(other, how(0, 2));
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
    struct hf_lock_opts manual = how(HF_SHARED | HF_MANUAL, 0);
    hf_client *client = open_locks(), *other = open_locks();
    hf_lock *stuck, *lk, *writer;

    manual.ttl_ms = 600000;
    stuck = take(client, manual);
    lk = take(other, how(HF_SHARED, 0));
    CHECK_OK(hf_break_force(other, "job", hf_fence(stuck), &t_err));
    CHECK_EQ(holders(other).n, 1);
    CHECK_STATUS(try_it(other, how(0, 0)), HF_BUSY);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    writer = take(other, how(0, 0));
    CHECK_STATUS(hf_extend(stuck, 0, &t_err), HF_LOST);
    hf_release(stuck, NULL);
    CHECK_OK(hf_extend(writer, 0, &t_err));
    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_BUSY);
    CHECK_OK(hf_release(writer, &t_err));
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    hf_close(client);
    hf_close(other);
}

/* What happens just before a file is made in place of the old one, and just
 * before that has the key's name. */
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
    joined = take(second, how(HF_SHARED, 0));
}

static void join_permits(void)
{
    joined = take(second, how(0, 2));
}

/* Who comes in after the operator has looked and before the file would be
 * replaced has a grant that nobody has broken. */
static void check_newcomer(struct hf_lock_opts opts, void (*join)(void),
                           hf_status others)
{
    hf_client *client = open_locks();
    hf_lock *stuck;

    opts.flags |= HF_MANUAL;
    opts.ttl_ms = 600000; /* It does not look before it asks. */
    stuck = take(client, opts);
    second = open_locks();
    before_making = join;
    CHECK_OK(hf_break_force(client, "job", hf_fence(stuck), &t_err));
    CHECK(before_making == NULL);
    CHECK_STATUS(hf_extend(stuck, 0, &t_err), HF_LOST);
    CHECK_OK(hf_extend(joined, 0, &t_err));
    CHECK_STATUS(try_it(client, how(0, 0)), others);
    CHECK_EQ(holders(client).n, 1);
    hf_release(stuck, NULL);
    CHECK_OK(hf_release(joined, &t_err));
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    hf_close(client);
    hf_close(second);
}

TEST(a_reader_that_comes_to_one_that_is_freed_by_force_keeps_writers_out)
{
    check_newcomer(how(HF_SHARED, 0), join_readers, HF_BUSY);
}

TEST(a_permit_that_comes_to_one_that_is_freed_by_force_is_counted)
{
    check_newcomer(how(0, 2), join_permits, HF_INVALID);
}

static void change_holder(void)
{
    struct hf_lock_opts opts = how(0, 0);

    CHECK_OK(hf_release(stuck_lock, &t_err));
    second_status = hf_acquire(second, "job", 0, &opts, &joined, &t_err);
}

/* The holder lets go while its file is being replaced: nobody gets that one. */
TEST(who_comes_in_the_moment_of_a_break_by_force_is_not_hit)
{
    hf_client *client = open_locks(), *other = open_locks();
    hf_lock *next;

    second = open_locks();
    joined = NULL;
    stuck_lock = take(client, how(0, 0));
    before_naming = change_holder;
    CHECK_OK(hf_break_force(other, "job", hf_fence(stuck_lock), &t_err));
    CHECK(before_naming == NULL);
    next = take(other, how(0, 0));
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
    hf_client *client = open_locks(), *other = open_locks();
    hf_lock *stuck;
    struct t_peer stranger;

    opts.flags |= HF_MANUAL;
    opts.ttl_ms = 600000;
    stuck = take(client, opts);
    stranger = t_fork(flock_shared, NULL);
    t_hear(&stranger);
    CHECK_OK(hf_break_force(other, "job", hf_fence(stuck), &t_err));
    CHECK_STATUS(hf_check(other, "job", hf_fence(stuck), &t_err), HF_LOST);
    CHECK_STATUS(try_it(other, how(0, 0)), HF_BUSY);
    CHECK_STATUS(try_it(other, how(HF_SHARED, 0)), HF_OK);
    t_tell(&stranger, 0);
    t_join(&stranger);
    CHECK_STATUS(try_it(other, how(0, 0)), HF_OK);
    CHECK_STATUS(hf_extend(stuck, 0, &t_err), HF_LOST);
    hf_release(stuck, NULL);
    hf_close(client);
    hf_close(other);
}

TEST(flock_beside_a_reader_that_is_freed_by_force_keeps_writers_out)
{
    check_stranger(how(HF_SHARED, 0));
}

TEST(flock_beside_an_owner_that_is_freed_by_force_keeps_writers_out)
{
    struct hf_lock_opts opts = how(0, 0);

    opts.owner = "me";
    check_stranger(opts);
}

/* ---- what is kept ------------------------------------------------------ */

static void keep_it(hf_client *client, struct hf_lock_opts opts, int64_t ms)
{
    opts.min_hold_ms = ms;
    CHECK_OK(hf_release(take(client, opts), &t_err));
}

/* Write something else in place of a word in the file. */
static void overwrite(const char *word, const char *text)
{
    char buf[8192];
    int fd = open(lock_path(), O_RDWR | O_CLOEXEC);
    ssize_t len = pread(fd, buf, sizeof(buf), 0);
    char *at = memmem(buf, (size_t)len, word, strlen(word));

    CHECK(at != NULL);
    CHECK_EQ(pwrite(fd, text, strlen(text), at - buf + (off_t)strlen(word)),
             strlen(text));
    close(fd);
}

TEST(a_lock_that_is_kept_outlives_its_process_but_not_the_boot)
{
    hf_client *client = open_locks();
    struct hf_lock_opts opts = how(0, 0);
    struct t_peer peer;

    opts.min_hold_ms = 3600000;
    peer = t_fork(wait_for_it, &opts);
    t_hear(&peer);
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK(look(client).kept);
    CHECK_GT(look(client).left_ms, 3000000);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_BUSY);
    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_BUSY);
    CHECK_STATUS(try_it(client, how(0, 2)), HF_INVALID);
    CHECK_STATUS(try_flock(LOCK_EX), HF_OK); /* It knows nothing of that. */
    overwrite("kept=", "00000000");          /* It was in another boot. */
    CHECK(!look(client).held);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    CHECK_STATUS(try_it(client, how(0, 2)), HF_OK);
    hf_close(client);
}

TEST(a_time_that_has_not_begun_keeps_nothing)
{
    hf_client *client = open_locks();

    keep_it(client, how(0, 0), 3600000);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_BUSY);
    overwrite(" from=", "9"); /* The clock has begun anew since. */
    CHECK(!look(client).held);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    hf_close(client);
}

TEST(a_reader_that_is_kept_lets_readers_in_and_writers_not)
{
    hf_client *client = open_locks();
    struct seen seen;
    hf_lock *lk;

    keep_it(client, how(HF_SHARED, 0), 3600000);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_BUSY);
    lk = take(client, how(HF_SHARED, 0));
    seen = holders(client);
    CHECK_EQ(seen.n, 2);
    CHECK_EQ(seen.holder[0].kept + seen.holder[1].kept, 1);
    /* The one that is kept is freed; the other stays. */
    CHECK_OK(hf_break_force(client, "job",
                            seen.holder[seen.holder[1].kept].fence, &t_err));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(holders(client).n, 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    hf_close(client);
}

TEST(a_permit_that_is_kept_has_its_slot)
{
    hf_client *client = open_locks();
    uint64_t fence;
    hf_lock *lk;

    keep_it(client, how(0, 2), 3600000);
    fence = look(client).fence;
    CHECK_EQ(look(client).slot, 0);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_INVALID);
    CHECK_STATUS(try_it(client, how(0, 3)), HF_INVALID);
    lk = take(client, how(0, 2));
    CHECK_EQ(hf_slot(lk), 1);
    CHECK_STATUS(try_it(client, how(0, 2)), HF_BUSY);
    CHECK_OK(hf_break_force(client, "job", fence, &t_err));
    CHECK_STATUS(try_it(client, how(0, 2)), HF_OK);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    hf_close(client);
}

/* flock(1) takes what is only kept; that it is freed changes nothing then. */
TEST(flock_keeps_a_kept_lock_that_is_freed_by_force)
{
    hf_client *client = open_locks();
    struct t_peer stranger;
    uint64_t fence;

    keep_it(client, how(0, 0), 3600000);
    fence = look(client).fence;
    stranger = t_fork(flock_until_told, NULL);
    t_hear(&stranger);
    CHECK_OK(hf_break_force(client, "job", fence, &t_err));
    CHECK_STATUS(hf_break_force(client, "job", fence, &t_err), HF_LOST);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_BUSY);
    t_tell(&stranger, 0);
    t_join(&stranger);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_OK);
    CHECK_GT(look(client).fence, fence);
    hf_close(client);
}

/* Let the process have `more` descriptors beside those that it has. */
static struct rlimit limit_descriptors(int more)
{
    struct rlimit old, now;
    int fd;

    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
    fd = dup(0);
    CHECK_GE(fd, 0);
    close(fd);
    now = old;
    now.rlim_cur = (rlim_t)fd + (rlim_t)more;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
    return old;
}

TEST(a_process_without_descriptors_keeps_its_lock_and_honours_others)
{
    struct hf_lock_opts opts = how(0, 0);
    hf_client *client = open_locks();
    struct rlimit old;
    hf_status st;
    hf_lock *lk;

    opts.min_hold_ms = 3600000;
    lk = take(client, opts);
    old = limit_descriptors(0);
    st = hf_release(lk, &t_err);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    CHECK_STATUS(st, HF_OK);
    CHECK(look(client).kept);
    CHECK_STATUS(try_it(client, how(0, 0)), HF_BUSY);
    old = limit_descriptors(1); /* that of the lock file */
    st = try_it(client, how(0, 0));
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    CHECK_STATUS(st, HF_BUSY);
    hf_close(client);
}

/* Its equal has let go; what is kept is kept for it alone. */
TEST(an_owner_whose_equal_is_kept_is_not_downgraded)
{
    struct hf_lock_opts opts = how(0, 0);
    hf_client *client = open_locks();
    struct t_peer peer;
    hf_lock *lk;

    opts.owner = "me";
    lk = take(client, opts);
    opts.min_hold_ms = 3600000;
    peer = t_fork(wait_for_it, &opts);
    t_hear(&peer);
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_INVALID);
    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_BUSY);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(try_it(client, how(HF_SHARED, 0)), HF_BUSY);
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
    struct hf_lock_opts opts = how(0, 2);
    hf_client *client = open_locks();
    uint64_t fence;
    hf_lock *lk;

    opts.owner = "me";
    for (int i = 1; i <= 30; i++) {
        keep_it(client, opts, 3600000);
        fence = look(client).fence;
        reads_left = i;
        lk = take(client, opts);
        reads_left = 0;
        CHECK_GT(hf_fence(lk), fence);
        CHECK_OK(hf_release(lk, &t_err));
        hours += 2;
    }
    hf_close(client);
}

/* ---- all of it at once ------------------------------------------------- */

enum { PERMITS = 3, ROUNDS = 150 };

/* Who believes to hold it, in memory that all processes share. */
struct inside {
    atomic_int writers, readers, permits, slots[PERMITS];
};

static void enter(struct inside *in, const hf_lock *lk, int mode)
{
    if (mode == 0) {
        CHECK_EQ(atomic_fetch_add(&in->writers, 1), 0);
        CHECK_EQ(atomic_load(&in->readers), 0);
        CHECK_EQ(atomic_load(&in->permits), 0);
    } else if (mode == 1) {
        atomic_fetch_add(&in->readers, 1);
        CHECK_EQ(atomic_load(&in->writers), 0);
        CHECK_EQ(atomic_load(&in->permits), 0);
    } else {
        CHECK_LT(atomic_fetch_add(&in->permits, 1), PERMITS);
        CHECK_EQ(atomic_fetch_add(&in->slots[hf_slot(lk)], 1), 0);
        CHECK_EQ(atomic_load(&in->writers), 0);
        CHECK_EQ(atomic_load(&in->readers), 0);
    }
}

static void leave(struct inside *in, const hf_lock *lk, int mode)
{
    if (mode == 2)
        atomic_fetch_sub(&in->slots[hf_slot(lk)], 1);
    atomic_fetch_sub(mode == 0   ? &in->writers
                     : mode == 1 ? &in->readers
                                 : &in->permits,
                     1);
}

static void use_it(struct t_peer *up, void *arg)
{
    unsigned seed = (unsigned)getpid();
    hf_client *client = open_locks();
    struct inside *in = arg;
    uint64_t last = 0;

    t_hear(up);
    for (int i = 0; i < ROUNDS; i++) {
        int mode = rand_r(&seed) % 3;
        struct hf_lock_opts opts = how(mode == 1 ? HF_SHARED : HF_FAIR, 0);
        hf_lock *lk = NULL;
        hf_status st;

        if (mode == 2)
            opts = how(0, PERMITS);
        if (mode == 0 && rand_r(&seed) % 2)
            opts.owner = rand_r(&seed) % 2 ? NULL : "one of many";
        st = hf_acquire(client, "job", 20, &opts, &lk, &t_err);
        if (st) {
            CHECK(st == HF_TIMEOUT || st == HF_INVALID);
            continue;
        }
        CHECK(hf_fence(lk) > last || opts.owner);
        last = hf_fence(lk);
        if (!opts.owner) { /* its equals hold together */
            enter(in, lk, mode);
            if (mode == 0 && rand_r(&seed) % 2) {
                atomic_fetch_sub(&in->writers, 1);
                mode = 1;
                atomic_fetch_add(&in->readers, 1);
                CHECK_OK(hf_downgrade(lk, &t_err));
                CHECK_EQ(atomic_load(&in->writers), 0);
            }
            leave(in, lk, mode);
        }
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    t_tell(up, 0);
}

TEST_TIMEOUT(processes_that_use_it_in_every_way_never_meet, 120)
{
    struct inside *in = mmap(NULL, sizeof(*in), PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct t_peer peers[6];

    CHECK(in != MAP_FAILED);
    hf_close(open_locks());
    for (int i = 0; i < 6; i++)
        peers[i] = t_fork(use_it, in);
    for (int i = 0; i < 6; i++)
        t_tell(&peers[i], 0);
    for (int i = 0; i < 6; i++) {
        t_hear(&peers[i]);
        t_join(&peers[i]);
    }
    CHECK_EQ(munmap(in, sizeof(*in)), 0);
}

T_MAIN
