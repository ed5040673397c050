/* SPDX-License-Identifier: MIT
 *
 * program.c - `holdfast torture`, `holdfast serve` and `holdfast top`: hand over
 * to holdfast-torture(1), holdfast-serve(1) and holdfast-top(1).
 *
 * They are programs of their own, because nobody needs them every day and the
 * command starts faster without what they need.  A program is looked for beside
 * this one, where all are installed, then where the build puts it, then in $PATH.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int program_become(const char *name, char **argv)
{
    char path[4096], full[64], *slash;
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 128);

    snprintf(full, sizeof(full), "holdfast-%s", name);
    path[len > 0 ? len : 0] = '\0';
    slash = strrchr(path, '/');
    argv[0] = full;
    if (slash) {
        snprintf(slash, 128, "/%s", full);
        execv(path, argv);
        snprintf(slash, 128, "/../%s/%s", name, full);
        execv(path, argv);
    }
    execvp(full, argv);
    cli_say("%s: %s: is it installed?", full, strerror(errno));
    return CLI_NOT_FOUND;
}

int cli_program(char **argv)
{
    static const char *const names[] = {"torture", "serve", "top"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(argv[0], names[i]))
            return program_become(names[i], argv);
    return -1;
}

static int program_command(const char *name, struct cli_opts *opts)
{
    char *argv[4] = {NULL};

    for (int i = 0; i < opts->nargs; i++)
        argv[i + 1] = (char *)(uintptr_t)opts->args[i];
    return program_become(name, argv);
}

int cmd_torture(struct cli_opts *opts)
{
    return program_command("torture", opts);
}

int cmd_serve(struct cli_opts *opts)
{
    return program_command("serve", opts);
}

int cmd_top(struct cli_opts *opts)
{
    return program_command("top", opts);
}
