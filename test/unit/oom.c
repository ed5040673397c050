/* SPDX-License-Identifier: MIT
 *
 * oom.c - every allocation fails once.
 *
 * A day in the life of two clients is played again and again, and each time
 * the next allocation is the one that fails.  Whatever happens, every call
 * returns a status that says so, nothing leaks (the sanitizer looks), and when
 * both clients are closed nothing is held: a third one gets every lock.
 */
#include "../t.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

static const char *const keys[] = {"one", "two", "three", "four", "five"};

static char url[256];

/* True if it worked; if not, it must be for want of memory. */
static bool worked(hf_status st)
{
    if (st == HF_OK)
        return true;
    if (st != HF_NOMEM || !t_err.text[0])
        t_fail(__FILE__, __LINE__, "%s (%s)", hf_status_name(st), t_err.text);
    return false;
}

static hf_lock *lock(hf_client *client, const char *key, unsigned flags,
                     int64_t linger_ms, const char *owner)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;

    opts.flags = flags;
    opts.linger_ms = linger_ms;
    opts.owner = owner;
    opts.note = "out of memory";
    worked(hf_acquire(client, key, 1000, &opts, &lk, &t_err));
    return lk;
}

/* What was granted is given back, with or without memory. */
static void unlock(hf_lock *lk)
{
    if (lk)
        CHECK_STATUS(hf_release(lk, &t_err), HF_OK);
}

/* The next event that is not an observer's. */
static bool next_event(hf_client *client, struct hf_event *ret)
{
    while (hf_next_event(client, ret))
        if (ret->type != HF_CHANGED)
            return true;
    return false;
}

/* Wait for the one event that every request ends in. */
static hf_lock *outcome(hf_client *client, hf_status want)
{
    struct hf_event event = HF_EVENT_INIT;

    t_poll_until(next_event(client, &event), 20000);
    if (event.type == HF_GRANTED)
        return event.lock;
    CHECK_EQ(event.type, HF_FAILED);
    t_err = event.error;
    if (event.error.status != want)
        CHECK(!worked(event.error.status));
    return NULL;
}

static hf_lock *request(hf_client *client, const char *key, int64_t wait_ms,
                        hf_status want)
{
    hf_request *req = NULL;

    if (!worked(
            hf_acquire_start(client, key, wait_ms, NULL, NULL, &req, &t_err)))
        return NULL;
    return outcome(client, want);
}

static bool count_one(void *arg, const char *key, const struct hf_info *info)
{
    (void)key, (void)info;
    ++*(int *)arg;
    return true;
}

static void contend(hf_client *b)
{
    hf_lock *lk = NULL;
    hf_status st = hf_acquire(b, "one", 5, NULL, &lk, &t_err);

    CHECK(lk == NULL);
    if (st != HF_TIMEOUT)
        CHECK(!worked(st));
    CHECK(request(b, "one", 5, HF_TIMEOUT) == NULL);
    CHECK(request(b, "one", 0, HF_BUSY) == NULL);
}

static void look(hf_client *client, hf_lock *lk)
{
    struct hf_info info = HF_INFO_INIT;
    int n = 0;

    if (worked(hf_inspect(client, "one", &info, &t_err)))
        CHECK(info.held);
    if (worked(hf_list(client, NULL, count_one, &n, &t_err)))
        CHECK_GE(n, 1);
    worked(hf_check(client, "one", hf_fence(lk), &t_err));
    worked(hf_extend(lk, 20000, &t_err));
    CHECK(hf_held(lk));
}

/* The answer to a question of an event loop; true if there is one. */
static bool answered(hf_client *client, hf_status st)
{
    struct hf_event event = HF_EVENT_INIT;

    if (!worked(st))
        return false;
    t_poll_until(next_event(client, &event), 20000);
    CHECK_EQ(event.type, HF_ANSWERED);
    t_err = event.error;
    return worked(event.error.status);
}

/* What is no lock, and a release that goes on without memory for its event. */
static void ask(hf_client *client, uint64_t fence)
{
    struct hf_change change = HF_CHANGE_INIT;
    struct hf_info info = HF_INFO_INIT;
    hf_request *req = NULL;
    hf_lock *lk;

    if (answered(client,
                 hf_inspect_start(client, "one", &info, NULL, &req, &t_err)))
        CHECK(info.held);
    answered(client, hf_check_start(client, "one", fence, NULL, &req, &t_err));
    if (answered(client, hf_list_start(client, NULL, NULL, &req, &t_err))) {
        CHECK(hf_list_next(req, &change));
        hf_list_end(req);
    }
    lk = lock(client, "two", 0, 0, NULL);
    if (!lk)
        return;
    hf_release_start(lk, NULL, &req);
    if (req)
        CHECK(answered(client, HF_OK));
}

/* Two keys, one of which lingers here and does not fit. */
static void several(hf_client *client, unsigned flags)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *locks[2];
    hf_request *req = NULL;

    opts.flags = flags;
    unlock(lock(client, "three", 0, 60000, NULL));
    if (worked(
            hf_acquire_all(client, keys + 1, 2, 1000, &opts, locks, &t_err))) {
        unlock(locks[0]);
        unlock(locks[1]);
    }
    unlock(lock(client, "three", 0, 60000, NULL));
    if (worked(hf_acquire_all_start(client, keys + 1, 2, 1000, &opts, locks,
                                    NULL, &req, &t_err)) &&
        outcome(client, HF_OK)) {
        unlock(locks[0]);
        unlock(locks[1]);
    }
}

static void cancel(hf_client *client)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;
    hf_lock *lk = NULL;
    hf_status st;

    if (!worked(hf_canceler_new(client, &opts.canceler, &t_err)))
        return;
    hf_canceler_cancel(opts.canceler);
    st = hf_acquire(client, "five", -1, &opts, &lk, &t_err);
    if (st != HF_CANCELED)
        CHECK(!worked(st));
    hf_canceler_free(opts.canceler);
}

/* Whatever an observer lacks memory for, it finds later. */
static hf_observer *observe(hf_client *client, const char *key, unsigned flags)
{
    hf_observer *observer = NULL;

    worked(hf_observe_start(client, key, flags, NULL, &observer, &t_err));
    return observer;
}

static void use(hf_client *a, hf_client *b)
{
    hf_observer *one = observe(b, "one", 0), *all = observe(b, "", HF_PREFIX);
    hf_lock *outer = lock(a, "one", 0, 0, "owner"), *inner;
    struct hf_change change = HF_CHANGE_INIT;

    if (outer) {
        inner = lock(a, "one", 0, 0, "owner");
        contend(b);
        look(a, outer);
        look(b, outer);
        unlock(inner);
    }
    if (outer)
        ask(b, hf_fence(outer));
    unlock(lock(b, "two", HF_FAIR, 0, NULL));
    unlock(lock(b, "three", 0, 50, NULL));
    unlock(lock(b, "three", HF_POLL, 50, NULL));
    unlock(lock(a, "three", 0, 0, NULL));
    several(b, HF_FAIR);
    several(a, HF_SHARED);
    inner = lock(a, "four", HF_SHARED, 0, NULL);
    unlock(lock(b, "four", HF_SHARED, 0, NULL));
    unlock(inner);
    unlock(request(b, "five", 1000, HF_OK));
    cancel(a);
    hf_observer_next(all, &change);
    hf_observe_stop(all);
    unlock(outer);
    hf_observe_stop(one);
}

static void hear(void *arg, hf_log_level level, const char *text)
{
    (void)arg, (void)level, (void)text;
}

static void day(void)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    hf_client *a = NULL, *b = NULL;

    if (worked(hf_open(url, NULL, &a, &t_err)) &&
        worked(hf_open(url, NULL, &b, &t_err)))
        use(a, b);
    hf_close(a);
    hf_close(b);
    opts.connect_ms = -1;
    opts.log = hear;
    a = NULL;
    if (worked(hf_open(url, &opts, &a, &t_err)))
        unlock(lock(a, "one", 0, 0, NULL));
    hf_close(a);
}

/* Nothing is held or waited for. */
static void check_clean(void)
{
    hf_client *c = NULL;
    int n = 0;

    CHECK_OK(hf_open(url, NULL, &c, &t_err));
    CHECK_OK(hf_list(c, NULL, count_one, &n, &t_err));
    CHECK_EQ(n, 0);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        hf_lock *lk = NULL;

        CHECK_OK(hf_acquire(c, keys[i], 0, NULL, &lk, &t_err));
        CHECK_OK(hf_release(lk, &t_err));
    }
    hf_close(c);
}

static void sweep(void)
{
    int unhurt = 0, fds = t_count_fds();

    day();
    check_clean();
    for (long n = 1; unhurt < 3; n++) {
        long count;

        CHECK_LT(n, 5000);
        hfi_mem_fail_at(n);
        day();
        count = hfi_mem_count();
        hfi_mem_fail_at(0);
        unhurt = count < n ? unhurt + 1 : 0;
        check_clean();
        CHECK_EQ(t_count_fds(), fds);
    }
}

TEST_TIMEOUT(mem_survives_the_failure_of_each_allocation, 240)
{
    snprintf(url, sizeof(url), "mem:oom");
    sweep();
}

TEST_TIMEOUT(file_survives_the_failure_of_each_allocation, 240)
{
    snprintf(url, sizeof(url), "file:%s/locks", t_tmpdir());
    sweep();
}

T_MAIN
