/* SPDX-License-Identifier: MIT
 *
 * opts.c - see opts.h.
 */
#include "opts.h"
#include "torture.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cli/cli.h"

enum {
    O_CHECK = 256,
    O_CLIENT,
    O_DIR,
    O_FAULTS,
    O_HISTORY,
    O_INSIDE,
    O_POINTS,
    O_PREFIX,
    O_PROMISE,
    O_SEED,
    O_SERVER,
    O_SHIM,
    O_SLACK,
    O_TRIP,
    O_WORKLOAD
};

static const struct option options[] = {
    {"check", required_argument, NULL, O_CHECK},
    {"client", required_argument, NULL, O_CLIENT},
    {"clock-shim", required_argument, NULL, O_SHIM},
    {"dir", required_argument, NULL, O_DIR},
    {"duration", required_argument, NULL, 'd'},
    {"faults", required_argument, NULL, O_FAULTS},
    {"help", no_argument, NULL, 'h'},
    {"history", required_argument, NULL, O_HISTORY},
    {"inside", required_argument, NULL, O_INSIDE},
    {"keys", required_argument, NULL, 'k'},
    {"point-shim", required_argument, NULL, O_POINTS},
    {"prefix", required_argument, NULL, O_PREFIX},
    {"processes", required_argument, NULL, 'p'},
    {"promise", required_argument, NULL, O_PROMISE},
    {"seed", required_argument, NULL, O_SEED},
    {"server", required_argument, NULL, O_SERVER},
    {"slack", required_argument, NULL, O_SLACK},
    {"threads", required_argument, NULL, 'T'},
    {"trip", required_argument, NULL, O_TRIP},
    {"ttl", required_argument, NULL, 't'},
    {"verbose", no_argument, NULL, 'v'},
    {"version", no_argument, NULL, 'V'},
    {"workload", required_argument, NULL, O_WORKLOAD},
    {NULL, 0, NULL, 0},
};

static void help(void)
{
    int count;
    const struct fault *list = fault_list(&count);

    printf(
        "Usage: holdfast-torture [options] [URL]\n"
        "       holdfast-torture --check FILE\n\n"
        "Hurt the clients of a lock service and prove from their history that\n"
        "the locks held.  The servers are not touched without --server.\n\n"
        "  -d, --duration DUR      faults for so long (10s)\n"
        "  -t, --ttl DUR           the lease (1500ms)\n"
        "  -p, --processes N       of clients (4)\n"
        "  -T, --threads N         in each of them (2)\n"
        "  -k, --keys N            that they want (2)\n"
        "      --faults LIST       names or groups (client,net)\n"
        "      --server CMD        how to hurt servers, see below\n"
        "      --workload LIST     what clients do (all of it, see below)\n"
        "      --promise WHAT      exclusive (default) or fence\n"
        "      --history FILE      keep the history there\n"
        "      --check FILE        judge a history that was kept\n"
        "      --prefix TEXT       of all keys (holdfast-torture.)\n"
        "      --seed N            of all chance (from the clock)\n"
        "      --trip DUR          of every round trip at least (0)\n"
        "      --slack DUR         on top of twice the lease, at the end (2s)\n"
        "      --clock-shim LIB    preloaded into clients, for `wall'\n"
        "      --point-shim LIB    preloaded into clients, for `point-kill'\n"
        "  -v, --verbose           say each fault when it happens\n\n"
        "Faults, by group:\n");
    for (int i = 0; i < count; i++)
        printf("  %-7s %-8s %s\n", list[i].group, list[i].name, list[i].help);
    printf("\nWorkloads:");
    for (int i = 0; workload_name(i); i++)
        printf(" %s", workload_name(i));
    printf(
        "\n\nCMD is called as CMD count, kill N, start N, freeze N, thaw N,\n"
        "clock N SECONDS and what CMD verbs prints; see holdfast-torture(1).  Exit status: 0 clean,\n"
        "1 violated, 3 too little happened, 64 usage, 69 unavailable.\n");
}

/* A word may be a URL that was meant for another place. */
static int usage(const char *what, const char *which)
{
    char shown[CLI_WORD], clean[4 * CLI_WORD];

    cli_clean(cli_word(which, shown), clean, sizeof(clean));
    fprintf(stderr, "holdfast-torture: %s: %s: see 'holdfast-torture --help'\n",
            what, clean);
    return 64;
}

/* getopt() itself would show the value of an option that it does not know. */
static int usage_option(const char *word)
{
    char name[64];

    if (strncmp(word, "--", 2) != 0) {
        fputs("holdfast-torture: wrong option, or its value is missing: see "
              "'holdfast-torture --help'\n",
              stderr);
        return 64;
    }
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    return usage("wrong option", name);
}

/* The values that an option takes. */
static void expect(FILE *out, int letter)
{
    int count;
    const struct fault *list = fault_list(&count);

    switch (letter) {
    case 'd':
    case O_SLACK:
    case O_TRIP:
        fputs("a duration such as 500ms, 30s or 2m", out);
        break;
    case 't':
        fputs("a duration of at least 100ms", out);
        break;
    case 'p':
        fprintf(out, "a number from 1 to %d", MAX_PROCESSES);
        break;
    case 'T':
        fprintf(out, "a number from 1 to %d", MAX_THREADS);
        break;
    case 'k':
        fprintf(out, "a number from 1 to %d", MAX_KEYS);
        break;
    case O_SEED:
        fputs("a number greater than 0", out);
        break;
    case O_PROMISE:
        fputs("'exclusive' or 'fence'", out);
        break;
    case O_WORKLOAD:
        fputs("a list of", out);
        for (int i = 0; workload_name(i); i++)
            fprintf(out, "%s %s", i ? "," : "", workload_name(i));
        break;
    default:
        fputs("'none' or a list of groups and faults:", out);
        for (int i = 0; i < count; i++)
            if (!i || strcmp(list[i].group, list[i - 1].group) != 0)
                fprintf(out, "%s %s, %s", i ? "," : "", list[i].group,
                        list[i].name);
            else
                fprintf(out, ", %s", list[i].name);
    }
}

/* An option with a value that it does not take. */
static int usage_value(int letter, const char *value)
{
    const struct option *o = options;
    char shown[CLI_WORD], clean[4 * CLI_WORD];

    while (o->name && o->val != letter)
        o++;
    cli_clean(cli_word(value, shown), clean, sizeof(clean));
    fprintf(stderr, "holdfast-torture: --%s %s: expected ", o->name, clean);
    expect(stderr, letter);
    fputc('\n', stderr);
    return 64;
}

static bool number(const char *text, int64_t least, int64_t most, int64_t *ret)
{
    char *end;

    *ret = strtoll(text, &end, 10);
    return *text && !*end && *ret >= least && *ret <= most;
}

/* "500ms", "30s", "2m", or seconds. */
static bool duration(const char *text, int64_t *ret)
{
    char *end;
    double value = strtod(text, &end);
    double unit = !*end || !strcmp(end, "s") ? 1000
                  : !strcmp(end, "ms")       ? 1
                  : !strcmp(end, "m")        ? 60000
                  : !strcmp(end, "h")        ? 3600000
                                             : 0;

    if (end == text || !unit || !(value >= 0) || value * unit > 1e12)
        return false;
    *ret = (int64_t)(value * unit);
    return true;
}

static bool small(const char *text, int most, int *ret)
{
    int64_t value;

    if (!number(text, 1, most, &value))
        return false;
    *ret = (int)value;
    return true;
}

/* One option with its argument; false if the argument is wrong. */
static bool opts_take(struct opts *o, int letter, const char *arg)
{
    int64_t value;
    char why[128];

    switch (letter) {
    case 'd':
        return duration(arg, &o->duration_ms);
    case 't':
        return duration(arg, &o->ttl_ms) && o->ttl_ms >= 100;
    case 'p':
        return small(arg, MAX_PROCESSES, &o->processes);
    case 'T':
        return small(arg, MAX_THREADS, &o->threads);
    case 'k':
        return small(arg, MAX_KEYS, &o->keys);
    case O_SLACK:
        return duration(arg, &o->slack_ms);
    case O_TRIP:
        return duration(arg, &o->trip_ms);
    case O_SEED:
        if (!number(arg, 1, INT64_MAX, &value))
            return false;
        o->seed = (uint64_t)value;
        return true;
    case O_FAULTS:
        o->faults_named = true;
        return fault_parse(arg, &o->faults, why, sizeof(why));
    case O_WORKLOAD:
        return workload_parse(arg, &o->workloads);
    case O_PROMISE:
        o->by_fence = !strcmp(arg, "fence");
        return o->by_fence || !strcmp(arg, "exclusive");
    default:
        return false;
    }
}

/* Options that are just a text; NULL if it is none of them. */
static const char **opts_text(struct opts *o, int letter)
{
    switch (letter) {
    case O_CHECK:
        return &o->check;
    case O_CLIENT:
        return &o->client;
    case O_DIR:
        return &o->dir;
    case O_HISTORY:
        return &o->history;
    case O_INSIDE:
        return &o->inside;
    case O_POINTS:
        return &o->points;
    case O_PREFIX:
        return &o->prefix;
    case O_SERVER:
        return &o->hook;
    case O_SHIM:
        return &o->shim;
    default:
        return NULL;
    }
}

int opts_parse(int argc, char **argv, struct opts *ret)
{
    const char **text;
    int letter;

    *ret = (struct opts){.processes = 4,
                         .threads = 2,
                         .keys = 2,
                         .duration_ms = 10000,
                         .ttl_ms = 1500,
                         .slack_ms = 2000,
                         .prefix = "holdfast-torture.",
                         .seed = (uint64_t)history_now(),
                         .faults = fault_default()};
    opterr = 0;
    while ((letter = getopt_long(argc, argv, "d:t:p:T:k:hvV", options, NULL)) !=
           -1) {
        text = opts_text(ret, letter);
        if (letter == '?')
            return usage_option(argv[optind - 1]);
        if (letter == 'h')
            return help(), 0;
        if (letter == 'V')
            return printf("holdfast-torture %s\n", hf_version()), 0;
        if (letter == 'v')
            ret->verbose = true;
        else if (text)
            *text = optarg;
        else if (!opts_take(ret, letter, optarg))
            return usage_value(letter, optarg);
    }
    if (argc - optind > 1)
        return usage("one URL is enough", argv[optind + 1]);
    ret->url =
        optind < argc ? cli_url_hide(argv[optind]) : getenv("HOLDFAST_URL");
    if (!ret->url)
        ret->url = "file:";
    return -1;
}
