-- SPDX-License-Identifier: MIT
--
-- promote.sql - a waiter becomes the first in line, on SQLite; see
-- postgres/promote.sql, which does the same.

-- let: waits = q.name=?1 AND q.kind>-2 AND q.boot=?9 AND q.expires>?8
-- let: heir = (SELECT q.token,q.ticket FROM @Q q WHERE {waits} AND (CAST(q.token AS BLOB)=?5 OR q.owner=?5 OR q.note=?5) ORDER BY q.ticket LIMIT 1) k
-- let: first = (SELECT min(q.ticket) n FROM @Q q WHERE {waits}) m
-- let: held = t.name=?1 AND t.token=?2 AND t.fence=?7 @{AND t.boot=?9 AND t.expires>?8@|@}
-- let: shared = t.name=?1 AND t.token LIKE '*%' AND EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.token=?2 AND h.fence=?7 AND h.kept=0 AND (h.expires IS NULL OR (h.boot=?9 AND h.expires>?8)))
-- let: said = CASE WHEN EXISTS (SELECT 1 FROM {heir}) THEN 1 ELSE 2 END

-- name: plain
UPDATE @Q AS q
SET ticket=m.n-1
FROM @T t,{heir},{first}
WHERE {held} AND q.name=?1 AND q.token=k.token AND k.ticket>m.n;
SELECT {said} hf FROM @T t WHERE {held};

-- name: holder
UPDATE @Q AS q
SET ticket=m.n-1
FROM @T t,{heir},{first}
WHERE {shared} AND q.name=?1 AND q.token=k.token AND k.ticket>m.n;
SELECT {said} hf FROM @T t WHERE {shared};
