/* SPDX-License-Identifier: MIT
 *
 * cpu.c - processor time, of this process and of the server beside it.
 *
 * The server is the first one of the directory that test/servers names.  The
 * kernel tells in nanoseconds what each living thread has run; time of threads
 * that have ended is not in it, which servers with a pool do not mind.
 */
#include "bench.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

double bench_cpu_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static long number_in(const char *path)
{
    FILE *file = fopen(path, "re");
    char text[64] = "0";
    long number;

    number = file && fgets(text, sizeof(text), file) ? atol(text) : 0;
    if (file)
        fclose(file);
    return number;
}

static long server_pid(void)
{
    const char *dir = getenv("HF_TEST_MEMBERS");
    char path[300];

    if (!dir)
        dir = getenv("HF_ZK_DIR");
    snprintf(path, sizeof(path), "%s/1/pid", dir ? dir : "");
    return number_in(path);
}

double bench_server_us(void)
{
    char path[600];
    long pid = server_pid();
    double total = 0;
    struct dirent *each;
    DIR *tasks;

    snprintf(path, sizeof(path), "/proc/%ld/task", pid);
    tasks = pid ? opendir(path) : NULL;
    if (!tasks)
        bench_die("no server: run me through test/servers");
    while ((each = readdir(tasks)))
        if (each->d_name[0] != '.') {
            snprintf(path, sizeof(path), "/proc/%ld/task/%s/schedstat", pid,
                     each->d_name);
            total += (double)number_in(path) / 1e3;
        }
    closedir(tasks);
    return total;
}
