/* SPDX-License-Identifier: MIT
 *
 * later.c - a server that is not there yet, never comes, or refuses us, while
 * the client connects in the background.
 */
#include "rt.h"

#include <poll.h>

static hf_client *open_later(const char *url, int64_t connect_ms)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client;

    opts.connect_ms = connect_ms;
    CHECK_OK(hf_open(url, &opts, &client, &t_err));
    return client;
}

static struct hf_event next_event(hf_client *client)
{
    struct pollfd wait = {hf_events_fd(client), POLLIN, 0};
    struct hf_event event = HF_EVENT_INIT;

    CHECK_EQ(poll(&wait, 1, 30000), 1);
    CHECK(hf_next_event(client, &event));
    return event;
}

/* hf_acquire() in a thread. */
struct caller {
    hf_client *client;
    const char *key;
    int64_t wait_ms;
    hf_canceler *canceler;
    pthread_t thread;
    hf_status st;
    struct hf_error err;
    hf_lock *lk;
};

static void *call(void *arg)
{
    struct caller *who = arg;
    struct hf_lock_opts opts = rt_opts(30000, 0);

    opts.canceler = who->canceler;
    who->st = hf_acquire(who->client, who->key, who->wait_ms, &opts, &who->lk,
                         &who->err);
    return NULL;
}

static void call_start(struct caller *who, hf_client *client, const char *key,
                       int64_t wait_ms, hf_canceler *canceler)
{
    *who = (struct caller){client, key, wait_ms, canceler, 0, HF_OK, {0}, NULL};
    CHECK_EQ(pthread_create(&who->thread, NULL, call, who), 0);
}

static void call_join(struct caller *who, hf_status want)
{
    CHECK_EQ(pthread_join(who->thread, NULL), 0);
    t_err = who->err;
    t_check_status(__FILE__, __LINE__, "hf_acquire(&t_err)", who->st, want);
}

static void stop(struct rt_server *server)
{
    rt_start(server, NULL);
    rt_crash(server);
}

TEST(a_server_that_starts_later_is_waited_for)
{
    struct hf_service service = HF_SERVICE_INIT;
    struct hf_info info = HF_INFO_INIT;
    struct rt_server server = {0};
    struct caller waits, tries;
    struct hf_event event;
    hf_client *client;
    hf_request *req;
    hf_lock *lk;
    int i;

    stop(&server);
    client = open_later(rt_url(server.port, "?timeout=20s"), -1);
    CHECK_OK(hf_describe(client, &service, &t_err));
    CHECK(strstr(service.warning, "not connected yet") != NULL);
    CHECK(service.traits & HF_TRAIT_LEASED);
    call_start(&waits, client, "waits", 60000, NULL);
    call_start(&tries, client, "tries", 0, NULL);
    CHECK_OK(hf_acquire_start(client, "async", -1, NULL, NULL, &req, &t_err));
    CHECK_OK(hf_inspect_start(client, "free", &info, NULL, &req, &t_err));
    rt_again(&server);
    call_join(&waits, HF_OK);
    call_join(&tries, HF_OK);
    for (i = 0; i < 2; i++) {
        event = next_event(client);
        if (event.type == HF_GRANTED)
            CHECK_OK(hf_release(event.lock, &t_err));
        else
            CHECK_EQ(event.error.status, HF_OK);
    }
    CHECK_OK(hf_describe(client, &service, &t_err));
    CHECK_STR(service.warning, "");
    CHECK_OK(hf_release(waits.lk, &t_err));
    CHECK_OK(hf_release(tries.lk, &t_err));
    CHECK_OK(hf_acquire(client, "waits", 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&server);
}

static void wait_for_callers(hf_client *client, uint64_t n)
{
    struct hf_stats stats = HF_STATS_INIT;

    t_poll_until(
        hf_stats(client, &stats, &t_err) == HF_OK && stats.waiting == n, 30000);
}

TEST(a_single_try_behind_another_request_waits_for_the_connection)
{
    struct rt_server server = {0};
    struct caller waits, tries;
    hf_client *client;

    stop(&server);
    client = open_later(rt_url(server.port, "?timeout=20s"), -1);
    call_start(&waits, client, "k", 60000, NULL);
    wait_for_callers(client, 1);
    call_start(&tries, client, "k", 0, NULL);
    wait_for_callers(client, 2);
    rt_again(&server);
    call_join(&tries, HF_BUSY);
    call_join(&waits, HF_OK);
    CHECK_OK(hf_release(waits.lk, &t_err));
    hf_close(client);
    rt_end(&server);
}

TEST(an_observer_is_told_that_there_is_no_connection)
{
    struct rt_server server = {0};
    hf_observer *observer;
    struct hf_event event;
    hf_client *client;
    int i;

    stop(&server);
    client = open_later(rt_url(server.port, ""), -1);
    for (i = 0; i < 2; i++) { /* The second comes when that is known. */
        CHECK_OK(hf_observe_start(client, i ? "j" : "k", 0, NULL, &observer,
                                  &t_err));
        event = next_event(client);
        CHECK_EQ(event.type, HF_CHANGED);
        CHECK_EQ(event.error.status, HF_UNAVAILABLE);
    }
    rt_again(&server);
    for (i = 0; i < 2; i++) {
        event = next_event(client);
        CHECK_EQ(event.type, HF_CHANGED);
        CHECK_EQ(event.error.status, HF_OK);
    }
    hf_close(client);
    rt_end(&server);
}

TEST(a_server_that_never_comes_is_given_up)
{
    const char *keys[2] = {"a", "b"};
    struct hf_info info = HF_INFO_INIT;
    struct rt_server server = {0};
    hf_lock *lk, *locks[2];
    hf_client *client;
    hf_request *req;

    stop(&server);
    client = open_later(rt_url(server.port, "?timeout=300ms"), -1);
    CHECK_STATUS(hf_acquire(client, "k", 100, NULL, &lk, &t_err),
                 HF_UNAVAILABLE);
    CHECK_STATUS(hf_acquire(client, "k", 0, NULL, &lk, &t_err), HF_UNAVAILABLE);
    CHECK_STATUS(hf_acquire_all(client, keys, 2, 100, NULL, locks, &t_err),
                 HF_UNAVAILABLE);
    CHECK_STATUS(hf_inspect(client, "k", &info, &t_err), HF_UNAVAILABLE);
    CHECK_STATUS(hf_break(client, "k", 7, &t_err), HF_UNAVAILABLE);
    CHECK_OK(hf_check_start(client, "k", 7, NULL, &req, &t_err));
    CHECK_EQ(next_event(client).error.status, HF_UNAVAILABLE);
    CHECK_OK(hf_acquire_start(client, "k", 100, NULL, NULL, &req, &t_err));
    CHECK_EQ(next_event(client).error.status, HF_UNAVAILABLE);
    hf_close(client);

    client = open_later(rt_url(server.port, "?timeout=60s"), 300);
    CHECK_STATUS(hf_acquire(client, "k", -1, NULL, &lk, &t_err),
                 HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "127.0.0.1") != NULL);
    CHECK_OK(hf_acquire_start(client, "k", -1, NULL, NULL, &req, &t_err));
    CHECK_EQ(next_event(client).error.status, HF_UNAVAILABLE);
    CHECK_OK(hf_list_start(client, NULL, NULL, &req, &t_err));
    CHECK_EQ(next_event(client).error.status, HF_UNAVAILABLE);
    CHECK_STATUS(hf_inspect(client, "k", &info, &t_err), HF_UNAVAILABLE);
    hf_close(client);
}

TEST(a_wrong_password_is_final)
{
    struct rt_server server = {.password = "right"};
    hf_observer *observer;
    hf_client *client;
    hf_lock *lk;
    char url[96];

    rt_start(&server, "--requirepass", "right", NULL);
    snprintf(url, sizeof(url), "redis://:s3cret@127.0.0.1:%d", server.port);
    client = open_later(url, -1);
    CHECK_STATUS(hf_acquire(client, "k", -1, NULL, &lk, &t_err), HF_DENIED);
    CHECK(strstr(t_err.text, "s3cret") == NULL);
    CHECK_STATUS(hf_acquire(client, "k", 0, NULL, &lk, &t_err), HF_DENIED);
    CHECK_STATUS(hf_observe_start(client, "k", 0, NULL, &observer, &t_err),
                 HF_DENIED);
    CHECK(strstr(t_err.text, "s3cret") == NULL);
    hf_close(client);
    rt_stop(&server);
}

/* The attempts last a minute, as long as the test may. */
TEST(closing_waits_for_no_server)
{
    struct rt_server server = {0};
    struct caller one, two;
    hf_client *client;
    hf_request *req;

    rt_start(&server, NULL);
    rt_signal(&server, SIGSTOP);
    client = open_later(rt_url(server.port, "?timeout=90s"), -1);
    call_start(&one, client, "k", -1, NULL);
    call_start(&two, client, "k", 0, NULL);
    CHECK_OK(hf_acquire_start(client, "k", -1, NULL, NULL, &req, &t_err));
    CHECK_OK(hf_list_start(client, NULL, NULL, &req, &t_err));
    hf_close(client);
    CHECK_EQ(pthread_join(one.thread, NULL), 0);
    CHECK_EQ(pthread_join(two.thread, NULL), 0);
    CHECK(one.st != HF_OK && two.st != HF_OK);
    rt_signal(&server, SIGCONT);
    t_poll_until(t_count_threads() == 1, 20000); /* the attempt ends itself */
    rt_stop(&server);
}

TEST(a_wait_for_the_connection_can_be_cancelled)
{
    struct rt_server server = {0};
    struct caller one, two;
    hf_canceler *canceler;
    hf_client *client;
    hf_request *req;

    stop(&server);
    client = open_later(rt_url(server.port, ""), -1);
    CHECK_OK(hf_canceler_new(client, &canceler, &t_err));
    call_start(&one, client, "one", -1, canceler);
    call_start(&two, client, "two", -1, NULL);
    hf_canceler_cancel(canceler);
    call_join(&one, HF_CANCELED);
    CHECK_OK(hf_acquire_start(client, "three", -1, NULL, NULL, &req, &t_err));
    hf_request_cancel(req);
    CHECK_EQ(next_event(client).error.status, HF_CANCELED);
    rt_again(&server);
    call_join(&two, HF_OK);
    CHECK_OK(hf_release(two.lk, &t_err));
    hf_canceler_free(canceler);
    hf_close(client);
    rt_end(&server);
}

/* What it cannot do is known when it is there. */
TEST(what_a_service_lacks_is_told_once_it_is_connected)
{
    struct hf_lock_opts opts = rt_opts(30000, HF_SHARED);
    struct rt_server server = {0};
    struct hf_event event;
    hf_client *client;
    hf_request *req;

    stop(&server);
    client = open_later(rt_url(server.port, "?acquire=set"), -1);
    CHECK_OK(hf_acquire_start(client, "k", -1, &opts, NULL, &req, &t_err));
    rt_again(&server);
    event = next_event(client);
    CHECK_EQ(event.type, HF_FAILED);
    CHECK_EQ(event.error.status, HF_UNSUPPORTED);
    hf_close(client);
    rt_stop(&server);
}

TEST(a_wrong_url_is_refused_at_once)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client;

    opts.connect_ms = -1;
    CHECK_STATUS(hf_open("redis://h?nonsense=1", &opts, &client, &t_err),
                 HF_INVALID);
    opts.connect_ms = -2;
    CHECK_STATUS(hf_open("redis://h", &opts, &client, &t_err), HF_INVALID);
}

T_MAIN
