/* SPDX-License-Identifier: MIT
 *
 * queue.c - the queue of strategies lease and version: waiters that die in line
 * cost the others one hand-over, and a lock is passed to one waiter.
 *
 * Times are not measured here.  What the dead have cost is counted in grants: a
 * lock that was passed to a dead waiter has a fence of its own.
 */
#include "scene.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { DEAD = 12, TURNS = 60, CONTENDERS = 4 };

static struct hf_lock_opts plain(int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    return opts;
}

/* ---- the dead ------------------------------------------------------------- */

static void wait_in_line(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = plain(30000);
    hf_lock *lk = NULL;
    hf_client *client;

    t_hear(up);
    client = scene_open(0, "");
    CHECK_STATUS(hf_acquire(client, arg, 300000, &opts, &lk, &t_err),
                 HF_TIMEOUT); /* It is killed before that. */
}

/* How many others were granted the lock from fence `before` on, until the
 * request of `client` is. */
static int grants_between(hf_client *client, hf_client *looks, const char *key,
                          uint64_t before, hf_lock **ret)
{
    struct hf_event event = HF_EVENT_INIT;
    int64_t end = t_now_ms() + 100000;
    uint64_t last = before;
    int n = 0;

    while (!hf_next_event(client, &event)) {
        struct hf_info info = scene_inspected(looks, key);

        CHECK_LT(t_now_ms(), end);
        n += info.fence != last;
        last = info.fence;
        t_sleep_ms(10);
    }
    CHECK_EQ(event.type, HF_GRANTED);
    *ret = event.lock;
    return n - (hf_fence(event.lock) == last && n);
}

/* Each of them is passed by when its ticket is over; what the first was passed
 * lasts no shorter than that. */
TEST_TIMEOUT(a_dozen_dead_waiters_cost_one_hand_over, 180)
{
    struct hf_lock_opts opts = plain(30000);
    char *key = strdup(scene_key("dozen"));
    struct t_peer dead[DEAD];
    hf_client *holder, *living;
    hf_request *req;
    uint64_t fence;
    hf_lock *lk;

    for (int i = 0; i < DEAD; i++)
        dead[i] = t_fork(wait_in_line, key);
    holder = scene_open(0, "");
    living = scene_open(0, "");
    CHECK_OK(hf_acquire(holder, key, 0, &opts, &lk, &t_err));
    for (int i = 0; i < DEAD; i++) {
        t_tell(&dead[i], 1);
        t_poll_until(scene_inspected(holder, key).waiters >= i + 1, 20000);
    }
    CHECK_OK(hf_acquire_start(living, key, 100000, &opts, NULL, &req, &t_err));
    t_poll_until(scene_inspected(holder, key).waiters == DEAD + 1, 20000);
    for (int i = 0; i < DEAD; i++)
        t_kill(&dead[i]);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_LE(grants_between(living, holder, key, fence, &lk), 1);
    CHECK_EQ(scene_inspected(holder, key).waiters, 0);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(living);
    hf_close(holder);
    free(key);
}

/* The lock of a holder that died is not given to those who died with it. */
TEST_TIMEOUT(who_died_before_a_lease_was_over_is_not_granted_after_it, 180)
{
    struct hf_lock_opts opts = plain(60000);
    char *key = strdup(scene_key("before"));
    struct t_peer dead[2];
    hf_client *holder, *living;
    hf_request *req;
    uint64_t fence;
    hf_lock *lk, *next;

    for (int i = 0; i < 2; i++)
        dead[i] = t_fork(wait_in_line, key);
    holder = scene_open(0, "");
    living = scene_open(0, "");
    opts.flags = HF_MANUAL; /* Nobody renews it. */
    CHECK_OK(hf_acquire(holder, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    for (int i = 0; i < 2; i++) {
        t_tell(&dead[i], 1);
        t_poll_until(scene_inspected(holder, key).waiters >= i + 1, 20000);
    }
    opts.flags = 0;
    CHECK_OK(hf_acquire_start(living, key, 100000, &opts, NULL, &req, &t_err));
    t_poll_until(scene_inspected(holder, key).waiters == 3, 20000);
    for (int i = 0; i < 2; i++)
        t_kill(&dead[i]);
    /* When it is over their tickets are, and that of the living one is not. */
    CHECK_OK(hf_extend(lk, 8000, &t_err));
    CHECK_EQ(grants_between(living, holder, key, fence, &next), 0);
    CHECK_OK(hf_release(next, &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(living);
    hf_close(holder);
    free(key);
}

/* One that polls slowly asks soon enough to keep its place. */
TEST_TIMEOUT(who_polls_slowly_keeps_its_place, 120)
{
    struct hf_lock_opts opts = plain(30000);
    const char *key = scene_key("slow");
    hf_client *holder = scene_open(0, ""), *slow = scene_open(0, "");
    struct hf_event event = HF_EVENT_INIT;
    hf_request *req;
    hf_lock *lk;

    CHECK_OK(hf_acquire(holder, key, 0, &opts, &lk, &t_err));
    opts.flags = HF_POLL;
    opts.retry_ms = 60000;
    CHECK_OK(hf_acquire_start(slow, key, 100000, &opts, NULL, &req, &t_err));
    t_poll_until(scene_inspected(holder, key).waiters == 1, 20000);
    t_sleep_ms(6000);
    CHECK_EQ(scene_inspected(holder, key).waiters, 1);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(hf_next_event(slow, &event), 30000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_OK(hf_release(event.lock, &t_err));
    hf_close(slow);
    hf_close(holder);
}

/* A waiter asks again to keep its place, and stays where it is. */
TEST_TIMEOUT(who_asks_again_is_told_the_same_place, 120)
{
    struct hf_lock_opts opts = plain(30000);
    const char *key = scene_key("place");
    hf_client *holder = scene_open(0, ""), *one = scene_open(0, "");
    hf_client *two = scene_open(0, "");
    hf_request *first, *second;
    hf_lock *lk;

    CHECK_OK(hf_acquire(holder, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_acquire_start(one, key, 100000, &opts, NULL, &first, &t_err));
    t_poll_until(scene_inspected(holder, key).waiters == 1, 20000);
    CHECK_OK(hf_acquire_start(two, key, 100000, &opts, NULL, &second, &t_err));
    t_poll_until(hf_request_place(second) == 2, 20000);
    for (int i = 0; i < 40; i++, t_sleep_ms(100)) {
        CHECK_EQ(hf_request_place(first), 1);
        CHECK_EQ(hf_request_place(second), 2);
    }
    hf_close(two);
    hf_close(one);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(holder);
}

/* ---- broken before it was taken up ---------------------------------------- */

struct unheard {
    const char *key;
    struct hf_lock_opts opts;
};

/* It polls, so what it is passed it finds by asking; and it gives up before
 * what it was passed would lapse. */
static void wait_unheard(struct t_peer *up, void *arg)
{
    struct unheard *one = arg;
    hf_lock *lk = NULL;
    hf_client *client;

    t_hear(up);
    client = scene_open(0, "");
    CHECK_OK(hf_acquire(client, one->key, 4000, &one->opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* A waiter is passed the lock, and an operator breaks that grant before the
 * waiter has asked again. */
static void break_unheard(struct unheard *one, const struct hf_lock_opts *first)
{
    struct t_peer peer = t_fork(wait_unheard, one);
    hf_client *client = scene_open(0, "");
    struct hf_info info;
    uint64_t fence;
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, one->key, 0, first, &lk, &t_err));
    fence = hf_fence(lk);
    t_tell(&peer, 1);
    t_poll_until(scene_inspected(client, one->key).waiters == 1, 20000);
    t_sleep_ms(200); /* Its request is over. */
    CHECK_EQ(kill(peer.pid, SIGSTOP), 0);
    CHECK_OK(hf_release(lk, &t_err));
    info = scene_inspected(client, one->key);
    CHECK(info.held);
    CHECK_GT(info.fence, fence);
    CHECK_OK(hf_break(client, one->key, info.fence, &t_err));
    CHECK_EQ(kill(peer.pid, SIGCONT), 0);
    t_join(&peer);
    CHECK(!scene_inspected(client, one->key).held);
    CHECK_OK(hf_acquire(client, one->key, 0, first, &lk, &t_err));
    CHECK_GT(hf_fence(lk), info.fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST(a_lock_broken_as_it_is_passed_is_not_waited_for_by_its_heir)
{
    char *key = strdup(scene_key("unheard"));
    struct unheard one = {.key = key, .opts = plain(30000)};

    one.opts.flags = HF_POLL;
    break_unheard(&one, NULL);
    free(key);
}

TEST(a_share_broken_as_it_is_passed_is_not_waited_for_by_its_heir)
{
    char *key = strdup(scene_key("unheard share"));
    struct unheard one = {.key = key, .opts = plain(30000)};

    one.opts.flags = HF_POLL | HF_SHARED;
    break_unheard(&one, NULL);
    free(key);
}

TEST(a_permit_broken_as_it_is_passed_is_not_waited_for_by_its_heir)
{
    char *key = strdup(scene_key("unheard permit"));
    struct hf_lock_opts first = plain(30000);
    struct unheard one = {.key = key, .opts = plain(30000)};

    first.permits = one.opts.permits = 1;
    one.opts.flags = HF_POLL;
    break_unheard(&one, &first);
    free(key);
}

/* ---- one heir ------------------------------------------------------------- */

struct ring {
    atomic_int inside, turns;
};

struct contender {
    struct ring *ring;
    const char *key;
};

static void contend(struct t_peer *up, void *arg)
{
    struct contender *one = arg;
    struct hf_lock_opts opts = plain(30000);
    hf_client *client;
    hf_lock *lk;

    t_hear(up);
    client = scene_open(0, "");
    for (int i = 0; i < TURNS; i++) {
        CHECK_OK(hf_acquire(client, one->key, 100000, &opts, &lk, &t_err));
        CHECK_EQ(atomic_fetch_add(&one->ring->inside, 1), 0);
        t_sleep_ms(1);
        atomic_fetch_add(&one->ring->turns, 1);
        CHECK_EQ(atomic_fetch_sub(&one->ring->inside, 1), 1);
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
}

TEST_TIMEOUT(a_lock_is_passed_to_one_of_those_in_line, 120)
{
    struct contender one = {.ring = t_shared(sizeof(struct ring))};
    char *key = strdup(scene_key("one"));
    struct t_peer peers[CONTENDERS];
    hf_client *client;
    hf_lock *lk;

    one.key = key;
    for (int i = 0; i < CONTENDERS; i++)
        peers[i] = t_fork(contend, &one);
    client = scene_open(0, "");
    CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
    for (int i = 0; i < CONTENDERS; i++)
        t_tell(&peers[i], 1);
    t_poll_until(scene_inspected(client, key).waiters == CONTENDERS, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < CONTENDERS; i++)
        t_join(&peers[i]);
    CHECK_EQ(atomic_load(&one.ring->turns), CONTENDERS * TURNS);
    hf_close(client);
    free(key);
}

/* ---- a key that was had lately --------------------------------------------- */

/* Its row is known to be there: queue.c (8) of the backend.  Nothing else about
 * it is: others may have it, it may have lapsed, it may be gone. */
TEST(what_is_lost_or_broken_late_leaves_a_lock_that_lingers_alone)
{
    const char *key = scene_key("lingers");
    struct hf_lock_opts opts = plain(60000), lingers = plain(60000);
    hf_client *lost = scene_open(0, ""), *has = scene_open(0, ""),
              *next = scene_open(0, "");
    struct hf_service service = HF_SERVICE_INIT;
    hf_lock *old, *lk;
    uint64_t before, fence;

    lingers.linger_ms = 200000;
    CHECK_OK(hf_acquire(lost, key, 0, &opts, &old, &t_err));
    before = hf_fence(old);
    CHECK_OK(hf_break_force(next, key, before, &t_err));
    CHECK_OK(hf_acquire(has, key, 0, &lingers, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_describe(next, &service, &t_err));
    if (!(service.traits & HF_TRAIT_NOTIFY))
        T_SKIP_TRAIT("NOTIFY");
    CHECK_STATUS(hf_break_force(next, key, before, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(old, &t_err), HF_LOST);
    CHECK(scene_inspected(next, key).held);
    CHECK_EQ(scene_inspected(next, key).fence, fence);
    CHECK_OK(hf_acquire(next, key, 30000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(lost);
    hf_close(has);
    hf_close(next);
}

TEST(a_key_that_was_had_is_had_again_only_if_it_is_free)
{
    struct hf_lock_opts opts = plain(30000), brief = plain(1000);
    hf_client *client = scene_open(0, "&table=again");
    hf_client *other = scene_open(0, "&table=again");
    char *key = strdup(scene_key("again"));
    uint64_t fence = 0;
    hf_lock *lk, *held;

    for (int i = 0; i < 6; i++) {
        CHECK_OK(hf_acquire(client, key, 10000, &opts, &lk, &t_err));
        CHECK_GT(hf_fence(lk), fence);
        fence = hf_fence(lk);
        CHECK_EQ(scene_inspected(other, key).fence, fence);
        CHECK_STATUS(hf_acquire(other, key, 0, &opts, &held, &t_err), HF_BUSY);
        CHECK_OK(hf_release(lk, &t_err));
        if (i == 1) {
            CHECK_OK(hf_acquire(other, key, 0, &opts, &held, &t_err));
            CHECK_STATUS(hf_acquire(client, key, 0, &opts, &lk, &t_err),
                         HF_BUSY);
            CHECK_OK(hf_release(held, &t_err));
        }
        if (i == 3 && !scene_is_sqlite())
            scene_sql("DELETE FROM again");
    }
    brief.flags = HF_MANUAL;
    CHECK_OK(hf_acquire(other, key, 0, &brief, &held, &t_err));
    CHECK_OK(hf_acquire(client, key, 30000, &opts, &lk, &t_err));
    CHECK_STATUS(hf_release(held, &t_err), HF_LOST);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(other);
    hf_close(client);
    free(key);
}

T_MAIN
