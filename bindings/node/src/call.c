/* SPDX-License-Identifier: MIT
 *
 * call.c - calls that can wait, as async work that settles a promise.
 *
 * A call has an operation: `run` uses the library in a thread of Node's pool,
 * `result` makes JavaScript's value of it, in JavaScript's thread.  A call that
 * ends a lock takes its handle out of the claim before it begins, so that nobody
 * else uses it; the handle is good even after its client is closed.
 */
#include "addon.h"

#include <stdio.h>
#include <stdlib.h>

struct call {
    hf_status (*run)(struct call *);
    napi_value (*result)(napi_env, struct call *);
    napi_async_work work;
    napi_deferred deferred;
    napi_ref deliver;             /* open */
    napi_threadsafe_function log; /* open */
    struct hf_client_opts client_opts;
    struct hfn_client *client;
    hf_lock *lock;
    bool entered; /* addon.h (3) */
    hf_status status;
    struct hf_error err;

    /* arguments and results */
    char *text; /* key, prefix or URL */
    char *note;
    struct hfn_opts opts;
    struct hf_handle handle;
    uint64_t fence;
    int64_t ms;
    bool flag;
    uint64_t id;
    hf_client *opened;
    struct hf_service service;
    struct hf_collected collected;
    struct hf_info *rows;
    struct hf_waiter *waiters; /* n_rows of them */
    size_t n_rows;
};

/* ---- the frame ---------------------------------------------------------- */

static void call_execute(napi_env env, void *arg)
{
    struct call *call = arg;

    (void)env;
    call->entered = call->client && hfn_enter(call->client);
    if (call->client && !call->entered && !call->lock) {
        call->status = HF_CANCELED;
        snprintf(call->err.text, sizeof(call->err.text), "closed");
    } else {
        call->status = call->run(call);
    }
    if (call->entered)
        hfn_leave(call->client);
}

static void call_free(napi_env env, struct call *call)
{
    if (call->work)
        napi_delete_async_work(env, call->work);
    if (call->deliver)
        napi_delete_reference(env, call->deliver);
    hfn_log_free(call->log);
    if (call->client)
        hfn_client_put(call->client);
    free(call->rows);
    free(call->waiters);
    free(call->text);
    free(call->note);
    free(call);
}

static void call_complete(napi_env env, napi_status status, void *arg)
{
    struct call *call = arg;
    napi_value value = NULL;

    if (status == napi_cancelled)
        call->status = HF_CANCELED;
    if (!call->status && call->result)
        value = call->result(env, call);
    else if (!call->status)
        napi_get_undefined(env, &value);
    call->err.status = call->status;
    if (!call->status)
        napi_resolve_deferred(env, call->deferred, value);
    else
        napi_reject_deferred(env, call->deferred, hfn_error(env, &call->err));
    call_free(env, call);
}

/* A call of the client, if there is one. */
static struct call *call_new(struct hfn_client *client)
{
    struct call *call = calloc(1, sizeof(*call));

    if (!call)
        napi_fatal_error("holdfast", NAPI_AUTO_LENGTH, "out of memory",
                         NAPI_AUTO_LENGTH);
    call->client = client;
    if (client)
        client->refs++;
    return call;
}

/* Nothing, if there is no call: then something was thrown. */
static napi_value call_begin(napi_env env, struct call *call,
                             hf_status (*run)(struct call *),
                             napi_value (*result)(napi_env, struct call *))
{
    napi_value promise = NULL;

    if (!call)
        return NULL;
    call->run = run;
    call->result = result;
    napi_create_promise(env, &call->deferred, &promise);
    napi_create_async_work(env, NULL, hfn_text(env, "holdfast"), call_execute,
                           call_complete, call, &call->work);
    napi_queue_async_work(env, call->work);
    return promise;
}

/* A call of (client, ...), or throw. */
static struct call *call_of_client(napi_env env, napi_callback_info info,
                                   napi_value args[HFN_ARGS])
{
    struct hfn_client *c;

    hfn_args(env, info, args);
    c = hfn_client_get(env, args[0]);
    return c ? call_new(c) : NULL;
}

/* A call of (client, key, ...), or throw. */
static struct call *call_keyed(napi_env env, napi_callback_info info,
                               napi_value args[HFN_ARGS])
{
    struct call *call = call_of_client(env, info, args);

    if (call)
        call->text = hfn_get_text(env, args[1]);
    return call;
}

/* ---- open and close ----------------------------------------------------- */

static hf_status call_run_open(struct call *call)
{
    return hf_open(call->text, &call->client_opts, &call->opened, &call->err);
}

static napi_value call_opened(napi_env env, struct call *call)
{
    napi_value deliver = NULL, ret;

    napi_get_reference_value(env, call->deliver, &deliver);
    ret = hfn_client_new(env, call->opened, deliver, call->log);
    if (ret) {
        call->log = NULL;
        return ret;
    }
    hf_close(call->opened);
    call->status = HF_SYSTEM;
    snprintf(call->err.text, sizeof(call->err.text),
             "no descriptor, thread or memory for the events");
    return NULL;
}

/* open(url, options, deliver) */
napi_value hfn_open(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct call *call = call_new(NULL);
    struct hf_client_opts *o = &call->client_opts;

    hfn_args(env, info, args);
    call->text = hfn_get_text(env, args[0]);
    call->note = hfn_get_text(env, hfn_property(env, args[1], "note"));
    call->log = hfn_log_new(env, hfn_property(env, args[1], "log"));
    *o = (struct hf_client_opts)HF_CLIENT_OPTS_INIT;
    o->timeout_ms =
        (int64_t)hfn_get_number(env, hfn_property(env, args[1], "timeout"));
    o->connect_ms =
        (int64_t)hfn_get_number(env, hfn_property(env, args[1], "connect"));
    o->log_level = (hf_log_level)hfn_get_number(
        env, hfn_property(env, args[1], "logLevel"));
    o->note = call->note;
    o->log = call->log ? hfn_log : NULL;
    o->log_arg = call->log;
    napi_create_reference(env, args[2], 1, &call->deliver);
    return call_begin(env, call, call_run_open, call_opened);
}

static void call_close_execute(napi_env env, void *arg)
{
    struct call *call = arg;

    (void)env;
    hfn_close_wait(call->client);
}

static void call_close_complete(napi_env env, napi_status status, void *arg)
{
    struct call *call = arg;

    hfn_close_end(call->client);
    call_complete(env, status, call);
}

/* close(client, now): now waits, at the exit of the process */
napi_value hfn_close(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS], promise = NULL;
    struct hfn_client *c;
    struct call *call;

    hfn_args(env, info, args);
    c = hfn_client_get(env, args[0]);
    if (!c)
        return NULL;
    hfn_close_begin(c);
    if (hfn_get_bool(env, args[1])) {
        hfn_close_wait(c);
        hfn_close_end(c);
        return NULL;
    }
    call = call_new(c);
    napi_create_promise(env, &call->deferred, &promise);
    napi_create_async_work(env, NULL, hfn_text(env, "holdfast"),
                           call_close_execute, call_close_complete, call,
                           &call->work);
    napi_queue_async_work(env, call->work);
    return promise;
}

/* ---- locks -------------------------------------------------------------- */

/* A call of (client, claim, index, ...), or throw; the lock leaves the claim if it
 * ends. */
static struct call *call_of_lock(napi_env env, napi_callback_info info,
                                 bool ends, napi_value args[HFN_ARGS])
{
    struct hfn_client *c;
    struct call *call;
    hf_lock *lock;

    hfn_args(env, info, args);
    lock = hfn_lock_get(env, args, ends, &c);
    if (!lock)
        return NULL;
    call = call_new(c);
    call->lock = lock;
    return call;
}

/* The client is closed, and with it the lock was lost. */
static hf_status call_lost(struct call *call)
{
    snprintf(call->err.text, sizeof(call->err.text), "closed");
    return HF_LOST;
}

static hf_status call_run_extend(struct call *call)
{
    if (!call->entered)
        return call_lost(call);
    return hf_extend(call->lock, call->ms, &call->err);
}

/* extend(client, claim, index, ttl) */
napi_value hfn_extend(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct call *call = call_of_lock(env, info, false, args);

    if (call)
        call->ms = (int64_t)hfn_get_number(env, args[3]);
    return call_begin(env, call, call_run_extend, NULL);
}

static hf_status call_run_downgrade(struct call *call)
{
    if (!call->entered)
        return call_lost(call);
    return hf_downgrade(call->lock, &call->err);
}

napi_value hfn_downgrade(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct call *call = call_of_lock(env, info, false, args);

    return call_begin(env, call, call_run_downgrade, NULL);
}

static hf_status call_run_transfer(struct call *call)
{
    if (!call->entered)
        return call_lost(call);
    return hf_transfer(call->lock, call->text, &call->err);
}

/* transfer(client, claim, index, heir) */
napi_value hfn_transfer(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct call *call = call_of_lock(env, info, false, args);

    if (call)
        call->text = hfn_get_text(env, args[3]);
    return call_begin(env, call, call_run_transfer, NULL);
}

static hf_status call_run_detach(struct call *call)
{
    if (!call->entered)
        return hf_release(call->lock, &call->err);
    call->handle = (struct hf_handle)HF_HANDLE_INIT;
    return hf_detach(call->lock, &call->handle, &call->err);
}

static napi_value call_handle(napi_env env, struct call *call)
{
    napi_value ret = NULL;

    napi_create_object(env, &ret);
    hfn_set(env, ret, "token", hfn_text(env, call->handle.token));
    hfn_set(env, ret, "ref", hfn_text(env, call->handle.ref));
    hfn_set(env, ret, "fence", hfn_fence(env, call->handle.fence));
    return ret;
}

napi_value hfn_detach(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct call *call = call_of_lock(env, info, true, args);

    return call_begin(env, call, call_run_detach, call_handle);
}

/* ---- handles ------------------------------------------------------------ */

static hf_status call_run_attach(struct call *call)
{
    return hf_attach(call->client->client, call->text, &call->handle,
                     &call->opts.opts, &call->lock, &call->err);
}

static napi_value call_attached(napi_env env, struct call *call)
{
    struct hfn_claim *claim = NULL;
    napi_value ret = NULL;

    napi_get_undefined(env, &ret);
    if (!atomic_load(&call->client->stop))
        claim = hfn_claim_new(call->client, 1, call->id);
    if (!claim) {
        hf_release(call->lock, NULL);
        call->status = call_lost(call);
        return NULL;
    }
    claim->locks[0] = call->lock;
    claim->left = 1;
    return ret;
}

/* f(client, key, handle, options, id), or throw */
static struct call *call_with_handle(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct call *call = call_keyed(env, info, args);

    if (!call)
        return NULL;
    hfn_get_handle(env, args[2], &call->handle);
    hfn_get_opts(env, args[3], &call->opts);
    call->id = hfn_get_id(env, args[4]);
    return call;
}

napi_value hfn_attach(napi_env env, napi_callback_info info)
{
    return call_begin(env, call_with_handle(env, info), call_run_attach,
                      call_attached);
}

static hf_status call_run_handle_extend(struct call *call)
{
    return hf_handle_extend(call->client->client, call->text, &call->handle,
                            &call->opts.opts, &call->err);
}

napi_value hfn_handle_extend(napi_env env, napi_callback_info info)
{
    return call_begin(env, call_with_handle(env, info), call_run_handle_extend,
                      NULL);
}

static hf_status call_run_handle_release(struct call *call)
{
    return hf_handle_release(call->client->client, call->text, &call->handle,
                             &call->opts.opts, &call->err);
}

napi_value hfn_handle_release(napi_env env, napi_callback_info info)
{
    return call_begin(env, call_with_handle(env, info), call_run_handle_release,
                      NULL);
}

/* ---- looking and mending ------------------------------------------------ */

static hf_status call_run_break(struct call *call)
{
    return (call->flag ? hf_break_force : hf_break)(
        call->client->client, call->text, call->fence, &call->err);
}

/* break(client, key, fence, force) */
napi_value hfn_break(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct call *call = call_keyed(env, info, args);

    if (!call)
        return NULL;
    call->fence = hfn_get_fence(env, args[2]);
    call->flag = hfn_get_bool(env, args[3]);
    return call_begin(env, call, call_run_break, NULL);
}

static hf_status call_run_describe(struct call *call)
{
    call->service = (struct hf_service)HF_SERVICE_INIT;
    return hf_describe(call->client->client, &call->service, &call->err);
}

static napi_value call_service(napi_env env, struct call *call)
{
    const struct hf_service *s = &call->service;
    napi_value ret = NULL;

    napi_create_object(env, &ret);
    hfn_set(env, ret, "scheme", hfn_text(env, s->scheme));
    hfn_set(env, ret, "endpoint", hfn_text(env, s->endpoint));
    hfn_set(env, ret, "warning", hfn_text(env, s->warning));
    hfn_set(env, ret, "ttl", hfn_number(env, (double)s->ttl_ms));
    hfn_set(env, ret, "traits", hfn_traits(env, s->traits));
    return ret;
}

/* describe(client) */
napi_value hfn_describe(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];

    return call_begin(env, call_of_client(env, info, args), call_run_describe,
                      call_service);
}

static hf_status call_run_collect(struct call *call)
{
    call->collected = (struct hf_collected)HF_COLLECTED_INIT;
    return hf_collect(call->client->client, call->ms, call->flag,
                      &call->collected, &call->err);
}

static napi_value call_collected(napi_env env, struct call *call)
{
    const struct hf_collected *c = &call->collected;
    napi_value ret = NULL;

    napi_create_object(env, &ret);
    hfn_set(env, ret, "lookedAt", hfn_number(env, (double)c->looked_at));
    hfn_set(env, ret, "removed", hfn_number(env, (double)c->removed));
    hfn_set(env, ret, "kept", hfn_number(env, (double)c->kept));
    return ret;
}

/* collect(client, older, dry run) */
napi_value hfn_collect(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct call *call = call_of_client(env, info, args);

    if (!call)
        return NULL;
    call->ms = (int64_t)hfn_get_number(env, args[1]);
    call->flag = hfn_get_bool(env, args[2]);
    return call_begin(env, call, call_run_collect, call_collected);
}

/* ---- lists -------------------------------------------------------------- */

/* Keep a row; without memory for it the call fails. */
static bool call_keep(void *arg, const struct hf_info *info)
{
    struct call *call = arg;
    size_t n = call->n_rows;
    struct hf_info *rows = call->rows;

    if ((n & (n - 1)) == 0)
        rows = realloc(rows, (n ? 2 * n : 1) * sizeof(*rows));
    call->flag = !rows;
    if (!rows)
        return false;
    call->rows = rows;
    rows[call->n_rows++] = *info;
    return true;
}

static hf_status call_run_holders(struct call *call)
{
    hf_status st = hf_holders(call->client->client, call->text, call_keep, call,
                              &call->err);

    return !st && call->flag ? HF_NOMEM : st;
}

static napi_value call_rows(napi_env env, struct call *call)
{
    napi_value ret = NULL;
    size_t i;

    napi_create_array_with_length(env, call->n_rows, &ret);
    for (i = 0; i < call->n_rows; i++)
        napi_set_element(env, ret, (uint32_t)i,
                         hfn_info(env, call->text, &call->rows[i]));
    return ret;
}

/* holders(client, key) */
napi_value hfn_holders(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];

    return call_begin(env, call_keyed(env, info, args), call_run_holders,
                      call_rows);
}

static bool call_keep_waiter(void *arg, const struct hf_waiter *waiter)
{
    struct call *call = arg;
    struct hf_waiter *more =
        realloc(call->waiters, (call->n_rows + 1) * sizeof(*more));

    call->flag = !more;
    if (!more)
        return false;
    call->waiters = more;
    more[call->n_rows++] = *waiter;
    return true;
}

static hf_status call_run_waiters(struct call *call)
{
    hf_status st = hf_waiters(call->client->client, call->text,
                              call_keep_waiter, call, &call->err);

    return !st && call->flag ? HF_NOMEM : st;
}

static napi_value call_waiters(napi_env env, struct call *call)
{
    napi_value ret = NULL;
    size_t i;

    napi_create_array_with_length(env, call->n_rows, &ret);
    for (i = 0; i < call->n_rows; i++)
        napi_set_element(env, ret, (uint32_t)i,
                         hfn_waiter(env, &call->waiters[i]));
    return ret;
}

/* waiters(client, key) */
napi_value hfn_waiters(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];

    return call_begin(env, call_keyed(env, info, args), call_run_waiters,
                      call_waiters);
}
