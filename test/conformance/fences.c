/* SPDX-License-Identifier: MIT
 *
 * fences.c - every grant's number is greater than that of every earlier one,
 * across clients, processes, crashes and re-opening, and small enough (below
 * 2^53) to be computed with in scripts.
 */
#include "conf.h"

#include <signal.h>
#include <stdio.h>

TEST(fences_rise_across_clients)
{
    const char *key = conf_key("k");
    hf_client *clients[5];
    uint64_t last = 0;

    conf_needs(HF_TRAIT_FENCED);
    for (int i = 0; i < 5; i++)
        clients[i] = conf_open();
    for (int i = 0; i < conf_times(100, 100); i++) {
        hf_lock *lk = conf_try(clients[i * 3 % 5], key, NULL);

        CHECK_GT(hf_fence(lk), last);
        CHECK_LT(hf_fence(lk), 1ll << 53);
        last = hf_fence(lk);
        conf_unlock(lk);
    }
    for (int i = 0; i < 5; i++)
        hf_close(clients[i]);
}

TEST(fences_rise_when_everything_is_opened_anew)
{
    const char *key = conf_key("k");
    uint64_t last = 0;

    conf_needs(HF_TRAIT_FENCED);
    for (int i = 0; i < conf_times(20, 20); i++) {
        hf_client *client = conf_open();
        hf_lock *lk = conf_try(client, key, NULL);

        CHECK_GT(hf_fence(lk), last);
        last = hf_fence(lk);
        if (i % 2)
            conf_unlock(lk);
        hf_close(client);
        if (i % 2 == 0)
            CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    }
}

TEST(fences_rise_after_a_lapse)
{
    struct hf_lock_opts brief = conf_opts(60, HF_MANUAL);
    const char *key = conf_key("k");
    hf_client *a, *b;
    uint64_t last = 0;

    conf_needs(HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < 8; i++) {
        hf_lock *lk = conf_lock(i % 2 ? a : b, key, &brief);

        CHECK_GT(hf_fence(lk), last);
        last = hf_fence(lk);
        t_poll_until(!hf_held(lk), 20000);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    }
    hf_close(a);
    hf_close(b);
}

TEST(fair_grants_have_fences_of_their_own_inside_one_client)
{
    struct hf_lock_opts fair = conf_opts(0, HF_FAIR);
    const char *key = conf_key("k");
    hf_client *client;
    uint64_t last;
    hf_lock *lk;

    conf_needs(HF_TRAIT_FENCED);
    client = conf_open();
    fair.linger_ms = 1000;
    lk = conf_try(client, key, &fair);
    last = hf_fence(lk);
    for (int i = 0; i < 10; i++) {
        struct conf_waiter w;

        conf_waiter_start(&w, client, key, -1, &fair);
        t_sleep_ms(i % 3 * 10);
        conf_unlock(lk);
        conf_waiter_join(&w, HF_OK);
        lk = w.lk;
        CHECK_GT(hf_fence(lk), last);
        last = hf_fence(lk);
    }
    conf_unlock(lk);
    hf_close(client);
}

static void lock_and_stay(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = conf_opts(500, 0);
    hf_client *client = conf_open();
    hf_lock *lk = conf_lock(client, arg, &opts);

    t_tell(up, (int64_t)hf_fence(lk));
    t_hear(up);
    conf_unlock(lk);
    hf_close(client);
}

TEST(fences_rise_after_their_holder_was_killed)
{
    uint64_t last = 0;
    char key[128];

    conf_needs(HF_TRAIT_FENCED | HF_TRAIT_PROCESSES);
    snprintf(key, sizeof(key), "%s", conf_key("k"));
    for (int i = 0; i < 6; i++) {
        struct t_peer peer = t_fork(lock_and_stay, key);
        uint64_t fence = (uint64_t)t_hear(&peer);

        CHECK_GT(fence, last);
        last = fence;
        if (i % 3 < 2) {
            t_kill(&peer);
            continue;
        }
        t_tell(&peer, 0);
        t_join(&peer);
    }
}

static void storm(struct t_peer *up, void *arg)
{
    hf_client *client = conf_open();

    for (;;) {
        hf_lock *lk = conf_lock(client, arg, NULL);

        t_tell(up, (int64_t)hf_fence(lk));
        conf_unlock(lk);
    }
}

TEST(fences_rise_over_kills_at_any_moment)
{
    uint64_t last = 0;
    char key[128];

    conf_needs(HF_TRAIT_FENCED | HF_TRAIT_PROCESSES | HF_TRAIT_DEATH);
    snprintf(key, sizeof(key), "%s", conf_key("k"));
    for (int i = 0; i < conf_times(60, 10); i++) {
        struct t_peer peer = t_fork(storm, key);
        int64_t fence = t_hear(&peer);
        int64_t end = t_now_ms() + i % 7;

        do {
            CHECK_GT(fence, last);
            last = (uint64_t)fence;
        } while (t_now_ms() < end && t_try_hear(&peer, 10, &fence));
        kill(peer.pid, SIGKILL);
        while (t_try_hear(&peer, 1000, &fence)) {
            CHECK_GT(fence, last);
            last = (uint64_t)fence;
        }
        t_kill(&peer);
    }
    conf_check_free(key);
}

TEST(the_newest_fence_is_seen_by_all_also_when_the_lock_is_free)
{
    const char *key = conf_key("k");
    hf_client *a, *b;
    uint64_t fence;
    hf_lock *lk;

    conf_needs(HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, NULL);
    fence = hf_fence(lk);
    CHECK_EQ(conf_look(b, key).fence, fence);
    CHECK_OK(hf_check(b, key, fence, &t_err));
    conf_unlock(lk);
    CHECK(!conf_look(b, key).held);
    if (conf_look(b, key).fence)
        CHECK_EQ(conf_look(b, key).fence, fence);
    CHECK_STATUS(hf_check(b, key, fence, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
}
