/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of sqlite:.
 *
 * Beside the parameters of backend/sql/sql.h there are ?8, the time since boot
 * in ms, read before the statement was sent, ?9, the id of this boot, and ?10,
 * the wall clock in microseconds, which goes into fences only.  A lease of
 * another boot is over: its holder died with it.
 */
#include "sqlite.h"

#include "base/banned.h"

#define COLUMNS                                                                \
    "(name BLOB PRIMARY KEY,token TEXT,fence INTEGER NOT NULL,"                \
    "ttl_ms INTEGER NOT NULL,wanted INTEGER NOT NULL DEFAULT 0,"               \
    "owner BLOB,note BLOB,"

#define ACQUIRE(columns, values, sets, free)                                   \
    "INSERT INTO @T AS l (name,token,fence,ttl_ms,owner,note," columns         \
    ") VALUES (?1,?2,?10,?3,?4,?5," values ") ON CONFLICT (name) DO UPDATE "   \
    "SET fence=CASE WHEN l.token IS ?2 THEN l.fence "                          \
    "ELSE max(l.fence+1,?10) END,"                                             \
    "wanted=CASE WHEN l.token IS ?2 THEN l.wanted ELSE 0 END,"                 \
    "ttl_ms=CASE WHEN l.token IS ?2 THEN max(l.ttl_ms,?3) ELSE ?3 END,"        \
    "token=?2,owner=?4,note=?5," sets " WHERE l.token IS NULL OR "             \
    "l.token=?2 OR " free " RETURNING fence"

#define RENEW                                                                  \
    "UPDATE @T SET ttl_ms=CASE WHEN ?6 THEN ?3 ELSE max(ttl_ms,?3) END,"

#define RENEW_ONE " WHERE name=?1 AND token=?2 AND fence=?7"

/* Many are one transaction of single ones: there is no way to the server that
 * could be saved, but a commit. */
#define RENEW_MANY "BEGIN IMMEDIATE"

/* To explain is to compile, which fails without a key. */
#define KEYED                                                                  \
    "EXPLAIN INSERT INTO @T (name,fence,ttl_ms) VALUES (?1,0,0) "              \
    "ON CONFLICT (name) DO NOTHING"

#define LET_GO(sets, which)                                                    \
    "UPDATE @T SET token=NULL,owner=NULL,note=NULL," sets                      \
    " WHERE name=?1 AND " which " RETURNING wanted"

/* What the fence names, whatever its token, is over at once. */
#define FREED "token IS NOT NULL AND fence=?7"

#define TAKE                                                                   \
    "UPDATE @T SET token=?2 WHERE name=?1 AND fence=?7 AND "                   \
    "token IN (?2,CAST(?5 AS TEXT))"

#define BREAK                                                                  \
    "UPDATE @T SET token='!'||token WHERE name=?1 AND fence=?7 AND "           \
    "token NOT LIKE '!%' AND "

#define WANT                                                                   \
    "UPDATE @T SET wanted=1 WHERE name=?1 AND token IS NOT NULL AND wanted=0"

#define LISTED "token IS NOT NULL AND substr(name,1,length(?1))=?1"

#define LEASE_LOOK                                                             \
    "SELECT CASE WHEN boot=?9 THEN token END,fence,expires-?8,?8-acquired,"    \
    "owner,note,0,ttl_ms,wanted,name FROM @T WHERE "

#define VERSION_LOOK                                                           \
    "SELECT token,fence,NULL,NULL,owner,note,version,ttl_ms,wanted,name "      \
    "FROM @T WHERE "

const char *const lite_lease_texts[SQL_STMTS] = {
    [SQL_CREATE] = "CREATE TABLE IF NOT EXISTS @T " COLUMNS
                   "boot TEXT,acquired INTEGER,expires INTEGER) WITHOUT ROWID",
    [SQL_ACQUIRE] =
        ACQUIRE("boot,acquired,expires", "?9,?8,?8+?3",
                "boot=?9,acquired=?8,expires=CASE WHEN l.token IS ?2 AND "
                "l.boot=?9 THEN max(l.expires,?8+?3) ELSE ?8+?3 END",
                "l.boot<>?9 OR l.expires<=?8"),
    [SQL_RENEW] = RENEW "expires=CASE WHEN ?6 OR boot<>?9 THEN ?8+?3 ELSE "
                        "max(expires,?8+?3) END,boot=?9" RENEW_ONE,
    [SQL_RENEW_MANY] = RENEW_MANY,
    [SQL_VERIFY] = KEYED,
    [SQL_RELEASE] = LET_GO("expires=NULL", "token=?2"),
    [SQL_BREAK] = BREAK "boot=?9 AND expires>?8",
    [SQL_FREE] = LET_GO("expires=NULL", FREED " AND boot=?9 AND expires>?8"),
    [SQL_TAKE] = TAKE,
    [SQL_LOOK] = LEASE_LOOK "name=?1",
    [SQL_LIST] = LEASE_LOOK LISTED " AND boot=?9 AND expires>?8",
    [SQL_WANT] = WANT,
};

const char *const lite_version_texts[SQL_STMTS] = {
    [SQL_CREATE] = "CREATE TABLE IF NOT EXISTS @T " COLUMNS
                   "version INTEGER NOT NULL) WITHOUT ROWID",
    [SQL_ACQUIRE] =
        ACQUIRE("version", "1", "version=l.version+1", "l.version=?7"),
    [SQL_RENEW] = RENEW "version=version+1" RENEW_ONE,
    [SQL_RENEW_MANY] = RENEW_MANY,
    [SQL_VERIFY] = KEYED,
    [SQL_RELEASE] = LET_GO("version=version+1", "token=?2"),
    [SQL_BREAK] = BREAK "1",
    [SQL_FREE] = LET_GO("version=version+1", FREED),
    [SQL_TAKE] = TAKE,
    [SQL_LOOK] = VERSION_LOOK "name=?1",
    [SQL_LIST] = VERSION_LOOK LISTED,
    [SQL_WANT] = WANT,
};
