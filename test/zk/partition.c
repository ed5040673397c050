/* SPDX-License-Identifier: MIT
 *
 * partition.c - the leader is cut off from the others: bytes stay on their way,
 * in one direction or in both, and nothing is closed.
 *
 * Who was on its side knows that his lock is gone before somebody on the other
 * side is granted it, and a session that can go to the other side takes its
 * locks along.
 */
#include "zkt.h"

/* Wait until somebody other than `id` leads. */
static void await_successor(int id)
{
    int64_t end = t_now_ms() + 60000;

    for (int other = 1;; other = other % ZKT_SERVERS + 1) {
        if (other != id && zkt_mode_of(other) == 'l')
            return;
        CHECK_LT(t_now_ms(), end);
        t_sleep_ms(20);
    }
}

static void cut_leader(void)
{
    int id = zkt_server('l');

    zkt_cut(id, true, true);
    await_successor(id);
    zkt_heal();
}

TEST_TIMEOUT(a_leader_that_is_cut_off_costs_no_lock, 180)
{
    zkt_outlast(cut_leader, 60000);
}

/* The holder sees only the server that is cut off, the next one only those that
 * it is cut off from. */
static void overtake(bool in, bool out)
{
    struct hf_lock_opts brief = zkt_opts(2000), opts = zkt_opts(20000);
    const char *key = zkt_key("k");
    char here[128], there[256];
    int id, left, right;
    hf_client *a, *b;
    hf_lock *lk, *next;

    zkt_await_all();
    id = zkt_server('l');
    left = id % ZKT_SERVERS + 1;
    right = left % ZKT_SERVERS + 1;
    snprintf(here, sizeof(here), "zk://127.0.0.1:%ld/hf-test",
             zkt_number_of(id, "port"));
    snprintf(there, sizeof(there), "zk://127.0.0.1:%ld,127.0.0.1:%ld/hf-test",
             zkt_number_of(left, "port"), zkt_number_of(right, "port"));
    a = zkt_open(here);
    b = zkt_open(there);
    CHECK_OK(hf_acquire(a, key, 20000, &brief, &lk, &t_err));
    zkt_cut(id, in, out);
    CHECK_OK(hf_acquire(b, key, 60000, &opts, &next, &t_err));
    CHECK(!hf_held(lk));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    zkt_heal();
    zkt_await_all();
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    t_poll_until(hf_check(a, key, hf_fence(next), NULL) == HF_OK, 60000);
    CHECK_OK(hf_release(next, &t_err));
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(key)) == 0, 20000);
    zkt_end();
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(who_is_with_a_leader_that_hears_nothing_knows_his_loss, 120)
{
    overtake(true, false);
}

TEST_TIMEOUT(who_is_with_a_leader_that_nobody_hears_knows_his_loss, 120)
{
    overtake(false, true);
}

/* Wait until a lock has just been renewed. */
static void await_renewal(hf_lock *lk)
{
    int64_t end = t_now_ms() + 20000, left = hf_remaining_ms(lk), now;

    while ((now = hf_remaining_ms(lk)) < left + 300) {
        CHECK_LT(t_now_ms(), end);
        CHECK(hf_held(lk));
        left = now;
        t_sleep_ms(2);
    }
}

/* What the leader sends to a follower is late, so no ping is answered.  The
 * follower still answers reads, and passes a renewal on whose answer comes with
 * the pings: none of that was reported to the leader when the follower is cut
 * off. */
TEST_TIMEOUT(an_answer_that_was_late_with_the_pings_proves_nothing_newer, 120)
{
    struct hf_lock_opts opts = zkt_opts(3000);
    const char *key = zkt_key("k");
    int follower, left, right;
    char here[128], there[256];
    struct zkt_waiter w;
    hf_client *a, *b;
    int64_t end;
    hf_lock *lk;

    zkt_await_all();
    follower = zkt_server('f');
    left = follower % ZKT_SERVERS + 1;
    right = left % ZKT_SERVERS + 1;
    snprintf(here, sizeof(here), "zk://127.0.0.1:%ld/hf-test",
             zkt_number_of(follower, "port"));
    snprintf(there, sizeof(there), "zk://127.0.0.1:%ld,127.0.0.1:%ld/hf-test",
             zkt_number_of(left, "port"), zkt_number_of(right, "port"));
    a = zkt_open(here);
    b = zkt_open(there);
    CHECK_OK(hf_acquire(a, key, 20000, &opts, &lk, &t_err));
    zkt_wait_start(&w, b, key, 60000, 3000);
    for (int i = 0; i < 3; i++)
        await_renewal(lk);
    zkt_cut(follower, true, false);
    for (end = t_now_ms() + 2600; t_now_ms() < end;)
        t_sleep_ms(5);
    zkt_cut(follower, false, true);
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK(!hf_held(lk));
    CHECK_GT(hf_fence(w.lk), hf_fence(lk));
    zkt_heal();
    CHECK_OK(hf_release(w.lk, &t_err));
    zkt_await_all();
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
}

T_MAIN
