/* SPDX-License-Identifier: MIT
 *
 * interop-permits.c - Curator's InterProcessSemaphoreV2, kazoo's Semaphore and
 * our permits: never more than N hold together, and all wait in one queue.
 */
#include "peer.h"

static struct hf_lock_opts permits_opts(int32_t n)
{
    struct hf_lock_opts opts = zkt_opts(20000);

    opts.permits = n;
    return opts;
}

static int waiters_of(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    return hf_inspect(client, key, &info, NULL) == HF_OK ? info.waiters : -1;
}

/* One of theirs and one of ours make two. */
static void share_two(const struct peer_kind *kind)
{
    struct peer_scene s = peer_begin(kind);
    struct hf_lock_opts opts = permits_opts(2);
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk, *two, *none = NULL;

    peer_do(&s.peer, "permits 2", "ready");
    peer_do(&s.peer, "permit lock", "locked");
    CHECK_OK(hf_acquire(s.a, s.key, 0, &opts, &lk, &t_err));
    CHECK_EQ(hf_slot(lk), 0);
    CHECK_OK(hf_inspect(s.b, s.key, &info, &t_err));
    CHECK_EQ(info.holders, 2);
    CHECK_EQ(info.permits, 2);
    CHECK_STATUS(hf_acquire(s.b, s.key, 0, &opts, &none, &t_err), HF_BUSY);
    peer_do(&s.peer, "permit try", "busy");
    CHECK_STATUS(hf_acquire(s.b, s.key, 0, NULL, &none, &t_err), HF_INVALID);
    peer_do(&s.peer, "permit unlock", "unlocked");
    CHECK_OK(hf_acquire(s.b, s.key, 0, &opts, &two, &t_err));
    CHECK_EQ(hf_slot(two), 1);
    peer_do(&s.peer, "permit try", "busy");
    CHECK_OK(hf_release(lk, &t_err));
    peer_do(&s.peer, "permit try", "locked");
    CHECK_STATUS(hf_acquire(s.a, s.key, 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(two, &t_err));
    peer_do(&s.peer, "permit unlock", "unlocked");
    peer_finish(&s);
}

/* They wait for us, and we for them. */
static void wait_for_each_other(const struct peer_kind *kind)
{
    struct peer_scene s = peer_begin(kind);
    struct hf_lock_opts opts = permits_opts(1);
    struct zkt_waiter w;
    hf_lock *lk;

    peer_do(&s.peer, "permits 1", "ready");
    CHECK_OK(hf_acquire(s.a, s.key, 0, &opts, &lk, &t_err));
    peer_tell(&s.peer, "permit lock");
    t_poll_until(waiters_of(s.a, s.key) == 1, 10000);
    zkt_wait_start_with(&w, s.b, s.key, 60000, &opts);
    t_poll_until(waiters_of(s.a, s.key) == 2, 10000);
    CHECK(!peer_says(&s.peer, 200));
    CHECK_OK(hf_release(lk, &t_err));
    peer_hear(&s.peer, "locked");
    t_sleep_ms(100);
    CHECK(!atomic_load(&w.done));
    peer_do(&s.peer, "permit unlock", "unlocked");
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    peer_tell(&s.peer, "permit lock");
    CHECK(!peer_says(&s.peer, 200));
    CHECK_OK(hf_release(w.lk, &t_err));
    peer_hear(&s.peer, "locked");
    peer_do(&s.peer, "permit unlock", "unlocked");
    peer_finish(&s);
}

TEST(curators_semaphore_and_our_permits_are_counted_together)
{
    share_two(&peer_curator);
}

TEST(kazoos_semaphore_and_our_permits_are_counted_together)
{
    share_two(&peer_kazoo);
}

TEST(curators_semaphore_and_our_permits_wait_in_one_queue)
{
    wait_for_each_other(&peer_curator);
}

TEST(kazoos_semaphore_and_our_permits_wait_in_one_queue)
{
    wait_for_each_other(&peer_kazoo);
}

/* kazoo keeps the number in the node of the key. */
TEST(another_number_than_kazoos_is_refused_and_ours_is_written_there)
{
    struct peer_scene s = peer_begin(&peer_kazoo);
    struct hf_lock_opts two = permits_opts(2), three = permits_opts(3);
    struct zkt_node node;
    hf_lock *lk, *none = NULL;

    peer_do(&s.peer, "permits 2", "ready");
    peer_do(&s.peer, "permit lock", "locked");
    CHECK_STATUS(hf_acquire(s.a, s.key, 0, &three, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "2 permits, not 3"));
    CHECK_OK(hf_acquire(s.a, s.key, 0, &two, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    peer_do(&s.peer, "permit unlock", "unlocked");
    CHECK_OK(hf_acquire(s.a, s.key, 0, &three, &lk, &t_err));
    CHECK(zkt_read(zkt_path(s.key), &node));
    CHECK_STR(node.data, "3");
    CHECK_OK(hf_release(lk, &t_err));
    peer_finish(&s);
}

T_MAIN
