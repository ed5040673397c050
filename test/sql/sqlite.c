/* SPDX-License-Identifier: MIT
 *
 * sqlite.c - what only the database file has: no server, boots, foreign files.
 */
#include "../t.h"

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
