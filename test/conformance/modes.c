/* SPDX-License-Identifier: MIT
 *
 * modes.c - shared and exclusive: order, downgrade, a lease for each reader, and
 * who holds; and the minimum hold.
 */
#include "conf.h"

#include <stdio.h>

/* ---- readers and writers ----------------------------------------------- */

TEST(a_reader_behind_a_waiting_writer_waits)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    struct conf_waiter writer;
    hf_client *a, *b, *c;
    hf_lock *lk, *none = NULL;

    conf_needs(HF_TRAIT_SHARED | HF_TRAIT_QUEUED);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    lk = conf_try(a, key, &read);
    conf_waiter_start(&writer, b, key, -1, NULL);
    conf_await_waiters(a, key, 1);
    CHECK_STATUS(hf_acquire(c, key, 0, &read, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(c, key, 50, &read, &none, &t_err), HF_TIMEOUT);
    conf_unlock(lk);
    conf_waiter_join(&writer, HF_OK);
    conf_unlock(writer.lk);
    conf_unlock(conf_lock(c, key, &read));
    hf_close(a);
    hf_close(b);
    hf_close(c);
    conf_check_free(key);
}

/* Readers that overlap for ever: with or without a queue a writer gets in. */
TEST_TIMEOUT(a_writer_is_not_starved_by_readers_that_overlap, 120)
{
    struct hf_lock_opts read = conf_opts(6000, HF_SHARED);
    const char *key = conf_key("k");
    struct conf_waiter writer;
    hf_client *a, *b;
    hf_lock *lk, *next;

    conf_needs(HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &read);
    conf_waiter_start(&writer, b, key, -1, NULL);
    conf_await_waiters(a, key, 1);
    /* One reader leaves only when the next one is in, as long as it can be. */
    while (!atomic_load(&writer.done)) {
        next = NULL;
        if (hf_acquire(a, key, conf_ms(200), &read, &next, &t_err) == HF_OK) {
            if (lk)
                conf_unlock(lk);
            lk = next;
        } else if (lk) {
            conf_unlock(lk);
            lk = NULL;
        }
    }
    if (lk)
        conf_unlock(lk);
    conf_waiter_join(&writer, HF_OK);
    conf_unlock(writer.lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_dead_reader_keeps_a_writer_out_for_its_own_lease_only)
{
    struct hf_lock_opts read = conf_opts(1500, HF_SHARED);
    struct hf_lock_opts manual = conf_opts(300, HF_SHARED | HF_MANUAL);
    const char *key = conf_key("k");
    struct conf_waiter writer;
    hf_client *a, *b;
    hf_lock *living, *dead;

    conf_needs(HF_TRAIT_SHARED | HF_TRAIT_LEASED);
    a = conf_open();
    b = conf_open();
    living = conf_try(a, key, &read);
    dead = conf_try(b, key, &manual);
    CHECK_OK(hf_extend(living, 0, &t_err));
    t_poll_until(!hf_held(dead), 20000);
    /* One renews, by itself and here; nobody renews the other. */
    CHECK_OK(hf_extend(living, 0, &t_err));
    if (conf_look(a, key).left_ms >= 0) /* else only a writer finds out */
        t_poll_until(conf_look(a, key).holders == 1, 20000);
    CHECK(hf_held(living));
    conf_waiter_start(&writer, b, key, -1, NULL);
    conf_await_waiters(a, key, 1);
    conf_unlock(living);
    conf_waiter_join(&writer, HF_OK);
    conf_unlock(writer.lk);
    CHECK_STATUS(hf_release(dead, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(fences_rise_from_reader_to_writer_and_from_writer_to_reader)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *client;
    uint64_t most;
    hf_lock *one, *two, *lk;

    conf_needs(HF_TRAIT_SHARED | HF_TRAIT_FENCED);
    client = conf_open();
    lk = conf_try(client, key, NULL);
    most = hf_fence(lk);
    conf_unlock(lk);
    for (int i = 0; i < 3; i++) {
        one = conf_try(client, key, &read);
        two = conf_try(client, key, &read);
        CHECK_GT(hf_fence(one), most);
        CHECK_GT(hf_fence(two), most);
        most = hf_fence(one) > hf_fence(two) ? hf_fence(one) : hf_fence(two);
        conf_unlock(one);
        conf_unlock(two);
        lk = conf_try(client, key, NULL);
        CHECK_GT(hf_fence(lk), most);
        most = hf_fence(lk);
        conf_unlock(lk);
    }
    hf_close(client);
    conf_check_free(key);
}

/* ---- downgrade --------------------------------------------------------- */

TEST(a_downgrade_lets_readers_in_and_keeps_writers_out)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    struct conf_waiter reader;
    hf_client *a, *b, *c;
    uint64_t fence;
    hf_lock *lk;

    conf_needs(HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    lk = conf_try(a, key, NULL);
    fence = hf_fence(lk);
    conf_waiter_start(&reader, b, key, -1, &read);
    conf_await_waiters(c, key, 1);
    CHECK_OK(hf_downgrade(lk, &t_err));
    conf_waiter_join(&reader, HF_OK);
    CHECK(hf_held(lk) && hf_held(reader.lk));
    CHECK_EQ(hf_fence(lk), fence);
    CHECK(conf_look(c, key).shared);
    conf_check_busy(key);
    CHECK_STATUS(hf_downgrade(lk, &t_err), HF_INVALID);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    conf_unlock(lk);
    conf_check_busy(key);
    conf_unlock(reader.lk);
    hf_close(a);
    hf_close(b);
    hf_close(c);
    conf_check_free(key);
}

/* A writer that waits is behind the one that downgrades at every moment. */
TEST(no_writer_comes_between_a_lock_and_its_downgrade)
{
    const char *key = conf_key("k");
    hf_client *a, *b;

    conf_needs(HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < conf_times(20, 4); i++) {
        struct conf_waiter writer;
        hf_lock *lk = conf_lock(a, key, NULL);

        conf_waiter_start(&writer, b, key, -1, NULL);
        conf_await_waiters(a, key, 1);
        CHECK_OK(hf_downgrade(lk, &t_err));
        CHECK(hf_held(lk));
        CHECK(!atomic_load(&writer.done));
        conf_unlock(lk);
        conf_waiter_join(&writer, HF_OK);
        CHECK_GT(hf_fence(writer.lk) + !(conf_traits & HF_TRAIT_FENCED), 0);
        conf_unlock(writer.lk);
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

/* Threads of the client that wait for the lock do not get it by a hand-over
 * while others read. */
TEST(a_downgraded_lock_is_not_handed_over_inside_the_client)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    struct conf_waiter writer;
    hf_client *a, *b;
    hf_lock *lk, *other;

    conf_needs(HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, NULL);
    CHECK_OK(hf_downgrade(lk, &t_err));
    other = conf_try(b, key, &read);
    conf_waiter_start(&writer, a, key, -1, NULL);
    conf_await_waiters(b, key, 1);
    conf_unlock(lk);
    t_sleep_ms(50);
    CHECK(!atomic_load(&writer.done));
    CHECK(hf_held(other));
    conf_unlock(other);
    conf_waiter_join(&writer, HF_OK);
    conf_unlock(writer.lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(an_owner_that_reads_is_refused_the_write_and_told_why)
{
    struct hf_lock_opts read = conf_opts(0, HF_SHARED);
    struct hf_lock_opts write = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *client;
    hf_lock *lk, *none = NULL;

    conf_needs(HF_TRAIT_SHARED);
    client = conf_open();
    read.owner = write.owner = "job";
    lk = conf_try(client, key, &read);
    CHECK_STATUS(hf_acquire(client, key, -1, &write, &none, &t_err),
                 HF_INVALID);
    CHECK(strstr(t_err.text, "release the shared lock first"));
    conf_unlock(lk);
    lk = conf_try(client, key, &write);
    CHECK_STATUS(hf_acquire(client, key, -1, &read, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "hf_downgrade()"));
    CHECK(none == NULL);
    conf_unlock(lk);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_lock_that_was_acquired_twice_is_not_downgraded)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *client;
    hf_lock *one, *two;

    conf_needs(HF_TRAIT_SHARED);
    client = conf_open();
    opts.owner = "job";
    one = conf_try(client, key, &opts);
    two = conf_try(client, key, &opts);
    CHECK_STATUS(hf_downgrade(one, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "more than once"));
    conf_unlock(two);
    CHECK_OK(hf_downgrade(one, &t_err));
    CHECK(conf_look(client, key).shared);
    conf_unlock(one);
    hf_close(client);
    conf_check_free(key);
}

/* ---- who holds --------------------------------------------------------- */

struct seen {
    struct hf_info holder[8];
    int n;
};

static bool see(void *arg, const struct hf_info *holder)
{
    struct seen *seen = arg;

    CHECK(holder->held);
    CHECK_LT(seen->n, 8);
    seen->holder[seen->n++] = *holder;
    return true;
}

static const struct hf_info *seen_fence(const struct seen *seen, uint64_t fence)
{
    for (int i = 0; i < seen->n; i++)
        if (seen->holder[i].fence == fence)
            return &seen->holder[i];
    return NULL;
}

TEST(holders_lists_each_of_those_who_share)
{
    struct hf_lock_opts opts = conf_opts(30000, HF_SHARED);
    const char *key = conf_key("k");
    struct seen seen = {.n = 0};
    const struct hf_info *info;
    hf_client *a, *b;
    hf_lock *lk[3];

    conf_needs(HF_TRAIT_SHARED | HF_TRAIT_NOTED);
    a = conf_open();
    b = conf_open();
    CHECK_OK(hf_holders(a, key, see, &seen, &t_err));
    CHECK_EQ(seen.n, 0);
    for (int i = 0; i < 3; i++) {
        char note[16];

        snprintf(note, sizeof(note), "reader %d", i);
        opts.note = note;
        lk[i] = conf_try(i % 2 ? a : b, key, &opts);
    }
    CHECK_OK(hf_holders(a, key, see, &seen, &t_err));
    CHECK_EQ(seen.n, 3);
    for (int i = 0; i < 3; i++) {
        char note[16];

        snprintf(note, sizeof(note), "reader %d", i);
        info = seen_fence(&seen, hf_fence(lk[i]));
        CHECK(info != NULL);
        CHECK_STR(info->note, note);
        CHECK(info->shared);
        CHECK_EQ(info->holders, 3);
        CHECK_EQ(info->slot, -1);
        if (info->left_ms >= 0) /* unknown on some */
            CHECK(info->left_ms > 0 && info->left_ms <= opts.ttl_ms);
        CHECK_OK(hf_check(b, key, hf_fence(lk[i]), &t_err));
    }
    CHECK_EQ(conf_look(a, key).holders, 3);
    conf_unlock(lk[1]);
    CHECK_STATUS(hf_check(b, key, seen.holder[0].fence + 1000000, &t_err),
                 HF_LOST);
    seen.n = 0;
    CHECK_OK(hf_holders(b, key, see, &seen, &t_err));
    CHECK_EQ(seen.n, 2);
    conf_unlock(lk[0]);
    conf_unlock(lk[2]);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(holders_of_an_exclusive_lock_are_one)
{
    const char *key = conf_key("k");
    struct seen seen = {.n = 0};
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);

    CHECK_OK(hf_holders(client, key, see, &seen, &t_err));
    CHECK_EQ(seen.n, 1);
    CHECK(!seen.holder[0].shared);
    CHECK_EQ(seen.holder[0].holders, 1);
    CHECK_EQ(seen.holder[0].fence, hf_fence(lk));
    conf_unlock(lk);
    CHECK_STATUS(hf_holders(client, key, NULL, NULL, &t_err), HF_INVALID);
    CHECK_STATUS(hf_holders(client, "", see, &seen, &t_err), HF_INVALID);
    hf_close(client);
}

TEST(one_of_several_readers_is_broken_by_its_fence)
{
    struct hf_lock_opts read = conf_opts(30000, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *one, *two;

    conf_needs(HF_TRAIT_SHARED | HF_TRAIT_BREAK | HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    one = conf_try(a, key, &read);
    two = conf_try(b, key, &read);
    CHECK_OK(hf_break(b, key, hf_fence(one), &t_err));
    CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
    CHECK_EQ(hf_lost_reason(one), HF_LOSS_BROKEN);
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_OK(hf_break_force(a, key, hf_fence(two), &t_err));
    conf_unlock(conf_lock(a, key, NULL));
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

/* ---- minimum hold ------------------------------------------------------ */

TEST(a_lock_that_is_released_early_stays_taken)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    struct hf_info info;
    hf_client *a, *b;

    conf_needs(HF_TRAIT_MIN_HOLD | HF_TRAIT_BREAK | HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    opts.min_hold_ms = 600000;
    opts.owner = "job";
    conf_unlock(conf_try(a, key, &opts));
    conf_check_busy(key);
    info = conf_look(b, key);
    CHECK(info.held && info.kept && !info.broken);
    CHECK(info.left_ms > 60000 && info.left_ms <= 600000);
    /* Who released it does not hold it, nor does its owner id. */
    opts.min_hold_ms = 0;
    for (int i = 0; i < 2; i++) {
        hf_lock *none = NULL;

        CHECK_STATUS(hf_acquire(i ? a : b, key, 0, &opts, &none, &t_err),
                     HF_BUSY);
    }
    hf_close(a);
    conf_check_busy(key);
    CHECK_OK(hf_break_force(b, key, info.fence, &t_err));
    hf_close(b);
    conf_check_free(key);
}

TEST(a_lock_that_is_kept_is_free_when_its_time_is_over)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk;
    int64_t granted;
    uint64_t fence;

    conf_needs(HF_TRAIT_MIN_HOLD);
    a = conf_open();
    b = conf_open();
    opts.min_hold_ms = 700;
    granted = t_now_ms();
    lk = conf_try(a, key, &opts);
    fence = hf_fence(lk);
    conf_unlock(lk);
    hf_close(a);
    lk = conf_lock(b, key, NULL);
    CHECK_GE(t_now_ms() - granted, 700);
    CHECK_GT(hf_fence(lk), fence);
    conf_unlock(lk);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_lock_that_was_held_for_its_minimum_is_free_at_once)
{
    struct hf_lock_opts opts = conf_opts(30000, 0);
    const char *key = conf_key("k");
    hf_client *client;
    hf_lock *lk;

    conf_needs(HF_TRAIT_MIN_HOLD);
    client = conf_open();
    opts.min_hold_ms = 20;
    lk = conf_try(client, key, &opts);
    t_sleep_ms(40);
    conf_unlock(lk);
    conf_check_free(key);
    hf_close(client);
}

TEST(waiters_inside_the_client_wait_for_the_minimum_too)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    struct conf_waiter w;
    hf_client *client;
    int64_t granted;
    hf_lock *lk;

    conf_needs(HF_TRAIT_MIN_HOLD);
    client = conf_open();
    opts.min_hold_ms = 400;
    opts.linger_ms = 1000;
    granted = t_now_ms();
    lk = conf_try(client, key, &opts);
    conf_waiter_start(&w, client, key, -1, NULL);
    conf_unlock(lk);
    conf_waiter_join(&w, HF_OK);
    CHECK_GE(t_now_ms() - granted, 400);
    conf_unlock(w.lk);
    hf_close(client);
    conf_check_free(key);
}

TEST(a_minimum_hold_that_cannot_be_had_is_refused)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    hf_client *client = conf_open();
    hf_lock *none = NULL;

    opts.min_hold_ms = -5;
    CHECK_STATUS(hf_acquire(client, conf_key("k"), 0, &opts, &none, &t_err),
                 HF_INVALID);
    opts.min_hold_ms = 1000;
    if (!(conf_traits & HF_TRAIT_MIN_HOLD)) {
        CHECK_STATUS(hf_acquire(client, conf_key("k"), 0, &opts, &none, &t_err),
                     HF_UNSUPPORTED);
        CHECK(strstr(t_err.text, "has no minimum hold"));
    }
    CHECK(none == NULL);
    hf_close(client);
}
