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

bool file_mark(int fd, off_t range, short type, const struct hfi_claim *claim)
{
    uint64_t slot = strtoull(claim->token + HFI_TOKEN_LEN - 8, NULL, 16);

    return file_byte(fd, range + (off_t)(slot % FILE_SLOTS), type);
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
