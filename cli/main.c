/* SPDX-License-Identifier: MIT
 *
 * main.c - the command `holdfast`: pick a command and run it.
 *
 * Everything else is in commands.c and in the files of the commands, so that
 * the tests can link all of it without this one function.
 */
#include "cli.h"

#include <string.h>

int main(int argc, char **argv)
{
    struct cli_opts opts = {0};
    int code;

    if (argc == 2 &&
        (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V"))) {
        printf("holdfast %s\n", hf_version());
        return cli_done();
    }
    code = cli_parse(argc, argv, &opts);
    if (code)
        return code;
    if (opts.help)
        return opts.cmd ? cli_help(opts.cmd) : cli_overview();
    if (!opts.cmd)
        return cli_usage(NULL, "no command is given");
    return opts.cmd->run(&opts);
}
