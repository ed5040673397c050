/* SPDX-License-Identifier: MIT
 *
 * late.c - the core where a request has no answer and arrives later, or never.
 *
 * What a caller was told stays true whenever the request arrives, and nothing
 * is left in the service for nobody.
 */
#include "far.h"

/* ---- handles ----------------------------------------------------------- */

static struct hf_handle far_detached(hf_client *client, const char *key,
                                     int64_t ttl_ms)
{
    struct hf_lock_opts opts = far_opts(ttl_ms, 0);
    struct hf_handle handle = HF_HANDLE_INIT;
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
    a->st = hf_attach(a->client, "silent", a->handle, &opts, &a->lk, &t_err);
    return NULL;
}

TEST(a_lock_that_is_being_attached_is_shown_to_nobody)
{
    struct hf_lock_opts opts = far_opts(30000, 0);
    hf_client *client = far_client(1500);
    struct hf_handle handle = far_detached(client, "silent", 60000);
    struct attacher a = {.client = client, .handle = &handle};
    struct hf_event event = HF_EVENT_INIT;
    hf_lock *lk;

    opts.owner = "somebody";
    far_silent_key = "silent"; /* It is taken over, but not proven. */
    CHECK_EQ(pthread_create(&a.thread, NULL, far_attacher, &a), 0);
    t_sleep_ms(300);
    far_calls_here = 0;
    CHECK_OK(hf_acquire(client, "silent", 0, &opts, &lk, &t_err));
    CHECK_GT(far_calls_here, 0); /* The service was asked. */
    CHECK_OK(hf_release(lk, &t_err));
    pthread_join(a.thread, NULL);
    CHECK_EQ(a.st, HF_UNCERTAIN);
    CHECK(!hf_next_event(client, &event));
    t_poll_until(far_is_free(client, "silent"), 20000); /* It was taken back. */
    far_silent_key = NULL;
    far_end(client);
}

/* Nobody has it, and where grants hang on a session that other locks keep, it
 * would stay for ever. */
TEST(a_lock_that_is_broken_while_it_is_attached_is_released)
{
    hf_client *client = far_client(5000), *breaker = NULL;
    struct hf_handle handle = far_detached(client, "silent", 60000);
    struct attacher a = {.client = client, .handle = &handle};

    CHECK_OK(hf_open("mem:far", NULL, &breaker, &t_err));
    atomic_store(&far_held_renewal, FAR_HOLD);
    CHECK_EQ(pthread_create(&a.thread, NULL, far_attacher, &a), 0);
    t_poll_until(atomic_load(&far_held_renewal) == FAR_THERE, 20000);
    CHECK_OK(hf_break(breaker, "silent", handle.fence, &t_err));
    atomic_store(&far_sweeps, 1); /* Nothing is waited for after it. */
    atomic_store(&far_held_renewal, FAR_GO);
    pthread_join(a.thread, NULL);
    CHECK_EQ(a.st, HF_LOST);
    t_poll_until(far_is_free(client, "silent"), 20000);
    hf_close(breaker);
    far_end(client);
}

/* The lease is long, and on a session it would never be over. */
TEST(what_was_taken_up_with_an_answer_without_sense_is_taken_back)
{
    struct hf_lock_opts opts = far_opts(60000, 0);
    hf_client *client = far_client(5000), *other = far_sweeping_client(5000);
    struct hf_handle handle = far_detached(client, "k", 60000);
    hf_lock *lk = NULL;

    atomic_store(&far_nonsense, true);
    CHECK_STATUS(hf_attach(other, "k", &handle, &opts, &lk, &t_err),
                 HF_UNCERTAIN);
    atomic_store(&far_nonsense, false);
    t_poll_until(far_is_free(client, "k"), 20000);
    far_end(other);
    far_end(client);
}

TEST(a_shorter_lease_without_an_answer_limits_what_is_believed)
{
    hf_client *client = far_client(300);
    hf_lock *lk = far_lock(client, "silent", 60000);

    far_silent_key = "silent";
    CHECK_STATUS(hf_extend(lk, 5000, &t_err), HF_UNCERTAIN);
    CHECK_LE(hf_remaining_ms(lk), 5000);
    far_silent_key = NULL;
    CHECK_OK(hf_extend(lk, 60000, &t_err));
    CHECK(hf_held(lk));
    CHECK_LE(hf_remaining_ms(lk), 5000);
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

TEST(a_lock_is_kept_after_an_extension_that_had_no_answer)
{
    hf_client *client = far_client(300);
    hf_lock *lk = far_lock(client, "silent", 60000);

    far_silent_key = "silent";
    CHECK_STATUS(hf_extend(lk, 2000, &t_err), HF_UNCERTAIN);
    far_silent_key = NULL;
    t_sleep_ms(3000); /* past the end of what was believed then */
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

/* The first attempt has no answer, the others of the same call are not sent:
 * the lease may be the longer one by now.  A manual lock, since a renewal in the
 * background would be the one that has no answer. */
TEST(an_extension_that_may_have_been_carried_out_is_uncertain)
{
    struct hf_lock_opts opts = far_opts(30000, HF_MANUAL);
    hf_client *client = far_client(600);
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    atomic_store(&far_unsent, true);
    CHECK_STATUS(hf_extend(lk, 40000, &t_err), HF_UNAVAILABLE);
    atomic_store(&far_late_renewal, true);
    CHECK_STATUS(hf_extend(lk, 40000, &t_err), HF_UNCERTAIN);
    CHECK_EQ(t_err.status, HF_UNCERTAIN);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_STATUS(hf_handle_extend(client, "k", &handle, &opts, &t_err),
                 HF_UNAVAILABLE);
    atomic_store(&far_late_renewal, true);
    CHECK_STATUS(hf_handle_extend(client, "k", &handle, &opts, &t_err),
                 HF_UNCERTAIN);
    atomic_store(&far_unsent, false);
    far_end(client);
}

TEST(a_late_request_does_not_shorten_what_a_handle_stands_for)
{
    struct hf_lock_opts opts = far_opts(60000, 0);
    hf_client *client = far_client(5000);
    hf_lock *lk = far_lock(client, "k", 60000);
    struct hf_handle handle = HF_HANDLE_INIT;

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
    struct hf_handle handle = HF_HANDLE_INIT;
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
    struct hf_handle handle = HF_HANDLE_INIT;

    atomic_store(&far_late_renewal, true);
    CHECK_OK(hf_extend(lk, 5000, &t_err));
    atomic_store(&far_silent, true);
    CHECK_STATUS(hf_detach(lk, &handle, &t_err), HF_UNCERTAIN);
    atomic_store(&far_silent, false);
    t_poll_until(far_is_free(client, "k"), 20000);
    far_end(client);
}

/* ---- extending --------------------------------------------------------- */

TEST(an_extension_to_a_long_lease_ends_within_the_timeout)
{
    int64_t began = t_now_ms(), year = INT64_C(366) * 24 * 3600 * 1000;
    struct hf_lock_opts opts = far_opts(year, 0);
    hf_client *client = far_client(300);
    struct hf_handle handle = far_detached(client, "detached", 60000);
    hf_lock *lk = far_lock(client, "k", 60000);

    atomic_store(&far_refuses, true);
    CHECK_STATUS(hf_extend(lk, year, &t_err), HF_UNCERTAIN);
    CHECK_STATUS(hf_handle_extend(client, "detached", &handle, &opts, &t_err),
                 HF_UNCERTAIN);
    CHECK_LT(t_now_ms() - began, 60000);
    atomic_store(&far_refuses, false);
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

static void *far_extender(void *lk)
{
    return (void *)(uintptr_t)hf_extend(lk, 3600000, NULL);
}

TEST(an_extension_that_is_repeated_ends_with_hf_cancel_and_hf_close)
{
    hf_client *client = far_client(600000);
    hf_lock *lk = far_lock(client, "k", 3600000);
    pthread_t threads[2];
    int64_t began = t_now_ms();
    int i;

    atomic_store(&far_refuses, true);
    for (i = 0; i < 2; i++) {
        CHECK_EQ(pthread_create(&threads[i], NULL, far_extender, lk), 0);
        t_sleep_ms(100);
        if (i == 0)
            hf_cancel(client);
        else
            hf_close(client);
        pthread_join(threads[i], NULL);
    }
    CHECK_LT(t_now_ms() - began, 60000);
    atomic_store(&far_refuses, false);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
}

TEST(a_shorter_lease_does_not_limit_a_lock_on_a_far_service)
{
    hf_client *client = far_client(5000);
    hf_lock *lk = far_lock(client, "k", 30000);

    atomic_store(&far_trip_ms, 300);
    CHECK_OK(hf_extend(lk, 1500, &t_err));
    CHECK_OK(hf_extend(lk, 30000, &t_err));
    CHECK_GT(hf_remaining_ms(lk), 20000);
    CHECK_OK(hf_release(lk, &t_err));
    far_end(client);
}

/* ---- sweeping ---------------------------------------------------------- */

struct bearer {
    hf_client *client;
    const struct hf_handle *handle;
    pthread_t thread;
    hf_status st;
};

static void *far_bearer(void *arg)
{
    struct hf_lock_opts opts = far_opts(60000, 0);
    struct bearer *b = arg;

    b->st = hf_handle_extend(b->client, "k", b->handle, &opts, &t_err);
    return NULL;
}

/* Both began before anything was there to be swept.  The lease of one is over
 * while the renewal of the other is on the wire: its bearer is then told that it
 * has the lock for a minute. */
TEST(a_sweep_waits_for_each_renewal_for_a_bearer)
{
    struct hf_lock_opts opts = far_opts(300, 0);
    hf_client *client = far_client(5000), *other = far_sweeping_client(5000);
    struct hf_handle handle = far_detached(client, "k", 60000);
    struct bearer b = {.client = other, .handle = &handle};

    atomic_store(&far_sweeps, 0);
    atomic_store(&far_held_renewal, FAR_HOLD);
    CHECK_EQ(pthread_create(&b.thread, NULL, far_bearer, &b), 0);
    t_poll_until(atomic_load(&far_held_renewal) == FAR_THERE, 20000);
    CHECK_OK(hf_handle_extend(other, "k", &handle, &opts, &t_err));
    atomic_store(&far_held_renewal, FAR_GO);
    pthread_join(b.thread, NULL);
    CHECK_EQ(b.st, HF_OK);
    CHECK(!far_is_free(client, "k"));
    CHECK_OK(hf_handle_release(other, "k", &handle, &opts, &t_err));
    far_end(other);
    far_end(client);
}

/* The bearer is told that it is not known, and a session of its client may have
 * come to carry the lock. */
TEST(an_extension_that_was_refused_after_one_without_an_answer_is_in_doubt)
{
    struct hf_lock_opts opts = far_opts(300, 0);
    hf_client *client = far_client(5000), *other = far_sweeping_client(500);
    struct hf_handle handle = far_detached(client, "k", 60000);

    atomic_store(&far_sweeps, 0);
    atomic_store(&far_denied, 1);
    CHECK_STATUS(hf_handle_extend(other, "k", &handle, &opts, &t_err),
                 HF_UNCERTAIN);
    CHECK(strstr(t_err.text, "refused") != NULL);
    atomic_store(&far_denied, 0);
    t_poll_until(atomic_load(&far_sweeps), 20000);
    far_end(other);
    far_end(client);
}

/* ---- taking back ------------------------------------------------------- */

TEST(a_release_is_repeated_until_the_lease_that_was_asked_for_last_is_over)
{
    hf_client *client = far_client(200);
    hf_lock *lk = far_lock(client, "k", 1000);

    atomic_store(&far_lost_answer, true);
    CHECK_STATUS(hf_extend(lk, 60000, &t_err), HF_UNCERTAIN);
    atomic_store(&far_silent, true);
    CHECK_STATUS(hf_release(lk, &t_err), HF_UNCERTAIN);
    t_sleep_ms(1500); /* longer than the lease that was known */
    CHECK(!far_is_free(client, "k"));
    atomic_store(&far_silent, false);
    t_poll_until(far_is_free(client, "k"), 20000);
    atomic_store(&far_lost_answer, false);
    far_end(client);
}

TEST(the_release_of_a_handle_is_repeated_until_there_is_an_answer)
{
    struct hf_lock_opts opts = far_opts(500, 0);
    hf_client *client = far_client(200);
    struct hf_handle handle = far_detached(client, "k", 60000);

    atomic_store(&far_silent, true);
    CHECK_STATUS(hf_handle_release(client, "k", &handle, &opts, &t_err),
                 HF_UNCERTAIN);
    t_sleep_ms(1500);
    CHECK(!far_is_free(client, "k"));
    atomic_store(&far_silent, false);
    t_poll_until(far_is_free(client, "k"), 20000);
    far_end(client);
}

static atomic_bool late_downgrade;

static hf_status downgrade_late(struct hfi_conn *conn,
                                const struct hfi_claim *claim,
                                struct hfi_receipt *receipt, int64_t deadline,
                                struct hf_error *err)
{
    if (atomic_load(&late_downgrade))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer yet");
    return hfi_backend_mem.downgrade(near_of(conn), claim, receipt, deadline,
                                     err);
}

/* Whether a downgrade without an answer has arrived is not left to the bearer to
 * guess. */
TEST(a_handle_stands_for_one_mode_after_a_downgrade_without_an_answer)
{
    struct hf_lock_opts opts = far_opts(30000, HF_SHARED);
    struct hfi_backend be = far_backend;
    struct hf_info info = HF_INFO_INIT;
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *client;
    hf_lock *lk;

    be.traits |= HF_TRAIT_SHARED;
    be.downgrade = downgrade_late;
    client = far_client_of(&be, 100);
    lk = far_lock(client, "k", 30000);
    atomic_store(&late_downgrade, true);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_UNCERTAIN);
    atomic_store(&late_downgrade, false);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK(info.held && info.shared);
    CHECK_OK(hf_attach(client, "k", &handle, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    lk = far_lock(client, "k", 30000);
    atomic_store(&late_downgrade, true);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_UNCERTAIN);
    CHECK_STATUS(hf_detach(lk, &handle, &t_err), HF_UNCERTAIN);
    t_poll_until(far_is_free(client, "k"), 20000);
    far_end(client);
}

T_MAIN
