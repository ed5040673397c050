/* SPDX-License-Identifier: MIT
 *
 * acquire.c - taking a lock file; the rules are in file.c.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/env.h"
#include "base/mutant.h"

#include "base/banned.h"

/* How often a lock file may vanish under our hands before we give up. */
#define FILE_REOPEN_MAX 100

/* Show that we hold it.  A stranger's lock may be in the way. */
static hf_status file_mark_held(int fd, const struct hfi_claim *claim,
                                struct hf_error *err)
{
    if (file_mark(fd, FILE_HOLD_AT, F_WRLCK, claim))
        return HF_OK;
    if (errno == EAGAIN || errno == EACCES)
        return HF_BUSY;
    return hfi_fail_errno(err, HF_SYSTEM, errno, "lock a byte");
}

/* Show that we wait, and let a lingering holder hear it. */
static void file_queue(int fd, const struct hfi_claim *claim,
                       struct hfi_receipt *receipt)
{
    struct file_grant *own = receipt->own;
    char c;

    if (own->waits)
        return;
    own->bytes = own->waits = file_mark(fd, FILE_WAIT_AT, F_WRLCK, claim);
    if (pread(fd, &c, 1, 0) < 0)
        own->waits = false; /* Show it again at the next try. */
}

/* It was busy: because of somebody who only looked?  With the byte in our hands
 * nobody looks, and the answer counts. */
static hf_status file_flock_again(int fd)
{
    bool got;
    int looks;

    for (looks = 0; !file_byte(fd, FILE_LOOK_AT, F_WRLCK); looks++) {
        if (looks == FILE_LOOKS_MAX)
            return HF_BUSY;
        sched_yield();
    }
    got = !flock(fd, LOCK_EX | LOCK_NB);
    file_byte(fd, FILE_LOOK_AT, F_UNLCK);
    return got ? HF_OK : HF_BUSY;
}

/* Wait for nothing; HF_BUSY where another has it. */
static hf_status file_flock(int fd, int how, struct hf_error *err)
{
    while (flock(fd, how | LOCK_NB)) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return hfi_fail_errno(err, HF_SYSTEM, errno, "flock");
        return how == LOCK_EX ? file_flock_again(fd) : HF_BUSY;
    }
    return HF_OK;
}

/* Write who has it now, under the next fence.  The mark of a break goes with
 * the grant that it was meant for, unless others of that time are left.  file.c
 * (1)
 */
static hf_status file_sign(struct file_conn *fc, int fd,
                           const struct hfi_claim *claim, char mode,
                           struct file_record *rec, struct hf_error *err)
{
    rec->since_us = hfi_wall_us();
    rec->fence = file_next_fence(rec, rec->since_us);
    if (HFI_MUTANT(fence_before_lock))
        rec->fence = (uint64_t)hfi_mutant_take(claim);
    if (!rec->fence)
        return hfi_fail(err, HF_PROTOCOL,
                        "the fence in the lock file cannot rise any more");
    rec->marked = rec->broken != 0;
    if (rec->mode != FILE_SHARED || mode != FILE_SHARED)
        rec->broken = 0;
    rec->mode = mode;
    rec->pid = fc->pid;
    rec->pid_ns = fc->pid_ns;
    return file_record_write(fd, rec, claim, err);
}

static hf_status file_take_exclusive(struct file_conn *fc, int fd,
                                     const struct hfi_claim *claim,
                                     struct file_record *rec,
                                     struct hf_error *err)
{
    hf_status st = file_flock(fd, LOCK_EX, err);

    if (!st)
        st = file_record_read_fence(fd, rec, err);
    if (!st)
        st = file_sign(fc, fd, claim, FILE_EXCLUSIVE, rec, err);
    return st;
}

/* Do our equals hold it?  The gate is ours.  A group that was broken takes in
 * nobody. */
static bool file_is_joinable(int fd, const struct hfi_claim *claim,
                             const struct file_record *rec)
{
    return rec->mode == FILE_OWNED && !strcmp(rec->owner, claim->owner) &&
           rec->broken != rec->fence && file_count_holders(fd, 1).count;
}

/* Somebody has it: our equals, perhaps?  Between reading the record and marking
 * our byte nobody else may sign.  file.c (5) */
static hf_status file_join(int fd, const struct hfi_claim *claim,
                           struct file_record *rec, struct hf_error *err)
{
    hf_status st = file_flock(fd, LOCK_SH, err);

    if (st)
        return st;
    if (!file_gate(fd))
        return HF_BUSY;
    st = file_record_read(fd, rec, err);
    if (!st && (!file_is_joinable(fd, claim, rec) ||
                !file_mark(fd, FILE_HOLD_AT, F_WRLCK, claim)))
        st = HF_BUSY;
    file_ungate(fd);
    return st;
}

/* We have LOCK_SH in place of LOCK_EX, and our byte is marked: is the record
 * still ours?  Somebody may have come and gone in between. */
static hf_status file_settle(int fd, uint64_t fence, struct hf_error *err)
{
    struct file_record now;
    hf_status st;

    if (!file_gate(fd))
        return HF_BUSY;
    st = file_record_read_fence(fd, &now, err);
    file_ungate(fd);
    return !st && now.fence != fence ? HF_BUSY : st;
}

/* First alone, to sign; then shared, for equals to join.  The change from one
 * to the other is not atomic, so it may fail, and then somebody else has it. */
static hf_status file_take_owned(struct file_conn *fc, int fd,
                                 const struct hfi_claim *claim,
                                 struct file_record *rec, struct hf_error *err)
{
    hf_status st = file_flock(fd, LOCK_EX, err);

    if (st == HF_BUSY)
        return file_join(fd, claim, rec, err);
    if (!st)
        st = file_record_read(fd, rec, err);
    if (!st)
        st = file_sign(fc, fd, claim, FILE_OWNED, rec, err);
    if (!st)
        st = file_mark_held(fd, claim, err);
    if (!st)
        st = file_flock(fd, LOCK_SH, err);
    return st ? st : file_settle(fd, rec->fence, err);
}

/* Several may hold LOCK_SH, so the gate makes one of them sign at a time.  What
 * is hidden may be the byte of an owner. */
static hf_status file_take_shared(struct file_conn *fc, int fd,
                                  const struct hfi_claim *claim,
                                  struct file_record *rec, struct hf_error *err)
{
    hf_status st = file_flock(fd, LOCK_SH, err);
    struct file_tally tally;

    if (st)
        return st;
    if (!file_gate(fd))
        return HF_BUSY;
    st = file_record_read(fd, rec, err);
    tally = file_count_holders(fd, 1);
    if (!st && rec->mode == FILE_OWNED && (tally.count || tally.hidden))
        st = HF_BUSY;
    if (!st)
        st = file_sign(fc, fd, claim, FILE_SHARED, rec, err);
    if (!st)
        st = file_mark_held(fd, claim, err);
    file_ungate(fd);
    return st;
}

static hf_status file_take(struct file_conn *fc, int fd,
                           const struct hfi_claim *claim,
                           struct file_record *rec, struct hf_error *err)
{
    if (claim->shared)
        return file_take_shared(fc, fd, claim, rec, err);
    if (claim->owner)
        return file_take_owned(fc, fd, claim, rec, err);
    return file_take_exclusive(fc, fd, claim, rec, err);
}

/* Undo what file_take() got before it found the lock busy. */
static void file_untake(int fd, const struct hfi_claim *claim)
{
    if (claim->shared || claim->owner) {
        file_mark(fd, FILE_HOLD_AT, F_UNLCK, claim);
        flock(fd, LOCK_UN);
    }
}

/* The file of a claim: kept from the last try, or opened. */
static hf_status file_descriptor(struct file_conn *fc,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 struct hf_error *err)
{
    struct file_grant *own = receipt->own;
    hf_status st;
    int fd, i;

    if (receipt->registered)
        return HF_OK;
    st = file_need_dir(fc, true, err);
    if (st)
        return st;
    fd = file_open_key(fc->dir_fd, claim->key, O_RDWR | O_NONBLOCK);
    for (i = 0; i < 2 && fd < 0 && errno == ENOENT; i++) {
        if (i && (st = file_find_dir(fc, true, err)))
            return st;
        fd = file_open_key(fc->dir_fd, claim->key,
                           O_RDWR | O_NONBLOCK | O_CREAT);
    }
    if (fd < 0 && errno == ELOOP)
        return hfi_fail(err, HF_DENIED, "the lock file is a symbolic link");
    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "open the lock file");
    own->fd = fd;
    own->wd = -1;
    own->bytes = own->waits = false;
    receipt->registered = true;
    file_fds_set(&fc->fds, fd, true);
    return HF_OK;
}

static hf_status file_try_once(struct file_conn *fc,
                               const struct hfi_claim *claim,
                               struct hfi_receipt *receipt, bool *vanished,
                               struct hf_error *err)
{
    struct file_grant *own = receipt->own;
    struct file_record rec = {.marked = false};
    bool kept = receipt->registered;
    hf_status st = file_descriptor(fc, claim, receipt, err);

    *vanished = false;
    if (st)
        return st;
    if (HFI_MUTANT(fence_before_lock))
        hfi_mutant_note(claim, hfi_wall_us());
    st = file_take(fc, own->fd, claim, &rec, err);
    if (st && st != HF_BUSY)
        return st; /* and let go by the caller */
    if (st)
        file_untake(own->fd, claim);
    else if (own->waits)
        file_mark(own->fd, FILE_WAIT_AT, F_UNLCK, claim);
    if (claim->owner || claim->shared)
        own->bytes = true;
    if ((kept || rec.marked) &&
        !file_is_named(fc, claim->key, own->fd)) { /* file.c (2) */
        *vanished = true;
        return HF_BUSY;
    }
    if (!st)
        receipt->fence = rec.fence;
    return st;
}

hf_status file_try_acquire(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, struct hfi_answer *busy,
                           int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_grant *own = receipt->own;
    bool vanished = true, watched = receipt->registered && own->wd >= 0;
    hf_status st = HF_BUSY;
    char key[HFI_QUOTE_MAX];
    int i;

    (void)busy;
    if (receipt->registered && receipt->fence)
        return HF_OK;
    for (i = 0; vanished && i < FILE_REOPEN_MAX; i++) {
        st = file_try_once(fc, claim, receipt, &vanished, err);
        if (vanished) {
            file_unwatch(conn, claim, receipt);
            file_let_go(fc, receipt);
        }
    }
    if (st == HF_BUSY && claim->queue && receipt->registered) { /* file.c (4) */
        file_queue(own->fd, claim, receipt);
        if (watched && own->wd < 0)
            file_watch(conn, claim, receipt, deadline, NULL);
        return st;
    }
    if (st)
        file_let_go(fc, receipt);
    if (st && st != HF_BUSY)
        hfi_wrap(err, st, "%s: '%s'", conn->endpoint,
                 hfi_quote(key, sizeof(key), claim->key));
    return st;
}
