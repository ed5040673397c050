/* SPDX-License-Identifier: MIT
 *
 * taken.c - all flock(2) locks of the machine, by file and process.
 *
 * /proc/locks lists process and file.  A process of another pid namespace is not
 * in it, or has another number there; then the record is believed.  The device
 * there is that of the mounted file system, which is not what stat(2) says on
 * some; it is looked up in mountinfo.
 */
#include "file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/alloc.h"

#include "base/banned.h"

static bool taken_add(struct file_taken_list *list, struct file_taken item)
{
    struct file_taken *grown;
    size_t room;

    if (list->len == list->room) {
        room = list->room ? list->room * 2 : 64;
        grown = hfi_realloc(list->items, room * sizeof(*grown));
        if (!grown)
            return false;
        list->items = grown;
        list->room = room;
    }
    list->items[list->len++] = item;
    return true;
}

/* "12: FLOCK  ADVISORY  WRITE 4121 08:01:131077 0 EOF"; blocked ones have an
 * arrow. */
static bool taken_parse(const char *line, struct file_taken *ret)
{
    char mode[8];
    unsigned major, minor;
    unsigned long inode;
    long pid;

    if (sscanf(line, "%*d: FLOCK ADVISORY %7s %ld %x:%x:%lu", mode, &pid,
               &major, &minor, &inode) != 5)
        return false;
    *ret = (struct file_taken){makedev(major, minor), inode, pid,
                               !strcmp(mode, "READ")};
    return true;
}

/* By file; the rest is only to have the locks of one next to each other. */
static int taken_order(const void *a, const void *b)
{
    const struct file_taken *x = a, *y = b;

    if (x->inode != y->inode)
        return x->inode < y->inode ? -1 : 1;
    return x->device < y->device ? -1 : x->device > y->device;
}

bool file_ran_out(void)
{
    return errno == EMFILE || errno == ENFILE || errno == ENOMEM;
}

hf_status file_proc_open(const char *path, FILE **ret, struct hf_error *err)
{
    *ret = fopen(path, "re");
    if (!*ret && file_ran_out())
        return hfi_fail_errno(err, HF_SYSTEM, errno, "open %s", path);
    return HF_OK;
}

hf_status file_taken_read(struct file_taken_list *ret, struct hf_error *err)
{
    struct file_taken item;
    char line[256];
    bool ok = true;
    hf_status st;
    FILE *in;

    *ret = (struct file_taken_list){.pid_ns = file_pid_ns()};
    st = file_proc_open("/proc/locks", &in, err);
    if (st || !in)
        return st; /* HF_OK: foreign holders are not shown. */
    while (ok && fgets(line, sizeof(line), in))
        if (taken_parse(line, &item))
            ok = taken_add(ret, item);
    fclose(in);
    if (!ok) {
        hfi_free(ret->items);
        *ret = (struct file_taken_list){0};
        return hfi_nomem(err);
    }
    if (ret->len)
        qsort(ret->items, ret->len, sizeof(*ret->items), taken_order);
    return HF_OK;
}

/* The number of the mount that a descriptor is on; -1 if the system does not
 * tell. */
static hf_status taken_mount(int fd, long *ret, struct hf_error *err)
{
    const char *label = "mnt_id:";
    char text[256];
    hf_status st;
    FILE *in;

    *ret = -1;
    snprintf(text, sizeof(text), "/proc/self/fdinfo/%d", fd);
    st = file_proc_open(text, &in, err);
    while (in && *ret < 0 && fgets(text, sizeof(text), in))
        if (!strncmp(text, label, strlen(label)))
            *ret = strtol(text + strlen(label), NULL, 10);
    if (in)
        fclose(in);
    return st;
}

/* The device that /proc/locks shows for a file: that of its mount.  Only one
 * file of /proc is open at a time. */
static hf_status taken_device(int fd, dev_t *ret, struct hf_error *err)
{
    unsigned major, minor;
    FILE *in = NULL;
    char text[512];
    struct stat sb;
    long mount, id;
    hf_status st = taken_mount(fd, &mount, err);

    *ret = fstat(fd, &sb) ? 0 : sb.st_dev;
    if (!st && mount >= 0)
        st = file_proc_open("/proc/self/mountinfo", &in, err);
    while (in && fgets(text, sizeof(text), in))
        if (sscanf(text, "%ld %*d %u:%u", &id, &major, &minor) == 3 &&
            id == mount) {
            *ret = makedev(major, minor);
            break;
        }
    if (in)
        fclose(in);
    return st;
}

hf_status file_taken_find(const struct file_taken_list *list, int fd,
                          uint64_t inode, const struct file_taken **ret,
                          size_t *n, struct hf_error *err)
{
    size_t low = 0, high = list->len, mid;
    hf_status st = HF_OK;
    dev_t device = 0;

    while (low < high) {
        mid = low + (high - low) / 2;
        if (list->items[mid].inode < inode)
            low = mid + 1;
        else
            high = mid;
    }
    *ret = NULL;
    *n = 0;
    for (; low < list->len && list->items[low].inode == inode; low++) {
        if (!device)
            st = taken_device(fd, &device, err);
        if (st)
            return st;
        if (list->items[low].device != device)
            continue;
        if (!*ret)
            *ret = &list->items[low];
        ++*n;
    }
    return HF_OK;
}

/* Numbers of two pid namespaces cannot be compared. */
bool file_taken_by(const struct file_taken_list *list,
                   const struct file_taken *taken,
                   const struct file_record *rec)
{
    return taken->pid == rec->pid ||
           (rec->pid_ns && list->pid_ns && rec->pid_ns != list->pid_ns);
}
