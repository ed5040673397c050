#!/bin/sh
# SPDX-License-Identifier: MIT
#
# lost.sh - a lock that is lost while the command runs.
#
# An operator breaks it; on file: the holder notices at its next heartbeat, a
# third of the lease, so the leases here are short.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

# lose KEY OPTIONS... -- COMMAND...: run it, break the lock, wait for the end.
# The status is left in $status, stderr in $tmp/err.
lose() {
    key=$1
    shift
    "$hf" run --ttl 300ms --report "$tmp/report" "$@" 2>"$tmp/err" &
    pid=$!
    until_true held "$key"
    "$hf" break --fence "$(fence "$key")" "$key"
    broke=$?
    wait $pid
    status=$?
}

lose a a -- sleep 1000
is 'break says that it broke the lock' 0 $broke
is 'a lost lock ends the command, status 79' 79 $status
has 'and says so' "lost 'a' (broken): ending the command" "$(cat "$tmp/err")"
valid_json "$tmp/report"
ok 'the report is JSON'
has 'the report says lost' '"status": "lost"' "$(cat "$tmp/report")"
has 'and why' '"lost": "broken"' "$(cat "$tmp/report")"
has 'and how the command ended' '"signal": 15' "$(cat "$tmp/report")"
is_free a
ok 'the lock can be taken again'

lose b b -- sh -c 'trap "exit 0" TERM; while :; do sleep 0.05; done'
is 'the status is 79 also if the command ends well' 79 $status
has 'which the report tells' '"code": 0' "$(cat "$tmp/report")"

lose c --grace 100ms c -- sh -c 'trap "" TERM; while :; do sleep 0.05; done'
is 'what ignores TERM is killed after the grace' 79 $status
has 'which the report tells' '"signal": 9' "$(cat "$tmp/report")"

lose d --on-lost kill d -- sh -c 'trap "echo TERM >&2" TERM
    while :; do sleep 0.05; done'
is '--on-lost kill kills' 79 $status
has 'at once' '"signal": 9' "$(cat "$tmp/report")"
grep -q TERM "$tmp/err"
[ $? -eq 1 ]
ok 'without TERM'

lose e --on-lost warn e -- \
    sh -c 'read why <&$HOLDFAST_LOST_FD; echo "told $why" >&2; exit 4'
is '--on-lost warn lets the command go on, status 79' 79 $status
has 'with its own status in the report' '"code": 4' "$(cat "$tmp/report")"
has 'and HOLDFAST_LOST_FD tells the reason' 'told broken' "$(cat "$tmp/err")"

"$hf" run --ttl 300ms --on-lost warn w -- \
    sh -c 'echo $$ >"$0"; exec sleep 1000' "$tmp/pid" 2>/dev/null &
pid=$!
until_true [ -s "$tmp/pid" ]
"$hf" break -q --fence "$(fence w)" w
until_true is_free w
ok '--on-lost warn gives a broken lock back at once'
alive "$(cat "$tmp/pid")"
ok 'while the command goes on'
kill "$(cat "$tmp/pid")"
wait $pid

lose f --on-lost 'echo "hook $HOLDFAST_KEY" >&2' f -- sleep 1000
is '--on-lost CMD runs it' 79 $status
has 'with the variables' 'hook f' "$(cat "$tmp/err")"
has 'and then ends the command' '"signal": 15' "$(cat "$tmp/report")"

lose g --grace 100ms --on-lost 'sleep 1000' g -- sleep 1000
is 'a hook that hangs does not keep the command alive' 79 $status

lose t --grace 4s --on-lost 'sleep 1000' t -- \
    sh -c 'trap "exit 5" TERM; while :; do sleep 0.05; done'
has 'and what it leaves of the grace begins with TERM' '"code": 5' \
    "$(cat "$tmp/report")"

cat >"$tmp/kid" <<'END'
trap 'echo TERM >"$0.got"; exit' TERM
while :; do sleep 0.05; done
END
"$hf" run -q --ttl 300ms --grace 4s --on-lost "echo \$\$ >$tmp/hooked; exec sleep 1000" u \
    -- sh -c 'sh "$0" & sleep 1000' "$tmp/kid" 2>"$tmp/err" &
pid=$!
until_true held u
"$hf" break -q --fence "$(fence u)" u
until_true [ -s "$tmp/hooked" ]
kill -KILL $pid
until_true is_free u
is 'also if holdfast is killed while the hook runs' TERM "$(cat "$tmp/kid.got")"
until_true dead "$(cat "$tmp/hooked")"
ok 'and the hook ends with its time'

# What the hook leaves in the background, and a hook that goes on, end with the
# run: the next holder sees neither.
lose left --grace 20s --on-lost "sleep 1000 & echo \$! >$tmp/left-behind" \
    left -- sleep 1000
is 'a hook may leave something in the background' 79 $status
dead "$(cat "$tmp/left-behind")"
ok 'which is dead when holdfast ends'
lose goes --grace 2s --on-lost "echo \$\$ >$tmp/goes; trap : TERM; while :; do sleep 0.05; done" \
    goes -- sleep 1000
dead "$(cat "$tmp/goes")"
ok 'a hook that goes on is dead when holdfast ends'

# holdfast is killed right after it has forked the hook.
if can_shim; then
    shimmed kill-after:3 "$hf" run -q --ttl 300ms --grace 2s \
        --on-lost "echo \$\$ >$tmp/orphan; exec sleep 1000" z -- \
        sleep 1000 2>"$tmp/err" &
    pid=$!
    until_true held z
    "$hf" break -q --fence "$(fence z)" z
    until_true dead $pid
    "$hf" run -w 60 z -- sh -c 'sed -n "s/^State:[^A-Z]*\([A-Y]\).*/\1/p" \
        "/proc/$(cat "$0")/status" 2>/dev/null' "$tmp/orphan" >"$tmp/seen"
    is 'a hook whose holdfast was killed at its start ends before the next' \
        '' "$(cat "$tmp/seen")"
    kill -KILL "$(cat "$tmp/orphan")" 2>/dev/null
else
    skip 'a hook whose holdfast was killed at its start' 'there is no fork-shim'
fi

lose obeys --grace 20s --on-lost "sleep 0.3; echo 'the hook is done' >&2" \
    obeys -- sh -c 'read why <&$HOLDFAST_LOST_FD'
is 'a command that ends by itself when it is told' 79 $status
has 'lets the hook finish' 'the hook is done' "$(cat "$tmp/err")"

lose end --grace 20s end -- sh -c 'trap "" TERM
    cat <&$HOLDFAST_LOST_FD >&2; echo "that was all" >&2'
has 'behind the reason the end of HOLDFAST_LOST_FD can be read' \
    'that was all' "$(cat "$tmp/err")"
has 'while the command is still alive' '"code": 0' "$(cat "$tmp/report")"

lose h --grace 200ms h -- sh -c '
    sh -c "trap \"\" TERM; echo \$\$ >$0; while :; do sleep 0.05; done" &
    sleep 1000' "$tmp/stray"
dead "$(cat "$tmp/stray")"
ok 'the whole group is dead when holdfast ends'

lose s --grace 20s s -- sh -c 'trap "exit 5" TERM; kill -STOP $$; exit 6'
has 'a stopped command is woken to hear TERM' '"code": 5' "$(cat "$tmp/report")"

"$hf" run k -- sh -c 'exec 9<&$HOLDFAST_LOST_FD
    (read why <&9; echo "left $why" >"$0") & ' "$tmp/left"
until_true [ -s "$tmp/left" ]
ok 'HOLDFAST_LOST_FD ends when the lock is released'

# A break that comes too late, or for another grant.
"$hf" run i -- sleep 1000 &
pid=$!
until_true held i
exits 'a break of another grant is refused, status 79' 79 \
    "$hf" break --fence 1 i
alive $pid
ok 'and does no harm'
kill $pid
wait $pid

# Reports of runs that were not lost.
"$hf" run --report "$tmp/report" k -- sh -c 'exit 75'
has 'a report tells a command that exits with 75' '"status": "ok"' \
    "$(cat "$tmp/report")"
"$hf" run j -- sleep 1000 &
pid=$!
until_true held j
"$hf" run -q -n --report "$tmp/report" j -- true
has 'from a lock that is busy' '"status": "busy"' "$(cat "$tmp/report")"
kill $pid
wait $pid
"$hf" run --report fd:7 k -- true 7>"$tmp/report"
has 'a report can go to a descriptor' '"ended": "exited"' "$(cat "$tmp/report")"
"$hf" run -q --report "$tmp/report" k -- "$tmp/none" 2>/dev/null
has 'a command that was not found was not started' '"ended": "not-started"' \
    "$(cat "$tmp/report")"
finish
