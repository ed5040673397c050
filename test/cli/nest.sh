#!/bin/sh
# SPDX-License-Identifier: MIT
#
# nest.sh - a run inside the command of another: when the outer lock is lost,
# the inner command is dead before somebody else gets the outer lock, although
# it has a process group of its own.
#
# $SURVIVOR ignores TERM and keeps a file locked for as long as it lives.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# The next holder runs this: it prints a line if the survivor still lives.
cat >"$tmp/look" <<'END_LOOK'
flock -n "$1" true || echo "it lives"
END_LOOK
cat >"$tmp/family" <<'END_FAMILY'
[ "$2" != deaf ] || trap '' TERM
"$SURVIVOR" plain "$1" &
until [ -s "$1" ]; do sleep 0.02; done
wait
while :; do sleep 0.05; done
END_FAMILY

# start KEY HOW OPTIONS...: $pid holds KEY, and the survivor is ready inside of
# an inner run.
start() {
    key=$1 how=$2
    shift 2
    "$hf" run -q "$@" "$key" -- "$hf" run -q "$key-in" -- \
        sh "$tmp/family" "$tmp/$key.lock" "$how" 2>"$tmp/err" &
    pid=$!
    until_true [ -s "$tmp/$key.lock" ]
}

# next KEY NAME: the next holder finds the survivor dead.
next() {
    is "$2" '' "$("$hf" run -w 60 "$1" -- sh "$tmp/look" "$tmp/$1.lock" 2>&1)"
}

start broken heeds --ttl 900ms --grace 300ms
"$hf" break -q --fence "$(fence broken)" broken
next broken 'after a break, what an inner command left is dead'
wait $pid
is 'and the outer run tells the loss' 79 $?
is_free broken-in
ok 'and the inner lock is free'

start deaf deaf --ttl 900ms --grace 300ms
"$hf" break -q --fence "$(fence deaf)" deaf
next deaf 'also if the inner command ignores TERM'
wait $pid

start nowarn deaf --ttl 900ms --grace 300ms --on-lost kill
"$hf" break -q --fence "$(fence nowarn)" nowarn
next nowarn 'also with --on-lost kill'
wait $pid

start killed heeds --grace 300ms
kill -KILL $pid
next killed 'also if the outer holdfast is killed'

start maxhold deaf --max-hold 200ms --grace 300ms
wait $pid
is '--max-hold of the outer run ends it' 124 $?
next maxhold 'and the inner command'

"$hf" run -q --ttl 900ms --grace 300ms deep -- "$hf" run -q deep-1 -- \
    "$hf" run -q --on-lost warn deep-2 -- "$hf" run -q deep-3 -- \
    sh "$tmp/family" "$tmp/deep.lock" deaf 2>"$tmp/err" &
pid=$!
until_true [ -s "$tmp/deep.lock" ]
"$hf" break -q --fence "$(fence deep)" deep
next deep 'also in a run in a run in a run'
wait $pid

if command -v python3 >/dev/null; then
    "$hf" run -q --ttl 900ms --grace 300ms closed -- \
        python3 -c 'import subprocess, sys; subprocess.run(sys.argv[1:])' \
        "$hf" run -q closed-in -- sh "$tmp/family" "$tmp/closed.lock" deaf \
        2>"$tmp/err" &
    pid=$!
    until_true [ -s "$tmp/closed.lock" ]
    "$hf" break -q --fence "$(fence closed)" closed
    next closed 'also if a program in between closes all descriptors'
    wait $pid
fi

# A lease, and the outer holdfast is frozen.
if command -v redis-server >/dev/null && redis_start; then
    start frozen deaf --ttl 4s
    kill -STOP $pid
    next frozen 'also if the outer holdfast is frozen until its lease ends'
    kill -CONT $pid
    wait $pid
    is 'which it tells when it thaws' 79 $?
fi

# What runs on when an outer run has ended well is not touched.
HOLDFAST_URL=file:$tmp/locks
"$hf" run -q --max-hold 600ms --grace 100ms over -- sh -c '
    "$HOLDFAST" run -q over-in -- sh -c "until [ -e $0 ]; do sleep 0.02; done
        echo done >$0.end" >/dev/null 2>&1 &
    until "$HOLDFAST" status -q over-in >/dev/null; do sleep 0.02; done' \
    "$tmp/over"
is 'a run that ends well leaves an inner one alone' 0 $?
sleep 0.8
: >"$tmp/over"
until_true [ -s "$tmp/over.end" ]
ok 'which goes on beyond the deadline of the outer one'
finish
