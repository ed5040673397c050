/* SPDX-License-Identifier: MIT
 *
 * shards.c - the nodes of a Redis Cluster are independent: one that hangs, that
 * stumbles, that lacks its replica or is replaced is no concern of the others,
 * and no more than needed of its own locks.
 */
#include "fleet.h"

/* ---- a fail-over ------------------------------------------------------- */

/* All of them are renewed elsewhere from then on, by a server that never had
 * the script. */
TEST_TIMEOUT(locks_that_are_held_outlive_a_fail_over_in_good_order, 120)
{
    enum { LOCKS = 500, TTL = 2000 };
    static hf_lock *lk[LOCKS];
    struct fleet f;
    hf_client *client;
    int64_t end;
    int i;

    fleet_start(&f, NULL);
    client = fleet_open(&f, "");
    for (i = 0; i < LOCKS; i++)
        lk[i] = rt_lock(client, fleet_key(0, i), 0, TTL, 0);
    rt_do(&f.node[3], "CLUSTER FAILOVER");
    t_poll_until(fleet_is_master(&f, 3), 40000);
    for (end = t_now_ms() + 3 * TTL / 2; t_now_ms() < end; t_sleep_ms(20))
        for (i = 0; i < LOCKS; i++)
            CHECK(hf_held(lk[i]));
    for (i = 0; i < LOCKS; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* ---- one shard hangs --------------------------------------------------- */

/* So many that their renewals are more calls than a lease has sixths. */
#define EACH 700

/* The others are to be renewed for ten leases and more. */
#define HUNG_TTL    1500
#define HUNG_LEASES 11

/* Master and replica of one shard: nobody takes over. */
static void shard_signal(struct fleet *f, int node, int sig)
{
    rt_signal(&f->node[node], sig);
    rt_signal(&f->node[node + FLEET_MASTERS], sig);
}

static void check_held(hf_lock *const *lk, const int *home, int but)
{
    int i;

    for (i = 0; i < FLEET_MASTERS * EACH; i++)
        if (home[i] != but)
            CHECK(hf_held(lk[i]));
}

TEST_TIMEOUT(a_shard_that_hangs_does_not_keep_the_others_from_renewal, 180)
{
    static hf_lock *lk[FLEET_MASTERS * EACH];
    static int home[FLEET_MASTERS * EACH];
    struct fleet f;
    hf_client *client;
    int64_t end;
    char key[32];
    int i;

    fleet_start(&f, NULL);
    client = fleet_open(&f, "");
    for (i = 0; i < FLEET_MASTERS * EACH; i++) {
        snprintf(key, sizeof(key), "key%d", i);
        home[i] = fleet_home(key);
        lk[i] = rt_lock(client, key, 0, HUNG_TTL, 0);
    }
    shard_signal(&f, 1, SIGSTOP);
    end = t_now_ms() + HUNG_TTL * HUNG_LEASES;
    for (; t_now_ms() < end; t_sleep_ms(20))
        check_held(lk, home, 1);
    for (i = 0; i < FLEET_MASTERS * EACH; i++)
        CHECK(hf_held(lk[i]) == (home[i] != 1));
    shard_signal(&f, 1, SIGCONT);
    for (i = 0; i < FLEET_MASTERS * EACH; i++)
        hf_release(lk[i], &t_err);
    CHECK_OK(
        hf_release(rt_lock(client, fleet_key(1, 0), 30000, 60000, 0), &t_err));
    hf_close(client);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* Renewals at a node that did not answer fail at once until it has, and whether
 * it has is not found out only after the one that hangs was waited for. */
TEST_TIMEOUT(a_node_that_stumbles_beside_one_that_hangs_is_soon_well, 120)
{
    enum { LOCKS = 60, TTL = 2000, STUMBLE_MS = 700, ROUNDS = 5 };
    hf_lock *lk[LOCKS], *hung;
    struct fleet f;
    hf_client *client;
    int i, round;

    fleet_start(&f, NULL);
    client = fleet_open(&f, "");
    hung = rt_lock(client, fleet_key(1, 0), 0, TTL, 0);
    for (i = 0; i < LOCKS; i++)
        lk[i] = rt_lock(client, fleet_key(2, i), 0, TTL, 0);
    shard_signal(&f, 1, SIGSTOP);
    t_poll_until(!hf_held(hung), 20000);
    for (round = 0; round < ROUNDS; round++) {
        rt_signal(&f.node[2], SIGSTOP);
        t_sleep_ms(STUMBLE_MS);
        rt_signal(&f.node[2], SIGCONT);
        t_sleep_ms(TTL / 2);
        for (i = 0; i < LOCKS; i++)
            CHECK(hf_held(lk[i]));
    }
    shard_signal(&f, 1, SIGCONT);
    CHECK_STATUS(hf_release(hung, &t_err), HF_LOST);
    for (i = 0; i < LOCKS; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* ---- replicas ---------------------------------------------------------- */

/* The replica of one shard is silent: what is taken there is given back, what is
 * held there is renewed, and the other shards know nothing of it. */
TEST_TIMEOUT(replicas_are_waited_for_on_the_shard_of_the_key_alone, 120)
{
    static const char *const modes[] = {"?replicas=1&timeout=3s",
                                        "?replicas=1&timeout=3s&acquire=set"};
    const char *key[FLEET_MASTERS], *held = fleet_key(1, 1);
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct fleet f;
    hf_client *client;
    hf_lock *lk, *other = NULL;
    int i, mode, round;

    fleet_start(&f, NULL);
    for (i = 0; i < FLEET_MASTERS; i++)
        key[i] = fleet_key(i, 0);
    for (mode = 0; mode < 2; mode++) {
        client = fleet_open(&f, modes[mode]);
        lk = rt_lock(client, held, 20000, 1500, 0);
        CHECK_GE(rt_int(&f.node[1 + FLEET_MASTERS], "DBSIZE"), 1);
        rt_signal(&f.node[1 + FLEET_MASTERS], SIGSTOP);
        for (round = 0; round < 3; round++) {
            CHECK_STATUS(hf_acquire(client, key[1], 0, &opts, &other, &t_err),
                         HF_UNAVAILABLE);
            CHECK(strstr(t_err.text, "0 of 1") != NULL);
            CHECK_EQ(rt_int(&f.node[1], "EXISTS holdfast:%s", key[1]), 0);
            for (i = 0; i < FLEET_MASTERS; i += 2)
                CHECK_OK(
                    hf_release(rt_lock(client, key[i], 0, 60000, 0), &t_err));
        }
        t_sleep_ms(1000);
        CHECK(hf_held(lk));
        rt_signal(&f.node[1 + FLEET_MASTERS], SIGCONT);
        CHECK_OK(hf_release(rt_lock(client, key[1], 30000, 60000, 0), &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(client);
    }
    client = fleet_open(&f, "?replicas=2&timeout=1s");
    CHECK_STATUS(hf_acquire(client, key[0], 0, &opts, &other, &t_err),
                 HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "1 of 2") != NULL);
    hf_close(client);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

T_MAIN
