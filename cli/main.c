/* SPDX-License-Identifier: MIT
 *
 * main.c - the command `holdfast`: pick a command and run it.
 *
 * Everything else is in commands.c and in the files of the commands, so that
 * the tests can link all of it without this one function.
 */
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* Whoever starts us with stdin, stdout or stderr closed must not find a lock
 * file under that number.  What fills the gap cannot be used, as if it were
 * closed, and is closed by exec, so a command that we run finds no difference.
 */
static void main_fill_gaps(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        int mode = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;

        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", mode | O_CLOEXEC) < 0)
            _exit(CLI_FAILED);
    }
}

int main(int argc, char **argv)
{
    struct cli_opts opts = {0};
    int code;

    main_fill_gaps();
    if (argc == 2 &&
        (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V"))) {
        printf("holdfast %s\n", hf_version());
        return cli_done();
    }
    code = argc > 1 ? cli_program(argv + 1) : -1;
    if (code >= 0)
        return code; /* Their options are their own. */
    code = cli_parse(argc, argv, &opts);
    if (opts.url && !opts.url_from_env)
        opts.url = cli_url_hide((char *)opts.url);
    if (code)
        return code;
    if (opts.help)
        return opts.cmd ? cli_help(opts.cmd) : cli_overview();
    if (!opts.cmd)
        return cli_usage(NULL, "no command is given");
    return end_process(opts.cmd->run(&opts));
}
