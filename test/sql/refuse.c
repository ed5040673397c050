/* SPDX-License-Identifier: MIT
 *
 * refuse.c - what cannot keep our promises is refused when it is opened, with
 * one line that says what to do; and what people see who look at the table.
 */
#include "scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEST(options_that_make_no_sense_are_refused)
{
    scene_refused(scene_url(0, "&table=a%20b"), HF_INVALID, "table=");
    scene_refused(scene_url(0, "&table=a%27%3bDROP"), HF_INVALID, "table=");
    scene_refused(scene_url(0, "&table=a.b.c"), HF_INVALID, "table=");
    scene_refused(scene_url(0,
                            "&table=a123456789a123456789a123456789a123456789."
                            "b123456789b123456789b123456789"),
                  HF_INVALID, "table=");
    scene_refused(scene_url(0, "&create=maybe"), HF_INVALID, "create=");
    scene_refused(scene_url(0, "&pool=0"), HF_INVALID, "pool=");
    scene_refused(scene_url(0, "&pool=x"), HF_INVALID, "pool=");
    scene_refused(scene_url(0, "&nonsense=1"), HF_INVALID, "nonsense");
}

TEST(a_wrong_port_is_unavailable_and_a_wrong_password_denied)
{
    char url[256];

    scene_refused(scene_url(1, ""), HF_UNAVAILABLE, "connect");
    if (scene_is_postgres()) {
        scene_refused(scene_url(0, "&dbname=nowhere"), HF_DENIED, "nowhere");
        return;
    }
    snprintf(url, sizeof(url),
             "mysql://holdfast:wrong-secret@127.0.0.1:%s/test",
             getenv("HF_TEST_PORT"));
    scene_refused(url, HF_DENIED, "denied");
    snprintf(url, sizeof(url), "mysql://holdfast:secret@127.0.0.1:%s/nowhere",
             getenv("HF_TEST_PORT"));
    scene_refused(url, HF_DENIED, "");
}

TEST(a_missing_table_is_not_made_where_the_url_says_so)
{
    scene_refused(scene_url(0, "&table=absent&create=no"), HF_INVALID,
                  "create=no");
}

/* The URL under test with another strategy and a table of its own. */
static const char *url_of(const char *strategy, const char *table)
{
    static char url[512];
    const char *base = scene_url(0, "");

    snprintf(url, sizeof(url), "%.*sstrategy=%s&table=%s",
             (int)(strcspn(base, "?") + 1), base, strategy, table);
    return url;
}

TEST(a_table_of_another_strategy_is_refused)
{
    hf_close(scene_open(0, "&table=mixed"));
    scene_refused(url_of("version", "mixed"), HF_PROTOCOL, "strategy");
}

/* Without the index there could be two rows of one name, and InnoDB would lock
 * all of them. */
static void without_index(const char *strategy, const char *table)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(url_of(strategy, "bare"), NULL, &client, &t_err));
    hf_close(client);
    if (scene_is_postgres())
        scene_sql("ALTER TABLE %s DROP CONSTRAINT %s_pkey", table, table);
    else
        scene_sql("ALTER TABLE %s DROP PRIMARY KEY", table);
    scene_refused(url_of(strategy, "bare"), HF_PROTOCOL, "unique index");
    /* One over more columns, or with doubles allowed, will not do. */
    scene_sql("CREATE UNIQUE INDEX wide ON %s (name,%s)", table,
              strcmp(table, "bare_fence") && !strcmp(strategy, "row")
                  ? "row_lock"
                  : "fence");
    scene_sql("CREATE INDEX loose ON %s (name)", table);
    scene_refused(url_of(strategy, "bare"), HF_PROTOCOL, "unique index");
    scene_sql("CREATE UNIQUE INDEX narrow ON %s (name)", table);
    CHECK_OK(hf_open(url_of(strategy, "bare"), NULL, &client, &t_err));
    hf_close(client);
    scene_sql("DROP TABLE bare; DROP TABLE IF EXISTS bare_fence");
}

TEST(a_table_without_its_index_is_refused)
{
    without_index("lease", "bare");
    without_index("version", "bare");
    without_index("row", "bare");
    without_index("row", "bare_fence");
}

TEST(a_read_only_server_is_refused)
{
    if (scene_is_postgres())
        T_SKIP_TRAIT("read_only: see the standby below");
    scene_sql("SET GLOBAL read_only=1");
    scene_refused(scene_url(0, ""), HF_UNSUPPORTED, "read only");
    scene_sql("SET GLOBAL read_only=0");
    hf_close(scene_open(0, ""));
}

/* Run a shell script beside this server, in its directory. */
static int shell(const char *text)
{
    return system(text);
}

TEST_TIMEOUT(a_standby_is_refused, 120)
{
    char url[256];
    int64_t port = 20000 + getpid() % 10000;

    if (!scene_is_postgres())
        T_SKIP_TRAIT("a standby: read_only stands for it");
    snprintf(url, sizeof(url), "%lld", (long long)port);
    CHECK_EQ(setenv("STANDBY_PORT", url, 1), 0);
    CHECK_EQ(
        shell("set -e; cd $HF_TEST_DIR; b=$(ls -d /usr/lib/postgresql/*/bin | "
              "sort -V | tail -n 1); r=; [ $(id -u) != 0 ] || r='setpriv "
              "--reuid=postgres --regid=postgres --clear-groups --'; "
              "$r $b/pg_basebackup -h 127.0.0.1 -p $HF_TEST_PORT -U holdfast "
              "-D standby -R -c fast; $r $b/pg_ctl -s -w -D standby -l "
              "standby.log -o \"-p $STANDBY_PORT -k $HF_TEST_DIR -c "
              "listen_addresses=127.0.0.1\" start >/dev/null"),
        0);
    snprintf(url, sizeof(url), "postgres://holdfast@127.0.0.1:%lld/postgres",
             (long long)port);
    scene_refused(url, HF_UNSUPPORTED, "standby");
    snprintf(url, sizeof(url),
             "postgres://holdfast@127.0.0.1:%lld,127.0.0.1:%s/postgres",
             (long long)port, getenv("HF_TEST_PORT"));
    {
        hf_client *client = NULL; /* Of several hosts, the primary is found. */

        CHECK_OK(hf_open(url, NULL, &client, &t_err));
        hf_close(client);
    }
    CHECK_EQ(shell("cd $HF_TEST_DIR; b=$(ls -d /usr/lib/postgresql/*/bin | "
                   "sort -V | tail -n 1); r=; [ $(id -u) != 0 ] || r='setpriv "
                   "--reuid=postgres --regid=postgres --clear-groups --'; "
                   "$r $b/pg_ctl -s -m immediate -D standby stop"),
             0);
}

TEST_TIMEOUT(a_pooler_in_transaction_mode_is_refused_in_session_mode_not, 60)
{
    static const char *const modes[] = {"transaction", "session"};

    if (!scene_is_postgres())
        T_SKIP_TRAIT("poolers");
    if (shell("command -v pgbouncer >/dev/null"))
        T_SKIP_HOST("pgbouncer is not installed");
    for (int i = 0; i < 2; i++) {
        int64_t port = 20000 + getpid() % 10000 + i;
        char text[1024], url[256];
        hf_client *client = NULL;

        snprintf(text, sizeof(text),
                 "cd $HF_TEST_DIR && { echo '[databases]'; echo \"postgres = "
                 "host=127.0.0.1 port=$HF_TEST_PORT user=holdfast\"; echo "
                 "'[pgbouncer]'; echo listen_addr=127.0.0.1; echo "
                 "listen_port=%lld; echo unix_socket_dir=; echo auth_type=any; "
                 "echo pool_mode=%s; echo logfile=$HF_TEST_DIR/bouncer.log; "
                 "echo pidfile=$HF_TEST_DIR/bouncer.pid; } >bouncer.ini && "
                 "r=; [ $(id -u) != 0 ] || r='setpriv --reuid=postgres "
                 "--regid=postgres --clear-groups --'; $r pgbouncer -q -d "
                 "bouncer.ini",
                 (long long)port, modes[i]);
        CHECK_EQ(shell(text), 0);
        snprintf(url, sizeof(url),
                 "postgres://holdfast@127.0.0.1:%lld/postgres",
                 (long long)port);
        t_sleep_ms(300);
        if (i) {
            hf_lock *lk;

            CHECK_OK(hf_open(url, NULL, &client, &t_err));
            CHECK_OK(hf_acquire(client, "pooled", 0, NULL, &lk, &t_err));
            CHECK_OK(hf_release(lk, &t_err));
            hf_close(client);
        } else {
            scene_refused(url, HF_UNSUPPORTED, "transaction mode");
        }
        CHECK_EQ(shell("kill $(cat $HF_TEST_DIR/bouncer.pid)"), 0);
        t_poll_until(shell("test -e $HF_TEST_DIR/bouncer.pid"), 10000);
    }
}

/* ---- people who look at the table --------------------------------------- */

TEST(a_row_written_by_hand_excludes_until_its_time_has_come)
{
    hf_client *client = scene_open(0, "");
    const char *key = scene_key("by hand");
    hf_lock *lk = NULL;

    if (scene_is_postgres())
        scene_sql("INSERT INTO holdfast_lock (name,token,fence,expires_at,"
                  "ttl_ms) VALUES ('\\x%s','a person',7,clock_timestamp()+"
                  "interval '1 s',1000)",
                  scene_hex(key));
    else
        scene_sql("INSERT INTO holdfast_lock (name,token,fence,expires_at,"
                  "ttl_ms) VALUES (X'%s','a person',7,UTC_TIMESTAMP(6)+"
                  "INTERVAL 1 SECOND,1000)",
                  scene_hex(key));
    CHECK_STATUS(hf_acquire(client, key, 0, NULL, &lk, &t_err), HF_BUSY);
    CHECK_OK(hf_acquire(client, key, 10000, NULL, &lk, &t_err));
    CHECK_GT(hf_fence(lk), 7);
    CHECK_EQ(scene_sql("SELECT count(*) FROM holdfast_lock WHERE token='%s' "
                       "AND fence=%lld",
                       hf_token(lk), (long long)hf_fence(lk)),
             1);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

T_MAIN
