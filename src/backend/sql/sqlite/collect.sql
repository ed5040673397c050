-- SPDX-License-Identifier: MIT
--
-- collect.sql - what nobody has used for long, on SQLite; see
-- postgres/collect.sql, and lease.sql for the parameters.

-- let: idle = fence<?10-?3*1000 AND (token IS NULL @{OR boot<>?9 OR expires<?8-?3@|@})

-- name: look
SELECT name,CASE WHEN {idle} THEN 1 ELSE 0 END
FROM @T
WHERE name>?1
ORDER BY name
LIMIT 500;

-- name: remove
DELETE FROM @T WHERE name>?1 AND name<=?4 AND {idle};

-- name: holders
DELETE FROM @H AS h
WHERE NOT EXISTS (
    SELECT 1 FROM @T t WHERE t.name=h.name AND t.token LIKE '*%'
);

-- name: queue
DELETE FROM @Q WHERE boot<>?9 OR expires<?8-?3;
