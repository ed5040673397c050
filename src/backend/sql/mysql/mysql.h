/* SPDX-License-Identifier: MIT
 *
 * mysql.h - what the parts of the mysql: backend share.
 *
 *   mysql.c       open, close; sessions, statements, errors
 *   connect.c     the URL, a connection, its settings, what must be refused
 *   row.c         sessions of strategy row
 *   script.c      several statements in one message
 *   wait.c        try_acquire, poll_fd, dispatch
 *   statements.c  the statements, which stand in *.sql
 */
#ifndef HFI_BACKEND_MYSQL_H
#define HFI_BACKEND_MYSQL_H

#include <mysql.h>

#include "backend/sql/sql.h"

/* The longest statement with its parameters pasted in. */
#define MY_TEXT_MAX 32768

/* What a server may send at most: bytes of a packet, rows of an answer. */
#define MY_PACKET_MAX (1 << 20)
#define MY_ROWS_MAX   200000

#define MY_PASSWORD_MAX 512

/* The lock of the server by which a session is found; its number follows. */
#define MY_OWN "holdfast:"

enum my_param {
    MY_HOST,
    MY_USER,
    MY_PASSWORD,
    MY_PASSWORD_FILE,
    MY_DATABASE,
    MY_SOCKET,
    MY_SSL_CA,
    MY_SSL_CERT,
    MY_SSL_KEY,
    MY_PARAMS
};

struct my_conn {
    struct sql_conn sql;
    char *params[MY_PARAMS]; /* NULL: not given */
    unsigned port;
    bool tls;                /* insist on it */
    bool verify;             /* and look whose certificate it is */
    bool galera, mariadb;    /* as the first session has found */
    bool several;            /* likewise: more than one node takes changes */
    unsigned long version;   /* likewise */
    bool skips;              /* likewise: the server knows SKIP LOCKED */
    _Atomic int64_t pace_us; /* of a place in a line, as seen last; or 0 */
};

struct my_session {
    struct sql_session base;
    MYSQL *my;
    bool sent;      /* the statement that runs has left */
    int wait;       /* strategy row: what the answer waits for; 0: none */
    int64_t number; /* names its own lock in the server; connect.c (1) */
    int dial;       /* while it connects, over several calls: likewise */
    char password[MY_PASSWORD_MAX]; /* until then */
    char text[MY_TEXT_MAX];
};

/* ---- statements.c ------------------------------------------------------ */

extern const char *const my_lease_texts[SQL_STMTS];
extern const char *const my_version_texts[SQL_STMTS];
extern const char *const my_queue_texts[SQL_STMTS];
extern const char *const my_row_texts[SQL_STMTS];

/* ---- connect.c ------------------------------------------------------ */

hf_status my_params(struct my_conn *, const struct hfi_url *,
                    struct hf_error *);
void my_params_free(struct my_conn *);

/* Connect, or go on with it.  HF_BUSY: not yet, call again. */
hf_status my_connect(struct my_session *, bool first, int64_t deadline,
                     struct hf_error *);
hf_status my_settle(struct my_session *, int64_t deadline, struct hf_error *);

/* ---- row.c ------------------------------------------------------- */

hf_status my_row_send(struct sql_session *, const char *key, bool wait,
                      int64_t ttl_ms, int64_t deadline, struct hf_error *);
hf_status my_row_done(struct sql_session *, bool *found, int64_t deadline,
                      struct hf_error *);
hf_status my_row_beat(struct sql_session *, int64_t ttl_ms, struct hf_error *);
hf_status my_row_end(struct sql_session *, int64_t deadline, struct hf_error *);
int my_fd(struct sql_session *);
int64_t my_id(struct sql_session *);

/* ---- script.c ---------------------------------------------------- */

hf_status my_run_script(struct my_session *, enum sql_stmt,
                        const struct sql_call *, struct sql_answer *,
                        int64_t deadline, struct hf_error *);

/* ---- wait.c ------------------------------------------------------ */

hf_status my_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                         struct hfi_receipt *, struct hfi_answer *,
                         int64_t deadline, struct hf_error *);
int my_poll_fd(struct hfi_conn *);
void my_dispatch(struct hfi_conn *);

/* ---- mysql.c ----------------------------------------------------------- */

/* Wait for what libmariadb waits for; 0 once the deadline has passed. */
int my_wait(MYSQL *, int status, int64_t deadline);
bool my_is_quiet(MYSQL *);

/* Run a text; the rows and numbers go to `answer`, which may be NULL. */
hf_status my_exec(struct my_session *, const char *text,
                  struct sql_answer *answer, int64_t deadline,
                  struct hf_error *);

/* The answer of a statement that was sent. */
hf_status my_store(struct my_session *, struct sql_answer *answer,
                   int64_t deadline, struct hf_error *);
hf_status my_error(struct my_session *, struct hf_error *);
hf_status my_late(struct my_session *, struct hf_error *);

/* Put the parameters of a call into a statement; NULL if it is too long. */
const char *my_paste(struct my_session *, const char *text,
                     const struct sql_call *);

#endif
