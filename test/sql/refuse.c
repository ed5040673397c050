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
    scene_refused(scene_url(0, "&create="), HF_INVALID, "create=");
    scene_refused(scene_url(0, "&wait=perhaps"), HF_INVALID, "wait=");
    scene_refused(scene_is_postgres() ? "postgres:u:secret@h/db"
                                      : "mysql:u:secret@h/db",
                  HF_INVALID, "://");
    if (scene_is_postgres())
        scene_refused(scene_url(0, "&dbname=postgres%3a//u%3asecret%40h/x"),
                      HF_INVALID, "dbname=");
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

/* ---- passwords ----------------------------------------------------------- */

static void write_password(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    CHECK(file != NULL);
    fputs(text, file);
    fclose(file);
}

TEST(a_password_file_is_read_for_each_connection)
{
    char path[128], url[512];
    hf_client *client = NULL;
    hf_lock *lk;

    if (scene_is_postgres())
        T_SKIP_TRAIT("password_file=: passfile is the library's own");
    scene_sql("CREATE USER rotating@'%%' IDENTIFIED BY 'first'");
    scene_sql("GRANT ALL ON test.* TO rotating@'%%'");
    snprintf(path, sizeof(path), "%s/password", t_tmpdir());
    snprintf(url, sizeof(url),
             "mysql://rotating@127.0.0.1:%s/test?password_file=%s",
             getenv("HF_TEST_PORT"), path);
    scene_refused(url, HF_SYSTEM, "password_file=");
    write_password(path, "wrong-secret\n");
    scene_refused(url, HF_DENIED, "");
    write_password(path, "first\n");
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, scene_key("p"), 0, NULL, &lk, &t_err));
    scene_sql("ALTER USER rotating@'%%' IDENTIFIED BY 'second'");
    write_password(path, "second");
    CHECK_EQ(system("mariadb --no-defaults -N -B -u root -S "
                    "$HF_TEST_DIR/socket -e \"SELECT CONCAT('KILL ',id,';') "
                    "FROM information_schema.processlist WHERE "
                    "user='rotating'\" | mariadb --no-defaults -f -u root -S "
                    "$HF_TEST_DIR/socket"),
             0);
    t_poll_until(hf_extend(lk, 0, NULL) == HF_OK, 15000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    snprintf(url, sizeof(url),
             "mysql://rotating:second@127.0.0.1:%s/test?password_file=%s",
             getenv("HF_TEST_PORT"), path);
    scene_refused(url, HF_INVALID, "password_file=");
    scene_sql("DROP USER rotating@'%%'");
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

/* ---- functions of others ------------------------------------------------- */

/* What stands in a schema that is searched cannot stand in for what is built
 * in. */
TEST(functions_of_others_are_never_called)
{
    hf_client *client;
    hf_lock *lk;

    if (!scene_is_postgres())
        T_SKIP_TRAIT("functions that can be hidden");
    scene_sql("CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz "
              "LANGUAGE sql AS 'SELECT to_timestamp(0)'");
    scene_sql("CREATE FUNCTION public.pg_backend_pid() RETURNS int LANGUAGE "
              "sql AS 'SELECT 1'");
    scene_sql("ALTER ROLE holdfast SET search_path=public,pg_catalog");
    client = scene_open(0, "");
    CHECK_OK(hf_acquire(client, scene_key("hidden"), 0, NULL, &lk, &t_err));
    CHECK_GT(hf_fence(lk), INT64_C(1500000000000000));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    scene_sql("ALTER ROLE holdfast RESET search_path");
    scene_sql("DROP FUNCTION public.clock_timestamp(); DROP FUNCTION "
              "public.pg_backend_pid()");
}

/* ---- poolers ------------------------------------------------------------ */

static int pooler_start(const char *mode)
{
    int port = 20000 + getpid() % 10000;
    char text[1024];

    if (shell("command -v pgbouncer >/dev/null"))
        T_SKIP_HOST("pgbouncer is not installed");
    snprintf(text, sizeof(text),
             "cd $HF_TEST_DIR && { echo '[databases]'; echo \"postgres = "
             "host=127.0.0.1 port=$HF_TEST_PORT user=holdfast\"; echo "
             "'[pgbouncer]'; echo listen_addr=127.0.0.1; echo "
             "listen_port=%d; echo unix_socket_dir=; echo auth_type=any; "
             "echo pool_mode=%s; echo server_round_robin=1; echo "
             "logfile=$HF_TEST_DIR/bouncer.log; "
             "echo pidfile=$HF_TEST_DIR/bouncer.pid; } >bouncer.ini && "
             "r=; [ $(id -u) != 0 ] || r='setpriv --reuid=postgres "
             "--regid=postgres --clear-groups --'; $r pgbouncer -q -d "
             "bouncer.ini",
             port, mode);
    CHECK_EQ(shell(text), 0);
    snprintf(text, sizeof(text),
             "psql -X -q -h 127.0.0.1 -p %d -U holdfast -c 'SELECT 1' postgres "
             ">/dev/null 2>&1",
             port);
    t_poll_until(!shell(text), 10000);
    return port;
}

static void pooler_stop(void)
{
    CHECK_EQ(shell("kill $(cat $HF_TEST_DIR/bouncer.pid)"), 0);
    t_poll_until(shell("test -e $HF_TEST_DIR/bouncer.pid"), 10000);
}

static hf_client *pooler_open(int port, const char *strategy)
{
    hf_client *client = NULL;
    char url[256];

    snprintf(url, sizeof(url),
             "postgres://holdfast@127.0.0.1:%d/postgres?strategy=%s&"
             "table=pooled_%s",
             port, strategy, strategy);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    return client;
}

/* Two clients behind the pooler pass a lock on. */
static void pooler_works(int port, const char *strategy)
{
    hf_client *a = pooler_open(port, strategy);
    hf_client *b = pooler_open(port, strategy);
    struct hf_info info = HF_INFO_INIT;
    struct hf_event event = HF_EVENT_INIT;
    hf_lock *lk, *none = NULL;
    hf_request *req;

    CHECK_OK(hf_acquire(a, "pooled", 0, NULL, &lk, &t_err));
    CHECK_STATUS(hf_acquire(b, "pooled", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_inspect(b, "pooled", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_check(b, "pooled", hf_fence(lk), &t_err));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_acquire_start(b, "pooled", 20000, NULL, NULL, &req, &t_err));
    t_sleep_ms(100);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(hf_next_event(b, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_close(a);
    hf_close(b);
}

/* And several hold one. */
static void pooler_shares(int port, const char *strategy)
{
    hf_client *a = pooler_open(port, strategy);
    hf_client *b = pooler_open(port, strategy);
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *one, *two, *none = NULL;

    opts.permits = 2;
    CHECK_OK(hf_acquire(a, "permits", 0, &opts, &one, &t_err));
    CHECK_OK(hf_acquire(b, "permits", 0, &opts, &two, &t_err));
    CHECK_EQ(hf_slot(two), 1);
    CHECK_STATUS(hf_acquire(b, "permits", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_extend(one, 0, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    opts.permits = 0;
    CHECK_OK(hf_acquire(a, "modes", 0, &opts, &one, &t_err));
    CHECK_OK(hf_downgrade(one, &t_err));
    opts.flags = HF_SHARED;
    CHECK_OK(hf_acquire(b, "modes", 0, &opts, &two, &t_err));
    CHECK_STATUS(hf_acquire(b, "modes", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    hf_close(a);
    hf_close(b);
}

/* Has no session of the pooler anything of ours? */
static bool pooler_is_clean(int port)
{
    char text[640];

    snprintf(text, sizeof(text),
             "for i in 1 2 3 4 5 6 7 8; do psql -X -q -A -t -h 127.0.0.1 -p %d "
             "-U holdfast -c \"SELECT current_setting('enable_seqscan')||"
             "current_setting('search_path')||(SELECT count(*) FROM "
             "pg_prepared_statements)||(SELECT count(*) FROM "
             "pg_listening_channels())\" postgres; done | "
             "grep -qv '^on.*public00$'",
             port);
    return shell(text) != 0;
}

TEST_TIMEOUT(behind_a_pooler_nothing_is_left_in_a_session, 120)
{
    static const char *const modes[] = {"transaction", "session"};
    static const char *const strategies[] = {"lease", "version", "row"};

    if (!scene_is_postgres())
        T_SKIP_TRAIT("poolers");
    for (int i = 0; i < 2; i++) {
        int port = pooler_start(modes[i]);
        struct hf_service service = {.size = sizeof(service)};
        hf_client *client = pooler_open(port, "lease");

        CHECK_OK(hf_describe(client, &service, &t_err));
        CHECK(strstr(service.warning, "pooler") != NULL);
        CHECK(!(service.traits & HF_TRAIT_NOTIFY));
        hf_close(client);
        for (int j = 0; j < 3; j++)
            pooler_works(port, strategies[j]);
        for (int j = 0; j < 2; j++)
            pooler_shares(port, strategies[j]);
        CHECK(pooler_is_clean(port));
        pooler_stop();
    }
}

/* ---- passwords ---------------------------------------------------------- */

/* As if it were a server elsewhere. */
static const char *secret_url(const char *more)
{
    static char url[512];

    snprintf(url, sizeof(url),
             "postgres://reader@db.test:%s/postgres?hostaddr=127.0.0.1&"
             "table=secrets%s",
             getenv("HF_TEST_PORT"), more);
    return url;
}

TEST_TIMEOUT(a_password_file_is_read_again_for_each_connection, 60)
{
    struct hf_service service = {.size = sizeof(service)};
    char more[256];
    hf_client *client = NULL;
    hf_lock *lk;

    if (!scene_is_postgres())
        T_SKIP_TRAIT("a server that can be told whom to ask for a password");
    scene_sql("CREATE ROLE reader LOGIN PASSWORD 'first secret'");
    scene_sql("GRANT CREATE ON SCHEMA public TO reader");
    CHECK_EQ(
        shell("cd $HF_TEST_DIR && { echo 'local all all trust'; echo "
              "'host all reader all scram-sha-256'; echo 'host all all all "
              "trust'; } >hba && chmod 644 hba && echo first secret >pw"),
        0);
    snprintf(more, sizeof(more), "-c hba_file=%s/hba", getenv("HF_TEST_DIR"));
    scene_options(more);
    scene_server("stop");
    scene_server("start");
    snprintf(more, sizeof(more), "&password_file=%s/pw", getenv("HF_TEST_DIR"));
    CHECK_OK(hf_open(secret_url(more), NULL, &client, &t_err));
    CHECK_OK(hf_describe(client, &service, &t_err));
    CHECK(strstr(service.warning, "verify-full") != NULL);
    CHECK_OK(hf_acquire(client, "x", 0, NULL, &lk, &t_err));
    scene_sql("ALTER ROLE reader PASSWORD 'second secret'");
    CHECK_EQ(shell("echo second secret >$HF_TEST_DIR/pw"), 0);
    scene_end_sessions();
    t_poll_until(hf_extend(lk, 0, &t_err) == HF_OK, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    CHECK_EQ(shell("echo wrong >$HF_TEST_DIR/pw"), 0);
    scene_refused(secret_url(more), HF_DENIED, "authentication");
    scene_refused(secret_url("&password_file=/nonexistent/pw"), HF_SYSTEM,
                  "password_file=");
    scene_refused(secret_url("&password=x&password_file=/x"), HF_INVALID,
                  "password_file=");
    scene_options("");
    scene_server("stop");
    scene_server("start");
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
