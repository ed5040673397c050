/* SPDX-License-Identifier: MIT
 *
 * several.c - several keys by one statement: how many requests that takes, what
 * it does about rows that are not there, about a queue and observers, and that a
 * connection that is cut leaves nothing.  What every service promises of several
 * keys is in test/conformance/several.c.
 */
#include "scene.h"

#include <stdlib.h>
#include <string.h>

enum { KEYS = 8, CUTS = 16 };

struct set {
    char names[KEYS][96];
    const char *keys[KEYS];
    hf_lock *locks[KEYS];
};

static struct set set_of(const char *name)
{
    struct set set = {.locks = {NULL}};

    for (int i = 0; i < KEYS; i++)
        snprintf(set.names[i], sizeof(set.names[i]), "%s %d", scene_key(name),
                 i);
    return set;
}

static hf_status take(hf_client *client, struct set *set, int64_t wait_ms)
{
    for (int i = 0; i < KEYS; i++)
        set->keys[i] = set->names[KEYS - 1 - i];
    return hf_acquire_all(client, set->keys, KEYS, wait_ms, NULL, set->locks,
                          &t_err);
}

static void give_back(struct set *set)
{
    for (int i = 0; i < KEYS; i++)
        CHECK_OK(hf_release(set->locks[i], &t_err));
}

/* The handles are those of the rows. */
static void check_held(hf_client *other, const struct set *set)
{
    for (int i = 0; i < KEYS; i++) {
        struct hf_info info = scene_inspected(other, set->keys[i]);

        CHECK(info.held);
        CHECK_EQ(info.fence, hf_fence(set->locks[i]));
    }
}

/* SQLite has no need to make rows first. */
TEST(free_keys_take_one_request_and_new_ones_two)
{
    hf_client *client = scene_open(0, ""), *other = scene_open(0, "");
    struct set set = set_of("free");
    uint64_t before;

    for (int i = 0; i < 4; i++) {
        before = scene_requests(client);
        CHECK_OK(take(client, &set, 0));
        CHECK_EQ(scene_requests(client) - before,
                 i || scene_is_sqlite() ? 1 : 2);
        check_held(other, &set);
        give_back(&set);
        for (int k = 0; k < KEYS; k++)
            CHECK(!scene_inspected(other, set.keys[k]).held);
    }
    hf_close(client);
    hf_close(other);
}

/* Some rows are there, the client knows some, and some are removed after that. */
TEST(it_is_no_matter_which_rows_are_there)
{
    hf_client *client = scene_open(0, "&table=there");
    hf_client *other = scene_open(0, "&table=there");
    struct set set = set_of("there");
    uint64_t fence = 0;
    hf_lock *lk;

    for (int i = 0; i < KEYS; i += 3) {
        CHECK_OK(hf_acquire(i % 2 ? client : other, set.names[i], 0, NULL, &lk,
                            &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    for (int i = 0; i < 4; i++) {
        CHECK_OK(take(client, &set, 0));
        check_held(other, &set);
        for (int k = 0; k < KEYS; k++)
            CHECK_GT(hf_fence(set.locks[k]), fence);
        for (int k = 0; k < KEYS; k++)
            if (hf_fence(set.locks[k]) > fence)
                fence = hf_fence(set.locks[k]);
        give_back(&set);
        if (i && !scene_is_sqlite())
            scene_sql("DELETE FROM there WHERE name%s%s%s'",
                      i == 1 ? "=" : "<>", scene_is_postgres() ? "'\\x" : "X'",
                      scene_hex(set.names[5]));
    }
    hf_close(client);
    hf_close(other);
}

static hf_lock *granted(hf_client *client)
{
    struct hf_event event = HF_EVENT_INIT;

    t_poll_until(hf_next_event(client, &event), 20000);
    CHECK_EQ(event.type, HF_GRANTED);
    return event.lock;
}

/* Who waits for one of them is not passed by, nor who was passed it. */
TEST(a_key_with_a_queue_and_none_is_taken)
{
    hf_client *a = scene_open(0, ""), *b = scene_open(0, "");
    hf_client *client = scene_open(0, "");
    struct set set = set_of("queue");
    hf_request *req;
    hf_lock *lk;

    CHECK_OK(take(client, &set, 0)); /* It knows them. */
    give_back(&set);
    CHECK_OK(hf_acquire(a, set.names[4], 0, NULL, &lk, &t_err));
    CHECK_OK(
        hf_acquire_start(b, set.names[4], 30000, NULL, NULL, &req, &t_err));
    t_poll_until(scene_inspected(a, set.names[4]).waiters == 1, 20000);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(take(client, &set, 0), HF_BUSY);
        for (int k = 0; k < KEYS; k++)
            CHECK_EQ(scene_inspected(a, set.names[k]).held, k == 4);
        if (!i) {
            CHECK_OK(hf_release(lk, &t_err));
            lk = granted(b);
        }
    }
    CHECK_OK(hf_release(lk, &t_err));
    CHECK_OK(take(client, &set, 20000));
    check_held(a, &set);
    give_back(&set);
    hf_close(a);
    hf_close(b);
    hf_close(client);
}

static bool sees(hf_observer *observer, const hf_lock *lk)
{
    struct hf_change change = HF_CHANGE_INIT;

    while (hf_observer_next(observer, &change))
        if (!strcmp(change.key, hf_key(lk)) && change.info.held &&
            change.info.fence == hf_fence(lk))
            return true;
    return false;
}

TEST(who_observes_one_of_them_hears_of_it)
{
    hf_client *client = scene_open(0, ""), *other = scene_open(0, "");
    struct set set = set_of("seen");
    hf_observer *observer;

    CHECK_OK(take(client, &set, 0));
    give_back(&set);
    for (unsigned flags = 0; flags <= HF_PREFIX; flags += HF_PREFIX) {
        CHECK_OK(hf_observe_start(other, set.names[flags ? 0 : 3], flags, NULL,
                                  &observer, &t_err));
        t_sleep_ms(300); /* The look that its own row brings is over. */
        CHECK_OK(take(client, &set, 0));
        /* names[k] is keys[KEYS - 1 - k]. */
        t_poll_until(sees(observer, set.locks[KEYS - 1 - (flags ? 0 : 3)]),
                     10000);
        give_back(&set);
        hf_observe_stop(observer);
    }
    hf_close(client);
    hf_close(other);
}

/* After a request without an answer nothing is held but what the caller has. */
TEST_TIMEOUT(a_connection_cut_at_any_piece_leaves_all_or_none, 120)
{
    struct scene_proxy proxy;
    hf_client *direct;

    if (scene_is_sqlite())
        T_SKIP_TRAIT("connections");
    proxy = scene_proxy();
    direct = scene_open(0, "");
    for (int n = 1; n <= t_scaled(CUTS, CUTS / 2); n++) {
        hf_client *client = scene_open(proxy.port, "&timeout=2s&pool=2");
        struct set set = set_of("cut");
        hf_status st;

        CHECK_OK(take(client, &set, 20000));
        give_back(&set);
        scene_cut(&proxy, n);
        st = take(client, &set, n % 2 ? 20000 : 0);
        if (!st)
            check_held(direct, &set);
        else if (n % 2 ||
                 (st != HF_UNCERTAIN && st != HF_UNAVAILABLE && st != HF_BUSY))
            t_fail(__FILE__, __LINE__, "cut %d: %s", n, t_err.text);
        for (int k = 0; k < KEYS && !st; k++)
            hf_release(set.locks[k], NULL);
        scene_cut(&proxy, 0);
        for (int k = 0; k < KEYS; k++)
            t_poll_until(!scene_inspected(direct, set.names[k]).held, 20000);
        hf_close(client);
    }
    hf_close(direct);
    scene_proxy_end(&proxy);
}

T_MAIN
