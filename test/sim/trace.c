/* SPDX-License-Identifier: MIT
 *
 * trace.c - the last things that happened, and what was wrong.
 *
 * Nothing is written while a world goes well.  A seed that fails is lived
 * through once more with the trace on; as the seed decides everything, it fails
 * again, and then the last lines show how it came to that.
 */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>

#define LINES 20000
#define WIDTH 180

static char lines[LINES][WIDTH];
static unsigned long nlines;

void sim_trace_begin(void)
{
    nlines = 0;
}

static void trace_add(const char *fmt, va_list ap)
    __attribute__((format(printf, 1, 0)));

static void trace_add(const char *fmt, va_list ap)
{
    char *line = lines[nlines++ % LINES];
    int len = snprintf(line, WIDTH, "%9.3f ", (double)sim.now / 1000);

    if (sim.proc)
        len += snprintf(line + len, WIDTH - (size_t)len, "p%d  ", sim.proc->id);
    else
        len += snprintf(line + len, WIDTH - (size_t)len, "    ");
    vsnprintf(line + len, WIDTH - (size_t)len, fmt, ap);
}

void sim_trace(const char *fmt, ...)
{
    va_list ap;

    if (!sim.tracing)
        return;
    va_start(ap, fmt);
    trace_add(fmt, ap);
    va_end(ap);
}

void sim_trace_print(unsigned long n)
{
    unsigned long i = nlines > n ? nlines - n : 0;

    if (nlines > LINES && i < nlines - LINES)
        i = nlines - LINES;
    printf("#        ms who what\n");
    for (; i < nlines; i++)
        printf("# %s\n", lines[i % LINES]);
}

void sim_fail(const char *fmt, ...)
{
    va_list ap;

    if (sim.failed)
        return;
    sim.failed = true;
    va_start(ap, fmt);
    vsnprintf(sim.why, sizeof(sim.why), fmt, ap);
    va_end(ap);
    sim_trace("FAILED  %s", sim.why);
}
