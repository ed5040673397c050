/* SPDX-License-Identifier: MIT
 *
 * grants.c - fences of those who hold together, and what an old claim may do to
 * a lock that has gone on to another: run under test/servers/etcd.
 */
#include "t.h"

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
    struct hf_event event;

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
    struct hf_handle handle;

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
    struct hf_handle handle;
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
    struct hf_handle handle;

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

T_MAIN
