/* SPDX-License-Identifier: MIT
 *
 * raw_sqlite.c - bare SQLite: the statements of the backend, prepared.
 */
#include "sql.h"

#include <stdlib.h>
#include <string.h>

#include "backend/sql/sqlite/sqlite.h"

struct raw {
    sqlite3 *db;
    sqlite3_stmt *take, *give;
};

static sqlite3_stmt *raw_prepare(sqlite3 *db, const char *text)
{
    char *full = raw_text(text, "raw_lock", "raw_lock");
    sqlite3_stmt *stmt = NULL;

    if (sqlite3_prepare_v3(db, full, -1, SQLITE_PREPARE_PERSISTENT, &stmt,
                           NULL))
        raw_die("sqlite", sqlite3_errmsg(db));
    free(full);
    return stmt;
}

static struct raw *raw_lite_open(const char *where)
{
    struct raw *raw = calloc(1, sizeof(*raw));
    char *make = raw_text(lite_lease_texts[SQL_CREATE], "raw_lock", "raw_lock");

    if (sqlite3_open(where, &raw->db) || sqlite3_busy_timeout(raw->db, 5000) ||
        sqlite3_exec(raw->db,
                     "PRAGMA journal_mode=WAL;PRAGMA synchronous=NORMAL", NULL,
                     NULL, NULL) ||
        sqlite3_exec(raw->db, make, NULL, NULL, NULL))
        raw_die("sqlite", sqlite3_errmsg(raw->db));
    free(make);
    raw->take = raw_prepare(raw->db, lite_lease_texts[SQL_ACQUIRE]);
    raw->give = raw_prepare(raw->db, lite_lease_texts[SQL_RELEASE]);
    return raw;
}

static bool raw_run(sqlite3_stmt *stmt, const char *key, const char *token)
{
    int rows = 0;
    int64_t us = (int64_t)raw_now_us();

    sqlite3_bind_blob(stmt, 1, key, (int)strlen(key), SQLITE_STATIC);
    sqlite3_bind_text(stmt, 2, token, -1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 3, 30000);
    sqlite3_bind_blob(stmt, 5, "n", 1, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 8, us / 1000);
    sqlite3_bind_text(stmt, 9, "boot", 4, SQLITE_STATIC);
    sqlite3_bind_int64(stmt, 10, us);
    while (sqlite3_step(stmt) == SQLITE_ROW)
        rows++;
    sqlite3_reset(stmt);
    return rows == 1;
}

static bool raw_lite_take(struct raw *raw, const char *key, const char *token)
{
    return raw_run(raw->take, key, token);
}

static bool raw_lite_give(struct raw *raw, const char *key, const char *token)
{
    return raw_run(raw->give, key, token);
}

static void raw_lite_close(struct raw *raw)
{
    sqlite3_finalize(raw->take);
    sqlite3_finalize(raw->give);
    sqlite3_close(raw->db);
    free(raw);
}

const struct raw_kind raw_sqlite = {"sqlite", raw_lite_open, raw_lite_take,
                                    raw_lite_give, raw_lite_close};
