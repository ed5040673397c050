/* SPDX-License-Identifier: MIT
 *
 * look.c - check, status, ls, break: looking and mending.
 *
 * What these print is a photograph: it may be outdated when it is read.  So the
 * one command that changes something, `break`, wants the fence that `status`
 * showed and takes away that very grant or none.
 *
 * Exit statuses: `status` answers 0 if the lock is held and 1 if it is free, so
 * that a script can ask; `check` and `break` answer 79 if the grant that was
 * named is not the present one.
 */
#include "cli.h"

#include <inttypes.h>
#include <string.h>

/* One KEY and the service; CLI_OK or the exit status. */
static int look_open(struct cli_opts *opts, hf_client **ret)
{
    struct hf_service svc;
    int code;

    if (opts->nargs != 1)
        return cli_usage(opts->cmd, "'%s' takes one KEY", opts->cmd->name);
    code = cli_key(opts, "the", opts->args[0]);
    if (code)
        return code;
    if ((opts->cmd->bit & (IN_CHECK | IN_BREAK)) && !opts->has_fence)
        return cli_usage(opts->cmd,
                         "'%s' needs --fence N; 'holdfast status' shows it",
                         opts->cmd->name);
    return cli_open(opts, ret, &svc);
}

/* Print the outcome of check as JSON. */
static int look_check_json(const struct cli_opts *opts, hf_status st)
{
    struct cli_json json;

    cli_json_open(&json, stdout);
    cli_json_str(&json, "key", opts->args[0]);
    cli_json_fence(&json, opts->fence);
    cli_json_bool(&json, "stands", st == HF_OK);
    cli_json_close(&json);
    putchar('\n');
    return cli_done() ? CLI_FAILED : cli_exit_of(st);
}

int cmd_check(struct cli_opts *opts)
{
    struct hf_error err = {.status = HF_OK};
    hf_client *client;
    int code = look_open(opts, &client);
    hf_status st;

    if (code)
        return code;
    st = hf_check(client, opts->args[0], opts->fence, &err);
    if (opts->json && (st == HF_OK || st == HF_LOST))
        code = look_check_json(opts, st);
    else if (st == HF_LOST && opts->quiet)
        code = CLI_LOST;
    else if (st)
        code = cli_fail(&err);
    cli_close(client);
    return code;
}

/* For how long a lock that was broken stays taken at most, in ms; -1 until its
 * holder releases it or is dead. */
static int64_t look_most(const struct hf_info *info)
{
    return info->left_ms >= 0 && info->takeover_ms > info->left_ms
               ? info->takeover_ms
               : info->left_ms;
}

/* The same for the one that the options name; 0 if it is free by now. */
static int64_t look_left(const struct cli_opts *opts, hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;

    if (hf_inspect(client, opts->args[0], &info, NULL))
        return -1;
    if (!info.held || info.fence != opts->fence)
        return 0;
    return info.left_ms == 0 ? 1 : look_most(&info);
}

/* Say what became of a lock that was broken, and when others can have it. */
static void look_broken(const struct cli_opts *opts, int64_t left)
{
    char ago[32];

    if (opts->quiet)
        return;
    if (opts->force)
        cli_say("'%s' is free: if its old holder still runs, it may be at work "
                "beside the next one until it notices",
                opts->args[0]);
    else if (left == 0)
        cli_say("broke '%s': its holder has let it go", opts->args[0]);
    else if (left < 0)
        cli_say("broke '%s': its holder is notified; others can have it when "
                "the holder has released it or is dead",
                opts->args[0]);
    else
        cli_say("broke '%s': its holder is notified; others can have it when "
                "the holder has released it, in %s at the latest",
                opts->args[0], cli_ago(left + 999, ago));
}

static int look_break_json(const struct cli_opts *opts, hf_status st,
                           int64_t left)
{
    struct cli_json json;

    cli_json_open(&json, stdout);
    cli_json_str(&json, "key", opts->args[0]);
    cli_json_fence(&json, opts->fence);
    cli_json_bool(&json, "broken", st == HF_OK);
    cli_json_bool(&json, "forced", st == HF_OK && opts->force);
    cli_json_opt(&json, "left_ms", st == HF_OK ? left : -1);
    cli_json_close(&json);
    putchar('\n');
    return cli_done() ? CLI_FAILED : cli_exit_of(st);
}

int cmd_break(struct cli_opts *opts)
{
    struct hf_error err = {.status = HF_OK};
    hf_client *client;
    int code = look_open(opts, &client);
    int64_t left = 0;
    hf_status st;

    if (code)
        return code;
    if (opts->force)
        st = hf_break_force(client, opts->args[0], opts->fence, &err);
    else
        st = hf_break(client, opts->args[0], opts->fence, &err);
    if (st == HF_OK && !opts->force)
        left = look_left(opts, client);
    if (opts->json && (st == HF_OK || st == HF_LOST))
        code = look_break_json(opts, st, left);
    else if (st == HF_OK)
        look_broken(opts, left);
    else if (st == HF_LOST && opts->quiet)
        code = CLI_LOST;
    else
        code = cli_fail(&err);
    cli_close(client);
    return code;
}

/* When a lock that was broken can be had, at the latest. */
static void look_until(const struct hf_info *info)
{
    int64_t left = look_most(info);
    char ago[32];

    if (left >= 0)
        printf(", free when it is released, in %s at the latest",
               cli_ago(left + 999, ago));
    else
        printf(", free when it is released");
}

/* Who it is: the note, else the id. */
static const char *look_who(const struct hf_info *info,
                            char ret[4 * HF_NOTE_MAX + 1])
{
    cli_show(info->note[0] ? info->note : info->owner, ret,
             4 * HF_NOTE_MAX + 1);
    return ret[0] ? ret : "somebody";
}

/* ", fence 812, for 4m12s, lease 8s left". */
static void look_grant(const struct hf_info *info)
{
    char ago[32];

    printf(", fence %" PRIu64, info->fence);
    if (info->kept) {
        printf(", released; kept for another %s",
               info->left_ms >= 0 ? cli_ago(info->left_ms, ago) : "while");
        return;
    }
    if (info->since_ms >= 0)
        printf(", for %s", cli_ago(info->since_ms, ago));
    if (info->broken) {
        look_until(info);
        return;
    }
    if (info->left_ms >= 0)
        printf(", lease %s left", cli_ago(info->left_ms, ago));
    if (info->takeover_ms > 0)
        printf(", passes on %s after a death at the latest",
               cli_ago(info->takeover_ms, ago));
}

/* "held by NOTE and 2 more, fence 812, for 4m12s, lease 8s left". */
static void look_held(const struct hf_info *info)
{
    char text[4 * HF_NOTE_MAX + 1];

    printf("%s%s", info->broken ? "broken, still held" : "held",
           info->shared ? " (shared)" : "");
    if (info->permits)
        printf(" (%d of %d permits)", (int)info->holders, (int)info->permits);
    printf(" by %s", look_who(info, text));
    if (info->holders > 1)
        printf(" and %d more", (int)info->holders - 1);
    look_grant(info);
}

static void look_sentence(const struct hf_info *info)
{
    if (info->held)
        look_held(info);
    else if (info->fence)
        printf("free, last known fence %" PRIu64, info->fence);
    else
        printf("free");
    if (info->waiters > 0)
        printf(", %d waiting", (int)info->waiters);
}

/* Several of something, with commas between in JSON. */
struct look_list {
    const struct cli_opts *opts;
    bool more;
};

void look_line(const struct cli_opts *opts, const char *key,
               const struct hf_info *info)
{
    char text[4 * HF_KEY_MAX + 1];
    struct cli_json json;

    if (opts->json) {
        cli_json_open(&json, stdout);
        cli_json_info(&json, key, info);
        cli_json_close(&json);
    } else {
        cli_show(key, text, sizeof(text));
        printf("%s: ", text);
        look_sentence(info);
    }
    putchar('\n');
}

/* One of several holders, on a line of its own. */
static bool look_holder(void *arg, const struct hf_info *info)
{
    char text[4 * HF_NOTE_MAX + 1];

    (void)arg;
    if (info->slot >= 0)
        printf("  slot %d: ", (int)info->slot);
    else
        printf("  ");
    printf("%s%s", info->broken ? "broken, still " : "", look_who(info, text));
    look_grant(info);
    putchar('\n');
    return true;
}

static bool look_holder_json(void *arg, const struct hf_info *info)
{
    struct look_list *list = arg;
    struct cli_json json;

    fputs(list->more ? ", " : "", stdout);
    list->more = true;
    cli_json_open(&json, stdout);
    cli_json_fence(&json, info->fence);
    cli_json_opt(&json, "slot", info->slot);
    cli_json_bool(&json, "broken", info->broken);
    cli_json_bool(&json, "kept", info->kept);
    cli_json_opt(&json, "since_ms", info->since_ms);
    cli_json_opt(&json, "left_ms", info->left_ms);
    cli_json_str(&json, "owner", info->owner[0] ? info->owner : NULL);
    cli_json_str(&json, "note", info->note);
    cli_json_close(&json);
    return true;
}

/* "  waiter 2: NOTE, shared, for 3s". */
static bool look_waiter(void *arg, const struct hf_waiter *waiter)
{
    char text[4 * HF_NOTE_MAX + 1], ago[32];

    (void)arg;
    cli_show(waiter->note[0] ? waiter->note : waiter->owner, text,
             sizeof(text));
    printf("  waiter %d: %s", (int)waiter->place, text[0] ? text : "somebody");
    if (waiter->shared)
        printf(", shared");
    if (waiter->permits)
        printf(", one of %d permits", (int)waiter->permits);
    if (waiter->since_ms >= 0)
        printf(", for %s", cli_ago(waiter->since_ms, ago));
    putchar('\n');
    return true;
}

static bool look_waiter_json(void *arg, const struct hf_waiter *waiter)
{
    struct look_list *list = arg;
    struct cli_json json;

    fputs(list->more ? ", " : ", \"queue\": [", stdout);
    list->more = true;
    cli_json_open(&json, stdout);
    cli_json_opt(&json, "place", waiter->place);
    cli_json_bool(&json, "shared", waiter->shared);
    cli_json_opt(&json, "permits", waiter->permits ? waiter->permits : -1);
    cli_json_opt(&json, "since_ms", waiter->since_ms);
    cli_json_opt(&json, "left_ms", waiter->left_ms);
    cli_json_str(&json, "owner", waiter->owner[0] ? waiter->owner : NULL);
    cli_json_str(&json, "note", waiter->note);
    cli_json_close(&json);
    return true;
}

/* Who waits; null where the service does not know. */
static hf_status look_queue(const struct cli_opts *opts, hf_client *client,
                            const struct hf_info *info)
{
    struct look_list list = {opts, false};
    hf_status st = HF_OK;

    if (info->waiters)
        st = hf_waiters(client, opts->args[0],
                        opts->json ? look_waiter_json : look_waiter, &list,
                        NULL);
    if (opts->json && list.more)
        fputs("]", stdout);
    else if (opts->json)
        printf(", \"queue\": %s", st ? "null" : "[]");
    return st == HF_UNSUPPORTED ? HF_OK : st;
}

/* All that is known of one lock.  Who holds it, and who waits, may change
 * between the questions. */
static int look_status(const struct cli_opts *opts, hf_client *client,
                       const struct hf_info *info)
{
    struct look_list list = {opts, false};
    hf_status st = HF_OK, queue;
    struct cli_json json;

    if (!opts->json) {
        look_line(opts, opts->args[0], info);
        if (info->held && info->holders > 1)
            st = hf_holders(client, opts->args[0], look_holder, &list, NULL);
        queue = look_queue(opts, client, info);
    } else {
        cli_json_open(&json, stdout);
        cli_json_info(&json, opts->args[0], info);
        fputs(", \"held_by\": [", stdout);
        if (info->held)
            st = hf_holders(client, opts->args[0], look_holder_json, &list,
                            NULL);
        fputs("]", stdout);
        queue = look_queue(opts, client, info);
        cli_json_close(&json);
        putchar('\n');
    }
    if (st && !opts->quiet)
        cli_say("the other holders of '%s' could not be asked for",
                opts->args[0]);
    if (queue && !opts->quiet)
        cli_say("those who wait for '%s' could not be asked for",
                opts->args[0]);
    return cli_done();
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
        code = look_status(opts, client, &info);
        if (!code && !info.held)
            code = CLI_FREE;
    }
    cli_close(client);
    return code;
}

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
        return cli_usage(opts->cmd, "'ls' takes at most one PREFIX");
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
