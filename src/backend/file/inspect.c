/* SPDX-License-Identifier: MIT
 *
 * inspect.c - who holds a lock file, without touching the lock.
 *
 * Holders with LOCK_SH keep a byte locked, and asking for that disturbs nobody.
 * An exclusive holder shows in that LOCK_SH cannot be had.  To try that is to
 * have it for an instant; other tries of ours see that and are made again
 * (file.c), only a foreign flock -n may fail for it.  Whether an exclusive
 * holder is the one that the record names is told by /proc/locks (taken.c), and
 * so are the strangers.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"

#include "base/banned.h"

/* How often a lock that changes meanwhile is looked at. */
#define LOOKS_MAX 16

/* What is found: the holders, and what is said of them all. */
struct file_look {
    struct hf_info *items; /* free it */
    long *pids;            /* of ours, as their records say; free it */
    size_t len, room;
    uint64_t fence; /* of the last grant */
    int32_t waiters;
    int32_t uncounted; /* holders that have no record of their own */
    bool nomem;
};

static void look_fini(struct file_look *look)
{
    hfi_free(look->items);
    hfi_free(look->pids);
}

/* Room for one more, zeroed; NULL if there is no memory. */
static struct hf_info *look_add(struct file_look *look, long pid)
{
    size_t room = look->room ? look->room * 2 : 4;
    struct hf_info *items;
    long *pids;

    if (look->len == look->room) {
        items = hfi_realloc(look->items, room * sizeof(*items));
        if (items)
            look->items = items;
        pids = hfi_realloc(look->pids, room * sizeof(*pids));
        if (pids)
            look->pids = pids;
        look->nomem = !items || !pids;
        if (look->nomem)
            return NULL;
        look->room = room;
    }
    look->pids[look->len] = pid;
    items = &look->items[look->len++];
    *items = (struct hf_info){.size = sizeof(*items),
                              .held = true,
                              .left_ms = -1,
                              .since_ms = -1,
                              .slot = -1};
    return items;
}

static void look_add_foreign(struct file_look *look,
                             const struct file_taken *taken)
{
    struct hf_info *item = look_add(look, 0);

    if (!item)
        return;
    item->shared = taken->shared; /* It has no fence. */
    snprintf(item->note, sizeof(item->note), "pid %ld", taken->pid);
}

static void look_add_ours(struct file_look *look, const struct file_record *rec)
{
    struct hf_info *item = look_add(look, rec->pid);

    if (!item)
        return;
    item->shared = rec->mode == FILE_SHARED;
    item->fence = rec->fence;
    item->broken = rec->fence && rec->broken >= rec->fence;
    item->since_ms = (hfi_wall_us() - rec->since_us) / 1000;
    if (item->since_ms < 0)
        item->since_ms = -1; /* The clock was set back. */
    item->permits = rec->permits;
    if (rec->permits)
        item->slot = rec->slot;
    item->kept = rec->kept_until > 0;
    if (item->kept)
        item->left_ms = file_kept_left(rec);
    memcpy(item->owner, rec->owner, sizeof(item->owner));
    memcpy(item->note, rec->note, sizeof(item->note));
}

static bool look_add_holder(void *arg, int32_t index,
                            const struct file_record *rec)
{
    struct file_look *look = arg;

    (void)index;
    look_add_ours(look, rec);
    return !look->nomem;
}

static bool look_has_pid(const struct file_look *look, long pid)
{
    size_t i;

    for (i = 0; i < look->len; i++)
        if (look->pids[i] == pid)
            return true;
    return false;
}

/* Does the process still have a lock on the file?  A try of ours has LOCK_SH for
 * an instant, too, and is not there any more when one looks again. */
static hf_status look_stays(int fd, uint64_t inode, long pid, bool *ret,
                            struct hf_error *err)
{
    const struct file_taken *taken;
    struct file_taken_list list;
    hf_status st = file_taken_read(&list, err);
    size_t n;

    *ret = false;
    if (st)
        return st;
    st = file_taken_find(&list, fd, inode, &taken, &n, err);
    while (!st && n && !*ret)
        *ret = taken[--n].pid == pid;
    hfi_free(list.items);
    return st;
}

/* Those who hold it together: ours, then strangers, and who was freed by force
 * is one.  An older holdfast keeps a byte and writes no record of its own. */
static hf_status look_together(int fd, uint64_t inode,
                               const struct file_record *rec,
                               const struct file_taken_list *list,
                               const struct file_taken *taken, size_t n,
                               struct file_look *look, struct hf_error *err)
{
    struct file_tally tally;
    hf_status st = HF_OK;
    bool stays;
    size_t i;

    file_holders_each(fd, rec, look_add_holder, look);
    tally = file_count_holders(fd, FILE_COUNT_MAX);
    if (!look->len && file_holders_ended(fd, rec) <= 0 &&
        (tally.count ||
         (tally.hidden && taken && file_taken_by(list, taken, rec)))) {
        look_add_ours(look, rec);
        look->uncounted = tally.count > 1 ? tally.count - 1 : 0;
    }
    if (rec->pid_ns && list->pid_ns && rec->pid_ns != list->pid_ns && look->len)
        return HF_OK; /* Their numbers cannot be compared. */
    for (i = 0; !st && i < n; i++) {
        if (look_has_pid(look, taken[i].pid))
            continue;
        st = look_stays(fd, inode, taken[i].pid, &stays, err);
        if (!st && stays)
            look_add_foreign(look, &taken[i]);
    }
    return st;
}

/* The one that has it alone, or kept it. */
static void look_alone(int fd, const struct file_record *rec,
                       const struct file_taken_list *list,
                       const struct file_taken *taken, size_t n,
                       struct file_look *look)
{
    size_t i;

    if (rec->mode == FILE_KEPT && file_kept_left(rec) > 0)
        look_add_ours(look, rec);
    else if (rec->mode == FILE_EXCLUSIVE && file_is_exclusive(fd) &&
             (!taken || file_taken_by(list, taken, rec)))
        look_add_ours(look, rec);
    else
        for (i = 0; i < n; i++)
            look_add_foreign(look, &taken[i]);
}

/* Record and holders that belong together: the fence was the same before and
 * after.  What never rests is shown as it was last. */
static hf_status look_at(int fd, const struct file_taken_list *list,
                         struct file_look *ret, struct hf_error *err)
{
    const struct file_taken *taken;
    struct file_record rec, after;
    struct stat sb;
    hf_status st;
    size_t n;
    int looks;

    if (fstat(fd, &sb) || !S_ISREG(sb.st_mode))
        return hfi_fail(err, HF_PROTOCOL, "the lock file is not a file");
    st = file_taken_find(list, fd, sb.st_ino, &taken, &n, err);
    for (looks = 0; !st && looks < LOOKS_MAX; looks++) {
        ret->len = 0;
        ret->uncounted = 0;
        st = file_record_inspect(fd, 0, &rec, err);
        if (st)
            return st;
        ret->fence = rec.fence;
        if (!rec.mode || rec.mode == FILE_EXCLUSIVE || rec.mode == FILE_KEPT)
            look_alone(fd, &rec, list, taken, n, ret);
        else
            st = look_together(fd, sb.st_ino, &rec, list, taken, n, ret, err);
        if (ret->nomem)
            st = hfi_nomem(err);
        if (st)
            return st;
        st = file_record_inspect(fd, 0, &after, err);
        if (st || after.fence == rec.fence)
            break;
    }
    ret->waiters = file_count_waiters(fd, FILE_COUNT_MAX);
    return st;
}

/* Say of each what is true of all. */
static void look_finish(struct file_look *look)
{
    size_t i;

    for (i = 0; i < look->len; i++) {
        look->items[i].holders = (int32_t)look->len + look->uncounted;
        look->items[i].waiters = look->waiters;
    }
}

/* The newest of ours, else a stranger. */
static void look_describe(struct file_look *look, struct hf_info *ret)
{
    const struct hf_info *best = NULL;
    size_t i;

    look_finish(look);
    for (i = 0; i < look->len; i++)
        if (!best || (look->items[i].owner[0] &&
                      (!best->owner[0] || look->items[i].fence > best->fence)))
            best = &look->items[i];
    if (best) {
        *ret = *best;
        return;
    }
    ret->fence = look->fence;
    ret->since_ms = ret->left_ms = -1;
    ret->waiters = look->waiters;
}

/* Look at a key; one that was never used has no holders. */
static hf_status look_key(struct hfi_conn *conn, const char *key,
                          struct file_look *ret, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_taken_list taken = {0};
    hf_status st = file_find_dir(fc, false, err);
    int fd;

    *ret = (struct file_look){.waiters = -1};
    if (st)
        return hfi_wrap(err, st, "%s", conn->endpoint);
    file_observe_again(fc);
    if (fc->dir_fd < 0)
        return HF_OK;
    fd = file_open_key(fc->dir_fd, key, O_RDONLY | O_NONBLOCK);
    if (fd < 0 && (errno == ENOENT || errno == EWOULDBLOCK))
        return HF_OK; /* It is not there, or is just being removed. */
    if (fd < 0)
        return hfi_fail_errno(err, HF_SYSTEM, errno, "%s: open the lock file",
                              conn->endpoint);
    st = file_taken_read(&taken, err);
    if (!st)
        st = look_at(fd, &taken, ret, err);
    hfi_free(taken.items);
    close(fd);
    return st;
}

hf_status file_inspect(struct hfi_conn *conn, const char *key,
                       struct hf_info *ret, int64_t deadline,
                       struct hf_error *err)
{
    struct file_look look;
    hf_status st = look_key(conn, key, &look, err);

    (void)deadline;
    if (!st && look.waiters >= 0)
        look_describe(&look, ret);
    look_fini(&look);
    return st;
}

hf_status file_holders(struct hfi_conn *conn, const char *key,
                       hf_holders_fn *fn, void *arg, int64_t deadline,
                       struct hf_error *err)
{
    struct file_look look;
    hf_status st = look_key(conn, key, &look, err);
    bool more = true;
    size_t i;

    (void)deadline;
    if (!st)
        look_finish(&look);
    for (i = 0; !st && more && i < look.len; i++)
        more = fn(arg, &look.items[i]);
    look_fini(&look);
    return st;
}

/* ---- listing ----------------------------------------------------------- */

struct file_listing {
    const struct file_taken_list *taken;
    const char *prefix;
    hf_list_fn *fn;
    void *arg;
    hf_status st; /* the first failure */
    struct hf_error *err;
};

/* A file that could not be looked at.  One that is gone or just being removed
 * is no lock, and neither is a link or what a stranger wrote. */
static void list_failed(struct file_listing *ls, const char *key, hf_status st,
                        const struct hf_error *why)
{
    char quoted[HFI_QUOTE_MAX];

    if (!st || ls->st || st == HF_PROTOCOL)
        return;
    hfi_quote(quoted, sizeof(quoted), key);
    if (ls->err)
        *ls->err = *why;
    ls->st = hfi_wrap(ls->err, st, "look at '%s'", quoted);
}

static hf_status list_open(int dir_fd, const char *name, int *fd,
                           struct hf_error *err)
{
    *fd = openat(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    if (*fd >= 0 || errno == ENOENT || errno == EWOULDBLOCK || errno == ELOOP ||
        errno == ENXIO)
        return HF_OK;
    return hfi_fail_errno(err, HF_SYSTEM, errno, "open the lock file");
}

static bool list_file(void *arg, int dir_fd, const char *below,
                      const char *name)
{
    struct file_listing *ls = arg;
    struct hf_info info = HF_INFO_INIT;
    struct file_look look = {.len = 0};
    char path[FILE_PATH_MAX];
    struct hf_error why;
    bool more = true;
    hf_status st;
    int fd;

    if (snprintf(path, sizeof(path), "%s%s", below, name) >=
            (int)sizeof(path) ||
        !file_key(path) || strncmp(path, ls->prefix, strlen(ls->prefix)) != 0)
        return true;
    st = list_open(dir_fd, name, &fd, &why);
    if (!st && fd >= 0)
        st = look_at(fd, ls->taken, &look, &why);
    list_failed(ls, path, st, &why);
    if (fd >= 0)
        close(fd); /* The caller's function may need it. */
    if (!st && look.len) {
        look_describe(&look, &info);
        more = ls->fn(ls->arg, path, &info);
    }
    look_fini(&look);
    return more;
}

hf_status file_list(struct hfi_conn *conn, const char *prefix, hf_list_fn *fn,
                    void *arg, int64_t deadline, struct hf_error *err)
{
    struct file_conn *fc = (struct file_conn *)conn;
    struct file_taken_list taken;
    struct file_listing ls = {&taken, prefix, fn, arg, HF_OK, err};
    hf_status st = file_find_dir(fc, false, err);

    (void)deadline;
    if (st)
        return hfi_wrap(err, st, "%s", conn->endpoint);
    file_observe_again(fc);
    if (fc->dir_fd < 0)
        return HF_OK;
    st = file_taken_read(&taken, err);
    if (!st)
        st = file_walk(fc, list_file, &ls, err);
    if (!st)
        st = ls.st;
    hfi_free(taken.items);
    return st ? hfi_wrap(err, st, "%s: list", conn->endpoint) : HF_OK;
}
