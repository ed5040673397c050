/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of mysql:.
 *
 * To acquire is one INSERT ... ON DUPLICATE KEY UPDATE, which locks the row it
 * finds exclusively; inserting first and updating after would take a shared
 * lock and deadlock with its like.  Neither MySQL nor an update of MariaDB can
 * return a row, so the fence comes back by LAST_INSERT_ID(): it is 0 if the
 * row stayed another's, and also if somebody has put a trigger on the table,
 * so after a 0 there is a look.
 *
 * Assignments are made from left to right and see what those before them have
 * set.  So everything that depends on the old token comes before `token`, and
 * what decided about the token comes after it.
 *
 * UTC_TIMESTAMP() is the beginning of the statement, so never later than the
 * grant, and never earlier than the moment from which the holder counts.  The
 * session's time zone is UTC: UNIX_TIMESTAMP() of an hour that comes twice
 * would be wrong.
 */
#include "mysql.h"

#include "base/banned.h"

#define NOW    "UTC_TIMESTAMP(6)"
#define NOW_US "CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)"
#define END    NOW "+INTERVAL $3*1000 MICROSECOND"

#define COLUMNS                                                                \
    "(name VARBINARY(1024) NOT NULL PRIMARY KEY,"                              \
    "token VARCHAR(33) CHARACTER SET ascii COLLATE ascii_bin NULL,"            \
    "fence BIGINT NOT NULL,ttl_ms BIGINT NULL,"                                \
    "owner VARBINARY(128) NULL,note VARBINARY(256) NULL,"

#define TABLE ") ENGINE=InnoDB ROW_FORMAT=DYNAMIC"

#define NEXT_FENCE                                                             \
    "fence=IF(token<=>$2,LAST_INSERT_ID(fence),"                               \
    "LAST_INSERT_ID(GREATEST(fence+1," NOW_US "))),"

#define ACQUIRE(columns, values, before, free, after)                          \
    "INSERT INTO @T (name,token,fence,ttl_ms,owner,note," columns              \
    ") VALUES ($1,$2,LAST_INSERT_ID(" NOW_US "),$3,$4,$5," values              \
    ") ON DUPLICATE KEY UPDATE "                                               \
    "fence=IF(token<=>$2,LAST_INSERT_ID(fence),IF(" free                       \
    ",LAST_INSERT_ID(GREATEST(fence+1," NOW_US ")),fence+LAST_INSERT_ID(0)))," \
    "ttl_ms=IF(token<=>$2,GREATEST(ttl_ms,$3),IF(" free ",$3,ttl_ms)),"        \
    "owner=IF(token<=>$2 OR " free ",$4,owner),"                               \
    "note=IF(token<=>$2 OR " free ",$5,note)," before "token=IF(" free         \
    ",$2,token)," after

#define LEASE_FREE   "(token IS NULL OR expires_at<=" NOW ")"
#define VERSION_FREE "(token IS NULL OR version=$7)"

#define RENEW_ONE " WHERE name=$1 AND token=$2 AND fence=$7"

/* Rows are found, and so locked, in the order of their keys. */
#define MANY " WHERE name IN ($8) AND CONCAT(token,':',fence) IN ($9)"

/* An update never waits for a row that another has locked: backend/sql/renew.c
 * (4).  MariaDB gives up at the first of them (mysql.c: my_renew_many()).
 * MySQL passes over them, if the rows are found before the update looks at the
 * table: the LIMIT keeps the two apart. */
#define RENEW_MANY(sets)                                                       \
    "/*M! SET STATEMENT innodb_lock_wait_timeout=0 FOR */ UPDATE @T SET " sets \
        MANY
#define RENEW_SKIP(sets)                                                       \
    "UPDATE (SELECT name n FROM @T" MANY " LIMIT 1000 FOR UPDATE SKIP LOCKED)" \
    " s STRAIGHT_JOIN @T l ON l.name=s.n SET " sets

/* In whatever order they are set. */
#define LEASE_RENEW                                                            \
    "ttl_ms=IF($6=1,$3,GREATEST(ttl_ms,$3)),expires_at=IF($6=1 OR "            \
    "expires_at>" NOW "+INTERVAL GREATEST(ttl_ms,$3)*1000 MICROSECOND," END    \
    ",GREATEST(expires_at," END "))"

#define VERSION_RENEW "ttl_ms=IF($6=1,$3,GREATEST(ttl_ms,$3)),version=version+1"

/* The whole `name` must be a key of its own. */
#define KEYED(suffix)                                                          \
    "SELECT COUNT(*) FROM (SELECT MIN(column_name) c,MIN(non_unique) u,"       \
    "MIN(sub_part) p FROM "                                                    \
    "information_schema.statistics WHERE table_schema=IF(LOCATE('.',@C),"      \
    "SUBSTRING_INDEX(@C,'.',1),DATABASE()) AND table_name="                    \
    "CONCAT(SUBSTRING_INDEX(@C,'.',-1),'" suffix "') GROUP BY index_name "     \
    "HAVING COUNT(*)=1) k WHERE c='name' AND u=0 AND p IS NULL"

/* The thread of a session, or NULL, which no thread is.  open.c (1) */
#define THREAD "IS_USED_LOCK('" MY_OWN "$7')"
#define KILL   "KILL " THREAD

#define LET_GO(sets, which)                                                    \
    "UPDATE @T SET token=NULL,owner=NULL,note=NULL," sets                      \
    " WHERE name=$1 AND " which

/* What the fence names, whatever its token, is over at once. */
#define FREED "token IS NOT NULL AND fence=$7"

#define TAKE                                                                   \
    "UPDATE @T SET token=$2 WHERE name=$1 AND fence=$7 AND token IN ($2,$5)"

#define BREAK(table)                                                           \
    "UPDATE " table " SET token=CONCAT('!',token) WHERE name=$1 AND "          \
    "fence=$7 AND token NOT LIKE '!%'"

#define LISTED "token IS NOT NULL AND LEFT(name,LENGTH($1))=$1"

#define LEASE_LOOK                                                             \
    "SELECT token,fence,TIMESTAMPDIFF(MICROSECOND," NOW                        \
    ",expires_at) DIV 1000,TIMESTAMPDIFF(MICROSECOND,acquired_at," NOW         \
    ") DIV 1000,owner,note,0,ttl_ms,0,name FROM @T WHERE "

#define VERSION_LOOK                                                           \
    "SELECT token,fence,NULL,NULL,owner,note,version,ttl_ms,0,name FROM @T "   \
    "WHERE "

const char *const my_lease_texts[SQL_STMTS] = {
    [SQL_CREATE] =
        "CREATE TABLE IF NOT EXISTS @T " COLUMNS
        "acquired_at DATETIME(6) NULL,expires_at DATETIME(6) NULL" TABLE,
    [SQL_ACQUIRE] = ACQUIRE(
        "acquired_at,expires_at", NOW "," END,
        "acquired_at=IF(" LEASE_FREE "," NOW ",acquired_at),", LEASE_FREE,
        "expires_at=IF(token=$2,GREATEST(COALESCE(expires_at," END ")," END
        "),expires_at)"),
    [SQL_RENEW] = "UPDATE @T SET " LEASE_RENEW RENEW_ONE,
    [SQL_RENEW_MANY] = RENEW_MANY(LEASE_RENEW),
    [SQL_RENEW_SKIP] = RENEW_SKIP(LEASE_RENEW),
    [SQL_VERIFY] = KEYED(""),
    [SQL_RELEASE] = LET_GO("expires_at=NULL", "token=$2"),
    [SQL_BREAK] = BREAK("@T") " AND expires_at>" NOW,
    [SQL_FREE] = LET_GO("expires_at=NULL", FREED " AND expires_at>" NOW),
    [SQL_TAKE] = TAKE,
    [SQL_KILL] = KILL,
    [SQL_LOOK] = LEASE_LOOK "name=$1",
    [SQL_LIST] = LEASE_LOOK LISTED " AND expires_at>" NOW,
};

const char *const my_version_texts[SQL_STMTS] = {
    [SQL_CREATE] = "CREATE TABLE IF NOT EXISTS @T " COLUMNS
                   "version BIGINT NOT NULL" TABLE,
    [SQL_ACQUIRE] = ACQUIRE("version", "1", "", VERSION_FREE,
                            "version=IF(token=$2,version+1,version)"),
    [SQL_RENEW] = "UPDATE @T SET " VERSION_RENEW RENEW_ONE,
    [SQL_RENEW_MANY] = RENEW_MANY(VERSION_RENEW),
    [SQL_RENEW_SKIP] = RENEW_SKIP(VERSION_RENEW),
    [SQL_VERIFY] = KEYED(""),
    [SQL_RELEASE] = LET_GO("version=version+1", "token=$2"),
    [SQL_BREAK] = BREAK("@T"),
    [SQL_FREE] = LET_GO("version=version+1", FREED),
    [SQL_TAKE] = TAKE,
    [SQL_KILL] = KILL,
    [SQL_LOOK] = VERSION_LOOK "name=$1",
    [SQL_LIST] = VERSION_LOOK LISTED,
};

/* A session that signed is still there while its lock is.  @T is named so that it is missed at
 * once if it is not there. */
#define ROW_LOOK                                                               \
    "SELECT IF(IS_USED_LOCK(CONCAT('" MY_OWN                                   \
    "',f.session)) IS NULL,NULL,f.token),f.fence,NULL,"                        \
    "TIMESTAMPDIFF(MICROSECOND,f.acquired_at," NOW ") DIV 1000,f.owner,"       \
    "f.note,f.session,f.ttl_ms,(SELECT 0 FROM @T LIMIT 0),f.name FROM @F f WHERE "

const char *const my_row_texts[SQL_STMTS] = {
    [SQL_CREATE] =
        "CREATE TABLE IF NOT EXISTS @T (name VARBINARY(1024) NOT "
        "NULL PRIMARY KEY,row_lock BOOLEAN NOT NULL DEFAULT true" TABLE,
    [SQL_CREATE_FENCE] =
        "CREATE TABLE IF NOT EXISTS @F " COLUMNS
        "acquired_at DATETIME(6) NULL,session BIGINT NULL" TABLE,
    [SQL_LOCK] = "/*M! SET STATEMENT max_statement_time=0 FOR */ "
                 "SELECT row_lock FROM @T WHERE name=$1 FOR UPDATE",
    [SQL_MAKE] = "/*M! SET STATEMENT innodb_lock_wait_timeout=0 FOR */ "
                 "INSERT INTO @T (name) VALUES ($1) "
                 "ON DUPLICATE KEY UPDATE row_lock=row_lock",
    [SQL_SIGN] =
        "INSERT INTO @F (name,token,fence,ttl_ms,owner,note,acquired_at,"
        "session) VALUES ($1,$2,LAST_INSERT_ID(" NOW_US "),$3,$4,$5," NOW
        ",$7) ON DUPLICATE KEY UPDATE " NEXT_FENCE
        "token=$2,ttl_ms=$3,owner=$4,note=$5,acquired_at=" NOW ",session=$7",
    [SQL_UNSIGN] = "UPDATE @F SET token=NULL,owner=NULL,note=NULL "
                   "WHERE name=$1 AND token=$2",
    [SQL_LOOK] = ROW_LOOK "name=$1",
    [SQL_LIST] = ROW_LOOK LISTED,
    [SQL_END] = "KILL QUERY " THREAD,
    [SQL_RENEW] = "SELECT 1 FROM @F" RENEW_ONE,
    [SQL_RENEW_MANY] = "SELECT 1 FROM @F" MANY,
    [SQL_VERIFY] = "SELECT (" KEYED("") ")>0 AND (" KEYED("_fence") ")>0",
    [SQL_BREAK] = BREAK("@F"),
    [SQL_KILL] = KILL,
};
