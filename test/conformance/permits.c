/* SPDX-License-Identifier: MIT
 *
 * permits.c - at most N holders at once, each with a slot and a lease of its
 * own.
 */
#include "conf.h"

#include <sched.h>
#include <stdio.h>

enum { PERMITS = 3 };

static struct hf_lock_opts permits_opts(int64_t ttl_ms, int32_t n)
{
    struct hf_lock_opts opts = conf_opts(ttl_ms, 0);

    opts.permits = n;
    return opts;
}

TEST(as_many_hold_as_there_are_permits_each_in_its_slot)
{
    struct hf_lock_opts opts = permits_opts(0, PERMITS);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk[PERMITS], *none = NULL;
    unsigned slots = 0;
    uint64_t fence = 0;

    conf_needs(HF_TRAIT_PERMITS);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < PERMITS; i++) {
        lk[i] = conf_try(i % 2 ? a : b, key, &opts);
        CHECK_GE(hf_slot(lk[i]), 0);
        CHECK_LT(hf_slot(lk[i]), PERMITS);
        slots |= 1u << hf_slot(lk[i]);
        CHECK_GT(hf_fence(lk[i]), fence);
        fence = hf_fence(lk[i]);
    }
    CHECK_EQ(slots, (1u << PERMITS) - 1);
    CHECK_STATUS(hf_acquire(a, key, 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(b, key, 30, &opts, &none, &t_err), HF_TIMEOUT);
    CHECK_EQ(conf_look(a, key).permits, PERMITS);
    CHECK_EQ(conf_look(a, key).holders, PERMITS);
    for (int i = 0; i < PERMITS; i++) {
        int slot = hf_slot(lk[i]);

        conf_unlock(lk[i]);
        lk[i] = conf_try(i % 2 ? b : a, key, &opts);
        CHECK_EQ(hf_slot(lk[i]), slot);
    }
    for (int i = 0; i < PERMITS; i++)
        conf_unlock(lk[i]);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_plain_lock_has_no_slot)
{
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), NULL);

    CHECK_EQ(hf_slot(lk), -1);
    CHECK_EQ(hf_slot(NULL), -1);
    CHECK_EQ(conf_look(client, conf_key("k")).permits, 0);
    conf_unlock(lk);
    hf_close(client);
}

TEST(who_waits_gets_the_permit_that_is_given_back)
{
    struct hf_lock_opts opts = permits_opts(0, 2);
    const char *key = conf_key("k");
    struct conf_waiter w[2];
    hf_client *a, *b;
    hf_lock *one, *two;
    int slot;

    conf_needs(HF_TRAIT_PERMITS);
    a = conf_open();
    b = conf_open();
    one = conf_try(a, key, &opts);
    two = conf_try(a, key, &opts);
    slot = hf_slot(two);
    conf_waiter_start(&w[0], b, key, -1, &opts);
    conf_await_waiters(a, key, 1);
    conf_unlock(two);
    conf_waiter_join(&w[0], HF_OK);
    CHECK_EQ(hf_slot(w[0].lk), slot);
    CHECK(hf_held(one) && hf_held(w[0].lk));
    conf_waiter_start(&w[1], a, key, -1, &opts);
    conf_await_waiters(b, key, 1);
    slot = hf_slot(one);
    conf_unlock(one);
    conf_waiter_join(&w[1], HF_OK);
    CHECK_EQ(hf_slot(w[1].lk), slot);
    conf_unlock(w[0].lk);
    conf_unlock(w[1].lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

struct pool {
    hf_client *client;
    const char *key;
    atomic_int *inside, *slots;
};

static void *use_pool(void *arg)
{
    struct hf_lock_opts opts = permits_opts(0, PERMITS);
    struct pool *pool = arg;

    for (int i = 0; i < conf_times(40, 8); i++) {
        hf_lock *lk = conf_lock(pool->client, pool->key, &opts);

        CHECK_LT(atomic_fetch_add(pool->inside, 1), PERMITS);
        CHECK_EQ(atomic_fetch_add(&pool->slots[hf_slot(lk)], 1), 0);
        sched_yield();
        CHECK_EQ(atomic_fetch_sub(&pool->slots[hf_slot(lk)], 1), 1);
        atomic_fetch_sub(pool->inside, 1);
        CHECK(hf_held(lk));
        conf_unlock(lk);
    }
    return NULL;
}

TEST_TIMEOUT(never_more_than_the_permits_and_no_slot_twice, 120)
{
    atomic_int inside = 0, slots[PERMITS] = {0};
    struct pool pool[9];
    pthread_t threads[9];
    hf_client *clients[3];
    const char *key = conf_key("k");

    conf_needs(HF_TRAIT_PERMITS);
    for (int i = 0; i < 3; i++)
        clients[i] = conf_open();
    for (int i = 0; i < 9; i++) {
        pool[i] = (struct pool){clients[i % 3], key, &inside, slots};
        threads[i] = conf_thread(use_pool, &pool[i]);
    }
    for (int i = 0; i < 9; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 3; i++)
        hf_close(clients[i]);
    conf_check_free(key);
}

TEST(another_number_of_permits_is_refused_and_says_which_is_in_use)
{
    struct hf_lock_opts three = permits_opts(0, 3), four = permits_opts(0, 4);
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk, *none = NULL;

    conf_needs(HF_TRAIT_PERMITS);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &three);
    CHECK_STATUS(hf_acquire(b, key, 0, &four, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "3 permits, not 4"));
    CHECK_STATUS(hf_acquire(b, key, 0, NULL, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "3 permits, not as a plain lock"));
    CHECK_STATUS(hf_acquire(b, key, 5000, NULL, &none, &t_err), HF_INVALID);
    if (conf_traits & HF_TRAIT_SHARED)
        CHECK_STATUS(hf_acquire(b, key, 0, &read, &none, &t_err), HF_INVALID);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    lk = conf_try(a, key, NULL);
    CHECK_STATUS(hf_acquire(b, key, 0, &four, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "plain lock, not with 4 permits"));
    conf_unlock(lk);
    lk = conf_try(b, key, &four); /* Nobody uses it: any number will do. */
    CHECK_STATUS(hf_acquire(a, key, 0, &three, &none, &t_err), HF_INVALID);
    conf_unlock(lk);
    CHECK(none == NULL);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_permit_comes_back_after_its_own_lease_although_others_renew)
{
    struct hf_lock_opts opts = permits_opts(1500, 2);
    struct hf_lock_opts manual = permits_opts(300, 2);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *kept, *dead, *next;
    int slot;

    conf_needs(HF_TRAIT_PERMITS | HF_TRAIT_LEASED);
    manual.flags = HF_MANUAL;
    a = conf_open();
    b = conf_open();
    kept = conf_try(a, key, &opts);
    dead = conf_try(a, key, &manual);
    slot = hf_slot(dead);
    next = conf_lock(b, key, &opts);
    CHECK(!hf_held(dead));
    CHECK(hf_held(kept));
    CHECK_EQ(hf_slot(next), slot);
    CHECK_STATUS(hf_release(dead, &t_err), HF_LOST);
    CHECK(hf_held(next));
    conf_unlock(kept);
    conf_unlock(next);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_permit_keeps_its_slot_when_it_is_taken_up_again)
{
    struct hf_lock_opts opts = permits_opts(30000, PERMITS);
    struct hf_lock_opts other = permits_opts(30000, PERMITS + 1);
    const char *key = conf_key("k");
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *first, *lk, *none = NULL;
    uint64_t fence;
    int slot;

    conf_needs(HF_TRAIT_PERMITS | HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    first = conf_try(a, key, &opts);
    lk = conf_try(a, key, &opts);
    slot = hf_slot(lk);
    fence = hf_fence(lk);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_STATUS(hf_attach(b, key, &handle, &other, &none, &t_err), HF_INVALID);
    CHECK(none == NULL);
    CHECK_OK(hf_attach(b, key, &handle, &opts, &lk, &t_err));
    CHECK_EQ(hf_slot(lk), slot);
    CHECK_EQ(hf_fence(lk), fence);
    conf_unlock(first);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(one_owner_id_uses_one_permit)
{
    struct hf_lock_opts opts = permits_opts(0, 2);
    const char *key = conf_key("k");
    hf_client *client;
    hf_lock *one, *again, *two, *none = NULL;

    conf_needs(HF_TRAIT_PERMITS);
    client = conf_open();
    opts.owner = "worker";
    one = conf_try(client, key, &opts);
    again = conf_try(client, key, &opts);
    CHECK_EQ(hf_slot(one), hf_slot(again));
    CHECK_EQ(hf_fence(one), hf_fence(again));
    opts.owner = "other";
    two = conf_try(client, key, &opts);
    CHECK(hf_slot(two) != hf_slot(one));
    opts.owner = NULL;
    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &none, &t_err), HF_BUSY);
    conf_unlock(one);
    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &none, &t_err), HF_BUSY);
    conf_unlock(again);
    conf_unlock(conf_try(client, key, &opts));
    conf_unlock(two);
    hf_close(client);
    conf_check_free(key);
}

TEST(one_of_several_permits_is_broken_by_its_fence)
{
    struct hf_lock_opts opts = permits_opts(30000, 2);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *one, *two;

    conf_needs(HF_TRAIT_PERMITS | HF_TRAIT_BREAK | HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    one = conf_try(a, key, &opts);
    two = conf_try(b, key, &opts);
    CHECK_OK(hf_check(b, key, hf_fence(one), &t_err));
    CHECK_OK(hf_check(b, key, hf_fence(two), &t_err));
    CHECK_OK(hf_break(b, key, hf_fence(one), &t_err));
    CHECK_STATUS(hf_check(b, key, hf_fence(one), &t_err), HF_LOST);
    CHECK_OK(hf_check(b, key, hf_fence(two), &t_err));
    CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
    CHECK_EQ(hf_lost_reason(one), HF_LOSS_BROKEN);
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    conf_unlock(conf_lock(b, key, &opts));
    conf_unlock(two);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(permits_that_make_no_sense_are_refused)
{
    struct hf_lock_opts opts = permits_opts(0, -1);
    hf_client *client = conf_open();
    hf_lock *none = NULL;

    CHECK_STATUS(hf_acquire(client, conf_key("k"), 0, &opts, &none, &t_err),
                 HF_INVALID);
    CHECK(strstr(t_err.text, "permits is -1"));
    opts.permits = 2;
    opts.flags = HF_SHARED;
    if (conf_traits & HF_TRAIT_SHARED) {
        CHECK_STATUS(hf_acquire(client, conf_key("k"), 0, &opts, &none, &t_err),
                     HF_INVALID);
        CHECK(strstr(t_err.text, "shared or has permits"));
    }
    opts.flags = 0;
    if (!(conf_traits & HF_TRAIT_PERMITS)) {
        CHECK_STATUS(hf_acquire(client, conf_key("k"), 0, &opts, &none, &t_err),
                     HF_UNSUPPORTED);
        CHECK(strstr(t_err.text, "has no permits"));
    }
    CHECK(none == NULL);
    hf_close(client);
}

TEST(every_number_of_permits_is_possible)
{
    struct hf_lock_opts one = permits_opts(0, 1);
    struct hf_lock_opts most = permits_opts(0, INT32_MAX);
    const char *key = conf_key("k");
    hf_client *client;
    hf_lock *lk, *none = NULL;

    conf_needs(HF_TRAIT_PERMITS);
    client = conf_open();
    lk = conf_try(client, key, &one);
    CHECK_EQ(hf_slot(lk), 0);
    CHECK_STATUS(hf_acquire(client, key, 0, &one, &none, &t_err), HF_BUSY);
    conf_unlock(lk);
    lk = conf_try(client, key, &most);
    CHECK_EQ(hf_slot(lk), 0);
    conf_unlock(lk);
    hf_close(client);
    conf_check_free(key);
}
