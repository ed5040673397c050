-- SPDX-License-Identifier: MIT
--
-- several.sql - several keys in one transaction, on SQLite: many.c.

-- name: take
BEGIN IMMEDIATE;
