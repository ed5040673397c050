/* SPDX-License-Identifier: MIT
 *
 * holders.c - those who hold a lock file together: each keeps a byte, and has
 * a record of its own.
 *
 * Behind the record of the lock, from FILE_TABLE_AT on, there is room for as
 * many records as held it together at once.  The byte says that the holder
 * lives, the record with the same index who it is.  What a dead one left there
 * means nothing, unless it is kept.  A grant that was ended by force has no
 * record any more, though its holder may still have the byte.
 *
 * INVARIANTS
 *  (1) Records are written and marked with the gate only, and by nobody else
 *      than the one who has the byte, but for hf_break() and hf_break_force().
 *  (2) The place of one that is kept is taken by nobody before that is over.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/banned.h"

#define FILE_TABLE_AT 4096

/* How many may hold it together. */
#define FILE_HOLDERS_MAX (1 << 20)

off_t file_holder_at(int32_t index)
{
    return FILE_TABLE_AT + (off_t)index * FILE_RECORD_MAX;
}

/* How many places there have ever been. */
static int32_t holders_size(int fd)
{
    off_t end = lseek(fd, 0, SEEK_END);

    if (end <= FILE_TABLE_AT)
        return 0;
    end = (end - FILE_TABLE_AT + FILE_RECORD_MAX - 1) / FILE_RECORD_MAX;
    return end < FILE_HOLDERS_MAX ? (int32_t)end : FILE_HOLDERS_MAX;
}

/* Is the holder in that place gone, and kept? */
static bool holders_is_kept(int fd, int32_t index)
{
    struct file_record rec;

    return !file_record_inspect(fd, file_holder_at(index), &rec, NULL) &&
           file_kept_left(&rec) > 0;
}

/* The next byte that may be free, behind one that is locked; behind the last if
 * there is none. */
static int32_t holders_skip(int fd, int32_t index)
{
    struct flock hit = {.l_type = F_WRLCK,
                        .l_whence = SEEK_SET,
                        .l_start = FILE_HOLD_AT + index,
                        .l_len = 1};
    off_t next;

    if (fcntl(fd, F_OFD_GETLK, &hit) || hit.l_type == F_UNLCK)
        return index + 1;
    next = hit.l_start + hit.l_len - FILE_HOLD_AT;
    return !hit.l_len || next > FILE_HOLDERS_MAX ? FILE_HOLDERS_MAX
                                                 : (int32_t)next;
}

/* Lock the byte of a place that nobody has. */
static hf_status holders_take(int fd, const struct file_record *lock,
                              int32_t *ret, struct hf_error *err)
{
    bool kept = file_kept_left(lock) > 0;
    int32_t index = 0;

    while (index < FILE_HOLDERS_MAX) {
        if (file_byte(fd, FILE_HOLD_AT + index, F_WRLCK)) {
            *ret = index;
            if (!kept || !holders_is_kept(fd, index))
                return HF_OK;
            file_byte(fd, FILE_HOLD_AT + index++, F_UNLCK);
        } else if (errno == EAGAIN || errno == EACCES) {
            index = holders_skip(fd, index);
        } else {
            return hfi_fail_errno(err, HF_SYSTEM, errno, "lock a byte");
        }
    }
    return HF_BUSY;
}

hf_status file_holder_add(struct file_grant *own,
                          const struct file_record *lock,
                          const struct file_record *rec,
                          const struct hfi_claim *claim, struct hf_error *err)
{
    struct file_record mine = *rec;
    hf_status st = holders_take(own->fd, lock, &own->index, err);

    if (st) {
        own->index = -1;
        return st;
    }
    own->bytes = true;
    mine.broken = 0;
    mine.kept_from = mine.kept_until = 0;
    return file_record_write(own->fd, file_holder_at(own->index), &mine, claim,
                             err);
}

void file_holders_each(int fd, const struct file_record *lock,
                       file_holder_fn *fn, void *arg)
{
    int32_t index, size = holders_size(fd);
    bool kept = file_kept_left(lock) > 0, lives, more = true;
    struct file_record rec;

    for (index = 0; more && index < size; index++) {
        lives = file_is_taken(fd, FILE_HOLD_AT + index);
        if ((!lives && !kept) ||
            file_record_inspect(fd, file_holder_at(index), &rec, NULL) ||
            !rec.fence)
            continue;
        if (!lives && !file_kept_left(&rec))
            continue;
        if (lives)
            rec.kept_until = 0;
        more = fn(arg, index, &rec);
    }
}

int32_t file_holders_ended(int fd, const struct file_record *lock)
{
    int32_t index, size = holders_size(fd), ended = 0;
    struct file_record rec;

    if (file_kept_left(lock))
        return -1;
    for (index = 0; index < size; index++) {
        if (!file_is_taken(fd, FILE_HOLD_AT + index))
            continue;
        if (file_record_inspect(fd, file_holder_at(index), &rec, NULL) ||
            rec.fence)
            return -1;
        ended++;
    }
    return ended;
}
