/* SPDX-License-Identifier: MIT
 *
 * filesystem.c - what only `file:` can meet: permissions, full and read-only
 * file systems, strange things where a lock file should be, and flock(1).
 *
 * File systems that are full or read-only are small tmpfs mounts in a mount
 * namespace of the test's own, which ends with it.
 */
#include "../t.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

/* A path in this test's directory; good for the next seven calls. */
__attribute__((format(printf, 1, 2))) static const char *path(const char *fmt,
                                                              ...)
{
    static char paths[8][512];
    static int next;
    char *ret = paths[next++ % 8];
    size_t len = (size_t)snprintf(ret, 256, "%s/", t_tmpdir());
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(ret + len, 256, fmt, ap);
    va_end(ap);
    return ret;
}

static hf_status open_at(const char *dir, hf_client **ret)
{
    char url[600];

    snprintf(url, sizeof(url), "file:%s", dir);
    return hf_open(url, NULL, ret, &t_err);
}

/* A client on a directory of locks that is there. */
static hf_client *open_locks(void)
{
    hf_client *client = NULL;

    mkdir(path("locks"), 0700);
    t_check_status(__FILE__, __LINE__, "hf_open(&t_err)",
                   open_at(path("locks"), &client), HF_OK);
    return client;
}

/* The locks in `dir` cannot be had; t_err says why, and names the place. */
static void check_refused(const char *dir, hf_status want, int sys_errno,
                          const char *place)
{
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    hf_status st = open_at(dir, &client);

    if (st == HF_OK)
        st = hf_acquire(client, "job", 0, NULL, &lk, &t_err);
    CHECK(lk == NULL);
    t_check_status(__FILE__, __LINE__, "file:(&t_err)", st, want);
    if (sys_errno && t_err.sys_errno != sys_errno)
        t_fail(__FILE__, __LINE__, "errno %d is not %d (%s)", t_err.sys_errno,
               sys_errno, t_err.text);
    if (!strstr(t_err.text, place))
        t_fail(__FILE__, __LINE__, "\"%s\" does not name %s", t_err.text,
               place);
    hf_close(client);
}

static void write_file(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    CHECK_GE(fd, 0);
    CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

/* Run a shell command; its exit status. */
__attribute__((format(printf, 1, 2))) static int shell(const char *fmt, ...)
{
    char cmd[1200];
    va_list ap;
    int status;

    va_start(ap, fmt);
    vsnprintf(cmd, sizeof(cmd), fmt, ap);
    va_end(ap);
    status = system(cmd);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* What fstatfs(2) says instead of the truth; 0: the truth. */
static unsigned long pretended_fs;

/* Stands between the library and the system. */
int fstatfs(int fd, struct statfs *buf)
{
    int st = (int)syscall(SYS_fstatfs, fd, buf);

    if (pretended_fs)
        buf->f_type = (__typeof__(buf->f_type))pretended_fs;
    return st;
}

static struct hf_service describe_locks(void)
{
    struct hf_service service = {.size = sizeof(service)};
    hf_client *client = open_locks();

    CHECK_OK(hf_describe(client, &service, &t_err));
    hf_close(client);
    return service;
}

TEST(a_network_file_system_and_no_other_is_warned_of)
{
    const unsigned remote = HF_TRAIT_NOTIFY | HF_TRAIT_DEATH;
    struct hf_service service = describe_locks();

    CHECK_STR(service.warning, "");
    CHECK_EQ(service.traits & remote, remote);
    pretended_fs = 0x6969;
    service = describe_locks();
    CHECK(strstr(service.warning, "is on NFS:") != NULL);
    CHECK_EQ(service.traits & remote, 0);
    pretended_fs = 0x0bd00bd0; /* the last of the table */
    CHECK(strstr(describe_locks().warning, "is on Lustre:") != NULL);
}

/* ---- places ------------------------------------------------------------ */

TEST(the_directory_is_made_if_only_it_is_missing)
{
    hf_client *client = NULL;
    struct stat st;
    hf_lock *lk;

    t_check_status(__FILE__, __LINE__, "hf_open", open_at(path("new"), &client),
                   HF_OK);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_EQ(stat(path("new/job.lock"), &st), 0);
    CHECK(S_ISREG(st.st_mode));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

static bool count_lock(void *arg, const char *key, const struct hf_info *info)
{
    (void)key;
    (void)info;
    ++*(int *)arg;
    return true;
}

/* A mistyped name must not become a directory because somebody asked who holds
 * a lock there.  What another process makes meanwhile is seen. */
TEST(the_directory_is_made_by_the_first_lock_and_not_by_looking)
{
    hf_client *client = NULL, *other = NULL;
    struct hf_info info = HF_INFO_INIT;
    int count = 0;
    hf_lock *lk;

    CHECK_EQ(chdir(t_tmpdir()), 0);
    CHECK_OK(hf_open("file:new/", NULL, &client, &t_err));
    CHECK_EQ(chdir("/"), 0);
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(!info.held);
    CHECK_OK(hf_list(client, "", count_lock, &count, &t_err));
    CHECK_STATUS(hf_break(client, "job", 1, &t_err), HF_LOST);
    CHECK_STATUS(hf_check(client, "job", 1, &t_err), HF_LOST);
    CHECK_EQ(access(path("new"), F_OK), -1);
    t_check_status(__FILE__, __LINE__, "hf_open", open_at(path("new"), &other),
                   HF_OK);
    CHECK_OK(hf_acquire(other, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_list(client, "", count_lock, &count, &t_err));
    CHECK_EQ(count, 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(other);
}

TEST(a_missing_parent_is_named)
{
    check_refused(path("no/such/place"), HF_SYSTEM, ENOENT, "no/such/place");
}

TEST(a_file_where_a_directory_is_needed_is_named)
{
    write_file(path("file"), "");
    check_refused(path("file"), HF_SYSTEM, ENOTDIR, "/file");
    check_refused(path("file/below"), HF_SYSTEM, ENOTDIR, "/file");
}

/* Become nobody, who owns this test's directory; root may do everything. */
static void drop_root(void)
{
    const char *dir = t_tmpdir();

    if (geteuid() != 0)
        return;
    CHECK_EQ(chown(dir, 65534, 65534), 0);
    CHECK_EQ(setresgid(65534, 65534, 65534), 0);
    CHECK_EQ(setresuid(65534, 65534, 65534), 0);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); /* or /proc/self is root's */
}

TEST(a_directory_without_permission_is_denied)
{
    static const mode_t modes[] = {0000, 0500, 0600};

    drop_root();
    CHECK_EQ(mkdir(path("locks"), 0700), 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(chmod(path("locks"), modes[i]), 0);
        check_refused(path("locks"), HF_DENIED, EACCES, "locks");
    }
    CHECK_EQ(chmod(path("locks"), 0700), 0);
    hf_close(open_locks());
}

TEST(a_lock_file_without_permission_is_denied)
{
    drop_root();
    hf_close(open_locks());
    write_file(path("locks/job.lock"), "");
    CHECK_EQ(chmod(path("locks/job.lock"), 0000), 0);
    check_refused(path("locks"), HF_DENIED, EACCES, "job");
}

/* Mount a small tmpfs of our own at `dir`. */
static void mount_small(const char *dir)
{
    CHECK_EQ(mkdir(dir, 0700), 0);
    if (unshare(CLONE_NEWNS) ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", dir, "tmpfs", 0, "size=64k,mode=0700"))
        T_SKIP_HOST("no mount namespace can be made");
}

TEST(a_read_only_file_system_is_told_as_such)
{
    mount_small(path("m"));
    CHECK_EQ(mkdir(path("m/locks"), 0700), 0);
    write_file(path("m/locks/job.lock"), "");
    CHECK_EQ(mount("none", path("m"), NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    check_refused(path("m/locks"), HF_DENIED, EROFS, "m/locks");
    check_refused(path("m/new"), HF_DENIED, EROFS, "m/new");
}

/* Write to `name` until there is no room. */
static void fill(const char *name)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    static const char block[4096];

    CHECK_GE(fd, 0);
    while (write(fd, block, sizeof(block)) > 0)
        ;
    CHECK_EQ(errno, ENOSPC);
    close(fd);
}

TEST(a_full_disk_is_told_as_such_and_grants_nothing)
{
    hf_client *client = NULL;
    hf_lock *lk = NULL;

    mount_small(path("m"));
    CHECK_EQ(mkdir(path("m/locks"), 0700), 0);
    fill(path("m/filler"));
    check_refused(path("m/locks"), HF_SYSTEM, ENOSPC, "m/locks");
    CHECK_EQ(unlink(path("m/filler")), 0);
    t_check_status(__FILE__, __LINE__, "hf_open",
                   open_at(path("m/locks"), &client), HF_OK);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK(hf_held(lk));
    fill(path("m/filler"));
    CHECK_OK(hf_release(lk, &t_err));
    /* The file is there and has its room: the lock still works. */
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* ---- strange lock files ------------------------------------------------ */

TEST(a_symlink_is_not_followed)
{
    struct stat st;

    hf_close(open_locks());
    write_file(path("precious"), "precious");
    CHECK_EQ(symlink(path("precious"), path("locks/job.lock")), 0);
    check_refused(path("locks"), HF_DENIED, 0, "symbolic link");
    CHECK_EQ(stat(path("precious"), &st), 0);
    CHECK_EQ(st.st_size, 8);
    CHECK_EQ(unlink(path("locks/job.lock")), 0);
    CHECK_EQ(symlink(path("nowhere"), path("locks/job.lock")), 0);
    check_refused(path("locks"), HF_DENIED, 0, "symbolic link");
    CHECK_EQ(access(path("nowhere"), F_OK), -1);
}

TEST(what_is_no_file_is_refused_without_blocking)
{
    hf_close(open_locks());
    CHECK_EQ(mkfifo(path("locks/job.lock"), 0600), 0);
    check_refused(path("locks"), HF_PROTOCOL, 0, "job");
    CHECK_EQ(unlink(path("locks/job.lock")), 0);
    CHECK_EQ(mkdir(path("locks/job.lock"), 0700), 0);
    check_refused(path("locks"), HF_SYSTEM, EISDIR, "job");
}

TEST(a_lock_file_is_never_removed_or_replaced)
{
    hf_client *client = open_locks();
    struct stat before, after;
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_EQ(stat(path("locks/job.lock"), &before), 0);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    CHECK_EQ(stat(path("locks/job.lock"), &after), 0);
    CHECK_EQ(before.st_ino, after.st_ino);
}

static void check_content(const char *name, const char *text)
{
    char buf[256] = "";
    int fd = open(name, O_RDONLY | O_CLOEXEC);

    CHECK_GE(fd, 0);
    CHECK_GE(read(fd, buf, sizeof(buf) - 1), 0);
    CHECK_STR(buf, text);
    close(fd);
}

TEST(what_somebody_else_wrote_is_refused_and_left_as_it_is)
{
    static const char *const texts[] = {
        "4711\n",
        "not ours at all\n",
        "{\"fence\":1}",
        "holdfast 99999999999999999999 x\n",
        "holdfast\n\n\n\n",
        "holdfast 1 broken=x\nfence=1 mode=x since=1 pid=1\nowner=\nnote=\n",
    };

    hf_close(open_locks());
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        write_file(path("locks/job.lock"), texts[i]);
        check_refused(path("locks"), HF_PROTOCOL, 0, "job");
        check_content(path("locks/job.lock"), texts[i]);
    }
}

TEST(an_emptied_lock_file_still_gives_a_greater_fence)
{
    hf_client *client = open_locks();
    uint64_t last = 0;

    for (int i = 0; i < 6; i++) {
        hf_lock *lk = NULL;

        if (i % 2)
            write_file(path("locks/job.lock"), "");
        else if (i)
            CHECK_EQ(unlink(path("locks/job.lock")), 0);
        CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
        CHECK_GT(hf_fence(lk), last);
        last = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
}

TEST(a_holder_whose_file_was_removed_is_told)
{
    struct hf_lock_opts brief = HF_LOCK_OPTS_INIT;
    hf_client *client = open_locks(), *other = open_locks();
    hf_lock *lk, *next;

    brief.ttl_ms = 300;
    CHECK_OK(hf_acquire(client, "job", 0, &brief, &lk, &t_err));
    CHECK_EQ(unlink(path("locks/job.lock")), 0);
    t_poll_until(!hf_held(lk), 20000);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_DELETED);
    CHECK_OK(hf_acquire(other, "job", 0, NULL, &next, &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_EQ(shell("flock -n %s true", path("locks/job.lock")), 1);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(client);
    hf_close(other);
}

static bool name_it(void *arg, const char *key, const struct hf_info *info)
{
    (void)arg, (void)info;
    t_fail(__FILE__, __LINE__, "listed: \"%s\"", key);
}

static bool list_one(void *arg, const char *key, const struct hf_info *info)
{
    (void)key;
    (void)info;
    ++*(int *)arg;
    return true;
}

/* Something cleans up while a program runs on. */
TEST(a_directory_that_was_removed_is_made_or_found_again)
{
    hf_client *client = open_locks(), *other;
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = NULL, *none = NULL;
    int seen = 0;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(unlink(path("locks/job.lock")), 0);
    CHECK_EQ(rmdir(path("locks")), 0);
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(!info.held);
    CHECK_EQ(access(path("locks"), F_OK), -1); /* Looking makes nothing. */
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(unlink(path("locks/job.lock")), 0);
    CHECK_EQ(rmdir(path("locks")), 0);
    other = open_locks();
    CHECK_OK(hf_acquire(other, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_list(client, "", list_one, &seen, &t_err));
    CHECK_EQ(seen, 1);
    CHECK_STATUS(hf_acquire(client, "job", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(other);
}

TEST(strange_files_in_the_directory_are_not_listed)
{
    hf_client *client = open_locks();

    write_file(path("locks/README"), "text");
    write_file(path("locks/.lock"), "");
    write_file(path("locks/.hidden"), "");
    write_file(path("locks/free.lock"), "");
    CHECK_EQ(mkdir(path("locks/dir.lock"), 0700), 0);
    CHECK_EQ(mkfifo(path("locks/fifo.lock"), 0600), 0);
    CHECK_EQ(symlink("/etc/passwd", path("locks/link.lock")), 0);
    CHECK_OK(hf_list(client, NULL, name_it, NULL, &t_err));
    hf_close(client);
}

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
    hf_client *first = open_locks();
    hf_lock *lk = NULL;
    hf_status st;
    int fd;

    second = open_locks();
    opts.owner = "me";
    CHECK_OK(hf_acquire(first, "job", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    lk = NULL;
    fd = open(path("locks/job.lock"), O_RDONLY | O_CLOEXEC);
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
    hf_client *client = open_locks();
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
    hf_client *client = open_locks();
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

    hf_close(open_locks());
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
    int fd = open(path("locks/job.lock"), O_RDONLY | O_CLOEXEC);

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
    hf_client *client = open_locks(), *other = open_locks();
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

    CHECK_EQ(stat(path("m/locks/job.lock"), &want), 0);
    for (int i = 0; i < 200; i++) {
        snprintf(name, size, "%s/f%d", dir, i);
        write_file(name, "");
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

    mount_small(path("m"));
    CHECK_EQ(mkdir(path("m2"), 0700), 0);
    CHECK_EQ(mount("none", path("m2"), "tmpfs", 0, "mode=0700"), 0);
    CHECK_EQ(mkdir(path("m/locks"), 0700), 0);
    t_check_status(__FILE__, __LINE__, "hf_open",
                   open_at(path("m/locks"), &client), HF_OK);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_release(lk, &t_err));
    same_number(path("m2"), name, sizeof(name));
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
    hf_client *client = open_locks(), *other = open_locks();
    struct stat before, after;
    hf_lock *lk, *next;

    brief.ttl_ms = 300;
    CHECK_OK(hf_acquire(client, "job", 0, &brief, &lk, &t_err));
    CHECK_EQ(chmod(path("locks/job.lock"), 0640), 0);
    CHECK_EQ(stat(path("locks/job.lock"), &before), 0);
    CHECK_OK(hf_break_force(other, "job", hf_fence(lk), &t_err));
    CHECK_OK(hf_acquire(other, "job", 0, NULL, &next, &t_err));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_EQ(stat(path("locks/job.lock"), &after), 0);
    CHECK_NE(before.st_ino, after.st_ino);
    CHECK_EQ(before.st_mode, after.st_mode);
    t_poll_until(!hf_held(lk), 20000);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_EQ(shell("test $(ls -A %s | wc -l) = 1", path("locks")), 0);
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
        if (setgid(65534) || setuid(65534) || open_at(dir, &client))
            _exit(100);
        _exit((int)hf_break_force(client, "job", fence, &t_err));
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

TEST(a_break_by_force_that_is_refused_has_broken_nothing)
{
    hf_client *client = open_locks();
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk;

    if (geteuid())
        T_SKIP_HOST("only root can become another user");
    CHECK_EQ(chmod(t_tmpdir(), 0711), 0);
    CHECK_EQ(chmod(path("locks"), 01777), 0);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_EQ(chmod(path("locks/job.lock"), 0666), 0);
    CHECK_EQ(force_as_stranger(path("locks"), hf_fence(lk)), HF_DENIED);
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(info.held && !info.broken);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* The gate is a byte far behind the record.  While another has it, a break
 * would write over what that one is writing. */
TEST(a_break_writes_nothing_while_another_process_has_the_gate)
{
    hf_client *client = open_locks(), *other = open_locks();
    struct flock gate = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = (off_t)1 << 40,
                         .l_len = 1};
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk;
    int fd;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    fd = open(path("locks/job.lock"), O_RDWR | O_CLOEXEC);
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
    hf_client *client = open_locks();
    struct hf_lock_opts shared = HF_LOCK_OPTS_INIT;
    const char *file = path("locks/job.lock");
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_EQ(shell("flock -n %s true", file), 1);
    CHECK_EQ(shell("flock -n -s %s true", file), 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(shell("flock -n %s true", file), 0);

    shared.flags = HF_SHARED;
    CHECK_OK(hf_acquire(client, "job", 0, &shared, &lk, &t_err));
    CHECK_EQ(shell("flock -n %s true", file), 1);
    CHECK_EQ(shell("flock -n -s %s true", file), 0);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(shell("flock -n %s true", file), 0);
    hf_close(client);
}

/* flock(1) holds the file until it reads a line from us. */
static FILE *hold_with_flock(const char *file, const char *flags)
{
    char cmd[600];
    FILE *p;

    snprintf(cmd, sizeof(cmd), "flock %s %s sh -c 'touch %s; read x'", flags,
             file, path("flock.ready"));
    p = popen(cmd, "we");
    CHECK(p != NULL);
    t_poll_until(access(path("flock.ready"), F_OK) == 0, 20000);
    CHECK_EQ(unlink(path("flock.ready")), 0);
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
    hf_client *client = open_locks();
    struct hf_lock_opts shared = HF_LOCK_OPTS_INIT;
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = NULL;
    FILE *p = hold_with_flock(path("locks/job.lock"), "-x");

    shared.flags = HF_SHARED;
    CHECK_STATUS(hf_acquire(client, "job", 0, NULL, &lk, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(client, "job", 50, NULL, &lk, &t_err), HF_TIMEOUT);
    CHECK_STATUS(hf_acquire(client, "job", 0, &shared, &lk, &t_err), HF_BUSY);
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(info.held);
    let_go(p);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));

    p = hold_with_flock(path("locks/job.lock"), "-s");
    CHECK_STATUS(hf_acquire(client, "job", 0, NULL, &lk, &t_err), HF_BUSY);
    CHECK_OK(hf_acquire(client, "job", 0, &shared, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    let_go(p);
    hf_close(client);
}

static void acquire_it(struct t_peer *up, void *arg)
{
    hf_client *client = open_locks();
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

    hf_close(open_locks());
    p = hold_with_flock(path("locks/job.lock"), "-x");
    peer = t_fork(acquire_it, NULL);
    t_hear(&peer);
    CHECK(!t_try_hear(&peer, 200, &word));
    let_go(p);
    CHECK_EQ(t_hear(&peer), 1);
    CHECK_EQ(shell("flock -w 0.2 %s true", path("locks/job.lock")), 1);
    t_tell(&peer, 0);
    CHECK_EQ(shell("flock -w 30 %s true", path("locks/job.lock")), 0);
    t_join(&peer);
}

T_MAIN
