/* SPDX-License-Identifier: MIT
 *
 * owners.c - an owner id that holds a key in several clients and processes:
 * backend/sql/reenter.c.  What inside one client is the core's is in
 * test/conformance/reentrancy.c.
 *
 * Run by test/servers/postgres or mysql, and without a server for SQLite, with
 * strategies lease and version; each with a queue and without.
 */
#include "scene.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>

static const char *const queues[] = {"", "&queue=barge"};

static struct hf_lock_opts owned(int64_t ttl_ms, const char *owner)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    opts.owner = owner;
    return opts;
}

static bool is_held(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.held;
}

static void check_lost(hf_lock *one, hf_lock *two)
{
    CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_extend(two, 0, &t_err), HF_LOST);
    hf_release(one, NULL);
    hf_release(two, NULL);
}

static void three_join(const char *more, int first)
{
    struct hf_lock_opts opts = owned(30000, "job"), other = owned(30000, "two");
    const char *key = scene_key("three");
    hf_client *clients[3];
    hf_lock *lk[3], *next = NULL;

    for (int i = 0; i < 3; i++) {
        clients[i] = scene_open(0, more);
        CHECK_OK(hf_acquire(clients[i], key, 0, &opts, &lk[i], &t_err));
        CHECK_EQ(hf_fence(lk[i]), hf_fence(lk[0]));
    }
    for (int i = 0; i < 3; i++)
        CHECK_OK(hf_extend(lk[i], 0, &t_err));
    for (int i = 0; i < 3; i++) {
        CHECK_STATUS(hf_acquire(clients[0], key, 0, &other, &next, &t_err),
                     HF_BUSY);
        CHECK_OK(
            hf_check(clients[1], key, hf_fence(lk[(first + i) % 3]), &t_err));
        CHECK_OK(hf_release(lk[(first + i) % 3], &t_err));
    }
    CHECK(!is_held(clients[0], key));
    CHECK_OK(hf_acquire(clients[0], key, 0, &other, &next, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    for (int i = 0; i < 3; i++)
        hf_close(clients[i]);
}

TEST(the_key_is_free_when_the_last_has_left)
{
    for (int i = 0; i < 2; i++)
        for (int first = 0; first < 3; first++)
            three_join(queues[i], first);
}

TEST(what_comes_after_has_a_greater_fence)
{
    struct hf_lock_opts opts = owned(30000, "job");
    const char *key = scene_key("fence");

    for (int i = 0; i < 2; i++) {
        hf_client *a = scene_open(0, queues[i]), *b = scene_open(0, queues[i]);
        uint64_t last = 0;
        hf_lock *one, *two;

        for (int n = 0; n < 5; n++) {
            CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
            CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
            CHECK_GT(hf_fence(one), last);
            last = hf_fence(two);
            CHECK_EQ(hf_fence(one), last);
            CHECK_OK(hf_release(one, &t_err));
            CHECK_OK(hf_release(two, &t_err));
        }
        hf_close(a);
        hf_close(b);
    }
}

/* ---- death --------------------------------------------------------------- */

struct scene_child {
    const char *more;
    char key[96];
    int64_t ttl_ms;
};

static void hold_until_killed(struct t_peer *up, void *arg)
{
    struct scene_child *child = arg;
    struct hf_lock_opts opts = owned(child->ttl_ms, "job");
    hf_client *client = scene_open(0, child->more);
    hf_lock *lk;

    t_hear(up);
    CHECK_OK(hf_acquire(client, child->key, 0, &opts, &lk, &t_err));
    t_tell(up, 1);
    t_hear(up);
}

/* One of the two is killed; the other goes on, and when it has left the key is
 * free once the lease of the dead one is over. */
static void one_dies(const char *more, bool first)
{
    struct scene_child child = {.more = more, .ttl_ms = 3000};
    struct hf_lock_opts opts = owned(3000, "job"), other = owned(30000, NULL);
    struct t_peer peer;
    hf_client *a, *b;
    hf_lock *lk, *next = NULL;

    snprintf(child.key, sizeof(child.key), "%s", scene_key("dies"));
    peer = t_fork(hold_until_killed, &child);
    a = scene_open(0, more);
    b = scene_open(0, more);
    if (!first)
        CHECK_OK(hf_acquire(a, child.key, 0, &opts, &lk, &t_err));
    t_tell(&peer, 1);
    t_hear(&peer);
    if (first)
        CHECK_OK(hf_acquire(a, child.key, 0, &opts, &lk, &t_err));
    t_kill(&peer);
    for (int64_t end = t_now_ms() + 4500; t_now_ms() < end; t_sleep_ms(100)) {
        CHECK(hf_held(lk));
        CHECK_STATUS(hf_acquire(b, child.key, 0, &other, &next, &t_err),
                     HF_BUSY);
    }
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(b, child.key, 60000, &other, &next, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST_TIMEOUT(one_who_dies_neither_frees_the_key_nor_keeps_it, 240)
{
    for (int i = 0; i < 2; i++)
        for (int first = 0; first < 2; first++)
            one_dies(queues[i], first);
}

/* Each of those who joined stands still by itself: one whose short lease is over
 * takes nothing from another, whose lease is long. */
static void short_lease_dies(const char *more)
{
    struct hf_lock_opts brief = owned(300, "job"), opts = owned(30000, "job");
    struct hf_lock_opts read = owned(30000, NULL);
    hf_client *clients[3];
    hf_lock *dead, *lk, *none = NULL;

    brief.flags = HF_MANUAL; /* Nobody renews it. */
    read.flags = HF_SHARED;
    for (int i = 0; i < 3; i++)
        clients[i] = scene_open(0, more);
    for (int i = 0; i < 6; i++) { /* The tokens, by chance, in either order. */
        char name[32];
        const char *key;

        snprintf(name, sizeof(name), "brief %d%s", i, more);
        key = scene_key(name);
        CHECK_OK(hf_acquire(clients[0], key, 0, &brief, &dead, &t_err));
        CHECK_OK(hf_acquire(clients[1], key, 0, &opts, &lk, &t_err));
        CHECK_STATUS(hf_acquire(clients[2], key, 1200, &read, &none, &t_err),
                     HF_TIMEOUT);
        CHECK_OK(hf_release(lk, &t_err));
        hf_release(dead, NULL);
    }
    for (int i = 0; i < 3; i++)
        hf_close(clients[i]);
}

TEST_TIMEOUT(a_short_lease_that_is_over_ends_no_longer_one, 240)
{
    for (int i = 0; i < 2; i++)
        short_lease_dies(queues[i]);
}

/* ---- other modes --------------------------------------------------------- */

static void other_mode(const char *more, int64_t wait_ms)
{
    struct hf_lock_opts write = owned(30000, "job"), read = write;
    hf_client *a = scene_open(0, more), *b = scene_open(0, more);
    const char *key = scene_key("mode");
    hf_lock *lk, *join, *none = NULL;

    read.flags = HF_SHARED;
    CHECK_OK(hf_acquire(a, key, 0, &write, &lk, &t_err));
    CHECK_STATUS(hf_acquire(b, key, wait_ms, &read, &none, &t_err), HF_INVALID);
    CHECK_OK(hf_acquire(b, key, 0, &write, &join, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(hf_acquire(a, key, wait_ms, &read, &none, &t_err), HF_INVALID);
    CHECK_OK(hf_release(join, &t_err));
    CHECK_OK(hf_acquire(a, key, 0, &read, &lk, &t_err));
    CHECK_OK(hf_acquire(b, key, 20000, &read, &join, &t_err));
    CHECK_OK(hf_release(join, &t_err));
    CHECK_STATUS(hf_acquire(b, key, wait_ms, &write, &none, &t_err),
                 HF_INVALID);
    CHECK(strstr(t_err.text, "release the shared lock first"));
    /* Who was refused keeps nobody out. */
    CHECK_OK(hf_acquire(b, key, 20000, &read, &join, &t_err));
    CHECK_OK(hf_release(join, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(b, key, 20000, &write, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
}

TEST(the_other_mode_is_refused_across_clients)
{
    for (int i = 0; i < 2; i++) {
        other_mode(queues[i], 0);
        other_mode(queues[i], -1);
    }
}

TEST(a_lock_that_was_joined_is_not_downgraded)
{
    struct hf_lock_opts opts = owned(30000, "job");
    const char *key = scene_key("down");

    for (int i = 0; i < 2; i++) {
        hf_client *a = scene_open(0, queues[i]), *b = scene_open(0, queues[i]);
        struct hf_info info = HF_INFO_INIT;
        hf_lock *one, *two;

        CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
        CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
        CHECK_STATUS(hf_downgrade(one, &t_err), HF_INVALID);
        CHECK(strstr(t_err.text, "more than once"));
        CHECK_STATUS(hf_downgrade(two, &t_err), HF_INVALID);
        CHECK_OK(hf_release(one, &t_err));
        CHECK_OK(hf_downgrade(two, &t_err));
        CHECK_OK(hf_inspect(a, key, &info, &t_err));
        CHECK(info.held && info.shared);
        CHECK_OK(hf_extend(two, 0, &t_err));
        CHECK_OK(hf_release(two, &t_err));
        CHECK(!is_held(a, key));
        hf_close(a);
        hf_close(b);
    }
}

TEST(one_owner_id_has_one_permit_in_all_its_clients)
{
    struct hf_lock_opts opts = owned(30000, "job"), other = owned(30000, NULL);
    const char *key = scene_key("permit");

    opts.permits = other.permits = 2;
    for (int i = 0; i < 2; i++) {
        hf_client *a = scene_open(0, queues[i]), *b = scene_open(0, queues[i]);
        hf_lock *one, *two, *third, *none = NULL;

        CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
        CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
        CHECK_EQ(hf_slot(one), hf_slot(two));
        CHECK_EQ(hf_fence(one), hf_fence(two));
        CHECK_OK(hf_acquire(b, key, 0, &other, &third, &t_err));
        CHECK(hf_slot(third) != hf_slot(one));
        CHECK_STATUS(hf_acquire(a, key, 0, &other, &none, &t_err), HF_BUSY);
        CHECK_OK(hf_release(one, &t_err));
        CHECK_STATUS(hf_acquire(a, key, 0, &other, &none, &t_err), HF_BUSY);
        CHECK_OK(hf_extend(two, 0, &t_err));
        CHECK_OK(hf_release(two, &t_err));
        CHECK_OK(hf_acquire(a, key, 0, &other, &one, &t_err));
        CHECK(hf_slot(third) != hf_slot(one));
        CHECK_OK(hf_release(one, &t_err));
        CHECK_OK(hf_release(third, &t_err));
        CHECK(!is_held(a, key));
        hf_close(a);
        hf_close(b);
    }
}

/* A client may have had a greater fence, of another key, before it joins. */
TEST(who_joins_a_permit_has_its_fence_whatever_it_had_before)
{
    struct hf_lock_opts opts = owned(30000, "job"), other = owned(30000, NULL);

    opts.permits = 2;
    for (int i = 0; i < 2; i++) {
        hf_client *a = scene_open(0, queues[i]), *b = scene_open(0, queues[i]);
        const char *key = scene_key(i ? "later barge" : "later");
        hf_lock *one, *two, *later;

        CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
        CHECK_OK(hf_acquire(b, "later", 20000, &other, &later, &t_err));
        CHECK_OK(hf_release(later, &t_err));
        CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
        CHECK_EQ(hf_fence(one), hf_fence(two));
        CHECK_OK(hf_break(b, key, hf_fence(one), &t_err));
        check_lost(one, two);
        hf_close(a);
        hf_close(b);
    }
}

/* ---- what else is done with a grant --------------------------------------- */

TEST(a_handle_of_a_joined_grant_is_taken_up_once)
{
    struct hf_lock_opts opts = owned(30000, "job");
    const char *key = scene_key("handle");

    for (int i = 0; i < 2; i++) {
        hf_client *a = scene_open(0, queues[i]), *b = scene_open(0, queues[i]);
        struct hf_handle handle = {.size = sizeof(handle)};
        hf_lock *one, *two, *taken = NULL, *none = NULL;

        CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
        CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
        CHECK_OK(hf_detach(one, &handle, &t_err));
        CHECK_OK(hf_attach(b, key, &handle, NULL, &taken, &t_err));
        CHECK_STATUS(hf_attach(a, key, &handle, NULL, &none, &t_err), HF_LOST);
        CHECK_OK(hf_release(two, &t_err));
        CHECK(is_held(a, key));
        CHECK_OK(hf_extend(taken, 0, &t_err));
        CHECK_OK(hf_release(taken, &t_err));
        CHECK(!is_held(a, key));
        hf_close(a);
        hf_close(b);
    }
}

TEST(to_break_a_joined_grant_is_to_break_it_for_all)
{
    struct hf_lock_opts opts = owned(30000, "job");
    const char *key = scene_key("break");

    for (int i = 0; i < 2; i++) {
        hf_client *a = scene_open(0, queues[i]), *b = scene_open(0, queues[i]);
        hf_lock *one, *two, *none = NULL;

        CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
        CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
        CHECK_OK(hf_break(a, key, hf_fence(one), &t_err));
        CHECK_STATUS(hf_extend(one, 0, &t_err), HF_LOST);
        CHECK_STATUS(hf_extend(two, 0, &t_err), HF_LOST);
        CHECK_EQ(hf_lost_reason(two), HF_LOSS_BROKEN);
        CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
        CHECK_STATUS(hf_acquire(a, key, 0, &opts, &none, &t_err), HF_BUSY);
        CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
        CHECK_OK(hf_acquire(a, key, 20000, &opts, &one, &t_err));
        CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
        CHECK_OK(hf_break_force(a, key, hf_fence(one), &t_err));
        CHECK(!is_held(a, key));
        check_lost(one, two);
        hf_close(a);
        hf_close(b);
    }
}

TEST(a_joined_grant_that_is_kept_takes_in_nobody)
{
    struct hf_lock_opts opts = owned(30000, "job");

    for (int i = 0; i < 2; i++) {
        hf_client *a = scene_open(0, queues[i]), *b = scene_open(0, queues[i]);
        const char *key = scene_key(i ? "kept barge" : "kept");
        struct hf_info info = HF_INFO_INIT;
        hf_lock *one, *two, *none = NULL;

        opts.min_hold_ms = 0;
        CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
        opts.min_hold_ms = 600000;
        CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
        CHECK_OK(hf_release(two, &t_err));
        CHECK_OK(hf_extend(one, 0, &t_err));
        CHECK_OK(hf_release(one, &t_err));
        opts.min_hold_ms = 0;
        CHECK_STATUS(hf_acquire(a, key, 0, &opts, &none, &t_err), HF_BUSY);
        CHECK_OK(hf_inspect(a, key, &info, &t_err));
        CHECK(info.held && info.kept && !info.shared);
        hf_close(a);
        hf_close(b);
    }
}

/* ---- waiting -------------------------------------------------------------- */

struct waiting {
    hf_client *client;
    const char *key;
    hf_lock *lk;
};

static void *wait_as_job(void *arg)
{
    struct hf_lock_opts opts = owned(30000, "job");
    struct waiting *w = arg;

    CHECK_OK(hf_acquire(w->client, w->key, 60000, &opts, &w->lk, &t_err));
    return NULL;
}

/* Whoever has it may be waiting for the other. */
TEST_TIMEOUT(all_who_wait_under_one_owner_id_enter_together, 120)
{
    for (int i = 0; i < 2; i++) {
        struct waiting waiting[2];
        hf_client *a = scene_open(0, queues[i]);
        const char *key = scene_key("wait");
        pthread_t threads[2];
        hf_lock *lk;

        CHECK_OK(hf_acquire(a, key, 0, NULL, &lk, &t_err));
        for (int n = 0; n < 2; n++) {
            waiting[n] = (struct waiting){scene_open(0, queues[i]), key, NULL};
            CHECK_EQ(
                pthread_create(&threads[n], NULL, wait_as_job, &waiting[n]), 0);
        }
        t_sleep_ms(300);
        CHECK_OK(hf_release(lk, &t_err));
        for (int n = 0; n < 2; n++)
            pthread_join(threads[n], NULL);
        CHECK(hf_held(waiting[0].lk) && hf_held(waiting[1].lk));
        CHECK_EQ(hf_fence(waiting[0].lk), hf_fence(waiting[1].lk));
        CHECK_OK(hf_release(waiting[0].lk, &t_err));
        CHECK(is_held(a, key));
        CHECK_OK(hf_release(waiting[1].lk, &t_err));
        CHECK(!is_held(a, key));
        for (int n = 0; n < 2; n++)
            hf_close(waiting[n].client);
        hf_close(a);
    }
}

struct in_line {
    const char *key, *owner;
};

static void wait_for_permit(struct t_peer *up, void *arg)
{
    struct in_line *who = arg;
    struct hf_lock_opts opts = owned(30000, who->owner);
    hf_client *client = scene_open(0, "");
    hf_lock *lk;

    opts.permits = 2;
    t_hear(up);
    CHECK_OK(hf_acquire(client, who->key, 60000, &opts, &lk, &t_err));
    t_tell(up, (int64_t)hf_fence(lk));
    t_tell(up, hf_slot(lk));
    t_hear(up);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

static bool is_other(void *arg, const struct hf_info *info)
{
    bool *found = arg;

    *found = *found || !strcmp(info->owner, "other");
    return true;
}

/* Two wait under one owner id, and another behind them.  Who gives back the second
 * permit passes by the second of the two, who does not ask at that time. */
static void pass_permits(hf_client *client, const char *key,
                         struct t_peer line[3])
{
    struct hf_lock_opts opts = owned(30000, NULL);
    bool other = false;
    hf_lock *lk[2];

    opts.permits = 2;
    for (int n = 0; n < 2; n++)
        CHECK_OK(hf_acquire(client, key, 0, &opts, &lk[n], &t_err));
    for (int n = 0; n < 3; n++) {
        t_tell(&line[n], 1);
        t_poll_until(scene_inspected(client, key).waiters == n + 1, 20000);
    }
    CHECK_EQ(kill(line[1].pid, SIGSTOP), 0);
    for (int n = 0; n < 2; n++)
        CHECK_OK(hf_release(lk[n], &t_err));
    CHECK_OK(hf_holders(client, key, is_other, &other, &t_err));
    CHECK_EQ(kill(line[1].pid, SIGCONT), 0);
    CHECK(other);
}

TEST_TIMEOUT(one_permit_is_passed_to_all_who_wait_under_one_owner_id, 120)
{
    const char *key = scene_key("pass");
    struct in_line job = {key, "job"}, other = {key, "other"};
    int64_t fence[3], slot[3];
    struct t_peer line[3];
    hf_client *client;

    for (int n = 0; n < 3; n++)
        line[n] = t_fork(wait_for_permit, n < 2 ? &job : &other);
    client = scene_open(0, "");
    pass_permits(client, key, line);
    for (int n = 0; n < 3; n++) {
        fence[n] = t_hear(&line[n]);
        slot[n] = t_hear(&line[n]);
    }
    CHECK_EQ(slot[0], slot[1]);
    CHECK_EQ(fence[0], fence[1]);
    CHECK(slot[2] != slot[0]);
    for (int n = 0; n < 3; n++) {
        t_tell(&line[n], 1);
        t_join(&line[n]);
    }
    CHECK(!is_held(client, key));
    hf_close(client);
}

/* ---- lost answers ---------------------------------------------------------- */

/* The connection is cut at the n-th piece of joining and leaving. */
static void cut_at(struct scene_proxy *proxy, hf_client *direct, int n)
{
    struct hf_lock_opts opts = owned(6000, "job");
    hf_client *client = scene_open(proxy->port, "");
    hf_lock *lk, *join, *next;
    char key[96];
    hf_status st;

    snprintf(key, sizeof(key), "%s", scene_key("cut"));
    CHECK_OK(hf_acquire(client, "warm", 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(direct, key, 20000, &opts, &lk, &t_err));
    scene_cut(proxy, n);
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &join, &t_err));
    CHECK_EQ(hf_fence(join), hf_fence(lk));
    CHECK_OK(hf_extend(join, 0, &t_err));
    st = hf_release(join, &t_err);
    if (st && st != HF_UNCERTAIN)
        t_fail(__FILE__, __LINE__, "cut %d: release: %s", n, t_err.text);
    scene_cut(proxy, 0);
    CHECK(hf_held(lk));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    opts.owner = "next";
    CHECK_OK(hf_acquire(direct, key, 20000, &opts, &next, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(client);
    CHECK(!is_held(direct, key));
}

TEST_TIMEOUT(a_connection_cut_at_any_piece_leaves_no_share, 240)
{
    struct scene_proxy proxy;
    hf_client *direct;

    if (scene_is_sqlite())
        T_SKIP_TRAIT("connections");
    proxy = scene_proxy();
    direct = scene_open(0, "");
    for (int n = 1; n <= t_scaled(20, 8); n++)
        cut_at(&proxy, direct, n);
    hf_close(direct);
    scene_proxy_end(&proxy);
}

T_MAIN
