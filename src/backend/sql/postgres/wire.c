/* SPDX-License-Identifier: MIT
 *
 * wire.c - questions and answers: waiting for libpq, what an answer
 * may be, and what an error means.
 *
 * INVARIANTS
 *  (1) Nothing that a server sends is taken for what was asked for: a value is
 *      read by pg_value(), which says NULL where there is none, and an answer
 *      that is longer than a lock table's can be is cut off.  (A single
 *      message of up to 1 GiB is libpq's own limit.)
 *  (2) Behind a pooler each statement may be another session's.  So a statement
 *      brings its settings with it, in a transaction of its own, and leaves
 *      nothing behind.
 *  (3) A pooler may hide itself until others use it, too: it has told us the
 *      process of the session that we came to first.  What we prepare has a
 *      name that nobody else gives, so in another session it is not found,
 *      nothing is done, and we know of the pooler.  A name that others give as
 *      well would be a statement on their table.
 */
#include "postgres.h"

#include <errno.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "base/banned.h"

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

/* The server sends too much, or what was not asked for: there is no sense in
 * asking again. */
hf_status pg_bad_reply(struct pg_session *ps, struct hf_error *err)
{
    ps->base.broken = true;
    ps->base.why = SQL_WHY_OTHER;
    return hfi_fail(err, HF_PROTOCOL,
                    "the server answers what was not asked for");
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
    {"26000", HF_UNAVAILABLE, SQL_WHY_RETRY}, /* in another's session */
    {"25006", HF_UNAVAILABLE, SQL_WHY_DEPOSED},
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

/* wire.c (3) */
static void pg_pooled(struct pg_session *ps)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;

    if (!atomic_exchange(&pc->pooled, true))
        hfi_warn(&pc->sql.base, PG_POOLED);
}

/* Anything else, such as 57014 (statement timeout) or 53 (no room), is the
 * service's "not now". */
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
    if (!strcmp(state, "26000"))
        pg_pooled(ps);
    if (ps->base.why == SQL_WHY_DEPOSED || !strcmp(state, "26000") ||
        !strcmp(state, "0A000"))
        ps->base.broken = true; /* Another session will fare better. */
    return hfi_fail(err, st, "%s (%s)", pg_line(line, sizeof(line), text),
                    state);
}

/* ---- statements -------------------------------------------------------- */

void pg_name(const struct pg_session *ps, enum sql_stmt stmt,
             char ret[PG_NAME_MAX])
{
    snprintf(ret, PG_NAME_MAX, "hf%d_%016llx", (int)stmt,
             (unsigned long long)ps->number);
}

const char *pg_value(const PGresult *result, int row, int column)
{
    if (row >= PQntuples(result) || column >= PQnfields(result) ||
        PQgetisnull(result, row, column))
        return NULL;
    return PQgetvalue(result, row, column);
}

int64_t pg_integer(const PGresult *result, int row, int column)
{
    const char *value = pg_value(result, row, column);

    return value ? strtoll(value, NULL, 10) : 0;
}

/* Count what is about to be read, since libpq would keep all of it;
 * false: it is too much.  wire.c (1) */
bool pg_subscribed(PGconn *pg, size_t *heard, size_t most)
{
    int len = 0;

    if (PQsocket(pg) < 0 || ioctl(PQsocket(pg), FIONREAD, &len) || len < 0)
        len = 0;
    *heard += (size_t)len;
    return *heard <= most;
}

/* Wait for one result; NULL in *ret when there are no more. */
hf_status pg_next_soon(struct pg_session *ps, PGresult **ret, int64_t deadline,
                       struct hf_error *err)
{
    int more = PQflush(ps->pg);

    while (more > 0 || PQisBusy(ps->pg)) {
        if (!pg_poll(ps->pg, more > 0 ? POLLIN | POLLOUT : POLLIN, deadline))
            return HF_BUSY;
        if (!pg_subscribed(ps->pg, &ps->heard, ps->most))
            return pg_bad_reply(ps, err);
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

hf_status pg_next(struct pg_session *ps, PGresult **ret, int64_t deadline,
                  struct hf_error *err)
{
    hf_status st = pg_next_soon(ps, ret, deadline, err);

    ps->late = st == HF_BUSY;
    if (st != HF_BUSY)
        return st;
    pg_doubt_listener((struct pg_conn *)ps->base.conn);
    return pg_cut(ps, "the time is over", err);
}

/* Wait for all results and keep the last that may have rows, or the last. */
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
        if (last && status != PGRES_TUPLES_OK) {
            PQclear(result);
            continue;
        }
        PQclear(last);
        last = result;
    }
    if (!st && !lost && !last)
        st = pg_bad_reply(ps, err);
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
    ps->heard = 0;
    ps->most = PG_ANSWER_MAX;
    if (!PQsendQuery(ps->pg, text))
        return pg_unsent(ps, err);
    return pg_results(ps, ret, deadline, err);
}

/* ---- transactions of one statement ------------------------------------- */

/* wire.c (2) */
hf_status pg_begin(struct pg_session *ps, bool *began, int64_t deadline,
                   struct hf_error *err)
{
    static const char begin[] =
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;";
    char text[PG_SETTINGS_MAX + sizeof(begin)];
    hf_status st;

    *began = false;
    if (!ps->pooled || PQtransactionStatus(ps->pg) != PQTRANS_IDLE)
        return HF_OK;
    memcpy(text, begin, sizeof(begin));
    pg_settings(ps, "true", text + sizeof(begin) - 1, PG_SETTINGS_MAX);
    st = pg_exec(ps, text, NULL, deadline, err);
    *began = !st;
    /* Nothing was asked for yet, so nothing can be in doubt. */
    return st == HF_UNCERTAIN ? hfi_wrap(err, HF_UNAVAILABLE, "begin") : st;
}

/* `st` is how the statement went; that of the whole is returned. */
hf_status pg_finish(struct pg_session *ps, bool began, hf_status st,
                    int64_t deadline, struct hf_error *err)
{
    enum sql_why why = ps->base.why;

    if (!began || (st && ps->base.broken))
        return st;
    if (!st)
        return pg_exec(ps, "COMMIT", NULL, deadline, err);
    if (pg_exec(ps, "ROLLBACK", NULL, deadline, NULL))
        ps->base.broken = true;
    ps->base.why = why;
    return st;
}

hf_status pg_ask(struct pg_session *ps, const char *text, int n,
                 const char *const *values, PGresult **ret, int64_t deadline,
                 struct hf_error *err)
{
    PGresult *result = NULL;
    bool began;
    hf_status st = pg_begin(ps, &began, deadline, err);

    if (st)
        return st;
    ps->heard = 0;
    ps->most = PG_ANSWER_MAX;
    st = PQsendQueryParams(ps->pg, text, n, NULL, values, NULL, NULL, 0)
             ? pg_results(ps, &result, deadline, err)
             : pg_unsent(ps, err);
    st = pg_finish(ps, began, st, deadline, err);
    if (!st)
        *ret = result;
    else
        PQclear(result);
    return st;
}
