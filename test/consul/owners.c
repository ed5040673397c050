/* SPDX-License-Identifier: MIT
 *
 * owners.c - what is particular to an owner id on Consul that several clients
 * use: what it looks like to others, the dead, requests that come late or are
 * not answered, and what concerns all who have one grant.
 */
#include "front.h"
#include "peer.h"
#include "program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWNER "order-99"

static struct hf_lock_opts owned(const char *owner, unsigned flags)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = 20000;
    opts.owner = owner;
    opts.flags = flags;
    return opts;
}

static hf_lock *enter(hf_client *client, const char *key)
{
    struct hf_lock_opts opts = owned(OWNER, 0);
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    return lk;
}

/* Neither another owner id nor a reader comes in. */
static void check_taken(hf_client *client, const char *key)
{
    struct hf_lock_opts other = owned("another", 0),
                        reader = owned(NULL, HF_SHARED);
    hf_lock *none = NULL;

    CHECK_STATUS(hf_acquire(client, key, 0, &other, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(client, key, 0, &reader, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_acquire(client, key, 0, NULL, &none, &t_err), HF_BUSY);
    CHECK(none == NULL);
}

/* The key is free, in the format of any other lock; the next fence is greater. */
static void check_over(hf_client *client, const char *key, uint64_t fence)
{
    hf_lock *next = lock(client, key, 20000, 60000);

    CHECK_GT(hf_fence(next), fence);
    CHECK_EQ(count_holders(key), 0);
    CHECK_OK(hf_release(next, &t_err));
}

/* ---- what others see ---------------------------------------------------- */

TEST(whoever_leaves_last_leaves_a_free_lock_as_any_other)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    char plain[64];
    hf_lock *one, *two;
    uint64_t fence;

    CHECK_OK(hf_release(lock(a, "tidy", 20000, 0), &t_err));
    snprintf(plain, sizeof(plain), "%s", flags_of("tidy"));
    for (int i = 0; i < 2; i++) {
        one = enter(a, "tidy");
        CHECK_STR(flags_of("tidy"), plain);
        two = enter(b, "tidy");
        fence = hf_fence(one);
        CHECK_EQ(hf_fence(two), fence);
        CHECK(strcmp(flags_of("tidy"), plain) != 0);
        CHECK_OK(hf_release(i ? one : two, &t_err));
        CHECK_OK(hf_extend(i ? two : one, 0, &t_err));
        check_taken(i ? a : b, "tidy");
        CHECK_OK(hf_release(i ? two : one, &t_err));
        CHECK_STR(flags_of("tidy"), plain);
        CHECK_EQ(count_holders("tidy"), 0);
        check_over(a, "tidy", fence);
    }
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST(consul_lock_leaves_alone_what_an_owner_id_has_joined)
{
    hf_client *a = open_url(url("?layout=cli")),
              *b = open_url(url("?layout=cli"));
    hf_lock *one = enter(a, "cli/owner"), *two = enter(b, "cli/owner");

    CHECK_OK(hf_release(one, &t_err));
    CHECK(sh("$HF_TEST_CONSUL lock -timeout=2s cli/owner true "
             ">/dev/null 2>&1") != 0);
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_EQ(sh("$HF_TEST_CONSUL lock -timeout=20s cli/owner true "
                ">/dev/null 2>&1"),
             0);
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(consul_lock_is_kept_out_when_the_first_has_left, 120)
{
    hf_client *a = open_url(url("?layout=cli"));
    hf_client *b = open_url(url("?layout=cli"));
    hf_lock *one, *two;

    program_looks("first");
    one = enter(a, "first");
    two = enter(b, "first");
    CHECK_OK(hf_release(one, &t_err));
    program_is_kept_out("first/.lock");
    CHECK(hf_held(two));
    CHECK_OK(hf_release(two, &t_err));
    program_ends();
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* Until the next renewal of one who joined, nothing but its Flags keeps others off
 * the key of a first who died: reenter.c, LIMITS. */
TEST_TIMEOUT(who_joined_is_told_when_the_key_of_the_dead_first_is_taken, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *one = enter(a, "gap"), *two = enter(b, "gap");

    end_session_of("gap");
    steal("gap", "true");
    check_lost(two, HF_LOSS_STOLEN);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    hf_release(two, NULL);
    end_session_of("gap");
    hf_close(a);
    hf_close(b);
}

/* What a release wrote that knows nothing of joining: it would unlock the key
 * as if it were alone. */
TEST(a_grant_that_does_not_say_that_it_may_be_joined_is_not)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    struct hf_lock_opts opts = owned(OWNER, 0);
    hf_lock *one = enter(a, "old"), *none = NULL;

    CHECK_EQ(sh("v=$(curl -s \"$C/v1/kv/old?raw\" | grep -v joins); "
                "f=$(curl -s $C/v1/kv/old | tr ',' '\n' | "
                "sed -n 's/\"Flags\"://p'); "
                "printf '%%s\nfence %llu\n' \"$v\" | curl -s -X PUT "
                "--data-binary @- \"$C/v1/kv/old?flags=$f\" >/dev/null",
                (unsigned long long)hf_fence(one)),
             0);
    CHECK_STATUS(hf_acquire(b, "old", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_extend(one, 0, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

static bool count_one(void *arg, const struct hf_info *holder)
{
    CHECK_STR(holder->owner, OWNER);
    CHECK(!holder->shared);
    ++*(int *)arg;
    return true;
}

TEST(all_who_have_it_are_shown)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *one = enter(a, "shown"), *two = enter(b, "shown");
    struct hf_info info = HF_INFO_INIT;
    uint64_t fence = hf_fence(one);

    for (int left = 2; left; left--) {
        int n = 0;

        CHECK_OK(hf_inspect(a, "shown", &info, &t_err));
        CHECK(info.held && !info.shared);
        CHECK_EQ(info.holders, left);
        CHECK_EQ(info.fence, fence);
        CHECK_OK(hf_holders(a, "shown", count_one, &n, &t_err));
        CHECK_EQ(n, left);
        CHECK_OK(hf_release(left == 2 ? one : two, &t_err));
    }
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* ---- the dead ------------------------------------------------------------ */

static void enter_and_stay(struct t_peer *up, void *arg)
{
    struct hf_lock_opts opts = owned(OWNER, 0);
    hf_client *client = open_url(url(""));
    hf_lock *lk = NULL;

    t_hear(up);
    opts.ttl_ms = 1000;
    CHECK_OK(hf_acquire(client, arg, 0, &opts, &lk, &t_err));
    t_tell(up, (int64_t)hf_fence(lk));
    t_hear(up);
}

TEST_TIMEOUT(the_first_is_killed_and_the_others_hold_on, 120)
{
    char key[] = "first";
    struct t_peer peer = t_fork(enter_and_stay, key);
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *one, *two;
    uint64_t fence;

    t_tell(&peer, 0);
    fence = (uint64_t)t_hear(&peer);
    one = enter(a, key);
    CHECK_EQ(hf_fence(one), fence);
    t_kill(&peer);
    t_poll_until(sh("curl -s $C/v1/kv/first | grep -q Session") != 0, 60000);
    check_taken(b, key);
    CHECK_OK(hf_extend(one, 0, &t_err));
    two = enter(b, key); /* It joins one who has joined. */
    CHECK_EQ(hf_fence(two), fence);
    CHECK_OK(hf_release(one, &t_err));
    check_taken(a, key);
    CHECK_OK(hf_release(two, &t_err));
    check_over(a, key, fence);
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST_TIMEOUT(one_who_joined_is_killed_and_its_share_ends, 120)
{
    char key[] = "joiner";
    struct t_peer peer = t_fork(enter_and_stay, key);
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *one = enter(a, key);
    uint64_t fence = hf_fence(one);

    t_tell(&peer, 0);
    CHECK_EQ((uint64_t)t_hear(&peer), fence);
    t_kill(&peer);
    CHECK_OK(hf_extend(one, 0, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    check_over(b, key, fence);
    hf_close(a);
    hf_close(b);
    t_poll_until(count_sessions() == 0, 60000);
    check_clean();
}

/* The service closes what a session held that it ended, for so long. */
TEST_TIMEOUT(a_lock_delay_holds_for_one_who_joined_too, 120)
{
    hf_client *a = open_url(url("?lock_delay=15s")),
              *b = open_url(url("?lock_delay=15s"));
    struct hf_lock_opts reads = owned(NULL, HF_SHARED);
    hf_lock *one = enter(a, "delay"), *two = enter(b, "delay"), *lk = NULL;

    CHECK_OK(hf_release(one, &t_err));
    end_session_of("delay/.holdfast-holders/");
    check_lost(two, HF_LOSS_SESSION);
    CHECK_STATUS(hf_acquire(a, "delay", 0, &reads, &lk, &t_err), HF_BUSY);
    CHECK_OK(hf_acquire(a, "delay", 60000, &reads, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* ---- in line ------------------------------------------------------------- */

static int count_line(const char *key)
{
    return atoi(out("curl -s $C/v1/kv/%s/.holdfast/?keys | tr ',' '\n' | "
                    "grep -c /.holdfast/",
                    key));
}

/* Both stand in line; one gets the lock, and the other joins it.  Their clients
 * live on. */
TEST_TIMEOUT(who_joins_from_the_line_leaves_no_place_behind, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url("")),
              *c = open_url(url(""));
    hf_lock *first = lock(a, "line", 20000, 0), *next;
    struct peer_waiter one, two;

    waiter_start_as(&one, b, "line", 0, OWNER);
    waiter_start_as(&two, c, "line", 0, OWNER);
    t_poll_until(count_line("line") == 2, 20000);
    CHECK_OK(hf_release(first, &t_err));
    t_poll_until(atomic_load(&one.done) && atomic_load(&two.done), 20000);
    CHECK_EQ(hf_fence(one.lk), hf_fence(two.lk));
    CHECK_EQ(count_line("line"), 0);
    waiter_release(&one);
    waiter_release(&two);
    next = lock(a, "line", 20000, 0);
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
    hf_close(c);
    check_clean();
}

/* ---- other modes --------------------------------------------------------- */

TEST_TIMEOUT(a_reader_waits_until_the_last_has_left, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url("")),
              *c = open_url(url(""));
    hf_lock *one = enter(a, "mixed"), *two = enter(b, "mixed"), *none = NULL;
    struct hf_lock_opts reads = owned(OWNER, HF_SHARED);
    struct peer_waiter w;

    waiter_start(&w, c, "mixed", HF_SHARED);
    CHECK_STATUS(hf_acquire(c, "mixed", 0, &reads, &none, &t_err), HF_INVALID);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_STATUS(hf_acquire(a, "mixed", 0, &reads, &none, &t_err), HF_INVALID);
    t_sleep_ms(100);
    CHECK(!atomic_load(&w.done));
    CHECK_OK(hf_release(two, &t_err));
    waiter_release(&w);
    hf_close(a);
    hf_close(b);
    hf_close(c);
    check_clean();
}

TEST_TIMEOUT(an_owner_id_that_reads_passes_by_a_writer_that_waits, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url("")),
              *c = open_url(url(""));
    struct hf_lock_opts reads = owned(OWNER, HF_SHARED);
    hf_lock *one = NULL, *two = NULL, *none = NULL;
    struct peer_waiter w;

    CHECK_OK(hf_acquire(a, "reads", 0, &reads, &one, &t_err));
    waiter_start(&w, c, "reads", 0);
    t_poll_until(atoi(out("curl -s $C/v1/kv/reads/.holdfast/?keys | "
                          "grep -c reads")) == 1,
                 20000);
    CHECK_OK(hf_acquire(b, "reads", 0, &reads, &two, &t_err));
    CHECK_EQ(hf_fence(two), hf_fence(one));
    reads.owner = "another";
    CHECK_STATUS(hf_acquire(b, "reads", 0, &reads, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(one, &t_err));
    CHECK(!atomic_load(&w.done));
    CHECK_OK(hf_release(two, &t_err));
    waiter_release(&w);
    hf_close(a);
    hf_close(b);
    hf_close(c);
    check_clean();
}

TEST(an_owner_id_shares_its_permit)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    struct hf_lock_opts mine = owned(OWNER, 0), other = owned("another", 0);
    hf_lock *lk[3], *none = NULL;

    mine.permits = other.permits = 2;
    CHECK_OK(hf_acquire(a, "permit", 0, &other, &lk[0], &t_err));
    CHECK_OK(hf_acquire(a, "permit", 0, &mine, &lk[1], &t_err));
    CHECK_OK(hf_acquire(b, "permit", 0, &mine, &lk[2], &t_err));
    CHECK_EQ(hf_slot(lk[2]), hf_slot(lk[1]));
    CHECK_EQ(hf_fence(lk[2]), hf_fence(lk[1]));
    CHECK_OK(hf_release(lk[1], &t_err));
    mine.owner = "a third";
    CHECK_STATUS(hf_acquire(a, "permit", 0, &mine, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(lk[2], &t_err));
    CHECK_OK(hf_acquire(a, "permit", 0, &mine, &lk[1], &t_err));
    CHECK_OK(hf_release(lk[0], &t_err));
    CHECK_OK(hf_release(lk[1], &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* Not the one that is free. */
TEST(an_owner_id_has_one_permit_also_if_another_is_free)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    struct hf_lock_opts mine = owned(OWNER, 0), other = owned("another", 0);
    hf_lock *one, *two, *free;

    mine.permits = other.permits = 2;
    CHECK_OK(hf_acquire(a, "one permit", 0, &mine, &one, &t_err));
    for (int i = 0; i < 2; i++) { /* Then the client knows the key. */
        CHECK_OK(hf_acquire(b, "one permit", 0, &mine, &two, &t_err));
        CHECK_EQ(hf_slot(two), hf_slot(one));
        CHECK_EQ(hf_fence(two), hf_fence(one));
        CHECK_OK(hf_acquire(b, "one permit", 0, &other, &free, &t_err));
        CHECK(hf_slot(free) != hf_slot(one));
        CHECK_OK(hf_release(two, &t_err));
        CHECK_OK(hf_release(free, &t_err));
    }
    CHECK_OK(hf_acquire(b, "one permit", 0, &mine, &two, &t_err));
    CHECK_OK(hf_break(a, "one permit", hf_fence(one), &t_err));
    CHECK_STATUS(hf_extend(two, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    check_clean();
}

struct in_line {
    hf_client *client;
    int32_t permits;
    hf_lock *lk;
};

static void *wait_in_line(void *arg)
{
    struct hf_lock_opts opts = owned(OWNER, 0);
    struct in_line *who = arg;

    opts.permits = who->permits;
    CHECK_OK(hf_acquire(who->client, "line", 60000, &opts, &who->lk, &t_err));
    return NULL;
}

/* The second of them is the first in line when it joins: it stays there for
 * nobody. */
static void join_from_line(int32_t permits)
{
    hf_client *a = open_url(url(""));
    struct hf_lock_opts other = owned("another", 0);
    struct in_line line[2];
    pthread_t threads[2];
    hf_lock *lk;

    other.permits = permits;
    CHECK_OK(hf_acquire(a, "line", 0, &other, &lk, &t_err));
    for (int i = 0; i < 2; i++) {
        line[i] = (struct in_line){open_url(url("")), permits, NULL};
        CHECK_EQ(pthread_create(&threads[i], NULL, wait_in_line, &line[i]), 0);
    }
    t_sleep_ms(500);
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(hf_fence(line[0].lk), hf_fence(line[1].lk));
    for (int i = 0; i < 2; i++)
        CHECK_OK(hf_release(line[i].lk, &t_err));
    CHECK_OK(hf_acquire(a, "line", 5000, &other, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < 2; i++)
        hf_close(line[i].client);
    hf_close(a);
    check_clean();
}

TEST_TIMEOUT(who_joins_from_the_front_of_the_line_leaves_it, 120)
{
    join_from_line(0);
    join_from_line(1);
}

/* What has the key locked lasts as long as who joined, though the first dies. */
TEST_TIMEOUT(who_joins_a_permit_has_the_key_locked_for_its_own_ttl, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    struct hf_lock_opts opts = owned(OWNER, 0);
    hf_lock *one = NULL, *two = NULL;

    opts.permits = 1;
    opts.ttl_ms = 1000;
    CHECK_OK(hf_acquire(a, "long", 0, &opts, &one, &t_err));
    CHECK_EQ(atoi(out("curl -s \"$C/v1/kv/long?raw\" | "
                      "sed -n 's/common //p'")),
             1000);
    opts.ttl_ms = 20000;
    CHECK_OK(hf_acquire(b, "long", 0, &opts, &two, &t_err));
    CHECK_EQ(hf_fence(two), hf_fence(one));
    CHECK_EQ(atoi(out("curl -s \"$C/v1/kv/long?raw\" | "
                      "sed -n 's/common //p'")),
             20000);
    CHECK_OK(hf_release(one, &t_err));
    hf_close(a);
    t_sleep_ms(2 * 1000 + 500); /* Until the session of the first has lapsed. */
    CHECK_EQ(sh("curl -s $C/v1/kv/long | grep -q Session"), 0);
    CHECK_OK(hf_release(two, &t_err));
    hf_close(b);
    t_poll_until(count_common() == 0, 30000);
    check_clean();
}

TEST(only_the_last_who_has_it_can_downgrade_it)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    struct hf_lock_opts reads = owned(NULL, HF_SHARED);
    hf_lock *one, *two, *reader = NULL;

    for (int i = 0; i < 2; i++) {
        one = enter(a, "down");
        two = enter(b, "down");
        CHECK_STATUS(hf_downgrade(one, &t_err), HF_INVALID);
        CHECK_STATUS(hf_downgrade(two, &t_err), HF_INVALID);
        CHECK_OK(hf_release(i ? one : two, &t_err));
        CHECK_OK(hf_downgrade(i ? two : one, &t_err));
        CHECK_OK(hf_acquire(b, "down", 0, &reads, &reader, &t_err));
        CHECK_OK(hf_extend(i ? two : one, 0, &t_err));
        CHECK_OK(hf_release(i ? two : one, &t_err));
        CHECK_OK(hf_release(reader, &t_err));
        CHECK_EQ(count_holders("down"), 0);
    }
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* ---- what concerns all ---------------------------------------------------- */

TEST_TIMEOUT(a_grant_that_is_broken_is_so_for_all_who_have_it, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url("")),
              *c = open_url(url("")), *d = open_url(url(""));
    struct hf_lock_opts opts = owned(OWNER, 0);
    hf_lock *one, *two, *three, *none = NULL;
    uint64_t fence;

    for (int i = 0; i < 2; i++) {
        one = enter(a, "broken");
        two = enter(b, "broken");
        three = enter(c, "broken");
        fence = hf_fence(one);
        if (i)
            CHECK_OK(hf_release(one, &t_err));
        CHECK_OK(hf_break(c, "broken", fence, &t_err));
        CHECK_STATUS(hf_acquire(d, "broken", 0, &opts, &none, &t_err), HF_BUSY);
        check_lost(two, HF_LOSS_BROKEN);
        check_lost(three, HF_LOSS_BROKEN);
        if (!i)
            check_lost(one, HF_LOSS_BROKEN);
        check_taken(c, "broken");
        if (!i)
            CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
        CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
        CHECK_STATUS(hf_release(three, &t_err), HF_LOST);
        check_over(a, "broken", fence);
        CHECK_STATUS(hf_break(c, "broken", fence, &t_err), HF_LOST);
    }
    hf_close(a);
    hf_close(b);
    hf_close(c);
    hf_close(d);
    check_clean();
}

TEST_TIMEOUT(a_grant_that_is_freed_by_force_is_so_for_all_who_have_it, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *one = enter(a, "forced"), *two = enter(b, "forced"), *next;
    uint64_t fence = hf_fence(one);

    CHECK_OK(hf_break_force(b, "forced", fence, &t_err));
    next = lock(b, "forced", 20000, 0);
    CHECK_GT(hf_fence(next), fence);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    CHECK_OK(hf_extend(next, 0, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST_TIMEOUT(a_share_is_passed_on_by_its_handle, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(url("")),
              *c = open_url(url(""));
    struct hf_lock_opts opts = owned(OWNER, 0);
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *one, *two, *again = NULL;
    uint64_t fence;

    for (int i = 0; i < 2; i++) { /* The first detaches it; one who joined. */
        one = enter(a, "handle");
        two = enter(b, "handle");
        fence = hf_fence(one);
        CHECK_OK(hf_detach(i ? two : one, &handle, &t_err));
        CHECK_OK(hf_attach(c, "handle", &handle, &opts, &again, &t_err));
        CHECK_EQ(hf_fence(again), fence);
        CHECK_OK(hf_extend(again, 9000, &t_err)); /* in another session */
        CHECK_OK(hf_release(i ? one : two, &t_err));
        check_taken(a, "handle");
        CHECK_OK(hf_release(again, &t_err));
        check_over(a, "handle", fence);
    }
    hf_close(a);
    hf_close(b);
    hf_close(c);
    t_poll_until(count_sessions() == 0, 60000);
    check_clean();
}

TEST(another_ttl_of_the_first_leaves_the_others_in)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *one = enter(a, "ttl"), *two = enter(b, "ttl");
    uint64_t fence = hf_fence(one);

    CHECK_OK(hf_extend(one, 9000, &t_err)); /* in another session */
    CHECK_OK(hf_extend(two, 9000, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    check_taken(a, "ttl");
    CHECK_OK(hf_release(two, &t_err));
    check_over(a, "ttl", fence);
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* ---- answers that do not come -------------------------------------------- */

TEST_TIMEOUT(a_join_whose_answer_is_lost_is_one, 120)
{
    hf_client *a = open_url(url("")), *b = open_url(front_url());
    struct hf_lock_opts opts = owned(OWNER, 0);
    hf_lock *one, *two = NULL;

    for (int i = 0; i < 2; i++) {
        one = enter(a, "lost");
        front_catch("holdfast-holders", 1, FRONT_LOSE);
        CHECK_OK(hf_acquire(b, "lost", 30000, &opts, &two, &t_err));
        CHECK_EQ(hf_fence(two), hf_fence(one));
        CHECK_EQ(count_holders("lost"), 1);
        CHECK_OK(hf_release(i ? one : two, &t_err));
        check_taken(a, "lost");
        CHECK_OK(hf_release(i ? two : one, &t_err));
        CHECK_EQ(count_holders("lost"), 0);
    }
    hf_close(a);
    hf_close(b);
    front_end();
    check_clean();
}

/* Another lock keeps the session alive that the late write names. */
TEST_TIMEOUT(a_join_that_comes_after_it_was_given_up_is_none, 120)
{
    hf_client *a = open_url(url("")), *b;
    struct hf_lock_opts opts = owned(OWNER, 0);
    hf_lock *one = enter(a, "late"), *kept, *none = NULL;
    unsigned long long index = index_of("late");
    uint64_t fence = hf_fence(one);
    char address[128];

    snprintf(address, sizeof(address), "%s?timeout=1s", front_url());
    b = open_url(address);
    kept = lock(b, "late/kept", 20000, 0);
    front_catch("\"Verb\":\"lock\"", 1, FRONT_HOLD);
    CHECK(hf_acquire(b, "late", 0, &opts, &none, &t_err) != HF_OK);
    CHECK(none == NULL);
    CHECK_EQ(front_held(), 1);
    t_poll_until(index_of("late") != index, 20000);
    front_let_go();
    CHECK_EQ(count_holders("late"), 0);
    CHECK_OK(hf_extend(one, 0, &t_err)); /* Nothing was taken from the first. */
    CHECK_OK(hf_release(one, &t_err));
    check_over(a, "late", fence);
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    front_end();
    check_clean();
}

TEST_TIMEOUT(a_release_whose_answer_is_lost_leaves_the_others_in, 120)
{
    hf_client *a = open_url(front_url()), *b = open_url(url(""));
    hf_lock *one, *two;
    uint64_t fence;
    hf_status st;

    for (int i = 0; i < 2; i++) {
        one = i ? enter(b, "leaves") : enter(a, "leaves");
        two = i ? enter(a, "leaves") : enter(b, "leaves");
        fence = hf_fence(one);
        CHECK_OK(hf_extend(one, 0, &t_err)); /* It learns of the other. */
        front_catch("\"Verb\":\"unlock\"", 1, FRONT_LOSE);
        st = hf_release(i ? two : one, &t_err);
        CHECK(st == HF_OK || st == HF_UNCERTAIN);
        check_taken(b, "leaves");
        CHECK_OK(hf_extend(i ? one : two, 0, &t_err));
        CHECK_OK(hf_release(i ? one : two, &t_err));
        check_over(b, "leaves", fence);
    }
    hf_close(a);
    hf_close(b);
    front_end();
    check_clean();
}

T_MAIN
