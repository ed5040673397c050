/* SPDX-License-Identifier: MIT
 *
 * interop-shared.c - the read-write locks of Curator and kazoo and ours: readers
 * hold together, writers alone, and all stand in one queue; and their plain
 * locks, which wait for our readers too.
 */
#include "peer.h"

static struct hf_lock_opts shared_opts(void)
{
    struct hf_lock_opts opts = zkt_opts(20000);

    opts.flags = HF_SHARED;
    return opts;
}

static void await_children(const struct peer_scene *s, int n)
{
    t_poll_until(zkt_children(zkt_path(s->key)) == n, 10000);
}

/* Readers of both sides hold at once, and keep writers of both out. */
static void read_together(const struct peer_kind *kind)
{
    struct peer_scene s = peer_begin(kind);
    struct hf_lock_opts read = shared_opts();
    struct hf_info info = HF_INFO_INIT;
    hf_lock *lk, *none = NULL;

    peer_do(&s.peer, "read lock", "locked");
    CHECK_OK(hf_acquire(s.a, s.key, 0, &read, &lk, &t_err));
    CHECK_OK(hf_inspect(s.b, s.key, &info, &t_err));
    CHECK(info.shared);
    CHECK_EQ(info.holders, 2);
    CHECK_STATUS(hf_acquire(s.b, s.key, 0, NULL, &none, &t_err), HF_BUSY);
    peer_do(&s.peer, "read unlock", "unlocked");
    CHECK_STATUS(hf_acquire(s.b, s.key, 0, NULL, &none, &t_err), HF_BUSY);
    peer_do(&s.peer, "read try", "locked");
    peer_do(&s.peer, "read unlock", "unlocked");
    peer_do(&s.peer, "write try", "busy");
    CHECK_OK(hf_release(lk, &t_err));
    peer_do(&s.peer, "write try", "locked");
    CHECK_STATUS(hf_acquire(s.a, s.key, 0, &read, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(s.a, s.key, 0, NULL, &none, &t_err), HF_BUSY);
    peer_do(&s.peer, "write unlock", "unlocked");
    CHECK_OK(hf_acquire(s.a, s.key, 0, NULL, &lk, &t_err));
    peer_do(&s.peer, "read try", "busy");
    peer_do(&s.peer, "write try", "busy");
    CHECK_OK(hf_release(lk, &t_err));
    peer_finish(&s);
}

/* A reader of theirs, a writer of ours, a reader of ours; then the other way
 * round. */
static void queue_together(const struct peer_kind *kind)
{
    struct peer_scene s = peer_begin(kind);
    struct hf_lock_opts read = shared_opts(), write = zkt_opts(20000);
    struct zkt_waiter writer, reader;
    hf_lock *lk;

    peer_do(&s.peer, "read lock", "locked");
    zkt_wait_start_with(&writer, s.a, s.key, 60000, &write);
    await_children(&s, 2);
    zkt_wait_start_with(&reader, s.b, s.key, 60000, &read);
    await_children(&s, 3);
    CHECK(!atomic_load(&writer.done) && !atomic_load(&reader.done));
    peer_do(&s.peer, "read unlock", "unlocked");
    CHECK_OK(zkt_wait_end(&writer));
    CHECK(!atomic_load(&reader.done));
    CHECK_OK(hf_release(writer.lk, &t_err));
    CHECK_OK(zkt_wait_end(&reader));
    peer_tell(&s.peer, "write lock");
    await_children(&s, 2);
    CHECK_STATUS(hf_acquire(s.a, s.key, 0, &read, &lk, &t_err), HF_BUSY);
    CHECK(!peer_says(&s.peer, 200));
    CHECK_OK(hf_release(reader.lk, &t_err));
    peer_hear(&s.peer, "locked");
    peer_do(&s.peer, "write unlock", "unlocked");
    peer_finish(&s);
}

/* A reader of theirs behind our writer comes in when that downgrades, and a
 * writer of theirs does not. */
static void downgrade_before_them(const struct peer_kind *kind)
{
    struct peer_scene s = peer_begin(kind);
    hf_lock *lk;

    CHECK_OK(hf_acquire(s.a, s.key, 0, NULL, &lk, &t_err));
    peer_tell(&s.peer, "read lock");
    await_children(&s, 2);
    CHECK(!peer_says(&s.peer, 200));
    CHECK_OK(hf_downgrade(lk, &t_err));
    peer_hear(&s.peer, "locked");
    peer_do(&s.peer, "read unlock", "unlocked");
    peer_tell(&s.peer, "write lock");
    await_children(&s, 2);
    CHECK(!peer_says(&s.peer, 200));
    CHECK_OK(hf_release(lk, &t_err));
    peer_hear(&s.peer, "locked");
    peer_do(&s.peer, "write unlock", "unlocked");
    CHECK_OK(hf_acquire(s.a, s.key, 0, NULL, &lk, &t_err));
    peer_tell(&s.peer, "write lock");
    await_children(&s, 2);
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK(!peer_says(&s.peer, 200));
    CHECK_OK(hf_release(lk, &t_err));
    peer_hear(&s.peer, "locked");
    peer_do(&s.peer, "write unlock", "unlocked");
    peer_finish(&s);
}

/* recipe=sequential: a plain lock of theirs and our readers. */
static void plain_and_readers(const struct peer_kind *kind)
{
    struct peer_scene s = peer_begin(kind);
    struct hf_lock_opts read = shared_opts();
    hf_lock *one, *two, *none = NULL;

    CHECK_OK(hf_acquire(s.a, s.key, 0, &read, &one, &t_err));
    CHECK_OK(hf_acquire(s.b, s.key, 0, &read, &two, &t_err));
    peer_do(&s.peer, "try", "busy");
    peer_tell(&s.peer, "lock");
    await_children(&s, 3);
    CHECK_OK(hf_release(two, &t_err));
    CHECK_STATUS(hf_acquire(s.b, s.key, 0, &read, &none, &t_err), HF_BUSY);
    CHECK(!peer_says(&s.peer, 200));
    CHECK_OK(hf_release(one, &t_err));
    peer_hear(&s.peer, "locked");
    CHECK_STATUS(hf_acquire(s.b, s.key, 0, &read, &none, &t_err), HF_BUSY);
    peer_do(&s.peer, "unlock", "unlocked");
    CHECK_OK(hf_acquire(s.b, s.key, 0, &read, &one, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    peer_finish(&s);
}

TEST(readers_of_curator_and_ours_hold_together)
{
    read_together(&peer_curator_rw);
}

TEST(readers_of_kazoo_and_ours_hold_together)
{
    read_together(&peer_kazoo_rw);
}

TEST(readers_and_writers_of_curator_stand_in_one_queue_with_ours)
{
    queue_together(&peer_curator_rw);
}

TEST(readers_and_writers_of_kazoo_stand_in_one_queue_with_ours)
{
    queue_together(&peer_kazoo_rw);
}

TEST(a_downgrade_lets_curators_readers_in_and_no_writer)
{
    downgrade_before_them(&peer_curator_rw);
}

TEST(a_downgrade_lets_kazoos_readers_in_and_no_writer)
{
    downgrade_before_them(&peer_kazoo_rw);
}

TEST(curators_mutex_and_our_readers_exclude_each_other)
{
    plain_and_readers(&peer_curator);
}

TEST(kazoos_lock_and_our_readers_exclude_each_other)
{
    plain_and_readers(&peer_kazoo);
}

T_MAIN
