/* SPDX-License-Identifier: MIT
 *
 * file_record.c - what stands in a lock file.
 *
 *   holdfast 1 broken=00000000000000000000
 *   fence=01784563200000000 mode=x since=01784563200000000 pid=4121
 *   owner=6f1c...
 *   note=web3:4121%20(rsync)
 *
 * It is text, so that `cat` answers the question who has it.  The first line
 * has a fixed shape and its number a fixed place: hf_break() writes that
 * alone, without the lock.  The rest is written, whole, by a holder.  An empty
 * file is a lock that was never taken by us; anything else is somebody's file
 * and stays as it is.
 */
#include "file.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

#include "../env.h"
#include "../escape.h"

#include "../banned.h"

#define RECORD_MAX  2048
#define FENCE_MAX   (UINT64_C(1) << 53) /* what a script can compute with */
#define RECORD_KEEP "._-+@:=,/()[] "

static const char record_head[] = "holdfast 1 broken=";
#define BROKEN_AT (sizeof(record_head) - 1)

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

static bool record_parse(char *text, struct file_record *ret)
{
    char *broken, *fence, *mode, *since, *pid, *owner, *note;
    uint64_t since_us, pid_number;

    if (!record_field(&text, record_head, '\n', &broken) ||
        !record_field(&text, "fence=", ' ', &fence) ||
        !record_field(&text, "mode=", ' ', &mode) ||
        !record_field(&text, "since=", ' ', &since) ||
        !record_field(&text, "pid=", '\n', &pid) ||
        !record_field(&text, "owner=", '\n', &owner) ||
        !record_field(&text, "note=", '\n', &note))
        return false;
    if (!record_number(broken, &ret->broken) ||
        !record_number(fence, &ret->fence) ||
        !record_number(since, &since_us) || !record_number(pid, &pid_number) ||
        !record_text(owner, ret->owner, sizeof(ret->owner)) ||
        !record_text(note, ret->note, sizeof(ret->note)))
        return false;
    ret->mode = mode[0];
    ret->since_us = (int64_t)since_us;
    ret->pid = (long)pid_number;
    return true;
}

hf_status file_record_read(int fd, struct file_record *ret,
                           struct hf_error *err)
{
    char text[RECORD_MAX + 1];
    ssize_t len = pread(fd, text, RECORD_MAX, 0);

    *ret = (struct file_record){0};
    if (len < 0 && errno == ESPIPE)
        return hfi_fail(err, HF_PROTOCOL, "the lock file is not a file");
    if (len < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "read a lock file");
    text[len] = '\0';
    ret->size = len;
    /* No text is an empty file, or one whose size outlived a crash of the
     * machine and whose data did not. */
    if (!text[0] || record_parse(text, ret))
        return HF_OK;
    return hfi_fail(err, HF_PROTOCOL,
                    "something that is not a holdfast lock stands in the lock "
                    "file; move it away or choose another key");
}

/* A shorter record is filled up with newlines, so that nothing of the longer
 * one before it is left. */
hf_status file_record_write(int fd, const struct file_record *rec,
                            struct hf_error *err)
{
    char text[RECORD_MAX], owner[HF_OWNER_MAX * 3 + 4],
        note[HF_NOTE_MAX * 3 + 4];
    ssize_t done;
    int len;

    hfi_escape(owner, sizeof(owner), rec->owner, RECORD_KEEP);
    hfi_escape(note, sizeof(note), rec->note, RECORD_KEEP);
    len = snprintf(text, sizeof(text),
                   "%s%020d\nfence=%" PRIu64 " mode=%c since=%" PRId64
                   " pid=%ld\nowner=%s\nnote=%s\n",
                   record_head, 0, rec->fence, rec->mode, rec->since_us,
                   rec->pid, owner, note);
    for (; len < rec->size && len < RECORD_MAX; len++)
        text[len] = '\n';
    done = pwrite(fd, text, (size_t)len, 0);
    if (done == len)
        return HF_OK;
    return hfi_fail_errno(err, HF_SYSTEM, done < 0 ? errno : ENOSPC,
                          "write the fence into the lock file");
}

hf_status file_record_break(int fd, uint64_t fence, struct hf_error *err)
{
    char digits[21];

    snprintf(digits, sizeof(digits), "%020" PRIu64, fence);
    if (pwrite(fd, digits, 20, BROKEN_AT) == 20)
        return HF_OK;
    return hfi_fail_errno(err, HF_SYSTEM, errno, "write into the lock file");
}

/* Rising also when the file was lost or restored, as long as the clock has not
 * gone back behind the last grant. */
uint64_t file_next_fence(const struct file_record *rec)
{
    uint64_t next = rec->fence + 1, clock = (uint64_t)hfi_wall_us();

    if (clock > next && clock < FENCE_MAX)
        next = clock;
    return next < FENCE_MAX ? next : 0;
}
