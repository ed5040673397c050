/* SPDX-License-Identifier: MIT
 *
 * turns.c - what those who take turns ask for, and what they leave.
 *
 * Who gives a lock back and comes again knows who stood last, and by its number
 * whether anybody has come since (zk_last.c).
 */
#include "zkt.h"

/* `first` has it, and `second` waits behind it. */
struct line {
    const char *key;
    struct zkt_proxy proxy; /* to which `first` is connected */
    struct zkt_waiter first, second;
};

static void line_up(struct line *line)
{
    struct hf_lock_opts opts = zkt_opts(20000);
    hf_client *client = zkt_open(zkt_url(""));
    hf_lock *lk;

    line->key = zkt_key("k");
    zkt_begin();
    zkt_proxy_start(&line->proxy);
    CHECK_OK(hf_acquire(client, line->key, 0, &opts, &lk, &t_err));
    zkt_wait_start(&line->first, zkt_open(zkt_proxy_url(&line->proxy, "")),
                   line->key, 20000, 20000);
    t_poll_until(zkt_children(zkt_path(line->key)) == 2, 10000);
    zkt_wait_start(&line->second, zkt_open(zkt_url("")), line->key, 20000,
                   20000);
    t_poll_until(zkt_children(zkt_path(line->key)) == 3, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    CHECK_OK(zkt_wait_end(&line->first));
}

static void line_end(struct line *line)
{
    t_poll_until(zkt_children(zkt_path(line->key)) == 0, 10000);
    hf_close(line->first.client);
    hf_close(line->second.client);
    zkt_proxy_stop(&line->proxy);
    zkt_end();
}

TEST(who_comes_again_reads_the_queue_only_when_it_is_woken)
{
    struct line line;
    struct zkt_node node;

    line_up(&line);
    atomic_store(&line.proxy.lists, 0);
    CHECK_OK(hf_release(line.first.lk, &t_err));
    CHECK_OK(zkt_wait_end(&line.second));
    zkt_wait_start(&line.first, line.first.client, line.key, 20000, 20000);
    t_poll_until(zkt_children(zkt_path(line.key)) == 2, 10000);
    t_poll_until(strstr(zkt_says(1, "wchp"), line.key) != NULL, 10000);
    CHECK_EQ(atomic_load(&line.proxy.lists), 0);
    CHECK_OK(hf_release(line.second.lk, &t_err));
    CHECK_OK(zkt_wait_end(&line.first));
    CHECK_EQ(atomic_load(&line.proxy.lists), 1);
    CHECK(zkt_first(zkt_path(line.key), &node));
    CHECK_EQ(node.czxid, hf_fence(line.first.lk));
    CHECK_OK(hf_release(line.first.lk, &t_err));
    line_end(&line);
}

/* A wait of 5 s is over before anybody would look without being told. */
TEST(who_would_wait_for_one_that_has_gone_is_granted_at_once)
{
    struct hf_lock_opts opts = zkt_opts(20000);
    struct line line;
    hf_lock *lk;

    line_up(&line);
    hf_cancel(line.second.client);
    CHECK_STATUS(zkt_wait_end(&line.second), HF_CANCELED);
    t_poll_until(zkt_children(zkt_path(line.key)) == 1, 10000);
    CHECK_OK(hf_release(line.first.lk, &t_err));
    CHECK_OK(hf_acquire(line.first.client, line.key, 5000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(zkt_children(zkt_path(line.key)) == 0, 10000);
    t_poll_until(strstr(zkt_says(1, "wchp"), line.key) == NULL, 5000);
    line_end(&line);
}

/* Somebody came in between: the number says so, and nobody is overtaken. */
TEST(who_comes_again_after_another_waits_for_that_one)
{
    struct zkt_waiter third;
    struct line line;

    line_up(&line);
    zkt_wait_start(&third, zkt_open(zkt_url("")), line.key, 20000, 20000);
    t_poll_until(zkt_children(zkt_path(line.key)) == 3, 10000);
    CHECK_OK(hf_release(line.first.lk, &t_err));
    CHECK_OK(zkt_wait_end(&line.second));
    zkt_wait_start(&line.first, line.first.client, line.key, 20000, 20000);
    t_poll_until(zkt_children(zkt_path(line.key)) == 3, 10000);
    CHECK_OK(hf_release(line.second.lk, &t_err));
    CHECK_OK(zkt_wait_end(&third));
    t_sleep_ms(50);
    CHECK(!atomic_load(&line.first.done));
    CHECK_OK(hf_release(third.lk, &t_err));
    CHECK_OK(zkt_wait_end(&line.first));
    CHECK_OK(hf_release(line.first.lk, &t_err));
    hf_close(third.client);
    line_end(&line);
}

T_MAIN
