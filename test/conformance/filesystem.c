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
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
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

TEST(strange_files_in_the_directory_are_not_listed)
{
    hf_client *client = open_locks();

    write_file(path("locks/README"), "hello");
    write_file(path("locks/.lock"), "");
    write_file(path("locks/.hidden"), "");
    write_file(path("locks/free.lock"), "");
    CHECK_EQ(mkdir(path("locks/dir.lock"), 0700), 0);
    CHECK_EQ(mkfifo(path("locks/fifo.lock"), 0600), 0);
    CHECK_EQ(symlink("/etc/passwd", path("locks/link.lock")), 0);
    CHECK_OK(hf_list(client, NULL, name_it, NULL, &t_err));
    hf_close(client);
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
