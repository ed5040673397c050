/* SPDX-License-Identifier: MIT
 *
 * contend.c - eight processes and five nodes, a minority of which is frozen,
 * restarted with its data, cut off or silenced again and again: one holder at a
 * time, and fences that rise.
 *
 * What happens follows from a seed, which is printed; SEED=n repeats it as far
 * as the machine lets it.  HF_SOAK=n makes it n seconds long.
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

/* Something happens to a node, and is over when this returns. */
static void suffer(struct rt_server *node, uint64_t chance, int64_t ms)
{
    switch (chance % 4) {
    case 0:
        rt_crash(node);
        t_sleep_ms(ms);
        rt_again(node);
        break;
    case 1:
        rt_do(node, "CLIENT KILL TYPE normal SKIPME yes");
        break;
    case 2:
        rt_do(node, "CLIENT KILL TYPE pubsub");
        break;
    default:
        rt_do(node, "SCRIPT FLUSH");
    }
}

/* One node is frozen while something else happens to another. */
static void suffer_two(struct rl *rl, uint64_t *random)
{
    unsigned a = (unsigned)(rl_random(random) % RL_N);
    unsigned b = (a + 1 + (unsigned)(rl_random(random) % (RL_N - 1))) % RL_N;
    int64_t ms = (int64_t)(rl_random(random) % 600);

    rl_signal(rl, 1U << a, SIGSTOP);
    suffer(&rl->nodes[b], rl_random(random), ms / 2);
    t_sleep_ms(ms);
    rl_signal(rl, 1U << a, SIGCONT);
    t_sleep_ms((int64_t)(rl_random(random) % 200));
}

TEST_TIMEOUT(one_holder_at_a_time_whatever_a_minority_does, 1000)
{
    const char *soak = getenv("HF_SOAK"), *seed = getenv("SEED");
    struct contest *all = t_shared(sizeof(*all));
    uint64_t random = seed ? strtoull(seed, NULL, 10) : (uint64_t)t_now_ms();
    struct t_peer peers[PROCESSES];
    struct rl rl;
    int64_t end;
    int turns;

    printf("SEED=%llu\n", (unsigned long long)random);
    fflush(stdout);
    rl_start(&rl, "?quarantine=off", true);
    memcpy(all->url, rl.url, sizeof(rl.url));
    for (int i = 0; i < PROCESSES; i++)
        peers[i] = t_fork(contend, all);
    end = t_now_ms() + (soak ? atoi(soak) * 1000 : t_scaled(15000, 5000));
    while (t_now_ms() < end)
        suffer_two(&rl, &random);
    turns = atomic_load(&all->turns);
    printf("%d turns\n", turns);
    fflush(stdout);
    t_poll_until(atomic_load(&all->turns) > turns + 20, 60000);
    atomic_store(&all->over, true);
    for (int i = 0; i < PROCESSES; i++)
        t_join(&peers[i]);
    CHECK_GT(turns, 0);
    rl_check_clean(&rl);
    rl_end(&rl);
}

T_MAIN
