/* SPDX-License-Identifier: MIT
 *
 * break.c - an operator takes a lock away.
 *
 * hf_break() writes a mark into the record, which the holder finds at its next
 * heartbeat.  hf_break_force() also puts another file in the place of the one
 * that the holder has locked.
 *
 * INVARIANTS
 *  (1) What is refused has broken nothing: the new file is made, under a name
 *      that nobody can guess, before the mark is written.
 *  (2) The mark is written before the new file has the key's name: whoever has
 *      just opened the old file looks for its name only if there is a mark.
 *  (3) The key's name is never without a file.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"

#include "base/banned.h"

/* The holder has the kernel's lock and nobody can take that away; it is told at
 * its next heartbeat, and lets go when it releases the lock.  The mark is
 * written with the gate, so that nobody who shares the lock signs over it, and
 * only over the record of the grant that is meant: a break that comes late must
 * not take back the mark of a later grant. */
static hf_status break_mark(struct file_conn *fc, const char *key,
                            uint64_t fence, struct hf_error *err)
{
    int fd = file_open_key(fc->dir_fd, key, O_RDWR | O_NONBLOCK);
    struct file_record rec;
    hf_status st;

    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "%s: open the lock file",
                              fc->base.endpoint);
    if (!file_gate(fd)) {
        close(fd);
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: another process is writing into the lock file: "
                        "try again",
                        fc->base.endpoint);
    }
    st = file_record_inspect(fd, &rec, err);
    if (!st && rec.fence != fence)
        st =
            hfi_fail(err, HF_LOST, "%s: that grant is over", fc->base.endpoint);
    else if (!st && rec.broken < fence)
        st = file_record_break(fd, fence, err);
    file_ungate(fd);
    close(fd);
    return st;
}

/* Whether the grant can be broken. */
static hf_status break_check(struct hfi_conn *conn, const char *key,
                             uint64_t fence, int64_t deadline,
                             struct hf_error *err)
{
    struct hf_info info = {0};
    hf_status st = file_inspect(conn, key, &info, deadline, err);

    if (st)
        return st;
    if (!info.held || info.fence != fence || !info.owner[0])
        return hfi_fail(err, HF_LOST, "%s: that grant is over", conn->endpoint);
    return HF_OK;
}

hf_status file_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *err)
{
    hf_status st = break_check(conn, key, fence, deadline, err);

    return st ? st : break_mark((struct file_conn *)conn, key, fence, err);
}

/* A new file beside that of the key. */
struct free_beside {
    int dir; /* where both are */
    int fd;
    char name[32];
    char path[FILE_PATH_MAX];
    const char *key_name; /* in `path` */
};

/* Make it, with a name that no other can have taken in advance.  A process that
 * is killed here leaves it behind; it is nobody's lock. */
static bool free_create(struct file_conn *fc, const char *key,
                        struct free_beside *ret)
{
    uint64_t number;
    char *name;

    ret->fd = -1;
    ret->dir = file_open_lock_dir(fc->dir_fd, key, ret->path, &name);
    ret->key_name = name;
    if (ret->dir < 0)
        return false;
    do {
        hfi_random(&number, sizeof(number));
        snprintf(ret->name, sizeof(ret->name), ".new-%016" PRIx64, number);
        ret->fd = hfi_off_stdio(openat(
            ret->dir, ret->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    } while (ret->fd < 0 && errno == EEXIST);
    return ret->fd >= 0;
}

/* Give it the record and the rights of the old one.  Of another's file the
 * owner can be kept by root only. */
static hf_status free_copy(const struct free_beside *beside, int old,
                           struct hf_error *err)
{
    struct hfi_claim claim = {0};
    struct file_record rec;
    struct stat sb;
    hf_status st;

    st = file_record_inspect(old, &rec, err);
    if (st)
        return st;
    claim.owner = rec.owner;
    claim.note = rec.note;
    rec.broken = 0;
    rec.size = 0;
    if (fstat(old, &sb) ||
        (fchown(beside->fd, sb.st_uid, sb.st_gid) && geteuid() == 0) ||
        fchmod(beside->fd, sb.st_mode & 0777))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "copy the rights");
    return file_record_write(beside->fd, &rec, &claim, err);
}

/* In a sticky directory the file must be ours, or the directory. */
static bool free_is_allowed(const struct free_beside *beside, int old)
{
    struct stat place, sb;

    if (fstat(beside->dir, &place) || fstat(old, &sb))
        return false;
    if (!(place.st_mode & S_ISVTX) || geteuid() == 0 ||
        geteuid() == place.st_uid || geteuid() == sb.st_uid)
        return true;
    errno = EPERM;
    return false;
}

static hf_status free_replace(struct file_conn *fc, const char *key,
                              uint64_t fence, int old,
                              struct free_beside *beside, struct hf_error *err)
{
    bool made = free_create(fc, key, beside);
    hf_status st = HF_OK;

    if (!made || !free_is_allowed(beside, old))
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "make a new lock file");
    if (!st)
        st = free_copy(beside, old, err);
    if (!st)
        st = break_mark(fc, key, fence, err);
    if (!st &&
        renameat(beside->dir, beside->name, beside->dir, beside->key_name))
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "name the new lock file");
    if (st && made)
        unlinkat(beside->dir, beside->name, 0);
    if (made)
        close(beside->fd);
    if (beside->dir >= 0 && beside->dir != fc->dir_fd)
        close(beside->dir);
    return st;
}

/* Another file takes the place of the one that the holder has locked: it is
 * free, and the fence goes on in it.  The holder is told at its next heartbeat;
 * those who wait see that the name leads elsewhere. */
hf_status file_free(struct hfi_conn *conn, const char *key, uint64_t fence,
                    int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    hf_status st = break_check(conn, key, fence, deadline, err);
    struct free_beside beside;
    int old;

    if (st)
        return st;
    old = file_open_key(fc->dir_fd, key, O_RDONLY | O_NONBLOCK);
    if (old < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "%s: open the lock file",
                              conn->endpoint);
    st = free_replace(fc, key, fence, old, &beside, err);
    close(old);
    if (st && st != HF_LOST && st != HF_UNAVAILABLE)
        hfi_wrap(err, st, "%s: put a new lock file in place of the old one",
                 conn->endpoint);
    return st;
}
