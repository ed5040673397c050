/* SPDX-License-Identifier: MIT
 *
 * far.c - the core over a service that is far away, silent or late.
 *
 * The service is mem:, behind a backend that adds what a network adds: a round
 * trip, silence, a try that arrives after everything that was sent later, one
 * key whose renewals have no answer.  Nothing is made up in place of the
 * service; only the way to it is longer.  The promises are the core's: no
 * lock's trouble costs another lock its renewal, and no call of an event loop
 * waits for the service.
 */
#include "../t.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

extern const struct hfi_backend hfi_backend_mem;

struct far_conn {
    struct hfi_conn base;
    struct hfi_conn *near;
};

static _Atomic int64_t far_trip_ms;  /* of every call */
static atomic_bool far_silent;       /* no call has an answer */
static atomic_bool far_late_try;     /* the next try waits for far_arrive() */
static atomic_bool far_late_renewal; /* so does the next renewal */
static const char *_Atomic far_mute_key; /* renewals of it have no answer */
static atomic_int far_calls_here; /* calls made by the test's own thread */
static pthread_t far_test_thread;

/* A try, or a renewal, that is still under way. */
static struct {
    struct hfi_conn *near;
    struct hfi_claim claim;
    int64_t ttl_ms; /* 0: a try */
    char key[64];
} far_late;

static struct hfi_conn *near_of(struct hfi_conn *conn)
{
    return ((struct far_conn *)conn)->near;
}

/* Be under way.  False if that took longer than the caller waits. */
static bool far_go(int64_t deadline, bool mute)
{
    int64_t there = t_now_ms() + atomic_load(&far_trip_ms);

    if (pthread_equal(pthread_self(), far_test_thread))
        atomic_fetch_add(&far_calls_here, 1);
    while (t_now_ms() < deadline &&
           (mute || atomic_load(&far_silent) || t_now_ms() < there))
        t_sleep_ms(1);
    return t_now_ms() < deadline;
}

static hf_status far_open(struct hfi_conn *conn, const struct hfi_url *url,
                          int64_t deadline, struct hf_error *err)
{
    struct far_conn *fc = (struct far_conn *)conn;

    fc->near = calloc(1, hfi_backend_mem.conn_size);
    CHECK(fc->near != NULL);
    fc->near->be = &hfi_backend_mem;
    fc->near->client = conn->client;
    return hfi_backend_mem.open(fc->near, url, deadline, err);
}

static void far_close(struct hfi_conn *conn)
{
    hfi_backend_mem.close(near_of(conn));
    free(near_of(conn));
}

static void far_delay(struct hfi_conn *conn, const struct hfi_claim *claim,
                      int64_t ttl_ms)
{
    far_late.near = near_of(conn);
    far_late.claim = *claim;
    far_late.ttl_ms = ttl_ms;
    snprintf(far_late.key, sizeof(far_late.key), "%s", claim->key);
    far_late.claim.key = far_late.key;
}

static hf_status far_try_acquire(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 struct hfi_answer *answer, int64_t deadline,
                                 struct hf_error *err)
{
    if (atomic_exchange(&far_late_try, false)) {
        far_delay(conn, claim, 0);
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer yet");
    }
    if (!far_go(deadline, false))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    return hfi_backend_mem.try_acquire(near_of(conn), claim, receipt, answer,
                                       deadline, err);
}

/* What was late is there now. */
static void far_arrive(void)
{
    struct hfi_receipt receipt = {0};
    struct hfi_answer answer = {0};
    struct hfi_renewal item = {.claim = &far_late.claim,
                               .receipt = &receipt,
                               .ttl_ms = far_late.ttl_ms};

    if (far_late.ttl_ms)
        hfi_backend_mem.renew(far_late.near, &item, 1, HFI_NEVER, NULL);
    else
        hfi_backend_mem.try_acquire(far_late.near, &far_late.claim, &receipt,
                                    &answer, HFI_NEVER, NULL);
}

static void far_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                      size_t n, int64_t deadline, struct hf_error *err)
{
    const char *key = far_mute_key;
    bool mute = false;
    size_t i;

    if (atomic_exchange(&far_late_renewal, false)) {
        far_delay(conn, items[0].claim, items[0].ttl_ms);
        hfi_fail(err, HF_UNCERTAIN, "far: no answer yet");
        return;
    }
    for (i = 0; i < n; i++)
        mute = mute || (key && !strcmp(items[i].claim->key, key));
    if (far_go(deadline, mute))
        hfi_backend_mem.renew(near_of(conn), items, n, deadline, err);
    else
        hfi_fail(err, HF_UNCERTAIN, "far: no answer");
}

static hf_status far_release(struct hfi_conn *conn,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt, int64_t deadline,
                             struct hf_error *err)
{
    if (!far_go(deadline, false))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    return hfi_backend_mem.release(near_of(conn), claim, receipt, deadline,
                                   err);
}

static hf_status far_attach(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            const struct hf_handle *handle,
                            struct hfi_receipt *receipt, struct hf_error *err)
{
    return hfi_backend_mem.attach(near_of(conn), claim, handle, receipt, err);
}

static hf_status far_take_over(struct hfi_conn *conn,
                               const struct hfi_claim *claim, const char *token,
                               struct hfi_receipt *receipt, int64_t deadline,
                               struct hf_error *err)
{
    if (!far_go(deadline, false))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    return hfi_backend_mem.take_over(near_of(conn), claim, token, receipt,
                                     deadline, err);
}

static hf_status far_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, int64_t deadline,
                           struct hf_error *err)
{
    if (!far_go(deadline, false))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    return hfi_backend_mem.watch(near_of(conn), claim, receipt, deadline, err);
}

static void far_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt)
{
    hfi_backend_mem.unwatch(near_of(conn), claim, receipt);
}

static hf_status far_inspect(struct hfi_conn *conn, const char *key,
                             struct hf_info *ret, int64_t deadline,
                             struct hf_error *err)
{
    return hfi_backend_mem.inspect(near_of(conn), key, ret, deadline, err);
}

static const char *const far_schemes[] = {"mem", NULL};

static const struct hfi_backend far_backend = {
    .schemes = far_schemes,
    .conn_size = sizeof(struct far_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_QUEUED |
              HF_TRAIT_NOTIFY | HF_TRAIT_NOTED | HF_TRAIT_REENTRANT |
              HF_TRAIT_DETACH,
    .open = far_open,
    .close = far_close,
    .try_acquire = far_try_acquire,
    .renew = far_renew,
    .release = far_release,
    .watch = far_watch,
    .unwatch = far_unwatch,
    .attach = far_attach,
    .take_over = far_take_over,
    .inspect = far_inspect,
};

/* ---- the scene --------------------------------------------------------- */

static hf_client *far_client(int64_t timeout_ms)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct hfi_url url;
    hf_client *client;

    opts.timeout_ms = timeout_ms;
    far_test_thread = pthread_self();
    CHECK_OK(hfi_url_parse(&url, "mem:far", &t_err));
    CHECK_OK(hfi_open_with(&far_backend, &url, &opts, &client, &t_err));
    hfi_url_fini(&url);
    return client;
}

static struct hf_lock_opts far_opts(int64_t ttl_ms, unsigned flags)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    opts.flags = flags;
    return opts;
}

static hf_lock *far_lock(hf_client *client, const char *key, int64_t ttl_ms)
{
    struct hf_lock_opts opts = far_opts(ttl_ms, 0);
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    return lk;
}

static bool far_is_free(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return !info.held;
}

/* Whatever was silent speaks again, so that the client can be closed. */
static void far_end(hf_client *client)
{
    atomic_store(&far_silent, false);
    atomic_store(&far_trip_ms, 0);
    hf_close(client);
}

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
    hf_lock *mute, *lk;

    far_mute_key = "mute";
    mute = far_lock(client, "mute", 6000);
    CHECK_STATUS(hf_acquire(client, "mute", 0, NULL, &lk, &t_err), HF_BUSY);
    lk = far_lock(client, "short", 2000);
    atomic_store(&far_trip_ms, 20);
    /* It is on the wire for as long as it may be, again and again. */
    CHECK(hf_remaining_ms(mute) > 0);
    t_sleep_ms(4000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    far_mute_key = NULL;
    CHECK_OK(hf_release(mute, &t_err));
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

/* ---- handles ----------------------------------------------------------- */

static struct hf_handle far_detached(hf_client *client, const char *key,
                                     int64_t ttl_ms)
{
    struct hf_lock_opts opts = far_opts(ttl_ms, 0);
    struct hf_handle handle;
    hf_lock *lk;

    opts.owner = "somebody";
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    return handle;
}

struct attacher {
    hf_client *client;
    const struct hf_handle *handle;
    pthread_t thread;
    hf_status st;
    hf_lock *lk;
};

static void *far_attacher(void *arg)
{
    struct attacher *a = arg;
    struct hf_lock_opts opts = far_opts(30000, 0);

    opts.owner = "somebody";
    a->st = hf_attach(a->client, "mute", a->handle, &opts, &a->lk, &t_err);
    return NULL;
}

TEST(a_lock_that_is_being_attached_is_shown_to_nobody)
{
    struct hf_lock_opts opts = far_opts(30000, 0);
    hf_client *client = far_client(1500);
    struct hf_handle handle = far_detached(client, "mute", 60000);
    struct attacher a = {.client = client, .handle = &handle};
    struct hf_event event;
    hf_lock *lk;

    opts.owner = "somebody";
    far_mute_key = "mute"; /* It is taken over, but not proven. */
    CHECK_EQ(pthread_create(&a.thread, NULL, far_attacher, &a), 0);
    t_sleep_ms(300);
    far_calls_here = 0;
    CHECK_OK(hf_acquire(client, "mute", 0, &opts, &lk, &t_err));
    CHECK_GT(far_calls_here, 0); /* The service was asked. */
    CHECK_OK(hf_release(lk, &t_err));
    pthread_join(a.thread, NULL);
    CHECK_EQ(a.st, HF_UNCERTAIN);
    CHECK(!hf_next_event(client, &event));
    t_poll_until(far_is_free(client, "mute"), 20000); /* It was taken back. */
    far_mute_key = NULL;
    far_end(client);
}

TEST(a_shorter_lease_without_an_answer_limits_what_is_believed)
{
    hf_client *client = far_client(300);
    hf_lock *lk = far_lock(client, "mute", 60000);

    far_mute_key = "mute";
    CHECK_STATUS(hf_extend(lk, 5000, &t_err), HF_UNCERTAIN);
    CHECK_LE(hf_remaining_ms(lk), 5000);
    far_mute_key = NULL;
    CHECK_OK(hf_extend(lk, 60000, &t_err));
    CHECK(hf_held(lk));
    CHECK_LE(hf_remaining_ms(lk), 5000);
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

TEST(a_lock_is_kept_after_an_extension_that_had_no_answer)
{
    hf_client *client = far_client(300);
    hf_lock *lk = far_lock(client, "mute", 60000);

    far_mute_key = "mute";
    CHECK_STATUS(hf_extend(lk, 2000, &t_err), HF_UNCERTAIN);
    far_mute_key = NULL;
    t_sleep_ms(3000); /* past the end of what was believed then */
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

static int64_t far_left(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.held ? info.left_ms : 0;
}

TEST(a_late_request_does_not_shorten_what_a_handle_stands_for)
{
    struct hf_lock_opts opts = far_opts(60000, 0);
    hf_client *client = far_client(5000);
    hf_lock *lk = far_lock(client, "k", 60000);
    struct hf_handle handle;

    atomic_store(&far_late_renewal, true);
    CHECK_OK(hf_extend(lk, 20000, &t_err)); /* by its second attempt */
    CHECK_OK(hf_extend(lk, 60000, &t_err));
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_handle_extend(client, "k", &handle, &opts, &t_err));
    far_arrive();
    CHECK_GT(far_left(client, "k"), 25000);
    CHECK_OK(hf_handle_release(client, "k", &handle, &opts, &t_err));
    far_end(client);
}

TEST(a_try_that_arrives_after_a_handle_was_released_is_taken_back)
{
    struct hf_lock_opts opts = far_opts(40000, 0);
    hf_client *client = far_client(5000);
    struct hf_handle handle;
    hf_lock *lk;

    atomic_store(&far_late_try, true);
    CHECK_OK(hf_acquire(client, "k", 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK(!far_is_free(client, "k"));
    CHECK_OK(hf_handle_release(client, "k", &handle, &opts, &t_err));
    far_arrive();
    t_poll_until(far_is_free(client, "k"), 30000);
    far_end(client);
}

TEST(a_lock_whose_token_cannot_be_replaced_is_given_back_not_detached)
{
    hf_client *client = far_client(400);
    hf_lock *lk = far_lock(client, "k", 60000);
    struct hf_handle handle;

    atomic_store(&far_late_renewal, true);
    CHECK_OK(hf_extend(lk, 5000, &t_err));
    atomic_store(&far_silent, true);
    CHECK_STATUS(hf_detach(lk, &handle, &t_err), HF_UNCERTAIN);
    atomic_store(&far_silent, false);
    t_poll_until(far_is_free(client, "k"), 20000);
    far_end(client);
}

/* ---- event loops ------------------------------------------------------- */

static void far_take_failed(hf_client *client, int n, hf_status want)
{
    struct hf_event event;
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
    struct hf_event event;
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
    struct hf_event event;
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

/* ---- closing ----------------------------------------------------------- */

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
