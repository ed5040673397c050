/* SPDX-License-Identifier: MIT
 *
 * trace.h - how many system calls an operation makes, counted and not guessed.
 */
#ifndef TRACE_H
#define TRACE_H

struct trace_work {
    void (*prepare)(void *arg);        /* not counted */
    void (*repeat)(void *arg, long n); /* counted: n operations */
    void *arg;
    long ops;
};

/* Run the work in a child, stopping it at every system call between the two
 * ends of repeat(), in all its threads.  Prints calls per operation, by name,
 * and returns their sum; a negative number if the system does not allow it. */
double trace_calls(const char *name, const struct trace_work *);

#endif
