/* SPDX-License-Identifier: MIT
 *
 * observe.c - changes of keys are pushed by the server, whatever happens to its
 * connections, and cost nothing where nobody observes.
 */
#include "fleet.h"

/* The newest state of one observer. */
struct watcher {
    hf_observer *observer;
    struct hf_change last;
    bool told;
};

static void watcher_start(struct watcher *w, hf_client *client, const char *key,
                          unsigned flags)
{
    *w = (struct watcher){.last = HF_CHANGE_INIT};
    CHECK_OK(hf_observe_start(client, key, flags, w, &w->observer, &t_err));
}

static bool sees(struct watcher *w, bool held)
{
    while (hf_observer_next(w->observer, &w->last))
        w->told = true;
    return w->told && w->last.info.held == held;
}

static long long tracking(struct rt_server *s)
{
    const char *at = strstr(rt_text(s, "INFO clients"), "tracking_clients:");

    return at ? atoll(at + strlen("tracking_clients:")) : -1;
}

/* The change of another program, of which no script knows, is seen with a look
 * or two: polling would take many. */
TEST(what_others_do_with_a_key_is_pushed)
{
    struct rt_server s = {0};
    struct watcher w;
    hf_client *client;
    long long looks;
    int i;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    CHECK_EQ(tracking(&s), 0);
    watcher_start(&w, client, "k", 0);
    t_poll_until(sees(&w, false), 10000);
    for (i = 0; i < 3; i++) {
        looks = rt_calls(&s, "evalsha");
        t_sleep_ms(600); /* in which a poll would look */
        CHECK_EQ(rt_calls(&s, "evalsha"), looks);
        rt_do(&s, "SET holdfast:k another PX 600000");
        t_poll_until(sees(&w, true), 10000);
        CHECK_STR(w.last.info.owner, "another");
        rt_do(&s, i ? "FLUSHALL" : "DEL holdfast:k");
        t_poll_until(sees(&w, false), 10000);
        CHECK_LE(rt_calls(&s, "evalsha"), looks + 6);
    }
    hf_observe_stop(w.observer);
    t_poll_until(!tracking(&s), 10000);
    hf_close(client);
    rt_end(&s);
}

/* How often something was refused for want of rights. */
static long long denied(struct rt_server *s)
{
    const char *at = strstr(rt_text(s, "INFO errorstats"), "_NOPERM:count=");

    return at ? atoll(at + strlen("_NOPERM:count=")) : 0;
}

/* One of the keys may not be read: that is asked once, not on one connection after
 * the other, and the other key is told of as before. */
TEST(a_key_without_rights_costs_no_connections)
{
    struct rt_server s = {0};
    struct watcher own, other;
    long long links;
    hf_client *client;

    rt_start(&s, NULL);
    rt_do(&s, "ACL SETUSER default resetkeys ~holdfast:k ~{holdfast:k}*");
    client = rt_open(&s, "");
    watcher_start(&own, client, "k", 0);
    t_poll_until(sees(&own, false), 10000);
    links = rt_calls(&s, "client|tracking");
    watcher_start(&other, client, "other", 0);
    t_poll_until(denied(&s) >= 6, 30000);
    CHECK_EQ(rt_calls(&s, "client|tracking"), links);
    CHECK(!sees(&other, false));
    rt_do(&s, "ACL SETUSER default allkeys");
    t_poll_until(sees(&other, false), 10000);
    rt_do(&s, "SET holdfast:k another PX 600000");
    t_poll_until(sees(&own, true), 10000);
    rt_do(&s, "SET holdfast:other another PX 600000");
    t_poll_until(sees(&other, true), 10000);
    rt_do(&s, "DEL holdfast:k holdfast:other");
    hf_observe_stop(own.observer);
    hf_observe_stop(other.observer);
    hf_close(client);
    rt_end(&s);
}

TEST(changes_are_told_although_connections_break)
{
    static const char *const kinds[] = {"pubsub", "normal"};
    struct rt_server s = {0};
    hf_client *a, *b;
    struct watcher w;
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    watcher_start(&w, b, "k", 0);
    t_poll_until(sees(&w, false), 10000);
    for (i = 0; i < 6; i++) {
        rt_do(&s, "CLIENT KILL TYPE %s", kinds[i % 2]);
        lk = rt_lock(a, "k", 10000, 60000, 0);
        t_poll_until(sees(&w, true), 10000);
        CHECK_EQ(w.last.info.fence, hf_fence(lk));
        rt_do(&s, "CLIENT KILL TYPE %s", kinds[i % 2]);
        t_poll_until(hf_extend(lk, 0, &t_err) == HF_OK, 10000);
        CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(sees(&w, false), 10000);
    }
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

TEST(an_observer_outlives_a_restart)
{
    struct rt_server s = {0};
    hf_client *a, *b;
    struct watcher w, all;
    hf_lock *lk;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    watcher_start(&w, b, "a/k", 0);
    watcher_start(&all, b, "a/", HF_PREFIX);
    t_poll_until(sees(&w, false), 10000);
    lk = rt_lock(a, "a/k", 10000, 600000, HF_MANUAL);
    t_poll_until(sees(&w, true) && sees(&all, true), 10000);
    rt_crash(&s);
    rt_again(&s); /* It has forgotten the lock. */
    t_poll_until(sees(&w, false) && sees(&all, false), 20000);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    lk = rt_lock(a, "a/k", 10000, 600000, HF_MANUAL);
    t_poll_until(sees(&w, true) && sees(&all, true), 20000);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(sees(&w, false) && sees(&all, false), 20000);
    hf_observe_stop(w.observer);
    hf_observe_stop(all.observer);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* Has an event told that the server answers, or that it does not? */
static bool answers(hf_client *client, bool yes)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(client, &event))
        if (event.type == HF_CHANGED && !event.error.status == yes)
            return true;
    return false;
}

/* Nothing is asked for: the connections that would tell have ended. */
TEST(that_the_server_is_gone_is_told)
{
    struct rt_server s = {0};
    struct watcher all;
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    watcher_start(&all, client, "", HF_PREFIX);
    lk = rt_lock(client, "k", 10000, 60000, 0);
    t_poll_until(sees(&all, true), 10000);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(sees(&all, false), 10000);
    while (answers(client, true))
        continue;
    rt_crash(&s);
    t_poll_until(answers(client, false), 10000);
    rt_again(&s);
    t_poll_until(answers(client, true), 20000);
    hf_observe_stop(all.observer);
    hf_close(client);
    rt_end(&s);
}

/* Whoever is busy with a change when the server goes is told of that afterwards;
 * and so is an observer that begins while it is away. */
TEST(that_the_server_is_gone_is_told_whenever_one_looks)
{
    struct rt_server s = {0};
    struct watcher one, late;
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    watcher_start(&one, client, "k", 0);
    t_poll_until(sees(&one, false), 10000);
    lk = rt_lock(client, "k", 10000, 60000, 0);
    t_poll_until(answers(client, true), 10000);
    rt_crash(&s);
    t_sleep_ms(1000);
    while (sees(&one, true) && one.told)
        one.told = false;
    t_poll_until(answers(client, false), 10000);
    watcher_start(&late, client, "k", 0);
    t_poll_until(answers(client, false), 10000);
    rt_again(&s);
    t_poll_until(answers(client, true), 20000);
    hf_observe_stop(one.observer);
    hf_observe_stop(late.observer);
    hf_release(lk, NULL);
    hf_close(client);
    rt_stop(&s);
}

/* The mark of a break is a change: it does not wait for the next look. */
TEST(a_break_is_told)
{
    struct rt_server s = {0};
    struct watcher one, all;
    hf_client *client;
    hf_lock *lk;

    rt_start(&s, NULL);
    client = rt_open(&s, "");
    watcher_start(&one, client, "k", 0);
    watcher_start(&all, client, "", HF_PREFIX);
    lk = rt_lock(client, "k", 10000, 600000, 0);
    t_poll_until(sees(&one, true) && sees(&all, true), 10000);
    CHECK(!one.last.info.broken && !all.last.info.broken);
    CHECK_OK(hf_break(client, "k", hf_fence(lk), &t_err));
    t_poll_until(sees(&one, true) && one.last.info.broken, 4000);
    t_poll_until(sees(&all, true) && all.last.info.broken, 4000);
    CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
    t_poll_until(sees(&one, false) && sees(&all, false), 10000);
    hf_observe_stop(one.observer);
    hf_observe_stop(all.observer);
    hf_close(client);
    rt_end(&s);
}

/* The server takes no prefixes that overlap. */
TEST(prefixes_may_contain_each_other)
{
    static const char *const prefixes[] = {"a/", "", "a/b", "{x}"};
    struct rt_server s = {0};
    hf_client *a, *b;
    struct watcher w[4];
    hf_lock *lk;
    int i;

    rt_start(&s, NULL);
    a = rt_open(&s, "");
    b = rt_open(&s, "");
    for (i = 0; i < 4; i++)
        watcher_start(&w[i], b, prefixes[i], HF_PREFIX);
    for (i = 0; i < 2; i++) {
        lk = rt_lock(a, "a/bc", 10000, 60000, i ? HF_SHARED : 0);
        t_poll_until(
            sees(&w[0], true) && sees(&w[1], true) && sees(&w[2], true), 20000);
        CHECK_STR(w[2].last.key, "a/bc");
        CHECK(!sees(&w[3], true));
        CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(sees(&w[0], false) && sees(&w[1], false) &&
                         sees(&w[2], false),
                     20000);
    }
    for (i = 0; i < 4; i++)
        hf_observe_stop(w[i].observer);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* Then it is looked at now and then. */
TEST(who_may_not_be_told_polls)
{
    struct rt_server s = {0};
    hf_client *a, *b = NULL;
    struct watcher w;
    hf_lock *lk;
    char url[80];

    rt_start(&s, NULL);
    rt_do(&s, "ACL SETUSER u on nopass ~* &* +@all -client|tracking");
    snprintf(url, sizeof(url), "redis://u@127.0.0.1:%d", s.port);
    a = rt_open(&s, "");
    CHECK_OK(hf_open(url, NULL, &b, &t_err));
    watcher_start(&w, b, "k", 0);
    t_poll_until(sees(&w, false), 10000);
    lk = rt_lock(a, "k", 10000, 60000, 0);
    t_poll_until(sees(&w, true), 10000);
    CHECK_EQ(tracking(&s), 0);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(sees(&w, false), 10000);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
    rt_end(&s);
}

/* Told by the node that has the slot, and then by the next. */
TEST_TIMEOUT(an_observer_follows_a_slot_that_moves, 120)
{
    const char *key = fleet_key(0, 0);
    struct fleet f;
    hf_client *a, *b;
    struct watcher w, all;
    long long slot;
    hf_lock *lk;
    int i;

    fleet_start(&f, NULL);
    a = fleet_open(&f, "");
    b = fleet_open(&f, "");
    watcher_start(&w, b, key, 0);
    watcher_start(&all, b, "", HF_PREFIX);
    t_poll_until(sees(&w, false), 20000);
    slot = fleet_slot(&f, key);
    for (i = 0; i < 2; i++) {
        lk = rt_lock(a, key, 20000, 60000, 0);
        t_poll_until(sees(&w, true) && sees(&all, true), 20000);
        CHECK_EQ(w.last.info.fence, hf_fence(lk));
        if (!i) {
            fleet_move_begin(&f, slot, 0, 1);
            fleet_move_rest(&f, slot, 0, 1);
        }
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(sees(&w, false) && sees(&all, false), 20000);
    }
    hf_observe_stop(w.observer);
    hf_observe_stop(all.observer);
    hf_close(a);
    hf_close(b);
    fleet_check_clean(&f);
    fleet_stop(&f);
}

T_MAIN
