/* SPDX-License-Identifier: MIT
 *
 * failover.c - shared locks and permits on three servers of which the leader is
 * killed: what is held stays held, who waits goes on waiting in its place, and
 * never do more hold than may.
 */
#include "zkt.h"

#include <sched.h>
#include <signal.h>

enum { PERMITS = 2, TTL_MS = 30000 };

static struct hf_lock_opts opts_of(unsigned flags, int32_t permits)
{
    struct hf_lock_opts opts = zkt_opts(TTL_MS);

    opts.flags = flags;
    opts.permits = permits;
    return opts;
}

static void kill_leader(void)
{
    int id = zkt_server('l');

    zkt_signal_server(id, SIGKILL);
    zkt_server('l');
    zkt_start_server(id);
    zkt_await_all();
}

static void extend(hf_lock *lk)
{
    t_poll_until(hf_extend(lk, 0, &t_err) == HF_OK, 20000);
}

/* Two readers and a writer behind them; two permits and one who waits. */
TEST_TIMEOUT(a_killed_leader_costs_no_reader_and_no_permit, 180)
{
    struct hf_lock_opts read = opts_of(HF_SHARED, 0), write = opts_of(0, 0);
    struct hf_lock_opts permit = opts_of(0, PERMITS);
    const char *key = zkt_key("k"), *pool = zkt_key("pool");
    struct zkt_waiter writer, third;
    hf_lock *readers[2], *permits[PERMITS];
    hf_client *clients[3];
    int32_t slot;

    zkt_await_all();
    for (int i = 0; i < 3; i++)
        clients[i] = zkt_open(zkt_url("?ttl=30s"));
    CHECK_OK(hf_acquire(clients[0], key, 20000, &write, &readers[0], &t_err));
    CHECK_OK(hf_downgrade(readers[0], &t_err));
    CHECK_OK(hf_acquire(clients[1], key, 20000, &read, &readers[1], &t_err));
    for (int i = 0; i < PERMITS; i++)
        CHECK_OK(
            hf_acquire(clients[i], pool, 20000, &permit, &permits[i], &t_err));
    zkt_wait_start_with(&writer, clients[2], key, 120000, &write);
    zkt_wait_start_with(&third, clients[2], pool, 120000, &permit);
    for (int turn = 0; turn < 2; turn++) {
        kill_leader();
        for (int i = 0; i < 2; i++) {
            extend(readers[i]);
            extend(permits[i]);
        }
        CHECK(!atomic_load(&writer.done) && !atomic_load(&third.done));
    }
    slot = hf_slot(permits[1]);
    CHECK_OK(hf_release(permits[1], &t_err));
    CHECK_OK(zkt_wait_end(&third));
    CHECK_EQ(hf_slot(third.lk), slot);
    CHECK_OK(hf_release(readers[0], &t_err));
    CHECK(!atomic_load(&writer.done));
    CHECK_OK(hf_release(readers[1], &t_err));
    CHECK_OK(zkt_wait_end(&writer));
    CHECK_OK(hf_release(writer.lk, &t_err));
    CHECK_OK(hf_release(third.lk, &t_err));
    CHECK_OK(hf_release(permits[0], &t_err));
    for (int i = 0; i < 3; i++)
        hf_close(clients[i]);
}

struct group {
    const char *key, *pool;
    atomic_int readers, writers, inside, slots[PERMITS], turns;
    atomic_bool stop;
};

struct member {
    struct group *group;
    hf_client *client;
    unsigned seed;
    pthread_t thread;
};

static void read_or_write(struct member *m, bool write)
{
    struct hf_lock_opts opts = opts_of(write ? 0 : HF_SHARED, 0);
    struct group *group = m->group;
    hf_lock *lk;

    if (hf_acquire(m->client, group->key, 2000, &opts, &lk, NULL))
        return; /* While there is no leader. */
    if (write) {
        CHECK_EQ(atomic_fetch_add(&group->writers, 1), 0);
        CHECK_EQ(atomic_load(&group->readers), 0);
        sched_yield();
        CHECK_EQ(atomic_load(&group->readers), 0);
        atomic_fetch_sub(&group->writers, 1);
    } else {
        atomic_fetch_add(&group->readers, 1);
        CHECK_EQ(atomic_load(&group->writers), 0);
        sched_yield();
        CHECK_EQ(atomic_load(&group->writers), 0);
        atomic_fetch_sub(&group->readers, 1);
    }
    CHECK(hf_held(lk));
    hf_release(lk, NULL);
    atomic_fetch_add(&group->turns, 1);
}

static void take_a_permit(struct member *m)
{
    struct hf_lock_opts opts = opts_of(0, PERMITS);
    struct group *group = m->group;
    hf_lock *lk;

    if (hf_acquire(m->client, group->pool, 2000, &opts, &lk, NULL))
        return;
    CHECK_LT(atomic_fetch_add(&group->inside, 1), PERMITS);
    CHECK_EQ(atomic_fetch_add(&group->slots[hf_slot(lk)], 1), 0);
    sched_yield();
    atomic_fetch_sub(&group->slots[hf_slot(lk)], 1);
    atomic_fetch_sub(&group->inside, 1);
    CHECK(hf_held(lk));
    hf_release(lk, NULL);
    atomic_fetch_add(&group->turns, 1);
}

static void *take_part(void *arg)
{
    struct member *m = arg;

    while (!atomic_load(&m->group->stop)) {
        int what = rand_r(&m->seed) % 6;

        if (what < 2)
            take_a_permit(m);
        else
            read_or_write(m, what == 2);
    }
    return NULL;
}

TEST_TIMEOUT(never_do_more_hold_than_may_while_leaders_are_killed, 240)
{
    enum { MEMBERS = 9 };
    struct group group = {.key = zkt_key("k"), .pool = zkt_key("pool")};
    struct member members[MEMBERS];
    hf_client *clients[3];
    int turns;

    zkt_await_all();
    for (int i = 0; i < 3; i++)
        clients[i] = zkt_open(zkt_url("?ttl=30s"));
    for (int i = 0; i < MEMBERS; i++) {
        members[i] = (struct member){
            .group = &group, .client = clients[i % 3], .seed = (unsigned)i};
        CHECK_EQ(
            pthread_create(&members[i].thread, NULL, take_part, &members[i]),
            0);
    }
    for (int turn = 0; turn < 3; turn++) {
        turns = atomic_load(&group.turns);
        t_poll_until(atomic_load(&group.turns) > turns + 50, 60000);
        kill_leader();
    }
    turns = atomic_load(&group.turns);
    t_poll_until(atomic_load(&group.turns) > turns + 50, 60000);
    atomic_store(&group.stop, true);
    for (int i = 0; i < MEMBERS; i++)
        pthread_join(members[i].thread, NULL);
    zkt_begin();
    t_poll_until(zkt_children(zkt_path(group.key)) == 0, 60000);
    t_poll_until(zkt_children(zkt_path(group.pool)) == 0, 60000);
    zkt_end();
    for (int i = 0; i < 3; i++)
        hf_close(clients[i]);
}

T_MAIN
