-- SPDX-License-Identifier: MIT
--
-- version.sql - strategy version on PostgreSQL; see lease.sql.  {id} of a
-- session is PG_ID of postgres.h.

-- let: began = (extract(epoch from backend_start)*1000)::int8&1099511627775
-- let: id = ((({began})<<22)|(pid&4194303))
-- let: now_us = (extract(epoch from clock_timestamp())*1000000)::int8

-- name: create
CREATE TABLE IF NOT EXISTS @T (
    name bytea PRIMARY KEY, token text, fence bigint NOT NULL,
    version bigint NOT NULL, ttl_ms bigint NOT NULL,
    wanted boolean NOT NULL DEFAULT false, owner bytea, note bytea
) WITH (fillfactor=50);

-- name: acquire
WITH b AS (
    SELECT *
    FROM @T
    WHERE name=$1 AND token IS NOT NULL AND token<>$2 AND version<>$7
    ),
    w AS (
        UPDATE @T t
        SET wanted=true
        FROM b
        WHERE $6=1 AND NOT b.wanted AND t.name=$1 AND t.token=b.token
        RETURNING 1
    ),
    g AS (
        INSERT INTO @T AS l (name,token,fence,ttl_ms,owner,note,version)
        SELECT $1,$2,{now_us},$3,$4,$5,{now_us}
        WHERE NOT EXISTS (SELECT 1 FROM b)
        ON CONFLICT (name) DO UPDATE
        SET fence=CASE WHEN l.token=$2 THEN l.fence
            ELSE greatest(l.fence+1,{now_us}) END,
            wanted=l.wanted AND l.token IS NOT DISTINCT FROM $2, token=$2,
            owner=$4, note=$5,
            ttl_ms=CASE WHEN l.token=$2 THEN greatest(l.ttl_ms,$3)
                ELSE $3 END,
            version=l.version+1
        WHERE l.token IS NULL OR l.token=$2 OR l.version=$7
        RETURNING l.fence
    )
SELECT fence,0::int8,0::int8,0::int8,0::int8,NULL,NULL
FROM g
UNION ALL
SELECT 0, 0, version, ttl_ms,
    CASE WHEN $6=1 AND NOT wanted AND NOT EXISTS (SELECT 1 FROM w) THEN 1
        ELSE 0 END,
    (SELECT pg_notify(@N,'w'||encode($1,'hex'))::text FROM w),
    CASE WHEN token LIKE '*%' THEN token END
FROM b;

-- name: renew
UPDATE @T l
SET ttl_ms=CASE WHEN $6=1 THEN $3 ELSE greatest(ttl_ms,$3) END,
    version=version+1
WHERE name=$1 AND token=$2 AND fence=$7;

-- name: renew_many
UPDATE @T l
SET ttl_ms=CASE WHEN $6=1 THEN $3 ELSE greatest(ttl_ms,$3) END,
    version=version+1
FROM (
    SELECT r.name n
    FROM @T r,
        (
            SELECT decode(split_part(x,':',1),'hex') n, split_part(x,':',2) t,
                split_part(x,':',3)::int8 f
            FROM unnest(string_to_array($2,',')) x
        ) k
    WHERE r.name=k.n AND r.token=k.t AND r.fence=k.f
    FOR UPDATE OF r SKIP LOCKED
) s
WHERE l.name=s.n
RETURNING l.name,l.token;

-- name: release
WITH r AS (
    UPDATE @T
    SET token=NULL,owner=NULL,note=NULL,version=version+1
    WHERE name=$1 AND token=$2
    RETURNING wanted
)
SELECT CASE WHEN wanted THEN pg_notify(@N,'f'||encode($1,'hex'))::text END
FROM r;

-- name: break
UPDATE @T
SET token='!'||token
WHERE name=$1 AND fence=$7 AND token!~'^[!*]' AND true;

-- name: free
WITH r AS (
    UPDATE @T
    SET token=NULL,owner=NULL,note=NULL,version=version+1
    WHERE name=$1 AND token NOT LIKE '*%' AND fence=$7 AND true
    RETURNING wanted
)
SELECT CASE WHEN wanted THEN pg_notify(@N,'f'||encode($1,'hex'))::text END
FROM r;

-- name: take
UPDATE @T
SET token=$2
WHERE name=$1 AND fence=$7 AND token IN ($2,convert_from($5,'UTF8'));

-- name: kill
SELECT pg_terminate_backend(pid,1000)::int FROM pg_stat_activity WHERE {id}=$7;

-- name: look
SELECT token, fence, NULL::int8, NULL::int8, owner, note, version, ttl_ms,
    wanted::int::int8, name
FROM @T
WHERE name=$1;

-- From the fence $7 on also what is free; of that the newest, if $7 is -1.
-- let: newest = (SELECT max(n.fence) FROM @T n WHERE substring(n.name for length($1))=$1)
-- name: list
SELECT token, fence, NULL::int8, NULL::int8, owner, note, version, ttl_ms,
    wanted::int::int8, name
FROM @T
WHERE substring(name for length($1))=$1
    AND (
        token IS NOT NULL OR ($7>=0 AND fence>=$7)
        OR ($7<0 AND fence={newest})
    );
