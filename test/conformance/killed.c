/* SPDX-License-Identifier: MIT
 *
 * killed.c - a process is killed at every step of hf_acquire_all().
 *
 * A step is a system call of any thread of the process: whatever it has told
 * the service, or has not told it yet, it did so by one.  The process is killed
 * when it enters the call, by ptrace(2), and not after some time, so that each
 * step is met.  What it had taken by then lapses with the lease that it asked
 * for: later a stranger gets all of the keys, and nobody waits for them any
 * more.  With a key that is busy, the process dies while it takes those before
 * it, waits, or gives them back.
 */
#include "conf.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEYS = 4, BUSY = 2, STEPS = 48 };

/* Calls that nobody makes: close() of these. */
#define MARK_BEGIN (-70001)
#define MARK_END   (-70002)

struct victim {
    char names[KEYS][128];
    const char *keys[KEYS];
    int64_t wait_ms;
};

static void victim_name(struct victim *v, int step, int64_t wait_ms)
{
    char suffix[32];

    v->wait_ms = wait_ms;
    for (int i = 0; i < KEYS; i++) {
        snprintf(suffix, sizeof(suffix), "%d-%d", step, i);
        snprintf(v->names[i], sizeof(v->names[i]), "%s", conf_key(suffix));
        v->keys[i] = v->names[i];
    }
}

/* In the process that is killed, or ends without a word. */
static void victim_run(struct t_peer *up, void *arg)
{
    struct victim *v = arg;
    struct hf_lock_opts opts = conf_opts(2000, 0);
    hf_lock *locks[KEYS];
    hf_client *client;
    hf_status st;

    (void)up;
    if (ptrace(PTRACE_TRACEME, 0, 0, 0))
        _exit(2);
    raise(SIGSTOP);
    client = conf_open();
    close(MARK_BEGIN);
    st =
        hf_acquire_all(client, v->keys, KEYS, v->wait_ms, &opts, locks, &t_err);
    close(MARK_END);
    t_check_status(__FILE__, __LINE__, "hf_acquire_all()", st,
                   v->wait_ms ? HF_TIMEOUT : HF_OK);
}

/* What is seen of the process: -1 before the first step, and how many then. */
struct steps {
    int seen;
    bool over;
};

static void step_entered(pid_t thread, struct steps *steps)
{
    struct __ptrace_syscall_info info;

    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY)
        return;
    if (info.entry.nr == SYS_close && (int)info.entry.args[0] == MARK_BEGIN)
        steps->seen = 0;
    else if (info.entry.nr == SYS_close && (int)info.entry.args[0] == MARK_END)
        steps->over = true;
    else if (steps->seen >= 0 && !steps->over)
        steps->seen++;
}

/* Follow all threads until the process is gone; kill it when it enters its call
 * number `last`, or after the end.  Returns how many it has entered. */
static int follow(pid_t victim, int last)
{
    struct steps steps = {-1, false};
    int status, number;
    pid_t thread;

    while ((thread = waitpid(-1, &status, __WALL)) > 0 || errno == EINTR) {
        if (thread < 0 || (!WIFSTOPPED(status) && thread != victim))
            continue;
        if (!WIFSTOPPED(status))
            break;
        number = WSTOPSIG(status);
        if (number == (SIGTRAP | 0x80))
            step_entered(thread, &steps);
        if (steps.seen >= last || steps.over)
            kill(victim, SIGKILL);
        else
            ptrace(PTRACE_SYSCALL, thread, 0,
                   number & SIGTRAP || number == SIGSTOP ? 0 : number);
    }
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return steps.seen;
}

/* Let a process take the keys and kill it at that step. */
static int victim_kill(struct victim *v, int last)
{
    struct t_peer peer = t_fork(victim_run, v);
    int status, seen;

    CHECK_EQ(waitpid(peer.pid, &status, 0), peer.pid);
    CHECK(WIFSTOPPED(status));
    CHECK_EQ(
        ptrace(PTRACE_SETOPTIONS, peer.pid, 0,
               PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL),
        0);
    CHECK_EQ(ptrace(PTRACE_SYSCALL, peer.pid, 0, 0), 0);
    seen = follow(peer.pid, last);
    close(peer.fd);
    return seen;
}

/* -1 where that is not known. */
static int32_t waiters_of(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.waiters;
}

/* The lease of whatever the dead have left is over: all is free, and none of
 * them is counted as a waiter. */
static void check_taken_by_another(struct victim *v)
{
    hf_client *client = conf_open();
    hf_lock *locks[KEYS];

    CHECK_OK(hf_acquire_all(client, v->keys, KEYS, 45000, NULL, locks, &t_err));
    for (int i = 0; i < KEYS; i++)
        conf_unlock(locks[i]);
    /* No dead waiter is passed the lock either. */
    for (int i = 0; i < KEYS; i++)
        conf_unlock(conf_try(client, v->keys[i], NULL));
    for (int i = 0; i < KEYS; i++)
        t_poll_until(waiters_of(client, v->keys[i]) <= 0, 45000);
    hf_close(client);
}

/* Another process has the key that is busy of each set, until it is told that
 * all is done.  This one forks again and again, so it must not have a client. */
static void keep_busy(struct t_peer *up, void *arg)
{
    struct victim *victims = arg;
    hf_client *client = conf_open();
    hf_lock *busy[STEPS + 1];

    for (int i = 0; i <= STEPS; i++)
        busy[i] = conf_try(client, victims[i].keys[BUSY], NULL);
    t_tell(up, 1);
    t_hear(up);
    for (int i = 0; i <= STEPS; i++)
        conf_unlock(busy[i]);
    hf_close(client);
}

/* One is not killed before the end and tells how many steps there are. */
static int kill_each(struct victim *victims)
{
    int total = victim_kill(&victims[STEPS], INT32_MAX);
    int n = conf_times(total < STEPS ? total : STEPS, 8);

    CHECK_GT(total, 0);
    n = n < STEPS ? n : STEPS;
    for (int i = 0; i < n; i++)
        victim_kill(&victims[i], 1 + (int)((int64_t)i * total / n));
    return n;
}

/* wait_ms 0: nobody else wants the keys; else one is busy. */
static void kill_at_every_step(int64_t wait_ms)
{
    struct victim victims[STEPS + 1];
    struct t_peer holder;
    int i, n;

    for (i = 0; i <= STEPS; i++)
        victim_name(&victims[i], i, wait_ms);
    if (wait_ms) {
        holder = t_fork(keep_busy, victims);
        t_hear(&holder);
    }
    n = kill_each(victims);
    if (wait_ms) {
        t_tell(&holder, 1);
        t_join(&holder);
    }
    check_taken_by_another(&victims[STEPS]);
    for (i = 0; i < n; i++)
        check_taken_by_another(&victims[i]);
}

TEST_TIMEOUT(who_is_killed_while_taking_several_leaves_none_beyond_its_lease,
             400)
{
    conf_needs(HF_TRAIT_PROCESSES);
    kill_at_every_step(0);
}

TEST_TIMEOUT(who_is_killed_while_waiting_for_several_leaves_none, 400)
{
    conf_needs(HF_TRAIT_PROCESSES);
    kill_at_every_step(60);
}
