-- SPDX-License-Identifier: MIT
--
-- reenter.sql - owner ids that count across processes, on PostgreSQL; see
-- holders.sql for the parameters, and backend/sql/reenter.c for what this
-- promises.  $4 is the owner id; $8 is -1 of an exclusive claim, 0 of one that
-- shares.  @(a@) is there only where there is a queue.

-- let: now = statement_timestamp()
-- let: end = {now}+$3*interval '1 ms'
-- let: live = (h.expires_at IS NULL OR h.expires_at>{now})
-- let: full = (SELECT count(*) n,max(expires_at) e,max(ttl_ms) m FROM @H h WHERE h.name=$1 AND h.mode<2 AND {live}) a
-- let: equal = (t.owner=$4 AND t.token<>$2 AND t.token!~'^[!*]' @{AND t.expires_at>{now}@|@})
-- let: fellow = h.name=$1 AND h.owner=$4 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live}
-- Observers: observe.sql.
-- let: observes = o.name IN ($1,''::bytea) AND o.kind<-2 AND o.expires_at>clock_timestamp() AND (o.kind=-3 OR substring($1 for length(o.owner))=o.owner)
-- let: seen = (SELECT max(pg_notify(o.channel,'c'||encode($1,'hex'))::text) FROM @Q o WHERE {observes})
-- let: mine = h.name=$1 AND h.token=$2 AND h.mode=1 AND h.kept=0

-- With strategy version the first has the next version and the second that after
-- it: no two are equal.
-- name: join
SELECT 1 FROM @T WHERE name=$1 FOR UPDATE;
DELETE FROM @H h
USING @T t
WHERE t.name=$1 AND h.name=$1 AND h.mode<2 AND $8<0 AND (NOT {live} OR {equal});
INSERT INTO @H (
    name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,
    expires_at,owner,note
)
SELECT $1, t.token, 1, 0, -1, t.fence, @{0@|t.version+1@}, t.ttl_ms, 0,
    @{t.acquired_at,t.expires_at@|{now},NULL::timestamptz@}, t.owner, t.note
FROM @T t
WHERE t.name=$1 AND $8<0 AND {equal};
INSERT INTO @H AS h (
    name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,
    expires_at,owner,note
)
SELECT $1, $2, 1, 0, -1, e.fence, @{0@|t.version+2@}, $3, 0, {now},
    @{{end}@|NULL::timestamptz@}, $4, $5
FROM @T t,
    (SELECT max(h.fence) fence FROM @H h WHERE {fellow} AND h.mode=1) e
WHERE t.name=$1 AND $8<0 AND (t.token='*0' OR {equal}) AND e.fence IS NOT NULL
    AND NOT EXISTS (
        SELECT 1
        FROM @H h
        WHERE h.name=$1 AND h.mode<2 AND h.token IN ($2,'!'||$2)
    )
ON CONFLICT (name,token) DO UPDATE
SET mode=1, fence=excluded.fence, version=excluded.version, ttl_ms=$3,
    acquired_at={now}, expires_at=excluded.expires_at, owner=$4, note=$5
WHERE h.mode=2;
UPDATE @H h
SET ttl_ms=greatest(h.ttl_ms,$3),
    @{expires_at=greatest(h.expires_at,{end})@|version=t.version+2@}
FROM @T t
WHERE {mine} AND t.name=$1 AND $8<0 AND (t.token='*0' OR {equal});
UPDATE @T t
SET token='*0', owner=NULL, note=NULL, ttl_ms=a.m,
    @{expires_at=a.e@|version=t.version+2@}
FROM {full}
WHERE t.name=$1 AND $8<0 AND (t.token='*0' OR {equal}) AND a.n>0
    AND EXISTS (SELECT 1 FROM @H h WHERE {mine});
@(DELETE FROM @Q q
WHERE q.name=$1 AND q.token=$2 AND $8<0
    AND EXISTS (SELECT 1 FROM @H h,@T t WHERE {mine} AND t.name=$1 AND t.token='*0');@)
SELECT CASE WHEN t.token='*0' AND $8<0 THEN
        coalesce((SELECT h.fence FROM @H h WHERE {mine}),0)
    ELSE 0 END hf,
    CASE WHEN ($8>=0 AND {equal}) OR (t.token='*0' AND EXISTS (
        SELECT 1
        FROM @H h
        WHERE {fellow} AND h.permits=0
            AND h.mode=CASE WHEN $8<0 THEN 0 ELSE 1 END
    )) THEN 1 ELSE 0 END
FROM @T t
WHERE t.name=$1
@(; SELECT {seen}@);
