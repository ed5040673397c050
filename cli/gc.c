/* SPDX-License-Identifier: MIT
 *
 * gc.c - `holdfast gc`: remove what keys that are free have left in the service.
 *
 * Clients do the same in small steps while they work.  This is for a service
 * that nobody uses for a while, and for whoever wants to see how much there is.
 * Where nothing stays there is nothing to do, and that is no failure.
 */
#include "cli.h"

#include <inttypes.h>

#define GC_OLDER_MS (INT64_C(7) * 24 * 3600 * 1000) /* as keep= of a URL */

static int gc_print(const struct cli_opts *opts,
                    const struct hf_collected *found)
{
    struct cli_json json;

    if (opts->json) {
        cli_json_open(&json, stdout);
        cli_json_num(&json, "looked_at", (int64_t)found->looked_at);
        cli_json_num(&json, "removed", (int64_t)found->removed);
        cli_json_num(&json, "kept", (int64_t)found->kept);
        cli_json_bool(&json, "dry_run", opts->dry_run);
        cli_json_close(&json);
        putchar('\n');
    } else if (!opts->quiet) {
        printf("%s %" PRIu64 " of %" PRIu64 " entries, kept %" PRIu64 "\n",
               opts->dry_run ? "would remove" : "removed", found->removed,
               found->looked_at, found->kept);
    }
    return cli_done();
}

int cmd_gc(struct cli_opts *opts)
{
    struct hf_collected found = HF_COLLECTED_INIT;
    int64_t older = opts->older_ms < 0 ? GC_OLDER_MS : opts->older_ms;
    struct hf_service svc;
    struct hf_error err;
    hf_client *client;
    hf_status st;
    int code;

    if (opts->nargs)
        return cli_usage(opts->cmd,
                         "'gc' takes no arguments: it removes what is left of "
                         "all keys that are free");
    code = cli_open(opts, &client, &svc);
    if (code)
        return code;
    st = hf_collect(client, older, opts->dry_run, &found, &err);
    if (st == HF_UNSUPPORTED && !opts->quiet)
        cli_say("%s", err.text);
    if (st && st != HF_UNSUPPORTED)
        code = cli_fail(&err);
    else if (!st || opts->json)
        code = gc_print(opts, &found);
    cli_close(client);
    return code;
}
