/* SPDX-License-Identifier: MIT
 *
 * process.c - starting, killing, stopping and ending the processes of clients.
 *
 * A client process is this program again, told by hidden options who it is: a
 * fork without exec would carry the nemesis' threads' locks along.
 */
#include "torture.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static _Noreturn void process_exec(struct run *run, int process)
{
    struct client_process *m = &run->processes[process];
    char name[32], path[512], preload[1024];

    snprintf(name, sizeof(name), "%d.%d", process, m->life);
    snprintf(preload, sizeof(preload), "%s %s", run->shim ? run->shim : "",
             run->points ? run->points : "");
    if (run->shim || run->points)
        setenv("LD_PRELOAD", preload, 1);
    snprintf(path, sizeof(path), "%s/clock.%d", run->dir, process);
    setenv("HF_CLOCK_FILE", path, 1);
    snprintf(path, sizeof(path), "%s/point.%d", run->dir, process);
    setenv("HF_POINT_FILE", path, 1);
    execl(run->self, run->self, "--client", name, "--dir", run->dir, m->url,
          (char *)NULL);
    _exit(127);
}

bool process_start(struct run *run, int process)
{
    struct client_process *m = &run->processes[process];

    for (int i = 0; i < MAX_THREADS; i++)
        atomic_store(&run->shared->runs[process][i], 0);
    m->life++;
    m->stopped = false;
    m->pid = fork();
    if (m->pid == 0)
        process_exec(run, process);
    if (m->pid < 0)
        m->pid = 0;
    return m->pid > 0;
}

/* Wait for its end; true if it ended well. */
static bool process_wait(struct client_process *m)
{
    int status = 0;

    while (waitpid(m->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    m->pid = 0;
    return status == 0;
}

void process_kill(struct run *run, int process)
{
    struct client_process *m = &run->processes[process];

    if (!m->pid)
        return;
    run_log(run, W_kill, 0, process, NULL);
    kill(m->pid, SIGKILL);
    process_wait(m);
    run_log(run, W_killed, 0, process, NULL);
}

/* Signal the `holdfast' processes of a process that is stopped: it cannot have
 * waited for them, so their numbers are theirs. */
static void process_signal_runs(struct run *run, int process, int signo)
{
    for (int i = 0; i < MAX_THREADS; i++) {
        int pid = atomic_load(&run->shared->runs[process][i]);

        if (pid > 0)
            kill(pid, signo);
    }
}

/* At times `holdfast' goes on, and its command with it. */
void process_stop(struct run *run, int process)
{
    struct client_process *m = &run->processes[process];
    siginfo_t info = {0};

    if (!m->pid)
        return;
    kill(m->pid, SIGSTOP);
    m->stopped = true;
    while (waitid(P_PID, (id_t)m->pid, &info, WSTOPPED | WEXITED | WNOWAIT) &&
           errno == EINTR)
        continue;
    if (info.si_code == CLD_STOPPED && run_chance(run, 4))
        process_signal_runs(run, process, SIGSTOP);
}

void process_cont(struct run *run, int process)
{
    struct client_process *m = &run->processes[process];

    if (m->pid && m->stopped) {
        process_signal_runs(run, process, SIGCONT);
        kill(m->pid, SIGCONT);
    }
    m->stopped = false;
}

/* It will be killed at a point of its own: has it been?  If not, it is now. */
void process_killed(struct run *run, int process)
{
    struct client_process *m = &run->processes[process];

    if (!m->pid)
        return;
    kill(m->pid, SIGKILL);
    process_wait(m);
    run_log(run, W_killed, 0, process, NULL);
}

/* Everyone has been told to stop: let them, then kill who does not. */
bool process_end(struct run *run, int64_t limit_ms)
{
    int64_t end = history_now() + limit_ms * 1000;
    bool all = true;

    for (int i = 1; i <= run->plan.processes; i++) {
        struct client_process *m = &run->processes[i];
        int status;

        process_cont(run, i);
        while (m->pid && history_now() < end) {
            if (waitpid(m->pid, &status, WNOHANG) == m->pid) {
                all = all && status == 0;
                m->pid = 0;
            } else {
                run_sleep_ms(5);
            }
        }
        if (m->pid) {
            all = false;
            process_kill(run, i);
        }
    }
    return all;
}
