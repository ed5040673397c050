/* SPDX-License-Identifier: MIT
 *
 * file.c - bare flock(2) as a candidate, on files in $HF_BENCH_DIR.
 *
 * It opens the file and closes it each time, as one does who locks by a name;
 * that leaves out the record that file: keeps there.  See bench/file.c for the
 * calls with a record of the same size.
 */
#include "cand.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

static void *conn_open(void)
{
    return bench_alloc(sizeof(int));
}

static void take(void *fd, const char *key)
{
    const char *dir = getenv("HF_BENCH_DIR");
    char path[512];

    snprintf(path, sizeof(path), "%s/bare-%s", dir ? dir : "/tmp", key);
    *(int *)fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (*(int *)fd < 0)
        bench_die_errno(path);
    if (flock(*(int *)fd, LOCK_EX))
        bench_die_errno(path);
}

static void give(void *fd, const char *key)
{
    (void)key;
    close(*(int *)fd);
}

int main(void)
{
    static const struct cand_kind kind = {
        .name = "file",
        .open = conn_open,
        .close = free,
        .take = take,
        .give = give,
        .await = take,
        .pass = give,
    };

    return cand_main(&kind);
}
