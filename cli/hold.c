/* SPDX-License-Identifier: MIT
 *
 * hold.c - the loop while the command runs.
 *
 * One poll() watches the signals (SIGCHLD among them), the lock's descriptor of
 * loss and the clock.  Each turn does three things: it tells the guard the
 * newest deadline, judges whether the command may go on, and sleeps.
 *
 * THE JUDGEMENT  `deadline` is how far the lock can be proven now, and the
 * lead is the grace (term), the margin (kill) or nothing (warn).
 *
 *     now >= deadline - lead     the lock is about to be lost: end the group,
 *                                so that it is dead at deadline - margin
 *     lost without warning       (broken, stolen, deleted): TERM now, KILL
 *                                after the grace or when the lease would have
 *                                ended, whichever is first
 *     the run around us ends     TERM now, KILL when that run kills (nest.c)
 *     now >= granted + max-hold  TERM now, KILL after the grace; the lock is
 *                                kept until the group is dead
 *
 * KILL comes at deadline - margin in any case, whatever the grace is and
 * whatever else ends the run: the grace of the run around us may be longer than
 * our lease.  The margin depends on the lease only.
 *
 *  (1) Once TERM has been sent there is no way back, even if a renewal succeeds
 *      after all: the verdict is latched, as the loss of a lock is.
 *  (2) A group that is being ended is dead before the lock is released, also a
 *      lock that was broken: the service keeps it until then.  A group whose
 *      leader ended by itself is left alone (see --wait-group): the command is
 *      over when its first process is, as with flock(1).  That of `elect` is
 *      ended, so that a term leaves nobody at work.  The --on-lost command is
 *      bound like the group that is being ended, with all that it starts.
 *  (3) The grace is at most a third of the lease.  The keeper renews when two
 *      thirds are left, so a healthy lock never comes near to it.
 *
 *  (4) --on-lost warn means that the lock is advice: the command outlives its
 *      loss and also the death of holdfast.  There is no guard then, and what
 *      is left of a lost lock is given back at once.  Only inside another run
 *      there is one, since the command must end with that.
 *  (5) Nothing that can block stands between a verdict and its signals.  What
 *      there is to say is said afterwards, by a thread of its own (say.c).
 *
 * A STOPPED COMMAND  A shell expects that a job that stops is seen to stop.  So
 * when the command stops we take the terminal back and stop too, and continue
 * it when we are continued.  A lease is not renewed meanwhile: a job that stays
 * stopped for longer than its lease is ended by the guard, which is told the
 * newest deadline before we stop, and again before the command goes on.  A
 * command that is being ended and stops is continued instead.
 */
#include "run.h"

#include "../src/base/mutant.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define HOLD_NEST_MS 100 /* so often we look at the run around us */
#define HOLD_END_MS  20  /* and at a group that is ending */

#define HOLD_MARGIN_MS 10 /* the least margin, unless the lease is tiny */

static int64_t hold_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* How far the lock can be proven. */
static int64_t hold_deadline(struct run *run)
{
    int64_t now = cli_now(), left = locks_remaining(run);
    int64_t deadline = left > INT64_MAX - now ? INT64_MAX : now + left;

    if (left > 0)
        run->proven = deadline;
    return deadline;
}

/* When a group that is being ended gets KILL: when the verdict says so, and at
 * the margin before the end of what is proven, whatever the verdict was. */
static int64_t hold_kill_at(const struct run *run)
{
    if (run->on_lost == ON_LOST_WARN || run->proven == INT64_MAX)
        return run->kill_at;
    return hold_min(run->kill_at, run->proven - run->guard.page->margin);
}

/* Tell the guard by when the group must be dead. */
static void hold_publish(struct run *run, int64_t lease)
{
    const struct guard_page *page = run->guard.page;
    int64_t at = INT64_MAX;

    if (run->stage >= STAGE_HOOK) {
        at = hold_kill_at(run);
        at = at == INT64_MAX ? at : at + page->margin;
    } else if (run->on_lost != ON_LOST_WARN) {
        if (run->hold_until != INT64_MAX)
            at = run->hold_until +
                 (run->grace > page->margin ? run->grace : page->margin);
        at = hold_min(at, lease);
    }
    guard_publish(&run->guard, at);
}

/* How long before the end of the lease KILL is sent: a twentieth of it.  Where
 * that is less than a timer, a signal and the end of a process may take, it is
 * more, but leaves most of the lease to the command. */
static int64_t hold_margin(int64_t ttl)
{
    int64_t least = hold_min(HOLD_MARGIN_MS, ttl / 4);

    return ttl / 20 < least ? least : hold_min(ttl / 20, 500);
}

void hold_times(struct run *run, int64_t lease)
{
    struct guard_page *page = run->guard.page;

    run->leased = lease != INT64_MAX;
    run->grace = run->opts->grace_ms < 0 ? 5000 : run->opts->grace_ms;
    page->margin = 0;
    if (run->leased) {
        run->grace = hold_min(run->grace, run->ttl / 3);
        page->margin = hold_margin(run->ttl); /* whatever the grace */
    }
    page->lead = run->on_lost == ON_LOST_WARN ? 0
                 : run->on_lost == ON_LOST_KILL || run->grace < page->margin
                     ? page->margin
                     : run->grace;
    run->hold_until = INT64_MAX;
    if (run->opts->max_hold_ms)
        run->hold_until = run->granted_at + run->opts->max_hold_ms;
    hold_publish(run, lease);
}

/* The command has not started, or not become the command. */
static int hold_too_late(struct run *run)
{
    run->why = WHY_LOST;
    run->loss = locks_held(run) ? HF_LOSS_EXPIRED : locks_loss(run);
    cli_say("lost '%s' (%s) before the command could start",
            locks_lost_key(run), hf_loss_name(run->loss));
    return CLI_LOST;
}

/* Start guard and command; CLI_OK, or the exit status after having said why.
 * The guard knows the deadline before there is a command, and the child looks
 * at the clock itself, so that a freeze at any point of this is covered. */
int hold_start(struct run *run)
{
    int64_t lease = hold_deadline(run);

    hold_times(run, lease);
    if (run->leased && lease - cli_now() < run->ttl - run->grace) {
        /* It was passed on to us for a moment only: make a lease of it. */
        if (locks_extend(run))
            lease = hold_deadline(run);
        hold_times(run, lease);
    }
    if (!locks_held(run) || cli_now() >= lease - run->guard.page->lead)
        return hold_too_late(run);
    if (cli_now() >= nest_term_at(&run->guard.nest)) {
        run->why = WHY_OUTER;
        cli_say("the run around this one is being ended: '%s' is given back",
                run->key);
        return CLI_LOST;
    }
    run->guard.page->start_by =
        hold_min(run->leased ? lease - run->guard.page->lead : INT64_MAX,
                 nest_term_at(&run->guard.nest));
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (run->guarded && !guard_start(&run->guard)) {
        cli_say("the guard cannot be started: %s", strerror(errno));
        return CLI_FAILED;
    }
    run->child = spawn_command(run);
    if (run->child < 0) {
        cli_say("'%s' cannot be started: %s", run->argv[0], strerror(errno));
        return CLI_FAILED;
    }
    run->pgid = run->child;
    return CLI_OK;
}

/* Tell the command through $HOLDFAST_LOST_FD; it reaches its end after that. */
static void hold_raise(struct run *run)
{
    if (run->guard.lost_fd < 0)
        return;
    guard_raise(&run->guard, run->why == WHY_MAX_HOLD ? "max-hold"
                             : run->why == WHY_OUTER  ? "outer"
                             : run->why == WHY_ENDED  ? "ended"
                                                     : hf_loss_name(run->loss));
}

/* Send TERM, unless the guard has done it. */
static void hold_term(struct run *run)
{
    run->stage = STAGE_TERM;
    if (!atomic_exchange(&run->guard.page->ending, 1))
        group_end(run->pgid);
}

static void hold_kill(struct run *run)
{
    run->stage = STAGE_KILL;
    run->kill_at = hold_min(run->kill_at, cli_now());
    atomic_store(&run->guard.page->ending, 1);
    group_signal(run->pgid, SIGKILL);
    group_signal(run->hook_group, SIGKILL);
}

/* Say why the command is being ended.  The signals have been sent. */
static void hold_explain(const struct run *run)
{
    if (run->why == WHY_LOST)
        cli_say("lost '%s' (%s): %s", locks_lost_key(run),
                hf_loss_name(run->loss),
                run->on_lost == ON_LOST_WARN ? "the command goes on without it"
                                             : "ending the command");
    else if (run->opts->quiet || run->why == WHY_ENDED)
        return;
    else if (run->why == WHY_OUTER)
        cli_say("the run around '%s' is being ended: ending the command",
                run->key);
    else
        cli_say("held '%s' for as long as --max-hold allows: ending the "
                "command",
                run->key);
}

/* Start the --on-lost command.  It has half of the time that is left; the other
 * half is for what the group does on TERM.  The guard is told before. */
static void hold_hook(struct run *run)
{
    int64_t now = cli_now();

    run->term_at = run->kill_at > now ? now + (run->kill_at - now) / 2 : now;
    atomic_store(&run->guard.page->term_at, run->term_at);
    run->hook = spawn_hook(run);
    if (run->hook < 0)
        run->hook = 0; /* no process can be had: go on without */
    run->hook_group = run->hook;
    atomic_store(&run->guard.page->hook, run->hook);
}

/* The verdict: the command may not go on.  It is dead at `kill_at`. */
static void hold_end(struct run *run, enum run_why why, int64_t kill_at)
{
    struct hf_error err;

    run->why = why;
    run->kill_at = kill_at;
    hold_raise(run);
    if (why == WHY_LOST && run->on_lost == ON_LOST_WARN) {
        run->stage = STAGE_WARNED;
        hold_explain(run);
        run_give_back(run, &err); /* the command goes on without it */
        return;
    }
    if (why == WHY_LOST && run->on_lost == ON_LOST_COMMAND)
        hold_hook(run);
    if (run->hook)
        run->stage = STAGE_HOOK;
    else if (why == WHY_LOST && run->on_lost == ON_LOST_KILL)
        hold_kill(run);
    else
        hold_term(run);
    hold_explain(run);
}

/* Say when renewals fail, and when they work again. */
static void hold_risk(struct run *run, int64_t lease)
{
    int64_t left = lease - cli_now();
    bool risk = run->leased && left < run->ttl / 2;
    char ago[32];

    if (risk == run->at_risk)
        return;
    run->at_risk = risk;
    if (run->opts->quiet)
        return;
    if (risk)
        cli_say("cannot renew '%s': it can be relied on for another %s",
                run->key, cli_ago(left, ago));
    else
        cli_say("renewed '%s' again", run->key);
}

/* When the command of a lock that was lost just now must be dead.  Others may
 * have the lock when its lease is over, and not earlier if it was broken. */
static int64_t hold_kill_time(const struct run *run, int64_t now)
{
    int64_t end = run->proven;

    if (run->loss == HF_LOSS_EXPIRED)
        return now;
    if (end != INT64_MAX)
        end -= run->guard.page->margin;
    return hold_min(now + run->grace, end);
}

/* Judge a command that is still allowed to run. */
static void hold_judge(struct run *run, int64_t lease)
{
    const struct guard_page *page = run->guard.page;
    int64_t now = cli_now();

    if (now >= nest_term_at(&run->guard.nest)) {
        hold_end(run, WHY_OUTER, nest_kill_at(&run->guard.nest));
    } else if (run->stage == STAGE_RUN && !locks_held(run)) {
        run->loss = locks_loss(run);
        hold_end(run, WHY_LOST, hold_kill_time(run, now));
    } else if (now >= run->hold_until) {
        hold_end(run, WHY_MAX_HOLD, now + run->grace);
    } else if (run->stage == STAGE_RUN &&
               (now >= lease - page->lead || atomic_load(&page->ending))) {
        run->loss = HF_LOSS_EXPIRED;
        hold_end(run, WHY_LOST,
                 lease == INT64_MAX ? now : lease - page->margin);
    } else if (run->stage == STAGE_RUN) {
        hold_risk(run, lease);
    }
}

/* A process of the command's group has stopped: so do we. */
static void hold_stopped(struct run *run, int signo)
{
    bool lent = run->tty.lent;

    if (run->stage >= STAGE_HOOK) { /* it has to end, and we with it */
        group_signal(run->pgid, SIGCONT);
        return;
    }
    if (signo == SIGTTIN || signo == SIGTTOU) {
        if (tty_on_demand(&run->tty)) {
            tty_lend(&run->tty, run->pgid);
            group_signal(run->pgid, SIGCONT);
            return;
        }
    } else if (signo == SIGSTOP && !lent) {
        return; /* somebody has his reasons, and will continue it himself */
    }
    tty_take_back(&run->tty);
    hold_publish(run, hold_deadline(run));
    guard_stop_self(&run->guard, lent);
    if (run->stage == STAGE_RUN && !locks_held(run))
        return; /* it stays stopped until it is told to end */
    hold_publish(run, hold_deadline(run));

    /* We are back.  If we could not even stop, because nobody is there who
     * would ever continue us, then the command cannot wait for the terminal
     * either and is told what the kernel tells such orphans. */
    if (!sig_was_continued() && (signo == SIGTTIN || signo == SIGTTOU))
        group_signal(run->pgid, SIGHUP);
    if (tty_ours(&run->tty) && (lent || signo != SIGTSTP))
        tty_lend(&run->tty, run->pgid);
    group_signal(run->pgid, SIGCONT);
}

/* Has the command been left to itself until now, or until its end? */
static bool hold_unjudged(const struct run *run)
{
    return run->why == WHY_NONE || run->why == WHY_ENDED;
}

static void hold_child(struct run *run, int status)
{
    if (WIFSTOPPED(status)) {
        hold_stopped(run, WSTOPSIG(status));
        return;
    }
    run->gone = true;
    run->status = status;
    run->ended_at = cli_now();
    if (hold_unjudged(run) && !atomic_load(&run->guard.page->admitted))
        hold_too_late(run);
    if (WIFSIGNALED(status) && run->tty.lent && hold_unjudged(run) &&
        (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGQUIT))
        run->die_by = WTERMSIG(status);
    tty_take_back(&run->tty);
}

/* The guard is gone.  If it has done its work the group is dead; if somebody
 * killed it a new one is needed. */
static void hold_guard_gone(struct run *run)
{
    run->guard.pid = 0;
    if (run->gone || atomic_load(&run->guard.page->ending))
        return;
    if (!guard_start(&run->guard))
        cli_say("the guard is gone and cannot be replaced: %s",
                strerror(errno));
}

/* The --on-lost command has ended.  What it has started may go on for as long as
 * the run does. */
static void hold_hook_gone(struct run *run)
{
    run->hook = 0;
    if (group_alive(run->hook_group))
        return;
    run->hook_group = 0;
    atomic_store(&run->guard.page->hook, 0);
}

/* Whether nobody of the --on-lost command is left.  Its time is over with that
 * of the command. */
static bool hold_hook_ended(const struct run *run)
{
    if (!run->hook_group || !group_alive(run->hook_group))
        return true;
    group_signal(run->hook_group, SIGKILL);
    return group_ended(run->hook_group);
}

/* Whether the child has ended and has not been reaped. */
static bool hold_ended(const struct run *run)
{
    siginfo_t info = {0};

    return !run->gone &&
           waitid(P_PID, (id_t)run->child, &info,
                  WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == run->child;
}

/* Before the child's number can be given to another process, the guard must
 * have forgotten it, unless the rest of its group has to end too.  A child that
 * ends because the run around us does is such a case: that run announces its
 * end before it sends TERM. */
static void hold_reap(struct run *run)
{
    int status;
    pid_t pid;

    if (run->stage < STAGE_HOOK && !run->opts->wait_group && hold_ended(run)) {
        if (cli_now() >= nest_term_at(&run->guard.nest))
            hold_end(run, WHY_OUTER, nest_kill_at(&run->guard.nest));
        else if (run->elected)
            hold_end(run, WHY_ENDED, cli_now() + run->grace);
        else
            atomic_store(&run->guard.page->pgid, 0);
    }
    while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0) {
        if (pid == run->child)
            hold_child(run, status);
        else if (pid == run->guard.pid && !WIFSTOPPED(status))
            hold_guard_gone(run);
        else if (pid == run->hook && !WIFSTOPPED(status))
            hold_hook_gone(run);
    }
}

static void hold_signals(struct run *run)
{
    int signo;

    while ((signo = sig_next(&run->sig))) {
        if (signo == SIGCHLD) {
            hold_reap(run);
            continue;
        }
        if (signo == SIGINT || signo == SIGQUIT || signo == SIGTERM)
            run->stop = signo;
        if (signo == SIGCONT && !run->gone && run->tty.fd >= 0 &&
            !run->tty.lent && tty_ours(&run->tty))
            tty_lend(&run->tty, run->pgid);
        if (!run->gone || run->opts->wait_group)
            group_signal(run->pgid, signo);
    }
}

/* Whether there is nothing left to wait for. */
static bool hold_over(const struct run *run)
{
    if (!run->gone || (run->stage == STAGE_HOOK && run->hook))
        return false; /* the hook has its time even if the command obeys */
    if (run->elected && HFI_MUTANT(leader_before_old_is_dead))
        return true;
    if (run->stage >= STAGE_HOOK)
        return group_ended(run->pgid) && !nest_busy(run->guard.page_fd) &&
               hold_hook_ended(run);
    return !run->opts->wait_group || group_over(run->pgid);
}

/* Milliseconds until something must be looked at again; -1 for ever. */
static int hold_pause(const struct run *run, int64_t lease)
{
    int64_t until = run->hold_until, left;

    if (run->stage == STAGE_KILL || (run->gone && run->stage >= STAGE_HOOK))
        return HOLD_END_MS;
    if (run->stage == STAGE_HOOK)
        until = hold_min(run->term_at, hold_kill_at(run));
    else if (run->stage == STAGE_TERM)
        until = hold_kill_at(run);
    else if (run->stage == STAGE_RUN && (run->leased || run->blind))
        until = hold_min(hold_min(until, lease - run->guard.page->lead),
                         cli_now() + run->ttl / 10);
    if (run->gone)
        until = hold_min(until, cli_now() + 1000);
    if (nest_binds(&run->guard.nest))
        until = hold_min(
            until,
            cli_now() + (run->stage < STAGE_HOOK ? HOLD_NEST_MS : HOLD_END_MS));
    if (until == INT64_MAX)
        return -1;
    left = until - cli_now();
    return left < 1 ? 1 : (int)hold_min(left, 3600000);
}

/* One turn: is the verdict still open, what does it say, and what is due? */
static void hold_turn(struct run *run, int64_t lease)
{
    bool open = (run->stage == STAGE_RUN && run->why == WHY_NONE) ||
                (run->stage == STAGE_WARNED && run->why == WHY_LOST);

    if (open && (!run->gone || run->opts->wait_group ||
                 atomic_load(&run->guard.page->ending)))
        hold_judge(run, lease);
    if (run->stage == STAGE_HOOK && (!run->hook || cli_now() >= run->term_at))
        hold_term(run);
    run->kill_at = hold_min(run->kill_at, nest_kill_at(&run->guard.nest));
    if (run->stage >= STAGE_HOOK && cli_now() >= hold_kill_at(run))
        hold_kill(run);
}

/* Watch over the command until it has ended. */
void hold_loop(struct run *run)
{
    struct pollfd fds[2] = {{.fd = run->sig.fd, .events = POLLIN},
                            {.fd = locks_lost_fd(run), .events = POLLIN}};

    run->blind = fds[1].fd < 0;
    for (;;) {
        int64_t lease = hold_deadline(run);

        hold_turn(run, lease);
        if (hold_over(run))
            break;
        hold_publish(run, lease);
        if (run->stage != STAGE_RUN)
            fds[1].fd = -1;
        poll(fds, 2, hold_pause(run, lease));
        hold_signals(run);
    }
    if (hold_unjudged(run) && !locks_held(run)) {
        run->why = WHY_LOST;
        run->loss = locks_loss(run);
        cli_say("lost '%s' (%s) while the command ran", locks_lost_key(run),
                hf_loss_name(run->loss));
    }
}
