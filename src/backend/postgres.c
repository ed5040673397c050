/* SPDX-License-Identifier: MIT
 *
 * postgres.c - PostgreSQL, by libpq.
 *
 * ON THE WIRE  The statements of postgres_text.c, prepared once in each
 *   session and run outside any transaction block, so each is a transaction
 *   of its own: granted means committed.  See sql.c for what they promise.
 *
 * INVARIANTS
 *  (1) libpq is never asked to block: each wait is a poll() that ends at the
 *      deadline, and a session that was left waiting is closed.
 *  (2) Only an error that the server sent, in a session that stands, proves
 *      that a statement did not happen; any other failure after sending is
 *      HF_UNCERTAIN.
 *
 * LIMITS  Name resolution is libpq's and blocks; hostaddr= avoids it.  What an
 *   asynchronous standby had not received is forgotten when it is promoted;
 *   the fence then rises only if its clock does.
 */
#include "postgres.h"

#include <errno.h>
#include <poll.h>

#include "../banned.h"

/* ---- waiting ----------------------------------------------------------- */

bool pg_poll(PGconn *pg, short events, int64_t deadline)
{
    struct pollfd pfd = {.fd = PQsocket(pg), .events = events};
    int64_t left;
    int n;

    do {
        left = hfi_left_ms(deadline);
        n = poll(&pfd, 1, left > 1000000 ? 1000000 : (int)left);
    } while (n < 0 && errno == EINTR);
    return n > 0;
}

/* The first line of what libpq says, which never holds a password. */
const char *pg_line(char *buf, size_t size, const char *message)
{
    char *end;

    snprintf(buf, size, "%s", message && *message ? message : "no reason");
    end = strchr(buf, '\n');
    if (end)
        *end = '\0';
    return buf;
}

hf_status pg_cut(struct pg_session *ps, const char *why, struct hf_error *err)
{
    char line[160];

    ps->base.broken = true;
    ps->base.why = SQL_WHY_CUT;
    return hfi_fail(err, HF_UNCERTAIN, "no answer: %s",
                    why ? why
                        : pg_line(line, sizeof(line), PQerrorMessage(ps->pg)));
}

hf_status pg_unsent(struct pg_session *ps, struct hf_error *err)
{
    char line[160];

    ps->base.broken = true;
    ps->base.why = SQL_WHY_OTHER;
    return hfi_fail(err, HF_UNAVAILABLE, "%s",
                    pg_line(line, sizeof(line), PQerrorMessage(ps->pg)));
}

/* ---- errors ------------------------------------------------------------ */

/* By SQLSTATE, or its class where the rest is blank. */
static const struct {
    const char *state;
    hf_status st;
    enum sql_why why;
} pg_states[] = {
    {"40001", HF_UNAVAILABLE, SQL_WHY_RETRY},
    {"40P01", HF_UNAVAILABLE, SQL_WHY_RETRY},
    {"55P03", HF_UNAVAILABLE, SQL_WHY_BLOCKED},
    {"42P07", HF_UNAVAILABLE, SQL_WHY_RETRY}, /* made by another just now */
    {"42710", HF_UNAVAILABLE, SQL_WHY_RETRY}, /* likewise */
    {"23505", HF_UNAVAILABLE, SQL_WHY_RETRY}, /* likewise */
    {"0A000", HF_UNAVAILABLE, SQL_WHY_RETRY}, /* the plan is outdated */
    {"42P01", HF_PROTOCOL, SQL_WHY_TABLE},
    {"3F000", HF_PROTOCOL, SQL_WHY_TABLE},
    {"42703", HF_PROTOCOL, SQL_WHY_COLUMN},
    {"42804", HF_PROTOCOL, SQL_WHY_COLUMN},
    {"42501", HF_DENIED, SQL_WHY_OTHER},
    {"28", HF_DENIED, SQL_WHY_OTHER},
    {"22", HF_PROTOCOL, SQL_WHY_OTHER},
    {"23", HF_PROTOCOL, SQL_WHY_OTHER},
    {"42", HF_PROTOCOL, SQL_WHY_COLUMN},
};

/* Anything else, such as 57014 (statement timeout), 53 (no room) or 25006
 * (read only by now), is the service's "not now". */
hf_status pg_error(struct pg_session *ps, const PGresult *result,
                   struct hf_error *err)
{
    const char *state = PQresultErrorField(result, PG_DIAG_SQLSTATE);
    const char *text = PQresultErrorField(result, PG_DIAG_MESSAGE_PRIMARY);
    hf_status st = HF_UNAVAILABLE;
    char line[160];
    size_t i;

    ps->base.why = SQL_WHY_OTHER;
    if (!state || PQstatus(ps->pg) != CONNECTION_OK ||
        !strncmp(state, "57P", 3)) /* postgres.c (2) */
        return pg_cut(ps, text, err);
    for (i = 0; i < sizeof(pg_states) / sizeof(pg_states[0]); i++) {
        const char *known = pg_states[i].state;

        if (strncmp(state, known, strlen(known)) != 0)
            continue;
        st = pg_states[i].st;
        ps->base.why = pg_states[i].why;
        break;
    }
    if (!strcmp(state, "25006") || !strcmp(state, "26000") ||
        !strcmp(state, "0A000"))
        ps->base.broken = true; /* Another session will fare better. */
    return hfi_fail(err, st, "%s (%s)", pg_line(line, sizeof(line), text),
                    state);
}

/* ---- statements -------------------------------------------------------- */

/* Wait for one result; NULL in *ret when there are no more. */
hf_status pg_next(struct pg_session *ps, PGresult **ret, int64_t deadline,
                  struct hf_error *err)
{
    int more = PQflush(ps->pg);

    while (more > 0 || PQisBusy(ps->pg)) {
        if (!pg_poll(ps->pg, more > 0 ? POLLIN | POLLOUT : POLLIN, deadline))
            return pg_cut(ps, "the time is over", err);
        if (!PQconsumeInput(ps->pg))
            return pg_cut(ps, NULL, err);
        if (more > 0)
            more = PQflush(ps->pg);
    }
    if (more < 0)
        return pg_cut(ps, NULL, err);
    *ret = PQgetResult(ps->pg);
    return HF_OK;
}

/* Wait for all results and keep the last good one. */
hf_status pg_results(struct pg_session *ps, PGresult **ret, int64_t deadline,
                     struct hf_error *err)
{
    PGresult *result = NULL, *last = NULL;
    hf_status st = HF_OK, lost;

    while (!(lost = pg_next(ps, &result, deadline, st ? NULL : err)) &&
           result) {
        ExecStatusType status = PQresultStatus(result);

        if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK && !st)
            st = pg_error(ps, result, err);
        PQclear(last);
        last = result;
    }
    if (!st && lost)
        st = lost;
    if (!st && ret)
        *ret = last;
    else
        PQclear(last);
    return st;
}

hf_status pg_exec(struct pg_session *ps, const char *text, PGresult **ret,
                  int64_t deadline, struct hf_error *err)
{
    if (!PQsendQuery(ps->pg, text))
        return pg_unsent(ps, err);
    return pg_results(ps, ret, deadline, err);
}

static hf_status pg_prepare(struct pg_session *ps, enum sql_stmt stmt,
                            const char *name, int64_t deadline,
                            struct hf_error *err)
{
    static const Oid types[] = {17, 25, 20, 17, 17, 20, 20};
    hf_status st;

    if (!PQsendPrepare(ps->pg, name, ps->base.conn->texts[stmt], 7, types))
        return pg_unsent(ps, err);
    st = pg_results(ps, NULL, deadline, err);
    /* Nothing was changed yet, so nothing can be in doubt. */
    if (st == HF_UNCERTAIN)
        st = hfi_wrap(err, HF_UNAVAILABLE, "prepare");
    ps->base.prepared[stmt] = !st;
    return st;
}

/* "name:token:fence,..." with the names in hex. */
static const char *pg_list(const struct sql_call *call)
{
    char *at = call->room;
    size_t i;

    for (i = 0; i < call->count; i++) {
        const struct hfi_renewal *item = call->items[i];

        at = sql_hex(at, item->claim->key);
        at += snprintf(at, SQL_MANY_FRAME, ":%s:%llu,", item->claim->token,
                       (unsigned long long)item->grant->fence);
    }
    at[-1] = '\0';
    return call->room;
}

static bool pg_send(struct pg_session *ps, const char *name,
                    const struct sql_call *call)
{
    static const int formats[] = {1, 1, 0, 1, 1, 0, 0};
    char ttl[24], queue[2] = {call->queue ? '1' : '0'}, number[24];
    const char *const values[] = {
        call->key,  call->room ? pg_list(call) : call->token,
        ttl,        call->owner,
        call->note, queue,
        number};
    int lengths[7], i;

    snprintf(ttl, sizeof(ttl), "%lld", (long long)call->ttl_ms);
    snprintf(number, sizeof(number), "%lld", (long long)call->number);
    for (i = 0; i < 7; i++)
        lengths[i] = values[i] ? (int)strlen(values[i]) : 0;
    return PQsendQueryPrepared(ps->pg, name, 7, values, lengths, formats, 1);
}

static int64_t pg_number(const char *data, int len)
{
    uint64_t ret = 0;
    int i;

    for (i = 0; i < len; i++)
        ret = ret << 8 | (unsigned char)data[i];
    return (int64_t)ret;
}

static void pg_answer(const PGresult *result, struct sql_answer *answer)
{
    int rows = PQntuples(result), columns = PQnfields(result), i, j;

    if (columns > SQL_CELLS)
        columns = SQL_CELLS;
    answer->rows = rows;
    answer->affected =
        strtoll(PQcmdTuples((PGresult *)(uintptr_t)result), NULL, 10);
    for (i = 0; answer->row && i < rows; i++) {
        struct sql_cell cells[SQL_CELLS];

        for (j = 0; j < columns; j++) {
            bool null = PQgetisnull(result, i, j);

            cells[j].data = null ? NULL : PQgetvalue(result, i, j);
            cells[j].len = (size_t)PQgetlength(result, i, j);
            cells[j].num = !null && PQftype(result, j) == 20
                               ? pg_number(cells[j].data, (int)cells[j].len)
                               : 0;
        }
        answer->row(answer, cells, columns);
    }
}

static hf_status pg_run(struct sql_session *session, enum sql_stmt stmt,
                        const struct sql_call *call, struct sql_answer *answer,
                        int64_t deadline, struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;
    PGresult *result = NULL;
    hf_status st = HF_OK;
    char name[16];

    session->why = SQL_WHY_OTHER;
    if (!call)
        return pg_exec(ps, session->conn->texts[stmt], NULL, deadline, err);
    snprintf(name, sizeof(name), "hf%d", (int)stmt);
    if (!session->prepared[stmt])
        st = pg_prepare(ps, stmt, name, deadline, err);
    if (st)
        return st;
    if (!hfi_left_ms(deadline) || !pg_send(ps, name, call))
        return pg_unsent(ps, err);
    st = pg_results(ps, &result, deadline, err);
    if (!st)
        pg_answer(result, answer);
    PQclear(result);
    return st;
}

/* ---- sessions ---------------------------------------------------------- */

static void pg_session_close(struct sql_session *session)
{
    struct pg_session *ps = (struct pg_session *)session;

    if (ps->pg)
        PQfinish(ps->pg);
}

static hf_status pg_session_open(struct sql_session *session, bool first,
                                 int64_t deadline, struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;
    struct pg_conn *pc = (struct pg_conn *)session->conn;
    hf_status st = pg_connect(pc, &ps->pg, deadline, err);

    return st ? st : pg_settle(ps, first, deadline, err);
}

/* Between statements the server says little, and good-bye before it leaves. */
static bool pg_session_alive(struct sql_session *session)
{
    struct pg_session *ps = (struct pg_session *)session;
    struct pollfd pfd = {.fd = PQsocket(ps->pg), .events = POLLIN};

    while (PQstatus(ps->pg) == CONNECTION_OK) {
        if (poll(&pfd, 1, 0) <= 0)
            return true;
        if (!PQconsumeInput(ps->pg))
            return false;
    }
    return false;
}

static const struct sql_driver pg_driver = {
    .name = "postgres",
    .quote = "\"",
    .texts = {pg_lease_texts, pg_version_texts, pg_row_texts},
    .session_size = sizeof(struct pg_session),
    .connect = pg_session_open,
    .disconnect = pg_session_close,
    .alive = pg_session_alive,
    .run = pg_run,
    .row_send = pg_row_send,
    .row_done = pg_row_done,
    .row_beat = pg_row_beat,
    .row_end = pg_row_end,
    .fd = pg_fd,
    .id = pg_id,
};

/* ---- operations -------------------------------------------------------- */

static void pg_endpoint(struct hfi_conn *base, const struct hfi_url *url)
{
    const char *host =
        url->nhosts ? url->hosts[0].name : hfi_url_param(url, "host", "");
    const char *database = url->path[0] == '/' ? url->path + 1 : url->path;
    int port = url->nhosts ? url->hosts[0].port : 0;
    char tail[24] = "";

    if (port)
        snprintf(tail, sizeof(tail), ":%d", port);
    snprintf(base->endpoint, sizeof(base->endpoint),
             "postgres:%.100s%s%s/%.63s", host, tail,
             url->nhosts > 1 ? ",..." : "", database);
}

static hf_status pg_open(struct hfi_conn *base, const struct hfi_url *url,
                         int64_t deadline, struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)base;
    hf_status st;

    pthread_mutex_init(&pc->wake_mu, NULL);
    pc->wake_opened = true;
    pc->sql.timeout_ms = hfi_left_ms(deadline);
    pg_endpoint(base, url);
    st = pg_params(pc, url, err);
    return st ? st : sql_open(&pc->sql, url, &pg_driver, deadline, err);
}

static void pg_close(struct hfi_conn *base)
{
    struct pg_conn *pc = (struct pg_conn *)base;

    if (!pc->wake_opened)
        return;
    pg_unlisten(pc);
    sql_close(&pc->sql);
    pg_params_free(pc);
    pthread_mutex_destroy(&pc->wake_mu);
    pc->wake_opened = false;
}

/* A listener that was lost is replaced before the row is asked. */
static hf_status pg_try_acquire(struct hfi_conn *base,
                                const struct hfi_claim *claim,
                                struct hfi_grant *grant,
                                struct hfi_answer *busy, int64_t deadline,
                                struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)base;

    if (claim->queue && atomic_load(&pc->listening))
        pg_listen(pc, deadline, NULL);
    return sql_try_acquire(base, claim, grant, busy, deadline, err);
}

static const char *const pg_schemes[] = {"postgres", "postgresql", NULL};

static const char *const pg_options[] = {SQL_OPTIONS,
                                         "host",
                                         "hostaddr",
                                         "port",
                                         "user",
                                         "password",
                                         "dbname",
                                         "passfile",
                                         "service",
                                         "application_name",
                                         "connect_timeout",
                                         "options",
                                         "target_session_attrs",
                                         "sslmode",
                                         "sslrootcert",
                                         "sslcert",
                                         "sslkey",
                                         "sslpassword",
                                         "sslcrl",
                                         "sslcrldir",
                                         "sslsni",
                                         "ssl_min_protocol_version",
                                         "ssl_max_protocol_version",
                                         "requirepeer",
                                         "channel_binding",
                                         "gssencmode",
                                         "krbsrvname",
                                         "gsslib",
                                         "keepalives",
                                         "keepalives_idle",
                                         "keepalives_interval",
                                         "keepalives_count",
                                         "tcp_user_timeout",
                                         NULL};

const struct hfi_backend hfi_backend_postgres = {
    .schemes = pg_schemes,
    .options = pg_options,
    .conn_size = sizeof(struct pg_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_NOTIFY |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK | HF_TRAIT_PROCESSES |
              HF_TRAIT_MACHINES | HF_TRAIT_NOTED,
    .open = pg_open,
    .close = pg_close,
    .forget = sql_forget,
    .try_acquire = pg_try_acquire,
    .renew = sql_renew,
    .release = sql_release,
    .watch = pg_watch,
    .unwatch = pg_unwatch,
    .pump_fd = pg_pump_fd,
    .pump = pg_pump,
    .attach = sql_attach,
    .take_over = sql_take_over,
    .inspect = sql_inspect,
    .list = sql_list,
    .break_grant = sql_break,
    .free_grant = sql_free,
};
