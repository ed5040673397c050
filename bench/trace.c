/* SPDX-License-Identifier: MIT
 *
 * trace.c - counting system calls with ptrace(2).
 *
 * The child marks the beginning and the end of what counts with a call that
 * nobody else makes: close() of two impossible descriptors.  Threads that the
 * child starts are followed, so that work moved to the background is counted
 * too.  Timing is meaningless under this, and nothing here is timed.
 */
#include "trace.h"

#include "bench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK_BEGIN (-70001)
#define MARK_END   (-70002)

#define NUMBERS_MAX 512

struct counter {
    bool counting;
    long by_number[NUMBERS_MAX];
};

static const struct {
    int number;
    const char *name;
} trace_names[] = {
    {SYS_read, "read"},
    {SYS_write, "write"},
    {SYS_close, "close"},
    {SYS_poll, "poll"},
    {SYS_pread64, "pread"},
    {SYS_pwrite64, "pwrite"},
    {SYS_openat, "openat"},
    {SYS_flock, "flock"},
    {SYS_fcntl, "fcntl"},
    {SYS_fstat, "fstat"},
    {SYS_newfstatat, "newfstatat"},
    {SYS_statx, "statx"},
    {SYS_futex, "futex"},
    {SYS_getpid, "getpid"},
    {SYS_getrandom, "getrandom"},
    {SYS_clock_gettime, "clock_gettime"},
    {SYS_timerfd_settime, "timerfd_settime"},
    {SYS_inotify_add_watch, "inotify_add_watch"},
    {SYS_inotify_rm_watch, "inotify_rm_watch"},
    {SYS_brk, "brk"},
    {SYS_mmap, "mmap"},
    {SYS_munmap, "munmap"},
};

/* In the child. */
static void trace_child(const struct trace_work *work)
{
    if (ptrace(PTRACE_TRACEME, 0, 0, 0))
        _exit(2);
    raise(SIGSTOP);
    work->prepare(work->arg);
    work->repeat(work->arg, work->ops / 10 + 1); /* warm-up */
    close(MARK_BEGIN);
    work->repeat(work->arg, work->ops);
    close(MARK_END);
    _exit(0);
}

static void trace_entry(pid_t pid, struct counter *counter)
{
    struct __ptrace_syscall_info info;

    if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return;
    if (info.entry.nr == SYS_close && (int)info.entry.args[0] == MARK_BEGIN)
        counter->counting = true;
    else if (info.entry.nr == SYS_close && (int)info.entry.args[0] == MARK_END)
        counter->counting = false;
    else if (counter->counting && info.entry.nr < NUMBERS_MAX)
        counter->by_number[info.entry.nr]++;
}

/* Until the child is gone.  Its own exit status, or -1. */
static int trace_follow(pid_t child, struct counter *counter)
{
    int status, signal_number;
    pid_t pid;

    for (;;) {
        pid = waitpid(-1, &status, __WALL);
        if (pid < 0 && errno == EINTR)
            continue;
        if (pid < 0)
            return -1;
        if (!WIFSTOPPED(status)) {
            if (pid == child)
                return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            continue;
        }
        signal_number = WSTOPSIG(status);
        if (signal_number == (SIGTRAP | 0x80)) {
            trace_entry(pid, counter);
            signal_number = 0;
        } else if (signal_number == SIGTRAP || signal_number == SIGSTOP) {
            signal_number = 0; /* a new thread, on either side */
        }
        ptrace(PTRACE_SYSCALL, pid, 0, signal_number);
    }
}

static double trace_tell(const char *name, const struct counter *counter,
                         long ops)
{
    char text[512] = "";
    size_t i, j, len = 0;
    double sum = 0, each;

    for (i = 0; i < NUMBERS_MAX; i++) {
        const char *what = "other";

        if (!counter->by_number[i])
            continue;
        each = (double)counter->by_number[i] / (double)ops;
        sum += each;
        for (j = 0; j < sizeof(trace_names) / sizeof(trace_names[0]); j++)
            if (trace_names[j].number == (int)i)
                what = trace_names[j].name;
        if (len < sizeof(text))
            len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s %.3g",
                                    len ? ", " : "", what, each);
    }
    bench_note("%-38s %.3g system calls each%s%s%s", name, sum, len ? " (" : "",
               text, len ? ")" : "");
    bench_json("\"what\":\"%s\",\"unit\":\"system calls\",\"rounds\":1,"
               "\"median\":%.6g,\"calls\":\"%s\"",
               name, sum, text);
    return sum;
}

double trace_calls(const char *name, const struct trace_work *work)
{
    static struct counter counter;
    int status;
    pid_t child;

    fflush(stdout);
    memset(&counter, 0, sizeof(counter));
    child = fork();
    if (child < 0)
        bench_die_errno("fork");
    if (child == 0)
        trace_child(work);
    waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) {
        bench_note("%-38s system calls not counted: ptrace is not allowed",
                   name);
        return -1;
    }
    ptrace(PTRACE_SETOPTIONS, child, 0,
           PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL);
    ptrace(PTRACE_SYSCALL, child, 0, 0);
    if (trace_follow(child, &counter) != 0)
        bench_die("%s: the child that counts system calls failed", name);
    return trace_tell(name, &counter, work->ops);
}
