/* SPDX-License-Identifier: MIT
 *
 * run.c - `holdfast run`: take the lock, run the command, give the lock back.
 * `holdfast elect` does the same again and again (elect.c).
 *
 *     open -> wait -> [guard -> command -> loop] -> guard ends -> release
 *
 * THE PROMISES (each has a test in test/cli)
 *  (1) The command runs only while the lock is held, and if the lock cannot be
 *      proven any longer its whole process group is dead before anybody else
 *      can be granted it (hold.c), also if holdfast dies or freezes (guard.c).
 *  (2) holdfast never ends before the command has.
 *  (3) The lock is released after the command is dead, and the guard, which may
 *      share the descriptor that is the lock, ends before that.
 *  (4) Signals reach the whole group (sig.c, hold.c); while there is no command
 *      yet they cancel the wait and end holdfast, leaving nothing behind.
 *  (5) The exit status is the command's own, or says why there is none.
 *
 * Signals are blocked only when the service has been opened: until then
 * nothing is held, and an address that does not answer must not make ^C wait.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void run_busy(const struct run *run, const struct hf_error *err)
{
    struct pollfd over = {.fd = peek_fd(), .events = POLLIN};
    const struct hf_info *info;
    struct cli_peek peek;

    if (run->opts->quiet)
        return;
    info = &peek.info;
    peek_take(&peek); /* what was seen while it was waited for is old */
    if (!peek_start(run->client, run->key) || poll(&over, 1, END_MS) <= 0 ||
        !peek_take(&peek) || peek.st || !info->held)
        cli_say("'%s' is busy: %s", run->key,
                err->status == HF_BUSY ? "wait with -w"
                                       : "wait longer with -w");
    else
        cli_say("'%s' is %s %s, fence %" PRIu64 ": %s", run->key,
                info->kept     ? "kept for a minimum time after its release by"
                : info->broken ? "broken, but still held by"
                               : "held by",
                info->note[0]    ? info->note
                : info->owner[0] ? info->owner
                                 : "somebody",
                info->fence,
                err->status == HF_BUSY ? "wait with -w"
                                       : "wait longer with -w");
}

/* The pipe of $HOLDFAST_LOST_FD.  A POSIX shell can name descriptors 0 to 9 and
 * no others, and scripts use the small ones, so the command gets the highest of
 * these that will be free after exec. */
static bool run_lost_pipe(struct run *run)
{
    int ends[2], flags;

    if (pipe2(ends, O_CLOEXEC) < 0)
        return false;
    run->lost_rd = ends[0];
    run->guard.lost_fd = ends[1];
    fcntl(ends[1], F_SETFL, O_NONBLOCK); /* whoever else may write to it */
    for (run->lost_num = 9; run->lost_num > STDERR_FILENO; run->lost_num--) {
        flags = fcntl(run->lost_num, F_GETFD);
        if (flags < 0 || (flags & FD_CLOEXEC))
            return true;
    }
    run->lost_num = fcntl(ends[0], F_DUPFD_CLOEXEC, 10);
    return run->lost_num >= 0;
}

/* Our own copies of its other end. */
static void run_forget_pipe(struct run *run)
{
    if (run->lost_rd >= 0)
        close(run->lost_rd);
    if (run->lost_num >= 10)
        close(run->lost_num);
    run->lost_rd = run->lost_num = -1;
}

/* The exit status of the command, as a shell would tell it. */
static int run_code(struct run *run)
{
    int failed = atomic_load(&run->guard.page->exec_errno);

    if (run->why == WHY_MAX_HOLD)
        return CLI_MAX_HOLD;
    if (run->why == WHY_LOST)
        return CLI_LOST;
    if (failed) {
        cli_say("'%s' cannot be run: %s", run->argv[0], strerror(failed));
        return failed == ENOENT ? CLI_NOT_FOUND : CLI_NOT_EXEC;
    }
    if (WIFSIGNALED(run->status))
        return 128 + WTERMSIG(run->status);
    return WEXITSTATUS(run->status);
}

/* What a thread of its own releases; it may outlive the wait for it. */
static struct {
    hf_client *client;
    struct run_locks locks;
    struct hf_lock_opts opts;
    bool unused;
    hf_status st;
    struct hf_error err;
} run_job;

static void run_job_release(void *arg)
{
    (void)arg;
    run_job.st =
        locks_release(run_job.client, &run_job.locks,
                      run_job.unused ? &run_job.opts : NULL, &run_job.err);
}

/* Has no command run under the locks? */
static bool run_is_unused(const struct run *run)
{
    return run->child <= 0 || atomic_load(&run->guard.page->exec_errno);
}

hf_status run_unanswered(const struct run *run, struct hf_error *err)
{
    err->status = HF_UNCERTAIN;
    snprintf(err->text, sizeof(err->text), "%.200s: no answer in %d s",
             run->svc.endpoint, END_MS / 1000);
    return HF_UNCERTAIN;
}

hf_status run_give_back(struct run *run, struct hf_error *err)
{
    if (run->elected)
        return elect_resign(run, err);
    run_job.client = run->client;
    run_job.locks = run->locks;
    run_job.opts = (struct hf_lock_opts)HF_LOCK_OPTS_INIT;
    wait_options(run, &run_job.opts);
    run_job.unused = run->opts->min_hold_ms && run_is_unused(run);
    memset(run->locks.lock, 0, sizeof(run->locks.lock));
    if (end_within(END_MS, run_job_release, NULL)) {
        *err = run_job.err;
        return run_job.st;
    }
    run->client = NULL;
    return run_unanswered(run, err);
}

/* The lock could not be released: say when others can have it. */
static void run_not_released(const struct run *run, const struct hf_error *err)
{
    int64_t lapse = run->svc.traits & HF_TRAIT_TWICE ? 2 * run->ttl : run->ttl;
    char ago[32];

    if (run->opts->quiet)
        return;
    cli_say("the command has ended, but '%s' could not be released: %s: "
            "the lease ends by itself in %s at the latest",
            run->key, err->text, cli_ago(lapse, ago));
}

/* Give the lock back.  What was lost unnoticed is noticed here at last. */
static int run_release(struct run *run, int code)
{
    bool known = run->why == WHY_LOST;
    struct hf_error err;
    hf_status st;

    guard_stop(&run->guard);
    if (run->guard.lost_fd >= 0)
        close(run->guard.lost_fd);
    run->guard.lost_fd = -1;
    if (!run->locks.lock[0])
        return code; /* --on-lost warn has given it back */
    if (!known)
        run->loss = locks_loss(run);
    st = run_give_back(run, &err);
    if (st == HF_OK || known)
        return code;
    if (st == HF_LOST) {
        run->why = WHY_LOST;
        cli_say("lost '%s' while the command ran", run->key);
        return CLI_LOST;
    }
    run_not_released(run, &err);
    return code;
}

/* From the grant to the release. */
static int run_held(struct run *run)
{
    int code = CLI_FAILED;

    run->granted_at = cli_now();
    for (size_t i = 0; i < run->locks.n; i++)
        run->locks.fence[i] = hf_fence(run->locks.lock[i]);
    run->slot = hf_slot(run->locks.lock[0]);
    snprintf(run->owner, sizeof(run->owner), "%s",
             hf_token(run->locks.lock[0]));
    if (run->opts->verbose)
        for (size_t i = 0; i < run->locks.n; i++)
            cli_say("%s '%s', %s %" PRIu64 ", after %" PRId64 "ms",
                    run->elected ? "leading" : "got", run->locks.keys[i],
                    run->elected ? "term" : "fence", run->locks.fence[i],
                    run->granted_at - run->asked_at);
    cli_warn_again(run->opts, run->client, &run->svc);
    say_flush(RUN_ORDER_MS);
    if (guard_open(&run->guard) && run_lost_pipe(run)) {
        run->guarded = run->on_lost != ON_LOST_WARN || run->guard.nest.page;
        run->envp = spawn_environment(run);
    }
    if (!run->envp)
        cli_say("the command cannot be prepared: %s", strerror(errno));
    else
        code = hold_start(run);
    if (code == CLI_OK) {
        hold_loop(run);
        code = run_code(run);
    }
    code = run_release(run, code);
    run_forget_pipe(run);
    free(run->envp);
    run->envp = NULL;
    return code;
}

/* The word for the outcome in the report. */
static const char *run_word(const struct run *run, hf_status st, int code)
{
    if (run->cancel)
        return "canceled";
    if (st)
        return hf_status_name(st);
    if (run->why == WHY_LOST)
        return "lost";
    if (run->why == WHY_MAX_HOLD)
        return "max-hold";
    if (run->why == WHY_OUTER)
        return "canceled";
    return code == CLI_FAILED && !run->gone ? "failed" : "ok";
}

int run_locked(struct run *run, const char **ret)
{
    struct hf_error err;
    hf_status st;
    int code;

    st = wait_for_lock(run, &err);
    if (run->cancel) {
        if (st == HF_OK)
            run_give_back(run, &err);
        code = 128 + run->cancel;
    } else if (st == HF_OK) {
        code = run_held(run);
    } else if (cli_exit_of(st) == CLI_BUSY) {
        run_busy(run, &err);
        code = run->opts->busy_exit;
    } else {
        code = cli_fail(&err);
    }
    *ret = run_word(run, st, code);
    return code;
}

void run_init(struct run *run, struct cli_opts *opts)
{
    *run = (struct run){
        .opts = opts, .lost_rd = -1, .sig.fd = -1, .guard.alive = -1};
    run->guard.lost_fd = run->guard.page_fd = -1;
    tty_init(&run->tty);
}

int run_begin(struct run *run)
{
    static char note[HF_NOTE_MAX + 1];
    struct cli_opts *opts = run->opts;
    int code = args_check(run);

    if (code)
        return code;
    if (!opts->note) {
        args_note(run, note);
        opts->note = note;
    }
    if (!say_start()) {
        cli_say("no thread can be started: is a limit reached?");
        return CLI_FAILED;
    }
    if (!spawn_absolute(opts)) {
        cli_say("the URL is relative and the current directory is not known: "
                "%s",
                strerror(errno));
        return CLI_CONFIG;
    }
    if (!report_open(run))
        return CLI_FAILED;
    run->asked_at = cli_now();
    code = cli_open(opts, &run->client, &run->svc);
    if (code)
        return code;
    run->remote = run->svc.traits & HF_TRAIT_MACHINES;
    run->ttl = opts->ttl_ms ? opts->ttl_ms : run->svc.ttl_ms;
    return sig_open(&run->sig) ? CLI_OK : sig_failed();
}

int run_end(struct run *run, const char *word, int code)
{
    if (run->client) {
        report_count(run);
        cli_close(run->client);
    }
    report_write(run, word, code);
    if (run->cancel || run->die_by)
        say_flush(END_SAY_MS);
    if (run->cancel)
        sig_die(run->cancel, false);
    if (run->die_by && (!run->why || run->why == WHY_ENDED))
        sig_die(run->die_by, true);
    return code;
}

int cmd_run(struct cli_opts *opts)
{
    const char *word = "failed";
    struct run run;
    int code;

    run_init(&run, opts);
    code = run_begin(&run);
    if (!code)
        code = run_locked(&run, &word);
    return run_end(&run, word, code);
}
