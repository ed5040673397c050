-- SPDX-License-Identifier: MIT
--
-- row.sql - strategy row on PostgreSQL; see lease.sql, and row.c for how the
-- row is locked.  @F is the table of fences.  {id} of a session is PG_ID of
-- postgres.h, and PG_SAME compares processes only.

-- let: began = (extract(epoch from backend_start)*1000)::int8&1099511627775
-- let: id = ((({began})<<22)|(pid&4194303))
-- let: now_us = (extract(epoch from clock_timestamp())*1000000)::int8

-- name: create
CREATE TABLE IF NOT EXISTS @T (
    name bytea PRIMARY KEY, row_lock boolean NOT NULL DEFAULT true
);

-- name: create_fence
CREATE TABLE IF NOT EXISTS @F (
    name bytea PRIMARY KEY, token text, fence bigint NOT NULL,
    acquired_at timestamptz, ttl_ms bigint, session bigint, owner bytea,
    note bytea
) WITH (fillfactor=50);

-- name: renew
SELECT 1 FROM @F WHERE name=$1 AND token=$2 AND fence=$7;

-- $2 is "name:token:fence,..." with the names in hex.
-- name: renew_many
SELECT 1
FROM @F l,
    (
        SELECT decode(split_part(x,':',1),'hex') n, split_part(x,':',2) t,
            split_part(x,':',3)::int8 f
        FROM unnest(string_to_array($2,',')) x
    ) k
WHERE l.name=k.n AND l.token=k.t AND l.fence=k.f;

-- See backend/sql/sql.c (6).
-- name: break
UPDATE @F
SET token='!'||token
WHERE name=$1 AND fence=$7 AND token NOT LIKE '!%';

-- name: free
SELECT pg_terminate_backend(k.pid,1000)::int
FROM @F f
JOIN (
    @T t
    JOIN pg_locks k ON k.locktype='transactionid' AND k.granted
        AND k.transactionid=t.xmax
) ON t.name=f.name
    AND (k.pid&4194303)=(f.session&4194303)
WHERE f.name=$1 AND f.fence=$7;

-- End a session and wait for that, but not for long.
-- name: kill
SELECT pg_terminate_backend(pid,1000)::int FROM pg_stat_activity WHERE {id}=$7;

-- Who locks a row is told by its xmax, and that he is still there by the lock
-- that every transaction has on its own number.  Who waits is in the queue of
-- an advisory lock; see row.c.
-- name: look
SELECT CASE WHEN k.pid IS NOT NULL THEN token END, fence, NULL::int8,
    (extract(epoch from clock_timestamp()-acquired_at)*1000)::int8, owner,
    note, session, ttl_ms,
    (
        SELECT count(*)
        FROM pg_locks k
        JOIN pg_locks w USING (locktype,database,classid,objid,objsubid)
        WHERE (k.pid&4194303)=(f.session&4194303) AND k.locktype='advisory'
            AND k.granted AND NOT w.granted
    ), f.name
FROM @F f
LEFT JOIN (
    @T t
    JOIN pg_locks k ON k.locktype='transactionid' AND k.granted
        AND k.transactionid=t.xmax
) ON t.name=f.name
    AND (k.pid&4194303)=(f.session&4194303)
WHERE f.name=$1;

-- From the fence $7 on also what is free; of that the newest, if $7 is -1.
-- let: newest = (SELECT max(n.fence) FROM @F n WHERE substring(n.name for length($1))=$1)
-- name: list
SELECT CASE WHEN k.pid IS NOT NULL THEN token END, fence, NULL::int8,
    (extract(epoch from clock_timestamp()-acquired_at)*1000)::int8, owner,
    note, session, ttl_ms, NULL::int8, f.name
FROM @F f
LEFT JOIN (
    @T t
    JOIN pg_locks k ON k.locktype='transactionid' AND k.granted
        AND k.transactionid=t.xmax
) ON t.name=f.name
    AND (k.pid&4194303)=(f.session&4194303)
WHERE substring(f.name for length($1))=$1
    AND (
        f.token IS NOT NULL OR ($7>=0 AND f.fence>=$7)
        OR ($7<0 AND f.fence={newest})
    );

-- The beginning; row.c adds the key.
-- name: lock
SELECT row_lock FROM @T WHERE name=;

-- name: make
INSERT INTO @T (name,row_lock) VALUES ($1,true) ON CONFLICT DO NOTHING;

-- It may be served late, so the session must have the row: backend/sql/row.c
-- (7).  That is asked with the fence locked, and where there is none yet nobody
-- has signed.
-- name: sign
INSERT INTO @F AS l (name,token,fence,acquired_at,ttl_ms,session,owner,note)
VALUES ($1,$2,{now_us},clock_timestamp(),$3,$7,$4,$5)
ON CONFLICT (name) DO UPDATE
SET fence=CASE WHEN l.token=$2 THEN l.fence
    ELSE greatest(l.fence+1,{now_us}) END,
    token=$2, acquired_at=clock_timestamp(), ttl_ms=$3, session=$7, owner=$4,
    note=$5
WHERE EXISTS (
    SELECT 1
    FROM @T t
    JOIN pg_locks k ON k.locktype='transactionid' AND k.granted
        AND k.transactionid=t.xmax
    WHERE t.name=$1 AND (k.pid&4194303)=($7&4194303)
)
RETURNING l.fence;

-- name: unsign
UPDATE @F SET token=NULL,owner=NULL,note=NULL WHERE name=$1 AND token=$2;

-- name: end
SELECT pg_terminate_backend(pid,1000)::int FROM pg_stat_activity WHERE {id}=$7;

-- name: stands
SELECT count(*)
FROM pg_locks
WHERE (pid&4194303)=($7&4194303) AND locktype='advisory';
