/* SPDX-License-Identifier: MIT
 *
 * keep.c - keep=: clients remove the rows of keys that nobody has used for so
 * long, while they lock others, and no fence goes back by it.
 */
#include "scene.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ONCE = 700, PAIRS = 4000, HOUR = 3600 };

static uint64_t pair(hf_client *client, const char *key, unsigned flags)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    uint64_t fence;
    hf_lock *lk;

    opts.flags = flags;
    CHECK_OK(hf_acquire(client, key, 10000, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    return fence;
}

/* Keys that are taken once; the greatest fence. */
static uint64_t used_once(hf_client *client)
{
    uint64_t fence = 0;
    char key[32];

    for (int i = 0; i < ONCE; i++) {
        snprintf(key, sizeof(key), "once %d", i);
        fence = pair(client, key, i % 7 ? 0 : HF_SHARED);
    }
    return fence;
}

static int64_t rows_of_once(const char *table)
{
    return scene_sql("SELECT count(*) FROM %s WHERE fence>0 AND "
                     "substring(name,1,2)=%s",
                     table, scene_is_postgres() ? "'on'::bytea" : "'on'");
}

/* Work on another key until they are gone, or so often. */
static void work(hf_client *client, const char *table, bool until_gone)
{
    for (int i = 0; i < PAIRS; i++) {
        if (until_gone && i % 500 == 0 && !rows_of_once(table))
            return;
        pair(client, "work", i % 9 ? 0 : HF_SHARED);
    }
}

TEST_TIMEOUT(clients_remove_rows_that_nobody_has_used_for_long, 240)
{
    hf_client *client = scene_open(0, "&table=kept&keep=1h");
    hf_lock *held;
    uint64_t fence;

    scene_set_clock(0);
    fence = used_once(client);
    work(client, "kept", true);
    CHECK_EQ(rows_of_once("kept"), ONCE); /* They are not that old. */
    scene_set_clock(3 * HOUR);
    CHECK_OK(hf_acquire(client, "on hold", 0, NULL, &held, &t_err));
    work(client, "kept", true);
    CHECK_EQ(rows_of_once("kept"), 1); /* It is held. */
    CHECK_OK(hf_extend(held, 0, &t_err));
    scene_set_clock(2 * HOUR); /* The clock goes back by an hour. */
    CHECK_GT(pair(client, "once 3", 0), fence);
    CHECK_GT(pair(client, "once 7", HF_SHARED), fence);
    scene_set_clock(3 * HOUR);
    CHECK_OK(hf_release(held, &t_err));
    scene_set_clock(0);
    hf_close(client);
}

TEST_TIMEOUT(with_keep_off_they_stay, 240)
{
    hf_client *client = scene_open(0, "&table=stays&keep=off");

    scene_set_clock(0);
    used_once(client);
    scene_set_clock(30 * 24 * HOUR);
    work(client, "stays", false);
    CHECK_EQ(rows_of_once("stays"), ONCE);
    scene_set_clock(0);
    hf_close(client);
}

static int64_t version_of(const char *key)
{
    return scene_sql("SELECT version FROM begins WHERE name=%s%s'",
                     scene_is_postgres() ? "'\\x" : "X'", scene_hex(key));
}

/* Who has watched the old row for long would take a new one over at once if it
 * had the same version. */
TEST_TIMEOUT(a_row_that_was_removed_comes_back_with_another_version, 240)
{
    struct hf_collected done = HF_COLLECTED_INIT;
    hf_client *client;
    int64_t version;
    hf_lock *lk;

    if (!scene_is("version"))
        T_SKIP_TRAIT("strategy version");
    client = scene_open(0, "&table=begins&keep=off");
    for (unsigned flags = 0; flags <= HF_SHARED; flags += HF_SHARED) {
        struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

        opts.flags = flags;
        scene_set_clock(0);
        CHECK_OK(hf_acquire(client, "row", 0, &opts, &lk, &t_err));
        version = version_of("row");
        CHECK_OK(hf_release(lk, &t_err));
        scene_set_clock(3 * HOUR);
        CHECK_OK(hf_collect(client, 0, false, &done, &t_err));
        CHECK_EQ(done.removed, 1);
        scene_set_clock(2 * HOUR);
        CHECK_OK(hf_acquire(client, "row", 0, &opts, &lk, &t_err));
        CHECK_GT(version_of("row"), version);
        CHECK_OK(hf_release(lk, &t_err));
        scene_sql("DELETE FROM begins");
    }
    scene_set_clock(0);
    hf_close(client);
}

TEST(a_time_that_is_none_is_refused)
{
    scene_refused(scene_url(0, "&keep=soon"), HF_INVALID, "keep=");
}

T_MAIN
