/* SPDX-License-Identifier: MIT
 *
 * script.c - the script of a node, which stands in node.lua; scripts/embed
 * makes a string of it, in texts.h.
 */
#include "redlock.h"

#include "backend/redlock/texts.h"

#include "base/banned.h"

const char redlock_script[] = NODE_LUA;
