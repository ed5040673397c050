-- SPDX-License-Identifier: MIT
--
-- lease.sql - strategy lease on PostgreSQL.
--
-- @T is the table, @N its name as a string; $1 to $7 are the parameters of
-- backend/sql/sql.h.  {id} of a session is PG_ID of postgres.h.
--
-- The clock is clock_timestamp(), which is read when it is evaluated; now()
-- would be the start of a transaction, however old.
--
-- Waiters are told by NOTIFY on a channel named as the table, without its
-- schema, which one URL may name and another not; and only where somebody waits:
-- NOTIFY takes a lock of the whole cluster at commit.  The payload is 'f' (free)
-- or 'w' (wanted), and the key in hex.

-- let: began = (extract(epoch from backend_start)*1000)::int8&1099511627775
-- let: id = ((({began})<<22)|(pid&4194303))
-- let: now_us = (extract(epoch from clock_timestamp())*1000000)::int8
-- let: end = clock_timestamp()+$3*interval '1 ms'

-- name: create
CREATE TABLE IF NOT EXISTS @T (
    name bytea PRIMARY KEY, token text, fence bigint NOT NULL,
    acquired_at timestamptz, expires_at timestamptz, ttl_ms bigint NOT NULL,
    wanted boolean NOT NULL DEFAULT false, owner bytea, note bytea
) WITH (fillfactor=50);

-- The first part looks with the statement's snapshot, so that asking for a busy
-- lock neither waits for the row nor writes anything, but for the mark of the
-- first who waits.  Only if that look finds no holder is there an insert,
-- which, where the row exists, locks it and judges its newest version.
-- name: acquire
WITH b AS (
    SELECT *
    FROM @T
    WHERE name=$1 AND token IS NOT NULL AND token<>$2
        AND expires_at>clock_timestamp()
    ),
    w AS (
        UPDATE @T t
        SET wanted=true
        FROM b
        WHERE $6=1 AND NOT b.wanted AND t.name=$1 AND t.token=b.token
        RETURNING 1
    ),
    g AS (
        INSERT INTO @T AS l (
            name,token,fence,ttl_ms,owner,note,acquired_at,expires_at
        )
        SELECT $1,$2,{now_us},$3,$4,$5,clock_timestamp(),{end}
        WHERE NOT EXISTS (SELECT 1 FROM b)
        ON CONFLICT (name) DO UPDATE
        SET fence=CASE WHEN l.token=$2 THEN l.fence
            ELSE greatest(l.fence+1,{now_us}) END,
            wanted=l.wanted AND l.token IS NOT DISTINCT FROM $2, token=$2,
            owner=$4, note=$5,
            ttl_ms=CASE WHEN l.token=$2 THEN greatest(l.ttl_ms,$3)
                ELSE $3 END,
            acquired_at=clock_timestamp(),
            expires_at=CASE WHEN l.token=$2 THEN greatest(l.expires_at,{end})
                ELSE {end} END
        WHERE l.token IS NULL OR l.token=$2 OR l.expires_at<=clock_timestamp()
        RETURNING l.fence
    )
SELECT fence,0::int8,0::int8,0::int8,0::int8,NULL,NULL
FROM g
UNION ALL
SELECT 0,
    (extract(epoch from expires_at-clock_timestamp())*1000)::int8+1, 0,
    ttl_ms,
    CASE WHEN $6=1 AND NOT wanted AND NOT EXISTS (SELECT 1 FROM w) THEN 1
        ELSE 0 END,
    (SELECT pg_notify(@N,'w'||encode($1,'hex'))::text FROM w),
    CASE WHEN token LIKE '*%' THEN token END
FROM b;

-- Only a request that says so ($6) may shorten a lease: one that was late would
-- cut what a newer one has lengthened.  But a time that lies further ahead than
-- any lease of this row is that of a clock which has been put back.
-- name: renew
UPDATE @T l
SET ttl_ms=CASE WHEN $6=1 THEN $3 ELSE greatest(ttl_ms,$3) END,
    expires_at=CASE
        WHEN $6=1 OR expires_at>clock_timestamp()+ttl_ms*interval '1 ms'
        THEN {end} ELSE greatest(expires_at,{end}) END
WHERE name=$1 AND token=$2 AND fence=$7;

-- $2 is "name:token:fence,..." with the names in hex, in the order in which the
-- rows are to be locked; settings.c sees to it that no plan changes that.  A
-- row that another has locked is passed over, so that nobody else's lock has to
-- wait for it: backend/sql/renew.c (4).
-- name: renew_many
UPDATE @T l
SET ttl_ms=CASE WHEN $6=1 THEN $3 ELSE greatest(ttl_ms,$3) END,
    expires_at=CASE
        WHEN $6=1 OR expires_at>clock_timestamp()+ttl_ms*interval '1 ms'
        THEN {end} ELSE greatest(expires_at,{end}) END
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
    SET token=NULL,owner=NULL,note=NULL,expires_at=NULL
    WHERE name=$1 AND token=$2
    RETURNING wanted
)
SELECT CASE WHEN wanted THEN pg_notify(@N,'f'||encode($1,'hex'))::text END
FROM r;

-- See backend/sql/sql.c (6).
-- name: break
UPDATE @T
SET token='!'||token
WHERE name=$1 AND fence=$7 AND token!~'^[!*]'
    AND expires_at>clock_timestamp();

-- What the fence names, whatever its token, is over at once.
-- name: free
WITH r AS (
    UPDATE @T
    SET token=NULL,owner=NULL,note=NULL,expires_at=NULL
    WHERE name=$1 AND token NOT LIKE '*%' AND fence=$7
        AND expires_at>clock_timestamp()
    RETURNING wanted
)
SELECT CASE WHEN wanted THEN pg_notify(@N,'f'||encode($1,'hex'))::text END
FROM r;

-- name: take
UPDATE @T
SET token=$2
WHERE name=$1 AND fence=$7 AND token IN ($2,convert_from($5,'UTF8'));

-- End a session and wait for that, but not for long.
-- name: kill
SELECT pg_terminate_backend(pid,1000)::int FROM pg_stat_activity WHERE {id}=$7;

-- name: look
SELECT token, fence,
    (extract(epoch from expires_at-clock_timestamp())*1000)::int8,
    (extract(epoch from clock_timestamp()-acquired_at)*1000)::int8, owner,
    note, 0::int8, ttl_ms, wanted::int::int8, name
FROM @T
WHERE name=$1;

-- From the fence $7 on also what is free; of that the newest, if $7 is -1.
-- let: newest = (SELECT max(n.fence) FROM @T n WHERE substring(n.name for length($1))=$1)
-- name: list
SELECT token, fence,
    (extract(epoch from expires_at-clock_timestamp())*1000)::int8,
    (extract(epoch from clock_timestamp()-acquired_at)*1000)::int8, owner,
    note, 0::int8, ttl_ms, wanted::int::int8, name
FROM @T
WHERE substring(name for length($1))=$1
    AND (
        (token IS NOT NULL AND expires_at>clock_timestamp())
        OR ($7>=0 AND fence>=$7) OR ($7<0 AND fence={newest})
    );
