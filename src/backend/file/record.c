/* SPDX-License-Identifier: MIT
 *
 * record.c - what stands in a lock file.
 *
 *   holdfast 1 broken=00000000000000000000
 *   fence=01784563200000000 mode=x since=01784563200000000 pid=4121
 *   owner=6f1c...
 *   note=web3:4121%20(rsync)
 *   ns=4026531836
 *   permits=3 slot=0
 *   kept=6b0c..9f from=81345 until=381345
 *   sum=5b1e09c2
 *
 * It is text, so that `cat` answers the question who has it.  The first line
 * has a fixed shape and its number a fixed place: hf_break() writes that alone,
 * without the lock.  The rest is written, whole, by a holder; the sum is of all
 * of it, so that who reads meanwhile does not take half of one record and half
 * of another for one.  The pid is that of the pid namespace `ns`.  The line of
 * permits is there with permits only, that of `kept` (keep.c) until the time is
 * over.  Records without one of these may be an older holdfast's.  An empty file
 * is a lock that was never taken by us; anything else is somebody's file and
 * stays as it is.
 *
 * Those who hold it together have a record each (holders.c), of the same shape;
 * it ends with a NUL, because the room has had other records before.
 */
#include "file.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/escape.h"

#include "base/banned.h"

#define RECORD_MAX  FILE_RECORD_MAX
#define FENCE_MAX   (UINT64_C(1) << 53) /* what a script can compute with */
#define RECORD_KEEP "._-+@:=,/()[] "

static const char record_head[] = "holdfast 1 broken=";
#define BROKEN_AT (sizeof(record_head) - 1)

/* How often a record is read that does not agree with its sum. */
#define LOOKS_MAX 200

/* FNV-1a, eight bytes at a time: a record is signed for every lock.  It is read
 * on the machine that wrote it, so the order of bytes does not matter. */
static uint32_t record_sum(const char *text, size_t len)
{
    uint64_t word, sum = UINT64_C(14695981039346656037);

    for (; len >= sizeof(word); len -= sizeof(word), text += sizeof(word)) {
        memcpy(&word, text, sizeof(word));
        sum = (sum ^ word) * UINT64_C(1099511628211);
        sum ^= sum >> 32;
    }
    for (; len; len--)
        sum = (sum ^ (unsigned char)*text++) * UINT64_C(1099511628211);
    return (uint32_t)(sum ^ sum >> 32);
}

/* Is it one record, as far as it tells?  The first line is not summed. */
static bool record_is_whole(const char *text)
{
    const char *from = strchr(text, '\n');
    const char *at = from ? strstr(from, "\nsum=") : NULL;

    return !at || strtoul(at + 5, NULL, 16) ==
                      record_sum(from + 1, (size_t)(at - from));
}

/* Read " name=value" up to a space or the end of the line, at *at. */
static bool record_field(char **at, const char *name, char end, char **ret)
{
    size_t len = strlen(name);
    char *stop;

    if (strncmp(*at, name, len) != 0)
        return false;
    *ret = *at + len;
    stop = strchr(*ret, end);
    if (!stop)
        return false;
    *stop = '\0';
    *at = stop + 1;
    return true;
}

static bool record_number(const char *text, uint64_t *ret)
{
    uint64_t n = 0;

    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || n >= FENCE_MAX)
            return false;
        n = n * 10 + (uint64_t)(*text - '0');
    }
    *ret = n;
    return n < FENCE_MAX;
}

static bool record_text(char *text, char *ret, size_t size)
{
    if (!hfi_unescape(text) || strlen(text) >= size)
        return false;
    memcpy(ret, text, strlen(text) + 1);
    return true;
}

/* The first line, the fence and the mode; *text is left at the latter. */
static bool record_parse_fence(char **text, struct file_record *ret)
{
    char *broken, *fence;

    if (!record_field(text, record_head, '\n', &broken) ||
        !record_field(text, "fence=", ' ', &fence) ||
        !record_number(broken, &ret->broken) ||
        !record_number(fence, &ret->fence) || memcmp(*text, "mode=", 5) != 0 ||
        (*text)[5] <= ' ' || (*text)[6] != ' ') /* one letter */
        return false;
    ret->mode = (*text)[5];
    return true;
}

/* What not every record has. */
static bool record_parse_more(char *text, struct file_record *ret)
{
    char *permits, *slot, *boot, *from, *until;
    uint64_t n, n_slot;

    if (record_field(&text, "permits=", ' ', &permits)) {
        if (!record_field(&text, "slot=", '\n', &slot) ||
            !record_number(permits, &n) || !record_number(slot, &n_slot) ||
            n > INT32_MAX || n_slot > INT32_MAX)
            return false;
        ret->permits = (int32_t)n;
        ret->slot = (int32_t)n_slot;
    }
    if (!record_field(&text, "kept=", ' ', &boot))
        return true;
    if (!record_field(&text, "from=", ' ', &from) ||
        !record_field(&text, "until=", '\n', &until) ||
        !record_text(boot, ret->boot, sizeof(ret->boot)) ||
        !record_number(from, &n) || !record_number(until, &n_slot))
        return false;
    ret->kept_from = (int64_t)n;
    ret->kept_until = (int64_t)n_slot;
    return true;
}

static bool record_parse_rest(char *text, struct file_record *ret)
{
    char *mode, *since, *pid, *owner, *note, *ns;
    uint64_t since_us, pid_number;

    if (!record_field(&text, "mode=", ' ', &mode) ||
        !record_field(&text, "since=", ' ', &since) ||
        !record_field(&text, "pid=", '\n', &pid) ||
        !record_field(&text, "owner=", '\n', &owner) ||
        !record_field(&text, "note=", '\n', &note) ||
        !record_number(since, &since_us) || !record_number(pid, &pid_number) ||
        !record_text(owner, ret->owner, sizeof(ret->owner)) ||
        !record_text(note, ret->note, sizeof(ret->note)))
        return false;
    ret->since_us = (int64_t)since_us;
    ret->pid = (long)pid_number;
    if (record_field(&text, "ns=", '\n', &ns) &&
        !record_number(ns, &ret->pid_ns))
        return false;
    return record_parse_more(text, ret);
}

static hf_status record_read(int fd, off_t from, struct file_record *ret,
                             bool all, bool *whole, struct hf_error *err)
{
    char text[RECORD_MAX + 8], *at = text;
    ssize_t len = pread(fd, text, RECORD_MAX, from);

    ret->fence = ret->broken = 0;
    ret->mode = '\0';
    ret->slot = 0;
    ret->kept_until = 0;
    ret->size = 0;
    if (all) {
        ret->owner[0] = ret->note[0] = ret->boot[0] = '\0';
        ret->since_us = ret->kept_from = 0;
        ret->pid = 0;
        ret->pid_ns = 0;
        ret->permits = 0;
    }
    if (len < 0 && errno == ESPIPE)
        return hfi_fail(err, HF_PROTOCOL, "the lock file is not a file");
    if (len < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "read a lock file");
    text[len] = '\0';
    ret->size = len;
    if (whole)
        *whole = record_is_whole(text);
    /* No text is an empty file, or one whose size outlived a crash of the
     * machine and whose data did not. */
    if (!text[0] ||
        (record_parse_fence(&at, ret) && (!all || record_parse_rest(at, ret))))
        return HF_OK;
    return hfi_fail(err, HF_PROTOCOL,
                    "something that is not a holdfast lock stands in the lock "
                    "file; move it away or choose another key");
}

hf_status file_record_read(int fd, struct file_record *ret,
                           struct hf_error *err)
{
    return record_read(fd, 0, ret, true, NULL, err);
}

/* What stays torn was left so by a machine that crashed, and is read as it
 * is. */
hf_status file_record_inspect(int fd, off_t at, struct file_record *ret,
                              struct hf_error *err)
{
    hf_status st = HF_OK;
    bool whole = false;
    int looks;

    for (looks = 0; looks < LOOKS_MAX && (!whole || st); looks++) {
        if (looks)
            sched_yield();
        st = record_read(fd, at, ret, true, &whole, err);
        if (st == HF_SYSTEM)
            break;
    }
    return st;
}

hf_status file_record_read_fence(int fd, off_t at, struct file_record *ret,
                                 struct hf_error *err)
{
    return record_read(fd, at, ret, false, NULL, err);
}

static char *record_put(char *at, const char *text)
{
    size_t len = strlen(text);

    memcpy(at, text, len);
    return at + len;
}

static char *record_put_hex(char *at, uint32_t n)
{
    int i;

    for (i = 28; i >= 0; i -= 4)
        *at++ = "0123456789abcdef"[n >> i & 15];
    return at;
}

static char *record_put_number(char *at, uint64_t n)
{
    char digits[20];
    size_t first = sizeof(digits);

    do {
        digits[--first] = (char)('0' + n % 10);
        n /= 10;
    } while (n);
    memcpy(at, digits + first, sizeof(digits) - first);
    return at + sizeof(digits) - first;
}

/* The fixed end of the first line. */
static char *record_put_mark(char *at, uint64_t fence)
{
    int i;

    memset(at, '0', 20);
    for (i = 19; fence; i--, fence /= 10)
        at[i] = (char)('0' + fence % 10);
    at[20] = '\n';
    return at + 21;
}

/* RLIMIT_FSIZE, as it was when a client was last opened: to ask for it at every
 * write would cost a sixth of a lock. */
static _Atomic rlim_t record_most = RLIM_INFINITY;

void file_record_learn_limit(void)
{
    struct rlimit most;

    atomic_store(&record_most, getrlimit(RLIMIT_FSIZE, &most) ? RLIM_INFINITY
                                                              : most.rlim_cur);
}

/* Write all or nothing.  A write that RLIMIT_FSIZE forbids would end the
 * process by SIGXFSZ, so it is not tried.  What was cut off, because the disk
 * is full, would be nobody's record and refused by everybody.  A NUL in front of
 * it makes it none: the lock was never taken, and its fence rises with the
 * clock. */
static hf_status record_store(int fd, const char *text, size_t len, off_t at,
                              struct hf_error *err)
{
    rlim_t most = atomic_load(&record_most);
    ssize_t done;

    if (most != RLIM_INFINITY && most < (rlim_t)at + len)
        return hfi_fail_errno(err, HF_SYSTEM, EFBIG,
                              "write into the lock file (see ulimit -f)");
    done = pwrite(fd, text, len, at);
    if (done == (ssize_t)len)
        return HF_OK;
    if (done < 0)
        done = -errno;
    else if (pwrite(fd, "", 1, at) != 1)
        done = -EIO;
    return hfi_fail_errno(err, HF_SYSTEM, done < 0 ? (int)-done : ENOSPC,
                          "write into the lock file");
}

/* The owner, which is the token if the claim has none, and the note. */
static char *record_put_names(char *at, const struct file_record *rec,
                              const struct hfi_claim *claim)
{
    const char *owner = claim ? claim->owner : rec->owner;
    const char *note = claim ? claim->note : rec->note;

    at = record_put(at, "\nowner=");
    if (owner)
        at += hfi_escape(at, HF_OWNER_MAX * 3 + 1, owner, RECORD_KEEP);
    else
        at = record_put(at, claim->token);
    at = record_put(at, "\nnote=");
    if (note)
        at += hfi_escape(at, HF_NOTE_MAX * 3 + 1, note, RECORD_KEEP);
    return at;
}

static char *record_put_more(char *at, const struct file_record *rec)
{
    if (rec->permits) {
        at = record_put(at, "permits=");
        at = record_put_number(at, (uint64_t)rec->permits);
        at = record_put(at, " slot=");
        at = record_put_number(at, (uint64_t)rec->slot);
        *at++ = '\n';
    }
    if (rec->kept_until) {
        at = record_put(record_put(at, "kept="), rec->boot);
        at = record_put(at, " from=");
        at = record_put_number(at, (uint64_t)rec->kept_from);
        at = record_put(at, " until=");
        at = record_put_number(at, (uint64_t)rec->kept_until);
        *at++ = '\n';
    }
    return at;
}

/* A shorter record is filled up with newlines, so that nothing of the longer
 * one before it is left.  Put together by hand: printf would take longer than
 * the write. */
hf_status file_record_write(int fd, off_t where, const struct file_record *rec,
                            const struct hfi_claim *claim, struct hf_error *err)
{
    char text[RECORD_MAX], *at = text, *from, *fence;
    ssize_t len;
    uint32_t sum;

    at = record_put(at, record_head);
    at = record_put_mark(at, rec->broken);
    from = at;
    fence = at = record_put(at, "fence=");
    at = record_put_number(at, rec->fence);
    len = at - fence;
    at = record_put(at, " mode=");
    *at++ = rec->mode;
    at = record_put(at, " since=");
    if ((uint64_t)rec->since_us == rec->fence) { /* as most often */
        memcpy(at, fence, (size_t)len);
        at += len;
    } else {
        at = record_put_number(at, (uint64_t)rec->since_us);
    }
    at = record_put(at, " pid=");
    at = record_put_number(at, (uint64_t)rec->pid);
    at = record_put_names(at, rec, claim);
    at = record_put(at, "\nns=");
    at = record_put_number(at, rec->pid_ns);
    *at++ = '\n';
    if (rec->permits || rec->kept_until)
        at = record_put_more(at, rec);
    sum = record_sum(from, (size_t)(at - from));
    at = record_put_hex(record_put(at, "sum="), sum);
    *at++ = '\n';
    if (where)
        *at++ = '\0';
    len = at - text;
    for (; !where && len < rec->size && len < RECORD_MAX; len++)
        text[len] = '\n';
    return record_store(fd, text, (size_t)len, where, err);
}

hf_status file_record_void(int fd, off_t at, struct hf_error *err)
{
    return record_store(fd, "", 1, at, err);
}

hf_status file_record_break(int fd, off_t at, uint64_t fence,
                            struct hf_error *err)
{
    char digits[21];

    snprintf(digits, sizeof(digits), "%020" PRIu64, fence);
    return record_store(fd, digits, 20, at + (off_t)BROKEN_AT, err);
}

/* Rising also when the file was lost or restored, as long as the clock has not
 * gone back behind the last grant. */
uint64_t file_next_fence(const struct file_record *rec, int64_t wall_us)
{
    uint64_t next = rec->fence + 1, clock = (uint64_t)wall_us;

    if (clock > next && clock < FENCE_MAX)
        next = clock;
    return next < FENCE_MAX ? next : 0;
}
