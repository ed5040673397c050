/* SPDX-License-Identifier: MIT
 *
 * several.c - several keys at once: all or none, and never in a circle.
 */
#include "conf.h"

#include <stdio.h>

enum { KEYS = 5 };

/* Keys whose order in the list is not that of their bytes. */
static void several_keys(const char *keys[KEYS])
{
    static const char *const names[KEYS] = {"m", "c", "z", "a", "k"};

    for (int i = 0; i < KEYS; i++)
        keys[i] = conf_key(names[i]);
}

TEST(several_keys_are_taken_together_and_each_is_its_own_lock)
{
    hf_client *client = conf_open();
    const char *keys[KEYS];
    hf_lock *locks[KEYS];

    several_keys(keys);
    CHECK_OK(hf_acquire_all(client, keys, KEYS, 0, NULL, locks, &t_err));
    for (int i = 0; i < KEYS; i++) {
        CHECK_STR(hf_key(locks[i]), keys[i]);
        CHECK(hf_held(locks[i]));
        conf_check_busy(keys[i]);
    }
    for (int i = 0; i < KEYS; i++) {
        conf_unlock(locks[i]);
        conf_check_free(keys[i]);
    }
    hf_close(client);
}

TEST(one_busy_key_and_none_is_taken)
{
    hf_client *a = conf_open(), *b = conf_open();
    const char *keys[KEYS];

    several_keys(keys);
    for (int busy = 0; busy < KEYS; busy += conf_trip_ms ? 2 : 1) {
        hf_lock *locks[KEYS] = {NULL}, *lk = conf_try(a, keys[busy], NULL);

        CHECK_STATUS(hf_acquire_all(b, keys, KEYS, 0, NULL, locks, &t_err),
                     HF_BUSY);
        CHECK_STATUS(
            hf_acquire_all(b, keys, KEYS, conf_ms(30), NULL, locks, &t_err),
            HF_TIMEOUT);
        CHECK(strstr(t_err.text, "held by"));
        for (int i = 0; i < KEYS; i++) {
            CHECK(locks[i] == NULL);
            if (i != busy)
                conf_unlock(conf_lock(a, keys[i], NULL));
        }
        conf_unlock(lk);
    }
    hf_close(a);
    hf_close(b);
}

struct together {
    hf_client *client;
    const char *const *keys;
    int64_t wait_ms;
    hf_lock *locks[KEYS];
    hf_status status;
    struct hf_error err;
    atomic_bool done;
};

static void *take_together(void *arg)
{
    struct together *t = arg;

    t->status = hf_acquire_all(t->client, t->keys, KEYS, t->wait_ms, NULL,
                               t->locks, &t->err);
    atomic_store(&t->done, true);
    return NULL;
}

TEST(who_waits_for_several_gets_them_when_the_last_is_free)
{
    hf_client *a = conf_open(), *b = conf_open();
    const char *keys[KEYS];
    struct together t = {.client = b, .keys = keys, .wait_ms = -1};
    hf_lock *first, *last;
    pthread_t thread;

    several_keys(keys);
    first = conf_try(a, keys[3], NULL);
    last = conf_try(a, keys[2], NULL);
    thread = conf_thread(take_together, &t);
    conf_await_waiters(a, keys[3], 1);
    CHECK(!atomic_load(&t.done));
    conf_unlock(first);
    conf_await_waiters(a, keys[2], 1);
    CHECK(!atomic_load(&t.done));
    conf_check_busy(keys[0]);
    conf_unlock(last);
    pthread_join(thread, NULL);
    CHECK_STATUS(t.status, HF_OK);
    for (int i = 0; i < KEYS; i++)
        conf_unlock(t.locks[i]);
    for (int i = 0; i < KEYS; i++)
        conf_check_free(keys[i]);
    hf_close(a);
    hf_close(b);
}

TEST(a_cancelled_wait_for_several_leaves_nothing)
{
    hf_client *a = conf_open(), *b = conf_open();
    const char *keys[KEYS];
    struct together t = {.client = b, .keys = keys, .wait_ms = -1};
    pthread_t thread;
    hf_lock *lk;

    several_keys(keys);
    lk = conf_try(a, keys[2], NULL);
    thread = conf_thread(take_together, &t);
    conf_await_waiters(a, keys[2], 1);
    hf_cancel(b);
    pthread_join(thread, NULL);
    CHECK_STATUS(t.status, HF_CANCELED);
    for (int i = 0; i < KEYS; i++)
        if (i != 2)
            conf_unlock(conf_lock(a, keys[i], NULL));
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

TEST(a_client_that_is_closed_gives_back_those_of_several_it_has)
{
    hf_client *a = conf_open(), *b = conf_open();
    const char *keys[KEYS];
    struct together t = {.client = b, .keys = keys, .wait_ms = -1};
    hf_lock *locks[KEYS], *lk;
    hf_request *rq;
    pthread_t thread;

    several_keys(keys);
    lk = conf_try(a, keys[2], NULL);
    thread = conf_thread(take_together, &t);
    conf_await_waiters(a, keys[2], 1);
    hf_close(b);
    pthread_join(thread, NULL);
    CHECK_STATUS(t.status, HF_CANCELED);
    b = conf_open();
    CHECK_OK(hf_acquire_all_start(b, keys, KEYS, -1, NULL, locks, NULL, &rq,
                                  &t_err));
    conf_await_waiters(a, keys[2], 1);
    hf_close(b);
    for (int i = 0; i < KEYS; i++)
        if (i != 2)
            conf_unlock(conf_lock(a, keys[i], NULL));
    conf_unlock(lk);
    hf_close(a);
}

TEST(several_keys_come_as_one_event)
{
    hf_client *a = conf_open(), *b = conf_open();
    const char *keys[KEYS];
    hf_lock *locks[KEYS] = {NULL}, *lk;
    struct hf_event event = HF_EVENT_INIT;
    hf_request *rq;
    int user;

    several_keys(keys);
    lk = conf_try(a, keys[0], NULL);
    CHECK_OK(hf_acquire_all_start(b, keys, KEYS, -1, NULL, locks, &user, &rq,
                                  &t_err));
    conf_await_waiters(a, keys[0], 1);
    conf_no_event(b);
    conf_unlock(lk);
    event = conf_event(b);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK(event.request == rq && event.user == &user);
    CHECK(event.lock == locks[0]);
    for (int i = 0; i < KEYS; i++) {
        CHECK_STR(hf_key(locks[i]), keys[i]);
        CHECK(hf_held(locks[i]));
        conf_unlock(locks[i]);
    }
    lk = conf_try(a, keys[2], NULL);
    CHECK_OK(hf_acquire_all_start(b, keys, KEYS, -1, NULL, locks, &user, &rq,
                                  &t_err));
    conf_await_waiters(a, keys[2], 1);
    hf_request_cancel(rq);
    event = conf_event(b);
    CHECK_EQ(event.type, HF_FAILED);
    CHECK_STATUS(event.error.status, HF_CANCELED);
    for (int i = 0; i < KEYS; i++)
        if (i != 2)
            conf_unlock(conf_lock(a, keys[i], NULL));
    CHECK_OK(hf_acquire_all_start(b, keys, KEYS, 20, NULL, locks, &user, &rq,
                                  &t_err));
    event = conf_event(b);
    CHECK_EQ(event.type, HF_FAILED);
    CHECK_STATUS(event.error.status, HF_TIMEOUT);
    conf_no_event(b);
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

/* The first is lost while the second is waited for: the caller gets two locks
 * that are held, or none. */
TEST(what_is_lost_while_others_are_waited_for_is_taken_again)
{
    hf_client *a, *b;
    const char *keys[KEYS];
    struct together t = {.wait_ms = -1};
    struct hf_info info;
    pthread_t thread;
    hf_lock *lk;

    conf_needs(HF_TRAIT_BREAK | HF_TRAIT_FENCED | HF_TRAIT_LEASED);
    several_keys(keys);
    a = conf_open();
    b = conf_open();
    t.client = b;
    t.keys = keys;
    lk = conf_try(a, keys[2], NULL);
    thread = conf_thread(take_together, &t);
    conf_await_waiters(a, keys[2], 1);
    info = conf_look(a, keys[3]);
    CHECK(info.held);
    CHECK_OK(hf_break_force(a, keys[3], info.fence, &t_err));
    conf_unlock(lk);
    pthread_join(thread, NULL);
    CHECK_STATUS(t.status, HF_OK);
    for (int i = 0; i < KEYS; i++) {
        hf_status st = hf_extend(t.locks[i], 0, &t_err);

        if (i == 3 && st == HF_LOST) { /* It was told of it late. */
            CHECK_STATUS(hf_release(t.locks[i], &t_err), HF_LOST);
            continue;
        }
        t_check_status(__FILE__, __LINE__, "hf_extend()", st, HF_OK);
        conf_unlock(t.locks[i]);
    }
    hf_close(a);
    hf_close(b);
}

struct circle {
    hf_client *client;
    const char *keys[2];
    atomic_int *inside;
    int rounds;
};

static void *go_in_circles(void *arg)
{
    struct circle *circle = arg;
    hf_lock *locks[2];

    for (int i = 0; i < circle->rounds; i++) {
        CHECK_OK(hf_acquire_all(circle->client, circle->keys, 2, 30000, NULL,
                                locks, &t_err));
        CHECK_EQ(atomic_fetch_add(circle->inside, 1), 0);
        CHECK_EQ(atomic_fetch_sub(circle->inside, 1), 1);
        conf_unlock(locks[0]);
        conf_unlock(locks[1]);
    }
    return NULL;
}

/* Two threads of each of two clients name two keys in opposite orders. */
TEST_TIMEOUT(opposite_orders_never_wait_for_each_other, 300)
{
    hf_client *clients[2] = {conf_open(), conf_open()};
    const char *x = conf_key("x"), *y = conf_key("y");
    struct circle circle[4];
    pthread_t threads[4];
    atomic_int inside = 0;

    for (int i = 0; i < 4; i++) {
        circle[i] = (struct circle){clients[i % 2],
                                    {i < 2 ? x : y, i < 2 ? y : x},
                                    &inside,
                                    conf_times(2500, 25)};
        threads[i] = conf_thread(go_in_circles, &circle[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    hf_close(clients[0]);
    hf_close(clients[1]);
    conf_check_free(x);
    conf_check_free(y);
}

TEST(sixty_four_keys_at_once)
{
    enum { MANY = 64 };
    hf_client *client = conf_open();
    char names[MANY][64];
    const char *keys[MANY];
    hf_lock *locks[MANY];

    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof(names[i]), "%s%d", conf_prefix(),
                 (i * 37) % MANY);
        keys[i] = names[i];
    }
    CHECK_OK(hf_acquire_all(client, keys, MANY, 0, NULL, locks, &t_err));
    CHECK_EQ(conf_count_listed(client, conf_prefix()), MANY);
    for (int i = 0; i < MANY; i++)
        conf_unlock(locks[i]);
    CHECK_EQ(conf_count_listed(client, conf_prefix()), 0);
    hf_close(client);
}

TEST(sets_of_keys_that_make_no_sense_are_refused)
{
    hf_client *client = conf_open();
    const char *keys[] = {conf_key("a"), conf_key("b"), conf_key("a")};
    const char *empty[] = {conf_key("a"), ""};
    hf_lock *locks[3] = {NULL};
    hf_request *rq = NULL;

    CHECK_STATUS(hf_acquire_all(client, keys, 0, 0, NULL, locks, &t_err),
                 HF_INVALID);
    CHECK(strstr(t_err.text, "no key"));
    CHECK_STATUS(hf_acquire_all(client, NULL, 2, 0, NULL, locks, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_acquire_all(client, keys, 3, 0, NULL, locks, &t_err),
                 HF_INVALID);
    CHECK(strstr(t_err.text, "named twice"));
    CHECK_STATUS(hf_acquire_all(client, empty, 2, 0, NULL, locks, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_acquire_all(client, keys, 2, 0, NULL, NULL, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_acquire_all_start(client, keys, 3, 0, NULL, locks, NULL,
                                      &rq, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_acquire_all_start(client, keys, 2, 0, NULL, locks, NULL,
                                      NULL, &t_err),
                 HF_INVALID);
    CHECK(!rq && !locks[0]);
    conf_check_free(keys[0]);
    hf_close(client);
}
