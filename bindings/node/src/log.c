/* SPDX-License-Identifier: MIT
 *
 * log.c - what the library says, in JavaScript.
 *
 * The library calls from any of its threads, and must not be kept waiting.  A
 * line is copied and handed to a thread-safe function; when a program is too
 * busy to read, lines beyond LOG_LINES are dropped.  It keeps no process alive.
 */
#include "addon.h"

#include <stdlib.h>
#include <string.h>

enum { LOG_LINES = 1000 };

struct log_line {
    hf_log_level level;
    char text[];
};

static const char *log_level(hf_log_level level)
{
    static const char *const names[] = {"error", "warning", "info", "debug"};

    return names[level - HF_LOG_ERROR];
}

static void log_call(napi_env env, napi_value fn, void *context, void *data)
{
    struct log_line *line = data;
    napi_value args[2], undefined, error = NULL;

    (void)context;
    if (env) {
        args[0] = hfn_text(env, log_level(line->level));
        args[1] = hfn_text(env, line->text);
        napi_get_undefined(env, &undefined);
        if (napi_call_function(env, undefined, fn, 2, args, NULL) ==
                napi_pending_exception &&
            napi_get_and_clear_last_exception(env, &error) == napi_ok)
            napi_fatal_exception(env, error);
    }
    free(line);
}

napi_threadsafe_function hfn_log_new(napi_env env, napi_value fn)
{
    napi_threadsafe_function log = NULL;
    napi_valuetype type;

    if (napi_typeof(env, fn, &type) != napi_ok || type != napi_function)
        return NULL;
    if (napi_create_threadsafe_function(
            env, fn, NULL, hfn_text(env, "holdfast log"), LOG_LINES, 1, NULL,
            NULL, NULL, log_call, &log) == napi_ok)
        napi_unref_threadsafe_function(env, log);
    return log;
}

void hfn_log_free(napi_threadsafe_function log)
{
    if (log)
        napi_release_threadsafe_function(log, napi_tsfn_release);
}

void hfn_log(void *arg, hf_log_level level, const char *text)
{
    size_t size = strlen(text) + 1;
    struct log_line *line = malloc(sizeof(*line) + size);

    if (!line)
        return;
    line->level = level;
    memcpy(line->text, text, size);
    if (napi_call_threadsafe_function(arg, line, napi_tsfn_nonblocking) !=
        napi_ok)
        free(line);
}
