/* SPDX-License-Identifier: MIT
 *
 * addon.c - the functions that index.js finds.
 */
#include "addon.h"

struct addon_kinds {
    napi_env env;
    napi_value array;
    uint32_t n;
};

static bool addon_kind(void *arg, const struct hf_service_kind *kind)
{
    struct addon_kinds *kinds = arg;
    napi_env env = kinds->env;
    napi_value one = NULL;

    napi_create_object(env, &one);
    hfn_set(env, one, "name", hfn_text(env, kind->name));
    hfn_set(env, one, "schemes", hfn_text(env, kind->schemes));
    hfn_set(env, one, "module", hfn_text(env, kind->module));
    hfn_set(env, one, "missing", hfn_text(env, kind->missing));
    if (!*kind->missing) {
        hfn_set(env, one, "options", hfn_text(env, kind->options));
        hfn_set(env, one, "page", hfn_text(env, kind->page));
        hfn_set(env, one, "tested", hfn_text(env, kind->tested));
        hfn_set(env, one, "traits", hfn_traits(env, kind->traits));
        hfn_set(env, one, "varies", hfn_traits(env, kind->varies));
    }
    napi_set_element(env, kinds->array, kinds->n++, one);
    return true;
}

/* services(): no server is asked */
static napi_value addon_services(napi_env env, napi_callback_info info)
{
    struct addon_kinds kinds = {env, NULL, 0};
    struct hf_error err;

    (void)info;
    napi_create_array(env, &kinds.array);
    if (hf_services(addon_kind, &kinds, &err))
        return hfn_throw(env, &err);
    return kinds.array;
}

static napi_value addon_error_class(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];

    hfn_args(env, info, args);
    hfn_set_error_class(env, args[0]);
    return NULL;
}

/* uncaught(error): as if nobody had caught it */
static napi_value addon_uncaught(napi_env env, napi_callback_info info)
{
    napi_value args[HFN_ARGS];

    hfn_args(env, info, args);
    napi_fatal_exception(env, args[0]);
    return NULL;
}

/* The macro defines it and declares nothing. */
NAPI_MODULE_EXPORT int32_t node_api_module_get_api_version_v1(void);

NAPI_MODULE_INIT(/* env, exports */)
{
    static const struct {
        const char *name;
        napi_callback fn;
    } functions[] = {
        {"acquire", hfn_acquire},
        {"attach", hfn_attach},
        {"break", hfn_break},
        {"busy", hfn_busily},
        {"cancel", hfn_cancel},
        {"change", hfn_change},
        {"check", hfn_check},
        {"close", hfn_close},
        {"collect", hfn_collect},
        {"describe", hfn_describe},
        {"detach", hfn_detach},
        {"downgrade", hfn_downgrade},
        {"errorClass", addon_error_class},
        {"extend", hfn_extend},
        {"handleExtend", hfn_handle_extend},
        {"handleRelease", hfn_handle_release},
        {"held", hfn_held},
        {"holders", hfn_holders},
        {"inspect", hfn_inspect},
        {"list", hfn_list},
        {"observe", hfn_observe},
        {"open", hfn_open},
        {"reason", hfn_reason},
        {"release", hfn_release},
        {"remaining", hfn_remaining},
        {"services", addon_services},
        {"stats", hfn_stats},
        {"statsText", hfn_stats_text},
        {"token", hfn_token},
        {"transfer", hfn_transfer},
        {"uncaught", addon_uncaught},
        {"unobserve", hfn_unobserve},
        {"waiters", hfn_waiters},
    };
    napi_value fn = NULL;
    size_t i;

    for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        napi_create_function(env, functions[i].name, NAPI_AUTO_LENGTH,
                             functions[i].fn, NULL, &fn);
        hfn_set(env, exports, functions[i].name, fn);
    }
    hfn_set(env, exports, "version", hfn_text(env, hf_version()));
    return exports;
}
