/* SPDX-License-Identifier: MIT
 *
 * addon.h - what the files of the Node.js addon share.
 *
 * The addon is the library as plain functions on numbers, strings and opaque
 * handles; index.js makes promises, iterators and events of them.  It uses
 * Node-API only, so one build serves every version of Node.js from 18 on.
 *
 * INVARIANTS
 *  (1) No function that JavaScript calls waits: what can wait runs as async work
 *      (call.c), or is one of the library's own calls that do not wait.
 *  (2) hf_next_event() is called in the thread of JavaScript only.  So an event
 *      never meets a handle that this thread has ended already.
 *  (3) hf_close() is called when no async work uses the client: hfn_enter() and
 *      hfn_leave() are around each use outside the thread of JavaScript.
 *  (4) Everything belongs to one environment (a worker thread has its own) and
 *      ends with it.
 *  (5) JavaScript can come at any time with anything that it has ever got.  So it
 *      has no pointer but that to a struct hfn_client, which lives until it is
 *      collected, and each function asks whether that is open.  Requests and
 *      locks are numbers, which are looked up: here and in an event's `user`.
 */
#ifndef HFN_ADDON_H
#define HFN_ADDON_H

#define NAPI_VERSION 8
#include <holdfast.h>
#include <node_api.h>

#include <pthread.h>
#include <stdatomic.h>

struct hfn_client {
    hf_client *client;
    napi_env env;
    napi_threadsafe_function wake; /* dispatches events, in JavaScript */
    napi_ref deliver;              /* what gets them */
    napi_threadsafe_function log;  /* or NULL */
    struct hfn_claim **chains;     /* claims that have not ended: table.c */
    size_t n_chains, n_claims;
    int refs; /* this, JavaScript's, and those of calls that are under way */
    int busy; /* what keeps the process alive: requests and calls */

    pthread_t thread; /* waits for the descriptor of the events */
    int epoll_fd, wake_fd;
    atomic_bool stop; /* it is being closed, or is closed */
    atomic_bool told; /* `wake` was called and did not run yet */

    pthread_mutex_t mutex; /* guards these */
    pthread_cond_t idle;
    int users; /* calls inside the library */
    bool closing;
};

/* A request, then the locks that it got.  One for an answer has no locks. */
struct hfn_claim {
    struct hfn_client *client;
    struct hfn_claim *next;
    hf_request *request; /* not ended yet */
    uint64_t id; /* JavaScript's name of it, or of the first lock; not 0 */
    char *key;   /* inspect */
    struct hf_info info;
    bool lists; /* list */
    hf_observer *observer;
    size_t n, left; /* locks; those that are not released yet */
    hf_lock *locks[];
};

/* ---- value.c: between JavaScript and C ---------------------------------- */

enum { HFN_ARGS = 5 };

/* Options of a lock, with the strings that they point to. */
struct hfn_opts {
    struct hf_lock_opts opts;
    int64_t wait_ms;
    char owner[HF_OWNER_MAX + 2], note[HF_NOTE_MAX + 2];
};

void hfn_args(napi_env env, napi_callback_info info, napi_value args[HFN_ARGS]);
napi_value hfn_number(napi_env env, double number);
napi_value hfn_text(napi_env env, const char *text);
napi_value hfn_bool(napi_env env, bool value);
napi_value hfn_fence(napi_env env, uint64_t fence);
void hfn_set(napi_env env, napi_value object, const char *name,
             napi_value value);
double hfn_get_number(napi_env env, napi_value value);
uint64_t hfn_get_id(napi_env env, napi_value value); /* 0: none */
bool hfn_get_bool(napi_env env, napi_value value);
uint64_t hfn_get_fence(napi_env env, napi_value value);

/* A string on the heap, or NULL: not a string, with a NUL inside, or no memory.
 */
char *hfn_get_text(napi_env env, napi_value value);

/* The string into a buffer of the caller; false if it does not fit. */
bool hfn_copy_text(napi_env env, napi_value value, char *buf, size_t size);

napi_value hfn_property(napi_env env, napi_value object, const char *name);
void hfn_get_opts(napi_env env, napi_value array, struct hfn_opts *ret);
void hfn_get_handle(napi_env env, napi_value object, struct hf_handle *ret);
napi_value hfn_info(napi_env env, const char *key, const struct hf_info *info);
napi_value hfn_waiter(napi_env env, const struct hf_waiter *waiter);
napi_value hfn_traits(napi_env env, unsigned traits);

/* new HoldfastError(status, text, errno) */
napi_value hfn_error(napi_env env, const struct hf_error *err);
napi_value hfn_throw(napi_env env, const struct hf_error *err);
void hfn_set_error_class(napi_env env, napi_value constructor);

/* ---- client.c: a client and its events ---------------------------------- */

/* Take over an open client, and make what JavaScript has of it; NULL if there
 * are no descriptors or threads. */
napi_value hfn_client_new(napi_env env, hf_client *client, napi_value deliver,
                          napi_threadsafe_function log);
void hfn_client_put(struct hfn_client *c); /* a reference ends */

/* The client that JavaScript comes with; NULL if it is closed. */
struct hfn_client *hfn_client_open(napi_env env, napi_value value);
/* The same, or throw. */
struct hfn_client *hfn_client_get(napi_env env, napi_value value);

/* Keep the process alive, or no longer. */
void hfn_busy(struct hfn_client *c, int change);

/* Around a use of the client in another thread; false: it is being closed. */
bool hfn_enter(struct hfn_client *c);
void hfn_leave(struct hfn_client *c);

/* Close it.  _begin and _end are for the thread of JavaScript and do not wait;
 * the middle waits for the service and may run anywhere. */
void hfn_close_begin(struct hfn_client *c);
void hfn_close_wait(struct hfn_client *c);
void hfn_close_end(struct hfn_client *c);

/* ---- table.c: the claims of a client ------------------------------------ */

/* NULL without memory, or if there is one of that number. */
struct hfn_claim *hfn_claim_new(struct hfn_client *c, size_t n, uint64_t id);
void hfn_claim_free(struct hfn_claim *claim);
struct hfn_claim *hfn_claim_find(struct hfn_client *c, uint64_t id);
/* The one that has the lock; 0 as its number: look through all. */
struct hfn_claim *hfn_claim_of(struct hfn_client *c, uint64_t id,
                               const hf_lock *lock, size_t *index);
struct hfn_claim *hfn_claim_any(struct hfn_client *c);

/* ---- claim.c: requests and locks ---------------------------------------- */

/* Whom an event is about, and the number of the request or lock; NULL if that
 * has ended. */
struct hfn_claim *hfn_claim_event(struct hfn_client *c,
                                  const struct hf_event *event, uint64_t *id);
/* What a request that gets no lock has found. */
napi_value hfn_claim_answer(napi_env env, struct hfn_claim *claim,
                            const struct hf_event *event);
/* The lock of the arguments (client, claim, index), and its client, or throw;
 * with `ends` it is no longer the claim's: the call that follows ends it. */
hf_lock *hfn_lock_get(napi_env env, const napi_value args[HFN_ARGS], bool ends,
                      struct hfn_client **ret);

napi_value hfn_acquire(napi_env env, napi_callback_info info);
napi_value hfn_cancel(napi_env env, napi_callback_info info);
napi_value hfn_release(napi_env env, napi_callback_info info);
napi_value hfn_inspect(napi_env env, napi_callback_info info);
napi_value hfn_check(napi_env env, napi_callback_info info);
napi_value hfn_list(napi_env env, napi_callback_info info);
napi_value hfn_observe(napi_env env, napi_callback_info info);
napi_value hfn_change(napi_env env, napi_callback_info info);
napi_value hfn_unobserve(napi_env env, napi_callback_info info);
napi_value hfn_busily(napi_env env, napi_callback_info info);
napi_value hfn_held(napi_env env, napi_callback_info info);
napi_value hfn_remaining(napi_env env, napi_callback_info info);
napi_value hfn_reason(napi_env env, napi_callback_info info);
napi_value hfn_token(napi_env env, napi_callback_info info);

/* ---- log.c: what the library says, in JavaScript -------------------------- */

/* Let `fn` be called with (level, text); NULL if that is no function. */
napi_threadsafe_function hfn_log_new(napi_env env, napi_value fn);
void hfn_log_free(napi_threadsafe_function log); /* after hf_close() */
hf_log_fn hfn_log;

/* ---- stats.c: what a client has counted ----------------------------------- */

napi_value hfn_stats(napi_env env, napi_callback_info info);
napi_value hfn_stats_text(napi_env env, napi_callback_info info);

/* ---- call.c: what can wait, as async work ------------------------------- */

napi_value hfn_open(napi_env env, napi_callback_info info);
napi_value hfn_close(napi_env env, napi_callback_info info);
napi_value hfn_extend(napi_env env, napi_callback_info info);
napi_value hfn_downgrade(napi_env env, napi_callback_info info);
napi_value hfn_transfer(napi_env env, napi_callback_info info);
napi_value hfn_collect(napi_env env, napi_callback_info info);
napi_value hfn_detach(napi_env env, napi_callback_info info);
napi_value hfn_attach(napi_env env, napi_callback_info info);
napi_value hfn_handle_extend(napi_env env, napi_callback_info info);
napi_value hfn_handle_release(napi_env env, napi_callback_info info);
napi_value hfn_break(napi_env env, napi_callback_info info);
napi_value hfn_describe(napi_env env, napi_callback_info info);
napi_value hfn_waiters(napi_env env, napi_callback_info info);
napi_value hfn_holders(napi_env env, napi_callback_info info);

#endif
