/* SPDX-License-Identifier: MIT
 *
 * postgres_row.c - sessions of strategy row on PostgreSQL; see sql_row.c.
 *
 * The server ends a transaction that was idle for the ttl, by
 * idle_in_transaction_session_timeout; it begins to count after each
 * statement, and a heartbeat is a statement that sets it anew.  While a
 * statement waits in the queue, client_connection_check_interval lets the
 * server find out that its client is gone.
 */
#include "postgres.h"

#include "../mem.h"

#include "../banned.h"

#define ROW_TEXT_MAX (2 * HF_KEY_MAX + 2 * SQL_TABLE_MAX + 400)

static void row_hex(char *ret, const char *key)
{
    static const char digits[] = "0123456789abcdef";

    for (; *key; key++) {
        *ret++ = digits[(unsigned char)*key >> 4];
        *ret++ = digits[*key & 15];
    }
    *ret = '\0';
}

/* "a.b" as "a"."b"; sql_open.c has checked the name. */
static void row_table(char *ret, size_t size, const char *table)
{
    const char *dot = strchr(table, '.');

    if (dot)
        snprintf(ret, size, "\"%.*s\".\"%s\"", (int)(dot - table), table,
                 dot + 1);
    else
        snprintf(ret, size, "\"%s\"", table);
}

hf_status pg_row_send(struct sql_session *session, const char *key, bool wait,
                      int64_t ttl_ms, struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;
    char text[ROW_TEXT_MAX], hex[2 * HF_KEY_MAX + 1], table[SQL_TABLE_MAX + 8];

    session->why = SQL_WHY_OTHER;
    row_hex(hex, key);
    row_table(table, sizeof(table), session->conn->table);
    snprintf(text, sizeof(text),
             "ROLLBACK;BEGIN;SET LOCAL statement_timeout=%lld;"
             "SET LOCAL client_connection_check_interval=%d;"
             "SET LOCAL idle_in_transaction_session_timeout=%lld;"
             "SELECT row_lock FROM %s WHERE name='\\x%s'::bytea FOR UPDATE%s",
             wait ? 0LL : (long long)session->conn->timeout_ms, wait ? 1000 : 0,
             (long long)ttl_ms, table, hex, wait ? "" : " NOWAIT");
    return PQsendQuery(ps->pg, text) ? HF_OK : pg_unsent(ps, err);
}

/* With deadline 0 take only what has come; results that have not are left. */
hf_status pg_row_done(struct sql_session *session, bool *found,
                      int64_t deadline, struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;
    PGresult *result = NULL;
    hf_status st;

    session->why = SQL_WHY_OTHER;
    if (!deadline) {
        if (PQflush(ps->pg) < 0 || !PQconsumeInput(ps->pg)) {
            session->broken = true;
            return hfi_fail(err, HF_UNAVAILABLE, "the session was ended");
        }
        while (!PQisBusy(ps->pg)) {
            result = PQgetResult(ps->pg);
            if (!result)
                return hfi_fail(err, HF_UNAVAILABLE, "the session was ended");
            if (PQresultStatus(result) != PGRES_COMMAND_OK)
                break;
            PQclear(result);
            result = NULL;
        }
        if (!result)
            return HF_BUSY;
        *found =
            PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1;
        PQclear(result);
        return pg_results(ps, NULL, hfi_now() + session->conn->timeout_ms, err);
    }
    st = pg_results(ps, &result, deadline, err);
    *found = !st && PQntuples(result) == 1;
    PQclear(result);
    return st;
}

hf_status pg_row_beat(struct sql_session *session, int64_t ttl_ms,
                      int64_t deadline, struct hf_error *err)
{
    char text[96];

    session->why = SQL_WHY_OTHER;
    snprintf(text, sizeof(text),
             "SET LOCAL idle_in_transaction_session_timeout=%lld",
             (long long)ttl_ms);
    return pg_exec((struct pg_session *)session, text, NULL, deadline, err);
}

hf_status pg_row_end(struct sql_session *session, int64_t deadline,
                     struct hf_error *err)
{
    return pg_exec((struct pg_session *)session, "COMMIT", NULL, deadline, err);
}

int pg_fd(struct sql_session *session)
{
    return PQsocket(((struct pg_session *)session)->pg);
}

int64_t pg_id(struct sql_session *session)
{
    return PQbackendPID(((struct pg_session *)session)->pg);
}
