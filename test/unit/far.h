/* SPDX-License-Identifier: MIT
 *
 * far.h - a service that is far away, silent or late.
 *
 * The service is mem:, behind a backend that adds what a network adds: a round
 * trip, silence, a try that arrives after everything that was sent later, one
 * key whose renewals have no answer.  Nothing is made up in place of the
 * service; only the way to it is longer.
 */
#ifndef FAR_H
#define FAR_H

#include "../t.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core.h"

extern const struct hfi_backend hfi_backend_mem;

struct far_conn {
    struct hfi_conn base;
    struct hfi_conn *near;
};

static _Atomic int64_t far_trip_ms;  /* of every call */
static atomic_bool far_silent;       /* no call has an answer */
static atomic_bool far_late_try;     /* the next try waits for far_arrive() */
static atomic_bool far_late_renewal; /* so does the next renewal */
static atomic_bool far_lost_answer;  /* renewals arrive, answers do not */
static atomic_bool far_no_watch;     /* watch() has no answer */
static atomic_bool far_refuses;      /* renewals fail at once, in doubt */
static atomic_bool far_unsent;       /* renewals are not sent at all */
static atomic_int far_denied;        /* 1: the next renewal has no answer, and
                                      * later ones (-1) are refused */
static atomic_bool far_nonsense; /* a handle is taken up, and the answer to that
                                  * makes no sense */
static const char *_Atomic far_silent_key; /* renewals of it have no answer */
static atomic_int far_calls_here; /* calls made by the test's own thread */
static pthread_t far_test_thread;

static atomic_int far_held_renewal; /* the next renewal stops: enum far_held */
static atomic_int far_sweeps;       /* how many there were */

/* Where the renewal that is held stands. */
enum far_held { FAR_NONE, FAR_HOLD, FAR_THERE, FAR_GO };

/* A try, or a renewal, that is still under way. */
static struct {
    struct hfi_conn *near;
    struct hfi_claim claim;
    int64_t ttl_ms; /* 0: a try */
    char key[64];
} far_late;

static struct hfi_conn *near_of(struct hfi_conn *conn)
{
    return ((struct far_conn *)conn)->near;
}

/* Be under way.  False if that took longer than the caller waits. */
static bool far_go(int64_t deadline, bool silent)
{
    int64_t there = t_now_ms() + atomic_load(&far_trip_ms);

    if (pthread_equal(pthread_self(), far_test_thread))
        atomic_fetch_add(&far_calls_here, 1);
    while (t_now_ms() < deadline &&
           ((silent && (far_silent_key || atomic_load(&far_no_watch))) ||
            atomic_load(&far_silent) || t_now_ms() < there))
        t_sleep_ms(1);
    return t_now_ms() < deadline;
}

static hf_status far_open(struct hfi_conn *conn, const struct hfi_url *url,
                          int64_t deadline, struct hf_error *err)
{
    struct far_conn *fc = (struct far_conn *)conn;

    fc->near = calloc(1, hfi_backend_mem.conn_size);
    CHECK(fc->near != NULL);
    fc->near->be = &hfi_backend_mem;
    fc->near->client = conn->client;
    return hfi_backend_mem.open(fc->near, url, deadline, err);
}

static void far_close(struct hfi_conn *conn)
{
    hfi_backend_mem.close(near_of(conn));
    free(near_of(conn));
}

static void far_delay(struct hfi_conn *conn, const struct hfi_claim *claim,
                      int64_t ttl_ms)
{
    far_late.near = near_of(conn);
    far_late.claim = *claim;
    far_late.ttl_ms = ttl_ms;
    snprintf(far_late.key, sizeof(far_late.key), "%s", claim->key);
    far_late.claim.key = far_late.key;
}

static hf_status far_try_acquire(struct hfi_conn *conn,
                                 const struct hfi_claim *claim,
                                 struct hfi_receipt *receipt,
                                 struct hfi_answer *answer, int64_t deadline,
                                 struct hf_error *err)
{
    if (atomic_exchange(&far_late_try, false)) {
        far_delay(conn, claim, 0);
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer yet");
    }
    if (!far_go(deadline, false))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    return hfi_backend_mem.try_acquire(near_of(conn), claim, receipt, answer,
                                       deadline, err);
}

/* What was late is there now. */
static inline void far_arrive(void)
{
    struct hfi_receipt receipt = {0};
    struct hfi_answer answer = {0};
    struct hfi_renewal item = {.claim = &far_late.claim,
                               .receipt = &receipt,
                               .ttl_ms = far_late.ttl_ms};

    if (far_late.ttl_ms)
        hfi_backend_mem.renew(far_late.near, &item, 1, HFI_NEVER, NULL);
    else
        hfi_backend_mem.try_acquire(far_late.near, &far_late.claim, &receipt,
                                    &answer, HFI_NEVER, NULL);
}

/* The renewal that is held arrives when the test says so, and its answer is read
 * when a sweep has come in between, or a while later. */
static bool far_hold_renewal(struct hfi_conn *conn, struct hfi_renewal *items,
                             size_t n, struct hf_error *err)
{
    int from = FAR_HOLD;

    if (!atomic_compare_exchange_strong(&far_held_renewal, &from, FAR_THERE))
        return false;
    t_poll_until(atomic_load(&far_held_renewal) == FAR_GO, 20000);
    hfi_backend_mem.renew(near_of(conn), items, n, HFI_NEVER, err);
    for (int i = 0; i < 1000 && !atomic_load(&far_sweeps); i++)
        t_sleep_ms(1);
    return true;
}

static void far_renew(struct hfi_conn *conn, struct hfi_renewal *items,
                      size_t n, int64_t deadline, struct hf_error *err)
{
    const char *key = far_silent_key;
    bool silent = false;
    size_t i;

    if (far_hold_renewal(conn, items, n, err))
        return;
    if (atomic_exchange(&far_late_renewal, false)) {
        far_delay(conn, items[0].claim, items[0].ttl_ms);
        hfi_fail(err, HF_UNCERTAIN, "far: no answer yet");
        return;
    }
    if (atomic_load(&far_refuses)) {
        hfi_fail(err, HF_UNCERTAIN, "far: the connection was cut");
        return;
    }
    if (atomic_load(&far_unsent)) {
        for (i = 0; i < n; i++)
            items[i].st = hfi_fail(err, HF_UNAVAILABLE, "far: not sent");
        return;
    }
    if (atomic_load(&far_denied) < 0) {
        for (i = 0; i < n; i++)
            items[i].st = hfi_fail(err, HF_DENIED, "far: refused");
        return;
    }
    for (i = 0; i < n; i++)
        silent = silent || (key && !strcmp(items[i].claim->key, key));
    if (far_go(deadline, silent)) {
        hfi_backend_mem.renew(near_of(conn), items, n, deadline, err);
        if (!atomic_load(&far_lost_answer) &&
            !atomic_exchange(&far_denied, -far_denied))
            return;
        for (i = 0; i < n; i++)
            items[i].st = HF_UNCERTAIN;
    }
    hfi_fail(err, HF_UNCERTAIN, "far: no answer");
}

static hf_status far_release(struct hfi_conn *conn,
                             const struct hfi_claim *claim,
                             struct hfi_receipt *receipt, int64_t deadline,
                             struct hf_error *err)
{
    if (!far_go(deadline, false))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    return hfi_backend_mem.release(near_of(conn), claim, receipt, deadline,
                                   err);
}

static hf_status far_attach(struct hfi_conn *conn,
                            const struct hfi_claim *claim,
                            const struct hf_handle *handle,
                            struct hfi_receipt *receipt, struct hf_error *err)
{
    return hfi_backend_mem.attach(near_of(conn), claim, handle, receipt, err);
}

static hf_status far_take_over(struct hfi_conn *conn,
                               const struct hfi_claim *claim, const char *token,
                               struct hfi_receipt *receipt, int64_t deadline,
                               struct hf_error *err)
{
    hf_status st;

    if (!far_go(deadline, false))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    st = hfi_backend_mem.take_over(near_of(conn), claim, token, receipt,
                                   deadline, err);
    return atomic_load(&far_nonsense) ? hfi_fail(err, HF_PROTOCOL, "far: what?")
                                      : st;
}

static hf_status far_watch(struct hfi_conn *conn, const struct hfi_claim *claim,
                           struct hfi_receipt *receipt, int64_t deadline,
                           struct hf_error *err)
{
    if (!far_go(deadline, atomic_load(&far_no_watch)))
        return hfi_fail(err, HF_UNCERTAIN, "far: no answer");
    return hfi_backend_mem.watch(near_of(conn), claim, receipt, deadline, err);
}

static void far_unwatch(struct hfi_conn *conn, const struct hfi_claim *claim,
                        struct hfi_receipt *receipt)
{
    hfi_backend_mem.unwatch(near_of(conn), claim, receipt);
}

static hf_status far_inspect(struct hfi_conn *conn, const char *key,
                             struct hf_info *ret, int64_t deadline,
                             struct hf_error *err)
{
    return hfi_backend_mem.inspect(near_of(conn), key, ret, deadline, err);
}

/* All grants hang on the session of whoever asks. */
static inline hf_status far_sweep(struct hfi_conn *conn,
                                  const struct hfi_claim *claim,
                                  struct hfi_receipt *receipt, int64_t deadline,
                                  struct hf_error *err)
{
    hf_status st;

    atomic_fetch_add(&far_sweeps, 1);
    st = far_release(conn, claim, receipt, deadline, err);
    receipt->registered = st == HF_UNCERTAIN;
    return st;
}

static const char *const far_schemes[] = {"mem", NULL};

static const struct hfi_backend far_backend = {
    .schemes = far_schemes,
    .conn_size = sizeof(struct far_conn),
    .traits = HF_TRAIT_FENCED | HF_TRAIT_LEASED | HF_TRAIT_QUEUED |
              HF_TRAIT_NOTIFY | HF_TRAIT_NOTED | HF_TRAIT_REENTRANT |
              HF_TRAIT_DETACH,
    .open = far_open,
    .close = far_close,
    .try_acquire = far_try_acquire,
    .renew = far_renew,
    .release = far_release,
    .watch = far_watch,
    .unwatch = far_unwatch,
    .attach = far_attach,
    .take_over = far_take_over,
    .inspect = far_inspect,
};

/* ---- the scene --------------------------------------------------------- */

static hf_client *far_client_of(const struct hfi_backend *be,
                                int64_t timeout_ms)
{
    struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    struct hfi_url url;
    hf_client *client;

    opts.timeout_ms = timeout_ms;
    far_test_thread = pthread_self();
    CHECK_OK(hfi_url_parse(&url, "mem:far", &t_err));
    CHECK_OK(hfi_open_with(be, &url, &opts, &client, &t_err));
    hfi_url_fini(&url);
    return client;
}

static inline hf_client *far_client(int64_t timeout_ms)
{
    return far_client_of(&far_backend, timeout_ms);
}

/* One whose grants hang on a session, and are swept. */
static inline hf_client *far_sweeping_client(int64_t timeout_ms)
{
    static struct hfi_backend be;

    be = far_backend;
    be.traits |= HFI_TRAIT_BOUND;
    be.sweep = far_sweep;
    return far_client_of(&be, timeout_ms);
}

static inline struct hf_lock_opts far_opts(int64_t ttl_ms, unsigned flags)
{
    struct hf_lock_opts opts = HF_LOCK_OPTS_INIT;

    opts.ttl_ms = ttl_ms;
    opts.flags = flags;
    return opts;
}

static inline hf_lock *far_lock(hf_client *client, const char *key,
                                int64_t ttl_ms)
{
    struct hf_lock_opts opts = far_opts(ttl_ms, 0);
    hf_lock *lk;

    CHECK_OK(hf_acquire(client, key, 0, &opts, &lk, &t_err));
    return lk;
}

static inline bool far_is_free(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return !info.held;
}

static inline int64_t far_left(hf_client *client, const char *key)
{
    struct hf_info info = HF_INFO_INIT;

    CHECK_OK(hf_inspect(client, key, &info, &t_err));
    return info.held ? info.left_ms : 0;
}

/* Whatever was silent speaks again, so that the client can be closed. */
static void far_end(hf_client *client)
{
    atomic_store(&far_silent, false);
    atomic_store(&far_trip_ms, 0);
    hf_close(client);
}

#endif
