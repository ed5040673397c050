/* SPDX-License-Identifier: MIT
 *
 * open.c - the options of a URL, the statements they lead to, opening and
 * closing.
 *
 * The name of the table is the only thing that is ever pasted into a
 * statement, once, here; so it is held to letters, digits and '_', in one
 * part or two.  Everything else travels as a parameter.
 */
#include "sql.h"

#include <errno.h>

#include "base/alloc.h"
#include "row.h"

#include "base/banned.h"

/* The name of the table is also that of a channel, which may have 63 bytes. */
#define OPEN_TABLE_MAX   63
#define OPEN_NAME_MAX    48
#define OPEN_QUOTED_MAX  (SQL_SCHEMA_MAX + SQL_TABLE_MAX + 16)
#define OPEN_SESSIONS    8
#define OPEN_SESSION_MAX 1000

/* Renewals that may be under way at once. */
#define OPEN_SPARE 16

char *sql_hex(char *at, const char *text)
{
    static const char digits[] = "0123456789abcdef";

    for (; *text; text++) {
        *at++ = digits[(unsigned char)*text >> 4];
        *at++ = digits[*text & 15];
    }
    return at;
}

static bool open_part_ok(const char *text, size_t len)
{
    size_t i;

    for (i = 0; i < len; i++)
        if (!((text[i] >= 'a' && text[i] <= 'z') ||
              (text[i] >= 'A' && text[i] <= 'Z') || text[i] == '_' ||
              (text[i] >= '0' && text[i] <= '9' && i)))
            return false;
    return len > 0 && len <= OPEN_NAME_MAX;
}

static hf_status open_table(struct sql_conn *conn, const char *table,
                            struct hf_error *err)
{
    const char *dot = strchr(table, '.'), *last = dot ? dot + 1 : table;

    if (strlen(table) > OPEN_TABLE_MAX ||
        (dot && !open_part_ok(table, (size_t)(dot - table))) ||
        !open_part_ok(last, strlen(last)))
        return hfi_fail(
            err, HF_INVALID,
            "url: table= is NAME or SCHEMA.NAME, of letters, "
            "digits and '_', at most %d of them in each and %d in all",
            OPEN_NAME_MAX, OPEN_TABLE_MAX);
    snprintf(conn->table, sizeof(conn->table), "%s", table);
    return HF_OK;
}

/* "a.b" as "a"."b", with `suffix` inside the last quotes. */
static void open_quote(const struct sql_conn *conn, char *buf, size_t size,
                       const char *suffix)
{
    const char *quote = conn->driver->quote, *table = conn->table;
    const char *dot = strchr(table, '.'), *last = dot ? dot + 1 : table;

    if (dot)
        snprintf(buf, size, "%s%.*s%s.%s%s%s%s", quote, (int)(dot - table),
                 table, quote, quote, last, suffix, quote);
    else
        snprintf(buf, size, "%s%s%s%s%s%s", conn->schema,
                 conn->schema[0] ? "." : "", quote, last, suffix, quote);
}

/* Replace @T, @F and @C. */
static char *open_text(const char *text, const char *const names[3])
{
    static const char kinds[] = "TFC";
    size_t size = strlen(text) + 1, len = 0;
    const char *at;
    char *ret;

    for (at = text; (at = strchr(at, '@')); at++)
        size += OPEN_QUOTED_MAX;
    ret = hfi_alloc(size);
    for (at = text; ret && *at; at++) {
        const char *kind = *at == '@' && at[1] ? strchr(kinds, at[1]) : NULL;

        if (!kind) {
            ret[len++] = *at;
            continue;
        }
        len +=
            (size_t)snprintf(ret + len, size - len, "%s", names[kind - kinds]);
        at++;
    }
    return ret;
}

static hf_status open_statements(struct sql_conn *conn, struct hf_error *err)
{
    char quoted[OPEN_QUOTED_MAX], fence[OPEN_QUOTED_MAX];
    char text[OPEN_QUOTED_MAX];
    const char *const names[3] = {quoted, fence, text};
    const char *const *texts = conn->driver->texts[conn->strategy];
    int i;

    open_quote(conn, quoted, sizeof(quoted), "");
    open_quote(conn, fence, sizeof(fence), "_fence");
    snprintf(text, sizeof(text), "'%s'", conn->table);
    for (i = 0; i < SQL_STMTS; i++) {
        if (!texts[i])
            continue;
        conn->texts[i] = open_text(texts[i], names);
        if (!conn->texts[i])
            return hfi_nomem(err);
    }
    return HF_OK;
}

static hf_status open_strategy(struct sql_conn *conn, const struct hfi_url *url,
                               struct hf_error *err)
{
    static const char *const names[] = {"lease", "version", "row", NULL};
    int i = 0;
    hf_status st = hfi_url_word(url, "strategy", names, &i, err);

    if (st)
        return st;
    conn->strategy = (enum sql_strategy)i;
    if (!conn->driver->texts[i])
        return hfi_fail(err, HF_UNSUPPORTED, "%s: strategy=%s: %s",
                        conn->driver->name, names[i], conn->driver->refusal);
    return HF_OK;
}

static hf_status open_options(struct sql_conn *conn, const struct hfi_url *url,
                              struct hf_error *err)
{
    int64_t n = conn->driver->sessions ? conn->driver->sessions : OPEN_SESSIONS;
    hf_status st = hfi_url_number(url, "pool", 1, OPEN_SESSION_MAX, &n, err);

    conn->max_sessions = (unsigned)n;
    conn->create = true;
    if (!st)
        st = hfi_url_bool(url, "create", &conn->create, err);
    return st ? st : open_strategy(conn, url, err);
}

/* The first connection, which may tell where the table is. */
static hf_status open_connect(struct sql_conn *conn, int64_t deadline,
                              struct hf_error *err)
{
    struct sql_session *session;
    hf_status st = sql_connect(conn, true, &session, deadline, err);

    if (st)
        return st;
    conn->lent++;
    sql_put(session);
    return open_statements(conn, err);
}

/* See the table once, so that a missing one is made or told of now. */
static hf_status open_look(struct sql_conn *conn, int64_t deadline,
                           struct hf_error *err)
{
    struct sql_call call = {.key = "holdfast"};
    struct sql_answer answer = {0};

    return sql_run(conn, SQL_LOOK, &call, &answer, deadline, err);
}

static void verify_row(struct sql_answer *answer, const struct sql_cell *cells,
                       int n)
{
    if (n && cells[0].num > 0)
        answer->id = 1;
}

/* Without a key two rows of one name could be, and InnoDB would lock every row
 * that it looks at. */
static hf_status open_verify(struct sql_conn *conn, int64_t deadline,
                             struct hf_error *err)
{
    struct sql_call call = {.key = "holdfast"};
    struct sql_answer answer = {.row = verify_row};
    hf_status st = sql_run(conn, SQL_VERIFY, &call, &answer, deadline, err);

    if (st || answer.id)
        return st;
    return hfi_fail(err, HF_PROTOCOL,
                    "%s: the lock table has no unique index on its column "
                    "\"name\" alone: its rows could be doubled, and not be "
                    "locked one by one",
                    conn->base.endpoint);
}

hf_status sql_open(struct sql_conn *conn, const struct hfi_url *url,
                   const struct sql_driver *driver, int64_t deadline,
                   struct hf_error *err)
{
    hf_status st;

    conn->driver = driver;
    conn->timeout_ms = hfi_left_ms(deadline);
    conn->spare = driver->sessions ? 0 : OPEN_SPARE;
    hfi_link_init(&conn->idle);
    hfi_link_init(&conn->half);
    hfi_link_init(&conn->doubts);
    pthread_mutex_init(&conn->mu, NULL);
    hfi_cond_init(&conn->freed);
    conn->opened = true;
    st = sql_fds_open(conn) ? open_options(conn, url, err) : hfi_nomem(err);
    if (!st)
        st =
            open_table(conn, hfi_url_param(url, "table", "holdfast_lock"), err);
    if (!st)
        st = open_connect(conn, deadline, err);
    if (!st)
        st = open_look(conn, deadline, err);
    if (!st)
        st = open_verify(conn, deadline, err);
    if (!st && conn->strategy == SQL_ROW)
        st = sql_row_open(conn, err);
    if (!st)
        sql_prepare(conn, deadline);
    return st;
}

void sql_close(struct sql_conn *conn)
{
    int i;

    if (!conn->opened)
        return;
    if (conn->row)
        sql_row_close(conn);
    sql_pool_close(conn);
    sql_doubt_close(conn);
    sql_fds_close(conn);
    for (i = 0; i < SQL_STMTS; i++)
        hfi_free(conn->texts[i]);
    hfi_cond_fini(&conn->freed);
    pthread_mutex_destroy(&conn->mu);
    conn->opened = false;
}
