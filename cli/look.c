/* SPDX-License-Identifier: MIT
 *
 * look.c - check, status, ls, watch, break: looking and mending.
 *
 * What these print is a photograph: it may be outdated when it is read.  So the
 * one command that changes something, `break`, wants the fence that `status`
 * showed and takes away that very grant or none.
 *
 * Exit statuses: `status`, `ls` and `watch` answer 0 whether a lock is held or
 * not, since both are answers; `check` and `break` answer 79 if the grant that
 * was named is not the present one.
 */
#include "cli.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>

/* One KEY and the service; CLI_OK or the exit status. */
static int look_open(struct cli_opts *opts, hf_client **ret)
{
    struct hf_service svc;

    if (opts->nargs != 1)
        return cli_usage(opts->cmd, "one KEY is needed");
    if ((opts->cmd->bit & (IN_CHECK | IN_BREAK)) && !opts->has_fence)
        return cli_usage(opts->cmd,
                         "--fence N is needed ('holdfast status' shows it)");
    return cli_open(opts, ret, &svc);
}

/* The outcome of check and break: silence, or a line if that was asked for. */
static int look_verdict(const struct cli_opts *opts, hf_status st,
                        const struct hf_error *err, const char *word)
{
    struct cli_json json;

    if (opts->json && (st == HF_OK || st == HF_LOST)) {
        cli_json_open(&json, stdout);
        cli_json_str(&json, "key", opts->args[0]);
        cli_json_num(&json, "fence", (int64_t)opts->fence);
        cli_json_bool(&json, word, st == HF_OK);
        cli_json_close(&json);
        putchar('\n');
        return cli_done() ? CLI_FAILED : cli_exit_of(st);
    }
    if (st == HF_LOST && opts->quiet)
        return CLI_LOST;
    return st ? cli_fail(err) : CLI_OK;
}

int cmd_check(struct cli_opts *opts)
{
    struct hf_error err = {.status = HF_OK};
    hf_client *client;
    int code = look_open(opts, &client);

    if (code)
        return code;
    code =
        look_verdict(opts, hf_check(client, opts->args[0], opts->fence, &err),
                     &err, "stands");
    cli_close(client);
    return code;
}

int cmd_break(struct cli_opts *opts)
{
    struct hf_error err = {.status = HF_OK};
    hf_client *client;
    int code = look_open(opts, &client);

    if (code)
        return code;
    code =
        look_verdict(opts, hf_break(client, opts->args[0], opts->fence, &err),
                     &err, "broken");
    if (!code && opts->verbose)
        cli_say("broke '%s' (fence %" PRIu64 ")", opts->args[0], opts->fence);
    cli_close(client);
    return code;
}

/* "held by NOTE, fence 812, for 4m12s, lease 8s left, 2 waiting". */
static void look_sentence(const struct hf_info *info)
{
    char text[4 * HF_NOTE_MAX + 1], ago[32];

    if (!info->held) {
        printf("free");
        if (info->fence)
            printf(", last fence %" PRIu64, info->fence);
    } else {
        cli_clean(info->note[0] ? info->note : info->owner, text, sizeof(text));
        printf("held%s by %s", info->shared ? " (shared)" : "",
               text[0] ? text : "somebody");
        if (info->holders > 1)
            printf(" and %d more", (int)info->holders - 1);
        printf(", fence %" PRIu64, info->fence);
        if (info->since_ms >= 0)
            printf(", for %s", cli_ago(info->since_ms, ago));
        if (info->left_ms >= 0)
            printf(", lease %s left", cli_ago(info->left_ms, ago));
        if (info->takeover_ms > 0)
            printf(", passes on %s after a death at the latest",
                   cli_ago(info->takeover_ms, ago));
    }
    if (info->waiters > 0)
        printf(", %d waiting", (int)info->waiters);
}

/* One line about one lock, in either form. */
static void look_line(const struct cli_opts *opts, const char *key,
                      const struct hf_info *info)
{
    char text[4 * HF_KEY_MAX + 1];
    struct cli_json json;

    if (opts->json) {
        cli_json_open(&json, stdout);
        cli_json_info(&json, key, info);
        cli_json_close(&json);
    } else {
        cli_clean(key, text, sizeof(text));
        printf("%s: ", text);
        look_sentence(info);
    }
    putchar('\n');
}

int cmd_status(struct cli_opts *opts)
{
    struct hf_info info = HF_INFO_INIT;
    struct hf_error err;
    hf_client *client;
    int code = look_open(opts, &client);

    if (code)
        return code;
    if (hf_inspect(client, opts->args[0], &info, &err)) {
        code = cli_fail(&err);
    } else {
        look_line(opts, opts->args[0], &info);
        code = cli_done();
    }
    cli_close(client);
    return code;
}

struct look_list {
    const struct cli_opts *opts;
    bool more;
};

static bool look_each(void *arg, const char *key, const struct hf_info *info)
{
    struct look_list *list = arg;
    struct cli_json json;

    if (!list->opts->json) {
        look_line(list->opts, key, info);
        return true;
    }
    fputs(list->more ? ",\n " : "", stdout);
    list->more = true;
    cli_json_open(&json, stdout);
    cli_json_info(&json, key, info);
    cli_json_close(&json);
    return true;
}

int cmd_ls(struct cli_opts *opts)
{
    struct look_list list = {opts, false};
    struct hf_service svc;
    struct hf_error err;
    hf_client *client;
    int code;

    if (opts->nargs > 1)
        return cli_usage(opts->cmd, "at most one PREFIX is taken");
    code = cli_open(opts, &client, &svc);
    if (code)
        return code;
    fputs(opts->json ? "[" : "", stdout);
    if (hf_list(client, opts->args[0], look_each, &list, &err))
        code = cli_fail(&err);
    fputs(opts->json ? "]\n" : "", stdout);
    if (cli_done())
        code = CLI_FAILED;
    cli_close(client);
    return code;
}

/* Whether two photographs show different holders. */
static bool look_changed(const struct hf_info *a, const struct hf_info *b)
{
    return a->held != b->held || a->fence != b->fence ||
           strcmp(a->owner, b->owner);
}

int cmd_watch(struct cli_opts *opts)
{
    struct hf_info info = HF_INFO_INIT, last = HF_INFO_INIT;
    int64_t pause = opts->retry_ms ? opts->retry_ms : 1000;
    struct hf_error err;
    hf_client *client;
    bool first = true;
    int code = look_open(opts, &client);

    if (code)
        return code;
    while (!code) {
        if (hf_inspect(client, opts->args[0], &info, &err)) {
            code = cli_fail(&err);
            break;
        }
        if (first || look_changed(&info, &last)) {
            look_line(opts, opts->args[0], &info);
            code = cli_done();
        }
        first = false;
        last = info;
        poll(NULL, 0, pause < 3600000 ? (int)pause : 3600000);
    }
    cli_close(client);
    return code;
}
