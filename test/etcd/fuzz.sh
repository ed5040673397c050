#!/bin/sh
# SPDX-License-Identifier: MIT
#
# fuzz.sh - run etcd-fuzz on the corpus of the tree, which is left as it is.
#
#     test/etcd/fuzz.sh PROGRAM -runs=100000 -seed=1      a short fixed run
#     test/etcd/fuzz.sh PROGRAM -max_total_time=600      at length
set -eu

program=$1
shift
work=$(mktemp -d "${TMPDIR:-/tmp}/hf-fuzz.XXXXXX")
trap 'rm -rf "$work"' EXIT
# What crashes it is kept, beside the program.
"$program" "$@" -max_len=4096 -artifact_prefix="$(dirname "$program")/" \
    "$work" "$(dirname "$0")/corpus" || exit 1 # 77 would count as skipped
