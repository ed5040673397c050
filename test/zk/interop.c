/* SPDX-License-Identifier: MIT
 *
 * interop.c - Curator's InterProcessMutex and kazoo's Lock exclude us and we
 * them, and all stand in one queue.
 *
 * The peers are real, each in a process of its own (curator-peer, kazoo-peer,
 * in $HF_ZK_PEERS), and told what to do through a pipe.
 */
#include "peer.h"

static void exclude(const struct peer_kind *kind)
{
    struct peer_scene s = peer_begin(kind);
    struct hf_info info = HF_INFO_INIT;
    struct zkt_waiter w;
    hf_lock *lk = NULL;

    peer_tell(&s.peer, "lock");
    peer_hear(&s.peer, "locked");
    CHECK_STATUS(hf_acquire(s.a, s.key, 0, NULL, &lk, &t_err), HF_BUSY);
    CHECK_OK(hf_inspect(s.a, s.key, &info, &t_err));
    CHECK(info.held);
    CHECK_GT(info.fence, 0);
    zkt_wait_start(&w, s.a, s.key, 60000, 20000);
    t_poll_until(zkt_children(zkt_path(s.key)) == 2, 10000);
    CHECK(!atomic_load(&w.done));
    peer_tell(&s.peer, "unlock");
    peer_hear(&s.peer, "unlocked");
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_GT(hf_fence(w.lk), info.fence);
    peer_tell(&s.peer, "try");
    peer_hear(&s.peer, "busy");
    peer_tell(&s.peer, "lock");
    t_poll_until(zkt_children(zkt_path(s.key)) == 2, 10000);
    CHECK(!peer_says(&s.peer, 200));
    CHECK_OK(hf_release(w.lk, &t_err));
    peer_hear(&s.peer, "locked");
    peer_tell(&s.peer, "unlock");
    peer_hear(&s.peer, "unlocked");
    CHECK_OK(hf_acquire(s.a, s.key, 0, NULL, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    peer_finish(&s);
}

/* Ours, the peer's and ours again are served in that order. */
static void queue(const struct peer_kind *kind)
{
    struct peer_scene s = peer_begin(kind);
    struct zkt_waiter w;
    hf_lock *lk;

    CHECK_OK(hf_acquire(s.a, s.key, 0, NULL, &lk, &t_err));
    peer_tell(&s.peer, "lock");
    t_poll_until(zkt_children(zkt_path(s.key)) == 2, 10000);
    zkt_wait_start(&w, s.b, s.key, 60000, 20000);
    t_poll_until(zkt_children(zkt_path(s.key)) == 3, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    peer_hear(&s.peer, "locked");
    t_sleep_ms(100);
    CHECK(!atomic_load(&w.done));
    peer_tell(&s.peer, "unlock");
    peer_hear(&s.peer, "unlocked");
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_OK(hf_release(w.lk, &t_err));
    peer_finish(&s);
}

/* A peer that waits behind an owner also waits for those who join it. */
static void join(const struct peer_kind *kind)
{
    struct hf_lock_opts opts = zkt_opts(20000);
    struct peer_scene s = peer_begin(kind);
    hf_lock *outer, *inner;

    opts.owner = "order 7";
    CHECK_OK(hf_acquire(s.a, s.key, 0, &opts, &outer, &t_err));
    peer_tell(&s.peer, "lock");
    t_poll_until(zkt_children(zkt_path(s.key)) == 2, 10000);
    CHECK_OK(hf_acquire(s.b, s.key, 0, &opts, &inner, &t_err));
    CHECK_OK(hf_release(outer, &t_err));
    CHECK(!peer_says(&s.peer, 300));
    CHECK(hf_held(inner));
    CHECK_OK(hf_release(inner, &t_err));
    peer_hear(&s.peer, "locked");
    peer_tell(&s.peer, "unlock");
    peer_hear(&s.peer, "unlocked");
    peer_finish(&s);
}

static long number_in(const char *file)
{
    FILE *f = fopen(file, "r");
    long n = -1;

    CHECK(f != NULL);
    CHECK_EQ(fscanf(f, "%ld", &n), 1);
    fclose(f);
    return n;
}

static void write_number(const char *file, long n)
{
    FILE *f = fopen(file, "w");

    CHECK(f != NULL);
    fprintf(f, "%ld\n", n);
    fclose(f);
}

/* Both add to one number that only the lock protects. */
static void count_together(const struct peer_kind *kind)
{
    enum { TURNS = 100 };
    struct peer_scene s = peer_begin(kind);
    char file[256], order[320];
    hf_lock *lk;

    snprintf(file, sizeof(file), "%s/number", t_tmpdir());
    snprintf(order, sizeof(order), "turns %s %d", file, TURNS);
    write_number(file, 0);
    peer_tell(&s.peer, order);
    for (int i = 0; i < TURNS; i++) {
        long seen;

        CHECK_OK(
            hf_acquire(i % 2 ? s.a : s.b, s.key, 60000, NULL, &lk, &t_err));
        seen = number_in(file);
        t_sleep_ms(1);
        write_number(file, seen + 1);
        CHECK_OK(hf_release(lk, &t_err));
    }
    peer_hear(&s.peer, "done");
    CHECK_EQ(number_in(file), 2 * TURNS);
    peer_finish(&s);
}

TEST(curator_and_we_exclude_each_other)
{
    exclude(&peer_curator);
}

TEST(kazoo_and_we_exclude_each_other)
{
    exclude(&peer_kazoo);
}

TEST(curator_and_we_stand_in_one_queue)
{
    queue(&peer_curator);
}

TEST(kazoo_and_we_stand_in_one_queue)
{
    queue(&peer_kazoo);
}

TEST(curator_waits_for_who_joins_the_holder)
{
    join(&peer_curator);
}

TEST(kazoo_waits_for_who_joins_the_holder)
{
    join(&peer_kazoo);
}

TEST(curator_and_we_count_without_losing_a_turn)
{
    count_together(&peer_curator);
}

TEST(kazoo_and_we_count_without_losing_a_turn)
{
    count_together(&peer_kazoo);
}

T_MAIN
