/* SPDX-License-Identifier: MIT
 *
 * readers.c - lock files of `file:` that readers and writers use, across
 * processes and next to flock(1); the moment in which an exclusive lock becomes
 * a shared one; and every use of one lock at once.
 */
#include "fixture.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Where the records of holders begin (src/backend/file/holders.c). */
#define TABLE_AT 4096

/* ---- readers and writers ----------------------------------------------- */

TEST(the_door_that_a_waiting_writer_closes_opens_when_it_dies)
{
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(HF_SHARED, 0));
    struct hf_lock_opts plain = fixture_opts(0, 0);
    struct t_peer writer;

    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_OK);
    writer = t_fork(fixture_wait_for_it, &plain);
    t_poll_until(fixture_inspect(client).waiters == 1, 20000);
    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_BUSY);
    t_kill(&writer);
    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_OK);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST_TIMEOUT(a_writer_that_is_stopped_keeps_readers_out_for_a_while_only, 120)
{
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(HF_SHARED, 0));
    struct hf_lock_opts plain = fixture_opts(0, 0);
    struct t_peer writer = t_fork(fixture_wait_for_it, &plain);

    t_poll_until(fixture_inspect(client).waiters == 1, 20000);
    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_BUSY);
    CHECK_EQ(kill(writer.pid, SIGSTOP), 0);
    t_poll_until(fixture_try(client, fixture_opts(HF_SHARED, 0)) == HF_OK,
                 60000);
    CHECK_EQ(fixture_inspect(client).waiters, 1);
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
    hf_client *client = fixture_open();
    struct hf_lock_opts fair = fixture_opts(HF_FAIR, 0);
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
    struct hf_lock_opts read = fixture_opts(HF_SHARED, 0);
    hf_client *client = fixture_open();
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

TEST(holders_name_readers_of_other_processes_and_strangers)
{
    struct hf_lock_opts read = fixture_opts(HF_SHARED, 0);
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(HF_SHARED, 0));
    struct t_peer stranger = t_fork(fixture_flock_shared, NULL), reader;
    struct fixture_holders seen;
    char pid[32];
    int strangers = 0;

    t_hear(&stranger);
    read.note = "the other";
    reader = t_fork(fixture_wait_for_it, &read);
    t_hear(&reader);
    /* While others lock and unlock, the kernel may leave one out of its list. */
    t_poll_until((seen = fixture_holders(client)).n == 3, 20000);
    snprintf(pid, sizeof(pid), "pid %ld", (long)stranger.pid);
    for (int i = 0; i < seen.n; i++) {
        CHECK_EQ(seen.holder[i].holders, 3);
        CHECK(seen.holder[i].shared);
        if (!strcmp(seen.holder[i].note, pid))
            strangers++;
    }
    CHECK_EQ(strangers, 1);
    CHECK_STR(fixture_inspect(client).note, "the other");
    t_kill(&reader);
    CHECK_EQ(fixture_inspect(client).fence, hf_fence(lk));
    CHECK_EQ(fixture_holders(client).n, 2);
    t_tell(&stranger, 0);
    t_join(&stranger);
    CHECK_EQ(fixture_holders(client).n, 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(fixture_holders(client).n, 0);
    hf_close(client);
}

/* What stands where the records of holders are is theirs only while they have
 * the byte. */
TEST(rubbish_behind_the_record_stops_nobody)
{
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(HF_SHARED, 0)), *two;
    char rubbish[3 * 2048];
    int fd;

    memset(rubbish, 'x', sizeof(rubbish));
    CHECK_OK(hf_release(lk, &t_err));
    fd = open(fixture_file(), O_WRONLY | O_CLOEXEC);
    CHECK_EQ(pwrite(fd, rubbish, sizeof(rubbish), TABLE_AT), sizeof(rubbish));
    close(fd);
    CHECK_EQ(fixture_holders(client).n, 0);
    lk = fixture_acquire(client, fixture_opts(HF_SHARED, 0));
    two = fixture_acquire(client, fixture_opts(HF_SHARED, 0));
    CHECK_EQ(fixture_holders(client).n, 2);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    lk = fixture_acquire(client, fixture_opts(0, 2));
    CHECK_EQ(hf_slot(lk), 0);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* Others do not see its slot any more, so the holder may not count on it. */
TEST(a_holder_whose_record_was_destroyed_is_told)
{
    hf_client *client = fixture_open();
    hf_lock *one = fixture_acquire(client, fixture_opts(0, 2)),
            *two = fixture_acquire(client, fixture_opts(0, 2));
    int fd = open(fixture_file(), O_WRONLY | O_CLOEXEC);

    CHECK_EQ(pwrite(fd, "rubbish", 7, TABLE_AT), 7);
    CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_EQ(ftruncate(fd, 0), 0);
    CHECK_STATUS(hf_extend(two, 0, &t_err), HF_LOST);
    close(fd);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    t_poll_until(fixture_try(client, fixture_opts(0, 0)) == HF_OK, 20000);
    hf_close(client);
}

TEST(a_grant_that_is_over_is_not_that_of_flock)
{
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(0, 0));
    uint64_t fence = hf_fence(lk);
    struct t_peer stranger;

    CHECK_OK(hf_check(client, "job", fence, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    stranger = t_fork(fixture_flock_shared, NULL);
    t_hear(&stranger);
    CHECK(fixture_inspect(client).held);
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
    second_status = fixture_try(second, fixture_opts(0, 0));
}

static void try_as_owner(void)
{
    struct hf_lock_opts opts = fixture_opts(0, 0);

    opts.owner = "somebody";
    second_status = fixture_try(second, opts);
}

static void take_with_flock(void)
{
    foreign_fd = open(fixture_file(), O_RDWR | O_CLOEXEC);
    CHECK_EQ(syscall(SYS_flock, foreign_fd, LOCK_EX | LOCK_NB), 0);
}

static void check_downgrade(void (*then)(void))
{
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(0, 0));
    uint64_t fence = hf_fence(lk);

    second = fixture_open();
    second_status = HF_OK;
    between = then;
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK(between == NULL);
    CHECK_STATUS(second_status, HF_BUSY);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(hf_fence(lk), fence);
    CHECK(fixture_inspect(second).shared);
    CHECK_EQ(fixture_inspect(second).fence, fence);
    CHECK_STATUS(fixture_try_flock(LOCK_EX), HF_BUSY);
    CHECK_STATUS(fixture_try_flock(LOCK_SH), HF_OK);
    CHECK_STATUS(fixture_try(second, fixture_opts(0, 0)), HF_BUSY);
    CHECK_STATUS(fixture_try(second, fixture_opts(HF_SHARED, 0)), HF_OK);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(fixture_try(second, fixture_opts(0, 0)), HF_OK);
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
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(0, 0));

    between = take_with_flock;
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_LOST);
    CHECK(!hf_held(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_STATUS(fixture_try(client, fixture_opts(0, 0)), HF_BUSY);
    close(foreign_fd);
    t_poll_until(fixture_try(client, fixture_opts(0, 0)) == HF_OK, 20000);
    hf_close(client);
}

static void flock_alone(struct t_peer *up, void *arg)
{
    int fd = open(fixture_file(), O_RDWR | O_CLOEXEC);

    (void)arg;
    t_tell(up, 0);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    t_tell(up, 1);
    close(fd);
}

TEST(flock_that_waits_gets_in_after_a_downgrade_only_when_it_is_free)
{
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(0, 0));
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
    int32_t waiters = fixture_inspect(client).waiters;
    struct t_peer peer = t_fork(fixture_wait_for_it, opts);

    t_poll_until(fixture_inspect(client).waiters == waiters + 1, 20000);
    return peer;
}

TEST(a_downgrade_lets_in_readers_before_a_writer_and_none_behind_it)
{
    struct hf_lock_opts read = fixture_opts(HF_SHARED, 0),
                        write = fixture_opts(0, 0);
    hf_client *client = fixture_open();
    hf_lock *lk = fixture_acquire(client, fixture_opts(0, 0));
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
    struct hf_lock_opts opts = fixture_opts(0, 0);
    hf_client *client = fixture_open();
    struct t_peer peer;
    hf_lock *lk;

    opts.owner = "me";
    lk = fixture_acquire(client, opts);
    peer = t_fork(fixture_wait_for_it, &opts);
    t_hear(&peer);
    CHECK_EQ(fixture_inspect(client).holders, 2);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_INVALID);
    CHECK(hf_held(lk));
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK_STATUS(fixture_try(client, fixture_opts(HF_SHARED, 0)), HF_OK);
    CHECK_OK(hf_release(lk, &t_err));
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
    hf_client *client = fixture_open();
    struct inside *in = arg;
    uint64_t last = 0;

    t_hear(up);
    for (int i = 0; i < ROUNDS; i++) {
        int mode = rand_r(&seed) % 3;
        struct hf_lock_opts opts =
            fixture_opts(mode == 1 ? HF_SHARED : HF_FAIR, 0);
        hf_lock *lk = NULL;
        hf_status st;

        if (mode == 2)
            opts = fixture_opts(0, PERMITS);
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
    hf_close(fixture_open());
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
