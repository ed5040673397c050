/* SPDX-License-Identifier: MIT
 *
 * run.h - the parts of `holdfast run` and `holdfast elect`.
 *
 *     args.c     the arguments of both
 *     run.c      sequence: open, wait, hold, release, report
 *     elect.c    the same again and again: campaign, lead, resign
 *     wait.c     waiting for the lock, and saying so
 *     hold.c     the loop while the command runs: signals, loss, end
 *     spawn.c    environment, fork and exec of the command
 *     guard.c    the second process, which acts when holdfast cannot
 *     nest.c     a run inside the command of another
 *     group.c    a process group: signal it, see whether it lives
 *     sig.c      signals as a descriptor, and back to what they were
 *     tty.c      lending the terminal
 *     report.c   --report
 */
#ifndef RUN_H
#define RUN_H

#include "cli.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/types.h>

/* ---- sig.c --------------------------------------------------------------- */

struct sig {
    int fd; /* readable while a signal waits; -1 before sig_open() */
    sigset_t old;
    struct sigaction old_chld;
    struct sigaction old_pipe;
};

extern const int sig_ending[]; /* those that end a program; 0 is the last */
bool sig_ends(int signo);      /* is it one of them? */
bool sig_open(struct sig *sig);
int sig_failed(void);          /* say that it failed; the exit status */
int sig_next(struct sig *sig); /* the next signal, or 0 */
void sig_restore(const struct sig *sig); /* before exec; async-signal-safe */
void sig_stop_self(bool whole_group);    /* returns once continued */
bool sig_was_continued(void);            /* a SIGCONT waits */
_Noreturn void sig_die(int signo, bool whole_group);

/* ---- tty.c --------------------------------------------------------------- */

struct tty {
    int fd;    /* the controlling terminal; -1 if not needed */
    bool lent; /* the command's group is in the foreground */
};

void tty_init(struct tty *tty);
bool tty_wanted(struct tty *tty); /* lend it from the start? */
bool tty_on_demand(struct tty *tty);
void tty_lend(struct tty *tty, pid_t pgid);
void tty_take_back(struct tty *tty);
bool tty_ours(const struct tty *tty);

/* ---- group.c ------------------------------------------------------------- */

void group_signal(pid_t pgid, int signo);
void group_end(pid_t pgid);   /* TERM, and wake it if it is stopped */
bool group_alive(pid_t pgid); /* or there are zombies of it */
bool group_over(pid_t pgid);  /* of one that is left to itself */
bool group_ended(pid_t pgid); /* of a group that has been told to end */
void group_forget(void);      /* what is known of groups that are dead */

/* ---- guard.c ------------------------------------------------------------- */

/* What holdfast, the guard and the command (until its exec) share. */
struct guard_page {
    uint64_t magic;             /* nest.c */
    _Atomic int64_t deadline;   /* by then the group must be dead; INT64_MAX */
    _Atomic int32_t pgid;       /* 0: there is nothing to kill */
    _Atomic int64_t term_at;    /* not TERM earlier: a hook runs; or 0 */
    _Atomic int32_t ending;     /* 1: the group has got TERM or KILL */
    _Atomic int32_t told;       /* 1: $HOLDFAST_LOST_FD has been written */
    _Atomic int32_t hook;       /* the group of the --on-lost command, or 0 */
    _Atomic int32_t closed;     /* 1: nothing may be started any more */
    _Atomic int32_t admitted;   /* 1: the command was started in time */
    _Atomic int32_t exec_errno; /* why exec failed */
    _Atomic int32_t stopped;    /* 1: holdfast has stopped as the command did */
    int64_t start_by;           /* when it must have started, if not renewed */
    int64_t lead;               /* act so long before the deadline */
    int64_t margin;             /* KILL so long before the deadline */
};

/* The run whose command we are in, if there is one. */
struct nest {
    const struct guard_page *page; /* NULL: none */
};

struct guard {
    struct guard_page *page;
    int page_fd; /* the same as a descriptor, for runs inside the command */
    struct nest nest;
    pid_t pid;    /* 0: not running */
    pid_t parent; /* holdfast */
    int alive;    /* our end of the pipe whose end means that we are dead */
    int lost_fd;  /* where the command's $HOLDFAST_LOST_FD is written */
};

bool guard_open(struct guard *guard);
void guard_close(struct guard *guard); /* the page; after guard_stop() */
bool guard_start(struct guard *guard);
void guard_publish(struct guard *guard, int64_t deadline);
void guard_raise(struct guard *guard,
                 const char *reason); /* tell the command */
void guard_stop_self(struct guard *guard,
                     bool whole_group); /* sig_stop_self() */
void guard_stop(struct guard *guard);

/* How long the guard sleeps while it ends the group. */
int guard_pause_ms(int64_t now, int64_t kill_at);

/* In a child, before it becomes another program: put its group where the guard
 * looks for it.  False if it is too late: then the child must not go on.
 * Async-signal-safe. */
bool guard_admits(struct guard_page *page, _Atomic int32_t *group,
                  int64_t before);

/* ---- nest.c -------------------------------------------------------------- */

#define NEST_NAME 64

/* Make the page that the runs inside our command may read; NULL on failure.
 * The descriptor is -1 if it cannot be handed down. */
struct guard_page *nest_make(int *fd);

/* The value of $HOLDFAST_WITHIN for it; NULL if it cannot be handed down. */
const char *nest_name(int fd, char ret[NEST_NAME]);

/* Whether a run inside our command, or its guard, lives. */
bool nest_busy(int fd);

/* Find the run around us and make it wait for our end and that of our guard. */
void nest_open(struct nest *nest);
bool nest_binds(const struct nest *nest);

/* When that run ends its command, and thus us; INT64_MAX. */
int64_t nest_term_at(const struct nest *nest);
int64_t nest_kill_at(const struct nest *nest);

/* ---- what they share ------------------------------------------------------ */

#define RUN_ORDER_MS 100 /* so long the command waits for our own words */

enum run_stage {
    STAGE_RUN,    /* all is well */
    STAGE_WARNED, /* lost, but --on-lost warn */
    STAGE_HOOK,   /* the --on-lost command runs, TERM follows */
    STAGE_TERM,   /* TERM has been sent, KILL follows */
    STAGE_KILL    /* KILL has been sent */
};

enum run_why {
    WHY_NONE,
    WHY_LOST,
    WHY_MAX_HOLD,
    WHY_OUTER, /* the run around us has to end */
    WHY_ENDED  /* of elect: the command has ended, and its group has to */
};

enum run_on_lost { ON_LOST_TERM, ON_LOST_KILL, ON_LOST_WARN, ON_LOST_COMMAND };

#define RUN_KEYS_MAX (CLI_AND_MAX + 1)

/* See locks.c.  The first key is KEY. */
struct run_locks {
    const char *keys[RUN_KEYS_MAX];
    hf_lock *lock[RUN_KEYS_MAX]; /* NULL: not held by this run */
    uint64_t fence[RUN_KEYS_MAX];
    size_t n;
};

struct run {
    struct cli_opts *opts;
    const char *key;
    hf_client *client;
    struct hf_stats stats; /* of it, when it was closed */
    struct run_locks locks;
    struct hf_service svc;
    bool remote;  /* the service is not on this machine */
    bool manual;  /* nobody renews: acquire */
    bool elected; /* the command is that of a leader: elect */
    int32_t slot; /* -1: no --permits */
    char owner[HF_OWNER_MAX + 1];
    struct sig sig;
    struct tty tty;
    struct guard guard;
    char **argv;
    char **envp;
    int lost_rd;  /* the command's end of $HOLDFAST_LOST_FD */
    int lost_num; /* its number in the command */
    FILE *report;

    int64_t asked_at;
    int64_t granted_at; /* 0: never */
    int64_t ended_at;
    int64_t ttl;
    int64_t grace;
    int64_t hold_until; /* INT64_MAX: no --max-hold */
    int64_t proven;     /* how far the lock could be proven when it was held */
    int64_t term_at;    /* when a hook has had its time */
    int64_t kill_at;
    bool leased;
    bool guarded; /* there is a guard */
    bool blind;   /* there is no descriptor that tells of the loss */
    bool at_risk;
    enum run_on_lost on_lost;
    enum run_stage stage;
    enum run_why why;
    hf_loss loss;

    pid_t child;
    pid_t pgid;       /* its group; stays when the child has been reaped */
    bool gone;        /* the child has been reaped, status is set */
    int status;       /* as waitpid gives it */
    pid_t hook;       /* the --on-lost command, 0 if it does not run */
    pid_t hook_group; /* its group; stays while one of it lives */
    int cancel;       /* the signal that ended the wait */
    int64_t cancel_at;
    int die_by; /* end by this signal, as the command did */
    int stop;   /* a signal that ends a program was passed on */
};

/* ---- locks.c ------------------------------------------------------------- */

#define LOCKS_FENCES (RUN_KEYS_MAX * 21)

/* Take all of them, once; begin to take them. */
hf_status locks_acquire(struct run *run, const struct hf_lock_opts *opts,
                        struct hf_error *err);
hf_status locks_acquire_start(struct run *run, int64_t wait_ms,
                              const struct hf_lock_opts *opts, hf_request **ret,
                              struct hf_error *err);
bool locks_held(const struct run *run);
hf_loss locks_loss(const struct run *run);
const char *locks_lost_key(const struct run *run);
int64_t locks_remaining(const struct run *run);
bool locks_extend(const struct run *run);
int locks_lost_fd(const struct run *run);
void locks_fences(const struct run *run, char ret[LOCKS_FENCES]);
hf_status locks_release(hf_client *client, struct run_locks *locks,
                        const struct hf_lock_opts *unused,
                        struct hf_error *err);

/* ---- args.c -------------------------------------------------------------- */

/* Check what the option table cannot know, and set keys, command and what is
 * done at a loss.  CLI_OK or the exit status. */
int args_check(struct run *run);

/* Set the keys of the run from its options. */
void args_set_keys(struct run *run);

/* The default note. */
void args_note(const struct run *run, char ret[HF_NOTE_MAX + 1]);

/* ---- run.c --------------------------------------------------------------- */

void run_init(struct run *run, struct cli_opts *opts);

/* Everything up to the wait; CLI_OK, or the exit status after having said why.
 * run_end() follows in both cases; it may end the process by a signal. */
int run_begin(struct run *run);
int run_end(struct run *run, const char *word, int code);

/* From the wait to the release; *ret is the word for the report. */
int run_locked(struct run *run, const char **ret);

/* Release the lock in a limited time; HF_UNCERTAIN if that is over.  Then the
 * client is still in use, and run->client becomes NULL, except that of elect,
 * which can be used again. */
hf_status run_give_back(struct run *run, struct hf_error *err);
hf_status elect_resign(struct run *run, struct hf_error *err);

/* What is said of a release without an answer; returns its status. */
hf_status run_unanswered(const struct run *run, struct hf_error *err);

/* Say who is in the way, after HF_BUSY or HF_TIMEOUT. */
void run_busy(const struct run *run, const struct hf_error *err);

hf_status wait_for_lock(struct run *run, struct hf_error *err);

/* Wait for nothing, so long; a signal may end it and sets run->cancel. */
void wait_pause(struct run *run, int64_t ms);
void wait_options(const struct run *run, struct hf_lock_opts *ret);
/* Decide when the command must end, and how much earlier that begins. */
void hold_times(struct run *run, int64_t lease);
int hold_start(struct run *run);
void hold_loop(struct run *run);

bool spawn_absolute(struct cli_opts *opts);
const char *spawn_url(const struct cli_opts *opts);
char **spawn_environment(const struct run *run);

/* Our environment with `count` variables set anew, those with NULL left alone,
 * in one block of memory; NULL if there is none. */
char **spawn_merge(const char *const *names, const char *const *values,
                   size_t count);
pid_t spawn_command(struct run *run);
pid_t spawn_hook(struct run *run);

bool report_open(struct run *run);
void report_count(struct run *run);
void report_write(struct run *run, const char *status, int code);

#endif
