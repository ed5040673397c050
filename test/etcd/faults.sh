#!/bin/sh
# SPDX-License-Identifier: MIT
#
# faults.sh - three members, of which some are killed, stopped and started again
# while one holds a lock and another waits for it.
set -u
. "$(dirname "$0")/lib.sh"

strike() {
    kill -KILL "$(member "$1")"
    until_true sh -c "! kill -0 $(member "$1")"
}

for mode in -x -s; do
    scene 9s "$mode"
    for n in 1 2 3; do
        strike $n
        sleep 0.5
        "$cluster/$n/run"
        until_true is_well
    done
    ok "members restarted one after the other ($mode): nothing is lost" kept
    ok 'and nothing is left' clean
done

scene 9s
n=$(leader)
kill -STOP "$(member "$n")"
sleep 6
kill -CONT "$(member "$n")"
until_true is_well
ok 'the leader stopped for a while: nothing is lost' kept
ok 'and nothing is left' clean

scene 20s
for n in 1 2 3; do strike $n; done
sleep 2
for n in 1 2 3; do "$cluster/$n/run"; done
until_true is_well
ok 'all members down for less than the ttl: nothing is lost' kept
ok 'and nothing is left' clean

scene 3s
strike 1
strike 2
wait "$holder"
ok 'a minority alone: the holder is told' test $? = 79
hf run -n other -- true 2>"$work/said"
got=$?
ok 'and nobody is granted anything' test $got = 69
"$cluster/1/run"
"$cluster/2/run"
until_true is_well
wait "$waiter"
ok 'the waiter goes on when the majority is back' test $? = 0
ok 'and nothing is left' clean
finish
