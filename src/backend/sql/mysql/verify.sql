-- SPDX-License-Identifier: MIT
--
-- verify.sql - everything that the statements on MariaDB and MySQL rely on,
-- asked of information_schema before a table is touched.  @S is the schema, @N
-- the table, as strings.
--
-- The question is `first`, the columns of a strategy, `middle`, the columns that
-- tell another strategy, `last`, `key`, `keyless`, `others`, `key` again, and
-- `end`.  Its answer is one row for a table that is
-- there: its name, NULL, and why it is not fit, or NULL.  backend/sql/verify.c judges it.  A user without the right TRIGGER
-- is shown no triggers.

-- let: here = table_schema=@S AND table_name=@N
-- let: size = COALESCE(k.character_maximum_length,k.datetime_precision,9999)
-- let: made = k.extra REGEXP 'auto_increment|on update|virtual|stored|persistent'

-- Of each column: its name, its types, its least length or precision, and
-- whether it must take NULL.
-- name: lease
SELECT 'name' c, 'varbinary' t, 1024 n, 0 o
UNION ALL SELECT 'token', 'varchar,varbinary', 33, 1
UNION ALL SELECT 'fence', 'bigint', 0, 0
UNION ALL SELECT 'ttl_ms', 'bigint', 0, 0
UNION ALL SELECT 'owner', 'varbinary', 128, 1
UNION ALL SELECT 'note', 'varbinary', 256, 1
UNION ALL SELECT 'acquired_at', 'datetime', 6, 1
UNION ALL SELECT 'expires_at', 'datetime', 6, 1;

-- name: version
SELECT 'name' c, 'varbinary' t, 1024 n, 0 o
UNION ALL SELECT 'token', 'varchar,varbinary', 33, 1
UNION ALL SELECT 'fence', 'bigint', 0, 0
UNION ALL SELECT 'ttl_ms', 'bigint', 0, 0
UNION ALL SELECT 'owner', 'varbinary', 128, 1
UNION ALL SELECT 'note', 'varbinary', 256, 1
UNION ALL SELECT 'version', 'bigint', 0, 0;

-- name: row
SELECT 'name' c, 'varbinary' t, 1024 n, 0 o
UNION ALL SELECT 'row_lock', 'tinyint', 0, 0;

-- name: holders
SELECT 'name' c, 'varbinary' t, 1024 n, 0 o
UNION ALL SELECT 'token', 'varchar,varbinary', 33, 0
UNION ALL SELECT 'mode', 'bigint', 0, 0
UNION ALL SELECT 'permits', 'bigint', 0, 0
UNION ALL SELECT 'slot', 'bigint', 0, 0
UNION ALL SELECT 'fence', 'bigint', 0, 0
UNION ALL SELECT 'version', 'bigint', 0, 0
UNION ALL SELECT 'ttl_ms', 'bigint', 0, 0
UNION ALL SELECT 'kept', 'bigint', 0, 0
UNION ALL SELECT 'acquired_at', 'datetime', 6, 1
UNION ALL SELECT 'expires_at', 'datetime', 6, 1
UNION ALL SELECT 'owner', 'varbinary', 128, 1
UNION ALL SELECT 'note', 'varbinary', 256, 1;

-- name: queue
SELECT 'name' c, 'varbinary' t, 1024 n, 0 o
UNION ALL SELECT 'token', 'varchar,varbinary', 33, 0
UNION ALL SELECT 'ticket', 'bigint', 0, 0
UNION ALL SELECT 'kind', 'bigint', 0, 0
UNION ALL SELECT 'nth', 'bigint', 0, 0
UNION ALL SELECT 'ttl_ms', 'bigint', 0, 0
UNION ALL SELECT 'expires_at', 'datetime', 6, 0
UNION ALL SELECT 'channel', 'varchar,varbinary', 64, 1
UNION ALL SELECT 'owner', 'varbinary', 128, 1
UNION ALL SELECT 'note', 'varbinary', 256, 1;

-- name: fence
SELECT 'name' c, 'varbinary' t, 1024 n, 0 o
UNION ALL SELECT 'token', 'varchar,varbinary', 33, 1
UNION ALL SELECT 'fence', 'bigint', 0, 0
UNION ALL SELECT 'ttl_ms', 'bigint', 0, 0
UNION ALL SELECT 'owner', 'varbinary', 128, 1
UNION ALL SELECT 'note', 'varbinary', 256, 1
UNION ALL SELECT 'acquired_at', 'datetime', 6, 1
UNION ALL SELECT 'session', 'bigint', 0, 1;

-- A time that is rounded ends a lease earlier than its holder believes.  By
-- padding, or by a collation that knows no case, two keys are one; the token of
-- a broken lock differs by one character.  A view may call a function of its
-- author.  Only InnoDB is known to lock the rows that it reads for an update:
-- FEDERATED says that it has transactions, and locks none.  A number that is
-- filled up with zeros is not found as a text.
-- name: first
SELECT t.table_name, NULL,
    CASE
        WHEN t.table_type<>'BASE TABLE' OR COALESCE(t.engine,'')<>'InnoDB'
            THEN 'it is a view or the like, or lacks the transactions of InnoDB'
        WHEN t.create_options LIKE '%partitioned%' THEN 'it has partitions'
        ELSE COALESCE(
            (
                SELECT MIN(
                    CASE
                        WHEN k.column_name IS NULL
                            THEN CONCAT(
                                'it has no column ', r.c,
                                ', as if it were of another strategy'
                            )
                        WHEN NOT FIND_IN_SET(k.data_type,r.t)
                            OR k.column_type LIKE '%zerofill%'
                            THEN CONCAT(
                                'its column ', r.c, ' is ', k.column_type,
                                ' and not ', REPLACE(r.t,',',' or ')
                            )
                        WHEN {size}<r.n
                            THEN CONCAT(
                                'its column ', r.c, ' is ', k.column_type,
                                ' and not (', r.n, ')'
                            )
                        WHEN RIGHT(k.collation_name,4)<>'_bin'
                            THEN CONCAT(
                                'its column ', r.c, ' has the collation ',
                                k.collation_name, ' and not one of bytes (_bin)'
                            )
                        WHEN {made}
                            THEN CONCAT('its column ',r.c,' is generated')
                        WHEN r.o AND k.is_nullable='NO'
                            THEN CONCAT('its column ',r.c,' is NOT NULL')
                    END
                )
                FROM (;

-- INSERT ... ON DUPLICATE KEY UPDATE changes the row of whatever key it meets,
-- and tells the fence by LAST_INSERT_ID(): there must be one key, over the whole
-- name, and no AUTO_INCREMENT.  A long key of MariaDB is one of hashes, which is
-- looked up before the row is written, and fails where two write at once.  A
-- table with the columns of two strategies would be used by both, and neither
-- sees when a lock of the other is over.  The LIMIT makes MariaDB look for the
-- columns of this table first; it would open all that there are.
-- name: middle
) r
                LEFT JOIN (
                    SELECT *
                    FROM information_schema.columns
                    WHERE {here}
                    LIMIT 10000
                ) k ON k.column_name=r.c
            ),
            CASE
                WHEN EXISTS(
                    SELECT 1
                    FROM information_schema.columns
                    WHERE {here} AND column_name IN (;

-- name: lease_not
'version','row_lock','session','slot';

-- name: version_not
'expires_at','row_lock','session','slot';

-- name: row_not
'token','expires_at','version','session','slot';

-- name: fence_not
'expires_at','version','row_lock','slot';

-- name: holders_not
'row_lock','session';

-- name: last
)
                )
                    THEN 'it has a column of another strategy, too'
                WHEN NOT EXISTS(
                    SELECT 1
                    FROM information_schema.statistics
                    WHERE {here} AND non_unique=0
                    GROUP BY index_name
                    HAVING;

-- What stands there and below: is it an index over the name, or over the name and
-- the token of a holder?
-- name: key
COUNT(*)=1 AND COALESCE(MIN(column_name),'')='name'
AND MAX(sub_part) IS NULL AND MIN(index_type)='BTREE';

-- name: key_holders
COUNT(*)=2 AND COALESCE(MIN(column_name),'')='name'
AND MAX(column_name)='token' AND MAX(sub_part) IS NULL
AND MIN(index_type)='BTREE';

-- name: keyless
)
                    THEN 'it has no unique index (BTREE) on its column name alone';

-- name: keyless_holders
)
                    THEN 'it has no unique index (BTREE) on name and token alone';

-- name: others
                WHEN EXISTS(
                    SELECT 1
                    FROM information_schema.columns k
                    WHERE {here} AND k.column_name NOT IN (
                        'name', 'token', 'fence', 'ttl_ms', 'owner', 'note',
                        'acquired_at', 'expires_at', 'version', 'row_lock',
                        'session', 'mode', 'permits', 'slot', 'kept',
                        'ticket', 'kind', 'nth', 'channel'
                    ) AND ({made}
                        OR (k.is_nullable='NO' AND k.column_default IS NULL))
                )
                    THEN 'it has other columns that are generated, AUTO_INCREMENT, or NOT NULL without a default'
                WHEN EXISTS(
                    SELECT 1
                    FROM information_schema.statistics
                    WHERE {here} AND non_unique=0
                    GROUP BY index_name
                    HAVING NOT (;

-- name: end
)
                )
                    THEN 'it has another unique index'
                WHEN EXISTS(
                    SELECT 1
                    FROM information_schema.table_constraints
                    WHERE {here} AND constraint_type='FOREIGN KEY'
                )
                    THEN 'it has a foreign key'
                WHEN EXISTS(
                    SELECT 1
                    FROM information_schema.triggers
                    WHERE event_object_schema=@S AND event_object_table=@N
                        AND action_timing='BEFORE'
                )
                    THEN 'it has a trigger BEFORE, which may change what is written'
            END
        )
    END
FROM information_schema.tables t
WHERE t.table_schema=@S AND t.table_name=@N;

-- A temporary table hides one of the same name from its own connection, and not
-- every server has it in information_schema.
-- name: show
SHOW CREATE TABLE @T;

-- name: show_fence
SHOW CREATE TABLE @F;

-- name: show_holders
SHOW CREATE TABLE @H;

-- name: show_queue
SHOW CREATE TABLE @Q;
