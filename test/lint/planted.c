/* SPDX-License-Identifier: MIT
 *
 * planted.c - a bug that each of the linters finds, so that their silence about
 * other files means something; see analyse.  It is never compiled.
 */
#include <stdlib.h>

int planted(char *text, int n);

int planted(char *text, int n)
{
    free(text);
    if (n > 0)
        free(text);
    return n - n;
}
