-- SPDX-License-Identifier: MIT
--
-- verify.sql - everything that the statements on SQLite rely on, asked of the
-- schema before a table is touched.  @N is the table, as a string.
--
-- The question begins with the columns of a strategy and goes on with `table`.
-- Its answer is one row for a table that is there: its name, NULL, and why it
-- is not fit, or NULL.  backend/sql/verify.c judges it.

-- Of each column: its name, its type, and whether it must take NULL.
-- name: lease
WITH r(c,t,o) AS (
    VALUES ('name','BLOB',0), ('token','TEXT',1), ('fence','INTEGER',0),
        ('ttl_ms','INTEGER',0), ('wanted','INTEGER',0), ('owner','BLOB',1),
        ('note','BLOB',1), ('boot','TEXT',1), ('acquired','INTEGER',1),
        ('expires','INTEGER',1)
);

-- name: version
WITH r(c,t,o) AS (
    VALUES ('name','BLOB',0), ('token','TEXT',1), ('fence','INTEGER',0),
        ('ttl_ms','INTEGER',0), ('wanted','INTEGER',0), ('owner','BLOB',1),
        ('note','BLOB',1), ('version','INTEGER',0)
);

-- name: holders
WITH r(c,t,o) AS (
    VALUES ('name','BLOB',0), ('token','TEXT',0), ('mode','INTEGER',0),
        ('permits','INTEGER',0), ('slot','INTEGER',0), ('fence','INTEGER',0),
        ('version','INTEGER',0), ('ttl_ms','INTEGER',0), ('kept','INTEGER',0),
        ('boot','TEXT',1), ('acquired','INTEGER',1), ('expires','INTEGER',1),
        ('owner','BLOB',1), ('note','BLOB',1)
);

-- name: queue
WITH r(c,t,o) AS (
    VALUES ('name','BLOB',0), ('token','TEXT',0), ('ticket','INTEGER',0),
        ('kind','INTEGER',0), ('nth','INTEGER',0), ('ttl_ms','INTEGER',0),
        ('boot','TEXT',0), ('expires','INTEGER',0), ('channel','TEXT',1),
        ('owner','BLOB',1), ('note','BLOB',1)
);

-- The type of a column converts what is stored in it: a token of digits would
-- become a number.  A key may say ON CONFLICT REPLACE, and so remove the row of
-- another lock; an INTEGER PRIMARY KEY is one, too, and has no index.  A table
-- with the columns of two strategies would be used by both, and neither sees
-- when a lock of the other is over.
-- name: table
,
    k AS (SELECT * FROM pragma_table_xinfo(@N,'main')),
    y AS (
        SELECT CASE WHEN EXISTS(SELECT 1 FROM r WHERE c IN ('slot','ticket'))
            THEN 'name and token' ELSE 'name' END AS key
    ),
    i AS (
        SELECT NOT l.partial AND (
            SELECT group_concat(coalesce(x.name,'?'),' and ')=y.key
                AND min(x.coll)='BINARY' AND max(x.coll)='BINARY'
            FROM y, pragma_index_xinfo(l.name,'main') x
            WHERE x.key
        ) AS by_name
        FROM pragma_index_list(@N,'main') l
        WHERE l."unique"
    )
SELECT m.name, NULL,
    CASE WHEN m.type='view' OR m.sql LIKE 'CREATE VIRTUAL%'
        THEN 'it is a view or a virtual table'
    ELSE coalesce(
        (
            SELECT min(
                CASE
                    WHEN k.name IS NULL
                        THEN 'it has no column '||r.c
                            ||', as if it were of another strategy'
                    WHEN k.hidden THEN 'its column '||r.c||' is generated'
                    WHEN upper(k.type)<>r.t
                        THEN 'its column '||r.c||' is '||k.type||' and not '
                            ||r.t
                    WHEN r.o AND k."notnull"
                        THEN 'its column '||r.c||' is NOT NULL'
                END
            )
            FROM r
            LEFT JOIN k ON k.name=r.c
        ),
        CASE
            WHEN NOT EXISTS(SELECT 1 FROM i WHERE i.by_name)
                THEN 'it has no unique index on its column '
                    ||(SELECT y.key FROM y)||' alone'
            WHEN EXISTS(SELECT 1 FROM i WHERE i.by_name IS NOT 1)
                OR EXISTS(
                    SELECT 1
                    FROM k,y
                    WHERE k.pk AND k.name<>'name'
                        AND NOT (k.name='token' AND y.key<>'name')
                )
                THEN 'it has another unique index'
            WHEN EXISTS(
                SELECT 1
                FROM k
                WHERE k.name IN ('expires','version')
                    AND k.name NOT IN (SELECT c FROM r)
            )
                THEN 'it has a column of another strategy, too'
            WHEN EXISTS(
                SELECT 1
                FROM k
                WHERE k.name NOT IN (SELECT c FROM r) AND (k.hidden
                    OR (k."notnull" AND k.dflt_value IS NULL))
            )
                THEN 'it has other columns that are generated, or NOT NULL '
                    ||'without a default'
            WHEN EXISTS(SELECT 1 FROM pragma_foreign_key_list(@N,'main'))
                THEN 'it has a foreign key'
            WHEN EXISTS(
                SELECT 1
                FROM main.sqlite_master g
                WHERE g.type='trigger' AND lower(g.tbl_name)=lower(@N)
            )
                THEN 'it has a trigger'
        END
    ) END
FROM main.sqlite_master m
WHERE m.type IN ('table','view') AND lower(m.name)=lower(@N);
