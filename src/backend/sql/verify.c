/* SPDX-License-Identifier: MIT
 *
 * verify.c - a lock table is verified before it is used.
 *
 * A statement keeps its promises only on a table that is what it was written
 * for: a time that is rounded to seconds ends leases early, a second key makes
 * one lock change the row of another, a collation makes two tokens equal, and a
 * table of one connection excludes nobody.  The server reports none of this as
 * an error.  So verify.sql of each database asks for everything that the
 * statements beside it rely on, and the answer is judged here.
 *
 * INVARIANTS
 *  (1) A table is verified before the first statement touches it, and again
 *      after it may have been made; with postgres: and sqlite: in each session.
 *      The table of holders, before the first statement that is about it, with
 *      postgres: and sqlite: in each session; nothing else touches it.
 *  (2) A table that a statement finds and that is not in the catalog is not
 *      used: it belongs to this connection alone.
 *  (3) A statement that comes to rely on something more of the table gets its
 *      line in verify.sql with it.
 *
 * LIMITS  Who alters the table while it is in use is an operator; see
 *   doc/guarantees.md.
 */
#include "sql.h"

#include "base/banned.h"

hf_status sql_verify_row(const struct sql_conn *conn,
                         const struct sql_cell *cells, struct hf_error *err)
{
    const struct sql_cell *name = &cells[SQL_VERIFY_TABLE];
    const struct sql_cell *why = &cells[SQL_VERIFY_UNTRUSTED];
    bool trusted = !why->data;

    if (trusted)
        why = &cells[SQL_VERIFY_UNFIT];
    if (!why->data)
        return HF_OK;
    return hfi_fail(err, trusted ? HF_PROTOCOL : HF_DENIED,
                    "%.80s: the table %.*s cannot be used for locks: %.*s; "
                    "drop it, or name another by table=",
                    conn->base.endpoint, name->len < 64 ? (int)name->len : 64,
                    name->data ? name->data : "",
                    why->len < 100 ? (int)why->len : 100, why->data);
}

hf_status sql_verify_unseen(const struct sql_conn *conn, struct hf_error *err)
{
    return hfi_fail(err, HF_PROTOCOL,
                    "%.80s: the table %.64s is not in the catalog: a temporary "
                    "table excludes nobody; name another by table=",
                    conn->base.endpoint, conn->table);
}

struct verify {
    const struct sql_conn *conn;
    struct hf_error *err;
    hf_status st;
};

static void verify_row(struct sql_answer *answer, const struct sql_cell *cells,
                       int n)
{
    struct verify *verify = answer->arg;

    if (verify->st)
        return;
    verify->st =
        n == SQL_VERIFY_COLUMNS
            ? sql_verify_row(verify->conn, cells, verify->err)
            : hfi_fail(verify->err, HF_PROTOCOL,
                       "%s: the server does not describe the lock table",
                       verify->conn->base.endpoint);
}

/* In a session of the pool, where `session` is NULL. */
static hf_status verify_one(struct sql_conn *conn, struct sql_session *session,
                            enum sql_stmt stmt, bool *there, int64_t deadline,
                            struct hf_error *err)
{
    struct verify verify = {.conn = conn, .err = err};
    struct sql_answer answer = {.row = verify_row, .arg = &verify};
    struct sql_call call = {.key = ""};
    hf_status st;

    if (!conn->texts[stmt])
        return HF_OK;
    do
        st = session ? conn->driver->run(session, stmt, &call, &answer,
                                         deadline, err)
                     : sql_run(conn, stmt, &call, &answer, deadline, err);
    while (st && session && session->why == SQL_WHY_RETRY && !session->broken &&
           hfi_left_ms(deadline));
    *there = *there && answer.rows > 0;
    return st ? st : verify.st;
}

static hf_status verify_both(struct sql_conn *conn, struct sql_session *session,
                             bool *there, int64_t deadline,
                             struct hf_error *err)
{
    hf_status st;

    *there = true;
    st = verify_one(conn, session, SQL_VERIFY, there, deadline, err);
    if (!st)
        st = verify_one(conn, session, SQL_VERIFY_FENCE, there, deadline, err);
    return st ? st
              : verify_one(conn, session, SQL_VERIFY_QUEUE, there, deadline,
                           err);
}

hf_status sql_verify_queue(struct sql_conn *conn, struct sql_session *session,
                           bool *there, int64_t deadline, struct hf_error *err)
{
    *there = true;
    return verify_one(conn, session, SQL_VERIFY_QUEUE, there, deadline, err);
}

hf_status sql_verify(struct sql_conn *conn, bool *there, int64_t deadline,
                     struct hf_error *err)
{
    return verify_both(conn, NULL, there, deadline, err);
}

hf_status sql_verify_session(struct sql_session *session, bool *there,
                             int64_t deadline, struct hf_error *err)
{
    return verify_both(session->conn, session, there, deadline, err);
}

hf_status sql_verify_holders(struct sql_session *session, bool *there,
                             int64_t deadline, struct hf_error *err)
{
    *there = true;
    return verify_one(session->conn, session, SQL_VERIFY_HOLDERS, there,
                      deadline, err);
}
