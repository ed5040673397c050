/* SPDX-License-Identifier: MIT
 *
 * bytes.c - the bytes beyond the end of a lock file: who holds, who waits, who
 * looks, who writes.
 *
 * They are open file description locks for writing, which flock(2) does not see
 * and the kernel drops when the descriptor is closed; so nothing of a process
 * that died is ever counted.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/file.h>

#include "base/env.h"

#include "base/banned.h"

/* How often the gate is tried for, which everybody holds for moments only:
 * first as fast as can be, then, since its owner may be waiting for a
 * processor, once a millisecond. */
#define FILE_GATE_FAST 5000
#define FILE_GATE_MAX  (FILE_GATE_FAST + 200)

bool file_byte(int fd, off_t at, short type)
{
    struct flock byte = {
        .l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};

    return fcntl(fd, F_OFD_SETLK, &byte) == 0;
}

/* Ours are single bytes, by open file description (pid -1), locked for writing:
 * who may only read the file cannot pretend to be one of us.  The system names
 * any one lock of a range, not the first, so the parts on both sides of it are
 * searched.  Behind a larger one of a stranger, which may reach to the end of
 * all files (length 0), others can be that are not seen.  Each question takes
 * as long as there are locks, so not more than `most` are counted. */
static struct file_tally file_count(int fd, off_t first, off_t behind, int most)
{
    struct {
        off_t from, to;
    } rest[FILE_COUNT_MAX + 1] = {{first, behind}};
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
    return file_count(fd, FILE_HOLD_AT, FILE_WAIT_AT, most);
}

int32_t file_count_waiters(int fd, int most)
{
    return file_count(fd, FILE_WAIT_AT, FILE_DOOR_AT, most).count;
}

bool file_is_taken(int fd, off_t at)
{
    return file_count(fd, at, at + 1, 1).count;
}

/* One of the 256 bytes of a moment. */
static off_t file_time(off_t range, int64_t ms, const struct hfi_claim *claim)
{
    uint64_t low = strtoull(claim->token + HFI_TOKEN_LEN - 8, NULL, 16);

    return range + ms % (FILE_TIMES / 256) * 256 +
           (off_t)((low + claim->nth) % 256);
}

/* The byte says until when the door is closed.  A process that is stopped does
 * not renew it, and one that dies takes it along. */
static void file_close_door(struct file_grant *own,
                            const struct hfi_claim *claim)
{
    int64_t lease = 2 * claim->poll_ms + 2000, now = hfi_now();
    off_t at = file_time(FILE_DOOR_AT, now + lease, claim), old = own->door;

    if (own->door_ms - now > lease / 2 || !file_byte(own->fd, at, F_WRLCK))
        return;
    own->bytes = true;
    own->door = at;
    own->door_ms = now + lease;
    if (old && old != at)
        file_byte(own->fd, old, F_UNLCK);
}

void file_show_waiting(struct file_grant *own, const struct hfi_claim *claim)
{
    uint64_t number = strtoull(claim->token + HFI_TOKEN_LEN - 8, NULL, 16);
    off_t at = FILE_WAIT_AT + (off_t)(number % FILE_SLOTS);

    if (!own->arrived)
        own->arrived = hfi_now();
    /* The door first: whoever sees the waiter finds it closed. */
    if (!claim->shared && !claim->permits) {
        at = file_time(FILE_WRITER_AT, own->arrived, claim);
        file_close_door(own, claim);
    }
    if (!own->waits && file_byte(own->fd, at, F_WRLCK))
        own->bytes = own->waits = true;
}

/* The ranges of waiters, writers and doors are next to each other. */
void file_stop_waiting(struct file_grant *own)
{
    struct flock all = {
        .l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = FILE_WAIT_AT};

    if (own->waits || own->door)
        fcntl(own->fd, F_OFD_SETLK, &all);
    own->waits = false;
    own->door = 0;
    own->door_ms = own->arrived = 0;
}

/* A reader that waits comes after the writers that were there before it only,
 * or writers that never cease would keep it out for ever. */
bool file_door_is_closed(int fd, int64_t arrived)
{
    const int64_t moments = FILE_TIMES / 256;

    if (!file_count(fd, FILE_DOOR_AT + hfi_now() % moments * 256,
                    FILE_DOOR_AT + FILE_TIMES, 1)
             .count)
        return false;
    return !arrived || file_count(fd, FILE_WRITER_AT,
                                  FILE_WRITER_AT + arrived % moments * 256, 1)
                           .count;
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

/* Is it held exclusively, by anybody?  To see that we try LOCK_SH, and may have
 * it for an instant; the byte keeps the tries of others from being spoilt. */
bool file_is_exclusive(int fd)
{
    bool busy;
    int looks;

    for (looks = 0; !file_byte(fd, FILE_LOOK_AT, F_RDLCK); looks++) {
        if (looks == FILE_LOOKS_MAX)
            return true; /* The process that keeps us out found it busy. */
        sched_yield();
    }
    busy = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    if (!busy)
        flock(fd, LOCK_UN);
    file_byte(fd, FILE_LOOK_AT, F_UNLCK);
    return busy;
}

void file_unlock(int fd)
{
    struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

    fcntl(fd, F_OFD_SETLK, &all);
    flock(fd, LOCK_UN);
}
