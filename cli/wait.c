/* SPDX-License-Identifier: MIT
 *
 * wait.c - waiting for the lock, and saying so.
 *
 * On this machine a try costs microseconds and most locks are free, so the
 * first one is made here, in the main thread, without the machinery of a
 * request.  Only if that finds the lock taken, or if the service is elsewhere
 * and may let us wait for its answer, is a request started; one loop then
 * watches it, the signals and the clock.
 *
 * A signal that would end a program (HUP INT QUIT TERM USR1 USR2) cancels the
 * request.  The loop goes on until the library has said how it ended: if the
 * lock was granted at that very moment it is given back, so that nothing stays
 * behind.  A service that does not answer is not waited for longer than END_MS.
 * ^Z stops the wait as it stops any other program.
 *
 * After one second a person is told whom the wait is for: on a terminal in one
 * line that is rewritten in place and cleared at the end, elsewhere (with -v)
 * in a line of its own whenever the holder changes.  The look at the lock is
 * made by a thread of its own (peek.c), so that this loop never waits for it.
 */
#include "run.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WAIT_TELL_MS 1000

struct wait {
    struct run *run;
    hf_request *request;
    int64_t tell_at; /* INT64_MAX: never */
    bool in_place;   /* rewrite one line */
    bool shown;      /* there is a line to clear */
    bool told;
    uint64_t told_fence;
};

/* Append to a line of fixed size; what does not fit is left out. */
static void wait_add(char *line, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void wait_add(char *line, size_t size, const char *fmt, ...)
{
    size_t len = strlen(line);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line + len, size - len, fmt, ap);
    va_end(ap);
}

/* Describe the holder: false if there is nothing to say. */
static bool wait_describe(struct wait *w, const struct cli_peek *peek,
                          char *line, size_t size)
{
    const struct hf_info *info = &peek->info;
    bool held = !peek->st && info->held;
    int32_t place = hf_request_place(w->request);
    char ago[32];

    snprintf(line, size, "waiting for '%s'", w->run->key);
    if (held) {
        wait_add(line, size, ": held by %s, fence %" PRIu64,
                 info->note[0]    ? info->note
                 : info->owner[0] ? info->owner
                                  : "somebody",
                 info->fence);
        if (info->since_ms >= 0)
            wait_add(line, size, ", for %s", cli_ago(info->since_ms, ago));
        if (info->left_ms >= 0)
            wait_add(line, size, ", lease %s left",
                     cli_ago(info->left_ms, ago));
    }
    if (place > 0)
        wait_add(line, size, ", you are #%d", (int)place);
    return held || place > 0;
}

/* Cut a line to the width of the terminal, between characters. */
static void wait_fit(char *line)
{
    struct winsize size = {0};
    size_t width = 80, len = strlen(line);

    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
        width = size.ws_col;
    if (len < width)
        return;
    for (len = width - 1; len > 0 && (line[len] & 0xc0) == 0x80; len--)
        continue;
    line[len] = '\0';
}

/* Tell what a look has found. */
static void wait_tell(struct wait *w, const struct cli_peek *peek)
{
    char raw[HF_KEY_MAX + HF_NOTE_MAX + 256];
    char line[2 * sizeof(raw)], shown[sizeof(line) + 8];
    uint64_t fence = !peek->st && peek->info.held ? peek->info.fence : 0;

    if (say_behind() || !wait_describe(w, peek, raw, sizeof(raw)))
        return; /* nobody reads, or there is nothing to say */
    if (!w->in_place) {
        if (!w->told || fence != w->told_fence)
            cli_say("%s", raw);
        w->told = true;
        w->told_fence = fence;
        return;
    }
    cli_clean(raw, line, sizeof(line));
    wait_fit(line);
    snprintf(shown, sizeof(shown), "\r%s\033[K", line);
    say_text(shown);
    w->shown = true;
}

/* Look when it is time to, and tell what the last look has found.  The next one
 * is due a while after this one has ended. */
static void wait_look(struct wait *w)
{
    struct cli_peek peek;

    if (peek_take(&peek)) {
        w->tell_at = cli_now() + WAIT_TELL_MS;
        wait_tell(w, &peek);
    } else if (cli_now() >= w->tell_at) {
        w->tell_at = peek_start(w->run->client, w->run->key)
                         ? INT64_MAX
                         : cli_now() + WAIT_TELL_MS;
    }
}

static void wait_clear(struct wait *w)
{
    if (w->shown)
        say_text("\r\033[K");
    w->shown = false;
}

/* Whether and how to tell people. */
static void wait_init(struct wait *w, struct run *run)
{
    const char *term = getenv("TERM");
    bool tty = isatty(STDERR_FILENO);

    *w = (struct wait){.run = run, .tell_at = INT64_MAX};
    w->in_place = tty && term && *term && strcmp(term, "dumb");
    if (!run->opts->quiet && (tty || run->opts->verbose))
        w->tell_at = cli_now() + WAIT_TELL_MS;
}

static void wait_signal(struct wait *w, int signo)
{
    if (signo == SIGTSTP) {
        wait_clear(w);
        say_flush(RUN_ORDER_MS);
        sig_stop_self(false);
    } else if (signo == SIGCHLD) {
        while (waitpid(-1, NULL, WNOHANG) > 0)
            continue; /* what the command of an earlier term has left */
    } else if (sig_ends(signo) && !w->run->cancel) {
        w->run->cancel = signo;
        w->run->cancel_at = cli_now();
        if (w->request)
            hf_request_cancel(w->request);
    }
}

static void wait_signals(struct wait *w)
{
    int signo;

    while ((signo = sig_next(&w->run->sig)))
        wait_signal(w, signo);
}

/* Take the end of the request, if it has come. */
static bool wait_ended(struct run *run, hf_status *ret, struct hf_error *err)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(run->client, &event)) {
        if (event.type == HF_GRANTED) {
            *ret = HF_OK;
            return true;
        }
        if (event.type == HF_FAILED) {
            *err = event.error;
            *ret = event.error.status;
            return true;
        }
    }
    return false;
}

/* Watch the request until it has ended. */
static hf_status wait_loop(struct wait *w, struct hf_error *err)
{
    struct run *run = w->run;
    struct pollfd fds[3] = {
        {.fd = run->sig.fd, .events = POLLIN},
        {.fd = hf_events_fd(run->client), .events = POLLIN},
        {.fd = w->tell_at == INT64_MAX ? -1 : peek_fd(), .events = POLLIN}};
    hf_status st;

    while (!wait_ended(run, &st, err)) {
        int64_t until = run->cancel ? run->cancel_at + END_MS : w->tell_at;
        int64_t left = until - cli_now();

        if (left <= 0 && run->cancel)
            return HF_CANCELED; /* the service does not answer */
        if (fds[1].fd < 0 && left > 50)
            left = 50; /* no descriptor was left: look by hand */
        poll(fds, 3,
             until == INT64_MAX && fds[1].fd >= 0 ? -1
             : left < 0                           ? 0
                                                  : (int)left);
        wait_signals(w);
        if (!run->cancel)
            wait_look(w);
    }
    return st;
}

/* What the locks are taken with. */
void wait_options(const struct run *run, struct hf_lock_opts *ret)
{
    const struct cli_opts *o = run->opts;

    ret->ttl_ms = run->ttl;
    ret->owner = o->owner;
    ret->note = o->note;
    ret->retry_ms = o->retry_ms;
    ret->permits = o->permits;
    ret->min_hold_ms = o->min_hold_ms;
    ret->flags = (o->shared ? HF_SHARED : 0) | (o->fair ? HF_FAIR : 0) |
                 (o->poll ? HF_POLL : 0) | (run->manual ? HF_MANUAL : 0);
}

/* One try in this thread; true if that was all. */
static bool wait_try(struct wait *w, const struct hf_lock_opts *lo,
                     hf_status *ret, struct hf_error *err)
{
    struct run *run = w->run;

    *ret = locks_acquire(run, lo, err);
    wait_signals(w);
    return run->cancel || run->opts->wait_ms == 0 || *ret != HF_BUSY;
}

/* Take the locks.  HF_OK: run->locks are held, unless run->cancel says that a
 * signal came; then the caller gives it back. */
hf_status wait_for_lock(struct run *run, struct hf_error *err)
{
    struct hf_lock_opts lo = HF_LOCK_OPTS_INIT;
    int64_t wait_ms = run->opts->wait_ms;
    struct wait w;
    hf_status st;

    wait_options(run, &lo);
    wait_init(&w, run);
    if (!run->remote && wait_try(&w, &lo, &st, err))
        return st;
    if (wait_ms > 0) {
        wait_ms -= cli_now() - run->asked_at;
        wait_ms = wait_ms < 1 ? 1 : wait_ms;
    }
    st = locks_acquire_start(run, wait_ms, &lo, &w.request, err);
    if (st)
        return st;
    st = wait_loop(&w, err);
    wait_clear(&w);
    return st;
}

void wait_pause(struct run *run, int64_t ms)
{
    struct pollfd fd = {.fd = run->sig.fd, .events = POLLIN};
    int64_t end = cli_now() + ms, left = ms;
    struct wait w = {.run = run};

    while (!run->cancel && left > 0) {
        poll(&fd, 1, left < 3600000 ? (int)left : 3600000);
        wait_signals(&w);
        left = end - cli_now();
    }
}
