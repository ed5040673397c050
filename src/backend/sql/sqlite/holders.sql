-- SPDX-License-Identifier: MIT
--
-- holders.sql - shared locks, permits and the minimum hold on SQLite; see
-- postgres/holders.sql, which does the same in the same order, and lease.sql for
-- the parameters; ?11 are the permits.  Each text is run as one transaction, in
-- which nobody else writes.  A column `hf_ring` says that others shall hear.

-- let: live = (h.expires IS NULL OR (h.boot=?9 AND h.expires>?8))
-- let: named = h.name=?1 AND h.token=?2 AND h.fence=?7 AND h.kept=0
-- let: ours = {named} AND {live}
-- let: mine = h.name=?1 AND h.token=?2 AND h.mode=0 AND h.kept=0 AND h.permits=?11
-- let: left = (h.expires-?8)
-- let: gone = h.name=?1 AND (h.token=?2 OR (?7>0 AND h.fence=?7))
-- let: shared = EXISTS (SELECT 1 FROM @T t WHERE t.name=?1 AND t.token LIKE '*%')
-- let: plain = EXISTS (SELECT 1 FROM @T t WHERE t.name=?1 AND t.token=?2 AND t.fence=?7)
-- let: next = (SELECT t.version+1 FROM @T t WHERE t.name=?1)
-- let: full = (SELECT count(*) n,max(h.expires) e,max(h.ttl_ms) m FROM @H h WHERE h.name=?1 AND h.mode<2 AND {live}) a
-- let: columns = name,token,mode,permits,slot,fence,version,ttl_ms,kept,boot,acquired,expires,owner,note

-- name: create
CREATE TABLE IF NOT EXISTS @H (
    name BLOB NOT NULL, token TEXT NOT NULL, mode INTEGER NOT NULL,
    permits INTEGER NOT NULL, slot INTEGER NOT NULL, fence INTEGER NOT NULL,
    version INTEGER NOT NULL, ttl_ms INTEGER NOT NULL, kept INTEGER NOT NULL,
    boot TEXT, acquired INTEGER, expires INTEGER, owner BLOB, note BLOB,
    PRIMARY KEY (name,token)
) WITHOUT ROWID;

-- Equal owner ids have one permit together: backend/sql/reenter.c.
-- let: rejoin = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,boot,acquired,expires,owner,note) SELECT ?1, ?2, 0, ?11, h.slot, h.fence, @{0@|t.version+1@}, ?3, 0, ?9, ?8, @{?8+?3@|NULL@}, ?4, ?5 FROM @T t,@H h WHERE t.name=?1 AND ?11>0 AND t.token='*'||?11 AND h.name=?1 AND h.owner=?4 AND h.mode=0 AND h.permits=?11 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live} AND NOT EXISTS (SELECT 1 FROM @H o WHERE o.name=?1 AND o.token IN (?2,'!'||?2)) LIMIT 1

-- name: enter
INSERT INTO @T (name,fence,ttl_ms@{@|,version@}) VALUES (?1,0,0@{@|,?10@})
ON CONFLICT (name) DO NOTHING;
DELETE FROM @H AS h
WHERE h.name=?1 AND (NOT {live}
    OR (h.mode<2 AND EXISTS (
        SELECT 1
        FROM @T t
        WHERE t.name=?1 AND (t.token IS NULL OR t.token NOT LIKE '*%'
            OR @{t.boot<>?9 OR t.expires<=?8@|h.version=?7@})
    )));
{rejoin};
INSERT INTO @H ({columns})
SELECT ?1, ?2, 0, ?11, s.slot, max(t.fence+1,?10), @{0@|t.version+1@}, ?3, 0,
    ?9, ?8, @{?8+?3@|NULL@}, ?4, ?5
FROM @T t,
    (
        SELECT CASE WHEN ?11=0 THEN -1
            ELSE (
                SELECT min(c.slot)
                FROM (
                    SELECT 0 slot
                    UNION ALL
                    SELECT h.slot+1 FROM @H h WHERE h.name=?1 AND h.mode=0
                ) c
                WHERE c.slot<?11 AND NOT EXISTS (
                    SELECT 1
                    FROM @H h
                    WHERE h.name=?1 AND h.mode=0 AND h.slot=c.slot
                )
            ) END slot
    ) s
WHERE t.name=?1 AND s.slot IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM @H h WHERE h.name=?1 AND h.token IN (?2,'!'||?2)
) AND (t.token IS NULL
    OR @{t.boot<>?9 OR t.expires<=?8@|(t.token NOT LIKE '*%' AND t.version=?7)@}
    OR (t.token LIKE '*%'
        AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.mode<2))
    OR (t.token='*'||?11
        AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.mode=1)))
    AND (?11>0
        OR NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.mode=2));
UPDATE @H AS h
SET ttl_ms=max(ttl_ms,?3),@{expires=max(expires,?8+?3)@|version={next}@}
WHERE {mine};
UPDATE @T AS t
SET token='*'||?11, fence=max(t.fence,g.fence), ttl_ms=a.m, owner=NULL,
    note=NULL, wanted=CASE WHEN t.token IS '*'||?11 THEN t.wanted ELSE 0 END,
    @{boot=?9,acquired=?8,expires=a.e@|version=t.version+1@}
FROM (SELECT h.fence FROM @H h WHERE {mine}) g, {full}
WHERE t.name=?1;
SELECT 1 hf_ring
FROM @T t
WHERE t.name=?1 AND ?6 AND NOT t.wanted AND t.token IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM @H h WHERE {mine});
UPDATE @T
SET wanted=1
WHERE name=?1 AND ?6 AND NOT wanted AND token IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM @H h WHERE {mine});
SELECT coalesce(g.fence,0) hf,
    CASE WHEN t.token IS NULL THEN 0
        WHEN t.token LIKE '*%' THEN
            (
                SELECT CASE WHEN ?11>0 THEN min({left}) ELSE max({left}) END
                FROM @H h
                WHERE h.name=?1
                    AND CASE WHEN ?11>0 THEN h.mode=0 ELSE h.mode>0 END
            )
        ELSE @{t.expires-?8@|0@} END,
    @{0@|CASE WHEN t.token NOT LIKE '*%' THEN t.version ELSE d.version END@},
    @{0@|CASE WHEN t.token NOT LIKE '*%' THEN t.ttl_ms ELSE d.ttl_ms END@},
    0, g.slot, t.token
FROM @T t
LEFT JOIN (SELECT h.fence,h.slot FROM @H h WHERE {mine}) g ON 1
LEFT JOIN (
    SELECT h.version,h.ttl_ms
    FROM @H h
    WHERE h.name=?1 AND h.mode=(?11=0) AND h.kept=0
    ORDER BY h.version
    LIMIT 1
) d ON 1
WHERE t.name=?1;

-- name: door
DELETE FROM @H AS h
WHERE h.name=?1 AND (NOT {live} OR (h.token=?2 AND h.mode=2));
INSERT INTO @H ({columns})
SELECT ?1,?2,2,0,-1,0,0,?3,0,?9,NULL,?8+?3,NULL,NULL
WHERE ?6 AND {shared};
UPDATE @T
SET token=NULL,@{expires=NULL@|version=version+1@}
WHERE name=?1 AND token LIKE '*%'
    AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.mode<2);
SELECT NOT {shared} hf,
    (
        SELECT CASE WHEN count(*)=count(h.expires) THEN max({left}) END
        FROM @H h
        WHERE h.name=?1 AND h.mode<2
    );

-- name: door_end
DELETE FROM @H WHERE name=?1 AND token=?2 AND mode=2;

-- name: stay
UPDATE @H AS h
SET ttl_ms=CASE WHEN ?6 THEN ?3 ELSE max(ttl_ms,?3) END,
    @{expires=CASE WHEN ?6 THEN ?8+?3 ELSE max(expires,?8+?3) END
    @|version={next}@}
WHERE {shared} AND {named} AND (h.expires IS NULL OR h.boot=?9);
UPDATE @T AS t
SET ttl_ms=a.m,@{expires=a.e@|version=t.version+1@}
FROM {full}
WHERE t.name=?1 AND t.token LIKE '*%' AND a.n>0;
SELECT 1 hf FROM @H h WHERE {shared} AND {named} AND (h.expires IS NULL OR h.boot=?9);

-- name: leave
SELECT 1 hf FROM @H h WHERE {gone} AND (h.mode=2 OR {shared});
UPDATE @T AS t
SET token=CASE WHEN a.n>0 THEN t.token END, ttl_ms=coalesce(a.m,t.ttl_ms),
    @{expires=a.e@|version=t.version+1@}
FROM (
    SELECT count(*) n,max(h.expires) e,max(h.ttl_ms) m
    FROM @H h
    WHERE h.name=?1 AND h.mode<2 AND {live} AND NOT ({gone})
) a
WHERE t.name=?1 AND t.token LIKE '*%'
    AND EXISTS (SELECT 1 FROM @H h WHERE {gone} AND h.mode<2);
SELECT 1 hf_ring
FROM @T t,@H h
WHERE t.name=?1 AND t.wanted AND {gone}
    AND (t.token IS NULL OR h.permits>0 OR h.mode=2);
DELETE FROM @H AS h WHERE {gone};

-- name: break
UPDATE @H AS h
SET token='!'||token
WHERE h.name=?1 AND {shared} AND h.fence=?7 AND h.mode<2 AND {live}
    AND h.token NOT LIKE '!%';
SELECT 1 hf
FROM @H h
WHERE h.name=?1 AND {shared} AND h.fence=?7 AND h.mode<2 AND {live};

-- let: kind = CASE WHEN ?11<0 THEN h.mode=1 ELSE h.mode=0 AND h.permits=?11 END
-- name: take
UPDATE @H AS h
SET token=?2
WHERE h.name=?1 AND {shared} AND h.fence=?7 AND {kind} AND h.kept=0
    AND {live} AND h.token IN (?2,CAST(?5 AS TEXT));
SELECT 1 hf,h.slot FROM @H h WHERE {shared} AND {ours} AND {kind};

-- name: downgrade
DELETE FROM @H AS h WHERE h.name=?1 AND h.mode<2 AND {plain};
INSERT INTO @H ({columns})
SELECT ?1, ?2, 0, 0, -1, t.fence, @{0@|t.version+1@}, t.ttl_ms, 0,
    @{t.boot,t.acquired,t.expires@|?9,?8,NULL@}, t.owner, t.note
FROM @T t
WHERE t.name=?1 AND t.token=?2 AND t.fence=?7;
UPDATE @H AS h
SET mode=0
WHERE {shared} AND {ours} AND h.mode=1 AND NOT EXISTS (
    SELECT 1
    FROM @H h
    WHERE h.name=?1 AND h.token<>?2 AND h.mode=1 AND {live}
);
SELECT 1 hf_ring
FROM @T t
WHERE t.name=?1 AND t.wanted AND ((t.token=?2 AND t.fence=?7)
    OR (t.token='*0' AND EXISTS (SELECT 1 FROM @H h WHERE {ours})));
UPDATE @T
SET token='*0',owner=NULL,note=NULL@{@|,version=version+1@}
WHERE name=?1 AND token=?2 AND fence=?7;
SELECT 1+h.mode hf FROM @H h WHERE {shared} AND {ours} AND h.mode<2;

-- name: keep
DELETE FROM @H AS h WHERE h.name=?1 AND h.mode<2 AND {plain};
INSERT INTO @H ({columns})
SELECT ?1, ?2, 1, 0, -1, t.fence, 0, ?3, 1, ?9, @{t.acquired@|?8@}, ?8+?3,
    t.owner, t.note
FROM @T t
WHERE t.name=?1 AND t.token=?2 AND t.fence=?7;
UPDATE @T
SET token='*0',owner=NULL,note=NULL@{,boot=?9@|,version=version+1@}
WHERE name=?1 AND token=?2 AND fence=?7;
UPDATE @H AS h
SET kept=1,ttl_ms=?3,boot=?9,expires=?8+?3
WHERE h.name=?1 AND {shared} AND h.token=?2 AND h.fence=?7 AND {live};
UPDATE @T AS t
SET ttl_ms=a.m,@{expires=a.e@|version=t.version+1@}
FROM {full}
WHERE t.name=?1 AND t.token LIKE '*%' AND a.n>0;
SELECT 1 hf
FROM @H h
WHERE h.name=?1 AND {shared} AND h.token=?2 AND h.fence=?7 AND h.kept=1;

-- name: look
SELECT h.token, h.fence, h.expires-?8, ?8-h.acquired, h.owner, h.note,
    h.version, h.ttl_ms, t.wanted, h.name, h.permits, h.slot, h.mode, h.kept
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.name=?1 AND t.token LIKE '*%' AND h.mode<2 AND {live}
ORDER BY h.fence DESC;

-- name: list
SELECT h.token, h.fence, h.expires-?8, ?8-h.acquired, h.owner, h.note,
    h.version, h.ttl_ms, t.wanted, h.name, h.permits, h.slot, h.mode, h.kept
FROM @T t
JOIN @H h ON h.name=t.name
WHERE t.token LIKE '*%' AND h.mode<2 AND {live}
    AND substr(t.name,1,length(?1))=?1
ORDER BY h.name,h.fence DESC;
