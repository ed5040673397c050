/* SPDX-License-Identifier: MIT
 *
 * row.c - sessions of strategy row on PostgreSQL; see backend/sql/row.c.
 *
 * The server ends a transaction that was idle for the ttl, by
 * idle_in_transaction_session_timeout; it begins to count after each
 * statement, and a heartbeat is a statement that sets it anew.  While a
 * statement waits in the queue, client_connection_check_interval lets the
 * server find out that its client is gone.
 *
 * THE QUEUE  When a row lock is given up, those who wait for it are woken in
 *   their order, but a newcomer may lock the row before the one who was woken
 *   has got there.  A heavyweight lock is passed on by who lets go of it, and
 *   nobody can get in between.  So every transaction takes an advisory lock
 *   before the row, and keeps both: the advisory lock is where they queue, the
 *   row is what they lock, and what excludes a person at an SQL prompt, too.
 *   Its number is a hash of the schema, the table and the key; if two keys shared
 *   one, they would wait for each other without need.  The schema counts as it
 *   was found, since one URL may name it and another not.
 */
#include "postgres.h"

#include "base/banned.h"

/* What follows the result that tells has been sent along with it. */
#define ROW_TAIL_MS 1000

#define ROW_TEXT_MAX (2 * HF_KEY_MAX + 2 * SQL_TABLE_MAX + 512)

/* FNV-1a. */
static uint64_t row_hash(uint64_t hash, const char *text)
{
    do
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    while (*text++);
    return hash;
}

/* At least a second, so that a short lease is not over while it is written down
 * who has it.  The server takes no more than 24 days; 0 is no limit. */
static int64_t row_idle_ms(int64_t ttl_ms)
{
    if (ttl_ms > INT32_MAX)
        return 0;
    return ttl_ms > 1000 ? ttl_ms : 1000;
}

static uint64_t row_number(const struct sql_conn *conn, const char *key)
{
    const char *dot = strchr(conn->table, '.');
    uint64_t hash = row_hash(UINT64_C(0xcbf29ce484222325), conn->home);

    return row_hash(row_hash(hash, dot ? dot + 1 : conn->table), key);
}

/* Behind a pooler the transaction has to begin before it can be asked which
 * session of the server it is in; while a statement waits nothing is heard. */
static hf_status row_begin(struct pg_session *ps, int64_t deadline,
                           struct hf_error *err)
{
    PGresult *result = NULL;
    bool began;
    hf_status st = PQtransactionStatus(ps->pg) == PQTRANS_IDLE
                       ? HF_OK
                       : pg_exec(ps, "ROLLBACK", NULL, deadline, err);

    if (!st)
        st = pg_begin(ps, &began, deadline, err);
    if (!st)
        st = pg_exec(
            ps,
            "SELECT " PG_ID(
                "pid",
                "backend_start") " FROM "
                                 "pg_stat_activity WHERE pid=pg_backend_pid()",
            &result, deadline, err);
    if (!st)
        ps->id = pg_integer(result, 0, 0);
    PQclear(result);
    return st;
}

hf_status pg_row_send(struct sql_session *session, const char *key, bool wait,
                      int64_t ttl_ms, int64_t deadline, struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;
    char text[ROW_TEXT_MAX], hex[2 * HF_KEY_MAX + 1];
    hf_status st = ps->pooled ? row_begin(ps, deadline, err) : HF_OK;

    if (st)
        return st;
    session->why = SQL_WHY_OTHER;
    *sql_hex(hex, key) = '\0';
    snprintf(text, sizeof(text),
             "%sSET LOCAL statement_timeout=%lld;"
             "SET LOCAL client_connection_check_interval=%d;"
             "SET LOCAL idle_in_transaction_session_timeout=%lld;"
             "SELECT pg_%sadvisory_xact_lock(%lld);%sdecode('%s','hex') "
             "FOR UPDATE%s",
             ps->pooled ? "" : "ROLLBACK;BEGIN READ WRITE;",
             wait ? 0LL : (long long)session->conn->timeout_ms, wait ? 1000 : 0,
             (long long)row_idle_ms(ttl_ms), wait ? "" : "try_",
             (long long)row_number(session->conn, key),
             session->conn->texts[SQL_LOCK], hex, wait ? "" : " NOWAIT");
    ps->heard = 0;
    ps->most = PG_ANSWER_MAX;
    return PQsendQuery(ps->pg, text) ? HF_OK : pg_unsent(ps, err);
}

/* What one of the results means; *last: it is the one that tells. */
static hf_status row_result(struct pg_session *ps, const PGresult *result,
                            bool *found, bool *last, struct hf_error *err)
{
    ExecStatusType status = PQresultStatus(result);
    const char *name, *value;

    *last = status != PGRES_COMMAND_OK;
    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        return pg_error(ps, result, err);
    if (status == PGRES_COMMAND_OK)
        return HF_OK;
    name = PQfname(result, 0);
    value = pg_value(result, 0, 0);
    *last = name && !strcmp(name, "row_lock");
    if (*last)
        *found = PQntuples(result) == 1;
    else if (PQntuples(result) != 1 || !value)
        return pg_bad_reply(ps, err);
    if (*last || strcmp(value, "f") != 0)
        return HF_OK;
    ps->base.why = SQL_WHY_BLOCKED; /* pg_try_advisory_xact_lock() */
    return hfi_fail(err, HF_UNAVAILABLE, "others have it or wait for it");
}

/* With deadline 0 take only what has come, until the result that tells; what
 * follows that is on its way. */
hf_status pg_row_done(struct sql_session *session, bool *found,
                      int64_t deadline, struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;
    enum sql_why why = SQL_WHY_OTHER;
    PGresult *result = NULL;
    hf_status st = HF_OK, one = HF_OK;
    bool last;

    session->why = why;
    for (;;) {
        if (!deadline && !pg_subscribed(ps->pg, &ps->heard, ps->most))
            return pg_bad_reply(ps, err);
        if (!deadline && (PQflush(ps->pg) < 0 || !PQconsumeInput(ps->pg)))
            return pg_cut(ps, NULL, err);
        if (!deadline && PQisBusy(ps->pg))
            return HF_BUSY;
        one = pg_next(ps, &result, deadline, st ? NULL : err);
        if (one || !result)
            break;
        one = row_result(ps, result, found, &last, st ? NULL : err);
        PQclear(result);
        if (last && !deadline)
            deadline = hfi_now() + ROW_TAIL_MS;
        if (one && !st) {
            st = one;
            why = session->why;
        }
    }
    if (st)
        session->why = why;
    return st ? st : one;
}

hf_status pg_row_beat(struct sql_session *session, int64_t ttl_ms,
                      struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;
    char text[96];

    session->why = SQL_WHY_OTHER;
    snprintf(text, sizeof(text),
             "SET LOCAL idle_in_transaction_session_timeout=%lld",
             (long long)row_idle_ms(ttl_ms));
    ps->heard = 0;
    ps->most = PG_ANSWER_MAX;
    return PQsendQuery(ps->pg, text) ? HF_OK : pg_unsent(ps, err);
}

hf_status pg_row_end(struct sql_session *session, int64_t deadline,
                     struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;

    if (ps->pooled)
        ps->id = 0;
    return pg_exec(ps, "COMMIT", NULL, deadline, err);
}

int pg_fd(struct sql_session *session)
{
    return PQsocket(((struct pg_session *)session)->pg);
}

int64_t pg_id(struct sql_session *session)
{
    return ((struct pg_session *)session)->id;
}
