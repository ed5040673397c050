-- SPDX-License-Identifier: MIT
--
-- version.sql - strategy version on SQLite; see lease.sql.

-- name: create
CREATE TABLE IF NOT EXISTS @T (
    name BLOB PRIMARY KEY, token TEXT, fence INTEGER NOT NULL,
    ttl_ms INTEGER NOT NULL, wanted INTEGER NOT NULL DEFAULT 0, owner BLOB,
    note BLOB, version INTEGER NOT NULL
) WITHOUT ROWID;

-- name: acquire
INSERT INTO @T AS l (name,token,fence,ttl_ms,owner,note,version)
VALUES (?1,?2,?10,?3,?4,?5,?10)
ON CONFLICT (name) DO UPDATE
SET fence=CASE WHEN l.token IS ?2 THEN l.fence ELSE max(l.fence+1,?10) END,
    wanted=CASE WHEN l.token IS ?2 THEN l.wanted ELSE 0 END,
    ttl_ms=CASE WHEN l.token IS ?2 THEN max(l.ttl_ms,?3) ELSE ?3 END,
    token=?2, owner=?4, note=?5, version=l.version+1
WHERE l.token IS NULL OR l.token=?2 OR l.version=?7
RETURNING fence;

-- name: renew
UPDATE @T
SET ttl_ms=CASE WHEN ?6 THEN ?3 ELSE max(ttl_ms,?3) END,version=version+1
WHERE name=?1 AND token=?2 AND fence=?7;

-- name: renew_many
BEGIN IMMEDIATE;

-- name: release
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,version=version+1
WHERE name=?1 AND token=?2
RETURNING wanted;

-- name: break
UPDATE @T
SET token='!'||token
WHERE name=?1 AND fence=?7 AND token NOT LIKE '!%' AND token NOT LIKE '*%' AND 1;

-- name: free
UPDATE @T
SET token=NULL,owner=NULL,note=NULL,version=version+1
WHERE name=?1 AND token NOT LIKE '*%' AND fence=?7
RETURNING wanted;

-- name: take
UPDATE @T
SET token=?2
WHERE name=?1 AND fence=?7 AND token IN (?2,CAST(?5 AS TEXT));

-- name: look
SELECT token,fence,NULL,NULL,owner,note,version,ttl_ms,wanted,name
FROM @T
WHERE name=?1;

-- From the fence ?7 on also what is free; of that the newest, if ?7 is -1.
-- let: newest = (SELECT max(n.fence) FROM @T n WHERE substr(n.name,1,length(?1))=?1)
-- name: list
SELECT token,fence,NULL,NULL,owner,note,version,ttl_ms,wanted,name
FROM @T
WHERE substr(name,1,length(?1))=?1
    AND (
        token IS NOT NULL OR (?7>=0 AND fence>=?7)
        OR (?7<0 AND fence={newest})
    );

-- name: want
UPDATE @T SET wanted=1 WHERE name=?1 AND token IS NOT NULL AND wanted=0;
