/* SPDX-License-Identifier: MIT
 *
 * error.h - failing in one expression.
 *
 *     return hfi_fail(err, HF_DENIED, "redis %s: %s", host, why);
 *
 * Messages are lower case, have no full stop, name the endpoint, quote what
 * the user wrote and never contain credentials.
 */
#ifndef HFI_ERROR_H
#define HFI_ERROR_H

#include "holdfast.h"

/* Fill *err, which may be NULL, and return `st`. */
hf_status hfi_fail(struct hf_error *err, hf_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a failed system call: ": " and the text of `sys_errno` are
 * appended, and the status is made from it where `st` is HF_SYSTEM. */
hf_status hfi_fail_errno(struct hf_error *err, hf_status st, int sys_errno,
                         const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Put context in front of a message: "acquire 'k': " + what was there. */
hf_status hfi_wrap(struct hf_error *err, hf_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* The same message under another status. */
hf_status hfi_restate(struct hf_error *err, hf_status st);

hf_status hfi_nomem(struct hf_error *err);

/* A user's string as it may appear in a message: control characters become
 * '?', and a long one is cut.  `buf` is returned. */
const char *hfi_quote(char *buf, size_t size, const char *text);
#define HFI_QUOTE_MAX 64

#endif
