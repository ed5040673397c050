/* SPDX-License-Identifier: MIT
 *
 * contend.c - eight processes and five nodes, a minority of which is frozen,
 * restarted with its data, cut off or silenced again and again: one holder at a
 * time, or readers and no writer; and fences that rise.
 *
 * What happens follows from a seed, which is printed; SEED=n repeats it as far
 * as the machine lets it.  HF_SOAK=n makes it n seconds long.
 */
#include "rl.h"

#include <unistd.h>

#define PROCESSES 8
#define TTL       10000

/* What a writer counts for, among readers that count for one each. */
#define WRITER 1000

struct contest {
    char url[512];
    bool readers; /* some share, and some downgrade */
    atomic_int inside;
    _Atomic uint64_t fence;  /* the largest of all */
    _Atomic uint64_t writer; /* the largest exclusive one */
    atomic_int turns;
    atomic_bool over;
};

/* Fences rise; those of readers in any order among themselves. */
static void check_fence(struct contest *all, uint64_t fence, bool reads)
{
    uint64_t most = atomic_load(&all->fence);

    CHECK_GT(fence, reads ? atomic_load(&all->writer) : most);
    while (fence > most &&
           !atomic_compare_exchange_weak(&all->fence, &most, fence))
        continue;
    if (!reads)
        atomic_store(&all->writer, fence);
}

static void be_inside(struct contest *all, hf_lock *lk, bool reads,
                      bool downgrades)
{
    int weight = reads ? 1 : WRITER;
    int others = atomic_fetch_add(&all->inside, weight);

    CHECK(reads ? others < WRITER : others == 0);
    check_fence(all, hf_fence(lk), reads);
    t_sleep_ms(1);
    CHECK(hf_held(lk));
    if (downgrades) {
        atomic_fetch_sub(&all->inside, WRITER - 1);
        weight = 1;
        if (hf_downgrade(lk, NULL) == HF_OK)
            t_sleep_ms(1);
        CHECK(hf_held(lk));
    }
    CHECK(atomic_load(&all->inside) < WRITER || weight == WRITER);
    atomic_fetch_add(&all->turns, 1);
    atomic_fetch_sub(&all->inside, weight);
}

static void contend(struct t_peer *up, void *arg)
{
    struct contest *all = arg;
    uint64_t random = (uint64_t)getpid();
    hf_client *client;
    hf_lock *lk;

    (void)up;
    CHECK_OK(hf_open(all->url, NULL, &client, &t_err));
    while (!atomic_load(&all->over)) {
        uint64_t chance = all->readers ? rl_random(&random) % 8 : 7;
        bool reads = chance < 5, downgrades = chance == 5;
        struct hf_lock_opts opts = rt_opts(TTL, reads ? HF_SHARED : 0);

        if (hf_acquire(client, "k", 5000, &opts, &lk, NULL))
            continue;
        be_inside(all, lk, reads, downgrades);
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

/* Whoever is closed while a node is cut off leaves there what lapses with its
 * lease: its vote, its share or its place in line. */
static bool is_empty(struct rl *rl)
{
    long long places = 0;

    for (int i = 0; i < RL_N; i++)
        places += rl_in_line(rl, i);
    return !places && !rl_count(rl, "k", NULL);
}

static void compete(bool readers)
{
    const char *soak = getenv("HF_SOAK"), *seed = getenv("SEED");
    struct contest *all = t_shared(sizeof(*all));
    uint64_t random = seed ? strtoull(seed, NULL, 10) : (uint64_t)t_now_ms();
    struct t_peer peers[PROCESSES];
    struct rl rl;
    int64_t end;
    int turns;

    all->readers = readers;
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
    t_poll_until(is_empty(&rl), TTL + 8000);
    rl_end(&rl);
}

TEST_TIMEOUT(one_holder_at_a_time_whatever_a_minority_does, 1000)
{
    compete(false);
}

TEST_TIMEOUT(readers_or_one_writer_whatever_a_minority_does, 1000)
{
    compete(true);
}

T_MAIN
