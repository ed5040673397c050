/* SPDX-License-Identifier: MIT
 *
 * clocks.c - nodes whose wall clocks are an hour wrong, or are set while a lock
 * is held.
 */
#include "rl.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define TTL  60000
#define HOUR 3600

/* By how many seconds the clock of each node is off. */
static int64_t *off[RL_N];

/* The next server to be started has the clock of node i. */
static const char *shift_next(int i)
{
    static char path[200];

    snprintf(path, sizeof(path), "%s/clock%d", t_tmpdir(), i);
    setenv("HF_CLOCK_FILE", path, 1);
    return path;
}

static void shift_prepare(int i)
{
    const char *path = shift_next(i);
    int fd;

    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK_GE(fd, 0);
    CHECK_EQ(ftruncate(fd, 8), 0);
    off[i] = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(off[i] != MAP_FAILED);
    close(fd);
}

static int64_t node_time(struct rt_server *s)
{
    redisReply *reply = rt_ask(s, "TIME");
    int64_t seconds = strtoll(reply->element[0]->str, NULL, 10);

    freeReplyObject(reply);
    return seconds;
}

static void shift(struct rl *rl, int i, int64_t seconds)
{
    int64_t before = node_time(&rl->nodes[i]), by = seconds - *off[i];

    *off[i] = seconds;
    /* It is the shim that this test stands on. */
    CHECK_LE(llabs(node_time(&rl->nodes[i]) - before - by), 30);
}

/* Five servers with clocks of their own. */
static void shift_start(struct rl *rl, const char *more)
{
    const char *shim = getenv("HF_CLOCK_SHIM");

    if (!shim)
        T_SKIP_HOST("a server's clock cannot be moved without the shim");
    setenv("LD_PRELOAD", shim, 1);
    rl_start_with(rl, more, shift_prepare);
    unsetenv("LD_PRELOAD");
}

TEST(nodes_that_are_an_hour_wrong_either_way_do_not_matter)
{
    struct hf_lock_opts opts = rt_opts(1500, 0);
    struct rl rl;
    hf_client *client, *other;
    hf_lock *lk = NULL, *none = NULL;
    uint64_t last = 0;

    shift_start(&rl, "?quarantine=off");
    shift(&rl, 1, HOUR);
    shift(&rl, 4, -HOUR);
    client = rl_open(&rl);
    other = rl_open(&rl);
    for (int i = 0; i < 5; i++) {
        CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
        CHECK_GT(hf_fence(lk), last);
        last = hf_fence(lk);
        CHECK_STATUS(rl_try(other, "k", TTL, &none), HF_BUSY);
        if (i == 0) { /* It is renewed, on all of them. */
            t_sleep_ms(2500);
            CHECK(hf_held(lk));
        }
        for (int node = 0; node < RL_N; node++)
            CHECK_GT(rt_int(&rl.nodes[node], "PTTL holdfast:k"), 0);
        CHECK_OK(hf_release(lk, &t_err));
        rl_check_clean(&rl);
    }
    hf_close(client);
    hf_close(other);
    rl_end(&rl);
}

static void shift_all(struct rl *rl, int64_t seconds)
{
    for (int i = 0; i < RL_N; i++)
        shift(rl, i, seconds);
}

/* Take it and give it back; the fence, which is larger than `last`. */
static uint64_t use_once(hf_client *client, uint64_t last)
{
    hf_lock *lk = NULL;
    uint64_t fence;

    CHECK_OK(rl_try(client, "k", TTL, &lk));
    fence = hf_fence(lk);
    CHECK_GT(fence, last);
    CHECK_OK(hf_release(lk, &t_err));
    return fence;
}

static long long kept(struct rl *rl)
{
    long long n = 0;

    for (int i = 0; i < RL_N; i++)
        n += rt_int(&rl->nodes[i], "EXISTS {holdfast:k}:meta:");
    return n;
}

/* What is removed is a day old, so a clock that goes back by less gives a larger
 * fence; and what is younger stays, whatever is asked for. */
TEST(what_is_collected_lets_no_fence_go_back)
{
    const int64_t day_ms = INT64_C(86400) * 1000;
    struct hf_collected did = HF_COLLECTED_INIT;
    hf_client *client;
    struct rl rl;
    uint64_t fence;
    hf_lock *held = NULL;

    shift_start(&rl, "?quarantine=off");
    client = rl_open(&rl);
    fence = use_once(client, 0);
    CHECK_OK(hf_collect(client, 0, false, &did, &t_err));
    CHECK_EQ(did.removed, 0);
    CHECK_EQ(did.kept, RL_N);
    shift_all(&rl, 3 * 86400);
    CHECK_OK(rl_try(client, "held", TTL, &held));
    CHECK_OK(hf_collect(client, 7 * day_ms, false, &did, &t_err));
    CHECK_EQ(did.removed, 0);
    CHECK_OK(hf_collect(client, day_ms, true, &did, &t_err));
    CHECK_EQ(did.removed, RL_N);
    CHECK_EQ(kept(&rl), RL_N);
    CHECK_OK(hf_collect(client, day_ms, false, &did, &t_err));
    CHECK_EQ(did.removed, RL_N);
    CHECK_EQ(did.kept, RL_N);
    CHECK_EQ(kept(&rl), 0);
    CHECK_OK(hf_check(client, "held", hf_fence(held), &t_err));
    CHECK_OK(hf_release(held, &t_err));
    shift_all(&rl, 3 * 86400 - HOUR);
    use_once(client, fence);
    hf_close(client);
    rl_end(&rl);
}

/* Those who took it keep it for two hours, and who collects knows nothing of
 * that. */
TEST(what_is_younger_than_a_day_stays_whoever_collects)
{
    struct hf_collected did = HF_COLLECTED_INIT;
    hf_client *client, *collector;
    struct rl rl;
    char url[600];
    uint64_t fence;

    shift_start(&rl, "?quarantine=off");
    snprintf(url, sizeof(url), "%s&keep=2h", rl.url);
    collector = rl_open(&rl);
    CHECK_OK(hf_open(url, NULL, &client, &t_err));
    fence = use_once(client, 0);
    shift_all(&rl, HOUR / 2);
    CHECK_OK(hf_collect(collector, 0, false, &did, &t_err));
    CHECK_EQ(did.kept, RL_N);
    shift_all(&rl, -HOUR / 2);
    use_once(client, fence);
    hf_close(client);
    hf_close(collector);
    rl_end(&rl);
}

/* The fences of an hour that is to come again are kept for that long, although
 * the URL asks for a minute; and then they are forgotten. */
TEST(a_node_forgets_no_fence_before_its_clock_is_past_it)
{
    hf_client *client;
    struct rl rl;
    uint64_t fence;

    shift_start(&rl, "?quarantine=off&keep=1m");
    client = rl_open(&rl);
    shift_all(&rl, HOUR);
    fence = use_once(client, 0);
    shift_all(&rl, 0);
    fence = use_once(client, fence);
    shift_all(&rl, 3 * TTL / 1000);
    CHECK_EQ(kept(&rl), RL_N);
    fence = use_once(client, fence);
    shift_all(&rl, 2 * HOUR);
    t_poll_until(kept(&rl) == 0, 5000);
    use_once(client, fence);
    hf_close(client);
    rl_end(&rl);
}

/* One node is an hour ahead, and the fence is its clock's.  It is not there when
 * the others are to know of it. */
TEST(a_fence_of_a_clock_that_is_ahead_is_kept_by_the_others)
{
    hf_client *client;
    struct rl rl;
    uint64_t fence;

    shift_start(&rl, "?quarantine=off&keep=1m");
    client = rl_open(&rl);
    shift(&rl, 2, HOUR);
    do
        fence = use_once(client, 0);
    while (fence / 1000000 < (uint64_t)node_time(&rl.nodes[0]) + HOUR / 2);
    for (int i = 0; i < RL_N; i++)
        if (i != 2)
            shift(&rl, i, 3 * TTL / 1000);
    rt_crash(&rl.nodes[2]);
    use_once(client, fence);
    hf_close(client);
    shift_next(2);
    rt_again(&rl.nodes[2]);
    rl_end(&rl);
}

TEST(the_clock_of_a_minority_may_be_set_while_a_lock_is_held)
{
    struct rl rl;
    hf_client *client, *other;
    hf_lock *lk = NULL, *none = NULL;

    shift_start(&rl, "?quarantine=off");
    client = rl_open(&rl);
    other = rl_open(&rl);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(rl_try(client, "k", TTL, &lk));
        shift(&rl, i, HOUR); /* Its key lapses. */
        shift(&rl, i + 1, -HOUR);
        CHECK_STATUS(rl_try(other, "k", TTL, &none), HF_BUSY);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK(hf_held(lk));
        CHECK_EQ(rl_count(&rl, "k", hf_token(lk)), RL_N); /* mended */
        CHECK_OK(hf_release(lk, &t_err));
        rl_check_clean(&rl);
        shift(&rl, i, 0);
        shift(&rl, i + 1, 0);
    }
    hf_close(client);
    hf_close(other);
    rl_end(&rl);
}

/* Kill it, and start it again without its data. */
static void restart_shimmed(struct rl *rl, int i)
{
    rt_crash(&rl->nodes[i]);
    shift_next(i);
    setenv("LD_PRELOAD", getenv("HF_CLOCK_SHIM"), 1);
    rt_again(&rl->nodes[i]);
    unsetenv("LD_PRELOAD");
}

/* The same, while its clock is behind. */
static void shift_restart(struct rl *rl, int i)
{
    shift(rl, i, -HOUR);
    restart_shimmed(rl, i);
}

static bool is_granted(hf_client *client)
{
    hf_lock *lk = NULL;

    return rl_try(client, "other", 3000, &lk) == HF_OK &&
           hf_release(lk, NULL) != HF_INVALID;
}

/* Nodes restart with a clock that is behind, and then that is set right.  Does a
 * stranger count on them?  `seen`: a client has seen them before that. */
static void check_clock_set_after_start(bool seen)
{
    struct rl rl;
    hf_client *a, *b;
    hf_lock *lk = NULL;

    shift_start(&rl, "?quarantine=3s");
    a = rl_open(&rl);
    t_poll_until(is_granted(a), 20000);
    for (int i = 0; i < 3; i++) {
        shift_restart(&rl, i);
        while (seen && !rt_text(&rl.nodes[i], "HGET {holdfast:}:meta: s")[0])
            is_granted(a); /* It connects again. */
        shift(&rl, i, 0);
    }
    rl_signal(&rl, 0x18, SIGSTOP); /* All of those are needed. */
    b = rl_open(&rl);
    CHECK_STATUS(rl_try(b, "other", 3000, &lk), HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "restarted"));
    rl_signal(&rl, 0x18, SIGCONT);
    t_poll_until(is_granted(b), 20000);
    hf_close(b);
    t_sleep_ms(500); /* The note may be later by what an answer takes. */
    b = rl_open(&rl);
    t_poll_until(is_granted(b), 2500); /* It need not wait for 3 s again. */
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

TEST(a_clock_that_is_set_after_the_start_ends_no_quarantine)
{
    check_clock_set_after_start(false);
}

TEST(nor_if_a_client_saw_it_before_it_was_set)
{
    check_clock_set_after_start(true);
}

/* A node did not vote for a lock, another forgets it because its clock
 * leaps, and a third because it is restarted; then its clock leaps, too.  Those
 * three are all that a stranger reaches. */
TEST(clocks_of_a_minority_that_are_ahead_end_no_quarantine)
{
    struct hf_lock_opts opts = rt_opts(4000, HF_MANUAL);
    struct rl rl;
    hf_client *a, *b;
    hf_lock *lk = NULL, *other = NULL;

    shift_start(&rl, "?quarantine=4s");
    a = rl_open(&rl);
    t_poll_until(is_granted(a), 20000);
    rt_do(&rl.nodes[1], "SET holdfast:k stranger PX 100000");
    t_poll_until(hf_acquire(a, "k", 0, &opts, &lk, &t_err) == HF_OK, 10000);
    restart_shimmed(&rl, 2);
    while (!rt_text(&rl.nodes[2], "HGET {holdfast:}:meta: s")[0])
        is_granted(a); /* It connects again. */
    shift(&rl, 0, HOUR);
    shift(&rl, 2, HOUR);
    rt_do(&rl.nodes[1], "DEL holdfast:k");
    rl_signal(&rl, 0x18, SIGSTOP);
    b = rl_open(&rl);
    CHECK(rl_try(b, "k", 4000, &other) == HF_UNAVAILABLE || !hf_held(lk));
    CHECK(strstr(t_err.text, "restarted"));
    rl_signal(&rl, 0x18, SIGCONT);
    hf_release(lk, NULL);
    t_poll_until(is_granted(b), 20000);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

/* A lock that lapsed is left on two nodes whose clocks were set back; the next
 * holder has the others, one of which does not answer. */
TEST(a_grant_is_not_judged_by_the_keys_of_a_minority)
{
    struct rl rl;
    hf_client *a, *b;
    hf_lock *old = NULL, *lk = NULL;
    uint64_t before, fence;

    shift_start(&rl, "?quarantine=off");
    a = rl_open(&rl);
    b = rl_open(&rl);
    CHECK_OK(rl_try(a, "k", 1000, &old));
    shift(&rl, 0, -HOUR);
    shift(&rl, 1, -HOUR);
    t_poll_until(rl_try(b, "k", TTL, &lk) == HF_OK, 10000);
    before = hf_fence(old);
    fence = hf_fence(lk);
    CHECK_STATUS(hf_check(b, "k", before, &t_err), HF_LOST);
    CHECK_OK(hf_check(b, "k", fence, &t_err));
    rl_signal(&rl, 0x08, SIGSTOP);
    CHECK(hf_check(b, "k", before, &t_err) != HF_OK);
    CHECK_STATUS(hf_check(b, "k", fence, &t_err), HF_UNAVAILABLE);
    rl_signal(&rl, 0x08, SIGCONT);
    t_poll_until(hf_check(b, "k", fence, &t_err) == HF_OK, 10000);
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_STATUS(hf_check(b, "k", fence, &t_err), HF_LOST);
    rl_signal(&rl, 0x08, SIGSTOP); /* Those two would do, with this one. */
    CHECK_STATUS(hf_check(b, "k", before, &t_err), HF_LOST);
    rl_signal(&rl, 0x08, SIGCONT);
    hf_release(old, NULL);
    shift(&rl, 0, 0);
    shift(&rl, 1, 0);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

/* Between two grants, and under another library, the last fence is known. */
TEST(a_grant_that_is_over_does_not_stand_because_others_hold_the_key)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;
    uint64_t fence;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    CHECK_OK(rl_try(client, "k", TTL, &lk));
    fence = hf_fence(lk);
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "SET holdfast:k stranger PX 100000");
    CHECK_STATUS(hf_check(client, "k", fence, &t_err), HF_LOST);
    for (int i = 0; i < RL_N; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    hf_close(client);
    rl_end(&rl);
}

TEST(fences_rise_when_the_clock_that_gave_the_last_is_gone)
{
    struct rl rl;
    hf_client *client;
    hf_lock *lk = NULL;
    uint64_t last = 0;

    shift_start(&rl, "?quarantine=off");
    client = rl_open(&rl);
    for (int i = 0; i < RL_N; i++) {
        shift(&rl, i, HOUR);
        t_poll_until(rl_try(client, "k", TTL, &lk) == HF_OK, 10000);
        CHECK_GT(hf_fence(lk), last);
        last = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
        rl_check_clean(&rl);
        shift_restart(&rl, i); /* It has lost its data. */
        shift(&rl, i, 0);
        t_poll_until(rl_try(client, "k", TTL, &lk) == HF_OK, 10000);
        CHECK_GT(hf_fence(lk), last);
        last = hf_fence(lk);
        CHECK_OK(hf_release(lk, &t_err));
        rl_check_clean(&rl);
    }
    hf_close(client);
    rl_end(&rl);
}

TEST(a_majority_whose_clocks_leap_grants_early_and_the_fence_tells)
{
    struct rl rl;
    hf_client *a, *b;
    hf_lock *old = NULL, *lk = NULL;

    shift_start(&rl, "?quarantine=off");
    a = rl_open(&rl);
    b = rl_open(&rl);
    CHECK_OK(rl_try(a, "k", TTL, &old));
    for (int i = 0; i < 3; i++)
        shift(&rl, i, HOUR);
    CHECK_OK(rl_try(b, "k", TTL, &lk));
    CHECK_GT(hf_fence(lk), hf_fence(old));
    CHECK_STATUS(hf_extend(old, 0, &t_err), HF_LOST);
    CHECK(!hf_held(old));
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_STATUS(hf_release(old, &t_err), HF_LOST);
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

T_MAIN
