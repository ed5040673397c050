/* SPDX-License-Identifier: MIT
 *
 * raw_postgres.c - bare libpq: the statements of the backend.
 */
#include "sql.h"

#include <libpq-fe.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sql/postgres/postgres.h"

struct raw {
    PGconn *pg;
};

static PGresult *raw_exec(PGconn *pg, const char *text)
{
    PGresult *result = PQexec(pg, text);
    ExecStatusType status = PQresultStatus(result);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        raw_die("postgres", PQerrorMessage(pg));
    return result;
}

static PGconn *raw_connect(const char *where)
{
    static const Oid types[] = {17, 25, 20, 17, 17, 20, 20};
    PGconn *pg = PQconnectdb(where);
    char *take = raw_text(pg_queue_texts[SQL_ACQUIRE], "raw_lock", "raw_lock");
    char *again = raw_text(pg_queue_texts[SQL_RETAKE], "raw_lock", "raw_lock");
    char *give = raw_text(pg_queue_texts[SQL_RELEASE], "raw_lock", "raw_lock");
    char *make = raw_text(pg_lease_texts[SQL_CREATE], "raw_lock", "raw_lock");
    char *queue =
        raw_text(pg_queue_texts[SQL_CREATE_QUEUE], "raw_lock", "raw_lock");

    if (PQstatus(pg) != CONNECTION_OK)
        raw_die("postgres", PQerrorMessage(pg));
    PQclear(raw_exec(pg, "SET client_min_messages=error;"
                         "SET plan_cache_mode=force_generic_plan"));
    PQclear(raw_exec(pg, make));
    PQclear(raw_exec(pg, queue));
    PQclear(PQprepare(pg, "take", take, 7, types));
    PQclear(PQprepare(pg, "again", again, 7, types));
    PQclear(PQprepare(pg, "give", give, 7, types));
    free(take);
    free(again);
    free(give);
    free(make);
    free(queue);
    return pg;
}

static struct raw *raw_pg_open(const char *where)
{
    struct raw *raw = malloc(sizeof(*raw));

    raw->pg = raw_connect(where);
    return raw;
}

static bool raw_run(struct raw *raw, const char *name, const char *key,
                    const char *token)
{
    static const int formats[] = {1, 1, 0, 1, 1, 0, 0};
    const char *const values[] = {key, token, "30000", NULL, "n", "0", "-1"};
    const int lengths[] = {(int)strlen(key), (int)strlen(token), 0, 0, 1, 0, 0};
    PGresult *result =
        PQexecPrepared(raw->pg, name, 7, values, lengths, formats, 1);
    bool ok =
        PQresultStatus(result) == PGRES_TUPLES_OK && PQntuples(result) == 1;

    PQclear(result);
    return ok;
}

static bool raw_pg_take(struct raw *raw, const char *key, const char *token)
{
    return raw_run(raw, "again", key, token) ||
           raw_run(raw, "take", key, token);
}

static bool raw_pg_give(struct raw *raw, const char *key, const char *token)
{
    return raw_run(raw, "give", key, token);
}

static void raw_pg_close(struct raw *raw)
{
    PQfinish(raw->pg);
    free(raw);
}

const struct raw_kind raw_postgres = {"postgres", raw_pg_open, raw_pg_take,
                                      raw_pg_give, raw_pg_close};
