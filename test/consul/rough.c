/* SPDX-License-Identifier: MIT
 *
 * rough.c - a service that answers, but not as it should: errors for a while, a
 * write that is done and called a failure, and an index that goes backwards
 * because an operator has restored a snapshot.
 *
 * Waiters here have leases so long that the core asks for them again only after
 * 15 s: whoever is woken earlier was woken by the watch.
 */
#include "front.h"
#include "peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct waiter {
    const char *address, *key;
    pthread_t thread;
    hf_client *client;
    hf_lock *lk;
    atomic_bool done;
};

static void *wait_for(void *arg)
{
    struct waiter *w = arg;

    w->client = open_url(w->address);
    w->lk = lock(w->client, w->key, 30000, 60000);
    atomic_store(&w->done, true);
    return NULL;
}

static void start_waiting(struct waiter *w)
{
    CHECK_EQ(pthread_create(&w->thread, NULL, wait_for, w), 0);
    t_sleep_ms(500);
    CHECK(!atomic_load(&w->done));
}

/* Woken, and not by the core's own patience. */
static void check_woken(struct waiter *w, uint64_t fence)
{
    t_poll_until(atomic_load(&w->done), 10000);
    CHECK_EQ(pthread_join(w->thread, NULL), 0);
    CHECK_GT(hf_fence(w->lk), fence);
}

static void finish(struct waiter *w)
{
    CHECK_OK(hf_release(w->lk, &t_err));
    hf_close(w->client);
}

/* ---- errors ------------------------------------------------------------- */

TEST_TIMEOUT(errors_for_less_than_the_ttl_cost_neither_lock_nor_wait, 120)
{
    static const int statuses[] = {500, 502, 503, 504, 429};
    const char *address = front_url();
    hf_client *client = open_url(address);
    hf_lock *lk = lock(client, "5xx", 6000, 0);
    struct waiter w = {.address = address, .key = "5xx"};
    int before;

    start_waiting(&w);
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        before = front_count();
        front_answer(statuses[i]);
        /* The renewal, which comes every 2 s, and the queries have met it. */
        t_poll_until(front_count() > before + 1, 20000);
        CHECK(hf_held(lk));
        front_answer(0);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK(!atomic_load(&w.done));
    }
    CHECK_OK(hf_release(lk, &t_err));
    check_woken(&w, 0);
    finish(&w);
    hf_close(client);
    front_end();
    check_clean();
}

/* A connection that ends among the headers has brought no answer, whatever its
 * first line says. */
TEST_TIMEOUT(an_answer_that_ends_among_its_headers_is_none, 120)
{
    static const char *const steps[] = {"GET /v1/kv/", "/v1/txn",
                                        "session/create"};
    hf_client *client = open_url(front_url());
    hf_lock *lk;

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        front_catch(steps[i], 1, FRONT_CUT);
        lk = lock(client, steps[i], 6000 + 100 * (int)i, 30000);
        front_catch("/v1/txn", 1, FRONT_CUT);
        CHECK_EQ(hf_release(lk, &t_err), HF_UNCERTAIN);
    }
    hf_close(client);
    front_end();
    check_clean();
}

/* Whatever a load balancer without an agent behind it says to a renewal, it does
 * not know of sessions. */
TEST_TIMEOUT(a_renewal_that_is_answered_for_the_agent_costs_no_lock, 120)
{
    static const int statuses[] = {404, 409, 200, 403};
    hf_client *client = open_url(front_url());
    hf_lock *lk = lock(client, "404", 6000, 0);
    int before;

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        before = front_count();
        front_answer(statuses[i]);
        t_poll_until(front_count() > before, 20000);
        CHECK(hf_held(lk));
        front_answer(0);
        CHECK_OK(hf_extend(lk, 0, &t_err));
    }
    before = front_count();
    front_catch("session/renew", 1, FRONT_404);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_GT(front_count(), before);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

/* By something that lost the agent's answer, and though another lock keeps the
 * session alive. */
TEST_TIMEOUT(a_grant_called_a_failure_is_taken_back, 120)
{
    static const int statuses[] = {500, 502, 503, 504, 408};
    hf_client *client = open_url(front_url()), *other = open_url(url(""));
    hf_lock *kept, *none = NULL;
    int before;

    /* The session is there, and the key is known. */
    CHECK_OK(hf_release(lock(client, "lie", 30000, 0), &t_err));
    kept = lock(client, "lie/kept", 30000, 0);
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        before = front_count();
        front_answer(-statuses[i]);
        CHECK_STATUS(hf_acquire(client, "lie", 0, NULL, &none, &t_err),
                     HF_UNCERTAIN);
        CHECK(none == NULL);
        CHECK_GT(front_count(), before);
        front_answer(0);
        CHECK_OK(hf_release(lock(other, "lie", 30000, 10000), &t_err));
        CHECK_OK(hf_release(lock(client, "lie", 30000, 10000), &t_err));
    }
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(client);
    hf_close(other);
    front_end();
    check_clean();
}

TEST_TIMEOUT(a_release_called_a_failure_is_a_release, 120)
{
    hf_client *client = open_url(front_url()), *other = open_url(url(""));
    hf_lock *lk = lock(client, "lie/2", 30000, 0);
    hf_status st;

    front_answer(-500);
    st = hf_release(lk, &t_err);
    CHECK(st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
    CHECK_OK(hf_release(lock(other, "lie/2", 30000, 10000), &t_err));
    front_answer(0);
    CHECK_OK(hf_release(lock(client, "lie/2", 30000, 10000), &t_err));
    hf_close(client);
    hf_close(other);
    front_end();
    check_clean();
}

/* One after the other they would take longer than a lease. */
TEST_TIMEOUT(locks_of_many_ttls_are_renewed_side_by_side, 120)
{
    hf_client *client = open_url(front_url());
    hf_lock *lk[40];
    char key[16];

    for (int i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "many/%d", i);
        lk[i] = lock(client, key, 3000 + i, 0);
    }
    front_delay(60);
    t_sleep_ms(4500);
    front_delay(0);
    for (int i = 0; i < 40; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

/* Wait until the request for the key `user` is granted. */
static hf_lock *granted(hf_client *client, const void *user)
{
    int64_t end = t_now_ms() + 8000;
    struct hf_event event = HF_EVENT_INIT;

    while (t_now_ms() < end) {
        while (hf_next_event(client, &event))
            if (event.type == HF_GRANTED && event.user == user)
                return event.lock;
        t_sleep_ms(5);
    }
    return NULL;
}

/* More than there are connections for queries.  The core would try again after
 * 15 s. */
TEST_TIMEOUT(a_client_that_waits_for_many_keys_is_woken_for_each, 120)
{
    enum { MANY = 300 };
    static char keys[MANY][16];
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *holder = open_url(url("")), *client = open_url(url(""));
    hf_lock *held[MANY], *next;
    hf_request *request;

    opts.ttl_ms = 30000;
    for (int i = 0; i < MANY; i++) {
        snprintf(keys[i], sizeof(keys[i]), "wake/%d", i);
        held[i] = lock(holder, keys[i], opts.ttl_ms, 0);
        CHECK_OK(hf_acquire_start(client, keys[i], -1, &opts, keys[i], &request,
                                  &t_err));
    }
    t_sleep_ms(1000); /* They have tried, and listen now. */
    for (int i = 20; i < MANY; i += 40) {
        CHECK_OK(hf_release(held[i], &t_err));
        held[i] = NULL;
        next = granted(client, keys[i]);
        CHECK(next != NULL);
        CHECK_OK(hf_release(next, &t_err));
    }
    hf_close(client);
    for (int i = 0; i < MANY; i++)
        if (held[i])
            CHECK_OK(hf_release(held[i], &t_err));
    hf_close(holder);
    check_clean();
}

/* ---- answers that are lost, and requests that come late ------------------ */

/* Asks often, and by itself, not when it is told. */
static void *ask_for_a_while(void *arg)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct waiter *w = arg;

    opts.ttl_ms = 4000;
    opts.flags = HF_FAIR | HF_POLL;
    opts.retry_ms = 20;
    CHECK_STATUS(hf_acquire(w->client, w->key, 3000, &opts, &w->lk, &t_err),
                 HF_TIMEOUT);
    return NULL;
}

/* The other claim of this client finds the entry in a session that is not the
 * one in which the lock was taken. */
TEST_TIMEOUT(a_move_whose_answer_is_lost_is_done_and_costs_no_lock, 120)
{
    hf_client *client = open_url(front_url());
    hf_lock *lk = lock(client, "moved", 4000, 0);
    struct waiter w = {.client = client, .key = "moved"};

    CHECK_EQ(pthread_create(&w.thread, NULL, ask_for_a_while, &w), 0);
    front_catch("\"unlock\"", 1, FRONT_LOSE);
    CHECK_OK(hf_extend(lk, 8000, &t_err));
    CHECK_EQ(pthread_join(w.thread, NULL), 0);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

static const char *session_of(const char *key)
{
    return out("curl -s $C/v1/kv/%s | tr ',' '\n' | grep '\"Session\"'", key);
}

TEST_TIMEOUT(a_move_that_comes_after_the_next_renewal_changes_nothing, 120)
{
    char address[128], before[128];
    hf_client *client;
    hf_lock *lk;

    snprintf(address, sizeof(address), "%s?timeout=1s", front_url());
    client = open_url(address);
    lk = lock(client, "late", 20000, 0);
    snprintf(before, sizeof(before), "%s", session_of("late"));
    front_catch("\"unlock\"", 1000, FRONT_HOLD);
    CHECK(hf_extend(lk, 9000, &t_err) != HF_OK);
    CHECK_GT(front_held(), 0);
    front_catch("", 0, FRONT_HOLD);
    CHECK_OK(hf_extend(lk, 20000, &t_err));
    front_let_go();
    CHECK_STR(session_of("late"), before);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

/* Twice in a row, so that the second time the entry is as it was left, and while
 * another lock keeps the session alive. */
TEST_TIMEOUT(a_grant_that_comes_after_it_was_given_up_is_none, 120)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    char address[128];
    hf_client *client;
    hf_lock *kept, *none = NULL;
    unsigned long long index;

    snprintf(address, sizeof(address), "%s?timeout=1s", front_url());
    client = open_url(address);
    opts.ttl_ms = 30000;
    kept = lock(client, "barred/kept", 30000, 0);
    CHECK_OK(hf_release(lock(client, "barred", 30000, 0), &t_err));
    for (int i = 0; i < 2; i++) {
        index = index_of("barred");
        front_catch("\"lock\"", 1, FRONT_HOLD);
        CHECK(hf_acquire(client, "barred", 0, &opts, &none, &t_err) != HF_OK);
        CHECK_EQ(front_held(), 1);
        t_poll_until(index_of("barred") != index, 10000);
        front_let_go();
        CHECK_EQ(count_locked(), 1);
    }
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

/* The key does not exist at first, and not when the grant comes. */
TEST_TIMEOUT(a_grant_that_comes_after_the_entry_was_deleted_is_none, 120)
{
    char address[128];
    hf_client *client;
    hf_lock *kept, *none = NULL;

    snprintf(address, sizeof(address), "%s?timeout=1s", front_url());
    client = open_url(address);
    kept = lock(client, "deleted/kept", 30000, 0);
    front_catch("\"lock\"", 1, FRONT_HOLD);
    CHECK(hf_acquire(client, "deleted", 0, NULL, &none, &t_err) != HF_OK);
    CHECK_EQ(front_held(), 1);
    t_poll_until(sh("curl -sf $C/v1/kv/deleted >/dev/null") == 0, 10000);
    CHECK_EQ(sh("curl -sf -X DELETE $C/v1/kv/deleted >/dev/null"), 0);
    front_let_go();
    CHECK_EQ(count_locked(), 1);
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(client);
    front_end();
    check_clean();
}

static hf_status acquire_for(hf_client *client, const char *key,
                             int64_t wait_ms, hf_lock **ret)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = 30000;
    return hf_acquire(client, key, wait_ms, &opts, ret, &t_err);
}

static void *wait_with(void *arg)
{
    struct waiter *w = arg;

    CHECK_OK(acquire_for(w->client, w->key, 60000, &w->lk));
    atomic_store(&w->done, true);
    return NULL;
}

/* Nobody else stands there as far as anybody can see. */
static bool is_left(hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, "place", &info, &t_err));
    return info.waiters == 0;
}

/* Another wait of the same client keeps the session of its places alive. */
TEST_TIMEOUT(a_place_that_comes_after_its_waiter_has_left_is_none, 120)
{
    char address[128];
    hf_client *holder = open_url(url("?queue=fair")), *client;
    hf_lock *one = lock(holder, "place", 30000, 0), *none = NULL;
    hf_lock *two = lock(holder, "place/kept", 30000, 0);
    struct waiter w = {.key = "place/kept"};

    snprintf(address, sizeof(address), "%s?queue=fair&timeout=1s", front_url());
    client = open_url(address);
    w.address = address;
    w.client = client;
    CHECK_EQ(pthread_create(&w.thread, NULL, wait_with, &w), 0);
    t_poll_until(count_locked() == 3, 10000);
    front_catch("{\"KV\":{\"Verb\":\"lock\",\"Key\":\"place/.holdfast/", 1,
                FRONT_HOLD);
    CHECK(acquire_for(client, "place", 1500, &none) != HF_OK);
    CHECK_EQ(front_held(), 1);
    t_poll_until(is_left(holder), 10000);
    front_let_go();
    CHECK(is_left(holder));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(lock(holder, "place", 30000, 10000), &t_err));
    CHECK_OK(hf_release(two, &t_err));
    check_woken(&w, 0);
    CHECK_OK(hf_release(w.lk, &t_err));
    hf_close(client);
    hf_close(holder);
    front_end();
    check_clean();
}

/* One query is under way for it, and its place is kept; nothing else is asked
 * for, whatever the core tries meanwhile. */
TEST_TIMEOUT(a_waiter_in_line_asks_only_to_be_kept, 60)
{
    hf_client *holder = open_url(url("")), *client = open_url(front_url());
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = lock(holder, "line", 20000, 0);
    struct hf_event event = HF_EVENT_INIT;
    hf_request *rq = NULL;

    opts.ttl_ms = 1500;
    CHECK_OK(hf_acquire_start(client, "line", -1, &opts, NULL, &rq, &t_err));
    t_poll_until(hf_request_place(rq) == 1, 20000);
    t_sleep_ms(1500); /* The query has begun. */
    front_catch("/v1/kv/", 1000, FRONT_HOLD);
    t_sleep_ms(4500);
    CHECK_EQ(front_held(), 0);
    front_catch("", 0, FRONT_HOLD);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(hf_next_event(client, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_close(client);
    hf_close(holder);
    front_end();
    check_clean();
}

/* Does a client stay with its first agent when the renewal of a short lease runs
 * out of time there, while others are answered?  Then the next one is sent there
 * too. */
static bool stays(const char *address)
{
    hf_client *client = open_url(address);
    hf_lock *lk = lock(client, "haste", 1500, 0);
    int64_t end = t_now_ms() + 1500;
    struct hf_info info = HF_INFO_INIT;
    bool stayed;

    front_catch("session/renew", 2, FRONT_HOLD);
    while (front_held() < 2 && t_now_ms() < end)
        CHECK_OK(hf_inspect(client, "haste", &info, &t_err));
    stayed = front_held() == 2;
    front_let_go();
    hf_release(lk, NULL);
    hf_close(client);
    return stayed;
}

TEST_TIMEOUT(a_short_lease_turns_nobody_away_from_an_agent_that_answers, 120)
{
    char address[256];

    snprintf(address, sizeof(address), "%s,%s", front_url(),
             out("cat $HF_TEST_DIR/1.addr"));
    t_poll_until(stays(address), 20000);
    front_end();
}

/* ---- a restored snapshot ------------------------------------------------ */

static void save(void)
{
    CHECK_EQ(sh("$HF_TEST_CONSUL snapshot save %s/snap >/dev/null", t_tmpdir()),
             0);
}

static void restore(void)
{
    CHECK_EQ(
        sh("$HF_TEST_CONSUL snapshot restore %s/snap >/dev/null", t_tmpdir()),
        0);
}

TEST_TIMEOUT(an_index_that_goes_backwards_wakes_and_keeps_waking, 120)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk;
    struct waiter w = {.address = url(""), .key = "back"};
    struct waiter next = {.address = w.address, .key = "back"};
    unsigned long long index;
    uint64_t fence;

    CHECK_OK(hf_release(lock(client, "back", 30000, 0), &t_err));
    save();
    for (int i = 0; i < 5; i++)
        CHECK_OK(hf_release(lock(client, "back", 30000, 0), &t_err));
    lk = lock(client, "back", 30000, 0);
    fence = hf_fence(lk);
    start_waiting(&w);
    index = index_of("back");
    restore();
    /* There the key is free, and was last written long before. */
    check_woken(&w, fence);
    check_lost(lk, HF_LOSS_STOLEN);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_GT(hf_fence(w.lk), index);
    fence = hf_fence(w.lk);
    start_waiting(&next);
    finish(&w);
    check_woken(&next, fence);
    finish(&next);
    hf_close(client);
    check_clean();
}

TEST_TIMEOUT(an_index_goes_backwards_when_a_snapshot_is_restored, 120)
{
    unsigned long long index;

    CHECK_EQ(sh("curl -sf -X PUT -d 1 $C/v1/kv/plain >/dev/null"), 0);
    save();
    CHECK_EQ(sh("curl -sf -X PUT -d 2 $C/v1/kv/plain >/dev/null"), 0);
    index = index_of("plain");
    restore();
    CHECK(index_of("plain") < index); /* So the test above is one. */
}

TEST_TIMEOUT(a_lock_that_a_snapshot_brings_back_does_not_stay, 120)
{
    hf_client *client = open_url(url(""));
    hf_lock *other = lock(client, "back/keep", 30000, 0);
    hf_lock *lk = lock(client, "back/ghost", 30000, 0);

    save();
    CHECK_OK(hf_release(lk, &t_err));
    restore();
    CHECK_EQ(count_locked(), 2);
    lk = lock(client, "back/ghost", 30000, 10000);
    CHECK(hf_held(other));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(other, &t_err));
    hf_close(client);
    check_clean();
}

TEST_TIMEOUT(a_session_that_a_snapshot_does_not_know_is_told_as_lost, 120)
{
    hf_client *client = open_url(url(""));
    hf_lock *lk, *again;

    save();
    lk = lock(client, "back/new", 6000, 0);
    restore();
    check_lost(lk, HF_LOSS_SESSION);
    again = lock(client, "back/new", 6000, 10000);
    CHECK_GT(hf_fence(again), hf_fence(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_release(again, &t_err));
    hf_close(client);
    check_clean();
}

T_MAIN
