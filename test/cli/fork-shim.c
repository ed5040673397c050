/* SPDX-License-Identifier: MIT
 *
 * fork-shim.c - lets something happen to holdfast around a fork of its own.
 *
 * Preloaded with $FORK_SHIM=stop-before:N or kill-after:N it stops the process
 * before its Nth fork, or kills it right after that; stop-child:N stops what the
 * Nth fork has made.  No signal from outside can be timed as well.  The variables are removed at the start, so that
 * nothing that the process runs is touched.  `run` forks the guard first, then
 * the command, then the --on-lost command.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char shim_what[16];
static int shim_nth, shim_count;

__attribute__((constructor)) static void shim_read(void)
{
    const char *text = getenv("FORK_SHIM");

    if (!text || sscanf(text, "%15[^:]:%d", shim_what, &shim_nth) != 2)
        shim_nth = 0;
    unsetenv("FORK_SHIM");
    unsetenv("LD_PRELOAD");
}

pid_t fork(void)
{
    pid_t (*real)(void);
    bool now = ++shim_count == shim_nth;
    pid_t pid;

    *(void **)&real = dlsym(RTLD_NEXT, "fork");
    if (now && !strcmp(shim_what, "stop-before"))
        raise(SIGSTOP);
    pid = real();
    if (now && pid > 0 && !strcmp(shim_what, "kill-after"))
        raise(SIGKILL);
    if (now && pid == 0 && !strcmp(shim_what, "stop-child"))
        raise(SIGSTOP);
    return pid;
}
