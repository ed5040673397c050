/* SPDX-License-Identifier: MIT
 *
 * script.c - the script of a node, which stands in node.lua and readers.lua; scripts/embed
 * makes a string of it, in texts.h.
 */
#include "redlock.h"

#include <inttypes.h>

#include "backend/redlock/texts.h"
#include "base/alloc.h"

#include "base/banned.h"

/* Any compiler of C11 that we know takes longer ones than it must. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

char *redlock_script_make(int64_t keep_ms)
{
    static const char text[] = NODE_LUA;
    size_t size = sizeof(text) + 80;
    char *ret = hfi_alloc(size);

    if (ret)
        snprintf(ret, size, "local keep,fresh=%" PRId64 ",%" PRId64 "\n%s",
                 keep_ms, keep_ms / 7 * 6, text);
    return ret;
}
