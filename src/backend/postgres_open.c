/* SPDX-License-Identifier: MIT
 *
 * postgres_open.c - a connection, its settings, and what is refused.
 *
 * Every option of libpq that a URL names is passed on as it is, so TLS,
 * password files and service files work as everywhere else.
 *
 * REFUSED  A standby cannot write.  A pooler in transaction mode gives each
 *   statement another session: neither our settings, nor prepared statements,
 *   nor LISTEN, nor a row lock would be where we left them.  A pooler is
 *   known by a process id that is not that of the backend; whether it shares
 *   sessions is tried out: what one connection has set, another must not see
 *   while the first one is still open.
 */
#include "postgres.h"

#include <poll.h>

#include "../mem.h"

#include "../banned.h"

/* ---- parameters -------------------------------------------------------- */

static bool params_add(struct pg_conn *pc, const char *name, const char *value)
{
    size_t i = pc->params;

    if (!value)
        return true;
    if (i + 1 >= PG_PARAMS_MAX)
        return false;
    pc->names[i] = hfi_strdup(name);
    pc->values[i] = hfi_strdup(value);
    if (!pc->names[i] || !pc->values[i])
        return false;
    pc->params++;
    return true;
}

static bool params_hosts(struct pg_conn *pc, const struct hfi_url *url)
{
    char hosts[1024] = "", ports[128] = "";
    size_t i, at = 0, port_at = 0;

    for (i = 0; i < url->nhosts; i++) {
        at += (size_t)snprintf(hosts + at, sizeof(hosts) - at, "%s%s",
                               i ? "," : "", url->hosts[i].name);
        port_at += (size_t)snprintf(ports + port_at, sizeof(ports) - port_at,
                                    "%s%.0d", i ? "," : "", url->hosts[i].port);
        if (at >= sizeof(hosts) || port_at >= sizeof(ports))
            return false;
    }
    return !i ||
           (params_add(pc, "host", hosts) && params_add(pc, "port", ports) &&
            (i < 2 || hfi_url_param(url, "target_session_attrs", NULL) ||
             params_add(pc, "target_session_attrs", "read-write")));
}

static bool params_is_ours(const char *name)
{
    static const char *const ours[] = {SQL_OPTIONS, "timeout", "ttl",
                                       "retry",     "wait",    NULL};
    int i;

    for (i = 0; ours[i]; i++)
        if (!strcmp(ours[i], name))
            return true;
    return false;
}

hf_status pg_params(struct pg_conn *pc, const struct hfi_url *url,
                    struct hf_error *err)
{
    const char *database = url->path[0] == '/' ? url->path + 1 : url->path;
    char timeout[24];
    bool ok = params_hosts(pc, url);
    size_t i;

    ok = ok && params_add(pc, "user", url->user) &&
         params_add(pc, "password", url->password) &&
         (!*database || params_add(pc, "dbname", database));
    for (i = 0; ok && i < url->nparams; i++)
        if (!params_is_ours(url->params[i].name))
            ok = params_add(pc, url->params[i].name, url->params[i].value);
    snprintf(timeout, sizeof(timeout), "%lld", (long long)pc->sql.timeout_ms);
    ok = ok && params_add(pc, "fallback_application_name", "holdfast");
    if (ok && !hfi_url_param(url, "tcp_user_timeout", NULL))
        ok = params_add(pc, "tcp_user_timeout", timeout);
    return ok ? HF_OK : hfi_fail(err, HF_INVALID, "url: too much in it");
}

void pg_params_free(struct pg_conn *pc)
{
    size_t i;

    for (i = 0; i < PG_PARAMS_MAX; i++) {
        if (pc->values[i])
            explicit_bzero(pc->values[i], strlen(pc->values[i]));
        hfi_free(pc->names[i]);
        hfi_free(pc->values[i]);
        pc->names[i] = pc->values[i] = NULL;
    }
    pc->params = 0;
}

/* ---- connecting -------------------------------------------------------- */

static void pg_quiet(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

/* libpq keeps no code of a refused connection, so its words must do. */
static hf_status pg_refused(PGconn *pg, struct hf_error *err)
{
    static const char *const denied[] = {
        "authentication failed", "no pg_hba.conf entry", "does not exist",
        "permission denied",     "not permitted to",     "no password supplied",
        "certificate verify",    "server certificate",   "root certificate",
        "client certificate"};
    const char *why = PQerrorMessage(pg);
    hf_status st = PQconnectionNeedsPassword(pg) ? HF_DENIED : HF_UNAVAILABLE;
    char line[160];
    size_t i;

    for (i = 0; i < sizeof(denied) / sizeof(denied[0]); i++)
        if (strstr(why, denied[i]))
            st = HF_DENIED;
    return hfi_fail(err, st, "connect: %s", pg_line(line, sizeof(line), why));
}

hf_status pg_connect(struct pg_conn *pc, PGconn **ret, int64_t deadline,
                     struct hf_error *err)
{
    PGconn *pg = PQconnectStartParams((const char *const *)pc->names,
                                      (const char *const *)pc->values, 0);
    PostgresPollingStatusType want = PGRES_POLLING_WRITING;
    hf_status st = HF_OK;

    if (!pg)
        return hfi_nomem(err);
    PQsetNoticeReceiver(pg, pg_quiet, NULL);
    while (!st && want != PGRES_POLLING_OK) {
        if (PQstatus(pg) == CONNECTION_BAD || want == PGRES_POLLING_FAILED)
            st = pg_refused(pg, err);
        else if (!pg_poll(pg, want == PGRES_POLLING_READING ? POLLIN : POLLOUT,
                          deadline))
            st = hfi_fail(err, HF_UNAVAILABLE, "connect: no answer in time");
        else
            want = PQconnectPoll(pg);
    }
    if (!st && PQsetnonblocking(pg, 1))
        st = hfi_nomem(err);
    if (st)
        PQfinish(pg);
    else
        *ret = pg;
    return st;
}

/* ---- what is refused --------------------------------------------------- */

static int64_t judge_number(const PGresult *result, int column)
{
    return PQnfields(result) > column && PQntuples(result) == 1
               ? strtoll(PQgetvalue(result, 0, column), NULL, 10)
               : 0;
}

/* Does a second connection see what this one has set?  See REFUSED. */
static hf_status judge_pooler(struct pg_session *ps, int64_t deadline,
                              struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;
    struct pg_session other = {.base = {.conn = ps->base.conn}};
    PGresult *result = NULL;
    bool shared = false;
    char text[96];
    uint64_t mark;
    hf_status st;

    hfi_random(&mark, sizeof(mark));
    snprintf(text, sizeof(text), "SET holdfast.probe='%llx'",
             (unsigned long long)mark);
    st = pg_exec(ps, text, NULL, deadline, err);
    if (!st)
        st = pg_connect(pc, &other.pg, deadline, err);
    snprintf(text, sizeof(text),
             "BEGIN;SELECT (current_setting('holdfast.probe',true)="
             "'%llx')::int",
             (unsigned long long)mark);
    if (!st)
        st = pg_exec(&other, text, &result, deadline, err);
    if (!st)
        shared = judge_number(result, 0) == 1;
    PQclear(result);
    if (other.pg)
        PQfinish(other.pg);
    if (!st)
        st = pg_exec(ps, "RESET holdfast.probe", NULL, deadline, err);
    if (!st && shared)
        st = hfi_fail(err, HF_UNSUPPORTED,
                      "a pooler in transaction mode is in between: connect to "
                      "the server itself, or to a pool in session mode");
    return st;
}

static hf_status pg_judge(struct pg_session *ps, int64_t deadline,
                          struct hf_error *err)
{
    PGresult *result = NULL;
    hf_status st = pg_exec(ps,
                           "SELECT pg_is_in_recovery()::int,pg_backend_pid(),"
                           "(current_setting('synchronous_commit')='off')::int",
                           &result, deadline, err);

    if (st)
        return st;
    if (judge_number(result, 0))
        st = hfi_fail(err, HF_UNSUPPORTED,
                      "this server is a standby and cannot write: name the "
                      "primary, or several hosts");
    else if (judge_number(result, 1) != PQbackendPID(ps->pg))
        st = judge_pooler(ps, deadline, err);
    PQclear(result);
    return st;
}

/* Every statement finds its rows by the key, so no other plan is ever better,
 * whatever the statistics of a table that was empty a moment ago say; and rows
 * are locked in the order in which they are named. */
hf_status pg_settle(struct pg_session *ps, bool first, int64_t deadline,
                    struct hf_error *err)
{
    char text[768];
    hf_status st = first ? pg_judge(ps, deadline, err) : HF_OK;

    if (st)
        return st;
    snprintf(text, sizeof(text),
             "SET default_transaction_isolation='read committed';"
             "SET statement_timeout=%lld;SET lock_timeout=0;"
             "SET TimeZone='UTC';SET jit=off;"
             "SET plan_cache_mode=force_generic_plan;"
             "SET idle_in_transaction_session_timeout=0;"
             "SET enable_seqscan=off;SET enable_bitmapscan=off;"
             "SET enable_hashjoin=off;SET enable_mergejoin=off;"
             "SELECT set_config('synchronous_commit','on',false) WHERE "
             "current_setting('synchronous_commit') IN ('off','local')",
             (long long)ps->base.conn->timeout_ms);
    return pg_exec(ps, text, NULL, deadline, err);
}
