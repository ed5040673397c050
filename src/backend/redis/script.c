/* SPDX-License-Identifier: MIT
 *
 * script.c - the scripts: fenced.lua and what it includes, several.lua,
 * unfenced.lua and move.lua.  scripts/embed makes strings of them, in texts.h.
 */
#include "redis.h"

#include <inttypes.h>

#include "backend/redis/texts.h"
#include "base/alloc.h"

#include "base/banned.h"

/* Longer than ISO C asks a compiler to take; ours take it. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

const char redis_unfenced_script[] = UNFENCED_LUA;
const char redis_move_script[] = MOVE_LUA;

/* How long the companions are kept, as the script needs it: in ms; how many
 * digits of a fence tell whether that was begun again lately, within a sixth of
 * it; when a renewal begins it again; and which leases, by their digits, are so
 * long that every step does. */
static char *script_make(const char *text, int64_t keep_ms)
{
    int64_t every_s = 1, at;
    int day = 10, digits = 0;
    size_t size = strlen(text) + 128;
    char *ret = hfi_alloc(size);

    while (every_s * 10 <= keep_ms / 6000) {
        every_s *= 10;
        day--;
    }
    for (at = keep_ms; at; at /= 10)
        digits++;
    if (ret)
        snprintf(ret, size,
                 "local keep,day,fresh,long=%" PRId64 ",%d,%" PRId64 ",%d\n%s",
                 keep_ms, day, keep_ms / 7 * 6, digits - 2, text);
    return ret;
}

char *redis_script_make(int64_t keep_ms)
{
    return script_make(FENCED_LUA, keep_ms);
}

char *redis_script_make_several(int64_t keep_ms)
{
    return script_make(SEVERAL_LUA, keep_ms);
}
