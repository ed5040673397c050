/* SPDX-License-Identifier: MIT
 *
 * leader.c - `holdfast leader`: who leads?
 *
 * The leader's value is the note of the lock, or the id of its holder if it
 * has none.  Exit status 1 if nobody leads.  A lock that is kept after its
 * release (--min-hold) has no leader.
 *
 *  (1) That nobody leads is told only if the service answers so when the wait
 *      ends: it is asked then.  What was heard before may have changed behind a
 *      connection that is gone, and is no more than what was known last.
 */
#include "cli.h"

#include <poll.h>

#define LEADER_LOOK_MS 50   /* if no descriptor is left */
#define LEADER_MORE_MS 1000 /* for an answer, when the wait is over */
#define LEADER_ASK_MS  1000 /* until the service is asked again */
#define LEADER_END_MS  100  /* to close: nothing depends on it */

/* What was heard of the key while waiting: from the observer, and as the answer
 * to a question.  It is asked at the start, until the service has answered; when
 * the observer says that the service has gone away; and at the end.  (1) */
struct leader_heard {
    struct hf_info info;  /* what was known last */
    int64_t info_at;      /* and when; -1: nothing was */
    struct hf_info asked; /* where the answer will be */
    struct hf_error err;  /* of the last question, or one that is final */
    int64_t ask_at;       /* INT64_MAX: not any more, or it is under way */
    bool asking;
    bool away;  /* the service does not answer */
    bool quiet; /* nothing is said of that */
    bool over;  /* by a leader, or by an error that is final */
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

/* This is what is known now. */
static void leader_knows(struct leader_heard *heard, const struct hf_info *info)
{
    heard->info = *info;
    heard->info_at = cli_now();
    heard->over = leader_is_there(info);
}

/* The service is out of reach, or the observer says that it answers. */
static void leader_changed(struct leader_heard *heard,
                           const struct hf_event *event)
{
    struct hf_change change = HF_CHANGE_INIT;

    if (event->error.status && !heard->asking)
        heard->ask_at = cli_now();
    while (!heard->over && hf_observer_next(event->observer, &change))
        leader_knows(heard, &change.info);
}

/* The question is answered, or the service is out of reach. */
static void leader_answered(struct leader_heard *heard,
                            const struct hf_error *err)
{
    bool away = cli_is_away(err);

    heard->asking = false;
    heard->err = *err;
    if (!err->status)
        leader_knows(heard, &heard->asked);
    if (away)
        heard->ask_at = cli_now() + LEADER_ASK_MS;
    if (away && !heard->away && !heard->quiet)
        cli_say("%s: waiting for the service", err->text);
    if (!away && heard->away && !heard->quiet)
        cli_say("the service answers again");
    heard->away = away;
}

/* Take what there is. */
static void leader_hear(hf_client *client, struct leader_heard *heard)
{
    struct hf_event event = HF_EVENT_INIT;

    while (!heard->over && hf_next_event(client, &event)) {
        if (event.error.status && !cli_is_away(&event.error)) {
            heard->err = event.error;
            heard->asking = false;
            heard->over = true;
        } else if (event.type == HF_ANSWERED) {
            leader_answered(heard, &event.error);
        } else if (event.type == HF_CHANGED) {
            leader_changed(heard, &event);
        }
    }
}

/* Ask who leads, if it is time to. */
static void leader_ask(const struct cli_opts *opts, hf_client *client,
                       struct leader_heard *heard)
{
    hf_request *request;

    if (heard->over || cli_now() < heard->ask_at)
        return;
    heard->ask_at = INT64_MAX;
    heard->asked = (struct hf_info)HF_INFO_INIT;
    if (hf_inspect_start(client, opts->args[0], &heard->asked, NULL, &request,
                         &heard->err))
        heard->over = true;
    else
        heard->asking = true;
}

static void leader_sleep(hf_client *client, const struct leader_heard *heard,
                         int64_t end)
{
    struct pollfd fd = {.fd = hf_events_fd(client), .events = POLLIN};
    int64_t left = (heard->ask_at < end ? heard->ask_at : end) - cli_now();

    left = left < 0 ? 0 : left;
    left = left > LEADER_LOOK_MS && fd.fd < 0 ? LEADER_LOOK_MS : left;
    poll(&fd, 1, left < 60000 ? (int)left : 60000);
}

/* The service does not answer: say so, and what was known last.  (1) */
static int leader_unknown(const struct cli_opts *opts,
                          const struct leader_heard *heard)
{
    char known[64] = "", ago[32];

    if (heard->info_at >= 0)
        snprintf(known, sizeof(known), "; nobody did %s ago",
                 cli_ago(cli_now() - heard->info_at, ago));
    cli_say("%s: it is not known who leads '%s'%s",
            heard->asking ? "the service has not answered" : heard->err.text,
            opts->args[0], known);
    return CLI_UNAVAILABLE;
}

/* The wait is over: what is known? */
static int leader_conclude(const struct cli_opts *opts,
                           const struct leader_heard *heard)
{
    if (heard->info_at >= 0 && leader_is_there(&heard->info))
        return leader_print(opts, &heard->info);
    if (heard->asking || cli_is_away(&heard->err))
        return leader_unknown(opts, heard);
    return heard->err.status ? cli_fail(&heard->err)
                             : leader_print(opts, &heard->info);
}

/* Wait until there is one, or until `end`. */
static int leader_wait(const struct cli_opts *opts, hf_client *client,
                       int64_t end)
{
    struct leader_heard heard = {.info_at = -1, .quiet = opts->quiet};
    hf_observer *observer;
    struct hf_error err;

    if (hf_observe_start(client, opts->args[0], 0, NULL, &observer, &err))
        return cli_fail(&err);
    leader_ask(opts, client, &heard);
    while (!heard.over && cli_now() < end) {
        leader_sleep(client, &heard, end);
        leader_hear(client, &heard);
        leader_ask(opts, client, &heard);
    }
    if (!heard.asking) { /* (1) */
        heard.ask_at = cli_now();
        leader_ask(opts, client, &heard);
    }
    heard.quiet = true; /* There is a last word below. */
    while (!heard.over && heard.asking && cli_now() < end + LEADER_MORE_MS) {
        leader_sleep(client, &heard, end + LEADER_MORE_MS);
        leader_hear(client, &heard);
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
    int64_t end = INT64_MAX, left;
    struct hf_service svc;
    hf_client *client;
    int code;

    if (opts->nargs != 1)
        return cli_usage(opts->cmd, "'leader' takes one KEY");
    if (opts->wait_ms >= 0)
        end = cli_now() + opts->wait_ms;
    code = cli_key(opts, "the", opts->args[0]);
    say_start(); /* A message waits for no reader. */
    if (!code)
        code = cli_open(opts, &client, &svc);
    if (code)
        return code;
    if (opts->wait_leader || opts->wait_ms > 0)
        code = leader_wait(opts, client, end);
    else
        code = leader_look(opts, client);
    left = end - cli_now();
    cli_close_within(client, left < LEADER_END_MS ? LEADER_END_MS
                             : left < END_MS      ? left
                                                  : END_MS);
    return code;
}
