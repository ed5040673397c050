/* SPDX-License-Identifier: MIT
 *
 * pty.c - `holdfast run` on a real terminal: signals x states, job control.
 *
 * Each case gets a pseudo-terminal and, on it, a tiny shell: a session leader
 * that starts holdfast as a foreground job, tells when the job stops or ends,
 * and can continue it in the foreground, as an interactive shell does.  The test
 * types on the terminal, reads what appears there and sends signals.
 *
 * What the shell tells, one line each: `pid N`, `stopped N`, `status N` with N
 * as in $?, how it ended, and whether its group had the terminal then.
 *
 * Nothing here waits for a time to pass; everything waits for something to
 * happen, for at most 20 seconds.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 20000
#define COUNT(a)    (sizeof(a) / sizeof((a)[0]))

static const char *holdfast;
static char url[300];
static int test_number, test_failures;

static void tap(bool good, const char *name)
{
    printf("%sok %d - %s\n", good ? "" : "not ", ++test_number, name);
    fflush(stdout);
    test_failures += !good;
}

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* ---- the tiny shell -------------------------------------------------------- */

struct term {
    int master;
    int told;     /* what the shell tells */
    int commands; /* what it is told: f to continue in the foreground */
    pid_t shell;
    pid_t job;
    char screen[16384];
    char news[1024];
};

/* Whoever runs the tests may ignore signals (a shell's background job ignores
 * INT and QUIT); holdfast would rightly go on ignoring them. */
static void signals_default(void)
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

static void term_open(struct term *t, const char *const *argv)
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

static bool term_sees(struct term *t, const char *text)
{
    return term_await(t, t->screen, text);
}

static bool term_told(struct term *t, const char *text)
{
    bool good = term_await(t, t->news, text);
    const char *pid = strstr(t->news, "pid ");

    if (pid)
        t->job = (pid_t)strtol(pid + 4, NULL, 10);
    return good;
}

static bool term_status(struct term *t, int code)
{
    char want[32];

    snprintf(want, sizeof(want), "status %d ", code);
    if (!term_told(t, "terminal-"))
        return false;
    if (!strstr(t->news, want))
        printf("# wanted %s, got: %s", want, t->news);
    return strstr(t->news, want) != NULL;
}

static bool term_type(struct term *t, const char *text)
{
    return write(t->master, text, strlen(text)) == (ssize_t)strlen(text);
}

static void term_foreground(struct term *t)
{
    if (write(t->commands, "f", 1) != 1)
        printf("# the shell is gone\n");
}

static void term_close(struct term *t)
{
    if (t->job > 1)
        kill(-t->job, SIGKILL); /* the guard ends the rest */
    kill(t->shell, SIGKILL);
    waitpid(t->shell, NULL, 0);
    close(t->master);
    close(t->told);
    close(t->commands);
}

/* A key of its own for each case, so that no failure breeds another. */
static const char *new_key(void)
{
    static char key[32];
    static int count;

    snprintf(key, sizeof(key), "key-%d", ++count);
    return key;
}

/* ---- helpers --------------------------------------------------------------- */

/* Start `holdfast run OPTIONS KEY -- sh -c SCRIPT` and wait for READY. */
static bool run_ready(struct term *t, const char *key, const char *script)
{
    const char *argv[] = {holdfast, "run", "-u", url,    key,
                          "--",     "sh",  "-c", script, NULL};

    term_open(t, argv);
    return term_told(t, "pid ") && term_sees(t, "READY");
}

/* Wait until cat(1) answers.  A shell that is told a signal just while it
 * starts a program may swallow it, so cases whose command shall die of a signal
 * let the shell become something simpler first. */
static bool cat_answers(struct term *t)
{
    return term_type(t, "ping\n") && term_sees(t, "ping\r\nping");
}

static bool cat_ready(struct term *t, const char *key)
{
    return run_ready(t, key, "ulimit -c 0; echo READY; exec cat") &&
           cat_answers(t);
}

/* Whether the key is free: try it from outside the terminal. */
static bool is_free(const char *key)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        execl(holdfast, "holdfast", "run", "-q", "-n", "-u", url, key, "--",
              "true", (char *)NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* A holder of `key`, outside the terminal; it ends when it is killed. */
static pid_t holder(const char *key)
{
    pid_t pid = fork();
    int64_t end = now_ms() + PATIENCE_MS;

    if (pid == 0) {
        setsid();
        execl(holdfast, "holdfast", "run", "-q", "-u", url, "--note",
              "the-holder", key, "--", "sleep", "1000", (char *)NULL);
        _exit(127);
    }
    while (is_free(key) && now_ms() < end)
        poll(NULL, 0, 10);
    return pid;
}

static void holder_end(pid_t pid)
{
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

/* ---- signals x states ------------------------------------------------------- */

static const struct {
    int signo;
    const char *name;
    bool ends; /* by default it ends a process */
} signals[] = {
    {SIGHUP, "HUP", true},      {SIGINT, "INT", true},
    {SIGQUIT, "QUIT", true},    {SIGTERM, "TERM", true},
    {SIGUSR1, "USR1", true},    {SIGUSR2, "USR2", true},
    {SIGWINCH, "WINCH", false},
};

static void name_case(char ret[128], const char *signal, const char *promise)
{
    snprintf(ret, 128, "SIG%s %s", signal, promise);
}

static void test_running(void)
{
    for (size_t i = 0; i < COUNT(signals); i++) {
        const char *key = new_key();
        struct term t;
        char name[128];
        bool good;

        if (!signals[i].ends)
            continue;
        good = cat_ready(&t, key);
        kill(t.job, signals[i].signo);
        good = good && term_status(&t, 128 + signals[i].signo);
        good = good && strstr(t.news, "terminal-returned") && is_free(key);
        term_close(&t);
        name_case(name, signals[i].name,
                  "ends a running command, status 128+n");
        tap(good, name);
    }
}

static void test_caught(void)
{
    for (size_t i = 0; i < COUNT(signals); i++) {
        const char *key = new_key();
        struct term t;
        char name[128], script[256];
        bool good;

        snprintf(script, sizeof(script),
                 "trap 'echo CAUGHT; exit 5' %s; echo READY; "
                 "while :; do sleep 0.05; done",
                 signals[i].name);
        good = run_ready(&t, key, script);
        kill(t.job, signals[i].signo);
        good = good && term_sees(&t, "CAUGHT") && term_status(&t, 5);
        term_close(&t);
        name_case(name, signals[i].name, "reaches a command that catches it");
        tap(good, name);
    }
}

static void test_ignored(void)
{
    for (size_t i = 0; i < COUNT(signals); i++) {
        const char *key = new_key();
        struct term t;
        char name[128], script[256];
        bool good;

        snprintf(script, sizeof(script),
                 "trap '' %s; echo READY; read line; echo \"read $line\"; "
                 "exit 6",
                 signals[i].name);
        good = run_ready(&t, key, script);
        kill(t.job, signals[i].signo);
        kill(t.job, signals[i].signo);
        good = good && !is_free(key) && term_type(&t, "on\n");
        good = good && term_sees(&t, "read on") && term_status(&t, 6);
        term_close(&t);
        name_case(name, signals[i].name,
                  "leaves a command that ignores it, and the lock, alone");
        tap(good, name);
    }
}

static void test_waiting(void)
{
    for (size_t i = 0; i < COUNT(signals); i++) {
        const char *key = new_key();
        const char *argv[] = {holdfast, "run",  "-u",  url, key,
                              "--",     "echo", "RAN", NULL};
        pid_t other = holder(key);
        struct term t;
        char name[128];
        bool good;

        term_open(&t, argv);
        good = term_told(&t, "pid ") && term_sees(&t, "the-holder");
        kill(t.job, signals[i].signo);
        if (signals[i].ends) {
            good = good && term_status(&t, 128 + signals[i].signo);
            good = good && strstr(t.news, "by-signal") && !is_free(key);
            holder_end(other);
            good = good && is_free(key) && !strstr(t.screen, "RAN");
            name_case(name, signals[i].name,
                      "cancels a wait and leaves nothing behind");
        } else {
            holder_end(other);
            good = good && term_sees(&t, "RAN") && term_status(&t, 0);
            name_case(name, signals[i].name, "does not disturb a wait");
        }
        term_close(&t);
        tap(good, name);
    }
}

static void test_stopped(void)
{
    for (size_t i = 0; i < COUNT(signals); i++) {
        const char *key = new_key();
        struct term t;
        char name[128];
        bool good;

        if (!signals[i].ends)
            continue;
        good = cat_ready(&t, key);
        good = good && term_type(&t, "\032") && term_told(&t, "stopped");
        good = good && !is_free(key);
        kill(t.job, signals[i].signo);
        term_foreground(&t);
        good = good && term_status(&t, 128 + signals[i].signo);
        good = good && is_free(key);
        term_close(&t);
        name_case(name, signals[i].name,
                  "waits for a stopped command to be continued");
        tap(good, name);
    }
}

/* ---- job control ------------------------------------------------------------ */

static void test_stop_and_continue(void)
{
    struct term t;
    bool good = run_ready(&t, new_key(),
                          "echo READY; read a; echo \"one $a\"; read b; "
                          "echo \"two $b\"; exit 3");

    good = good && term_type(&t, "\032") && term_told(&t, "stopped 20");
    tap(good, "^Z stops the command and then holdfast");
    term_foreground(&t);
    good = good && term_type(&t, "x\n") && term_sees(&t, "one x");
    tap(good, "in the foreground again, the command reads the terminal");
    memset(t.news, 0, sizeof(t.news));
    good = good && term_type(&t, "\032") && term_told(&t, "stopped 20");
    term_foreground(&t);
    good = good && term_type(&t, "y\n") && term_sees(&t, "two y");
    good = good && term_status(&t, 3);
    tap(good, "it can be stopped and continued again");
    term_close(&t);
}

static void test_kill_tstp(void)
{
    struct term t;
    bool good = run_ready(&t, new_key(), "echo READY; read a; exit 4");

    kill(t.job, SIGTSTP);
    good = good && term_told(&t, "stopped 20");
    term_foreground(&t);
    good = good && term_type(&t, "x\n") && term_status(&t, 4);
    term_close(&t);
    tap(good, "SIGTSTP sent to holdfast stops both, SIGCONT continues both");
}

static void test_stopped_wait(void)
{
    const char *key = new_key();
    const char *argv[] = {holdfast, "run",  "-u",  url, key,
                          "--",     "echo", "RAN", NULL};
    pid_t other = holder(key);
    struct term t;
    bool good;

    term_open(&t, argv);
    good = term_told(&t, "pid ") && term_sees(&t, "the-holder");
    good = good && term_type(&t, "\032") && term_told(&t, "stopped 20");
    term_foreground(&t);
    holder_end(other);
    good = good && term_sees(&t, "RAN") && term_status(&t, 0);
    term_close(&t);
    tap(good, "a wait can be stopped and continued");
}

static void test_typed(void)
{
    static const struct {
        const char *keys, *name;
        int code;
    } rows[] = {
        {"\003", "^C ends the command, and holdfast by the same", 130},
        {"\034", "^\\ ends the command, and holdfast by the same", 131}};

    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *key = new_key();
        struct term t;
        bool good = cat_ready(&t, key);

        good = good && term_type(&t, rows[i].keys);
        good = good && term_status(&t, rows[i].code) && is_free(key);
        good = good && strstr(t.news, "by-signal");
        term_close(&t);
        tap(good, rows[i].name);
    }
}

static void test_script_loop(void)
{
    char script[600];
    const char *argv[] = {"sh", "-c", script, NULL};
    struct term t;
    bool good;

    snprintf(script, sizeof(script),
             "for i in 1 2 3; do %s run -u %s loop -- sh -c 'echo READY-'$i'; "
             "exec cat'; done; echo AFTER",
             holdfast, url);
    term_open(&t, argv);
    good = term_told(&t, "pid ") && term_sees(&t, "READY-1") && cat_answers(&t);
    good = good && term_type(&t, "\003") && term_status(&t, 130);
    good = good && !strstr(t.screen, "READY-2") && !strstr(t.screen, "AFTER");
    term_close(&t);
    tap(good, "^C also ends the script that runs holdfast in a loop");
}

static void test_foreground(void)
{
    struct term t;
    bool good = run_ready(&t, new_key(),
                          "set -- $(cat /proc/$$/stat); "
                          "[ $5 = $8 ] && [ $5 = $1 ] && echo IN-FRONT; "
                          "echo READY");

    good = good && term_sees(&t, "IN-FRONT") && term_status(&t, 0);
    good = good && strstr(t.news, "terminal-returned");
    term_close(&t);
    tap(good, "the command's own group has the terminal, and it is returned");
}

static void test_pipeline(void)
{
    char script[600];
    const char *argv[] = {"sh", "-c", script, NULL};
    struct term t;
    bool good;

    snprintf(script, sizeof(script),
             "%s run -u %s pipe -- sh -c 'echo READY >&2; read a </dev/tty; "
             "echo \"got $a\"' | cat",
             holdfast, url);
    term_open(&t, argv);
    good = term_told(&t, "pid ") && term_sees(&t, "READY");
    good = good && term_type(&t, "word\n") && term_sees(&t, "got word");
    good = good && term_status(&t, 0);
    term_close(&t);
    tap(good, "in a pipeline the terminal is lent when the command asks");
}

/* ---- what the wait says ------------------------------------------------------ */

static void test_wait_line(void)
{
    const char *key = new_key();
    const char *argv[] = {holdfast, "run",  "-u",  url, key,
                          "--",     "echo", "RAN", NULL};
    pid_t other = holder(key);
    struct term t;
    bool good;

    term_open(&t, argv);
    good =
        term_told(&t, "pid ") && term_sees(&t, "': held by the-holder, fence ");
    holder_end(other);
    good = good && term_sees(&t, "\r\033[K") && term_sees(&t, "RAN");
    good = good && term_status(&t, 0);
    term_close(&t);
    tap(good, "a wait says who holds the lock, and clears the line");
}

static void remove_dir(const char *dir)
{
    pid_t pid = fork();

    if (pid == 0) {
        execlp("rm", "rm", "-rf", dir, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, NULL, 0);
}

int main(void)
{
    char dir[] = "/tmp/holdfast-pty-XXXXXX";

    holdfast = getenv("HOLDFAST");
    if (!holdfast || !mkdtemp(dir)) {
        printf("Bail out! HOLDFAST must name the executable\n");
        return 99;
    }
    snprintf(url, sizeof(url), "file:%s", dir);
    unsetenv("HOLDFAST_URL");
    setenv("TERM", "xterm", 1);
    signals_default();
    signal(SIGPIPE, SIG_IGN);

    test_running();
    test_caught();
    test_ignored();
    test_waiting();
    test_stopped();
    test_stop_and_continue();
    test_kill_tstp();
    test_stopped_wait();
    test_typed();
    test_script_loop();
    test_foreground();
    test_pipeline();
    test_wait_line();
    remove_dir(dir);
    printf("1..%d\n", test_number);
    return test_failures != 0;
}
