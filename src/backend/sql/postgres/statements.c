/* SPDX-License-Identifier: MIT
 *
 * statements.c - the statements of postgres:.
 *
 * The clock is clock_timestamp(), which is read when it is evaluated; now()
 * would be the start of a transaction, however old.
 *
 * To acquire is one statement.  Its first part looks with the statement's
 * snapshot, so that asking for a busy lock neither waits for the row nor
 * writes anything, but for the mark of the first who waits.  Only if that
 * look finds no holder is there an insert, which, where the row exists, locks
 * it and judges its newest version.
 *
 * Bells ring by NOTIFY on a channel named as the table, and only where
 * somebody waits: NOTIFY takes a lock of the whole cluster at commit.  The
 * payload is 'f' (free) or 'w' (wanted), and the key in hex.
 */
#include "postgres.h"

#include "base/banned.h"

#define NOW_US "(extract(epoch from clock_timestamp())*1000000)::int8"
#define MS(t)  "(extract(epoch from " t ")*1000)::int8"

#define RING(kind) "pg_notify(@C,'" kind "'||encode($1,'hex'))::text"

#define ACQUIRE(columns, values, sets, busy, free, left, version)              \
    "WITH b AS (SELECT * FROM @T WHERE name=$1 AND token IS NOT NULL AND "     \
    "token<>$2 AND " busy "), "                                                \
    "w AS (UPDATE @T t SET wanted=true FROM b WHERE $6=1 AND NOT b.wanted "    \
    "AND t.name=$1 AND t.token=b.token RETURNING 1), "                         \
    "g AS (INSERT INTO @T AS l (name,token,fence,ttl_ms,owner,note," columns   \
    ") SELECT $1,$2," NOW_US ",$3,$4,$5," values                               \
    " WHERE NOT EXISTS (SELECT 1 FROM b) "                                     \
    "ON CONFLICT (name) DO UPDATE SET "                                        \
    "fence=CASE WHEN l.token=$2 THEN l.fence "                                 \
    "ELSE greatest(l.fence+1," NOW_US ") END, "                                \
    "wanted=l.wanted AND l.token IS NOT DISTINCT FROM $2, "                    \
    "token=$2,owner=$4,note=$5,"                                               \
    "ttl_ms=CASE WHEN l.token=$2 THEN greatest(l.ttl_ms,$3) ELSE $3 END," sets \
    " WHERE l.token IS NULL OR l.token=$2 OR " free " RETURNING l.fence) "     \
    "SELECT fence,0::int8,0::int8,0::int8,0::int8,NULL FROM g UNION ALL "      \
    "SELECT 0," left "," version ",ttl_ms,"                                    \
    "CASE WHEN $6=1 AND NOT wanted AND NOT EXISTS (SELECT 1 FROM w) "          \
    "THEN 1 ELSE 0 END,(SELECT " RING("w") " FROM w) FROM b"

#define LET_GO(sets, whose)                                                    \
    "WITH r AS (UPDATE @T SET token=NULL,owner=NULL,note=NULL," sets           \
    " WHERE name=$1 AND " whose " RETURNING wanted) "                          \
    "SELECT CASE WHEN wanted THEN " RING("f") " END FROM r"

#define LOOK(left, since, version)                                             \
    "SELECT token,fence," left "," since ",owner,note," version                \
    ",ttl_ms,wanted::int::int8,name FROM @T WHERE "

#define LEASE_END "clock_timestamp()+$3*interval '1 ms'"
#define LEASE_LOOK                                                             \
    LOOK(MS("expires_at-clock_timestamp()"),                                   \
         MS("clock_timestamp()-acquired_at"), "0::int8")
#define VERSION_LOOK LOOK("NULL::int8", "NULL::int8", "version")

/* Only a request that says so ($6) may shorten a lease: one that was late would
 * cut what a newer one has lengthened.  But a time that lies further ahead
 * than any lease of this row is that of a clock which has been put back. */
#define RENEW_TTL "ttl_ms=CASE WHEN $6=1 THEN $3 ELSE greatest(ttl_ms,$3) END"

#define RENEW_ONE " WHERE name=$1 AND token=$2 AND fence=$7"

/* $2 is "name:token:fence,..." with the names in hex, in the order in which
 * the rows are to be locked; settings.c sees to it that no plan changes
 * that. */
#define MANY_KEYS(t)                                                           \
    "(SELECT decode(split_part(x,':',1),'hex') n,split_part(x,':',2) t,"       \
    "split_part(x,':',3)::int8 f FROM unnest(string_to_array($2,',')) x) k "   \
    "WHERE " t ".name=k.n AND " t ".token=k.t AND " t ".fence=k.f"

/* A row that another has locked is passed over, so that nobody else's lock has
 * to wait for it; backend/sql/renew.c (4). */
#define MANY_ROWS                                                              \
    " FROM (SELECT r.name n FROM @T r," MANY_KEYS(                             \
        "r") " FOR UPDATE OF r SKIP LOCKED) s WHERE l.name=s.n RETURNING "     \
             "l.name,l.token"

#define LEASE_RENEW                                                            \
    "UPDATE @T l SET " RENEW_TTL ",expires_at=CASE WHEN $6=1 OR "              \
    "expires_at>clock_timestamp()+ttl_ms*interval '1 ms' THEN " LEASE_END      \
    " ELSE greatest(expires_at," LEASE_END ") END"
#define VERSION_RENEW "UPDATE @T l SET " RENEW_TTL ",version=version+1"

/* `name` must be a key of its own: otherwise ON CONFLICT fails, or inserts a
 * second row of the same name. */
#define KEYED(table)                                                           \
    "EXISTS(SELECT 1 FROM pg_index i JOIN pg_attribute a ON "                  \
    "a.attrelid=i.indrelid AND a.attnum=i.indkey[0] WHERE "                    \
    "i.indrelid='" table "'::regclass AND i.indisunique AND i.indimmediate "   \
    "AND i.indisvalid AND i.indpred IS NULL AND i.indnkeyatts=1 AND "          \
    "a.attname='name')"

/* What the fence names, whatever its token, is over at once. */
#define FREED "token IS NOT NULL AND fence=$7 AND "

/* End a session and wait for that, but not for long. */
#define KILLED " FROM pg_stat_activity WHERE " PG_ID("pid", "backend_start")
#define KILL   "SELECT pg_terminate_backend(pid,1000)::int" KILLED "=$7"

#define TAKE                                                                   \
    "UPDATE @T SET token=$2 WHERE name=$1 AND fence=$7 AND "                   \
    "token IN ($2,convert_from($5,'UTF8'))"

/* See backend/sql/sql.c (6). */
#define BREAK                                                                  \
    "UPDATE @T SET token='!'||token WHERE name=$1 AND fence=$7 AND "           \
    "token NOT LIKE '!%' AND "

#define LISTED "token IS NOT NULL AND substring(name for length($1))=$1"

const char *const pg_lease_texts[SQL_STMTS] = {
    [SQL_CREATE] = "CREATE TABLE IF NOT EXISTS @T (name bytea PRIMARY KEY, "
                   "token text, fence bigint NOT NULL, acquired_at timestamptz,"
                   " expires_at timestamptz, ttl_ms bigint NOT NULL, "
                   "wanted boolean NOT NULL DEFAULT false, owner bytea, "
                   "note bytea) WITH (fillfactor=50)",
    [SQL_ACQUIRE] = ACQUIRE(
        "acquired_at,expires_at", "clock_timestamp()," LEASE_END,
        "acquired_at=clock_timestamp(),expires_at=CASE WHEN l.token=$2 "
        "THEN greatest(l.expires_at," LEASE_END ") ELSE " LEASE_END " END",
        "expires_at>clock_timestamp()", "l.expires_at<=clock_timestamp()",
        MS("expires_at-clock_timestamp()") "+1", "0"),
    [SQL_RENEW] = LEASE_RENEW RENEW_ONE,
    [SQL_RENEW_MANY] = LEASE_RENEW MANY_ROWS,
    [SQL_VERIFY] = "SELECT " KEYED("@T") "::int::int8",
    [SQL_RELEASE] = LET_GO("expires_at=NULL", "token=$2"),
    [SQL_BREAK] = BREAK "expires_at>clock_timestamp()",
    [SQL_FREE] =
        LET_GO("expires_at=NULL", FREED "expires_at>clock_timestamp()"),
    [SQL_TAKE] = TAKE,
    [SQL_KILL] = KILL,
    [SQL_LOOK] = LEASE_LOOK "name=$1",
    [SQL_LIST] = LEASE_LOOK LISTED " AND expires_at>clock_timestamp()",
};

const char *const pg_version_texts[SQL_STMTS] = {
    [SQL_CREATE] = "CREATE TABLE IF NOT EXISTS @T (name bytea PRIMARY KEY, "
                   "token text, fence bigint NOT NULL, "
                   "version bigint NOT NULL, ttl_ms bigint NOT NULL, "
                   "wanted boolean NOT NULL DEFAULT false, owner bytea, "
                   "note bytea) WITH (fillfactor=50)",
    [SQL_ACQUIRE] = ACQUIRE("version", "1", "version=l.version+1",
                            "version<>$7", "l.version=$7", "0", "version"),
    [SQL_RENEW] = VERSION_RENEW RENEW_ONE,
    [SQL_RENEW_MANY] = VERSION_RENEW MANY_ROWS,
    [SQL_VERIFY] = "SELECT " KEYED("@T") "::int::int8",
    [SQL_RELEASE] = LET_GO("version=version+1", "token=$2"),
    [SQL_BREAK] = BREAK "true",
    [SQL_FREE] = LET_GO("version=version+1", FREED "true"),
    [SQL_TAKE] = TAKE,
    [SQL_KILL] = KILL,
    [SQL_LOOK] = VERSION_LOOK "name=$1",
    [SQL_LIST] = VERSION_LOOK LISTED,
};

/* Who locks a row is told by its xmax, and that he is still there by the lock
 * that every transaction has on its own number. */
#define ROW_HOLDER                                                             \
    "(@T t JOIN pg_locks k ON k.locktype='transactionid' AND k.granted AND "   \
    "k.transactionid=t.xmax) ON t.name=f.name AND " PG_SAME("k.pid",           \
                                                            "f.session")

#define ROW_LOOK(waiters)                                                      \
    "SELECT CASE WHEN k.pid IS NOT NULL THEN token END,fence,NULL::int8," MS(  \
        "clock_timestamp()-acquired_at") ",owner,note,session,ttl_ms," waiters \
                                         ",f.name FROM @F f LEFT "             \
                                         "JOIN " ROW_HOLDER " WHERE f."

/* The queue is that of an advisory lock; see row.c. */
#define ROW_WAITERS                                                            \
    "(SELECT count(*) FROM pg_locks k JOIN pg_locks w USING "                  \
    "(locktype,database,classid,objid,objsubid) WHERE " PG_SAME(               \
        "k.pid",                                                               \
        "f.session") " AND k.locktype='advisory' AND k.granted AND NOT "       \
                     "w.granted)"

const char *const pg_row_texts[SQL_STMTS] = {
    [SQL_CREATE] = "CREATE TABLE IF NOT EXISTS @T (name bytea PRIMARY KEY, "
                   "row_lock boolean NOT NULL DEFAULT true)",
    [SQL_CREATE_FENCE] =
        "CREATE TABLE IF NOT EXISTS @F (name bytea PRIMARY KEY, token text, "
        "fence bigint NOT NULL, acquired_at timestamptz, ttl_ms bigint, "
        "session bigint, owner bytea, note bytea) WITH (fillfactor=50)",
    [SQL_LOCK] = "SELECT row_lock FROM @T WHERE name=",
    [SQL_MAKE] = "INSERT INTO @T (name,row_lock) VALUES ($1,true) "
                 "ON CONFLICT DO NOTHING",
    [SQL_SIGN] =
        "INSERT INTO @F AS l "
        "(name,token,fence,acquired_at,ttl_ms,session,owner,note) "
        "VALUES ($1,$2," NOW_US ",clock_timestamp(),$3,$7,$4,$5) "
        "ON CONFLICT (name) DO UPDATE SET "
        "fence=CASE WHEN l.token=$2 THEN l.fence ELSE "
        "greatest(l.fence+1," NOW_US ") END,"
        "token=$2,acquired_at=clock_timestamp(),ttl_ms=$3,session=$7,owner=$4,"
        "note=$5 RETURNING l.fence",
    [SQL_UNSIGN] = "UPDATE @F SET token=NULL,owner=NULL,note=NULL "
                   "WHERE name=$1 AND token=$2",
    [SQL_LOOK] = ROW_LOOK(ROW_WAITERS) "name=$1",
    [SQL_LIST] = ROW_LOOK("NULL::int8") "token IS NOT NULL AND "
                                        "substring(f.name for length($1))=$1",
    [SQL_END] = KILL,
    [SQL_KILL] = KILL,
    [SQL_STANDS] = "SELECT count(*) FROM pg_locks WHERE " PG_SAME(
        "pid", "$7") " AND "
                     "locktype='advisory'",
    [SQL_RENEW] = "SELECT 1 FROM @F" RENEW_ONE,
    [SQL_RENEW_MANY] = "SELECT 1 FROM @F l," MANY_KEYS("l"),
    [SQL_VERIFY] = "SELECT (" KEYED("@T") " AND " KEYED("@F") ")::int::int8",
    [SQL_BREAK] = "UPDATE @F SET token='!'||token WHERE name=$1 AND fence=$7 "
                  "AND token NOT LIKE '!%'",
    [SQL_FREE] = "SELECT pg_terminate_backend(k.pid,1000)::int FROM "
                 "@F f JOIN " ROW_HOLDER " WHERE f.name=$1 AND f.fence=$7",
};
