/* SPDX-License-Identifier: MIT
 *
 * sqlite.c - what only the database file has: no server, boots, foreign files.
 */
#include "../t.h"

#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *url(const char *more)
{
    static char text[256];

    snprintf(text, sizeof(text), "sqlite:%s/x.db%s", t_tmpdir(), more);
    return text;
}

static hf_client *open_url(const char *more)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(url(more), NULL, &client, &t_err));
    return client;
}

static void run_sql(const char *sql)
{
    char path[256];
    sqlite3 *db;

    snprintf(path, sizeof(path), "%s/x.db", t_tmpdir());
    CHECK_EQ(sqlite3_open(path, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 5000);
    CHECK_EQ(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

TEST(a_lease_of_another_boot_is_over_at_once)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *a = open_url(""), *b = open_url("");
    hf_lock *lk, *next = NULL;

    opts.ttl_ms = 600000;
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
    CHECK_STATUS(hf_acquire(b, "k", 0, &opts, &next, &t_err), HF_BUSY);
    run_sql("UPDATE holdfast_lock SET boot='another boot'");
    CHECK_OK(hf_acquire(b, "k", 0, &opts, &next, &t_err));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST(holders_of_another_boot_are_over_at_once)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *a = open_url(""), *b = open_url("");
    hf_lock *lk, *next = NULL;

    opts.ttl_ms = opts.min_hold_ms = 600000;
    for (int i = 0; i < 3; i++) {
        opts.flags = i == 1 ? HF_SHARED : 0;
        opts.permits = i == 2;
        opts.min_hold_ms = i ? 0 : 600000;
        CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
        if (!i)
            CHECK_OK(hf_release(lk, &t_err));
        CHECK(hf_acquire(b, "k", 0, NULL, &next, &t_err) != HF_OK);
        run_sql("UPDATE holdfast_lock SET boot='another boot'; UPDATE "
                "holdfast_lock_holders SET boot='another boot'");
        CHECK_OK(hf_acquire(b, "k", 0, NULL, &next, &t_err));
        if (i)
            CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        CHECK_OK(hf_release(next, &t_err));
    }
    hf_close(a);
    hf_close(b);
}

TEST(fences_rise_when_the_wall_clock_has_gone_back)
{
    hf_client *client = open_url("");
    uint64_t fence;
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "k", 0, NULL, &lk, &t_err));
    fence = hf_fence(lk) + 3600000000;
    CHECK_OK(hf_release(lk, &t_err));
    run_sql("UPDATE holdfast_lock SET fence=fence+3600000000");
    for (int i = 0; i < 3; i++) {
        CHECK_OK(hf_acquire(client, "k", 0, NULL, &lk, &t_err));
        CHECK_EQ(hf_fence(lk), ++fence);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
}

TEST(strategy_row_is_refused_and_says_why)
{
    hf_client *client = NULL;

    CHECK_STATUS(hf_open(url("?strategy=row"), NULL, &client, &t_err),
                 HF_UNSUPPORTED);
    CHECK(strstr(t_err.text, "no row locks") != NULL);
}

TEST(foreign_files_and_tables_are_refused)
{
    hf_client *client = NULL;
    char path[256];
    FILE *file;

    CHECK_STATUS(hf_open("sqlite:/nowhere/x.db", NULL, &client, &t_err),
                 HF_SYSTEM);
    CHECK_STATUS(hf_open(url("?create=no"), NULL, &client, &t_err), HF_DENIED);
    hf_close(open_url(""));
    CHECK_STATUS(hf_open(url("?strategy=version"), NULL, &client, &t_err),
                 HF_PROTOCOL);
    CHECK_STATUS(hf_open(url("?table=other&create=no"), NULL, &client, &t_err),
                 HF_INVALID);
    snprintf(path, sizeof(path), "%s/text", t_tmpdir());
    file = fopen(path, "w");
    CHECK(file != NULL);
    for (int i = 0; i < 1000; i++)
        fputs("this is not a database\n", file);
    fclose(file);
    snprintf(path, sizeof(path), "sqlite:%s/text", t_tmpdir());
    CHECK_STATUS(hf_open(path, NULL, &client, &t_err), HF_PROTOCOL);
}

TEST(a_table_of_one_connection_is_refused)
{
    hf_client *client = NULL;

    CHECK_STATUS(hf_open(url("?table=temp.x"), NULL, &client, &t_err),
                 HF_INVALID);
    CHECK(strstr(t_err.text, "temp") != NULL);
    CHECK_STATUS(hf_open(url("?table=other.x"), NULL, &client, &t_err),
                 HF_INVALID);
    hf_close(open_url("?table=main.x"));
}

/* A table is verified for all that the statements rely on. */
TEST(a_table_that_is_not_as_it_is_made_is_refused)
{
    static const struct {
        const char *how, *word;
    } spoils[] = {
        {"CREATE UNIQUE INDEX other ON t (token)", "another unique"},
        {"CREATE TRIGGER keep AFTER UPDATE ON t BEGIN UPDATE t SET "
         "token=NULL; END",
         "trigger"},
        {"ALTER TABLE t ADD COLUMN extra INT NOT NULL DEFAULT 0; ALTER TABLE t "
         "DROP COLUMN extra; ALTER TABLE t RENAME TO u; CREATE VIEW t AS "
         "SELECT * FROM u",
         "view"},
        {"ALTER TABLE t DROP COLUMN note; ALTER TABLE t ADD COLUMN note BLOB "
         "AS ('x') VIRTUAL",
         "generated"},
        {"ALTER TABLE t DROP COLUMN token; ALTER TABLE t ADD COLUMN token "
         "INTEGER",
         "token"},
        {"DROP TABLE t; CREATE TABLE t (name BLOB, token TEXT, fence INTEGER, "
         "ttl_ms INTEGER, wanted INTEGER, owner BLOB, note BLOB, boot TEXT, "
         "acquired INTEGER, expires INTEGER)",
         "unique index"},
        {"DROP TABLE t; CREATE TABLE t (name BLOB PRIMARY KEY, token TEXT, "
         "fence INTEGER, ttl_ms INTEGER, wanted INTEGER, owner BLOB, note "
         "BLOB, boot TEXT, acquired INTEGER, expires REAL)",
         "expires"},
        {"DROP TABLE t; CREATE TABLE t (name BLOB PRIMARY KEY, token TEXT, "
         "fence INTEGER, ttl_ms INTEGER, wanted INTEGER, owner BLOB, note "
         "BLOB, boot TEXT, acquired INTEGER, expires INTEGER, extra INTEGER "
         "NOT NULL)",
         "other columns"},
        /* A lock of 30 s would remove the row of every other one. */
        {"DROP TABLE t; CREATE TABLE t (name BLOB UNIQUE, token TEXT, fence "
         "INTEGER, ttl_ms INTEGER PRIMARY KEY ON CONFLICT REPLACE, wanted "
         "INTEGER DEFAULT 0, owner BLOB, note BLOB, boot TEXT, acquired "
         "INTEGER, expires INTEGER)",
         "another unique"},
        {"DROP TABLE t; CREATE TABLE t (name BLOB UNIQUE, token TEXT, fence "
         "INTEGER, ttl_ms INTEGER, wanted INTEGER DEFAULT 0, owner BLOB, note "
         "BLOB, boot TEXT, acquired INTEGER, expires INTEGER, a INTEGER PRIMARY "
         "KEY ON CONFLICT REPLACE)",
         "another unique"},
        /* Two strategies in one table: neither knows the other's locks. */
        {"ALTER TABLE t ADD COLUMN version INTEGER NOT NULL DEFAULT 1",
         "another strategy"},
    };
    hf_client *client = NULL;

    for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
        hf_close(open_url("?table=t"));
        run_sql(spoils[i].how);
        CHECK_STATUS(hf_open(url("?table=t"), NULL, &client, &t_err),
                     HF_PROTOCOL);
        if (!strstr(t_err.text, spoils[i].word))
            t_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", t_err.text,
                   spoils[i].word);
        run_sql(strstr(spoils[i].how, "VIEW") ? "DROP VIEW t; DROP TABLE u"
                                              : "DROP TABLE t");
    }
}

/* That of holders is, too, by those who use it. */
TEST(a_table_of_holders_that_is_not_as_it_is_made_is_refused)
{
    static const struct {
        const char *how, *word;
    } spoils[] = {
        {"CREATE UNIQUE INDEX other ON t_holders (name)", "another unique"},
        {"CREATE TRIGGER keep AFTER INSERT ON t_holders BEGIN DELETE FROM "
         "t_holders; END",
         "trigger"},
        {"ALTER TABLE t_holders DROP COLUMN slot", "slot"},
        {"ALTER TABLE t_holders DROP COLUMN expires; ALTER TABLE t_holders ADD "
         "COLUMN expires REAL",
         "expires"},
        {"CREATE TABLE u AS SELECT * FROM t_holders; DROP TABLE t_holders; "
         "CREATE TABLE t_holders (name BLOB, token TEXT, mode INTEGER, permits "
         "INTEGER, slot INTEGER, fence INTEGER, version INTEGER, ttl_ms "
         "INTEGER, kept INTEGER, boot TEXT, acquired INTEGER, expires INTEGER, "
         "owner BLOB, note BLOB, PRIMARY KEY (token))",
         "unique index"},
    };
    struct hf_lock_opts read = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL, *none = NULL;
    hf_client *client;

    read.flags = HF_SHARED;
    for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
        client = open_url("?table=t");
        CHECK_OK(hf_acquire(client, "k", 0, &read, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(client);
        run_sql(spoils[i].how);
        client = open_url("?table=t");
        CHECK_OK(hf_acquire(client, "k", 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        CHECK_STATUS(hf_acquire(client, "k", 0, &read, &none, &t_err),
                     HF_PROTOCOL);
        if (!strstr(t_err.text, spoils[i].word))
            t_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", t_err.text,
                   spoils[i].word);
        hf_close(client);
        run_sql("DROP TABLE t_holders; DROP TABLE IF EXISTS u");
    }
}

/* ---- others on the database ---------------------------------------------- */

static sqlite3 *open_db(const char *begin)
{
    char path[256];
    sqlite3 *db;

    snprintf(path, sizeof(path), "%s/x.db", t_tmpdir());
    CHECK_EQ(sqlite3_open(path, &db), SQLITE_OK);
    CHECK_EQ(sqlite3_exec(db, begin, NULL, NULL, NULL), SQLITE_OK);
    return db;
}

TEST(an_old_transaction_that_has_read_disturbs_nobody)
{
    hf_client *a = open_url(""), *b = open_url("");
    sqlite3 *db = open_db("BEGIN; SELECT * FROM holdfast_lock;");

    for (int i = 0; i < 20; i++) {
        hf_lock *lk, *none = NULL;

        CHECK_OK(hf_acquire(a, "k", 0, NULL, &lk, &t_err));
        CHECK_STATUS(hf_acquire(b, "k", 0, NULL, &none, &t_err), HF_BUSY);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    sqlite3_close(db);
    hf_close(a);
    hf_close(b);
}

static void *write_for_a_while(void *arg)
{
    t_sleep_ms(700);
    CHECK_EQ(sqlite3_exec(arg, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    return NULL;
}

/* SQLITE_BUSY is neither busy nor an error. */
TEST(a_database_that_is_being_written_is_waited_for)
{
    hf_client *client = open_url("");
    sqlite3 *db = open_db("BEGIN IMMEDIATE");
    pthread_t thread;
    hf_lock *lk;

    CHECK_EQ(pthread_create(&thread, NULL, write_for_a_while, db), 0);
    CHECK_OK(hf_acquire(client, "k", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    pthread_join(thread, NULL);
    sqlite3_close(db);
    hf_close(client);
}

TEST(one_that_is_lost_among_many_costs_the_others_nothing)
{
    enum { MANY = 300, LOST = 100 };
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = open_url("");
    static hf_lock *locks[MANY];
    char key[32];

    opts.ttl_ms = 3000;
    for (int i = 0; i < MANY; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_OK(hf_acquire(client, key, 0, &opts, &locks[i], &t_err));
    }
    run_sql("UPDATE holdfast_lock SET fence=fence+1,token='another' WHERE "
            "name=CAST('k100' AS BLOB)");
    t_poll_until(!hf_held(locks[LOST]), 2900);
    CHECK_EQ(hf_lost_reason(locks[LOST]), HF_LOSS_STOLEN);
    t_sleep_ms(3500); /* longer than a lease */
    for (int i = 0; i < MANY; i++)
        CHECK_EQ(hf_held(locks[i]), i != LOST);
    for (int i = 0; i < MANY; i++)
        CHECK_STATUS(hf_release(locks[i], &t_err), i == LOST ? HF_LOST : HF_OK);
    hf_close(client);
}

struct race {
    pthread_barrier_t barrier;
    atomic_int granted;
};

static void *race_for_it(void *arg)
{
    struct race *race = arg;
    hf_client *client = NULL;
    hf_lock *lk = NULL;
    char text[256];
    hf_status st;

    snprintf(text, sizeof(text), "sqlite:%s/x.db?timeout=30s", t_tmpdir());
    pthread_barrier_wait(&race->barrier);
    CHECK_OK(hf_open(text, NULL, &client, &t_err));
    st = hf_acquire(client, "k", 0, NULL, &lk, &t_err);
    if (st != HF_OK)
        t_check_status(__FILE__, __LINE__, "the race", st, HF_BUSY);
    else
        atomic_fetch_add(&race->granted, 1);
    pthread_barrier_wait(&race->barrier);
    if (lk)
        CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    return NULL;
}

TEST_TIMEOUT(of_64_who_race_to_make_file_table_and_row_one_is_granted, 120)
{
    struct race race = {.granted = 0};
    pthread_t threads[64];

    pthread_barrier_init(&race.barrier, NULL, 64);
    for (int i = 0; i < 64; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, race_for_it, &race), 0);
    for (int i = 0; i < 64; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&race.barrier);
    CHECK_EQ(atomic_load(&race.granted), 1);
}

/* ---- many processes ----------------------------------------------------- */

struct field {
    atomic_long inside, turns;
    long counter;
    uint64_t fence;
};

static void take_turns(struct t_peer *up, void *arg)
{
    struct field *field = arg;
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = open_url("");

    opts.flags = HF_FAIR;
    for (int i = 0; i < t_scaled(250, 50); i++) {
        hf_lock *lk = NULL;

        CHECK_OK(hf_acquire(client, "counter", 60000, &opts, &lk, &t_err));
        CHECK_EQ(atomic_fetch_add(&field->inside, 1), 0);
        CHECK_GT(hf_fence(lk), field->fence);
        field->fence = hf_fence(lk);
        field->counter++;
        CHECK_EQ(atomic_fetch_sub(&field->inside, 1), 1);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    t_tell(up, 1);
}

TEST_TIMEOUT(eight_processes_take_their_turns, 120)
{
    struct field *field = t_shared(sizeof(*field));
    struct t_peer peers[8];

    for (int i = 0; i < 8; i++)
        peers[i] = t_fork(take_turns, field);
    for (int i = 0; i < 8; i++) {
        t_hear(&peers[i]);
        t_join(&peers[i]);
    }
    CHECK_EQ(field->counter, 8 * t_scaled(250, 50));
}

static void hold_for_ever(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = open_url("");
    hf_lock *lk;

    (void)arg;
    opts.ttl_ms = 400;
    for (;;) {
        CHECK_OK(hf_acquire(client, "k", 60000, &opts, &lk, &t_err));
        t_tell(up, (int64_t)hf_fence(lk));
        CHECK_OK(hf_release(lk, &t_err));
    }
}

TEST_TIMEOUT(writers_killed_at_any_moment_leave_a_database_that_works, 120)
{
    uint64_t last = 0;

    for (int i = 0; i < t_scaled(30, 8); i++) {
        struct t_peer peer = t_fork(hold_for_ever, NULL);
        int64_t fence = 0, end;

        CHECK_GT((fence = t_hear(&peer)), last);
        for (end = t_now_ms() + i % 11; t_now_ms() < end;)
            t_try_hear(&peer, 1, &fence);
        kill(peer.pid, SIGKILL);
        while (t_try_hear(&peer, 1000, &fence))
            ;
        last = (uint64_t)fence;
        t_kill(&peer);
    }
}

T_MAIN
