/* SPDX-License-Identifier: MIT
 *
 * tables.c - a lock table is verified for everything that the statements rely
 * on before it is used: what it is, whose it is, its columns and its keys.  A
 * table that keeps less is refused, with one line that says what to do.
 */
#include "scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What somebody has done to a lock table, and what the refusal says.  NULL: that
 * database has no such thing. */
struct spoil {
    const char *strategy, *postgres, *mysql, *word;
};

static void spoiled(const struct spoil *spoil)
{
    const char *how = scene_is_postgres() ? spoil->postgres : spoil->mysql;
    hf_client *client = NULL;

    if (!how)
        return;
    CHECK_OK(hf_open(scene_url_of(spoil->strategy, "spoilt"), NULL, &client,
                     &t_err));
    hf_close(client);
    scene_sql("%s", how);
    scene_refused(scene_url_of(spoil->strategy, "spoilt"), HF_PROTOCOL,
                  spoil->word);
    scene_sql("DROP TABLE spoilt; DROP TABLE IF EXISTS spoilt_fence");
}

static void all_spoiled(const struct spoil *spoils, size_t n)
{
    for (size_t i = 0; i < n; i++)
        spoiled(&spoils[i]);
}

#define ALL_SPOILED(spoils)                                                    \
    all_spoiled(spoils, sizeof(spoils) / sizeof((spoils)[0]))

#define SPOILT  "ALTER TABLE spoilt "
#define MODIFY  SPOILT "MODIFY "
#define FENCE   "ALTER TABLE spoilt_fence "
#define CI_TEXT " VARCHAR(33) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"

/* ---- what it is ---------------------------------------------------------- */

TEST(a_table_of_another_strategy_is_refused)
{
    hf_close(scene_open(0, "&table=mixed"));
    scene_refused(scene_url_of("version", "mixed"), HF_PROTOCOL, "strategy");
    scene_sql("DROP TABLE mixed");
}

/* One with the columns of two strategies would be used by both, and neither
 * knows when a lock of the other is over. */
static void two_strategies(const char *strategy, const char *table,
                           const char *column)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(scene_url_of(strategy, "mixed"), NULL, &client, &t_err));
    hf_close(client);
    scene_sql("ALTER TABLE %s ADD %s", table, column);
    scene_refused(scene_url_of(strategy, "mixed"), HF_PROTOCOL,
                  "another strategy");
    scene_sql("DROP TABLE mixed; DROP TABLE IF EXISTS mixed_fence");
}

TEST_TIMEOUT(a_table_of_two_strategies_is_refused, 60)
{
    const char *time = scene_is_postgres() ? "expires_at timestamptz"
                                           : "expires_at DATETIME(6) NULL";

    two_strategies("lease", "mixed", "version bigint NOT NULL DEFAULT 1");
    two_strategies("lease", "mixed", "row_lock boolean NOT NULL DEFAULT true");
    two_strategies("version", "mixed", time);
    two_strategies("row", "mixed", "token varchar(33)");
    two_strategies("row", "mixed_fence", time);
}

/* Without the index there could be two rows of one name, and InnoDB would lock
 * all of them. */
static void without_index(const char *strategy, const char *table)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(scene_url_of(strategy, "bare"), NULL, &client, &t_err));
    hf_close(client);
    if (scene_is_postgres())
        scene_sql("ALTER TABLE %s DROP CONSTRAINT %s_pkey", table, table);
    else
        scene_sql("ALTER TABLE %s DROP PRIMARY KEY", table);
    scene_refused(scene_url_of(strategy, "bare"), HF_PROTOCOL, "unique index");
    /* One over more columns, over the beginning of the name, or with doubles
     * allowed, will not do. */
    scene_sql("CREATE UNIQUE INDEX wide ON %s (name,%s)", table,
              strcmp(table, "bare_fence") && !strcmp(strategy, "row")
                  ? "row_lock"
                  : "fence");
    scene_sql("CREATE INDEX loose ON %s (name)", table);
    if (!scene_is_postgres())
        scene_sql("CREATE UNIQUE INDEX prefix ON %s (name(4))", table);
    scene_refused(scene_url_of(strategy, "bare"), HF_PROTOCOL, "unique index");
    scene_sql("CREATE UNIQUE INDEX narrow ON %s (name)", table);
    scene_refused(scene_url_of(strategy, "bare"), HF_PROTOCOL,
                  "another unique");
    scene_sql("DROP INDEX wide%s%s", scene_is_postgres() ? "" : " ON ",
              scene_is_postgres() ? "" : table);
    if (!scene_is_postgres())
        scene_sql("DROP INDEX prefix ON %s", table);
    CHECK_OK(hf_open(scene_url_of(strategy, "bare"), NULL, &client, &t_err));
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

/* A view may run its author's functions with our rights. */
TEST(a_view_and_a_table_without_transactions_are_refused)
{
    if (scene_is_postgres())
        T_SKIP_TRAIT("see what a planted table can do there");
    hf_close(scene_open(0, "&table=genuine"));
    scene_sql("CREATE FUNCTION spy() RETURNS INT SQL SECURITY INVOKER NO SQL "
              "BEGIN SET @spied=1; RETURN 0; END//");
    scene_sql("CREATE SQL SECURITY INVOKER VIEW planted AS SELECT * FROM "
              "genuine WHERE spy()=0");
    scene_refused(scene_url(0, "&table=planted"), HF_PROTOCOL, "view");
    scene_refused(scene_url(0, "&table=test.planted"), HF_PROTOCOL, "view");
    scene_sql("CREATE TABLE lockless LIKE genuine");
    scene_sql("ALTER TABLE lockless ENGINE=MEMORY");
    scene_refused(scene_url(0, "&table=lockless"), HF_PROTOCOL, "transactions");
    scene_sql("DROP VIEW planted; DROP FUNCTION spy; DROP TABLE genuine, "
              "lockless");
}

/* FEDERATED says that it has transactions, but SELECT ... FOR UPDATE locks no
 * row: each who asked had the lock. */
TEST(a_table_whose_engine_locks_no_rows_is_refused)
{
    static const struct spoil spoil = {
        "row", NULL,
        SPOILT "RENAME TO truth; CREATE TABLE spoilt (name VARBINARY(1024) NOT "
               "NULL PRIMARY KEY, row_lock BOOLEAN NOT NULL DEFAULT true) "
               "ENGINE=FEDERATED CONNECTION='mysql://holdfast:secret@127.0.0.1:"
               "$HF_TEST_PORT/test/truth'",
        "InnoDB"};

    if (scene_is_postgres() || scene_is_mysql())
        T_SKIP_TRAIT("FEDERATED");
    if (system("mariadb --no-defaults -u root -S $HF_TEST_DIR/socket -e "
               "\"INSTALL SONAME 'ha_federatedx'\" 2>/dev/null"))
        T_SKIP_HOST("FEDERATED is not installed");
    spoiled(&spoil);
    scene_sql("DROP TABLE truth");
    scene_sql("UNINSTALL SONAME 'ha_federatedx'");
}

/* A key that is too long for an index is one of hashes in MariaDB, and is not
 * kept by the index alone. */
TEST(a_table_whose_key_is_one_of_hashes_is_refused)
{
    static const struct spoil spoil = {
        "lease", NULL,
        SPOILT "DROP PRIMARY KEY, MODIFY name VARBINARY(4000) NOT NULL, ADD "
               "UNIQUE KEY (name)",
        "unique index"};

    if (scene_is_mysql())
        T_SKIP_TRAIT("keys of hashes");
    spoiled(&spoil);
}

/* The server would make the table with the engine that it prefers. */
TEST(a_server_that_has_another_engine_in_mind_is_refused)
{
    if (scene_is_postgres() || scene_is_mysql())
        T_SKIP_TRAIT("enforce_storage_engine");
    scene_sql("SET GLOBAL enforce_storage_engine='MEMORY'");
    scene_refused(scene_url_of("lease", "enforced"), HF_UNSUPPORTED, "ENGINE");
    scene_refused(scene_url_of("row", "enforced"), HF_UNSUPPORTED, "ENGINE");
    scene_sql("SET GLOBAL enforce_storage_engine=NULL");
    scene_sql("DROP TABLE IF EXISTS enforced, enforced_fence");
}

/* ---- tables of others --------------------------------------------------- */

static void planted(const char *how, const char *word)
{
    scene_sql(
        "CREATE TABLE planted (name bytea PRIMARY KEY, token text, fence "
        "bigint NOT NULL, acquired_at timestamptz, expires_at timestamptz,"
        " ttl_ms bigint NOT NULL, wanted boolean NOT NULL DEFAULT false, "
        "owner bytea, note bytea)");
    hf_close(scene_open(0, "&table=planted")); /* Like this it is ours. */
    scene_sql("%s", how);
    scene_refused(scene_url(0, "&table=planted"), HF_DENIED, word);
    scene_refused(scene_url(0, "&table=public.planted"), HF_DENIED, word);
    scene_sql("DROP TABLE planted CASCADE");
}

TEST_TIMEOUT(a_table_that_is_not_to_be_trusted_is_refused, 60)
{
    if (!scene_is_postgres())
        T_SKIP_TRAIT("tables with an owner");
    scene_sql("CREATE ROLE mallory");
    scene_sql("GRANT CREATE ON SCHEMA public TO mallory");
    scene_sql(
        "CREATE FUNCTION act() RETURNS trigger LANGUAGE plpgsql AS "
        "\\$\\$ BEGIN EXECUTE 'ALTER ROLE mallory SUPERUSER'; RETURN NEW; "
        "END \\$\\$");
    scene_sql("CREATE FUNCTION acts() RETURNS boolean LANGUAGE sql AS 'SELECT "
              "true'");
    scene_sql("ALTER FUNCTION act() OWNER TO mallory");
    planted("ALTER TABLE planted OWNER TO mallory", "mallory");
    planted(
        "CREATE TRIGGER act BEFORE INSERT OR UPDATE ON planted FOR EACH ROW "
        "EXECUTE FUNCTION act()",
        "trigger");
    planted("CREATE RULE act AS ON INSERT TO planted DO ALSO SELECT acts()",
            "rules");
    planted("ALTER TABLE planted ENABLE ROW LEVEL SECURITY", "row security");
    planted("ALTER TABLE planted ALTER wanted SET DEFAULT acts()", "default");
    planted("ALTER TABLE planted ADD CHECK (acts())", "constraint");
    planted("CREATE TABLE child () INHERITS (planted)", "ordinary");
    scene_sql("CREATE TABLE parent (owner bytea)");
    planted("ALTER TABLE planted INHERIT parent", "ordinary");
    scene_sql("DROP TABLE parent");
    planted("ALTER TABLE planted SET UNLOGGED", "UNLOGGED");
    scene_sql("CREATE VIEW seen AS SELECT 1 AS name");
    scene_refused(scene_url(0, "&table=seen"), HF_DENIED, "ordinary");
    scene_sql("CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA "
              "WRAPPER w; CREATE FOREIGN TABLE far (name bytea) SERVER s");
    scene_refused(scene_url(0, "&table=far"), HF_DENIED, "ordinary");
    /* A schema that is searched first may be anybody's. */
    scene_sql("CREATE SCHEMA holdfast AUTHORIZATION mallory; CREATE TABLE "
              "holdfast.first (n int)");
    scene_refused(scene_url(0, "&table=first"), HF_DENIED, "schema");
    scene_sql("DROP SCHEMA holdfast CASCADE");
    CHECK_EQ(scene_sql("SELECT rolsuper::int FROM pg_roles WHERE "
                       "rolname='mallory'"),
             0);
    hf_close(scene_open(0, ""));
}

/* ---- what the statements rely on ----------------------------------------- */

/* A lease that is rounded ends up to half a second earlier than its holder
 * believes. */
TEST_TIMEOUT(a_table_whose_columns_keep_less_is_refused, 120)
{
    static const struct spoil spoils[] = {
        {"lease", SPOILT "ALTER expires_at TYPE timestamptz(0)",
         MODIFY "expires_at DATETIME NULL", "expires_at"},
        {"lease", SPOILT "ALTER expires_at TYPE timestamptz(3)",
         MODIFY "expires_at DATETIME(3) NULL", "expires_at"},
        {"lease", SPOILT "ALTER expires_at TYPE timestamp",
         MODIFY "expires_at TIMESTAMP(6) NULL", "expires_at"},
        {"lease", SPOILT "ALTER fence TYPE float8",
         MODIFY "fence DOUBLE NOT NULL", "fence"},
        {"lease", SPOILT "ALTER ttl_ms TYPE int", MODIFY "ttl_ms INT NULL",
         "ttl_ms"},
        {"version", SPOILT "ALTER version TYPE int",
         MODIFY "version INT NOT NULL", "version"},
        {"lease", SPOILT "ALTER token TYPE varchar(20)",
         MODIFY "token VARCHAR(20) CHARACTER SET ascii COLLATE ascii_bin NULL",
         "token"},
        {"lease", SPOILT "ALTER note TYPE text USING encode(note,'hex')",
         MODIFY "note VARBINARY(16) NULL", "note"},
        {"lease", NULL, MODIFY "name VARBINARY(64) NOT NULL", "name"},
        {"lease", NULL, MODIFY "fence BIGINT ZEROFILL NOT NULL", "fence"},
        {"row", FENCE "ALTER session TYPE int", FENCE "MODIFY session INT NULL",
         "session"},
    };

    ALL_SPOILED(spoils);
}

/* Two keys, or a token and that of a broken lock, must never be equal. */
TEST_TIMEOUT(a_table_that_compares_otherwise_is_refused, 60)
{
    static const struct spoil spoils[] = {
        {"lease", SPOILT "ALTER token TYPE text COLLATE loose",
         MODIFY "token" CI_TEXT " NULL", "collation"},
        {"row", FENCE "ALTER token TYPE text COLLATE loose",
         FENCE "MODIFY token" CI_TEXT " NULL", "collation"},
        {"lease", SPOILT "ALTER name TYPE text USING encode(name,'hex')",
         MODIFY "name" CI_TEXT " NOT NULL", "name"},
        {"row", NULL, MODIFY "name BINARY(255) NOT NULL", "name"},
    };

    if (scene_is_postgres())
        scene_sql("CREATE COLLATION loose (provider=icu, deterministic=false, "
                  "locale='und-u-ka-shifted-ks-level1')");
    ALL_SPOILED(spoils);
}

/* Another key makes one lock fail, or change, for another; LAST_INSERT_ID() is
 * how MySQL tells the fence. */
TEST_TIMEOUT(a_table_with_other_keys_or_columns_is_refused, 120)
{
    static const struct spoil spoils[] = {
        {"lease", "CREATE UNIQUE INDEX other ON spoilt (token)",
         "CREATE UNIQUE INDEX other ON spoilt (token)", "another unique"},
        {"version", "CREATE UNIQUE INDEX other ON spoilt ((length(name)))",
         "CREATE UNIQUE INDEX other ON spoilt (name(4))", "another unique"},
        {"row", "CREATE UNIQUE INDEX other ON spoilt_fence (owner)",
         "CREATE UNIQUE INDEX other ON spoilt_fence (owner)", "another unique"},
        {"row", SPOILT "ADD EXCLUDE USING hash (row_lock WITH =)", NULL,
         "another unique"},
        {"lease", SPOILT "ADD id bigint GENERATED ALWAYS AS IDENTITY",
         SPOILT "ADD id BIGINT NOT NULL AUTO_INCREMENT, ADD KEY (id)",
         "other columns"},
        {"row", FENCE "ADD id bigint GENERATED ALWAYS AS IDENTITY",
         FENCE "ADD id BIGINT NOT NULL AUTO_INCREMENT, ADD KEY (id)",
         "other columns"},
        {"lease", SPOILT "ADD extra int NOT NULL",
         SPOILT "ADD extra INT NOT NULL", "other columns"},
        {"lease",
         SPOILT "DROP note, ADD note bytea GENERATED ALWAYS AS ("
                "'x'::bytea) STORED",
         SPOILT "DROP note, ADD note VARBINARY(256) AS ('x') STORED",
         "generated"},
        {"lease", NULL,
         MODIFY "acquired_at DATETIME(6) NULL ON UPDATE CURRENT_TIMESTAMP(6)",
         "generated"},
        {"lease", SPOILT "ALTER owner SET NOT NULL",
         MODIFY "owner VARBINARY(128) NOT NULL", "owner"},
        {"lease", SPOILT "ADD FOREIGN KEY (ttl_ms) REFERENCES parent (n)",
         SPOILT "ADD FOREIGN KEY (ttl_ms) REFERENCES parent (n) ON DELETE "
                "CASCADE",
         "foreign key"},
        {"lease", NULL, SPOILT "PARTITION BY KEY (name) PARTITIONS 2",
         "partition"},
    };
    hf_client *client = NULL;

    scene_sql("CREATE TABLE parent (n BIGINT PRIMARY KEY)");
    ALL_SPOILED(spoils);
    scene_sql("DROP TABLE parent");
    /* What takes part in nothing does no harm. */
    hf_close(scene_open(0, "&table=spoilt"));
    scene_sql("ALTER TABLE spoilt ADD remark VARCHAR(100)");
    scene_sql("CREATE INDEX seek ON spoilt (owner)");
    CHECK_OK(hf_open(scene_url_of("lease", "spoilt"), NULL, &client, &t_err));
    hf_close(client);
    scene_sql("DROP TABLE spoilt");
}

TEST(a_table_with_a_trigger_that_changes_rows_is_refused)
{
    static const struct spoil spoil = {
        "lease",
        "CREATE TRIGGER keep BEFORE UPDATE ON spoilt FOR EACH ROW EXECUTE "
        "FUNCTION keep()",
        "CREATE TRIGGER keep BEFORE UPDATE ON spoilt FOR EACH ROW BEGIN SET "
        "NEW.expires_at=OLD.expires_at; END",
        "trigger"};

    if (scene_is_postgres())
        scene_sql("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS "
                  "\\$\\$ BEGIN NEW.expires_at=OLD.expires_at; RETURN NEW; END "
                  "\\$\\$");
    spoiled(&spoil);
}

/* ---- tables of one connection --------------------------------------------- */

TEST(a_table_of_one_connection_is_refused)
{
    if (scene_is_postgres()) {
        scene_refused(scene_url(0, "&table=pg_temp.x"), HF_INVALID,
                      "temporary");
        scene_refused(scene_url_of("row", "pg_temp.x"), HF_INVALID,
                      "temporary");
        /* It is not made there either if that is searched first. */
        scene_sql("ALTER ROLE holdfast SET search_path=pg_temp,pg_catalog,"
                  "public");
        hf_close(scene_open(0, "&table=searched"));
        CHECK_EQ(scene_sql("SELECT count(*) FROM pg_tables WHERE "
                           "schemaname='public' AND tablename='searched'"),
                 1);
        scene_sql("ALTER ROLE holdfast RESET search_path");
        return;
    }
    hf_close(scene_open(0, "&table=hidden"));
    hf_close(scene_open(0, "&table=model"));
    scene_sql("SET GLOBAL init_connect='CREATE TEMPORARY TABLE test.hidden "
              "LIKE test.model'");
    scene_refused(scene_url(0, "&table=hidden"), HF_PROTOCOL, "temporary");
    scene_sql("SET GLOBAL init_connect=DEFAULT");
    hf_close(scene_open(0, "&table=hidden"));
    scene_sql("DROP TABLE hidden, model");
}

T_MAIN
