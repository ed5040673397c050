/* SPDX-License-Identifier: MIT
 *
 * file.c - locks between the processes of one machine, on no server at all.
 *
 * ON THE WIRE  flock(2) on DIR/KEY.lock, so flock(1) on the same file excludes
 *   and is excluded.
 *   exclusive      LOCK_EX
 *   with owner id  LOCK_EX to come first, then LOCK_SH, which its equals join
 *   shared         LOCK_SH
 *   Bytes beyond the end of the file carry the rest, by open file description
 *   locks, which flock does not see.  Holders with LOCK_SH keep one each: it
 *   tells a living group from what a dead one left in the record, or from a
 *   foreign reader.  Waiters keep one each, so that a holder that would linger
 *   can see them, and then read a byte, which it can hear.  Who only looks
 *   keeps one while it has LOCK_SH for an instant, and a try that fails just
 *   then is made again.
 *
 * INVARIANTS
 *  (1) The record is written under LOCK_EX, or under LOCK_SH with the gate (a
 *      second such byte) held; so a fence is given out once.
 *  (2) Whoever holds has the file that the name leads to: after the lock was
 *      got on a file without a name, the name is opened again.
 *  (3) A lock file is never removed: that is how two processes come to hold
 *      two locks of one name.
 *  (4) A waiter keeps its descriptor from try to try.  Opening and closing is
 *      what other waiters listen for, and they would wake each other for ever.
 *
 * SESSION  None.  The kernel keeps the lock as long as the process lives and
 *   frees it the moment it dies, so nothing lapses and nothing is renewed; the
 *   heartbeat looks whether the file was removed or an operator has asked for
 *   the lock.
 *
 * LIMITS  One machine.  A child that was forked without exec shares the
 *   descriptor and keeps the lock alive after its parent.  Waiters of several
 *   processes race.  On network file systems flock(2) means what the server
 *   makes of it, and open() says so.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "../env.h"
#include "../mem.h"

#include "../banned.h"

#define FILE_GATE_AT (INT64_C(1) << 40)
#define FILE_LOOK_AT (FILE_GATE_AT + 1)
#define FILE_HOLD_AT (FILE_GATE_AT + 2)
#define FILE_SLOTS   (INT64_C(1) << 32)
#define FILE_WAIT_AT (FILE_HOLD_AT + FILE_SLOTS)

/* How often a try is made again while somebody looks. */
#define FILE_LOOKS_MAX 100

/* How often a lock file may vanish under our hands before we give up. */
#define FILE_REOPEN_MAX 100

/* An inotify watch, shared by all claims on one file. */
struct file_watch {
    struct file_watch *next;
    int wd;
    unsigned users;
    char key[];
};

/* ---- opening ----------------------------------------------------------- */

/* File systems whose locks are made elsewhere. */
static const struct {
    unsigned long magic;
    const char *name;
} file_remote[] = {
    {0x6969, "NFS"},      {0x517b, "SMB"},        {0xff534d42, "CIFS"},
    {0xfe534d42, "SMB2"}, {0x65735546, "FUSE"},   {0x5346414f, "AFS"},
    {0x01021997, "9P"},   {0x00c36400, "CephFS"}, {0x73757245, "Coda"},
    {0x47504653, "GPFS"}, {0x0bd00bd0, "Lustre"},
};

static void file_judge(struct hfi_conn *conn, int dir_fd)
{
    struct statfs fs;
    size_t i;

    if (fstatfs(dir_fd, &fs))
        return;
    for (i = 0; i < sizeof(file_remote) / sizeof(file_remote[0]); i++) {
        if ((unsigned long)fs.f_type != file_remote[i].magic)
            continue;
        conn->traits &= ~(unsigned)(HF_TRAIT_NOTIFY | HF_TRAIT_DEATH);
        snprintf(conn->warning, sizeof(conn->warning),
                 "the lock directory is on %s: locks hold between processes "
                 "of this machine, and beyond it only if that file system "
                 "says so; waiters poll",
                 file_remote[i].name);
    }
}

/* The directory that everyone gets who names none: the same for one user
 * whether from cron, a shell or a service, so no variable decides it. */
static hf_status file_default_dir(char *ret, size_t size, struct hf_error *err)
{
    const char *base = access("/run/lock", W_OK) ? "/tmp" : "/run/lock";
    struct stat sb;

    snprintf(ret, size, "%s/holdfast-%lu", base, (unsigned long)geteuid());
    if (mkdir(ret, 0700) && errno != EEXIST)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "make '%s'", ret);
    if (lstat(ret, &sb))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "look at '%s'", ret);
    if (!S_ISDIR(sb.st_mode) || sb.st_uid != geteuid() || sb.st_mode & 022)
        return hfi_fail(err, HF_DENIED,
                        "'%s' is not a directory that only you can write: "
                        "remove it, or name another as file:DIR",
                        ret);
    return HF_OK;
}

static hf_status file_open_dir(struct file_conn *fc, const char *dir,
                               struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];

    hfi_quote(quoted, sizeof(quoted), dir);
    if (access(dir, F_OK) && mkdir(dir, 0777) && errno != EEXIST)
        return hfi_fail_errno(err, HF_SYSTEM, errno,
                              "file: make the lock directory '%s'", quoted);
    fc->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fc->dir_fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno,
                              "file: open the lock directory '%s'", quoted);
    if (faccessat(fc->dir_fd, ".", W_OK | X_OK, AT_EACCESS))
        return hfi_fail_errno(err, HF_DENIED, errno,
                              "file: no lock file can be made in '%s'", quoted);
    return HF_OK;
}

static hf_status file_open(struct hfi_conn *conn, const struct hfi_url *url,
                           int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    const char *dir = url->path;
    char standard[64];
    hf_status st;

    (void)deadline;
    fc->dir_fd = fc->inotify_fd = -1;
    fc->pid = (long)getpid();
    pthread_mutex_init(&fc->mu, NULL);
    fc->opened = true;
    if (url->nhosts || url->user)
        return hfi_fail(err, HF_INVALID,
                        "url: file: takes a directory, as in file:/run/x or "
                        "file:///run/x");
    if (!*dir) {
        st = file_default_dir(standard, sizeof(standard), err);
        if (st)
            return st;
        dir = standard;
    }
    snprintf(conn->endpoint, sizeof(conn->endpoint), "file:%s", dir);
    st = file_open_dir(fc, dir, err);
    if (st)
        return st;
    file_judge(conn, fc->dir_fd);
    return HF_OK;
}

static void file_close(struct hfi_conn *conn)
{
    struct file_conn *fc = (struct file_conn *)conn;

    if (!fc->opened)
        return;
    if (fc->dir_fd >= 0)
        close(fc->dir_fd);
    if (fc->inotify_fd >= 0)
        close(fc->inotify_fd);
    pthread_mutex_destroy(&fc->mu);
    fc->opened = false;
}

/* ---- bytes beyond the end ---------------------------------------------- */

static bool file_byte(int fd, off_t at, short type)
{
    struct flock byte = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &byte) == 0;
}

/* Lock or unlock a byte of our own, as far as chance will have it; two may share
 * one. */
static bool file_mark(int fd, off_t range, short type,
                      const struct hfi_claim *claim)
{
    uint64_t slot = strtoull(claim->token + HFI_TOKEN_LEN - 8, NULL, 16);

    return file_byte(fd, range + (off_t)(slot % FILE_SLOTS), type);
}

static int32_t file_count(int fd, off_t at)
{
    struct flock range = {.l_whence = SEEK_SET};
    off_t end = at + FILE_SLOTS;
    int32_t count = 0;

    for (; at < end; count++) {
        range.l_type = F_WRLCK;
        range.l_start = at;
        range.l_len = end - at;
        range.l_pid = 0;
        if (fcntl(fd, F_OFD_GETLK, &range) || range.l_type == F_UNLCK)
            break;
        at = range.l_start + range.l_len;
    }
    return count;
}

int32_t file_count_holders(int fd)
{
    return file_count(fd, FILE_HOLD_AT);
}

int32_t file_count_waiters(int fd)
{
    return file_count(fd, FILE_WAIT_AT);
}

static void file_unlock(int fd)
{
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

    fcntl(fd, F_OFD_SETLK, &all);
    flock(fd, LOCK_UN);
}

/* Show that we wait, and let a lingering holder hear it. */
static void file_queue(int fd, const struct hfi_claim *claim,
                       struct hfi_grant *grant)
{
    char c;

    if (grant->ref.ints[FILE_WAITS])
        return;
    grant->ref.ints[FILE_BYTES] = grant->ref.ints[FILE_WAITS] =
        file_mark(fd, FILE_WAIT_AT, F_RDLCK, claim);
    if (pread(fd, &c, 1, 0) < 0)
        grant->ref.ints[FILE_WAITS] = 0; /* Show it again at the next try. */
}

/* ---- taking ------------------------------------------------------------ */

/* Does somebody look at the lock just now? */
static bool file_is_looked_at(int fd)
{
    struct flock byte = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = FILE_LOOK_AT,
                         .l_len = 1};

    return !fcntl(fd, F_OFD_GETLK, &byte) && byte.l_type != F_UNLCK;
}

/* Is it held exclusively, by anybody?  The byte tells those whose try we spoil
 * that it was only us. */
bool file_is_exclusive(int fd)
{
    bool busy;

    file_byte(fd, FILE_LOOK_AT, F_RDLCK);
    busy = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    if (!busy)
        flock(fd, LOCK_UN);
    file_byte(fd, FILE_LOOK_AT, F_UNLCK);
    return busy;
}

/* Wait for nothing; HF_BUSY where another has it. */
static hf_status file_flock(int fd, int how, struct hf_error *err)
{
    int looks = 0;

    while (flock(fd, how | LOCK_NB)) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return hfi_fail_errno(err, HF_SYSTEM, errno, "flock");
        if (how != LOCK_EX || looks++ == FILE_LOOKS_MAX ||
            !file_is_looked_at(fd))
            return HF_BUSY;
        sched_yield();
    }
    return HF_OK;
}

/* Write who has it now, under the next fence.  file.c (1) */
static hf_status file_sign(struct file_conn *fc, int fd,
                           const struct hfi_claim *claim, char mode,
                           struct file_record *rec, struct hf_error *err)
{
    rec->since_us = hfi_wall_us();
    rec->fence = file_next_fence(rec, rec->since_us);
    if (!rec->fence)
        return hfi_fail(err, HF_PROTOCOL,
                        "the fence in the lock file cannot rise any more");
    rec->mode = mode;
    rec->pid = fc->pid;
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

/* Somebody has it: our equals, perhaps? */
static hf_status file_join(int fd, const struct hfi_claim *claim,
                           struct file_record *rec, struct hf_error *err)
{
    hf_status st = file_flock(fd, LOCK_SH, err);

    if (!st)
        st = file_record_read(fd, rec, err);
    if (!st && (rec->mode != FILE_OWNED || strcmp(rec->owner, claim->owner) ||
                !file_count_holders(fd) ||
                !file_mark(fd, FILE_HOLD_AT, F_RDLCK, claim)))
        st = HF_BUSY;
    return st;
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
    if (!st && !file_mark(fd, FILE_HOLD_AT, F_RDLCK, claim))
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "lock a byte");
    return st ? st : file_flock(fd, LOCK_SH, err);
}

/* Several may hold LOCK_SH, so the gate makes one of them sign at a time. */
static hf_status file_take_shared(struct file_conn *fc, int fd,
                                  const struct hfi_claim *claim,
                                  struct file_record *rec, struct hf_error *err)
{
    hf_status st = file_flock(fd, LOCK_SH, err);

    if (st)
        return st;
    if (!file_byte(fd, FILE_GATE_AT, F_WRLCK))
        return HF_BUSY;
    st = file_record_read(fd, rec, err);
    if (!st && rec->mode == FILE_OWNED && file_count_holders(fd))
        st = HF_BUSY;
    if (!st)
        st = file_sign(fc, fd, claim, FILE_SHARED, rec, err);
    if (!st && !file_mark(fd, FILE_HOLD_AT, F_RDLCK, claim))
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "lock a byte");
    file_byte(fd, FILE_GATE_AT, F_UNLCK);
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
                                 struct hfi_grant *grant, struct hf_error *err)
{
    int fd;

    if (grant->placed)
        return HF_OK;
    fd = file_open_key(fc->dir_fd, claim->key, O_RDWR | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        fd = file_open_key(fc->dir_fd, claim->key,
                           O_RDWR | O_NONBLOCK | O_CREAT);
    if (fd < 0 && errno == ELOOP)
        return hfi_fail(err, HF_DENIED, "the lock file is a symbolic link");
    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "open the lock file");
    grant->ref.ints[FILE_FD] = fd;
    grant->ref.ints[FILE_WD] = -1;
    grant->ref.ints[FILE_BYTES] = grant->ref.ints[FILE_WAITS] = 0;
    grant->placed = true;
    return HF_OK;
}

static void file_let_go(struct hfi_grant *grant)
{
    if (!grant->placed)
        return;
    /* Before others hear it close; and a child that was forked shares the
     * description, so closing is not enough. */
    if (grant->ref.ints[FILE_BYTES])
        file_unlock(grant->ref.ints[FILE_FD]);
    else
        flock(grant->ref.ints[FILE_FD], LOCK_UN);
    close(grant->ref.ints[FILE_FD]);
    grant->placed = false;
}

static hf_status file_try_once(struct file_conn *fc,
                               const struct hfi_claim *claim,
                               struct hfi_grant *grant, bool *vanished,
                               struct hf_error *err)
{
    struct file_record rec;
    struct statx sx; /* fstat() would also ask for the times, and that makes
                      * the next write store new ones */
    hf_status st = file_descriptor(fc, claim, grant, err);

    *vanished = false;
    if (st)
        return st;
    st = file_take(fc, grant->ref.ints[FILE_FD], claim, &rec, err);
    if (st && st != HF_BUSY)
        return st; /* and let go by the caller */
    if (st)
        file_untake(grant->ref.ints[FILE_FD], claim);
    else if (grant->ref.ints[FILE_WAITS])
        file_mark(grant->ref.ints[FILE_FD], FILE_WAIT_AT, F_UNLCK, claim);
    if (claim->owner || claim->shared)
        grant->ref.ints[FILE_BYTES] = 1;
    if (statx(grant->ref.ints[FILE_FD], "", AT_EMPTY_PATH,
              STATX_TYPE | STATX_NLINK, &sx) ||
        !sx.stx_nlink) { /* file.c (2) */
        *vanished = true;
        return HF_BUSY;
    }
    if (!S_ISREG(sx.stx_mode))
        return hfi_fail(err, HF_PROTOCOL, "the lock file is not a file");
    if (!st)
        grant->fence = rec.fence;
    return st;
}

static hf_status file_watch(struct hfi_conn *, const struct hfi_claim *,
                            struct hfi_grant *, int64_t deadline,
                            struct hf_error *);
static void file_unwatch(struct hfi_conn *, const struct hfi_claim *,
                         struct hfi_grant *);

static hf_status file_try_acquire(struct hfi_conn *conn,
                                  const struct hfi_claim *claim,
                                  struct hfi_grant *grant,
                                  struct hfi_busy *busy, int64_t deadline,
                                  struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    bool vanished = true,
         watched = grant->placed && grant->ref.ints[FILE_WD] >= 0;
    hf_status st = HF_BUSY;
    char key[HFI_QUOTE_MAX];
    int i;

    (void)busy;
    if (grant->placed && grant->fence)
        return HF_OK;
    for (i = 0; vanished && i < FILE_REOPEN_MAX; i++) {
        st = file_try_once(fc, claim, grant, &vanished, err);
        if (vanished) {
            file_unwatch(conn, claim, grant);
            file_let_go(grant);
        }
    }
    if (st == HF_BUSY && claim->queue && grant->placed) { /* file.c (4) */
        file_queue(grant->ref.ints[FILE_FD], claim, grant);
        if (watched && grant->ref.ints[FILE_WD] < 0)
            file_watch(conn, claim, grant, deadline, NULL);
        return st;
    }
    if (st)
        file_let_go(grant);
    if (st && st != HF_BUSY)
        hfi_wrap(err, st, "%s: '%s'", conn->endpoint,
                 hfi_quote(key, sizeof(key), claim->key));
    return st;
}

/* Does the name still lead to the file that we have? */
static bool file_is_named(struct file_conn *fc, const char *key, int fd)
{
    char path[FILE_PATH_MAX];
    struct stat ours, named;

    file_path(path, key);
    return !fstat(fd, &ours) &&
           !fstatat(fc->dir_fd, path, &named, AT_SYMLINK_NOFOLLOW) &&
           ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

static void file_renew_one(struct file_conn *fc, struct hfi_renewal *item)
{
    int fd = item->grant->ref.ints[FILE_FD];
    struct file_record rec;

    item->st = HF_OK;
    if (!file_is_named(fc, item->claim->key, fd)) {
        item->st = HF_LOST;
        item->reason = HF_LOSS_DELETED;
    } else if (!file_record_read(fd, &rec, NULL) &&
               rec.broken == item->grant->fence) {
        item->st = HF_LOST;
        item->reason = HF_LOSS_BROKEN;
    }
}

static void file_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                       size_t n, int64_t deadline, struct hf_error *err)
{
    size_t i;

    (void)deadline;
    (void)err;
    for (i = 0; i < n; i++)
        file_renew_one((struct file_conn *)conn, &items[i]);
}

static hf_status file_release(struct hfi_conn *conn,
                              const struct hfi_claim *claim,
                              struct hfi_grant *grant, int64_t deadline,
                              struct hf_error *err)
{
    bool had = grant->placed;

    (void)claim;
    (void)deadline;
    file_let_go(grant);
    return had ? HF_OK
               : hfi_fail(err, HF_LOST, "%s: nothing to release",
                          conn->endpoint);
}

/* ---- waking ------------------------------------------------------------ */

static struct file_watch **file_watch_at(struct file_conn *fc, int wd)
{
    size_t n = sizeof(fc->watches) / sizeof(fc->watches[0]);
    struct file_watch **at = &fc->watches[(unsigned)wd % n];

    while (*at && (*at)->wd != wd)
        at = &(*at)->next;
    return at;
}

/* Watch the file itself, whatever it is called by now. */
static int file_inotify(struct file_conn *fc, int fd)
{
    char path[64];

    if (fc->inotify_fd < 0) {
        fc->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
        if (fc->inotify_fd < 0)
            return -1;
        hfi_pump_changed(&fc->base);
    }
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return inotify_add_watch(fc->inotify_fd, path,
                             IN_CLOSE | IN_OPEN | IN_ACCESS | IN_ATTRIB);
}

static hf_status file_watch(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            struct hfi_grant *grant, int64_t deadline,
                            struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_watch **at, *watch;
    size_t size = strlen(claim->key) + 1;
    hf_status st = HF_OK;
    int wd;

    (void)deadline;
    pthread_mutex_lock(&fc->mu);
    wd = file_inotify(fc, grant->ref.ints[FILE_FD]);
    if (wd < 0) {
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "inotify");
        goto out;
    }
    at = file_watch_at(fc, wd);
    watch = *at;
    if (!watch) {
        watch = hfi_alloc(sizeof(*watch) + size);
        if (!watch) {
            inotify_rm_watch(fc->inotify_fd, wd);
            st = hfi_nomem(err);
            goto out;
        }
        watch->wd = wd;
        memcpy(watch->key, claim->key, size);
        *at = watch;
    }
    watch->users++;
    grant->ref.ints[FILE_WD] = wd;
    /* Who waited before we listened will not be heard. */
    if (grant->fence && file_count_waiters(grant->ref.ints[FILE_FD]))
        hfi_wanted(conn, claim->key);
out:
    pthread_mutex_unlock(&fc->mu);
    return st;
}

static void file_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                         struct hfi_grant *grant)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_watch **at, *watch;
    int wd = grant->ref.ints[FILE_WD];

    (void)claim;
    if (wd < 0)
        return;
    grant->ref.ints[FILE_WD] = -1;
    pthread_mutex_lock(&fc->mu);
    at = file_watch_at(fc, wd);
    watch = *at;
    if (watch && !--watch->users) {
        inotify_rm_watch(fc->inotify_fd, wd);
        *at = watch->next;
        hfi_free(watch);
    }
    pthread_mutex_unlock(&fc->mu);
}

static int file_pump_fd(struct hfi_conn *conn)
{
    struct file_conn *fc = (struct file_conn *)conn;
    int fd;

    pthread_mutex_lock(&fc->mu);
    fd = fc->inotify_fd;
    pthread_mutex_unlock(&fc->mu);
    return fd;
}

/* Somebody opened the file or read it: perhaps it wants the lock.  Somebody
 * closed it: perhaps it let go, or died.  Its name changed: it may be gone. */
static void file_heard(struct file_conn *fc, const struct inotify_event *event)
{
    struct file_watch *watch;

    if (event->mask & IN_Q_OVERFLOW) {
        hfi_wake_all(&fc->base);
        return;
    }
    pthread_mutex_lock(&fc->mu);
    watch = *file_watch_at(fc, event->wd);
    if (watch && event->mask & (IN_OPEN | IN_ACCESS))
        hfi_wanted(&fc->base, watch->key);
    if (watch && event->mask & ~(uint32_t)(IN_OPEN | IN_ACCESS))
        hfi_wake(&fc->base, watch->key, NULL);
    pthread_mutex_unlock(&fc->mu);
}

static void file_pump(struct hfi_conn *conn)
{
    struct file_conn *fc = (struct file_conn *)conn;
    _Alignas(struct inotify_event) char buf[4096];
    const struct inotify_event *event;
    ssize_t len, at;

    len = read(fc->inotify_fd, buf, sizeof(buf));
    for (at = 0; at < len; at += (ssize_t)(sizeof(*event) + event->len)) {
        event = (const void *)(buf + at);
        file_heard(fc, event);
    }
}

static const char *const file_schemes[] = {"file", NULL};

const struct hfi_backend hfi_backend_file = {
    .schemes = file_schemes,
    .conn_size = sizeof(struct file_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_NOTIFY | HF_TRAIT_SHARED |
              HF_TRAIT_REENTRANT | HF_TRAIT_BREAK | HF_TRAIT_PROCESSES |
              HF_TRAIT_DEATH | HFI_TRAIT_EARLY,
    .net_ms = 500,
    .open = file_open,
    .close = file_close,
    .try_acquire = file_try_acquire,
    .renew = file_renew,
    .release = file_release,
    .watch = file_watch,
    .unwatch = file_unwatch,
    .pump_fd = file_pump_fd,
    .pump = file_pump,
    .inspect = file_inspect,
    .list = file_list,
    .break_grant = file_break,
};
