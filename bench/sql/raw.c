/* SPDX-License-Identifier: MIT
 *
 * raw.c - what the bare SQL libraries share.
 */
#include "sql.h"

#include "../bench.h"

#include <stdio.h>
#include <string.h>

double raw_now_us(void)
{
    return (double)bench_now() / 1e3;
}

_Noreturn void raw_die(const char *what, const char *why)
{
    bench_die("%s: %s", what, why);
}

char *raw_text(const char *text, const char *table, const char *string)
{
    char *ret = bench_alloc(strlen(text) + 1024);
    size_t len = 0;

    for (; *text; text++) {
        if (text[0] == '@' && text[1] == 'T')
            len += (size_t)snprintf(ret + len, 64, "%s", table);
        else if (text[0] == '@' && text[1] == 'Q')
            len += (size_t)snprintf(ret + len, 64, "%s_queue", table);
        else if (text[0] == '@' && text[1] == '|')
            text = strstr(text, "@}"); /* strategy version */
        else if (text[0] == '@' && strchr("{}()", text[1]))
            ; /* strategy lease, with a queue */
        else if (text[0] == '@' && text[1] == 'C')
            len += (size_t)snprintf(ret + len, 64, "'%s'", string);
        else
            ret[len++] = *text;
        if (text[0] == '@')
            text++;
    }
    return ret;
}
