/* SPDX-License-Identifier: MIT
 *
 * contend.c - eight processes and five nodes, a minority of which is frozen or
 * restarted with its data again and again: one holder at a time, and fences that
 * rise.
 */
#include "rl.h"

#define PROCESSES 8

struct contest {
    char url[512];
    atomic_int inside;
    _Atomic uint64_t fence;
    atomic_int turns;
    atomic_bool over;
};

static void contend(struct t_peer *up, void *arg)
{
    struct contest *all = arg;
    struct hf_lock_opts opts = rt_opts(10000, 0);
    hf_client *client;
    hf_lock *lk;

    (void)up;
    CHECK_OK(hf_open(all->url, NULL, &client, &t_err));
    opts.retry_ms = 10;
    while (!atomic_load(&all->over)) {
        if (hf_acquire(client, "k", 5000, &opts, &lk, NULL))
            continue;
        CHECK_EQ(atomic_fetch_add(&all->inside, 1), 0);
        CHECK_GT(hf_fence(lk), atomic_load(&all->fence));
        atomic_store(&all->fence, hf_fence(lk));
        t_sleep_ms(1);
        CHECK(hf_held(lk));
        atomic_fetch_add(&all->turns, 1);
        CHECK_EQ(atomic_fetch_sub(&all->inside, 1), 1);
        hf_release(lk, NULL);
    }
    hf_close(client);
}

TEST_TIMEOUT(one_holder_at_a_time_whatever_a_minority_does, 180)
{
    struct contest *all = t_shared(sizeof(*all));
    struct t_peer peers[PROCESSES];
    struct rl rl;
    int64_t end;
    int turns;

    rl_start(&rl, "?quarantine=off", true);
    memcpy(all->url, rl.url, sizeof(rl.url));
    for (int i = 0; i < PROCESSES; i++)
        peers[i] = t_fork(contend, all);
    end = t_now_ms() + t_scaled(60000, 5000);
    for (unsigned i = 0; t_now_ms() < end; i++) {
        unsigned a = i * 7 % RL_N, b = (a + 1 + i % 4) % RL_N;

        rl_signal(&rl, 1U << a | 1U << b, SIGSTOP);
        t_sleep_ms(50 + 400 * (i % 4));
        rl_signal(&rl, 1U << a | 1U << b, SIGCONT);
        rt_crash(&rl.nodes[a]);
        t_sleep_ms(100);
        rt_again(&rl.nodes[a]);
        t_sleep_ms(200);
    }
    turns = atomic_load(&all->turns);
    t_poll_until(atomic_load(&all->turns) > turns, 20000);
    atomic_store(&all->over, true);
    for (int i = 0; i < PROCESSES; i++)
        t_join(&peers[i]);
    CHECK_GT(turns, 20);
    rl_check_clean(&rl);
    rl_end(&rl);
}

T_MAIN
