/* SPDX-License-Identifier: MIT
 *
 * sig.c - signals as a descriptor, and back to what they were.
 *
 * The signals that `run` passes on are blocked and read from a signalfd, so
 * that one loop sees them beside everything else and no handler races with
 * fork: a signal that comes at the wrong moment waits until it can be dealt
 * with.
 *
 *  (1) A signal that was ignored when we were started stays ignored and is not
 *      read, so that nohup(1) works through holdfast.
 *  (2) The command gets the mask and the dispositions that we were started
 *      with.  We change two of the latter: SIGCHLD must not be ignored, or
 *      children could not be waited for, and SIGPIPE is, so that a reader who
 *      goes away cannot kill the supervisor.
 *  (3) SIGTTOU and SIGTTIN are blocked and not read: a background process
 *      that blocks them may hand the terminal over and may write to it.
 */
#include "run.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

const int sig_ending[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGTERM,
                          SIGUSR1, SIGUSR2, 0};

static const int sig_others[] = {SIGWINCH, SIGTSTP, SIGCONT, SIGCHLD, 0};

/* Add those that were not ignored when we were started. */
static void sig_add(sigset_t *set, const int *list)
{
    struct sigaction old;

    for (; *list; list++) {
        sigaction(*list, NULL, &old);
        if (old.sa_handler != SIG_IGN)
            sigaddset(set, *list);
    }
}

bool sig_ends(int signo)
{
    for (const int *list = sig_ending; *list; list++)
        if (*list == signo)
            return true;
    return false;
}

bool sig_open(struct sig *sig)
{
    struct sigaction act = {.sa_handler = SIG_DFL};
    sigset_t read_set, block_set;

    sigaction(SIGCHLD, &act, &sig->old_chld);
    act.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &act, &sig->old_pipe);

    sigemptyset(&read_set);
    sig_add(&read_set, sig_ending);
    sig_add(&read_set, sig_others);
    block_set = read_set;
    sigaddset(&block_set, SIGTTOU);
    sigaddset(&block_set, SIGTTIN);
    sigprocmask(SIG_BLOCK, &block_set, &sig->old);
    sig->fd = signalfd(-1, &read_set, SFD_CLOEXEC | SFD_NONBLOCK);
    return sig->fd >= 0;
}

int sig_failed(void)
{
    cli_say("signals cannot be watched: %s", strerror(errno));
    return CLI_FAILED;
}

int sig_next(struct sig *sig)
{
    struct signalfd_siginfo info;

    if (read(sig->fd, &info, sizeof(info)) != sizeof(info))
        return 0;
    return (int)info.ssi_signo;
}

void sig_restore(const struct sig *sig)
{
    sigaction(SIGCHLD, &sig->old_chld, NULL);
    sigaction(SIGPIPE, &sig->old_pipe, NULL);
    sigprocmask(SIG_SETMASK, &sig->old, NULL);
}

/* A stop that the kernel refuses, because nobody could ever continue us (an
 * orphaned process group), returns at once. */
void sig_stop_self(bool whole_group)
{
    sigset_t set, old;

    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    kill(whole_group ? 0 : getpid(), SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &set, &old);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

bool sig_was_continued(void)
{
    sigset_t set;

    sigpending(&set);
    return sigismember(&set, SIGCONT) == 1;
}

_Noreturn void sig_die(int signo, bool whole_group)
{
    struct rlimit none = {0, 0};
    struct sigaction act = {.sa_handler = SIG_DFL};
    sigset_t set;

    setrlimit(RLIMIT_CORE, &none);
    sigaction(signo, &act, NULL);
    kill(whole_group ? 0 : getpid(), signo);
    sigemptyset(&set);
    sigaddset(&set, signo);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    _exit(128 + signo);
}
