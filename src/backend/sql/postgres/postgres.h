/* SPDX-License-Identifier: MIT
 *
 * postgres.h - what the parts of the postgres: backend share.
 *
 *   postgres.c    open, close; sessions, statements
 *   connect.c     the URL, a connection
 *   settings.c    settings of a session, what must be refused
 *   find.c        where the table is, and who is trusted with it
 *   acquire.c     try_acquire
 *   wait.c        watch, unwatch, poll_fd, dispatch, by LISTEN
 *   pipeline.c    several statements in one message
 *   row.c         sessions of strategy row
 *   wire.c        questions and answers, errors
 *   statements.c  the statements, which stand in *.sql
 */
#ifndef HFI_BACKEND_POSTGRES_H
#define HFI_BACKEND_POSTGRES_H

#include <libpq-fe.h>
#include <stdatomic.h>

#include "backend/sql/sql.h"

#define PG_PARAMS_MAX   48
#define PG_SETTINGS_MAX 2048
#define PG_LISTS        6 /* host, hostaddr, port: in the URL and its options */

/* The most that is read of an answer, in bytes. */
#define PG_ANSWER_MAX ((size_t)4 << 20)
#define PG_LIST_MAX   ((size_t)256 << 20)

/* A session, by its process and when that began: a number that is not given
 * again while anybody may remember it.  It fits into 62 bits. */
#define PG_PID_BITS "4194303"
#define PG_ID(pid, start)                                                      \
    "((((extract(epoch from " start ")*1000)::int8&1099511627775)<<22)|(" pid  \
    "&" PG_PID_BITS "))"
#define PG_SAME(pid, id) "(" pid "&" PG_PID_BITS ")=(" id "&" PG_PID_BITS ")"

#define PG_POOLED                                                              \
    "a pooler is between client and server: waiters ask again and again, "     \
    "since they cannot be woken through it"

struct pg_conn {
    struct sql_conn sql;
    char *names[PG_PARAMS_MAX], *values[PG_PARAMS_MAX]; /* for libpq */
    size_t params;
    atomic_uint turn;    /* which of the hosts is tried first; connect.c */
    char *password_file; /* read for each connection; or NULL */
    atomic_bool pooled;  /* a pooler is in between */

    pthread_mutex_t wake_mu; /* guards what follows */
    bool wake_opened;
    bool making;              /* somebody is about to bring a listener */
    bool missed;              /* and others could not wait for it */
    PGconn *listener;         /* read by dispatch() only, once it is here */
    int listener_fd;          /* as backend/sql/fds.c knows it */
    size_t heard;             /* since the last notifier */
    atomic_bool listening;    /* there was one: keep it */
    atomic_uint listeners;    /* how many there have been */
    struct hfi_link observed; /* of struct pg_observation */
    int64_t unobserve_at;     /* no unobserve() asks the server before then */
};

/* observation->own */
struct pg_observation {
    struct hfi_link link; /* in pg_conn.observed */
    struct hfi_observation *observation;
    int64_t at;     /* when its row was written last, */
    unsigned epoch; /* and to which listener it tells */
    char token[HFI_TOKEN_LEN + 1];
};

struct pg_session {
    struct sql_session base;
    PGconn *pg;
    int64_t id;  /* PG_ID; behind a pooler 0, but for a row that is locked */
    bool pooled; /* wire.c (2) */
    uint64_t number;    /* in the names of what it prepares; wire.c (3) */
    bool late;          /* the last answer had not come at the deadline */
    size_t heard, most; /* of the answer under way; wire.c (1) */

    /* While it opens, over several calls: what libpq waits for, and how far we
     * are. */
    PostgresPollingStatusType want;
    unsigned turn; /* which of the hosts it began with */
    bool settling, judged;
    int verified; /* of the tables, one or two */
};

/* ---- statements.c --------------------------------------------------- */

extern const char *const pg_lease_texts[SQL_STMTS];
extern const char *const pg_version_texts[SQL_STMTS];
extern const char *const pg_queue_texts[SQL_STMTS];
extern const char *const pg_row_texts[SQL_STMTS];

/* ---- connect.c --------------------------------------------------- */

hf_status pg_params(struct pg_conn *, const struct hfi_url *,
                    struct hf_error *);
void pg_params_free(struct pg_conn *);

/* Connect, or go on with it.  HF_BUSY: not yet, call again. */
hf_status pg_dial(struct pg_session *, int64_t deadline, struct hf_error *);

/* ---- settings.c ------------------------------------------------- */

/* The same for settings of our own; with `first`, find the table, and refuse
 * what cannot keep our promises. */
hf_status pg_settle(struct pg_session *, bool first, int64_t deadline,
                    struct hf_error *);

/* Prepare the renewals in the first session, which had no statements yet. */
void pg_prepare_renewals(struct sql_session *, int64_t deadline);

/* What each session, or behind a pooler each transaction, is told first.
 * `local`, in SQL: whether it ends with the transaction. */
void pg_settings(const struct pg_session *, const char *local, char *buf,
                 size_t size);

/* ---- find.c --------------------------------------------------- */

/* Which of the schemas that were searched, as the server lists them, has the
 * table, or shall have it. */
hf_status pg_find(struct pg_session *, const char *path, int64_t deadline,
                  struct hf_error *);

/* ---- wire.c --------------------------------------------------- */

/* Run a text of several statements and keep the last result. */
hf_status pg_exec(struct pg_session *, const char *text, PGresult **ret,
                  int64_t deadline, struct hf_error *);

/* Wait until the socket can be read (or written); false: too late. */
bool pg_poll(PGconn *, short events, int64_t deadline);

/* The session was cut (`why` NULL: as libpq says); nothing could be sent; the
 * server said no. */
hf_status pg_cut(struct pg_session *, const char *why, struct hf_error *);
hf_status pg_unsent(struct pg_session *, struct hf_error *);
hf_status pg_error(struct pg_session *, const PGresult *, struct hf_error *);
hf_status pg_bad_reply(struct pg_session *, struct hf_error *);

/* A value of a result, NULL or 0 if there is none. */
const char *pg_value(const PGresult *, int row, int column);
int64_t pg_integer(const PGresult *, int row, int column);
bool pg_subscribed(PGconn *, size_t *heard, size_t most);

/* The name of a prepared statement; wire.c (3). */
#define PG_NAME_MAX 32
void pg_name(const struct pg_session *, enum sql_stmt, char ret[PG_NAME_MAX]);

/* Around a statement behind a pooler; *began: pg_finish() must follow. */
hf_status pg_begin(struct pg_session *, bool *began, int64_t deadline,
                   struct hf_error *);
hf_status pg_finish(struct pg_session *, bool began, hf_status,
                    int64_t deadline, struct hf_error *);

/* One question with parameters, all of it in text. */
hf_status pg_ask(struct pg_session *, const char *text, int n,
                 const char *const *values, PGresult **ret, int64_t deadline,
                 struct hf_error *);

/* Wait for the next result, NULL after the last; or for all of them, and keep
 * the last. */
hf_status pg_next(struct pg_session *, PGresult **ret, int64_t deadline,
                  struct hf_error *);

/* Likewise, but HF_BUSY at the deadline: the answer may still come. */
hf_status pg_next_soon(struct pg_session *, PGresult **ret, int64_t deadline,
                       struct hf_error *);
hf_status pg_results(struct pg_session *, PGresult **ret, int64_t deadline,
                     struct hf_error *);
const char *pg_line(char *buf, size_t size, const char *message);

/* ---- pipeline.c ------------------------------------------------ */

hf_status pg_pipeline(struct pg_session *, enum sql_stmt,
                      const struct sql_call *, struct sql_answer *,
                      int64_t deadline, struct hf_error *);

/* ---- postgres.c ------------------------------------------------ */

void pg_script_rows(const PGresult *, struct sql_answer *);

/* ---- row.c ---------------------------------------------------- */

hf_status pg_row_send(struct sql_session *, const char *key, bool wait,
                      int64_t ttl_ms, int64_t deadline, struct hf_error *);
hf_status pg_row_done(struct sql_session *, bool *found, int64_t deadline,
                      struct hf_error *);
hf_status pg_row_beat(struct sql_session *, int64_t ttl_ms, struct hf_error *);
hf_status pg_row_end(struct sql_session *, int64_t deadline, struct hf_error *);
int pg_fd(struct sql_session *);
int64_t pg_id(struct sql_session *);

/* ---- acquire.c ------------------------------------------------ */

hf_status pg_try_acquire(struct hfi_conn *, const struct hfi_claim *,
                         struct hfi_receipt *, struct hfi_answer *,
                         int64_t deadline, struct hf_error *);

/* ---- wait.c --------------------------------------------------- */

hf_status pg_listen(struct pg_conn *, int64_t deadline, struct hf_error *);
void pg_unlisten(struct pg_conn *);
void pg_doubt_listener(struct pg_conn *);
void pg_listen_again(struct pg_conn *, int64_t deadline);
void pg_unsubscribed(struct pg_conn *, const struct hfi_claim *);
hf_status pg_watch(struct hfi_conn *, const struct hfi_claim *,
                   struct hfi_receipt *, int64_t deadline, struct hf_error *);
void pg_unwatch(struct hfi_conn *, const struct hfi_claim *,
                struct hfi_receipt *);
int pg_poll_fd(struct hfi_conn *);
void pg_dispatch(struct hfi_conn *);

/* ---- observe.c ------------------------------------------------ */

hf_status pg_observe(struct hfi_conn *, struct hfi_observation *,
                     int64_t deadline, struct hf_error *);
void pg_unobserve(struct hfi_conn *, struct hfi_observation *);
void pg_observed(struct pg_conn *, const char *key);
hf_status pg_reobserve(struct hfi_conn *, struct hfi_observation *,
                       int64_t deadline, struct hf_error *);

#endif
