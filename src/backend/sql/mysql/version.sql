-- SPDX-License-Identifier: MIT
--
-- version.sql - strategy version on MariaDB and MySQL; see lease.sql.

-- let: now_us = CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)
-- let: free = (token IS NULL OR version=$7)

-- name: create
CREATE TABLE IF NOT EXISTS @T (
    name VARBINARY(1024) NOT NULL PRIMARY KEY,
    token VARCHAR(33) CHARACTER SET ascii COLLATE ascii_bin NULL,
    fence BIGINT NOT NULL, ttl_ms BIGINT NULL, owner VARBINARY(128) NULL,
    note VARBINARY(256) NULL, version BIGINT NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- name: acquire
INSERT INTO @T (name,token,fence,ttl_ms,owner,note,version)
VALUES ($1,$2,LAST_INSERT_ID({now_us}),$3,$4,$5,{now_us})
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
    note=IF(token<=>$2 OR {free},$5,note), token=IF({free},$2,token),
    version=IF(token=$2,version+1,version);

-- name: renew
UPDATE @T
SET ttl_ms=IF($6=1,$3,GREATEST(ttl_ms,$3)),version=version+1
WHERE name=$1 AND token=$2 AND fence=$7;

-- name: renew_many
/*M! SET STATEMENT innodb_lock_wait_timeout=0 FOR */
UPDATE @T
SET ttl_ms=IF($6=1,$3,GREATEST(ttl_ms,$3)),version=version+1
WHERE name IN ($8) AND CONCAT(token,':',fence) IN ($9);

-- name: renew_skip
UPDATE (
    SELECT name n
    FROM @T
    WHERE name IN ($8) AND CONCAT(token,':',fence) IN ($9)
    LIMIT 1000
    FOR UPDATE SKIP LOCKED
) s
STRAIGHT_JOIN @T l ON l.name=s.n
SET ttl_ms=IF($6=1,$3,GREATEST(ttl_ms,$3)),version=version+1;

-- name: release
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,version=version+1
WHERE name=$1 AND token=$2;

-- name: break
UPDATE @T
SET token=CONCAT('!',token)
WHERE name=$1 AND fence=$7 AND token NOT LIKE '!%' AND token NOT LIKE '*%';

-- name: free
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,version=version+1
WHERE name=$1 AND token NOT LIKE '*%' AND fence=$7;

-- name: take
UPDATE @T SET token=$2 WHERE name=$1 AND fence=$7 AND token IN ($2,$5);

-- name: kill
KILL IS_USED_LOCK('holdfast:$7');

-- name: look
SELECT token,fence,NULL,NULL,owner,note,version,ttl_ms,0,name
FROM @T
WHERE name=$1;

-- From the fence $7 on also what is free; of that the newest, if $7 is -1.
-- let: newest = (SELECT MAX(n.fence) FROM @T n WHERE LEFT(n.name,LENGTH($1))=$1)
-- name: list
SELECT token,fence,NULL,NULL,owner,note,version,ttl_ms,0,name
FROM @T
WHERE LEFT(name,LENGTH($1))=$1
    AND (
        token IS NOT NULL OR ($7>=0 AND fence>=$7)
        OR ($7<0 AND fence={newest})
    );
