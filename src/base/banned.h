/* SPDX-License-Identifier: MIT
 *
 * banned.h - functions that do not compile in this tree.
 *
 * Each has a door of its own here or a safer form: unbounded copies, hidden
 * state, wall-clock time, and allocation that the tests cannot make fail.
 */
#ifndef HFI_BANNED_H
#define HFI_BANNED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#pragma GCC poison strcpy strcat strncpy strncat sprintf vsprintf strtok gets
#pragma GCC poison gettimeofday time localtime gmtime ctime rand srand
#pragma GCC poison atoi atol atof strerror

#endif
