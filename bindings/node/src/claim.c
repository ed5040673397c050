/* SPDX-License-Identifier: MIT
 *
 * claim.c - requests, and the locks or answers that they get.
 *
 * JavaScript names each lock by a number: a claim of n locks has n numbers in a
 * row from `id` on.  The first of them is the user pointer of the request and of
 * its locks, so an event finds the claim, or that it has ended: what a thread of
 * the pool detaches can still be lost.  A claim ends with its last lock.  A lock
 * that was attached has no user pointer, and is found by looking through all
 * claims.
 */
#include "addon.h"

#include <stdlib.h>

/* ---- claims ------------------------------------------------------------- */

struct hfn_claim *hfn_claim_event(struct hfn_client *c,
                                  const struct hf_event *event, uint64_t *id)
{
    struct hfn_claim *claim;
    size_t index = 0;

    if (event->type == HF_AT_RISK || event->type == HF_GONE)
        claim = hfn_claim_of(c, (uintptr_t)event->user, event->lock, &index);
    else
        claim = hfn_claim_find(c, (uintptr_t)event->user);
    if (event->type == HF_GRANTED || event->type == HF_FAILED ||
        event->type == HF_ANSWERED)
        hfn_busy(c, -1);
    if (!claim)
        return NULL;
    if (event->type == HF_GRANTED) {
        claim->request = NULL;
        if (claim->n == 1)
            claim->locks[0] = event->lock;
        claim->left = claim->n;
    }
    *id = claim->id + index;
    return claim;
}

/* Where a claim has a lock that was granted and not taken. */
static hf_lock **claim_lock(struct hfn_claim *claim, napi_env env,
                            napi_value value)
{
    double index = hfn_get_number(env, value);

    if (!claim || !claim->left || !(index >= 0 && index < (double)claim->n) ||
        !claim->locks[(size_t)index])
        return NULL;
    return &claim->locks[(size_t)index];
}

hf_lock *hfn_lock_get(napi_env env, const napi_value args[HFN_ARGS], bool ends,
                      struct hfn_client **ret)
{
    static const struct hf_error none = {HF_INVALID, 0,
                                         "there is no such lock"};
    struct hfn_claim *claim;
    hf_lock **at, *lock;

    *ret = hfn_client_get(env, args[0]);
    if (!*ret)
        return NULL;
    claim = hfn_claim_find(*ret, hfn_get_id(env, args[1]));
    at = claim_lock(claim, env, args[2]);
    if (!at) {
        hfn_throw(env, &none);
        return NULL;
    }
    lock = *at;
    if (ends) {
        *at = NULL;
        if (--claim->left == 0)
            hfn_claim_free(claim);
    }
    return lock;
}

/* ---- requests ----------------------------------------------------------- */

static void *claim_user(const struct hfn_claim *claim)
{
    return (void *)(uintptr_t)claim->id;
}

/* Begin to acquire the keys; the library copies them. */
static hf_status claim_start(struct hfn_claim *claim, char **keys,
                             const struct hfn_opts *o, struct hf_error *err)
{
    hf_client *client = claim->client->client;
    void *user = claim_user(claim);

    if (claim->n == 1)
        return hf_acquire_start(client, keys[0], o->wait_ms, &o->opts, user,
                                &claim->request, err);
    return hf_acquire_all_start(client, (const char *const *)keys, claim->n,
                                o->wait_ms, &o->opts, claim->locks, user,
                                &claim->request, err);
}

/* acquire(client, id, keys, options) */
napi_value hfn_acquire(napi_env env, napi_callback_info info)
{
    struct hf_error err = {HF_NOMEM, 0, "out of memory"};
    struct hfn_claim *claim = NULL;
    napi_value args[HFN_ARGS], one;
    struct hfn_client *c;
    struct hfn_opts opts;
    uint32_t i, n = 0;
    char **keys;
    hf_status st = HF_NOMEM;

    hfn_args(env, info, args);
    c = hfn_client_get(env, args[0]);
    if (!c)
        return NULL;
    napi_get_array_length(env, args[2], &n);
    hfn_get_opts(env, args[3], &opts);
    keys = calloc(n, sizeof(*keys));
    for (i = 0; keys && i < n; i++) {
        one = NULL; /* and it stays so in a worker that is terminated */
        napi_get_element(env, args[2], i, &one);
        keys[i] = hfn_get_text(env, one);
        if (!keys[i])
            break;
    }
    if (keys && i == n)
        claim = hfn_claim_new(c, n, hfn_get_id(env, args[1]));
    if (claim)
        st = claim_start(claim, keys, &opts, &err);
    while (i > 0)
        free(keys[--i]);
    free(keys);
    if (st) {
        hfn_claim_free(claim);
        return hfn_throw(env, &err);
    }
    hfn_busy(c, 1);
    return NULL;
}

/* The claim of (client, id, ...); NULL: it has ended. */
static struct hfn_claim *claim_find(napi_env env, napi_callback_info info,
                                    napi_value args[HFN_ARGS])
{
    struct hfn_client *c;

    hfn_args(env, info, args);
    c = hfn_client_open(env, args[0]);
    return c ? hfn_claim_find(c, hfn_get_id(env, args[1])) : NULL;
}

/* cancel(client, id): if it has not ended */
napi_value hfn_cancel(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim = claim_find(env, info, args);

    if (claim && claim->request)
        hf_request_cancel(claim->request);
    return NULL;
}

/* ---- answers ------------------------------------------------------------ */

/* A claim of (client, id, key, ...), or throw. */
static struct hfn_claim *claim_asking(napi_env env, napi_callback_info info,
                                      napi_value args[HFN_ARGS])
{
    struct hfn_claim *claim;
    struct hfn_client *c;

    hfn_args(env, info, args);
    c = hfn_client_get(env, args[0]);
    if (!c)
        return NULL;
    claim = hfn_claim_new(c, 0, hfn_get_id(env, args[1]));
    if (claim)
        claim->key = hfn_get_text(env, args[2]);
    if (claim && claim->key)
        return claim;
    hfn_claim_free(claim);
    hfn_throw(env, &(struct hf_error){HF_NOMEM, 0, "out of memory"});
    return NULL;
}

/* The request is under way, or was refused. */
static napi_value claim_asked(napi_env env, struct hfn_claim *claim,
                              hf_status st, const struct hf_error *err)
{
    if (!st) {
        hfn_busy(claim->client, 1);
        return NULL;
    }
    hfn_claim_free(claim);
    return hfn_throw(env, err);
}

/* inspect(client, id, key) */
napi_value hfn_inspect(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim = claim_asking(env, info, args);
    struct hf_error err;

    if (!claim)
        return NULL;
    claim->info = (struct hf_info)HF_INFO_INIT;
    return claim_asked(env, claim,
                       hf_inspect_start(claim->client->client, claim->key,
                                        &claim->info, claim_user(claim),
                                        &claim->request, &err),
                       &err);
}

/* check(client, id, key, fence) */
napi_value hfn_check(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim = claim_asking(env, info, args);
    struct hf_error err;

    if (!claim)
        return NULL;
    return claim_asked(env, claim,
                       hf_check_start(claim->client->client, claim->key,
                                      hfn_get_fence(env, args[3]),
                                      claim_user(claim), &claim->request, &err),
                       &err);
}

/* list(client, id, prefix) */
napi_value hfn_list(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim = claim_asking(env, info, args);
    struct hf_error err;

    if (!claim)
        return NULL;
    claim->lists = true;
    return claim_asked(env, claim,
                       hf_list_start(claim->client->client, claim->key,
                                     claim_user(claim), &claim->request, &err),
                       &err);
}

static napi_value claim_listed(napi_env env, hf_request *request)
{
    struct hf_change change = HF_CHANGE_INIT;
    napi_value ret = NULL;
    uint32_t n = 0;

    napi_create_array(env, &ret);
    while (hf_list_next(request, &change))
        napi_set_element(env, ret, n++,
                         hfn_info(env, change.key, &change.info));
    return ret;
}

napi_value hfn_claim_answer(napi_env env, struct hfn_claim *claim,
                            const struct hf_event *event)
{
    napi_value ret = NULL;

    if (claim->lists)
        return claim_listed(env, event->request);
    if (claim->info.size)
        return hfn_info(env, claim->key, &claim->info);
    napi_get_undefined(env, &ret);
    return ret;
}

/* ---- observers ---------------------------------------------------------- */

/* observe(client, id, key, prefix) */
napi_value hfn_observe(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim = claim_asking(env, info, args);
    struct hf_error err;

    if (!claim)
        return NULL;
    if (hf_observe_start(claim->client->client, claim->key,
                         hfn_get_bool(env, args[3]) ? HF_PREFIX : 0,
                         claim_user(claim), &claim->observer, &err)) {
        hfn_claim_free(claim);
        return hfn_throw(env, &err);
    }
    return NULL;
}

/* change(client, id): the next one, or undefined */
napi_value hfn_change(napi_env env, napi_callback_info info)
{
    struct hf_change change = HF_CHANGE_INIT;
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim = claim_find(env, info, args);

    if (!claim || !claim->observer ||
        !hf_observer_next(claim->observer, &change))
        return NULL;
    return hfn_info(env, change.key, &change.info);
}

/* unobserve(client, id) */
napi_value hfn_unobserve(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim = claim_find(env, info, args);

    if (!claim || !claim->observer)
        return NULL;
    hf_observe_stop(claim->observer);
    hfn_claim_free(claim);
    return NULL;
}

/* busy(client, change): somebody waits for a change, or no longer */
napi_value hfn_busily(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_client *c;

    hfn_args(env, info, args);
    c = hfn_client_open(env, args[0]);
    if (c)
        hfn_busy(c, (int)hfn_get_number(env, args[1]));
    return NULL;
}

/* ---- locks -------------------------------------------------------------- */

/* release(client, claim, index, id): will there be an answer? */
napi_value hfn_release(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *answer;
    struct hfn_client *c;
    hf_lock *lock;

    hfn_args(env, info, args);
    lock = hfn_lock_get(env, args, true, &c);
    if (!lock)
        return NULL;
    answer = hfn_claim_new(c, 0, hfn_get_id(env, args[3]));
    if (!answer) {
        hf_release_start(lock, NULL, NULL);
        return hfn_bool(env, false);
    }
    hf_release_start(lock, claim_user(answer), &answer->request);
    if (!answer->request) {
        hfn_claim_free(answer);
        return hfn_bool(env, false);
    }
    hfn_busy(c, 1);
    return hfn_bool(env, true);
}

/* The lock of (client, claim, index); NULL if that has ended. */
static const hf_lock *claim_look(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim = claim_find(env, info, args);
    hf_lock **at = claim_lock(claim, env, args[2]);

    return at ? *at : NULL;
}

napi_value hfn_held(napi_env env, napi_callback_info info)
{
    const hf_lock *lock = claim_look(env, info);

    return hfn_bool(env, lock && hf_held(lock));
}

napi_value hfn_reason(napi_env env, napi_callback_info info)
{
    const hf_lock *lock = claim_look(env, info);
    hf_loss reason = lock ? hf_lost_reason(lock) : HF_LOSS_CLOSED;

    return hfn_text(env, hf_loss_name(reason));
}

/* Infinity where the service never takes it away. */
napi_value hfn_remaining(napi_env env, napi_callback_info info)
{
    const hf_lock *lock = claim_look(env, info);
    int64_t ms = lock ? hf_remaining_ms(lock) : 0;

    return hfn_number(env, ms == INT64_MAX ? (double)1e308 * 10 : (double)ms);
}

/* What does not change: [token, fence, slot] */
napi_value hfn_token(napi_env env, napi_callback_info info)
{
    const hf_lock *lock = claim_look(env, info);
    napi_value ret = NULL;

    if (!lock)
        return NULL;
    napi_create_array_with_length(env, 3, &ret);
    napi_set_element(env, ret, 0, hfn_text(env, hf_token(lock)));
    napi_set_element(env, ret, 1, hfn_fence(env, hf_fence(lock)));
    napi_set_element(env, ret, 2, hfn_number(env, hf_slot(lock)));
    return ret;
}
