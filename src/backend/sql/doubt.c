/* SPDX-License-Identifier: MIT
 *
 * doubt.c - a statement without an answer may be served after a later one.
 *
 * Its connection is closed, but the server may not have read the statement yet:
 * its process is stopped, or waits for a row, or the network is slow.  If the
 * statement takes a lock it would do so for nobody, after the release.  So each
 * such session is remembered with the token it acted for, and a release ends
 * the session in the server first.
 *
 * INVARIANTS
 *  (1) A session that the server has ended serves no statement any more, and
 *      what it has committed before can be seen.  So after sql_doubt_end() one
 *      more release is the last word.
 *  (2) A session is forgotten here only when the server has said that it is
 *      gone.
 */
#include "sql.h"

#include "base/alloc.h"

#include "base/banned.h"

struct sql_doubt {
    struct hfi_link link; /* in sql_conn.doubts */
    int64_t session;
    char token[HFI_TOKEN_LEN + 1];
};

/* Where it cannot be remembered, the core still takes the claim back for a
 * whole lease. */
void sql_doubt_add(struct sql_conn *conn, struct sql_session *session,
                   const char *token)
{
    int64_t id = conn->texts[SQL_KILL] ? conn->driver->id(session) : 0;
    struct sql_doubt *doubt = id ? hfi_alloc(sizeof(*doubt)) : NULL;

    if (!doubt)
        return;
    doubt->session = id;
    snprintf(doubt->token, sizeof(doubt->token), "%s", token);
    hfi_link_init(&doubt->link);
    pthread_mutex_lock(&conn->mu);
    hfi_link_append(&conn->doubts, &doubt->link);
    pthread_mutex_unlock(&conn->mu);
}

void sql_doubt_statement(struct sql_session *session, enum sql_stmt stmt,
                         const struct sql_call *call)
{
    size_t i;

    switch (stmt) {
    case SQL_TAKE_ALL:
        for (i = 0; i < call->count; i++)
            sql_doubt_add(session->conn, session,
                          call->attempts[i].claim->token);
        break;
    case SQL_ACQUIRE:
    case SQL_RETAKE:
    case SQL_TAKE:
    case SQL_JOIN:
    case SQL_TICKET:
    case SQL_ENTER:
    case SQL_REENTER:
    case SQL_TAKE_UP:
        sql_doubt_add(session->conn, session, call->token);
        break;
    default:
        break;
    }
}

/* One of this token, taken out if `take`; NULL: there is none. */
static struct sql_doubt *doubt_find(struct sql_conn *conn, const char *token,
                                    bool take)
{
    struct sql_doubt *doubt = NULL;
    struct hfi_link *at;

    pthread_mutex_lock(&conn->mu);
    for (at = conn->doubts.next; at != &conn->doubts; at = at->next) {
        doubt = hfi_container(at, struct sql_doubt, link);
        if (!strcmp(doubt->token, token))
            break;
        doubt = NULL;
    }
    if (doubt && take)
        hfi_link_remove(&doubt->link);
    pthread_mutex_unlock(&conn->mu);
    return doubt;
}

bool sql_doubt_is(struct sql_conn *conn, const char *token)
{
    return doubt_find(conn, token, false) != NULL;
}

/* Ask until nothing is there to be ended.  doubt.c (2) */
static hf_status doubt_kill(struct sql_conn *conn, int64_t session,
                            int64_t deadline, struct hf_error *err)
{
    struct sql_call call = {.number = session};
    struct sql_answer answer = {0};
    hf_status st;

    do
        st = sql_run(conn, SQL_KILL, &call, &answer, deadline, err);
    while (!st && (answer.rows || answer.affected) && hfi_left_ms(deadline));
    if (!st && (answer.rows || answer.affected))
        st = hfi_fail(err, HF_UNCERTAIN,
                      "%s: an earlier request may still be served",
                      conn->base.endpoint);
    return st;
}

hf_status sql_doubt_end(struct sql_conn *conn, const char *token,
                        int64_t deadline, struct hf_error *err)
{
    struct sql_doubt *doubt;
    hf_status st = HF_OK;

    while (!st && (doubt = doubt_find(conn, token, true))) {
        st = doubt_kill(conn, doubt->session, deadline, err);
        if (st) {
            pthread_mutex_lock(&conn->mu);
            hfi_link_append(&conn->doubts, &doubt->link);
            pthread_mutex_unlock(&conn->mu);
        } else {
            hfi_free(doubt);
        }
    }
    return st;
}

void sql_doubt_close(struct sql_conn *conn)
{
    struct sql_doubt *doubt;

    while (!hfi_link_alone(&conn->doubts)) {
        doubt = hfi_container(conn->doubts.next, struct sql_doubt, link);
        hfi_link_remove(&doubt->link);
        hfi_free(doubt);
    }
}
