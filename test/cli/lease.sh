#!/bin/sh
# SPDX-License-Identifier: MIT
#
# lease.sh - the command over a service that keeps leases by itself: a private
# Redis, which can be frozen to make renewals fail.
. "$(dirname "$0")/lib.sh"
hf=$HOLDFAST

redis_start

# acquire, renew, release.
eval "$("$hf" acquire -t 1h "it's")"
is 'acquire gives a handle to eval' "it's" "${HOLDFAST_KEY-}"
exits 'the lock stays when acquire has ended' 75 "$hf" run -n "it's" -- true
exits 'the fence is the one that stands' 0 \
    "$hf" check --fence "${HOLDFAST_FENCE-0}" "it's"
exits 'renew renews it' 0 "$hf" renew
is 'and prints the same handle' "HOLDFAST_HANDLE='$HOLDFAST_HANDLE'" "${said%%;*}"
exits 'the first handle can be renewed again' 0 "$hf" renew
exits 'and can be released' 0 "$hf" release
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

# A handle that nobody got is no lock that anybody has.
"$hf" acquire -t 1h full >/dev/full 2>"$tmp/said"
is 'acquire fails if its handle cannot be written' 125 $?
has 'and says what became of the lock' "'full' was released" "$(cat "$tmp/said")"
exits 'which is free' 1 "$hf" status full
mkfifo "$tmp/stuck" "$tmp/left"
cat "$tmp/left" >/dev/null &
reader=$!
exec 8>"$tmp/left"
kill $reader
wait $reader
"$hf" acquire -t 1h pipe >&8 2>/dev/null
is 'the same if nobody is left to read it' 125 $?
exits 'and the lock is free' 1 "$hf" status pipe
exec 8<>"$tmp/stuck"
dd if=/dev/zero of="$tmp/stuck" bs=4096 oflag=nonblock 2>/dev/null
for signal in TERM USR1 USR2; do
    "$hf" acquire -t 1h stuck >"$tmp/stuck" 8>&- 2>/dev/null &
    pid=$!
    until_true held stuck
    kill -$signal $pid
    wait $pid
    is "$signal ends an acquire whose handle is not read" $signal \
        "$(kill -l $?)"
    exits 'and the lock is free' 1 "$hf" status stuck
done
"$hf" run -q inway -- sleep 1000 8>&- &
holder=$!
until_true held inway
"$hf" acquire -v inway 2>"$tmp/said" 8>&- &
pid=$!
until_true grep -q "waiting for 'inway': held by" "$tmp/said"
ok 'acquire -v says whom it waits for'
kill -TERM $pid
wait $pid
is 'TERM ends the wait of acquire' 143 $?
has 'and it leaves no place in the queue' '"waiters": 0' \
    "$("$hf" status --json inway)"
kill $holder
wait $holder
exec 8>&-

# The lease of the URL.
"$hf" run -u "$HOLDFAST_URL?ttl=7m" ttl -- "$hf" status --json ttl >"$tmp/said"
has 'ttl= of the URL is the lease' '"left_ms": 4' "$(cat "$tmp/said")"
"$hf" run -t 2m -u "$HOLDFAST_URL?ttl=7m" ttl -- "$hf" status --json ttl \
    >"$tmp/said"
has '-t wins over it' '"left_ms": 1' "$(cat "$tmp/said")"
has 'acquire knows it too' '"ttl_ms": 420000' \
    "$("$hf" acquire --json -u "$HOLDFAST_URL?ttl=7m" ttl2)"

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

# A run inside another that is being ended and has a long grace.  The inner lease
# is shorter: it alone decides when the inner family is dead.
"$hf" run -q -u "file:$tmp/outer" --max-hold 300ms --grace 30s outer -- \
    sh -c 'echo $$ >"$2.inner"; 
        exec "$0" run -u "$3" -t 2s nested -- sh "$1" "$2"' \
    "$hf" "$tmp/family" "$tmp/nested" "$HOLDFAST_URL" 2>"$tmp/nested.err" &
outer=$!
until_true [ -s "$tmp/nested.pids" ]
"$hf" run -w 60 nested -- sh "$tmp/look" "$tmp/nested" >"$tmp/nested.seen" &
contender=$!
until_true grep -q 'the run around' "$tmp/nested.err"
pid=$(cat "$tmp/nested.inner")
kill -STOP $pid
passed nested 'outer run ending, inner holdfast frozen'
kill -CONT $pid
wait $outer
is 'outer run ending: its status' 124 $?

# The server is frozen when the command ends.
"$hf" run -t 1m end -- sh -c 'until [ -e "$0" ]; do sleep 0.02; done; exit 6' \
    "$tmp/go" 2>"$tmp/said" &
pid=$!
until_true held end
kill -STOP $server
: >"$tmp/go"
wait $pid
is 'server frozen at the end: the status is the one of the command' 6 $?
kill -CONT $server
has 'server frozen at the end: the message tells when the lock will be free' \
    'lease ends by itself in 1m' "$(cat "$tmp/said")"

# The server is frozen while a person is told whom the wait is for.  The limit of
# a request is so long that the wait cannot end by it.
"$hf" run frozen -- sleep 1000 &
holder=$!
until_true held frozen
"$hf" run -v -u "$HOLDFAST_URL?timeout=1h" frozen -- true 2>"$tmp/said" &
waiter=$!
until_true grep -q 'waiting for' "$tmp/said"
kill -STOP $server
sleep 1.5 # so that the next look is under way
kill -TERM $waiter
until_true dead $waiter
ok 'server frozen: TERM ends a wait that looks at the lock'
kill -CONT $server
kill -KILL $waiter 2>/dev/null
kill $holder
wait $holder $waiter

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
# The server is restarted.
"$hf" watch --retry 20ms seen >"$tmp/watch" 2>"$tmp/said" &
watcher=$!
until_true [ -s "$tmp/watch" ]
kill -KILL $server
wait $server 2>/dev/null
until_true grep -q 'waiting for the service' "$tmp/said"
ok 'watch goes on when the server is gone'
"$hf" run -v -w 60 later -- echo got >"$tmp/got" 2>"$tmp/later" &
pid=$!
until_true grep -q 'trying again for' "$tmp/later"
ok '-w also waits for the server'
redis_serve "${HOLDFAST_URL##*:}"
wait $pid
is 'and gets the lock when it is back' 'got 0' "$(cat "$tmp/got") $?"
"$hf" run -q seen -- sleep 1000 &
holder=$!
until_true grep -q 'held by' "$tmp/watch"
ok 'watch sees the next holder of a restarted server'
is 'and says once that the server was away' 1 \
    "$(grep -c 'waiting for the service' "$tmp/said")"
kill $watcher $holder
wait $watcher $holder

# What the report says of a lock that is waited for and renewed.
"$hf" run -q figures -- sleep 1 &
holder=$!
until_true held figures
"$hf" run -q -t 600ms --report "$tmp/report" figures -- sleep 1.5
wait $holder
# figure NAME LEAST: the report has it, and it is no less.
figure() {
    found=$(sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$tmp/report")
    [ "${found:--1}" -ge "$2" ]
    ok "the report has $1"
}
figure waited_ms 1
figure held_ms 1500
figure renewals 2
figure margin_ms 1

# The server is there and does not answer.
"$hf" run -q --report "$tmp/report" frozen -- sh -c 'kill -STOP $0' $server
is 'a release without an answer keeps the status of the command' 0 $?
valid_json "$tmp/report"
ok 'and the report is written'
begin=$(date +%s)
exits 'a server that is silent gives 69 when -w is over' 69 \
    "$hf" run -q -w 0.2 -u "$HOLDFAST_URL?timeout=50s" k -- true
[ $(($(date +%s) - begin)) -lt 30 ]
ok 'and not when its own time is over'
kill -CONT $server

kill -KILL $server
wait $server 2>/dev/null
exits 'a server that is not there gives 69' 69 "$hf" run -n k -- true
exits 'for status too' 69 "$hf" status k
exits 'and for gc' 69 "$hf" gc
finish
