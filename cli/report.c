/* SPDX-License-Identifier: MIT
 *
 * report.c - `--report FILE`: the outcome of a run as one JSON object.
 *
 * An exit status cannot tell a command that exits with 75 from a busy lock.
 * The report can.  The file is opened before anything else happens, so that a
 * name that cannot be written is an error at a moment when it costs nothing.
 * `fd:N` writes to a descriptor that the caller has opened; the command does
 * not inherit it.
 *
 * A pipe that nobody reads must not keep holdfast from its beginning nor from its
 * end.  A FIFO without a reader is opened when there is something to write; the
 * object is put together in memory, and opening and writing may take END_MS.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a thread of its own writes; it may outlive the wait for it. */
static struct {
    const char *name; /* of a FIFO that had no reader, or NULL */
    int fd;
    char *text;
    size_t len;
    int failed; /* errno */
} report_job = {.fd = -1};

static void report_send(void *arg)
{
    size_t done = 0;
    ssize_t n = 0;

    (void)arg;
    if (report_job.name)
        report_job.fd = open(report_job.name, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    while (report_job.fd >= 0 && done < report_job.len && n >= 0) {
        n = write(report_job.fd, report_job.text + done, report_job.len - done);
        done += n > 0 ? (size_t)n : 0;
        if (n < 0 && errno == EINTR)
            n = 0;
    }
    if (report_job.fd < 0 || n < 0 || close(report_job.fd))
        report_job.failed = errno ? errno : EIO;
}

/* Nothing waits for a reader of a FIFO. */
static int report_file(const char *name)
{
    int fd = open(
        name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
        0666);
    struct stat st;

    if (fd >= 0)
        fcntl(fd, F_SETFL, O_WRONLY);
    else if (errno == ENXIO && !stat(name, &st) && S_ISFIFO(st.st_mode))
        report_job.name = name;
    return fd;
}

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
        fd = report_file(name);
    }
    report_job.fd = fd;
    if (fd >= 0 || report_job.name)
        run->report = open_memstream(&report_job.text, &report_job.len);
    if (!run->report)
        cli_say("--report %s: %s", name, strerror(errno));
    return run->report != NULL;
}

/* How the command ended: exited, signaled, or not-started. */
static void report_ending(struct cli_json *json, const struct run *run)
{
    bool failed =
        run->guard.page && (atomic_load(&run->guard.page->exec_errno) ||
                            !atomic_load(&run->guard.page->admitted));

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

/* The other keys and the slot, where there are any. */
static void report_several(struct cli_json *json, const struct run *run)
{
    char fences[LOCKS_FENCES];

    if (run->locks.n > 1) {
        locks_fences(run, fences);
        cli_json_str(json, "fences", fences);
    }
    if (run->slot >= 0)
        cli_json_num(json, "slot", run->slot);
}

/* The counters, before the client that has them is closed. */
void report_count(struct run *run)
{
    run->stats = (struct hf_stats)HF_STATS_INIT;
    if (hf_stats(run->client, &run->stats, NULL))
        run->stats = (struct hf_stats)HF_STATS_INIT;
}

/* Renewals, and how close to the end of the lease the latest of them was
 * confirmed: at least so much was left, in steps of a power of two. */
static void report_renewals(struct cli_json *json, const struct hf_stats *stats)
{
    int bucket = 0;

    cli_json_num(json, "renewals", (int64_t)stats->renewed);
    cli_json_num(json, "renewals_failed", (int64_t)stats->renewals_failed);
    if (!stats->margin.count)
        return;
    while (bucket < 31 && !stats->margin.buckets[bucket])
        bucket++;
    cli_json_num(json, "margin_ms",
                 bucket ? (INT64_C(1) << (bucket - 1)) / 1000 : 0);
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
        cli_json_fence(&json, run->locks.fence[0]);
        report_several(&json, run);
        cli_json_str(&json, "owner", run->owner);
        cli_json_num(&json, "held_ms", end - run->granted_at);
        report_renewals(&json, &run->stats);
    }
    report_ending(&json, run);
    if (run->why == WHY_LOST)
        cli_json_str(&json, "lost", hf_loss_name(run->loss));
    cli_json_close(&json);
    putc('\n', run->report);
    if (fclose(run->report))
        report_job.failed = errno ? errno : EIO;
    run->report = NULL;
    if (!end_within(END_MS, report_send, NULL))
        cli_say("--report %s: nobody reads it", run->opts->report);
    else if (report_job.failed)
        cli_say("--report %s: %s", run->opts->report,
                strerror(report_job.failed));
}
