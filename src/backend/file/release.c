/* SPDX-License-Identifier: MIT
 *
 * release.c - giving back a lock file.  The descriptor is the lock, so nobody else's
 * can be given back.
 */
#include "file.h"

#include <sys/file.h>
#include <unistd.h>

#include "base/banned.h"

void file_let_go(struct file_conn *fc, struct hfi_receipt *receipt)
{
    const struct file_grant *own = receipt->own;

    if (!receipt->registered)
        return;
    /* Before others hear it close; and a child that was forked shares the
     * description, so closing is not enough. */
    if (own->bytes)
        file_unlock(own->fd);
    else
        flock(own->fd, LOCK_UN);
    file_fds_set(&fc->fds, own->fd, false);
    close(own->fd);
    receipt->registered = false;
}

hf_status file_release(struct hfi_conn *conn, const struct hfi_claim *claim,
                       struct hfi_receipt *receipt, int64_t deadline,
                       struct hf_error *err)
{
    const struct file_grant *own = receipt->own;
    bool had = receipt->registered;

    (void)claim;
    (void)deadline;
    /* The others may have gone on without us. */
    if (had && own->index >= 0 && file_is_broken(own, receipt->fence))
        had = false;
    file_let_go((struct file_conn *)conn, receipt);
    return had ? HF_OK
               : hfi_fail(err, HF_LOST, "%s: nothing to release",
                          conn->endpoint);
}
