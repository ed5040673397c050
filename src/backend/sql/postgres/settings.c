/* SPDX-License-Identifier: MIT
 *
 * settings.c - the settings of a session, and what is refused.
 *
 * All that a session is told and asked when it opens goes out in one text, so
 * it takes one round trip: who it is, settings, whose the table is, and the
 * statements that renew.  Only the first session asks in several steps.
 *
 * POOLERS  A pooler is known by the process id it gave us, which is not that of
 *   the backend, or by what was prepared and is not there, wire.c (3).  Whether
 *   it gives each transaction another session cannot be found out for certain,
 *   so behind any of them nothing is left in a session: no setting, no prepared
 *   statement, no LISTEN; wire.c (2).
 *
 * REFUSED  A standby cannot write.  Tables: verify.sql.
 *
 * OTHERS' SETTINGS  A role or a database may have a statement_timeout of its
 *   own.  The second command of each session, after BEGIN, replaces it, and the
 *   rest of what could change the meaning of a statement follows.
 */
#include "postgres.h"

#include "base/alloc.h"

#include "base/banned.h"

/* ---- what is doubtful or refused --------------------------------------- */

static bool judge_is_local(const char *host)
{
    return !host || !*host || host[0] == '/' || host[0] == '@' ||
           !strncmp(host, "127.", 4) || !strcmp(host, "::1") ||
           !strcmp(host, "localhost");
}

/* Could somebody on the way have had the password? */
static bool judge_exposed(PGconn *pg)
{
    PQconninfoOption *options = PQconninfo(pg), *at;
    bool verified = false;

    for (at = options; at && at->keyword; at++)
        if (!strcmp(at->keyword, "sslmode") && at->val)
            verified = !strncmp(at->val, "verify-", 7);
    PQconninfoFree(options);
    return PQconnectionUsedPassword(pg) && !judge_is_local(PQhost(pg)) &&
           !(verified && PQsslInUse(pg));
}

static void judge_warn(struct pg_session *ps)
{
    struct hfi_conn *base = &ps->base.conn->base;

    if (ps->pooled)
        snprintf(base->warning, sizeof(base->warning), PG_POOLED);
    else if (judge_exposed(ps->pg))
        snprintf(base->warning, sizeof(base->warning),
                 "the password goes to a server that is not verified: say "
                 "sslmode=verify-full and sslrootcert=");
}

/* ---- settings ---------------------------------------------------------- */

/* Every statement finds its rows by the key, so no other plan is ever better,
 * whatever the statistics of a table that was empty a moment ago say; and rows
 * are locked in the order in which they are named.  Whoever has made commits
 * wait for less gets more, and transaction_timeout is known from 17 on,
 * idle_session_timeout from 14. */
#define SETTINGS                                                               \
    "SET LOCAL statement_timeout=%lld;SET LOCAL search_path=pg_catalog;"       \
    "SELECT set_config(s.n,s.v,%s) FROM (VALUES('search_path','pg_catalog'),"  \
    "('default_transaction_isolation','read committed'),"                      \
    "('statement_timeout','%lld'),('lock_timeout','0'),('TimeZone','UTC'),"    \
    "('jit','off'),('plan_cache_mode','force_generic_plan'),"                  \
    "('idle_in_transaction_session_timeout','0'),('transaction_timeout','0')," \
    "('idle_session_timeout','0'),('default_transaction_read_only','off'),"    \
    "('standard_conforming_strings','on'),('quote_all_identifiers','off'),"    \
    "('enable_seqscan','off'),('enable_bitmapscan','off'),"                    \
    "('enable_indexscan','on'),('enable_nestloop','on'),"                      \
    "('enable_hashjoin','off'),('enable_mergejoin','off'),"                    \
    "('synchronous_commit','on')) s(n,v) WHERE CASE s.n "                      \
    "WHEN 'transaction_timeout' THEN current_setting(s.n,true) IS NOT NULL "   \
    "WHEN 'idle_session_timeout' THEN current_setting(s.n,true) IS NOT NULL "  \
    "WHEN 'synchronous_commit' THEN current_setting(s.n) IN ('off','local') "  \
    "ELSE true END;"

void pg_settings(const struct pg_session *ps, const char *local, char *buf,
                 size_t size)
{
    long long ms = (long long)ps->base.conn->timeout_ms;

    snprintf(buf, size, SETTINGS, ms, local, ms);
}

/* ---- opening ----------------------------------------------------------- */

/* The path is kept over the change of search_path by a setting that ends with
 * the transaction. */
#define JUDGE_PATH                                                             \
    "SELECT pg_catalog.set_config('holdfast.path',"                            \
    "pg_catalog.current_schemas(false)::pg_catalog.text,true);"

#define JUDGE                                                                  \
    "SELECT pg_is_in_recovery()::int AS hf_judge,pg_backend_pid()," PG_ID(     \
        "pid", "backend_start") ",current_setting('holdfast.path') FROM "      \
                                "pg_stat_activity WHERE pid=pg_backend_pid();"

/* Behind a pooler, which the first session may not have met, this fails, and
 * what follows it is not done. */
#define OURS "SELECT 1/(pg_backend_pid()=%d)::int;"

#define OPEN_MAX (32 * 1024)

static hf_status settle_judged(struct pg_session *ps, const PGresult *result,
                               bool first, struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;

    if (!pg_integer(result, 0, 1) || !pg_value(result, 0, 3))
        return pg_bad_reply(ps, err);
    if (pg_integer(result, 0, 0))
        return hfi_fail(err, HF_UNSUPPORTED,
                        "this server is a standby and cannot write: name the "
                        "primary, or several hosts");
    ps->judged = true;
    ps->pooled = atomic_load(&pc->pooled) ||
                 pg_integer(result, 0, 1) != PQbackendPID(ps->pg);
    ps->id = ps->pooled ? 0 : pg_integer(result, 0, 2);
    if (first) {
        judge_warn(ps);
        atomic_store(&pc->pooled, ps->pooled);
        if (ps->pooled)
            pc->sql.base.traits &= ~(unsigned)HF_TRAIT_NOTIFY;
    }
    return HF_OK;
}

/* "PREPARE ..." of both renewals, whose names are those of pg_run(). */
static size_t settle_prepare(const struct pg_session *ps, char *buf,
                             size_t size)
{
    char *const *texts = ps->base.conn->texts;
    char one[PG_NAME_MAX], many[PG_NAME_MAX];
    int len;

    pg_name(ps, SQL_RENEW, one);
    pg_name(ps, SQL_RENEW_MANY, many);
    len =
        snprintf(buf, size,
                 OURS "PREPARE %s(bytea,text,int8,bytea,bytea,int8,int8) AS %s;"
                      "PREPARE %s(bytea,text,int8,bytea,bytea,int8,int8) AS %s;"
                      "SELECT 1 AS hf_ready",
                 PQbackendPID(ps->pg), one, texts[SQL_RENEW], many,
                 texts[SQL_RENEW_MANY]);
    return (size_t)len;
}

/* The question about the table beside that of locks, of fences or of tickets;
 * or NULL. */
static const char *settle_other(const struct pg_conn *pc)
{
    return pc->sql.texts[SQL_VERIFY_FENCE] ? pc->sql.texts[SQL_VERIFY_FENCE]
                                           : pc->sql.texts[SQL_VERIFY_QUEUE];
}

static hf_status settle_send(struct pg_session *ps, bool first,
                             struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;
    char text[OPEN_MAX], local[64], settings[PG_SETTINGS_MAX];
    const char *const verify = pc->sql.texts[SQL_VERIFY];
    const char *const other = settle_other(pc);
    bool pooled = atomic_load(&pc->pooled);
    size_t len;

    hfi_random(&ps->number, sizeof(ps->number));
    snprintf(local, sizeof(local), "%s OR pg_backend_pid()<>%d",
             pooled ? "true" : "false", PQbackendPID(ps->pg));
    pg_settings(ps, local, settings, sizeof(settings));
    len = (size_t)snprintf(text, sizeof(text),
                           "BEGIN;SET LOCAL statement_timeout=%lld;" JUDGE_PATH
                           "%s" JUDGE "%s;%s;COMMIT;",
                           (long long)pc->sql.timeout_ms, settings,
                           first ? "" : verify, first || !other ? "" : other);
    if (len < sizeof(text) && !first && !pooled)
        len += settle_prepare(ps, text + len, sizeof(text) - len);
    if (len >= sizeof(text))
        return hfi_fail(err, HF_INVALID, "the first statement is too long");
    ps->heard = 0;
    ps->most = PG_ANSWER_MAX;
    return PQsendQuery(ps->pg, text) ? HF_OK : pg_unsent(ps, err);
}

/* Has all been said about the table? */
static bool settle_verified(const struct pg_session *ps)
{
    return ps->verified > !!settle_other((struct pg_conn *)ps->base.conn);
}

static hf_status settle_verify(struct pg_session *ps, const PGresult *result,
                               struct hf_error *err)
{
    struct sql_cell cells[SQL_VERIFY_COLUMNS] = {{0}};
    int i;

    ps->verified++;
    if (!PQntuples(result))
        return HF_OK;
    for (i = 0; i < SQL_VERIFY_COLUMNS; i++) {
        cells[i].data = pg_value(result, 0, i);
        cells[i].len = cells[i].data ? strlen(cells[i].data) : 0;
    }
    return sql_verify_row(ps->base.conn, cells, err);
}

/* One of the answers.  Once the table is verified nothing but a session that is
 * gone is a failure: what could not be prepared is prepared when it is used,
 * and that tells why. */
static hf_status settle_result(struct pg_session *ps, const PGresult *result,
                               bool first, struct hf_error *err)
{
    ExecStatusType status = PQresultStatus(result);
    const char *name = PQfname(result, 0);
    hf_status st = HF_OK;

    if (status == PGRES_COMMAND_OK || status == PGRES_EMPTY_QUERY)
        return HF_OK;
    if (status != PGRES_TUPLES_OK) {
        st = pg_error(ps, result, settle_verified(ps) ? NULL : err);
        return settle_verified(ps) && !ps->base.broken ? HF_OK : st;
    }
    if (!name)
        return HF_OK;
    if (!strcmp(name, "hf_judge"))
        st = settle_judged(ps, result, first, err);
    else if (!strcmp(name, "hf_verify"))
        st = settle_verify(ps, result, err);
    else if (!strcmp(name, "hf_ready"))
        ps->base.prepared[SQL_RENEW] = ps->base.prepared[SQL_RENEW_MANY] = true;
    return st;
}

static hf_status settle_hear(struct pg_session *ps, bool first, char *path,
                             size_t size, int64_t deadline,
                             struct hf_error *err)
{
    PGresult *result = NULL;
    hf_status st;

    while (!(st = pg_next_soon(ps, &result, deadline, err)) && result) {
        const char *found = pg_value(result, 0, 3);

        ps->base.heard_at = hfi_now();
        st = settle_result(ps, result, first, err);
        if (!st && found)
            snprintf(path, size, "%s", found);
        PQclear(result);
        if (st)
            return st;
    }
    if (!st && (!ps->judged || (!first && !settle_verified(ps))))
        st = pg_bad_reply(ps, err);
    return st;
}

hf_status pg_settle(struct pg_session *ps, bool first, int64_t deadline,
                    struct hf_error *err)
{
    char path[8192] = "";
    hf_status st = ps->settling ? HF_OK : settle_send(ps, first, err);

    if (st)
        return st;
    ps->settling = true;
    st = settle_hear(ps, first, path, sizeof(path), deadline, err);
    if (!st && first)
        st = pg_find(ps, path, deadline, err);
    return st;
}

void pg_prepare_renewals(struct sql_session *session, int64_t deadline)
{
    struct pg_session *ps = (struct pg_session *)session;
    char text[OPEN_MAX];

    if (ps->pooled || session->prepared[SQL_RENEW] ||
        session->prepared[SQL_RENEW_MANY] ||
        settle_prepare(ps, text, sizeof(text)) >= sizeof(text))
        return;
    if (!pg_exec(ps, text, NULL, deadline, NULL))
        session->prepared[SQL_RENEW] = session->prepared[SQL_RENEW_MANY] = true;
}
