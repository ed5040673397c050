/* SPDX-License-Identifier: MIT
 *
 * opts.c - the command line, and which addresses are allowed.
 *
 * Without a token everybody who can connect can read, so only this machine may:
 * another address needs --token-file.
 */
#include "serve.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../cli/cli.h"

enum { O_ALLOW = 256, O_HOST, O_LABELS, O_PREFIX, O_TOKEN };

static const struct option options[] = {
    {"allow-break", no_argument, NULL, O_ALLOW},
    {"help", no_argument, NULL, 'h'},
    {"host", required_argument, NULL, O_HOST},
    {"label-keys", required_argument, NULL, O_LABELS},
    {"listen", required_argument, NULL, 'l'},
    {"prefix", required_argument, NULL, O_PREFIX},
    {"token-file", required_argument, NULL, O_TOKEN},
    {"url", required_argument, NULL, 'u'},
    {"version", no_argument, NULL, 'V'},
    {NULL, 0, NULL, 0},
};

static void opts_help(void)
{
    puts(
        "Usage: holdfast serve [options]\n"
        "\n"
        "Show the locks of one or several services in a browser, and as metrics\n"
        "for Prometheus.  Holds no lock.\n"
        "\n"
        "  holdfast serve -u redis://localhost\n"
        "\n"
        "Options:\n"
        "  -u, --url URL            a lock service, once for each (else "
        "$HOLDFAST_URL,\n"
        "                           else file:)\n"
        "  -l, --listen ADDR:PORT   where to listen (127.0.0.1:9707)\n"
        "      --token-file FILE    a token that clients must send; needed "
        "unless ADDR\n"
        "                           is of this machine only\n"
        "      --host NAME          another name that clients use for ADDR\n"
        "      --prefix TEXT        show only keys that begin with it\n"
        "      --label-keys PREFIX  give keys that begin with it a label in "
        "/metrics\n"
        "      --allow-break        let the page break locks\n"
        "  -h, --help               show this help\n"
        "  -V, --version            show the version\n"
        "\n"
        "Exit status: 64 usage, 66 no token, 71 no address; 0 after a signal.");
}

/* A value may be a URL that was meant for another option. */
static int opts_wrong(const char *text, const char *value)
{
    char shown[CLI_WORD], clean[4 * CLI_WORD];

    cli_clean(value ? cli_word(value, shown) : "", clean, sizeof(clean));
    fprintf(stderr, "holdfast-serve: %s%s%s (see 'holdfast serve --help')\n",
            text, value ? ": " : "", clean);
    return 64;
}

/* Say so if other users can read the token. */
static void opts_secret(const char *file, FILE *in)
{
    struct stat sb;

    if (!fstat(fileno(in), &sb) && S_ISREG(sb.st_mode) &&
        (sb.st_mode & (S_IRGRP | S_IROTH)))
        fprintf(stderr,
                "holdfast-serve: warning: %s can be read by others: chmod 600 "
                "keeps the token secret\n",
                file);
}

/* getopt() itself would show the value of an option that it does not know. */
static int opts_unknown(const char *word)
{
    char name[64];

    if (strncmp(word, "--", 2) != 0)
        return opts_wrong("an option is unknown or lacks its value", NULL);
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, "="), word);
    return opts_wrong("this option is unknown, or its value is missing or too "
                      "much",
                      name);
}

/* There is no token in the file. */
static int opts_no_token(const char *file, const char *why)
{
    fprintf(stderr, "holdfast-serve: --token-file %s: %s\n", file, why);
    return 66;
}

/* The first line of the file, without its end, which may be CR LF.  `ret` keeps
 * bytes that are 0. */
static int opts_token_read(const char *file, char *ret, size_t size,
                           size_t *len)
{
    FILE *in = fopen(file, "re");
    int c = 0, error;

    if (!in)
        return opts_no_token(file, strerror(errno));
    opts_secret(file, in);
    *len = 0;
    errno = 0;
    while (*len < size && (c = getc(in)) != EOF && c != '\n')
        ret[(*len)++] = (char)c;
    error = ferror(in) ? errno : 0;
    fclose(in);
    if (error)
        return opts_no_token(file, error == EISDIR ? "it is a directory"
                                                   : strerror(error));
    if (c == '\n' && *len && ret[*len - 1] == '\r')
        (*len)--;
    if (!*len)
        return opts_no_token(file, c == EOF ? "it is empty"
                                            : "its first line is empty");
    return 0;
}

/* A header carries visible ASCII characters as they are; it loses blanks at its
 * ends, and browsers refuse or change the rest. */
static int opts_token(const char *file, struct serve_opts *ret)
{
    static char token[512];
    size_t len;
    int st = opts_token_read(file, token, sizeof(token), &len);

    if (st)
        return st;
    if (len > 510)
        return opts_wrong("a token has at most 510 characters", NULL);
    for (size_t i = 0; i < len; i++)
        if (token[i] < '!' || token[i] > '~')
            return opts_wrong("a token has visible ASCII characters only, "
                              "because a header must carry it: no blanks, "
                              "controls or others",
                              NULL);
    if (len < 16)
        return opts_wrong("a token has at least 16 characters", NULL);
    token[len] = '\0';
    ret->token = token;
    return 0;
}

/* Is it of this machine only?  -1 if it is no address. */
static int opts_loopback(const char *listen)
{
    const char *colon = strrchr(listen, ':');
    struct in_addr four;
    struct in6_addr six;
    char host[256], *end;
    unsigned long port;

    if (!colon || colon == listen || (size_t)(colon - listen) >= sizeof(host))
        return -1;
    port = strtoul(colon + 1, &end, 10);
    if (!colon[1] || *end || port > 65535 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1))
        return -1;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - listen), listen);
    if (host[0] == '[' && host[strlen(host) - 1] == ']') {
        host[strlen(host) - 1] = '\0';
        if (inet_pton(AF_INET6, host + 1, &six) != 1)
            return -1;
        return IN6_IS_ADDR_LOOPBACK(&six) ? 1 : 0;
    }
    if (inet_pton(AF_INET, host, &four) != 1)
        return -1;
    return ntohl(four.s_addr) >> 24 == 127 ? 1 : 0;
}

static int opts_check(struct serve_opts *ret)
{
    const char *url = getenv("HOLDFAST_URL");
    int loopback = opts_loopback(ret->listen);

    if (!ret->services) {
        if (url && !*url)
            return opts_wrong("HOLDFAST_URL is empty", NULL);
        ret->urls[ret->services++] = url ? url : "file:";
    }
    if (loopback < 0)
        return opts_wrong("--listen wants ADDRESS:PORT, such as "
                          "127.0.0.1:9707 or [::1]:9707",
                          ret->listen);
    ret->loopback = loopback;
    if (!loopback && !ret->token)
        return opts_wrong("an address that others can reach needs --token-file",
                          ret->listen);
    if (!loopback)
        fprintf(stderr,
                "holdfast-serve: warning: %s is not encrypted: whoever sees "
                "the traffic sees the token; put a proxy with TLS before it\n",
                ret->listen);
    return 0;
}

/* Append to a list of at most `max`. */
static int opts_add(const char **list, int *n, int max, const char *name,
                    const char *value)
{
    if (*n == max)
        return opts_wrong("too many of an option", name);
    list[(*n)++] = value;
    return 0;
}

static int opts_one(int c, const char *word, struct serve_opts *ret)
{
    switch (c) {
    case 'u':
        if (!*optarg)
            return opts_wrong("--url is empty", NULL);
        return opts_add(ret->urls, &ret->services, SERVE_SERVICES, "--url",
                        cli_url_hide(optarg));
    case 'l':
        ret->listen = optarg;
        return 0;
    case O_ALLOW:
        ret->allow_break = true;
        return 0;
    case O_HOST:
        if (!*optarg)
            return opts_wrong("--host is empty", NULL);
        return opts_add(ret->hosts, &ret->nhosts, SERVE_HOSTS, "--host",
                        optarg);
    case O_LABELS:
        return opts_add(ret->labels, &ret->nlabels, SERVE_PREFIXES,
                        "--label-keys", optarg);
    case O_PREFIX:
        ret->prefix = optarg;
        return 0;
    case O_TOKEN:
        return opts_token(optarg, ret);
    default:
        return opts_unknown(word);
    }
}

int serve_opts(int argc, char **argv, struct serve_opts *ret)
{
    int c, st;

    *ret = (struct serve_opts){.prefix = "", .listen = "127.0.0.1:9707"};
    opterr = 0;
    while ((c = getopt_long(argc, argv, "u:l:hV", options, NULL)) != -1) {
        if (c == 'h' || c == 'V') {
            c == 'h' ? opts_help() : (void)printf("%s\n", hf_version());
            exit(0);
        }
        st = opts_one(c, argv[optind - 1], ret);
        if (st)
            return st;
    }
    if (optind < argc)
        return opts_wrong("unexpected argument; a URL goes behind -u",
                          argv[optind]);
    return opts_check(ret);
}
