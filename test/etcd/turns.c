/* SPDX-License-Identifier: MIT
 *
 * turns.c - what those who take turns, and those who come together, ask of the
 * server: run under test/servers/etcd, whose own counters are read.
 */
#include "t.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 30, CONTENDERS = 32, QUEUE = 150 };

/* The sum of all counters whose line begins with `name` and has `with` in it. */
static long counter(const char *name, const char *with)
{
    char command[256], line[1024];
    double sum = 0;
    FILE *pipe;

    snprintf(command, sizeof(command), "curl -s %s/metrics",
             getenv("ETCDCTL_ENDPOINTS"));
    pipe = popen(command, "r");
    CHECK(pipe != NULL);
    while (fgets(line, sizeof(line), pipe))
        if (!strncmp(line, name, strlen(name)) && strstr(line, with))
            sum += atof(strrchr(line, ' '));
    CHECK_EQ(pclose(pipe), 0);
    return (long)sum;
}

static long asked(const char *method)
{
    return counter("grpc_server_msg_received_total", method);
}

static long watchers(void)
{
    return counter("etcd_debugging_mvcc_watcher_total", "");
}

static hf_client *client_new(void)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    return client;
}

static hf_lock *take(hf_client *client)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "turns", 0, NULL, &lk, &t_err));
    return lk;
}

static hf_lock *granted(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    t_poll_until(hf_next_event(client, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    return event.lock;
}

/* Pass the lock to the other client, who waits for it when it is released. */
static hf_lock *pass(hf_lock *lk, hf_client *to)
{
    hf_request *rq = NULL;

    CHECK_OK(hf_acquire_start(to, "turns", -1, NULL, NULL, &rq, &t_err));
    t_poll_until(hf_request_place(rq) == 1, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    return granted(to);
}

TEST(a_turn_is_three_transactions_and_one_event)
{
    hf_client *a = client_new(), *b = client_new();
    hf_lock *lk = take(a);
    long txns, watches;
    int i;

    lk = pass(pass(lk, b), a);
    txns = asked("\"Txn\"");
    watches = asked("\"Watch\"");
    for (i = 0; i < TURNS; i++)
        lk = pass(lk, i % 2 ? a : b);
    txns = asked("\"Txn\"") - txns;
    watches = asked("\"Watch\"") - watches;
    printf("# %d turns: %ld transactions, %ld of watches\n", TURNS, txns,
           watches);
    CHECK_GE(txns, 3 * TURNS);
    CHECK_LE(txns, 3 * TURNS + TURNS / 3);
    CHECK_LE(watches, TURNS / 3);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* Wait for one of the permits of a key, with that place in the queue; 0: one
 * is free. */
static void stand_for(hf_client *client, const char *key, int32_t permits,
                      int place)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_request *rq = NULL;

    opts.permits = permits;
    opts.ttl_ms = 600000;
    CHECK_OK(hf_acquire_start(client, key, -1, &opts, NULL, &rq, &t_err));
    if (place)
        t_poll_until(hf_request_place(rq) == place, 20000);
}

static void stand(hf_client *client, int place)
{
    stand_for(client, "turns/permits", 2, place);
}

/* A place, a look when the permit is free, the slot, the release, and perhaps a
 * look of the one behind; who comes takes up the watch of last time. */
TEST(a_turn_of_a_permit_wakes_one_of_two_who_wait)
{
    enum { CLIENTS = 4 };
    hf_client *clients[CLIENTS];
    hf_lock *lk[CLIENTS] = {NULL};
    long txns = 0;
    int i, j;

    for (i = 0; i < CLIENTS; i++)
        clients[i] = client_new();
    for (i = 0; i < 2; i++) {
        stand(clients[i], 0);
        lk[i] = granted(clients[i]);
    }
    stand(clients[2], 1);
    for (i = 0; i < 2 * CLIENTS + TURNS; i++) {
        if (i == 2 * CLIENTS)
            txns = asked("\"Txn\"");
        stand(clients[(i + 3) % CLIENTS], 2);
        CHECK_OK(hf_release(lk[i % CLIENTS], &t_err));
        j = (i + 2) % CLIENTS;
        lk[j] = granted(clients[j]);
    }
    txns = asked("\"Txn\"") - txns;
    printf("# %d turns: %ld transactions\n", TURNS, txns);
    CHECK_GE(txns, 4 * TURNS);
    CHECK_LE(txns, 4 * TURNS + TURNS * 2 / 3);
    for (j = i; j < i + 3; j++) {
        if (j == i + 2)
            lk[j % CLIENTS] = granted(clients[j % CLIENTS]);
        CHECK_OK(hf_release(lk[j % CLIENTS], &t_err));
    }
    for (j = 0; j < CLIENTS; j++)
        hf_close(clients[j]);
}

/* More than one of them can write slots for.  A wake-up that was lost would be
 * made up for after half a lease, which is minutes. */
TEST(permits_that_become_free_together_are_all_taken)
{
    enum { PERMITS = 6, ROUNDS = 10 };
    hf_client *all[2 * PERMITS], **have = all, **want = all + PERMITS, **swap;
    hf_lock *lk[PERMITS];
    int i, round;

    for (i = 0; i < 2 * PERMITS; i++)
        all[i] = client_new();
    for (i = 0; i < PERMITS; i++) {
        stand_for(have[i], "turns/all", PERMITS, 0);
        lk[i] = granted(have[i]);
    }
    for (round = 0; round < ROUNDS; round++) {
        for (i = 0; i < PERMITS; i++)
            stand_for(want[i], "turns/all", PERMITS, i + 1);
        for (i = 0; i < PERMITS; i++)
            hf_release_start(lk[i], NULL, NULL);
        for (i = 0; i < PERMITS; i++)
            lk[i] = granted(want[i]);
        swap = have;
        have = want;
        want = swap;
    }
    for (i = 0; i < PERMITS; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    for (i = 0; i < 2 * PERMITS; i++)
        hf_close(all[i]);
}

/* Take and give back what `opts` says, so many transactions. */
static void check_pair(hf_client *client, int64_t wait_ms,
                       const struct hf_lock_opts *opts, long want)
{
    long txns = asked("\"Txn\"");
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "turns", wait_ms, opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(asked("\"Txn\"") - txns, want);
}

/* Whether it is tried once or waited for. */
TEST(what_a_pair_costs_alone_and_beside_others)
{
    struct hf_lock_opts read = HF_LOCK_OPTS_INIT, some = HF_LOCK_OPTS_INIT;
    hf_client *a = client_new(), *b = client_new();
    hf_lock *lk;

    read.flags = HF_SHARED;
    some.permits = 3;
    read.ttl_ms = some.ttl_ms = 600000;    /* No renewal is counted. */
    CHECK_OK(hf_release(take(a), &t_err)); /* It has its lease. */
    check_pair(a, 0, NULL, 2);
    check_pair(a, -1, NULL, 2);
    check_pair(a, 0, &read, 2);
    check_pair(a, -1, &read, 2);
    check_pair(a, 0, &some, 2);
    check_pair(a, -1, &some, 3); /* a place, then a slot */
    CHECK_OK(hf_acquire(b, "turns", 0, &read, &lk, &t_err));
    check_pair(a, 0, &read, 2);
    check_pair(a, -1, &read, 2);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(b, "turns", 0, &some, &lk, &t_err));
    check_pair(a, 0, &some, 3); /* a look, then the slot that is free */
    check_pair(a, -1, &some, 3);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* Each has watched the other's key and keeps that for the next time.  When the
 * other goes on alone, word of it comes once and not again. */
TEST(nobody_listens_to_a_queue_that_he_has_left)
{
    hf_client *a = client_new(), *b = client_new();
    hf_lock *lk;
    int i;

    t_poll_until(watchers() == 0, 20000); /* those of the test before */
    lk = take(a);
    for (i = 0; i < 4; i++)
        lk = pass(lk, i % 2 ? a : b);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_GT(watchers(), 2); /* word of broken locks, for each, and more */
    for (i = 0; i < 2; i++)
        CHECK_OK(hf_release(take(i % 2 ? a : b), &t_err));
    t_poll_until(watchers() == 2, 20000);
    hf_close(a);
    hf_close(b);
}

static long leases(void)
{
    long n = -1;
    FILE *pipe = popen("etcdctl lease list", "r");

    CHECK(pipe != NULL);
    if (fscanf(pipe, "found %ld leases", &n) != 1)
        n = -1;
    pclose(pipe);
    return n;
}

TEST(a_lease_that_lapsed_is_not_listened_for)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = client_new();
    hf_lock *lk;
    int i;

    opts.ttl_ms = 1000;
    t_poll_until(watchers() == 0 && leases() == 0, 20000);
    for (i = 0; i < 3; i++) {
        t_poll_until(leases() == 0, 20000);
        CHECK_OK(hf_acquire(client, "lapse", 0, &opts, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    t_poll_until(watchers() == 1, 20000);
    hf_close(client);
}

static bool count_one(void *arg, const char *key, const struct hf_info *info)
{
    CHECK(info->held && info->left_ms > 0);
    CHECK(!strncmp(key, "list-", 5));
    ++*(int *)arg;
    return true;
}

TEST(many_locks_are_listed_in_a_few_requests)
{
    hf_client *a = client_new(), *b = client_new();
    hf_lock *all[CONTENDERS];
    char key[32];
    long ranges, ttls;
    int i, n = 0;

    for (i = 0; i < CONTENDERS; i++) {
        snprintf(key, sizeof(key), "list-%d/x", i);
        CHECK_OK(hf_acquire(i % 2 ? a : b, key, 0, NULL, &all[i], &t_err));
    }
    ranges = asked("\"Range\"");
    ttls = asked("\"LeaseTimeToLive\"");
    CHECK_OK(hf_list(a, "list-", count_one, &n, &t_err));
    CHECK_EQ(n, CONTENDERS);
    CHECK_EQ(asked("\"Range\"") - ranges, 1);
    CHECK_EQ(asked("\"LeaseTimeToLive\"") - ttls, 2);
    for (i = 0; i < CONTENDERS; i++)
        CHECK_OK(hf_release(all[i], &t_err));
    hf_close(a);
    hf_close(b);
}

/* ---- many threads of one client ---------------------------------------- */

struct contenders {
    hf_client *client;
    bool one_key;
    long done; /* with one key the lock guards these */
    uint64_t fence;
};

static void *contenders_run(void *arg)
{
    struct contenders *contenders = arg;
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    char key[32];
    hf_lock *lk;
    int i;

    opts.flags = HF_FAIR;
    snprintf(key, sizeof(key), "contenders-%lx",
             contenders->one_key ? 0 : (unsigned long)pthread_self());
    for (i = 0; i < TURNS; i++) {
        CHECK_OK(hf_acquire(contenders->client, key, -1, &opts, &lk, &t_err));
        if (contenders->one_key) {
            CHECK_GT(hf_fence(lk), contenders->fence);
            contenders->fence = hf_fence(lk);
            contenders->done++;
        }
        CHECK_OK(hf_release(lk, &t_err));
    }
    return NULL;
}

static void contenders_go(struct contenders *contenders)
{
    pthread_t threads[CONTENDERS];
    int i;

    for (i = 0; i < CONTENDERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, contenders_run, contenders),
                 0);
    for (i = 0; i < CONTENDERS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

/* Two for each pair, if each went alone. */
TEST(locks_of_many_threads_are_taken_together)
{
    struct contenders contenders = {.client = client_new()};
    long txns = asked("\"Txn\"");

    contenders_go(&contenders);
    txns = asked("\"Txn\"") - txns;
    printf("# %d pairs: %ld transactions\n", CONTENDERS * TURNS, txns);
    CHECK_LE(txns, CONTENDERS * TURNS * 9 / 10);
    hf_close(contenders.client);
}

/* They would have one revision, and so one fence. */
TEST(but_never_one_lock_twice)
{
    struct contenders contenders = {.client = client_new(), .one_key = true};

    contenders_go(&contenders);
    CHECK_EQ(contenders.done, CONTENDERS * TURNS);
    hf_close(contenders.client);
}

/* ---- a long queue ------------------------------------------------------ */

static hf_request *queue_up(hf_client *client)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_request *rq = NULL;

    opts.flags = HF_FAIR;
    CHECK_OK(hf_acquire_start(client, "turns", -1, &opts, NULL, &rq, &t_err));
    return rq;
}

static int32_t waiters(hf_client *client)
{
    struct hf_info info = {.size = sizeof(info)};

    CHECK_OK(hf_inspect(client, "turns", &info, &t_err));
    return info.waiters;
}

/* Who queues far behind another of the same client watches that one; some of
 * those go away, the last among them. */
TEST(a_long_queue_moves_on_when_some_leave_it)
{
    hf_client *client = client_new();
    hf_request *all[QUEUE];
    hf_lock *lk = take(client);
    struct hf_event event = HF_EVENT_INIT;
    uint64_t fence = hf_fence(lk);
    int i, left = 0, granted = 0;

    for (i = 0; i < QUEUE; i++)
        all[i] = queue_up(client);
    t_poll_until(waiters(client) == QUEUE, 30000);
    for (i = 90; i < QUEUE; i += 29)
        hf_request_cancel(all[i]);
    hf_request_cancel(all[QUEUE - 1]);
    for (i = 0; i < 10; i++)
        queue_up(client);
    CHECK_OK(hf_release(lk, &t_err));
    while (left + granted < QUEUE + 10) {
        t_poll_until(hf_next_event(client, &event), 20000);
        if (event.type == HF_FAILED) {
            left++;
            continue;
        }
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_GT(hf_fence(event.lock), fence);
        fence = hf_fence(event.lock);
        granted++;
        CHECK_OK(hf_release(event.lock, &t_err));
    }
    CHECK_EQ(left, 4);
    hf_close(client);
}

T_MAIN
