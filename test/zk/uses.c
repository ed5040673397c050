/* SPDX-License-Identifier: MIT
 *
 * uses.c - a key with permits and a claim for a plain lock, or the other way
 * round: who is wrong about the key hides nobody, and is let in by nothing that
 * comes or goes while it looks.
 */
#include "zkt.h"

enum { PERMITS = 3 };

static struct hf_lock_opts permits_opts(void)
{
    struct hf_lock_opts opts = zkt_opts(8000);

    opts.permits = PERMITS;
    return opts;
}

static bool is_kazoo(const char *options)
{
    return strstr(options, "kazoo") != NULL;
}

/* The path of a node of another program, as one that contends for the plain
 * lock. */
static void plain_path(char ret[600], const char *key, const char *options,
                       int number)
{
    snprintf(ret, 600, "%s/%s%010d", zkt_path(key),
             is_kazoo(options) ? "x__lock__" : "x-lock-", number);
}

/* ---- looking ------------------------------------------------------------- */

struct seen {
    uint64_t fence;
    int n;
};

static bool see(void *arg, const struct hf_info *holder)
{
    struct seen *seen = arg;

    CHECK_EQ(holder->permits, PERMITS);
    CHECK_EQ(holder->fence, seen->fence);
    seen->n++;
    return true;
}

static bool see_key(void *arg, const char *key, const struct hf_info *info)
{
    (void)key;
    return see(arg, info);
}

static bool see_waiter(void *arg, const struct hf_waiter *waiter)
{
    struct seen *seen = arg;

    (void)waiter;
    seen->n++;
    return true;
}

/* This permit is the only one, and nobody waits. */
static void check_stands(hf_client *client, const char *key, uint64_t fence)
{
    struct seen holders = {fence, 0}, listed = {fence, 0}, waiters = {0, 0};
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_check(client, key, fence, &t_err));
    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    CHECK(info.held);
    CHECK_EQ(info.permits, PERMITS);
    CHECK_EQ(info.fence, fence);
    CHECK_EQ(info.waiters, 0);
    CHECK_OK(hf_holders(client, key, see, &holders, &t_err));
    CHECK_EQ(holders.n, 1);
    CHECK_OK(hf_list(client, key, see_key, &listed, &t_err));
    CHECK_EQ(listed.n, 1);
    CHECK_OK(hf_waiters(client, key, see_waiter, &waiters, &t_err));
    CHECK_EQ(waiters.n, 0);
}

/* A claim that is about to be refused, or whose client has died, is there. */
static void wrong_one_beside(const char *options)
{
    struct hf_lock_opts opts = permits_opts();
    const char *key = zkt_key("k");
    char path[600];
    hf_client *a, *b;
    hf_lock *one;

    zkt_begin();
    a = zkt_open(zkt_url(options));
    b = zkt_open(zkt_url(options));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
    plain_path(path, key, options, 99);
    zkt_make_ephemeral(path);
    check_stands(b, key, hf_fence(one));
    CHECK_OK(hf_break(b, key, hf_fence(one), &t_err));
    t_poll_until(!hf_held(one), 10000);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    zkt_remove(path);
    hf_close(a);
    hf_close(b);
    zkt_end();
}

TEST_TIMEOUT(a_plain_claim_does_not_hide_who_has_a_permit, 60)
{
    wrong_one_beside("");
}

TEST_TIMEOUT(a_plain_claim_does_not_hide_a_permit_of_kazoos_layout, 60)
{
    wrong_one_beside("?layout=kazoo");
}

/* hf_check() in a thread. */
struct check {
    hf_client *client;
    const char *key;
    uint64_t fence;
    hf_status status;
    atomic_bool done;
    pthread_t thread;
};

static void *check_run(void *arg)
{
    struct check *check = arg;

    check->status = hf_check(check->client, check->key, check->fence, NULL);
    atomic_store(&check->done, true);
    return NULL;
}

/* The first permit goes from hand to hand, each time between the look who has
 * one and the look at its node. */
TEST_TIMEOUT(a_check_finds_a_permit_beside_one_that_changes_hands, 60)
{
    struct hf_lock_opts opts = permits_opts();
    const char *key = zkt_key("k");
    struct zkt_proxy proxy;
    struct check check = {.key = key};
    hf_client *a;
    hf_lock *one, *two;

    zkt_begin();
    zkt_proxy_start(&proxy);
    a = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &two, &t_err));
    check.client = zkt_open(zkt_proxy_url(&proxy, ""));
    check.fence = hf_fence(two);
    CHECK_OK(hf_check(check.client, key, check.fence, &t_err));
    atomic_store(&proxy.held, 0);
    atomic_store(&proxy.hold, ZKT_GET_DATA);
    CHECK_EQ(pthread_create(&check.thread, NULL, check_run, &check), 0);
    for (int i = 0; i < 20; i++) {
        t_poll_until(atomic_load(&proxy.held) > i || atomic_load(&check.done),
                     20000);
        CHECK_OK(hf_release(one, &t_err));
        CHECK_OK(hf_acquire(a, key, 20000, &opts, &one, &t_err));
        CHECK_EQ(hf_slot(one), 0);
        atomic_store(&proxy.let_by, 1);
    }
    atomic_store(&proxy.hold, 0);
    pthread_join(check.thread, NULL);
    CHECK_STATUS(check.status, HF_OK);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    hf_close(check.client);
    hf_close(a);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

/* ---- the oldest leaves ----------------------------------------------------- */

/* The wrong one is younger than the first permit and older than the second; the
 * first is given back. */
static void older_one_leaves(const char *options)
{
    struct hf_lock_opts opts = permits_opts(), plain = zkt_opts(8000);
    const char *key = zkt_key("k");
    hf_lock *one, *two, *three, *none = NULL;
    char path[600];
    hf_client *a, *b;

    zkt_begin();
    a = zkt_open(zkt_url(options));
    b = zkt_open(zkt_url(options));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
    plain_path(path, key, options, 99);
    zkt_make_ephemeral(path);
    CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    check_stands(a, key, hf_fence(two));
    CHECK_STATUS(hf_acquire(a, key, 0, &plain, &none, &t_err), HF_INVALID);
    CHECK_OK(hf_extend(two, 20000, &t_err)); /* in another session */
    check_stands(a, key, hf_fence(two));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &three, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    check_stands(b, key, hf_fence(three));
    CHECK_OK(hf_release(three, &t_err));
    zkt_remove(path);
    CHECK_OK(hf_acquire(b, key, 0, &plain, &one, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    hf_close(a);
    hf_close(b);
    zkt_end();
}

TEST_TIMEOUT(a_key_keeps_its_use_when_its_oldest_holder_leaves, 60)
{
    older_one_leaves("");
}

TEST_TIMEOUT(a_key_of_kazoos_layout_keeps_its_use_when_its_oldest_leaves, 60)
{
    older_one_leaves("?layout=kazoo");
}

/* The same for those who share a plain lock. */
static void older_reader_leaves(const char *options)
{
    struct hf_lock_opts opts = permits_opts(), read = zkt_opts(8000);
    const char *key = zkt_key(is_kazoo(options) ? "kazoo" : "k");
    hf_lock *one, *two, *three, *none = NULL;
    char path[600];
    hf_client *a, *b;

    read.flags = HF_SHARED;
    zkt_begin();
    a = zkt_open(zkt_url(options));
    b = zkt_open(zkt_url(options));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
    zkt_keep(key, options);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_acquire(a, key, 0, &read, &one, &t_err));
    snprintf(path, sizeof(path), "%s/%s", zkt_path(key),
             is_kazoo(options) ? "0123456789abcdef0123456789abcdef"
                               : "leases/x-lease-0000000099");
    zkt_make_ephemeral(path);
    CHECK_OK(hf_acquire(b, key, 0, &read, &two, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_check(a, key, hf_fence(two), &t_err));
    CHECK_STATUS(hf_acquire(a, key, 0, &opts, &none, &t_err), HF_INVALID);
    CHECK_OK(hf_acquire(a, key, 0, &read, &three, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(hf_check(b, key, hf_fence(three), &t_err));
    CHECK_OK(hf_release(three, &t_err));
    zkt_remove(path);
    hf_close(a);
    hf_close(b);
    zkt_end();
}

TEST_TIMEOUT(a_shared_lock_stays_one_when_its_oldest_holder_leaves, 60)
{
    older_reader_leaves("");
    older_reader_leaves("?layout=kazoo");
}

/* The same with a lost answer at each request of the second. */
static void older_one_leaves_story(hf_client *client, hf_client *other,
                                   const char *key)
{
    struct hf_lock_opts opts = permits_opts(), plain = zkt_opts(8000);
    hf_lock *one, *two, *none = NULL;
    char path[600];

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &one, &t_err));
    plain_path(path, key, "", 99);
    zkt_make_ephemeral(path);
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &two, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    check_stands(other, key, hf_fence(two));
    CHECK_STATUS(hf_acquire(other, key, 0, &plain, &none, &t_err), HF_INVALID);
    t_poll_until(hf_extend(two, 20000, NULL) == HF_OK, 4000);
    check_stands(other, key, hf_fence(two));
    zkt_let_go(two);
    zkt_remove(path);
}

TEST_TIMEOUT(a_lost_answer_leaves_a_key_its_use, 120)
{
    zkt_tell(older_one_leaves_story, "", ZKT_AFTER);
}

/* ---- what happens while a claim looks --------------------------------------- */

/* A permit is given out and the one before it is given back, at request `n` of a
 * plain claim.  False if the claim has no such request. */
static bool passed_on_at(const char *options, const char *key, int n)
{
    struct hf_lock_opts opts = permits_opts(), plain = zkt_opts(8000);
    hf_client *a = zkt_open(zkt_url(options));
    hf_lock *one, *two = NULL;
    struct zkt_proxy proxy;
    struct zkt_waiter w;
    bool held;

    CHECK_OK(hf_acquire(a, key, 20000, &opts, &one, &t_err));
    zkt_proxy_start(&proxy);
    atomic_store(&proxy.hold_at, n);
    zkt_wait_start_with(&w, zkt_open(zkt_proxy_url(&proxy, options)), key, 0,
                        &plain);
    t_poll_until(atomic_load(&proxy.held) || atomic_load(&w.done), 20000);
    held = atomic_load(&proxy.held);
    if (held)
        CHECK_OK(hf_acquire(a, key, 0, &opts, &two, &t_err));
    if (held)
        CHECK_OK(hf_release(one, &t_err));
    atomic_store(&proxy.hold_at, 0);
    t_check_status(__FILE__, __LINE__, "the plain claim", zkt_wait_end(&w),
                   HF_INVALID);
    CHECK_OK(hf_check(a, key, hf_fence(held ? two : one), &t_err));
    CHECK_OK(hf_release(held ? two : one, &t_err));
    hf_close(w.client);
    hf_close(a);
    zkt_proxy_stop(&proxy);
    return held;
}

static void passed_on(const char *options)
{
    const char *key = zkt_key("k");
    int n = 1;

    zkt_begin();
    while (passed_on_at(options, key, n))
        n++;
    CHECK_GT(n, 3);
    zkt_end();
}

TEST_TIMEOUT(a_plain_claim_is_refused_when_permits_are_passed_on, 120)
{
    passed_on("");
}

TEST_TIMEOUT(a_plain_claim_is_refused_when_permits_of_kazoos_are_passed_on, 120)
{
    passed_on("?layout=kazoo");
}

/* Before a claim has its permit, two come for the plain lock.  The first of them
 * leaves before its request `n` after that: the second holds, or the claim does,
 * or neither.  False if the claim has no such request. */
static bool first_leaves_at(hf_client *a, const char *options, const char *key,
                            int n)
{
    struct hf_lock_opts opts = permits_opts(), plain = zkt_opts(8000);
    struct hf_info info = HF_INFO_INIT;
    struct zkt_waiter permit, next;
    struct zkt_proxy proxy;
    char first[600];
    bool held;

    zkt_proxy_start(&proxy);
    atomic_store(&proxy.hold, ZKT_MULTI);
    zkt_wait_start_with(&permit, zkt_open(zkt_proxy_url(&proxy, options)), key,
                        0, &opts);
    t_poll_until(atomic_load(&proxy.held), 20000);
    plain_path(first, key, options, -9);
    zkt_make_ephemeral(first);
    zkt_wait_start_with(&next, zkt_open(zkt_url(options)), key, 30000, &plain);
    t_poll_until(hf_inspect(a, key, &info, NULL) == HF_OK && info.waiters == 1,
                 20000);
    atomic_store(&proxy.held, 0);
    atomic_store(&proxy.hold_at, atomic_load(&proxy.requests) + n);
    atomic_store(&proxy.hold, 0);
    t_poll_until(atomic_load(&proxy.held) || atomic_load(&permit.done), 20000);
    held = atomic_load(&proxy.held);
    zkt_remove(first);
    t_poll_until(atomic_load(&next.done), 20000);
    atomic_store(&proxy.hold_at, 0);
    zkt_wait_end(&permit);
    zkt_wait_end(&next);
    CHECK(!permit.status || permit.status == HF_INVALID);
    CHECK(!next.status || next.status == HF_INVALID);
    CHECK(!permit.lk || !next.lk);
    if (permit.lk)
        CHECK_OK(hf_release(permit.lk, &t_err));
    if (next.lk)
        CHECK_OK(hf_release(next.lk, &t_err));
    hf_close(permit.client);
    hf_close(next.client);
    zkt_proxy_stop(&proxy);
    return held;
}

static void first_leaves(const char *options)
{
    struct hf_lock_opts opts = permits_opts();
    const char *key = zkt_key("k");
    hf_client *a;
    hf_lock *lk;
    int n = 2; /* The first is the one at which it stands. */

    zkt_begin();
    a = zkt_open(zkt_url(options));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    zkt_keep(key, options);
    CHECK_OK(hf_release(lk, &t_err));
    while (first_leaves_at(a, options, key, n))
        n++;
    CHECK_GT(n, 3);
    hf_close(a);
    zkt_end();
}

TEST_TIMEOUT(a_permit_is_not_given_beside_the_next_of_a_plain_lock, 120)
{
    first_leaves("");
}

TEST_TIMEOUT(a_permit_of_kazoos_is_not_given_beside_the_next_of_a_plain_lock,
             120)
{
    first_leaves("?layout=kazoo");
}

T_MAIN
