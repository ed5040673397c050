/* SPDX-License-Identifier: MIT
 *
 * groups.c - locks that several have, and locks that are kept, as the server
 * stores them: what others find, what a stranger wrote, who is told of an
 * earlier end, and dead waiters among living ones.
 */
#include "fleet.h"
#include "proxy.h"

#define LOCK_AND_OWNERS "holdfast:k {holdfast:k}:owners:"

static struct hf_lock_opts with_permits(int64_t ttl_ms, int32_t n)
{
    struct hf_lock_opts opts = rt_opts(ttl_ms, 0);

    opts.permits = n;
    return opts;
}

static hf_lock *take(hf_client *client, const struct hf_lock_opts *opts)
{
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "k", 0, opts, &lk, &t_err));
    return lk;
}

/* ---- what is stored ---------------------------------------------------- */

TEST(the_key_says_how_it_is_used_and_goes_with_the_last)
{
    struct hf_lock_opts read = rt_opts(60000, HF_SHARED);
    struct hf_lock_opts brief = rt_opts(5000, HF_SHARED | HF_MANUAL);
    struct hf_lock_opts three = with_permits(60000, 3);
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *one, *two;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    one = take(client, &read);
    two = take(client, &brief);
    CHECK_STR(rt_text(&s, "GET holdfast:k"), "shared:");
    CHECK_GT(rt_int(&s, "PTTL holdfast:k"), 50000);
    CHECK_OK(hf_release(one, &t_err));
    /* What is left is the end of the other. */
    CHECK_LE(rt_int(&s, "PTTL holdfast:k"), 5000);
    CHECK_LE(rt_int(&s, "PTTL {holdfast:k}:owners:"), 5000);
    CHECK_OK(hf_extend(two, 20000, &t_err));
    CHECK_GT(rt_int(&s, "PTTL holdfast:k"), 15000);
    CHECK_OK(hf_release(two, &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
    one = take(client, &three);
    CHECK_STR(rt_text(&s, "GET holdfast:k"), "permits 3:");
    CHECK_OK(hf_release(one, &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
    hf_close(client);
    rt_end(&s);
}

TEST(who_knows_only_the_key_finds_it_taken)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_SHARED);
    struct hf_lock_opts plain = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_client *client, *bare[2];
    hf_lock *lk, *none = NULL;
    redisReply *reply;
    int i, j;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    bare[0] = rt_open(&s, "?acquire=set");
    bare[1] = rt_open(&s, "?acquire=script");
    for (i = 0; i < 3; i++) {
        if (i == 1)
            opts = with_permits(60000, 2);
        if (i == 2)
            opts = rt_opts(60000, 0);
        lk = take(client, &opts);
        if (i == 2)
            CHECK_OK(hf_downgrade(lk, &t_err));
        for (j = 0; j < 2; j++)
            CHECK_STATUS(hf_acquire(bare[j], "k", 0, &plain, &none, &t_err),
                         HF_BUSY);
        reply = rt_ask(&s, "SET holdfast:k theirs NX PX 60000");
        CHECK_EQ(reply->type, REDIS_REPLY_NIL);
        freeReplyObject(reply);
        CHECK_OK(hf_release(lk, &t_err));
    }
    rt_do(&s, "SET holdfast:k theirs NX PX 60000");
    opts = rt_opts(60000, HF_SHARED);
    CHECK_STATUS(hf_acquire(client, "k", 0, &opts, &none, &t_err), HF_BUSY);
    rt_do(&s, "DEL holdfast:k");
    for (j = 0; j < 2; j++) {
        opts.flags = HF_SHARED;
        CHECK_STATUS(hf_acquire(bare[j], "k", 0, &opts, &none, &t_err),
                     HF_UNSUPPORTED);
        opts.flags = 0;
        opts.permits = 2;
        CHECK_STATUS(hf_acquire(bare[j], "k", 0, &opts, &none, &t_err),
                     HF_UNSUPPORTED);
        CHECK(strstr(t_err.text, "nothing but the key"));
        opts.permits = 0;
        hf_close(bare[j]);
    }
    hf_close(client);
    rt_end(&s);
}

/* A value that looks like a group's, with and without something beside it that
 * looks like its members. */
TEST(nobody_joins_what_only_looks_shared)
{
    static const char *const beside[] = {
        NULL, "SET {holdfast:k}:owners: x PX 60000",
        "HSET {holdfast:k}:owners: x y",
        "EVAL return(redis.call('hset',KEYS[1],'','x')) 1 "
        "{holdfast:k}:owners:"};
    static const char *const values[] = {"shared:", "permits 2:", "kept:"};
    struct hf_lock_opts read = rt_opts(60000, HF_SHARED);
    struct hf_lock_opts two = with_permits(60000, 2);
    struct hf_lock_opts plain = rt_opts(60000, 0);
    struct hf_info info = HF_INFO_INIT;
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *none = NULL;
    size_t i, j;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < 3; i++) {
        for (j = 0; j < 4; j++) {
            rt_do(&s, "DEL " LOCK_AND_OWNERS);
            rt_do(&s, "SET holdfast:k %s PX 60000", values[i]);
            if (beside[j])
                rt_do(&s, beside[j]);
            CHECK_STATUS(hf_acquire(client, "k", 0, &read, &none, &t_err),
                         HF_BUSY);
            CHECK_STATUS(hf_acquire(client, "k", 0, &plain, &none, &t_err),
                         HF_BUSY);
            CHECK_STATUS(hf_acquire(client, "k", 0, &two, &none, &t_err),
                         HF_INVALID);
            CHECK_STR(rt_text(&s, "GET holdfast:k"), values[i]);
            if (j != 1) {
                CHECK_OK(hf_inspect(client, "k", &info, &t_err));
                CHECK(info.held && !info.shared && !info.permits);
            }
        }
    }
    rt_do(&s, "DEL " LOCK_AND_OWNERS);
    hf_close(client);
    rt_end(&s);
}

/* An operator deletes the key, or the server evicts it. */
TEST(members_are_lost_with_their_key)
{
    static const char *const gone[] = {"holdfast:k", "{holdfast:k}:owners:"};
    struct hf_lock_opts read = rt_opts(60000, HF_SHARED);
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk, *next;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    for (i = 0; i < 2; i++) {
        lk = take(client, &read);
        rt_do(&s, "DEL %s", gone[i]);
        CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
        rt_do(&s, "DEL holdfast:k");
        next = take(client, &read);
        CHECK_GT(hf_fence(next), hf_fence(lk));
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        CHECK_OK(hf_extend(next, 0, &t_err));
        CHECK_EQ(rt_int(&s, "HLEN {holdfast:k}:owners:"), 2);
        CHECK_OK(hf_release(next, &t_err));
    }
    rt_do(&s, "FLUSHALL");
    lk = take(client, &read);
    rt_do(&s, "SCRIPT FLUSH");
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

/* ---- who waits --------------------------------------------------------- */

static void wait_for(struct rt_server *s, hf_client *client,
                     struct rt_waiter *w, unsigned flags)
{
    *w = rt_waiter(client, "k", 60000, 600000, flags);
    rt_wait_start(w);
    t_poll_until(rt_hears(s, "k"), 10000);
}

/* It looks again after half a lease, which is long: it must be told. */
TEST(who_waits_is_told_that_a_lock_is_kept_for_less_than_its_lease)
{
    struct hf_lock_opts opts = rt_opts(600000, 0);
    static const char *const modes[] = {"", "?queue=barge", ""};
    struct rt_server s = {0};
    hf_client *a, *b;
    struct rt_waiter w;
    int64_t began;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    for (i = 0; i < 3; i++) {
        a = rt_open(&s, modes[i]);
        b = rt_open(&s, modes[i]);
        opts.flags = i == 2 ? HF_SHARED : 0;
        opts.min_hold_ms = 1500;
        began = t_now_ms();
        lk = take(a, &opts);
        wait_for(&s, b, &w, 0);
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
        CHECK_GE(w.got_at - began, 1500);
        CHECK_LT(w.got_at - began, 60000);
        hf_close(a);
        hf_close(b);
    }
    rt_end(&s);
}

TEST(a_writer_is_told_that_only_a_reader_with_a_short_lease_is_left)
{
    struct hf_lock_opts longer = rt_opts(600000, HF_SHARED);
    struct hf_lock_opts brief = rt_opts(2000, HF_SHARED | HF_MANUAL);
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *living, *dead;
    struct rt_waiter w;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    living = take(a, &longer);
    dead = take(a, &brief);
    wait_for(&s, b, &w, 0);
    CHECK_OK(hf_release(living, &t_err));
    rt_wait_join(&w);
    CHECK(!hf_held(dead));
    CHECK_STATUS(hf_release(dead, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* The place of a waiter that nobody hears for, with this entry (entry.lua). */
static void dead_place(struct rt_server *s, const char *token, const char *more)
{
    rt_do(s, "EVAL %s 2 {holdfast:k}:queue: {holdfast:k}:meta: %s %s",
          "local t=redis.call('TIME')[1]*1000;"
          "local e={t+600000,'','0 ','holdfast:wake:nobodys',1,t+600000,"
          "tonumber(ARGV[2])};"
          "redis.call('ZADD',KEYS[1],1,ARGV[1]);"
          "return redis.call('HSET',KEYS[2],ARGV[1],cmsgpack.pack(e))",
          token, more);
}

TEST(a_dead_writer_in_front_keeps_no_reader_out)
{
    struct hf_lock_opts read = rt_opts(60000, HF_SHARED);
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *one, *two;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    one = take(a, &read);
    dead_place(&s, "00000000000000000000000000000001", "-");
    two = take(b, &read);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    rt_do(&s, "DEL {holdfast:k}:queue: {holdfast:k}:meta:");
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(dead_readers_and_dead_permits_in_front_are_passed_over)
{
    struct hf_lock_opts opts = rt_opts(600000, HF_SHARED);
    struct rt_server s = {0};
    hf_client *a, *b;
    struct rt_waiter w;
    char token[40];
    hf_lock *lk;
    int i, j;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    for (i = 0; i < 2; i++) {
        opts = rt_opts(600000, 0);
        lk = take(a, &opts);
        for (j = 0; j < 300; j++) {
            snprintf(token, sizeof(token), "%032d", j);
            dead_place(&s, token, i ? "5" : "0");
        }
        w = rt_waiter(b, "k", 60000, 600000, HF_SHARED);
        rt_wait_start(&w);
        t_poll_until(rt_waiters(&s, "k") == 301, 10000);
        t_poll_until(rt_channels(&s) > 0, 10000);
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
        CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
        rt_do(&s, "DEL {holdfast:k}:queue: {holdfast:k}:meta:");
    }
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* More than one step lets in. */
TEST_TIMEOUT(any_number_of_readers_goes_in_together, 120)
{
    enum { N = 150 };
    struct hf_lock_opts read = rt_opts(600000, HF_SHARED);
    struct hf_lock_opts write = rt_opts(600000, 0);
    struct hf_event event = HF_EVENT_INIT;
    struct rt_server s = {0};
    hf_request *request;
    hf_client *a, *b;
    hf_lock *lk, *in[N];
    int i, n = 0;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    lk = take(a, &write);
    for (i = 0; i < N; i++)
        CHECK_OK(hf_acquire_start(b, "k", -1, &read, NULL, &request, &t_err));
    t_poll_until(rt_waiters(&s, "k") == N, 30000);
    t_poll_until(rt_hears(&s, "k"), 10000);
    CHECK_OK(hf_release(lk, &t_err));
    while (n < N) {
        if (!hf_next_event(b, &event)) {
            t_sleep_ms(2);
            continue;
        }
        CHECK_EQ(event.type, HF_GRANTED);
        in[n++] = event.lock;
    }
    for (i = 0; i < N; i++) /* all at once */
        CHECK(hf_held(in[i]));
    CHECK_EQ(rt_int(&s, "HLEN {holdfast:k}:owners:"), N + 1);
    for (i = 0; i < N; i++)
        CHECK_OK(hf_release(in[i], &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* The message that wakes a waiter brings fence and slot: until it renews, the
 * waiter asks the server nothing. */
TEST(a_permit_is_handed_over_with_its_slot)
{
    struct hf_lock_opts opts = with_permits(600000, 2);
    struct rt_server s = {0};
    hf_client *a, *b;
    struct hf_event event = HF_EVENT_INIT;
    hf_request *request;
    hf_lock *one, *two;
    int slot;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    one = take(a, &opts);
    two = take(a, &opts);
    slot = hf_slot(one);
    CHECK_OK(hf_acquire_start(b, "k", -1, &opts, NULL, &request, &t_err));
    t_poll_until(rt_waiters(&s, "k") == 1 && rt_hears(&s, "k"), 10000);
    CHECK_OK(hf_release(one, &t_err));
    /* It has it by now, whether it has heard of that or not. */
    CHECK_EQ(rt_int(&s, "HLEN {holdfast:k}:owners:"), 4);
    CHECK_EQ(rt_waiters(&s, "k"), 0);
    t_poll_until(hf_next_event(b, &event), 10000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_EQ(hf_slot(event.lock), slot);
    CHECK_OK(hf_release(event.lock, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* ---- owner ids --------------------------------------------------------- */

/* From another process, where the core knows nothing of it. */
TEST(an_owner_id_is_refused_the_other_mode_by_the_server)
{
    struct hf_lock_opts read = rt_opts(60000, HF_SHARED);
    struct hf_lock_opts write = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *lk, *none = NULL;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    read.owner = write.owner = "order-7";
    lk = take(a, &read);
    CHECK_STATUS(hf_acquire(b, "k", -1, &write, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "release the shared lock first"));
    CHECK_OK(hf_release(lk, &t_err));
    lk = take(a, &write);
    CHECK_STATUS(hf_acquire(b, "k", -1, &read, &none, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "hf_downgrade()"));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(what_two_processes_of_an_owner_id_have_is_not_downgraded)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *one, *two;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    opts.owner = "order-7";
    one = take(a, &opts);
    two = take(b, &opts);
    CHECK_STATUS(hf_downgrade(one, &t_err), HF_INVALID);
    CHECK(strstr(t_err.text, "more than once"));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_OK(hf_downgrade(one, &t_err));
    CHECK_STR(rt_text(&s, "GET holdfast:k"), "shared:");
    CHECK_OK(hf_release(one, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* One process keeps it while another with the same owner id is at work, which
 * then ends, too. */
TEST(a_kept_claim_outlasts_the_others_of_its_owner_id)
{
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct hf_info info = HF_INFO_INIT;
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *one, *two, *none = NULL;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    opts.owner = "order-7";
    two = take(b, &opts);
    opts.min_hold_ms = 600000;
    one = take(a, &opts);
    CHECK_OK(hf_release(one, &t_err));
    CHECK_OK(hf_extend(two, 0, &t_err));
    CHECK_OK(hf_release(two, &t_err));
    CHECK_STR(rt_text(&s, "GET holdfast:k"), "kept:");
    CHECK_OK(hf_inspect(b, "k", &info, &t_err));
    CHECK(info.held && info.kept && info.left_ms > 60000);
    CHECK_STATUS(hf_acquire(b, "k", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_break_force(b, "k", info.fence, &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* ---- older clients ----------------------------------------------------- */

/* What a client does that knows nothing of groups, when it releases a plain
 * lock: it gives the first in line the lock alone, and tells it. */
static const char older_release[] =
    "local t=redis.call('ZRANGE',KEYS[3],0,0)[1];"
    "local e=cmsgpack.unpack(redis.call('HGET',KEYS[2],t));"
    "local f=string.match(redis.call('HGET',KEYS[2],'g'),'^%d+');"
    "f=string.format('%.0f',f+1);"
    "redis.call('HSET',KEYS[2],'g',f..' '..string.sub(f,1,-4)..' '..t..' 0 ');"
    "redis.call('HDEL',KEYS[2],t);redis.call('ZREM',KEYS[3],t);"
    "redis.call('SET',KEYS[1],t,'PX',2000);"
    "return redis.call('SPUBLISH',e[4],'+'..t..e[5]..' '..f..' k')";

TEST(a_reader_that_an_older_client_lets_in_has_the_lock)
{
    struct hf_lock_opts read = rt_opts(600000, HF_SHARED);
    struct hf_event event = HF_EVENT_INIT;
    struct rt_server s = {0};
    hf_request *request;
    hf_client *a, *b;
    hf_lock *lk, *none = NULL;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    lk = rt_lock(a, "k", 0, 600000, 0);
    CHECK_OK(hf_acquire_start(b, "k", -1, &read, NULL, &request, &t_err));
    t_poll_until(rt_hears(&s, "k"), 10000);
    rt_do(&s, "EVAL %s 3 holdfast:k {holdfast:k}:meta: {holdfast:k}:queue:",
          older_release);
    t_poll_until(hf_next_event(b, &event), 10000);
    CHECK_EQ(event.type, HF_GRANTED);
    CHECK_OK(hf_extend(event.lock, 0, &t_err));
    CHECK_STATUS(hf_acquire(a, "k", 0, &read, &none, &t_err), HF_BUSY);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_extend(event.lock, 0, &t_err));
    CHECK_OK(hf_release(event.lock, &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* ---- lost answers ------------------------------------------------------ */

/* What is asked again changes nothing more. */
TEST(a_step_whose_answer_is_lost_is_done_once)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_SHARED | HF_MANUAL);
    struct hf_info info = HF_INFO_INIT;
    struct rt_server s = {0};
    hf_client *far, *near;
    struct proxy p;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    proxy_start(&p, &s);
    CHECK_OK(hf_open(rt_url(p.port, "?timeout=5s"), NULL, &far, &t_err));
    near = rt_open(&s, "");
    for (i = 0; i < 2; i++) {
        if (i)
            opts = with_permits(60000, 2);
        proxy_set(&p, PROXY_CUT, 0);
        CHECK_OK(hf_acquire(far, "k", 20000, &opts, &lk, &t_err));
        CHECK_EQ(rt_int(&s, "HLEN {holdfast:k}:owners:"), i ? 3 : 2);
        CHECK_EQ(hf_slot(lk), i ? 0 : -1);
        CHECK_OK(hf_check(near, "k", hf_fence(lk), &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
    }
    opts = rt_opts(60000, 0);
    CHECK_OK(hf_acquire(far, "k", 20000, &opts, &lk, &t_err));
    proxy_set(&p, PROXY_CUT, 0);
    CHECK_OK(hf_downgrade(lk, &t_err));
    CHECK_STR(rt_text(&s, "GET holdfast:k"), "shared:");
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
    opts.min_hold_ms = 600000;
    CHECK_OK(hf_acquire(far, "k", 20000, &opts, &lk, &t_err));
    proxy_set(&p, PROXY_CUT, 0);
    CHECK_STATUS(hf_release(lk, &t_err), HF_UNCERTAIN); /* asked again */
    t_poll_until(hf_inspect(near, "k", &info, &t_err) == HF_OK && info.kept,
                 20000);
    CHECK_OK(hf_break_force(near, "k", info.fence, &t_err));
    hf_close(far);
    hf_close(near);
    proxy_stop(&p);
    rt_end(&s);
}

/* ---- servers ----------------------------------------------------------- */

/* Main key there, members here, for two leases. */
TEST_TIMEOUT(members_outlive_a_slot_that_moves_slowly, 120)
{
    const char *key = fleet_key(0, 0);
    struct hf_lock_opts read = rt_opts(2000, HF_SHARED);
    struct hf_lock_opts two = with_permits(2000, 2);
    char name[64], other[80];
    hf_lock *reader = NULL, *permit = NULL;
    struct fleet f;
    hf_client *a;
    long long slot;
    int64_t end;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    slot = fleet_slot(&f, key);
    snprintf(name, sizeof(name), "holdfast:%s", key);
    snprintf(other, sizeof(other), "x{%s}", name);
    CHECK_OK(hf_acquire(a, key, 0, &read, &reader, &t_err));
    CHECK_OK(hf_acquire(a, other, 0, &two, &permit, &t_err));
    fleet_move_begin(&f, slot, 0, 1);
    fleet_move_key(&f, 0, 1, name);
    for (end = t_now_ms() + 4500; t_now_ms() < end; t_sleep_ms(20))
        CHECK(hf_held(reader) && hf_held(permit));
    fleet_move_rest(&f, slot, 0, 1);
    CHECK_OK(hf_extend(reader, 0, &t_err));
    CHECK_OK(hf_extend(permit, 0, &t_err));
    CHECK_OK(hf_release(reader, &t_err));
    CHECK_OK(hf_release(permit, &t_err));
    hf_close(a);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

TEST(replicas_have_a_member_before_it_counts)
{
    struct hf_lock_opts read = rt_opts(60000, HF_SHARED);
    struct hf_lock_opts two = with_permits(60000, 2);
    struct rt_server s = {0}, replica = {0};
    hf_client *client;
    hf_lock *lk = NULL;
    char port[16];

    rt_start(&s, "--repl-diskless-sync-delay", "0", NULL);
    client = rt_open(&s, "?replicas=1&timeout=3s");
    CHECK_STATUS(hf_acquire(client, "k", 0, &read, &lk, &t_err),
                 HF_UNAVAILABLE);
    CHECK_EQ(rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 0);
    snprintf(port, sizeof(port), "%d", s.port);
    rt_start(&replica, "--replicaof", "127.0.0.1", port, NULL);
    CHECK_OK(hf_acquire(client, "k", 20000, &read, &lk, &t_err));
    CHECK_STR(rt_text(&replica, "GET holdfast:k"), "shared:");
    CHECK_EQ(rt_int(&replica, "HEXISTS {holdfast:k}:owners: %s", hf_token(lk)),
             1);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_acquire(client, "k", 20000, &two, &lk, &t_err));
    CHECK_STR(rt_text(&replica, "GET holdfast:k"), "permits 2:");
    CHECK_EQ(hf_slot(lk), 0);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&replica);
    rt_end(&s);
}

/* None of it needs more memory than there was before. */
TEST(a_full_server_keeps_shares_hands_over_and_releases)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL);
    struct hf_lock_opts read = rt_opts(60000, HF_SHARED);
    struct hf_handle handle = HF_HANDLE_INIT;
    struct rt_server s = {0};
    hf_client *a, *b;
    struct rt_waiter w;
    hf_lock *lk, *none = NULL;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    lk = take(a, &opts);
    wait_for(&s, b, &w, HF_SHARED);
    rt_do(&s, "CONFIG SET maxmemory 1");
    CHECK_STATUS(hf_acquire(a, "new", 0, &read, &none, &t_err), HF_UNAVAILABLE);
    CHECK_OK(hf_downgrade(lk, &t_err));
    rt_wait_join(&w);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_extend(lk, 5000, &t_err));
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    opts.flags |= HF_SHARED;
    CHECK_OK(hf_attach(b, "k", &handle, &opts, &lk, &t_err));
    CHECK_OK(hf_break(a, "k", hf_fence(lk), &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST); /* It has not asked. */
    t_poll_until(!rt_int(&s, "EXISTS " LOCK_AND_OWNERS), 10000);
    rt_do(&s, "CONFIG SET maxmemory 0");
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

T_MAIN
