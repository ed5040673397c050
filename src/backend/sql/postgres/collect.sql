-- SPDX-License-Identifier: MIT
--
-- collect.sql - what nobody has used for long, on PostgreSQL; backend/sql/collect.c
-- says when a row may go.  $1 is the key before, $4 the last, $3 the age in ms.

-- let: now_us = (extract(epoch from clock_timestamp())*1000000)::int8
-- let: past = clock_timestamp()-$3*interval '1 ms'
-- let: idle = fence<{now_us}-$3*1000 AND (token IS NULL @{OR expires_at<{past}@|@})

-- name: look
SELECT name,CASE WHEN {idle} THEN 1::int8 ELSE 0::int8 END
FROM @T
WHERE name>$1
ORDER BY name
LIMIT 500;

-- name: remove
DELETE FROM @T WHERE name>$1 AND name<=$4 AND {idle};

-- name: holders
DELETE FROM @H h
WHERE NOT EXISTS (
    SELECT 1 FROM @T t WHERE t.name=h.name AND t.token LIKE '*%'
);

-- name: queue
DELETE FROM @Q WHERE expires_at<{past};
