/* SPDX-License-Identifier: MIT
 *
 * transfer.c - a holder names who is next; and what free keys leave behind is
 * removed.
 */
#include "conf.h"

#include <stdio.h>

/* Name the heir, or skip the test where the queue is not ours to order. */
static void name_heir(hf_lock *lk, const char *heir)
{
    hf_status st = hf_transfer(lk, heir, &t_err);

    if (st == HF_UNSUPPORTED)
        T_SKIP_TRAIT("transfer");
    t_check_status(__FILE__, __LINE__, "hf_transfer", st, HF_OK);
}

/* Somebody who waits, with a name. */
struct hopeful {
    struct hf_lock_opts opts;
    struct conf_waiter w;
};

static void hopeful_start(struct hopeful *h, hf_client *client, const char *key,
                          const char *note, const char *owner)
{
    h->opts = conf_opts(20000, 0);
    h->opts.note = note;
    h->opts.owner = owner;
    conf_waiter_start(&h->w, client, key, -1, &h->opts);
}

static void hopeful_end(struct hopeful *h)
{
    conf_waiter_join(&h->w, HF_OK);
    conf_unlock(h->w.lk);
}

/* Three others wait; the last of them is named, by note or by owner id. */
static void pass_to_the_last(const char *note, const char *owner)
{
    struct hf_lock_opts opts = conf_opts(20000, 0);
    const char *key = conf_key("k");
    hf_client *client[4];
    struct hopeful h[3];
    hf_lock *lk;

    for (int i = 0; i < 4; i++)
        client[i] = conf_open();
    lk = conf_try(client[3], key, &opts);
    if (hf_transfer(lk, "nobody", NULL) == HF_UNSUPPORTED)
        T_SKIP_TRAIT("transfer");
    for (int i = 0; i < 3; i++) {
        hopeful_start(&h[i], client[i], key, i < 2 ? "other" : note,
                      i < 2 ? NULL : owner);
        conf_await_waiters(client[3], key, i + 1);
    }
    CHECK_OK(hf_transfer(lk, owner ? owner : note, &t_err));
    CHECK(hf_held(lk));
    conf_check_stands(client[3], lk);
    CHECK_OK(hf_transfer(lk, owner ? owner : note, &t_err)); /* the same */
    conf_unlock(lk);
    t_poll_until(atomic_load(&h[2].w.done), 20000);
    CHECK(!atomic_load(&h[0].w.done) && !atomic_load(&h[1].w.done));
    hopeful_end(&h[2]);
    hopeful_end(&h[0]);
    hopeful_end(&h[1]);
    for (int i = 0; i < 4; i++)
        hf_close(client[i]);
    conf_check_free(key);
}

TEST(the_waiter_whose_note_is_named_is_next)
{
    pass_to_the_last("the heir", NULL);
}

TEST(the_waiter_whose_owner_id_is_named_is_next)
{
    pass_to_the_last("a note", "heir-7");
}

/* The heir waits in the holder's own client, behind another thread there, and
 * behind another client. */
TEST(a_waiter_of_the_same_client_can_be_the_heir)
{
    struct hf_lock_opts opts = conf_opts(20000, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    struct hopeful local, other, heir;
    hf_lock *lk;

    opts.note = "same";
    lk = conf_try(a, key, &opts);
    if (hf_transfer(lk, "nobody", NULL) == HF_UNSUPPORTED)
        T_SKIP_TRAIT("transfer");
    hopeful_start(&other, b, key, "other", NULL);
    conf_await_waiters(a, key, 1);
    hopeful_start(&local, a, key, "same", NULL);
    hopeful_start(&heir, a, key, "heir", NULL);
    t_poll_until(hf_transfer(lk, "heir", NULL) == HF_OK, 20000);
    conf_unlock(lk);
    t_poll_until(atomic_load(&heir.w.done), 20000);
    CHECK(!atomic_load(&local.w.done) && !atomic_load(&other.w.done));
    hopeful_end(&heir);
    hopeful_end(&other);
    hopeful_end(&local);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_transferred_lock_is_not_handed_over_inside_the_client)
{
    struct hf_lock_opts opts = conf_opts(20000, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    struct hopeful local, heir;
    hf_lock *lk;

    opts.note = "same";
    opts.linger_ms = 10000;
    lk = conf_try(a, key, &opts);
    if (hf_transfer(lk, "nobody", NULL) == HF_UNSUPPORTED)
        T_SKIP_TRAIT("transfer");
    hopeful_start(&local, a, key, "same", NULL);
    hopeful_start(&heir, b, key, "heir", NULL);
    conf_await_waiters(a, key, 1);
    t_poll_until(hf_transfer(lk, "heir", NULL) == HF_OK, 20000);
    conf_unlock(lk);
    t_poll_until(atomic_load(&heir.w.done), 20000);
    CHECK(!atomic_load(&local.w.done));
    hopeful_end(&heir);
    hopeful_end(&local);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(an_heir_that_is_not_there_is_refused_and_nothing_changes)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct hopeful h;
    hf_status st = hf_transfer(lk, "nobody", &t_err);

    CHECK_STATUS(hf_transfer(lk, "", &t_err), HF_INVALID);
    CHECK_STATUS(hf_transfer(lk, NULL, &t_err), HF_INVALID);
    CHECK_STATUS(hf_transfer(NULL, "heir", &t_err), HF_INVALID);
    if (st == HF_UNSUPPORTED)
        T_SKIP_TRAIT("transfer");
    CHECK_EQ(st, HF_INVALID);
    hopeful_start(&h, b, key, "other", NULL);
    conf_await_waiters(a, key, 1);
    CHECK_STATUS(hf_transfer(lk, "nobody", &t_err), HF_INVALID);
    CHECK(hf_held(lk));
    conf_check_stands(a, lk);
    conf_unlock(lk);
    hopeful_end(&h);
    hf_close(a);
    hf_close(b);
}

TEST(an_heir_that_gives_up_leaves_the_turn_to_the_next)
{
    struct hf_lock_opts opts = conf_opts(20000, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open(), *c = conf_open();
    struct hopeful h, heir;
    hf_lock *lk = conf_try(a, key, &opts);

    hopeful_start(&h, b, key, "other", NULL);
    conf_await_waiters(a, key, 1);
    hopeful_start(&heir, c, key, "heir", NULL);
    conf_await_waiters(a, key, 2);
    name_heir(lk, "heir");
    hf_cancel(c);
    conf_waiter_join(&heir.w, HF_CANCELED);
    conf_unlock(lk);
    hopeful_end(&h);
    hf_close(a);
    hf_close(b);
    hf_close(c);
    conf_check_free(key);
}

/* The first of that name in the holder's own client asks the service once and
 * gives up; the second goes on waiting, and is named instead.  Over a slow way
 * the first may have its place for as long as it takes to be named: then it was
 * the heir, and whoever is next follows. */
TEST(an_heir_of_the_same_client_that_gives_up_is_not_waited_for)
{
    struct hf_lock_opts opts = conf_opts(60000, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    struct hf_stats stats = HF_STATS_INIT;
    struct hopeful once, other, heir;
    hf_lock *lk = conf_try(a, key, &opts);

    if (hf_transfer(lk, "nobody", NULL) == HF_UNSUPPORTED)
        T_SKIP_TRAIT("transfer");
    hopeful_start(&other, b, key, "other", NULL);
    conf_await_waiters(a, key, 1);
    once.opts = opts;
    once.opts.note = "heir";
    once.opts.max_tries = 1;
    conf_waiter_start(&once.w, a, key, -1, &once.opts);
    t_poll_until(!hf_stats(a, &stats, &t_err) && stats.waiting == 1, 20000);
    hopeful_start(&heir, a, key, "heir", NULL);
    t_poll_until(!hf_stats(a, &stats, &t_err) && stats.waiting == 2, 20000);
    CHECK_OK(hf_transfer(lk, "heir", &t_err));
    conf_waiter_join(&once.w, HF_TIMEOUT);
    conf_unlock(lk);
    t_poll_until(atomic_load(&heir.w.done) || atomic_load(&other.w.done),
                 20000);
    if (atomic_load(&heir.w.done)) {
        hopeful_end(&heir);
        hopeful_end(&other);
    } else {
        hopeful_end(&other);
        hopeful_end(&heir);
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

/* Who shares the lock names one that wants to share it and waits only since a
 * writer is before it.  The leases, and so the places in the queue, are so
 * long that nothing but the transfer tells it that it is not any more. */
TEST(an_heir_that_could_join_at_once_does)
{
    struct hf_lock_opts opts = conf_opts(600000, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open(), *c = conf_open();
    struct hopeful writer = {.opts = opts}, heir = {.opts = opts};
    hf_lock *lk;

    if (!(conf_traits & HF_TRAIT_SHARED))
        T_SKIP_TRAIT("shared locks");
    lk = conf_try(a, key, &opts);
    if (hf_transfer(lk, "nobody", NULL) == HF_UNSUPPORTED)
        T_SKIP_TRAIT("transfer");
    writer.opts.flags = 0;
    conf_waiter_start(&writer.w, b, key, -1, &writer.opts);
    conf_await_waiters(a, key, 1);
    heir.opts.note = "heir";
    conf_waiter_start(&heir.w, c, key, -1, &heir.opts);
    conf_await_waiters(a, key, 2);
    CHECK(!atomic_load(&heir.w.done));
    CHECK_OK(hf_transfer(lk, "heir", &t_err));
    t_poll_until(atomic_load(&heir.w.done), 20000);
    CHECK(hf_held(lk) && !atomic_load(&writer.w.done));
    hopeful_end(&heir);
    conf_unlock(lk);
    hopeful_end(&writer);
    hf_close(a);
    hf_close(b);
    hf_close(c);
    conf_check_free(key);
}

TEST(a_lost_lock_cannot_be_transferred)
{
    struct hf_lock_opts opts = conf_opts(300, HF_MANUAL);
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), &opts);
    hf_status st;

    t_poll_until(!hf_held(lk), 20000);
    st = hf_transfer(lk, "heir", &t_err);
    CHECK(st == HF_LOST || st == HF_UNSUPPORTED);
    hf_release(lk, NULL);
    hf_close(client);
}

/* ---- collecting -------------------------------------------------------- */

/* Leave keys behind, held and free. */
TEST(collecting_leaves_what_is_held_and_lets_no_fence_go_back)
{
    struct hf_collected count = HF_COLLECTED_INIT, done = HF_COLLECTED_INIT;
    const char *held = conf_key("held"), *left = conf_key("left");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, held, NULL), *again;
    uint64_t fence;
    hf_status st;

    again = conf_try(a, left, NULL);
    fence = hf_fence(again);
    conf_unlock(again);
    st = hf_collect(b, 0, true, &count, &t_err);
    if (st == HF_UNSUPPORTED)
        T_SKIP_TRAIT("something that free keys leave behind");
    t_check_status(__FILE__, __LINE__, "hf_collect", st, HF_OK);
    CHECK_OK(hf_collect(b, 0, false, &done, &t_err));
    CHECK_GE(done.looked_at, done.removed + done.kept);
    conf_check_stands(b, lk);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    again = conf_try(b, left, NULL);
    if (conf_traits & HF_TRAIT_FENCED)
        CHECK_GT(hf_fence(again), fence);
    conf_unlock(again);
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

TEST(wrong_arguments_of_a_collection_are_refused)
{
    struct hf_collected ret = HF_COLLECTED_INIT;
    hf_client *client = conf_open();

    CHECK_STATUS(hf_collect(NULL, 0, true, &ret, &t_err), HF_INVALID);
    CHECK_STATUS(hf_collect(client, 0, true, NULL, &t_err), HF_INVALID);
    CHECK_STATUS(hf_collect(client, -1, true, &ret, &t_err), HF_INVALID);
    ret.size = 3;
    CHECK_STATUS(hf_collect(client, 0, true, &ret, &t_err), HF_INVALID);
    hf_close(client);
}
