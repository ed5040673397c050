#!/bin/sh
# SPDX-License-Identifier: MIT
#
# lease.sh - the command over a service that keeps leases by itself: a private
# Redis, which can be frozen to make renewals fail.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

mkdir "$tmp/redis"
for port in 21379 21380 21381 21382 21383 21384 21385 21386; do
    redis-server --port $port --bind 127.0.0.1 --save '' --dir "$tmp/redis" \
        >"$tmp/redis.log" 2>&1 &
    server=$!
    HOLDFAST_URL=redis://127.0.0.1:$port
    up() { dead $server || grep -q 'Ready to accept' "$tmp/redis.log"; }
    until_true up
    alive $server && break
done
trap 'kill -KILL $server 2>/dev/null; rm -rf "$tmp"' EXIT

# acquire, renew, release.
eval "$("$hf" acquire -t 1h "it's")"
is 'acquire gives a handle to eval' "it's" "${HOLDFAST_KEY-}"
exits 'the lock stays when acquire has ended' 75 "$hf" run -n "it's" -- true
exits 'the fence is the one that stands' 0 \
    "$hf" check --fence "${HOLDFAST_FENCE-0}" "it's"
exits 'renew renews it' 0 "$hf" renew
exits 'release gives it back' 0 "$hf" release
exits 'the lock is free then' 0 "$hf" run -n "it's" -- true
exits 'a second release is told that it is lost' 79 "$hf" release
exits 'and so is a renew' 79 "$hf" renew
eval "$("$hf" acquire -t 1h --owner job-7 mine)"
exits 'the handle of an owner id can be renewed' 0 "$hf" renew
exits 'the same owner id enters meanwhile' 0 \
    "$hf" run -n --owner job-7 mine -- true
exits 'another does not' 75 "$hf" run -n --owner job-8 mine -- true
exits 'and it can be given back' 0 "$hf" release
unset HOLDFAST_HANDLE HOLDFAST_KEY HOLDFAST_FENCE HOLDFAST_OWNER

# A family of which nobody heeds TERM.  It notes that it lives.
cat >"$tmp/family" <<'END'
trap '' TERM
sh -c 'trap "" TERM; while :; do : >>"$0"; sleep 0.02; done' "$1" &
echo $$ $! >"$1.pids"
while :; do sleep 0.02; done
END
cat >"$tmp/look" <<'END'
for member in $(cat "$1.pids"); do
    case $(sed -n 's/^State:[^A-Z]*\([A-Z]\).*/\1/p' /proc/$member/status 2>&1) in
    R | S | D | T) echo "$member lives" ;;
    esac
done
END

# A family holds the lock and a contender waits for it.  Nobody of the family may
# be alive when the contender gets it.
start() {
    "$hf" run -t 2s "$1" -- sh "$tmp/family" "$tmp/$1" 2>"$tmp/$1.err" &
    pid=$!
    until_true [ -s "$tmp/$1.pids" ]
    "$hf" run -w 60 "$1" -- sh "$tmp/look" "$tmp/$1" >"$tmp/$1.seen" &
    contender=$!
}
passed() {
    wait $contender
    is "$2: the lock is passed on" 0 $?
    is "$2: the next holder sees nobody alive" '' "$(cat "$tmp/$1.seen")"
}

start stop
kill -STOP $pid
passed stop 'holdfast frozen'
kill -CONT $pid
wait $pid
is 'holdfast frozen: it says so when it thaws' 79 $?

start kill
kill -KILL $pid
wait $pid 2>/dev/null
passed kill 'holdfast killed'

"$hf" run -t 2s mute -- sh "$tmp/family" "$tmp/mute" 2>"$tmp/mute.err" &
pid=$!
until_true [ -s "$tmp/mute.pids" ]
kill -STOP $server
until_true grep -q "lost 'mute' (expired)" "$tmp/mute.err"
ok 'server frozen: the loss is told'
has 'server frozen: and before it that renewals fail' "cannot renew 'mute'" \
    "$(cat "$tmp/mute.err")"
nobody() { [ -z "$(sh "$tmp/look" "$tmp/mute")" ]; }
until_true nobody
ok 'server frozen: the family is dead while the server still sleeps'
kill -CONT $server
wait $pid
is 'server frozen: the status is 79' 79 $?

# The place in the queue, and a server that is not there.
"$hf" run --note 'in front' queue -- sleep 1000 &
holder=$!
until_true held queue
"$hf" run -v queue -- true 2>"$tmp/said" &
waiter=$!
until_true grep -q 'held by in front.*lease .* left.*you are #1' "$tmp/said"
ok 'a wait tells the lease and the place in the queue'
kill $holder
wait $holder
wait $waiter
is 'and ends with the lock' 0 $?
kill -KILL $server
wait $server 2>/dev/null
exits 'a server that is not there gives 69' 69 "$hf" run -n k -- true
exits 'for status too' 69 "$hf" status k
finish
