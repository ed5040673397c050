/* SPDX-License-Identifier: MIT
 *
 * args.c - any words as the command line: understood, or refused with a usage
 * message; and any word as a handle, a duration and as something to be shown.
 *
 * The words of the input are separated by newlines.
 */
#include "cli.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void must(bool good)
{
    if (!good)
        abort();
}

static void check_handle(const char *word)
{
    struct cli_handle handle, again;
    char text[CLI_HANDLE_MAX];

    if (!cli_handle_decode(word, &handle))
        return;
    cli_handle_encode(&handle, text);
    must(cli_handle_decode(text, &again));
    must(!memcmp(&handle, &again, sizeof(handle)));
}

static void check_shown(const char *word)
{
    char line[64], ago[32];
    int64_t ms = -1;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    must(out);
    cli_clean(word, line, sizeof(line));
    must(strlen(line) < sizeof(line) && !strpbrk(line, "\n\r\033"));
    cli_shell_word(out, word);
    cli_json_text(out, word);
    must(!fclose(out) && text);
    free(text);
    if (cli_parse_ms(word, &ms)) {
        must(ms >= 0);
        must(strlen(cli_ago(ms, ago)) < sizeof(ago));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    char name[] = "holdfast", *argv[32] = {name}, *text = malloc(len + 1), *at;
    struct cli_opts opts = {.cmd = NULL};
    int argc = 1, code;

    must(text);
    memcpy(text, bytes, len);
    text[len] = '\0';
    for (at = text; at && *at && argc < 31; argc++) {
        argv[argc] = at;
        at = strchr(at, '\n');
        if (at)
            *at++ = '\0';
        check_handle(argv[argc]);
        check_shown(argv[argc]);
    }
    code = cli_parse(argc, argv, &opts);
    must(code == CLI_OK || code == CLI_USAGE);
    must(code || opts.nargs <= 2);
    free(text);
    return 0;
}
