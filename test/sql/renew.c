/* SPDX-License-Identifier: MIT
 *
 * renew.c - what is kept for long: many grants in one statement, and what the
 * server says when it means "once more".
 *
 * Run by test/servers/postgres or mysql.
 */
#include "scene.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 2000 };

static hf_lock *locks[MANY];

static struct hf_lock_opts lasting(int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    return opts;
}

static void hold(hf_client *client, const char *prefix, int n, int64_t ttl_ms)
{
    struct hf_lock_opts opts = lasting(ttl_ms);
    char key[160];

    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "%s %d", scene_key(prefix), i);
        CHECK_OK(hf_acquire(client, key, 0, &opts, &locks[i], &t_err));
    }
}

static void check_held(int n, int but)
{
    for (int i = 0; i < n; i++)
        if (i != but && !hf_held(locks[i]))
            t_fail(__FILE__, __LINE__, "%d is lost: %s", i,
                   hf_loss_name(hf_lost_reason(locks[i])));
}

static void let_go(int n, int but)
{
    for (int i = 0; i < n; i++)
        if (i != but)
            CHECK_OK(hf_release(locks[i], &t_err));
}

/* How many statements have changed something so far. */
static int64_t writes(void)
{
    return scene_is_postgres()
               ? scene_sql("SELECT txid_current()")
               : scene_sql("SHOW GLOBAL STATUS LIKE 'Com_update%s'",
                           scene_is_mysql() ? "_multi" : "");
}

TEST_TIMEOUT(many_locks_cost_few_statements_to_renew, 120)
{
    hf_client *client;
    int n = t_scaled(MANY, 500);
    int64_t before, cost;

    if (scene_is("row"))
        T_SKIP_TRAIT("a lock that is not a connection");
    client = scene_open(0, "");
    hold(client, "many", n, 6000);
    before = writes();
    t_sleep_ms(4100); /* Each is renewed twice. */
    cost = writes() - before;
    check_held(n, -1);
    printf("# %d locks, renewed twice: %lld statements\n", n, (long long)cost);
    CHECK_GE(cost, 2);
    CHECK_LE(cost, n / 10); /* and not 2 n */
    let_go(n, -1);
    hf_close(client);
}

/* Make the grant of this key another's, as if it had lapsed. */
static void steal(const char *key)
{
    const char *table =
        scene_is("row") ? "holdfast_lock_fence" : "holdfast_lock";

    scene_sql("UPDATE %s SET fence=fence+1,token='another' WHERE name=%s%s'",
              table, scene_is_postgres() ? "'\\x" : "X'", scene_hex(key));
}

TEST_TIMEOUT(one_that_is_lost_among_many_costs_the_others_nothing, 60)
{
    hf_client *client = scene_open(0, "");
    int n = scene_is("row") ? 20 : 300, lost = n / 3;
    char key[160];

    hold(client, "among", n, 4500);
    snprintf(key, sizeof(key), "%s %d", scene_key("among"), lost);
    steal(key);
    t_poll_until(!hf_held(locks[lost]), 4000);
    CHECK_EQ(hf_lost_reason(locks[lost]),
             scene_is("row") ? HF_LOSS_BROKEN : HF_LOSS_STOLEN);
    t_sleep_ms(5000); /* longer than a lease */
    check_held(n, lost);
    CHECK_STATUS(hf_release(locks[lost], &t_err), HF_LOST);
    let_go(n, lost);
    hf_close(client);
}

/* A token that was granted again, late, has another fence: backend.h (8). */
TEST(the_same_token_with_another_fence_is_not_renewed)
{
    struct hf_lock_opts opts = lasting(20000);
    hf_client *client = scene_open(0, "");
    const char *key = scene_key("again");
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    scene_sql("UPDATE holdfast_lock%s SET fence=fence+1 WHERE name=%s%s'",
              scene_is("row") ? "_fence" : "",
              scene_is_postgres() ? "'\\x" : "X'", scene_hex(key));
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK(!hf_held(lk));
    hf_release(lk, NULL);
    hf_close(client);
}

/* ---- "once more" -------------------------------------------------------- */

/* How many deadlocks the server has seen. */
static int64_t deadlocks(void)
{
    if (scene_is_postgres())
        return scene_sql("SELECT deadlocks FROM pg_stat_database WHERE "
                         "datname='postgres'");
    if (scene_is_mysql())
        return scene_sql("SELECT count FROM information_schema.innodb_metrics "
                         "WHERE name='lock_deadlocks'");
    return scene_sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'");
}

/* Does anybody wait for a row?  InnoDB shows what it knew at the last look if
 * that was less than 0.1 s ago, so do not look that often. */
static bool somebody_waits(void)
{
    if (!scene_is_postgres())
        t_sleep_ms(150);
    return scene_sql(scene_is_postgres()
                         ? "SELECT count(*) FROM pg_locks WHERE NOT granted"
                         : "SELECT count(*) FROM information_schema.innodb_trx "
                           "WHERE trx_state='LOCK WAIT'") > 0;
}

static const char *locking(const char *key)
{
    static char text[512];

    snprintf(text, sizeof(text),
             "SELECT 1 FROM holdfast_lock WHERE name=%s%s' FOR UPDATE;",
             scene_is_postgres() ? "'\\x" : "X'", scene_hex(key));
    return text;
}

/* Let an operator lock a few of the rows for longer than a lease. */
static void lock_some(int n, int few, int64_t ms)
{
    char key[160], text[4096] = "BEGIN;";
    size_t at = strlen(text);
    FILE *other;

    for (int i = 0; i < few; i++) {
        snprintf(key, sizeof(key), "%s %d", scene_key("locked"), i);
        at +=
            (size_t)snprintf(text + at, sizeof(text) - at, " %s", locking(key));
    }
    other = scene_operator(text);
    t_sleep_ms(ms);
    for (int i = few; i < n; i++)
        if (!hf_held(locks[i]))
            t_fail(__FILE__, __LINE__, "%d is lost: %s", i,
                   hf_loss_name(hf_lost_reason(locks[i])));
    pclose(other);
    for (int i = 0; i < n; i++)
        hf_release(locks[i], NULL);
}

TEST_TIMEOUT(a_row_that_is_locked_costs_the_others_nothing, 60)
{
    hf_client *client;
    int n = 20;

    if (scene_is("row"))
        T_SKIP_TRAIT("renewals that write");
    client = scene_open(0, "");
    hold(client, "locked", n, 3000);
    lock_some(n, 1, 5000);
    hf_close(client);
}

/* Each has a lease of another length, so none shares a statement. */
TEST_TIMEOUT(locked_rows_cost_nothing_to_leases_of_another_length, 60)
{
    struct hf_lock_opts opts;
    hf_client *client;
    char key[160];
    int n = 20;

    if (scene_is("row"))
        T_SKIP_TRAIT("renewals that write");
    client = scene_open(0, "");
    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "%s %d", scene_key("locked"), i);
        opts = lasting(4500 + 30 * i);
        CHECK_OK(hf_acquire(client, key, 0, &opts, &locks[i], &t_err));
    }
    lock_some(n, 5, 7000);
    hf_close(client);
}

/* An operator locks the second of our rows and then the first.  A renewal of
 * both that waited for the second would have the first. */
TEST_TIMEOUT(a_renewal_has_no_row_while_it_waits_for_another, 60)
{
    char keys[2][160], begin[600];
    hf_client *client;
    int64_t before;
    FILE *other;

    if (scene_is("row"))
        T_SKIP_TRAIT("renewals that write");
    client = scene_open(0, "");
    before = deadlocks();
    hold(client, "dead", 2, 6000);
    for (int i = 0; i < 2; i++)
        snprintf(keys[i], sizeof(keys[i]), "%s %d", scene_key("dead"), i);
    snprintf(begin, sizeof(begin), "BEGIN; %s", locking(keys[1]));
    other = scene_operator(begin);
    t_poll_until(somebody_waits(), 20000);
    scene_operator_runs(other, locking(keys[0]));
    scene_operator_runs(other, "COMMIT;");
    pclose(other);
    for (int i = 0; i < 2; i++)
        t_poll_until(hf_remaining_ms(locks[i]) > 4000, 8000);
    CHECK_EQ(deadlocks(), before);
    check_held(2, -1);
    let_go(2, -1);
    hf_close(client);
}

/* A statement that writes fails a few times, as after a deadlock, a lock timeout
 * or the like, before it is let through. */
static void grumble(const char *table, const char *error)
{
    if (scene_is_postgres()) {
        scene_sql("CREATE SEQUENCE IF NOT EXISTS grumbles");
        scene_sql("CREATE OR REPLACE FUNCTION grumble() RETURNS trigger "
                  "LANGUAGE plpgsql AS \\$\\$ BEGIN IF "
                  "nextval('public.grumbles')%%8<4 "
                  "THEN RAISE EXCEPTION 'grumble' USING ERRCODE='%s'; END IF; "
                  "RETURN NULL; END \\$\\$",
                  error);
        scene_sql("CREATE OR REPLACE TRIGGER grumble BEFORE INSERT OR UPDATE "
                  "ON %s FOR EACH STATEMENT EXECUTE FUNCTION grumble()",
                  table);
        return;
    }
    for (int i = 0; i < 2; i++) {
        const char *event = i ? "UPDATE" : "INSERT";

        scene_sql("DROP TRIGGER IF EXISTS grumble_%s", event);
        scene_sql("CREATE TRIGGER grumble_%s BEFORE %s ON %s FOR EACH ROW "
                  "BEGIN SET @grumble=COALESCE(@grumble,0)+1; IF @grumble%%8<4 "
                  "THEN SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO=%s; END IF; "
                  "END",
                  event, event, table, error);
    }
}

TEST_TIMEOUT(a_deadlock_or_a_lock_timeout_is_neither_busy_nor_an_error, 60)
{
    static const char *const errors[2][3] = {{"40P01", "40001", "55P03"},
                                             {"1213", "1205", "1020"}};
    hf_client *a, *b;

    if (scene_is("row"))
        T_SKIP_TRAIT("statements that write");
    a = scene_open(0, "&table=grumbling");
    b = scene_open(0, "&table=grumbling");
    for (int i = 0; i < 3; i++) {
        grumble("grumbling", errors[!scene_is_postgres()][i]);
        for (int j = 0; j < 10; j++) {
            hf_lock *lk, *none = NULL;

            CHECK_OK(hf_acquire(a, "k", 0, NULL, &lk, &t_err));
            CHECK_STATUS(hf_acquire(b, "k", 0, NULL, &none, &t_err), HF_BUSY);
            CHECK_OK(hf_extend(lk, 0, &t_err));
            CHECK_OK(hf_release(lk, &t_err));
        }
    }
    hf_close(a);
    hf_close(b);
    scene_sql("DROP TABLE grumbling");
}

T_MAIN
