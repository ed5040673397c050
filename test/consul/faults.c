/* SPDX-License-Identifier: MIT
 *
 * faults.c - three servers, of which one or more are killed, stopped or started
 * again while locks are held and waited for.
 *
 * A stopped process (SIGSTOP) accepts connections and answers nothing, which
 * is what a partition with dropped packets looks like from outside.
 */
#include "peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SERVERS = 3 };

static void send_signal(int n, const char *name)
{
    CHECK_EQ(sh("kill -%s $(cat $HF_TEST_DIR/%d.pid)", name, n), 0);
}

/* The server that is leader, as the server `ask` sees it; 0: none. */
static int leader(int ask)
{
    return atoi(out("l=$(curl -s -m 1 http://$(cat $HF_TEST_DIR/%d.addr)"
                    "/v1/status/leader | tr -d '\"'); "
                    "for i in 1 2 3; do grep -q \"\\\"server\\\": ${l##*:},\" "
                    "$HF_TEST_DIR/$i.json && [ -n \"$l\" ] && echo $i; done",
                    ask));
}

/* All three answer, and agree on a leader that serves. */
static bool all_well(void)
{
    return sh("for i in 1 2 3; do "
              "test $(curl -s -m 1 -o /dev/null -w '%%{http_code}' http://"
              "$(cat $HF_TEST_DIR/$i.addr)/v1/kv/none?consistent) = 404 || "
              "exit 1; done") == 0 &&
           leader(1) && leader(1) == leader(2) && leader(2) == leader(3);
}

/* Also repairs what a failed test has left. */
static void await_all_well(void)
{
    CHECK_EQ(sh("for i in 1 2 3; do p=$(cat $HF_TEST_DIR/$i.pid); "
                "kill -CONT $p 2>/dev/null && "
                "! grep -q 'State:.Z' /proc/$p/status || "
                "touch $HF_TEST_DIR/$i.again; done"),
             0);
    t_poll_until(all_well(), 40000);
}

static void restart(int n)
{
    (void)n; /* It is found dead. */
    await_all_well();
}

/* The address of one server as a URL. */
static const char *only(int n)
{
    static char text[3][128];

    snprintf(text[n - 1], sizeof(text[0]), "consul://%s?timeout=2s&ttl=3s",
             out("cat $HF_TEST_DIR/%d.addr", n));
    return text[n - 1];
}

/* All servers, beginning with this one. */
static const char *beginning_with(int n)
{
    static char text[256];

    snprintf(text, sizeof(text), "consul://%s,%s,%s?timeout=3s&ttl=3s",
             out("cat $HF_TEST_DIR/%d.addr", n),
             out("cat $HF_TEST_DIR/%d.addr", n % 3 + 1),
             out("cat $HF_TEST_DIR/%d.addr", (n + 1) % 3 + 1));
    return text;
}

struct waiter {
    hf_client *client;
    const char *key;
    pthread_t thread;
    hf_lock *lk;
    hf_status st;
    atomic_bool done;
};

static void *wait_for(void *arg)
{
    struct waiter *w = arg;

    w->st = hf_acquire(w->client, w->key, 60000, NULL, &w->lk, &t_err);
    atomic_store(&w->done, true);
    return NULL;
}

static void start_waiting(struct waiter *w, const char *address,
                          const char *key)
{
    *w = (struct waiter){.client = open_url(address), .key = key};
    CHECK_EQ(pthread_create(&w->thread, NULL, wait_for, w), 0);
}

static void check_woken(struct waiter *w, uint64_t fence)
{
    CHECK_EQ(pthread_join(w->thread, NULL), 0);
    t_check_status(__FILE__, __LINE__, "a waiter", w->st, HF_OK);
    CHECK_GT(hf_fence(w->lk), fence);
    CHECK_OK(hf_release(w->lk, &t_err));
    hf_close(w->client);
}

/* While `fault` goes on the lock stays held, and the waiter gets it after. */
static void survive(const char *key, int64_t ttl_ms, void (*fault)(int),
                    void (*heal)(int), int victim)
{
    hf_client *client = open_url(beginning_with(victim));
    hf_lock *lk = lock(client, key, ttl_ms, 0);
    uint64_t fence = hf_fence(lk);
    struct waiter w;
    int64_t end;

    start_waiting(&w, beginning_with(victim), key);
    t_sleep_ms(200);
    fault(victim);
    for (end = t_now_ms() + ttl_ms + ttl_ms / 2; t_now_ms() < end;) {
        CHECK(hf_held(lk));
        CHECK(!atomic_load(&w.done));
        t_sleep_ms(20);
    }
    CHECK_OK(hf_release(lk, &t_err));
    check_woken(&w, fence);
    hf_close(client);
    heal(victim);
}

static void kill_it(int n)
{
    send_signal(n, "KILL");
}

static void stop_it(int n)
{
    send_signal(n, "STOP");
}

static void go_on(int n)
{
    send_signal(n, "CONT");
    await_all_well();
}

TEST_TIMEOUT(the_leaders_death_costs_no_lock, 120)
{
    await_all_well();
    survive("fault/leader", 6000, kill_it, restart, leader(1));
}

/* Readers stay, and a writer who waits for them stays out; nobody takes a permit
 * or a slot that is in use. */
TEST_TIMEOUT(the_leaders_death_costs_no_reader_and_no_permit, 120)
{
    struct hf_lock_opts read = HF_LOCK_OPTS_INIT, permit = HF_LOCK_OPTS_INIT;
    hf_lock *readers[2], *permits[2], *none = NULL;
    hf_client *client;
    struct waiter w;
    uint64_t fence;
    int64_t end;
    int victim;

    await_all_well();
    victim = leader(1);
    client = open_url(beginning_with(victim));
    read.flags = HF_SHARED;
    permit.permits = 2;
    read.ttl_ms = permit.ttl_ms = 6000;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(
            hf_acquire(client, "readers", 5000, &read, &readers[i], &t_err));
        CHECK_OK(
            hf_acquire(client, "permits", 5000, &permit, &permits[i], &t_err));
    }
    fence = hf_fence(readers[1]);
    start_waiting(&w, beginning_with(victim), "readers");
    kill_it(victim);
    for (end = t_now_ms() + 9000; t_now_ms() < end;) {
        for (int i = 0; i < 2; i++)
            CHECK(hf_held(readers[i]) && hf_held(permits[i]));
        CHECK(!atomic_load(&w.done));
        t_sleep_ms(20);
    }
    CHECK_STATUS(hf_acquire(client, "permits", 0, &permit, &none, &t_err),
                 HF_BUSY);
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(hf_slot(permits[i]), i);
        CHECK_OK(hf_release(permits[i], &t_err));
        CHECK_OK(hf_release(readers[i], &t_err));
    }
    check_woken(&w, fence);
    hf_close(client);
    restart(victim);
}

TEST_TIMEOUT(another_agent_takes_over_when_ours_dies, 120)
{
    await_all_well();
    survive("fault/agent", 6000, kill_it, restart, leader(1) % 3 + 1);
}

TEST_TIMEOUT(another_agent_takes_over_when_ours_is_silent, 120)
{
    await_all_well();
    survive("fault/silent", 6000, stop_it, go_on, leader(1) % 3 + 1);
}

TEST_TIMEOUT(an_agent_that_is_restarted_is_used_again, 120)
{
    hf_client *client;
    hf_lock *lk;
    int n;

    await_all_well();
    n = leader(1) % 3 + 1;
    client = open_url(only(n));
    lk = lock(client, "fault/restart", 15000, 0);
    send_signal(n, "KILL");
    t_sleep_ms(300);
    restart(n);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST_TIMEOUT(no_leader_for_less_than_the_ttl_costs_no_lock, 120)
{
    hf_client *client;
    hf_lock *lk, *none = NULL;
    int first, n;

    await_all_well();
    first = leader(1);
    n = first % 3 + 1;
    client = open_url(only(n));
    lk = lock(client, "fault/quorum", 20000, 0);
    for (int i = 1; i <= SERVERS; i++)
        if (i != n)
            send_signal(i, "STOP");
    t_poll_until(hf_extend(lk, 0, NULL) != HF_OK, 20000);
    CHECK(hf_held(lk));
    CHECK(hf_acquire(client, "fault/other", 0, NULL, &none, &t_err) != HF_OK);
    CHECK(none == NULL);
    for (int i = 1; i <= SERVERS; i++)
        if (i != n)
            send_signal(i, "CONT");
    await_all_well();
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

TEST_TIMEOUT(a_holder_cut_off_knows_before_another_is_granted, 120)
{
    hf_client *cut, *other;
    hf_lock *lk, *next;
    int64_t began;
    int n;

    await_all_well();
    n = leader(1) % 3 + 1;
    cut = open_url(only(n));
    other = open_url(only(n % 3 + 1));
    lk = lock(cut, "fault/cut", 2000, 0);
    began = t_now_ms();
    send_signal(n, "STOP");
    next = lock(other, "fault/cut", 2000, 60000);
    CHECK(!hf_held(lk));
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_EXPIRED);
    CHECK_GT(hf_fence(next), hf_fence(lk));
    CHECK_GE(t_now_ms() - began, 1000);
    CHECK_OK(hf_release(next, &t_err));
    go_on(n);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    hf_close(cut);
    hf_close(other);
}

/* An operator at the first server and a holder at another one. */
TEST_TIMEOUT(what_an_operator_does_at_another_server_is_told, 120)
{
    hf_client *client;
    hf_lock *one, *two;

    await_all_well();
    client = open_url(only(3));
    one = lock(client, "fault/op/1", 6000, 0);
    two = lock(client, "fault/op/2", 6000, 0);
    CHECK_EQ(sh("curl -sf -X DELETE $C/v1/kv/fault/op/1 >/dev/null"), 0);
    check_lost(one, HF_LOSS_DELETED);
    CHECK(hf_held(two));
    CHECK_EQ(sh("id=$(curl -s $C/v1/kv/fault/op/2 | tr -d ' \\n' | "
                "sed 's/.*\"Session\":\"//; s/\".*//'); "
                "curl -sf -X PUT $C/v1/session/destroy/$id >/dev/null"),
             0);
    check_lost(two, HF_LOSS_SESSION);
    CHECK_STATUS(hf_release(one, &t_err), HF_LOST);
    CHECK_STATUS(hf_release(two, &t_err), HF_LOST);
    CHECK_OK(hf_release(lock(client, "fault/op/1", 6000, 0), &t_err));
    CHECK_OK(hf_release(lock(client, "fault/op/2", 6000, 0), &t_err));
    hf_close(client);
}

/* For half a second a leader does not notice that it is alone, and one that was
 * stopped meanwhile does not know that there is another: what it answers from its
 * memory proves nothing. */
TEST_TIMEOUT(a_renewal_that_no_majority_stands_behind_is_none, 120)
{
    hf_client *client;
    hf_lock *lk;
    int n;

    await_all_well();
    n = leader(1);
    client = open_url(only(n));
    lk = lock(client, "fault/alone", 20000, 0);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_EQ(sh("for pid in $(cat $HF_TEST_DIR/%d.pid $HF_TEST_DIR/%d.pid); do "
                "kill -STOP $pid; "
                "while ps -L -o stat= -p $pid | grep -q '^[^T]'; do "
                "sleep 0.01; done; done",
                n % SERVERS + 1, (n + 1) % SERVERS + 1),
             0);
    CHECK(hf_extend(lk, 0, &t_err) != HF_OK);
    CHECK(hf_held(lk));
    await_all_well();
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
}

static bool is_free(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return !info.held;
}

TEST_TIMEOUT(an_acquisition_without_an_answer_is_taken_back, 120)
{
    hf_client *client, *other;
    hf_lock *lk = NULL;
    hf_status st;
    int n;

    await_all_well();
    n = leader(1) % 3 + 1;
    client = open_url(only(n));
    other = open_url(only(n % 3 + 1));
    CHECK_OK(hf_release(lock(client, "fault/back", 20000, 0), &t_err));
    for (int i = 1; i <= SERVERS; i++)
        send_signal(i, "STOP");
    st = hf_acquire(client, "fault/back", 0, NULL, &lk, &t_err);
    CHECK(st == HF_UNCERTAIN || st == HF_UNAVAILABLE);
    CHECK(lk == NULL);
    for (int i = 1; i <= SERVERS; i++)
        send_signal(i, "CONT");
    await_all_well();
    t_poll_until(is_free(other, "fault/back"), 20000);
    lk = lock(other, "fault/back", 20000, 20000);
    t_sleep_ms(500);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    hf_close(other);
}

TEST_TIMEOUT(nothing_of_ours_is_left_in_the_cluster, 120)
{
    await_all_well();
    /* Sessions of clients that could not say goodbye lapse by themselves. */
    t_poll_until(count_sessions() == 0, 60000);
    check_clean();
}

T_MAIN
