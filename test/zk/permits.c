/* SPDX-License-Identifier: MIT
 *
 * permits.c - permits on ZooKeeper, where the conformance suite cannot see: lost
 * requests and answers, who waits at the head and dies, the nodes themselves,
 * and a key that two want to use in different ways.
 */
#include "zkt.h"

static struct hf_lock_opts permits_opts(int64_t ttl_ms, int32_t n)
{
    struct hf_lock_opts opts = zkt_opts(ttl_ms);

    opts.permits = n;
    return opts;
}

static int waiters_of(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    return hf_inspect(client, key, &info, NULL) == HF_OK ? info.waiters : -1;
}

/* ---- lost requests and answers ------------------------------------------- */

static void beside(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = permits_opts(5000, 2);
    hf_lock *one, *two, *none = NULL;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &one, &t_err));
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &two, &t_err));
    CHECK_EQ(hf_slot(one), 0);
    CHECK_EQ(hf_slot(two), 1);
    CHECK_GT(hf_fence(two), hf_fence(one));
    CHECK_STATUS(hf_acquire(other, key, 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_check(other, key, hf_fence(two), &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK(hf_held(two));
    zkt_let_go(two);
}

static void behind(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = permits_opts(5000, 1);
    struct zkt_waiter w;
    hf_lock *lk;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    zkt_wait_start_with(&w, client, key, 30000, &opts);
    t_poll_until(waiters_of(other, key) > 0, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_EQ(hf_slot(w.lk), 0);
    CHECK(hf_held(w.lk));
    zkt_let_go(w.lk);
}

static void giving_up(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = permits_opts(5000, 1);
    hf_lock *lk, *none = NULL;
    hf_status st;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    st = hf_acquire(client, key, 300, &opts, &none, &t_err);
    CHECK(st == HF_TIMEOUT || st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
    t_poll_until(waiters_of(other, key) == 0, 20000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
}

static void extending(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = permits_opts(5000, 3);
    hf_lock *one, *lk;
    uint64_t fence;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &one, &t_err));
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    t_poll_until(hf_extend(lk, 20000, NULL) == HF_OK, 4000);
    CHECK(hf_held(lk));
    CHECK_EQ(hf_slot(lk), 1);
    CHECK_OK(hf_check(other, key, fence, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    zkt_let_go(lk);
}

/* With the last permit taken, who joins would wait for itself. */
static void joining(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = permits_opts(5000, 1);
    hf_lock *lk, *inner, *none = NULL;

    opts.owner = "order 7";
    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &inner, &t_err));
    CHECK_EQ(hf_fence(inner), hf_fence(lk));
    CHECK_EQ(hf_slot(inner), hf_slot(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(hf_held(inner));
    opts.owner = NULL;
    CHECK_STATUS(hf_acquire(other, key, 0, &opts, &none, &t_err), HF_BUSY);
    zkt_let_go(inner);
}

TEST_TIMEOUT(a_lost_request_leaves_nothing_of_a_permit, 120)
{
    zkt_tell(beside, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_a_permit, 120)
{
    zkt_tell(beside, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_a_permit_of_kazoos_layout, 120)
{
    zkt_tell(beside, "?layout=kazoo", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_request_leaves_nothing_of_who_waits_for_a_permit, 120)
{
    zkt_tell(behind, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_waits_for_a_permit, 120)
{
    zkt_tell(behind, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_waits_in_kazoos_layout, 120)
{
    zkt_tell(behind, "?layout=kazoo", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_waits_for_a_permit_in_vain,
             120)
{
    zkt_tell(giving_up, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_a_permit_that_is_extended, 120)
{
    zkt_tell(extending, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_joins_a_permit, 120)
{
    zkt_tell(joining, "", ZKT_AFTER);
}

/* ---- the queue ------------------------------------------------------------ */

/* The first in the queue is cut off and its session ends. */
static void head_dies(const char *options)
{
    struct hf_lock_opts opts = permits_opts(1500, 1);
    const char *key = zkt_key("k");
    struct zkt_waiter dead, next;
    struct zkt_proxy proxy;
    hf_client *a;
    hf_lock *lk;

    zkt_begin();
    zkt_proxy_start(&proxy);
    a = zkt_open(zkt_url(options));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    zkt_wait_start_with(&dead, zkt_open(zkt_proxy_url(&proxy, options)), key,
                        60000, &opts);
    t_poll_until(waiters_of(a, key) == 1, 10000);
    zkt_wait_start_with(&next, zkt_open(zkt_url(options)), key, 60000, &opts);
    t_poll_until(waiters_of(a, key) == 2, 10000);
    atomic_store(&proxy.frozen, 1);
    CHECK_OK(hf_release(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the next", zkt_wait_end(&next), HF_OK);
    CHECK_OK(hf_extend(next.lk, 0, &t_err));
    atomic_store(&proxy.frozen, 0);
    /* It queues up anew, in another session. */
    t_poll_until(waiters_of(a, key) == 1, 20000);
    CHECK(!atomic_load(&dead.done));
    CHECK_OK(hf_release(next.lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the first", zkt_wait_end(&dead), HF_OK);
    CHECK_OK(hf_release(dead.lk, &t_err));
    hf_close(dead.client);
    hf_close(next.client);
    hf_close(a);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

TEST_TIMEOUT(a_permit_passes_by_the_first_in_the_queue_when_that_has_died, 90)
{
    head_dies("");
}

TEST_TIMEOUT(a_permit_passes_by_a_dead_waiter_of_kazoos_layout, 90)
{
    head_dies("?layout=kazoo");
}

/* Another program is the first in the queue and has its permit while the claim
 * reads who is there, before its request number `n`.  False if it
 * has no such request. */
static bool overtaken_at(const char *options, const char *key, int n)
{
    struct hf_lock_opts opts = permits_opts(8000, 1);
    bool kazoo = strstr(options, "kazoo") != NULL;
    char first[600], lease[600];
    struct zkt_proxy proxy;
    struct zkt_waiter w;
    bool held;

    snprintf(first, sizeof(first), "%s%s0000000000", zkt_path(key),
             kazoo ? "-__lock__/x__lock__" : "/locks/x-lock-");
    snprintf(lease, sizeof(lease), "%s/%s", zkt_path(key),
             kazoo ? "0123456789abcdef0123456789abcdef"
                   : "leases/x-lease-0000000000");
    zkt_make_ephemeral(first);
    zkt_proxy_start(&proxy);
    atomic_store(&proxy.hold_at, n);
    zkt_wait_start_with(&w, zkt_open(zkt_proxy_url(&proxy, options)), key, 1000,
                        &opts);
    t_poll_until(atomic_load(&proxy.held) || atomic_load(&w.done), 20000);
    held = atomic_load(&proxy.held);
    if (held)
        zkt_make_ephemeral(lease);
    zkt_remove(first);
    atomic_store(&proxy.hold_at, 0);
    t_check_status(__FILE__, __LINE__, "beside it", zkt_wait_end(&w),
                   HF_TIMEOUT);
    hf_close(w.client);
    zkt_proxy_stop(&proxy);
    if (held)
        zkt_remove(lease);
    return held;
}

static void overtaken(const char *options)
{
    struct hf_lock_opts opts = permits_opts(8000, 1);
    const char *key = zkt_key("k");
    hf_client *a;
    hf_lock *lk;
    int n = 1;

    zkt_begin();
    a = zkt_open(zkt_url(options));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    zkt_keep(key, options);
    CHECK_OK(hf_release(lk, &t_err));
    while (overtaken_at(options, key, n))
        n++;
    CHECK_GT(n, 4);
    CHECK_OK(hf_acquire(a, key, 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    zkt_end();
}

TEST_TIMEOUT(who_is_overtaken_while_it_looks_has_no_permit, 120)
{
    overtaken("");
}

TEST_TIMEOUT(who_is_overtaken_while_it_looks_has_no_permit_of_kazoos_layout,
             120)
{
    overtaken("?layout=kazoo");
}

/* ---- one use at a time ------------------------------------------------------ */

enum { ROUNDS = 40 };

struct user {
    hf_client *client;
    const char *key;
    int32_t permits;
    pthread_barrier_t *start;
    hf_status status;
    hf_lock *lk;
    pthread_t thread;
};

static void *use(void *arg)
{
    struct user *user = arg;
    struct hf_lock_opts opts = permits_opts(8000, user->permits);

    pthread_barrier_wait(user->start);
    user->status =
        hf_acquire(user->client, user->key, 0, &opts, &user->lk, NULL);
    return NULL;
}

/* One of the two is refused, or it was busy or over already; never do both have
 * it. */
static void use_both_ways(const char *options, int32_t one, int32_t two)
{
    pthread_barrier_t start;
    struct user user[2] = {{.permits = one}, {.permits = two}};
    char key[160];

    zkt_begin();
    pthread_barrier_init(&start, NULL, 2);
    for (int i = 0; i < 2; i++)
        user[i].client = zkt_open(zkt_url(options));
    for (int round = 0; round < ROUNDS; round++) {
        snprintf(key, sizeof(key), "%s-%d", zkt_key("use"), round / 2);
        for (int i = 0; i < 2; i++) {
            user[i].key = key;
            user[i].start = &start;
            user[i].lk = NULL;
            CHECK_EQ(pthread_create(&user[i].thread, NULL, use, &user[i]), 0);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(user[i].thread, NULL);
        CHECK(!user[0].lk || !user[1].lk);
        for (int i = 0; i < 2; i++) {
            CHECK(!user[i].status || user[i].status == HF_INVALID ||
                  user[i].status == HF_BUSY);
            if (user[i].lk) {
                CHECK_OK(hf_extend(user[i].lk, 0, &t_err));
                CHECK_OK(hf_release(user[i].lk, &t_err));
            }
        }
    }
    pthread_barrier_destroy(&start);
    hf_close(user[0].client);
    hf_close(user[1].client);
    zkt_end();
}

TEST_TIMEOUT(a_plain_lock_and_permits_are_never_held_at_once, 60)
{
    use_both_ways("", 0, 2);
}

TEST_TIMEOUT(a_plain_lock_and_permits_of_kazoos_layout_are_never_held_at_once,
             60)
{
    use_both_ways("?layout=kazoo", 0, 2);
}

TEST_TIMEOUT(two_numbers_of_permits_are_never_in_use_at_once, 60)
{
    use_both_ways("", 3, 2);
}

/* Somebody who is wrong about the key, all the time, harms nobody. */
static void wrong_ones(const char *options, int32_t right, int32_t wrong)
{
    struct hf_lock_opts opts = permits_opts(8000, right);
    struct hf_lock_opts other = permits_opts(8000, wrong);
    const char *key = zkt_key("k");
    hf_client *a, *b, *c;
    hf_lock *lk, *two, *none;

    zkt_begin();
    a = zkt_open(zkt_url(options));
    b = zkt_open(zkt_url(options));
    c = zkt_open(zkt_url(options));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk, &t_err));
    for (int i = 0; i < 20; i++) {
        CHECK_STATUS(
            hf_acquire(b, key, i % 2 ? 1000 : 0, &other, &none, &t_err),
            HF_INVALID);
        if (right) {
            CHECK_OK(hf_acquire(c, key, 0, &opts, &two, &t_err));
            CHECK_OK(hf_release(two, &t_err));
        } else {
            CHECK_STATUS(hf_acquire(c, key, 0, &opts, &two, &t_err), HF_BUSY);
        }
    }
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    hf_close(c);
    zkt_end();
}

TEST_TIMEOUT(a_plain_claim_is_refused_and_leaves_permits_alone, 60)
{
    wrong_ones("", 3, 0);
    wrong_ones("?layout=kazoo", 3, 0);
}

TEST_TIMEOUT(a_claim_for_permits_is_refused_and_leaves_a_plain_lock_alone, 60)
{
    wrong_ones("", 0, 3);
    wrong_ones("?layout=kazoo", 0, 3);
}

/* A node that is wrong about the key stands there for a while; who is right
 * does not mind, whether it is older or younger. */
TEST_TIMEOUT(a_wrong_node_that_lingers_refuses_nobody_who_is_right, 60)
{
    struct hf_lock_opts opts = permits_opts(8000, 3), plain = zkt_opts(8000);
    const char *key = zkt_key("k");
    char path[600];
    hf_client *a, *b;
    hf_lock *one, *two, *none = NULL;

    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
    snprintf(path, sizeof(path), "%s/x-lock-0000000099", zkt_path(key));
    zkt_make_ephemeral(path);
    CHECK_OK(hf_acquire(b, key, 0, &opts, &two, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    /* Now it is the oldest, and the key is a plain lock. */
    CHECK_STATUS(hf_acquire(b, key, 0, &opts, &none, &t_err), HF_INVALID);
    zkt_remove(path);
    CHECK_OK(hf_acquire(a, key, 0, &plain, &one, &t_err));
    snprintf(path, sizeof(path), "%s/leases/x-lease-0000000099", zkt_path(key));
    zkt_make_ephemeral(path);
    CHECK_STATUS(hf_acquire(b, key, 0, &plain, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_extend(one, 0, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    CHECK_STATUS(hf_acquire(b, key, 0, &plain, &none, &t_err), HF_INVALID);
    zkt_remove(path);
    CHECK_OK(hf_acquire(b, key, 0, &plain, &one, &t_err));
    CHECK_OK(hf_release(one, &t_err));
    hf_close(a);
    hf_close(b);
    zkt_end();
}

/* ---- looking ---------------------------------------------------------------- */

struct seen {
    unsigned slots;
    int n;
};

static bool see(void *arg, const struct hf_info *holder)
{
    struct seen *seen = arg;

    CHECK(holder->held && !holder->shared);
    CHECK_EQ(holder->permits, 3);
    CHECK_EQ(holder->holders, 2);
    CHECK(holder->slot >= 0 && holder->slot < 3);
    seen->slots |= 1u << holder->slot;
    seen->n++;
    return true;
}

static bool count_key(void *arg, const char *key, const struct hf_info *info)
{
    int *n = arg;

    CHECK(strstr(key, "-__lock__") == NULL);
    CHECK_EQ(info->permits, 3);
    (*n)++;
    return true;
}

static void look(const char *options)
{
    struct hf_lock_opts opts = permits_opts(8000, 3);
    const char *key = zkt_key("look");
    struct hf_info info = HF_INFO_INIT;
    struct seen seen = {0, 0};
    struct zkt_waiter w;
    hf_client *a, *b;
    hf_lock *lk[3];
    int n = 0;

    zkt_begin();
    a = zkt_open(zkt_url(options));
    b = zkt_open(zkt_url(options));
    for (int i = 0; i < 3; i++)
        CHECK_OK(hf_acquire(i ? a : b, key, 0, &opts, &lk[i], &t_err));
    zkt_wait_start_with(&w, b, key, 60000, &opts);
    t_poll_until(waiters_of(a, key) == 1, 10000);
    CHECK_OK(hf_inspect(a, key, &info, &t_err));
    CHECK(info.held);
    CHECK_EQ(info.holders, 3);
    CHECK_EQ(info.slot, 0);
    CHECK_EQ(info.fence, hf_fence(lk[0]));
    CHECK_OK(hf_list(a, key, count_key, &n, &t_err));
    CHECK_EQ(n, 1);
    CHECK_OK(hf_release(lk[1], &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK_EQ(hf_slot(w.lk), 1);
    CHECK_OK(hf_release(lk[0], &t_err));
    CHECK_OK(hf_holders(a, key, see, &seen, &t_err));
    CHECK_EQ(seen.n, 2);
    CHECK_EQ(seen.slots, 6u);
    CHECK_OK(hf_release(w.lk, &t_err));
    CHECK_OK(hf_release(lk[2], &t_err));
    hf_close(a);
    hf_close(b);
    zkt_end();
}

TEST(who_has_which_permit_is_shown)
{
    look("");
}

TEST(who_has_which_permit_is_shown_in_kazoos_layout)
{
    look("?layout=kazoo");
}

TEST_TIMEOUT(a_permit_hears_of_a_break, 60)
{
    struct hf_lock_opts opts = permits_opts(30000, 2);
    const char *key = zkt_key("k");
    hf_client *a, *b;
    hf_lock *one, *two;

    opts.flags = HF_MANUAL;
    zkt_begin();
    a = zkt_open(zkt_url(""));
    b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &one, &t_err));
    CHECK_OK(hf_acquire(a, key, 0, &opts, &two, &t_err));
    CHECK_OK(hf_break(b, key, hf_fence(two), &t_err));
    t_poll_until(!hf_held(two), 10000);
    CHECK_EQ(hf_lost_reason(two), HF_LOSS_BROKEN);
    CHECK(hf_held(one));
    CHECK_OK(hf_break_force(b, key, hf_fence(one), &t_err));
    t_poll_until(!hf_held(one), 10000);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    CHECK_OK(hf_acquire(b, key, 0, &opts, &one, &t_err));
    CHECK_EQ(hf_slot(one), 0);
    CHECK_OK(hf_release(one, &t_err));
    hf_close(a);
    hf_close(b);
    zkt_end();
}

T_MAIN
