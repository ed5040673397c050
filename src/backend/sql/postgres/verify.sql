-- SPDX-License-Identifier: MIT
--
-- verify.sql - everything that the statements on PostgreSQL rely on, asked of
-- the catalog before a table is touched.  @S is the schema, @N the table, as
-- strings; @C has a dot if the URL names the schema.
--
-- The question begins with the columns of a strategy and goes on with `table`.
-- Its answer is one row for a table that is there: its name, why it is not to
-- be trusted, and why it is not fit; NULL where there is nothing to say.
-- backend/sql/verify.c judges it; find.c (3) tells who is trusted.
--
-- What is new in the catalog is read by to_jsonb(), so that older servers need
-- not know it.

-- let: time = 'timestamp(.6.)? with time zone'
-- let: text = 'text|character varying'
-- let: made = to_jsonb(a)->>'attidentity',to_jsonb(a)->>'attgenerated'
-- let: type = format_type(a.atttypid,a.atttypmod)
-- let: there = a.attrelid=c.oid AND a.attnum>0 AND NOT a.attisdropped

-- Of each column: its name, a pattern of its type with precision and length,
-- and whether it must take NULL.
-- name: lease
WITH r(c,t,o) AS (
    VALUES ('name','bytea',false), ('token',{text},true),
        ('fence','bigint',false), ('ttl_ms','bigint',false),
        ('owner','bytea',true), ('note','bytea',true),
        ('wanted','boolean',false), ('acquired_at',{time},true),
        ('expires_at',{time},true)
);

-- name: version
WITH r(c,t,o) AS (
    VALUES ('name','bytea',false), ('token',{text},true),
        ('fence','bigint',false), ('ttl_ms','bigint',false),
        ('owner','bytea',true), ('note','bytea',true),
        ('wanted','boolean',false), ('version','bigint',false)
);

-- name: row
WITH r(c,t,o) AS (
    VALUES ('name','bytea',false), ('row_lock','boolean',false)
);

-- name: holders
WITH r(c,t,o) AS (
    VALUES ('name','bytea',false), ('token',{text},false),
        ('mode','bigint',false), ('permits','bigint',false),
        ('slot','bigint',false), ('fence','bigint',false),
        ('version','bigint',false), ('ttl_ms','bigint',false),
        ('kept','bigint',false), ('acquired_at',{time},true),
        ('expires_at',{time},true), ('owner','bytea',true),
        ('note','bytea',true)
);

-- name: queue
WITH r(c,t,o) AS (
    VALUES ('name','bytea',false), ('token',{text},false),
        ('ticket','bigint',false), ('kind','bigint',false),
        ('nth','bigint',false), ('ttl_ms','bigint',false),
        ('expires_at',{time},false), ('channel',{text},true),
        ('owner','bytea',true), ('note','bytea',true)
);

-- name: fence
WITH r(c,t,o) AS (
    VALUES ('name','bytea',false), ('token',{text},true),
        ('fence','bigint',false), ('ttl_ms','bigint',false),
        ('owner','bytea',true), ('note','bytea',true),
        ('acquired_at',{time},true), ('session','bigint',true)
);

-- A time that is rounded ends a lease earlier than its holder believes.  By a
-- collation that is not deterministic a token may equal that of a broken lock.
-- ON CONFLICT (name) fails without its key, or inserts a second row; and where
-- there is another key, one lock fails because of another.  A trigger BEFORE
-- ROW, alone of all, may change what is written.  A table with the columns of two
-- strategies would be used by both, and neither sees when a lock of the other is
-- over.  Of the dependencies of the
-- table and of what hangs on it, those on what is built in are not recorded.
-- name: table
,
    me AS (SELECT oid,rolsuper FROM pg_roles WHERE rolname=current_user),
    db AS (
        SELECT r.oid
        FROM pg_roles r
        WHERE r.rolname='pg_database_owner' OR r.oid=(
            SELECT datdba FROM pg_database WHERE datname=current_database()
        )
    ),
    n AS (SELECT oid,nspowner FROM pg_namespace WHERE nspname=@S),
    ok AS (
        SELECT r.oid
        FROM pg_roles r,me
        WHERE r.oid=me.oid OR r.rolsuper
            OR (NOT me.rolsuper AND r.oid IN (SELECT oid FROM db))
            OR (@C LIKE '%.%' AND r.oid=(SELECT nspowner FROM n))
    ),
    c AS (
        SELECT c.oid, c.relname, c.relkind, c.relispartition,
            c.relhassubclass, c.relpersistence, c.relowner, c.relhasrules,
            c.relrowsecurity, c.relam, n.nspowner
        FROM n
        JOIN pg_class c ON c.relnamespace=n.oid AND c.relname=@N
    ),
    d AS (
        SELECT 'pg_class'::regclass k,oid o FROM c
        UNION ALL
        SELECT 'pg_class'::regclass,indexrelid
        FROM pg_index
        WHERE indrelid IN (SELECT oid FROM c)
        UNION ALL
        SELECT 'pg_attrdef'::regclass,oid
        FROM pg_attrdef
        WHERE adrelid IN (SELECT oid FROM c)
        UNION ALL
        SELECT 'pg_constraint'::regclass,oid
        FROM pg_constraint
        WHERE conrelid IN (SELECT oid FROM c)
    ),
    t AS (
        SELECT t.tgtype,p.proowner
        FROM pg_trigger t
        JOIN pg_proc p ON p.oid=t.tgfoid
        WHERE t.tgrelid IN (SELECT oid FROM c) AND NOT t.tgisinternal
    ),
    y AS (
        SELECT CASE WHEN EXISTS(SELECT 1 FROM r WHERE r.c IN ('slot','ticket'))
            THEN 'name and token' ELSE 'name' END AS key
    ),
    i AS (
        SELECT i.indisunique AND i.indimmediate AND i.indisvalid
            AND i.indpred IS NULL AS whole,
            (
                SELECT string_agg(
                    coalesce(k.attname::text,'?'),' and ' ORDER BY u.o
                )
                FROM unnest(i.indkey::int2[]) WITH ORDINALITY u(n,o)
                LEFT JOIN pg_attribute k ON k.attrelid=i.indrelid
                    AND k.attnum=u.n
                WHERE u.o<=i.indnkeyatts
            )=y.key AS by_name
        FROM pg_index i,y
        WHERE i.indrelid IN (SELECT oid FROM c)
            AND (i.indisunique OR i.indisexclusion)
    )
SELECT c.relname AS hf_verify,
    CASE
        WHEN c.nspowner NOT IN (SELECT oid FROM ok UNION SELECT oid FROM db)
            THEN 'its schema belongs to role '||pg_get_userbyid(c.nspowner)
        WHEN c.relkind<>'r' OR c.relispartition OR c.relhassubclass
            OR EXISTS(SELECT 1 FROM pg_inherits WHERE inhrelid=c.oid)
            THEN 'it is not an ordinary table'
        WHEN c.relpersistence<>'p'
            THEN 'a crash of the server would empty it (UNLOGGED, TEMPORARY)'
        WHEN c.relowner NOT IN (SELECT oid FROM ok)
            THEN 'it belongs to role '||pg_get_userbyid(c.relowner)
        WHEN c.relhasrules THEN 'it has rules'
        WHEN c.relrowsecurity THEN 'it has row security'
        WHEN EXISTS(
            SELECT 1 FROM t WHERE t.proowner NOT IN (SELECT oid FROM ok)
        )
            THEN 'it has a trigger of another role'
        WHEN EXISTS(
            SELECT 1
            FROM d
            JOIN pg_depend p ON p.classid=d.k AND p.objid=d.o
            WHERE p.refclassid IN (
                'pg_proc'::regclass, 'pg_operator'::regclass,
                'pg_type'::regclass, 'pg_opclass'::regclass
            )
        )
            THEN 'a column, default, constraint or index of it is not built in'
    END,
    coalesce(
        (
            SELECT min(
                CASE
                    WHEN a.attname IS NULL
                        THEN 'it has no column '||r.c||', as if it were of '
                            ||'another strategy'
                    WHEN {type}!~('^('||r.t||')$')
                        THEN 'its column '||r.c||' is '||{type}||' and not '
                            ||replace(replace(r.t,'(.6.)?',''),'|',' or ')
                    WHEN concat({made})<>''
                        THEN 'its column '||r.c||' is generated'
                    WHEN r.o AND a.attnotnull
                        THEN 'its column '||r.c||' is NOT NULL'
                    WHEN to_jsonb(l)->>'collisdeterministic'='false'
                        THEN 'its column '||r.c||' has a collation by which '
                            ||'different texts are equal'
                END
            )
            FROM r
            LEFT JOIN pg_attribute a ON {there} AND a.attname=r.c
            LEFT JOIN pg_collation l ON l.oid=a.attcollation
        ),
        CASE
            WHEN NOT EXISTS(SELECT 1 FROM i WHERE i.whole AND i.by_name)
                THEN 'it has no unique index on its column '
                    ||(SELECT y.key FROM y)||' alone'
            WHEN EXISTS(SELECT 1 FROM i WHERE NOT i.by_name)
                THEN 'it has another unique index or exclusion constraint'
            WHEN EXISTS(
                SELECT 1
                FROM pg_attribute a
                WHERE {there} AND a.attname IN (
                    'token', 'expires_at', 'version', 'row_lock', 'session'
                ) AND a.attname NOT IN (SELECT r.c FROM r)
            )
                THEN 'it has a column of another strategy, too'
            WHEN EXISTS(
                SELECT 1
                FROM pg_attribute a
                WHERE {there} AND a.attname NOT IN (SELECT r.c FROM r)
                    AND (concat({made})<>''
                        OR (a.attnotnull AND NOT a.atthasdef))
            )
                THEN 'it has other columns that are generated, or NOT NULL '
                    ||'without a default'
            WHEN EXISTS(
                SELECT 1
                FROM pg_constraint
                WHERE conrelid=c.oid AND contype='f'
            )
                THEN 'it has a foreign key'
            WHEN EXISTS(SELECT 1 FROM t WHERE t.tgtype&3=3)
                THEN 'it has a trigger BEFORE ROW, which may change what is '
                    ||'written'
            WHEN c.relam NOT IN (0,2) THEN 'its access method is not heap'
        END
    )
FROM c;
