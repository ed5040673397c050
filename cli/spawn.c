/* SPDX-License-Identifier: MIT
 *
 * spawn.c - environment, fork and exec of the command.
 *
 * The command finds itself in the world that holdfast was started in: the same
 * stdin, stdout and stderr, signal mask and dispositions, and not one of our
 * descriptors but the one that it is told about.  What differs is its process
 * group and eight variables, which are always overwritten, so that in a nested
 * run the inner values are seen:
 *
 *     HOLDFAST_KEY, HOLDFAST_FENCE, HOLDFAST_OWNER
 *     HOLDFAST_FENCES    those of all keys, KEY's first
 *     HOLDFAST_SLOT      with --permits; else empty
 *     HOLDFAST_LOST_FD   becomes readable (a line with the reason, then the
 *                        end of file) when the lock is lost or given up
 *     HOLDFAST_URL       the service, so that nested runs use the same one,
 *                        whatever their directory is; left as it was if the
 *                        URL of -u holds a secret
 *
 *     HOLDFAST_WITHIN    where a nested run finds our deadline (nest.c); a
 *                        descriptor belongs to it
 *
 * All memory is allocated before fork, since other threads may hold the
 * allocator's lock at that moment; the child makes only system calls.
 *
 * The lock is proven when the child becomes the command, and not only when we
 * decided to start it: we may have been stopped in between, for longer than the
 * lease.  So the child looks at the clock once more, after it has told the
 * guard of itself, and before exec (guard.c (7)).  What holdfast has renewed
 * meanwhile counts: it is the child that may have been late.
 *
 * The child dies with us (PR_SET_PDEATHSIG): the kernel's own guard, which
 * needs nobody to be alive.  It counts from the death of the *thread* that
 * forked, so only the main thread may come here, and a parent that died before
 * the call would be missed, so the child looks at its parent afterwards.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <unistd.h>

extern char **environ;

#define SPAWN_VARS 8
#define SPAWN_TEXT LOCKS_FENCES /* the longest value that is made here */

static const char *const spawn_names[SPAWN_VARS] = {
    "HOLDFAST_KEY", "HOLDFAST_FENCE",  "HOLDFAST_OWNER",  "HOLDFAST_LOST_FD",
    "HOLDFAST_URL", "HOLDFAST_WITHIN", "HOLDFAST_FENCES", "HOLDFAST_SLOT"};

/* The path of a URL whose service lies in the file system, if it is one that
 * depends on the current directory; else NULL. */
static const char *spawn_relative(const char *url)
{
    static const char *const schemes[] = {"file:", "sqlite:", "redis+unix:"};

    for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++) {
        const char *path = url + strlen(schemes[i]);

        if (!strncasecmp(url, schemes[i], strlen(schemes[i])))
            return !*path || *path == '/' || *path == '?' ||
                           !strncasecmp(path, "%2F", 3)
                       ? NULL
                       : path;
    }
    return NULL;
}

/* Make the URL mean the same in every directory.  False, with errno, if that
 * cannot be done; it is kept until the end of the process. */
bool spawn_absolute(struct cli_opts *opts)
{
    const char *path = opts->url ? spawn_relative(opts->url) : NULL;
    char *here, *text = NULL;
    size_t size;
    FILE *out;

    if (!path)
        return true;
    here = getcwd(NULL, 0);
    out = here && *here == '/' ? open_memstream(&text, &size) : NULL;
    if (!out) {
        free(here);
        return false;
    }
    fprintf(out, "%.*s", (int)(path - opts->url), opts->url);
    for (const char *c = here; *c; c++)
        if (strchr("%?#&@", *c))
            fprintf(out, "%%%02X", (unsigned)*c);
        else
            putc(*c, out);
    fprintf(out, "%s%s", here[1] ? "/" : "", path);
    free(here);
    if (fclose(out))
        return false;
    opts->url = text;
    return true;
}

/* The URL for a holdfast inside the command, or NULL to leave it alone. */
const char *spawn_url(const struct cli_opts *opts)
{
    return opts->url && (opts->url_from_env || !cli_url_secret(opts->url))
               ? opts->url
               : NULL;
}

/* The value for one of our variables in `buf`, or NULL to leave it alone. */
static const char *spawn_value(const struct run *run, int which,
                               char buf[SPAWN_TEXT])
{
    switch (which) {
    case 0:
        return run->key;
    case 1:
        snprintf(buf, SPAWN_TEXT, "%" PRIu64, run->locks.fence[0]);
        return buf;
    case 2:
        return run->owner;
    case 3:
        snprintf(buf, SPAWN_TEXT, "%d", run->lost_num);
        return buf;
    case 5:
        return run->guarded ? nest_name(run->guard.page_fd, buf) : NULL;
    case 6:
        locks_fences(run, buf);
        return buf;
    case 7:
        if (run->slot < 0)
            return ""; /* and not that of a run around us */
        snprintf(buf, SPAWN_TEXT, "%d", (int)run->slot);
        return buf;
    default:
        return spawn_url(run->opts);
    }
}

/* Whether `entry` ("NAME=value") is one of those that are being set. */
static bool spawn_replaced(const char *entry, char *const *set, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t len = strcspn(set[i], "=") + 1;

        if (!strncmp(entry, set[i], len))
            return true;
    }
    return false;
}

/* The pointers come first in the block, then the text of our variables. */
char **spawn_merge(const char *const *names, const char *const *values,
                   size_t count)
{
    size_t room = count + 1, size = 0, used = 0, ours;
    char *text, **envp;

    for (size_t i = 0; i < count; i++)
        if (values[i])
            size += strlen(names[i]) + strlen(values[i]) + 2;
    for (char **old = environ; *old; old++)
        room++;
    envp = malloc(room * sizeof(*envp) + size);
    if (!envp)
        return NULL;
    text = (char *)(envp + room);
    for (size_t i = 0; i < count; i++)
        if (values[i]) {
            envp[used++] = text;
            text = stpcpy(stpcpy(text, names[i]), "=");
            text = stpcpy(text, values[i]) + 1;
        }
    ours = used;
    for (char **old = environ; *old; old++)
        if (!spawn_replaced(*old, envp, ours))
            envp[used++] = *old;
    envp[used] = NULL;
    return envp;
}

char **spawn_environment(const struct run *run)
{
    const char *values[SPAWN_VARS];
    char bufs[SPAWN_VARS][SPAWN_TEXT];

    for (int i = 0; i < SPAWN_VARS; i++)
        values[i] = spawn_value(run, i, bufs[i]);
    return spawn_merge(spawn_names, values, SPAWN_VARS);
}

/* Until when the command may start.  Renewals since we were forked count. */
static int64_t spawn_before(const struct run *run)
{
    const struct guard_page *page = run->guard.page;
    int64_t deadline = atomic_load(&page->deadline);
    int64_t outer = nest_term_at(&run->guard.nest);
    int64_t at = page->start_by;

    if (deadline != INT64_MAX && deadline - page->lead > at)
        at = deadline - page->lead;
    return at < outer ? at : outer;
}

/* The command's own life until exec. */
static _Noreturn void spawn_child(struct run *run, pid_t parent, bool lend)
{
    struct guard_page *page = run->guard.page;

    setpgid(0, 0);
    if (lend)
        tcsetpgrp(run->tty.fd, getpid());
    if (run->guarded) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(CLI_FAILED);
    }
    if (!guard_admits(page, &page->pgid, spawn_before(run)))
        _exit(CLI_LOST);
    atomic_store(&page->admitted, 1);
    dup2(run->lost_rd, run->lost_num);
    fcntl(run->lost_num, F_SETFD, 0);
    if (run->guarded)
        fcntl(run->guard.page_fd, F_SETFD, 0);
    sig_restore(&run->sig);
    execvpe(run->argv[0], run->argv, run->envp);
    atomic_store(&page->exec_errno, errno);
    _exit(errno == ENOENT ? CLI_NOT_FOUND : CLI_NOT_EXEC);
}

pid_t spawn_command(struct run *run)
{
    bool lend = tty_wanted(&run->tty);
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid < 0)
        return -1;
    if (pid == 0)
        spawn_child(run, parent, lend);

    /* Both sides do this, so that it is done whoever comes first. */
    setpgid(pid, pid);
    atomic_store(&run->guard.page->pgid, pid);
    if (lend)
        tty_lend(&run->tty, pid);
    return pid;
}

/* Run the --on-lost command: in a group of its own, with the same variables,
 * and never in the foreground. */
pid_t spawn_hook(struct run *run)
{
    static char shell[] = "/bin/sh", dash_c[] = "-c";
    char *argv[] = {shell, dash_c, (char *)run->opts->on_lost, NULL};
    struct guard_page *page = run->guard.page;
    pid_t pid = fork();

    if (pid > 0)
        setpgid(pid, pid); /* both sides, as above */
    if (pid != 0)
        return pid;
    setpgid(0, 0);
    if (!guard_admits(page, &page->hook, run->term_at))
        _exit(CLI_LOST);
    dup2(run->lost_rd, run->lost_num);
    fcntl(run->lost_num, F_SETFD, 0);
    sig_restore(&run->sig);
    execve(argv[0], argv, run->envp);
    _exit(CLI_NOT_FOUND);
}
