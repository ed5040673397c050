/* SPDX-License-Identifier: MIT
 *
 * sqlite.h - what the parts of the sqlite: backend share.
 *
 *   sqlite.c       sessions, statements, the table of operations
 *   many.c         many keys in one transaction
 *   statements.c  the statements, which stand in *.sql
 *   file.c  the file: its name, and whether it is still that one
 *   wait.c  wake-ups by inotify
 *   observe.c  the same for observers
 */
#ifndef HFI_BACKEND_SQLITE_H
#define HFI_BACKEND_SQLITE_H

#include <sqlite3.h>
#include <sys/types.h>

#include "backend/sql/sql.h"

#define LITE_PATH_MAX 4096

/* How late a waiter may be where a notifier cannot be rung. */
#define LITE_NET_MS 1000

/* The database, its log, and the index of that. */
#define LITE_FILES 3

struct lite_id {
    dev_t dev;
    ino_t ino;
};

/* Those that observers watch: the database and its log. */
#define LITE_OBSERVED 2

/* Two looks at one key are that far apart, at least: most commits are of other
 * keys. */
#define LITE_OBSERVE_GAP_MS 20

struct lite_file {
    int wd;      /* -1: it is not watched */
    int last_wd; /* what it was before */
    struct lite_id id;
};

struct lite_conn {
    struct sql_conn sql;
    char path[LITE_PATH_MAX]; /* absolute, as the URL names it */
    char real[LITE_PATH_MAX]; /* without symbolic links; of the first session */
    char boot[40];            /* which boot of which machine this is */
    _Atomic int64_t fence;    /* the highest that was granted to us */

    pthread_mutex_t notifier_mu; /* guards what follows */
    bool notifier_opened;
    int inotify_fd;
    int dir_fd;            /* of the notifiers; -1 if there is none */
    int bells_fd;          /* of those of single waiters; likewise */
    bool listens;          /* inotify_fd watches the first, */
    int dir_wd;            /* as this */
    struct hfi_link heard; /* of struct lite_watch */

    /* observe.c */
    struct hfi_link observed; /* of struct lite_observation */
    struct lite_file files[LITE_OBSERVED];
    uint64_t events;  /* how often the files may have been written, */
    uint64_t settled; /* and up to which of them that was committed */
};

/* observation->own */
struct lite_observation {
    struct hfi_link link; /* in lite_conn.observed */
    struct hfi_observation *observation;
};

/* A waiter hears by one of so many files, which its client and its key tell. */
#define LITE_BELLS 4096

/* Who is to be told of a change. */
struct lite_rings {
    bool old; /* those who know of no queue */
    bool any;
    unsigned char bells[LITE_BELLS / 8];
};

struct lite_use;

/* The most statements of a script. */
#define LITE_SCRIPT 24

struct lite_script {
    int n; /* 0: not prepared yet */
    sqlite3_stmt *stmts[LITE_SCRIPT];
};

struct lite_session {
    struct sql_session base;
    sqlite3 *db;
    sqlite3_stmt *stmts[SQL_STMTS];
    struct lite_script scripts[SQL_STMTS];
    sqlite3_stmt *begin, *commit;
    int64_t deadline;               /* of the statement that runs */
    int pages;                      /* in the log, after our last commit */
    int write_back_at;              /* once it has so many */
    struct lite_id ids[LITE_FILES]; /* what it has opened */
    struct lite_use *use;           /* of file.c; NULL: none yet */
};

/* ---- statements.c ----------------------------------------------------- */

extern const char *const lite_lease_texts[SQL_STMTS];
extern const char *const lite_version_texts[SQL_STMTS];
extern const char *const lite_queue_texts[SQL_STMTS];

/* ---- sqlite.c ---------------------------------------------------- */

hf_status lite_exec(struct lite_session *, const char *text, struct hf_error *);

/* One statement in the session's files, wherever they are by now. */
hf_status lite_step(struct lite_session *, enum sql_stmt,
                    const struct sql_call *, struct sql_answer *,
                    struct hf_error *);

/* End a transaction: by COMMIT if the status is HF_OK, else by ROLLBACK. */
hf_status lite_end(struct lite_session *, hf_status, struct hf_error *);

/* So great a fence was granted to us. */
void lite_fenced(struct lite_conn *, int64_t fence);

/* ---- many.c ------------------------------------------------------ */

hf_status lite_renew_many(struct lite_session *, const struct sql_call *,
                          struct sql_answer *, struct hf_error *);

/* SQL_TAKE_ALL: *ret are the fences, in the order of the keys, or it is left
 * alone if not all were free.  lite_taken() tells of them, and frees them. */
hf_status lite_take_all(struct lite_session *, const struct sql_call *,
                        int64_t **ret, struct hf_error *);
void lite_taken(struct lite_conn *, const struct sql_call *, int64_t *fences,
                struct sql_answer *);

/* ---- file.c ----------------------------------------------------- */

/* Which boot is this?  sqlite.c (1) */
hf_status lite_boot(struct lite_conn *, struct hf_error *);

/* Are clock and boot id those of the machine?  file.c (6) */
hf_status lite_boot_judge(struct hf_error *);

/* Take the path of the URL; refused are names that SQLite keeps in memory, and
 * file systems whose locks are made elsewhere. */
hf_status lite_find(struct lite_conn *, const char *path, struct hf_error *);

/* Note which files the session has opened. */
hf_status lite_remember(struct lite_session *, struct hf_error *);

/* Is this not a child of a process that has it open, and does the file have one
 * name only?  Ask before SQLite does anything; and note that a session has it
 * open, and not any more. */
hf_status lite_may_open(const struct lite_conn *, struct hf_error *);
hf_status lite_use(struct lite_session *, struct hf_error *);
void lite_unuse(struct lite_session *);

/* What the name leads to; one that is not there has the number 0. */
struct lite_id lite_file_id(const char *path, const char *suffix);
bool lite_file_is_same(struct lite_id, struct lite_id);

/* Do their names lead to other files by now, or to none? */
bool lite_has_moved(const struct lite_session *);

/* ---- wait.c ----------------------------------------------------- */

void lite_notifier_open(struct lite_conn *);
void lite_notifier_close(struct lite_conn *);
void lite_after_fork_child(struct hfi_conn *);
void lite_notify(struct lite_conn *, const char *key);

/* Note a waiter, by its channel; and tell all of them. */
void lite_rings_add(struct lite_rings *, const char *channel, const char *key);
void lite_ring(struct lite_conn *, const struct lite_rings *, const char *key);
hf_status lite_watch(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *, int64_t deadline, struct hf_error *);
void lite_unwatch(struct hfi_conn *, const struct hfi_claim *,
                  struct hfi_receipt *);
int lite_poll_fd(struct hfi_conn *);
void lite_dispatch(struct hfi_conn *);

/* With the mutex held: have lc->inotify_fd, or errno says why not. */
bool lite_need_inotify(struct lite_conn *);

/* ---- observe.c -------------------------------------------------- */

hf_status lite_observe(struct hfi_conn *, struct hfi_observation *,
                       int64_t deadline, struct hf_error *);
hf_status lite_reobserve(struct hfi_conn *, struct hfi_observation *,
                         int64_t deadline, struct hf_error *);
void lite_unobserve(struct hfi_conn *, struct hfi_observation *);

/* With the mutex held: was the event for observers alone? */
struct inotify_event;
bool lite_observed(struct lite_conn *, const struct inotify_event *);

#endif
