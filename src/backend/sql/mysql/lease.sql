-- SPDX-License-Identifier: MIT
--
-- lease.sql - strategy lease on MariaDB and MySQL.
--
-- @T is the table; $1 to $9 are the parameters of backend/sql/sql.h, and $8 and
-- $9 the keys and "token:fence" of many grants.
--
-- UTC_TIMESTAMP() is the beginning of the statement, so never later than the
-- grant, and never earlier than the moment from which the holder counts.  The
-- session's time zone is UTC: UNIX_TIMESTAMP() of an hour that comes twice
-- would be wrong.

-- let: now = UTC_TIMESTAMP(6)
-- let: now_us = CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)
-- let: end = {now}+INTERVAL $3*1000 MICROSECOND
-- let: free = (token IS NULL OR expires_at<={now})

-- name: create
CREATE TABLE IF NOT EXISTS @T (
    name VARBINARY(1024) NOT NULL PRIMARY KEY,
    token VARCHAR(33) CHARACTER SET ascii COLLATE ascii_bin NULL,
    fence BIGINT NOT NULL, ttl_ms BIGINT NULL, owner VARBINARY(128) NULL,
    note VARBINARY(256) NULL, acquired_at DATETIME(6) NULL,
    expires_at DATETIME(6) NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- One INSERT ... ON DUPLICATE KEY UPDATE, which locks the row it finds
-- exclusively; inserting first and updating after would take a shared lock and
-- deadlock with its like.  Neither MySQL nor an update of MariaDB can return a
-- row, so the fence comes back by LAST_INSERT_ID(): it is 0 if the row stayed
-- another's, and also if somebody has put a trigger on the table, so after a 0
-- there is a look.
--
-- Assignments are made from left to right and see what those before them have
-- set.  So everything that depends on the old token comes before `token`, and
-- what decided about the token comes after it.
-- name: acquire
INSERT INTO @T (name,token,fence,ttl_ms,owner,note,acquired_at,expires_at)
VALUES ($1,$2,LAST_INSERT_ID({now_us}),$3,$4,$5,{now},{end})
ON DUPLICATE KEY UPDATE
    fence=IF(
        token<=>$2, LAST_INSERT_ID(fence),
        IF(
            {free}, LAST_INSERT_ID(GREATEST(fence+1,{now_us})),
            fence+LAST_INSERT_ID(0)
        )
    ),
    ttl_ms=IF(token<=>$2,GREATEST(ttl_ms,$3),IF({free},$3,ttl_ms)),
    owner=IF(token<=>$2 OR {free},$4,owner),
    note=IF(token<=>$2 OR {free},$5,note),
    acquired_at=IF({free},{now},acquired_at), token=IF({free},$2,token),
    expires_at=IF(
        token=$2,GREATEST(COALESCE(expires_at,{end}),{end}),expires_at
    );

-- name: renew
UPDATE @T
SET ttl_ms=IF($6=1,$3,GREATEST(ttl_ms,$3)),
    expires_at=IF(
        $6=1
            OR expires_at>{now}+INTERVAL GREATEST(ttl_ms,$3)*1000 MICROSECOND,
        {end}, GREATEST(expires_at,{end})
    )
WHERE name=$1 AND token=$2 AND fence=$7;

-- Rows are found, and so locked, in the order of their keys.  An update never
-- waits for a row that another has locked: backend/sql/renew.c (4).  MariaDB
-- gives up at the first of them; see my_renew_many() in mysql.c.
-- name: renew_many
/*M! SET STATEMENT innodb_lock_wait_timeout=0 FOR */
UPDATE @T
SET ttl_ms=IF($6=1,$3,GREATEST(ttl_ms,$3)),
    expires_at=IF(
        $6=1
            OR expires_at>{now}+INTERVAL GREATEST(ttl_ms,$3)*1000 MICROSECOND,
        {end}, GREATEST(expires_at,{end})
    )
WHERE name IN ($8) AND CONCAT(token,':',fence) IN ($9);

-- MySQL 8 passes over rows that another has locked, if the rows are found
-- before the update looks at the table: the LIMIT keeps the two apart.  The
-- assignments do not depend on their order.
-- name: renew_skip
UPDATE (
    SELECT name n
    FROM @T
    WHERE name IN ($8) AND CONCAT(token,':',fence) IN ($9)
    LIMIT 1000
    FOR UPDATE SKIP LOCKED
) s
STRAIGHT_JOIN @T l ON l.name=s.n
SET ttl_ms=IF($6=1,$3,GREATEST(ttl_ms,$3)),
    expires_at=IF(
        $6=1
            OR expires_at>{now}+INTERVAL GREATEST(ttl_ms,$3)*1000 MICROSECOND,
        {end}, GREATEST(expires_at,{end})
    );

-- name: release
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,expires_at=NULL
WHERE name=$1 AND token=$2;

-- name: break
UPDATE @T
SET token=CONCAT('!',token)
WHERE name=$1 AND fence=$7 AND token NOT LIKE '!%' AND token NOT LIKE '*%' AND expires_at>{now};

-- What the fence names, whatever its token, is over at once.
-- name: free
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,expires_at=NULL
WHERE name=$1 AND token NOT LIKE '*%' AND fence=$7 AND expires_at>{now};

-- name: take
UPDATE @T SET token=$2 WHERE name=$1 AND fence=$7 AND token IN ($2,$5);

-- The thread of a session, or NULL, which no thread is; the name is MY_OWN and
-- the number: connect.c (1).
-- name: kill
KILL IS_USED_LOCK('holdfast:$7');

-- name: look
SELECT token, fence, TIMESTAMPDIFF(MICROSECOND,{now},expires_at) DIV 1000,
    TIMESTAMPDIFF(MICROSECOND,acquired_at,{now}) DIV 1000, owner, note, 0,
    ttl_ms, 0, name
FROM @T
WHERE name=$1;

-- From the fence $7 on also what is free; of that the newest, if $7 is -1.
-- let: newest = (SELECT MAX(n.fence) FROM @T n WHERE LEFT(n.name,LENGTH($1))=$1)
-- name: list
SELECT token, fence, TIMESTAMPDIFF(MICROSECOND,{now},expires_at) DIV 1000,
    TIMESTAMPDIFF(MICROSECOND,acquired_at,{now}) DIV 1000, owner, note, 0,
    ttl_ms, 0, name
FROM @T
WHERE LEFT(name,LENGTH($1))=$1
    AND (
        (token IS NOT NULL AND expires_at>{now})
        OR ($7>=0 AND fence>=$7) OR ($7<0 AND fence={newest})
    );
