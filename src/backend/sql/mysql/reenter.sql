-- SPDX-License-Identifier: MIT
--
-- reenter.sql - owner ids that count across processes, on MariaDB and MySQL; see
-- postgres/reenter.sql, which does the same in the same order, and holders.sql for
-- what a script is here.

-- let: time = CAST(@hf_now AS DATETIME(6))
-- let: end = {time}+INTERVAL $3*1000 MICROSECOND
-- let: live = (h.expires_at IS NULL OR h.expires_at>{time})
-- let: full = (SELECT COUNT(*) n,MAX(h.expires_at) e,MAX(h.ttl_ms) m FROM @H h WHERE h.name=$1 AND h.mode<2 AND {live}) a
-- let: equal = (t.owner=$4 AND t.token<>$2 AND t.token NOT LIKE '!%' AND t.token NOT LIKE '*%' @{AND t.expires_at>{time}@|@})
-- let: fellow = h.name=$1 AND h.owner=$4 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live}
-- let: mine = h.name=$1 AND h.token=$2 AND h.mode=1 AND h.kept=0
-- let: columns = name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,expires_at,owner,note

-- name: join
SET @hf_now=UTC_TIMESTAMP(6);
START TRANSACTION;
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
DELETE h
FROM @H h
JOIN @T t ON t.name=h.name
WHERE t.name=$1 AND h.name=$1 AND h.mode<2 AND $8<0 AND (NOT {live} OR {equal});
INSERT INTO @H ({columns})
SELECT $1, t.token, 1, 0, -1, t.fence, @{0@|t.version+1@}, t.ttl_ms, 0,
    @{t.acquired_at,t.expires_at@|{time},NULL@}, t.owner, t.note
FROM @T t
WHERE t.name=$1 AND $8<0 AND {equal};
INSERT INTO @H ({columns})
SELECT $1, $2, 1, 0, -1, e.f, @{0@|t.version+2@}, $3, 0, {time},
    @{{end}@|NULL@}, $4, $5
FROM @T t
CROSS JOIN (SELECT MAX(h.fence) f FROM @H h WHERE {fellow} AND h.mode=1) e
WHERE t.name=$1 AND $8<0 AND (t.token='*0' OR {equal}) AND e.f IS NOT NULL
    AND NOT EXISTS (
        SELECT 1
        FROM @H h
        WHERE h.name=$1 AND h.mode<2 AND h.token IN ($2,CONCAT('!',$2))
    )
ON DUPLICATE KEY UPDATE mode=1, fence=VALUES(fence), version=VALUES(version),
    ttl_ms=$3, acquired_at={time}, expires_at=VALUES(expires_at), owner=$4,
    note=$5;
UPDATE @H h
JOIN @T t ON t.name=h.name
SET h.ttl_ms=GREATEST(h.ttl_ms,$3),
    @{h.expires_at=GREATEST(h.expires_at,{end})@|h.version=t.version+2@}
WHERE {mine} AND t.name=$1 AND $8<0 AND (t.token='*0' OR {equal});
UPDATE @T t
CROSS JOIN {full}
CROSS JOIN (SELECT COUNT(*) n FROM @H h WHERE {mine}) b
SET t.token='*0', t.owner=NULL, t.note=NULL, t.ttl_ms=a.m,
    @{t.acquired_at={time},t.expires_at=a.e@|t.version=t.version+2@}
WHERE t.name=$1 AND $8<0 AND (t.token='*0' OR {equal}) AND a.n>0 AND b.n>0;
@(DELETE q
FROM @Q q
JOIN @T t ON t.name=q.name
JOIN @H h ON h.name=q.name
WHERE q.name=$1 AND q.token=$2 AND $8<0 AND t.token='*0' AND {mine};@)
SELECT IF(
        t.token='*0' AND $8<0,
        COALESCE((SELECT h.fence FROM @H h WHERE {mine}),0), 0
    ) hf,
    IF(
        ($8>=0 AND {equal}) OR (t.token='*0' AND EXISTS (
            SELECT 1
            FROM @H h
            WHERE {fellow} AND h.permits=0 AND h.mode=IF($8<0,0,1)
        )), 1, 0
    )
FROM @T t
WHERE t.name=$1;
COMMIT;
