/* SPDX-License-Identifier: MIT
 *
 * several.c - several keys in one transaction of Consul.  Those that were
 * granted together have the same fence, which shows that they were.
 */
#include "front.h"
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 3 };

static const char *const keys[KEYS] = {"all/a", "all/b", "all/c"};

static void release_all(hf_lock *const *locks)
{
    for (int i = 0; i < KEYS; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
}

static hf_status acquire_all(hf_client *client, int64_t wait_ms,
                             hf_lock **locks)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = 20000;
    return hf_acquire_all(client, keys, KEYS, wait_ms, &opts, locks, &t_err);
}

static bool together(hf_lock *const *locks)
{
    for (int i = 1; i < KEYS; i++)
        if (hf_fence(locks[i]) != hf_fence(locks[0]))
            return false;
    return true;
}

TEST(keys_that_are_free_are_taken_by_one_write)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *locks[KEYS], *other;
    uint64_t fence;

    for (int i = 0; i < 2; i++) { /* They are new, and then they are known. */
        CHECK_OK(acquire_all(a, 0, locks));
        CHECK(together(locks));
        for (int j = 0; j < KEYS; j++) {
            CHECK(hf_held(locks[j]));
            CHECK_OK(hf_extend(locks[j], 0, &t_err));
            CHECK_STATUS(hf_acquire(b, keys[j], 0, NULL, &other, &t_err),
                         HF_BUSY);
        }
        fence = hf_fence(locks[0]);
        release_all(locks);
    }
    CHECK_EQ(count_locked(), 0);
    other = lock(b, keys[1], 20000, 0); /* What is known of it is wrong now. */
    CHECK_GT(hf_fence(other), fence);
    CHECK_STATUS(acquire_all(a, 0, locks), HF_BUSY);
    CHECK_EQ(count_locked(), 1);
    CHECK_OK(hf_release(other, &t_err));
    CHECK_OK(acquire_all(a, 20000, locks));
    release_all(locks);
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST_TIMEOUT(keys_whose_answer_is_lost_are_had_or_given_back, 120)
{
    hf_client *client = open_url(front_url());
    hf_lock *locks[KEYS];

    CHECK_OK(acquire_all(client, 0, locks));
    release_all(locks);
    front_catch("\"Verb\":\"lock\"", 1, FRONT_LOSE);
    CHECK_OK(acquire_all(client, 60000, locks));
    for (int i = 0; i < KEYS; i++)
        CHECK_OK(hf_extend(locks[i], 0, &t_err));
    release_all(locks);
    t_poll_until(count_locked() == 0, 20000);
    hf_close(client);
    front_end();
    check_clean();
}

static const char *indexes(void)
{
    return out("curl -s $C/v1/kv/all/?recurse | tr ',' '\n' | "
               "grep ModifyIndex");
}

/* Another lock keeps the session alive that the late write names. */
TEST_TIMEOUT(keys_that_come_after_they_were_given_up_are_not_taken, 120)
{
    hf_lock *locks[KEYS], *kept;
    char address[128], before[512];
    hf_client *client;

    snprintf(address, sizeof(address), "%s?timeout=1s", front_url());
    client = open_url(address);
    kept = lock(client, "kept", 20000, 0);
    CHECK_OK(acquire_all(client, 0, locks));
    release_all(locks);
    snprintf(before, sizeof(before), "%s", indexes());
    front_catch("\"Verb\":\"lock\"", 1000, FRONT_HOLD);
    CHECK(acquire_all(client, 0, locks) != HF_OK);
    CHECK_GT(front_held(), 0);
    front_catch("", 0, FRONT_HOLD);
    t_poll_until(strcmp(indexes(), before) != 0, 20000);
    front_let_go();
    t_poll_until(count_locked() == 1, 20000);
    CHECK_OK(acquire_all(client, 20000, locks));
    release_all(locks);
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

T_MAIN
