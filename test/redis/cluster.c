/* SPDX-License-Identifier: MIT
 *
 * cluster.c - Redis Cluster: wake-ups, slots that move, masters that fail.
 *
 * A fail-over may forget a grant, as doc/guarantees.md says, and the fence
 * rises all the same; a slot that is moved, or a master that hands over in
 * good order, forgets nothing.
 */
#include "fleet.h"
#include "load.h"

/* ---- wake-ups ---------------------------------------------------------- */

/* How often the masters have published, sharded and not. */
static long long published(struct fleet *f, const char *command)
{
    long long n = 0;
    int i;

    for (i = 0; i < FLEET_MASTERS; i++)
        n += rt_calls(&f->node[i], command);
    return n;
}

TEST(a_release_wakes_the_waiter_through_the_shard_alone)
{
    struct fleet f;
    hf_client *a, *b;
    struct rt_waiter w;
    hf_lock *lk;
    int64_t released;
    int node;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    b = fleet_open(&f, "");
    for (node = 0; node < FLEET_MASTERS; node++) {
        const char *key = fleet_key(node, 0);

        lk = rt_lock(a, key, 0, 60000, 0);
        w = rt_waiter(b, key, 40000, 60000, 0);
        rt_wait_start(&w);
        t_poll_until(rt_hears(&f.node[node], key), 10000);
        CHECK_EQ(rt_channels(&f.node[node]), 1);
        released = t_now_ms();
        CHECK_OK(hf_release(lk, &t_err));
        rt_wait_join(&w);
        /* Not by a poll: that comes after half a lease. */
        CHECK_LT(w.got_at - released, 10000);
    }
    CHECK_GE(published(&f, "spublish"), FLEET_MASTERS);
    CHECK_EQ(published(&f, "publish"), 0);
    hf_close(a);
    hf_close(b);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

TEST(a_lock_that_lingers_is_asked_for_and_a_broken_one_told)
{
    struct fleet f;
    hf_client *a, *b;
    struct hf_lock_opts opts = rt_opts(60000, 0);
    struct hf_info info = {.size = sizeof(info)};
    struct rt_waiter w;
    hf_lock *lk = NULL;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    b = fleet_open(&f, "");
    opts.linger_ms = 50000;
    CHECK_OK(hf_acquire(a, "k", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    lk = rt_lock(b, "k", 20000, 60000, 0);
    /* Who has waited can be told. */
    w = rt_waiter(a, "k", 20000, 60000, 0);
    w.hold_ms = 5000;
    rt_wait_start(&w);
    t_poll_until(rt_hears(&f.node[fleet_home("k")], "k"), 10000);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE), 10000);
    CHECK_OK(hf_inspect(b, "k", &info, &t_err));
    CHECK_EQ(info.fence, w.fence);
    CHECK_OK(hf_break(b, "k", info.fence, &t_err));
    pthread_join(w.thread, NULL); /* long before it is renewed */
    CHECK_STATUS(w.st, HF_LOST);
    hf_close(a);
    hf_close(b);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* Each waits for a key of its own, so for a slot of its own. */
TEST_TIMEOUT(a_client_does_not_collect_channels_without_end, 120)
{
    enum { KEYS = 220, AT_ONCE = 20 };
    struct fleet f;
    hf_client *a, *b;
    struct rt_waiter w[AT_ONCE];
    hf_lock *lk[AT_ONCE];
    char key[AT_ONCE][32];
    int i, n;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    b = fleet_open(&f, "");
    for (n = 0; n < KEYS; n += AT_ONCE) {
        for (i = 0; i < AT_ONCE; i++) {
            snprintf(key[i], sizeof(key[i]), "%s", fleet_key(0, n + i));
            lk[i] = rt_lock(a, key[i], 0, 60000, 0);
            w[i] = rt_waiter(b, key[i], 40000, 60000, 0);
            rt_wait_start(&w[i]);
        }
        for (i = 0; i < AT_ONCE; i++)
            t_poll_until(rt_hears(&f.node[0], key[i]), 10000);
        for (i = 0; i < AT_ONCE; i++)
            CHECK_OK(hf_release(lk[i], &t_err));
        for (i = 0; i < AT_ONCE; i++)
            rt_wait_join(&w[i]);
        CHECK_LE(rt_channels(&f.node[0]), 128 + AT_ONCE);
    }
    CHECK_GE(rt_channels(&f.node[0]), 1); /* They are kept while few. */
    hf_close(a);
    hf_close(b);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* ---- fail-overs -------------------------------------------------------- */

static void check_master(struct fleet *f, int node)
{
    t_poll_until(fleet_is_master(f, node), 40000);
}

TEST_TIMEOUT(all_go_on_after_every_kind_of_fail_over_and_fences_rise, 180)
{
    struct fleet f;
    struct load load = {.url = f.url};

    fleet_start(&f, NULL);
    load.key = fleet_key(0, 0);
    load_start(&load);
    load_check_goes_on(&load);
    /* In good order, so that nothing is forgotten. */
    rt_do(&f.node[3], "CLUSTER FAILOVER");
    check_master(&f, 3);
    load_check_goes_on(&load);
    t_poll_until(
        strstr(rt_text(&f.node[3], "INFO replication"), "state=online"), 20000);
    /* It hangs, and comes back as a replica. */
    atomic_store(&load.may_forget, true);
    rt_signal(&f.node[3], SIGSTOP);
    check_master(&f, 0);
    load_check_goes_on(&load);
    rt_signal(&f.node[3], SIGCONT);
    t_poll_until(!fleet_is_master(&f, 3), 40000);
    load_check_goes_on(&load);
    t_poll_until(
        strstr(rt_text(&f.node[0], "INFO replication"), "state=online"), 20000);
    /* It crashes. */
    fleet_crash(&f, 0);
    check_master(&f, 3);
    load_check_goes_on(&load);
    load_stop(&load);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* Master 2 is not of the cluster any more: it has forgotten the others, and they
 * it, and its replica has taken over. */
static void cast_out(struct fleet *f)
{
    const char *id = rt_text(&f->node[2], "CLUSTER MYID");
    int i;

    for (i = 0; i < FLEET_NODES; i++)
        if (i != 2)
            rt_do(&f->node[2], "CLUSTER FORGET %s",
                  rt_text(&f->node[i], "CLUSTER MYID"));
    rt_do(&f->node[5], "CLUSTER FAILOVER TAKEOVER");
    check_master(f, 5);
    for (i = 0; i < FLEET_NODES; i++)
        if (i != 2)
            rt_do(&f->node[i], "CLUSTER FORGET %s", id);
}

/* Take and give back a lock on each shard, soon. */
static void check_serves(hf_client *client)
{
    hf_lock *lk = NULL;
    int i;

    for (i = 0; i < FLEET_MASTERS; i++) {
        t_poll_until(hf_acquire(client, fleet_key(i, 0), 0, NULL, &lk, NULL) ==
                         HF_OK,
                     20000);
        CHECK_OK(hf_release(lk, &t_err));
    }
}

TEST_TIMEOUT(an_idle_client_finds_the_slots_of_a_node_that_was_removed, 120)
{
    struct fleet f;
    hf_client *client;

    fleet_start(&f, NULL);
    client = fleet_open(&f, "");
    check_serves(client);
    rt_do(&f.node[5], "CLUSTER FAILOVER");
    check_master(&f, 5);
    t_poll_until(!fleet_is_master(&f, 2), 20000);
    for (int i = 0; i < FLEET_NODES; i++)
        if (i != 2)
            rt_do(&f.node[i], "CLUSTER FORGET %s",
                  rt_text(&f.node[2], "CLUSTER MYID"));
    rt_do(&f.node[2], "CLUSTER RESET HARD"); /* CLUSTERDOWN is all it says. */
    check_serves(client);
    hf_close(client);
    fleet_stop(&f);
}

TEST_TIMEOUT(a_node_that_knows_a_part_of_the_cluster_hides_no_shard, 120)
{
    struct fleet f;
    hf_client *client = NULL;
    char url[256];

    fleet_start(&f, NULL);
    cast_out(&f);
    snprintf(url, sizeof(url), "redis+cluster://127.0.0.1:%d,127.0.0.1:%d",
             f.node[2].port, f.node[1].port);
    t_poll_until(hf_open(url, NULL, &client, NULL) == HF_OK, 20000);
    check_serves(client);
    hf_close(client);
    fleet_stop(&f);
}

/* The server is busy for a while.  To newer ones a script takes no time, so that
 * it also counts. */
static const char busy_script[] =
    "local function now()"
    "  local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 "
    "end "
    "local till = now() + 400 "
    "for i = 1, 500000 do if now() > till then break end end";

static void *busy_run(void *arg)
{
    redisReply *reply = rt_try(arg, "EVAL %s 0", busy_script);

    CHECK(reply && reply->type == REDIS_REPLY_NIL);
    freeReplyObject(reply);
    return NULL;
}

static pthread_t busy_start(struct rt_server *s)
{
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, busy_run, s), 0);
    t_sleep_ms(200);
    return thread;
}

/* While the server is busy, `second` has its first try answered, then subscribes
 * to its channel, and `lk`, for which another of its client waits, is released.
 * So the answer and the message are sent together. */
static void release_with_answer(struct rt_server *s, struct rt_waiter *second,
                                hf_lock *lk)
{
    pthread_t busy[2];
    int i;

    busy[0] = busy_start(s);
    rt_wait_start(second);
    t_sleep_ms(50);
    busy[1] = busy_start(s); /* served after the try, as it must connect */
    t_sleep_ms(150);
    CHECK_OK(hf_release(lk, &t_err));
    for (i = 0; i < 2; i++)
        pthread_join(busy[i], NULL);
}

TEST(a_message_that_comes_with_an_answer_is_heard)
{
    struct fleet f;
    hf_client *a, *b;
    const char *key = fleet_key(0, 0), *other = fleet_key(0, 1);
    struct rt_waiter w, second;
    hf_lock *lk, *kept;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    b = fleet_open(&f, "");
    lk = rt_lock(a, key, 0, 120000, 0);
    kept = rt_lock(a, other, 0, 120000, 0);
    w = rt_waiter(b, key, 120000, 120000, 0);
    second = rt_waiter(b, other, 120000, 120000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_hears(&f.node[0], key), 10000);
    release_with_answer(&f.node[0], &second, lk);
    t_poll_until(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE) != 0, 10000);
    rt_wait_join(&w);
    CHECK_OK(hf_release(kept, &t_err));
    rt_wait_join(&second);
    hf_close(a);
    hf_close(b);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* ---- slots that move --------------------------------------------------- */

/* The main key is there and its companions are here, for two leases: the server
 * refuses every step on the lock, and yet it is renewed. */
TEST_TIMEOUT(a_held_lock_outlives_a_slot_that_moves_slowly, 120)
{
    struct fleet f;
    hf_client *a, *b, *set;
    const char *key = fleet_key(0, 0);
    struct hf_lock_opts opts = rt_opts(2000, 0);
    struct rt_waiter w;
    hf_lock *lk, *bare, *none = NULL;
    char name[64], bare_key[64];
    long long slot;
    int64_t end;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    b = fleet_open(&f, "");
    set = fleet_open(&f, "?acquire=set");
    snprintf(bare_key, sizeof(bare_key), "x{holdfast:%s}", key);
    slot = fleet_slot(&f, key);
    lk = rt_lock(a, key, 0, 2000, 0);
    w = rt_waiter(b, key, 60000, 2000, 0);
    rt_wait_start(&w);
    t_poll_until(rt_waiters(&f.node[0], key) == 1, 10000);
    fleet_move_begin(&f, slot, 0, 1);
    bare = rt_lock(set, bare_key, 5000, 2000, 0); /* a new key: by ASK */
    snprintf(name, sizeof(name), "holdfast:%s", key);
    fleet_move_key(&f, 0, 1, name);
    CHECK_EQ(hf_acquire(set, key, 0, &opts, &none, &t_err), HF_BUSY);
    for (end = t_now_ms() + 4500; t_now_ms() < end; t_sleep_ms(20)) {
        CHECK(hf_held(lk));
        CHECK(hf_held(bare));
        CHECK_EQ(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE), 0);
    }
    fleet_move_rest(&f, slot, 0, 1);
    CHECK_OK(hf_release(bare, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    CHECK_GT(w.fence, 0);
    hf_close(a);
    hf_close(b);
    hf_close(set);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

static long long fleet_reads(struct fleet *f)
{
    static const char name[] = "total_reads_processed:";
    long long n = 0;

    for (int i = 0; i < FLEET_MASTERS; i++)
        n += strtoll(strstr(rt_text(&f->node[i], "INFO stats"), name) +
                         strlen(name),
                     NULL, 10);
    return n;
}

/* Half of the keys are there, half of them here: at a distance there is no time
 * for a question about each. */
TEST_TIMEOUT(locks_of_a_slot_that_moves_are_renewed_together, 120)
{
    enum { N = 100 };
    const char *key = fleet_key(0, 0);
    struct fleet f;
    hf_client *client;
    hf_lock *lk[N];
    char name[N][96];
    long long slot, reads;
    int64_t end;
    int i;

    fleet_start(&f, NULL);
    client = fleet_open(&f, "");
    slot = fleet_slot(&f, key);
    for (i = 0; i < N; i++) {
        snprintf(name[i], sizeof(name[i]), "x%d{holdfast:%s}", i, key);
        lk[i] = rt_lock(client, name[i], 0, 3000, 0);
    }
    fleet_move_begin(&f, slot, 0, 1);
    for (i = 0; i < N; i += 2) {
        snprintf(name[i], sizeof(name[i]), "holdfast:x%d{holdfast:%s}", i, key);
        fleet_move_key(&f, 0, 1, name[i]);
    }
    reads = fleet_reads(&f);
    for (end = t_now_ms() + 3200; t_now_ms() < end; t_sleep_ms(20))
        for (i = 0; i < N; i++)
            CHECK(hf_held(lk[i]));
    CHECK_LT(fleet_reads(&f) - reads, N);
    fleet_move_rest(&f, slot, 0, 1);
    for (i = 0; i < N; i++)
        CHECK_OK(hf_release(lk[i], &t_err));
    hf_close(client);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* From the first moment on the server refuses every command with several keys,
 * since not all of them are there. */
TEST_TIMEOUT(a_lock_is_taken_kept_and_given_back_while_its_slot_moves, 120)
{
    const char *key = fleet_key(0, 0);
    struct hf_lock_opts opts = rt_opts(2000, 0);
    struct hf_info info = HF_INFO_INIT;
    hf_lock *plain, *owned = NULL, *lk;
    char keys[3][64];
    struct rt_waiter w;
    struct fleet f;
    hf_client *a, *b;
    uint64_t fence;
    long long slot;
    int64_t end;
    int i;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    b = fleet_open(&f, "");
    slot = fleet_slot(&f, key);
    for (i = 0; i < 3; i++)
        snprintf(keys[i], sizeof(keys[i]), "%d{holdfast:%s}", i, key);
    plain = rt_lock(a, keys[0], 0, 2000, 0);
    opts.owner = "order-7";
    CHECK_OK(hf_acquire(a, keys[1], 0, &opts, &owned, &t_err));
    lk = rt_lock(a, keys[2], 0, 2000, 0);
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    fleet_move_begin(&f, slot, 0, 1);
    for (end = t_now_ms() + 3000; t_now_ms() < end; t_sleep_ms(20))
        CHECK(hf_held(plain) && hf_held(owned));
    lk = rt_lock(a, keys[2], 0, 20000, 0);
    CHECK_GT(hf_fence(lk), fence);
    fence = hf_fence(lk);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    w = rt_waiter(b, keys[2], 30000, 20000, 0);
    rt_wait_start(&w);
    t_sleep_ms(300);
    CHECK_EQ(__atomic_load_n(&w.got_at, __ATOMIC_ACQUIRE), 0);
    CHECK_OK(hf_release(lk, &t_err));
    rt_wait_join(&w);
    CHECK_GT(w.fence, fence);
    lk = rt_lock(b, keys[2], 5000, 20000, 0); /* kept over the end of it */
    fleet_move_rest(&f, slot, 0, 1);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_inspect(a, keys[2], &info, &t_err));
    CHECK_EQ(info.fence, hf_fence(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(plain, &t_err));
    CHECK_OK(hf_release(owned, &t_err));
    hf_close(a);
    hf_close(b);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

/* Behind a balancer they tell a port and no name. */
TEST(nodes_that_do_not_say_where_they_are_are_found)
{
    const char *key = fleet_key(0, 0);
    struct fleet f;
    hf_client *client;
    long long slot;
    hf_lock *lk;
    int i;

    fleet_start(&f, NULL);
    slot = fleet_slot(&f, key);
    for (i = 0; i < FLEET_NODES; i++)
        rt_do(&f.node[i],
              "CONFIG SET cluster-preferred-endpoint-type unknown-endpoint");
    client = fleet_open(&f, "");
    lk = rt_lock(client, key, 0, 3000, 0);
    fleet_move_begin(&f, slot, 0, 1);
    fleet_move_rest(&f, slot, 0, 1);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(hf_release(rt_lock(client, key, 0, 3000, 0), &t_err));
    hf_close(client);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

TEST_TIMEOUT(slots_that_move_under_load_lose_nothing, 180)
{
    struct fleet f;
    struct load load = {.url = f.url};
    long long slot;
    int turn, from = 0, to;

    fleet_start(&f, NULL);
    load.key = fleet_key(0, 0);
    slot = fleet_slot(&f, load.key);
    load_start(&load);
    for (turn = 0; turn < 6; turn++, from = to) {
        to = (from + 1) % FLEET_MASTERS;
        load_check_goes_on(&load);
        fleet_move_begin(&f, slot, from, to);
        t_sleep_ms(turn * 20);
        fleet_move_rest(&f, slot, from, to);
    }
    load_check_goes_on(&load);
    load_stop(&load);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

T_MAIN
