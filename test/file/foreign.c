/* SPDX-License-Identifier: MIT
 *
 * foreign.c - others at the lock files of `file:`: those who come between two
 * steps, strangers with locks of their own, the default directory of another
 * user, a break by force, and flock(1).
 */
#include "fixture.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- between two steps ------------------------------------------------- */

/* What happens after a record has been read and before anything is made of it:
 * the library's calls come here. */
static void (*after_reading)(char *text, size_t len);

ssize_t pread64(int fd, void *buf, size_t size, off_t at)
{
    ssize_t len = syscall(SYS_pread64, fd, buf, size, at);
    void (*then)(char *, size_t) = after_reading;

    if (len > 1 && then) {
        after_reading = NULL;
        then(buf, (size_t)len);
    }
    return len;
}

static hf_client *second;
static hf_lock *shared_lock;
static hf_status shared_status;

static void share_it(char *text, size_t len)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    (void)text, (void)len;
    opts.flags = HF_SHARED;
    shared_status = hf_acquire(second, "job", 0, &opts, &shared_lock, &t_err);
}

/* An owner held it once, and its record is still there; somebody has LOCK_SH at
 * the moment, so the owner comes to join. */
TEST(who_joins_an_owner_and_who_shares_never_hold_together)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *first = fixture_open();
    hf_lock *lk = NULL;
    hf_status st;
    int fd;

    second = fixture_open();
    opts.owner = "me";
    CHECK_OK(hf_acquire(first, "job", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    lk = NULL;
    fd = open(fixture_path("locks/job.lock"), O_RDONLY | O_CLOEXEC);
    CHECK_EQ(flock(fd, LOCK_SH), 0);
    after_reading = share_it;
    st = hf_acquire(first, "job", 0, &opts, &lk, &t_err);
    CHECK(after_reading == NULL);
    CHECK(st != HF_OK || shared_status != HF_OK);
    if (lk)
        CHECK_OK(hf_release(lk, &t_err));
    if (shared_lock)
        CHECK_OK(hf_release(shared_lock, &t_err));
    close(fd);
    hf_close(first);
    hf_close(second);
}

/* As if another were just writing: the first half is new, the second is old. */
static void tear(char *text, size_t len)
{
    char *note = memmem(text, len, "aaaa", 4);

    CHECK(note != NULL);
    memcpy(note, "bb", 2);
}

TEST(a_record_that_is_read_while_it_is_written_is_read_again)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_info info = HF_INFO_INIT;
    hf_client *client = fixture_open();
    hf_lock *lk;

    opts.note = "aaaa";
    CHECK_OK(hf_acquire(client, "job", 0, &opts, &lk, &t_err));
    after_reading = tear;
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(after_reading == NULL);
    CHECK_STR(info.note, "aaaa");
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

static void share_often(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = fixture_open();
    int64_t refused = 0;
    hf_lock *lk;

    (void)arg;
    opts.flags = HF_SHARED;
    t_hear(up);
    for (int i = 0; i < 500; i++) {
        hf_status st = hf_acquire(client, "job", 0, &opts, &lk, &t_err);

        if (st == HF_OK)
            CHECK_OK(hf_release(lk, &t_err));
        else
            refused++;
    }
    t_tell(up, refused);
    hf_close(client);
}

TEST(who_shares_is_not_refused_because_of_others_who_share)
{
    struct t_peer peers[4];
    int64_t refused = 0;

    hf_close(fixture_open());
    for (int i = 0; i < 4; i++)
        peers[i] = t_fork(share_often, NULL);
    for (int i = 0; i < 4; i++)
        t_tell(&peers[i], 0);
    for (int i = 0; i < 4; i++) {
        refused += t_hear(&peers[i]);
        t_join(&peers[i]);
    }
    CHECK_EQ(refused, 0);
}

/* ---- strangers --------------------------------------------------------- */

/* A reader, with a lock of another kind on the whole file. */
static void lock_all(struct t_peer *up, void *arg)
{
    struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    int fd = open(fixture_path("locks/job.lock"), O_RDONLY | O_CLOEXEC);

    (void)arg;
    CHECK_EQ(fcntl(fd, F_SETLK, &all), 0);
    t_tell(up, 0);
    t_hear(up);
    close(fd);
}

static bool count_it(void *arg, const char *key, const struct hf_info *info)
{
    (void)key, (void)info;
    ++*(int *)arg;
    return true;
}

TEST(a_strangers_lock_on_the_whole_file_makes_nobody_spin)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = fixture_open(), *other = fixture_open();
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = NULL, *none = NULL;
    struct t_peer peer;
    int listed = 0;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    peer = t_fork(lock_all, NULL);
    t_hear(&peer);
    CHECK_OK(hf_inspect(other, "job", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_list(other, NULL, count_it, &listed, &t_err));
    CHECK_EQ(listed, 1);
    CHECK_STATUS(hf_acquire(other, "job", 100, NULL, &none, &t_err),
                 HF_TIMEOUT);
    CHECK_OK(hf_release(lk, &t_err));
    opts.owner = "me"; /* Whether these two get it is another question. */
    if (!hf_acquire(other, "job", 0, &opts, &lk, &t_err))
        CHECK_OK(hf_release(lk, &t_err));
    opts.owner = NULL;
    opts.flags = HF_SHARED;
    if (!hf_acquire(other, "job", 0, &opts, &lk, &t_err))
        CHECK_OK(hf_release(lk, &t_err));
    t_tell(&peer, 0);
    t_join(&peer);
    CHECK_OK(hf_acquire(other, "job", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(other);
}

/* Give `name`, in another file system, the number of the lock file. */
static void same_number(const char *dir, char *name, size_t size)
{
    struct stat want, got;

    CHECK_EQ(stat(fixture_path("m/locks/job.lock"), &want), 0);
    for (int i = 0; i < 200; i++) {
        snprintf(name, size, "%s/f%d", dir, i);
        fixture_write(name, "");
        CHECK_EQ(stat(name, &got), 0);
        if (got.st_ino == want.st_ino)
            return;
    }
    T_SKIP_HOST("no file with the same number");
}

TEST(a_file_of_another_device_is_not_taken_for_the_lock_file)
{
    struct hf_info info = HF_INFO_INIT;
    hf_client *client = NULL;
    char name[600];
    hf_lock *lk;
    int fd;

    fixture_mount(fixture_path("m"));
    CHECK_EQ(mkdir(fixture_path("m2"), 0700), 0);
    CHECK_EQ(mount("none", fixture_path("m2"), "tmpfs", 0, "mode=0700"), 0);
    CHECK_EQ(mkdir(fixture_path("m/locks"), 0700), 0);
    t_check_status(__FILE__, __LINE__, "hf_open",
                   fixture_open_at(fixture_path("m/locks"), &client), HF_OK);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_release(lk, &t_err));
    same_number(fixture_path("m2"), name, sizeof(name));
    fd = open(name, O_RDWR | O_CLOEXEC);
    CHECK_EQ(flock(fd, LOCK_EX), 0);
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(!info.held);
    CHECK_STATUS(hf_check(client, "job", info.fence, &t_err), HF_LOST);
    close(fd);
    hf_close(client);
}

/* ---- the directory that nobody named ----------------------------------- */

/* A /run/lock of this test's own. */
static void mount_run_lock(const char *mode)
{
    char options[64];

    snprintf(options, sizeof(options), "size=64k,mode=%s", mode);
    if (geteuid() || access("/run/lock", F_OK) || unshare(CLONE_NEWNS) ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", "/tmp", "tmpfs", 0, "size=64k,mode=1777") ||
        mount("none", "/run/lock", "tmpfs", 0, options))
        T_SKIP_HOST("no mount namespace can be made");
}

static void check_default(const char *dir)
{
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = NULL;

    CHECK_OK(hf_open(NULL, NULL, &client, &t_err));
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK_STR(about.endpoint, dir);
    hf_close(client);
}

TEST(a_user_has_one_default_directory_and_never_another)
{
    hf_client *client = NULL;
    hf_lock *lk = NULL;

    mount_run_lock("1777");
    check_default("file:/run/lock/holdfast-0");
    CHECK_EQ(access("/run/lock/holdfast-0", F_OK), -1);
    CHECK_EQ(mkdir("/run/lock/holdfast-0", 0700), 0);
    CHECK_EQ(mount("none", "/run/lock", NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    check_default(
        "file:/run/lock/holdfast-0"); /* to look, one need not write */
    CHECK_OK(hf_open(NULL, NULL, &client, &t_err));
    CHECK_STATUS(hf_acquire(client, "k", 0, NULL, &lk, &t_err), HF_DENIED);
    CHECK(strstr(t_err.text, "/run/lock/holdfast-0") != NULL);
    CHECK_EQ(access("/tmp/holdfast-0", F_OK), -1);
    hf_close(client);
}

TEST(a_run_lock_of_root_alone_is_nobodys_default)
{
    mount_run_lock("0755");
    check_default("file:/tmp/holdfast-0");
}

TEST(a_default_directory_of_somebody_else_is_refused_with_his_name)
{
    hf_client *client = NULL;

    mount_run_lock("1777");
    CHECK_EQ(mkdir("/run/lock/holdfast-0", 0700), 0);
    CHECK_EQ(chown("/run/lock/holdfast-0", 54321, 54321), 0);
    CHECK_STATUS(hf_open(NULL, NULL, &client, &t_err), HF_DENIED);
    CHECK(strstr(t_err.text, "54321") != NULL);
    CHECK_EQ(rmdir("/run/lock/holdfast-0"), 0);
    check_default("file:/run/lock/holdfast-0");
    CHECK_EQ(mkdir("/run/lock/holdfast-0", 0700), 0);
    CHECK_EQ(chmod("/run/lock/holdfast-0", 0777), 0);
    CHECK_STATUS(hf_open(NULL, NULL, &client, &t_err), HF_DENIED);
    CHECK(strstr(t_err.text, "chmod") != NULL);
}

/* ---- breaking by force ------------------------------------------------- */

TEST(a_lock_that_was_freed_by_force_goes_on_in_another_file)
{
    struct hf_lock_opts brief = HF_LOCK_OPTS_INIT;
    hf_client *client = fixture_open(), *other = fixture_open();
    struct stat before, after;
    hf_lock *lk, *next;

    brief.ttl_ms = 300;
    CHECK_OK(hf_acquire(client, "job", 0, &brief, &lk, &t_err));
    CHECK_EQ(chmod(fixture_path("locks/job.lock"), 0640), 0);
    CHECK_EQ(stat(fixture_path("locks/job.lock"), &before), 0);
    CHECK_OK(hf_break_force(other, "job", hf_fence(lk), &t_err));
    CHECK_OK(hf_acquire(other, "job", 0, NULL, &next, &t_err));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_EQ(stat(fixture_path("locks/job.lock"), &after), 0);
    CHECK_NE(before.st_ino, after.st_ino);
    CHECK_EQ(before.st_mode, after.st_mode);
    t_poll_until(!hf_held(lk), 20000);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_EQ(
        fixture_shell("test $(ls -A %s | wc -l) = 1", fixture_path("locks")),
        0);
    hf_close(client);
    hf_close(other);
}

/* Break the lock as a user who may write the file and not replace it; returns
 * the status. */
static int force_as_stranger(const char *dir, uint64_t fence)
{
    hf_client *client = NULL;
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        if (setgid(65534) || setuid(65534) || fixture_open_at(dir, &client))
            _exit(100);
        _exit((int)hf_break_force(client, "job", fence, &t_err));
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

TEST(a_break_by_force_that_is_refused_has_broken_nothing)
{
    hf_client *client = fixture_open();
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk;

    if (geteuid())
        T_SKIP_HOST("only root can become another user");
    CHECK_EQ(chmod(t_tmpdir(), 0711), 0);
    CHECK_EQ(chmod(fixture_path("locks"), 01777), 0);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_EQ(chmod(fixture_path("locks/job.lock"), 0666), 0);
    CHECK_EQ(force_as_stranger(fixture_path("locks"), hf_fence(lk)), HF_DENIED);
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(info.held && !info.broken);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* The gate is a byte far behind the record.  While another has it, a break
 * would write over what that one is writing. */
TEST(a_break_writes_nothing_while_another_process_has_the_gate)
{
    hf_client *client = fixture_open(), *other = fixture_open();
    struct flock gate = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)1 << 40,
                         .l_len = 1};
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk;
    int fd;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    fd = open(fixture_path("locks/job.lock"), O_RDWR | O_CLOEXEC);
    CHECK_EQ(fcntl(fd, F_OFD_SETLK, &gate), 0);
    CHECK_STATUS(hf_break(other, "job", hf_fence(lk), &t_err), HF_UNAVAILABLE);
    CHECK_OK(hf_inspect(other, "job", &info, &t_err));
    CHECK(info.held && !info.broken);
    close(fd);
    CHECK_OK(hf_break(other, "job", hf_fence(lk), &t_err));
    CHECK_OK(hf_inspect(other, "job", &info, &t_err));
    CHECK(info.broken);
    CHECK_STATUS(hf_break(other, "job", hf_fence(lk) - 1, &t_err), HF_LOST);
    CHECK_OK(hf_inspect(other, "job", &info, &t_err));
    CHECK(info.broken);
    hf_close(client);
    hf_close(other);
    hf_release(lk, NULL);
}

/* ---- flock(1) ---------------------------------------------------------- */

TEST(flock_is_refused_while_holdfast_holds)
{
    hf_client *client = fixture_open();
    struct hf_lock_opts shared = HF_LOCK_OPTS_INIT;
    const char *file = fixture_path("locks/job.lock");
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_EQ(fixture_shell("flock -n %s true", file), 1);
    CHECK_EQ(fixture_shell("flock -n -s %s true", file), 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(fixture_shell("flock -n %s true", file), 0);

    shared.flags = HF_SHARED;
    CHECK_OK(hf_acquire(client, "job", 0, &shared, &lk, &t_err));
    CHECK_EQ(fixture_shell("flock -n %s true", file), 1);
    CHECK_EQ(fixture_shell("flock -n -s %s true", file), 0);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(fixture_shell("flock -n %s true", file), 0);
    hf_close(client);
}

/* flock(1) holds the file until it reads a line from us. */
static FILE *hold_with_flock(const char *file, const char *flags)
{
    char cmd[600];
    FILE *p;

    snprintf(cmd, sizeof(cmd), "flock %s %s sh -c 'touch %s; read x'", flags,
             file, fixture_path("flock.ready"));
    p = popen(cmd, "we");
    CHECK(p != NULL);
    t_poll_until(access(fixture_path("flock.ready"), F_OK) == 0, 20000);
    CHECK_EQ(unlink(fixture_path("flock.ready")), 0);
    return p;
}

static void let_go(FILE *p)
{
    fputs("go\n", p);
    fflush(p);
    CHECK_EQ(pclose(p), 0);
}

TEST(holdfast_is_refused_while_flock_holds)
{
    hf_client *client = fixture_open();
    struct hf_lock_opts shared = HF_LOCK_OPTS_INIT;
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = NULL;
    FILE *p = hold_with_flock(fixture_path("locks/job.lock"), "-x");

    shared.flags = HF_SHARED;
    CHECK_STATUS(hf_acquire(client, "job", 0, NULL, &lk, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(client, "job", 50, NULL, &lk, &t_err), HF_TIMEOUT);
    CHECK_STATUS(hf_acquire(client, "job", 0, &shared, &lk, &t_err), HF_BUSY);
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(info.held);
    let_go(p);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));

    p = hold_with_flock(fixture_path("locks/job.lock"), "-s");
    CHECK_STATUS(hf_acquire(client, "job", 0, NULL, &lk, &t_err), HF_BUSY);
    CHECK_OK(hf_acquire(client, "job", 0, &shared, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    let_go(p);
    hf_close(client);
}

static void acquire_it(struct t_peer *up, void *arg)
{
    hf_client *client = fixture_open();
    hf_lock *lk;

    (void)arg;
    t_tell(up, 0);
    CHECK_OK(hf_acquire(client, "job", -1, NULL, &lk, &t_err));
    t_tell(up, 1);
    t_hear(up);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST(each_waits_for_the_other)
{
    struct t_peer peer;
    FILE *p;
    int64_t word;

    hf_close(fixture_open());
    p = hold_with_flock(fixture_path("locks/job.lock"), "-x");
    peer = t_fork(acquire_it, NULL);
    t_hear(&peer);
    CHECK(!t_try_hear(&peer, 200, &word));
    let_go(p);
    CHECK_EQ(t_hear(&peer), 1);
    CHECK_EQ(
        fixture_shell("flock -w 0.2 %s true", fixture_path("locks/job.lock")),
        1);
    t_tell(&peer, 0);
    CHECK_EQ(
        fixture_shell("flock -w 30 %s true", fixture_path("locks/job.lock")),
        0);
    t_join(&peer);
}

T_MAIN
