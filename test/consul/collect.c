/* SPDX-License-Identifier: MIT
 *
 * collect.c - entries of Consul that nobody uses are removed, and none that
 * somebody does; fences go on.
 */
#include "peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct hf_collected collect(hf_client *client, int64_t older_ms,
                                   bool dry_run)
{
    struct hf_collected ret = HF_COLLECTED_INIT;

    CHECK_OK(hf_collect(client, older_ms, dry_run, &ret, &t_err));
    CHECK_EQ(ret.looked_at, ret.removed + ret.kept);
    return ret;
}

static uint64_t use(hf_client *client, const char *key)
{
    hf_lock *lk = lock(client, key, 20000, 20000);
    uint64_t fence = hf_fence(lk);

    CHECK_OK(hf_release(lk, &t_err));
    return fence;
}

static int count_entries(void)
{
    return atoi(out("curl -s $C/v1/kv/?keys | tr ',' '\\n' | grep -c '\"'"));
}

TEST(what_nobody_uses_is_removed_and_can_be_used_again)
{
    hf_client *client = open_url(url(""));
    uint64_t last = 0, fence;
    char key[32];

    for (int i = 0; i < 70; i++) {
        snprintf(key, sizeof(key), "order/%d", i);
        last = use(client, key);
    }
    CHECK_EQ(collect(client, 3600 * 1000, false).removed, 0);
    CHECK_EQ(collect(client, 0, true).removed, 70);
    CHECK_EQ(count_entries(), 70);
    CHECK_EQ(collect(client, 0, false).removed, 70);
    CHECK_EQ(count_entries(), 0);
    fence = use(client, "order/7"); /* What is known of it is wrong now. */
    CHECK_GT(fence, last);
    CHECK_GT(use(client, "order/7"), fence);
    hf_close(client);
    check_clean();
}

TEST(what_is_in_use_and_what_is_no_lock_stays)
{
    struct hf_lock_opts shared = HF_LOCK_OPTS_INIT;
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *held = lock(a, "held", 20000, 0), *reader = NULL;
    hf_request *rq = NULL;

    CHECK_EQ(collect(b, 0, false).kept, 1);
    shared.flags = HF_SHARED;
    CHECK_OK(hf_acquire(a, "shared", 0, &shared, &reader, &t_err));
    CHECK_EQ(sh("curl -sf -X PUT -d text $C/v1/kv/text >/dev/null"), 0);
    CHECK_EQ(sh("curl -sf -X PUT $C/v1/kv/empty >/dev/null"), 0);
    use(a, "free");
    CHECK_OK(hf_acquire_start(b, "held", -1, NULL, NULL, &rq, &t_err));
    t_poll_until(hf_request_place(rq) == 1, 20000);
    CHECK_EQ(collect(b, 0, false).removed, 1);
    CHECK_EQ(sh("curl -sf $C/v1/kv/text >/dev/null && "
                "curl -sf $C/v1/kv/empty >/dev/null"),
             0);
    CHECK_OK(hf_extend(held, 0, &t_err));
    CHECK_OK(hf_extend(reader, 0, &t_err));
    CHECK_OK(hf_release(held, &t_err));
    CHECK_OK(hf_release(reader, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(clients_remove_by_themselves_what_is_older_than_keep, 500)
{
    hf_client *client = open_url(url("?keep=1s")), *other = open_url(url(""));
    uint64_t last = 0, fence;
    hf_lock *held;
    char key[32];

    CHECK_EQ(sh("curl -s -X DELETE $C/v1/kv/?recurse >/dev/null"), 0);
    for (int i = 0; i < 50; i++) {
        snprintf(key, sizeof(key), "old/%d", i);
        last = use(other, key);
    }
    held = lock(other, "old/held", 60000, 0);
    t_sleep_ms(2500); /* Ages are in whole seconds. */
    for (int i = 0; i < 8192; i++) {
        snprintf(key, sizeof(key), "new/%d", i);
        use(client, key);
        if (i % 64 == 63 && !*out("curl -s $C/v1/kv/old/7"))
            break;
    }
    t_poll_until(atoi(out("curl -s $C/v1/kv/old/?keys | tr ',' '\\n' | "
                          "grep -c old")) == 1,
                 20000);
    fence = use(other, "old/7"); /* What is known of it is wrong now. */
    CHECK_GT(fence, last);
    CHECK_OK(hf_extend(held, 0, &t_err));
    CHECK_OK(hf_release(held, &t_err));
    hf_close(client);
    hf_close(other);
    check_clean();
}

/* Nobody has written when it became free: that is done by who collects. */
TEST(what_a_dead_holder_left_is_removed_later)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *lk;

    CHECK_EQ(sh("curl -s -X DELETE $C/v1/kv/?recurse >/dev/null"), 0);
    lk = lock(a, "dead", 20000, 0);
    CHECK_EQ(sh("for s in $(curl -s $C/v1/session/list | tr ',' '\\n' | "
                "sed -n 's/.*\"ID\":\"\\([^\"]*\\)\".*/\\1/p'); do "
                "curl -s -X PUT $C/v1/session/destroy/$s >/dev/null; done"),
             0);
    check_lost(lk, HF_LOSS_SESSION);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_EQ(collect(b, 1000, false).kept, 1);
    t_poll_until(collect(b, 1000, false).removed == 1, 20000);
    hf_close(a);
    hf_close(b);
}

/* ---- all at once -------------------------------------------------------- */

enum { WORKERS = 3, TURNS = 60 };

static atomic_int inside;
static atomic_bool over;
static atomic_ullong highest;

static void *work(void *arg)
{
    hf_client *client = open_url(url(""));

    (void)arg;
    for (int i = 0; i < TURNS; i++) {
        hf_lock *lk = lock(client, "busy", 20000, 60000);
        unsigned long long fence = hf_fence(lk);

        CHECK_EQ(atomic_fetch_add(&inside, 1), 0);
        CHECK_GT(fence, atomic_exchange(&highest, fence));
        CHECK_EQ(atomic_fetch_sub(&inside, 1), 1);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    return NULL;
}

static void *remove_all(void *arg)
{
    hf_client *client = open_url(url(""));

    while (!atomic_load(&over))
        *(uint64_t *)arg += collect(client, 0, false).removed;
    hf_close(client);
    return NULL;
}

TEST_TIMEOUT(no_two_hold_one_key_while_its_entry_is_removed, 120)
{
    pthread_t workers[WORKERS], collectors[2];
    uint64_t removed[2] = {0, 0};

    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&collectors[i], NULL, remove_all, &removed[i]));
    for (int i = 0; i < WORKERS; i++)
        CHECK(!pthread_create(&workers[i], NULL, work, NULL));
    for (int i = 0; i < WORKERS; i++)
        pthread_join(workers[i], NULL);
    atomic_store(&over, true);
    for (int i = 0; i < 2; i++)
        pthread_join(collectors[i], NULL);
    CHECK_GT(removed[0] + removed[1], 0);
    check_clean();
}

T_MAIN
