/* SPDX-License-Identifier: MIT
 *
 * watch.c - `holdfast watch`: each change of a lock, or of all below a prefix.
 *
 * The library observes (hf_observe_start()); here each change becomes a line, or
 * with --exec a command.
 *
 *  (1) One command at a time.  While it runs no change is taken from the
 *      observer, which merges what it has not handed out: the next command sees
 *      the newest state of its key, and the last state always has one.
 *  (2) The observer goes on while the service is out of reach and says nothing
 *      of it.  So the service is asked from time to time whether it answers, and
 *      people are told when it stops and when it does so again.
 *  (3) A signal that ends or stops watch is passed on to the command and to all
 *      that it has started: they are a process group.  It is not that of the
 *      terminal, so they do not read from one.
 *  (4) A reader of our lines that does not read holds up the lines, not the
 *      signals: whoever writes waits for both.  A terminal that has room for one
 *      byte makes whoever writes more wait, so we have a description of our own
 *      for it that never waits.  The flags of the one that we were started with
 *      are those of other programs, too.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WATCH_ASK_MS  5000 /* between two questions whether it answers */
#define WATCH_FULL_MS 20   /* a terminal that has room, but not for this */

struct watch {
    struct cli_opts *opts;
    hf_client *client;
    hf_observer *observer;
    struct sig sig;
    bool changed; /* the observer has something */
    bool away;    /* the service does not answer */
    bool asking;
    int64_t ask_at;
    struct hf_info answer;
    pid_t child; /* the command of --exec and its group; 0: none runs */
    int ended;   /* by this signal */
    int out;     /* where lines go */
};

/* Say when the service goes away and when it is back.  CLI_OK, or the exit
 * status of an error that does not go away. */
static int watch_answered(struct watch *w, const struct hf_error *err)
{
    bool away = cli_is_away(err);
    int64_t pause = w->opts->retry_ms ? w->opts->retry_ms : WATCH_ASK_MS;

    w->asking = false;
    w->ask_at = cli_now() + pause;
    if (err->status && !away)
        return cli_fail(err);
    if (away && !w->away && !w->opts->quiet)
        cli_say("%s: waiting for the service", err->text);
    if (!away && w->away && !w->opts->quiet)
        cli_say("the service answers again");
    w->away = away;
    return CLI_OK;
}

/* Ask for anything: what counts is that there is an answer.  (2) */
static void watch_ask(struct watch *w)
{
    const char *key = w->opts->args[0];
    hf_request *request;

    if (w->asking || cli_now() < w->ask_at)
        return;
    w->answer = (struct hf_info)HF_INFO_INIT;
    w->asking = hf_inspect_start(w->client, key && *key ? key : "holdfast",
                                 &w->answer, NULL, &request, NULL) == HF_OK;
    w->ask_at = cli_now() + WATCH_ASK_MS;
}

static int watch_events(struct watch *w)
{
    struct hf_event event = HF_EVENT_INIT;
    int code = CLI_OK;

    while (!code && hf_next_event(w->client, &event)) {
        if (event.type == HF_CHANGED)
            w->changed = true;
        else if (event.type == HF_ANSWERED)
            code = watch_answered(w, &event.error);
    }
    return code;
}

/* The environment of the command; NULL: no memory. */
static char **watch_environment(const struct watch *w,
                                const struct hf_change *change)
{
    static const char *const names[] = {"HOLDFAST_KEY",    "HOLDFAST_HELD",
                                        "HOLDFAST_HOLDER", "HOLDFAST_FENCE",
                                        "HOLDFAST_OWNER",  "HOLDFAST_URL"};
    const struct hf_info *info = &change->info;
    const char *values[6];
    char fence[24];

    snprintf(fence, sizeof(fence), "%" PRIu64, info->fence);
    values[0] = change->key;
    values[1] = info->held ? "1" : "0";
    values[2] = !info->held ? "" : info->note[0] ? info->note : info->owner;
    values[3] = fence;
    values[4] = info->held ? info->owner : "";
    values[5] = spawn_url(w->opts);
    return spawn_merge(names, values, 6);
}

/* In the child.  (3) */
static _Noreturn void watch_become(struct watch *w, char **argv, char **envp)
{
    int none = isatty(0) ? open("/dev/null", O_RDONLY) : -1;

    setpgid(0, 0);
    if (none > 0)
        dup2(none, 0);
    if (none > 0)
        close(none);
    sig_restore(&w->sig);
    execve(argv[0], argv, envp);
    _exit(CLI_NOT_FOUND);
}

/* Start the command.  CLI_OK or the exit status. */
static int watch_spawn(struct watch *w, const struct hf_change *change)
{
    static char shell[] = "/bin/sh", dash_c[] = "-c";
    char *argv[] = {shell, dash_c, (char *)w->opts->exec, NULL};
    char **envp = watch_environment(w, change);

    w->child = envp ? fork() : -1;
    if (w->child == 0)
        watch_become(w, argv, envp);
    free(envp);
    if (w->child > 0) {
        setpgid(w->child, w->child); /* Whoever is first. */
        return CLI_OK;
    }
    w->child = 0;
    cli_say("'%s' cannot be started: %s", w->opts->exec, strerror(errno));
    return CLI_FAILED;
}

static int watch_flush(struct watch *w)
{
    return fflush(stdout) && w->ended ? CLI_OK : cli_done();
}

/* Show what has changed, or run the command for the first of it.  (1) */
static int watch_changes(struct watch *w)
{
    struct hf_change change = HF_CHANGE_INIT;
    int code = CLI_OK;

    while (!code && w->changed && !w->child) {
        w->changed = hf_observer_next(w->observer, &change);
        if (!w->changed)
            break;
        if (w->opts->exec)
            code = watch_spawn(w, &change);
        else
            look_line(w->opts, change.key, &change.info);
    }
    return code || w->ended ? code : watch_flush(w);
}

static void watch_reap(struct watch *w)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid != w->child)
            continue;
        w->child = 0;
        if (status && !w->opts->quiet)
            cli_say("'%s' ended with status %d", w->opts->exec,
                    WIFSIGNALED(status) ? 128 + WTERMSIG(status)
                                        : WEXITSTATUS(status));
    }
}

/* Stop, and the command with us, until somebody continues us. */
static void watch_stop(struct watch *w)
{
    group_signal(w->child, SIGTSTP);
    sig_stop_self(false);
    group_signal(w->child, SIGCONT);
}

static void watch_signals(struct watch *w)
{
    int signo;

    while ((signo = sig_next(&w->sig))) {
        if (signo == SIGCHLD)
            watch_reap(w);
        else if (signo == SIGTSTP)
            watch_stop(w);
        else if (sig_ends(signo) && !w->ended)
            w->ended = signo;
    }
    if (w->ended && w->child) { /* (3) */
        group_signal(w->child, w->ended);
        group_signal(w->child, SIGCONT);
    }
}

/* Write a piece.  False on an error; 0 in *done: not now. */
static bool watch_piece(struct watch *w, const char *buf, size_t len,
                        size_t *done)
{
    struct pollfd signals = {.fd = w->sig.fd, .events = POLLIN};
    ssize_t n = write(w->out, buf, len < PIPE_BUF ? len : PIPE_BUF);

    *done = n > 0 ? (size_t)n : 0;
    if (n < 0 && errno == EAGAIN)
        poll(&signals, 1, WATCH_FULL_MS); /* A newline needs room for two. */
    return n >= 0 || errno == EINTR || errno == EAGAIN;
}

/* Standard output, a piece at a time that a pipe with room takes at once.  (4) */
static ssize_t watch_write(void *cookie, const char *buf, size_t len)
{
    struct watch *w = cookie;
    struct pollfd fds[2] = {{.fd = w->sig.fd, .events = POLLIN},
                            {.fd = w->out, .events = POLLOUT}};
    size_t done = 0, n;

    while (done < len && !w->ended) {
        if (poll(fds, 2, -1) <= 0)
            continue;
        if (fds[0].revents) {
            watch_signals(w);
            continue;
        }
        if (!watch_piece(w, buf + done, len - done, &n))
            return 0;
        done += n;
    }
    return done == len ? (ssize_t)len : 0;
}

/* The terminal of standard output, for writes that do not wait; else what is
 * there.  To open the other side of a terminal again would make a new one.  (4) */
static int watch_out_fd(void)
{
    char name[64];
    int fd = -1;

    if (isatty(STDOUT_FILENO) && ptsname_r(STDOUT_FILENO, name, sizeof(name)))
        fd = open("/proc/self/fd/1",
                  O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return fd < 0 ? STDOUT_FILENO : fd;
}

static void watch_out_open(struct watch *w)
{
    const cookie_io_functions_t io = {.write = watch_write};
    FILE *out = fopencookie(w, "w", io);

    w->out = watch_out_fd();
    if (out) /* else the old one, which serves as long as there is a reader */
        stdout = out;
}

static int watch_loop(struct watch *w)
{
    struct pollfd fds[2] = {{.fd = w->sig.fd, .events = POLLIN},
                            {.fd = hf_events_fd(w->client), .events = POLLIN}};
    int code = CLI_OK;

    while (!code && !w->ended) {
        int64_t left;

        code = watch_events(w);
        if (!code)
            code = watch_changes(w);
        watch_ask(w);
        left = w->asking ? WATCH_ASK_MS : w->ask_at - cli_now();
        left = fds[1].fd < 0 && left > 50 ? 50 : left;
        if (!code && !w->ended)
            poll(fds, 2, left < 1 ? 1 : left < 60000 ? (int)left : 60000);
        watch_signals(w);
    }
    return code;
}

/* A line that nobody reads ends us without a word, as it ends others. */
static bool watch_sig_open(struct watch *w)
{
    bool ok = sig_open(&w->sig);

    sigaction(SIGPIPE, &w->sig.old_pipe, NULL);
    return ok;
}

int cmd_watch(struct cli_opts *opts)
{
    static struct watch w = {.sig.fd = -1}; /* of stdout, until the very end */
    const char *key = opts->nargs ? opts->args[0] : "";
    struct hf_service svc;
    struct hf_error err;
    int code;

    if (opts->nargs > 1 || (!opts->nargs && !opts->prefix))
        return cli_usage(opts->cmd, "'watch' takes one KEY, or --prefix and "
                                    "at most one PREFIX");
    code = opts->prefix ? CLI_OK : cli_key(opts, "the", key);
    if (code)
        return code;
    if (opts->exec && opts->json)
        return cli_usage(opts->cmd, "give --exec or --json, not both");
    w.opts = opts;
    if (!say_start()) {
        cli_say("no thread can be started: is a limit reached?");
        return CLI_FAILED;
    }
    code = cli_open(opts, &w.client, &svc);
    if (code)
        return code;
    w.ask_at = cli_now(); /* What may not be read is known at once. */
    watch_out_open(&w);
    if (!watch_sig_open(&w))
        code = sig_failed();
    else if (hf_observe_start(w.client, key, opts->prefix ? HF_PREFIX : 0, NULL,
                              &w.observer, &err))
        code = cli_fail(&err);
    else
        code = watch_loop(&w);
    hf_observe_stop(w.observer);
    cli_close(w.client);
    if (w.ended) {
        say_flush(END_SAY_MS);
        sig_die(w.ended, false);
    }
    return code;
}
