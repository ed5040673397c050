-- SPDX-License-Identifier: MIT
--
-- queue.sql - first come, first served, on MariaDB and MySQL: see
-- postgres/queue.sql, which does the same, and holders.sql for what a script is
-- here.  Nobody is told: who waits looks (peek), the sooner the nearer it is to
-- the front.
--
-- Galera compares what two nodes have written: whatever changes a ticket or a
-- holder changes the row of the key, or has it locked.

-- let: time = CAST(@hf_now AS DATETIME(6))
-- let: begin = SET @hf_now=UTC_TIMESTAMP(6); START TRANSACTION
-- let: lock = {begin}; SELECT 1 FROM @T WHERE name=$1 FOR UPDATE
-- let: now_us = CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS UNSIGNED)
-- let: end = {time}+INTERVAL $3*1000 MICROSECOND
-- let: live = (h.expires_at IS NULL OR h.expires_at>{time})
-- let: left = (TIMESTAMPDIFF(MICROSECOND,{time},h.expires_at) DIV 1000+1)
-- let: left_ms = @{TIMESTAMPDIFF(MICROSECOND,{time},t.expires_at) DIV 1000+1@|0@}
-- let: gone = h.name=$1 AND (h.token=$2 OR ($7>0 AND h.fence=$7))
-- let: mine = h.name=$1 AND h.token=$2 AND h.mode=0 AND h.kept=0 AND h.permits=$8
-- let: full = (SELECT COUNT(*) n,MAX(h.expires_at) e,MAX(h.ttl_ms) m FROM @H h WHERE h.name=$1 AND h.mode<2 AND {live}) a
-- let: waits = q.name=$1 AND q.kind>-2 AND q.expires_at>{time}
-- let: ahead = o.name=$1 AND o.kind>-2 AND o.expires_at>{time} AND o.ticket<q.ticket
-- let: head = (SELECT q.* FROM @Q q WHERE {waits} AND q.token<>$2 ORDER BY q.ticket LIMIT 1)
-- let: first = (SELECT q.* FROM @Q q WHERE {waits} ORDER BY q.ticket LIMIT 1)
-- let: free = (t.token IS NULL OR @{t.expires_at<={time}@|t.version=$7@})
-- let: spoiled = CONCAT('!',$2)
-- let: broken = (EXISTS (SELECT 1 FROM @T t WHERE t.name=$1 AND t.token={spoiled}) OR EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.token={spoiled}))
-- let: gift = IF(k.token=$2,$3,LEAST(k.ttl_ms,5000))
-- let: granted = t.token=k.token, t.fence=GREATEST(t.fence+1,{now_us}), t.ttl_ms={gift}, t.owner=k.owner, t.note=k.note, @{t.acquired_at={time},t.expires_at={time}+INTERVAL {gift}*1000 MICROSECOND@|t.version=t.version+1@}
-- let: ticket = $1, $2, {now_us}, $8, $a, $3, {time}+INTERVAL $b*1000 MICROSECOND, $9, $4, $5
-- let: again = ON DUPLICATE KEY UPDATE nth=$a, ttl_ms=$3, expires_at={time}+INTERVAL $b*1000 MICROSECOND, channel=$9
-- let: columns = name,token,ticket,kind,nth,ttl_ms,expires_at,channel,owner,note
-- let: place = (SELECT COUNT(*) FROM @Q q JOIN @Q m ON m.name=$1 AND m.token=$2 WHERE {waits} AND q.ticket<=m.ticket)
-- let: given = t.name=$1 AND (t.token=$2 OR ($7>0 AND t.fence=$7 AND t.token NOT LIKE '*%' @{AND t.expires_at>{time}@|@}))
-- let: has = (EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.token=q.token) OR EXISTS (SELECT 1 FROM @T t WHERE t.name=$1 AND t.token=q.token))

-- name: create
CREATE TABLE IF NOT EXISTS @Q (
    name VARBINARY(1024) NOT NULL,
    token VARCHAR(33) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    ticket BIGINT NOT NULL, kind BIGINT NOT NULL, nth BIGINT NOT NULL,
    ttl_ms BIGINT NOT NULL, expires_at DATETIME(6) NOT NULL,
    channel VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    owner VARBINARY(128) NULL, note VARBINARY(256) NULL,
    PRIMARY KEY (name,token)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- Only what is free: nobody with a ticket waits for that.  See lease.sql.
-- let: open = token IS NULL
-- name: acquire
INSERT INTO @T (
    name,token,fence,ttl_ms,owner,note,@{acquired_at,expires_at@|version@}
)
VALUES (
    $1, $2, LAST_INSERT_ID({now_us}), $3, $4, $5,
    @{UTC_TIMESTAMP(6),UTC_TIMESTAMP(6)+INTERVAL $3*1000 MICROSECOND@|{now_us}@}
)
ON DUPLICATE KEY UPDATE
    fence=IF(
        token<=>$2, LAST_INSERT_ID(fence),
        IF(
            {open}, LAST_INSERT_ID(GREATEST(fence+1,{now_us})),
            fence+LAST_INSERT_ID(0)
        )
    ),
    ttl_ms=IF(token<=>$2,GREATEST(ttl_ms,$3),IF({open},$3,ttl_ms)),
    owner=IF(token<=>$2 OR {open},$4,owner),
    note=IF(token<=>$2 OR {open},$5,note),
    @{acquired_at=IF({open},UTC_TIMESTAMP(6),acquired_at),@|@}
    token=IF({open},$2,token),
    @{expires_at=IF(
        token=$2,
        GREATEST(
            COALESCE(
                expires_at,UTC_TIMESTAMP(6)+INTERVAL $3*1000 MICROSECOND
            ),
            UTC_TIMESTAMP(6)+INTERVAL $3*1000 MICROSECOND
        ), expires_at
    )@|version=IF(token=$2,version+1,version)@};

-- The same for a row that is there: what acquire asks of each column is asked once.
-- name: retake
UPDATE @T
SET fence=LAST_INSERT_ID(GREATEST(fence+1,{now_us})), token=$2, owner=$4,
    note=$5, ttl_ms=$3,
    @{acquired_at=UTC_TIMESTAMP(6),
    expires_at=UTC_TIMESTAMP(6)+INTERVAL $3*1000 MICROSECOND
    @|version=version+1@}
WHERE name=$1 AND NOT token<=>$2 AND {open};

-- name: release
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,@{expires_at=NULL@|version=version+1@}
WHERE name=$1 AND token=$2
    AND NOT EXISTS (SELECT 1 FROM @Q q WHERE q.name=$1 AND q.kind>-2);

-- name: peek
SELECT IF(t.token=$2,t.fence,0),
    @{TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),t.expires_at) DIV 1000@|0@},
    @{0@|t.version@}, t.ttl_ms,
    t.token IS NULL OR @{t.expires_at<=UTC_TIMESTAMP(6)@|t.version=$7@}
        OR t.token LIKE '*%' OR m.token IS NULL
        OR m.expires_at<UTC_TIMESTAMP(6)+INTERVAL $b*500 MICROSECOND,
    -1, NULL,
    (
        SELECT COUNT(*)
        FROM @Q q
        WHERE q.name=$1 AND q.kind>-2 AND q.ticket<=m.ticket
            AND q.expires_at>UTC_TIMESTAMP(6)
    )
FROM @T t
LEFT JOIN @Q m ON m.name=$1 AND m.token=$2
WHERE t.name=$1;

-- The same where the lock is held: only a ticket is to be taken, by a statement
-- that locks the row of the key; if it was not, there is no row, and join is next.
-- Both are transactions of their own.
-- name: ticket
INSERT INTO @Q ({columns})
SELECT $1, $2, {now_us}, $8, $a, $3,
    UTC_TIMESTAMP(6)+INTERVAL $b*1000 MICROSECOND, $9, $4, $5
FROM @T t
WHERE t.name=$1 AND t.token<>$2 AND t.token<>{spoiled}
    AND t.token NOT LIKE '*%' AND $6=1
    AND @{t.expires_at>UTC_TIMESTAMP(6)@|t.version<>$7@}
FOR UPDATE
ON DUPLICATE KEY UPDATE nth=$a, ttl_ms=$3,
    expires_at=UTC_TIMESTAMP(6)+INTERVAL $b*1000 MICROSECOND;
SELECT 0 hf,
    @{TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),t.expires_at) DIV 1000@|0@},
    @{0@|t.version@}, t.ttl_ms, 0, -1, NULL,
    (
        SELECT COUNT(*)
        FROM @Q q
        WHERE q.name=$1 AND q.kind>-2 AND q.ticket<=m.ticket
            AND q.expires_at>UTC_TIMESTAMP(6)
    )
FROM @T t
JOIN @Q m ON m.name=$1 AND m.token=$2
WHERE t.name=$1 AND t.token<>$2 AND t.token NOT LIKE '*%'
    AND @{t.expires_at>UTC_TIMESTAMP(6)@|t.version<>$7@};

-- name: join
{lock};
INSERT INTO @Q ({columns})
SELECT {ticket}
FROM @T t
WHERE t.name=$1 AND (t.token IS NULL OR (t.token<>$2
    AND (t.token<>{spoiled} OR {free})
    AND (t.token NOT LIKE '*%' OR t.token='*0')))
    AND NOT EXISTS (SELECT 1 FROM @Q q WHERE {waits} AND q.kind>0)
{again};
UPDATE @T t
CROSS JOIN {first} k
SET {granted}
WHERE t.name=$1 AND k.kind<0 AND {free};
DELETE q
FROM @Q q
JOIN @T t ON t.name=q.name
WHERE q.name=$1 AND (q.expires_at<={time} OR (q.token=$2 AND $6=0)
    OR q.token=t.token);
UPDATE @T
SET ttl_ms=GREATEST(ttl_ms,$3),
    @{expires_at=GREATEST(expires_at,{end})@|version=version+1@}
WHERE name=$1 AND token=$2;
SELECT CASE t.token WHEN $2 THEN t.fence WHEN {spoiled} THEN -1 ELSE 0 END hf,
    {left_ms}, @{0@|t.version@}, t.ttl_ms, t.token IS NULL, -1,
    IF(
        t.token LIKE '*%', t.token,
        (
            SELECT CONCAT('*',q.kind)
            FROM @Q q
            WHERE {waits} AND q.kind>0
            LIMIT 1
        )
    ),
    {place}
FROM @T t
WHERE t.name=$1;
COMMIT;

-- name: pass
{lock};
SELECT 1 hf,
    IF(
        {given}, COALESCE((SELECT k.kind>=0 FROM {head} k),0),
        t.token LIKE '*%' AND EXISTS (SELECT 1 FROM {head} k)
    ),
    (SELECT COUNT(*) FROM @Q q WHERE {waits} AND q.token<>$2)>1, NULL
FROM @T t
WHERE t.name=$1 AND ({given}
    OR EXISTS (SELECT 1 FROM @Q q WHERE q.name=$1 AND q.token=$2));
UPDATE @T t
LEFT JOIN {head} k ON k.kind<0
SET t.token=k.token,
    t.fence=IF(k.token IS NULL,t.fence,GREATEST(t.fence+1,{now_us})),
    t.ttl_ms=COALESCE(LEAST(k.ttl_ms,5000),t.ttl_ms), t.owner=k.owner,
    t.note=k.note,
    @{t.acquired_at={time},
    t.expires_at={time}+INTERVAL LEAST(k.ttl_ms,5000)*1000 MICROSECOND
    @|t.version=t.version+1@}
WHERE {given};
DELETE q
FROM @Q q
JOIN @T t ON t.name=q.name
WHERE q.name=$1 AND (q.token=$2 OR q.expires_at<={time} OR q.token=t.token);
COMMIT;

-- let: plain = UPDATE @T t CROSS JOIN {first} k SET {granted} WHERE t.name=$1 AND k.kind<0 AND t.token IS NULL
-- let: slot = IF(q.kind=0,-1,(SELECT MIN(c.slot) FROM (SELECT 0 slot UNION ALL SELECT h.slot+1 FROM @H h WHERE h.name=$1 AND h.mode=0) c WHERE c.slot<q.kind AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=0 AND h.slot=c.slot)))
-- Who waits while its owner id has a permit joins that by its own try, and is passed
-- none: reenter.c (7).
-- let: joins = (q.kind>0 AND q.owner IS NOT NULL AND EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.owner=q.owner AND h.mode=0 AND h.permits=q.kind AND h.kept=0 AND h.token NOT LIKE '!%' AND {live}))
-- let: front = (SELECT MIN(q.ticket) n FROM @Q q WHERE {waits} AND NOT {joins}) f
-- let: group = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,expires_at,owner,note) SELECT $1, k.token, 0, k.kind, k.slot, GREATEST(t.fence+1,{now_us})+k.nr, @{0@|t.version+1+k.nr@}, k.ms, 0, {time}, @{{time}+INTERVAL k.ms*1000 MICROSECOND@|NULL@}, k.owner, k.note FROM @T t CROSS JOIN (SELECT q.*, IF(q.token=$2,$3,LEAST(q.ttl_ms,5000)) ms, {slot} slot, (SELECT COUNT(*) FROM @Q o WHERE {ahead}) nr FROM @Q q CROSS JOIN {front} WHERE {waits} AND CASE WHEN q.kind>0 THEN q.ticket=f.n ELSE q.kind=0 AND NOT EXISTS (SELECT 1 FROM @Q o WHERE {ahead} AND o.kind<>q.kind) END) k WHERE t.name=$1 AND k.slot IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.token IN (k.token,CONCAT('!',k.token))) AND (t.token IS NULL OR (t.token=CONCAT('*',k.kind) AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=1))) AND (k.kind>0 OR NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=2))
-- let: counted = UPDATE @T t CROSS JOIN (SELECT MAX(h.permits) p,MAX(h.fence) f,MAX(h.version) v FROM @H h WHERE h.name=$1 AND h.mode=0 AND (h.token=$2 OR h.token IN (SELECT q.token FROM @Q q WHERE q.name=$1))) g CROSS JOIN {full} SET t.token=CONCAT('*',g.p), t.fence=GREATEST(t.fence,g.f), t.ttl_ms=a.m, t.owner=NULL, t.note=NULL, @{t.acquired_at={time},t.expires_at=a.e@|t.version=GREATEST(t.version+1,g.v)@} WHERE t.name=$1 AND g.p IS NOT NULL AND a.n>0
-- let: told = DELETE q FROM @Q q WHERE q.name=$1 AND (q.expires_at<={time} OR (q.token=$2 AND ($6=0 OR {broken})) OR {has})
-- let: admit = {plain}; {group}; {counted}; {told}
-- let: over = DELETE h FROM @H h JOIN @T t ON t.name=h.name WHERE t.name=$1 AND h.name=$1 AND (NOT {live} OR (h.mode<2 AND (t.token IS NULL OR t.token NOT LIKE '*%' OR @{t.expires_at<={time}@|h.version=$7 OR ($8<=0 AND t.version=$7)@})))
-- let: freed = UPDATE @T t SET t.token=NULL,@{t.expires_at=NULL@|t.version=t.version+1@} WHERE t.name=$1 AND t.token<>$2 AND ((t.token LIKE '*%' AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode<2)) OR @{t.expires_at<={time}@|(t.token NOT LIKE '*%' AND t.version=$7)@})
-- let: next = EXISTS (SELECT 1 FROM @Q q WHERE {waits} AND q.kind>0 AND NOT {joins} AND t.token=CONCAT('*',q.kind) AND (SELECT COUNT(DISTINCT h.slot) FROM @H h WHERE h.name=$1 AND h.mode=0)<q.kind)
-- Equal owner ids have one permit together: backend/sql/reenter.c.
-- let: rejoin = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,expires_at,owner,note) SELECT $1, $2, 0, $8, h.slot, h.fence, @{0@|t.version+1@}, $3, 0, {time}, @{{end}@|NULL@}, $4, $5 FROM @T t CROSS JOIN @H h WHERE t.name=$1 AND $8>0 AND t.token=CONCAT('*',$8) AND h.name=$1 AND h.owner=$4 AND h.mode=0 AND h.permits=$8 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live} AND NOT EXISTS (SELECT 1 FROM @H o WHERE o.name=$1 AND o.token IN ($2,CONCAT('!',$2))) LIMIT 1

-- name: enter
{begin};
INSERT INTO @T (name,fence,ttl_ms@{@|,version@}) VALUES ($1,0,0@{@|,{now_us}@})
ON DUPLICATE KEY UPDATE name=name;
{over};
{freed};
{rejoin};
INSERT INTO @Q ({columns})
SELECT {ticket}
FROM @T t
WHERE t.name=$1 AND NOT t.token<=>$2
    AND NOT EXISTS (SELECT 1 FROM @H h WHERE {mine})
    AND GREATEST($8,0)=COALESCE(
        IF(
            t.token LIKE '*%', CAST(SUBSTRING(t.token,2) AS SIGNED),
            IF(t.token IS NULL,NULL,0)
        ),
        (SELECT GREATEST(q.kind,0) FROM @Q q WHERE {waits} LIMIT 1),
        GREATEST($8,0)
    )
{again};
{admit};
UPDATE @H h
JOIN @T t ON t.name=h.name
SET h.ttl_ms=GREATEST(h.ttl_ms,$3),
    @{h.expires_at=GREATEST(h.expires_at,{end})@|h.version=t.version+1@}
WHERE {mine} AND t.name=$1;
UPDATE @T t
CROSS JOIN {full}
CROSS JOIN (SELECT COUNT(*) n FROM @H h WHERE {mine}) b
SET t.ttl_ms=a.m,@{t.acquired_at={time},t.expires_at=a.e@|t.version=t.version+1@}
WHERE t.name=$1 AND t.token LIKE '*%' AND a.n>0 AND b.n>0;
UPDATE @T
SET ttl_ms=GREATEST(ttl_ms,$3),
    @{expires_at=GREATEST(expires_at,{end})@|version=version+1@}
WHERE name=$1 AND token=$2 AND $8<0;
SELECT COALESCE(
        g.fence, CASE WHEN t.token=$2 THEN t.fence WHEN {broken} THEN -1 END, 0
    ) hf,
    CASE WHEN t.token IS NULL THEN 0
        WHEN t.token LIKE '*%' THEN
            (
                SELECT IF($8>0,MIN({left}),MAX({left}))
                FROM @H h
                WHERE h.name=$1 AND h.mode<2
            )
        ELSE {left_ms} END,
    @{0@|IF($8>0 AND t.token LIKE '*%',d.version,t.version)@},
    @{0@|IF($8>0 AND t.token LIKE '*%',d.ttl_ms,t.ttl_ms)@},
    {next}, g.slot,
    COALESCE(
        IF(t.token LIKE '*%',t.token,IF(t.token IS NULL,NULL,'*0')),
        (
            SELECT CONCAT('*',GREATEST(q.kind,0))
            FROM @Q q
            WHERE {waits} AND q.token<>$2
            LIMIT 1
        )
    ),
    {place}
FROM @T t
LEFT JOIN (SELECT h.fence,h.slot FROM @H h WHERE {mine}) g ON 1=1
LEFT JOIN (
    SELECT h.version,h.ttl_ms
    FROM @H h
    WHERE h.name=$1 AND h.mode=0 AND h.kept=0
    ORDER BY h.version
    LIMIT 1
) d ON 1=1
WHERE t.name=$1;
COMMIT;

-- name: leave
{lock};
SELECT 1 hf
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.name=$1 AND {gone} AND (t.token LIKE '*%' OR h.mode=2)
UNION ALL
SELECT 1 FROM @Q q WHERE q.name=$1 AND q.token=$2;
DELETE FROM @Q WHERE name=$1 AND token=$2;
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
{admit};
COMMIT;

-- name: admit
{lock};
{over};
{freed};
{admit};
SELECT 1 hf FROM @T t WHERE t.name=$1 AND {next};
COMMIT;

-- let: waiters = (SELECT COUNT(*) FROM @Q q WHERE q.name=l.name AND q.kind>-2 AND q.expires_at>UTC_TIMESTAMP(6))
-- let: lasts = @{TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expires_at) DIV 1000@|NULL@}
-- let: since = @{TIMESTAMPDIFF(MICROSECOND,acquired_at,UTC_TIMESTAMP(6)) DIV 1000@|NULL@}

-- name: look
SELECT token, fence, {lasts}, {since}, owner, note, @{0@|version@}, ttl_ms,
    {waiters}, name
FROM @T l
WHERE name=$1;

-- From the fence $7 on also what is free; of that the newest, if $7 is -1.
-- let: newest = (SELECT MAX(n.fence) FROM @T n WHERE LEFT(n.name,LENGTH($1))=$1)
-- name: list
SELECT token, fence, {lasts}, {since}, owner, note, @{0@|version@}, ttl_ms,
    {waiters}, name
FROM @T l
WHERE LEFT(name,LENGTH($1))=$1
    AND (
        (token IS NOT NULL @{AND expires_at>UTC_TIMESTAMP(6)@|@})
        OR ($7>=0 AND fence>=$7) OR ($7<0 AND fence={newest})
    );

-- name: waiters
SELECT token, owner, note, kind,
    (CAST({now_us} AS SIGNED)-ticket) DIV 1000,
    TIMESTAMPDIFF(MICROSECOND,UTC_TIMESTAMP(6),expires_at) DIV 1000
FROM @Q
WHERE name=$1 AND kind>-2 AND expires_at>UTC_TIMESTAMP(6)
ORDER BY ticket, token;
