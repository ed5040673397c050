/* SPDX-License-Identifier: MIT
 *
 * group.c - a process group: signal it, see whether it lives.
 *
 * Only system calls are used here, because the guard, which was forked from a
 * process with threads, may call nothing else.
 *
 * kill(-pgid, 0) also counts zombies, and those may stay for as long as their
 * parent likes: holdfast itself may be stopped, and some containers have an
 * init that never waits.  A zombie does no more harm, so when kill() says that
 * there is somebody, /proc tells whether anybody of them is alive.  Where there
 * is no /proc the answer of kill() stands, which errs on the safe side.
 */
#include "run.h"

#include "../src/mutant.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

void group_signal(pid_t pgid, int signo)
{
    if (pgid > 1)
        kill(HFI_MUTANT(group_not_killed) ? pgid : -pgid, signo);
}

void group_end(pid_t pgid)
{
    group_signal(pgid, SIGTERM);
    group_signal(pgid, SIGCONT);
}

/* What getdents64(2) fills in; the C library's struct is not promised to be
 * the same. */
struct group_dirent {
    uint64_t ino;
    int64_t off;
    uint16_t len;
    uint8_t type;
    char name[];
};

/* Whether /proc/NAME/stat shows a living member: "PID (COMM) STATE PPID PGRP".
 * COMM may hold anything, so the last parenthesis counts. */
static bool group_has(int proc, const char *name, pid_t pgid)
{
    char path[32], buf[512];
    const char *s = NULL;
    size_t used = 0;
    long long pgrp = 0;
    ssize_t len;
    int fd;

    while (name[used] && used < sizeof(path) - 6) {
        path[used] = name[used];
        used++;
    }
    for (const char *rest = "/stat"; *rest; rest++)
        path[used++] = *rest;
    path[used] = '\0';

    fd = openat(proc, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    len = read(fd, buf, sizeof(buf) - 1);
    close(fd);
    buf[len < 0 ? 0 : len] = '\0';
    for (const char *p = buf; *p; p++)
        if (*p == ')')
            s = p;
    if (!s || s[1] != ' ' || s[2] == 'Z' || s[2] == 'X' || s[3] != ' ')
        return false;
    for (s += 4; *s && *s != ' '; s++)
        continue;
    for (s += *s == ' '; *s >= '0' && *s <= '9'; s++)
        pgrp = pgrp * 10 + (*s - '0');
    return pgrp == pgid;
}

/* Look through /proc; `unknown` is the answer if it cannot be read. */
static bool group_scan(pid_t pgid, bool unknown)
{
    union {
        char bytes[8192];
        uint64_t align;
    } buf;
    bool found = false, read_any = false;
    int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long len;

    if (proc < 0)
        return unknown;
    while (!found && (len = syscall(SYS_getdents64, proc, buf.bytes,
                                    sizeof(buf.bytes))) > 0) {
        for (long at = 0; at < len && !found;) {
            const struct group_dirent *d = (const void *)(buf.bytes + at);

            at += d->len;
            if (d->name[0] < '0' || d->name[0] > '9')
                continue;
            read_any = true;
            found = group_has(proc, d->name, pgid);
        }
    }
    close(proc);
    return found || (unknown && !read_any);
}

bool group_alive(pid_t pgid)
{
    if (pgid <= 1 || (kill(-pgid, 0) < 0 && errno == ESRCH))
        return false;
    return group_scan(pgid, true);
}
