-- SPDX-License-Identifier: MIT
--
-- row.sql - strategy row on MariaDB and MySQL; see lease.sql, and row.c for how
-- the row is locked.  @F is the table of fences.

-- let: now = UTC_TIMESTAMP(6)
-- let: now_us = CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)

-- name: create
CREATE TABLE IF NOT EXISTS @T (
    name VARBINARY(1024) NOT NULL PRIMARY KEY,
    row_lock BOOLEAN NOT NULL DEFAULT true
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- name: create_fence
CREATE TABLE IF NOT EXISTS @F (
    name VARBINARY(1024) NOT NULL PRIMARY KEY,
    token VARCHAR(33) CHARACTER SET ascii COLLATE ascii_bin NULL,
    fence BIGINT NOT NULL, ttl_ms BIGINT NULL, owner VARBINARY(128) NULL,
    note VARBINARY(256) NULL, acquired_at DATETIME(6) NULL,
    session BIGINT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- name: renew
SELECT 1 FROM @F WHERE name=$1 AND token=$2 AND fence=$7;

-- name: renew_many
SELECT 1 FROM @F WHERE name IN ($8) AND CONCAT(token,':',fence) IN ($9);

-- name: break
UPDATE @F
SET token=CONCAT('!',token)
WHERE name=$1 AND fence=$7 AND token NOT LIKE '!%';

-- The thread of a session, or NULL, which no thread is; the name is MY_OWN and
-- the number: connect.c (1).
-- name: kill
KILL IS_USED_LOCK('holdfast:$7');

-- A session that signed is still there while its lock is.  @T is named so that
-- it is missed at once if it is not there.
-- name: look
SELECT IF(IS_USED_LOCK(CONCAT('holdfast:',f.session)) IS NULL,NULL,f.token),
    f.fence, NULL, TIMESTAMPDIFF(MICROSECOND,f.acquired_at,{now}) DIV 1000,
    f.owner, f.note, f.session, f.ttl_ms, (SELECT 0 FROM @T LIMIT 0), f.name
FROM @F f
WHERE name=$1;

-- From the fence $7 on also what is free; of that the newest, if $7 is -1.
-- let: newest = (SELECT MAX(n.fence) FROM @F n WHERE LEFT(n.name,LENGTH($1))=$1)
-- name: list
SELECT IF(IS_USED_LOCK(CONCAT('holdfast:',f.session)) IS NULL,NULL,f.token),
    f.fence, NULL, TIMESTAMPDIFF(MICROSECOND,f.acquired_at,{now}) DIV 1000,
    f.owner, f.note, f.session, f.ttl_ms, (SELECT 0 FROM @T LIMIT 0), f.name
FROM @F f
WHERE LEFT(name,LENGTH($1))=$1
    AND (
        token IS NOT NULL OR ($7>=0 AND fence>=$7)
        OR ($7<0 AND fence={newest})
    );

-- row.c adds NOWAIT, or how long to wait.
-- name: lock
/*M! SET STATEMENT max_statement_time=0 FOR */
SELECT row_lock
FROM @T
WHERE name=$1
FOR UPDATE;

-- name: make
/*M! SET STATEMENT innodb_lock_wait_timeout=0 FOR */
INSERT INTO @T (name)
VALUES ($1)
ON DUPLICATE KEY UPDATE row_lock=row_lock;

-- It may be served late, so the session must be there, on this server:
-- backend/sql/row.c (7).  Who has a row lock is not shown to an ordinary user.
-- The question is asked once, with the fence locked.
-- name: sign
INSERT INTO @F (name,token,fence,ttl_ms,owner,note,acquired_at,session)
VALUES ($1,$2,LAST_INSERT_ID({now_us}),$3,$4,$5,{now},$7)
ON DUPLICATE KEY UPDATE
    fence=IF(
        @holdfast_there:=IS_USED_LOCK('holdfast:$7') IS NOT NULL,
        IF(
            token<=>$2, LAST_INSERT_ID(fence),
            LAST_INSERT_ID(GREATEST(fence+1,{now_us}))
        ),
        fence+LAST_INSERT_ID(0)
    ),
    token=IF(@holdfast_there,$2,token), ttl_ms=IF(@holdfast_there,$3,ttl_ms),
    owner=IF(@holdfast_there,$4,owner), note=IF(@holdfast_there,$5,note),
    acquired_at=IF(@holdfast_there,{now},acquired_at),
    session=IF(@holdfast_there,$7,session);

-- name: unsign
UPDATE @F SET token=NULL,owner=NULL,note=NULL WHERE name=$1 AND token=$2;

-- name: end
KILL QUERY IS_USED_LOCK('holdfast:$7');
