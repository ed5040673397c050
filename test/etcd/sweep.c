/* SPDX-License-Identifier: MIT
 *
 * sweep.c - keys that have lapsed, one of which cannot be removed at first: run
 * under test/servers/etcd -a.
 */
#include "t.h"

#include <stdio.h>
#include <stdlib.h>

static bool is_held(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.held;
}

static hf_lock *take(hf_client *client, const char *key, int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.ttl_ms = ttl_ms;
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    return lk;
}

TEST(a_key_that_could_not_be_swept_is_swept_later)
{
    hf_client *client = NULL;
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *kept, *left;
    int64_t end;

    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    kept = take(client, "kept", 4000);
    left = take(client, "left", 4000);
    end = t_now_ms() + 4000;
    CHECK_OK(hf_detach(left, &handle, &t_err)); /* Nobody takes it up. */
    t_poll_until(t_now_ms() > end - 200, 20000);
    CHECK_EQ(system("etcdctl role revoke-permission locks holdfast/ --prefix"
                    " >/dev/null"),
             0);
    t_poll_until(hf_remaining_ms(kept) < 1500, 20000);
    CHECK_EQ(system("etcdctl role grant-permission locks readwrite holdfast/"
                    " --prefix >/dev/null"),
             0);
    t_poll_until(!is_held(client, "left"), 20000);
    CHECK(hf_held(kept));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(client);
}

static bool count_one(void *arg, const char *key, const struct hf_info *info)
{
    (void)key;
    *(int *)arg += info->held;
    return true;
}

static int count(hf_client *client, const char *prefix)
{
    int n = 0;

    CHECK_OK(hf_list(client, prefix, count_one, &n, &t_err));
    return n;
}

/* Not a few with each renewal: that would take many times the ttl. */
TEST(locks_that_lapse_together_are_swept_together)
{
    hf_client *client = NULL;
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *kept;
    char key[16];
    int i;

    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    kept = take(client, "stays", 2000);
    for (i = 0; i < 250; i++) {
        snprintf(key, sizeof(key), "many%d", i);
        CHECK_OK(hf_detach(take(client, key, 2000), &handle, &t_err));
    }
    t_poll_until(count(client, "many") == 0, 15000);
    CHECK(hf_held(kept));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(client);
}

T_MAIN
