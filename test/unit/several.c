/* SPDX-License-Identifier: MIT
 *
 * several.c - several keys at once: what a call that fails leaves, and what
 * those that it has meanwhile are to others.
 *
 * The promises are the core's, so the service is mem:, near or far (far.h).
 */
#include "far.h"

enum { KEYS = 8 };

static const char *const names[KEYS] = {"a", "b", "c", "d", "e", "f", "g", "z"};

static hf_client *several_client(void)
{
    hf_client *client;

    CHECK_OK(hf_open("mem:far", NULL, &client, &t_err));
    return client;
}

static struct hf_info look(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info;
}

static struct hf_event await_event(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    t_poll_until(hf_next_event(client, &event), 20000);
    return event;
}

TEST(a_call_that_fails_lets_nothing_linger)
{
    hf_client *a = several_client(), *b = several_client();
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *busy = far_lock(a, "z", 30000), *locks[KEYS];

    opts.linger_ms = 60000;
    CHECK_STATUS(hf_acquire_all(b, names, KEYS, 20, &opts, locks, &t_err),
                 HF_TIMEOUT);
    for (int i = 0; i < KEYS - 1; i++)
        CHECK(!look(a, names[i]).held);
    CHECK_OK(hf_release(busy, &t_err));
    hf_close(a);
    hf_close(b);
}

static void *take_and_release(void *arg)
{
    hf_lock *lk;

    CHECK_OK(hf_acquire(arg, "a", -1, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    return NULL;
}

/* Also if one request took them all. */
TEST(several_that_are_taken_linger_and_are_handed_over_as_one_is)
{
    hf_client *a = several_client(), *b = several_client();
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *locks[2], *lk;
    pthread_t thread;
    uint64_t fence;

    opts.linger_ms = 60000;
    CHECK_OK(hf_acquire_all(a, names, 2, 0, &opts, locks, &t_err));
    fence = hf_fence(locks[0]);
    CHECK_EQ(pthread_create(&thread, NULL, take_and_release, a), 0);
    t_sleep_ms(20); /* in line or later: it gets the lock either way */
    CHECK_OK(hf_release(locks[0], &t_err));
    CHECK_OK(hf_release(locks[1], &t_err));
    pthread_join(thread, NULL);
    CHECK(look(b, "b").held);
    CHECK_OK(hf_acquire(a, "b", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire_all(a, names, 2, 0, &opts, locks, &t_err));
    CHECK_GE(hf_fence(locks[0]), fence);
    CHECK_OK(hf_release(locks[0], &t_err));
    CHECK_OK(hf_release(locks[1], &t_err));
    CHECK_OK(hf_acquire(b, "a", 20000, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* An owner id has the first key already. */
static hf_lock *several_own(hf_client *client, struct hf_lock_opts *opts,
                            int64_t min_hold_ms)
{
    hf_lock *lk;

    *opts = (struct hf_lock_opts)HF_LOCK_OPTS_INIT;
    opts->owner = "owner";
    opts->min_hold_ms = min_hold_ms;
    CHECK_OK(hf_acquire(client, "a", 0, opts, &lk, &t_err));
    opts->min_hold_ms = 0;
    return lk;
}

TEST(a_call_that_fails_leaves_the_limits_of_its_owners_lock)
{
    hf_client *a = several_client(), *b = several_client();
    hf_lock *busy = far_lock(b, "z", 30000), *lk, *locks[KEYS];
    struct hf_lock_opts opts;
    struct hf_event event = HF_EVENT_INIT;
    struct hf_info info;
    hf_request *rq;

    lk = several_own(a, &opts, 0);
    opts.max_hold_ms = 1;
    opts.min_hold_ms = 60000;
    CHECK_STATUS(hf_acquire_all(a, names, KEYS, 20, &opts, locks, &t_err),
                 HF_TIMEOUT);
    CHECK(hf_held(lk));
    CHECK_OK(hf_acquire_all_start(a, names, KEYS, 20, &opts, locks, NULL, &rq,
                                  &t_err));
    event = await_event(a);
    CHECK_EQ(event.type, HF_FAILED);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(!look(b, "a").held);
    lk = several_own(a, &opts, 60000);
    CHECK_STATUS(hf_acquire_all(a, names, KEYS, 20, &opts, locks, &t_err),
                 HF_TIMEOUT);
    CHECK_OK(hf_release(lk, &t_err));
    info = look(b, "a");
    CHECK(info.held && info.kept);
    CHECK_OK(hf_release(busy, &t_err));
    hf_close(a);
    hf_close(b);
}

/* What they are limited to counts once the caller has them. */
TEST(several_that_are_taken_have_their_limits)
{
    hf_client *a = several_client(), *b = several_client();
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *busy, *locks[KEYS];
    struct hf_event event = HF_EVENT_INIT;
    hf_request *rq;

    opts.min_hold_ms = 60000;
    CHECK_OK(hf_acquire_all(a, names, 2, 0, &opts, locks, &t_err));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hf_release(locks[i], &t_err));
        CHECK(look(b, names[i]).kept);
    }
    opts.min_hold_ms = 0;
    opts.max_hold_ms = 50;
    busy = far_lock(b, "d", 30000);
    CHECK_OK(hf_acquire_all_start(a, names + 2, 2, -1, &opts, locks, NULL, &rq,
                                  &t_err));
    t_poll_until(look(b, "d").waiters == 1, 20000);
    CHECK_OK(hf_release(busy, &t_err));
    event = await_event(a);
    CHECK_EQ(event.type, HF_GRANTED);
    for (int i = 0; i < 2; i++) {
        t_poll_until(!hf_held(locks[i]), 20000);
        CHECK_EQ(hf_lost_reason(locks[i]), HF_LOSS_MAX_HOLD);
        CHECK_STATUS(hf_release(locks[i], &t_err), HF_LOST);
    }
    hf_close(a);
    hf_close(b);
}

/* HF_MANUAL leaves the renewals to a caller who does not have the lock yet. */
TEST(what_is_held_while_others_are_waited_for_is_renewed_also_with_hf_manual)
{
    hf_client *a = several_client(), *b = several_client();
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *busy = far_lock(b, "b", 30000), *locks[2];
    int64_t began, lasts;
    struct hf_event event = HF_EVENT_INIT;
    hf_request *rq;
    uint64_t fence;

    opts.flags = HF_MANUAL;
    opts.ttl_ms = 2000;
    CHECK_OK(
        hf_acquire_all_start(a, names, 2, -1, &opts, locks, NULL, &rq, &t_err));
    t_poll_until(look(b, "b").waiters == 1, 20000);
    fence = look(b, "a").fence;
    began = t_now_ms();
    do {
        lasts = t_now_ms() + look(b, "a").left_ms;
        CHECK(look(b, "a").held);
        t_sleep_ms(10);
    } while (lasts < began + 3 * opts.ttl_ms);
    CHECK_OK(hf_release(busy, &t_err));
    event = await_event(a);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_EQ(hf_fence(locks[0]), fence);
    t_poll_until(!hf_held(locks[0]) && !hf_held(locks[1]), 20000);
    CHECK_STATUS(hf_release(locks[0], &t_err), HF_LOST);
    CHECK_STATUS(hf_release(locks[1], &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
}

enum { MANY = 4000 };

struct many {
    hf_client *client;
    const char *keys[MANY];
    hf_lock *locks[2][MANY];
    hf_status status;
};

static void *take_many(void *arg)
{
    struct many *m = arg;
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.owner = "owner";
    opts.ttl_ms = 600000;
    for (int i = 0; i < 2; i++)
        CHECK_OK(hf_acquire_all(m->client, m->keys, MANY, 0, &opts, m->locks[i],
                                &t_err));
    return NULL;
}

TEST(keys_that_this_client_has_already_take_no_stack)
{
    static char text[MANY][16];
    static struct many m;
    pthread_attr_t attr;
    pthread_t thread;

    m.client = several_client();
    for (int i = 0; i < MANY; i++) {
        snprintf(text[i], sizeof(text[i]), "%d", i);
        m.keys[i] = text[i];
    }
    CHECK_EQ(pthread_attr_init(&attr), 0);
    CHECK_EQ(pthread_attr_setstacksize(&attr, 256 * 1024), 0);
    CHECK_EQ(pthread_create(&thread, &attr, take_many, &m), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    for (int i = 0; i < 2 * MANY; i++)
        CHECK_OK(hf_release(m.locks[i % 2][i / 2], &t_err));
    hf_close(m.client);
}

/* The service falls silent when all but the last are taken. */
static void *fall_silent(void *arg)
{
    hf_client *client = arg;

    t_poll_until(look(client, "z").waiters == 1, 20000);
    atomic_store(&far_calls_here, 0);
    atomic_store(&far_silent, true);
    return NULL;
}

TEST(a_call_that_fails_does_not_wait_for_each_release)
{
    hf_client *a = far_client(200), *b = several_client();
    hf_lock *busy = far_lock(b, "z", 30000), *locks[KEYS];
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, fall_silent, b), 0);
    CHECK(hf_acquire_all(a, names, KEYS, 2000, NULL, locks, &t_err) != HF_OK);
    CHECK_LT(atomic_load(&far_calls_here), KEYS - 1);
    pthread_join(thread, NULL);
    atomic_store(&far_silent, false);
    for (int i = 0; i < KEYS - 1; i++)
        t_poll_until(far_is_free(b, names[i]), 20000);
    CHECK_OK(hf_release(busy, &t_err));
    far_end(a);
    hf_close(b);
}

static hf_client *breaker;

/* While the second key is asked for, the first is taken away. */
static hf_status break_the_first(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 struct hfi_answer *answer, int64_t deadline,
                                 struct hf_error *err)
{
    if (!strcmp(claim->key, "b"))
        CHECK_OK(
            hf_break_force(breaker, "a", look(breaker, "a").fence, &t_err));
    return far_try_acquire(conn, claim, receipt, answer, deadline, err);
}

TEST(who_does_not_wait_is_busy_if_one_is_lost_before_the_last_is_taken)
{
    struct hfi_backend be = far_backend;
    hf_client *client;
    hf_lock *locks[2];

    be.try_acquire = break_the_first;
    breaker = several_client();
    client = far_client_of(&be, 5000);
    CHECK_STATUS(hf_acquire_all(client, names, 2, 0, NULL, locks, &t_err),
                 HF_BUSY);
    for (int i = 0; i < 2; i++)
        t_poll_until(far_is_free(breaker, names[i]), 20000);
    far_end(client);
    hf_close(breaker);
}

static int64_t asked_until;

static hf_status remember_deadline(struct hfi_conn *conn,
                                   struct hfi_attempt *items, size_t n,
                                   int64_t deadline, struct hf_error *err)
{
    (void)conn, (void)items, (void)n;
    asked_until = deadline;
    return hfi_fail(err, HF_BUSY, "busy");
}

TEST(one_request_for_all_has_no_more_time_than_the_caller)
{
    struct hfi_backend be = far_backend;
    hf_lock *locks[2];
    hf_client *client;
    int64_t began;

    be.try_acquire_all = remember_deadline;
    client = far_client_of(&be, 600000);
    began = hfi_now();
    CHECK_OK(hf_acquire_all(client, names, 2, 30000, NULL, locks, &t_err));
    CHECK_LT(asked_until, began + 300000);
    CHECK_OK(hf_release(locks[0], &t_err));
    CHECK_OK(hf_release(locks[1], &t_err));
    far_end(client);
}

T_MAIN
