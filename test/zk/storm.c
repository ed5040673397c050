/* SPDX-License-Identifier: MIT
 *
 * storm.c - clients and sessions that come and go by the hundred, in many
 * threads and over a connection that breaks.  Whoever crashes, leaks or races in
 * the library or here does so under the sanitizers, with which this is run.
 */
#include "zkt.h"

#include <unistd.h>

enum { THREADS = 4 };

struct weather {
    struct zkt_proxy proxy;
    char direct[512], rough[256];
    const char *keys[3];
    int rounds;
    atomic_int next, busy, granted;
};

static void one_client(struct weather *w, unsigned n)
{
    struct hf_client_opts brief = HF_CLIENT_OPTS_INIT;
    struct hf_lock_opts opts = zkt_opts(n % 3 ? 2000 : 4000);
    hf_client *client;
    hf_lock *lk;
    hf_status st;

    brief.timeout_ms = 5000;
    st = hf_open(n % 2 ? w->rough : w->direct, &brief, &client, &t_err);
    CHECK(st == HF_OK || st == HF_UNAVAILABLE);
    if (st)
        return;
    st = hf_acquire(client, w->keys[n % 3], n % 5 ? 3000 : 0, &opts, &lk,
                    &t_err);
    if (st == HF_OK) {
        atomic_fetch_add(&w->granted, 1);
        if (n % 4)
            hf_release(lk, NULL);
        hf_close(client);
        if (n % 4 == 0)
            hf_release(lk, NULL); /* It went with its client. */
        return;
    }
    if (st != HF_BUSY && st != HF_TIMEOUT && st != HF_UNCERTAIN)
        t_check_status(__FILE__, __LINE__, "hf_acquire", st, HF_UNAVAILABLE);
    hf_close(client);
}

static void *come_and_go(void *arg)
{
    struct weather *w = arg;
    int n;

    while ((n = atomic_fetch_add(&w->next, 1)) < w->rounds)
        one_client(w, (unsigned)n);
    atomic_fetch_sub(&w->busy, 1);
    return NULL;
}

TEST_TIMEOUT(a_storm_of_clients_leaves_nothing, 120)
{
    static struct weather w;
    pthread_t threads[THREADS];

    zkt_begin();
    zkt_proxy_start(&w.proxy);
    snprintf(w.direct, sizeof(w.direct), "%s", zkt_url("?ttl=2s"));
    snprintf(w.rough, sizeof(w.rough), "%s",
             zkt_proxy_url(&w.proxy, "?ttl=2s"));
    for (int i = 0; i < 3; i++)
        w.keys[i] = zkt_key(i ? i == 1 ? "b" : "c" : "a");
    w.rounds = t_scaled(150, 30);
    w.busy = THREADS;
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, come_and_go, &w), 0);
    for (int i = 0; atomic_load(&w.busy); i++) {
        atomic_store(&w.proxy.left, i % 5);
        atomic_store(&w.proxy.cut, i % 2 ? ZKT_AFTER : ZKT_BEFORE);
        t_sleep_ms(20);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK_GT(atomic_load(&w.granted), w.rounds / 4);
    for (int i = 0; i < 3; i++)
        t_poll_until(zkt_children(zkt_path(w.keys[i])) == 0, 20000);
    zkt_proxy_stop(&w.proxy);
    zkt_end();
}

/* Leases of all lengths in one client: sessions are opened and closed. */
static void *change_lengths(void *arg)
{
    hf_client *client = arg;
    char key[64];

    for (int i = 0; i < t_scaled(20, 8); i++) {
        struct hf_lock_opts opts = zkt_opts(1500 + 1500 * (i % 4));
        hf_lock *lk;

        snprintf(key, sizeof(key), "storm-%d-%d", (int)getpgrp(), i % 3);
        CHECK_OK(hf_acquire(client, key, 30000, &opts, &lk, &t_err));
        if (i % 2)
            CHECK_OK(hf_extend(lk, 1500 + 1500 * ((i + 1) % 4), &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    return NULL;
}

TEST_TIMEOUT(sessions_of_all_lengths_come_and_go, 120)
{
    pthread_t threads[THREADS];
    hf_client *client = zkt_open(zkt_url(""));

    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, change_lengths, client), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    hf_close(client);
}

TEST_TIMEOUT(a_client_that_is_closed_takes_its_waiters_along, 120)
{
    struct hf_lock_opts opts = zkt_opts(2000);
    const char *key = zkt_key("k");
    hf_client *client, *other;
    hf_request *request;
    hf_lock *lk;

    zkt_begin();
    other = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(other, key, 0, &opts, &lk, &t_err));
    for (int turn = 0; turn < t_scaled(10, 3); turn++) {
        client = zkt_open(zkt_url(""));
        for (int i = 0; i < 8; i++) {
            opts.ttl_ms = 2000 + i % 2 * 2000;
            CHECK_OK(hf_acquire_start(client, key, -1, &opts, NULL, &request,
                                      &t_err));
        }
        if (turn % 2)
            t_poll_until(zkt_children(zkt_path(key)) > 1, 10000);
        hf_close(client);
        t_poll_until(zkt_children(zkt_path(key)) == 1, 10000);
    }
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(other);
    zkt_end();
}

T_MAIN
