/* SPDX-License-Identifier: MIT
 *
 * keep.c - a lock file that stays taken after its holder has let go.
 *
 * The kernel's lock goes with the process, so the record says until when the
 * grant is kept, and every client of holdfast honours that; flock(1) does not.
 * The time is that of CLOCK_BOOTTIME, which no one can set, and counts in the
 * boot that it was written in only: what a reboot ends was not running.
 *
 * A grant that was exclusive is kept in the record of the lock (mode=k).  Those
 * of several holders are kept in their own records, and that of the lock has the
 * latest end, so that one look tells whether any may be kept.
 */
#include "file.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/env.h"

#include "base/banned.h"

/* What a record can say. */
#define KEEP_MAX ((INT64_C(1) << 53) - 1)

/* Which boot of this machine it is, once it is known: a process may have no
 * descriptor left when it must know.  Written by the first that reads it; a
 * child that was forked just then reads it for itself, always. */
static char keep_known[40];
static atomic_int keep_state; /* 0 not known, 1 being written, 2 known */

static bool keep_read_boot(char ret[40])
{
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC),
        i = 0;
    ssize_t len = fd < 0 ? 0 : read(fd, ret, 36);

    if (fd >= 0)
        close(fd);
    while (i < len && ret[i] > ' ')
        i++;
    ret[i] = '\0';
    return i > 0;
}

/* "-" if the system does not say. */
static void keep_boot(char ret[40])
{
    int unknown = 0;

    if (atomic_load(&keep_state) == 2) {
        memcpy(ret, keep_known, sizeof(keep_known));
        return;
    }
    if (!keep_read_boot(ret)) {
        memcpy(ret, "-", 2);
        return;
    }
    if (atomic_compare_exchange_strong(&keep_state, &unknown, 1)) {
        memcpy(keep_known, ret, sizeof(keep_known));
        atomic_store(&keep_state, 2);
    }
}

void file_learn_boot(void)
{
    char boot[40] = "";

    keep_boot(boot);
}

/* Who does not know it must not take for free what another keeps. */
static bool keep_is_this_boot(const char *written)
{
    char boot[40] = "";

    keep_boot(boot);
    return !strcmp(boot, written) || !strcmp(boot, "-") ||
           !strcmp(written, "-");
}

int64_t file_kept_left(const struct file_record *rec)
{
    int64_t now = rec->kept_until ? hfi_now() : 0;

    if (!rec->kept_until || now < rec->kept_from || now >= rec->kept_until)
        return 0;
    return keep_is_this_boot(rec->boot) ? rec->kept_until - now : 0;
}

static void keep_stamp(struct file_record *rec, int64_t ms)
{
    rec->kept_from = hfi_now();
    rec->kept_until =
        ms < KEEP_MAX - rec->kept_from ? rec->kept_from + ms : KEEP_MAX;
    keep_boot(rec->boot);
}

/* Write it, in the record of the holder and in that of the lock.  The gate is
 * ours. */
static hf_status keep_write(const struct file_grant *own, uint64_t fence,
                            int64_t ms, struct hf_error *err)
{
    off_t at = own->index < 0 ? 0 : file_holder_at(own->index);
    struct file_record rec, lock;
    hf_status st = file_record_inspect(own->fd, at, &rec, err);

    if (!st && (rec.fence != fence || rec.broken >= fence))
        return HF_LOST;
    if (!st && at)
        st = file_record_read(own->fd, &lock, err);
    if (st)
        return st;
    keep_stamp(&rec, ms);
    if (!at) {
        rec.mode = FILE_KEPT;
        return file_record_write(own->fd, 0, &rec, NULL, err);
    }
    st = file_record_write(own->fd, at, &rec, NULL, err);
    if (st || file_kept_left(&lock) >= ms)
        return st;
    keep_stamp(&lock, ms);
    return file_record_write(own->fd, 0, &lock, NULL, err);
}

hf_status file_keep(struct hfi_conn *conn, const struct hfi_claim *claim,
                    struct hfi_receipt *receipt, int64_t ms, int64_t deadline,
                    struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    const struct file_grant *own = receipt->own;
    hf_status st = HF_LOST;

    (void)deadline;
    if (receipt->registered && file_is_named(fc, claim->key, own->fd)) {
        if (!file_gate(own->fd))
            return hfi_fail(err, HF_UNAVAILABLE,
                            "%s: another process is writing into the lock "
                            "file: try again",
                            conn->endpoint);
        st = keep_write(own, receipt->fence, ms, err);
        file_ungate(own->fd);
    }
    file_let_go(fc, receipt);
    if (st == HF_LOST)
        return hfi_fail(err, st, "%s: the lock was not ours any more",
                        conn->endpoint);
    return st ? hfi_wrap(err, st, "%s", conn->endpoint) : HF_OK;
}
