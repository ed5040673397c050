/* SPDX-License-Identifier: MIT
 *
 * elect.c - `holdfast elect`: campaign, run the command while leading, resign.
 *
 * A leader is the holder of a lock, its term is the fence, and its value is the
 * note of the lock.  Each term is a `run` of its own, with its own guard: what
 * run.c promises of a lock holds for the leadership.  Between two terms:
 *
 *  (1) The leadership is given up after the command and its whole process group
 *      are dead, whatever ended them.  So the work of a leader is over before
 *      the work of the next begins.
 *  (2) A leadership that was lost is campaigned for again.  So is one that ended
 *      with the command, with --forever; otherwise elect ends as the command
 *      did.  A leader that resigned is behind those who wait already.
 *  (3) A command that was told to end by a signal is not started again, and
 *      neither is one that cannot be executed.
 *  (4) Commands that end at once are started less and less often, and others
 *      can lead in the meantime.
 *
 * `holdfast break` is how an operator makes a leader step down: the command is
 * ended, and the next candidate follows when it is dead.  --heir names the
 * candidate to whom a leader that resigns gives way.  It is named after the
 * command is dead and while the leadership still stands, so that nothing changes
 * if it cannot be: then the first of the queue follows.
 */
#include "run.h"

#include <poll.h>
#include <string.h>
#include <sys/wait.h>

#define ELECT_FIRST_MS 1000 /* the first pause */
#define ELECT_LAST_MS                                                          \
    60000 /* the longest; a term that lasted so long is well */

/* Has the release ended?  Then *err says how. */
static bool elect_released(struct run *run, const hf_request *request,
                           struct hf_error *err)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(run->client, &event))
        if (event.type == HF_ANSWERED && event.request == request) {
            *err = event.error;
            return true;
        }
    return false;
}

/* Was the command told to end, by a signal to us or by its terminal? */
static bool elect_told_to_end(const struct run *run)
{
    return run->stop || run->die_by ||
           (run->gone && WIFSIGNALED(run->status) &&
            WTERMSIG(run->status) == SIGHUP);
}

/* Is there no other term after this one? */
static bool elect_over(const struct run *run)
{
    if (!run->granted_at || !run->client || elect_told_to_end(run))
        return true;
    if (run->guard.page && atomic_load(&run->guard.page->exec_errno))
        return true;
    if (run->why == WHY_LOST)
        return false;
    return run->why == WHY_OUTER || !run->gone || !run->opts->forever;
}

/* hf_transfer(), which waits for the service.  Static: a call that is not waited
 * for goes on. */
static struct {
    hf_lock *lock;
    const char *heir;
    hf_status st;
    struct hf_error err;
} elect_job;

static void elect_transfer(void *arg)
{
    (void)arg;
    elect_job.st = hf_transfer(elect_job.lock, elect_job.heir, &elect_job.err);
}

/* Let the candidate of --heir be the next, if it is one.  False if the service
 * did not answer in time and no other term follows: then the call goes on, and
 * the lock is left to it. */
static bool elect_name_heir(const struct run *run)
{
    elect_job.lock = run->locks.lock[0];
    elect_job.heir = run->opts->heir;
    if (!elect_job.heir || !locks_held(run))
        return true;
    if (!elect_over(run))
        elect_transfer(NULL);
    else if (!end_within(END_MS, elect_transfer, NULL))
        return false;
    if (elect_job.st && !run->opts->quiet)
        cli_say("'%s' could not be made the next leader of '%s': %s: whoever "
                "is next follows",
                elect_job.heir, run->key, elect_job.err.text);
    return true;
}

static void elect_close(void *client)
{
    hf_close(client);
}

/* The service has had its time.  If another term follows, the library goes on
 * with the release, and the next campaign stands behind it; else the process
 * ends without waiting for the service once more. */
static hf_status elect_unanswered(struct run *run, struct hf_error *err)
{
    if (elect_over(run) && run->client) {
        end_within(1, elect_close, run->client);
        run->client = NULL;
    }
    return run_unanswered(run, err);
}

hf_status elect_resign(struct run *run, struct hf_error *err)
{
    struct pollfd fd = {.fd = hf_events_fd(run->client), .events = POLLIN};
    int64_t end, left = END_MS;
    hf_request *request = NULL;

    if (run->child > 0 && !elect_name_heir(run)) {
        run->locks.lock[0] = NULL;
        run->client = NULL;
        return run_unanswered(run, err);
    }
    end = cli_now() + END_MS;
    hf_release_start(run->locks.lock[0], NULL, &request);
    run->locks.lock[0] = NULL;
    while (request && left > 0) {
        if (elect_released(run, request, err))
            return err->status;
        poll(&fd, 1, fd.fd < 0 && left > 50 ? 50 : (int)left);
        left = end - cli_now();
    }
    return elect_unanswered(run, err);
}

/* How long to wait before the next campaign. */
static int64_t elect_next_pause(const struct run *run, int64_t pause)
{
    int64_t lasted = cli_now() - run->granted_at;

    if (lasted >= ELECT_LAST_MS ||
        (run->why == WHY_LOST && !pause && lasted >= ELECT_FIRST_MS))
        return run->why == WHY_LOST ? 0 : ELECT_FIRST_MS;
    if (!pause)
        return ELECT_FIRST_MS;
    return 2 * pause < ELECT_LAST_MS ? 2 * pause : ELECT_LAST_MS;
}

static void elect_say(const struct run *run, int code, int64_t pause)
{
    char ago[32], when[48] = "", how[64] = "";

    if (run->opts->quiet)
        return;
    if (pause)
        snprintf(when, sizeof(when), " in %s", cli_ago(pause, ago));
    if (run->why != WHY_LOST)
        snprintf(how, sizeof(how),
                 "the command has ended with status %d: ", code);
    cli_say("%scampaigning for '%s' again%s", how, run->key, when);
}

/* Forget the last term; keep what all terms have in common. */
static void elect_again(struct run *run)
{
    struct run next;

    guard_close(&run->guard);
    group_forget();
    run_init(&next, run->opts);
    next.key = run->key;
    next.client = run->client;
    memcpy(next.locks.keys, run->locks.keys, sizeof(next.locks.keys));
    next.locks.n = run->locks.n;
    next.svc = run->svc;
    next.remote = run->remote;
    next.elected = run->elected;
    next.sig = run->sig;
    next.tty = run->tty;
    next.guard.nest = run->guard.nest;
    next.argv = run->argv;
    next.ttl = run->ttl;
    next.on_lost = run->on_lost;
    next.asked_at = cli_now();
    *run = next;
}

int cmd_elect(struct cli_opts *opts)
{
    const char *word = "failed";
    int64_t pause = 0;
    struct run run;
    int code;

    run_init(&run, opts);
    run.elected = true;
    code = run_begin(&run);
    while (!code) {
        code = run_locked(&run, &word);
        if (elect_over(&run))
            break;
        pause = elect_next_pause(&run, pause);
        elect_say(&run, code, pause);
        elect_again(&run);
        wait_pause(&run, pause);
        code = run.cancel ? 128 + run.cancel : CLI_OK;
        run.asked_at = cli_now();
    }
    return run_end(&run, word, code);
}
