/* SPDX-License-Identifier: MIT
 *
 * raw_postgres.c - bare libpq: the statements of the backend, and two bells.
 *
 * Both bells do what a lock over them would have to: the waiter is told, then
 * takes the row.  With NOTIFY the release rings in its own transaction and the
 * waiter's connection becomes readable.  With the advisory lock, the holder
 * keeps pg_advisory_lock(key) and gives it up after its row; the waiter's
 * statement, which has waited for it, returns.
 */
#include "sql.h"

#include <libpq-fe.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/backend/postgres.h"

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
    char *take = raw_text(pg_lease_texts[SQL_ACQUIRE], "raw_lock", "raw_lock");
    char *give = raw_text(pg_lease_texts[SQL_RELEASE], "raw_lock", "raw_lock");
    char *make = raw_text(pg_lease_texts[SQL_CREATE], "raw_lock", "raw_lock");

    if (PQstatus(pg) != CONNECTION_OK)
        raw_die("postgres", PQerrorMessage(pg));
    PQclear(raw_exec(pg, "SET client_min_messages=error;"
                         "SET plan_cache_mode=force_generic_plan"));
    PQclear(raw_exec(pg, make));
    PQclear(PQprepare(pg, "take", take, 7, types));
    PQclear(PQprepare(pg, "give", give, 7, types));
    free(take);
    free(give);
    free(make);
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
    return raw_run(raw, "take", key, token);
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

/* Each takes a number, and so does asking for it. */
static long raw_pg_writes(struct raw *raw)
{
    PGresult *result = raw_exec(raw->pg, "SELECT txid_current()");
    long ret = strtol(PQgetvalue(result, 0, 0), NULL, 10);

    PQclear(result);
    return ret;
}

const struct raw_kind raw_postgres = {"postgres",  raw_pg_open,  raw_pg_take,
                                      raw_pg_give, raw_pg_close, raw_pg_writes};

/* ---- pgbench ------------------------------------------------------------ */

/* One statement in the words of pgbench, which has no bytes for parameters. */
static void raw_script_one(const char *text)
{
    static const char *const values[] = {
        "convert_to('many '||:client_id::text,'UTF8')",
        "md5(:client_id::text)",
        "30000::int8",
        "NULL::bytea",
        "'n'::bytea",
        "0::int8",
        "(-1)::int8"};
    char *full = raw_text(text, "raw_lock", "raw_lock");

    for (const char *at = full; *at; at++) {
        if (*at == '$')
            fputs(values[*++at - '1'], stdout);
        else
            putchar(*at);
    }
    puts(";");
    free(full);
}

void raw_script(void)
{
    raw_script_one(pg_lease_texts[SQL_ACQUIRE]);
    raw_script_one(pg_lease_texts[SQL_RELEASE]);
}

/* ---- bells -------------------------------------------------------------- */

struct waiter {
    struct raw raw;
    PGconn *ear;
    bool advisory;
    double taken; /* when it had the row */
};

static void *wait_and_take(void *arg)
{
    struct waiter *w = arg;
    struct pollfd pfd = {.fd = PQsocket(w->ear), .events = POLLIN};
    PGnotify *note;

    if (w->advisory) {
        PQclear(raw_exec(w->ear, "SELECT pg_advisory_lock(7)"));
    } else {
        poll(&pfd, 1, 5000);
        PQconsumeInput(w->ear);
        while ((note = PQnotifies(w->ear)))
            PQfreemem(note);
    }
    if (!raw_pg_take(&w->raw, "bell", "waiter"))
        raw_die("bell", "the row was not free");
    w->taken = raw_now_us();
    if (w->advisory)
        PQclear(raw_exec(w->ear, "SELECT pg_advisory_unlock(7)"));
    return NULL;
}

static double raw_bell(const char *where, int rounds, bool advisory)
{
    struct raw holder = {raw_connect(where)};
    struct waiter w = {.raw = {raw_connect(where)},
                       .ear = PQconnectdb(where),
                       .advisory = advisory};
    PGconn *bell = PQconnectdb(where);
    double sum = 0, began;
    pthread_t thread;

    PQclear(raw_exec(w.ear, "LISTEN raw_lock"));
    for (int i = 0; i < rounds; i++) {
        if (!raw_pg_take(&holder, "bell", "holder"))
            raw_die("bell", "the row was not free");
        if (advisory)
            PQclear(raw_exec(bell, "SELECT pg_advisory_lock(7)"));
        else
            PQclear(raw_exec(bell, "UPDATE raw_lock SET wanted=true "
                                   "WHERE name='bell'"));
        pthread_create(&thread, NULL, wait_and_take, &w);
        poll(NULL, 0, 5);
        began = raw_now_us();
        raw_pg_give(&holder, "bell", "holder");
        if (advisory)
            PQclear(raw_exec(bell, "SELECT pg_advisory_unlock(7)"));
        pthread_join(thread, NULL);
        sum += w.taken - began;
        raw_pg_give(&w.raw, "bell", "waiter");
    }
    PQfinish(holder.pg);
    PQfinish(w.raw.pg);
    PQfinish(w.ear);
    PQfinish(bell);
    return sum / rounds;
}

void raw_bells(const char *where, int rounds, double *notify, double *advisory)
{
    *notify = raw_bell(where, rounds, false);
    *advisory = raw_bell(where, rounds, true);
}
