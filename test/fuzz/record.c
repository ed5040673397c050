/* SPDX-License-Identifier: MIT
 *
 * record.c - any bytes as a lock file and as the name of one: refused, or read
 * as something that is read the same when it is written again.
 */
#include "backend/file/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void must(bool good)
{
    if (!good)
        abort();
}

static void check_again(int fd, const struct file_record *rec)
{
    struct hfi_claim claim = {.owner = rec->owner, .note = rec->note};
    struct file_record again, fence;

    /* It is written over the old one, which may have been longer. */
    must(!file_record_write(fd, 0, rec, &claim, NULL));
    must(!file_record_read(fd, &fence, NULL));
    must(!file_record_inspect(fd, 0, &again, NULL));
    must(!file_record_read_fence(fd, 0, &fence, NULL));
    must(again.fence == rec->fence && fence.fence == rec->fence);
    must(again.mode == rec->mode && again.pid == rec->pid);
    must(again.since_us == rec->since_us && again.broken == rec->broken);
    must(!strcmp(again.owner, rec->owner) && !strcmp(again.note, rec->note));
    must(!file_record_break(fd, 0, rec->fence, NULL));
    must(!file_record_read_fence(fd, 0, &fence, NULL));
    must(fence.broken == rec->fence);
    must(!file_next_fence(rec, 1) || file_next_fence(rec, 1) > rec->fence);
}

/* A path that has a key is the path of that key. */
static void check_name(const uint8_t *bytes, size_t len)
{
    char path[FILE_PATH_MAX], key[FILE_PATH_MAX];

    if (len >= FILE_PATH_MAX)
        return;
    memcpy(key, bytes, len);
    key[len] = '\0';
    memcpy(path, key, len + 1);
    if (!file_key(key) || !*key || strlen(key) > HF_KEY_MAX)
        return;
    file_path(path, key);
    must(strlen(path) < FILE_PATH_MAX && file_key(path));
    must(!strcmp(path, key));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    static int fd = -1;
    struct file_record rec;

    if (fd < 0)
        fd = memfd_create("record", MFD_CLOEXEC);
    must(fd >= 0 && !ftruncate(fd, 0));
    must(pwrite(fd, bytes, len, 0) == (ssize_t)len);
    if (!file_record_read(fd, &rec, NULL) && rec.mode && rec.fence)
        check_again(fd, &rec);
    check_name(bytes, len);
    return 0;
}
