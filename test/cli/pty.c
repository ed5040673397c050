/* SPDX-License-Identifier: MIT
 *
 * pty.c - `holdfast run` on a real terminal: signals x states, job control.
 *
 * Each case gets a terminal and a shell of its own (term.h) and a key of its
 * own.  The test types, reads what appears and sends signals.
 */
#include "term.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const char *holdfast;
static char url[300];
static int test_number, test_failures;

static void tap(bool good, const char *name)
{
    printf("%sok %d - %s\n", good ? "" : "not ", ++test_number, name);
    fflush(stdout);
    test_failures += !good;
}

/* A key of its own for each case, so that no failure breeds another. */
static const char *new_key(void)
{
    static char key[32];
    static int count;

    snprintf(key, sizeof(key), "key-%d", ++count);
    return key;
}

/* ---- helpers ------------------------------------------------------------- */

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

/* ---- signals x states ---------------------------------------------------- */

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

/* ---- job control --------------------------------------------------------- */

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

/* ---- leases -------------------------------------------------------------- */

/* Start `holdfast run` with a lease of its own (mem:) and wait for READY. */
static bool lease_ready(struct term *t, const char *ttl, const char *script)
{
    const char *argv[] = {holdfast, "run", "-q", "-u", "mem:pty", "-t", ttl,
                          "key",    "--",  "sh", "-c", script,    NULL};

    term_open(t, argv);
    return term_told(t, "pid ") && term_sees(t, "READY");
}

/* Wait until a process is gone; one that nobody reaps counts as gone. */
static bool pid_gone(pid_t pid)
{
    int64_t end = now_ms() + PATIENCE_MS;
    char path[64], line[512];

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    while (now_ms() < end) {
        FILE *file = fopen(path, "r");
        const char *state = NULL;

        if (file) {
            if (fgets(line, sizeof(line), file))
                state = strrchr(line, ')');
            fclose(file);
        }
        if (!state || state[2] == 'Z' || state[2] == 'X')
            return true;
        poll(NULL, 0, 10);
    }
    return false;
}

static void test_stopped_too_long(void)
{
    struct term t;
    const char *at;
    bool good = lease_ready(&t, "1s", "echo \"<$$> READY\"; exec sleep 1000");

    good = good && term_type(&t, "\032") && term_told(&t, "stopped 20");
    at = strchr(t.screen, '<');
    good = good && at && pid_gone((pid_t)atoi(at + 1));
    tap(good, "a job that is stopped for longer than its lease is ended");
    term_foreground(&t);
    good = good && term_status(&t, 79);
    term_close(&t);
    tap(good, "and holdfast says so when it is continued");
}

/* Nobody continues holdfast: it ends by itself when its command has. */
static void test_stopped_and_ended(void)
{
    const char *key = new_key();
    const char *argv[] = {holdfast, "run", "-q", "--max-hold",
                          "1s",     "-u",  url,  key,
                          "--",     "sh",  "-c", "echo READY; exec sleep 1000",
                          NULL};
    const char *plain[] = {
        holdfast, "run", "-q", "-u", url,
        key,      "--",  "sh", "-c", "echo \"<$$> READY\"; exec sleep 1000",
        NULL};
    struct term t;
    const char *at;
    bool good;

    term_open(&t, argv);
    good = term_told(&t, "pid ") && term_sees(&t, "READY") &&
           term_type(&t, "\032") && term_told(&t, "stopped 20") &&
           pid_gone(t.job);
    term_foreground(&t);
    good = good && term_status(&t, 124);
    term_close(&t);
    tap(good,
        "a job that is stopped when --max-hold is over gives its lock up");

    term_open(&t, plain);
    good = term_told(&t, "pid ") && term_sees(&t, "READY") &&
           term_type(&t, "\032") && term_told(&t, "stopped 20");
    at = strchr(t.screen, '<');
    good = good && at && !kill((pid_t)atoi(at + 1), SIGKILL) && pid_gone(t.job);
    term_foreground(&t);
    good = good && term_status(&t, 137);
    term_close(&t);
    tap(good, "so does one whose command is killed while it is stopped");
}

/* The command is told to end, and stops instead. */
static void test_stops_at_its_end(void)
{
    const char *key = new_key();
    const char *argv[] = {
        holdfast, "run",
        "-q",     "--max-hold",
        "500ms",  "--grace",
        "500ms",  "-u",
        url,      key,
        "--",     "sh",
        "-c",     "trap 'kill -TSTP $$' TERM; while :; do sleep 0.05; done",
        NULL};
    struct term t;
    bool good;

    term_open(&t, argv);
    good = term_told(&t, "pid ") && term_status(&t, 124);
    term_close(&t);
    tap(good, "a command that stops when it is told to end gets KILL");
}

static void test_stopped_in_time(void)
{
    struct term t;
    bool good = lease_ready(
        &t, "3s", "echo READY; read a; sleep 3.5; echo LIVED; exit 5");

    good = good && term_type(&t, "\032") && term_told(&t, "stopped 20");
    term_foreground(&t);
    good = good && term_type(&t, "x\n") && term_sees(&t, "LIVED") &&
           term_status(&t, 5);
    term_close(&t);
    tap(good, "a job that is continued in time is renewed as before");
}

static void test_flow_control(void)
{
    const char *key = new_key();
    char script[1400];
    struct term t;
    const char *argv[] = {holdfast,
                          "run",
                          "-t",
                          "300ms",
                          "-u",
                          url,
                          key,
                          "--",
                          "sh",
                          "-c",
                          "echo READY; exec sleep 1000",
                          NULL};
    int64_t end = now_ms() + PATIENCE_MS;
    bool good;

    term_open(&t, argv);
    good = term_told(&t, "pid ") && term_sees(&t, "READY");
    snprintf(script, sizeof(script),
             "f=$(%s status -u %s %s | sed 's/.*fence \\([0-9]*\\).*/\\1/'); "
             "%s break -q -u %s --fence $f %s",
             holdfast, url, key, holdfast, url, key);
    good = good && term_type(&t, "\023") && system(script) == 0;
    while (good && !is_free(key) && now_ms() < end)
        poll(NULL, 0, 10);
    good = good && is_free(key);
    good = good && term_type(&t, "\021") && term_status(&t, 79);
    term_close(&t);
    tap(good, "^S does not keep a command alive whose lock is lost");
}

/* ---- what the wait says -------------------------------------------------- */

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
    test_stopped_too_long();
    test_stopped_and_ended();
    test_stops_at_its_end();
    test_stopped_in_time();
    test_flow_control();
    test_wait_line();
    remove_dir(dir);
    printf("1..%d\n", test_number);
    return test_failures != 0;
}
