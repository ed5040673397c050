/* SPDX-License-Identifier: MIT
 *
 * row.h - strategy row: what the other files call, and what its own files
 * (row*.c) share.
 */
#ifndef HFI_BACKEND_SQL_ROW_H
#define HFI_BACKEND_SQL_ROW_H

#include "sql.h"

hf_status sql_row_open(struct sql_conn *, struct hf_error *);
void sql_row_close(struct sql_conn *);
hf_status sql_row_try_acquire(struct sql_conn *, const struct hfi_claim *,
                              struct hfi_receipt *, struct hfi_answer *,
                              int64_t deadline, struct hf_error *);
void sql_row_renew(struct sql_conn *, struct hfi_renewal **, size_t n,
                   int64_t deadline, struct hf_error *);
hf_status sql_row_release(struct sql_conn *, const struct hfi_claim *,
                          struct hfi_receipt *, int64_t deadline,
                          struct hf_error *);

/* Where the sessions that wait are heard; the keeper calls both. */
int sql_row_poll_fd(struct sql_conn *);
void sql_row_dispatch(struct sql_conn *);

/* ---- between row.c and row_*.c --------------------------------- */

struct sql_row_state {
    pthread_mutex_t mu; /* guards what follows, and `busy` of each lock */
    struct hfi_link locks;
    int epoll_fd;
};

struct row_lock {
    struct hfi_link link; /* in sql_row_state.locks */
    struct sql_session *session;
    bool waiting; /* in the server's queue */
    bool held;    /* has the row */
    bool beating; /* a heartbeat was sent and is not answered yet */
    bool busy;    /* row.c (5) */
    char token[HFI_TOKEN_LEN + 1];
    char key[];
};

/* The lock that a grant or a place is, or NULL. */
struct row_lock *sql_row_of(const struct hfi_receipt *);

/* Its session is ours to use; or the keeper's again.  row.c (5) */
void sql_row_busy(struct sql_conn *, struct row_lock *);
void sql_row_idle(struct sql_conn *, struct row_lock *);

/* Forget it; the session goes back if it is `clean`, else it is closed. */
void sql_row_drop(struct sql_conn *, struct row_lock *, struct hfi_receipt *,
                  bool clean);

/* With the mutex held: have the keeper listen to the session again, once. */
void sql_row_arm(struct sql_conn *, struct row_lock *);

/* Hear the answer to a heartbeat that was sent; HF_BUSY if it has not come by
 * the deadline. */
hf_status sql_row_hear(struct sql_conn *, struct row_lock *, int64_t deadline,
                       struct hf_error *);

/* A heartbeat while it is taken. */
hf_status sql_row_beat(struct sql_conn *, struct row_lock *, int64_t ttl_ms,
                       int64_t deadline, struct hf_error *);

#endif
