/* SPDX-License-Identifier: MIT
 *
 * text.h - functions of the C library that cbmc does not bring along, in the
 * simplest form, so that each byte that they touch is checked.
 */
#ifndef CBMC_TEXT_H
#define CBMC_TEXT_H

#include <stddef.h>

#include "holdfast.h"

void *memchr(const void *from, int c, size_t len)
{
    const char *at = from;

    for (; len; len--, at++)
        if (*at == (char)c)
            return (void *)at;
    return NULL;
}

void *memrchr(const void *from, int c, size_t len)
{
    const char *at = from;

    while (len--)
        if (at[len] == (char)c)
            return (void *)(at + len);
    return NULL;
}

size_t strcspn(const char *text, const char *stop)
{
    const char *c;
    size_t n;

    for (n = 0; text[n]; n++)
        for (c = stop; *c; c++)
            if (text[n] == *c)
                return n;
    return n;
}

/* Messages are not checked here. */
hf_status hfi_fail(struct hf_error *err, hf_status st, const char *fmt, ...)
{
    (void)err;
    (void)fmt;
    return st;
}

hf_status hfi_fail_errno(struct hf_error *err, hf_status st, int sys_errno,
                         const char *fmt, ...)
{
    (void)err;
    (void)sys_errno;
    (void)fmt;
    return st;
}

hf_status hfi_nomem(struct hf_error *err)
{
    (void)err;
    return HF_NOMEM;
}

#endif
