-- SPDX-License-Identifier: MIT
--
-- collect.sql - what nobody has used for long, on MariaDB and MySQL; see
-- postgres/collect.sql.

-- let: now_us = CAST(UNIX_TIMESTAMP(NOW(6))*1000000 AS SIGNED)
-- let: past = UTC_TIMESTAMP(6)-INTERVAL $3*1000 MICROSECOND
-- let: idle = fence<{now_us}-$3*1000 AND (token IS NULL @{OR expires_at<{past}@|@})

-- name: look
SELECT name,IF({idle},1,0) FROM @T WHERE name>$1 ORDER BY name LIMIT 500;

-- name: remove
DELETE FROM @T WHERE name>$1 AND name<=$4 AND {idle};

-- name: holders
DELETE h
FROM @H h
WHERE NOT EXISTS (
    SELECT 1 FROM @T t WHERE t.name=h.name AND t.token LIKE '*%'
);

-- name: queue
DELETE FROM @Q WHERE expires_at<{past};
