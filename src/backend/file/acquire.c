/* SPDX-License-Identifier: MIT
 *
 * acquire.c - taking, keeping and giving back a lock file; the rules are in
 * file.c.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "base/mutant.h"

#include "base/banned.h"

#define FILE_GATE_AT (INT64_C(1) << 40)
#define FILE_LOOK_AT (FILE_GATE_AT + 1)
#define FILE_HOLD_AT (FILE_GATE_AT + 2)
#define FILE_SLOTS   (INT64_C(1) << 32)
#define FILE_WAIT_AT (FILE_HOLD_AT + FILE_SLOTS)

/* How often a try is made again while somebody looks. */
#define FILE_LOOKS_MAX 100

/* How often the gate is tried for, which everybody holds for moments only: first
 * as fast as can be, then, since its owner may be waiting for a processor, once a
 * millisecond. */
#define FILE_GATE_FAST 5000
#define FILE_GATE_MAX  (FILE_GATE_FAST + 200)

/* How often a lock file may vanish under our hands before we give up. */
#define FILE_REOPEN_MAX 100

/* ---- bytes beyond the end ---------------------------------------------- */

static bool file_byte(int fd, off_t at, short type)
{
    struct flock byte = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &byte) == 0;
}

/* Lock or unlock a byte of our own, as far as chance will have it; who meets
 * another's is busy. */
static bool file_mark(int fd, off_t range, short type,
                      const struct hfi_claim *claim)
{
    uint64_t slot = strtoull(claim->token + HFI_TOKEN_LEN - 8, NULL, 16);

    return file_byte(fd, range + (off_t)(slot % FILE_SLOTS), type);
}

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

/* Ours are single bytes, by open file description (pid -1), locked for writing:
 * who may only read the file cannot pretend to be one of us.  The system names
 * any one lock of a range, not the first, so the parts on both sides of it are
 * searched.  Behind a larger one of a stranger, which may reach to the end of
 * all files (length 0), others can be that are not seen.  Each question takes
 * as long as there are locks, so not more than `most` are counted. */
static struct file_tally file_count(int fd, off_t at, int most)
{
    struct {
        off_t from, to;
    } rest[FILE_COUNT_MAX + 1] = {{at, at + FILE_SLOTS}};
    struct flock hit = {.l_whence = SEEK_SET};
    struct file_tally tally = {0, false};
    int left = 1, hits = 0;
    off_t from, to, end;

    while (left && hits < most) {
        from = rest[--left].from;
        to = rest[left].to;
        hit.l_type = F_RDLCK;
        hit.l_start = from;
        hit.l_len = to - from;
        hit.l_pid = 0;
        if (from >= to || fcntl(fd, F_OFD_GETLK, &hit) || hit.l_type == F_UNLCK)
            continue;
        hits++;
        if (hit.l_len == 1 && hit.l_pid == -1)
            tally.count++;
        else
            tally.hidden = true;
        end = hit.l_len ? hit.l_start + hit.l_len : to;
        rest[left].from = end;
        rest[left++].to = to;
        rest[left].from = from;
        rest[left++].to = hit.l_start;
    }
    return tally;
}

struct file_tally file_count_holders(int fd, int most)
{
    return file_count(fd, FILE_HOLD_AT, most);
}

int32_t file_count_waiters(int fd, int most)
{
    return file_count(fd, FILE_WAIT_AT, most).count;
}

bool file_gate(int fd)
{
    int tries;

    for (tries = 0; !file_byte(fd, FILE_GATE_AT, F_WRLCK); tries++) {
        if (tries == FILE_GATE_MAX)
            return false; /* Its owner was stopped, or is a stranger. */
        if (tries < FILE_GATE_FAST)
            sched_yield();
        else
            poll(NULL, 0, 1);
    }
    return true;
}

void file_ungate(int fd)
{
    file_byte(fd, FILE_GATE_AT, F_UNLCK);
}

static void file_unlock(int fd)
{
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

    fcntl(fd, F_OFD_SETLK, &all);
    flock(fd, LOCK_UN);
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

/* ---- taking ------------------------------------------------------------ */

/* Is it held exclusively, by anybody?  To see that we try LOCK_SH, and may have
 * it for an instant; the byte keeps the tries of others from being spoilt. */
bool file_is_exclusive(int fd)
{
    bool busy;
    int looks;

    for (looks = 0; !file_byte(fd, FILE_LOOK_AT, F_RDLCK); looks++) {
        if (looks == FILE_LOOKS_MAX)
            return true; /* Who keeps us out found it busy. */
        sched_yield();
    }
    busy = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    if (!busy)
        flock(fd, LOCK_UN);
    file_byte(fd, FILE_LOOK_AT, F_UNLCK);
    return busy;
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
    int fd;

    if (receipt->placed)
        return HF_OK;
    fd = file_open_key(fc->dir_fd, claim->key, O_RDWR | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        fd = file_open_key(fc->dir_fd, claim->key,
                           O_RDWR | O_NONBLOCK | O_CREAT);
    if (fd < 0 && errno == ELOOP)
        return hfi_fail(err, HF_DENIED, "the lock file is a symbolic link");
    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "open the lock file");
    own->fd = fd;
    own->wd = -1;
    own->bytes = own->waits = false;
    receipt->placed = true;
    file_fds_set(&fc->fds, fd, true);
    return HF_OK;
}

static void file_let_go(struct file_conn *fc, struct hfi_receipt *receipt)
{
    const struct file_grant *own = receipt->own;

    if (!receipt->placed)
        return;
    /* Before others hear it close; and a child that was forked shares the
     * description, so closing is not enough. */
    if (own->bytes)
        file_unlock(own->fd);
    else
        flock(own->fd, LOCK_UN);
    file_fds_set(&fc->fds, own->fd, false);
    close(own->fd);
    receipt->placed = false;
}

/* Does the key's name still lead to the file that we have?  A number of links
 * would not tell: a file that was renamed, or has a second name, has some.
 * fstat() would also ask for the times, and that makes the next write store new
 * ones. */
static bool file_is_named(struct file_conn *fc, const char *key, int fd)
{
    char path[FILE_PATH_MAX];
    struct statx ours, named;

    file_path(path, key);
    return !statx(fd, "", AT_EMPTY_PATH, STATX_INO, &ours) &&
           !statx(fc->dir_fd, path, AT_SYMLINK_NOFOLLOW, STATX_INO, &named) &&
           ours.stx_ino == named.stx_ino &&
           ours.stx_dev_major == named.stx_dev_major &&
           ours.stx_dev_minor == named.stx_dev_minor;
}

static hf_status file_try_once(struct file_conn *fc,
                               const struct hfi_claim *claim,
                               struct hfi_receipt *receipt, bool *vanished,
                               struct hf_error *err)
{
    struct file_grant *own = receipt->own;
    struct file_record rec = {.marked = false};
    bool kept = receipt->placed;
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
    bool vanished = true, watched = receipt->placed && own->wd >= 0;
    hf_status st = HF_BUSY;
    char key[HFI_QUOTE_MAX];
    int i;

    (void)busy;
    if (receipt->placed && receipt->fence)
        return HF_OK;
    for (i = 0; vanished && i < FILE_REOPEN_MAX; i++) {
        st = file_try_once(fc, claim, receipt, &vanished, err);
        if (vanished) {
            file_unwatch(conn, claim, receipt);
            file_let_go(fc, receipt);
        }
    }
    if (st == HF_BUSY && claim->queue && receipt->placed) { /* file.c (4) */
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

static void file_renew_one(struct file_conn *fc, struct hfi_renewal *item)
{
    const struct file_grant *own = item->receipt->own;
    int fd = own->fd;
    struct file_record rec;

    item->st = HF_OK;
    /* Of those who share, the mark means all who were there. */
    if (!file_record_read_fence(fd, &rec, NULL) &&
        rec.broken >= item->receipt->fence) {
        item->st = HF_LOST;
        item->reason = HF_LOSS_BROKEN;
    } else if (!file_is_named(fc, item->claim->key, fd)) {
        item->st = HF_LOST;
        item->reason = HF_LOSS_DELETED;
    }
}

void file_renew(struct hfi_conn *conn, struct hfi_renewal *items, size_t n,
                int64_t deadline, struct hf_error *err)
{
    size_t i;

    (void)deadline;
    (void)err;
    for (i = 0; i < n; i++)
        file_renew_one((struct file_conn *)conn, &items[i]);
}

hf_status file_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                       struct hfi_receipt *receipt, int64_t deadline,
                       struct hf_error *err)
{
    bool had = receipt->placed;

    (void)claim;
    (void)deadline;
    file_let_go((struct file_conn *)conn, receipt);
    return had ? HF_OK
               : hfi_fail(err, HF_LOST, "%s: nothing to release",
                          conn->endpoint);
}
