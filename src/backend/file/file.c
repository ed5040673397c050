/* SPDX-License-Identifier: MIT
 *
 * file.c - locks between the processes of one machine, on no server at all.
 *
 * ON THE WIRE  flock(2) on DIR/KEY.lock, so flock(1) on the same file excludes
 *   and is excluded.
 *   exclusive      LOCK_EX
 *   with owner id  LOCK_EX to come first, then LOCK_SH, which its equals join
 *   shared         LOCK_SH
 *   with permits   LOCK_SH
 *   Bytes beyond the end of the file carry the rest, by open file description
 *   locks for writing, which flock does not see.  Holders with LOCK_SH keep one
 *   each: it tells a living group from what a dead one left in the record, or
 *   from a foreign reader, and where the holder's own record is (holders.c).
 *   Waiters keep one each, so that a holder that would linger can see them, and
 *   then read a byte, which it can hear.  A writer that waits keeps another: the
 *   door.  A client that only looks keeps one while it has
 *   LOCK_SH for an instant, and a try that fails just then is made again.
 *
 * INVARIANTS
 *  (1) The record is written under LOCK_EX, or under LOCK_SH with the gate (a
 *      second such byte) held; so a fence is given out once.  An operator's
 *      break has the gate and no lock: so LOCK_EX alone is enough only over the
 *      record of a plain lock without a mark, of which a break writes the mark
 *      only (break.c).
 *  (2) A descriptor that was kept from an earlier try, or whose record bears
 *      the mark of a break, is used only while the key's name leads to its
 *      file; else the name is opened again.  What is removed or renamed under a
 *      holder the heartbeat notices.
 *  (3) A lock file that anybody has open is never removed: that is how two
 *      processes come to hold two locks of one name.  One that nobody has used
 *      for long is removed as collect.c argues.  Only hf_break_force() replaces
 *      one in use, which is asked for just that, with a file in which the fence
 *      goes on.
 *  (4) A waiter keeps its descriptor from try to try.  Opening and closing is
 *      what other waiters listen for, and they would wake each other for ever.
 *  (5) Under LOCK_SH the record and the bytes of the holders mean something
 *      only together: whoever decides by them, or changes them, has the gate
 *      from the first look to the last change.  A client that only shows them
 *      looks twice.
 *  (6) LOCK_EX is a grant only if no byte of a holder is locked and nothing is
 *      kept (keep.c).  So a holder that goes from LOCK_EX to LOCK_SH takes its
 *      byte first, and no client of holdfast comes in between, whatever the
 *      kernel does.  Where the record says that the last grant was exclusive
 *      there can be no such byte, and a plain lock does not look for one.
 *  (7) What is in use with permits or without is decided together with the
 *      grant, by the record under the gate.  Slots are those of the holders'
 *      records; who has none any more (hf_break_force()) has no slot.
 *  (8) A reader that comes while the door is closed waits, and one that waits
 *      lets those writers pass that were there before it.  The door's byte says
 *      until when it is closed: a writer that goes on asking takes a later one,
 *      one that is stopped does not, and one that dies leaves none.
 *
 * SESSION  None.  The kernel keeps the lock as long as the process lives and
 *   frees it the moment it dies, so nothing lapses and nothing is renewed; the
 *   heartbeat looks whether the file was removed or an operator has asked for
 *   the lock.
 *
 * DECISIONS
 *   The directory is made with the first lock and not by open(): whoever only
 *   looks, perhaps with a name that is mistyped, changes nothing.
 *   flock(2), not open file description locks: scripts use flock(1), and the
 *   two kinds do not see each other.  Description locks do what flock cannot,
 *   see above.
 *   A wake-up may be early: the kernel announces the close of a file before it
 *   drops the lock on it.  So a try that finds the lock taken after a wake-up
 *   is made once more, 2 ms later (HFI_TRAIT_EARLY).
 *   To break is to ask.  Nobody can take a kernel lock from a living process,
 *   so the request is written into the file and the holder reads it at its
 *   heartbeat.  Only hf_break_force() replaces the file.
 *   The default directory depends on the user and the system only.
 *   $XDG_RUNTIME_DIR is set in a desktop session and not in cron, so two jobs
 *   of one user would not see each other.  Nor does it matter whether this
 *   process can write there: a service with a read-only /run/lock would
 *   otherwise use /tmp, and hold its lock beside a cron job that does not.  It
 *   is refused.
 *
 * LIMITS  One machine.  A child that was forked without exec shares the
 *   descriptor and keeps the lock alive after its parent, unless it calls
 *   hf_close().  Waiters of several processes race.  On network file systems
 *   flock(2) means what the server makes of it, and open() says so.
 *   To go from LOCK_EX to LOCK_SH is one step in Linux since 4.1, but no manual
 *   promises it: elsewhere a flock(1) that waits may come in between, and then a
 *   downgrade is HF_LOST.  flock(1) sees no permits, no door and nothing that is
 *   kept.  A container with a time namespace of its own has another
 *   CLOCK_BOOTTIME: it may take a kept lock early or late.
 *   To find a slot, or an owner id among readers, takes as long as there are
 *   places of holders.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

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

/* Where default directories are: in /run/lock if everybody may make one there,
 * else in /tmp.  That is decided by the mode of /run/lock, which is the same
 * for all processes that see it, and not by what this one may do there: one
 * that finds it read-only or full is refused, and never looks elsewhere. */
static const char *file_default_base(void)
{
    const mode_t open_to_all = S_ISVTX | S_IWOTH | S_IXOTH;
    struct stat sb;

    return !stat("/run/lock", &sb) && S_ISDIR(sb.st_mode) &&
                   (sb.st_mode & open_to_all) == open_to_all
               ? "/run/lock"
               : "/tmp";
}

/* The directory that everyone gets who names none: the same for one user
 * whether from cron, a shell or a service, so no variable decides it. */
static void file_default_dir(char *ret, size_t size)
{
    snprintf(ret, size, "%s/holdfast-%lu", file_default_base(),
             (unsigned long)geteuid());
}

/* Is it the user's own?  Anybody may have made it. */
static hf_status file_check_default(const char *dir, int fd,
                                    struct hf_error *err)
{
    struct stat sb;

    if (fstat(fd, &sb))
        return hfi_fail_errno(err, HF_SYSTEM, errno, "look at '%s'", dir);
    if (sb.st_uid != geteuid())
        return hfi_fail(err, HF_DENIED,
                        "'%s' should be your directory and belongs to "
                        "user %lu: have it removed, or name another as "
                        "file:DIR in all programs that share the locks",
                        dir, (unsigned long)sb.st_uid);
    if (sb.st_mode & 022)
        return hfi_fail(err, HF_DENIED,
                        "others may write to '%s': use chmod go-w", dir);
    return HF_OK;
}

/* Do we have the directory, and is it still one?  One that was removed has no
 * name, and no file is ever made in it. */
static bool file_has_dir(const struct file_conn *fc)
{
    int fd = atomic_load(&fc->dir_fd);
    struct stat sb;

    return fd >= 0 && (fstat(fd, &sb) || sb.st_nlink);
}

/* Others may be using the number of one that was removed, so that stays. */
static void file_take_dir(struct file_conn *fc, int fd)
{
    int old = atomic_load(&fc->dir_fd);

    if (old < 0) {
        atomic_store(&fc->dir_fd, fd);
        return;
    }
    dup3(fd, old, O_CLOEXEC);
    close(fd);
}

/* Open the directory and see whether it can be used; with fc->mu, or before
 * others know of `fc`.  HF_OK also if it is not there. */
static hf_status file_open_dir(struct file_conn *fc, struct hf_error *err)
{
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    char quoted[HFI_QUOTE_MAX];
    hf_status st = HF_OK;
    int fd;

    hfi_quote(quoted, sizeof(quoted), fc->dir);
    if (fc->standard)
        flags |= O_NOFOLLOW;
    fd = fc->parent_fd < 0 ? open(fc->dir, flags)
                           : openat(fc->parent_fd, fc->name, flags);
    if (fd < 0)
        return errno == ENOENT
                   ? HF_OK
                   : hfi_fail_errno(err, HF_SYSTEM, errno,
                                    "open the lock directory '%s'", quoted);
    if (fc->standard)
        st = file_check_default(fc->dir, fd, err);
    /* Inspection needs no right to make a lock file. */
    if (!st && faccessat(fd, ".", X_OK, AT_EACCESS))
        st = hfi_fail_errno(err, HF_DENIED, errno,
                            "look into the lock directory '%s'", quoted);
    if (st)
        close(fd);
    else
        file_take_dir(fc, fd);
    return st;
}

/* The directory is not there: remember where it will be, since this process may
 * change its own directory. */
static hf_status file_open_parent(struct file_conn *fc, struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];
    size_t len = strlen(fc->dir), from;

    hfi_quote(quoted, sizeof(quoted), fc->dir);
    while (len && fc->dir[len - 1] == '/')
        fc->dir[--len] = '\0';
    for (from = len; from && fc->dir[from - 1] != '/'; from--)
        continue;
    fc->name = fc->dir + from;
    if (!from)
        fc->parent_fd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    else {
        fc->dir[from - 1] = '\0';
        fc->parent_fd =
            open(from > 1 ? fc->dir : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        fc->dir[from - 1] = '/';
    }
    if (fc->parent_fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno,
                              "make the lock directory '%s'", quoted);
    return HF_OK;
}

/* Make the directory and open it; with fc->mu. */
static hf_status file_make_dir(struct file_conn *fc, struct hf_error *err)
{
    char quoted[HFI_QUOTE_MAX];
    hf_status st;

    hfi_quote(quoted, sizeof(quoted), fc->dir);
    if (mkdirat(fc->parent_fd, fc->name, fc->standard ? 0700 : 0777) &&
        errno != EEXIST)
        return hfi_fail_errno(
            err, HF_SYSTEM, errno, "make the lock directory '%s'%s", quoted,
            fc->standard ? ", where your locks are if none is named" : "");
    st = file_open_dir(fc, err);
    if (!st && !file_has_dir(fc))
        st = hfi_fail_errno(err, HF_SYSTEM, ENOENT,
                            "open the lock directory '%s'", quoted);
    return st;
}

/* What was there at first was opened by its name; a name that depends on the
 * current directory may mean another by now. */
hf_status file_find_dir(struct file_conn *fc, bool make, struct hf_error *err)
{
    hf_status st = HF_OK;

    pthread_mutex_lock(&fc->mu);
    if (!file_has_dir(fc) && (fc->parent_fd >= 0 || fc->dir[0] == '/')) {
        if (fc->parent_fd < 0)
            st = file_open_parent(fc, err);
        if (!st)
            st = file_open_dir(fc, err);
        if (!st && make && !file_has_dir(fc))
            st = file_make_dir(fc, err);
    }
    pthread_mutex_unlock(&fc->mu);
    return st;
}

hf_status file_need_dir(struct file_conn *fc, bool make, struct hf_error *err)
{
    return atomic_load(&fc->dir_fd) >= 0 ? HF_OK : file_find_dir(fc, make, err);
}

uint64_t file_pid_ns(void)
{
    struct stat sb;

    return stat("/proc/self/ns/pid", &sb) ? 0 : sb.st_ino;
}

static hf_status file_open(struct hfi_conn *conn, const struct hfi_url *url,
                           int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    const char *dir = url->path;
    char standard[64];
    hf_status st;

    (void)deadline;
    fc->dir_fd = fc->parent_fd = fc->inotify_fd = fc->dir_wd = -1;
    hfi_link_init(&fc->observed);
    fc->pid = (long)getpid();
    fc->pid_ns = file_pid_ns();
    file_record_learn_limit();
    file_learn_boot();
    pthread_mutex_init(&fc->mu, NULL);
    pthread_mutex_init(&fc->collect_mu, NULL);
    fc->opened = true;
    if (url->nhosts || url->user)
        return hfi_fail(err, HF_INVALID,
                        "url: file: takes a directory, as in file:/run/x or "
                        "file:///run/x");
    fc->standard = !*dir;
    if (fc->standard) {
        file_default_dir(standard, sizeof(standard));
        dir = standard;
    }
    st = hfi_url_keep(url, &fc->keep_ms, err);
    if (st)
        return st;
    fc->dir = hfi_strdup(dir);
    if (!fc->dir)
        return hfi_nomem(err);
    snprintf(conn->endpoint, sizeof(conn->endpoint), "file:%s", dir);
    st = file_open_dir(fc, err);
    if (!st && fc->dir_fd < 0)
        st = file_open_parent(fc, err);
    if (st)
        return hfi_wrap(err, st, "file");
    file_judge(conn, fc->dir_fd < 0 ? fc->parent_fd : fc->dir_fd);
    return HF_OK;
}

static void file_close(struct hfi_conn *conn)
{
    struct file_conn *fc = (struct file_conn *)conn;

    if (!fc->opened)
        return;
    if (fc->dir_fd >= 0)
        close(fc->dir_fd);
    if (fc->parent_fd >= 0)
        close(fc->parent_fd);
    if (fc->inotify_fd >= 0)
        close(fc->inotify_fd);
    hfi_free(fc->dir);
    file_fds_fini(&fc->fds);
    file_collect_close(fc);
    pthread_mutex_destroy(&fc->mu);
    fc->opened = false;
}

static const char *const file_schemes[] = {"file", NULL};
static const char *const file_options[] = {"keep", NULL};

const struct hfi_backend hfi_backend_file = {
    .schemes = file_schemes,
    .options = file_options,
    .conn_size = sizeof(struct file_conn),
    .grant_size = sizeof(struct file_grant),
    .observation_size = sizeof(struct file_observation),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_NOTIFY | HF_TRAIT_SHARED |
              HF_TRAIT_REENTRANT | HF_TRAIT_BREAK | HF_TRAIT_PROCESSES |
              HF_TRAIT_DEATH | HF_TRAIT_NOTED | HF_TRAIT_PERMITS |
              HF_TRAIT_MIN_HOLD | HFI_TRAIT_EARLY,
    .varies = HF_TRAIT_NOTIFY | HF_TRAIT_DEATH,
    .page = "file",
    .tested = "Linux",
    .fallback_poll_ms = 500,
    .open = file_open,
    .close = file_close,
    .after_fork_child = file_after_fork_child,
    .try_acquire = file_try_acquire,
    .renew = file_renew,
    .release = file_release,
    .keep = file_keep,
    .downgrade = file_downgrade,
    .watch = file_watch,
    .unwatch = file_unwatch,
    .poll_fd = file_poll_fd,
    .dispatch = file_dispatch,
    .inspect = file_inspect,
    .list = file_list,
    .holders = file_holders,
    .waiters = file_waiters,
    .break_grant = file_break,
    .free_grant = file_free,
    .collect = file_collect,
    .observe = file_observe,
    .unobserve = file_unobserve,
};
