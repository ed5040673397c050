-- SPDX-License-Identifier: MIT
--
-- observe.sql - who observes a key or a prefix, on PostgreSQL, and what replaces
-- statements of lease.sql and version.sql so that it hears; observe.c says what
-- this promises.
--
-- An observation is a row among the tickets (queue.sql), of kind -3, with the key
-- as its name; or of kind -4 with an empty name and the prefix as its owner.  $2 is
-- its own token, $5 the channel, and $6 says that $1 is a prefix.

-- let: observes = o.name IN ($1,''::bytea) AND o.kind<-2 AND o.expires_at>clock_timestamp() AND (o.kind=-3 OR substring($1 for length(o.owner))=o.owner)
-- let: seen = (SELECT max(pg_notify(o.channel,'c'||encode($1,'hex'))::text) FROM @Q o WHERE {observes})
-- let: name = CASE WHEN $6=1 THEN ''::bytea ELSE $1 END

-- Its own message brings a look after the commit.
-- name: begin
WITH i AS (
    INSERT INTO @Q AS q (
        name,token,ticket,kind,nth,ttl_ms,expires_at,channel,owner
    )
    VALUES (
        {name}, $2, 0, CASE WHEN $6=1 THEN -4 ELSE -3 END, 0, 0,
        clock_timestamp()+interval '1 day', convert_from($5,'UTF8'),
        CASE WHEN $6=1 THEN $1 END
    )
    ON CONFLICT (name,token) DO UPDATE SET expires_at=excluded.expires_at
    RETURNING channel
)
SELECT CASE WHEN $6=0 THEN pg_notify(channel,'c'||encode($1,'hex'))::text END
FROM i;

-- name: end
DELETE FROM @Q WHERE name={name} AND token=$2 AND kind<-2;

-- name: break
WITH r AS (
    UPDATE @T
    SET token='!'||token
    WHERE name=$1 AND fence=$7 AND token!~'^[!*]'
        @{AND expires_at>clock_timestamp()@|@}
    RETURNING 1
)
SELECT {seen} FROM r;

-- name: take
WITH r AS (
    UPDATE @T
    SET token=$2
    WHERE name=$1 AND fence=$7 AND token IN ($2,convert_from($5,'UTF8'))
    RETURNING 1
)
SELECT {seen} FROM r;
