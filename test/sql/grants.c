/* SPDX-License-Identifier: MIT
 *
 * grants.c - how a grant ends or changes hands other than by its holder: it is
 * broken, it is freed by force, a handle of it is taken up.
 *
 * Run by test/servers/postgres or mysql.
 */
#include "scene.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct hf_lock_opts lasting(int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    return opts;
}

static struct hf_info look(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info;
}

/* ---- broken ------------------------------------------------------------- */

TEST(a_broken_lock_stays_taken_until_its_holder_releases_it)
{
    struct hf_lock_opts opts = lasting(30000);
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    const char *key = scene_key("broken");
    hf_lock *lk, *next = NULL;
    struct hf_info info;
    uint64_t fence;

    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_break(b, key, fence, &t_err));
    CHECK_OK(hf_break(b, key, fence, &t_err)); /* once more is no more */
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
    /* It has been told, and may still be at work. */
    CHECK_STATUS(hf_acquire(b, key, 0, &opts, &next, &t_err), HF_BUSY);
    info = look(b, key);
    CHECK(info.held);
    CHECK(info.broken);
    CHECK_EQ(info.fence, fence);
    CHECK_STR(info.owner, hf_token(lk));
    CHECK_STATUS(hf_check(b, key, fence, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    /* In the background, since there is nothing to wait for any more. */
    CHECK_OK(hf_acquire(b, key, 20000, &opts, &next, &t_err));
    CHECK_GT(hf_fence(next), fence);
    CHECK(!look(a, key).broken);
    CHECK_STATUS(hf_break(b, key, fence, &t_err), HF_LOST);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST(the_release_of_a_broken_lock_wakes_who_waits)
{
    struct hf_lock_opts opts = lasting(60000);
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    const char *key = scene_key("woken");
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;
    hf_lock *lk;

    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_acquire_start(b, key, 60000, &opts, NULL, &req, &t_err));
    t_sleep_ms(200);
    CHECK_OK(hf_break(b, key, hf_fence(lk), &t_err));
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    t_poll_until(hf_next_event(b, &event), 15000); /* ttl/2 would be 30 s */
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_close(a);
    hf_close(b);
}

/* One URL names the schema of the table, the other does not. */
TEST(a_release_wakes_who_names_the_table_otherwise)
{
    struct hf_lock_opts opts = lasting(60000);
    hf_client *a, *b;
    const char *key = scene_key("named");
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;
    hf_lock *lk;

    if (scene_is_sqlite() || !scene_is_postgres())
        T_SKIP_TRAIT("NOTIFY");
    a = scene_open(0, "&table=named");
    b = scene_open(0, "&table=public.named");
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    for (int i = 0; i < 2; i++) {
        hf_client *waiter = i ? a : b;

        CHECK_OK(
            hf_acquire_start(waiter, key, 60000, &opts, NULL, &req, &t_err));
        t_sleep_ms(200);
        CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(hf_next_event(waiter, &event), 10000); /* or ttl/2 */
        CHECK_EQ(event.type, HF_GRANTED);
        lk = event.lock;
    }
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* Nor does it change the order in which they are served. */
TEST(who_names_the_table_otherwise_waits_in_the_same_queue)
{
    struct hf_lock_opts opts = lasting(30000);
    hf_client *clients[3];
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;
    hf_lock *lk;

    if (scene_is_sqlite() || !scene_is_postgres() || !scene_is("row"))
        T_SKIP_TRAIT("HF_TRAIT_QUEUED");
    for (int i = 0; i < 3; i++)
        clients[i] =
            scene_open(0, i == 2 ? "&table=public.queued" : "&table=queued");
    for (int turn = 0; turn < 10; turn++) {
        CHECK_OK(hf_acquire(clients[0], "k", 10000, &opts, &lk, &t_err));
        for (int i = 1; i < 3; i++) {
            CHECK_OK(hf_acquire_start(clients[i], "k", 30000, &opts, NULL, &req,
                                      &t_err));
            t_poll_until(scene_sql("SELECT count(*) FROM pg_locks WHERE NOT "
                                   "granted") == i,
                         10000);
        }
        CHECK_OK(hf_release(lk, &t_err));
        for (int i = 1; i < 3; i++) {
            t_poll_until(hf_next_event(clients[i], &event), 10000);
            CHECK_EQ(event.type, HF_GRANTED);
            CHECK_OK(hf_release(event.lock, &t_err));
        }
    }
    for (int i = 0; i < 3; i++)
        hf_close(clients[i]);
}

static void check_refused(hf_status st, const char *word)
{
    t_check_status(__FILE__, __LINE__, word, st, HF_UNSUPPORTED);
    if (!strstr(t_err.text, word))
        t_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", t_err.text,
               word);
}

TEST(strategy_row_says_why_it_does_not_share)
{
    const char *why;
    struct hf_lock_opts shared = lasting(30000), permit = lasting(30000);
    struct hf_lock_opts kept = lasting(30000);
    hf_lock *lk = NULL, *none = NULL;
    hf_client *client;

    if (!scene_is("row"))
        T_SKIP_TRAIT("strategy row");
    why = scene_is_postgres() ? "pass a writer" : "a downgrade would let";
    client = scene_open(0, "");
    shared.flags = HF_SHARED;
    permit.permits = 2;
    kept.min_hold_ms = 1000;
    check_refused(hf_acquire(client, "k", 0, &shared, &none, &t_err), why);
    check_refused(hf_acquire(client, "k", 0, &permit, &none, &t_err),
                  "one transaction");
    check_refused(hf_acquire(client, "k", 0, &kept, &none, &t_err),
                  "ends with its connection");
    CHECK(none == NULL);
    CHECK_OK(hf_acquire(client, "k", 0, NULL, &lk, &t_err));
    check_refused(hf_downgrade(lk, &t_err), why);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* What it says is so on this server: row.c, NO SHARING. */
TEST(postgres_does_not_show_who_shares_a_row_and_passes_a_writer)
{
    static const char shares[] = "BEGIN; SELECT n FROM readers FOR SHARE;";
    FILE *first, *second, *writer;

    if (scene_is_sqlite() || !scene_is_postgres() || !scene_is("row"))
        T_SKIP_TRAIT("strategy row");
    scene_sql("CREATE TABLE readers (n int PRIMARY KEY)");
    scene_sql("INSERT INTO readers VALUES (7)");
    for (int i = 0; i < 2; i++) {
        *(i ? &second : &first) = scene_operator(shares);
        t_poll_until(
            scene_sql("SELECT count(*) FROM readers t,pg_locks k WHERE "
                      "k.locktype='transactionid' AND "
                      "k.transactionid=t.xmax") == !i,
            20000);
    }
    writer = scene_operator("SELECT n FROM readers FOR UPDATE;");
    t_poll_until(scene_sql("SELECT count(*) FROM pg_locks WHERE NOT granted") ==
                     1,
                 20000);
    CHECK_EQ(scene_sql("SELECT n FROM readers FOR SHARE NOWAIT"), 7);
    pclose(first);
    pclose(second);
    pclose(writer);
}

TEST(mysql_keeps_a_row_lock_behind_a_savepoint)
{
    const char *share = scene_is_mysql() ? "FOR SHARE" : "LOCK IN SHARE MODE";
    char downgrade[200];
    FILE *writer;

    if (scene_is_sqlite() || scene_is_postgres() || !scene_is("row"))
        T_SKIP_TRAIT("strategy row");
    scene_sql("CREATE TABLE readers (n int PRIMARY KEY)");
    scene_sql("INSERT INTO readers VALUES (7)");
    CHECK_EQ(scene_sql("SELECT n FROM readers %s SKIP LOCKED", share), 7);
    snprintf(downgrade, sizeof(downgrade),
             "BEGIN; SELECT n FROM readers %s; SAVEPOINT weaker; SELECT n FROM "
             "readers FOR UPDATE; ROLLBACK TO weaker;",
             share);
    writer = scene_operator(downgrade);
    CHECK_EQ(scene_sql("SELECT COUNT(*) FROM information_schema.INNODB_TRX"),
             1);
    CHECK_NE(scene_sql("SELECT n FROM readers %s SKIP LOCKED", share), 7);
    pclose(writer);
    CHECK_EQ(scene_sql("SELECT n FROM readers %s SKIP LOCKED", share), 7);
}

/* Longer than a server may let a transaction idle. */
TEST(a_lease_of_a_month_is_granted_and_extended_to)
{
    const int64_t month = INT64_C(31) * 24 * 3600 * 1000;
    struct hf_lock_opts opts = lasting(month);
    hf_client *client = scene_open(0, "");
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, scene_key("month"), 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    opts.ttl_ms = 30000;
    CHECK_OK(hf_acquire(client, scene_key("month"), 0, &opts, &lk, &t_err));
    CHECK_OK(hf_extend(lk, month, &t_err));
    CHECK(hf_held(lk));
    CHECK(hf_remaining_ms(lk) > 60000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* ---- a server that is started again ------------------------------------- */

enum { CONTENDERS = 30 };

/* As many row locks, each with a session, as there were sessions before. */
static void contenders(hf_client *client, hf_lock *locks[CONTENDERS])
{
    struct hf_lock_opts opts = lasting(30000);
    char key[160];

    for (int i = 0; i < CONTENDERS; i++) {
        snprintf(key, sizeof(key), "%s %d", scene_key("contenders"), i);
        CHECK_OK(hf_acquire(client, key, 0, &opts, &locks[i], &t_err));
    }
}

static void check_contenders(hf_lock *locks[CONTENDERS])
{
    for (int i = 0; i < CONTENDERS; i++) {
        CHECK(hf_held(locks[i]));
        CHECK_OK(hf_extend(locks[i], 0, &t_err));
        CHECK_OK(hf_release(locks[i], &t_err));
    }
}

/* The server counts its sessions from 1 again; those that come next have
 * numbers as the contenders will have after another restart. */
static void restart(void)
{
    scene_server("kill");
    scene_server("start");
    for (int i = 0; i < CONTENDERS / 2; i++)
        scene_sql("SELECT 1");
}

TEST_TIMEOUT(a_session_is_not_taken_for_one_before_the_restart, 120)
{
    struct hf_lock_opts opts = lasting(30000);
    hf_lock *lk, *locks[CONTENDERS];
    hf_client *a, *b;
    uint64_t fence;
    char key[160];

    if (!scene_is("row"))
        T_SKIP_TRAIT("locks that are sessions");
    restart();
    snprintf(key, sizeof(key), "%s", scene_key("ghost"));
    a = scene_open(0, "");
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    scene_server("kill");
    t_poll_until(!hf_held(lk), 20000);
    hf_release(lk, NULL);
    hf_close(a);
    scene_server("start");
    b = scene_open(0, "");
    contenders(b, locks);
    CHECK(!look(b, key).held);
    CHECK_STATUS(hf_break_force(b, key, fence, &t_err), HF_LOST);
    check_contenders(locks);
    hf_close(b);
}

/* A try that gets no answer; then the key is taken, after the session of that
 * try was ended. */
static void try_in_vain(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = lasting(60000);
    hf_client *client;
    hf_lock *lk = NULL;
    hf_status st;

    (void)arg;
    t_hear(up);
    client = scene_open(0, "&timeout=1s");
    CHECK_OK(hf_acquire(client, scene_key("vain"), 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    t_tell(up, 0);
    t_hear(up);
    st = hf_acquire(client, scene_key("vain"), 0, &opts, &lk, &t_err);
    CHECK(st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
    t_tell(up, 0);
    t_poll_until(!hf_acquire(client, scene_key("vain"), 1000, &opts, &lk, NULL),
                 20000);
    CHECK_OK(hf_release(lk, &t_err));
    t_tell(up, 0);
    t_hear(up);
    hf_close(client);
}

TEST_TIMEOUT(no_session_is_ended_for_one_before_the_restart, 120)
{
    struct t_peer peer;
    hf_lock *locks[CONTENDERS];
    hf_client *client = NULL;
    char url[512];

    if (scene_is_sqlite() || scene_is("row"))
        T_SKIP_TRAIT("statements that are ended in the server");
    peer = t_fork(try_in_vain, NULL);
    restart();
    t_tell(&peer, 0);
    t_hear(&peer);
    scene_server("freeze");
    t_tell(&peer, 0);
    t_hear(&peer);
    CHECK_EQ(kill(peer.pid, SIGSTOP), 0);
    scene_server("kill");
    scene_server("start");
    snprintf(url, sizeof(url), "%s?strategy=row&table=crowded",
             getenv("HF_TEST_URL"));
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    contenders(client, locks);
    CHECK_EQ(kill(peer.pid, SIGCONT), 0);
    t_hear(&peer);
    t_sleep_ms(500);
    check_contenders(locks);
    t_tell(&peer, 0);
    t_join(&peer);
    hf_close(client);
}

/* ---- freed by force ----------------------------------------------------- */

TEST(a_lock_freed_by_force_is_granted_at_once)
{
    struct hf_lock_opts opts = lasting(60000);
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    const char *key = scene_key("forced");
    hf_lock *lk, *next;
    uint64_t fence;

    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_STATUS(hf_break_force(b, key, fence + 1, &t_err), HF_LOST);
    CHECK(hf_held(lk));
    CHECK_OK(hf_break(b, key, fence, &t_err));
    CHECK_OK(hf_break_force(b, key, fence, &t_err));
    CHECK_OK(
        hf_acquire(b, key, scene_is("row") ? 10000 : 0, &opts, &next, &t_err));
    CHECK_GT(hf_fence(next), fence);
    CHECK_STATUS(hf_break_force(b, key, fence, &t_err), HF_LOST);
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_extend(next, 0, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST(to_free_by_force_wakes_who_waits)
{
    struct hf_lock_opts opts = lasting(60000);
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    const char *key = scene_key("force wakes");
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;
    hf_lock *lk;

    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_acquire_start(b, key, 60000, &opts, NULL, &req, &t_err));
    t_sleep_ms(200);
    CHECK_OK(hf_break_force(b, key, hf_fence(lk), &t_err));
    t_poll_until(hf_next_event(b, &event), 15000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
}

/* ---- handed on ---------------------------------------------------------- */

TEST(a_handle_is_taken_up_once)
{
    struct hf_lock_opts opts = lasting(20000);
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    const char *key = scene_key("handle");
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *lk, *one, *two = NULL;
    uint64_t fence;

    if (scene_is("row"))
        T_SKIP_TRAIT("a lock that outlives its session");
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_handle_extend(b, key, &handle, &opts, &t_err));
    CHECK_OK(hf_handle_extend(a, key, &handle, &opts, &t_err));
    CHECK_OK(hf_attach(b, key, &handle, &opts, &one, &t_err));
    CHECK_EQ(hf_fence(one), fence);
    CHECK_STATUS(hf_attach(a, key, &handle, &opts, &two, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_extend(a, key, &handle, &opts, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_release(a, key, &handle, &opts, &t_err), HF_LOST);
    CHECK_OK(hf_extend(one, 0, &t_err));
    CHECK_STATUS(hf_acquire(a, key, 0, &opts, &two, &t_err), HF_BUSY);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_STATUS(hf_attach(b, key, &handle, &opts, &two, &t_err), HF_LOST);
    CHECK(!look(a, key).held);
    hf_close(a);
    hf_close(b);
}

T_MAIN
