/* SPDX-License-Identifier: MIT
 *
 * lifetime.c - opening, closing, and what is left afterwards: nothing.
 *
 * The runner itself counts descriptors and threads around every test; here are
 * the cases that make it hard.
 */
#include "conf.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

TEST(opening_and_closing_costs_nothing_that_stays)
{
    int fds = t_count_fds();

    for (int i = 0; i < conf_times(100, 20); i++)
        hf_close(conf_open());
    CHECK_EQ(t_count_fds(), fds);
    hf_close(NULL);
}

TEST(a_closed_client_keeps_no_descriptor_but_those_of_its_handles)
{
    int fds = t_count_fds(), lost_fd;
    hf_client *client = conf_open();
    hf_canceler *canceler;
    hf_lock *lk, *other;

    CHECK_OK(hf_canceler_new(client, &canceler, &t_err));
    CHECK_GE(hf_events_fd(client), 0);
    lk = conf_try(client, conf_key("k"), NULL);
    other = conf_try(client, conf_key("other"), NULL);
    lost_fd = hf_lost_fd(lk);
    CHECK_GE(lost_fd, 0);
    hf_canceler_free(canceler);
    hf_close(client);
    CHECK_EQ(t_count_fds(), fds + 1);
    CHECK(conf_readable(lost_fd, 0));
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_CLOSED);
    CHECK_EQ(hf_release(lk, NULL), HF_LOST);
    CHECK_EQ(hf_release(other, NULL), HF_LOST);
    CHECK_EQ(t_count_fds(), fds);
}

TEST(a_canceler_of_a_closed_client_writes_to_nobody)
{
    int fds = t_count_fds(), end[2];
    hf_client *client = conf_open();
    hf_canceler *canceler;

    CHECK_OK(hf_canceler_new(client, &canceler, &t_err));
    hf_close(client);
    CHECK_EQ(t_count_fds(), fds + 1);
    CHECK_EQ(pipe2(end, O_CLOEXEC), 0);
    hf_canceler_cancel(canceler);
    CHECK(!conf_readable(end[0], 0));
    hf_canceler_free(canceler);
    close(end[0]);
    close(end[1]);
    CHECK_EQ(t_count_fds(), fds);
}

TEST(describe_names_the_service)
{
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client = conf_open();

    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK_EQ(about.traits, conf_traits);
    CHECK(about.scheme[0]);
    CHECK_EQ(strncmp(about.endpoint, about.scheme, strlen(about.scheme)), 0);
    hf_close(client);
}

TEST(every_descriptor_is_closed_by_exec)
{
    const char *key = conf_key("k");
    bool before[1024];
    hf_client *a, *b;
    hf_lock *lk;
    hf_request *req;
    int fresh = 0;

    for (int fd = 0; fd < 1024; fd++)
        before[fd] = fcntl(fd, F_GETFD) != -1;
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, NULL);

    CHECK_GE(hf_lost_fd(lk), 0);
    CHECK_GE(hf_events_fd(b), 0);
    CHECK_OK(hf_acquire_start(b, key, -1, NULL, NULL, &req, &t_err));
    conf_await_waiters(a, key, 1);
    for (int fd = 0; fd < 1024; fd++) {
        int flags = before[fd] ? -1 : fcntl(fd, F_GETFD);

        if (flags == -1)
            continue;
        fresh++;
        if (!(flags & FD_CLOEXEC))
            t_fail(__FILE__, __LINE__, "descriptor %d survives exec", fd);
    }
    CHECK_GE(fresh, 2);
    hf_close(b);
    conf_unlock(lk);
    hf_close(a);
    conf_check_free(key);
}

TEST(outputs_are_left_alone_when_there_is_nothing_to_write)
{
    struct hf_info info = HF_INFO_INIT, copy = HF_INFO_INIT;
    struct hf_event event = {
        .size = sizeof(event), .type = HF_GONE, .user = &event};
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), NULL);
    hf_lock *const mark = (hf_lock *)(void *)&event;
    hf_lock *out = mark;

    CHECK(!hf_next_event(client, &event));
    CHECK(event.type == HF_GONE && event.user == &event);
    CHECK_STATUS(hf_acquire(client, conf_key("k"), 0, NULL, &out, &t_err),
                 HF_BUSY);
    CHECK_STATUS(hf_acquire(client, "", 0, NULL, &out, &t_err), HF_INVALID);
    CHECK(out == mark);
    CHECK_STATUS(hf_inspect(client, "", &info, &t_err), HF_INVALID);
    CHECK_EQ(memcmp(&info, &copy, sizeof(info)), 0);
    conf_unlock(lk);
    hf_close(client);
}

TEST(closing_cancels_waiting_threads_and_waits_for_them)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct conf_waiter w[8];

    for (int i = 0; i < 8; i++)
        conf_waiter_start(&w[i], b, key, -1, NULL);
    conf_await_waiters(a, key, 1);
    t_sleep_ms(200); /* All have begun: a call may not begin during close. */
    hf_close(b);
    for (int i = 0; i < 8; i++)
        conf_waiter_join(&w[i], HF_CANCELED);
    CHECK(hf_held(lk));
    CHECK_LE(conf_look(a, key).waiters, 0);
    conf_unlock(lk);
    hf_close(a);
    conf_check_free(key);
}

TEST(closing_releases_what_is_held_and_its_handles_answer_lost)
{
    hf_client *client = conf_open();
    hf_lock *lk[5];
    int fd;

    for (int i = 0; i < 5; i++)
        lk[i] = conf_try(client,
                         conf_key((const char *[]){"0", "1", "2", "3", "4"}[i]),
                         NULL);
    fd = hf_lost_fd(lk[0]);
    hf_close(client);
    CHECK(conf_readable(fd, 0));
    for (int i = 0; i < 5; i++) {
        CHECK(!hf_held(lk[i]));
        CHECK_EQ(hf_remaining_ms(lk[i]), 0);
        CHECK_EQ(hf_lost_reason(lk[i]), HF_LOSS_CLOSED);
        CHECK_STATUS(hf_extend(lk[i], 0, &t_err), HF_LOST);
        conf_check_free(hf_key(lk[i]));
        CHECK_STATUS(hf_release(lk[i], &t_err), HF_LOST);
    }
}

TEST(handles_of_a_closed_client_leave_the_next_holder_alone)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL), *next;

    hf_close(a);
    next = conf_try(b, key, NULL);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    conf_check_busy(key);
    conf_unlock(next);
    hf_close(b);
}

TEST(a_lock_lost_before_the_close_keeps_its_own_reason)
{
    struct hf_lock_opts brief = conf_opts(400, HF_MANUAL);
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), &brief);

    t_poll_until(!hf_held(lk), 20000);
    t_poll_until(hf_lost_reason(lk) == HF_LOSS_EXPIRED, 20000);
    hf_close(client);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_EXPIRED);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
}

struct storm {
    const char *key;
    atomic_int inside;
};

static void *open_lock_close(void *arg)
{
    struct storm *storm = arg;

    for (int i = 0; i < conf_times(40, 8); i++) {
        hf_client *client = conf_open();
        hf_lock *lk = conf_lock(client, storm->key, NULL);

        CHECK_EQ(atomic_fetch_add(&storm->inside, 1), 0);
        CHECK(hf_held(lk));
        CHECK_EQ(atomic_fetch_sub(&storm->inside, 1), 1);
        if (i % 3) {
            conf_unlock(lk);
            hf_close(client);
        } else {
            hf_close(client);
            CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        }
    }
    return NULL;
}

TEST_TIMEOUT(clients_opened_and_closed_in_a_storm_exclude_each_other, 120)
{
    struct storm storm = {.key = conf_key("k")};
    pthread_t threads[8];

    for (int i = 0; i < 8; i++)
        threads[i] = conf_thread(open_lock_close, &storm);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    conf_check_free(storm.key);
}

static void *cancel_often(void *arg)
{
    hf_client **client = arg;

    for (int i = 0; i < t_scaled(300, 50); i++) {
        hf_cancel(*client);
        t_sleep_ms(1 + conf_trip_ms / 25);
    }
    return NULL;
}

TEST(cancels_at_any_moment_leave_nothing)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    pthread_t thread = conf_thread(cancel_often, &b);
    int granted = 0;

    for (int i = 0; i < conf_times(150, 30); i++) {
        hf_lock *lk = conf_lock(a, key, NULL), *other = NULL;
        struct conf_waiter w;

        conf_waiter_start(&w, b, key, 50, NULL);
        t_sleep_ms(i % 3);
        conf_unlock(lk);
        pthread_join(w.thread, NULL);
        if (w.status == HF_OK) {
            granted++;
            conf_unlock(w.lk);
        } else {
            CHECK(w.status == HF_CANCELED || w.status == HF_TIMEOUT);
        }
        CHECK_OK(hf_acquire(a, key, 0, NULL, &other, &t_err));
        conf_unlock(other);
    }
    pthread_join(thread, NULL);
    CHECK_GE(granted, 0);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST_TIMEOUT(a_thousand_locks_are_kept_without_a_thread_each, 120)
{
    enum { MANY = 1000 };
    static hf_lock *lk[MANY];
    struct hf_lock_opts opts = conf_opts(3000, 0);
    hf_client *client = conf_open();
    int n = conf_times(MANY, 100);
    int threads = t_count_threads();
    char key[128];

    for (int i = 0; i < n; i++) {
        snprintf(key, sizeof(key), "%s%d", conf_prefix(), i);
        lk[i] = conf_try(client, key, &opts);
    }
    for (int64_t end = t_now_ms() + conf_ms(4500); t_now_ms() < end;
         t_sleep_ms(100))
        for (int i = 0; i < n; i++)
            CHECK(hf_held(lk[i]));
    CHECK_LE(t_count_threads(), threads + 10);
    CHECK_EQ(conf_count_listed(client, conf_prefix()), n);
    for (int i = 0; i < n; i++)
        conf_unlock(lk[i]);
    CHECK_EQ(conf_count_listed(client, conf_prefix()), 0);
    hf_close(client);
}
