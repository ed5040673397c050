#!/bin/sh
# SPDX-License-Identifier: MIT
#
# stuck.sh - stderr is a pipe that is full and that nobody reads.  Whatever
# there is to say, the command is ended and the lock is passed on in time.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST
pid=

mkfifo "$tmp/full"
exec 8<>"$tmp/full"
trap 'kill -KILL $pid 2>/dev/null; rm -rf "$tmp"' EXIT
dd if=/dev/zero of="$tmp/full" bs=4096 oflag=nonblock 2>/dev/null
timeout 0.2 sh -c 'echo >"$0"' "$tmp/full"
is 'a write to the pipe blocks' 124 $?

# A family of which nobody heeds TERM, and which says nothing itself.
cat >"$tmp/family" <<'END'
exec 2>/dev/null
trap '' TERM
sh -c 'trap "" TERM; while :; do sleep 0.02; done' &
echo "$$ $!" >"$1"
while :; do sleep 0.02; done
END
start() { # KEY OPTIONS...
    key=$1
    shift
    "$hf" run "$@" "$key" -- sh "$tmp/family" "$tmp/$key" 2>"$tmp/full" 8>&- &
    pid=$!
    until_true [ -s "$tmp/$key" ]
}
all_dead() {
    for member in $(cat "$1"); do
        alive "$member" && return 1
    done
    return 0
}

start broken --ttl 300ms --grace 200ms -v
ok 'the command runs although -v has something to say'
"$hf" break -q --fence "$(fence broken)" broken
until_true all_dead "$tmp/broken"
ok 'a lost lock ends the command although nobody hears of it'
until_true is_free broken
ok 'and then the lock is free'
until_true dead $pid
ok 'and holdfast ends'
wait $pid
is 'and its status tells what happened' 79 $?

start long --max-hold 200ms --grace 100ms
until_true dead $pid
ok '--max-hold ends the command although nobody hears of it'
wait $pid
is 'and its status tells what happened' 124 $?

start killed --grace 200ms
kill -KILL $pid
wait $pid 2>/dev/null
until_true all_dead "$tmp/killed"
ok 'the guard ends the family of a killed holdfast although nobody hears of it'
until_true is_free killed
ok 'and then the lock is free'

"$hf" run -q waited -- sleep 1000 8>&- &
holder=$!
until_true held waited
"$hf" run -v waited -- true 2>"$tmp/full" 8>&- &
pid=$!
kill $holder
wait $holder
until_true dead $pid
ok 'a waiter gets its turn although nobody hears that it waits'
wait $pid
is 'and runs its command' 0 $?

"$hf" run -q --report fd:7 report -- true 7>"$tmp/full" 8>&- &
pid=$!
until_true dead $pid
ok 'a report that nobody reads does not keep holdfast from its end'
mkfifo "$tmp/fifo"
exits 'nor does a FIFO without a reader keep it from its beginning' 0 \
    "$hf" run --report "$tmp/fifo" report -- true
has 'it says so' 'nobody reads it' "$said"
"$hf" run -q --report "$tmp/fifo" report -- sh -c 'echo >"$0"; sleep 1' "$tmp/begun" &
run=$!
until_true test -s "$tmp/begun"
cat "$tmp/fifo" >"$tmp/report"
wait $run
has 'who comes later reads it' '"code": 0' "$(cat "$tmp/report")"
wait $pid
is 'with the status of its command' 0 $?
finish
