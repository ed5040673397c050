/* SPDX-License-Identifier: MIT
 *
 * grants.c - fences of those who hold together, and what an old claim may do to
 * a lock that has gone on to another: run under test/servers/etcd.
 */
#include "t.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hf_client *client_new(void)
{
    hf_client *client = NULL;

    CHECK_OK(hf_open(getenv("HF_TEST_URL"), NULL, &client, &t_err));
    return client;
}

static hf_lock *take(hf_client *client, const char *key, const char *owner,
                     int64_t wait_ms, int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.owner = owner;
    opts.ttl_ms = ttl_ms;
    CHECK_OK(hf_acquire(client, key, wait_ms, &opts, &lk, &t_err));
    return lk;
}

static hf_request *queue_up(hf_client *client, const char *key)
{
    hf_request *rq = NULL;

    CHECK_OK(hf_acquire_start(client, key, -1, NULL, NULL, &rq, &t_err));
    t_poll_until(hf_request_place(rq) > 0, 20000);
    return rq;
}

static hf_lock *granted(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    t_poll_until(hf_next_event(client, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    return event.lock;
}

/* Those who join come after one that waits, and the first leaves first. */
TEST(who_joins_has_the_fence_of_the_holder_and_the_next_a_higher_one)
{
    hf_client *a = client_new(), *b = client_new(), *c = client_new();
    hf_lock *first = take(a, "joined", "X", 0, 0), *second, *third, *next;
    uint64_t fence = hf_fence(first);

    queue_up(c, "joined");
    second = take(b, "joined", "X", 0, 0);
    CHECK_EQ(hf_fence(second), fence);
    CHECK_OK(hf_check(c, "joined", fence, &t_err));
    CHECK_OK(hf_extend(second, 0, &t_err));
    CHECK_OK(hf_release(first, &t_err));
    CHECK_OK(hf_check(c, "joined", fence, &t_err));
    third = take(a, "joined", "X", 20000, 0);
    CHECK_EQ(hf_fence(third), fence);
    CHECK_OK(hf_release(second, &t_err));
    CHECK_OK(hf_extend(third, 0, &t_err));
    CHECK_OK(hf_check(c, "joined", fence, &t_err));
    CHECK_OK(hf_release(third, &t_err));
    next = granted(c);
    CHECK_GT(hf_fence(next), fence);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

/* Without anybody in between, by one that would have queued. */
TEST(who_waits_behind_its_own_owner_joins_it)
{
    hf_client *a = client_new(), *b = client_new();
    hf_lock *first = take(a, "behind", "X", 0, 0);
    hf_lock *second = take(b, "behind", "X", 20000, 0), *next;
    uint64_t fence = hf_fence(first);

    CHECK_EQ(hf_fence(second), fence);
    CHECK_OK(hf_release(first, &t_err));
    CHECK_OK(hf_extend(second, 0, &t_err));
    CHECK_OK(hf_check(a, "behind", fence, &t_err));
    CHECK_OK(hf_release(second, &t_err));
    next = take(a, "behind", "Y", 0, 0);
    CHECK_GT(hf_fence(next), fence);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST(nobody_joins_a_lock_that_was_broken)
{
    hf_client *a = client_new(), *b = client_new(), *c = client_new();
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_info info = HF_INFO_INIT;
    hf_lock *one = take(a, "broken", "X", 0, 0), *none = NULL;
    hf_lock *two = take(b, "broken", "X", 0, 0);

    CHECK_OK(hf_break(b, "broken", hf_fence(one), &t_err));
    t_poll_until(!hf_held(one) && !hf_held(two), 20000);
    CHECK_OK(hf_inspect(a, "broken", &info, &t_err));
    CHECK(info.held && info.broken);
    CHECK_EQ(info.holders, 2);
    opts.owner = "X";
    CHECK_STATUS(hf_acquire(c, "broken", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    two = take(b, "broken", "X", 20000, 0);
    CHECK_OK(hf_release(two, &t_err));
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

/* Give a lock away through a handle. */
static hf_lock *pass(hf_lock *lk, hf_client *to, int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    struct hf_handle handle = HF_HANDLE_INIT;

    opts.ttl_ms = ttl_ms;
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_attach(to, "passed", &handle, &opts, &lk, &t_err));
    return lk;
}

/* The claim that came first lapses while its lock is back in the same client,
 * on the same lease and with the same revision. */
TEST(what_a_claim_left_behind_never_ends_a_later_one)
{
    hf_client *a = client_new(), *b = client_new();
    hf_lock *other = take(a, "other", NULL, 0, 2000);
    hf_lock *lk = take(a, "passed", NULL, 0, 2000);
    int64_t end = t_now_ms() + 3500;

    lk = pass(pass(lk, b, 2000), a, 2000);
    t_poll_until(t_now_ms() > end, 20000);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_check(b, "passed", hf_fence(lk), &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(other, &t_err));
    hf_close(a);
    hf_close(b);
}

/* Its handle says nothing of who released or took it. */
TEST(an_old_handle_does_nothing_to_a_lock_that_was_taken_up)
{
    hf_client *a = client_new(), *b = client_new();
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *lk = take(a, "void", NULL, 0, 0);

    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_handle_extend(b, "void", &handle, NULL, &t_err));
    CHECK_OK(hf_attach(b, "void", &handle, NULL, &lk, &t_err));
    CHECK_STATUS(hf_handle_extend(a, "void", &handle, NULL, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_release(a, "void", &handle, NULL, &t_err), HF_LOST);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* The lock keeps its name in etcd, which the first client has made. */
TEST(who_gave_a_lock_away_is_not_granted_it_while_another_holds_it)
{
    hf_client *a = client_new(), *b = client_new();
    hf_lock *lk = take(a, "given", NULL, 0, 0), *none = NULL;
    struct hf_handle handle = HF_HANDLE_INIT;

    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_attach(b, "given", &handle, NULL, &lk, &t_err));
    CHECK_STATUS(hf_handle_release(a, "given", &handle, NULL, &t_err), HF_LOST);
    CHECK_STATUS(hf_acquire(a, "given", 0, NULL, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(a, "given", 200, NULL, &none, &t_err), HF_TIMEOUT);
    CHECK_OK(hf_release(lk, &t_err));
    lk = take(a, "given", NULL, 20000, 0);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* Wait for the lock, in a process that is stopped meanwhile, and tell its fence
 * while it is held. */
static void wait_and_tell(struct t_peer *up, void *arg)
{
    const struct hf_lock_opts *opts = arg;
    hf_client *client = client_new();
    hf_lock *lk = NULL;

    t_hear(up);
    CHECK_OK(hf_acquire(client, "early", 20000, opts, &lk, &t_err));
    t_tell(up, (int64_t)hf_fence(lk));
    CHECK_OK(hf_check(client, "early", hf_fence(lk), &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

/* The holder leaves while the waiter is stopped, so the waiter is granted the
 * lock, and that grant is broken before it wakes up. */
static void break_before_it_wakes(struct hf_lock_opts *opts)
{
    struct t_peer waiter = t_fork(wait_and_tell, opts);
    struct hf_lock_opts first = *opts;
    struct hf_info info = HF_INFO_INIT;
    hf_client *a = client_new();
    hf_lock *lk = NULL;

    first.owner = NULL;
    first.flags = 0;
    CHECK_OK(hf_acquire(a, "early", 20000, &first, &lk, &t_err));
    t_tell(&waiter, 0);
    t_poll_until(!hf_inspect(a, "early", &info, &t_err) && info.waiters == 1,
                 20000);
    t_sleep_ms(100); /* It watches. */
    kill(waiter.pid, SIGSTOP);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_inspect(a, "early", &info, &t_err));
    if (info.held)
        CHECK_OK(hf_break(a, "early", info.fence, &t_err));
    CHECK_EQ(info.held, !opts->permits); /* A permit is written by a waiter. */
    kill(waiter.pid, SIGCONT);
    CHECK_GT((uint64_t)t_hear(&waiter), info.fence);
    t_join(&waiter);
    CHECK_OK(hf_inspect(a, "early", &info, &t_err));
    CHECK(!info.held && !info.waiters);
    hf_close(a);
}

TEST(what_was_broken_before_its_waiter_woke_up_is_not_granted)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    break_before_it_wakes(&opts);
    opts.owner = "X";
    break_before_it_wakes(&opts);
    opts.owner = NULL;
    opts.flags = HF_SHARED;
    break_before_it_wakes(&opts);
    opts.flags = 0;
    opts.permits = 1;
    break_before_it_wakes(&opts);
}

T_MAIN
