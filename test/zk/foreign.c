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

/* Nobody may remove children of the key's node while `fn` lets go of it; then
 * everybody may, and `next` gets the lock.  What `fn` returns is released at the
 * end. */
static void refused(hf_lock *(*fn)(hf_client *, const char *key),
                    const char *key)
{
    struct hf_lock_opts opts = zkt_opts(4000);
    hf_client *client, *next;
    hf_lock *lk, *left;

    zkt_begin();
    client = zkt_open(zkt_url(""));
    next = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(next, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    left = fn(client, key);
    t_sleep_ms(300); /* so that it is refused more than once */
    CHECK_EQ(zkt_children(zkt_path(key)), 1);
    zkt_permit(zkt_path(key), true);
    CHECK_OK(hf_acquire(next, key, 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(zkt_children(zkt_path(key)) == 0, 20000);
    if (left)
        hf_release(left, NULL);
    hf_close(client);
    hf_close(next);
    zkt_end();
}

static hf_lock *released(hf_client *client, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(8000);
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    zkt_permit(zkt_path(key), false);
    CHECK_STATUS(hf_release(lk, &t_err), HF_DENIED);
    return NULL;
}

static hf_lock *lapsed(hf_client *client, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(1000);
    hf_lock *lk;

    opts.flags = HF_MANUAL;
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    zkt_permit(zkt_path(key), false);
    t_poll_until(!hf_held(lk), 10000);
    return lk;
}

/* The node of a try that finds the lock taken. */
static hf_lock *tried(hf_client *client, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(8000);
    hf_client *holder = zkt_open(zkt_url(""));
    struct zkt_node first;
    hf_lock *lk, *none;

    CHECK_OK(hf_acquire(holder, key, 0, &opts, &lk, &t_err));
    CHECK(zkt_first(zkt_path(key), &first));
    zkt_permit(zkt_path(key), false);
    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &none, &t_err), HF_DENIED);
    hf_close(holder); /* Its session ends, and its node. */
    t_poll_until(!zkt_read(first.path, &first), 10000);
    return lk;
}

TEST_TIMEOUT(a_release_that_was_refused_is_tried_again, 60)
{
    refused(released, zkt_key("k"));
}

TEST_TIMEOUT(the_removal_of_what_lapsed_is_tried_again, 60)
{
    refused(lapsed, zkt_key("k"));
}

TEST_TIMEOUT(a_withdrawal_that_was_refused_is_tried_again, 60)
{
    refused(tried, zkt_key("k"));
}

/* A path below a key's node. */
static const char *below(const char *key, const char *name)
{
    static char path[600];

    snprintf(path, sizeof(path), "%s/%s", zkt_path(key), name);
    return path;
}

TEST(what_only_ends_in_digits_is_no_contender)
{
    struct hf_lock_opts opts = zkt_opts(8000);
    const char *key = zkt_key("k");
    char url[256];
    hf_client *client, *inner;
    hf_lock *lk, *more;

    zkt_begin();
    client = zkt_open(zkt_url(""));
    snprintf(url, sizeof(url), "zk://%s/hf-test/%s", getenv("HF_ZK_HOSTS"),
             key);
    inner = zkt_open(url);
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    zkt_make(below(key, "batch-0000000000"), "");
    CHECK_OK(hf_acquire(inner, "0000000000", 0, &opts, &more, &t_err));
    CHECK_OK(hf_check(client, key, hf_fence(lk), &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(more, &t_err));
    zkt_remove(below(key, "batch-0000000000"));
    hf_close(client);
    hf_close(inner);
    zkt_end();
}

TEST(a_first_node_that_no_session_ends_is_shown_and_freed_by_force)
{
    struct hf_info info = HF_INFO_INIT;
    const char *key = zkt_key("k");
    hf_client *client;
    hf_lock *lk;

    zkt_begin();
    client = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
    zkt_make(below(key, "x-lock--000000001"), "");
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(hf_acquire(client, key, 0, NULL, &lk, &t_err), HF_BUSY);
    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    CHECK(info.held);
    CHECK(strstr(info.note, "not ephemeral"));
    CHECK_STATUS(hf_break(client, key, info.fence, &t_err), HF_UNSUPPORTED);
    CHECK_OK(hf_break_force(client, key, info.fence, &t_err));
    CHECK_OK(hf_acquire(client, key, 5000, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    zkt_end();
}

T_MAIN
