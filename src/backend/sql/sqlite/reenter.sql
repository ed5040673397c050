-- SPDX-License-Identifier: MIT
--
-- reenter.sql - owner ids that count across processes, on SQLite; see
-- postgres/reenter.sql, which does the same in the same order, and lease.sql and
-- holders.sql for the parameters.

-- let: live = (h.expires IS NULL OR (h.boot=?9 AND h.expires>?8))
-- let: full = (SELECT count(*) n,max(h.expires) e,max(h.ttl_ms) m FROM @H h WHERE h.name=?1 AND h.mode<2 AND {live}) a
-- let: equal = (t.owner=?4 AND t.token<>?2 AND t.token NOT LIKE '!%' AND t.token NOT LIKE '*%' @{AND t.boot=?9 AND t.expires>?8@|@})
-- let: other = EXISTS (SELECT 1 FROM @T t WHERE t.name=?1 AND {equal})
-- let: shared = EXISTS (SELECT 1 FROM @T t WHERE t.name=?1 AND t.token='*0')
-- let: fellow = h.name=?1 AND h.owner=?4 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live}
-- let: mine = h.name=?1 AND h.token=?2 AND h.mode=1 AND h.kept=0
-- let: columns = name,token,mode,permits,slot,fence,version,ttl_ms,kept,boot,acquired,expires,owner,note

-- name: join
DELETE FROM @H AS h
WHERE h.name=?1 AND h.mode<2 AND ?11<0 AND (NOT {live} OR {other});
INSERT INTO @H ({columns})
SELECT ?1, t.token, 1, 0, -1, t.fence, @{0@|t.version+1@}, t.ttl_ms, 0,
    @{t.boot,t.acquired,t.expires@|?9,?8,NULL@}, t.owner, t.note
FROM @T t
WHERE t.name=?1 AND ?11<0 AND {equal};
INSERT INTO @H AS h ({columns})
SELECT ?1, ?2, 1, 0, -1, e.fence, @{0@|t.version+2@}, ?3, 0, ?9, ?8,
    @{?8+?3@|NULL@}, ?4, ?5
FROM @T t,
    (SELECT max(h.fence) fence FROM @H h WHERE {fellow} AND h.mode=1) e
WHERE t.name=?1 AND ?11<0 AND (t.token='*0' OR {equal}) AND e.fence IS NOT NULL
    AND NOT EXISTS (
        SELECT 1
        FROM @H h
        WHERE h.name=?1 AND h.mode<2 AND h.token IN (?2,'!'||?2)
    )
ON CONFLICT (name,token) DO UPDATE
SET mode=1, fence=excluded.fence, version=excluded.version, ttl_ms=?3, boot=?9,
    acquired=?8, expires=excluded.expires, owner=?4, note=?5
WHERE h.mode=2;
UPDATE @H AS h
SET ttl_ms=max(ttl_ms,?3),
    @{expires=max(expires,?8+?3)
    @|version=(SELECT t.version+2 FROM @T t WHERE t.name=?1)@}
WHERE {mine} AND ?11<0 AND ({shared} OR {other});
UPDATE @T AS t
SET token='*0', owner=NULL, note=NULL, ttl_ms=a.m,
    @{boot=?9,expires=a.e@|version=t.version+2@}
FROM {full}
WHERE t.name=?1 AND ?11<0 AND (t.token='*0' OR {equal}) AND a.n>0
    AND EXISTS (SELECT 1 FROM @H h WHERE {mine});
@(DELETE FROM @Q
WHERE name=?1 AND token=?2 AND ?11<0 AND {shared}
    AND EXISTS (SELECT 1 FROM @H h WHERE {mine});@)
SELECT CASE WHEN t.token='*0' AND ?11<0 THEN
        coalesce((SELECT h.fence FROM @H h WHERE {mine}),0)
    ELSE 0 END hf,
    (?11>=0 AND {equal}) OR (t.token='*0' AND EXISTS (
        SELECT 1
        FROM @H h
        WHERE {fellow} AND h.permits=0 AND h.mode=(?11>=0)
    ))
FROM @T t
WHERE t.name=?1;
