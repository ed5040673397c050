/* SPDX-License-Identifier: MIT
 *
 * sentinel.c - the master that Sentinel names, and fail-overs under load.
 *
 * A fail-over may forget a grant, as doc/guarantees.md says; the fence rises
 * all the same, and whoever goes on asking gets the lock again.
 */
#include "ensemble.h"
#include "load.h"

TEST_TIMEOUT(all_go_on_after_a_fail_over_and_fences_rise, 120)
{
    struct ensemble e = {0};
    struct load load = {.url = e.url, .key = "k", .may_forget = true};

    ensemble_start(&e);
    load_start(&load);
    load_check_goes_on(&load);
    /* An operator's: the old master lives on as a replica. */
    rt_do(&e.sentinel[0], "SENTINEL FAILOVER main");
    t_poll_until(is_master(&e.node[1]), 20000);
    t_poll_until(!is_master(&e.node[0]), 20000);
    load_check_goes_on(&load);
    /* A crash.  The sentinels must know the other as a good replica again. */
    t_poll_until(node_says(&e.node[1], "state=online"), 20000);
    ensemble_ready(&e);
    rt_crash(&e.node[1]);
    t_poll_until(is_master(&e.node[0]), 40000);
    load_check_goes_on(&load);
    load_stop(&load);
    rt_check_clean(&e.node[0]);
    ensemble_stop(&e);
}

/* A master that hangs keeps its connections, and comes back as a replica. */
TEST_TIMEOUT(all_go_on_after_a_master_hung_and_came_back, 120)
{
    struct ensemble e = {0};
    struct load load = {.url = e.url, .key = "k", .may_forget = true};

    ensemble_start(&e);
    load_start(&load);
    load_check_goes_on(&load);
    rt_signal(&e.node[0], SIGSTOP);
    t_poll_until(is_master(&e.node[1]), 40000);
    load_check_goes_on(&load);
    rt_signal(&e.node[0], SIGCONT);
    t_poll_until(node_says(&e.node[0], "role:slave"), 40000);
    load_check_goes_on(&load);
    load_stop(&load);
    rt_check_clean(&e.node[1]);
    ensemble_stop(&e);
}

TEST(one_live_sentinel_is_enough_and_a_wrong_name_is_told)
{
    struct ensemble e = {0};
    hf_client *client = NULL;
    struct hf_lock_opts opts = rt_opts(3000, 0);
    hf_lock *lk = NULL;
    char url[256];

    ensemble_start(&e);
    rt_signal(&e.sentinel[0], SIGSTOP);
    rt_crash(&e.sentinel[1]);
    CHECK_OK(hf_open(e.url, NULL, &client, &t_err));
    CHECK_OK(hf_acquire(client, "k", 0, &opts, &lk, &t_err));
    CHECK_STR(rt_text(&e.node[0], "GET holdfast:k"), hf_token(lk));
    CHECK_OK(hf_release(lk, &t_err));
    hf_close(client);
    snprintf(url, sizeof(url), "redis+sentinel://127.0.0.1:%d/other?timeout=1s",
             e.sentinel[2].port);
    CHECK_STATUS(hf_open(url, NULL, &client, &t_err), HF_UNAVAILABLE);
    CHECK(strstr(t_err.text, "other") != NULL);
    rt_check_clean(&e.node[0]);
    ensemble_stop(&e);
}

T_MAIN
