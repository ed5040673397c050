/* SPDX-License-Identifier: MIT
 *
 * sqlite.h - what the parts of the sqlite: backend share.
 *
 *   sqlite.c       sessions, statements, the table of operations
 *   statements.c  the statements, which stand in *.sql
 *   file.c  the file: its name, and whether it is still that one
 *   wait.c  wake-ups by inotify
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
    bool listens;          /* inotify_fd watches it */
    struct hfi_link heard; /* of struct lite_watch */
};

struct lite_use;

struct lite_session {
    struct sql_session base;
    sqlite3 *db;
    sqlite3_stmt *stmts[SQL_STMTS];
    int64_t deadline;               /* of the statement that runs */
    struct lite_id ids[LITE_FILES]; /* what it has opened */
    struct lite_use *use;           /* of file.c; NULL: none yet */
};

/* ---- statements.c ----------------------------------------------------- */

extern const char *const lite_lease_texts[SQL_STMTS];
extern const char *const lite_version_texts[SQL_STMTS];

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

/* Do their names lead to other files by now, or to none? */
bool lite_has_moved(const struct lite_session *);

/* ---- wait.c ----------------------------------------------------- */

void lite_notifier_open(struct lite_conn *);
void lite_notifier_close(struct lite_conn *);
void lite_after_fork_child(struct hfi_conn *);
void lite_notify(struct lite_conn *, const char *key);
hf_status lite_watch(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_receipt *, int64_t deadline, struct hf_error *);
void lite_unwatch(struct hfi_conn *, const struct hfi_claim *,
                  struct hfi_receipt *);
int lite_poll_fd(struct hfi_conn *);
void lite_dispatch(struct hfi_conn *);

#endif
