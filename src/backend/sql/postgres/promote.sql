-- SPDX-License-Identifier: MIT
--
-- promote.sql - a waiter becomes the first in line, on PostgreSQL; see queue.sql for
-- the parameters, and backend/sql/promote.c.  $5 is what the waiter is called: its
-- token, its owner id or its note.  1: it is the first; 2: nobody is called so; no
-- row: the claim does not hold.

-- let: now = statement_timestamp()
-- let: lock = SELECT 1 FROM @T WHERE name=$1 FOR UPDATE
-- let: waits = q.name=$1 AND q.kind>-2 AND q.expires_at>{now}
-- let: heir = (SELECT q.token,q.ticket FROM @Q q WHERE {waits} AND (convert_to(q.token,'UTF8')=$5 OR q.owner=$5 OR q.note=$5) ORDER BY q.ticket LIMIT 1) k
-- let: first = (SELECT min(q.ticket) n FROM @Q q WHERE {waits}) m
-- let: held = t.name=$1 AND t.token=$2 AND t.fence=$7 @{AND t.expires_at>{now}@|@}
-- let: shared = t.name=$1 AND t.token LIKE '*%' AND EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.token=$2 AND h.fence=$7 AND h.kept=0 AND (h.expires_at IS NULL OR h.expires_at>{now}))
-- let: said = CASE WHEN EXISTS (SELECT 1 FROM {heir}) THEN 1 ELSE 2 END

-- name: plain
{lock};
UPDATE @Q q
SET ticket=m.n-1
FROM @T t,{heir},{first}
WHERE {held} AND q.name=$1 AND q.token=k.token AND k.ticket>m.n;
SELECT {said} hf FROM @T t WHERE {held};

-- name: holder
{lock};
UPDATE @Q q
SET ticket=m.n-1
FROM @T t,{heir},{first}
WHERE {shared} AND q.name=$1 AND q.token=k.token AND k.ticket>m.n;
SELECT {said} hf FROM @T t WHERE {shared};
