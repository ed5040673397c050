/* SPDX-License-Identifier: MIT
 *
 * grants.c - what becomes of a grant in Redis: it is broken, freed by force,
 * taken up by another process, and known for as long as it lasts and longer.
 */
#include "proxy.h"

TEST(a_lock_that_was_broken_goes_to_the_next_with_its_release)
{
    struct hf_info info = HF_INFO_INIT;
    struct rt_server s = {0};
    hf_client *a, *b;
    struct hf_handle handle = HF_HANDLE_INIT;
    struct hf_lock_opts opts = rt_opts(30000, 0);
    struct rt_waiter w;
    hf_lock *lk;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    lk = rt_lock(a, "k", 0, 30000, 0);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    w = rt_waiter(b, "k", 20000, 30000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 1 && rt_hears(&s, "k"), 5000);
    CHECK_OK(hf_break(b, "k", handle.fence, &t_err));
    CHECK_OK(hf_inspect(b, "k", &info, &t_err));
    CHECK(info.held && info.broken);
    CHECK_EQ(info.fence, handle.fence);
    CHECK_GT(info.left_ms, 10000);
    CHECK_STATUS(hf_check(b, "k", handle.fence, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_extend(a, "k", &handle, &opts, &t_err), HF_LOST);
    CHECK_STATUS(hf_attach(a, "k", &handle, &opts, &lk, &t_err), HF_LOST);
    CHECK_EQ(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE), 0);
    CHECK_STATUS(hf_handle_release(a, "k", &handle, &opts, &t_err), HF_LOST);
    rt_wait_join(&w);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(a_lock_that_is_broken_by_force_goes_to_the_next_at_once)
{
    static const char *const owners[] = {NULL, "order-7"};
    struct hf_info info = HF_INFO_INIT;
    struct hf_lock_opts opts = rt_opts(3000, 0);
    struct rt_server s = {0};
    hf_client *a, *b;
    struct rt_waiter w;
    hf_lock *lk = NULL;
    int i;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    for (i = 0; i < 2; i++) {
        opts.owner = owners[i];
        CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
        w = rt_waiter(b, "k", 20000, 30000, 0);
        rt_wait_start(&w);
        t_poll_until(rt_waiters(&s, "k") == 1 && rt_hears(&s, "k"), 5000);
        CHECK_STATUS(hf_break_force(b, "k", hf_fence(lk) - 1, &t_err), HF_LOST);
        CHECK_OK(hf_break_force(b, "k", hf_fence(lk), &t_err));
        rt_wait_join(&w);
        CHECK_GT(w.fence, hf_fence(lk));
        t_poll_until(!hf_held(lk), 5000);
        CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        /* Nobody waits: it is free. */
        CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
        CHECK_OK(hf_break_force(b, "k", hf_fence(lk), &t_err));
        CHECK_OK(hf_inspect(b, "k", &info, &t_err));
        CHECK(!info.held);
        CHECK_OK(hf_release(rt_lock(b, "k", 0, 30000, 0), &t_err));
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    }
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(a_handle_is_taken_up_once_in_every_mode)
{
    static const char *const modes[] = {"", "?acquire=set", "?acquire=script",
                                        ""};
    struct hf_info info = HF_INFO_INIT;
    struct hf_lock_opts opts = rt_opts(5000, 0);
    struct rt_server s = {0};
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *lk = NULL, *none = NULL;
    int i;

    rt_start(&s, NULL);
    for (i = 0; i < 4; i++) {
        a = rt_open(&s, modes[i]);
        b = rt_open(&s, modes[i]);
        opts.owner = i == 3 ? "order-7" : NULL;
        opts.note = "nightly";
        CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
        CHECK_OK(hf_detach(lk, &handle, &t_err));
        CHECK_OK(hf_handle_extend(b, "k", &handle, &opts, &t_err));
        CHECK_OK(hf_attach(a, "k", &handle, &opts, &lk, &t_err));
        CHECK_EQ(hf_fence(lk), handle.fence);
        CHECK_STATUS(hf_attach(b, "k", &handle, &opts, &none, &t_err), HF_LOST);
        CHECK_STATUS(hf_handle_extend(b, "k", &handle, &opts, &t_err), HF_LOST);
        CHECK_STATUS(hf_handle_release(b, "k", &handle, &opts, &t_err),
                     HF_LOST);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK(hf_held(lk));
        if (i == 0 || i == 3) {
            CHECK_OK(hf_inspect(b, "k", &info, &t_err));
            CHECK_EQ(info.fence, handle.fence);
            CHECK_STR(info.owner, hf_token(lk));
            CHECK_STR(info.note, "nightly");
        }
        CHECK_OK(hf_release(lk, &t_err));
        CHECK_EQ(rt_int(&s, "EXISTS holdfast:k {holdfast:k}:owners:"), 0);
        hf_close(a);
        hf_close(b);
    }
    rt_end(&s);
}

/* Hold, or let go, what the first connection sends. */
static void first_sends(struct proxy *p, const char *verb)
{
    char command[32], answer[128];

    snprintf(command, sizeof(command), "conn 1 up %s", verb);
    CHECK(net_tell(p->net, command, answer, sizeof(answer)));
}

TEST(a_handle_stays_good_when_a_request_to_take_it_up_arrives_too_late)
{
    static const char *const owners[] = {NULL, "order-7"};
    struct hf_lock_opts opts = rt_opts(20000, 0);
    struct rt_server s = {0};
    struct hf_handle handle = HF_HANDLE_INIT;
    struct proxy p;
    hf_client *near, *far;
    hf_lock *lk = NULL;
    long long calls;
    int i;

    rt_start(&s, NULL);
    near = rt_open(&s, "");
    for (i = 0; i < 2; i++) {
        opts.owner = owners[i];
        proxy_start(&p, &s);
        CHECK_OK(hf_open(rt_url(p.port, "?timeout=300ms"), NULL, &far, &t_err));
        CHECK_OK(hf_acquire(near, "k", 0, &opts, &lk, &t_err));
        CHECK_OK(hf_detach(lk, &handle, &t_err));
        first_sends(&p, "hold");
        CHECK_STATUS(hf_attach(far, "k", &handle, &opts, &lk, &t_err),
                     HF_UNCERTAIN);
        /* It is taken back, over a connection that works. */
        t_poll_until(rt_int(&s, "ZCOUNT {holdfast:k}:queue: 7e15 inf") == 1,
                     20000);
        calls = rt_calls(&s, "evalsha");
        first_sends(&p, "pass");
        t_poll_until(rt_calls(&s, "evalsha") > calls, 10000);
        CHECK_OK(hf_handle_extend(near, "k", &handle, &opts, &t_err));
        CHECK_OK(hf_attach(near, "k", &handle, &opts, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(far);
        proxy_stop(&p);
        rt_do(&s, "DEL {holdfast:k}:queue:");
    }
    hf_close(near);
    rt_end(&s);
}

TEST(a_token_that_was_replaced_in_doubt_takes_nothing_later)
{
    static const char *const owners[] = {NULL, "order-7"};
    struct hf_lock_opts opts = rt_opts(20000, 0);
    struct rt_server s = {0};
    struct hf_handle handle = HF_HANDLE_INIT;
    struct proxy p;
    hf_client *near, *far;
    hf_lock *lk = NULL;
    char answer[128];
    int i;

    rt_start(&s, NULL);
    near = rt_open(&s, "");
    for (i = 0; i < 2; i++) {
        opts.owner = owners[i];
        proxy_start(&p, &s);
        CHECK_OK(hf_open(rt_url(p.port, ""), NULL, &far, &t_err));
        CHECK_OK(hf_acquire(near, "k", 0, &opts, &lk, &t_err));
        CHECK_OK(hf_detach(lk, &handle, &t_err));
        /* The first request is served, and its answer is lost. */
        CHECK(net_tell(p.net, "conn 1 down cut 0", answer, sizeof(answer)));
        CHECK_OK(hf_attach(far, "k", &handle, &opts, &lk, &t_err));
        CHECK(rt_text(&s, "ZSCORE {holdfast:k}:queue: -%s", handle.token)[0]);
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(far);
        proxy_stop(&p);
        rt_do(&s, "DEL {holdfast:k}:queue:");
    }
    hf_close(near);
    rt_end(&s);
}

/* What refuses it when it arrives late outlives those who wait meanwhile. */
TEST(a_claim_with_a_long_lease_is_remembered_beside_short_ones)
{
    struct hf_lock_opts opts = rt_opts(3600000, 0);
    struct rt_server s = {0};
    struct rt_waiter w;
    struct proxy p;
    hf_client *near, *far;
    hf_lock *lk = NULL;

    rt_start(&s, NULL);
    near = rt_open(&s, "?keep=1m");
    proxy_start(&p, &s);
    CHECK_OK(
        hf_open(rt_url(p.port, "?keep=1m&timeout=300ms"), NULL, &far, &t_err));
    first_sends(&p, "hold");
    CHECK_STATUS(hf_acquire(far, "k", 0, &opts, &lk, &t_err), HF_UNCERTAIN);
    t_poll_until(rt_int(&s, "ZCOUNT {holdfast:k}:queue: 7e15 inf") == 1, 20000);
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:queue:"), 3600000);
    lk = rt_lock(near, "k", 0, 5000, 0);
    w = rt_waiter(near, "k", 20000, 5000, HF_FAIR);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 1 && rt_hears(&s, "k"), 5000);
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:queue:"), 3500000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    hf_close(far);
    hf_close(near);
    proxy_stop(&p);
    rt_do(&s, "DEL {holdfast:k}:queue:");
    rt_end(&s);
}

/* The server keeps it for as long as the first holder asked for. */
TEST(a_lock_that_was_taken_up_is_given_back_for_as_long_as_it_can_be_there)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    struct hf_handle handle = HF_HANDLE_INIT;
    struct proxy p;
    hf_client *near, *far;
    hf_lock *lk = NULL;

    rt_start(&s, NULL);
    near = rt_open(&s, "");
    proxy_start(&p, &s);
    CHECK_OK(hf_open(rt_url(p.port, "?timeout=300ms"), NULL, &far, &t_err));
    CHECK_OK(hf_acquire(near, "k", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    opts.ttl_ms = 500;
    CHECK_OK(hf_attach(far, "k", &handle, &opts, &lk, &t_err));
    proxy_break(&p, PROXY_FREEZE);
    CHECK(hf_release(lk, &t_err) != HF_OK);
    t_sleep_ms(2000); /* The lease that was asked for last is over. */
    CHECK_GT(rt_int(&s, "PTTL holdfast:k"), 30000);
    proxy_break(&p, PROXY_PASS);
    t_poll_until(rt_int(&s, "EXISTS holdfast:k") == 0, 20000);
    hf_close(far);
    proxy_stop(&p);
    hf_close(near);
    rt_end(&s);
}

/* ---- owner ids --------------------------------------------------------- */

TEST(an_owner_id_joins_nothing_but_grants_of_that_owner_id)
{
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(5000, 0);
    hf_client *a, *b;
    hf_lock *lk, *owned = NULL, *none = NULL;
    uint64_t fence;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    /* Somebody's token. */
    lk = rt_lock(a, "k", 0, 20000, 0);
    opts.owner = hf_token(lk);
    CHECK_STATUS(hf_acquire(b, "k", 0, &opts, &none, &t_err), HF_BUSY);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    /* What another library has put there, before and after a grant. */
    opts.owner = "worker-1";
    rt_do(&s, "SET holdfast:k worker-1 PX 20000");
    CHECK_STATUS(hf_acquire(b, "k", 0, &opts, &none, &t_err), HF_BUSY);
    rt_do(&s, "DEL holdfast:k");
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &owned, &t_err));
    CHECK_GT(hf_fence(owned), fence);
    rt_do(&s, "SET holdfast:k worker-1 PX 20000");
    CHECK_STATUS(hf_acquire(b, "k", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_extend(owned, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(owned, &t_err), HF_LOST);
    CHECK_STR(rt_text(&s, "GET holdfast:k"), "worker-1");
    rt_do(&s, "DEL holdfast:k {holdfast:k}:owners:");
    /* Its own, it joins. */
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &owned, &t_err));
    CHECK_OK(hf_acquire(b, "k", 0, &opts, &lk, &t_err));
    CHECK_EQ(hf_fence(owned), hf_fence(lk));
    CHECK_OK(hf_release(owned, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* The claims of the owner id are left over beside it. */
TEST(what_another_put_in_place_of_an_owner_ids_lock_is_left_alone)
{
    static const char *const values[] = {"worker 7", "me 7", "worker"};
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(20000, HF_MANUAL);
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *client;
    hf_lock *lk = NULL;
    size_t i;
    int way;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    opts.owner = "me";
    for (i = 0; i < sizeof(values) / sizeof(values[0]); i++)
        for (way = 0; way < 3; way++) {
            opts.min_hold_ms = way == 1 ? 5000 : 0;
            CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
            if (way == 2)
                CHECK_OK(hf_detach(lk, &handle, &t_err));
            rt_do(&s, "SET holdfast:k %s PX 30000", values[i]);
            CHECK_STATUS(
                way == 2 ? hf_handle_release(client, "k", &handle, NULL, &t_err)
                         : hf_release(lk, &t_err),
                HF_LOST);
            CHECK_STR(rt_text(&s, "GET holdfast:k"), values[i]);
            rt_do(&s, "DEL holdfast:k {holdfast:k}:owners:");
        }
    hf_close(client);
    rt_end(&s);
}

TEST(a_grant_that_was_broken_is_joined_and_extended_by_nobody)
{
    struct rt_server s = {0};
    struct hf_lock_opts opts = rt_opts(20000, HF_MANUAL);
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *lk = NULL, *none = NULL;
    uint64_t fence;
    long long left;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    opts.owner = "order-7";
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
    fence = hf_fence(lk);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_break(b, "k", fence, &t_err));
    left = rt_int(&s, "PTTL holdfast:k");
    opts.ttl_ms = 60000;
    CHECK_STATUS(hf_acquire(b, "k", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_LE(rt_int(&s, "PTTL holdfast:k"), left);
    CHECK_STATUS(hf_handle_release(a, "k", &handle, &opts, &t_err), HF_LOST);
    CHECK_OK(hf_acquire(b, "k", 0, &opts, &lk, &t_err));
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(those_who_wait_with_one_owner_id_have_the_lock_together)
{
    enum { N = 3 };
    struct rt_server s = {0};
    hf_client *client[N], *holder;
    struct rt_waiter w[N];
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    holder = rt_open(&s, "");
    lk = rt_lock(holder, "k", 0, 60000, 0);
    for (i = 0; i < N; i++) {
        client[i] = rt_open(&s, "");
        w[i] = rt_waiter(client[i], "k", 20000, 60000, 0);
        w[i].owner = "order-7";
        w[i].hold_ms = 3000;
        rt_wait_start(&w[i]);
        t_poll_until(rt_waiters(&s, "k") == i + 1 && rt_hears(&s, "k"), 5000);
    }
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < N; i++) {
        rt_wait_join(&w[i]);
        CHECK_EQ(w[i].fence, w[0].fence);
        hf_close(client[i]);
    }
    hf_close(holder);
    rt_end(&s);
}

/* ---- companions -------------------------------------------------------- */

TEST(a_lease_that_is_longer_than_companions_are_kept_outlives_nothing)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, INT64_C(30) * 86400 * 1000, HF_MANUAL);
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:meta:"),
             rt_int(&s, "PTTL holdfast:k"));
    CHECK_OK(hf_extend(lk, INT64_C(60) * 86400 * 1000, &t_err));
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:meta:"),
             rt_int(&s, "PTTL holdfast:k"));
    /* And if they go all the same, what is held is still held. */
    rt_do(&s, "DEL {holdfast:k}:meta:");
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_check(client, "k", hf_fence(lk), &t_err));
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:meta:"),
             rt_int(&s, "PTTL holdfast:k"));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

/* Else the next would have a smaller one. */
static void fence_is_kept(struct rt_server *s, hf_client *client,
                          unsigned flags, size_t n)
{
    struct hf_lock_opts opts = rt_opts(60000, flags);
    const char *both[] = {"k", "other"};
    hf_lock *locks[2];
    size_t i;

    rt_do(s, "PEXPIRE {holdfast:k}:meta: 100000");
    CHECK_OK(hf_acquire_all(client, both, n, 0, &opts, locks, &t_err));
    CHECK_GT(hf_fence(locks[0]), 5000000000000000);
    CHECK_GT(rt_int(s, "PTTL {holdfast:k}:meta:"), 86400000);
    for (i = 0; i < n; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
}

TEST(a_fence_that_is_ahead_of_the_clock_is_kept_while_it_is_used)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    rt_do(&s, "HSET {holdfast:k}:meta: g %s",
          "5000000000000000 5000000000000 0 0 ");
    fence_is_kept(&s, client, 0, 2);
    fence_is_kept(&s, client, HF_SHARED, 1);
    fence_is_kept(&s, client, HF_FAIR, 1);
    rt_do(&s, "PEXPIRE {holdfast:k}:meta: 100000");
    lk = rt_lock(client, "k", 0, 60000, 0);
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:meta:"), 86400000);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

static void check_fence_outlives(struct rt_server *s)
{
    CHECK_GT(rt_int(s, "PTTL holdfast:k"), 3000000);
    CHECK_GT(rt_int(s, "PTTL {holdfast:k}:meta:"),
             rt_int(s, "PTTL holdfast:k"));
}

/* Neither one that waits for a moment, nor one that shares it, nor one that
 * takes it up. */
TEST(short_leases_do_not_make_a_long_one_forget_its_fence)
{
    struct hf_lock_opts brief = rt_opts(10000, HF_MANUAL);
    struct hf_lock_opts opts = rt_opts(3600000, HF_MANUAL);
    struct rt_server s = {0};
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_client *a, *b;
    hf_lock *lk = NULL, *other = NULL;

    rt_start(&s, NULL);
    a = rt_open(&s, "?keep=1m");
    b = rt_open(&s, "?keep=1m");
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
    CHECK_STATUS(hf_acquire(b, "k", 200, &brief, &other, &t_err), HF_TIMEOUT);
    check_fence_outlives(&s);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    CHECK_OK(hf_attach(b, "k", &handle, &brief, &lk, &t_err));
    check_fence_outlives(&s);
    CHECK_OK(hf_release(lk, &t_err));
    opts.owner = brief.owner = "order-7";
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_acquire(b, "k", 0, &brief, &other, &t_err));
    check_fence_outlives(&s);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(other, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(companions_are_kept_as_long_as_the_url_says)
{
    struct rt_server s = {0};
    hf_client *client, *other;
    struct rt_waiter w;
    uint64_t fence;
    hf_lock *lk;

    rt_start(&s, NULL);
    rt_check_refused(rt_url(s.port, "?keep=59s"), HF_INVALID, "keep=");
    rt_check_refused(rt_url(s.port, "?keep=9000h"), HF_INVALID, "keep=");
    client = rt_open(&s, "?keep=1m");
    other = rt_open(&s, "?keep=1m");
    lk = rt_lock(client, "k", 0, 5000, 0);
    fence = hf_fence(lk);
    CHECK_LE(rt_int(&s, "PTTL {holdfast:k}:meta:"), 65000);
    w = rt_waiter(other, "k", 20000, 90000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&s, "k") == 1 && rt_hears(&s, "k"), 5000);
    /* A place lasts as long as its waiter's patience. */
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:meta:"), 90000);
    CHECK_GT(rt_int(&s, "PTTL {holdfast:k}:queue:"), 90000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    rt_do(&s, "DEL {holdfast:k}:meta:"); /* as if it had expired */
    lk = rt_lock(client, "k", 0, 5000, 0);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(other);
    rt_end(&s);
}

/* What ended the claim of a waiter, and had no answer, arrives while it waits:
 * the server refuses the claim from then on, and the waiter goes on with
 * another. */
TEST(a_waiter_whose_claim_was_given_back_goes_on_with_another)
{
    static const char *const owners[] = {NULL, "order-7"};
    struct rt_server s = {0};
    hf_client *client;
    struct rt_waiter w;
    redisReply *first;
    char token[64];
    int i;

    rt_start(&s, NULL);
    for (i = 0; i < 2; i++) {
        client = rt_open(&s, "");
        rt_do(&s, "SET holdfast:k another PX 60000");
        w = rt_waiter(client, "k", 20000, 5000, HF_POLL);
        w.retry_ms = 50;
        w.owner = owners[i];
        rt_wait_start(&w);
        t_poll_until(rt_waiters(&s, "k") == 1, 5000);
        first = rt_ask(&s, "ZRANGE {holdfast:k}:queue: 0 0");
        snprintf(token, sizeof(token), "-%s", first->element[0]->str);
        freeReplyObject(first);
        rt_do(&s, "ZADD {holdfast:k}:queue: 9e15 %s", token);
        rt_do(&s, "DEL holdfast:k");
        rt_wait_join(&w);
        hf_close(client);
        rt_do(&s, "DEL {holdfast:k}:queue:");
    }
    rt_end(&s);
}

T_MAIN
