/* SPDX-License-Identifier: MIT
 *
 * session.c - sessions that end, nodes that are removed, and what the server
 * makes of the ttl.
 */
#include "zkt.h"

#include <unistd.h>

/* Freeze the connection until the server has ended the session of a node. */
static void freeze_until_gone(struct zkt_proxy *proxy, const char *path)
{
    struct zkt_node node;

    atomic_store(&proxy->frozen, 1);
    t_poll_until(!zkt_read(path, &node), 30000);
    atomic_store(&proxy->frozen, 0);
}

TEST(a_holder_knows_of_its_loss_before_the_server_ends_the_session)
{
    struct hf_lock_opts opts = zkt_opts(2000);
    const char *key = zkt_key("k");
    struct zkt_proxy proxy;
    struct zkt_node node;
    hf_client *client, *other;
    hf_lock *lk, *next = NULL;

    zkt_begin();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, ""));
    other = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK(zkt_first(zkt_path(key), &node));
    t_sleep_ms(1000); /* The first heartbeat looks closer than those after. */
    CHECK(hf_held(lk));
    atomic_store(&proxy.frozen, 1);
    t_poll_until(!hf_held(lk), 10000);
    CHECK(zkt_read(node.path, &node)); /* It is still there. */
    CHECK_OK(hf_acquire(other, key, 20000, &opts, &next, &t_err));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    atomic_store(&proxy.frozen, 0);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_EQ(zkt_children(zkt_path(key)), 0);
    hf_close(client);
    hf_close(other);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

/* The server hears the client and keeps its session; the client hears nothing,
 * so it cannot know that. */
TEST(a_holder_whose_answers_are_lost_knows_it_and_leaves_nothing)
{
    struct hf_lock_opts opts = zkt_opts(2000);
    const char *key = zkt_key("k");
    struct zkt_proxy proxy;
    struct zkt_node node;
    hf_client *client, *other;
    hf_lock *lk, *next;
    int64_t end;
    bool there;

    zkt_begin();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, ""));
    other = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK(zkt_first(zkt_path(key), &node));
    atomic_store(&proxy.no_replies, 1);
    end = t_now_ms() + 10000;
    for (;; t_sleep_ms(5)) {
        there = zkt_read(node.path, &node);
        if (!hf_held(lk))
            break; /* and it may have been given back by now */
        CHECK(there);
        CHECK_LT(t_now_ms(), end);
    }
    atomic_store(&proxy.no_replies, 0);
    CHECK_OK(hf_acquire(other, key, 20000, &opts, &next, &t_err));
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_EQ(zkt_children(zkt_path(key)), 0);
    hf_close(client);
    hf_close(other);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

TEST(a_waiter_whose_session_ended_is_granted_only_under_a_new_one)
{
    struct hf_lock_opts opts = zkt_opts(20000);
    const char *key = zkt_key("k");
    struct zkt_node node, first;
    struct zkt_proxy proxy;
    struct zkt_waiter w;
    hf_client *client, *other;
    hf_lock *lk;

    zkt_begin();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, ""));
    other = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(other, key, 0, &opts, &lk, &t_err));
    CHECK(zkt_first(zkt_path(key), &first));
    zkt_wait_start(&w, client, key, 60000, 1500);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 10000);
    atomic_store(&proxy.frozen, 1);
    t_poll_until(zkt_children(zkt_path(key)) == 1, 30000);
    CHECK_OK(hf_release(lk, &t_err)); /* The lock is free, the waiter frozen. */
    CHECK_EQ(zkt_children(zkt_path(key)), 0);
    atomic_store(&proxy.frozen, 0);
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK(zkt_first(zkt_path(key), &node));
    CHECK_EQ(node.czxid, hf_fence(w.lk));
    CHECK_GT(node.czxid, first.czxid);
    CHECK_OK(hf_check(other, key, hf_fence(w.lk), &t_err));
    CHECK_OK(hf_release(w.lk, &t_err));
    t_poll_until(zkt_children(zkt_path(key)) == 0, 10000);
    hf_close(client);
    hf_close(other);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

TEST(a_session_that_ended_while_holding_is_told_and_the_next_lock_works)
{
    struct hf_lock_opts opts = zkt_opts(1500);
    const char *key = zkt_key("k");
    struct zkt_proxy proxy;
    struct zkt_node node;
    hf_client *client;
    hf_lock *lk;

    zkt_begin();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, ""));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
        CHECK(zkt_first(zkt_path(key), &node));
        freeze_until_gone(&proxy, node.path);
        CHECK(!hf_held(lk));
        t_poll_until(hf_lost_reason(lk) != HF_LOSS_NONE, 10000);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    }
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(zkt_children(zkt_path(key)), 0);
    hf_close(client);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

TEST(a_short_break_of_the_connection_costs_nothing)
{
    struct hf_lock_opts opts = zkt_opts(6000);
    const char *key = zkt_key("k");
    struct zkt_proxy proxy;
    hf_client *client;
    hf_lock *lk;

    zkt_begin();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, ""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    for (int i = 0; i < 4; i++) {
        atomic_store(&proxy.left, 0);
        atomic_store(&proxy.cut, i % 2 ? ZKT_AFTER : ZKT_BEFORE);
        t_poll_until(atomic_load(&proxy.cuts) == i + 1, 10000);
        CHECK(hf_held(lk));
    }
    t_poll_until(hf_extend(lk, 0, NULL) == HF_OK, 10000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(zkt_children(zkt_path(key)), 0);
    hf_close(client);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

TEST(a_release_without_connection_is_done_when_there_is_one)
{
    struct hf_lock_opts opts = zkt_opts(20000);
    struct hf_client_opts brief = HF_CLIENT_OPTS_INIT;
    const char *key = zkt_key("k");
    struct zkt_proxy proxy;
    hf_client *client;
    hf_lock *lk;

    zkt_begin();
    zkt_proxy_start(&proxy);
    brief.timeout_ms = 1000;
    CHECK_OK(hf_open(zkt_proxy_url(&proxy, ""), &brief, &client, &t_err));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    atomic_store(&proxy.frozen, 1);
    CHECK_STATUS(hf_release(lk, &t_err), HF_UNCERTAIN);
    CHECK_EQ(zkt_children(zkt_path(key)), 1);
    atomic_store(&proxy.frozen, 0);
    t_poll_until(zkt_children(zkt_path(key)) == 0, 15000);
    hf_close(client);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

TEST(an_operator_who_removes_the_node_is_heard_at_once)
{
    struct hf_lock_opts opts = zkt_opts(60000);
    const char *key = zkt_key("k");
    hf_client *client;
    struct zkt_node node;
    hf_lock *lk;

    zkt_begin();
    client = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK(zkt_first(zkt_path(key), &node));
    CHECK_EQ(node.czxid, hf_fence(lk));
    zkt_remove(node.path);
    t_poll_until(!hf_held(lk), 5000); /* A heartbeat is 20 s away. */
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_DELETED);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
    zkt_end();
}

/* As an operator or Curator would: the holder is told, and nobody is let in
 * before it is done. */
static void mark(const char *word)
{
    struct hf_lock_opts opts = zkt_opts(60000);
    struct hf_info info = HF_INFO_INIT;
    const char *key = zkt_key("k");
    hf_client *client, *other;
    struct zkt_node node;
    struct zkt_waiter w;
    hf_lock *lk;

    zkt_begin();
    client = zkt_open(zkt_url(""));
    other = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK(zkt_first(zkt_path(key), &node));
    zkt_wait_start(&w, other, key, 60000, 60000);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 10000);
    if (word)
        zkt_write(node.path, word);
    else
        CHECK_OK(hf_break(other, key, hf_fence(lk), &t_err));
    t_poll_until(!hf_held(lk), 5000); /* A heartbeat is 20 s away. */
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
    CHECK_OK(hf_inspect(other, key, &info, &t_err));
    CHECK(info.held);
    CHECK(info.broken);
    CHECK(zkt_read(node.path, &node));
    t_sleep_ms(200);
    CHECK(!atomic_load(&w.done));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_OK(hf_release(w.lk, &t_err));
    hf_close(client);
    hf_close(other);
    zkt_end();
}

TEST(a_broken_holder_is_told_at_once_and_its_node_stays_until_it_is_done)
{
    mark(NULL);
}

TEST(what_curator_revokes_is_broken)
{
    mark("__REVOKE__");
}

TEST(a_broken_holder_whose_handle_nobody_releases_ends_with_its_lease)
{
    struct hf_lock_opts opts = zkt_opts(1500);
    const char *key = zkt_key("k");
    hf_client *client, *other;
    hf_lock *lk, *next;

    client = zkt_open(zkt_url(""));
    other = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_break(other, key, hf_fence(lk), &t_err));
    CHECK_OK(hf_acquire(other, key, 20000, &opts, &next, &t_err));
    CHECK(!hf_held(lk));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
    hf_close(other);
}

/* The mark would be lost with the node. */
TEST(a_broken_lock_is_neither_moved_to_another_session_nor_joined)
{
    struct hf_lock_opts opts = zkt_opts(60000);
    const char *key = zkt_key("k");
    struct hf_info info = HF_INFO_INIT;
    hf_client *client, *other;
    hf_lock *lk, *none = NULL;

    client = zkt_open(zkt_url(""));
    other = zkt_open(zkt_url(""));
    opts.owner = "me";
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_break(other, key, hf_fence(lk), &t_err));
    CHECK_STATUS(hf_acquire(other, key, 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_NE(hf_extend(lk, 3000, &t_err), HF_OK);
    CHECK_OK(hf_inspect(other, key, &info, &t_err));
    CHECK(info.held);
    CHECK(info.broken);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_acquire(other, key, 20000, &opts, &none, &t_err));
    CHECK_OK(hf_release(none, &t_err));
    hf_close(client);
    hf_close(other);
}

/* Renew all of them a few times. */
static void outlast(hf_lock **locks, int n, int64_t ms)
{
    int64_t end = t_now_ms() + ms;
    int i;

    for (; t_now_ms() < end; t_sleep_ms(100))
        for (i = 0; i < n; i++)
            CHECK(hf_held(locks[i]));
}

TEST(nodes_that_bear_a_watch_are_not_asked_for_again)
{
    enum { LOCKS = 50 };
    struct hf_lock_opts opts = zkt_opts(3000);
    struct zkt_proxy proxy;
    struct zkt_node node;
    hf_lock *locks[LOCKS];
    hf_client *client;
    char key[64];
    int i, looks;

    zkt_begin();
    zkt_proxy_start(&proxy);
    client = zkt_open(zkt_proxy_url(&proxy, ""));
    for (i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof(key), "watched-%d-%d", (int)getpid(), i);
        CHECK_OK(hf_acquire(client, key, 0, &opts, &locks[i], &t_err));
    }
    outlast(locks, LOCKS, 2500);
    looks = atomic_load(&proxy.looks);
    CHECK_GE(looks, LOCKS);
    outlast(locks, LOCKS, 6000);
    /* Six heartbeats, each of a few requests for all: something has to be asked
     * for in each.  That they look at every node would be 300. */
    CHECK_LE(atomic_load(&proxy.looks), looks + 3 * LOCKS);
    CHECK_GE(atomic_load(&proxy.looks), looks + 3);
    /* One that is written to has no watch any more, and is looked at again. */
    CHECK(zkt_first(zkt_path(key), &node));
    zkt_write(node.path, node.data);
    outlast(&locks[LOCKS - 1], 1, 2500);
    zkt_remove(node.path);
    t_poll_until(!hf_held(locks[LOCKS - 1]), 5000);
    CHECK_EQ(hf_lost_reason(locks[LOCKS - 1]), HF_LOSS_DELETED);
    CHECK_STATUS(hf_release(locks[LOCKS - 1], &t_err), HF_LOST);
    outlast(locks, LOCKS - 1, 500);
    for (i = 0; i < LOCKS - 1; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    hf_close(client);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

static bool count_it(void *arg, const char *key, const struct hf_info *info)
{
    (void)key;
    CHECK(info->held);
    CHECK_EQ(info->holders, 1);
    CHECK(info->owner[0] != 0);
    ++*(int *)arg;
    return true;
}

TEST(a_list_asks_for_each_lock_once_and_for_many_at_a_time)
{
    enum { LOCKS = 100 };
    hf_client *client = zkt_open(zkt_url("/list"));
    struct zkt_proxy proxy;
    hf_lock *locks[LOCKS];
    hf_client *other;
    int listed = 0;
    char key[64];

    zkt_proxy_start(&proxy);
    for (int i = 0; i < LOCKS; i++) {
        snprintf(key, sizeof(key), "listed-%d-%d", (int)getpid(), i);
        CHECK_OK(hf_acquire(client, key, 0, NULL, &locks[i], &t_err));
    }
    other = zkt_open(zkt_proxy_url(&proxy, "/list"));
    CHECK_OK(hf_list(other, "listed", count_it, &listed, &t_err));
    hf_close(other);
    CHECK_EQ(listed, LOCKS);
    CHECK_LE(atomic_load(&proxy.lists), LOCKS + 1);
    CHECK_LE(atomic_load(&proxy.looks), LOCKS + 2);
    for (int i = 0; i < LOCKS; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    hf_close(client);
    zkt_proxy_stop(&proxy);
}

TEST(an_operator_who_removes_a_waiter_makes_it_queue_up_anew)
{
    struct hf_lock_opts opts = zkt_opts(20000);
    const char *key = zkt_key("k");
    struct zkt_node first, node;
    struct zkt_waiter w;
    hf_client *client;
    hf_lock *lk;

    zkt_begin();
    client = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK(zkt_first(zkt_path(key), &first));
    zkt_wait_start(&w, zkt_open(zkt_url("")), key, 30000, 2000);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 10000);
    CHECK(zkt_last(zkt_path(key), &node));
    CHECK_NE(node.czxid, first.czxid);
    zkt_remove(node.path);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK(zkt_first(zkt_path(key), &node));
    CHECK_EQ(node.czxid, hf_fence(w.lk));
    CHECK_OK(hf_release(w.lk, &t_err));
    hf_close(w.client);
    hf_close(client);
    zkt_end();
}

TEST(an_extended_lock_changes_sessions_and_keeps_place_and_fence)
{
    struct hf_lock_opts opts = zkt_opts(2000);
    const char *key = zkt_key("k");
    struct zkt_node before, after;
    hf_client *client, *other;
    struct zkt_waiter w;
    uint64_t fence;
    hf_lock *lk;

    zkt_begin();
    client = zkt_open(zkt_url(""));
    other = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK(zkt_first(zkt_path(key), &before));
    zkt_wait_start(&w, other, key, 30000, 20000);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 10000);
    CHECK_OK(hf_extend(lk, 30000, &t_err));
    CHECK(zkt_first(zkt_path(key), &after));
    CHECK_STR(after.path, before.path);
    CHECK_NE(after.owner, before.owner);
    CHECK_EQ(hf_fence(lk), fence);
    CHECK_OK(hf_check(other, key, fence, &t_err));
    t_sleep_ms(200);
    CHECK(!atomic_load(&w.done));
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_GT(hf_fence(w.lk), fence);
    CHECK_OK(hf_release(w.lk, &t_err));
    hf_close(client);
    hf_close(other);
    zkt_end();
}

TEST(a_ttl_beyond_the_servers_sessions_is_refused_with_the_limit)
{
    struct hf_lock_opts opts = zkt_opts(2000000);
    const char *key = zkt_key("k");
    hf_client *client = zkt_open(zkt_url(""));
    hf_lock *lk = NULL;

    CHECK_STATUS(hf_acquire(client, key, 0, &opts, &lk, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "800000") != NULL);
    opts.ttl_ms = 800000;
    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST(a_clamped_session_is_warned_of)
{
    struct hf_service about = {.size = sizeof(about)};
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_client *client = zkt_open(zkt_url("?ttl=100ms"));
    hf_lock *lk;

    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "1000 ms") != NULL);
    hf_close(client);
    client = zkt_open(zkt_url("?ttl=2000s"));
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "800000") != NULL);
    hf_close(client);
    client = zkt_open(zkt_url(""));
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK_STR(about.warning, "");
    opts.ttl_ms = 500; /* Also for a lease of another length. */
    CHECK_OK(hf_acquire(client, zkt_key("k"), 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_describe(client, &about, &t_err));
    CHECK(strstr(about.warning, "1000 ms") != NULL);
    hf_close(client);
}

TEST(parents_vanish_when_they_are_empty)
{
    char key[64], path[512];
    hf_client *client;
    struct zkt_node node;
    hf_lock *lk;

    zkt_begin();
    client = zkt_open(zkt_url("/deep/er"));
    for (int i = 0; i < 20; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(client);
    snprintf(path, sizeof(path), "%s", zkt_path("deep"));
    t_poll_until(!zkt_read(path, &node), 20000);
    zkt_end();
}

TEST(what_would_need_tls_is_refused_with_advice)
{
    static const char *const urls[] = {"zks://127.0.0.1:1/locks",
                                       "zk://127.0.0.1:1/locks?tls=yes"};
    hf_client *client = NULL;

    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(hf_open(urls[i], NULL, &client, &t_err), HF_UNSUPPORTED);
        CHECK(strstr(t_err.text, "stunnel") != NULL);
    }
    CHECK_STATUS(
        hf_open("zk://127.0.0.1:1/?password_file=/x", NULL, &client, &t_err),
        HF_INVALID);
}

TEST(with_credentials_nobody_else_may_touch_the_nodes)
{
    char mine[512], theirs[256], path[512], file[256];
    hf_client *a, *b;
    struct hf_info info = HF_INFO_INIT;
    FILE *f;
    const char *key = zkt_key("k");
    hf_lock *lk, *none = NULL;

    snprintf(file, sizeof(file), "%s/password", t_tmpdir());
    snprintf(mine, sizeof(mine), "zk://ann:s3cret@%s/hf-ann",
             getenv("HF_ZK_HOSTS"));
    snprintf(theirs, sizeof(theirs), "zk://bob:s3cret@%s/hf-ann",
             getenv("HF_ZK_HOSTS"));
    zkt_begin();
    a = zkt_open(mine);
    CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
    snprintf(path, sizeof(path), "/hf-ann/%s", key);
    CHECK_EQ(zkt_children(path), 0); /* The operator may not look. */
    b = zkt_open(theirs);
    CHECK_STATUS(hf_acquire(b, key, 0, NULL, &none, &t_err), HF_DENIED);
    CHECK(strstr(t_err.text, "s3cret") == NULL);
    CHECK_STATUS(hf_inspect(b, key, &info, &t_err), HF_DENIED);
    CHECK_STATUS(hf_break(b, key, hf_fence(lk), &t_err), HF_DENIED);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    f = fopen(file, "w"); /* The same credentials, another session. */
    CHECK(f != NULL);
    fputs("s3cret\n", f);
    CHECK_EQ(fclose(f), 0);
    snprintf(mine, sizeof(mine), "zk://ann@%s/hf-ann?password_file=%s",
             getenv("HF_ZK_HOSTS"), file);
    a = zkt_open(mine);
    CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    zkt_end();
}

TEST(foreign_nodes_are_named_and_left_alone)
{
    const char *key = zkt_key("k"), *plain = zkt_key("plain");
    struct zkt_node node;
    hf_client *client, *single;
    hf_lock *lk = NULL;
    char path[600];

    zkt_begin();
    client = zkt_open(zkt_url(""));
    single = zkt_open(zkt_url("?recipe=ephemeral"));
    CHECK_OK(hf_acquire(single, key, 0, NULL, &lk, &t_err));
    CHECK(zkt_read(zkt_path(key), &node));
    CHECK_NE(node.owner, 0);
    CHECK_STATUS(hf_acquire(client, key, 0, NULL, &lk, &t_err), HF_PROTOCOL);
    CHECK_OK(hf_release(lk, &t_err));
    zkt_make(zkt_path(plain), "");
    CHECK_STATUS(hf_acquire(single, plain, 0, NULL, &lk, &t_err), HF_PROTOCOL);
    snprintf(path, sizeof(path), "%s/notes", zkt_path(plain));
    zkt_make(path, "what is this");
    CHECK_OK(hf_acquire(client, plain, 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(zkt_read(path, &node));
    CHECK_STR(node.data, "what is this");
    hf_close(client);
    hf_close(single);
    zkt_end();
}

TEST(no_server_is_unavailable_and_a_wrong_url_invalid)
{
    static const char *const wrong[] = {
        "zk:",
        "zk:///a",
        "zk://127.0.0.1:1/a?layout=x",
        "zk://127.0.0.1:1/a?recipe=x",
        "zk://127.0.0.1:1/a//b",
        "zk://127.0.0.1:1/a?nonsense=1",
    };
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *none = NULL;
    int64_t began = t_now_ms();

    opts.timeout_ms = 700;
    CHECK_STATUS(hf_open("zk://127.0.0.1:1/a", &opts, &none, &t_err),
                 HF_UNAVAILABLE);
    CHECK_LE(t_now_ms() - began, 20000);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK_STATUS(hf_open(wrong[i], &opts, &none, &t_err), HF_INVALID);
    CHECK(none == NULL);
}

T_MAIN
