/* SPDX-License-Identifier: MIT
 *
 * cbmc.h - what the harnesses of this directory share.
 *
 * any_...() returns every value at once; assume() leaves out those for which its
 * condition does not hold; check() must hold for all that are left.
 */
#ifndef CBMC_H
#define CBMC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define assume(condition)      __CPROVER_assume(condition)
#define check(condition, text) __CPROVER_assert(condition, text)

int any_int(void);
bool any_bool(void);
char any_char(void);
size_t any_size(void);
uint64_t any_u64(void);

/* Any number of 0 to `most`, which is a constant: bits that are 0 in all of them
 * are not searched. */
static int64_t any_upto(int64_t most)
{
    uint64_t bits = (uint64_t)most;
    int64_t n;

    bits |= bits >> 1;
    bits |= bits >> 2;
    bits |= bits >> 4;
    bits |= bits >> 8;
    bits |= bits >> 16;
    bits |= bits >> 32;
    n = (int64_t)(any_u64() & bits);
    assume(n <= most);
    return n;
}

#endif
