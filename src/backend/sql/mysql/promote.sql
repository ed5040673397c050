-- SPDX-License-Identifier: MIT
--
-- promote.sql - a waiter becomes the first in line, on MariaDB and MySQL; see
-- postgres/promote.sql, which does the same.

-- let: time = CAST(@hf_now AS DATETIME(6))
-- let: lock = SET @hf_now=UTC_TIMESTAMP(6); START TRANSACTION; SELECT 1 FROM @T WHERE name=$1 FOR UPDATE
-- let: waits = q.name=$1 AND q.kind>-2 AND q.expires_at>{time}
-- let: heir = (SELECT q.token,q.ticket FROM @Q q WHERE {waits} AND (CAST(q.token AS BINARY)=$5 OR q.owner=$5 OR q.note=$5) ORDER BY q.ticket LIMIT 1) k
-- let: first = (SELECT MIN(q.ticket) n FROM @Q q WHERE {waits}) m
-- let: held = t.name=$1 AND t.token=$2 AND t.fence=$7 @{AND t.expires_at>{time}@|@}
-- let: shared = t.name=$1 AND t.token LIKE '*%' AND EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.token=$2 AND h.fence=$7 AND h.kept=0 AND (h.expires_at IS NULL OR h.expires_at>{time}))
-- let: said = IF(EXISTS (SELECT 1 FROM {heir}),1,2)

-- name: plain
{lock};
UPDATE @Q q
JOIN @T t ON t.name=q.name
CROSS JOIN {heir}
CROSS JOIN {first}
SET q.ticket=m.n-1
WHERE {held} AND q.name=$1 AND q.token=k.token AND k.ticket>m.n;
SELECT {said} hf FROM @T t WHERE {held};
COMMIT;

-- name: holder
{lock};
UPDATE @Q q
JOIN @T t ON t.name=q.name
CROSS JOIN {heir}
CROSS JOIN {first}
SET q.ticket=m.n-1
WHERE {shared} AND q.name=$1 AND q.token=k.token AND k.ticket>m.n;
SELECT {said} hf FROM @T t WHERE {shared};
COMMIT;
