/* SPDX-License-Identifier: MIT
 *
 * handles.c - locks that outlive the process that took them, and locks that an
 * operator breaks.
 */
#include "front.h"
#include "peer.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct hf_lock_opts with_ttl(int64_t ttl_ms)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    return opts;
}

static struct hf_handle leave(hf_client *client, const char *key,
                              int64_t ttl_ms)
{
    hf_lock *lk = lock(client, key, ttl_ms, 0);
    struct hf_handle handle = HF_HANDLE_INIT;

    CHECK_OK(hf_detach(lk, &handle, &t_err));
    return handle;
}

static struct hf_info look(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info;
}

/* Renewals of `kept` go on until the time of the lease of `ttl_ms` is over, and
 * that of what lapsed meanwhile has been looked at twice. */
static void pass_a_lease(hf_lock *kept, int64_t ttl_ms)
{
    int64_t end = t_now_ms() + ttl_ms + ttl_ms / 2;

    while (t_now_ms() < end) {
        CHECK(hf_held(kept));
        CHECK_OK(hf_extend(kept, 0, &t_err));
        t_sleep_ms(20);
    }
}

TEST(a_sweep_never_touches_another_session)
{
    struct hf_lock_opts opts = with_ttl(1500);
    hf_client *a = open_url(url("")), *b = open_url(url("")),
              *c = open_url(url(""));
    hf_lock *kept = lock(a, "sweep/kept", 1500, 0), *taken, *none = NULL;
    struct hf_handle handle = leave(a, "sweep/left", 1500);

    CHECK_OK(hf_attach(b, "sweep/left", &handle, &opts, &taken, &t_err));
    pass_a_lease(kept, 1500);
    CHECK(hf_held(taken));
    CHECK_STATUS(hf_acquire(c, "sweep/left", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_release(taken, &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    hf_close(c);
    check_clean();
}

TEST(a_sweep_leaves_what_a_bearer_has_renewed)
{
    struct hf_lock_opts opts = with_ttl(1500);
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *kept = lock(a, "bear/kept", 1500, 0);
    struct hf_handle handle = leave(a, "bear/left", 1500);
    int64_t end = t_now_ms() + 3500;

    while (t_now_ms() < end) {
        CHECK_OK(hf_handle_extend(b, "bear/left", &handle, &opts, &t_err));
        CHECK_OK(hf_extend(kept, 0, &t_err));
        CHECK(look(b, "bear/left").held);
        t_sleep_ms(20);
    }
    CHECK_OK(hf_handle_release(b, "bear/left", &handle, &opts, &t_err));
    CHECK(!look(b, "bear/left").held);
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* Although the process that detached it lives on and has other locks. */
TEST(what_a_bearer_stops_renewing_lapses)
{
    struct hf_lock_opts opts = with_ttl(800);
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *kept = lock(a, "stop/kept", 800, 0), *next;
    struct hf_handle handle = leave(a, "stop/left", 800);

    CHECK_OK(hf_handle_extend(b, "stop/left", &handle, &opts, &t_err));
    next = lock(b, "stop/left", 800, 20000);
    CHECK_STATUS(hf_handle_extend(b, "stop/left", &handle, &opts, &t_err),
                 HF_LOST);
    CHECK_STATUS(hf_handle_release(b, "stop/left", &handle, &opts, &t_err),
                 HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    t_poll_until(count_sessions() == 0, 20000);
}

/* Nothing is renewed in the process that has detached it, which only waits and
 * keeps the session alive for that. */
TEST(what_was_detached_lapses_for_those_who_wait_beside_it)
{
    hf_client *a = open_url(url(""));
    hf_lock *next, *other;

    leave(a, "beside", 800);
    leave(a, "beside/2", 800);
    next = lock(a, "beside", 800, 20000);
    other = lock(a, "beside/2", 800, 20000);
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(other, &t_err));
    hf_close(a);
    check_clean();
}

/* A client before which requests can be dropped. */
static hf_client *open_front(void)
{
    char address[128];

    snprintf(address, sizeof(address), "%s?timeout=1s", front_url());
    return open_url(address);
}

/* Take the handle up by the client that detached it; the request is lost. */
static void take_up_in_vain(hf_client *client, const char *key,
                            const struct hf_handle *handle, int64_t ttl_ms)
{
    struct hf_lock_opts opts = with_ttl(ttl_ms);
    hf_lock *none = NULL;

    front_catch("\"unlock\"", 1000, FRONT_DROP);
    CHECK(hf_attach(client, key, handle, &opts, &none, NULL) == HF_UNCERTAIN);
    front_catch("", 0, FRONT_DROP);
}

TEST(what_was_taken_up_in_vain_where_it_was_detached_lapses)
{
    hf_client *a = open_front(), *b = open_url(url(""));
    hf_lock *kept = lock(a, "vain/kept", 1500, 0), *next;
    struct hf_handle handle = leave(a, "vain", 1500);

    take_up_in_vain(a, "vain", &handle, 1500);
    next = lock(b, "vain", 1500, 20000);
    CHECK(hf_held(kept));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    front_end();
    check_clean();
}

TEST(what_was_taken_up_in_vain_is_free_to_nobody_before_it_lapses)
{
    struct hf_lock_opts opts = with_ttl(30000);
    hf_client *a = open_front(), *b = open_url(url(""));
    struct hf_handle handle = leave(a, "vain/2", 30000);
    hf_lock *none = NULL, *taken = NULL;
    uint64_t before = strtoull(out("curl -s $C/v1/kv/vain/2 | tr ',' '\n' | "
                                   "sed -n 's/.*ModifyIndex.://p'"),
                               NULL, 10);

    take_up_in_vain(a, "vain/2", &handle, 20000);
    /* The client has barred the request that may still come. */
    t_poll_until(strtoull(out("curl -s $C/v1/kv/vain/2 | tr ',' '\n' | "
                              "sed -n 's/.*ModifyIndex.://p'"),
                          NULL, 10) > before,
                 10000);
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(hf_acquire(a, "vain/2", 0, &opts, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_attach(b, "vain/2", &handle, &opts, &taken, &t_err));
    CHECK_OK(hf_release(taken, &t_err));
    CHECK_OK(hf_release(lock(a, "vain/2", 30000, 0), &t_err));
    hf_close(a);
    hf_close(b);
    front_end();
    check_clean();
}

/* ---- what arrives late -------------------------------------------------- */

/* A detaches a lock, which lapses, and sweeps it since another one keeps the
 * session alive; the sweep is under way while a bearer in A or in B renews. */
static void sweep_late(const char *key, bool in_a, int64_t ttl_ms)
{
    struct hf_lock_opts opts = with_ttl(ttl_ms);
    hf_client *a = open_front(), *b = open_url(url(""));
    hf_lock *kept = lock(a, "late/kept", 2000, 20000);
    struct hf_handle handle = leave(a, key, 2000);

    front_catch("\"unlock\"", 1, FRONT_HOLD);
    t_poll_until(front_held() == 1, 20000);
    CHECK_OK(hf_handle_extend(in_a ? a : b, key, &handle, &opts, &t_err));
    front_let_go();
    CHECK(look(b, key).held);
    CHECK_OK(hf_handle_release(b, key, &handle, &opts, &t_err));
    hf_release(kept, NULL);
    hf_close(a);
    hf_close(b);
    front_end();
}

TEST(a_late_sweep_leaves_what_a_bearer_beside_it_has_renewed)
{
    sweep_late("late/beside", true, 2000);
}

TEST(a_late_sweep_leaves_what_a_bearer_elsewhere_has_renewed)
{
    sweep_late("late/elsewhere", false, 20000);
}

/* An attach in a thread. */
struct attach {
    hf_client *client;
    const char *key;
    const struct hf_handle *handle;
    hf_status status;
    pthread_t thread;
};

static void *attach_run(void *arg)
{
    struct attach *x = arg;
    struct hf_lock_opts opts = with_ttl(20000);
    hf_lock *none = NULL;

    x->status = hf_attach(x->client, x->key, x->handle, &opts, &none, NULL);
    return NULL;
}

/* B takes the handle up, which is not answered, and B can do nothing more;
 * meanwhile the bearer of a copy renews where the lock was detached. */
TEST(a_late_move_leaves_what_a_bearer_has_renewed)
{
    struct hf_lock_opts opts = with_ttl(20000);
    hf_client *a = open_url(url("")), *b = open_front();
    struct hf_handle handle = leave(a, "late/move", 20000);
    struct attach x = {.client = b, .key = "late/move", .handle = &handle};

    front_catch("\"unlock\"", 1, FRONT_HOLD);
    CHECK_EQ(pthread_create(&x.thread, NULL, attach_run, &x), 0);
    t_poll_until(front_held() == 1, 10000);
    front_answer(500);
    pthread_join(x.thread, NULL);
    CHECK(x.status == HF_UNCERTAIN);
    CHECK_OK(hf_handle_extend(a, "late/move", &handle, &opts, &t_err));
    front_let_go();
    CHECK(look(a, "late/move").held);
    CHECK_OK(hf_handle_extend(a, "late/move", &handle, &opts, &t_err));
    front_answer(0);
    CHECK_OK(hf_handle_release(a, "late/move", &handle, &opts, &t_err));
    hf_close(a);
    hf_close(b);
    front_end();
}

/* One of them where it was detached, which remembers the lock. */
TEST(of_two_bearers_one_has_released_it)
{
    struct hf_lock_opts opts = with_ttl(20000);
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    struct hf_handle handle = leave(a, "both", 20000);

    CHECK_OK(hf_handle_release(b, "both", &handle, &opts, &t_err));
    CHECK_STATUS(hf_handle_release(a, "both", &handle, &opts, &t_err), HF_LOST);
    handle = leave(a, "both", 20000);
    CHECK_OK(hf_handle_release(a, "both", &handle, &opts, &t_err));
    CHECK_STATUS(hf_handle_release(a, "both", &handle, &opts, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_release(b, "both", &handle, &opts, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* ---- break -------------------------------------------------------------- */

TEST(a_broken_lock_is_told_and_stays_taken_until_it_is_released)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *lk = lock(a, "brk", 20000, 0), *none = NULL;

    CHECK(!look(b, "brk").broken);
    CHECK_OK(hf_break(b, "brk", hf_fence(lk), &t_err));
    check_lost(lk, HF_LOSS_BROKEN);
    CHECK(look(b, "brk").held);
    CHECK(look(b, "brk").broken);
    CHECK_STATUS(hf_acquire(b, "brk", 300, NULL, &none, &t_err), HF_TIMEOUT);
    CHECK_OK(hf_break(b, "brk", hf_fence(lk), &t_err));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    lk = lock(b, "brk", 20000, 10000);
    CHECK(!look(b, "brk").broken);
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* More than are watched: only the renewal can tell. */
TEST(a_broken_lock_that_is_not_watched_is_refused_its_renewal)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *lk[34];
    char key[16];

    for (int i = 0; i < 34; i++) {
        snprintf(key, sizeof(key), "brk/%d", i);
        lk[i] = lock(a, key, 20000, 0);
    }
    CHECK_OK(hf_break(b, "brk/33", hf_fence(lk[33]), &t_err));
    CHECK_STATUS(hf_extend(lk[33], 0, &t_err), HF_LOST);
    CHECK_STR(hf_loss_name(hf_lost_reason(lk[33])), "broken");
    CHECK(look(b, "brk/33").broken);
    CHECK_OK(hf_extend(lk[0], 0, &t_err));
    for (int i = 0; i < 34; i++)
        CHECK_STATUS(hf_release(lk[i], &t_err), i < 33 ? HF_OK : HF_LOST);
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST(a_broken_lock_whose_holder_never_lets_go_ends_with_its_lease)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *kept = lock(a, "keep", 900, 0), *lk = lock(a, "brk/n", 900, 0);
    hf_lock *next;

    CHECK_OK(hf_break(b, "brk/n", hf_fence(lk), &t_err));
    check_lost(lk, HF_LOSS_BROKEN);
    next = lock(b, "brk/n", 900, 20000);
    CHECK(hf_held(kept));
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_release(next, &t_err));
    CHECK_OK(hf_release(kept, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

TEST(break_by_force_frees_at_once)
{
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    hf_lock *lk = lock(a, "force", 60000, 0), *next;

    CHECK_STATUS(hf_break_force(b, "force", hf_fence(lk) + 1, &t_err), HF_LOST);
    CHECK_OK(hf_break_force(b, "force", hf_fence(lk), &t_err));
    next = lock(b, "force", 60000, 0);
    t_poll_until(!hf_held(lk), 20000);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    CHECK(hf_held(next));
    CHECK_OK(hf_extend(next, 0, &t_err));
    CHECK_OK(hf_release(next, &t_err));
    hf_close(a);
    hf_close(b);
    check_clean();
}

/* ---- the session of the first process lapses by itself ------------------ */

TEST(a_handle_stays_good_whoever_renews_it_with_whatever_ttl)
{
    static const int64_t ttls[] = {30000, 30000, 20000, 20000, 30000};
    hf_client *first = open_url(url("")), *client;
    struct hf_handle handle = leave(first, "good", 30000);
    struct hf_lock_opts opts;

    hf_close(first);
    for (size_t i = 0; i < sizeof(ttls) / sizeof(ttls[0]); i++) {
        client = open_url(url(""));
        opts = with_ttl(ttls[i]);
        CHECK_OK(hf_handle_extend(client, "good", &handle, &opts, &t_err));
        CHECK_EQ(look(client, "good").fence, handle.fence);
        CHECK_EQ(look(client, "good").takeover_ms, 2 * ttls[i]);
        hf_close(client);
    }
    client = open_url(url(""));
    CHECK_OK(hf_handle_release(client, "good", &handle, &opts, &t_err));
    CHECK_STATUS(hf_handle_release(client, "good", &handle, &opts, &t_err),
                 HF_LOST);
    CHECK_OK(hf_release(lock(client, "good", 30000, 0), &t_err));
    hf_close(client);
    CHECK_EQ(count_locked(), 0);
    CHECK_STR(out("curl -s $C/v1/session/list | grep -o 'holdfast handle'"),
              "");
}

TEST(a_handle_is_taken_up_once)
{
    struct hf_lock_opts opts = with_ttl(20000);
    hf_client *a = open_url(url("")), *b = open_url(url(""));
    struct hf_handle handle = leave(a, "once", 30000);
    hf_lock *taken, *none = NULL;

    CHECK_OK(hf_handle_extend(b, "once", &handle, &opts, &t_err));
    CHECK_OK(hf_attach(b, "once", &handle, &opts, &taken, &t_err));
    CHECK_EQ(hf_fence(taken), handle.fence);
    CHECK_STATUS(hf_attach(a, "once", &handle, &opts, &none, &t_err), HF_LOST);
    CHECK_STATUS(hf_attach(b, "once", &handle, &opts, &none, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_extend(a, "once", &handle, &opts, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_release(a, "once", &handle, &opts, &t_err), HF_LOST);
    CHECK(hf_held(taken));
    CHECK_OK(hf_extend(taken, 0, &t_err));
    CHECK_OK(hf_release(taken, &t_err));
    hf_close(a);
    hf_close(b);
    CHECK_EQ(count_locked(), 0);
}

/* An extension was not answered, so nobody knows in which session the lock is
 * when it is detached. */
TEST(closing_keeps_the_session_to_which_a_detached_lock_may_have_moved)
{
    struct hf_lock_opts opts = with_ttl(20000);
    hf_client *a = open_front(), *b = open_url(url(""));
    hf_lock *lk, *taken;
    struct hf_handle handle = HF_HANDLE_INIT;

    opts.flags = HF_MANUAL; /* A renewal of the keeper would bar the move. */
    CHECK_OK(hf_acquire(a, "late/close", 0, &opts, &lk, &t_err));
    front_catch("\"unlock\"", 1000, FRONT_HOLD);
    CHECK_STATUS(hf_extend(lk, 30000, &t_err), HF_UNCERTAIN);
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    front_let_go();
    CHECK_EQ(look(a, "late/close").takeover_ms, 60000);
    hf_close(a);
    CHECK(look(b, "late/close").held);
    CHECK_OK(hf_attach(b, "late/close", &handle, &opts, &taken, &t_err));
    CHECK_OK(hf_release(taken, &t_err));
    hf_close(b);
    front_end();
}

T_MAIN
