/* SPDX-License-Identifier: MIT
 *
 * broken.c - what becomes of a broken lock when its holder goes on before it was
 * told.
 *
 * Whatever the holder calls next says that the lock is lost, and hf_lost_reason()
 * why; and its release frees the lock at once, whatever it was to be kept for.
 * Renewals are left out, since they would tell the holder.
 */
#include "conf.h"

/* The ways to hold a lock that the service has. */
enum { PLAIN, OWNED, SHARED, PERMIT, WAYS };

static const char *const broken_names[WAYS] = {"plain", "owned", "shared",
                                               "permit"};

static bool broken_has(int way)
{
    static const unsigned needs[WAYS] = {
        [SHARED] = HF_TRAIT_SHARED, [PERMIT] = HF_TRAIT_PERMITS};

    return (conf_traits & needs[way]) == needs[way];
}

/* Does a release look at the mark?  Where nothing but its process holds a plain
 * lock, none can have had it before the release, and that asks nobody. */
static bool broken_is_seen(int way)
{
    return broken_has(way) && (conf_traits & HF_TRAIT_LEASED || way != PLAIN);
}

static struct hf_lock_opts broken_opts(int way)
{
    struct hf_lock_opts opts = conf_opts(60000, HF_MANUAL);

    opts.owner = way == OWNED ? "job-7" : NULL;
    opts.flags |= way == SHARED ? HF_SHARED : 0;
    opts.permits = way == PERMIT ? 1 : 0;
    return opts;
}

/* `a` holds the key in that way, and `b` has broken it. */
static hf_lock *broken_lock(hf_client *a, hf_client *b, const char *key,
                            const struct hf_lock_opts *opts)
{
    hf_lock *lk = conf_try(a, key, opts);

    CHECK_OK(hf_break(b, key, hf_fence(lk), &t_err));
    return lk;
}

TEST(release_of_a_broken_lock_says_that_it_was_lost)
{
    hf_client *a, *b;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    for (int way = 0; way < WAYS; way++) {
        const char *key = conf_key(broken_names[way]);
        struct hf_lock_opts opts = broken_opts(way), next = conf_opts(60000, 0);

        if (!broken_is_seen(way))
            continue;
        next.permits = opts.permits;
        CHECK_STATUS(hf_release(broken_lock(a, b, key, &opts), &t_err),
                     HF_LOST);
        conf_unlock(conf_lock(b, key, &next));
        conf_check_free(key);
    }
    hf_close(a);
    hf_close(b);
}

/* One who waits is granted it, and the holder hears the truth all the same. */
TEST(release_of_a_broken_lock_lets_the_next_in)
{
    hf_client *a, *b, *c;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    for (int way = 0; way < WAYS; way++) {
        const char *key = conf_key(broken_names[way]);
        struct hf_lock_opts opts = broken_opts(way), next = conf_opts(60000, 0);
        struct conf_waiter w;
        hf_lock *lk;

        if (!broken_is_seen(way))
            continue;
        next.permits = opts.permits;
        lk = conf_try(a, key, &opts);
        conf_waiter_start(&w, b, key, -1, &next);
        conf_await_waiters(c, key, 1);
        CHECK_OK(hf_break(c, key, hf_fence(lk), &t_err));
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        conf_waiter_join(&w, HF_OK);
        conf_unlock(w.lk);
        conf_check_free(key);
    }
    hf_close(a);
    hf_close(b);
    hf_close(c);
}

/* min_hold_ms is for work that was done. */
TEST(a_broken_lock_is_not_kept_for_its_minimum_hold)
{
    hf_client *a, *b;

    conf_needs(HF_TRAIT_BREAK | HF_TRAIT_MIN_HOLD);
    a = conf_open();
    b = conf_open();
    for (int way = 0; way < WAYS; way++) {
        const char *key = conf_key(broken_names[way]);
        struct hf_lock_opts opts = broken_opts(way), next = conf_opts(60000, 0);

        if (!broken_has(way))
            continue;
        next.permits = opts.permits;
        opts.min_hold_ms = 500000;
        CHECK_STATUS(hf_release(broken_lock(a, b, key, &opts), &t_err),
                     HF_LOST);
        conf_unlock(conf_lock(b, key, &next));
        conf_check_free(key);
    }
    hf_close(a);
    hf_close(b);
}

TEST(downgrade_of_a_broken_lock_tells_why_it_is_lost)
{
    const char *key = conf_key("k");
    hf_client *a, *b;
    hf_lock *lk;

    conf_needs(HF_TRAIT_BREAK | HF_TRAIT_SHARED);
    a = conf_open();
    b = conf_open();
    for (int way = PLAIN; way <= OWNED; way++) {
        struct hf_lock_opts opts = broken_opts(way);

        lk = broken_lock(a, b, key, &opts);
        CHECK_STATUS(hf_downgrade(lk, &t_err), HF_LOST);
        CHECK(!hf_held(lk));
        CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
        CHECK(strstr(t_err.text, "broken"));
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        conf_unlock(conf_lock(b, key, NULL));
    }
    hf_close(a);
    hf_close(b);
    conf_check_free(key);
}

TEST(transfer_of_a_broken_lock_tells_why_it_is_lost)
{
    hf_client *a, *b, *c;

    conf_needs(HF_TRAIT_BREAK);
    a = conf_open();
    b = conf_open();
    c = conf_open();
    for (int way = 0; way < WAYS; way++) {
        const char *key = conf_key(broken_names[way]);
        struct hf_lock_opts opts = broken_opts(way), heir = conf_opts(60000, 0);
        struct conf_waiter w;
        hf_lock *lk;

        if (!broken_has(way))
            continue;
        heir.permits = opts.permits;
        heir.note = "heir";
        lk = conf_try(a, key, &opts);
        if (hf_transfer(lk, "nobody", NULL) == HF_UNSUPPORTED)
            T_SKIP_TRAIT("transfer");
        conf_waiter_start(&w, b, key, -1, &heir);
        conf_await_waiters(c, key, 1);
        CHECK_OK(hf_break(c, key, hf_fence(lk), &t_err));
        CHECK_STATUS(hf_transfer(lk, "heir", &t_err), HF_LOST);
        CHECK_EQ(hf_lost_reason(lk), HF_LOSS_BROKEN);
        CHECK_STATUS(hf_release(lk, &t_err), HF_LOST);
        conf_waiter_join(&w, HF_OK);
        conf_unlock(w.lk);
        conf_check_free(key);
    }
    hf_close(a);
    hf_close(b);
    hf_close(c);
}
