/* SPDX-License-Identifier: MIT
 *
 * stamp.c - the command that is run under a lock: it prints what time it is.
 */
#include <stdio.h>
#include <time.h>

int main(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    printf("%lld\n", (long long)ts.tv_sec * 1000000000 + ts.tv_nsec);
    return 0;
}
