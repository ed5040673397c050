/* SPDX-License-Identifier: MIT
 *
 * reentrancy.c - acquisitions with the same owner id are one holder.
 *
 * Inside a client they are counted on every service; across clients and
 * processes where the service says so.  The key is free when the last of them
 * has let go, never when the first has.
 */
#include "conf.h"

#include <stdio.h>

static struct hf_lock_opts owned(const char *owner)
{
    struct hf_lock_opts opts = conf_opts(0, 0);

    opts.owner = owner;
    return opts;
}

TEST(the_same_owner_enters_again_and_leaves_as_often)
{
    struct hf_lock_opts opts = owned("request 17");
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk[20];

    for (int i = 0; i < 20; i++) {
        lk[i] = conf_try(client, key, &opts);
        CHECK_EQ(hf_fence(lk[i]), hf_fence(lk[0]));
        CHECK_STR(hf_token(lk[i]), conf_traits & HF_TRAIT_NOTED
                                       ? "request 17"
                                       : hf_token(lk[0]));
    }
    /* In an order of their own: handles are equal, none is the outer one. */
    for (int i = 0; i < 20; i++) {
        int next = (i * 7 + 3) % 20;

        conf_check_busy(key);
        CHECK(hf_held(lk[next]));
        conf_unlock(lk[next]);
    }
    conf_check_free(key);
    hf_close(client);
}

TEST(another_owner_of_the_same_client_stays_out)
{
    struct hf_lock_opts mine = owned("one"), other = owned("two");
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, &mine), *none = NULL;

    CHECK_STATUS(hf_acquire(client, key, 0, &other, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(client, key, 30, NULL, &none, &t_err), HF_TIMEOUT);
    CHECK(none == NULL);
    conf_unlock(lk);
    lk = conf_try(client, key, &other);
    CHECK_STATUS(hf_acquire(client, key, 0, &mine, &none, &t_err), HF_BUSY);
    conf_unlock(lk);
    hf_close(client);
}

TEST(an_inner_lock_passes_by_those_who_wait)
{
    struct hf_lock_opts opts = owned("me");
    const char *key = conf_key("k");
    hf_client *client = conf_open(), *other = conf_open();
    hf_lock *outer = conf_try(client, key, &opts), *inner;
    struct conf_waiter local, remote;

    conf_waiter_start(&local, client, key, -1, NULL);
    conf_waiter_start(&remote, other, key, -1, NULL);
    t_sleep_ms(100);
    inner = conf_lock(client, key, &opts);
    conf_unlock(inner);
    CHECK(!atomic_load(&local.done) && !atomic_load(&remote.done));
    inner = conf_try(client, key, &opts);
    conf_unlock(outer);
    t_sleep_ms(50);
    CHECK(!atomic_load(&local.done) && !atomic_load(&remote.done));
    CHECK(hf_held(inner));
    conf_unlock(inner);
    t_poll_until(atomic_load(&local.done) || atomic_load(&remote.done), 20000);
    if (atomic_load(&local.done)) {
        conf_waiter_join(&local, HF_OK);
        conf_unlock(local.lk);
        conf_waiter_join(&remote, HF_OK);
        conf_unlock(remote.lk);
    } else {
        conf_waiter_join(&remote, HF_OK);
        conf_unlock(remote.lk);
        conf_waiter_join(&local, HF_OK);
        conf_unlock(local.lk);
    }
    hf_close(client);
    hf_close(other);
    conf_check_free(key);
}

TEST(all_who_wait_under_one_owner_id_enter_together)
{
    struct hf_lock_opts opts = owned("me");
    const char *key = conf_key("k");
    hf_client *client = conf_open(), *other = conf_open();
    hf_lock *held = conf_try(other, key, NULL);
    struct conf_waiter waiters[3];

    for (int i = 0; i < 3; i++)
        conf_waiter_start(&waiters[i], client, key, 20000, &opts);
    t_sleep_ms(100);
    conf_unlock(held);
    for (int i = 0; i < 3; i++)
        conf_waiter_join(&waiters[i], HF_OK);
    for (int i = 0; i < 3; i++) {
        CHECK(hf_held(waiters[i].lk));
        conf_unlock(waiters[i].lk);
    }
    hf_close(client);
    hf_close(other);
    conf_check_free(key);
}

TEST(an_inner_lock_is_renewed_although_the_outer_one_is_not)
{
    struct hf_lock_opts manual = owned("me"), opts = owned("me");
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *outer, *inner;

    manual.ttl_ms = 3000;
    manual.flags = HF_MANUAL;
    opts.ttl_ms = 3000;
    outer = conf_try(client, key, &manual);
    inner = conf_try(client, key, &opts);
    t_sleep_ms(4000);
    CHECK(hf_held(inner) && hf_held(outer));
    conf_unlock(inner);
    conf_unlock(outer);
    hf_close(client);
}

TEST(an_inner_lock_has_the_lease_that_it_asks_for)
{
    struct hf_lock_opts opts = owned("me");
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *outer, *inner;

    conf_needs(HF_TRAIT_LEASED);
    opts.ttl_ms = 10000;
    outer = conf_try(client, key, &opts);
    opts.ttl_ms = 40000;
    inner = conf_try(client, key, &opts);
    t_poll_until(hf_remaining_ms(inner) > 12000, 20000);
    CHECK(hf_held(outer));
    conf_unlock(inner);
    conf_unlock(outer);
    hf_close(client);
}

TEST(an_inner_lock_is_not_held_for_longer_than_it_says)
{
    struct hf_lock_opts opts = owned("me");
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *outer = conf_try(client, key, &opts), *inner;

    opts.max_hold_ms = 300;
    inner = conf_try(client, key, &opts);
    t_poll_until(!hf_held(inner), 20000);
    CHECK_EQ(hf_lost_reason(inner), HF_LOSS_MAX_HOLD);
    CHECK_STATUS(hf_release(inner, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(outer, &t_err), HF_LOST);
    hf_close(client);
}

struct nest {
    hf_client *client;
    const char *key;
    atomic_int inside;
};

/* Each thread is an owner of its own that enters three deep. */
static void *nest_run(void *arg)
{
    struct nest *nest = arg;
    struct hf_lock_opts opts = conf_opts(0, 0);
    hf_lock *lk[3];
    char owner[32];

    snprintf(owner, sizeof(owner), "thread %lx", (unsigned long)pthread_self());
    opts.owner = owner;
    for (int i = 0; i < conf_times(50, 10); i++) {
        for (int j = 0; j < 3; j++)
            lk[j] = conf_lock(nest->client, nest->key, &opts);
        CHECK_EQ(atomic_fetch_add(&nest->inside, 1), 0);
        conf_unlock(lk[i % 3]);
        CHECK_EQ(atomic_fetch_sub(&nest->inside, 1), 1);
        conf_unlock(lk[(i + 1) % 3]);
        conf_unlock(lk[(i + 2) % 3]);
    }
    return NULL;
}

TEST(owners_in_many_threads_nest_without_mixing)
{
    struct nest nest = {.client = conf_open(), .key = conf_key("k")};
    pthread_t threads[8];

    for (int i = 0; i < 8; i++)
        threads[i] = conf_thread(nest_run, &nest);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    hf_close(nest.client);
    conf_check_free(nest.key);
}

TEST(the_same_owner_enters_from_another_client_until_the_last_leaves)
{
    struct hf_lock_opts opts = owned("trace-4711");
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *one, *two;

    conf_needs(HF_TRAIT_REENTRANT);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < 2; i++) {
        one = conf_try(a, key, &opts);
        two = conf_try(b, key, &opts);
        CHECK(hf_held(one) && hf_held(two));
        conf_check_busy(key);
        conf_unlock(i ? one : two);
        conf_check_busy(key);
        CHECK(hf_held(i ? two : one));
        CHECK_OK(hf_extend(i ? two : one, 0, &t_err));
        conf_unlock(i ? two : one);
        conf_check_free(key);
    }
    hf_close(a);
    hf_close(b);
}

static bool is_there(void *arg, const struct hf_info *holder)
{
    (void)arg;
    CHECK_GE(holder->left_ms, -1);
    return true;
}

/* The first of them lapses, and is still there for a while perhaps. */
TEST(a_check_is_ok_for_as_long_as_one_of_an_owner_id_holds)
{
    struct hf_lock_opts first = conf_opts(2000, HF_MANUAL);
    struct hf_lock_opts second = conf_opts(10000, 0);
    const char *key = conf_key("k");
    int64_t end = t_now_ms() + 2 * first.ttl_ms;
    hf_client *a, *b, *c;
    hf_lock *outer, *inner;
    hf_status st;

    conf_needs(HF_TRAIT_REENTRANT | HF_TRAIT_FENCED);
    first.owner = second.owner = "trace-4711";
    a = conf_open();
    b = conf_open();
    c = conf_open();
    outer = conf_try(a, key, &first);
    inner = conf_lock(b, key, &second);
    while (t_now_ms() < end) {
        st = hf_check(c, key, hf_fence(inner), &t_err);
        if (hf_held(inner)) /* and so it was then */
            CHECK_STATUS(st, HF_OK);
        CHECK_OK(hf_holders(c, key, is_there, NULL, &t_err));
        t_sleep_ms(20);
    }
    st = hf_release(outer, &t_err);
    CHECK(st == HF_OK || st == HF_LOST);
    conf_unlock(inner);
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

TEST(the_same_owner_passes_by_those_who_wait_in_its_other_client)
{
    struct hf_lock_opts opts = owned("trace-4711"), other = owned("other");
    const char *key = conf_key("k");
    struct conf_waiter w;
    hf_client *a, *b;
    hf_lock *one, *two;

    conf_needs(HF_TRAIT_REENTRANT);
    a = conf_open();
    b = conf_open();
    one = conf_try(a, key, &opts);
    conf_waiter_start(&w, b, key, -1, &other);
    conf_await_waiters(a, key, 1);
    /* Whoever holds it may be waiting for this very call. */
    two = conf_try(b, key, &opts);
    CHECK(!atomic_load(&w.done));
    conf_unlock(one);
    CHECK(!atomic_load(&w.done));
    conf_unlock(two);
    conf_waiter_join(&w, HF_OK);
    conf_unlock(w.lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

static void enter_and_wait(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = owned("trace-4711");
    hf_client *client = conf_open();
    hf_lock *lk;

    t_hear(up);
    lk = conf_try(client, arg, &opts);
    t_tell(up, 1);
    t_hear(up);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    hf_close(client);
    t_tell(up, 2);
}

TEST(the_same_owner_enters_from_another_process_until_the_last_leaves)
{
    char key[128];
    struct t_peer one, two;

    conf_needs(HF_TRAIT_REENTRANT | HF_TRAIT_PROCESSES);
    snprintf(key, sizeof(key), "%s", conf_key("k"));
    one = t_fork(enter_and_wait, key);
    two = t_fork(enter_and_wait, key);
    t_tell(&one, 0);
    t_hear(&one);
    t_tell(&two, 0);
    t_hear(&two);
    conf_check_busy(key);
    t_tell(&one, 0);
    t_hear(&one);
    conf_check_busy(key);
    t_tell(&two, 0);
    t_hear(&two);
    conf_check_free(key);
    t_join(&one);
    t_join(&two);
}

TEST(a_killed_process_does_not_free_its_owners_other_lock)
{
    struct hf_lock_opts opts = owned("trace-4711");
    struct t_peer peer;
    hf_client *client;
    char key[128];
    hf_lock *lk;

    conf_needs(HF_TRAIT_REENTRANT | HF_TRAIT_PROCESSES);
    snprintf(key, sizeof(key), "%s", conf_key("k"));
    peer = t_fork(enter_and_wait, key);
    client = conf_open();
    opts.ttl_ms = conf_ms(4000);
    lk = conf_try(client, key, &opts);
    t_tell(&peer, 0);
    t_hear(&peer);
    t_kill(&peer);
    for (int64_t end = t_now_ms() + conf_ms(1500); t_now_ms() < end;
         t_sleep_ms(50)) {
        CHECK(hf_held(lk));
        conf_check_busy(key);
    }
    conf_unlock(lk);
    hf_close(client);
}

TEST(a_lost_reentrant_lock_is_lost_for_all_its_handles)
{
    struct hf_lock_opts opts = owned("me");
    const char *key = conf_key("k");
    hf_client *client = conf_open(), *other = conf_open();
    hf_lock *one, *two, *next;

    opts.flags = HF_MANUAL;
    opts.ttl_ms = conf_ms(150);
    one = conf_try(client, key, &opts);
    two = conf_try(client, key, &opts);
    next = conf_lock(other, key, NULL);
    CHECK(!hf_held(one) && !hf_held(two));
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_STATUS(hf_extend(two, 1000, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    CHECK(hf_held(next));
    conf_check_busy(key);
    conf_unlock(next);
    hf_close(client);
    hf_close(other);
}
