/* SPDX-License-Identifier: MIT
 *
 * term.c - see term.h.
 */
#include "term.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Whoever runs the tests may ignore signals (a shell's background job ignores
 * INT and QUIT); holdfast would rightly go on ignoring them. */
void signals_default(void)
{
    sigset_t none;

    for (int signo = 1; signo < 32; signo++)
        signal(signo, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static _Noreturn void shell_exec(const char *const *argv)
{
    setpgid(0, 0);
    tcsetpgrp(0, getpid());
    signals_default();
    execvp(argv[0], (char *const *)argv);
    _exit(127);
}

static _Noreturn void shell_main(const char *const *argv, int told,
                                 int commands)
{
    struct pollfd fd = {.fd = commands, .events = POLLIN};
    int status;
    pid_t job, pid;

    signal(SIGTTOU, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    job = fork();
    if (job == 0)
        shell_exec(argv);
    setpgid(job, job);
    tcsetpgrp(0, job);
    dprintf(told, "pid %d\n", (int)job);
    for (;;) {
        char command;

        pid = waitpid(job, &status, WNOHANG | WUNTRACED);
        if (pid == job && WIFSTOPPED(status)) {
            tcsetpgrp(0, getpgrp());
            dprintf(told, "stopped %d\n", WSTOPSIG(status));
        } else if (pid == job) {
            break;
        }
        if (poll(&fd, 1, 10) == 1 && read(commands, &command, 1) == 1) {
            tcsetpgrp(0, job);
            kill(-job, SIGCONT);
        }
    }
    dprintf(told, "status %d %s %s\n",
            WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status),
            WIFSIGNALED(status) ? "by-signal" : "by-exit",
            tcgetpgrp(0) == job ? "terminal-returned" : "terminal-kept");
    pause();
    _exit(0);
}

void term_open(struct term *t, const char *const *argv)
{
    int told[2], commands[2];

    memset(t, 0, sizeof(*t));
    if (pipe2(told, O_CLOEXEC) || pipe2(commands, O_CLOEXEC))
        exit(99);
    t->shell = forkpty(&t->master, NULL, NULL, NULL);
    if (t->shell == 0)
        shell_main(argv, told[1], commands[0]);
    fcntl(t->master, F_SETFD, FD_CLOEXEC);
    close(told[1]);
    close(commands[0]);
    t->told = told[0];
    t->commands = commands[1];
}

static void take(int fd, char *into, size_t size)
{
    size_t used = strlen(into);
    ssize_t got = used + 1 < size ? read(fd, into + used, size - used - 1) : 0;

    if (got > 0)
        into[used + (size_t)got] = '\0';
}

/* Read both channels until `text` has appeared in `where`. */
static bool term_await(struct term *t, const char *where, const char *text)
{
    struct pollfd fds[2] = {{.fd = t->master, .events = POLLIN},
                            {.fd = t->told, .events = POLLIN}};
    int64_t end = now_ms() + PATIENCE_MS;

    while (!strstr(where, text)) {
        if (now_ms() > end) {
            printf("# no '%s' within patience; news: %s\n", text, t->news);
            return false;
        }
        poll(fds, 2, 50);
        if (fds[0].revents & POLLIN)
            take(t->master, t->screen, sizeof(t->screen));
        if (fds[1].revents & POLLIN)
            take(t->told, t->news, sizeof(t->news));
    }
    return true;
}

bool term_sees(struct term *t, const char *text)
{
    return term_await(t, t->screen, text);
}

bool term_told(struct term *t, const char *text)
{
    bool good = term_await(t, t->news, text);
    const char *pid = strstr(t->news, "pid ");

    if (pid)
        t->job = (pid_t)strtol(pid + 4, NULL, 10);
    return good;
}

bool term_status(struct term *t, int code)
{
    char want[32];

    snprintf(want, sizeof(want), "status %d ", code);
    if (!term_told(t, "terminal-"))
        return false;
    if (!strstr(t->news, want))
        printf("# wanted %s, got: %s", want, t->news);
    return strstr(t->news, want) != NULL;
}

bool term_type(struct term *t, const char *text)
{
    return write(t->master, text, strlen(text)) == (ssize_t)strlen(text);
}

void term_foreground(struct term *t)
{
    if (write(t->commands, "f", 1) != 1)
        printf("# the shell is gone\n");
}

void term_close(struct term *t)
{
    if (t->job > 1)
        kill(-t->job, SIGKILL); /* the guard ends the rest */
    kill(t->shell, SIGKILL);
    waitpid(t->shell, NULL, 0);
    close(t->master);
    close(t->told);
    close(t->commands);
}
