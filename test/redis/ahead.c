/* SPDX-License-Identifier: MIT
 *
 * ahead.c - the tries and releases of an event loop that go out together: each
 * has the outcome that it would have alone.
 *
 * The server is frozen while the loop asks, so that what is asked for waits for
 * the threads of the client, which then find many at once.
 */
#include "fleet.h"
#include "proxy.h"

#include <poll.h>

#define N 48

static char names[N][16];
static hf_lock *locks[N];

/* The next event; the test's runner ends a wait that has no end. */
static struct hf_event next(hf_client *client)
{
    struct pollfd fd = {.fd = hf_events_fd(client), .events = POLLIN};
    struct hf_event event = HF_EVENT_INIT;

    while (!hf_next_event(client, &event))
        poll(&fd, 1, -1);
    return event;
}

static int number_of(const struct hf_event *event)
{
    return (int)((char(*)[16])event->user - names);
}

static void ask(hf_client *client, int i, int64_t wait_ms)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    hf_request *req;

    snprintf(names[i], sizeof(names[i]), "ahead-%d", i);
    CHECK_OK(hf_acquire_start(client, names[i], wait_ms, &opts, names[i], &req,
                              &t_err));
}

/* All are asked for while the server stands still. */
static void ask_all(struct rt_server *s, hf_client *client)
{
    int i;

    rt_signal(s, SIGSTOP);
    for (i = 0; i < N; i++)
        ask(client, i, -1);
    t_sleep_ms(20);
    rt_signal(s, SIGCONT);
}

static void take_all(hf_client *client)
{
    struct hf_event event;
    int i;

    for (i = 0; i < N; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_GRANTED);
        locks[number_of(&event)] = event.lock;
    }
}

static void start_releases(void)
{
    hf_request *req;
    int i;

    for (i = 0; i < N; i++)
        hf_release_start(locks[i], names[i], &req);
}

static void end_releases(hf_client *client, hf_status want, int which)
{
    struct hf_event event;
    int i;

    for (i = 0; i < N; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_ANSWERED);
        CHECK_EQ(event.error.status, number_of(&event) == which ? want : HF_OK);
    }
}

static void release_all(hf_client *client, hf_status want, int which)
{
    start_releases();
    end_releases(client, want, which);
}

static long long stat_of(struct rt_server *s, const char *name)
{
    const char *at = strstr(rt_text(s, "INFO stats"), name);

    CHECK(at != NULL);
    return strtoll(at + strlen(name) + 1, NULL, 10);
}

TEST(many_requests_are_few_writes)
{
    struct rt_server s = {0};
    long long reads, calls;
    hf_client *client;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    reads = stat_of(&s, "total_reads_processed");
    calls = rt_calls(&s, "evalsha");
    ask_all(&s, client);
    take_all(client);
    release_all(client, HF_OK, 0);
    calls = rt_calls(&s, "evalsha") - calls;
    reads = stat_of(&s, "total_reads_processed") - reads;
    CHECK_GE(calls, 2 * N);
    CHECK_LT(reads, calls);
    hf_close(client);
    rt_end(&s);
}

/* Each is told what became of its own lock. */
TEST(one_that_was_broken_is_lost_and_the_others_are_not)
{
    struct rt_server s = {0};
    hf_client *client, *other;
    struct hf_event event;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    other = rt_open(&s, "");
    ask_all(&s, client);
    take_all(client);
    CHECK_OK(hf_break(other, names[7], hf_fence(locks[7]), &t_err));
    event = next(client);
    CHECK_EQ(event.type, HF_GONE);
    CHECK(event.lock == locks[7]);
    release_all(client, HF_LOST, 7);
    hf_close(client);
    hf_close(other);
    rt_end(&s);
}

/* One of them is another's: it waits, and the others have theirs. */
TEST(one_that_is_held_keeps_no_other_waiting)
{
    struct rt_server s = {0};
    hf_client *client, *other;
    struct hf_event event;
    hf_lock *held;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    other = rt_open(&s, "");
    held = rt_lock(other, "ahead-5", 0, 60000, 0);
    ask_all(&s, client);
    for (i = 1; i < N; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_NE(number_of(&event), 5);
        locks[number_of(&event)] = event.lock;
    }
    CHECK_OK(hf_release(held, &t_err));
    event = next(client);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_EQ(number_of(&event), 5);
    locks[5] = event.lock;
    release_all(client, HF_OK, 0);
    hf_close(client);
    hf_close(other);
    rt_end(&s);
}

/* A server that has forgotten its scripts is sent them again, not by each. */
TEST(a_server_without_scripts_serves_all)
{
    struct rt_server s = {0};
    hf_client *client;
    long long whole;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    rt_do(&s, "SCRIPT FLUSH");
    whole = rt_calls(&s, "eval");
    ask_all(&s, client);
    take_all(client);
    rt_do(&s, "SCRIPT FLUSH");
    rt_signal(&s, SIGSTOP);
    start_releases();
    t_sleep_ms(20);
    rt_signal(&s, SIGCONT);
    end_releases(client, HF_OK, 0);
    whole = rt_calls(&s, "eval") - whole;
    CHECK_GE(whole, 2);
    CHECK_LT(whole, N / 2);
    hf_close(client);
    rt_end(&s);
}

/* On a server that says nothing, whoever waits a moment is told before whoever
 * waits for long. */
TEST(a_short_wait_does_not_become_a_long_one)
{
    struct rt_server s = {0};
    struct hf_event event;
    hf_client *client;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "?timeout=8s");
    rt_signal(&s, SIGSTOP);
    for (i = 0; i < N; i++)
        ask(client, i, i % 2 ? 0 : 200);
    for (i = 0; i < N; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_FAILED);
        CHECK_EQ(number_of(&event) % 2, i >= N / 2);
    }
    rt_signal(&s, SIGCONT);
    hf_close(client);
    rt_end(&s);
}

/* Cancelled while all are on the wire: each ends at once, and nothing stays. */
TEST(a_cancelled_batch_leaves_nothing)
{
    struct rt_server s = {0};
    struct hf_event event;
    hf_client *client;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    rt_signal(&s, SIGSTOP);
    for (i = 0; i < N; i++)
        ask(client, i, -1);
    t_sleep_ms(20);
    hf_cancel(client);
    for (i = 0; i < N; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_FAILED);
        CHECK_EQ(event.error.status, HF_CANCELED);
    }
    rt_signal(&s, SIGCONT);
    for (i = 0; i < N; i++)
        t_poll_until(!rt_int(&s, "EXISTS holdfast:%s", names[i]), 20000);
    hf_close(client);
    rt_end(&s);
}

/* The server dies with all of them under way: each ends in doubt or is granted
 * by the next server, and no lock is left that nobody has. */
TEST(a_server_that_dies_fails_each)
{
    struct rt_server s = {0};
    struct hf_event event;
    hf_client *client;
    int i;

    rt_start(&s, "--appendonly", "yes", "--appendfsync", "always", NULL);
    client = rt_open(&s, "");
    rt_signal(&s, SIGSTOP);
    for (i = 0; i < N; i++)
        ask(client, i, -1);
    t_sleep_ms(20);
    rt_crash(&s);
    rt_again(&s);
    take_all(client);
    for (i = 0; i < N; i++)
        CHECK(hf_held(locks[i]));
    release_all(client, HF_OK, 0);
    event = (struct hf_event)HF_EVENT_INIT;
    CHECK(!hf_next_event(client, &event));
    hf_close(client);
    rt_end(&s);
}

/* Those who want a turn of their own in one queue have it in the order in which
 * they asked, however many threads send it. */
TEST_TIMEOUT(turns_of_one_key_are_in_the_order_of_the_requests, 120)
{
    enum { WAITERS = 120 };
    static char user[WAITERS];
    struct hf_lock_opts opts = rt_opts(60000, HF_FAIR);
    struct rt_server s = {0};
    hf_client *client, *other;
    struct hf_event event;
    hf_request *req;
    hf_lock *held;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    other = rt_open(&s, "");
    held = rt_lock(other, "turns", 0, 60000, 0);
    for (i = 0; i < WAITERS; i++)
        CHECK_OK(hf_acquire_start(client, "turns", -1, &opts, &user[i], &req,
                                  &t_err));
    t_poll_until(rt_waiters(&s, "turns") == WAITERS, 20000);
    CHECK_OK(hf_release(held, &t_err));
    for (i = 0; i < WAITERS; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_EQ((char *)event.user - user, i);
        CHECK_OK(hf_release(event.lock, &t_err));
    }
    hf_close(client);
    hf_close(other);
    rt_end(&s);
}

/* What an event says of a release is what the call would have returned; and
 * nobody is called the holder of a key that was never asked for. */
TEST_TIMEOUT(a_silent_server_is_told_as_such, 120)
{
    enum { MANY = 3000 };
    static char many[MANY][24];
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    struct hf_event event;
    hf_client *client;
    hf_request *req;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "?timeout=2s");
    ask_all(&s, client);
    take_all(client);
    rt_signal(&s, SIGSTOP);
    for (i = 0; i < MANY; i++) {
        snprintf(many[i], sizeof(many[i]), "many-%d", i);
        CHECK_OK(hf_acquire_start(client, many[i], 300, &opts, many[i], &req,
                                  &t_err));
    }
    for (i = 0; i < MANY; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_FAILED);
        CHECK(event.error.status == HF_UNCERTAIN ||
              event.error.status == HF_UNAVAILABLE);
    }
    start_releases();
    for (i = 0; i < N; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_ANSWERED);
        CHECK_EQ(event.error.status, HF_UNCERTAIN);
    }
    rt_signal(&s, SIGCONT);
    hf_close(client);
    rt_stop(&s);
}

static uint64_t renewed(hf_client *client)
{
    struct hf_stats stats = HF_STATS_INIT;

    CHECK_OK(hf_stats(client, &stats, &t_err));
    return stats.renewed;
}

/* New connections are accepted and then silent, as by a server that has no more
 * to give: those who wait cannot be told, and what is held is kept. */
TEST_TIMEOUT(waiters_that_cannot_be_told_cost_no_lock, 180)
{
    enum { HELD = 5 };
    struct hf_lock_opts opts = rt_opts(6000, 0);
    char command[32], answer[128];
    struct rt_server s = {0};
    hf_client *client, *other;
    hf_lock *busy[N];
    struct proxy p;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    other = rt_open(&s, "");
    for (i = 2; i < 60; i++) {
        snprintf(command, sizeof(command), "conn %d hold", i);
        CHECK(net_tell(p.net, command, answer, sizeof(answer)));
    }
    CHECK_OK(hf_open(rt_url(p.port, ""), NULL, &client, &t_err));
    for (i = 0; i < HELD; i++) {
        snprintf(command, sizeof(command), "held-%d", i);
        CHECK_OK(hf_acquire(client, command, 0, &opts, &locks[i], &t_err));
    }
    for (i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "ahead-%d", i);
        busy[i] = rt_lock(other, names[i], 0, 60000, 0);
        ask(client, i, -1);
    }
    t_poll_until(renewed(client) >= 8 * HELD || !hf_held(locks[0]), 60000);
    for (i = 0; i < HELD; i++)
        CHECK(hf_held(locks[i]));
    hf_close(client);
    for (i = 0; i < HELD; i++)
        hf_release(locks[i], NULL);
    for (i = 0; i < N; i++)
        CHECK_OK(hf_release(busy[i], &t_err));
    hf_close(other);
    proxy_stop(&p);
    rt_stop(&s);
}

/* In a cluster there is a connection for each node: one that is silent keeps
 * nobody of another waiting. */
TEST_TIMEOUT(a_silent_node_keeps_no_request_of_others_waiting, 120)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct hf_event event;
    hf_client *client;
    hf_request *req;
    struct fleet f;
    int i, n = 0;

    fleet_start(&f, NULL);
    client = fleet_open(&f, "?timeout=4s");
    rt_signal(&f.node[0], SIGSTOP);
    for (i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "%s",
                 fleet_key(i % 2 ? 1 + i % 4 / 2 : 0, i));
        CHECK_OK(hf_acquire_start(client, names[i], 0, &opts, names[i], &req,
                                  &t_err));
    }
    for (i = 0; i < N / 2; i++) {
        event = next(client);
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_EQ(number_of(&event) % 2, 1);
        locks[n++] = event.lock;
    }
    rt_signal(&f.node[0], SIGCONT);
    hf_close(client);
    while (n)
        hf_release(locks[--n], NULL);
    fleet_stop(&f);
}

T_MAIN
