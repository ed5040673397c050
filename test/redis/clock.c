/* SPDX-License-Identifier: MIT
 *
 * clock.c - a server whose wall clock is set, and one that is still loading.
 *
 * Redis counts expiry by the wall clock, as doc/guarantees.md says: set
 * forward, leases end early and the fence tells; set back, those that run are
 * kept, and the fence rises all the same.
 */
#include "rt.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- the clock --------------------------------------------------------- */

static int64_t *clock_offset;

/* A server whose clock is off by *clock_offset seconds. */
static void start_shifted(struct rt_server *s)
{
    const char *shim = getenv("HF_CLOCK_SHIM");
    static char path[200];
    int fd;

    if (!shim)
        T_SKIP_HOST("the server's clock cannot be moved without the shim");
    snprintf(path, sizeof(path), "%s/clock", t_tmpdir());
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK_GE(fd, 0);
    CHECK_EQ(ftruncate(fd, 8), 0);
    clock_offset = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(clock_offset != MAP_FAILED);
    close(fd);
    setenv("HF_CLOCK_FILE", path, 1);
    setenv("LD_PRELOAD", shim, 1);
    rt_start(s, NULL);
    unsetenv("LD_PRELOAD");
}

static int64_t server_time(struct rt_server *s)
{
    redisReply *reply = rt_ask(s, "TIME");
    int64_t seconds = strtoll(reply->element[0]->str, NULL, 10);

    freeReplyObject(reply);
    return seconds;
}

static void shift(struct rt_server *s, int64_t seconds)
{
    int64_t before = server_time(s), by = seconds - *clock_offset;

    *clock_offset = seconds;
    /* It is the shim that this test stands on. */
    CHECK_LE(llabs(server_time(s) - before - by), 30);
}

TEST(a_clock_set_forward_ends_leases_early_and_the_fence_tells)
{
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *old, *lk;

    start_shifted(&s);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    old = rt_lock(a, "k", 0, 3000, 0);
    shift(&s, 3600);
    lk = rt_lock(b, "k", 10000, 3000, 0);
    CHECK_GT(hf_fence(lk), hf_fence(old));
    t_poll_until(!hf_held(old), 3000);
    CHECK_STATUS(hf_release(old, &t_err), HF_LOST);
    t_sleep_ms(3500);
    CHECK(hf_held(lk)); /* Renewed by the new clock as by the old one. */
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(a_clock_set_back_takes_no_lock_away_and_fences_still_rise)
{
    struct rt_server s = {0};
    hf_client *a, *b;
    struct rt_waiter w;
    hf_lock *lk;
    uint64_t fence;

    start_shifted(&s);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    lk = rt_lock(a, "k", 0, 2000, 0);
    fence = hf_fence(lk);
    w = rt_waiter(b, "k", 30000, 2000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_hears(&s, "k"), 5000);
    shift(&s, -3600);
    t_sleep_ms(4500);
    CHECK(hf_held(lk));
    CHECK_EQ(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE), 0);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    CHECK_GT(w.fence, fence);
    lk = rt_lock(a, "k", 0, 2000, 0);
    CHECK_GT(hf_fence(lk), w.fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* The script has 37 KB, where the rest of what is sent for a key has 0.2. */
TEST(a_collection_sends_its_script_once)
{
    enum { KEYS = 1200 };
    struct hf_collected did = HF_COLLECTED_INIT;
    struct rt_server s = {0};
    hf_client *client;
    long long evals;
    char key[32];

    start_shifted(&s);
    client = rt_open(&s, "");
    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof(key), "once %d", i);
        CHECK_OK(hf_release(rt_lock(client, key, 0, 2000, 0), &t_err));
    }
    shift(&s, 2 * 86400);
    rt_do(&s, "SCRIPT FLUSH");
    evals = rt_calls(&s, "eval");
    CHECK_OK(hf_collect(client, 0, false, &did, &t_err));
    CHECK_EQ(did.looked_at, KEYS);
    CHECK_EQ(did.removed, KEYS);
    CHECK_EQ(rt_calls(&s, "eval") - evals, 1);
    hf_close(client);
    rt_end(&s);
}

/* What is removed is a day old, so a clock that goes back by less gives a larger
 * fence; and what is younger stays, whatever is asked for. */
TEST(what_is_collected_lets_no_fence_go_back)
{
    struct hf_collected did = HF_COLLECTED_INIT;
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk, *held;
    uint64_t fence;

    start_shifted(&s);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 2000, 0);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_collect(client, 0, false, &did, &t_err));
    CHECK_EQ(did.removed, 0);
    CHECK_EQ(did.kept, 1);
    shift(&s, 3 * 86400);
    held = rt_lock(client, "held", 0, 60000, 0);
    CHECK_OK(
        hf_collect(client, INT64_C(7) * 86400 * 1000, false, &did, &t_err));
    CHECK_EQ(did.removed, 0);
    CHECK_OK(hf_collect(client, 86400 * 1000, true, &did, &t_err));
    CHECK_EQ(did.removed, 1);
    CHECK_EQ(rt_int(&s, "EXISTS {holdfast:k}:meta:"), 1);
    CHECK_OK(hf_collect(client, 86400 * 1000, false, &did, &t_err));
    CHECK_EQ(did.removed, 1);
    CHECK_EQ(did.kept, 1);
    CHECK_EQ(rt_int(&s, "EXISTS {holdfast:k}:meta:"), 0);
    CHECK_OK(hf_check(client, "held", hf_fence(held), &t_err));
    CHECK_OK(hf_release(held, &t_err));
    shift(&s, 3 * 86400 - 3600);
    lk = rt_lock(client, "k", 0, 2000, 0);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    rt_end(&s);
}

/* The fence of a lost database is the clock's: it rises unless that went back
 * behind the last grant. */
TEST(fences_rise_over_a_flush_whatever_the_clock_did_before)
{
    static const int64_t jumps[] = {3600, 7200, 7300};
    struct rt_server s = {0};
    uint64_t fence = 0;
    hf_client *client;
    hf_lock *lk;
    int i;

    start_shifted(&s);
    client = rt_open(&s, "");
    for (i = 0; i < 3; i++) {
        lk = rt_lock(client, "k", 0, 5000, 0);
        CHECK_GT(hf_fence(lk), fence);
        fence = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
        rt_do(&s, "FLUSHALL");
        shift(&s, jumps[i]);
    }
    hf_close(client);
    rt_end(&s);
}

/* As when a replica is promoted that has not heard of the last grants, and whose
 * clock is behind. */
static void forget_and_go_back(struct rt_server *s)
{
    rt_do(s, "FLUSHALL");
    shift(s, 0);
}

TEST(a_client_that_has_seen_a_fence_is_granted_no_smaller_one)
{
    struct hf_service svc = {.size = sizeof(svc)};
    struct rt_server s = {0};
    hf_client *client;
    struct rt_waiter w;
    uint64_t fence;
    hf_lock *lk;

    start_shifted(&s);
    shift(&s, 20);
    client = rt_open(&s, "");
    CHECK_OK(hf_release(rt_lock(client, "l", 0, 5000, 0), &t_err));
    lk = rt_lock(client, "k", 0, 5000, 0);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_describe(client, &svc, &t_err));
    CHECK_STR(svc.warning, "");
    forget_and_go_back(&s);
    lk = rt_lock(client, "k", 0, 5000, 0);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_check(client, "k", hf_fence(lk), &t_err));
    CHECK_OK(hf_describe(client, &svc, &t_err));
    CHECK(strstr(svc.warning, "clock") != NULL);
    /* Nor by who passes it on. */
    fence = hf_fence(lk);
    w = rt_waiter(client, "k", 20000, 5000, HF_FAIR);
    rt_wait_start(&w);
    t_poll_until(rt_hears(&s, "k"), 5000);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    CHECK_GT(w.fence, fence);
    hf_close(client);
    rt_end(&s);
}

/* The one that passes it on has not seen the fence. */
TEST(a_lock_is_passed_on_with_no_smaller_fence_to_an_owner_id_either)
{
    static const char *const owners[] = {NULL, "order-7"};
    struct rt_server s = {0};
    hf_client *client, *holder;
    struct rt_waiter w;
    uint64_t fence;
    hf_lock *lk;
    int i;

    start_shifted(&s);
    for (i = 0; i < 2; i++) {
        shift(&s, 20);
        client = rt_open(&s, "");
        lk = rt_lock(client, "k", 0, 5000, 0);
        fence = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
        forget_and_go_back(&s);
        holder = rt_open(&s, "");
        lk = rt_lock(holder, "k", 0, 5000, 0);
        CHECK_LT(hf_fence(lk), fence);
        w = rt_waiter(client, "k", 20000, 5000, HF_FAIR);
        w.owner = owners[i];
        rt_wait_start(&w);
        t_poll_until(rt_hears(&s, "k"), 5000);
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
        CHECK_GT(w.fence, fence);
        hf_close(client);
        hf_close(holder);
    }
    rt_end(&s);
}

/* The next one has not seen it; but the old holder asks for its renewal. */
TEST(a_holder_that_was_forgotten_ends_a_grant_with_a_smaller_fence)
{
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *old, *lk;
    uint64_t fence;

    start_shifted(&s);
    shift(&s, 20);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    old = rt_lock(a, "k", 0, 3000, 0);
    fence = hf_fence(old);
    forget_and_go_back(&s);
    lk = rt_lock(b, "k", 0, 3000, 0); /* Nobody there knows better yet. */
    CHECK_LT(hf_fence(lk), fence);
    t_poll_until(!hf_held(old), 5000);
    t_poll_until(!hf_held(lk), 5000);
    CHECK_STATUS(hf_release(old, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    lk = rt_lock(b, "k", 10000, 3000, 0);
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* A client that has seen the fence of a writer is granted no smaller one with
 * others, whether it asks or is let in. */
TEST(fences_of_groups_are_raised_as_well)
{
    struct hf_lock_opts read = rt_opts(5000, HF_SHARED);
    struct hf_lock_opts two = rt_opts(5000, 0);
    struct rt_server s = {0};
    hf_client *client, *holder;
    struct rt_waiter w;
    hf_lock *lk = NULL, *other;
    uint64_t fence;
    int i;

    start_shifted(&s);
    two.permits = 2;
    for (i = 0; i < 2; i++) {
        const struct hf_lock_opts *opts = i ? &two : &read;

        shift(&s, 20);
        client = rt_open(&s, "");
        lk = rt_lock(client, "k", 0, 5000, 0);
        fence = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
        forget_and_go_back(&s);
        CHECK_OK(hf_acquire(client, "k", 0, opts, &lk, &t_err));
        CHECK_GT(hf_fence(lk), fence);
        CHECK_OK(hf_check(client, "k", hf_fence(lk), &t_err));
        CHECK_OK(hf_extend(lk, 0, &t_err));
        fence = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
        hf_close(client);
    }
    shift(&s, 20);
    client = rt_open(&s, "");
    lk = rt_lock(client, "k", 0, 5000, 0);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    forget_and_go_back(&s);
    holder = rt_open(&s, "");
    other = rt_lock(holder, "k", 0, 5000, 0);
    CHECK_LT(hf_fence(other), fence);
    w = rt_waiter(client, "k", 20000, 5000, HF_SHARED);
    rt_wait_start(&w);
    t_poll_until(rt_hears(&s, "k"), 5000);
    CHECK_OK(hf_release(other, &t_err));
    rt_wait_join(&w);
    CHECK_GT(w.fence, fence);
    lk = rt_lock(holder, "k", 0, 5000, 0); /* who has not seen it */
    CHECK_GT(hf_fence(lk), w.fence);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(holder);
    rt_end(&s);
}

TEST(a_writer_that_was_forgotten_ends_readers_with_smaller_fences)
{
    struct hf_lock_opts read = rt_opts(3000, HF_SHARED);
    struct rt_server s = {0};
    hf_client *a, *b;
    hf_lock *old, *lk = NULL;
    uint64_t fence;

    start_shifted(&s);
    shift(&s, 20);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    old = rt_lock(a, "k", 0, 3000, 0);
    fence = hf_fence(old);
    forget_and_go_back(&s);
    CHECK_OK(hf_acquire(b, "k", 0, &read, &lk, &t_err));
    CHECK_LT(hf_fence(lk), fence);
    t_poll_until(!hf_held(old), 5000);
    t_poll_until(!hf_held(lk), 5000);
    CHECK_STATUS(hf_release(old, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK_OK(hf_acquire(b, "k", 10000, &read, &lk, &t_err));
    CHECK_GT(hf_fence(lk), fence);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* What it sees while it waits counts as well as what it had seen before. */
TEST(a_waiter_that_has_seen_a_fence_is_granted_no_smaller_one)
{
    static const unsigned flags[] = {HF_FAIR, HF_POLL};
    struct rt_server s = {0};
    hf_client *client, *holder;
    struct rt_waiter w;
    uint64_t fence;
    hf_lock *lk, *other;
    int i;

    start_shifted(&s);
    for (i = 0; i < 2; i++) {
        client = rt_open(&s, "");
        holder = rt_open(&s, "");
        lk = rt_lock(holder, "k", 0, 30000, 0);
        w = rt_waiter(client, "k", 20000, 5000, flags[i]);
        w.retry_ms = 100;
        w.cut = true; /* It may be at its release by then. */
        rt_wait_start(&w);
        t_poll_until(rt_waiters(&s, "k") == 1, 5000);
        shift(&s, 20);
        other = rt_lock(client, "l", 0, 5000, 0);
        fence = hf_fence(other);
        CHECK_OK(hf_release(other, &t_err));
        forget_and_go_back(&s);
        rt_do(&s, "CLIENT KILL TYPE normal");
        rt_wait_join(&w);
        CHECK_GT(w.fence, fence);
        hf_release(lk, NULL);
        hf_close(client);
        hf_close(holder);
    }
    rt_stop(&s);
}

/* No time of the client's is sent, so its clock may say what it likes. */
TEST(a_client_whose_clock_is_off_by_an_hour_is_like_any_other)
{
    static const int64_t hours[] = {3600, -3600};
    struct rt_server s = {0};
    char command[1024], path[200];
    FILE *out, *clock;
    long long left;
    int i;

    if (!getenv("HF_CLOCK_SHIM"))
        T_SKIP_HOST("the client's clock cannot be moved without the shim");
    rt_start(&s, NULL);
    snprintf(path, sizeof(path), "%s/clock", t_tmpdir());
    for (i = 0; i < 2; i++) {
        clock = fopen(path, "we");
        CHECK_EQ(fwrite(&hours[i], sizeof(hours[i]), 1, clock), 1);
        fclose(clock);
        /* It is renewed once at least, and says how long the key has then. */
        snprintf(command, sizeof(command),
                 "HF_CLOCK_FILE=%s LD_PRELOAD=%s %s/../cli/holdfast run -u %s "
                 "-t 3s -n k -- sh -c 'unset LD_PRELOAD; sleep 4; "
                 "redis-cli -s %s/sock PTTL holdfast:k'",
                 path, getenv("HF_CLOCK_SHIM"), getenv("HOLDFAST_MODULE_DIR"),
                 rt_url(s.port, ""), s.dir);
        out = popen(command, "re");
        CHECK_EQ(fscanf(out, "%lld", &left), 1);
        CHECK_EQ(pclose(out), 0);
        CHECK_GT(left, 0);
        CHECK_LE(left, 3000);
    }
    rt_end(&s);
}

/* ---- a slot that moves ------------------------------------------------- */

/* As MIGRATE takes a lock to a node whose clock is off by so many seconds: keys
 * keep what is left of their time, and what was stored in them stays as it
 * was. */
static void move_to_clock(struct rt_server *s, int64_t seconds)
{
    static const char *const names[] = {
        "holdfast:k",
        "{holdfast:k}:meta:", "{holdfast:k}:queue:", "{holdfast:k}:owners:"};
    redisReply *dump[4];
    long long left[4];
    int i;

    for (i = 0; i < 4; i++) {
        left[i] = rt_int(s, "PTTL %s", names[i]);
        dump[i] = rt_ask(s, "DUMP %s", names[i]);
        rt_do(s, "DEL %s", names[i]);
    }
    shift(s, seconds);
    for (i = 0; i < 4; i++) {
        if (dump[i]->type == REDIS_REPLY_STRING)
            rt_do(s, "RESTORE %s %lld %b", names[i], left[i], dump[i]->str,
                  dump[i]->len);
        freeReplyObject(dump[i]);
    }
}

/* Two claims of one owner id, which nobody renews but the test. */
static void two_claims(struct rt_server *s, hf_client *client[2],
                       hf_lock *lk[2], int64_t first_ttl)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL);
    int i;

    opts.owner = "order-7";
    for (i = 0; i < 2; i++) {
        client[i] = rt_open(s, "");
        opts.ttl_ms = i ? 60000 : first_ttl;
        CHECK_OK(hf_acquire(client[i], "k", 0, &opts, &lk[i], &t_err));
    }
}

TEST(claims_of_an_owner_id_do_not_end_early_where_the_clock_is_ahead)
{
    struct rt_server s = {0};
    hf_client *client[2];
    hf_lock *lk[2];
    long long left;

    start_shifted(&s);
    two_claims(&s, client, lk, 60000);
    move_to_clock(&s, 3600);
    CHECK_OK(hf_extend(lk[1], 60000, &t_err));
    CHECK_OK(hf_extend(lk[0], 60000, &t_err));
    CHECK_OK(hf_release(lk[1], &t_err));
    left = rt_int(&s, "PTTL holdfast:k");
    CHECK_GT(left, 30000);
    CHECK_LE(left, 60100);
    CHECK_OK(hf_release(lk[0], &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    hf_close(client[0]);
    hf_close(client[1]);
    rt_end(&s);
}

TEST(claims_of_an_owner_id_do_not_end_late_where_the_clock_is_behind)
{
    struct rt_server s = {0};
    hf_client *client[2];
    hf_lock *lk[2];

    start_shifted(&s);
    two_claims(&s, client, lk, 20000);
    move_to_clock(&s, -3600);
    CHECK_OK(hf_extend(lk[1], 60000, &t_err));
    CHECK_LE(rt_int(&s, "PTTL holdfast:k"), 60100);
    CHECK_OK(hf_release(lk[1], &t_err));
    /* What is left is the other's, which may be dead. */
    CHECK_LE(rt_int(&s, "PTTL holdfast:k"), 20100);
    CHECK_LE(rt_int(&s, "PTTL {holdfast:k}:owners:"), 20100);
    CHECK_OK(hf_extend(lk[0], 30000, &t_err));
    CHECK_LE(rt_int(&s, "PTTL holdfast:k"), 30100);
    CHECK_OK(hf_release(lk[0], &t_err));
    CHECK_EQ(rt_int(&s, "EXISTS holdfast:k"), 0);
    hf_close(client[0]);
    hf_close(client[1]);
    rt_end(&s);
}

/* Each has its own end, by the clock of the node before. */
TEST(readers_end_in_time_where_the_clock_is_another)
{
    static const int64_t clocks[] = {3600, -3600};
    struct hf_lock_opts brief = rt_opts(3000, HF_SHARED | HF_MANUAL);
    struct hf_lock_opts longer = rt_opts(60000, HF_SHARED | HF_MANUAL);
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *one = NULL, *two = NULL;
    int i;

    start_shifted(&s);
    for (i = 0; i < 2; i++) {
        client = rt_open(&s, "");
        CHECK_OK(hf_acquire(client, "k", 0, &brief, &one, &t_err));
        CHECK_OK(hf_acquire(client, "k", 0, &longer, &two, &t_err));
        move_to_clock(&s, clocks[i]);
        CHECK_OK(hf_extend(one, 2000, &t_err));
        CHECK_OK(hf_extend(two, 0, &t_err));
        CHECK_GT(rt_int(&s, "PTTL holdfast:k"), 50000);
        CHECK_LE(rt_int(&s, "PTTL holdfast:k"), 60100);
        CHECK_OK(hf_release(two, &t_err));
        CHECK_LE(rt_int(&s, "PTTL holdfast:k"), 2000);
        CHECK_STATUS(hf_release(one, &t_err), HF_OK);
        CHECK_EQ(rt_int(&s, "EXISTS holdfast:k {holdfast:k}:owners:"), 0);
        hf_close(client);
    }
    rt_end(&s);
}

/* ---- loading ----------------------------------------------------------- */

/* One who asks again and again, and what it is told. */
struct asker {
    hf_client *client;
    hf_lock *lock;
    int loading;
};

static void *asker_run(void *arg)
{
    struct asker *me = arg;
    struct hf_lock_opts opts = rt_opts(5000, 0);
    struct hf_error err = {0};
    hf_status st;

    while ((st = hf_acquire(me->client, "new", 0, &opts, &me->lock, &err))) {
        CHECK(st == HF_UNAVAILABLE || st == HF_UNCERTAIN);
        me->loading += strstr(err.text, "LOADING") != NULL;
        t_sleep_ms(5);
    }
    return NULL;
}

TEST(a_server_that_loads_is_unavailable_by_name_and_then_has_the_lock)
{
    struct rt_server s = {0};
    struct asker asker = {0};
    pthread_t thread;
    hf_lock *lk;

    rt_start(&s, "--appendonly", "yes", "--appendfsync", "always",
             "--aof-use-rdb-preamble", "no", "--key-load-delay", "1000",
             "--loading-process-events-interval-bytes", "1024", NULL);
    asker.client = rt_open(&s, "?timeout=2s");
    lk = rt_lock(asker.client, "k", 0, 60000, 0);
    rt_do(&s, "EVAL %s 0",
          "for i=1,3000 do redis.call('SET','stuff'..i,"
          "string.rep('x',100)) end");
    rt_crash(&s);
    CHECK_EQ(pthread_create(&thread, NULL, asker_run, &asker), 0);
    rt_again(&s);
    pthread_join(thread, NULL);
    CHECK_GT(asker.loading, 0);
    CHECK_OK(hf_release(asker.lock, &t_err));
    CHECK(hf_held(lk));
    CHECK_STR(rt_text(&s, "GET holdfast:k"), hf_token(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(asker.client);
    rt_stop(&s);
}

T_MAIN
