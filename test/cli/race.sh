#!/bin/sh
# SPDX-License-Identifier: MIT
#
# race.sh - many at once, and signals at every moment of a run.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# An unprotected counter, eight processes, ten turns each.
echo 0 >"$tmp/counter"
for worker in 1 2 3 4 5 6 7 8; do
    (
        for turn in 1 2 3 4 5 6 7 8 9 10; do
            "$hf" run counter -- sh -c 'read n <"$0"; echo $((n + 1)) >"$0"
                echo $HOLDFAST_FENCE >>"$0.fences"' "$tmp/counter" || exit 1
        done
    ) &
done
wait
is 'eight processes count to eighty' 80 "$(cat "$tmp/counter")"
sort -n -u "$tmp/counter.fences" | cmp -s - "$tmp/counter.fences"
ok 'and their fences rise in the order of the grants'

# A signal at any moment of a run, from before main() until the command runs.
# (Not INT and QUIT: a background job of a shell begins with these ignored.)
all_dead() {
    for member in $(cat "$tmp/pids"); do
        alive "$member" && return 1
    done
    return 0
}
for sig in TERM:143 HUP:129 USR1:138 KILL:137; do
    : >"$tmp/pids"
    wrong=
    for step in 0 1 2 3 4 5 6 7 8 9; do
        for again in 1 2 3; do
            "$hf" run race -- sh -c 'echo $$ >>"$0"; exec sleep 1000' \
                "$tmp/pids" 2>/dev/null &
            pid=$!
            sleep 0.00$step
            kill -${sig%:*} $pid
            wait $pid 2>/dev/null
            status=$?
            [ $status -eq ${sig#*:} ] || wrong="$wrong $step:$status"
        done
    done
    is "${sig%:*} at any moment gives ${sig#*:}" '' "$wrong"
    until_true all_dead
    ok "${sig%:*} at any moment leaves no process"
    until_true is_free race
    ok "${sig%:*} at any moment leaves no lock"
done
finish
