/* SPDX-License-Identifier: MIT
 *
 * value.c - between JavaScript's values and those of C.
 *
 * index.js checks what a user passes, so a value of another type is our own bug
 * here: it reads as zero, false or "".  What a Node-API function answers is
 * ignored where all that can be wrong is an environment that is coming down.
 */
#include "addon.h"

#include <stdlib.h>
#include <string.h>

void hfn_args(napi_env env, napi_callback_info info, napi_value args[HFN_ARGS])
{
    size_t n = HFN_ARGS;

    napi_get_cb_info(env, info, &n, args, NULL, NULL);
}

napi_value hfn_number(napi_env env, double number)
{
    napi_value ret = NULL;

    napi_create_double(env, number, &ret);
    return ret;
}

napi_value hfn_text(napi_env env, const char *text)
{
    napi_value ret = NULL;

    napi_create_string_utf8(env, text, NAPI_AUTO_LENGTH, &ret);
    return ret;
}

napi_value hfn_bool(napi_env env, bool value)
{
    napi_value ret = NULL;

    napi_get_boolean(env, value, &ret);
    return ret;
}

napi_value hfn_fence(napi_env env, uint64_t fence)
{
    napi_value ret = NULL;

    napi_create_bigint_uint64(env, fence, &ret);
    return ret;
}

void hfn_set(napi_env env, napi_value object, const char *name,
             napi_value value)
{
    napi_set_named_property(env, object, name, value);
}

double hfn_get_number(napi_env env, napi_value value)
{
    double ret = 0;

    napi_get_value_double(env, value, &ret);
    return ret;
}

uint64_t hfn_get_id(napi_env env, napi_value value)
{
    int64_t ret = 0;

    napi_get_value_int64(env, value, &ret);
    return ret > 0 ? (uint64_t)ret : 0;
}

bool hfn_get_bool(napi_env env, napi_value value)
{
    bool ret = false;

    napi_get_value_bool(env, value, &ret);
    return ret;
}

uint64_t hfn_get_fence(napi_env env, napi_value value)
{
    uint64_t ret = 0;
    bool whole;

    napi_get_value_bigint_uint64(env, value, &ret, &whole);
    return ret;
}

char *hfn_get_text(napi_env env, napi_value value)
{
    size_t len;
    char *text;

    if (napi_get_value_string_utf8(env, value, NULL, 0, &len) != napi_ok)
        return NULL;
    text = malloc(len + 1);
    if (!text)
        return NULL;
    napi_get_value_string_utf8(env, value, text, len + 1, &len);
    if (strlen(text) == len)
        return text;
    free(text);
    return NULL;
}

bool hfn_copy_text(napi_env env, napi_value value, char *buf, size_t size)
{
    size_t len = 0;

    buf[0] = 0;
    return napi_get_value_string_utf8(env, value, buf, size, &len) == napi_ok &&
           len < size - 1 && strlen(buf) == len;
}

napi_value hfn_property(napi_env env, napi_value object, const char *name)
{
    napi_value ret = NULL;

    napi_get_named_property(env, object, name, &ret);
    return ret;
}

static napi_value value_element(napi_env env, napi_value array, uint32_t i)
{
    napi_value ret = NULL;

    napi_get_element(env, array, i, &ret);
    return ret;
}

/* A note or an owner id.  One that is too long stays too long, so that the
 * library refuses it. */
static const char *value_text(napi_env env, napi_value value, char *buf,
                              size_t size)
{
    size_t len;

    if (napi_get_value_string_utf8(env, value, buf, size, &len) != napi_ok)
        return NULL;
    return buf;
}

/* Where lockOptions() of arguments.js puts the numbers. */
enum {
    OPTS_FLAGS,
    OPTS_WAIT,
    OPTS_TTL,
    OPTS_RETRY,
    OPTS_LINGER,
    OPTS_MAX_HOLD,
    OPTS_MIN_HOLD,
    OPTS_PERMITS,
    OPTS_TRIES,
    OPTS_LOCAL_TURNS,
    OPTS_NUMBERS
};

void hfn_get_opts(napi_env env, napi_value array, struct hfn_opts *ret)
{
    static const struct hf_lock_opts none = HF_LOCK_OPTS_INIT;
    static const double zeros[OPTS_NUMBERS];
    struct hf_lock_opts *o = &ret->opts;
    napi_typedarray_type type = napi_int8_array;
    size_t n = 0;
    void *data = NULL;
    const double *numbers;

    napi_get_typedarray_info(env, value_element(env, array, 0), &type, &n,
                             &data, NULL, NULL);
    numbers = type == napi_float64_array && n == OPTS_NUMBERS ? data : zeros;
    *o = none;
    ret->wait_ms = (int64_t)numbers[OPTS_WAIT];
    o->ttl_ms = (int64_t)numbers[OPTS_TTL];
    o->flags = (unsigned)numbers[OPTS_FLAGS];
    o->max_tries = (int32_t)numbers[OPTS_TRIES];
    o->retry_ms = (int64_t)numbers[OPTS_RETRY];
    o->linger_ms = (int64_t)numbers[OPTS_LINGER];
    o->max_hold_ms = (int64_t)numbers[OPTS_MAX_HOLD];
    o->local_turns = (int32_t)numbers[OPTS_LOCAL_TURNS];
    o->permits = (int32_t)numbers[OPTS_PERMITS];
    o->min_hold_ms = (int64_t)numbers[OPTS_MIN_HOLD];
    o->owner = value_text(env, value_element(env, array, 1), ret->owner,
                          sizeof(ret->owner));
    o->note = value_text(env, value_element(env, array, 2), ret->note,
                         sizeof(ret->note));
}

void hfn_get_handle(napi_env env, napi_value object, struct hf_handle *ret)
{
    *ret = (struct hf_handle)HF_HANDLE_INIT;
    hfn_copy_text(env, hfn_property(env, object, "token"), ret->token,
                  sizeof(ret->token));
    hfn_copy_text(env, hfn_property(env, object, "ref"), ret->ref,
                  sizeof(ret->ref));
    ret->fence = hfn_get_fence(env, hfn_property(env, object, "fence"));
}

/* A number that is null where it is not known. */
static napi_value value_known(napi_env env, int64_t number)
{
    napi_value ret = NULL;

    if (number >= 0)
        return hfn_number(env, (double)number);
    napi_get_null(env, &ret);
    return ret;
}

napi_value hfn_info(napi_env env, const char *key, const struct hf_info *info)
{
    napi_value ret = NULL;

    napi_create_object(env, &ret);
    hfn_set(env, ret, "key", hfn_text(env, key));
    hfn_set(env, ret, "held", hfn_bool(env, info->held));
    hfn_set(env, ret, "shared", hfn_bool(env, info->shared));
    hfn_set(env, ret, "fence", hfn_fence(env, info->fence));
    hfn_set(env, ret, "left", value_known(env, info->left_ms));
    hfn_set(env, ret, "since", value_known(env, info->since_ms));
    hfn_set(env, ret, "holders", hfn_number(env, info->holders));
    hfn_set(env, ret, "waiters", value_known(env, info->waiters));
    hfn_set(env, ret, "owner", hfn_text(env, info->owner));
    hfn_set(env, ret, "note", hfn_text(env, info->note));
    hfn_set(env, ret, "takeover",
            value_known(env, info->takeover_ms ? info->takeover_ms : -1));
    hfn_set(env, ret, "broken", hfn_bool(env, info->broken));
    hfn_set(env, ret, "kept", hfn_bool(env, info->kept));
    hfn_set(env, ret, "permits",
            value_known(env, info->permits ? info->permits : -1));
    hfn_set(env, ret, "slot", value_known(env, info->slot));
    return ret;
}

napi_value hfn_waiter(napi_env env, const struct hf_waiter *waiter)
{
    napi_value ret = NULL;

    napi_create_object(env, &ret);
    hfn_set(env, ret, "place", hfn_number(env, waiter->place));
    hfn_set(env, ret, "permits",
            value_known(env, waiter->permits ? waiter->permits : -1));
    hfn_set(env, ret, "shared", hfn_bool(env, waiter->shared));
    hfn_set(env, ret, "since", value_known(env, waiter->since_ms));
    hfn_set(env, ret, "left", value_known(env, waiter->left_ms));
    hfn_set(env, ret, "owner", hfn_text(env, waiter->owner));
    hfn_set(env, ret, "note", hfn_text(env, waiter->note));
    return ret;
}

/* The names of the bits, in their order. */
static const char *const value_traits[] = {
    "fenced",    "leased", "queued", "notify",    "shared",
    "reentrant", "detach", "break",  "processes", "machines",
    "death",     "twice",  "noted",  "permits",   "minHold",
};

napi_value hfn_traits(napi_env env, unsigned traits)
{
    napi_value ret = NULL;
    uint32_t i, n = 0;

    napi_create_array(env, &ret);
    for (i = 0; i < sizeof(value_traits) / sizeof(value_traits[0]); i++)
        if (traits & 1u << i)
            napi_set_element(env, ret, n++, hfn_text(env, value_traits[i]));
    return ret;
}

/* ---- errors ------------------------------------------------------------- */

static void value_unref(napi_env env, void *data, void *hint)
{
    (void)hint;
    napi_delete_reference(env, data);
}

void hfn_set_error_class(napi_env env, napi_value constructor)
{
    napi_ref ref = NULL;

    napi_create_reference(env, constructor, 1, &ref);
    napi_set_instance_data(env, ref, value_unref, NULL);
}

napi_value hfn_error(napi_env env, const struct hf_error *err)
{
    napi_value class = NULL, ret = NULL;
    napi_value args[] = {
        hfn_text(env, hf_status_name(err->status)),
        hfn_text(env, err->text),
        hfn_number(env, err->sys_errno),
    };
    void *ref = NULL;

    napi_get_instance_data(env, &ref);
    napi_get_reference_value(env, ref, &class);
    napi_new_instance(env, class, 3, args, &ret);
    return ret;
}

napi_value hfn_throw(napi_env env, const struct hf_error *err)
{
    napi_throw(env, hfn_error(env, err));
    return NULL;
}
