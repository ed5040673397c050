/* SPDX-License-Identifier: MIT
 *
 * commands.c - which commands there are, what their exit statuses mean, and how
 * to use them.
 *
 * The status of the library becomes an exit status in exactly one table, here.
 * A URL that is wrong is a configuration error (78) and not a usage error,
 * since it comes from the environment as often as from the command line;
 * everything else that is invalid was typed (64).  UNCERTAIN counts as
 * unavailable: the service did not answer, and what may have been taken is
 * being given back.
 *
 * A message is one line, `holdfast: what happened: what to do`.
 */
#include "cli.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

static const struct cli_cmd commands_table[] = {
    {"run", "[options] KEY [--] CMD [ARG...]", "run CMD while holding KEY",
     "CMD runs in a process group of its own and finds $HOLDFAST_KEY,\n"
     "$HOLDFAST_FENCE, $HOLDFAST_OWNER and $HOLDFAST_LOST_FD in its\n"
     "environment, with --permits $HOLDFAST_SLOT, and in $HOLDFAST_FENCES\n"
     "those of all keys.  If the lock cannot be proven any longer, the group gets\n"
     "TERM in time and KILL before anybody else can be granted the lock.\n"
     "\n"
     "The lock is released when CMD has ended.  What CMD left running in the\n"
     "background goes on without it, unless --wait-group is given.  With\n"
     "--on-lost warn CMD is never ended because of the lock, only told.\n",
     IN_RUN, cmd_run},
    {"elect", "[options] KEY [--] CMD [ARG...]", "run CMD while leading",
     "Campaigns for KEY, waits until it is elected, and runs CMD as 'run' does.\n"
     "If the leadership is lost, CMD is ended and the campaign begins anew.\n"
     "When CMD has ended, the rest of its process group is ended, then the\n"
     "leadership is given up, and elect ends with CMD's status, or campaigns\n"
     "again with --forever.  $HOLDFAST_FENCE is the term.\n",
     IN_ELECT, cmd_elect},
    {"leader", "[options] KEY", "print the value of the leader",
     "Exit status 0 if somebody leads, 1 if nobody does.\n", IN_LEADER,
     cmd_leader},
    {"acquire", "[options] KEY", "take KEY and print a handle for scripts",
     "Prints assignments for eval.  The lock lapses after --ttl unless it is\n"
     "renewed:\n"
     "\n"
     "  lock=$(holdfast acquire -t 5m deploy) || exit\n"
     "  eval \"$lock\"\n"
     "\n"
     "Needs a service that keeps the lease itself; file: does not (exit 78).\n",
     IN_ACQUIRE, cmd_acquire},
    {"renew", "[options] [HANDLE]", "renew the lease of a handle",
     "HANDLE is what acquire printed, else $HOLDFAST_HANDLE; it stays good.\n"
     "Exit status 79 if the lock is not yours any more.\n",
     IN_RENEW, cmd_renew},
    {"release", "[options] [HANDLE]", "give the lock of a handle back",
     "HANDLE is what acquire printed, else $HOLDFAST_HANDLE.  Exit status 79\n"
     "if the lock was not yours any more.\n",
     IN_RELEASE, cmd_release},
    {"check", "--fence N KEY", "tell whether grant N of KEY still stands",
     "Exit status 0 while it stands, 79 once it does not.\n", IN_CHECK,
     cmd_check},
    {"status", "KEY", "show who holds KEY",
     "Exit status 0 if somebody holds it, 1 if it is free.\n", IN_STATUS,
     cmd_status},
    {"ls", "[PREFIX]", "list the locks that are held", "", IN_LS, cmd_ls},
    {"watch", "[options] KEY | --prefix [PREFIX]",
     "print a line whenever KEY changes hands",
     "Begins with the present state, and goes on while the service is out of\n"
     "reach.  With --exec there are no lines: CMD finds $HOLDFAST_KEY,\n"
     "$HOLDFAST_HELD (1 or 0), $HOLDFAST_HOLDER, $HOLDFAST_OWNER and\n"
     "$HOLDFAST_FENCE.  What changes while CMD runs is merged into its next run.\n",
     IN_WATCH, cmd_watch},
    {"break", "--fence N KEY", "take KEY away from its holder",
     "Only the grant that 'holdfast status KEY' showed is broken; exit status\n"
     "79 if it is not the present one.  The holder is notified and cannot renew;\n"
     "others can have KEY when it has released it, or when its lease is over.\n"
     "\n"
     "With --force KEY is free at once.  A holder that still runs is then at\n"
     "work beside the next one until it notices: for a holder that is dead.\n",
     IN_BREAK, cmd_break},
    {"gc", "[options]", "remove what keys that are free left behind",
     "Rows, files and counters of keys that nobody holds or waits for.  Fences\n"
     "never go back by it.\n",
     IN_GC, cmd_gc},
    {"doctor", "", "say what the service promises and try it", "", IN_DOCTOR,
     cmd_doctor},
    {"top", "[options] [PREFIX]", "show the locks that are held, live",
     "Runs holdfast-top(1) with the same arguments; its --help tells the\n"
     "options and keys.\n",
     IN_PLAIN, cmd_top},
    {"serve", "[options]", "show locks in a browser, and metrics",
     "Runs holdfast-serve(1) with the same arguments; its --help tells the\n"
     "options.\n",
     IN_PLAIN, cmd_serve},
    {"torture", "[options] [URL]", "hurt clients and look for broken promises",
     "Runs holdfast-torture(1) with the same arguments; its --help tells the\n"
     "options.\n",
     IN_PLAIN, cmd_torture},
    {"completion", "bash|zsh|fish", "print a completion script", "", IN_PLAIN,
     cmd_completion},
    {"help", "[COMMAND]", "show how a command is used", "", IN_PLAIN, cmd_help},
};

const struct cli_cmd *cli_commands(size_t *count)
{
    *count = sizeof(commands_table) / sizeof(commands_table[0]);
    return commands_table;
}

const struct cli_cmd *cli_command_find(const char *name)
{
    size_t count;
    const struct cli_cmd *table = cli_commands(&count);

    for (size_t i = 0; i < count; i++)
        if (!strcmp(table[i].name, name))
            return &table[i];
    return NULL;
}

/* Statuses, exit statuses and what to do about them. */
static const struct {
    int code;
    const char *hint;
} commands_exits[] = {
    [HF_OK] = {CLI_OK, NULL},
    [HF_BUSY] = {CLI_BUSY, "wait with -w"},
    [HF_TIMEOUT] = {CLI_BUSY, "wait longer with -w"},
    [HF_CANCELED] = {CLI_FAILED, NULL},
    [HF_LOST] = {CLI_LOST, NULL},
    [HF_UNCERTAIN] = {CLI_UNAVAILABLE, "try again"},
    [HF_UNAVAILABLE] = {CLI_UNAVAILABLE,
                        "is the service up, and is the URL right?"},
    [HF_DENIED] = {CLI_DENIED, "check credentials and permissions"},
    [HF_INVALID] = {CLI_USAGE, NULL},
    [HF_UNSUPPORTED] = {CLI_CONFIG, "choose another service with -u URL"},
    [HF_PROTOCOL] = {CLI_FAILED, "is that the right service and key?"},
    [HF_NOMEM] = {CLI_FAILED, NULL},
    [HF_SYSTEM] = {CLI_FAILED, NULL},
};

int cli_exit_of(hf_status st)
{
    if ((size_t)st >= sizeof(commands_exits) / sizeof(commands_exits[0]))
        return CLI_FAILED;
    return commands_exits[st].code;
}

int cli_fail(const struct hf_error *err)
{
    const char *hint = NULL;

    if ((size_t)err->status <
        sizeof(commands_exits) / sizeof(commands_exits[0]))
        hint = commands_exits[err->status].hint;
    if (hint)
        cli_say("%s: %s", err->text, hint);
    else
        cli_say("%s", err->text);
    return cli_exit_of(err->status);
}

bool cli_is_away(const struct hf_error *err)
{
    return err->status == HF_UNAVAILABLE || err->status == HF_UNCERTAIN;
}

/* Whether a service could not be opened because its URL is wrong: malformed, or
 * with a host or path that does not exist. */
static bool commands_bad_url(const struct hf_error *err)
{
    return err->status == HF_INVALID || err->status == HF_UNSUPPORTED ||
           err->sys_errno == ENOENT || err->sys_errno == ENOTDIR ||
           err->sys_errno == ELOOP || err->sys_errno == ENAMETOOLONG;
}

/* What a thread of its own opens; it may outlive the wait for it. */
static struct {
    const char *url;
    hf_client *client;
    hf_status st;
    struct hf_error err;
} commands_job;

static void commands_job_open(void *arg)
{
    (void)arg;
    commands_job.st = hf_open(commands_job.url, log_opts(),
                              &commands_job.client, &commands_job.err);
}

/* Open the service.  One that is reached and silent is waited for no longer
 * than `left`. */
static hf_status commands_try(const struct cli_opts *opts, int64_t left,
                              hf_client **ret, struct hf_error *err)
{
    if (opts->wait_ms <= 0)
        return hf_open(opts->url, log_opts(), ret, err);
    commands_job.url = opts->url;
    if (!end_within(left, commands_job_open, NULL)) {
        *err = (struct hf_error){.status = HF_UNAVAILABLE};
        snprintf(err->text, sizeof(err->text),
                 "the service has not answered in the time of -w");
        return HF_TIMEOUT;
    }
    *ret = commands_job.client;
    *err = commands_job.err;
    return commands_job.st;
}

/* Does the command go on, without a limit, while the service is out of reach? */
static bool commands_waits(const struct cli_opts *opts)
{
    return opts->cmd->bit & (IN_ELECT | IN_WATCH) || opts->wait_leader;
}

/* Open the service; a wait that was asked for begins here. */
static hf_status commands_connect(const struct cli_opts *opts, hf_client **ret,
                                  struct hf_error *err)
{
    bool forever = opts->wait_ms < 0 && commands_waits(opts);
    int64_t left = opts->wait_ms, pause = 100;
    int64_t end = forever ? INT64_MAX : cli_now() + left;
    bool said = false;
    char ago[32];
    hf_status st;

    for (;;) {
        st = commands_try(opts, left, ret, err);
        if (!st && said)
            cli_say("the service answers again");
        if ((st != HF_UNAVAILABLE && st != HF_UNCERTAIN) ||
            (opts->wait_ms <= 0 && !forever))
            return st;
        left = end - cli_now();
        if (left <= 0)
            return st;
        if (!said && !opts->quiet && forever)
            cli_say("%s: trying again", err->text);
        else if (!said && !opts->quiet)
            cli_say("%s: trying again for %s", err->text, cli_ago(left, ago));
        said = !opts->quiet;
        poll(NULL, 0, (int)(pause < left ? pause : left));
        pause = pause < 500 ? 2 * pause : 1000;
        left = end - cli_now();
        left = left < 1 ? 1 : left;
    }
}

/* Say why there is no service; returns the exit status. */
static int commands_not_open(const struct cli_opts *opts,
                             const struct hf_error *err)
{
    if (opts->url && !*opts->url) {
        cli_say("%s is empty: name a service, or leave it out for file:, "
                "which excludes only on this machine: see holdfast-url(7)",
                opts->url_from_env ? "$HOLDFAST_URL" : "the URL of -u");
        return CLI_CONFIG;
    }
    if (!commands_bad_url(err))
        return cli_fail(err);
    if (err->status != HF_INVALID && err->sys_errno)
        cli_say("%s: is the place in the URL right?", err->text);
    else
        cli_say("%s%s", err->text,
                err->status != HF_INVALID ||
                        strstr(err->text, "holdfast-url(7)")
                    ? ""
                    : " (see holdfast-url(7) for what a URL can be)");
    return CLI_CONFIG;
}

int cli_open(const struct cli_opts *opts, hf_client **ret,
             struct hf_service *svc)
{
    hf_client *client;
    struct hf_error err;

    if (commands_connect(opts, &client, &err))
        return commands_not_open(opts, &err);
    *svc = (struct hf_service){.size = sizeof(*svc)};
    if (hf_describe(client, svc, &err)) {
        cli_close(client);
        return cli_fail(&err);
    }
    if (opts->verbose)
        cli_say("using %s", svc->endpoint);
    if (!opts->quiet && opts->cmd->bit != IN_DOCTOR) {
        if (!(svc->traits & HF_TRAIT_PROCESSES))
            cli_say("warning: %s excludes only the threads of one process",
                    svc->endpoint);
        if (svc->warning[0])
            cli_say("warning: %s", svc->warning);
    }
    *ret = client;
    return CLI_OK;
}

static void commands_close(void *client)
{
    peek_settle();
    hf_close(client);
}

void cli_close(hf_client *client)
{
    cli_close_within(client, END_MS);
}

void cli_close_within(hf_client *client, int64_t ms)
{
    end_within(ms, commands_close, client);
}

void cli_warn_again(const struct cli_opts *opts, hf_client *client,
                    struct hf_service *svc)
{
    struct hf_service now = {.size = sizeof(now)};

    if (opts->quiet || hf_describe(client, &now, NULL) ||
        !strcmp(now.warning, svc->warning))
        return;
    *svc = now;
    if (now.warning[0])
        cli_say("warning: %s", now.warning);
}

static void commands_option(const struct cli_opt *opt)
{
    char left[40];
    char letter[5] = "    ";

    if (opt->letter)
        snprintf(letter, sizeof(letter), "-%c, ", opt->letter);
    snprintf(left, sizeof(left), "%s--%s%s%s", letter, opt->name,
             opt->arg ? " " : "", opt->arg ? opt->arg : "");
    printf("  %-24s %s\n", left, opt->help);
}

int cli_help(const struct cli_cmd *cmd)
{
    size_t count;
    const struct cli_opt *opts = cli_options(&count);

    printf("Usage: holdfast %s %s\n\n%c%s.\n", cmd->name, cmd->args,
           cmd->summary[0] - 'a' + 'A', cmd->summary + 1);
    if (cmd->text[0])
        printf("\n%s", cmd->text);
    printf("\nOptions:\n");
    for (size_t i = 0; i < count; i++)
        if (opts[i].in & cmd->bit && opts[i].help)
            commands_option(&opts[i]);
    if (cmd->bit & IN_COMMAND)
        printf("\nA duration is 500ms, 30s, 5m, 1h, or a number of seconds.\n");
    return cli_done();
}

int cli_overview(void)
{
    size_t count;
    const struct cli_cmd *table = cli_commands(&count);

    printf("Usage: holdfast COMMAND [options] [arguments]\n\n"
           "One lock over whatever lock service you already run.\n\n"
           "  holdfast run nightly -- ./backup.sh\n"
           "  holdfast run -n -u redis://cache deploy -- make deploy\n\n"
           "Commands:\n");
    for (size_t i = 0; i < count; i++)
        printf("  %-12s %s\n", table[i].name, table[i].summary);
    printf(
        "\nExit status of run and elect: that of CMD, 128+n if signal n ended it;\n"
        "75 busy, 79 lost, 69 unavailable, 77 refused, 78 configuration,\n"
        "64 usage, 124 max-hold, 125 failed, 126 not executable,\n"
        "127 not found.  Of status and leader: 0 held, 1 free.\n\n"
        "'holdfast help COMMAND' tells the options; holdfast(1) the rest.\n");
    return cli_done();
}

int cmd_help(struct cli_opts *opts)
{
    const struct cli_cmd *cmd;

    if (opts->nargs == 0)
        return cli_overview();
    cmd = cli_command_find(opts->args[0]);
    if (!cmd)
        return cli_no_command(opts->args[0]);
    return cli_help(cmd);
}
