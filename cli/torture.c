/* SPDX-License-Identifier: MIT
 *
 * torture.c - `holdfast torture`: hand over to holdfast-torture(1).
 *
 * That is a program of its own, because it forks and kills and nobody needs it
 * every day.  It is looked for beside this one, where both are installed, then
 * where the build puts it, then in $PATH.
 */
#include "cli.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TORTURE "holdfast-torture"

int cli_torture(char **argv)
{
    static const char *const places[] = {"/" TORTURE, "/../torture/" TORTURE};
    char path[4096], *slash;
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 64);
    static char name[] = TORTURE;

    path[len > 0 ? len : 0] = '\0';
    slash = strrchr(path, '/');
    argv[0] = name;
    for (size_t i = 0; slash && i < sizeof(places) / sizeof(places[0]); i++) {
        memcpy(slash, places[i], strlen(places[i]) + 1);
        execv(path, argv);
    }
    execvp(name, argv);
    cli_say("%s: %s: is it installed?", name, strerror(errno));
    return CLI_NOT_FOUND;
}

int cmd_torture(struct cli_opts *opts)
{
    char *argv[4] = {NULL};

    for (int i = 0; i < opts->nargs; i++)
        argv[i + 1] = (char *)(uintptr_t)opts->args[i];
    return cli_torture(argv);
}
