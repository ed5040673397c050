/* SPDX-License-Identifier: MIT
 *
 * escape.h - any bytes as plain text and back: '%' and two hex digits.
 */
#ifndef HFI_ESCAPE_H
#define HFI_ESCAPE_H

#include <stdbool.h>
#include <stddef.h>

/* Write `text` with every byte escaped but letters, digits, bytes from 0x80 and
 * those in `keep`.  Returns the length; false room shows as a length of at
 * least `size`, as with snprintf(). */
size_t hfi_escape(char *buf, size_t size, const char *text, const char *keep);

/* Decode in place; false if an escape is malformed or stands for a NUL. */
bool hfi_unescape(char *text);

#endif
