/* SPDX-License-Identifier: MIT
 *
 * run.c - `holdfast run' and `holdfast elect' as clients: is the command dead
 * before the next holder is let in?
 *
 * The command is this program again.  It notes that it lives, every few
 * milliseconds, for as long as it does: that is its belief, and it ends without a
 * word when it is killed.  Some commands ignore TERM, and wait for KILL.
 *
 * In the history it has the number of its process plus RUN_PROCESS, since it
 * outlives that.  `holdfast' itself does not: it is killed with the process that
 * started it, and the command must end all the same.
 *
 * The command of a leader may leave a child at work when it ends.  Until that is
 * dead the term is not over, so the child notes that it lives under the same
 * name.  Each term has a life of its own, the number of its first process: two
 * terms of one candidate must not overlap either.
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

/* What the command is to do: for how long, in ms; with an s before it ignores
 * TERM, with a c before that it leaves the rest to a child. */
static void run_choose_work(struct worker *w, bool elect, char *ret,
                            size_t size)
{
    int64_t ttl = w->shared->plan.ttl_ms;
    int64_t length = (int64_t)worker_chance(w, 30);
    bool stubborn = worker_chance(w, 4) == 0;
    bool leaves = elect && worker_chance(w, 2) == 0;

    if (atomic_load(&w->shared->tense) || worker_chance(w, 20) == 0)
        length = (int64_t)worker_chance(w, (uint64_t)ttl * 2);
    snprintf(ret, size, "%s%s%lld", leaves ? "c" : "", stubborn ? "s" : "",
             (long long)length);
}

static _Noreturn void run_exec(struct worker *w, int key, bool elect,
                               const char *name)
{
    const struct plan *plan = &w->shared->plan;
    char tool[1024], self[1024], full[128], ttl[32], wait[32], work[32];
    char number[16];
    ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

    self[len > 0 ? len : 0] = '\0';
    run_find(tool, sizeof(tool));
    client_key(plan, key, full, sizeof(full));
    snprintf(ttl, sizeof(ttl), "%lldms", (long long)plan->ttl_ms);
    snprintf(wait, sizeof(wait), "%lldms", (long long)plan->ttl_ms * 2);
    snprintf(number, sizeof(number), "%d", key);
    run_choose_work(w, elect, work, sizeof(work));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl(tool, "holdfast", elect ? "elect" : "run", "-q", "-u", w->url, "-t",
          ttl, "-w", wait, "--grace", elect ? "100ms" : "5s", full, "--", self,
          "--client", name, "--dir", w->dir, "--inside", number, work,
          (char *)NULL);
    _exit(127);
}

/* Has a command begun?  It says so in its own lines; we only have to note that
 * none has. */
void run_turn(struct worker *w, int key, bool elect)
{
    _Atomic int *place = &w->shared->runs[w->who.process][w->who.thread];
    struct who who = {(elect ? ELECT_PROCESS : RUN_PROCESS) + w->who.process,
                      w->who.life * 10000 + ++w->runs, w->who.thread};
    char name[64];
    int status = 0;
    pid_t pid;

    snprintf(name, sizeof(name), "%d.%d.%d", who.process, who.life, who.thread);
    history_log(w->log, who, W_ask, key, 0, ASK_RUN, NULL);
    pid = fork();
    if (pid == 0)
        run_exec(w, key, elect, name);
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

/* Who the command is: NAME is PROCESS.LIFE.THREAD. */
static bool inside_name(const char *name, struct who *ret)
{
    if (sscanf(name, "%d.%d.%d", &ret->process, &ret->life, &ret->thread) != 3)
        return false;
    if (ret->process > ELECT_PROCESS)
        ret->life = (int)getpid();
    return true;
}

/* The command; see run_choose_work(). */
int run_inside(const char *dir, const char *name, const char *key,
               const char *work)
{
    const char *text = getenv("HOLDFAST_FENCE");
    bool leaves = *work == 'c', stubborn = *(work += leaves) == 's';
    uint64_t fence = text ? strtoull(text, NULL, 10) : 0, seen;
    int64_t length = strtoll(work + stubborn, NULL, 10) * 1000, value;
    struct shared *shared = shared_open(dir);
    int at = (int)strtol(key, NULL, 10), log;
    struct who who;

    if (!shared || at < 1 || at > MAX_KEYS || !inside_name(name, &who))
        return 64;
    log = history_open(dir, who.process, who.life);
    if (log < 0)
        return 74;
    if (stubborn)
        signal(SIGTERM, SIG_IGN);
    history_log(log, who, W_got, at, fence, history_now(), NULL);
    if (leaves && fork() > 0)
        return 0;
    if (register_read(&shared->cells[at], fence, &value, &seen)) {
        inside_stay(log, who, at, fence, length);
        if (register_write(&shared->cells[at], fence, value + 1, &seen))
            history_log(log, who, W_write, at, fence, value + 1, NULL);
    }
    history_log(log, who, W_free, at, fence, 0, NULL);
    return 0;
}
