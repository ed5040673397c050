/* SPDX-License-Identifier: MIT
 *
 * share.c - the table of holders, as others see it and as they leave it: what the
 * row of a key shows to clients that do not know it, requests that are cut or
 * come late, marks of the dead, tables that are missing or unfit.
 *
 * Run by test/servers/postgres or mysql, with strategies lease and version.
 */
#include "scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct hf_lock_opts sharing(int64_t ttl_ms, unsigned flags,
                                   int32_t permits)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    opts.flags = flags;
    opts.permits = permits;
    return opts;
}

/* The key as a literal of the server. */
static const char *literal(const char *key)
{
    static char text[600];

    snprintf(text, sizeof(text), "%s%s'", scene_is_postgres() ? "'\\x" : "X'",
             scene_hex(key));
    return text;
}

/* A moment by the server's clock. */
static const char *moment(int seconds)
{
    static char text[96];

    snprintf(text, sizeof(text),
             scene_is_postgres() ? "clock_timestamp()+interval '%d s'"
                                 : "UTC_TIMESTAMP(6)+INTERVAL %d SECOND",
             seconds);
    return text;
}

static bool is_held(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.held;
}

static int64_t holders_of(const char *key)
{
    return scene_sql("SELECT count(*) FROM holdfast_lock_holders WHERE name=%s",
                     literal(key));
}

/* What a plain claim of the last version asks: is the row another's? */
static int64_t taken(const char *key)
{
    char lapses[128] = "";

    if (scene_is("lease"))
        snprintf(lapses, sizeof(lapses), "AND expires_at>%s", moment(0));
    return scene_sql("SELECT count(*) FROM holdfast_lock WHERE name=%s AND "
                     "token IS NOT NULL AND token<>'mine' %s",
                     literal(key), lapses);
}

/* ---- the row of the key -------------------------------------------------- */

TEST(who_does_not_know_the_holders_sees_that_the_key_is_taken)
{
    struct hf_lock_opts opts[] = {sharing(60000, HF_SHARED, 0),
                                  sharing(60000, 0, 3)};
    hf_client *client = scene_open(0, "");
    const char *key = scene_key("old");
    hf_lock *one, *two;

    for (int i = 0; i < 2; i++) {
        CHECK_OK(hf_acquire(client, key, 0, &opts[i], &one, &t_err));
        CHECK_EQ(taken(key), 1);
        CHECK_OK(hf_acquire(client, key, 0, &opts[i], &two, &t_err));
        CHECK_EQ(holders_of(key), 2);
        CHECK_OK(hf_release(one, &t_err));
        CHECK_EQ(taken(key), 1);
        CHECK_OK(hf_release(two, &t_err));
        CHECK_EQ(taken(key), 0);
        CHECK_EQ(holders_of(key), 0);
    }
    opts[0] = sharing(60000, 0, 0);
    opts[0].min_hold_ms = 60000;
    CHECK_OK(hf_acquire(client, key, 0, &opts[0], &one, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_EQ(taken(key), 1);
    hf_close(client);
}

TEST(the_row_of_a_key_lasts_as_long_as_its_longest_holder)
{
    struct hf_lock_opts longer = sharing(600000, HF_SHARED, 0);
    struct hf_lock_opts shorter = sharing(60000, HF_SHARED, 0);
    hf_client *client = scene_open(0, "");
    const char *key = scene_key("longest");
    char ask[200];
    hf_lock *one, *two;

    if (!scene_is("lease"))
        T_SKIP_TRAIT("a row that says until when");
    CHECK_OK(hf_acquire(client, key, 0, &longer, &one, &t_err));
    CHECK_OK(hf_acquire(client, key, 0, &shorter, &two, &t_err));
    snprintf(ask, sizeof(ask),
             "SELECT count(*) FROM holdfast_lock WHERE expires_at>%s",
             moment(300));
    CHECK_EQ(scene_sql("%s AND name=%s", ask, literal(key)), 1);
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_EQ(scene_sql("%s AND name=%s", ask, literal(key)), 1);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_EQ(scene_sql("%s AND name=%s", ask, literal(key)), 0);
    CHECK_EQ(taken(key), 1);
    CHECK_OK(hf_release(two, &t_err));
    hf_close(client);
}

struct listed {
    int keys, plain;
    struct hf_info shared, permits;
};

static bool see(void *arg, const char *key, const struct hf_info *info)
{
    struct listed *listed = arg;

    listed->keys++;
    if (strstr(key, "list plain"))
        listed->plain += info->held && !info->shared && !info->permits;
    else if (info->permits)
        listed->permits = *info;
    else
        listed->shared = *info;
    return true;
}

TEST(a_listing_shows_a_key_once_and_how_many_have_it)
{
    struct hf_lock_opts read = sharing(30000, HF_SHARED, 0);
    struct hf_lock_opts permits = sharing(30000, 0, 5);
    hf_client *client = scene_open(0, "");
    struct listed listed = {.keys = 0};
    hf_lock *lk[6];

    for (int i = 0; i < 2; i++)
        CHECK_OK(hf_acquire(client,
                            scene_key(i ? "list plain 1" : "list plain"), 0,
                            NULL, &lk[i], &t_err));
    for (int i = 2; i < 4; i++) {
        read.note = i == 3 ? "the newest" : "the first";
        CHECK_OK(hf_acquire(client, scene_key("list shared"), 0, &read, &lk[i],
                            &t_err));
    }
    for (int i = 4; i < 6; i++)
        CHECK_OK(hf_acquire(client, scene_key("list permits"), 0, &permits,
                            &lk[i], &t_err));
    CHECK_OK(hf_list(client, scene_key("list"), see, &listed, &t_err));
    CHECK_EQ(listed.keys, 4);
    CHECK_EQ(listed.plain, 2);
    CHECK(listed.shared.held && listed.shared.shared);
    CHECK_EQ(listed.shared.holders, 2);
    CHECK_EQ(listed.shared.fence, hf_fence(lk[3]));
    CHECK_STR(listed.shared.note, "the newest");
    CHECK_EQ(listed.permits.permits, 5);
    CHECK_EQ(listed.permits.holders, 2);
    CHECK_EQ(listed.permits.slot, 1);
    for (int i = 0; i < 6; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
}

/* A plain lock costs what it did before there were holders. */
TEST(a_plain_pair_is_two_statements)
{
    static const char ask[] = "SHOW GLOBAL STATUS LIKE 'Questions'";
    hf_client *client;
    int64_t before, each, all;
    hf_lock *lk;

    if (scene_is_postgres())
        T_SKIP_TRAIT("a server that counts statements");
    client = scene_open(0, "&keep=off");
    before = scene_sql(ask);
    each = scene_sql(ask) - before;
    before = scene_sql(ask);
    for (int i = 0; i < 10; i++) {
        CHECK_OK(hf_acquire(client, scene_key("pair"), 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    all = scene_sql(ask) - before - each;
    CHECK_EQ(all, 20);
    hf_close(client);
}

/* ---- what others leave ---------------------------------------------------- */

/* A row of the table of holders, written by a person. */
static void plant(const char *key, const char *token, int mode, int permits,
                  const char *until)
{
    scene_sql("INSERT INTO holdfast_lock_holders (name,token,mode,permits,slot,"
              "fence,version,ttl_ms,kept,expires_at) VALUES (%s,'%s',%d,%d,%d,"
              "7,1,1000,0,%s)",
              literal(key), token, mode, permits, permits ? 0 : -1, until);
}

/* Its key was taken and released by one who does not know the holders. */
TEST(holders_of_a_key_that_is_free_count_for_nobody)
{
    struct hf_lock_opts opts = sharing(30000, 0, 1);
    hf_client *client = scene_open(0, "");
    const char *key = scene_key("left");
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    plant(key, "left behind", 0, 1, scene_is("lease") ? moment(3600) : "NULL");
    CHECK(!is_held(client, key));
    CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(holders_of(key), 1);
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK_EQ(hf_slot(lk), 0);
    CHECK_EQ(holders_of(key), 1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(holders_of(key), 0);
    hf_close(client);
}

TEST_TIMEOUT(the_mark_of_a_writer_that_is_dead_lapses, 60)
{
    struct hf_lock_opts read = sharing(30000, HF_SHARED, 0);
    hf_client *client = scene_open(0, "");
    const char *key = scene_key("dead");
    hf_lock *one, *two = NULL;

    CHECK_OK(hf_acquire(client, key, 0, &read, &one, &t_err));
    plant(key, "a dead writer", 2, 0, moment(2));
    CHECK_STATUS(hf_acquire(client, key, 0, &read, &two, &t_err), HF_BUSY);
    CHECK_OK(hf_acquire(client, key, 30000, &read, &two, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    /* Also where nobody reads any more. */
    plant(key, "a dead writer", 2, 0, moment(2));
    CHECK_STATUS(hf_acquire(client, key, 0, &read, &two, &t_err), HF_BUSY);
    CHECK_OK(hf_acquire(client, key, 30000, &read, &two, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    hf_close(client);
}

/* Tickets, or the marks of those who wait without a queue. */
static int64_t rows_of(hf_client *client, const char *key)
{
    struct hf_service service = {.size = sizeof(service)};
    int64_t n = holders_of(key);

    CHECK_OK(hf_describe(client, &service, &t_err));
    if (service.traits & HF_TRAIT_QUEUED)
        n += scene_sql("SELECT count(*) FROM holdfast_lock_queue WHERE name=%s",
                       literal(key));
    return n;
}

/* It keeps readers out while it waits, and leaves nothing when it does not. */
static void writer_waits(const char *more)
{
    struct hf_lock_opts read = sharing(60000, HF_SHARED, 0);
    struct hf_lock_opts write = sharing(60000, 0, 0);
    hf_client *a = scene_open(0, more), *b = scene_open(0, more);
    const char *key = scene_key("mark");
    hf_lock *lk, *none = NULL;
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;

    for (int i = 0; i < 2; i++) {
        CHECK_OK(hf_acquire(a, key, 0, &read, &lk, &t_err));
        CHECK_OK(hf_acquire_start(b, key, 60000, &write, NULL, &req, &t_err));
        t_poll_until(rows_of(a, key) == 2, 10000);
        CHECK_STATUS(hf_acquire(a, key, 0, &read, &none, &t_err), HF_BUSY);
        if (i)
            hf_request_cancel(req);
        else
            CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(hf_next_event(b, &event), 20000);
        CHECK_EQ(event.type, i ? HF_FAILED : HF_GRANTED);
        t_poll_until(rows_of(a, key) == i, 10000);
        CHECK_OK(hf_release(i ? lk : event.lock, &t_err));
        CHECK_EQ(rows_of(a, key), 0);
    }
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(a_writer_that_waits_keeps_readers_out_and_takes_its_mark_along, 60)
{
    writer_waits("&queue=barge");
}

TEST_TIMEOUT(a_writer_that_waits_keeps_readers_out_and_takes_its_ticket_along,
             60)
{
    writer_waits("");
}

TEST(a_token_that_makes_no_sense_is_a_lock_like_others)
{
    struct hf_lock_opts read = sharing(30000, HF_SHARED, 0);
    hf_client *client = scene_open(0, "");
    const char *key = scene_key("token");
    static const char *const tokens[] = {"*", "*x", "*99999999999",
                                         "*0000000000000000000000000001"};
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, 0, &read, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++) {
        scene_sql("UPDATE holdfast_lock SET token='%s'%s%s WHERE name=%s",
                  tokens[i], scene_is("lease") ? ",expires_at=" : "",
                  scene_is("lease") ? moment(3600) : "", literal(key));
        plant(key, "somebody", 1, 0, moment(3600));
        CHECK(hf_acquire(client, key, 0, NULL, &lk, &t_err) != HF_OK);
        CHECK(hf_acquire(client, key, 0, &read, &lk, &t_err) != HF_OK);
        scene_sql("DELETE FROM holdfast_lock_holders");
    }
    hf_close(client);
}

/* ---- requests that are cut or late ---------------------------------------- */

/* What is done with a lock, while the n-th piece of data is swallowed. */
static void cut_at(struct scene_proxy *proxy, hf_client *direct, int n,
                   const struct hf_lock_opts *opts, bool downgrade)
{
    hf_client *client = scene_open(proxy->port, "&timeout=2s&pool=2");
    char key[64];
    hf_lock *lk = NULL, *next = NULL;
    uint64_t fence;
    hf_status st;

    snprintf(key, sizeof(key), "%s", scene_key("cut"));
    CHECK_OK(hf_acquire(client, "warm", 20000, opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    scene_cut(proxy, n);
    CHECK_OK(hf_acquire(client, key, 20000, opts, &lk, &t_err));
    fence = hf_fence(lk);
    st = downgrade ? hf_downgrade(lk, &t_err) : HF_OK;
    if (st && st != HF_UNCERTAIN)
        t_fail(__FILE__, __LINE__, "cut %d: downgrade: %s", n, t_err.text);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(hf_fence(lk), fence);
    CHECK_OK(hf_check(direct, key, fence, &t_err));
    st = hf_release(lk, &t_err);
    if (st && st != HF_UNCERTAIN)
        t_fail(__FILE__, __LINE__, "cut %d: release: %s", n, t_err.text);
    scene_cut(proxy, 0);
    t_poll_until(!is_held(direct, key), 10000);
    CHECK_OK(hf_acquire(direct, key, 10000, NULL, &next, &t_err));
    CHECK_GT(hf_fence(next), fence);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(client);
    CHECK(!is_held(direct, key));
    CHECK_EQ(holders_of(key), 0);
}

TEST_TIMEOUT(a_connection_cut_at_any_piece_leaves_no_holder, 240)
{
    struct hf_lock_opts opts[] = {sharing(4000, HF_SHARED, 0),
                                  sharing(4000, 0, 2), sharing(4000, 0, 0)};
    struct scene_proxy proxy = scene_proxy();
    hf_client *direct = scene_open(0, "");
    hf_lock *lk;

    CHECK_OK(hf_acquire(direct, "warm", 0, &opts[1], &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < 3; i++)
        for (int n = 1; n <= t_scaled(10, 5); n++)
            cut_at(&proxy, direct, n, &opts[i], i == 2);
    hf_close(direct);
    scene_proxy_end(&proxy);
}

TEST_TIMEOUT(a_reader_that_arrives_after_its_release_holds_nothing, 60)
{
    struct hf_lock_opts read = sharing(60000, HF_SHARED, 0);
    const char *key = scene_key("late");
    char text[64];
    hf_lock *lk = NULL;
    hf_client *a;
    int64_t pid;

    if (!scene_is_postgres())
        T_SKIP_TRAIT("a process for each session");
    a = scene_open(0, "&timeout=1s&application_name=late");
    CHECK_OK(hf_acquire(a, key, 0, &read, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    pid = scene_sql("SELECT pid FROM pg_stat_activity WHERE "
                    "application_name='late'");
    snprintf(text, sizeof(text), "kill -STOP %lld", (long long)pid);
    CHECK_EQ(system(text), 0);
    /* The first try is in the socket of a process that does not read; the
     * second, in another session, is granted. */
    CHECK_OK(hf_acquire(a, key, 30000, &read, &lk, &t_err));
    hf_release(lk, NULL);
    snprintf(text, sizeof(text), "kill -CONT %lld", (long long)pid);
    CHECK_EQ(system(text), 0);
    t_poll_until(!scene_sql("SELECT count(*) FROM pg_stat_activity WHERE "
                            "pid=%lld AND application_name='late'",
                            (long long)pid),
                 20000);
    CHECK_EQ(holders_of(key), 0);
    CHECK_EQ(taken(key), 0);
    hf_close(a);
}

/* ---- the clock ------------------------------------------------------------- */

TEST(a_clock_that_jumps_ends_a_permit_only_if_another_has_come)
{
    struct hf_lock_opts opts = sharing(30000, 0, 1);
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    const char *key = scene_key("jump");
    hf_lock *one, *two = NULL;

    scene_set_clock(0);
    CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
    scene_set_clock(3600);
    CHECK_OK(hf_extend(one, 0, &t_err));
    CHECK_STATUS(hf_acquire(b, key, 0, &opts, &two, &t_err), HF_BUSY);
    scene_set_clock(0); /* A time that lies an hour ahead is repaired. */
    CHECK_OK(hf_extend(one, 0, &t_err));
    if (scene_is("lease"))
        CHECK_EQ(scene_sql("SELECT count(*) FROM holdfast_lock WHERE name=%s "
                           "AND expires_at>%s",
                           literal(key), moment(300)),
                 0);
    scene_set_clock(3600);
    if (scene_is("lease")) {
        CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
        CHECK_GT(hf_fence(two), hf_fence(one));
        CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
        CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
        CHECK_OK(hf_release(two, &t_err));
    } else {
        CHECK_STATUS(hf_acquire(b, key, 0, &opts, &two, &t_err), HF_BUSY);
        CHECK_OK(hf_release(one, &t_err));
    }
    scene_set_clock(0);
    hf_close(a);
    hf_close(b);
}

/* ---- the table ------------------------------------------------------------ */

TEST(without_the_table_of_holders_plain_locks_work)
{
    struct hf_lock_opts read = sharing(30000, HF_SHARED, 0);
    struct hf_lock_opts write = sharing(30000, 0, 0);
    hf_client *client;
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *lk = NULL, *none = NULL;

    hf_close(scene_open(0, "&table=lone"));
    client = scene_open(0, "&table=lone&create=no");
    CHECK_OK(hf_acquire(client, "k", 0, &write, &lk, &t_err));
    CHECK_STATUS(hf_acquire(client, "k", 0, &write, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_handle_release(client, "k", &handle, &write, &t_err));
    CHECK_STATUS(hf_handle_release(client, "k", &handle, &write, &t_err),
                 HF_LOST);
    CHECK_STATUS(hf_handle_extend(client, "k", &handle, &write, &t_err),
                 HF_LOST);
    CHECK_STATUS(hf_break_force(client, "k", handle.fence, &t_err), HF_LOST);
    CHECK_STATUS(hf_acquire(client, "k", 0, &read, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "_holders"));
    CHECK_EQ(scene_sql("SELECT count(*) FROM information_schema.tables WHERE "
                       "table_name='lone_holders'"),
             0);
    hf_close(client);
    client = scene_open(0, "&table=lone");
    CHECK_OK(hf_acquire(client, "k", 0, &read, &lk, &t_err));
    scene_sql("DROP TABLE lone_holders"); /* It is made again. */
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_acquire(client, "l", 0, &read, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* With strategy version nothing lapses by itself. */
TEST_TIMEOUT(a_key_whose_holders_were_dropped_is_taken_over, 60)
{
    struct hf_lock_opts read = sharing(1000, HF_SHARED | HF_MANUAL, 0);
    hf_client *client = scene_open(0, "&table=bereft");
    hf_lock *lk, *next;

    CHECK_OK(hf_acquire(client, "k", 0, &read, &lk, &t_err));
    scene_sql("DROP TABLE bereft_holders");
    CHECK_OK(hf_acquire(client, "k", 30000, NULL, &next, &t_err));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
}

/* What somebody has done to the table, and what the refusal says. */
struct spoil {
    const char *postgres, *mysql, *word; /* not of mysql: it is about trust */
};

#define ALTER "ALTER TABLE spoilt_holders "

TEST_TIMEOUT(a_table_of_holders_that_keeps_less_is_refused, 120)
{
    static const struct spoil spoils[] = {
        {ALTER "ALTER expires_at TYPE timestamptz(0)",
         ALTER "MODIFY expires_at DATETIME(0) NULL", "expires_at"},
        {ALTER "DROP CONSTRAINT spoilt_holders_pkey", ALTER "DROP PRIMARY KEY",
         "no unique index"},
        {"CREATE UNIQUE INDEX more ON spoilt_holders (name)",
         "CREATE UNIQUE INDEX more ON spoilt_holders (slot)", "another unique"},
        {ALTER "ALTER fence TYPE int", ALTER "MODIFY fence INT NOT NULL",
         "fence"},
        {ALTER "DROP kept", ALTER "DROP kept", "kept"},
        {ALTER "ADD more int NOT NULL", ALTER "ADD more INT NOT NULL",
         "other columns"},
        {ALTER "ADD row_lock int", ALTER "ADD row_lock INT", "strategy"},
        {"CREATE ROLE stranger; " ALTER "OWNER TO stranger", NULL, "stranger"},
        {ALTER "SET UNLOGGED", NULL, "UNLOGGED"},
        {ALTER "ENABLE ROW LEVEL SECURITY", NULL, "row security"},
    };
    struct hf_lock_opts read = sharing(30000, HF_SHARED, 0);
    hf_lock *lk = NULL, *none = NULL;
    hf_client *client;

    for (size_t i = 0; i < sizeof(spoils) / sizeof(spoils[0]); i++) {
        const char *how =
            scene_is_postgres() ? spoils[i].postgres : spoils[i].mysql;

        if (!how)
            continue;
        client = scene_open(0, "&table=spoilt");
        CHECK_OK(hf_acquire(client, "k", 0, &read, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(client);
        scene_sql("%s", how);
        client = scene_open(0, "&table=spoilt");
        CHECK_OK(hf_acquire(client, "k", 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        CHECK_STATUS(hf_acquire(client, "k", 0, &read, &none, &t_err),
                     spoils[i].mysql ? HF_PROTOCOL : HF_DENIED);
        CHECK(strstr(t_err.text, spoils[i].word));
        CHECK(strstr(t_err.text, "spoilt_holders"));
        hf_close(client);
        scene_sql("DROP TABLE spoilt_holders; DROP TABLE spoilt");
    }
}

T_MAIN

/* ---- the queue ------------------------------------------------------------ */

static int64_t tickets_of(const char *key)
{
    return scene_sql("SELECT count(*) FROM holdfast_lock_queue WHERE name=%s",
                     literal(key));
}

/* The lock is passed to it, for it is the first, and from it to the next. */
TEST_TIMEOUT(a_dead_waiter_holds_the_line_up_once, 90)
{
    struct hf_lock_opts opts = sharing(60000, 0, 0);
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    const char *key = scene_key("line");
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;
    uint64_t fence;
    hf_lock *lk;

    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    scene_sql("INSERT INTO holdfast_lock_queue "
              "(name,token,ticket,kind,nth,ttl_ms,expires_at) VALUES "
              "(%s,'a dead waiter',1,-1,1,60000,%s); SELECT 0",
              literal(key), moment(60));
    CHECK_OK(hf_acquire_start(b, key, 80000, &opts, NULL, &req, &t_err));
    t_poll_until(tickets_of(key) == 2, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(hf_next_event(b, &event), 60000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_GT(hf_fence(event.lock), fence + 1); /* one was the dead one's */
    CHECK_EQ(tickets_of(key), 0);
    CHECK_OK(hf_release(event.lock, &t_err));
    CHECK(!is_held(a, key));
    hf_close(a);
    hf_close(b);
}

/* Both kinds of clients exclude each other, and each gets its turn.  A release
 * of the one kind may be found by the other's slow poll only, after up to two
 * thirds of a lease. */
TEST_TIMEOUT(a_client_without_a_queue_is_excluded_and_gets_its_turn, 180)
{
    struct hf_lock_opts opts = sharing(20000, 0, 0);
    hf_client *fair = scene_open(0, ""), *other = scene_open(0, "&queue=barge");
    const char *key = scene_key("both");
    hf_client *first = fair, *second = other, *swap;
    struct hf_event event = HF_EVENT_INIT;
    hf_lock *lk, *none = NULL;
    hf_request *req;

    for (int i = 0; i < 6; i++, swap = first, first = second, second = swap) {
        CHECK_OK(hf_acquire(first, key, 10000, &opts, &lk, &t_err));
        CHECK_STATUS(hf_acquire(second, key, 0, &opts, &none, &t_err), HF_BUSY);
        CHECK_OK(
            hf_acquire_start(second, key, 30000, &opts, NULL, &req, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(hf_next_event(second, &event), 30000);
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_STATUS(hf_acquire(first, key, 0, &opts, &none, &t_err), HF_BUSY);
        CHECK_OK(hf_release(event.lock, &t_err));
    }
    hf_close(fair);
    hf_close(other);
}

/* ---- what nobody uses any more -------------------------------------------- */

static struct hf_collected collected(hf_client *client, int64_t older_ms,
                                     bool dry_run)
{
    struct hf_collected ret = HF_COLLECTED_INIT;

    CHECK_OK(hf_collect(client, older_ms, dry_run, &ret, &t_err));
    CHECK_EQ(ret.looked_at, ret.removed + ret.kept);
    return ret;
}

static int64_t rows_under(const char *table)
{
    return scene_sql("SELECT count(*) FROM %s", table);
}

/* The age of a row is that of its fence. */
TEST(rows_of_keys_that_were_free_for_long_are_removed)
{
    hf_client *client = scene_open(0, "&table=idle");
    uint64_t fence = 0;
    hf_lock *lk, *holding;
    char key[96];

    for (int i = 0; i < 700; i++) {
        snprintf(key, sizeof(key), "once %d", i);
        CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
        fence = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
    }
    CHECK_EQ(collected(client, 0, false).removed, 0); /* within the hour */
    scene_sql("UPDATE idle SET fence=fence-10800000000; SELECT 0");
    CHECK_OK(hf_acquire(client, "held", 0, NULL, &holding, &t_err));
    CHECK_OK(hf_acquire(client, "kept", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(collected(client, 3 * 3600 * 1000, false).removed, 0);
    CHECK_EQ(collected(client, 3600 * 1000, true).removed, 700);
    CHECK_EQ(rows_under("idle"), 702);
    CHECK_EQ(collected(client, 3600 * 1000, false).removed, 700);
    CHECK_EQ(rows_under("idle"), 2);
    CHECK_OK(hf_extend(holding, 0, &t_err));
    CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(holding, &t_err));
    hf_close(client);
}
