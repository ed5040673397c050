/* SPDX-License-Identifier: MIT
 *
 * escape.c - any bytes as plain text and back; see escape.h.
 */
#include "escape.h"

#include "banned.h"

static bool escape_is_plain(unsigned char c, const char *keep)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
           (c >= 'a' && c <= 'z') || c >= 0x80 || strchr(keep, c) != NULL;
}

size_t hfi_escape(char *buf, size_t size, const char *text, const char *keep)
{
    static const char digits[] = "0123456789ABCDEF";
    size_t len = 0;

    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        size_t need = escape_is_plain(c, keep) ? 1 : 3;

        if (len + need < size) {
            buf[len] = need == 1 ? (char)c : '%';
            if (need == 3) {
                buf[len + 1] = digits[c >> 4];
                buf[len + 2] = digits[c & 15];
            }
        }
        len += need;
    }
    buf[len < size ? len : size - 1] = '\0';
    return len;
}

static int escape_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool hfi_unescape(char *text)
{
    char *to = text;
    int high, low;

    for (; *text; text++, to++) {
        *to = *text;
        if (*text != '%')
            continue;
        high = escape_digit(text[1]);
        low = high < 0 ? -1 : escape_digit(text[2]);
        if (low < 0 || (high == 0 && low == 0))
            return false;
        *to = (char)(high * 16 + low);
        text += 2;
    }
    *to = '\0';
    return true;
}
