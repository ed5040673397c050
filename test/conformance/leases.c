/* SPDX-License-Identifier: MIT
 *
 * leases.c - how long a lock is good for, and that nobody touches the next one.
 *
 * Two dangers have names.  A locks, A's lease lapses, B locks, A unlocks or
 * renews: B must not notice.  A unlocks, B locks, A's renewal comes late: B
 * must not notice either.  A lock with HF_MANUAL lapses at its ttl on every
 * service (where the service itself never takes a lock away, the client lets
 * go), so the first can be staged everywhere.
 */
#include "conf.h"

#include <fcntl.h>
#include <unistd.h>

/* A's lease has lapsed and B has the lock: the scene of the first danger. */
struct scene {
    const char *key;
    hf_client *a, *b;
    hf_lock *old, *cur;
};

static struct scene lapse(void)
{
    struct hf_lock_opts brief = conf_opts(400, HF_MANUAL);
    struct scene s = {.key = conf_key("k"), .a = conf_open(), .b = conf_open()};

    s.old = conf_try(s.a, s.key, &brief);
    s.cur = conf_lock(s.b, s.key, NULL);
    CHECK(!hf_held(s.old));
    return s;
}

/* B still has it, in its own eyes and in everybody's. */
static void check_untouched(struct scene *s)
{
    CHECK(hf_held(s->cur));
    conf_check_stands(s->b, s->cur);
    conf_check_busy(s->key);
    CHECK_OK(hf_extend(s->cur, 0, &t_err));
    CHECK(hf_held(s->cur));
}

static void leave(struct scene *s)
{
    conf_unlock(s->cur);
    hf_close(s->a);
    hf_close(s->b);
    conf_check_free(s->key);
}

TEST(unlocking_after_a_lapse_leaves_the_next_holder_alone)
{
    struct scene s = lapse();

    CHECK_STATUS(hf_release(s.old, &t_err), HF_LOST);
    check_untouched(&s);
    leave(&s);
}

TEST(extending_after_a_lapse_leaves_the_next_holder_alone)
{
    struct scene s = lapse();

    CHECK_STATUS(hf_extend(s.old, 60000, &t_err), HF_LOST);
    CHECK(!hf_held(s.old));
    check_untouched(&s);
    CHECK_STATUS(hf_release(s.old, &t_err), HF_LOST);
    check_untouched(&s);
    leave(&s);
}

TEST(closing_after_a_lapse_leaves_the_next_holder_alone)
{
    struct scene s = lapse();

    hf_close(s.a);
    check_untouched(&s);
    CHECK_STATUS(hf_release(s.old, &t_err), HF_LOST);
    check_untouched(&s);
    s.a = NULL;
    leave(&s);
}

TEST(the_lapsed_holder_can_lock_again_after_the_next)
{
    struct scene s = lapse();
    hf_lock *none = NULL, *again;

    CHECK_STATUS(hf_acquire(s.a, s.key, 0, NULL, &none, &t_err), HF_BUSY);
    CHECK(none == NULL);
    conf_unlock(s.cur);
    again = conf_lock(s.a, s.key, NULL);
    CHECK(!hf_held(s.old));
    CHECK_STATUS(hf_release(s.old, &t_err), HF_LOST);
    CHECK(hf_held(again));
    conf_check_busy(s.key);
    s.cur = again;
    leave(&s);
}

TEST_TIMEOUT(a_late_renewal_leaves_the_next_holder_alone, 120)
{
    /* Short leases make the keeper renew every few milliseconds, so that
     * some renewal is always under way when the lock is given back. */
    struct hf_lock_opts brief = conf_opts(60, 0);
    hf_client *a = conf_open(), *b = conf_open();
    const char *key = conf_key("k");

    for (int i = 0; i < conf_times(60, 15); i++) {
        hf_lock *lk = conf_lock(a, key, &brief), *next;
        int64_t end;

        t_sleep_ms(conf_ms(60) / 4 + i % 9 * (1 + conf_trip_ms / 4));
        hf_release(lk, NULL);
        next = conf_lock(b, key, NULL);
        for (end = t_now_ms() + 30; t_now_ms() < end;) {
            CHECK(hf_held(next));
            conf_check_stands(b, next);
            t_sleep_ms(3);
        }
        conf_unlock(next);
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(a_manual_lock_lapses_at_its_ttl_and_says_why)
{
    struct hf_lock_opts brief = conf_opts(300, HF_MANUAL);
    const char *key = conf_key("k");
    hf_client *client = conf_open(), *other = conf_open();
    int64_t began = t_now_ms();
    hf_lock *lk = conf_try(client, key, &brief);
    int fd = hf_lost_fd(lk);

    CHECK(hf_held(lk));
    CHECK(!conf_readable(fd, 0));
    t_poll_until(!hf_held(lk), 20000);
    CHECK_LE(t_now_ms() - began, 20000);
    CHECK(conf_readable(fd, 20000));
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_EXPIRED);
    CHECK_EQ(hf_remaining_ms(lk), 0);
    conf_unlock(conf_lock(other, key, NULL));
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK(!hf_held(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(other);
    hf_close(client);
}

/* What the service says of the time that is left may be rounded, or not known:
 * a check is of the grant. */
TEST(a_check_is_ok_for_as_long_as_the_lock_is_held_and_then_lost)
{
    struct hf_lock_opts opts = conf_opts(2000, HF_MANUAL);
    const char *key = conf_key("k");
    int64_t end = t_now_ms() + 2 * opts.ttl_ms;
    hf_status st = HF_OK;
    hf_client *a, *b;
    hf_lock *lk;
    bool timed; /* else the lock stands until somebody else wants it */

    conf_needs(HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &opts);
    timed = conf_look(b, key).left_ms >= 0;
    while (hf_held(lk) && t_now_ms() < end) {
        st = hf_check(b, key, hf_fence(lk), &t_err);
        if (hf_held(lk)) /* and so it was then */
            CHECK_STATUS(st, HF_OK);
        t_sleep_ms(20);
    }
    if (!hf_held(lk) && timed)
        t_poll_until(hf_check(b, key, hf_fence(lk), NULL) == HF_LOST, 20000);
    st = hf_release(lk, &t_err);
    CHECK(st == HF_OK || st == HF_LOST);
    hf_close(a);
    hf_close(b);
}

TEST(a_lock_is_not_held_any_more_when_the_next_is_granted)
{
    struct hf_lock_opts brief = conf_opts(50, HF_MANUAL);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();

    for (int i = 0; i < conf_times(20, 5); i++) {
        hf_lock *old = conf_lock(a, key, &brief);
        hf_lock *cur = conf_lock(b, key, NULL);

        CHECK(!hf_held(old));
        CHECK(hf_held(cur));
        conf_unlock(cur);
        CHECK_STATUS(hf_release(old, &t_err), HF_LOST);
    }
    hf_close(a);
    hf_close(b);
}

TEST(the_keeper_keeps_a_lock_far_beyond_its_ttl)
{
    struct hf_lock_opts brief = conf_opts(1500, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, &brief);
    int64_t end = t_now_ms() + conf_ms(5000);

    while (t_now_ms() < end) {
        CHECK(hf_held(lk));
        CHECK_GT(hf_remaining_ms(lk), 0);
        conf_check_busy(key);
        t_sleep_ms(40);
    }
    conf_check_stands(client, lk);
    conf_unlock(lk);
    hf_close(client);
    conf_check_free(key);
}

TEST(extend_lengthens_a_lease)
{
    struct hf_lock_opts brief = conf_opts(700, HF_MANUAL);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, &brief);
    uint64_t fence = hf_fence(lk);

    CHECK_LE(hf_remaining_ms(lk), conf_ms(700));
    CHECK_OK(hf_extend(lk, 60000, &t_err));
    CHECK_GT(hf_remaining_ms(lk), 20000);
    CHECK_LE(hf_remaining_ms(lk), 60000);
    t_sleep_ms(conf_ms(1400));
    CHECK(hf_held(lk));
    conf_check_busy(key);
    CHECK_EQ(hf_fence(lk), fence);
    conf_unlock(lk);
    hf_close(client);
}

TEST(extend_shortens_a_lease)
{
    struct hf_lock_opts slow = conf_opts(60000, HF_MANUAL);
    const char *key = conf_key("k");
    hf_client *client = conf_open(), *other = conf_open();
    hf_lock *lk = conf_try(client, key, &slow);

    CHECK_GT(hf_remaining_ms(lk), 20000);
    CHECK_OK(hf_extend(lk, conf_ms(200), &t_err));
    CHECK_LE(hf_remaining_ms(lk), conf_ms(200));
    conf_unlock(conf_lock(other, key, NULL));
    CHECK(!hf_held(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
    hf_close(other);
}

TEST(extend_by_zero_keeps_the_length_and_counts_it_anew)
{
    struct hf_lock_opts opts = conf_opts(1500, HF_MANUAL);
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), &opts);

    for (int i = 0; i < 6; i++) {
        t_sleep_ms(400);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_LE(hf_remaining_ms(lk), conf_ms(1500));
        CHECK(hf_held(lk));
    }
    conf_unlock(lk);
    hf_close(client);
}

TEST(what_remains_counts_down_and_never_exceeds_the_ttl)
{
    struct hf_lock_opts opts = conf_opts(5000, HF_MANUAL);
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), &opts);
    int64_t first = hf_remaining_ms(lk), last = first;

    CHECK_LE(first, conf_ms(5000));
    CHECK_GT(first, 1000);
    while (first - last < 200) {
        CHECK_LE(hf_remaining_ms(lk), last);
        last = hf_remaining_ms(lk);
        t_sleep_ms(5);
    }
    conf_unlock(lk);
    hf_close(client);
}

TEST(max_hold_ends_a_lock_that_the_keeper_would_keep)
{
    struct hf_lock_opts opts = conf_opts(60000, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open(), *other = conf_open();
    int64_t began = t_now_ms();
    hf_lock *lk, *next;
    int fd;

    opts.max_hold_ms = 400;
    lk = conf_try(client, key, &opts);
    fd = hf_lost_fd(lk);
    CHECK(hf_held(lk) || t_now_ms() - began >= 400);
    CHECK(conf_readable(fd, 20000));
    CHECK_GE(t_now_ms() - began, 380);
    CHECK(!hf_held(lk));
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_MAX_HOLD);
    /* It is given back: nobody waits for the end of a long lease. */
    CHECK_OK(hf_acquire(other, key, 10000, NULL, &next, &t_err));
    conf_unlock(next);
    CHECK_STATUS(hf_extend(lk, 30000, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
    hf_close(other);
}

TEST(the_lost_descriptor_is_one_closed_by_exec_and_by_release)
{
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), NULL);
    int fd = hf_lost_fd(lk);

    CHECK_GE(fd, 0);
    CHECK_EQ(hf_lost_fd(lk), fd);
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    CHECK(!conf_readable(fd, 0));
    conf_unlock(lk);
    CHECK_EQ(fcntl(fd, F_GETFD), -1);
    hf_close(client);
}

TEST(the_lost_descriptor_of_a_lock_lost_before_is_readable)
{
    struct hf_lock_opts brief = conf_opts(400, HF_MANUAL);
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), &brief);

    t_poll_until(!hf_held(lk), 20000);
    CHECK(conf_readable(hf_lost_fd(lk), 20000));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(client);
}

TEST(a_kept_lock_survives_extend_to_a_shorter_and_longer_lease)
{
    static const int64_t ttls[] = {1200, 5000, 900, 2000};
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);

    for (int i = 0; i < 4; i++) {
        CHECK_OK(hf_extend(lk, conf_ms(ttls[i]), &t_err));
        t_sleep_ms(conf_ms(1500));
        CHECK(hf_held(lk));
        conf_check_busy(key);
    }
    conf_unlock(lk);
    hf_close(client);
}
