/* SPDX-License-Identifier: MIT
 *
 * lent.c - threads that are lent to the client: hf_lend() and hf_work().
 *
 * What such a thread has ended it takes as an event, and the descriptor stays
 * as it was.  What must wait goes on without the thread.  Whoever lends, cancels
 * or starts without lending, every request ends in one event.
 */
#include "conf.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Begin to acquire with this thread lent, and let it work.  False: a thread of
 * the client was awake and came first. */
static bool lent_start(hf_client *client, const char *key, int64_t wait_ms,
                       hf_request **req)
{
    hf_lend(client);
    CHECK_OK(hf_acquire_start(client, key, wait_ms, NULL, client, req, &t_err));
    return hf_work(client);
}

/* The event of what this thread has done, or of what another one has. */
static struct hf_event lent_event(hf_client *client, bool done)
{
    struct hf_event event = HF_EVENT_INIT;

    if (!done)
        return conf_event(client);
    if (getenv("HF_TEST_BACKGROUND")) { /* It waits to be connected. */
        t_poll_until(hf_next_event(client, &event), 30000);
        return event;
    }
    CHECK(!conf_readable(hf_events_fd(client), 0));
    CHECK(hf_next_event(client, &event));
    return event;
}

TEST(a_lent_thread_takes_its_events_without_the_descriptor)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    int rounds = conf_times(50, 10), own = 0;
    struct hf_event event;
    hf_request *req;
    bool done;

    CHECK_GE(hf_events_fd(client), 0);
    for (int i = 0; i < rounds; i++) {
        done = lent_start(client, key, -1, &req);
        event = lent_event(client, done);
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK(event.request == req && event.user == client);
        CHECK(hf_held(event.lock));
        own += done;
        hf_lend(client);
        hf_release_start(event.lock, client, &req);
        CHECK(req != NULL);
        done = hf_work(client);
        event = lent_event(client, done);
        CHECK_EQ(event.type, HF_ANSWERED);
        CHECK_EQ(event.error.status, HF_OK);
        CHECK(event.request == req);
        own += done;
        conf_no_event(client);
    }
    CHECK_GE(own, rounds); /* of twice as many */
    CHECK(!hf_work(client));
    hf_close(client);
    conf_check_free(key);
}

TEST(what_a_lent_thread_cannot_end_comes_as_an_event)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct hf_event event;
    hf_request *req;

    lent_start(b, key, -1, &req);
    conf_no_event(b);
    conf_unlock(lk);
    event = conf_event(b);
    CHECK_EQ(event.type, HF_GRANTED);
    lk = event.lock;
    lent_start(a, key, 50, &req);
    event = conf_event(a);
    CHECK_EQ(event.type, HF_FAILED);
    CHECK_EQ(event.error.status, HF_TIMEOUT);
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

/* A loud event behind a quiet one makes the descriptor readable. */
TEST(a_loss_is_told_beside_the_event_of_a_lent_thread)
{
    struct hf_lock_opts brief = conf_opts(300, HF_MANUAL);
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), &brief);
    int fd = hf_events_fd(client);
    struct hf_event event = HF_EVENT_INIT;
    bool granted = false, gone = false;
    hf_request *req;

    lent_start(client, conf_key("other"), -1, &req);
    CHECK(conf_readable(fd, 20000));
    while (!granted || !gone) { /* in whichever order */
        t_poll_until(hf_next_event(client, &event), 20000);
        if (event.type == HF_GRANTED)
            conf_unlock(event.lock);
        else if (event.type == HF_GONE)
            CHECK(event.lock == lk);
        granted = granted || event.type == HF_GRANTED;
        gone = gone || event.type == HF_GONE;
    }
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    conf_no_event(client);
    hf_close(client);
}

/* ---- many at once ------------------------------------------------------- */

static struct {
    hf_client *client;
    const char *keys[2];
    atomic_int begun, ended, threads;
} many;

static void lent_take(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(client, &event)) {
        atomic_fetch_add(&many.ended, 1);
        if (event.type == HF_GRANTED)
            hf_release_start(event.lock, NULL, NULL);
    }
}

static void *lent_run(void *arg)
{
    int rounds = conf_times(200, 30), at = atomic_fetch_add(&many.threads, 1);
    hf_request *req;

    (void)arg;
    for (int i = 0; i < rounds; i++) {
        bool lends = (i + at) % 3 > 0;

        if (lends)
            hf_lend(many.client);
        CHECK_OK(hf_acquire_start(many.client, many.keys[i % 2],
                                  i % 5 ? -1 : i % 7, NULL, NULL, &req,
                                  &t_err));
        atomic_fetch_add(&many.begun, 1);
        if (lends)
            hf_work(many.client);
        lent_take(many.client);
    }
    return NULL;
}

TEST_TIMEOUT(threads_that_lend_and_threads_that_do_not_all_get_events, 120)
{
    enum { THREADS = 6 };
    pthread_t threads[THREADS];
    int fd;

    many.client = conf_open();
    fd = hf_events_fd(many.client);
    many.keys[0] = conf_key("a");
    many.keys[1] = conf_key("b");
    for (int i = 0; i < THREADS; i++)
        threads[i] = conf_thread(lent_run, NULL);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    while (atomic_load(&many.ended) < atomic_load(&many.begun)) {
        CHECK(conf_readable(fd, 20000));
        lent_take(many.client);
    }
    CHECK_EQ(atomic_load(&many.ended), atomic_load(&many.begun));
    hf_close(many.client);
    conf_check_free(many.keys[0]);
    conf_check_free(many.keys[1]);
}
