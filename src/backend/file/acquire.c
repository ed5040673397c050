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

/* Show that we wait, and let a lingering holder hear it. */
static void file_queue(const struct file_try *try)
{
    struct file_grant *own = try->own;
    bool waited = own->waits;
    char c;

    file_show_waiting(own, try->claim);
    if (!waited && pread(own->fd, &c, 1, 0) < 0)
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
hf_status file_flock(int fd, int how, struct hf_error *err)
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
 * the grant that it was meant for.  file.c (1) */
hf_status file_sign(struct file_try *try, char mode, struct hf_error *err)
{
    struct file_record *rec = &try->rec;

    rec->since_us = hfi_wall_us();
    if (!rec->fence) { /* collect.c (3) */
        hf_status st = file_floor(try->fc, &rec->fence, err);

        if (st)
            return st;
    }
    rec->fence = file_next_fence(rec, rec->since_us);
    if (HFI_MUTANT(fence_before_lock))
        rec->fence = (uint64_t)hfi_mutant_take(try->claim);
    if (!rec->fence)
        return hfi_fail(err, HF_PROTOCOL,
                        "the fence in the lock file cannot rise any more");
    rec->marked = rec->broken != 0;
    rec->broken = 0;
    rec->mode = mode;
    rec->permits = try->claim->permits;
    rec->pid = try->fc->pid;
    rec->pid_ns = try->fc->pid_ns;
    return file_record_write(try->own->fd, 0, rec, try->claim, err);
}

/* May an operator be changing this record, or replacing the file? */
static bool file_needs_gate(const struct file_record *rec)
{
    return rec->fence && (rec->mode != FILE_EXCLUSIVE || rec->broken);
}

static hf_status file_take_exclusive(struct file_try *try, struct hf_error *err)
{
    int fd = try->own->fd;
    hf_status st = file_flock(fd, LOCK_EX, err);
    bool gated = false;

    if (st)
        return st == HF_BUSY ? file_refused(try, err) : st;
    st = file_record_read_fence(fd, 0, &try->rec, err);
    if (!st && file_needs_gate(&try->rec)) {
        gated = file_gate(fd);
        st = gated ? file_check_idle(try, err) : HF_BUSY;
    }
    if (!st)
        st = file_sign(try, FILE_EXCLUSIVE, err);
    if (gated)
        file_ungate(fd);
    if (st == HF_BUSY)
        flock(fd, LOCK_UN);
    return st;
}

static hf_status file_take(struct file_try *try, struct hf_error *err)
{
    if (try->claim->permits)
        return file_take_permit(try, err);
    if (try->claim->shared)
        return file_take_shared(try, err);
    if (try->claim->owner)
        return file_take_owned(try, err);
    return file_take_exclusive(try, err);
}

/* Undo what file_take() got before it found the lock busy. */
static void file_untake(struct file_grant *own, const struct hfi_claim *claim)
{
    if (own->index >= 0)
        file_byte(own->fd, FILE_HOLD_AT + own->index, F_UNLCK);
    own->index = -1;
    if (claim->shared || claim->owner || claim->permits)
        flock(own->fd, LOCK_UN);
}

/* Open the lock file; one that is just being removed (collect.c) is tried
 * again. */
static int file_open_lock(struct file_conn *fc, const char *key, int flags)
{
    int fd = file_open_key(fc->dir_fd, key, flags), looks;

    for (looks = 0; fd < 0 && errno == EWOULDBLOCK && looks < FILE_LOOKS_MAX;
         looks++) {
        sched_yield();
        fd = file_open_key(fc->dir_fd, key, flags);
    }
    return fd;
}

/* The file of a claim: kept from the last try, or opened. */
static hf_status file_descriptor(struct file_conn *fc,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 struct hf_error *err)
{
    struct file_grant *own = receipt->own;
    hf_status st;
    bool made = false;
    int fd, i;

    if (receipt->registered)
        return HF_OK;
    st = file_need_dir(fc, true, err);
    if (st)
        return st;
    fd = file_open_lock(fc, claim->key, O_RDWR | O_NONBLOCK);
    for (i = 0; i < 2 && fd < 0 && errno == ENOENT; i++) {
        if (i && (st = file_find_dir(fc, true, err)))
            return st;
        fd = file_open_lock(fc, claim->key, O_RDWR | O_NONBLOCK | O_CREAT);
        made = fd >= 0;
    }
    if (fd < 0 && errno == EWOULDBLOCK)
        return hfi_fail(err, HF_UNAVAILABLE, "the lock file is being removed");
    if (fd < 0 && errno == ELOOP)
        return hfi_fail(err, HF_DENIED, "the lock file is a symbolic link");
    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "open the lock file");
    own->fd = fd;
    own->wd = own->index = -1;
    own->bytes = own->waits = false;
    own->door = 0;
    own->door_ms = 0;
    receipt->registered = true;
    file_fds_set(&fc->fds, fd, true);
    if (made)
        file_collect_some(fc);
    return HF_OK;
}

static hf_status file_try_once(struct file_try *try,
                               struct hfi_receipt *receipt, bool *vanished,
                               struct hf_error *err)
{
    const struct hfi_claim *claim = try->claim;
    struct file_grant *own = try->own;
    bool kept = receipt->registered;
    hf_status st = file_descriptor(try->fc, claim, receipt, err);

    *vanished = false;
    if (st)
        return st;
    if (HFI_MUTANT(fence_before_lock))
        hfi_mutant_note(claim, hfi_wall_us());
    try->rec.marked = try->together = false;
    st = file_take(try, err);
    if (st && st != HF_BUSY)
        return st; /* and let go by the caller */
    if (st)
        file_untake(own, claim);
    if (st && try->together && !claim->shared && !claim->permits)
        try->rec.marked = file_replace_deserted(try->fc, claim->key, own->fd);
    if ((kept || try->rec.marked) &&
        !file_is_named(try->fc, claim->key, own->fd)) { /* file.c (2) */
        *vanished = true;
        return HF_BUSY;
    }
    if (st)
        return st;
    if (own->waits || own->door)
        file_stop_waiting(own);
    receipt->fence = try->rec.fence;
    receipt->slot = try->rec.slot;
    return HF_OK;
}

hf_status file_try_acquire(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, struct hfi_answer *busy,
                           int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_grant *own = receipt->own;
    struct file_try try;
    bool vanished = true, watched = receipt->registered && own->wd >= 0;
    hf_status st = HF_BUSY;
    char key[HFI_QUOTE_MAX];
    int i;

    if (receipt->registered && receipt->fence)
        return HF_OK;
    try.fc = fc;
    try.claim = claim;
    try.own = own;
    try.answer = busy;
    for (i = 0; vanished && i < FILE_REOPEN_MAX; i++) {
        st = file_try_once(&try, receipt, &vanished, err);
        if (vanished) {
            file_unwatch(conn, claim, receipt);
            file_let_go(fc, receipt);
        }
    }
    if (st == HF_BUSY && claim->queue && receipt->registered) { /* file.c (4) */
        file_queue(&try);
        if (watched && own->wd < 0)
            file_watch(conn, claim, receipt, deadline, NULL);
        return st;
    }
    if (st)
        file_let_go(fc, receipt);
    if (st && st != HF_BUSY && st != HF_INVALID)
        hfi_wrap(err, st, "%s: '%s'", conn->endpoint,
                 hfi_quote(key, sizeof(key), claim->key));
    return st;
}
