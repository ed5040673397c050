/* SPDX-License-Identifier: MIT
 *
 * filesystem.c - what only `file:` can meet: permissions, full and read-only
 * file systems, strange things where a lock file should be, and flock(1).
 *
 * File systems that are full or read-only are small tmpfs mounts in a mount
 * namespace of the test's own, which ends with it.
 */
#include "fixture.h"

#include <errno.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The locks in `dir` cannot be had; t_err says why, and names the place. */
static void check_refused(const char *dir, hf_status want, int sys_errno,
                          const char *place)
{
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    hf_status st = fixture_open_at(dir, &client);

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
    hf_client *client = fixture_open();

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

    t_check_status(__FILE__, __LINE__, "hf_open",
                   fixture_open_at(fixture_path("new"), &client), HF_OK);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_EQ(stat(fixture_path("new/job.lock"), &st), 0);
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
    CHECK_EQ(access(fixture_path("new"), F_OK), -1);
    t_check_status(__FILE__, __LINE__, "hf_open",
                   fixture_open_at(fixture_path("new"), &other), HF_OK);
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
    check_refused(fixture_path("no/such/place"), HF_SYSTEM, ENOENT,
                  "no/such/place");
}

TEST(a_file_where_a_directory_is_needed_is_named)
{
    fixture_write(fixture_path("file"), "");
    check_refused(fixture_path("file"), HF_SYSTEM, ENOTDIR, "/file");
    check_refused(fixture_path("file/below"), HF_SYSTEM, ENOTDIR, "/file");
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
    CHECK_EQ(mkdir(fixture_path("locks"), 0700), 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(chmod(fixture_path("locks"), modes[i]), 0);
        check_refused(fixture_path("locks"), HF_DENIED, EACCES, "locks");
    }
    CHECK_EQ(chmod(fixture_path("locks"), 0700), 0);
    hf_close(fixture_open());
}

TEST(a_lock_file_without_permission_is_denied)
{
    drop_root();
    hf_close(fixture_open());
    fixture_write(fixture_path("locks/job.lock"), "");
    CHECK_EQ(chmod(fixture_path("locks/job.lock"), 0000), 0);
    check_refused(fixture_path("locks"), HF_DENIED, EACCES, "job");
}

TEST(a_read_only_file_system_is_told_as_such)
{
    fixture_mount(fixture_path("m"));
    CHECK_EQ(mkdir(fixture_path("m/locks"), 0700), 0);
    fixture_write(fixture_path("m/locks/job.lock"), "");
    CHECK_EQ(
        mount("none", fixture_path("m"), NULL, MS_REMOUNT | MS_RDONLY, NULL),
        0);
    check_refused(fixture_path("m/locks"), HF_DENIED, EROFS, "m/locks");
    check_refused(fixture_path("m/new"), HF_DENIED, EROFS, "m/new");
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

    fixture_mount(fixture_path("m"));
    CHECK_EQ(mkdir(fixture_path("m/locks"), 0700), 0);
    fill(fixture_path("m/filler"));
    check_refused(fixture_path("m/locks"), HF_SYSTEM, ENOSPC, "m/locks");
    CHECK_EQ(unlink(fixture_path("m/filler")), 0);
    t_check_status(__FILE__, __LINE__, "hf_open",
                   fixture_open_at(fixture_path("m/locks"), &client), HF_OK);
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK(hf_held(lk));
    fill(fixture_path("m/filler"));
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

    hf_close(fixture_open());
    fixture_write(fixture_path("precious"), "precious");
    CHECK_EQ(symlink(fixture_path("precious"), fixture_path("locks/job.lock")),
             0);
    check_refused(fixture_path("locks"), HF_DENIED, 0, "symbolic link");
    CHECK_EQ(stat(fixture_path("precious"), &st), 0);
    CHECK_EQ(st.st_size, 8);
    CHECK_EQ(unlink(fixture_path("locks/job.lock")), 0);
    CHECK_EQ(symlink(fixture_path("nowhere"), fixture_path("locks/job.lock")),
             0);
    check_refused(fixture_path("locks"), HF_DENIED, 0, "symbolic link");
    CHECK_EQ(access(fixture_path("nowhere"), F_OK), -1);
}

TEST(what_is_no_file_is_refused_without_blocking)
{
    hf_close(fixture_open());
    CHECK_EQ(mkfifo(fixture_path("locks/job.lock"), 0600), 0);
    check_refused(fixture_path("locks"), HF_PROTOCOL, 0, "job");
    CHECK_EQ(unlink(fixture_path("locks/job.lock")), 0);
    CHECK_EQ(mkdir(fixture_path("locks/job.lock"), 0700), 0);
    check_refused(fixture_path("locks"), HF_SYSTEM, EISDIR, "job");
}

TEST(a_lock_file_is_never_removed_or_replaced)
{
    hf_client *client = fixture_open();
    struct stat before, after;
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_EQ(stat(fixture_path("locks/job.lock"), &before), 0);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    CHECK_EQ(stat(fixture_path("locks/job.lock"), &after), 0);
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

    hf_close(fixture_open());
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        fixture_write(fixture_path("locks/job.lock"), texts[i]);
        check_refused(fixture_path("locks"), HF_PROTOCOL, 0, "job");
        check_content(fixture_path("locks/job.lock"), texts[i]);
    }
}

TEST(an_emptied_lock_file_still_gives_a_greater_fence)
{
    hf_client *client = fixture_open();
    uint64_t last = 0;

    for (int i = 0; i < 6; i++) {
        hf_lock *lk = NULL;

        if (i % 2)
            fixture_write(fixture_path("locks/job.lock"), "");
        else if (i)
            CHECK_EQ(unlink(fixture_path("locks/job.lock")), 0);
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
    hf_client *client = fixture_open(), *other = fixture_open();
    hf_lock *lk, *next;

    brief.ttl_ms = 300;
    CHECK_OK(hf_acquire(client, "job", 0, &brief, &lk, &t_err));
    CHECK_EQ(unlink(fixture_path("locks/job.lock")), 0);
    t_poll_until(!hf_held(lk), 20000);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_DELETED);
    CHECK_OK(hf_acquire(other, "job", 0, NULL, &next, &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_EQ(fixture_shell("flock -n %s true", fixture_path("locks/job.lock")),
             1);
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
    hf_client *client = fixture_open(), *other;
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk = NULL, *none = NULL;
    int seen = 0;

    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(unlink(fixture_path("locks/job.lock")), 0);
    CHECK_EQ(rmdir(fixture_path("locks")), 0);
    CHECK_OK(hf_inspect(client, "job", &info, &t_err));
    CHECK(!info.held);
    CHECK_EQ(access(fixture_path("locks"), F_OK),
             -1); /* Looking makes nothing. */
    CHECK_OK(hf_acquire(client, "job", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(unlink(fixture_path("locks/job.lock")), 0);
    CHECK_EQ(rmdir(fixture_path("locks")), 0);
    other = fixture_open();
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
    hf_client *client = fixture_open();

    fixture_write(fixture_path("locks/README"), "text");
    fixture_write(fixture_path("locks/.lock"), "");
    fixture_write(fixture_path("locks/.hidden"), "");
    fixture_write(fixture_path("locks/free.lock"), "");
    CHECK_EQ(mkdir(fixture_path("locks/dir.lock"), 0700), 0);
    CHECK_EQ(mkfifo(fixture_path("locks/fifo.lock"), 0600), 0);
    CHECK_EQ(symlink("/etc/passwd", fixture_path("locks/link.lock")), 0);
    CHECK_OK(hf_list(client, NULL, name_it, NULL, &t_err));
    hf_close(client);
}

T_MAIN
