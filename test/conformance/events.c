/* SPDX-License-Identifier: MIT
 *
 * events.c - the interface for programs with an event loop.
 *
 * Every request ends in exactly one event, GRANTED or FAILED, with its user
 * data; a lock that was lost adds a GONE.  The descriptor is readable while
 * events wait and at no other time.  Waiting needs no thread per request.
 */
#include "conf.h"

#include <fcntl.h>
#include <stdio.h>

static hf_request *start(hf_client *client, const char *key, int64_t wait_ms,
                         const struct hf_lock_opts *opts, intptr_t user)
{
    hf_request *req = NULL;

    CHECK_OK(hf_acquire_start(client, key, wait_ms, opts, (void *)user, &req,
                              &t_err));
    CHECK(req != NULL);
    return req;
}

static void expect_failed(hf_client *client, hf_request *req, intptr_t user,
                          hf_status status)
{
    struct hf_event event = conf_event(client);

    CHECK_EQ(event.type, HF_FAILED);
    CHECK(event.request == req);
    CHECK_EQ((intptr_t)event.user, user);
    t_err = event.error;
    t_check_status(__FILE__, __LINE__, "the event's &t_err", event.error.status,
                   status);
}

static hf_lock *expect_granted(hf_client *client, hf_request *req,
                               intptr_t user)
{
    struct hf_event event = conf_event(client);

    CHECK_EQ(event.type, HF_GRANTED);
    CHECK(event.request == req);
    CHECK_EQ((intptr_t)event.user, user);
    CHECK(event.lock != NULL);
    CHECK(hf_held(event.lock));
    return event.lock;
}

TEST(a_request_for_a_free_lock_is_granted)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    int fd = hf_events_fd(client);
    hf_lock *lk;

    CHECK_GE(fd, 0);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    conf_no_event(client);
    lk = expect_granted(client, start(client, key, 0, NULL, 7), 7);
    CHECK_STR(hf_key(lk), key);
    CHECK_EQ(hf_events_fd(client), fd);
    conf_no_event(client);
    conf_check_busy(key);
    conf_unlock(lk);
    conf_no_event(client);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_request_for_a_taken_lock_fails_or_is_granted_later)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    int64_t began = t_now_ms();
    hf_request *req;

    expect_failed(b, start(b, key, 0, NULL, 1), 1, HF_BUSY);
    expect_failed(b, start(b, key, 80, NULL, 2), 2, HF_TIMEOUT);
    CHECK_GE(t_now_ms() - began, 79);
    req = start(b, key, -1, NULL, 3);
    CHECK(!conf_readable(hf_events_fd(b), 50));
    conf_no_event(b);
    conf_unlock(lk);
    lk = expect_granted(b, req, 3);
    conf_unlock(lk);
    conf_no_event(b);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(events_come_without_anybody_asking_for_the_descriptor)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct hf_event event = HF_EVENT_INIT;

    start(client, key, 0, NULL, 1);
    t_poll_until(hf_next_event(client, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    start(client, conf_key("2"), 0, NULL, 2);
    t_poll_until(conf_readable(hf_events_fd(client), 0), 20000);
    conf_unlock(conf_event(client).lock);
    conf_unlock(event.lock);
    conf_no_event(client);
    hf_close(client);
}

TEST(a_canceled_request_fails_and_leaves_nothing)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    hf_request *one = start(b, key, -1, NULL, 1);
    hf_request *two = start(b, key, -1, NULL, 2);

    CHECK_GE(hf_request_place(one), 0);
    CHECK_GE(hf_request_place(two), 0);
    hf_request_cancel(one);
    hf_request_cancel(one);
    expect_failed(b, one, 1, HF_CANCELED);
    conf_no_event(b);
    hf_cancel(b);
    expect_failed(b, two, 2, HF_CANCELED);
    conf_no_event(b);
    hf_close(b); /* What was on the wire has come back, and was taken back. */
    CHECK_LE(conf_look(a, key).waiters, 0);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    conf_check_free(key);
    hf_close(a);
}

TEST(a_cancel_that_races_a_grant_brings_one_event_and_no_stray_lock)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();

    for (int i = 0; i < conf_times(100, 20); i++) {
        hf_lock *lk = conf_lock(a, key, NULL);
        hf_request *req = start(b, key, -1, NULL, i);
        struct hf_event event = HF_EVENT_INIT;

        if (i % 4 == 0)
            t_sleep_ms(1);
        if (i % 2) {
            conf_unlock(lk);
            hf_request_cancel(req);
        } else {
            hf_request_cancel(req);
            conf_unlock(lk);
        }
        event = conf_event(b);
        CHECK_EQ((intptr_t)event.user, i);
        CHECK(event.request == req);
        if (event.type == HF_GRANTED) {
            CHECK(hf_held(event.lock));
            conf_unlock(event.lock);
        } else {
            CHECK_EQ(event.type, HF_FAILED);
            CHECK_EQ(event.error.status, HF_CANCELED);
        }
        conf_no_event(b);
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_canceled_request_fails_soon_whatever_it_was_doing)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);

    for (int i = 0; i < conf_times(300, 100); i++) {
        hf_request *req = start(b, key, -1, NULL, i);

        for (volatile int spin = i % 50 * 400; spin > 0;)
            spin--;
        if (i % 3)
            hf_request_cancel(req);
        else
            hf_cancel(b);
        /* Not only when it would have polled again. */
        CHECK(conf_readable(hf_events_fd(b), 5000));
        expect_failed(b, req, i, HF_CANCELED);
    }
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_lost_lock_brings_one_gone_with_its_user_data)
{
    struct hf_lock_opts brief = conf_opts(200, HF_MANUAL);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = expect_granted(client, start(client, key, 0, &brief, 5), 5);
    struct hf_event event = conf_gone(client);

    CHECK(event.lock == lk);
    CHECK_EQ((intptr_t)event.user, 5);
    CHECK_EQ(event.reason, HF_LOSS_EXPIRED);
    CHECK(!hf_held(lk));
    conf_no_event(client);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    conf_no_event(client);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_lock_taken_by_a_call_brings_gone_too)
{
    struct hf_lock_opts brief = conf_opts(400, HF_MANUAL);
    hf_client *client = conf_open();
    int fd = hf_events_fd(client);
    hf_lock *lk = conf_try(client, conf_key("k"), &brief);
    struct hf_event event = HF_EVENT_INIT;

    CHECK(conf_readable(fd, 20000));
    event = conf_gone(client);
    CHECK(event.lock == lk);
    CHECK(event.user == NULL);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    conf_no_event(client);
    hf_close(client);
}

TEST(a_released_lock_brings_no_event_any_more)
{
    struct hf_lock_opts brief = conf_opts(60, HF_MANUAL);
    hf_client *client = conf_open();
    struct hf_event event = HF_EVENT_INIT;

    for (int i = 0; i < 10; i++) {
        hf_lock *lk = conf_lock(client, conf_key("k"), &brief);

        t_poll_until(!hf_held(lk), 20000);
        t_sleep_ms(i % 2 * 20);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        /* The handle is ended: no event may name it now. */
        CHECK(!hf_next_event(client, &event));
    }
    t_sleep_ms(100);
    conf_no_event(client);
    hf_close(client);
}

TEST(break_brings_gone)
{
    struct hf_lock_opts opts = conf_opts(1500, 0);
    const char *key = conf_key("k");
    struct hf_event event = HF_EVENT_INIT;
    hf_client *a, *b;
    hf_lock *lk;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    lk = expect_granted(a, start(a, key, 0, &opts, 9), 9);
    CHECK_OK(hf_break(b, key, hf_fence(lk), &t_err));
    event = conf_gone(a);
    CHECK_EQ((intptr_t)event.user, 9);
    CHECK_NE(event.reason, HF_LOSS_NONE);
    CHECK_EQ(event.reason, hf_lost_reason(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

/* The workers of one client, 64 where the service answers and cannot keep up,
 * the renewers of the other, and a few: less than the requests that wait. */
#define MOST_THREADS 80

/* `n` requests on one key wait in one client; each is granted in its time. */
static void wait_without_threads(int n, unsigned flags)
{
    struct hf_lock_opts opts = conf_opts(0, flags);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    int threads = t_count_threads(), fds = t_count_fds();
    char *seen = calloc((size_t)n, 1);

    CHECK(seen != NULL);
    for (int i = 0; i < n; i++)
        start(b, key, -1, &opts, i);
    t_sleep_ms(100);
    CHECK_LE(t_count_threads(), threads + MOST_THREADS);
    if (!(flags & HF_FAIR)) /* A place of one's own may be a descriptor. */
        CHECK_LE(t_count_fds(), fds + 8);
    conf_no_event(b);
    conf_unlock(lk);
    for (int i = 0; i < n; i++) {
        struct hf_event event = conf_event(b);
        intptr_t user = (intptr_t)event.user;

        CHECK_EQ(event.type, HF_GRANTED);
        CHECK(user >= 0 && user < n && !seen[user]);
        seen[user] = 1;
        conf_unlock(event.lock);
    }
    conf_no_event(b);
    free(seen);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST_TIMEOUT(two_thousand_requests_wait_without_a_thread_each, 120)
{
    wait_without_threads(conf_times(2000, 200), 0);
}

TEST_TIMEOUT(two_hundred_fair_requests_wait_without_a_thread_each, 120)
{
    wait_without_threads(conf_times(200, 120), HF_FAIR);
}

TEST_TIMEOUT(requests_on_many_keys_wait_without_a_thread_each, 120)
{
    enum { MANY = 500 };
    static hf_lock *lk[MANY];
    static char keys[MANY][80];
    hf_client *a = conf_open(), *b = conf_open();
    int n = conf_times(MANY, 120), threads = t_count_threads();

    for (int i = 0; i < n; i++) {
        snprintf(keys[i], sizeof(keys[i]), "%s%d", conf_prefix(), i);
        lk[i] = conf_try(a, keys[i], NULL);
        start(b, keys[i], -1, NULL, i);
    }
    t_sleep_ms(50);
    CHECK_LE(t_count_threads(), threads + MOST_THREADS);
    conf_no_event(b);
    for (int i = 0; i < n; i++)
        conf_unlock(lk[i]);
    for (int i = 0; i < n; i++) {
        struct hf_event event = conf_event(b);

        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_STR(hf_key(event.lock), keys[(intptr_t)event.user]);
        conf_unlock(event.lock);
    }
    conf_no_event(b);
    CHECK_EQ(conf_count_listed(a, conf_prefix()), 0);
    hf_close(a);
    hf_close(b);
}

TEST(cancel_fails_two_thousand_requests_and_leaves_nothing)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    int n = conf_times(2000, 200);

    for (int i = 0; i < n; i++)
        start(b, key, -1, NULL, i);
    hf_cancel(b);
    for (int i = 0; i < n; i++) {
        struct hf_event event = conf_event(b);

        CHECK_EQ(event.type, HF_FAILED);
        CHECK_EQ(event.error.status, HF_CANCELED);
    }
    conf_no_event(b);
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_queued_request_knows_its_place)
{
    const char *key = conf_key("k");
    hf_client *a, *b, *c;
    hf_request *one, *two;
    hf_lock *lk;

    conf_needs(HF_TRAIT_QUEUED);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    lk = conf_try(a, key, NULL);
    one = start(b, key, -1, NULL, 1);
    conf_await_waiters(a, key, 1);
    two = start(c, key, -1, NULL, 2);
    conf_await_waiters(a, key, 2);
    CHECK(hf_request_place(one) == 0 || hf_request_place(one) == 1);
    CHECK(hf_request_place(two) == 0 || hf_request_place(two) == 2);
    conf_unlock(lk);
    conf_unlock(expect_granted(b, one, 1));
    conf_unlock(expect_granted(c, two, 2));
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

TEST(an_event_nobody_takes_dies_with_its_client)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();

    start(b, key, 0, NULL, 1);
    CHECK(conf_readable(hf_events_fd(b), 20000));
    start(b, key, -1, NULL, 2);
    start(b, key, 0, NULL, 3);
    t_sleep_ms(30);
    hf_close(b);
    hf_close(a);
    conf_check_free(key);
}
