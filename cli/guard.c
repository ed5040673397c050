/* SPDX-License-Identifier: MIT
 *
 * guard.c - the second process, which acts when holdfast cannot.
 *
 * THE PROMISE  The command's whole group is dead before the lock can be granted
 * to another, also when holdfast is killed with SIGKILL or frozen with SIGSTOP.
 * holdfast cannot keep that alone.  So after the grant and before the command
 * starts it forks the guard, which shares one page of memory with it:
 *
 *     deadline   by then the group must be dead (CLOCK_BOOTTIME, which counts
 *                suspend); holdfast moves it on while renewals succeed
 *     pgid       what to kill; 0 when there is nothing to kill
 *     term_at    when the --on-lost command has had its time, if it runs
 *     ending     taken by whoever sends TERM, so that it is sent once
 *     told       the same for the line in $HOLDFAST_LOST_FD
 *     hook       the --on-lost command, which ends when its time is over
 *     closed     set by the guard when it has nothing left to watch over
 *
 *  (1) holdfast is frozen.  The deadline stands still.  Soon after deadline -
 *      lead, when a holdfast that runs would have acted, the guard sends TERM,
 *      at deadline - margin KILL.
 *  (2) holdfast is dead.  A pipe that only it holds open reaches its end.  The
 *      guard sends TERM at once and KILL after the lead, or earlier if the
 *      deadline is nearer.
 *  (3) The guard keeps every descriptor that it inherited.  Where the lock is a
 *      descriptor (file:) or a connection, it therefore stays taken until the
 *      guard ends, and the guard ends only when the group is dead.
 *  (4) The deadline never counts on the guard being told: it looks at the page
 *      when the deadline it knows of comes near.  When holdfast brings the
 *      deadline forward it also writes a byte into the pipe.
 *  (5) Nothing from the terminal reaches it: a session of its own, and all
 *      signals blocked.
 *  (6) A run inside the command has a guard of its own, which obeys our page
 *      too.  It dies last, and we wait for it (nest.c).
 *  (7) Nothing starts unseen or late.  The command and the --on-lost command
 *      write their own group into the page, then look at `closed` and at the
 *      clock, then exec.  The guard sets `closed`, then looks at the groups,
 *      then ends.  So one of the two sees the other, however long holdfast was
 *      stopped before the fork, and if it was killed right after it.
 *  (8) When the command stops, holdfast stops, too, and says so (`stopped`).
 *      Then nobody waits for the command.  If it is ended nevertheless, by the
 *      guard or by another, the guard continues holdfast, which gives the lock
 *      back.
 *  (9) It speaks when the group is dead and the lock is let go, never before:
 *      a write to stderr may block for ever.
 *
 * The guard was forked from a process with threads, so it makes system calls
 * and nothing else: no malloc, no stdio, no locks.
 *
 * LIMITS  SIGKILL to holdfast also kills the command itself at once, without
 * TERM (PR_SET_PDEATHSIG, spawn.c); the rest of its group gets TERM from the
 * guard.  If the guard is killed too, the processes of the command go on.  A
 * command that changes its user id (sudo) or leaves its process group cannot be
 * reached.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define GUARD_SAY_S    2   /* so long its last message may take */
#define GUARD_NEST_MS  100 /* so often it looks at the run around us */
#define GUARD_LOOK_MS  5   /* and at a group that is ending */
#define GUARD_BLIND_MS 50  /* and at the clock if it has no timer */
#define GUARD_STOP_MS  500 /* and at the group while holdfast is stopped */

/* The page of the run around us is found once: the environment does not
 * change. */
bool guard_open(struct guard *guard)
{
    guard->page = nest_make(&guard->page_fd);
    if (!guard->page)
        return false;
    atomic_store(&guard->page->deadline, INT64_MAX);
    if (!guard->nest.page)
        nest_open(&guard->nest);
    return true;
}

void guard_close(struct guard *guard)
{
    if (guard->page)
        munmap(guard->page, sizeof(*guard->page));
    if (guard->page_fd >= 0)
        close(guard->page_fd);
    guard->page = NULL;
    guard->page_fd = -1;
}

static void guard_tell_lost(int fd, const char *reason)
{
    char line[64];
    size_t len = 0;

    for (; reason[len] && len < sizeof(line) - 1; len++)
        line[len] = reason[len];
    line[len++] = '\n';
    if (write(fd, line, len) < 0)
        return; /* the pipe has no reader, or is full and so readable */
}

/* How long holdfast may take to act by itself; never into the margin. */
static int64_t guard_patience(const struct guard_page *page)
{
    int64_t room = (page->lead - page->margin) / 4;

    return room < 200 ? room : 200;
}

bool guard_admits(struct guard_page *page, _Atomic int32_t *group,
                  int64_t before)
{
    atomic_store(group, getpid());
    return !atomic_load(&page->closed) && cli_now() < before;
}

/* When to act if holdfast does not: at the deadline, or with the run around
 * us. */
static int64_t guard_due(const struct guard *guard)
{
    const struct guard_page *page = guard->page;
    int64_t at = atomic_load(&page->deadline);
    int64_t outer = nest_term_at(&guard->nest);

    if (at != INT64_MAX)
        at += guard_patience(page) - page->lead;
    return at < outer ? at : outer;
}

/* A reader of $HOLDFAST_LOST_FD finds the end behind the line: nobody may keep
 * the other side open. */
static void guard_close_told(struct guard *guard)
{
    if (guard->lost_fd < 0 || !atomic_load(&guard->page->told))
        return;
    close(guard->lost_fd);
    guard->lost_fd = -1;
}

/* How long to sleep where there is no descriptor for a timer.  poll() does not
 * count suspend, so never for long. */
static int guard_blind_ms(int64_t at)
{
    int64_t left = at - cli_now();

    return left > GUARD_BLIND_MS ? GUARD_BLIND_MS : left > 0 ? (int)left : 0;
}

/* Continue a holdfast that has stopped itself, if its command is dead.  guard.c
 * (8) */
static void guard_continue(const struct guard *guard)
{
    pid_t pgid = atomic_load(&guard->page->pgid);

    if (atomic_load(&guard->page->stopped) && getppid() == guard->parent &&
        (pgid <= 1 || group_over(pgid)))
        kill(guard->parent, SIGCONT);
}

/* How long to wait for holdfast or the timer at most; -1 for ever. */
static int guard_watch_ms(const struct guard *guard, int timer, int64_t at)
{
    if (timer < 0)
        return guard_blind_ms(at);
    if (nest_binds(&guard->nest))
        return GUARD_NEST_MS;
    return atomic_load(&guard->page->stopped) ? GUARD_STOP_MS : -1;
}

/* Sleep until holdfast is dead (true) or it is time to act (false). */
static bool guard_watch(struct guard *guard, int alive, int timer)
{
    struct pollfd fds[2] = {{.fd = alive, .events = POLLIN},
                            {.fd = timer, .events = POLLIN}};

    for (;;) {
        struct itimerspec when = {{0, 0}, {0, 0}};
        int64_t at = guard_due(guard);
        char drain[64];

        guard_close_told(guard);
        if (cli_now() >= at)
            return false;
        if (at != INT64_MAX) {
            when.it_value.tv_sec = at / 1000;
            when.it_value.tv_nsec = at % 1000 * 1000000;
        }
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
        if (poll(fds, 2, guard_watch_ms(guard, timer, at)) < 0)
            continue;
        if (fds[0].revents && read(alive, drain, sizeof(drain)) == 0)
            return true;
        guard_continue(guard);
    }
}

/* Say something at the very end.  stderr may block for ever, so every other
 * descriptor is closed before, the lock among them, and a signal ends us. */
static void guard_say(const char *line)
{
    sigset_t wake;

    if (close_range(STDERR_FILENO + 1, ~0u, 0))
        return;
    sigemptyset(&wake);
    sigaddset(&wake, SIGALRM);
    signal(SIGALRM, SIG_DFL);
    alarm(GUARD_SAY_S);
    sigprocmask(SIG_UNBLOCK, &wake, NULL);
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        return; /* nobody listens */
}

/* Send TERM; false if holdfast has done it. */
static bool guard_term(struct guard *guard, pid_t pgid, bool orphaned)
{
    if (atomic_exchange(&guard->page->ending, 1))
        return false;
    if (guard->lost_fd >= 0 && !atomic_exchange(&guard->page->told, 1))
        guard_tell_lost(guard->lost_fd, orphaned ? "closed" : "expired");
    group_end(pgid);
    return true;
}

/* When to send KILL.  The deadlines may still come forward. */
static int64_t guard_kill_at(const struct guard *guard)
{
    int64_t at = atomic_load(&guard->page->deadline);
    int64_t outer = nest_kill_at(&guard->nest);

    if (at != INT64_MAX)
        at -= guard->page->margin;
    return at < outer ? at : outer;
}

/* Bring the deadline forward, for runs inside the command too: they know our
 * page and not that of the run around us. */
static void guard_hasten(struct guard_page *page, int64_t kill_at)
{
    if (kill_at != INT64_MAX &&
        kill_at + page->margin < atomic_load(&page->deadline))
        atomic_store(&page->deadline, kill_at + page->margin);
}

/* Whether the --on-lost command has ended, with all that it started.  When its
 * time is over, it has to. */
static bool guard_hook_over(struct guard_page *page, int64_t term_at)
{
    pid_t hook = atomic_load(&page->hook);

    if (!hook || !group_alive(hook))
        return true;
    if (cli_now() < term_at)
        return false;
    group_signal(hook, SIGKILL);
    return group_ended(hook);
}

/* Let nothing be started any more.  True if nothing was. */
static bool guard_shut(struct guard_page *page)
{
    atomic_store(&page->closed, 1);
    return atomic_load(&page->pgid) <= 1 && !atomic_load(&page->hook);
}

int guard_pause_ms(int64_t now, int64_t kill_at)
{
    if (now >= kill_at || kill_at - now >= GUARD_LOOK_MS)
        return GUARD_LOOK_MS;
    return (int)(kill_at - now);
}

/* Wait for a moment, but not beyond the time of KILL: a short lease has no
 * moment to spare.  True if holdfast has died in it. */
static bool guard_pause(const struct guard *guard, int alive, bool orphaned)
{
    struct pollfd fd = {.fd = orphaned ? -1 : alive, .events = POLLIN};
    char drain[64];

    return poll(&fd, 1, guard_pause_ms(cli_now(), guard_kill_at(guard))) > 0 &&
           read(alive, drain, sizeof(drain)) == 0;
}

/* End the group: TERM unless that is done, KILL in time, and do not return
 * while one of them, or of a run inside, lives.  Nothing here may block.  True
 * if we began it. */
static bool guard_finish(struct guard *guard, int alive, bool orphaned)
{
    struct guard_page *page = guard->page;
    pid_t pgid = atomic_load(&page->pgid);
    int64_t term_at = atomic_load(&page->term_at);
    bool began = false;

    if (pgid <= 1) {
        if (guard_shut(page))
            return false;
        pgid = atomic_load(&page->pgid);
    }
    if (orphaned)
        guard_hasten(page, cli_now() + page->lead);
    else if (term_at)
        term_at += guard_patience(page);
    for (;;) {
        if (!began && cli_now() >= term_at)
            began = guard_term(guard, pgid, orphaned);
        guard_close_told(guard);
        if (guard_hook_over(page, term_at) && group_ended(pgid) &&
            !nest_busy(guard->page_fd) &&
            (guard_shut(page) || guard_hook_over(page, term_at)))
            return began;
        guard_hasten(page, guard_kill_at(guard));
        if (cli_now() >= guard_kill_at(guard))
            group_signal(pgid, SIGKILL);
        if (guard_pause(guard, alive, orphaned)) {
            orphaned = true;
            guard_hasten(page, cli_now() + page->lead);
        }
    }
}

static _Noreturn void guard_main(struct guard *guard, int alive)
{
    int timer, null;
    bool orphaned, began;
    sigset_t all;

    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    setsid();
    prctl(PR_SET_NAME, "holdfast-guard");
    close(guard->alive);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
    orphaned = guard_watch(guard, alive, timer);
    began = guard_finish(guard, alive, orphaned);
    while (atomic_load(&guard->page->stopped) && getppid() == guard->parent) {
        kill(guard->parent, SIGCONT);
        poll(NULL, 0, GUARD_LOOK_MS);
    }
    if (began && orphaned)
        guard_say("holdfast: the supervisor was killed: its command has been "
                  "ended\n");
    _exit(0);
}

bool guard_start(struct guard *guard)
{
    int ends[2];
    pid_t pid;

    if (guard->alive >= 0)
        close(guard->alive);
    guard->alive = -1;
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return false;
    guard->alive = ends[1];
    guard->parent = getpid();
    pid = fork();
    if (pid == 0)
        guard_main(guard, ends[0]);
    close(ends[0]);
    guard->pid = pid > 0 ? pid : 0;
    return pid > 0;
}

/* Let the guard look at the page. */
static void guard_wake(struct guard *guard)
{
    if (guard->pid && write(guard->alive, "", 1) < 0)
        return; /* it is full of bytes that say the same, or has no reader */
}

void guard_publish(struct guard *guard, int64_t deadline)
{
    if (deadline < atomic_exchange(&guard->page->deadline, deadline))
        guard_wake(guard);
}

void guard_raise(struct guard *guard, const char *reason)
{
    if (!atomic_exchange(&guard->page->told, 1))
        guard_tell_lost(guard->lost_fd, reason);
    close(guard->lost_fd);
    guard->lost_fd = -1;
    guard_wake(guard);
}

void guard_stop_self(struct guard *guard, bool whole_group)
{
    atomic_store(&guard->page->stopped, 1);
    guard_wake(guard);
    sig_stop_self(whole_group);
    atomic_store(&guard->page->stopped, 0);
}

/* The guard must be gone before the lock is released: it shares descriptors
 * that keep a file: lock taken. */
void guard_stop(struct guard *guard)
{
    if (guard->page)
        atomic_store(&guard->page->pgid, 0);
    if (guard->pid) {
        kill(guard->pid, SIGKILL);
        while (waitpid(guard->pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    guard->pid = 0;
    if (guard->alive >= 0)
        close(guard->alive);
    guard->alive = -1;
}
