#!/bin/sh
# SPDX-License-Identifier: MIT
#
# load.sh PROGRAM LIBRARY MODULE - modules find the library's symbols although
# the program hides them, and are found next to the library after a move.

program=$(realpath "$1") lib=$(realpath "$2") module=$(realpath "$3")
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
unset LD_LIBRARY_PATH

echo 1..2
HOLDFAST_MODULE_DIR=$(dirname "$module") \
    "$program" "$lib" "sqlite:$tmp/a.db" >"$tmp/out" 2>&1 ||
    { sed 's/^/# /' "$tmp/out"; printf 'not '; }
echo "ok 1 - a_module_loads_although_the_library_is_hidden"

mkdir -p "$tmp/moved/holdfast"
cp "$lib" "$tmp/moved/libholdfast.so.0"
cp "$module" "$tmp/moved/holdfast/"
unset HOLDFAST_MODULE_DIR
"$program" "$tmp/moved/libholdfast.so.0" "sqlite:$tmp/b.db" >"$tmp/out" 2>&1 ||
    { sed 's/^/# /' "$tmp/out"; printf 'not '; }
echo "ok 2 - a_module_is_found_next_to_a_library_that_was_moved"
