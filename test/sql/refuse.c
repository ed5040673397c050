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

/* The URL must be refused with this status, and its text say `word`. */
static void refuse(const char *url, hf_status want, const char *word)
{
    hf_client *client = NULL;
    hf_status st = hf_open(url, NULL, &client, &t_err);

    if (st != want)
        t_fail(__FILE__, __LINE__, "%s: %s is not %s (%s)", url,
               hf_status_name(st), hf_status_name(want), t_err.text);
    CHECK(client == NULL);
    CHECK(!strchr(t_err.text, '\n'));
    CHECK(!strstr(t_err.text, "secret"));
    if (!strstr(t_err.text, word))
        t_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", t_err.text,
               word);
}

TEST(options_that_make_no_sense_are_refused)
{
    refuse(scene_url(0, "&table=a%20b"), HF_INVALID, "table=");
    refuse(scene_url(0, "&table=a%27%3bDROP"), HF_INVALID, "table=");
    refuse(scene_url(0, "&table=a.b.c"), HF_INVALID, "table=");
    refuse(scene_url(0, "&table=a123456789a123456789a123456789a123456789."
                        "b123456789b123456789b123456789"),
           HF_INVALID, "table=");
    refuse(scene_url(0, "&create=maybe"), HF_INVALID, "create=");
    refuse(scene_url(0, "&pool=0"), HF_INVALID, "pool=");
    refuse(scene_url(0, "&pool=x"), HF_INVALID, "pool=");
    refuse(scene_url(0, "&nonsense=1"), HF_INVALID, "nonsense");
}

TEST(a_wrong_port_is_unavailable_and_a_wrong_password_denied)
{
    char url[256];

    refuse(scene_url(1, ""), HF_UNAVAILABLE, "connect");
    if (scene_is_postgres()) {
        refuse(scene_url(0, "&dbname=nowhere"), HF_DENIED, "nowhere");
        return;
    }
    snprintf(url, sizeof(url),
             "mysql://holdfast:wrong-secret@127.0.0.1:%s/test",
             getenv("HF_TEST_PORT"));
    refuse(url, HF_DENIED, "denied");
    snprintf(url, sizeof(url), "mysql://holdfast:secret@127.0.0.1:%s/nowhere",
             getenv("HF_TEST_PORT"));
    refuse(url, HF_DENIED, "");
}

TEST(a_missing_table_is_not_made_where_the_url_says_so)
{
    refuse(scene_url(0, "&table=absent&create=no"), HF_INVALID, "create=no");
}

TEST(a_table_of_another_strategy_is_refused)
{
    char url[512];

    hf_close(scene_open(0, "&table=mixed"));
    snprintf(url, sizeof(url), "%.*sstrategy=version&table=mixed",
             (int)(strcspn(scene_url(0, ""), "?") + 1), scene_url(0, ""));
    refuse(url, HF_PROTOCOL, "strategy");
}

TEST(a_table_without_its_index_is_refused)
{
    if (scene_is_postgres())
        T_SKIP_TRAIT("InnoDB: ON CONFLICT insists on the index by itself");
    hf_close(scene_open(0, "&table=bare"));
    scene_sql("ALTER TABLE bare DROP PRIMARY KEY");
    refuse(scene_url(0, "&table=bare"), HF_PROTOCOL, "index");
    scene_sql("DROP TABLE bare");
}

TEST(a_read_only_server_is_refused)
{
    if (scene_is_postgres())
        T_SKIP_TRAIT("read_only: see the standby below");
    scene_sql("SET GLOBAL read_only=1");
    refuse(scene_url(0, ""), HF_UNSUPPORTED, "read only");
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
    refuse(url, HF_UNSUPPORTED, "standby");
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
            CHECK_OK(hf_open(url, NULL, &client, &t_err));
            hf_close(client);
        } else {
            refuse(url, HF_UNSUPPORTED, "transaction mode");
        }
        CHECK_EQ(shell("kill $(cat $HF_TEST_DIR/bouncer.pid)"), 0);
        t_poll_until(shell("test -e $HF_TEST_DIR/bouncer.pid"), 10000);
    }
}

TEST(galera_is_refused_for_row_locks_only)
{
    char url[512];

    if (scene_is_postgres())
        T_SKIP_TRAIT("Galera");
    if (shell("mariadb --no-defaults -u root -S $HF_TEST_DIR/socket -e 'SET "
              "GLOBAL wsrep_on=1' 2>/dev/null"))
        T_SKIP_HOST("this server has no wsrep");
    snprintf(url, sizeof(url), "%.*sstrategy=row&table=galera",
             (int)(strcspn(scene_url(0, ""), "?") + 1), scene_url(0, ""));
    refuse(url, HF_UNSUPPORTED, "Galera");
    scene_sql("SET GLOBAL wsrep_on=0");
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
