/* SPDX-License-Identifier: MIT
 *
 * bearer.c - what the bearer of a handle must know beside it.
 *
 * Token and fence say which lock it is.  To renew or release it nothing else is
 * needed; to take it up, its mode and its permits, so that nobody who asks for a
 * lock alone is given a shared one.  Who says something else is told what to say:
 * a lock that stands is never called lost.
 */
#include "conf.h"

/* A way to hold a lock. */
struct way {
    const char *name, *owner;
    unsigned flags;
    int32_t permits;
};

static const struct way bearer_ways[] = {
    {"plain", NULL, 0, 0},
    {"owned", "job-7", 0, 0},
    {"shared", NULL, HF_SHARED, 0},
    {"permit", NULL, 0, 2},
    {"shared and owned", "job-7", HF_SHARED, 0},
    {"permit and owned", "job-7", 0, 2},
};

enum { WAYS = sizeof(bearer_ways) / sizeof(bearer_ways[0]) };

static bool bearer_has(const struct way *way)
{
    return (!(way->flags & HF_SHARED) || conf_traits & HF_TRAIT_SHARED) &&
           (!way->permits || conf_traits & HF_TRAIT_PERMITS);
}

static struct hf_lock_opts bearer_opts(const struct way *way)
{
    struct hf_lock_opts opts = conf_opts(60000, way->flags);

    opts.owner = way->owner;
    opts.permits = way->permits;
    return opts;
}

static struct hf_handle bearer_handle(hf_client *client, const char *key,
                                      const struct way *way)
{
    struct hf_lock_opts opts = bearer_opts(way);
    struct hf_handle handle = HF_HANDLE_INIT;

    CHECK_OK(hf_detach(conf_try(client, key, &opts), &handle, &t_err));
    return handle;
}

TEST(a_handle_is_enough_to_renew_and_release)
{
    struct hf_lock_opts opts = conf_opts(60000, 0);
    hf_client *a, *b;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < WAYS; i++) {
        const struct way *way = &bearer_ways[i];
        const char *key = conf_key(way->name);
        struct hf_handle handle;

        if (!bearer_has(way))
            continue;
        handle = bearer_handle(a, key, way);
        CHECK_OK(hf_handle_extend(b, key, &handle, &opts, &t_err));
        CHECK_OK(hf_handle_extend(b, key, &handle, &opts, &t_err));
        CHECK_EQ(conf_look(a, key).fence, handle.fence);
        CHECK_OK(hf_handle_release(b, key, &handle, &opts, &t_err));
        conf_check_free(key);
        CHECK_STATUS(hf_handle_extend(b, key, &handle, &opts, &t_err), HF_LOST);
    }
    hf_close(a);
    hf_close(b);
}

/* What the bearer says of the lock beside its lease does not count, right or
 * wrong, and whether the service has such locks or not. */
TEST_TIMEOUT(a_handle_counts_and_not_what_its_bearer_says, 240)
{
    hf_client *a, *b;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < WAYS; i++) {
        const struct way *way = &bearer_ways[i];
        const char *key = conf_key(way->name);

        for (int k = 0; k < WAYS && bearer_has(way); k++) {
            struct hf_lock_opts said = bearer_opts(&bearer_ways[k]);
            struct hf_handle handle = bearer_handle(a, key, way);

            said.min_hold_ms = 60000;
            CHECK_OK(hf_handle_extend(b, key, &handle, &said, &t_err));
            CHECK_OK(hf_handle_extend(a, key, &handle, &said, &t_err));
            CHECK_EQ(conf_look(a, key).fence, handle.fence);
            CHECK_OK(hf_handle_release(b, key, &handle, &said, &t_err));
            conf_check_free(key);
            CHECK_STATUS(hf_handle_extend(b, key, &handle, &said, &t_err),
                         HF_LOST);
            CHECK_STATUS(hf_handle_release(b, key, &handle, &said, &t_err),
                         HF_LOST);
        }
    }
    hf_close(a);
    hf_close(b);
}

/* The owner id is for joining, which the bearer may never do.  It has the lock
 * like every other holder. */
TEST(a_lock_is_taken_up_without_its_owner_id)
{
    hf_client *a, *b;

    conf_needs(HF_TRAIT_DETACH);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < WAYS; i++) {
        const struct way *way = &bearer_ways[i];
        const char *key = conf_key(way->name);
        struct hf_lock_opts opts = bearer_opts(way);
        struct hf_handle handle;
        hf_lock *lk, *none = NULL;

        if (!bearer_has(way))
            continue;
        handle = bearer_handle(a, key, way);
        opts.owner = NULL;
        CHECK_OK(hf_attach(b, key, &handle, &opts, &lk, &t_err));
        CHECK_EQ(hf_fence(lk), handle.fence);
        CHECK_OK(hf_extend(lk, 0, &t_err));
        CHECK_STATUS(hf_attach(b, key, &handle, &opts, &none, &t_err), HF_LOST);
        CHECK_STATUS(hf_handle_release(b, key, &handle, &opts, &t_err),
                     HF_LOST);
        CHECK(none == NULL && hf_held(lk));
        CHECK_OK(hf_detach(lk, &handle, &t_err));
        CHECK_OK(hf_attach(a, key, &handle, &opts, &lk, &t_err));
        conf_unlock(lk);
        conf_check_free(key);
    }
    hf_close(a);
    hf_close(b);
}

TEST(who_takes_up_a_lock_in_another_way_is_told_how_it_is_held)
{
    hf_client *a, *b;

    conf_needs(HF_TRAIT_DETACH | HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < WAYS; i++) {
        const struct way *way = &bearer_ways[i];
        const char *key = conf_key(way->name);
        struct hf_lock_opts opts = bearer_opts(way);
        struct hf_handle handle;
        hf_lock *lk = NULL;

        if (!bearer_has(way))
            continue;
        handle = bearer_handle(a, key, way);
        for (int k = 0; k < WAYS; k++) {
            const struct way *said = &bearer_ways[k];
            struct hf_lock_opts other = bearer_opts(said);

            if (!bearer_has(said) ||
                (said->flags == way->flags && said->permits == way->permits))
                continue;
            CHECK_STATUS(hf_attach(b, key, &handle, &other, &lk, &t_err),
                         HF_INVALID);
            CHECK(lk == NULL);
            CHECK(strstr(t_err.text, way->permits ? "2 permits"
                                     : way->flags ? "is shared"
                                                  : "is exclusive"));
        }
        CHECK_OK(hf_attach(b, key, &handle, &opts, &lk, &t_err));
        conf_unlock(lk);
        CHECK_STATUS(hf_attach(b, key, &handle, &opts, &lk, &t_err), HF_LOST);
        conf_check_free(key);
    }
    hf_close(a);
    hf_close(b);
}

TEST(the_bearer_of_a_handle_is_told_that_the_lock_was_broken)
{
    hf_client *a, *b;

    conf_needs(HF_TRAIT_DETACH | HF_TRAIT_FENCED);
    a = conf_open();
    b = conf_open();
    for (int i = 0; i < WAYS; i++) {
        const struct way *way = &bearer_ways[i];
        const char *key = conf_key(way->name);
        struct hf_lock_opts opts = bearer_opts(way);
        struct hf_handle handle;

        if (!bearer_has(way))
            continue;
        handle = bearer_handle(a, key, way);
        CHECK_OK(hf_break(b, key, handle.fence, &t_err));
        CHECK_STATUS(hf_handle_extend(b, key, &handle, &opts, &t_err), HF_LOST);
        CHECK(strstr(t_err.text, "broken"));
        CHECK_STATUS(hf_handle_release(b, key, &handle, &opts, &t_err),
                     HF_LOST);
        conf_check_free(key);
    }
    hf_close(a);
    hf_close(b);
}
