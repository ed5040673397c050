/* SPDX-License-Identifier: MIT
 *
 * collect.c - removing the files of locks that nobody has used for long.
 *
 * What is dangerous about it: whoever has opened a lock file before it is
 * removed, and locks it afterwards, holds a lock that has no name, beside the
 * one who makes the file anew.
 *
 * A file is removed in these steps; whatever fails keeps it:
 *   1. open it; nobody has written a record there for so long
 *   2. a write lease of the kernel (F_SETLEASE) on it.  That is given only if
 *      nobody else has the file open, so nobody holds it or waits for it;
 *      whoever opens it from now on has to wait, or is told to come again
 *   3. LOCK_EX, as every holder; the record is one of ours, and keeps nothing
 *      (keep.c); the name leads to this file
 *   4. the floor of the directory (below) is raised to the fence in the record
 *   5. the record is marked as broken
 *   6. the lease is whole: nobody waits to open the file
 *   7. remove the name, close the file
 *
 * INVARIANTS
 *  (1) No client of holdfast holds what was removed.  Who locks the file after
 *      step 7 reads the mark of step 5, and then looks whether the name still
 *      leads to its file (file.c (2)); that has been so since the first
 *      release.
 *  (2) flock(1) does not look.  Step 2 says that it has not opened the file, and
 *      step 6 that it does not wait to.  There is a moment in which the kernel
 *      has looked up the name for it and has not counted its opening yet: if
 *      that lasts through steps 6 and 7, it locks what was removed.
 *  (3) Fences never go back: a record that is new begins above the floor, which
 *      is written before the name is removed, and below a LOCK_EX of its own.
 *      So that also holds if the clock was set back since.
 *
 * Only the owner of a file, or root, can have a lease.  Directories of long keys
 * stay: to remove one would race with who makes a file in it.
 *
 * A client that makes a file looks at a few others: so what one-off keys leave
 * behind does not grow beyond what `keep` holds (keep=off: not by itself).
 */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"

#include "base/banned.h"

#define FLOOR_NAME "holdfast.floor" /* does not look like a key: names.c */
#define FLOOR_HEAD "holdfast floor "
#define FLOOR_LEN  36

/* How many entries are looked at when a file is made. */
#define SOME 4

/* ---- the floor --------------------------------------------------------- */

/* With the lock on it: the number in the file; 0: none. */
static uint64_t floor_read(int fd)
{
    char text[FLOOR_LEN + 1] = "";

    if (pread(fd, text, FLOOR_LEN, 0) != FLOOR_LEN ||
        strncmp(text, FLOOR_HEAD, strlen(FLOOR_HEAD)) != 0)
        return 0;
    return strtoull(text + strlen(FLOOR_HEAD), NULL, 10);
}

/* Open it and lock it; -1 and errno on failure. */
static int floor_open(const struct file_conn *fc, int flags, int how)
{
    int fd = openat(fc->dir_fd, FLOOR_NAME,
                    flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0666);
    int looks;

    fd = hfi_off_stdio(fd);
    for (looks = 0; fd >= 0 && flock(fd, how | LOCK_NB); looks++) {
        if (looks == FILE_LOOKS_MAX) {
            close(fd);
            errno = EWOULDBLOCK;
            return -1;
        }
        sched_yield();
    }
    return fd;
}

hf_status file_floor(const struct file_conn *fc, uint64_t *ret,
                     struct hf_error *err)
{
    int fd = floor_open(fc, O_RDONLY, LOCK_SH);

    *ret = 0;
    if (fd < 0)
        return errno == ENOENT
                   ? HF_OK
                   : hfi_fail_errno(err, HF_UNAVAILABLE, errno,
                                    "open '%s' in the lock directory",
                                    FLOOR_NAME);
    *ret = floor_read(fd);
    close(fd);
    return HF_OK;
}

/* collect.c (3) */
static bool floor_raise(const struct file_conn *fc, uint64_t fence)
{
    char text[FLOOR_LEN + 1];
    int fd = floor_open(fc, O_RDWR | O_CREAT, LOCK_EX);
    bool ok = fd >= 0;

    if (ok && floor_read(fd) < fence) {
        snprintf(text, sizeof(text), FLOOR_HEAD "%020" PRIu64 "\n", fence);
        ok = pwrite(fd, text, FLOOR_LEN, 0) == FLOOR_LEN;
    }
    if (fd >= 0)
        close(fd);
    return ok;
}

/* ---- one file ---------------------------------------------------------- */

/* Does the name lead to the file? */
static bool collect_is_named(int dir_fd, const char *name,
                             const struct stat *ours)
{
    struct stat named;

    return !fstatat(dir_fd, name, &named, AT_SYMLINK_NOFOLLOW) &&
           named.st_ino == ours->st_ino && named.st_dev == ours->st_dev;
}

/* Has nobody written there since then?  A clock that was set back keeps it. */
static bool collect_is_old(const struct stat *sb, int64_t older_ms)
{
    int64_t written =
        (int64_t)sb->st_mtim.tv_sec * 1000000 + sb->st_mtim.tv_nsec / 1000;

    return hfi_wall_us() - written >= older_ms * 1000;
}

/* Steps 4 to 7. */
static bool collect_remove(const struct file_conn *fc, int dir_fd,
                           const char *name, int fd, uint64_t fence)
{
    return floor_raise(fc, fence) && !file_record_break(fd, 0, fence, NULL) &&
           fcntl(fd, F_GETLEASE) == F_WRLCK && !unlinkat(dir_fd, name, 0);
}

/* Steps 2 to 7.  The signal that tells of others who open the file is one that
 * is ignored. */
static bool collect_leased(const struct file_conn *fc, int dir_fd,
                           const char *name, int fd, const struct stat *sb,
                           bool dry_run)
{
    struct file_record rec;

    if (fcntl(fd, F_SETSIG, SIGURG) || fcntl(fd, F_SETLEASE, F_WRLCK) ||
        flock(fd, LOCK_EX | LOCK_NB) || file_record_read(fd, &rec, NULL) ||
        !rec.fence || file_kept_left(&rec) > 0 ||
        !collect_is_named(dir_fd, name, sb))
        return false;
    return dry_run || collect_remove(fc, dir_fd, name, fd, rec.fence);
}

/* Look at one lock file; true if it is removed, or would be. */
static bool collect_file(const struct file_conn *fc, int dir_fd,
                         const char *name, int64_t older_ms, bool dry_run)
{
    int fd = openat(dir_fd, name,
                    O_RDWR | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
    struct stat sb;
    bool done;

    fd = hfi_off_stdio(fd);
    if (fd < 0)
        return false;
    done = !fstat(fd, &sb) && S_ISREG(sb.st_mode) &&
           collect_is_old(&sb, older_ms) &&
           collect_leased(fc, dir_fd, name, fd, &sb, dry_run);
    close(fd);
    return done;
}

/* ---- all of them ------------------------------------------------------- */

static bool collect_is_lock(const char *name)
{
    size_t len = strlen(name), suffix = sizeof(FILE_SUFFIX) - 1;

    return len > suffix && !strcmp(name + len - suffix, FILE_SUFFIX);
}

struct file_collection {
    const struct file_conn *fc;
    int64_t older_ms;
    bool dry_run;
    struct hf_collected *ret;
};

static bool collect_one(void *arg, int dir_fd, const char *below,
                        const char *name)
{
    struct file_collection *all = arg;

    (void)below;
    if (!collect_is_lock(name))
        return true;
    all->ret->looked_at++;
    if (collect_file(all->fc, dir_fd, name, all->older_ms, all->dry_run))
        all->ret->removed++;
    else
        all->ret->kept++;
    return true;
}

hf_status file_collect(struct hfi_conn *conn, int64_t older_ms, bool dry_run,
                       struct hf_collected *ret, int64_t deadline,
                       struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_collection all = {fc, older_ms, dry_run, ret};
    hf_status st = file_find_dir(fc, false, err);

    (void)deadline;
    if (!st && fc->dir_fd >= 0)
        st = file_walk(fc, collect_one, &all, err);
    return st ? hfi_wrap(err, st, "%s", conn->endpoint) : HF_OK;
}

/* A file was made: look at a few others, each client from where it was. */
void file_collect_some(struct file_conn *fc)
{
    const struct dirent *entry;
    int fd, i;

    if (!fc->keep_ms || pthread_mutex_trylock(&fc->collect_mu))
        return;
    if (!fc->collecting) {
        fd = openat(fc->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fc->collecting = fd < 0 ? NULL : fdopendir(fd);
        if (fd >= 0 && !fc->collecting)
            close(fd);
    }
    for (i = 0; fc->collecting && i < SOME; i++) {
        entry = readdir(fc->collecting);
        if (!entry) {
            closedir(fc->collecting);
            fc->collecting = NULL;
        } else if (collect_is_lock(entry->d_name)) {
            collect_file(fc, fc->dir_fd, entry->d_name, fc->keep_ms, false);
        }
    }
    pthread_mutex_unlock(&fc->collect_mu);
}

void file_collect_close(struct file_conn *fc)
{
    if (fc->collecting)
        closedir(fc->collecting);
    pthread_mutex_destroy(&fc->collect_mu);
}
