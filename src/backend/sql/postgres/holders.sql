-- SPDX-License-Identifier: MIT
--
-- holders.sql - shared locks, permits and the minimum hold on PostgreSQL.
--
-- @T is the table of locks, @H that of holders; $1 to $8 are the parameters of
-- backend/sql/sql.h, pasted in by script.c.  @{a@|b@} is a with strategy lease
-- and b with version.  Each text is sent as one message, so it is one
-- transaction, and each of its statements has a snapshot of its own: what
-- follows the one that locks the row of the key sees what was committed before.
-- share.c says what all this promises.
--
-- statement_timestamp() is the arrival of the message, the same for all its
-- statements, and not earlier than the moment from which a holder counts.

-- let: now = statement_timestamp()
-- let: now_us = (extract(epoch from clock_timestamp())*1000000)::int8
-- let: end = {now}+$3*interval '1 ms'
-- let: live = (h.expires_at IS NULL OR h.expires_at>{now})
-- let: named = h.name=$1 AND h.token=$2 AND h.fence=$7 AND h.kept=0
-- let: ours = {named} AND {live}
-- let: mine = h.name=$1 AND h.token=$2 AND h.mode=0 AND h.kept=0 AND h.permits=$8
-- let: left = (extract(epoch from h.expires_at-{now})*1000)::int8+1
-- let: key = t.name=$1 AND h.name=$1
-- let: gone = h.name=$1 AND (h.token=$2 OR ($7>0 AND h.fence=$7))
-- Observers: observe.sql.
-- let: observes = o.name IN ($1,''::bytea) AND o.kind<-2 AND o.expires_at>clock_timestamp() AND (o.kind=-3 OR substring($1 for length(o.owner))=o.owner)
-- let: seen = (SELECT max(pg_notify(o.channel,'c'||encode($1,'hex'))::text) FROM @Q o WHERE {observes})
-- let: full = (SELECT count(*) n,max(expires_at) e,max(ttl_ms) m FROM @H h WHERE h.name=$1 AND h.mode<2 AND {live}) a

-- mode is 0 of one that shares or has a permit, 1 of an exclusive one that is
-- kept, 2 of an exclusive claim that waits.
-- name: create
CREATE TABLE IF NOT EXISTS @H (
    name bytea NOT NULL, token text NOT NULL, mode bigint NOT NULL,
    permits bigint NOT NULL, slot bigint NOT NULL, fence bigint NOT NULL,
    version bigint NOT NULL, ttl_ms bigint NOT NULL, kept bigint NOT NULL,
    acquired_at timestamptz, expires_at timestamptz, owner bytea, note bytea,
    PRIMARY KEY (name,token)
) WITH (fillfactor=50);

-- Equal owner ids have one permit together: backend/sql/reenter.c.
-- let: rejoin = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,expires_at,owner,note) SELECT $1, $2, 0, $8, h.slot, h.fence, @{0@|t.version+1@}, $3, 0, {now}, @{{end}@|NULL::timestamptz@}, $4, $5 FROM @T t,@H h WHERE t.name=$1 AND $8>0 AND t.token='*'||($8) AND h.name=$1 AND h.owner=$4 AND h.mode=0 AND h.permits=$8 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live} AND NOT EXISTS (SELECT 1 FROM @H o WHERE o.name=$1 AND o.token IN ($2,'!'||$2)) LIMIT 1

-- name: enter
INSERT INTO @T (name,fence,ttl_ms@{@|,version@}) VALUES ($1,0,0@{@|,{now_us}@})
ON CONFLICT (name) DO NOTHING;
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
DELETE FROM @H h
USING @T t
WHERE {key} AND (NOT {live}
    OR (h.mode<2 AND (t.token IS NULL OR t.token NOT LIKE '*%'
        OR @{t.expires_at<={now}@|h.version=$7@})));
{rejoin};
INSERT INTO @H (
    name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,
    expires_at,owner,note
)
SELECT $1, $2, 0, $8, s.slot, greatest(t.fence+1,{now_us}),
    @{0@|t.version+1@}, $3, 0, {now}, @{{end}@|NULL::timestamptz@}, $4, $5
FROM @T t,
    (
        SELECT CASE WHEN $8=0 THEN -1
            ELSE (
                SELECT min(c.slot)
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
            ) END slot
    ) s
WHERE t.name=$1 AND s.slot IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM @H h WHERE h.name=$1 AND h.token IN ($2,'!'||$2)
) AND (t.token IS NULL
    OR @{t.expires_at<={now}@|(t.token NOT LIKE '*%' AND t.version=$7)@}
    OR (t.token LIKE '*%'
        AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode<2))
    OR (t.token='*'||$8
        AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=1)))
    AND ($8>0
        OR NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=2));
UPDATE @H h
SET ttl_ms=greatest(h.ttl_ms,$3),
    @{expires_at=greatest(h.expires_at,{end})@|version=t.version+1@}
FROM @T t
WHERE {mine} AND t.name=$1;
UPDATE @T t
SET token='*'||$8, fence=greatest(t.fence,g.fence), ttl_ms=a.m, owner=NULL,
    note=NULL, wanted=t.wanted AND coalesce(t.token='*'||$8,false),
    @{acquired_at={now},expires_at=a.e@|version=t.version+1@}
FROM (SELECT h.fence FROM @H h WHERE {mine}) g, {full}
WHERE t.name=$1;
WITH w AS (
    UPDATE @T
    SET wanted=true
    WHERE name=$1 AND $6=1 AND NOT wanted AND token IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM @H h WHERE {mine})
    RETURNING 1
)
SELECT pg_notify(@N,'w'||encode($1,'hex')) FROM w;
SELECT coalesce(g.fence,0) hf,
    CASE WHEN t.token IS NULL THEN 0
        WHEN t.token LIKE '*%' THEN
            (
                SELECT CASE WHEN $8>0 THEN min({left}) ELSE max({left}) END
                FROM @H h
                WHERE h.name=$1
                    AND CASE WHEN $8>0 THEN h.mode=0 ELSE h.mode>0 END
            )
        ELSE @{(extract(epoch from t.expires_at-{now})*1000)::int8+1@|0@} END,
    @{0@|CASE WHEN t.token NOT LIKE '*%' THEN t.version ELSE d.version END@},
    @{0@|CASE WHEN t.token NOT LIKE '*%' THEN t.ttl_ms ELSE d.ttl_ms END@},
    0, g.slot, t.token
FROM @T t
LEFT JOIN (SELECT h.fence,h.slot FROM @H h WHERE {mine}) g ON true
LEFT JOIN (
    SELECT h.version,h.ttl_ms
    FROM @H h
    WHERE h.name=$1 AND h.mode=CASE WHEN $8>0 THEN 0 ELSE 1 END
        AND h.kept=0
    ORDER BY h.version
    LIMIT 1
) d ON true
WHERE t.name=$1;

-- The claim has found the key shared and will wait ($6): no more may share it
-- until it has had its turn, or asks no more.  If all who shared it are gone the
-- key is free.
-- name: door
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
DELETE FROM @H h WHERE h.name=$1 AND NOT {live};
INSERT INTO @H AS h (
    name,token,mode,permits,slot,fence,version,ttl_ms,kept,expires_at
)
SELECT $1,$2,2,0,-1,0,0,$3,0,{end}
FROM @T t
WHERE t.name=$1 AND $6=1 AND t.token LIKE '*%'
ON CONFLICT (name,token) DO UPDATE SET expires_at={end} WHERE h.mode=2;
UPDATE @T t
SET token=NULL@{,expires_at=NULL@|,version=t.version+1@}
WHERE t.name=$1 AND t.token LIKE '*%'
    AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode<2);
SELECT (t.token IS NULL OR t.token NOT LIKE '*%')::int hf,
    (
        SELECT CASE WHEN count(*)=count(h.expires_at) THEN max({left}) END
        FROM @H h
        WHERE h.name=$1 AND h.mode<2
    )
FROM @T t
WHERE t.name=$1;

-- It was granted.
-- name: door_end
DELETE FROM @H h WHERE h.name=$1 AND h.token=$2 AND h.mode=2;

-- Also one that has lapsed, as long as nobody has come since: share.c (3).
-- name: stay
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
UPDATE @H h
SET ttl_ms=CASE WHEN $6=1 THEN $3 ELSE greatest(h.ttl_ms,$3) END,
    @{expires_at=CASE
        WHEN $6=1 OR h.expires_at>{now}+h.ttl_ms*interval '1 ms'
        THEN {end} ELSE greatest(h.expires_at,{end}) END@|version=t.version+1@}
FROM @T t
WHERE t.name=$1 AND t.token LIKE '*%' AND {named};
UPDATE @T t
SET ttl_ms=a.m,@{expires_at=a.e@|version=t.version+1@}
FROM {full}
WHERE t.name=$1 AND t.token LIKE '*%' AND a.n>0;
SELECT 1 hf
FROM @T t,@H h
WHERE t.name=$1 AND t.token LIKE '*%' AND {named};

-- By token, or by fence ($7); a claim that waits, too.
-- name: leave
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
SELECT 1 hf
FROM @T t,@H h
WHERE t.name=$1 AND {gone} AND (t.token LIKE '*%' OR h.mode=2);
UPDATE @T t
SET token=CASE WHEN a.n>0 THEN t.token END, ttl_ms=coalesce(a.m,t.ttl_ms),
    @{expires_at=a.e@|version=t.version+1@}
FROM (
    SELECT count(*) n,max(expires_at) e,max(ttl_ms) m
    FROM @H h
    WHERE h.name=$1 AND h.mode<2 AND {live} AND NOT ({gone})
) a
WHERE t.name=$1 AND t.token LIKE '*%'
    AND EXISTS (SELECT 1 FROM @H h WHERE {gone} AND h.mode<2);
SELECT pg_notify(@N,'f'||encode($1,'hex'))
FROM @T t,@H h
WHERE t.name=$1 AND t.wanted AND {gone}
    AND (t.token IS NULL OR h.permits>0 OR h.mode=2);
DELETE FROM @H h WHERE {gone};

-- See backend/sql/sql.c (6).
-- name: break
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
UPDATE @H h
SET token='!'||h.token
FROM @T t
WHERE {key} AND t.token LIKE '*%' AND h.fence=$7 AND h.mode<2 AND {live}
    AND h.token NOT LIKE '!%';
SELECT 1 hf
FROM @T t,@H h
WHERE {key} AND t.token LIKE '*%' AND h.fence=$7 AND h.mode<2 AND {live}
@(; SELECT {seen}@);

-- A plain one ($8<0) is there if its owner id was joined.
-- let: kind = CASE WHEN $8<0 THEN h.mode=1 ELSE h.mode=0 AND h.permits=$8 END
-- name: take
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
UPDATE @H h
SET token=$2
FROM @T t
WHERE {key} AND t.token LIKE '*%' AND h.fence=$7 AND {kind} AND h.kept=0
    AND {live} AND h.token IN ($2,convert_from($5,'UTF8'));
SELECT 1 hf,h.slot
FROM @T t,@H h
WHERE t.name=$1 AND t.token LIKE '*%' AND {ours} AND {kind};

-- The row of the key becomes that of one who shares it, or of one who is kept
-- for $3 ms; what is so already stays.  One that is left of an owner id that was
-- joined shares it, too.
-- name: downgrade
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
DELETE FROM @H h
USING @T t
WHERE {key} AND t.token=$2 AND t.fence=$7 AND h.mode<2;
INSERT INTO @H (
    name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,
    expires_at,owner,note
)
SELECT $1, $2, 0, 0, -1, t.fence, @{0@|t.version+1@}, t.ttl_ms, 0,
    @{t.acquired_at,t.expires_at@|{now},NULL::timestamptz@}, t.owner, t.note
FROM @T t
WHERE t.name=$1 AND t.token=$2 AND t.fence=$7;
UPDATE @H h
SET mode=0
FROM @T t
WHERE t.name=$1 AND t.token='*0' AND {ours} AND h.mode=1 AND NOT EXISTS (
    SELECT 1
    FROM @H h
    WHERE h.name=$1 AND h.token<>$2 AND h.mode=1 AND {live}
);
SELECT pg_notify(@N,'f'||encode($1,'hex'))
FROM @T t
WHERE t.name=$1 AND t.wanted AND ((t.token=$2 AND t.fence=$7)
    OR (t.token='*0' AND EXISTS (SELECT 1 FROM @H h WHERE {ours})));
UPDATE @T t
SET token='*0',owner=NULL,note=NULL@{@|,version=t.version+1@}
WHERE t.name=$1 AND t.token=$2 AND t.fence=$7;
SELECT 1+h.mode hf
FROM @T t,@H h
WHERE t.name=$1 AND t.token='*0' AND {ours} AND h.mode<2
@(; SELECT {seen}@);

-- name: keep
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
DELETE FROM @H h
USING @T t
WHERE {key} AND t.token=$2 AND t.fence=$7 AND h.mode<2;
INSERT INTO @H (
    name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,
    expires_at,owner,note
)
SELECT $1, $2, 1, 0, -1, t.fence, 0, $3, 1, @{t.acquired_at@|{now}@}, {end},
    t.owner, t.note
FROM @T t
WHERE t.name=$1 AND t.token=$2 AND t.fence=$7;
UPDATE @T t
SET token='*0',owner=NULL,note=NULL@{@|,version=t.version+1@}
WHERE t.name=$1 AND t.token=$2 AND t.fence=$7;
UPDATE @H h
SET kept=1,ttl_ms=$3,expires_at={end}
FROM @T t
WHERE {key} AND t.token LIKE '*%' AND h.token=$2 AND h.fence=$7 AND {live};
UPDATE @T t
SET ttl_ms=a.m,@{expires_at=a.e@|version=t.version+1@}
FROM {full}
WHERE t.name=$1 AND t.token LIKE '*%' AND a.n>0;
SELECT 1 hf
FROM @T t,@H h
WHERE {key} AND t.token LIKE '*%' AND h.token=$2 AND h.fence=$7 AND h.kept=1
@(; SELECT {seen}@);

-- The newest first.
-- name: look
SELECT h.token, h.fence,
    (extract(epoch from h.expires_at-clock_timestamp())*1000)::int8,
    (extract(epoch from clock_timestamp()-h.acquired_at)*1000)::int8, h.owner,
    h.note, h.version, h.ttl_ms, t.wanted::int::int8, h.name, h.permits,
    h.slot, h.mode, h.kept
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.name=$1 AND t.token LIKE '*%' AND h.mode<2 AND {live}
ORDER BY h.fence DESC;

-- name: list
SELECT h.token, h.fence,
    (extract(epoch from h.expires_at-clock_timestamp())*1000)::int8,
    (extract(epoch from clock_timestamp()-h.acquired_at)*1000)::int8, h.owner,
    h.note, h.version, h.ttl_ms, t.wanted::int::int8, h.name, h.permits,
    h.slot, h.mode, h.kept
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.token LIKE '*%' AND h.mode<2 AND {live}
    AND substring(t.name for length($1))=$1
ORDER BY h.name,h.fence DESC;
