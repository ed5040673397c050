/* SPDX-License-Identifier: MIT
 *
 * postgres.c - pg_advisory_lock() through bare libpq.
 */
#include "advisory.h"

#include <libpq-fe.h>

static const char *place;

static void *conn_open(void)
{
    PGconn *pg = PQconnectdb(place);

    if (PQstatus(pg) != CONNECTION_OK)
        bench_die("postgres: %s", PQerrorMessage(pg));
    PQclear(PQprepare(pg, "take",
                      "SELECT pg_advisory_lock(hashtextextended($1,0))", 1,
                      NULL));
    PQclear(PQprepare(pg, "give",
                      "SELECT pg_advisory_unlock(hashtextextended($1,0))", 1,
                      NULL));
    return pg;
}

static void conn_close(void *pg)
{
    PQfinish(pg);
}

static void run(PGconn *pg, const char *name, const char *key)
{
    PGresult *result = PQexecPrepared(pg, name, 1, &key, NULL, NULL, 0);

    if (PQresultStatus(result) != PGRES_TUPLES_OK)
        bench_die("postgres: %s", PQerrorMessage(pg));
    PQclear(result);
}

static void take(void *pg, const char *key)
{
    run(pg, "take", key);
}

static void give(void *pg, const char *key)
{
    run(pg, "give", key);
}

void advisory_become(struct cand_kind *kind, const char *where)
{
    place = where;
    *kind = (struct cand_kind){
        .name = "postgres-advisory",
        .open = conn_open,
        .close = conn_close,
        .take = take,
        .give = give,
        .await = take,
        .pass = give,
    };
}
