/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock file, without touching the lock.
 *
 * Holders with LOCK_SH keep a byte locked, and asking for that disturbs nobody.
 * An exclusive holder shows in that LOCK_SH cannot be had.  To try that is to
 * have it for an instant; other tries of ours see that and are made again
 * (file.c), only a foreign flock -n may fail for it.
 *
 * Whether an exclusive holder is the one that the record names is told by
 * /proc/locks, which lists process and file.  A process of another pid
 * namespace is not in it, or has another number there; then the record is
 * believed.  The device there is
 * that of the mounted file system, which is not what stat(2) says on some; it
 * is looked up in mountinfo.
 */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* How often a lock that changes meanwhile is looked at. */
#define LOOKS_MAX 16

/* One flock(2) lock of the machine. */
struct file_taken {
    dev_t device;
    uint64_t inode;
    long pid;
    bool shared;
};

struct file_taken_list {
    struct file_taken *items;
    size_t len, room;
    uint64_t pid_ns; /* in which the processes are counted */
};

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

static int taken_order(const void *a, const void *b)
{
    const struct file_taken *x = a, *y = b;

    return x->inode < y->inode ? -1 : x->inode > y->inode;
}

/* All flock(2) locks of the machine, ordered by file. */
static hf_status taken_read(struct file_taken_list *ret, struct hf_error *err)
{
    FILE *in = fopen("/proc/locks", "re");
    struct file_taken item;
    char line[256];
    bool ok = true;

    *ret = (struct file_taken_list){.pid_ns = file_pid_ns()};
    if (!in)
        return HF_OK; /* Foreign holders are then not shown. */
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

/* The first number behind `label` in a file of /proc, or -1. */
static long proc_number(const char *path, const char *label)
{
    FILE *in = fopen(path, "re");
    char line[256];
    long ret = -1;

    while (in && ret < 0 && fgets(line, sizeof(line), in))
        if (!strncmp(line, label, strlen(label)))
            ret = strtol(line + strlen(label), NULL, 10);
    if (in)
        fclose(in);
    return ret;
}

/* The device that /proc/locks shows for a file: that of its mount. */
static dev_t taken_device(int fd, const struct stat *sb)
{
    FILE *in = fopen("/proc/self/mountinfo", "re");
    dev_t ret = sb->st_dev;
    unsigned major, minor;
    char text[512];
    long mount, id;

    snprintf(text, sizeof(text), "/proc/self/fdinfo/%d", fd);
    mount = proc_number(text, "mnt_id:");
    while (in && mount >= 0 && fgets(text, sizeof(text), in))
        if (sscanf(text, "%ld %*d %u:%u", &id, &major, &minor) == 3 &&
            id == mount) {
            ret = makedev(major, minor);
            break;
        }
    if (in)
        fclose(in);
    return ret;
}

/* The first lock on the file, or NULL. */
static const struct file_taken *taken_find(const struct file_taken_list *list,
                                           int fd, const struct stat *sb)
{
    size_t low = 0, high = list->len, mid;
    dev_t device = 0;
    bool known = false;

    while (low < high) {
        mid = low + (high - low) / 2;
        if (list->items[mid].inode < sb->st_ino)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < list->len && list->items[low].inode == sb->st_ino; low++) {
        if (!known)
            device = taken_device(fd, sb);
        known = true;
        if (list->items[low].device == device)
            return &list->items[low];
    }
    return NULL;
}

static void describe_foreign(const struct file_taken *taken,
                             struct hf_info *ret)
{
    ret->held = true;
    ret->holders = 1;
    ret->shared = taken->shared;
    snprintf(ret->note, sizeof(ret->note), "pid %ld", taken->pid);
}

static void describe_ours(const struct file_record *rec, int32_t holders,
                          struct hf_info *ret)
{
    ret->held = true;
    ret->holders = holders;
    ret->shared = rec->mode == FILE_SHARED;
    ret->broken = rec->fence && rec->broken >= rec->fence;
    ret->since_ms = (hfi_wall_us() - rec->since_us) / 1000;
    if (ret->since_ms < 0)
        ret->since_ms = -1; /* The clock was set back. */
    memcpy(ret->owner, rec->owner, sizeof(ret->owner));
    memcpy(ret->note, rec->note, sizeof(ret->note));
}

/* Can the process that has the lock be the one of the record?  Numbers of two
 * pid namespaces cannot be compared. */
static bool inspect_same(const struct file_taken_list *list,
                         const struct file_taken *taken,
                         const struct file_record *rec)
{
    return taken->pid == rec->pid ||
           (rec->pid_ns && list->pid_ns && rec->pid_ns != list->pid_ns);
}

/* The process of ours that holds the file, as the record says that is now; 0 if
 * nobody. */
static int32_t inspect_holders(int fd, const struct file_record *rec,
                               const struct file_taken_list *list,
                               const struct file_taken *foreign)
{
    struct file_tally tally;

    if (rec->mode == FILE_EXCLUSIVE)
        return file_is_exclusive(fd);
    tally = file_count_holders(fd, FILE_COUNT_MAX);
    if (tally.count)
        return tally.count;
    return tally.hidden && foreign && inspect_same(list, foreign, rec);
}

/* Record and holders that belong together: the fence was the same before and
 * after.  What never rests is shown as it was last. */
static hf_status inspect_steady(int fd, const struct file_taken_list *list,
                                const struct file_taken *foreign,
                                struct file_record *rec, int32_t *holders,
                                struct hf_error *err)
{
    struct file_record after;
    hf_status st;
    int looks;

    for (looks = 0; looks < LOOKS_MAX; looks++) {
        st = file_record_inspect(fd, rec, err);
        if (st)
            return st;
        *holders = inspect_holders(fd, rec, list, foreign);
        st = file_record_inspect(fd, &after, err);
        if (st || after.fence == rec->fence)
            return st;
    }
    return HF_OK;
}

static hf_status look_at(int fd, const struct file_taken_list *taken,
                         struct hf_info *ret, struct hf_error *err)
{
    const struct file_taken *foreign;
    struct file_record rec;
    int32_t holders = 0;
    struct stat sb;
    hf_status st;

    if (fstat(fd, &sb) || !S_ISREG(sb.st_mode))
        return hfi_fail(err, HF_PROTOCOL, "the lock file is not a file");
    foreign = taken_find(taken, fd, &sb);
    st = inspect_steady(fd, taken, foreign, &rec, &holders, err);
    if (st)
        return st;
    ret->fence = rec.fence;
    ret->since_ms = ret->left_ms = -1;
    ret->waiters = file_count_waiters(fd, FILE_COUNT_MAX);
    if (holders && (!foreign || rec.mode != FILE_EXCLUSIVE ||
                    inspect_same(taken, foreign, &rec)))
        describe_ours(&rec, holders, ret);
    else if (foreign)
        describe_foreign(foreign, ret);
    return HF_OK;
}

hf_status file_inspect(struct hfi_conn *conn, const char *key,
                       struct hf_info *ret, int64_t deadline,
                       struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_taken_list taken = {0};
    hf_status st = file_find_dir(fc, false, err);
    int fd;

    (void)deadline;
    if (st)
        return hfi_wrap(err, st, "%s", conn->endpoint);
    if (fc->dir_fd < 0)
        return HF_OK;
    fd = file_open_key(fc->dir_fd, key, O_RDONLY | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return HF_OK;
    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "%s: open the lock file",
                              conn->endpoint);
    st = taken_read(&taken, err);
    if (!st)
        st = look_at(fd, &taken, ret, err);
    hfi_free(taken.items);
    close(fd);
    return st;
}

/* ---- listing ----------------------------------------------------------- */

struct file_listing {
    const struct file_taken_list *taken;
    const char *prefix;
    hf_list_fn *fn;
    void *arg;
    bool stop;
};

static void list_file(struct file_listing *ls, int dir_fd, const char *name,
                      const char *below)
{
    struct hf_info info = HF_INFO_INIT;
    char path[FILE_PATH_MAX];
    int fd;

    if (snprintf(path, sizeof(path), "%s%s", below, name) >=
            (int)sizeof(path) ||
        !file_key(path) || strncmp(path, ls->prefix, strlen(ls->prefix)) != 0)
        return;
    fd = openat(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    if (!look_at(fd, ls->taken, &info, NULL) && info.held)
        ls->stop = !ls->fn(ls->arg, path, &info);
    close(fd);
}

static void list_dir(struct file_listing *ls, int dir_fd, const char *below)
{
    char path[FILE_PATH_MAX];
    struct dirent *entry;
    DIR *dir;
    int fd;
    size_t len;

    dir = fdopendir(dir_fd);
    if (!dir) {
        close(dir_fd);
        return;
    }
    while (!ls->stop && (entry = readdir(dir))) {
        len = strlen(entry->d_name);
        if (entry->d_name[len - 1] != '~') {
            list_file(ls, dirfd(dir), entry->d_name, below);
            continue;
        }
        if (snprintf(path, sizeof(path), "%s%s/", below, entry->d_name) >=
            (int)sizeof(path))
            continue;
        fd = openat(dirfd(dir), entry->d_name,
                    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd >= 0)
            list_dir(ls, fd, path);
    }
    closedir(dir);
}

hf_status file_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                    void *arg, int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_taken_list taken;
    struct file_listing ls = {&taken, prefix, fn, arg, false};
    hf_status st = file_find_dir(fc, false, err);
    int fd;

    (void)deadline;
    if (st)
        return hfi_wrap(err, st, "%s", conn->endpoint);
    if (fc->dir_fd < 0)
        return HF_OK;
    st = taken_read(&taken, err);
    if (st)
        return st;
    fd = openat(fc->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        list_dir(&ls, fd, "");
    else
        st = hfi_fail_errno(err, HF_SYSTEM, errno, "%s: list", conn->endpoint);
    hfi_free(taken.items);
    return st;
}
