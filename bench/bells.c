/* SPDX-License-Identifier: MIT
 *
 * bells.c - how a waiter on PostgreSQL is best told that a row is free.
 *
 * Both bells do what a lock over them would have to: the waiter is told, then
 * takes the row.  With NOTIFY the release rings in its own transaction and the
 * waiter's connection becomes readable.  With the advisory lock, the holder
 * keeps pg_advisory_lock(key) and gives it up after its row; the waiter's
 * statement, which has waited for it, returns.  That needs a connection for each
 * key on both sides, NOTIFY one for all keys: it must not be slower.
 *
 * `make bench BACKEND=postgres` runs it; alone, test/servers/postgres
 * build/bench/bench-bells.
 */
#include "bench.h"
#include "sql/sql.h"

#include <libpq-fe.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 40
#define TURNS  10

struct bell {
    bool advisory;
    struct raw *holder, *waiter;
    PGconn *here, *there; /* beside them, for the bell */
    double taken;         /* when the waiter had the row */
};

static void say(PGconn *pg, const char *text)
{
    PGresult *result = PQexec(pg, text);
    ExecStatusType status = PQresultStatus(result);

    if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
        raw_die("postgres", PQerrorMessage(pg));
    PQclear(result);
}

static void take(struct raw *raw, const char *token)
{
    if (!raw_postgres.take(raw, "bell", token))
        raw_die("bell", "the row was not free");
}

static void *wait_and_take(void *arg)
{
    struct bell *bell = arg;
    struct pollfd pfd = {.fd = PQsocket(bell->there), .events = POLLIN};
    PGnotify *note;

    if (bell->advisory) {
        say(bell->there, "SELECT pg_advisory_lock(7)");
    } else {
        poll(&pfd, 1, 5000);
        PQconsumeInput(bell->there);
        while ((note = PQnotifies(bell->there)))
            PQfreemem(note);
    }
    take(bell->waiter, "waiter");
    bell->taken = raw_now_us();
    if (bell->advisory)
        say(bell->there, "SELECT pg_advisory_unlock(7)");
    return NULL;
}

/* From the call that releases until the waiter has the row, in us. */
static double turn(struct bell *bell)
{
    pthread_t thread;
    double began;

    take(bell->holder, "holder");
    say(bell->here, bell->advisory
                        ? "SELECT pg_advisory_lock(7)"
                        : "UPDATE raw_lock SET wanted=true WHERE name='bell'");
    if (pthread_create(&thread, NULL, wait_and_take, bell))
        bench_die("no thread");
    poll(NULL, 0, 5);
    began = raw_now_us();
    raw_postgres.give(bell->holder, "bell", "holder");
    if (bell->advisory)
        say(bell->here, "SELECT pg_advisory_unlock(7)");
    pthread_join(thread, NULL);
    raw_postgres.give(bell->waiter, "bell", "waiter");
    return bell->taken - began;
}

static double round_run(struct bench_case *one)
{
    double us[TURNS];

    for (int i = 0; i < TURNS; i++)
        us[i] = turn(one->arg);
    return bench_quantile(us, TURNS, 0.5);
}

static void bell_open(struct bell *bell, const char *where)
{
    bell->holder = raw_postgres.open(where);
    bell->waiter = raw_postgres.open(where);
    bell->here = PQconnectdb(where);
    bell->there = PQconnectdb(where);
    say(bell->there, "LISTEN raw_lock");
}

static void bell_close(struct bell *bell)
{
    raw_postgres.close(bell->holder);
    raw_postgres.close(bell->waiter);
    PQfinish(bell->here);
    PQfinish(bell->there);
}

int main(void)
{
    const struct bench_goal goal = {BENCH_AT_MOST, 1.0};
    struct bell notify = {0}, advisory = {.advisory = true};
    struct bench_case cases[] = {
        {.name = "NOTIFY", .run = round_run, .arg = &notify},
        {.name = "advisory lock", .run = round_run, .arg = &advisory},
    };
    char where[200];

    if (!getenv("HF_TEST_PORT"))
        bench_die("run it as test/servers/postgres bench-bells");
    snprintf(where, sizeof(where),
             "host=127.0.0.1 port=%s user=holdfast dbname=postgres",
             getenv("HF_TEST_PORT"));
    bench_begin("bells", "A waiter is told that a row of PostgreSQL is free");
    bell_open(&notify, where);
    bell_open(&advisory, where);
    bench_run(cases, 2, bench_rounds(ROUNDS), "us");
    bench_ratio(&cases[0], &cases[1], &goal);
    bell_close(&notify);
    bell_close(&advisory);
    return 0;
}
