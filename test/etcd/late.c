/* SPDX-License-Identifier: MIT
 *
 * late.c - requests that had no answer and arrive later, and connections that
 * are not served: run under test/servers/etcd.
 *
 * One client, `far`, is connected through a net; its first connection carries
 * its calls.  The others are connected directly.  What is late is delayed, not
 * held: then the end of the connection comes as late as the request, and does
 * not cancel it.
 */
#include "t.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../torture/net.h"

static struct net *net;

static void tell(const char *command)
{
    char answer[128];

    CHECK(net_tell(net, command, answer, sizeof(answer)));
}

static hf_client *client_new(const char *url, int64_t timeout_ms)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;

    opts.timeout_ms = timeout_ms;
    CHECK_OK(hf_open(url, &opts, &client, &t_err));
    return client;
}

static hf_client *far_new(int64_t timeout_ms)
{
    const char *real = strstr(getenv("HF_TEST_URL"), "//") + 2;
    char url[128], host[64];
    char *port;

    net = net_new();
    CHECK(net != NULL);
    snprintf(host, sizeof(host), "%s", real);
    port = strchr(host, ':');
    *port++ = '\0';
    snprintf(url, sizeof(url), "etcd://127.0.0.1:%d",
             net_port(net, host, port));
    return client_new(url, timeout_ms);
}

static hf_client *near_new(void)
{
    return client_new(getenv("HF_TEST_URL"), 0);
}

static hf_lock *take(hf_client *client, const char *key, const char *owner,
                     int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.owner = owner;
    opts.ttl_ms = ttl_ms;
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    return lk;
}

/* The lock that a test is about is asked for with this. */
static char asked;

static void queue_up(hf_client *client, const char *key, const char *owner,
                     int64_t ttl_ms, void *user)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_request *rq = NULL;

    opts.owner = owner;
    opts.ttl_ms = ttl_ms;
    CHECK_OK(
        hf_acquire_start(client, key, user ? -1 : 0, &opts, user, &rq, &t_err));
}

static int waiters(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.waiters;
}

/* What the client was granted, or NULL. */
static hf_lock *granted(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(client, &event))
        if (event.type == HF_GRANTED && event.user == &asked)
            return event.lock;
    return NULL;
}

static void pause_ms(int64_t ms)
{
    int64_t end = t_now_ms() + ms;

    t_poll_until(t_now_ms() > end, 60000);
}

/* Both are granted the lock, one after the other, and never at once. */
static void one_after_the_other(hf_client *far, hf_client *next)
{
    hf_lock *first = NULL, *second = NULL;
    bool is_far = false;

    t_poll_until((first = granted(next)) ||
                     (is_far = (first = granted(far)) != NULL),
                 20000);
    second = granted(is_far ? next : far);
    CHECK(!second || !hf_held(second) || !hf_held(first));
    hf_release(first, NULL);
    if (!second)
        t_poll_until((second = granted(is_far ? next : far)) != NULL, 20000);
    hf_release(second, NULL);
}

/* A waiter leaves its place in order to join, and that has no answer. */
TEST(a_place_left_to_join_is_never_granted_when_its_removal_is_late)
{
    hf_client *far = far_new(15000), *near = near_new(), *next = near_new();
    hf_lock *lk = take(near, "joined", "o", 30000);

    hf_release(take(far, "warm", NULL, 20000), NULL);
    tell("conn 1 up delay 1500");
    queue_up(far, "joined", "o", 20000, &asked);
    t_poll_until(waiters(near, "joined") == 1, 20000);
    queue_up(next, "joined", NULL, 10000, &asked);
    t_poll_until(waiters(near, "joined") == 2, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    tell("conn 1 down half"); /* The removal is on its way. */
    one_after_the_other(far, next);
    hf_close(far);
    hf_close(near);
    hf_close(next);
    net_free(net);
}

/* What was left under the old name is given back again and again.  That one of
 * these removals has no answer says nothing of the name that it joined under. */
TEST(who_left_its_place_to_join_outlasts_a_short_silence)
{
    hf_client *far = far_new(1000), *near = near_new();
    hf_lock *lk = take(near, "rejoined", "o", 30000), *mine = NULL;

    hf_release(take(far, "warm", NULL, 20000), NULL);
    tell("conn 1 up delay 700");
    queue_up(far, "rejoined", "o", 20000, &asked);
    t_poll_until(waiters(near, "rejoined") == 1, 20000);
    tell("conn 1 down half"); /* The removal is on its way. */
    t_poll_until((mine = granted(far)) != NULL, 20000);
    tell("port 1 hold");
    pause_ms(4000);
    tell("port 1 pass");
    t_poll_until(hf_extend(mine, 0, NULL) == HF_OK || !hf_held(mine), 10000);
    CHECK(hf_held(mine));
    CHECK_OK(hf_release(mine, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(far);
    hf_close(near);
    net_free(net);
}

/* A waiter's try has no answer for longer than its ttl, while other calls of
 * its client keep the lease: its place goes with its claim, not before. */
TEST(a_waiter_whose_try_has_no_answer_keeps_its_place)
{
    hf_client *far = far_new(15000), *near = near_new(), *next = near_new();
    hf_lock *lk = take(near, "kept", NULL, 30000);
    hf_lock *others[5], *mine = NULL;
    char key[16];
    int i;

    for (i = 0; i < 5; i++) {
        snprintf(key, sizeof(key), "other%d", i);
        others[i] = take(near, key, NULL, 30000);
    }
    hf_release(take(far, "kept2", NULL, 1000), NULL);
    tell("conn 1 down hold");
    queue_up(far, "kept", NULL, 1000, &asked);
    t_poll_until(waiters(near, "kept") == 1, 20000);
    queue_up(next, "kept", NULL, 10000, &asked);
    t_poll_until(waiters(near, "kept") == 2, 20000);
    for (i = 0; i < 5; i++) {
        pause_ms(480);
        snprintf(key, sizeof(key), "other%d", i);
        queue_up(far, key, NULL, 1000, NULL);
    }
    CHECK_EQ(waiters(near, "kept"), 2);
    CHECK_OK(hf_release(lk, &t_err));
    tell("conn 1 down half"); /* The client leaves this connection. */
    t_poll_until((mine = granted(far)) != NULL, 20000);
    CHECK(hf_held(mine) && !granted(next));
    hf_release(mine, NULL);
    t_poll_until((mine = granted(next)) != NULL, 20000);
    CHECK_OK(hf_release(mine, &t_err));
    for (i = 0; i < 5; i++)
        CHECK_OK(hf_release(others[i], &t_err));
    hf_close(far);
    hf_close(near);
    hf_close(next);
    net_free(net);
}

/* Word of the break comes by another connection than the answer that says that
 * the lock is granted, and before it. */
TEST(a_break_that_overtakes_the_answer_of_a_try_is_not_forgotten)
{
    hf_client *far = far_new(15000), *near = near_new();
    hf_lock *lk = take(near, "overtaken", NULL, 30000), *mine = NULL;
    struct hf_info info = HF_INFO_INIT;

    hf_release(take(far, "warm", NULL, 30000), NULL);
    queue_up(far, "overtaken", NULL, 30000, &asked);
    t_poll_until(waiters(near, "overtaken") == 1, 20000);
    pause_ms(300); /* It watches. */
    tell("conn 1 down hold");
    CHECK_OK(hf_release(lk, &t_err));
    pause_ms(300); /* Its try is served. */
    CHECK_OK(hf_inspect(near, "overtaken", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_break(near, "overtaken", info.fence, &t_err));
    pause_ms(300);
    tell("conn 1 down pass");
    t_poll_until((mine = granted(far)) != NULL, 20000);
    CHECK_GT(hf_fence(mine), info.fence);
    CHECK_OK(hf_check(near, "overtaken", hf_fence(mine), &t_err));
    CHECK_OK(hf_release(mine, &t_err));
    CHECK_EQ(waiters(near, "overtaken"), 0);
    hf_close(far);
    hf_close(near);
    net_free(net);
}

/* Its client keeps the lease for another lock. */
TEST(a_key_that_is_put_late_does_not_stay)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *far = far_new(500), *near = near_new();
    hf_lock *other = take(far, "other", NULL, 1000), *lk = NULL;
    struct hf_info info = HF_INFO_INIT;

    opts.ttl_ms = 1000;
    tell("conn 1 up delay 5500");
    CHECK_STATUS(hf_acquire(far, "late", 0, &opts, &lk, &t_err), HF_UNCERTAIN);
    pause_ms(5500); /* All that was asked about it since has been answered. */
    CHECK(hf_held(other));
    CHECK_OK(hf_acquire(near, "late", 15000, NULL, &lk, &t_err));
    CHECK_OK(hf_inspect(near, "other", &info, &t_err));
    CHECK(info.held && hf_held(other));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(other, &t_err));
    hf_close(far);
    hf_close(near);
    net_free(net);
}

/* ---- handles: what one process has sent, and another one renews --------- */

struct bearer {
    hf_client *client;
    const char *key;
    const struct hf_handle *handle;
    int64_t ttl_ms;
    hf_status st;
};

static void *bearer_run(void *arg)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct bearer *b = arg;

    opts.ttl_ms = b->ttl_ms;
    b->st = hf_handle_extend(b->client, b->key, b->handle, &opts, NULL);
    return NULL;
}

/* The lease that the only key of the lock hangs on. */
static void lease_of(const char *key, char *ret, int size)
{
    char command[160];
    FILE *out;

    snprintf(command, sizeof(command),
             "etcdctl get --prefix holdfast/%s/ -w fields | grep Lease", key);
    out = popen(command, "r");
    CHECK(out && fgets(ret, size, out));
    CHECK_EQ(pclose(out), 0);
}

/* A move to the lease of one bearer's client is under way while another renews,
 * and arrives when nobody waits for it: that lease is kept by nobody. */
TEST(a_late_move_does_not_unlease_what_another_bearer_renewed)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *far = far_new(2000), *near = near_new();
    struct hf_handle handle = HF_HANDLE_INIT;
    struct bearer b = {far, "moved", &handle, 18000, HF_OK};
    char before[64], after[64];
    pthread_t thread;
    hf_lock *lk;

    opts.ttl_ms = 20000;
    lk = take(near, "moved", NULL, 20000);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_handle_extend(near, "moved", &handle, &opts, &t_err));
    tell("conn 1 up delay 800");
    CHECK_EQ(pthread_create(&thread, NULL, bearer_run, &b), 0);
    pause_ms(
        1900); /* Its lease is there, the key was read, the move is sent. */
    CHECK_OK(hf_handle_extend(near, "moved", &handle, &opts, &t_err));
    lease_of("moved", before, sizeof(before));
    pthread_join(thread, NULL);
    CHECK(b.st != HF_OK);
    pause_ms(1000); /* It has arrived. */
    lease_of("moved", after, sizeof(after));
    CHECK(!strcmp(before, after));
    CHECK_OK(hf_handle_release(near, "moved", &handle, NULL, &t_err));
    hf_close(far);
    hf_close(near);
    net_free(net);
}

/* The move to another lease has no answer, then the lock is detached.  When the
 * client is closed, it sees an empty lease, and the move arrives before the
 * lease could be revoked. */
TEST(closing_does_not_end_a_detached_lock_whose_move_is_late)
{
    hf_client *far = far_new(2400), *near = near_new();
    struct hf_handle handle = HF_HANDLE_INIT;
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk;

    hf_release(take(far, "warm", NULL, 20000), NULL);
    lk = take(far, "closed", NULL, 10000);
    tell("conn 1 up delay 1500"); /* The key is read, and the move is sent. */
    CHECK(hf_extend(lk, 20000, &t_err) != HF_OK);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    tell("conn 1 down half"); /* All else goes over another connection. */
    waiters(far, "closed");
    tell("port 1 up delay 350");
    hf_close(far);
    pause_ms(1500);
    CHECK_OK(hf_inspect(near, "closed", &info, &t_err));
    CHECK(info.held);
    CHECK_OK(hf_handle_release(near, "closed", &handle, NULL, &t_err));
    hf_close(near);
    net_free(net);
}

/* The connection of the calls works, a new one is taken and never served. */
TEST(a_watch_that_cannot_be_opened_costs_no_lock)
{
    hf_client *far = far_new(0);
    hf_lock *lks[150], *lk;
    char key[16];
    int i;

    for (i = 0; i < 150; i++) {
        snprintf(key, sizeof(key), "held%d", i);
        lks[i] = take(far, key, NULL, 3000);
    }
    pause_ms(300); /* until the watch is there, as the second connection */
    tell("port 1 hold");
    tell("conn 1 delay 0");
    tell("conn 2 reset");
    lk = take(far, "fresh", NULL, 9000);
    CHECK_OK(hf_release(lk, &t_err));
    pause_ms(5000);
    for (i = 0; i < 150; i++)
        CHECK_OK(hf_release(lks[i], &t_err));
    hf_close(far);
    net_free(net);
}

T_MAIN
