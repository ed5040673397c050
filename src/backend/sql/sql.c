/* SPDX-License-Identifier: MIT
 *
 * sql.c - a lock is a row, on any SQL service: what strategies lease and version
 * promise, and opening and closing.
 *
 * ON THE WIRE  One row for each key that was locked, until collect.c removes
 *   it, and one statement for each step, outside any transaction of the caller;
 *   where somebody waits, see queue.c:
 *   acquire   insert the row, or change it if it is free, lapsed, or ours
 *   renew     change it if it has our token
 *   release   take the token out, if it is ours; the row and its fence stay
 *
 * INVARIANTS
 *  (1) A claim owns the lock if and only if the row has its token, 128 random
 *      bits, and, with strategy lease, the time in it has not come by the
 *      server's clock.
 *  (2) No statement changes a row that has another's token, but for taking
 *      over a lapsed one, breaking by fence, and the mark `wanted`.
 *  (3) The fence is computed in the statement that grants, under the row's
 *      lock: the greater of the last one plus one and the server's clock in
 *      microseconds.  It is never deleted with the lock.
 *  (4) Strategy version stores no time.  A waiter may take over a row whose
 *      version has not changed while it watched, on its own clock, for the
 *      ttl that the row names and a margin; the watch begins anew at every
 *      change, and when the answer came, not when the question was sent.  The
 *      statement that takes over compares the version once more.
 *  (5) A claim that found the row busy and will wait leaves a mark in it, so
 *      that a release notifies only where somebody waits; after the mark there
 *      is another look.
 *  (6) To break is to revoke: the token is spoiled by a '!' before it, so that
 *      its holder cannot renew.  The row stays taken until the holder releases
 *      the spoiled token or its lease is over: to be told is not to have
 *      stopped.  Only SQL_FREE lets the next in at once.
 *  (7) Nothing but a request that was made to do so shortens a lease.
 *
 * LEASE  Lease: the server's clock, read after the request arrived, so later
 *   than the moment from which the holder counts.  Version: see (4).
 *
 * LIMITS  A server whose clock jumps forward ends leases early, and the fence
 *   is then what protects; with strategy version it does not matter, but a
 *   dead holder's lock is only taken over by somebody who waits a whole ttl.
 *   What an asynchronous replica had not heard of is forgotten by a failover.
 *
 * NAMES  The name of the table is the only thing that is ever pasted into a
 *   statement, once, here; so it is held to letters, digits and '_', in one
 *   part or two.  Everything else travels as a parameter.
 */
#include "sql.h"

#include <errno.h>
#include <strings.h>

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

/* Where the table is, as far as that is known without asking. */
static hf_status open_schema(struct sql_conn *conn, struct hf_error *err)
{
    const struct sql_driver *driver = conn->driver;
    const char *table = conn->table, *dot = strchr(table, '.');
    size_t len = dot ? (size_t)(dot - table) : 0;

    if (dot && driver->sole &&
        (len != strlen(driver->sole) || strncasecmp(table, driver->sole, len)))
        return hfi_fail(err, HF_INVALID,
                        "url: table=%s: %s: has the schema %s only, and a "
                        "temporary table excludes nobody",
                        table, driver->name, driver->sole);
    if (dot)
        snprintf(conn->home, sizeof(conn->home), "'%.*s'", (int)len, table);
    else if (driver->home)
        snprintf(conn->home, sizeof(conn->home), "%s", driver->home);
    if (!dot && driver->sole)
        snprintf(conn->schema, sizeof(conn->schema), "%s%s%s", driver->quote,
                 driver->sole, driver->quote);
    return HF_OK;
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
    return open_schema(conn, err);
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

/* What @T, @F, @H, @Q, @C, @S and @N stand for. */
#define OPEN_KINDS "TFHQCSN"
enum { OPEN_T, OPEN_F, OPEN_H, OPEN_Q, OPEN_C, OPEN_S, OPEN_N };
struct open_names {
    char texts[sizeof(OPEN_KINDS) - 1][OPEN_QUOTED_MAX];
};

/* Of @{a@|b@} and @(a@), the part that is not ours is passed over: what follows
 * the sign at `at`. */
static const char *open_choose(const struct sql_conn *conn, const char *at)
{
    bool version = conn->strategy == SQL_VERSION;
    const char *end = at;

    if (at[1] == '{' && version)
        end = strstr(at, "@|");
    else if (at[1] == '|' && !version)
        end = strstr(at, "@}");
    else if (at[1] == '(' && !conn->fair)
        end = strstr(at, "@)");
    return end ? end + 1 : at + 1;
}

static char *open_text(const struct sql_conn *conn, const char *text,
                       const struct open_names *names)
{
    static const char kinds[] = OPEN_KINDS;
    size_t size = strlen(text) + 1, len = 0;
    const char *at;
    char *ret;

    for (at = text; (at = strchr(at, '@')); at++)
        size += OPEN_QUOTED_MAX;
    ret = hfi_alloc(size);
    for (at = text; ret && *at; at++) {
        const char *kind = *at == '@' && at[1] ? strchr(kinds, at[1]) : NULL;

        if (*at == '@' && at[1] && strchr("{|}()", at[1])) {
            at = open_choose(conn, at);
            continue;
        }
        if (!kind) {
            ret[len++] = *at;
            continue;
        }
        len += (size_t)snprintf(ret + len, size - len, "%s",
                                names->texts[kind - kinds]);
        at++;
    }
    return ret;
}

/* The text of a statement with its signs; or NULL. */
static const char *open_source(const struct sql_conn *conn, enum sql_stmt stmt)
{
    const struct sql_driver *driver = conn->driver;

    return conn->fair && driver->queue[stmt]
               ? driver->queue[stmt]
               : driver->texts[conn->strategy][stmt];
}

static hf_status open_statements(struct sql_conn *conn, struct hf_error *err)
{
    const char *dot = strchr(conn->table, '.');
    const char *last = dot ? dot + 1 : conn->table;
    struct open_names names = {0}, fence, holders, queue;
    int i;

    open_quote(conn, names.texts[OPEN_T], OPEN_QUOTED_MAX, "");
    open_quote(conn, names.texts[OPEN_F], OPEN_QUOTED_MAX, "_fence");
    open_quote(conn, names.texts[OPEN_H], OPEN_QUOTED_MAX, "_holders");
    open_quote(conn, names.texts[OPEN_Q], OPEN_QUOTED_MAX, "_queue");
    snprintf(names.texts[OPEN_C], OPEN_QUOTED_MAX, "'%s'", conn->table);
    snprintf(names.texts[OPEN_S], OPEN_QUOTED_MAX, "%s", conn->home);
    fence = holders = queue = names;
    snprintf(names.texts[OPEN_N], OPEN_QUOTED_MAX, "'%s'", last);
    snprintf(fence.texts[OPEN_N], OPEN_QUOTED_MAX, "'%s_fence'", last);
    snprintf(holders.texts[OPEN_N], OPEN_QUOTED_MAX, "'%s_holders'", last);
    snprintf(queue.texts[OPEN_N], OPEN_QUOTED_MAX, "'%s_queue'", last);
    for (i = 0; i < SQL_STMTS; i++) {
        const char *text = open_source(conn, (enum sql_stmt)i);
        const struct open_names *own = i == SQL_VERIFY_FENCE     ? &fence
                                       : i == SQL_VERIFY_HOLDERS ? &holders
                                       : i == SQL_VERIFY_QUEUE   ? &queue
                                                                 : &names;

        if (!text)
            continue;
        conn->texts[i] = open_text(conn, text, own);
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

/* Strategy row has the server's own. */
static hf_status open_queue(struct sql_conn *conn, const struct hfi_url *url,
                            struct hf_error *err)
{
    static const char *const names[] = {"fair", "barge", NULL};
    uint64_t id[2];
    int i = 0;
    hf_status st = hfi_url_word(url, "queue", names, &i, err);

    conn->fair = conn->driver->queue && conn->strategy != SQL_ROW && !i;
    conn->base.traits &= ~(unsigned)HF_TRAIT_QUEUED;
    if (conn->fair)
        conn->base.traits |= HF_TRAIT_QUEUED;
    hfi_random(id, sizeof(id));
    snprintf(conn->channel, sizeof(conn->channel), "hf:%016llx%016llx",
             (unsigned long long)id[0], (unsigned long long)id[1]);
    return st;
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
    if (!st)
        st = hfi_url_keep(url, &conn->keep_ms, err);
    if (!st)
        st = open_strategy(conn, url, err);
    return st ? st : open_queue(conn, url, err);
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

/* The table is seen before it is used; what was not there is made by the first
 * look.  verify.c */
static hf_status open_table_verified(struct sql_conn *conn, int64_t deadline,
                                     struct hf_error *err)
{
    bool there = false;
    hf_status st = sql_verify(conn, &there, deadline, err);

    if (!st)
        st = open_look(conn, deadline, err);
    if (!st && !there)
        st = sql_verify(conn, &there, deadline, err);
    return st || there ? st : sql_verify_unseen(conn, err);
}

/* Where the table of tickets is missing and is not to be made there is no
 * queue, as before there was one. */
static hf_status open_without_queue(struct sql_conn *conn, bool asked,
                                    struct hf_error *err)
{
    int i;

    if (asked)
        return hfi_fail(err, HF_INVALID,
                        "%s: there is no table of tickets, NAME_queue, and the "
                        "URL says queue=fair and create=no",
                        conn->base.endpoint);
    for (i = 0; i < SQL_STMTS; i++) {
        hfi_free(conn->texts[i]);
        conn->texts[i] = NULL;
    }
    conn->fair = false;
    conn->base.traits &= ~(unsigned)HF_TRAIT_QUEUED;
    if (!conn->base.warning[0])
        snprintf(conn->base.warning, sizeof(conn->base.warning),
                 "there is no table of tickets, NAME_queue, and the URL says "
                 "create=no: waiters are not served in order");
    return open_statements(conn, err);
}

static hf_status open_queue_verified(struct sql_conn *conn,
                                     const struct hfi_url *url,
                                     int64_t deadline, struct hf_error *err)
{
    bool there = true;
    hf_status st = conn->fair
                       ? sql_verify_queue(conn, NULL, &there, deadline, err)
                       : HF_OK;

    if (st || there || conn->create)
        return st;
    return open_without_queue(conn, hfi_url_param(url, "queue", NULL), err);
}

hf_status sql_open(struct sql_conn *conn, const struct hfi_url *url,
                   const struct sql_driver *driver, int64_t deadline,
                   struct hf_error *err)
{
    hf_status st;

    conn->driver = driver;
    conn->timeout_ms = hfi_left_ms(deadline);
    conn->spare = driver->sessions ? 1 : OPEN_SPARE;
    hfi_link_init(&conn->idle);
    hfi_link_init(&conn->half);
    hfi_link_init(&conn->doubts);
    pthread_mutex_init(&conn->mu, NULL);
    pthread_mutex_init(&conn->keep_mu, NULL);
    atomic_init(&conn->uses, sql_collect_begin());
    hfi_cond_init(&conn->freed);
    conn->opened = true;
    st = sql_fds_open(conn) ? open_options(conn, url, err) : hfi_nomem(err);
    if (!st)
        st =
            open_table(conn, hfi_url_param(url, "table", "holdfast_lock"), err);
    if (!st)
        st = open_connect(conn, deadline, err);
    if (!st)
        st = open_queue_verified(conn, url, deadline, err);
    if (!st)
        st = open_table_verified(conn, deadline, err);
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
    pthread_mutex_destroy(&conn->keep_mu);
    pthread_mutex_destroy(&conn->mu);
    conn->opened = false;
}
