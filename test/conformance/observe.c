/* SPDX-License-Identifier: MIT
 *
 * observe.c - observers are told who holds a lock, and of every change.
 *
 * The present state comes first.  Changes may be merged, so a test waits for
 * the state that it has made and checks that whatever it is told on the way is
 * in order; the last state is always told.
 */
#include "conf.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* An observer, what it was told last and what must hold of all it is told. */
struct watcher {
    hf_client *client;
    hf_observer *observer;
    struct hf_change last;
    uint64_t fence; /* the greatest so far */
    int told, held, nobody;
};

static void watcher_start(struct watcher *w, hf_client *client, const char *key,
                          unsigned flags)
{
    *w = (struct watcher){.client = client, .last = HF_CHANGE_INIT};
    CHECK_OK(hf_observe_start(client, key, flags, w, &w->observer, &t_err));
}

/* Take what there is, if anything. */
static bool watcher_take(struct watcher *w)
{
    if (!hf_observer_next(w->observer, &w->last))
        return false;
    CHECK_EQ(w->last.size, sizeof(w->last));
    CHECK_GE(w->last.info.fence, w->fence);
    w->fence = w->last.info.fence;
    w->told++;
    w->held += w->last.info.held;
    w->nobody += !w->last.info.held;
    return true;
}

static bool watcher_sees(struct watcher *w, const hf_lock *lk)
{
    while (watcher_take(w))
        continue;
    if (!w->told || w->last.info.held != (lk != NULL))
        return false;
    if (!lk)
        return true;
    return conf_traits & HF_TRAIT_FENCED
               ? w->last.info.fence == hf_fence(lk)
               : !w->last.info.owner[0] ||
                     !strcmp(w->last.info.owner, hf_token(lk));
}

/* The next change, waiting for its event. */
static void watcher_next(struct watcher *w)
{
    while (!watcher_take(w)) {
        struct hf_event event = conf_event(w->client);

        CHECK_EQ(event.type, HF_CHANGED);
        CHECK(event.observer == w->observer && event.user == w);
        CHECK(!event.lock && !event.request);
    }
}

TEST(the_present_holder_is_told_first)
{
    struct hf_lock_opts opts = conf_opts(0, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    struct watcher w;
    hf_lock *lk;

    opts.note = "http://leader:80";
    lk = conf_try(a, key, &opts);
    watcher_start(&w, b, key, 0);
    watcher_next(&w);
    CHECK(w.last.info.held && !w.last.info.shared);
    CHECK_STR(w.last.key, key);
    CHECK_EQ(w.last.info.fence, hf_fence(lk));
    CHECK_STR(w.last.info.note,
              conf_traits & HF_TRAIT_NOTED ? "http://leader:80" : "");
    CHECK(!watcher_take(&w));
    conf_no_event(b);
    conf_unlock(lk);
    t_poll_until(watcher_sees(&w, NULL), 20000);
    hf_observe_stop(w.observer);
    conf_no_event(b);
    hf_close(a);
    hf_close(b);
}

TEST(nobody_is_told_first_of_a_free_key)
{
    hf_client *client = conf_open();
    struct watcher w;

    watcher_start(&w, client, conf_key("k"), 0);
    watcher_next(&w);
    CHECK(!w.last.info.held);
    CHECK_STR(w.last.key, conf_key("k"));
    CHECK(!watcher_take(&w));
    hf_observe_stop(w.observer);
    hf_close(client);
}

/* Each state is waited for, so none is merged: all of them are seen. */
TEST(every_change_of_hands_is_told_and_nobody_too)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open(), *c = conf_open();
    int n = conf_times(8, 3);
    struct watcher w;
    hf_lock *lk;

    watcher_start(&w, c, key, 0);
    t_poll_until(watcher_sees(&w, NULL), 20000);
    for (int i = 0; i < n; i++) {
        lk = conf_lock(i % 2 ? a : b, key, NULL);
        t_poll_until(watcher_sees(&w, lk), 20000);
        conf_unlock(lk);
        t_poll_until(watcher_sees(&w, NULL), 20000);
    }
    CHECK_GE(w.held, n);
    CHECK_GE(w.nobody, n);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

/* Whether it was seen while it was held or not: the newest fence is told. */
TEST(the_fence_of_a_term_that_nobody_saw_is_told)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    uint64_t fence = 0;
    struct watcher w;
    hf_lock *lk;

    conf_needs(HF_TRAIT_FENCED);
    watcher_start(&w, b, key, 0);
    for (int i = 0; i < conf_times(20, 5); i++) {
        lk = conf_try(a, key, NULL);
        fence = hf_fence(lk);
        conf_unlock(lk);
        t_sleep_ms(i % 4 * 3);
    }
    if (conf_look(a, key).fence == fence) /* It tells of a free key, too. */
        t_poll_until((watcher_take(&w), w.fence == fence), 20000);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
}

/* A prefix is listed, or its keys are named: a free key has its newest fence in
 * either case, whether it was seen to be held under it or not. */
TEST(the_newest_fence_of_a_free_key_below_a_prefix_is_told)
{
    const char *key = conf_key("p/k");
    hf_client *a = conf_open(), *b = conf_open();
    uint64_t fence = 0;
    struct watcher w;
    hf_lock *lk;
    int i, n;

    conf_needs(HF_TRAIT_FENCED);
    lk = conf_try(a, key, NULL);
    watcher_start(&w, b, conf_key("p/"), HF_PREFIX);
    t_poll_until(watcher_sees(&w, lk), 20000);
    conf_unlock(lk);
    for (n = 0; n < 3; n++) { /* It was held before the first only. */
        for (i = 0; i < conf_times(5, 2); i++) {
            lk = conf_lock(a, key, NULL);
            fence = hf_fence(lk);
            conf_unlock(lk);
        }
        if (conf_look(a, key).fence != fence)
            break; /* The service forgets it. */
        t_poll_until(watcher_sees(&w, NULL) && w.fence == fence, 20000);
    }
    t_poll_until(watcher_sees(&w, NULL), 20000);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
}

/* What is not a change is not told. */
TEST(a_renewal_is_no_change)
{
    struct hf_lock_opts opts = conf_opts(6000, 0);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, &opts);
    struct watcher w;

    watcher_start(&w, b, key, 0);
    t_poll_until(watcher_sees(&w, lk), 20000);
    for (int i = 0; i < 3; i++) {
        t_sleep_ms(conf_ms(500));
        CHECK_OK(hf_extend(lk, 0, &t_err));
    }
    CHECK(!watcher_take(&w));
    CHECK_EQ(w.told, 1);
    conf_unlock(lk);
    t_poll_until(watcher_sees(&w, NULL), 20000);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
}

/* A lock that somebody passes on at once, thousands of times: whatever is told
 * is in order, and the end is. */
TEST_TIMEOUT(ten_thousand_changes_a_minute_end_with_the_last, 120)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open(), *c = conf_open();
    int n = conf_times(1700, 10);
    struct watcher w;
    hf_lock *lk = NULL;

    watcher_start(&w, c, key, 0);
    for (int i = 0; i < n; i++) {
        lk = conf_lock(i % 2 ? a : b, key, NULL);
        while (watcher_take(&w))
            continue;
        if (i < n - 1)
            conf_unlock(lk);
    }
    t_poll_until(watcher_sees(&w, lk), 20000);
    conf_unlock(lk);
    t_poll_until(watcher_sees(&w, NULL), 20000);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

TEST(a_thousand_observers_of_one_key_are_all_told)
{
    enum { N = 1000 };
    struct watcher *w = calloc(N, sizeof(*w));
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk;

    for (int i = 0; i < N; i++)
        watcher_start(&w[i], b, key, 0);
    lk = conf_lock(a, key, NULL);
    for (int i = 0; i < N; i++)
        t_poll_until(watcher_sees(&w[i], lk), 30000);
    conf_unlock(lk);
    for (int i = 0; i < N; i++)
        t_poll_until(watcher_sees(&w[i], NULL), 30000);
    for (int i = 0; i < N; i++)
        hf_observe_stop(w[i].observer);
    free(w);
    hf_close(a);
    hf_close(b);
}

/* One that comes when others are there is told the present, not what they were
 * told some time ago. */
TEST(a_later_observer_is_told_the_present_first)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    int n = conf_times(20, 3);
    struct watcher first, w;

    watcher_start(&first, b, key, 0);
    for (int i = 0; i < n; i++) {
        hf_lock *lk = conf_lock(a, key, NULL);

        watcher_start(&w, b, key, 0);
        t_poll_until(watcher_take(&w), 20000);
        CHECK(w.last.info.held);
        CHECK_EQ(w.last.info.fence, hf_fence(lk));
        hf_observe_stop(w.observer);
        conf_unlock(lk);
        watcher_start(&w, b, key, 0);
        t_poll_until(watcher_take(&w), 20000);
        CHECK(!w.last.info.held);
        hf_observe_stop(w.observer);
    }
    hf_observe_stop(first.observer);
    hf_close(a);
    hf_close(b);
}

/* The last state of a key below the prefix, or -1: it was not told. */
struct below {
    struct watcher w;
    char key[4][HF_KEY_MAX + 1];
    int held[4];
};

static bool below_is(struct below *b, int i, int held)
{
    while (watcher_take(&b->w)) {
        b->w.fence = 0; /* Each key has fences of its own. */
        for (int k = 0; k < 4; k++)
            if (!strcmp(b->w.last.key, b->key[k]))
                b->held[k] = b->w.last.info.held;
    }
    return b->held[i] == held;
}

TEST(a_prefix_tells_of_every_key_below_it)
{
    hf_client *a = conf_open(), *b = conf_open();
    struct below below = {.held = {-1, -1, -1, -1}};
    hf_lock *lk[4];

    for (int i = 0; i < 4; i++)
        snprintf(below.key[i], sizeof(below.key[i]), "%s%c",
                 conf_key(i < 3 ? "in/" : "out/"), 'a' + i);
    lk[0] = conf_try(a, below.key[0], NULL);
    lk[3] = conf_try(a, below.key[3], NULL);
    watcher_start(&below.w, b, conf_key("in/"), HF_PREFIX);
    t_poll_until(below_is(&below, 0, 1), 20000);
    CHECK_EQ(below.w.told, 1);
    lk[1] = conf_try(a, below.key[1], NULL);
    t_poll_until(below_is(&below, 1, 1), 20000);
    conf_unlock(lk[0]);
    t_poll_until(below_is(&below, 0, 0), 20000);
    lk[2] = conf_try(a, below.key[2], NULL);
    conf_unlock(lk[1]);
    t_poll_until(below_is(&below, 1, 0) && below_is(&below, 2, 1), 20000);
    conf_unlock(lk[2]);
    conf_unlock(lk[3]);
    t_poll_until(below_is(&below, 2, 0), 20000);
    CHECK_EQ(below.held[3], -1);
    hf_observe_stop(below.w.observer);
    hf_close(a);
    hf_close(b);
}

TEST(a_prefix_is_told_of_nothing_but_changes)
{
    hf_client *a = conf_open(), *b = conf_open();
    struct hf_lock_opts opts = conf_opts(1000, 0);
    hf_lock *lk = conf_try(a, conf_key("k/1"), &opts);
    struct watcher w;

    watcher_start(&w, b, conf_key("k/"), HF_PREFIX);
    t_poll_until(watcher_take(&w), 20000);
    CHECK(w.last.info.held);
    t_sleep_ms(conf_ms(2500)); /* looks, and renewals */
    CHECK(!watcher_take(&w));
    conf_unlock(lk);
    t_poll_until(watcher_take(&w), 20000);
    CHECK(!w.last.info.held);
    CHECK_STR(w.last.key, conf_key("k/1"));
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
}

/* Take it, and be gone without a word. */
static void die_with_it(struct t_peer *up, void *key)
{
    struct hf_lock_opts opts = conf_opts(1500, 0);
    hf_client *client = conf_open();

    conf_lock(client, key, &opts);
    t_tell(up, 1);
    t_hear(up);
}

/* A service that keeps no times (strategy=version) calls a dead holder's lock held
 * until somebody who waits has watched it for a lease, and an observer can know
 * no more than that. */
static void skip_if_held_for_ever(hf_client *client, const char *key,
                                  struct watcher *w)
{
    struct hf_info info = HF_INFO_INIT;
    int64_t end = t_now_ms() + 10000;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    if (info.left_ms != -1)
        return;
    while (t_now_ms() < end && !watcher_sees(w, NULL))
        t_sleep_ms(20);
    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    if (info.held && info.takeover_ms > 0)
        T_SKIP_TRAIT("the service does not know when a lease is over");
}

TEST(nobody_is_told_when_a_dead_holders_lease_is_over)
{
    const char *key = conf_key("k");
    struct t_peer peer;
    hf_client *client;
    struct watcher w;

    conf_needs(HF_TRAIT_PROCESSES);
    peer = t_fork(die_with_it, (void *)(uintptr_t)key);
    client = conf_open();
    CHECK_EQ(t_hear(&peer), 1);
    watcher_start(&w, client, key, 0);
    t_poll_until(watcher_take(&w), 20000);
    CHECK(w.last.info.held);
    t_kill(&peer);
    skip_if_held_for_ever(client, key, &w);
    t_poll_until(watcher_sees(&w, NULL), 40000);
    hf_observe_stop(w.observer);
    hf_close(client);
}

/* A lease that nobody renews and nobody releases. */
TEST(nobody_is_told_when_a_lease_lapses)
{
    struct hf_lock_opts opts = conf_opts(1000, HF_MANUAL);
    const char *key = conf_key("k");
    hf_client *a = conf_open(), *b = conf_open();
    hf_lock *lk = conf_try(a, key, &opts);
    struct watcher w;

    watcher_start(&w, b, key, 0);
    t_poll_until(watcher_sees(&w, lk), 20000);
    skip_if_held_for_ever(b, key, &w);
    t_poll_until(watcher_sees(&w, NULL), 40000);
    hf_release(lk, NULL);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
}

TEST(a_broken_lock_and_its_end_are_told)
{
    const char *key = conf_key("k");
    hf_client *a, *b;
    struct watcher w;
    hf_lock *lk;

    conf_needs(HF_TRAIT_BREAK | HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    lk = conf_try(a, key, NULL);
    watcher_start(&w, b, key, 0);
    t_poll_until(watcher_sees(&w, lk), 20000);
    CHECK_OK(hf_break(b, key, hf_fence(lk), &t_err));
    t_poll_until((watcher_take(&w), w.last.info.broken || !w.last.info.held),
                 20000);
    hf_release(lk, NULL);
    t_poll_until(watcher_sees(&w, NULL), 20000);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
}

TEST(readers_and_their_number_are_told)
{
    struct hf_lock_opts opts = conf_opts(0, HF_SHARED);
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *one, *two;
    struct watcher w;

    conf_needs(HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    watcher_start(&w, b, key, 0);
    one = conf_lock(a, key, &opts);
    t_poll_until((watcher_take(&w), w.last.info.held), 20000);
    CHECK(w.last.info.shared);
    two = conf_lock(b, key, &opts);
    t_poll_until((watcher_take(&w), w.last.info.holders == 2), 20000);
    conf_unlock(two);
    t_poll_until((watcher_take(&w), w.last.info.holders == 1), 20000);
    CHECK(w.last.info.held);
    conf_unlock(one);
    t_poll_until(watcher_sees(&w, NULL), 20000);
    hf_observe_stop(w.observer);
    hf_close(a);
    hf_close(b);
}

TEST(an_observer_stops_with_events_pending)
{
    const char *key = conf_key("k");
    hf_client *a = conf_open();
    int n = conf_times(50, 5);
    struct watcher w;

    for (int i = 0; i < n; i++) {
        hf_lock *lk = conf_lock(a, key, NULL);

        watcher_start(&w, a, key, 0);
        if (i % 2)
            t_poll_until(conf_readable(hf_events_fd(a), 0), 20000);
        hf_observe_stop(w.observer);
        conf_no_event(a);
        conf_unlock(lk);
    }
    conf_no_event(a);
    hf_close(a);
}

TEST(a_client_closes_with_observers_open)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct watcher w[3];

    watcher_start(&w[0], client, key, 0);
    watcher_start(&w[1], client, conf_key(""), HF_PREFIX);
    watcher_start(&w[2], client, key, 0);
    t_poll_until(conf_readable(hf_events_fd(client), 0), 20000);
    hf_close(client);
    for (int i = 0; i < 3; i++) {
        CHECK(!watcher_take(&w[i]));
        hf_observe_stop(w[i].observer);
    }
}

TEST(a_forked_child_is_told_nothing_and_disturbs_nobody)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct watcher w;
    hf_lock *lk;
    int status;
    pid_t pid;

    watcher_start(&w, client, key, 0);
    t_poll_until(conf_readable(hf_events_fd(client), 0), 20000);
    pid = fork();
    CHECK_GE(pid, 0);
    if (pid == 0) {
        hf_observer *none = NULL;

        CHECK(!hf_observer_next(w.observer, &w.last));
        CHECK_STATUS(hf_observe_start(client, key, 0, NULL, &none, &t_err),
                     HF_INVALID);
        hf_observe_stop(w.observer);
        hf_close(client);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    lk = conf_lock(client, key, NULL);
    t_poll_until(watcher_sees(&w, lk), 20000);
    conf_unlock(lk);
    t_poll_until(watcher_sees(&w, NULL), 20000);
    hf_observe_stop(w.observer);
    hf_close(client);
}

TEST(wrong_arguments_of_observers_are_refused)
{
    hf_client *client = conf_open();
    struct hf_change change = HF_CHANGE_INIT;
    char key[HF_KEY_MAX + 2];
    hf_observer *none = NULL;

    memset(key, 'k', sizeof(key) - 1);
    key[sizeof(key) - 1] = '\0';
    CHECK_STATUS(hf_observe_start(NULL, "k", 0, NULL, &none, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_observe_start(client, NULL, 0, NULL, &none, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_observe_start(client, "", 0, NULL, &none, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_observe_start(client, key, HF_PREFIX, NULL, &none, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_observe_start(client, "k", 2, NULL, &none, &t_err),
                 HF_INVALID);
    CHECK_STATUS(hf_observe_start(client, "k", 0, NULL, NULL, &t_err),
                 HF_INVALID);
    CHECK(!none && !hf_observer_next(NULL, &change));
    hf_observe_stop(NULL);
    hf_close(client);
}
