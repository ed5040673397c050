/* SPDX-License-Identifier: MIT
 *
 * restore.c - the data of the server is replaced by an older copy of itself:
 * what was granted since is gone, and transaction ids begin again at an earlier
 * one.
 */
#include "zkt.h"

#include <signal.h>

static void sh(const char *command)
{
    CHECK_EQ(system(command), 0);
}

static void stop(void)
{
    zkt_signal_server(1, SIGKILL);
    t_poll_until(!zkt_mode_of(1), 20000);
}

static void start(void)
{
    zkt_start_server(1);
    t_poll_until(zkt_mode_of(1) != 0, 60000);
}

static void backup(void)
{
    stop();
    sh("cp -r $HF_ZK_DIR/1/data $HF_ZK_DIR/1/old");
    start();
}

static void restore(void)
{
    stop();
    sh("rm -r $HF_ZK_DIR/1/data && mv $HF_ZK_DIR/1/old $HF_ZK_DIR/1/data");
    start();
}

/* Taken and released; its fence. */
static uint64_t once(hf_client *client, const char *key)
{
    hf_lock *lk;
    uint64_t fence;

    CHECK_OK(hf_acquire(client, key, 30000, NULL, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    return fence;
}

/* Numbers of nodes begin again, too: one that would follow on our last, had
 * nothing happened, may stand behind another's. */
TEST_TIMEOUT(what_was_known_of_a_key_is_forgotten_with_the_connection, 120)
{
    enum { MANY = 40 };
    struct hf_lock_opts opts = zkt_opts(8000);
    const char *url = zkt_url("?layout=kazoo&ttl=8s"), *key = zkt_key("k");
    hf_client *a = zkt_open(url), *b;
    hf_lock *lk, *none = NULL;
    long long zxid;
    hf_status st;

    once(a, key);
    backup();
    for (int i = 0; i < MANY; i++)
        once(a, key);
    zxid = zkt_zxid_of(1);
    restore();
    b = zkt_open(url);
    for (int i = 1; i < MANY; i++)
        once(b, key);
    CHECK_OK(hf_acquire(b, key, 30000, &opts, &lk, &t_err));
    /* The server takes up A's session when it knows of as much as A. */
    while (zkt_zxid_of(1) < zxid)
        once(b, zkt_key("other"));
    do
        st = hf_acquire(a, key, 0, &opts, &none, &t_err);
    while (st == HF_UNAVAILABLE || st == HF_UNCERTAIN);
    CHECK_EQ(st, HF_BUSY);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

/* A session that has seen more than the server knows of is refused for good. */
TEST_TIMEOUT(transaction_ids_that_go_back_are_warned_of, 120)
{
    static const char *const recipes[] = {
        "?ttl=1s&timeout=1s", "?ttl=1s&timeout=1s&recipe=ephemeral"};
    struct hf_service about = {.size = sizeof(about)};
    hf_client *client[2];
    uint64_t fence[2];
    hf_lock *lk;

    for (int i = 0; i < 2; i++) {
        client[i] = zkt_open(zkt_url(recipes[i]));
        once(client[i], zkt_key(i ? "plain" : "k"));
    }
    backup();
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < 40; n++)
            fence[i] = once(client[i], zkt_key(i ? "plain" : "k"));
    restore();
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hf_acquire(client[i], zkt_key(i ? "plain" : "k"), 60000, NULL,
                            &lk, &t_err));
        CHECK_LT(hf_fence(lk), fence[i]);
        CHECK_OK(hf_describe(client[i], &about, &t_err));
        CHECK(strstr(about.warning, "gone back") != NULL);
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(client[i]);
    }
}

TEST_TIMEOUT(a_waiter_whose_session_is_refused_queues_up_anew, 120)
{
    const char *url = zkt_url("?ttl=1s&timeout=1s"), *key = zkt_key("w");
    hf_client *a = zkt_open(url), *b = zkt_open(url);
    struct zkt_waiter w;
    hf_lock *lk;

    once(a, key);
    backup();
    for (int n = 0; n < 40; n++)
        once(a, key);
    CHECK_OK(hf_acquire(a, key, 30000, NULL, &lk, &t_err));
    zkt_wait_start(&w, b, key, 60000, 1000);
    /* It has seen a transaction that the server will not know of. */
    t_poll_until(strstr(zkt_says(1, "wchs"), "watching 0 paths") == NULL,
                 20000);
    restore();
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK(!hf_held(lk));
    CHECK_OK(hf_release(w.lk, &t_err));
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
}

T_MAIN
