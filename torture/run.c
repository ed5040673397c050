/* SPDX-License-Identifier: MIT
 *
 * run.c - `holdfast run' as a client: is the command dead before the next holder
 * is let in?
 *
 * The command is this program again.  It notes that it lives, every few
 * milliseconds, for as long as it does: that is its belief, and it ends without a
 * word when it is killed.  Some commands ignore TERM, and wait for KILL.
 *
 * In the history it has the number of its process plus RUN_PROCESS, since it
 * outlives that.  `holdfast' itself does not: it is killed with the process that
 * started it, and the command must end all the same.
 */
#include "client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Between two notes. */
#define BEAT_US 2000

/* The program `holdfast', beside this one or where the build has put it. */
static void run_find(char *ret, size_t size)
{
    static const char *const places[] = {"/holdfast", "/../cli/holdfast"};
    ssize_t len = readlink("/proc/self/exe", ret, size - 32);
    char *slash;

    ret[len > 0 ? len : 0] = '\0';
    slash = strrchr(ret, '/');
    for (size_t i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
        memcpy(slash, places[i], strlen(places[i]) + 1);
        if (access(ret, X_OK) == 0)
            return;
    }
    snprintf(ret, size, "holdfast");
}

static _Noreturn void run_exec(struct worker *w, int key, const char *name)
{
    const struct plan *plan = &w->shared->plan;
    char tool[1024], self[1024], full[128], ttl[32], wait[32], work[32];
    char number[16];
    bool stubborn = worker_chance(w, 4) == 0;
    int64_t length = (int64_t)worker_chance(w, 30);
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

    self[len > 0 ? len : 0] = '\0';
    if (atomic_load(&w->shared->tense) || worker_chance(w, 20) == 0)
        length = (int64_t)worker_chance(w, (uint64_t)plan->ttl_ms * 2);
    run_find(tool, sizeof(tool));
    client_key(plan, key, full, sizeof(full));
    snprintf(ttl, sizeof(ttl), "%lldms", (long long)plan->ttl_ms);
    snprintf(wait, sizeof(wait), "%lldms", (long long)plan->ttl_ms * 2);
    snprintf(work, sizeof(work), "%s%lld", stubborn ? "s" : "",
             (long long)length);
    snprintf(number, sizeof(number), "%d", key);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl(tool, "holdfast", "run", "-q", "-u", w->url, "-t", ttl, "-w", wait,
          full, "--", self, "--client", name, "--dir", w->dir, "--inside",
          number, work, (char *)NULL);
    _exit(127);
}

/* Has a command begun?  It says so in its own lines; we only have to note that
 * none has. */
void run_turn(struct worker *w, int key)
{
    _Atomic int *place = &w->shared->runs[w->who.process][w->who.thread];
    struct who who = {RUN_PROCESS + w->who.process,
                      w->who.life * 10000 + ++w->runs, w->who.thread};
    char name[64];
    int status = 0;
    pid_t pid;

    snprintf(name, sizeof(name), "%d.%d.%d", who.process, who.life, who.thread);
    history_log(w->log, who, W_ask, key, 0, ASK_RUN, NULL);
    pid = fork();
    if (pid == 0)
        run_exec(w, key, name);
    if (pid > 0) {
        atomic_store(place, (int)pid);
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
        atomic_store(place, 0);
    }
    /* A grant that is over takes no harm from this. */
    history_log(w->log, who, W_no, key, 0, 0, "ended");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        atomic_fetch_add(&w->shared->grants[w->who.process][w->who.thread], 1);
}

/* Live for so long, and say so. */
static void inside_stay(int log, struct who who, int key, uint64_t fence,
                        int64_t us)
{
    int64_t end = history_now() + us, now;

    while ((now = history_now()) < end) {
        history_log(log, who, W_kept, key, fence, now, NULL);
        usleep(BEAT_US);
    }
}

/* The command: NAME is PROCESS.LIFE.THREAD, WORK is in ms, with an s before it if
 * TERM is ignored. */
int run_inside(const char *dir, const char *name, const char *key,
               const char *work)
{
    const char *text = getenv("HOLDFAST_FENCE");
    uint64_t fence = text ? strtoull(text, NULL, 10) : 0, seen;
    int64_t length = strtoll(work + (*work == 's'), NULL, 10) * 1000, value;
    struct shared *shared = shared_open(dir);
    int at = (int)strtol(key, NULL, 10), log;
    struct who who;

    if (!shared || at < 1 || at > MAX_KEYS ||
        sscanf(name, "%d.%d.%d", &who.process, &who.life, &who.thread) != 3)
        return 64;
    log = history_open(dir, who.process, who.life);
    if (log < 0)
        return 74;
    if (*work == 's')
        signal(SIGTERM, SIG_IGN);
    history_log(log, who, W_got, at, fence, history_now(), NULL);
    if (register_read(&shared->cells[at], fence, &value, &seen)) {
        inside_stay(log, who, at, fence, length);
        if (register_write(&shared->cells[at], fence, value + 1, &seen))
            history_log(log, who, W_write, at, fence, value + 1, NULL);
    }
    history_log(log, who, W_free, at, fence, 0, NULL);
    return 0;
}
