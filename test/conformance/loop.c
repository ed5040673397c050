/* SPDX-License-Identifier: MIT
 *
 * loop.c - what an event loop asks for that is no lock: to release, to inspect,
 * to check, to list.
 *
 * Each ends in exactly one event, HF_ANSWERED, with what the call that waits
 * would have returned.
 */
#include "conf.h"

#include <stdio.h>

/* The answer to `req`, whose user data is the address of `user`. */
static hf_status answer(hf_client *client, hf_request *req, const void *user)
{
    struct hf_event event = conf_event(client);

    CHECK_EQ(event.type, HF_ANSWERED);
    CHECK(event.request == req);
    CHECK(event.user == user);
    t_err = event.error;
    return event.error.status;
}

static hf_status release(hf_client *client, hf_lock *lk)
{
    int user;
    hf_request *req;

    hf_release_start(lk, &user, &req);
    CHECK(req != NULL);
    return answer(client, req, &user);
}

TEST(a_release_that_was_started_frees_the_lock)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();

    CHECK_OK(release(client, conf_try(client, key, NULL)));
    conf_check_free(key);
    conf_no_event(client);
    hf_close(client);
}

TEST(a_release_without_a_request_has_no_event)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct hf_info info;

    hf_release_start(conf_try(client, key, NULL), NULL, NULL);
    t_poll_until((info = conf_look(client, key)).held == false, 20000);
    conf_no_event(client);
    hf_release_start(NULL, NULL, NULL);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_release_that_was_started_lets_the_next_in)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    struct conf_waiter here, there;

    hf_lock *lk = conf_try(a, key, NULL);
    conf_waiter_start(&here, a, key, 30000, NULL);
    t_poll_until(atomic_load(&here.begun), 20000);
    CHECK_OK(release(a, lk));
    conf_waiter_join(&here, HF_OK);
    conf_waiter_start(&there, b, key, 30000, NULL);
    conf_await_waiters(b, key, 1);
    CHECK_OK(release(a, here.lk));
    conf_waiter_join(&there, HF_OK);
    CHECK_OK(release(b, there.lk));
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_release_that_was_started_of_a_lost_lock_says_so)
{
    struct hf_lock_opts opts = conf_opts(60000, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk;

    opts.max_hold_ms = 20;
    lk = conf_try(client, key, &opts);
    t_poll_until(!hf_held(lk), 20000);
    conf_gone(client);
    CHECK_STATUS(release(client, lk), HF_LOST);
    conf_no_event(client);
    lk = conf_lock(client, key, &opts);
    t_poll_until(!hf_held(lk), 20000);
    hf_release_start(lk, NULL, NULL);
    conf_no_event(client);
    hf_close(client);
}

TEST(a_release_that_was_started_counts_down)
{
    struct hf_lock_opts opts = conf_opts(60000, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *outer, *inner;

    opts.owner = "me";
    outer = conf_try(client, key, &opts);
    inner = conf_try(client, key, &opts);
    CHECK_OK(release(client, inner));
    CHECK(hf_held(outer));
    conf_check_busy(key);
    CHECK_OK(release(client, outer));
    conf_check_free(key);
    hf_close(client);
}

TEST(a_release_that_was_started_lets_the_lock_linger)
{
    struct hf_lock_opts opts = conf_opts(60000, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    uint64_t fence;
    hf_lock *lk;
    int i;

    opts.linger_ms = 60000;
    lk = conf_try(client, key, &opts);
    fence = hf_fence(lk);
    for (i = 0; i < 3; i++) {
        CHECK_OK(release(client, lk));
        lk = conf_try(client, key, &opts);
        CHECK_EQ(hf_fence(lk), fence);
    }
    conf_unlock(lk);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_client_may_be_closed_while_releases_are_under_way)
{
    hf_client *client = conf_open();
    hf_request *req;
    char name[16];
    int i, n = conf_times(50, 5);

    for (i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%d", i);
        hf_release_start(conf_try(client, conf_key(name), NULL), NULL,
                         i % 2 ? &req : NULL);
    }
    hf_close(client);
    for (i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%d", i);
        conf_check_free(conf_key(name));
    }
}

TEST(an_inspection_that_was_started_says_who_holds)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);
    struct hf_info info = HF_INFO_INIT;
    hf_request *req;

    CHECK_OK(hf_inspect_start(client, key, &info, &req, &req, &t_err));
    CHECK_OK(answer(client, req, &req));
    CHECK(info.held);
    CHECK_EQ(info.size, sizeof(info));
    CHECK_EQ(info.fence, hf_fence(lk));
    conf_unlock(lk);
    CHECK_OK(hf_inspect_start(client, key, &info, &info, &req, &t_err));
    CHECK_OK(answer(client, req, &info));
    CHECK(!info.held);
    CHECK_STATUS(hf_inspect_start(client, "", &info, NULL, &req, &t_err),
                 HF_INVALID);
    info.size = 3;
    CHECK_STATUS(hf_inspect_start(client, key, &info, NULL, &req, &t_err),
                 HF_INVALID);
    hf_close(client);
}

TEST(a_check_that_was_started_knows_the_grant)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);
    uint64_t fence = hf_fence(lk);
    hf_request *req;

    conf_needs(HF_TRAIT_FENCED);
    CHECK_OK(hf_check_start(client, key, fence, &req, &req, &t_err));
    CHECK_OK(answer(client, req, &req));
    conf_unlock(lk);
    CHECK_OK(hf_check_start(client, key, fence, &req, &req, &t_err));
    CHECK_STATUS(answer(client, req, &req), HF_LOST);
    hf_close(client);
}

TEST(a_listing_that_was_started_finds_every_lock)
{
    hf_client *client = conf_open();
    struct hf_change change = HF_CHANGE_INIT;
    hf_lock *locks[5];
    hf_request *req;
    char name[16];
    int i, n = 0;

    for (i = 0; i < 5; i++) {
        snprintf(name, sizeof(name), "%d", i);
        locks[i] = conf_try(client, conf_key(name), NULL);
    }
    CHECK_OK(hf_list_start(client, conf_prefix(), &req, &req, &t_err));
    CHECK_OK(answer(client, req, &req));
    while (hf_list_next(req, &change)) {
        CHECK(!strncmp(change.key, conf_prefix(), strlen(conf_prefix())));
        CHECK(change.info.held);
        n++;
    }
    CHECK_EQ(n, 5);
    CHECK_OK(hf_list_start(client, conf_prefix(), &req, &req, &t_err));
    CHECK_OK(answer(client, req, &req));
    CHECK(hf_list_next(req, &change));
    hf_list_end(req);
    CHECK_OK(hf_list_start(client, conf_prefix(), &req, &req, &t_err));
    CHECK_OK(answer(client, req, &req));
    for (i = 0; i < 5; i++)
        conf_unlock(locks[i]);
    hf_close(client); /* ends the listing that was not read */
}

struct reader {
    hf_request *req;
    pthread_barrier_t *begin;
    int n;
};

static void *reader_main(void *arg)
{
    struct hf_change change = HF_CHANGE_INIT;
    struct reader *reader = arg;
    int i;

    pthread_barrier_wait(reader->begin);
    for (i = 0; i < reader->n; i++)
        CHECK(hf_list_next(reader->req, &change));
    return NULL;
}

/* Neither comes to the end: that is the call that ends the request. */
TEST(two_threads_read_one_listing)
{
    enum { LOCKS = 400 };
    hf_client *client = conf_open();
    int half = conf_times(LOCKS / 2, 10);
    struct hf_change change = HF_CHANGE_INIT;
    struct reader readers[2];
    pthread_barrier_t begin;
    hf_lock *locks[LOCKS];
    pthread_t threads[2];
    char name[16];
    int i, n, round;

    half = half < LOCKS / 2 ? half : LOCKS / 2;
    n = 2 * half;
    for (i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "%d", i);
        locks[i] = conf_try(client, conf_key(name), NULL);
    }
    CHECK_EQ(pthread_barrier_init(&begin, NULL, 2), 0);
    for (round = 0; round < conf_times(50, 10); round++) {
        hf_request *req;

        CHECK_OK(hf_list_start(client, conf_prefix(), &req, &req, &t_err));
        CHECK_OK(answer(client, req, &req));
        for (i = 0; i < 2; i++) {
            readers[i] = (struct reader){req, &begin, half - 1};
            CHECK_EQ(
                pthread_create(&threads[i], NULL, reader_main, &readers[i]), 0);
        }
        for (i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        CHECK(hf_list_next(req, &change));
        CHECK(hf_list_next(req, &change));
        CHECK(!hf_list_next(req, &change));
    }
    pthread_barrier_destroy(&begin);
    for (i = 0; i < n; i++)
        conf_unlock(locks[i]);
    hf_close(client);
}

TEST(every_question_has_one_answer_also_when_it_is_cancelled)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct hf_info info = HF_INFO_INIT;
    struct hf_event event = HF_EVENT_INIT;
    int i, n = conf_times(100, 10);
    hf_request *req;

    for (i = 0; i < n; i++) {
        if (i % 3 == 0)
            CHECK_OK(hf_inspect_start(client, key, &info, NULL, &req, &t_err));
        else if (i % 3 == 1)
            CHECK_OK(hf_check_start(client, key, 7, NULL, &req, &t_err));
        else
            CHECK_OK(hf_list_start(client, key, NULL, &req, &t_err));
        if (i % 2)
            hf_request_cancel(req);
        if (i == n / 2)
            hf_cancel(client);
    }
    for (i = 0; i < n; i++) {
        event = conf_event(client);
        CHECK_EQ(event.type, HF_ANSWERED);
        CHECK(event.error.status == HF_OK || event.error.status == HF_LOST ||
              event.error.status == HF_CANCELED);
    }
    conf_no_event(client);
    CHECK_OK(hf_inspect_start(client, key, &info, NULL, &req, &t_err));
    hf_close(client); /* and one that nobody waits for */
}
