-- SPDX-License-Identifier: MIT
--
-- observe.sql - what an observer of a database file runs before it looks;
-- observe.c says what this promises.  It writes nothing.

-- name: settle
BEGIN IMMEDIATE;
COMMIT;
