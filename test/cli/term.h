/* SPDX-License-Identifier: MIT
 *
 * term.h - a pseudo-terminal with a tiny shell on it, for the tests.
 *
 * The shell is a session leader that starts one job in the foreground, tells
 * when that stops or ends, and continues it in the foreground when asked, as an
 * interactive shell does.  What it tells, one line each: `pid N`, `stopped N`,
 * and at the end `status N` with N as in $?, how the job ended, and whether its
 * group had the terminal then.
 *
 * Nothing here waits for a time to pass; everything waits for something to
 * happen, for at most PATIENCE_MS.
 */
#ifndef TERM_H
#define TERM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define PATIENCE_MS 60000

struct term {
    int master;
    int told;     /* what the shell tells */
    int commands; /* what it is told: f to continue in the foreground */
    pid_t shell;
    pid_t job;
    char screen[16384];
    char news[1024];
};

/* Signals as a program expects them, whoever runs the tests. */
void signals_default(void);

int64_t now_ms(void);

void term_open(struct term *t, const char *const *argv);
void term_close(struct term *t);

/* Wait until `text` is on the screen, or the shell has told it. */
bool term_sees(struct term *t, const char *text);
bool term_told(struct term *t, const char *text);

/* Wait for the end; whether the status is `code`. */
bool term_status(struct term *t, int code);

bool term_type(struct term *t, const char *text);
void term_foreground(struct term *t);

#endif
