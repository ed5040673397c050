/* SPDX-License-Identifier: MIT
 *
 * machine.c - where the figures were measured: without it they mean nothing.
 */
#include "bench.h"
#include "holdfast.h"

#include <gnu/libc-version.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The first line of a file, or what follows `name` and ": " in it; "?" if it
 * cannot be read.  Characters that JSON minds are left out. */
static void look_up(const char *path, const char *name, char *ret, size_t size)
{
    FILE *file = fopen(path, "re");
    char line[512];
    const char *from;
    size_t len = 0;

    snprintf(ret, size, "?");
    while (file && fgets(line, sizeof(line), file)) {
        if (name && strncmp(line, name, strlen(name)) != 0)
            continue;
        from = name ? strstr(line, ": ") : line;
        if (!from)
            continue;
        for (from += name ? 2 : 0; *from && *from != '\n'; from++)
            if (*from != '"' && *from != '\\' && len + 1 < size)
                ret[len++] = *from;
        ret[len] = '\0';
        break;
    }
    if (file)
        fclose(file);
}

static void tell(const char *name, const char *value)
{
    printf("  %-12s %s\n", name, value);
    bench_json("\"machine\":\"%s\",\"value\":\"%s\"", name, value);
}

/* With any argument, only what may have changed: the load, after all. */
int main(int argc, char **argv)
{
    char text[600], model[256];
    struct utsname un;

    (void)argv;
    uname(&un);
    bench_begin("machine", "Machine");
    if (argc > 1) {
        look_up("/proc/loadavg", NULL, text, sizeof(text));
        tell("load after", text);
        return 0;
    }
    look_up("/proc/cpuinfo", "model name", model, sizeof(model));
    snprintf(text, sizeof(text), "%ld x %s", sysconf(_SC_NPROCESSORS_ONLN),
             model);
    tell("processors", text);
    look_up("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", NULL, text,
            sizeof(text));
    tell("governor", text);
    snprintf(text, sizeof(text), "%s %s %s", un.sysname, un.release,
             un.machine);
    tell("kernel", text);
    look_up("/sys/devices/system/clocksource/clocksource0/current_clocksource",
            NULL, text, sizeof(text));
    tell("clock", text);
    snprintf(text, sizeof(text), "glibc %s, compiler %s",
             gnu_get_libc_version(), __VERSION__);
    tell("built with", text);
    tell("holdfast", hf_version());
    look_up("/proc/loadavg", NULL, text, sizeof(text));
    tell("load before", text);
    tell("precedence", sched_getscheduler(0) == SCHED_OTHER
                           ? "none"
                           : "real-time, before all other work");
    if (bench_quick())
        tell("rounds", "few, because QUICK is set");
    return 0;
}
