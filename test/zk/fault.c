/* SPDX-License-Identifier: MIT
 *
 * fault.c - the connection is cut at every request there is, before it reached
 * the server and after; afterwards no node of ours is left, while the client
 * and its session live on.
 */
#include "zkt.h"

static void alone(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(5000);
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    CHECK(hf_held(lk));
    CHECK_OK(hf_check(other, key, hf_fence(lk), &t_err));
    zkt_let_go(lk);
}

/* Wait behind another; where that can be seen, until it is. */
static void wait_behind(hf_client *client, hf_client *other, const char *key,
                        bool seen)
{
    struct hf_lock_opts opts = zkt_opts(5000);
    struct hf_info info = HF_INFO_INIT;
    struct zkt_waiter w;
    hf_lock *lk;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    zkt_wait_start(&w, client, key, 30000, 5000);
    if (seen)
        t_poll_until(hf_inspect(other, key, &info, NULL) == HF_OK &&
                         info.waiters != 0,
                     20000);
    t_sleep_ms(seen ? 20 : 50);
    CHECK_OK(hf_release(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    CHECK(hf_held(w.lk));
    zkt_let_go(w.lk);
}

static void queueing(hf_client *client, hf_client *other, const char *key)
{
    wait_behind(client, other, key, true);
}

static void waiting(hf_client *client, hf_client *other, const char *key)
{
    wait_behind(client, other, key, false);
}

/* Who gives back while somebody waits comes again behind that one. */
static void turning(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(5000);
    struct zkt_waiter w, third;
    hf_lock *lk;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    zkt_wait_start(&w, client, key, 30000, 5000);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 20000);
    zkt_wait_start(&third, zkt_open(zkt_url("")), key, 30000, 5000);
    t_poll_until(zkt_children(zkt_path(key)) == 3, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    zkt_let_go(w.lk);
    t_check_status(__FILE__, __LINE__, "the third", zkt_wait_end(&third),
                   HF_OK);
    zkt_wait_start(&w, client, key, 30000, 5000);
    t_poll_until(zkt_children(zkt_path(key)) == 2, 20000);
    CHECK_OK(hf_release(third.lk, &t_err));
    t_check_status(__FILE__, __LINE__, "the waiter", zkt_wait_end(&w), HF_OK);
    zkt_let_go(w.lk);
    hf_close(third.client);
}

static void refused(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(5000);
    hf_lock *lk, *none = NULL;
    hf_status st;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    st = hf_acquire(client, key, 0, &opts, &none, &t_err);
    CHECK(st == HF_BUSY || st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
    CHECK(none == NULL);
    t_poll_until(zkt_children(zkt_path(key)) <= 1, 20000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
}

static void giving_up(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(5000);
    hf_lock *lk, *none = NULL;
    hf_status st;

    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    st = hf_acquire(client, key, 300, &opts, &none, &t_err);
    CHECK(st == HF_TIMEOUT || st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
    t_poll_until(zkt_children(zkt_path(key)) <= 1, 20000);
    CHECK_OK(hf_release(lk, &t_err));
}

static void joining(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(5000);
    hf_lock *lk, *inner;

    opts.owner = "order 7";
    CHECK_OK(hf_acquire(other, key, 20000, &opts, &lk, &t_err));
    CHECK_OK(hf_acquire(client, key, 20000, &opts, &inner, &t_err));
    CHECK_EQ(hf_fence(inner), hf_fence(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(hf_held(inner));
    zkt_let_go(inner);
}

static void extending(hf_client *client, hf_client *other, const char *key)
{
    struct hf_lock_opts opts = zkt_opts(5000);
    uint64_t fence;
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, key, 20000, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    t_poll_until(hf_extend(lk, 20000, NULL) == HF_OK, 4000);
    t_poll_until(hf_extend(lk, 5000, NULL) == HF_OK, 10000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_check(other, key, fence, &t_err));
    zkt_let_go(lk);
}

TEST_TIMEOUT(a_lost_request_leaves_nothing_of_a_lock_taken_alone, 120)
{
    zkt_tell(alone, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_a_lock_taken_alone, 120)
{
    zkt_tell(alone, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_request_leaves_nothing_of_a_waiter, 120)
{
    zkt_tell(queueing, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_a_waiter, 120)
{
    zkt_tell(queueing, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_request_leaves_nothing_of_a_refused_try, 120)
{
    zkt_tell(refused, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_a_refused_try, 120)
{
    zkt_tell(refused, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_request_leaves_nothing_of_who_gives_up, 120)
{
    zkt_tell(giving_up, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_gives_up, 120)
{
    zkt_tell(giving_up, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_request_leaves_nothing_of_who_joins, 120)
{
    zkt_tell(joining, "", ZKT_BEFORE);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_joins, 120)
{
    zkt_tell(joining, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_extends, 120)
{
    zkt_tell(extending, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_extends_a_plain_node, 120)
{
    zkt_tell(extending, "?recipe=ephemeral", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_one_plain_node, 120)
{
    zkt_tell(alone, "?recipe=ephemeral", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_waits_for_a_plain_node, 120)
{
    zkt_tell(waiting, "?recipe=ephemeral", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_who_takes_turns, 120)
{
    zkt_tell(turning, "", ZKT_AFTER);
}

TEST_TIMEOUT(a_lost_answer_leaves_nothing_of_kazoos_layout, 120)
{
    zkt_tell(queueing, "?layout=kazoo", ZKT_AFTER);
}

struct extension {
    hf_lock *lk;
    int64_t ttl_ms;
    hf_status status;
    pthread_t thread;
};

static void *extension_run(void *arg)
{
    struct extension *x = arg;

    x->status = hf_extend(x->lk, x->ttl_ms, NULL);
    return NULL;
}

static void extension_start(struct extension *x, hf_lock *lk, int64_t ttl_ms)
{
    x->lk = lk;
    x->ttl_ms = ttl_ms;
    CHECK_EQ(pthread_create(&x->thread, NULL, extension_run, x), 0);
}

/* The move to another session is on its way while the lock is renewed where it
 * is. */
static void move_late(const char *options)
{
    struct hf_lock_opts brief = zkt_opts(4000), opts = zkt_opts(16000);
    struct hf_client_opts limit = HF_CLIENT_OPTS_INIT;
    const char *key = zkt_key("k"), *other = zkt_key("other");
    struct zkt_proxy proxy;
    struct zkt_node node;
    hf_client *client;
    hf_lock *lk, *more;

    zkt_begin();
    zkt_proxy_start(&proxy);
    limit.timeout_ms = 1000;
    CHECK_OK(hf_open(zkt_proxy_url(&proxy, options), &limit, &client, &t_err));
    CHECK_OK(hf_acquire(client, key, 0, &brief, &lk, &t_err));
    CHECK_OK(hf_acquire(client, other, 0, &opts, &more, &t_err));
    atomic_store(&proxy.stalled, 1);
    CHECK_STATUS(hf_extend(lk, 16000, &t_err), HF_UNCERTAIN);
    CHECK_OK(hf_extend(lk, 4000, &t_err));
    atomic_store(&proxy.stalled, 0);
    /* What goes the same way arrives after it. */
    t_poll_until(hf_extend(more, 0, NULL) == HF_OK, 10000);
    CHECK_OK(hf_extend(lk, 4000, &t_err));
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(more, &t_err));
    t_poll_until(zkt_children(zkt_path(key)) == 0, 10000);
    if (strstr(options, "ephemeral"))
        t_poll_until(!zkt_read(zkt_path(key), &node), 10000);
    hf_close(client);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

TEST_TIMEOUT(a_move_that_arrives_late_finds_the_lock_renewed, 60)
{
    move_late("?ttl=4s");
}

TEST_TIMEOUT(a_move_that_arrives_late_finds_the_single_node_renewed, 60)
{
    move_late("?ttl=4s&recipe=ephemeral");
}

/* A request of this type that is part of A's move is on its way while the lock
 * is freed by force and taken by B. */
static void move_after_break(int type)
{
    const char *url = zkt_url("?recipe=ephemeral"), *key = zkt_key("k");
    struct hf_lock_opts opts = zkt_opts(8000);
    hf_client *a, *b;
    hf_lock *lk_a, *lk_b;
    struct zkt_proxy proxy;
    struct extension extension;

    zkt_begin();
    zkt_proxy_start(&proxy);
    a = zkt_open(zkt_proxy_url(&proxy, "?recipe=ephemeral"));
    b = zkt_open(url);
    CHECK_OK(hf_acquire(a, key, 0, &opts, &lk_a, &t_err));
    atomic_store(&proxy.hold, type);
    extension_start(&extension, lk_a, 20000);
    t_poll_until(atomic_load(&proxy.held) > 0, 10000);
    CHECK_OK(hf_break_force(b, key, hf_fence(lk_a), &t_err));
    CHECK_OK(hf_acquire(b, key, 5000, &opts, &lk_b, &t_err));
    atomic_store(&proxy.hold, 0);
    pthread_join(extension.thread, NULL);
    CHECK(extension.status != HF_OK);
    t_poll_until(!hf_held(lk_a), 20000);
    CHECK_OK(hf_extend(lk_b, 0, &t_err));
    CHECK_OK(hf_check(b, key, hf_fence(lk_b), &t_err));
    hf_release(lk_a, NULL);
    CHECK_OK(hf_release(lk_b, &t_err));
    t_poll_until(zkt_children_like("/hf-test", "%") == 0, 10000);
    hf_close(a);
    hf_close(b);
    zkt_proxy_stop(&proxy);
    zkt_end();
}

TEST_TIMEOUT(a_move_never_touches_the_single_node_of_the_next_holder, 60)
{
    move_after_break(ZKT_MULTI);
}

TEST_TIMEOUT(a_bar_never_touches_the_single_node_of_the_next_holder, 60)
{
    move_after_break(ZKT_SET_DATA);
}

/* ---- recipe=ephemeral: all holders of a key use one name ---------------- */

/* A and B, of which A goes through the proxy, and a request of A's. */
struct late {
    struct zkt_proxy proxy;
    hf_client *a, *b;
    const char *key;
    hf_lock *lk;    /* of either */
    uint64_t fence; /* what to break */
    hf_status (*call)(struct late *);
    hf_status status;
    pthread_t thread;
};

static void late_begin(struct late *l)
{
    zkt_begin();
    zkt_proxy_start(&l->proxy);
    l->a = zkt_open(zkt_proxy_url(&l->proxy, "?recipe=ephemeral"));
    l->b = zkt_open(zkt_url("?recipe=ephemeral"));
    l->key = zkt_key("k");
}

static void *late_run(void *arg)
{
    struct late *l = arg;

    l->status = l->call(l);
    return NULL;
}

/* Have A call something whose changes wait. */
static void late_call(struct late *l, hf_status (*call)(struct late *))
{
    l->call = call;
    atomic_store(&l->proxy.hold, ZKT_CHANGE);
    CHECK_EQ(pthread_create(&l->thread, NULL, late_run, l), 0);
    t_poll_until(atomic_load(&l->proxy.held) > 0, 10000);
}

static hf_status late_answer(struct late *l)
{
    atomic_store(&l->proxy.hold, 0);
    pthread_join(l->thread, NULL);
    return l->status;
}

static hf_lock *late_lock(struct late *l, hf_client *client)
{
    struct hf_lock_opts opts = zkt_opts(8000);
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, l->key, 5000, &opts, &lk, &t_err));
    return lk;
}

/* Nothing has happened to the grant, and it leaves nothing. */
static void late_end(struct late *l, hf_lock *next)
{
    struct hf_info info = HF_INFO_INIT;
    struct zkt_node node;

    CHECK(zkt_read(zkt_path(l->key), &node));
    CHECK_EQ((uint64_t)node.czxid, hf_fence(next));
    CHECK_OK(hf_inspect(l->b, l->key, &info, &t_err));
    CHECK(!info.broken);
    CHECK_OK(hf_extend(next, 0, &t_err));
    CHECK_OK(hf_check(l->b, l->key, hf_fence(next), &t_err));
    CHECK_OK(hf_release(next, &t_err));
    t_poll_until(!zkt_read(zkt_path(l->key), &node), 10000);
    t_poll_until(zkt_children_like("/hf-test", "%") == 0, 10000);
    hf_close(l->a);
    hf_close(l->b);
    zkt_proxy_stop(&l->proxy);
    zkt_end();
}

static hf_status late_release(struct late *l)
{
    return hf_release(l->lk, NULL);
}

static hf_status late_break(struct late *l)
{
    return hf_break(l->a, l->key, l->fence, NULL);
}

static hf_status late_break_force(struct late *l)
{
    return hf_break_force(l->a, l->key, l->fence, NULL);
}

TEST_TIMEOUT(a_release_never_removes_the_single_node_of_the_next_holder, 60)
{
    struct late l = {0};
    uint64_t fence;
    hf_lock *next;

    late_begin(&l);
    l.lk = late_lock(&l, l.a);
    fence = hf_fence(l.lk);
    late_call(&l, late_release);
    CHECK_OK(hf_break_force(l.b, l.key, fence, &t_err));
    next = late_lock(&l, l.b);
    CHECK_STATUS(late_answer(&l), HF_LOST);
    late_end(&l, next);
}

TEST_TIMEOUT(what_lapses_never_takes_the_single_node_of_the_next_holder, 60)
{
    struct hf_lock_opts opts = zkt_opts(600);
    struct late l = {0};
    hf_lock *next;
    uint64_t fence;

    late_begin(&l);
    opts.flags = HF_MANUAL;
    CHECK_OK(hf_acquire(l.a, l.key, 5000, &opts, &l.lk, &t_err));
    fence = hf_fence(l.lk);
    atomic_store(&l.proxy.hold, ZKT_CHANGE);
    t_poll_until(atomic_load(&l.proxy.held) > 0, 10000);
    CHECK_OK(hf_break_force(l.b, l.key, fence, &t_err));
    next = late_lock(&l, l.b);
    atomic_store(&l.proxy.hold, 0);
    CHECK_STATUS(hf_release(l.lk, &t_err), HF_LOST);
    /* What goes the same way arrives after it. */
    CHECK_OK(hf_release(late_lock(&(struct late){.key = zkt_key("other")}, l.a),
                        &t_err));
    late_end(&l, next);
}

TEST_TIMEOUT(a_break_never_touches_the_single_node_of_the_next_holder, 60)
{
    struct late l = {0};
    hf_lock *next;

    late_begin(&l);
    l.lk = late_lock(&l, l.b);
    l.fence = hf_fence(l.lk);
    late_call(&l, late_break);
    CHECK_OK(hf_release(l.lk, &t_err));
    next = late_lock(&l, l.b);
    CHECK_STATUS(late_answer(&l), HF_LOST);
    late_end(&l, next);
}

TEST_TIMEOUT(a_break_by_force_never_frees_the_single_node_of_the_next_holder,
             60)
{
    struct late l = {0};
    hf_lock *next;

    late_begin(&l);
    l.lk = late_lock(&l, l.b);
    l.fence = hf_fence(l.lk);
    late_call(&l, late_break_force);
    CHECK_OK(hf_release(l.lk, &t_err));
    next = late_lock(&l, l.b);
    CHECK_STATUS(late_answer(&l), HF_LOST);
    late_end(&l, next);
}

/* ---- recipe=sequential: several hold with one owner id ------------------- */

/* Another joins while the change of the holder is on its way: the grant with
 * this fence is taken away from it, too. */
static void join_meanwhile(hf_status (*call)(struct late *))
{
    struct hf_lock_opts opts = zkt_opts(8000);
    hf_client *c = zkt_open(zkt_url(""));
    struct late l = {.key = zkt_key("k")};
    hf_lock *joined;

    opts.owner = "order 7";
    zkt_begin();
    zkt_proxy_start(&l.proxy);
    l.a = zkt_open(zkt_proxy_url(&l.proxy, ""));
    l.b = zkt_open(zkt_url(""));
    CHECK_OK(hf_acquire(l.b, l.key, 0, &opts, &l.lk, &t_err));
    l.fence = hf_fence(l.lk);
    late_call(&l, call);
    CHECK_OK(hf_acquire(c, l.key, 0, &opts, &joined, &t_err));
    CHECK_EQ(hf_fence(joined), l.fence);
    CHECK_OK(late_answer(&l));
    t_poll_until(!hf_held(joined) && !hf_held(l.lk), 20000);
    CHECK_STATUS(hf_release(l.lk, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(joined, &t_err), HF_LOST);
    t_poll_until(zkt_children(zkt_path(l.key)) == 0, 10000);
    hf_close(l.a);
    hf_close(l.b);
    hf_close(c);
    zkt_proxy_stop(&l.proxy);
    zkt_end();
}

TEST_TIMEOUT(a_break_hits_who_joins_the_holder_meanwhile, 60)
{
    join_meanwhile(late_break);
}

TEST_TIMEOUT(a_break_by_force_hits_who_joins_the_holder_meanwhile, 60)
{
    join_meanwhile(late_break_force);
}

/* An operator who cleans up does not know what belongs to a node. */
TEST_TIMEOUT(a_release_does_without_the_companion_of_the_single_node, 60)
{
    const char *key = zkt_key("k");
    hf_client *client;
    hf_lock *lk;
    struct zkt_node node;

    zkt_begin();
    client = zkt_open(zkt_url("?recipe=ephemeral"));
    CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
    zkt_remove_like("/hf-test", "%");
    CHECK_OK(hf_release(lk, &t_err));
    CHECK(!zkt_read(zkt_path(key), &node));
    CHECK_OK(hf_acquire(client, key, 0, NULL, &lk, &t_err));
    zkt_remove_like("/hf-test", "%");
    CHECK_OK(hf_break_force(client, key, hf_fence(lk), &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(!zkt_read(zkt_path(key), &node));
    hf_close(client);
    zkt_end();
}

T_MAIN
