/* SPDX-License-Identifier: MIT
 *
 * several.c - several keys in one step, and many holders of one key: what a
 * step does on the server, whatever becomes of its answer.
 */
#include "fleet.h"
#include "proxy.h"

#define KEYS 8

static const char *const keys[KEYS] = {"a", "b", "c", "d", "e", "f", "g", "h"};
static const char *const tagged[KEYS] = {"{t}a", "{t}b", "{t}c", "{t}d",
                                         "{t}e", "{t}f", "{t}g", "{t}h"};

static void release_all(hf_lock **locks)
{
    int i;

    for (i = 0; i < KEYS; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
}

static long long locked(struct rt_server *s)
{
    return rt_int(s, "EXISTS holdfast:a holdfast:b holdfast:c holdfast:d "
                     "holdfast:e holdfast:f holdfast:g holdfast:h");
}

/* ---- several keys ------------------------------------------------------ */

TEST(several_keys_are_one_request)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_lock *locks[KEYS], *one;
    hf_client *client;
    uint64_t fence;
    long long calls;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    one = rt_lock(client, "e", 0, 60000, 0);
    fence = hf_fence(one);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_acquire_all(client, keys, KEYS, 0, &opts, locks, &t_err));
    release_all(locks);
    calls = rt_calls(&s, "evalsha");
    CHECK_OK(hf_acquire_all(client, keys, KEYS, 0, &opts, locks, &t_err));
    CHECK_EQ(rt_calls(&s, "evalsha"), calls + 1);
    CHECK_EQ(locked(&s), KEYS);
    CHECK_GT(hf_fence(locks[4]), fence);
    for (i = 0; i < KEYS; i++) {
        CHECK_OK(hf_check(client, keys[i], hf_fence(locks[i]), &t_err));
        CHECK_OK(hf_extend(locks[i], 0, &t_err));
    }
    release_all(locks);
    CHECK_EQ(locked(&s), 0);
    hf_close(client);
    rt_end(&s);
}

/* More than a script can hand to one command are taken all the same. */
TEST_TIMEOUT(any_number_of_keys_is_taken, 120)
{
    enum { N = 8200 };
    static char names[N][16];
    static const char *all[N];
    static hf_lock *locks[N];
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_client *client;
    int i;

    for (i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "many-%d", i);
        all[i] = names[i];
    }
    rt_start(&s, NULL);
    client = rt_open(&s, "");
    CHECK_OK(hf_acquire_all(client, all, N, 60000, &opts, locks, &t_err));
    for (i = 0; i < N; i++) {
        CHECK_GT(hf_fence(locks[i]), 0);
        CHECK_OK(hf_release(locks[i], &t_err));
    }
    hf_close(client);
    rt_end(&s);
}

/* Also where the clock is behind what was granted of one of them. */
TEST(each_of_several_has_a_greater_fence_than_before)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_lock *locks[KEYS];
    hf_client *client;
    uint64_t before[KEYS] = {17, 0, 5000000000000000};
    int i, turn;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    rt_do(&s, "HSET {holdfast:a}:meta: g %s", "17 0 0 0 ");
    rt_do(&s, "HSET {holdfast:c}:meta: g %s",
          "5000000000000000 5000000000000 0 0 ");
    for (turn = 0; turn < 3; turn++) {
        CHECK_OK(hf_acquire_all(client, keys, KEYS, 0, &opts, locks, &t_err));
        for (i = 0; i < KEYS; i++) {
            CHECK_GT(hf_fence(locks[i]), before[i]);
            before[i] = hf_fence(locks[i]);
            CHECK_OK(hf_check(client, keys[i], before[i], &t_err));
        }
        release_all(locks);
    }
    hf_close(client);
    rt_end(&s);
}

TEST(one_that_is_taken_keeps_all_from_being_taken)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_lock *locks[KEYS], *one;
    hf_client *a, *b;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    one = rt_lock(a, "h", 0, 60000, 0);
    CHECK_STATUS(hf_acquire_all(b, keys, KEYS, 0, &opts, locks, &t_err),
                 HF_BUSY);
    CHECK_EQ(locked(&s), 1);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_acquire_all(b, keys, KEYS, 0, &opts, locks, &t_err));
    CHECK_EQ(locked(&s), KEYS);
    release_all(locks);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* All of it happened, or none; the caller does not know, and asks again. */
TEST(several_keys_whose_answer_is_lost_are_held_or_free)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_lock *locks[KEYS];
    hf_client *far;
    struct proxy p;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    CHECK_OK(hf_open(rt_url(p.port, "?timeout=5s"), NULL, &far, &t_err));
    for (i = 0; i < 3; i++) {
        proxy_set(&p, PROXY_CUT, 0);
        CHECK_OK(hf_acquire_all(far, keys, KEYS, 20000, &opts, locks, &t_err));
        CHECK_EQ(locked(&s), KEYS);
        release_all(locks);
        CHECK_EQ(locked(&s), 0);
        rt_do(&s, "SCRIPT FLUSH");
    }
    hf_close(far);
    proxy_stop(&p);
    rt_stop(&s); /* with marks of claims that are over */
}

/* A step of claims that are over is refused whole: the mark of one key is
 * enough. */
TEST(a_late_step_takes_nothing)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_lock *locks[KEYS];
    hf_client *client;
    long long calls;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    rt_do(&s, "ZADD {holdfast:d}:queue: 8999999999999999 -%s",
          "00000000000000000000000000000000");
    calls = rt_calls(&s, "evalsha") + rt_calls(&s, "eval");
    /* Asked for one by one instead. */
    CHECK_OK(hf_acquire_all(client, keys, KEYS, 0, &opts, locks, &t_err));
    CHECK_GE(rt_calls(&s, "evalsha") + rt_calls(&s, "eval"), calls + 1 + KEYS);
    release_all(locks);
    hf_close(client);
    rt_stop(&s);
}

TEST(a_full_server_grants_none_of_several)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_lock *locks[KEYS];
    hf_client *client;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    rt_do(&s, "CONFIG SET maxmemory 1");
    CHECK_STATUS(hf_acquire_all(client, keys, KEYS, 0, &opts, locks, &t_err),
                 HF_UNAVAILABLE);
    CHECK_EQ(locked(&s), 0);
    rt_do(&s, "CONFIG SET maxmemory 0");
    CHECK_OK(hf_acquire_all(client, keys, KEYS, 0, &opts, locks, &t_err));
    release_all(locks);
    hf_close(client);
    rt_end(&s);
}

TEST_TIMEOUT(keys_of_a_cluster_are_taken_wherever_they_are, 120)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    hf_lock *locks[KEYS];
    struct fleet f;
    hf_client *a;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    CHECK_OK(hf_acquire_all(a, keys, KEYS, 0, &opts, locks, &t_err));
    release_all(locks);
    CHECK_OK(hf_acquire_all(a, tagged, KEYS, 0, &opts, locks, &t_err));
    release_all(locks);
    hf_close(a);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* ---- many holders of one key ------------------------------------------- */

#define MANY 300

/* Who comes and goes does not read what the others have. */
static void many_hold(struct hf_lock_opts opts)
{
    static hf_lock *locks[MANY];
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *more;
    long long reads;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < MANY; i++)
        CHECK_OK(hf_acquire(client, "k", 0, &opts, &locks[i], &t_err));
    reads = rt_calls(&s, "hgetall");
    for (i = 0; i < 20; i++) {
        CHECK_OK(hf_acquire(client, "k", 0, &opts, &more, &t_err));
        if (opts.permits)
            CHECK_EQ(hf_slot(more), MANY);
        CHECK_OK(hf_release(more, &t_err));
    }
    CHECK_EQ(rt_calls(&s, "hgetall"), reads);
    /* A slot that is free again is the next to be given. */
    CHECK_OK(hf_release(locks[7], &t_err));
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &locks[7], &t_err));
    if (opts.permits)
        CHECK_EQ(hf_slot(locks[7]), 7);
    for (i = 0; i < MANY; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k {holdfast:k}:owners:"), 0);
    hf_close(client);
    rt_end(&s);
}

TEST(many_readers_do_not_look_at_each_other)
{
    many_hold(rt_opts(60000, HF_SHARED));
}

TEST(many_permits_do_not_look_at_each_other)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);

    opts.permits = MANY + 1;
    many_hold(opts);
}

/* The one with the longest lease has left many others behind, and they are
 * dead: whoever asks finds that out. */
TEST(a_writer_finds_that_all_readers_are_dead)
{
    struct hf_lock_opts brief = rt_opts(300, HF_SHARED | HF_MANUAL);
    struct hf_lock_opts read = rt_opts(600000, HF_SHARED);
    static hf_lock *locks[20];
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *one, *writer;
    size_t i;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    CHECK_OK(hf_acquire(a, "k", 0, &read, &one, &t_err));
    for (i = 0; i < 20; i++)
        CHECK_OK(hf_acquire(a, "k", 0, &brief, &locks[i], &t_err));
    CHECK_OK(hf_release(one, &t_err));
    writer = rt_lock(b, "k", 20000, 60000, 0);
    CHECK_GT(hf_fence(writer), 0);
    for (i = 0; i < 20; i++)
        CHECK_STATUS(hf_release(locks[i], &t_err), HF_LOST);
    CHECK_OK(hf_release(writer, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

T_MAIN
