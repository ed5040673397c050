/* SPDX-License-Identifier: MIT
 *
 * walk.c - all names in the directory of the locks and in those of long keys
 * below it.
 *
 * The key of a long name may be a dozen directories deep.  A walk that keeps
 * each of them open needs as many descriptors, and a process that holds many
 * locks has none to spare: so one directory is open at a time, and the paths of
 * those that are still to be read are in memory.
 *
 * A walk that has not seen everything returns an error.  Directories of long keys
 * are never removed by holdfast (collect.c); one that is gone has no locks.
 */
#include "file.h"

#include <dirent.h>
#include <errno.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/banned.h"

/* The directories that are still to be read: "" or "PIECE~/PIECE~/". */
struct walk {
    char **paths; /* free it, and each */
    size_t len, room;
    hf_status st; /* the first failure */
    struct hf_error *err;
};

static void walk_failed(struct walk *walk, int sys_errno)
{
    if (!walk->st)
        walk->st = hfi_fail_errno(walk->err, HF_SYSTEM, sys_errno,
                                  "read a directory of locks");
}

static void walk_add(struct walk *walk, const char *below, const char *name)
{
    size_t room = walk->room ? walk->room * 2 : 16;
    char path[FILE_PATH_MAX];
    char **grown;

    if (snprintf(path, sizeof(path), "%s%s%s", below, name, *name ? "/" : "") >=
        (int)sizeof(path))
        return; /* No key is as long as that. */
    if (walk->len == walk->room) {
        grown = hfi_realloc(walk->paths, room * sizeof(*grown));
        if (!grown) {
            walk_failed(walk, ENOMEM);
            return;
        }
        walk->paths = grown;
        walk->room = room;
    }
    walk->paths[walk->len] = hfi_strdup(path);
    if (walk->paths[walk->len])
        walk->len++;
    else
        walk_failed(walk, ENOMEM);
}

/* NULL if it is not there, or is something else; or if that failed. */
static DIR *walk_open(struct walk *walk, int dir_fd, const char *below)
{
    int fd = file_open_below(dir_fd, below);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    int saved = errno;

    if (dir)
        return dir;
    if (fd >= 0)
        close(fd);
    if (saved != ENOENT && saved != ENOTDIR && saved != ELOOP)
        walk_failed(walk, saved);
    return NULL;
}

/* One directory; false if the caller wants no more. */
static bool walk_dir(struct walk *walk, int dir_fd, const char *below,
                     file_walk_fn *fn, void *arg)
{
    DIR *dir = walk_open(walk, dir_fd, below);
    const struct dirent *entry = NULL;
    bool more = true;
    size_t len;

    while (dir && more) {
        errno = 0;
        entry = readdir(dir);
        if (!entry)
            break;
        len = strlen(entry->d_name);
        if (entry->d_name[len - 1] == '~')
            walk_add(walk, below, entry->d_name);
        else
            more = fn(arg, dirfd(dir), below, entry->d_name);
    }
    if (dir && !entry && errno)
        walk_failed(walk, errno);
    if (dir)
        closedir(dir);
    return more;
}

hf_status file_walk(const struct file_conn *fc, file_walk_fn *fn, void *arg,
                    struct hf_error *err)
{
    struct walk walk = {.err = err};
    bool more = true;
    char *below;

    walk_add(&walk, "", "");
    while (walk.len) {
        below = walk.paths[--walk.len];
        if (more)
            more = walk_dir(&walk, fc->dir_fd, below, fn, arg);
        hfi_free(below);
    }
    hfi_free(walk.paths);
    return walk.st;
}
