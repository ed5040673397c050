/* SPDX-License-Identifier: MIT
 *
 * script.c - the script of a node, which stands in node.lua and readers.lua; scripts/embed
 * makes a string of it, in texts.h.
 */
#include "redlock.h"

#include "backend/redlock/texts.h"

#include "base/banned.h"

/* Any compiler of C11 that we know takes longer ones than it must. */
#pragma GCC diagnostic ignored "-Woverlength-strings"

const char redlock_script[] = NODE_LUA;
