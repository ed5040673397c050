/* SPDX-License-Identifier: MIT
 *
 * file_look.c - who holds a lock file, without touching the lock.
 *
 * To try the lock in order to see whether it is taken would make it so for a
 * moment, and somebody's own try fail.  So the kernel's list of locks is read:
 * /proc/locks names the file and the process of each, foreign ones too.  The
 * record in the file then says who that is to people, if it was written by
 * the same process.
 *
 * Processes of another pid namespace are not in that list; their locks exclude
 * all the same, only this view does not show them.
 */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../env.h"
#include "../mem.h"

#include "../banned.h"

/* One flock(2) lock of the machine. */
struct file_taken {
    uint64_t inode;
    long pid;
    bool shared;
};

struct file_taken_list {
    struct file_taken *items;
    size_t len, room;
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
 * arrow.  The device is not compared: some file systems show another one here
 * than in stat(2), and a wrong match needs the same inode number and a lock. */
static bool taken_parse(const char *line, struct file_taken *ret)
{
    char mode[8];
    unsigned long inode;
    long pid;

    if (sscanf(line, "%*d: FLOCK ADVISORY %7s %ld %*x:%*x:%lu", mode, &pid,
               &inode) != 3)
        return false;
    *ret = (struct file_taken){inode, pid, !strcmp(mode, "READ")};
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

    *ret = (struct file_taken_list){0};
    if (!in)
        return hfi_fail_errno(err, HF_UNSUPPORTED, errno,
                              "file: /proc/locks shows who holds a lock");
    while (ok && fgets(line, sizeof(line), in))
        if (taken_parse(line, &item))
            ok = taken_add(ret, item);
    fclose(in);
    if (!ok) {
        hfi_free(ret->items);
        return hfi_nomem(err);
    }
    if (ret->len)
        qsort(ret->items, ret->len, sizeof(*ret->items), taken_order);
    return HF_OK;
}

/* The first lock on a file, and how many there are. */
static const struct file_taken *taken_find(const struct file_taken_list *list,
                                           uint64_t inode, int32_t *count)
{
    size_t low = 0, high = list->len, mid;

    while (low < high) {
        mid = low + (high - low) / 2;
        if (list->items[mid].inode < inode)
            low = mid + 1;
        else
            high = mid;
    }
    for (*count = 0; low + (size_t)*count < list->len &&
                     list->items[low + (size_t)*count].inode == inode;)
        ++*count;
    return *count ? &list->items[low] : NULL;
}

/* What the record says is the holder's word only if a holder wrote it. */
static bool taken_by(const struct file_taken *first, int32_t count, long pid)
{
    int32_t i;

    for (i = 0; i < count; i++)
        if (first[i].pid == pid)
            return true;
    return false;
}

static void file_describe(const struct file_record *rec,
                          const struct file_taken *first, int32_t count,
                          struct hf_info *ret)
{
    ret->fence = rec->fence;
    ret->left_ms = ret->since_ms = ret->waiters = -1;
    ret->held = count > 0;
    ret->holders = count;
    if (!count)
        return;
    ret->shared = first->shared && rec->mode != FILE_OWNED;
    if (!taken_by(first, count, rec->pid)) {
        ret->shared = first->shared;
        snprintf(ret->note, sizeof(ret->note), "pid %ld", first->pid);
        return;
    }
    ret->since_ms = (hfi_wall_us() - rec->since_us) / 1000;
    if (ret->since_ms < 0)
        ret->since_ms = -1; /* The clock was set back. */
    memcpy(ret->owner, rec->owner, sizeof(ret->owner));
    memcpy(ret->note, rec->note, sizeof(ret->note));
}

static hf_status look_at(int fd, const struct file_taken_list *taken,
                         struct hf_info *ret, struct hf_error *err)
{
    const struct file_taken *first;
    struct file_record rec;
    struct stat sb;
    int32_t count;
    hf_status st;

    if (fstat(fd, &sb) || !S_ISREG(sb.st_mode))
        return hfi_fail(err, HF_PROTOCOL, "the lock file is not a file");
    first = taken_find(taken, sb.st_ino, &count);
    st = file_record_read(fd, &rec, err);
    if (!st)
        file_describe(&rec, first, count, ret);
    return st;
}

hf_status file_inspect(struct hfi_conn *conn, const char *key,
                       struct hf_info *ret, int64_t deadline,
                       struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    int fd = file_open_key(fc->dir_fd, key, O_RDONLY | O_NONBLOCK);
    struct file_taken_list taken = {0};
    hf_status st;

    (void)deadline;
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

/* A name in the directory.  Most locks are free and are passed over without
 * opening them. */
static void list_file(struct file_listing *ls, int dir_fd, const char *name,
                      uint64_t inode, const char *below)
{
    struct hf_info info = HF_INFO_INIT;
    char path[FILE_PATH_MAX];
    int32_t count;
    int fd;

    if (!taken_find(ls->taken, inode, &count) ||
        snprintf(path, sizeof(path), "%s%s", below, name) >=
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
            list_file(ls, dirfd(dir), entry->d_name, entry->d_ino, below);
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
    hf_status st = taken_read(&taken, err);
    int fd;

    (void)deadline;
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

/* ---- breaking ---------------------------------------------------------- */

/* The holder has the kernel's lock and nobody can take that away; it is asked
 * to, and lets go at its next heartbeat, having been told that it lost. */
hf_status file_break(struct hfi_conn *conn, const char *key, uint64_t fence,
                     int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct hf_info info = {0};
    hf_status st = file_inspect(conn, key, &info, deadline, err);
    int fd;

    if (st)
        return st;
    if (!info.held || info.fence != fence || !info.owner[0])
        return hfi_fail(err, HF_LOST, "%s: that grant is over", conn->endpoint);
    fd = file_open_key(fc->dir_fd, key, O_RDWR | O_NONBLOCK);
    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "%s: open the lock file",
                              conn->endpoint);
    st = file_record_break(fd, fence, err);
    close(fd);
    return st;
}
