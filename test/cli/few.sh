#!/bin/sh
# SPDX-License-Identifier: MIT
#
# few.sh - `holdfast top` when too few nodes of Redlock are left, whose names alone
# are longer than a line.  Run beside test/servers/redlock.
# shellcheck source=test/cli/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=test/cli/mux.sh
. "$(dirname "$0")/mux.sh"

export HOLDFAST_URL="$HF_TEST_URL"
begin
until_true shows '^0 locks'
until_true shows 'q quit'
for node in 1 2 3; do
    kill -KILL "$(cat "$HF_TEST_MEMBERS/$node/pid")"
done
until_true gone 'q quit'
until_true shows '^only [0-2] of 5 nodes'
ok 'the last line says first what is wrong'
finish
