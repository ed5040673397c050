/* SPDX-License-Identifier: MIT
 *
 * wake.c - waiters are woken by what the nodes tell, whichever of them can be
 * heard; and where none can, they ask.
 *
 * Leases are so long that the rare look of a waiter that counts on being woken
 * cannot explain a hand-over within seconds.
 */
#include "rl.h"

#define TTL 600000

/* Soon: with time to spare on a busy machine. */
#define SOON 15000

struct scene {
    struct rl rl;
    hf_client *holder, *other;
    struct rt_waiter w;
};

/* Do as many nodes as that know of somebody who listens? */
static int subscribers(struct rl *rl)
{
    int n = 0;

    for (int i = 0; i < RL_N; i++) {
        redisReply *reply = rt_ask(&rl->nodes[i], "PUBSUB CHANNELS wake:*");

        n += reply->elements > 0;
        freeReplyObject(reply);
    }
    return n;
}

static void scene_start(struct scene *s, const char *options)
{
    rl_start(&s->rl, options, false);
    s->holder = rl_open(&s->rl);
    s->other = rl_open(&s->rl);
    s->w = rt_waiter(s->other, "k", 60000, TTL, 0);
}

/* How often somebody tried to take something, on the first node: in plain
 * commands or by the script, each asks for the time once. */
static long long looks(struct rl *rl)
{
    return rt_calls(&rl->nodes[0], "time");
}

/* The holder has it, and a waiter waits that is told by so many. */
static hf_lock *scene_wait(struct scene *s, int told_by)
{
    hf_lock *lk = NULL;
    long long calls;

    CHECK_OK(rl_try(s->holder, "k", TTL, &lk));
    s->w.got_at = 0;
    rt_wait_start(&s->w);
    t_poll_until(subscribers(&s->rl) == told_by, SOON);
    do { /* until it has tried once more for each node that it hears */
        calls = looks(&s->rl);
        t_sleep_ms(100);
    } while (looks(&s->rl) != calls);
    return lk;
}

/* It got the lock, and soon. */
static void scene_join(struct scene *s)
{
    int64_t began = t_now_ms();

    rt_wait_join(&s->w);
    CHECK_LT(s->w.got_at - began, SOON);
}

static void scene_end(struct scene *s)
{
    hf_close(s->holder);
    hf_close(s->other);
    rl_check_clean(&s->rl);
    rl_end(&s->rl);
}

TEST(a_release_wakes_a_waiter_once)
{
    struct scene s = {0};
    long long calls;

    scene_start(&s, "?quarantine=off");
    for (int i = 0; i < 5; i++) {
        hf_lock *lk = scene_wait(&s, RL_N);

        calls = looks(&s.rl);
        CHECK_OK(hf_release(lk, &t_err));
        scene_join(&s);
        /* The release looks for the first in line, a try and its fence ask for
         * the time, and a try that came before the other nodes had released asks
         * for its place again: two such are fewer than one for each node. */
        CHECK_LE(looks(&s.rl) - calls, 3 + 2 * 3);
    }
    scene_end(&s);
}

/* Where somebody stands in line only the first node tells: the try that follows
 * may find the others as they were. */
TEST(what_other_nodes_release_later_without_a_word_is_not_missed)
{
    struct scene s = {0};
    redisReply *token;
    long long calls;
    hf_lock *lk;

    scene_start(&s, "?quarantine=off");
    lk = scene_wait(&s, RL_N);
    token = rt_ask(&s.rl.nodes[0], "GET holdfast:k");
    calls = looks(&s.rl);
    rt_do(&s.rl.nodes[0], "DEL holdfast:k");
    freeReplyObject(
        rt_ask(&s.rl.nodes[0], "PUBLISH wake:holdfast:k -%s", token->str));
    freeReplyObject(token);
    t_poll_until(looks(&s.rl) > calls, SOON);
    t_sleep_ms(100);
    for (int i = 1; i < RL_N; i++)
        rt_do(&s.rl.nodes[i], "DEL holdfast:k");
    scene_join(&s);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    scene_end(&s);
}

TEST(who_waits_does_not_ask_again_and_again)
{
    struct scene s = {0};
    long long calls;
    hf_lock *lk;

    scene_start(&s, "?quarantine=off");
    lk = scene_wait(&s, RL_N);
    calls = looks(&s.rl);
    t_sleep_ms(1500);
    CHECK_EQ(looks(&s.rl), calls);
    CHECK_OK(hf_release(lk, &t_err));
    scene_join(&s);
    scene_end(&s);
}

/* Twice in a lease it does, in case that nothing is told. */
TEST(a_look_of_a_waiter_is_one_command)
{
    struct scene s = {0};
    struct rt_server *node = &s.rl.nodes[0];
    long long calls, sets;
    hf_lock *lk;

    scene_start(&s, "?quarantine=off");
    s.w = rt_waiter(s.other, "k", 60000, 2000, 0);
    lk = scene_wait(&s, RL_N);
    calls = looks(&s.rl);
    sets = rt_calls(node, "set");
    t_poll_until(looks(&s.rl) >= calls + 2, SOON);
    CHECK_EQ(rt_calls(node, "set"), sets); /* so it was the script */
    CHECK_OK(hf_release(lk, &t_err));
    scene_join(&s);
    scene_end(&s);
}

/* The nodes of the set end the connections on which they tell. */
static void cut_subscribers(struct rl *rl, unsigned set)
{
    for (int i = 0; i < RL_N; i++)
        if (set & 1U << i)
            rt_do(&rl->nodes[i], "CLIENT KILL TYPE pubsub");
}

TEST_TIMEOUT(whichever_subscribers_are_lost_as_the_lock_is_released, 120)
{
    static const unsigned sets[] = {1, 5, 24, 7, 30, 31};
    struct scene s = {0};

    scene_start(&s, "?quarantine=off");
    for (unsigned i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
        hf_lock *lk = scene_wait(&s, RL_N); /* They grow again, too. */

        cut_subscribers(&s.rl, sets[i]);
        CHECK_OK(hf_release(lk, &t_err));
        scene_join(&s);
        /* And the other way round. */
        lk = scene_wait(&s, RL_N);
        CHECK_OK(hf_release(lk, &t_err));
        cut_subscribers(&s.rl, sets[i]);
        scene_join(&s);
    }
    scene_end(&s);
}

TEST(a_frozen_minority_is_not_needed_for_it)
{
    struct scene s = {0};
    hf_lock *lk;

    scene_start(&s, "?quarantine=off");
    lk = scene_wait(&s, RL_N);
    rl_signal(&s.rl, 18, SIGSTOP);
    CHECK_OK(hf_release(lk, &t_err));
    scene_join(&s);
    rl_signal(&s.rl, 18, SIGCONT);
    scene_end(&s);
}

TEST(dead_nodes_are_not_waited_for_and_tell_again_when_they_are_back)
{
    struct scene s = {0};
    hf_lock *lk;

    scene_start(&s, "?quarantine=off");
    lk = scene_wait(&s, RL_N);
    rt_crash(&s.rl.nodes[0]);
    rt_crash(&s.rl.nodes[1]);
    CHECK_OK(hf_release(lk, &t_err));
    scene_join(&s);
    rt_again(&s.rl.nodes[0]);
    rt_again(&s.rl.nodes[1]);
    lk = scene_wait(&s, RL_N);
    CHECK_OK(hf_release(lk, &t_err));
    scene_join(&s);
    scene_end(&s);
}

TEST(where_listening_is_forbidden_a_waiter_asks)
{
    struct scene s = {0};
    hf_lock *lk;

    rl_start(&s.rl, "?quarantine=off", false);
    for (int i = 0; i < RL_N; i++)
        rt_do(&s.rl.nodes[i], "ACL SETUSER default -subscribe");
    s.holder = rl_open(&s.rl);
    s.other = rl_open(&s.rl);
    s.w = rt_waiter(s.other, "k", 60000, TTL, 0);
    for (int i = 0; i < 2; i++) {
        lk = scene_wait(&s, 0);
        CHECK_OK(hf_release(lk, &t_err));
        scene_join(&s);
    }
    scene_end(&s);
}

TEST(where_telling_is_forbidden_a_release_is_one_all_the_same)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;

    rl_start(&rl, "?quarantine=off", false);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "ACL SETUSER default -publish");
    client = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

/* Other libraries, and holdfast without a fence, are not known to tell. */
TEST(what_others_hold_is_looked_at_again_soon)
{
    struct scene s = {0};

    scene_start(&s, "?quarantine=off");
    for (int i = 0; i < RL_N; i++)
        rt_do(&s.rl.nodes[i], "SET holdfast:k foreign PX 600000");
    rt_wait_start(&s.w);
    t_poll_until(subscribers(&s.rl) == RL_N, SOON);
    t_sleep_ms(300);
    for (int i = 0; i < RL_N; i++)
        rt_do(&s.rl.nodes[i], "DEL holdfast:k");
    scene_join(&s);
    scene_end(&s);
}

TEST(without_a_fence_waiters_are_woken_too)
{
    struct scene s = {0};
    hf_lock *lk;

    scene_start(&s, "?quarantine=off&fence=off");
    lk = scene_wait(&s, RL_N);
    CHECK_OK(hf_release(lk, &t_err));
    scene_join(&s);
    scene_end(&s);
}

/* Each takes a part of the nodes again and again; somebody must win. */
TEST_TIMEOUT(many_who_are_woken_together_all_get_it, 120)
{
    enum { N = 8 };
    struct rl rl;
    hf_client *clients[N];
    struct rt_waiter w[N];
    hf_lock *lk = NULL;

    rl_start(&rl, "?quarantine=off", false);
    for (int i = 0; i < N; i++)
        clients[i] = rl_open(&rl);
    CHECK_OK(rl_try(clients[0], "k", TTL, &lk));
    for (int i = 0; i < N; i++) {
        w[i] = rt_waiter(clients[i], "k", 60000, TTL, 0);
        rt_wait_start(&w[i]);
    }
    t_sleep_ms(300);
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < N; i++)
        rt_wait_join(&w[i]);
    for (int i = 0; i < N; i++)
        hf_close(clients[i]);
    rl_check_clean(&rl);
    rl_end(&rl);
}

T_MAIN
