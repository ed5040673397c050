/* SPDX-License-Identifier: MIT
 *
 * mysql.c - MariaDB and MySQL, by libmariadb.
 *
 * ON THE WIRE  The statements of *.sql, each a transaction of its own
 *   (autocommit), so granted means committed.  See backend/sql/sql.c for what
 *   they promise.  Parameters are pasted in as hex literals, which no setting
 *   of the server and no character set can read as anything else; so a message
 *   may hold several statements (holders.sql), and none that others wrote.
 *
 * INVARIANTS
 *  (1) libmariadb's calls that do not block are used throughout: each wait is
 *      a poll() that ends at the deadline, and a session that was left waiting
 *      is closed, but for backend/sql/pool.c (2).
 *  (2) Only an error that the server sent proves that a statement did not
 *      happen; a connection that ended after sending is HF_UNCERTAIN.
 *
 * DECISIONS  Waiters poll, because nothing here announces a row that was
 *   released; in a queue by wait.c, else every retry_ms.  Rejected:
 *   GET_LOCK() needs a connection for each waited key on both sides and one
 *   more statement for each acquisition, and locks one node of Galera only.
 *   A row that stays locked needs a transaction for each lock: strategy=row.
 *   SLEEP() ended by KILL QUERY needs one connection for all keys, but a KILL
 *   between two statements is lost, a late one ends the wrong statement, and
 *   ending another user's needs a privilege that no application should have.
 *   The binary log tells everything, and needs the rights of a replica.
 *
 * LIMITS  A waiter is late by up to retry_ms, in a queue by about
 *   a third of the time that a place takes.  Name resolution is the library's
 *   and blocks.
 */
#include "mysql.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/banned.h"

/* ---- waiting ----------------------------------------------------------- */

int my_wait(MYSQL *my, int status, int64_t deadline)
{
    struct pollfd pfd = {.fd = mysql_get_socket(my)};
    int64_t left, now = hfi_now();
    unsigned limit = 0;
    int n, ret = 0;

    if (status & MYSQL_WAIT_READ)
        pfd.events |= POLLIN;
    if (status & MYSQL_WAIT_WRITE)
        pfd.events |= POLLOUT;
    if (status & MYSQL_WAIT_EXCEPT)
        pfd.events |= POLLPRI;
    if (status & MYSQL_WAIT_TIMEOUT)
        limit = mysql_get_timeout_value_ms(my);
    if (limit && now + limit < deadline)
        deadline = now + limit;
    else
        limit = 0;
    do { /* Signals must not make it longer. */
        left = hfi_left_ms(deadline);
        n = poll(&pfd, 1, left > 1000000 ? 1000000 : (int)left);
    } while (n < 0 && errno == EINTR);
    if (n <= 0)
        return limit ? MYSQL_WAIT_TIMEOUT : 0;
    if (pfd.revents & (POLLIN | POLLERR | POLLHUP))
        ret |= MYSQL_WAIT_READ & status;
    if (pfd.revents & (POLLOUT | POLLERR | POLLHUP))
        ret |= MYSQL_WAIT_WRITE & status;
    if (pfd.revents & POLLPRI)
        ret |= MYSQL_WAIT_EXCEPT & status;
    return ret;
}

/* Has the server nothing to say?  Nor has a signal that comes meanwhile. */
bool my_is_quiet(MYSQL *my)
{
    struct pollfd pfd = {.fd = mysql_get_socket(my), .events = POLLIN};
    int n;

    do
        n = poll(&pfd, 1, 0);
    while (n < 0 && errno == EINTR);
    return n == 0;
}

/* ---- errors ------------------------------------------------------------ */

static const struct {
    unsigned code;
    hf_status st;
    enum sql_why why;
} my_codes[] = {
    {1205, HF_UNAVAILABLE, SQL_WHY_RETRY}, /* lock wait timeout */
    {1213, HF_UNAVAILABLE, SQL_WHY_RETRY}, /* deadlock */
    {1020, HF_UNAVAILABLE, SQL_WHY_RETRY}, /* the record has changed */
    {1050, HF_UNAVAILABLE, SQL_WHY_RETRY}, /* made by another just now */
    {1317, HF_UNAVAILABLE, SQL_WHY_RETRY}, /* interrupted */
    {1412, HF_UNAVAILABLE, SQL_WHY_RETRY}, /* the table was altered */
    {3101, HF_UNAVAILABLE, SQL_WHY_RETRY}, /* another primary was first */
    {1146, HF_PROTOCOL, SQL_WHY_TABLE},
    {1054, HF_PROTOCOL, SQL_WHY_COLUMN},
    {1136, HF_PROTOCOL, SQL_WHY_COLUMN},
    {1364, HF_PROTOCOL, SQL_WHY_COLUMN},
    {1064, HF_PROTOCOL, SQL_WHY_OTHER},
    {1366, HF_PROTOCOL, SQL_WHY_COLUMN},
    {1406, HF_PROTOCOL, SQL_WHY_COLUMN},
    {1047, HF_UNAVAILABLE, SQL_WHY_DEPOSED}, /* cut off from the others */
    {1290, HF_UNAVAILABLE, SQL_WHY_DEPOSED}, /* read only */
    {1792, HF_UNAVAILABLE, SQL_WHY_DEPOSED}, /* likewise */
    {1836, HF_UNAVAILABLE, SQL_WHY_DEPOSED}, /* likewise */
    {3100, HF_UNAVAILABLE, SQL_WHY_DEPOSED}, /* cut off from its group */
    {1044, HF_DENIED, SQL_WHY_OTHER},
    {1045, HF_DENIED, SQL_WHY_OTHER},
    {1049, HF_DENIED, SQL_WHY_OTHER}, /* no such database */
    {1095, HF_DENIED, SQL_WHY_OTHER}, /* the session of another user */
    {1142, HF_DENIED, SQL_WHY_OTHER},
    {1143, HF_DENIED, SQL_WHY_OTHER},
    {1227, HF_DENIED, SQL_WHY_OTHER},
    {1251, HF_DENIED, SQL_WHY_OTHER},
    {1698, HF_DENIED, SQL_WHY_OTHER},
    {2020, HF_PROTOCOL, SQL_WHY_OTHER}, /* a packet that is too large */
    {2026, HF_DENIED, SQL_WHY_OTHER},   /* TLS */
    {3159, HF_DENIED, SQL_WHY_OTHER},   /* not without TLS */
};

/* Did the session end under the statement? */
static bool my_is_cut(unsigned code)
{
    return code == 0 || code == 1053 || code == 1927 || code == 2006 ||
           code == 2013 || code == 2014 || code == 2027;
}

hf_status my_error(struct my_session *ms, struct hf_error *err)
{
    unsigned code = mysql_errno(ms->my);
    const char *text = mysql_error(ms->my);
    hf_status st = HF_UNAVAILABLE;
    size_t i;

    ms->base.why = SQL_WHY_OTHER;
    if (my_is_cut(code)) { /* mysql.c (2) */
        ms->base.broken = true;
        ms->base.why = SQL_WHY_CUT;
        return hfi_fail(err, ms->sent ? HF_UNCERTAIN : HF_UNAVAILABLE,
                        "no answer: %.120s", text);
    }
    if ((code >= 2000 && code < 3000) || (code >= 5000 && code < 6000))
        ms->base.broken =
            true; /* The library's own; others are the server's. */
    for (i = 0; i < sizeof(my_codes) / sizeof(my_codes[0]); i++)
        if (my_codes[i].code == code) {
            st = my_codes[i].st;
            ms->base.why = my_codes[i].why;
        }
    if (ms->base.why == SQL_WHY_DEPOSED)
        ms->base.broken = true;
    return hfi_fail(err, st, "%.160s (%u)", text, code);
}

hf_status my_late(struct my_session *ms, struct hf_error *err)
{
    ms->base.broken = true;
    ms->base.why = SQL_WHY_CUT;
    return hfi_fail(err, HF_UNCERTAIN, "no answer: the time is over");
}

/* ---- statements -------------------------------------------------------- */

static char *paste_hex(char *at, const char *text)
{
    at = sql_hex((char *)memcpy(at, "X'", 2) + 2, text);
    *at++ = '\'';
    return at;
}

/* The names of many grants, or each one's token and fence; backend/sql/renew.c
 * sees to it that there is room. */
static char *paste_many(char *at, const struct sql_call *call, bool names)
{
    char stamp[HFI_TOKEN_LEN + 24];
    size_t i;

    for (i = 0; i < call->count; i++) {
        const struct hfi_renewal *item = call->items[i];

        snprintf(stamp, sizeof(stamp), "%s:%llu", item->claim->token,
                 (unsigned long long)item->receipt->fence);
        if (i)
            *at++ = ',';
        at = paste_hex(at, names ? item->claim->key : stamp);
    }
    return at;
}

static char *paste_text(char *at, char *end, const char *text, bool ascii)
{
    if ((size_t)(end - at) < (text ? strlen(text) * 2 : 0) + 16)
        return NULL;
    if (!text)
        return (char *)memcpy(at, "NULL", 4) + 4;
    if (ascii)
        at = (char *)memcpy(at, "_ascii ", 7) + 7;
    return paste_hex(at, text);
}

static char *paste_number(char *at, char *end, int64_t number)
{
    int len = snprintf(at, (size_t)(end - at), "%lld", (long long)number);

    return len < end - at ? at + len : NULL;
}

static char *paste_one(char *at, char *end, char which,
                       const struct sql_call *call)
{
    switch (which) {
    case '1':
        return paste_text(at, end, call->key, false);
    case '2':
        return paste_text(at, end, call->token, true);
    case '3':
        return paste_number(at, end, call->ttl_ms);
    case '4':
        return paste_text(at, end, call->owner, false);
    case '5':
        return paste_text(at, end, call->note, false);
    case '6':
        return paste_number(at, end, call->queue);
    case 'b':
        return paste_number(at, end, call->place_ms);
    case '8':
    case '9':
        return paste_many(at, call, which == '8');
    default:
        return paste_number(at, end, call->number);
    }
}

const char *my_paste(struct my_session *ms, const char *text,
                     const struct sql_call *call)
{
    char *ret = call->room ? call->room : ms->text, *at = ret;
    char *end =
        ret - 1 +
        (call->room ? SQL_MANY_TEXT + SQL_MANY_FRAME : sizeof(ms->text));

    for (; at && at < end && *text; text++) {
        if (sql_script_param(text))
            at = paste_one(at, end, *++text, call);
        else
            *at++ = *text;
    }
    if (!at || at >= end)
        return NULL;
    *at = '\0';
    return ret;
}

static void my_row(MYSQL_RES *res, MYSQL_ROW row, struct sql_answer *answer)
{
    unsigned i, n = mysql_num_fields(res);
    unsigned long *lengths = mysql_fetch_lengths(res);
    struct sql_cell cells[SQL_CELLS];

    if (n > SQL_CELLS)
        n = SQL_CELLS;
    for (i = 0; i < n; i++) {
        cells[i].data = row[i];
        cells[i].len = lengths[i];
        cells[i].num = row[i] ? strtoll(row[i], NULL, 10) : 0;
    }
    if (answer->row)
        answer->row(answer, cells, (int)n);
}

/* The rows one by one, so that they take no room. */
static hf_status my_rows(struct my_session *ms, MYSQL_RES *res,
                         struct sql_answer *answer, int64_t deadline,
                         struct hf_error *err)
{
    MYSQL_ROW row = NULL;
    int status;

    do {
        status = mysql_fetch_row_start(&row, res);
        while (status) {
            status = my_wait(ms->my, status, deadline);
            if (!status)
                return my_late(ms, err);
            status = mysql_fetch_row_cont(&row, res, status);
        }
        if (row && ++answer->rows > MY_ROWS_MAX) {
            ms->base.broken = true;
            return hfi_fail(err, HF_PROTOCOL,
                            "the server sends more than %d rows", MY_ROWS_MAX);
        }
        if (row)
            my_row(res, row, answer);
    } while (row);
    return mysql_errno(ms->my) ? my_error(ms, err) : HF_OK;
}

hf_status my_store(struct my_session *ms, struct sql_answer *answer,
                   int64_t deadline, struct hf_error *err)
{
    struct sql_answer none = {0};
    MYSQL_RES *res;
    hf_status st;

    if (!answer)
        answer = &none;
    if (!mysql_field_count(ms->my)) {
        answer->affected = (int64_t)mysql_affected_rows(ms->my);
        answer->id = (int64_t)mysql_insert_id(ms->my);
        return HF_OK;
    }
    res = mysql_use_result(ms->my);
    if (!res)
        return my_error(ms, err);
    st = my_rows(ms, res, answer, deadline, err);
    if (ms->base.broken) /* What is left of it is not waited for. */
        shutdown(mysql_get_socket(ms->my), SHUT_RDWR);
    mysql_free_result(res);
    return st;
}

hf_status my_exec(struct my_session *ms, const char *text,
                  struct sql_answer *answer, int64_t deadline,
                  struct hf_error *err)
{
    int code = 0, status;

    ms->base.why = SQL_WHY_OTHER;
    ms->sent = false;
    if (!hfi_left_ms(deadline))
        return hfi_fail(err, HF_UNAVAILABLE, "the time is over");
    ms->sent = true;
    status = mysql_real_query_start(&code, ms->my, text, strlen(text));
    while (status) {
        ms->wait = status;
        status = my_wait(ms->my, status, deadline);
        if (!status)
            return my_late(ms, err);
        status = mysql_real_query_cont(&code, ms->my, status);
    }
    ms->wait = 0;
    if (code)
        return my_error(ms, err);
    return my_store(ms, answer, deadline, err);
}

/* Whether the session was still there is told by `affected`. */
static hf_status my_kill(struct my_session *ms, const char *text,
                         struct sql_answer *answer, int64_t deadline,
                         struct hf_error *err)
{
    hf_status st = my_exec(ms, text, answer, deadline, err);
    unsigned code = mysql_errno(ms->my);

    answer->affected = !st;
    if (!st || code != 1094) /* no such thread */
        return st;
    if (err)
        err->status = HF_OK;
    return HF_OK;
}

/* Where a row is locked nothing was changed, and nothing is known: none of them
 * was found.  backend/sql/renew.c (2) */
static hf_status my_renew_many(struct my_session *ms, const char *text,
                               struct sql_answer *answer, int64_t deadline,
                               struct hf_error *err)
{
    hf_status st = my_exec(ms, text, answer, deadline, err);

    if (!st || ms->base.broken || mysql_errno(ms->my) != 1205)
        return st;
    if (err)
        err->status = HF_OK;
    return HF_OK;
}

/* The text of a statement on this server. */
static const char *my_text(const struct sql_conn *conn, enum sql_stmt stmt)
{
    if (stmt == SQL_RENEW_MANY && ((const struct my_conn *)conn)->skips &&
        conn->texts[SQL_RENEW_SKIP])
        stmt = SQL_RENEW_SKIP;
    return conn->texts[stmt];
}

/* There may be no InnoDB, or another engine is enforced. */
static hf_status my_make(struct my_session *ms, const char *text,
                         int64_t deadline, struct hf_error *err)
{
    hf_status st = my_exec(ms, text, NULL, deadline, err);
    unsigned code = mysql_errno(ms->my);

    return st && (code == 1286 || code == 1290)
               ? hfi_restate(err, HF_UNSUPPORTED)
               : st;
}

/* SHOW CREATE TABLE of one that is temporary is the answer of SQL_VERIFY. */
static void my_shown(struct sql_answer *answer, const struct sql_cell *cells,
                     int n)
{
    static const char word[] = "CREATE TEMPORARY ";
    static const char why[] = "it is a temporary one, which excludes nobody";
    struct sql_answer *verify = answer->arg;
    struct sql_cell said[SQL_VERIFY_COLUMNS] = {
        [SQL_VERIFY_TABLE] = cells[0],
        [SQL_VERIFY_UNFIT] = {.data = why, .len = sizeof(why) - 1}};

    if (n < 2 || !cells[1].data ||
        strncmp(cells[1].data, word, sizeof(word) - 1) != 0)
        return;
    verify->rows++;
    if (verify->row)
        verify->row(verify, said, SQL_VERIFY_COLUMNS);
}

/* information_schema is not read at one moment: of a table that is being made
 * it shows some parts and not others.  To be shown a table is to wait until it
 * is whole; one that was not there before is verified when it was looked at. */
static hf_status my_verify(struct my_session *ms, enum sql_stmt stmt,
                           const char *text, struct sql_answer *answer,
                           int64_t deadline, struct hf_error *err)
{
    enum sql_stmt show = stmt == SQL_VERIFY         ? SQL_SHOW
                         : stmt == SQL_VERIFY_FENCE ? SQL_SHOW_FENCE
                         : stmt == SQL_VERIFY_QUEUE ? SQL_SHOW_QUEUE
                                                    : SQL_SHOW_HOLDERS;
    struct sql_answer shown = {.row = my_shown, .arg = answer};
    hf_status st =
        my_exec(ms, ms->base.conn->texts[show], &shown, deadline, err);

    if (st && (ms->base.broken || ms->base.why == SQL_WHY_RETRY))
        return st;
    if (st && err)
        err->status = HF_OK;
    if (st && ms->base.why == SQL_WHY_TABLE)
        return HF_OK;
    return my_exec(ms, text, answer, deadline, err);
}

static hf_status my_run(struct sql_session *session, enum sql_stmt stmt,
                        const struct sql_call *call, struct sql_answer *answer,
                        int64_t deadline, struct hf_error *err)
{
    struct my_session *ms = (struct my_session *)session;
    const char *text = my_text(session->conn, stmt);
    hf_status st;

    if (!call)
        return my_make(ms, text, deadline, err);
    if (sql_is_script(stmt))
        return my_run_script(ms, stmt, call, answer, deadline, err);
    text = my_paste(ms, text, call);
    if (!text)
        return hfi_fail(err, HF_INVALID, "the statement is too long");
    if (stmt == SQL_VERIFY || stmt == SQL_VERIFY_FENCE ||
        stmt == SQL_VERIFY_HOLDERS || stmt == SQL_VERIFY_QUEUE)
        return my_verify(ms, stmt, text, answer, deadline, err);
    if (stmt == SQL_KILL)
        return my_kill(ms, text, answer, deadline, err);
    st = stmt == SQL_RENEW_MANY ? my_renew_many(ms, text, answer, deadline, err)
                                : my_exec(ms, text, answer, deadline, err);
    /* What is not wholly sent is still read from `text`. */
    if (st && ms->wait && !(ms->wait & MYSQL_WAIT_WRITE) &&
        session->conn->strategy != SQL_ROW &&
        (stmt == SQL_RENEW || stmt == SQL_RENEW_MANY)) {
        session->late = true; /* backend/sql/pool.c (2) */
        session->broken = false;
    }
    return st;
}

/* ---- sessions ---------------------------------------------------------- */

static void my_session_close(struct sql_session *session)
{
    struct my_session *ms = (struct my_session *)session;
    int fd = ms->my ? mysql_get_socket(ms->my) : -1;

    if (fd >= 0 && session->broken)
        shutdown(fd, SHUT_RDWR); /* No good-bye that could block. */
    if (ms->my)
        mysql_close(ms->my);
    explicit_bzero(ms->password, sizeof(ms->password));
}

static hf_status my_session_open(struct sql_session *session, bool first,
                                 int64_t deadline, struct hf_error *err)
{
    struct my_session *ms = (struct my_session *)session;
    hf_status st = my_connect(ms, first, deadline, err);

    return st || !first ? st : my_settle(ms, deadline, err);
}

/* backend/sql/pool.c (2): only what brings no rows is left to finish. */
static hf_status my_session_settle(struct sql_session *session,
                                   int64_t deadline)
{
    struct my_session *ms = (struct my_session *)session;
    int code = 0, ready;

    while (ms->wait) {
        ready = my_wait(ms->my, ms->wait, deadline);
        if (!ready)
            return HF_BUSY;
        ms->wait = mysql_real_query_cont(&code, ms->my, ready);
    }
    /* Of an error that the server sent the session stands. */
    return (code && my_error(ms, NULL) && session->broken) ||
                   mysql_field_count(ms->my)
               ? HF_UNAVAILABLE
               : HF_OK;
}

/* Between statements the server says nothing but good-bye. */
static bool my_session_alive(struct sql_session *session)
{
    return my_is_quiet(((struct my_session *)session)->my);
}

static const struct sql_driver my_driver = {
    .name = "mysql",
    .quote = "`",
    .texts = {my_lease_texts, my_version_texts, my_row_texts},
    .queue = my_queue_texts,
    .bytes = {"x'", "'"},
    .text = {"_ascii x'", "'"},
    .home = "DATABASE()",
    .by_look = true,
    .verify_once = true,
    .skips = true,
    .session_size = sizeof(struct my_session),
    .connect = my_session_open,
    .disconnect = my_session_close,
    .alive = my_session_alive,
    .settle = my_session_settle,
    .run = my_run,
    .row_send = my_row_send,
    .row_done = my_row_done,
    .row_beat = my_row_beat,
    .row_end = my_row_end,
    .fd = my_fd,
    .id = my_id,
};

/* ---- operations -------------------------------------------------------- */

static hf_status my_open(struct hfi_conn *base, const struct hfi_url *url,
                         int64_t deadline, struct hf_error *err)
{
    struct my_conn *mc = (struct my_conn *)base;
    const char *host = url->nhosts ? url->hosts[0].name
                                   : hfi_url_param(url, "socket", "localhost");
    hf_status st;

    snprintf(base->endpoint, sizeof(base->endpoint), "mysql:%.120s:%d%.63s",
             host, url->nhosts ? url->hosts[0].port : 0, url->path);
    mc->sql.timeout_ms = hfi_left_ms(deadline);
    st = my_params(mc, url, err);
    if (!st)
        st = sql_open(&mc->sql, url, &my_driver, deadline, err);
    if (!st && mc->params[MY_HOST] &&
        (mc->params[MY_PASSWORD] || mc->params[MY_PASSWORD_FILE]))
        hfi_warn_password(base->warning, sizeof(base->warning),
                          mc->params[MY_HOST], mc->tls && mc->verify);
    return st;
}

static void my_close(struct hfi_conn *base)
{
    struct my_conn *mc = (struct my_conn *)base;

    sql_close(&mc->sql);
    my_params_free(mc);
}

static const char *const my_schemes[] = {"mysql", "mariadb", NULL};
static const char *const my_options_own[] = {
    SQL_OPTIONS, "socket",     "ssl",           "ssl_ca", "ssl_cert",
    "ssl_key",   "ssl_verify", "password_file", NULL};

const struct hfi_backend hfi_backend_mysql = {
    .schemes = my_schemes,
    .options = my_options_own,
    .conn_size = sizeof(struct my_conn),
    .grant_size = sizeof(struct sql_grant),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_DETACH |
              HF_TRAIT_BREAK | HF_TRAIT_PROCESSES | HF_TRAIT_MACHINES |
              HF_TRAIT_NOTED | HF_TRAIT_QUEUED | SQL_SHARING,
    .varies = HF_TRAIT_DETACH | HF_TRAIT_QUEUED | SQL_SHARING,
    .no_shared = SQL_NO_WEAKER,
    .no_permits = SQL_NO_PERMITS,
    .no_min_hold = SQL_NO_MIN_HOLD,
    .page = "sql",
    .tested = "MariaDB 10.5, 10.11, 11.8; MySQL 9.7",
    .open = my_open,
    .close = my_close,
    .after_fork_child = sql_after_fork_child,
    .try_acquire = my_try_acquire,
    .renew = sql_renew,
    .release = sql_release,
    .keep = sql_keep,
    .downgrade = sql_downgrade,
    .poll_fd = my_poll_fd,
    .dispatch = my_dispatch,
    .attach = sql_attach,
    .take_over = sql_take_over,
    .inspect = sql_inspect,
    .list = sql_list,
    .list_since = sql_list_since,
    .fence_slack = SQL_FENCE_SLACK,
    .holders = sql_holders,
    .waiters = sql_waiters,
    .break_grant = sql_break,
    .free_grant = sql_free,
    .promote = sql_promote,
    .collect = sql_collect,
};
