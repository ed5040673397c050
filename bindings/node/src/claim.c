/* SPDX-License-Identifier: MIT
 *
 * claim.c - requests, and the locks or answers that they get.
 *
 * A claim is the user pointer of its request and of its locks, so an event finds
 * it.  JavaScript names each lock by a number: a claim of n locks has n numbers
 * in a row from `id` on.  A claim ends with its last lock.  A lock that was
 * attached has no user pointer, and is found by looking through all claims.
 */
#include "addon.h"

#include <stdlib.h>

/* ---- claims ------------------------------------------------------------- */

struct hfn_claim *hfn_claim_new(struct hfn_client *c, size_t n, double id)
{
    struct hfn_claim *claim =
        calloc(1, sizeof(*claim) + n * sizeof(claim->locks[0]));

    if (!claim)
        return NULL;
    claim->client = c;
    claim->n = n;
    claim->id = id;
    claim->next = c->claims;
    claim->at = &c->claims;
    if (claim->next)
        claim->next->at = &claim->next;
    c->claims = claim;
    return claim;
}

void hfn_claim_free(struct hfn_claim *claim)
{
    if (!claim)
        return;
    *claim->at = claim->next;
    if (claim->next)
        claim->next->at = claim->at;
    free(claim->key);
    free(claim);
}

static bool claim_index(const struct hfn_claim *claim, const hf_lock *lock,
                        size_t *ret)
{
    for (*ret = 0; *ret < claim->n; ++*ret)
        if (claim->locks[*ret] == lock)
            return true;
    return false;
}

/* Whom an event is about; *id is 0 if that has ended. */
void hfn_claim_event(struct hfn_client *c, const struct hf_event *event,
                     double *id, struct hfn_claim **ret)
{
    struct hfn_claim *claim = event->user;
    size_t index = 0;

    *id = 0;
    *ret = claim;
    if (event->type == HF_GRANTED || event->type == HF_FAILED ||
        event->type == HF_ANSWERED) {
        hfn_busy(c, -1);
        claim->request = NULL;
        if (claim->n == 1)
            claim->locks[0] = event->lock;
        claim->left = claim->n;
    } else if (event->type == HF_CHANGED) {
        index = 0;
    } else if (claim) {
        if (!claim_index(claim, event->lock, &index))
            return;
    } else {
        for (claim = c->claims; claim; claim = claim->next)
            if (claim_index(claim, event->lock, &index))
                break;
        if (!claim)
            return;
    }
    *id = claim->id + (double)index;
}

hf_lock *hfn_claim_take(struct hfn_claim *claim, size_t index)
{
    hf_lock *lock = claim->locks[index];

    claim->locks[index] = NULL;
    if (--claim->left == 0)
        hfn_claim_free(claim);
    return lock;
}

/* ---- requests ----------------------------------------------------------- */

/* Begin to acquire the keys; the library copies them. */
static hf_status claim_start(struct hfn_claim *claim, char **keys,
                             const struct hfn_opts *o, struct hf_error *err)
{
    hf_client *client = claim->client->client;

    if (claim->n == 1)
        return hf_acquire_start(client, keys[0], o->wait_ms, &o->opts, claim,
                                &claim->request, err);
    return hf_acquire_all_start(client, (const char *const *)keys, claim->n,
                                o->wait_ms, &o->opts, claim->locks, claim,
                                &claim->request, err);
}

/* acquire(client, id, keys, options): an external */
napi_value hfn_acquire(napi_env env, napi_callback_info info)
{
    struct hf_error err = {HF_NOMEM, 0, "out of memory"};
    struct hfn_claim *claim = NULL;
    napi_value args[HFN_ARGS], ret = NULL, one;
    struct hfn_opts opts;
    uint32_t i, n = 0;
    char **keys;
    hf_status st = HF_NOMEM;

    hfn_args(env, info, args);
    napi_get_array_length(env, args[2], &n);
    hfn_get_opts(env, args[3], &opts);
    keys = calloc(n, sizeof(*keys));
    for (i = 0; keys && i < n; i++) {
        napi_get_element(env, args[2], i, &one);
        keys[i] = hfn_get_text(env, one);
        if (!keys[i])
            break;
    }
    if (keys && i == n)
        claim = hfn_claim_new(hfn_pointer(env, args[0]), n,
                              hfn_get_number(env, args[1]));
    if (claim)
        st = claim_start(claim, keys, &opts, &err);
    while (i > 0)
        free(keys[--i]);
    free(keys);
    if (st) {
        hfn_claim_free(claim);
        return hfn_throw(env, &err);
    }
    hfn_busy(claim->client, 1);
    napi_create_external(env, claim, NULL, NULL, &ret);
    return ret;
}

/* cancel(claim): before its end was delivered */
napi_value hfn_cancel(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim;

    hfn_args(env, info, args);
    claim = hfn_pointer(env, args[0]);
    if (claim->request)
        hf_request_cancel(claim->request);
    return NULL;
}

/* ---- answers ------------------------------------------------------------ */

/* A claim of (client, id, key, ...), or NULL without memory. */
static struct hfn_claim *claim_asking(napi_env env, napi_callback_info info,
                                      napi_value args[HFN_ARGS])
{
    struct hfn_claim *claim;

    hfn_args(env, info, args);
    claim = hfn_claim_new(hfn_pointer(env, args[0]), 0,
                          hfn_get_number(env, args[1]));
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
                                        &claim->info, claim, &claim->request,
                                        &err),
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
                                      hfn_get_fence(env, args[3]), claim,
                                      &claim->request, &err),
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
                       hf_list_start(claim->client->client, claim->key, claim,
                                     &claim->request, &err),
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

/* observe(client, id, key, prefix): an external */
napi_value hfn_observe(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS], ret = NULL;
    struct hfn_claim *claim = claim_asking(env, info, args);
    struct hf_error err;

    if (!claim)
        return NULL;
    if (hf_observe_start(claim->client->client, claim->key,
                         hfn_get_bool(env, args[3]) ? HF_PREFIX : 0, claim,
                         &claim->observer, &err)) {
        hfn_claim_free(claim);
        return hfn_throw(env, &err);
    }
    napi_create_external(env, claim, NULL, NULL, &ret);
    return ret;
}

/* change(claim): the next one, or undefined */
napi_value hfn_change(napi_env env, napi_callback_info info)
{
    struct hf_change change = HF_CHANGE_INIT;
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim;

    hfn_args(env, info, args);
    claim = hfn_pointer(env, args[0]);
    if (!hf_observer_next(claim->observer, &change))
        return NULL;
    return hfn_info(env, change.key, &change.info);
}

napi_value hfn_unobserve(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim;

    hfn_args(env, info, args);
    claim = hfn_pointer(env, args[0]);
    hf_observe_stop(claim->observer);
    hfn_claim_free(claim);
    return NULL;
}

/* busy(claim, change): somebody waits for a change, or no longer */
napi_value hfn_busily(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim;

    hfn_args(env, info, args);
    claim = hfn_pointer(env, args[0]);
    hfn_busy(claim->client, (int)hfn_get_number(env, args[1]));
    return NULL;
}

/* ---- locks -------------------------------------------------------------- */

/* release(claim, index, id): will there be an answer? */
napi_value hfn_release(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim, *answer;
    struct hfn_client *c;
    hf_lock *lock;

    hfn_args(env, info, args);
    claim = hfn_pointer(env, args[0]);
    c = claim->client;
    lock = hfn_claim_take(claim, (size_t)hfn_get_number(env, args[1]));
    answer = hfn_claim_new(c, 0, hfn_get_number(env, args[2]));
    if (!answer) {
        hf_release_start(lock, NULL, NULL);
        return hfn_bool(env, false);
    }
    hf_release_start(lock, answer, &answer->request);
    if (!answer->request) {
        hfn_claim_free(answer);
        return hfn_bool(env, false);
    }
    hfn_busy(c, 1);
    return hfn_bool(env, true);
}

/* The arguments (claim, index) of a call. */
static const hf_lock *claim_lock(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];
    struct hfn_claim *claim;

    hfn_args(env, info, args);
    claim = hfn_pointer(env, args[0]);
    return claim->locks[(size_t)hfn_get_number(env, args[1])];
}

napi_value hfn_held(napi_env env, napi_callback_info info)
{
    return hfn_bool(env, hf_held(claim_lock(env, info)));
}

napi_value hfn_reason(napi_env env, napi_callback_info info)
{
    return hfn_text(env, hf_loss_name(hf_lost_reason(claim_lock(env, info))));
}

/* Infinity where the service never takes it away. */
napi_value hfn_remaining(napi_env env, napi_callback_info info)
{
    int64_t ms = hf_remaining_ms(claim_lock(env, info));

    return hfn_number(env, ms == INT64_MAX ? (double)1e308 * 10 : (double)ms);
}

/* What does not change: [token, fence, slot] */
napi_value hfn_token(napi_env env, napi_callback_info info)
{
    const hf_lock *lock = claim_lock(env, info);
    napi_value ret = NULL;

    napi_create_array_with_length(env, 3, &ret);
    napi_set_element(env, ret, 0, hfn_text(env, hf_token(lock)));
    napi_set_element(env, ret, 1, hfn_fence(env, hf_fence(lock)));
    napi_set_element(env, ret, 2, hfn_number(env, hf_slot(lock)));
    return ret;
}
