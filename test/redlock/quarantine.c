/* SPDX-License-Identifier: MIT
 *
 * quarantine.c - what clients of one set of servers have to agree on before a
 * server that was restarted votes again: the longest lease of all of them, and
 * what time it is.
 */
#include "rl.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Open the servers with another quarantine=. */
static hf_status try_open(const struct rl *rl, const char *quarantine,
                          hf_client **ret)
{
    char url[600];

    snprintf(url, sizeof(url), "%.*s?quarantine=%s", (int)strcspn(rl->url, "?"),
             rl->url, quarantine);
    return hf_open(url, NULL, ret, &t_err);
}

static hf_client *open_with(const struct rl *rl, const char *quarantine)
{
    hf_client *client = NULL;

    CHECK_OK(try_open(rl, quarantine, &client));
    return client;
}

/* By all of them: for none of them there is anything left to wait for. */
static bool is_granted_by_all(struct rl *rl, hf_client *client, int64_t ttl_ms)
{
    hf_lock *lk = NULL;
    bool all;

    if (rl_try(client, "all", ttl_ms, &lk))
        return false;
    all = rl_count(rl, "all", hf_token(lk)) == RL_N;
    hf_release(lk, NULL);
    return all;
}

static bool is_granted(hf_client *client, const char *key, int64_t ttl_ms)
{
    hf_lock *lk = NULL;

    return rl_try(client, key, ttl_ms, &lk) == HF_OK &&
           hf_release(lk, NULL) != HF_INVALID;
}

/* Has a client that was connected to it since its restart said so there? */
static bool is_noted(struct rl *rl, int node)
{
    return rt_text(&rl->nodes[node], "HGET {holdfast:}:meta: s")[0] != '\0';
}

/* ---- leases of different length ----------------------------------------- */

/* A client for short leases is there before one for long leases, whose lock is
 * forgotten by three servers. */
struct unequal {
    struct rl rl;
    hf_client *brief, *holder;
    hf_lock *lk;
};

#define BRIEF_MS 500

static void unequal_start(struct unequal *at)
{
    struct hf_lock_opts opts = rt_opts(20000, HF_MANUAL);

    rl_start(&at->rl, "?quarantine=500ms", false);
    at->brief = rl_open(&at->rl);
    t_poll_until(is_granted_by_all(&at->rl, at->brief, BRIEF_MS), 10000);
    hf_close(open_with(&at->rl, "20s"));
    at->holder = open_with(&at->rl, "off"); /* what that one may hold later */
    CHECK_OK(hf_acquire(at->holder, "k", 0, &opts, &at->lk, &t_err));
    for (int i = 0; i < 3; i++) {
        rt_crash(&at->rl.nodes[i]);
        rt_again(&at->rl.nodes[i]);
    }
}

/* The client for short leases does not get it. */
static void unequal_check(struct unequal *at)
{
    int64_t end = t_now_ms() + 1000;

    do /* The first may find out that connections were closed. */
        CHECK(!is_granted(at->brief, "k", BRIEF_MS));
    while (t_now_ms() < end || !strstr(t_err.text, "restarted"));
    CHECK(hf_held(at->lk));
}

static void unequal_end(struct unequal *at)
{
    hf_release(at->lk, NULL);
    hf_close(at->brief);
    hf_close(at->holder);
    rl_end(&at->rl);
}

/* It is connected to them again, and wants no lock. */
static void unequal_look(struct unequal *at)
{
    struct hf_info info = HF_INFO_INIT;

    for (int i = 0; i < 3; i++)
        while (!is_noted(&at->rl, i))
            if (hf_inspect(at->brief, "k", &info, &t_err))
                t_sleep_ms(5);
}

/* It sees them when it looks at a lock, and wants none while they are young. */
TEST(a_client_that_was_idle_asks_for_the_longest_lease_again)
{
    struct unequal at = {0};

    unequal_start(&at);
    unequal_look(&at);
    t_sleep_ms(2 * BRIEF_MS);
    unequal_check(&at);
    unequal_end(&at);
}

/* Another client has seen them when they were young, and has said so there. */
TEST(so_does_one_that_comes_back_when_others_have_seen_them)
{
    struct unequal at = {0};
    hf_client *other;

    unequal_start(&at);
    other = rl_open(&at.rl);
    for (int i = 0; i < 3; i++)
        t_poll_until(is_noted(&at.rl, i), 10000);
    t_sleep_ms(2 * BRIEF_MS);
    unequal_check(&at);
    unequal_end(&at);
    hf_close(other);
}

static void *thaw(void *rl)
{
    t_sleep_ms(BRIEF_MS);
    rl_signal(rl, 0x18, SIGCONT);
    return NULL;
}

/* Those that know better are slow: a short lease is no reason not to wait. */
TEST(servers_that_are_slow_to_tell_the_longest_lease_are_waited_for)
{
    struct unequal at = {0};
    pthread_t thread;

    unequal_start(&at);
    unequal_look(&at);
    t_sleep_ms(2 * BRIEF_MS);
    rl_signal(&at.rl, 0x18, SIGSTOP);
    CHECK_EQ(pthread_create(&thread, NULL, thaw, &at.rl), 0);
    unequal_check(&at);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    unequal_end(&at);
}

/* Scripts of a server are flushed all the time, also between loading one and
 * calling it. */
static pid_t flush_start(struct rt_server *server)
{
    pid_t pid = fork();

    CHECK_GE(pid, 0);
    while (pid == 0) {
        rt_do(server, "SCRIPT FLUSH");
        usleep(200);
    }
    return pid;
}

/* A client says its value wherever it may vote, or it is not connected. */
TEST(a_longest_lease_is_said_although_scripts_are_flushed)
{
    struct rl rl;
    hf_client *client = NULL;
    char value[24];
    pid_t flushes[RL_N];

    rl_start(&rl, "?quarantine=10ms", false);
    for (int node = 0; node < RL_N; node++)
        flushes[node] = flush_start(&rl.nodes[node]);
    for (int i = 0; i < 40; i++) {
        snprintf(value, sizeof(value), "%dms", 100 + i);
        t_poll_until(try_open(&rl, value, &client) == HF_OK, 20000);
        t_poll_until(is_granted_by_all(&rl, client, 90), 20000);
        for (int node = 0; node < RL_N; node++)
            CHECK_EQ(rt_int(&rl.nodes[node], "HSTRLEN {holdfast:}:meta: q"), 3);
        for (int node = 0; node < RL_N; node++)
            CHECK_EQ(atoi(rt_text(&rl.nodes[node], "HGET {holdfast:}:meta: q")),
                     100 + i);
        hf_close(client);
    }
    for (int node = 0; node < RL_N; node++) {
        kill(flushes[node], SIGKILL);
        CHECK_EQ(waitpid(flushes[node], NULL, 0), flushes[node]);
    }
    rl_end(&rl);
}

/* ---- clocks that run too fast or too slow ------------------------------- */

/* The clocks of the servers run wrong by 0.9 percent, which is what leases allow
 * for, and a client has been connected for so long that they are off by more
 * than the quarantine. */
#define DRIFT_MS     200
#define DRIFT_AGE_MS 30000

/* Of each server, as test/clock.c has it. */
static int64_t drift_rate;

static void drift_next(int i)
{
    static char path[200];

    snprintf(path, sizeof(path), "%s/clock%d", t_tmpdir(), i);
    setenv("HF_CLOCK_FILE", path, 1);
    setenv("LD_PRELOAD", getenv("HF_CLOCK_SHIM"), 1);
}

static void drift_prepare(int i)
{
    struct timespec now;
    int64_t clock[4] = {0};
    int fd;

    drift_next(i);
    clock_gettime(CLOCK_REALTIME, &now);
    clock[1] = INT64_C(100000000000); /* It never comes to less than nothing. */
    clock[2] = drift_rate;
    clock[3] = (int64_t)now.tv_sec * 1000000;
    fd = open(getenv("HF_CLOCK_FILE"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    CHECK_GE(fd, 0);
    CHECK_EQ(write(fd, clock, sizeof(clock)), (ssize_t)sizeof(clock));
    close(fd);
}

/* A server is restarted without its data.  One client sees it and writes down
 * when; then it is all that the next one lacks for a majority. */
static void check_drift(struct rl *rl, hf_client *old, bool old_is_first)
{
    int64_t restarted = t_now_ms();
    hf_client *fresh, *next;

    rt_crash(&rl->nodes[0]);
    drift_next(0);
    rt_again(&rl->nodes[0]);
    unsetenv("LD_PRELOAD");
    fresh = old_is_first ? NULL : rl_open(rl);
    while (!is_noted(rl, 0))
        if (old_is_first)
            is_granted(old, "other", DRIFT_MS);
    rl_signal(rl, 0x18, SIGSTOP);
    if (old_is_first)
        fresh = rl_open(rl);
    next = old_is_first ? fresh : old;
    while (!is_granted(next, "k", DRIFT_MS))
        continue;
    /* A holder that relied on that server would not rely on it any more. */
    CHECK_GE(t_now_ms() - restarted, DRIFT_MS - DRIFT_MS / 100 - 2);
    rl_signal(rl, 0x18, SIGCONT);
    hf_close(fresh);
}

static void check_drift_of(int64_t rate, bool old_is_first)
{
    struct rl rl;
    hf_client *old;

    if (!getenv("HF_CLOCK_SHIM"))
        T_SKIP_HOST("a server's clock cannot be moved without the shim");
    drift_rate = rate;
    rl_start_with(&rl, "?quarantine=200ms", drift_prepare);
    unsetenv("LD_PRELOAD");
    old = rl_open(&rl);
    t_poll_until(is_granted_by_all(&rl, old, DRIFT_MS), 10000);
    t_sleep_ms(DRIFT_AGE_MS);
    check_drift(&rl, old, old_is_first);
    hf_close(old);
    rl_end(&rl);
}

/* It says that the server was seen before it was started. */
TEST_TIMEOUT(what_time_it_was_for_long_is_not_written_down, 120)
{
    check_drift_of(9000, true);
}

/* It takes what another has written for longer ago than it is. */
TEST_TIMEOUT(what_time_it_was_for_long_is_not_counted_by, 120)
{
    check_drift_of(-9000, false);
}

T_MAIN
