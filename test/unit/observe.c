/* SPDX-License-Identifier: MIT
 *
 * observe.c - observers over a service that is far away, silent or behind: what
 * they cost, and that they cost nobody else anything.
 */
#include "far.h"

static atomic_int ob_observed, ob_unobserved; /* how often */
static atomic_int ob_looks, ob_listings;
static atomic_int ob_at_once, ob_most; /* looks at a time */
static atomic_int ob_refused;          /* so many observe() fail */
static atomic_bool ob_silent;          /* no look has an answer */
static atomic_bool ob_old;             /* looks show what was at first */
static atomic_bool ob_unsaid;          /* nothing is told */
static atomic_bool ob_dead;            /* no listing has an answer */
static struct hf_info ob_first;
static struct hfi_conn *_Atomic ob_conn; /* of the last observation */
static struct hfi_observation *_Atomic ob_last;

static hf_status ob_observe(struct hfi_conn *conn, struct hfi_observation *obs,
                            int64_t deadline, struct hf_error *err)
{
    if (atomic_load(&ob_refused) > 0) {
        atomic_fetch_sub(&ob_refused, 1);
        return hfi_fail(err, HF_UNAVAILABLE, "far: not now");
    }
    atomic_fetch_add(&ob_observed, 1);
    ob_conn = conn;
    ob_last = obs;
    if (atomic_load(&ob_unsaid))
        return HF_OK;
    return hfi_backend_mem.observe(near_of(conn), obs, deadline, err);
}

static void ob_unobserve(struct hfi_conn *conn, struct hfi_observation *obs)
{
    atomic_fetch_add(&ob_unobserved, 1);
    if (!atomic_load(&ob_unsaid))
        hfi_backend_mem.unobserve(near_of(conn), obs);
}

static hf_status ob_inspect(struct hfi_conn *conn, const char *key,
                            struct hf_info *ret, int64_t deadline,
                            struct hf_error *err)
{
    int now = atomic_fetch_add(&ob_at_once, 1) + 1, most = ob_most;
    hf_status st = HF_OK;

    while (now > most && !atomic_compare_exchange_weak(&ob_most, &most, now))
        continue;
    atomic_fetch_add(&ob_looks, 1);
    while (atomic_load(&ob_silent) && t_now_ms() < deadline)
        t_sleep_ms(1);
    if (t_now_ms() >= deadline)
        st = hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    else if (atomic_load(&ob_old))
        *ret = ob_first;
    else
        st = hfi_backend_mem.inspect(near_of(conn), key, ret, deadline, err);
    atomic_fetch_sub(&ob_at_once, 1);
    return st;
}

static hf_status ob_list(struct hfi_conn *conn, const char *prefix,
                         hf_list_fn *fn, void *arg, int64_t deadline,
                         struct hf_error *err)
{
    atomic_fetch_add(&ob_listings, 1);
    if (atomic_load(&ob_dead))
        return hfi_fail(err, HF_UNAVAILABLE, "far: nobody is there");
    return hfi_backend_mem.list(near_of(conn), prefix, fn, arg, deadline, err);
}

static atomic_int ob_several; /* requests for several keys */

static hf_status ob_inspect_several(struct hfi_conn *conn,
                                    const char *const *keys, int n,
                                    hf_list_fn *fn, void *arg, int64_t deadline,
                                    struct hf_error *err)
{
    hf_status st = HF_OK;

    atomic_fetch_add(&ob_several, 1);
    while (atomic_load(&ob_silent) && t_now_ms() < deadline)
        t_sleep_ms(1);
    for (int i = 0; i < n && !st; i++) {
        struct hf_info info = HF_INFO_INIT;

        st = hfi_backend_mem.inspect(near_of(conn), keys[i], &info, deadline,
                                     err);
        if (!st)
            fn(arg, keys[i], &info);
    }
    return st;
}

static hf_client *ob_client(void)
{
    static struct hfi_backend be;

    be = far_backend;
    be.observation_size = hfi_backend_mem.observation_size;
    be.observe = ob_observe;
    be.unobserve = ob_unobserve;
    be.inspect = ob_inspect;
    be.list = ob_list;
    be.inspect_several = ob_inspect_several;
    return far_client_of(&be, 5000);
}

static hf_observer *ob_start(hf_client *client, const char *key, unsigned flags)
{
    hf_observer *observer;

    CHECK_OK(hf_observe_start(client, key, flags, NULL, &observer, &t_err));
    return observer;
}

/* Has the observer been told that, at last? */
static bool ob_told(hf_observer *observer, struct hf_change *last, bool held)
{
    while (hf_observer_next(observer, last))
        continue;
    return last->info.held == held;
}

TEST(a_thousand_observers_of_one_key_cost_as_much_as_one)
{
    enum { N = 1000, TURNS = 20 };
    hf_observer **observers = calloc(N, sizeof(*observers));
    hf_client *client = ob_client();
    struct hf_change last = HF_CHANGE_INIT;
    int looks;

    for (int i = 0; i < N; i++)
        observers[i] = ob_start(client, "k", 0);
    for (int i = 0; i < N; i++)
        t_poll_until(hf_observer_next(observers[i], &last), 20000);
    looks = atomic_load(&ob_looks);
    for (int i = 0; i < TURNS; i++) {
        hf_lock *lk = far_lock(client, "k", 60000);

        t_poll_until(ob_told(observers[i], &last, true), 20000);
        CHECK_OK(hf_release(lk, &t_err));
        t_poll_until(ob_told(observers[i], &last, false), 20000);
    }
    CHECK_EQ(atomic_load(&ob_observed), 1);
    CHECK_LE(atomic_load(&ob_looks) - looks, 4 * TURNS + 4);
    for (int i = 0; i < N; i++)
        hf_observe_stop(observers[i]);
    t_poll_until(atomic_load(&ob_unobserved) == 1, 20000);
    free(observers);
    far_end(client);
    CHECK_EQ(atomic_load(&ob_observed), atomic_load(&ob_unobserved));
}

/* Looks that have no answer are four at a time, and nobody else waits. */
TEST(a_thousand_observers_of_a_silent_service_delay_nobody)
{
    enum { N = 1000 };
    hf_observer **observers = calloc(N, sizeof(*observers));
    hf_client *client = ob_client();
    struct hf_event event = HF_EVENT_INIT;
    hf_request *request;
    hf_lock *lk;
    char key[32];

    atomic_store(&ob_silent, true);
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "silent/%d", i);
        observers[i] = ob_start(client, key, 0);
    }
    t_poll_until(atomic_load(&ob_at_once) == HFI_INSPECTORS, 20000);
    lk = far_lock(client, "renewed", 600);
    for (int i = 0; i < 100; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        CHECK_OK(
            hf_acquire_start(client, key, 0, NULL, NULL, &request, &t_err));
        t_poll_until(hf_next_event(client, &event), 2000);
        CHECK_EQ(event.type, HF_GRANTED);
        CHECK_OK(hf_release(event.lock, &t_err));
    }
    t_sleep_ms(2000);
    CHECK(hf_held(lk));
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_EQ(atomic_load(&ob_most), HFI_INSPECTORS);
    for (int i = 0; i < N; i++)
        hf_observe_stop(observers[i]);
    atomic_store(&ob_silent, false);
    free(observers);
    far_end(client);
}

TEST(what_cannot_be_observed_now_is_polled_and_observed_later)
{
    hf_client *client = ob_client();
    struct hf_change last = HF_CHANGE_INIT;
    hf_observer *observer;
    hf_lock *lk;

    atomic_store(&ob_refused, 3);
    observer = ob_start(client, "k", 0);
    t_poll_until(hf_observer_next(observer, &last), 20000);
    lk = far_lock(client, "k", 60000);
    t_poll_until(ob_told(observer, &last, true), 20000);
    t_poll_until(atomic_load(&ob_observed) == 1, 20000);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(ob_told(observer, &last, false), 20000);
    hf_observe_stop(observer);
    far_end(client);
}

/* An observer has been told of the second holder, whose lock *ret is, and the
 * service goes on telling of the first, as of one who shares the lock or not. */
static hf_observer *ob_start_behind(hf_client *client, bool shared,
                                    hf_lock **ret)
{
    struct hf_change last = HF_CHANGE_INIT;
    hf_observer *observer;
    hf_lock *lk = far_lock(client, "k", 60000);

    ob_first = (struct hf_info)HF_INFO_INIT;
    CHECK_OK(hf_inspect(client, "k", &ob_first, &t_err));
    CHECK_OK(hf_release(lk, &t_err));
    *ret = far_lock(client, "k", 60000);
    observer = ob_start(client, "k", 0);
    t_poll_until(hf_observer_next(observer, &last), 20000);
    CHECK_EQ(last.info.fence, hf_fence(*ret));
    ob_first.shared = shared;
    atomic_store(&ob_old, true);
    return observer;
}

TEST(an_old_answer_is_not_told)
{
    struct hf_change last = HF_CHANGE_INIT;
    hf_client *client = ob_client();
    hf_lock *lk;
    hf_observer *observer = ob_start_behind(client, false, &lk);
    int looks;

    looks = atomic_load(&ob_looks);
    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(atomic_load(&ob_looks) > looks + 3, 20000);
    CHECK(!hf_observer_next(observer, &last));
    atomic_store(&ob_old, false);
    t_poll_until(hf_observer_next(observer, &last), 20000);
    CHECK(!last.info.held);
    CHECK_GE(last.info.fence, ob_first.fence);
    hf_observe_stop(observer);
    far_end(client);
}

/* The newest of several holders has left: the fence of the other is smaller. */
TEST(one_who_stays_of_several_is_told_once)
{
    struct hf_change last = HF_CHANGE_INIT;
    hf_client *client = ob_client();
    hf_lock *lk;
    hf_observer *observer = ob_start_behind(client, true, &lk);
    int told = 0;

    for (int i = 0; i < 4; i++) {
        int looks = atomic_load(&ob_looks);

        hfi_changed(ob_conn, ob_last, NULL);
        t_poll_until(atomic_load(&ob_looks) > looks, 20000);
        t_poll_until((told += hf_observer_next(observer, &last)) > 0, 20000);
    }
    while (hf_observer_next(observer, &last))
        told++;
    CHECK_EQ(told, 1);
    CHECK(last.info.shared);
    CHECK_EQ(last.info.fence, hf_fence(lk));
    atomic_store(&ob_old, false);
    CHECK_OK(hf_release(lk, &t_err));
    hf_observe_stop(observer);
    far_end(client);
}

TEST(a_service_that_has_lost_its_data_is_believed)
{
    struct hf_change last = HF_CHANGE_INIT;
    hf_client *client = ob_client();
    hf_lock *lk;
    hf_observer *observer = ob_start_behind(client, false, &lk);

    CHECK_OK(hf_release(lk, &t_err));
    t_poll_until(hf_observer_next(observer, &last), 60000);
    CHECK(last.info.held);
    CHECK_EQ(last.info.fence, ob_first.fence);
    atomic_store(&ob_old, false);
    hf_observe_stop(observer);
    far_end(client);
}

/* Has the observer been told of all that there was?  Then how many keys it
 * knows. */
static bool ob_idle(hf_observer *observer, size_t *known)
{
    struct hfi_observed *o = observer->observed;
    struct hf_change last = HF_CHANGE_INIT;
    bool idle;

    while (hf_observer_next(observer, &last))
        continue;
    pthread_mutex_lock(&observer->client->mu);
    idle = !o->busy && !o->all && hfi_link_alone(&o->dirty);
    *known = o->keys.len;
    pthread_mutex_unlock(&observer->client->mu);
    return idle;
}

/* Keys that are used once do not stay in the memory of an observer. */
TEST(the_keys_below_a_prefix_are_forgotten)
{
    enum { N = 3000 };
    hf_client *client = ob_client();
    hf_observer *observer = ob_start(client, "once/", HF_PREFIX);
    size_t known = 0, most = 0;
    char key[32];

    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "once/%d", i);
        CHECK_OK(hf_release(far_lock(client, key, 60000), &t_err));
        if (i % 100 == 99)
            t_poll_until(ob_idle(observer, &known), 20000);
        if (known > most)
            most = known;
    }
    CHECK_LT(most, N / 2);
    CHECK_LE(atomic_load(&ob_listings), 20);
    hf_observe_stop(observer);
    far_end(client);
}

/* What the service names while a look is under way is asked for together. */
TEST(keys_that_change_together_are_asked_for_together)
{
    enum { N = 500 };
    hf_client *client = ob_client();
    hf_observer *observer = ob_start(client, "many/", HF_PREFIX);
    struct hf_change change = HF_CHANGE_INIT;
    hf_lock *locks[N];
    size_t known;
    char key[32];
    int told = 0;

    t_poll_until(ob_idle(observer, &known), 20000);
    atomic_store(&ob_silent, true); /* A look takes a while. */
    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "many/%d", i);
        locks[i] = far_lock(client, key, 60000);
        if (!i)
            t_poll_until(atomic_load(&ob_several) == 1, 20000);
    }
    atomic_store(&ob_silent, false);
    while (told < N) {
        t_poll_until(hf_observer_next(observer, &change), 20000);
        CHECK(change.info.held);
        told++;
    }
    CHECK_LE(atomic_load(&ob_several), 2 + N / 100);
    CHECK_EQ(atomic_load(&ob_looks), 0);
    for (int i = 0; i < N; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    hf_observe_stop(observer);
    far_end(client);
}

/* A listing behind what the service tells costs at most 100 keys a second. */
TEST(a_listing_of_many_keys_is_rarer)
{
    enum { N = 2000 };
    hf_client *client = ob_client();
    hf_observer *observer = ob_start(client, "many/", HF_PREFIX);
    struct hfi_observed *o = observer->observed;
    hf_lock *locks[N];
    int64_t due, now;
    size_t known = 0;
    char key[32];

    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "many/%d", i);
        locks[i] = far_lock(client, key, 600000);
    }
    t_poll_until(ob_idle(observer, &known) && known == N, 20000);
    now = t_now_ms();
    pthread_mutex_lock(&client->mu);
    due = o->timer.due;
    pthread_mutex_unlock(&client->mu);
    CHECK_GE(due, now + N * 10);
    CHECK_LE(due, now + 60000 + N * 10);
    for (int i = 0; i < N; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    hf_observe_stop(observer);
    far_end(client);
}

struct ob_count {
    int n, most;
};

static bool ob_counts(void *arg, const char *key, const struct hf_info *info)
{
    struct ob_count *count = arg;

    (void)key;
    CHECK(info->held);
    return ++count->n < count->most;
}

static bool ob_looked(hf_observer *observer)
{
    size_t known;

    return atomic_load(&ob_listings) && ob_idle(observer, &known);
}

/* Who lists what is observed asks for both. */
TEST(a_listing_of_an_observed_prefix_is_its_look)
{
    struct hf_change last = HF_CHANGE_INIT;
    struct ob_count count = {0, 100};
    hf_client *client = ob_client();
    hf_observer *observer;
    hf_lock *locks[2];
    int listings;

    atomic_store(&ob_unsaid, true);
    observer = ob_start(client, "p/", HF_PREFIX);
    t_poll_until(ob_looked(observer), 20000);
    locks[0] = far_lock(client, "p/1", 60000);
    CHECK(!hf_observer_next(observer, &last));
    listings = atomic_load(&ob_listings);
    CHECK_OK(hf_list(client, "p/", ob_counts, &count, &t_err));
    CHECK_EQ(count.n, 1);
    CHECK(hf_observer_next(observer, &last));
    CHECK(last.info.held && !strcmp(last.key, "p/1"));
    CHECK_OK(hf_release(locks[0], &t_err));
    CHECK_OK(hf_list(client, "p/", ob_counts, &count, &t_err));
    CHECK(hf_observer_next(observer, &last));
    CHECK(!last.info.held);
    CHECK_EQ(atomic_load(&ob_listings), listings + 2);
    locks[0] = far_lock(client, "p/1", 60000);
    locks[1] = far_lock(client, "p/2", 60000);
    count = (struct ob_count){0, 1};
    CHECK_OK(hf_list(client, "p/", ob_counts, &count, &t_err));
    CHECK_EQ(count.n, 1); /* The rest is looked at by a worker. */
    t_poll_until(hf_observer_next(observer, &last), 20000);
    t_poll_until(hf_observer_next(observer, &last), 20000);
    CHECK_OK(hf_release(locks[0], &t_err));
    CHECK_OK(hf_release(locks[1], &t_err));
    hf_observe_stop(observer);
    far_end(client);
}

/* Has an event told that the service answers, or that it does not? */
static bool ob_answers(hf_client *client, hf_observer *observer, hf_status st)
{
    struct hf_event event = HF_EVENT_INIT;
    struct hf_change change = HF_CHANGE_INIT;

    while (hf_next_event(client, &event)) {
        CHECK(event.type == HF_CHANGED && event.observer == observer);
        CHECK(!hf_observer_next(observer, &change));
        if (event.error.status == st)
            return true;
    }
    return false;
}

TEST(an_observer_is_told_whether_the_service_answers)
{
    hf_client *client = ob_client();
    hf_observer *observer = ob_start(client, "p/", HF_PREFIX);
    struct hf_event event = HF_EVENT_INIT;

    t_poll_until(ob_looked(observer), 20000);
    for (int i = 0; i < 3; i++) {
        CHECK(!hf_next_event(client, &event));
        atomic_store(&ob_dead, true);
        hfi_changed(ob_conn, ob_last, NULL); /* The connection is gone. */
        t_poll_until(ob_answers(client, observer, HF_UNAVAILABLE), 20000);
        t_sleep_ms(100); /* Looks go on, and are no news. */
        CHECK(!hf_next_event(client, &event));
        atomic_store(&ob_dead, false);
        t_poll_until(ob_answers(client, observer, HF_OK), 20000);
    }
    hf_observe_stop(observer);
    far_end(client);
}

/* Renewals of many locks are words without end.  The more of them come to
 * nothing, the more are looked at together; a change ends that. */
TEST(words_that_come_to_nothing_are_looked_at_together)
{
    enum { N = 50, WORDS = 1000 };
    hf_client *client = ob_client();
    hf_observer *observer = ob_start(client, "many/", HF_PREFIX);
    struct hf_change last = HF_CHANGE_INIT;
    hf_lock *locks[N];
    int64_t began;
    size_t known = 0;
    char key[32];
    int looks;

    for (int i = 0; i < N; i++) {
        snprintf(key, sizeof(key), "many/%d", i);
        locks[i] = far_lock(client, key, 600000);
    }
    t_poll_until(ob_idle(observer, &known) && known == N, 20000);
    looks = atomic_load(&ob_several);
    began = t_now_ms();
    for (int i = 0; i < WORDS; i++) {
        snprintf(key, sizeof(key), "many/%d", i % N);
        hfi_changed(ob_conn, ob_last, key);
        t_sleep_ms(1);
    }
    looks = atomic_load(&ob_several) - looks;
    CHECK_LE(looks, (t_now_ms() - began) / 16 + 20);
    CHECK_OK(hf_release(locks[0], &t_err));
    t_poll_until(hf_observer_next(observer, &last), 20000);
    CHECK(!last.info.held);
    for (int i = 1; i < N; i++)
        CHECK_OK(hf_release(locks[i], &t_err));
    hf_observe_stop(observer);
    far_end(client);
}

/* A service that keeps the fences of free keys, and names no key. */
static struct {
    struct hf_info info[4096];
    char key[4096][16];
    atomic_int n, shown, listings;
} ob_rows;

static void ob_row(int i, const char *key, bool held, uint64_t fence)
{
    ob_rows.info[i] = (struct hf_info){.size = sizeof(struct hf_info),
                                       .held = held,
                                       .fence = fence,
                                       .left_ms = -1,
                                       .since_ms = -1,
                                       .waiters = -1,
                                       .slot = -1};
    snprintf(ob_rows.key[i], sizeof(ob_rows.key[i]), "%s", key);
    if (i >= atomic_load(&ob_rows.n))
        atomic_store(&ob_rows.n, i + 1);
}

static hf_status ob_list_since(struct hfi_conn *conn, const char *prefix,
                               uint64_t fence, hf_list_fn *fn, void *arg,
                               int64_t deadline, struct hf_error *err)
{
    int i, n = atomic_load(&ob_rows.n), newest = -1;

    (void)conn, (void)prefix, (void)deadline, (void)err;
    for (i = 0; i < n; i++) {
        const struct hf_info *info = &ob_rows.info[i];

        if (newest < 0 || info->fence > ob_rows.info[newest].fence)
            newest = i;
    }
    for (i = 0; i < n; i++) {
        const struct hf_info *info = &ob_rows.info[i];

        if (!info->held && info->fence < fence &&
            !(fence == UINT64_MAX && i == newest))
            continue;
        atomic_fetch_add(&ob_rows.shown, 1);
        fn(arg, ob_rows.key[i], info);
    }
    atomic_fetch_add(&ob_rows.listings, 1);
    return HF_OK;
}

static hf_status ob_row_inspect(struct hfi_conn *conn, const char *key,
                                struct hf_info *ret, int64_t deadline,
                                struct hf_error *err)
{
    (void)conn, (void)deadline, (void)err;
    for (int i = 0; i < atomic_load(&ob_rows.n); i++)
        if (!strcmp(ob_rows.key[i], key))
            *ret = ob_rows.info[i];
    return HF_OK;
}

static hf_client *ob_row_client(void)
{
    static struct hfi_backend be;

    be = far_backend;
    be.observation_size = hfi_backend_mem.observation_size;
    be.observe = ob_observe;
    be.unobserve = ob_unobserve;
    be.inspect = ob_row_inspect;
    be.list = ob_list;
    be.list_since = ob_list_since;
    be.fence_slack = 10;
    atomic_store(&ob_unsaid, true);
    return far_client_of(&be, 5000);
}

/* Nothing more is to be looked at; what was told is still there. */
static bool ob_rests(hf_observer *observer)
{
    struct hfi_observed *o = observer->observed;
    bool rests;

    pthread_mutex_lock(&observer->client->mu);
    rests = o->round && !o->busy && !o->all && hfi_link_alone(&o->dirty);
    pthread_mutex_unlock(&observer->client->mu);
    return rests;
}

/* The rows were changed between two looks: have the next one, and that many
 * changes. */
static void ob_row_look(hf_observer *observer, struct hf_change *last, int n)
{
    hfi_changed(ob_conn, ob_last, NULL);
    t_poll_until(ob_rests(observer), 20000);
    for (; n; n--)
        CHECK(hf_observer_next(observer, last));
}

/* Nobody saw it held, and yet its fence says that it was. */
TEST(a_free_key_with_a_new_fence_is_told_though_unknown)
{
    struct hf_change last = HF_CHANGE_INIT;
    hf_client *client = ob_row_client();
    hf_observer *observer;
    char key[16];
    int i;

    ob_row(0, "p/held", true, 1010);
    ob_row(1, "p/a", false, 1050);
    ob_row(2, "p/old", false, 1045);
    observer = ob_start(client, "p/", HF_PREFIX);
    t_poll_until(hf_observer_next(observer, &last), 20000);
    CHECK_STR(last.key, "p/held");
    ob_row_look(observer, &last, 0);
    CHECK(!hf_observer_next(observer, &last));
    ob_row(1, "p/a", false, 1060);
    ob_row_look(observer, &last, 1);
    CHECK(!strcmp(last.key, "p/a") && !last.info.held);
    CHECK_EQ(last.info.fence, 1060);
    ob_row(3, "p/late", false, 1055); /* committed after the other */
    ob_row_look(observer, &last, 1);
    CHECK(!strcmp(last.key, "p/late") && !last.info.held);
    CHECK(!hf_observer_next(observer, &last));
    for (i = 0; i < 200; i++) { /* Others come and go: it is forgotten. */
        snprintf(key, sizeof(key), "p/%d", i);
        ob_row(4, key, true, 1070 + (uint64_t)i);
        ob_row_look(observer, &last, i ? 2 : 1);
    }
    CHECK(!hfi_map_find(&observer->observed->keys, "p/a"));
    ob_row(1, "p/a", false, 3000);
    ob_row_look(observer, &last, 1);
    CHECK(!strcmp(last.key, "p/a") && !last.info.held);
    CHECK_EQ(last.info.fence, 3000);
    ob_row_look(observer, &last, 0);
    CHECK(!hf_observer_next(observer, &last));
    hf_observe_stop(observer);
    far_end(client);
}

/* However old the locks are that are held. */
TEST(a_look_is_not_shown_the_free_keys_again_and_again)
{
    enum { N = 2000, LOOKS = 20 };
    struct hf_change last = HF_CHANGE_INIT;
    hf_client *client = ob_row_client();
    hf_observer *observer;
    char key[16];
    int i;

    ob_row(0, "p/held", true, 1000);
    for (i = 1; i <= N; i++) {
        snprintf(key, sizeof(key), "p/%d", i);
        ob_row(i, key, false, 1000 + (uint64_t)i);
    }
    observer = ob_start(client, "p/", HF_PREFIX);
    t_poll_until(hf_observer_next(observer, &last), 20000);
    for (i = 0; i < LOOKS; i++)
        ob_row_look(observer, &last, 0);
    CHECK_GE(atomic_load(&ob_rows.listings), LOOKS);
    CHECK_LE(atomic_load(&ob_rows.shown), 2 * atomic_load(&ob_rows.listings));
    for (i = 0; i < LOOKS; i++) {
        atomic_store(&ob_rows.shown, 0);
        atomic_store(&ob_rows.listings, 0);
        ob_rows.info[i].fence = N + 1001 + (uint64_t)i;
        ob_row_look(observer, &last, 1);
        CHECK_LE(atomic_load(&ob_rows.shown),
                 15 * atomic_load(&ob_rows.listings));
    }
    hf_observe_stop(observer);
    far_end(client);
}

/* An observer that comes and goes again and again. */
TEST(observers_that_come_and_go_leave_nothing)
{
    hf_client *client = ob_client();

    for (int i = 0; i < 300; i++) {
        hf_observer *one = ob_start(client, i % 3 ? "k" : "", i % 3 ? 0 : 1);

        if (i % 7 == 0)
            t_sleep_ms(1);
        hf_observe_stop(one);
    }
    pthread_mutex_lock(&client->mu);
    while (client->observed.len) {
        pthread_mutex_unlock(&client->mu);
        t_sleep_ms(1);
        pthread_mutex_lock(&client->mu);
    }
    pthread_mutex_unlock(&client->mu);
    CHECK_EQ(atomic_load(&ob_observed), atomic_load(&ob_unobserved));
    far_end(client);
}

T_MAIN
