/* SPDX-License-Identifier: MIT
 *
 * waiting.c - trying, waiting, giving up and being called off.
 *
 * Whoever stops waiting leaves nothing behind: the service shows neither a
 * holder nor a waiter of his, and the next who asks gets the lock.
 */
#include "conf.h"

#include <signal.h>
#include <unistd.h>

TEST(a_try_that_fails_returns_at_once_and_leaves_nothing)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL), *none = NULL;

    for (int i = 0; i < conf_times(50, 50); i++)
        CHECK_STATUS(hf_acquire(b, key, 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_EQ(conf_look(a, key).holders, 1);
    CHECK_LE(conf_look(a, key).waiters, 0);
    conf_unlock(lk);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
}

TEST(a_timeout_does_not_come_early_and_leaves_nothing)
{
    static const unsigned flags[] = {0, HF_FAIR, HF_POLL};
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL), *none = NULL;

    conf_look(b, key); /* It is connected. */
    for (int i = 0; i < 9; i++) {
        struct hf_lock_opts opts = conf_opts(0, flags[i % 3]);
        int64_t wait_ms = 1 + i * 37, began = t_now_ms(), took;

        CHECK_STATUS(
            hf_acquire(i % 2 ? a : b, key, wait_ms, &opts, &none, &t_err),
            HF_TIMEOUT);
        took = t_now_ms() - began;
        CHECK_GE(took, wait_ms - 1);
        CHECK_LE(took, wait_ms + 10000);
    }
    CHECK(none == NULL);
    CHECK_LE(conf_look(a, key).waiters, 0);
    conf_unlock(lk);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
}

TEST(a_waiter_gets_the_lock_when_it_is_released)
{
    static const unsigned flags[] = {0, HF_FAIR, HF_POLL};

    for (int i = 0; i < 6; i++) {
        struct hf_lock_opts opts = conf_opts(0, flags[i % 3]);
        const char *key = conf_key("k");
        hf_client *a = conf_open(), *b = i % 2 ? a : conf_open();
        hf_lock *lk = conf_try(a, key, NULL);
        struct conf_waiter w;

        conf_waiter_start(&w, b, key, -1, &opts);
        t_sleep_ms(60);
        CHECK(!atomic_load(&w.done));
        conf_unlock(lk);
        conf_waiter_join(&w, HF_OK);
        CHECK(hf_held(w.lk));
        conf_check_busy(key);
        conf_unlock(w.lk);
        if (b != a)
            hf_close(b);
        hf_close(a);
        conf_check_free(key);
    }
}

TEST(a_waiter_is_woken_not_polling)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *a, *b;

    conf_needs(HF_TRAIT_NOTIFY);
    /* Polls this rare cannot explain a hand-over within seconds. */
    opts.retry_ms = 600000;
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < conf_times(20, 5); i++) {
        hf_lock *lk = conf_lock(a, key, NULL);
        struct conf_waiter w;

        conf_waiter_start(&w, b, key, -1, &opts);
        t_sleep_ms(i % 5 * 7);
        conf_unlock(lk);
        t_poll_until(atomic_load(&w.done), 10000);
        conf_waiter_join(&w, HF_OK);
        conf_unlock(w.lk);
    }
    hf_close(a);
    hf_close(b);
}

TEST(who_comes_after_a_lone_waiter_is_woken_too)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    hf_client *a, *b;

    conf_needs(HF_TRAIT_NOTIFY);
    opts.retry_ms = 600000;
    a = conf_open();
    b = conf_open();
    /* Alone at first, then not; and the one that is left must still be woken. */
    for (int i = 0; i < conf_times(12, 4); i++) {
        const char *keys[] = {conf_key("first"), conf_key("second")};
        hf_lock *lk[] = {conf_lock(a, keys[0], NULL),
                         conf_lock(a, keys[1], NULL)};
        struct conf_waiter w[2];
        int j, next = i / 2 % 2;

        for (j = 0; j < 2; j++) {
            conf_waiter_start(&w[j], b, keys[j], -1, &opts);
            t_sleep_ms(i % 3 * 15);
        }
        for (j = 0; j < 2; j++, next = !next) {
            conf_unlock(lk[next]);
            t_poll_until(atomic_load(&w[next].done), 10000);
            conf_waiter_join(&w[next], HF_OK);
            conf_unlock(w[next].lk);
        }
    }
    hf_close(a);
    hf_close(b);
}

/* Cancel `n` waiters of one client while another holds the key. */
static void cancel_waiters(int n, unsigned flags, void (*cancel)(hf_client *))
{
    struct hf_lock_opts opts = conf_opts(0, flags);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct conf_waiter w[8];

    for (int i = 0; i < n; i++)
        conf_waiter_start(&w[i], b, key, -1, &opts);
    t_sleep_ms(100);
    for (int i = 0; i < n; i++)
        CHECK(!atomic_load(&w[i].done));
    /* A thread that had not begun to wait is not touched: call again. */
    for (int i = 0; i < n; i++)
        while (!atomic_load(&w[i].done)) {
            cancel(b);
            t_sleep_ms(20);
        }
    for (int i = 0; i < n; i++)
        conf_waiter_join(&w[i], HF_CANCELED);
    CHECK_LE(conf_look(a, key).waiters, 0);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    conf_check_free(key);
    conf_unlock(conf_try(b, key, NULL));
    hf_close(a);
    hf_close(b);
}

TEST(cancel_from_another_thread_ends_every_wait_and_leaves_nothing)
{
    cancel_waiters(8, 0, hf_cancel);
}

TEST(cancel_ends_fair_waits_and_leaves_nothing)
{
    cancel_waiters(8, HF_FAIR, hf_cancel);
}

TEST(cancel_ends_polling_waits_and_leaves_nothing)
{
    cancel_waiters(8, HF_POLL, hf_cancel);
}

static hf_client *signal_client;

static void on_signal(int sig)
{
    (void)sig;
    hf_cancel(signal_client);
}

static void raise_signal(hf_client *client)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    signal_client = client;
    sigaction(SIGUSR1, &sa, NULL);
    raise(SIGUSR1);
}

TEST(cancel_from_a_signal_handler_ends_every_wait)
{
    cancel_waiters(4, 0, raise_signal);
}

static void *signal_main_later(void *arg)
{
    while (!atomic_load((atomic_bool *)arg)) {
        t_sleep_ms(50);
        kill(getpid(), SIGUSR1);
    }
    return NULL;
}

TEST(a_signal_handler_cancels_the_thread_that_it_interrupts)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL), *none = NULL;
    atomic_bool done = false;
    pthread_t thread;

    signal_client = b;
    sigaction(SIGUSR1, &sa, NULL);
    thread = conf_thread(signal_main_later, &done);
    CHECK_STATUS(hf_acquire(b, key, -1, NULL, &none, &t_err), HF_CANCELED);
    atomic_store(&done, true);
    pthread_join(thread, NULL);
    signal(SIGUSR1, SIG_IGN);
    conf_unlock(lk);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
}

TEST(one_cancel_is_enough_whatever_the_waiter_was_doing)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);

    for (int i = 0; i < conf_times(100, 40); i++) {
        struct conf_waiter w;
        int64_t end = t_now_ms() + 20000;

        conf_waiter_start(&w, b, key, -1, NULL);
        if (conf_look(a, key).waiters < 0)
            t_sleep_ms(20 + i % 30);
        else
            while (conf_look(a, key).waiters < 1)
                CHECK_LT(t_now_ms(), end);
        for (volatile int spin = i % 10 * 300; spin > 0;)
            spin--;
        hf_cancel(b);
        /* Not only when it would have polled again. */
        t_poll_until(atomic_load(&w.done), 5000);
        conf_waiter_join(&w, HF_CANCELED);
    }
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(cancel_does_not_touch_calls_that_begin_later)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk, *none = NULL;

    hf_cancel(b);
    lk = conf_try(b, key, NULL);
    hf_cancel(b);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    lk = conf_try(a, key, NULL);
    hf_cancel(b);
    CHECK_STATUS(hf_acquire(b, key, 30, NULL, &none, &t_err), HF_TIMEOUT);
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

TEST(cancel_is_for_one_client_only)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open(), *c = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct conf_waiter w;

    conf_waiter_start(&w, b, key, -1, NULL);
    conf_await_waiters(a, key, 1);
    hf_cancel(a);
    hf_cancel(c);
    t_sleep_ms(100);
    CHECK(!atomic_load(&w.done));
    conf_unlock(lk);
    conf_waiter_join(&w, HF_OK);
    conf_unlock(w.lk);
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

TEST(max_tries_are_counted_and_end_in_a_timeout)
{
    static const unsigned flags[] = {HF_POLL, 0, HF_POLL | HF_FAIR};
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL), *none = NULL;

    for (int i = 0; i < 3; i++) {
        struct hf_lock_opts opts = conf_opts(0, flags[i]);

        opts.max_tries = flags[i] & HF_POLL ? 3 : 1;
        opts.retry_ms = 10;
        CHECK_STATUS(hf_acquire(b, key, -1, &opts, &none, &t_err), HF_TIMEOUT);
        CHECK_LE(conf_look(a, key).waiters, 0);
    }
    conf_unlock(lk);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
}

TEST(a_waiter_that_gives_up_does_not_hold_up_those_behind_it)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open(), *c = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct conf_waiter brief, patient;

    conf_waiter_start(&brief, b, key, conf_ms(400), NULL);
    conf_await_waiters(a, key, 1);
    conf_waiter_start(&patient, c, key, -1, NULL);
    conf_waiter_join(&brief, HF_TIMEOUT);
    conf_unlock(lk);
    t_poll_until(atomic_load(&patient.done), 20000);
    conf_waiter_join(&patient, HF_OK);
    conf_unlock(patient.lk);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

TEST(a_wait_of_many_threads_ends_for_each_at_its_own_time)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct conf_waiter w[8];

    for (int i = 0; i < 8; i++)
        conf_waiter_start(&w[i], b, key, 40 * (8 - i), NULL);
    for (int i = 0; i < 8; i++) {
        conf_waiter_join(&w[i], HF_TIMEOUT);
        CHECK_GE(w[i].ended - w[i].began, 40 * (8 - i) - 1);
    }
    CHECK_LE(conf_look(a, key).waiters, 0);
    conf_unlock(lk);
    conf_check_free(key);
    hf_close(a);
    hf_close(b);
}
