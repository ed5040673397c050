-- SPDX-License-Identifier: MIT
--
-- lease.sql - strategy lease on SQLite.
--
-- @T is the table; ?1 to ?7 are the parameters of backend/sql/sql.h.  Beside
-- them there are ?8, the time since boot in ms, read before the statement was
-- sent, ?9, the id of this boot, and ?10, the wall clock in microseconds, which
-- goes into fences only.  A lease of another boot is over: its holder died with
-- it.

-- name: create
CREATE TABLE IF NOT EXISTS @T (
    name BLOB PRIMARY KEY, token TEXT, fence INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL, wanted INTEGER NOT NULL DEFAULT 0, owner BLOB,
    note BLOB, boot TEXT, acquired INTEGER, expires INTEGER
) WITHOUT ROWID;

-- name: acquire
INSERT INTO @T AS l (name,token,fence,ttl_ms,owner,note,boot,acquired,expires)
VALUES (?1,?2,?10,?3,?4,?5,?9,?8,?8+?3)
ON CONFLICT (name) DO UPDATE
SET fence=CASE WHEN l.token IS ?2 THEN l.fence ELSE max(l.fence+1,?10) END,
    wanted=CASE WHEN l.token IS ?2 THEN l.wanted ELSE 0 END,
    ttl_ms=CASE WHEN l.token IS ?2 THEN max(l.ttl_ms,?3) ELSE ?3 END,
    token=?2, owner=?4, note=?5, boot=?9, acquired=?8,
    expires=CASE WHEN l.token IS ?2 AND l.boot=?9 THEN max(l.expires,?8+?3)
        ELSE ?8+?3 END
WHERE l.token IS NULL OR l.token=?2 OR l.boot<>?9 OR l.expires<=?8
RETURNING fence;

-- name: renew
UPDATE @T
SET ttl_ms=CASE WHEN ?6 THEN ?3 ELSE max(ttl_ms,?3) END,
    expires=CASE WHEN ?6 OR boot<>?9 THEN ?8+?3 ELSE max(expires,?8+?3) END,
    boot=?9
WHERE name=?1 AND token=?2 AND fence=?7;

-- Many are one transaction of single ones: there is no way to the server that
-- could be saved, but a commit.
-- name: renew_many
BEGIN IMMEDIATE;

-- name: release
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,expires=NULL
WHERE name=?1 AND token=?2
RETURNING wanted;

-- name: break
UPDATE @T
SET token='!'||token
WHERE name=?1 AND fence=?7 AND token NOT LIKE '!%' AND token NOT LIKE '*%'
    AND boot=?9 AND expires>?8;

-- What the fence names, whatever its token, is over at once.
-- name: free
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,expires=NULL
WHERE name=?1 AND token NOT LIKE '*%' AND fence=?7 AND boot=?9 AND expires>?8
RETURNING wanted;

-- name: take
UPDATE @T
SET token=?2
WHERE name=?1 AND fence=?7 AND token IN (?2,CAST(?5 AS TEXT));

-- name: look
SELECT CASE WHEN boot=?9 THEN token END, fence, expires-?8, ?8-acquired,
    owner, note, 0, ttl_ms, wanted, name
FROM @T
WHERE name=?1;

-- From the fence ?7 on also what is free; of that the newest, if ?7 is -1.
-- let: newest = (SELECT max(n.fence) FROM @T n WHERE substr(n.name,1,length(?1))=?1)
-- name: list
SELECT CASE WHEN boot=?9 THEN token END, fence, expires-?8, ?8-acquired,
    owner, note, 0, ttl_ms, wanted, name
FROM @T
WHERE substr(name,1,length(?1))=?1
    AND (
        (token IS NOT NULL AND boot=?9 AND expires>?8)
        OR (?7>=0 AND fence>=?7) OR (?7<0 AND fence={newest})
    );

-- name: want
UPDATE @T SET wanted=1 WHERE name=?1 AND token IS NOT NULL AND wanted=0;
