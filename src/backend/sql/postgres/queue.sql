-- SPDX-License-Identifier: MIT
--
-- queue.sql - first come, first served, on PostgreSQL: what replaces statements of
-- lease.sql, version.sql and holders.sql where there is a queue; backend/sql/queue.c
-- says what all this promises.
--
-- @Q is the table of tickets; $1 to $8 are the parameters of backend/sql/sql.h, $8
-- being -1 of a plain claim; $9 is where the waiter hears, $a its nth try, $b for
-- how long the ticket lasts in ms.  A text with several statements is one
-- transaction, of which each has a snapshot of its own: see holders.sql.
--
-- `wanted` of the row of a key says that there are tickets.  Where it is not set
-- a plain lock is taken and released by one statement which looks at nothing else.
--
-- A message to a waiter is '+', its token, the try that it answers, the fence, the
-- slot, for how long it has the lock in ms, and the key in hex.

-- let: now = statement_timestamp()
-- let: now_us = (extract(epoch from clock_timestamp())*1000000)::int8
-- let: end = {now}+$3*interval '1 ms'
-- let: live = (h.expires_at IS NULL OR h.expires_at>{now})
-- let: left = (extract(epoch from h.expires_at-{now})*1000)::int8+1
-- let: key = t.name=$1 AND h.name=$1
-- let: gone = h.name=$1 AND (h.token=$2 OR ($7>0 AND h.fence=$7))
-- let: mine = h.name=$1 AND h.token=$2 AND h.mode=0 AND h.kept=0 AND h.permits=$8
-- let: full = (SELECT count(*) n,max(expires_at) e,max(ttl_ms) m FROM @H h WHERE h.name=$1 AND h.mode<2 AND {live}) a
-- let: waits = q.name=$1 AND q.kind>-2 AND q.expires_at>{now}
-- let: ahead = o.name=$1 AND o.kind>-2 AND o.expires_at>{now} AND o.ticket<q.ticket
-- let: head = (SELECT q.* FROM @Q q WHERE {waits} AND q.token<>$2 ORDER BY q.ticket LIMIT 1)
-- let: first = (SELECT q.* FROM @Q q WHERE {waits} ORDER BY q.ticket LIMIT 1)
-- let: more = EXISTS (SELECT 1 FROM @Q q WHERE {waits} AND q.token<>k.token)
-- let: free = (t.token IS NULL OR @{t.expires_at<={now}@|t.version=$7@})
-- What the claim was passed and an operator has broken: queue.c (9).
-- let: spoiled = '!'||$2
-- let: broken = (EXISTS (SELECT 1 FROM @T t WHERE t.name=$1 AND t.token={spoiled}) OR EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.token={spoiled}))
-- let: gift = CASE WHEN k.token=$2 THEN $3 ELSE least(k.ttl_ms,5000) END
-- let: granted = token=k.token, fence=greatest(t.fence+1,{now_us}), ttl_ms={gift}, owner=k.owner, note=k.note, wanted={more}, @{acquired_at=clock_timestamp(),expires_at=clock_timestamp()+{gift}*interval '1 ms'@|version=t.version+1@}
-- let: tell = pg_notify(u.channel,'+'||u.token||' '||u.nth||' '||u.fence||' '||u.slot||' '||u.ms||' '||encode($1,'hex'))::text
-- Observers: observe.sql.
-- let: observes = o.name IN ($1,''::bytea) AND o.kind<-2 AND o.expires_at>clock_timestamp() AND (o.kind=-3 OR substring($1 for length(o.owner))=o.owner)
-- let: seen = (SELECT max(pg_notify(o.channel,'c'||encode($1,'hex'))::text) FROM @Q o WHERE {observes})
-- let: call = pg_notify(x.channel,'w'||encode($1,'hex'))::text
-- let: ticket = $1, $2, {now_us}, $8, $a, $3, {now}+$b*interval '1 ms', $9, $4, $5
-- let: again = ON CONFLICT (name,token) DO UPDATE SET nth=excluded.nth, ttl_ms=excluded.ttl_ms, expires_at=excluded.expires_at, channel=excluded.channel
-- let: columns = name,token,ticket,kind,nth,ttl_ms,expires_at,channel,owner,note
-- let: lock = SELECT 1 FROM @T WHERE name=$1 FOR UPDATE
-- let: waiters = (SELECT count(*) FROM @Q q WHERE q.name=l.name AND q.kind>-2 AND q.expires_at>clock_timestamp())

-- kind is -1 of a plain claim, 0 of one that shares, else its permits; -2 of a
-- holder that lingers and wants to hear of others.
-- name: create
CREATE TABLE IF NOT EXISTS @Q (
    name bytea NOT NULL, token text NOT NULL, ticket bigint NOT NULL,
    kind bigint NOT NULL, nth bigint NOT NULL, ttl_ms bigint NOT NULL,
    expires_at timestamptz NOT NULL, channel text, owner bytea, note bytea,
    PRIMARY KEY (name,token)
) WITH (fillfactor=50);

-- Only what is free and for which nobody waits.
-- name: acquire
WITH b AS (
    SELECT *
    FROM @T
    WHERE name=$1 AND token IS NOT NULL AND token<>$2
        @{AND expires_at>clock_timestamp()@|@}
    ),
    g AS (
        INSERT INTO @T AS l (
            name,token,fence,ttl_ms,owner,note,
            @{acquired_at,expires_at@|version@}
        )
        SELECT $1, $2, {now_us}, $3, $4, $5,
            @{clock_timestamp(),clock_timestamp()+$3*interval '1 ms'@|{now_us}@}
        WHERE NOT EXISTS (SELECT 1 FROM b)
        ON CONFLICT (name) DO UPDATE
        SET fence=CASE WHEN l.token=$2 THEN l.fence
            ELSE greatest(l.fence+1,{now_us}) END, token=$2, owner=$4, note=$5,
            ttl_ms=CASE WHEN l.token=$2 THEN greatest(l.ttl_ms,$3)
                ELSE $3 END,
            @{acquired_at=clock_timestamp(),
            expires_at=CASE WHEN l.token=$2 THEN greatest(
                l.expires_at,clock_timestamp()+$3*interval '1 ms'
            ) ELSE clock_timestamp()+$3*interval '1 ms' END
            @|version=l.version+1@}
        WHERE l.token=$2 OR (NOT l.wanted AND (l.token IS NULL
            @{OR l.expires_at<=clock_timestamp()@|@}))
        RETURNING l.fence
    )
SELECT fence,0::int8,0::int8,0::int8,0::int8,{seen},NULL
FROM g
UNION ALL
SELECT 0,
    @{(extract(epoch from expires_at-clock_timestamp())*1000)::int8+1@|0@},
    @{0@|version@}, ttl_ms, 0, NULL, CASE WHEN token LIKE '*%' THEN token END
FROM b;

-- The same for a row that is there.  A row that is busy is not waited for: the
-- snapshot tells.  Half of what acquire takes is its second and third part, even
-- where they have nothing to do.
-- name: retake
UPDATE @T l
SET fence=greatest(l.fence+1,{now_us}), token=$2, owner=$4, note=$5, ttl_ms=$3,
    @{acquired_at=clock_timestamp(),
    expires_at=clock_timestamp()+$3*interval '1 ms'@|version=l.version+1@}
WHERE l.name=$1 AND NOT l.wanted AND (l.token IS NULL
    @{OR (l.token<>$2 AND l.expires_at<=clock_timestamp())@|@})
RETURNING l.fence, {seen};

-- name: release
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,@{expires_at=NULL@|version=version+1@}
WHERE name=$1 AND token=$2 AND NOT wanted
RETURNING {seen};

-- A plain claim that has not got it like that: it takes a ticket, or keeps the one
-- it has, and if the lock is free the first in line has it now.  A lock that is
-- the claim's already is so for a whole lease.  The last column is its place.  If
-- the lock is free after all, the first in line is not plain: enter.
-- name: join
{lock};
INSERT INTO @Q AS q ({columns})
SELECT {ticket}
FROM @T t
WHERE t.name=$1 AND (t.token IS NULL OR (t.token<>$2
    AND (t.token<>{spoiled} OR {free})
    AND (t.token NOT LIKE '*%' OR t.token='*0')))
    AND NOT EXISTS (SELECT 1 FROM @Q q WHERE {waits} AND q.kind>0)
{again};
WITH k AS {first},
    u AS (
        UPDATE @T t
        SET {granted}
        FROM k
        WHERE t.name=$1 AND k.kind<0 AND {free}
        RETURNING t.token, t.fence, t.ttl_ms ms, -1 slot, k.nth, k.channel
    ),
    x AS (
        DELETE FROM @Q q
        WHERE q.name=$1 AND (q.token IN (SELECT token FROM u)
            OR q.expires_at<={now} OR q.kind=-2 OR (q.token=$2 AND $6=0))
        RETURNING q.kind,q.channel
    )
SELECT {tell} FROM u WHERE u.token<>$2 AND u.channel IS NOT NULL
UNION ALL
SELECT {call}
FROM x
WHERE x.kind=-2 AND x.channel IS NOT NULL
UNION ALL
SELECT {seen} FROM u;
UPDATE @T t
SET wanted=EXISTS (SELECT 1 FROM @Q q WHERE {waits}),
    ttl_ms=CASE WHEN t.token=$2 THEN greatest(t.ttl_ms,$3) ELSE t.ttl_ms END,
    @{expires_at=CASE WHEN t.token=$2 THEN greatest(t.expires_at,{end})
        ELSE t.expires_at END
    @|version=CASE WHEN t.token=$2 THEN t.version+1 ELSE t.version END@}
WHERE t.name=$1 AND (t.token=$2
    OR (NOT t.wanted AND EXISTS (SELECT 1 FROM @Q q WHERE {waits})));
SELECT CASE t.token WHEN $2 THEN t.fence WHEN {spoiled} THEN -1 ELSE 0 END hf,
    @{(extract(epoch from t.expires_at-{now})*1000)::int8+1@|0@},
    @{0@|t.version@}, t.ttl_ms,
    CASE WHEN t.token IS NULL THEN 1 ELSE 0 END, -1,
    CASE WHEN t.token LIKE '*%' THEN t.token
        ELSE (SELECT '*'||q.kind FROM @Q q WHERE {waits} AND q.kind>0 LIMIT 1)
    END,
    (
        SELECT count(*)
        FROM @Q q,@Q m
        WHERE {waits} AND m.name=$1 AND m.token=$2 AND q.ticket<=m.ticket
    )
FROM @T t
WHERE t.name=$1;

-- The same where the lock is held and others wait for it already: only a ticket is
-- to be taken.  The row of the key is locked, as it is by who passes the lock on.
-- It may have been passed on while we waited for that: then there is no row, and
-- join is next.  The number of a ticket is the time of its arrival here.  A new
-- one is not in the snapshot, and has all others ahead of it.
-- name: ticket
WITH t AS (
    SELECT ttl_ms,@{expires_at@|version@}
    FROM @T
    WHERE name=$1 AND wanted AND token<>$2 AND token<>{spoiled}
        AND token NOT LIKE '*%'
        AND @{expires_at>clock_timestamp()@|version<>$7@}
    FOR UPDATE
    ),
    i AS (
        INSERT INTO @Q AS q ({columns})
        SELECT {ticket}
        FROM t
        WHERE $6=1
        {again}
        RETURNING 1
    )
SELECT 0 hf, @{(extract(epoch from t.expires_at-{now})*1000)::int8+1@|0@},
    @{0@|t.version@}, t.ttl_ms, 0, -1, NULL,
    (
        SELECT count(*)
        FROM @Q q
        LEFT JOIN @Q m ON m.name=$1 AND m.token=$2
        WHERE {waits} AND q.token<>$2
            AND (m.ticket IS NULL OR q.ticket<m.ticket)
    )+1
FROM t,i;

-- A plain lock that others wait for goes to the first of them by one statement.
-- Whose ticket came after the snapshot is behind it, so `wanted` stays; where
-- there is nobody yet, or the first is not plain, there is no row, and pass is
-- next.  The ticket may have been given back meanwhile: the fourth column is
-- the token that has the lock then, for nobody.
-- name: hand
WITH k AS {head},
    u AS (
        UPDATE @T t
        SET token=k.token, fence=greatest(t.fence+1,{now_us}),
            ttl_ms=least(k.ttl_ms,5000), owner=k.owner, note=k.note,
            wanted=true,
            @{acquired_at=clock_timestamp(),
            expires_at=clock_timestamp()
                +least(k.ttl_ms,5000)*interval '1 ms'
            @|version=t.version+1@}
        FROM k
        WHERE t.name=$1 AND t.token=$2 AND k.kind=-1
        RETURNING t.token, t.fence, t.ttl_ms ms, -1 slot, k.nth, k.channel
    ),
    x AS (
        DELETE FROM @Q q
        USING u
        WHERE q.name=$1 AND q.token=u.token
        RETURNING q.token
    )
SELECT 1 hf, 0, 1,
    CASE WHEN NOT EXISTS (SELECT 1 FROM x) THEN u.token END,
    CASE WHEN u.channel IS NOT NULL THEN {tell} END, {seen}
FROM u;

-- A plain lock that is given back, by its token or by fence ($7), goes to the
-- first in line; a ticket is given back, too.  The second column says that
-- others may go in now who are not plain: admit; the third that somebody waits.
-- name: pass
{lock};
WITH k AS {head},
    u AS (
        UPDATE @T t
        SET token=k.token, fence=CASE WHEN k.token IS NULL THEN t.fence
            ELSE greatest(t.fence+1,{now_us}) END,
            ttl_ms=coalesce(least(k.ttl_ms,5000),t.ttl_ms), owner=k.owner,
            note=k.note, wanted=EXISTS (
                SELECT 1
                FROM @Q q
                WHERE {waits} AND q.token<>$2
                    AND q.token IS DISTINCT FROM k.token
            ),
            @{acquired_at=clock_timestamp(),
            expires_at=clock_timestamp()
                +least(k.ttl_ms,5000)*interval '1 ms'
            @|version=t.version+1@}
        FROM (SELECT 1) one
        LEFT JOIN k ON k.kind<0
        WHERE t.name=$1 AND (t.token=$2 OR ($7>0 AND t.fence=$7
            AND t.token NOT LIKE '*%' @{AND t.expires_at>{now}@|@}))
        RETURNING t.token, t.fence, t.ttl_ms ms, -1 slot, k.nth, k.channel,
            t.wanted
    ),
    x AS (
        DELETE FROM @Q q
        WHERE q.name=$1 AND (q.token IN (SELECT token FROM u)
            OR q.expires_at<={now} OR q.token=$2)
        RETURNING q.token,q.kind
    )
SELECT 1 hf, CASE WHEN u.token IS NULL AND u.wanted THEN 1 ELSE 0 END,
    u.wanted::int, NULL, CASE WHEN u.channel IS NOT NULL THEN {tell} END,
    {seen}
FROM u
UNION ALL
SELECT 1,
    CASE WHEN t.token LIKE '*%' AND EXISTS (SELECT 1 FROM k) THEN 1 ELSE 0 END,
    t.wanted::int, NULL, NULL, NULL
FROM x,@T t
WHERE x.token=$2 AND x.kind>-2 AND t.name=$1
    AND NOT EXISTS (SELECT 1 FROM u);

-- The holder lingers, and hears of who comes: 1 if somebody waits already.  If
-- nobody does, the next who comes must not take a ticket alone.
-- name: linger
{lock};
INSERT INTO @Q AS q ({columns})
SELECT $1, $2, 0, -2, 0, 0, {now}+interval '1 day', $9, NULL, NULL
FROM @T t
WHERE t.name=$1 AND t.token=$2
{again};
UPDATE @T t
SET wanted=false
WHERE t.name=$1 AND t.wanted AND NOT EXISTS (SELECT 1 FROM @Q q WHERE {waits});
SELECT 1 hf FROM @Q q WHERE {waits} LIMIT 1;

-- Let in who can go in: a plain claim, or those next to each other who share, or
-- one who wants a permit.
-- let: plain = WITH k AS {first}, u AS (UPDATE @T t SET {granted} FROM k WHERE t.name=$1 AND k.kind<0 AND t.token IS NULL RETURNING t.token, t.fence, t.ttl_ms ms, -1 slot, k.nth, k.channel), x AS (DELETE FROM @Q q WHERE q.name=$1 AND q.token IN (SELECT token FROM u)) SELECT {tell} FROM u WHERE u.token<>$2 AND u.channel IS NOT NULL
-- let: slot = CASE WHEN q.kind=0 THEN -1 ELSE (SELECT min(c.slot) FROM (SELECT 0 slot UNION ALL SELECT h.slot+1 FROM @H h WHERE h.name=$1 AND h.mode=0) c WHERE c.slot<q.kind AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=0 AND h.slot=c.slot)) END
-- Who waits while its owner id has a permit joins that by its own try, and is passed
-- none: reenter.c (7).
-- let: joins = (q.kind>0 AND q.owner IS NOT NULL AND EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.owner=q.owner AND h.mode=0 AND h.permits=q.kind AND h.kept=0 AND h.token NOT LIKE '!%' AND {live}))
-- let: front = (SELECT min(q.ticket) FROM @Q q WHERE {waits} AND NOT {joins})
-- let: group = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,expires_at,owner,note) SELECT $1, k.token, 0, k.kind, k.slot, greatest(t.fence+1,{now_us})+k.nr, @{0@|t.version+1+k.nr@}, k.ms, 0, clock_timestamp(), @{clock_timestamp()+k.ms*interval '1 ms'@|NULL::timestamptz@}, k.owner, k.note FROM @T t, (SELECT q.*, CASE WHEN q.token=$2 THEN $3 ELSE least(q.ttl_ms,5000) END ms, {slot} slot, (SELECT count(*) FROM @Q o WHERE {ahead}) nr FROM @Q q WHERE {waits} AND CASE WHEN q.kind>0 THEN q.ticket={front} ELSE q.kind=0 AND NOT EXISTS (SELECT 1 FROM @Q o WHERE {ahead} AND o.kind<>q.kind) END) k WHERE t.name=$1 AND k.slot IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.token IN (k.token,'!'||k.token)) AND (t.token IS NULL OR (t.token='*'||k.kind AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=1))) AND (k.kind>0 OR NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode=2))
-- let: counted = UPDATE @T t SET token='*'||g.p, fence=greatest(t.fence,g.f), ttl_ms=a.m, owner=NULL, note=NULL, @{acquired_at={now},expires_at=a.e@|version=greatest(t.version+1,g.v)@} FROM (SELECT max(h.permits) p,max(h.fence) f,max(h.version) v FROM @H h WHERE h.name=$1 AND h.mode=0 AND (h.token=$2 OR h.token IN (SELECT q.token FROM @Q q WHERE q.name=$1))) g, {full} WHERE t.name=$1 AND g.p IS NOT NULL AND a.n>0
-- let: told = WITH x AS (DELETE FROM @Q q WHERE q.name=$1 AND (q.expires_at<={now} OR (q.kind=-2 AND EXISTS (SELECT 1 FROM @Q w WHERE w.name=$1 AND w.kind>-2)) OR (q.token=$2 AND ($6=0 OR {broken})) OR EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.token=q.token)) RETURNING q.token,q.nth,q.channel,q.kind), u AS (SELECT x.token,x.nth,x.channel,h.fence,h.slot,h.ttl_ms ms FROM x JOIN @H h ON h.name=$1 AND h.token=x.token WHERE x.token<>$2 AND x.kind>-2) SELECT {tell} FROM u WHERE u.channel IS NOT NULL UNION ALL SELECT {call} FROM x WHERE x.kind=-2 AND x.channel IS NOT NULL
-- let: marked = UPDATE @T t SET wanted=NOT t.wanted WHERE t.name=$1 AND t.wanted<>EXISTS (SELECT 1 FROM @Q q WHERE {waits})
-- let: admit = {plain}; {group}; {counted}; {told}; {marked}
-- let: over = DELETE FROM @H h USING @T t WHERE {key} AND (NOT {live} OR (h.mode<2 AND (t.token IS NULL OR t.token NOT LIKE '*%' OR @{t.expires_at<={now}@|h.version=$7 OR ($8<=0 AND t.version=$7)@})))
-- let: freed = UPDATE @T t SET token=NULL,@{expires_at=NULL@|version=t.version+1@} WHERE t.name=$1 AND t.token<>$2 AND ((t.token LIKE '*%' AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=$1 AND h.mode<2)) OR @{t.expires_at<={now}@|(t.token NOT LIKE '*%' AND t.version=$7)@})
-- let: next = EXISTS (SELECT 1 FROM @Q q WHERE {waits} AND q.kind>0 AND NOT {joins} AND t.token='*'||q.kind AND (SELECT count(DISTINCT h.slot) FROM @H h WHERE h.name=$1 AND h.mode=0)<q.kind)
-- Equal owner ids have one permit together: backend/sql/reenter.c.
-- let: rejoin = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,acquired_at,expires_at,owner,note) SELECT $1, $2, 0, $8, h.slot, h.fence, @{0@|t.version+1@}, $3, 0, {now}, @{{end}@|NULL::timestamptz@}, $4, $5 FROM @T t,@H h WHERE t.name=$1 AND $8>0 AND t.token='*'||($8) AND h.name=$1 AND h.owner=$4 AND h.mode=0 AND h.permits=$8 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live} AND NOT EXISTS (SELECT 1 FROM @H o WHERE o.name=$1 AND o.token IN ($2,'!'||$2)) LIMIT 1

-- name: enter
INSERT INTO @T (name,fence,ttl_ms@{@|,version@}) VALUES ($1,0,0@{@|,{now_us}@})
ON CONFLICT (name) DO NOTHING;
{lock};
{over};
{freed};
{rejoin};
INSERT INTO @Q AS q ({columns})
SELECT {ticket}
FROM @T t
WHERE t.name=$1 AND t.token IS DISTINCT FROM $2
    AND NOT EXISTS (SELECT 1 FROM @H h WHERE {mine})
    AND greatest($8,0)=coalesce(
        CASE WHEN t.token LIKE '*%' THEN substring(t.token from 2)::int8
            WHEN t.token IS NOT NULL THEN 0 END,
        (SELECT greatest(q.kind,0) FROM @Q q WHERE {waits} LIMIT 1),
        greatest($8,0)
    )
{again};
{admit};
UPDATE @H h
SET ttl_ms=greatest(h.ttl_ms,$3),
    @{expires_at=greatest(h.expires_at,{end})@|version=t.version+1@}
FROM @T t
WHERE {mine} AND t.name=$1;
UPDATE @T t
SET ttl_ms=a.m,@{expires_at=a.e@|version=t.version+1@}
FROM {full}
WHERE t.name=$1 AND t.token LIKE '*%' AND a.n>0
    AND EXISTS (SELECT 1 FROM @H h WHERE {mine});
UPDATE @T t
SET ttl_ms=greatest(t.ttl_ms,$3),
    @{expires_at=greatest(t.expires_at,{end})@|version=t.version+1@}
WHERE t.name=$1 AND t.token=$2 AND $8<0;
SELECT coalesce(
        g.fence, CASE WHEN t.token=$2 THEN t.fence WHEN {broken} THEN -1 END, 0
    ) hf,
    CASE WHEN t.token IS NULL THEN 0
        WHEN t.token LIKE '*%' THEN
            (
                SELECT CASE WHEN $8>0 THEN min({left}) ELSE max({left}) END
                FROM @H h
                WHERE h.name=$1 AND h.mode<2
            )
        ELSE @{(extract(epoch from t.expires_at-{now})*1000)::int8+1@|0@} END,
    @{0@|CASE WHEN $8>0 AND t.token LIKE '*%' THEN d.version
        ELSE t.version END@},
    @{0@|CASE WHEN $8>0 AND t.token LIKE '*%' THEN d.ttl_ms
        ELSE t.ttl_ms END@},
    CASE WHEN {next} THEN 1 ELSE 0 END, g.slot,
    coalesce(
        CASE WHEN t.token LIKE '*%' THEN t.token
            WHEN t.token IS NOT NULL THEN '*0' END,
        (
            SELECT '*'||greatest(q.kind,0)
            FROM @Q q
            WHERE {waits} AND q.token<>$2
            LIMIT 1
        )
    ),
    (
        SELECT count(*)
        FROM @Q q,@Q m
        WHERE {waits} AND m.name=$1 AND m.token=$2 AND q.ticket<=m.ticket
    )
FROM @T t
LEFT JOIN (SELECT h.fence,h.slot FROM @H h WHERE {mine}) g ON true
LEFT JOIN (
    SELECT h.version,h.ttl_ms
    FROM @H h
    WHERE h.name=$1 AND h.mode=0 AND h.kept=0
    ORDER BY h.version
    LIMIT 1
) d ON true
WHERE t.name=$1;
SELECT {seen};

-- By token, or by fence ($7); a ticket, too.
-- name: leave
{lock};
SELECT 1 hf
FROM @T t,@H h
WHERE t.name=$1 AND {gone} AND (t.token LIKE '*%' OR h.mode=2)
UNION ALL
SELECT 1 FROM @Q q WHERE q.name=$1 AND q.token=$2;
DELETE FROM @Q q WHERE q.name=$1 AND q.token=$2;
UPDATE @T t
SET token=CASE WHEN a.n>0 THEN t.token END, ttl_ms=coalesce(a.m,t.ttl_ms),
    @{expires_at=a.e@|version=t.version+1@}
FROM (
    SELECT count(*) n,max(expires_at) e,max(ttl_ms) m
    FROM @H h
    WHERE h.name=$1 AND h.mode<2 AND {live} AND NOT ({gone})
) a
WHERE t.name=$1 AND t.token LIKE '*%'
    AND EXISTS (SELECT 1 FROM @H h WHERE {gone} AND h.mode<2);
SELECT pg_notify(@N,'f'||encode($1,'hex'))
FROM @T t,@H h
WHERE {key} AND h.mode=2 AND h.token<>$2 AND t.token IS NULL
LIMIT 1;
DELETE FROM @H h WHERE {gone};
{admit};
SELECT {seen};

-- name: admit
{lock};
{over};
{freed};
{admit};
SELECT 1 hf FROM @T t WHERE t.name=$1 AND {next};
SELECT {seen};

-- name: look
SELECT token, fence,
    @{(extract(epoch from expires_at-clock_timestamp())*1000)::int8
    @|NULL::int8@},
    @{(extract(epoch from clock_timestamp()-acquired_at)*1000)::int8
    @|NULL::int8@}, owner, note, @{0::int8@|version@}, ttl_ms, {waiters}, name
FROM @T l
WHERE name=$1;

-- From the fence $7 on also what is free; of that the newest, if $7 is -1.
-- let: newest = (SELECT max(n.fence) FROM @T n WHERE substring(n.name for length($1))=$1)
-- name: list
SELECT token, fence,
    @{(extract(epoch from expires_at-clock_timestamp())*1000)::int8
    @|NULL::int8@},
    @{(extract(epoch from clock_timestamp()-acquired_at)*1000)::int8
    @|NULL::int8@}, owner, note, @{0::int8@|version@}, ttl_ms, {waiters}, name
FROM @T l
WHERE substring(name for length($1))=$1
    AND (
        (token IS NOT NULL @{AND expires_at>clock_timestamp()@|@})
        OR ($7>=0 AND fence>=$7) OR ($7<0 AND fence={newest})
    );

-- The ticket is the time of arrival, unless its claim was moved to the front.
-- name: waiters
SELECT token, owner, note, kind, ({now_us}-ticket)/1000,
    (extract(epoch from expires_at-clock_timestamp())*1000)::int8
FROM @Q
WHERE name=$1 AND kind>-2 AND expires_at>clock_timestamp()
ORDER BY ticket, token;
