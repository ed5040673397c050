/* SPDX-License-Identifier: MIT
 *
 * handle.c - locks that are handed on, broken, or freed by force: what a
 * majority makes of them.
 */
#include "rl.h"

/* A lock of `client` for whoever has the handle. */
static struct hf_handle detached_as(hf_client *client, int64_t ttl_ms,
                                    unsigned flags)
{
    struct hf_lock_opts opts = rt_opts(ttl_ms, HF_MANUAL | flags);
    struct hf_handle handle = HF_HANDLE_INIT;
    hf_lock *lk = NULL;

    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    CHECK_OK(hf_detach(lk, &handle, &t_err));
    return handle;
}

static struct hf_handle detached(hf_client *client, int64_t ttl_ms)
{
    return detached_as(client, ttl_ms, 0);
}

TEST(a_handle_is_taken_up_once)
{
    struct hf_lock_opts opts = rt_opts(20000, HF_MANUAL);
    struct hf_handle handle = HF_HANDLE_INIT;
    struct rl rl;
    hf_client *a, *b;
    hf_lock *lk = NULL, *none = NULL;

    rl_start(&rl, "?quarantine=off", false);
    a = rl_open(&rl);
    b = rl_open(&rl);
    handle = detached(a, 20000);
    CHECK_OK(hf_attach(b, "k", &handle, &opts, &lk, &t_err));
    CHECK_EQ(hf_fence(lk), handle.fence);
    CHECK_STATUS(hf_attach(a, "k", &handle, &opts, &none, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_extend(a, "k", &handle, &opts, &t_err), HF_LOST);
    CHECK_STATUS(hf_handle_release(a, "k", &handle, &opts, &t_err), HF_LOST);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    rl_check_clean(&rl);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

#define TAKERS 6

struct taker {
    hf_client *client;
    const struct hf_handle *handle;
    pthread_barrier_t *start;
    unsigned flags;
    pthread_t thread;
    hf_lock *lk;
    hf_status st;
};

static void *taker_run(void *arg)
{
    struct taker *taker = arg;
    struct hf_lock_opts opts = rt_opts(20000, HF_MANUAL | taker->flags);

    pthread_barrier_wait(taker->start);
    taker->st =
        hf_attach(taker->client, "k", taker->handle, &opts, &taker->lk, NULL);
    return NULL;
}

/* Each node has a taker's token or none of them; whoever won can renew. */
static void check_one_takes_it(struct rl *rl, hf_client *owner,
                               hf_client *const *clients, unsigned flags)
{
    struct hf_handle handle = detached_as(owner, 20000, flags);
    struct taker takers[TAKERS];
    pthread_barrier_t start;
    int won = 0;

    pthread_barrier_init(&start, NULL, TAKERS);
    for (int i = 0; i < TAKERS; i++) {
        takers[i] = (struct taker){.client = clients[i],
                                   .handle = &handle,
                                   .start = &start,
                                   .flags = flags};
        CHECK_EQ(pthread_create(&takers[i].thread, NULL, taker_run, &takers[i]),
                 0);
    }
    for (int i = 0; i < TAKERS; i++) {
        pthread_join(takers[i].thread, NULL);
        won += takers[i].st == HF_OK;
        if (takers[i].st && takers[i].st != HF_LOST)
            t_fail(__FILE__, __LINE__, "%s", hf_status_name(takers[i].st));
    }
    pthread_barrier_destroy(&start);
    CHECK_EQ(won, 1);
    for (int i = 0; i < TAKERS; i++)
        if (takers[i].st == HF_OK) {
            CHECK_OK(hf_extend(takers[i].lk, 0, &t_err));
            CHECK_OK(hf_release(takers[i].lk, &t_err));
        }
    /* What the others gave back may be left on a minority. */
    for (int i = 0; i < RL_N; i++)
        if (rl->nodes[i].pid)
            rt_do(&rl->nodes[i], "DEL holdfast:k");
}

static void many_take_it(unsigned flags)
{
    struct rl rl;
    hf_client *owner, *clients[TAKERS];

    rl_start(&rl, "?quarantine=off", false);
    owner = rl_open(&rl);
    for (int i = 0; i < TAKERS; i++)
        clients[i] = rl_open(&rl);
    for (int round = 0; round < 15; round++)
        check_one_takes_it(&rl, owner, clients, flags);
    rt_crash(&rl.nodes[4]); /* Now it can be two against two. */
    for (int round = 0; round < 15; round++)
        check_one_takes_it(&rl, owner, clients, flags);
    rt_again(&rl.nodes[4]);
    hf_close(owner);
    for (int i = 0; i < TAKERS; i++)
        hf_close(clients[i]);
    rl_end(&rl);
}

TEST_TIMEOUT(of_many_who_take_up_a_handle_at_once_one_does, 120)
{
    many_take_it(0);
}

TEST_TIMEOUT(of_many_who_take_up_a_shared_lock_at_once_one_does, 120)
{
    many_take_it(HF_SHARED);
}

/* The servers know that it is exclusive, whatever its bearer says. */
TEST(the_bearer_of_a_handle_does_not_change_its_mode)
{
    struct hf_lock_opts read = rt_opts(20000, HF_MANUAL | HF_SHARED);
    struct hf_handle handle = HF_HANDLE_INIT;
    struct rl rl;
    hf_client *client;
    hf_lock *none = NULL;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    handle = detached(client, 20000);
    CHECK_OK(hf_handle_extend(client, "k", &handle, &read, &t_err));
    t_poll_until(rl_count(&rl, "k", handle.token) == RL_N, 20000);
    for (int i = 0; i < 2; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    for (int i = 0; i < 3; i++)
        CHECK_OK(hf_handle_extend(client, "k", &handle, &read, &t_err));
    CHECK_EQ(rl_count(&rl, "k", "holdfast:shared"), 0);
    CHECK_STATUS(hf_acquire(client, "k", 0, &read, &none, &t_err), HF_BUSY);
    CHECK_OK(hf_handle_release(client, "k", &handle, &read, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

TEST(a_handle_stays_good_for_what_was_mended)
{
    struct hf_lock_opts opts = rt_opts(20000, HF_MANUAL);
    struct hf_handle handle = HF_HANDLE_INIT;
    struct rl rl;
    hf_client *client;

    rl_start(&rl, "?quarantine=off", false);
    client = rl_open(&rl);
    rt_do(&rl.nodes[4], "SET holdfast:k stranger PX 100000");
    handle = detached(client, 20000);
    rt_do(&rl.nodes[4], "DEL holdfast:k");
    while (rl_count(&rl, "k", handle.token) < RL_N)
        CHECK_OK(hf_handle_extend(client, "k", &handle, &opts, &t_err));
    CHECK_OK(hf_handle_release(client, "k", &handle, &opts, &t_err));
    rl_check_clean(&rl);
    hf_close(client);
    rl_end(&rl);
}

/* A client whose calls end soon. */
static hf_client *open_brief(const struct rl *rl)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *client = NULL;

    opts.timeout_ms = 1000;
    CHECK_OK(hf_open(rl->url, &opts, &client, &t_err));
    return client;
}

TEST(what_was_taken_up_unheard_is_uncertain_and_undone)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL);
    struct hf_handle handle = HF_HANDLE_INIT;
    struct rl rl;
    hf_client *a, *b;
    hf_lock *none = NULL;

    rl_start(&rl, "?quarantine=off", false);
    a = rl_open(&rl);
    b = open_brief(&rl);
    handle = detached(a, 60000);
    rl_signal(&rl, 0x1f, SIGSTOP);
    CHECK_STATUS(hf_attach(b, "k", &handle, &opts, &none, &t_err),
                 HF_UNCERTAIN);
    rl_signal(&rl, 0x1f, SIGCONT);
    rl_check_clean(&rl);
    CHECK_STATUS(hf_handle_release(b, "k", &handle, &opts, &t_err), HF_LOST);
    hf_close(a);
    hf_close(b);
    rl_check_clean(&rl);
    rl_end(&rl);
}

/* Somebody who began to take the lock up died, and a node does not answer. */
TEST(a_minority_of_left_over_tokens_loses_no_handle)
{
    struct hf_lock_opts opts = rt_opts(60000, HF_MANUAL);
    struct hf_handle handle = HF_HANDLE_INIT;
    struct rl rl;
    hf_client *a, *b;
    hf_lock *lk = NULL;

    rl_start(&rl, "?quarantine=off", false);
    a = rl_open(&rl);
    b = open_brief(&rl);
    handle = detached(a, 60000);
    for (int i = 0; i < 2; i++)
        rt_do(&rl.nodes[i],
              "SET holdfast:k ffffffffffffffffffffffffffffffff XX KEEPTTL");
    rl_signal(&rl, 0x04, SIGSTOP);
    CHECK_STATUS(hf_attach(b, "k", &handle, &opts, &lk, &t_err), HF_UNCERTAIN);
    rl_signal(&rl, 0x04, SIGCONT);
    t_poll_until(hf_attach(b, "k", &handle, &opts, &lk, &t_err) == HF_OK,
                 10000);
    CHECK_OK(hf_extend(lk, 0, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    for (int i = 0; i < 2; i++)
        rt_do(&rl.nodes[i], "DEL holdfast:k");
    hf_close(a);
    hf_close(b);
    rl_check_clean(&rl);
    rl_end(&rl);
}

TEST(a_broken_lock_stays_taken_and_says_so)
{
    struct hf_info info = HF_INFO_INIT;
    struct rl rl;
    hf_client *a, *b;
    hf_lock *lk = NULL, *other = NULL;

    rl_start(&rl, "?quarantine=off", false);
    a = rl_open(&rl);
    b = rl_open(&rl);
    CHECK_OK(rl_try(a, "k", 30000, &lk));
    CHECK_OK(hf_break(b, "k", hf_fence(lk), &t_err));
    CHECK_OK(hf_inspect(b, "k", &info, &t_err));
    CHECK(info.held);
    CHECK(info.broken);
    CHECK_GT(info.left_ms, 0);
    CHECK_STATUS(rl_try(b, "k", 30000, &other), HF_BUSY);
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    t_poll_until(rl_try(b, "k", 30000, &other) == HF_OK, 10000);
    CHECK_OK(hf_inspect(b, "k", &info, &t_err));
    CHECK(!info.broken);
    CHECK_OK(hf_release(other, &t_err));
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

TEST(a_lock_that_is_freed_by_force_is_free_at_once)
{
    struct rl rl;
    hf_client *a, *b;
    hf_lock *lk = NULL, *other = NULL;
    uint64_t fence;

    rl_start(&rl, "?quarantine=off", false);
    a = rl_open(&rl);
    b = rl_open(&rl);
    CHECK_OK(rl_try(a, "k", 60000, &lk));
    fence = hf_fence(lk);
    CHECK_STATUS(hf_break_force(b, "k", fence + 1, &t_err), HF_LOST);
    CHECK_OK(hf_break_force(b, "k", fence, &t_err));
    CHECK_OK(hf_break_force(b, "k", fence, &t_err)); /* may be repeated */
    CHECK_OK(rl_try(b, "k", 60000, &other));
    CHECK_GT(hf_fence(other), fence);
    CHECK_STATUS(hf_extend(lk, 0, &t_err), HF_LOST);
    CHECK_STATUS(hf_break_force(a, "k", fence, &t_err), HF_LOST);
    CHECK_OK(hf_extend(other, 0, &t_err));
    CHECK_OK(hf_release(other, &t_err));
    hf_release(lk, NULL);
    hf_close(a);
    hf_close(b);
    rl_end(&rl);
}

T_MAIN
