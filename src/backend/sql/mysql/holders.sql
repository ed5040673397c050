-- SPDX-License-Identifier: MIT
--
-- holders.sql - shared locks, permits and the minimum hold on MariaDB and MySQL;
-- see postgres/holders.sql, which does the same in the same order.
--
-- Each text is one message with one transaction in it, at READ COMMITTED: what
-- follows the statement that locks the row of the key sees what was committed
-- before.  The time is that of the arrival, for all of them.  Tables that are
-- joined in an update are set in no certain order, so nothing that is set there
-- is read, too.
--
-- Whatever changes a holder changes the row of its key, also where that seems to
-- be as it should: acquired_at is set anew.  Galera compares what two nodes have
-- written, and of two that write the same row one begins again.

-- let: time = CAST(@hf_now AS DATETIME(6))
-- let: begin = SET @hf_now=UTC_TIMESTAMP(6); START TRANSACTION
-- let: lock = {begin}; SELECT 1 FROM @T WHERE name=$1 FOR UPDATE
-- let: now_us = CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)
-- let: end = {time}+INTERVAL $3*1000 MICROSECOND
-- let: live = (h.expires_at IS NULL OR h.expires_at>{time})
-- let: named = h.name=$1 AND h.token=$2 AND h.fence=$7 AND h.kept=0
-- let: ours = {named} AND {live}
-- let: mine = h.name=$1 AND h.token=$2 AND h.mode=0 AND h.kept=0 AND h.permits=$8
-- let: left = (TIMESTAMPDIFF(MICROSECOND,{time},h.expires_at) DIV 1000+1)
-- let: key = t.name=$1 AND h.name=$1
-- let: gone = h.name=$1 AND (h.token=$2 OR ($7>0 AND h.fence=$7))
-- let: full = (SELECT COUNT(*) n,MAX(h.expires_at) e,MAX(h.ttl_ms) m FROM @H h WHERE h.name=$1 AND h.mode<2 AND {live}) a
-- let: columns = name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,expires_at,owner,note

-- name: create
CREATE TABLE IF NOT EXISTS @H (
    name VARBINARY(1024) NOT NULL,
    token VARCHAR(33) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode BIGINT NOT NULL, permits BIGINT NOT NULL, slot BIGINT NOT NULL,
    fence BIGINT NOT NULL, version BIGINT NOT NULL, ttl_ms BIGINT NOT NULL,
    kept BIGINT NOT NULL, acquired_at DATETIME(6) NULL,
    expires_at DATETIME(6) NULL, owner VARBINARY(128) NULL,
    note VARBINARY(256) NULL, PRIMARY KEY (name,token)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Equal owner ids have one permit together: backend/sql/reenter.c.
-- let: rejoin = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,expires_at,owner,note) SELECT $1, $2, 0, $8, h.slot, h.fence, @{0@|t.version+1@}, $3, 0, {time}, @{{end}@|NULL@}, $4, $5 FROM @T t CROSS JOIN @H h WHERE t.name=$1 AND $8>0 AND t.token=CONCAT('*',$8) AND h.name=$1 AND h.owner=$4 AND h.mode=0 AND h.permits=$8 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live} AND NOT EXISTS (SELECT 1 FROM @H o WHERE o.name=$1 AND o.token IN ($2,CONCAT('!',$2))) LIMIT 1

-- name: enter
{begin};
INSERT INTO @T (name,fence,ttl_ms@{@|,version@}) VALUES ($1,0,0@{@|,{now_us}@})
ON DUPLICATE KEY UPDATE name=name;
DELETE h
FROM @H h
JOIN @T t ON t.name=h.name
WHERE {key} AND (NOT {live}
    OR (h.mode<2 AND (t.token IS NULL OR t.token NOT LIKE '*%'
        OR @{t.expires_at<={time}@|h.version=$7@})));
{rejoin};
INSERT INTO @H ({columns})
SELECT $1, $2, 0, $8, s.slot, GREATEST(t.fence+1,{now_us}),
    @{0@|t.version+1@}, $3, 0, {time}, @{{end}@|NULL@}, $4, $5
FROM @T t
CROSS JOIN (
    SELECT IF(
        $8=0, -1,
        (
            SELECT MIN(c.slot)
            FROM (
                SELECT 0 slot
                UNION ALL
                SELECT h.slot+1 FROM @H h WHERE h.name=$1 AND h.mode=0
            ) c
            WHERE c.slot<$8 AND NOT EXISTS (
                SELECT 1
                FROM @H h
                WHERE h.name=$1 AND h.mode=0 AND h.slot=c.slot
            )
        )
    ) slot
) s
WHERE t.name=$1 AND s.slot IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM @H h WHERE h.name=$1 AND h.token IN ($2,CONCAT('!',$2))
) AND (t.token IS NULL
    OR @{t.expires_at<={time}@|(t.token NOT LIKE '*%' AND t.version=$7)@}
    OR (t.token LIKE '*%'
        AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode<2))
    OR (t.token=CONCAT('*',$8)
        AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=1)))
    AND ($8>0
        OR NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=2));
UPDATE @H h
JOIN @T t ON t.name=h.name
SET h.ttl_ms=GREATEST(h.ttl_ms,$3),
    @{h.expires_at=GREATEST(h.expires_at,{end})@|h.version=t.version+1@}
WHERE {mine} AND t.name=$1;
UPDATE @T t
CROSS JOIN (SELECT h.fence f FROM @H h WHERE {mine}) g
CROSS JOIN {full}
SET t.token=CONCAT('*',$8), t.fence=GREATEST(t.fence,g.f), t.ttl_ms=a.m,
    t.owner=NULL, t.note=NULL,
    @{t.acquired_at={time},t.expires_at=a.e@|t.version=t.version+1@}
WHERE t.name=$1;
SELECT COALESCE(g.fence,0) hf,
    CASE WHEN t.token IS NULL THEN 0
        WHEN t.token LIKE '*%' THEN
            (
                SELECT IF($8>0,MIN({left}),MAX({left}))
                FROM @H h
                WHERE h.name=$1 AND IF($8>0,h.mode=0,h.mode>0)
            )
        ELSE @{TIMESTAMPDIFF(MICROSECOND,{time},t.expires_at) DIV 1000+1@|0@} END,
    @{0@|IF(t.token NOT LIKE '*%',t.version,d.version)@},
    @{0@|IF(t.token NOT LIKE '*%',t.ttl_ms,d.ttl_ms)@},
    0, g.slot, t.token
FROM @T t
LEFT JOIN (SELECT h.fence,h.slot FROM @H h WHERE {mine}) g ON 1=1
LEFT JOIN (
    SELECT h.version,h.ttl_ms
    FROM @H h
    WHERE h.name=$1 AND h.mode=CASE WHEN $8>0 THEN 0 ELSE 1 END
        AND h.kept=0
    ORDER BY h.version
    LIMIT 1
) d ON 1=1
WHERE t.name=$1;
COMMIT;

-- name: door
{lock};
DELETE h
FROM @H h
WHERE h.name=$1 AND (NOT {live} OR (h.token=$2 AND h.mode=2));
INSERT INTO @H ({columns})
SELECT $1,$2,2,0,-1,0,0,$3,0,NULL,{end},NULL,NULL
FROM @T t
WHERE t.name=$1 AND $6=1 AND t.token LIKE '*%';
UPDATE @T t
SET t.token=NULL,@{t.expires_at=NULL@|t.version=t.version+1@}
WHERE t.name=$1 AND t.token LIKE '*%'
    AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode<2);
SELECT (t.token IS NULL OR t.token NOT LIKE '*%') hf,
    (
        SELECT IF(COUNT(*)=COUNT(h.expires_at),MAX({left}),NULL)
        FROM @H h
        WHERE h.name=$1 AND h.mode<2
    )
FROM @T t
WHERE t.name=$1;
COMMIT;

-- name: door_end
DELETE FROM @H WHERE name=$1 AND token=$2 AND mode=2;

-- name: stay
{lock};
UPDATE @H h
JOIN @T t ON t.name=h.name
SET h.ttl_ms=IF($6=1,$3,GREATEST(h.ttl_ms,$3)),
    @{h.expires_at=IF(
        $6=1 OR h.expires_at
            >{time}+INTERVAL GREATEST(h.ttl_ms,$3)*1000 MICROSECOND,
        {end}, GREATEST(h.expires_at,{end})
    )@|h.version=t.version+1@}
WHERE t.name=$1 AND t.token LIKE '*%' AND {named};
UPDATE @T t
CROSS JOIN {full}
SET t.ttl_ms=a.m,@{t.acquired_at={time},t.expires_at=a.e@|t.version=t.version+1@}
WHERE t.name=$1 AND t.token LIKE '*%' AND a.n>0;
SELECT 1 hf
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.name=$1 AND t.token LIKE '*%' AND {named};
COMMIT;

-- name: leave
{lock};
SELECT 1 hf
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.name=$1 AND {gone} AND (t.token LIKE '*%' OR h.mode=2);
UPDATE @T t
CROSS JOIN (
    SELECT COUNT(*) n,MAX(h.expires_at) e,MAX(h.ttl_ms) m
    FROM @H h
    WHERE h.name=$1 AND h.mode<2 AND {live} AND NOT ({gone})
) a
CROSS JOIN (SELECT COUNT(*) n FROM @H h WHERE {gone} AND h.mode<2) b
SET t.token=IF(a.n>0,t.token,NULL), t.ttl_ms=COALESCE(a.m,t.ttl_ms),
    @{t.acquired_at={time},t.expires_at=a.e@|t.version=t.version+1@}
WHERE t.name=$1 AND t.token LIKE '*%' AND b.n>0;
DELETE h FROM @H h WHERE {gone};
COMMIT;

-- name: break
{lock};
UPDATE @H h
JOIN @T t ON t.name=h.name
SET h.token=CONCAT('!',h.token)
WHERE {key} AND t.token LIKE '*%' AND h.fence=$7 AND h.mode<2 AND {live}
    AND h.token NOT LIKE '!%';
SELECT 1 hf
FROM @T t
JOIN @H h ON h.name=t.name
WHERE {key} AND t.token LIKE '*%' AND h.fence=$7 AND h.mode<2 AND {live};
COMMIT;

-- let: kind = IF($8<0,h.mode=1,h.mode=0 AND h.permits=$8)
-- name: take
{lock};
UPDATE @H h
JOIN @T t ON t.name=h.name
SET h.token=$2
WHERE {key} AND t.token LIKE '*%' AND h.fence=$7 AND {kind} AND h.kept=0
    AND {live} AND h.token IN ($2,$5);
SELECT 1 hf,h.slot
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.name=$1 AND t.token LIKE '*%' AND {ours} AND {kind};
COMMIT;

-- name: downgrade
{lock};
DELETE h
FROM @H h
JOIN @T t ON t.name=h.name
WHERE {key} AND t.token=$2 AND t.fence=$7 AND h.mode<2;
INSERT INTO @H ({columns})
SELECT $1, $2, 0, 0, -1, t.fence, @{0@|t.version+1@}, t.ttl_ms, 0,
    @{t.acquired_at,t.expires_at@|{time},NULL@}, t.owner, t.note
FROM @T t
WHERE t.name=$1 AND t.token=$2 AND t.fence=$7;
UPDATE @H h
JOIN @T t ON t.name=h.name
LEFT JOIN (
    SELECT COUNT(*) n
    FROM @H h
    WHERE h.name=$1 AND h.token<>$2 AND h.mode=1 AND {live}
) o ON 1=1
SET h.mode=0
WHERE t.name=$1 AND t.token='*0' AND {ours} AND h.mode=1 AND o.n=0;
UPDATE @T
SET token='*0',owner=NULL,note=NULL@{@|,version=version+1@}
WHERE name=$1 AND token=$2 AND fence=$7;
SELECT 1+h.mode hf
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.name=$1 AND t.token='*0' AND {ours} AND h.mode<2;
COMMIT;

-- name: keep
{lock};
DELETE h
FROM @H h
JOIN @T t ON t.name=h.name
WHERE {key} AND t.token=$2 AND t.fence=$7 AND h.mode<2;
INSERT INTO @H ({columns})
SELECT $1, $2, 1, 0, -1, t.fence, 0, $3, 1, @{t.acquired_at@|{time}@}, {end},
    t.owner, t.note
FROM @T t
WHERE t.name=$1 AND t.token=$2 AND t.fence=$7;
UPDATE @T
SET token='*0',owner=NULL,note=NULL@{@|,version=version+1@}
WHERE name=$1 AND token=$2 AND fence=$7;
UPDATE @H h
JOIN @T t ON t.name=h.name
SET h.kept=1,h.ttl_ms=$3,h.expires_at={end}
WHERE {key} AND t.token LIKE '*%' AND h.token=$2 AND h.fence=$7 AND {live};
UPDATE @T t
CROSS JOIN {full}
SET t.ttl_ms=a.m,@{t.acquired_at={time},t.expires_at=a.e@|t.version=t.version+1@}
WHERE t.name=$1 AND t.token LIKE '*%' AND a.n>0;
SELECT 1 hf
FROM @T t
JOIN @H h ON h.name=t.name
WHERE {key} AND t.token LIKE '*%' AND h.token=$2 AND h.fence=$7 AND h.kept=1;
COMMIT;

-- let: seen = (h.expires_at IS NULL OR h.expires_at>UTC_TIMESTAMP(6))

-- name: look
SELECT h.token, h.fence,
    TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),h.expires_at) DIV 1000,
    TIMESTAMPDIFF(MICROSECOND,h.acquired_at,UTC_TIMESTAMP(6)) DIV 1000,
    h.owner, h.note, h.version, h.ttl_ms, 0, h.name, h.permits, h.slot, h.mode,
    h.kept
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.name=$1 AND t.token LIKE '*%' AND h.mode<2 AND {seen}
ORDER BY h.fence DESC;

-- name: list
SELECT h.token, h.fence,
    TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),h.expires_at) DIV 1000,
    TIMESTAMPDIFF(MICROSECOND,h.acquired_at,UTC_TIMESTAMP(6)) DIV 1000,
    h.owner, h.note, h.version, h.ttl_ms, 0, h.name, h.permits, h.slot, h.mode,
    h.kept
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.token LIKE '*%' AND h.mode<2 AND {seen}
    AND LEFT(t.name,LENGTH($1))=$1
ORDER BY h.name,h.fence DESC;
