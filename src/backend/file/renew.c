/* SPDX-License-Identifier: MIT
 *
 * renew.c - the heartbeat of a lock file: nothing lapses, so it only looks whether
 * the file was removed or an operator has asked for the lock.
 */
#include "file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/banned.h"

/* Does the key's name still lead to the file that we have?  A number of links
 * would not tell: a file that was renamed, or has a second name, has some.
 * fstat() would also ask for the times, and that makes the next write store new
 * ones. */
bool file_is_named(struct file_conn *fc, const char *key, int fd)
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

/* Who holds it with others has a record of its own.  Where that was removed, by
 * hf_break_force() or because somebody wrote into the file, others do not see
 * the grant any more, and may have its slot. */
bool file_is_broken(const struct file_grant *own, uint64_t fence)
{
    off_t at = own->index < 0 ? 0 : file_holder_at(own->index);
    struct file_record rec;
    hf_status st = file_record_read_fence(own->fd, at, &rec, NULL);

    if (st)
        return at && st == HF_PROTOCOL;
    return rec.broken >= fence || (at && rec.fence != fence);
}

static void file_renew_one(struct file_conn *fc, struct hfi_renewal *item)
{
    const struct file_grant *own = item->receipt->own;

    item->st = HF_OK;
    if (file_is_broken(own, item->receipt->fence)) {
        item->st = HF_LOST;
        item->reason = HF_LOSS_BROKEN;
    } else if (!file_is_named(fc, item->claim->key, own->fd)) {
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
