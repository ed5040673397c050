#!/bin/sh
# SPDX-License-Identifier: MIT
#
# dialects.sh ROOT - holdfast.hpp compiles without a warning in every dialect that
# we promise, by every compiler that is here.

root=$1
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
n=0 failed=0

compile() { # COMPILER NAME OPTION...
    cxx=$1 name=$2_for_$1
    shift 2
    n=$((n + 1))
    if ! command -v "$cxx" >/dev/null; then
        echo "ok $n - $name # SKIP no $cxx on this host"
        return
    fi
    if ! "$cxx" -Wall -Wextra -Wpedantic -Wshadow -Wundef -Wconversion -Werror -O1 \
        -I"$root/include" -fsyntax-only "$@" "$root/test/bindings/cpp/use.cpp" \
        >"$tmp/out" 2>&1; then
        sed 's/^/# /' "$tmp/out"
        printf 'not '
        failed=1
    fi
    echo "ok $n - $name"
}

echo 1..8
for cxx in g++ clang++; do
    compile "$cxx" the_header_is_clean_in_cpp17 -std=c++17
    compile "$cxx" the_header_is_clean_in_cpp20 -std=c++20
    compile "$cxx" the_header_is_clean_in_cpp23 -std=c++2b
    compile "$cxx" the_header_is_clean_without_exceptions -std=c++17 -fno-exceptions
done
exit $failed
