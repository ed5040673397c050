/* SPDX-License-Identifier: MIT
 *
 * postgres.c - PostgreSQL, by libpq.
 *
 * ON THE WIRE  The statements of *.sql, prepared once in each session
 *   and run outside any transaction block, so each is a transaction of its own:
 *   granted means committed.  See backend/sql/sql.c for what they promise.
 *
 * INVARIANTS
 *  (1) libpq is never asked to block: each wait is a poll() that ends at the
 *      deadline, and a session that was left waiting is closed, but for
 *      backend/sql/pool.c (2).
 *  (2) Only an error that the server sent, in a session that stands, proves
 *      that a statement did not happen; any other failure after sending is
 *      HF_UNCERTAIN.
 *  (3) No code of another role runs with our rights; find.c, verify.sql.
 *  (4) What is left in a session of the server is left only where the session
 *      is known to be ours alone; wire.c (2).
 *
 * DECISIONS
 *   NOTIFY wakes waiters of a lease: one connection listens for all keys of a
 *   client, where a waiter blocked in pg_advisory_lock() needs a connection
 *   for each key on both sides.  Its price, a lock of the whole cluster at
 *   commit, is paid only by a release that somebody waits for (sql.c (5)).
 *   Strategy row has a connection for each lock anyway.  There an advisory
 *   lock queues: the one who releases it hands it on, so no newcomer gets
 *   between, which a row lock does not prevent.
 *
 * LIMITS  Name resolution is libpq's and blocks; hostaddr= avoids it.  What an
 *   asynchronous standby had not received is forgotten when it is promoted;
 *   the fence then rises only if its clock does.
 */
#include "postgres.h"

#include <poll.h>

#include "base/alloc.h"

#include "base/banned.h"

/* ---- statements -------------------------------------------------------- */

static const Oid pg_types[] = {17, 25, 20, 17, 17, 20, 20};

static hf_status pg_prepare(struct pg_session *ps, enum sql_stmt stmt,
                            const char *name, int64_t deadline,
                            struct hf_error *err)
{
    hf_status st;

    ps->heard = 0;
    ps->most = PG_ANSWER_MAX;
    if (!PQsendPrepare(ps->pg, name, ps->base.conn->texts[stmt], 7, pg_types))
        return pg_unsent(ps, err);
    st = pg_results(ps, NULL, deadline, err);
    /* Nothing was changed yet, so nothing can be in doubt. */
    if (st == HF_UNCERTAIN)
        st = hfi_wrap(err, HF_UNAVAILABLE, "prepare");
    ps->base.prepared[stmt] = !st;
    return st;
}

/* "name:token:fence,..." with the names in hex. */
static const char *pg_renewals(const struct sql_call *call)
{
    char *at = call->room;
    size_t i;

    for (i = 0; i < call->count; i++) {
        const struct hfi_renewal *item = call->items[i];

        at = sql_hex(at, item->claim->key);
        at += snprintf(at, SQL_MANY_FRAME, ":%s:%llu,", item->claim->token,
                       (unsigned long long)item->receipt->fence);
    }
    at[-1] = '\0';
    return call->room;
}

/* By the name of what was prepared; or the text itself behind a pooler, where
 * the name may be another's. */
static bool pg_send(struct pg_session *ps, enum sql_stmt stmt, const char *name,
                    const struct sql_call *call)
{
    static const int formats[] = {1, 1, 0, 1, 1, 0, 0};
    char ttl[24], queue[2] = {call->queue ? '1' : '0'}, number[24];
    const char *const values[] = {
        call->key,  call->room ? pg_renewals(call) : call->token,
        ttl,        call->owner,
        call->note, queue,
        number};
    int lengths[7], i;

    snprintf(ttl, sizeof(ttl), "%lld", (long long)call->ttl_ms);
    snprintf(number, sizeof(number), "%lld", (long long)call->number);
    for (i = 0; i < 7; i++)
        lengths[i] = values[i] ? (int)strlen(values[i]) : 0;
    ps->heard = 0;
    ps->most =
        stmt == SQL_LIST || stmt == SQL_WAITERS ? PG_LIST_MAX : PG_ANSWER_MAX;
    if (ps->pooled)
        return PQsendQueryParams(ps->pg, ps->base.conn->texts[stmt], 7,
                                 pg_types, values, lengths, formats, 1);
    return PQsendQueryPrepared(ps->pg, name, 7, values, lengths, formats, 1);
}

static int64_t pg_number(const char *data, size_t len)
{
    uint64_t ret = 0;
    size_t i;

    for (i = 0; i < len && len <= sizeof(ret); i++)
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
        struct sql_cell cells[SQL_CELLS] = {{0}};

        for (j = 0; j < columns; j++) {
            cells[j].data = pg_value(result, i, j);
            if (!cells[j].data)
                continue;
            cells[j].len = (size_t)PQgetlength(result, i, j);
            if (PQftype(result, j) == 20)
                cells[j].num = pg_number(cells[j].data, cells[j].len);
        }
        answer->row(answer, cells, columns);
    }
}

/* A text without parameters: it makes a table, which may have been there. */
static hf_status pg_run_text(struct pg_session *ps, const char *text,
                             int64_t deadline, struct hf_error *err)
{
    bool began;
    hf_status st = pg_begin(ps, &began, deadline, err);

    return st ? st
              : pg_finish(ps, began, pg_exec(ps, text, NULL, deadline, err),
                          deadline, err);
}

/* Rows of a script, which come as text; others than those that say `hf` are of
 * no interest. */
void pg_script_rows(const PGresult *result, struct sql_answer *answer)
{
    int rows = PQntuples(result), columns = PQnfields(result), i, j;
    const char *name = PQfname(result, 0);

    if (!name || strcmp(name, "hf") != 0)
        return;
    if (columns > SQL_CELLS)
        columns = SQL_CELLS;
    answer->rows += rows;
    for (i = 0; answer->row && i < rows; i++) {
        struct sql_cell cells[SQL_CELLS] = {{0}};

        for (j = 0; j < columns; j++) {
            cells[j].data = pg_value(result, i, j);
            cells[j].len = cells[j].data ? strlen(cells[j].data) : 0;
            cells[j].num = pg_integer(result, i, j);
        }
        answer->row(answer, cells, columns);
    }
}

/* What counts is known when all of it has been answered: then it is
 * committed. */
static hf_status pg_script_results(struct pg_session *ps,
                                   struct sql_answer *answer, int64_t deadline,
                                   struct hf_error *err)
{
    PGresult *result = NULL;
    hf_status st = HF_OK, lost;

    while (!(lost = pg_next(ps, &result, deadline, st ? NULL : err)) &&
           result) {
        ExecStatusType status = PQresultStatus(result);

        if (status == PGRES_TUPLES_OK && !st)
            pg_script_rows(result, answer);
        else if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK && !st)
            st = pg_error(ps, result, err);
        PQclear(result);
    }
    return st ? st : lost;
}

/* backend/sql/script.c */
static hf_status pg_run_script(struct pg_session *ps, enum sql_stmt stmt,
                               const struct sql_call *call,
                               struct sql_answer *answer, int64_t deadline,
                               struct hf_error *err)
{
    char *text = sql_script(ps->base.conn, stmt, call);
    bool began;
    hf_status st;

    if (!text)
        return hfi_nomem(err);
    st = pg_begin(ps, &began, deadline, err);
    if (!st) {
        ps->heard = 0;
        ps->most = PG_ANSWER_MAX;
        st = hfi_left_ms(deadline) && PQsendQuery(ps->pg, text)
                 ? pg_script_results(ps, answer, deadline, err)
                 : pg_unsent(ps, err);
        st = pg_finish(ps, began, st, deadline, err);
    }
    hfi_free(text);
    return st;
}

static hf_status pg_run(struct sql_session *session, enum sql_stmt stmt,
                        const struct sql_call *call, struct sql_answer *answer,
                        int64_t deadline, struct hf_error *err)
{
    struct pg_session *ps = (struct pg_session *)session;
    PGresult *result = NULL;
    hf_status st = HF_OK;
    char name[PG_NAME_MAX];
    bool began;

    session->why = SQL_WHY_OTHER;
    if (!call)
        return pg_run_text(ps, session->conn->texts[stmt], deadline, err);
    if (sql_is_script(stmt))
        return ps->pooled ? pg_run_script(ps, stmt, call, answer, deadline, err)
                          : pg_pipeline(ps, stmt, call, answer, deadline, err);
    pg_name(ps, stmt, name);
    if (!ps->pooled && !session->prepared[stmt])
        st = pg_prepare(ps, stmt, name, deadline, err);
    if (!st)
        st = pg_begin(ps, &began, deadline, err);
    if (st)
        return st;
    if (!hfi_left_ms(deadline) || !pg_send(ps, stmt, name, call))
        st = pg_unsent(ps, err);
    else
        st = pg_results(ps, &result, deadline, err);
    st = pg_finish(ps, began, st, deadline, err);
    if (st && !ps->pooled && ps->late &&
        (stmt == SQL_RENEW || stmt == SQL_RENEW_MANY)) {
        session->late = true; /* backend/sql/pool.c (2) */
        session->broken = false;
    }
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
    hf_status st = ps->settling ? HF_OK : pg_dial(ps, deadline, err);

    return st ? st : pg_settle(ps, first, deadline, err);
}

/* backend/sql/pool.c (2) */
static hf_status pg_session_settle(struct sql_session *session,
                                   int64_t deadline)
{
    struct pg_session *ps = (struct pg_session *)session;
    PGresult *result = NULL;
    hf_status st;

    do {
        st = pg_next_soon(ps, &result, deadline, NULL);
        if (st)
            return st;
        PQclear(result);
    } while (result);
    return PQstatus(ps->pg) == CONNECTION_OK ? HF_OK : HF_UNAVAILABLE;
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
    .queue = pg_queue_texts,
    .bytes = {"'\\x", "'::bytea"},
    .text = {"convert_from('\\x", "','UTF8')"},
    .names = true,
    .skips = true,
    .session_size = sizeof(struct pg_session),
    .connect = pg_session_open,
    .disconnect = pg_session_close,
    .alive = pg_session_alive,
    .settle = pg_session_settle,
    .prepare = pg_prepare_renewals,
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
    hfi_link_init(&pc->observed);
    pc->wake_opened = true;
    pc->sql.timeout_ms = hfi_left_ms(deadline);
    if (url->path[0] != '/' && strpbrk(url->path, "@=")) /* a password in it? */
        return hfi_fail(err, HF_INVALID,
                        "url: postgres: is written postgres://user@host/db");
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

static const char *const pg_schemes[] = {"postgres", "postgresql", NULL};

static const char *const pg_options[] = {SQL_OPTIONS,
                                         "host",
                                         "hostaddr",
                                         "port",
                                         "user",
                                         "password",
                                         "password_file",
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
    .grant_size = sizeof(struct sql_grant),
    .observation_size = sizeof(struct pg_observation),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_NOTIFY |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK | HF_TRAIT_PROCESSES |
              HF_TRAIT_MACHINES | HF_TRAIT_NOTED | HF_TRAIT_QUEUED |
              SQL_SHARING,
    .varies = HF_TRAIT_NOTIFY | HF_TRAIT_DETACH | HF_TRAIT_QUEUED | SQL_SHARING,
    .no_shared = "with strategy=row the server does not show who shares a row, "
                 "and lets readers pass a writer that waits",
    .no_permits = SQL_NO_PERMITS,
    .no_min_hold = SQL_NO_MIN_HOLD,
    .page = "sql",
    .tested = "PostgreSQL 13, 15, 17, 18",
    .open = pg_open,
    .close = pg_close,
    .after_fork_child = sql_after_fork_child,
    .try_acquire = pg_try_acquire,
    .try_acquire_all = sql_try_acquire_all,
    .renew = sql_renew,
    .release = sql_release,
    .keep = sql_keep,
    .downgrade = sql_downgrade,
    .watch = pg_watch,
    .unwatch = pg_unwatch,
    .poll_fd = pg_poll_fd,
    .dispatch = pg_dispatch,
    .attach = sql_attach,
    .take_over = sql_take_over,
    .inspect = sql_inspect,
    .list = sql_list,
    .list_since = sql_list_since,
    .fence_slack = SQL_FENCE_SLACK,
    .observe = pg_observe,
    .unobserve = pg_unobserve,
    .reobserve = pg_reobserve,
    .holders = sql_holders,
    .waiters = sql_waiters,
    .break_grant = sql_break,
    .free_grant = sql_free,
    .promote = sql_promote,
    .collect = sql_collect,
};
