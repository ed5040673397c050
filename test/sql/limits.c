/* SPDX-License-Identifier: MIT
 *
 * limits.c - what an operator sets for everybody, and what the server runs out
 * of, breaks no promise: sessions set what they rely on, and a lock that is held
 * needs no new connection.
 */
#include "scene.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- settings of the server ---------------------------------------------- */

/* What an operator may have set for everybody; on and off. */
static void hostile_settings(bool on)
{
    if (scene_is_postgres()) {
        static const char *const set[] = {
            "default_transaction_read_only=on",
            "standard_conforming_strings=off",
            "idle_session_timeout='1s'",
            "idle_in_transaction_session_timeout='1s'",
            "lock_timeout='1s'",
            "default_transaction_isolation='serializable'",
            "bytea_output='escape'",
            "DateStyle='German'",
            "TimeZone='Asia/Kathmandu'",
            "enable_indexscan=off",
            "enable_nestloop=off",
            "quote_all_identifiers=on",
            "session_replication_role='replica'",
            "synchronous_commit=off"};

        for (size_t i = 0; on && i < sizeof(set) / sizeof(set[0]); i++)
            scene_sql("BEGIN READ WRITE; ALTER ROLE holdfast SET %s; COMMIT",
                      set[i]);
        if (!on)
            scene_sql(
                "BEGIN READ WRITE; ALTER ROLE holdfast RESET ALL; COMMIT");
        return;
    }
    scene_sql("SET GLOBAL completion_type=%s", on ? "'CHAIN'" : "DEFAULT");
    scene_sql("SET GLOBAL sql_select_limit=%s", on ? "1" : "DEFAULT");
    scene_sql("SET GLOBAL autocommit=%d", !on);
    scene_sql("SET GLOBAL unique_checks=%d", !on);
    scene_sql("SET GLOBAL wait_timeout=%d", on ? 1 : 28800);
    scene_sql("SET GLOBAL lock_wait_timeout=%d", on ? 1 : 86400);
    scene_sql("SET GLOBAL sql_mode='%s'",
              on ? "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT" : "");
    scene_sql("SET GLOBAL time_zone='%s'", on ? "+05:45" : "SYSTEM");
    scene_sql("SET GLOBAL init_connect='%s'",
              on ? "SET character_set_results=utf16, autocommit=0, "
                   "character_set_client=latin1, "
                   "collation_connection=latin1_swedish_ci"
                 : "");
    scene_sql("SET GLOBAL %s_read_only=%d",
              scene_is_mysql() ? "transaction" : "tx", on);
    if (!scene_is_mysql())
        scene_sql("SET GLOBAL idle_transaction_timeout=%d", on);
}

static bool count_one(void *arg, const char *key, const struct hf_info *info)
{
    (void)key;
    (void)info;
    ++*(int *)arg;
    return true;
}

/* Two clients take turns with three locks, which are all seen, and outlast what
 * ends idle sessions. */
static void settled(const char *strategy, const char *table)
{
    hf_client *a = NULL, *b = NULL;
    hf_lock *locks[3], *none = NULL;
    static const char *const keys[] = {"s1", "s2", "s3"};
    int seen = 0;

    CHECK_OK(hf_open(scene_url_of(strategy, table), NULL, &a, &t_err));
    CHECK_OK(hf_open(scene_url_of(strategy, table), NULL, &b, &t_err));
    for (int i = 0; i < 3; i++)
        CHECK_OK(hf_acquire(a, keys[i], 0, NULL, &locks[i], &t_err));
    CHECK_OK(hf_list(b, "s", count_one, &seen, &t_err));
    CHECK_EQ(seen, 3);
    t_sleep_ms(2500);
    for (int i = 0; i < 3; i++) {
        CHECK(hf_held(locks[i]));
        CHECK_STATUS(hf_acquire(b, keys[i], 0, NULL, &none, &t_err), HF_BUSY);
        CHECK_OK(hf_release(locks[i], &t_err));
        CHECK_OK(hf_acquire(b, keys[i], 10000, NULL, &locks[i], &t_err));
        CHECK_OK(hf_release(locks[i], &t_err));
    }
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(settings_of_the_server_change_nothing, 60)
{
    hostile_settings(true);
    settled("lease", "settled");
    settled("row", "settling");
    hostile_settings(false);
    scene_sql("DROP TABLE settled, settling, settling_fence");
}

/* ---- connections --------------------------------------------------------- */

/* Let the server take no more connections of ours, or take them again. */
static void closed_to_us(bool on)
{
    char text[512];

    if (!scene_is_postgres()) {
        scene_sql("ALTER USER holdfast@'%%' ACCOUNT %s",
                  on ? "LOCK" : "UNLOCK");
        return;
    }
    snprintf(text, sizeof(text),
             "psql -X -q -h 127.0.0.1 -p $HF_TEST_PORT -U holdfast -c 'ALTER "
             "DATABASE postgres ALLOW_CONNECTIONS %s' template1",
             on ? "false" : "true");
    CHECK_EQ(system(text), 0);
}

static void held_without_connections(const char *strategy, const char *table)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = NULL, *other = NULL;
    hf_lock *locks[2];

    opts.ttl_ms = 4500; /* renewed less often than once in a second */
    CHECK_OK(hf_open(scene_url_of(strategy, table), NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, "a", 0, &opts, &locks[0], &t_err));
    CHECK_OK(hf_acquire(client, "b", 0, &opts, &locks[1], &t_err));
    closed_to_us(true);
    CHECK_NE(hf_open(scene_url_of(strategy, table), NULL, &other, &t_err),
             HF_OK);
    t_sleep_ms(6000); /* more than a lease */
    CHECK(hf_held(locks[0]));
    CHECK(hf_held(locks[1]));
    CHECK_OK(hf_release(locks[0], &t_err));
    CHECK_OK(hf_release(locks[1], &t_err));
    closed_to_us(false);
    CHECK_OK(hf_acquire(client, "a", 10000, &opts, &locks[0], &t_err));
    CHECK_OK(hf_release(locks[0], &t_err));
    hf_close(client);
    scene_sql("DROP TABLE %s; DROP TABLE IF EXISTS %s_fence", table, table);
}

TEST_TIMEOUT(a_lock_is_kept_while_the_server_has_no_connection_to_spare, 120)
{
    if (!scene_is_postgres()) /* settings_of_the_server_change_nothing has it */
        scene_sql("SET GLOBAL wait_timeout=1");
    held_without_connections("lease", "crowded");
    held_without_connections("row", "packed");
    if (!scene_is_postgres())
        scene_sql("SET GLOBAL wait_timeout=DEFAULT");
}

/* ---- a server that is replaced ------------------------------------------- */

/* Our sessions, up to the one with this number. */
static int64_t sessions_until(int64_t id)
{
    return scene_sql("SELECT COUNT(*) FROM information_schema.processlist "
                     "WHERE user='holdfast' AND id<=%lld",
                     (long long)id);
}

/* Several sessions at once; the number of the last. */
static int64_t sessions_make(hf_client *client)
{
    hf_request *requests[4];
    struct hf_event event = HF_EVENT_INIT;

    for (int i = 0; i < 4; i++)
        CHECK_OK(hf_acquire_start(
            client, scene_key((const char[]){(char)('a' + i), '\0'}), 20000,
            NULL, NULL, &requests[i], &t_err));
    for (int i = 0; i < 4; i++) {
        t_poll_until(hf_next_event(client, &event), 20000);
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_OK(hf_release(event.lock, &t_err));
    }
    return scene_sql("SELECT MAX(id) FROM information_schema.processlist "
                     "WHERE user='holdfast'");
}

/* A primary that makes room for another is set read only, keeps its sessions,
 * and its address goes to the other. */
TEST_TIMEOUT(no_session_stays_with_a_server_that_became_read_only, 60)
{
    hf_client *client;
    hf_lock *lk = NULL;
    int64_t last;

    if (scene_is_postgres())
        T_SKIP_TRAIT("a server that becomes read only under its sessions");
    client = scene_open(0, "");
    last = sessions_make(client);
    CHECK_GT(sessions_until(last), 0);
    scene_sql("SET GLOBAL read_only=1");
    CHECK_STATUS(hf_acquire(client, "left", 0, NULL, &lk, &t_err),
                 HF_UNAVAILABLE);
    t_poll_until(!sessions_until(last), 20000);
    scene_sql("SET GLOBAL read_only=0");
    CHECK_OK(hf_acquire(client, "left", 10000, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* ---- packets ------------------------------------------------------------- */

/* Many locks are renewed by one statement: a server that does not take it would
 * lose them all. */
TEST_TIMEOUT(a_server_that_logs_statements_is_refused, 120)
{
    if (scene_is_postgres() || scene_is_mysql())
        T_SKIP_TRAIT("binlog_format");
    scene_options("--log-bin --server-id=7 --binlog-format=STATEMENT");
    scene_server("stop");
    scene_server("start");
    scene_refused(scene_url(0, ""), HF_UNSUPPORTED, "binlog_format");
    scene_sql("SET GLOBAL binlog_format=MIXED");
    hf_close(scene_open(0, ""));
    scene_options("");
    scene_server("stop");
    scene_server("start");
}

TEST(a_server_that_takes_short_statements_only_is_refused)
{
    if (scene_is_postgres())
        T_SKIP_TRAIT("max_allowed_packet");
    scene_sql("SET GLOBAL max_allowed_packet=65536");
    scene_refused(scene_url(0, ""), HF_UNSUPPORTED, "max_allowed_packet");
    scene_sql("SET GLOBAL max_allowed_packet=131072");
    hf_close(scene_open(0, ""));
    scene_sql("SET GLOBAL max_allowed_packet=DEFAULT");
}

T_MAIN
