/* SPDX-License-Identifier: MIT
 *
 * looking.c - inspect, list, check and break.
 *
 * Looking touches nothing.  Breaking takes away the very grant that was looked
 * at, tells its holder why, and does nothing at all when that grant is no
 * longer the one.
 */
#include "conf.h"

#include <stdio.h>

TEST(inspect_tells_who_holds_the_lock)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    struct hf_info info = conf_look(b, key);
    hf_lock *lk;

    CHECK(!info.held);
    CHECK_EQ(info.holders, 0);
    opts.note = "nightly backup";
    lk = conf_try(a, key, &opts);
    info = conf_look(b, key);
    CHECK(info.held);
    CHECK(!info.shared);
    CHECK_EQ(info.fence, hf_fence(lk));
    CHECK_EQ(info.holders, 1);
    CHECK_LE(info.waiters, 0);
    CHECK_STR(info.note, conf_traits & HF_TRAIT_NOTED ? "nightly backup" : "");
    if (info.owner[0])
        CHECK_STR(info.owner, hf_token(lk));
    CHECK(info.left_ms == -1 || (info.left_ms > 0 && info.left_ms <= 30000));
    CHECK(info.since_ms >= -1 && info.since_ms < 60000);
    CHECK_EQ(conf_look(a, key).fence, info.fence);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    CHECK(!conf_look(b, key).held);
    hf_close(a);
    hf_close(b);
}

TEST(inspect_tells_the_owner_id_and_how_long_it_is_held)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk;

    opts.owner = "order-99";
    lk = conf_try(client, key, &opts);
    CHECK_STR(conf_look(client, key).owner, hf_token(lk));
    if (conf_traits & HF_TRAIT_NOTED)
        CHECK_STR(hf_token(lk), "order-99");
    else
        CHECK_EQ(strspn(hf_token(lk), "0123456789abcdef"), 32);
    if (conf_look(client, key).since_ms >= 0)
        t_poll_until(conf_look(client, key).since_ms >= 50, 20000);
    conf_unlock(lk);
    hf_close(client);
}

TEST(a_lock_without_a_note_bears_that_of_its_client)
{
    struct hf_client_opts with = HF_CLIENT_OPTS_INIT;
    const char *key = conf_key("k");
    hf_client *named, *plain;
    hf_lock *lk;

    conf_needs(HF_TRAIT_NOTED);
    plain = conf_open();
    with.note = "the print queue";
    CHECK_OK(hf_open(conf_url(), &with, &named, &t_err));
    lk = conf_try(named, key, NULL);
    CHECK_STR(conf_look(plain, key).note, "the print queue");
    conf_unlock(lk);
    lk = conf_try(plain, key, NULL);
    CHECK(conf_look(named, key).note[0]);
    conf_unlock(lk);
    hf_close(named);
    hf_close(plain);
}

TEST(inspect_counts_those_who_wait_where_it_can)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, NULL);
    struct conf_waiter w;

    conf_waiter_start(&w, b, key, -1, NULL);
    if (conf_look(a, key).waiters >= 0)
        t_poll_until(conf_look(a, key).waiters == 1, 20000);
    conf_unlock(lk);
    conf_waiter_join(&w, HF_OK);
    CHECK_LE(conf_look(a, key).waiters, 0);
    conf_unlock(w.lk);
    hf_close(a);
    hf_close(b);
}

/* Locks and unlocks, under notes of very different length. */
static void *come_and_go(void *arg)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    hf_client *client = conf_open();
    char note[HF_NOTE_MAX + 1];
    atomic_bool *stop = ((void **)arg)[1];

    opts.note = note;
    for (int i = 0; !atomic_load(stop); i++) {
        memset(note, 'a' + i % 26, sizeof(note));
        note[i * 37 % HF_NOTE_MAX] = 0;
        conf_unlock(conf_lock(client, ((void **)arg)[0], &opts));
    }
    hf_close(client);
    return NULL;
}

TEST(looking_while_it_changes_hands_shows_one_or_the_other)
{
    const char *key = conf_key("k");
    atomic_bool stop = false;
    void *arg[] = {(void *)(uintptr_t)key, &stop};
    hf_client *client = conf_open();
    pthread_t threads[2];
    uint64_t last = 0;

    for (int i = 0; i < 2; i++)
        threads[i] = conf_thread(come_and_go, arg);
    for (int i = 0; i < conf_times(3000, 500); i++) {
        struct hf_info info = conf_look(client, key);

        /* One holder's note is one letter, again and again. */
        if (info.held && info.owner[0])
            CHECK_EQ(strspn(info.note, (char[]){info.note[0], 0}),
                     strlen(info.note));
        if (info.fence)
            CHECK_GE(info.fence, last);
        if (info.fence > last)
            last = info.fence;
        if (i % 50 == 0)
            conf_count_listed(client, key);
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    hf_close(client);
    conf_check_free(key);
}

static bool stop_at_first(void *arg, const char *key,
                          const struct hf_info *info)
{
    (void)key, (void)info;
    ++*(int *)arg;
    return false;
}

TEST(list_goes_by_prefix_and_ends_when_told)
{
    static const char *const names[] = {"a", "ab", "abc", "b", "b/c"};
    hf_client *client = conf_open(), *other = conf_open();
    hf_lock *lk[5];
    int n = 0;

    for (int i = 0; i < 5; i++)
        lk[i] = conf_try(client, conf_key(names[i]), NULL);
    CHECK_EQ(conf_count_listed(other, conf_prefix()), 5);
    CHECK_EQ(conf_count_listed(other, conf_key("a")), 3);
    CHECK_EQ(conf_count_listed(other, conf_key("ab")), 2);
    CHECK_EQ(conf_count_listed(other, conf_key("b/")), 1);
    CHECK_EQ(conf_count_listed(other, conf_key("c")), 0);
    CHECK_GE(conf_count_listed(other, NULL), 5);
    CHECK_GE(conf_count_listed(other, ""), 5);
    CHECK_OK(hf_list(other, conf_prefix(), stop_at_first, &n, &t_err));
    CHECK_EQ(n, 1);
    conf_unlock(lk[1]);
    CHECK_EQ(conf_count_listed(other, conf_key("a")), 2);
    for (int i = 0; i < 5; i++)
        if (i != 1)
            conf_unlock(lk[i]);
    CHECK_EQ(conf_count_listed(other, conf_prefix()), 0);
    hf_close(client);
    hf_close(other);
}

struct relock {
    hf_client *client;
    int calls;
};

/* The callback runs in the caller's thread and may use the client itself. */
static bool use_client(void *arg, const char *key, const struct hf_info *info)
{
    struct relock *r = arg;
    hf_lock *none = NULL;

    CHECK(info->held);
    CHECK(conf_look(r->client, key).held);
    CHECK_STATUS(hf_acquire(r->client, key, 0, NULL, &none, &t_err), HF_BUSY);
    r->calls++;
    return true;
}

TEST(a_prefix_longer_than_any_key_lists_nothing)
{
    static char prefix[3 * 4096];
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, conf_key("k"), NULL);

    memset(prefix, 'x', sizeof(prefix) - 1);
    CHECK_EQ(conf_count_listed(client, prefix), 0);
    memcpy(prefix, conf_key("k"), strlen(conf_key("k")));
    CHECK_EQ(conf_count_listed(client, prefix), 0);
    conf_unlock(lk);
    hf_close(client);
}

TEST(the_callback_of_list_may_use_the_client)
{
    struct relock r = {.client = conf_open()};
    hf_lock *one = conf_try(r.client, conf_key("1"), NULL);
    hf_lock *two = conf_try(r.client, conf_key("2"), NULL);

    CHECK_OK(hf_list(r.client, conf_prefix(), use_client, &r, &t_err));
    CHECK_EQ(r.calls, 2);
    conf_unlock(one);
    conf_unlock(two);
    hf_close(r.client);
}

TEST(check_is_ok_while_the_grant_stands_and_lost_once_it_does_not)
{
    const char *key = conf_key("k");
    hf_client *a, *b;
    uint64_t fence;
    hf_lock *lk;

    conf_needs(HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, NULL);
    fence = hf_fence(lk);
    CHECK_OK(hf_check(a, key, fence, &t_err));
    CHECK_OK(hf_check(b, key, fence, &t_err));
    CHECK_STATUS(hf_check(b, key, fence - 1, &t_err), HF_LOST);
    CHECK_STATUS(hf_check(b, key, fence + 1, &t_err), HF_LOST);
    CHECK_STATUS(hf_check(b, conf_key("never"), 1, &t_err), HF_LOST);
    conf_unlock(lk);
    CHECK_STATUS(hf_check(a, key, fence, &t_err), HF_LOST);
    lk = conf_try(b, key, NULL);
    CHECK_STATUS(hf_check(a, key, fence, &t_err), HF_LOST);
    CHECK_OK(hf_check(a, key, hf_fence(lk), &t_err));
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
}

TEST(no_grant_has_fence_0)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, NULL);

    CHECK_EQ(hf_fence(lk) > 0, (conf_traits & HF_TRAIT_FENCED) != 0);
    CHECK_STATUS(hf_check(client, key, 0, &t_err), HF_LOST);
    conf_unlock(lk);
    CHECK_STATUS(hf_check(client, key, 0, &t_err), HF_LOST);
    hf_close(client);
}

TEST(break_takes_the_lock_away_and_tells_its_holder_why)
{
    struct hf_lock_opts opts = conf_opts(2000, 0);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk, *next;
    uint64_t fence;
    int fd;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &opts);
    fence = hf_fence(lk);
    fd = hf_lost_fd(lk);
    CHECK_OK(hf_break(b, key, fence, &t_err));
    CHECK(conf_readable(fd, 20000));
    CHECK(!hf_held(lk));
    CHECK_NE(hf_lost_reason(lk), HF_LOSS_NONE);
    CHECK_NE(hf_lost_reason(lk), HF_LOSS_EXPIRED);
    CHECK_STATUS(hf_check(a, key, fence, &t_err), HF_LOST);
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    next = conf_lock(b, key, NULL);
    if (conf_traits & HF_TRAIT_FENCED)
        CHECK_GT(hf_fence(next), fence);
    CHECK(hf_held(next));
    conf_check_busy(key);
    conf_unlock(next);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

/* The holder has been told but may be at work until it releases. */
TEST(a_broken_lock_stays_taken_until_its_holder_has_released_it)
{
    /* It is told when it renews, where nothing else tells it. */
    struct hf_lock_opts opts = conf_opts(12000, 0);
    struct hf_info info = HF_INFO_INIT;
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk, *next;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &opts);
    CHECK_OK(hf_break(b, key, hf_fence(lk), &t_err));
    CHECK(conf_readable(hf_lost_fd(lk), 40000));
    conf_check_busy(key);
    CHECK_OK(hf_inspect(b, key, &info, &t_err));
    CHECK(info.held);
    CHECK(info.broken);
    CHECK_EQ(info.fence, hf_fence(lk));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    next = conf_lock(b, key, NULL);
    CHECK_OK(hf_inspect(b, key, &info, &t_err));
    CHECK(!info.broken);
    conf_unlock(next);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

/* Whoever has the same owner id joins a grant, and one that is broken is about
 * to end. */
TEST(a_broken_lock_is_not_entered_again)
{
    struct hf_lock_opts opts = conf_opts(12000, 0);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk, *none = NULL;

    conf_needs(HF_TRAIT_BREAK | HF_TRAIT_REENTRANT);
    opts.owner = "job-7";
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &opts);
    conf_unlock(conf_try(b, key, &opts));
    CHECK_OK(hf_break(b, key, hf_fence(lk), &t_err));
    CHECK_STATUS(hf_acquire(b, key, 0, &opts, &none, &t_err), HF_BUSY);
    CHECK(conf_readable(hf_lost_fd(lk), 40000));
    CHECK_STATUS(hf_acquire(a, key, 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(b, key, 0, &opts, &none, &t_err), HF_BUSY);
    CHECK(none == NULL);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    conf_unlock(conf_lock(b, key, &opts));
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(break_by_force_frees_the_lock_although_its_holder_says_nothing)
{
    struct hf_lock_opts opts = conf_opts(60000, HF_MANUAL);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk, *next;
    uint64_t fence;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, &opts);
    fence = hf_fence(lk);
    CHECK_STATUS(hf_break_force(b, key, fence + 1, &t_err), HF_LOST);
    conf_check_busy(key);
    CHECK_OK(hf_break(b, key, fence, &t_err)); /* first asked, then forced */
    CHECK_OK(hf_break_force(b, key, fence, &t_err));
    next = conf_lock(b, key, NULL);
    CHECK_GT(hf_fence(next), fence);
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_extend(next, 0, &t_err));
    conf_unlock(next);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(break_with_another_fence_does_nothing)
{
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk;
    uint64_t fence;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    CHECK_STATUS(hf_break(b, key, 1, &t_err), HF_LOST);
    lk = conf_try(a, key, NULL);
    fence = hf_fence(lk);
    if (fence > 1)
        CHECK_STATUS(hf_break(b, key, fence - 1, &t_err), HF_LOST);
    CHECK_STATUS(hf_break(b, key, fence + 1, &t_err), HF_LOST);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK(hf_held(lk));
    conf_check_busy(key);
    conf_unlock(lk);
    CHECK_STATUS(hf_break(b, key, fence, &t_err), HF_LOST);
    lk = conf_try(a, key, NULL);
    CHECK_STATUS(hf_break(b, key, fence, &t_err), HF_LOST);
    t_sleep_ms(100);
    CHECK(hf_held(lk));
    conf_unlock(lk);
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(break_lets_those_who_wait_go_on)
{
    struct hf_lock_opts opts = conf_opts(2000, 0);
    const char *key = conf_key("k");
    hf_client *a, *b, *c;
    struct conf_waiter w;
    hf_lock *lk;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    lk = conf_try(a, key, &opts);
    conf_waiter_start(&w, b, key, -1, NULL);
    conf_await_waiters(c, key, 1);
    CHECK_OK(hf_break(c, key, hf_fence(lk), &t_err));
    t_poll_until(!hf_held(lk), 20000);
    if (!(conf_traits & HF_TRAIT_LEASED)) { /* Nothing else would end it. */
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        lk = NULL;
    }
    conf_waiter_join(&w, HF_OK);
    CHECK(hf_held(w.lk));
    conf_unlock(w.lk);
    if (lk)
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    hf_close(c);
    conf_check_free(key);
}

TEST(break_works_on_a_lock_of_the_same_client)
{
    struct hf_lock_opts opts = conf_opts(1500, 0);
    const char *key = conf_key("k");
    hf_client *client;
    hf_lock *lk;

    conf_needs(HF_TRAIT_BREAK);
    client = conf_open();
    lk = conf_try(client, key, &opts);
    CHECK_OK(hf_break(client, key, hf_fence(lk), &t_err));
    t_poll_until(!hf_held(lk), 20000);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    conf_unlock(conf_lock(client, key, NULL));
    hf_close(client);
    conf_check_free(key);
}

TEST(what_cannot_be_broken_says_so)
{
    struct hf_lock_opts opts = conf_opts(1500, 0);
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    hf_lock *lk = conf_try(client, key, &opts);

    if (!(conf_traits & HF_TRAIT_BREAK)) {
        CHECK_STATUS(hf_break(client, key, hf_fence(lk), &t_err),
                     HF_UNSUPPORTED);
        CHECK(hf_held(lk));
        conf_unlock(lk);
    } else {
        CHECK_STATUS(hf_break(client, key, 0, &t_err), HF_INVALID);
        CHECK_OK(hf_break(client, key, hf_fence(lk), &t_err));
        t_poll_until(!hf_held(lk), 20000);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    }
    hf_close(client);
    conf_check_free(key);
}
