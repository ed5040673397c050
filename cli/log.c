/* SPDX-License-Identifier: MIT
 *
 * log.c - $HOLDFAST_LOG: what the library does in the background, as messages.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

static const char *const log_levels[] = {"error", "warning", "info", "debug"};

static void log_say(void *arg, hf_log_level level, const char *text)
{
    (void)arg;
    cli_say("%s: %s", log_levels[level - HF_LOG_ERROR], text);
}

const struct hf_client_opts *log_opts(void)
{
    static struct hf_client_opts opts = HF_CLIENT_OPTS_INIT;
    const char *name = getenv("HOLDFAST_LOG");
    size_t i;

    if (!name || !*name || opts.log)
        return &opts;
    for (i = 0; i < sizeof(log_levels) / sizeof(log_levels[0]); i++)
        if (!strcmp(name, log_levels[i])) {
            opts.log = log_say;
            opts.log_level = (hf_log_level)(HF_LOG_ERROR + i);
        }
    if (!opts.log)
        cli_say("HOLDFAST_LOG: expected error, warning, info or debug");
    return &opts;
}
