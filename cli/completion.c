/* SPDX-License-Identifier: MIT
 *
 * completion.c - completion scripts for bash, zsh and fish.
 *
 * The scripts are written from the tables of commands and options, so that a
 * new option is completed on the day it exists.  After `holdfast run ... --`
 * the words are those of the command that is run.  Keys are not completed: that
 * would ask a service over the network at every press of a key.
 */
#include "cli.h"

#include <string.h>

static void completion_commands(void)
{
    size_t count;
    const struct cli_cmd *table = cli_commands(&count);

    for (size_t i = 0; i < count; i++)
        printf("%s%s", i ? " " : "", table[i].name);
}

static void completion_options(const struct cli_cmd *cmd)
{
    size_t count;
    const struct cli_opt *opts = cli_options(&count);
    const char *gap = "";

    for (size_t i = 0; i < count; i++) {
        if (!(opts[i].in & cmd->bit) || !opts[i].help)
            continue;
        if (opts[i].letter)
            printf("%s-%c --%s", gap, opts[i].letter, opts[i].name);
        else
            printf("%s--%s", gap, opts[i].name);
        gap = " ";
    }
}

/* Leave the word after an option that wants a value to its user. */
static void completion_values(const struct cli_cmd *cmd)
{
    size_t count;
    const struct cli_opt *opts = cli_options(&count);
    const char *gap = "";

    for (size_t i = 0; i < count; i++) {
        if (!(opts[i].in & cmd->bit) || !opts[i].arg)
            continue;
        printf("%s", gap[0] ? gap : "case $prev in ");
        if (opts[i].letter)
            printf("-%c | ", opts[i].letter);
        printf("--%s", opts[i].name);
        gap = " | ";
    }
    if (gap[0])
        printf(") return ;; esac\n        ");
}

static void completion_bash(void)
{
    size_t count;
    const struct cli_cmd *table = cli_commands(&count);

    printf(
        "# bash completion for holdfast\n"
        "_holdfast()\n{\n"
        "    local cur=${COMP_WORDS[COMP_CWORD]} cmd='' i\n"
        "    local prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
        "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
        "        case ${COMP_WORDS[i]} in\n"
        "        --) [[ $cmd == run || $cmd == elect ]] && { _holdfast_run $((i + 1)); "
        "return; } ;;\n"
        "        -u | --url) ((i++)) ;;\n"
        "        -*) ;;\n"
        "        *) [[ $cmd ]] || cmd=${COMP_WORDS[i]} ;;\n"
        "        esac\n"
        "    done\n"
        "    case $cmd in\n"
        "    '') case $prev in -u | --url) return ;; esac\n"
        "        COMPREPLY=($(compgen -W '");
    completion_commands();
    printf(" --help --version' -- \"$cur\")) ;;\n");
    for (size_t i = 0; i < count; i++) {
        printf("    %s) ", table[i].name);
        completion_values(&table[i]);
        printf("COMPREPLY=($(compgen -W '");
        completion_options(&table[i]);
        if (!strcmp(table[i].name, "completion"))
            printf(" bash zsh fish");
        if (!strcmp(table[i].name, "help"))
            printf(" "), completion_commands();
        printf("' -- \"$cur\")) ;;\n");
    }
    printf(
        "    esac\n}\n"
        "_holdfast_run()\n{\n"
        "    if declare -F _command_offset >/dev/null; then\n"
        "        _command_offset \"$1\"\n"
        "    else\n"
        "        COMPREPLY=($(compgen -c -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
        "    fi\n}\n"
        "complete -o default -F _holdfast holdfast\n");
}

/* Text inside single quotes, where zsh and fish both end at a quote. */
static void completion_quoted(const char *text)
{
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", stdout);
        else if (*text == '[' || *text == ']' || *text == ':')
            printf("\\%c", *text);
        else
            putchar(*text);
}

static void completion_zsh_option(const struct cli_opt *opt)
{
    const char *action = "";

    if (opt->arg)
        action = !strcmp(opt->arg, "FILE") ? ":file:_files" : ":value:";
    if (opt->letter) {
        printf("            '-%c[", opt->letter);
        completion_quoted(opt->help);
        printf("]%s' \\\n", action);
    }
    printf("            '--%s[", opt->name);
    completion_quoted(opt->help);
    printf("]%s' \\\n", action);
}

static void completion_zsh(void)
{
    size_t count, nopts;
    const struct cli_cmd *table = cli_commands(&count);
    const struct cli_opt *opts = cli_options(&nopts);

    printf("#compdef holdfast\n"
           "_holdfast()\n{\n"
           "    local -a commands\n"
           "    commands=(\n");
    for (size_t i = 0; i < count; i++) {
        printf("        '%s:", table[i].name);
        completion_quoted(table[i].summary);
        printf("'\n");
    }
    printf("    )\n"
           "    if ((CURRENT == 2)); then\n"
           "        _describe 'command' commands\n"
           "        return\n"
           "    fi\n"
           "    local cmd=${words[2]}\n"
           "    shift words\n"
           "    ((CURRENT--))\n"
           "    case $cmd in\n");
    for (size_t i = 0; i < count; i++) {
        printf("    %s)\n        _arguments \\\n", table[i].name);
        for (size_t k = 0; k < nopts; k++)
            if (opts[k].in & table[i].bit && opts[k].help)
                completion_zsh_option(&opts[k]);
        printf("            %s ;;\n", table[i].bit & IN_COMMAND
                                          ? "'1:key:' '*::command:_normal'"
                                          : "'*:argument:'");
    }
    printf("    esac\n}\n"
           "_holdfast \"$@\"\n");
}

static void completion_fish(void)
{
    size_t count, nopts;
    const struct cli_cmd *table = cli_commands(&count);
    const struct cli_opt *opts = cli_options(&nopts);

    printf("# fish completion for holdfast\n");
    for (size_t i = 0; i < count; i++) {
        printf("complete -c holdfast -n __fish_use_subcommand -f -a %s -d ",
               table[i].name);
        cli_shell_word(stdout, table[i].summary);
        putchar('\n');
        for (size_t k = 0; k < nopts; k++) {
            if (!(opts[k].in & table[i].bit) || !opts[k].help)
                continue;
            printf("complete -c holdfast -n '__fish_seen_subcommand_from %s'",
                   table[i].name);
            if (opts[k].letter)
                printf(" -s %c", opts[k].letter);
            printf(" -l %s%s -d ", opts[k].name, opts[k].arg ? " -r" : "");
            cli_shell_word(stdout, opts[k].help);
            putchar('\n');
        }
    }
    printf("complete -c holdfast -n '__fish_seen_subcommand_from completion' "
           "-f -a 'bash zsh fish'\n");
}

int cmd_completion(struct cli_opts *opts)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shells[] = {
        {"bash", completion_bash},
        {"zsh", completion_zsh},
        {"fish", completion_fish},
    };

    if (opts->nargs != 1)
        return cli_usage(opts->cmd, "name one shell: bash, zsh or fish");
    for (size_t i = 0; i < sizeof(shells) / sizeof(shells[0]); i++)
        if (!strcmp(shells[i].name, opts->args[0])) {
            shells[i].print();
            return cli_done();
        }
    return cli_usage(opts->cmd,
                     "there is no completion for '%s', only for bash, zsh and "
                     "fish",
                     opts->args[0]);
}
