/* SPDX-License-Identifier: MIT
 *
 * opts.c - one table of options for all commands.
 *
 * Parser, help and shell completion read the same table, so that they cannot
 * disagree.  An option names the commands that take it; elsewhere it is an
 * error and not silently ignored.  The letters are those of flock(1) wherever
 * flock(1) has them, and so is the way to write a time: a bare number, with a
 * fraction if need be, is seconds.
 *
 * Options may stand before the command's name if every command takes them, and
 * before or after KEY.  The command to run begins after `--`, or with the first
 * word after KEY that is no option; from there on nothing is ours.
 */
#include "cli.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct cli_opts, field)
#define IN_TAKE   (IN_RUN | IN_ACQUIRE) /* any kind of lock */
#define IN_WAIT   (IN_TAKE | IN_ELECT)
#define IN_DATA                                                                \
    (IN_ACQUIRE | IN_RENEW | IN_CHECK | IN_STATUS | IN_LS | IN_BREAK |         \
     IN_WATCH | IN_DOCTOR | IN_LEADER | IN_GC)

static const struct cli_opt opts_table[] = {
    {'u', "url", "URL", IN_SERVICE, OPT_TEXT, AT(url),
     "the lock service (else $HOLDFAST_URL, else file:)"},
    {'n', "nonblock", NULL, IN_WAIT, OPT_FLAG, AT(nonblock),
     "do not wait if somebody else holds it"},
    {'w', "wait", "DUR", IN_WAIT, OPT_TIME, AT(wait_ms),
     "wait at most so long, for the service too (else for ever)"},
    {'E', "busy-exit", "N", IN_WAIT, OPT_CODE, AT(busy_exit),
     "exit status when it is busy (75)"},
    {'s', "shared", NULL, IN_TAKE, OPT_FLAG, AT(shared),
     "share it with other shared holders"},
    {'x', "exclusive", NULL, IN_TAKE, OPT_CLEAR, AT(shared),
     "share it with nobody (the default)"},
    {0, "permits", "N", IN_TAKE, OPT_COUNT, AT(permits),
     "let N hold it at once, each with a slot ($HOLDFAST_SLOT)"},
    {0, "and", "KEY", IN_RUN, OPT_AND, AT(and),
     "hold this KEY as well; all or none"},
    {'o', "close", NULL, IN_RUN, OPT_FLAG, AT(close_fds),
     "for flock(1)'s sake: CMD never inherits the lock"},
    {'F', "no-fork", NULL, IN_RUN, OPT_FLAG, AT(no_fork),
     "for flock(1)'s sake: holdfast stays to keep the lock"},
    {0, "unlock", NULL, IN_RUN, OPT_FLAG, AT(unlock), NULL},
    {'c', "command", "STRING", IN_COMMAND, OPT_TEXT, AT(shell),
     "run STRING with /bin/sh -c"},
    {'t', "ttl", "DUR", IN_WAIT, OPT_TIME, AT(ttl_ms),
     "the lease (ttl= of the URL, else 30s)"},
    {'t', "ttl", "DUR", IN_RENEW, OPT_TIME, AT(ttl_ms),
     "the lease from now on (else as long as before)"},
    {0, "max-hold", "DUR", IN_COMMAND, OPT_TIME, AT(max_hold_ms),
     "end CMD after so long (exit 124)"},
    {0, "min-hold", "DUR", IN_RUN, OPT_TIME, AT(min_hold_ms),
     "keep it taken until so long after the grant"},
    {0, "on-lost", "HOW", IN_COMMAND, OPT_TEXT, AT(on_lost),
     "term (default), kill, warn, or a shell command"},
    {0, "grace", "DUR", IN_COMMAND, OPT_TIME, AT(grace_ms),
     "from TERM to KILL (5s, at most a third of the lease)"},
    {0, "wait-group", NULL, IN_COMMAND, OPT_FLAG, AT(wait_group),
     "hold until all of CMD's process group has ended"},
    {0, "value", "TEXT", IN_ELECT, OPT_WORD, AT(note),
     "what 'holdfast leader' prints (host:pid and CMD's name)"},
    {0, "forever", NULL, IN_ELECT, OPT_FLAG, AT(forever),
     "campaign again also when CMD has ended by itself"},
    {0, "heir", "VALUE", IN_ELECT, OPT_WORD, AT(heir),
     "let the candidate of that value follow when this one resigns"},
    {0, "wait", NULL, IN_LEADER, OPT_FLAG, AT(wait_leader),
     "wait until somebody leads"},
    {'w', "timeout", "DUR", IN_LEADER, OPT_TIME, AT(wait_ms),
     "wait at most so long, for the service too"},
    {0, "prefix", NULL, IN_WATCH, OPT_FLAG, AT(prefix),
     "watch all keys that begin with PREFIX"},
    {0, "exec", "CMD", IN_WATCH, OPT_WORD, AT(exec),
     "run CMD with /bin/sh -c at each change, one at a time"},
    {0, "older-than", "DUR", IN_GC, OPT_TIME, AT(older_ms),
     "only of keys that have been free for so long (7d)"},
    {0, "dry-run", NULL, IN_GC, OPT_FLAG, AT(dry_run),
     "count what would be removed, and leave it"},
    {0, "note", "TEXT", IN_TAKE, OPT_TEXT, AT(note),
     "what others see (host:pid and CMD's name)"},
    {0, "owner", "ID", IN_TAKE, OPT_WORD, AT(owner),
     "reentrant for everybody with the same ID"},
    {0, "fair", NULL, IN_WAIT, OPT_FLAG, AT(fair),
     "a place of its own in the service's queue"},
    {0, "poll", NULL, IN_WAIT, OPT_FLAG, AT(poll),
     "ask again and again, even where the service can notify"},
    {0, "retry", "DUR", IN_WAIT | IN_WATCH, OPT_TIME, AT(retry_ms),
     "between two questions (50ms; watch: 5s)"},
    {0, "report", "FILE", IN_RUN, OPT_WORD, AT(report),
     "write the outcome as JSON to FILE or fd:N"},
    {0, "fence", "N", IN_CHECK | IN_BREAK, OPT_FENCE, AT(fence),
     "the grant that is meant ('holdfast status' shows it)"},
    {0, "force", NULL, IN_BREAK, OPT_FLAG, AT(force),
     "free it at once, though its holder may still be at work"},
    {0, "all", NULL, IN_DOCTOR, OPT_FLAG, AT(all),
     "every service that this build knows; no server is asked"},
    {0, "json", NULL, IN_DATA, OPT_FLAG, AT(json), "print JSON"},
    {'q', "quiet", NULL, IN_SERVICE, OPT_FLAG, AT(quiet),
     "say nothing but errors"},
    {'v', "verbose", NULL, IN_SERVICE, OPT_FLAG, AT(verbose), "say more"},
    {'h', "help", NULL, IN_SERVICE | IN_PLAIN, OPT_FLAG, AT(help),
     "show how it is used"},
};

/* Other names of some options: those of flock(1). */
static const struct {
    char letter;
    const char *name;
    const char *means;
} opts_aliases[] = {
    {'e', "exclusive", "exclusive"},        {0, "nb", "nonblock"},
    {0, "nonblocking", "nonblock"},         {0, "timeout", "wait"},
    {0, "conflict-exit-code", "busy-exit"},
};

const struct cli_opt *cli_options(size_t *count)
{
    *count = sizeof(opts_table) / sizeof(opts_table[0]);
    return opts_table;
}

int cli_usage(const struct cli_cmd *cmd, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    cli_mask(text, true);
    if (cmd)
        cli_say("%s (see 'holdfast help %s')", text, cmd->name);
    else
        cli_say("%s (see 'holdfast --help')", text);
    return CLI_USAGE;
}

/* Milliseconds in the unit that ends a duration; 0 if there is no such one. */
static int64_t opts_unit(const char *unit)
{
    static const struct {
        const char *name;
        int64_t ms;
    } units[] = {{"", 1000},   {"ms", 1},      {"s", 1000},
                 {"m", 60000}, {"h", 3600000}, {"d", 86400000}};

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (!strcmp(unit, units[i].name))
            return units[i].ms;
    return 0;
}

bool cli_parse_ms(const char *text, int64_t *ret)
{
    int64_t whole = 0, part = 0, scale = 1, unit;
    const char *s = text;

    for (; *s >= '0' && *s <= '9'; s++) {
        if (whole > INT64_MAX / 100 / 86400000)
            return false;
        whole = whole * 10 + (*s - '0');
    }
    if (*s == '.')
        for (s++; *s >= '0' && *s <= '9'; s++)
            if (scale < 1000000) {
                part = part * 10 + (*s - '0');
                scale *= 10;
            }
    unit = opts_unit(s);
    if (s == text || (text[0] == '.' && scale == 1) || unit == 0)
        return false;
    *ret = whole * unit + (part * unit + scale - 1) / scale;
    return true;
}

/* A plain decimal number of at most `max`. */
static bool opts_number(const char *text, uint64_t max, uint64_t *ret)
{
    uint64_t n = 0;

    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || n > (max - (*text - '0')) / 10)
            return false;
        n = n * 10 + (uint64_t)(*text - '0');
    }
    *ret = n;
    return true;
}

int cli_key(const struct cli_opts *o, const char *the, const char *key)
{
    if (!*key)
        return cli_usage(o->cmd, "%s KEY is empty", the);
    if (strlen(key) > HF_KEY_MAX)
        return cli_usage(o->cmd, "%s KEY is longer than %d bytes", the,
                         HF_KEY_MAX);
    return CLI_OK;
}

/* Is this a text for the option?  A note may be empty, and so may a command; an
 * empty value, heir or owner id comes from a variable that was never set. */
static int opts_text(const struct cli_opts *o, const struct cli_opt *opt,
                     const char *value)
{
    size_t max = opt->at == AT(note) || opt->at == AT(heir) ? HF_NOTE_MAX
                 : opt->at == AT(owner)                     ? HF_OWNER_MAX
                                                            : SIZE_MAX;

    if (opt->kind == OPT_WORD && !*value)
        return cli_usage(o->cmd, "--%s: the %s is empty", opt->name, opt->arg);
    if (strlen(value) > max)
        return cli_usage(o->cmd, "--%s: the %s is longer than %zu bytes",
                         opt->name, opt->arg, max);
    return CLI_OK;
}

/* Put one option's value into its place. */
static int opts_set(struct cli_opts *o, const struct cli_opt *opt,
                    const char *value)
{
    void *at = (char *)o + opt->at;
    uint64_t n;

    switch (opt->kind) {
    case OPT_FLAG:
    case OPT_CLEAR:
        *(bool *)at = opt->kind == OPT_FLAG;
        return CLI_OK;
    case OPT_TEXT:
    case OPT_WORD:
        if (opt->at == AT(url) && o->url)
            cli_url_wipe((char *)o->url); /* It is of no use any more. */
        *(const char **)at = value;
        return opts_text(o, opt, value);
    case OPT_TIME:
        if (!cli_parse_ms(value, at))
            return cli_usage(o->cmd,
                             "--%s: '%s' is no duration: write 500ms, 30s, "
                             "5m, 1h, 1d or a number of seconds",
                             opt->name, value);
        if (*(int64_t *)at == 0 && at != &o->wait_ms && at != &o->grace_ms &&
            at != &o->older_ms)
            return cli_usage(o->cmd, "--%s must be more than 0", opt->name);
        return CLI_OK;
    case OPT_CODE:
        if (!opts_number(value, 255, &n))
            return cli_usage(o->cmd, "--%s: '%s' is no number from 0 to 255",
                             opt->name, value);
        *(int *)at = (int)n;
        return CLI_OK;
    case OPT_COUNT:
        if (!opts_number(value, INT32_MAX, &n) || !n)
            return cli_usage(o->cmd, "--%s: '%s' is no number from 1 to %d",
                             opt->name, value, INT32_MAX);
        *(int *)at = (int)n;
        return CLI_OK;
    case OPT_AND:
        if (o->nand == CLI_AND_MAX)
            return cli_usage(o->cmd, "at most %d keys at once",
                             CLI_AND_MAX + 1);
        o->and [o->nand++] = value;
        return cli_key(o, "--and: the", value);
    case OPT_FENCE:
        if (!opts_number(value, UINT64_MAX, &o->fence))
            return cli_usage(o->cmd,
                             "--%s: '%s' is no number: write the fence that "
                             "'holdfast status' shows",
                             opt->name, value);
        o->has_fence = true;
        return CLI_OK;
    }
    return CLI_FAILED;
}

/* The option called `name` (of `len` bytes) or lettered `letter` that the
 * command takes; every command must take those that stand before its name. */
static const struct cli_opt *opts_named(const struct cli_cmd *cmd, char letter,
                                        const char *name, size_t len)
{
    size_t count;
    const struct cli_opt *table = cli_options(&count);

    for (size_t i = 0; i < count; i++) {
        const struct cli_opt *opt = &table[i];
        unsigned in = cmd ? cmd->bit : IN_SERVICE;

        if ((opt->in & in) != in)
            continue;
        if (name ? strlen(opt->name) == len && !strncmp(opt->name, name, len)
                 : letter == opt->letter && letter)
            return opt;
    }
    return NULL;
}

/* The same, under its own name or another. */
static const struct cli_opt *opts_find(const struct cli_cmd *cmd, char letter,
                                       const char *name, size_t len)
{
    const struct cli_opt *opt = opts_named(cmd, letter, name, len);

    for (size_t i = 0; !opt && i < sizeof(opts_aliases) / sizeof(*opts_aliases);
         i++) {
        const char *alias = opts_aliases[i].name;
        const char *means = opts_aliases[i].means;

        if (name ? strlen(alias) == len && !strncmp(alias, name, len)
                 : letter == opts_aliases[i].letter && letter)
            opt = opts_named(cmd, 0, means, strlen(means));
    }
    return opt;
}

/* Append the names of the commands that take a long option; one name can have
 * several lines in the table. */
static void opts_takers(const char *name, char *ret, size_t size)
{
    size_t count, used = 0;
    const struct cli_cmd *table = cli_commands(&count);

    ret[0] = '\0';
    for (size_t i = 0; i < count && used < size; i++)
        if (opts_named(&table[i], 0, name, strlen(name)))
            used += (size_t)snprintf(ret + used, size - used, "%s%s",
                                     used ? ", " : "", table[i].name);
}

/* Say what is wrong with a long option that the command does not take. */
static int opts_unknown(const struct cli_opts *o, const char *name, size_t len)
{
    char word[64], takers[128], text[GUESS_TEXT];
    struct guess guess = {.word = word};
    bool other = false;
    size_t count;
    const struct cli_opt *table = cli_options(&count);

    snprintf(word, sizeof(word), "%.*s", (int)len, name);
    for (size_t i = 0; i < count; i++) {
        if (!strcmp(table[i].name, word))
            other = true;
        if (o->cmd && table[i].in & o->cmd->bit && table[i].help)
            guess_try(&guess, table[i].name);
    }
    for (size_t i = 0; i < sizeof(opts_aliases) / sizeof(*opts_aliases); i++)
        if (opts_find(o->cmd, 0, opts_aliases[i].name,
                      strlen(opts_aliases[i].name)))
            guess_try(&guess, opts_aliases[i].name);
    if (!o->cmd)
        return cli_usage(NULL, "--%s cannot stand before the command's name",
                         word);
    if (other) {
        opts_takers(word, takers, sizeof(takers));
        return cli_usage(o->cmd, "'%s' takes no --%s; these do: %s",
                         o->cmd->name, word, takers);
    }
    return cli_usage(o->cmd, "'%s' has no option --%s%s", o->cmd->name, word,
                     guess_text(&guess, "--", text));
}

/* "--name", "--name=value" and "--name value".  Advances *i over a value. */
static int opts_long(struct cli_opts *o, int argc, char **argv, int *i)
{
    const char *name = argv[*i] + 2;
    const char *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    const struct cli_opt *opt = opts_find(o->cmd, 0, name, len);

    if (!opt)
        return opts_unknown(o, name, len);
    if (!opt->arg && eq)
        return cli_usage(o->cmd, "--%s takes no value", opt->name);
    if (!opt->arg || eq)
        return opts_set(o, opt, eq ? eq + 1 : "");
    if (*i + 1 >= argc)
        return cli_usage(o->cmd, "--%s needs a value", opt->name);
    return opts_set(o, opt, argv[++*i]);
}

/* "-n", "-nq", "-w5" and "-w 5". */
static int opts_short(struct cli_opts *o, int argc, char **argv, int *i)
{
    for (const char *s = argv[*i] + 1; *s; s++) {
        const struct cli_opt *opt = opts_find(o->cmd, *s, NULL, 0);
        int code;

        if (!opt && !o->cmd)
            return cli_usage(NULL, "-%c cannot stand before the command's name",
                             *s);
        if (!opt)
            return cli_usage(o->cmd, "'%s' has no option -%c", o->cmd->name,
                             *s);
        if (opt->arg) {
            if (!s[1] && *i + 1 >= argc)
                return cli_usage(o->cmd, "-%c needs a value", *s);
            return opts_set(o, opt, s[1] ? s + 1 : argv[++*i]);
        }
        code = opts_set(o, opt, "");
        if (code)
            return code;
    }
    return CLI_OK;
}

int cli_no_command(const char *word)
{
    struct guess guess = {.word = word};
    char text[GUESS_TEXT], shown[CLI_WORD];
    size_t count;
    const struct cli_cmd *table = cli_commands(&count);

    for (size_t i = 0; i < count; i++)
        guess_try(&guess, table[i].name);
    if (strpbrk(word, "@=") || strstr(word, "://"))
        return cli_usage(NULL, "%s is no command; give the URL with -u",
                         cli_word(word, shown));
    return cli_usage(NULL, "there is no command %s%s", cli_word(word, shown),
                     guess_text(&guess, "", text));
}

/* A word that is no option: the command's name, an argument, or the first word
 * of what is to be run (then *i goes to the end). */
static int opts_word(struct cli_opts *o, int argc, char **argv, int *i)
{
    char shown[CLI_WORD];

    if (!o->cmd) {
        o->cmd = cli_command_find(argv[*i]);
        if (!o->cmd)
            return cli_no_command(argv[*i]);
        return CLI_OK;
    }
    if (o->cmd->bit & IN_COMMAND && o->nargs == 1) {
        bool dashes = !strcmp(argv[*i], "--");

        o->dashes = o->dashes || dashes;
        o->command = argv + *i + dashes;
        *i = argc;
        return CLI_OK;
    }
    if (o->nargs == 2)
        return cli_usage(o->cmd, "%s is one argument too many",
                         cli_word(argv[*i], shown));
    o->args[o->nargs++] = argv[*i];
    return CLI_OK;
}

int cli_parse(int argc, char **argv, struct cli_opts *ret)
{
    int code = CLI_OK;
    bool literal = false;

    ret->wait_ms = -1;
    ret->grace_ms = -1;
    ret->older_ms = -1;
    ret->busy_exit = CLI_BUSY;
    ret->on_lost = "term";
    ret->command = argv + argc;
    for (int i = 1; i < argc && !code; i++) {
        const char *word = argv[i];

        if (literal || word[0] != '-' || !word[1])
            code = opts_word(ret, argc, argv, &i);
        else if (!strcmp(word, "--"))
            literal = true, ret->dashes = ret->nargs == 1;
        else if (word[1] == '-')
            code = opts_long(ret, argc, argv, &i);
        else
            code = opts_short(ret, argc, argv, &i);
    }
    if (!ret->url) {
        ret->url = getenv("HOLDFAST_URL");
        ret->url_from_env = true;
    }
    if (ret->nonblock)
        ret->wait_ms = 0;
    return code;
}
