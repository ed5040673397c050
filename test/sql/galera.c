/* SPDX-License-Identifier: MIT
 *
 * galera.c - MariaDB on two nodes of Galera, each granting to its own clients.
 *
 * A row that both nodes change at once is certified for one of them at commit,
 * and the other is told of a deadlock; so lease and version exclude across the
 * nodes.  A row lock is known to its own node only, which is shown here with
 * plain SQL, and is why strategy=row is refused.
 *
 * Run by test/servers/galera.
 */
#include "scene.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The URL of a node, 0 or 1. */
static const char *node_url(int node, const char *strategy)
{
    static _Thread_local char url[256];

    snprintf(url, sizeof(url), "%s?strategy=%s&table=by_%s",
             getenv(node ? "HF_TEST_URL_2" : "HF_TEST_URL"), strategy,
             strategy);
    return url;
}

static hf_client *node_open(int node, const char *strategy)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(node_url(node, strategy), NULL, &client, &t_err));
    return client;
}

TEST(row_locks_are_refused_and_the_message_says_why)
{
    for (int node = 0; node < 2; node++) {
        scene_refused(node_url(node, "row"), HF_UNSUPPORTED, "Galera");
        CHECK(strstr(t_err.text, "use lease or version") != NULL);
    }
}

TEST(a_row_lock_of_one_node_excludes_nobody_on_the_other)
{
    static const char *const script =
        "set -e; cd $HF_TEST_DIR; "
        "q() { mariadb --no-defaults -u root -S socket.$1 test -e \"$2\"; }; "
        "q 1 'CREATE TABLE plain (n INT PRIMARY KEY); INSERT INTO plain "
        "VALUES (1)'; "
        "mkfifo hold; mariadb --no-defaults -n -u root -S socket.1 test <hold "
        ">held & exec 9>hold; "
        "echo 'BEGIN; SELECT 7 FROM plain WHERE n=1 FOR UPDATE;' >&9; "
        "i=0; until grep -q 7 held; do i=$((i+1)); [ $i -lt 200 ]; sleep .05; "
        "done; "
        "! q 1 'SELECT 8 FROM plain WHERE n=1 FOR UPDATE NOWAIT' 2>/dev/null; "
        "q 2 'SELECT 8 FROM plain WHERE n=1 FOR UPDATE NOWAIT' | grep -q 8";

    CHECK_EQ(system(script), 0);
}

TEST(a_lease_that_goes_by_two_clocks_is_warned_of)
{
    static const char *const strategies[] = {"lease", "version"};

    for (int i = 0; i < 2; i++) {
        struct hf_service service = {.size = sizeof(service)};
        hf_client *client = node_open(0, strategies[i]);

        CHECK_OK(hf_describe(client, &service, &t_err));
        CHECK_EQ(strstr(service.warning, "clock") != NULL, i == 0);
        hf_close(client);
    }
}

/* ---- sessions ------------------------------------------------------------ */

static void *take_turns(void *arg)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;
    char key[32];

    opts.flags = HF_FAIR;
    for (int i = 0; i < 30; i++) {
        snprintf(key, sizeof(key), "own.%lx", (unsigned long)pthread_self());
        CHECK_OK(hf_acquire(arg, key, 10000, &opts, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    return NULL;
}

/* In node 1: how many statements of the log have that in them? */
static int64_t logged(const char *where)
{
    char text[512], line[64] = "";
    FILE *pipe;

    snprintf(text, sizeof(text),
             "mariadb --no-defaults -N -B -u root -S $HF_TEST_DIR/socket.1 -e "
             "\"%s\"",
             where);
    pipe = popen(text, "r");
    CHECK(pipe != NULL);
    if (!fgets(line, sizeof(line), pipe))
        line[0] = '\0';
    CHECK_EQ(pclose(pipe), 0);
    return atoll(line);
}

TEST(every_session_waits_for_what_other_nodes_have_committed)
{
    hf_client *client;
    pthread_t threads[4];
    int64_t sessions;

    logged("SET GLOBAL log_output='TABLE'; TRUNCATE mysql.general_log; SET "
           "GLOBAL general_log=1");
    client = node_open(0, "lease");
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, take_turns, client), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    hf_close(client);
    logged("SET GLOBAL general_log=0");
    sessions = logged("SELECT COUNT(*) FROM mysql.general_log WHERE "
                      "command_type='Connect' AND argument LIKE 'holdfast@%'");
    CHECK_GT(sessions, 1);
    CHECK_EQ(logged("SELECT COUNT(*) FROM mysql.general_log WHERE argument "
                    "LIKE 'SET%wsrep_sync_wait=7%'"),
             sessions);
}

/* ---- exclusion ----------------------------------------------------------- */

struct field {
    hf_client *clients[2];
    const char *key;
    atomic_int next, inside, turns[2];
    uint64_t fence;
    int rounds;
};

static void *contend(void *arg)
{
    struct field *field = arg;
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    int node = atomic_fetch_add(&field->next, 1) % 2;

    opts.flags = HF_FAIR;
    opts.retry_ms = 5;
    for (int i = 0; i < field->rounds; i++) {
        hf_lock *lk = NULL;

        CHECK_OK(hf_acquire(field->clients[node], field->key, 60000, &opts, &lk,
                            &t_err));
        CHECK_EQ(atomic_fetch_add(&field->inside, 1), 0);
        CHECK_GT(hf_fence(lk), field->fence);
        field->fence = hf_fence(lk);
        atomic_fetch_add(&field->turns[node], 1);
        CHECK_EQ(atomic_fetch_sub(&field->inside, 1), 1);
        CHECK_OK(hf_release(lk, &t_err));
    }
    return NULL;
}

/* Eight threads, half of them by each node. */
static void exclude(const char *strategy)
{
    struct field field = {.key = strategy, .rounds = t_scaled(20, 5)};
    pthread_t threads[8];
    hf_lock *lk, *none = NULL;

    for (int node = 0; node < 2; node++)
        field.clients[node] = node_open(node, strategy);
    CHECK_OK(hf_acquire(field.clients[0], "seen", 0, NULL, &lk, &t_err));
    CHECK_STATUS(hf_acquire(field.clients[1], "seen", 0, NULL, &none, &t_err),
                 HF_BUSY);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(field.clients[1], "seen", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < 8; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, contend, &field), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(field.turns[0], 4 * field.rounds);
    CHECK_EQ(field.turns[1], 4 * field.rounds);
    for (int node = 0; node < 2; node++)
        hf_close(field.clients[node]);
}

TEST_TIMEOUT(leases_exclude_across_the_nodes, 120)
{
    exclude("lease");
}

TEST_TIMEOUT(versions_exclude_across_the_nodes, 120)
{
    exclude("version");
}

/* ---- sharing --------------------------------------------------------------- */

enum { GALERA_PERMITS = 2 };

struct shared_field {
    hf_client *clients[2];
    atomic_int next, inside, slots[GALERA_PERMITS], readers, writers;
    int rounds;
};

static hf_lock *enter(struct shared_field *field, int node, const char *key,
                      struct hf_lock_opts opts)
{
    hf_lock *lk = NULL;

    opts.retry_ms = 5;
    CHECK_OK(hf_acquire(field->clients[node], key, 60000, &opts, &lk, &t_err));
    return lk;
}

static void use_permit(struct shared_field *field, int node)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk;

    opts.permits = GALERA_PERMITS;
    lk = enter(field, node, "permits", opts);
    CHECK_LT(atomic_fetch_add(&field->inside, 1), GALERA_PERMITS);
    CHECK_EQ(atomic_fetch_add(&field->slots[hf_slot(lk)], 1), 0);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    atomic_fetch_sub(&field->slots[hf_slot(lk)], 1);
    atomic_fetch_sub(&field->inside, 1);
    CHECK_OK(hf_release(lk, &t_err));
}

static void read_or_write(struct shared_field *field, int node, bool write)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk;

    opts.flags = write ? HF_FAIR : HF_SHARED;
    lk = enter(field, node, "modes", opts);
    CHECK_EQ(atomic_fetch_add(&field->writers, write), 0);
    atomic_fetch_add(&field->readers, !write);
    CHECK(!write || !atomic_load(&field->readers));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK(!write || !atomic_load(&field->readers));
    atomic_fetch_sub(&field->readers, !write);
    atomic_fetch_sub(&field->writers, write);
    CHECK_OK(hf_release(lk, &t_err));
}

static void *share(void *arg)
{
    struct shared_field *field = arg;
    int node = atomic_fetch_add(&field->next, 1) % 2;

    for (int i = 0; i < field->rounds; i++) {
        use_permit(field, node);
        read_or_write(field, node, i % 3 == 0);
    }
    return NULL;
}

/* Six threads, half of them by each node. */
static void share_all(const char *strategy)
{
    struct shared_field field = {.rounds = t_scaled(12, 4)};
    pthread_t threads[6];

    for (int node = 0; node < 2; node++)
        field.clients[node] = node_open(node, strategy);
    for (int i = 0; i < 6; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, share, &field), 0);
    for (int i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    for (int node = 0; node < 2; node++)
        hf_close(field.clients[node]);
}

TEST_TIMEOUT(leases_are_shared_across_the_nodes, 120)
{
    share_all("lease");
}

TEST_TIMEOUT(versions_are_shared_across_the_nodes, 120)
{
    share_all("version");
}

T_MAIN
