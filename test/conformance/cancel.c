/* SPDX-License-Identifier: MIT
 *
 * cancel.c - a canceler ends what it was given to, whichever comes first.
 *
 * hf_cancel() fails most of these: it does nothing to a call that has not yet
 * begun.
 */
#include "conf.h"

#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static hf_canceler *canceler_of(hf_client *client)
{
    hf_canceler *canceler;

    CHECK_OK(hf_canceler_new(client, &canceler, &t_err));
    return canceler;
}

static struct hf_lock_opts opts_with(hf_canceler *canceler)
{
    struct hf_lock_opts opts = conf_opts(30000, 0);

    opts.canceler = canceler;
    return opts;
}

TEST(a_call_that_begins_after_its_canceler_was_used_is_cancelled)
{
    const char *key = conf_key("k"), *keys[2] = {key, conf_key("k2")};
    hf_client *client = conf_open();
    hf_canceler *canceler = canceler_of(client);
    struct hf_lock_opts opts = opts_with(canceler);
    hf_lock *lk, *locks[2];
    hf_request *req;

    hf_canceler_cancel(canceler);
    CHECK_STATUS(hf_acquire(client, key, -1, &opts, &lk, &t_err), HF_CANCELED);
    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &lk, &t_err), HF_CANCELED);
    CHECK_STATUS(hf_acquire_all(client, keys, 2, -1, &opts, locks, &t_err),
                 HF_CANCELED);
    CHECK_STATUS(hf_acquire_start(client, key, -1, &opts, NULL, &req, &t_err),
                 HF_CANCELED);
    CHECK_STATUS(hf_acquire_all_start(client, keys, 2, -1, &opts, locks, NULL,
                                      &req, &t_err),
                 HF_CANCELED);
    conf_no_event(client);
    hf_canceler_reset(canceler);
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    conf_unlock(lk);
    hf_canceler_free(canceler);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_canceler_ends_its_own_calls_and_no_others)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_canceler *canceler = canceler_of(b);
    struct hf_lock_opts opts = opts_with(canceler);
    struct conf_waiter with[4], without;
    hf_lock *lk = conf_try(a, key, NULL);
    int i;

    conf_waiter_start(&without, b, key, -1, NULL);
    for (i = 0; i < 4; i++)
        conf_waiter_start(&with[i], b, key, -1, &opts);
    hf_canceler_cancel(canceler);
    for (i = 0; i < 4; i++)
        conf_waiter_join(&with[i], HF_CANCELED);
    CHECK(!atomic_load(&without.done));
    conf_unlock(lk);
    conf_waiter_join(&without, HF_OK);
    conf_unlock(without.lk);
    hf_canceler_free(canceler);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_canceler_ends_requests_of_an_event_loop)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_canceler *canceler = canceler_of(b);
    struct hf_lock_opts opts = opts_with(canceler);
    hf_lock *lk = conf_try(a, key, NULL);
    struct hf_event event;
    hf_request *req;
    int i, n = conf_times(20, 3);

    for (i = 0; i < n; i++)
        CHECK_OK(hf_acquire_start(b, key, -1, &opts, NULL, &req, &t_err));
    hf_canceler_cancel(canceler);
    hf_canceler_free(canceler); /* They go on to see it. */
    for (i = 0; i < n; i++) {
        event = conf_event(b);
        CHECK_EQ(event.type, HF_FAILED);
        CHECK_EQ(event.error.status, HF_CANCELED);
    }
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

static hf_canceler *handler_cancels;

static void on_alarm(int sig)
{
    (void)sig;
    hf_canceler_cancel(handler_cancels);
}

/* The signal comes at any time around the beginning of the call, and no call
 * waits for ever. */
TEST_TIMEOUT(a_signal_handler_never_misses_a_call, 120)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    struct hf_lock_opts opts;
    struct itimerval timer = {{0, 0}, {0, 0}};
    struct sigaction act = {.sa_handler = on_alarm};
    hf_lock *lk = conf_try(a, key, NULL), *other;
    int i, n = conf_times(500, 10);

    handler_cancels = canceler_of(b);
    opts = opts_with(handler_cancels);
    CHECK_EQ(sigaction(SIGALRM, &act, NULL), 0);
    for (i = 0; i < n; i++) {
        hf_canceler_reset(handler_cancels);
        timer.it_value.tv_usec = 1 + i * 7 % 300;
        CHECK_EQ(setitimer(ITIMER_REAL, &timer, NULL), 0);
        CHECK_STATUS(hf_acquire(b, key, -1, &opts, &other, &t_err),
                     HF_CANCELED);
    }
    conf_unlock(lk);
    hf_canceler_free(handler_cancels);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

static void *cancel_again_and_again(void *canceler)
{
    int i;

    for (i = 0; i < 1000; i++)
        hf_canceler_cancel(canceler);
    return NULL;
}

TEST(a_canceler_may_be_used_by_many_threads_and_after_closing)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_canceler *canceler = canceler_of(b), *foreign = canceler_of(a);
    struct hf_lock_opts opts = opts_with(canceler);
    hf_lock *lk = conf_try(a, key, NULL), *other;
    struct conf_waiter waiters[8];
    pthread_t threads[4];
    int i;

    for (i = 0; i < 8; i++)
        conf_waiter_start(&waiters[i], b, key, -1, &opts);
    for (i = 0; i < 4; i++)
        threads[i] = conf_thread(cancel_again_and_again, canceler);
    for (i = 0; i < 8; i++)
        conf_waiter_join(&waiters[i], HF_CANCELED);
    for (i = 0; i < 4; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    opts.canceler = foreign;
    CHECK_STATUS(hf_acquire(b, key, 0, &opts, &other, &t_err), HF_INVALID);
    conf_unlock(lk);
    hf_close(b);
    hf_canceler_cancel(canceler);
    hf_canceler_free(canceler);
    hf_canceler_free(foreign);
    hf_canceler_free(NULL);
    hf_canceler_cancel(NULL);
    hf_close(a);
}

/* The lock keeps the memory of its client, and no descriptor. */
TEST(the_last_canceler_of_a_closed_client_leaves_no_descriptor)
{
    hf_client *client = conf_open();
    hf_canceler *one = canceler_of(client), *two = canceler_of(client);
    hf_lock *lk = conf_try(client, conf_key("k"), NULL);
    int kept;

    hf_close(client);
    kept = t_count_fds();
    hf_canceler_free(one);
    hf_canceler_cancel(two);
    hf_canceler_free(two);
    CHECK_LT(t_count_fds(), kept);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
}
