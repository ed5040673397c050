/* SPDX-License-Identifier: MIT
 *
 * program.h - the real `consul lock`, whose request to lock a key comes late.
 *
 * It looks at the key and locks it in two requests, the second without a condition
 * on what it saw.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdbool.h>

/* Have it look at the lock `key`, by way of a front, and keep the second request
 * back. */
void program_looks(const char *key);

/* The second request arrives while others have the entry `name`: it is refused. */
void program_is_kept_out(const char *name);

/* Has it got the lock? */
bool program_ran(void);

/* Wait until it is over; the front ends too. */
void program_ends(void);

#endif
