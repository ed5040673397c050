/* SPDX-License-Identifier: MIT
 *
 * postgres.h - what the parts of the postgres: backend share.
 *
 *   postgres.c       sessions, statements, errors, the table of operations
 *   postgres_text.c  the statements
 *   postgres_open.c  the URL, a connection, what must be refused
 *   postgres_wake.c  LISTEN
 *   postgres_row.c   sessions of strategy row
 */
#ifndef HFI_BACKEND_POSTGRES_H
#define HFI_BACKEND_POSTGRES_H

#include <libpq-fe.h>
#include <stdatomic.h>

#include "sql.h"

#define PG_PARAMS_MAX 48

struct pg_conn {
    struct sql_conn sql;
    char *names[PG_PARAMS_MAX], *values[PG_PARAMS_MAX]; /* for libpq */
    size_t params;

    pthread_mutex_t wake_mu; /* guards what follows */
    bool wake_opened;
    bool making;           /* somebody is about to bring a listener */
    PGconn *listener;      /* read by pump() only, once it is here */
    atomic_bool listening; /* there was one: keep it */
};

struct pg_session {
    struct sql_session base;
    PGconn *pg;
};

/* ---- postgres_text.c --------------------------------------------------- */

extern const char *const pg_lease_texts[SQL_STMTS];
extern const char *const pg_version_texts[SQL_STMTS];
extern const char *const pg_row_texts[SQL_STMTS];

/* ---- postgres_open.c --------------------------------------------------- */

hf_status pg_params(struct pg_conn *, const struct hfi_url *,
                    struct hf_error *);
void pg_params_free(struct pg_conn *);
hf_status pg_connect(struct pg_conn *, PGconn **ret, int64_t deadline,
                     struct hf_error *);

/* Settings of our own; with `first`, refuse what cannot keep our promises. */
hf_status pg_settle(struct pg_session *, bool first, int64_t deadline,
                    struct hf_error *);

/* ---- postgres.c -------------------------------------------------------- */

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

/* Wait for the next result, NULL after the last; or for all of them, and keep
 * the last. */
hf_status pg_next(struct pg_session *, PGresult **ret, int64_t deadline,
                  struct hf_error *);
hf_status pg_results(struct pg_session *, PGresult **ret, int64_t deadline,
                     struct hf_error *);
const char *pg_line(char *buf, size_t size, const char *message);

/* ---- postgres_row.c ---------------------------------------------------- */

hf_status pg_row_send(struct sql_session *, const char *key, bool wait,
                      int64_t ttl_ms, int64_t deadline, struct hf_error *);
hf_status pg_row_done(struct sql_session *, bool *found, int64_t deadline,
                      struct hf_error *);
hf_status pg_row_beat(struct sql_session *, int64_t ttl_ms, struct hf_error *);
hf_status pg_row_end(struct sql_session *, int64_t deadline, struct hf_error *);
int pg_fd(struct sql_session *);
int64_t pg_id(struct sql_session *);

/* ---- postgres_wake.c --------------------------------------------------- */

hf_status pg_listen(struct pg_conn *, int64_t deadline, struct hf_error *);
void pg_unlisten(struct pg_conn *);
hf_status pg_watch(struct hfi_conn *, const struct hfi_claim *,
                   struct hfi_grant *, int64_t deadline, struct hf_error *);
void pg_unwatch(struct hfi_conn *, const struct hfi_claim *,
                struct hfi_grant *);
int pg_pump_fd(struct hfi_conn *);
void pg_pump(struct hfi_conn *);

#endif
