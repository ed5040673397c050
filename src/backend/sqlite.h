/* SPDX-License-Identifier: MIT
 *
 * sqlite.h - what the parts of the sqlite: backend share.
 *
 *   sqlite.c       sessions, statements, the table of operations
 *   sqlite_text.c  the statements
 *   sqlite_bell.c  wake-ups by inotify
 */
#ifndef HFI_BACKEND_SQLITE_H
#define HFI_BACKEND_SQLITE_H

#include <sqlite3.h>

#include "sql.h"

#define LITE_PATH_MAX 4096

struct lite_conn {
    struct sql_conn sql;
    char path[LITE_PATH_MAX];
    char boot[40]; /* which boot of which machine this is */

    pthread_mutex_t bell_mu; /* guards what follows */
    bool bell_opened;
    int inotify_fd;
    int dir_fd;            /* of the bells; -1 if there is none */
    struct hfi_link heard; /* of struct lite_watch */
};

/* ---- sqlite_text.c ----------------------------------------------------- */

extern const char *const lite_lease_texts[SQL_STMTS];
extern const char *const lite_version_texts[SQL_STMTS];

/* ---- sqlite_bell.c ----------------------------------------------------- */

void lite_bell_open(struct lite_conn *);
void lite_bell_close(struct lite_conn *);
void lite_ring(struct lite_conn *, const char *key);
hf_status lite_watch(struct hfi_conn *, const struct hfi_claim *,
                     struct hfi_grant *, int64_t deadline, struct hf_error *);
void lite_unwatch(struct hfi_conn *, const struct hfi_claim *,
                  struct hfi_grant *);
int lite_pump_fd(struct hfi_conn *);
void lite_pump(struct hfi_conn *);

#endif
