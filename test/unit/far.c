/* SPDX-License-Identifier: MIT
 *
 * far.c - the core over a service that is far away or silent.
 *
 * The promises are the core's: no lock's trouble costs another lock its
 * renewal, and no call of an event loop waits for the service.
 */
#include "far.h"

/* ---- renewals ---------------------------------------------------------- */

TEST(a_short_lease_leaves_no_mark_on_the_renewals_of_others)
{
    hf_client *client = far_client(5000);
    hf_lock *lk;

    CHECK_OK(hf_release(far_lock(client, "short", 200), &t_err));
    atomic_store(&far_trip_ms, 100);
    lk = far_lock(client, "long", 3000);
    t_sleep_ms(4000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

TEST(a_lease_of_four_round_trips_is_kept)
{
    hf_client *client = far_client(5000);
    hf_lock *lk;

    atomic_store(&far_trip_ms, 300);
    lk = far_lock(client, "k", 1400);
    t_sleep_ms(4000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

TEST(a_renewal_without_an_answer_does_not_delay_a_shorter_lease)
{
    hf_client *client = far_client(60000);
    hf_lock *silent, *lk;

    far_silent_key = "silent";
    silent = far_lock(client, "silent", 6000);
    CHECK_STATUS(hf_acquire(client, "silent", 0, NULL, &lk, &t_err), HF_BUSY);
    lk = far_lock(client, "short", 2000);
    atomic_store(&far_trip_ms, 20);
    /* It is on the wire for as long as it may be, again and again. */
    CHECK(hf_remaining_ms(silent) > 0);
    t_sleep_ms(4000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    far_silent_key = NULL;
    CHECK_OK(hf_release(silent, &t_err));
    far_end(client);
}

/* ---- tries ------------------------------------------------------------- */

TEST(a_single_try_ends_also_where_the_way_is_longer_than_the_lease)
{
    struct hf_lock_opts opts = far_opts(50, 0);
    hf_client *client = far_client(5000);
    hf_lock *lk;

    atomic_store(&far_trip_ms, 100);
    CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &lk, &t_err), HF_UNCERTAIN);
    CHECK(strstr(t_err.text, "lease") != NULL);
    far_end(client);
}

TEST(tries_without_an_answer_count_as_tries)
{
    struct hf_lock_opts opts = far_opts(1000, 0);
    hf_client *client = far_client(100);
    hf_lock *lk;

    opts.max_tries = 3;
    atomic_store(&far_silent, true);
    CHECK_STATUS(hf_acquire(client, "k", -1, &opts, &lk, &t_err), HF_UNCERTAIN);
    far_end(client);
}

TEST(a_try_that_arrives_after_the_release_is_taken_back)
{
    hf_client *client = far_client(200);
    struct hf_lock_opts opts = far_opts(40000, 0);
    hf_lock *lk;

    atomic_store(&far_late_try, true);
    CHECK_OK(hf_acquire(client, "k", 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(far_is_free(client, "k"));
    far_arrive();
    CHECK(!far_is_free(client, "k"));
    t_poll_until(far_is_free(client, "k"), 30000);
    far_end(client);
}

/* ---- event loops ------------------------------------------------------- */

static void far_take_failed(hf_client *client, int n, hf_status want)
{
    struct hf_event event = HF_EVENT_INIT;
    int i;

    for (i = 0; i < n; i++) {
        t_poll_until(hf_next_event(client, &event), 20000);
        CHECK_EQ(event.type, HF_FAILED);
        CHECK_EQ(event.error.status, want);
    }
}

TEST(cancelled_requests_end_although_the_service_is_silent)
{
    enum { N = 100 };
    hf_client *client = far_client(60000);
    hf_request *rq[N];
    char key[16];
    int i;

    atomic_store(&far_silent, true);
    for (i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_OK(hf_acquire_start(client, key, -1, NULL, NULL, &rq[i], &t_err));
    }
    t_sleep_ms(50);
    for (i = 0; i < N; i++)
        hf_request_cancel(rq[i]);
    far_take_failed(client, N, HF_CANCELED);
    CHECK_EQ(atomic_load(&far_calls_here), 0);
    far_end(client);
}

TEST(hf_cancel_ends_requests_although_the_service_is_silent)
{
    enum { N = 40 };
    hf_client *client = far_client(60000);
    hf_request *rq;
    char key[16];
    int i;

    atomic_store(&far_silent, true);
    for (i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "k%d", i / 2);
        CHECK_OK(hf_acquire_start(client, key, -1, NULL, NULL, &rq, &t_err));
    }
    t_sleep_ms(50);
    hf_cancel(client);
    far_take_failed(client, N, HF_CANCELED);
    far_end(client);
}

TEST(an_abandoned_try_that_is_granted_is_given_back)
{
    hf_client *client = far_client(60000);
    hf_request *rq;

    atomic_store(&far_silent, true);
    CHECK_OK(hf_acquire_start(client, "k", -1, NULL, NULL, &rq, &t_err));
    t_sleep_ms(50);
    hf_request_cancel(rq);
    far_take_failed(client, 1, HF_CANCELED);
    atomic_store(&far_silent, false);
    CHECK_OK(hf_release(far_lock(client, "other", 5000), &t_err));
    t_poll_until(far_is_free(client, "k"), 20000);
    far_end(client);
}

TEST(no_call_of_an_event_loop_goes_to_the_service_itself)
{
    struct hf_lock_opts opts = far_opts(500, 0);
    hf_client *client = far_client(60000);
    struct hf_event event = HF_EVENT_INIT;
    hf_lock *locks[20], *lingering;
    hf_request *rq;
    char key[16];
    int i;

    for (i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        locks[i] = far_lock(client, key, 500);
    }
    opts.ttl_ms = 60000;
    opts.linger_ms = 60000;
    CHECK_OK(hf_acquire(client, "lingers", 0, &opts, &lingering, &t_err));
    CHECK_OK(hf_release(lingering, &t_err));
    atomic_store(&far_silent, true);
    for (i = 0; i < 20; i++)
        t_poll_until(!hf_held(locks[i]), 20000);
    atomic_store(&far_calls_here, 0);
    opts = far_opts(500, HF_FAIR); /* It does not fit what lingers. */
    CHECK_OK(hf_acquire_start(client, "lingers", -1, &opts, NULL, &rq, &t_err));
    for (i = 0; i < 20; i++)
        CHECK_STATUS(hf_release(locks[i], &t_err), HF_LOST);
    hf_request_cancel(rq);
    do
        t_poll_until(hf_next_event(client, &event), 20000);
    while (event.type != HF_FAILED);
    CHECK_EQ(atomic_load(&far_calls_here), 0);
    far_end(client);
}

TEST(one_request_that_has_no_answer_does_not_keep_the_next_waiting)
{
    hf_client *client = far_client(60000);
    struct hf_event event = HF_EVENT_INIT;
    hf_request *rq;

    atomic_store(&far_silent, true);
    CHECK_OK(hf_acquire_start(client, "first", -1, NULL, NULL, &rq, &t_err));
    t_sleep_ms(50);
    atomic_store(&far_silent, false); /* the first has its answer soon */
    atomic_store(&far_trip_ms, 5);
    CHECK_OK(hf_acquire_start(client, "second", -1, NULL, NULL, &rq, &t_err));
    for (int i = 0; i < 2; i++) {
        t_poll_until(hf_next_event(client, &event), 20000);
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_OK(hf_release(event.lock, &t_err));
    }
    far_end(client);
}

/* With one key the first tries wait for each other, with many for a worker. */
static void far_check_wait(int keys, unsigned flags)
{
    struct hf_lock_opts opts = far_opts(30000, flags);
    hf_client *client = far_client(60000);
    int64_t began = t_now_ms();
    struct hf_event event = HF_EVENT_INIT;
    hf_request *rq;
    char name[16];
    int i;

    atomic_store(&far_silent, true);
    for (i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "%d", i % keys);
        CHECK_OK(hf_acquire_start(client, name, -1, &opts, NULL, &rq, &t_err));
    }
    t_sleep_ms(50);
    CHECK_OK(hf_acquire_start(client, keys > 1 ? "other" : "0", 100, &opts,
                              client, &rq, &t_err));
    t_poll_until(hf_next_event(client, &event), 30000);
    CHECK_EQ(event.type, HF_FAILED);
    CHECK_EQ(event.error.status, HF_UNAVAILABLE);
    CHECK(event.user == client);
    hf_cancel(client);
    far_take_failed(client, 40, HF_CANCELED);
    CHECK_LT(t_now_ms() - began, 50000);
    far_end(client);
}

TEST(a_wait_ends_in_time_although_no_worker_is_free)
{
    far_check_wait(39, HF_FAIR);
    far_check_wait(1, HF_FAIR);
}

/* ---- the local queue --------------------------------------------------- */

struct leader {
    hf_client *client;
    int64_t wait_ms;
    struct hf_lock_opts opts;
    pthread_t thread;
    hf_status st;
};

static void *far_leader_run(void *arg)
{
    struct leader *leader = arg;
    hf_lock *lk;

    leader->st = hf_acquire(leader->client, "k", leader->wait_ms, &leader->opts,
                            &lk, NULL);
    if (!leader->st)
        CHECK_OK(hf_release(lk, &t_err));
    return NULL;
}

static void far_leader_start(struct leader *leader)
{
    CHECK_EQ(pthread_create(&leader->thread, NULL, far_leader_run, leader), 0);
    t_sleep_ms(500);
}

TEST(a_local_waiter_is_not_told_of_a_holder_that_nobody_has_seen)
{
    hf_client *client = far_client(100);
    struct leader leader = {client, 60000, far_opts(30000, 0), 0, HF_OK};
    hf_lock *lk;

    atomic_store(&far_silent, true);
    far_leader_start(&leader);
    CHECK_STATUS(hf_acquire(client, "k", 0, NULL, &lk, &t_err), HF_UNAVAILABLE);
    CHECK_STATUS(hf_acquire(client, "k", 50, NULL, &lk, &t_err),
                 HF_UNAVAILABLE);
    hf_cancel(client);
    pthread_join(leader.thread, NULL);
    CHECK_EQ(leader.st, HF_CANCELED);
    far_end(client);
}

TEST(a_local_waiter_does_not_wait_for_the_next_poll_of_another)
{
    hf_client *client = far_client(5000), *other = far_client(5000);
    struct leader leader = {client, -1, far_opts(30000, HF_POLL), 0, HF_OK};
    struct leader second = {client, 60000, far_opts(30000, 0), 0, HF_OK};
    hf_lock *lk = far_lock(other, "k", 60000);
    int64_t began;

    leader.opts.retry_ms = 600000;
    far_leader_start(&leader);
    far_leader_start(&second);
    began = t_now_ms();
    CHECK_OK(hf_release(lk, &t_err));
    pthread_join(second.thread, NULL);
    pthread_join(leader.thread, NULL);
    CHECK_EQ(leader.st, HF_OK);
    CHECK_EQ(second.st, HF_OK);
    CHECK_LT(t_now_ms() - began, 30000);
    far_end(client);
    far_end(other);
}

/* Whoever gets it next gets a grant with a whole lease. */
TEST(a_lease_that_is_nearly_over_is_not_handed_on)
{
    struct hf_lock_opts opts = far_opts(3000, 0);
    hf_client *client = far_client(5000);
    hf_lock *lk = far_lock(client, "k", 3000);
    uint64_t fence = hf_fence(lk);
    struct hf_event event = HF_EVENT_INIT;
    hf_request *rq;
    hf_status st;

    CHECK_OK(hf_acquire_start(client, "k", -1, &opts, NULL, &rq, &t_err));
    atomic_store(&far_refuses, true);
    t_poll_until(hf_remaining_ms(lk) < 600, 20000);
    st = hf_release(lk, &t_err);
    CHECK(st == HF_OK || st == HF_LOST);
    atomic_store(&far_refuses, false);
    do
        t_poll_until(hf_next_event(client, &event), 20000);
    while (event.type != HF_GRANTED);
    CHECK_GT(hf_fence(event.lock), fence);
    CHECK_OK(hf_release(event.lock, &t_err));
    far_end(client);
}

/* ---- lingering --------------------------------------------------------- */

static void far_release_to_linger(hf_client *client, int64_t ttl_ms)
{
    struct hf_lock_opts opts = far_opts(ttl_ms, 0);
    hf_lock *lk;

    opts.linger_ms = 100000;
    CHECK_OK(hf_acquire(client, "k", 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
}

TEST(a_lock_does_not_linger_where_wake_ups_may_have_been_missed)
{
    hf_client *client = far_client(5000);

    far_release_to_linger(client, 60000);
    CHECK(!far_is_free(client, "k"));
    hfi_wake_all(client->conn);
    t_poll_until(far_is_free(client, "k"), 20000);
    far_release_to_linger(client, 60000); /* It listens anew. */
    CHECK(!far_is_free(client, "k"));
    far_end(client);
}

TEST(a_lock_does_not_linger_unheard)
{
    hf_client *client = far_client(200);

    atomic_store(&far_no_watch, true);
    far_release_to_linger(client, 60000);
    CHECK(far_is_free(client, "k"));
    atomic_store(&far_no_watch, false);
    far_end(client);
}

TEST(a_lock_is_released_although_nobody_can_be_heard)
{
    hf_client *client = far_client(60000);

    atomic_store(&far_no_watch, true);
    far_release_to_linger(client, 3000); /* HF_OK, not HF_LOST */
    CHECK(far_is_free(client, "k"));
    atomic_store(&far_no_watch, false);
    far_end(client);
}

TEST(max_hold_ms_does_not_end_a_lock_that_lingers)
{
    struct hf_lock_opts opts = far_opts(60000, 0);
    hf_client *client = far_client(5000);
    uint64_t fence;
    hf_lock *lk;

    opts.linger_ms = 100000;
    opts.max_hold_ms = 300;
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    t_sleep_ms(600);
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    CHECK_EQ(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

TEST(each_holder_of_a_lease_is_told_that_it_is_at_risk)
{
    struct hf_lock_opts opts = far_opts(6000, 0);
    hf_client *client = far_client(5000);
    struct hf_event event = HF_EVENT_INIT;
    hf_lock *lk;
    int i;

    atomic_store(&far_refuses, true);
    opts.linger_ms = 100000;
    for (i = 0; i < 2; i++) {
        CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
        t_poll_until(hf_next_event(client, &event), 20000);
        CHECK_EQ(event.type, HF_AT_RISK);
        CHECK_EQ(hf_release(lk, NULL), HF_OK);
    }
    atomic_store(&far_refuses, false);
    far_end(client);
}

/* ---- closing ----------------------------------------------------------- */

TEST(closing_a_client_far_away_leaves_nothing)
{
    enum { HELD = 400 };
    hf_client *client = far_client(20000), *other = far_client(5000);
    hf_lock *locks[HELD];
    char key[16];
    int i;

    for (i = 0; i < HELD; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        locks[i] = far_lock(client, key, 60000);
    }
    atomic_store(&far_trip_ms, 100); /* one by one: 40 seconds */
    hf_close(client);
    for (i = 0; i < HELD; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK(far_is_free(other, key));
        CHECK_STATUS(hf_release(locks[i], &t_err), HF_LOST);
    }
    far_end(other);
}

TEST(closing_a_client_of_many_locks_and_requests_is_linear)
{
    enum { HELD = 20000, ASKED = 4000 };
    hf_client *client = far_client(5000);
    hf_lock **locks = calloc(HELD, sizeof(*locks));
    hf_request *rq;
    char key[16];
    int i;

    CHECK(locks != NULL);
    for (i = 0; i < HELD; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        locks[i] = far_lock(client, key, 60000);
    }
    for (i = 0; i < ASKED; i++) {
        snprintf(key, sizeof(key), "k%d", i * 5);
        CHECK_OK(hf_acquire_start(client, key, -1, NULL, NULL, &rq, &t_err));
    }
    hf_close(client);
    for (i = 0; i < HELD; i++)
        CHECK_STATUS(hf_release(locks[i], &t_err), HF_LOST);
    free(locks);
}

T_MAIN
