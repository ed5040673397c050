/* SPDX-License-Identifier: MIT
 *
 * group.c - a process group: signal it, see whether it lives.
 *
 * Only system calls are used here, because the guard, which was forked from a
 * process with threads, may call nothing else.
 *
 * kill(-pgid, 0) also counts zombies, and those may stay for as long as their
 * parent likes: holdfast itself may be stopped, and some containers have an
 * init that never waits.  A zombie does no more harm, so a group that is being
 * ended also counts as dead if /proc shows that only zombies are left.
 *
 *  (1) /proc is believed only if it is that of our own pid namespace and shows
 *      at least one member.  Else the answer of kill() stands, which errs on
 *      the safe side.
 *  (2) A process whose first thread has ended is shown as a zombie while its
 *      other threads run: it is dead only if it has no other thread.
 *  (3) A process can be forked while /proc is read, and one that /proc hides
 *      (hidepid=2) is never seen.  So KILL is sent to such a group, and what
 *      /proc shows is believed a moment later.
 *  (4) A group that is left to itself gets no KILL.  It counts as dead if /proc
 *      hides nothing from us, which the first process tells, and has shown
 *      nobody alive at two looks.
 */
#include "run.h"

#include "../src/base/mutant.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GROUP_KILL_MS 100 /* so long a process may take to die of KILL */

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

enum group_sight { GROUP_OTHER, GROUP_ZOMBIE, GROUP_LIVES };

/* The number after `skip` more fields of /proc/PID/stat. */
static long long group_field(const char **at, int skip)
{
    const char *s = *at;
    long long n = 0;

    for (; skip > 0; skip--) {
        while (*s && *s != ' ')
            s++;
        s += *s == ' ';
    }
    for (; *s >= '0' && *s <= '9'; s++)
        n = n * 10 + (*s - '0');
    *at = s;
    return n;
}

/* Judge the text of /proc/PID/stat: "PID (COMM) STATE PPID PGRP ...", where the
 * number of threads is the fifteenth after PGRP.  COMM may hold anything, so
 * the last parenthesis counts. */
static enum group_sight group_judge(const char *text, pid_t pgid)
{
    const char *s = NULL;
    char state;

    for (const char *p = text; *p; p++)
        if (*p == ')')
            s = p;
    if (!s || s[1] != ' ' || !s[2] || s[3] != ' ')
        return GROUP_LIVES; /* not what is expected here */
    state = s[2];
    s += 4;
    if (group_field(&s, 1) != pgid)
        return GROUP_OTHER;
    if (state != 'Z' && state != 'X')
        return GROUP_LIVES;
    return group_field(&s, 15) > 1 ? GROUP_LIVES : GROUP_ZOMBIE;
}

/* Look at /proc/NAME/stat.  What cannot be read may be a living member, unless
 * it has ended meanwhile. */
static enum group_sight group_look(int proc, const char *name, pid_t pgid)
{
    char path[32], buf[512];
    size_t used = 0;
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
        return errno == ENOENT ? GROUP_OTHER : GROUP_LIVES;
    len = read(fd, buf, sizeof(buf) - 1);
    if (len < 0) {
        close(fd);
        return errno == ESRCH ? GROUP_OTHER : GROUP_LIVES;
    }
    close(fd);
    buf[len] = '\0';
    return group_judge(buf, pgid);
}

/* Whether this /proc is that of our own pid namespace. */
static bool group_proc_is_ours(int proc)
{
    char name[24];
    ssize_t len = readlinkat(proc, "self", name, sizeof(name) - 1);
    const char *at = name;

    if (len <= 0)
        return false;
    name[len] = '\0';
    return group_field(&at, 0) == getpid();
}

/* Whether there are members and all of them are zombies. */
static bool group_only_zombies(int proc, pid_t pgid)
{
    union {
        char bytes[8192];
        uint64_t align;
    } buf;
    bool seen = false;
    long len;

    while ((len = syscall(SYS_getdents64, proc, buf.bytes, sizeof(buf.bytes))) >
           0) {
        for (long at = 0; at < len;) {
            const struct group_dirent *d = (const void *)(buf.bytes + at);
            enum group_sight sight = GROUP_OTHER;

            at += d->len;
            if (d->name[0] >= '0' && d->name[0] <= '9')
                sight = group_look(proc, d->name, pgid);
            if (sight == GROUP_LIVES)
                return false;
            seen = seen || sight == GROUP_ZOMBIE;
        }
    }
    return len == 0 && seen;
}

bool group_alive(pid_t pgid)
{
    return pgid > 1 && (kill(-pgid, 0) == 0 || errno != ESRCH);
}

/* Whether only zombies are left, as far as that can be known. */
static bool group_looks_dead(pid_t pgid)
{
    int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ret;

    if (proc < 0)
        return false;
    ret = group_proc_is_ours(proc) && group_only_zombies(proc, pgid);
    close(proc);
    return ret;
}

/* The groups that have got KILL from here, and when: that of the command and
 * that of the --on-lost command. */
static struct {
    pid_t pgid;
    int64_t at;
} group_killed[2];

static int64_t group_quiet; /* since then nobody was seen alive; 0: not yet */

void group_forget(void)
{
    group_killed[0].pgid = group_killed[1].pgid = 0;
    group_quiet = 0;
}

bool group_ended(pid_t pgid)
{
    int i = group_killed[0].pgid && group_killed[0].pgid != pgid;

    if (!group_alive(pgid))
        return true;
    if (!group_looks_dead(pgid))
        return false;
    if (group_killed[i].pgid == pgid)
        return cli_now() >= group_killed[i].at + GROUP_KILL_MS;
    group_signal(pgid, SIGKILL);
    group_killed[i].pgid = pgid;
    group_killed[i].at = cli_now();
    return false;
}

/* Whether this /proc shows the processes of others. */
static bool group_sees_all(void)
{
    int fd = open("/proc/1/stat", O_RDONLY | O_CLOEXEC);

    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

bool group_over(pid_t pgid)
{
    if (!group_alive(pgid))
        return true;
    if (!group_sees_all() || !group_looks_dead(pgid)) {
        group_quiet = 0;
        return false;
    }
    if (!group_quiet)
        group_quiet = cli_now();
    return cli_now() >= group_quiet + GROUP_KILL_MS;
}
