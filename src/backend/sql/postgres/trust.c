/* SPDX-License-Identifier: MIT
 *
 * trust.c - where the table is, and whether its owner can be trusted.
 *
 * A table is more than data: its triggers, rules, policies, defaults and
 * constraints are code, which runs with the rights of whoever writes to it.  A
 * role that may create a table in a schema that we search could so act as ours.
 *
 * A table must also keep what was committed: one that is not logged is emptied
 * after a crash, and every lock in it would be granted again.
 *
 * INVARIANTS
 *  (1) Every name in a statement is qualified, or is found in pg_catalog, which
 *      is all that our sessions search.
 *  (2) Each session looks at the table in the catalog before it touches it, and
 *      again after it may have been made.
 *  (3) Trusted are ourselves and superusers; the owner of the database, unless
 *      we are a superuser; and the owner of the schema, if the URL names the
 *      schema.  Nobody else may own the table, its schema, or a function of a
 *      trigger on it.
 */
#include "postgres.h"

#include "base/alloc.h"

#include "base/banned.h"

#define OWNED "datname=current_database()"

/* $1 the path, as an array; $2 the table. */
#define FIND                                                                   \
    "SELECT n.nspname,'\"'||replace(n.nspname,'\"','\"\"')||'\"' FROM "        \
    "unnest($1::name[]) WITH ORDINALITY p(name,place) JOIN pg_namespace n ON " \
    "n.nspname=p.name ORDER BY EXISTS(SELECT 1 FROM pg_class c WHERE "         \
    "c.relnamespace=n.oid AND c.relname=$2) DESC,p.place LIMIT 1"

/* $1 the schema, $2 and $3 the tables, $4 whether the URL names the schema.
 * One row for each table that there is, with the reason against it or NULL. */
#define TRUST                                                                  \
    "WITH me AS (SELECT oid,rolsuper FROM pg_roles WHERE "                     \
    "rolname=current_user),"                                                   \
    "db AS (SELECT r.oid FROM pg_roles r WHERE r.rolname='pg_database_owner' " \
    "OR r.oid=(SELECT datdba FROM pg_database WHERE " OWNED ")),"              \
    "n AS (SELECT oid,nspowner FROM pg_namespace WHERE nspname=$1),"           \
    "ok AS (SELECT r.oid FROM pg_roles r,me WHERE r.oid=me.oid OR "            \
    "r.rolsuper OR (NOT me.rolsuper AND r.oid IN (SELECT oid FROM db)) OR "    \
    "($4='1' AND r.oid=(SELECT nspowner FROM n))) "                            \
    "SELECT c.relname AS hf_trust,CASE "                                       \
    "WHEN n.nspowner NOT IN (SELECT oid FROM ok UNION SELECT oid FROM db) "    \
    "THEN 'its schema belongs to role '||pg_get_userbyid(n.nspowner) "         \
    "WHEN c.relkind<>'r' OR c.relispartition OR c.relhassubclass "             \
    "THEN 'it is not an ordinary table' "                                      \
    "WHEN c.relpersistence<>'p' "                                              \
    "THEN 'a crash of the server would empty it (UNLOGGED, TEMPORARY)' "       \
    "WHEN c.relowner NOT IN (SELECT oid FROM ok) "                             \
    "THEN 'it belongs to role '||pg_get_userbyid(c.relowner) "                 \
    "WHEN c.relhasrules THEN 'it has rules' "                                  \
    "WHEN c.relrowsecurity THEN 'it has row security' "                        \
    "WHEN EXISTS(SELECT 1 FROM pg_trigger t JOIN pg_proc p ON p.oid=t.tgfoid " \
    "WHERE t.tgrelid=c.oid AND NOT t.tgisinternal AND p.proowner NOT IN "      \
    "(SELECT oid FROM ok)) THEN 'it has a trigger of another role' "           \
    "WHEN EXISTS(SELECT 1 FROM pg_depend d WHERE " TRUST_PARTS " AND "         \
    "d.refclassid IN ('pg_proc'::regclass,'pg_operator'::regclass,"            \
    "'pg_type'::regclass,'pg_opclass'::regclass)) "                            \
    "THEN 'a column, default, constraint or index of it is not built in' "     \
    "END FROM n JOIN pg_class c ON c.relnamespace=n.oid AND "                  \
    "c.relname IN ($2,$3)"

/* The table, and what hangs on it.  What is built in leaves no dependency. */
#define TRUST_PARTS                                                            \
    "((d.classid='pg_class'::regclass AND (d.objid=c.oid OR d.objid IN "       \
    "(SELECT indexrelid FROM pg_index WHERE indrelid=c.oid))) OR "             \
    "(d.classid='pg_attrdef'::regclass AND d.objid IN (SELECT oid FROM "       \
    "pg_attrdef WHERE adrelid=c.oid)) OR "                                     \
    "(d.classid='pg_constraint'::regclass AND d.objid IN (SELECT oid FROM "    \
    "pg_constraint WHERE conrelid=c.oid)))"

hf_status pg_find(struct pg_session *ps, const char *path, int64_t deadline,
                  struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;
    const char *table = pc->sql.table, *dot = strchr(table, '.');
    const char *const values[] = {path, table};
    PGresult *result = NULL;
    hf_status st;

    pc->named = dot;
    if (dot) {
        snprintf(pc->schema, sizeof(pc->schema), "%.*s", (int)(dot - table),
                 table);
        return HF_OK;
    }
    st = pg_ask(ps, FIND, 2, values, &result, deadline, err);
    if (!st && !pg_value(result, 0, 1))
        st = hfi_fail(err, HF_INVALID,
                      "no schema is searched for the lock table: name one by "
                      "table=SCHEMA.NAME");
    if (!st) {
        snprintf(pc->schema, sizeof(pc->schema), "%s", pg_value(result, 0, 0));
        snprintf(pc->sql.schema, sizeof(pc->sql.schema), "%s",
                 pg_value(result, 0, 1));
    }
    PQclear(result);
    return st;
}

struct trust {
    char fence[SQL_TABLE_MAX + 8];
    const char *values[4];
};

static void trust_values(const struct pg_conn *pc, struct trust *ret)
{
    const char *dot = strchr(pc->sql.table, '.');
    const char *table = dot ? dot + 1 : pc->sql.table;

    snprintf(ret->fence, sizeof(ret->fence), "%s_fence", table);
    ret->values[0] = pc->schema;
    ret->values[1] = table;
    ret->values[2] = pc->sql.strategy == SQL_ROW ? ret->fence : table;
    ret->values[3] = pc->named ? "1" : "0";
}

/* TRUST with its values in their places. */
char *pg_trust_text(struct pg_session *ps)
{
    char text[sizeof(TRUST) + 8 * (4 * SQL_SCHEMA_MAX)], *ret;
    struct trust trust;
    const char *from = TRUST;
    size_t at = 0;

    trust_values((struct pg_conn *)ps->base.conn, &trust);
    for (; *from && at + 1 < sizeof(text); from++) {
        const char *value;
        char *quoted;

        if (*from != '$') {
            text[at++] = *from;
            continue;
        }
        value = trust.values[*++from - '1'];
        quoted = PQescapeLiteral(ps->pg, value, strlen(value));
        if (!quoted)
            return NULL;
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s", quoted);
        PQfreemem(quoted);
    }
    ret = at + 1 < sizeof(text) ? hfi_alloc(at + 1) : NULL;
    if (ret)
        memcpy(ret, text, at);
    return ret;
}

hf_status pg_trust_judge(struct pg_session *ps, const PGresult *result,
                         struct hf_error *err)
{
    const struct pg_conn *pc = (const struct pg_conn *)ps->base.conn;
    int i;

    for (i = 0; i < PQntuples(result); i++) {
        const char *name = pg_value(result, i, 0);
        const char *why = pg_value(result, i, 1);

        if (why && name)
            return hfi_fail(err, HF_DENIED,
                            "the table %.64s.%.64s is not to be trusted: "
                            "%.80s; drop it, or name another by table=",
                            pc->schema, name, why);
    }
    return HF_OK;
}

hf_status pg_trust(struct pg_session *ps, int64_t deadline,
                   struct hf_error *err)
{
    struct trust trust;
    PGresult *result = NULL;
    hf_status st;

    trust_values((struct pg_conn *)ps->base.conn, &trust);
    st = pg_ask(ps, TRUST, 4, trust.values, &result, deadline, err);
    if (!st)
        st = pg_trust_judge(ps, result, err);
    PQclear(result);
    return st;
}
