/* SPDX-License-Identifier: MIT
 *
 * queue.c - who is next: the service's queue, hand-over inside a client, and
 * leases that linger.
 *
 * Inside a client a lock may be handed on without asking the service, but only
 * so many times in a row while others may be waiting; a lease may stay after
 * the last release, but not in anybody's way.
 */
#include "conf.h"

enum { CONTENDERS = 10 };

TEST(waiters_of_ten_clients_are_served_in_the_order_they_came)
{
    const char *key = conf_key("k");
    struct conf_waiter w[CONTENDERS];
    hf_client *first, *clients[CONTENDERS];
    uint64_t fence;
    hf_lock *lk;

    conf_needs(HF_TRAIT_QUEUED);
    first = conf_open();
    lk = conf_try(first, key, NULL);
    fence = hf_fence(lk);
    for (int i = 0; i < CONTENDERS; i++) {
        clients[i] = conf_open();
        conf_waiter_start(&w[i], clients[i], key, -1, NULL);
        conf_await_waiters(first, key, i + 1);
    }
    conf_unlock(lk);
    for (int i = 0; i < CONTENDERS; i++) {
        t_poll_until(atomic_load(&w[i].done), 20000);
        for (int j = i + 1; j < CONTENDERS; j++)
            CHECK(!atomic_load(&w[j].done));
        conf_waiter_join(&w[i], HF_OK);
        CHECK_GT(hf_fence(w[i].lk), fence);
        fence = hf_fence(w[i].lk);
        conf_unlock(w[i].lk);
    }
    for (int i = 0; i < CONTENDERS; i++)
        hf_close(clients[i]);
    hf_close(first);
    conf_check_free(key);
}

TEST(waiters_of_one_client_are_served_in_the_order_they_came)
{
    static const unsigned flags[] = {0, HF_FAIR};

    conf_needs(HF_TRAIT_QUEUED);
    for (int k = 0; k < 2; k++) {
        struct hf_lock_opts opts = conf_opts(0, flags[k]);
        const char *key = conf_key(k ? "fair" : "local");
        hf_client *client = conf_open(), *other = conf_open();
        hf_lock *lk = conf_try(other, key, NULL);
        intptr_t order = 0;
        hf_request *req;

        for (intptr_t i = 1; i <= CONTENDERS; i++)
            CHECK_OK(hf_acquire_start(client, key, -1, &opts, (void *)i, &req,
                                      &t_err));
        conf_await_waiters(other, key, 1);
        conf_unlock(lk);
        while (order < CONTENDERS) {
            struct hf_event event = conf_event(client);

            CHECK_EQ(event.type, HF_GRANTED);
            CHECK_EQ((intptr_t)event.user, ++order);
            conf_unlock(event.lock);
        }
        conf_no_event(client);
        hf_close(client);
        hf_close(other);
        conf_check_free(key);
    }
}

/* Threads of one client that pass the lock around among themselves. */
struct contenders {
    hf_client *client;
    const char *key;
    struct hf_lock_opts opts;
    atomic_bool stop;
    atomic_long turns;
};

static void *hammer(void *arg)
{
    struct contenders *contenders = arg;

    while (!atomic_load(&contenders->stop)) {
        hf_lock *lk =
            conf_lock(contenders->client, contenders->key, &contenders->opts);

        atomic_fetch_add(&contenders->turns, 1);
        conf_unlock(lk);
    }
    return NULL;
}

static void hammer_until_another_gets_in(int32_t turns, int64_t linger_ms,
                                         bool by_trying)
{
    struct contenders contenders = {.client = conf_open(),
                                    .key = conf_key("k")};
    hf_client *other = conf_open();
    pthread_t threads[4];
    hf_lock *lk = NULL;
    int rounds = conf_times(5, 2);

    contenders.opts = conf_opts(0, 0);
    contenders.opts.local_turns = turns;
    contenders.opts.linger_ms = linger_ms;
    for (int i = 0; i < 4; i++)
        threads[i] = conf_thread(hammer, &contenders);
    for (int i = 0; i < rounds; i++) {
        t_poll_until(atomic_load(&contenders.turns) > 20 * i, 20000);
        if (by_trying)
            t_poll_until(
                hf_acquire(other, contenders.key, 0, NULL, &lk, NULL) == HF_OK,
                30000);
        else
            lk = conf_lock(other, contenders.key, NULL);
        CHECK(hf_held(lk));
        conf_unlock(lk);
    }
    atomic_store(&contenders.stop, true);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    hf_close(contenders.client);
    hf_close(other);
    conf_check_free(contenders.key);
}

TEST(local_hand_over_lets_other_clients_in)
{
    hammer_until_another_gets_in(4, 0, false);
}

TEST(no_more_than_the_allowed_turns_are_handed_over_in_a_row)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    struct conf_waiter w;
    hf_client *a, *b;
    hf_request *req;
    hf_lock *lk;
    int turns = 0;

    conf_needs(HF_TRAIT_QUEUED);
    a = conf_open();
    b = conf_open();
    opts.local_turns = 4;
    lk = conf_try(a, key, &opts);
    for (int i = 0; i < 20; i++)
        CHECK_OK(hf_acquire_start(a, key, -1, &opts, NULL, &req, &t_err));
    conf_waiter_start(&w, b, key, 20000, NULL);
    conf_await_waiters(b, key, 1);
    conf_unlock(lk);
    for (; turns < 20; turns++) {
        /* Its turn comes after four of theirs, while they all wait. */
        if (turns == 4) {
            conf_waiter_join(&w, HF_OK);
            conf_unlock(w.lk);
        }
        conf_unlock(conf_event(a).lock);
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(the_default_hand_over_lets_other_clients_in)
{
    hammer_until_another_gets_in(0, 0, false);
}

TEST(hand_over_with_a_lingering_lease_lets_other_clients_in)
{
    hammer_until_another_gets_in(4, 60000, false);
}

TEST(a_lingering_lease_is_taken_again_with_the_same_fence)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk;
    uint64_t fence;

    opts.linger_ms = 60000;
    lk = conf_try(client, key, &opts);
    fence = hf_fence(lk);
    for (int i = 0; i < conf_times(100, 100); i++) {
        conf_unlock(lk);
        lk = conf_try(client, key, &opts);
        CHECK_EQ(hf_fence(lk), fence);
        CHECK(hf_held(lk));
    }
    conf_check_stands(client, lk);
    conf_unlock(lk);
    hf_close(client);
    conf_check_free(key);
}

TEST(without_linger_every_grant_has_a_fence_of_its_own)
{
    const char *key = conf_key("k");
    hf_client *client;
    uint64_t fence = 0;

    conf_needs(HF_TRAIT_FENCED);
    client = conf_open();
    for (int i = 0; i < conf_times(100, 100); i++) {
        hf_lock *lk = conf_try(client, key, NULL);

        CHECK_GT(hf_fence(lk), fence);
        fence = hf_fence(lk);
        conf_unlock(lk);
    }
    hf_close(client);
}

TEST(a_waiter_elsewhere_gets_a_lingering_lease_at_once)
{
    struct hf_lock_opts opts = conf_opts(600000, 0);
    const char *key = conf_key("k");
    hf_client *a, *b;
    uint64_t fence;
    hf_lock *lk;

    conf_needs(HF_TRAIT_NOTIFY);
    a = conf_open();
    b = conf_open();
    opts.linger_ms = 600000;
    for (int i = 0; i < 5; i++) {
        lk = conf_lock(a, key, &opts);
        fence = hf_fence(lk);
        conf_unlock(lk);
        lk = conf_lock(b, key, NULL);
        if (conf_traits & HF_TRAIT_FENCED)
            CHECK_GT(hf_fence(lk), fence);
        conf_unlock(lk);
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(who_waited_before_the_release_gets_a_lingering_lease_at_once)
{
    struct hf_lock_opts opts = conf_opts(600000, 0);
    const char *key = conf_key("k");
    hf_client *a, *b;

    conf_needs(HF_TRAIT_NOTIFY);
    a = conf_open();
    b = conf_open();
    opts.linger_ms = 600000;
    for (int i = 0; i < 4; i++) {
        hf_lock *lk = conf_lock(a, key, &opts);
        struct conf_waiter w;

        if (i % 2) {
            /* Linger once before anybody waits. */
            conf_unlock(lk);
            lk = conf_lock(a, key, &opts);
        }
        conf_waiter_start(&w, b, key, -1, &opts);
        conf_await_waiters(a, key, 1);
        conf_unlock(lk);
        t_poll_until(atomic_load(&w.done), 10000);
        conf_waiter_join(&w, HF_OK);
        conf_unlock(w.lk);
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_try_elsewhere_gets_a_lingering_lease_before_long)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = NULL;

    opts.linger_ms = 3000;
    conf_unlock(conf_try(a, key, &opts));
    t_poll_until(hf_acquire(b, key, 0, NULL, &lk, NULL) == HF_OK, 20000);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

/* The lease is so long that no renewal brings the keeper to it meanwhile. */
TEST(a_lingering_lease_ends_by_itself)
{
    struct hf_lock_opts opts = conf_opts(600000, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *looker = conf_open();

    opts.linger_ms = 100;
    conf_unlock(conf_try(a, key, &opts));
    t_poll_until(!conf_look(looker, key).held, 20000);
    conf_check_free(key);
    hf_close(a);
    hf_close(looker);
}

TEST(closing_a_client_gives_lingering_leases_back)
{
    struct hf_lock_opts opts = conf_opts(600000, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open();

    opts.linger_ms = 600000;
    conf_unlock(conf_try(a, key, &opts));
    hf_close(a);
    conf_check_free(key);
}
