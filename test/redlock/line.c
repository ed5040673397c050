/* SPDX-License-Identifier: MIT
 *
 * line.c - those who wait stand in line at the first node, and what that is
 * worth when the first of them is not there.
 *
 * Leases are so long that no end of one explains a hand-over.
 */
#include "rl.h"

#define TTL     600000
#define WAITERS 6
#define SOON    15000

static long long in_line(struct rl *rl)
{
    return rl_in_line(rl, 0);
}

TEST(those_who_wait_are_granted_in_the_order_of_their_arrival)
{
    struct rt_waiter w[WAITERS];
    hf_client *client[WAITERS], *holder;
    struct rl rl;
    hf_lock *lk = NULL;
    int i;

    rl_start(&rl, "?quarantine=off", false);
    holder = rl_open(&rl);
    CHECK_OK(rl_try(holder, "k", TTL, &lk));
    for (i = 0; i < WAITERS; i++) {
        client[i] = rl_open(&rl);
        w[i] = rt_waiter(client[i], "k", 60000, TTL, 0);
        rt_wait_start(&w[i]);
        t_poll_until(in_line(&rl) == i + 1, SOON);
    }
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < WAITERS; i++)
        rt_wait_join(&w[i]);
    for (i = 1; i < WAITERS; i++)
        CHECK_GT(w[i].fence, w[i - 1].fence);
    CHECK_EQ(in_line(&rl), 0);
    for (i = 0; i < WAITERS; i++)
        hf_close(client[i]);
    hf_close(holder);
    rl_check_clean(&rl);
    rl_end(&rl);
}

/* One that died has its place, and the others do not wait for it for long.  What
 * it was given is one vote, which lapses. */
TEST(the_dead_in_line_cost_a_moment_each)
{
    static const char dead[] = "00000000000000000000000000000000";
    hf_client *holder, *other;
    struct rt_waiter w;
    long long looks;
    struct rl rl;
    hf_lock *lk = NULL;
    int i;

    rl_start(&rl, "?quarantine=off", false);
    holder = rl_open(&rl);
    other = rl_open(&rl);
    for (i = 0; i < 2; i++) {
        CHECK_OK(rl_try(holder, "k", TTL, &lk));
        w = rt_waiter(other, "k", 60000, TTL, 0);
        rt_wait_start(&w);
        t_poll_until(in_line(&rl) == 1, SOON);
        /* It has asked all nodes, and counts on being told from then on. */
        looks = rt_calls(&rl.nodes[1], "time");
        t_poll_until(rt_calls(&rl.nodes[1], "time") > looks, SOON);
        rt_do(&rl.nodes[0], "ZADD {holdfast:k}:queue: 1 %s", dead);
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
        CHECK_EQ(in_line(&rl), 0);
        CHECK_EQ(rl_count(&rl, "k", dead), 0);
    }
    hf_close(holder);
    hf_close(other);
    rl_check_clean(&rl);
    rl_end(&rl);
}

TEST(who_gives_up_leaves_no_place)
{
    struct hf_lock_opts opts = rt_opts(TTL, 0);
    hf_client *holder, *other;
    hf_lock *lk = NULL, *none = NULL;
    struct rl rl;

    rl_start(&rl, "?quarantine=off", false);
    holder = rl_open(&rl);
    other = rl_open(&rl);
    CHECK_OK(rl_try(holder, "k", TTL, &lk));
    CHECK_STATUS(hf_acquire(other, "k", 700, &opts, &none, &t_err), HF_TIMEOUT);
    t_poll_until(in_line(&rl) == 0, SOON);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(other, "k", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(holder);
    hf_close(other);
    rl_check_clean(&rl);
    rl_end(&rl);
}

/* The line is at the next node then. */
TEST(without_the_first_node_there_is_a_line_all_the_same)
{
    hf_client *holder, *client[2];
    struct rt_waiter w[2];
    struct rl rl;
    hf_lock *lk = NULL;
    int i;

    rl_start(&rl, "?quarantine=off", false);
    rt_crash(&rl.nodes[0]);
    holder = rl_open(&rl);
    CHECK_OK(rl_try(holder, "k", TTL, &lk));
    for (i = 0; i < 2; i++) {
        client[i] = rl_open(&rl);
        w[i] = rt_waiter(client[i], "k", 60000, TTL, 0);
        rt_wait_start(&w[i]);
        t_poll_until(rl_in_line(&rl, 1) == i + 1, SOON);
    }
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < 2; i++)
        rt_wait_join(&w[i]);
    CHECK_GT(w[1].fence, w[0].fence);
    for (i = 0; i < 2; i++)
        hf_close(client[i]);
    hf_close(holder);
    rt_again(&rl.nodes[0]);
    rl_check_clean(&rl);
    rl_end(&rl);
}

static const char *first_in_line(struct rl *rl)
{
    redisReply *reply = rt_ask(&rl->nodes[0], "ZRANGE {holdfast:k}:queue: 0 0");
    static char token[40];

    snprintf(token, sizeof(token), "%s",
             reply->elements ? reply->element[0]->str : "");
    freeReplyObject(reply);
    return token;
}

/* Wait for `k`, once somebody else has it, until killed. */
static void wait_for_ever(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = rt_opts(1000, 0);
    hf_client *client = NULL;
    hf_lock *lk = NULL;

    t_hear(up);
    CHECK_OK(hf_open(arg, NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, "k", 600000, &opts, &lk, &t_err));
}

/* Others go on asking, and the line itself lasts as long as they do. */
TEST(who_died_in_line_leaves_with_its_own_lease)
{
    struct rt_waiter w[2];
    hf_client *holder, *client[2];
    struct t_peer dead;
    char token[40];
    struct rl rl;
    hf_lock *lk = NULL;
    int i;

    rl_start(&rl, "?quarantine=off", false);
    dead = t_fork(wait_for_ever, rl.url);
    holder = rl_open(&rl);
    CHECK_OK(rl_try(holder, "k", TTL, &lk));
    t_tell(&dead, 1);
    t_poll_until(in_line(&rl) == 1, SOON);
    snprintf(token, sizeof(token), "%s", first_in_line(&rl));
    t_kill(&dead);
    for (i = 0; i < 2; i++) {
        client[i] = rl_open(&rl);
        w[i] = rt_waiter(client[i], "k", 120000, 2000, 0);
        rt_wait_start(&w[i]);
    }
    t_poll_until(strcmp(first_in_line(&rl), token) != 0 && in_line(&rl) == 2,
                 SOON);
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < 2; i++) {
        rt_wait_join(&w[i]);
        hf_close(client[i]);
    }
    hf_close(holder);
    rl_end(&rl);
}

/* Have `client` know that others stand in line at the first node: it releases
 * the key to one of them. */
static void hand_over(struct rl *rl, hf_client *client, hf_client *other)
{
    struct rt_waiter w = rt_waiter(other, "k", 60000, TTL, 0);
    hf_lock *lk = NULL;

    CHECK_OK(rl_try(client, "k", TTL, &lk));
    rt_wait_start(&w);
    t_poll_until(in_line(rl) == 1, SOON);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
}

static void *wait_and_downgrade(void *client)
{
    struct hf_lock_opts opts = rt_opts(TTL, 0);
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "k", 60000, &opts, &lk, &t_err));
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    return NULL;
}

static void *wait_and_release(void *client)
{
    struct hf_lock_opts opts = rt_opts(TTL, 0);
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "k", 60000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    return NULL;
}

/* Granted by a majority, and not since the node with the line has named it, for
 * the holder is not there any more: `spoil` sees to that. */
static void granted_out_of_turn(const char *spoil, void *(*wait)(void *))
{
    hf_client *client, *other;
    pthread_t thread;
    struct rl rl;
    hf_lock *lk = NULL;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    other = rl_open(&rl);
    hand_over(&rl, client, other);
    CHECK_OK(rl_try(other, "k", TTL, &lk));
    CHECK_EQ(pthread_create(&thread, NULL, wait, client), 0);
    t_poll_until(in_line(&rl) == 1, SOON);
    rt_do(&rl.nodes[0], spoil);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    rt_do(&rl.nodes[0], "DEL holdfast:k");
    CHECK_EQ(in_line(&rl), 0);
    hf_close(client);
    hf_close(other);
    rl_check_clean(&rl);
    rl_end(&rl);
}

TEST(who_is_granted_without_the_first_node_leaves_its_place_there)
{
    granted_out_of_turn("SET holdfast:k x", wait_and_release);
}

TEST(who_shares_what_it_stood_in_line_for_leaves_its_place)
{
    granted_out_of_turn("DEL holdfast:k", wait_and_downgrade);
}

T_MAIN
