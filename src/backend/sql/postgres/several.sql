-- SPDX-License-Identifier: MIT
--
-- several.sql - several keys by one statement, on PostgreSQL; backend/sql/several.c
-- says what this promises.
--
-- $2 is "TOKENname,..." with the names in hex, in the order of the keys, in which
-- the rows are locked; settings.c sees to it that no plan changes that.  $1 is the
-- first key and $4 the last: who observes one between them, or a prefix, is told
-- by other statements, so this one takes nothing.
--
-- The clock is read once for all rows: an earlier time is no later an end, and
-- frees no row too soon.  date_part() spares a numeric.

-- let: name = decode(substr(u.x,33),'hex')
-- let: list = unnest(string_to_array($2,',')) u(x)
-- let: now_us = (date_part('epoch',clock_timestamp())*1000000)::int8

-- name: make
INSERT INTO @T (name,fence,ttl_ms@{@|,version@})
SELECT {name},0,0@{@|,{now_us}@}
FROM {list}
ON CONFLICT (name) DO NOTHING;

-- name: take
UPDATE @T t
SET fence=greatest(t.fence+1,(SELECT {now_us})), token=substr(u.x,1,32),
    owner=NULL, note=$5, ttl_ms=$3, wanted=false,
    @{acquired_at=(SELECT clock_timestamp()),
    expires_at=(SELECT clock_timestamp()+$3*interval '1 ms')
    @|version=t.version+1@}
FROM {list}
WHERE t.name={name} @(AND NOT t.wanted@) AND (t.token IS NULL
    @{OR t.expires_at<=(SELECT clock_timestamp())@|@})
    @(AND NOT EXISTS (
        SELECT 1
        FROM @Q o
        WHERE o.name>=$1 AND o.name<=$4 AND o.kind<-2
            AND o.expires_at>clock_timestamp()
    )
    AND NOT EXISTS (
        SELECT 1
        FROM @Q o
        WHERE o.name=''::bytea AND o.expires_at>clock_timestamp()
    )@)
RETURNING t.name,t.fence;
