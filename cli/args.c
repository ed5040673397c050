/* SPDX-License-Identifier: MIT
 *
 * args.c - the arguments of `run` and `elect`: what the table of options cannot
 * know.
 *
 * Both run a command, which is the words after KEY or a string for the shell.
 * What is probably a mistake is refused before anything is taken: two keys
 * without a `--`, a mistyped word after --on-lost, what means something else in
 * flock(1).
 */
#include "run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The default note: "host:pid (program)".  The arguments stay out of it: they
 * may hold secrets, and whoever can read the service can read the note. */
void args_note(const struct run *run, char ret[HF_NOTE_MAX + 1])
{
    const char *slash = strrchr(run->argv[0], '/');
    char host[65] = "";
    size_t len;

    gethostname(host, sizeof(host) - 1);
    snprintf(ret, HF_NOTE_MAX, "%s:%d (%s", host, (int)getpid(),
             slash && slash[1] ? slash + 1 : run->argv[0]);
    len = strlen(ret);
    if (len == HF_NOTE_MAX - 1) /* perhaps cut: end between characters */
        while (len > 0 && (ret[len - 1] & 0xc0) == 0x80)
            len--;
    ret[len] = ')';
    ret[len + 1] = '\0';
}

/* Whether a program of that name can be run; false also for no name. */
static bool args_exists(const char *name)
{
    const char *path = getenv("PATH");
    char file[4096];

    if (strchr(name, '/'))
        return access(name, X_OK) == 0;
    for (path = path ? path : "/usr/bin:/bin"; *name && *path;) {
        size_t len = strcspn(path, ":");

        snprintf(file, sizeof(file), "%.*s/%s", (int)len, path, name);
        if (access(file, X_OK) == 0)
            return true;
        path += len + (path[len] == ':');
    }
    return false;
}

/* `run a b -- cmd`: the command would be 'b'.  That is meant only if there is
 * such a program. */
static bool args_two_keys(const struct cli_opts *o)
{
    if (o->dashes || o->shell || args_exists(o->command[0]))
        return false;
    for (char **word = o->command; *word; word++)
        if (!strcmp(*word, "--"))
            return true;
    return false;
}

/* A single word after --on-lost must be a program, else it is a mistyped one of
 * ours. */
static int args_check_hook(const struct cli_opts *o, const char *const how[3])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz"
                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    struct guess guess = {.word = o->on_lost};
    char text[GUESS_TEXT];

    if (o->on_lost[strspn(o->on_lost, plain)] || args_exists(o->on_lost))
        return CLI_OK;
    for (int i = 0; i < 3; i++)
        guess_try(&guess, how[i]);
    return cli_usage(o->cmd,
                     "--on-lost takes term, kill, warn or a shell command, and "
                     "'%s' is none%s",
                     o->on_lost, guess_text(&guess, "", text));
}

/* Say so if what was typed means something in flock(1) only. */
static int args_flock(const struct cli_opts *o)
{
    if (o->unlock)
        return cli_usage(o->cmd,
                         "--unlock of flock(1) has no counterpart: the lock is "
                         "released when the command has ended, and one of "
                         "'holdfast acquire' by 'holdfast release'");
    if (o->shell || o->command[0])
        return CLI_OK;
    if (o->url && *o->url && !o->url_from_env && !strchr(o->url, ':'))
        return cli_usage(o->cmd,
                         "-u %s: here -u names the service, as in -u "
                         "file:/run/lock/app, and does not unlock as in "
                         "flock(1): the lock is released when the command has "
                         "ended",
                         o->url);
    if (o->nargs == 1 && *o->args[0] &&
        !o->args[0][strspn(o->args[0], "0123456789")])
        return cli_usage(o->cmd,
                         "'%s' is a key, and no descriptor as in flock(1): "
                         "give a command, or keep the lock over several steps "
                         "with 'holdfast acquire'",
                         o->args[0]);
    return CLI_OK;
}

/* Which command is to be run?  CLI_OK or the exit status. */
static int args_command(struct run *run)
{
    static char shell[] = "/bin/sh", dash_c[] = "-c";
    static char *shell_argv[] = {shell, dash_c, NULL, NULL};
    char key[CLI_WORD], command[CLI_WORD];
    const struct cli_opts *o = run->opts;

    if (o->shell && o->command[0])
        return cli_usage(o->cmd, "give a command or -c, not both");
    if (!o->shell && !o->command[0])
        return cli_usage(
            o->cmd, "'%s' needs a command: holdfast %s %s -- CMD", o->cmd->name,
            o->cmd->name,
            strpbrk(o->args[0], "@=:") ? "KEY" : cli_word(o->args[0], key));
    if (args_two_keys(o))
        return cli_usage(o->cmd,
                         "'%s' takes one KEY: %s is the key, and there is "
                         "no command %s%s",
                         o->cmd->name, cli_word(o->args[0], key),
                         cli_word(o->command[0], command),
                         o->cmd->bit == IN_RUN ? "; more keys go with --and"
                                               : "");
    run->argv = o->command;
    if (o->shell) {
        shell_argv[2] = (char *)o->shell;
        run->argv = shell_argv;
    }
    return CLI_OK;
}

/* What becomes of the command when the lock is lost? */
static int args_on_lost(struct run *run)
{
    static const char *const how[] = {"term", "kill", "warn"};
    const struct cli_opts *o = run->opts;

    run->on_lost = ON_LOST_COMMAND;
    for (int i = 0; i < 3; i++)
        if (!strcmp(o->on_lost, how[i]))
            run->on_lost = (enum run_on_lost)i;
    if (run->on_lost == ON_LOST_WARN && o->cmd->bit == IN_ELECT)
        return cli_usage(o->cmd,
                         "--on-lost warn: the command of a leader may not go "
                         "on without the leadership; 'holdfast run' allows it");
    return run->on_lost == ON_LOST_COMMAND ? args_check_hook(o, how) : CLI_OK;
}

int args_check(struct run *run)
{
    const struct cli_opts *o = run->opts;
    int code = args_flock(o);

    if (code)
        return code;
    if (o->nargs < 1)
        return cli_usage(o->cmd, "'%s' needs a KEY and a command",
                         o->cmd->name);
    code = cli_key(o, "the", o->args[0]);
    if (!code)
        code = args_command(run);
    if (code)
        return code;
    if (o->shared && o->permits)
        return cli_usage(o->cmd, "give --shared or --permits, not both");
    args_set_keys(run);
    return args_on_lost(run);
}

/* KEY and those of --and. */
void args_set_keys(struct run *run)
{
    const struct cli_opts *o = run->opts;

    run->key = run->locks.keys[0] = o->args[0];
    for (int i = 0; i < o->nand; i++)
        run->locks.keys[i + 1] = o->and[i];
    run->locks.n = (size_t)o->nand + 1;
}
