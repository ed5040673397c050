/* SPDX-License-Identifier: MIT
 *
 * scale.c - many locks, many waiters, dead waiters, leases of all lengths.
 *
 * The same promises as in the other files, where there is a lot of everything
 * or a long way to the service.  It is a program of its own because it is also
 * run through a proxy that makes each round trip take 25 or 100 ms.
 */
#include "conf.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* Each is a lot of everything. */
int conf_jobs = 1;

/* How many locks this process may hold: on some services each is a
 * descriptor. */
static int scale_locks(int most)
{
    struct rlimit limit;
    int n = t_scaled(most, 100);

    CHECK(!getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (!(conf_traits & HF_TRAIT_MACHINES) && (rlim_t)n > limit.rlim_cur / 4)
        n = (int)(limit.rlim_cur / 4);
    return n;
}

TEST_TIMEOUT(leases_of_all_lengths_live_side_by_side, 120)
{
    static const int64_t ttls[] = {3000, 6000, 12000, 30000, 120000};
    enum { N = sizeof(ttls) / sizeof(ttls[0]) };
    struct hf_lock_opts opts;
    hf_client *client = conf_open();
    hf_lock *locks[N];
    char name[16];

    /* One that is short, and gone when the others are renewed. */
    opts = conf_exact_opts(1000, 0);
    conf_unlock(conf_lock(client, conf_key("short"), &opts));
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof(name), "k%d", i);
        opts = conf_exact_opts(ttls[i], 0);
        locks[i] = conf_lock(client, conf_key(name), &opts);
    }
    t_sleep_ms(4000); /* longer than the shortest of them */
    for (int i = 0; i < N; i++) {
        CHECK(hf_held(locks[i]));
        conf_unlock(locks[i]);
    }
    hf_close(client);
}

/* Take `n` locks by as many requests at once. */
static void scale_take(hf_client *client, hf_lock **locks, int n,
                       const struct hf_lock_opts *opts)
{
    hf_request *rq;
    char name[16];

    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "m%d", i);
        CHECK_OK(hf_acquire_start(client, conf_key(name), -1, opts,
                                  (void *)(intptr_t)i, &rq, &t_err));
    }
    for (int i = 0; i < n; i++) {
        struct hf_event event = conf_event(client);

        if (event.type == HF_FAILED)
            t_fail(__FILE__, __LINE__, "%s", event.error.text);
        CHECK_EQ(event.type, HF_GRANTED);
        locks[(intptr_t)event.user] = event.lock;
    }
}

TEST_TIMEOUT(ten_thousand_locks_of_one_client_are_all_kept, 300)
{
    struct hf_lock_opts opts = conf_exact_opts(18000, 0);
    hf_client *client = conf_open();
    int n = scale_locks(10000), held = 0;
    hf_lock **locks = calloc((size_t)n, sizeof(hf_lock *));

    CHECK(locks != NULL);
    scale_take(client, locks, n, &opts);
    t_sleep_ms(7000); /* Each is renewed at least once. */
    for (int i = 0; i < n; i++)
        held += hf_held(locks[i]);
    CHECK_EQ(held, n);
    for (int i = 0; i < n; i += n / 50 ? n / 50 : 1) {
        conf_unlock(locks[i]);
        locks[i] = NULL;
    }
    hf_close(client); /* gives back the others */
    for (int i = 0; i < n; i++)
        if (locks[i])
            hf_release(locks[i], NULL);
    conf_check_free(conf_key("m0"));
    free(locks);
}

TEST_TIMEOUT(a_thousand_requests_for_one_key_are_all_granted, 300)
{
    struct hf_lock_opts opts = conf_exact_opts(30000, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    int n = t_scaled(1000, 100);
    hf_request *rq;

    for (int i = 0; i < n; i++)
        CHECK_OK(hf_acquire_start(b, key, -1, &opts, NULL, &rq, &t_err));
    conf_unlock(lk);
    for (int i = 0; i < n; i++) {
        struct hf_event event = conf_event(b);

        CHECK_EQ(event.type, HF_GRANTED);
        conf_unlock(event.lock);
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

/* A process that waits for the key, when it is told to, until it is killed. */
static void scale_dying(struct t_peer *up, void *key)
{
    struct hf_lock_opts opts = conf_exact_opts(2000, HF_FAIR);
    hf_client *client = conf_open();
    hf_lock *lk;

    t_hear(up);
    for (;;) /* It holds only if the others are very slow. */
        if (!hf_acquire(client, key, -1, &opts, &lk, &t_err))
            pause();
}

/* Where there is no queue, those who wait are counted roughly. */
static void scale_await(hf_client *client, const char *key, int n)
{
    conf_await_waiters(client, key, conf_traits & HF_TRAIT_QUEUED ? n : 1);
}

TEST_TIMEOUT(dozens_of_dead_waiters_do_not_hold_up_the_living, 180)
{
    enum { DEAD = 24 };
    struct hf_lock_opts opts = conf_exact_opts(60000, HF_FAIR);
    char *key = strdup(conf_key("k"));
    struct t_peer dead[DEAD];
    struct conf_waiter w;
    hf_client *a, *b;
    hf_lock *lk;

    conf_needs(HF_TRAIT_PROCESSES);
    CHECK(key != NULL);
    for (int i = 0; i < DEAD; i++)
        dead[i] = t_fork(scale_dying, key);
    a = conf_open();
    lk = conf_try(a, key, &opts);
    for (int i = 0; i < DEAD; i++)
        t_tell(&dead[i], 1);
    scale_await(a, key, DEAD);
    b = conf_open();
    conf_waiter_start(&w, b, key, -1, &opts);
    scale_await(a, key, DEAD + 1);
    for (int i = 0; i < DEAD; i++)
        t_kill(&dead[i]);
    conf_unlock(lk);
    /* The dead had leases of 2 s; the holder's own was 60 s. */
    t_poll_until(atomic_load(&w.done), 40000);
    conf_waiter_join(&w, HF_OK);
    conf_unlock(w.lk);
    hf_close(a);
    hf_close(b);
    free(key);
}

TEST_TIMEOUT(a_lock_goes_to_and_fro_between_two_clients, 180)
{
    enum { TURNS = 20 };
    struct hf_lock_opts opts = conf_exact_opts(30000, 0);
    const char *key = conf_key("k");
    hf_client *clients[2] = {conf_open(), conf_open()};
    hf_lock *lk = conf_try(clients[0], key, &opts);
    uint64_t fence = hf_fence(lk);

    for (int i = 1; i <= TURNS; i++) {
        struct conf_waiter w;

        conf_waiter_start(&w, clients[i % 2], key, 60000, &opts);
        conf_await_waiters(clients[(i + 1) % 2], key, 1);
        CHECK(hf_held(lk));
        conf_unlock(lk);
        conf_waiter_join(&w, HF_OK);
        lk = w.lk;
        CHECK(hf_held(lk));
        if (conf_traits & HF_TRAIT_FENCED)
            CHECK_GT(hf_fence(lk), fence);
        fence = hf_fence(lk);
    }
    conf_unlock(lk);
    hf_close(clients[0]);
    hf_close(clients[1]);
}
