/* SPDX-License-Identifier: MIT
 *
 * looking.c - those who are counted as waiters are alive.
 */
#include "rt.h"

static bool count_waiters(void *arg, const char *key,
                          const struct hf_info *info)
{
    CHECK_STR(key, "k");
    *(int *)arg = info->waiters;
    return true;
}

static bool count_waiter(void *arg, const struct hf_waiter *waiter)
{
    (void)waiter;
    ++*(int *)arg;
    return true;
}

/* Whoever looks is told the same number, of a lock that is held or free. */
static void check_waiters(hf_client *client, bool held, int want)
{
    struct hf_info info = HF_INFO_INIT;
    int listed = want, named = 0;

    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK_EQ(info.held, held);
    CHECK_EQ(info.waiters, want);
    CHECK_OK(hf_list(client, NULL, count_waiters, &listed, &t_err));
    CHECK_EQ(listed, want);
    CHECK_OK(hf_waiters(client, "k", count_waiter, &named, &t_err));
    CHECK_EQ(named, want);
}

/* With three living waiters, with one, with one that is put aside, with none. */
static void check_only_living(struct rt_server *s, hf_client *client, bool held)
{
    rt_plant(s, 3, 60000, "holdfast:wake:dead");
    check_waiters(client, held, 3);
    rt_plant(s, 2, -1000, "holdfast:wake:dead");
    check_waiters(client, held, 1);
    rt_do(s, "ZINCRBY {holdfast:k}:queue: 4e15 %032x", 3);
    check_waiters(client, held, 1);
    rt_plant(s, 3, -1000, "holdfast:wake:dead");
    check_waiters(client, held, 0);
    rt_do(s, "ZINCRBY {holdfast:k}:queue: 4e15 %032x", 3);
    check_waiters(client, held, 0);
    CHECK_EQ(rt_waiters(s, "k"), 3); /* Looking removes nothing. */
    rt_do(s, "DEL {holdfast:k}:queue: {holdfast:k}:meta:");
}

TEST(only_waiters_that_live_are_counted)
{
    struct rt_server s = {0};
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    check_only_living(&s, client, false);
    lk = rt_lock(client, "k", 0, 60000, 0);
    check_only_living(&s, client, true);
    CHECK_OK(hf_release(lk, &t_err));
    lk = rt_lock(client, "k", 0, 60000, HF_SHARED);
    check_only_living(&s, client, true);
    CHECK_OK(hf_release(lk, &t_err));
    rt_do(&s, "DEL {holdfast:k}:meta:");
    hf_close(client);
    rt_end(&s);
}

/* A queue that is longer than one request of a look may be. */
TEST(a_long_queue_is_counted_too)
{
    struct hf_info info = HF_INFO_INIT;
    struct rt_server s = {0};
    hf_client *client;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    rt_plant(&s, 9000, 60000, "holdfast:wake:dead");
    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK_EQ(info.waiters, 9000);
    rt_plant(&s, 1000, -1000, "holdfast:wake:dead");
    CHECK_OK(hf_inspect(client, "k", &info, &t_err));
    CHECK_EQ(info.waiters, 8000);
    rt_do(&s, "DEL {holdfast:k}:queue: {holdfast:k}:meta:");
    hf_close(client);
    rt_end(&s);
}

T_MAIN
