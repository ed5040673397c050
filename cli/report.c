/* SPDX-License-Identifier: MIT
 *
 * report.c - `--report FILE`: the outcome of a run as one JSON object.
 *
 * An exit status cannot tell a command that exits with 75 from a busy lock.
 * The report can.  The file is opened before anything else happens, so that a
 * name that cannot be written is an error at a moment when it costs nothing.
 * `fd:N` writes to a descriptor that the caller has opened; the command does
 * not inherit it.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool report_open(struct run *run)
{
    const char *name = run->opts->report;
    int fd;

    if (!name)
        return true;
    if (!strncmp(name, "fd:", 3)) {
        char *end;
        long n = strtol(name + 3, &end, 10);

        fd = !name[3] || *end || n < 0 || n > 1 << 20 ? -1 : (int)n;
        if (fd < 0 || fcntl(fd, F_GETFD) < 0) {
            cli_say("--report %s: no such descriptor is open", name);
            return false;
        }
        if (fd <= STDERR_FILENO)
            fd = fcntl(fd, F_DUPFD_CLOEXEC, 10);
        else
            fcntl(fd, F_SETFD, FD_CLOEXEC);
    } else {
        fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY,
                  0666);
    }
    run->report = fd < 0 ? NULL : fdopen(fd, "w");
    if (!run->report)
        cli_say("--report %s: %s", name, strerror(errno));
    return run->report != NULL;
}

/* How the command ended: exited, signaled, or not-started. */
static void report_ending(struct cli_json *json, const struct run *run)
{
    bool failed = run->guard.page && atomic_load(&run->guard.page->exec_errno);

    if (!run->gone || failed) {
        cli_json_str(json, "ended", "not-started");
    } else if (WIFSIGNALED(run->status)) {
        cli_json_str(json, "ended", "signaled");
        cli_json_num(json, "signal", WTERMSIG(run->status));
    } else {
        cli_json_str(json, "ended", "exited");
        cli_json_num(json, "code", WEXITSTATUS(run->status));
    }
}

void report_write(struct run *run, const char *status, int code)
{
    int64_t end = run->ended_at ? run->ended_at : cli_now();
    struct cli_json json;

    if (!run->report)
        return;
    cli_json_open(&json, run->report);
    cli_json_str(&json, "key", run->key);
    cli_json_str(&json, "status", status);
    cli_json_num(&json, "exit", code);
    cli_json_num(&json, "waited_ms",
                 (run->granted_at ? run->granted_at : end) - run->asked_at);
    if (run->granted_at) {
        cli_json_num(&json, "fence", (int64_t)run->fence);
        cli_json_str(&json, "owner", run->owner);
        cli_json_num(&json, "held_ms", end - run->granted_at);
    }
    report_ending(&json, run);
    if (run->why == WHY_LOST)
        cli_json_str(&json, "lost", hf_loss_name(run->loss));
    cli_json_close(&json);
    putc('\n', run->report);
    if (fclose(run->report))
        cli_say("--report %s: %s", run->opts->report, strerror(errno));
    run->report = NULL;
}
