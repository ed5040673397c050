/* SPDX-License-Identifier: MIT
 *
 * leader.c - `holdfast leader`: who leads?
 *
 * The leader's value is the note of the lock, or the id of its holder if it
 * has none.  Exit status 1 if nobody leads.  A lock that is kept after its
 * release (--min-hold) has no leader.
 */
#include "cli.h"

#include <poll.h>

#define LEADER_LOOK_MS 50   /* if no descriptor is left */
#define LEADER_MORE_MS 1000 /* for an answer, when the wait is over */

/* What was heard of the key while waiting: from the observer, and as the answer
 * to one question, without which "nobody" would not be known to be true. */
struct leader_heard {
    struct hf_change change;
    struct hf_info info;
    struct hf_error err; /* of the question */
    bool told, answered;
};

static bool leader_is_there(const struct hf_info *info)
{
    return info->held && !info->kept;
}

static const char *leader_value(const struct hf_info *info)
{
    return info->note[0] ? info->note : info->owner;
}

static void leader_json(const char *key, const struct hf_info *info)
{
    bool there = leader_is_there(info);
    struct cli_json json;

    cli_json_open(&json, stdout);
    cli_json_str(&json, "key", key);
    cli_json_str(&json, "leader", there ? leader_value(info) : NULL);
    cli_json_opt(&json, "term", there ? (int64_t)info->fence : -1);
    cli_json_opt(&json, "since_ms", there ? info->since_ms : -1);
    cli_json_opt(&json, "left_ms", there ? info->left_ms : -1);
    cli_json_close(&json);
    putchar('\n');
}

static int leader_print(const struct cli_opts *opts, const struct hf_info *info)
{
    char text[4 * HF_NOTE_MAX + 1];

    if (opts->json) {
        leader_json(opts->args[0], info);
    } else if (leader_is_there(info)) {
        cli_show(leader_value(info), text, sizeof(text));
        puts(text);
    } else if (!opts->quiet) {
        cli_say("nobody leads '%s'", opts->args[0]);
    }
    if (cli_done())
        return CLI_FAILED;
    return leader_is_there(info) ? CLI_OK : CLI_FREE;
}

/* Take what there is; true if somebody leads now. */
static bool leader_appears(hf_client *client, struct leader_heard *heard)
{
    struct hf_event event = HF_EVENT_INIT;

    while (hf_next_event(client, &event)) {
        if (event.type == HF_ANSWERED) {
            heard->answered = true;
            heard->err = event.error;
        }
        while (event.type == HF_CHANGED &&
               hf_observer_next(event.observer, &heard->change)) {
            heard->told = true;
            if (leader_is_there(&heard->change.info))
                return true;
        }
    }
    return false;
}

static void leader_sleep(hf_client *client, int64_t end)
{
    struct pollfd fd = {.fd = hf_events_fd(client), .events = POLLIN};
    int64_t left = end - cli_now();

    left = left > LEADER_LOOK_MS && fd.fd < 0 ? LEADER_LOOK_MS : left;
    poll(&fd, 1, left < 60000 ? (int)left : 60000);
}

/* The wait is over: what is known? */
static int leader_conclude(const struct cli_opts *opts,
                           const struct leader_heard *heard)
{
    if (heard->told)
        return leader_print(opts, &heard->change.info);
    if (!heard->answered) {
        cli_say("the service has not answered: it is not known who leads '%s'",
                opts->args[0]);
        return CLI_UNAVAILABLE;
    }
    return heard->err.status ? cli_fail(&heard->err)
                             : leader_print(opts, &heard->info);
}

/* Wait until there is one, or until `end`. */
static int leader_wait(const struct cli_opts *opts, hf_client *client,
                       int64_t end)
{
    struct leader_heard heard = {.change = HF_CHANGE_INIT,
                                 .info = HF_INFO_INIT};
    hf_observer *observer;
    hf_request *request;
    struct hf_error err;

    if (hf_inspect_start(client, opts->args[0], &heard.info, NULL, &request,
                         &err) ||
        hf_observe_start(client, opts->args[0], 0, NULL, &observer, &err))
        return cli_fail(&err);
    while (!leader_appears(client, &heard) && cli_now() < end)
        leader_sleep(client, end);
    while (!heard.told && !heard.answered && cli_now() < end + LEADER_MORE_MS) {
        leader_sleep(client, end + LEADER_MORE_MS);
        leader_appears(client, &heard);
    }
    hf_observe_stop(observer);
    return leader_conclude(opts, &heard);
}

static int leader_look(const struct cli_opts *opts, hf_client *client)
{
    struct hf_info info = HF_INFO_INIT;
    struct hf_error err;

    if (hf_inspect(client, opts->args[0], &info, &err))
        return cli_fail(&err);
    return leader_print(opts, &info);
}

int cmd_leader(struct cli_opts *opts)
{
    int64_t begun = cli_now();
    struct hf_service svc;
    hf_client *client;
    int code;

    if (opts->nargs != 1)
        return cli_usage(opts->cmd, "'leader' takes one KEY");
    code = cli_key(opts, "the", opts->args[0]);
    say_start(); /* A message waits for no reader. */
    if (!code)
        code = cli_open(opts, &client, &svc);
    if (code)
        return code;
    if (opts->wait_leader || opts->wait_ms > 0)
        code =
            leader_wait(opts, client,
                        opts->wait_ms < 0 ? INT64_MAX : begun + opts->wait_ms);
    else
        code = leader_look(opts, client);
    cli_close(client);
    return code;
}
