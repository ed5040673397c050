/* SPDX-License-Identifier: MIT
 *
 * core.c - rules of the core that no outcome shows: a reaper that never pauses
 * and two threads that listen at once still grant and release every lock.  So
 * the functions that keep these rules are called here by themselves, with a
 * client that has no threads.
 */
#include "t.h"

#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/core.h"

/* ---- reaper.c ---------------------------------------------------------- */

TEST(the_reaper_pauses_twice_as_long_each_time_up_to_a_ttl)
{
    struct hfi_grant grant = {.claim = {.ttl_ms = 500}};

    CHECK_EQ(hfi_reap_pause(&grant), 100);
    CHECK_EQ(hfi_reap_pause(&grant), 200);
    CHECK_EQ(hfi_reap_pause(&grant), 400);
    CHECK_EQ(hfi_reap_pause(&grant), 500);
    CHECK_EQ(hfi_reap_pause(&grant), 500);
    grant = (struct hfi_grant){.claim = {.ttl_ms = 10}};
    CHECK_EQ(hfi_reap_pause(&grant), 100);
    CHECK_EQ(hfi_reap_pause(&grant), 100);
}

static hf_status sweep(struct hfi_conn *conn, const struct hfi_claim *claim,
                       struct hfi_receipt *receipt, int64_t deadline,
                       struct hf_error *err)
{
    (void)conn, (void)claim, (void)receipt, (void)deadline, (void)err;
    return HF_OK;
}

/* reaper.c (1), (2) */
TEST(a_claim_is_released_again_while_it_may_be_in_the_service)
{
    static const struct hfi_backend be;
    struct hfi_conn conn = {.traits = HF_TRAIT_LEASED};
    static struct hf_client c;
    int64_t now = hfi_now(), later = now + 60000;
    struct hfi_grant lapsed = {.next_at = now - 1};
    struct hfi_grant stands = {.next_at = later};
    struct hfi_grant doubt = {.claim = {.doubt = true}, .most_ms = 60000};

    c.be = &be;
    c.conn = &conn;
    CHECK(hfi_reap_goes_on(&c, &stands, HF_UNCERTAIN, now));
    CHECK(hfi_reap_goes_on(&c, &stands, HF_UNAVAILABLE, now));
    CHECK(!hfi_reap_goes_on(&c, &stands, HF_OK, now));
    CHECK(!hfi_reap_goes_on(&c, &stands, HF_LOST, now));
    CHECK(!hfi_reap_goes_on(&c, &lapsed, HF_UNCERTAIN, now));
    CHECK(!hfi_reap_goes_on(&c, &lapsed, HF_UNAVAILABLE, now));
    conn.traits = 0; /* Nothing lapses by itself. */
    CHECK(hfi_reap_goes_on(&c, &lapsed, HF_UNCERTAIN, now));
    conn.traits = HF_TRAIT_LEASED;
    CHECK(hfi_reap_goes_on(&c, &doubt, HF_UNCERTAIN, now));
    CHECK_EQ(doubt.next_at, 0); /* A silent service starts no lease. */
    CHECK(hfi_reap_goes_on(&c, &doubt, HF_LOST, now));
    CHECK_GE(doubt.next_at, later);
    now = doubt.next_at;
    CHECK(hfi_reap_goes_on(&c, &doubt, HF_OK, now - 1));
    CHECK_EQ(doubt.next_at, now); /* counted from the first answer */
    CHECK(!hfi_reap_goes_on(&c, &doubt, HF_OK, now));
}

/* reaper.c (4) */
TEST(on_a_session_only_the_service_ends_a_claim)
{
    static const struct hfi_backend be = {.sweep = sweep};
    static struct hf_client c;
    struct hfi_conn conn = {.traits = HF_TRAIT_LEASED};
    struct hfi_grant registered = {.receipt = {.registered = true}};
    struct hfi_grant doubt = {.claim = {.doubt = true}};
    struct hfi_grant plain = {0};

    c.be = &be;
    c.conn = &conn;
    CHECK(hfi_reap_goes_on(&c, &registered, HF_OK, 1));
    CHECK(hfi_reap_goes_on(&c, &doubt, HF_DENIED, 1));
    CHECK(!hfi_reap_goes_on(&c, &doubt, HF_OK, 1));
    CHECK(!hfi_reap_goes_on(&c, &doubt, HF_LOST, 1));
    CHECK(!hfi_reap_goes_on(&c, &plain, HF_DENIED, 1));
}

/* ---- grant.c ----------------------------------------------------------- */

TEST(a_limit_never_makes_a_deadline_later_nor_revives_what_is_lost)
{
    struct hfi_grant grant = {.deadline = 1000};

    hfi_grant_lower(&grant, 2000);
    CHECK_EQ(atomic_load(&grant.deadline), 1000);
    hfi_grant_lower(&grant, 500);
    CHECK_EQ(atomic_load(&grant.deadline), 500);
    atomic_store(&grant.deadline, 0);
    hfi_grant_lower(&grant, 100);
    CHECK_EQ(atomic_load(&grant.deadline), 0);
}

/* ---- sweep.c ----------------------------------------------------------- */

static int swept;

static hf_status sweep_unheard(struct hfi_conn *conn,
                               const struct hfi_claim *claim,
                               struct hfi_receipt *receipt, int64_t deadline,
                               struct hf_error *err)
{
    (void)conn, (void)claim, (void)receipt, (void)deadline;
    swept++;
    return hfi_fail(err, HF_UNCERTAIN, "no answer");
}

/* sweep.c (1), (2), (3) */
TEST(nothing_is_swept_before_its_lease_is_over_or_while_it_is_renewed)
{
    static const struct hfi_backend be = {.sweep = sweep_unheard};
    static struct hf_client client;
    struct hfi_conn conn = {.traits = HF_TRAIT_LEASED | HFI_TRAIT_BOUND};
    struct hfi_key_queue queue = {0};
    struct hfi_grant renewed = {0};
    struct hfi_grant grant = {
        .state = HFI_LEFT, .queue = &queue, .claim = {.ttl_ms = 1000}};
    int64_t now = hfi_now();

    hfi_link_init(&queue.extended);
    hfi_link_init(&renewed.due);
    client.be = &be;
    client.conn = &conn;
    hfi_mutex_init(&client.mu);
    hfi_cond_init(&client.settle);
    CHECK(hfi_heap_reserve(&client.timers));
    pthread_mutex_lock(&client.mu);
    grant.next_at = now + 60000;
    hfi_sweep(&client, &grant);
    CHECK_EQ(swept, 0);
    CHECK_EQ(grant.timer.due, grant.next_at);
    grant.next_at = now;
    hfi_link_append(&queue.extended, &renewed.due);
    hfi_sweep(&client, &grant);
    CHECK_EQ(swept, 0);
    CHECK_GT(grant.timer.due, now);
    hfi_link_remove(&renewed.due);
    hfi_sweep(&client, &grant);
    CHECK_EQ(swept, 1);
    CHECK(!grant.busy);
    CHECK_GE(grant.timer.due, now + 100); /* It is repeated. */
    pthread_mutex_unlock(&client.mu);
    hfi_heap_fini(&client.timers);
    hfi_cond_fini(&client.settle);
}

/* ---- mem: -------------------------------------------------------------- */

static bool count_one(void *arg, const char *key, const struct hf_info *info)
{
    (void)key, (void)info;
    ++*(int *)arg;
    return true;
}

static int count_listed(hf_client *client)
{
    int n = 0;

    CHECK_OK(hf_list(client, "", count_one, &n, &t_err));
    return n;
}

/* Nothing but the listing looks at the key, so nothing else removes it. */
TEST(what_lapsed_is_not_listed)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client;
    hf_lock *lk;

    opts.ttl_ms = 300;
    opts.flags = HF_MANUAL;
    CHECK_OK(hf_open("mem:lapse", NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    t_poll_until(count_listed(client) == 0, 20000);
    CHECK(!hf_held(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
}

/* ---- listener.c -------------------------------------------------------- */

static int service_fd = -1, dispatched;

static int poll_fd(struct hfi_conn *conn)
{
    (void)conn;
    return service_fd;
}

static void dispatch(struct hfi_conn *conn)
{
    (void)conn;
    dispatched++;
}

static const struct hfi_backend heard = {.poll_fd = poll_fd,
                                         .dispatch = dispatch};
static struct hf_client c;
static struct hfi_grant watched = {.watched = true};
static struct hfi_sleeper sleeper;
static struct hf_request rq = {
    .client = &c, .grant = &watched, .sleeper = &sleeper};

/* One request waits, nobody listens, and the service has said something. */
static void listener_begin(void)
{
    hfi_mutex_init(&c.mu);
    CHECK(hfi_notifier_init(&c.notifier));
    c.listener.notifier.event_fd = c.listener.notifier.timer_fd = -1;
    c.be = &heard;
    c.keeper_until = HFI_NEVER;
    service_fd = eventfd(1, EFD_CLOEXEC);
    CHECK_GE(service_fd, 0);
    pthread_mutex_lock(&c.mu);
    hfi_listener_enter(&rq);
}

static void listener_end(void)
{
    hfi_listener_leave(&rq);
    CHECK_EQ(c.listener.asking, 0);
    pthread_mutex_unlock(&c.mu);
    hfi_notifier_fini(&c.notifier);
    hfi_notifier_fini(&c.listener.notifier);
    close(service_fd);
}

TEST(a_lone_waiter_reads_for_itself_and_leaves_the_rest_to_the_keeper)
{
    int64_t until = HFI_NEVER, kept;

    listener_begin();
    CHECK(hfi_listener_of_keeper(&c, hfi_now(), &until));
    CHECK(hfi_listener_wait(&rq, hfi_now() + 60000));
    CHECK_EQ(dispatched, 1);
    CHECK(c.listener.by == NULL);
    CHECK(!atomic_load(&sleeper.listens));
    kept = c.listener.kept_until; /* listener.c (2) */
    CHECK_GT(kept, 0);
    CHECK_EQ(c.keeper_until, kept);
    CHECK(!hfi_listener_of_keeper(&c, kept - 1, &until));
    CHECK_EQ(until, kept);
    CHECK(hfi_listener_of_keeper(&c, kept, &until));
    CHECK_EQ(c.listener.kept_until, 0);
    listener_end();
}

/* listener.c (1) */
TEST(no_two_threads_listen)
{
    struct hf_request other = {.client = &c};
    int64_t until = HFI_NEVER;

    listener_begin();
    c.listener.dispatching = true; /* the keeper reads */
    CHECK(!hfi_listener_wait(&rq, 0));
    c.listener.dispatching = false;

    c.listener.by = &other;
    CHECK(!hfi_listener_wait(&rq, 0));
    CHECK(!hfi_listener_of_keeper(&c, hfi_now(), &until));
    CHECK_EQ(until, HFI_NEVER);
    pthread_mutex_unlock(&c.mu);
    hfi_listener_dispatch(&c); /* That one hears it, too. */
    CHECK_EQ(dispatched, 0);
    pthread_mutex_lock(&c.mu);
    c.listener.by = NULL;

    pthread_mutex_unlock(&c.mu);
    hfi_listener_dispatch(&c);
    CHECK_EQ(dispatched, 1);
    CHECK(!c.listener.dispatching);
    pthread_mutex_lock(&c.mu);
    listener_end();
}

/* listener.c (2) */
TEST(the_keeper_listens_at_once_where_several_wait_or_one_cannot)
{
    struct hf_request second = {.client = &c}, async = {.client = &c};

    listener_begin();
    hfi_listener_enter(&second);
    c.listener.kept_until = HFI_NEVER;
    CHECK(!hfi_listener_wait(&rq, 0));
    CHECK_EQ(c.listener.kept_until, 0);
    CHECK_EQ(c.keeper_until, 0);
    hfi_listener_leave(&second);

    c.keeper_until = c.listener.kept_until = HFI_NEVER;
    hfi_listener_enter(&second); /* blocks, and can listen itself */
    CHECK_EQ(c.listener.kept_until, HFI_NEVER);
    hfi_listener_leave(&second);
    async.async = true;
    hfi_listener_enter(&async);
    CHECK_EQ(c.listener.kept_until, 0);
    CHECK_EQ(c.keeper_until, 0);
    hfi_listener_leave(&async);

    watched.watched = false; /* Nothing would be told to it. */
    CHECK(!hfi_listener_wait(&rq, 0));
    listener_end();
}

T_MAIN
