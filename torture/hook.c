/* SPDX-License-Identifier: MIT
 *
 * hook.c - servers, by the command that the user names.
 *
 * It is run by the shell as `HOOK VERB MEMBER NUMBER' and returns when that is
 * done.  `HOOK verbs' prints what it can do; one that does not know that word
 * can kill, start, freeze, thaw and move a clock.
 */
#include "torture.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

/* The first line that a word of the hook prints; false if it fails. */
static bool hook_line(const struct run *run, const char *words, char *ret,
                      size_t size)
{
    char command[1024];
    FILE *pipe;

    snprintf(command, sizeof(command), "%s %s 2>/dev/null", run->hook, words);
    pipe = popen(command, "re");
    if (!pipe)
        return false;
    if (!fgets(ret, (int)size, pipe))
        ret[0] = '\0';
    ret[strcspn(ret, "\n")] = '\0';
    return pclose(pipe) == 0;
}

/* `HOOK count' prints how many servers there are. */
bool hook_count(struct run *run)
{
    char line[64] = "", verbs[200] = "";

    if (!hook_line(run, "count", line, sizeof(line)))
        return false;
    run->members = (int)strtol(line, NULL, 10);
    if (!hook_line(run, "verbs", verbs, sizeof(verbs)))
        snprintf(verbs, sizeof(verbs), "kill start freeze thaw clock");
    snprintf(run->hook_verbs, sizeof(run->hook_verbs), " %s ", verbs);
    return run->members >= 0 && run->members <= MAX_MEMBERS;
}

bool hook_can(const struct run *run, const char *verb)
{
    char word[32];

    snprintf(word, sizeof(word), " %s ", verb);
    return run->hook && strstr(run->hook_verbs, word) != NULL;
}

bool hook_call(struct run *run, const char *verb, int member, int64_t number)
{
    char command[1024];
    char *argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c", command,
                    NULL};
    int status = -1;
    pid_t pid;

    snprintf(command, sizeof(command), "%s %s %d %lld", run->hook, verb, member,
             (long long)number);
    if (posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ) == 0)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
            continue;
    if (status)
        fprintf(stderr, "holdfast-torture: failed: %s\n", command);
    return status == 0;
}

/* The number that `HOOK VERB MEMBER' prints; 0 if it is none. */
int hook_ask(struct run *run, const char *verb, int member)
{
    char words[64], line[64] = "";

    snprintf(words, sizeof(words), "%s %d", verb, member);
    if (!hook_line(run, words, line, sizeof(line)))
        return 0;
    return (int)strtol(line, NULL, 10);
}
