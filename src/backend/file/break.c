/* SPDX-License-Identifier: MIT
 *
 * break.c - an operator takes a lock away.
 *
 * hf_break() writes a mark into the record, which the holder finds at its next
 * heartbeat.  hf_break_force() also puts another file in the place of the one
 * that the holder has locked; but one of several permits, and one that is only
 * kept, is ended by removing its record, and the others stay.
 *
 * INVARIANTS
 *  (1) What is refused has broken nothing: the new file is made, under a name
 *      that nobody can guess, before the mark is written.
 *  (2) The mark is written before the new file has the key's name: whoever has
 *      just opened the old file looks for its name only if there is a mark.
 *  (3) The key's name is never without a file.
 *  (4) Whether the file has other users than the grant that is meant is decided
 *      under the gate that it is replaced under.  If it has, it stays.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* A new file beside that of the key. */
struct free_beside {
    int dir; /* where both are */
    int fd;
    char name[32];
    char path[FILE_PATH_MAX];
    const char *key_name; /* in `path` */
    bool named;           /* it has that name */
};

/* Which grant is meant, and what is to be done with it. */
struct break_order {
    uint64_t fence;
    int fd;
    bool gone;                  /* remove the record, do not only mark it */
    struct free_beside *beside; /* takes the place of the file; or NULL */
    bool any;                   /* out: there is such a grant */
    bool others;                /* out: there are others */
    hf_status st;
    struct hf_error *err;
};

/* Of those who hold it together, each record with that fence. */
static bool break_holder(void *arg, int32_t index,
                         const struct file_record *rec)
{
    struct break_order *order = arg;

    if (rec->fence != order->fence)
        return true;
    order->any = true;
    if (order->gone)
        order->st =
            file_record_void(order->fd, file_holder_at(index), order->err);
    else
        order->st = file_record_break(order->fd, file_holder_at(index),
                                      order->fence, order->err);
    return !order->st;
}

/* Give the new file the record and the rights of the old one.  Of another's file
 * the owner can be kept by root only.  The gate is ours, so that no fence is
 * given out in the old one after that. */
static hf_status free_copy(const struct free_beside *beside, int old,
                           struct file_record rec, struct hf_error *err)
{
    struct stat sb;

    rec.broken = 0;
    rec.size = 0;
    rec.mode = FILE_EXCLUSIVE;
    rec.permits = rec.slot = 0;
    rec.kept_until = 0;
    if (fstat(old, &sb) ||
        (fchown(beside->fd, sb.st_uid, sb.st_gid) && geteuid() == 0) ||
        fchmod(beside->fd, sb.st_mode & 0777))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "copy the rights");
    return file_record_write(beside->fd, 0, &rec, NULL, err);
}

/* Give the new file the key's name.  The gate of the old one is ours: of two who
 * would replace it one comes later, and finds that it is done. */
static hf_status break_rename(struct file_conn *fc, const char *key, int old,
                              struct free_beside *beside, struct hf_error *err)
{
    if (!file_is_named(fc, key, old))
        return HF_LOST;
    if (renameat(beside->dir, beside->name, beside->dir, beside->key_name))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "name the new lock file");
    beside->named = true;
    return HF_OK;
}

/* Find the grant and mark it; with a new file also the old one, that nobody uses
 * it without a look at its name.  The gate is ours. */
static hf_status break_write(struct break_order *order, struct file_record rec)
{
    bool all = order->beside != NULL;
    hf_status st = HF_OK;

    if (all)
        st = free_copy(order->beside, order->fd, rec, order->err);
    if (st)
        return st;
    if (rec.mode == FILE_EXCLUSIVE || rec.mode == FILE_KEPT)
        all = order->any = rec.fence == order->fence;
    else
        file_holders_each(order->fd, &rec, break_holder, order);
    if (!order->any)
        return HF_LOST;
    if (!order->st && (all || rec.mode == FILE_OWNED) && rec.broken < rec.fence)
        order->st = file_record_break(order->fd, 0, rec.fence, order->err);
    return order->st;
}

/* One that was kept is gone: the record of the lock says until when another is,
 * at most. */
static bool break_latest(void *arg, int32_t index,
                         const struct file_record *rec)
{
    int64_t *latest = arg;

    (void)index;
    if (rec->kept_until > *latest)
        *latest = rec->kept_until;
    return true;
}

/* End the grant and leave the file to the others, to strangers too.  The gate is
 * ours. */
static hf_status break_remove(struct break_order *order, struct file_record rec)
{
    bool alone = rec.mode == FILE_KEPT && rec.fence == order->fence;
    hf_status st = HF_OK;
    int64_t latest = 0;

    if (alone) {
        order->any = true;
        rec.mode = FILE_EXCLUSIVE; /* as it was */
    } else {
        file_holders_each(order->fd, &rec, break_holder, order);
    }
    if (!order->any || order->st)
        return order->any ? order->st : HF_LOST;
    if (rec.kept_until) {
        if (!alone)
            file_holders_each(order->fd, &rec, break_latest, &latest);
        rec.kept_until = latest;
        st = file_record_write(order->fd, 0, &rec, NULL, order->err);
    }
    futimens(order->fd, NULL); /* Those who wait hear it. */
    return st;
}

static bool break_other(void *arg, int32_t index, const struct file_record *rec)
{
    struct break_order *order = arg;

    (void)index;
    order->others = rec->fence != order->fence;
    return !order->others;
}

/* The mark is written: who reads it waits for the gate.  Has the holder let go
 * before, and somebody else read the record without the mark?  Another process
 * shows; one that is the same, or of another pid namespace, has signed a moment
 * later, or is stopped. */
static bool break_passed_on(int fd, const struct file_record *rec)
{
    const struct file_taken *taken;
    struct file_taken_list list;
    struct file_record now;
    struct stat sb;
    bool other = false;
    size_t n;

    if (!file_is_exclusive(fd) || fstat(fd, &sb))
        return true;
    if (!file_taken_read(&list, NULL)) {
        other = !file_taken_find(&list, fd, sb.st_ino, &taken, &n, NULL) &&
                taken && !file_taken_by(&list, taken, rec);
        hfi_free(list.items);
    }
    poll(NULL, 0, 2);
    return other || file_record_read_fence(fd, 0, &now, NULL) ||
           now.fence != rec->fence;
}

/* Do it.  Others may have come since the operator looked: then the file is
 * theirs.  The gate is ours. */
static hf_status break_carry_out(struct file_conn *fc, const char *key,
                                 struct break_order *order)
{
    struct file_record rec;
    hf_status st = file_record_inspect(order->fd, 0, &rec, order->err);

    if (st)
        return st;
    order->any = order->others = false;
    if (order->beside && rec.mode != FILE_EXCLUSIVE)
        file_holders_each(order->fd, &rec, break_other, order);
    if (order->others || (order->beside && rec.mode == FILE_KEPT))
        order->gone = true;
    if (order->gone)
        return break_remove(order, rec);
    st = break_write(order, rec);
    if (!st && order->beside && rec.mode == FILE_EXCLUSIVE &&
        break_passed_on(order->fd, &rec))
        return HF_LOST;
    if (!st && order->beside)
        st = break_rename(fc, key, order->fd, order->beside, order->err);
    return st;
}

/* The holder has the kernel's lock and nobody can take that away; it is told at
 * its next heartbeat, and lets go when it releases the lock.  The mark is
 * written with the gate, so that nobody who shares the lock signs over it, and
 * only over the record of the grant that is meant: a break that comes late must
 * not take back the mark of a later grant. */
static hf_status break_do(struct file_conn *fc, const char *key,
                          struct break_order order, struct hf_error *err)
{
    hf_status st;

    order.err = err;
    order.fd = file_open_key(fc->dir_fd, key, O_RDWR | O_NONBLOCK);
    if (order.fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "%s: open the lock file",
                              fc->base.endpoint);
    if (!file_gate(order.fd)) {
        close(order.fd);
        return hfi_fail(err, HF_UNAVAILABLE,
                        "%s: another process is writing into the lock file: "
                        "try again",
                        fc->base.endpoint);
    }
    st = break_carry_out(fc, key, &order);
    if (st == HF_LOST)
        hfi_fail(err, st, "%s: that grant is over", fc->base.endpoint);
    file_ungate(order.fd);
    close(order.fd);
    return st;
}

/* What hf_break() and hf_break_force() must know of the grant. */
struct break_target {
    uint64_t fence;
    bool found;
    bool lives;  /* it is not only kept */
    bool others; /* somebody else has the lock, also strangers, or is kept */
};

static bool break_see(void *arg, const struct hf_info *holder)
{
    struct break_target *target = arg;

    if (!holder->owner[0] || holder->fence != target->fence) {
        target->others = true;
        return true;
    }
    target->found = true;
    target->lives = target->lives || !holder->kept;
    return true;
}

/* Whether the grant can be broken. */
static hf_status break_check(struct hfi_conn *conn, const char *key,
                             struct break_target *target, int64_t deadline,
                             struct hf_error *err)
{
    hf_status st = file_holders(conn, key, break_see, target, deadline, err);

    if (!st && !target->found)
        st = hfi_fail(err, HF_LOST, "%s: that grant is over", conn->endpoint);
    return st;
}

hf_status file_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *err)
{
    struct break_target target = {.fence = fence};
    hf_status st = break_check(conn, key, &target, deadline, err);

    return st ? st
              : break_do((struct file_conn *)conn, key,
                         (struct break_order){.fence = fence}, err);
}

/* Make it, with a name that no other can have taken in advance.  A process that
 * is killed here leaves it behind; it is nobody's lock. */
static bool free_create(struct file_conn *fc, const char *key,
                        struct free_beside *ret)
{
    uint64_t number;
    char *name;

    ret->fd = -1;
    ret->named = false;
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

/* Make the new file, and let it take the place of the old one if that is still
 * to be done for that fence; with `rec` it is done here, by who has the gate. */
static hf_status free_replace(struct file_conn *fc, const char *key,
                              uint64_t fence, int old,
                              const struct file_record *rec,
                              struct hf_error *err)
{
    struct free_beside beside;
    bool made = free_create(fc, key, &beside);
    hf_status st = HF_OK;

    if (!made || !free_is_allowed(&beside, old))
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "make a new lock file");
    if (!st && !rec)
        st = break_do(fc, key,
                      (struct break_order){.fence = fence, .beside = &beside},
                      err);
    else if (!st)
        st = free_copy(&beside, old, *rec, err);
    if (!st && rec)
        st = break_rename(fc, key, old, &beside, err);
    if (made && !beside.named)
        unlinkat(beside.dir, beside.name, 0);
    if (made)
        close(beside.fd);
    if (beside.dir >= 0 && beside.dir != fc->dir_fd)
        close(beside.dir);
    return st;
}

/* Another file takes the place of the one that the holder has locked: it is
 * free, and the fence goes on in it.  The holder is told at its next heartbeat;
 * those who wait see that the name leads elsewhere.  Of several holders only the
 * one that is meant loses it: its record goes, and the file stays until the
 * others have left (file_is_deserted()). */
hf_status file_free(struct hfi_conn *conn, const char *key, uint64_t fence,
                    int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct break_target target = {.fence = fence};
    hf_status st = break_check(conn, key, &target, deadline, err);
    int old;

    if (st)
        return st;
    if (target.others || !target.lives)
        return break_do(
            fc, key, (struct break_order){.fence = fence, .gone = true}, err);
    old = file_open_key(fc->dir_fd, key, O_RDONLY | O_NONBLOCK);
    if (old < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "%s: open the lock file",
                              conn->endpoint);
    st = free_replace(fc, key, fence, old, NULL, err);
    close(old);
    if (st && st != HF_LOST && st != HF_UNAVAILABLE)
        hfi_wrap(err, st, "%s: put a new lock file in place of the old one",
                 conn->endpoint);
    return st;
}

/* Is everyone who has the file one whose grant was ended by force?  The gate is
 * ours. */
static bool file_is_deserted(int fd, const struct file_record *rec)
{
    struct file_tally tally = file_count_holders(fd, FILE_COUNT_MAX);
    const struct file_taken *taken;
    struct file_taken_list list;
    struct stat sb;
    hf_status st;
    size_t n;

    if (!tally.count || tally.hidden ||
        file_holders_ended(fd, rec) != tally.count || fstat(fd, &sb) ||
        file_taken_read(&list, NULL))
        return false;
    st = file_taken_find(&list, fd, sb.st_ino, &taken, &n, NULL);
    hfi_free(list.items);
    return !st && n <= (size_t)tally.count; /* else there are strangers */
}

bool file_replace_deserted(struct file_conn *fc, const char *key, int fd)
{
    struct file_record rec;
    bool done;

    /* Most often there is no need for the gate. */
    if (file_record_inspect(fd, 0, &rec, NULL) ||
        file_holders_ended(fd, &rec) <= 0 || !file_gate(fd))
        return false;
    done = !file_record_inspect(fd, 0, &rec, NULL) &&
           file_is_deserted(fd, &rec) &&
           !file_record_break(fd, 0, rec.fence, NULL) &&
           !free_replace(fc, key, 0, fd, &rec, NULL);
    file_ungate(fd);
    return done;
}
