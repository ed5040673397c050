#!/bin/sh
# SPDX-License-Identifier: MIT
#
# watch.sh - watch, elect and `run -w` over restarts of etcd.
set -u
. "$(dirname "$0")/lib.sh"

member=$HF_TEST_MEMBERS/1
down() {
    kill -KILL "$(cat "$member/pid")"
    until_true sh -c '! etcdctl endpoint health'
}
up() {
    "$member/run" >/dev/null 2>&1
    until_true etcdctl endpoint health
}

"$holdfast" watch -u "$url" --retry 50ms k >"$work/watch" 2>"$work/err" &
watch=$!
ok 'watch shows that nobody holds the lock' until_true grep -q '^k: free' "$work/watch"
"$holdfast" elect -u "$url" -t 3s --value one k -- sh -c "echo \$HOLDFAST_FENCE >>$work/terms; exec sleep 1000" 2>"$work/elect" &
elect=$!
ok 'and then who leads' until_true grep -q 'held by one' "$work/watch"
down
ok 'watch says that the service is away' until_true grep -q 'waiting for the service' "$work/err"
ok 'elect ends the command when the leadership is lost' until_true grep -q "lost 'k'" "$work/elect"
hf leader -q -w 60s k >"$work/leader" 2>/dev/null &
leader=$!
"$holdfast" run -u "$url" -w 60s late -- touch "$work/late" 2>"$work/run" &
run=$!
"$holdfast" elect -u "$url" late2 -- touch "$work/late2" 2>"$work/elect2" &
elect2=$!
ok 'run -w waits for the service' until_true grep -q 'trying again' "$work/run"
ok 'elect waits without -w' until_true grep -q 'trying again' "$work/elect2"
up
wait "$run"
ok 'run got its lock when the service was back' test -e "$work/late"
wait "$elect2"
ok 'and elect was elected' test -e "$work/late2"
ok 'the lost leader is elected again' until_true sh -c "[ \$(wc -l <$work/terms) -ge 2 ]"
ok 'in a later term' sh -c "sort -nc $work/terms"
wait "$leader"
ok 'leader -w has waited for it' test "$(cat "$work/leader")" = one
last=$(tail -n 1 "$work/terms")
ok 'watch shows the leader after the restart' until_true grep -q "held by one, fence $last" "$work/watch"
ok 'and says that the service is back' until_true grep -q 'answers again' "$work/err"
kill "$elect"
wait "$elect"
ok 'and then nobody' until_true sh -c "tail -n 1 $work/watch | grep -q '^k: free'"
kill "$watch"
wait "$watch"

# A URL that no retry mends ends at once.
timeout 60 "$holdfast" elect -u 'etcd://127.0.0.1:1?nonsense=1' k -- true 2>"$work/said"
ok 'elect does not wait for a wrong URL' test $? = 78
finish
