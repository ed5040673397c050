/* SPDX-License-Identifier: MIT
 *
 * far.c - short leases on a server that is far away and healthy.
 *
 * Run by test/servers/postgres or mysql through test/servers/far, so the URL is
 * that of a proxy, and the operator is near.
 */
#include "scene.h"

static hf_lock *hold(hf_client *client, const char *name, int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.ttl_ms = ttl_ms;
    CHECK_OK(hf_acquire(client, scene_key(name), 20000, &opts, &lk, &t_err));
    return lk;
}

TEST_TIMEOUT(a_lease_of_ten_round_trips_is_kept, 60)
{
    hf_client *client = scene_open(0, "");
    hf_lock *lk = hold(client, "ten", 1000);

    t_sleep_ms(3000); /* several leases */
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST_TIMEOUT(a_lease_of_twenty_round_trips_outlives_its_sessions, 60)
{
    hf_client *client;
    hf_lock *lk;

    if (scene_is("row"))
        T_SKIP_TRAIT("a lock that outlives its session");
    client = scene_open(0, "");
    lk = hold(client, "twenty", 2000);
    t_sleep_ms(1000); /* It has been renewed. */
    scene_end_sessions();
    t_sleep_ms(4000); /* two leases */
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

T_MAIN
