/* SPDX-License-Identifier: MIT
 *
 * several.c - several keys in one transaction of etcd: run under
 * test/servers/etcd.  Those that were granted together have the same fence,
 * which shows that they were.
 */
#include "t.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../torture/net.h"

enum { KEYS = 3, MANY = 64 };

static const char *const keys[KEYS] = {"all/c", "all/a", "all/b"};

static hf_client *client_new(const char *url, int64_t timeout_ms)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;

    opts.timeout_ms = timeout_ms;
    CHECK_OK(hf_open(url, &opts, &client, &t_err));
    return client;
}

static hf_client *near_new(void)
{
    return client_new(getenv("HF_TEST_URL"), 0);
}

static hf_status acquire_all(hf_client *client, unsigned flags, int32_t permits,
                             int64_t wait_ms, hf_lock **locks)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = 20000;
    opts.flags = flags;
    opts.permits = permits;
    return hf_acquire_all(client, keys, KEYS, wait_ms, &opts, locks, &t_err);
}

static void release_all(hf_lock *const *locks)
{
    for (int i = 0; i < KEYS; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
}

static bool together(hf_lock *const *locks, int n)
{
    for (int i = 1; i < n; i++)
        if (hf_fence(locks[i]) != hf_fence(locks[0]))
            return false;
    return true;
}

/* How many of the keys are held. */
static int held(hf_client *client)
{
    int n = 0;

    for (int i = 0; i < KEYS; i++) {
        struct hf_info info = HF_INFO_INIT;

        CHECK_OK(hf_inspect(client, keys[i], &info, &t_err));
        n += info.held;
    }
    return n;
}

TEST(keys_that_are_free_are_taken_by_one_write)
{
    hf_client *a = near_new(), *b = near_new();
    hf_lock *locks[KEYS], *other = NULL;
    uint64_t fence = 0;

    for (int turn = 0; turn < 3; turn++) {
        CHECK_OK(acquire_all(a, 0, 0, 0, locks));
        CHECK(together(locks, KEYS));
        CHECK_GT(hf_fence(locks[0]), fence);
        fence = hf_fence(locks[0]);
        for (int i = 0; i < KEYS; i++) {
            CHECK_OK(hf_extend(locks[i], 0, &t_err));
            CHECK_OK(hf_check(b, keys[i], fence, &t_err));
            CHECK_STATUS(hf_acquire(b, keys[i], 0, NULL, &other, &t_err),
                         HF_BUSY);
        }
        release_all(locks);
        CHECK_EQ(held(b), 0);
    }
    hf_close(a);
    hf_close(b);
}

TEST(one_that_is_taken_keeps_all_free)
{
    hf_client *a = near_new(), *b = near_new();
    hf_lock *locks[KEYS], *other = NULL;

    CHECK_OK(hf_acquire(b, keys[1], 0, NULL, &other, &t_err));
    CHECK_STATUS(acquire_all(a, 0, 0, 0, locks), HF_BUSY);
    CHECK_EQ(held(b), 1);
    CHECK_OK(hf_release(other, &t_err));
    CHECK_OK(acquire_all(a, 0, 0, 0, locks));
    CHECK(together(locks, KEYS));
    release_all(locks);
    hf_close(a);
    hf_close(b);
}

TEST(readers_and_permits_are_taken_together_too)
{
    hf_client *a = near_new(), *b = near_new();
    hf_lock *first[KEYS], *second[KEYS], *none[KEYS];

    CHECK_OK(acquire_all(a, HF_SHARED, 0, 0, first));
    CHECK(together(first, KEYS));
    CHECK_OK(acquire_all(b, HF_SHARED, 0, 0, second));
    CHECK(together(second, KEYS));
    CHECK_STATUS(acquire_all(a, 0, 0, 0, none), HF_BUSY);
    CHECK_STATUS(acquire_all(a, 0, 2, 0, none), HF_INVALID);
    release_all(first);
    CHECK_EQ(held(b), KEYS);
    release_all(second);
    CHECK_OK(acquire_all(a, 0, 2, 0, first));
    CHECK(together(first, KEYS));
    CHECK_OK(acquire_all(b, 0, 2, 0, second));
    for (int i = 0; i < KEYS; i++)
        CHECK(hf_slot(first[i]) == 0 && hf_slot(second[i]) == 1);
    CHECK_STATUS(acquire_all(a, 0, 0, 0, none), HF_INVALID);
    release_all(first);
    release_all(second);
    hf_close(a);
    hf_close(b);
}

TEST(as_many_as_one_may_ask_for_fit_into_one)
{
    hf_client *client = near_new();
    char names[MANY][300];
    const char *many[MANY];
    hf_lock *locks[MANY];

    for (int i = 0; i < MANY; i++) {
        snprintf(names[i], sizeof(names[i]), "many%d%0250d", i, 0);
        many[i] = names[i];
    }
    CHECK_OK(hf_acquire_all(client, many, MANY, 0, NULL, locks, &t_err));
    CHECK(together(locks, MANY));
    for (int i = 0; i < MANY; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    hf_close(client);
}

static void *ask(void *client)
{
    hf_lock *locks[KEYS];

    CHECK_STATUS(acquire_all(client, 0, 0, 0, locks), HF_UNCERTAIN);
    return NULL;
}

/* Another lock keeps the lease alive that they are on. */
TEST_TIMEOUT(keys_whose_answer_is_lost_are_given_back, 60)
{
    const char *real = strstr(getenv("HF_TEST_URL"), "//") + 2;
    hf_client *near = near_new(), *far;
    hf_lock *locks[KEYS], *kept = NULL;
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct net *net = net_new();
    pthread_t thread;
    char url[128], host[64], answer[128];
    char *port;

    snprintf(host, sizeof(host), "%s", real);
    port = strchr(host, ':');
    *port++ = '\0';
    snprintf(url, sizeof(url), "etcd://127.0.0.1:%d",
             net_port(net, host, port));
    far = client_new(url, 2000);
    opts.ttl_ms = 20000;
    CHECK_OK(hf_acquire(far, "kept", 0, &opts, &kept, &t_err));
    CHECK(net_tell(net, "conn 1 down hold", answer, sizeof(answer)));
    CHECK(!pthread_create(&thread, NULL, ask, far));
    t_poll_until(held(near) == KEYS, 20000);
    pthread_join(thread, NULL);
    t_poll_until(held(near) == 0, 40000);
    CHECK_OK(acquire_all(near, 0, 0, 0, locks));
    release_all(locks);
    hf_release(kept, NULL);
    hf_close(far);
    hf_close(near);
    net_free(net);
}

T_MAIN
