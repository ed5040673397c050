/* SPDX-License-Identifier: MIT
 *
 * sqlite.c - a database file: locks of one machine, whose fences survive a
 * reboot.
 *
 * ON THE WIRE  The statements of *.sql, each a transaction of its own,
 *   on a database in WAL mode.  See backend/sql/sql.c for what they promise.
 *
 * INVARIANTS
 *  (1) There is no server, so the clock is the machine's: the time since boot,
 *      which no change of the wall clock touches and which runs while the
 *      machine sleeps, together with the id of the boot.
 *  (2) A commit reaches the other processes at once and the disk later
 *      (synchronous=NORMAL).  A power failure may take back the last commits,
 *      and does not matter: with it every holder died, a lease of another boot
 *      is over whatever it says, and the fence goes on from the wall clock.
 *  (3) The database is touched through SQLite only: closing a descriptor of
 *      ours would drop its POSIX locks.
 *  (4) The file may be removed, or replaced by a backup, at any time: the
 *      answer of a statement is believed only while the name leads to the file
 *      that it was run in (file.c), and a client is never granted a
 *      fence below one that it had before.  Who joins a grant of its owner id
 *      has the fence of that, whatever it is: reenter.c (3).
 *
 *  (5) The log is written back, which may have to wait for the disk, after those
 *      were told who have the lock by the commit.
 *
 * LIMITS  One machine: on a network file system neither the locks nor the
 *   clock are what they must be, and open() refuses it; and a container that
 *   has another clock or boot id, file.c (6).  One writer at a time for all
 *   keys; and there are no row locks, so strategy=row is refused.
 */
#include "sqlite.h"

#include <poll.h>

#include "base/alloc.h"

#include "base/banned.h"

/* The log is written back when it has so many pages, and begins anew.  Where
 * somebody reads it, that is tried again so many later. */
#define LITE_LOG_PAGES       1000
#define LITE_LOG_PAGES_AGAIN 100

/* ---- errors ------------------------------------------------------------ */

static hf_status lite_error(struct lite_session *ls, int code,
                            struct hf_error *err)
{
    const char *text = ls->db ? sqlite3_errmsg(ls->db) : sqlite3_errstr(code);
    hf_status st = HF_UNAVAILABLE;

    ls->base.why = SQL_WHY_OTHER;
    switch (code & 255) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_SCHEMA:
        ls->base.why = SQL_WHY_RETRY;
        break;
    case SQLITE_NOMEM:
        return hfi_nomem(err);
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
        st = HF_DENIED;
        break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_MISMATCH:
    case SQLITE_CONSTRAINT:
        st = HF_PROTOCOL;
        break;
    case SQLITE_ERROR:
        st = HF_PROTOCOL;
        if (strstr(text, "no such table"))
            ls->base.why = SQL_WHY_TABLE;
        else if (strstr(text, "column"))
            ls->base.why = SQL_WHY_COLUMN;
        break;
    case SQLITE_IOERR: /* The commit may or may not be on the disk. */
        st = HF_UNCERTAIN;
        ls->base.broken = true;
        break;
    default:
        break;
    }
    return hfi_fail(err, st, "%.160s", text);
}

/* Another process writes.  SQLite has nothing to wait on, so look again until
 * the deadline: soon at first, since most who write are done in some ten
 * microseconds, then every millisecond or two. */
static int lite_busy(void *arg, int n)
{
    struct lite_session *ls = arg;
    struct timespec pause = {.tv_nsec = 20000L << (n < 6 ? n : 6)};

    if (!hfi_left_ms(ls->deadline))
        return 0;
    ppoll(NULL, 0, &pause, NULL);
    return 1;
}

/* ---- statements -------------------------------------------------------- */

static void lite_bind_text(sqlite3_stmt *stmt, int at, const char *text,
                           bool blob)
{
    int len = text ? (int)strlen(text) : 0;

    if (!text)
        sqlite3_bind_null(stmt, at);
    else if (blob)
        sqlite3_bind_blob(stmt, at, text, len, SQLITE_STATIC);
    else
        sqlite3_bind_text(stmt, at, text, len, SQLITE_STATIC);
}

/* The least fence that may be granted next.  A file may be replaced by an older
 * one, and the wall clock may go back.  sqlite.c (4) */
static int64_t lite_fence(struct lite_conn *lc)
{
    int64_t now = hfi_wall_us(), next = lc->fence + 1;

    return now > next ? now : next;
}

void lite_fenced(struct lite_conn *lc, int64_t fence)
{
    int64_t last = lc->fence;

    while (fence > last &&
           !atomic_compare_exchange_weak(&lc->fence, &last, fence))
        ;
}

/* A number that a statement does not have is out of range, and ignored. */
static void lite_bind(struct lite_session *ls, sqlite3_stmt *stmt,
                      const struct sql_call *call)
{
    struct lite_conn *lc = (struct lite_conn *)ls->base.conn;

    lite_bind_text(stmt, 1, call->key, true);
    lite_bind_text(stmt, 2, call->token, false);
    sqlite3_bind_int64(stmt, 3, call->ttl_ms);
    lite_bind_text(stmt, 4, call->owner, true);
    lite_bind_text(stmt, 5, call->note, true);
    sqlite3_bind_int(stmt, 6, call->queue);
    sqlite3_bind_int64(stmt, 7, call->number);
    sqlite3_bind_int64(stmt, 8, hfi_now());
    lite_bind_text(stmt, 9, lc->boot, false);
    sqlite3_bind_int64(stmt, 10, lite_fence(lc));
    if (sqlite3_bind_parameter_count(stmt) <= 10)
        return;
    sqlite3_bind_int64(stmt, 11, call->permits);
    lite_bind_text(stmt, 12, call->channel, false);
    sqlite3_bind_int64(stmt, 13, call->nth);
    sqlite3_bind_int64(stmt, 14, call->place_ms);
    sqlite3_bind_int64(stmt, 15, lc->fence);
}

static void lite_row(sqlite3_stmt *stmt, struct sql_answer *answer)
{
    struct sql_cell cells[SQL_CELLS];
    int i, n = sqlite3_column_count(stmt);

    if (n > SQL_CELLS)
        n = SQL_CELLS;
    answer->rows++;
    for (i = 0; i < n; i++) {
        bool null = sqlite3_column_type(stmt, i) == SQLITE_NULL;

        cells[i].num = sqlite3_column_type(stmt, i) == SQLITE_INTEGER
                           ? sqlite3_column_int64(stmt, i)
                           : 0;
        cells[i].data = sqlite3_column_blob(stmt, i);
        cells[i].len = (size_t)sqlite3_column_bytes(stmt, i);
        if (!null && !cells[i].data)
            cells[i].data = "";
    }
    if (!answer->id &&
        (n == 1 || n == SQL_TRY_COLUMNS || n == SQL_TRY_QUEUE_COLUMNS))
        answer->id = cells[0].num; /* the fence, or the mark */
    if (answer->row)
        answer->row(answer, cells, n);
}

hf_status lite_exec(struct lite_session *ls, const char *text,
                    struct hf_error *err)
{
    int code = sqlite3_exec(ls->db, text, NULL, NULL, NULL);

    return code ? lite_error(ls, code, err) : HF_OK;
}

hf_status lite_step(struct lite_session *ls, enum sql_stmt which,
                    const struct sql_call *call, struct sql_answer *answer,
                    struct hf_error *err)
{
    const char *text = ls->base.conn->texts[which];
    sqlite3_stmt *stmt;
    hf_status st = HF_OK;
    int code = SQLITE_OK;

    if (!ls->stmts[which])
        code = sqlite3_prepare_v3(ls->db, text, -1, SQLITE_PREPARE_PERSISTENT,
                                  &ls->stmts[which], NULL);
    if (code)
        return lite_error(ls, code, err);
    stmt = ls->stmts[which];
    lite_bind(ls, stmt, call);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW)
        lite_row(stmt, answer);
    if (code != SQLITE_DONE)
        st = lite_error(ls, code, err);
    answer->affected =
        !st && !sqlite3_stmt_readonly(stmt) ? sqlite3_changes(ls->db) : 0;
    sqlite3_reset(stmt);
    return st;
}

/* One statement of a script: the rows count that say `hf`; others shall hear
 * of those that say `hf_ring`. */
static hf_status lite_script_step(struct lite_session *ls, sqlite3_stmt *stmt,
                                  const struct sql_call *call,
                                  struct sql_answer *answer,
                                  struct lite_rings *rings,
                                  struct hf_error *err)
{
    const char *name = NULL;
    int code;

    lite_bind(ls, stmt, call);
    while ((code = sqlite3_step(stmt)) == SQLITE_ROW) {
        /* Not before the first step: where another has made a table, that
         * prepares the statement again and frees the name. */
        if (!name)
            name = sqlite3_column_name(stmt, 0);
        if (name && !strcmp(name, "hf"))
            lite_row(stmt, answer);
        else
            lite_rings_add(rings, (const char *)sqlite3_column_text(stmt, 0),
                           call->key);
    }
    sqlite3_reset(stmt);
    return code == SQLITE_DONE ? HF_OK : lite_error(ls, code, err);
}

/* The statements of a script, prepared once in a session. */
static hf_status lite_script_prepare(struct lite_session *ls,
                                     enum sql_stmt which, struct hf_error *err)
{
    struct lite_script *script = &ls->scripts[which];
    const char *text = ls->base.conn->texts[which];
    sqlite3_stmt *stmt = NULL;
    int code, n = 0;

    while (*text && n < LITE_SCRIPT) {
        code = sqlite3_prepare_v3(ls->db, text, -1, SQLITE_PREPARE_PERSISTENT,
                                  &stmt, &text);
        if (code) {
            hf_status st = lite_error(ls, code, err);

            while (n)
                sqlite3_finalize(script->stmts[--n]);
            return st;
        }
        if (!stmt)
            break;
        script->stmts[n++] = stmt;
    }
    script->n = n;
    return HF_OK;
}

/* The statements of a script.  One alone is a transaction. */
static hf_status lite_script_steps(struct lite_session *ls, enum sql_stmt which,
                                   const struct sql_call *call,
                                   struct sql_answer *answer,
                                   struct lite_rings *rings,
                                   struct hf_error *err)
{
    const struct lite_script *script = &ls->scripts[which];
    hf_status st = HF_OK;
    int i;

    for (i = 0; !st && i < script->n; i++)
        st = lite_script_step(ls, script->stmts[i], call, answer, rings, err);
    return st;
}

/* Begin or end a transaction: `text`, prepared once. */
static hf_status lite_transact(struct lite_session *ls, sqlite3_stmt **stmt,
                               const char *text, struct hf_error *err)
{
    int code = SQLITE_OK;

    if (!*stmt)
        code = sqlite3_prepare_v3(ls->db, text, -1, SQLITE_PREPARE_PERSISTENT,
                                  stmt, NULL);
    if (!code) {
        code = sqlite3_step(*stmt);
        sqlite3_reset(*stmt);
    }
    return code == SQLITE_DONE ? HF_OK : lite_error(ls, code, err);
}

hf_status lite_end(struct lite_session *ls, hf_status st, struct hf_error *err)
{
    enum sql_why why;

    if (!st)
        st = lite_transact(ls, &ls->commit, "COMMIT", err);
    why = ls->base.why;
    if (st && lite_exec(ls, "ROLLBACK", NULL))
        ls->base.broken = true;
    ls->base.why = why;
    return st;
}

/* backend/sql/script.c */
static hf_status lite_script(struct lite_session *ls, enum sql_stmt which,
                             const struct sql_call *call,
                             struct sql_answer *answer,
                             struct lite_rings *rings, struct hf_error *err)
{
    hf_status st =
        ls->scripts[which].n ? HF_OK : lite_script_prepare(ls, which, err);

    if (!st && ls->scripts[which].n > 1)
        st = lite_transact(ls, &ls->begin, "BEGIN IMMEDIATE", err);
    if (st)
        return st;
    st = lite_script_steps(ls, which, call, answer, rings, err);
    return ls->scripts[which].n > 1 ? lite_end(ls, st, err) : st;
}

/* So many pages are in the log; sqlite.c (5). */
static int lite_logged(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct lite_session *ls = arg;

    (void)db;
    (void)name;
    ls->pages = pages;
    return SQLITE_OK;
}

static void lite_checkpoint(struct lite_session *ls)
{
    if (ls->pages < LITE_LOG_PAGES)
        ls->write_back_at = 0;
    if (ls->pages < LITE_LOG_PAGES || ls->pages < ls->write_back_at)
        return;
    /* Most of it beside those who write; with the rest they would wait for the
     * disk and for those who read, so that is left if somebody is at it. */
    sqlite3_wal_checkpoint_v2(ls->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL,
                              NULL);
    ls->deadline = 0;
    sqlite3_wal_checkpoint_v2(ls->db, NULL, SQLITE_CHECKPOINT_RESTART, NULL,
                              NULL);
    ls->write_back_at = ls->pages + LITE_LOG_PAGES_AGAIN;
}

/* The statement may have been run in a file that is gone: then it is run again
 * in another session.  file.c (2) */
static hf_status lite_moved(struct lite_session *ls, struct hf_error *err)
{
    ls->base.broken = true;
    ls->base.why = SQL_WHY_RETRY;
    return hfi_fail(err, HF_UNAVAILABLE,
                    "the database file was removed or replaced");
}

static hf_status lite_run(struct sql_session *session, enum sql_stmt which,
                          const struct sql_call *call,
                          struct sql_answer *answer, int64_t deadline,
                          struct hf_error *err)
{
    struct lite_session *ls = (struct lite_session *)session;
    struct lite_conn *lc = (struct lite_conn *)session->conn;
    struct lite_rings rings;
    int64_t *fences = NULL;
    hf_status st;

    rings.old = rings.any = false;
    session->why = SQL_WHY_OTHER;
    ls->deadline = deadline;
    if (call && sql_is_script(which))
        st = lite_script(ls, which, call, answer, &rings, err);
    else if (!call)
        st = lite_exec(ls, session->conn->texts[which], err);
    else if (which == SQL_RENEW_MANY)
        st = lite_renew_many(ls, call, answer, err);
    else if (which == SQL_TAKE_ALL)
        st = lite_take_all(ls, call, &fences, err);
    else
        st = lite_step(ls, which, call, answer, err);
    if (lite_has_moved(ls)) {
        hfi_free(fences);
        return lite_moved(ls, err);
    }
    if (fences)
        lite_taken(lc, call, fences, answer);
    if (!st && (which == SQL_ACQUIRE || which == SQL_ENTER ||
                which == SQL_JOIN || which == SQL_PEEK))
        lite_fenced(lc, answer->id);
    if (!st && rings.any)
        lite_ring(lc, &rings, call->key);
    if (!st && call &&
        (rings.old ||
         ((which == SQL_RELEASE || which == SQL_FREE) && answer->id) ||
         (which == SQL_WANT && answer->affected)))
        lite_notify(lc, call->key);
    lite_checkpoint(ls);
    return st;
}

/* ---- sessions ---------------------------------------------------------- */

static void lite_disconnect(struct sql_session *session)
{
    struct lite_session *ls = (struct lite_session *)session;
    int i, j;

    for (i = 0; i < SQL_STMTS; i++) {
        sqlite3_finalize(ls->stmts[i]);
        for (j = 0; j < ls->scripts[i].n; j++)
            sqlite3_finalize(ls->scripts[i].stmts[j]);
    }
    sqlite3_finalize(ls->begin);
    sqlite3_finalize(ls->commit);
    sqlite3_close(ls->db);
    lite_unuse(ls);
}

/* WAL, and the files of that opened; two who both make it WAL may meet, and
 * then no handler is asked.  What a statement in a transaction keeps to undo
 * itself is a few bytes; where it might go to a file, SQLite takes 64 KiB for it
 * and gives them back each time. */
static hf_status lite_settle(struct lite_session *ls, struct hf_error *err)
{
    hf_status st;

    do
        st = lite_exec(ls,
                       "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL;"
                       "PRAGMA temp_store=MEMORY;"
                       "PRAGMA journal_size_limit=16777216;"
                       "SELECT 1 FROM sqlite_master LIMIT 1;",
                       err);
    while (st && ls->base.why == SQL_WHY_RETRY && lite_busy(ls, 0));
    return st;
}

static hf_status lite_connect(struct sql_session *session, bool first,
                              int64_t deadline, struct hf_error *err)
{
    struct lite_session *ls = (struct lite_session *)session;
    struct lite_conn *lc = (struct lite_conn *)session->conn;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX |
                (session->conn->create ? SQLITE_OPEN_CREATE : 0);
    hf_status st = first && session->conn->strategy == SQL_LEASE
                       ? lite_boot_judge(err)
                       : HF_OK;
    int code = SQLITE_OK;

    if (!st)
        st = lite_may_open(lc, err);
    if (!st)
        code = sqlite3_open_v2(lc->path, &ls->db, flags, NULL);
    if (st || code)
        return st ? st : lite_error(ls, code, err);
    if (first)
        snprintf(lc->real, sizeof(lc->real), "%s",
                 sqlite3_db_filename(ls->db, "main"));
    ls->deadline = deadline;
    sqlite3_busy_handler(ls->db, lite_busy, ls);
    sqlite3_wal_hook(ls->db, lite_logged, ls);
    st = lite_settle(ls, err);
    if (!st)
        st = lite_remember(ls, err);
    return st ? st : lite_use(ls, err);
}

static bool lite_alive(struct sql_session *session)
{
    return !lite_has_moved((struct lite_session *)session);
}

static const struct sql_driver lite_driver = {
    .name = "sqlite",
    .quote = "\"",
    .texts = {lite_lease_texts, lite_version_texts, NULL},
    .queue = lite_queue_texts,
    .refusal = "SQLite has no row locks, and an open transaction would lock "
               "out everybody from the whole file; use lease or version",
    .home = "'main'",
    .sole = "main",
    .verify_each = true,
    .by_look = true,
    .sessions = 1,
    .session_size = sizeof(struct lite_session),
    .connect = lite_connect,
    .disconnect = lite_disconnect,
    .alive = lite_alive,
    .run = lite_run,
};

/* ---- operations -------------------------------------------------------- */

static hf_status lite_open(struct hfi_conn *base, const struct hfi_url *url,
                           int64_t deadline, struct hf_error *err)
{
    struct lite_conn *lc = (struct lite_conn *)base;
    hf_status st;

    lite_notifier_open(lc);
    if (url->nhosts || url->user || !*url->path)
        return hfi_fail(err, HF_INVALID,
                        "url: sqlite: takes a file, as in sqlite:/var/x.db");
    snprintf(base->endpoint, sizeof(base->endpoint), "sqlite:%.240s",
             url->path);
    st = lite_boot(lc, err);
    if (!st)
        st = lite_find(lc, url->path, err);
    return st ? st : sql_open(&lc->sql, url, &lite_driver, deadline, err);
}

static void lite_close(struct hfi_conn *base)
{
    struct lite_conn *lc = (struct lite_conn *)base;

    sql_close(&lc->sql);
    lite_notifier_close(lc);
}

static const char *const lite_schemes[] = {"sqlite", NULL};
static const char *const lite_options[] = {SQL_OPTIONS, NULL};

const struct hfi_backend hfi_backend_sqlite = {
    .schemes = lite_schemes,
    .options = lite_options,
    .conn_size = sizeof(struct lite_conn),
    .grant_size = sizeof(struct sql_grant),
    .observation_size = sizeof(struct lite_observation),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_NOTIFY |
              HF_TRAIT_DETACH | HF_TRAIT_BREAK | HF_TRAIT_PROCESSES |
              HF_TRAIT_NOTED | HF_TRAIT_QUEUED | SQL_SHARING,
    .varies = HF_TRAIT_QUEUED,
    .page = "sql",
    .tested = "SQLite 3.40, 3.46",
    .fallback_poll_ms = LITE_NET_MS,
    .observe_gap_ms = LITE_OBSERVE_GAP_MS,
    .open = lite_open,
    .close = lite_close,
    .after_fork_child = lite_after_fork_child,
    .try_acquire = sql_try_acquire,
    .try_acquire_all = sql_try_acquire_all,
    .renew = sql_renew,
    .release = sql_release,
    .keep = sql_keep,
    .downgrade = sql_downgrade,
    .watch = lite_watch,
    .unwatch = lite_unwatch,
    .poll_fd = lite_poll_fd,
    .dispatch = lite_dispatch,
    .attach = sql_attach,
    .take_over = sql_take_over,
    .inspect = sql_inspect,
    .list = sql_list,
    .list_since = sql_list_since,
    .fence_slack = SQL_FENCE_SLACK,
    .observe = lite_observe,
    .unobserve = lite_unobserve,
    .reobserve = lite_reobserve,
    .holders = sql_holders,
    .waiters = sql_waiters,
    .break_grant = sql_break,
    .free_grant = sql_free,
    .promote = sql_promote,
    .collect = sql_collect,
};
