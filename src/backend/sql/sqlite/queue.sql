-- SPDX-License-Identifier: MIT
--
-- queue.sql - first come, first served, on SQLite: see postgres/queue.sql, which
-- does the same, and lease.sql and holders.sql for the parameters; ?12 is where the
-- waiter hears, ?13 its nth try, ?14 for how long the ticket lasts in ms, ?15 the
-- greatest fence that this client has seen.  Each text is run as one transaction,
-- in which nobody else writes.  A column `hf_ring` names who shall hear; NULL:
-- those without a queue.

-- let: live = (h.expires IS NULL OR (h.boot=?9 AND h.expires>?8))
-- let: left = (h.expires-?8)
-- let: gone = h.name=?1 AND (h.token=?2 OR (?7>0 AND h.fence=?7))
-- let: mine = h.name=?1 AND h.token=?2 AND h.mode=0 AND h.kept=0 AND h.permits=?11
-- let: shared = EXISTS (SELECT 1 FROM @T t WHERE t.name=?1 AND t.token LIKE '*%')
-- let: full = (SELECT count(*) n,max(h.expires) e,max(h.ttl_ms) m FROM @H h WHERE h.name=?1 AND h.mode<2 AND {live}) a
-- A sort would take and give back memory each time.
-- let: lasts = q.boot=?9 AND q.expires>?8
-- let: waits = q.name=?1 AND q.kind>-2 AND {lasts}
-- let: ahead = o.name=?1 AND o.kind>-2 AND o.boot=?9 AND o.expires>?8 AND o.ticket<q.ticket
-- let: other = o.name=?1 AND o.kind>-2 AND o.boot=?9 AND o.expires>?8
-- let: head = (SELECT q.* FROM @Q q WHERE q.name=?1 AND q.token<>?2 AND q.ticket=(SELECT min(o.ticket) FROM @Q o WHERE {other} AND o.token<>?2) LIMIT 1)
-- let: first = (SELECT q.* FROM @Q q WHERE q.name=?1 AND q.ticket=(SELECT min(o.ticket) FROM @Q o WHERE {other}) LIMIT 1)
-- let: free = (t.token IS NULL OR @{t.boot<>?9 OR t.expires<=?8@|t.version=?7@})
-- let: spoiled = '!'||?2
-- let: broken = (EXISTS (SELECT 1 FROM @T t WHERE t.name=?1 AND t.token={spoiled}) OR EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.token={spoiled}))
-- let: gift = CASE WHEN k.token=?2 THEN ?3 ELSE min(k.ttl_ms,5000) END
-- let: granted = token=k.token, fence=max(t.fence+1,?10), ttl_ms={gift}, owner=k.owner, note=k.note, @{boot=?9,acquired=?8,expires=?8+{gift}@|version=t.version+1@}
-- let: ticket = ?1, ?2, coalesce((SELECT max(o.ticket) FROM @Q o WHERE o.name=?1),0)+1, ?11, ?13, ?3, ?9, ?8+?14, ?12, ?4, ?5
-- let: again = ON CONFLICT (name,token) DO UPDATE SET nth=excluded.nth, ttl_ms=excluded.ttl_ms, boot=excluded.boot, expires=excluded.expires, channel=excluded.channel
-- let: columns = name,token,ticket,kind,nth,ttl_ms,boot,expires,channel,owner,note
-- let: place = (SELECT count(*) FROM @Q q JOIN @Q m ON m.name=?1 AND m.token=?2 WHERE {waits} AND q.ticket<=m.ticket)
-- let: waiters = (SELECT count(*) FROM @Q q WHERE q.name=l.name AND q.kind>-2 AND {lasts})
-- let: given = t.name=?1 AND (t.token=?2 OR (?7>0 AND t.fence=?7 AND t.token NOT LIKE '*%' @{AND t.boot=?9 AND t.expires>?8@|@}))
-- What was passed on by a client that knows nothing of a fence that we have had,
-- since the file was replaced, is raised above that: sqlite.c (4).
-- let: raised = CASE WHEN t.fence<?15 THEN ?15+1 ELSE t.fence END
-- Who has it together with others has their fence: reenter.c (3).
-- let: joined = EXISTS (SELECT 1 FROM @H o WHERE o.name=?1 AND o.token<>?2 AND o.fence=h.fence)
-- let: left_ms = @{t.expires-?8@|0@}

-- name: create
CREATE TABLE IF NOT EXISTS @Q (
    name BLOB NOT NULL, token TEXT NOT NULL, ticket INTEGER NOT NULL,
    kind INTEGER NOT NULL, nth INTEGER NOT NULL, ttl_ms INTEGER NOT NULL,
    boot TEXT NOT NULL, expires INTEGER NOT NULL, channel TEXT, owner BLOB,
    note BLOB, PRIMARY KEY (name,token)
) WITHOUT ROWID;

-- name: acquire
INSERT INTO @T AS l (
    name,token,fence,ttl_ms,owner,note,@{boot,acquired,expires@|version@}
)
VALUES (?1,?2,?10,?3,?4,?5,@{?9,?8,?8+?3@|?10@})
ON CONFLICT (name) DO UPDATE
SET fence=CASE WHEN l.token IS ?2 THEN l.fence ELSE max(l.fence+1,?10) END,
    wanted=CASE WHEN l.token IS ?2 THEN l.wanted ELSE 0 END,
    ttl_ms=CASE WHEN l.token IS ?2 THEN max(l.ttl_ms,?3) ELSE ?3 END,
    token=?2, owner=?4, note=?5,
    @{boot=?9, acquired=?8,
    expires=CASE WHEN l.token IS ?2 AND l.boot=?9 THEN max(l.expires,?8+?3)
        ELSE ?8+?3 END
    @|version=l.version+1@}
WHERE l.token=?2
    OR ((l.token IS NULL @{OR l.boot<>?9 OR l.expires<=?8@|@})
        AND NOT EXISTS (SELECT 1 FROM @Q q WHERE q.name=?1 AND q.kind>-2))
RETURNING fence;

-- name: release
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,@{expires=NULL@|version=version+1@}
WHERE name=?1 AND token=?2
    AND NOT EXISTS (SELECT 1 FROM @Q q WHERE q.name=?1 AND q.kind>-2)
RETURNING wanted;

-- Has it been passed to the claim?  It reads only.  The fifth column says that
-- there is more to do than to wait: join.
-- name: peek
SELECT CASE WHEN t.token=?2 THEN t.fence ELSE 0 END,
    CASE WHEN t.token=?2 AND t.fence<?15 THEN 0 ELSE {left_ms} END,
    @{0@|t.version@}, t.ttl_ms,
    t.token IS NULL OR @{t.boot<>?9 OR t.expires<=?8@|t.version=?7@}
        OR t.token LIKE '*%' OR NOT EXISTS (
            SELECT 1
            FROM @Q q
            WHERE {waits} AND q.token=?2 AND q.expires>?8+?14/2
        ),
    -1, NULL, {place}
FROM @T t
WHERE t.name=?1;

-- name: join
INSERT INTO @Q ({columns})
SELECT {ticket}
FROM @T t
WHERE t.name=?1 AND (t.token IS NULL OR (t.token<>?2
    AND (t.token<>{spoiled} OR {free})
    AND (t.token NOT LIKE '*%' OR t.token='*0')))
    AND NOT EXISTS (SELECT 1 FROM @Q q WHERE {waits} AND q.kind>0)
{again};
UPDATE @T AS t
SET {granted}
FROM {first} k
WHERE t.name=?1 AND k.kind<0 AND {free};
SELECT q.channel hf_ring
FROM @Q q
JOIN @T t ON t.name=?1
WHERE q.name=?1 AND (q.kind=-2 OR (q.token=t.token AND q.token<>?2));
DELETE FROM @Q AS q
WHERE q.name=?1 AND (q.kind=-2 OR NOT ({lasts}) OR (q.token=?2 AND NOT ?6)
    OR q.token=(SELECT t.token FROM @T t WHERE t.name=?1));
UPDATE @T AS t
SET ttl_ms=max(t.ttl_ms,?3), fence={raised},
    @{expires=max(t.expires,?8+?3)@|version=t.version+1@}
WHERE t.name=?1 AND t.token=?2;
SELECT CASE t.token WHEN ?2 THEN t.fence WHEN {spoiled} THEN -1 ELSE 0 END hf,
    {left_ms}, @{0@|t.version@}, t.ttl_ms, t.token IS NULL, -1,
    CASE WHEN t.token LIKE '*%' THEN t.token
        ELSE (SELECT '*'||q.kind FROM @Q q WHERE {waits} AND q.kind>0 LIMIT 1)
    END,
    {place}
FROM @T t
WHERE t.name=?1;

-- The same where the lock is held and others wait for it already: only a ticket is
-- to be taken.  No row: join is next, also to remove tickets that have lapsed.
-- name: ticket
INSERT INTO @Q ({columns})
SELECT {ticket}
FROM @T t
WHERE ?6 AND t.name=?1 AND t.token<>?2 AND t.token<>{spoiled}
    AND t.token NOT LIKE '*%' AND NOT {free}
    AND EXISTS (SELECT 1 FROM @Q q WHERE {waits} AND q.token<>?2)
    AND NOT EXISTS (
        SELECT 1
        FROM @Q q
        WHERE q.name=?1 AND (q.kind<>-1 OR NOT ({lasts}))
    )
{again}
RETURNING 0 hf, (SELECT {left_ms} FROM @T t WHERE t.name=?1),
    @{0@|(SELECT t.version FROM @T t WHERE t.name=?1)@},
    (SELECT t.ttl_ms FROM @T t WHERE t.name=?1), 0, -1, NULL, {place};

-- A plain lock that plain claims wait for goes to the first of them.  No row: pass
-- is next.  A ticket of who has it now is there only if it was passed to it here.
-- name: hand
UPDATE @T AS t
SET {granted}
FROM {head} k
WHERE t.name=?1 AND t.token=?2 AND k.kind=-1
RETURNING 1 hf, 0, 1, NULL;
DELETE FROM @Q
WHERE name=?1 AND kind=-1
    AND token=(SELECT t.token FROM @T t WHERE t.name=?1)
RETURNING channel hf_ring;

-- name: pass
SELECT 1 hf,
    CASE WHEN {given} THEN coalesce((SELECT k.kind>=0 FROM {head} k),0)
        ELSE t.token LIKE '*%' AND EXISTS (SELECT 1 FROM {head} k) END,
    (SELECT count(*) FROM @Q q WHERE {waits} AND q.token<>?2)>1, NULL
FROM @T t
WHERE t.name=?1 AND ({given}
    OR EXISTS (SELECT 1 FROM @Q q WHERE q.name=?1 AND q.token=?2));
UPDATE @T AS t
SET token=k.token,
    fence=CASE WHEN k.token IS NULL THEN t.fence ELSE max(t.fence+1,?10) END,
    ttl_ms=coalesce(min(k.ttl_ms,5000),t.ttl_ms), owner=k.owner, note=k.note,
    @{boot=?9,acquired=?8,expires=?8+min(k.ttl_ms,5000)@|version=t.version+1@}
FROM (SELECT 1) LEFT JOIN {head} k ON k.kind<0
WHERE {given};
SELECT q.channel hf_ring
FROM @Q q
JOIN @T t ON t.name=?1 AND t.token=q.token
WHERE q.name=?1 AND q.kind>-2
UNION ALL
SELECT NULL FROM @T t WHERE t.name=?1 AND t.token IS NULL AND t.wanted;
DELETE FROM @Q AS q
WHERE q.name=?1 AND (q.token=?2 OR NOT ({lasts}) OR (q.kind>-2
    AND q.token=(SELECT t.token FROM @T t WHERE t.name=?1)));

-- name: linger
INSERT INTO @Q ({columns})
SELECT ?1, ?2, 0, -2, 0, 0, ?9, ?8+86400000, ?12, NULL, NULL
FROM @T t
WHERE t.name=?1 AND t.token=?2
{again};
SELECT 1 hf FROM @Q q WHERE {waits} LIMIT 1;

-- let: plain = UPDATE @T AS t SET {granted} FROM {first} k WHERE t.name=?1 AND k.kind<0 AND t.token IS NULL
-- let: slot = CASE WHEN q.kind=0 THEN -1 ELSE (SELECT min(c.slot) FROM (SELECT 0 slot UNION ALL SELECT h.slot+1 FROM @H h WHERE h.name=?1 AND h.mode=0) c WHERE c.slot<q.kind AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.mode=0 AND h.slot=c.slot)) END
-- Who waits while its owner id has a permit joins that by its own try, and is passed
-- none: reenter.c (7).
-- let: joins = (q.kind>0 AND q.owner IS NOT NULL AND EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.owner=q.owner AND h.mode=0 AND h.permits=q.kind AND h.kept=0 AND h.token NOT LIKE '!%' AND {live}))
-- let: front = (SELECT min(q.ticket) FROM @Q q WHERE {waits} AND NOT {joins})
-- let: group = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,boot,acquired,expires,owner,note) SELECT ?1, k.token, 0, k.kind, k.slot, max(t.fence+1,?10)+k.nr, @{0@|t.version+1+k.nr@}, k.ms, 0, ?9, ?8, @{?8+k.ms@|NULL@}, k.owner, k.note FROM @T t, (SELECT q.*, CASE WHEN q.token=?2 THEN ?3 ELSE min(q.ttl_ms,5000) END ms, {slot} slot, (SELECT count(*) FROM @Q o WHERE {ahead}) nr FROM @Q q WHERE {waits} AND CASE WHEN q.kind>0 THEN q.ticket={front} ELSE q.kind=0 AND NOT EXISTS (SELECT 1 FROM @Q o WHERE {ahead} AND o.kind<>q.kind) END) k WHERE t.name=?1 AND k.slot IS NOT NULL AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.token IN (k.token,'!'||k.token)) AND (t.token IS NULL OR (t.token='*'||k.kind AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.mode=1))) AND (k.kind>0 OR NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.mode=2))
-- let: counted = UPDATE @T AS t SET token='*'||g.p, fence=max(t.fence,g.f), ttl_ms=a.m, owner=NULL, note=NULL, @{boot=?9,acquired=?8,expires=a.e@|version=max(t.version+1,g.v)@} FROM (SELECT max(h.permits) p,max(h.fence) f,max(h.version) v FROM @H h WHERE h.name=?1 AND h.mode=0 AND (h.token=?2 OR h.token IN (SELECT q.token FROM @Q q WHERE q.name=?1))) g, {full} WHERE t.name=?1 AND g.p IS NOT NULL AND a.n>0
-- let: has = (EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.token=q.token) OR q.token=(SELECT t.token FROM @T t WHERE t.name=?1))
-- let: told = SELECT q.channel hf_ring FROM @Q q WHERE q.name=?1 AND (q.kind=-2 OR (q.token<>?2 AND {has})); DELETE FROM @Q AS q WHERE q.name=?1 AND (q.kind=-2 OR NOT ({lasts}) OR (q.token=?2 AND (NOT ?6 OR {broken})) OR {has})
-- let: admit = {plain}; {group}; {counted}; {told}
-- let: over = DELETE FROM @H AS h WHERE h.name=?1 AND (NOT {live} OR (h.mode<2 AND EXISTS (SELECT 1 FROM @T t WHERE t.name=?1 AND (t.token IS NULL OR t.token NOT LIKE '*%' OR @{t.boot<>?9 OR t.expires<=?8@|h.version=?7 OR (?11<=0 AND t.version=?7)@}))))
-- let: freed = UPDATE @T AS t SET token=NULL,@{expires=NULL@|version=t.version+1@} WHERE t.name=?1 AND t.token<>?2 AND ((t.token LIKE '*%' AND NOT EXISTS (SELECT 1 FROM @H h WHERE h.name=?1 AND h.mode<2)) OR @{t.boot<>?9 OR t.expires<=?8@|(t.token NOT LIKE '*%' AND t.version=?7)@})
-- let: next = EXISTS (SELECT 1 FROM @Q q WHERE {waits} AND q.kind>0 AND NOT {joins} AND t.token='*'||q.kind AND (SELECT count(DISTINCT h.slot) FROM @H h WHERE h.name=?1 AND h.mode=0)<q.kind)
-- Equal owner ids have one permit together: backend/sql/reenter.c.
-- let: rejoin = INSERT INTO @H (name,token,mode,permits,slot,fence,version,ttl_ms,kept,boot,acquired,expires,owner,note) SELECT ?1, ?2, 0, ?11, h.slot, h.fence, @{0@|t.version+1@}, ?3, 0, ?9, ?8, @{?8+?3@|NULL@}, ?4, ?5 FROM @T t,@H h WHERE t.name=?1 AND ?11>0 AND t.token='*'||?11 AND h.name=?1 AND h.owner=?4 AND h.mode=0 AND h.permits=?11 AND h.kept=0 AND h.token NOT LIKE '!%' AND {live} AND NOT EXISTS (SELECT 1 FROM @H o WHERE o.name=?1 AND o.token IN (?2,'!'||?2)) LIMIT 1

-- name: enter
INSERT INTO @T (name,fence,ttl_ms@{@|,version@}) VALUES (?1,0,0@{@|,?10@})
ON CONFLICT (name) DO NOTHING;
{over};
{freed};
{rejoin};
INSERT INTO @Q ({columns})
SELECT {ticket}
FROM @T t
WHERE t.name=?1 AND t.token IS NOT ?2
    AND NOT EXISTS (SELECT 1 FROM @H h WHERE {mine})
    AND max(?11,0)=coalesce(
        CASE WHEN t.token LIKE '*%' THEN CAST(substr(t.token,2) AS INTEGER)
            WHEN t.token IS NOT NULL THEN 0 END,
        (SELECT max(q.kind,0) FROM @Q q WHERE {waits} LIMIT 1), max(?11,0)
    )
{again};
{admit};
UPDATE @H AS h
SET ttl_ms=max(ttl_ms,?3),
    fence=CASE WHEN fence<?15 AND NOT {joined}
        THEN (SELECT max(t.fence,?15)+1 FROM @T t WHERE t.name=?1)
        ELSE fence END,
    @{expires=max(expires,?8+?3)
    @|version=(SELECT t.version+1 FROM @T t WHERE t.name=?1)@}
WHERE {mine};
UPDATE @T AS t
SET ttl_ms=a.m,
    fence=max(t.fence,(SELECT max(h.fence) FROM @H h WHERE {mine})),
    @{expires=a.e@|version=t.version+1@}
FROM {full}
WHERE t.name=?1 AND t.token LIKE '*%' AND a.n>0
    AND EXISTS (SELECT 1 FROM @H h WHERE {mine});
UPDATE @T AS t
SET ttl_ms=max(t.ttl_ms,?3), fence={raised},
    @{expires=max(t.expires,?8+?3)@|version=t.version+1@}
WHERE t.name=?1 AND t.token=?2 AND ?11<0;
SELECT coalesce(
        g.fence, CASE WHEN t.token=?2 THEN t.fence WHEN {broken} THEN -1 END, 0
    ) hf,
    CASE WHEN t.token IS NULL THEN 0
        WHEN t.token LIKE '*%' THEN
            (
                SELECT CASE WHEN ?11>0 THEN min({left}) ELSE max({left}) END
                FROM @H h
                WHERE h.name=?1 AND h.mode<2
            )
        ELSE {left_ms} END,
    @{0@|CASE WHEN ?11>0 AND t.token LIKE '*%' THEN d.version
        ELSE t.version END@},
    @{0@|CASE WHEN ?11>0 AND t.token LIKE '*%' THEN d.ttl_ms
        ELSE t.ttl_ms END@},
    {next}, g.slot,
    coalesce(
        CASE WHEN t.token LIKE '*%' THEN t.token
            WHEN t.token IS NOT NULL THEN '*0' END,
        (
            SELECT '*'||max(q.kind,0)
            FROM @Q q
            WHERE {waits} AND q.token<>?2
            LIMIT 1
        )
    ),
    {place}
FROM @T t
LEFT JOIN (SELECT h.fence,h.slot FROM @H h WHERE {mine}) g ON 1
LEFT JOIN (
    SELECT h.version,h.ttl_ms
    FROM @H h
    WHERE h.name=?1 AND h.mode=0 AND h.kept=0
    ORDER BY h.version
    LIMIT 1
) d ON 1
WHERE t.name=?1;

-- name: leave
SELECT 1 hf FROM @H h WHERE {gone} AND (h.mode=2 OR {shared})
UNION ALL
SELECT 1 FROM @Q q WHERE q.name=?1 AND q.token=?2;
DELETE FROM @Q WHERE name=?1 AND token=?2;
UPDATE @T AS t
SET token=CASE WHEN a.n>0 THEN t.token END, ttl_ms=coalesce(a.m,t.ttl_ms),
    @{expires=a.e@|version=t.version+1@}
FROM (
    SELECT count(*) n,max(h.expires) e,max(h.ttl_ms) m
    FROM @H h
    WHERE h.name=?1 AND h.mode<2 AND {live} AND NOT ({gone})
) a
WHERE t.name=?1 AND t.token LIKE '*%'
    AND EXISTS (SELECT 1 FROM @H h WHERE {gone} AND h.mode<2);
SELECT NULL hf_ring
FROM @T t,@H h
WHERE t.name=?1 AND t.wanted AND {gone}
    AND (t.token IS NULL OR h.permits>0 OR h.mode=2);
DELETE FROM @H AS h WHERE {gone};
{admit};

-- name: admit
{over};
{freed};
{admit};
SELECT 1 hf FROM @T t WHERE t.name=?1 AND {next};

-- name: look
SELECT @{CASE WHEN boot=?9 THEN token END@|token@}, fence,
    @{expires-?8@|NULL@}, @{?8-acquired@|NULL@}, owner, note,
    @{0@|version@}, ttl_ms, {waiters}, name
FROM @T l
WHERE name=?1;

-- From the fence ?7 on also what is free; of that the newest, if ?7 is -1.
-- let: newest = (SELECT max(n.fence) FROM @T n WHERE substr(n.name,1,length(?1))=?1)
-- name: list
SELECT @{CASE WHEN boot=?9 THEN token END@|token@}, fence,
    @{expires-?8@|NULL@}, @{?8-acquired@|NULL@}, owner, note,
    @{0@|version@}, ttl_ms, {waiters}, name
FROM @T l
WHERE substr(name,1,length(?1))=?1
    AND (
        (token IS NOT NULL @{AND boot=?9 AND expires>?8@|@})
        OR (?7>=0 AND fence>=?7) OR (?7<0 AND fence={newest})
    );

-- A ticket is a number and no time here.
-- name: waiters
SELECT q.token, q.owner, q.note, q.kind, NULL, q.expires-?8
FROM @Q q
WHERE {waits}
ORDER BY q.ticket;
