/* SPDX-License-Identifier: MIT
 *
 * lockfile.c - what can happen to one lock file of `file:` while it is in use:
 * its name leads elsewhere, strangers lock bytes of it, it is replaced by
 * force, it cannot be written.
 */
#include "fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Where the bytes of holders begin (src/backend/file/file.h). */
#define HOLD_AT (((off_t)1 << 40) + 2)

/* ---- names ------------------------------------------------------------- */

static void move_it(hf_client *client, const hf_lock *lk)
{
    (void)client, (void)lk;
    CHECK_EQ(rename(fixture_path("locks/job.lock"), fixture_path("locks/old")),
             0);
}

static void link_and_remove_it(hf_client *client, const hf_lock *lk)
{
    (void)client, (void)lk;
    CHECK_EQ(link(fixture_path("locks/job.lock"), fixture_path("locks/old")),
             0);
    CHECK_EQ(unlink(fixture_path("locks/job.lock")), 0);
}

static void link_and_force_it(hf_client *client, const hf_lock *lk)
{
    CHECK_EQ(link(fixture_path("locks/job.lock"), fixture_path("locks/old")),
             0);
    CHECK_OK(hf_break_force(client, "job", hf_fence(lk), &t_err));
}

/* Whoever waits gets the lock of the name, and not one that others, who open
 * the name, do not see. */
static void check_waiter(void (*take_name)(hf_client *, const hf_lock *))
{
    hf_client *client = fixture_open(), *other = fixture_open();
    struct hf_event event = HF_EVENT_INIT;
    hf_lock *lk, *none = NULL;
    hf_request *request;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_acquire_start(other, "job", -1, NULL, NULL, &request, &t_err));
    t_poll_until(fixture_inspect(client).waiters == 1, 20000);
    take_name(client, lk);
    t_poll_until(hf_next_event(other, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_STATUS(hf_acquire(client, "job", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK(hf_held(event.lock));
    CHECK_EQ(fixture_inspect(client).fence, hf_fence(event.lock));
    hf_release(lk, NULL);
    CHECK(hf_held(event.lock));
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_close(client);
    hf_close(other);
}

TEST(a_waiter_of_a_file_that_is_renamed_gets_the_lock_of_the_name)
{
    check_waiter(move_it);
}

TEST(a_waiter_of_a_file_with_two_names_gets_the_lock_of_the_keys_name)
{
    check_waiter(link_and_remove_it);
}

TEST(a_waiter_gets_the_file_that_a_break_by_force_made)
{
    check_waiter(link_and_force_it);
}

/* ---- breaking by force ------------------------------------------------- */

/* How many files there are in the directory of the locks. */
static int count_files(void)
{
    char command[600];
    FILE *in;
    int n = -1;

    snprintf(command, sizeof(command), "ls -A %s | wc -l",
             fixture_path("locks"));
    in = popen(command, "r");
    CHECK(in != NULL && fscanf(in, "%d", &n) == 1);
    pclose(in);
    return n;
}

TEST(files_that_others_made_do_not_prevent_a_break_by_force)
{
    hf_client *client = fixture_open(), *other = fixture_open();
    hf_lock *lk, *next;
    int fd, i;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    for (i = 0; i < 40; i++) {
        fd = open(fixture_path("locks/.new-%ld-%d", (long)getpid(), i),
                  O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        CHECK_GE(fd, 0);
        close(fd);
    }
    CHECK_OK(hf_break_force(other, "job", hf_fence(lk), &t_err));
    CHECK_OK(hf_acquire(other, "job", 0, NULL, &next, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_EQ(count_files(), 41);
    hf_release(lk, NULL);
    hf_close(client);
    hf_close(other);
}

TEST(a_break_by_force_that_cannot_mark_leaves_nothing_behind)
{
    hf_client *client = fixture_open(), *other = fixture_open();
    struct flock gate = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = HOLD_AT - 2,
                         .l_len = 1};
    hf_lock *lk;
    int fd;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    fd = open(fixture_path("locks/job.lock"), O_RDWR | O_CLOEXEC);
    CHECK_EQ(fcntl(fd, F_OFD_SETLK, &gate), 0);
    CHECK_STATUS(hf_break_force(other, "job", hf_fence(lk), &t_err),
                 HF_UNAVAILABLE);
    CHECK(fixture_inspect(other).held && !fixture_inspect(other).broken);
    CHECK_EQ(count_files(), 1);
    close(fd);
    CHECK_OK(hf_break_force(other, "job", hf_fence(lk), &t_err));
    CHECK_EQ(count_files(), 1);
    hf_release(lk, NULL);
    hf_close(client);
    hf_close(other);
}

/* ---- bytes ------------------------------------------------------------- */

/* Lock `n` bytes, with gaps, from where those of holders begin; returns the
 * descriptor that keeps them. */
static int lock_bytes(int flags, short type, int n)
{
    int fd = open(fixture_path("locks/job.lock"), flags | O_CLOEXEC), i;

    CHECK_GE(fd, 0);
    for (i = n - 1; i >= 0; i--) {
        struct flock byte = {.l_type = type,
                             .l_whence = SEEK_SET,
                             .l_start = HOLD_AT + 2 * i,
                             .l_len = 1};

        CHECK_EQ(fcntl(fd, F_OFD_SETLK, &byte), 0);
    }
    return fd;
}

TEST(who_may_only_read_the_file_cannot_pretend_that_it_is_held)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = fixture_open(), *other = fixture_open();
    hf_lock *lk;
    uint64_t fence;
    int fd;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    fd = lock_bytes(O_RDONLY, F_RDLCK, 1);
    CHECK(!fixture_inspect(other).held);
    CHECK_STATUS(hf_check(other, "job", fence, &t_err), HF_LOST);
    opts.owner = "me";
    CHECK_OK(hf_acquire(client, "job", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(!fixture_inspect(other).held);
    opts.owner = NULL;
    opts.flags = HF_SHARED;
    CHECK_OK(hf_acquire(other, "job", 0, &opts, &lk, &t_err));
    CHECK_EQ(fixture_inspect(client).holders, 1);
    CHECK_OK(hf_release(lk, &t_err));
    close(fd);
    hf_close(client);
    hf_close(other);
}

TEST(all_holders_and_all_waiters_are_counted)
{
    enum { N = 7 };
    struct hf_lock_opts shared = HF_LOCK_OPTS_INIT;
    hf_client *clients[N], *other = fixture_open();
    hf_request *requests[N];
    hf_lock *locks[N], *lk;
    int i, round;

    shared.flags = HF_SHARED;
    for (i = 0; i < N; i++)
        clients[i] = fixture_open();
    for (round = 0; round < 5; round++) {
        for (i = 0; i < N; i++)
            CHECK_OK(
                hf_acquire(clients[i], "job", 0, &shared, &locks[i], &t_err));
        CHECK_EQ(fixture_inspect(other).holders, N);
        for (i = 0; i < N; i++)
            CHECK_OK(hf_release(locks[i], &t_err));
    }
    CHECK_OK(hf_acquire(other, "job", 0, NULL, &lk, &t_err));
    for (i = 0; i < N; i++)
        CHECK_OK(hf_acquire_start(clients[i], "job", -1, NULL, NULL,
                                  &requests[i], &t_err));
    t_poll_until(fixture_inspect(other).waiters == N, 20000);
    for (i = 0; i < N; i++)
        hf_close(clients[i]);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(other);
}

TEST(many_locks_of_a_stranger_stop_nobody)
{
    struct hf_lock_opts shared = HF_LOCK_OPTS_INIT;
    hf_client *client = fixture_open();
    int64_t began = t_now_ms();
    hf_lock *lk;
    int fd;

    shared.flags = HF_SHARED;
    CHECK_OK(hf_acquire(client, "job", 0, &shared, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    fd = lock_bytes(O_RDWR, F_WRLCK, 5000);
    began = t_now_ms();
    fixture_inspect(client);
    CHECK_OK(hf_acquire(client, "job", 0, &shared, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_LT(t_now_ms() - began, 5000);
    close(fd);
    hf_close(client);
}

/* ---- limits ------------------------------------------------------------ */

/* Take the lock with a limit on the size of files; returns how that ended, or
 * 100 if a signal ended it. */
static int acquire_limited(rlim_t most)
{
    struct rlimit limit = {most, RLIM_INFINITY};
    hf_client *client;
    hf_lock *lk = NULL;
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        if (setrlimit(RLIMIT_FSIZE, &limit))
            _exit(101);
        client = fixture_open();
        _exit((int)hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

/* The lock can be had.  There is no client, and no thread of one, when the next
 * child is forked: its memory may not be had under a sanitizer. */
static void acquire_freely(void)
{
    hf_client *client = fixture_open();
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST(a_limit_on_the_size_of_files_spoils_no_lock_file)
{
    CHECK_EQ(acquire_limited(0), HF_SYSTEM);
    CHECK_EQ(acquire_limited(50), HF_SYSTEM);
    acquire_freely();
    CHECK_EQ(acquire_limited(0), HF_SYSTEM);
    CHECK_EQ(acquire_limited(50), HF_SYSTEM);
    acquire_freely();
    CHECK_EQ(acquire_limited(1 << 20), HF_OK);
}

/* In a child, whose stdin, stdout and stderr are closed: take the lock, and say
 * something. */
static int acquire_and_speak(void)
{
    pid_t pid = fork();
    hf_client *client;
    hf_lock *lk;
    int status, fd;

    if (!pid) {
        client = fixture_open();
        for (fd = 0; fd < 3; fd++)
            close(fd);
        status = (int)hf_acquire(client, "job", 0, NULL, &lk, NULL);
        for (fd = 0; fd < 3; fd++)
            if (write(fd, "warning", 7) > 0)
                status = 101;
        _exit(status);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

TEST(what_a_program_says_on_closed_descriptors_spoils_no_lock_file)
{
    CHECK_EQ(acquire_and_speak(), HF_OK);
    acquire_freely();
}

T_MAIN
