/* SPDX-License-Identifier: MIT
 *
 * scratch.c - directories that are gone when the program is.
 *
 * Only the process that made a directory removes it, and only what it made: the
 * tree is walked without following links or crossing into other file systems.
 */
#include "bench.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SCRATCH_MAX 4

static char scratch_dirs[SCRATCH_MAX][256];
static int scratch_len;
static pid_t scratch_pid;

static int scratch_remove_one(const char *path, const struct stat *sb, int type,
                              struct FTW *where)
{
    (void)sb;
    (void)type;
    (void)where;
    remove(path);
    return 0;
}

static void scratch_remove(void)
{
    if (getpid() != scratch_pid)
        return;
    while (scratch_len > 0)
        nftw(scratch_dirs[--scratch_len], scratch_remove_one, 16,
             FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

const char *bench_scratch(const char *base)
{
    char *dir;

    if (!base)
        base = getenv("BENCH_DIR");
    if (!base || !*base)
        base = access("/run/lock", W_OK) ? "/tmp" : "/run/lock";
    if (scratch_len == SCRATCH_MAX)
        bench_die("too many directories");
    dir = scratch_dirs[scratch_len];
    snprintf(dir, sizeof(scratch_dirs[0]), "%s/holdfast-bench-XXXXXX", base);
    if (!mkdtemp(dir))
        bench_die_errno(dir);
    if (scratch_len++ == 0) {
        scratch_pid = getpid();
        atexit(scratch_remove);
    }
    return dir;
}

const char *bench_fs_name(const char *path)
{
    static const struct {
        unsigned long magic;
        const char *name;
    } known[] = {
        {0x01021994, "tmpfs"}, {0xef53, "ext4"},          {0x58465342, "xfs"},
        {0x9123683e, "btrfs"}, {0x794c7630, "overlayfs"}, {0x6969, "nfs"},
    };
    struct statfs fs;
    size_t i;

    if (statfs(path, &fs))
        return "?";
    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if ((unsigned long)fs.f_type == known[i].magic)
            return known[i].name;
    return "other";
}
