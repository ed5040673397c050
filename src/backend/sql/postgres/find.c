/* SPDX-License-Identifier: MIT
 *
 * find.c - where the table is, and who is trusted with it.
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
 *  (2) Each session verifies the table (verify.sql) before it touches it, and
 *      again after it may have been made.
 *  (3) Trusted are ourselves and superusers; the owner of the database, unless
 *      we are a superuser; and the owner of the schema, if the URL names the
 *      schema.  Nobody else may own the table, its schema, or a function of a
 *      trigger on it.
 *  (4) No table is looked for or made in a schema of the server's own (pg_*): a
 *      temporary table excludes nobody.
 */
#include "postgres.h"

#include "base/alloc.h"

#include "base/banned.h"

/* $1 the path, as an array; $2 the table. */
#define FIND                                                                                   \
    "SELECT quote_literal(n.nspname),"                                                         \
    "'\"'||replace(n.nspname,'\"','\"\"')||'\"' FROM "                                         \
    "unnest($1::name[]) WITH ORDINALITY p(name,place) JOIN pg_namespace n ON "                 \
    "n.nspname=p.name WHERE n.nspname!~'^pg_' ORDER BY EXISTS(SELECT 1 FROM pg_class c WHERE " \
    "c.relnamespace=n.oid AND c.relname=$2) DESC,p.place LIMIT 1"

hf_status pg_find(struct pg_session *ps, const char *path, int64_t deadline,
                  struct hf_error *err)
{
    struct pg_conn *pc = (struct pg_conn *)ps->base.conn;
    const char *table = pc->sql.table, *dot = strchr(table, '.');
    const char *const values[] = {path, table};
    PGresult *result = NULL;
    hf_status st;

    if (dot)
        return strncmp(table, "pg_", 3)
                   ? HF_OK
                   : hfi_fail(
                         err, HF_INVALID,
                         "url: table=%s: the schemas pg_* are the server's "
                         "own, and a temporary table excludes nobody",
                         table);
    st = pg_ask(ps, FIND, 2, values, &result, deadline, err);
    if (!st && !pg_value(result, 0, 1))
        st = hfi_fail(err, HF_INVALID,
                      "no schema is searched for the lock table: name one by "
                      "table=SCHEMA.NAME");
    if (!st) {
        snprintf(pc->sql.home, sizeof(pc->sql.home), "%s",
                 pg_value(result, 0, 0));
        snprintf(pc->sql.schema, sizeof(pc->sql.schema), "%s",
                 pg_value(result, 0, 1));
    }
    PQclear(result);
    return st;
}
