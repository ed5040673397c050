/* SPDX-License-Identifier: MIT
 *
 * foreign.c - nodes and rights that others make: names that imitate ours,
 * nodes that are no locks, and a right to remove that is taken away for a while.
 */
#include "zkt.h"

static bool held_through(hf_lock *lk, const struct zkt_waiter *w, int64_t ms)
{
    int64_t end = t_now_ms() + ms;

    while (t_now_ms() < end) {
        if (!hf_held(lk) || atomic_load(&w->done))
            return false;
        t_sleep_ms(10);
    }
    return true;
}

/* Plant nodes with the name of the waiter's and the lowest number, written with
 * more and more digits: children come in no order, and one of them is likely to
 * come before the waiter's own. */
static void imitate(const struct zkt_node *node, bool plant)
{
    char path[600];

    for (int digits = 10; digits < 30; digits++) {
        snprintf(path, sizeof(path), "%.*s%0*d", (int)strlen(node->path) - 10,
                 node->path, digits, 0);
        if (plant)
            zkt_make_ephemeral(path);
        else
            zkt_remove(path);
    }
}

TEST_TIMEOUT(a_node_that_bears_the_token_of_a_waiter_grants_it_nothing, 60)
{
    struct hf_lock_opts opts = zkt_opts(8000);
    const char *key = zkt_key("k");
    struct zkt_waiter between, w;
    hf_client *client;
    struct zkt_node node;
    hf_lock *lk;

    zkt_begin();
    client = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    zkt_wait_start(&between, zkt_open(zkt_url("")), key, 1500, 8000);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 10000);
    zkt_wait_start(&w, zkt_open(zkt_url("")), key, 30000, 8000);
    t_poll_until(zkt_children(zkt_path(key)) == 3, 10000);
    CHECK(zkt_last(zkt_path(key), &node));
    imitate(&node, true);
    /* The one before it leaves, so it looks at the queue. */
    CHECK_STATUS(zkt_wait_end(&between), HF_TIMEOUT);
    CHECK(held_through(lk, &w, 1000));
    CHECK_OK(hf_release(lk, &t_err));
    imitate(&node, false);
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_EQ(node.czxid, hf_fence(w.lk));
    CHECK_OK(hf_release(w.lk, &t_err));
    t_poll_until(zkt_children(zkt_path(key)) == 0, 10000);
    hf_close(between.client);
    hf_close(w.client);
    hf_close(client);
    zkt_end();
}

T_MAIN
