/* SPDX-License-Identifier: MIT
 *
 * fds.c - which descriptors a forked child has inherited.
 *
 * A lock file's descriptor keeps the lock alive in every process that has it.
 * A child must be able to close it without asking any structure that a thread
 * of the parent may have been changing at the fork.  So there is one bit for
 * each descriptor, set after the open and cleared before the close, in words
 * that are changed whole and stay where they are.
 */
#include "file.h"

#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

#define FDS_BITS (8 * sizeof(unsigned long))

/* The word with the bit of a descriptor; NULL if there is none, and none could
 * be made.  A child then keeps that descriptor: a pity, not a danger. */
static atomic_ulong *fds_word(struct file_fds *fds, int fd)
{
    unsigned piece = (unsigned)fd / FILE_FDS_PIECE;
    atomic_ulong *words, *made, *none = NULL;

    if (piece >= FILE_FDS_PIECES)
        return NULL;
    words = atomic_load(&fds->pieces[piece]);
    if (!words) {
        made = hfi_alloc(FILE_FDS_PIECE / 8);
        if (!made)
            return NULL;
        words = made;
        if (!atomic_compare_exchange_strong(&fds->pieces[piece], &none, made)) {
            hfi_free(made);
            words = none;
        }
    }
    return &words[(unsigned)fd % FILE_FDS_PIECE / FDS_BITS];
}

void file_fds_set(struct file_fds *fds, int fd, bool on)
{
    unsigned long bit = 1ul << ((unsigned)fd % FDS_BITS);
    atomic_ulong *word = fds_word(fds, fd);

    if (word && on)
        atomic_fetch_or(word, bit);
    else if (word)
        atomic_fetch_and(word, ~bit);
}

void file_fds_fini(struct file_fds *fds)
{
    int i;

    for (i = 0; i < FILE_FDS_PIECES; i++)
        hfi_free(atomic_exchange(&fds->pieces[i], NULL));
}

/* Close, but do not unlock: the description is the parent's, too. */
void file_after_fork_child(struct hfi_conn *conn)
{
    struct file_conn *fc = (struct file_conn *)conn;
    atomic_ulong *words;
    int i, fd;

    for (i = 0; i < FILE_FDS_PIECES; i++) {
        words = atomic_load(&fc->fds.pieces[i]);
        for (fd = 0; words && fd < FILE_FDS_PIECE; fd++)
            if (atomic_load(&words[(unsigned)fd / FDS_BITS]) >>
                    ((unsigned)fd % FDS_BITS) &
                1)
                close(i * FILE_FDS_PIECE + fd);
    }
    if (fc->dir_fd >= 0)
        close(fc->dir_fd);
    if (fc->inotify_fd >= 0)
        close(fc->inotify_fd);
    file_fds_fini(&fc->fds);
    if (fc->parent_fd >= 0)
        close(fc->parent_fd);
    fc->dir_fd = fc->parent_fd = fc->inotify_fd = -1;
}
