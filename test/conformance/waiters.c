/* SPDX-License-Identifier: MIT
 *
 * waiters.c - hf_waiters(): who waits, in which order, and in which mode.
 */
#include "conf.h"

#include <stdio.h>

#define MOST 4

struct seen {
    int n, stop_after;
    struct hf_waiter waiter[2 * MOST];
};

static bool see(void *arg, const struct hf_waiter *waiter)
{
    struct seen *seen = arg;

    CHECK_LT(seen->n, 2 * MOST);
    seen->waiter[seen->n++] = *waiter;
    return seen->n != seen->stop_after;
}

static struct seen ask(hf_client *client, const char *key)
{
    struct seen seen = {.n = 0};

    CHECK_OK(hf_waiters(client, key, see, &seen, &t_err));
    return seen;
}

/* Skip the test where the service does not know who waits, which it says with a
 * reason. */
static void needs_waiters(hf_client *client, const char *key)
{
    struct seen seen = {.n = 0};

    if (hf_waiters(client, key, see, &seen, &t_err) != HF_UNSUPPORTED)
        return;
    CHECK(t_err.text[0] != '\0');
    T_SKIP_TRAIT("waiters");
}

/* One who waits, with a name of its own. */
struct hopeful {
    struct hf_lock_opts opts;
    char note[32];
    hf_client *client;
    struct conf_waiter w;
};

static void hopeful_start(struct hopeful *h, const char *key, int number,
                          unsigned flags)
{
    h->opts = conf_opts(30000, flags);
    snprintf(h->note, sizeof(h->note), "waiter %d \xc3\xa9", number);
    h->opts.note = h->note;
    h->client = conf_open();
    conf_waiter_start(&h->w, h->client, key, -1, &h->opts);
}

static void hopeful_end(struct hopeful *h)
{
    conf_waiter_join(&h->w, HF_OK);
    conf_unlock(h->w.lk);
    hf_close(h->client);
}

/* `n` wait behind the holder, one after the other. */
static void check_names(const struct seen *seen, int n, const bool *shared)
{
    CHECK_EQ(seen->n, n);
    for (int i = 0; i < n; i++) {
        const struct hf_waiter *waiter = &seen->waiter[i];
        char note[32];

        snprintf(note, sizeof(note), "waiter %d \xc3\xa9", i);
        CHECK_EQ(waiter->size, sizeof(*waiter));
        CHECK_EQ(waiter->place, i + 1);
        CHECK_EQ(waiter->shared, shared[i]);
        CHECK_EQ(waiter->permits, 0);
        CHECK(waiter->owner[0] != '\0');
        if (conf_traits & HF_TRAIT_QUEUED) /* and so it keeps their records */
            CHECK_STR(waiter->note, note);
        CHECK(waiter->since_ms >= -1 && waiter->left_ms >= -1);
    }
}

static void stand_in_line(const bool *shared, int n)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct hopeful h[MOST];
    struct seen seen;
    hf_lock *lk;

    needs_waiters(client, key);
    CHECK_EQ(ask(client, key).n, 0);
    lk = conf_try(client, key, NULL);
    CHECK_EQ(ask(client, key).n, 0); /* A holder does not wait. */
    for (int i = 0; i < n; i++) {
        hopeful_start(&h[i], key, i, shared[i] ? HF_SHARED : 0);
        conf_await_waiters(client, key, i + 1);
        t_poll_until(ask(client, key).n == i + 1, 20000);
    }
    seen = ask(client, key);
    check_names(&seen, n, shared);
    seen = (struct seen){.stop_after = 1};
    CHECK_OK(hf_waiters(client, key, see, &seen, &t_err));
    CHECK_EQ(seen.n, 1); /* false ends the listing */
    conf_unlock(lk);
    for (int i = 0; i < n; i++)
        hopeful_end(&h[i]);
    t_poll_until(ask(client, key).n == 0, 20000);
    hf_close(client);
    conf_check_free(key);
}

TEST(waiters_are_told_in_the_order_of_the_queue_with_their_names)
{
    static const bool alone[MOST];

    conf_needs(HF_TRAIT_QUEUED);
    stand_in_line(alone, MOST);
}

TEST(a_waiter_that_would_share_is_told_as_such)
{
    static const bool mixed[] = {true, false, true};

    conf_needs(HF_TRAIT_QUEUED | HF_TRAIT_SHARED);
    stand_in_line(mixed, 3);
}

/* Also where the order is not kept. */
TEST(a_single_waiter_is_told)
{
    static const bool alone[1];

    stand_in_line(alone, 1);
}

TEST(a_waiter_for_a_permit_says_for_how_many)
{
    struct hf_lock_opts opts = conf_opts(30000, 0);
    const char *key = conf_key("k");
    hf_client *a, *b;
    struct conf_waiter w;
    hf_lock *lk[2];
    struct seen seen;

    conf_needs(HF_TRAIT_QUEUED | HF_TRAIT_PERMITS);
    a = conf_open();
    b = conf_open();
    needs_waiters(a, key);
    opts.permits = 2;
    opts.flags = HF_FAIR;
    lk[0] = conf_try(a, key, &opts);
    lk[1] = conf_try(a, key, &opts);
    conf_waiter_start(&w, b, key, -1, &opts);
    t_poll_until(ask(a, key).n == 1, 20000);
    seen = ask(a, key);
    CHECK_EQ(seen.waiter[0].permits, 2);
    CHECK(!seen.waiter[0].shared);
    conf_unlock(lk[0]);
    conf_waiter_join(&w, HF_OK);
    conf_unlock(w.lk);
    conf_unlock(lk[1]);
    CHECK_EQ(ask(a, key).n, 0);
    hf_close(a);
    hf_close(b);
}

TEST(waiters_of_nonsense_is_refused)
{
    const char *key = conf_key("k");
    hf_client *client = conf_open();
    struct seen seen = {.n = 0};

    CHECK_STATUS(hf_waiters(client, key, NULL, NULL, &t_err), HF_INVALID);
    CHECK_STATUS(hf_waiters(client, "", see, &seen, &t_err), HF_INVALID);
    CHECK_STATUS(hf_waiters(NULL, key, see, &seen, &t_err), HF_INVALID);
    hf_close(client);
}
